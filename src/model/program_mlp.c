/* The dense MLP half, and the layers' own inputs. */
#include "model/parts.h"

/* Where per-layer inputs follow, the layer ends with them. */
reduce_end mlp_end(const model_rank *r, int32_t i) {
    const model_desc *d = r->w->desc;
    return (reduce_end){.post = model_vector(&r->w->layer[i], MODEL_FFN_POST),
                        .norm = next_norm(r, i),
                        .x_scale = d->config.ple > 0 ? 1.0f : d->layer[i].x_scale};
}

kern_act gated(model_rank *r, int32_t n_row, const kern_weight *gate, const kern_weight *up,
               const model_reduce *down) {
    kern_act inner = r->inner;
    inner.k = down->n_in;
    trace_phase("swiglu");
    r->k->swiglu(r->dev, &(kern_swiglu){.x = r->hidden,
                                        .n_row = n_row,
                                        .gate = gate,
                                        .up = up,
                                        .out0 = down->in0,
                                        .n_out = down->n_in,
                                        .rule = r->w->desc->config.glu,
                                        .out = inner});
    return inner;
}

weft_status program_mlp(model_rank *r, const model_step *s, int32_t i) {
    const model_layer_weights *w = &r->w->layer[i];
    const model_reduce *down = &r->reduce[w->down];
    kern_act inner = gated(r, s->b->n_tok, &w->w[MODEL_GATE], &w->w[MODEL_UP], down);
    return reduce_layer(r, down, "down", &w->w[MODEL_DOWN], inner, s->b->n_tok, mlp_end(r, i));
}

/* ---- per-layer inputs ---- */

/* Every member of a TP group computes all of it: the rows are narrow. */
weft_status program_ple(model_rank *r, const model_step *s, int32_t i) {
    const model_layer_weights *w = &r->w->layer[i];
    const model_config *c = &r->w->desc->config;
    int32_t n = s->b->n_tok;
    kern_act x = r->residual;
    x.f32 = r->x;
    trace_phase("layer input");
    r->k->act_make(r->dev, &(kern_act_make){.n_row = n, .from = r->x, .to = x});
    linear_one(r, x, n, &w->w[MODEL_PLE_GATE], 0, c->ple, (kern_mem){0}, r->qkv, c->ple);
    r->k->glu(r->dev, &(kern_glu){.n_row = n,
                                  .g = r->qkv,
                                  .u = kern_at(r->ple, (size_t)(i * c->ple) * sizeof(float)),
                                  .g_stride = c->ple,
                                  .u_stride = c->n_layer * c->ple,
                                  .rule = c->glu,
                                  .out = r->ple_gate});
    linear_one(r, r->ple_gate, n, &w->w[MODEL_PLE_OUT], 0, c->hidden, (kern_mem){0}, r->nodes,
               c->hidden);
    add_rows(r, r->nodes, n,
             (reduce_end){.post = model_vector(w, MODEL_PLE_POST),
                          .norm = next_norm(r, i),
                          .x_scale = r->w->desc->layer[i].x_scale});
    return WEFT_OK;
}
