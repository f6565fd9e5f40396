/* The exchanges of attention. Every collective here runs on every rank of its group in every layer
 * of every step, with counts from the batch alone; ranks without rows take part with zeros. */
#include "attn/attn.h"

#include "base/trace.h"

static kern_mem block_at(kern_mem block, int32_t i) {
    return kern_at(block, (size_t)i * sizeof(int32_t));
}

static size_t state_bytes(const attn_shape *s) {
    return (size_t)(s->value_dim + 2) * sizeof(float);
}

/* Bytes of one token's query, all local heads. */
static size_t q_bytes(const attn_rank *a, const attn_shape *s) {
    return (size_t)a->n_head * (size_t)s->head_dim * sizeof(float);
}

size_t attn_wire_bytes(const attn_rank *a, const attn_shape *s) {
    return (size_t)s->n_kv_head *
           kern_kv_token_bytes(a->kv_type, s->head_dim, s->value_dim, s->value_in_key);
}

size_t attn_page_bytes(const attn_rank *a, const attn_shape *s) {
    return attn_wire_bytes(a, s) * (size_t)a->k->profile.page_tokens;
}

void attn_rank_init(attn_rank *a, const kern_table *k, kern_dev *dev, comm *c, const topo *t,
                    kern_kv_type kv_type, attn_most most, const batch_builder *b,
                    int32_t round_pages, attn_fault fault, kern_memory *plan) {
    *a = (attn_rank){
        .k = k, .dev = dev, .comm = c, .topo = t, .kv_type = kv_type, .n_head = t->n_head};
    a->fault = fault;
    int32_t dcp = t->sizes.dcp, shards = t->kv_shards;
    int32_t one[2] = {0, shards};
    tree_prog cover;
    int32_t n_other = 0;
    for (int32_t m = 0; m < dcp; m++) {
        tree_cover(shards, t->shard_cut[m], t->shard_cut[m + 1], &cover);
        a->n_emit[m] = cover.n_emit;
        if (m == t->dcp_rank)
            a->cover = cover;
        else
            n_other += cover.n_emit;
    }
    tree_finish(shards, t->shard_cut, dcp, &a->finish);
    tree_cover(shards, 0, shards, &a->whole);
    tree_finish(shards, one, 1, &a->root);
    attn_fault_plan(a);

    attn_shape largest = {.head_dim = most.head_dim, .value_dim = most.value_dim};
    size_t toks = (size_t)batch_tok_cap(b), queries = (size_t)batch_query_cap(b);
    size_t heads = (size_t)a->n_head, pages = batch_moves_pages(b) ? (size_t)round_pages : 0;
    size_t state = state_bytes(&largest), wire = most.token_bytes,
           page = wire * (size_t)k->profile.page_tokens;
    kern_memory_add(plan, "queries", queries * q_bytes(a, &largest), &a->q);
    kern_memory_add(plan, "new K/V to send", toks * wire, &a->wire_send);
    kern_memory_add(plan, "new K/V received", (size_t)batch_recv_cap(b) * wire, &a->wire_recv);
    kern_memory_add(plan, "partial states", queries * heads * (size_t)a->cover.n_emit * state,
                    &a->state);
    kern_memory_add(plan, "partial states received", toks * heads * (size_t)n_other * state,
                    &a->state_recv);
    kern_memory_add(plan, "states of pass-KV rows", pages > 0 ? toks * heads * state : 0,
                    &a->state_kv);
    kern_memory_add(plan, "pages to send", (size_t)batch_round_send_cap(b) * page, &a->page_send);
    kern_memory_add(plan, "pages received", pages * page, &a->page_recv);
}

/* stride: page_stride of the group in the cache, attn_page_bytes among received pages. */
static kern_kv kv_view(const attn_rank *a, const attn_shape *s, kern_mem pages, size_t stride) {
    return (kern_kv){.type = a->kv_type,
                     .n_kv_head = s->n_kv_head,
                     .head_dim = s->head_dim,
                     .value_dim = s->value_dim,
                     .value_in_key = s->value_in_key,
                     .page_stride = stride,
                     .pages = pages};
}

/* New K/V to the owner of their page in every replica; in the cache before any attention of this
 * layer reads it. */
static weft_status deliver(attn_rank *a, const attn_shape *shape, const batch_local *b,
                           kern_mem block, kern_mem pages) {
    int32_t n = a->topo->sizes.pcp;
    size_t w = attn_wire_bytes(a, shape);
    size_t sn[TOPO_MAX_WORLD], sa[TOPO_MAX_WORLD], rn[TOPO_MAX_WORLD], ra[TOPO_MAX_WORLD];
    for (int32_t m = 0; m < n; m++) {
        sn[m] = (size_t)b->kv_send_n[m] * w, sa[m] = (size_t)b->kv_send_at[m] * w;
        rn[m] = (size_t)b->kv_recv_n[m] * w, ra[m] = (size_t)b->kv_recv_at[m] * w;
    }
    trace_phase("exchange K/V");
    weft_status s =
        a->comm->v->all_to_all_v(a->comm, COMM_PCP, a->wire_send, sn, sa, a->wire_recv, rn, ra);
    if (s != WEFT_OK)
        return s;
    kern_kv_store store = {.kv = kv_view(a, shape, pages, a->page_stride[shape->group]),
                           .n = b->n_recv,
                           .wire = a->wire_recv,
                           .slots = block_at(block, b->at_slot[shape->group])};
    trace_phase("cache write");
    a->k->kv_store(a->dev, &store);
    if (a->fault == ATTN_FAULT_WRITE_TWICE && store.n > 1) {
        store.n--, store.slots = block_at(block, b->at_slot[shape->group] + 1);
        a->k->kv_store(a->dev, &store);
    }
    return WEFT_OK;
}

static kern_attn_fold fold_args(const attn_rank *a, const attn_shape *shape, const batch_local *b,
                                kern_mem block, kern_kv kv) {
    return (kern_attn_fold){.kv = kv,
                            .n_head = a->n_head,
                            .scale = shape->scale,
                            .window = shape->window,
                            .q = a->q,
                            .tables = block_at(block, b->at_table[shape->group]),
                            .kv_shards = a->topo->kv_shards};
}

/* Queries to the pages: gather the group's queries, fold own shards for all of them, states back to
 * the rows' owners. */
static weft_status pass_q(attn_rank *a, const attn_shape *shape, const batch_local *b,
                          kern_mem block, kern_mem pages) {
    int32_t dcp = a->topo->sizes.dcp, self = a->topo->dcp_rank;
    size_t sn[TOPO_MAX_WORLD], sa[TOPO_MAX_WORLD], rn[TOPO_MAX_WORLD], ra[TOPO_MAX_WORLD];
    for (int32_t m = 0; m < dcp; m++)
        sn[m] = (size_t)b->q_n[m] * q_bytes(a, shape),
        sa[m] = (size_t)b->q_at[m] * q_bytes(a, shape);
    trace_phase("gather queries");
    weft_status s = a->comm->v->all_gather_v(a->comm, COMM_DCP, a->q, sn, sa);
    if (s != WEFT_OK)
        return s;

    kern_attn_fold f =
        fold_args(a, shape, b, block, kv_view(a, shape, pages, a->page_stride[shape->group]));
    f.n_span = b->n_span, f.spans = block_at(block, b->at_span);
    f.shard0 = a->topo->shard_cut[self], f.tree = &a->cover;
    f.state_q0 = 0, f.state = a->state;
    trace_phase("attention");
    a->k->attn_fold(a->dev, &f);

    size_t own = (size_t)a->n_head * (size_t)a->cover.n_emit * state_bytes(shape), at = 0;
    for (int32_t m = 0; m < dcp; m++) {
        size_t theirs =
            (size_t)b->n_q_tok * (size_t)a->n_head * (size_t)a->n_emit[m] * state_bytes(shape);
        bool other = m != self; /* the own part is finished where it lies */
        sn[m] = other ? (size_t)b->q_n[m] * own : 0, sa[m] = (size_t)b->q_at[m] * own;
        rn[m] = other ? theirs : 0, ra[m] = at;
        at += rn[m];
    }
    trace_phase("exchange states");
    return a->comm->v->all_to_all_v(a->comm, COMM_DCP, a->state, sn, sa, a->state_recv, rn, ra);
}

/* Pages to the queries: whole pages of the round's requests come here in canonical order, and are
 * folded by the same kernel. */
static weft_status pass_kv(attn_rank *a, const attn_shape *shape, const batch_local *b,
                           const batch_round *r, kern_mem block, kern_mem pages) {
    size_t p = attn_page_bytes(a, shape);
    size_t sn[TOPO_MAX_WORLD], sa[TOPO_MAX_WORLD], rn[TOPO_MAX_WORLD], ra[TOPO_MAX_WORLD];
    for (int32_t m = 0; m < a->topo->sizes.dcp; m++) {
        sn[m] = (size_t)r->send_n[m] * p, sa[m] = (size_t)r->send_at[m] * p;
        rn[m] = (size_t)r->recv_n[m] * p, ra[m] = (size_t)r->recv_at[m] * p;
    }
    trace_phase("pack pages");
    a->k->kv_pack(a->dev,
                  &(kern_kv_pack){.from = kv_view(a, shape, pages, a->page_stride[shape->group]),
                                  .n = r->n_send,
                                  .pages = block_at(block, r->at_send),
                                  .out = a->page_send});
    trace_phase("exchange pages");
    weft_status s =
        a->comm->v->all_to_all_v(a->comm, COMM_DCP, a->page_send, sn, sa, a->page_recv, rn, ra);
    if (s != WEFT_OK)
        return s;
    kern_attn_fold f = fold_args(a, shape, b, block, kv_view(a, shape, a->page_recv, p));
    f.n_span = r->n_span, f.spans = block_at(block, r->at_span);
    f.shard0 = 0, f.tree = &a->whole;
    f.state_q0 = b->n_gather, f.state = a->state_kv;
    trace_phase("attention");
    a->k->attn_fold(a->dev, &f);
    return WEFT_OK;
}

/* The rest of the tree at home: pass-Q tokens from every member's nodes, pass-KV tokens from their
 * root. */
static void finish(attn_rank *a, const attn_shape *shape, const batch_local *b, kern_act out) {
    int32_t dcp = a->topo->sizes.dcp, self = a->topo->dcp_rank, n = 0;
    size_t st = state_bytes(shape), heads = (size_t)a->n_head, at = 0;
    kern_mem node[TREE_MAX_LEAF];
    size_t stride[TREE_MAX_LEAF];
    for (int32_t m = 0; m < dcp; m++) {
        size_t per_head = (size_t)a->n_emit[m] * st;
        kern_mem base = kern_at(a->state, (size_t)b->q_at[self] * heads * per_head);
        if (m != self) {
            base = kern_at(a->state_recv, at);
            at += (size_t)b->n_q_tok * heads * per_head;
        }
        for (int32_t e = 0; e < a->n_emit[m]; e++)
            node[n] = kern_at(base, (size_t)e * st), stride[n++] = per_head;
    }
    kern_attn_finish f = {.n_tok = b->n_q_tok,
                          .n_head = a->n_head,
                          .value_dim = shape->value_dim,
                          .sinks = shape->sinks,
                          .tree = &a->finish,
                          .node = node,
                          .node_stride = stride,
                          .row0 = 0,
                          .out = out};
    trace_phase("finish");
    a->k->attn_finish(a->dev, &f);
    if (b->n_round == 0)
        return;
    f.n_tok = b->n_tok - b->n_q_tok, f.row0 = b->n_q_tok, f.tree = &a->root;
    f.node = &a->state_kv, f.node_stride = &st;
    a->k->attn_finish(a->dev, &f);
}

weft_status attn_layer(attn_rank *a, const batch_local *b, kern_mem block, kern_mem pages,
                       const attn_shape *shape, kern_act out) {
    weft_status s = shape->reads_only ? WEFT_OK : deliver(a, shape, b, block, pages);
    if (s != WEFT_OK)
        return s;
    if (a->fault == ATTN_FAULT_EARLY_EXIT && (b->n_row == 0 || b->row[0].start > 0))
        return WEFT_OK;
    s = pass_q(a, shape, b, block, pages);
    for (int32_t i = 0; i < b->n_round && s == WEFT_OK; i++)
        s = pass_kv(a, shape, b, &b->round[i * b->n_group + shape->group], block, pages);
    if (s == WEFT_OK)
        finish(a, shape, b, out);
    return s;
}
