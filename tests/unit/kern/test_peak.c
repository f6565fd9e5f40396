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

/* Chain c starts at c and takes 4 products of 3 and -2 a round in each lane of 32 bits. */
static uint32_t int8_expected(const cpu_peak_isa *isa, int32_t chains, int64_t n) {
    int32_t lanes = isa->int8_ops / chains / 8;
    uint32_t x = 0;
    for (int32_t c = 0; c < chains; c++)
        x ^= (uint32_t)(c - 24 * (int32_t)n);
    return x * (uint32_t)lanes;
}

static void check_level(const cpu_peak_isa *isa, int32_t chains) {
    for (int64_t n = 0; n < 100; n += 33)
        assert_int_equal(isa->int8(n), int8_expected(isa, chains, n));
    assert_int_equal(isa->fma(1000), isa->fma_ops); /* every lane of every chain ends at 2 */

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
    if (!cpu_isa_scalar.present())
        skip();
    check_level(&cpu_peak_scalar, 12);
}

static void test_loops_avx512vnni(void **state) {
    (void)state;
    if (!cpu_isa_avx512vnni.present())
        skip();
    check_level(&cpu_peak_avx512vnni, 16);
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
        cmocka_unit_test(test_loops_scalar),
        cmocka_unit_test(test_loops_avx512vnni),
        cmocka_unit_test(test_measure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
