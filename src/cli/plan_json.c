/* The plan as one JSON object. */
#include <string.h>

#include "cli/json.h"
#include "cli/plan.h"

static json_t *range(int32_t lo, int32_t hi) {
    return json_pack("[i, i]", lo, hi);
}

/* One number per kind of move. */
static json_t *moves(const int64_t *bytes) {
    json_t *out = json_object();
    for (int32_t i = 0; i < EXPLAIN_N_MOVE; i++)
        json_object_set_new(out, explain_move_name[i], json_integer(bytes[i]));
    return out;
}

static json_t *memory_items(const kern_memory *m) {
    json_t *out = json_array();
    for (int32_t i = 0; i < m->n; i++)
        json_array_append_new(out, json_pack("{s:s, s:I}", "name", m->item[i].name, "bytes",
                                             (json_int_t)m->item[i].bytes));
    return out;
}

static json_t *rank_rows(const explain_rank *r) {
    json_t *out = json_array();
    for (int32_t i = 0; i < r->n_row; i++)
        json_array_append_new(out,
                              json_pack("{s:i, s:i, s:i}", "request", r->row[i].req, "start",
                                        r->row[i].start, "end", r->row[i].start + r->row[i].len));
    return out;
}

/* KV heads of layers with fewer than others; null: there are none. */
static json_t *fewer_kv_heads(const explain *e, const topo *t) {
    int32_t n = topo_fewer_kv_heads(&e->setup.model), tp = t->sizes.tp;
    int32_t first = topo_kv_head0(n, tp, t->t);
    return n > 0 ? range(first, first + topo_kv_heads(n, tp)) : json_null();
}

static json_t *rank_json(const explain *e, const explain_rank *r) {
    const topo *t = &r->topo;
    json_t *group = json_array();
    for (int32_t m = 0; m < t->sizes.dcp; m++)
        json_array_append_new(group, json_integer(t->group_list[COMM_DCP][m]));
    return json_pack(
        "{s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:i, s:o, s:i, s:o, s:I, s:I, s:I, s:i, s:o, "
        "s:o, s:o}",
        "rank", t->rank, "pcp", t->c, "tp", t->t, "heads", range(t->head0, t->head0 + t->n_head),
        "kv_heads", range(t->kv_head0, t->kv_head0 + t->n_kv_head), "kv_heads_fewer",
        fewer_kv_heads(e, t), "experts", range(r->expert0, r->expert0 + r->n_expert), "dcp_group",
        group, "dcp", t->dcp_rank, "shards",
        range(t->shard_cut[t->dcp_rank], t->shard_cut[t->dcp_rank + 1]), "threads", r->n_thread,
        "memory", memory_items(&r->memory), "memory_bytes", (json_int_t)r->memory.bytes,
        "kernel_scratch_bytes", (json_int_t)r->scratch_bytes, "host_bytes",
        (json_int_t)r->host_bytes, "tokens", r->n_tok, "rows", rank_rows(r), "sent", moves(r->sent),
        "received", moves(r->received));
}

static json_t *page_owners(const explain *e, const explain_request *r) {
    json_t *out = json_array();
    for (int32_t p = 0; p < r->n_page; p++)
        json_array_append_new(out, json_integer(topo_page_owner(&e->rank[0].topo, p)));
    return out;
}

static json_t *request_groups(const explain *e, const explain_request *r) {
    json_t *out = json_array();
    for (int32_t g = 0; g < e->setup.caps.n_group; g++)
        json_array_append_new(
            out, json_pack("{s:i, s:i}", "first_page", r->first_page[g], "held_pages", r->held[g]));
    return out;
}

static json_t *request_json(const explain *e, const explain_request *r) {
    json_t *out =
        json_pack("{s:s, s:i, s:i, s:i, s:b, s:o}", "kind", r->decode ? "decode" : "prompt", "size",
                  r->size, "start", r->start, "new_tokens", r->n_new, "runs", r->n_new > 0, "limit",
                  r->limit ? json_string(r->limit) : json_null());
    if (r->n_new == 0)
        return out;
    json_object_set_new(out, "pages", page_owners(e, r));
    json_object_set_new(out, "groups", request_groups(e, r));
    json_object_set_new(out, "exchange", json_string(r->pass_kv ? "kv" : "q"));
    json_object_set_new(out, "q_bytes", json_integer(r->q_bytes));
    json_object_set_new(out, "kv_bytes", json_integer(r->kv_bytes));
    return out;
}

static json_t *memory_json(const explain *e) {
    int64_t rank_bytes = 0, scratch = 0, host = 0;
    for (int32_t i = 0; i < e->setup.world; i++) {
        rank_bytes += (int64_t)e->rank[i].memory.bytes;
        scratch += (int64_t)e->rank[i].scratch_bytes;
        host += (int64_t)e->rank[i].host_bytes;
    }
    int64_t kv = (int64_t)e->setup.p.kv_bytes, weights = (int64_t)e->weight_bytes;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "weight_bytes", (json_int_t)weights,
                     "kv_bytes", (json_int_t)kv, "scratch_bytes", (json_int_t)(rank_bytes - kv),
                     "kernel_scratch_bytes", (json_int_t)scratch, "host_bytes", (json_int_t)host,
                     "total_bytes", (json_int_t)(weights + rank_bytes + scratch + host));
}

/* The groups of layers; those that keep most first. */
static json_t *groups_json(const explain *e) {
    const engine_setup *s = &e->setup;
    json_t *out = json_array();
    for (int32_t g = 0; g < s->caps.n_group; g++)
        json_array_append_new(
            out,
            json_pack("{s:i, s:i, s:I, s:i, s:i}", "window", s->caps.window[g], "layers",
                      model_group_layers(e->desc, g), "token_bytes",
                      (json_int_t)(s->page_bytes[g] / (size_t)s->caps.page_tokens),
                      "pages_per_rank", s->kv_pages[g], "longest_request_pages", s->longest[g]));
    return out;
}

static json_t *work_json(const explain_work *w) {
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I}", "dot4_ops", (json_int_t)w->linear_ops[KERN_PEAK_DOT4],
        "dot8_ops", (json_int_t)w->linear_ops[KERN_PEAK_DOT8], "fp32_ops",
        (json_int_t)w->linear_ops[KERN_PEAK_FMA], "attn_ops", (json_int_t)w->attn_ops,
        "weight_bytes", (json_int_t)w->weight_bytes, "kv_bytes", (json_int_t)w->kv_bytes);
}

json_t *plan_make_json(const explain *e, const char *model) {
    const engine_setup *s = &e->setup;
    json_t *ranks = json_array(), *requests = json_array();
    for (int32_t i = 0; i < s->world; i++)
        json_array_append_new(ranks, rank_json(e, &e->rank[i]));
    for (int32_t i = 0; i < e->n_request; i++)
        json_array_append_new(requests, request_json(e, &e->request[i]));
    return json_pack(
        "{s:o, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:{s:i, s:i, s:I, s:i, s:o}, "
        "s:b, s:i, s:o, s:o, s:o}",
        "model", cli_json_text(model, strlen(model)), "identity", s->identity, "isa", s->k->isa,
        "tp", s->sizes.tp, "pcp", s->sizes.pcp, "dcp", s->sizes.dcp, "world", s->world, "threads",
        s->p.n_thread, "layers", e->desc->config.n_layer, "memory", memory_json(e), "cache",
        "page_tokens", s->caps.page_tokens, "pages_per_rank", s->p.kv_pages, "group_tokens",
        (json_int_t)e->cache_tokens, "longest_request", e->longest, "groups", groups_json(e),
        "expert_parallel", s->p.expert_parallel, "step_tokens", e->n_tok, "work",
        work_json(&e->work), "requests", requests, "ranks", ranks);
}
