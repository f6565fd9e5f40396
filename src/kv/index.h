/* Names of cached pages -> pages of one group of layers. Room for all of them is taken when it
 * opens; afterwards nothing is allocated. */
#ifndef WEFT_KV_INDEX_H
#define WEFT_KV_INDEX_H

#include "kv/kv.h"

typedef struct kv_index_slot {
    kv_name name;
    int32_t page; /* -1: free */
} kv_index_slot;

typedef struct kv_index {
    kv_index_slot *slot; /* [mask + 1], open addressing, at most half full */
    uint64_t mask;
} kv_index;

/* For n_page pages; false: no memory. */
bool kv_index_open(kv_index *x, int64_t n_page);
void kv_index_close(kv_index *x);
int32_t kv_index_find(const kv_index *x, kv_name name);     /* -1: none */
void kv_index_add(kv_index *x, kv_name name, int32_t page); /* name is not in it */
void kv_index_remove(kv_index *x, kv_name name);            /* name is in it */

#endif
