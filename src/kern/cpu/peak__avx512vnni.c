/* Measuring loops on 512-bit registers, with VNNI. */
#include <immintrin.h>

#define I(op) _mm512_##op
#define F(op) _mm512_##op
typedef __m512i ints;
typedef __m512 floats;
enum { FMA_CHAINS = 16 };

#include "kern/cpu/peak_loops.h"

/* VPDPBUSD adds four products of bytes in one instruction, whatever the codes. */
enum { DOT_CHAINS = 16, DOT_OPS = DOT_CHAINS * LANES * 4 * 2 };

static uint32_t loop_dot(int64_t n_round) {
    __m512i acc[DOT_CHAINS], w = _mm512_set1_epi8(3), q = _mm512_set1_epi8(-2);
    for (int c = 0; c < DOT_CHAINS; c++)
        acc[c] = _mm512_set1_epi32(c);
    for (int64_t i = 0; i < n_round; i++) {
#pragma GCC unroll 16
        for (int c = 0; c < DOT_CHAINS; c++)
            acc[c] = _mm512_dpbusd_epi32(acc[c], w, q);
    }
    return lanes_sum(acc, sizeof acc);
}

const cpu_peak_isa cpu_peak_avx512vnni = {
    .loop = {[KERN_PEAK_DOT4] = {DOT_OPS, loop_dot},
             [KERN_PEAK_DOT8] = {DOT_OPS, loop_dot},
             [KERN_PEAK_FMA] = {FMA_OPS, loop_fma}},
    .read = loop_read,
};
