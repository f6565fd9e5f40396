#include "cli/suite.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/wait.h"
#include "cli/cli.h"

/* ---- prompts ---- */

static const char *const cp_prompt[] = {
    "The capital of France is",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle. The letter was "
    "written a hundred years ago by a sailor "
    "who never came home, and it names a small island that is on no map.",
    "Once upon a time, in a village by the sea, there lived an old woman who kept bees. Every "
    "morning she walked along the shore to the "
    "hives behind the dunes, and every evening she came back with a jar of honey for the children "
    "of the village. One summer the bees did "
    "not come back from the heather. She waited for three days, and on the fourth she packed "
    "bread, cheese and a lamp, and went to look "
    "for them. The path led over the hill, past the mill that had no miller, and into the wood "
    "that the villagers called the Long Quiet, "
    "because no bird had ever been heard to sing there. At the edge of the wood she met a boy who "
    "was sitting on a stone and whittling. "
    "What are you making, she asked. A flute, he said, but it will not play. She looked at it, "
    "turned it over, and laughed: you have made "
    "the holes on both sides. They mended it together with wax from her last candle, and when he "
    "blew into it, something in the wood "
    "answered with a hum. They followed the hum until it was dark, and in a hollow oak as wide as "
    "a house they found",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "Question: Natalia sold clips to 48 of her friends in April, and then she sold half as many "
    "clips in May. How many clips did Natalia "
    "sell altogether in April and May?\nAnswer:",
    "1, 2, 3, 5, 8, 13,",
};
enum { N_CP = sizeof cp_prompt / sizeof *cp_prompt };

static uint64_t draw(uint64_t *state) {
    uint64_t x = (*state += 0x9E3779B97F4A7C15u);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static int32_t draw_in(uint64_t *state, int32_t lo, int32_t hi) {
    return lo + (int32_t)(draw(state) % (uint64_t)(hi - lo + 1));
}

static weft_status prompt_set(suite_request *q, const int32_t *ids, int32_t n, weft_error *err) {
    q->prompt = malloc((size_t)n * sizeof *q->prompt);
    if (!q->prompt)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a prompt of %d tokens", n);
    memcpy(q->prompt, ids, (size_t)n * sizeof *ids);
    weft_request_default(&q->params);
    q->params.prompt = q->prompt;
    q->params.n_prompt = n;
    q->params.ignore_eos = true;
    q->params.prompt_logits = true;
    return WEFT_OK;
}

static weft_status prompt_text(suite_request *q, const weft_model *model, const char *text,
                               int32_t max_len, weft_error *err) {
    int32_t ids[2048];
    size_t n = 0;
    weft_status s = weft_tokenize(model, text, strlen(text), WEFT_TEXT_PROMPT, ids, 2048, &n, err);
    if (s != WEFT_OK)
        return s;
    int32_t take = (int32_t)n < max_len ? (int32_t)n : max_len;
    return prompt_set(q, ids, take < 2048 ? take : 2048, err);
}

/* Random ids: the bytes do not care whether a prompt makes sense. */
static weft_status prompt_random(suite_request *q, const weft_model *model, int32_t n,
                                 uint64_t *state, weft_error *err) {
    weft_model_info info;
    weft_model_get_info(model, &info);
    int32_t ids[1024];
    for (int32_t i = 0; i < n; i++)
        ids[i] = draw_in(state, 0, info.n_vocab - 1);
    return prompt_set(q, ids, n, err);
}

/* Of a model without a tokeniser: random ids, about as many as the texts have words. */
static weft_status make_texts(suite *s, const weft_model *model, int32_t max_prompt,
                              weft_error *err) {
    weft_model_info info;
    weft_model_get_info(model, &info);
    uint64_t state = s->seed;
    for (int32_t i = 0; i < s->n; i++) {
        const char *text = cp_prompt[i % N_CP];
        int32_t n = (int32_t)strlen(text) / 4 + 1;
        weft_status st = info.has_text
                             ? prompt_text(&s->request[i], model, text, max_prompt, err)
                             : prompt_random(&s->request[i], model, n < max_prompt ? n : max_prompt,
                                             &state, err);
        if (st != WEFT_OK)
            return st;
    }
    return WEFT_OK;
}

static weft_status make_cp(suite *s, const weft_model *model, int32_t max_prompt, int32_t tokens,
                           weft_error *err) {
    weft_status st = make_texts(s, model, max_prompt, err);
    for (int32_t i = 0; i < s->n; i++)
        s->request[i].params.max_tokens = tokens;
    return st;
}

/* Two are decoding when six prompts arrive. */
static weft_status make_mixed(suite *s, const weft_model *model, int32_t max_prompt, int32_t tokens,
                              weft_error *err) {
    weft_status st = make_cp(s, model, max_prompt, tokens, err);
    for (int32_t i = 0; i < s->n; i++)
        s->request[i].params.arrival_step = i < 2 ? 0 : 6;
    return st;
}

static void draw_sampling(weft_request *q, uint64_t *state) {
    q->sampling.temperature = 0.5f + (float)draw_in(state, 0, 10) / 10.0f;
    q->sampling.seed = draw(state);
    q->sampling.top_k = draw_in(state, 0, 1) * 40;
    q->sampling.top_p = draw_in(state, 0, 1) ? 0.9f : 1.0f;
    q->sampling.repetition_penalty = draw_in(state, 0, 1) ? 1.1f : 1.0f;
}

static weft_status make_random(suite *s, const weft_model *model, int32_t max_prompt,
                               int32_t tokens, weft_error *err) {
    static const int32_t edge[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 97};
    enum { N_EDGE = sizeof edge / sizeof *edge };
    uint64_t state = s->seed;
    for (int32_t i = 0; i < s->n; i++) {
        int32_t n = i < N_EDGE ? edge[i] : draw_in(&state, 1, 260);
        weft_status st =
            prompt_random(&s->request[i], model, n < max_prompt ? n : max_prompt, &state, err);
        if (st != WEFT_OK)
            return st;
        weft_request *q = &s->request[i].params;
        q->max_tokens = draw_in(&state, 1, tokens);
        q->arrival_step = draw_in(&state, 0, 24);
        if (i % 2)
            draw_sampling(q, &state);
    }
    return WEFT_OK;
}

/* Prompts that begin like the first of every four for a drawn length, and come at drawn times: what
 * they find is cold, warm, being computed or evicted. Prompt rows would bypass the cache. */
static weft_status make_prefix(suite *s, const weft_model *model, int32_t max_prompt,
                               int32_t tokens, weft_error *err) {
    uint64_t state = s->seed;
    for (int32_t i = 0; i < s->n; i++) {
        int32_t n = draw_in(&state, 60, 260);
        weft_status st =
            prompt_random(&s->request[i], model, n < max_prompt ? n : max_prompt, &state, err);
        if (st != WEFT_OK)
            return st;
        weft_request *q = &s->request[i].params;
        const weft_request *first = &s->request[i / 4 * 4].params;
        int32_t least = first->n_prompt < q->n_prompt ? first->n_prompt : q->n_prompt;
        memcpy(s->request[i].prompt, first->prompt,
               (size_t)draw_in(&state, 0, least) * sizeof *q->prompt);
        q->max_tokens = draw_in(&state, 1, tokens);
        q->arrival_step = draw_in(&state, 0, 120);
        q->prompt_logits = false;
        if (i % 2)
            draw_sampling(q, &state);
    }
    return WEFT_OK;
}

/* ---- suites ---- */

typedef struct suite_kind {
    const char *name;
    int32_t n, tokens;
    bool draws; /* prompts by the seed, and limits of every run but the first */
    weft_status (*make)(suite *s, const weft_model *model, int32_t max_prompt, int32_t tokens,
                        weft_error *err);
} suite_kind;

static const suite_kind kinds[] = {{"cp", N_CP, 32, false, make_cp},
                                   {"mixed", 8, 128, false, make_mixed},
                                   {"random", 20, 64, true, make_random},
                                   {"prefix", 24, 64, true, make_prefix}};

weft_status suite_make(const char *name, const weft_model *model, int32_t max_tokens, uint64_t seed,
                       suite *out, weft_error *err) {
    const suite_kind *kind = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(name, kinds[i].name) == 0)
            kind = &kinds[i];
    if (!kind)
        return error_set(err, WEFT_ERR_USAGE, "--suite %.40s: expected cp, mixed, random or prefix",
                         name);
    int32_t tokens = max_tokens ? max_tokens : kind->tokens;
    weft_model_info info;
    weft_model_get_info(model, &info);
    if (tokens >= info.context_length)
        return error_set(err, WEFT_ERR_USAGE, "--max-tokens %d: the model's context is %d", tokens,
                         info.context_length);
    suite s = {.n = kind->n, .seed = seed, .vary_limits = kind->draws};
    s.request = calloc((size_t)s.n, sizeof *s.request);
    if (!s.request)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d requests", s.n);
    weft_status st = kind->make(&s, model, info.context_length - tokens, tokens, err);
    if (st != WEFT_OK) {
        suite_free(&s);
        return st;
    }
    for (int32_t i = 0; i < s.n; i++) {
        const weft_request *q = &s.request[i].params;
        int32_t len = q->n_prompt + q->max_tokens;
        s.max_len = len > s.max_len ? len : s.max_len;
    }
    *out = s;
    return WEFT_OK;
}

void suite_free(suite *s) {
    for (int32_t i = 0; i < s->n; i++)
        free(s->request[i].prompt);
    free(s->request);
    *s = (suite){0};
}

suite_limits suite_limits_of(const suite *s, int32_t run, int32_t fullest) {
    if (!s->vary_limits || run == 0)
        return (suite_limits){0};
    static const int32_t budget[] = {16, 37, 64, 512, 17, 128};
    uint64_t state = s->seed + (uint64_t)run;
    return (suite_limits){.max_num_seqs = draw_in(&state, 4, 17),
                          .max_num_batched_tokens = budget[draw_in(&state, 0, 5)],
                          .kv_pages = fullest + draw_in(&state, 0, fullest / 4),
                          .cp_min_split = draw_in(&state, 1, 64)};
}

/* ---- one run ---- */

static weft_status result_alloc(const suite *s, suite_result *out, weft_error *err) {
    *out = (suite_result){.n = s->n};
    out->request = calloc((size_t)s->n, sizeof *out->request);
    for (int32_t i = 0; out->request && i < s->n; i++) {
        const weft_request *q = &s->request[i].params;
        suite_result_request *r = &out->request[i];
        r->n_prompt = q->n_prompt;
        r->n_row = q->n_prompt + q->max_tokens;
        r->token = calloc((size_t)q->max_tokens, sizeof *r->token);
        r->hash = calloc((size_t)r->n_row, sizeof *r->hash);
        if (!r->token || !r->hash)
            return error_set(err, WEFT_ERR_MEMORY, "no memory for the rows of %d requests", s->n);
    }
    return out->request ? WEFT_OK
                        : error_set(err, WEFT_ERR_MEMORY, "no memory for %d requests", s->n);
}

void suite_result_free(suite_result *r) {
    for (int32_t i = 0; r->request && i < r->n; i++) {
        free(r->request[i].token);
        free(r->request[i].hash);
    }
    free(r->request);
    *r = (suite_result){0};
}

static void event_note(suite_result *out, const suite *s, int32_t i, const weft_event *ev) {
    suite_result_request *r = &out->request[i];
    int64_t row = ev->kind == WEFT_EVENT_TOKEN ? ev->position - 1 : ev->position;
    if (ev->kind == WEFT_EVENT_END) {
        r->finish = ev->finish;
        return;
    }
    if (row >= 0 && row < r->n_row) {
        r->hash[row] = ev->logits_hash;
        out->n_row++;
    }
    if (ev->kind == WEFT_EVENT_TOKEN && r->n_token < s->request[i].params.max_tokens) {
        r->token[r->n_token++] = ev->token;
        out->n_token++;
    }
}

static weft_status take_events(const suite *s, weft_engine *engine, const uint64_t *ids,
                               suite_result *out, weft_error *err) {
    enum { POLL_MS = 100 };
    for (int32_t left = s->n; left > 0;) {
        weft_event ev;
        bool got = false;
        weft_status st = weft_engine_next(engine, POLL_MS, &ev, &got, err);
        if (st == WEFT_OK && cli_interrupt_noticed())
            st = error_set(err, WEFT_ERR_INTERRUPTED, "interrupted");
        if (st != WEFT_OK)
            return st;
        if (!got)
            continue;
        int32_t i = 0;
        while (i < s->n && ids[i] != ev.request)
            i++;
        if (i == s->n)
            continue;
        event_note(out, s, i, &ev);
        if (ev.kind == WEFT_EVENT_END && ev.finish == WEFT_FINISH_ERROR &&
            ev.status == WEFT_ERR_NUMERIC)
            return error_set(err, ev.status, "request %d: %s", i, weft_status_text(ev.status));
        /* other errors end the engine: the next call says why */
        left -= ev.kind == WEFT_EVENT_END && ev.finish != WEFT_FINISH_ERROR;
    }
    return WEFT_OK;
}

weft_status suite_run(const suite *s, weft_model *model, const weft_engine_params *params,
                      suite_result *out, weft_error *err) {
    uint64_t *ids = malloc((size_t)s->n * sizeof *ids);
    weft_request *all = malloc((size_t)s->n * sizeof *all);
    weft_engine *engine = NULL;
    weft_status st = result_alloc(s, out, err);
    if (st == WEFT_OK && (!ids || !all))
        st = error_set(err, WEFT_ERR_MEMORY, "no memory for %d requests", s->n);
    for (int32_t i = 0; all && i < s->n; i++)
        all[i] = s->request[i].params;
    if (st == WEFT_OK)
        st = weft_engine_open(model, params, &engine, err);
    double t0 = wait_now_s();
    if (st == WEFT_OK)
        st = weft_engine_submit(engine, all, s->n, ids, err);
    if (st == WEFT_OK)
        st = take_events(s, engine, ids, out, err);
    double t1 = wait_now_s();
    if (engine) {
        weft_engine_stats stats;
        weft_engine_get_stats(engine, &stats);
        out->n_step = stats.n_step;
        out->n_preemption = stats.n_preemption;
        out->n_cached = stats.n_cached_token;
        out->seconds = t1 - t0;
    }
    weft_engine_close(engine);
    free(all);
    free(ids);
    return st;
}

/* ---- compare ---- */

/* First position at which one request differs; position INT32_MAX: none. */
static suite_difference request_compare(const suite_result_request *a,
                                        const suite_result_request *b) {
    int32_t n_prompt = a->n_prompt;
    suite_difference d = {.position = INT32_MAX};
    for (int32_t p = 0; p < a->n_row && d.position == INT32_MAX; p++)
        if (a->hash[p] != b->hash[p])
            d = (suite_difference){.position = p,
                                   .what = b->hash[p] && a->hash[p] ? "logits" : "rows",
                                   .expected = a->hash[p],
                                   .got = b->hash[p]};
    for (int32_t i = 0; i < a->n_token && i < b->n_token; i++)
        if (a->token[i] != b->token[i] && n_prompt + i < d.position) {
            d = (suite_difference){.position = n_prompt + i,
                                   .what = "token",
                                   .expected = (uint64_t)a->token[i],
                                   .got = (uint64_t)b->token[i]};
            break;
        }
    if (d.position == INT32_MAX && (a->n_token != b->n_token || a->finish != b->finish))
        d = (suite_difference){.position =
                                   n_prompt + (a->n_token < b->n_token ? a->n_token : b->n_token),
                               .what = "length",
                               .expected = (uint64_t)a->n_token,
                               .got = (uint64_t)b->n_token};
    return d;
}

uint64_t suite_digest(const suite_result *r) {
    uint64_t h = 0;
    for (int32_t i = 0; i < r->n; i++) {
        for (int32_t p = 0; p < r->request[i].n_row; p++)
            h = draw(&(uint64_t){h ^ r->request[i].hash[p]});
        for (int32_t t = 0; t < r->request[i].n_token; t++)
            h = draw(&(uint64_t){h ^ (uint64_t)r->request[i].token[t]});
    }
    return h;
}

int32_t suite_compare(const suite_result *expected, const suite_result *got,
                      suite_difference *first) {
    int32_t n = 0;
    *first = (suite_difference){.request = -1, .position = INT32_MAX};
    for (int32_t i = 0; i < expected->n; i++) {
        const suite_result_request *a = &expected->request[i], *b = &got->request[i];
        suite_difference d = request_compare(a, b);
        if (d.position == INT32_MAX)
            continue;
        n++;
        d.request = i;
        if (d.position < first->position)
            *first = d;
    }
    return n;
}
