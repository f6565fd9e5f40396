/* The description of a model, read by key: GGUF metadata. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "load/model.h"

/* NULL when the key is absent and not required, or when *s says what is wrong. */
static const gguf_value *find(const load_model *m, const char *key, gguf_type type, bool is_array,
                              bool required, weft_status *s, weft_error *err) {
    const gguf_value *v = NULL;
    int32_t i = text_table_find(&m->file.key_table, text_of(key));
    if (i >= 0)
        m->key_read[i] = true;
    *s = gguf_get(&m->file, key, type, is_array, required, &v, err);
    return *s == WEFT_OK ? v : NULL;
}

bool load_has(const load_model *m, const char *key) {
    return gguf_find(&m->file, key) != NULL;
}

weft_status load_get_int(const load_model *m, const char *key, bool required, int32_t lo,
                         int32_t hi, int32_t *out, weft_error *err) {
    weft_status s;
    const gguf_value *v = find(m, key, GGUF_U32, false, required, &s, err);
    if (v == NULL)
        return s;
    int64_t n = gguf_u32(v);
    if (n < lo || n > hi)
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v),
                            "%s is %" PRId64 ", expected %d to %d", key, n, lo, hi);
    *out = (int32_t)n;
    return WEFT_OK;
}

weft_status load_get_real(const load_model *m, const char *key, bool required, double lo, double hi,
                          double *out, weft_error *err) {
    weft_status s;
    const gguf_value *v = find(m, key, GGUF_F32, false, required, &s, err);
    if (v == NULL)
        return s;
    double x = (double)gguf_f32(v);
    if (!(x >= lo && x <= hi))
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v),
                            "%s is %g, expected %g to %g", key, x, lo, hi);
    *out = x;
    return WEFT_OK;
}

weft_status load_get_flag(const load_model *m, const char *key, bool required, bool *out,
                          weft_error *err) {
    weft_status s;
    const gguf_value *v = find(m, key, GGUF_BOOL, false, required, &s, err);
    if (v != NULL)
        *out = gguf_bool(v);
    return s;
}

weft_status load_get_text(const load_model *m, const char *key, bool required, load_string *out,
                          weft_error *err) {
    weft_status s;
    const gguf_value *v = find(m, key, GGUF_STRING, false, required, &s, err);
    if (v != NULL)
        *out = gguf_string(v);
    return s;
}

int32_t load_array_length(const load_model *m, const char *key) {
    const gguf_value *v = gguf_find(&m->file, key);
    return v != NULL && v->is_array && v->n <= INT32_MAX ? (int32_t)v->n : -1;
}

/* An array with an entry i. */
static const gguf_value *array_of(const load_model *m, const char *key, gguf_type type, int32_t i,
                                  weft_status *s, weft_error *err) {
    const gguf_value *v = find(m, key, type, true, true, s, err);
    if (v == NULL || (i >= 0 && (uint64_t)i < v->n))
        return v;
    *s = error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v),
                      "%s has %" PRIu64 " entries, expected more than %d", key, v->n, i);
    return NULL;
}

weft_status load_array_int(const load_model *m, const char *key, int32_t i, int32_t lo, int32_t hi,
                           int32_t *out, weft_error *err) {
    weft_status s;
    const gguf_value *any = gguf_find(&m->file, key);
    gguf_type type = any != NULL && any->type == GGUF_BOOL  ? GGUF_BOOL
                     : any != NULL && any->type == GGUF_I32 ? GGUF_I32
                                                            : GGUF_U32;
    const gguf_value *v = array_of(m, key, type, i, &s, err);
    if (v == NULL)
        return s;
    int64_t n = v->at[type == GGUF_BOOL ? i : 4 * (int64_t)i];
    if (type != GGUF_BOOL) {
        uint32_t raw = gguf_load_u32(v->at + 4 * (size_t)i);
        n = type == GGUF_I32 ? (int64_t)(int32_t)raw : (int64_t)raw;
    }
    if (n < lo || n > hi)
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(&m->file, v),
                            "%s[%d] is %" PRId64 ", expected %d to %d", key, i, n, lo, hi);
    *out = (int32_t)n;
    return WEFT_OK;
}

weft_status load_array_text(const load_model *m, const char *key, int32_t i, load_string *out,
                            weft_error *err) {
    weft_status s;
    const gguf_value *v = array_of(m, key, GGUF_STRING, i, &s, err);
    if (v == NULL)
        return s;
    const uint8_t *at = v->at;
    for (int32_t k = 0; k < i; k++)
        at += 8 + gguf_load_u64(at);
    *out = (load_string){(const char *)at + 8, (size_t)gguf_load_u64(at)};
    return WEFT_OK;
}

weft_status load_refuse(const load_model *m, const char *key, const char *expected,
                        weft_error *err) {
    const gguf_value *v = gguf_find(&m->file, key);
    char value[100] = "absent";
    if (v != NULL)
        gguf_value_text(v, value, sizeof value);
    return error_set_at(err, WEFT_ERR_FILE, v != NULL ? gguf_offset(&m->file, v) : -1,
                        "%.100s is %s: weft does not compute this, expected %s", key, value,
                        expected);
}

int32_t load_key_count(const load_model *m) {
    return m->file.n_key;
}

const char *load_key_at(const load_model *m, int32_t i) {
    return m->file.key[i].data;
}

void load_value_text(const load_model *m, int32_t i, char *out, size_t out_bytes) {
    gguf_value_text(&m->file.value[i], out, out_bytes);
}

bool load_value_number(const load_model *m, int32_t i, double *out) {
    return gguf_number(&m->file.value[i], out);
}

bool load_key_is_read(const load_model *m, int32_t i) {
    return m->key_read[i];
}
