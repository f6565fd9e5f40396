/* The MLP half with whole experts on the ranks of the world (--expert-parallel).
 *
 * A member of a TP group has all rows of its group, and dispatches a share of them: it routes them, sends
 * each once to every rank that owns one of its experts, gets finished outputs of slots back and sums
 * them as program_moe_cut does. An output is the root of the same tree over the same leaves, so nothing
 * tells who made it. What is sent and how much follows from the router: ranks tell each other counts
 * first, and take part in every exchange, with zeros too. */
#include "model/parts.h"

typedef struct share {
    int32_t first, n; /* rows of the TP group */
} share;

static share share_of(const model_rank *r, int32_t n_row, int32_t member) {
    int32_t tp = r->topo->sizes.tp, first = model_share(n_row, tp, member);
    return (share){first, model_share(n_row, tp, member + 1) - first};
}

/* Rows and slots to and from every rank. */
enum { ROWS, SLOTS, N_KIND };
typedef struct traffic {
    int32_t out[TOPO_MAX_WORLD][N_KIND], in[TOPO_MAX_WORLD][N_KIND];
    int32_t n_out[N_KIND], n_in[N_KIND];
} traffic;

static bool reads_codes(const model_layer_weights *w, model_role role) {
    return dtype_find((uint32_t)w->w[role].type)->quantised;
}

static kern_act one_form(kern_act a, bool floats) {
    if (floats)
        a.q8 = (kern_mem){0};
    else
        a.f32 = (kern_mem){0};
    return a;
}

static kern_act rows_from(kern_act a, int32_t row) {
    if (a.f32.at)
        a.f32 = kern_at(a.f32, (size_t)row * (size_t)a.k * sizeof(float));
    if (a.q8.at)
        a.q8 = kern_at(a.q8, (size_t)row * kern_act_q8_bytes(a.k));
    return a;
}

static kern_mem floats_at(kern_mem rows, int32_t row, int32_t n) {
    return kern_at(rows, (size_t)row * (size_t)n * sizeof(float));
}

/* out[m][kind] items to rank m and in[m][kind] from it, for every m; they lie rank after rank. */
static weft_status exchange(model_rank *r, const char *phase, int32_t kind, size_t bytes,
                            const int32_t (*out)[N_KIND], kern_mem from,
                            const int32_t (*in)[N_KIND], kern_mem to) {
    size_t sn[TOPO_MAX_WORLD], sa[TOPO_MAX_WORLD], rn[TOPO_MAX_WORLD], ra[TOPO_MAX_WORLD];
    size_t s = 0, t = 0;
    for (int32_t m = 0; m < r->topo->world; m++) {
        sa[m] = s, ra[m] = t;
        s += sn[m] = (size_t)out[m][kind] * bytes;
        t += rn[m] = (size_t)in[m][kind] * bytes;
    }
    trace_phase(phase);
    return r->comm->v->all_to_all_v(r->comm, COMM_WORLD, from, sn, sa, to, rn, ra);
}

/* Who gets what of the own share, and what comes here. */
static weft_status dispatch(model_rank *r, int32_t n_row, traffic *t) {
    const model_whole *p = &r->whole;
    trace_phase("dispatch");
    *t = (traffic){0};
    r->k->dispatch(r->dev, &(kern_dispatch){.n_row = n_row,
                                            .n_used = r->w->desc->config.moe.n_used,
                                            .n_rank = r->topo->world,
                                            .cut = p->cut,
                                            .expert = r->expert,
                                            .row = p->row_out,
                                            .slot = p->slot_out,
                                            .place = p->place,
                                            .count = &t->out[0][0]});
    r->k->drain(r->dev);
    weft_status s =
        r->comm->v->all_to_all_counts(r->comm, COMM_WORLD, N_KIND, &t->out[0][0], &t->in[0][0]);
    for (int32_t m = 0; m < r->topo->world; m++)
        for (int32_t kind = 0; kind < N_KIND; kind++) {
            t->n_out[kind] += t->out[m][kind];
            t->n_in[kind] += t->in[m][kind];
        }
    return s;
}

/* The rows of the own share, x, and their slots to the experts' ranks: floats where one of the layer's
 * matrices reads them, since codes follow from them, else codes, which are shorter. */
static weft_status send_rows(model_rank *r, kern_act x, const model_layer_weights *w,
                             const traffic *t) {
    const model_whole *p = &r->whole;
    bool gate = reads_codes(w, MODEL_EXPERT_GATE), up = reads_codes(w, MODEL_EXPERT_UP),
         floats = !gate || !up;
    kern_act out = one_form(p->rows_out, floats), in = one_form(p->rows_in, floats);
    size_t bytes = floats ? (size_t)x.k * sizeof(float) : kern_act_q8_bytes(x.k);
    r->k->pick(r->dev, &(kern_pick){.from = x, .to = out, .n = t->n_out[ROWS], .idx = p->row_out});
    weft_status s = exchange(r, "send rows", ROWS, bytes, t->out, floats ? out.f32 : out.q8, t->in,
                             floats ? in.f32 : in.q8);
    if (s == WEFT_OK)
        s = exchange(r, "send slots", SLOTS, sizeof(int32_t), t->out, p->slot_out, t->in,
                     p->slot_in);
    if (s != WEFT_OK)
        return s;
    if (floats && (gate || up))
        r->k->act_make(r->dev,
                       &(kern_act_make){.n_row = t->n_in[ROWS], .from = in.f32, .to = p->rows_in});
    return WEFT_OK;
}

/* This rank's experts of a stack, as a stack of their own. */
static kern_weight own_of(const model_rank *r, const kern_weight *all) {
    kern_weight own = *all;
    size_t one = r->k->packed_bytes(all->type, all->n_out, all->n_in);
    own.data = kern_at(all->data, (size_t)r->whole.cut[r->topo->rank] * one);
    return own;
}

static kern_mem own_bias(const model_rank *r, kern_mem all, int32_t n) {
    return all.at ? floats_at(all, r->whole.cut[r->topo->rank], n) : all;
}

/* What arrived through the own experts: f32 [slot][hidden]. */
static void run_own(model_rank *r, const model_layer_weights *w, const traffic *t) {
    const model_whole *p = &r->whole;
    const model_config *c = &r->w->desc->config;
    int32_t n = t->n_in[SLOTS], own = r->topo->rank, ffn = c->moe.ffn;
    kern_weight gate = own_of(r, &w->w[MODEL_EXPERT_GATE]), up = own_of(r, &w->w[MODEL_EXPERT_UP]),
                down = own_of(r, &w->w[MODEL_EXPERT_DOWN]);
    trace_phase("experts");
    r->k->arrive(
        r->dev,
        &(kern_arrive){.n_slot = n, .slot = p->slot_in, .expert = p->expert_in, .row = p->row_in});
    r->k->experts(
        r->dev,
        &(kern_experts){.x = p->rows_in,
                        .n_row = n,
                        .n_expert = p->cut[own + 1] - p->cut[own],
                        .n_used = 1,
                        .expert = p->expert_in,
                        .x_row = p->row_in,
                        .gate = &gate,
                        .up = &up,
                        .down = &down,
                        .gate_bias = own_bias(r, model_vector(w, MODEL_EXPERT_GATE_BIAS), ffn),
                        .up_bias = own_bias(r, model_vector(w, MODEL_EXPERT_UP_BIAS), ffn),
                        .rule = c->glu,
                        .n_in = ffn,
                        .tree = &p->tree,
                        .leaf_in = p->leaf_in,
                        .sorted = r->sorted,
                        .inner = r->slots,
                        .order = r->order,
                        .nodes = p->made,
                        .node_bytes = (size_t)n * (size_t)c->hidden * sizeof(float)});
}

/* The rows of the own share: outputs of their slots in ascending order of expert, then the shared
 * expert's; then all members' shares. */
static weft_status sum_and_gather(model_rank *r, const model_layer_weights *w, int32_t n_row,
                                  const model_reduce *shared, const size_t *shared_off) {
    const model_config *c = &r->w->desc->config;
    int32_t own = r->topo->t, hidden = c->hidden;
    share rows = share_of(r, n_row, own);
    tree_prog one;
    size_t off = 0, bytes[TOPO_MAX_WORLD], at[TOPO_MAX_WORLD];
    tree_cover(1, 0, 1, &one);
    trace_phase("sum of experts");
    r->k->moe_sum(r->dev, &(kern_moe_sum){.n_row = rows.n,
                                          .n_used = c->moe.n_used,
                                          .hidden = hidden,
                                          .tree = &one,
                                          .nodes = r->whole.back,
                                          .node_off = &off,
                                          .place = r->whole.place,
                                          .expert = r->expert,
                                          .weight = r->weight,
                                          .down_bias = model_vector(w, MODEL_EXPERT_DOWN_BIAS),
                                          .shared_tree = shared ? &shared->finish : NULL,
                                          .shared_nodes = floats_at(r->nodes, rows.first, hidden),
                                          .shared_off = shared_off,
                                          .y = floats_at(r->moe, rows.first, hidden)});
    for (int32_t m = 0; m < r->topo->sizes.tp; m++) {
        share part = share_of(r, n_row, m);
        at[m] = (size_t)part.first * (size_t)hidden * sizeof(float);
        bytes[m] = (size_t)part.n * (size_t)hidden * sizeof(float);
    }
    trace_phase("gather sums");
    return r->comm->v->all_gather_v(r->comm, COMM_TP, r->moe, bytes, at);
}

weft_status program_moe_whole(model_rank *r, const model_step *s, int32_t i) {
    const model_layer_weights *w = &r->w->layer[i];
    const model_reduce *shared = w->shared_down >= 0 ? &r->reduce[w->shared_down] : NULL;
    int32_t n = s->b->n_tok;
    size_t shared_off[TREE_MAX_LEAF], row = (size_t)r->w->desc->config.hidden * sizeof(float);
    weft_status st = WEFT_OK;
    if (shared) {
        kern_act inner = gated(r, n, &w->w[MODEL_SHARED_GATE], &w->w[MODEL_SHARED_UP], shared);
        st =
            reduce_gather(r, shared, "shared down", &w->w[MODEL_SHARED_DOWN], inner, n, shared_off);
    }
    if (st != WEFT_OK)
        return st;
    traffic t;
    share rows = share_of(r, n, r->topo->t);
    kern_act x = rows_from(r->hidden, rows.first);
    choose_experts(r, x, floats_at(r->x, rows.first, x.k), rows.n, w);
    st = dispatch(r, rows.n, &t);
    if (st == WEFT_OK)
        st = send_rows(r, x, w, &t);
    if (st != WEFT_OK)
        return st;
    run_own(r, w, &t);
    st = exchange(r, "send outputs", SLOTS, row, t.in, r->whole.made, t.out, r->whole.back);
    if (st == WEFT_OK)
        st = sum_and_gather(r, w, n, shared, shared_off);
    return st;
}
