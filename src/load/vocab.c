/* tokenizer.ggml.* -> load_vocab: the vocabulary is consistent afterwards. What text splits into
 * tokens is tok's affair. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/utf8.h"
#include "load/model.h"

#define TOKENS "tokenizer.ggml.tokens"
#define TOKEN_TYPE "tokenizer.ggml.token_type"
#define MERGES "tokenizer.ggml.merges"
#define SCORES "tokenizer.ggml.scores"

static weft_status no_memory(const char *key, uint64_t n, weft_error *err) {
    return error_set(err, WEFT_ERR_MEMORY, "no memory for the %" PRIu64 " entries of %s", n, key);
}

/* A string with a NUL behind it. *out stays NULL when there is none. */
static weft_status read_name(load_model *m, const char *key, bool required, const char **out,
                             weft_error *err) {
    const gguf_value *v;
    weft_status s = gguf_get(&m->file, key, GGUF_STRING, false, required, &v, err);
    if (s != WEFT_OK || v == NULL) {
        return s;
    }
    load_string text = gguf_string(v);
    if (!text_is_plain(text)) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v), "%s is no name", key);
    }
    char *copy = load_arena_take(&m->arena, text.bytes + 1, 1);
    if (copy == NULL) {
        return no_memory(key, 1, err);
    }
    memcpy(copy, text.data, text.bytes);
    *out = copy;
    return WEFT_OK;
}

/* Which names are known is tok's affair, but a model that keeps other arrays cannot be read. */
static weft_status read_kind(load_model *m, weft_error *err) {
    static const struct {
        const char *name, *kind;
    } models[] = {{"gpt2", NULL},           {"llama", NULL},      {"gemma4", NULL},
                  {"bert", " (WordPiece)"}, {"t5", " (Unigram)"}, {"rwkv", " (RWKV)"}};
    weft_status s = read_name(m, "tokenizer.ggml.model", true, &m->vocab.model, err);
    if (s != WEFT_OK) {
        return s;
    }
    const char *kind = "";
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        if (strcmp(m->vocab.model, models[i].name) == 0) {
            kind = models[i].kind;
        }
    }
    if (kind != NULL) {
        return error_set_at(err, WEFT_ERR_FILE,
                            gguf_offset(&m->file, gguf_find(&m->file, "tokenizer.ggml.model")),
                            "tokenizer.ggml.model %.80s%s is not supported, expected one of gpt2 "
                            "(byte-level BPE), llama (SentencePiece BPE), gemma4",
                            m->vocab.model, kind);
    }
    return read_name(m, "tokenizer.ggml.pre", false, &m->vocab.pre, err);
}

/* Fills `table` over the tokens, which refuses two equal ones: merging would have no single
 * answer. */
static weft_status read_tokens(load_model *m, load_arena *scratch, text_table *table,
                               weft_error *err) {
    const gguf_value *v;
    weft_status s = gguf_get(&m->file, TOKENS, GGUF_STRING, true, true, &v, err);
    if (s != WEFT_OK) {
        return s;
    }
    if (v->n < 1 || v->n > INT32_MAX / 2) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v),
                            TOKENS " has %" PRIu64 " entries, expected 1 to %d", v->n,
                            INT32_MAX / 2);
    }
    load_string *token = load_arena_take(&m->arena, v->n, sizeof *token);
    if (token == NULL || !text_table_init(table, scratch, token, v->n)) {
        return no_memory(TOKENS, v->n, err);
    }
    gguf_strings(v, token);
    for (int32_t i = 0; i < (int32_t)v->n; i++) {
        if (token[i].bytes == 0) {
            return error_set_at(err, WEFT_ERR_FILE, token[i].data - (const char *)m->file.bytes,
                                TOKENS ": token %d is empty", i);
        }
        int32_t other = text_table_add(table, i);
        if (other >= 0) {
            char shown[100];
            text_show(token[i], shown, sizeof shown);
            return error_set_at(err, WEFT_ERR_FILE, token[i].data - (const char *)m->file.bytes,
                                TOKENS ": token %s stands twice, as %d and %d", shown, other, i);
        }
    }
    m->vocab.token = token;
    m->vocab.n_token = (int32_t)v->n;
    return WEFT_OK;
}

static weft_status read_token_types(load_model *m, weft_error *err) {
    const gguf_value *v = gguf_find(&m->file, TOKEN_TYPE);
    /* UINT32 is written by some converters; the values are the same */
    gguf_type stored = v != NULL && v->type == GGUF_U32 ? GGUF_U32 : GGUF_I32;
    weft_status s = gguf_get(&m->file, TOKEN_TYPE, stored, true, true, &v, err);
    if (s != WEFT_OK) {
        return s;
    }
    size_t n = (size_t)m->vocab.n_token;
    if (v->n != n) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v),
                            TOKEN_TYPE " has %" PRIu64 " entries, " TOKENS " has %zu", v->n, n);
    }
    uint8_t *type = load_arena_take(&m->arena, n, 1);
    if (type == NULL) {
        return no_memory(TOKEN_TYPE, n, err);
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t t = gguf_load_u32(v->at + 4 * i);
        if (t < LOAD_TOKEN_NORMAL || t > LOAD_TOKEN_BYTE) {
            return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v) + (int64_t)(4 * i),
                                TOKEN_TYPE ": token %zu has unknown type %d, expected %d to %d", i,
                                (int)t, LOAD_TOKEN_NORMAL, LOAD_TOKEN_BYTE);
        }
        type[i] = (uint8_t)t;
    }
    m->vocab.type = type;
    return WEFT_OK;
}

static weft_status read_scores(load_model *m, weft_error *err) {
    const gguf_value *v;
    weft_status s = gguf_get(&m->file, SCORES, GGUF_F32, true, false, &v, err);
    if (s != WEFT_OK || v == NULL) {
        return s;
    }
    size_t n = (size_t)m->vocab.n_token;
    if (v->n != n) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v),
                            SCORES " has %" PRIu64 " entries, " TOKENS " has %zu", v->n, n);
    }
    float *score = load_arena_take(&m->arena, n, sizeof *score);
    if (score == NULL) {
        return no_memory(SCORES, n, err);
    }
    memcpy(score, v->at, n * sizeof *score);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(score[i])) {
            return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v) + (int64_t)(4 * i),
                                SCORES ": token %zu has no finite score", i);
        }
    }
    m->vocab.score = score;
    return WEFT_OK;
}

/* ---- merges ---- */

static weft_status bad_merge(const load_model *m, load_string merge, int32_t i, const char *wrong,
                             weft_error *err) {
    char shown[160];
    text_show(merge, shown, sizeof shown);
    return error_set_at(err, WEFT_ERR_FILE, merge.data - (const char *)m->file.bytes,
                        MERGES ": entry %d is %s, %s", i, shown, wrong);
}

/* `joined` has room for the longest token. */
static weft_status check_merge(const load_model *m, const text_table *tokens, int32_t i,
                               char *joined, size_t longest, weft_error *err) {
    load_string merge = m->vocab.merge[i];
    /* a token may begin with a space where there is no byte alphabet */
    const char *space = merge.bytes > 1 ? memchr(merge.data + 1, ' ', merge.bytes - 1) : NULL;
    size_t n_left = space != NULL ? (size_t)(space - merge.data) : 0;
    load_string left = {merge.data, n_left};
    load_string right = {merge.data + n_left + 1, merge.bytes - n_left - 1};
    if (n_left == 0 || n_left + 1 == merge.bytes || memchr(right.data, ' ', right.bytes) != NULL) {
        return bad_merge(m, merge, i, "expected two tokens with one space between", err);
    }
    size_t n = left.bytes + right.bytes;
    if (n <= longest) {
        memcpy(joined, left.data, left.bytes);
        memcpy(joined + left.bytes, right.data, right.bytes);
    }
    if (n > longest || text_table_find(tokens, (load_string){joined, n}) < 0) {
        return bad_merge(m, merge, i, "whose result is no token", err);
    }
    if (text_table_find(tokens, left) < 0 || text_table_find(tokens, right) < 0) {
        return bad_merge(m, merge, i, "of which one half is no token", err);
    }
    return WEFT_OK;
}

/* Some converters keep the head line of merges.txt as an entry. */
static bool is_head_line(load_string merge) {
    static const char head[] = "#version:";
    return merge.bytes >= strlen(head) && memcmp(merge.data, head, strlen(head)) == 0;
}

static weft_status read_merges(load_model *m, load_arena *scratch, const text_table *tokens,
                               weft_error *err) {
    const gguf_value *v;
    bool by_score = strcmp(m->vocab.model, "llama") == 0;
    weft_status s = gguf_get(&m->file, MERGES, GGUF_STRING, true, !by_score, &v, err);
    if (s != WEFT_OK || by_score) {
        return s;
    }
    if (v->n > INT32_MAX / 2) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v),
                            MERGES " has %" PRIu64 " entries, expected at most %d", v->n,
                            INT32_MAX / 2);
    }
    size_t longest = 0;
    for (int32_t i = 0; i < m->vocab.n_token; i++) {
        longest = m->vocab.token[i].bytes > longest ? m->vocab.token[i].bytes : longest;
    }
    load_string *merge = load_arena_take(&m->arena, v->n, sizeof *merge);
    char *joined = load_arena_take(scratch, longest, 1);
    if (merge == NULL || joined == NULL) {
        return no_memory(MERGES, v->n, err);
    }
    gguf_strings(v, merge);
    int32_t skipped = v->n > 0 && is_head_line(merge[0]) ? 1 : 0;
    m->vocab.merge = merge + skipped;
    m->vocab.n_merge = (int32_t)v->n - skipped;
    for (int32_t i = 0; i < m->vocab.n_merge; i++) {
        if ((s = check_merge(m, tokens, i, joined, longest, err)) != WEFT_OK) {
            return s;
        }
    }
    return WEFT_OK;
}

/* ---- special tokens ---- */

static weft_status read_id(const load_model *m, const char *key, int32_t *out, weft_error *err) {
    const gguf_value *v;
    weft_status s = gguf_get(&m->file, key, GGUF_U32, false, false, &v, err);
    if (s != WEFT_OK) {
        return s;
    }
    *out = -1;
    if (v != NULL) {
        uint32_t id = gguf_u32(v);
        if (id >= (uint32_t)m->vocab.n_token) {
            return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v),
                                "%s %u is out of range, there are %d tokens", key, id,
                                m->vocab.n_token);
        }
        *out = (int32_t)id;
    }
    return WEFT_OK;
}

static weft_status read_flag(const load_model *m, const char *key, bool absent, bool *out,
                             weft_error *err) {
    const gguf_value *v;
    weft_status s = gguf_get(&m->file, key, GGUF_BOOL, false, false, &v, err);
    if (s == WEFT_OK) {
        *out = v != NULL ? gguf_bool(v) : absent;
    }
    return s;
}

/* The ends: the main one, then one of a turn. */
static weft_status read_ends(load_model *m, weft_error *err) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id"};
    load_vocab *v = &m->vocab;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        int32_t id;
        weft_status s = read_id(m, keys[i], &id, err);
        if (s != WEFT_OK) {
            return s;
        }
        if (id >= 0) {
            v->eos_ids[v->n_eos++] = id;
        }
    }
    if (v->n_eos == 0) {
        log_warn("%s: neither %s nor %s: answers end only at their length", m->shown_name, keys[0],
                 keys[1]);
    }
    return WEFT_OK;
}

static weft_status read_specials(load_model *m, weft_error *err) {
    load_vocab *v = &m->vocab;
    bool add_eos = false, add_sep = false;
    weft_status s;
    if ((s = read_id(m, "tokenizer.ggml.bos_token_id", &v->bos, err)) != WEFT_OK ||
        (s = read_id(m, "tokenizer.ggml.unknown_token_id", &v->unk, err)) != WEFT_OK ||
        (s = read_ends(m, err)) != WEFT_OK ||
        (s = read_flag(m, "tokenizer.ggml.add_bos_token", false, &v->add_bos, err)) != WEFT_OK ||
        (s = read_flag(m, "tokenizer.ggml.add_eos_token", false, &add_eos, err)) != WEFT_OK ||
        (s = read_flag(m, "tokenizer.ggml.add_sep_token", false, &add_sep, err)) != WEFT_OK ||
        (s = read_flag(m, "tokenizer.ggml.add_space_prefix", true, &v->add_space_prefix, err)) !=
            WEFT_OK) {
        return s;
    }
    v->add_bos_unsaid = gguf_find(&m->file, "tokenizer.ggml.add_bos_token") == NULL;
    if (v->add_bos && v->bos < 0) {
        return error_set(err, WEFT_ERR_FILE,
                         "tokenizer.ggml.bos_token_id is missing, and tokenizer.ggml.add_bos_token "
                         "asks for it");
    }
    if (add_eos || add_sep) {
        return error_set(err, WEFT_ERR_FILE,
                         "tokenizer.ggml.%s is true: weft puts no token after a text, expected "
                         "false",
                         add_eos ? "add_eos_token" : "add_sep_token");
    }
    return WEFT_OK;
}

static weft_status read_template(load_model *m, weft_error *err) {
    const gguf_value *v;
    weft_status s =
        gguf_get(&m->file, "tokenizer.chat_template", GGUF_STRING, false, false, &v, err);
    if (s != WEFT_OK || v == NULL) {
        return s;
    }
    load_string text = gguf_string(v);
    if (utf8_valid_bytes(text.data, text.bytes) != text.bytes) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v),
                            "tokenizer.chat_template is not UTF-8");
    }
    m->vocab.chat_template = text;
    return WEFT_OK;
}

weft_status load_read_vocab(load_model *m, weft_error *err) {
    load_arena scratch = {
        0}; /* the table of tokens is as large as the vocabulary, and needed only here */
    text_table tokens;
    weft_status s;
    if ((s = read_kind(m, err)) == WEFT_OK &&
        (s = read_tokens(m, &scratch, &tokens, err)) == WEFT_OK &&
        (s = read_token_types(m, err)) == WEFT_OK && (s = read_scores(m, err)) == WEFT_OK &&
        (s = read_merges(m, &scratch, &tokens, err)) == WEFT_OK &&
        (s = read_specials(m, err)) == WEFT_OK) {
        s = read_template(m, err);
    }
    load_arena_free(&scratch);
    return s;
}
