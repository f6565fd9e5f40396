/* weft bench kernels, attention: page attention of one layer of each group (those with the same window),
 * of a block of a prompt and of decoding requests, all shards on one rank. */
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"
#include "cli/bench_kernels.h"
#include "cli/cli.h"

enum { SHORT = 512, LONG = 4096, MANY = 64, COLD_PASSES = 2 };

static const model_layer *layer_of(const kernels *k, int32_t group) {
    return &k->desc->layer[k->layer_of[group]];
}

static int32_t pages_of(const kernels *k, int32_t tokens) {
    int32_t page = k->setup.k->profile.page_tokens;
    return (tokens + page - 1) / page;
}

static weft_status attn_add(bench *b, kernels *k, kernels_case what, weft_error *err) {
    bool decode = what.kind == KERNELS_DECODE;
    bench_case *c;
    weft_status s = bench_case_add(b, decode ? "attention decode" : "attention prefill",
                                   what.context, "", &c, err);
    if (s != WEFT_OK)
        return s;
    int32_t window = layer_of(k, what.shape)->window;
    int n = snprintf(c->name, sizeof c->name, "%s, %d %s %d", decode ? "decode" : "prefill",
                     what.n_row, decode ? "at" : "of", what.context);
    if (window > 0)
        snprintf(c->name + n, sizeof c->name - (size_t)n, ", window %d", window);
    k->cases[b->n_case - 1] = what;
    int32_t pages = pages_of(k, what.context) * (decode ? what.n_row : 1);
    k->n_page = pages > k->n_page ? pages : k->n_page;
    return WEFT_OK;
}

/* The first and a late block of a prompt; many short requests and a long one that decode. */
static weft_status group_list(bench *b, kernels *k, int32_t group, weft_error *err) {
    int32_t most = k->cfg->context_length;
    int32_t brief = most < SHORT ? most : SHORT, late = most < LONG ? most : LONG;
    const kernels_case cases[] = {{KERNELS_PREFILL, group, brief, brief},
                                  {KERNELS_PREFILL, group, brief, late},
                                  {KERNELS_DECODE, group, MANY, brief},
                                  {KERNELS_DECODE, group, 1, late}};
    weft_status s = WEFT_OK;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && s == WEFT_OK; i++)
        if (i != 1 || late > brief)
            s = attn_add(b, k, cases[i], err);
    return s;
}

weft_status kernels_attn_list(bench *b, kernels *k, weft_error *err) {
    weft_status s = WEFT_OK;
    for (int32_t g = 0; g < k->desc->n_group; g++) {
        k->layer_of[g] = 0;
        while (k->layer_of[g] < k->cfg->n_layer && layer_of(k, g)->group != g)
            k->layer_of[g]++;
        if (k->layer_of[g] < k->cfg->n_layer && s == WEFT_OK)
            s = group_list(b, k, g, err);
    }
    return s;
}

static kern_kv cache_of(const kernels *k, int32_t group) {
    const model_layer *l = layer_of(k, group);
    kern_kv kv = {.type = k->setup.kv_type,
                  .n_kv_head = l->n_kv_head,
                  .head_dim = l->head_dim,
                  .value_dim = l->value_dim,
                  .value_in_key = l->latent,
                  .pages = k->pages};
    kv.page_stride = kern_kv_page_bytes(&kv);
    return kv;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t query_floats(const kernels *k) {
    size_t n = 0;
    for (int32_t g = 0; g < k->desc->n_group; g++)
        if (k->layer_of[g] < k->cfg->n_layer)
            n = larger(n, (size_t)layer_of(k, g)->n_head * (size_t)layer_of(k, g)->head_dim);
    return KERNELS_ROWS * n;
}

void kernels_attn_plan(kernels *k) {
    size_t state = 0;
    for (int32_t g = 0; g < k->desc->n_group; g++) {
        if (k->layer_of[g] == k->cfg->n_layer)
            continue;
        const model_layer *l = layer_of(k, g);
        k->page_bytes = larger(k->page_bytes, cache_of(k, g).page_stride);
        state = larger(state, (size_t)l->n_head * (size_t)(l->value_dim + 2));
    }
    tree_cover(k->k->profile.kv_shards, 0, k->k->profile.kv_shards, &k->shards);
    kern_memory_add(&k->memory, "cache", (size_t)k->n_page * k->page_bytes, &k->pages);
    kern_memory_add(&k->memory, "queries", query_floats(k) * sizeof(float), &k->q);
    kern_memory_add(&k->memory, "states", KERNELS_ROWS * state * sizeof(float), &k->state);
    kern_memory_add(&k->memory, "spans", MANY * sizeof(kern_span), &k->spans);
    kern_memory_add(&k->memory, "page table", (size_t)k->n_page * sizeof(int32_t), &k->tables);
}

/* A page of random numbers in the cache's type, again and again. */
static void pages_fill(kernels *k, uint8_t *page) {
    uint64_t state = 2;
    size_t elem = kern_kv_elem(k->setup.kv_type), n = k->page_bytes / elem;
    for (size_t i = 0; i < n; i++) {
        float x = kernels_random(&state);
        uint16_t half = k->setup.kv_type == KERN_KV_F16 ? f32_to_f16(x) : f32_to_bf16(x);
        memcpy(page + i * elem, k->setup.kv_type == KERN_KV_F32 ? (const void *)&x : &half, elem);
    }
    for (int32_t i = 0; i < k->n_page; i++)
        k->k->upload(k->dev, kern_at(k->pages, (size_t)i * k->page_bytes), page, k->page_bytes);
}

weft_status kernels_attn_fill(kernels *k, weft_error *err) {
    size_t n = query_floats(k);
    uint8_t *page = malloc(k->page_bytes);
    float *q = malloc(n * sizeof *q);
    int32_t *table = malloc((size_t)k->n_page * sizeof *table);
    weft_status s = WEFT_OK;
    if (page && q && table) {
        uint64_t state = 3;
        pages_fill(k, page);
        for (size_t i = 0; i < n; i++)
            q[i] = kernels_random(&state);
        for (int32_t i = 0; i < k->n_page; i++)
            table[i] = i;
        k->k->upload(k->dev, k->q, q, n * sizeof *q);
        k->k->upload(k->dev, k->tables, table, (size_t)k->n_page * sizeof *table);
    } else {
        s = error_set(err, WEFT_ERR_MEMORY, "no memory for %d cache pages' contents", k->n_page);
    }
    free(table);
    free(q);
    free(page);
    return s;
}

/* Keys that the query at position p sees. */
static int32_t keys_seen(int32_t p, int32_t window) {
    return window > 0 && p + 1 > window ? window : p + 1;
}

/* Pages with a key that a query at positions [first, last] sees. */
static int32_t pages_seen(const kernels *k, int32_t first, int32_t last, int32_t window) {
    int32_t from = first + 1 - keys_seen(first, window), page = k->k->profile.page_tokens;
    return last / page - from / page + 1;
}

/* Spans of a case, and what one call does: a key that a query sees costs each head a dot product of
 * head_dim and the addition of a value row. */
static int32_t spans_make(kernels *k, const kernels_case *c, kernels_work *call) {
    const model_layer *l = layer_of(k, c->shape);
    kern_span span[MANY];
    int32_t n = pages_of(k, c->context);
    bool decode = c->kind == KERNELS_DECODE;
    int32_t n_span = decode ? c->n_row : 1, len = decode ? 1 : c->n_row;
    int32_t first = c->context - len;
    double keys = 0;
    for (int32_t i = 0; i < n_span; i++)
        span[i] = (kern_span){i, len, first, 0, i * n, n};
    for (int32_t i = 0; i < len; i++)
        keys += keys_seen(first + i, l->window);
    k->k->upload(k->dev, k->spans, span, (size_t)n_span * sizeof *span);
    kern_kv kv = cache_of(k, c->shape);
    int32_t pages = pages_seen(k, first, c->context - 1, l->window);
    *call = (kernels_work){.bytes = (double)n_span * pages * (double)kern_kv_page_bytes(&kv)};
    call->ops[KERN_PEAK_FMA] = 2.0 * n_span * keys * l->n_head * (l->head_dim + l->value_dim);
    return n_span;
}

weft_status kernels_attn_measure(kernels *k, const kernels_case *c, kernels_work *out) {
    static const double enough = 0.02;
    const model_layer *l = layer_of(k, c->shape);
    kernels_work call, sum = {0};
    bool cold = c->kind == KERNELS_DECODE; /* a step reads other layers' pages in between */
    int32_t n_span = spans_make(k, c, &call);
    for (int32_t i = 0; cold ? i < COLD_PASSES : sum.seconds < enough; i++) {
        if (cli_interrupted)
            return WEFT_ERR_INTERRUPTED;
        if (cold)
            kern_peaks_evict(k->peaks);
        double t0 = wait_now_s();
        k->k->attn_fold(k->dev, &(kern_attn_fold){.kv = cache_of(k, c->shape),
                                                  .n_head = l->n_head,
                                                  .scale = l->scale,
                                                  .window = l->window,
                                                  .q = k->q,
                                                  .n_span = n_span,
                                                  .spans = k->spans,
                                                  .tables = k->tables,
                                                  .kv_shards = k->k->profile.kv_shards,
                                                  .tree = &k->shards,
                                                  .state = k->state});
        sum.seconds += wait_now_s() - t0;
        sum.ops[KERN_PEAK_FMA] += call.ops[KERN_PEAK_FMA];
        sum.bytes += call.bytes;
        sum.n_call++;
    }
    *out = sum;
    return WEFT_OK;
}
