/* The words in which kernels are written once for every width: a vector of floats, a mask of its
 * lanes, and the operations on them. This file: 8 lanes, AVX2; vec_avx512.h has 16. A kernel
 * includes one of them and then its shared source.
 *
 * max and min are those of x86, first argument first: max(a, b) = a > b ? a : b. A mask lane is all
 * ones or all zeros. vec_first and vec_put_first touch the first n floats only. */
#ifndef WEFT_KERN_CPU_VEC_AVX2_H
#define WEFT_KERN_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VEC_INLINE static inline __attribute__((always_inline))

enum { VEC_LANES = 8 };
typedef __m256 vec;
typedef __m256 vec_mask;

VEC_INLINE vec vec_zero(void) {
    return _mm256_setzero_ps();
}
VEC_INLINE vec vec_set(float x) {
    return _mm256_set1_ps(x);
}
VEC_INLINE vec vec_broadcast(const float *at) {
    return _mm256_broadcast_ss(at);
}
VEC_INLINE vec vec_load(const float *at) {
    return _mm256_loadu_ps(at);
}
VEC_INLINE void vec_store(float *at, vec x) {
    _mm256_storeu_ps(at, x);
}
VEC_INLINE __m256i vec_first_lanes(int32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
/* The first n of the lanes, zeros behind; n <= 0: none, n >= VEC_LANES: all. */
VEC_INLINE vec vec_first(const float *at, int32_t n) {
    return n >= VEC_LANES ? vec_load(at) : _mm256_maskload_ps(at, vec_first_lanes(n));
}
VEC_INLINE void vec_put_first(float *at, int32_t n, vec x) {
    if (n >= VEC_LANES)
        vec_store(at, x);
    else
        _mm256_maskstore_ps(at, vec_first_lanes(n), x);
}

VEC_INLINE vec vec_add(vec a, vec b) {
    return _mm256_add_ps(a, b);
}
VEC_INLINE vec vec_sub(vec a, vec b) {
    return _mm256_sub_ps(a, b);
}
VEC_INLINE vec vec_mul(vec a, vec b) {
    return _mm256_mul_ps(a, b);
}
VEC_INLINE vec vec_div(vec a, vec b) {
    return _mm256_div_ps(a, b);
}
VEC_INLINE vec vec_fma(vec a, vec b, vec c) {
    return _mm256_fmadd_ps(a, b, c);
}
VEC_INLINE vec vec_max(vec a, vec b) {
    return _mm256_max_ps(a, b);
}
VEC_INLINE vec vec_min(vec a, vec b) {
    return _mm256_min_ps(a, b);
}

VEC_INLINE vec_mask vec_less(vec a, vec b) { /* false where one is a NaN */
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
VEC_INLINE vec_mask vec_equal(vec a, vec b) {
    return _mm256_cmp_ps(a, b, _CMP_EQ_OQ);
}
VEC_INLINE vec_mask vec_is_nan(vec a) {
    return _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
}
/* Lanes i with at[i] > x. */
VEC_INLINE vec_mask vec_int_above(const int32_t *at, int32_t x) {
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)at);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(v, _mm256_set1_epi32(x)));
}
/* Lanes i with lo <= at[i] < hi. */
VEC_INLINE vec_mask vec_between(const int32_t *at, int32_t lo, int32_t hi) {
    return _mm256_andnot_ps(vec_int_above(at, hi - 1), vec_int_above(at, lo - 1));
}
/* Lanes i where [lo[i], hi[i]) holds one of first .. last. */
VEC_INLINE vec_mask vec_meet(const int32_t *lo, const int32_t *hi, int32_t first, int32_t last) {
    return _mm256_andnot_ps(vec_int_above(lo, last), vec_int_above(hi, first));
}
VEC_INLINE vec_mask vec_is_minus_zero(vec a) {
    __m256i minus_zero = _mm256_set1_epi32(INT32_MIN);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_castps_si256(a), minus_zero));
}
VEC_INLINE bool vec_any(vec_mask m) {
    return _mm256_movemask_ps(m) != 0;
}
VEC_INLINE vec vec_select(vec_mask m, vec yes, vec no) {
    return _mm256_blendv_ps(no, yes, m);
}
/* +0 in the lanes of m. */
VEC_INLINE vec vec_clear(vec_mask m, vec x) {
    return _mm256_andnot_ps(m, x);
}
VEC_INLINE vec vec_negate(vec x) {
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}

/* x 2^n for a normal result, n = k - 0x4B400000 for the bits k of `magic_sum` = 1.5 * 2^23 + n: the
 * shift drops all of k but n's low bits. */
VEC_INLINE vec vec_scale_exponent(vec x, vec magic_sum) {
    __m256i shift = _mm256_slli_epi32(_mm256_castps_si256(magic_sum), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), shift));
}

/* VEC_LANES half floats, or one of each pair of bf16. */
VEC_INLINE vec vec_f16(const uint8_t *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}
VEC_INLINE vec vec_bf16(const uint8_t *at, bool odd) {
    __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)at);
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u))
                                   : _mm256_slli_epi32(pairs, 16));
}

/* Rounded to nearest even; out: VEC_LANES half words, at least 16 bytes. */
VEC_INLINE void vec_put_f16(uint8_t *out, vec x) {
    __m128i h = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128((__m128i *)(void *)out, h);
}
VEC_INLINE void vec_put_bf16(uint8_t *out, vec x) {
    __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    __m256i half =
        _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
    __m256i y = _mm256_srli_epi32(_mm256_add_epi32(u, half), 16);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    y = _mm256_blendv_epi8(y, quiet, _mm256_castps_si256(vec_is_nan(x)));
    __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
    _mm_storeu_si128((__m128i *)(void *)out, h);
}

/* (x0 c - x1 s, x0 s + x1 c) of each pair: even lanes x0, c; odd lanes x1, s. */
VEC_INLINE vec vec_rotate_pairs(vec x, vec cs) {
    vec x1 = _mm256_mul_ps(_mm256_movehdup_ps(x), _mm256_permute_ps(cs, 0xb1));
    return _mm256_fmaddsub_ps(_mm256_moveldup_ps(x), cs, x1);
}

/* The fold of 16 (lane j with j + 8, then + 4, + 2, + 1) of four rows at once; the rows' results
 * in the four lanes. Each shuffle brings lane j of two rows into one vector and lane j + step into
 * another (128-bit parts between bars):
 *   step 8: the halves of a row: [a0..a3 | a4..a7]
 *   step 4: [a0..a3 | b0..b3] op [a4..a7 | b4..b7]
 *   step 2: [a0 a1 c0 c1 | b0 b1 d0 d1] op [a2 a3 c2 c3 | b2 b3 d2 d3]
 *   step 1: neighbours; the rows' results are in lanes 0, 4, 2, 6. */
VEC_INLINE __m256 vec_fold_op(bool add, __m256 a, __m256 b) {
    return add ? _mm256_add_ps(a, b) : _mm256_max_ps(a, b);
}
VEC_INLINE __m128 vec_fold_rows(bool add, vec v[4][16 / VEC_LANES]) {
    __m256 x[4];
    for (int i = 0; i < 4; i++)
        x[i] = vec_fold_op(add, v[i][0], v[i][1]);
    __m256 ab = vec_fold_op(add, _mm256_permute2f128_ps(x[0], x[1], 0x20),
                            _mm256_permute2f128_ps(x[0], x[1], 0x31));
    __m256 cd = vec_fold_op(add, _mm256_permute2f128_ps(x[2], x[3], 0x20),
                            _mm256_permute2f128_ps(x[2], x[3], 0x31));
    __m256 y = vec_fold_op(add, _mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    y = vec_fold_op(add, y, _mm256_permute_ps(y, 0xf5));
    __m128 acbd = _mm_shuffle_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1), 0x88);
    return _mm_permute_ps(acbd, 0xd8);
}
VEC_INLINE vec vec_of_4(__m128 x) { /* zeros behind */
    return _mm256_zextps128_ps256(x);
}
VEC_INLINE vec vec_of_4_and_4(__m128 low, __m128 high) {
    return _mm256_set_m128(high, low);
}
VEC_INLINE __m128 vec_first_4(vec x) {
    return _mm256_castps256_ps128(x);
}

#endif
