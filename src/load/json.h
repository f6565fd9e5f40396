/* JSON text of a model's files, strictly: one object, no member twice, nothing after it. */
#ifndef WEFT_LOAD_JSON_H
#define WEFT_LOAD_JSON_H

#include <jansson.h>

#include "load/load.h"

/* `what` begins the message: "the header". The caller decrefs *out. Offsets count from `base`. */
weft_status json_read(const void *bytes, size_t n_bytes, const char *what, int64_t base,
                      json_t **out, weft_error *err);
/* A whole file; `shown` stands in front of messages. */
weft_status json_read_file(const char *path, const char *shown, size_t max_bytes, json_t **out,
                           weft_error *err);
/* The same for a file of settings, whose numbers may be of any size ("no limit" is written as 1e30 with
 * all its digits): all of them are reals. */
weft_status json_read_settings(const char *path, const char *shown, size_t max_bytes, json_t **out,
                               weft_error *err);
/* The integer that a value is, or that it is written as (1e4, 10000.0). */
bool json_as_integer(const json_t *v, int64_t *out);
/* One line; of an array the first entries, of what is nested deeper only "[...]" or "{...}". */
void json_show(const json_t *v, char *out, size_t out_bytes);
load_string json_text(const json_t *v); /* of a string */

#endif
