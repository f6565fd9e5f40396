/* The container format GGUF v2 and v3: bytes -> keys with typed values, and tensor infos. Knows
 * nothing of models.
 *
 *   "GGUF" | u32 version | u64 n_tensor | u64 n_key
 *   n_key    x  string name | u32 type | value            string: u64 bytes | text, no NUL
 *   n_tensor x  string name | u32 n_dim | u64 dim[n_dim] | u32 type | u64 offset
 *   padding to the alignment, then the data section; offsets count from its start
 *
 * An array value is u32 element type | u64 n | elements. All little-endian, packed. */
#ifndef WEFT_LOAD_GGUF_H
#define WEFT_LOAD_GGUF_H

#include "load/text.h"

typedef enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_TYPE
} gguf_type;

typedef struct gguf_value {
    gguf_type type; /* of the elements when is_array */
    bool is_array;
    uint64_t n;        /* elements; 1 when no array */
    const uint8_t *at; /* the first element; a string starts with its length */
} gguf_value;

typedef struct gguf_file {
    const uint8_t *bytes; /* borrowed */
    size_t n_bytes;
    int32_t n_key, n_tensor;
    const load_string *key;         /* [n_key], NUL-terminated */
    const gguf_value *value;        /* [n_key] */
    const load_string *tensor_name; /* [n_tensor], NUL-terminated */
    const load_tensor *tensor;      /* [n_tensor], file order */
    text_table key_table, tensor_table;
} gguf_file;

/* Reads and checks everything but the models' meaning: afterwards every value and every tensor lies
 * inside the bytes, no name stands twice, no tensors overlap. Memory comes from the arena, which
 * the caller frees on failure too. `name` is for warnings. */
weft_status gguf_read(const void *bytes, size_t n_bytes, const char *name, load_arena *arena,
                      gguf_file *out, weft_error *err);

/* NULL when there is none. */
const gguf_value *gguf_find(const gguf_file *f, const char *key);
const load_tensor *gguf_find_tensor(const gguf_file *f, const char *name);

/* ---- values (value.c) ---- */

const char *gguf_type_name(gguf_type t);
size_t gguf_type_bytes(gguf_type t); /* 0 for strings and arrays */
uint32_t gguf_load_u32(const uint8_t *at);
uint64_t gguf_load_u64(const uint8_t *at);

/* The value of a key that must be of this type when it is there. *out = NULL when it is absent and
 * `required` is false. */
weft_status gguf_get(const gguf_file *f, const char *key, gguf_type type, bool is_array,
                     bool required, const gguf_value **out, weft_error *err);
/* Of a value that gguf_get has checked. */
uint32_t gguf_u32(const gguf_value *v);
float gguf_f32(const gguf_value *v);
bool gguf_bool(const gguf_value *v);
load_string gguf_string(const gguf_value *v);
/* All strings of an array, out: [v->n]. */
void gguf_strings(const gguf_value *v, load_string *out);
/* Element i < v->n (0 of a scalar). An integer of any type (what 63 bits do not hold: the largest);
 * false for other types. */
bool gguf_element_integer(const gguf_value *v, uint64_t i, int64_t *out);
load_string gguf_element_string(const gguf_value *v, uint64_t i); /* of strings only */
void gguf_element_text(const gguf_value *v, uint64_t i, char *out, size_t out_bytes);
/* A scalar number of any type as a double; false for strings and arrays. */
bool gguf_number(const gguf_value *v, double *out);
/* Where the value stands in the file, for errors. */
int64_t gguf_offset(const gguf_file *f, const gguf_value *v);
/* One line, cut with "...". */
void gguf_value_text(const gguf_value *v, char *out, size_t out_bytes);

#endif
