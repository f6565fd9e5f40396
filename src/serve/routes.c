/* What is served where. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/wait.h"
#include "serve/impl.h"

static void reply(serve *s, http_call *h, int status, const char *type, const char *body,
                  size_t n) {
    char id[SERVE_ID_BYTES];
    serve_add_id(s, h, id);
    metrics_reply(&s->metrics, -1, status);
    http_reply(h, status, type, body, n);
}

static void reply_json(serve *s, http_call *h, char *body) {
    if (!body) {
        openai_error e;
        openai_error_set(&e, 503, "server_error", "", "the server has no memory for this reply");
        serve_refuse(s, h, -1, &e);
        return;
    }
    reply(s, h, 200, "application/json", body, strlen(body));
    free(body);
}

/* 200 while work gets on: a step that hangs is found by its age, an idle engine looks for work at
 * least once a second. */
static void get_health(serve *s, http_call *h) {
    weft_engine_stats stats;
    weft_engine_get_stats(s->engine, &stats);
    const char *why = s->failed                         ? "the engine has failed"
                      : s->draining                     ? "the server is shutting down"
                      : stats.silent_s > s->p->health_s ? "the engine does not get on"
                                                        : NULL;
    char body[128];
    int n =
        why ? snprintf(body, sizeof body, "{\"status\": \"unavailable\", \"reason\": \"%s\"}", why)
            : snprintf(body, sizeof body, "{\"status\": \"ok\"}");
    reply(s, h, why ? 503 : 200, "application/json", body, (size_t)n);
}

static void get_metrics(serve *s, http_call *h) {
    weft_engine_stats stats;
    weft_engine_get_stats(s->engine, &stats);
    const metrics_state now = {.stats = &stats,
                               .params = s->engine_params,
                               .model = s->openai.name,
                               .identity = s->openai.fingerprint,
                               .n_call = s->n_call,
                               .n_connection = http_connections(s->http),
                               .uptime_s = wait_now_s() - s->t_open};
    size_t n = 0;
    char *text = metrics_text(&s->metrics, &now, &n);
    if (!text) {
        reply_json(s, h, NULL);
        return;
    }
    reply(s, h, 200, "text/plain; version=0.0.4; charset=utf-8", text, n);
    free(text);
}

static void get_models(serve *s, http_call *h) {
    reply_json(s, h,
               openai_models_body(s->limits.model, s->limits.n_model, s->created,
                                  s->limits.max_model_len));
}

/* What stands behind /v1/models/ is one model's name. */
static void get_model(serve *s, http_call *h) {
    const char *name = http_path(h) + strlen("/v1/models/");
    for (int32_t i = 0; i < s->limits.n_model; i++) {
        if (strcmp(name, s->limits.model[i]) == 0) {
            reply_json(s, h, openai_model_body(name, s->created, s->limits.max_model_len));
            return;
        }
    }
    openai_error e;
    openai_error_set(&e, 404, "not_found_error", "model",
                     "the model is not served here; /v1/models lists what is");
    serve_refuse(s, h, -1, &e);
}

static void get_version(serve *s, http_call *h) {
    reply_json(s, h, openai_version_body(WEFT_VERSION, s->openai.fingerprint));
}

static void get_tokenizer_info(serve *s, http_call *h) {
    weft_model_info info;
    weft_model_get_info(s->model, &info);
    reply_json(s, h, openai_tokenizer_info_body(&s->openai, &info));
}

typedef struct route {
    const char *method, *path;
    void (*handle)(serve *s, http_call *h);
    int32_t kind; /* of a call; -1: answered at once, also while the server drains */
    bool open;    /* without a key */
    bool more;    /* the path goes on */
} route;

static const route routes[] = {
    {"POST", "/v1/completions", NULL, OPENAI_COMPLETION, false, false},
    {"POST", "/v1/chat/completions", NULL, OPENAI_CHAT, false, false},
    {"POST", "/tokenize", NULL, OPENAI_TOKENIZE, false, false},
    {"POST", "/detokenize", NULL, OPENAI_DETOKENIZE, false, false},
    {"GET", "/v1/models", get_models, -1, false, false},
    {"GET", "/v1/models/", get_model, -1, false, true},
    {"GET", "/tokenizer_info", get_tokenizer_info, -1, false, false},
    {"GET", "/health", get_health, -1, true, false},
    {"GET", "/metrics", get_metrics, -1, false, false},
    {"GET", "/version", get_version, -1, false, false},
};

/* HEAD is GET without the body, which http leaves out. */
static bool method_fits(const route *r, const char *method) {
    return strcmp(method, r->method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(r->method, "GET") == 0);
}

static bool path_fits(const route *r, const char *path) {
    return r->more ? strncmp(path, r->path, strlen(r->path)) == 0 : strcmp(path, r->path) == 0;
}

/* Takes the same time wherever the texts differ. */
static bool key_equal(const char *key, const char *given) {
    size_t n = strlen(key), m = strlen(given);
    unsigned char differ = n != m;
    for (size_t i = 0; i < m; i++)
        differ |= (unsigned char)(given[i] ^ key[n > 0 ? i % n : 0]);
    return !differ;
}

static bool has_key(const serve *s, const http_call *h) {
    static const char scheme[] = "Bearer ";
    const char *given = http_header(h, "Authorization");
    bool found = s->p->n_api_key == 0;
    if (given && strncasecmp(given, scheme, sizeof scheme - 1) == 0)
        for (int32_t i = 0; i < s->p->n_api_key; i++)
            found |= key_equal(s->p->api_key[i], given + sizeof scheme - 1);
    return found;
}

/* Why the route may not be used now; true: it may. */
static bool admitted(const serve *s, const http_call *h, const route *r, openai_error *e) {
    if (!r->open && !has_key(s, h))
        return openai_error_set(e, 401, "authentication_error", "",
                                "this server wants an API key: Authorization: Bearer KEY");
    if (r->kind < 0)
        return true;
    if (s->failed)
        return openai_error_set(e, 503, "server_error", "", "the engine has failed");
    if (s->draining)
        return openai_error_set(e, 503, "server_error", "", "the server is shutting down");
    return true;
}

/* What src/http answers by itself has no id. */
void serve_on_refuse(void *server, const char *peer, int status, const char *reason) {
    serve *s = server;
    const log_field f[] = {{"peer", peer, 0}, {"status", NULL, status}, {"message", reason, 0}};
    log_event(LOG_INFO, "refused", f, sizeof f / sizeof *f);
    metrics_reply(&s->metrics, -1, status);
}

/* The route of a request that may use it; else its client has been told why not, and NULL. */
static const route *find_route(serve *s, http_call *h) {
    const char *method = http_method(h), *path = http_path(h);
    const route *same_path = NULL;
    openai_error e;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!path_fits(&routes[i], path))
            continue;
        same_path = &routes[i];
        if (!method_fits(same_path, method))
            continue;
        if (admitted(s, h, same_path, &e))
            return same_path;
        serve_refuse(s, h, same_path->kind, &e);
        return NULL;
    }
    if (same_path) {
        http_add_header(h, "Allow", same_path->method);
        openai_error_set(&e, 405, "invalid_request_error", "", "%s takes %s only", same_path->path,
                         same_path->method);
    } else {
        openai_error_set(&e, 404, "not_found_error", "",
                         "no such path; /v1/completions, /v1/chat/completions, /v1/models, "
                         "/tokenize, /detokenize, /tokenizer_info, /health, /metrics and /version "
                         "are served");
    }
    serve_refuse(s, h, -1, &e);
    return NULL;
}

/* Whoever may not use a route has no body read. */
bool serve_on_head(void *server, http_call *h) {
    return find_route(server, h) != NULL;
}

void serve_on_call(void *server, http_call *h) {
    serve *s = server;
    const route *r = find_route(s, h);
    if (!r)
        return;
    if (r->kind >= 0)
        call_begin(s, h, (openai_kind)r->kind);
    else
        r->handle(s, h);
}
