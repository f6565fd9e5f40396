#include "load/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} types[GGUF_N_TYPE] = {
    [GGUF_U8] = {"UINT8", 1},    [GGUF_I8] = {"INT8", 1},    [GGUF_U16] = {"UINT16", 2},
    [GGUF_I16] = {"INT16", 2},   [GGUF_U32] = {"UINT32", 4}, [GGUF_I32] = {"INT32", 4},
    [GGUF_F32] = {"FLOAT32", 4}, [GGUF_BOOL] = {"BOOL", 1},  [GGUF_STRING] = {"STRING", 0},
    [GGUF_ARRAY] = {"ARRAY", 0}, [GGUF_U64] = {"UINT64", 8}, [GGUF_I64] = {"INT64", 8},
    [GGUF_F64] = {"FLOAT64", 8},
};

const char *gguf_type_name(gguf_type t) {
    return types[t].name;
}

size_t gguf_type_bytes(gguf_type t) {
    return types[t].bytes;
}

/* Values stand packed, so none may be read through a pointer of its type. */
uint32_t gguf_load_u32(const uint8_t *at) {
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

uint64_t gguf_load_u64(const uint8_t *at) {
    uint64_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static load_string string_at(const uint8_t *at) {
    return (load_string){(const char *)at + 8, (size_t)gguf_load_u64(at)};
}

int64_t gguf_offset(const gguf_file *f, const gguf_value *v) {
    return v->at - f->bytes;
}

weft_status gguf_get(const gguf_file *f, const char *key, gguf_type type, bool is_array,
                     bool required, const gguf_value **out, weft_error *err) {
    const gguf_value *v = gguf_find(f, key);
    if (v == NULL && required) {
        return error_set(err, WEFT_ERR_FILE, "%s is missing, expected %s%s", key,
                         is_array ? "an array of " : "", gguf_type_name(type));
    }
    if (v != NULL && (v->type != type || v->is_array != is_array)) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(f, v),
                            "%s is %s value type %d (%s), expected %s%s (%d)", key,
                            v->is_array ? "an array of" : "of", (int)v->type,
                            gguf_type_name(v->type), is_array ? "an array of " : "",
                            gguf_type_name(type), (int)type);
    }
    *out = v;
    return WEFT_OK;
}

uint32_t gguf_u32(const gguf_value *v) {
    return gguf_load_u32(v->at);
}

float gguf_f32(const gguf_value *v) {
    float f;
    memcpy(&f, v->at, sizeof f);
    return f;
}

bool gguf_bool(const gguf_value *v) {
    return v->at[0] != 0;
}

load_string gguf_string(const gguf_value *v) {
    return string_at(v->at);
}

void gguf_strings(const gguf_value *v, load_string *out) {
    const uint8_t *at = v->at;
    for (uint64_t i = 0; i < v->n; i++) {
        out[i] = string_at(at);
        at += 8 + out[i].bytes;
    }
}

/* An integer of 1, 2, 4 or 8 bytes; false for other types. */
static bool integer_at(gguf_type type, const uint8_t *at, int64_t *i, uint64_t *u) {
    uint64_t raw = 0;
    memcpy(&raw, at, gguf_type_bytes(type));
    switch (type) {
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
        *u = raw;
        return true;
    case GGUF_I8:
        *i = (int8_t)raw;
        return true;
    case GGUF_I16:
        *i = (int16_t)raw;
        return true;
    case GGUF_I32:
        *i = (int32_t)raw;
        return true;
    case GGUF_I64:
        *i = (int64_t)raw;
        return true;
    default:
        return false;
    }
}

static bool is_signed(gguf_type t) {
    return t == GGUF_I8 || t == GGUF_I16 || t == GGUF_I32 || t == GGUF_I64;
}

static bool number_at(gguf_type type, const uint8_t *at, double *out) {
    int64_t i = 0;
    uint64_t u = 0;
    if (type == GGUF_F32) {
        float f;
        memcpy(&f, at, sizeof f);
        *out = (double)f;
    } else if (type == GGUF_F64) {
        memcpy(out, at, sizeof *out);
    } else if (type == GGUF_BOOL) {
        *out = at[0];
    } else if (integer_at(type, at, &i, &u)) {
        *out = is_signed(type) ? (double)i : (double)u;
    } else {
        return false;
    }
    return true;
}

bool gguf_element_integer(const gguf_value *v, uint64_t i, int64_t *out) {
    uint64_t u = 0;
    if (!integer_at(v->type, v->at + i * gguf_type_bytes(v->type), out, &u)) {
        return false;
    }
    if (!is_signed(v->type)) {
        *out = u > INT64_MAX ? INT64_MAX : (int64_t)u;
    }
    return true;
}

load_string gguf_element_string(const gguf_value *v, uint64_t i) {
    const uint8_t *at = v->at;
    for (uint64_t k = 0; k < i; k++) {
        at += 8 + string_at(at).bytes;
    }
    return string_at(at);
}

bool gguf_number(const gguf_value *v, double *out) {
    return !v->is_array && number_at(v->type, v->at, out);
}

/* ---- text form ---- */

static void put_element(text_sink *s, gguf_type type, const uint8_t *at) {
    char text[64];
    int64_t i = 0;
    uint64_t u = 0;
    double d;
    if (type == GGUF_STRING) {
        text_put_string(s, string_at(at));
        return;
    }
    if (type == GGUF_BOOL) {
        snprintf(text, sizeof text, "%s", at[0] != 0 ? "true" : "false");
    } else if (integer_at(type, at, &i, &u)) {
        if (is_signed(type)) {
            snprintf(text, sizeof text, "%" PRId64, i);
        } else {
            snprintf(text, sizeof text, "%" PRIu64, u);
        }
    } else {
        d = 0;
        number_at(type, at, &d);
        snprintf(text, sizeof text, type == GGUF_F32 ? "%.9g" : "%.17g", d);
    }
    text_put(s, text);
}

void gguf_element_text(const gguf_value *v, uint64_t i, char *out, size_t out_bytes) {
    text_sink s;
    if (!text_sink_init(&s, out, out_bytes)) {
        return;
    }
    if (v->type == GGUF_STRING) {
        text_put_string(&s, gguf_element_string(v, i));
    } else {
        put_element(&s, v->type, v->at + i * gguf_type_bytes(v->type));
    }
}

void gguf_value_text(const gguf_value *v, char *out, size_t out_bytes) {
    enum { N_SHOWN = 8 };
    text_sink s;
    if (!text_sink_init(&s, out, out_bytes)) {
        return;
    }
    if (!v->is_array) {
        put_element(&s, v->type, v->at);
        return;
    }
    char head[64];
    snprintf(head, sizeof head, "%" PRIu64 " x %s [", v->n, gguf_type_name(v->type));
    text_put(&s, head);
    const uint8_t *at = v->at;
    for (uint64_t i = 0; i < v->n && i < N_SHOWN && !s.full; i++) {
        text_put(&s, i > 0 ? ", " : "");
        put_element(&s, v->type, at);
        at += v->type == GGUF_STRING ? 8 + string_at(at).bytes : gguf_type_bytes(v->type);
    }
    text_put(&s, v->n > N_SHOWN ? ", ...]" : "]");
}
