/* Conversations: roles and texts. */
#include "openai/field.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "messages[3].content" */
typedef struct place {
    char name[48];
} place;

static place place_of(size_t message, const char *field) {
    place p;
    snprintf(p.name, sizeof p.name, "messages[%zu]%s", message, field);
    return p;
}

static bool read_role(openai_reader *r, size_t i, const json_t *message, char **out) {
    static const struct {
        const char *sent, *given;
    } role[] = {{"system", "system"},
                {"developer", "system"},
                {"user", "user"},
                {"assistant", "assistant"}};
    place at = place_of(i, ".role");
    const json_t *v = json_object_get(message, "role");
    if (!json_is_string(v)) {
        return v != NULL ? openai_refuse_kind(r, at.name, v, "a string")
                         : openai_refuse(r, at.name, "%s is missing", at.name);
    }
    if (openai_is_word(v, "tool") || openai_is_word(v, "function")) {
        return openai_refuse(r, at.name, "%s: tools are not supported by this server", at.name);
    }
    for (size_t k = 0; k < sizeof role / sizeof *role; k++) {
        if (openai_is_word(v, role[k].sent)) {
            *out = strdup(role[k].given);
            return *out != NULL || openai_refuse_memory(r);
        }
    }
    return openai_refuse(r, at.name, "%s is not system, developer, user or assistant", at.name);
}

/* The text of {"type": "text", "text": "..."}; NULL, and refused, for anything else. */
static const json_t *part_text(openai_reader *r, size_t i, size_t k, const json_t *part) {
    char at[64];
    snprintf(at, sizeof at, "messages[%zu].content[%zu]", i, k);
    if (!json_is_object(part)) {
        openai_refuse_kind(r, at, part, "an object");
        return NULL;
    }
    if (!openai_is_word(json_object_get(part, "type"), "text")) {
        strncat(at, ".type", sizeof at - strlen(at) - 1);
        openai_refuse(r, at, "%s is not \"text\": other parts are not supported by this server",
                      at);
        return NULL;
    }
    const json_t *text = json_object_get(part, "text");
    strncat(at, ".text", sizeof at - strlen(at) - 1);
    if (text == NULL) {
        openai_refuse(r, at, "%s is missing", at);
    } else if (!json_is_string(text)) {
        openai_refuse_kind(r, at, text, "a string");
    } else if (memchr(json_string_value(text), '\0', json_string_length(text)) != NULL) {
        openai_refuse(r, at, "%s holds a NUL character", at);
    } else {
        return text;
    }
    return NULL;
}

/* Parts are joined by newlines. */
static bool read_parts(openai_reader *r, size_t i, const json_t *parts, char **out) {
    size_t n = json_array_size(parts), bytes = 0;
    if (n == 0) {
        place at = place_of(i, ".content");
        return openai_refuse(r, at.name, "%s is an empty list", at.name);
    }
    for (size_t k = 0; k < n; k++) {
        const json_t *text = part_text(r, i, k, json_array_get(parts, k));
        if (text == NULL) {
            return false;
        }
        bytes += json_string_length(text) + 1;
    }
    *out = malloc(bytes);
    if (*out == NULL) {
        return openai_refuse_memory(r);
    }
    char *to = *out;
    for (size_t k = 0; k < n; k++) {
        const json_t *text = json_object_get(json_array_get(parts, k), "text");
        memcpy(to, json_string_value(text), json_string_length(text));
        to += json_string_length(text);
        *to++ = '\n';
    }
    to[-1] = '\0';
    return true;
}

static bool read_content(openai_reader *r, size_t i, const json_t *message, char **out) {
    place at = place_of(i, ".content");
    const json_t *v = json_object_get(message, "content");
    if (json_is_array(v)) {
        return read_parts(r, i, v, out);
    }
    if (v != NULL && !json_is_null(v)) {
        return json_is_string(v) ? openai_read_text(r, at.name, v, out)
                                 : openai_refuse_kind(r, at.name, v, "a string or a list of parts");
    }
    if (!openai_is_word(json_object_get(message, "role"), "assistant")) {
        return openai_refuse(r, at.name, "%s is missing", at.name);
    }
    *out = strdup("");
    return *out != NULL || openai_refuse_memory(r);
}

static bool read_message(openai_reader *r, size_t i, const json_t *message) {
    static const char *const call[] = {"tool_calls", "function_call"};
    if (!json_is_object(message)) {
        place at = place_of(i, "");
        return openai_refuse_kind(r, at.name, message, "an object");
    }
    for (size_t k = 0; k < sizeof call / sizeof *call; k++) {
        const json_t *v = json_object_get(message, call[k]);
        if (v != NULL && !json_is_null(v) && !(json_is_array(v) && json_array_size(v) == 0)) {
            place at = place_of(i, k == 0 ? ".tool_calls" : ".function_call");
            return openai_refuse(r, at.name, "%s: tools are not supported by this server", at.name);
        }
    }
    return read_role(r, i, message, &r->q->role[i]) &&
           read_content(r, i, message, &r->q->content[i]);
}

bool openai_read_messages(openai_reader *r) {
    openai_request *q = r->q;
    const json_t *v = openai_field(r, "messages");
    if (v == NULL) {
        return openai_refuse(r, "messages", "messages is missing");
    }
    if (!json_is_array(v)) {
        return openai_refuse_kind(r, "messages", v, "a list of messages");
    }
    size_t n = json_array_size(v);
    if (n == 0) {
        return openai_refuse(r, "messages", "messages is empty");
    }
    q->prompt = calloc(1, sizeof *q->prompt);
    q->role = calloc(n, sizeof *q->role);
    q->content = calloc(n, sizeof *q->content);
    if (q->prompt == NULL || q->role == NULL || q->content == NULL) {
        return openai_refuse_memory(r);
    }
    q->n_prompt = 1;
    q->n_message = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        if (!read_message(r, i, json_array_get(v, i))) {
            return false;
        }
    }
    return true;
}
