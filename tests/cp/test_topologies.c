/* Every legal topology of several small models gives the bytes of one rank, whatever the exchange,
 * the split limit, the number of sequences and the budget of a step. Prompt lengths are those at
 * which chunks, pages and shards are cut: 1..4W+3, around one, two and six pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

enum { MAX_TOPO = 256, MAX_REQ = 64 };

/* Requests of all lengths of a model, and what one rank answers. */
typedef struct pool {
    weft_model *model;
    weft_request q[MAX_REQ];
    run_answer oracle[MAX_REQ];
    int32_t n;
} pool;

static void pool_open(pool *p, const toy_shape *s, int32_t world) {
    static const int32_t edge[] = {15, 16, 17, 31, 33, 97, 200};
    uint64_t rng = s->seed * 77;
    *p = (pool){.model = toy_open(s)};
    for (int32_t len = 1; len <= 4 * world + 3; len++)
        p->q[p->n++] = run_request(s->n_vocab, len, run_draw_in(&rng, 1, 4), run_draw(&rng));
    for (size_t i = 0; i < sizeof edge / sizeof *edge; i++)
        p->q[p->n++] = run_request(s->n_vocab, edge[i], run_draw_in(&rng, 1, 9), run_draw(&rng));
    for (int32_t i = 0; i < p->n; i += 3) { /* random ones draw from the same logits */
        p->q[i].sampling.temperature = 0.8f;
        p->q[i].sampling.seed = run_draw(&rng);
        p->q[i].sampling.logprob = true;
        p->q[i].sampling.n_top = 3;
    }
    weft_engine_params params = run_params(1, 1, 1);
    run_oracle(p->model, &params, p->q, p->n, p->oracle);
}

static void pool_close(pool *p) {
    run_free(p->oracle, p->n);
    weft_model_close(p->model);
}

/* n requests of the pool, starting anywhere, with arrivals spread over the first steps. */
static void check_some(const char *label, const pool *p, const weft_engine_params *params,
                       int32_t n, uint64_t *rng) {
    weft_request q[MAX_REQ];
    run_answer oracle[MAX_REQ];
    int32_t first = run_draw_in(rng, 0, p->n - 1), stride = 2 * run_draw_in(rng, 0, 8) + 1;
    n = n < p->n ? n : p->n;
    while (p->n % stride == 0 && stride > 1)
        stride += 2;
    for (int32_t i = 0; i < n; i++) {
        int32_t at = (first + i * stride) % p->n;
        q[i] = p->q[at];
        q[i].arrival_step = run_draw_in(rng, 0, 5);
        oracle[i] = p->oracle[at];
    }
    run_check(label, p->model, params, q, n, oracle);
}

static void model_over_topologies(const toy_shape *s) {
    static const int32_t seqs[] = {1, 2, 17}, budget[] = {512, 1, 37, 16, 256};
    int32_t world = run_small() ? 3 : 8, n_run = 0;
    topo_sizes list[MAX_TOPO];
    uint64_t rng = 1000 + s->seed;
    pool *p = malloc(sizeof *p);
    assert_non_null(p);
    pool_open(p, s, world);
    int32_t n = run_topologies(p->model, world, list, MAX_TOPO);
    for (int32_t i = 0; i < n; i++) {
        /* every exchange where there is one; split limit, sequences and budget are drawn */
        int32_t n_exchange = list[i].dcp > 1 && !run_small() ? 3 : 1, n_draw = run_small() ? 1 : 3;
        for (int32_t k = 0; k < n_exchange * n_draw; k++, n_run++) {
            weft_engine_params params = run_params(list[i].tp, list[i].pcp, list[i].dcp);
            params.exchange = (weft_exchange)(n_exchange > 1 ? k % 3 : i % 3);
            params.cp_min_split = run_draw_in(&rng, 0, 1) ? 1 : 32;
            params.max_num_seqs = seqs[run_draw_in(&rng, 0, 2)];
            params.max_num_batched_tokens = budget[run_draw_in(&rng, 0, 4)];
            int32_t n_req = params.max_num_seqs == 17 ? 20 : 8;
            if (run_small() || params.max_num_batched_tokens == 1) /* a step per token */
                n_req = 4;
            check_some(s->name, p, &params, n_req, &rng);
        }
    }
    print_message("%s: %d runs over %d topologies\n", s->name, n_run, n);
    pool_close(p);
    free(p);
}

static void every_topology_of_every_shape(void **state) {
    (void)state;
    for (int32_t i = 0; i < toy_n_shape; i++)
        model_over_topologies(toy_shapes[i]);
}

/* All lengths 1..4W+3 in one engine: no cut of a prompt loses or doubles a row, whoever owns none. */
static void all_lengths(void **state) {
    (void)state;
    static const topo_sizes sizes[] = {{1, 2, 1}, {1, 2, 2}, {1, 4, 4}, {2, 2, 2}, {4, 2, 4},
                                       {1, 8, 8}, {1, 8, 2}, {8, 1, 4}, {1, 3, 3}};
    pool *p = malloc(sizeof *p);
    assert_non_null(p);
    int32_t world = run_small() ? 4 : 8;
    pool_open(p, &toy_gqa, world);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].tp * sizes[i].pcp > world || (run_small() && i >= 3))
            continue;
        weft_engine_params params = run_params(sizes[i].tp, sizes[i].pcp, sizes[i].dcp);
        params.max_num_seqs = 17;
        run_check("all lengths", p->model, &params, p->q, p->n, p->oracle);
        params.max_num_seqs = 1; /* each prompt alone in its step: ranks without rows */
        params.exchange = WEFT_EXCHANGE_KV;
        run_check("all lengths alone", p->model, &params, p->q, p->n, p->oracle);
    }
    pool_close(p);
    free(p);
}

/* Context lengths around multiples of 64 with chunks of 64, and two contexts of different length
 * in a step; the tail of a chunked prompt is 1 to 9 tokens. */
static void long_context_small_chunk(void **state) {
    (void)state;
    static const int32_t len[] = {63, 64, 65, 127, 128, 129, 145, 154, 40, 191, 192, 193};
    enum { N = sizeof len / sizeof *len };
    weft_model *m = toy_open(&toy_gqa);
    weft_engine_params params = run_params(1, 1, 1);
    weft_request q[N];
    run_answer oracle[N];
    for (int32_t i = 0; i < N; i++) {
        q[i] = run_request(toy_gqa.n_vocab, len[i], 9, 900 + (uint64_t)i);
        q[i].arrival_step = i / 2;
    }
    run_oracle(m, &params, q, N, oracle);
    for (int32_t dcp = 2; dcp <= (run_small() ? 2 : 4); dcp += 2)
        for (int32_t x = 0; x < 3; x++)
            for (int32_t budget = run_small() ? 64 : 16; budget <= 64; budget += 48) {
                params = run_params(1, dcp, dcp);
                params.exchange = (weft_exchange)x;
                params.max_num_batched_tokens = budget;
                params.max_num_seqs = 2;
                run_check("long context, small chunk", m, &params, q, N, oracle);
            }
    run_free(oracle, N);
    weft_model_close(m);
}

/* Answers of many pages: every shard and every owner is reached by decoding too, page 0 to 15 and
 * the second turn around the shards. */
static void decode_over_all_shards(void **state) {
    (void)state;
    static const topo_sizes sizes[] = {{1, 2, 2}, {1, 4, 4}, {4, 1, 2}, {2, 3, 3}};
    enum { N = 3 };
    static const int32_t len[N] = {1, 16, 5};
    weft_model *m = toy_open(&toy_gqa);
    weft_engine_params params = run_params(1, 1, 1);
    params.max_model_len = 320;
    weft_request q[N];
    run_answer oracle[N];
    for (int32_t i = 0; i < N; i++)
        q[i] = run_request(toy_gqa.n_vocab, len[i], run_small() ? 40 : 290, 40 + (uint64_t)i);
    run_oracle(m, &params, q, N, oracle);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        params.tp = sizes[i].tp, params.pcp = sizes[i].pcp, params.dcp = sizes[i].dcp;
        run_check("decode over all shards", m, &params, q, N, oracle);
    }
    run_free(oracle, N);
    weft_model_close(m);
}

/* The threads of a rank and the instruction set change nothing either. */
static void threads_and_isa(void **state) {
    (void)state;
    enum { N = 6 };
    weft_model *m = toy_open(&toy_gqa);
    weft_engine_params params = run_params(1, 1, 1);
    weft_request q[N];
    run_answer oracle[N];
    for (int32_t i = 0; i < N; i++)
        q[i] = run_request(toy_gqa.n_vocab, 1 + 19 * i, 6, 60 + (uint64_t)i);
    run_oracle(m, &params, q, N, oracle);
    for (int32_t threads = 2; threads <= (run_small() ? 2 : 12); threads += 5) {
        params = run_params(1, 2, 2);
        params.n_thread = threads;
        run_check("threads", m, &params, q, N, oracle);
        params.isa = "scalar";
        run_check("scalar", m, &params, q, N, oracle);
    }
    run_free(oracle, N);
    weft_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_topology_of_every_shape),
        cmocka_unit_test(all_lengths),
        cmocka_unit_test(long_context_small_chunk),
        cmocka_unit_test(decode_over_all_shards),
        cmocka_unit_test(threads_and_isa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
