/* The floating-point mode of the processor is a property of a thread, and client code may leave any
 * mode behind: before the engine is opened, and in its callbacks. No bit may depend on it, and a
 * client gets its own mode back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

enum {
    NORMAL = 0x1F80,
    ROUND_UP = 0x4000,
    FLUSH = 0x8040, /* FTZ and DAZ */
    MODE = 0xFFC0   /* without the sticky flags */
};
enum { N = 3 };

static const topo_sizes sizes[] = {{1, 1, 1}, {1, 2, 2}, {2, 2, 2}};
static const uint32_t modes[] = {NORMAL | ROUND_UP, NORMAL | FLUSH, NORMAL | ROUND_UP | FLUSH};
static uint32_t spoilt; /* what callbacks leave behind; written while no engine is open */

static void spoil_in_row(void *user, const weft_logits_row *row) {
    (void)user;
    (void)row;
    _mm_setcsr(spoilt);
}

static bool spoil_in_load(void *user, double done) {
    (void)user;
    (void)done;
    _mm_setcsr(spoilt);
    return true;
}

/* Short steps: single rows take the paths that do not wake a rank's helpers. */
static void any_mode_of_the_client(void **state) {
    (void)state;
    static const uint32_t type[] = {TOY_F32, TOY_Q8_0};
    for (size_t k = 0; k < sizeof type / sizeof *type; k++) {
        toy_shape shape = toy_gqa;
        shape.type = type[k];
        weft_model *m = toy_open(&shape);
        weft_request q[N];
        run_answer oracle[N];
        for (int32_t i = 0; i < N; i++) {
            q[i] = run_request(shape.n_vocab, 1 + 13 * i, 12, 7 + (uint64_t)i);
            q[i].sampling.logprob = true;
            q[i].sampling.temperature = i == 1 ? 0.9f : 0;
        }
        weft_engine_params params = run_params(1, 1, 1);
        run_oracle(m, &params, q, N, oracle);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (size_t j = 0; j < sizeof modes / sizeof *modes; j++) {
                params = run_params(sizes[i].tp, sizes[i].pcp, sizes[i].dcp);
                params.max_num_batched_tokens = 9;
                params.n_thread = i == 0 ? 3 : 1;
                spoilt = modes[j];
                _mm_setcsr(spoilt);
                run_check("mode before opening", m, &params, q, N, oracle);
                assert_int_equal(_mm_getcsr() & MODE, spoilt);
                _mm_setcsr(NORMAL);
                params.on_logits = spoil_in_row;
                params.on_load = spoil_in_load;
                run_check("mode left by callbacks", m, &params, q, N, oracle);
                _mm_setcsr(NORMAL);
            }
        run_free(oracle, N);
        weft_model_close(m);
    }
}
#endif

int main(void) {
#if defined(__x86_64__)
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_mode_of_the_client)};
    return cmocka_run_group_tests(tests, NULL, NULL);
#else
    return 77;
#endif
}
