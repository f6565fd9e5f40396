/* The program around the layers: embedding, layers, head. */
#include "model/program.h"

#include <math.h>

#include "model/arch.h"
#include "model/parts.h"

static tree_prog single(void) {
    tree_prog one;
    tree_cover(1, 0, 1, &one);
    return one;
}

kern_mem next_norm(const model_rank *r, int32_t i) {
    const model_weights *w = r->w;
    return i + 1 < w->desc->config.n_layer ? model_vector(&w->layer[i + 1], MODEL_ATTN_NORM)
                                           : w->output_norm;
}

void linear_one(model_rank *r, kern_act x, int32_t n_row, const kern_weight *w, int32_t out0,
                int32_t n_out, kern_mem bias, kern_mem y, int32_t y_stride) {
    tree_prog one = single();
    r->k->linear(r->dev, &(kern_linear){.x = x,
                                        .n_row = n_row,
                                        .n_in = w->n_in,
                                        .n_part = 1,
                                        .part = {{w, out0, n_out, bias, y, y_stride}},
                                        .tree = &one,
                                        .leaf_in = w->n_in});
}

void linear_groups(model_rank *r, kern_act x, int32_t n_row, const kern_weight *w, int32_t out0,
                   int32_t n_out, int32_t group_out, kern_mem y) {
    tree_prog one = single();
    r->k->linear(r->dev, &(kern_linear){.x = x,
                                        .n_row = n_row,
                                        .n_in = w->n_in,
                                        .n_part = 1,
                                        .part = {{w, out0, n_out, {0}, y, n_out}},
                                        .tree = &one,
                                        .leaf_in = w->n_in,
                                        .group_out = group_out});
}

void reduce_own(model_rank *r, const model_reduce *d, const char *name, const kern_weight *w,
                kern_act in, int32_t n_row, kern_mem to) {
    trace_phase(name);
    r->k->linear(r->dev,
                 &(kern_linear){.x = in,
                                .n_row = n_row,
                                .in0 = d->in0,
                                .n_in = d->n_in,
                                .n_part = 1,
                                .part = {{w, 0, w->n_out, {0}, to, w->n_out}},
                                .tree = &d->cover,
                                .leaf_in = d->leaf_in,
                                .node_bytes = (size_t)n_row * (size_t)w->n_out * sizeof(float)});
}

static void finish_norm(model_rank *r, const tree_prog *tree, kern_mem nodes, const size_t *off,
                        int32_t n_row, reduce_end end) {
    const model_config *c = &r->w->desc->config;
    trace_phase("norm");
    r->k->reduce_norm(r->dev, &(kern_reduce_norm){.n_row = n_row,
                                                  .hidden = c->hidden,
                                                  .tree = tree,
                                                  .nodes = nodes,
                                                  .node_off = off,
                                                  .bias = end.bias,
                                                  .post = end.post,
                                                  .x_scale = end.x_scale,
                                                  .x = r->x,
                                                  .weight = end.norm,
                                                  .eps = c->rms_eps,
                                                  .out = r->hidden});
}

weft_status reduce_gather(model_rank *r, const model_reduce *d, const char *name,
                          const kern_weight *w, kern_act in, int32_t n_row, size_t *off) {
    int32_t tp = r->topo->sizes.tp, n = 0;
    size_t node = (size_t)n_row * (size_t)w->n_out * sizeof(float);
    size_t bytes[TOPO_MAX_WORLD], at[TOPO_MAX_WORLD];
    for (int32_t m = 0; m < tp; m++) {
        at[m] = (size_t)n * node;
        bytes[m] = (size_t)d->n_emit[m] * node;
        for (int32_t e = 0; e < d->n_emit[m]; e++, n++)
            off[n] = (size_t)n * node;
    }
    reduce_own(r, d, name, w, in, n_row, kern_at(r->nodes, at[r->topo->t]));
    trace_phase("gather nodes");
    return r->comm->v->all_gather_v(r->comm, COMM_TP, r->nodes, bytes, at);
}

weft_status reduce_layer(model_rank *r, const model_reduce *d, const char *name,
                         const kern_weight *w, kern_act in, int32_t n_row, reduce_end end) {
    size_t off[TREE_MAX_LEAF];
    weft_status s = reduce_gather(r, d, name, w, in, n_row, off);
    if (s == WEFT_OK)
        finish_norm(r, &d->finish, r->nodes, off, n_row, end);
    return s;
}

void norm_rows(model_rank *r, kern_mem x, int32_t n_row, kern_mem weight, kern_act out) {
    r->k->reduce_norm(r->dev, &(kern_reduce_norm){.n_row = n_row,
                                                  .hidden = out.k,
                                                  .x_scale = 1.0f,
                                                  .x = x,
                                                  .weight = weight,
                                                  .eps = r->w->desc->config.rms_eps,
                                                  .out = out});
}

void add_rows(model_rank *r, kern_mem rows, int32_t n_row, reduce_end end) {
    tree_prog one = single();
    size_t off = 0;
    finish_norm(r, &one, rows, &off, n_row, end);
}

/* ---- before the layers ---- */

static kern_embed rows_of(const model_rank *r, const model_step *s, const model_matrix *table,
                          float scale, kern_mem x) {
    return (kern_embed){.table = table->t->data,
                        .type = (dtype)table->t->ggml_type,
                        .n_row = s->b->n_tok,
                        .hidden = table->n_in,
                        .n_vocab = r->w->desc->config.n_vocab,
                        .scale = scale,
                        .ids = step_at(s, s->b->at_id),
                        .x = x};
}

/* Every layer's own input, [token][layer][ple]:
 *   (norm(W x / sqrt(hidden)) + sqrt(ple) row of the token) / sqrt(2)
 * The factor before the norm only meets its eps: norm(v / s, eps) = norm(v, eps s^2). */
static void ple_inputs(model_rank *r, const model_step *s) {
    const model_config *c = &r->w->desc->config;
    int32_t n = s->b->n_tok, all = c->n_layer * c->ple;
    kern_embed e = rows_of(r, s, &r->w->desc->ple_embed, sqrtf((float)c->ple), r->ple);
    r->k->embed(r->dev, &e);
    kern_act x = r->residual;
    x.f32 = r->x;
    r->k->act_make(r->dev, &(kern_act_make){.n_row = n, .from = r->x, .to = x});
    linear_one(r, x, n, &r->w->ple_project, 0, all, (kern_mem){0}, r->ple_part, all);
    kern_reduce_norm p = {.n_row = n * c->n_layer,
                          .hidden = c->ple,
                          .x_scale = 1.0f,
                          .x = r->ple_part,
                          .weight = r->w->ple_norm,
                          .eps = c->rms_eps * (float)c->hidden,
                          .out = {.k = c->ple, .f32 = r->ple_part}};
    r->k->reduce_norm(r->dev, &p);
    tree_prog one = single();
    size_t off = 0;
    p.tree = &one, p.nodes = r->ple_part, p.node_off = &off;
    p.x = r->ple, p.x_scale = sqrtf(0.5f), p.out = (kern_act){.k = c->ple};
    r->k->reduce_norm(r->dev, &p);
}

weft_status model_forward(model_rank *r, const model_step *s) {
    const model_weights *w = r->w;
    const model_config *c = &w->desc->config;
    trace_phase("embed");
    kern_embed e = rows_of(r, s, &w->desc->embed, c->embed_scale, r->x);
    r->k->embed(r->dev, &e);
    if (c->ple > 0)
        ple_inputs(r, s);
    trace_phase("norm");
    norm_rows(r, r->x, s->b->n_tok, model_vector(&w->layer[0], MODEL_ATTN_NORM), r->hidden);
    weft_status st = WEFT_OK;
    for (int32_t i = 0; i < c->n_layer && st == WEFT_OK; i++) {
        trace_span t = trace_begin("layer", "layer", i);
        st = w->desc->arch->layer(r, s, i);
        trace_end(&t);
    }
    return st;
}

/* ---- after the layers ---- */

/* First column of each TP member's slice of the vocabulary, whole panels. */
static void vocabulary_cut(const model_rank *r, int32_t *col0) {
    int32_t vocab = r->w->desc->config.n_vocab, tp = r->topo->sizes.tp, panel = r->k->profile.panel;
    int32_t panels = (vocab + panel - 1) / panel;
    for (int32_t m = 0; m <= tp; m++) {
        int32_t c = m * panels / tp * panel;
        col0[m] = c < vocab ? c : vocab;
    }
}

static void logits_own(model_rank *r, const model_step *s, int32_t first, int32_t n, int32_t col0,
                       int32_t n_col, kern_mem to) {
    float cap = r->w->desc->config.final_cap;
    r->k->pick(r->dev, &(kern_pick){.from = r->hidden,
                                    .to = r->rows,
                                    .n = n,
                                    .idx = step_at(s, s->b->at_logit + first)});
    linear_one(r, r->rows, n, &r->w->head, col0, n_col, (kern_mem){0}, to, n_col);
    if (cap > 0)
        r->k->softcap(r->dev, &(kern_softcap){.n = (int64_t)n * n_col, .cap = cap, .x = to});
}

weft_status model_logits(model_rank *r, const model_step *s, int32_t first, int32_t n,
                         float *host) {
    int32_t vocab = r->w->desc->config.n_vocab, tp = r->topo->sizes.tp, own = r->topo->t;
    size_t bytes[TOPO_MAX_WORLD], at[TOPO_MAX_WORLD];
    int32_t col0[TOPO_MAX_WORLD + 1];
    vocabulary_cut(r, col0);
    for (int32_t m = 0; m < tp; m++) {
        at[m] = (size_t)MODEL_LOGIT_CHUNK * (size_t)col0[m] * sizeof(float);
        bytes[m] = (size_t)n * (size_t)(col0[m + 1] - col0[m]) * sizeof(float);
    }
    logits_own(r, s, first, n, col0[own], col0[own + 1] - col0[own], kern_at(r->logits, at[own]));
    weft_status st = r->comm->v->all_gather_v(r->comm, COMM_TP, r->logits, bytes, at);
    if (st != WEFT_OK || !host)
        return st;
    for (int32_t m = 0; m < tp; m++) {
        size_t slice = (size_t)(col0[m + 1] - col0[m]) * sizeof(float);
        for (int32_t i = 0; i < n; i++)
            r->k->download(r->dev, host + (size_t)i * (size_t)vocab + col0[m],
                           kern_at(r->logits, at[m] + (size_t)i * slice), slice);
    }
    r->k->drain(r->dev);
    return WEFT_OK;
}

/* ---- the planted fault ---- */

/* Operands 1 and 2 of a sum change places: they stand in different subtrees. */
static bool swap_operands(tree_prog *t) {
    int32_t at[2] = {-1, -1};
    for (int32_t i = 0; i < t->n_op; i++)
        if (t->op[i] == 1 || t->op[i] == 2)
            at[t->op[i] - 1] = i;
    if (at[0] < 0 || at[1] < 0)
        return false;
    t->op[at[0]] = 2;
    t->op[at[1]] = 1;
    return true;
}

/* In the first tree that has three operands. */
void model_swap_leaves(model_rank *r) {
    for (int32_t i = 0; i < r->w->n_leaves; i++)
        if (swap_operands(&r->reduce[i].cover) || swap_operands(&r->reduce[i].finish))
            return;
}
