/* Packed linear micro-kernel, AVX-512 VNNI: the integer dot.
 *
 *   dot:  isum[r][p] += 16 x (4 unsigned codes of panel p, in a register)
 *                      . (4 signed codes of row r, one dword broadcast from the record)
 *
 * VPDPBUSD adds four products into int32 without saturation. */
#include "kern/cpu/linear_avx512.h"

/* 4 columns: w[p] of all panels with one dword of each row. */
INLINE void dot_quad(isums isum, const __m512i *w, const uint8_t *x, size_t x_stride,
                     const int n_row, const int n_panel) {
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        int32_t quad;
        memcpy(&quad, x + (size_t)r * x_stride, 4);
        __m512i q = _mm512_set1_epi32(quad);
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++)
            isum[r][p] = _mm512_dpbusd_epi32(isum[r][p], w[p], q);
    }
}

/* Line j holds quad j in the low nibbles and quad j + 4 in the high ones. */
INLINE void dot_nibbles(isums isum, const uint8_t *w, size_t panel_bytes, const uint8_t *x,
                        size_t x_stride, const int n_row, const int n_panel) {
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (int j = 0; j < 4; j++) {
        __m512i lo[PANELS], hi[PANELS];
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            __m512i v = _mm512_loadu_si512(w + (size_t)p * panel_bytes + CPU_LINE * j);
            lo[p] = _mm512_and_si512(v, low);
            hi[p] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        }
        dot_quad(isum, lo, x + 4 * j, x_stride, n_row, n_panel);
        dot_quad(isum, hi, x + 4 * j + 16, x_stride, n_row, n_panel);
    }
}

INLINE void dot_bytes(isums isum, const uint8_t *w, size_t panel_bytes, const uint8_t *x,
                      size_t x_stride, const int n_row, const int n_panel) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        __m512i v[PANELS];
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++)
            v[p] = _mm512_loadu_si512(w + (size_t)p * panel_bytes + CPU_LINE * j);
        dot_quad(isum, v, x + 4 * j, x_stride, n_row, n_panel);
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
