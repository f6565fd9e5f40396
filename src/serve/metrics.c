#include "serve/metrics.h"

#include <stdio.h>
#include <stdlib.h>

/* Seconds; a bucket counts what is at most its bound. */
static const double bound[METRICS_BUCKETS] = {0.001, 0.0025, 0.005, 0.0075, 0.01, 0.025,
                                              0.05,  0.075,  0.1,   0.25,   0.5,  1,
                                              2.5,   5,      10,    30,     60,   300};
static const char *const kind_name[METRICS_N_KIND + 1] = {"/v1/completions", "/v1/chat/completions",
                                                          "/tokenize", "/detokenize", "other"};
static const char *const end_name[METRICS_N_END] = {"stop", "length", "cancelled", "error"};
static const char *const phase_name[WEFT_N_PHASE] = {"plan", "forward", "sample", "deliver"};

void metrics_observe(metrics_histogram *h, double seconds) {
    int32_t i = 0;
    while (i < METRICS_BUCKETS && seconds > bound[i])
        i++;
    h->bucket[i]++;
    h->sum += seconds;
}

void metrics_reply(serve_metrics *m, int32_t kind, int32_t status) {
    if (status == 0)
        m->n_gone++;
    else if (status >= 100 && status < 100 * METRICS_N_STATUS)
        m->reply[kind >= 0 ? kind : METRICS_N_KIND][status / 100]++;
}

/* ---- text ---- */

static void head(FILE *f, const char *name, const char *type, const char *help) {
    fprintf(f, "# HELP weft_%s %s\n# TYPE weft_%s %s\n", name, help, name, type);
}

static void one(FILE *f, const char *name, const char *type, const char *help, double value) {
    head(f, name, type, help);
    fprintf(f, "weft_%s %.17g\n", name, value);
}

static void histogram(FILE *f, const char *name, const char *help, const metrics_histogram *h) {
    int64_t n = 0;
    head(f, name, "histogram", help);
    for (int32_t i = 0; i < METRICS_BUCKETS; i++) {
        n += h->bucket[i];
        fprintf(f, "weft_%s_bucket{le=\"%g\"} %lld\n", name, bound[i], (long long)n);
    }
    n += h->bucket[METRICS_BUCKETS];
    fprintf(f, "weft_%s_bucket{le=\"+Inf\"} %lld\n", name, (long long)n);
    fprintf(f, "weft_%s_sum %.17g\nweft_%s_count %lld\n", name, h->sum, name, (long long)n);
}

/* A label's value: backslash, quote and line end are escaped. */
static void label(FILE *f, const char *name, const char *value, const char *after) {
    fprintf(f, "%s=\"", name);
    for (const char *c = value; *c; c++)
        if (*c == '\n')
            fputs("\\n", f);
        else
            fprintf(f, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    fprintf(f, "\"%s", after);
}

static void build(FILE *f, const metrics_state *now) {
    const weft_engine_params *p = now->params;
    head(f, "build_info", "gauge", "Version, model and set-up; the value is always 1.");
    fputs("weft_build_info{", f);
    label(f, "version", WEFT_VERSION, ",");
    label(f, "model", now->model, ",");
    label(f, "identity", now->identity, ",");
    label(f, "isa", now->stats->isa, ",");
    fprintf(f, "tp=\"%d\",pcp=\"%d\",dcp=\"%d\"} 1\n", p->tp, p->pcp, p->dcp);
}

static void engine_counts(FILE *f, const weft_engine_stats *s) {
    one(f, "num_requests_running", "gauge", "Requests that take part in steps.",
        (double)s->n_running);
    one(f, "num_requests_waiting", "gauge", "Requests that wait for room.", (double)s->n_waiting);
    one(f, "num_preemptions_total", "counter",
        "Requests that gave their pages back and waited again.", (double)s->n_preemption);
    one(f, "prompt_tokens_total", "counter", "Tokens of prompts taken in.",
        (double)s->n_prompt_token);
    one(f, "generation_tokens_total", "counter", "Tokens generated.", (double)s->n_output_token);
    one(f, "computed_tokens_total", "counter", "Token rows computed, recomputed ones too.",
        (double)s->n_row);
    one(f, "prefix_cache_queries_total", "counter",
        "Tokens of contexts looked up in the prefix cache.", (double)s->n_prefix_token);
    one(f, "prefix_cache_hits_total", "counter", "Tokens found there, not computed.",
        (double)s->n_cached_token);
    one(f, "steps_total", "counter", "Steps of the engine.", (double)s->n_step);
    head(f, "step_phase_seconds_total", "counter", "Time of steps on rank 0 by phase.");
    for (int32_t i = 0; i < WEFT_N_PHASE; i++)
        fprintf(f, "weft_step_phase_seconds_total{phase=\"%s\"} %.17g\n", phase_name[i],
                s->phase_s[i]);
}

static void pages(FILE *f, const weft_engine_stats *s) {
    head(f, "kv_pages", "gauge", "Pages of the KV cache on a DCP rank.");
    for (int32_t r = 0; r < s->n_pool; r++)
        fprintf(f, "weft_kv_pages{dcp_rank=\"%d\"} %lld\n", r, (long long)s->pool_page);
    head(f, "kv_pages_used", "gauge",
         "Pages that requests hold; cached ones that nobody holds are free.");
    for (int32_t r = 0; r < s->n_pool; r++)
        fprintf(f, "weft_kv_pages_used{dcp_rank=\"%d\"} %lld\n", r, (long long)s->pool_used[r]);
    int64_t idle = 0;
    for (int32_t g = 0; g < s->n_group; g++)
        idle += s->group[g].n_page_idle;
    one(f, "kv_pages_cached", "gauge", "Pages that only the prefix cache keeps, all DCP ranks.",
        (double)idle);
    one(f, "kv_cache_usage_perc", "gauge", "Share of the pages that requests hold, 0 to 1.",
        s->n_page > 0 ? (double)s->n_page_used / (double)s->n_page : 0);
}

static void server_counts(FILE *f, const serve_metrics *m, const metrics_state *now) {
    head(f, "http_requests_total", "counter", "Replies by route and class of status.");
    for (int32_t k = 0; k <= METRICS_N_KIND; k++)
        for (int32_t c = 2; c < METRICS_N_STATUS; c++)
            fprintf(f, "weft_http_requests_total{route=\"%s\",status=\"%dxx\"} %lld\n",
                    kind_name[k], c, (long long)m->reply[k][c]);
    head(f, "request_success_total", "counter", "Requests that the engine ended, by reason.");
    for (int32_t i = 0; i < METRICS_N_END; i++)
        fprintf(f, "weft_request_success_total{finished_reason=\"%s\"} %lld\n", end_name[i],
                (long long)m->end[i]);
    one(f, "clients_gone_total", "counter", "Clients that hung up before their reply was complete.",
        (double)m->n_gone);
    one(f, "http_calls", "gauge", "Requests of clients that are open.", now->n_call);
    one(f, "http_connections", "gauge", "Connections that are open.", now->n_connection);
    one(f, "uptime_seconds", "gauge", "Since the server began to listen.", now->uptime_s);
}

char *metrics_text(const serve_metrics *m, const metrics_state *now, size_t *n) {
    char *text = NULL;
    FILE *f = open_memstream(&text, n);
    if (!f)
        return NULL;
    build(f, now);
    server_counts(f, m, now);
    histogram(f, "time_to_first_token_seconds", "From a request's arrival to its first token.",
              &m->first_token);
    histogram(f, "inter_token_latency_seconds", "Between two tokens of an answer.",
              &m->inter_token);
    histogram(f, "request_queue_time_seconds", "From submission to the first step.", &m->queue);
    histogram(f, "e2e_request_latency_seconds", "From a request's arrival to its end.", &m->whole);
    engine_counts(f, now->stats);
    pages(f, now->stats);
    bool failed = ferror(f) != 0;
    if (fclose(f) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}
