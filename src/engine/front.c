/* Requests in, events out: the queue between clients and rank 0. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/trace.h"
#include "base/utf8.h"
#include "base/wait.h"
#include "engine/engine.h"

weft_status front_open(front *f, const tok *t, sched *s, const kv_pools *kv,
                       const engine_setup *setup, weft_error *err) {
    int32_t max_step_rows = setup->p.max_num_batched_tokens;
    *f = (front){.tok = t,
                 .sched = s,
                 .kv = kv,
                 .n_group = setup->caps.n_group,
                 .n_pool = setup->sizes.dcp,
                 .max_step_rows = (size_t)max_step_rows,
                 .next_id = 1,
                 .t_step = wait_now_s()};
    enum { SLACK = 4096 }; /* events: small steps do not wait for a client that comes in bursts */
    f->row_cap = 2 * f->max_step_rows + SLACK;
    f->row = malloc((size_t)max_step_rows * sizeof *f->row);
    f->row0 = malloc((size_t)setup->p.max_num_seqs * sizeof *f->row0);
    if (!f->row || !f->row0) {
        free(f->row);
        free(f->row0);
        f->row = NULL;
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d result rows", max_step_rows);
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->work, &attr);
    pthread_cond_init(&f->ready, &attr);
    pthread_condattr_destroy(&attr);
    return WEFT_OK;
}

static void request_free(front_request *fr) {
    for (int32_t i = 0; i < fr->params.n_stop; i++)
        free(fr->stop[i]);
    free(fr->stop);
    free(fr->bias);
    free(fr->held);
    tok_stream_close(fr->stream);
    free(fr);
}

static void incoming_free(front *f) {
    for (sched_request *r = f->incoming, *next; r; r = next) {
        next = r->next;
        sched_request_free(r);
    }
    f->incoming = f->incoming_last = NULL;
}

void front_close(front *f) {
    if (!f->row)
        return;
    incoming_free(f);
    for (front_request *fr = f->live, *next; fr; fr = next) {
        next = fr->next;
        request_free(fr);
    }
    free(f->ring);
    free(f->row);
    free(f->row0);
    free(f->text);
    pthread_cond_destroy(&f->work);
    pthread_cond_destroy(&f->ready);
    pthread_mutex_destroy(&f->lock);
}

static struct timespec deadline_after_ms(int32_t ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* ---- rank 0's side ---- */

/* There is room: reserved at submit, or seen to before the step. Lock held. */
static void ring_push(front *f, front_event ev) {
    assert(f->ring_n < f->ring_cap);
    f->ring[(f->ring_at + f->ring_n++) % f->ring_cap] = ev;
    f->n_row += ev.kind != WEFT_EVENT_END;
    pthread_cond_signal(&f->ready);
}

/* The last event of a request. */
static void end_push(front *f, front_request *fr, weft_finish finish, weft_status status) {
    ring_push(f,
              (front_event){.kind = WEFT_EVENT_END, .fr = fr, .finish = finish, .status = status});
    fr->r = NULL;
}

static bool has_room(const front *f) {
    return f->n_row + f->max_step_rows <= f->row_cap;
}

static bool has_work(const front *f) {
    return f->incoming || f->any_cancel || (!sched_idle(f->sched) && has_room(f));
}

int32_t front_collect(front *f) {
    /* An idle engine still sends a plan this often, so that no wait runs into its deadline. */
    enum { IDLE_MS = 1000 };
    pthread_mutex_lock(&f->lock);
    f->t_step = wait_now_s();
    /* before the wait: the plan that took them out may have left nothing to do */
    for (sched_request *r; (r = sched_take_cancelled(f->sched)) != NULL; sched_request_free(r))
        end_push(f, r->user, WEFT_FINISH_ERROR, WEFT_ERR_CANCELLED);
    struct timespec until = deadline_after_ms(IDLE_MS);
    trace_span wait = trace_begin_wait("wait: requests");
    while (!f->stop && !has_work(f))
        if (pthread_cond_timedwait(&f->work, &f->lock, &until) != 0)
            break;
    trace_end(&wait);
    for (sched_request *r = f->incoming, *next; r; r = next) {
        next = r->next;
        r->next = NULL;
        sched_submit(f->sched, r);
    }
    f->incoming = f->incoming_last = NULL;
    if (f->any_cancel)
        for (front_request *fr = f->live; fr; fr = fr->next)
            if (fr->r && atomic_load(&fr->cancel))
                sched_cancel(f->sched, fr->r);
    f->any_cancel = false;
    int32_t kind = f->stop ? PLAN_STOP : has_room(f) ? PLAN_STEP : PLAN_IDLE;
    f->t_step = wait_now_s();
    pthread_mutex_unlock(&f->lock);
    return kind;
}

void front_add_time(front *f, weft_phase phase, double seconds) {
    pthread_mutex_lock(&f->lock);
    f->stats.phase_s[phase] += seconds;
    pthread_mutex_unlock(&f->lock);
}

/* Lock held. */
static void count(front *f) {
    sched_counts c = sched_count(f->sched);
    weft_engine_stats *s = &f->stats;
    s->n_step = c.step;
    s->n_preemption = c.n_preemption;
    s->n_prefix_token = c.n_prefix_token;
    s->n_cached_token = c.n_cached_token;
    s->n_waiting = c.n_waiting;
    s->n_running = c.n_running;
    s->n_pool = f->n_pool;
    memset(s->pool_used, 0, sizeof s->pool_used);
    for (int32_t g = 0; g < f->n_group; g++) {
        weft_kv_group *group = &s->group[g];
        group->n_page_used = kv_used_total(f->kv, g);
        group->n_page_idle = kv_idle_total(f->kv, g);
        if (group->n_page_used > group->n_page_most)
            group->n_page_most = group->n_page_used;
        for (int32_t r = 0; r < f->n_pool; r++)
            s->pool_used[r] += kv_used(f->kv, g, r);
    }
}

void front_count(front *f) {
    pthread_mutex_lock(&f->lock);
    count(f);
    pthread_mutex_unlock(&f->lock);
}

/* Lock held. */
static void request_finish(front *f, sched_request *r, weft_finish finish, weft_status status) {
    sched_finish(f->sched, r);
    end_push(f, r->user, finish, status);
    sched_request_free(r);
}

/* Prompt row, or the new token and perhaps the end that it brings. Lock held. False: the request
 * has ended, and run->r is gone. */
static bool row_deliver(front *f, const sched_run *run, const engine_result *row) {
    front_request *fr = run->r->user;
    front_event ev = {.kind = WEFT_EVENT_PROMPT_ROW,
                      .fr = fr,
                      .position = row->position,
                      .hash = row->hash,
                      .pick = row->pick};
    if (row->status != WEFT_OK) {
        request_finish(f, run->r, WEFT_FINISH_ERROR, (weft_status)row->status);
        return false;
    }
    if (!(run->sample && row->position == run->start + run->n_new - 1)) {
        ev.token = run->r->token[row->position + 1];
        ring_push(f, ev);
        return true;
    }
    ev.kind = WEFT_EVENT_TOKEN;
    ev.token = row->pick.token;
    ev.position = row->position + 1;
    ring_push(f, ev);
    f->stats.n_output_token++;
    sched_append(f->sched, run->r, ev.token);
    bool stop = tok_is_end(f->tok, ev.token) && !fr->params.ignore_eos;
    if (!stop && run->r->n_token < run->r->max_total)
        return true;
    request_finish(f, run->r, stop ? WEFT_FINISH_STOP : WEFT_FINISH_LENGTH, WEFT_OK);
    return false;
}

void front_deliver(front *f, const engine_result *rows, int32_t n) {
    const sched_run *run;
    int32_t n_run = sched_runs(f->sched, &run);
    /* Owners report in their own order; a run's rows are the last n_logits of its positions, so
     * each has one place: those of run i begin at row0[i]. */
    for (int32_t i = 0, row0 = 0; i < n_run; row0 += run[i++].n_logits)
        f->row0[i] = row0;
    for (int32_t j = 0; j < n; j++) {
        const sched_run *r = &run[rows[j].run];
        int32_t first = r->start + r->n_new - r->n_logits;
        f->row[f->row0[rows[j].run] + rows[j].position - first] = rows[j];
    }
    pthread_mutex_lock(&f->lock);
    sched_step_done(f->sched);
    for (int32_t i = 0; i < n_run; i++) {
        front_request *fr = run[i].r->user;
        f->stats.n_row += run[i].n_new;
        if (fr->t_start == 0) {
            fr->t_start = f->t_step;
            fr->n_cached = run[i].r->n_cached;
        }
    }
    const engine_result *row = f->row;
    for (int32_t i = 0; i < n_run; row += run[i++].n_logits)
        for (int32_t j = 0; j < run[i].n_logits && row_deliver(f, &run[i], &row[j]); j++) {
        }
    count(f); /* who sees the last event of the step finds its counts */
    pthread_mutex_unlock(&f->lock);
}

void front_fail(front *f, weft_status status, const char *text) {
    pthread_mutex_lock(&f->lock);
    f->failed = true;
    error_set(&f->why, status, "%s", text);
    incoming_free(f);
    for (front_request *fr = f->live; fr; fr = fr->next)
        if (fr->r) /* the scheduler still lists it and frees it when it closes */
            end_push(f, fr, WEFT_FINISH_ERROR, status);
    pthread_cond_broadcast(&f->ready);
    pthread_mutex_unlock(&f->lock);
}

/* ---- the client's side ---- */

void weft_request_default(weft_request *out) {
    *out = (weft_request){
        .max_tokens = 128,
        .sampling = {.temperature = 0.0f, .top_p = 1.0f, .repetition_penalty = 1.0f}};
}

weft_status front_check(int32_t n_vocab, const weft_request *q, weft_error *err) {
    if (q->max_tokens < 1)
        return error_set(err, WEFT_ERR_USAGE, "max_tokens %d: expected 1 or more", q->max_tokens);
    /* steps are counted on from here, so the last ones of the range are not to be reached */
    if (q->arrival_step < 0 || q->arrival_step > INT64_MAX / 2)
        return error_set(err, WEFT_ERR_USAGE, "arrival_step %lld: expected 0 to %lld",
                         (long long)q->arrival_step, (long long)(INT64_MAX / 2));
    if (q->n_stop < 0 || q->n_stop > WEFT_MAX_STOP)
        return error_set(err, WEFT_ERR_USAGE, "%d stop strings: expected at most %d", q->n_stop,
                         WEFT_MAX_STOP);
    for (int32_t i = 0; i < q->n_stop; i++) {
        if (q->stop[i][0] == '\0')
            return error_set(err, WEFT_ERR_USAGE, "stop string %d is empty", i);
        /* else it could match inside a character, and the text before it end in half of one */
        size_t bytes = strlen(q->stop[i]);
        if (utf8_valid_bytes(q->stop[i], bytes) != bytes)
            return error_set(err, WEFT_ERR_USAGE, "stop string %d is not UTF-8", i);
    }
    for (int32_t i = 0; i < q->n_prompt; i++)
        if (q->prompt[i] < 0 || q->prompt[i] >= n_vocab)
            return error_set(err, WEFT_ERR_USAGE, "prompt token %d is %d: expected 0 to %d", i,
                             q->prompt[i], n_vocab - 1);
    weft_status s = sample_check_bias(q->bias, q->n_bias, n_vocab, err);
    return s == WEFT_OK ? sample_check(&q->sampling, err) : s;
}

static front_request *request_copy(const weft_request *q) {
    front_request *fr = calloc(1, sizeof *fr);
    if (!fr)
        return NULL;
    fr->params = *q;
    fr->params.prompt = NULL;
    fr->params.cache_salt = NULL;
    fr->params.n_stop = 0;
    size_t n_bias = (size_t)q->n_bias;
    fr->bias = malloc((n_bias + 1) * sizeof *fr->bias);
    if (fr->bias && n_bias > 0)
        memcpy(fr->bias, q->bias, n_bias * sizeof *fr->bias);
    fr->params.bias = fr->bias;
    fr->stop = calloc((size_t)q->n_stop + 1, sizeof *fr->stop);
    for (int32_t i = 0; fr->stop && i < q->n_stop; i++, fr->params.n_stop++)
        if (!(fr->stop[i] = strdup(q->stop[i])))
            break;
    if (fr->params.n_stop == q->n_stop && fr->stop && fr->bias)
        return fr;
    request_free(fr);
    return NULL;
}

/* Grows the ring for `more` requests. Lock held. */
static bool ring_reserve(front *f, size_t more) {
    size_t need = f->row_cap + f->n_live + more;
    if (need > f->ring_cap) {
        size_t cap = need + need / 2;
        front_event *ring = malloc(cap * sizeof *ring);
        if (!ring)
            return false;
        for (size_t i = 0; i < f->ring_n; i++)
            ring[i] = f->ring[(f->ring_at + i) % f->ring_cap];
        free(f->ring);
        f->ring = ring;
        f->ring_cap = cap;
        f->ring_at = 0;
    }
    return true;
}

static weft_status request_make(weft_engine *e, const weft_request *q, front_request **out,
                                weft_error *err) {
    weft_status s = front_check(e->setup.model.n_vocab, q, err);
    if (s != WEFT_OK)
        return s;
    front_request *fr = request_copy(q);
    if (!fr)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a request");
    s = tok_stream_open(e->front.tok, true, &fr->stream, err);
    if (s == WEFT_OK)
        s = sched_request_new(e->front.sched, q->prompt, q->n_prompt, q->max_tokens, &fr->r, err);
    if (s != WEFT_OK) {
        request_free(fr);
        return s;
    }
    fr->r->sampling = q->sampling;
    fr->r->prompt_logits = q->prompt_logits;
    fr->r->arrival_step = q->arrival_step;
    fr->r->user = fr;
    fr->r->bias = fr->bias;
    fr->r->n_bias = q->n_bias;
    fr->r->root = kv_name_root(q->cache_salt);
    fr->n_prompt = q->n_prompt;
    fr->t_submit = wait_now_s();
    *out = fr;
    return WEFT_OK;
}

/* Lock held; cannot fail. */
static void request_link(front *f, front_request *fr) {
    fr->id = fr->r->id = f->next_id++;
    fr->next = f->live;
    if (f->live)
        f->live->prev = fr;
    f->live = fr;
    fr->r->next = NULL;
    if (f->incoming_last)
        f->incoming_last->next = fr->r;
    else
        f->incoming = fr->r;
    f->incoming_last = fr->r;
    f->n_live++;
    f->stats.n_prompt_token += fr->r->n_prompt;
}

weft_status weft_engine_submit(weft_engine *e, const weft_request *requests, int32_t n,
                               uint64_t *ids, weft_error *err) {
    front *f = &e->front;
    weft_status s = WEFT_OK;
    front_request **made = calloc((size_t)(n > 0 ? n : 1), sizeof *made);
    int32_t n_made = 0;
    if (!made)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d requests", n);
    for (; n_made < n && s == WEFT_OK; n_made += s == WEFT_OK)
        s = request_make(e, &requests[n_made], &made[n_made], err);
    pthread_mutex_lock(&f->lock);
    if (s == WEFT_OK && f->failed)
        s = error_set(err, f->why.status, "%s", f->why.text);
    if (s == WEFT_OK && !ring_reserve(f, (size_t)n))
        s = error_set(err, WEFT_ERR_MEMORY, "no memory for the events of %d requests", n);
    for (int32_t i = 0; i < n_made && s == WEFT_OK; i++) {
        request_link(f, made[i]);
        ids[i] = made[i]->id;
    }
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
    for (int32_t i = 0; i < n_made && s != WEFT_OK; i++) {
        sched_request_free(made[i]->r);
        request_free(made[i]);
    }
    free(made);
    return s;
}

/* Lock held. */
static void request_cancel(front *f, front_request *fr) {
    atomic_store(&fr->cancel, true);
    f->any_cancel = true;
    pthread_cond_signal(&f->work);
}

void weft_engine_cancel(weft_engine *e, uint64_t id) {
    front *f = &e->front;
    pthread_mutex_lock(&f->lock);
    for (front_request *fr = f->live; fr; fr = fr->next)
        if (fr->id == id && fr->r)
            request_cancel(f, fr);
    pthread_mutex_unlock(&f->lock);
}

static void request_unlink(front *f, front_request *fr) {
    if (fr->prev)
        fr->prev->next = fr->next;
    else
        f->live = fr->next;
    if (fr->next)
        fr->next->prev = fr->prev;
    f->n_live--;
}

/* ---- text ---- */

static bool text_reserve(char **buf, size_t *cap, size_t need) {
    if (need <= *cap)
        return true;
    char *grown = realloc(*buf, 2 * need);
    if (!grown)
        return false;
    *buf = grown;
    *cap = 2 * need;
    return true;
}

/* Start of the first stop string in held text, or n_held. */
static size_t stop_find(const front_request *fr) {
    size_t first = fr->n_held;
    for (int32_t i = 0; i < fr->params.n_stop; i++) {
        const char *at = memmem(fr->held, fr->n_held, fr->stop[i], strlen(fr->stop[i]));
        if (at && (size_t)(at - fr->held) < first)
            first = (size_t)(at - fr->held);
    }
    return first;
}

/* Bytes at the end of the held text that could still become a stop string. */
static size_t stop_tail(const front_request *fr) {
    size_t longest = 0;
    for (int32_t i = 0; i < fr->params.n_stop; i++) {
        size_t n = strlen(fr->stop[i]) - 1;
        for (n = n < fr->n_held ? n : fr->n_held; n > longest; n--)
            if (memcmp(fr->held + fr->n_held - n, fr->stop[i], n) == 0) {
                longest = n;
                break;
            }
    }
    return longest;
}

/* Adds a token's text (or, at the end, what the stream still holds) and moves what is certain to
 * f->text. Sets *stopped when a stop string has appeared: the text ends before it. */
static weft_status text_advance(front *f, front_request *fr, const front_event *ev, size_t *n_text,
                                bool *stopped) {
    size_t bytes = 0;
    const char *piece = "";
    bool end = ev->kind == WEFT_EVENT_END;
    weft_status s = WEFT_OK;
    if (end)
        s = tok_stream_end(fr->stream, &piece, &bytes, NULL);
    else if (!(tok_is_end(f->tok, ev->token) && !fr->params.ignore_eos) &&
             !tok_is_special(f->tok, ev->token))
        s = tok_stream_push(fr->stream, ev->token, &piece, &bytes, NULL);
    if (s != WEFT_OK)
        return s;
    if (!text_reserve(&fr->held, &fr->held_cap, fr->n_held + bytes + 1))
        return WEFT_ERR_MEMORY;
    memcpy(fr->held + fr->n_held, piece, bytes);
    fr->n_held += bytes;
    size_t stop = stop_find(fr);
    *stopped = stop < fr->n_held;
    size_t out = *stopped ? stop : end ? fr->n_held : fr->n_held - stop_tail(fr);
    if (!text_reserve(&f->text, &f->text_cap, out + 1))
        return WEFT_ERR_MEMORY;
    memcpy(f->text, fr->held, out);
    f->text[out] = '\0';
    fr->n_held -= out;
    memmove(fr->held, fr->held + out, fr->n_held);
    *n_text = out;
    return WEFT_OK;
}

static void event_fill(const front *f, const front_event *ev, weft_event *out) {
    const front_request *fr = ev->fr;
    *out = (weft_event){.kind = ev->kind,
                        .request = fr->id,
                        .user = fr->params.user,
                        .position = ev->position,
                        .token = ev->token,
                        .logits_hash = ev->hash,
                        .finish = ev->finish,
                        .status = ev->status,
                        .n_prompt_token = fr->n_prompt,
                        .n_output_token = fr->n_output,
                        .n_cached_token = fr->n_cached,
                        .queued_s = fr->t_start > 0 ? fr->t_start - fr->t_submit : 0,
                        .text = ev->kind != WEFT_EVENT_PROMPT_ROW ? f->text : ""};
    if (fr->params.sampling.logprob) {
        out->logprob = ev->pick.logprob;
        out->n_top = ev->pick.n_top;
    }
    for (int32_t i = 0; i < out->n_top; i++) {
        out->top_id[i] = ev->pick.top[i].token;
        out->top_logprob[i] = ev->pick.top[i].logprob;
    }
}

/* Takes one event off the ring; false: none came in time. The end of a request takes it out of the
 * live list. */
static bool ring_take(front *f, const struct timespec *until, front_event *out) {
    pthread_mutex_lock(&f->lock);
    while (f->ring_n == 0 && !f->failed) {
        int rc = until ? pthread_cond_timedwait(&f->ready, &f->lock, until)
                       : pthread_cond_wait(&f->ready, &f->lock);
        if (rc != 0)
            break;
    }
    bool got = f->ring_n > 0;
    if (got) {
        *out = f->ring[f->ring_at];
        f->ring_at = (f->ring_at + 1) % f->ring_cap;
        f->ring_n--;
        if (out->kind == WEFT_EVENT_END) {
            request_unlink(f, out->fr);
        } else if (--f->n_row + f->max_step_rows == f->row_cap) {
            pthread_cond_signal(&f->work); /* rank 0 may wait for this room */
        }
    }
    pthread_mutex_unlock(&f->lock);
    return got;
}

/* The client is told an end before the engine knows of it: what still comes is dropped, and no more
 * tokens are wanted. */
static void close_early(front *f, front_request *fr, weft_finish finish, weft_status status,
                        weft_event *out) {
    fr->closed = true;
    event_fill(f,
               &(front_event){.kind = WEFT_EVENT_END, .fr = fr, .finish = finish, .status = status},
               out);
    out->text = "";
    pthread_mutex_lock(&f->lock);
    if (fr->r)
        request_cancel(f, fr);
    pthread_mutex_unlock(&f->lock);
}

static void event_hand_out(front *f, const front_event *ev, weft_event *out) {
    front_request *fr = ev->fr;
    size_t n_text = 0;
    bool stopped = false;
    fr->n_output += ev->kind == WEFT_EVENT_TOKEN;
    if (ev->kind != WEFT_EVENT_PROMPT_ROW) {
        weft_status s = text_advance(f, fr, ev, &n_text, &stopped);
        if (s != WEFT_OK) { /* its text has a gap from here on; the others have theirs */
            close_early(f, fr, WEFT_FINISH_ERROR, s, out);
            return;
        }
    }
    event_fill(f, ev, out);
    out->text_bytes = n_text;
    if (stopped && ev->kind == WEFT_EVENT_END && ev->finish == WEFT_FINISH_LENGTH)
        out->finish = WEFT_FINISH_STOP; /* the stop string's last bytes were held back until now */
    if (stopped && ev->kind == WEFT_EVENT_TOKEN) { /* told with the next call */
        close_early(f, fr, WEFT_FINISH_STOP, WEFT_OK, &f->owed);
        f->owes = true;
    }
}

weft_status weft_engine_next(weft_engine *e, int32_t timeout_ms, weft_event *out, bool *got,
                             weft_error *err) {
    front *f = &e->front;
    front_event ev;
    if (f->owes) {
        f->owes = false;
        *out = f->owed;
        *got = true;
        return WEFT_OK;
    }
    /* One for the whole call: events that are dropped do not prolong it. */
    struct timespec until = deadline_after_ms(timeout_ms > 0 ? timeout_ms : 0);
    while (ring_take(f, timeout_ms < 0 ? NULL : &until, &ev)) {
        bool dropped = ev.fr->closed;
        if (!dropped)
            event_hand_out(f, &ev, out);
        if (ev.kind == WEFT_EVENT_END)
            request_free(ev.fr);
        if (!dropped) {
            *got = true;
            return WEFT_OK;
        }
    }
    *got = false;
    pthread_mutex_lock(&f->lock);
    weft_status s = f->failed ? error_set(err, f->why.status, "%s", f->why.text) : WEFT_OK;
    pthread_mutex_unlock(&f->lock);
    return s;
}
