/* A call from its HTTP request to its reply, on the loop's thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/wait.h"
#include "serve/impl.h"

static const char *const kind_path[] = {"/v1/completions", "/v1/chat/completions", "/tokenize",
                                        "/detokenize"};
static const char *const kind_prefix[] = {"cmpl", "chatcmpl", "tok", "detok"};

/* ---- end ---- */

static void call_log(const serve_call *c) {
    const log_field f[] = {{"id", c->request_id, 0},
                           {"peer", c->peer, 0},
                           {"path", kind_path[c->kind], 0},
                           {"status", NULL, c->status},
                           {"prompt_tokens", NULL, c->n_prompt_token},
                           {"cached_tokens", NULL, c->n_cached_token},
                           {"output_tokens", NULL, c->n_output_token},
                           {"queue_s", NULL, c->queued_s},
                           {"first_token_s", NULL, c->t_first > 0 ? c->t_first - c->t_arrived : 0},
                           {"total_s", NULL, wait_now_s() - c->t_arrived},
                           {"message", c->error.message, 0}};
    size_t n = sizeof f / sizeof *f - (c->error.http == 0);
    log_event(LOG_INFO, c->status == 0 ? "client gone" : "request", f, n);
}

static void answer_free(serve_call *c) {
    openai_answer_close(c->answer);
    c->answer = NULL;
    c->s->answer_bytes -= c->answer_bytes;
    c->answer_bytes = 0;
}

/* What waits for a reply that will not be made. Before the worker is done the answer is its. */
static void answer_drop(serve_call *c) {
    if (c->worker_done)
        answer_free(c);
}

static void call_free(serve_call *c) {
    serve *s = c->s;
    *(c->prev ? &c->prev->next : &s->calls) = c->next;
    if (c->next)
        c->next->prev = c->prev;
    answer_free(c);
    openai_request_free(c->q);
    free(c->choice);
    free(c->reply);
    free(c->body);
    free(c);
    s->n_call--;
}

void serve_free_calls(serve *s) {
    while (s->calls)
        call_free(s->calls);
}

static void free_when_done(serve_call *c) {
    if (!c->http && c->worker_done && c->n_ended == c->n_choice)
        call_free(c);
}

/* The client has its reply (status), or has gone (0). */
static void call_over(serve_call *c, int32_t status) {
    c->http = NULL;
    atomic_store(&c->over, true);
    c->status = status;
    http_timer_stop(c->timer);
    c->timer = NULL;
    metrics_reply(&c->s->metrics, (int32_t)c->kind, status);
    call_log(c);
}

/* What still runs for it in the engine has no reader any more. */
static void call_cancel(serve_call *c) {
    if (!c->worker_done || c->cancelled)
        return;
    c->cancelled = true;
    for (int32_t i = 0; i < c->n_choice; i++)
        if (!c->choice[i].ended)
            weft_engine_cancel(c->s->engine, c->choice[i].id);
}

static void call_client_gone(void *arg) {
    serve_call *c = arg;
    call_over(c, 0);
    call_cancel(c);
    answer_drop(c);
    free_when_done(c);
}

static void reply_error(http_call *h, const openai_error *e) {
    char *body = openai_error_body(e);
    const char *text = body ? body : "{\"error\": {\"message\": \"no memory\"}}";
    if (e->http == 429 || e->http == 503)
        http_add_header(h, "Retry-After", "1");
    if (e->http == 401)
        http_add_header(h, "WWW-Authenticate", "Bearer");
    if (e->http == 408) /* clients that try again by themselves would do the slow work again */
        http_add_header(h, "X-Should-Retry", "false");
    http_reply(h, e->http, "application/json", text, strlen(text));
    free(body);
}

/* An id that this server gives once. */
static void id_make(serve *s, const char *prefix, char id[SERVE_ID_BYTES]) {
    snprintf(id, SERVE_ID_BYTES, "%s-%016llx%08llx", prefix, (unsigned long long)s->id_base,
             (unsigned long long)++s->n_id);
}

/* The client's own id for a request, when it is short and harmless in a header and a log. */
static const char *id_of_client(const http_call *h) {
    const char *own = http_header(h, "X-Request-Id");
    size_t n = own ? strlen(own) : 0;
    bool fine = n > 0 && n < SERVE_ID_BYTES;
    for (size_t i = 0; fine && i < n; i++)
        fine = own[i] > ' ' && own[i] < 0x7F && own[i] != '"' && own[i] != '\\';
    return fine ? own : NULL;
}

static void add_id(http_call *h, const char *otherwise, char id[SERVE_ID_BYTES]) {
    const char *own = id_of_client(h);
    snprintf(id, SERVE_ID_BYTES, "%s", own ? own : otherwise);
    http_add_header(h, "X-Request-Id", id);
}

void serve_add_id(serve *s, http_call *h, char id[SERVE_ID_BYTES]) {
    char made[SERVE_ID_BYTES];
    id_make(s, "req", made);
    add_id(h, made, id);
}

void serve_refuse(serve *s, http_call *h, int32_t kind, const openai_error *e) {
    char id[SERVE_ID_BYTES];
    serve_add_id(s, h, id);
    const log_field f[] = {{"id", id, 0},
                           {"peer", http_peer(h), 0},
                           {"status", NULL, e->http},
                           {"message", e->message, 0}};
    log_event(LOG_INFO, "refused", f, sizeof f / sizeof *f);
    metrics_reply(&s->metrics, kind, e->http);
    reply_error(h, e);
}

void call_fail(serve_call *c, const openai_error *e) {
    call_cancel(c);
    if (!c->http)
        return;
    http_call *h = c->http;
    c->error = *e;
    call_over(c, c->streaming ? 200 : e->http);
    if (!c->streaming) {
        reply_error(h, e);
        answer_drop(c);
        return;
    }
    openai_text out = {0};
    openai_answer_fail(c->answer, e, &out);
    http_stream_send(h, out.data, out.n);
    http_stream_end(h);
    openai_text_free(&out);
    answer_drop(c);
}

static void fail_without_memory(serve_call *c) {
    openai_error e;
    openai_error_set(&e, 503, "server_error", "", "the server has no memory for this answer");
    call_fail(c, &e);
}

static void call_timeout(void *arg) {
    serve_call *c = arg;
    openai_error e;
    c->timer = NULL;
    openai_error_set(&e, 408, "timeout_error", "timeout",
                     "the request did not end within its timeout of %g seconds", c->q->timeout_s);
    call_fail(c, &e);
    free_when_done(c);
}

void serve_fail_calls(serve *s, const openai_error *e) {
    for (serve_call *c = s->calls, *next; c; c = next) {
        next = c->next;
        call_fail(c, e);
        free_when_done(c);
    }
}

/* ---- begin ---- */

static void prompts_log(const serve_call *c) {
    for (int32_t i = 0; i < c->q->n_prompt; i++) {
        const char *text = c->q->prompt[i].text; /* ids that were refused have none */
        const log_field f[] = {{"id", c->request_id, 0}, {"text", text ? text : "", 0}};
        log_event(LOG_INFO, "prompt", f, sizeof f / sizeof *f);
    }
}

void call_begin(serve *s, http_call *h, openai_kind kind) {
    openai_error e;
    serve_call *c = calloc(1, sizeof *c);
    if (!c || !(c->body = http_take_body(h, &c->n_body))) {
        free(c);
        openai_error_set(&e, 503, "server_error", "", "the server has no memory for this request");
        serve_refuse(s, h, (int32_t)kind, &e);
        return;
    }
    c->s = s;
    c->http = h;
    c->kind = kind;
    c->t_arrived = wait_now_s();
    c->created = (int64_t)time(NULL);
    id_make(s, kind_prefix[kind], c->id);
    add_id(h, c->id, c->request_id);
    snprintf(c->peer, sizeof c->peer, "%s", http_peer(h));
    c->next = s->calls;
    if (s->calls)
        s->calls->prev = c;
    s->calls = c;
    s->n_call++;
    http_on_gone(h, call_client_gone, c);
    if (worker_push(s, c))
        return;
    c->worker_done = true;
    openai_error_set(&e, 429, "rate_limit_error", "",
                     "the server's queue is full; try again in a moment");
    call_fail(c, &e);
    free_when_done(c);
}

static void stream_open(serve_call *c) {
    if (c->streaming)
        return;
    c->streaming = true;
    http_add_header(c->http, "Cache-Control", "no-cache");
    http_stream_begin(c->http, 200, "text/event-stream; charset=utf-8");
}

void call_worker_done(void *call) {
    serve_call *c = call;
    c->worker_done = true;
    if (c->q && c->s->p->log_prompts)
        prompts_log(c);
    if (!c->http) {
        call_cancel(c);
        answer_drop(c);
    } else if (c->refusal.http != 0) {
        call_fail(c, &c->refusal);
    } else if (c->reply) {
        http_call *h = c->http;
        call_over(c, 200);
        http_reply(h, 200, "application/json", c->reply, strlen(c->reply));
    } else {
        double left = c->q->timeout_s - (wait_now_s() - c->t_arrived);
        if (c->q->timeout_s > 0)
            c->timer = http_timer_start(c->s->http, left > 0 ? left : 0, call_timeout, c);
        if (c->q->timeout_s > 0 && !c->timer)
            fail_without_memory(c);
        else if (c->q->stream)
            stream_open(c);
    }
    free_when_done(c);
}

/* ---- events ---- */

static void token_count(serve_call *c, serve_choice *choice, double now) {
    serve_metrics *m = &c->s->metrics;
    if (choice->t_last == 0)
        metrics_observe(&m->first_token, now - c->t_arrived);
    else
        metrics_observe(&m->inter_token, now - choice->t_last);
    if (c->t_first == 0)
        c->t_first = now;
    choice->t_last = now;
}

static void end_count(serve_call *c, serve_choice *choice, const weft_event *ev, double now) {
    serve_metrics *m = &c->s->metrics;
    choice->ended = true;
    c->n_ended++;
    atomic_fetch_sub(&c->s->n_live, 1);
    m->end[ev->finish == WEFT_FINISH_STOP     ? METRICS_END_STOP
           : ev->finish == WEFT_FINISH_LENGTH ? METRICS_END_LENGTH
           : ev->status == WEFT_ERR_CANCELLED ? METRICS_END_CANCELLED
                                              : METRICS_END_ERROR]++;
    if (ev->queued_s > 0) /* else it was in no step */
        metrics_observe(&m->queue, ev->queued_s);
    metrics_observe(&m->whole, now - c->t_arrived);
    c->n_prompt_token += ev->n_prompt_token;
    c->n_cached_token += ev->n_cached_token;
    if (c->q->max_tokens != 0) /* else the prompt is only scored, with a token that nobody gets */
        c->n_output_token += ev->n_output_token;
    c->queued_s = ev->queued_s > c->queued_s ? ev->queued_s : c->queued_s;
}

/* All choices have ended: the rest of a stream, or the reply. */
static void call_complete(serve_call *c, openai_text *out) {
    http_call *h = c->http;
    openai_answer_end(c->answer, out);
    if (out->failed) {
        fail_without_memory(c);
        return;
    }
    call_over(c, 200);
    if (c->streaming) {
        http_stream_send(h, out->data, out->n);
        http_stream_end(h);
    } else {
        http_reply(h, 200, "application/json", out->data, out->n);
    }
}

static void fail_too_large(serve_call *c, int http, const char *why) {
    openai_error e;
    openai_error_set(&e, http, http == 503 ? "server_error" : "invalid_request_error", "", "%s",
                     why);
    call_fail(c, &e);
}

static serve_call *largest_answer(const serve *s) {
    serve_call *most = s->calls;
    for (serve_call *c = s->calls; c; c = c->next)
        most = c->answer_bytes > most->answer_bytes ? c : most;
    return most;
}

/* Log-probabilities of many choices are large, and wait until all have ended. False: too large. */
static bool answer_fits(serve_call *c) {
    serve *s = c->s;
    size_t now = openai_answer_bytes(c->answer);
    s->answer_bytes += now - c->answer_bytes;
    c->answer_bytes = now;
    if (now > s->p->max_unread_bytes)
        fail_too_large(c, 400,
                       "the answer is too large to be kept until it ends (--max-unread); ask "
                       "for fewer log-probabilities or choices");
    else if (s->answer_bytes > serve_most_unread(s))
        fail_too_large(largest_answer(s), 503,
                       "the answers that are being made are too large for the server; try "
                       "again");
    return c->http != NULL;
}

/* The next piece of a stream. What a client does not read waits in memory, so there is an end to it. */
static void stream_send(serve_call *c, const openai_text *out) {
    uint64_t most = c->s->p->max_unread_bytes;
    if (out->failed) {
        fail_without_memory(c);
        return;
    }
    http_stream_send(c->http, out->data, out->n);
    if (http_stream_backlog(c->http) <= most)
        return;
    openai_error e;
    openai_error_set(&e, 408, "timeout_error", "",
                     "the client reads too slowly: more than %llu bytes of the stream wait for it",
                     (unsigned long long)most);
    call_fail(c, &e);
}

/* What an event has made goes to the client. */
static void call_advance(serve_call *c, openai_text *out) {
    bool last = c->n_ended == c->q->n_prompt * c->q->n;
    if (!answer_fits(c))
        return;
    if (c->q->stream && (out->n > 0 || last))
        stream_open(c);
    if (last)
        call_complete(c, out);
    else if (out->n > 0 || out->failed)
        stream_send(c, out);
}

static void call_event(serve_choice *choice, const weft_event *ev, double now) {
    serve_call *c = choice->call;
    openai_text out = {0};
    if (ev->kind == WEFT_EVENT_TOKEN)
        token_count(c, choice, now);
    if (ev->kind == WEFT_EVENT_END)
        end_count(c, choice, ev, now);
    if (c->http && ev->kind == WEFT_EVENT_END && ev->finish == WEFT_FINISH_ERROR) {
        openai_error e;
        openai_error_set(&e, status_http(ev->status), "server_error", "", "the request failed: %s",
                         weft_status_text(ev->status));
        call_fail(c, &e);
    } else if (c->http) {
        openai_answer_event(c->answer, choice->index, ev, &out);
        call_advance(c, &out);
    }
    openai_text_free(&out);
    free_when_done(c);
}

void call_take_batch(void *server) {
    serve_batch *b = batch_take(server);
    double now = wait_now_s();
    for (int32_t i = 0; i < b->n; i++)
        call_event(b->event[i].user, &b->event[i], now);
    batch_free(b);
}
