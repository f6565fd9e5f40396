/* The step loop of a rank. All ranks run the same lines; rank 0 also makes the plan and delivers
 * the results. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdatomic.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/team.h"
#include "base/trace.h"
#include "base/wait.h"
#include "engine/engine.h"

static size_t plan_bytes_cap(const engine_setup *s) {
    return plan_cap(s->p.max_num_seqs, s->p.max_model_len, s->caps.page_tokens, s->caps.n_group);
}

/* Threads of a rank that sample or score: rows come in chunks. */
static int32_t sampler_count(const engine_setup *s, const topo *t) {
    int32_t n = engine_setup_threads(s, t->rank);
    n = n < MODEL_LOGIT_CHUNK ? n : MODEL_LOGIT_CHUNK;
    return t->t == 0 ? n : 0;
}

size_t engine_rank_host_bytes(const engine_setup *s, const topo *t) {
    size_t rows = (size_t)s->p.max_num_batched_tokens;
    size_t bytes = plan_bytes_cap(s) + rows * sizeof(engine_result);
    if (t->t == 0)
        bytes += (size_t)MODEL_LOGIT_CHUNK * (size_t)s->model.n_vocab * sizeof(float);
    return bytes + (size_t)sampler_count(s, t) * sampler_bytes(s->model.n_vocab);
}

size_t engine_rank_scratch_bytes(const model_desc *d, const engine_setup *s, int32_t rank,
                                 const batch_builder *b) {
    kern_limits limits = engine_setup_limits(d, s, b);
    return s->k->scratch_bytes(engine_setup_threads(s, rank), &limits);
}

/* The rank's groups, transport end and device threads. */
static weft_status open_parts(engine_rank *r, weft_error *err) {
    weft_engine *e = r->e;
    const engine_setup *s = &e->setup;
    topo_init(&s->model, s->sizes, r->rank, &r->topo);
    batch_limits slots = {.n_slot = s->p.max_num_seqs,
                          .max_len = s->p.max_model_len,
                          .page_tokens = s->caps.page_tokens,
                          .n_vocab = s->model.n_vocab,
                          .n_group = s->caps.n_group};
    engine_setup_groups(s, slots.group);
    weft_status st = comm_threads_open(e->hub, r->rank, &r->topo.members, &r->comm, err);
    if (st == WEFT_OK)
        st = batch_builder_open(&r->topo, &s->caps, &r->builder, err);
    if (st == WEFT_OK)
        st = batch_slots_open(&slots, &r->slots, err);
    if (st != WEFT_OK)
        return st;
    kern_limits limits = engine_setup_limits(e->model->desc, s, r->builder);
    return s->k->open(engine_setup_threads(s, r->rank), &limits, &r->dev, err);
}

static weft_status plan_memory(engine_rank *r, weft_error *err) {
    weft_engine *e = r->e;
    const engine_setup *s = &e->setup;
    size_t rows = (size_t)s->p.max_num_batched_tokens;
    model_rank_setup ms = {.dev = r->dev,
                           .comm = r->comm,
                           .topo = &r->topo,
                           .builder = r->builder,
                           .kv_type = s->kv_type,
                           .kv_pages = s->kv_pages,
                           .round_pages = s->caps.round_pages,
                           .expert_parallel = s->p.expert_parallel,
                           .fault = engine_fault_attn(e->fault, r->rank)};
    weft_status st = model_rank_open(e->weights, &ms, &r->memory, &r->model, err);
    if (st != WEFT_OK)
        return st;
    kern_memory_add(&r->memory, "step block", (size_t)batch_block_cap(r->builder) * sizeof(int32_t),
                    &r->block);
    kern_memory_add(&r->memory, "results", rows * sizeof(engine_result), &r->results);
    size_t scratch = engine_rank_scratch_bytes(e->model->desc, s, r->rank, r->builder);
    size_t host = engine_rank_host_bytes(s, &r->topo);
    return engine_memory_plan(e, r->memory.bytes + scratch + host, err);
}

static weft_status open_samplers(engine_rank *r, weft_error *err) {
    const engine_setup *s = &r->e->setup;
    int32_t n = sampler_count(s, &r->topo);
    if (n == 0)
        return WEFT_OK;
    r->sampler = calloc((size_t)n, sizeof *r->sampler);
    if (!r->sampler)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d samplers", n);
    weft_status st = WEFT_OK;
    for (; r->n_sampler < n && st == WEFT_OK; r->n_sampler += st == WEFT_OK)
        st = sampler_open(s->k, s->model.n_vocab, &r->sampler[r->n_sampler], err);
    return st;
}

static weft_status take_memory(engine_rank *r, weft_error *err) {
    const engine_setup *s = &r->e->setup;
    size_t rows = (size_t)s->p.max_num_batched_tokens;
    weft_status st = kern_memory_commit(&r->memory, s->k, err);
    if (st != WEFT_OK)
        return st;
    r->plan = malloc(plan_bytes_cap(s));
    r->result = malloc(rows * sizeof *r->result);
    r->global.req = malloc((size_t)s->p.max_num_seqs * sizeof *r->global.req);
    if (r->topo.t == 0)
        r->logits =
            malloc((size_t)MODEL_LOGIT_CHUNK * (size_t)s->model.n_vocab * sizeof *r->logits);
    if (!r->plan || !r->result || !r->global.req || (r->topo.t == 0 && !r->logits))
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the host buffers of rank %d",
                         r->rank);
    return open_samplers(r, err);
}

weft_status engine_rank_plan(weft_engine *e, int32_t rank, weft_error *err) {
    engine_rank *r = &e->rank[rank];
    r->e = e;
    r->rank = rank;
    weft_status st = open_parts(r, err);
    return st == WEFT_OK ? plan_memory(r, err) : st;
}

weft_status engine_rank_open(engine_rank *r, weft_error *err) {
    weft_status st = take_memory(r, err);
    if (st == WEFT_OK)
        engine_fault_arm(r->e->fault, r->rank, r->model);
    return st;
}

void engine_rank_close(engine_rank *r) {
    if (!r->e)
        return;
    const kern_table *k = r->e->setup.k;
    for (int32_t i = 0; i < r->n_sampler; i++)
        sampler_close(r->sampler[i]);
    free(r->sampler);
    free(r->logits);
    free(r->global.req);
    free(r->result);
    free(r->plan);
    model_rank_close(r->model);
    kern_memory_release(&r->memory, k);
    if (r->dev)
        k->close(r->dev);
    batch_slots_close(&r->slots);
    batch_builder_close(r->builder);
    if (r->comm)
        r->comm->v->close(r->comm);
}

/* ---- one step ---- */

/* Rank 0 ends a phase of its step and begins the next one. */
static void phase_done(engine_rank *r, weft_phase phase) {
    if (r->rank != 0)
        return;
    double now = wait_now_s();
    front_add_time(&r->e->front, phase, now - r->t_mark);
    r->t_mark = now;
}

/* The step's plan on every rank: rank 0's bytes. */
static weft_status share_plan(engine_rank *r, weft_error *err) {
    weft_engine *e = r->e;
    uint64_t bytes = 0;
    trace_phase("schedule");
    if (r->rank == 0) {
        int32_t kind = front_collect(&e->front);
        size_t n = 0;
        r->t_mark = wait_now_s();
        if (kind == PLAN_STEP) {
            sched_plan(e->front.sched, r->plan, plan_bytes_cap(&e->setup), &n);
            front_count(&e->front); /* cancelled ones are out */
        } else {
            plan_writer w;
            plan_begin(&w, r->plan, plan_bytes_cap(&e->setup), kind, 0);
            n = w.n;
        }
        bytes = n;
    }
    trace_phase("broadcast");
    weft_status s = r->comm->v->bcast(r->comm, COMM_WORLD, 0, &bytes, sizeof bytes);
    if (s == WEFT_OK)
        s = r->comm->v->bcast(r->comm, COMM_WORLD, 0, r->plan, (size_t)bytes);
    if (s != WEFT_OK)
        return s;
    trace_phase("apply");
    return batch_slots_apply(&r->slots, r->plan, (size_t)bytes, &r->global, err);
}

/* One logits row: hash, sampled token or the given one's log-probability. */
static void score_row(const engine_rank *r, sampler *by, const batch_logit *l, const float *row,
                      engine_result *out) {
    const batch_slot *slot = &r->slots.slot[r->global.req[l->req].slot];
    int32_t n_vocab = r->e->setup.model.n_vocab;
    *out = (engine_result){.run = l->req, .position = l->position, .status = WEFT_OK};
    if (r->e->setup.p.hash_logits)
        out->hash = XXH3_64bits(row, (size_t)n_vocab * sizeof *row);
    sample_context c = {slot->token, slot->n_prompt, slot->n_token, slot->bias, slot->n_bias};
    if (l->sample)
        out->status = (int32_t)sample_pick(by, row, &slot->sampling, &c, &out->pick);
    else if (slot->sampling.logprob)
        out->status = (int32_t)sample_score(by, row, slot->token[l->position + 1],
                                            slot->sampling.n_top, &out->pick);
}

/* Rows [first, first + n) of the batch's logits, claimed one by one. */
typedef struct score_job {
    const engine_rank *r;
    int32_t first, n;
    atomic_int next;
} score_job;

static void score_claimed(void *arg, int32_t thread, int32_t n_thread) {
    (void)n_thread;
    score_job *j = arg;
    const engine_rank *r = j->r;
    size_t n_vocab = (size_t)r->e->setup.model.n_vocab;
    if (thread >= r->n_sampler)
        return;
    for (int32_t i; (i = atomic_fetch_add(&j->next, 1)) < j->n;)
        score_row(r, r->sampler[thread], &r->local.logit[j->first + i],
                  r->logits + (size_t)i * n_vocab, &r->result[j->first + i]);
}

/* Rows that the client wants to see, in order. */
static void show_rows(const engine_rank *r, int32_t first, int32_t n) {
    const weft_engine_params *p = &r->e->setup.p;
    int32_t n_vocab = r->e->setup.model.n_vocab;
    for (int32_t i = 0; p->on_logits && i < n; i++) {
        const batch_logit *l = &r->local.logit[first + i];
        uint64_t request = r->slots.slot[r->global.req[l->req].slot].request;
        const float *row = r->logits + (size_t)i * (size_t)n_vocab;
        p->on_logits(p->on_logits_user, &(weft_logits_row){request, l->position, row, n_vocab});
        team_set_float_mode(); /* the client's code may have left another one */
    }
}

static weft_status score_rows(engine_rank *r) {
    const batch_local *b = &r->local;
    for (int32_t first = 0; first < b->n_logit; first += MODEL_LOGIT_CHUNK) {
        int32_t n = b->n_logit - first < MODEL_LOGIT_CHUNK ? b->n_logit - first : MODEL_LOGIT_CHUNK;
        trace_phase("logits");
        weft_status s = model_logits(r->model, &(model_step){b, r->block}, first, n, r->logits);
        if (s != WEFT_OK)
            return s;
        if (!r->logits)
            continue;
        trace_phase("sample");
        score_job job = {.r = r, .first = first, .n = n};
        if (n > 1)
            r->e->setup.k->host_run(r->dev, score_claimed, &job);
        else /* nobody is woken for one row */
            score_claimed(&job, 0, 1);
        show_rows(r, first, n);
    }
    return WEFT_OK;
}

/* Results of all owners (TP index 0 of each PCP rank) to rank 0, PCP rank after PCP rank. */
static weft_status gather_results(engine_rank *r, int32_t *n_all) {
    const kern_table *k = r->e->setup.k;
    size_t bytes[TOPO_MAX_WORLD], at[TOPO_MAX_WORLD], total = 0;
    for (int32_t m = 0; m < r->topo.world; m++) {
        bool samples = m % r->topo.sizes.tp == 0;
        bytes[m] =
            samples ? (size_t)r->local.logit_n[m / r->topo.sizes.tp] * sizeof(engine_result) : 0;
        at[m] = total;
        total += bytes[m];
    }
    trace_phase("gather results");
    k->upload(r->dev, kern_at(r->results, at[r->rank]), r->result, bytes[r->rank]);
    weft_status s = r->comm->v->all_gather_v(r->comm, COMM_WORLD, r->results, bytes, at);
    if (s != WEFT_OK || r->rank != 0)
        return s;
    k->download(r->dev, r->result, r->results, total);
    k->drain(r->dev);
    *n_all = (int32_t)(total / sizeof(engine_result));
    return WEFT_OK;
}

static weft_status run_step(engine_rank *r, weft_error *err) {
    weft_engine *e = r->e;
    trace_phase("build batch");
    batch_build(r->builder, &r->global, &r->local);
    weft_status s =
        engine_fault_apply(e->fault, r->rank, r->topo.world, &r->local, r->global.step, err);
    if (s != WEFT_OK)
        return s;
    e->setup.k->upload(r->dev, r->block, r->local.block,
                       (size_t)r->local.n_block * sizeof(int32_t));
    int32_t n_all = 0;
    phase_done(r, WEFT_PHASE_PLAN);
    trace_span forward = trace_begin("forward", "rows", r->local.n_tok);
    s = model_forward(r->model, &(model_step){&r->local, r->block});
    trace_end(&forward);
    phase_done(r, WEFT_PHASE_FORWARD);
    if (s == WEFT_OK)
        s = score_rows(r);
    if (s == WEFT_OK)
        s = gather_results(r, &n_all);
    if (s != WEFT_OK || r->rank != 0)
        return s;
    trace_phase("deliver");
    phase_done(r, WEFT_PHASE_SAMPLE);
    front_deliver(&e->front, r->result, n_all);
    phase_done(r, WEFT_PHASE_DELIVER);
    return WEFT_OK;
}

/* A failure of one rank ends the step on all of them: whoever finds it aborts the transport,
 * everyone's next wait returns. */
static void fail(engine_rank *r, weft_status s, const weft_error *own) {
    weft_engine *e = r->e;
    if (own->status != WEFT_OK)
        r->comm->v->abort(r->comm, s, own->text);
    else
        r->comm->v->abort(r->comm, s, weft_status_text(s));
    if (r->rank != 0)
        return;
    weft_error why = {0};
    weft_status first = comm_threads_state(e->hub, &why);
    log_info("%s", why.text); /* the client is told by weft_engine_next */
    front_fail(&e->front, first, why.text);
}

void *engine_rank_main(void *arg) {
    engine_rank *r = arg;
    team_set_float_mode();
    trace_take(r->e->trace, r->rank);
    for (;;) {
        weft_error err = {0};
        trace_span plan = trace_begin("plan", NULL, 0);
        weft_status s = share_plan(r, &err);
        trace_end(&plan);
        if (s == WEFT_OK && r->global.kind == PLAN_STOP)
            return NULL;
        if (s == WEFT_OK && r->global.kind == PLAN_STEP) {
            trace_span step = trace_begin("step", "step", (int32_t)r->global.step);
            s = run_step(r, &err);
            trace_end(&step);
        }
        if (s != WEFT_OK) {
            fail(r, s, &err);
            return NULL;
        }
    }
}
