/* Pre-tokeniser steps: a stretch of text becomes pieces, each step works on every piece of the one
 * before it as on a text of its own. */
#include "tok/tok_impl.h"

#include <stdlib.h>
#include <string.h>

const char pretok_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static weft_status no_memory(weft_error *err) {
    return error_set(err, WEFT_ERR_MEMORY, "no memory to cut the text");
}

/* ---- the list of pieces ---- */

/* Pieces of the step at work are collected in `spare`. */
static bool push(pretok_pieces *p, size_t *n, size_t start, size_t end, bool first) {
    if (*n == p->spare_cap) {
        size_t cap = p->spare_cap > 0 ? 2 * p->spare_cap : 64;
        pretok_piece *grown = realloc(p->spare, cap * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        p->spare = grown;
        p->spare_cap = cap;
    }
    p->spare[(*n)++] = (pretok_piece){start, end, first};
    return true;
}

static void swap_lists(pretok_pieces *p, size_t n) {
    pretok_piece *piece = p->piece;
    size_t cap = p->cap;
    p->piece = p->spare;
    p->cap = p->spare_cap;
    p->spare = piece;
    p->spare_cap = cap;
    p->n = n;
}

/* ---- cuts ---- */

typedef struct cutter {
    const pretok_step *step;
    pretok_pieces *out;
    pretok_piece piece; /* the one that is cut */
    size_t begin, n;    /* what it has become: spare[begin..n) */
    bool before, any;   /* whether the span before counted as a match, and whether there was one */
} cutter;

/* A span of the piece, a match or what lies between two; empty ones count as neighbours too. */
static bool cut_span(cutter *c, size_t start, size_t end, bool match) {
    match = match != c->step->invert;
    pretok_piece *last = c->n > c->begin ? &c->out->spare[c->n - 1] : NULL;
    bool join = false;
    switch (c->step->behavior) {
    case CUT_REMOVED:
        if (match) {
            return true;
        }
        break;
    case CUT_ISOLATED:
        break;
    case CUT_MERGED_WITH_PREVIOUS:
        join = match && !c->before;
        break;
    case CUT_MERGED_WITH_NEXT:
        join = !match && c->any && c->before;
        break;
    case CUT_CONTIGUOUS:
        join = c->any && match == c->before;
        break;
    }
    c->before = match;
    c->any = true;
    if (join && last != NULL) {
        last->end = end;
        return true;
    }
    return push(c->out, &c->n, start, end, c->piece.first && start == c->piece.start);
}

/* Takes the empty pieces out of spare[begin..n). */
static void drop_empty(cutter *c) {
    size_t to = c->begin;
    for (size_t i = c->begin; i < c->n; i++) {
        if (c->out->spare[i].end > c->out->spare[i].start) {
            c->out->spare[to++] = c->out->spare[i];
        }
    }
    c->n = to;
}

static weft_status cut_piece(cutter *c, regex_run *run, weft_error *err) {
    size_t base = c->piece.start, bytes = c->piece.end - base, at = 0, start, end;
    regex_scan scan = {
        .regex = c->step->pattern, .run = run, .text = c->out->text + base, .bytes = bytes};
    bool found, ok = true;
    weft_status status;
    c->begin = c->n;
    c->before = c->any = false;
    while ((status = regex_next(&scan, &found, &start, &end, err)) == WEFT_OK && found && ok) {
        ok = (start == at || cut_span(c, base + at, base + start, false)) &&
             cut_span(c, base + start, base + end, true);
        at = end;
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (!ok || (at < bytes && !cut_span(c, base + at, base + bytes, false))) {
        return no_memory(err);
    }
    drop_empty(c);
    return WEFT_OK;
}

static weft_status cut_all(const pretok_step *step, regex_run *run, pretok_pieces *p,
                           weft_error *err) {
    cutter c = {.step = step, .out = p};
    for (size_t i = 0; i < p->n; i++) {
        c.piece = p->piece[i];
        weft_status status = cut_piece(&c, run, err);
        if (status != WEFT_OK) {
            return status;
        }
    }
    swap_lists(p, c.n);
    return WEFT_OK;
}

/* ---- other texts ---- */

static weft_status write_piece(const pretok_step *step, regex_run *run, load_string piece,
                               bool first, text_buf *to, weft_error *err) {
    if (step->kind == PRETOK_REPLACE) {
        return regex_replace(step->pattern, run, piece, step->content, TOK_MOST_TEXT_BYTES, to,
                             err);
    }
    if (step->kind == PRETOK_BYTES) {
        if (!text_buf_reserve(to, 2 * piece.bytes)) {
            return no_memory(err);
        }
        for (size_t i = 0; i < piece.bytes; i++) {
            to->n += utf8_put(alphabet_point((uint8_t)piece.data[i]), to->data + to->n);
        }
        return WEFT_OK;
    }
    bool has = piece.bytes >= step->content.bytes &&
               memcmp(piece.data, step->content.data, step->content.bytes) == 0;
    bool adds = !has && (first || !step->first_only);
    bool ok = (!adds || text_buf_add(to, step->content.data, step->content.bytes)) &&
              text_buf_add(to, piece.data, piece.bytes);
    return ok ? WEFT_OK : no_memory(err);
}

static weft_status write_all(const pretok_step *step, regex_run *run, pretok_pieces *p,
                             weft_error *err) {
    text_buf *to = &p->buffer[p->buffer[0].data != NULL && p->text == p->buffer[0].data];
    size_t n = 0;
    to->n = 0;
    for (size_t i = 0; i < p->n; i++) {
        size_t start = to->n;
        load_string piece = {p->text + p->piece[i].start, p->piece[i].end - p->piece[i].start};
        weft_status status = write_piece(step, run, piece, p->piece[i].first, to, err);
        if (status != WEFT_OK) {
            return status;
        }
        if (to->n > start && !push(p, &n, start, to->n, p->piece[i].first)) {
            return no_memory(err);
        }
    }
    p->text = to->data;
    swap_lists(p, n);
    return WEFT_OK;
}

weft_status pretok_cut(const pretok *p, regex_run *run, const char *text, size_t bytes, bool first,
                       pretok_pieces *out, weft_error *err) {
    size_t n = 0;
    out->text = text;
    out->n = 0;
    if (bytes > 0 && !push(out, &n, 0, bytes, first)) {
        return no_memory(err);
    }
    swap_lists(out, n);
    weft_status status = WEFT_OK;
    for (int32_t i = 0; i < p->n && status == WEFT_OK; i++) {
        const pretok_step *step = &p->step[i];
        status = step->kind == PRETOK_CUT ? cut_all(step, run, out, err)
                                          : write_all(step, run, out, err);
    }
    return status;
}

void pretok_pieces_free(pretok_pieces *p) {
    free(p->piece);
    free(p->spare);
    text_buf_free(&p->buffer[0]);
    text_buf_free(&p->buffer[1]);
    *p = (pretok_pieces){0};
}

void pretok_close(pretok *p) {
    for (int32_t i = 0; i < p->n; i++) {
        regex_close(p->step[i].pattern);
    }
    p->n = 0;
}
