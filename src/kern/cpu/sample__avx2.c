/* The sampler's loops, AVX2: four numbers of 64 bits to a vector. The last numbers are done by the
 * scalar level. */
#include <immintrin.h>

#include "kern/cpu/sample.h"

static inline __m256d all(double x) {
    return _mm256_set1_pd(x);
}

/* p * r + c, in two roundings as exact_exp has them. */
static inline __m256d step(__m256d p, __m256d r, double c) {
    return _mm256_add_pd(_mm256_mul_pd(p, r), all(c));
}

/* 2^k, k in [-1022, 1023]. */
static inline __m256d power_of_two(__m128i k) {
    __m256i exponent = _mm256_add_epi64(_mm256_cvtepi32_epi64(k), _mm256_set1_epi64x(1023));
    return _mm256_castsi256_pd(_mm256_slli_epi64(exponent, 52));
}

/* exact_exp of y <= 0 or -infinity, operation by operation. Below -745.2 the result is 0; there y is
 * replaced, so that k fits. */
static inline __m256d exp_not_positive(__m256d y) {
    const __m256d least = all(-745.2);
    __m256d z = _mm256_max_pd(y, least);
    __m128i k =
        _mm256_cvttpd_epi32(_mm256_sub_pd(_mm256_mul_pd(z, all(0x1.71547652b82fep+0)), all(0.5)));
    __m256d kd = _mm256_cvtepi32_pd(k);
    __m256d hi = _mm256_sub_pd(z, _mm256_mul_pd(kd, all(EXACT_LN2_HI)));
    __m256d lo = _mm256_mul_pd(kd, all(EXACT_LN2_LO));
    __m256d r = _mm256_sub_pd(hi, lo), lost = _mm256_sub_pd(_mm256_sub_pd(hi, r), lo);
    __m256d p = all(1.0 / 6227020800.0);
    p = step(p, r, 1.0 / 479001600.0);
    p = step(p, r, 1.0 / 39916800.0);
    p = step(p, r, 1.0 / 3628800.0);
    p = step(p, r, 1.0 / 362880.0);
    p = step(p, r, 1.0 / 40320.0);
    p = step(p, r, 1.0 / 5040.0);
    p = step(p, r, 1.0 / 720.0);
    p = step(p, r, 1.0 / 120.0);
    p = step(p, r, 1.0 / 24.0);
    p = step(p, r, 1.0 / 6.0);
    p = step(p, r, 0.5);
    p = _mm256_add_pd(_mm256_mul_pd(p, _mm256_mul_pd(r, r)),
                      _mm256_add_pd(lost, _mm256_mul_pd(lost, r)));
    p = _mm256_add_pd(all(1.0), _mm256_add_pd(r, p));
    /* k / 2 towards zero, k <= 0 */
    __m128i half = _mm_srai_epi32(_mm_add_epi32(k, _mm_srli_epi32(k, 31)), 1);
    p = _mm256_mul_pd(_mm256_mul_pd(p, power_of_two(half)), power_of_two(_mm_sub_epi32(k, half)));
    return _mm256_andnot_pd(_mm256_cmp_pd(y, least, _CMP_LT_OQ), p);
}

void cpu_exp_below__avx2(const double *x, double most, int32_t n, double *out) {
    int32_t i = 0;
    for (; i + 4 <= n; i += 4)
        _mm256_storeu_pd(out + i,
                         exp_not_positive(_mm256_sub_pd(_mm256_loadu_pd(x + i), all(most))));
    cpu_exp_below__scalar(x + i, most, n - i, out + i);
}

/* The words of noise_philox in the low halves of 64 bits; what stands above them is never read. */
typedef struct words {
    __m256i c[4];
} words;

static inline void philox_round(words *w, __m256i k0, __m256i k1) {
    __m256i a = _mm256_mul_epu32(w->c[0], _mm256_set1_epi64x(0xD2511F53));
    __m256i b = _mm256_mul_epu32(w->c[2], _mm256_set1_epi64x(0xCD9E8D57));
    w->c[0] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), w->c[1]), k0);
    w->c[1] = b;
    w->c[2] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), w->c[3]), k1);
    w->c[3] = a;
}

static inline __m256i bits_of(const words *w) {
    __m256i low = _mm256_and_si256(w->c[0], _mm256_set1_epi64x(0xFFFFFFFF));
    __m256i u = _mm256_or_si256(_mm256_slli_epi64(w->c[1], 32), low);
    u = _mm256_slli_epi64(_mm256_srli_epi64(u, 12), 1);
    return _mm256_or_si256(u, _mm256_set1_epi64x(1));
}

enum { CHAINS = 3, AT_ONCE = 4 * CHAINS };

void cpu_noise__avx2(noise_row row, int32_t first, int32_t n, uint64_t *out) {
    int32_t i = 0;
    for (; i + AT_ONCE <= n; i += AT_ONCE) {
        words w[CHAINS];
        for (int32_t c = 0; c < CHAINS; c++) {
            __m128i id =
                _mm_add_epi32(_mm_set1_epi32(first + i + 4 * c), _mm_setr_epi32(0, 1, 2, 3));
            w[c] =
                (words){{_mm256_cvtepu32_epi64(id), _mm256_set1_epi64x((uint32_t)row.output_index),
                         _mm256_setzero_si256(), _mm256_setzero_si256()}};
        }
        uint32_t k0 = (uint32_t)row.seed, k1 = (uint32_t)(row.seed >> 32);
        for (int32_t round = 0; round < 10; round++) {
            __m256i v0 = _mm256_set1_epi64x(k0), v1 = _mm256_set1_epi64x(k1);
#pragma GCC unroll 3
            for (int32_t c = 0; c < CHAINS; c++)
                philox_round(&w[c], v0, v1);
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        for (int32_t c = 0; c < CHAINS; c++)
            _mm256_storeu_si256((__m256i *)(out + i + 4 * c), bits_of(&w[c]));
    }
    cpu_noise__scalar(row, first + i, n - i, out + i);
}
