/* The parts of the tokeniser. Private to src/tok.
 *
 *   text -> [added tokens cut out of the raw text] -> [normaliser] -> [added tokens cut out of the
 *   normalised text] -> [pieces] -> [units of each piece merged] -> ids
 *   ids -> [bytes of each token] -> [begun characters and byte runs held back] -> text
 *
 * A pipe says how; from_gguf.c and from_json.c fill it, nothing after them knows the source. */
#ifndef WEFT_TOK_TOK_IMPL_H
#define WEFT_TOK_TOK_IMPL_H

#include "base/utf8.h"
#include "load/arena.h"
#include "tok/tok.h"

/* ---- utf8.c ---- */
/* The code point of a whole character of k bytes. */
uint32_t utf8_point(const uint8_t *p, int k);
/* Writes a code point (at most 10FFFF); returns its bytes, 1 to 4. */
size_t utf8_put(uint32_t point, char *out);
/* Length of the character that begins, and of the one that ends, valid text of n >= 1 bytes. */
size_t utf8_first_bytes(const char *text, size_t n);
size_t utf8_last_bytes(const char *text, size_t n);
/* Unicode's White_Space. */
bool utf8_is_space(uint32_t point);
/* A character of words: letters, marks, decimal digits, connectors, joiners. */
bool utf8_is_word(uint32_t point);
/* The byte alphabet of GPT-2: a visible character for each byte. alphabet_byte is -1 outside it. */
uint32_t alphabet_point(uint8_t byte);
int alphabet_byte(uint32_t point);
/* Text in the alphabet to bytes: out has room for text.bytes. False: a character outside of it. */
bool alphabet_decode(load_string text, char *out, size_t *n);

/* ---- buffers (utf8.c) ---- */
typedef struct text_buf {
    char *data;
    size_t n, cap;
} text_buf;                                      /* {0} is empty */
bool text_buf_reserve(text_buf *b, size_t more); /* false: no memory */
bool text_buf_add(text_buf *b, const char *data, size_t n);
void text_buf_free(text_buf *b);
bool string_is(load_string a, const char *b);
/* Printable ASCII of a string from a file, for error texts; returns out. */
const char *string_show(load_string text, char out[64]);
/* A copy in the arena; data NULL when there is no memory. */
load_string string_copy(load_arena *arena, load_string text);

/* ---- onig.c ---- */
/* Appends to *out the PCRE2 form (UTF, UCP, MULTILINE, newline LF) of a pattern in Oniguruma's
 * syntax, NUL-terminated. *wrong names what has no such form; NULL: no memory. */
bool onig_translate(load_string pattern, text_buf *out, const char **wrong);

/* Parts of a piece are counted in int32, and a stray gigabyte is a mistake anyway. */
#define TOK_MOST_TEXT_BYTES ((size_t)1 << 30)

/* ---- regex.c ---- */
typedef struct regex regex;
/* Working memory of a thread's matches. */
typedef struct regex_run regex_run;
/* `at` names the place in the file for errors (WEFT_ERR_FILE). */
weft_status regex_open(load_string pattern, const char *at, regex **out, weft_error *err);
/* Finds exactly this text, which must not be empty. */
weft_status regex_open_literal(load_string text, regex **out, weft_error *err);
void regex_close(regex *r); /* NULL is allowed */
weft_status regex_run_open(regex_run **out, weft_error *err);
void regex_run_close(regex_run *run); /* NULL is allowed */
/* All matches from left to right, none overlapping. An empty match is given too, unless it stands
 * where the match before ended. */
typedef struct regex_scan {
    const regex *regex;
    regex_run *run;
    const char *text;
    size_t bytes, from, last_end;
    bool any; /* last_end is set */
} regex_scan;
/* *found false: no more. */
weft_status regex_next(regex_scan *s, bool *found, size_t *start, size_t *end, weft_error *err);
/* Appends the text with `content` for every match. WEFT_ERR_TOO_LONG: `out` would have more than
 * `most` bytes. */
weft_status regex_replace(const regex *r, regex_run *run, load_string text, load_string content,
                          size_t most, text_buf *out, weft_error *err);

/* ---- norm.c ---- */
typedef enum norm_kind {
    NORM_FORM,    /* NFC, NFD, NFKC, NFKD by compose, compat */
    NORM_PREPEND, /* content in front, unless the text is empty */
    NORM_REPLACE, /* every match of pattern becomes content */
    NORM_LOWERCASE,
    NORM_STRIP, /* White_Space at the left, right */
    NORM_STRIP_ACCENTS
} norm_kind;
typedef struct norm_step {
    norm_kind kind;
    bool compose, compat, left, right;
    regex *pattern;
    load_string content;
} norm_step;
enum { NORM_MAX_STEP = 16 };
typedef struct norm {
    norm_step step[NORM_MAX_STEP];
    int32_t n;
} norm;
void norm_close(norm *n);
/* Runs all steps over valid UTF-8. *out is the text itself or lies in one of the two buffers.
 * WEFT_ERR_TOO_LONG: a step makes more than `most` bytes of it. */
weft_status norm_apply(const norm *n, regex_run *run, text_buf buffer[2], const char *text,
                       size_t bytes, size_t most, load_string *out, weft_error *err);
/* One form into out (emptied first). Linear, also for long runs of marks. */
weft_status norm_form(const char *text, size_t bytes, bool compose, bool compat, text_buf *out,
                      weft_error *err);

/* ---- pretok.c ---- */
typedef enum cut_behavior {
    CUT_REMOVED,
    CUT_ISOLATED,
    CUT_MERGED_WITH_PREVIOUS,
    CUT_MERGED_WITH_NEXT,
    CUT_CONTIGUOUS
} cut_behavior;
typedef enum pretok_kind {
    PRETOK_CUT,     /* by the matches of a pattern */
    PRETOK_PREFIX,  /* content in front of a piece that does not begin with it */
    PRETOK_REPLACE, /* every match becomes content */
    PRETOK_BYTES    /* every byte becomes its character of the byte alphabet */
} pretok_kind;
typedef struct pretok_step {
    pretok_kind kind;
    cut_behavior behavior;
    bool invert;     /* what lies between the matches counts as the matches */
    bool first_only; /* PREFIX: only the piece at the very beginning of the text */
    regex *pattern;
    load_string content;
} pretok_step;
enum { PRETOK_MAX_STEP = 24 };
typedef struct pretok {
    pretok_step step[PRETOK_MAX_STEP];
    int32_t n;
} pretok;
void pretok_close(pretok *p);
typedef struct pretok_piece {
    size_t start, end;
    bool first; /* begins where the text does */
} pretok_piece;
/* The result of one call and its working memory; {0} at first. */
typedef struct pretok_pieces {
    const char *text;
    pretok_piece *piece; /* [n] none empty */
    size_t n;
    size_t cap, spare_cap;
    pretok_piece *spare;
    text_buf buffer[2];
} pretok_pieces;
weft_status pretok_cut(const pretok *p, regex_run *run, const char *text, size_t bytes, bool first,
                       pretok_pieces *out, weft_error *err);
void pretok_pieces_free(pretok_pieces *p);

/* ---- bpe.c ---- */
typedef struct id_list {
    int32_t *id;
    size_t n, cap;
} id_list;
bool id_list_push(id_list *l, int32_t id); /* false: no memory */

typedef struct bpe_merge {
    load_string left, right;
} bpe_merge;
typedef enum bpe_whole {
    BPE_WHOLE_NEVER,
    BPE_WHOLE_ALWAYS,  /* a piece that is a token is taken at once, even if no merges lead to it */
    BPE_WHOLE_NEWLINES /* only one that is nothing but newlines */
} bpe_whole;
/* What may become a token: nothing, text in which special tokens count, any text. */
enum { BPE_REACH_NEVER, BPE_REACH_SPECIAL, BPE_REACH_ALWAYS };
typedef struct bpe_config {
    int32_t n_token;
    const load_string *text; /* [n_token] borrowed; data NULL: no token of the model */
    const uint8_t *reach;    /* [n_token] BPE_REACH_* */
    const bpe_merge *merge;  /* [n_merge], the first merges first */
    int32_t n_merge;
    const float *score;     /* [n_token] instead of merges: two neighbours that are a token together
                               merge, the highest score first */
    const char *merge_name; /* how the file calls its merges, for errors: "%s[%d]" */
    const char *token_name; /* and its tokens */
    bool last_counts;       /* of a pair listed twice the last rank counts, else the first */
    bool byte_fallback;     /* an unknown character becomes the tokens <0xNN> of its bytes */
    bool fuse_unk;          /* neighbours that are unknown become one unk */
    int32_t unk;            /* -1: none */
    bpe_whole whole;
} bpe_config;
typedef struct bpe bpe;
/* Working memory of one encode call; {0} but for least_reach at first. */
typedef struct bpe_scratch {
    struct bpe_symbol *symbol; /* [symbol_cap] */
    uint64_t *heap;            /* [2 * symbol_cap] */
    size_t symbol_cap, n_heap;
    size_t n_dropped;    /* characters without a token so far */
    uint8_t least_reach; /* of the tokens that the text may become */
} bpe_scratch;
weft_status bpe_open(const bpe_config *config, bpe **out, weft_error *err);
void bpe_close(bpe *b);
/* The token with this text, whatever its reach; -1 when there is none. */
int32_t bpe_find(const bpe *b, load_string text);
/* Appends the ids of one piece. */
weft_status bpe_encode(const bpe *b, const char *piece, size_t bytes, bpe_scratch *scratch,
                       id_list *out, weft_error *err);
void bpe_scratch_free(bpe_scratch *scratch);

/* ---- added.c: added tokens, found leftmost, then longest ---- */
typedef struct added_entry {
    load_string text;
    int32_t id;
    bool lstrip, rstrip, single_word;
} added_entry;
typedef struct added_set {
    added_entry *entry; /* [n] sorted by bytes */
    int32_t n;
    int32_t first[257]; /* entries that begin with byte b: first[b] .. first[b + 1] - 1 */
} added_set;
/* Takes over `entry` [n], malloc'ed; empty texts are left out, of equal texts the lowest id counts. */
void added_set_init(added_set *s, added_entry *entry, int32_t n);
void added_set_close(added_set *s);
/* A walk over a text: stretches without added tokens and the tokens between them, in order. */
typedef struct added_scan {
    const added_set *set;
    load_string text;
    size_t from, given; /* where to look next; what stands before it has been given */
    const added_entry *next;
} added_scan;
/* The next part. *token is -1 for a stretch (*part, never empty). False: no more. */
bool added_next(added_scan *s, int32_t *token, load_string *part);

/* ---- decode.c ---- */
typedef struct decoder {
    load_string *piece; /* [n_token] the token's part of a text, in bytes */
    int16_t *byte;      /* [n_token] the token is a byte of a run; -1: it is not. NULL: none is */
    load_string drop_first; /* a first token loses all of these: Metaspace; data NULL: none */
    uint32_t strip_point;
    int32_t n_strip_start, n_strip_end; /* of the whole text */
} decoder;

/* ---- the pipe ---- */
typedef struct tok_added {
    load_string text;
    int32_t id;
    bool lstrip, rstrip, single_word, normalized, special;
} tok_added;

typedef struct chat_form {
    const char *unknown; /* why the template cannot be rendered; NULL: it can */
    bool trim;           /* the template trims the text of a message */
    bool writes_bos;     /* the template begins with the BOS token */
    char *system; /* system text when the first message is none; NULL: the template has none */
} chat_form;
/* ---- chat.c ---- */
weft_status chat_form_open(load_string text, chat_form *out, weft_error *err);
void chat_form_close(chat_form *f);

struct tok {
    load_arena arena; /* texts and tables made here */
    int32_t n_token;
    load_string *text; /* [n_token] as the file spells them; data NULL: no such token */
    uint8_t *type;     /* [n_token] LOAD_TOKEN_* */
    bool *end;         /* [n_token] ends an answer */
    int32_t bos, eos;
    tok_added *added; /* [n_added] */
    int32_t n_added;
    norm norm;
    pretok pretok;
    bpe *bpe;
    decoder decoder;
    int32_t *lead, *trail; /* [n_lead] in front of a text, [n_trail] behind it */
    int32_t n_lead, n_trail;
    /* by whether control tokens count, for the raw and for the normalised text */
    added_set raw[2], normal[2];
    chat_form chat;
};

/* Each fills text, type, added, norm, pretok, bpe, decoder, lead and trail of a zeroed tok. */
weft_status tok_from_gguf(tok *t, const load_vocab *vocab, weft_error *err);
weft_status tok_from_json(tok *t, const load_vocab *vocab, weft_error *err);
/* For the two: appends a step; `pattern` is taken over also on failure. */
weft_status tok_add_norm(tok *t, norm_step step, weft_error *err);
weft_status tok_add_pretok(tok *t, pretok_step step, weft_error *err);
/* A cut by a pattern in Oniguruma's syntax, every match a piece. */
weft_status tok_add_cut(tok *t, const char *pattern, weft_error *err);
/* Arrays over the tokens; t->n_token is set. */
weft_status tok_take_tokens(tok *t, weft_error *err);
/* GPT-2's own pattern. */
extern const char pretok_gpt2[];
/* <0xNN> -> the byte, else -1. */
int tok_byte_token(load_string text);

#endif
