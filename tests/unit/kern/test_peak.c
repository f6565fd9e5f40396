/* Measuring loops do the work that they are counted for, on every level; figures are numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "kern/cpu/cpu.h"
#include "kern/cpu/peak_isa.h"
#include "kern/peak.h"

/* Chain c starts at c in each of its lanes of 32 bits and adds products of 3 and -2. */
static void check_dot(const cpu_peak_loop *dot, int32_t chains, int32_t lanes) {
    int32_t products = dot->ops / 2 / lanes; /* of a lane in all chains */
    for (int64_t n = 0; n < 100; n += 33) {
        int64_t sum = chains * (chains - 1) / 2 - 6 * products * n;
        assert_int_equal(dot->run(n), (uint32_t)(sum * lanes));
    }
}

static void check_level(const cpu_peak_isa *isa) {
    const cpu_peak_loop *fma = &isa->loop[KERN_PEAK_FMA];
    assert_int_equal(fma->run(1000), fma->ops); /* every lane of every chain ends at 2 */

    enum { BYTES = 512 * 5 };
    uint8_t *x = aligned_alloc(64, BYTES);
    assert_non_null(x);
    memset(x, 0, BYTES);
    assert_int_equal(isa->read(x, BYTES), 0);
    for (size_t at = 0; at < BYTES; at += 4) { /* no word is left out */
        uint32_t word = 0x01020300u + (uint32_t)at, zero = 0;
        memcpy(x + at, &word, 4);
        assert_int_equal(isa->read(x, BYTES), word);
        memcpy(x + at, &zero, 4);
    }
    free(x);
}

static void test_loops_scalar(void **state) {
    (void)state;
    if (!cpu_has_scalar())
        skip();
    const cpu_peak_isa *isa = &cpu_peak_scalar;
    check_dot(&isa->loop[KERN_PEAK_DOT4], 2, 4);
    check_dot(&isa->loop[KERN_PEAK_DOT8], 6, 4);
    check_level(isa);
}

static void test_loops_avx2(void **state) {
    (void)state;
    if (!cpu_has_avx2())
        skip();
    const cpu_peak_isa *isa = &cpu_peak_avx2;
    check_dot(&isa->loop[KERN_PEAK_DOT4], 2, 8);
    check_dot(&isa->loop[KERN_PEAK_DOT8], 6, 8);
    check_level(isa);
}

static void test_loops_avx512(void **state) {
    (void)state;
    if (!cpu_has_avx512())
        skip();
    const cpu_peak_isa *isa = &cpu_peak_avx512;
    check_dot(&isa->loop[KERN_PEAK_DOT4], 2, 16);
    check_dot(&isa->loop[KERN_PEAK_DOT8], 6, 16);
    check_level(isa);
}

static void test_loops_avx512vnni(void **state) {
    (void)state;
    if (!cpu_has_avx512vnni())
        skip();
    const cpu_peak_isa *isa = &cpu_peak_avx512vnni;
    check_dot(&isa->loop[KERN_PEAK_DOT4], 16, 16);
    check_dot(&isa->loop[KERN_PEAK_DOT8], 16, 16);
    check_level(isa);
}

static void test_measure(void **state) {
    (void)state;
    for (int32_t n_thread = 1; n_thread <= 3; n_thread += 2) {
        kern_peaks *p = NULL;
        weft_error err = {0};
        assert_int_equal(kern_cpu_peaks_open(n_thread, &p, &err), WEFT_OK);
        for (int32_t which = 0; which < KERN_N_PEAK; which++)
            assert_true(kern_peaks_measure(p, (kern_peak)which) > 0);
        kern_peaks_evict(p);
        kern_peaks_close(p);
    }
    kern_peaks_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loops_scalar), cmocka_unit_test(test_loops_avx2),
        cmocka_unit_test(test_loops_avx512), cmocka_unit_test(test_loops_avx512vnni),
        cmocka_unit_test(test_measure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
