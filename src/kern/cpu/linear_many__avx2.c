/* Packed linear micro-kernel for many rows, AVX2: a panel is unpacked once, then all row tiles read
 * that. The sums are those of linear__avx2.c, whose two ways to an exact dot change as follows.
 *
 *   short levels   VPMADDUBSW as there, always one run: `centre` is taken off each level in int16,
 *                  and where that is not the offset the rest is added in int32, rest * sum(q).
 *   bytes          two int16 lanes that hold a code and a level side by side, multiplied:
 *
 *                    (256 q0 + w1) (256 q1 + w0) = 65536 q0 q1 + 256 (q0 w0 + q1 w1) + w0 w1
 *
 *                  VPMADDWD adds two of these, so it does four products where widened bytes give
 *                  it two, for a VPOR each side. The sums wrap modulo 2^32. What the row alone and
 *                  the weights alone make is taken off; what is left is 256 times the dot, which
 *                  fits: 256 * 32 * 127 * 128 < 2^31.
 *
 *   dword of a quad   byte  0   1   2   3
 *   weights, even           w1  0   w3  0        OR codes, even   0  q0  0  q2
 *   weights, odd            w0  0   w2  0        OR codes, odd    0  q1  0  q3
 *
 * With levels w and an offset o, the dot of a row with o in place of every level is known from the
 * row: it is taken off in the same form, less 16 o^2, what 16 pairs of weights o make alone.
 *
 * An unpacked group of 32 or 16 columns of a panel:
 *   short   u8 level[quads][16 outputs][4] | f32 scale[16] | f32 minimum[16], where there is one
 *   bytes   u16 level[quads][2 vectors]{even, odd}[8 outputs][2] | f32 scale[16] | i32 own[16] */
#include <assert.h>

#include "kern/cpu/linear_avx2.h"
#include "kern/cpu/norm__avx2.h"

enum {
    ROWS = CPU_TILE_ROWS,
    LEAST_ROWS = CPU_UNPACKED_ROWS,
    VECS = 2,  /* a panel */
    CHUNK = 8, /* blocks for which the rows are prepared at a time */
    LEVEL_BYTES = CPU_BLOCK * CPU_PANEL
};

/* What the kernels read of a tile's rows besides their records, for a chunk of blocks. */
typedef struct rows_ready {
    int32_t undo[ROWS][2 * CHUNK];    /* by group: a pair of int16, -centre * lane sums of q */
    int32_t rest[ROWS][CHUNK];        /* rest * sum(q); bytes: what the row makes alone, negated */
    float xs[ROWS][2 * CHUNK];        /* groups of 16: what multiplies the minimum */
    int16_t wide[ROWS][CHUNK][2][16]; /* bytes: even and odd codes times 256 */
} rows_ready;

/* A chunk of one panel and the rows of a tile; strides in bytes, that of out in floats. */
typedef struct piece {
    const uint8_t *w;
    const uint8_t *x, *dx;  /* first row: codes and scales of the chunk */
    size_t x_stride, plane; /* xs lies `plane` bytes behind dx */
    const rows_ready *rows;
    float *out;
    int32_t n_group, out_stride;
} piece;

typedef __m256 sums[ROWS][VECS];
typedef __m256i isums[ROWS][VECS];

/* ---- panels ---- */

INLINE int group_count(const dtype type) {
    return CPU_BLOCK / block_forms[type].group;
}

/* What is taken off the levels in int16, so that a group is one run (cpu_short_runs). */
INLINE int centre_of(const dtype type) {
    const block_form f = block_forms[type];
    return cpu_short_runs(type) == 1 ? f.offset : (f.most + 1) / 2;
}

INLINE __m256i load(const void *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}

INLINE void put(void *at, __m256i x) {
    _mm256_storeu_si256((__m256i *)at, x);
}

/* An unpacked group: its levels, then what comes with them. */
INLINE size_t level_bytes(const dtype type) {
    return (size_t)(cpu_is_short(type) ? 1 : 2) * LEVEL_BYTES / (size_t)group_count(type);
}

INLINE size_t group_bytes(const dtype type) {
    return cpu_unpacked_bytes(type) / (size_t)group_count(type);
}

/* The levels of group g. */
INLINE void unpack_short(const dtype type, const uint8_t *w, const int g, uint8_t *to) {
    const int n_quad = 8 / group_count(type);
#pragma GCC unroll 16
    for (int i = 0; i < n_quad * VECS; i++)
        put(to + 32 * i, load_levels(type, w, 0, n_quad * g + i / VECS, i % VECS));
}

INLINE void unpack_bytes(const dtype type, const uint8_t *w, uint8_t *to) {
    const int offset = block_forms[type].offset;
#pragma GCC unroll 2
    for (int v = 0; v < VECS; v++) {
        __m256i own = _mm256_set1_epi32(16 * offset * offset);
#pragma GCC unroll 8
        for (int quad = 0; quad < 8; quad++) {
            __m256i level = load_levels(type, w, 0, quad, v);
            __m256i even = _mm256_srli_epi16(level, 8);
            __m256i odd = _mm256_and_si256(level, _mm256_set1_epi16(255));
            put(to + 128 * quad + 64 * v, even);
            put(to + 128 * quad + 64 * v + 32, odd);
            own = _mm256_sub_epi32(own, _mm256_madd_epi16(even, odd));
        }
        put(to + 2 * LEVEL_BYTES + 64 + 32 * v, own);
    }
}

INLINE void unpack_block(const dtype type, const uint8_t *w, const uint8_t *head,
                         const uint8_t *part, uint8_t *to) {
#pragma GCC unroll 2
    for (int g = 0; g < group_count(type); g++) {
        float *scale = (float *)(to + level_bytes(type));
        if (cpu_is_short(type))
            unpack_short(type, w, g, to);
        else
            unpack_bytes(type, w, to);
#pragma GCC unroll 2
        for (int v = 0; v < VECS; v++) {
            _mm256_storeu_ps(scale + 8 * v, load_scale(type, g, head, part, 0, v));
            if (has_minimum(type))
                _mm256_storeu_ps(scale + CPU_PANEL + 8 * v,
                                 load_minimum(type, g, head, part, 0, v));
        }
        to += group_bytes(type);
    }
}

INLINE void unpack_panel(const cpu_leaf *l, const dtype type, const uint8_t *panel, uint8_t *to) {
    const size_t unit_blocks = (size_t)packed_unit_blocks(type);
    for (int32_t i = 0; i < l->n_k / CPU_BLOCK; i++) {
        size_t b = (size_t)(l->k0 / CPU_BLOCK + i);
        const uint8_t *head = panel + l->scale_at + b / unit_blocks * packed_unit_bytes(type);
        const uint8_t *part =
            head + packed_head_bytes(type) + b % unit_blocks * packed_part_bytes(type);
        unpack_block(type, panel + b * packed_quant_bytes(type), head, part,
                     to + (size_t)i * cpu_unpacked_bytes(type));
    }
}

/* ---- rows ---- */

/* Do the kernels read anything of rows_ready. */
static bool needs_ready(dtype type) {
    return centre_of(type) != 0 || group_count(type) == 2;
}

/* Dwords 2 i (odd = 0) or 2 i + 1 (1) of 16. */
INLINE __m256i every_second(__m256i a, __m256i b, const int odd) {
    __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
    x = odd ? _mm256_shuffle_ps(x, y, 0xDD) : _mm256_shuffle_ps(x, y, 0x88);
    return _mm256_permute4x64_epi64(_mm256_castps_si256(x), 0xD8);
}

/* sum, dx: of the 8 blocks of a chunk. */
static void ready_short(dtype type, const int16_t *sum, const float *dx, int r, rows_ready *to) {
    const int centre = centre_of(type), rest = centre - block_forms[type].offset;
    const __m256i minus = _mm256_set1_epi16((int16_t)-centre);
    __m256i half[2] = {load(sum), load(sum + 16)};
    if (group_count(type) == 1) {
        __m256i lanes =
            _mm256_add_epi16(every_second(half[0], half[1], 0), every_second(half[0], half[1], 1));
        put(to->undo[r], _mm256_mullo_epi16(lanes, minus));
        put(to->rest[r], _mm256_madd_epi16(lanes, _mm256_set1_epi16((int16_t)rest)));
        return;
    }
    put(to->undo[r], _mm256_mullo_epi16(half[0], minus));
    put(to->undo[r] + 8, _mm256_mullo_epi16(half[1], minus));
    for (int i = 0; has_minimum(type) && i < 2 * CHUNK; i++)
        to->xs[r][i] = dx[i / 2] * (float)(sum[2 * i] + sum[2 * i + 1]);
}

/* The eight dwords of each of eight vectors summed. */
INLINE __m256i sum_eight(const __m256i *x) {
    __m256i low = _mm256_hadd_epi32(_mm256_hadd_epi32(x[0], x[1]), _mm256_hadd_epi32(x[2], x[3]));
    __m256i high = _mm256_hadd_epi32(_mm256_hadd_epi32(x[4], x[5]), _mm256_hadd_epi32(x[6], x[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                            _mm256_permute2x128_si256(low, high, 0x31));
}

static void ready_bytes(dtype type, const uint8_t *q, int32_t n_block, int r, rows_ready *to) {
    const __m256i offset = _mm256_set1_epi16(block_forms[type].offset);
    __m256i own[CHUNK];
    for (int32_t b = 0; b < CHUNK; b++)
        own[b] = _mm256_setzero_si256();
    for (int32_t b = 0; b < n_block; b++) {
        __m256i codes = load(q + CPU_BLOCK * b);
        __m256i even = _mm256_slli_epi16(codes, 8);
        __m256i odd = _mm256_and_si256(codes, _mm256_set1_epi16((int16_t)0xFF00));
        put(to->wide[r][b][0], even);
        put(to->wide[r][b][1], odd);
        own[b] = _mm256_madd_epi16(_mm256_or_si256(even, offset), _mm256_or_si256(odd, offset));
    }
    put(to->rest[r], _mm256_sub_epi32(_mm256_setzero_si256(), sum_eight(own)));
}

/* Rows of l for blocks [b0, b0 + n_block) of the leaf. */
static void ready_rows(const cpu_leaf *l, int32_t b0, int32_t n_block, int32_t n_row,
                       rows_ready *to) {
    const size_t n_all = (size_t)l->x_k / CPU_BLOCK, b = (size_t)(l->x_k0 / CPU_BLOCK + b0);
    int16_t sums_copy[CHUNK * 4] = {0};
    float dx_copy[CHUNK] = {0};
    for (int32_t r = 0; r < n_row; r++) {
        const uint8_t *record = l->x + (size_t)r * l->x_stride;
        const int16_t *sum = (const int16_t *)(record + l->x_k + n_all * 8 + b * 8);
        const float *dx = (const float *)(record + l->x_k + b * 4);
        if (!cpu_is_short(l->type)) {
            ready_bytes(l->type, record + b * CPU_BLOCK, n_block, r, to);
            continue;
        }
        if (n_block < CHUNK) { /* a whole chunk could reach over the end of the record */
            sum = memcpy(sums_copy, sum, (size_t)n_block * 8);
            dx = memcpy(dx_copy, dx, (size_t)n_block * 4);
        }
        ready_short(l->type, sum, dx, r, to);
    }
}

/* ---- dots ---- */

/* acc += (scale dx) isum of sum (r, v) of group n, then with a minimum acc += minimum xs. */
INLINE void scale_sum(sums acc, isums dot, const piece *p, const dtype type, const int n,
                      const int r, const int v) {
    const int n_group = group_count(type), b = n / n_group;
    const uint8_t *at = p->w + (size_t)n * group_bytes(type) + level_bytes(type) + 32 * v;
    const uint8_t *row = p->dx + (size_t)r * p->x_stride + 4 * b;
    __m256i isum = dot[r][v];
    if (cpu_is_short(type))
        isum = _mm256_madd_epi16(isum, _mm256_set1_epi16(1));
    else
        isum = _mm256_srai_epi32(isum, 8);
    if (cpu_is_short(type) && centre_of(type) != block_forms[type].offset)
        isum = _mm256_add_epi32(isum, broadcast_dword(&p->rows->rest[r][n]));
    __m256 dx = broadcast(row), scale = _mm256_loadu_ps((const float *)at);
    acc[r][v] = _mm256_fmadd_ps(_mm256_mul_ps(scale, dx), _mm256_cvtepi32_ps(isum), acc[r][v]);
    if (!has_minimum(type))
        return;
    __m256 xs = n_group == 1 ? broadcast(row + p->plane) : _mm256_set1_ps(p->rows->xs[r][n]);
    acc[r][v] = _mm256_fmadd_ps(_mm256_loadu_ps((const float *)(at + 64)), xs, acc[r][v]);
}

/* One quad of group n and row r; the first of a group starts the sums. */
INLINE void add_short(isums sum16, const __m256i *level, const piece *p, const dtype type,
                      const int n, const int quad, const int r) {
    const int at = n * 8 / group_count(type) + quad;
    __m256i q = broadcast_dword(p->x + (size_t)r * p->x_stride + 4 * at), start = q;
    const bool undo = centre_of(type) != 0;
    if (quad == 0 && undo)
        start = broadcast_dword(&p->rows->undo[r][n]);
#pragma GCC unroll 2
    for (int v = 0; v < VECS; v++) {
        __m256i pairs = _mm256_maddubs_epi16(level[v], q);
        if (quad != 0)
            sum16[r][v] = _mm256_add_epi16(sum16[r][v], pairs);
        else
            sum16[r][v] = undo ? _mm256_add_epi16(start, pairs) : pairs;
        settle(&sum16[r][v]);
    }
}

INLINE void add_bytes(isums isum, const __m256i *level, const piece *p, const int n, const int quad,
                      const int r) {
    __m256i even = broadcast_dword(p->rows->wide[r][n][0] + 2 * quad);
    __m256i odd = broadcast_dword(p->rows->wide[r][n][1] + 2 * quad);
#pragma GCC unroll 2
    for (int v = 0; v < VECS; v++) {
        __m256i pairs = _mm256_madd_epi16(_mm256_or_si256(even, level[2 * v]),
                                          _mm256_or_si256(odd, level[2 * v + 1]));
        isum[r][v] = _mm256_add_epi32(isum[r][v], pairs);
        settle(&isum[r][v]);
    }
}

/* dot = that of group n and rows [r0, r1). */
INLINE void dot_short(isums dot, const piece *p, const dtype type, const int n, const uint8_t *w,
                      const int r0, const int r1) {
    const int n_quad = 8 / group_count(type);
#pragma GCC unroll 8
    for (int quad = 0; quad < n_quad; quad++) {
        const __m256i level[VECS] = {load(w + 64 * quad), load(w + 64 * quad + 32)};
#pragma GCC unroll 8
        for (int r = r0; r < r1; r++)
            add_short(dot, level, p, type, n, quad, r);
    }
}

INLINE void dot_bytes(isums dot, const piece *p, const int n, const uint8_t *w, const int r0,
                      const int r1) {
    const uint8_t *own = w + 2 * LEVEL_BYTES + 64;
#pragma GCC unroll 8
    for (int r = r0; r < r1; r++) {
#pragma GCC unroll 2
        for (int v = 0; v < VECS; v++)
            dot[r][v] = _mm256_add_epi32(broadcast_dword(&p->rows->rest[r][n]), load(own + 32 * v));
    }
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; quad++) {
        __m256i level[2 * VECS];
#pragma GCC unroll 4
        for (int i = 0; i < 2 * VECS; i++)
            level[i] = load(w + 128 * quad + 32 * i);
#pragma GCC unroll 8
        for (int r = r0; r < r1; r++)
            add_bytes(dot, level, p, n, quad, r);
    }
}

/* acc += what group n gives. Sums of bytes need more registers than there are for all rows. */
INLINE void add_group(sums acc, const piece *p, const dtype type, const int n, const int n_row) {
    const uint8_t *w = p->w + (size_t)n * group_bytes(type);
    const int step = cpu_is_short(type) ? n_row : (n_row + 1) / 2;
#pragma GCC unroll 2
    for (int r0 = 0; r0 < n_row; r0 += step) {
        const int r1 = r0 + step < n_row ? r0 + step : n_row;
        isums dot;
        if (cpu_is_short(type))
            dot_short(dot, p, type, n, w, r0, r1);
        else
            dot_bytes(dot, p, n, w, r0, r1);
#pragma GCC unroll 16
        for (int i = r0 * VECS; i < r1 * VECS; i++)
            scale_sum(acc, dot, p, type, n, i / VECS, i % VECS);
    }
}

INLINE void piece_any(const piece *p, const dtype type, const int n_row) {
    sums acc;
#pragma GCC unroll 16
    for (int i = 0; i < n_row * VECS; i++)
        acc[i / VECS][i % VECS] =
            _mm256_loadu_ps(p->out + i / VECS * p->out_stride + 8 * (i % VECS));
    for (int n = 0; n < p->n_group; n++)
        add_group(acc, p, type, n, n_row);
#pragma GCC unroll 16
    for (int i = 0; i < n_row * VECS; i++)
        _mm256_storeu_ps(p->out + i / VECS * p->out_stride + 8 * (i % VECS),
                         acc[i / VECS][i % VECS]);
}

/* ---- tables ---- */

typedef void unpack_fn(const cpu_leaf *l, const uint8_t *panel, uint8_t *to);
typedef void piece_fn(const piece *p);

#define UNPACK(name, type)                                                                         \
    static void unpack_##name(const cpu_leaf *l, const uint8_t *panel, uint8_t *to) {              \
        unpack_panel(l, type, panel, to);                                                          \
    }
UNPACK(q4_0, DTYPE_Q4_0)
UNPACK(q4_1, DTYPE_Q4_1)
UNPACK(q5_0, DTYPE_Q5_0)
UNPACK(q5_1, DTYPE_Q5_1)
UNPACK(q8_0, DTYPE_Q8_0)
UNPACK(q2_k, DTYPE_Q2_K)
UNPACK(q3_k, DTYPE_Q3_K)
UNPACK(q4_k, DTYPE_Q4_K)
UNPACK(q5_k, DTYPE_Q5_K)
UNPACK(q6_k, DTYPE_Q6_K)
UNPACK(iq4_nl, DTYPE_IQ4_NL)
UNPACK(iq4_xs, DTYPE_IQ4_XS)
UNPACK(mxfp4, DTYPE_MXFP4)

/* Unpacked, types differ in their groups, minima, centre and rest alone: a family for each. */
#define PIECE(name, type, rows)                                                                    \
    static void name##_##rows(const piece *p) {                                                    \
        piece_any(p, type, rows);                                                                  \
    }
#define FAMILY(name, type)                                                                         \
    PIECE(name, type, 4)                                                                           \
    PIECE(name, type, 5)                                                                           \
    PIECE(name, type, 6)                                                                           \
    static piece_fn *const name##_rows[] = {name##_4, name##_5, name##_6};
FAMILY(offset, DTYPE_Q4_0)
FAMILY(minimum, DTYPE_Q4_1)
FAMILY(rest, DTYPE_Q5_1)
FAMILY(halves, DTYPE_Q6_K)
FAMILY(minimum_halves, DTYPE_Q2_K)
FAMILY(bytes, DTYPE_Q8_0)

static const struct {
    unpack_fn *unpack;
    piece_fn *const *rows;
} types[] = {
    [DTYPE_Q4_0] = {unpack_q4_0, offset_rows},   [DTYPE_Q5_0] = {unpack_q5_0, offset_rows},
    [DTYPE_MXFP4] = {unpack_mxfp4, offset_rows}, [DTYPE_Q4_1] = {unpack_q4_1, minimum_rows},
    [DTYPE_Q4_K] = {unpack_q4_k, minimum_rows},  [DTYPE_Q5_1] = {unpack_q5_1, rest_rows},
    [DTYPE_Q5_K] = {unpack_q5_k, rest_rows},     [DTYPE_Q3_K] = {unpack_q3_k, halves_rows},
    [DTYPE_Q6_K] = {unpack_q6_k, halves_rows},   [DTYPE_Q2_K] = {unpack_q2_k, minimum_halves_rows},
    [DTYPE_Q8_0] = {unpack_q8_0, bytes_rows},    [DTYPE_IQ4_NL] = {unpack_iq4_nl, bytes_rows},
    [DTYPE_IQ4_XS] = {unpack_iq4_xs, bytes_rows}};

void cpu_unpack__avx2(const cpu_leaf *l, int32_t n_panel, uint8_t *to) {
    size_t bytes = (size_t)(l->n_k / CPU_BLOCK) * cpu_unpacked_bytes(l->type);
    for (int32_t i = 0; i < n_panel; i++)
        types[l->type].unpack(l, l->w + (size_t)i * l->panel_bytes, to + (size_t)i * bytes);
}

void cpu_leaf_unpacked__avx2(const cpu_leaf *l, int32_t n_row, int32_t n_panel) {
    assert(n_row >= LEAST_ROWS && n_row <= ROWS);
    const size_t plane = (size_t)l->x_k / CPU_BLOCK * 4, block = cpu_unpacked_bytes(l->type);
    const int32_t n_all = l->n_k / CPU_BLOCK;
    _Alignas(32) rows_ready rows;
    memset(l->out, 0, (size_t)(n_row * n_panel * CPU_PANEL) * sizeof(float));
    for (int32_t b0 = 0; b0 < n_all; b0 += CHUNK) {
        int32_t n = n_all - b0 < CHUNK ? n_all - b0 : CHUNK;
        size_t xb = (size_t)(l->x_k0 / CPU_BLOCK + b0), wb = (size_t)(l->k0 / CPU_BLOCK + b0);
        if (needs_ready(l->type))
            ready_rows(l, b0, n, n_row, &rows);
        piece p = {.x = l->x + xb * CPU_BLOCK,
                   .dx = l->x + l->x_k + xb * 4,
                   .x_stride = l->x_stride,
                   .plane = plane,
                   .rows = &rows,
                   .n_group = n * group_count(l->type),
                   .out_stride = n_panel * CPU_PANEL};
        for (int32_t i = 0; i < n_panel; i++) {
            p.w = l->w + (size_t)i * l->panel_bytes + wb * block;
            p.out = l->out + i * CPU_PANEL;
            types[l->type].rows[n_row - LEAST_ROWS](&p);
        }
    }
}
