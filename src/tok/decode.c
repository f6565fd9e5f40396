/* Ids -> text.
 *
 *   token -> its bytes | a byte of a run -> whole characters -> less what is stripped -> text
 *
 * `held` is always the beginning of a character (0..3 bytes), so the text given out so far is whole
 * characters. Worked: E4 BD | " the": the first push holds two bytes; the blank does not continue
 * them, so they become one U+FFFD and the blank goes on as itself: FFFD " the".
 * A run of byte tokens <0xE4> <0xBD> " the" is bad as a whole: FFFD FFFD " the". */
#include "tok/tok_impl.h"

#include <stdlib.h>
#include <string.h>

static const char replacement[3] = {'\xEF', '\xBF', '\xBD'};

/* ---- bytes as text ---- */

static size_t put_replacement(char *out) {
    memcpy(out, replacement, sizeof replacement);
    return sizeof replacement;
}

static size_t push_byte(tok_utf8 *s, uint8_t byte, char *out) {
    size_t n = 0;
    s->held[s->n_held++] = byte;
    int step = utf8_step(s->held, (size_t)s->n_held);
    if (step < 0 && s->n_held > 1) {
        n += put_replacement(out); /* what was held is bad; the new byte may begin a character */
        s->held[0] = byte;
        s->n_held = 1;
        step = utf8_step(s->held, 1);
    }
    if (step < 0) {
        n += put_replacement(out + n);
        s->n_held = 0;
    } else if (step > 0) {
        memcpy(out + n, s->held, (size_t)step);
        n += (size_t)step;
        s->n_held = 0;
    }
    return n;
}

size_t tok_utf8_push(tok_utf8 *s, const char *bytes, size_t n, char *out) {
    size_t written = 0;
    for (size_t i = 0; i < n; i++) {
        written += push_byte(s, (uint8_t)bytes[i], out + written);
    }
    out[written] = '\0';
    return written;
}

size_t tok_utf8_end(tok_utf8 *s, char *out) {
    size_t written = s->n_held > 0 ? put_replacement(out) : 0;
    s->n_held = 0;
    out[written] = '\0';
    return written;
}

/* ---- the stream ---- */

struct tok_stream {
    const tok *tok;
    bool inside, begun;
    int32_t n_strip_start; /* that may still be stripped */
    tok_utf8 utf8;
    text_buf run;  /* bytes of byte tokens since the last other token */
    text_buf out;  /* what the call gives */
    text_buf tail; /* held: characters that are stripped if the text ends here */
};

static void start(tok_stream *s) {
    s->begun = s->inside;
    s->n_strip_start = s->inside ? 0 : s->tok->decoder.n_strip_start;
    s->run.n = s->out.n = s->tail.n = 0;
    s->utf8.n_held = 0;
}

weft_status tok_stream_open(const tok *t, bool inside, tok_stream **out, weft_error *err) {
    tok_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a stream of text");
    }
    s->tok = t;
    s->inside = inside;
    start(s);
    *out = s;
    return WEFT_OK;
}

void tok_stream_close(tok_stream *s) {
    if (s != NULL) {
        text_buf_free(&s->run);
        text_buf_free(&s->out);
        text_buf_free(&s->tail);
        free(s);
    }
}

/* Room for all that a call may give or keep for n more bytes of tokens, so that nothing fails half
 * done. */
static weft_status reserve(tok_stream *s, size_t n, weft_error *err) {
    s->out.n = 0;
    size_t most = 3 * (n + s->run.n + 4) + s->tail.n + 1;
    bool ok = text_buf_reserve(&s->out, most) && text_buf_reserve(&s->tail, most) &&
              text_buf_reserve(&s->run, n);
    return ok ? WEFT_OK : error_set(err, WEFT_ERR_MEMORY, "no memory for %zu bytes of text", most);
}

/* Takes the stripped characters off the text that out has from `begin` on. */
static void strip_text(tok_stream *s, size_t begin) {
    const decoder *d = &s->tok->decoder;
    char wanted[4];
    size_t k = utf8_put(d->strip_point, wanted);
    text_buf *out = &s->out;
    while (s->n_strip_start > 0 && out->n > begin) {
        if (out->n - begin < k || memcmp(out->data + begin, wanted, k) != 0) {
            s->n_strip_start = 0;
            break;
        }
        out->n -= k;
        memmove(out->data + begin, out->data + begin + k, out->n - begin);
        s->n_strip_start--;
    }
    if (d->n_strip_end > 0 && out->n > begin) {
        /* the tail goes in front of it, the new tail comes off its end */
        memmove(out->data + begin + s->tail.n, out->data + begin, out->n - begin);
        memcpy(out->data + begin, s->tail.data, s->tail.n);
        out->n += s->tail.n;
        s->tail.n = 0;
        for (int32_t i = 0; i < d->n_strip_end && out->n - begin >= k &&
                            memcmp(out->data + out->n - k, wanted, k) == 0;
             i++) {
            out->n -= k;
            s->tail.n += k;
        }
        memcpy(s->tail.data, out->data + out->n, s->tail.n);
    }
}

static void give(tok_stream *s, const char *bytes, size_t n) {
    size_t begin = s->out.n;
    s->out.n += tok_utf8_push(&s->utf8, bytes, n, s->out.data + s->out.n);
    strip_text(s, begin);
}

static void give_run(tok_stream *s) {
    if (s->run.n == 0) {
        return;
    }
    if (utf8_valid_bytes(s->run.data, s->run.n) == s->run.n) {
        give(s, s->run.data, s->run.n);
    } else {
        for (size_t i = 0; i < s->run.n; i++) {
            give(s, replacement, sizeof replacement);
        }
    }
    s->run.n = 0;
}

static void give_piece(tok_stream *s, load_string piece) {
    load_string drop = s->tok->decoder.drop_first;
    if (s->begun || drop.data == NULL) {
        give(s, piece.data, piece.bytes);
        return;
    }
    for (size_t at = 0; at < piece.bytes;) {
        bool gone =
            piece.bytes - at >= drop.bytes && memcmp(piece.data + at, drop.data, drop.bytes) == 0;
        if (!gone) {
            give(s, piece.data + at, 1);
        }
        at += gone ? drop.bytes : 1;
    }
}

weft_status tok_stream_push(tok_stream *s, int32_t id, const char **text, size_t *n,
                            weft_error *err) {
    const tok *t = s->tok;
    const decoder *d = &t->decoder;
    bool known = id >= 0 && id < t->n_token && t->text[id].data != NULL;
    load_string piece = known ? d->piece[id] : (load_string){"", 0};
    weft_status status = reserve(s, piece.bytes + 1, err);
    if (status != WEFT_OK) {
        return status;
    }
    if (known && d->byte != NULL && d->byte[id] >= 0) {
        s->run.data[s->run.n++] = (char)d->byte[id];
        s->begun = true;
    } else if (known) {
        give_run(s);
        /* a first token is looked at as the file spells it */
        give_piece(s, !s->begun && d->drop_first.data != NULL ? t->text[id] : piece);
        s->begun = true;
    }
    *text = s->out.data;
    *n = s->out.n;
    return WEFT_OK;
}

weft_status tok_stream_end(tok_stream *s, const char **text, size_t *n, weft_error *err) {
    weft_status status = reserve(s, 0, err);
    if (status != WEFT_OK) {
        return status;
    }
    give_run(s);
    size_t begin = s->out.n;
    s->out.n += tok_utf8_end(&s->utf8, s->out.data + s->out.n);
    strip_text(s, begin);
    *text = s->out.data;
    *n = s->out.n;
    size_t given = s->out.n;
    start(s);
    s->out.n = given;
    return WEFT_OK;
}

static weft_status append(text_buf *to, const char *text, size_t n, weft_error *err) {
    if (!text_buf_reserve(to, to->n + n + 1))
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %zu bytes of text", to->n + n);
    memcpy(to->data + to->n, text, n);
    to->n += n;
    return WEFT_OK;
}

weft_status tok_decode(const tok *t, const int32_t *ids, size_t n_id, bool special, char **out,
                       size_t *n, weft_error *err) {
    text_buf all = {0};
    tok_stream *stream = NULL;
    const char *piece;
    size_t bytes;
    weft_status s = tok_stream_open(t, false, &stream, err);
    for (size_t i = 0; i < n_id && s == WEFT_OK; i++) {
        if (ids[i] < 0 || ids[i] >= tok_vocab_size(t))
            s = error_set(err, WEFT_ERR_USAGE, "token %zu is %d: expected 0 to %d", i, ids[i],
                          tok_vocab_size(t) - 1);
        else if (special || !tok_is_special(t, ids[i])) {
            s = tok_stream_push(stream, ids[i], &piece, &bytes, err);
            if (s == WEFT_OK)
                s = append(&all, piece, bytes, err);
        }
    }
    if (s == WEFT_OK)
        s = tok_stream_end(stream, &piece, &bytes, err);
    if (s == WEFT_OK)
        s = append(&all, piece, bytes, err);
    tok_stream_close(stream);
    if (s != WEFT_OK) {
        text_buf_free(&all);
        return s;
    }
    all.data[all.n] = '\0';
    *out = all.data;
    *n = all.n;
    return WEFT_OK;
}
