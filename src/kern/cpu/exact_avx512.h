/* Vectors of 16 floats: exact_exp_neg and exact_silu of exact_math.h with the same operations in
 * the same order, so the same bits; the mask of a tail. */
#ifndef WEFT_KERN_CPU_EXACT_AVX512_H
#define WEFT_KERN_CPU_EXACT_AVX512_H

#include <immintrin.h>
#include <stdint.h>

/* Lanes of the vector at element j that lie before n. */
static inline __mmask16 lanes16(int32_t j, int32_t n) {
    uint32_t left = (uint32_t)(n - j);
    return _cvtu32_mask16(left >= 16 ? 0xFFFFu : (1u << left) - 1u);
}

static inline __m512 exact_exp_neg16(__m512 x) {
    const __m512 magic = _mm512_set1_ps(12582912.0f);
    __m512 n =
        _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(1.44269504088896341f), magic), magic);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693145751953125f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-1.42860682030941723e-6f), r);
    __m512 p = _mm512_set1_ps(1.38888889e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.33333333e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.16666667e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.66666667e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __m512i shift = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    p = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), shift));
    /* Lanes outside [-87.33, 0] hold nonsense up to here. */
    __mmask16 below = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.33f), _CMP_LT_OQ);
    __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLE_UQ);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    p = _mm512_mask_mov_ps(p, below, _mm512_setzero_ps());
    p = _mm512_mask_mov_ps(p, above, _mm512_set1_ps(1.0f));
    return _mm512_mask_mov_ps(p, nan, x);
}

static inline __m512 exact_silu16(__m512 x) {
    __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
    __m512 minus_abs = _mm512_mask_xor_ps(x, (__mmask16)~negative, x, sign);
    __m512 e = exact_exp_neg16(minus_abs);
    __m512 top = _mm512_mask_mov_ps(one, negative, e);
    return _mm512_mul_ps(x, _mm512_div_ps(top, _mm512_add_ps(one, e)));
}

#endif
