/* Continuous batching on rank 0: waiting and running queues, token budget, chunked prefill,
 * preemption by recompute -> step plan.
 *
 * First come first served. A step takes running requests first (oldest first), then waiting ones
 * while sequences, token budget and pages allow. When pages run out the youngest running request
 * gives its pages back and waits at the head of the queue; what the prefix cache loses of it is
 * computed again later, with the same bytes. No malloc from sched_plan to sched_finish. */
#ifndef WEFT_SCHED_SCHED_H
#define WEFT_SCHED_SCHED_H

#include "base/status.h"
#include "batch/plan.h"
#include "kv/kv.h"

typedef struct sched sched;

typedef struct sched_limits {
    int32_t max_num_seqs, max_num_batched_tokens, max_model_len, page_tokens;
    bool prefix_cache; /* computed pages are published, and looked for at admission */
} sched_limits;

/* One request in the scheduler; made by sched_request_new with all memory it will ever need. */
typedef struct sched_request {
    uint64_t id;
    weft_sampling sampling;
    int32_t n_prompt, n_token, max_total; /* max_total: prompt + answer at most */
    int32_t *token;                       /* [max_total] */
    bool prompt_logits;
    int64_t arrival_step;
    const weft_bias *bias; /* [n_bias], borrowed */
    int32_t n_bias;
    kv_name root; /* of its pages' names; the caller sets it */
    void *user;   /* the front's record */
    /* the scheduler's own */
    int32_t slot;        /* -1: not resident */
    int32_t n_computed;  /* positions whose KV is in the cache */
    int32_t n_told;      /* tokens that the ranks know */
    int32_t logits_done; /* positions below this have delivered their logits rows */
    int32_t n_page_told;
    int32_t
        n_cached;   /* leading tokens that its first admission found cached; -1: not admitted yet */
    int32_t n_name; /* pages named so far: those that its tokens fill */
    kv_name *name;  /* [max_total / page_tokens + 1]; name[0] is the root, name[i + 1] page i's */
    kv_table table;
    bool cancelled;
    struct sched_request *next, *prev;
} sched_request;

weft_status sched_open(const sched_limits *l, kv_pools *kv, sched **out, weft_error *err);
void sched_close(sched *s); /* frees the requests that are left */

/* max_total is cut to max_model_len and to the pool's capacity. WEFT_ERR_TOO_LONG when the prompt
 * leaves no room for a token, naming the limit (model length or cache capacity) and both numbers;
 * WEFT_ERR_USAGE for an empty prompt. The caller owns it until sched_submit. */
weft_status sched_request_new(const sched *s, const int32_t *prompt, int32_t n_prompt,
                              int32_t max_tokens, sched_request **out, weft_error *err);
void sched_request_free(sched_request *r);
void sched_submit(sched *s, sched_request *r);
/* Marks a submitted request for removal; it comes out of sched_take_cancelled at the next plan. */
void sched_cancel(sched *s, sched_request *r);
bool sched_idle(const sched *s); /* nothing waiting or running */

/* Makes the next step's plan into buf. PLAN_IDLE when there is nothing to compute. Steps in which
 * only future arrivals wait are jumped over. */
void sched_plan(sched *s, uint8_t *buf, size_t cap, size_t *bytes);

/* Work of the plan just made, one entry per run in its order. */
typedef struct sched_run {
    sched_request *r;
    int32_t start, n_new, n_logits;
    bool sample;
} sched_run;
int32_t sched_runs(const sched *s, const sched_run **out);
/* The step is done: its KV is in the cache and its logits rows are delivered. Call once per plan,
 * before sched_append of that step. */
void sched_step_done(sched *s);
/* The sampled token of a request whose run had `sample`. */
void sched_append(sched *s, sched_request *r, int32_t token);
/* Ends a request: pages and slot are given back (the ranks learn it with the next plan). The caller
 * owns it again. */
void sched_finish(sched *s, sched_request *r);
/* Cancelled requests that left the queues; the caller owns each. NULL when none. */
sched_request *sched_take_cancelled(sched *s);

typedef struct sched_counts {
    int64_t step; /* of the next plan */
    int64_t n_preemption;
    int64_t n_prefix_token, n_cached_token; /* of admitted requests: all known, found cached */
    int32_t n_waiting, n_running;
} sched_counts;
sched_counts sched_count(const sched *s);

#endif
