/* Row functions, AVX-512. Tails are masked: lanes past the end compute on zeros, are not stored. */
#include "kern/cpu/norm__avx512.h"

#include "kern/cpu/vec_avx512.h"

#include "kern/cpu/code_sums.h"
#include "kern/cpu/exact_vec.h"

#include "kern/cpu/gate_vec.h"
#include "kern/exact_math.h"

void cpu_add__avx512(float *out, const float *a, const float *b, int32_t n) {
    for (int32_t j = 0; j < n; j += 16) {
        __mmask16 m = vec_first_lanes(n - j);
        __m512 sum =
            _mm512_add_ps(_mm512_maskz_loadu_ps(m, a + j), _mm512_maskz_loadu_ps(m, b + j));
        _mm512_mask_storeu_ps(out + j, m, sum);
    }
}

static inline __m512i abs_bits(__m512 x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
}

static inline float refit(__m512 lo, __m512 hi, __m512i qlo, __m512i qhi) {
    float lane[16];
    __m512 dot = _mm512_mul_ps(lo, _mm512_cvtepi32_ps(qlo));
    _mm512_storeu_ps(lane, _mm512_fmadd_ps(hi, _mm512_cvtepi32_ps(qhi), dot));
    __m512i square = _mm512_add_epi32(_mm512_mullo_epi32(qlo, qlo), _mm512_mullo_epi32(qhi, qhi));
    return exact_fold16(lane) / (float)_mm512_reduce_add_epi32(square);
}

void cpu_quantise__avx512(const float *x, int32_t n_block, int8_t *q, float *dx, float *xs,
                          int16_t *sum) {
    for (int32_t b = 0; b < n_block; b++, x += CPU_BLOCK, q += CPU_BLOCK) {
        __m512 lo = _mm512_loadu_ps(x), hi = _mm512_loadu_ps(x + 16);
        __m512i larger = _mm512_max_epu32(abs_bits(lo), abs_bits(hi));
        float id;
        bool finite = cpu_q8_scale(_mm512_reduce_max_epu32(larger), &dx[b], &id);
        __mmask16 keep = finite ? (__mmask16)0xFFFF : 0;
        __m512 by = _mm512_set1_ps(id);
        __m512i qlo = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(lo, by));
        __m512i qhi = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(hi, by));
        _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(qlo));
        _mm_storeu_si128((__m128i *)(q + 16), _mm512_cvtepi32_epi8(qhi));
        if (id > 0.0f)
            dx[b] = refit(lo, hi, qlo, qhi);
        __m256i codes = _mm256_loadu_si256((const __m256i *)q);
        xs[b] = dx[b] * (float)code_sums_store(sum + 4 * b, codes);
    }
}

/* A masked-off lane adds 0 * 0 to a sum that is +0 or positive: it stays as it is. */
float cpu_square_sum__avx512(const float *x, int32_t n) {
    __m512 acc = _mm512_setzero_ps();
    for (int32_t j = 0; j < n; j += 16) {
        __m512 v = _mm512_maskz_loadu_ps(vec_first_lanes(n - j), x + j);
        acc = _mm512_fmadd_ps(v, v, acc);
    }
    float lane[16];
    _mm512_storeu_ps(lane, acc);
    return exact_fold16(lane);
}

void cpu_scale__avx512(const float *x, float factor, const float *weight, int32_t n, float *out) {
    __m512 by = _mm512_set1_ps(factor);
    for (int32_t j = 0; j < n; j += 16) {
        __mmask16 m = vec_first_lanes(n - j);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + j), by);
        _mm512_mask_storeu_ps(out + j, m, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, weight + j)));
    }
}

void cpu_add_scaled__avx512(float *y, float w, const float *x, int32_t n) {
    add_scaled_vec(y, w, x, n);
}

void cpu_glu__avx512(const kern_glu_rule *rule, float *out, const float *g, const float *u,
                     int32_t n) {
    glu_vec(rule, out, g, u, n);
}

void cpu_softcap__avx512(float *x, float cap, int32_t n) {
    softcap_vec(x, cap, n);
}
