#include "cli/evaluate.h"

#include <stdlib.h>

#include "cli/cli.h"

typedef struct job {
    evaluate_prompt *prompt;
    int32_t n;
} job;

/* Requests are numbered from 1 in the order of submission, so a row's prompt is known without
 * waiting for submit's answer. */
static void row_route(void *user, const weft_logits_row *row) {
    job *j = user;
    uint64_t i = row->request - 1;
    if (i < (uint64_t)j->n && row->position < j->prompt[i].n && j->prompt[i].row)
        j->prompt[i].row(j->prompt[i].user, (int32_t)row->position, row->logits, row->n_vocab);
}

static int64_t rows_of(const evaluate_prompt *prompts, int32_t n) {
    int64_t rows = 0;
    for (int32_t i = 0; i < n; i++)
        rows += prompts[i].n;
    return rows;
}

static weft_status take_events(job *j, weft_engine *e, weft_error *err) {
    cli_progress bar;
    int64_t done = 0;
    weft_status s = WEFT_OK;
    int32_t *n_out = calloc((size_t)j->n, sizeof *n_out);
    if (!n_out)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d prompts", j->n);
    cli_progress_begin(&bar, "evaluate", rows_of(j->prompt, j->n));
    cli_progress_set(&bar, 0);
    for (int32_t left = j->n; left > 0 && s == WEFT_OK;) {
        weft_event ev;
        bool got = false;
        s = weft_engine_next(e, 100, &ev, &got, err);
        if (s == WEFT_OK && cli_interrupt_noticed())
            s = error_set(err, WEFT_ERR_INTERRUPTED, "interrupted");
        if (s != WEFT_OK || !got)
            continue;
        evaluate_prompt *p = &j->prompt[ev.request - 1];
        int32_t *out = &n_out[ev.request - 1];
        cli_progress_set(&bar, ++done);
        if (ev.kind == WEFT_EVENT_TOKEN && p->greedy && *out < p->n_greedy)
            p->greedy[(*out)++] = ev.token;
        left -= ev.kind == WEFT_EVENT_END;
        if (ev.kind == WEFT_EVENT_END && ev.finish == WEFT_FINISH_LENGTH &&
            ev.n_output_token < p->n_greedy)
            s = error_set(err, WEFT_ERR_TOO_LONG,
                          "prompt %d: %d of the %d tokens of its answer fit the KV cache "
                          "(--kv-pages, --kv-cache-memory)",
                          (int)ev.request - 1, ev.n_output_token, p->n_greedy);
        if (ev.kind == WEFT_EVENT_END && ev.finish == WEFT_FINISH_ERROR)
            s = error_set(err, ev.status, "prompt %d: %s", (int)ev.request - 1,
                          weft_status_text(ev.status));
    }
    cli_progress_end(&bar);
    free(n_out);
    return s;
}

/* A prompt whose answer is cut would be measured as if the model had said nothing. */
static weft_status length_check(const weft_model *model, const weft_engine_params *p,
                                int32_t longest, weft_error *err) {
    weft_model_info info;
    weft_model_get_info(model, &info);
    int32_t most = p->max_model_len ? p->max_model_len : info.context_length;
    if (longest <= most)
        return WEFT_OK;
    return error_set(err, WEFT_ERR_TOO_LONG,
                     "the longest text takes %d tokens with its answer, more than the %d of %s",
                     longest, most, p->max_model_len ? "--max-model-len" : "the model's context");
}

weft_status evaluate_run(weft_model *model, const weft_engine_params *params,
                         evaluate_prompt *prompts, int32_t n, weft_error *err) {
    weft_engine_params p = *params;
    weft_engine *e = NULL;
    job j = {.prompt = prompts, .n = n};
    weft_request *q = calloc((size_t)n, sizeof *q);
    uint64_t *ids = calloc((size_t)n, sizeof *ids);
    weft_status s =
        q && ids ? WEFT_OK : error_set(err, WEFT_ERR_MEMORY, "no memory for %d prompts", n);
    int32_t longest = 0;
    for (int32_t i = 0; i < n && s == WEFT_OK; i++) {
        weft_request_default(&q[i]);
        q[i].prompt = prompts[i].ids;
        q[i].n_prompt = prompts[i].n;
        q[i].max_tokens = prompts[i].n_greedy;
        q[i].ignore_eos = true;
        q[i].prompt_logits = true;
        int32_t len = prompts[i].n + prompts[i].n_greedy;
        longest = len > longest ? len : longest;
    }
    s = s == WEFT_OK ? length_check(model, &p, longest, err) : s;
    p.max_model_len = p.max_model_len ? p.max_model_len : longest;
    p.on_logits = row_route;
    p.on_logits_user = &j;
    p.on_load = cli_on_load;
    if (s == WEFT_OK)
        s = weft_engine_open(model, &p, &e, err);
    if (s == WEFT_OK)
        s = weft_engine_submit(e, q, n, ids, err);
    if (s == WEFT_OK)
        s = take_events(&j, e, err);
    weft_engine_close(e);
    free(ids);
    free(q);
    return s;
}

int32_t evaluate_argmax(const float *logits, int32_t n_vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}
