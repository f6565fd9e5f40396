/* Packed linear micro-kernel, AVX-512 without VNNI: the integer dot, exact in the same two ways as
 * linear__avx2.c.
 *
 *   short levels   VPMADDUBSW adds two products in int16, a run of quads is added in int16 with the
 *                  offset taken off (cpu_short_runs), then VPMADDWD by ones.
 *   bytes          both sides are widened to int16, even and odd bytes apart; VPMADDWD adds pairs. */
#include "kern/cpu/linear_avx512.h"

/* Adds quad i of group g in int16; the first of a run starts the sums, with the offset's share. */
INLINE void add_quad(isums sum16, const dtype type, const int g, const int i, const bool first,
                     const uint8_t *w, size_t panel_bytes, const uint8_t *x, const uint8_t *x_sum,
                     size_t x_stride, const int n_row, const int n_panel) {
    const int quad = nth_quad(type, g, i), offset = block_forms[type].offset;
    __m512i level[PANELS];
#pragma GCC unroll 8
    for (int p = 0; p < n_panel; p++)
        level[p] = load_levels(type, w + (size_t)p * panel_bytes, quad);
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        const size_t row = (size_t)r * x_stride;
        __m512i q = broadcast_dword(x + row + 4 * quad), undo = q;
        if (first && offset)
            undo = _mm512_mullo_epi16(lane_sums(type, g, x_sum + row),
                                      _mm512_set1_epi16((int16_t)offset));
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            __m512i pairs = _mm512_maddubs_epi16(level[p], q);
            if (!first)
                sum16[r][p] = _mm512_add_epi16(sum16[r][p], pairs);
            else
                sum16[r][p] = offset ? _mm512_sub_epi16(pairs, undo) : pairs;
        }
    }
}

INLINE void dot_short(isums isum, const dtype type, const int g, const uint8_t *w,
                      size_t panel_bytes, const uint8_t *x, const uint8_t *x_sum, size_t x_stride,
                      const int n_row, const int n_panel) {
    const int n_run = cpu_short_runs(type), n_quad = block_forms[type].group / 4 / n_run;
#pragma GCC unroll 2
    for (int run = 0; run < n_run; run++) {
        isums sum16;
#pragma GCC unroll 8
        for (int i = 0; i < n_quad; i++)
            add_quad(sum16, type, g, run * n_quad + i, i == 0, w, panel_bytes, x, x_sum, x_stride,
                     n_row, n_panel);
#pragma GCC unroll 8
        for (int r = 0; r < n_row; r++) {
#pragma GCC unroll 8
            for (int p = 0; p < n_panel; p++) {
                __m512i sum = _mm512_madd_epi16(sum16[r][p], _mm512_set1_epi16(1));
                isum[r][p] = run ? _mm512_add_epi32(isum[r][p], sum) : sum;
            }
        }
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

INLINE void dot_bytes(isums isum, const dtype type, const uint8_t *w, size_t panel_bytes,
                      const uint8_t *x, const uint8_t *x_sum, size_t x_stride, const int n_row,
                      const int n_panel) {
    _Alignas(32) int16_t wide[ROWS][2][16];
    const __m512i low = _mm512_set1_epi16(255);
    widen_rows(wide, x, x_stride, n_row);
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++)
            isum[r][p] =
                times_sum(type, 0, x_sum + (size_t)r * x_stride, -block_forms[type].offset);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const int quad = nth_quad(type, 0, i);
        __m512i even[PANELS], odd[PANELS];
#pragma GCC unroll 8
        for (int p = 0; p < n_panel; p++) {
            __m512i level = load_levels(type, w + (size_t)p * panel_bytes, quad);
            even[p] = _mm512_and_si512(level, low);
            odd[p] = _mm512_srli_epi16(level, 8);
        }
#pragma GCC unroll 8
        for (int r = 0; r < n_row; r++) {
            __m512i q0 = broadcast_dword(wide[r][0] + 2 * quad);
            __m512i q1 = broadcast_dword(wide[r][1] + 2 * quad);
#pragma GCC unroll 8
            for (int p = 0; p < n_panel; p++) {
                __m512i sum =
                    _mm512_add_epi32(_mm512_madd_epi16(even[p], q0), _mm512_madd_epi16(odd[p], q1));
                isum[r][p] = _mm512_add_epi32(isum[r][p], sum);
            }
        }
    }
}

INLINE void dot_group(isums isum, const dtype type, const int g, const uint8_t *w,
                      size_t panel_bytes, const uint8_t *x, const uint8_t *x_sum, size_t x_stride,
                      const int n_row, const int n_panel) {
    if (cpu_is_short(type))
        dot_short(isum, type, g, w, panel_bytes, x, x_sum, x_stride, n_row, n_panel);
    else
        dot_bytes(isum, type, w, panel_bytes, x, x_sum, x_stride, n_row, n_panel);
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
