/* normalizer and pre_tokenizer of a tokenizer.json. */
#include "tok/tokjson.h"

#include <stdio.h>
#include <string.h>

/* ---- normalizer ---- */

static weft_status norm_replace(tokjson_reader *r, json_t *step, const tokjson_path *at) {
    norm_step out = {.kind = NORM_REPLACE};
    load_string content;
    weft_status status;
    if ((status = tokjson_check_members(step, at, " type pattern content ", r->err)) != WEFT_OK ||
        (status = tokjson_text(step, at, "content", true, &content, r->err)) != WEFT_OK ||
        (status = tokjson_keep(r, content, &out.content)) != WEFT_OK ||
        (status = tokjson_pattern(step, at, &out.pattern, r->err)) != WEFT_OK) {
        return status;
    }
    return out.pattern == NULL ? WEFT_OK : tok_add_norm(r->t, out, r->err);
}

static weft_status norm_prepend(tokjson_reader *r, json_t *step, const tokjson_path *at) {
    norm_step out = {.kind = NORM_PREPEND};
    load_string content;
    weft_status status;
    if ((status = tokjson_check_members(step, at, " type prepend ", r->err)) != WEFT_OK ||
        (status = tokjson_text(step, at, "prepend", true, &content, r->err)) != WEFT_OK ||
        (status = tokjson_keep(r, content, &out.content)) != WEFT_OK) {
        return status;
    }
    return tok_add_norm(r->t, out, r->err);
}

static weft_status norm_strip(tokjson_reader *r, json_t *step, const tokjson_path *at) {
    norm_step out = {.kind = NORM_STRIP};
    weft_status status;
    if ((status = tokjson_check_members(step, at, " type strip_left strip_right ", r->err)) !=
            WEFT_OK ||
        (status = tokjson_flag(step, at, "strip_left", -1, &out.left, r->err)) != WEFT_OK ||
        (status = tokjson_flag(step, at, "strip_right", -1, &out.right, r->err)) != WEFT_OK) {
        return status;
    }
    return tok_add_norm(r->t, out, r->err);
}

weft_status tokjson_read_norm(tokjson_reader *r, json_t *step, const tokjson_path *at,
                              load_string type) {
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
            weft_status status = tokjson_check_members(step, at, " type ", r->err);
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
    return tokjson_refuse_type(
        at, type,
        "NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Replace, Prepend, Strip, "
        "Sequence",
        r->err);
}

/* ---- pre_tokenizer ---- */

static weft_status read_behavior(const json_t *step, const tokjson_path *at, cut_behavior *out,
                                 weft_error *err) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    load_string name;
    weft_status status = tokjson_text(step, at, "behavior", true, &name, err);
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

static weft_status add_cut(tokjson_reader *r, const char *pattern, cut_behavior behavior,
                           bool invert) {
    pretok_step out = {.kind = PRETOK_CUT, .behavior = behavior, .invert = invert};
    weft_status status =
        regex_open((load_string){pattern, strlen(pattern)}, "pre_tokenizer", &out.pattern, r->err);
    return status != WEFT_OK ? status : tok_add_pretok(r->t, out, r->err);
}

static weft_status pretok_split(tokjson_reader *r, json_t *step, const tokjson_path *at) {
    pretok_step out = {.kind = PRETOK_CUT};
    weft_status status;
    if ((status = tokjson_check_members(step, at, " type pattern behavior invert ", r->err)) !=
            WEFT_OK ||
        (status = read_behavior(step, at, &out.behavior, r->err)) != WEFT_OK ||
        (status = tokjson_flag(step, at, "invert", 0, &out.invert, r->err)) != WEFT_OK ||
        (status = tokjson_pattern(step, at, &out.pattern, r->err)) != WEFT_OK) {
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

static weft_status pretok_byte_level(tokjson_reader *r, json_t *step, const tokjson_path *at) {
    bool prefix, cuts;
    weft_status status;
    if ((status = tokjson_check_members(step, at, " type add_prefix_space trim_offsets use_regex ",
                                        r->err)) != WEFT_OK ||
        (status = tokjson_flag(step, at, "add_prefix_space", -1, &prefix, r->err)) != WEFT_OK ||
        (status = tokjson_flag(step, at, "use_regex", 1, &cuts, r->err)) != WEFT_OK) {
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

static weft_status pretok_metaspace(tokjson_reader *r, json_t *step, const tokjson_path *at) {
    static const load_string blank = {" ", 1};
    load_string character;
    bool prefix, first, split;
    pretok_step replace = {.kind = PRETOK_REPLACE}, cut = {.behavior = CUT_MERGED_WITH_NEXT};
    weft_status status;
    if ((status = tokjson_check_members(step, at, TOKJSON_METASPACE, r->err)) != WEFT_OK ||
        (status = tokjson_character(step, at, "replacement", &character, r->err)) != WEFT_OK ||
        (status = tokjson_scheme(step, at, &prefix, &first, r->err)) != WEFT_OK ||
        (status = tokjson_flag(step, at, "split", 1, &split, r->err)) != WEFT_OK ||
        (status = tokjson_keep(r, character, &replace.content)) != WEFT_OK ||
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

static weft_status pretok_simple(tokjson_reader *r, json_t *step, const tokjson_path *at,
                                 load_string type, bool *known) {
    weft_status status;
    *known = true;
    if (string_is(type, "Digits")) {
        bool single = true;
        status = tokjson_check_members(step, at, " type individual_digits ", r->err);
        if (status == WEFT_OK) {
            status = tokjson_flag(step, at, "individual_digits", -1, &single, r->err);
        }
        return status != WEFT_OK ? status
                                 : add_cut(r, single ? "\\p{N}" : "\\p{N}+", CUT_ISOLATED, false);
    }
    if (string_is(type, "Punctuation")) {
        cut_behavior behavior = CUT_ISOLATED;
        status = tokjson_check_members(step, at, " type behavior ", r->err);
        if (status == WEFT_OK && json_object_get(step, "behavior") != NULL) {
            status = read_behavior(step, at, &behavior, r->err);
        }
        return status != WEFT_OK ? status : add_cut(r, PUNCTUATION, behavior, false);
    }
    *known = string_is(type, "Whitespace") || string_is(type, "WhitespaceSplit") ||
             string_is(type, "BertPreTokenizer");
    status = *known ? tokjson_check_members(step, at, " type ", r->err) : WEFT_OK;
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

weft_status tokjson_read_pretok(tokjson_reader *r, json_t *step, const tokjson_path *at,
                                load_string type) {
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
                 : tokjson_refuse_type(
                       at, type,
                       "ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, "
                       "WhitespaceSplit, BertPreTokenizer, Sequence",
                       r->err);
}
