#include "load/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load/json.h"
#include "load/mapping.h"

enum {
    MAX_HEADER_BYTES = 100 * 1000 * 1000, /* the format's own limit */
    MAX_DIM = 8
};

static const struct {
    const char *name;
    uint8_t bits;
    uint32_t ggml_type;
} dtypes[] = {
    {"F32", 32, 0},
    {"F16", 16, 1},
    {"BF16", 16, 30},
    {"F64", 64, 28},
    {"I64", 64, 27},
    {"I32", 32, 26},
    {"I16", 16, 25},
    {"I8", 8, 24},
    {"U8", 8, LOAD_NO_GGML_TYPE},
    {"U16", 16, LOAD_NO_GGML_TYPE},
    {"U32", 32, LOAD_NO_GGML_TYPE},
    {"U64", 64, LOAD_NO_GGML_TYPE},
    {"BOOL", 8, LOAD_NO_GGML_TYPE},
    {"C64", 64, LOAD_NO_GGML_TYPE},
    {"F8_E4M3", 8, LOAD_NO_GGML_TYPE},
    {"F8_E5M2", 8, LOAD_NO_GGML_TYPE},
    {"F8_E8M0", 8, LOAD_NO_GGML_TYPE},
    {"F8_E4M3FNUZ", 8, LOAD_NO_GGML_TYPE},
    {"F8_E5M2FNUZ", 8, LOAD_NO_GGML_TYPE},
    {"F6_E2M3", 6, LOAD_NO_GGML_TYPE},
    {"F6_E3M2", 6, LOAD_NO_GGML_TYPE},
    {"F4", 4, LOAD_NO_GGML_TYPE},
};

typedef struct st_reader {
    const uint8_t *bytes;
    size_t n_bytes;
    uint64_t data;    /* where the data starts */
    const char *name; /* of the tensor being read */
    load_arena *arena;
    weft_error *err;
} st_reader;

static const char *show(const char *name, char *out, size_t out_bytes) {
    text_show(text_of(name), out, out_bytes);
    return out;
}

static weft_status bad(const st_reader *r, const char *text, ...)
    __attribute__((format(printf, 2, 3)));

static weft_status bad(const st_reader *r, const char *text, ...) {
    char what[160], body[400];
    va_list args;
    va_start(args, text);
    vsnprintf(body, sizeof body, text, args);
    va_end(args);
    return error_set(r->err, WEFT_ERR_FILE, "tensor %s: %s", show(r->name, what, sizeof what),
                     body);
}

/* ---- one tensor ---- */

static weft_status read_name(const st_reader *r, load_string *out) {
    load_string name = text_of(r->name);
    if (name.bytes == 0) {
        return bad(r, "the name is empty");
    }
    if (!text_is_plain(name)) {
        return bad(r, "the name is not UTF-8 text without control characters");
    }
    char *copy = load_arena_take(r->arena, name.bytes + 1, 1);
    if (copy == NULL) {
        return error_set(r->err, WEFT_ERR_MEMORY, "no memory for a name of %zu bytes", name.bytes);
    }
    memcpy(copy, name.data, name.bytes);
    *out = (load_string){copy, name.bytes};
    return WEFT_OK;
}

static weft_status read_dtype(const st_reader *r, const json_t *spec, st_tensor *t,
                              uint64_t *bits) {
    const char *type = json_string_value(json_object_get(spec, "dtype"));
    if (type == NULL) {
        return bad(r, "dtype is missing or no string, expected one like F32 or BF16");
    }
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(type, dtypes[i].name) == 0) {
            t->dtype = dtypes[i].name;
            t->ggml_type = dtypes[i].ggml_type;
            *bits = dtypes[i].bits;
            return WEFT_OK;
        }
    }
    char text[64];
    return bad(r, "dtype %s is not known, expected one like F32, F16, BF16 or I64",
               show(type, text, sizeof text));
}

/* *bytes = product of the shape times the size of an element. */
static weft_status read_shape(const st_reader *r, const json_t *spec, uint64_t bits, st_tensor *t,
                              uint64_t *bytes) {
    const json_t *shape = json_object_get(spec, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > MAX_DIM) {
        return bad(r, "shape is missing, or no list of at most %d dimensions", MAX_DIM);
    }
    uint64_t n = bits;
    t->n_dim = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < t->n_dim; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        json_int_t d = json_integer_value(dim);
        if (!json_is_integer(dim) || d < 0) {
            return bad(r, "dimension %d of the shape is no integer of at least 0", i);
        }
        if (__builtin_mul_overflow(n, (uint64_t)d, &n)) {
            return bad(r, "dimension %d of the shape is %" PRId64 ": the size overflows 64 bits", i,
                       (int64_t)d);
        }
        t->dim[i] = d;
    }
    if (n % 8 != 0) {
        return bad(r, "%" PRIu64 " bits of %s make no whole number of bytes", n, t->dtype);
    }
    *bytes = n / 8;
    return WEFT_OK;
}

static weft_status read_range(const st_reader *r, const json_t *spec, st_tensor *t) {
    const json_t *range = json_object_get(spec, "data_offsets");
    const json_t *begin = json_array_get(range, 0), *end = json_array_get(range, 1);
    if (json_array_size(range) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
        return bad(r, "data_offsets is missing, or no pair of begin and end");
    }
    t->begin = (uint64_t)json_integer_value(begin);
    t->end = (uint64_t)json_integer_value(end);
    if (t->end > r->n_bytes - r->data) {
        return bad(r,
                   "data_offsets ends at %" PRIu64 ", past the end of the %" PRIu64
                   " bytes of data: truncated",
                   t->end, r->n_bytes - r->data);
    }
    t->offset = (int64_t)(r->data + t->begin);
    return WEFT_OK;
}

static weft_status read_tensor(const st_reader *r, const json_t *spec, st_tensor *t) {
    uint64_t bits = 0, bytes = 0;
    weft_status s = read_name(r, &t->name);
    if (s != WEFT_OK) {
        return s;
    }
    if (!json_is_object(spec)) {
        return bad(r, "expected an object with dtype, shape and data_offsets");
    }
    if ((s = read_dtype(r, spec, t, &bits)) != WEFT_OK ||
        (s = read_shape(r, spec, bits, t, &bytes)) != WEFT_OK ||
        (s = read_range(r, spec, t)) != WEFT_OK) {
        return s;
    }
    if (bytes != t->end - t->begin) {
        return bad(r,
                   "shape and dtype %s make %" PRIu64 " bytes, data_offsets [%" PRIu64 ", %" PRIu64
                   "] hold %" PRIu64,
                   t->dtype, bytes, t->begin, t->end, t->end - t->begin);
    }
    if (bits > 8 && (uint64_t)t->offset % (bits / 8) != 0) {
        return bad(r,
                   "data_offsets begin %" PRIu64 " is byte %" PRId64
                   " of the file, not aligned for "
                   "%s: expected a multiple of %" PRIu64,
                   t->begin, t->offset, t->dtype, bits / 8);
    }
    return WEFT_OK;
}

/* ---- the file ---- */

static int by_begin(const void *a, const void *b) {
    const st_tensor *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end < y->end ? -1 : x->end > y->end; /* empty tensors before what starts there */
}

/* The tensors, by offset, follow each other without a gap and end with the file. */
static weft_status check_cover(const st_reader *r, const st_tensor *tensor, int32_t n) {
    char a[160], b[160];
    uint64_t covered = 0, data_bytes = r->n_bytes - r->data;
    const char *last = NULL;
    for (int32_t i = 0; i < n; i++) {
        const st_tensor *t = &tensor[i];
        if (t->begin < covered) {
            return error_set_at(
                r->err, WEFT_ERR_FILE, t->offset,
                "tensors %s and %s overlap: data_offsets begin %" PRIu64 " is before %" PRIu64,
                show(last, a, sizeof a), show(t->name.data, b, sizeof b), t->begin, covered);
        }
        if (t->begin > covered) {
            return error_set_at(r->err, WEFT_ERR_FILE, (int64_t)(r->data + covered),
                                "%" PRIu64 " bytes of data before tensor %s belong to no tensor: "
                                "data_offsets begin %" PRIu64 ", expected %" PRIu64,
                                t->begin - covered, show(t->name.data, a, sizeof a), t->begin,
                                covered);
        }
        covered = t->end;
        last = t->name.data;
    }
    if (covered != data_bytes) {
        return error_set_at(r->err, WEFT_ERR_FILE, (int64_t)(r->data + covered),
                            "%" PRIu64 " bytes of data after the last tensor belong to no tensor",
                            data_bytes - covered);
    }
    return WEFT_OK;
}

/* Also moves r->data to the end of the header. */
static weft_status read_header(st_reader *r, json_t **out) {
    uint64_t n;
    if (r->n_bytes < sizeof n) {
        return error_set_at(r->err, WEFT_ERR_FILE, 0,
                            "truncated: 8 bytes of header length due, the file has %zu",
                            r->n_bytes);
    }
    memcpy(&n, r->bytes, sizeof n);
    if (n > r->n_bytes - sizeof n || n > MAX_HEADER_BYTES) {
        return error_set_at(r->err, WEFT_ERR_FILE, 0,
                            "header length %" PRIu64 " does not fit into the %zu bytes left, or is "
                            "more than %d: no safetensors file, or truncated",
                            n, r->n_bytes - sizeof n, MAX_HEADER_BYTES);
    }
    r->data = sizeof n + n;
    if (n == 0 || r->bytes[sizeof n] != '{') {
        return error_set_at(r->err, WEFT_ERR_FILE, sizeof n,
                            "the header is no JSON object: it does not start with {");
    }
    return json_read(r->bytes + sizeof n, (size_t)n, "the header", sizeof n, out, r->err);
}

static weft_status check_metadata(const st_reader *r, const json_t *metadata) {
    const char *key;
    const json_t *v;
    bool sound = json_is_object(metadata);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, v) {
        sound = sound && json_is_string(v);
    }
    return sound ? WEFT_OK
                 : error_set(r->err, WEFT_ERR_FILE,
                             "__metadata__ is no object whose members are strings");
}

static weft_status read_tensors(st_reader *r, const json_t *header, st_tensor **out,
                                int32_t *n_out) {
    size_t n_member = json_object_size(header);
    st_tensor *tensor = load_arena_take(r->arena, n_member, sizeof *tensor);
    if (tensor == NULL) {
        return error_set(r->err, WEFT_ERR_MEMORY, "no memory for %zu tensors", n_member);
    }
    int32_t n = 0; /* a header of 100 MB has no 2^31 members */
    const json_t *spec;
    json_object_foreach((json_t *)(uintptr_t)header, r->name, spec) {
        weft_status s = strcmp(r->name, "__metadata__") == 0 ? check_metadata(r, spec)
                                                             : read_tensor(r, spec, &tensor[n++]);
        if (s != WEFT_OK) {
            return s;
        }
    }
    if (n > 0) {
        qsort(tensor, (size_t)n, sizeof *tensor, by_begin);
    }
    *out = tensor;
    *n_out = n;
    return check_cover(r, tensor, n);
}

weft_status st_read(const void *bytes, size_t n_bytes, load_arena *arena, st_tensor **out,
                    int32_t *n_out, weft_error *err) {
    st_reader r = {.bytes = bytes, .n_bytes = n_bytes, .arena = arena, .err = err};
    json_t *header = NULL;
    weft_status s = read_header(&r, &header);
    if (s == WEFT_OK) {
        s = read_tensors(&r, header, out, n_out);
    }
    json_decref(header);
    return s;
}

/* ---- goldens ---- */

struct load_st {
    load_arena arena;
    const void *map;
    size_t map_bytes;
    st_tensor *tensor; /* [n] */
    load_string *name; /* [n] */
    int32_t n;
    text_table table;
};

static weft_status index_names(load_st *s, weft_error *err) {
    s->name = load_arena_take(&s->arena, (size_t)s->n, sizeof *s->name);
    if (s->name == NULL || !text_table_init(&s->table, &s->arena, s->name, (size_t)s->n)) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d tensors", s->n);
    }
    for (int32_t i = 0; i < s->n; i++) {
        s->name[i] = s->tensor[i].name;
        text_table_add(&s->table, i);
    }
    return WEFT_OK;
}

weft_status load_st_open(const char *path, load_st **out, weft_error *err) {
    load_st *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory to open a safetensors file");
    }
    weft_error what;
    weft_status status = load_map_file(path, &s->map, &s->map_bytes, err);
    if (status != WEFT_OK) {
        free(s);
        return status;
    }
    if ((status = st_read(s->map, s->map_bytes, &s->arena, &s->tensor, &s->n, &what)) != WEFT_OK ||
        (status = index_names(s, &what)) != WEFT_OK) {
        char name[300];
        load_name_error(show(path, name, sizeof name), &what, err);
        load_st_close(s);
        return status;
    }
    *out = s;
    return WEFT_OK;
}

void load_st_close(load_st *s) {
    if (s != NULL) {
        load_unmap_file(s->map, s->map_bytes);
        load_arena_free(&s->arena);
        free(s);
    }
}

bool load_st_find(const load_st *s, const char *name, load_st_tensor *out) {
    int32_t i = text_table_find(&s->table, text_of(name));
    if (i < 0) {
        return false;
    }
    const st_tensor *t = &s->tensor[i];
    *out = (load_st_tensor){.n_dim = t->n_dim,
                            .data = (const uint8_t *)s->map + t->offset,
                            .bytes = (size_t)(t->end - t->begin)};
    snprintf(out->dtype, sizeof out->dtype, "%s", t->dtype);
    memcpy(out->dim, t->dim, sizeof out->dim);
    return true;
}
