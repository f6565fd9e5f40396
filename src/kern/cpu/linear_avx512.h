/* Packed linear micro-kernel of the AVX-512 levels, all but the integer dot, which the including
 * file gives (linear__avx512.c, linear__avx512vnni.c).
 *
 * One vector holds the 16 outputs of a panel; k is walked upward, so the number of rows and panels
 * of a tile decides only how many of these chains run side by side. Every loop over rows or panels
 * has constant bounds after inlining and is unrolled: the integer and the float sums of a tile
 * (12 + 12 vectors for 6 x 2) live in registers.
 *
 * Codes are unsigned with an offset (8, 128); the offset's share, -offset * sum(q), is where isum
 * starts. |isum| < 2^24, so the conversion to float is exact. */
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

/* Given by the including file: isum[r][p] += the exact dot of one block, unsigned codes of panel p
 * (4-bit, 8-bit) with the 32 signed codes at x + r * x_stride. */
INLINE void dot_nibbles(isums isum, const uint8_t *w, size_t panel_bytes, const uint8_t *x,
                        size_t x_stride, const int n_row, const int n_panel);
INLINE void dot_bytes(isums isum, const uint8_t *w, size_t panel_bytes, const uint8_t *x,
                      size_t x_stride, const int n_row, const int n_panel);

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

/* x points to the block's codes of row 0, x_dx to its dx; xs and sum lie `plane` bytes further on
 * each. */
INLINE void leaf_quantised(const cpu_leaf *l, const dtype type, const int n_row,
                           const int n_panel) {
    const size_t pb = l->panel_bytes, stride = l->x_stride;
    const size_t plane = (size_t)l->x_k / CPU_BLOCK * 4;
    const size_t quant_bytes = packed_quant_bytes(type), scale_bytes = packed_scale_bytes(type);
    const size_t w_b0 = (size_t)l->k0 / CPU_BLOCK, x_b0 = (size_t)l->x_k0 / CPU_BLOCK;
    const uint8_t *w = l->w + w_b0 * quant_bytes, *scale = l->w + l->scale_at + w_b0 * scale_bytes;
    const uint8_t *x = l->x + l->x_k0, *x_dx = l->x + l->x_k + x_b0 * 4;
    const int offset = type == DTYPE_Q4_0 ? 8 : type == DTYPE_Q8_0 ? 128 : 0;
    int32_t fetch = l->fetch_first;
    sums acc;
    clear_sums(acc, n_row, n_panel);
    for (int32_t b = 0; b < l->n_k / CPU_BLOCK; b++) {
        isums isum;
#pragma GCC unroll 8
        for (int r = 0; r < n_row; r++) {
            int32_t sum = 0;
            if (offset)
                memcpy(&sum, x_dx + 2 * plane + (size_t)r * stride, 4);
#pragma GCC unroll 8
            for (int p = 0; p < n_panel; p++)
                isum[r][p] = _mm512_set1_epi32(-offset * sum);
        }
        if (type == DTYPE_Q8_0)
            dot_bytes(isum, w, pb, x, stride, n_row, n_panel);
        else
            dot_nibbles(isum, w, pb, x, stride, n_row, n_panel);
        if (b == fetch) {
            prefetch(w + l->prefetch, pb, (int)quant_bytes, n_panel);
            prefetch(scale + l->prefetch, pb, (int)scale_bytes, n_panel);
            fetch += l->fetch_step;
        }
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            __m512 d = load_f16(scale + (size_t)p * pb);
#pragma GCC unroll 8
            for (int r = 0; r < n_row; r++)
                acc[r][p] = _mm512_fmadd_ps(_mm512_mul_ps(d, broadcast(x_dx + (size_t)r * stride)),
                                            _mm512_cvtepi32_ps(isum[r][p]), acc[r][p]);
        }
        if (type == DTYPE_Q4_1) {
#pragma GCC unroll 8
            for (int p = 0; p < n_panel; p++) {
                __m512 m = load_f16(scale + (size_t)p * pb + 32);
#pragma GCC unroll 8
                for (int r = 0; r < n_row; r++)
                    acc[r][p] =
                        _mm512_fmadd_ps(m, broadcast(x_dx + plane + (size_t)r * stride), acc[r][p]);
            }
        }
        w += quant_bytes;
        scale += scale_bytes;
        x += CPU_BLOCK;
        x_dx += 4;
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
SHAPES(q8_0, DTYPE_Q8_0)

static void leaf_avx512(const cpu_leaf *l, int32_t n_row, int32_t n_panel) {
    static leaf_fn *const(*const shapes[])[ROWS] = {
        [DTYPE_F32] = f32_shapes,   [DTYPE_F16] = f16_shapes,   [DTYPE_BF16] = bf16_shapes,
        [DTYPE_Q4_0] = q4_0_shapes, [DTYPE_Q4_1] = q4_1_shapes, [DTYPE_Q8_0] = q8_0_shapes,
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
