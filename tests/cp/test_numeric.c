/* Logits that are no numbers end the request that has them, with the reason, and nobody else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

enum { POISON = 200, N_VOCAB = 270 };
static const toy_shape base = {.name = "poisoned",
                               .n_layer = 2,
                               .n_head = 4,
                               .n_kv_head = 2,
                               .head_dim = 32,
                               .hidden = 128,
                               .ffn = 256,
                               .n_vocab = N_VOCAB,
                               .context = 256,
                               .type = TOY_F32,
                               .seed = 9,
                               .poison = POISON};
static const topo_sizes sizes[] = {{1, 1, 1}, {1, 2, 2}, {2, 2, 2}, {1, 2, 1}};

/* One prompt of three holds a token whose embedding is infinite: its rows are NaN from there on, in
 * the cache too. Its neighbours, and those who get its pages later, give the oracle's bytes. */
static void one_request_fails(void **state) {
    (void)state;
    enum { N = 3 };
    weft_model *m = toy_open(&base);
    int32_t bad[40];
    weft_request q[N];
    run_answer oracle[N], got[N];
    for (int32_t i = 0; i < N; i++) /* ids below the poison's only */
        q[i] = run_request(POISON, 40, 12, 50 + (uint64_t)i);
    memcpy(bad, q[1].prompt, sizeof bad);
    bad[23] = POISON;
    weft_engine_params params = run_params(1, 1, 1);
    run_oracle(m, &params, q, N, oracle);
    weft_request again = q[1];
    q[1].prompt = bad;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int32_t budget = 16; budget <= 256; budget *= 16) {
            params = run_params(sizes[s].tp, sizes[s].pcp, sizes[s].dcp);
            params.max_num_batched_tokens = budget;
            params.kv_pages = 12;
            weft_engine *e = NULL;
            weft_error err = {0};
            assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_OK);
            assert_int_equal(run_requests(e, q, N, NULL, got, &err), WEFT_OK);
            assert_int_equal(got[1].finish, WEFT_FINISH_ERROR);
            assert_int_equal(got[1].status, WEFT_ERR_NUMERIC);
            assert_int_equal(got[1].n_token, 0);
            run_assert_same("beside a numeric error", &oracle[0], &got[0], 1);
            run_assert_same("beside a numeric error", &oracle[2], &got[2], 1);
            run_free(got, N);
            weft_request scored =
                q[1]; /* a prompt row that has no log-probability is the end too */
            scored.sampling.logprob = true;
            assert_int_equal(run_requests(e, &scored, 1, NULL, got, &err), WEFT_OK);
            assert_int_equal(got[0].status, WEFT_ERR_NUMERIC);
            for (int32_t p = 0; p < 40; p++)
                assert_int_equal(got[0].seen[p], p < 23);
            run_free(got, 1);
            for (int32_t i = 0; i < 3; i++) { /* every page of the pool changes hands */
                weft_request all[N] = {q[0], again, q[2]};
                assert_int_equal(run_requests(e, all, N, NULL, got, &err), WEFT_OK);
                run_assert_same("after a numeric error", oracle, got, N);
                run_free(got, N);
            }
            weft_engine_close(e);
        }
    run_free(oracle, N);
    weft_model_close(m);
}

/* Finite weights so large that the second layer overflows: every request ends with the error, none
 * with a token, and the engine takes the next. */
static void every_request_fails(void **state) {
    (void)state;
    toy_shape huge = base;
    huge.name = "huge weights";
    huge.poison = 0;
    huge.down = 1e38f;
    weft_model *m = toy_open(&huge);
    weft_request q[2] = {run_request(N_VOCAB, 5, 4, 1), run_request(N_VOCAB, 30, 4, 2)};
    q[1].sampling.temperature = 1;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        weft_engine_params params = run_params(sizes[s].tp, sizes[s].pcp, sizes[s].dcp);
        weft_engine *e = NULL;
        weft_error err = {0};
        assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_OK);
        for (int32_t round = 0; round < 2; round++) {
            run_answer got[2];
            assert_int_equal(run_requests(e, q, 2, NULL, got, &err), WEFT_OK);
            for (int32_t i = 0; i < 2; i++) {
                assert_int_equal(got[i].finish, WEFT_FINISH_ERROR);
                assert_int_equal(got[i].status, WEFT_ERR_NUMERIC);
                assert_int_equal(got[i].n_token, 0);
            }
            run_free(got, 2);
        }
        weft_engine_close(e);
    }
    weft_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_fails),
        cmocka_unit_test(every_request_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
