/* tokenizer.json -> pipe. Whatever would change ids or texts and is not known is refused by its path
 * in the file; so is a member of a known step that is not known. */
#include "tok/tok_impl.h"

#include "base/log.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ID = (1 << 24) - 1, MAX_NESTED = 8, PATH_BYTES = 200 };

typedef struct json_path {
    char text[PATH_BYTES];
} json_path;

/* What is read of the file, and where in it. */
typedef struct reader {
    tok *t;
    json_t *root;
    bpe_config bpe;
    uint8_t *reach;
    weft_error *err;
} reader;

static json_path path_of(const json_path *base, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static json_path path_of(const json_path *base, const char *format, ...) {
    json_path p = {""};
    size_t n = 0;
    if (base != NULL) {
        n = (size_t)snprintf(p.text, sizeof p.text, "%s", base->text);
    }
    va_list args;
    va_start(args, format);
    vsnprintf(p.text + n, sizeof p.text - n, format, args);
    va_end(args);
    return p;
}

static weft_status no_memory(weft_error *err) {
    return error_set(err, WEFT_ERR_MEMORY, "no memory for the vocabulary");
}

/* ---- members ---- */

static load_string text_of(const json_t *value) {
    return (load_string){json_string_value(value), json_string_length(value)};
}

static const char *type_name(const json_t *value) {
    static const char *const names[] = {"an object", "an array", "a text", "a number",
                                        "a number",  "true",     "false",  "null"};
    return value == NULL ? "missing" : names[json_typeof(value)];
}

static weft_status wrong_type(const json_path *at, const char *key, const json_t *value,
                              const char *expected, weft_error *err) {
    return error_set(err, WEFT_ERR_FILE, "tokenizer.json: %s%s is %s, expected %s", at->text, key,
                     type_name(value), expected);
}

/* A flag; `absent` is its value where the file says nothing, -1: it must. */
static weft_status read_flag(const json_t *object, const json_path *at, const char *key, int absent,
                             bool *out, weft_error *err) {
    const json_t *value = json_object_get(object, key);
    if (value == NULL && absent >= 0) {
        *out = absent == 1;
        return WEFT_OK;
    }
    if (!json_is_boolean(value)) {
        json_path p = path_of(at, ".");
        return wrong_type(&p, key, value, "true or false", err);
    }
    *out = json_is_true(value);
    return WEFT_OK;
}

/* A text; data NULL where it may be missing or null, and is. */
static weft_status read_text(const json_t *object, const json_path *at, const char *key,
                             bool required, load_string *out, weft_error *err) {
    const json_t *value = json_object_get(object, key);
    if (!required && (value == NULL || json_is_null(value))) {
        *out = (load_string){0};
        return WEFT_OK;
    }
    if (!json_is_string(value)) {
        json_path p = path_of(at, ".");
        return wrong_type(&p, key, value, "a text", err);
    }
    *out = text_of(value);
    return WEFT_OK;
}

static weft_status read_count(const json_t *object, const json_path *at, const char *key,
                              int32_t *out, weft_error *err) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > MAX_ID) {
        return error_set(err, WEFT_ERR_FILE, "tokenizer.json: %s.%s is no number from 0 to %d",
                         at->text, key, MAX_ID);
    }
    *out = (int32_t)json_integer_value(value);
    return WEFT_OK;
}

/* Refuses members that are not among `known`, names with one blank around each. */
static weft_status check_members(json_t *object, const json_path *at, const char *known,
                                 weft_error *err) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        char wanted[64], shown[64];
        snprintf(wanted, sizeof wanted, " %s ", key);
        if (strlen(key) > 60 || strchr(key, ' ') != NULL || strstr(known, wanted) == NULL) {
            return error_set(err, WEFT_ERR_FILE, "tokenizer.json: %s.%s is not known to weft",
                             at->text, string_show((load_string){key, strlen(key)}, shown));
        }
    }
    return WEFT_OK;
}

static weft_status refuse_type(const json_path *at, load_string type, const char *known,
                               weft_error *err) {
    char shown[64];
    return error_set(err, WEFT_ERR_FILE,
                     "tokenizer.json: %s.type \"%s\" is not supported, known: %s", at->text,
                     string_show(type, shown), known);
}

/* {"String": text} or {"Regex": pattern}. An empty text matches nowhere: *out NULL. */
static weft_status read_pattern(const json_t *object, const json_path *at, regex **out,
                                weft_error *err) {
    json_t *pattern = json_object_get(object, "pattern");
    json_path p = path_of(at, ".pattern");
    const json_t *literal = json_object_get(pattern, "String"),
                 *source = json_object_get(pattern, "Regex");
    const json_t *value = literal != NULL ? literal : source;
    *out = NULL;
    if (json_object_size(pattern) != 1 || !json_is_string(value)) {
        return error_set(err, WEFT_ERR_FILE,
                         "tokenizer.json: %s is neither {\"String\": text} nor {\"Regex\": text}",
                         p.text);
    }
    if (literal == NULL) {
        json_path named = path_of(NULL, "tokenizer.json: %s.Regex", p.text);
        return regex_open(text_of(value), named.text, out, err);
    }
    return json_string_length(literal) > 0 ? regex_open_literal(text_of(literal), out, err)
                                           : WEFT_OK;
}

/* One character. */
static weft_status read_character(const json_t *object, const json_path *at, const char *key,
                                  load_string *out, weft_error *err) {
    weft_status status = read_text(object, at, key, true, out, err);
    if (status == WEFT_OK &&
        (out->bytes == 0 || utf8_first_bytes(out->data, out->bytes) != out->bytes)) {
        status = error_set(err, WEFT_ERR_FILE, "tokenizer.json: %s.%s is not one character",
                           at->text, key);
    }
    return status;
}

/* Calls `each` for a step, or for every step of a Sequence, whose list is member `list`. */
typedef weft_status (*step_fn)(reader *r, json_t *step, const json_path *at, load_string type);
static weft_status walk(reader *r, json_t *step, const json_path *at, const char *list,
                        step_fn each, int depth) {
    load_string type;
    if (!json_is_object(step)) {
        return wrong_type(at, "", step, "an object or null", r->err);
    }
    weft_status status = read_text(step, at, "type", true, &type, r->err);
    if (status != WEFT_OK || !string_is(type, "Sequence")) {
        return status != WEFT_OK ? status : each(r, step, at, type);
    }
    json_t *steps = json_object_get(step, list);
    char members[40];
    snprintf(members, sizeof members, " type %s ", list);
    if ((status = check_members(step, at, members, r->err)) != WEFT_OK) {
        return status;
    }
    if (depth == MAX_NESTED) {
        return error_set(r->err, WEFT_ERR_FILE, "tokenizer.json: %s: more than %d sequences nested",
                         at->text, MAX_NESTED);
    }
    if (!json_is_array(steps)) {
        json_path p = path_of(at, ".");
        return wrong_type(&p, list, steps, "an array", r->err);
    }
    for (size_t i = 0; i < json_array_size(steps) && status == WEFT_OK; i++) {
        json_path p = path_of(at, ".%s[%zu]", list, i);
        status = walk(r, json_array_get(steps, i), &p, list, each, depth + 1);
    }
    return status;
}

static weft_status walk_member(reader *r, const char *key, const char *list, step_fn each) {
    json_t *step = json_object_get(r->root, key);
    json_path at = path_of(NULL, "%s", key);
    return step == NULL || json_is_null(step) ? WEFT_OK : walk(r, step, &at, list, each, 0);
}

static weft_status keep_text(reader *r, load_string text, load_string *out) {
    *out = string_copy(&r->t->arena, text);
    return out->data != NULL ? WEFT_OK : no_memory(r->err);
}

/* ---- normalizer ---- */

static weft_status norm_replace(reader *r, json_t *step, const json_path *at) {
    norm_step out = {.kind = NORM_REPLACE};
    load_string content;
    weft_status status;
    if ((status = check_members(step, at, " type pattern content ", r->err)) != WEFT_OK ||
        (status = read_text(step, at, "content", true, &content, r->err)) != WEFT_OK ||
        (status = keep_text(r, content, &out.content)) != WEFT_OK ||
        (status = read_pattern(step, at, &out.pattern, r->err)) != WEFT_OK) {
        return status;
    }
    return out.pattern == NULL ? WEFT_OK : tok_add_norm(r->t, out, r->err);
}

static weft_status norm_prepend(reader *r, json_t *step, const json_path *at) {
    norm_step out = {.kind = NORM_PREPEND};
    load_string content;
    weft_status status;
    if ((status = check_members(step, at, " type prepend ", r->err)) != WEFT_OK ||
        (status = read_text(step, at, "prepend", true, &content, r->err)) != WEFT_OK ||
        (status = keep_text(r, content, &out.content)) != WEFT_OK) {
        return status;
    }
    return tok_add_norm(r->t, out, r->err);
}

static weft_status norm_strip(reader *r, json_t *step, const json_path *at) {
    norm_step out = {.kind = NORM_STRIP};
    weft_status status;
    if ((status = check_members(step, at, " type strip_left strip_right ", r->err)) != WEFT_OK ||
        (status = read_flag(step, at, "strip_left", -1, &out.left, r->err)) != WEFT_OK ||
        (status = read_flag(step, at, "strip_right", -1, &out.right, r->err)) != WEFT_OK) {
        return status;
    }
    return tok_add_norm(r->t, out, r->err);
}

static weft_status read_norm(reader *r, json_t *step, const json_path *at, load_string type) {
    static const struct {
        const char *type;
        norm_step step;
    } plain[] = {
        {"NFC", {.kind = NORM_FORM, .compose = true}},
        {"NFD", {.kind = NORM_FORM}},
        {"NFKC", {.kind = NORM_FORM, .compose = true, .compat = true}},
        {"NFKD", {.kind = NORM_FORM, .compat = true}},
        {"Lowercase", {.kind = NORM_LOWERCASE}},
        {"StripAccents", {.kind = NORM_STRIP_ACCENTS}},
    };
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (string_is(type, plain[i].type)) {
            weft_status status = check_members(step, at, " type ", r->err);
            return status != WEFT_OK ? status : tok_add_norm(r->t, plain[i].step, r->err);
        }
    }
    if (string_is(type, "Replace")) {
        return norm_replace(r, step, at);
    }
    if (string_is(type, "Prepend")) {
        return norm_prepend(r, step, at);
    }
    if (string_is(type, "Strip")) {
        return norm_strip(r, step, at);
    }
    return refuse_type(at, type,
                       "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Replace, Prepend, Strip, "
                       "Sequence",
                       r->err);
}

/* ---- pre_tokenizer ---- */

static weft_status read_behavior(const json_t *step, const json_path *at, cut_behavior *out,
                                 weft_error *err) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    load_string name;
    weft_status status = read_text(step, at, "behavior", true, &name, err);
    if (status != WEFT_OK) {
        return status;
    }
    for (int i = 0; i < 5; i++) {
        if (string_is(name, names[i])) {
            *out = (cut_behavior)i;
            return WEFT_OK;
        }
    }
    char shown[64];
    return error_set(err, WEFT_ERR_FILE,
                     "tokenizer.json: %s.behavior is \"%s\", expected Removed, Isolated, "
                     "MergedWithPrevious, MergedWithNext or Contiguous",
                     at->text, string_show(name, shown));
}

static weft_status add_cut(reader *r, const char *pattern, cut_behavior behavior, bool invert) {
    pretok_step out = {.kind = PRETOK_CUT, .behavior = behavior, .invert = invert};
    weft_status status =
        regex_open((load_string){pattern, strlen(pattern)}, "pre_tokenizer", &out.pattern, r->err);
    return status != WEFT_OK ? status : tok_add_pretok(r->t, out, r->err);
}

static weft_status pretok_split(reader *r, json_t *step, const json_path *at) {
    pretok_step out = {.kind = PRETOK_CUT};
    weft_status status;
    if ((status = check_members(step, at, " type pattern behavior invert ", r->err)) != WEFT_OK ||
        (status = read_behavior(step, at, &out.behavior, r->err)) != WEFT_OK ||
        (status = read_flag(step, at, "invert", 0, &out.invert, r->err)) != WEFT_OK ||
        (status = read_pattern(step, at, &out.pattern, r->err)) != WEFT_OK) {
        return status;
    }
    if (out.pattern == NULL) { /* the whole piece lies between matches */
        return out.invert && out.behavior == CUT_REMOVED
                   ? error_set(r->err, WEFT_ERR_FILE,
                               "tokenizer.json: %s.pattern is empty and would remove all text",
                               at->text)
                   : WEFT_OK;
    }
    return tok_add_pretok(r->t, out, r->err);
}

static weft_status pretok_byte_level(reader *r, json_t *step, const json_path *at) {
    bool prefix, cuts;
    weft_status status;
    if ((status = check_members(step, at, " type add_prefix_space trim_offsets use_regex ",
                                r->err)) != WEFT_OK ||
        (status = read_flag(step, at, "add_prefix_space", -1, &prefix, r->err)) != WEFT_OK ||
        (status = read_flag(step, at, "use_regex", 1, &cuts, r->err)) != WEFT_OK) {
        return status;
    }
    if (prefix) {
        static const load_string blank = {" ", 1};
        status =
            tok_add_pretok(r->t, (pretok_step){.kind = PRETOK_PREFIX, .content = blank}, r->err);
    }
    if (status == WEFT_OK && cuts) {
        status = add_cut(r, pretok_gpt2, CUT_ISOLATED, false);
    }
    return status != WEFT_OK ? status
                             : tok_add_pretok(r->t, (pretok_step){.kind = PRETOK_BYTES}, r->err);
}

static weft_status read_scheme(const json_t *step, const json_path *at, bool *prefix, bool *first,
                               weft_error *err) {
    load_string scheme;
    bool old;
    weft_status status = read_text(step, at, "prepend_scheme", false, &scheme, err);
    if (status == WEFT_OK) { /* the form before there were schemes */
        status = read_flag(step, at, "add_prefix_space", 1, &old, err);
    }
    if (status != WEFT_OK) {
        return status;
    }
    *first = scheme.data != NULL && string_is(scheme, "first");
    *prefix = scheme.data == NULL ? old : string_is(scheme, "always") || *first;
    if (scheme.data != NULL && !*prefix && !string_is(scheme, "never")) {
        char shown[64];
        return error_set(err, WEFT_ERR_FILE,
                         "tokenizer.json: %s.prepend_scheme is \"%s\", expected always, first or "
                         "never",
                         at->text, string_show(scheme, shown));
    }
    if (*prefix && !old) {
        return error_set(err, WEFT_ERR_FILE,
                         "tokenizer.json: %s.add_prefix_space is false, which prepend_scheme "
                         "contradicts",
                         at->text);
    }
    return WEFT_OK;
}

#define METASPACE_MEMBERS " type replacement str_rep add_prefix_space prepend_scheme split "

static weft_status pretok_metaspace(reader *r, json_t *step, const json_path *at) {
    static const load_string blank = {" ", 1};
    load_string character;
    bool prefix, first, split;
    pretok_step replace = {.kind = PRETOK_REPLACE}, cut = {.behavior = CUT_MERGED_WITH_NEXT};
    weft_status status;
    if ((status = check_members(step, at, METASPACE_MEMBERS, r->err)) != WEFT_OK ||
        (status = read_character(step, at, "replacement", &character, r->err)) != WEFT_OK ||
        (status = read_scheme(step, at, &prefix, &first, r->err)) != WEFT_OK ||
        (status = read_flag(step, at, "split", 1, &split, r->err)) != WEFT_OK ||
        (status = keep_text(r, character, &replace.content)) != WEFT_OK ||
        (status = regex_open_literal(blank, &replace.pattern, r->err)) != WEFT_OK ||
        (status = tok_add_pretok(r->t, replace, r->err)) != WEFT_OK) {
        return status;
    }
    if (prefix) {
        pretok_step add = {.kind = PRETOK_PREFIX, .first_only = first, .content = replace.content};
        status = tok_add_pretok(r->t, add, r->err);
    }
    if (status != WEFT_OK || !split) {
        return status;
    }
    status = regex_open_literal(replace.content, &cut.pattern, r->err);
    return status != WEFT_OK ? status : tok_add_pretok(r->t, cut, r->err);
}

/* Punctuation of ASCII and of Unicode. */
#define PUNCTUATION "[\\p{P}!-/:-@\\[-`{-~]"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}"

static weft_status pretok_simple(reader *r, json_t *step, const json_path *at, load_string type,
                                 bool *known) {
    weft_status status;
    *known = true;
    if (string_is(type, "Digits")) {
        bool single = true;
        status = check_members(step, at, " type individual_digits ", r->err);
        if (status == WEFT_OK) {
            status = read_flag(step, at, "individual_digits", -1, &single, r->err);
        }
        return status != WEFT_OK ? status
                                 : add_cut(r, single ? "\\p{N}" : "\\p{N}+", CUT_ISOLATED, false);
    }
    if (string_is(type, "Punctuation")) {
        cut_behavior behavior = CUT_ISOLATED;
        status = check_members(step, at, " type behavior ", r->err);
        if (status == WEFT_OK && json_object_get(step, "behavior") != NULL) {
            status = read_behavior(step, at, &behavior, r->err);
        }
        return status != WEFT_OK ? status : add_cut(r, PUNCTUATION, behavior, false);
    }
    *known = string_is(type, "Whitespace") || string_is(type, "WhitespaceSplit") ||
             string_is(type, "BertPreTokenizer");
    status = *known ? check_members(step, at, " type ", r->err) : WEFT_OK;
    if (!*known || status != WEFT_OK) {
        return status;
    }
    if (string_is(type, "Whitespace")) {
        return add_cut(r, "[" WORD "]+|[^\\s" WORD "]+", CUT_REMOVED, true);
    }
    status = add_cut(r, "\\s", CUT_REMOVED, false);
    return status != WEFT_OK || string_is(type, "WhitespaceSplit")
               ? status
               : add_cut(r, PUNCTUATION, CUT_ISOLATED, false);
}

static weft_status read_pretok(reader *r, json_t *step, const json_path *at, load_string type) {
    if (string_is(type, "Split")) {
        return pretok_split(r, step, at);
    }
    if (string_is(type, "ByteLevel")) {
        return pretok_byte_level(r, step, at);
    }
    if (string_is(type, "Metaspace")) {
        return pretok_metaspace(r, step, at);
    }
    bool known;
    weft_status status = pretok_simple(r, step, at, type, &known);
    return known ? status
                 : refuse_type(at, type,
                               "ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, "
                               "WhitespaceSplit, BertPreTokenizer, Sequence",
                               r->err);
}

/* ---- model ---- */

static weft_status bad_id(const json_path *at, const json_t *value, weft_error *err) {
    if (json_is_integer(value)) {
        return error_set(err, WEFT_ERR_FILE,
                         "tokenizer.json: %s has the id %" JSON_INTEGER_FORMAT ", expected 0 to %d",
                         at->text, json_integer_value(value), MAX_ID);
    }
    return wrong_type(at, "", value, "an id", err);
}

static bool is_id(const json_t *value) {
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) <= MAX_ID;
}

/* The largest id, and the bytes of all texts. */
static weft_status measure(reader *r, json_t *vocab, json_t *added, size_t *bytes) {
    const char *key;
    json_t *value;
    size_t i;
    json_int_t last = -1;
    *bytes = 1;
    json_object_foreach(vocab, key, value) {
        char shown[64];
        if (!is_id(value)) {
            json_path p = path_of(NULL, "model.vocab \"%s\"",
                                  string_show((load_string){key, strlen(key)}, shown));
            return bad_id(&p, value, r->err);
        }
        last = json_integer_value(value) > last ? json_integer_value(value) : last;
        *bytes += strlen(key);
    }
    json_array_foreach(added, i, value) {
        const json_t *id = json_object_get(value, "id");
        if (!is_id(id)) {
            json_path p = path_of(NULL, "added_tokens[%zu]", i);
            return bad_id(&p, id, r->err);
        }
        last = json_integer_value(id) > last ? json_integer_value(id) : last;
        *bytes += json_string_length(json_object_get(value, "content"));
    }
    r->t->n_token = (int32_t)last + 1;
    return WEFT_OK;
}

static weft_status take_vocab(reader *r, json_t *vocab, char **to) {
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

static weft_status take_added(reader *r, json_t *value, const json_path *at, json_t *vocab,
                              char **to) {
    tok *t = r->t;
    tok_added a = {.id = (int32_t)json_integer_value(json_object_get(value, "id"))};
    load_string content;
    weft_status status;
    if ((status =
             check_members(value, at, " id content single_word lstrip rstrip normalized special ",
                           r->err)) != WEFT_OK ||
        (status = read_text(value, at, "content", true, &content, r->err)) != WEFT_OK ||
        (status = read_flag(value, at, "special", 0, &a.special, r->err)) != WEFT_OK ||
        (status = read_flag(value, at, "normalized", !a.special, &a.normalized, r->err)) !=
            WEFT_OK ||
        (status = read_flag(value, at, "lstrip", 0, &a.lstrip, r->err)) != WEFT_OK ||
        (status = read_flag(value, at, "rstrip", 0, &a.rstrip, r->err)) != WEFT_OK ||
        (status = read_flag(value, at, "single_word", 0, &a.single_word, r->err)) != WEFT_OK) {
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

static weft_status take_tokens(reader *r, json_t *vocab) {
    tok *t = r->t;
    json_t *added = json_object_get(r->root, "added_tokens");
    json_path at = path_of(NULL, "added_tokens");
    if (added != NULL && !json_is_null(added) && !json_is_array(added)) {
        return wrong_type(&at, "", added, "an array", r->err);
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
        return no_memory(r->err);
    }
    memset(t->type, LOAD_TOKEN_UNUSED, (size_t)t->n_token);
    status = take_vocab(r, vocab, &to);
    for (size_t i = 0; i < n_added && status == WEFT_OK; i++) {
        json_path p = path_of(&at, "[%zu]", i);
        status = take_added(r, json_array_get(added, i), &p, vocab, &to);
    }
    return status;
}

/* A merge is "left right", or ["left", "right"]. */
static bool read_merge(const json_t *value, bpe_merge *out) {
    if (json_is_string(value)) {
        load_string m = text_of(value);
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
    *out = (bpe_merge){text_of(left), text_of(right)};
    return json_array_size(value) == 2 && json_string_length(left) > 0 &&
           json_string_length(right) > 0;
}

static weft_status take_merges(reader *r, const json_t *merges) {
    json_path at = path_of(NULL, "model.merges");
    size_t n = json_array_size(merges);
    if (!json_is_array(merges)) {
        return wrong_type(&at, "", merges, "an array", r->err);
    }
    if (n > INT32_MAX / 4) {
        return error_set(r->err, WEFT_ERR_FILE, "tokenizer.json: model.merges has %zu entries", n);
    }
    bpe_merge *merge = load_arena_take(&r->t->arena, n + 1, sizeof *merge);
    if (merge == NULL) {
        return no_memory(r->err);
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
    json_path at = path_of(NULL, "model");
    for (int i = 0; i < 2; i++) {
        load_string text;
        weft_status status = read_text(model, &at, texts[i], false, &text, err);
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

static weft_status read_unk(reader *r, const json_t *model, const json_t *vocab) {
    json_path at = path_of(NULL, "model");
    load_string unk;
    weft_status status = read_text(model, &at, "unk_token", false, &unk, r->err);
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

static weft_status check_model_type(const json_t *model, const json_path *at, weft_error *err) {
    load_string type;
    weft_status status = read_text(model, at, "type", false, &type, err);
    if (status != WEFT_OK) {
        return status;
    }
    if (type.data == NULL) { /* files of 2020 have none; only BPE has merges */
        return json_object_get(model, "merges") != NULL
                   ? WEFT_OK
                   : error_set(err, WEFT_ERR_FILE,
                               "tokenizer.json: model has neither type nor merges, known: BPE");
    }
    return string_is(type, "BPE") ? WEFT_OK : refuse_type(at, type, "BPE", err);
}

static weft_status read_model(reader *r) {
    json_t *model = json_object_get(r->root, "model");
    json_path at = path_of(NULL, "model");
    if (!json_is_object(model)) {
        return wrong_type(&at, "", model, "an object", r->err);
    }
    weft_status status = check_model_type(model, &at, r->err);
    if (status != WEFT_OK) {
        return status;
    }
    json_t *vocab = json_object_get(model, "vocab");
    bool whole = false;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0) {
        return wrong_type(&at, ".vocab", vocab, "an object with tokens", r->err);
    }
    if ((status = check_members(model, &at,
                                " type dropout unk_token continuing_subword_prefix "
                                "end_of_word_suffix fuse_unk byte_fallback ignore_merges vocab "
                                "merges ",
                                r->err)) != WEFT_OK ||
        (status = check_off(model, r->err)) != WEFT_OK ||
        (status = read_flag(model, &at, "fuse_unk", 0, &r->bpe.fuse_unk, r->err)) != WEFT_OK ||
        (status = read_flag(model, &at, "byte_fallback", 0, &r->bpe.byte_fallback, r->err)) !=
            WEFT_OK ||
        (status = read_flag(model, &at, "ignore_merges", 0, &whole, r->err)) != WEFT_OK ||
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
static weft_status grow(reader *r, int32_t **list, int32_t *n, int32_t id, bool front) {
    int32_t *grown = load_arena_take(&r->t->arena, (size_t)*n + 1, sizeof *grown);
    if (id >= r->t->n_token) {
        return error_set(r->err, WEFT_ERR_FILE,
                         "tokenizer.json: post_processor has the id %d; the vocabulary has %d "
                         "tokens",
                         id, r->t->n_token);
    }
    if (grown == NULL) {
        return no_memory(r->err);
    }
    for (int32_t i = 0; i < *n; i++) {
        grown[i + front] = (*list)[i];
    }
    grown[front ? 0 : *n] = id;
    *list = grown;
    (*n)++;
    return WEFT_OK;
}

static weft_status read_template_token(reader *r, json_t *step, const json_path *at,
                                       const json_t *part, id_list *out) {
    load_string name;
    weft_status status = read_text(part, at, "id", true, &name, r->err);
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
        if (!is_id(id)) {
            json_path p = path_of(at, ".special_tokens \"%s\"", string_show(name, shown));
            return bad_id(&p, id, r->err);
        }
        if (!id_list_push(out, (int32_t)json_integer_value(id))) {
            return no_memory(r->err);
        }
    }
    return WEFT_OK;
}

/* Appends the ids of `single` to out; *at_text says how many stand in front of the text. */
static weft_status read_template(reader *r, json_t *step, const json_path *at, id_list *out,
                                 size_t *at_text) {
    const json_t *single = json_object_get(step, "single");
    json_path p = path_of(at, ".single");
    int n_text = 0;
    size_t i;
    const json_t *part;
    if (!json_is_array(single)) {
        return wrong_type(&p, "", single, "an array", r->err);
    }
    json_array_foreach(single, i, part) {
        const json_t *token = json_object_get(part, "SpecialToken");
        const json_t *text = json_object_get(part, "Sequence");
        json_path q = path_of(&p, "[%zu]", i);
        if (token != NULL) {
            weft_status status = read_template_token(r, step, at, token, out);
            if (status != WEFT_OK) {
                return status;
            }
            continue;
        }
        const json_t *name = json_object_get(text, "id");
        if (!json_is_string(name) || !string_is(text_of(name), "A")) {
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

static weft_status post_template(reader *r, json_t *step, const json_path *at) {
    id_list ids = {0};
    size_t at_text = 0;
    weft_status status = check_members(step, at, " type single pair special_tokens ", r->err);
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
static weft_status post_pair(reader *r, json_t *step, const json_path *at) {
    static const char *const keys[] = {"cls", "sep"};
    weft_status status =
        check_members(step, at, " type sep cls trim_offsets add_prefix_space ", r->err);
    for (int i = 0; i < 2 && status == WEFT_OK; i++) {
        const json_t *id = json_array_get(json_object_get(step, keys[i]), 1);
        if (!is_id(id)) {
            json_path p = path_of(at, ".%s", keys[i]);
            return bad_id(&p, id, r->err);
        }
        int32_t value = (int32_t)json_integer_value(id);
        status = i == 0 ? grow(r, &r->t->lead, &r->t->n_lead, value, true)
                        : grow(r, &r->t->trail, &r->t->n_trail, value, false);
    }
    return status;
}

static weft_status read_post(reader *r, json_t *step, const json_path *at, load_string type) {
    if (string_is(type, "ByteLevel")) { /* moves offsets only */
        return check_members(step, at, " type add_prefix_space trim_offsets use_regex ", r->err);
    }
    if (string_is(type, "TemplateProcessing")) {
        return post_template(r, step, at);
    }
    if (string_is(type, "RobertaProcessing") || string_is(type, "BertProcessing")) {
        return post_pair(r, step, at);
    }
    return refuse_type(at, type,
                       "TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing, Sequence",
                       r->err);
}

/* ---- decoder ---- */

/* A decoder works on each token by itself until one joins them. */
typedef enum decode_phase { DECODE_TOKENS, DECODE_BYTES, DECODE_TEXT } decode_phase;

typedef struct decoder_reader {
    reader base; /* first: a step_fn gets it */
    decode_phase phase;
    bool any;
} decoder_reader;

/* Every token's piece becomes what the step makes of it, in one block. */
typedef weft_status (*piece_fn)(reader *r, load_string piece, const void *step, text_buf *out);
static weft_status map_pieces(reader *r, piece_fn each, const void *step) {
    tok *t = r->t;
    text_buf all = {0};
    weft_status status = WEFT_OK;
    size_t *end = malloc(((size_t)t->n_token + 1) * sizeof *end);
    if (end == NULL) {
        return no_memory(r->err);
    }
    for (int32_t id = 0; id < t->n_token && status == WEFT_OK; id++) {
        if (t->text[id].data != NULL) {
            status = each(r, t->decoder.piece[id], step, &all);
        }
        end[id] = all.n;
    }
    char *block = status == WEFT_OK ? load_arena_take(&t->arena, all.n + 1, 1) : NULL;
    if (block != NULL) {
        if (all.n > 0) {
            memcpy(block, all.data, all.n);
        }
        for (int32_t id = 0; id < t->n_token; id++) {
            size_t begin = id > 0 ? end[id - 1] : 0;
            t->decoder.piece[id] = (load_string){block + begin, end[id] - begin};
        }
    } else if (status == WEFT_OK) {
        status = no_memory(r->err);
    }
    free(end);
    text_buf_free(&all);
    return status;
}

typedef struct replace_step {
    regex *pattern;
    regex_run *run;
    load_string content;
} replace_step;

static weft_status replace_piece(reader *r, load_string piece, const void *step, text_buf *out) {
    const replace_step *s = step;
    return regex_replace(s->pattern, s->run, piece, s->content, out, r->err);
}

static weft_status alphabet_piece(reader *r, load_string piece, const void *step, text_buf *out) {
    (void)step;
    size_t n = 0;
    if (!text_buf_reserve(out, piece.bytes)) {
        return no_memory(r->err);
    }
    if (!alphabet_decode(piece, out->data + out->n, &n)) {
        return text_buf_add(out, piece.data, piece.bytes) ? WEFT_OK : no_memory(r->err);
    }
    out->n += n;
    return WEFT_OK;
}

typedef struct strip_step {
    load_string content;
    int32_t n_start, n_end;
} strip_step;

static weft_status strip_piece(reader *r, load_string piece, const void *step, text_buf *out) {
    const strip_step *s = step;
    size_t k = s->content.bytes;
    for (int32_t i = 0;
         i < s->n_start && piece.bytes >= k && memcmp(piece.data, s->content.data, k) == 0; i++) {
        piece.data += k;
        piece.bytes -= k;
    }
    for (int32_t i = 0; i < s->n_end && piece.bytes >= k &&
                        memcmp(piece.data + piece.bytes - k, s->content.data, k) == 0;
         i++) {
        piece.bytes -= k;
    }
    return text_buf_add(out, piece.data, piece.bytes) ? WEFT_OK : no_memory(r->err);
}

static weft_status decode_replace(reader *r, json_t *step, const json_path *at) {
    replace_step s = {0};
    weft_status status;
    if ((status = check_members(step, at, " type pattern content ", r->err)) != WEFT_OK ||
        (status = read_text(step, at, "content", true, &s.content, r->err)) != WEFT_OK ||
        (status = read_pattern(step, at, &s.pattern, r->err)) != WEFT_OK || s.pattern == NULL) {
        return status;
    }
    status = regex_run_open(&s.run, r->err);
    if (status == WEFT_OK) {
        status = map_pieces(r, replace_piece, &s);
    }
    regex_run_close(s.run);
    regex_close(s.pattern);
    return status;
}

static weft_status decode_metaspace(reader *r, json_t *step, const json_path *at) {
    static const load_string blank = {" ", 1};
    load_string character;
    bool prefix, first;
    replace_step s = {.content = blank};
    weft_status status;
    if ((status = check_members(step, at, METASPACE_MEMBERS, r->err)) != WEFT_OK ||
        (status = read_character(step, at, "replacement", &character, r->err)) != WEFT_OK ||
        (status = read_scheme(step, at, &prefix, &first, r->err)) != WEFT_OK ||
        (status = regex_open_literal(character, &s.pattern, r->err)) != WEFT_OK) {
        return status;
    }
    if (prefix) {
        status = keep_text(r, character, &r->t->decoder.drop_first);
    }
    if (status == WEFT_OK) {
        status = map_pieces(r, replace_piece, &s);
    }
    regex_close(s.pattern);
    return status;
}

static weft_status decode_strip(decoder_reader *d, json_t *step, const json_path *at) {
    reader *r = &d->base;
    decoder *out = &r->t->decoder;
    strip_step s;
    weft_status status;
    if ((status = check_members(step, at, " type content start stop ", r->err)) != WEFT_OK ||
        (status = read_character(step, at, "content", &s.content, r->err)) != WEFT_OK ||
        (status = read_count(step, at, "start", &s.n_start, r->err)) != WEFT_OK ||
        (status = read_count(step, at, "stop", &s.n_end, r->err)) != WEFT_OK) {
        return status;
    }
    if (d->phase == DECODE_TOKENS) {
        return map_pieces(r, strip_piece, &s);
    }
    if (out->n_strip_start > 0 || out->n_strip_end > 0) {
        return error_set(r->err, WEFT_ERR_FILE,
                         "tokenizer.json: %s: a second Strip of the whole text is not supported",
                         at->text);
    }
    out->strip_point = utf8_point((const uint8_t *)s.content.data, (int)s.content.bytes);
    out->n_strip_start = s.n_start;
    out->n_strip_end = s.n_end;
    return WEFT_OK;
}

static weft_status decode_byte_fallback(reader *r, json_t *step, const json_path *at) {
    tok *t = r->t;
    weft_status status = check_members(step, at, " type ", r->err);
    if (status != WEFT_OK) {
        return status;
    }
    t->decoder.byte = load_arena_take(&t->arena, (size_t)t->n_token + 1, sizeof *t->decoder.byte);
    char *bytes = load_arena_take(&t->arena, 256, 1);
    if (t->decoder.byte == NULL || bytes == NULL) {
        return no_memory(r->err);
    }
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
    }
    for (int32_t id = 0; id < t->n_token; id++) {
        int byte = t->text[id].data != NULL ? tok_byte_token(t->decoder.piece[id]) : -1;
        t->decoder.byte[id] = (int16_t)byte;
        if (byte >= 0) {
            t->decoder.piece[id] = (load_string){bytes + byte, 1};
        }
    }
    return WEFT_OK;
}

/* Which step may stand where: what works on single tokens comes before what joins them. */
static weft_status read_decoder(reader *r, json_t *step, const json_path *at, load_string type) {
    decoder_reader *d = (decoder_reader *)r;
    bool first = !d->any;
    decode_phase phase = d->phase;
    d->any = true;
    if (string_is(type, "Fuse")) {
        d->phase = DECODE_TEXT;
        return check_members(step, at, " type ", r->err);
    }
    if (string_is(type, "Strip") && phase != DECODE_BYTES) {
        return decode_strip(d, step, at);
    }
    if (string_is(type, "Replace") && phase == DECODE_TOKENS) {
        return decode_replace(r, step, at);
    }
    if (string_is(type, "ByteFallback") && phase == DECODE_TOKENS) {
        d->phase = DECODE_BYTES;
        return decode_byte_fallback(r, step, at);
    }
    if (string_is(type, "Metaspace") && first) {
        d->phase = DECODE_BYTES;
        return decode_metaspace(r, step, at);
    }
    if (string_is(type, "ByteLevel") && phase == DECODE_TOKENS) {
        d->phase = DECODE_TEXT;
        weft_status status =
            check_members(step, at, " type add_prefix_space trim_offsets use_regex ", r->err);
        return status != WEFT_OK ? status : map_pieces(r, alphabet_piece, NULL);
    }
    return refuse_type(at, type,
                       "ByteLevel; or Replace and Strip, ByteFallback, Fuse, Strip in this order; "
                       "or Metaspace, Fuse",
                       r->err);
}

static weft_status read_decoders(reader *r) {
    tok *t = r->t;
    for (int32_t id = 0; id < t->n_token; id++) {
        t->decoder.piece[id] = t->text[id];
    }
    decoder_reader d = {.base = *r};
    weft_status status = walk_member(&d.base, "decoder", "decoders", read_decoder);
    return status != WEFT_OK || d.any
               ? status
               : error_set(r->err, WEFT_ERR_FILE,
                           "tokenizer.json: decoder is missing; known: ByteLevel, or a Sequence");
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

static weft_status check_root(const reader *r) {
    json_path at = path_of(NULL, "(the file)");
    if (!json_is_object(r->root)) {
        return wrong_type(&at, "", r->root, "an object", r->err);
    }
    static const char *const limits[] = {"truncation", "padding"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(r->root, limits[i]);
        if (value != NULL && !json_is_null(value)) {
            log_warn("tokenizer.json: %s belongs to training and is not used", limits[i]);
        }
    }
    return check_members(r->root, &at,
                         " version truncation padding added_tokens normalizer pre_tokenizer "
                         "post_processor decoder model ",
                         r->err);
}

weft_status tok_from_json(tok *t, const load_vocab *vocab, weft_error *err) {
    json_error_t wrong;
    reader r = {.t = t, .err = err};
    r.root = json_loadb(vocab->tokenizer_json.data, vocab->tokenizer_json.bytes,
                        JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &wrong);
    if (r.root == NULL) {
        return error_set_at(err, WEFT_ERR_FILE, wrong.position,
                            "tokenizer.json: line %d, column %d: %s", wrong.line, wrong.column,
                            wrong.text);
    }
    weft_status status;
    if ((status = check_root(&r)) == WEFT_OK && (status = read_model(&r)) == WEFT_OK &&
        (status = walk_member(&r, "normalizer", "normalizers", read_norm)) == WEFT_OK &&
        (status = walk_member(&r, "pre_tokenizer", "pretokenizers", read_pretok)) == WEFT_OK &&
        (status = walk_member(&r, "post_processor", "processors", read_post)) == WEFT_OK) {
        status = check_first(t, err);
    }
    if (status == WEFT_OK) {
        status = read_decoders(&r);
    }
    json_decref(r.root);
    return status;
}
