/* Text <-> ids: BPE as GGUF or tokenizer.json describes it, streaming detokeniser, ChatML. */
#ifndef WEFT_TOK_TOK_H
#define WEFT_TOK_TOK_H

#include "base/status.h"
#include "load/load.h"

typedef struct tok tok;

/* Builds the tables out of vocab->tokenizer_json when there is one, else out of the GGUF fields.
 * Borrows token text and scores of a GGUF, so vocab must outlive it. WEFT_ERR_FILE names what is
 * wrong or not known: a model, a pre-tokeniser, a step, a merge, a token, an id. A tok is read-only
 * afterwards: any number of threads may encode. */
weft_status tok_create(const load_vocab *vocab, tok **out, weft_error *err);
void tok_destroy(tok *t); /* NULL is allowed */

/* One more than the largest id. */
/* False: the model came without a tokeniser. Then encoding is refused, and ids have no text. */
bool tok_has_text(const tok *t);
int32_t tok_vocab_size(const tok *t);

/* Text (valid UTF-8, NUL allowed; WEFT_ERR_USAGE with the offset of the first bad byte otherwise)
 * to ids. *ids is malloc'ed, the caller frees it. Added tokens are found in the text leftmost, then
 * longest: user-defined ones always, control tokens only with `special` (otherwise they are plain
 * text, so that a user cannot write a turn's end). Characters for which the vocabulary has neither a
 * token nor a stand-in are dropped before merging, with one warning per call. */
weft_status tok_encode(const tok *t, const char *text, size_t bytes, bool special, int32_t **ids,
                       size_t *n, weft_error *err);
/* The same with `special`, and with the tokens that the model wants around a text (tok_lead,
 * tok_trail). Those that the text itself begins or ends with, typed by the user or written by a
 * template, count: never two BOS. */
weft_status tok_encode_prompt(const tok *t, const char *text, size_t bytes, int32_t **ids,
                              size_t *n, weft_error *err);
/* The tokens that the model wants in front of and behind a text: [*n], none is usual. */
const int32_t *tok_lead(const tok *t, size_t *n);
const int32_t *tok_trail(const tok *t, size_t *n);

/* A token as part of a text, in bytes: not always whole characters. Added tokens give their own
 * text. NULL and 0 outside the vocabulary. */
const char *tok_bytes(const tok *t, int32_t id, size_t *bytes);
/* Control or unknown: no part of the visible text. */
bool tok_is_special(const tok *t, int32_t id);
/* Ends an answer: the vocabulary's ends, and any control token that the template ends a turn with. */
bool tok_is_end(const tok *t, int32_t id);
int32_t tok_bos(const tok *t); /* -1: none */
int32_t tok_eos(const tok *t);

/* ---- streaming detokeniser ----
 * Gives the text of ids one by one: joined, it is what all ids together decode to. Part of a
 * character is held back, and so is a run of byte tokens, which is text only if all of it is. What
 * can be no text becomes U+FFFD. */
typedef struct tok_stream tok_stream;
/* `inside`: the text goes on from another one, such as an answer from its prompt; what some
 * vocabularies take off the beginning of a text then stays. */
weft_status tok_stream_open(const tok *t, bool inside, tok_stream **out, weft_error *err);
void tok_stream_close(tok_stream *s); /* NULL is allowed */
/* *text [*n] is what has become certain, valid UTF-8, until the next call. An id outside the
 * vocabulary is no text. WEFT_ERR_MEMORY leaves the stream as it was. */
weft_status tok_stream_push(tok_stream *s, int32_t id, const char **text, size_t *n,
                            weft_error *err);
/* The end: gives what is held; the stream may start anew afterwards. */
weft_status tok_stream_end(tok_stream *s, const char **text, size_t *n, weft_error *err);

/* The text of ids as a whole, without special tokens unless `special`. *out is malloc'ed and
 * NUL-terminated behind its *n bytes. WEFT_ERR_USAGE names an id outside the vocabulary. */
weft_status tok_decode(const tok *t, const int32_t *ids, size_t n_id, bool special, char **out,
                       size_t *n, weft_error *err);

/* ---- bytes as text: never emits part of a character ----
 * Holds at most 3 bytes. A maximal bad sequence becomes one U+FFFD. */
typedef struct tok_utf8 {
    uint8_t held[4];
    int32_t n_held;
} tok_utf8;
/* Appends the text that is now certain to out (capacity >= 3 * (n + 3) + 1); returns its length. */
size_t tok_utf8_push(tok_utf8 *s, const char *bytes, size_t n, char *out);
/* The end: an unfinished character becomes one U+FFFD. Capacity >= 4. */
size_t tok_utf8_end(tok_utf8 *s, char *out);

/* ---- chat template ---- */
/* Renders with the model's template: ChatML, with or without trimmed texts, a BOS, and a default
 * system message for conversations that do not begin with one. WEFT_ERR_SETUP, with the reason, for
 * any other template. roles, texts: [n]. *out is malloc'ed. */
weft_status tok_chat_render(const tok *t, const char *const *roles, const char *const *texts,
                            size_t n, bool add_generation_prompt, char **out, weft_error *err);

#endif
