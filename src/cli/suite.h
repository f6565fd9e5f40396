/* The request sets of `weft check`, and one run of a set on one topology. */
#ifndef WEFT_CLI_SUITE_H
#define WEFT_CLI_SUITE_H

#include "weft.h"

typedef struct suite_request {
    weft_request params; /* prompt points to `prompt` */
    int32_t *prompt;
} suite_request;

/* How one run may differ from the others without changing a byte; 0: as the engine is set. */
typedef struct suite_limits {
    int32_t max_num_seqs, max_num_batched_tokens, kv_pages, cp_min_split;
} suite_limits;

typedef struct suite {
    suite_request *request; /* [n] */
    int32_t n;
    int32_t max_len;  /* longest prompt + answer */
    bool vary_limits; /* every run but the first gets limits of its own */
    uint64_t seed;
} suite;

/* cp: 6 prompts, 32 tokens. mixed: 2 requests are decoding when 6 prompts arrive, at most 8 at
 * once, 128 tokens. random: seeded lengths, arrivals and sampling, and per run other chunk budgets,
 * batch sizes and pools so small that requests are preempted. prefix: the same with prompts that
 * begin alike. max_tokens 0: the suite's own number.
 * WEFT_ERR_USAGE for another name. */
weft_status suite_make(const char *name, const weft_model *model, int32_t max_tokens, uint64_t seed,
                       suite *out, weft_error *err);
void suite_free(suite *s);
/* Limits of run i for ranks that need `fullest` pages for the longest request. */
suite_limits suite_limits_of(const suite *s, int32_t run, int32_t fullest);

/* What a run gave: per request its tokens, and the hash of the logits row of every position. */
typedef struct suite_result_request {
    int32_t *token; /* [n_token] answer */
    uint64_t *hash; /* [n_row] by position of the fed token; 0: none came */
    int32_t n_prompt, n_token, n_row;
    weft_finish finish;
} suite_result_request;
typedef struct suite_result {
    suite_result_request *request; /* [n] */
    int32_t n;
    int64_t n_row, n_token, n_step, n_preemption, n_cached; /* n_cached: tokens not computed */
    double seconds;
} suite_result;

/* Opens an engine, runs all requests, closes it. WEFT_ERR_INTERRUPTED soon after Ctrl-C.
 * *out is owned by the caller also on failure (suite_result_free). */
weft_status suite_run(const suite *s, weft_model *model, const weft_engine_params *params,
                      suite_result *out, weft_error *err);
void suite_result_free(suite_result *r);

/* One number for all tokens and logits hashes of a run, to compare runs of different programs or
 * machines. */
uint64_t suite_digest(const suite_result *r);

/* Where two runs first differ. request -1: nowhere. */
typedef struct suite_difference {
    int32_t request, position;
    const char *what; /* "logits", "token", "length", "rows" */
    uint64_t expected, got;
} suite_difference;
/* Returns the number of requests that differ; *first is the earliest by position. */
int32_t suite_compare(const suite_result *expected, const suite_result *got,
                      suite_difference *first);

#endif
