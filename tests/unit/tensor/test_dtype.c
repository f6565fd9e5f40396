/* Conversions of src/tensor/dtype.h against independent arithmetic, the processor and the golden
 * blocks of gguf.quants. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tensor/dtype.h"

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static uint64_t random_state = 0x9e3779b97f4a7c15u;
static uint32_t random_u32(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static void test_names(void **state) {
    (void)state;
    static const struct {
        uint32_t type;
        const char *name;
        int32_t len, bytes;
    } known[] = {
        {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
        {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
        {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
        {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
        {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
        {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
        {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
        {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
        {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
        {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
        {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},
    };
    size_t k = 0;
    for (uint32_t type = 0; type < 300; type++) {
        int32_t len = -7;
        int32_t bytes = -7;
        const char *name = dtype_ggml_name(type, &len, &bytes);
        if (k < sizeof known / sizeof known[0] && known[k].type == type) {
            assert_non_null(name);
            assert_string_equal(name, known[k].name);
            assert_int_equal(len, known[k].len);
            assert_int_equal(bytes, known[k].bytes);
            assert_string_equal(dtype_ggml_name(type, NULL, NULL), known[k].name);
            k++;
        } else {
            assert_null(name);
            assert_int_equal(len, -7);
            assert_int_equal(bytes, -7);
        }
    }
    assert_int_equal(k, sizeof known / sizeof known[0]);
    assert_null(dtype_ggml_name(UINT32_MAX, NULL, NULL));
    assert_null(dtype_ggml_name(0x80000000u, NULL, NULL));
}

static void test_find(void **state) {
    (void)state;
    int32_t found = 0;
    for (uint32_t type = 0; type < 300; type++) {
        const dtype_info *info = dtype_find(type);
        if (!info) {
            continue;
        }
        found++;
        int32_t len;
        int32_t bytes;
        assert_string_equal(info->name, dtype_ggml_name(type, &len, &bytes));
        assert_int_equal(info->block_len, len);
        assert_int_equal(info->block_bytes, bytes);
        assert_int_equal(info->quantised, len > 1);
        assert_int_equal(dtype_bytes(info, (int64_t)len * 3000000000), (size_t)bytes * 3000000000u);
    }
    assert_int_equal(found, 16);
    assert_null(dtype_find(4));
    assert_null(dtype_find(9)); /* Q8_1 and Q8_K are never stored */
    assert_null(dtype_find(15));
    assert_null(dtype_find(16)); /* IQ2_XXS */
    assert_null(dtype_find(40)); /* NVFP4 */
    assert_null(dtype_find(UINT32_MAX));
}

/* The value by the definition, in double. */
static double f16_value(uint32_t h) {
    int32_t e = (int32_t)(h >> 10) & 31;
    double m = (double)(h & 0x3ff);
    double v = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    return h & 0x8000 ? -v : v;
}

static void test_f16_all(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = f16_to_f32((uint16_t)h);
        bool inf_nan = ((h >> 10) & 31) == 31;
        if (inf_nan && (h & 0x3ff)) {
            assert_true(isnan(f));
            assert_int_equal(bits_of(f) & 0x400000, 0x400000);
            assert_int_equal(f32_to_f16(f), h | 0x200);
            continue;
        }
        if (inf_nan) {
            assert_int_equal(bits_of(f), h & 0x8000 ? 0xff800000 : 0x7f800000);
        } else {
            assert_true((double)f == f16_value(h));
            assert_int_equal(bits_of(f) >> 31, h >> 15);
        }
        assert_int_equal(f32_to_f16(f), h);
    }
}

/* Between every two neighbours: the tie goes to the even one, a float beside it to the nearer. */
static void test_f16_ties(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double below = f16_value(h);
        double above = h + 1 == 0x7c00 ? 65536 : f16_value(h + 1);
        float tie = (float)((below + above) / 2);
        assert_true((double)tie == (below + above) / 2);
        uint32_t even = h & 1 ? h + 1 : h;
        uint32_t u = bits_of(tie);
        assert_int_equal(f32_to_f16(tie), even);
        assert_int_equal(f32_to_f16(-tie), even | 0x8000);
        assert_int_equal(f32_to_f16(float_of(u - 1)), h);
        assert_int_equal(f32_to_f16(float_of(u + 1)), h + 1);
        assert_int_equal(f32_to_f16(-float_of(u + 1)), (h + 1) | 0x8000);
    }
    assert_int_equal(f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(3e38f), 0x7c00);
    assert_int_equal(f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(f32_to_f16(0x1p-25f), 0);
    assert_int_equal(f32_to_f16(-0x1p-149f), 0x8000);
    assert_int_equal(f32_to_f16(float_of(0x7f800001)), 0x7e00); /* payload below the f16 bits */
    assert_int_equal(f32_to_f16(float_of(0xffffffff)), 0xffff);
}

#if defined(__x86_64__)
__attribute__((target("f16c"))) static uint16_t hardware_narrow(float f) {
    __m128i h = _mm_cvtps_ph(_mm_set_ss(f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (uint16_t)_mm_extract_epi16(h, 0);
}

__attribute__((target("f16c"))) static uint32_t hardware_widen(uint16_t h) {
    return (uint32_t)_mm_cvtsi128_si32(_mm_castps_si128(_mm_cvtph_ps(_mm_cvtsi32_si128(h))));
}

static void test_f16_hardware(void **state) {
    (void)state;
    if (!__builtin_cpu_supports("avx2")) { /* clang 14 does not know "f16c" here; avx2 implies it */
        skip();
    }
    for (uint32_t h = 0; h < 65536; h++) {
        assert_int_equal(bits_of(f16_to_f32((uint16_t)h)), hardware_widen((uint16_t)h));
    }
    for (int32_t i = 0; i < 2000000; i++) {
        uint32_t u = random_u32();
        if (i % 2) { /* the f16 range, where most bit patterns matter */
            u = (u & 0x807fffff) | (100 + (u >> 8) % 45) << 23;
        }
        if (f32_to_f16(float_of(u)) != hardware_narrow(float_of(u))) {
            fail_msg("f32 bits %08x: %04x, processor %04x", u, f32_to_f16(float_of(u)),
                     hardware_narrow(float_of(u)));
        }
    }
}
#else
static void test_f16_hardware(void **state) {
    (void)state;
    skip();
}
#endif

static void test_bf16(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = bf16_to_f32((uint16_t)h);
        assert_int_equal(bits_of(f), h << 16);
        bool nan = (h & 0x7fff) > 0x7f80;
        assert_int_equal(f32_to_bf16(f), nan ? h | 0x40 : h);
        if ((h & 0x7fff) < 0x7f80) {
            uint32_t even = h & 1 ? h + 1 : h;
            assert_int_equal(f32_to_bf16(float_of(h << 16 | 0x8000)), even);
            assert_int_equal(f32_to_bf16(float_of(h << 16 | 0x7fff)), h);
            assert_int_equal(f32_to_bf16(float_of(h << 16 | 0x8001)), h + 1);
        }
    }
    assert_int_equal(f32_to_bf16(float_of(0x7f7fffff)), 0x7f80); /* overflow */
    assert_int_equal(f32_to_bf16(float_of(0x7f800001)), 0x7fc0); /* NaN only in the low bits */
    assert_int_equal(f32_to_bf16(float_of(0xffffffff)), 0xffff);
}

/* ---- golden blocks: raw bytes and what gguf.quants makes of them ---- */

typedef struct golden {
    uint8_t *file;
    size_t bytes, body;
    json_t *header;
} golden;

static bool golden_open(golden *g) {
    FILE *f = fopen(WEFT_GOLDEN "/gguf/blocks.golden.safetensors", "rb");
    if (!f) {
        return false;
    }
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    g->bytes = (size_t)ftell(f);
    rewind(f);
    g->file = malloc(g->bytes);
    assert_int_equal(fread(g->file, 1, g->bytes, f), g->bytes);
    assert_int_equal(fclose(f), 0);
    uint64_t n;
    memcpy(&n, g->file, 8);
    assert_true(n < g->bytes - 8);
    g->body = 8 + (size_t)n;
    g->header = json_loadb((const char *)g->file + 8, (size_t)n, 0, NULL);
    assert_non_null(g->header);
    return true;
}

static const uint8_t *golden_find(const golden *g, const char *type, const char *what,
                                  size_t *bytes) {
    char name[64];
    snprintf(name, sizeof name, "%s.%s", type, what);
    json_t *range = json_object_get(json_object_get(g->header, name), "data_offsets");
    assert_int_equal(json_array_size(range), 2);
    size_t lo = (size_t)json_integer_value(json_array_get(range, 0));
    size_t hi = (size_t)json_integer_value(json_array_get(range, 1));
    assert_true(lo < hi && g->body + hi <= g->bytes);
    *bytes = hi - lo;
    return g->file + g->body + lo;
}

static void test_golden_blocks(void **state) {
    (void)state;
    golden g = {0};
    if (!golden_open(&g)) {
        skip();
    }
    /* The format's own types have the block size that the name table says. */
    for (uint32_t type = 0; type < 41; type++) {
        int32_t len;
        int32_t block;
        const char *name = dtype_ggml_name(type, &len, &block);
        if (!name || len == 1) {
            continue;
        }
        if (!strcmp(name, "Q8_1") || !strcmp(name, "Q8_K")) {
            continue; /* never stored in files */
        }
        size_t raw_bytes;
        size_t f32_bytes;
        (void)golden_find(&g, name, "raw", &raw_bytes);
        (void)golden_find(&g, name, "f32", &f32_bytes);
        assert_int_equal(raw_bytes * 4 * (size_t)len, f32_bytes * (size_t)block);
    }
    static const dtype types[] = {DTYPE_F16,  DTYPE_BF16, DTYPE_Q8_0,   DTYPE_Q4_0,   DTYPE_Q4_1,
                                  DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q2_K,   DTYPE_Q3_K,   DTYPE_Q4_K,
                                  DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        const dtype_info *info = dtype_find(types[k]);
        size_t raw_bytes;
        size_t f32_bytes;
        const uint8_t *raw = golden_find(&g, info->name, "raw", &raw_bytes);
        const uint8_t *want = golden_find(&g, info->name, "f32", &f32_bytes);
        int64_t n = (int64_t)f32_bytes / 4;
        assert_int_equal(dtype_bytes(info, n), raw_bytes);
        float *got = malloc(f32_bytes);
        dtype_to_f32(types[k], raw, n, got);
        for (int64_t i = 0; i < n; i++) {
            float w;
            memcpy(&w, want + 4 * i, 4);
            if (bits_of(got[i]) != bits_of(w)) {
                fail_msg("%s value %d: %08x, right %08x", info->name, (int)i, bits_of(got[i]),
                         bits_of(w));
            }
        }
        /* F32 is a copy. */
        float *copy = malloc(f32_bytes);
        dtype_to_f32(DTYPE_F32, want, n, copy);
        assert_memory_equal(copy, want, f32_bytes);
        free(copy);
        free(got);
    }
    json_decref(g.header);
    free(g.file);
}

/* Nibble order, sign and operation order where the goldens may not reach. */
static void test_block_edges(void **state) {
    (void)state;
    uint8_t q4_0[18] = {0x00, 0x38}; /* d = 0.5 */
    q4_0[2] = 0xf0;
    q4_0[17] = 0x8a;
    float out[32];
    dtype_to_f32(DTYPE_Q4_0, q4_0, 32, out);
    assert_true(out[0] == -4.0f && out[16] == 3.5f && out[15] == 1.0f && out[31] == 0.0f);

    uint8_t q4_1[20] = {0x00, 0x3c, 0x00, 0xc0}; /* d = 1, m = -2 */
    q4_1[4] = 0xf1;
    dtype_to_f32(DTYPE_Q4_1, q4_1, 32, out);
    assert_true(out[0] == -1.0f && out[16] == 13.0f && out[1] == -2.0f);

    uint8_t q8_0[34] = {0x01, 0x00, 0x80, 0x7f, 0xff}; /* d = 2^-24; -128, 127, -1 */
    dtype_to_f32(DTYPE_Q8_0, q8_0, 32, out);
    assert_true(out[0] == -0x1p-17f && out[1] == 127 * 0x1p-24f && out[2] == -0x1p-24f);

    dtype_to_f32(DTYPE_Q8_0, q8_0, 0, NULL); /* nothing to do */
}

int main(void) {
    FILE *f = fopen(WEFT_GOLDEN "/gguf/blocks.golden.safetensors", "rb");
    if (!f) {
        fprintf(stderr, "skipped: no golden blocks at %s\n", WEFT_GOLDEN);
        return 77;
    }
    fclose(f);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),         cmocka_unit_test(test_find),
        cmocka_unit_test(test_f16_all),       cmocka_unit_test(test_f16_ties),
        cmocka_unit_test(test_f16_hardware),  cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_golden_blocks), cmocka_unit_test(test_block_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
