#include "tok/tok_impl.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ADDED_BYTES = 4096, MOST_NORMAL_BYTES = 16 * MOST_ADDED_BYTES };

/* Tokens that templates end a turn with; the model may emit one that is none of the ends that the
 * file names. Some files of the first group have them as plain tokens; those of the second stand for
 * themselves when they are plain, as Gemma's </s> does. */
static const char *const turn_ends[] = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<turn|>",
};
static const char *const control_ends[] = {
    "<|end|>", "<|endoftext|>", "<|end_of_text|>", "</s>", "<|return|>", "<|call|>",
};
enum {
    N_TURN_END = sizeof turn_ends / sizeof turn_ends[0],
    N_CONTROL_END = sizeof control_ends / sizeof control_ends[0]
};

static bool is_control(uint8_t type) {
    return type == LOAD_TOKEN_CONTROL || type == LOAD_TOKEN_UNKNOWN;
}

static bool is_one_of(load_string text, const char *const *name, int n) {
    for (int i = 0; i < n; i++) {
        if (string_is(text, name[i])) {
            return true;
        }
    }
    return false;
}

static int32_t find_text(const tok *t, load_string text) {
    for (int32_t id = 0; text.data != NULL && id < t->n_token; id++) {
        if (t->text[id].bytes == text.bytes && t->text[id].data != NULL &&
            memcmp(t->text[id].data, text.data, text.bytes) == 0) {
            return id;
        }
    }
    return -1;
}

static int32_t find_name(const tok *t, const char *name) {
    return find_text(t, (load_string){name, strlen(name)});
}

/* ---- building ---- */

static weft_status no_memory(weft_error *err) {
    return error_set(err, WEFT_ERR_MEMORY, "no memory for the tokeniser");
}

weft_status tok_take_tokens(tok *t, weft_error *err) {
    size_t n = (size_t)t->n_token + 1;
    t->text = load_arena_take(&t->arena, n, sizeof *t->text);
    t->type = load_arena_take(&t->arena, n, sizeof *t->type);
    t->end = load_arena_take(&t->arena, n, sizeof *t->end);
    t->decoder.piece = load_arena_take(&t->arena, n, sizeof *t->decoder.piece);
    bool ok = t->text != NULL && t->type != NULL && t->end != NULL && t->decoder.piece != NULL;
    return ok ? WEFT_OK : error_set(err, WEFT_ERR_MEMORY, "no memory for %d tokens", t->n_token);
}

weft_status tok_add_norm(tok *t, norm_step step, weft_error *err) {
    if (t->norm.n == NORM_MAX_STEP) {
        regex_close(step.pattern);
        return error_set(err, WEFT_ERR_FILE, "the normalizer has more than %d steps",
                         NORM_MAX_STEP);
    }
    t->norm.step[t->norm.n++] = step;
    return WEFT_OK;
}

weft_status tok_add_pretok(tok *t, pretok_step step, weft_error *err) {
    if (t->pretok.n == PRETOK_MAX_STEP) {
        regex_close(step.pattern);
        return error_set(err, WEFT_ERR_FILE, "the pre-tokeniser has more than %d steps",
                         PRETOK_MAX_STEP);
    }
    t->pretok.step[t->pretok.n++] = step;
    return WEFT_OK;
}

weft_status tok_add_cut(tok *t, const char *pattern, weft_error *err) {
    pretok_step step = {.kind = PRETOK_CUT, .behavior = CUT_ISOLATED};
    weft_status status =
        regex_open((load_string){pattern, strlen(pattern)}, "pre-tokeniser", &step.pattern, err);
    return status != WEFT_OK ? status : tok_add_pretok(t, step, err);
}

/* A token of normalised text is looked for in its own normal form. */
static weft_status added_text(tok *t, const tok_added *added, load_string *out, weft_error *err) {
    regex_run *run = NULL;
    text_buf buffer[2] = {{0}};
    weft_status status = regex_run_open(&run, err);
    if (status == WEFT_OK) {
        status = norm_apply(&t->norm, run, buffer, added->text.data, added->text.bytes,
                            MOST_NORMAL_BYTES, out, err);
    }
    if (status == WEFT_OK) {
        *out = string_copy(&t->arena, *out);
        status = out->data != NULL ? WEFT_OK : no_memory(err);
    }
    regex_run_close(run);
    text_buf_free(&buffer[0]);
    text_buf_free(&buffer[1]);
    return status;
}

static weft_status fill_set(tok *t, bool normalized, bool special, added_set *out,
                            weft_error *err) {
    added_entry *entry = malloc(((size_t)t->n_added + 1) * sizeof *entry);
    int32_t n = 0;
    if (entry == NULL) {
        return no_memory(err);
    }
    for (int32_t i = 0; i < t->n_added; i++) {
        const tok_added *a = &t->added[i];
        if (a->normalized != normalized || (a->special && !special)) {
            continue;
        }
        load_string text = a->text;
        weft_status status = WEFT_OK;
        if (text.bytes <= MOST_ADDED_BYTES && normalized) {
            status = added_text(t, a, &text, err);
        }
        if (a->text.bytes > MOST_ADDED_BYTES || status == WEFT_ERR_TOO_LONG) {
            status = error_set(err, WEFT_ERR_FILE,
                               "added token %d has %zu bytes: at most %d are possible, and %d when "
                               "normalised",
                               a->id, a->text.bytes, MOST_ADDED_BYTES, MOST_NORMAL_BYTES);
        }
        if (status != WEFT_OK) {
            free(entry);
            return status;
        }
        entry[n++] = (added_entry){text, a->id, a->lstrip, a->rstrip, a->single_word};
    }
    added_set_init(out, entry, n);
    return WEFT_OK;
}

static weft_status fill_sets(tok *t, weft_error *err) {
    weft_status status = WEFT_OK;
    for (int special = 0; special < 2 && status == WEFT_OK; special++) {
        status = fill_set(t, false, special == 1, &t->raw[special], err);
        if (status == WEFT_OK) {
            status = fill_set(t, true, special == 1, &t->normal[special], err);
        }
    }
    return status;
}

static weft_status mark_ends(tok *t, const load_vocab *vocab, weft_error *err) {
    for (int32_t i = 0; i < vocab->n_eos; i++) {
        int32_t id = vocab->eos_ids[i];
        if (id < 0 || id >= t->n_token) {
            return error_set(err, WEFT_ERR_FILE, "eos token %d: the vocabulary has %d tokens", id,
                             t->n_token);
        }
        t->end[id] = true;
    }
    if (vocab->bos >= t->n_token) {
        return error_set(err, WEFT_ERR_FILE, "bos token %d: the vocabulary has %d tokens",
                         vocab->bos, t->n_token);
    }
    int32_t named = find_text(t, vocab->bos_text);
    t->bos = named >= 0 ? named : vocab->bos >= 0 ? vocab->bos : -1;
    t->eos = vocab->n_eos > 0 ? vocab->eos_ids[0] : -1;
    for (int32_t id = 0; id < t->n_token; id++) {
        bool plain = t->type[id] == LOAD_TOKEN_NORMAL || t->type[id] == LOAD_TOKEN_USER;
        bool control = is_control(t->type[id]);
        if ((control && is_one_of(t->text[id], control_ends, N_CONTROL_END)) ||
            ((control || plain) && is_one_of(t->text[id], turn_ends, N_TURN_END))) {
            t->end[id] = true;
        }
    }
    /* GPT-OSS: <|end|> ends a part of an answer, behind which the next one begins */
    int32_t part = find_name(t, "<|end|>");
    if (part >= 0 && find_name(t, "<|return|>") >= 0 && find_name(t, "<|call|>") >= 0) {
        t->end[part] = false;
    }
    return WEFT_OK;
}

/* BOS in front, unless the file's own rule puts it there. */
static weft_status lead_with_bos(tok *t, const load_vocab *vocab, weft_error *err) {
    if (vocab->drop_bos && t->n_lead > 0 && t->lead[0] == t->bos) {
        t->lead++;
        t->n_lead--;
    }
    if (!vocab->add_bos || (t->n_lead > 0 && t->lead[0] == t->bos)) {
        return WEFT_OK;
    }
    if (t->bos < 0) {
        return error_set(err, WEFT_ERR_FILE, "a text begins with bos, and there is no bos token");
    }
    int32_t *lead = load_arena_take(&t->arena, (size_t)t->n_lead + 1, sizeof *lead);
    if (lead == NULL) {
        return no_memory(err);
    }
    lead[0] = t->bos;
    for (int32_t i = 0; i < t->n_lead; i++) {
        lead[i + 1] = t->lead[i];
    }
    t->lead = lead;
    t->n_lead++;
    return WEFT_OK;
}

/* A folder without a tokeniser: tokens up to the last that ends an answer, none with a text. */
static weft_status from_nothing(tok *t, const load_vocab *vocab, weft_error *err) {
    t->n_token = vocab->bos + 1;
    for (int32_t i = 0; i < vocab->n_eos; i++) {
        t->n_token = vocab->eos_ids[i] >= t->n_token ? vocab->eos_ids[i] + 1 : t->n_token;
    }
    return tok_take_tokens(t, err);
}

static weft_status fill(tok *t, const load_vocab *vocab, weft_error *err) {
    weft_status status = vocab->tokenizer_json.data != NULL ? tok_from_json(t, vocab, err)
                         : vocab->model != NULL             ? tok_from_gguf(t, vocab, err)
                                                            : from_nothing(t, vocab, err);
    status = status == WEFT_OK ? fill_sets(t, err) : status;
    status = status == WEFT_OK ? mark_ends(t, vocab, err) : status;
    status = status == WEFT_OK ? lead_with_bos(t, vocab, err) : status;
    return status == WEFT_OK ? chat_form_open(vocab->chat_template, &t->chat, err) : status;
}

weft_status tok_create(const load_vocab *vocab, tok **out, weft_error *err) {
    tok *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return no_memory(err);
    }
    weft_error what;
    weft_status status = fill(t, vocab, &what);
    if (status != WEFT_OK) {
        tok_destroy(t);
        return error_set_at(err, status, what.offset, "%s%s%s", vocab->shown ? vocab->shown : "",
                            vocab->shown ? ": " : "", what.text);
    }
    *out = t;
    return WEFT_OK;
}

void tok_destroy(tok *t) {
    if (t != NULL) {
        norm_close(&t->norm);
        pretok_close(&t->pretok);
        bpe_close(t->bpe);
        for (int i = 0; i < 2; i++) {
            added_set_close(&t->raw[i]);
            added_set_close(&t->normal[i]);
        }
        chat_form_close(&t->chat);
        load_arena_free(&t->arena);
        free(t);
    }
}

/* ---- encoding ---- */

typedef struct encode_run {
    const tok *tok;
    bool special;
    regex_run *regex;
    text_buf norm[2];
    pretok_pieces pieces;
    bpe_scratch scratch;
    id_list ids;
} encode_run;

static weft_status push_id(encode_run *run, int32_t id, weft_error *err) {
    return id_list_push(&run->ids, id) ? WEFT_OK
                                       : error_set(err, WEFT_ERR_MEMORY, "no memory for the ids");
}

static weft_status encode_pieces(encode_run *run, load_string text, bool first, weft_error *err) {
    const tok *t = run->tok;
    weft_status status =
        pretok_cut(&t->pretok, run->regex, text.data, text.bytes, first, &run->pieces, err);
    for (size_t i = 0; i < run->pieces.n && status == WEFT_OK; i++) {
        pretok_piece p = run->pieces.piece[i];
        status = bpe_encode(t->bpe, run->pieces.text + p.start, p.end - p.start, &run->scratch,
                            &run->ids, err);
    }
    return status;
}

/* A stretch of the raw text without added tokens. */
static weft_status encode_stretch(encode_run *run, load_string text, bool first, weft_error *err) {
    load_string normal, part;
    weft_status status = norm_apply(&run->tok->norm, run->regex, run->norm, text.data, text.bytes,
                                    TOK_MOST_TEXT_BYTES, &normal, err);
    added_scan scan = {.set = &run->tok->normal[run->special], .text = normal};
    int32_t id;
    while (status == WEFT_OK && added_next(&scan, &id, &part)) {
        status = id >= 0 ? push_id(run, id, err)
                         : encode_pieces(run, part, first && part.data == normal.data, err);
    }
    return status;
}

static weft_status encode_text(encode_run *run, load_string text, weft_error *err) {
    added_scan scan = {.set = &run->tok->raw[run->special], .text = text};
    weft_status status = regex_run_open(&run->regex, err);
    load_string part;
    int32_t id;
    while (status == WEFT_OK && added_next(&scan, &id, &part)) {
        status = id >= 0 ? push_id(run, id, err)
                         : encode_stretch(run, part, part.data == text.data, err);
    }
    return status;
}

static void run_free(encode_run *run) {
    regex_run_close(run->regex);
    text_buf_free(&run->norm[0]);
    text_buf_free(&run->norm[1]);
    pretok_pieces_free(&run->pieces);
    bpe_scratch_free(&run->scratch);
}

weft_status tok_encode(const tok *t, const char *text, size_t bytes, bool special, int32_t **ids,
                       size_t *n, weft_error *err) {
    if (!tok_has_text(t)) {
        return error_set(err, WEFT_ERR_FILE, "the model has no tokenizer.json: prompts are ids");
    }
    if (bytes > TOK_MOST_TEXT_BYTES) {
        return error_set(err, WEFT_ERR_TOO_LONG, "the text has %zu bytes; at most %zu", bytes,
                         TOK_MOST_TEXT_BYTES);
    }
    size_t valid = utf8_valid_bytes(text, bytes);
    if (valid != bytes) {
        return error_set_at(err, WEFT_ERR_USAGE, (int64_t)valid, "the text is not valid UTF-8");
    }
    encode_run run = {.tok = t, .special = special};
    run.scratch.least_reach = special ? BPE_REACH_SPECIAL : BPE_REACH_ALWAYS;
    weft_status status = encode_text(&run, (load_string){text, bytes}, err);
    if (status == WEFT_OK && run.ids.id == NULL) {
        run.ids.id = malloc(sizeof *run.ids.id); /* no ids are an array too */
        status =
            run.ids.id != NULL ? WEFT_OK : error_set(err, WEFT_ERR_MEMORY, "no memory for the ids");
    }
    if (status == WEFT_OK && run.scratch.n_dropped > 0) {
        log_warn("%zu characters of the text have no token in this vocabulary and were dropped",
                 run.scratch.n_dropped);
    }
    run_free(&run);
    if (status != WEFT_OK) {
        free(run.ids.id);
        return status;
    }
    *ids = run.ids.id;
    *n = run.ids.n;
    return WEFT_OK;
}

static bool same_ids(const int32_t *a, const int32_t *b, size_t n) {
    return n == 0 || memcmp(a, b, n * sizeof *a) == 0;
}

weft_status tok_encode_prompt(const tok *t, const char *text, size_t bytes, int32_t **ids,
                              size_t *n, weft_error *err) {
    int32_t *inner = NULL;
    size_t n_inner = 0, lead = (size_t)t->n_lead, trail = (size_t)t->n_trail;
    weft_status status = tok_encode(t, text, bytes, true, &inner, &n_inner, err);
    if (status != WEFT_OK) {
        return status;
    }
    lead = n_inner >= lead && same_ids(inner, t->lead, lead) ? 0 : lead;
    trail = n_inner >= trail && same_ids(inner + n_inner - trail, t->trail, trail) ? 0 : trail;
    if (lead + trail > 0) {
        int32_t *grown = realloc(inner, (n_inner + lead + trail) * sizeof *grown);
        if (grown == NULL) {
            free(inner);
            return error_set(err, WEFT_ERR_MEMORY, "no memory for the ids");
        }
        inner = grown;
        memmove(inner + lead, inner, n_inner * sizeof *inner);
        for (size_t i = 0; i < lead; i++) {
            inner[i] = t->lead[i];
        }
        for (size_t i = 0; i < trail; i++) {
            inner[lead + n_inner + i] = t->trail[i];
        }
    }
    *ids = inner;
    *n = n_inner + lead + trail;
    return WEFT_OK;
}

const int32_t *tok_lead(const tok *t, size_t *n) {
    *n = (size_t)t->n_lead;
    return t->lead;
}

const int32_t *tok_trail(const tok *t, size_t *n) {
    *n = (size_t)t->n_trail;
    return t->trail;
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
    load_string text = t->decoder.piece[id];
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
    return t->bos;
}

int32_t tok_eos(const tok *t) {
    return t->eos;
}
