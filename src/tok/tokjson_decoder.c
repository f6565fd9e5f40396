/* decoder of a tokenizer.json. */
#include "tok/tokjson.h"

#include <stdlib.h>
#include <string.h>

/* ---- decoder ---- */

/* A decoder works on each token by itself until one joins them. */
typedef enum decode_phase { DECODE_TOKENS, DECODE_BYTES, DECODE_TEXT } decode_phase;

typedef struct decoder_reader {
    tokjson_reader base; /* first: a tokjson_step_fn gets it */
    decode_phase phase;
    bool any;
} decoder_reader;

/* Every token's piece becomes what the step makes of it, in one block. */
typedef weft_status (*piece_fn)(tokjson_reader *r, load_string piece, const void *step,
                                text_buf *out);
static weft_status map_pieces(tokjson_reader *r, piece_fn each, const void *step) {
    tok *t = r->t;
    text_buf all = {0};
    weft_status status = WEFT_OK;
    size_t *end = malloc(((size_t)t->n_token + 1) * sizeof *end);
    if (end == NULL) {
        return tokjson_no_memory(r->err);
    }
    for (int32_t id = 0; id < t->n_token && status == WEFT_OK; id++) {
        if (t->text[id].data != NULL) {
            status = each(r, t->decoder.piece[id], step, &all);
        }
        end[id] = all.n;
    }
    char *block = status == WEFT_OK ? load_arena_take(&t->arena, all.n + 1, 1) : NULL;
    if (block != NULL) {
        if (all.n > 0) {
            memcpy(block, all.data, all.n);
        }
        for (int32_t id = 0; id < t->n_token; id++) {
            size_t begin = id > 0 ? end[id - 1] : 0;
            t->decoder.piece[id] = (load_string){block + begin, end[id] - begin};
        }
    } else if (status == WEFT_OK) {
        status = tokjson_no_memory(r->err);
    }
    free(end);
    text_buf_free(&all);
    return status;
}

typedef struct replace_step {
    regex *pattern;
    regex_run *run;
    load_string content;
} replace_step;

static weft_status replace_piece(tokjson_reader *r, load_string piece, const void *step,
                                 text_buf *out) {
    enum { MOST_PIECES_BYTES = 64 << 20 }; /* of all tokens; real vocabularies have 4 MB */
    const replace_step *s = step;
    weft_status status =
        regex_replace(s->pattern, s->run, piece, s->content, MOST_PIECES_BYTES, out, r->err);
    return status != WEFT_ERR_TOO_LONG
               ? status
               : error_set(r->err, WEFT_ERR_FILE,
                           "tokenizer.json: decoder makes more than %d bytes of the vocabulary",
                           MOST_PIECES_BYTES);
}

static weft_status alphabet_piece(tokjson_reader *r, load_string piece, const void *step,
                                  text_buf *out) {
    (void)step;
    size_t n = 0;
    if (!text_buf_reserve(out, piece.bytes)) {
        return tokjson_no_memory(r->err);
    }
    if (!alphabet_decode(piece, out->data + out->n, &n)) {
        return text_buf_add(out, piece.data, piece.bytes) ? WEFT_OK : tokjson_no_memory(r->err);
    }
    out->n += n;
    return WEFT_OK;
}

typedef struct strip_step {
    load_string content;
    int32_t n_start, n_end;
} strip_step;

static weft_status strip_piece(tokjson_reader *r, load_string piece, const void *step,
                               text_buf *out) {
    const strip_step *s = step;
    size_t k = s->content.bytes;
    for (int32_t i = 0;
         i < s->n_start && piece.bytes >= k && memcmp(piece.data, s->content.data, k) == 0; i++) {
        piece.data += k;
        piece.bytes -= k;
    }
    for (int32_t i = 0; i < s->n_end && piece.bytes >= k &&
                        memcmp(piece.data + piece.bytes - k, s->content.data, k) == 0;
         i++) {
        piece.bytes -= k;
    }
    return text_buf_add(out, piece.data, piece.bytes) ? WEFT_OK : tokjson_no_memory(r->err);
}

static weft_status decode_replace(tokjson_reader *r, json_t *step, const tokjson_path *at) {
    replace_step s = {0};
    weft_status status;
    if ((status = tokjson_check_members(step, at, " type pattern content ", r->err)) != WEFT_OK ||
        (status = tokjson_text(step, at, "content", true, &s.content, r->err)) != WEFT_OK ||
        (status = tokjson_pattern(step, at, &s.pattern, r->err)) != WEFT_OK || s.pattern == NULL) {
        return status;
    }
    status = regex_run_open(&s.run, r->err);
    if (status == WEFT_OK) {
        status = map_pieces(r, replace_piece, &s);
    }
    regex_run_close(s.run);
    regex_close(s.pattern);
    return status;
}

static weft_status decode_metaspace(tokjson_reader *r, json_t *step, const tokjson_path *at) {
    static const load_string blank = {" ", 1};
    load_string character;
    bool prefix, first;
    replace_step s = {.content = blank};
    weft_status status;
    if ((status = tokjson_check_members(step, at, TOKJSON_METASPACE, r->err)) != WEFT_OK ||
        (status = tokjson_character(step, at, "replacement", &character, r->err)) != WEFT_OK ||
        (status = tokjson_scheme(step, at, &prefix, &first, r->err)) != WEFT_OK ||
        (status = regex_open_literal(character, &s.pattern, r->err)) != WEFT_OK) {
        return status;
    }
    if (prefix) {
        status = tokjson_keep(r, character, &r->t->decoder.drop_first);
    }
    if (status == WEFT_OK) {
        status = map_pieces(r, replace_piece, &s);
    }
    regex_close(s.pattern);
    return status;
}

static weft_status decode_strip(decoder_reader *d, json_t *step, const tokjson_path *at) {
    tokjson_reader *r = &d->base;
    decoder *out = &r->t->decoder;
    strip_step s;
    weft_status status;
    if ((status = tokjson_check_members(step, at, " type content start stop ", r->err)) !=
            WEFT_OK ||
        (status = tokjson_character(step, at, "content", &s.content, r->err)) != WEFT_OK ||
        (status = tokjson_count(step, at, "start", &s.n_start, r->err)) != WEFT_OK ||
        (status = tokjson_count(step, at, "stop", &s.n_end, r->err)) != WEFT_OK) {
        return status;
    }
    if (d->phase == DECODE_TOKENS) {
        return map_pieces(r, strip_piece, &s);
    }
    if (out->n_strip_start > 0 || out->n_strip_end > 0) {
        return error_set(r->err, WEFT_ERR_FILE,
                         "tokenizer.json: %s: a second Strip of the whole text is not supported",
                         at->text);
    }
    out->strip_point = utf8_point((const uint8_t *)s.content.data, (int)s.content.bytes);
    out->n_strip_start = s.n_start;
    out->n_strip_end = s.n_end;
    return WEFT_OK;
}

static weft_status decode_byte_fallback(tokjson_reader *r, json_t *step, const tokjson_path *at) {
    tok *t = r->t;
    weft_status status = tokjson_check_members(step, at, " type ", r->err);
    if (status != WEFT_OK) {
        return status;
    }
    t->decoder.byte = load_arena_take(&t->arena, (size_t)t->n_token + 1, sizeof *t->decoder.byte);
    char *bytes = load_arena_take(&t->arena, 256, 1);
    if (t->decoder.byte == NULL || bytes == NULL) {
        return tokjson_no_memory(r->err);
    }
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
    }
    for (int32_t id = 0; id < t->n_token; id++) {
        int byte = t->text[id].data != NULL ? tok_byte_token(t->decoder.piece[id]) : -1;
        t->decoder.byte[id] = (int16_t)byte;
        if (byte >= 0) {
            t->decoder.piece[id] = (load_string){bytes + byte, 1};
        }
    }
    return WEFT_OK;
}

/* Which step may stand where: what works on single tokens comes before what joins them. */
static weft_status read_decoder(tokjson_reader *r, json_t *step, const tokjson_path *at,
                                load_string type) {
    decoder_reader *d = (decoder_reader *)r;
    bool first = !d->any;
    decode_phase phase = d->phase;
    d->any = true;
    if (string_is(type, "Fuse")) {
        d->phase = DECODE_TEXT;
        return tokjson_check_members(step, at, " type ", r->err);
    }
    if (string_is(type, "Strip") && phase != DECODE_BYTES) {
        return decode_strip(d, step, at);
    }
    if (string_is(type, "Replace") && phase == DECODE_TOKENS) {
        return decode_replace(r, step, at);
    }
    if (string_is(type, "ByteFallback") && phase == DECODE_TOKENS) {
        d->phase = DECODE_BYTES;
        return decode_byte_fallback(r, step, at);
    }
    if (string_is(type, "Metaspace") && first) {
        d->phase = DECODE_BYTES;
        return decode_metaspace(r, step, at);
    }
    if (string_is(type, "ByteLevel") && phase == DECODE_TOKENS) {
        d->phase = DECODE_TEXT;
        weft_status status = tokjson_check_members(
            step, at, " type add_prefix_space trim_offsets use_regex ", r->err);
        return status != WEFT_OK ? status : map_pieces(r, alphabet_piece, NULL);
    }
    return tokjson_refuse_type(
        at, type,
        "ByteLevel; or Replace and Strip, ByteFallback, Fuse, Strip in this order; "
        "or Metaspace, Fuse",
        r->err);
}

weft_status tokjson_read_decoders(tokjson_reader *r) {
    tok *t = r->t;
    for (int32_t id = 0; id < t->n_token; id++) {
        t->decoder.piece[id] = t->text[id];
    }
    decoder_reader d = {.base = *r};
    weft_status status = tokjson_walk_member(&d.base, "decoder", "decoders", read_decoder);
    return status != WEFT_OK || d.any
               ? status
               : error_set(r->err, WEFT_ERR_FILE,
                           "tokenizer.json: decoder is missing; known: ByteLevel, or a Sequence");
}
