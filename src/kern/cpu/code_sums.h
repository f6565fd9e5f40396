/* The four sums of a block of codes (kern.h), with AVX2, which the AVX-512 levels have too. */
#ifndef WEFT_KERN_CPU_CODE_SUMS_H
#define WEFT_KERN_CPU_CODE_SUMS_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* Pairs of codes as int16, then the four dwords of each half; returns the sum of all. */
static inline int32_t code_sums_store(int16_t *sum, __m256i codes) {
    __m256i s = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);
    s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0x4E));
    s = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0xB1));
    int32_t half[2] = {_mm_cvtsi128_si32(_mm256_castsi256_si128(s)),
                       _mm_cvtsi128_si32(_mm256_extracti128_si256(s, 1))};
    memcpy(sum, half, sizeof half);
    return sum[0] + sum[1] + sum[2] + sum[3];
}

#endif
