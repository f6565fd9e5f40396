/* Status tables (text, exit code, HTTP) and the filling of error records. */
#include "base/status.h"

#include <stdio.h>
#include <string.h>

const char *weft_status_text(weft_status status) {
    switch (status) {
#define CASE(name, value, text, http)                                                              \
    case name:                                                                                     \
        return text;
        WEFT_STATUS_TABLE(CASE)
#undef CASE
    }
    return "unknown status";
}

int status_http(weft_status s) {
    switch (s) {
#define CASE(name, value, text, http)                                                              \
    case name:                                                                                     \
        return http;
        WEFT_STATUS_TABLE(CASE)
#undef CASE
    }
    return 500;
}

/* 1 is left out on purpose: it means that a check or an evaluation found a difference. */
int status_exit_code(weft_status s) {
    switch (s) {
    case WEFT_OK:
        return 0;
    case WEFT_ERR_USAGE:
    case WEFT_ERR_SETUP:
    case WEFT_ERR_TOO_LONG:
        return 2;
    case WEFT_ERR_FILE:
        return 3;
    case WEFT_ERR_MEMORY:
        return 4;
    case WEFT_ERR_RANK:
    case WEFT_ERR_NUMERIC:
    case WEFT_ERR_IO:
        return 5;
    case WEFT_ERR_CANCELLED:
    case WEFT_ERR_INTERRUPTED:
        return 130;
    }
    return 5;
}

/* Bytes of `text` to keep so that it ends on a whole UTF-8 character: a text cut inside
 *   C3 | A9   keeps 0 of the 1 byte left,   E2 82 | AC   keeps 0 of 2,   .. 41 | keeps all. */
static size_t whole_characters(const char *text, size_t n) {
    size_t start = n;
    while (start > 0 && n - start < 4) {
        unsigned char b = (unsigned char)text[--start];
        if ((b & 0xC0) == 0x80) {
            continue;
        }
        size_t due = b < 0x80 ? 1 : b >= 0xF0 ? 4 : b >= 0xE0 ? 3 : 2;
        return n - start < due ? start : n;
    }
    return n; /* not UTF-8: nothing to keep whole */
}

/* Control characters may stand in names taken from a file; the record promises one line. */
static void make_one_line(char *text) {
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < 0x20 || *text == 0x7F) {
            *text = ' ';
        }
    }
}

static void fill(weft_error *err, weft_status s, int64_t offset, const char *text, va_list args) {
    char made[sizeof err->text]; /* an argument may point into err->text itself */
    int due = vsnprintf(made, sizeof made, text, args);
    if (due < 0) {
        made[0] = '\0';
    } else if ((size_t)due >= sizeof made) {
        made[whole_characters(made, sizeof made - 1)] = '\0';
    }
    make_one_line(made);
    memcpy(err->text, made, strlen(made) + 1);
    err->status = s;
    err->offset = offset;
}

weft_status error_set(weft_error *err, weft_status s, const char *text, ...) {
    if (err != NULL) {
        va_list args;
        va_start(args, text);
        fill(err, s, -1, text, args);
        va_end(args);
    }
    return s;
}

weft_status error_set_at(weft_error *err, weft_status s, int64_t offset, const char *text, ...) {
    if (err != NULL) {
        va_list args;
        va_start(args, text);
        fill(err, s, offset, text, args);
        va_end(args);
    }
    return s;
}
