/* Packed linear micro-kernel, AVX-512 VNNI: the integer dot.
 *
 *   dot:  isum[r][p] += 16 x (4 unsigned levels of panel p, in a register)
 *                      . (4 signed codes of row r, one dword broadcast from the record)
 *
 * VPDPBUSD adds four products into int32 without saturation. */
#include "kern/cpu/linear_avx512.h"

/* 4 columns: w[p] of all panels with one dword of each row. */
INLINE void dot_quad(isums isum, const __m512i *w, const uint8_t *x, size_t x_stride,
                     const int n_row, const int n_panel) {
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        __m512i q = broadcast_dword(x + (size_t)r * x_stride);
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++)
            isum[r][p] = _mm512_dpbusd_epi32(isum[r][p], w[p], q);
    }
}

INLINE void dot_group(isums isum, const dtype type, const int g, const uint8_t *w,
                      size_t panel_bytes, const uint8_t *x, const uint8_t *x_sum, size_t x_stride,
                      const int n_row, const int n_panel) {
    const int offset = block_forms[type].offset;
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        __m512i start = _mm512_setzero_si512();
        if (offset)
            start = times_sum(type, g, x_sum + (size_t)r * x_stride, -offset);
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++)
            isum[r][p] = start;
    }
#pragma GCC unroll 8
    for (int i = 0; i < block_forms[type].group / 4; i++) {
        const int quad = nth_quad(type, g, i);
        __m512i level[PANELS];
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++)
            level[p] = load_levels(type, w + (size_t)p * panel_bytes, quad);
        dot_quad(isum, level, x + 4 * quad, x_stride, n_row, n_panel);
    }
}

const cpu_linear_isa cpu_linear_avx512vnni = {
    .leaf = leaf_avx512,
    .store = store_avx512,
    .add = cpu_add__avx512,
    .quantise = cpu_quantise__avx512,
    .square_sum = cpu_square_sum__avx512,
    .scale = cpu_scale__avx512,
    .add_scaled = cpu_add_scaled__avx512,
    .glu = cpu_glu__avx512,
    .softcap = cpu_softcap__avx512,
};
