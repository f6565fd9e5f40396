/* weft bench kernels, matrices: dense layers, latent attention's projections, experts, the head.
 *
 * A case runs one shape over all layers that have it, one after the other, as a step does, so that
 * weights come from where they come from in a step: with few rows the caches are emptied first, and
 * the limit is reading the weights; with many it is arithmetic. */
#include <stdlib.h>

#include "base/wait.h"
#include "cli/bench_kernels.h"
#include "cli/cli.h"

/* ---- shapes ---- */

enum { MAX_ROLE = 5, COLD_ROWS = 63, COLD_PASSES = 2 };
typedef struct layer_run layer_run;
typedef struct shape {
    const char *name;
    void (*run)(kernels *k, const layer_run *l, int32_t n_row);
    model_role role[MAX_ROLE];
    int32_t n_role; /* 0: the head */
} shape;

/* What a shape reads in one layer: its weights, by role; absent ones are left out. */
struct layer_run {
    const kern_weight *w[MAX_ROLE];
    model_role role[MAX_ROLE];
    int32_t n;
    const model_layer_weights *layer; /* NULL: the head */
};

static void run_columns(kernels *k, const layer_run *l, int32_t n_row);
static void run_each(kernels *k, const layer_run *l, int32_t n_row);
static void run_rows(kernels *k, const layer_run *l, int32_t n_row);
static void run_gated(kernels *k, const layer_run *l, int32_t n_row);
static void run_experts(kernels *k, const layer_run *l, int32_t n_row);

static const shape shapes[] = {
    {"qkv", run_columns, {MODEL_Q, MODEL_K, MODEL_V}, 3},
    {"latent qkv", run_each, {MODEL_Q_A, MODEL_Q_NOPE, MODEL_Q_ROPE, MODEL_KV_A, MODEL_K_UP}, 5},
    {"values", run_each, {MODEL_V_UP}, 1},
    {"o", run_rows, {MODEL_O}, 1},
    {"gate+up", run_gated, {MODEL_GATE, MODEL_UP}, 2},
    {"down", run_rows, {MODEL_DOWN}, 1},
    {"router", run_each, {MODEL_ROUTER}, 1},
    {"experts", run_experts, {MODEL_EXPERT_GATE, MODEL_EXPERT_UP, MODEL_EXPERT_DOWN}, 3},
    {"shared gate+up", run_gated, {MODEL_SHARED_GATE, MODEL_SHARED_UP}, 2},
    {"shared down", run_rows, {MODEL_SHARED_DOWN}, 1},
    {"layer input", run_each, {MODEL_PLE_GATE, MODEL_PLE_OUT}, 2},
    {"head", run_each, {0}, 0},
};
enum { N_SHAPE = sizeof shapes / sizeof *shapes };

static layer_run layer_of(const kernels *k, const shape *s, int32_t layer) {
    if (s->n_role == 0)
        return (layer_run){.w = {&k->w->head}, .role = {MODEL_N_MATRIX}, .n = 1};
    layer_run out = {.layer = &k->w->layer[layer]};
    for (int32_t i = 0; i < s->n_role; i++)
        if (out.layer->w[s->role[i]].n_in > 0) {
            out.role[out.n] = s->role[i];
            out.w[out.n++] = &out.layer->w[s->role[i]];
        }
    return out;
}

static int32_t layers_of(const kernels *k, const shape *s) {
    return s->n_role > 0 ? k->cfg->n_layer : 1;
}

/* Heads whose columns lie side by side in what the matrix reads; 0: each output reads all of it. */
static int32_t heads_of(const kernels *k, model_role role) {
    return role == MODEL_K_UP || role == MODEL_V_UP ? k->cfg->n_head : 0;
}

static int32_t width_of(const kernels *k, const kern_weight *w, model_role role) {
    int32_t heads = heads_of(k, role);
    return heads > 0 ? heads * w->n_in : w->n_in;
}

static bool is_expert(model_role role) {
    return role == MODEL_EXPERT_GATE || role == MODEL_EXPERT_UP || role == MODEL_EXPERT_DOWN;
}

/* ---- running one ---- */

static const kern_act *rows_of(const kernels *k, int32_t width) {
    const kern_act *a = k->in;
    while (a->k != width)
        a++;
    return a;
}

/* One pass over the rows for all matrices, their outputs side by side. */
static void run_columns(kernels *k, const layer_run *l, int32_t n_row) {
    kern_linear p = {.x = *rows_of(k, l->w[0]->n_in),
                     .n_row = n_row,
                     .n_in = l->w[0]->n_in,
                     .n_part = l->n,
                     .tree = &k->one,
                     .leaf_in = l->w[0]->n_in};
    int32_t stride = 0, at = 0;
    for (int32_t i = 0; i < l->n; i++)
        stride += l->w[i]->n_out;
    for (int32_t i = 0; i < l->n; at += l->w[i++]->n_out)
        p.part[i] = (kern_linear_part){.w = l->w[i],
                                       .n_out = l->w[i]->n_out,
                                       .y = kern_at(k->out, (size_t)at * sizeof(float)),
                                       .y_stride = stride};
    k->k->linear(k->dev, &p);
}

static void run_each(kernels *k, const layer_run *l, int32_t n_row) {
    for (int32_t i = 0; i < l->n; i++) {
        const kern_weight *w = l->w[i];
        int32_t heads = heads_of(k, l->role[i]);
        k->k->linear(
            k->dev,
            &(kern_linear){.x = *rows_of(k, width_of(k, w, l->role[i])),
                           .n_row = n_row,
                           .n_in = w->n_in,
                           .n_part = 1,
                           .part = {{.w = w, .n_out = w->n_out, .y = k->out, .y_stride = w->n_out}},
                           .tree = &k->one,
                           .leaf_in = w->n_in,
                           .group_out = heads > 0 ? w->n_out / heads : 0});
    }
}

static int32_t leaves_at(const layer_run *l) {
    switch (l->role[0]) {
    case MODEL_O:
        return l->layer->o;
    case MODEL_SHARED_DOWN:
        return l->layer->shared_down;
    case MODEL_EXPERT_GATE:
        return l->layer->expert_down;
    default:
        return l->layer->down;
    }
}

/* Row-parallel: in leaves, walked by their tree. */
static void run_rows(kernels *k, const layer_run *l, int32_t n_row) {
    const kern_weight *w = l->w[0];
    int32_t at = leaves_at(l);
    k->k->linear(
        k->dev,
        &(kern_linear){.x = *rows_of(k, w->n_in),
                       .n_row = n_row,
                       .n_in = w->n_in,
                       .n_part = 1,
                       .part = {{.w = w, .n_out = w->n_out, .y = k->out, .y_stride = w->n_out}},
                       .tree = &k->tree[at],
                       .leaf_in = w->n_in / k->w->leaves[at].leaves,
                       .node_bytes = (size_t)n_row * (size_t)w->n_out * sizeof(float)});
}

/* `a` in the forms that these matrices read. */
static kern_act forms_of(kern_act a, int32_t width, const kern_weight *one,
                         const kern_weight *other) {
    bool codes = false, floats = false;
    for (int32_t i = 0; i < 2; i++) {
        bool quantised = dtype_find((uint32_t)(i ? other : one)->type)->quantised;
        codes |= quantised;
        floats |= !quantised;
    }
    a.k = width;
    if (!floats)
        a.f32 = (kern_mem){0};
    if (!codes)
        a.q8 = (kern_mem){0};
    return a;
}

/* The result is written in the form that the matrix after it reads. */
static void run_gated(kernels *k, const layer_run *l, int32_t n_row) {
    bool shared = l->role[0] == MODEL_SHARED_GATE;
    const kern_weight *down = &l->layer->w[shared ? MODEL_SHARED_DOWN : MODEL_DOWN];
    k->k->swiglu(k->dev, &(kern_swiglu){.x = *rows_of(k, l->w[0]->n_in),
                                        .n_row = n_row,
                                        .gate = l->w[0],
                                        .up = l->w[1],
                                        .n_out = down->n_in,
                                        .rule = k->cfg->glu,
                                        .out = forms_of(k->made, down->n_in, down, down)});
}

static void run_experts(kernels *k, const layer_run *l, int32_t n_row) {
    const model_moe *m = &k->cfg->moe;
    int32_t at = leaves_at(l);
    k->k->experts(k->dev,
                  &(kern_experts){.x = *rows_of(k, k->cfg->hidden),
                                  .n_row = n_row,
                                  .n_expert = m->n_expert,
                                  .n_used = m->n_used,
                                  .expert = k->expert,
                                  .gate = l->w[0],
                                  .up = l->w[1],
                                  .down = l->w[2],
                                  .gate_bias = model_vector(l->layer, MODEL_EXPERT_GATE_BIAS),
                                  .up_bias = model_vector(l->layer, MODEL_EXPERT_UP_BIAS),
                                  .rule = k->cfg->glu,
                                  .n_in = m->ffn,
                                  .tree = &k->tree[at],
                                  .leaf_in = m->ffn / k->w->leaves[at].leaves,
                                  .sorted = forms_of(k->sorted, k->cfg->hidden, l->w[0], l->w[1]),
                                  .inner = forms_of(k->inner, m->ffn, l->w[2], l->w[2]),
                                  .order = k->order,
                                  .nodes = k->out,
                                  .node_bytes = (size_t)n_row * (size_t)m->n_used *
                                                (size_t)k->cfg->hidden * sizeof(float)});
}

/* ---- planning ---- */

static weft_status weights_open(kernels *k, weft_error *err) {
    model_weights_close(k->w);
    k->w = NULL;
    return model_weights_open(k->desc, k->k, 1, &k->w, err);
}

weft_status kernels_weights_plan(kernels *k, weft_error *err) {
    static const size_t enough = (size_t)1 << 30; /* more would only cost time */
    weft_status s = weights_open(k, err);
    while (s == WEFT_OK && k->w->memory.bytes > enough && k->cfg->n_layer > 1) {
        int32_t n = (int32_t)((size_t)k->cfg->n_layer * enough / k->w->memory.bytes) + 1;
        k->desc->config.n_layer = n < k->cfg->n_layer ? n : k->cfg->n_layer - 1;
        s = weights_open(k, err);
    }
    tree_cover(1, 0, 1, &k->one);
    for (int32_t i = 0; s == WEFT_OK && i < k->w->n_leaves; i++)
        tree_cover(k->w->leaves[i].leaves, 0, k->w->leaves[i].leaves, &k->tree[i]);
    return s;
}

static weft_status case_add(bench *b, kernels *k, int32_t at, int32_t n_row, weft_error *err) {
    bench_case *c;
    weft_status s = bench_case_add(b, shapes[at].name, n_row, "", &c, err);
    if (s != WEFT_OK)
        return s;
    snprintf(c->name, sizeof c->name, "%s, %d row%s", shapes[at].name, n_row,
             n_row == 1 ? "" : "s");
    k->cases[b->n_case - 1] = (kernels_case){KERNELS_LAYERS, at, n_row, 0};
    return WEFT_OK;
}

weft_status kernels_layers_list(bench *b, kernels *k, weft_error *err) {
    static const int32_t rows[] = {1, 4, 16, 64, KERNELS_ROWS};
    weft_status s = WEFT_OK;
    for (int32_t i = 0; i < N_SHAPE; i++) {
        int32_t n_layer = 0;
        for (int32_t j = 0; j < layers_of(k, &shapes[i]); j++)
            n_layer += layer_of(k, &shapes[i], j).n > 0;
        for (size_t j = 0; n_layer > 0 && j < sizeof rows / sizeof *rows && s == WEFT_OK; j++) {
            bool head = shapes[i].n_role == 0; /* gets its rows in chunks */
            if (!head || rows[j] <= MODEL_LOGIT_CHUNK)
                s = case_add(b, k, i, rows[j], err);
        }
    }
    return s;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Rows of floats, and of codes where the width allows them. */
static void act_plan(kernels *k, const char *name, kern_act *a, int32_t width, int32_t rows) {
    a->k = width;
    kern_memory_add(&k->memory, name, (size_t)rows * (size_t)width * sizeof(float), &a->f32);
    if (width % 32 == 0)
        kern_memory_add(&k->memory, name, (size_t)rows * kern_act_q8_bytes(width), &a->q8);
}

static void width_add(kernels *k, int32_t width) {
    for (int32_t i = 0; i < k->n_width; i++)
        if (k->in[i].k == width)
            return;
    act_plan(k, "rows", &k->in[k->n_width++], width, KERNELS_ROWS);
}

static int32_t widest_of(const kernels *k) {
    int32_t widest = 0;
    for (int32_t i = 0; i < k->n_width; i++)
        widest = k->in[i].k > widest ? k->in[i].k : widest;
    return widest;
}

/* Widths and results of one shape in one layer. */
static void run_plan(kernels *k, const layer_run *l, size_t *out, int32_t *made) {
    int32_t n_out = 0;
    for (int32_t i = 0; i < l->n; i++) {
        bool slots = l->role[i] == MODEL_EXPERT_DOWN;
        if (!slots)
            width_add(k, width_of(k, l->w[i], l->role[i]));
        n_out += l->w[i]->n_out;
        if ((l->role[i] == MODEL_GATE || l->role[i] == MODEL_SHARED_GATE) && l->w[i]->n_out > *made)
            *made = l->w[i]->n_out;
    }
    size_t rows = l->layer ? KERNELS_ROWS : MODEL_LOGIT_CHUNK;
    *out = larger(*out, rows * (size_t)n_out);
}

void kernels_layers_plan(kernels *k) {
    const model_moe *m = &k->cfg->moe;
    size_t out = 0, slots = (size_t)KERNELS_ROWS * (size_t)m->n_used;
    int32_t made = 0;
    for (int32_t i = 0; i < N_SHAPE; i++)
        for (int32_t j = 0; j < layers_of(k, &shapes[i]); j++) {
            layer_run l = layer_of(k, &shapes[i], j);
            run_plan(k, &l, &out, &made);
        }
    if (made > 0)
        act_plan(k, "MLP results", &k->made, made, KERNELS_ROWS);
    if (m->n_expert > 0) {
        act_plan(k, "rows by expert", &k->sorted, k->cfg->hidden, (int32_t)slots);
        act_plan(k, "experts' rows", &k->inner, m->ffn, (int32_t)slots);
        kern_memory_add(&k->memory, "experts", slots * sizeof(int32_t), &k->expert);
        kern_memory_add(&k->memory, "order", (slots + (size_t)m->n_expert) * sizeof(int32_t),
                        &k->order);
        out = larger(out, slots * (size_t)k->cfg->hidden);
    }
    size_t ones = (size_t)widest_of(k) * sizeof(float);
    kern_memory_add(&k->memory, "results", out * sizeof(float), &k->out);
    kern_memory_add(&k->memory, "source", KERNELS_ROWS * ones, &k->source);
    kern_memory_add(&k->memory, "ones", ones, &k->ones);
}

/* ---- contents ---- */

static void rows_fill(kernels *k, float *x) {
    int32_t widest = widest_of(k);
    for (int32_t i = 0; i < widest; i++)
        x[i] = 1;
    k->k->upload(k->dev, k->ones, x, (size_t)widest * sizeof *x);
    uint64_t state = 1;
    size_t n = (size_t)KERNELS_ROWS * (size_t)widest;
    for (size_t i = 0; i < n; i++)
        x[i] = kernels_random(&state);
    k->k->upload(k->dev, k->source, x, n * sizeof *x);
    for (int32_t i = 0; i < k->n_width; i++)
        k->k->reduce_norm(k->dev, &(kern_reduce_norm){.n_row = KERNELS_ROWS,
                                                      .hidden = k->in[i].k,
                                                      .x = k->source,
                                                      .weight = k->ones,
                                                      .x_scale = 1.0f,
                                                      .eps = k->cfg->rms_eps,
                                                      .out = k->in[i]});
}

static int ascending(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Rows go to all experts in turn: row r to numbers r n_used, r n_used + 1, ... modulo n_expert. */
static void experts_fill(kernels *k, int32_t *id) {
    const model_moe *m = &k->cfg->moe;
    int32_t n = KERNELS_ROWS * m->n_used;
    for (int32_t i = 0; i < n; i++)
        id[i] = i % m->n_expert;
    for (int32_t r = 0; r < KERNELS_ROWS; r++)
        qsort(id + r * m->n_used, (size_t)m->n_used, sizeof *id, ascending);
    k->k->upload(k->dev, k->expert, id, (size_t)n * sizeof *id);
}

weft_status kernels_layers_fill(kernels *k, weft_error *err) {
    int32_t n_used = k->cfg->moe.n_used, most = widest_of(k) > n_used ? widest_of(k) : n_used;
    float *x = calloc((size_t)KERNELS_ROWS * (size_t)most, sizeof *x);
    if (!x)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d rows of %d random numbers",
                         (int)KERNELS_ROWS, most);
    rows_fill(k, x);
    if (k->cfg->moe.n_expert > 0)
        experts_fill(k, (int32_t *)(void *)x);
    free(x);
    return WEFT_OK;
}

/* ---- measuring ---- */

/* Of experts those are read that some row goes to. */
static void work_add(const kernels *k, const layer_run *l, int32_t n_row, kernels_work *sum) {
    const model_moe *m = &k->cfg->moe;
    for (int32_t i = 0; i < l->n; i++) {
        const kern_weight *w = l->w[i];
        int32_t slots = n_row, read = 1;
        if (is_expert(l->role[i])) {
            slots = n_row * m->n_used;
            read = slots < m->n_expert ? slots : m->n_expert;
        }
        sum->bytes += (double)read * (double)k->k->packed_bytes(w->type, w->n_out, w->n_in);
        sum->ops[kern_peak_of(w->type)] += 2.0 * slots * w->n_out * w->n_in;
    }
}

weft_status kernels_layers_measure(kernels *k, const kernels_case *c, kernels_work *out) {
    static const double enough = 0.02;
    const shape *s = &shapes[c->shape];
    bool cold = c->n_row <= COLD_ROWS;
    int32_t n_layer = layers_of(k, s);
    kernels_work sum = {0};
    for (int32_t pass = 0; cold ? pass < COLD_PASSES : sum.seconds < enough; pass++) {
        if (cold)
            kern_peaks_evict(k->peaks);
        double t0 = wait_now_s(), t1 = t0;
        for (int32_t i = 0; i < n_layer && (cold || t1 - t0 < 5 * enough); i++) {
            layer_run l = layer_of(k, s, i);
            if (l.n == 0)
                continue;
            if (cli_interrupted)
                return WEFT_ERR_INTERRUPTED;
            s->run(k, &l, c->n_row);
            work_add(k, &l, c->n_row, &sum);
            t1 = wait_now_s();
        }
        sum.seconds += t1 - t0;
        sum.n_call += 1;
    }
    *out = sum;
    return WEFT_OK;
}
