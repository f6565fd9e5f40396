/* tokenizer.json -> pipe. Whatever would change ids or texts and is not known is refused by its path
 * in the file; so is a member of a known step that is not known. */
#include "tok/tokjson.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- model ---- */

/* The largest id, and the bytes of all texts. */
static weft_status measure(tokjson_reader *r, json_t *vocab, json_t *added, size_t *bytes) {
    const char *key;
    json_t *value;
    size_t i;
    json_int_t last = -1;
    *bytes = 1;
    json_object_foreach(vocab, key, value) {
        char shown[64];
        if (!tokjson_is_id(value)) {
            tokjson_path p = tokjson_path_of(NULL, "model.vocab \"%s\"",
                                             string_show((load_string){key, strlen(key)}, shown));
            return tokjson_bad_id(&p, value, r->err);
        }
        last = json_integer_value(value) > last ? json_integer_value(value) : last;
        *bytes += strlen(key);
    }
    json_array_foreach(added, i, value) {
        const json_t *id = json_object_get(value, "id");
        if (!tokjson_is_id(id)) {
            tokjson_path p = tokjson_path_of(NULL, "added_tokens[%zu]", i);
            return tokjson_bad_id(&p, id, r->err);
        }
        last = json_integer_value(id) > last ? json_integer_value(id) : last;
        *bytes += json_string_length(json_object_get(value, "content"));
    }
    /* tables are as large as the last id says, so ids may not be far apart */
    json_int_t most = 4 * (json_int_t)(json_object_size(vocab) + json_array_size(added)) + 65536;
    if (last >= most) {
        return error_set(
            r->err, WEFT_ERR_FILE,
            "tokenizer.json: the id %" JSON_INTEGER_FORMAT
            " is far beyond the number of tokens; expected at most %" JSON_INTEGER_FORMAT,
            last, most - 1);
    }
    r->t->n_token = (int32_t)last + 1;
    return WEFT_OK;
}

static weft_status take_vocab(tokjson_reader *r, json_t *vocab, char **to) {
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value) {
        int32_t id = (int32_t)json_integer_value(value);
        size_t n = strlen(key);
        if (r->t->text[id].data != NULL) {
            char a[64], b[64];
            return error_set(r->err, WEFT_ERR_FILE,
                             "tokenizer.json: model.vocab: \"%s\" and \"%s\" both have the id %d",
                             string_show(r->t->text[id], a), string_show((load_string){key, n}, b),
                             id);
        }
        memcpy(*to, key, n);
        r->t->text[id] = (load_string){*to, n};
        r->t->type[id] = LOAD_TOKEN_NORMAL;
        r->reach[id] = BPE_REACH_ALWAYS;
        *to += n;
    }
    return WEFT_OK;
}

static weft_status take_added(tokjson_reader *r, json_t *value, const tokjson_path *at,
                              json_t *vocab, char **to) {
    tok *t = r->t;
    tok_added a = {.id = (int32_t)json_integer_value(json_object_get(value, "id"))};
    load_string content;
    weft_status status;
    if ((status = tokjson_check_members(value, at,
                                        " id content single_word lstrip rstrip normalized special ",
                                        r->err)) != WEFT_OK ||
        (status = tokjson_text(value, at, "content", true, &content, r->err)) != WEFT_OK ||
        (status = tokjson_flag(value, at, "special", 0, &a.special, r->err)) != WEFT_OK ||
        (status = tokjson_flag(value, at, "normalized", !a.special, &a.normalized, r->err)) !=
            WEFT_OK ||
        (status = tokjson_flag(value, at, "lstrip", 0, &a.lstrip, r->err)) != WEFT_OK ||
        (status = tokjson_flag(value, at, "rstrip", 0, &a.rstrip, r->err)) != WEFT_OK ||
        (status = tokjson_flag(value, at, "single_word", 0, &a.single_word, r->err)) != WEFT_OK) {
        return status;
    }
    load_string *text = &t->text[a.id];
    char shown[64], other[64];
    if (text->data != NULL &&
        (text->bytes != content.bytes || memcmp(text->data, content.data, content.bytes) != 0)) {
        return error_set(r->err, WEFT_ERR_FILE,
                         "tokenizer.json: %s \"%s\" has the id %d, which is \"%s\" already",
                         at->text, string_show(content, shown), a.id, string_show(*text, other));
    }
    const json_t *twin = json_object_getn(vocab, content.data, content.bytes);
    if (twin != NULL && json_integer_value(twin) != a.id) {
        return error_set(r->err, WEFT_ERR_FILE,
                         "tokenizer.json: %s \"%s\" has the id %d, model.vocab gives it "
                         "%" JSON_INTEGER_FORMAT,
                         at->text, string_show(content, shown), a.id, json_integer_value(twin));
    }
    if (text->data == NULL) {
        memcpy(*to, content.data, content.bytes);
        *text = (load_string){*to, content.bytes};
        *to += content.bytes;
    }
    if (a.special && r->reach[a.id] == BPE_REACH_ALWAYS) {
        r->reach[a.id] = BPE_REACH_SPECIAL; /* where the text cannot name it, it cannot become it */
    }
    t->type[a.id] = a.special ? LOAD_TOKEN_CONTROL : LOAD_TOKEN_USER;
    a.text = *text;
    t->added[t->n_added++] = a;
    return WEFT_OK;
}

static weft_status take_tokens(tokjson_reader *r, json_t *vocab) {
    tok *t = r->t;
    json_t *added = json_object_get(r->root, "added_tokens");
    tokjson_path at = tokjson_path_of(NULL, "added_tokens");
    if (added != NULL && !json_is_null(added) && !json_is_array(added)) {
        return tokjson_wrong_type(&at, "", added, "an array", r->err);
    }
    size_t bytes, n_added = json_array_size(added);
    weft_status status = measure(r, vocab, added, &bytes);
    if (status != WEFT_OK || (status = tok_take_tokens(t, r->err)) != WEFT_OK) {
        return status;
    }
    r->reach = load_arena_take(&t->arena, (size_t)t->n_token + 1, sizeof *r->reach);
    t->added = load_arena_take(&t->arena, n_added + 1, sizeof *t->added);
    char *to = load_arena_take(&t->arena, bytes, 1);
    if (r->reach == NULL || t->added == NULL || to == NULL) {
        return tokjson_no_memory(r->err);
    }
    memset(t->type, LOAD_TOKEN_UNUSED, (size_t)t->n_token);
    status = take_vocab(r, vocab, &to);
    for (size_t i = 0; i < n_added && status == WEFT_OK; i++) {
        tokjson_path p = tokjson_path_of(&at, "[%zu]", i);
        status = take_added(r, json_array_get(added, i), &p, vocab, &to);
    }
    return status;
}

/* A merge is "left right", or ["left", "right"]. */
static bool read_merge(const json_t *value, bpe_merge *out) {
    if (json_is_string(value)) {
        load_string m = tokjson_text_of(value);
        const char *blank = memchr(m.data, ' ', m.bytes);
        size_t left = blank != NULL ? (size_t)(blank - m.data) : 0;
        if (left == 0 || left + 1 == m.bytes ||
            memchr(blank + 1, ' ', m.bytes - left - 1) != NULL) {
            return false;
        }
        *out = (bpe_merge){{m.data, left}, {blank + 1, m.bytes - left - 1}};
        return true;
    }
    const json_t *left = json_array_get(value, 0), *right = json_array_get(value, 1);
    *out = (bpe_merge){tokjson_text_of(left), tokjson_text_of(right)};
    return json_array_size(value) == 2 && json_string_length(left) > 0 &&
           json_string_length(right) > 0;
}

static weft_status take_merges(tokjson_reader *r, const json_t *merges) {
    tokjson_path at = tokjson_path_of(NULL, "model.merges");
    size_t n = json_array_size(merges);
    if (!json_is_array(merges)) {
        return tokjson_wrong_type(&at, "", merges, "an array", r->err);
    }
    if (n > INT32_MAX / 4) {
        return error_set(r->err, WEFT_ERR_FILE, "tokenizer.json: model.merges has %zu entries", n);
    }
    bpe_merge *merge = load_arena_take(&r->t->arena, n + 1, sizeof *merge);
    if (merge == NULL) {
        return tokjson_no_memory(r->err);
    }
    for (size_t i = 0; i < n; i++) {
        if (!read_merge(json_array_get(merges, i), &merge[i])) {
            return error_set(r->err, WEFT_ERR_FILE,
                             "tokenizer.json: model.merges[%zu] is not two tokens: \"left right\" "
                             "or [\"left\", \"right\"]",
                             i);
        }
    }
    r->bpe.merge = merge;
    r->bpe.n_merge = (int32_t)n;
    return WEFT_OK;
}

/* Members of the model that must be off. */
static weft_status check_off(const json_t *model, weft_error *err) {
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    tokjson_path at = tokjson_path_of(NULL, "model");
    for (int i = 0; i < 2; i++) {
        load_string text;
        weft_status status = tokjson_text(model, &at, texts[i], false, &text, err);
        if (status != WEFT_OK) {
            return status;
        }
        if (text.bytes > 0) {
            char shown[64];
            return error_set(err, WEFT_ERR_FILE,
                             "tokenizer.json: model.%s is \"%s\": not supported, expected null",
                             texts[i], string_show(text, shown));
        }
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout != NULL && !json_is_null(dropout) && json_number_value(dropout) != 0) {
        return error_set(err, WEFT_ERR_FILE,
                         "tokenizer.json: model.dropout makes ids random, expected null");
    }
    return WEFT_OK;
}

static weft_status read_unk(tokjson_reader *r, const json_t *model, const json_t *vocab) {
    tokjson_path at = tokjson_path_of(NULL, "model");
    load_string unk;
    weft_status status = tokjson_text(model, &at, "unk_token", false, &unk, r->err);
    r->bpe.unk = -1;
    if (status != WEFT_OK || unk.data == NULL) {
        return status;
    }
    const json_t *id = json_object_getn(vocab, unk.data, unk.bytes);
    if (id == NULL) {
        char shown[64];
        return error_set(r->err, WEFT_ERR_FILE,
                         "tokenizer.json: model.unk_token \"%s\" is not in model.vocab",
                         string_show(unk, shown));
    }
    r->bpe.unk = (int32_t)json_integer_value(id);
    return WEFT_OK;
}

static weft_status check_model_type(const json_t *model, const tokjson_path *at, weft_error *err) {
    load_string type;
    weft_status status = tokjson_text(model, at, "type", false, &type, err);
    if (status != WEFT_OK) {
        return status;
    }
    if (type.data == NULL) { /* files of 2020 have none; only BPE has merges */
        return json_object_get(model, "merges") != NULL
                   ? WEFT_OK
                   : error_set(err, WEFT_ERR_FILE,
                               "tokenizer.json: model has neither type nor merges, known: BPE");
    }
    return string_is(type, "BPE") ? WEFT_OK : tokjson_refuse_type(at, type, "BPE", err);
}

static weft_status read_model(tokjson_reader *r) {
    json_t *model = json_object_get(r->root, "model");
    tokjson_path at = tokjson_path_of(NULL, "model");
    if (!json_is_object(model)) {
        return tokjson_wrong_type(&at, "", model, "an object", r->err);
    }
    weft_status status = check_model_type(model, &at, r->err);
    if (status != WEFT_OK) {
        return status;
    }
    json_t *vocab = json_object_get(model, "vocab");
    bool whole = false;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0) {
        return tokjson_wrong_type(&at, ".vocab", vocab, "an object with tokens", r->err);
    }
    if ((status =
             tokjson_check_members(model, &at,
                                   " type dropout unk_token continuing_subword_prefix "
                                   "end_of_word_suffix fuse_unk byte_fallback ignore_merges vocab "
                                   "merges ",
                                   r->err)) != WEFT_OK ||
        (status = check_off(model, r->err)) != WEFT_OK ||
        (status = tokjson_flag(model, &at, "fuse_unk", 0, &r->bpe.fuse_unk, r->err)) != WEFT_OK ||
        (status = tokjson_flag(model, &at, "byte_fallback", 0, &r->bpe.byte_fallback, r->err)) !=
            WEFT_OK ||
        (status = tokjson_flag(model, &at, "ignore_merges", 0, &whole, r->err)) != WEFT_OK ||
        (status = take_tokens(r, vocab)) != WEFT_OK ||
        (status = read_unk(r, model, vocab)) != WEFT_OK ||
        (status = take_merges(r, json_object_get(model, "merges"))) != WEFT_OK) {
        return status;
    }
    r->bpe.whole = whole ? BPE_WHOLE_ALWAYS : BPE_WHOLE_NEVER;
    r->bpe.n_token = r->t->n_token;
    r->bpe.text = r->t->text;
    r->bpe.reach = r->reach;
    r->bpe.merge_name = "tokenizer.json: model.merges";
    r->bpe.token_name = "model.vocab";
    r->bpe.last_counts = true;
    return bpe_open(&r->bpe, &r->t->bpe, r->err);
}

/* ---- post_processor ---- */

/* ids in front of, or behind, those that are there already */
static weft_status grow(tokjson_reader *r, int32_t **list, int32_t *n, int32_t id, bool front) {
    enum { MOST = 64 };
    if (*n == MOST) {
        return error_set(r->err, WEFT_ERR_FILE,
                         "tokenizer.json: post_processor puts more than %d ids on a side of a text",
                         MOST);
    }
    int32_t *grown = load_arena_take(&r->t->arena, (size_t)*n + 1, sizeof *grown);
    if (id >= r->t->n_token) {
        return error_set(r->err, WEFT_ERR_FILE,
                         "tokenizer.json: post_processor has the id %d; the vocabulary has %d "
                         "tokens",
                         id, r->t->n_token);
    }
    if (grown == NULL) {
        return tokjson_no_memory(r->err);
    }
    for (int32_t i = 0; i < *n; i++) {
        grown[i + front] = (*list)[i];
    }
    grown[front ? 0 : *n] = id;
    *list = grown;
    (*n)++;
    return WEFT_OK;
}

enum { MOST_TEMPLATE_IDS = 128 };

static weft_status read_template_token(tokjson_reader *r, json_t *step, const tokjson_path *at,
                                       const json_t *part, id_list *out) {
    load_string name;
    weft_status status = tokjson_text(part, at, "id", true, &name, r->err);
    if (status != WEFT_OK) {
        return status;
    }
    const json_t *token =
        json_object_getn(json_object_get(step, "special_tokens"), name.data, name.bytes);
    const json_t *ids = json_object_get(token, "ids");
    size_t i;
    const json_t *id;
    char shown[64];
    if (!json_is_array(ids)) {
        return error_set(r->err, WEFT_ERR_FILE,
                         "tokenizer.json: %s.special_tokens has no ids for \"%s\"", at->text,
                         string_show(name, shown));
    }
    json_array_foreach(ids, i, id) {
        if (!tokjson_is_id(id)) {
            tokjson_path p =
                tokjson_path_of(at, ".special_tokens \"%s\"", string_show(name, shown));
            return tokjson_bad_id(&p, id, r->err);
        }
        if (out->n == MOST_TEMPLATE_IDS) {
            return error_set(r->err, WEFT_ERR_FILE,
                             "tokenizer.json: %s puts more than %d ids around a text", at->text,
                             MOST_TEMPLATE_IDS);
        }
        if (!id_list_push(out, (int32_t)json_integer_value(id))) {
            return tokjson_no_memory(r->err);
        }
    }
    return WEFT_OK;
}

/* Appends the ids of `single` to out; *at_text says how many stand in front of the text. */
static weft_status read_template(tokjson_reader *r, json_t *step, const tokjson_path *at,
                                 id_list *out, size_t *at_text) {
    const json_t *single = json_object_get(step, "single");
    tokjson_path p = tokjson_path_of(at, ".single");
    int n_text = 0;
    size_t i;
    const json_t *part;
    if (!json_is_array(single)) {
        return tokjson_wrong_type(&p, "", single, "an array", r->err);
    }
    json_array_foreach(single, i, part) {
        const json_t *token = json_object_get(part, "SpecialToken");
        const json_t *text = json_object_get(part, "Sequence");
        tokjson_path q = tokjson_path_of(&p, "[%zu]", i);
        if (token != NULL) {
            weft_status status = read_template_token(r, step, at, token, out);
            if (status != WEFT_OK) {
                return status;
            }
            continue;
        }
        const json_t *name = json_object_get(text, "id");
        if (!json_is_string(name) || !string_is(tokjson_text_of(name), "A")) {
            return error_set(r->err, WEFT_ERR_FILE,
                             "tokenizer.json: %s is neither a SpecialToken nor the Sequence A",
                             q.text);
        }
        n_text++;
        *at_text = out->n;
    }
    return n_text == 1 ? WEFT_OK
                       : error_set(r->err, WEFT_ERR_FILE,
                                   "tokenizer.json: %s has the Sequence A %d times, expected once",
                                   p.text, n_text);
}

static weft_status post_template(tokjson_reader *r, json_t *step, const tokjson_path *at) {
    id_list ids = {0};
    size_t at_text = 0;
    weft_status status =
        tokjson_check_members(step, at, " type single pair special_tokens ", r->err);
    if (status == WEFT_OK) {
        status = read_template(r, step, at, &ids, &at_text);
    }
    for (size_t i = at_text; i > 0 && status == WEFT_OK; i--) {
        status = grow(r, &r->t->lead, &r->t->n_lead, ids.id[i - 1], true);
    }
    for (size_t i = at_text; i < ids.n && status == WEFT_OK; i++) {
        status = grow(r, &r->t->trail, &r->t->n_trail, ids.id[i], false);
    }
    free(ids.id);
    return status;
}

/* RobertaProcessing and BertProcessing: [text, id] in front and behind. */
static weft_status post_pair(tokjson_reader *r, json_t *step, const tokjson_path *at) {
    static const char *const keys[] = {"cls", "sep"};
    weft_status status =
        tokjson_check_members(step, at, " type sep cls trim_offsets add_prefix_space ", r->err);
    for (int i = 0; i < 2 && status == WEFT_OK; i++) {
        const json_t *id = json_array_get(json_object_get(step, keys[i]), 1);
        if (!tokjson_is_id(id)) {
            tokjson_path p = tokjson_path_of(at, ".%s", keys[i]);
            return tokjson_bad_id(&p, id, r->err);
        }
        int32_t value = (int32_t)json_integer_value(id);
        status = i == 0 ? grow(r, &r->t->lead, &r->t->n_lead, value, true)
                        : grow(r, &r->t->trail, &r->t->n_trail, value, false);
    }
    return status;
}

static weft_status read_post(tokjson_reader *r, json_t *step, const tokjson_path *at,
                             load_string type) {
    if (string_is(type, "ByteLevel")) { /* moves offsets only */
        return tokjson_check_members(step, at, " type add_prefix_space trim_offsets use_regex ",
                                     r->err);
    }
    if (string_is(type, "TemplateProcessing")) {
        return post_template(r, step, at);
    }
    if (string_is(type, "RobertaProcessing") || string_is(type, "BertProcessing")) {
        return post_pair(r, step, at);
    }
    return tokjson_refuse_type(
        at, type, "TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing, Sequence",
        r->err);
}

/* ---- the file ---- */

/* "first" asks whether a piece begins where the raw text does; that is lost where the normalizer takes
 * characters away. */
static weft_status check_first(const tok *t, weft_error *err) {
    bool first = false, removes = false;
    for (int32_t i = 0; i < t->pretok.n; i++) {
        first = first || t->pretok.step[i].first_only;
    }
    for (int32_t i = 0; i < t->norm.n; i++) {
        const norm_step *s = &t->norm.step[i];
        removes = removes || s->left || s->kind == NORM_STRIP_ACCENTS || s->kind == NORM_REPLACE;
    }
    return first && removes
               ? error_set(
                     err, WEFT_ERR_FILE,
                     "tokenizer.json: pre_tokenizer has the prepend_scheme first, which is not "
                     "supported behind a normalizer with Strip, StripAccents or Replace")
               : WEFT_OK;
}

static weft_status check_root(const tokjson_reader *r) {
    tokjson_path at = tokjson_path_of(NULL, "(the file)");
    if (!json_is_object(r->root)) {
        return tokjson_wrong_type(&at, "", r->root, "an object", r->err);
    }
    static const char *const limits[] = {"truncation", "padding"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(r->root, limits[i]);
        if (value != NULL && !json_is_null(value)) {
            log_warn("tokenizer.json: %s belongs to training and is not used", limits[i]);
        }
    }
    return tokjson_check_members(
        r->root, &at,
        " version truncation padding added_tokens normalizer pre_tokenizer "
        "post_processor decoder model ",
        r->err);
}

weft_status tok_from_json(tok *t, const load_vocab *vocab, weft_error *err) {
    json_error_t wrong;
    tokjson_reader r = {.t = t, .err = err};
    r.root = json_loadb(vocab->tokenizer_json.data, vocab->tokenizer_json.bytes,
                        JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &wrong);
    if (r.root == NULL) {
        return error_set_at(err, WEFT_ERR_FILE, wrong.position,
                            "tokenizer.json: line %d, column %d: %s", wrong.line, wrong.column,
                            wrong.text);
    }
    weft_status status;
    if ((status = check_root(&r)) == WEFT_OK && (status = read_model(&r)) == WEFT_OK &&
        (status = tokjson_walk_member(&r, "normalizer", "normalizers", tokjson_read_norm)) ==
            WEFT_OK &&
        (status = tokjson_walk_member(&r, "pre_tokenizer", "pretokenizers", tokjson_read_pretok)) ==
            WEFT_OK &&
        (status = tokjson_walk_member(&r, "post_processor", "processors", read_post)) == WEFT_OK) {
        status = check_first(t, err);
    }
    if (status == WEFT_OK) {
        status = tokjson_read_decoders(&r);
    }
    json_decref(r.root);
    return status;
}
