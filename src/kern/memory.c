#include "kern/memory.h"

#include <stdlib.h>

enum { ALIGN = 64 };

/* With AddressSanitizer forbidden bytes follow each item, and a write past an item's end does not
 * go unseen into the next one. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { GAP = 4 * ALIGN };
#else
enum { GAP = 0 };
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

static size_t reserved_bytes(const kern_memory *m) {
    return m->bytes + (size_t)m->n * GAP + ALIGN;
}

void kern_memory_add(kern_memory *m, const char *name, size_t bytes, kern_mem *where) {
    if (m->n == m->cap) {
        int32_t cap = m->cap ? 2 * m->cap : 32;
        kern_memory_item *item = realloc(m->item, (size_t)cap * sizeof *item);
        if (!item) {
            m->failed = true;
            return;
        }
        m->item = item;
        m->cap = cap;
    }
    m->item[m->n++] = (kern_memory_item){name, bytes, where};
    m->bytes += (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

weft_status kern_memory_commit(kern_memory *m, const kern_table *k, weft_error *err) {
    kern_mem base;
    if (m->failed)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a list of %d buffers", m->n);
    weft_status s = k->reserve(reserved_bytes(m), &base, err);
    if (s != WEFT_OK)
        return s;
    m->base = base;
    size_t at = 0;
    for (int32_t i = 0; i < m->n; i++) {
        *m->item[i].where = kern_at(base, at);
        size_t end = at + m->item[i].bytes;
        at += (m->item[i].bytes + ALIGN - 1) / ALIGN * ALIGN + GAP;
        ASAN_POISON_MEMORY_REGION((void *)(base.at + end), at - end);
    }
    return WEFT_OK;
}

void kern_memory_release(kern_memory *m, const kern_table *k) {
    if (m->base.at) {
        ASAN_UNPOISON_MEMORY_REGION((void *)m->base.at, reserved_bytes(m));
        k->release(m->base, reserved_bytes(m));
    }
    free(m->item);
    *m = (kern_memory){0};
}
