/* Reading of a request's fields. Every call that refuses sets the reader's error and returns false.
 * Messages hold kinds, numbers and limits, never the client's own bytes. */
#ifndef WEFT_OPENAI_FIELD_H
#define WEFT_OPENAI_FIELD_H

#include <jansson.h>

#include "openai/openai.h"

typedef struct openai_reader {
    const json_t *root; /* an object */
    const openai_limits *limits;
    openai_request *q;
    openai_error *err;
} openai_reader;

/* 400, naming the field. */
bool openai_refuse(openai_reader *r, const char *param, const char *text, ...)
    __attribute__((format(printf, 3, 4)));
/* "a list, expected a string" */
bool openai_refuse_kind(openai_reader *r, const char *param, const json_t *v, const char *expected);
bool openai_refuse_memory(openai_reader *r); /* 503 */

/* A member of the request; NULL when it is absent or null. */
const json_t *openai_field(const openai_reader *r, const char *name);
/* *out stays as it is when the field is absent. */
bool openai_field_bool(openai_reader *r, const char *name, bool *out);
bool openai_field_integer(openai_reader *r, const char *name, int64_t min, int64_t max,
                          int64_t *out);

/* The value of an integer in [min, max], also when it is written as 16.0. */
bool openai_read_integer(openai_reader *r, const char *param, const json_t *v, int64_t min,
                         int64_t max, int64_t *out);
/* A copy of a string without NULs, NUL-terminated and malloc'ed. */
bool openai_read_text(openai_reader *r, const char *param, const json_t *v, char **out);
/* False also for null and what is no string. */
bool openai_is_word(const json_t *v, const char *word);

/* ---- groups of fields ---- */
bool openai_read_messages(openai_reader *r); /* of CHAT and TOKENIZE: role, content, prompt */
bool openai_read_prompt(openai_reader *r);   /* of COMPLETION and TOKENIZE */
bool openai_read_ids(openai_reader *r);      /* tokens of DETOKENIZE */
bool openai_read_sampling(openai_reader *r); /* also n, seed, stop, logit_bias, logprobs */

/* ---- errors ---- */
bool openai_error_vset(openai_error *e, int http, const char *type, const char *param,
                       const char *text, va_list args) __attribute__((format(printf, 5, 0)));
void openai_put_error(openai_text *t, const openai_error *e); /* the whole body */

#endif
