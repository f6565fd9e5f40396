/* Continuous batching: what a request gives does not depend on its neighbours, the order they came,
 * the chunks of its prompt, preemption, or whose pages it got. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

static const topo_sizes some_sizes[] = {{1, 1, 1}, {1, 2, 1}, {1, 2, 2},
                                        {2, 2, 2}, {1, 4, 4}, {4, 2, 4}};

static int32_t n_sizes(void) {
    return run_small() ? 3 : (int32_t)(sizeof some_sizes / sizeof *some_sizes);
}

static weft_engine_params params_on(int32_t i) {
    return run_params(some_sizes[i].tp, some_sizes[i].pcp, some_sizes[i].dcp);
}

/* ---- neighbours ---- */

/* One greedy and one seeded request, and seven neighbours at other temperatures and penalties that
 * join and leave at different steps, some while a long prompt is being chunked. */
static void neighbours(void **state) {
    (void)state;
    enum { N = 9 };
    static const int32_t prompt[N] = {21, 33, 7, 180, 1, 64, 16, 100, 47};
    static const float temperature[N] = {0, 0.9f, 10, 0, 0.5f, 1, 10, 2, 0};
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[N];
    run_answer oracle[N];
    for (int32_t i = 0; i < N; i++) {
        q[i] = run_request(toy_gqa.n_vocab, prompt[i], 6 + 5 * (i % 4), 300 + (uint64_t)i);
        q[i].sampling.temperature = temperature[i];
        q[i].sampling.seed = i == 1 ? 7 : (uint64_t)i % 3; /* some share a seed */
        q[i].sampling.logprob = i % 2 == 0;
        q[i].arrival_step = i < 2 ? 2 : i % 5;
    }
    q[3].sampling.frequency_penalty = 1.05f;
    q[5].sampling.repetition_penalty = 5;
    q[6].sampling.top_k = 9999999;
    q[7].sampling.top_p = 0.8f, q[7].sampling.top_k = 5;
    q[8].sampling.presence_penalty = 2;
    weft_engine_params params = run_params(1, 1, 1);
    run_oracle(m, &params, q, N, oracle);
    for (int32_t i = 0; i < n_sizes(); i++)
        for (int32_t budget = 16; budget <= 256; budget *= 4) {
            params = params_on(i);
            params.max_num_batched_tokens = budget;
            params.max_num_seqs = 9;
            run_check("neighbours", m, &params, q, N, oracle);
            params.max_num_seqs = 3;
            run_check("three at a time", m, &params, q, N, oracle);
            params.max_num_seqs = 9; /* the two alone with half of the others */
            run_check("fewer neighbours", m, &params, q, 5, oracle);
        }
    run_free(oracle, N);
    weft_model_close(m);
}

/* Random draws are keyed by the output's position: chunks that give no token draw nothing, and a
 * preempted request draws the same again. */
static void seeded_chunks(void **state) {
    (void)state;
    static const int32_t budget[] = {512, 64, 17};
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[2] = {run_request(toy_gqa.n_vocab, run_small() ? 150 : 480, 24, 1),
                         run_request(toy_gqa.n_vocab, 30, 100, 2)};
    run_answer oracle[2];
    for (int32_t i = 0; i < 2; i++)
        q[i].sampling.temperature = 1, q[i].sampling.seed = 7;
    weft_engine_params params = run_params(1, 1, 1);
    params.max_model_len = 512;
    run_oracle(m, &params, q, 2, oracle);
    for (int32_t i = 0; i < n_sizes(); i++)
        for (int32_t b = 0; b < 3; b++) {
            params = params_on(i);
            params.max_model_len = 512;
            params.max_num_batched_tokens = budget[b];
            run_check("seeded chunks", m, &params, q, 2, oracle);
        }
    run_free(oracle, 2);
    weft_model_close(m);
}

/* ---- limits ---- */

typedef struct started {
    int32_t n_open, n_most;
    uint64_t seen[32];
    int32_t n_seen;
} started;

static void count_started(void *user, weft_engine *e, const weft_event *ev, const run_answer *a) {
    (void)e;
    (void)a;
    started *s = user;
    bool known = false;
    for (int32_t i = 0; i < s->n_seen; i++)
        known |= s->seen[i] == ev->request;
    if (!known) {
        if (s->n_seen > 0) /* first come, first served */
            assert_true(s->seen[s->n_seen - 1] < ev->request);
        s->seen[s->n_seen++] = ev->request;
        s->n_open++;
        s->n_most = s->n_open > s->n_most ? s->n_open : s->n_most;
    }
    s->n_open -= ev->kind == WEFT_EVENT_END;
}

/* Never more requests under way than max_num_seqs, and not fewer when more wait. */
static void sequence_limit(void **state) {
    (void)state;
    enum { N = 12 };
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[N];
    for (int32_t i = 0; i < N; i++)
        q[i] = run_request(toy_gqa.n_vocab, 3 + i, 5 + i % 3, 20 + (uint64_t)i);
    for (int32_t limit = 1; limit <= 4; limit++) {
        weft_engine_params params = run_params(1, 2, 2);
        params.max_num_seqs = limit;
        weft_engine *e = NULL;
        weft_error err = {0};
        run_answer got[N];
        started s = {0};
        run_hooks hooks = {count_started, &s};
        assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_OK);
        assert_int_equal(run_requests(e, q, N, &hooks, got, &err), WEFT_OK);
        weft_engine_close(e);
        assert_int_equal(s.n_seen, N);
        assert_int_equal(s.n_most, limit);
        run_free(got, N);
    }
    weft_model_close(m);
}

/* ---- preemption ---- */

typedef struct small_pool {
    topo_sizes s;
    int32_t pages;
} small_pool;

/* A pool of 7 pages for two requests of 5 pages each; the same with 8 pages over two DCP ranks. */
static void preempted_like_cold(weft_model *m, bool prompt_logits) {
    static const small_pool run[] = {{{1, 1, 1}, 7}, {{1, 2, 1}, 7}, {{2, 1, 1}, 7},
                                     {{1, 2, 2}, 4}, {{1, 4, 4}, 2}, {{2, 2, 2}, 4}};
    weft_request q[2];
    run_answer oracle[2], got[2];
    for (int32_t i = 0; i < 2; i++) {
        q[i] = run_request(toy_gqa.n_vocab, 34, 35, 5 + (uint64_t)i);
        q[i].sampling.temperature = i ? 0.7f : 0;
        q[i].prompt_logits = prompt_logits;
    }
    weft_engine_params params = run_params(1, 1, 1);
    run_oracle(m, &params, q, 2, oracle);
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        weft_engine_stats stats;
        params = run_params(run[i].s.tp, run[i].s.pcp, run[i].s.dcp);
        params.kv_pages = run[i].pages;
        run_ok("preemption", m, &params, q, 2, got, &stats);
        run_assert_same("preemption", oracle, got, 2);
        assert_true(stats.n_preemption > 0);
        assert_int_equal(got[0].n_token, 35);
        assert_int_equal(got[1].n_token, 35);
        assert_int_equal(stats.n_prompt_token, 68); /* not counted again */
        assert_int_equal(stats.n_output_token, 70);
        run_free(got, 2);
    }
    run_free(oracle, 2);
}

static void preemption(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    preempted_like_cold(m, true);
    preempted_like_cold(m, false);
    weft_model_close(m);
}

/* Many requests through pools hardly larger than one of them: pages change hands all the time, and
 * what an earlier owner left in them is never read. */
static void pages_change_hands(void **state) {
    (void)state;
    enum { N = 24 };
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[N];
    run_answer oracle[N];
    uint64_t rng = 8;
    for (int32_t i = 0; i < N; i++) {
        q[i] = run_request(toy_gqa.n_vocab, run_draw_in(&rng, 1, 90), run_draw_in(&rng, 1, 20),
                           run_draw(&rng));
        q[i].prompt_logits = i % 3 != 0;
        q[i].arrival_step = run_draw_in(&rng, 0, 30);
    }
    weft_engine_params params = run_params(1, 1, 1);
    params.max_model_len = 112;
    run_oracle(m, &params, q, N, oracle);
    for (int32_t i = 0; i < n_sizes(); i++)
        for (int32_t budget = 24; budget <= 96; budget += 72) {
            params = params_on(i);
            params.max_model_len = 112;
            params.max_num_batched_tokens = budget;
            params.kv_pages = 7 / params.dcp + 2;
            run_check("pages change hands", m, &params, q, N, oracle);
        }
    run_free(oracle, N);
    weft_model_close(m);
}

/* ---- capacity ---- */

/* A prompt that does not fit even the empty pool is refused at once, with the capacity named; it
 * takes nobody else down, and the next request is served. */
static void too_long_is_refused(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    for (int32_t dcp = 1; dcp <= 2; dcp++) {
        weft_engine_params params = run_params(1, 2, dcp);
        params.kv_pages = 4 / dcp;
        weft_engine *e = NULL;
        weft_error err = {0};
        weft_request q[2] = {run_request(toy_gqa.n_vocab, 5, 4, 1),
                             run_request(toy_gqa.n_vocab, 100, 4, 2)};
        uint64_t ids[2] = {77, 78};
        run_answer oracle, got;
        run_oracle(m, &params, q, 1, &oracle);
        assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_OK);
        assert_int_equal(weft_engine_submit(e, q, 2, ids, &err), WEFT_ERR_TOO_LONG);
        assert_non_null(strstr(err.text, "100"));
        assert_non_null(strstr(err.text, "capacity of 64"));
        assert_true(ids[0] == 77 && ids[1] == 78); /* all or none */
        weft_event ev;
        bool got_one = true;
        assert_int_equal(weft_engine_next(e, 50, &ev, &got_one, &err), WEFT_OK);
        assert_false(got_one);
        assert_int_equal(run_requests(e, q, 1, NULL, &got, &err), WEFT_OK);
        run_assert_same("after a refusal", &oracle, &got, 1);
        q[1] = run_request(toy_gqa.n_vocab, 256, 4, 2); /* the model length is the other limit */
        assert_int_equal(weft_engine_submit(e, q + 1, 1, ids, &err), WEFT_ERR_TOO_LONG);
        assert_non_null(strstr(err.text, "256"));
        weft_engine_close(e);
        run_free(&oracle, 1);
        run_free(&got, 1);
    }
    weft_model_close(m);
}

/* max_tokens beyond the pool: the answer ends with "length" where the pool does, with nobody to
 * preempt; the same for a request longer than one rank's pool but within its DCP group's. */
static void length_at_capacity(void **state) {
    (void)state;
    static const struct {
        topo_sizes s;
        int32_t pages;
    } run[] = {{{1, 1, 1}, 8}, {{1, 2, 1}, 8}, {{1, 2, 2}, 4}, {{1, 4, 4}, 2}, {{1, 4, 2}, 4}};
    weft_model *m = toy_open(&toy_gqa);
    weft_request q = run_request(toy_gqa.n_vocab, 100, 200, 3);
    run_answer oracle, got;
    weft_engine_params params = run_params(1, 1, 1);
    params.max_model_len = 128; /* 8 pages of 16 */
    run_oracle(m, &params, &q, 1, &oracle);
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        weft_engine_stats stats;
        params = run_params(run[i].s.tp, run[i].s.pcp, run[i].s.dcp);
        params.max_model_len = 512;
        params.kv_pages = run[i].pages;
        run_ok("length at capacity", m, &params, &q, 1, &got, &stats);
        run_assert_same("length at capacity", &oracle, &got, 1);
        assert_int_equal(got.n_token, 28);
        assert_int_equal(got.finish, WEFT_FINISH_LENGTH);
        assert_int_equal(stats.n_preemption, 0);
        assert_int_equal(stats.n_page, 8);
        run_free(&got, 1);
    }
    run_free(&oracle, 1);
    weft_model_close(m);
}

/* ---- cancel ---- */

typedef struct canceller {
    uint64_t nth;   /* of the requests, in order of ids */
    int32_t tokens; /* cancel after so many; 0: at the first prompt row */
    bool done;
    atomic_bool out; /* the cancellation is with the engine */
    double at, took;
    uint64_t first;
} canceller;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void cancel_once(void *user, weft_engine *e, const weft_event *ev, const run_answer *a) {
    canceller *c = user;
    if (c->first == 0)
        c->first = a->id; /* of the first request: it has the first row */
    if (a->id != c->first + c->nth)
        return;
    if (ev->kind == WEFT_EVENT_END)
        c->took = now() - c->at;
    if (!c->done && a->n_token >= c->tokens && ev->kind != WEFT_EVENT_END) {
        weft_engine_cancel(e, a->id);
        c->done = true;
        atomic_store(&c->out, true);
        c->at = now();
    }
}

/* Holds the engine back in the middle of the long answer (positions past 225 are its alone) until
 * the cancellation is out: a busy machine may wake the client only after all tokens are made. */
static void wait_for_cancel(void *user, const weft_logits_row *row) {
    const atomic_bool *cancelled = user;
    for (int32_t i = 0; i < 2000 && row->position > 225 && !atomic_load(cancelled); i++)
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

/* Within a second: the count follows the last event, it does not come before it. */
static void assert_pages_come_back(const weft_engine *e) {
    weft_engine_stats stats;
    double until = now() + 1;
    do
        weft_engine_get_stats(e, &stats);
    while (stats.n_page_used > 0 && now() < until);
    assert_int_equal(stats.n_page_used, 0);
}

/* Cancelled in the middle of its prompt and of its answer; then the same prompt again equals a cold
 * run. The neighbours do not notice, and all pages come back. */
static void cancel_and_again(void **state) {
    (void)state;
    enum { N = 3 };
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[N] = {run_request(toy_gqa.n_vocab, 20, 12, 1),
                         run_request(toy_gqa.n_vocab, 220, 30, 2),
                         run_request(toy_gqa.n_vocab, 40, 9, 3)};
    run_answer oracle[N], got[N];
    weft_engine_params params = run_params(1, 1, 1);
    run_oracle(m, &params, q, N, oracle);
    for (int32_t i = 0; i < n_sizes(); i++)
        for (int32_t tokens = 0; tokens <= 3; tokens += 3) {
            params = params_on(i);
            params.max_num_batched_tokens = 64;
            canceller c = {.nth = 1, .tokens = tokens};
            params.on_logits = wait_for_cancel;
            params.on_logits_user = &c.out;
            weft_engine *e = NULL;
            weft_error err = {0};
            assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_OK);
            run_hooks hooks = {cancel_once, &c};
            assert_int_equal(run_requests(e, q, N, &hooks, got, &err), WEFT_OK);
            assert_int_equal(got[1].finish, WEFT_FINISH_ERROR);
            assert_int_equal(got[1].status, WEFT_ERR_CANCELLED);
            run_assert_same("beside a cancelled one", oracle, got, 1);
            run_assert_same("beside a cancelled one", oracle + 2, got + 2, 1);
            run_free(got, N);
            assert_int_equal(run_requests(e, q, N, NULL, got, &err), WEFT_OK);
            run_assert_same("after a cancelled one", oracle, got, N);
            run_free(got, N);
            weft_engine_cancel(e, 12345); /* unknown: nothing happens */
            assert_pages_come_back(e);
            weft_engine_close(e);
        }
    run_free(oracle, N);
    weft_model_close(m);
}

/* A lone request that is cancelled ends, and its pages are free, well within a second: the engine
 * has nothing else to do then. */
static void cancel_is_prompt(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    weft_request q = run_request(toy_gqa.n_vocab, 10, 240, 1);
    weft_engine_params params = run_params(1, 2, 2);
    weft_engine *e = NULL;
    weft_error err = {0};
    assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_OK);
    double best = 10;
    for (int32_t i = 0; i < 3; i++) {
        run_answer got;
        canceller c = {.tokens = 2};
        run_hooks hooks = {cancel_once, &c};
        assert_int_equal(run_requests(e, &q, 1, &hooks, &got, &err), WEFT_OK);
        if (got.status == WEFT_ERR_CANCELLED)
            best = c.took < best ? c.took : best;
        run_free(&got, 1);
        assert_pages_come_back(e);
    }
    weft_engine_close(e);
    weft_model_close(m);
    assert_true(best < 0.7);
}

/* Closing an engine that is at work cancels what runs and joins its ranks. */
static void close_at_work(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    for (int32_t i = 0; i < n_sizes(); i++) {
        weft_engine_params params = params_on(i);
        weft_engine *e = NULL;
        weft_error err = {0};
        weft_request q[3] = {run_request(toy_gqa.n_vocab, 60, 190, 1),
                             run_request(toy_gqa.n_vocab, 60, 190, 2),
                             run_request(toy_gqa.n_vocab, 60, 10, 3)};
        q[2].arrival_step = 100000;
        uint64_t ids[3];
        weft_event ev;
        bool got = false;
        run_watch("close at work", 60);
        assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_OK);
        assert_int_equal(weft_engine_submit(e, q, 3, ids, &err), WEFT_OK);
        if (i % 2)
            assert_int_equal(weft_engine_next(e, -1, &ev, &got, &err), WEFT_OK);
        weft_engine_close(e);
        run_watch(NULL, 0);
    }
    weft_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours),         cmocka_unit_test(seeded_chunks),
        cmocka_unit_test(sequence_limit),     cmocka_unit_test(preemption),
        cmocka_unit_test(pages_change_hands), cmocka_unit_test(too_long_is_refused),
        cmocka_unit_test(length_at_capacity), cmocka_unit_test(cancel_and_again),
        cmocka_unit_test(cancel_is_prompt),   cmocka_unit_test(close_at_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
