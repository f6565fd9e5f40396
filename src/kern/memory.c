#include "kern/memory.h"

#include <stdlib.h>

enum { ALIGN = 64 };

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
    weft_status s = k->reserve(m->bytes + ALIGN, &base, err);
    if (s != WEFT_OK)
        return s;
    m->base = base;
    size_t at = 0;
    for (int32_t i = 0; i < m->n; i++) {
        *m->item[i].where = kern_at(base, at);
        at += (m->item[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    return WEFT_OK;
}

void kern_memory_release(kern_memory *m, const kern_table *k) {
    if (m->base.at)
        k->release(m->base, m->bytes + ALIGN);
    free(m->item);
    *m = (kern_memory){0};
}
