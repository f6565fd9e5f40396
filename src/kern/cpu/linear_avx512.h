/* Packed linear micro-kernel of the AVX-512 levels, all but the integer dot, which the including
 * file gives (linear__avx512.c, linear__avx512vnni.c).
 *
 * One vector holds the 16 outputs of a panel; k is walked upward, so the number of rows and panels
 * of a tile decides only how many of these chains run side by side. Every loop over rows or panels
 * has constant bounds after inlining and is unrolled: the integer and the float sums of a tile
 * (12 + 12 vectors for 6 x 2) live in registers.
 *
 * Levels are unsigned with an offset, which is undone by sums of q. |isum| < 2^24, so the conversion
 * to float is exact. */
#ifndef WEFT_KERN_CPU_LINEAR_AVX512_H
#define WEFT_KERN_CPU_LINEAR_AVX512_H

#include <immintrin.h>

#include "kern/cpu/norm__avx512.h"
#include "kern/cpu/vec_avx512.h"

/* Without the undefined-behaviour checks, which would be repeated in every shape and take a minute
 * to compile; the scalar level does the same index arithmetic with them. */
#define INLINE static inline __attribute__((always_inline, no_sanitize("undefined")))

enum { ROWS = CPU_TILE_ROWS, PANELS = 4 };

typedef __m512 sums[ROWS][PANELS];
typedef __m512i isums[ROWS][PANELS];

/* Given by the including file: isum[r][p] = the exact dot of group g of the block at w (levels of
 * panel p less the offset) with the signed codes of the block at x + r * x_stride; x_sum: the sums
 * of those codes. */
INLINE void dot_group(isums isum, const dtype type, const int g, const uint8_t *w,
                      size_t panel_bytes, const uint8_t *x, const uint8_t *x_sum, size_t x_stride,
                      const int n_row, const int n_panel);

INLINE void store_sums(float *out, sums acc, const int n_row, const int n_panel) {
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++)
            _mm512_storeu_ps(out + (r * n_panel + p) * CPU_PANEL, acc[r][p]);
    }
}

INLINE void clear_sums(sums acc, const int n_row, const int n_panel) {
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++)
            acc[r][p] = _mm512_setzero_ps();
    }
}

INLINE __m512 load_f16(const uint8_t *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
}

INLINE __m512 broadcast(const uint8_t *at) {
    float f;
    memcpy(&f, at, 4);
    return _mm512_set1_ps(f);
}

INLINE void prefetch(const uint8_t *at, size_t panel_bytes, int bytes, const int n_panel) {
#pragma GCC unroll 8
    for (int p = 0; p < n_panel; p++) {
#pragma GCC unroll 8
        for (int i = 0; i < bytes; i += CPU_LINE)
            _mm_prefetch((const char *)at + (size_t)p * panel_bytes + i, _MM_HINT_T1);
    }
}

/* The levels of a quad of the block at w. */
INLINE __m512i load_levels(const dtype type, const uint8_t *w, const int quad) {
    if (block_forms[type].bits == 8)
        return _mm512_loadu_si512(w + CPU_LINE * quad);
    const int low = packed_low_bits(type), high = packed_high_bits(type);
    const int j = quad % 4, up = quad / 4 * 4;
    /* uint8_t: compilers do not agree on the sign of a count */
    const uint8_t right = (uint8_t)(packed_shift(low, j) + up);
    __m512i code = _mm512_loadu_si512(w + CPU_LINE * packed_line(low, j));
    code =
        _mm512_and_si512(_mm512_srli_epi16(code, right), _mm512_set1_epi8((char)((1 << low) - 1)));
    if (high) {
        const int by = low - packed_shift(high, j) - up;
        const uint8_t left = (uint8_t)(by > 0 ? by : 0), back = (uint8_t)(by > 0 ? 0 : -by);
        __m512i bits = _mm512_loadu_si512(w + CPU_LINE * (low + packed_line(high, j)));
        bits = _mm512_srli_epi16(_mm512_slli_epi16(bits, left), back);
        bits = _mm512_and_si512(bits, _mm512_set1_epi8((char)(((1 << high) - 1) << low)));
        code = _mm512_or_si512(code, bits);
    }
    if (block_forms[type].table == BLOCK_NO_TABLE)
        return code;
    const void *table = block_tables[block_forms[type].table];
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table)), code);
}

/* Quad i of group g in the order of the dots: quads j and j + 4 of a block share a line. */
INLINE int nth_quad(const dtype type, const int g, const int i) {
    return block_forms[type].group == CPU_BLOCK ? i / 2 + i % 2 * 4 : 4 * g + i;
}

INLINE __m512i broadcast_dword(const void *at) {
    int32_t dword;
    memcpy(&dword, at, 4);
    return _mm512_set1_epi32(dword);
}

/* Sums of a row's codes over group g, one for each int16 lane of a dword; at: the block's sums. */
INLINE __m512i lane_sums(const dtype type, const int g, const uint8_t *at) {
    if (block_forms[type].group == CPU_BLOCK)
        return _mm512_add_epi16(broadcast_dword(at), broadcast_dword(at + 4));
    return broadcast_dword(at + 4 * g);
}

/* by * the sum of a row's codes over group g. */
INLINE __m512i times_sum(const dtype type, const int g, const uint8_t *at, const int by) {
    return _mm512_madd_epi16(lane_sums(type, g, at), _mm512_set1_epi16((int16_t)by));
}

INLINE __m512i load_bytes(const uint8_t *at) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at));
}

/* 2^(e - 128) as bits. From e = 2 on e - 1 is the exponent field; below, the subnormals 2^21 and
 * 2^22 units, which (e + 1) << 21 gives, are larger than what the other formula gives. */
INLINE __m512 exponent_scale(__m512i e) {
    const __m512i one = _mm512_set1_epi32(1);
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    __m512i small = _mm512_slli_epi32(_mm512_add_epi32(e, one), 21);
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, small));
}

/* Scales of group g of a panel. head, part: those of the block. */
INLINE __m512 load_scale(const dtype type, const int g, const uint8_t *head, const uint8_t *part) {
    const block_form f = block_forms[type];
    if (f.scaling == BLOCK_EXPONENT)
        return exponent_scale(_mm512_and_si512(load_bytes(part), _mm512_set1_epi32(255)));
    __m512 d = load_f16(head);
    if (f.scaling < BLOCK_D_SC)
        return d;
    __m512i sc = load_bytes(part + 16 * g);
    if (f.scaling == BLOCK_D_SC_MN && f.group == 16)
        sc = _mm512_and_si512(sc, _mm512_set1_epi32(15));
    return _mm512_mul_ps(d, _mm512_cvtepi32_ps(sc));
}

INLINE bool has_minimum(const dtype type) {
    return block_forms[type].scaling == BLOCK_D_M || block_forms[type].scaling == BLOCK_D_SC_MN;
}

INLINE __m512 load_minimum(const dtype type, const int g, const uint8_t *head,
                           const uint8_t *part) {
    const block_form f = block_forms[type];
    __m512 m = load_f16(head + 32);
    if (f.scaling == BLOCK_D_M)
        return m;
    __m512i mn = load_bytes(part + 16 * (f.group == 16 ? g : 1));
    if (f.group == 16)
        mn = _mm512_and_si512(_mm512_srli_epi32(mn, 4), _mm512_set1_epi32(15));
    return _mm512_mul_ps(m, _mm512_cvtepi32_ps(mn));
}

/* What multiplies the minimum of group g: a row's xs, or dx * sum of a half of the block. */
INLINE __m512 row_xs(const dtype type, const int g, const uint8_t *x_dx, size_t plane,
                     const uint8_t *sum) {
    if (block_forms[type].group == CPU_BLOCK)
        return broadcast(x_dx + plane);
    return _mm512_mul_ps(broadcast(x_dx), _mm512_cvtepi32_ps(times_sum(type, g, sum, 1)));
}

/* The dots of group g and its scales; x_dx points to dx of row 0, xs lie `plane` bytes further. */
INLINE void add_group(sums acc, const dtype type, const int g, const uint8_t *w,
                      const uint8_t *head, const uint8_t *part, size_t panel_bytes,
                      const uint8_t *x, const uint8_t *x_dx, size_t plane, const uint8_t *x_sum,
                      size_t x_stride, const int n_row, const int n_panel) {
    isums isum;
    dot_group(isum, type, g, w, panel_bytes, x, x_sum, x_stride, n_row, n_panel);
#pragma GCC unroll 8
    for (int p = 0; p < n_panel; p++) {
        const size_t panel = (size_t)p * panel_bytes;
        __m512 d = load_scale(type, g, head + panel, part + panel);
#pragma GCC unroll 8
        for (int r = 0; r < n_row; r++)
            acc[r][p] = _mm512_fmadd_ps(_mm512_mul_ps(d, broadcast(x_dx + (size_t)r * x_stride)),
                                        _mm512_cvtepi32_ps(isum[r][p]), acc[r][p]);
    }
    if (!has_minimum(type))
        return;
#pragma GCC unroll 8
    for (int p = 0; p < n_panel; p++) {
        const size_t panel = (size_t)p * panel_bytes;
        __m512 m = load_minimum(type, g, head + panel, part + panel);
#pragma GCC unroll 8
        for (int r = 0; r < n_row; r++) {
            const size_t row = (size_t)r * x_stride;
            acc[r][p] =
                _mm512_fmadd_ps(m, row_xs(type, g, x_dx + row, plane, x_sum + row), acc[r][p]);
        }
    }
}

INLINE void leaf_quantised(const cpu_leaf *l, const dtype type, const int n_row,
                           const int n_panel) {
    const size_t pb = l->panel_bytes, stride = l->x_stride;
    const size_t plane = (size_t)l->x_k / CPU_BLOCK * 4;
    const size_t quant_bytes = packed_quant_bytes(type), unit_bytes = packed_unit_bytes(type);
    const size_t n_unit = (size_t)packed_unit_blocks(type);
    const size_t w_b0 = (size_t)l->k0 / CPU_BLOCK, x_b0 = (size_t)l->x_k0 / CPU_BLOCK;
    const uint8_t *w = l->w + w_b0 * quant_bytes, *scales = l->w + l->scale_at;
    const uint8_t *x = l->x + l->x_k0, *x_dx = l->x + l->x_k + x_b0 * 4;
    const uint8_t *x_sum = l->x + l->x_k + 2 * plane + x_b0 * 8;
    int32_t fetch = l->fetch_first;
    sums acc;
    clear_sums(acc, n_row, n_panel);
    for (int32_t b = 0; b < l->n_k / CPU_BLOCK; b++) {
        const size_t w_b = w_b0 + (size_t)b;
        const uint8_t *head = scales + w_b / n_unit * unit_bytes;
        const uint8_t *part =
            head + packed_head_bytes(type) + w_b % n_unit * packed_part_bytes(type);
        if (b == fetch) {
            prefetch(w + l->prefetch, pb, (int)quant_bytes, n_panel);
            prefetch(scales + w_b * unit_bytes / n_unit + l->prefetch, pb,
                     (int)(unit_bytes / n_unit), n_panel);
            fetch += l->fetch_step;
        }
#pragma GCC unroll 2
        for (int g = 0; g < CPU_BLOCK / block_forms[type].group; g++)
            add_group(acc, type, g, w, head, part, pb, x, x_dx, plane, x_sum, stride, n_row,
                      n_panel);
        w += quant_bytes;
        x += CPU_BLOCK;
        x_dx += 4;
        x_sum += 8;
    }
    store_sums(l->out, acc, n_row, n_panel);
}

INLINE void fma_column(sums acc, const __m512 *w, const uint8_t *x, size_t x_stride,
                       const int n_row, const int n_panel) {
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        __m512 v = broadcast(x + (size_t)r * x_stride);
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++)
            acc[r][p] = _mm512_fmadd_ps(w[p], v, acc[r][p]);
    }
}

/* f32 lines are one column, f16 half lines too. */
INLINE void leaf_float(const cpu_leaf *l, const dtype type, const int n_row, const int n_panel) {
    const size_t column = type == DTYPE_F32 ? 64 : 32;
    const uint8_t *w = l->w + (size_t)l->k0 * column, *x = l->x + (size_t)l->x_k0 * 4;
    int32_t fetch = l->fetch_first;
    sums acc;
    clear_sums(acc, n_row, n_panel);
    for (int32_t k = 0; k < l->n_k; k++) {
        __m512 v[PANELS];
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            const uint8_t *at = w + (size_t)p * l->panel_bytes;
            v[p] = type == DTYPE_F32 ? _mm512_loadu_ps(at) : load_f16(at);
        }
        if (k == fetch) {
            prefetch(w + l->prefetch, l->panel_bytes, (int)column, n_panel);
            fetch += l->fetch_step;
        }
        fma_column(acc, v, x, l->x_stride, n_row, n_panel);
        w += column;
        x += 4;
    }
    store_sums(l->out, acc, n_row, n_panel);
}

/* One line of bf16 pairs: column k (even) in the low halves, k + 1 in the high ones. */
INLINE void fma_pair(sums acc, const cpu_leaf *l, const uint8_t *w, const uint8_t *x,
                     const bool even, const bool odd, const int n_row, const int n_panel) {
    const __m512i high = _mm512_set1_epi32((int)0xFFFF0000u);
    __m512 v[PANELS];
    if (even) {
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            __m512i pair = _mm512_loadu_si512(w + (size_t)p * l->panel_bytes);
            v[p] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
        }
        fma_column(acc, v, x, l->x_stride, n_row, n_panel);
    }
    if (odd) {
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            __m512i pair = _mm512_loadu_si512(w + (size_t)p * l->panel_bytes);
            v[p] = _mm512_castsi512_ps(_mm512_and_si512(pair, high));
        }
        fma_column(acc, v, x + 4, l->x_stride, n_row, n_panel);
    }
}

/* A leaf may start at the high half of a line and end at the low half of one. fma_pair takes x at
 * the value for the low half, even when that lies before the leaf (and is not read). */
INLINE void leaf_pairs(const cpu_leaf *l, const int n_row, const int n_panel) {
    sums acc;
    clear_sums(acc, n_row, n_panel);
    int32_t head = l->k0 % 2, end = l->k0 + l->n_k;
    const uint8_t *w = l->w + (size_t)(l->k0 / 2) * CPU_LINE;
    const uint8_t *x = l->x + (size_t)l->x_k0 * 4;
    if (head) {
        fma_pair(acc, l, w, x - 4, false, true, n_row, n_panel);
        w += CPU_LINE;
        x += 4;
    }
    int32_t fetch = l->fetch_first;
    for (int32_t i = 0; i < (l->n_k - head) / 2; i++) {
        if (i == fetch) {
            prefetch(w + l->prefetch, l->panel_bytes, CPU_LINE, n_panel);
            fetch += l->fetch_step;
        }
        fma_pair(acc, l, w, x, true, true, n_row, n_panel);
        w += CPU_LINE;
        x += 8;
    }
    if (end % 2)
        fma_pair(acc, l, w, x, true, false, n_row, n_panel);
    store_sums(l->out, acc, n_row, n_panel);
}

INLINE void leaf_any(const cpu_leaf *l, const dtype type, const int n_row, const int n_panel) {
    if (packed_is_quantised(type))
        leaf_quantised(l, type, n_row, n_panel);
    else if (type == DTYPE_BF16)
        leaf_pairs(l, n_row, n_panel);
    else
        leaf_float(l, type, n_row, n_panel);
}

/* One function per type and tile shape: <type>_<rows>x<panels>. */
typedef void leaf_fn(const cpu_leaf *l);
#define SHAPE(name, type, rows, panels)                                                            \
    static void name##_##rows##x##panels(const cpu_leaf *l) {                                      \
        leaf_any(l, type, rows, panels);                                                           \
    }
#define SHAPES(name, type)                                                                         \
    SHAPE(name, type, 1, 1)                                                                        \
    SHAPE(name, type, 2, 1)                                                                        \
    SHAPE(name, type, 3, 1)                                                                        \
    SHAPE(name, type, 4, 1)                                                                        \
    SHAPE(name, type, 5, 1)                                                                        \
    SHAPE(name, type, 6, 1)                                                                        \
    SHAPE(name, type, 1, 2)                                                                        \
    SHAPE(name, type, 2, 2)                                                                        \
    SHAPE(name, type, 3, 2)                                                                        \
    SHAPE(name, type, 4, 2)                                                                        \
    SHAPE(name, type, 5, 2)                                                                        \
    SHAPE(name, type, 6, 2)                                                                        \
    SHAPE(name, type, 1, 4)                                                                        \
    SHAPE(name, type, 2, 4)                                                                        \
    SHAPE(name, type, 3, 4)                                                                        \
    static leaf_fn *const name##_shapes[PANELS][ROWS] = {                                          \
        {name##_1x1, name##_2x1, name##_3x1, name##_4x1, name##_5x1, name##_6x1},                  \
        {name##_1x2, name##_2x2, name##_3x2, name##_4x2, name##_5x2, name##_6x2},                  \
        {0},                                                                                       \
        {name##_1x4, name##_2x4, name##_3x4},                                                      \
    };
SHAPES(f32, DTYPE_F32)
SHAPES(f16, DTYPE_F16)
SHAPES(bf16, DTYPE_BF16)
SHAPES(q4_0, DTYPE_Q4_0)
SHAPES(q4_1, DTYPE_Q4_1)
SHAPES(q5_0, DTYPE_Q5_0)
SHAPES(q5_1, DTYPE_Q5_1)
SHAPES(q8_0, DTYPE_Q8_0)
SHAPES(q2_k, DTYPE_Q2_K)
SHAPES(q3_k, DTYPE_Q3_K)
SHAPES(q4_k, DTYPE_Q4_K)
SHAPES(q5_k, DTYPE_Q5_K)
SHAPES(q6_k, DTYPE_Q6_K)
SHAPES(iq4_nl, DTYPE_IQ4_NL)
SHAPES(iq4_xs, DTYPE_IQ4_XS)
SHAPES(mxfp4, DTYPE_MXFP4)

static void leaf_avx512(const cpu_leaf *l, int32_t n_row, int32_t n_panel) {
    static leaf_fn *const(*const shapes[])[ROWS] = {
        [DTYPE_F32] = f32_shapes,       [DTYPE_F16] = f16_shapes,
        [DTYPE_BF16] = bf16_shapes,     [DTYPE_Q4_0] = q4_0_shapes,
        [DTYPE_Q4_1] = q4_1_shapes,     [DTYPE_Q5_0] = q5_0_shapes,
        [DTYPE_Q5_1] = q5_1_shapes,     [DTYPE_Q8_0] = q8_0_shapes,
        [DTYPE_Q2_K] = q2_k_shapes,     [DTYPE_Q3_K] = q3_k_shapes,
        [DTYPE_Q4_K] = q4_k_shapes,     [DTYPE_Q5_K] = q5_k_shapes,
        [DTYPE_Q6_K] = q6_k_shapes,     [DTYPE_IQ4_NL] = iq4_nl_shapes,
        [DTYPE_IQ4_XS] = iq4_xs_shapes, [DTYPE_MXFP4] = mxfp4_shapes,
    };
    shapes[l->type][n_panel - 1][n_row - 1](l);
}

static void store_avx512(const float *tile, int32_t n_row, int32_t width, int32_t n_valid,
                         const float *bias, float *y, size_t y_stride) {
    for (int32_t r = 0; r < n_row; r++, tile += width, y += y_stride)
        for (int32_t o = 0; o < n_valid; o += 16) {
            __mmask16 m = vec_first_lanes(n_valid - o);
            __m512 sum = _mm512_loadu_ps(tile + o);
            if (bias)
                sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(m, bias + o));
            _mm512_mask_storeu_ps(y + o, m, sum);
        }
}

#endif
