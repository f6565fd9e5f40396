#include "load/gguf.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum {
    MAX_KEY_BYTES = 65535, /* the format's own limits */
    MAX_TENSOR_NAME_BYTES = 64,
    MAX_DIM = 4,
    MIN_ALIGNMENT = 8,
    MAX_ALIGNMENT = 65536,
    DEFAULT_ALIGNMENT = 32,
    /* The fewest bytes that an entry can take: with a name of one byte, and a value of one byte or
     * one dimension. */
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8
};

/* A cursor over the file. `subject` names what is being read, as parts that are put together only
 * for a message: "key" 3, "tensor" "blk.0.attn_q.weight". */
typedef struct reader {
    const uint8_t *bytes;
    size_t n_bytes, at;
    const char *what;  /* NULL: none */
    int64_t index;     /* -1: none */
    load_string named; /* data NULL: none */
    const char *file_name;
    load_arena *arena;
    weft_error *err;
} reader;

static weft_status fail(const reader *r, size_t at, const char *text, ...)
    __attribute__((format(printf, 3, 4)));

static weft_status fail(const reader *r, size_t at, const char *text, ...) {
    char body[400], name[160] = "", index[32] = "";
    va_list args;
    va_start(args, text);
    vsnprintf(body, sizeof body, text, args);
    va_end(args);
    if (r->named.data != NULL) {
        text_show(r->named, name, sizeof name);
    }
    if (r->index >= 0) {
        snprintf(index, sizeof index, "%" PRId64, r->index);
    }
    const char *what = r->what != NULL ? r->what : "";
    const char *space = what[0] != '\0' && (name[0] != '\0' || index[0] != '\0') ? " " : "";
    return error_set_at(r->err, WEFT_ERR_FILE, (int64_t)at, "%s%s%s%s: %s", what, space, name,
                        index, body);
}

static weft_status no_memory(const reader *r, size_t n, size_t item_bytes) {
    return error_set(r->err, WEFT_ERR_MEMORY, "no memory for %zu entries of %zu bytes", n,
                     item_bytes);
}

static void set_subject(reader *r, const char *what, int64_t index, load_string named) {
    r->what = what;
    r->index = index;
    r->named = named;
}

static const load_string nameless = {0};

static size_t left(const reader *r) {
    return r->n_bytes - r->at;
}

static weft_status skip(reader *r, uint64_t n) {
    if (n > left(r)) {
        return fail(r, r->at, "truncated: %" PRIu64 " bytes due at %zu, the file ends at %zu", n,
                    r->at, r->n_bytes);
    }
    r->at += (size_t)n;
    return WEFT_OK;
}

static weft_status read_u32(reader *r, uint32_t *out) {
    size_t at = r->at;
    weft_status s = skip(r, 4);
    if (s == WEFT_OK) {
        *out = gguf_load_u32(r->bytes + at);
    }
    return s;
}

static weft_status read_u64(reader *r, uint64_t *out) {
    size_t at = r->at;
    weft_status s = skip(r, 8);
    if (s == WEFT_OK) {
        *out = gguf_load_u64(r->bytes + at);
    }
    return s;
}

static weft_status skip_string(reader *r) {
    uint64_t n;
    weft_status s = read_u64(r, &n);
    return s == WEFT_OK ? skip(r, n) : s;
}

/* A key or tensor name, copied so that it ends with a NUL. */
static weft_status read_name(reader *r, size_t max_bytes, load_string *out) {
    size_t start = r->at;
    uint64_t n;
    weft_status s = read_u64(r, &n);
    if (s != WEFT_OK) {
        return s;
    }
    size_t text_at = r->at;
    if ((s = skip(r, n)) != WEFT_OK) {
        return s;
    }
    load_string raw = {(const char *)r->bytes + text_at, (size_t)n};
    if (n == 0) {
        return fail(r, start, "the name is empty");
    }
    if (n > max_bytes) {
        return fail(r, start, "the name has %" PRIu64 " bytes, expected at most %zu", n, max_bytes);
    }
    if (!text_is_plain(raw)) {
        char shown[160];
        text_show(raw, shown, sizeof shown);
        return fail(r, text_at, "the name %s is not UTF-8 text without control characters", shown);
    }
    char *copy = load_arena_take(r->arena, raw.bytes + 1, 1);
    if (copy == NULL) {
        return no_memory(r, raw.bytes + 1, 1);
    }
    memcpy(copy, raw.data, raw.bytes);
    *out = (load_string){copy, raw.bytes};
    return WEFT_OK;
}

/* ---- keys ---- */

static weft_status check_bools(const reader *r, size_t at, uint64_t n) {
    for (size_t i = 0; i < n; i++) {
        if (r->bytes[at + i] > 1) {
            return fail(r, at + i, "a bool of value %u, expected 0 or 1", r->bytes[at + i]);
        }
    }
    return WEFT_OK;
}

/* Steps over n elements of a plain type or strings. */
static weft_status read_elements(reader *r, gguf_type type, uint64_t n) {
    if (type == GGUF_STRING) {
        for (uint64_t i = 0; i < n; i++) {
            weft_status s = skip_string(r);
            if (s != WEFT_OK) {
                return s;
            }
        }
        return WEFT_OK;
    }
    size_t at = r->at;
    weft_status s = skip(r, n * gguf_type_bytes(type)); /* n <= bytes left / element bytes */
    return s == WEFT_OK && type == GGUF_BOOL ? check_bools(r, at, n) : s;
}

static weft_status read_array(reader *r, gguf_value *out) {
    size_t start = r->at;
    uint32_t type;
    uint64_t n;
    weft_status s = read_u32(r, &type);
    if (s != WEFT_OK) {
        return s;
    }
    if (type == GGUF_ARRAY) {
        return fail(r, start, "arrays of arrays are not supported");
    }
    if (type >= GGUF_N_TYPE) {
        return fail(r, start, "array of unknown value type %u, expected 0 to %d", type,
                    GGUF_N_TYPE - 1);
    }
    if ((s = read_u64(r, &n)) != WEFT_OK) {
        return s;
    }
    size_t each = type == GGUF_STRING ? 8 : gguf_type_bytes((gguf_type)type);
    if (n > left(r) / each) {
        return fail(r, start,
                    "%" PRIu64 " elements of %s do not fit into the %zu bytes left: truncated", n,
                    gguf_type_name((gguf_type)type), left(r));
    }
    *out = (gguf_value){(gguf_type)type, true, n, r->bytes + r->at};
    return read_elements(r, (gguf_type)type, n);
}

static weft_status read_value(reader *r, gguf_value *out) {
    size_t start = r->at;
    uint32_t type;
    weft_status s = read_u32(r, &type);
    if (s != WEFT_OK) {
        return s;
    }
    if (type >= GGUF_N_TYPE) {
        return fail(r, start, "unknown value type %u, expected 0 to %d", type, GGUF_N_TYPE - 1);
    }
    if (type == GGUF_ARRAY) {
        return read_array(r, out);
    }
    *out = (gguf_value){(gguf_type)type, false, 1, r->bytes + r->at};
    return read_elements(r, (gguf_type)type, 1);
}

static weft_status read_keys(reader *r, gguf_file *f) {
    size_t n = (size_t)f->n_key;
    load_string *key = load_arena_take(r->arena, n, sizeof *key);
    gguf_value *value = load_arena_take(r->arena, n, sizeof *value);
    if (key == NULL || value == NULL || !text_table_init(&f->key_table, r->arena, key, n)) {
        return no_memory(r, n, sizeof *key + sizeof *value);
    }
    for (int32_t i = 0; i < f->n_key; i++) {
        size_t start = r->at;
        set_subject(r, "key", i, nameless);
        weft_status s = read_name(r, MAX_KEY_BYTES, &key[i]);
        if (s != WEFT_OK) {
            return s;
        }
        set_subject(r, NULL, -1, key[i]);
        if (text_table_add(&f->key_table, i) >= 0) {
            return fail(r, start, "the key stands twice");
        }
        if ((s = read_value(r, &value[i])) != WEFT_OK) {
            return s;
        }
    }
    f->key = key;
    f->value = value;
    return WEFT_OK;
}

/* ---- tensors ---- */

static void show_dims(const uint64_t *dim, uint32_t n_dim, char *out, size_t out_bytes) {
    size_t to = (size_t)snprintf(out, out_bytes, "[");
    for (uint32_t i = 0; i < n_dim; i++) {
        to += (size_t)snprintf(out + to, out_bytes - to, "%s%" PRIu64, i > 0 ? ", " : "", dim[i]);
    }
    snprintf(out + to, out_bytes - to, "]");
}

/* Fills t->dim and t->bytes. Every product is checked: a count that wraps would pass as a small
 * one. */
static weft_status check_dims(const reader *r, size_t at, const uint64_t *dim, uint32_t n_dim,
                              load_tensor *t) {
    char shown[4 * 22 + 2];
    show_dims(dim, n_dim, shown, sizeof shown);
    int32_t block_len, block_bytes;
    const char *type = dtype_ggml_name(t->ggml_type, &block_len, &block_bytes);
    if (type == NULL) {
        return fail(r, at, "unknown tensor type %u", t->ggml_type);
    }
    int64_t n = 1;
    for (uint32_t i = 0; i < MAX_DIM; i++) {
        uint64_t d = i < n_dim ? dim[i] : 1;
        if (d == 0) {
            return fail(r, at, "dimensions %s: expected every one to be at least 1", shown);
        }
        if (d > INT64_MAX || __builtin_mul_overflow(n, (int64_t)d, &n)) {
            return fail(r, at, "dimensions %s: the size overflows 63 bits", shown);
        }
        t->dim[i] = (int64_t)d;
    }
    if (t->dim[0] % block_len != 0) {
        return fail(r, at, "dimensions %s do not make rows of %s blocks of %d", shown, type,
                    block_len);
    }
    int64_t bytes;
    if (__builtin_mul_overflow(n / block_len, (int64_t)block_bytes, &bytes)) {
        return fail(r, at, "dimensions %s: the size overflows 63 bits", shown);
    }
    t->type_name = type;
    t->bytes = (size_t)bytes;
    return WEFT_OK;
}

/* One tensor info; *offset counts from the data section, whose start is not known yet. */
static weft_status read_tensor(reader *r, load_tensor *t, uint64_t *offset) {
    size_t start = r->at;
    uint32_t n_dim;
    uint64_t dim[MAX_DIM];
    weft_status s = read_u32(r, &n_dim);
    if (s != WEFT_OK) {
        return s;
    }
    if (n_dim < 1 || n_dim > MAX_DIM) {
        return fail(r, start, "%u dimensions, expected 1 to %d", n_dim, MAX_DIM);
    }
    for (uint32_t i = 0; i < n_dim; i++) {
        if ((s = read_u64(r, &dim[i])) != WEFT_OK) {
            return s;
        }
    }
    if ((s = read_u32(r, &t->ggml_type)) != WEFT_OK || (s = read_u64(r, offset)) != WEFT_OK) {
        return s;
    }
    t->n_dim = (int32_t)n_dim;
    return check_dims(r, start, dim, n_dim, t);
}

static weft_status read_tensors(reader *r, gguf_file *f, load_tensor *tensor, uint64_t *offset) {
    size_t n = (size_t)f->n_tensor;
    load_string *name = load_arena_take(r->arena, n, sizeof *name);
    if (name == NULL || !text_table_init(&f->tensor_table, r->arena, name, n)) {
        return no_memory(r, n, sizeof *name);
    }
    for (int32_t i = 0; i < f->n_tensor; i++) {
        size_t start = r->at;
        set_subject(r, "name of tensor", i, nameless);
        weft_status s = read_name(r, MAX_TENSOR_NAME_BYTES, &name[i]);
        if (s != WEFT_OK) {
            return s;
        }
        set_subject(r, "tensor", -1, name[i]);
        if (text_table_add(&f->tensor_table, i) >= 0) {
            return fail(r, start, "the name stands twice");
        }
        tensor[i].name = name[i].data;
        if ((s = read_tensor(r, &tensor[i], &offset[i])) != WEFT_OK) {
            return s;
        }
    }
    f->tensor_name = name;
    f->tensor = tensor;
    return WEFT_OK;
}

/* Turns offsets into places in the file. The infos end at r->at. */
static weft_status place_tensors(reader *r, const gguf_file *f, uint64_t alignment,
                                 load_tensor *tensor, const uint64_t *offset) {
    uint64_t data = ((uint64_t)r->at + alignment - 1) / alignment * alignment;
    for (int32_t i = 0; i < f->n_tensor; i++) {
        load_tensor *t = &tensor[i];
        set_subject(r, "tensor", -1, f->tensor_name[i]);
        if (offset[i] % alignment != 0) {
            return fail(r, r->at, "offset %" PRIu64 " is not a multiple of the alignment %" PRIu64,
                        offset[i], alignment);
        }
        uint64_t end;
        if (__builtin_add_overflow(data, offset[i], &end) ||
            __builtin_add_overflow(end, (uint64_t)t->bytes, &end)) {
            return fail(r, r->at, "offset %" PRIu64 " and size %zu are past the end of any file",
                        offset[i], t->bytes);
        }
        if (end > r->n_bytes) {
            return fail(r, r->at,
                        "ends at %" PRIu64 ", past the end of the file (%zu bytes): truncated", end,
                        r->n_bytes);
        }
        t->offset = (int64_t)(data + offset[i]);
        t->data = r->bytes + t->offset;
    }
    return WEFT_OK;
}

static int by_offset(const void *a, const void *b) {
    const load_tensor *x = *(const load_tensor *const *)a, *y = *(const load_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static weft_status check_overlaps(const reader *r, const gguf_file *f, uint64_t alignment) {
    size_t n = (size_t)f->n_tensor;
    const load_tensor **order = load_arena_take(r->arena, n, sizeof *order);
    if (order == NULL) {
        return no_memory(r, n, sizeof *order);
    }
    for (size_t i = 0; i < n; i++) {
        order[i] = &f->tensor[i];
    }
    qsort(order, n, sizeof *order, by_offset);
    bool gap_told = false;
    for (size_t i = 1; i < n; i++) {
        const load_tensor *a = order[i - 1], *b = order[i];
        int64_t end = a->offset + (int64_t)a->bytes;
        if (b->offset < end) {
            return error_set_at(r->err, WEFT_ERR_FILE, b->offset,
                                "tensors %s and %s overlap: %s ends at %" PRId64
                                ", %s starts at %" PRId64,
                                a->name, b->name, a->name, end, b->name, b->offset);
        }
        if (b->offset - end >= (int64_t)alignment && !gap_told) {
            gap_told = true;
            log_warn("%s: %" PRId64 " bytes between tensors %s and %s belong to no tensor",
                     r->file_name, b->offset - end, a->name, b->name);
        }
    }
    return WEFT_OK;
}

/* ---- the file ---- */

static weft_status read_magic(reader *r) {
    set_subject(r, "magic", -1, nameless);
    if (r->n_bytes == 0) {
        return fail(r, 0, "not a GGUF file: it is empty");
    }
    weft_status s = skip(r, 4);
    if (s != WEFT_OK) {
        return s;
    }
    if (memcmp(r->bytes, "GGUF", 4) != 0) {
        char shown[20];
        text_show((load_string){(const char *)r->bytes, 4}, shown, sizeof shown);
        return fail(r, 0, "not a GGUF file: it starts with %s, expected GGUF", shown);
    }
    uint32_t version;
    set_subject(r, "version", -1, nameless);
    if ((s = read_u32(r, &version)) != WEFT_OK) {
        return s;
    }
    if (version != 2 && version != 3) {
        return fail(r, 4, "%u is not supported, expected 2 or 3%s", version,
                    (version & 0xFFFF) == 0 && version != 0 ? " (a big-endian file?)" : "");
    }
    return WEFT_OK;
}

static weft_status check_count(const reader *r, const char *what, uint64_t n, size_t each) {
    if (n > left(r) / each || n > INT32_MAX / 2) {
        return error_set_at(r->err, WEFT_ERR_FILE, (int64_t)r->at,
                            "%s %" PRIu64 " does not fit into the %zu bytes left: truncated", what,
                            n, left(r));
    }
    return WEFT_OK;
}

static weft_status read_counts(reader *r, gguf_file *f) {
    uint64_t n_tensor, n_key;
    weft_status s;
    set_subject(r, "tensor count", -1, nameless);
    if ((s = read_u64(r, &n_tensor)) != WEFT_OK) {
        return s;
    }
    set_subject(r, "metadata key count", -1, nameless);
    if ((s = read_u64(r, &n_key)) != WEFT_OK ||
        (s = check_count(r, "metadata key count", n_key, MIN_KEY_BYTES)) != WEFT_OK ||
        (s = check_count(r, "tensor count", n_tensor, MIN_TENSOR_BYTES)) != WEFT_OK) {
        return s;
    }
    f->n_tensor = (int32_t)n_tensor;
    f->n_key = (int32_t)n_key;
    return WEFT_OK;
}

/* *out stays as it is when the file does not say. */
static weft_status read_alignment(const gguf_file *f, uint64_t *out, weft_error *err) {
    const gguf_value *v;
    weft_status s = gguf_get(f, "general.alignment", GGUF_U32, false, false, &v, err);
    if (s != WEFT_OK || v == NULL) {
        return s;
    }
    uint32_t a = gguf_u32(v);
    if (a < MIN_ALIGNMENT || a > MAX_ALIGNMENT || (a & (a - 1)) != 0) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(f, v),
                            "general.alignment %u: expected a power of two from %d to %d", a,
                            MIN_ALIGNMENT, MAX_ALIGNMENT);
    }
    *out = a;
    return WEFT_OK;
}

weft_status gguf_read(const void *bytes, size_t n_bytes, const char *name, load_arena *arena,
                      gguf_file *out, weft_error *err) {
    reader r = {.bytes = bytes, .n_bytes = n_bytes, .file_name = name, .arena = arena, .err = err};
    gguf_file f = {.bytes = bytes, .n_bytes = n_bytes};
    weft_status s;
    if ((s = read_magic(&r)) != WEFT_OK || (s = read_counts(&r, &f)) != WEFT_OK ||
        (s = read_keys(&r, &f)) != WEFT_OK) {
        return s;
    }
    uint64_t alignment = DEFAULT_ALIGNMENT;
    if ((s = read_alignment(&f, &alignment, err)) != WEFT_OK) {
        return s;
    }
    size_t n = (size_t)f.n_tensor;
    load_tensor *tensor = load_arena_take(arena, n, sizeof *tensor);
    uint64_t *offset = load_arena_take(arena, n, sizeof *offset);
    if (tensor == NULL || offset == NULL) {
        return no_memory(&r, n, sizeof *tensor);
    }
    if ((s = read_tensors(&r, &f, tensor, offset)) != WEFT_OK ||
        (s = place_tensors(&r, &f, alignment, tensor, offset)) != WEFT_OK ||
        (s = check_overlaps(&r, &f, alignment)) != WEFT_OK) {
        return s;
    }
    *out = f;
    return WEFT_OK;
}

const gguf_value *gguf_find(const gguf_file *f, const char *key) {
    int32_t i = text_table_find(&f->key_table, text_of(key));
    return i < 0 ? NULL : &f->value[i];
}

const load_tensor *gguf_find_tensor(const gguf_file *f, const char *name) {
    int32_t i = text_table_find(&f->tensor_table, text_of(name));
    return i < 0 ? NULL : &f->tensor[i];
}
