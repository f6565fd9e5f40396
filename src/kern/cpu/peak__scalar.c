/* Measuring loops for machines without AVX-512: what AVX and FMA give, which every level needs.
 * int8 dot products are 128 bits wide there (multiply-add of bytes, of words, and an addition). */
#include <immintrin.h>

#include "kern/cpu/peak_isa.h"

enum { CHAINS = 12, READ_BYTES = 512 };

static uint32_t fold(__m256i x) {
    uint32_t lane[8], sum = 0;
    _mm256_storeu_si256((__m256i *)lane, x);
    for (int i = 0; i < 8; i++)
        sum += lane[i];
    return sum;
}

static uint32_t int8_scalar(int64_t n_round) {
    __m128i acc[CHAINS], a = _mm_set1_epi8(3), b = _mm_set1_epi8(-2), one = _mm_set1_epi16(1);
    for (int c = 0; c < CHAINS; c++)
        acc[c] = _mm_set1_epi32(c);
    for (int64_t i = 0; i < n_round; i++) {
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) {
            __asm__ volatile("" : "+x"(a)); /* the same products must be made again */
            acc[c] = _mm_add_epi32(acc[c], _mm_madd_epi16(_mm_maddubs_epi16(a, b), one));
        }
    }
    for (int c = 1; c < CHAINS; c++)
        acc[0] = _mm_xor_si128(acc[0], acc[c]);
    return fold(_mm256_insertf128_si256(_mm256_setzero_si256(), acc[0], 0));
}

/* x = x / 2 + 1 stays near 2: no denormal slows it. */
static uint32_t fma_scalar(int64_t n_round) {
    __m256 acc[CHAINS], half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
    for (int c = 0; c < CHAINS; c++)
        acc[c] = _mm256_set1_ps((float)c);
    for (int64_t i = 0; i < n_round; i++) {
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            acc[c] = _mm256_fmadd_ps(acc[c], half, one);
    }
    for (int c = 1; c < CHAINS; c++)
        acc[0] = _mm256_add_ps(acc[0], acc[c]);
    float lane[8], sum = 0;
    _mm256_storeu_ps(lane, acc[0]);
    for (int i = 0; i < 8; i++)
        sum += lane[i];
    return (uint32_t)sum;
}

static uint32_t read_scalar(const uint8_t *from, size_t bytes) {
    __m256 acc[8];
    for (int c = 0; c < 8; c++)
        acc[c] = _mm256_setzero_ps();
    for (const uint8_t *end = from + bytes; from < end; from += READ_BYTES) {
#pragma GCC unroll 16
        for (int c = 0; c < READ_BYTES / 32; c++)
            acc[c % 8] = _mm256_xor_ps(acc[c % 8], _mm256_loadu_ps((const float *)from + c * 8));
    }
    for (int c = 1; c < 8; c++)
        acc[0] = _mm256_xor_ps(acc[0], acc[c]);
    return fold(_mm256_castps_si256(acc[0]));
}

const cpu_peak_isa cpu_peak_scalar = {
    .int8_ops = CHAINS * 16 * 2,
    .fma_ops = CHAINS * 8 * 2,
    .int8 = int8_scalar,
    .fma = fma_scalar,
    .read = read_scalar,
};
