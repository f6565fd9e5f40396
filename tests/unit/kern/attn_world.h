/* A small attention problem on any ISA level, thread count, chunking and DCP cut, through the
 * kernel table; and its double-precision oracle. The cache is NaN wherever nothing was stored. */
#ifndef WEFT_TESTS_ATTN_WORLD_H
#define WEFT_TESTS_ATTN_WORLD_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kern/cpu/attn_isa.h"

/* Every level once; a machine may lack some. */
static const char *const levels[] = {"scalar", "avx2", "avx512vnni"};
enum { N_LEVEL = sizeof levels / sizeof *levels };
static const cpu_attn_isa *const micro_kernels[N_LEVEL] = {&cpu_attn_scalar, &cpu_attn_avx2,
                                                           &cpu_attn_avx512};

static inline bool has_level(const char *isa) {
    const kern_table *t;
    return kern_cpu_table(isa, &t, NULL) == WEFT_OK;
}

static const int32_t head_dims[] = {2, 4, 18, 32, 64, 80, 96, 128, 256};

enum { WORLD_REQS = 4, WORLD_PAGE = 16, WORLD_ROWS = 1024 };

typedef struct world_rng {
    uint64_t s;
} world_rng;

static inline uint64_t rng_next(world_rng *r) {
    r->s ^= r->s << 13;
    r->s ^= r->s >> 7;
    r->s ^= r->s << 17;
    return r->s * 0x2545f4914f6cdd1dull;
}
static inline int32_t rng_int(world_rng *r, int32_t lo, int32_t hi) { /* both included */
    return lo + (int32_t)(rng_next(r) % (uint64_t)(hi - lo + 1));
}
static inline float rng_float(world_rng *r) { /* [-1, 1) */
    return (float)((double)(rng_next(r) >> 11) * 0x1p-52 - 1.0);
}

/* What is computed. Queries stand at the last n_new positions of each request. */
typedef struct world {
    kern_kv_type type;
    int32_t head_dim, n_kv, group, kv_shards;
    int32_t value_dim; /* 0 before world_fill: head_dim */
    bool value_in_key;
    int32_t window; /* 0: none */
    bool has_sinks;
    float scale;
    int32_t n_req, len[WORLD_REQS], n_new[WORLD_REQS], first_key[WORLD_REQS];
    int32_t
        stored[WORLD_REQS]; /* positions that are in the cache; len, or less to poison the rest */
    int32_t n_q;            /* query rows: the requests' new tokens one after the other */
    float *q;               /* [n_q][n_head][head_dim] */
    float *sinks;           /* [n_head], has_sinks or not */
    float *k[WORLD_REQS];   /* [len][n_kv][head_dim], values that the type can hold */
    float *v[WORLD_REQS];   /* [len][n_kv][value_dim] */
    int32_t page[WORLD_REQS][64]; /* physical pages, scattered */
    int32_t n_page;
} world;

/* How it is computed. */
typedef struct world_run {
    const char *isa;
    int32_t n_thread, dcp;
    uint64_t chunk_seed; /* 0: one span per request; 1: spans of one token; else random cuts */
} world_run;

static inline int32_t world_heads(const world *w) {
    return w->n_kv * w->group;
}
static inline size_t world_q_floats(const world *w) {
    return (size_t)w->n_q * (size_t)world_heads(w) * (size_t)w->head_dim;
}
static inline size_t world_out_floats(const world *w) {
    return (size_t)w->n_q * (size_t)world_heads(w) * (size_t)w->value_dim;
}
/* First key that a query of request i at `pos` sees. */
static inline int32_t world_seen_from(const world *w, int32_t i, int32_t pos) {
    int32_t from = w->window > 0 ? pos - w->window + 1 : 0;
    return from > w->first_key[i] ? from : w->first_key[i];
}

static inline float world_rounded(kern_kv_type type, float x) {
    return type == KERN_KV_F32   ? x
           : type == KERN_KV_F16 ? f16_to_f32(f32_to_f16(x))
                                 : bf16_to_f32(f32_to_bf16(x));
}

static inline float *world_floats(size_t n) {
    float *p = malloc((n + 1) * sizeof *p);
    if (!p)
        abort();
    return p;
}

static inline float world_draw(world_rng *r, float factor) {
    static const float extremes[] = {0.0f, -0.0f, 6e-8f, -6e-8f, 1e-40f, -1e-40f, 1.0f, -3.5f};
    return rng_int(r, 0, 19) ? factor * rng_float(r) : extremes[rng_int(r, 0, 7)];
}

static inline float *world_draw_cache(kern_kv_type type, size_t n, world_rng *r) {
    float *x = world_floats(n);
    for (size_t e = 0; e < n; e++)
        x[e] = world_rounded(type, world_draw(r, 2.0f));
    return x;
}

/* Values inside keys: v again from k, which has changed. */
static inline void world_read_values(world *w) {
    size_t d = (size_t)w->head_dim, e = (size_t)w->value_dim;
    for (int32_t i = 0; i < w->n_req && w->value_in_key; i++)
        for (size_t head = 0; head < (size_t)w->len[i] * (size_t)w->n_kv; head++)
            memcpy(w->v[i] + head * e, w->k[i] + head * d, e * sizeof(float));
}

/* Sets sizes, draws values; len, n_new, first_key are filled by the caller before. */
static inline void world_fill(world *w, world_rng *r) {
    w->value_dim = w->value_dim ? w->value_dim : w->head_dim;
    w->scale = 1.0f / sqrtf((float)w->head_dim);
    w->n_q = 0;
    w->n_page = 0;
    for (int32_t i = 0; i < w->n_req; i++) {
        w->n_q += w->n_new[i];
        w->stored[i] = w->len[i];
        w->n_page += (w->len[i] + WORLD_PAGE - 1) / WORLD_PAGE;
        size_t heads = (size_t)w->len[i] * (size_t)w->n_kv;
        w->k[i] = world_draw_cache(w->type, heads * (size_t)w->head_dim, r);
        w->v[i] = world_draw_cache(w->type, heads * (size_t)w->value_dim, r);
    }
    world_read_values(w);
    w->q = world_floats(world_q_floats(w));
    for (size_t e = 0; e < world_q_floats(w); e++)
        w->q[e] = world_draw(r, 3.0f);
    w->sinks = world_floats((size_t)world_heads(w));
    for (int32_t h = 0; h < world_heads(w); h++)
        w->sinks[h] = world_draw(r, 4.0f);
    /* physical pages: a permutation, dealt out in turn */
    int32_t *deck = malloc((size_t)w->n_page * sizeof *deck);
    for (int32_t i = 0; i < w->n_page; i++) {
        int32_t at = rng_int(r, 0, i);
        deck[i] = deck[at];
        deck[at] = i;
    }
    int32_t n = 0;
    for (int32_t i = 0; i < w->n_req; i++)
        for (int32_t p = 0; p * WORLD_PAGE < w->len[i]; p++)
            w->page[i][p] = deck[n++];
    free(deck);
}

static inline void world_free(world *w) {
    for (int32_t i = 0; i < w->n_req; i++) {
        free(w->k[i]);
        free(w->v[i]);
    }
    free(w->q);
    free(w->sinks);
}

static inline void world_narrow(kern_kv_type type, const float *x, size_t n, uint8_t *out) {
    for (size_t i = 0; i < n; i++) {
        if (type == KERN_KV_F32) {
            memcpy(out + i * 4, x + i, 4);
            continue;
        }
        uint16_t h = type == KERN_KV_F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
        memcpy(out + i * 2, &h, 2);
    }
}

/* The pool has the pages of another layer (NaN) between those of this one. */
static inline kern_kv world_view(const world *w, uint8_t *pool) {
    kern_kv kv = {.type = w->type,
                  .n_kv_head = w->n_kv,
                  .head_dim = w->head_dim,
                  .value_dim = w->value_dim,
                  .value_in_key = w->value_in_key,
                  .pages = {(uintptr_t)pool}};
    kv.page_stride = 2 * kern_kv_page_bytes(&kv);
    return kv;
}

/* Stores a request's keys and values through the table, after filling the pool with NaN. */
static inline void world_store(const world *w, const kern_table *t, kern_dev *dev, uint8_t *pool,
                               size_t pool_bytes) {
    memset(pool, 0xff, pool_bytes);
    size_t k_row = (size_t)w->n_kv * (size_t)w->head_dim, elem = kern_kv_elem(w->type);
    size_t v_row = w->value_in_key ? 0 : (size_t)w->n_kv * (size_t)w->value_dim;
    for (int32_t i = 0; i < w->n_req; i++) {
        int32_t n = w->stored[i];
        uint8_t *wire = malloc((size_t)n * (k_row + v_row) * elem + 1);
        int32_t *slots = malloc((size_t)n * sizeof *slots + 1);
        for (int32_t p = 0; p < n; p++) {
            uint8_t *at = wire + (size_t)p * (k_row + v_row) * elem;
            world_narrow(w->type, w->k[i] + (size_t)p * k_row, k_row, at);
            world_narrow(w->type, w->v[i] + (size_t)p * v_row, v_row, at + k_row * elem);
            slots[p] = w->page[i][p / WORLD_PAGE] * WORLD_PAGE + p % WORLD_PAGE;
        }
        kern_kv_store s = {.kv = world_view(w, pool),
                           .n = n,
                           .wire = {(uintptr_t)wire},
                           .slots = {(uintptr_t)slots}};
        t->kv_store(dev, &s);
        t->drain(dev);
        free(wire);
        free(slots);
    }
}

/* Spans over the query rows; tables: request after request. */
static inline int32_t world_spans(const world *w, uint64_t chunk_seed, kern_span *spans) {
    world_rng r = {chunk_seed ? chunk_seed : 1};
    int32_t n = 0, q0 = 0, table = 0;
    for (int32_t i = 0; i < w->n_req; i++) {
        int32_t n_page = (w->len[i] + WORLD_PAGE - 1) / WORLD_PAGE;
        for (int32_t done = 0; done < w->n_new[i];) {
            int32_t left = w->n_new[i] - done;
            int32_t len = chunk_seed == 0 ? left : chunk_seed == 1 ? 1 : rng_int(&r, 1, left);
            spans[n++] = (kern_span){.q0 = q0 + done,
                                     .len = len,
                                     .pos = w->len[i] - w->n_new[i] + done,
                                     .first_key = w->first_key[i],
                                     .table = table,
                                     .n_page = n_page};
            done += len;
        }
        q0 += w->n_new[i];
        table += n_page;
    }
    return n;
}

/* A rank's page tables: pages that other ranks own, or that no query sees, are a number that must
 * never be used. */
static inline void world_tables(const world *w, int32_t shard_lo, int32_t shard_hi,
                                int32_t *tables) {
    int32_t n = 0;
    for (int32_t i = 0; i < w->n_req; i++)
        for (int32_t p = 0; p * WORLD_PAGE < w->len[i]; p++) {
            int32_t shard = 0;
            for (int32_t bit = 1, x = p % w->kv_shards; bit < w->kv_shards; bit *= 2, x /= 2)
                shard = shard * 2 + x % 2;
            bool own = shard >= shard_lo && shard < shard_hi;
            bool seen = p >= world_seen_from(w, i, w->len[i] - w->n_new[i]) / WORLD_PAGE;
            tables[n++] = own && seen ? w->page[i][p] : INT32_MIN / 2;
        }
}

typedef struct world_state {
    float *at;
    tree_prog cover;
} world_state;

/* out: [n_q][n_head * value_dim]. Returns false when the machine lacks the level. states: when not
 * NULL, [dcp], filled with each rank's nodes (caller frees at). */
static inline bool world_attend(const world *w, const world_run *run, float *out,
                                world_state *states) {
    const kern_table *t;
    kern_dev *dev;
    if (kern_cpu_table(run->isa, &t, NULL) != WEFT_OK)
        return false;
    int32_t n_head = world_heads(w);
    kern_limits limits = {.max_rows = WORLD_ROWS,
                          .max_in = n_head * w->value_dim,
                          .max_head_dim = w->head_dim > w->value_dim ? w->head_dim : w->value_dim,
                          .max_group = w->group};
    if (t->open(run->n_thread, &limits, &dev, NULL) != WEFT_OK)
        abort();
    size_t node = (size_t)w->value_dim + 2;
    size_t pool_bytes = (size_t)w->n_page * world_view(w, NULL).page_stride;
    uint8_t *pool = aligned_alloc(64, (pool_bytes + 64) / 64 * 64);
    world_store(w, t, dev, pool, pool_bytes);

    kern_span *spans = malloc((size_t)(w->n_q + 1) * sizeof *spans);
    int32_t *tables = malloc((size_t)(w->n_page + 1) * sizeof *tables);
    int32_t n_span = world_spans(w, run->chunk_seed, spans), cut[65], n_node = 0;
    world_state own[64];
    kern_mem nodes[64];
    size_t strides[64];
    for (int32_t r = 0; r <= run->dcp; r++)
        cut[r] = r * w->kv_shards / run->dcp;
    for (int32_t r = 0; r < run->dcp; r++) {
        tree_cover(w->kv_shards, cut[r], cut[r + 1], &own[r].cover);
        size_t stride = (size_t)own[r].cover.n_emit * node;
        size_t n = (size_t)w->n_q * (size_t)n_head * stride;
        own[r].at = world_floats(n);
        memset(own[r].at, 0xff, n * sizeof(float));
        world_tables(w, cut[r], cut[r + 1], tables);
        kern_attn_fold f = {.kv = world_view(w, pool),
                            .n_head = n_head,
                            .scale = w->scale,
                            .window = w->window,
                            .q = {(uintptr_t)w->q},
                            .n_span = n_span,
                            .spans = {(uintptr_t)spans},
                            .tables = {(uintptr_t)tables},
                            .kv_shards = w->kv_shards,
                            .shard0 = cut[r],
                            .tree = &own[r].cover,
                            .state = {(uintptr_t)own[r].at}};
        t->attn_fold(dev, &f);
        for (int32_t e = 0; e < own[r].cover.n_emit; e++) {
            nodes[n_node] = (kern_mem){(uintptr_t)(own[r].at + (size_t)e * node)};
            strides[n_node++] = stride * sizeof(float);
        }
    }
    tree_prog finish;
    tree_finish(w->kv_shards, cut, run->dcp, &finish);
    kern_attn_finish f = {.n_tok = w->n_q,
                          .n_head = n_head,
                          .value_dim = w->value_dim,
                          .sinks = {w->has_sinks ? (uintptr_t)w->sinks : 0},
                          .tree = &finish,
                          .node = nodes,
                          .node_stride = strides,
                          .out = {.k = n_head * w->value_dim, .f32 = {(uintptr_t)out}}};
    t->attn_finish(dev, &f);
    t->drain(dev);
    for (int32_t r = 0; r < run->dcp; r++)
        if (states)
            states[r] = own[r];
        else
            free(own[r].at);
    free(spans);
    free(tables);
    free(pool);
    t->close(dev);
    return true;
}

/* Plain softmax in double over the visible keys, and the sink; p: room for the keys. */
static inline void world_oracle_head(const world *w, int32_t i, int32_t pos, int32_t h,
                                     const float *q, double *p, double *o) {
    int32_t from = world_seen_from(w, i, pos), d_n = w->head_dim, e_n = w->value_dim;
    double top = w->has_sinks ? w->sinks[h] : -INFINITY, sum = 0;
    for (int32_t e = 0; e < e_n; e++)
        o[e] = 0;
    for (int32_t j = from; j <= pos; j++) {
        const float *k =
            w->k[i] + ((size_t)j * (size_t)w->n_kv + (size_t)(h / w->group)) * (size_t)d_n;
        p[j] = 0;
        for (int32_t d = 0; d < d_n; d++)
            p[j] += (double)q[d] * k[d];
        p[j] *= w->scale;
        top = p[j] > top ? p[j] : top;
    }
    for (int32_t j = from; j <= pos; j++) {
        const float *v =
            w->v[i] + ((size_t)j * (size_t)w->n_kv + (size_t)(h / w->group)) * (size_t)e_n;
        double weight = exp(p[j] - top);
        sum += weight;
        for (int32_t e = 0; e < e_n; e++)
            o[e] += weight * v[e];
    }
    if (w->has_sinks)
        sum += exp(w->sinks[h] - top);
    for (int32_t e = 0; e < e_n && sum > 0; e++)
        o[e] /= sum;
}

static inline void world_oracle(const world *w, double *out) {
    size_t n_head = (size_t)world_heads(w), row = 0;
    double *p = malloc(sizeof *p * 2048);
    for (int32_t i = 0; i < w->n_req; i++)
        for (int32_t t = 0; t < w->n_new[i]; t++)
            for (size_t h = 0; h < n_head; h++, row++)
                world_oracle_head(w, i, w->len[i] - w->n_new[i] + t, (int32_t)h,
                                  w->q + row * (size_t)w->head_dim, p,
                                  out + row * (size_t)w->value_dim);
    free(p);
}

#endif
