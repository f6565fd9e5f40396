/* Takes a GGUF file apart and puts it together again with keys and tensors left out or added. Only
 * for sound files of moderate size: it trusts its input. */
#ifndef WEFT_TEST_GGUF_EDIT_H
#define WEFT_TEST_GGUF_EDIT_H

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct buffer {
    uint8_t *at;
    size_t n, cap;
} buffer;

static inline void buffer_add(buffer *b, const void *data, size_t n) {
    if (b->n + n > b->cap) {
        b->cap = (b->n + n) * 2;
        b->at = realloc(b->at, b->cap);
        assert(b->at != NULL);
    }
    if (n > 0) {
        memcpy(b->at + b->n, data, n);
    }
    b->n += n;
}

static inline void buffer_u32(buffer *b, uint32_t v) {
    buffer_add(b, &v, 4);
}

static inline void buffer_u64(buffer *b, uint64_t v) {
    buffer_add(b, &v, 8);
}

static inline void buffer_string(buffer *b, const char *s) {
    buffer_u64(b, strlen(s));
    buffer_add(b, s, strlen(s));
}

/* The whole file, NULL when it cannot be read. */
static inline uint8_t *file_read(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        return NULL;
    }
    buffer b = {0};
    uint8_t chunk[4096];
    size_t got;
    while ((got = fread(chunk, 1, sizeof chunk, f)) > 0) {
        buffer_add(&b, chunk, got);
    }
    fclose(f);
    if (b.at == NULL) {
        b.at = malloc(1);
    }
    *n = b.n;
    return b.at;
}

/* One change to a file: everything is optional. */
typedef struct edit {
    const char *drop_key, *drop_tensor;
    const char *key; /* a key to add: value type and the value's bytes */
    uint32_t key_type;
    const void *value;
    size_t value_bytes;
    const char *tensor; /* a tensor to add: one dimension of n elements of ggml type, all zero */
    uint32_t tensor_type;
    uint64_t tensor_n;
    size_t tensor_bytes;
    const char *retype; /* a tensor to give another type, same bytes */
    uint32_t retype_to;
} edit;

static inline uint64_t get_u64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline uint32_t get_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline const uint8_t *past_value(const uint8_t *p, uint32_t type) {
    static const uint8_t size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == 8) {
        return p + 8 + get_u64(p);
    }
    if (type != 9) {
        return p + size[type];
    }
    uint32_t each = get_u32(p);
    uint64_t n = get_u64(p + 4);
    p += 12;
    for (uint64_t i = 0; i < n; i++) {
        p = past_value(p, each);
    }
    return p;
}

static inline bool name_is(const uint8_t *p, const char *name) {
    return name != NULL && get_u64(p) == strlen(name) && memcmp(p + 8, name, strlen(name)) == 0;
}

/* The edited file, malloc'ed; alignment 32, which ok_base and the demo have. */
static inline uint8_t *gguf_edit(const uint8_t *file, const edit *e, size_t *n_out) {
    uint64_t n_tensor = get_u64(file + 8), n_key = get_u64(file + 16);
    uint64_t tensors_out = 0, keys_out = 0, data_end = 0;
    const uint8_t *p = file + 24;
    buffer keys = {0}, infos = {0}, out = {0};
    for (uint64_t i = 0; i < n_key; i++) {
        const uint8_t *start = p, *type = p + 8 + get_u64(p);
        p = past_value(type + 4, get_u32(type));
        if (!name_is(start, e->drop_key)) {
            buffer_add(&keys, start, (size_t)(p - start));
            keys_out++;
        }
    }
    if (e->key != NULL) {
        buffer_string(&keys, e->key);
        buffer_u32(&keys, e->key_type);
        buffer_add(&keys, e->value, e->value_bytes);
        keys_out++;
    }
    for (uint64_t i = 0; i < n_tensor; i++) {
        const uint8_t *start = p, *dims = p + 8 + get_u64(p);
        p = dims + 4 + 8 * get_u32(dims) + 12;
        if (!name_is(start, e->drop_tensor)) {
            buffer_add(&infos, start, (size_t)(p - start));
            tensors_out++;
        }
        if (name_is(start, e->retype)) {
            memcpy(infos.at + infos.n - 12, &e->retype_to, 4);
        }
    }
    const uint8_t *data = file + (size_t)(p - file + 31) / 32 * 32;
    size_t n_file = *n_out; /* in: the file's size */
    data_end = (n_file - (size_t)(data - file) + 31) / 32 * 32;
    if (e->tensor != NULL) {
        buffer_string(&infos, e->tensor);
        buffer_u32(&infos, 1);
        buffer_u64(&infos, e->tensor_n);
        buffer_u32(&infos, e->tensor_type);
        buffer_u64(&infos, data_end);
        tensors_out++;
    }
    static const uint8_t zero[4096];
    buffer_add(&out, file, 8);
    buffer_u64(&out, tensors_out);
    buffer_u64(&out, keys_out);
    buffer_add(&out, keys.at, keys.n);
    buffer_add(&out, infos.at, infos.n);
    buffer_add(&out, zero, (32 - out.n % 32) % 32);
    size_t data_out = out.n;
    buffer_add(&out, data, n_file - (size_t)(data - file));
    if (e->tensor != NULL) {
        buffer_add(&out, zero, data_out + data_end - out.n);
        assert(e->tensor_bytes <= sizeof zero);
        buffer_add(&out, zero, e->tensor_bytes);
    }
    free(keys.at);
    free(infos.at);
    *n_out = out.n;
    return out.at;
}

#endif
