/* The parts of the tokeniser. Private to src/tok.
 *
 * text -> [added tokens cut out] -> [NFC] -> [pieces by regex] -> [bytes merged by rank] -> ids */
#ifndef WEFT_TOK_TOK_IMPL_H
#define WEFT_TOK_TOK_IMPL_H

#include "tok/tok.h"

/* ---- utf8.c ---- */
/* Looks at the first character of p[0..n), n >= 1.
 *   k > 0: the first k bytes are a whole character
 *   0:     all n bytes are the beginning of a character (n <= 3)
 *   -k:    the first k bytes are a maximal bad sequence: the longest beginning of a character that
 *          the next byte does not continue, or one byte that begins none
 * Worked: E4 BD 20 -> -2; E4 BD -> 0; F0 80 -> -1 (80 cannot follow F0); FF -> -1. */
int utf8_step(const uint8_t *p, size_t n);
/* Length of the longest valid beginning; equals `bytes` when all of it is valid. */
size_t utf8_valid_bytes(const char *text, size_t bytes);
/* The code point of a whole character of k bytes. */
uint32_t utf8_point(const uint8_t *p, int k);

/* ---- special.c: added tokens, found leftmost, then longest ---- */
typedef struct special_entry {
    load_string text;
    int32_t id;
} special_entry;
typedef struct special_set {
    special_entry *entry; /* [n] sorted by bytes */
    int32_t n;
    int32_t first[257]; /* entries that begin with byte b: first[b] .. first[b + 1] - 1 */
} special_set;
/* User-defined tokens, and with `control` also control and unknown ones. */
weft_status special_set_open(const load_vocab *vocab, bool control, special_set *out,
                             weft_error *err);
void special_set_close(special_set *s);
/* The first token at or after `from`; false when there is none. */
bool special_find(const special_set *s, const char *text, size_t bytes, size_t from, size_t *at,
                  const special_entry **found);

/* ---- nfc.c ---- */
/* Canonical composition of valid UTF-8. *out is malloc'ed. Linear, also for long runs of marks. */
weft_status nfc_compose(const char *text, size_t bytes, char **out, size_t *out_bytes,
                        weft_error *err);

/* ---- pretok.c ---- */
typedef struct pretok pretok;
typedef struct pretok_rule {
    const char *name;
    const char *regex;
    bool digits;      /* every number character is cut out before the regex sees the rest */
    bool nfc;         /* the text is composed first */
    bool whole_piece; /* a piece that is a token is taken at once, even if no merges lead to it */
} pretok_rule;
typedef weft_status (*pretok_fn)(void *arg, const char *piece, size_t bytes, weft_error *err);
weft_status pretok_open(const char *name, pretok **out, weft_error *err);
void pretok_close(pretok *p);
const pretok_rule *pretok_get_rule(const pretok *p);
/* Calls fn for each piece in order; the pieces joined are the text (valid UTF-8). */
weft_status pretok_cut(const pretok *p, const char *text, size_t bytes, pretok_fn fn, void *arg,
                       weft_error *err);

/* ---- bpe.c ---- */
typedef struct id_list {
    int32_t *id;
    size_t n, cap;
} id_list;
bool id_list_push(id_list *l, int32_t id); /* false: no memory */

typedef struct bpe bpe;
/* Working memory of one encode call; {0} at first. */
typedef struct bpe_scratch {
    struct bpe_symbol *symbol; /* [symbol_cap] */
    uint64_t *heap;            /* [2 * symbol_cap] */
    size_t symbol_cap, n_heap;
    size_t n_dropped; /* bytes without a token so far */
} bpe_scratch;
weft_status bpe_open(const load_vocab *vocab, bpe **out, weft_error *err);
void bpe_close(bpe *b);
const load_string *bpe_text(const bpe *b); /* [n_token] decoded bytes */
/* Appends the ids of one piece. */
weft_status bpe_encode(const bpe *b, const char *piece, size_t bytes, bool whole_piece,
                       bpe_scratch *scratch, id_list *out, weft_error *err);
void bpe_scratch_free(bpe_scratch *scratch);

/* ---- chat.c ---- */
typedef struct chat_form {
    const char *unknown; /* why the template cannot be rendered; NULL: it can */
    bool trim;           /* the template trims the text of a message */
    bool writes_bos;     /* the template begins with the BOS token */
    char *system; /* system text when the first message is none; NULL: the template has none */
} chat_form;
weft_status chat_form_open(load_string text, chat_form *out, weft_error *err);
void chat_form_close(chat_form *f);

struct tok {
    const uint8_t *type; /* borrowed from the vocabulary */
    int32_t n_token, bos, eos;
    bool add_bos;
    bool *end; /* [n_token] ends an answer */
    bpe *bpe;
    pretok *pretok;
    special_set user, all;
    chat_form chat;
};

#endif
