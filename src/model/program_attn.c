/* The attention halves. */
#include "model/parts.h"

static attn_shape shape_of(const model_rank *r, int32_t i) {
    const model_layer *l = &r->w->desc->layer[i];
    kern_mem sinks = model_vector(&r->w->layer[i], MODEL_SINKS);
    if (sinks.at)
        sinks = kern_at(sinks, (size_t)r->topo->head0 * sizeof(float));
    return (attn_shape){.n_kv_head = topo_kv_heads(l->n_kv_head, r->topo->sizes.tp),
                        .head_dim = l->head_dim,
                        .value_dim = l->value_dim,
                        .value_in_key = l->latent,
                        .window = l->window,
                        .group = l->group,
                        .scale = l->scale,
                        .sinks = sinks,
                        .reads_only = l->kv_from != i};
}

static kern_mem pages_of(const model_rank *r, int32_t i) {
    return kern_at(r->kv[r->w->desc->layer[i].group], r->page_at[i]);
}

static weft_status attention_out(model_rank *r, const model_step *s, int32_t i, kern_act heads) {
    const model_layer_weights *w = &r->w->layer[i];
    reduce_end end = {.bias = model_vector(w, MODEL_O_BIAS),
                      .post = model_vector(w, MODEL_ATTN_POST),
                      .norm = model_vector(w, MODEL_FFN_NORM),
                      .x_scale = 1.0f};
    return reduce_layer(r, &r->reduce[w->o], "o", &w->w[MODEL_O], heads, s->b->n_tok, end);
}

/* This rank's part of a bias. */
static kern_mem bias_from(kern_mem bias, int32_t out0) {
    return bias.at ? kern_at(bias, (size_t)out0 * sizeof(float)) : bias;
}

/* ---- GQA ---- */

/* q, k, v of all rows, side by side; only q where the layer reads another's cache. */
static void project_qkv(model_rank *r, const model_step *s, int32_t i, int32_t stride) {
    const model_layer_weights *w = &r->w->layer[i];
    const model_layer *l = &r->w->desc->layer[i];
    int32_t tp = r->topo->sizes.tp, d = l->head_dim;
    int32_t q = r->topo->n_head * d, kv = topo_kv_heads(l->n_kv_head, tp) * d;
    int32_t q0 = r->topo->head0 * d, kv0 = topo_kv_head0(l->n_kv_head, tp, r->topo->t) * d;
    kern_mem k_at = kern_at(r->qkv, (size_t)q * sizeof(float)),
             v_at = kern_at(k_at, (size_t)kv * sizeof(float));
    tree_prog one;
    tree_cover(1, 0, 1, &one);
    trace_phase("qkv");
    r->k->linear(r->dev,
                 &(kern_linear){
                     .x = r->hidden,
                     .n_row = s->b->n_tok,
                     .n_in = r->hidden.k,
                     .n_part = l->kv_from == i ? 3 : 1,
                     .part = {{&w->w[MODEL_Q], q0, q, bias_from(model_vector(w, MODEL_Q_BIAS), q0),
                               r->qkv, stride},
                              {&w->w[MODEL_K], kv0, kv,
                               bias_from(model_vector(w, MODEL_K_BIAS), kv0), k_at, stride},
                              {&w->w[MODEL_V], kv0, kv,
                               bias_from(model_vector(w, MODEL_V_BIAS), kv0), v_at, stride}},
                     .tree = &one,
                     .leaf_in = r->hidden.k,
                 });
}

weft_status program_gqa(model_rank *r, const model_step *s, int32_t i) {
    const model_layer_weights *w = &r->w->layer[i];
    const model_layer *l = &r->w->desc->layer[i];
    int32_t kv_heads = l->kv_from == i ? topo_kv_heads(l->n_kv_head, r->topo->sizes.tp) : 0;
    project_qkv(r, s, i, (r->topo->n_head + 2 * kv_heads) * l->head_dim);
    trace_phase("rope");
    r->k->qk_rope(r->dev, &(kern_qk_rope){.n_tok = s->b->n_tok,
                                          .n_head = r->topo->n_head,
                                          .n_kv_head = kv_heads,
                                          .head_dim = l->head_dim,
                                          .rope_dim = l->rope_dim,
                                          .q_norm = model_vector(w, MODEL_Q_NORM),
                                          .k_norm = model_vector(w, MODEL_K_NORM),
                                          .v_norm = l->v_norm,
                                          .eps = r->w->desc->config.rms_eps,
                                          .qkv = r->qkv,
                                          .rope = r->w->rope[l->rope],
                                          .pos = step_at(s, s->b->at_pos),
                                          .q_at = step_at(s, s->b->at_q),
                                          .kv_at = step_at(s, s->b->at_kv),
                                          .q = r->attn.q,
                                          .kv_type = r->attn.kv_type,
                                          .wire = r->attn.wire_send});
    attn_shape shape = shape_of(r, i);
    kern_act heads = r->heads;
    heads.k = r->topo->n_head * l->value_dim;
    weft_status st = attn_layer(&r->attn, s->b, s->block, pages_of(r, i), &shape, heads);
    return st == WEFT_OK ? attention_out(r, s, i, heads) : st;
}

/* ---- MLA ---- */

/* Rows of projections: the query's latent (when there is one), its rope parts, then (latent, rope part)
 * of the cache, each a block of its own in r->qkv. */
typedef struct mla_rows {
    kern_mem q_latent, q_rope, kv;
} mla_rows;

static mla_rows rows_at(const model_rank *r, int32_t n_tok) {
    const model_mla *m = &r->w->desc->config.mla;
    size_t row = (size_t)n_tok * sizeof(float);
    mla_rows out = {.q_latent = r->qkv};
    out.q_rope = kern_at(out.q_latent, row * (size_t)m->q_latent);
    out.kv = kern_at(out.q_rope, row * (size_t)(r->topo->n_head * m->rope));
    return out;
}

/* What the queries are made from: the normed rows, or their normed latent. */
static kern_act query_source(model_rank *r, const model_layer_weights *w, int32_t n, mla_rows at) {
    const model_config *c = &r->w->desc->config;
    if (c->mla.q_latent == 0)
        return r->hidden;
    linear_one(r, r->hidden, n, &w->w[MODEL_Q_A], 0, c->mla.q_latent, (kern_mem){0}, at.q_latent,
               c->mla.q_latent);
    norm_rows(r, at.q_latent, n, model_vector(w, MODEL_Q_A_NORM), r->q_latent);
    return r->q_latent;
}

static void project_mla(model_rank *r, const model_step *s, int32_t i, mla_rows at) {
    const model_layer_weights *w = &r->w->layer[i];
    const model_mla *m = &r->w->desc->config.mla;
    int32_t n = s->b->n_tok, hq = r->topo->n_head, h0 = r->topo->head0, kv = m->latent + m->rope;
    kern_mem none = {0};
    trace_phase("qkv");
    kern_act from = query_source(r, w, n, at);
    linear_one(r, from, n, &w->w[MODEL_Q_NOPE], h0 * m->nope, hq * m->nope, none, r->nope.f32,
               hq * m->nope);
    linear_one(r, from, n, &w->w[MODEL_Q_ROPE], h0 * m->rope, hq * m->rope, none, at.q_rope,
               hq * m->rope);
    linear_one(r, r->hidden, n, &w->w[MODEL_KV_A], 0, kv, none, at.kv, kv);
    r->k->act_make(r->dev, &(kern_act_make){.n_row = n, .from = r->nope.f32, .to = r->nope});
    linear_groups(r, r->nope, n, &w->w[MODEL_K_UP], h0 * m->latent, hq * m->latent, m->latent,
                  r->absorbed);
}

weft_status program_mla(model_rank *r, const model_step *s, int32_t i) {
    const model_layer_weights *w = &r->w->layer[i];
    const model_layer *l = &r->w->desc->layer[i];
    const model_mla *m = &r->w->desc->config.mla;
    int32_t n = s->b->n_tok, hq = r->topo->n_head;
    mla_rows at = rows_at(r, n);
    project_mla(r, s, i, at);
    trace_phase("rope");
    r->k->mla_rope(r->dev, &(kern_mla_rope){.n_tok = n,
                                            .n_head = hq,
                                            .latent_dim = m->latent,
                                            .rope_dim = m->rope,
                                            .q_latent = r->absorbed,
                                            .q_rope = at.q_rope,
                                            .kv = at.kv,
                                            .kv_norm = model_vector(w, MODEL_KV_A_NORM),
                                            .eps = r->w->desc->config.rms_eps,
                                            .rope = r->w->rope[l->rope],
                                            .pos = step_at(s, s->b->at_pos),
                                            .q_at = step_at(s, s->b->at_q),
                                            .kv_at = step_at(s, s->b->at_kv),
                                            .q = r->attn.q,
                                            .kv_type = r->attn.kv_type,
                                            .wire = r->attn.wire_send});
    attn_shape shape = shape_of(r, i);
    weft_status st = attn_layer(&r->attn, s->b, s->block, pages_of(r, i), &shape, r->values);
    if (st != WEFT_OK)
        return st;
    kern_act heads = r->heads;
    heads.k = hq * m->value;
    trace_phase("values");
    linear_groups(r, r->values, n, &w->w[MODEL_V_UP], r->topo->head0 * m->value, hq * m->value,
                  m->value, heads.f32);
    r->k->act_make(r->dev, &(kern_act_make){.n_row = n, .from = heads.f32, .to = heads});
    return attention_out(r, s, i, heads);
}
