/* Field reports about chunked prompts and preemption, with the sizes that they name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

enum { MAX_REQ = 8 };

/* A07: dcp 4, prompts of 1 to 5 tokens, then 8 decode steps each, alone and together. */
static void a07_ranks_without_slots(void **state) {
    (void)state;
    enum { N = 5 };
    static const topo_sizes sizes[] = {{1, 4, 4}, {4, 2, 4}};
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[N];
    run_answer oracle[N];
    for (int32_t i = 0; i < N; i++)
        q[i] = run_request(toy_gqa.n_vocab, i + 1, 9, 70 + (uint64_t)i);
    weft_engine_params p = run_params(1, 1, 1);
    run_oracle(m, &p, q, N, oracle);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int32_t x = 0; x < 3; x++)
            for (int32_t seqs = 1; seqs <= N; seqs += N - 1) {
                p = run_params(sizes[s].tp, sizes[s].pcp, sizes[s].dcp);
                p.exchange = (weft_exchange)x;
                p.max_num_seqs = seqs;
                run_check("A07: no slot for a token", m, &p, q, N, oracle);
            }
    run_free(oracle, N);
    weft_model_close(m);
}

/* B01: a request without context beside one with 100 cached tokens; log-probabilities of the
 * prompt are those of one piece for every chunk size. */
static void b01_prompt_logprobs(void **state) {
    (void)state;
    static const topo_sizes sizes[] = {{1, 1, 1}, {1, 2, 2}, {2, 2, 1}};
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[2] = {run_request(toy_gqa.n_vocab, 140, 2, 1),
                         run_request(toy_gqa.n_vocab, 50, 2, 2)};
    run_answer oracle[2];
    for (int32_t i = 0; i < 2; i++)
        q[i].sampling.logprob = true, q[i].sampling.n_top = 5;
    weft_engine_params p = run_params(1, 1, 1);
    run_oracle(m, &p, q, 2, oracle);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int32_t chunk = 8; chunk <= 64; chunk *= 2) {
            p = run_params(sizes[s].tp, sizes[s].pcp, sizes[s].dcp);
            p.max_num_batched_tokens = chunk;
            q[1].arrival_step = 100 / chunk;
            run_check("B01: prompt log-probabilities", m, &p, q, 2, oracle);
        }
    run_free(oracle, 2);
    weft_model_close(m);
}

/* T19: the last chunk of a prompt is one token, alone and beside decoding requests: of the prompt
 * (n = k budget + 1), and of a preempted one that is computed again. */
static void t19_last_chunk_of_one(void **state) {
    (void)state;
    static const topo_sizes sizes[] = {{1, 1, 1}, {1, 2, 2}, {1, 4, 4}, {2, 2, 2}};
    static const int32_t budget[] = {16, 24, 37};
    weft_model *m = toy_open(&toy_gqa);
    for (size_t b = 0; b < sizeof budget / sizeof *budget; b++) {
        enum { N = 4 };
        weft_request q[N];
        run_answer oracle[N];
        for (int32_t i = 0; i < N; i++)
            q[i] = run_request(toy_gqa.n_vocab, (i + 1) * budget[b] + 1, 10, 30 + (uint64_t)i);
        q[1].arrival_step = 3,
        q[3].arrival_step = 6; /* these have less than the budget: 2 decode */
        weft_engine_params p = run_params(1, 1, 1);
        run_oracle(m, &p, q, N, oracle);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int32_t split = 1; split <= 32; split += 31) {
                p = run_params(sizes[s].tp, sizes[s].pcp, sizes[s].dcp);
                p.max_num_batched_tokens = budget[b];
                p.cp_min_split = split;
                run_check("T19: last chunk of one", m, &p, q, N, oracle);
                run_check("T19: alone", m, &p, q, 1, oracle);
            }
        run_free(oracle, N);
    }
    weft_model_close(m);
}

/* F07, F11: a preempted request draws the same noise again and its penalties count the tokens that
 * it had: a pool of 8 pages for three requests of up to 5. */
static void f11_penalties_after_preemption(void **state) {
    (void)state;
    enum { N = 3 };
    static const struct {
        topo_sizes s;
        int32_t pages;
    } run[] = {{{1, 1, 1}, 8}, {{1, 2, 2}, 4}, {{1, 4, 4}, 2}, {{2, 2, 1}, 8}};
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[N];
    run_answer oracle[N], got[N];
    for (int32_t i = 0; i < N; i++) {
        q[i] = run_request(toy_gqa.n_vocab, 30 + i, 40, 90 + (uint64_t)i);
        q[i].sampling.temperature = i ? 1.0f : 0;
        q[i].sampling.seed = 7;
        q[i].sampling.repetition_penalty = 1.5f;
        q[i].sampling.frequency_penalty = 0.5f;
        q[i].sampling.presence_penalty = i == 2 ? 1.0f : 0;
        q[i].sampling.logprob = true;
    }
    weft_engine_params p = run_params(1, 1, 1);
    run_oracle(m, &p, q, N, oracle);
    for (size_t i = 0; i < sizeof run / sizeof *run; i++) {
        weft_engine_stats stats;
        p = run_params(run[i].s.tp, run[i].s.pcp, run[i].s.dcp);
        p.kv_pages = run[i].pages;
        run_ok("F11: preempted with penalties", m, &p, q, N, got, &stats);
        run_assert_same("F11: preempted with penalties", oracle, got, N);
        assert_true(stats.n_preemption > 0);
        run_free(got, N);
    }
    run_free(oracle, N);
    weft_model_close(m);
}

/* B16: one conversation fills the context; a new short one, then the first cut to its half, run in
 * the same engine. */
static void b16_full_then_new(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    weft_request full = run_request(toy_gqa.n_vocab, 250, 100, 1);
    weft_request next = run_request(toy_gqa.n_vocab, 10, 10, 2), half = full;
    half.n_prompt = 125, half.max_tokens = 20;
    const weft_request q[3] = {full, next, half};
    run_answer oracle[3], got;
    weft_engine_params p = run_params(1, 1, 1);
    run_oracle(m, &p, q, 3, oracle);
    assert_int_equal(oracle[0].n_token, 6);
    for (int32_t dcp = 1; dcp <= 4; dcp *= 2) {
        weft_engine *e = NULL;
        weft_error err = {0};
        p = run_params(1, 4, dcp);
        p.kv_pages = 16 / dcp;
        assert_int_equal(weft_engine_open(m, &p, &e, &err), WEFT_OK);
        for (int32_t i = 0; i < 3; i++) {
            assert_int_equal(run_requests(e, &q[i], 1, NULL, &got, &err), WEFT_OK);
            run_assert_same("B16: full, then new", &oracle[i], &got, 1);
            run_free(&got, 1);
        }
        weft_engine_close(e);
    }
    run_free(oracle, 3);
    weft_model_close(m);
}

/* T22, I10: slots beyond 16 bits. Pools give low pages first, so the low ones must be taken: 36
 * requests of 1,950 tokens hold 4,392 pages, 70,272 slots, at the same time. */
static void t22_high_pages_in_use(void **state) {
    (void)state;
    enum { N = 36, LEN = 1950, TOKENS = 4 };
    static const toy_shape tiny = {.name = "tiny",
                                   .n_layer = 1,
                                   .n_head = 1,
                                   .n_kv_head = 1,
                                   .head_dim = 4,
                                   .hidden = 32,
                                   .ffn = 32,
                                   .n_vocab = 263,
                                   .context = 2048,
                                   .type = TOY_F32,
                                   .seed = 22};
    if (run_small())
        skip();
    weft_model *m = toy_open(&tiny);
    weft_request q[N];
    run_answer oracle[2], got[N];
    for (int32_t i = 0; i < N; i++) {
        q[i] = run_request(tiny.n_vocab, LEN, TOKENS, 600 + (uint64_t)i);
        q[i].prompt_logits = false;
    }
    /* All hold their pages until the last has been computed. */
    for (int32_t i = 0; i < N - 2; i++)
        q[i].max_tokens = 90;
    weft_engine_params p = run_params(1, 1, 1);
    p.max_model_len = 2048;
    run_oracle(m, &p, q + N - 2, 2, oracle);
    p.max_num_seqs = N;
    p.max_num_batched_tokens = 2048;
    p.kv_pages = 4608;
    weft_engine_stats stats;
    run_ok("T22: high pages", m, &p, q, N, got, &stats);
    assert_int_equal(stats.n_preemption, 0);
    run_assert_same("T22: high pages", oracle, got + N - 2, 2);
    for (int32_t i = 0; i < N - 2; i++) /* still there when the last two ended */
        assert_true(got[i].end_step_order > 1);
    run_free(got, N);
    run_free(oracle, 2);
    weft_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a07_ranks_without_slots),        cmocka_unit_test(b01_prompt_logprobs),
        cmocka_unit_test(t19_last_chunk_of_one),          cmocka_unit_test(b16_full_then_new),
        cmocka_unit_test(f11_penalties_after_preemption), cmocka_unit_test(t22_high_pages_in_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
