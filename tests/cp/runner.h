/* Runs requests through an engine and keeps what came back, byte for byte. Every run also checks
 * what must hold of any run: events of a request in the order of positions, each row once, one end
 * and nothing after it, true counts, text in whole characters. */
#ifndef WEFT_TESTS_CP_RUNNER_H
#define WEFT_TESTS_CP_RUNNER_H

#include "topo/topo.h"
#include "weft.h"

/* A seeded generator of 64 bits. */
uint64_t run_draw(uint64_t *state);
int32_t run_draw_in(uint64_t *state, int32_t lo, int32_t hi);

/* True when WEFT_TEST_SCALE is "small": builds with a sanitizer. */
bool run_small(void);

/* A request with a random prompt of n ids below n_id; greedy, with prompt rows, not ended by an end
 * token. The prompt lasts as long as the program. */
weft_request run_request(int32_t n_id, int32_t n_prompt, int32_t max_tokens, uint64_t seed);

/* What came back for one request. */
typedef struct run_answer {
    uint64_t id;
    int32_t n_prompt, n_token, n_cached, n_row_cap;
    int32_t *token; /* [n_token] */
    uint64_t *hash; /* [n_row_cap] by position of the fed token */
    uint8_t *seen;  /* [n_row_cap] times that the row came */
    float *logprob; /* [n_row_cap] */
    char *text;     /* all pieces; [n_text], NUL at the end */
    size_t n_text;
    bool ended;
    weft_finish finish;
    weft_status status;
    int64_t end_step_order; /* ends are numbered in the order they came */
} run_answer;

typedef struct run_hooks {
    /* After each event; may submit nothing, may cancel. */
    void (*event)(void *user, weft_engine *e, const weft_event *ev, const run_answer *a);
    void *user;
} run_hooks;

/* Parameters that tests start from: hashes on, model length 256, 8 sequences, 512 tokens a step. */
weft_engine_params run_params(int32_t tp, int32_t pcp, int32_t dcp);

/* Submits all as one act and takes events until each has ended. answers: [n], freed with
 * run_free. The status is the engine's when it failed. */
weft_status run_requests(weft_engine *e, const weft_request *q, int32_t n, const run_hooks *hooks,
                         run_answer *answers, weft_error *err);
/* Opens, runs, closes. stats may be NULL. */
weft_status run_engine(weft_model *m, const weft_engine_params *p, const weft_request *q, int32_t n,
                       run_answer *answers, weft_engine_stats *stats, weft_error *err);
/* The same, and a failure fails the test. */
void run_ok(const char *label, weft_model *m, const weft_engine_params *p, const weft_request *q,
            int32_t n, run_answer *answers, weft_engine_stats *stats);
/* One rank, one request at a time, each prompt in one piece, no --expert-parallel. */
void run_oracle(weft_model *m, const weft_engine_params *like, const weft_request *q, int32_t n,
                run_answer *answers);
void run_free(run_answer *answers, int32_t n);

/* Number of requests that differ in a token, a row's bytes, a log-probability, the text or the
 * finish; prints the first. */
int32_t run_different(const char *label, const run_answer *expected, const run_answer *got,
                      int32_t n);
void run_assert_same(const char *label, const run_answer *expected, const run_answer *got,
                     int32_t n);

/* Legal topologies of a model, up to max_world ranks. */
int32_t run_topologies(weft_model *m, int32_t max_world, topo_sizes *out, int32_t cap);
/* A fresh engine with its requests on the topology against oracle answers. */
void run_check(const char *label, weft_model *m, const weft_engine_params *p, const weft_request *q,
               int32_t n, const run_answer *oracle);

/* Fails the test program with `what` when it is not called again within `seconds`; 0 ends it. */
void run_watch(const char *what, unsigned seconds);

#endif
