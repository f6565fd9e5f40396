/* The server's life: open, serve, drain, close. */
#include "serve/serve.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/wait.h"
#include "serve/impl.h"

void serve_params_default(serve_params *out) {
    *out = (serve_params){.host = "127.0.0.1",
                          .port = 8000,
                          .max_queue = 1024,
                          .max_connections = 4096,
                          .max_choices = 128,
                          .max_unread_bytes = 64u << 20,
                          .read_s = 60,
                          .idle_s = 300,
                          .write_s = 60,
                          .drain_s = 30,
                          .health_s = 60};
}

size_t serve_most_unread(const serve *s) {
    enum { CLIENTS = 16 };
    uint64_t one = s->p->max_unread_bytes;
    return one > SIZE_MAX / CLIENTS ? SIZE_MAX : CLIENTS * (size_t)one;
}

/* ---- end ---- */

/* A server that cannot be called back by its clock is of no use. */
static void later(serve *s, double seconds, void (*fn)(void *server)) {
    if (http_timer_start(s->http, seconds, fn, s))
        return;
    log_error("no memory for a timer: the server ends");
    http_stop(s->http);
}

/* Ends the loop when a server that drains has nothing left to do. */
static void stop_when_drained(void *server) {
    serve *s = server;
    enum { LOOK_AGAIN_MS = 20 };
    if (s->n_call == 0 && http_connections(s->http) == 0)
        http_stop(s->http);
    else
        later(s, 1e-3 * LOOK_AGAIN_MS, stop_when_drained);
}

static void stop_now(void *server) {
    serve *s = server;
    http_stop(s->http);
}

static void drain_over(void *server) {
    serve *s = server;
    openai_error e;
    log_warn("%d requests did not end within %d s and are broken off", s->n_call, s->p->drain_s);
    openai_error_set(&e, 503, "server_error", "", "the server is shutting down");
    serve_fail_calls(s, &e);
    /* what clients have not read by then is lost */
    later(s, 1.0, stop_now);
}

static void on_signal(void *server) {
    serve *s = server;
    if (s->draining) {
        log_warn("a second signal: %d requests are broken off", s->n_call);
        http_stop(s->http);
        return;
    }
    log_info("shutting down; %d requests are open and have %d s", s->n_call, s->p->drain_s);
    later(s, s->p->drain_s, drain_over);
    s->draining = true;
    http_drain(s->http);
    stop_when_drained(s);
}

/* Everybody who waits is told, and for a second whoever still asks: a request may be on its way on a
 * connection that looks idle. Then the server ends: a supervisor starts it again. */
void serve_engine_failed(void *server) {
    serve *s = server;
    openai_error e;
    s->failed = true;
    log_error("%s", s->why.text);
    openai_error_set(&e, 503, "server_error", "", "the engine has failed");
    serve_fail_calls(s, &e);
    later(s, 1.0, stop_now);
}

/* ---- begin ---- */

static weft_status open_http(serve *s, http_sockets *sockets, weft_error *err) {
    const serve_params *p = s->p;
    const http_params h = {.sockets = sockets,
                           .max_header_bytes = 64 << 10,
                           .max_body_bytes = (size_t)s->max_body_bytes,
                           .max_bodies_bytes = worker_max_bytes(s),
                           .max_connections = p->max_connections,
                           .read_s = p->read_s,
                           .idle_s = p->idle_s,
                           .write_s = p->write_s,
                           .cors_origin = p->cors_origin,
                           .max_unread_bytes = serve_most_unread(s),
                           .on_head = serve_on_head,
                           .on_call = serve_on_call,
                           .on_refuse = serve_on_refuse,
                           .user = s};
    weft_status st = http_open(&h, &s->http, err);
    if (st == WEFT_OK)
        st = http_on_signal(s->http, SIGTERM, on_signal, s, err);
    if (st == WEFT_OK)
        st = http_on_signal(s->http, SIGINT, on_signal, s, err);
    if (st == WEFT_OK && p->interrupted && *p->interrupted)
        st = error_set(err, WEFT_ERR_INTERRUPTED, "interrupted");
    return st;
}

static weft_status start_threads(serve *s, weft_error *err) {
    s->events_started = workers_open(s) && pthread_create(&s->events, NULL, events_main, s) == 0;
    if (s->events_started)
        return WEFT_OK;
    return error_set(err, WEFT_ERR_MEMORY, "the server's threads could not be started");
}

static void stop_threads(serve *s) {
    workers_close(s);
    if (s->events_started)
        pthread_join(s->events, NULL);
}

static void log_listening(const serve *s) {
    char url[300];
    bool v6 = strchr(s->p->host, ':') != NULL;
    snprintf(url, sizeof url, v6 ? "http://[%s]:%d" : "http://%s:%d", s->p->host,
             http_port(s->http));
    const log_field f[] = {{"url", url, 0}, {"model", s->openai.name, 0}};
    log_event(LOG_INFO, "listening", f, sizeof f / sizeof *f);
}

/* The longest token times the model length. Normal forms can make a text shorter before it is
 * tokenised: a character of four bytes becomes one of one byte at most. */
static size_t max_prompt_bytes(weft_model *model, int32_t n_vocab, int32_t max_model_len) {
    enum { SHRINKS_BY = 4 };
    size_t longest = 1;
    for (int32_t id = 0; id < n_vocab; id++) {
        size_t n = 0;
        weft_token_bytes(model, id, &n);
        longest = n > longest ? n : longest;
    }
    return SHRINKS_BY * longest * (size_t)max_model_len;
}

/* A step that hangs: its requests are told, so that their clients can go elsewhere. One look is not
 * enough: after a pause of the whole process the engine has until the next one. */
static void watch(void *server) {
    serve *s = server;
    enum { EVERY_S = 5 };
    weft_engine_stats stats;
    weft_engine_get_stats(s->engine, &stats);
    bool silent = stats.silent_s > s->p->health_s;
    if (silent && s->was_silent && s->n_call > 0) {
        openai_error e;
        log_error("no step for %.0f s: %d requests are given up", stats.silent_s, s->n_call);
        openai_error_set(&e, 503, "server_error", "", "the engine does not get on");
        serve_fail_calls(s, &e);
    }
    s->was_silent = silent;
    later(s, EVERY_S, watch);
}

weft_status serve_run(const serve_params *p, http_sockets *sockets, weft_model *model,
                      weft_engine *engine, const weft_engine_params *engine_params,
                      weft_error *err) {
    weft_model_info info;
    weft_engine_stats stats;
    weft_model_get_info(model, &info);
    weft_engine_get_stats(engine, &stats);
    serve *s = calloc(1, sizeof *s);
    if (!s) {
        http_unbind(sockets);
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a server");
    }
    *s = (serve){.p = p,
                 .model = model,
                 .engine = engine,
                 .engine_params = engine_params,
                 .openai = {model, weft_token_bytes, weft_token_is_special, p->name[0],
                            weft_engine_identity(engine)},
                 .limits = {p->name, p->n_name, info.n_vocab, stats.max_model_len, p->max_choices,
                            p->max_queue + engine_params->max_num_seqs},
                 .max_prompt_bytes = max_prompt_bytes(model, info.n_vocab, stats.max_model_len),
                 .created = (int64_t)time(NULL),
                 .id_base = (uint64_t)wait_now_ns() ^ (uint64_t)time(NULL) << 32,
                 .max_body_bytes = p->max_body_bytes,
                 .t_open = wait_now_s()};
    if (s->max_body_bytes == 0)
        s->max_body_bytes = (4u << 20) + 64 * (uint64_t)stats.max_model_len;
    pthread_mutex_init(&s->lock, NULL);
    weft_status st = open_http(s, sockets, err);
    if (st == WEFT_OK)
        st = start_threads(s, err);
    if (st == WEFT_OK) {
        log_listening(s);
        watch(s);
        http_run(s->http);
    }
    stop_threads(s);
    if (s->failed) {
        st = s->why.status;
        if (err)
            *err = s->why;
    }
    http_close(s->http);
    serve_free_calls(s);
    for (serve_batch *b; (b = batch_take(s)) != NULL;)
        batch_free(b);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return st;
}
