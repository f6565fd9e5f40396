/* weft bench kernels, attention: one layer's page attention of a block of a prompt and of decoding
 * requests, all shards on one rank. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"
#include "cli/bench_kernels.h"
#include "cli/cli.h"

enum { SHORT = 512, LONG = 4096, MANY = 64, COLD_PASSES = 2 };

static weft_status attn_add(bench *b, kernels *k, kernels_case what, weft_error *err) {
    bool decode = what.kind == KERNELS_DECODE;
    bench_case *c;
    weft_status s = bench_case_add(b, decode ? "attention decode" : "attention prefill",
                                   what.context, "", &c, err);
    if (s != WEFT_OK)
        return s;
    if (decode)
        snprintf(c->name, sizeof c->name, "decode, %d at %d", what.n_row, what.context);
    else
        snprintf(c->name, sizeof c->name, "prefill, %d of %d", what.n_row, what.context);
    k->cases[b->n_case - 1] = what;
    int32_t page = k->setup.k->profile.page_tokens, n = (what.context + page - 1) / page;
    n *= decode ? what.n_row : 1;
    k->n_page = n > k->n_page ? n : k->n_page;
    return WEFT_OK;
}

/* The first and a late block of a prompt; many short requests and a long one that decode. */
weft_status kernels_attn_list(bench *b, kernels *k, weft_error *err) {
    int32_t most = k->cfg->context_length;
    int32_t brief = most < SHORT ? most : SHORT, late = most < LONG ? most : LONG;
    weft_status s = attn_add(b, k, (kernels_case){KERNELS_PREFILL, 0, brief, brief}, err);
    if (s == WEFT_OK && late > brief)
        s = attn_add(b, k, (kernels_case){KERNELS_PREFILL, 0, brief, late}, err);
    if (s == WEFT_OK)
        s = attn_add(b, k, (kernels_case){KERNELS_DECODE, 0, MANY, brief}, err);
    if (s == WEFT_OK)
        s = attn_add(b, k, (kernels_case){KERNELS_DECODE, 0, 1, late}, err);
    return s;
}

static size_t page_bytes(const kernels *k) {
    return kern_kv_page_bytes(&k->kv);
}

void kernels_attn_plan(kernels *k) {
    const model_config *c = k->cfg;
    k->kv = (kern_kv){.type = k->setup.kv_type,
                      .n_kv_head = c->n_kv_head,
                      .head_dim = c->head_dim,
                      .value_dim = c->head_dim};
    k->kv.page_stride = page_bytes(k);
    tree_cover(k->k->profile.kv_shards, 0, k->k->profile.kv_shards, &k->shards);
    size_t heads = (size_t)KERNELS_ROWS * (size_t)c->n_head;
    kern_memory_add(&k->memory, "cache", (size_t)k->n_page * page_bytes(k), &k->kv.pages);
    kern_memory_add(&k->memory, "queries", heads * (size_t)c->head_dim * sizeof(float), &k->q);
    kern_memory_add(&k->memory, "states", heads * (size_t)(c->head_dim + 2) * sizeof(float),
                    &k->state);
    kern_memory_add(&k->memory, "spans", MANY * sizeof(kern_span), &k->spans);
    kern_memory_add(&k->memory, "page table", (size_t)k->n_page * sizeof(int32_t), &k->tables);
}

/* One page of random numbers in the cache's type, the same for all pages. */
static void page_fill(kernels *k, uint8_t *page) {
    uint64_t state = 2;
    size_t elem = kern_kv_elem(k->kv.type), n = page_bytes(k) / elem;
    for (size_t i = 0; i < n; i++) {
        float x = kernels_random(&state);
        uint16_t half = k->kv.type == KERN_KV_F16 ? f32_to_f16(x) : f32_to_bf16(x);
        memcpy(page + i * elem, k->kv.type == KERN_KV_F32 ? (const void *)&x : &half, elem);
    }
    for (int32_t i = 0; i < k->n_page; i++)
        k->k->upload(k->dev, kern_at(k->kv.pages, (size_t)i * page_bytes(k)), page, page_bytes(k));
}

weft_status kernels_attn_fill(kernels *k, weft_error *err) {
    size_t n = (size_t)KERNELS_ROWS * (size_t)k->cfg->n_head * (size_t)k->cfg->head_dim;
    uint8_t *page = malloc(page_bytes(k));
    float *q = malloc(n * sizeof *q);
    int32_t *table = malloc((size_t)k->n_page * sizeof *table);
    weft_status s = WEFT_OK;
    if (page && q && table) {
        uint64_t state = 3;
        page_fill(k, page);
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

/* Spans of a case, and what one call does. A query at position p takes part in (p + 1) dot products
 * of head_dim and in as many additions of a value row. */
static int32_t spans_make(kernels *k, const kernels_case *c, kernels_work *call) {
    kern_span span[MANY];
    int32_t tokens = k->k->profile.page_tokens, n = (c->context + tokens - 1) / tokens;
    bool decode = c->kind == KERNELS_DECODE;
    int32_t n_span = decode ? c->n_row : 1, len = decode ? 1 : c->n_row;
    double keys = 0;
    for (int32_t i = 0; i < n_span; i++) {
        span[i] = (kern_span){i, len, c->context - len, 0, i * n, n};
        keys += (double)len * (c->context - (len - 1) / 2.0);
    }
    k->k->upload(k->dev, k->spans, span, (size_t)n_span * sizeof *span);
    *call = (kernels_work){.ops = 4.0 * keys * k->cfg->n_head * k->cfg->head_dim,
                           .bytes = (double)n_span * n * (double)page_bytes(k)};
    return n_span;
}

weft_status kernels_attn_measure(kernels *k, const kernels_case *c, kernels_work *out) {
    static const double enough = 0.02;
    kernels_work call, sum = {.peak = KERN_PEAK_FMA};
    bool cold = c->kind == KERNELS_DECODE; /* a step reads other layers' pages in between */
    int32_t n_span = spans_make(k, c, &call);
    for (int32_t i = 0; cold ? i < COLD_PASSES : sum.seconds < enough; i++) {
        if (cli_interrupted)
            return WEFT_ERR_INTERRUPTED;
        if (cold)
            kern_peaks_evict(k->peaks);
        double t0 = wait_now_s();
        k->k->attn_fold(k->dev, &(kern_attn_fold){.kv = k->kv,
                                                  .n_head = k->cfg->n_head,
                                                  .scale = 1 / sqrtf((float)k->cfg->head_dim),
                                                  .q = k->q,
                                                  .n_span = n_span,
                                                  .spans = k->spans,
                                                  .tables = k->tables,
                                                  .kv_shards = k->k->profile.kv_shards,
                                                  .tree = &k->shards,
                                                  .state = k->state});
        sum.seconds += wait_now_s() - t0;
        sum.ops += call.ops;
        sum.bytes += call.bytes;
        sum.n_call++;
    }
    *out = sum;
    return WEFT_OK;
}
