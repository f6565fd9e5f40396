/* The words of vec_avx2.h in 16 lanes, AVX-512 (F, BW, VL, DQ). */
#ifndef WEFT_KERN_CPU_VEC_AVX512_H
#define WEFT_KERN_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VEC_INLINE static inline __attribute__((always_inline))

enum { VEC_LANES = 16 };
typedef __m512 vec;
typedef __mmask16 vec_mask;

VEC_INLINE vec vec_zero(void) {
    return _mm512_setzero_ps();
}
VEC_INLINE vec vec_set(float x) {
    return _mm512_set1_ps(x);
}
VEC_INLINE vec vec_broadcast(const float *at) {
    return _mm512_set1_ps(*at);
}
VEC_INLINE vec vec_load(const float *at) {
    return _mm512_loadu_ps(at);
}
VEC_INLINE void vec_store(float *at, vec x) {
    _mm512_storeu_ps(at, x);
}
VEC_INLINE __mmask16 vec_first_lanes(int32_t n) {
    return (__mmask16)(n >= VEC_LANES ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}
/* The first n of the lanes, zeros behind; n <= 0: none, n >= VEC_LANES: all. */
VEC_INLINE vec vec_first(const float *at, int32_t n) {
    return _mm512_maskz_loadu_ps(vec_first_lanes(n), at);
}
VEC_INLINE void vec_put_first(float *at, int32_t n, vec x) {
    _mm512_mask_storeu_ps(at, vec_first_lanes(n), x);
}

VEC_INLINE vec vec_add(vec a, vec b) {
    return _mm512_add_ps(a, b);
}
VEC_INLINE vec vec_sub(vec a, vec b) {
    return _mm512_sub_ps(a, b);
}
VEC_INLINE vec vec_mul(vec a, vec b) {
    return _mm512_mul_ps(a, b);
}
VEC_INLINE vec vec_div(vec a, vec b) {
    return _mm512_div_ps(a, b);
}
VEC_INLINE vec vec_fma(vec a, vec b, vec c) {
    return _mm512_fmadd_ps(a, b, c);
}
VEC_INLINE vec vec_max(vec a, vec b) {
    return _mm512_max_ps(a, b);
}
VEC_INLINE vec vec_min(vec a, vec b) {
    return _mm512_min_ps(a, b);
}

VEC_INLINE vec_mask vec_less(vec a, vec b) { /* false where one is a NaN */
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
VEC_INLINE vec_mask vec_equal(vec a, vec b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
VEC_INLINE vec_mask vec_is_nan(vec a) {
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
/* Lanes i with at[i] > x. */
VEC_INLINE vec_mask vec_int_above(const int32_t *at, int32_t x) {
    return _mm512_cmp_epi32_mask(_mm512_loadu_si512(at), _mm512_set1_epi32(x), _MM_CMPINT_NLE);
}
/* Lanes i with lo <= at[i] < hi. */
VEC_INLINE vec_mask vec_between(const int32_t *at, int32_t lo, int32_t hi) {
    return (vec_mask)(vec_int_above(at, lo - 1) & ~vec_int_above(at, hi - 1));
}
/* Lanes i where [lo[i], hi[i]) holds one of first .. last. */
VEC_INLINE vec_mask vec_meet(const int32_t *lo, const int32_t *hi, int32_t first, int32_t last) {
    return (vec_mask)(vec_int_above(hi, first) & ~vec_int_above(lo, last));
}
VEC_INLINE vec_mask vec_is_minus_zero(vec a) {
    return _mm512_cmp_epi32_mask(_mm512_castps_si512(a), _mm512_set1_epi32(INT32_MIN),
                                 _MM_CMPINT_EQ);
}
VEC_INLINE bool vec_any(vec_mask m) {
    return m != 0;
}
VEC_INLINE vec vec_select(vec_mask m, vec yes, vec no) {
    return _mm512_mask_mov_ps(no, m, yes);
}
/* +0 in the lanes of m. */
VEC_INLINE vec vec_clear(vec_mask m, vec x) {
    return _mm512_mask_mov_ps(x, m, _mm512_setzero_ps());
}
VEC_INLINE vec vec_negate(vec x) {
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}

/* x 2^n for a normal result, n = k - 0x4B400000 for the bits k of `magic_sum` = 1.5 * 2^23 + n: the
 * shift drops all of k but n's low bits. */
VEC_INLINE vec vec_scale_exponent(vec x, vec magic_sum) {
    __m512i shift = _mm512_slli_epi32(_mm512_castps_si512(magic_sum), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), shift));
}

/* VEC_LANES half floats, or one of each pair of bf16. */
VEC_INLINE vec vec_f16(const uint8_t *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
VEC_INLINE vec vec_bf16(const uint8_t *at, bool odd) {
    __m512i pairs = _mm512_loadu_si512(at);
    return _mm512_castsi512_ps(odd ? _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u))
                                   : _mm512_slli_epi32(pairs, 16));
}

/* Rounded to nearest even; out: VEC_LANES half words. */
VEC_INLINE void vec_put_f16(uint8_t *out, vec x) {
    __m256i h = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)(void *)out, h);
}
VEC_INLINE void vec_put_bf16(uint8_t *out, vec x) {
    __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    __m512i half =
        _mm512_add_epi32(_mm512_and_si512(high, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
    __m512i y = _mm512_srli_epi32(_mm512_add_epi32(u, half), 16);
    __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    y = _mm512_mask_mov_epi32(y, vec_is_nan(x), quiet);
    _mm256_storeu_si256((__m256i *)(void *)out, _mm512_cvtepi32_epi16(y));
}

/* (x0 c - x1 s, x0 s + x1 c) of each pair: even lanes x0, c; odd lanes x1, s. */
VEC_INLINE vec vec_rotate_pairs(vec x, vec cs) {
    vec x1 = _mm512_mul_ps(_mm512_movehdup_ps(x), _mm512_permute_ps(cs, 0xb1));
    return _mm512_fmaddsub_ps(_mm512_moveldup_ps(x), cs, x1);
}

/* The fold of 16 (lane j with j + 8, then + 4, + 2, + 1) of four rows at once; the rows' results
 * in the four lanes. Each shuffle brings lane j of two rows into one vector and lane j + step into
 * another:
 *   step 8: v0 = [a b | c d], v1 = [e f | g h] (128-bit parts): [a b e f] op [c d g h]
 *   step 4: [A B C D], [E F G H]: [A C E G] op [B D F H], after which each part is one row. */
VEC_INLINE __m512 vec_fold_op(bool add, __m512 a, __m512 b) {
    return add ? _mm512_add_ps(a, b) : _mm512_max_ps(a, b);
}
VEC_INLINE __m128 vec_fold_rows(bool add, vec v[4][16 / VEC_LANES]) {
    __m512 ab = vec_fold_op(add, _mm512_shuffle_f32x4(v[0][0], v[1][0], 0x44),
                            _mm512_shuffle_f32x4(v[0][0], v[1][0], 0xee));
    __m512 cd = vec_fold_op(add, _mm512_shuffle_f32x4(v[2][0], v[3][0], 0x44),
                            _mm512_shuffle_f32x4(v[2][0], v[3][0], 0xee));
    __m512 x =
        vec_fold_op(add, _mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    x = vec_fold_op(add, x, _mm512_permute_ps(x, 0x0e));
    x = vec_fold_op(add, x, _mm512_permute_ps(x, 0x01));
    const __m512i first = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, x));
}
VEC_INLINE vec vec_of_4(__m128 x) { /* zeros behind */
    return _mm512_zextps128_ps512(x);
}
VEC_INLINE vec vec_of_4_and_4(__m128 low, __m128 high) {
    return _mm512_zextps256_ps512(_mm256_set_m128(high, low));
}
VEC_INLINE __m128 vec_first_4(vec x) {
    return _mm512_castps512_ps128(x);
}

#endif
