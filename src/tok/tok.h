/* Text <-> ids: byte-level BPE, streaming detokeniser, ChatML. */
#ifndef WEFT_TOK_TOK_H
#define WEFT_TOK_TOK_H

#include "base/status.h"
#include "load/load.h"

typedef struct tok tok;

/* Builds the tables; borrows nothing from *vocab after return except token text (vocab must outlive
 * it). WEFT_ERR_FILE names an unknown tokenizer model or pre-tokeniser, a bad merge, a token with
 * characters outside the byte alphabet. A tok is read-only afterwards: any number of threads may
 * encode. */
weft_status tok_create(const load_vocab *vocab, tok **out, weft_error *err);
void tok_destroy(tok *t); /* NULL is allowed */

/* False: the model came without a tokeniser. Then encoding is refused, and ids have no text. */
bool tok_has_text(const tok *t);
int32_t tok_vocab_size(const tok *t);

/* Text (valid UTF-8, NUL allowed; WEFT_ERR_USAGE with the offset of the first bad byte otherwise)
 * to ids. *ids is malloc'ed, the caller frees it. Added tokens are found in the text leftmost, then
 * longest: user-defined ones always, control tokens only with `special` (otherwise they are plain
 * text, so that a user cannot write a turn's end). The flags lstrip, rstrip, single_word and
 * normalized of tokenizer.json have no place in GGUF and are not known here. BOS is added by the
 * caller (tok_needs_bos). Bytes without a token are dropped before merging, with one warning per
 * call. */
weft_status tok_encode(const tok *t, const char *text, size_t bytes, bool special, int32_t **ids,
                       size_t *n, weft_error *err);

/* Bytes of a token as text; added tokens give their own text. NULL and 0 outside the vocabulary. */
const char *tok_bytes(const tok *t, int32_t id, size_t *bytes);
/* Control or unknown: no part of the visible text. */
bool tok_is_special(const tok *t, int32_t id);
/* Ends an answer: eos, eot, and any control token that the template ends a turn with. */
bool tok_is_end(const tok *t, int32_t id);
int32_t tok_bos(const tok *t); /* -1 when the model does not ask for one */
int32_t tok_eos(const tok *t);
/* Whether the caller has to put tok_bos in front of these ids: the model asks for one and they do
 * not begin with it already. One that the user typed or the template wrote counts: never two. */
bool tok_needs_bos(const tok *t, const int32_t *ids, size_t n);

/* ---- streaming detokeniser: never emits part of a character ----
 * Holds at most 3 bytes. A maximal bad sequence becomes one U+FFFD. */
typedef struct tok_stream {
    uint8_t held[4];
    int32_t n_held;
} tok_stream;
/* Feeds the bytes of a token; appends the text that is now certain to out (capacity >= 3 * (bytes +
 * 3) + 1); returns its length. */
size_t tok_stream_push(tok_stream *s, const char *bytes, size_t n, char *out);
/* The end: an unfinished character becomes one U+FFFD. Capacity >= 4. */
size_t tok_stream_end(tok_stream *s, char *out);

/* ---- chat template ---- */
/* Renders with the model's template: ChatML, with or without trimmed texts, a BOS, and a default
 * system message for conversations that do not begin with one. WEFT_ERR_SETUP, with the reason, for
 * any other template. roles, texts: [n]. *out is malloc'ed. */
weft_status tok_chat_render(const tok *t, const char *const *roles, const char *const *texts,
                            size_t n, bool add_generation_prompt, char **out, weft_error *err);

#endif
