/* The MLP half with experts: the router, and the way in which each expert is cut over TP as a dense MLP
 * is. The other way is in program_moe_whole.c. */
#include "model/parts.h"

void choose_experts(model_rank *r, kern_act x, kern_mem residual, int32_t n_row,
                    const model_layer_weights *w) {
    const model_moe *m = &r->w->desc->config.moe;
    trace_phase("router");
    linear_one(r, x, n_row, &w->w[MODEL_ROUTER], 0, m->n_expert, model_vector(w, MODEL_ROUTER_BIAS),
               r->router, m->n_expert);
    r->k->route(r->dev, &(kern_route){.kind = m->route,
                                      .renorm = m->renorm,
                                      .logit_scale = m->logit_scale,
                                      .scale = m->scale,
                                      .n_row = n_row,
                                      .n_expert = m->n_expert,
                                      .n_used = m->n_used,
                                      .n_group = m->n_group,
                                      .n_group_used = m->n_group_used,
                                      .logits = r->router,
                                      .correction = model_vector(w, MODEL_ROUTER_CORRECTION),
                                      .expert_scale = model_vector(w, MODEL_EXPERT_SCALE),
                                      .expert = r->expert,
                                      .weight = r->weight});
    if (model_vector(w, MODEL_EXPERT_NORM).at)
        norm_rows(r, residual, n_row, model_vector(w, MODEL_EXPERT_NORM), x);
}

weft_status program_moe(model_rank *r, const model_step *s, int32_t i) {
    weft_status st = r->moe_way(r, s, i);
    if (st == WEFT_OK)
        add_rows(r, r->moe, s->b->n_tok, mlp_end(r, i));
    return st;
}

/* The MLP's part is added to the experts' where that lies; the norm of the sum comes with add_rows. */
weft_status program_moe_and_mlp(model_rank *r, const model_step *s, int32_t i) {
    const model_layer_weights *w = &r->w->layer[i];
    const model_config *c = &r->w->desc->config;
    const model_reduce *down = &r->reduce[w->down];
    int32_t n = s->b->n_tok;
    size_t off[TREE_MAX_LEAF];
    weft_status st = r->moe_way(r, s, i);
    if (st != WEFT_OK)
        return st;
    trace_phase("norm");
    norm_rows(r, r->moe, n, model_vector(w, MODEL_EXPERT_POST),
              (kern_act){.k = c->hidden, .f32 = r->moe});
    norm_rows(r, r->x, n, model_vector(w, MODEL_MLP_NORM), r->hidden);
    kern_act inner = gated(r, n, &w->w[MODEL_GATE], &w->w[MODEL_UP], down);
    st = reduce_gather(r, down, "down", &w->w[MODEL_DOWN], inner, n, off);
    if (st != WEFT_OK)
        return st;
    trace_phase("norm");
    r->k->reduce_norm(r->dev, &(kern_reduce_norm){.n_row = n,
                                                  .hidden = c->hidden,
                                                  .tree = &down->finish,
                                                  .nodes = r->nodes,
                                                  .node_off = off,
                                                  .post = model_vector(w, MODEL_MLP_POST),
                                                  .x_scale = 1.0f,
                                                  .x = r->moe,
                                                  .weight = model_vector(w, MODEL_FFN_POST),
                                                  .eps = c->rms_eps,
                                                  .out = {.k = c->hidden}});
    add_rows(r, r->moe, n, mlp_end(r, i));
    return WEFT_OK;
}

/* Nodes of a step: member after member, each its experts' [emit][slot][hidden], then the shared one's
 * [emit][row][hidden]. */
typedef struct moe_nodes {
    size_t bytes[TOPO_MAX_WORLD], at[TOPO_MAX_WORLD];
    size_t shared_own;                                    /* where this rank's shared nodes begin */
    size_t off[TREE_MAX_LEAF], shared_off[TREE_MAX_LEAF]; /* of every node, for the trees */
} moe_nodes;

static moe_nodes place_nodes(const model_rank *r, int32_t n_row, const model_reduce *expert,
                             const model_reduce *shared) {
    const model_config *c = &r->w->desc->config;
    size_t row = (size_t)n_row * (size_t)c->hidden * sizeof(float);
    size_t slots = row * (size_t)c->moe.n_used, at = 0;
    moe_nodes out = {0};
    int32_t n = 0, n_shared = 0;
    for (int32_t m = 0; m < r->topo->sizes.tp; m++) {
        out.at[m] = at;
        for (int32_t e = 0; e < expert->n_emit[m]; e++, at += slots)
            out.off[n++] = at;
        if (m == r->topo->t)
            out.shared_own = at;
        for (int32_t e = 0; shared && e < shared->n_emit[m]; e++, at += row)
            out.shared_off[n_shared++] = at;
        out.bytes[m] = at - out.at[m];
    }
    return out;
}

static void run_experts(model_rank *r, const model_step *s, const model_layer_weights *w,
                        const model_reduce *down, kern_mem nodes) {
    const model_config *c = &r->w->desc->config;
    int32_t n = s->b->n_tok;
    kern_act inner = r->slots;
    inner.k = down->n_in;
    trace_phase("experts");
    r->k->experts(r->dev, &(kern_experts){.x = r->hidden,
                                          .n_row = n,
                                          .n_expert = c->moe.n_expert,
                                          .n_used = c->moe.n_used,
                                          .expert = r->expert,
                                          .gate = &w->w[MODEL_EXPERT_GATE],
                                          .up = &w->w[MODEL_EXPERT_UP],
                                          .down = &w->w[MODEL_EXPERT_DOWN],
                                          .gate_bias = model_vector(w, MODEL_EXPERT_GATE_BIAS),
                                          .up_bias = model_vector(w, MODEL_EXPERT_UP_BIAS),
                                          .rule = c->glu,
                                          .in0 = down->in0,
                                          .n_in = down->n_in,
                                          .tree = &down->cover,
                                          .leaf_in = down->leaf_in,
                                          .sorted = r->sorted,
                                          .inner = inner,
                                          .order = r->order,
                                          .nodes = nodes,
                                          .node_bytes = (size_t)n * (size_t)c->moe.n_used *
                                                        (size_t)c->hidden * sizeof(float)});
}

weft_status program_moe_cut(model_rank *r, const model_step *s, int32_t i) {
    const model_layer_weights *w = &r->w->layer[i];
    const model_config *c = &r->w->desc->config;
    const model_reduce *down = &r->reduce[w->expert_down],
                       *shared = w->shared_down >= 0 ? &r->reduce[w->shared_down] : NULL;
    int32_t n = s->b->n_tok;
    moe_nodes at = place_nodes(r, n, down, shared);
    choose_experts(r, r->hidden, r->x, n, w);
    run_experts(r, s, w, down, kern_at(r->nodes, at.at[r->topo->t]));
    if (shared) {
        kern_act inner = gated(r, n, &w->w[MODEL_SHARED_GATE], &w->w[MODEL_SHARED_UP], shared);
        reduce_own(r, shared, "shared down", &w->w[MODEL_SHARED_DOWN], inner, n,
                   kern_at(r->nodes, at.shared_own));
    }
    trace_phase("gather nodes");
    weft_status st = r->comm->v->all_gather_v(r->comm, COMM_TP, r->nodes, at.bytes, at.at);
    if (st != WEFT_OK)
        return st;
    trace_phase("sum of experts");
    r->k->moe_sum(r->dev, &(kern_moe_sum){.n_row = n,
                                          .n_used = c->moe.n_used,
                                          .hidden = c->hidden,
                                          .tree = &down->finish,
                                          .nodes = r->nodes,
                                          .node_off = at.off,
                                          .expert = r->expert,
                                          .weight = r->weight,
                                          .down_bias = model_vector(w, MODEL_EXPERT_DOWN_BIAS),
                                          .shared_tree = shared ? &shared->finish : NULL,
                                          .shared_nodes = r->nodes,
                                          .shared_off = at.shared_off,
                                          .y = r->moe});
    return WEFT_OK;
}
