/* The public calls that are not the request queue: model, text, engine open and close. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/wait.h"
#include "engine/engine.h"

/* ---- model ---- */

static int64_t parameter_count(const load_model *file) {
    int64_t n = 0;
    for (int32_t i = 0; i < load_tensor_count(file); i++) {
        const load_tensor *t = load_tensor_at(file, i);
        n += t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3];
    }
    return n;
}

weft_status weft_model_open(const char *path, weft_model **out, weft_error *err) {
    weft_model *m = calloc(1, sizeof *m);
    if (!m)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a model");
    weft_status s = model_desc_load(path, &m->desc, err);
    if (s == WEFT_OK)
        s = tok_create(load_get_vocab(m->desc->file), &m->tok, err);
    if (s != WEFT_OK) {
        weft_model_close(m);
        return s;
    }
    const model_config *c = &m->desc->config;
    m->info = (weft_model_info){.architecture = c->architecture,
                                .name = c->name,
                                .n_layer = c->n_layer,
                                .n_vocab = c->n_vocab,
                                .n_head = c->n_head,
                                .n_kv_head = c->n_kv_head,
                                .head_dim = c->head_dim,
                                .hidden = c->hidden,
                                .ffn = c->ffn,
                                .context_length = c->context_length,
                                .n_parameter = parameter_count(m->desc->file),
                                .file_bytes = load_file_bytes(m->desc->file),
                                .bos = tok_bos(m->tok),
                                .eos = tok_eos(m->tok),
                                .has_text = tok_has_text(m->tok)};
    load_string template = load_get_vocab(m->desc->file)->chat_template;
    if (template.data) {
        m->info.chat_template = m->chat_template = strndup(template.data, template.bytes);
        if (!m->chat_template) {
            weft_model_close(m);
            return error_set(err, WEFT_ERR_MEMORY, "no memory for the chat template");
        }
    }
    *out = m;
    return WEFT_OK;
}

void weft_model_close(weft_model *m) {
    if (!m)
        return;
    free(m->chat_template);
    tok_destroy(m->tok);
    model_desc_close(m->desc);
    free(m);
}

void weft_model_get_info(const weft_model *m, weft_model_info *out) {
    *out = m->info;
}

weft_status weft_tokenize(const weft_model *m, const char *text, size_t text_bytes,
                          weft_text_kind kind, int32_t *ids, size_t cap, size_t *n,
                          weft_error *err) {
    int32_t *got = NULL;
    size_t n_got = 0;
    weft_status s =
        kind == WEFT_TEXT_PROMPT
            ? tok_encode_prompt(m->tok, text, text_bytes, &got, &n_got, err)
            : tok_encode(m->tok, text, text_bytes, kind == WEFT_TEXT_SPECIAL, &got, &n_got, err);
    if (s != WEFT_OK)
        return s;
    for (size_t i = 0; i < n_got && i < cap; i++)
        ids[i] = got[i];
    free(got);
    *n = n_got;
    return WEFT_OK;
}

const char *weft_token_bytes(const weft_model *m, int32_t id, size_t *n_bytes) {
    return tok_bytes(m->tok, id, n_bytes);
}

bool weft_token_is_special(const weft_model *m, int32_t id) {
    return tok_is_special(m->tok, id);
}

weft_status weft_detokenize(const weft_model *m, const int32_t *ids, size_t n_id, bool special,
                            char **out, size_t *n, weft_error *err) {
    return tok_decode(m->tok, ids, n_id, special, out, n, err);
}

weft_status weft_chat_render(const weft_model *m, const char *const *roles,
                             const char *const *texts, size_t n, bool add_generation_prompt,
                             char **out, weft_error *err) {
    return tok_chat_render(m->tok, roles, texts, n, add_generation_prompt, out, err);
}

/* ---- engine ---- */

static_assert(WEFT_MAX_KV_GROUP == KV_MAX_GROUP, "the public count of groups");

enum { COMM_DEADLINE_MS = 300 * 1000 };

weft_status engine_memory_plan(weft_engine *e, size_t bytes, weft_error *err) {
    e->planned_bytes += bytes;
    uint64_t free_bytes = e->setup.free_bytes;
    if (free_bytes == 0 || e->planned_bytes <= free_bytes)
        return WEFT_OK;
    return error_set(err, WEFT_ERR_MEMORY,
                     "weights, caches and buffers take at least %llu of the %llu bytes of memory "
                     "that are free; fewer ranks, --kv-pages or --max-num-batched-tokens need less",
                     (unsigned long long)e->planned_bytes, (unsigned long long)free_bytes);
}

static weft_status open_queue(const engine_setup *s, kv_pools **kv, sched **queue,
                              weft_error *err) {
    topo t;
    topo_init(&s->model, s->sizes, 0, &t);
    kv_group group[KV_MAX_GROUP];
    kv_sizes sizes = engine_setup_kv(s, &t, group);
    sched_limits limits = {.max_num_seqs = s->p.max_num_seqs,
                           .max_num_batched_tokens = s->p.max_num_batched_tokens,
                           .max_model_len = s->p.max_model_len,
                           .page_tokens = s->caps.page_tokens,
                           .prefix_cache = !s->p.no_prefix_cache};
    weft_status st = kv_open(&sizes, kv, err);
    return st == WEFT_OK ? sched_open(&limits, *kv, queue, err) : st;
}

static weft_status open_shared(weft_engine *e, weft_error *err) {
    const engine_setup *s = &e->setup;
    weft_status st = model_weights_open(e->model->desc, s->k, s->p.max_model_len, &e->weights, err);
    if (st == WEFT_OK)
        st = engine_memory_plan(e, e->weights->memory.bytes, err);
    if (st == WEFT_OK)
        st = model_weights_pack(e->weights, s->p.n_thread, s->p.on_load, s->p.on_load_user, err);
    if (st == WEFT_OK)
        st = comm_threads_hub_open(s->world, COMM_DEADLINE_MS, &e->hub, err);
    if (st != WEFT_OK)
        return st;
    sched *queue = NULL;
    st = open_queue(s, &e->kv, &queue, err);
    if (st != WEFT_OK)
        return st;
    st = front_open(&e->front, e->model->tok, queue, e->kv, s, err);
    if (st != WEFT_OK)
        sched_close(queue);
    return st;
}

/* Before the weights are packed: a file that cannot be written is told at once. */
static weft_status open_trace(weft_engine *e, weft_error *err) {
    const engine_setup *s = &e->setup;
    if (!s->p.trace_path)
        return WEFT_OK;
    weft_status st = trace_open(s->p.trace_path, s->world, s->p.trace_spans, &e->trace, err);
    for (int32_t r = 0; r < s->world && st == WEFT_OK; r++) {
        char label[64];
        topo t;
        topo_init(&s->model, s->sizes, r, &t);
        snprintf(label, sizeof label, "rank %d (t%d p%d d%d)", r, t.t, t.c, t.dcp_rank);
        st = trace_process_open(e->trace, r, engine_setup_threads(s, r), label, err);
    }
    return st;
}

static weft_status start_ranks(weft_engine *e, weft_error *err) {
    int32_t world = e->setup.world;
    e->rank = calloc((size_t)world, sizeof *e->rank);
    if (!e->rank)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d ranks", world);
    weft_status s = WEFT_OK;
    for (int32_t r = 0; r < world && s == WEFT_OK; r++)
        s = engine_rank_plan(e, r, err);
    for (int32_t r = 0; r < world && s == WEFT_OK; r++)
        s = engine_rank_open(&e->rank[r], err);
    if (s != WEFT_OK)
        return s;
    for (int32_t r = 0; r < world; r++)
        e->n_active += engine_setup_threads(&e->setup, r);
    wait_threads_add(e->n_active);
    for (int32_t r = 0; r < world; r++) {
        if (pthread_create(&e->rank[r].thread, NULL, engine_rank_main, &e->rank[r]) != 0) {
            e->rank[0].comm->v->abort(e->rank[0].comm, WEFT_ERR_MEMORY,
                                      "a rank's thread could not be started");
            return error_set(err, WEFT_ERR_MEMORY, "no thread for rank %d of %d", r, world);
        }
        e->rank[r].started = true;
    }
    return WEFT_OK;
}

/* Stops the ranks and frees all but the trace, which nobody writes to any more and which is the
 * caller's now. */
static trace *engine_free(weft_engine *e) {
    trace *t = e->trace;
    if (e->front.row) {
        pthread_mutex_lock(&e->front.lock);
        e->front.stop = true;
        pthread_cond_signal(&e->front.work);
        pthread_mutex_unlock(&e->front.lock);
    }
    for (int32_t r = 0; e->rank && r < e->setup.world; r++)
        if (e->rank[r].started)
            pthread_join(e->rank[r].thread, NULL);
    wait_threads_add(-e->n_active);
    if (e->front.row) {
        sched_close(e->front.sched);
        front_close(&e->front);
    }
    for (int32_t r = 0; e->rank && r < e->setup.world; r++)
        engine_rank_close(&e->rank[r]);
    free(e->rank);
    kv_close(e->kv);
    comm_threads_hub_close(e->hub);
    model_weights_close(e->weights);
    free(e);
    return t;
}

weft_status weft_engine_open(weft_model *model, const weft_engine_params *params, weft_engine **out,
                             weft_error *err) {
    weft_engine *e = calloc(1, sizeof *e);
    if (!e)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for an engine");
    e->model = model;
    weft_status s = engine_setup_make(model->desc, params, &e->setup, err);
    if (s != WEFT_OK) {
        free(e);
        return s;
    }
    e->setup.p.isa = e->setup.k->isa; /* static text: the caller's may go away */
    e->fault = engine_fault_find(params->fault);
    e->setup.p.fault = NULL;
    s = open_trace(e, err);
    e->setup.p.trace_path = NULL;
    if (s == WEFT_OK)
        s = open_shared(e, err);
    if (s == WEFT_OK)
        s = start_ranks(e, err);
    if (s != WEFT_OK) {
        trace_discard(engine_free(e));
        return s;
    }
    log_info(
        "%s on %d ranks (tp %d, pcp %d, dcp %d), %d threads, %s, %d pages of %d tokens per rank",
        e->setup.identity, e->setup.world, e->setup.sizes.tp, e->setup.sizes.pcp,
        e->setup.sizes.dcp, e->setup.p.n_thread, e->setup.k->isa, e->setup.p.kv_pages,
        e->setup.caps.page_tokens);
    int32_t capacity = kv_capacity_tokens(e->kv);
    if (capacity < e->setup.p.max_model_len)
        log_warn("the cache holds %d tokens of one request, fewer than --max-model-len %d: longer "
                 "answers end there",
                 capacity, e->setup.p.max_model_len);
    *out = e;
    return WEFT_OK;
}

weft_status weft_request_check(weft_model *model, const weft_engine_params *params,
                               const weft_request *request, weft_error *err) {
    engine_setup setup;
    kv_pools *kv = NULL;
    sched *queue = NULL;
    sched_request *r = NULL;
    weft_status s = engine_setup_make(model->desc, params, &setup, err);
    if (s == WEFT_OK)
        s = front_check(setup.model.n_vocab, request, err);
    if (s == WEFT_OK)
        s = open_queue(&setup, &kv, &queue, err);
    if (s == WEFT_OK)
        s = sched_request_new(queue, request->prompt, request->n_prompt, request->max_tokens, &r,
                              err);
    if (s == WEFT_OK)
        sched_request_free(r);
    if (queue)
        sched_close(queue);
    kv_close(kv);
    return s;
}

weft_status weft_engine_close(weft_engine *e) {
    return e ? trace_close(engine_free(e)) : WEFT_OK;
}

const char *weft_engine_identity(const weft_engine *e) {
    return e->setup.identity;
}

void weft_engine_get_stats(const weft_engine *e, weft_engine_stats *out) {
    const engine_setup *s = &e->setup;
    size_t rank_bytes = 0, kv = (size_t)s->p.kv_bytes;
    for (int32_t r = 0; r < s->world; r++)
        rank_bytes += e->rank[r].memory.bytes;
    front *f = (front *)&e->front; /* the lock is the only thing that changes */
    pthread_mutex_lock(&f->lock);
    *out = f->stats;
    out->silent_s = wait_now_s() - f->t_step;
    pthread_mutex_unlock(&f->lock);
    out->weight_bytes = e->weights->memory.bytes;
    out->kv_bytes = kv;
    out->scratch_bytes = rank_bytes - kv;
    out->planned_bytes = e->planned_bytes;
    out->max_model_len = s->p.max_model_len;
    out->world = s->world;
    out->n_thread = s->p.n_thread;
    out->kv_pages = s->p.kv_pages;
    out->isa = s->k->isa;
    out->n_group = s->caps.n_group;
    for (int32_t g = 0; g < s->caps.n_group; g++) {
        weft_kv_group *group = &out->group[g];
        group->window = s->caps.window[g];
        group->n_layer = model_group_layers(e->model->desc, g);
        group->token_bytes = s->page_bytes[g] / (size_t)s->caps.page_tokens;
        group->n_page = (int64_t)s->kv_pages[g] * s->sizes.dcp;
        out->n_page += group->n_page;
        out->n_page_used += group->n_page_used;
        out->pool_page += s->kv_pages[g];
    }
}
