/* Row functions, AVX2. Tails are masked: lanes past the end compute on zeros, are not stored. */
#include "kern/cpu/norm__avx2.h"

#include "kern/cpu/vec_avx2.h"

#include "kern/cpu/code_sums.h"
#include "kern/cpu/exact_vec.h"

#include "kern/cpu/gate_vec.h"
#include "kern/exact_math.h"

void cpu_add__avx2(float *out, const float *a, const float *b, int32_t n) {
    int32_t j = 0;
    for (; j + 8 <= n; j += 8)
        _mm256_storeu_ps(out + j, _mm256_add_ps(_mm256_loadu_ps(a + j), _mm256_loadu_ps(b + j)));
    if (j < n) {
        __m256i m = vec_first_lanes(n - j);
        __m256 sum = _mm256_add_ps(_mm256_maskload_ps(a + j, m), _mm256_maskload_ps(b + j, m));
        _mm256_maskstore_ps(out + j, m, sum);
    }
}

enum { N_VEC = CPU_BLOCK / 8 };

static inline int32_t sum_lanes(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

/* The largest |x| of a block as its bits. */
static inline uint32_t amax_bits(const __m256 *x) {
    const __m256i no_sign = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i v = _mm256_setzero_si256();
    for (int i = 0; i < N_VEC; i++)
        v = _mm256_max_epu32(v, _mm256_and_si256(_mm256_castps_si256(x[i]), no_sign));
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1)));
}

/* Vector i holds values 8i .. 8i + 7: vectors 0 and 2 are lanes 0 .. 7 of the 16, 1 and 3 the
 * others. */
static inline float refit(const __m256 *x, const __m256i *q) {
    float lane[16];
    __m256i square = _mm256_setzero_si256();
    for (int i = 0; i < 2; i++) {
        __m256 dot = _mm256_mul_ps(x[i], _mm256_cvtepi32_ps(q[i]));
        _mm256_storeu_ps(lane + 8 * i,
                         _mm256_fmadd_ps(x[i + 2], _mm256_cvtepi32_ps(q[i + 2]), dot));
    }
    for (int i = 0; i < N_VEC; i++)
        square = _mm256_add_epi32(square, _mm256_mullo_epi32(q[i], q[i]));
    return exact_fold16(lane) / (float)sum_lanes(square);
}

/* Packing works in each half of a vector: the bytes come out as dwords
 *   q0[0..3] q1[0..3] q2[0..3] q3[0..3] | q0[4..7] q1[4..7] q2[4..7] q3[4..7] */
static inline __m256i pack_codes(const __m256i *q) {
    __m256i words01 = _mm256_packs_epi32(q[0], q[1]), words23 = _mm256_packs_epi32(q[2], q[3]);
    __m256i bytes = _mm256_packs_epi16(words01, words23);
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

void cpu_quantise__avx2(const float *x, int32_t n_block, int8_t *q, float *dx, float *xs,
                        int16_t *sum) {
    for (int32_t b = 0; b < n_block; b++, x += CPU_BLOCK, q += CPU_BLOCK) {
        __m256 v[N_VEC];
        __m256i code[N_VEC];
        for (int i = 0; i < N_VEC; i++)
            v[i] = _mm256_loadu_ps(x + 8 * i);
        float id;
        bool finite = cpu_q8_scale(amax_bits(v), &dx[b], &id);
        __m256i keep = _mm256_set1_epi32(finite ? -1 : 0);
        __m256 by = _mm256_set1_ps(id);
        for (int i = 0; i < N_VEC; i++)
            code[i] = _mm256_and_si256(keep, _mm256_cvtps_epi32(_mm256_mul_ps(v[i], by)));
        __m256i codes = pack_codes(code);
        _mm256_storeu_si256((__m256i *)q, codes);
        if (id > 0.0f)
            dx[b] = refit(v, code);
        xs[b] = dx[b] * (float)code_sums_store(sum + 4 * b, codes);
    }
}

/* A masked-off lane adds 0 * 0 to a sum that is +0 or positive: it stays as it is. */
float cpu_square_sum__avx2(const float *x, int32_t n) {
    __m256 lo = _mm256_setzero_ps(), hi = lo;
    int32_t j = 0;
    for (; j + 16 <= n; j += 16) {
        __m256 a = _mm256_loadu_ps(x + j), b = _mm256_loadu_ps(x + j + 8);
        lo = _mm256_fmadd_ps(a, a, lo);
        hi = _mm256_fmadd_ps(b, b, hi);
    }
    if (j < n) {
        __m256 a = _mm256_maskload_ps(x + j, vec_first_lanes(n - j));
        lo = _mm256_fmadd_ps(a, a, lo);
    }
    if (j + 8 < n) {
        __m256 b = _mm256_maskload_ps(x + j + 8, vec_first_lanes(n - (j + 8)));
        hi = _mm256_fmadd_ps(b, b, hi);
    }
    float lane[16];
    _mm256_storeu_ps(lane, lo);
    _mm256_storeu_ps(lane + 8, hi);
    return exact_fold16(lane);
}

void cpu_scale__avx2(const float *x, float factor, const float *weight, int32_t n, float *out) {
    __m256 by = _mm256_set1_ps(factor);
    int32_t j = 0;
    for (; j + 8 <= n; j += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + j), by);
        _mm256_storeu_ps(out + j, _mm256_mul_ps(v, _mm256_loadu_ps(weight + j)));
    }
    if (j < n) {
        __m256i m = vec_first_lanes(n - j);
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + j, m), by);
        _mm256_maskstore_ps(out + j, m, _mm256_mul_ps(v, _mm256_maskload_ps(weight + j, m)));
    }
}

void cpu_add_scaled__avx2(float *y, float w, const float *x, int32_t n) {
    add_scaled_vec(y, w, x, n);
}

void cpu_glu__avx2(const kern_glu_rule *rule, float *out, const float *g, const float *u,
                   int32_t n) {
    glu_vec(rule, out, g, u, n);
}

void cpu_softcap__avx2(float *x, float cap, int32_t n) {
    softcap_vec(x, cap, n);
}
