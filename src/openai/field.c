/* One field: its kind, its range, and the words of a refusal. */
#include "openai/field.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool openai_refuse(openai_reader *r, const char *param, const char *text, ...) {
    va_list args;
    va_start(args, text);
    openai_error_vset(r->err, 400, "invalid_request_error", param, text, args);
    va_end(args);
    return false;
}

bool openai_refuse_memory(openai_reader *r) {
    return openai_error_set(r->err, 503, "server_error", "", "no memory for the request");
}

static const char *kind_of(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        break;
    }
    return "null";
}

bool openai_refuse_kind(openai_reader *r, const char *param, const json_t *v,
                        const char *expected) {
    return openai_refuse(r, param, "%s is %s, expected %s", param, kind_of(v), expected);
}

const json_t *openai_field(const openai_reader *r, const char *name) {
    const json_t *v = json_object_get(r->root, name);
    return json_is_null(v) ? NULL : v;
}

bool openai_field_bool(openai_reader *r, const char *name, bool *out) {
    const json_t *v = openai_field(r, name);
    if (v != NULL && !json_is_boolean(v)) {
        return openai_refuse_kind(r, name, v, "true or false");
    }
    *out = v != NULL ? json_is_true(v) : *out;
    return true;
}

bool openai_field_integer(openai_reader *r, const char *name, int64_t min, int64_t max,
                          int64_t *out) {
    const json_t *v = openai_field(r, name);
    return v == NULL || openai_read_integer(r, name, v, min, max, out);
}

bool openai_read_integer(openai_reader *r, const char *param, const json_t *v, int64_t min,
                         int64_t max, int64_t *out) {
    if (!json_is_number(v)) {
        return openai_refuse_kind(r, param, v, "an integer");
    }
    int64_t i = json_integer_value(v);
    if (json_is_real(v)) {
        double real = json_real_value(v);
        if (!(fabs(real) <= 0x1p53) || real != (double)(int64_t)real) {
            return openai_refuse(r, param,
                                 "%s is %.17g, expected an integer from %" PRId64 " to %" PRId64,
                                 param, real, min, max);
        }
        i = (int64_t)real;
    }
    if (i < min || i > max) {
        return openai_refuse(r, param,
                             "%s is %" PRId64 ", expected an integer from %" PRId64 " to %" PRId64,
                             param, i, min, max);
    }
    *out = i;
    return true;
}

bool openai_read_text(openai_reader *r, const char *param, const json_t *v, char **out) {
    if (!json_is_string(v)) {
        return openai_refuse_kind(r, param, v, "a string");
    }
    size_t n = json_string_length(v);
    if (memchr(json_string_value(v), '\0', n) != NULL) {
        return openai_refuse(r, param, "%s holds a NUL character", param);
    }
    *out = strndup(json_string_value(v), n);
    return *out != NULL || openai_refuse_memory(r);
}

bool openai_is_word(const json_t *v, const char *word) {
    return json_is_string(v) && json_string_length(v) == strlen(word) &&
           memcmp(json_string_value(v), word, strlen(word)) == 0;
}
