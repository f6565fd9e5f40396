/* Free lists of physical pages, one per DCP rank.
 *
 * Logical page i belongs to shard bitrev(i mod V) and so to the pool r with shard_cut[r] <= shard <
 * shard_cut[r + 1]. The owner repeats with period V, so one table of V entries answers for every
 * page:
 *
 *   V 16, dcp 2, cut {0, 8, 16}:   page   0 1 2 3 4 5 6 ...
 *                                  shard  0 8 4 12 2 10 6 ...
 *                                  pool   0 1 0 1 0 1 0 ...
 *
 * Pages are taken from and given back to the top of their pool's stack, so the pages that were used
 * last (and are warm in the caches) are used first. */
#include "kv/kv.h"

#include <assert.h>
#include <stdlib.h>

enum { MAX_SHARDS = 1 << 16 };

struct kv_pools {
    int32_t dcp, kv_shards, page_tokens, n_page;
    int32_t *owner;  /* [kv_shards] pool of logical page i mod kv_shards */
    int32_t *n_free; /* [dcp] */
    int32_t *free; /* [dcp][n_page] stacks; the top of pool r is free[r * n_page + n_free[r] - 1] */
};

static weft_status check_sizes(int32_t dcp, const int32_t *shard_cut, int32_t kv_shards,
                               int32_t page_tokens, int32_t n_page, weft_error *err) {
    if (kv_shards < 1 || kv_shards > MAX_SHARDS || (kv_shards & (kv_shards - 1)) != 0)
        return error_set(err, WEFT_ERR_SETUP,
                         "KV shards: %d is not a power of two between 1 and %d", kv_shards,
                         MAX_SHARDS);
    if (dcp < 1 || dcp > kv_shards)
        return error_set(err, WEFT_ERR_SETUP, "dcp: %d is not between 1 and the %d KV shards", dcp,
                         kv_shards);
    if (page_tokens < 1)
        return error_set(err, WEFT_ERR_SETUP, "page size: %d tokens; at least 1 is needed",
                         page_tokens);
    if (n_page < 1)
        return error_set(err, WEFT_ERR_SETUP, "KV cache: %d pages per rank; at least 1 is needed",
                         n_page);
    for (int32_t r = 0; r < dcp; r++)
        if (shard_cut[r] >= shard_cut[r + 1])
            return error_set(err, WEFT_ERR_SETUP,
                             "DCP rank %d owns the KV shards [%d, %d): no shard at all", r,
                             shard_cut[r], shard_cut[r + 1]);
    if (shard_cut[0] != 0 || shard_cut[dcp] != kv_shards)
        return error_set(err, WEFT_ERR_SETUP,
                         "the DCP ranks own the KV shards [%d, %d), not all of [0, %d)",
                         shard_cut[0], shard_cut[dcp], kv_shards);
    return WEFT_OK;
}

static int32_t page_shard(int32_t kv_shards, int32_t page) {
    int32_t shard = 0;
    for (int32_t bit = 1; bit < kv_shards; bit <<= 1)
        shard = shard << 1 | ((page & bit) != 0);
    return shard;
}

weft_status kv_open(int32_t dcp, const int32_t *shard_cut, int32_t kv_shards, int32_t page_tokens,
                    int32_t n_page, kv_pools **out, weft_error *err) {
    weft_status st = check_sizes(dcp, shard_cut, kv_shards, page_tokens, n_page, err);
    if (st != WEFT_OK)
        return st;
    kv_pools *p = calloc(1, sizeof *p);
    if (!p)
        goto undo_nothing;
    *p = (kv_pools){
        .dcp = dcp, .kv_shards = kv_shards, .page_tokens = page_tokens, .n_page = n_page};
    p->owner = calloc((size_t)kv_shards, sizeof *p->owner);
    p->n_free = calloc((size_t)dcp, sizeof *p->n_free);
    p->free = calloc((size_t)dcp * (size_t)n_page, sizeof *p->free);
    if (!p->owner || !p->n_free || !p->free)
        goto undo_pools;
    for (int32_t i = 0; i < kv_shards; i++)
        while (page_shard(kv_shards, i) >= shard_cut[p->owner[i] + 1])
            p->owner[i]++;
    for (int32_t r = 0; r < dcp; r++) {
        p->n_free[r] = n_page;
        for (int32_t i = 0; i < n_page; i++) /* page 0 on top */
            p->free[(int64_t)r * n_page + i] = n_page - 1 - i;
    }
    *out = p;
    return WEFT_OK;
undo_pools:
    kv_close(p);
undo_nothing:
    return error_set(err, WEFT_ERR_MEMORY, "no memory for the lists of %d x %d KV pages", dcp,
                     n_page);
}

void kv_close(kv_pools *p) {
    if (!p)
        return;
    free(p->owner);
    free(p->n_free);
    free(p->free);
    free(p);
}

static void shrink(kv_pools *p, kv_table *t, int32_t n_page) {
    while (t->n_page > n_page) {
        t->n_page--;
        int32_t r = p->owner[t->n_page % p->kv_shards];
        assert(p->n_free[r] < p->n_page);
        p->free[(int64_t)r * p->n_page + p->n_free[r]++] = t->page[t->n_page];
    }
}

bool kv_extend(kv_pools *p, kv_table *t, int32_t n_token) {
    int32_t want = (int32_t)(((int64_t)n_token + p->page_tokens - 1) / p->page_tokens);
    int32_t before = t->n_page;
    assert(want <= t->cap);
    while (t->n_page < want) {
        int32_t r = p->owner[t->n_page % p->kv_shards];
        if (p->n_free[r] == 0) {
            shrink(p, t, before); /* in reverse order: the stacks are as they were */
            return false;
        }
        t->page[t->n_page++] = p->free[(int64_t)r * p->n_page + --p->n_free[r]];
    }
    return true;
}

void kv_release(kv_pools *p, kv_table *t) {
    shrink(p, t, 0);
}

/* Of the logical pages that pool r owns, number n_page (from 0) is the first that does not fit; the
 * smallest of these over the pools is the number of whole pages that fit. Example: V 16, dcp 3, cut
 * {0, 5, 10, 16}, one page each: pages 0 (shard 0), 1 (shard 8) and 3 (shard 12) fit, but page 2
 * (shard 4) is pool 0's second: 2 pages. */
int32_t kv_capacity_tokens(const kv_pools *p) {
    int64_t fit = INT64_MAX;
    for (int32_t r = 0; r < p->dcp; r++) {
        int64_t owned = 0;
        for (int32_t i = 0; i < p->kv_shards; i++)
            owned += p->owner[i] == r;
        int64_t rest = p->n_page % owned;
        int32_t i = 0;
        for (;; i++)
            if (p->owner[i] == r && rest-- == 0)
                break;
        int64_t first_over = p->n_page / owned * p->kv_shards + i;
        if (first_over < fit)
            fit = first_over;
    }
    /* fit <= n_page * kv_shards < 2^47 */
    if (fit > INT32_MAX / p->page_tokens)
        return INT32_MAX / p->page_tokens * p->page_tokens;
    return (int32_t)fit * p->page_tokens;
}

int32_t kv_free(const kv_pools *p, int32_t dcp_rank) {
    return p->n_free[dcp_rank];
}

int64_t kv_used_total(const kv_pools *p) {
    int64_t used = 0;
    for (int32_t r = 0; r < p->dcp; r++)
        used += p->n_page - p->n_free[r];
    return used;
}
