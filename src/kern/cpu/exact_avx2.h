/* Vectors of 8 floats: exact_exp_neg and exact_silu of exact_math.h with the same operations in
 * the same order, so the same bits; the mask of a tail. */
#ifndef WEFT_KERN_CPU_EXACT_AVX2_H
#define WEFT_KERN_CPU_EXACT_AVX2_H

#include <immintrin.h>
#include <stdint.h>

/* Lanes of the vector at element j that lie before n, for maskload and maskstore; j may be past
 * n. */
static inline __m256i lanes8(int32_t j, int32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - j), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline __m256 exact_exp_neg8(__m256 x) {
    const __m256 magic = _mm256_set1_ps(12582912.0f);
    __m256 n =
        _mm256_sub_ps(_mm256_fmadd_ps(x, _mm256_set1_ps(1.44269504088896341f), magic), magic);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693145751953125f), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-1.42860682030941723e-6f), r);
    __m256 p = _mm256_set1_ps(1.38888889e-3f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.33333333e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.16666667e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.66666667e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shift));
    /* Lanes outside [-87.33, 0] hold nonsense up to here. */
    __m256 below = _mm256_cmp_ps(x, _mm256_set1_ps(-87.33f), _CMP_LT_OQ);
    __m256 above = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NLE_UQ);
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    p = _mm256_andnot_ps(below, p);
    p = _mm256_blendv_ps(p, _mm256_set1_ps(1.0f), above);
    return _mm256_blendv_ps(p, x, nan);
}

static inline __m256 exact_silu8(__m256 x) {
    __m256 negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1.0f);
    __m256 minus_abs = _mm256_xor_ps(x, _mm256_andnot_ps(negative, sign));
    __m256 e = exact_exp_neg8(minus_abs);
    __m256 top = _mm256_blendv_ps(one, e, negative);
    return _mm256_mul_ps(x, _mm256_div_ps(top, _mm256_add_ps(one, e)));
}

#endif
