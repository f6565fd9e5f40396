/* Page ids: one pool per group of layers and DCP rank (all replicas are alike), page tables of
 * requests. Integers only; rank 0 of the scheduler owns it.
 *
 * Layers that need the same part of a context are a group, with physical pages of their own. A
 * group with a window takes pages only as far as the next step can reach, and gives back those that
 * no later query sees.
 *
 * The prefix cache: a page whose positions are all computed can be published under a name that
 * stands for its tokens and all tokens before it. From then on other tables may hold it too. A
 * published page that no table holds stays where it is, idle, until its place is needed: the one
 * that was given back first goes first, and of a table the last page goes before the first. */
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
    bool prefix_cache;     /* pages can be published */
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

/* ---- prefix cache ---- */

/* 128-bit hash of a page's tokens, chained from the start of the context and its salt. */
typedef struct kv_name {
    uint64_t lo, hi;
} kv_name;
/* The name before page 0; salt NULL: none. */
kv_name kv_name_root(const char *salt);
/* Of the page with these tokens, [page_tokens], behind the page `before`. */
kv_name kv_name_next(kv_name before, const int32_t *token, int32_t page_tokens);

/* Lets an empty table hold the published pages of a context, as many leading ones as every group has
 * (one with a window: the pages that a query behind them sees), n_page at most; returns how many.
 * name: [n_page + 1], from the root on; token: [n_page * page_tokens], compared with what the pages
 * were published with. */
int32_t kv_find(kv_pools *p, kv_table *t, const kv_name *name, const int32_t *token,
                int32_t n_page);
/* Publishes a page that the table holds in each group; name: [logical + 2] from the root on, token:
 * the page's. Where another page has the name already, that one keeps it if tables hold it, and is
 * free again if none does. */
void kv_publish(kv_pools *p, const kv_table *t, int32_t logical, const kv_name *name,
                const int32_t *token);

/* ---- tables ---- */

/* Gives back the pages that no query at `position` or behind it sees. */
void kv_trim(kv_pools *p, kv_table *t, int32_t position);
/* Makes the table cover n_token positions; groups with a window only as far as steps can reach
 * before `position`, the next one to be computed, has left the first window. All or nothing: false
 * when a pool is empty, the table unchanged. */
bool kv_extend(kv_pools *p, kv_table *t, int32_t n_token, int32_t position);
/* Could a table that holds `n_held` leading pages, whichever, cover n_token positions? false is certain. */
bool kv_may_extend(const kv_pools *p, int32_t n_held, int32_t n_token);
/* Gives all pages back; published ones can be found again. */
void kv_release(kv_pools *p, kv_table *t);

/* Longest single request that empty pools can hold, in tokens. */
int32_t kv_capacity_tokens(const kv_pools *p);
int32_t kv_group_count(const kv_pools *p);
/* Pages that no table holds, idle ones too. */
int32_t kv_free(const kv_pools *p, int32_t group, int32_t dcp_rank);
int32_t kv_used(const kv_pools *p, int32_t group, int32_t dcp_rank);
int64_t kv_used_total(const kv_pools *p, int32_t group);
/* Published and idle, all pools of the group. */
int64_t kv_idle_total(const kv_pools *p, int32_t group);

#endif
