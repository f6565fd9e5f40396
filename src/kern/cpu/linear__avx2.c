/* Packed linear micro-kernel, AVX2.
 *
 * The 16 outputs of a panel are two vectors; k is walked upward, and how many rows and panels run
 * side by side changes no sum. Two ways to an exact integer dot without VNNI, both of one group of
 * 32 or 16 values, in quads of 4:
 *
 *   short levels   VPMADDUBSW: level x int8, two products added in int16, and a run of quads added
 *                  in int16 too, less offset * sum(q), so that the end fits (cpu_short_runs). One
 *                  VPMADDWD by ones then gives int32.
 *   bytes          a product of two bytes needs all of int16, so both sides are widened first: even
 *                  and odd bytes of a dword become two vectors of int16, VPMADDWD adds pairs in
 *                  int32.
 *
 *   dword of output n:   byte  0    1    2    3       even: (k0, k2)   odd: (k1, k3)
 *                              k0   k1   k2   k3      the row's codes are taken apart likewise
 *
 * Levels are unsigned with an offset, which is undone by sums of q. */
#include "kern/cpu/linear_avx2.h"
#include "kern/cpu/norm__avx2.h"
#include "kern/cpu/vec_avx2.h"

/* A piece of a tile: up to 6 rows of one panel, or up to 3 rows of two. Vector v is outputs
 * 8 (v mod 2) .. + 7 of panel v / 2. */
enum { ROWS = CPU_TILE_ROWS, PANELS = 2, VECS = 2 * PANELS, WIDE_ROWS = 3 };

typedef __m256 sums[ROWS][VECS];
typedef __m256i isums[ROWS][VECS];

/* What a piece reads and writes; strides in bytes, that of out in floats. */
typedef struct piece {
    const cpu_leaf *l;
    const uint8_t *w, *x; /* first panel, first row */
    float *out;
    int32_t out_stride;
} piece;

INLINE void store_sums(const piece *p, sums acc, const int n_row, const int n_vec) {
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < n_vec; v++)
            _mm256_storeu_ps(p->out + r * p->out_stride + 8 * v, acc[r][v]);
    }
}

INLINE void clear_sums(sums acc, const int n_row, const int n_vec) {
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
#pragma GCC unroll 8
        for (int v = 0; v < n_vec; v++)
            acc[r][v] = _mm256_setzero_ps();
    }
}

/* Adds quad i of group g in int16; the first of a run starts the sums, with the offset's share. */
INLINE void add_quad(isums sum16, const dtype type, const int g, const int i, const bool first,
                     const uint8_t *w, size_t panel_bytes, const uint8_t *x, const uint8_t *x_sum,
                     size_t x_stride, const int n_row, const int n_vec) {
    const int quad = nth_quad(type, g, i), offset = block_forms[type].offset;
    __m256i level[VECS];
#pragma GCC unroll 8
    for (int v = 0; v < n_vec; v++)
        level[v] = load_levels(type, w, panel_bytes, quad, v);
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        const size_t row = (size_t)r * x_stride;
        __m256i q = broadcast_dword(x + row + 4 * quad), undo = q;
        if (first && offset)
            undo = _mm256_mullo_epi16(lane_sums(type, g, x_sum + row),
                                      _mm256_set1_epi16((int16_t)offset));
#pragma GCC unroll 8
        for (int v = 0; v < n_vec; v++) {
            __m256i pairs = _mm256_maddubs_epi16(level[v], q);
            if (!first)
                sum16[r][v] = _mm256_add_epi16(sum16[r][v], pairs);
            else
                sum16[r][v] = offset ? _mm256_sub_epi16(pairs, undo) : pairs;
            settle(&sum16[r][v]);
        }
    }
}

/* isum = the dots of group g; x: the rows' codes of the block, x_sum: their sums. */
INLINE void dot_short(isums isum, const dtype type, const int g, const uint8_t *w,
                      size_t panel_bytes, const uint8_t *x, const uint8_t *x_sum, size_t x_stride,
                      const int n_row, const int n_vec) {
    const int n_run = cpu_short_runs(type), n_quad = block_forms[type].group / 4 / n_run;
#pragma GCC unroll 2
    for (int run = 0; run < n_run; run++) {
        isums sum16;
#pragma GCC unroll 8
        for (int i = 0; i < n_quad; i++)
            add_quad(sum16, type, g, run * n_quad + i, i == 0, w, panel_bytes, x, x_sum, x_stride,
                     n_row, n_vec);
#pragma GCC unroll 8
        for (int r = 0; r < n_row; r++) {
#pragma GCC unroll 8
            for (int v = 0; v < n_vec; v++) {
                __m256i sum = _mm256_madd_epi16(sum16[r][v], _mm256_set1_epi16(1));
                isum[r][v] = run ? _mm256_add_epi32(isum[r][v], sum) : sum;
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

/* One half of the bytes of a quad, widened: acc += w . x of `parity`. */
INLINE void add_halves(isums isum, const __m256i *w, int16_t wide[ROWS][2][16], const int parity,
                       const int quad, const bool first, const int n_row, const int n_vec) {
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        __m256i q = broadcast_dword(wide[r][parity] + 2 * quad);
#pragma GCC unroll 8
        for (int v = 0; v < n_vec; v++) {
            __m256i pairs = _mm256_madd_epi16(w[v], q);
            isum[r][v] = first ? pairs : _mm256_add_epi32(isum[r][v], pairs);
            settle(&isum[r][v]);
        }
    }
}

INLINE void dot_bytes(isums isum, const dtype type, const uint8_t *w, size_t panel_bytes,
                      const uint8_t *x, const uint8_t *x_sum, size_t x_stride, const int n_row,
                      const int n_vec) {
    _Alignas(32) int16_t wide[ROWS][2][16];
    const __m256i low = _mm256_set1_epi16(255);
    const __m256i undo = _mm256_set1_epi16(-(int16_t)block_forms[type].offset);
    widen_rows(wide, x, x_stride, n_row);
    __asm__("" : "+m"(wide)); /* left alone, gcc keeps it in registers and shuffles */
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const int quad = nth_quad(type, 0, i);
        __m256i half[VECS];
#pragma GCC unroll 8
        for (int v = 0; v < n_vec; v++)
            half[v] = _mm256_and_si256(load_levels(type, w, panel_bytes, quad, v), low);
        add_halves(isum, half, wide, 0, quad, i == 0, n_row, n_vec);
#pragma GCC unroll 8
        for (int v = 0; v < n_vec; v++)
            half[v] = _mm256_srli_epi16(load_levels(type, w, panel_bytes, quad, v), 8);
        add_halves(isum, half, wide, 1, quad, false, n_row, n_vec);
    }
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        __m256i sum = lane_sums(type, 0, x_sum + (size_t)r * x_stride);
        __m256i start = _mm256_madd_epi16(sum, undo);
#pragma GCC unroll 8
        for (int v = 0; v < n_vec; v++)
            isum[r][v] = _mm256_add_epi32(isum[r][v], start);
    }
}

INLINE void prefetch(const uint8_t *at, size_t panel_bytes, int bytes, const int n_vec) {
#pragma GCC unroll 8
    for (int p = 0; p < n_vec / 2; p++) {
#pragma GCC unroll 8
        for (int i = 0; i < bytes; i += CPU_LINE)
            _mm_prefetch((const char *)at + (size_t)p * panel_bytes + i, _MM_HINT_T1);
    }
}

/* What multiplies the minimum of group g: a row's xs, or dx * sum of a half of the block. */
INLINE __m256 row_xs(const dtype type, const int g, const uint8_t *xs, const uint8_t *sum,
                     __m256 dx) {
    if (block_forms[type].group == CPU_BLOCK)
        return broadcast(xs);
    __m256i exact = _mm256_madd_epi16(lane_sums(type, g, sum), _mm256_set1_epi16(1));
    return _mm256_mul_ps(dx, _mm256_cvtepi32_ps(exact));
}

/* acc += (scale dx) isum, then with a minimum acc += minimum xs. x_dx points to dx of row 0; xs lie
 * `plane` bytes further on. */
INLINE void scale_group(sums acc, isums isum, const dtype type, const int g, const uint8_t *head,
                        const uint8_t *part, size_t panel_bytes, const uint8_t *x_dx, size_t plane,
                        const uint8_t *x_sum, size_t x_stride, const int n_row, const int n_vec) {
    __m256 d[VECS], m[VECS];
#pragma GCC unroll 8
    for (int v = 0; v < n_vec; v++) {
        d[v] = load_scale(type, g, head, part, panel_bytes, v);
        m[v] = has_minimum(type) ? load_minimum(type, g, head, part, panel_bytes, v) : d[v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        const size_t row = (size_t)r * x_stride;
        __m256 dx = broadcast(x_dx + row), xs = dx;
        if (has_minimum(type))
            xs = row_xs(type, g, x_dx + row + plane, x_sum + row, dx);
#pragma GCC unroll 8
        for (int v = 0; v < n_vec; v++) {
            __m256 dot = _mm256_cvtepi32_ps(isum[r][v]);
            acc[r][v] = _mm256_fmadd_ps(_mm256_mul_ps(d[v], dx), dot, acc[r][v]);
            if (has_minimum(type))
                acc[r][v] = _mm256_fmadd_ps(m[v], xs, acc[r][v]);
        }
    }
}

INLINE void piece_quantised(const piece *p, const dtype type, const int n_row, const int n_vec) {
    const cpu_leaf *l = p->l;
    const size_t pb = l->panel_bytes, stride = l->x_stride;
    const size_t plane = (size_t)l->x_k / CPU_BLOCK * 4;
    const size_t quant_bytes = packed_quant_bytes(type), unit_bytes = packed_unit_bytes(type);
    const size_t n_unit = (size_t)packed_unit_blocks(type);
    const size_t w_b0 = (size_t)l->k0 / CPU_BLOCK, x_b0 = (size_t)l->x_k0 / CPU_BLOCK;
    const uint8_t *w = p->w + w_b0 * quant_bytes, *scales = p->w + l->scale_at;
    const uint8_t *x = p->x + l->x_k0, *x_dx = p->x + l->x_k + x_b0 * 4;
    const uint8_t *x_sum = p->x + l->x_k + 2 * plane + x_b0 * 8;
    int32_t fetch = l->fetch_first;
    sums acc;
    clear_sums(acc, n_row, n_vec);
    for (int32_t b = 0; b < l->n_k / CPU_BLOCK; b++) {
        const size_t w_b = w_b0 + (size_t)b;
        const uint8_t *head = scales + w_b / n_unit * unit_bytes;
        const uint8_t *part =
            head + packed_head_bytes(type) + w_b % n_unit * packed_part_bytes(type);
        if (b == fetch) {
            prefetch(w + l->prefetch, pb, (int)quant_bytes, n_vec);
            prefetch(scales + w_b * unit_bytes / n_unit + l->prefetch, pb,
                     (int)(unit_bytes / n_unit), n_vec);
            fetch += l->fetch_step;
        }
#pragma GCC unroll 2
        for (int g = 0; g < CPU_BLOCK / block_forms[type].group; g++) {
            isums isum;
            if (cpu_is_short(type))
                dot_short(isum, type, g, w, pb, x, x_sum, stride, n_row, n_vec);
            else
                dot_bytes(isum, type, w, pb, x, x_sum, stride, n_row, n_vec);
            scale_group(acc, isum, type, g, head, part, pb, x_dx, plane, x_sum, stride, n_row,
                        n_vec);
        }
        w += quant_bytes;
        x += CPU_BLOCK;
        x_dx += 4;
        x_sum += 8;
    }
    store_sums(p, acc, n_row, n_vec);
}

/* Vector v of column k of the first panel's values `w`. A dword of bf16 holds columns k (even) and
 * k + 1 of one output. */
INLINE __m256 load_column(const dtype type, const uint8_t *w, size_t k, size_t panel_bytes, int v) {
    if (type == DTYPE_F32)
        return _mm256_castsi256_ps(load_vec(w + 64 * k, panel_bytes, v));
    if (type == DTYPE_F16)
        return load_f16(w + 32 * k + (size_t)(v / 2) * panel_bytes + 16 * (v % 2));
    __m256i pair = load_vec(w + 64 * (k / 2), panel_bytes, v);
    const __m256i high = _mm256_set1_epi32((int)0xFFFF0000u);
    return _mm256_castsi256_ps(k % 2 ? _mm256_and_si256(pair, high) : _mm256_slli_epi32(pair, 16));
}

INLINE void add_column(sums acc, const piece *p, const dtype type, int32_t k, size_t w_k,
                       const int n_row, const int n_vec) {
    const cpu_leaf *l = p->l;
    const uint8_t *x = p->x + (size_t)(l->x_k0 + k) * 4;
    __m256 w[VECS];
#pragma GCC unroll 8
    for (int v = 0; v < n_vec; v++)
        w[v] = load_column(type, p->w, w_k, l->panel_bytes, v);
#pragma GCC unroll 8
    for (int r = 0; r < n_row; r++) {
        __m256 value = broadcast(x + (size_t)r * l->x_stride);
#pragma GCC unroll 8
        for (int v = 0; v < n_vec; v++)
            acc[r][v] = _mm256_fmadd_ps(w[v], value, acc[r][v]);
    }
}

/* Two columns a turn, so that the halves of a bf16 pair are known while compiling: a leaf may
 * start with the high half of a pair and end with a low one. */
INLINE void piece_float(const piece *p, const dtype type, const int n_row, const int n_vec) {
    const cpu_leaf *l = p->l;
    const int two_columns = type == DTYPE_F32 ? 128 : 64;
    int32_t k = 0, fetch = l->fetch_first;
    size_t w_k = (size_t)l->k0;
    sums acc;
    clear_sums(acc, n_row, n_vec);
    if (w_k % 2) {
        add_column(acc, p, type, k, w_k / 2 * 2 + 1, n_row, n_vec);
        k++;
    }
    for (; k + 2 <= l->n_k; k += 2) {
        size_t pair = (w_k + (size_t)k) / 2;
        if (k / 2 == fetch) {
            prefetch(p->w + l->prefetch + pair * (size_t)two_columns, l->panel_bytes, two_columns,
                     n_vec);
            fetch += l->fetch_step;
        }
        add_column(acc, p, type, k, 2 * pair, n_row, n_vec);
        add_column(acc, p, type, k + 1, 2 * pair + 1, n_row, n_vec);
    }
    if (k < l->n_k)
        add_column(acc, p, type, k, (w_k + (size_t)k) / 2 * 2, n_row, n_vec);
    store_sums(p, acc, n_row, n_vec);
}

INLINE void piece_any(const piece *p, const dtype type, const int n_row, const int n_vec) {
    if (packed_is_quantised(type))
        piece_quantised(p, type, n_row, n_vec);
    else
        piece_float(p, type, n_row, n_vec);
}

/* One function per type and shape: <type>_<rows>x<panels>. */
typedef void piece_fn(const piece *p);
#define SHAPE(name, type, rows, panels)                                                            \
    static void name##_##rows##x##panels(const piece *p) {                                         \
        piece_any(p, type, rows, 2 * panels);                                                      \
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
    static piece_fn *const name##_shapes[PANELS][ROWS] = {                                         \
        {name##_1x1, name##_2x1, name##_3x1, name##_4x1, name##_5x1, name##_6x1},                  \
        {name##_1x2, name##_2x2, name##_3x2},                                                      \
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

/* Panels outside, so that the weights of a piece are still in the first-level cache for its other
 * rows. */
static void leaf_avx2(const cpu_leaf *l, int32_t n_row, int32_t n_panel) {
    static piece_fn *const(*const shapes[])[ROWS] = {
        [DTYPE_F32] = f32_shapes,       [DTYPE_F16] = f16_shapes,
        [DTYPE_BF16] = bf16_shapes,     [DTYPE_Q4_0] = q4_0_shapes,
        [DTYPE_Q4_1] = q4_1_shapes,     [DTYPE_Q5_0] = q5_0_shapes,
        [DTYPE_Q5_1] = q5_1_shapes,     [DTYPE_Q8_0] = q8_0_shapes,
        [DTYPE_Q2_K] = q2_k_shapes,     [DTYPE_Q3_K] = q3_k_shapes,
        [DTYPE_Q4_K] = q4_k_shapes,     [DTYPE_Q5_K] = q5_k_shapes,
        [DTYPE_Q6_K] = q6_k_shapes,     [DTYPE_IQ4_NL] = iq4_nl_shapes,
        [DTYPE_IQ4_XS] = iq4_xs_shapes, [DTYPE_MXFP4] = mxfp4_shapes,
    };
    int32_t wide = n_row <= WIDE_ROWS && n_panel >= PANELS ? PANELS : 1;
    piece p = {.l = l, .x = l->x, .out_stride = n_panel * CPU_PANEL};
    for (int32_t i = 0; i < n_panel; i += wide) {
        p.w = l->w + (size_t)i * l->panel_bytes;
        p.out = l->out + i * CPU_PANEL;
        shapes[l->type][wide - 1][n_row - 1](&p);
    }
}

static void store_avx2(const float *tile, int32_t n_row, int32_t width, int32_t n_valid,
                       const float *bias, float *y, size_t y_stride) {
    for (int32_t r = 0; r < n_row; r++, tile += width, y += y_stride)
        for (int32_t o = 0; o < n_valid; o += 8) {
            __m256i m = vec_first_lanes(n_valid - o);
            __m256 sum = _mm256_loadu_ps(tile + o);
            if (bias)
                sum = _mm256_add_ps(sum, _mm256_maskload_ps(bias + o, m));
            _mm256_maskstore_ps(y + o, m, sum);
        }
}

const cpu_linear_isa cpu_linear_avx2 = {
    .leaf = leaf_avx2,
    .unpack = cpu_unpack__avx2,
    .leaf_unpacked = cpu_leaf_unpacked__avx2,
    .store = store_avx2,
    .add = cpu_add__avx2,
    .quantise = cpu_quantise__avx2,
    .square_sum = cpu_square_sum__avx2,
    .scale = cpu_scale__avx2,
    .add_scaled = cpu_add_scaled__avx2,
    .glu = cpu_glu__avx2,
    .softcap = cpu_softcap__avx2,
};
