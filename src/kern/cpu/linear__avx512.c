/* Packed linear micro-kernel, AVX-512 without VNNI: the integer dot, exact in the same two ways as
 * linear__avx2.c.
 *
 *   nibbles   VPMADDUBSW adds two products in int16, at most 2 * 15 * 127 = 3810 in size; the 8
 *             quads of a block are added in int16 (30480 at most), then VPMADDWD by ones.
 *   bytes     both sides are widened to int16, even and odd bytes apart; VPMADDWD adds pairs. */
#include "kern/cpu/linear_avx512.h"

INLINE __m512i broadcast_dword(const void *at) {
    int32_t dword;
    memcpy(&dword, at, 4);
    return _mm512_set1_epi32(dword);
}

/* Adds one quad of 4-bit codes; the first quad of a block starts the int16 sums. */
INLINE void add_quad(isums sum16, const __m512i *w, const uint8_t *x, size_t x_stride,
                     const bool first, const int n_row, const int n_panel) {
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        __m512i q = broadcast_dword(x + (size_t)r * x_stride);
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            __m512i pairs = _mm512_maddubs_epi16(w[p], q);
            sum16[r][p] = first ? pairs : _mm512_add_epi16(sum16[r][p], pairs);
        }
    }
}

/* Line j holds quad j in the low nibbles and quad j + 4 in the high ones. */
INLINE void dot_nibbles(isums isum, const uint8_t *w, size_t panel_bytes, const uint8_t *x,
                        size_t x_stride, const int n_row, const int n_panel) {
    const __m512i low = _mm512_set1_epi8(15), ones = _mm512_set1_epi16(1);
    isums sum16;
#pragma GCC unroll 8
    for (int j = 0; j < 4; j++) {
        __m512i lo[PANELS], hi[PANELS];
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            __m512i v = _mm512_loadu_si512(w + (size_t)p * panel_bytes + CPU_LINE * j);
            lo[p] = _mm512_and_si512(v, low);
            hi[p] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        }
        add_quad(sum16, lo, x + 4 * j, x_stride, j == 0, n_row, n_panel);
        add_quad(sum16, hi, x + 4 * j + 16, x_stride, false, n_row, n_panel);
    }
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++)
            isum[r][p] = _mm512_add_epi32(isum[r][p], _mm512_madd_epi16(sum16[r][p], ones));
    }
}

/* The rows' codes of a block, widened: dword j of parity 0 is (q[4j], q[4j + 2]), of parity 1
 * (q[4j + 1], q[4j + 3]). */
INLINE void widen_rows(int16_t wide[ROWS][2][16], const uint8_t *x, size_t x_stride,
                       const int n_row) {
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        __m256i q = _mm256_loadu_si256((const __m256i *)(x + (size_t)r * x_stride));
        __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8);
        _mm256_store_si256((__m256i *)wide[r][0], even);
        _mm256_store_si256((__m256i *)wide[r][1], _mm256_srai_epi16(q, 8));
    }
}

INLINE void dot_bytes(isums isum, const uint8_t *w, size_t panel_bytes, const uint8_t *x,
                      size_t x_stride, const int n_row, const int n_panel) {
    _Alignas(32) int16_t wide[ROWS][2][16];
    const __m512i low = _mm512_set1_epi16(255);
    widen_rows(wide, x, x_stride, n_row);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        __m512i even[PANELS], odd[PANELS];
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            __m512i v = _mm512_loadu_si512(w + (size_t)p * panel_bytes + CPU_LINE * j);
            even[p] = _mm512_and_si512(v, low);
            odd[p] = _mm512_srli_epi16(v, 8);
        }
#pragma GCC unroll 8
        for (int r = 0; r < n_row; r++) {
            __m512i q0 = broadcast_dword(wide[r][0] + 2 * j);
            __m512i q1 = broadcast_dword(wide[r][1] + 2 * j);
#pragma GCC unroll 8
            for (int p = 0; p < n_panel; p++) {
                __m512i sum =
                    _mm512_add_epi32(_mm512_madd_epi16(even[p], q0), _mm512_madd_epi16(odd[p], q1));
                isum[r][p] = _mm512_add_epi32(isum[r][p], sum);
            }
        }
    }
}

const cpu_linear_isa cpu_linear_avx512 = {
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
