/* The sampler's loops on every level: the bits of exact_exp and of noise_bits, at every length. */
#include <math.h>

#include "kern_case.h"

enum { MOST = 50 };

static const char *const names[] = {"scalar", "avx2", "avx512", "avx512vnni"};

static const kern_table *table_at(int32_t i) {
    const kern_table *k = NULL;
    for (size_t j = 0; j < sizeof names / sizeof *names; j++)
        if (kern_cpu_table(names[j], &k, NULL) == WEFT_OK && i-- == 0)
            return k;
    fail_msg("no such level");
    return NULL;
}

static void check_exp(const double *x, double most, int32_t n) {
    for (int32_t i = 0; i < isa_count(); i++) {
        double got[MOST + 1];
        got[n] = 7;
        table_at(i)->exp_below(x, most, n, got);
        for (int32_t j = 0; j < n; j++) {
            double want = exact_exp(x[j] - most);
            assert_memory_equal(&got[j], &want, sizeof want);
        }
        assert_true(got[n] == 7);
    }
}

static void exp_bits(void **state) {
    (void)state;
    const double edges[] = {0,
                            -0.0,
                            -HUGE_VAL,
                            -745.2,
                            nextafter(-745.2, 0),
                            nextafter(-745.2, -800),
                            -745.1,
                            -708.4,
                            -1e300,
                            -1e-300,
                            -0.34657,
                            -0.34658,
                            -1.0,
                            -1.0397,
                            -1.0398,
                            -700};
    const int32_t n_edge = sizeof edges / sizeof *edges;
    check_exp(edges, 0, n_edge);
    double x[MOST];
    uint64_t random = 5;
    for (int32_t turn = 0; turn < 2000; turn++) {
        double most = turn % 3 ? 0 : (double)(turn % 91) - 30, wide = turn % 2 ? 40 : 760;
        int32_t n = turn % (MOST + 1);
        for (int32_t i = 0; i < n; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            x[i] = most - wide * (double)(random >> 11) * 0x1p-53;
        }
        if (n > 0 && turn % 5 == 0)
            x[turn % n] = edges[turn % n_edge] + most;
        check_exp(x, most, n);
    }
}

static void noise_words(void **state) {
    (void)state;
    const uint64_t seeds[] = {0, 1, UINT64_MAX, 0x123456789ABCDEF0u};
    const int32_t firsts[] = {0, 1, 15, 49000, INT32_MAX - MOST};
    for (int32_t isa = 0; isa < isa_count(); isa++)
        for (int32_t n = 0; n <= MOST; n++) {
            noise_row row = {.seed = seeds[n % 4], .output_index = n % 3 ? n * 77777 : INT32_MAX};
            int32_t first = firsts[n % 5];
            uint64_t got[MOST + 1];
            got[n] = 7;
            table_at(isa)->noise(row, first, n, got);
            for (int32_t i = 0; i < n; i++)
                assert_true(got[i] == noise_bits(row, first + i));
            assert_true(got[n] == 7);
        }
}

int main(void) {
    isa_print_absent();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_bits),
        cmocka_unit_test(noise_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
