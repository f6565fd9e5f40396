#include "engine/explain.h"

#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

#define NAME(id, name, text) name,
#define TEXT(id, name, text) text,
const char *const explain_move_name[EXPLAIN_N_MOVE] = {EXPLAIN_MOVE_TABLE(NAME)};
const char *const explain_move_text[EXPLAIN_N_MOVE] = {EXPLAIN_MOVE_TABLE(TEXT)};
#undef NAME
#undef TEXT

/* ---- kernels that do nothing but count the linear layers ---- */

#define DRY_OPERATIONS(X)                                                                          \
    X(embed)                                                                                       \
    X(glu)                                                                                         \
    X(act_make)                                                                                    \
    X(reduce_norm)                                                                                 \
    X(softcap)                                                                                     \
    X(route)                                                                                       \
    X(arrive)                                                                                      \
    X(moe_sum)                                                                                     \
    X(pick)                                                                                        \
    X(qk_rope)                                                                                     \
    X(mla_rope)                                                                                    \
    X(kv_store)                                                                                    \
    X(kv_pack)                                                                                     \
    X(attn_fold)                                                                                   \
    X(attn_finish)
#define DRY_FUNCTION(op)                                                                           \
    static void dry_##op(kern_dev *dev, const kern_##op *p) {                                      \
        (void)dev;                                                                                 \
        (void)p;                                                                                   \
    }
DRY_OPERATIONS(DRY_FUNCTION)
#undef DRY_FUNCTION

/* The device of a rank that is only planned. Dry kernels are the only ones that see it. */
typedef struct dry_dev {
    const kern_table *k;
    explain_work *work;
} dry_dev;

static void dry_weight(kern_dev *dev, const kern_weight *w, int32_t n_row, int32_t n_out,
                       int32_t n_in) {
    const dry_dev *d = (const dry_dev *)dev;
    d->work->linear_ops[kern_peak_of(w->type)] += (int64_t)2 * n_row * n_out * n_in;
    if (n_row > 0)
        d->work->weight_bytes += (int64_t)d->k->packed_bytes(w->type, n_out, n_in);
}

static void dry_linear(kern_dev *dev, const kern_linear *p) {
    for (int32_t i = 0; i < p->n_part; i++)
        dry_weight(dev, p->part[i].w, p->n_row, p->part[i].n_out, p->n_in);
}

static void dry_swiglu(kern_dev *dev, const kern_swiglu *p) {
    dry_weight(dev, p->gate, p->n_row, p->n_out, p->x.k);
    dry_weight(dev, p->up, p->n_row, p->n_out, p->x.k);
}

/* Which experts a token goes to is not known: the most that can be read, each slot another one. */
static void dry_experts(kern_dev *dev, const kern_experts *p) {
    const dry_dev *d = (const dry_dev *)dev;
    const kern_weight *w[3] = {p->gate, p->up, p->down};
    int32_t n_slot = p->n_row * p->n_used;
    int64_t n_read = n_slot < p->n_expert ? n_slot : p->n_expert;
    for (int32_t i = 0; i < 3; i++) {
        int32_t n_out = i < 2 ? p->n_in : w[i]->n_out, n_in = i < 2 ? w[i]->n_in : p->n_in;
        d->work->linear_ops[kern_peak_of(w[i]->type)] += (int64_t)2 * n_slot * n_out * n_in;
        d->work->weight_bytes += n_read * (int64_t)d->k->packed_bytes(w[i]->type, n_out, n_in);
    }
}

/* Rows and slots of n_row rows at the experts [lo, hi): slots 0, 1, .. go to experts 0, 1, .. n_expert - 1, 0,
 * .., those of a row to different ones. */
static void spread_slots(int32_t lo, int32_t hi, int32_t n_expert, int32_t n_row, int32_t n_used,
                         int32_t *count) {
    count[0] = count[1] = 0;
    for (int32_t i = 0; i < n_row; i++) {
        int32_t n = 0;
        for (int32_t k = 0; k < n_used; k++) {
            int32_t e = (int32_t)(((int64_t)i * n_used + k) % n_expert);
            n += e >= lo && e < hi;
        }
        count[0] += n > 0;
        count[1] += n;
    }
}

static void dry_dispatch(kern_dev *dev, const kern_dispatch *p) {
    (void)dev;
    for (int32_t m = 0; m < p->n_rank; m++)
        spread_slots(p->cut[m], p->cut[m + 1], p->cut[p->n_rank], p->n_row, p->n_used,
                     p->count + 2 * m);
}

static kern_table dry_table(const kern_table *k) {
    kern_table dry = *k;
    dry.linear = dry_linear;
    dry.swiglu = dry_swiglu;
    dry.experts = dry_experts;
    dry.dispatch = dry_dispatch;
#define DRY_SET(op) dry.op = dry_##op;
    DRY_OPERATIONS(DRY_SET)
#undef DRY_SET
    return dry;
}

/* ---- a transport that counts ---- */

typedef struct dry_comm {
    comm base;
    explain_rank *rank;
    const explain *e;
    const int32_t *tok_n; /* [pcp] rows of the step */
    bool states_next; /* the DCP group's all-to-all after a gather of queries brings states home */
    /* Experts' exchanges of the world so far in this layer: rows, slots, outputs; then the TP group
     * gathers sums. */
    int32_t n_world;
} dry_comm;

static weft_status dry_gather(comm *c, comm_group g, kern_mem recv, const size_t *bytes,
                              const size_t *at) {
    (void)recv;
    (void)at;
    dry_comm *d = (dry_comm *)c;
    explain_move move = g == COMM_DCP                     ? EXPLAIN_QUERIES
                        : g == COMM_TP && d->n_world == 3 ? EXPLAIN_EXPERT_SUMS
                        : g == COMM_TP                    ? EXPLAIN_NODES
                                                          : EXPLAIN_RESULTS;
    d->states_next = g == COMM_DCP;
    d->n_world = 0;
    for (int32_t m = 0; m < c->size[g]; m++) {
        if (m == c->index[g])
            d->rank->sent[move] += (int64_t)bytes[m] * (c->size[g] - 1);
        else
            d->rank->received[move] += (int64_t)bytes[m];
    }
    return WEFT_OK;
}

static weft_status dry_to_all(comm *c, comm_group g, kern_mem send, const size_t *send_bytes,
                              const size_t *send_at, kern_mem recv, const size_t *recv_bytes,
                              const size_t *recv_at) {
    (void)send;
    (void)send_at;
    (void)recv;
    (void)recv_at;
    dry_comm *d = (dry_comm *)c;
    if (g == COMM_WORLD)
        d->n_world++;
    explain_move move = g == COMM_WORLD
                            ? d->n_world < 3 ? EXPLAIN_EXPERT_ROWS : EXPLAIN_EXPERT_OUTPUTS
                        : g == COMM_PCP  ? EXPLAIN_DELIVER
                        : d->states_next ? EXPLAIN_STATES
                                         : EXPLAIN_PAGES;
    d->states_next = false;
    for (int32_t m = 0; m < c->size[g]; m++) {
        if (m == c->index[g])
            continue;
        d->rank->sent[move] += (int64_t)send_bytes[m];
        d->rank->received[move] += (int64_t)recv_bytes[m];
    }
    return WEFT_OK;
}

/* What the others send to the experts of this rank. */
static weft_status dry_counts(comm *c, comm_group g, int32_t n, const int32_t *send,
                              int32_t *recv) {
    (void)send;
    dry_comm *d = (dry_comm *)c;
    const model_moe *moe = &d->e->desc->config.moe;
    int32_t tp = d->rank->topo.sizes.tp, lo = d->rank->expert0;
    for (int32_t m = 0; m < c->size[g]; m++) {
        int32_t rows = d->tok_n[m / tp], t = m % tp;
        spread_slots(lo, lo + d->rank->n_expert, moe->n_expert,
                     model_share(rows, tp, t + 1) - model_share(rows, tp, t), moe->n_used,
                     recv + m * n);
    }
    int64_t bytes = (int64_t)(c->size[g] - 1) * n * (int64_t)sizeof *recv;
    d->rank->sent[EXPLAIN_EXPERT_ROWS] += bytes;
    d->rank->received[EXPLAIN_EXPERT_ROWS] += bytes;
    return WEFT_OK;
}

static const comm_vtable dry_vtable = {
    .all_gather_v = dry_gather, .all_to_all_v = dry_to_all, .all_to_all_counts = dry_counts};

static void dry_comm_init(dry_comm *d, const explain *e, explain_rank *r) {
    *d = (dry_comm){.base = {.v = &dry_vtable, .world = r->topo.world, .rank = r->topo.rank},
                    .rank = r,
                    .e = e};
    memcpy(d->base.size, r->topo.members.size, sizeof d->base.size);
    memcpy(d->base.index, r->topo.members.index, sizeof d->base.index);
}

/* ---- the step ---- */

typedef struct step {
    kv_pools *kv;
    kv_table *table;     /* [n_request] */
    int32_t *page;       /* behind the tables */
    int32_t *token;      /* ids do not matter: zeros for all */
    batch_request *req;  /* [n_request] */
    batch_global global; /* of the requests that run */
} step;

static void step_close(step *s) {
    free(s->req);
    free(s->token);
    free(s->page);
    free(s->table);
    kv_close(s->kv);
}

static weft_status sizes_check(const explain *e, weft_error *err) {
    const weft_engine_params *p = &e->setup.p;
    int32_t n_decode = 0;
    for (int32_t i = 0; i < e->n_request; i++) {
        const explain_request *r = &e->request[i];
        n_decode += r->decode;
        if (r->size < 1 || r->size >= e->longest)
            return error_set(err, WEFT_ERR_TOO_LONG,
                             "%s %d: expected 1 to %d tokens; with a token of the answer a "
                             "request has at most %d (--max-model-len %d, %lld in the cache)",
                             r->decode ? "--decode" : "--prompts", r->size, e->longest - 1,
                             e->longest, p->max_model_len, (long long)e->cache_tokens);
    }
    if (n_decode > p->max_num_seqs)
        return error_set(err, WEFT_ERR_TOO_LONG,
                         "--decode: %d requests; --max-num-seqs allows %d at a time", n_decode,
                         p->max_num_seqs);
    return WEFT_OK;
}

static weft_status step_open(const explain *e, step *s, weft_error *err) {
    const engine_setup *u = &e->setup;
    size_t n = (size_t)e->n_request, pages = 0;
    int32_t longest = 1;
    for (size_t i = 0; i < n; i++) {
        pages += (size_t)(e->request[i].size / u->caps.page_tokens + 1);
        longest = e->request[i].size > longest ? e->request[i].size : longest;
    }
    s->table = calloc(n + 1, sizeof *s->table);
    s->page = calloc(pages * (size_t)u->caps.n_group + 1, sizeof *s->page);
    s->token = calloc((size_t)longest + 1, sizeof *s->token);
    s->req = calloc(n + 1, sizeof *s->req);
    if (!s->table || !s->page || !s->token || !s->req)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the page tables of %d requests",
                         e->n_request);
    int32_t *at = s->page;
    for (size_t i = 0; i < n; i++) {
        int32_t cap = e->request[i].size / u->caps.page_tokens + 1;
        s->table[i].cap = cap;
        for (int32_t g = 0; g < u->caps.n_group; g++, at += cap)
            s->table[i].page[g] = at;
    }
    s->global = (batch_global){.kind = PLAN_STEP, .req = s->req};
    return WEFT_OK;
}

static const char text_budget[] = "--max-num-batched-tokens", text_seqs[] = "--max-num-seqs",
                  text_pages[] = "pages of the cache", text_queue[] = "the one before it waits";

/* What lets a request wait; NULL when it can start. Decoding requests come first and have their
 * slot and pages already. */
static const char *why_waits(const explain *e, step *s, int32_t i, int32_t budget) {
    const explain_request *r = &e->request[i];
    if (i > 0 && e->request[i - 1].n_new == 0 && !r->decode)
        return e->request[i - 1].limit == text_budget ? text_budget : text_queue;
    if (budget == 0)
        return text_budget;
    if (!r->decode && i >= e->setup.p.max_num_seqs)
        return text_seqs;
    if (!r->decode && !kv_extend(s->kv, &s->table[i], r->size, 0))
        return text_pages;
    return NULL;
}

static void request_pages(explain *e, step *s, int32_t i) {
    explain_request *r = &e->request[i];
    const batch_caps *caps = &e->setup.caps;
    for (int32_t g = 0; g < caps->n_group; g++) {
        s->req[e->n_run - 1].page[g] = s->table[i].page[g];
        r->first_page[g] = kv_first_page(caps->window[g], caps->page_tokens, r->start);
        r->held[g] = s->table[i].n_page[g] - s->table[i].first[g];
    }
}

/* First come first served within the token budget, as the scheduler does it: a prompt that does
 * not fit is cut, and nobody overtakes one that waits. */
static void step_schedule(explain *e, step *s) {
    int32_t budget = e->setup.p.max_num_batched_tokens, page_tokens = e->setup.caps.page_tokens;
    for (int32_t i = 0; i < e->n_request; i++) {
        explain_request *r = &e->request[i];
        r->start = r->decode ? r->size : 0;
        r->limit = why_waits(e, s, i, budget);
        if (r->limit)
            continue;
        int32_t want = r->decode ? 1 : r->size;
        r->n_new = want < budget ? want : budget;
        r->limit = r->n_new < want ? text_budget : NULL;
        r->n_page = (r->start + r->n_new - 1) / page_tokens + 1;
        budget -= r->n_new;
        e->n_tok += r->n_new;
        bool last = r->n_new == want;
        s->req[e->n_run++] = (batch_request){.slot = i,
                                             .start = r->start,
                                             .n_new = r->n_new,
                                             .n_logits = last,
                                             .sample = last,
                                             .decode = r->decode,
                                             .token = s->token};
        request_pages(e, s, i);
    }
    s->global.n_req = e->n_run;
}

static weft_status step_make(explain *e, step *s, weft_error *err) {
    weft_status st = step_open(e, s, err);
    if (st != WEFT_OK)
        return st;
    int64_t all = 0;
    for (int32_t i = 0; i < e->n_request; i++) {
        const explain_request *r = &e->request[i];
        if (!r->decode)
            continue;
        all += r->size + 1;
        kv_trim(s->kv, &s->table[i], r->size);
        if (!kv_extend(s->kv, &s->table[i], r->size + 1, r->size))
            return error_set(err, WEFT_ERR_TOO_LONG,
                             "--decode: the cache of %lld tokens does not hold the first %d "
                             "contexts, %lld tokens with the new ones",
                             (long long)e->cache_tokens, i + 1, (long long)all);
    }
    step_schedule(e, s);
    for (int32_t i = 0; i < e->n_run; i++) {
        explain_request *r = &e->request[i];
        r->owner = calloc((size_t)r->n_new, sizeof *r->owner);
        if (!r->owner)
            return error_set(err, WEFT_ERR_MEMORY, "no memory for %d tokens", r->n_new);
    }
    return WEFT_OK;
}

/* ---- a rank ---- */

static weft_status rank_rows(explain *e, explain_rank *r, const batch_local *b, weft_error *err) {
    r->n_tok = b->n_tok;
    r->n_row = b->n_row;
    r->row = malloc((size_t)(b->n_row + 1) * sizeof *r->row);
    if (!r->row)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d rows", b->n_row);
    for (int32_t i = 0; i < b->n_row; i++) {
        const batch_row *row = &b->row[i];
        explain_request *q = &e->request[row->req];
        r->row[i] = *row;
        q->pass_kv = row->tok0 >= b->n_q_tok;
        memset(q->owner + (row->start - q->start), r->topo.c, (size_t)row->len);
    }
    return WEFT_OK;
}

/* The collectives of a step in the engine's order: layers, logits rows, results. */
static weft_status rank_run(explain_rank *r, model_rank *m, const batch_local *b) {
    model_step part = {b, (kern_mem){0}};
    weft_status s = model_forward(m, &part);
    int64_t nodes = r->sent[EXPLAIN_NODES], nodes_in = r->received[EXPLAIN_NODES];
    for (int32_t first = 0; first < b->n_logit && s == WEFT_OK; first += MODEL_LOGIT_CHUNK) {
        int32_t left = b->n_logit - first;
        s = model_logits(m, &part, first, left < MODEL_LOGIT_CHUNK ? left : MODEL_LOGIT_CHUNK,
                         NULL);
    }
    /* what the TP group gathered after the layers is logits */
    r->sent[EXPLAIN_LOGITS] = r->sent[EXPLAIN_NODES] - nodes;
    r->received[EXPLAIN_LOGITS] = r->received[EXPLAIN_NODES] - nodes_in;
    r->sent[EXPLAIN_NODES] = nodes;
    r->received[EXPLAIN_NODES] = nodes_in;
    size_t bytes[TOPO_MAX_WORLD], at[TOPO_MAX_WORLD] = {0};
    for (int32_t i = 0; i < r->topo.world; i++) {
        bool samples = i % r->topo.sizes.tp == 0;
        bytes[i] = samples ? (size_t)b->logit_n[i / r->topo.sizes.tp] * sizeof(engine_result) : 0;
    }
    return s == WEFT_OK ? m->comm->v->all_gather_v(m->comm, COMM_WORLD, part.block, bytes, at) : s;
}

static void rank_memory(const explain *e, explain_rank *r, const batch_builder *b) {
    const engine_setup *s = &e->setup;
    kern_mem nowhere;
    size_t rows = (size_t)s->p.max_num_batched_tokens;
    kern_memory_add(&r->memory, "step block", (size_t)batch_block_cap(b) * sizeof(int32_t),
                    &nowhere);
    kern_memory_add(&r->memory, "results", rows * sizeof(engine_result), &nowhere);
    r->scratch_bytes = engine_rank_scratch_bytes(e->desc, s, (int32_t)(r - e->rank), b);
    r->host_bytes = engine_rank_host_bytes(s, &r->topo);
}

static weft_status rank_make(explain *e, const model_weights *w, const step *st, int32_t i,
                             weft_error *err) {
    const engine_setup *s = &e->setup;
    explain_rank *r = &e->rank[i];
    dry_comm dry;
    batch_builder *builder = NULL;
    model_rank *m = NULL;
    batch_local local;
    topo_init(&s->model, s->sizes, i, &r->topo);
    r->n_thread = engine_setup_threads(s, i);
    if (s->p.expert_parallel) {
        r->expert0 = topo_expert_cut(e->desc->config.moe.n_expert, s->world, i);
        r->n_expert = topo_expert_cut(e->desc->config.moe.n_expert, s->world, i + 1) - r->expert0;
    }
    dry_comm_init(&dry, e, r);
    dry_dev dev = {s->k, &e->work};
    weft_status status = batch_builder_open(&r->topo, &s->caps, &builder, err);
    if (status != WEFT_OK)
        return status;
    model_rank_setup ms = {.dev = (kern_dev *)&dev,
                           .comm = &dry.base,
                           .topo = &r->topo,
                           .builder = builder,
                           .kv_type = s->kv_type,
                           .kv_pages = s->kv_pages,
                           .round_pages = s->caps.round_pages,
                           .expert_parallel = s->p.expert_parallel};
    status = model_rank_open(w, &ms, &r->memory, &m, err);
    if (status == WEFT_OK) {
        rank_memory(e, r, builder);
        batch_build(builder, &st->global, &local);
        dry.tok_n = local.tok_n;
        status = rank_rows(e, r, &local, err);
    }
    if (status == WEFT_OK)
        status = rank_run(r, m, &local);
    if (status == WEFT_OK && r->memory.failed)
        status = error_set(err, WEFT_ERR_MEMORY, "no memory for the list of buffers");
    model_rank_close(m);
    batch_builder_close(builder);
    return status;
}

/* ---- all ---- */

static weft_status requests_make(explain *e, const explain_ask *ask, weft_error *err) {
    e->n_request = ask->n_decode + ask->n_prompt;
    e->request = calloc((size_t)e->n_request + 1, sizeof *e->request);
    if (!e->request)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d requests", e->n_request);
    for (int32_t i = 0; i < e->n_request; i++) {
        bool decode = i < ask->n_decode;
        e->request[i].decode = decode;
        e->request[i].size = decode ? ask->decode[i] : ask->prompt[i - ask->n_decode];
    }
    return WEFT_OK;
}

static weft_status cache_open(explain *e, step *s, weft_error *err) {
    const engine_setup *u = &e->setup;
    topo t;
    topo_init(&u->model, u->sizes, 0, &t);
    kv_group group[KV_MAX_GROUP];
    kv_sizes sizes = engine_setup_kv(u, &t, group);
    weft_status st = kv_open(&sizes, &s->kv, err);
    if (st != WEFT_OK)
        return st;
    int32_t fits = kv_capacity_tokens(s->kv);
    e->longest = fits < u->p.max_model_len ? fits : u->p.max_model_len;
    e->cache_tokens = (int64_t)u->p.kv_pages * u->sizes.dcp * u->caps.page_tokens;
    return WEFT_OK;
}

/* The rule's two sides on a rank. */
static void exchange_bytes(explain *e) {
    for (int32_t i = 0; i < e->n_run; i++) {
        explain_request *r = &e->request[i];
        batch_moved m = batch_bytes_moved(&e->setup.caps, &e->rank[0].topo, r->start, r->n_new);
        r->q_bytes = m.q;
        r->kv_bytes = m.kv;
    }
}

/* Keys that the new tokens of a request see together, and pages that hold one of them. */
static int64_t keys_seen(const explain_request *r, int32_t window) {
    int64_t n = 0;
    for (int32_t i = 0; i < r->n_new; i++) {
        int32_t keys = r->start + i + 1;
        n += window > 0 && window < keys ? window : keys;
    }
    return n;
}

static int64_t pages_seen(const explain_request *r, int32_t window, int32_t page_tokens) {
    int32_t first = window > 0 && r->start + 1 > window ? r->start + 1 - window : 0;
    return r->n_page - first / page_tokens;
}

/* A query takes part in a dot product of head_dim with each key that it sees, and in as many
 * additions of a value row. */
static void attention_work(explain *e) {
    int32_t page_tokens = e->setup.caps.page_tokens;
    for (int32_t k = 0; k < e->desc->config.n_layer; k++) {
        const model_layer *l = &e->desc->layer[k];
        int64_t token = l->n_kv_head * (int64_t)model_kv_head_bytes(l, e->setup.kv_type);
        for (int32_t i = 0; i < e->n_run; i++) {
            const explain_request *r = &e->request[i];
            e->work.attn_ops +=
                2 * keys_seen(r, l->window) * l->n_head * (l->head_dim + l->value_dim);
            e->work.kv_bytes += pages_seen(r, l->window, page_tokens) * page_tokens * token;
        }
    }
}

static weft_status ranks_make(explain *e, const step *s, weft_error *err) {
    kern_table dry = dry_table(e->setup.k);
    model_weights *w = NULL;
    e->rank = calloc((size_t)e->setup.world, sizeof *e->rank);
    if (!e->rank)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d ranks", e->setup.world);
    weft_status st = model_weights_open(e->desc, &dry, e->setup.p.max_model_len, &w, err);
    if (st != WEFT_OK)
        return st;
    e->weight_bytes = w->memory.bytes;
    for (int32_t i = 0; i < e->setup.world && st == WEFT_OK; i++)
        st = rank_make(e, w, s, i, err);
    model_weights_close(w);
    return st;
}

weft_status explain_open(const model_desc *d, const weft_engine_params *params,
                         const explain_ask *ask, explain **out, weft_error *err) {
    explain *e = calloc(1, sizeof *e);
    step s = {0};
    if (!e)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a plan");
    e->desc = d;
    weft_status st = engine_setup_make(d, params, &e->setup, err);
    if (st == WEFT_OK)
        st = requests_make(e, ask, err);
    if (st == WEFT_OK)
        st = cache_open(e, &s, err);
    if (st == WEFT_OK)
        st = sizes_check(e, err);
    if (st == WEFT_OK)
        st = step_make(e, &s, err);
    if (st == WEFT_OK)
        st = ranks_make(e, &s, err);
    step_close(&s);
    if (st != WEFT_OK) {
        explain_close(e);
        return st;
    }
    exchange_bytes(e);
    attention_work(e);
    *out = e;
    return WEFT_OK;
}

void explain_close(explain *e) {
    if (!e)
        return;
    for (int32_t i = 0; e->rank && i < e->setup.world; i++) {
        kern_memory_release(&e->rank[i].memory, e->setup.k);
        free(e->rank[i].row);
    }
    for (int32_t i = 0; e->request && i < e->n_request; i++)
        free(e->request[i].owner);
    free(e->rank);
    free(e->request);
    free(e);
}

int64_t explain_sent(const explain_rank *r) {
    int64_t n = 0;
    for (int32_t i = 0; i < EXPLAIN_N_MOVE; i++)
        n += r->sent[i];
    return n;
}

double explain_seconds(const explain_work *w, const double peak[KERN_N_PEAK]) {
    double linear = 0, weights = (double)w->weight_bytes / peak[KERN_PEAK_READ],
           attention = (double)w->attn_ops / peak[KERN_PEAK_FMA],
           cache = (double)w->kv_bytes / peak[KERN_PEAK_READ];
    for (int32_t i = 0; i < KERN_N_PEAK; i++)
        linear += (double)w->linear_ops[i] / peak[i];
    return 1e-9 * ((linear > weights ? linear : weights) + (attention > cache ? attention : cache));
}
