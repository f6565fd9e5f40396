/* The layer program of llama: GQA attention, SwiGLU, RMSNorm before each half.
 *
 *   x = embed(ids)
 *   per layer:  a = norm(x) ; q,k,v = W a ; rope, round, deliver, attend ; x += o-tree ; a =
 *   norm(x) ; f = swiglu(a) ; x += down-tree
 *   logits = head(norm(x)) on the rows that need them
 *
 * The residual of a half and the norm of the next are one operation (reduce_norm), so x is read
 * once. With tp > 1 a rank has its own heads and its own columns of the MLP; what crosses is the
 * leaf nodes of the two row-parallel layers, summed by every rank in the tree's order. */
#include "model/model.h"

#include <math.h>
#include <stdlib.h>

#include "base/trace.h"

typedef struct llama_layer {
    kern_weight q, k, v, o, gate, up, down;
    kern_mem attn_norm, ffn_norm;
} llama_layer;

typedef struct llama_weights {
    llama_layer *layer;
    kern_weight head;
    kern_mem output_norm;
} llama_weights;

/* A row-parallel layer on one rank: own part of the tree, where the TP members' nodes lie, and the
 * rest of the tree. */
typedef struct llama_reduce {
    const char *name;
    int32_t in0, n_in, leaf_in;
    tree_prog cover, finish;
    int32_t n_emit[TOPO_MAX_WORLD];
} llama_reduce;

typedef struct llama_rank {
    int32_t hq, hk, d, ffn, ffn0, vocab0, vocab_n;
    llama_reduce o, down;
    kern_mem x, qkv, nodes;
    kern_act hidden, heads, inner,
        rows; /* inputs of qkv/gate/up/head, o, down, and the picked logits rows */
} llama_rank;

/* ---- weights ---- */

static weft_status weights_open(model_weights *w, weft_error *err) {
    const load_llama *f = load_get_llama(w->file);
    int32_t n = w->cfg->n_layer;
    llama_weights *b = calloc(1, sizeof *b);
    llama_layer *layer = calloc((size_t)n, sizeof *layer);
    if (!b || !layer) {
        free(b);
        free(layer);
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the weights' table of %d layers", n);
    }
    b->layer = layer;
    w->body = b;
    for (int32_t i = 0; i < n; i++) {
        const load_llama_layer *l = &f->layer[i];
        model_weight_add(w, l->attn_q, &layer[i].q);
        model_weight_add(w, l->attn_k, &layer[i].k);
        model_weight_add(w, l->attn_v, &layer[i].v);
        model_weight_add(w, l->attn_o, &layer[i].o);
        model_weight_add(w, l->ffn_gate, &layer[i].gate);
        model_weight_add(w, l->ffn_up, &layer[i].up);
        model_weight_add(w, l->ffn_down, &layer[i].down);
        model_vector_add(w, l->attn_norm, &layer[i].attn_norm);
        model_vector_add(w, l->ffn_norm, &layer[i].ffn_norm);
    }
    model_weight_add(w, f->output, &b->head);
    model_vector_add(w, f->output_norm, &b->output_norm);
    return WEFT_OK;
}

static void weights_close(model_weights *w) {
    llama_weights *b = w->body;
    free(b->layer);
    free(b);
}

/* ---- a rank's buffers and trees ---- */

static void reduce_init(llama_reduce *d, const char *name, const topo *t, int32_t leaves,
                        int32_t k) {
    int32_t tp = t->sizes.tp, cut[TOPO_MAX_WORLD + 1];
    d->name = name;
    d->leaf_in = k / leaves;
    d->n_in = k / tp;
    d->in0 = t->t * d->n_in;
    for (int32_t m = 0; m <= tp; m++)
        cut[m] = m * (leaves / tp);
    for (int32_t m = 0; m < tp; m++) {
        tree_prog p;
        tree_cover(leaves, cut[m], cut[m + 1], &p);
        d->n_emit[m] = p.n_emit;
        if (m == t->t)
            d->cover = p;
    }
    tree_finish(leaves, cut, tp, &d->finish);
}

static int32_t nodes_total(const llama_reduce *d) {
    return d->finish.n_push;
}

static bool quantised(const kern_weight *w) {
    return dtype_find((uint32_t)w->type)->quantised;
}

/* An activation buffer in the forms that its readers want. */
static void act_add(kern_memory *plan, const char *name, kern_act *a, int32_t k, int32_t rows,
                    bool f32, bool q8) {
    a->k = k;
    if (f32)
        kern_memory_add(plan, name, (size_t)rows * (size_t)k * sizeof(float), &a->f32);
    if (q8)
        kern_memory_add(plan, name, (size_t)rows * kern_act_q8_bytes(k), &a->q8);
}

static void acts_add(model_rank *r, llama_rank *b, kern_memory *plan) {
    const llama_weights *w = r->w->body;
    bool hf = false, hq = false, of = false, oq = false, df = false, dq = false;
    for (int32_t i = 0; i < r->w->cfg->n_layer; i++) {
        const llama_layer *l = &w->layer[i];
        const kern_weight *readers[] = {&l->q, &l->k, &l->v, &l->gate, &l->up};
        for (size_t j = 0; j < sizeof readers / sizeof *readers; j++)
            *(quantised(readers[j]) ? &hq : &hf) = true;
        *(quantised(&l->o) ? &oq : &of) = true;
        *(quantised(&l->down) ? &dq : &df) = true;
    }
    bool head_q = quantised(&w->head);
    act_add(plan, "normed rows", &b->hidden, r->w->cfg->hidden, r->tok_cap, hf || !head_q,
            hq || head_q);
    act_add(plan, "attention rows", &b->heads, b->hq * b->d, r->tok_cap, of, oq);
    act_add(plan, "MLP rows", &b->inner, b->ffn, r->tok_cap, df, dq);
    act_add(plan, "rows for the head", &b->rows, r->w->cfg->hidden, MODEL_LOGIT_CHUNK, !head_q,
            head_q);
}

static weft_status rank_open(model_rank *r, kern_memory *plan, weft_error *err) {
    llama_rank *b = calloc(1, sizeof *b);
    if (!b)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a rank's table");
    const load_config *c = r->w->cfg;
    const topo *t = r->topo;
    int32_t panel = r->k->profile.panel, tp = t->sizes.tp;
    int32_t panels = (c->n_vocab + panel - 1) / panel;
    b->hq = t->n_head, b->hk = t->n_kv_head, b->d = c->head_dim;
    b->ffn = c->ffn / tp, b->ffn0 = t->t * b->ffn;
    b->vocab0 = t->t * panels / tp * panel;
    int32_t end = (t->t + 1) * panels / tp * panel;
    b->vocab_n = (end < c->n_vocab ? end : c->n_vocab) - b->vocab0;
    reduce_init(&b->o, "o", t, r->w->leaves_o, c->n_head * c->head_dim);
    reduce_init(&b->down, "down", t, r->w->leaves_down, c->ffn);

    size_t rows = (size_t)r->tok_cap, hidden = (size_t)c->hidden * sizeof(float);
    int32_t nodes =
        nodes_total(&b->o) > nodes_total(&b->down) ? nodes_total(&b->o) : nodes_total(&b->down);
    kern_memory_add(plan, "residual rows", rows * hidden, &b->x);
    kern_memory_add(plan, "q, k, v rows",
                    rows * (size_t)(b->hq + 2 * b->hk) * (size_t)b->d * sizeof(float), &b->qkv);
    kern_memory_add(plan, "leaf nodes", (size_t)nodes * rows * hidden, &b->nodes);
    acts_add(r, b, plan);
    r->body = b;
    return WEFT_OK;
}

static void rank_close(model_rank *r) {
    free(r->body);
}

/* ---- the program ---- */

/* q, k, v of all rows; rope; the new K/V into the wire buffer and q into the query buffer. */
static void project_qkv(model_rank *r, const llama_layer *l, const batch_local *b, kern_mem block) {
    llama_rank *p = r->body;
    int32_t stride = (p->hq + 2 * p->hk) * p->d, hidden = r->w->cfg->hidden;
    size_t k_at = (size_t)(p->hq * p->d) * sizeof(float),
           v_at = k_at + (size_t)(p->hk * p->d) * sizeof(float);
    int32_t q0 = r->topo->head0 * p->d, kv0 = r->topo->kv_head0 * p->d;
    tree_prog one;
    tree_cover(1, 0, 1, &one);
    trace_phase("qkv");
    r->k->linear(r->dev,
                 &(kern_linear){
                     .x = p->hidden,
                     .n_row = b->n_tok,
                     .n_in = hidden,
                     .n_part = 3,
                     .part = {{&l->q, q0, p->hq * p->d, {0}, p->qkv, stride},
                              {&l->k, kv0, p->hk * p->d, {0}, kern_at(p->qkv, k_at), stride},
                              {&l->v, kv0, p->hk * p->d, {0}, kern_at(p->qkv, v_at), stride}},
                     .tree = &one,
                     .leaf_in = hidden,
                 });
    trace_phase("rope");
    r->k->qk_rope(r->dev, &(kern_qk_rope){
                              .n_tok = b->n_tok,
                              .n_head = p->hq,
                              .n_kv_head = p->hk,
                              .head_dim = p->d,
                              .rope_dim = r->w->cfg->rope_dim,
                              .qkv = p->qkv,
                              .rope = r->w->rope,
                              .pos = model_block_at(block, b->at_pos),
                              .q_at = model_block_at(block, b->at_q),
                              .kv_at = model_block_at(block, b->at_kv),
                              .q = r->attn.q,
                              .kv_type = r->attn.kv_type,
                              .wire = r->attn.wire_send,
                          });
}

/* A row-parallel layer: own leaves to nodes, all members' nodes here, tree + residual + the next
 * norm. */
static weft_status reduce_layer(model_rank *r, const llama_reduce *d, const kern_weight *w,
                                kern_act in, int32_t n_row, kern_mem norm) {
    llama_rank *p = r->body;
    int32_t tp = r->topo->sizes.tp, n = 0;
    size_t row = (size_t)r->w->cfg->hidden * sizeof(float), node = (size_t)n_row * row;
    size_t bytes[TOPO_MAX_WORLD], at[TOPO_MAX_WORLD], off[TREE_MAX_LEAF];
    for (int32_t m = 0; m < tp; m++) {
        at[m] = (size_t)n * node;
        bytes[m] = (size_t)d->n_emit[m] * node;
        for (int32_t e = 0; e < d->n_emit[m]; e++, n++)
            off[n] = (size_t)n * node;
    }
    trace_phase(d->name);
    r->k->linear(r->dev,
                 &(kern_linear){
                     .x = in,
                     .n_row = n_row,
                     .in0 = d->in0,
                     .n_in = d->n_in,
                     .n_part = 1,
                     .part = {{w, 0, w->n_out, {0}, kern_at(p->nodes, at[r->topo->t]), w->n_out}},
                     .tree = &d->cover,
                     .leaf_in = d->leaf_in,
                     .node_bytes = node,
                 });
    trace_phase("gather nodes");
    weft_status s = r->comm->v->all_gather_v(r->comm, COMM_TP, p->nodes, bytes, at);
    if (s != WEFT_OK)
        return s;
    trace_phase("norm");
    r->k->reduce_norm(r->dev, &(kern_reduce_norm){
                                  .n_row = n_row,
                                  .hidden = r->w->cfg->hidden,
                                  .tree = &d->finish,
                                  .nodes = p->nodes,
                                  .node_off = off,
                                  .x = p->x,
                                  .weight = norm,
                                  .x_scale = 1.0f,
                                  .eps = r->w->cfg->rms_eps,
                                  .out = p->hidden,
                              });
    return WEFT_OK;
}

static weft_status layer_run(model_rank *r, int32_t i, const batch_local *b, kern_mem block) {
    llama_rank *p = r->body;
    const llama_weights *w = r->w->body;
    const llama_layer *l = &w->layer[i];
    kern_mem next = i + 1 < r->w->cfg->n_layer ? w->layer[i + 1].attn_norm : w->output_norm;
    float scale = 1.0f / sqrtf((float)p->d);

    project_qkv(r, l, b, block);
    weft_status s = attn_layer(&r->attn, b, block, model_layer_pages(r, i), scale, p->heads);
    if (s == WEFT_OK)
        s = reduce_layer(r, &p->o, &l->o, p->heads, b->n_tok, l->ffn_norm);
    if (s != WEFT_OK)
        return s;
    trace_phase("swiglu");
    r->k->swiglu(r->dev, &(kern_swiglu){.x = p->hidden,
                                        .n_row = b->n_tok,
                                        .gate = &l->gate,
                                        .up = &l->up,
                                        .out0 = p->ffn0,
                                        .n_out = p->ffn,
                                        .out = p->inner});
    return reduce_layer(r, &p->down, &l->down, p->inner, b->n_tok, next);
}

static weft_status forward(model_rank *r, const batch_local *b, kern_mem block) {
    llama_rank *p = r->body;
    const llama_weights *w = r->w->body;
    const load_tensor *embd = load_get_llama(r->w->file)->token_embd;
    trace_phase("embed");
    r->k->embed(r->dev, &(kern_embed){.table = embd->data,
                                      .type = (dtype)embd->ggml_type,
                                      .n_row = b->n_tok,
                                      .hidden = r->w->cfg->hidden,
                                      .n_vocab = r->w->cfg->n_vocab,
                                      .scale = 1.0f,
                                      .ids = model_block_at(block, b->at_id),
                                      .x = p->x});
    trace_phase("norm");
    r->k->reduce_norm(r->dev, &(kern_reduce_norm){.n_row = b->n_tok,
                                                  .hidden = r->w->cfg->hidden,
                                                  .x = p->x,
                                                  .weight = w->layer[0].attn_norm,
                                                  .x_scale = 1.0f,
                                                  .eps = r->w->cfg->rms_eps,
                                                  .out = p->hidden});
    weft_status s = WEFT_OK;
    for (int32_t i = 0; i < r->w->cfg->n_layer && s == WEFT_OK; i++) {
        trace_span t = trace_begin("layer", "layer", i);
        s = layer_run(r, i, b, block);
        trace_end(&t);
    }
    return s;
}

static weft_status logits(model_rank *r, const batch_local *b, kern_mem block, int32_t first,
                          int32_t n, float *host) {
    llama_rank *p = r->body;
    const llama_weights *w = r->w->body;
    int32_t vocab = r->w->cfg->n_vocab, tp = r->topo->sizes.tp, panel = r->k->profile.panel;
    int32_t panels = (vocab + panel - 1) / panel;
    size_t bytes[TOPO_MAX_WORLD], at[TOPO_MAX_WORLD];
    int32_t col0[TOPO_MAX_WORLD + 1];
    for (int32_t m = 0; m <= tp; m++) {
        int32_t c = m * panels / tp * panel;
        col0[m] = c < vocab ? c : vocab;
    }
    for (int32_t m = 0; m < tp; m++) {
        at[m] = (size_t)MODEL_LOGIT_CHUNK * (size_t)col0[m] * sizeof(float);
        bytes[m] = (size_t)n * (size_t)(col0[m + 1] - col0[m]) * sizeof(float);
    }
    tree_prog one;
    tree_cover(1, 0, 1, &one);
    r->k->pick(r->dev, &(kern_pick){.from = p->hidden,
                                    .to = p->rows,
                                    .n = n,
                                    .idx = model_block_at(block, b->at_logit + first)});
    r->k->linear(r->dev, &(kern_linear){
                             .x = p->rows,
                             .n_row = n,
                             .n_in = r->w->cfg->hidden,
                             .n_part = 1,
                             .part = {{&w->head,
                                       p->vocab0,
                                       p->vocab_n,
                                       {0},
                                       kern_at(r->logits, at[r->topo->t]),
                                       p->vocab_n}},
                             .tree = &one,
                             .leaf_in = r->w->cfg->hidden,
                         });
    weft_status s = r->comm->v->all_gather_v(r->comm, COMM_TP, r->logits, bytes, at);
    if (s != WEFT_OK || !host)
        return s;
    for (int32_t m = 0; m < tp; m++) {
        size_t slice = (size_t)(col0[m + 1] - col0[m]) * sizeof(float);
        for (int32_t i = 0; i < n; i++)
            r->k->download(r->dev, host + (size_t)i * (size_t)vocab + col0[m],
                           kern_at(r->logits, at[m] + (size_t)i * slice), slice);
    }
    r->k->drain(r->dev);
    return WEFT_OK;
}

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

/* In the attention output where its tree has three operands, else in the MLP's. */
static void swap_leaves(model_rank *r) {
    llama_rank *p = r->body;
    tree_prog *sums[] = {&p->o.cover, &p->o.finish, &p->down.cover, &p->down.finish};
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
        if (swap_operands(sums[i]))
            return;
}

const model_arch model_llama = {
    .name = "llama",
    .weights_open = weights_open,
    .weights_close = weights_close,
    .rank_open = rank_open,
    .rank_close = rank_close,
    .forward = forward,
    .logits = logits,
    .swap_leaves = swap_leaves,
};
