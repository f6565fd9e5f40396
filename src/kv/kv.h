/* Page ids: one pool per DCP rank (all replicas are alike), page tables of requests. Integers only;
 * rank 0 of the scheduler owns it. */
#ifndef WEFT_KV_KV_H
#define WEFT_KV_KV_H

#include "base/status.h"

typedef struct kv_pools kv_pools;

/* dcp pools of n_page pages each. shard_cut: [dcp + 1], copied: pool r serves the shards
 * [shard_cut[r], shard_cut[r + 1]). */
weft_status kv_open(int32_t dcp, const int32_t *shard_cut, int32_t kv_shards, int32_t page_tokens,
                    int32_t n_page, kv_pools **out, weft_error *err);
void kv_close(kv_pools *p);

/* A request's pages by logical number: the physical page in the pool of its owner. */
typedef struct kv_table {
    int32_t *page; /* [cap], caller's */
    int32_t cap, n_page;
} kv_table;

/* Makes the table cover n_token positions. All or nothing: false when a pool is empty, the table
 * unchanged. */
bool kv_extend(kv_pools *p, kv_table *t, int32_t n_token);
/* Gives all pages back. */
void kv_release(kv_pools *p, kv_table *t);

/* Longest single request that empty pools can hold, in tokens. */
int32_t kv_capacity_tokens(const kv_pools *p);
int32_t kv_free(const kv_pools *p, int32_t dcp_rank);
int64_t kv_used_total(const kv_pools *p);

#endif
