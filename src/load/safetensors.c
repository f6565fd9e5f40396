/* safetensors: u64 header bytes | JSON header | data. The header maps each name to
 * {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, offsets counted from the end of
 * the header; "__metadata__" maps strings to strings and is skipped. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "load/load.h"
#include "load/mapping.h"
#include "load/text.h"

enum {
    /* The parsed header takes some ten times its text; real ones have less than a megabyte. */
    MAX_HEADER_BYTES = 16 << 20,
    MAX_DIM = 8
};

typedef struct st_entry {
    const char *name; /* of the header's JSON object */
    uint64_t begin, end;
    load_st_tensor tensor;
} st_entry;

struct load_st {
    const void *map;
    size_t map_bytes;
    json_t *header;
    st_entry *entry; /* [n_entry], by name */
    size_t n_entry;
};

static const struct {
    const char *name;
    uint8_t bytes;
} dtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
    {"U32", 4},  {"F32", 4}, {"I64", 8}, {"U64", 8},     {"F64", 8},
};

static const char *shown(const char *name, char *out, size_t out_bytes) {
    text_show(text_of(name), out, out_bytes);
    return out;
}

static weft_status bad(const char *name, weft_error *err, const char *text, ...)
    __attribute__((format(printf, 3, 4)));

static weft_status bad(const char *name, weft_error *err, const char *text, ...) {
    char what[160], body[400];
    va_list args;
    va_start(args, text);
    vsnprintf(body, sizeof body, text, args);
    va_end(args);
    return error_set(err, WEFT_ERR_FILE, "tensor %s: %s", shown(name, what, sizeof what), body);
}

static weft_status read_dtype(const char *name, const json_t *spec, load_st_tensor *t,
                              uint64_t *each, weft_error *err) {
    const char *type = json_string_value(json_object_get(spec, "dtype"));
    if (type == NULL) {
        return bad(name, err, "dtype is missing or no string");
    }
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(type, dtypes[i].name) == 0) {
            snprintf(t->dtype, sizeof t->dtype, "%s", dtypes[i].name);
            *each = dtypes[i].bytes;
            return WEFT_OK;
        }
    }
    char text[64];
    return bad(name, err, "dtype %s is not supported, expected one of BOOL to F64",
               shown(type, text, sizeof text));
}

/* *bytes = product of the shape times `each`. */
static weft_status read_shape(const char *name, const json_t *spec, uint64_t each,
                              load_st_tensor *t, uint64_t *bytes, weft_error *err) {
    const json_t *shape = json_object_get(spec, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > MAX_DIM) {
        return bad(name, err, "shape is missing, or no list of at most %d dimensions", MAX_DIM);
    }
    uint64_t n = each;
    t->n_dim = (int32_t)json_array_size(shape);
    for (int32_t i = 0; i < t->n_dim; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        json_int_t d = json_integer_value(dim);
        if (!json_is_integer(dim) || d < 0) {
            return bad(name, err, "dimension %d of the shape is no integer of at least 0", i);
        }
        if (__builtin_mul_overflow(n, (uint64_t)d, &n)) {
            return bad(name, err, "the shape's size overflows 64 bits");
        }
        t->dim[i] = d;
    }
    *bytes = n;
    return WEFT_OK;
}

static weft_status read_range(const json_t *spec, uint64_t data_bytes, st_entry *e,
                              weft_error *err) {
    const json_t *range = json_object_get(spec, "data_offsets");
    const json_t *begin = json_array_get(range, 0), *end = json_array_get(range, 1);
    if (json_array_size(range) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
        return bad(e->name, err, "data_offsets is missing, or no pair of begin and end");
    }
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    if (e->end > data_bytes) {
        return bad(e->name, err,
                   "data_offsets ends at %" PRIu64 ", past the end of the %" PRIu64
                   " bytes of data: truncated",
                   e->end, data_bytes);
    }
    return WEFT_OK;
}

static weft_status read_entry(const json_t *spec, const uint8_t *data, uint64_t data_bytes,
                              st_entry *e, weft_error *err) {
    if (!json_is_object(spec)) {
        return bad(e->name, err, "expected an object with dtype, shape and data_offsets");
    }
    uint64_t each = 0, bytes = 0;
    weft_status s;
    if ((s = read_dtype(e->name, spec, &e->tensor, &each, err)) != WEFT_OK ||
        (s = read_shape(e->name, spec, each, &e->tensor, &bytes, err)) != WEFT_OK ||
        (s = read_range(spec, data_bytes, e, err)) != WEFT_OK) {
        return s;
    }
    if (bytes != e->end - e->begin) {
        return bad(e->name, err,
                   "shape and dtype %s make %" PRIu64 " bytes, data_offsets [%" PRIu64 ", %" PRIu64
                   "] hold %" PRIu64,
                   e->tensor.dtype, bytes, e->begin, e->end, e->end - e->begin);
    }
    e->tensor.data = data + e->begin;
    e->tensor.bytes = (size_t)bytes;
    if ((uintptr_t)e->tensor.data % each != 0) {
        return bad(e->name, err, "data_offsets begin %" PRIu64 " is not aligned for %s", e->begin,
                   e->tensor.dtype);
    }
    return WEFT_OK;
}

static int by_begin(const void *a, const void *b) {
    const st_entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end < y->end ? -1 : x->end > y->end; /* empty tensors before what starts there */
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const st_entry *)a)->name, ((const st_entry *)b)->name);
}

static weft_status check_overlaps(load_st *s, const char *path, uint64_t data_bytes,
                                  weft_error *err) {
    char a[160], b[160];
    uint64_t covered = 0, unused = 0;
    const st_entry *furthest = NULL; /* the one that ends at `covered` */
    qsort(s->entry, s->n_entry, sizeof *s->entry, by_begin);
    for (size_t i = 0; i < s->n_entry; i++) {
        const st_entry *e = &s->entry[i];
        if (e->begin < covered && e->end > e->begin) {
            return error_set(
                err, WEFT_ERR_FILE,
                "tensors %s and %s overlap: data_offsets begin %" PRIu64 " is before %" PRIu64,
                shown(furthest->name, a, sizeof a), shown(e->name, b, sizeof b), e->begin, covered);
        }
        unused += e->begin > covered ? e->begin - covered : 0;
        if (e->end > covered) {
            covered = e->end;
            furthest = e;
        }
    }
    unused += data_bytes - covered;
    if (unused > 0) {
        log_warn("%s: %" PRIu64 " bytes of data belong to no tensor", shown(path, a, sizeof a),
                 unused);
    }
    qsort(s->entry, s->n_entry, sizeof *s->entry, by_name);
    return WEFT_OK;
}

static weft_status read_header(load_st *s, uint64_t *header_bytes, weft_error *err) {
    uint64_t n;
    if (s->map_bytes < sizeof n) {
        return error_set_at(err, WEFT_ERR_FILE, 0,
                            "truncated: 8 bytes of header length due, the file has %zu",
                            s->map_bytes);
    }
    memcpy(&n, s->map, sizeof n);
    if (n > s->map_bytes - sizeof n || n > MAX_HEADER_BYTES) {
        return error_set_at(err, WEFT_ERR_FILE, 0,
                            "header length %" PRIu64 " does not fit into the %zu bytes left, or is "
                            "more than %d",
                            n, s->map_bytes - sizeof n, MAX_HEADER_BYTES);
    }
    json_error_t json;
    s->header =
        json_loadb((const char *)s->map + sizeof n, (size_t)n, JSON_REJECT_DUPLICATES, &json);
    if (!json_is_object(s->header)) {
        char what[200];
        const char *text = s->header == NULL ? json.text : "no object";
        return error_set_at(err, WEFT_ERR_FILE, s->header == NULL ? json.position + 8 : 8,
                            "the header is no JSON object: %s", shown(text, what, sizeof what));
    }
    *header_bytes = n;
    return WEFT_OK;
}

static weft_status read_entries(load_st *s, uint64_t header_bytes, weft_error *err) {
    const uint8_t *data = (const uint8_t *)s->map + 8 + header_bytes;
    uint64_t data_bytes = s->map_bytes - 8 - header_bytes;
    s->entry = calloc(json_object_size(s->header) + 1, sizeof *s->entry);
    if (s->entry == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %zu tensors",
                         json_object_size(s->header));
    }
    const char *name;
    json_t *spec;
    json_object_foreach(s->header, name, spec) {
        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        st_entry *e = &s->entry[s->n_entry++];
        e->name = name;
        weft_status status = read_entry(spec, data, data_bytes, e, err);
        if (status != WEFT_OK) {
            return status;
        }
    }
    return WEFT_OK;
}

weft_status load_st_open(const char *path, load_st **out, weft_error *err) {
    load_st *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory to open a safetensors file");
    }
    weft_status status = load_map_file(path, &s->map, &s->map_bytes, err);
    if (status != WEFT_OK) {
        free(s);
        return status;
    }
    weft_error what;
    uint64_t header_bytes = 0;
    if ((status = read_header(s, &header_bytes, &what)) != WEFT_OK ||
        (status = read_entries(s, header_bytes, &what)) != WEFT_OK ||
        (status = check_overlaps(s, path, s->map_bytes - 8 - header_bytes, &what)) != WEFT_OK) {
        char name[300];
        error_set_at(err, status, what.offset, "%s: %s", shown(path, name, sizeof name), what.text);
        load_st_close(s);
        return status;
    }
    *out = s;
    return WEFT_OK;
}

void load_st_close(load_st *s) {
    if (s != NULL) {
        json_decref(s->header);
        load_unmap_file(s->map, s->map_bytes);
        free(s->entry);
        free(s);
    }
}

bool load_st_find(const load_st *s, const char *name, load_st_tensor *out) {
    st_entry key = {.name = name};
    const st_entry *e =
        s->n_entry == 0 ? NULL : bsearch(&key, s->entry, s->n_entry, sizeof *s->entry, by_name);
    if (e != NULL) {
        *out = e->tensor;
    }
    return e != NULL;
}
