/* Normaliser steps. The Unicode forms by utf8proc's tables: utf8proc_map sorts a run of marks by
 * exchanging neighbours, which is quadratic in the run; here the runs are sorted by counting their
 * combining classes. */
#include "tok/tok_impl.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MOST_PARTS = 32 }; /* code points of one character's decomposition; Unicode has 18 */

static weft_status no_memory(size_t bytes, weft_error *err) {
    return error_set(err, WEFT_ERR_MEMORY, "no memory to normalise %zu bytes", bytes);
}

/* ---- forms ---- */

typedef struct points {
    int32_t *at;
    size_t n, cap;
} points;

static uint8_t combining_class(int32_t point) {
    return (uint8_t)utf8proc_get_property(point)->combining_class;
}

/* Stable sort of point[0..n) by combining class. temp: [n]. */
static void sort_run(int32_t *point, size_t n, int32_t *temp) {
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) {
        start[combining_class(point[i]) + 1]++;
    }
    for (int c = 1; c <= 256; c++) {
        start[c] += start[c - 1];
    }
    for (size_t i = 0; i < n; i++) {
        temp[start[combining_class(point[i])]++] = point[i];
    }
    memcpy(point, temp, n * sizeof *point);
}

static void sort_marks(int32_t *point, size_t n, int32_t *temp) {
    size_t at = 0;
    while (at < n) {
        size_t end = at;
        bool sorted = true;
        uint8_t before = 0, now;
        while (end < n && (now = combining_class(point[end])) != 0) {
            sorted = sorted && before <= now;
            before = now;
            end++;
        }
        if (!sorted) {
            sort_run(point + at, end - at, temp);
        }
        at = end + 1;
    }
}

static bool points_reserve(points *p, size_t more) {
    if (more <= p->cap - p->n) {
        return true;
    }
    size_t cap = p->cap + p->cap / 2 + more;
    int32_t *grown = realloc(p->at, cap * sizeof *grown);
    if (grown == NULL) {
        return false;
    }
    p->at = grown;
    p->cap = cap;
    return true;
}

static weft_status decompose(const char *text, size_t bytes, utf8proc_option_t options, points *out,
                             weft_error *err) {
    const uint8_t *p = (const uint8_t *)text;
    int boundary = 0;
    for (size_t at = 0; at < bytes;) {
        if (!points_reserve(out, MOST_PARTS)) {
            return no_memory(bytes, err);
        }
        int step = utf8_step(p + at, bytes - at);
        utf8proc_ssize_t parts = utf8proc_decompose_char(
            (int32_t)utf8_point(p + at, step), out->at + out->n, MOST_PARTS, options, &boundary);
        if (parts < 0 || parts > MOST_PARTS) {
            return error_set_at(err, WEFT_ERR_USAGE, (int64_t)at,
                                "a character could not be normalised: %s",
                                utf8proc_errmsg(parts < 0 ? parts : UTF8PROC_ERROR_OVERFLOW));
        }
        out->n += (size_t)parts;
        at += (size_t)step;
    }
    return WEFT_OK;
}

static weft_status write_points(points *p, utf8proc_option_t options, text_buf *out,
                                weft_error *err) {
    utf8proc_ssize_t n = utf8proc_normalize_utf32(p->at, (utf8proc_ssize_t)p->n, options);
    if (n < 0) {
        return error_set(err, WEFT_ERR_USAGE, "the text could not be normalised: %s",
                         utf8proc_errmsg(n));
    }
    if (!text_buf_reserve(out, 4 * (size_t)n)) {
        return no_memory(4 * (size_t)n, err);
    }
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        out->n += utf8_put((uint32_t)p->at[i], out->data + out->n);
    }
    return WEFT_OK;
}

weft_status norm_form(const char *text, size_t bytes, bool compose, bool compat, text_buf *out,
                      weft_error *err) {
    utf8proc_option_t options = UTF8PROC_STABLE;
    options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    options |= compat ? UTF8PROC_COMPAT : 0;
    points p = {.cap = bytes + MOST_PARTS};
    p.at = malloc(p.cap * sizeof *p.at);
    int32_t *temp = NULL;
    out->n = 0;
    weft_status status =
        p.at == NULL ? no_memory(bytes, err) : decompose(text, bytes, options, &p, err);
    if (status == WEFT_OK) {
        temp = malloc((p.n + 1) * sizeof *temp);
        status = temp != NULL ? WEFT_OK : no_memory(bytes, err);
    }
    if (status == WEFT_OK) {
        sort_marks(p.at, p.n, temp);
        status = write_points(&p, options, out, err);
    }
    free(temp);
    free(p.at);
    return status;
}

/* ---- the other steps ---- */

static bool is_ascii(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if ((uint8_t)text[i] >= 0x80) {
            return false;
        }
    }
    return true;
}

/* U+0130 is the one character whose lower case is two. */
static bool lowercase(uint32_t point, text_buf *out) {
    char bytes[8];
    size_t n = point == 0x130 ? utf8_put('i', bytes) + utf8_put(0x307, bytes + 1)
                              : utf8_put((uint32_t)utf8proc_tolower((int32_t)point), bytes);
    return text_buf_add(out, bytes, n);
}

static bool is_mark(uint32_t point) {
    utf8proc_category_t c = utf8proc_category((int32_t)point);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

/* LOWERCASE and STRIP_ACCENTS go character by character. */
static weft_status each_character(norm_kind kind, load_string text, text_buf *out,
                                  weft_error *err) {
    const uint8_t *p = (const uint8_t *)text.data;
    for (size_t at = 0; at < text.bytes;) {
        int step = utf8_step(p + at, text.bytes - at);
        uint32_t point = utf8_point(p + at, step);
        bool ok = kind == NORM_LOWERCASE
                      ? lowercase(point, out)
                      : is_mark(point) || text_buf_add(out, text.data + at, (size_t)step);
        if (!ok) {
            return no_memory(text.bytes, err);
        }
        at += (size_t)step;
    }
    return WEFT_OK;
}

static load_string strip(load_string text, bool left, bool right) {
    while (left && text.bytes > 0) {
        size_t k = utf8_first_bytes(text.data, text.bytes);
        if (!utf8_is_space(utf8_point((const uint8_t *)text.data, (int)k))) {
            break;
        }
        text.data += k;
        text.bytes -= k;
    }
    while (right && text.bytes > 0) {
        size_t k = utf8_last_bytes(text.data, text.bytes);
        if (!utf8_is_space(utf8_point((const uint8_t *)text.data + text.bytes - k, (int)k))) {
            break;
        }
        text.bytes -= k;
    }
    return text;
}

/* *text becomes the step's result; `out` is free to use. */
static weft_status apply_step(const norm_step *step, regex_run *run, text_buf *out, size_t most,
                              load_string *text, weft_error *err) {
    weft_status status = WEFT_OK;
    out->n = 0;
    switch (step->kind) {
    case NORM_FORM:
        if (is_ascii(text->data, text->bytes)) {
            return WEFT_OK;
        }
        status = norm_form(text->data, text->bytes, step->compose, step->compat, out, err);
        break;
    case NORM_PREPEND:
        if (text->bytes == 0) {
            return WEFT_OK;
        }
        if (!text_buf_add(out, step->content.data, step->content.bytes) ||
            !text_buf_add(out, text->data, text->bytes)) {
            status = no_memory(text->bytes, err);
        }
        break;
    case NORM_REPLACE:
        status = regex_replace(step->pattern, run, *text, step->content, most, out, err);
        break;
    case NORM_STRIP:
        *text = strip(*text, step->left, step->right);
        return WEFT_OK;
    default:
        status = each_character(step->kind, *text, out, err);
    }
    *text = (load_string){out->data, out->n};
    return status;
}

weft_status norm_apply(const norm *n, regex_run *run, text_buf buffer[2], const char *text,
                       size_t bytes, size_t most, load_string *out, weft_error *err) {
    *out = (load_string){text, bytes};
    for (int32_t i = 0; i < n->n; i++) {
        /* not the buffer that the text lies in (STRIP leaves it inside of one) */
        bool in_first = buffer[0].data != NULL && out->data >= buffer[0].data &&
                        out->data <= buffer[0].data + buffer[0].cap;
        weft_status status = apply_step(&n->step[i], run, &buffer[in_first], most, out, err);
        if (status == WEFT_OK && out->bytes > most) {
            status =
                error_set(err, WEFT_ERR_TOO_LONG, "the normalizer makes more than %zu bytes", most);
        }
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

void norm_close(norm *n) {
    for (int32_t i = 0; i < n->n; i++) {
        regex_close(n->step[i].pattern);
    }
    n->n = 0;
}
