/* Log-probabilities of a choice's tokens, written as the events come. */
#ifndef WEFT_OPENAI_TOKENS_H
#define WEFT_OPENAI_TOKENS_H

#include "openai/openai.h"

/* Items of JSON lists, joined by commas. Chats have one list, in `token`. */
typedef struct openai_tokens {
    int32_t n;
    openai_text token, logprob, top, offset;
} openai_tokens;

void openai_tokens_free(openai_tokens *t);
void openai_tokens_clear(openai_tokens *t);
bool openai_tokens_failed(const openai_tokens *t);
size_t openai_tokens_bytes(const openai_tokens *t);

/* A token of a completion that begins `offset` characters into its text. ev: its probability and
 * the likeliest tokens in its place; NULL: not known. */
void openai_tokens_add(openai_tokens *t, const openai_server *s, int32_t id, const weft_event *ev,
                       int64_t offset);
void openai_tokens_add_chat(openai_tokens *t, const openai_server *s, const weft_event *ev);
/* The value of a choice's "logprobs". */
void openai_put_tokens(openai_text *out, const openai_tokens *t, bool chat);

/* A token as a JSON string: its text, or bytes:\xe4\xbd for one that is not whole characters
 * (printable ASCII stays as it is). */
void openai_put_token(openai_text *out, const openai_server *s, int32_t id);

#endif
