/* Measuring loops on 512-bit registers. Sixteen chains: more than latency times ports of any
 * machine that has the level. */
#include <immintrin.h>

#include "kern/cpu/peak_isa.h"

enum { CHAINS = 16, READ_BYTES = 512 };

static uint32_t int8_avx512vnni(int64_t n_round) {
    __m512i acc[CHAINS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-2);
    for (int c = 0; c < CHAINS; c++)
        acc[c] = _mm512_set1_epi32(c);
    for (int64_t i = 0; i < n_round; i++) {
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; c++)
            acc[c] = _mm512_dpbusd_epi32(acc[c], a, b);
    }
    for (int c = 1; c < CHAINS; c++)
        acc[0] = _mm512_xor_si512(acc[0], acc[c]);
    return (uint32_t)_mm512_reduce_add_epi32(acc[0]);
}

/* x = x / 2 + 1 stays near 2: no denormal slows it. */
static uint32_t fma_avx512vnni(int64_t n_round) {
    __m512 acc[CHAINS], half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
    for (int c = 0; c < CHAINS; c++)
        acc[c] = _mm512_set1_ps((float)c);
    for (int64_t i = 0; i < n_round; i++) {
#pragma GCC unroll 16
        for (int c = 0; c < CHAINS; c++)
            acc[c] = _mm512_fmadd_ps(acc[c], half, one);
    }
    for (int c = 1; c < CHAINS; c++)
        acc[0] = _mm512_add_ps(acc[0], acc[c]);
    return (uint32_t)_mm512_reduce_add_ps(acc[0]);
}

static uint32_t read_avx512vnni(const uint8_t *from, size_t bytes) {
    __m512i acc[READ_BYTES / 64];
    for (int c = 0; c < READ_BYTES / 64; c++)
        acc[c] = _mm512_setzero_si512();
    for (const uint8_t *end = from + bytes; from < end; from += READ_BYTES) {
#pragma GCC unroll 8
        for (int c = 0; c < READ_BYTES / 64; c++) {
            _mm_prefetch((const char *)from + 4096 + c * 64, _MM_HINT_T0);
            acc[c] = _mm512_xor_si512(acc[c], _mm512_loadu_si512(from + c * 64));
        }
    }
    for (int c = 1; c < READ_BYTES / 64; c++)
        acc[0] = _mm512_xor_si512(acc[0], acc[c]);
    return (uint32_t)_mm512_reduce_add_epi32(acc[0]);
}

const cpu_peak_isa cpu_peak_avx512vnni = {
    .int8_ops = CHAINS * 64 * 2,
    .fma_ops = CHAINS * 16 * 2,
    .int8 = int8_avx512vnni,
    .fma = fma_avx512vnni,
    .read = read_avx512vnni,
};
