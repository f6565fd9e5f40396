/* weft bench throughput and latency: whole runs through the public interface.
 *
 * throughput: all requests at once, from handing in to the last token.
 * latency: one request at a time. Prefill is the time to the first token of a prompt; decode is the
 * time from the first to the last of the tokens that follow a prompt as long as the context. Beside
 * both stands what the cost model makes of this machine's limits. */
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"
#include "cli/bench.h"
#include "cli/cli.h"

typedef struct runs {
    weft_model *model;
    weft_engine *engine;
    int32_t n_vocab, longest; /* longest prompt + answer that the set-up may have */
    int32_t n_prompt, n_in, n_out;
    uint64_t state;        /* of the draws */
    int32_t *ids;          /* [n_prompt * n_in], or of the longest prompt */
    weft_request *request; /* [n_prompt] */
    uint64_t *handle;      /* [n_prompt] */
    explain_work *work;    /* latency: [n_case] of the prompt, or of a middle step of the answer */
    double peak[KERN_N_PEAK]; /* latency: of this repeat */
} runs;

enum { DEFAULT_LEN = 8192, MAX_SIZE = 1 << 26 };

static weft_status runs_open(bench *b, runs **out, weft_error *err) {
    runs *r = calloc(1, sizeof *r);
    if (!r)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a bench");
    b->body = r;
    weft_status s = weft_model_open(b->v->model.path, &r->model, err);
    if (s != WEFT_OK)
        return s;
    weft_model_info info;
    weft_model_get_info(r->model, &info);
    r->n_vocab = info.n_vocab;
    r->longest = b->v->engine.max_model_len ? b->v->engine.max_model_len : info.context_length;
    *out = r;
    return WEFT_OK;
}

/* The first n ids anew: a prompt that was there before would be found in the prefix cache. */
static void ids_draw(runs *r, size_t n) {
    for (size_t i = 0; i < n; i++)
        r->ids[i] = (int32_t)(bench_draw(&r->state) % (uint64_t)r->n_vocab);
}

/* Room for n requests; prompts of n_in tokens each; an engine for `longest` tokens a request. */
static weft_status runs_start(bench *b, runs *r, int32_t n, int32_t n_in, int32_t longest,
                              int32_t max_num_seqs, weft_error *err) {
    size_t n_id = (size_t)n * (size_t)n_in;
    r->n_prompt = n;
    r->n_in = n_in;
    r->ids = malloc(n_id * sizeof *r->ids);
    r->request = malloc((size_t)n * sizeof *r->request);
    r->handle = malloc((size_t)n * sizeof *r->handle);
    if (!r->ids || !r->request || !r->handle)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d prompts of %d tokens", n, n_in);
    r->state = b->v->seed;
    weft_engine_params p = b->v->engine;
    p.max_num_seqs = max_num_seqs;
    if (p.max_model_len == 0)
        p.max_model_len = longest;
    cli_progress bar;
    cli_load_begin(&bar);
    p.on_load = cli_on_load;
    p.on_load_user = &bar;
    weft_status s = weft_engine_open(r->model, &p, &r->engine, err);
    cli_progress_end(&bar);
    if (s != WEFT_OK)
        return s;
    weft_engine_stats st;
    weft_engine_get_stats(r->engine, &st);
    b->isa = st.isa;
    b->n_thread = st.n_thread;
    return WEFT_OK;
}

static void runs_close(bench *b) {
    runs *r = b->body;
    if (!r)
        return;
    b->closed = weft_engine_close(r->engine);
    weft_model_close(r->model);
    free(r->ids);
    free(r->request);
    free(r->handle);
    free(r->work);
    free(r);
}

static weft_request request_of(const bench *b, const int32_t *ids, int32_t n_in, int32_t n_out) {
    weft_request q;
    weft_request_default(&q);
    q.prompt = ids;
    q.n_prompt = n_in;
    q.max_tokens = n_out;
    q.ignore_eos = true;
    q.sampling.temperature = b->v->temperature;
    return q;
}

typedef struct timing {
    double first, last; /* tokens, in seconds since the requests were handed in */
    int64_t n_token;
} timing;

/* Hands in n requests and takes their events to the end. */
static weft_status complete(runs *r, int32_t n, timing *out, weft_error *err) {
    enum { POLL_MS = 100 };
    timing t = {0};
    double t0 = wait_now_s();
    weft_status s = weft_engine_submit(r->engine, r->request, n, r->handle, err);
    for (int32_t left = n; s == WEFT_OK && left > 0;) {
        weft_event ev;
        bool got = false;
        s = weft_engine_next(r->engine, POLL_MS, &ev, &got, err);
        if (s == WEFT_OK && cli_interrupt_noticed())
            s = error_set(err, WEFT_ERR_INTERRUPTED, "interrupted");
        if (s != WEFT_OK || !got)
            continue;
        if (ev.kind == WEFT_EVENT_TOKEN) {
            t.last = wait_now_s() - t0;
            t.first = t.n_token++ ? t.first : t.last;
        } else if (ev.kind == WEFT_EVENT_END) {
            left--;
            if (ev.finish == WEFT_FINISH_ERROR && ev.status == WEFT_ERR_NUMERIC)
                s = error_set(err, ev.status, "random tokens: %s", weft_status_text(ev.status));
            /* other errors end the engine: the next call says why */
            left += ev.finish == WEFT_FINISH_ERROR;
        }
    }
    *out = t;
    return s;
}

static weft_status too_long(const char *what, int64_t size, int32_t longest, weft_error *err) {
    return error_set(err, WEFT_ERR_TOO_LONG,
                     "%s: %lld tokens, prompt and answer together; at most %d fit", what,
                     (long long)size, longest);
}

/* ---- throughput ---- */

static weft_status throughput_open(bench *b, weft_error *err) {
    const bench_values *v = b->v;
    runs *r;
    weft_status s = runs_open(b, &r, err);
    if (s != WEFT_OK)
        return s;
    int32_t n = v->prompts ? v->prompts : 64, in = v->input ? v->input : 32;
    r->n_out = v->output ? v->output : 512;
    int64_t len = (int64_t)in + r->n_out;
    if (len > r->longest)
        return too_long("--input and --output", len, r->longest, err);
    if ((int64_t)n * in > MAX_SIZE)
        return error_set(err, WEFT_ERR_USAGE, "--prompts %d of --input %d: more than %d tokens", n,
                         in, MAX_SIZE);
    bench_case *c;
    s = bench_case_add(b, "throughput", n, "tok/s", &c, err);
    if (s != WEFT_OK)
        return s;
    snprintf(c->name, sizeof c->name, "%d x (%d in, %d out)", n, in, r->n_out);
    s = runs_start(b, r, n, in, (int32_t)len, v->engine.max_num_seqs, err);
    for (int32_t i = 0; s == WEFT_OK && i < n; i++)
        r->request[i] = request_of(b, r->ids + (size_t)i * (size_t)in, in, r->n_out);
    return s;
}

static weft_status throughput_measure(bench *b, int32_t i, int32_t repeat, bench_sample *out,
                                      weft_error *err) {
    (void)i;
    (void)repeat;
    runs *r = b->body;
    weft_engine_stats before, after;
    timing t;
    ids_draw(r, (size_t)r->n_prompt * (size_t)r->n_in);
    weft_engine_get_stats(r->engine, &before);
    weft_status s = complete(r, r->n_prompt, &t, err);
    if (s != WEFT_OK)
        return s;
    weft_engine_get_stats(r->engine, &after);
    *out = (bench_sample){.figure = (double)t.n_token / t.last,
                          .seconds = t.last,
                          .n_step = after.n_step - before.n_step};
    return WEFT_OK;
}

const bench_kind bench_throughput = {"throughput", throughput_open, throughput_measure, runs_close};

/* ---- latency ---- */

static const char prefill_name[] = "prefill", decode_name[] = "decode";

/* Adds a case per number of "512,4096". Numbers that do not fit are left out when they are not the
 * user's (asked NULL). `more`: tokens after the prompt. */
static weft_status sizes_add(bench *b, const char *series, const char *asked, const char *text,
                             int32_t more, int32_t longest, weft_error *err) {
    const char *p = text;
    weft_status s;
    do {
        bench_case *c;
        int32_t n = 0;
        s = cli_next_size(asked ? asked : series, text, &p, &n, err);
        if (s == WEFT_OK && n + more <= longest)
            s = bench_case_add(b, series, n, "tok/s", &c, err);
        else if (s == WEFT_OK && asked)
            s = too_long(asked, n + more, longest, err);
    } while (s == WEFT_OK && *p);
    return s;
}

/* The work of every case, and with it a limit beside its figure. */
static weft_status latency_work(bench *b, runs *r, int32_t longest, weft_error *err) {
    model_desc *desc = NULL;
    weft_engine_params p = b->v->engine;
    p.max_num_seqs = 1;
    if (p.max_model_len == 0)
        p.max_model_len = longest;
    r->work = calloc((size_t)b->n_case, sizeof *r->work);
    if (!r->work)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the work of %d cases", b->n_case);
    weft_status s = model_desc_load(b->v->model.path, &desc, err);
    for (int32_t i = 0; s == WEFT_OK && i < b->n_case; i++) {
        bench_case *c = &b->cases[i];
        bool decode = c->series == decode_name;
        if (!decode && c->size > BENCH_WORK_MOST)
            continue;
        c->limit = "machine";
        s = bench_work(desc, &p, decode, c->size + (decode ? (r->n_out - 2) / 2 : 0), &r->work[i],
                       err);
    }
    model_desc_close(desc);
    return s;
}

static weft_status latency_open(bench *b, weft_error *err) {
    const bench_values *v = b->v;
    runs *r;
    weft_status s = runs_open(b, &r, err);
    if (s != WEFT_OK)
        return s;
    r->n_out = v->output ? v->output : 64;
    bool both = !v->prefill && !v->decode;
    if (v->output && v->prefill && !v->decode)
        return error_set(err, WEFT_ERR_USAGE, "--output: only decode has one; add --decode");
    if (r->n_out < 2)
        return error_set(err, WEFT_ERR_USAGE,
                         "--output %d: decode is timed from the first token to the last; 2 or more",
                         r->n_out);
    if (both || v->prefill)
        s = sizes_add(b, prefill_name, v->prefill ? "--prefill" : NULL,
                      v->prefill ? v->prefill : "512,4096", 1, r->longest, err);
    if (s == WEFT_OK && (both || v->decode))
        s = sizes_add(b, decode_name, v->decode ? "--decode" : NULL,
                      v->decode ? v->decode : "32,512", r->n_out, r->longest, err);
    if (s == WEFT_OK && b->n_case == 0)
        s = error_set(
            err, WEFT_ERR_USAGE,
            "no default length fits the %d tokens of this set-up; --prefill N chooses one",
            r->longest);
    int32_t in = 0, len = 0;
    for (int32_t i = 0; i < b->n_case; i++) {
        int32_t n = b->cases[i].size;
        int32_t all = n + (b->cases[i].series == decode_name ? r->n_out : 1);
        in = n > in ? n : in;
        len = all > len ? all : len;
    }
    if (s == WEFT_OK)
        s = latency_work(b, r, len, err);
    if (s == WEFT_OK)
        s = runs_start(b, r, 1, in, len, 1, err);
    if (s == WEFT_OK) { /* pages of memory and threads are there before the first measured run */
        timing t;
        ids_draw(r, (size_t)in);
        r->request[0] = request_of(b, r->ids, in, 1);
        s = complete(r, 1, &t, err);
    }
    return s;
}

static weft_status latency_measure(bench *b, int32_t i, int32_t repeat, bench_sample *out,
                                   weft_error *err) {
    (void)repeat;
    runs *r = b->body;
    const bench_case *c = &b->cases[i];
    bool decode = c->series == decode_name;
    weft_engine_stats before, after;
    timing t;
    if (i == 0) {
        weft_status peaks = bench_peaks(b->n_thread, r->peak, err);
        if (peaks != WEFT_OK)
            return peaks;
    }
    ids_draw(r, (size_t)c->size);
    r->request[0] = request_of(b, r->ids, c->size, decode ? r->n_out : 1);
    weft_engine_get_stats(r->engine, &before);
    weft_status s = complete(r, 1, &t, err);
    if (s != WEFT_OK)
        return s;
    weft_engine_get_stats(r->engine, &after);
    double seconds = decode ? t.last - t.first : t.first;
    *out = (bench_sample){.figure = (decode ? (double)(t.n_token - 1) : (double)c->size) / seconds,
                          .seconds = seconds,
                          .limit = (decode ? 1 : c->size) / explain_seconds(&r->work[i], r->peak),
                          .n_step = after.n_step - before.n_step};
    return WEFT_OK;
}

const bench_kind bench_latency = {"latency", latency_open, latency_measure, runs_close};
