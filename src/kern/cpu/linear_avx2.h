/* Words of the AVX2 linear micro-kernels: how packed weights are read.
 *
 * Vector v of a piece is outputs 8 (v mod 2) .. + 7 of panel v / 2, and panels lie panel_bytes
 * apart. A micro-kernel includes this file; the type is known while compiling wherever it matters. */
#ifndef WEFT_KERN_CPU_LINEAR_AVX2_H
#define WEFT_KERN_CPU_LINEAR_AVX2_H

#include <immintrin.h>

#include "kern/cpu/linear_isa.h"

/* Without the undefined-behaviour checks, which would be repeated in every shape; the scalar level
 * does the same index arithmetic with them. */
#define INLINE static inline __attribute__((always_inline, no_sanitize("undefined")))

INLINE __m256i broadcast_dword(const void *at) {
    int32_t dword;
    memcpy(&dword, at, 4);
    return _mm256_set1_epi32(dword);
}

INLINE __m256 broadcast(const uint8_t *at) {
    float f;
    memcpy(&f, at, 4);
    return _mm256_set1_ps(f);
}

INLINE __m256i load_vec(const uint8_t *line, size_t panel_bytes, int v) {
    const uint8_t *at = line + (size_t)(v / 2) * panel_bytes + 32 * (v % 2);
    return _mm256_loadu_si256((const __m256i *)at);
}

/* Makes the sum now and in a register: left alone, gcc makes all products of a block first and
 * spills them. */
INLINE void settle(__m256i *sum) {
    __asm__("" : "+x"(*sum));
}

/* The levels of a quad of the block at w, vector v. */
INLINE __m256i load_levels(const dtype type, const uint8_t *w, size_t panel_bytes, const int quad,
                           const int v) {
    if (block_forms[type].bits == 8)
        return load_vec(w + CPU_LINE * quad, panel_bytes, v);
    const int low = packed_low_bits(type), high = packed_high_bits(type);
    const int j = quad % 4, up = quad / 4 * 4;
    __m256i code = load_vec(w + CPU_LINE * packed_line(low, j), panel_bytes, v);
    code = _mm256_and_si256(_mm256_srli_epi16(code, packed_shift(low, j) + up),
                            _mm256_set1_epi8((char)((1 << low) - 1)));
    if (high) {
        const int left = low - packed_shift(high, j) - up;
        __m256i bits = load_vec(w + CPU_LINE * (low + packed_line(high, j)), panel_bytes, v);
        bits = left > 0 ? _mm256_slli_epi16(bits, left) : _mm256_srli_epi16(bits, -left);
        bits = _mm256_and_si256(bits, _mm256_set1_epi8((char)(((1 << high) - 1) << low)));
        code = _mm256_or_si256(code, bits);
    }
    if (block_forms[type].table == BLOCK_NO_TABLE)
        return code;
    const void *table = block_tables[block_forms[type].table];
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table)), code);
}

/* Quad i of group g in the order of the dots: quads j and j + 4 of a block share a line. */
INLINE int nth_quad(const dtype type, const int g, const int i) {
    return block_forms[type].group == CPU_BLOCK ? i / 2 + i % 2 * 4 : 4 * g + i;
}

/* Sums of a row's codes over group g, one for each int16 lane of a dword; at: the block's sums. */
INLINE __m256i lane_sums(const dtype type, const int g, const uint8_t *at) {
    if (block_forms[type].group == CPU_BLOCK)
        return _mm256_add_epi16(broadcast_dword(at), broadcast_dword(at + 4));
    return broadcast_dword(at + 4 * g);
}

INLINE __m256 load_f16(const uint8_t *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
}

INLINE __m256i load_bytes(const uint8_t *at) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at));
}

/* 2^(e - 128) as bits. From e = 2 on e - 1 is the exponent field; below, the subnormals 2^21 and
 * 2^22 units, which (e + 1) << 21 gives, are larger than what the other formula gives. */
INLINE __m256 exponent_scale(__m256i e) {
    const __m256i one = _mm256_set1_epi32(1);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    __m256i small = _mm256_slli_epi32(_mm256_add_epi32(e, one), 21);
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, small));
}

/* Scales of group g: 8 of vector v. head, part: those of the block in the first panel. */
INLINE __m256 load_scale(const dtype type, const int g, const uint8_t *head, const uint8_t *part,
                         size_t panel_bytes, int v) {
    const block_form f = block_forms[type];
    const size_t panel = (size_t)(v / 2) * panel_bytes;
    part += panel + (size_t)(8 * (v % 2));
    if (f.scaling == BLOCK_EXPONENT)
        return exponent_scale(_mm256_and_si256(load_bytes(part), _mm256_set1_epi32(255)));
    __m256 d = load_f16(head + panel + 16 * (v % 2));
    if (f.scaling < BLOCK_D_SC)
        return d;
    __m256i sc = load_bytes(part + 16 * g);
    if (f.scaling == BLOCK_D_SC_MN && f.group == 16)
        sc = _mm256_and_si256(sc, _mm256_set1_epi32(15));
    return _mm256_mul_ps(d, _mm256_cvtepi32_ps(sc));
}

INLINE bool has_minimum(const dtype type) {
    return block_forms[type].scaling == BLOCK_D_M || block_forms[type].scaling == BLOCK_D_SC_MN;
}

INLINE __m256 load_minimum(const dtype type, const int g, const uint8_t *head, const uint8_t *part,
                           size_t panel_bytes, int v) {
    const block_form f = block_forms[type];
    const size_t panel = (size_t)(v / 2) * panel_bytes;
    __m256 m = load_f16(head + 32 + panel + 16 * (v % 2));
    if (f.scaling == BLOCK_D_M)
        return m;
    __m256i mn = load_bytes(part + panel + 8 * (v % 2) + 16 * (f.group == 16 ? g : 1));
    if (f.group == 16)
        mn = _mm256_and_si256(_mm256_srli_epi32(mn, 4), _mm256_set1_epi32(15));
    return _mm256_mul_ps(m, _mm256_cvtepi32_ps(mn));
}

#endif
