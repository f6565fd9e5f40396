/* weft bench kernels: what matrices (bench_layers.c) and attention (bench_attn.c) share. */
#ifndef WEFT_CLI_BENCH_KERNELS_H
#define WEFT_CLI_BENCH_KERNELS_H

#include "cli/bench.h"
#include "engine/setup.h"
#include "kern/memory.h"
#include "kern/peak.h"
#include "model/model.h"

enum {
    KERNELS_ROWS = 512, /* token rows of the largest case */
    KERNELS_MAX_WIDTH = 16
};

/* Case i of the bench. */
typedef struct kernels_case {
    enum { KERNELS_PEAK, KERNELS_LAYERS, KERNELS_PREFILL, KERNELS_DECODE } kind;
    int32_t shape;   /* layers: place in the table of shapes; attention: group of layers */
    int32_t n_row;   /* token rows; decode: requests */
    int32_t context; /* attention: tokens of a request, the rows included */
} kernels_case;

/* What a measurement did. Operations stand with the peak of their arithmetic; what is there counts
 * multiplications and additions. */
typedef struct kernels_work {
    double ops[KERN_N_PEAK];
    double bytes, seconds; /* bytes: of weights or cache that must be read */
    int32_t n_call;
} kernels_work;

typedef struct kernels {
    model_desc *desc;
    const model_config *cfg;
    engine_setup setup;
    const kern_table *k;
    kern_dev *dev;
    kern_peaks *peaks;
    double peak[KERN_N_PEAK]; /* of this repeat */
    kernels_case cases[BENCH_MAX_CASE];
    kern_memory memory;
    int32_t counted; /* threads told to wait_threads_add */

    model_weights *w; /* of the layers that are measured, as the engine packs them */
    tree_prog one, tree[MODEL_MAX_LEAVES];
    /* Random rows, one activation for each width that a matrix reads, in the forms that are read. */
    int32_t n_width;
    kern_act in[KERNELS_MAX_WIDTH];
    kern_mem source, ones; /* they are made from */
    kern_act made;         /* results of gate and up */
    kern_mem out;          /* of all others */
    kern_act sorted, inner;
    kern_mem expert, order; /* experts that rows go to; scratch */

    int32_t layer_of[KV_MAX_GROUP]; /* first layer of each group; n_layer: none */
    kern_mem pages;                 /* the cache of one layer, of any group */
    size_t page_bytes;              /* the largest */
    int32_t n_page;                 /* in it */
    tree_prog shards;
    kern_mem q, state, spans, tables; /* tables: 0, 1, 2, ..., n_page - 1 */
} kernels;

float kernels_random(uint64_t *state); /* [-1, 1) */

/* bench_layers.c. The first layers' weights, as many as make a gibibyte; cuts the description to them. */
weft_status kernels_weights_plan(kernels *k, weft_error *err);
/* Cases of the matrices that the layers have. */
weft_status kernels_layers_list(bench *b, kernels *k, weft_error *err);
void kernels_layers_plan(kernels *k);
weft_status kernels_layers_fill(kernels *k, weft_error *err);
weft_status kernels_layers_measure(kernels *k, const kernels_case *c, kernels_work *out);

/* bench_attn.c; in the order of the calls. */
weft_status kernels_attn_list(bench *b, kernels *k, weft_error *err);
void kernels_attn_plan(kernels *k);
weft_status kernels_attn_fill(kernels *k, weft_error *err);
weft_status kernels_attn_measure(kernels *k, const kernels_case *c, kernels_work *out);

#endif
