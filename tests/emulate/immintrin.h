/* AVX-512 of AVX2, for tests on machines without AVX-512: this file is found before the compiler's
 * immintrin.h, which it includes, and gives other meanings to the 512-bit types and to every
 * AVX-512 intrinsic that weft's kernels use. A kernel that uses one more fails to compile
 * (an incompatible type, or a target specific option mismatch) until it has its lines here.
 *
 * A 512-bit vector is two 256-bit ones, and most instructions are the AVX2 instruction on each:
 * rounding, NaN, saturation are then those of the hardware. What crosses halves, narrows or has a
 * mask goes lane by lane. A lane that is masked off is never touched in memory, so that the address
 * sanitizer, to which memory.c is shown, sees what the real instruction would read and write. */
#ifndef WEFT_TESTS_EMULATE_IMMINTRIN_H
#define WEFT_TESTS_EMULATE_IMMINTRIN_H

#include_next <immintrin.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct emulated_floats {
    __m256 half[2];
} emulated_floats;
typedef struct emulated_ints {
    __m256i half[2];
} emulated_ints;
#define __m512 emulated_floats
#define __m512i emulated_ints

typedef union emulated_lanes {
    __m512 floats;
    __m512i ints;
    __m128 quarter[4];
    float f[16];
    uint32_t u[16];
    uint8_t byte[64];
} emulated_lanes;

#define EMULATED static inline __attribute__((always_inline))

/* ---- the AVX2 instruction on each half ---- */

/* HALVES_n(name, result, argument, op): a function of n vectors; HALVES_SHIFT: a vector and a
 * count; HALVES_SET: a vector of equal elements. */
#define HALVES_1(name, result, argument, op)                                                       \
    EMULATED result name(argument a) {                                                             \
        return (result){{op(a.half[0]), op(a.half[1])}};                                           \
    }
#define HALVES_2(name, result, argument, op)                                                       \
    EMULATED result name(argument a, argument b) {                                                 \
        return (result){{op(a.half[0], b.half[0]), op(a.half[1], b.half[1])}};                     \
    }
#define HALVES_3(name, result, argument, op)                                                       \
    EMULATED result name(argument a, argument b, argument c) {                                     \
        return (result){                                                                           \
            {op(a.half[0], b.half[0], c.half[0]), op(a.half[1], b.half[1], c.half[1])}};           \
    }
#define HALVES_SHIFT(name, op)                                                                     \
    EMULATED __m512i name(__m512i a, unsigned n) {                                                 \
        return (__m512i){{op(a.half[0], (int)n), op(a.half[1], (int)n)}};                          \
    }
#define HALVES_SET(name, result, element, op)                                                      \
    EMULATED result name(element x) {                                                              \
        return (result){{op(x), op(x)}};                                                           \
    }

#define _mm512_set1_ps emulated_set1_ps
HALVES_SET(_mm512_set1_ps, __m512, float, _mm256_set1_ps)
#define _mm512_set1_epi8 emulated_set1_epi8
HALVES_SET(_mm512_set1_epi8, __m512i, char, _mm256_set1_epi8)
#define _mm512_set1_epi16 emulated_set1_epi16
HALVES_SET(_mm512_set1_epi16, __m512i, short, _mm256_set1_epi16)
#define _mm512_set1_epi32 emulated_set1_epi32
HALVES_SET(_mm512_set1_epi32, __m512i, int, _mm256_set1_epi32)

#define _mm512_broadcast_i32x4 emulated_broadcast_i32x4
HALVES_SET(_mm512_broadcast_i32x4, __m512i, __m128i, _mm256_broadcastsi128_si256)

#define _mm512_add_ps emulated_add_ps
HALVES_2(_mm512_add_ps, __m512, __m512, _mm256_add_ps)
#define _mm512_sub_ps emulated_sub_ps
HALVES_2(_mm512_sub_ps, __m512, __m512, _mm256_sub_ps)
#define _mm512_mul_ps emulated_mul_ps
HALVES_2(_mm512_mul_ps, __m512, __m512, _mm256_mul_ps)
#define _mm512_div_ps emulated_div_ps
HALVES_2(_mm512_div_ps, __m512, __m512, _mm256_div_ps)
#define _mm512_max_ps emulated_max_ps
HALVES_2(_mm512_max_ps, __m512, __m512, _mm256_max_ps)
#define _mm512_min_ps emulated_min_ps
HALVES_2(_mm512_min_ps, __m512, __m512, _mm256_min_ps)
#define _mm512_xor_ps emulated_xor_ps
HALVES_2(_mm512_xor_ps, __m512, __m512, _mm256_xor_ps)
#define _mm512_fmadd_ps emulated_fmadd_ps
HALVES_3(_mm512_fmadd_ps, __m512, __m512, _mm256_fmadd_ps)
#define _mm512_fmaddsub_ps emulated_fmaddsub_ps
HALVES_3(_mm512_fmaddsub_ps, __m512, __m512, _mm256_fmaddsub_ps)
#define _mm512_movehdup_ps emulated_movehdup_ps
HALVES_1(_mm512_movehdup_ps, __m512, __m512, _mm256_movehdup_ps)
#define _mm512_moveldup_ps emulated_moveldup_ps
HALVES_1(_mm512_moveldup_ps, __m512, __m512, _mm256_moveldup_ps)

#define _mm512_add_epi16 emulated_add_epi16
HALVES_2(_mm512_add_epi16, __m512i, __m512i, _mm256_add_epi16)
#define _mm512_add_epi32 emulated_add_epi32
HALVES_2(_mm512_add_epi32, __m512i, __m512i, _mm256_add_epi32)
#define _mm512_sub_epi16 emulated_sub_epi16
HALVES_2(_mm512_sub_epi16, __m512i, __m512i, _mm256_sub_epi16)
#define _mm512_mullo_epi16 emulated_mullo_epi16
HALVES_2(_mm512_mullo_epi16, __m512i, __m512i, _mm256_mullo_epi16)
#define _mm512_sub_epi32 emulated_sub_epi32
HALVES_2(_mm512_sub_epi32, __m512i, __m512i, _mm256_sub_epi32)
#define _mm512_mullo_epi32 emulated_mullo_epi32
HALVES_2(_mm512_mullo_epi32, __m512i, __m512i, _mm256_mullo_epi32)
#define _mm512_max_epi32 emulated_max_epi32
HALVES_2(_mm512_max_epi32, __m512i, __m512i, _mm256_max_epi32)
#define _mm512_max_epu32 emulated_max_epu32
HALVES_2(_mm512_max_epu32, __m512i, __m512i, _mm256_max_epu32)
#define _mm512_madd_epi16 emulated_madd_epi16
HALVES_2(_mm512_madd_epi16, __m512i, __m512i, _mm256_madd_epi16)
#define _mm512_maddubs_epi16 emulated_maddubs_epi16
HALVES_2(_mm512_maddubs_epi16, __m512i, __m512i, _mm256_maddubs_epi16)
#define _mm512_and_si512 emulated_and_si512
HALVES_2(_mm512_and_si512, __m512i, __m512i, _mm256_and_si256)
#define _mm512_or_si512 emulated_or_si512
HALVES_2(_mm512_or_si512, __m512i, __m512i, _mm256_or_si256)
#define _mm512_shuffle_epi8 emulated_shuffle_epi8
HALVES_2(_mm512_shuffle_epi8, __m512i, __m512i, _mm256_shuffle_epi8)
#define _mm512_slli_epi16 emulated_slli_epi16
HALVES_SHIFT(_mm512_slli_epi16, _mm256_slli_epi16)
#define _mm512_slli_epi32 emulated_slli_epi32
HALVES_SHIFT(_mm512_slli_epi32, _mm256_slli_epi32)
#define _mm512_srli_epi32 emulated_srli_epi32
HALVES_SHIFT(_mm512_srli_epi32, _mm256_srli_epi32)
#define _mm512_srli_epi16 emulated_srli_epi16
HALVES_SHIFT(_mm512_srli_epi16, _mm256_srli_epi16)

#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
HALVES_1(_mm512_cvtepi32_ps, __m512, __m512i, _mm256_cvtepi32_ps)
#define _mm512_cvtps_epi32 emulated_cvtps_epi32
HALVES_1(_mm512_cvtps_epi32, __m512i, __m512, _mm256_cvtps_epi32)
#define _mm512_castps_si512 emulated_castps_si512
HALVES_1(_mm512_castps_si512, __m512i, __m512, _mm256_castps_si256)
#define _mm512_castsi512_ps emulated_castsi512_ps
HALVES_1(_mm512_castsi512_ps, __m512, __m512i, _mm256_castsi256_ps)

#define _mm512_setzero_ps() _mm512_set1_ps(0.0f)
#define _mm512_setzero_si512() _mm512_set1_epi32(0)

/* ---- the same with a literal that the AVX2 instruction needs as such ---- */

#undef _mm512_permute_ps
#define _mm512_permute_ps(a, how)                                                                  \
    __extension__({                                                                                \
        const __m512 permuted = (a);                                                               \
        (__m512){                                                                                  \
            {_mm256_permute_ps(permuted.half[0], how), _mm256_permute_ps(permuted.half[1], how)}}; \
    })

#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(a, how)                                                                    \
    __extension__({                                                                                \
        const __m512 rounded = (a);                                                                \
        _mm256_set_m128i(_mm256_cvtps_ph(rounded.half[1], how),                                    \
                         _mm256_cvtps_ph(rounded.half[0], how));                                   \
    })

#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(a, b, how)                                                              \
    __extension__({                                                                                \
        const __m512 left = (a), right = (b);                                                      \
        int low = _mm256_movemask_ps(_mm256_cmp_ps(left.half[0], right.half[0], how));             \
        int high = _mm256_movemask_ps(_mm256_cmp_ps(left.half[1], right.half[1], how));            \
        (__mmask16)(low | high << 8);                                                              \
    })

/* _MM_CMPINT_NE, _NLT, _NLE are _EQ, _LT, _LE negated: bit 2. */

#undef _mm512_cmp_epi32_mask
#define _mm512_cmp_epi32_mask emulated_cmp_epi32_mask
EMULATED __mmask16 _mm512_cmp_epi32_mask(__m512i a, __m512i b, int how) {
    emulated_lanes x = {.ints = a}, y = {.ints = b};
    uint32_t bits = 0;
    for (int j = 0; j < 16; j++) {
        int32_t l = (int32_t)x.u[j], r = (int32_t)y.u[j];
        bool holds[] = {l == r, l < r, l <= r, false}; /* _MM_CMPINT_EQ, _LT, _LE */
        bits |= (uint32_t)(holds[how & 3] != (how >> 2 & 1)) << j;
    }
    return (__mmask16)bits;
}

/* ---- between widths ---- */

#define _mm512_cvtph_ps emulated_cvtph_ps
EMULATED __m512 _mm512_cvtph_ps(__m256i a) {
    return (__m512){{_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                     _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))}};
}

#define _mm512_cvtepi8_epi32 emulated_cvtepi8_epi32
EMULATED __m512i _mm512_cvtepi8_epi32(__m128i a) {
    return (__m512i){{_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(a, a))}};
}

#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16
EMULATED __m256i _mm512_cvtepi32_epi16(__m512i a) {
    emulated_lanes x = {.ints = a};
    uint16_t to[16];
    for (int j = 0; j < 16; j++)
        to[j] = (uint16_t)x.u[j];
    return _mm256_loadu_si256((const __m256i *)(const void *)to);
}

#define _mm512_cvtepi32_epi8 emulated_cvtepi32_epi8
EMULATED __m128i _mm512_cvtepi32_epi8(__m512i a) {
    emulated_lanes x = {.ints = a};
    uint8_t to[16];
    for (int j = 0; j < 16; j++)
        to[j] = (uint8_t)x.u[j];
    return _mm_loadu_si128((const __m128i *)(const void *)to);
}

#define _mm512_castps512_ps128 emulated_castps512_ps128
EMULATED __m128 _mm512_castps512_ps128(__m512 a) {
    return _mm256_castps256_ps128(a.half[0]);
}

#define _mm512_zextps128_ps512 emulated_zextps128_ps512
EMULATED __m512 _mm512_zextps128_ps512(__m128 a) {
    return (__m512){{_mm256_set_m128(_mm_setzero_ps(), a), _mm256_setzero_ps()}};
}

#define _mm512_zextps256_ps512 emulated_zextps256_ps512
EMULATED __m512 _mm512_zextps256_ps512(__m256 a) {
    return (__m512){{a, _mm256_setzero_ps()}};
}

/* ---- across lanes ---- */

#define _mm512_set_epi32 emulated_set_epi32
EMULATED __m512i _mm512_set_epi32(int x15, int x14, int x13, int x12, int x11, int x10, int x9,
                                  int x8, int x7, int x6, int x5, int x4, int x3, int x2, int x1,
                                  int x0) {
    return (__m512i){{_mm256_set_epi32(x7, x6, x5, x4, x3, x2, x1, x0),
                      _mm256_set_epi32(x15, x14, x13, x12, x11, x10, x9, x8)}};
}

#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4 emulated_shuffle_f32x4
EMULATED __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int how) {
    emulated_lanes x = {.floats = a}, y = {.floats = b}, to;
    for (int q = 0; q < 4; q++)
        to.quarter[q] = (q < 2 ? &x : &y)->quarter[how >> 2 * q & 3];
    return to.floats;
}

#define _mm512_permutexvar_ps emulated_permutexvar_ps
EMULATED __m512 _mm512_permutexvar_ps(__m512i index, __m512 a) {
    emulated_lanes from = {.ints = index}, x = {.floats = a}, to;
    for (int j = 0; j < 16; j++)
        to.f[j] = x.f[from.u[j] & 15];
    return to.floats;
}

#define _mm512_reduce_add_epi32 emulated_reduce_add_epi32
EMULATED int _mm512_reduce_add_epi32(__m512i a) {
    emulated_lanes x = {.ints = a};
    uint32_t sum = 0;
    for (int j = 0; j < 16; j++)
        sum += x.u[j];
    return (int)sum;
}

#define _mm512_reduce_max_epu32 emulated_reduce_max_epu32
EMULATED unsigned _mm512_reduce_max_epu32(__m512i a) {
    emulated_lanes x = {.ints = a};
    uint32_t most = 0;
    for (int j = 0; j < 16; j++)
        most = x.u[j] > most ? x.u[j] : most;
    return most;
}

/* Four products of an unsigned and a signed byte each, added without saturation. */
#define _mm512_dpbusd_epi32 emulated_dpbusd_epi32
EMULATED __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
    emulated_lanes to = {.ints = sum}, x = {.ints = a}, y = {.ints = b};
    for (int j = 0; j < 64; j++)
        to.u[j / 4] += (uint32_t)(x.byte[j] * (int8_t)y.byte[j]);
    return to.ints;
}

/* ---- masks ---- */

#define _cvtu32_mask16 emulated_cvtu32_mask16
EMULATED __mmask16 _cvtu32_mask16(unsigned bits) {
    return (__mmask16)bits;
}

#define _mm512_mask_mov_epi32 emulated_mask_mov_epi32
EMULATED __m512i _mm512_mask_mov_epi32(__m512i otherwise, __mmask16 k, __m512i a) {
    emulated_lanes to = {.ints = otherwise}, x = {.ints = a};
    for (int j = 0; j < 16; j++)
        to.u[j] = k >> j & 1 ? x.u[j] : to.u[j];
    return to.ints;
}

#define _mm512_mask_mov_ps emulated_mask_mov_ps
EMULATED __m512 _mm512_mask_mov_ps(__m512 otherwise, __mmask16 k, __m512 a) {
    return _mm512_castsi512_ps(
        _mm512_mask_mov_epi32(_mm512_castps_si512(otherwise), k, _mm512_castps_si512(a)));
}

#define _mm512_maskz_cvtps_epi32(k, a)                                                             \
    _mm512_mask_mov_epi32(_mm512_setzero_si512(), k, _mm512_cvtps_epi32(a))

/* ---- memory ---- */

/* memory.c; 64 bytes, or those of n elements of `bytes` bytes whose bit is set. */
void emulated_copy_all(void *to, const void *from);
void emulated_copy(void *to, const void *from, uint32_t bits, int n, size_t bytes);

#define _mm512_loadu_si512 emulated_loadu_si512
EMULATED __m512i _mm512_loadu_si512(const void *from) {
    __m512i a;
    emulated_copy_all(&a, from);
    return a;
}

#define _mm512_loadu_ps(from) _mm512_castsi512_ps(_mm512_loadu_si512(from))

#define _mm512_storeu_ps emulated_storeu_ps
EMULATED void _mm512_storeu_ps(void *to, __m512 a) {
    emulated_copy_all(to, &a);
}

#define _mm512_mask_loadu_ps emulated_mask_loadu_ps
EMULATED __m512 _mm512_mask_loadu_ps(__m512 otherwise, __mmask16 k, const void *from) {
    emulated_copy(&otherwise, from, k, 16, 4);
    return otherwise;
}

#define _mm512_maskz_loadu_ps(k, from) _mm512_mask_loadu_ps(_mm512_setzero_ps(), k, from)

#define _mm512_mask_storeu_ps emulated_mask_storeu_ps
EMULATED void _mm512_mask_storeu_ps(void *to, __mmask16 k, __m512 a) {
    emulated_copy(to, &a, k, 16, 4);
}

#endif
