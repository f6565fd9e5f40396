/* weft bench kernels: what linear layers (bench_kernels.c) and attention (bench_attn.c) share. */
#ifndef WEFT_CLI_BENCH_KERNELS_H
#define WEFT_CLI_BENCH_KERNELS_H

#include "cli/bench.h"
#include "engine/setup.h"
#include "kern/memory.h"
#include "kern/peak.h"
#include "model/model.h"

enum { KERNELS_ROWS = 512 /* token rows of the largest case */ };

enum {
    KERNELS_Q,
    KERNELS_K,
    KERNELS_V,
    KERNELS_O,
    KERNELS_GATE,
    KERNELS_UP,
    KERNELS_DOWN,
    KERNELS_N_WEIGHT
};
typedef struct kernels_layer {
    kern_weight w[KERNELS_N_WEIGHT];
} kernels_layer;

/* Case i of the bench. */
typedef struct kernels_case {
    enum { KERNELS_PEAK, KERNELS_LINEAR, KERNELS_PREFILL, KERNELS_DECODE } kind;
    int32_t shape;   /* linear */
    int32_t n_row;   /* token rows; decode: requests */
    int32_t context; /* attention: tokens of a request, the rows included */
} kernels_case;

/* What a measurement did. */
typedef struct kernels_work {
    double ops, bytes, seconds; /* bytes: of weights or cache that must be read */
    int32_t n_call;
    kern_peak peak; /* of the arithmetic */
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

    kernels_layer *layer; /* [n_layer] packed */
    int32_t n_layer;
    kern_weight head;
    bool quantised; /* some weight is */
    tree_prog one, tree_o, tree_down;
    int32_t widest;
    kern_act hidden, heads, inner, made;
    kern_mem out, source, ones;

    kern_kv kv;                       /* of one layer */
    int32_t n_page;                   /* in it */
    tree_prog shards;                 /* all of them, on this rank */
    kern_mem q, state, spans, tables; /* tables: 0, 1, 2, ..., n_page - 1 */
} kernels;

size_t kernels_weight_bytes(const kernels *k, const kern_weight *w);
float kernels_random(uint64_t *state); /* [-1, 1) */

/* bench_attn.c; in the order of the calls. */
weft_status kernels_attn_list(bench *b, kernels *k, weft_error *err);
void kernels_attn_plan(kernels *k);
weft_status kernels_attn_fill(kernels *k, weft_error *err);
weft_status kernels_attn_measure(kernels *k, const kernels_case *c, kernels_work *out);

#endif
