/* JSON, written. */
#ifndef WEFT_OPENAI_TEXT_H
#define WEFT_OPENAI_TEXT_H

#include "openai/openai.h"

/* Each adds to *t, or sets t->failed. */
void openai_put(openai_text *t, const char *data, size_t n);
void openai_puts(openai_text *t, const char *text); /* NUL-terminated, as it is */
void openai_put_integer(openai_text *t, int64_t v);
/* Digits enough to read the same float; null when it is not finite. */
void openai_put_float(openai_text *t, float v);
/* Any bytes as the inside of a JSON string: what is not UTF-8 becomes U+FFFD. */
void openai_put_escaped(openai_text *t, const char *data, size_t n);
void openai_put_string(openai_text *t, const char *data, size_t n); /* the same with quotes */
/* A NUL behind the bytes, which become the caller's; NULL (and nothing left) when t has failed. */
char *openai_text_take(openai_text *t);

#endif
