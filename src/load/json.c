#include "load/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load/mapping.h"
#include "load/text.h"

static weft_status read_bytes(const void *bytes, size_t n_bytes, size_t flags, const char *what,
                              int64_t base, json_t **out, weft_error *err) {
    json_error_t why;
    json_t *v = json_loadb(n_bytes > 0 ? bytes : "", n_bytes, JSON_REJECT_DUPLICATES | flags, &why);
    if (v == NULL) {
        char text[240];
        text_show(text_of(why.text), text, sizeof text);
        return error_set_at(err, WEFT_ERR_FILE, base + why.position, "%s is no JSON object: %s",
                            what, text);
    }
    if (!json_is_object(v)) {
        json_decref(v);
        return error_set_at(err, WEFT_ERR_FILE, base,
                            "%s is no JSON object: it is another JSON value", what);
    }
    *out = v;
    return WEFT_OK;
}

weft_status json_read(const void *bytes, size_t n_bytes, const char *what, int64_t base,
                      json_t **out, weft_error *err) {
    return read_bytes(bytes, n_bytes, 0, what, base, out, err);
}

static weft_status read_file(const char *path, const char *shown, size_t max_bytes, size_t flags,
                             json_t **out, weft_error *err) {
    const void *bytes;
    size_t n_bytes;
    weft_status s = load_map_file(path, &bytes, &n_bytes, err);
    if (s != WEFT_OK) {
        return s;
    }
    weft_error what;
    if (n_bytes > max_bytes) {
        s = error_set(&what, WEFT_ERR_FILE, "the file has %zu bytes, expected at most %zu", n_bytes,
                      max_bytes);
    } else {
        s = read_bytes(bytes, n_bytes, flags, "the file", 0, out, &what);
    }
    load_unmap_file(bytes, n_bytes);
    return s == WEFT_OK ? s : load_name_error(shown, &what, err);
}

weft_status json_read_file(const char *path, const char *shown, size_t max_bytes, json_t **out,
                           weft_error *err) {
    return read_file(path, shown, max_bytes, 0, out, err);
}

weft_status json_read_settings(const char *path, const char *shown, size_t max_bytes, json_t **out,
                               weft_error *err) {
    return read_file(path, shown, max_bytes, JSON_DECODE_INT_AS_REAL, out, err);
}

bool json_as_integer(const json_t *v, int64_t *out) {
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    double r = json_real_value(v);
    if (!json_is_real(v) || !(fabs(r) <= 0x1p53) || r != (double)(int64_t)r) {
        return false;
    }
    *out = (int64_t)r;
    return true;
}

load_string json_text(const json_t *v) {
    return (load_string){json_string_value(v), json_string_length(v)};
}

/* The shortest form that reads as the same number. */
static void put_real(text_sink *s, double r) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, r);
        if (strtod(text, NULL) == r) {
            break;
        }
    }
    text_put(s, text);
    text_put(s, strpbrk(text, ".e") == NULL ? ".0" : ""); /* no integer, in the file either */
}

static void put_plain(text_sink *s, const json_t *v) {
    char text[32];
    switch (json_typeof(v)) {
    case JSON_STRING:
        text_put_string(s, json_text(v));
        break;
    case JSON_INTEGER:
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        text_put(s, text);
        break;
    case JSON_REAL:
        put_real(s, json_real_value(v));
        break;
    case JSON_ARRAY:
        text_put(s, json_array_size(v) > 0 ? "[...]" : "[]");
        break;
    case JSON_OBJECT:
        text_put(s, json_object_size(v) > 0 ? "{...}" : "{}");
        break;
    default:
        text_put(s, json_is_true(v) ? "true" : json_is_false(v) ? "false" : "null");
    }
}

void json_show(const json_t *v, char *out, size_t out_bytes) {
    enum { N_SHOWN = 8 };
    text_sink s;
    if (!text_sink_init(&s, out, out_bytes)) {
        return;
    }
    if (!json_is_array(v)) {
        put_plain(&s, v);
        return;
    }
    char head[32];
    size_t n = json_array_size(v);
    snprintf(head, sizeof head, "%zu x [", n);
    text_put(&s, head);
    for (size_t i = 0; i < n && i < N_SHOWN && !s.full; i++) {
        text_put(&s, i > 0 ? ", " : "");
        put_plain(&s, json_array_get(v, i));
    }
    text_put(&s, n > N_SHOWN ? ", ...]" : "]");
}
