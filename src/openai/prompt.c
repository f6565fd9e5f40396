/* Prompts: text, ids, or lists of either. */
#include "openai/field.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_text(openai_reader *r, const char *param, const json_t *v, openai_prompt *out) {
    if (!json_is_string(v)) {
        return openai_refuse_kind(r, param, v, "a string");
    }
    size_t n = json_string_length(v);
    if (n == 0 && r->q->kind == OPENAI_COMPLETION) {
        return openai_refuse(r, param, "%s is empty", param);
    }
    out->text = malloc(n + 1); /* a NUL behind it, and perhaps in it */
    if (out->text == NULL) {
        return openai_refuse_memory(r);
    }
    memcpy(out->text, json_string_value(v), n);
    out->text[n] = '\0';
    out->bytes = n;
    return true;
}

static bool read_id_list(openai_reader *r, const char *param, const json_t *v, openai_prompt *out) {
    size_t n = json_array_size(v);
    bool prompt = r->q->kind == OPENAI_COMPLETION;
    int32_t most = r->limits->max_model_len;
    if (!json_is_array(v)) {
        return openai_refuse_kind(r, param, v, "a list of token ids");
    }
    if (n == 0 && prompt) {
        return openai_refuse(r, param, "%s is empty", param);
    }
    if (n > (size_t)most) {
        return openai_refuse(r, param, "%s has %zu tokens, expected at most %d", param, n, most);
    }
    out->id = malloc((n > 0 ? n : 1) * sizeof *out->id);
    if (out->id == NULL) {
        return openai_refuse_memory(r);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *e = json_array_get(v, i);
        int64_t id = json_is_integer(e) ? json_integer_value(e) : -1;
        if (id < 0 || id >= r->limits->n_vocab) {
            char at[64];
            snprintf(at, sizeof at, "%s[%zu]", param, i);
            if (!openai_read_integer(r, at, e, 0, r->limits->n_vocab - 1, &id)) {
                return false;
            }
        }
        out->id[i] = (int32_t)id;
    }
    out->n_id = (int32_t)n;
    return true;
}

static bool prompts_make(openai_reader *r, size_t n) {
    r->q->prompt = calloc(n, sizeof *r->q->prompt);
    r->q->n_prompt = r->q->prompt != NULL ? (int32_t)n : 0;
    return r->q->prompt != NULL || openai_refuse_memory(r);
}

/* Of strings or of lists of ids, as the first item says. */
static bool read_list(openai_reader *r, const json_t *v) {
    size_t n = json_array_size(v);
    if (n > (size_t)r->limits->max_prompt) {
        return openai_refuse(r, "prompt", "prompt holds %zu prompts, expected at most %d", n,
                             r->limits->max_prompt);
    }
    if (!prompts_make(r, n)) {
        return false;
    }
    bool text = json_is_string(json_array_get(v, 0));
    for (size_t i = 0; i < n; i++) {
        char at[64];
        snprintf(at, sizeof at, "prompt[%zu]", i);
        const json_t *e = json_array_get(v, i);
        if (text ? !read_text(r, at, e, &r->q->prompt[i])
                 : !read_id_list(r, at, e, &r->q->prompt[i])) {
            return false;
        }
    }
    return true;
}

bool openai_read_prompt(openai_reader *r) {
    const json_t *v = openai_field(r, "prompt");
    if (v == NULL) {
        return openai_refuse(r, "prompt", "prompt is missing");
    }
    if (r->q->kind == OPENAI_TOKENIZE || json_is_string(v)) {
        return prompts_make(r, 1) && read_text(r, "prompt", v, &r->q->prompt[0]);
    }
    if (!json_is_array(v)) {
        return openai_refuse_kind(r, "prompt", v, "a string, token ids, or a list of either");
    }
    const json_t *first = json_array_get(v, 0);
    if (first == NULL) {
        return openai_refuse(r, "prompt", "prompt is empty");
    }
    if (json_is_string(first) || json_is_array(first)) {
        return read_list(r, v);
    }
    return prompts_make(r, 1) && read_id_list(r, "prompt", v, &r->q->prompt[0]);
}

bool openai_read_ids(openai_reader *r) {
    const json_t *v = openai_field(r, "tokens");
    if (v == NULL) {
        return openai_refuse(r, "tokens", "tokens is missing");
    }
    return prompts_make(r, 1) && read_id_list(r, "tokens", v, &r->q->prompt[0]);
}
