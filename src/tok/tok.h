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

int32_t tok_vocab_size(const tok *t);

/* Text (valid UTF-8; WEFT_ERR_USAGE with the offset of the first bad byte otherwise) to ids. *ids
 * is malloc'ed, the caller frees it. `special`: special tokens in the text become their ids;
 * otherwise they are plain text. BOS is added by the caller (tok_bos). Bytes without a token are
 * dropped before merging, with one warning per call. */
weft_status tok_encode(const tok *t, const char *text, size_t bytes, bool special, int32_t **ids,
                       size_t *n, weft_error *err);

/* Bytes of a token as text; special tokens give their own text. NULL and 0 outside the vocabulary.
 */
const char *tok_bytes(const tok *t, int32_t id, size_t *bytes);
bool tok_is_special(const tok *t, int32_t id);
/* Ends an answer: eos, eot, and any control token that the template ends a turn with. */
bool tok_is_end(const tok *t, int32_t id);
int32_t tok_bos(const tok *t); /* -1 when the model does not ask for one */
int32_t tok_eos(const tok *t);

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
/* Renders with the model's template. WEFT_ERR_SETUP when it is none that weft knows (ChatML, with
 * or without a default system message that the template itself writes). *out is malloc'ed. */
weft_status tok_chat_render(const tok *t, const char *const *roles, const char *const *texts,
                            size_t n, bool add_generation_prompt, char **out, weft_error *err);

#endif
