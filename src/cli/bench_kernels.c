/* weft bench kernels: the operations of the model's own shapes and weights, beside the limits of
 * the machine measured in the same repeat.
 *
 * A case of a linear layer runs it over the model's layers one after the other, as a step does, so
 * that weights come from where they come from in a step: with few rows the caches are emptied
 * first, and the limit is reading the weights; with many it is arithmetic. Which of the two binds is
 * taken from the first repeat's limits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"
#include "cli/bench.h"
#include "cli/bench_kernels.h"
#include "cli/cli.h"
#include "model/model.h"

/* ---- what is packed ---- */

static void weight_plan(kernels *k, const load_tensor *from, kern_weight *to) {
    *to = (kern_weight){.type = (dtype)from->ggml_type,
                        .n_out = (int32_t)from->dim[1],
                        .n_in = (int32_t)from->dim[0]};
    kern_memory_add(&k->memory, from->name, kernels_weight_bytes(k, to), &to->data);
    k->quantised |= dtype_find(from->ggml_type)->quantised;
}

size_t kernels_weight_bytes(const kernels *k, const kern_weight *w) {
    return k->k->packed_bytes(w->type, w->n_out, w->n_in);
}

static const model_role roles[KERNELS_N_WEIGHT] = {MODEL_Q,    MODEL_K,  MODEL_V,   MODEL_O,
                                                   MODEL_GATE, MODEL_UP, MODEL_DOWN};

/* The shapes are those of a dense GQA layer, alike in all layers. */
static weft_status dense_only(const kernels *k, weft_error *err) {
    const model_layer *first = &k->desc->layer[0];
    for (int32_t i = 0; i < k->cfg->n_layer; i++) {
        const model_layer *l = &k->desc->layer[i];
        if (l->latent || l->ffn == 0 || l->ffn != first->ffn || l->head_dim != first->head_dim ||
            l->kv_from != i)
            return error_set(err, WEFT_ERR_SETUP,
                             "bench kernels measures models whose layers are all alike, with GQA "
                             "and a dense MLP; layer %d of this %s model is not",
                             i, k->cfg->architecture);
    }
    return WEFT_OK;
}

/* All layers, or as many as make a gibibyte: more would only cost time. */
static weft_status weights_plan(kernels *k, weft_error *err) {
    k->layer = calloc((size_t)k->cfg->n_layer, sizeof *k->layer);
    if (!k->layer)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d layers", k->cfg->n_layer);
    weight_plan(k, k->desc->head.t, &k->head);
    while (k->n_layer < k->cfg->n_layer && k->memory.bytes < (size_t)1 << 30) {
        const model_matrix *m = k->desc->layer[k->n_layer].m;
        kernels_layer *to = &k->layer[k->n_layer++];
        for (int32_t i = 0; i < KERNELS_N_WEIGHT; i++)
            weight_plan(k, m[roles[i]].t, &to->w[i]);
    }
    return WEFT_OK;
}

static void weights_pack(kernels *k) {
    k->k->pack(k->desc->head.t->data, 0, k->head.n_out, &k->head);
    for (int32_t i = 0; i < k->n_layer; i++) {
        const model_matrix *m = k->desc->layer[i].m;
        for (int32_t j = 0; j < KERNELS_N_WEIGHT; j++)
            k->k->pack(m[roles[j]].t->data, 0, k->layer[i].w[j].n_out, &k->layer[i].w[j]);
    }
}

/* ---- buffers ---- */

static int32_t max32(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static void act_plan(kernels *k, const char *name, kern_act *a, int32_t width) {
    a->k = width;
    kern_memory_add(&k->memory, name, (size_t)KERNELS_ROWS * (size_t)width * sizeof(float),
                    &a->f32);
    if (k->quantised)
        kern_memory_add(&k->memory, name, (size_t)KERNELS_ROWS * kern_act_q8_bytes(width), &a->q8);
}

static void buffers_plan(kernels *k) {
    const model_config *c = k->cfg;
    int32_t heads = c->n_head * c->head_dim;
    k->widest = max32(max32(c->hidden, c->ffn), heads);
    act_plan(k, "hidden rows", &k->hidden, c->hidden);
    act_plan(k, "head rows", &k->heads, heads);
    act_plan(k, "MLP rows", &k->inner, c->ffn);
    act_plan(k, "MLP results", &k->made, c->ffn);
    size_t qkv = (size_t)(c->n_head + 2 * c->n_kv_head) * (size_t)c->head_dim;
    size_t out = (size_t)KERNELS_ROWS * (qkv > (size_t)c->hidden ? qkv : (size_t)c->hidden);
    size_t logits = (size_t)MODEL_LOGIT_CHUNK * (size_t)c->n_vocab;
    kern_memory_add(&k->memory, "results", (out > logits ? out : logits) * sizeof(float), &k->out);
    kern_memory_add(&k->memory, "source", (size_t)KERNELS_ROWS * (size_t)k->widest * sizeof(float),
                    &k->source);
    kern_memory_add(&k->memory, "ones", (size_t)k->widest * sizeof(float), &k->ones);
    kernels_attn_plan(k);
}

float kernels_random(uint64_t *state) {
    return (float)((double)(bench_draw(state) >> 11) * 0x1p-52 - 1.0);
}

static weft_status buffers_fill(kernels *k, weft_error *err) {
    size_t n = (size_t)KERNELS_ROWS * (size_t)k->widest;
    float *x = malloc(n * sizeof *x);
    if (!x)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %zu random numbers", n);
    for (int32_t i = 0; i < k->widest; i++)
        x[i] = 1;
    k->k->upload(k->dev, k->ones, x, (size_t)k->widest * sizeof *x);
    uint64_t state = 1;
    for (size_t i = 0; i < n; i++)
        x[i] = kernels_random(&state);
    k->k->upload(k->dev, k->source, x, n * sizeof *x);
    free(x);
    kern_act *acts[] = {&k->hidden, &k->heads, &k->inner};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        k->k->reduce_norm(k->dev, &(kern_reduce_norm){.n_row = KERNELS_ROWS,
                                                      .hidden = acts[i]->k,
                                                      .x = k->source,
                                                      .weight = k->ones,
                                                      .x_scale = 1.0f,
                                                      .eps = k->cfg->rms_eps,
                                                      .out = *acts[i]});
    return kernels_attn_fill(k, err);
}

/* ---- linear layers ---- */

static kern_linear linear_of(kern_act x, int32_t n_row, const tree_prog *tree, int32_t leaves) {
    return (kern_linear){
        .x = x, .n_row = n_row, .n_in = x.k, .tree = tree, .leaf_in = x.k / leaves};
}

static void run_qkv(kernels *k, int32_t layer, int32_t n_row) {
    const kern_weight *w = k->layer[layer].w;
    int32_t q = w[KERNELS_Q].n_out, kv = w[KERNELS_K].n_out, stride = q + 2 * kv;
    kern_linear p = linear_of(k->hidden, n_row, &k->one, 1);
    p.n_part = 3;
    for (int32_t i = 0; i < 3; i++)
        p.part[i] = (kern_linear_part){
            .w = &w[KERNELS_Q + i],
            .n_out = w[KERNELS_Q + i].n_out,
            .y = kern_at(k->out, (size_t)(i ? q + (i - 1) * kv : 0) * sizeof(float)),
            .y_stride = stride};
    k->k->linear(k->dev, &p);
}

static void run_rows(kernels *k, const kern_weight *w, kern_act x, int32_t n_row,
                     const tree_prog *tree, int32_t leaves) {
    kern_linear p = linear_of(x, n_row, tree, leaves);
    p.n_part = 1;
    p.part[0] = (kern_linear_part){.w = w, .n_out = w->n_out, .y = k->out, .y_stride = w->n_out};
    p.node_bytes = (size_t)n_row * (size_t)w->n_out * sizeof(float);
    k->k->linear(k->dev, &p);
}

static void run_o(kernels *k, int32_t layer, int32_t n_row) {
    run_rows(k, &k->layer[layer].w[KERNELS_O], k->heads, n_row, &k->tree_o,
             k->setup.model.leaves_o);
}

/* The result is written in the form that the layer after it reads. */
static void run_swiglu(kernels *k, int32_t layer, int32_t n_row) {
    const kern_weight *w = k->layer[layer].w;
    bool q8 = dtype_find((uint32_t)w[KERNELS_DOWN].type)->quantised;
    kern_act out = {.k = k->made.k};
    *(q8 ? &out.q8 : &out.f32) = q8 ? k->made.q8 : k->made.f32;
    k->k->swiglu(k->dev, &(kern_swiglu){.x = k->hidden,
                                        .n_row = n_row,
                                        .gate = &w[KERNELS_GATE],
                                        .up = &w[KERNELS_UP],
                                        .n_out = k->made.k,
                                        .out = out});
}

static void run_down(kernels *k, int32_t layer, int32_t n_row) {
    run_rows(k, &k->layer[layer].w[KERNELS_DOWN], k->inner, n_row, &k->tree_down,
             k->setup.model.leaves_down);
}

static void run_head(kernels *k, int32_t layer, int32_t n_row) {
    (void)layer;
    run_rows(k, &k->head, k->hidden, n_row, &k->one, 1);
}

/* One shape: what runs it, and its weights [first, first + n_weight) of a layer; none: the head. */
static const struct shape {
    const char *name;
    void (*run)(kernels *k, int32_t layer, int32_t n_row);
    int32_t first, n_weight;
} shapes[] = {
    {"qkv", run_qkv, KERNELS_Q, 3},
    {"o", run_o, KERNELS_O, 1},
    {"gate+up", run_swiglu, KERNELS_GATE, 2},
    {"down", run_down, KERNELS_DOWN, 1},
    {"head", run_head, 0, 0},
};
enum { N_SHAPE = sizeof shapes / sizeof *shapes, COLD_ROWS = 63, COLD_PASSES = 2 };

static void layer_work(const kernels *k, const struct shape *s, int32_t layer, int32_t n_row,
                       kernels_work *sum) {
    const kern_weight *w = s->n_weight ? &k->layer[layer].w[s->first] : &k->head;
    for (int32_t i = 0; i < max32(s->n_weight, 1); i++) {
        sum->bytes += (double)kernels_weight_bytes(k, &w[i]);
        sum->ops += 2.0 * n_row * w[i].n_out * w[i].n_in;
    }
}

static weft_status linear_measure(kernels *k, const kernels_case *c, kernels_work *out) {
    static const double enough = 0.02;
    const struct shape *s = &shapes[c->shape];
    bool cold = c->n_row <= COLD_ROWS;
    int32_t n_layer = s->n_weight ? k->n_layer : 1;
    const kern_weight *w = s->n_weight ? &k->layer[0].w[s->first] : &k->head;
    kernels_work sum = {.peak = kern_peak_of(w->type)};
    for (int32_t pass = 0; cold ? pass < COLD_PASSES : sum.seconds < enough; pass++) {
        if (cold)
            kern_peaks_evict(k->peaks);
        double t0 = wait_now_s(), t1 = t0;
        for (int32_t i = 0; i < n_layer && (cold || t1 - t0 < 5 * enough); i++) {
            if (cli_interrupted)
                return WEFT_ERR_INTERRUPTED;
            s->run(k, i, c->n_row);
            layer_work(k, s, i, c->n_row, &sum);
            t1 = wait_now_s();
        }
        sum.seconds += t1 - t0;
        sum.n_call += 1;
    }
    *out = sum;
    return WEFT_OK;
}

/* ---- cases ---- */

static const struct {
    const char *name, *unit;
} peaks[KERN_N_PEAK] = {
    [KERN_PEAK_DOT4] = {"4-bit dot", "GOP/s"},
    [KERN_PEAK_DOT8] = {"8-bit dot", "GOP/s"},
    [KERN_PEAK_FMA] = {"fp32 FMA", "GFLOP/s"},
    [KERN_PEAK_READ] = {"memory read", "GB/s"},
};

static weft_status peak_add(bench *b, kernels *k, int32_t which, weft_error *err) {
    bench_case *c;
    weft_status s = bench_case_add(b, "machine", 0, peaks[which].unit, &c, err);
    if (s == WEFT_OK)
        snprintf(c->name, sizeof c->name, "machine, %s", peaks[which].name);
    k->cases[b->n_case - 1].kind = KERNELS_PEAK;
    return s;
}

static weft_status linear_add(bench *b, kernels *k, int32_t shape, int32_t n_row, weft_error *err) {
    bench_case *c;
    weft_status s = bench_case_add(b, shapes[shape].name, n_row, "", &c, err);
    if (s != WEFT_OK)
        return s;
    snprintf(c->name, sizeof c->name, "%s, %d row%s", shapes[shape].name, n_row,
             n_row == 1 ? "" : "s");
    k->cases[b->n_case - 1] = (kernels_case){KERNELS_LINEAR, shape, n_row, 0};
    return WEFT_OK;
}

static weft_status cases_list(bench *b, kernels *k, weft_error *err) {
    static const int32_t rows[] = {1, 4, 16, 64, KERNELS_ROWS};
    weft_status s = WEFT_OK;
    for (int32_t i = 0; i < KERN_N_PEAK && s == WEFT_OK; i++)
        s = peak_add(b, k, i, err);
    for (int32_t i = 0; i < N_SHAPE; i++)
        for (size_t j = 0; j < sizeof rows / sizeof *rows && s == WEFT_OK; j++) {
            bool head = shapes[i].n_weight == 0; /* gets its rows in chunks */
            if (!head || rows[j] <= MODEL_LOGIT_CHUNK)
                s = linear_add(b, k, i, rows[j], err);
        }
    return s == WEFT_OK ? kernels_attn_list(b, k, err) : s;
}

static weft_status kernels_start(bench *b, kernels *k, weft_error *err) {
    weft_status s = model_desc_load(b->v->model.path, &k->desc, err);
    if (s != WEFT_OK)
        return s;
    k->cfg = &k->desc->config;
    s = dense_only(k, err);
    if (s != WEFT_OK)
        return s;
    weft_engine_params p = b->v->engine;
    p.max_num_seqs = 1;
    s = engine_setup_make(k->desc, &p, &k->setup, err);
    if (s != WEFT_OK)
        return s;
    k->k = k->setup.k;
    b->isa = k->k->isa;
    b->n_thread = k->setup.p.n_thread;
    wait_threads_add(b->n_thread);
    k->counted = b->n_thread;
    tree_cover(1, 0, 1, &k->one);
    tree_cover(k->setup.model.leaves_o, 0, k->setup.model.leaves_o, &k->tree_o);
    tree_cover(k->setup.model.leaves_down, 0, k->setup.model.leaves_down, &k->tree_down);
    s = cases_list(b, k, err);
    if (s == WEFT_OK)
        s = weights_plan(k, err);
    if (s == WEFT_OK)
        s = kern_cpu_peaks_open(b->n_thread, &k->peaks, err);
    return s;
}

static weft_status kernels_open(bench *b, weft_error *err) {
    kernels *k = calloc(1, sizeof *k);
    if (!k)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a bench");
    b->body = k;
    weft_status s = kernels_start(b, k, err);
    if (s != WEFT_OK)
        return s;
    buffers_plan(k);
    s = kern_memory_commit(&k->memory, k->k, err);
    kern_limits limits = {.max_rows = KERNELS_ROWS,
                          .max_in = k->widest,
                          .max_head_dim = k->cfg->head_dim,
                          .max_group = k->cfg->n_head / k->cfg->n_kv_head};
    if (s == WEFT_OK)
        s = k->k->open(b->n_thread, &limits, &k->dev, err);
    if (s != WEFT_OK)
        return s;
    weights_pack(k);
    return buffers_fill(k, err);
}

static void kernels_close(bench *b) {
    kernels *k = b->body;
    if (!k)
        return;
    if (k->dev)
        k->k->close(k->dev);
    kern_peaks_close(k->peaks);
    wait_threads_add(-k->counted);
    if (k->k)
        kern_memory_release(&k->memory, k->k);
    model_desc_close(k->desc);
    free(k->layer);
    free(k);
}

/* Figure and limit in the unit of whichever binds: reading bytes or doing operations. */
static void sample_fill(const kernels *k, bench_case *c, int32_t repeat, const kernels_work *w,
                        bench_sample *out) {
    const double *peak = k->peak;
    if (repeat == 0) {
        kern_peak by =
            w->bytes / peak[KERN_PEAK_READ] > w->ops / peak[w->peak] ? KERN_PEAK_READ : w->peak;
        c->limit = peaks[by].name;
        c->unit = peaks[by].unit;
    }
    bool read = c->limit == peaks[KERN_PEAK_READ].name;
    *out = (bench_sample){.figure = (read ? w->bytes : w->ops) * 1e-9 / w->seconds,
                          .seconds = w->seconds / (double)w->n_call,
                          .limit = peak[read ? KERN_PEAK_READ : w->peak]};
}

static weft_status kernels_measure(bench *b, int32_t i, int32_t repeat, bench_sample *out,
                                   weft_error *err) {
    (void)err;
    kernels *k = b->body;
    const kernels_case *c = &k->cases[i];
    if (c->kind == KERNELS_PEAK) { /* the first cases, in the order of kern_peak */
        double t0 = wait_now_s();
        k->peak[i] = kern_peaks_measure(k->peaks, (kern_peak)i);
        *out = (bench_sample){.figure = k->peak[i], .seconds = wait_now_s() - t0};
        return WEFT_OK;
    }
    kernels_work w = {0};
    weft_status s =
        c->kind == KERNELS_LINEAR ? linear_measure(k, c, &w) : kernels_attn_measure(k, c, &w);
    if (s == WEFT_OK)
        sample_fill(k, &b->cases[i], repeat, &w, out);
    return s;
}

const bench_kind bench_kernels = {"kernels", kernels_open, kernels_measure, kernels_close};
