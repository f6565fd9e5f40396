/* NFC by utf8proc's tables. utf8proc_map sorts a run of marks by exchanging neighbours, which is
 * quadratic in the run; here the runs are sorted by counting their combining classes. */
#include "tok/tok_impl.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Code points after decomposition for each byte before: ASCII gives 1 for 1 byte, U+01D5 3 for 2,
 * U+1F82 4 for 3. */
enum { PARTS_PER_BYTE = 2 };

static uint8_t combining_class(int32_t point) {
    return (uint8_t)utf8proc_get_property(point)->combining_class;
}

/* Stable sort of points[0..n) by combining class. temp: [n]. */
static void sort_run(int32_t *points, size_t n, int32_t *temp) {
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++) {
        start[combining_class(points[i]) + 1]++;
    }
    for (int c = 1; c <= 256; c++) {
        start[c] += start[c - 1];
    }
    for (size_t i = 0; i < n; i++) {
        temp[start[combining_class(points[i])]++] = points[i];
    }
    memcpy(points, temp, n * sizeof *points);
}

static void sort_marks(int32_t *points, size_t n, int32_t *temp) {
    size_t at = 0;
    while (at < n) {
        size_t end = at;
        bool sorted = true;
        uint8_t before = 0, now;
        while (end < n && (now = combining_class(points[end])) != 0) {
            sorted = sorted && before <= now;
            before = now;
            end++;
        }
        if (!sorted) {
            sort_run(points + at, end - at, temp);
        }
        at = end + 1;
    }
}

static weft_status decompose(const char *text, size_t bytes, int32_t *points, size_t cap, size_t *n,
                             weft_error *err) {
    const uint8_t *p = (const uint8_t *)text;
    size_t used = 0;
    int boundary = 0;
    for (size_t at = 0; at < bytes;) {
        int step = utf8_step(p + at, bytes - at);
        utf8proc_ssize_t parts = utf8proc_decompose_char(
            (int32_t)utf8_point(p + at, step), points + used, (utf8proc_ssize_t)(cap - used),
            UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        if (parts < 0 || (size_t)parts > cap - used) {
            return error_set_at(err, WEFT_ERR_USAGE, (int64_t)at,
                                "a character could not be normalised: %s",
                                utf8proc_errmsg(parts < 0 ? parts : UTF8PROC_ERROR_OVERFLOW));
        }
        used += (size_t)parts;
        at += (size_t)step;
    }
    *n = used;
    return WEFT_OK;
}

weft_status nfc_compose(const char *text, size_t bytes, char **out, size_t *out_bytes,
                        weft_error *err) {
    size_t cap = bytes * PARTS_PER_BYTE + 4;
    int32_t *points = malloc(cap * sizeof *points);
    int32_t *temp = malloc(cap * sizeof *temp);
    weft_status status = WEFT_ERR_MEMORY;
    if (points == NULL || temp == NULL) {
        error_set(err, status, "no memory to normalise %zu bytes", bytes);
        goto undo_points;
    }
    size_t n = 0;
    status = decompose(text, bytes, points, cap - 1, &n, err); /* one word for the closing NUL */
    if (status != WEFT_OK) {
        goto undo_points;
    }
    sort_marks(points, n, temp);
    utf8proc_ssize_t length =
        utf8proc_reencode(points, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (length < 0) {
        status = error_set(err, WEFT_ERR_USAGE, "the text could not be normalised: %s",
                           utf8proc_errmsg(length));
        goto undo_points;
    }
    *out = (char *)points; /* utf8proc writes the bytes over the code points */
    *out_bytes = (size_t)length;
    free(temp);
    return WEFT_OK;
undo_points:
    free(points);
    free(temp);
    return status;
}
