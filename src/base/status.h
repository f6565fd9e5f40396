/* Result codes shared by every module, and the error record that load, parse and validate fill.
 *
 * Rule: the function that detects a failure logs it once (or fills the caller's weft_error) and
 * returns the code; callers only pass it on. Outputs are untouched on failure. */
#ifndef WEFT_BASE_STATUS_H
#define WEFT_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft.h" /* weft_status, weft_error: the public enum is the only one */

/* Exit code of the program for a status (0, 2, 3, 4, 5, 130), and its HTTP status. */
int status_exit_code(weft_status s);
int status_http(weft_status s);

/* Writes `text` (printf style, cut at the record's end on a character boundary) and `s` into *err
 * when err is not NULL; returns s, so that a caller can write: return error_set(err, WEFT_ERR_FILE,
 * ...). Byte offset is set to -1. */
weft_status error_set(weft_error *err, weft_status s, const char *text, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with a byte offset into the file or text at fault. */
weft_status error_set_at(weft_error *err, weft_status s, int64_t offset, const char *text, ...)
    __attribute__((format(printf, 4, 5)));

#endif
