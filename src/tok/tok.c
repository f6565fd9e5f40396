#include "tok/tok_impl.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* Parts of a piece are counted in int32, and a stray gigabyte is a mistake anyway. */
#define MOST_TEXT_BYTES ((size_t)1 << 30)

/* Control tokens that templates end a turn with; the model may emit one that is neither the eos nor
 * the eot of the file. */
static const char *const end_names[] = {
    "<|im_end|>",      "<|eot_id|>", "<|end|>",       "<|endoftext|>",
    "<|end_of_text|>", "</s>",       "<end_of_turn>",
};
enum { N_END_NAME = sizeof end_names / sizeof end_names[0] };

static bool is_control(uint8_t type) {
    return type == LOAD_TOKEN_CONTROL || type == LOAD_TOKEN_UNKNOWN;
}

static bool has_end_name(load_string text) {
    for (int i = 0; i < N_END_NAME; i++) {
        if (text.bytes == strlen(end_names[i]) &&
            memcmp(text.data, end_names[i], text.bytes) == 0) {
            return true;
        }
    }
    return false;
}

static weft_status check_vocab(const load_vocab *vocab, weft_error *err) {
    if (vocab->model == NULL || strcmp(vocab->model, "gpt2") != 0) {
        return error_set(err, WEFT_ERR_FILE, "tokenizer.ggml.model is \"%.80s\"; known: gpt2",
                         vocab->model != NULL ? vocab->model : "");
    }
    const struct {
        const char *key;
        int32_t id;
    } ids[] = {{"bos", vocab->bos}, {"eos", vocab->n_eos > 0 ? vocab->eos_ids[0] : -1}};
    for (int i = 0; i < 2; i++) {
        if (ids[i].id >= vocab->n_token) {
            return error_set(err, WEFT_ERR_FILE,
                             "tokenizer.ggml.%s_token_id is %d; the vocabulary has %d tokens",
                             ids[i].key, ids[i].id, vocab->n_token);
        }
    }
    return WEFT_OK;
}

static weft_status mark_ends(tok *t, const load_vocab *vocab, weft_error *err) {
    t->end = calloc((size_t)vocab->n_token + 1, sizeof *t->end);
    if (t->end == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d tokens", vocab->n_token);
    }
    for (int32_t id = 0; id < vocab->n_token; id++) {
        bool listed = false;
        for (int32_t k = 0; k < vocab->n_eos; k++) {
            listed |= id == vocab->eos_ids[k];
        }
        t->end[id] = listed || (is_control(vocab->type[id]) && has_end_name(vocab->token[id]));
    }
    return WEFT_OK;
}

weft_status tok_create(const load_vocab *vocab, tok **out, weft_error *err) {
    bool none = vocab->model == NULL && vocab->tokenizer_json.data == NULL;
    weft_status status = none ? WEFT_OK : check_vocab(vocab, err);
    if (status != WEFT_OK) {
        return status;
    }
    tok *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the tokeniser");
    }
    t->type = vocab->type;
    t->n_token = vocab->n_token;
    t->bos = vocab->bos >= 0 ? vocab->bos : -1;
    t->eos = vocab->n_eos > 0 ? vocab->eos_ids[0] : -1;
    t->add_bos = vocab->add_bos;
    if (none) {
        *out = t;
        return WEFT_OK;
    }
    if ((status = pretok_open(vocab->pre, &t->pretok, err)) != WEFT_OK ||
        (status = bpe_open(vocab, &t->bpe, err)) != WEFT_OK ||
        (status = special_set_open(vocab, false, &t->user, err)) != WEFT_OK ||
        (status = special_set_open(vocab, true, &t->all, err)) != WEFT_OK ||
        (status = mark_ends(t, vocab, err)) != WEFT_OK ||
        (status = chat_form_open(vocab->chat_template, &t->chat, err)) != WEFT_OK) {
        tok_destroy(t);
        return status;
    }
    *out = t;
    return WEFT_OK;
}

void tok_destroy(tok *t) {
    if (t != NULL) {
        pretok_close(t->pretok);
        bpe_close(t->bpe);
        special_set_close(&t->user);
        special_set_close(&t->all);
        chat_form_close(&t->chat);
        free(t->end);
        free(t);
    }
}

/* ---- encoding ---- */

typedef struct encode_run {
    const tok *tok;
    const pretok_rule *rule;
    bpe_scratch scratch;
    id_list ids;
} encode_run;

static weft_status encode_piece(void *arg, const char *piece, size_t bytes, weft_error *err) {
    encode_run *run = arg;
    return bpe_encode(run->tok->bpe, piece, bytes, run->rule->whole_piece, &run->scratch, &run->ids,
                      err);
}

static bool is_ascii(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if ((uint8_t)text[i] >= 0x80) {
            return false;
        }
    }
    return true;
}

/* A stretch without special tokens. */
static weft_status encode_stretch(encode_run *run, const char *text, size_t bytes,
                                  weft_error *err) {
    if (!run->rule->nfc || is_ascii(text, bytes)) {
        return pretok_cut(run->tok->pretok, text, bytes, encode_piece, run, err);
    }
    char *composed = NULL;
    weft_status status = nfc_compose(text, bytes, &composed, &bytes, err);
    if (status == WEFT_OK) {
        status = pretok_cut(run->tok->pretok, composed, bytes, encode_piece, run, err);
        free(composed);
    }
    return status;
}

static weft_status encode_all(encode_run *run, const char *text, size_t bytes, bool special,
                              weft_error *err) {
    const special_set *set = special ? &run->tok->all : &run->tok->user;
    size_t from = 0;
    while (from < bytes) {
        const special_entry *found = NULL;
        size_t at = bytes;
        special_find(set, text, bytes, from, &at, &found);
        weft_status status = at > from ? encode_stretch(run, text + from, at - from, err) : WEFT_OK;
        if (status != WEFT_OK) {
            return status;
        }
        if (found == NULL) {
            break;
        }
        if (!id_list_push(&run->ids, found->id)) {
            return error_set(err, WEFT_ERR_MEMORY, "no memory for the ids");
        }
        from = at + found->text.bytes;
    }
    return WEFT_OK;
}

weft_status tok_encode(const tok *t, const char *text, size_t bytes, bool special, int32_t **ids,
                       size_t *n, weft_error *err) {
    if (!tok_has_text(t)) {
        return error_set(err, WEFT_ERR_USAGE, "the model has no tokenizer.json: prompts are ids");
    }
    if (bytes > MOST_TEXT_BYTES) {
        return error_set(err, WEFT_ERR_TOO_LONG, "the text has %zu bytes; at most %zu", bytes,
                         MOST_TEXT_BYTES);
    }
    size_t valid = utf8_valid_bytes(text, bytes);
    if (valid != bytes) {
        return error_set_at(err, WEFT_ERR_USAGE, (int64_t)valid,
                            "the text is not valid UTF-8 at byte %zu", valid);
    }
    encode_run run = {.tok = t, .rule = pretok_get_rule(t->pretok)};
    weft_status status = encode_all(&run, text, bytes, special, err);
    if (status == WEFT_OK && run.ids.id == NULL) {
        run.ids.id = malloc(sizeof *run.ids.id); /* no ids are an array too */
        status =
            run.ids.id != NULL ? WEFT_OK : error_set(err, WEFT_ERR_MEMORY, "no memory for the ids");
    }
    if (status == WEFT_OK && run.scratch.n_dropped > 0) {
        log_warn("%zu bytes of the text have no token in this vocabulary and were dropped",
                 run.scratch.n_dropped);
    }
    bpe_scratch_free(&run.scratch);
    if (status != WEFT_OK) {
        free(run.ids.id);
        return status;
    }
    *ids = run.ids.id;
    *n = run.ids.n;
    return WEFT_OK;
}

/* ---- looking at tokens ---- */

static bool in_vocab(const tok *t, int32_t id) {
    return id >= 0 && id < t->n_token;
}

bool tok_has_text(const tok *t) {
    return t->bpe != NULL;
}

int32_t tok_vocab_size(const tok *t) {
    return t->n_token;
}

const char *tok_bytes(const tok *t, int32_t id, size_t *bytes) {
    if (!in_vocab(t, id)) {
        *bytes = 0;
        return NULL;
    }
    load_string text = bpe_text(t->bpe)[id];
    *bytes = text.bytes;
    return text.bytes > 0 ? text.data : "";
}

bool tok_is_special(const tok *t, int32_t id) {
    return in_vocab(t, id) && is_control(t->type[id]);
}

bool tok_is_end(const tok *t, int32_t id) {
    return in_vocab(t, id) && t->end[id];
}

int32_t tok_bos(const tok *t) {
    return t->add_bos ? t->bos : -1;
}

int32_t tok_eos(const tok *t) {
    return t->eos;
}

bool tok_needs_bos(const tok *t, const int32_t *ids, size_t n) {
    int32_t bos = tok_bos(t);
    return bos >= 0 && (n == 0 || ids[0] != bos);
}
