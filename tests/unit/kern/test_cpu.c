/* The CPU table: choice of a level, memory, devices. */
#include <errno.h>

#include "kern_case.h"

static void levels(void **state) {
    (void)state;
    const kern_table *best = NULL, *t = NULL;
    assert_int_equal(kern_cpu_table(NULL, &best, NULL), WEFT_OK);
    assert_int_equal(kern_cpu_table("auto", &t, NULL), WEFT_OK);
    assert_ptr_equal(t, best);
    assert_string_equal(best->isa, isa_at(isa_count() - 1)->name);
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        t = table_of(isa);
        assert_string_equal(t->device, "cpu");
        assert_string_equal(t->isa, isa_at(isa)->name);
        assert_string_equal(t->profile.name, "exact");
        assert_int_equal(t->profile.page_tokens, 16);
        assert_int_equal(t->profile.kv_shards, 16);
        assert_int_equal(t->profile.max_leaves, 16);
        assert_int_equal(t->profile.leaf_multiple, 32);
        assert_int_equal(t->profile.panel, 16);
    }
}

static void unknown_levels(void **state) {
    (void)state;
    static const char *const names[] = {"",       "avx",         "AVX2",    "avx2 ",
                                        "Scalar", "avx512vnni ", "avx5122", "scalarx"};
    for (int32_t i = 0; i < 8; i++) {
        const kern_table *t = NULL;
        weft_error err;
        assert_int_equal(kern_cpu_table(names[i], &t, &err), WEFT_ERR_SETUP);
        assert_null(t);
        assert_int_equal(err.status, WEFT_ERR_SETUP);
        char quoted[32];
        snprintf(quoted, sizeof quoted, "\"%s\"", names[i]);
        assert_non_null(strstr(err.text, quoted));
        assert_non_null(strstr(err.text, "for: avx512vnni, avx512, avx2, scalar"));
        assert_non_null(strstr(err.text, isa_at(isa_count() - 1)->name));
        assert_int_equal(kern_cpu_table(names[i], &t, NULL), WEFT_ERR_SETUP);
    }
}

/* A known level that this machine lacks is refused in other words than an unknown one. */
static void absent_levels(void **state) {
    (void)state;
    for (int32_t i = 0; i < N_ISA; i++) {
        const kern_table *t = NULL;
        weft_error err;
        weft_status want = all_isas[i]->present() ? WEFT_OK : WEFT_ERR_SETUP;
        assert_int_equal(kern_cpu_table(all_isas[i]->name, &t, &err), want);
        if (want != WEFT_OK)
            assert_non_null(strstr(err.text, "is not on this machine"));
    }
}

/* WEFT_ISA decides only where the caller names no level. */
static void environment(void **state) {
    (void)state;
    const kern_table *best = NULL, *t = NULL;
    weft_error err;
    assert_int_equal(kern_cpu_table("auto", &best, NULL), WEFT_OK);
    setenv("WEFT_ISA", "scalar", 1);
    assert_int_equal(kern_cpu_table(NULL, &t, NULL), WEFT_OK);
    assert_string_equal(t->isa, "scalar");
    assert_int_equal(kern_cpu_table("auto", &t, NULL), WEFT_OK);
    assert_ptr_equal(t, best);
    assert_int_equal(kern_cpu_table(best->isa, &t, NULL), WEFT_OK);
    assert_ptr_equal(t, best);
    setenv("WEFT_ISA", "sse9", 1);
    assert_int_equal(kern_cpu_table(NULL, &t, &err), WEFT_ERR_SETUP);
    assert_non_null(strstr(err.text, "\"sse9\" (from WEFT_ISA) is unknown"));
    setenv("WEFT_ISA", "", 1);
    assert_int_equal(kern_cpu_table(NULL, &t, NULL), WEFT_OK);
    assert_ptr_equal(t, best);
}

static void reservations(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 64, 65, 4095, (4u << 20) - 1, 4u << 20, 5000001, 9u << 20};
    const kern_table *t = table_of(0);
#ifdef WEFT_DEBUG
    const uint8_t fill = 0xFF;
#else
    const uint8_t fill = 0;
#endif
    for (int32_t i = 0; i < 9; i++) {
        kern_mem m = {0};
        weft_error err;
        assert_int_equal(t->reserve(sizes[i], &m, &err), WEFT_OK);
        assert_int_not_equal(m.at, 0);
        assert_int_equal(m.at % (sizes[i] >= 4u << 20 ? 2u << 20 : 64), 0);
        uint8_t *p = (uint8_t *)m.at;
        for (size_t j = 0; j < sizes[i]; j++)
            if (p[j] != fill)
                fail_msg("byte %zu of %zu is %d", j, sizes[i], p[j]);
        memset(p, 1, sizes[i]);
        t->release(m, sizes[i]);
    }
    t->release((kern_mem){0}, 0);
    t->release((kern_mem){0}, 9u << 20);
}

static void impossible_reservations(void **state) {
    (void)state;
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 100, SIZE_MAX / 2, (size_t)1 << 60};
    const kern_table *t = table_of(0);
    for (int32_t i = 0; i < 4; i++) {
        kern_mem m = {77};
        weft_error err;
        assert_int_equal(t->reserve(sizes[i], &m, &err), WEFT_ERR_MEMORY);
        assert_int_equal(m.at, 77);
        char digits[32];
        snprintf(digits, sizeof digits, "%zu", sizes[i]);
        assert_non_null(strstr(err.text, digits));
        assert_int_equal(t->reserve(sizes[i], &m, NULL), WEFT_ERR_MEMORY);
    }
}

static void copies(void **state) {
    (void)state;
    const kern_table *t = table_of(isa_count() - 1);
    kern_dev *dev = dev_open(t, 1);
    buf m = buf_take(100);
    uint8_t from[100], to[100];
    for (int32_t i = 0; i < 100; i++)
        from[i] = (uint8_t)rng_next();
    t->upload(dev, m.mem, from, 100);
    t->fill(dev, kern_at(m.mem, 10), 7, 5);
    t->download(dev, to, m.mem, 100);
    t->drain(dev);
    memset(from + 10, 7, 5);
    assert_memory_equal(to, from, 100);
    t->upload(dev, m.mem, NULL, 0);
    t->download(dev, NULL, m.mem, 0);
    t->fill(dev, m.mem, 9, 0);
    assert_memory_equal(buf_at(m), from, 100);
    buf_free(m);
    t->close(dev);
}

static void devices(void **state) {
    (void)state;
    const kern_limits limits = {64, 1536, 64, 8}, wide = {64, 65536, 64, 8};
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        const kern_table *t = table_of(isa);
        size_t one = t->scratch_bytes(1, &limits);
        assert_true(one > 0 && one % 64 == 0);
        assert_int_equal(t->scratch_bytes(3, &limits), 3 * one);
        assert_true(t->scratch_bytes(1, &wide) > one);
        kern_dev *dev = (kern_dev *)&limits;
        weft_error err;
        assert_int_equal(t->open(0, &limits, &dev, &err), WEFT_ERR_SETUP);
        assert_ptr_equal(dev, &limits);
        t->close(NULL);
    }
}

int main(void) {
    unsetenv("WEFT_ISA");
    isa_print_absent();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels),        cmocka_unit_test(unknown_levels),
        cmocka_unit_test(absent_levels), cmocka_unit_test(environment),
        cmocka_unit_test(reservations),  cmocka_unit_test(impossible_reservations),
        cmocka_unit_test(copies),        cmocka_unit_test(devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
