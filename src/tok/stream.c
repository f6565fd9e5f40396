/* Streaming detokeniser. `held` is always the beginning of a character (0..3 bytes), so the text
 * given out so far is whole characters.
 *
 * Worked: E4 BD | " the": the first push holds two bytes; the blank does not continue them, so they
 * become one U+FFFD and the blank goes on as itself: FFFD " the". */
#include "tok/tok_impl.h"

#include <string.h>

static size_t put_replacement(char *out) {
    static const char replacement[3] = {'\xEF', '\xBF', '\xBD'};
    memcpy(out, replacement, sizeof replacement);
    return sizeof replacement;
}

static size_t push_byte(tok_stream *s, uint8_t byte, char *out) {
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

size_t tok_stream_push(tok_stream *s, const char *bytes, size_t n, char *out) {
    size_t written = 0;
    for (size_t i = 0; i < n; i++) {
        written += push_byte(s, (uint8_t)bytes[i], out + written);
    }
    out[written] = '\0';
    return written;
}

size_t tok_stream_end(tok_stream *s, char *out) {
    size_t written = s->n_held > 0 ? put_replacement(out) : 0;
    s->n_held = 0;
    out[written] = '\0';
    return written;
}
