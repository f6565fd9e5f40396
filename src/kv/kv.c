/* Pools of physical pages, one per group of layers and DCP rank, and the tables that hold them.
 *
 * Logical page i belongs to shard bitrev(i mod V) and so to the pools r with shard_cut[r] <= shard
 * < shard_cut[r + 1]. The owner repeats with period V, so one table of V entries answers for every
 * page:
 *
 *   V 16, dcp 2, cut {0, 8, 16}:   page   0 1 2 3 4 5 6 ...
 *                                  shard  0 8 4 12 2 10 6 ...
 *                                  pool   0 1 0 1 0 1 0 ...
 *
 * A page is free (on its pool's stack), held by one or more tables, or idle (published, in its pool's
 * list from oldest to newest). Free pages are taken first, from the top of the stack, so the pages
 * that were used last (and are warm in the caches) are used first; then the oldest idle one, which is
 * published no longer.
 *
 * In a group with a window of w tokens a request whose next position is p holds the pages of
 *
 *   [p - w + 1, max(p, w - 1) + max_new)     less at the ends of the request
 *
 * so their number is the same from the first step on, but for the pages at the edges: a long prompt
 * that has begun does not run out of pages half way. */
#include "kv/kv.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "kv/index.h"

enum { MAX_SHARDS = 1 << 16, MAX_POOLS = 64 };

typedef struct page_state {
    int32_t n_table; /* that hold it */
    bool published;
    kv_name name, before;
    int32_t older, newer; /* idle: neighbours in the pool's list; -1: none */
} page_state;

typedef struct pool_state {
    int32_t n_free, n_idle, oldest, newest;
} pool_state;

/* Of a group. A page's number is rank * n_page + its number in the pool. */
typedef struct pools {
    int32_t window, n_page;
    bool any_length;  /* a request of any length fits */
    pool_state *pool; /* [dcp] */
    int32_t *free;    /* [dcp][n_page] stacks of pages in the pool; the top is [n_free - 1] */
    page_state *page; /* [dcp][n_page] */
    int32_t *token;   /* NULL without prefix cache; [dcp][n_page][page_tokens] of published pages */
    kv_index index;
} pools;

struct kv_pools {
    int32_t dcp, kv_shards, page_tokens, max_new, n_group;
    int32_t *owner; /* [kv_shards] pool of logical page i mod kv_shards */
    pools group[KV_MAX_GROUP];
};

static weft_status check_groups(const kv_sizes *s, weft_error *err) {
    if (s->n_group < 1 || s->n_group > KV_MAX_GROUP)
        return error_set(err, WEFT_ERR_SETUP, "KV cache: %d groups of layers; 1 to %d are possible",
                         s->n_group, KV_MAX_GROUP);
    for (int32_t g = 0; g < s->n_group; g++) {
        if (s->group[g].n_page < 1)
            return error_set(err, WEFT_ERR_SETUP,
                             "KV cache: %d pages per rank; at least 1 is needed",
                             s->group[g].n_page);
        if (s->group[g].window < 0)
            return error_set(err, WEFT_ERR_SETUP, "KV cache: window of %d tokens; at least 0",
                             s->group[g].window);
    }
    return WEFT_OK;
}

static weft_status check_sizes(const kv_sizes *s, weft_error *err) {
    int32_t dcp = s->dcp, kv_shards = s->kv_shards;
    const int32_t *shard_cut = s->shard_cut;
    if (kv_shards < 1 || kv_shards > MAX_SHARDS || (kv_shards & (kv_shards - 1)) != 0)
        return error_set(err, WEFT_ERR_SETUP,
                         "KV shards: %d is not a power of two between 1 and %d", kv_shards,
                         MAX_SHARDS);
    int32_t most = kv_shards < MAX_POOLS ? kv_shards : MAX_POOLS;
    if (dcp < 1 || dcp > most)
        return error_set(err, WEFT_ERR_SETUP, "dcp: %d is not between 1 and %d (%d KV shards)", dcp,
                         most, kv_shards);
    if (s->page_tokens < 1)
        return error_set(err, WEFT_ERR_SETUP, "page size: %d tokens; at least 1 is needed",
                         s->page_tokens);
    if (s->max_new < 1)
        return error_set(err, WEFT_ERR_SETUP,
                         "KV cache: %d new tokens a step; at least 1 is needed", s->max_new);
    for (int32_t r = 0; r < dcp; r++)
        if (shard_cut[r] >= shard_cut[r + 1])
            return error_set(err, WEFT_ERR_SETUP,
                             "DCP rank %d owns the KV shards [%d, %d): no shard at all", r,
                             shard_cut[r], shard_cut[r + 1]);
    if (shard_cut[0] != 0 || shard_cut[dcp] != kv_shards)
        return error_set(err, WEFT_ERR_SETUP,
                         "the DCP ranks own the KV shards [%d, %d), not all of [0, %d)",
                         shard_cut[0], shard_cut[dcp], kv_shards);
    return check_groups(s, err);
}

static int32_t page_shard(int32_t kv_shards, int32_t page) {
    int32_t shard = 0;
    for (int32_t bit = 1; bit < kv_shards; bit <<= 1)
        shard = shard << 1 | ((page & bit) != 0);
    return shard;
}

int32_t kv_first_page(int32_t window, int32_t page_tokens, int32_t position) {
    return window > 0 && position >= window ? (position - window + 1) / page_tokens : 0;
}

static bool owns(const kv_sizes *s, int32_t r, int64_t page) {
    int32_t shard = page_shard(s->kv_shards, (int32_t)(page % s->kv_shards));
    return shard >= s->shard_cut[r] && shard < s->shard_cut[r + 1];
}

/* n positions touch at most (n - 2) / P + 2 pages; the most of so many neighbours that the rank
 * owns, wherever they begin. */
int32_t kv_window_pages(const kv_sizes *s, int32_t window, int32_t dcp_rank) {
    int64_t n_token = (int64_t)window - 1 + s->max_new;
    int64_t n_page = (n_token + s->page_tokens - 2) / s->page_tokens + 1;
    int64_t whole = n_page / s->kv_shards, rest = n_page % s->kv_shards;
    int32_t now = 0, most;
    for (int64_t page = 0; page < rest; page++)
        now += owns(s, dcp_rank, page);
    most = now;
    for (int32_t from = 1; from < s->kv_shards; from++) {
        now += owns(s, dcp_rank, from + rest - 1) - owns(s, dcp_rank, from - 1);
        most = now > most ? now : most;
    }
    return (int32_t)(whole * (s->shard_cut[dcp_rank + 1] - s->shard_cut[dcp_rank])) + most;
}

static bool group_open(pools *g, const kv_sizes *s, kv_group from) {
    *g = (pools){.window = from.window, .n_page = from.n_page, .any_length = from.window > 0};
    size_t all = (size_t)s->dcp * (size_t)g->n_page;
    g->pool = calloc((size_t)s->dcp, sizeof *g->pool);
    g->free = calloc(all, sizeof *g->free);
    g->page = calloc(all, sizeof *g->page);
    if (!g->pool || !g->free || !g->page)
        return false;
    if (s->prefix_cache) {
        g->token = calloc(all, (size_t)s->page_tokens * sizeof *g->token);
        if (!g->token || !kv_index_open(&g->index, (int64_t)all))
            return false;
    }
    for (int32_t r = 0; r < s->dcp; r++) {
        g->any_length &= g->window > 0 && kv_window_pages(s, g->window, r) <= g->n_page;
        g->pool[r] = (pool_state){.n_free = g->n_page, .oldest = -1, .newest = -1};
        for (int32_t i = 0; i < g->n_page; i++) /* page 0 on top */
            g->free[(int64_t)r * g->n_page + i] = g->n_page - 1 - i;
    }
    return true;
}

weft_status kv_open(const kv_sizes *s, kv_pools **out, weft_error *err) {
    weft_status st = check_sizes(s, err);
    if (st != WEFT_OK)
        return st;
    kv_pools *p = calloc(1, sizeof *p);
    if (!p)
        goto undo_nothing;
    *p = (kv_pools){.dcp = s->dcp,
                    .kv_shards = s->kv_shards,
                    .page_tokens = s->page_tokens,
                    .max_new = s->max_new,
                    .n_group = s->n_group};
    p->owner = calloc((size_t)s->kv_shards, sizeof *p->owner);
    if (!p->owner)
        goto undo_pools;
    for (int32_t i = 0; i < s->kv_shards; i++)
        while (page_shard(s->kv_shards, i) >= s->shard_cut[p->owner[i] + 1])
            p->owner[i]++;
    for (int32_t g = 0; g < s->n_group; g++)
        if (!group_open(&p->group[g], s, s->group[g]))
            goto undo_pools;
    *out = p;
    return WEFT_OK;
undo_pools:
    kv_close(p);
undo_nothing:
    return error_set(err, WEFT_ERR_MEMORY, "no memory for the lists of %d x %d KV pages", s->dcp,
                     s->group[0].n_page);
}

void kv_close(kv_pools *p) {
    if (!p)
        return;
    for (int32_t g = 0; g < p->n_group; g++) {
        kv_index_close(&p->group[g].index);
        free(p->group[g].token);
        free(p->group[g].page);
        free(p->group[g].free);
        free(p->group[g].pool);
    }
    free(p->owner);
    free(p);
}

/* ---- pages ---- */

static void idle_add(pools *g, int32_t r, int32_t number) {
    pool_state *l = &g->pool[r];
    page_state *n = &g->page[number];
    n->older = l->newest;
    n->newer = -1;
    *(l->newest >= 0 ? &g->page[l->newest].newer : &l->oldest) = number;
    l->newest = number;
    l->n_idle++;
}

static void idle_remove(pools *g, int32_t r, int32_t number) {
    pool_state *l = &g->pool[r];
    const page_state *n = &g->page[number];
    *(n->older >= 0 ? &g->page[n->older].newer : &l->oldest) = n->newer;
    *(n->newer >= 0 ? &g->page[n->newer].older : &l->newest) = n->older;
    l->n_idle--;
}

/* An idle page that is published no longer. */
static void unpublish(pools *g, int32_t number) {
    idle_remove(g, number / g->n_page, number);
    kv_index_remove(&g->index, g->page[number].name);
    g->page[number].published = false;
}

static void free_add(pools *g, int32_t number) {
    int32_t r = number / g->n_page;
    g->free[(int64_t)r * g->n_page + g->pool[r].n_free++] = number - r * g->n_page;
}

static void free_idle(pools *g, int32_t number) {
    unpublish(g, number);
    free_add(g, number);
}

/* A page of pool r for one table; there is one. */
static int32_t take_page(pools *g, int32_t r) {
    pool_state *l = &g->pool[r];
    int32_t number = l->oldest;
    if (l->n_free > 0) {
        number = r * g->n_page + g->free[(int64_t)r * g->n_page + --l->n_free];
    } else {
        assert(number >= 0);
        unpublish(g, number);
    }
    assert(g->page[number].n_table == 0);
    g->page[number].n_table = 1;
    return number - r * g->n_page;
}

static void give_back(kv_pools *p, int32_t group, int32_t logical, int32_t in_pool) {
    pools *g = &p->group[group];
    int32_t r = p->owner[logical % p->kv_shards];
    assert(in_pool >= 0 && in_pool < g->n_page);
    int32_t number = r * g->n_page + in_pool;
    page_state *n = &g->page[number];
    assert(n->n_table > 0);
    if (--n->n_table > 0)
        return;
    if (n->published)
        idle_add(g, r, number);
    else
        free_add(g, number);
}

/* ---- tables ---- */

static void shrink(kv_pools *p, kv_table *t, int32_t group, int32_t n_page) {
    while (t->n_page[group] > n_page) {
        int32_t i = --t->n_page[group];
        if (i >= t->first[group])
            give_back(p, group, i, t->page[group][i]);
    }
}

void kv_trim(kv_pools *p, kv_table *t, int32_t position) {
    for (int32_t g = 0; g < p->n_group; g++) {
        int32_t first = kv_first_page(p->group[g].window, p->page_tokens, position);
        assert(first <= t->cap);
        for (; t->first[g] < first; t->first[g]++) {
            if (t->first[g] < t->n_page[g])
                give_back(p, g, t->first[g], t->page[g][t->first[g]]);
            t->page[g][t->first[g]] = -1;
        }
        if (t->n_page[g] < first)
            t->n_page[g] = first;
    }
}

/* Logical pages that a group's table covers before the step from `position` on. */
static int32_t pages_wanted(const kv_pools *p, int32_t group, int32_t n_token, int32_t position) {
    int32_t window = p->group[group].window;
    int64_t end = n_token;
    if (window > 0) {
        int64_t reach = (position > window - 1 ? position : window - 1) + (int64_t)p->max_new;
        end = reach < end ? reach : end;
    }
    return (int32_t)((end + p->page_tokens - 1) / p->page_tokens);
}

/* The logical pages [from, to) of a group could all be taken now. */
static bool are_there(const kv_pools *p, int32_t group, int32_t from, int32_t to) {
    const pools *g = &p->group[group];
    int32_t lack[MAX_POOLS] = {0};
    for (int32_t i = from; i < to; i++) {
        int32_t r = p->owner[i % p->kv_shards];
        if (++lack[r] > g->pool[r].n_free + g->pool[r].n_idle)
            return false;
    }
    return true;
}

bool kv_may_extend(const kv_pools *p, int32_t n_held, int32_t n_token) {
    for (int32_t g = 0; g < p->n_group; g++) /* with a window, what is needed depends on more */
        if (p->group[g].window == 0 &&
            !are_there(p, g, n_held, (n_token + p->page_tokens - 1) / p->page_tokens))
            return false;
    return true;
}

bool kv_extend(kv_pools *p, kv_table *t, int32_t n_token, int32_t position) {
    int32_t want[KV_MAX_GROUP];
    for (int32_t g = 0; g < p->n_group; g++) {
        want[g] = pages_wanted(p, g, n_token, position);
        assert(want[g] <= t->cap);
        if (!are_there(p, g, t->n_page[g], want[g]))
            return false;
    }
    for (int32_t g = 0; g < p->n_group; g++)
        for (; t->n_page[g] < want[g]; t->n_page[g]++)
            t->page[g][t->n_page[g]] =
                take_page(&p->group[g], p->owner[t->n_page[g] % p->kv_shards]);
    return true;
}

void kv_release(kv_pools *p, kv_table *t) {
    for (int32_t g = 0; g < p->n_group; g++) {
        shrink(p, t, g, 0);
        t->first[g] = 0;
    }
}

/* ---- prefix cache ---- */

kv_name kv_name_root(const char *salt) {
    XXH128_hash_t h = XXH3_128bits(salt, salt ? strlen(salt) : 0);
    return (kv_name){h.low64, salt ? h.high64 : ~h.high64}; /* no salt is not the empty one */
}

kv_name kv_name_next(kv_name before, const int32_t *token, int32_t page_tokens) {
    XXH128_hash_t h =
        XXH3_128bits_withSeed(token, (size_t)page_tokens * sizeof *token, before.lo ^ before.hi);
    uint64_t chain[4] = {before.lo, before.hi, h.low64, h.high64};
    h = XXH3_128bits(chain, sizeof chain);
    return (kv_name){h.low64, h.high64};
}

/* The published page of this name and content; -1: none. name[0] is the one before it. */
static int32_t look_up(const kv_pools *p, int32_t group, const kv_name *name,
                       const int32_t *token) {
    const pools *g = &p->group[group];
    int32_t number = kv_index_find(&g->index, name[1]);
    if (number < 0)
        return -1;
    const kv_name *before = &g->page[number].before;
    bool equal = before->lo == name[0].lo && before->hi == name[0].hi &&
                 memcmp(g->token + (int64_t)number * p->page_tokens, token,
                        (size_t)p->page_tokens * sizeof *token) == 0;
    return equal ? number : -1;
}

/* The largest n up to n_page such that every group has what a query at n * page_tokens sees of pages
 * 0 .. n - 1. Going down: the last gap that a group has there ends n. A group without window that
 * has them all has all of fewer, too; the others are looked at again. */
static int32_t common_prefix(const kv_pools *p, const kv_name *name, const int32_t *token,
                             int32_t n_page) {
    int32_t n = n_page;
    bool has_all[KV_MAX_GROUP] = {false};
    for (int32_t g = 0; g < p->n_group && n > 0;) {
        int32_t window = p->group[g].window;
        int32_t first = kv_first_page(window, p->page_tokens, n * p->page_tokens);
        int32_t i = has_all[g] ? first - 1 : n - 1;
        while (i >= first && look_up(p, g, name + i, token + (int64_t)i * p->page_tokens) >= 0)
            i--;
        if (i < first) {
            has_all[g++] = window == 0;
        } else {
            n = i;
            g = 0;
        }
    }
    return n;
}

int32_t kv_find(kv_pools *p, kv_table *t, const kv_name *name, const int32_t *token,
                int32_t n_page) {
    int32_t n = common_prefix(p, name, token, n_page);
    for (int32_t group = 0; group < p->n_group; group++) {
        pools *g = &p->group[group];
        assert(t->n_page[group] == 0 && t->first[group] == 0 && n <= t->cap);
        t->first[group] = kv_first_page(g->window, p->page_tokens, n * p->page_tokens);
        t->n_page[group] = n;
        for (int32_t i = 0; i < n; i++) {
            t->page[group][i] = -1;
            if (i < t->first[group])
                continue;
            int32_t r = p->owner[i % p->kv_shards];
            int32_t number = look_up(p, group, name + i, token + (int64_t)i * p->page_tokens);
            if (g->page[number].n_table++ == 0)
                idle_remove(g, r, number);
            t->page[group][i] = number - r * g->n_page;
        }
    }
    return n;
}

void kv_publish(kv_pools *p, const kv_table *t, int32_t logical, const kv_name *name,
                const int32_t *token) {
    for (int32_t group = 0; group < p->n_group; group++) {
        pools *g = &p->group[group];
        assert(logical >= t->first[group] && logical < t->n_page[group]);
        int32_t number = p->owner[logical % p->kv_shards] * g->n_page + t->page[group][logical];
        page_state *n = &g->page[number];
        int32_t twin = kv_index_find(&g->index, name[logical + 1]);
        if (n->published || (twin >= 0 && g->page[twin].n_table > 0))
            continue;
        if (twin >= 0)
            free_idle(g, twin);
        n->published = true;
        n->name = name[logical + 1];
        n->before = name[logical];
        memcpy(g->token + (int64_t)number * p->page_tokens, token,
               (size_t)p->page_tokens * sizeof *token);
        kv_index_add(&g->index, n->name, number);
    }
}

/* ---- sizes ---- */

/* Whole pages of a request, from page 0 on, that empty pools of a group hold. Of the logical pages
 * that pool r owns, number n_page (from 0) is the first that does not fit; the smallest of these
 * over the pools is the number of whole pages that fit. Example: V 16, dcp 3, cut {0, 5, 10, 16},
 * one page each: pages 0 (shard 0), 1 (shard 8) and 3 (shard 12) fit, but page 2 (shard 4) is pool
 * 0's second: 2 pages. */
static int64_t whole_pages(const kv_pools *p, int32_t n_page) {
    int64_t fit = INT64_MAX;
    for (int32_t r = 0; r < p->dcp; r++) {
        int64_t owned = 0;
        for (int32_t i = 0; i < p->kv_shards; i++)
            owned += p->owner[i] == r;
        int64_t rest = n_page % owned;
        int32_t i = 0;
        for (;; i++)
            if (p->owner[i] == r && rest-- == 0)
                break;
        int64_t first_over = n_page / owned * p->kv_shards + i;
        if (first_over < fit)
            fit = first_over;
    }
    return fit;
}

int32_t kv_capacity_tokens(const kv_pools *p) {
    int64_t fit = INT32_MAX / p->page_tokens;
    for (int32_t g = 0; g < p->n_group; g++) {
        int64_t n = p->group[g].any_length ? fit : whole_pages(p, p->group[g].n_page);
        fit = n < fit ? n : fit;
    }
    return (int32_t)fit * p->page_tokens;
}

int32_t kv_group_count(const kv_pools *p) {
    return p->n_group;
}

int32_t kv_free(const kv_pools *p, int32_t group, int32_t dcp_rank) {
    const pool_state *l = &p->group[group].pool[dcp_rank];
    return l->n_free + l->n_idle;
}

int32_t kv_used(const kv_pools *p, int32_t group, int32_t dcp_rank) {
    return p->group[group].n_page - kv_free(p, group, dcp_rank);
}

int64_t kv_used_total(const kv_pools *p, int32_t group) {
    int64_t used = 0;
    for (int32_t r = 0; r < p->dcp; r++)
        used += kv_used(p, group, r);
    return used;
}

int64_t kv_idle_total(const kv_pools *p, int32_t group) {
    int64_t idle = 0;
    for (int32_t r = 0; r < p->dcp; r++)
        idle += p->group[group].pool[r].n_idle;
    return idle;
}
