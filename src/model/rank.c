/* A rank's cache, buffers and trees. */
#include <stdlib.h>

#include "model/program.h"

static void reduce_init(model_reduce *d, const topo *t, model_leaves l) {
    int32_t tp = t->sizes.tp, cut[TOPO_MAX_WORLD + 1];
    d->leaf_in = l.k / l.leaves;
    d->n_in = l.k / tp;
    d->in0 = t->t * d->n_in;
    for (int32_t m = 0; m <= tp; m++)
        cut[m] = m * (l.leaves / tp);
    for (int32_t m = 0; m < tp; m++) {
        tree_prog p;
        tree_cover(l.leaves, cut[m], cut[m + 1], &p);
        d->n_emit[m] = p.n_emit;
        if (m == t->t)
            d->cover = p;
    }
    tree_finish(l.leaves, cut, tp, &d->finish);
}

/* ---- activations ----
 * A buffer has the forms that the matrices reading it want. */

typedef struct form {
    bool f32, q8;
} form;

static void form_add(form *f, const kern_weight *w) {
    if (w->n_in > 0)
        *(dtype_find((uint32_t)w->type)->quantised ? &f->q8 : &f->f32) = true;
}

static form form_of(const model_weights *w, const model_role *roles, size_t n) {
    form f = {0};
    for (int32_t i = 0; i < w->desc->config.n_layer; i++)
        for (size_t k = 0; k < n; k++)
            form_add(&f, &w->layer[i].w[roles[k]]);
    return f;
}
#define FORM(w, ...)                                                                               \
    form_of(w, (const model_role[]){__VA_ARGS__},                                                  \
            sizeof((const model_role[]){__VA_ARGS__}) / sizeof(model_role))

static void act_add(kern_memory *plan, const char *name, kern_act *a, int32_t k, size_t rows,
                    form f) {
    a->k = k;
    if (f.f32)
        kern_memory_add(plan, name, rows * (size_t)k * sizeof(float), &a->f32);
    if (f.q8)
        kern_memory_add(plan, name, rows * kern_act_q8_bytes(k), &a->q8);
}

static void floats_add(kern_memory *plan, const char *name, kern_mem *at, size_t rows, size_t n) {
    kern_memory_add(plan, name, rows * n * sizeof(float), at);
}

/* ---- widths, the largest over the layers ---- */

typedef struct widths {
    int32_t heads, projections, inner, values;
    size_t nodes; /* leaf nodes of all TP members, per token */
} widths;

static void raise(int32_t *most, int32_t n) {
    *most = n > *most ? n : *most;
}

static size_t nodes_of(const model_rank *r, int32_t leaves) {
    return leaves >= 0 ? (size_t)r->reduce[leaves].finish.n_push : 0;
}

/* Experts' nodes are gathered where experts are cut. */
static size_t moe_nodes_of(const model_rank *r, const model_layer_weights *w, bool whole) {
    size_t cut = whole ? 0 : nodes_of(r, w->expert_down) * (size_t)r->w->desc->config.moe.n_used;
    return cut + nodes_of(r, w->shared_down);
}

static widths widths_of(const model_rank *r, bool whole) {
    const model_config *c = &r->w->desc->config;
    const model_mla *m = &c->mla;
    int32_t tp = r->topo->sizes.tp, hq = r->topo->n_head;
    widths out = {0};
    for (int32_t i = 0; i < c->n_layer; i++) {
        const model_layer *l = &r->w->desc->layer[i];
        const model_layer_weights *w = &r->w->layer[i];
        raise(&out.heads, w->w[MODEL_O].n_in / tp);
        if (l->latent) {
            raise(&out.projections, m->q_latent + hq * m->rope + m->latent + m->rope);
            raise(&out.values, hq * m->latent);
        } else {
            raise(&out.projections, (hq + 2 * topo_kv_heads(l->n_kv_head, tp)) * l->head_dim);
        }
        raise(&out.inner, w->w[MODEL_DOWN].n_in / tp);
        raise(&out.inner, w->w[MODEL_SHARED_DOWN].n_in / tp);
        size_t nodes = nodes_of(r, w->o), mlp = nodes_of(r, w->down),
               moe = moe_nodes_of(r, w, whole);
        nodes = mlp > nodes ? mlp : nodes;
        nodes = moe > nodes ? moe : nodes;
        out.nodes = nodes > out.nodes ? nodes : out.nodes;
    }
    raise(&out.projections, c->ple);
    return out;
}

/* ---- buffers ---- */

static void common_add(model_rank *r, kern_memory *plan, widths s) {
    const model_config *c = &r->w->desc->config;
    size_t rows = (size_t)r->tok_cap, hidden = (size_t)c->hidden;
    form head = {0}, in = FORM(r->w, MODEL_Q, MODEL_K, MODEL_V, MODEL_Q_A, MODEL_Q_NOPE, MODEL_KV_A,
                               MODEL_GATE, MODEL_UP, MODEL_ROUTER, MODEL_EXPERT_GATE,
                               MODEL_EXPERT_UP, MODEL_SHARED_GATE, MODEL_SHARED_UP);
    form_add(&head, &r->w->head);
    in.f32 |= head.f32, in.q8 |= head.q8;
    floats_add(plan, "residual rows", &r->x, rows, hidden);
    floats_add(plan, "q, k, v rows", &r->qkv, rows, (size_t)s.projections);
    floats_add(plan, "leaf nodes", &r->nodes, rows * s.nodes, hidden);
    act_add(plan, "normed rows", &r->hidden, c->hidden, rows, in);
    form heads = FORM(r->w, MODEL_O);
    heads.f32 |= c->mla.latent > 0;
    act_add(plan, "attention rows", &r->heads, s.heads, rows, heads);
    act_add(plan, "MLP rows", &r->inner, s.inner, rows, FORM(r->w, MODEL_DOWN, MODEL_SHARED_DOWN));
    act_add(plan, "rows for the head", &r->rows, c->hidden, MODEL_LOGIT_CHUNK, head);
    kern_memory_add(plan, "logits", (size_t)MODEL_LOGIT_CHUNK * (size_t)c->n_vocab * sizeof(float),
                    &r->logits);
}

static void mla_add(model_rank *r, kern_memory *plan, widths s) {
    const model_mla *m = &r->w->desc->config.mla;
    size_t rows = (size_t)r->tok_cap;
    form nope = FORM(r->w, MODEL_K_UP);
    nope.f32 = true;
    if (m->latent == 0)
        return;
    if (m->q_latent > 0)
        act_add(plan, "query latents", &r->q_latent, m->q_latent, rows,
                FORM(r->w, MODEL_Q_NOPE, MODEL_Q_ROPE));
    act_add(plan, "queries without rope", &r->nope, r->topo->n_head * m->nope, rows, nope);
    act_add(plan, "values over latents", &r->values, s.values, rows, FORM(r->w, MODEL_V_UP));
    floats_add(plan, "absorbed queries", &r->absorbed, rows, (size_t)s.values);
}

static void ints_add(kern_memory *plan, const char *name, kern_mem *at, size_t n) {
    kern_memory_add(plan, name, n * sizeof(int32_t), at);
}

/* What both ways need: `routed` rows are routed here; `slots` slots go through n_expert experts of
 * inner width ffn. */
static void moe_add(model_rank *r, kern_memory *plan, size_t routed, size_t slots, int32_t n_expert,
                    int32_t ffn) {
    const model_config *c = &r->w->desc->config;
    floats_add(plan, "router logits", &r->router, routed, (size_t)c->moe.n_expert);
    ints_add(plan, "chosen experts", &r->expert, routed * (size_t)c->moe.n_used);
    floats_add(plan, "their weights", &r->weight, routed, (size_t)c->moe.n_used);
    ints_add(plan, "order of experts", &r->order, slots + (size_t)n_expert);
    act_add(plan, "rows by expert", &r->sorted, c->hidden, slots,
            FORM(r->w, MODEL_EXPERT_GATE, MODEL_EXPERT_UP));
    act_add(plan, "expert rows", &r->slots, ffn, slots, FORM(r->w, MODEL_EXPERT_DOWN));
    floats_add(plan, "experts' sum", &r->moe, (size_t)r->tok_cap, (size_t)c->hidden);
}

static void moe_cut_add(model_rank *r, kern_memory *plan) {
    const model_moe *m = &r->w->desc->config.moe;
    size_t rows = (size_t)r->tok_cap;
    r->moe_way = program_moe_cut;
    moe_add(r, plan, rows, rows * (size_t)m->n_used, m->n_expert, m->ffn / r->topo->sizes.tp);
}

static int32_t min32(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static void whole_init(model_rank *r) {
    model_whole *p = &r->whole;
    for (int32_t m = 0; m <= r->topo->world; m++)
        p->cut[m] = topo_expert_cut(r->w->desc->config.moe.n_expert, r->topo->world, m);
    for (int32_t i = 0; i < r->w->desc->config.n_layer; i++) {
        int32_t down = r->w->layer[i].expert_down; /* all layers' experts have the same width */
        if (down < 0)
            continue;
        model_leaves l = r->w->leaves[down];
        tree_cover(l.leaves, 0, l.leaves, &p->tree);
        p->leaf_in = l.k / l.leaves;
    }
}

/* Own rows are sent by one member of the TP group each; all rows of the step may come here. */
static void moe_whole_add(model_rank *r, kern_memory *plan, int32_t step_cap) {
    const model_config *c = &r->w->desc->config;
    const topo *t = r->topo;
    model_whole *p = &r->whole;
    form f = FORM(r->w, MODEL_EXPERT_GATE, MODEL_EXPERT_UP);
    r->moe_way = program_moe_whole;
    whole_init(r);
    int32_t own = p->cut[t->rank + 1] - p->cut[t->rank], n_used = c->moe.n_used;
    size_t rows = (size_t)((r->tok_cap + t->sizes.tp - 1) / t->sizes.tp),
           hidden = (size_t)c->hidden, sent = rows * (size_t)min32(n_used, t->world),
           out = rows * (size_t)n_used, in = (size_t)step_cap * (size_t)min32(n_used, own);
    moe_add(r, plan, rows, in, own, c->moe.ffn);
    ints_add(plan, "rows to send", &p->row_out, sent);
    ints_add(plan, "slots to send", &p->slot_out, out);
    ints_add(plan, "places of slots", &p->place, out);
    act_add(plan, "rows sent to experts", &p->rows_out, c->hidden, sent, f);
    act_add(plan, "rows of own experts", &p->rows_in, c->hidden, own ? (size_t)step_cap : 0, f);
    ints_add(plan, "slots received", &p->slot_in, in);
    ints_add(plan, "their experts", &p->expert_in, in);
    ints_add(plan, "their rows", &p->row_in, in);
    floats_add(plan, "own experts' outputs", &p->made, in, hidden);
    floats_add(plan, "outputs of own rows", &p->back, out, hidden);
}

static void ple_add(model_rank *r, kern_memory *plan) {
    const model_config *c = &r->w->desc->config;
    size_t rows = (size_t)r->tok_cap, all = (size_t)c->n_layer * (size_t)c->ple;
    form residual = FORM(r->w, MODEL_PLE_GATE);
    if (c->ple == 0)
        return;
    form_add(&residual, &r->w->ple_project);
    residual.f32 = false; /* x itself */
    floats_add(plan, "layers' inputs", &r->ple, rows, all);
    floats_add(plan, "their projections", &r->ple_part, rows, all);
    act_add(plan, "gated inputs", &r->ple_gate, c->ple, rows, FORM(r->w, MODEL_PLE_OUT));
    act_add(plan, "residual rows", &r->residual, c->hidden, rows, residual);
}

/* The cache of a group is [page][layer], so that a short context touches little memory. */
static void cache_places(model_rank *r) {
    const model_desc *d = r->w->desc;
    size_t *at = r->attn.page_stride;
    for (int32_t i = 0; i < d->config.n_layer; i++) {
        const model_layer *l = &d->layer[i];
        if (l->kv_from != i) {
            r->page_at[i] = r->page_at[l->kv_from];
            continue;
        }
        attn_shape s = {.n_kv_head = topo_kv_heads(l->n_kv_head, r->topo->sizes.tp),
                        .head_dim = l->head_dim,
                        .value_dim = l->value_dim,
                        .value_in_key = l->latent};
        r->page_at[i] = at[l->group];
        at[l->group] += attn_page_bytes(&r->attn, &s);
    }
}

static void cache_add(model_rank *r, kern_memory *plan, const int32_t *pages) {
    const model_desc *d = r->w->desc;
    cache_places(r);
    for (int32_t g = 0; g < d->n_group; g++) {
        const char *name = d->window[g] == 0 ? "KV cache" : "KV cache of a window";
        kern_memory_add(plan, name, (size_t)pages[g] * r->attn.page_stride[g], &r->kv[g]);
    }
}

static attn_most most_of(const model_desc *d, int32_t tp, kern_kv_type type) {
    attn_most out = {0};
    for (int32_t i = 0; i < d->config.n_layer; i++) {
        const model_layer *l = &d->layer[i];
        size_t token = (size_t)topo_kv_heads(l->n_kv_head, tp) * model_kv_head_bytes(l, type);
        raise(&out.head_dim, l->head_dim);
        raise(&out.value_dim, l->value_dim);
        out.token_bytes = token > out.token_bytes ? token : out.token_bytes;
    }
    return out;
}

/* Whether a TP rank has a part of a layer with these leaves. */
static bool is_cut(const model_weights *w, int32_t leaves, bool whole) {
    for (int32_t i = 0; i < w->desc->config.n_layer; i++) {
        const model_layer_weights *l = &w->layer[i];
        if (l->o == leaves || l->down == leaves || l->shared_down == leaves ||
            (!whole && l->expert_down == leaves))
            return true;
    }
    return false;
}

weft_status model_rank_open(const model_weights *w, const model_rank_setup *s, kern_memory *plan,
                            model_rank **out, weft_error *err) {
    model_rank *r = calloc(1, sizeof *r);
    size_t *page_at = calloc((size_t)w->desc->config.n_layer, sizeof *page_at);
    if (!r || !page_at) {
        free(r);
        free(page_at);
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a rank's table");
    }
    *r = (model_rank){.w = w,
                      .k = w->k,
                      .dev = s->dev,
                      .comm = s->comm,
                      .topo = s->topo,
                      .tok_cap = batch_tok_cap(s->builder),
                      .page_at = page_at};
    attn_rank_init(&r->attn, w->k, s->dev, s->comm, s->topo, s->kv_type,
                   most_of(w->desc, s->topo->sizes.tp, s->kv_type), s->builder, s->round_pages,
                   s->fault, plan);
    cache_add(r, plan, s->kv_pages);
    for (int32_t i = 0; i < w->n_leaves; i++)
        if (is_cut(w, i, s->expert_parallel))
            reduce_init(&r->reduce[i], s->topo, w->leaves[i]);
    widths wide = widths_of(r, s->expert_parallel);
    common_add(r, plan, wide);
    mla_add(r, plan, wide);
    if (w->desc->config.moe.n_expert > 0 && s->expert_parallel)
        moe_whole_add(r, plan, batch_step_cap(s->builder));
    else if (w->desc->config.moe.n_expert > 0)
        moe_cut_add(r, plan);
    ple_add(r, plan);
    *out = r;
    return WEFT_OK;
}

void model_rank_close(model_rank *r) {
    if (!r)
        return;
    free(r->page_at);
    free(r);
}
