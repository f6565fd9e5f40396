#include "tok/tokjson.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NESTED = 8 };

tokjson_path tokjson_path_of(const tokjson_path *base, const char *format, ...) {
    tokjson_path p = {""};
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

weft_status tokjson_no_memory(weft_error *err) {
    return error_set(err, WEFT_ERR_MEMORY, "no memory for the vocabulary");
}

/* ---- members ---- */

load_string tokjson_text_of(const json_t *value) {
    return (load_string){json_string_value(value), json_string_length(value)};
}

static const char *type_name(const json_t *value) {
    static const char *const names[] = {"an object", "an array", "a text", "a number",
                                        "a number",  "true",     "false",  "null"};
    return value == NULL ? "missing" : names[json_typeof(value)];
}

weft_status tokjson_wrong_type(const tokjson_path *at, const char *key, const json_t *value,
                               const char *expected, weft_error *err) {
    return error_set(err, WEFT_ERR_FILE, "tokenizer.json: %s%s is %s, expected %s", at->text, key,
                     type_name(value), expected);
}

/* A flag; `absent` is its value where the file says nothing, -1: it must. */
weft_status tokjson_flag(const json_t *object, const tokjson_path *at, const char *key, int absent,
                         bool *out, weft_error *err) {
    const json_t *value = json_object_get(object, key);
    if (value == NULL && absent >= 0) {
        *out = absent == 1;
        return WEFT_OK;
    }
    if (!json_is_boolean(value)) {
        tokjson_path p = tokjson_path_of(at, ".");
        return tokjson_wrong_type(&p, key, value, "true or false", err);
    }
    *out = json_is_true(value);
    return WEFT_OK;
}

/* A text; data NULL where it may be missing or null, and is. */
weft_status tokjson_text(const json_t *object, const tokjson_path *at, const char *key,
                         bool required, load_string *out, weft_error *err) {
    const json_t *value = json_object_get(object, key);
    if (!required && (value == NULL || json_is_null(value))) {
        *out = (load_string){0};
        return WEFT_OK;
    }
    if (!json_is_string(value)) {
        tokjson_path p = tokjson_path_of(at, ".");
        return tokjson_wrong_type(&p, key, value, "a text", err);
    }
    *out = tokjson_text_of(value);
    return WEFT_OK;
}

weft_status tokjson_count(const json_t *object, const tokjson_path *at, const char *key,
                          int32_t *out, weft_error *err) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > TOKJSON_MAX_ID) {
        return error_set(err, WEFT_ERR_FILE, "tokenizer.json: %s.%s is no number from 0 to %d",
                         at->text, key, TOKJSON_MAX_ID);
    }
    *out = (int32_t)json_integer_value(value);
    return WEFT_OK;
}

/* Refuses members that are not among `known`, names with one blank around each. */
weft_status tokjson_check_members(json_t *object, const tokjson_path *at, const char *known,
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

weft_status tokjson_refuse_type(const tokjson_path *at, load_string type, const char *known,
                                weft_error *err) {
    char shown[64];
    return error_set(err, WEFT_ERR_FILE,
                     "tokenizer.json: %s.type \"%s\" is not supported, known: %s", at->text,
                     string_show(type, shown), known);
}

/* {"String": text} or {"Regex": pattern}. An empty text matches nowhere: *out NULL. */
weft_status tokjson_pattern(const json_t *object, const tokjson_path *at, regex **out,
                            weft_error *err) {
    json_t *pattern = json_object_get(object, "pattern");
    tokjson_path p = tokjson_path_of(at, ".pattern");
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
        tokjson_path named = tokjson_path_of(NULL, "tokenizer.json: %s.Regex", p.text);
        return regex_open(tokjson_text_of(value), named.text, out, err);
    }
    return json_string_length(literal) > 0 ? regex_open_literal(tokjson_text_of(literal), out, err)
                                           : WEFT_OK;
}

/* One character. */
weft_status tokjson_character(const json_t *object, const tokjson_path *at, const char *key,
                              load_string *out, weft_error *err) {
    weft_status status = tokjson_text(object, at, key, true, out, err);
    if (status == WEFT_OK &&
        (out->bytes == 0 || utf8_first_bytes(out->data, out->bytes) != out->bytes)) {
        status = error_set(err, WEFT_ERR_FILE, "tokenizer.json: %s.%s is not one character",
                           at->text, key);
    }
    return status;
}

static weft_status walk(tokjson_reader *r, json_t *step, const tokjson_path *at, const char *list,
                        tokjson_step_fn each, int depth) {
    load_string type;
    if (!json_is_object(step)) {
        return tokjson_wrong_type(at, "", step, "an object or null", r->err);
    }
    weft_status status = tokjson_text(step, at, "type", true, &type, r->err);
    if (status != WEFT_OK || !string_is(type, "Sequence")) {
        return status != WEFT_OK ? status : each(r, step, at, type);
    }
    json_t *steps = json_object_get(step, list);
    char members[40];
    snprintf(members, sizeof members, " type %s ", list);
    if ((status = tokjson_check_members(step, at, members, r->err)) != WEFT_OK) {
        return status;
    }
    if (depth == MAX_NESTED) {
        return error_set(r->err, WEFT_ERR_FILE, "tokenizer.json: %s: more than %d sequences nested",
                         at->text, MAX_NESTED);
    }
    if (!json_is_array(steps)) {
        tokjson_path p = tokjson_path_of(at, ".");
        return tokjson_wrong_type(&p, list, steps, "an array", r->err);
    }
    for (size_t i = 0; i < json_array_size(steps) && status == WEFT_OK; i++) {
        tokjson_path p = tokjson_path_of(at, ".%s[%zu]", list, i);
        status = walk(r, json_array_get(steps, i), &p, list, each, depth + 1);
    }
    return status;
}

weft_status tokjson_walk_member(tokjson_reader *r, const char *key, const char *list,
                                tokjson_step_fn each) {
    json_t *step = json_object_get(r->root, key);
    tokjson_path at = tokjson_path_of(NULL, "%s", key);
    return step == NULL || json_is_null(step) ? WEFT_OK : walk(r, step, &at, list, each, 0);
}

weft_status tokjson_keep(tokjson_reader *r, load_string text, load_string *out) {
    *out = string_copy(&r->t->arena, text);
    return out->data != NULL ? WEFT_OK : tokjson_no_memory(r->err);
}

/* ---- parts of several steps ---- */

weft_status tokjson_scheme(const json_t *step, const tokjson_path *at, bool *prefix, bool *first,
                           weft_error *err) {
    load_string scheme;
    bool old;
    weft_status status = tokjson_text(step, at, "prepend_scheme", false, &scheme, err);
    if (status == WEFT_OK) { /* the form before there were schemes */
        status = tokjson_flag(step, at, "add_prefix_space", 1, &old, err);
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

weft_status tokjson_bad_id(const tokjson_path *at, const json_t *value, weft_error *err) {
    if (json_is_integer(value)) {
        return error_set(err, WEFT_ERR_FILE,
                         "tokenizer.json: %s has the id %" JSON_INTEGER_FORMAT ", expected 0 to %d",
                         at->text, json_integer_value(value), TOKJSON_MAX_ID);
    }
    return tokjson_wrong_type(at, "", value, "an id", err);
}

bool tokjson_is_id(const json_t *value) {
    return json_is_integer(value) && json_integer_value(value) >= 0 &&
           json_integer_value(value) <= TOKJSON_MAX_ID;
}
