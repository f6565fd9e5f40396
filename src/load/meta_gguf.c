/* GGUF metadata as a description. */
#include "load/model.h"

static int32_t count(const load_model *m) {
    return m->file.n_key;
}

static int32_t find(const load_model *m, const char *key) {
    return text_table_find(&m->file.key_table, text_of(key));
}

static const char *key_at(const load_model *m, int32_t i) {
    return m->file.key[i].data;
}

static int32_t length(const load_model *m, int32_t i) {
    const gguf_value *v = &m->file.value[i];
    return v->is_array && v->n <= INT32_MAX ? (int32_t)v->n : -1;
}

static meta_value value(const load_model *m, int32_t i, int32_t e) {
    const gguf_value *v = &m->file.value[i];
    meta_value out = {.offset = gguf_offset(&m->file, v)};
    if (v->is_array && e < 0) {
        return out;
    }
    uint64_t at = v->is_array ? (uint64_t)e : 0;
    out.type = gguf_type_name(v->type);
    if (v->type == GGUF_STRING) {
        out.as = META_TEXT;
        out.text = gguf_element_string(v, at);
    } else if (v->type == GGUF_BOOL) {
        out.as = META_FLAG;
        out.i = v->at[at] != 0;
    } else if (gguf_element_integer(v, at, &out.i)) {
        out.as = META_INT;
    } else if (!v->is_array && gguf_number(v, &out.r)) {
        out.as = META_REAL;
    }
    return out;
}

static void text(const load_model *m, int32_t i, int32_t e, char *out, size_t out_bytes) {
    const gguf_value *v = &m->file.value[i];
    if (e < 0) {
        gguf_value_text(v, out, out_bytes);
    } else {
        gguf_element_text(v, (uint64_t)e, out, out_bytes);
    }
}

const load_meta meta_gguf = {count, find, key_at, length, value, text};
