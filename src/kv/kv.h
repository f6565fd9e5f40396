/* Page ids: one pool per group of layers and DCP rank (all replicas are alike), page tables of
 * requests. Integers only; rank 0 of the scheduler owns it.
 *
 * Layers that need the same part of a context are a group, with physical pages of their own. A
 * group with a window takes pages only as far as the next step can reach, and gives back those that
 * no later query sees. */
#ifndef WEFT_KV_KV_H
#define WEFT_KV_KV_H

#include "base/status.h"

typedef struct kv_pools kv_pools;

enum { KV_MAX_GROUP = 4 };

typedef struct kv_group {
    int32_t window; /* the largest of its layers, in tokens; 0: they see all */
    int32_t n_page; /* of a pool */
} kv_group;

typedef struct kv_sizes {
    int32_t dcp;
    /* [dcp + 1]: pool r serves the shards [shard_cut[r], shard_cut[r + 1]) */
    const int32_t *shard_cut;
    int32_t kv_shards, page_tokens;
    int32_t max_new; /* tokens of one request that a step computes at most */
    int32_t n_group;
    const kv_group *group; /* [n_group] */
} kv_sizes;

/* The first logical page that a query at `position` sees, or any behind it. */
int32_t kv_first_page(int32_t window, int32_t page_tokens, int32_t position);
/* Pages that one request holds at most in a pool of a group with a window, on DCP rank r, however
 * long it is. s->group is not looked at. */
int32_t kv_window_pages(const kv_sizes *s, int32_t window, int32_t dcp_rank);

/* For each group a pool per DCP rank; what s points to is copied. */
weft_status kv_open(const kv_sizes *s, kv_pools **out, weft_error *err);
void kv_close(kv_pools *p);

/* A request's pages by group and logical number: the physical page in the pool of its owner. Pages
 * [first, n_page) of a group are held; those before are -1. */
typedef struct kv_table {
    int32_t *page[KV_MAX_GROUP]; /* [cap] each, caller's */
    int32_t cap;
    int32_t first[KV_MAX_GROUP], n_page[KV_MAX_GROUP];
} kv_table;

/* Gives back the pages that no query at `position` or behind it sees. */
void kv_trim(kv_pools *p, kv_table *t, int32_t position);
/* Makes the table cover n_token positions; groups with a window only as far as steps can reach
 * before `position`, the next one to be computed, has left the first window. All or nothing: false
 * when a pool is empty, the table unchanged. */
bool kv_extend(kv_pools *p, kv_table *t, int32_t n_token, int32_t position);
/* Gives all pages back. */
void kv_release(kv_pools *p, kv_table *t);

/* Longest single request that empty pools can hold, in tokens. */
int32_t kv_capacity_tokens(const kv_pools *p);
int32_t kv_group_count(const kv_pools *p);
int32_t kv_free(const kv_pools *p, int32_t group, int32_t dcp_rank);
int64_t kv_used_total(const kv_pools *p, int32_t group);

#endif
