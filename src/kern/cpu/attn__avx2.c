/* Attention with keys in the lanes for scores and softmax, values' d in the lanes for outputs.
 *
 * Two ymm hold a page's 16 scores of a row. Sixteen registers make the shapes: 8 to 12 fma chains
 * besides what is loaded. Scores take 3 to 6 rows x 1 page, or fewer rows x 2 or 4 pages; softmax
 * and outputs take 4 rows at a time. */
#include "kern/cpu/attn_isa.h"
#include "kern/cpu/exact_avx2.h"

#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))
/* A loop over a constant count, unrolled so that arrays of accumulators become registers. */
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

enum {
    FEW = 3,       /* rows of a block that are scored several pages at a time */
    TOGETHER = 6,  /* most rows scored together */
    ROWS = 4,      /* rows of softmax and output together */
    HALF = 8,      /* lanes: half a page */
    MAX_VECTOR = 8 /* most vectors of a row's output in registers */
};

/* ---- work memory: attn_isa.h's sizes ---- */

/* Rows are scored in groups of up to six, whose sizes differ by one at most:
 *   n_row 8: rows 0..3, 4..7;   n_row 15: rows 0..4, 5..9, 10..14;   n_row 7: rows 0..2, 3..6
 * The queries of the group that starts at row r lie at r * head_dim as [d][rows of the group]. */
static int32_t group_count(const cpu_block *b) {
    return (b->n_row + TOGETHER - 1) / TOGETHER;
}
static float *wide_keys(const cpu_block *b) {
    return b->work + (size_t)b->n_row * (size_t)b->o_stride;
}
static float *wide_values(const cpu_block *b) {
    return wide_keys(b) + (size_t)CPU_PAGE * (size_t)b->o_stride;
}
static float *weights(const cpu_block *b) { /* p: [4][16] */
    return wide_values(b) + (size_t)CPU_PAGE * (size_t)b->o_stride;
}
static float *scores(const cpu_block *b, int32_t page) { /* [page][row rounded up to 4][16] */
    size_t rows = (size_t)cpu_round_up(b->n_row, ROWS);
    return weights(b) + ROWS * CPU_PAGE + (size_t)page * rows * CPU_PAGE;
}

/* A page that is read more than once is widened once. */
static bool is_reused(const cpu_block *b) {
    return b->n_row > TOGETHER && b->type != KERN_KV_F32;
}
/* Values whose rows are no whole vectors are widened too, so that no load passes the page's end. */
static bool values_are_widened(const cpu_block *b) {
    return is_reused(b) || b->head_dim != b->o_stride;
}

static void begin(cpu_block *b) {
    b->page_batch = b->n_row > FEW ? 1 : b->n_row > 1 ? 2 : 4;
    size_t n_d = (size_t)b->head_dim;
    int32_t n_group = group_count(b);
    for (int32_t g = 0; g < n_group; g++) {
        int32_t from = cpu_share(b->n_row, g, n_group), to = cpu_share(b->n_row, g + 1, n_group);
        size_t n = (size_t)(to - from);
        for (int32_t r = from; r < to; r++) {
            const float *q =
                b->q + (size_t)(r / b->group) * b->q_stride + (size_t)(r % b->group) * n_d;
            float *at = b->work + (size_t)from * n_d + (r - from);
            for (size_t d = 0; d < n_d; d++)
                at[d * n] = q[d];
        }
    }
}

/* ---- loads that widen ---- */

INLINE __m256 load_f32(const uint8_t *at) {
    return _mm256_loadu_ps((const float *)(const void *)at);
}
INLINE __m256 load_f16(const uint8_t *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at));
}
/* One of each pair. */
INLINE __m256 load_bf16(const uint8_t *at, bool odd) {
    __m256i pairs = _mm256_loadu_si256((const __m256i *)(const void *)at);
    return _mm256_castsi256_ps(odd ? _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u))
                                   : _mm256_slli_epi32(pairs, 16));
}

/* Keys 8 half .. 8 half + 7 at d; odd: d's parity, a constant. */
INLINE __m256 load_keys(kern_kv_type type, const uint8_t *k, int32_t d, bool odd, int half) {
    if (type == KERN_KV_F32)
        return load_f32(k + d * CPU_PAGE * 4 + half * HALF * 4);
    if (type == KERN_KV_F16)
        return load_f16(k + d * CPU_PAGE * 2 + half * HALF * 2);
    return load_bf16(k + (d - odd) * CPU_PAGE * 2 + half * HALF * 4, odd);
}

/* Values of one key at d .. d + 7; odd: the key's parity, a constant; stride: elements from key to
 * key. */
INLINE __m256 load_values(kern_kv_type type, const uint8_t *v, int32_t stride, int32_t key,
                          bool odd, int32_t d) {
    if (type == KERN_KV_F32)
        return load_f32(v + 4 * (key * stride + d));
    if (type == KERN_KV_F16)
        return load_f16(v + 2 * (key * stride + d));
    return load_bf16(v + 4 * ((key >> 1) * stride + d), odd);
}

static void widen_keys(const cpu_block *b, const uint8_t *k, float *to) {
    bool half_floats = b->type == KERN_KV_F16;
    for (int32_t d = 0; d < b->head_dim; d += 2)
        EACH(i, 2) {
            EACH(half, 2) {
                __m256 x = half_floats ? load_keys(KERN_KV_F16, k, d + i, i, half)
                                       : load_keys(KERN_KV_BF16, k, d + i, i, half);
                _mm256_storeu_ps(to + (d + i) * CPU_PAGE + half * HALF, x);
            }
        }
}

/* d .. d + 7 of keys 2 pair and 2 pair + 1. */
INLINE void widen_pair(kern_kv_type type, const uint8_t *v, int32_t stride, int32_t d, float *to,
                       int32_t to_stride) {
    __m256 even, odd;
    if (type == KERN_KV_F32) {
        even = load_values(KERN_KV_F32, v, stride, 0, false, d);
        odd = load_values(KERN_KV_F32, v, stride, 1, true, d);
    } else if (type == KERN_KV_F16) {
        even = load_values(KERN_KV_F16, v, stride, 0, false, d);
        odd = load_values(KERN_KV_F16, v, stride, 1, true, d);
    } else {
        even = load_values(KERN_KV_BF16, v, stride, 0, false, d);
        odd = load_values(KERN_KV_BF16, v, stride, 1, true, d);
    }
    _mm256_storeu_ps(to, even);
    _mm256_storeu_ps(to + to_stride, odd);
}

/* The last n < 8 values of two keys and zeros, copied to where whole vectors can be loaded. */
static void widen_tail(kern_kv_type type, const uint8_t *v, int32_t stride, int32_t d, int32_t n,
                       float *to, int32_t to_stride) {
    uint8_t copy[2 * HALF * 4] = {0}; /* two keys of 8 */
    size_t elem = kern_kv_elem(type);
    if (type == KERN_KV_BF16) {
        memcpy(copy, v + (size_t)d * 4, (size_t)n * 4);
    } else {
        memcpy(copy, v + (size_t)d * elem, (size_t)n * elem);
        memcpy(copy + HALF * elem, v + (size_t)(stride + d) * elem, (size_t)n * elem);
    }
    widen_pair(type, copy, HALF, 0, to, to_stride);
}

/* [16][head_dim] to [16][o_stride], 0 behind head_dim. */
static void widen_values(const cpu_block *b, const uint8_t *v, float *to) {
    int32_t n = b->head_dim, whole = n / HALF * HALF;
    size_t pair_bytes = 2 * (size_t)n * kern_kv_elem(b->type);
    for (int32_t key = 0; key < CPU_PAGE; key += 2, v += pair_bytes, to += 2 * b->o_stride) {
        for (int32_t d = 0; d < whole; d += HALF)
            widen_pair(b->type, v, n, d, to + d, b->o_stride);
        for (int32_t d = whole; d < b->o_stride; d += HALF)
            widen_tail(b->type, v, n, d, d < n ? n - d : 0, to + d, b->o_stride);
    }
}

/* ---- scores ---- */

/* acc += q[d] k[.][d] of n_row rows and n_page pages; q: the group's queries at d. */
INLINE void score_step(kern_kv_type type, int n_page, int n_row, const uint8_t *const *k, int32_t d,
                       bool odd, const float *q, __m256 acc[4][TOGETHER][2]) {
    EACH(p, n_page) {
        __m256 k0 = load_keys(type, k[p], d, odd, 0), k1 = load_keys(type, k[p], d, odd, 1);
        EACH(r, n_row) {
            __m256 x = _mm256_broadcast_ss(q + r);
            acc[p][r][0] = _mm256_fmadd_ps(x, k0, acc[p][r][0]);
            acc[p][r][1] = _mm256_fmadd_ps(x, k1, acc[p][r][1]);
        }
    }
}

/* The n_row rows of a group against n_page pages; V of several pages is fetched ahead. */
INLINE void score_rows(kern_kv_type type, int n_page, int n_row, const cpu_block *b,
                       const uint8_t *const *k, const float *q, float *const *out) {
    __m256 acc[4][TOGETHER][2];
    EACH(p, n_page) {
        EACH(r, n_row) {
            acc[p][r][0] = acc[p][r][1] = _mm256_setzero_ps();
        }
    }
    int32_t n_d = b->head_dim;
    size_t line = 2 * CPU_PAGE * kern_kv_elem(type); /* bytes of K, and of V, for two d */
    size_t values = line * (size_t)(n_d / 2);
    for (int32_t d = 0; d < n_d; d += 2, q += 2 * n_row) {
        if (n_page > 1)
            EACH(p, n_page) {
                const char *v = (const char *)k[p] + values + line * (size_t)(d / 2);
                _mm_prefetch(v, _MM_HINT_T0);
                if (type == KERN_KV_F32)
                    _mm_prefetch(v + 64, _MM_HINT_T0);
            }
        score_step(type, n_page, n_row, k, d, false, q, acc);
        score_step(type, n_page, n_row, k, d + 1, true, q + n_row, acc);
    }
    __m256 scale = _mm256_set1_ps(b->scale);
    EACH(p, n_page) {
        EACH(r, n_row) {
            float *to = out[p] + r * CPU_PAGE;
            _mm256_storeu_ps(to, _mm256_mul_ps(acc[p][r][0], scale));
            _mm256_storeu_ps(to + HALF, _mm256_mul_ps(acc[p][r][1], scale));
        }
    }
}

INLINE void score_few(kern_kv_type type, const cpu_block *b, const uint8_t *const *k,
                      float *const *out) {
    switch (b->n_row) {
    case 1:
        score_rows(type, 4, 1, b, k, b->work, out);
        break;
    case 2:
        score_rows(type, 2, 2, b, k, b->work, out);
        break;
    default:
        score_rows(type, 2, 3, b, k, b->work, out);
    }
}

INLINE void score_many(kern_kv_type type, const cpu_block *b, const uint8_t *k, float *out) {
    int32_t n_group = group_count(b);
    for (int32_t g = 0; g < n_group; g++) {
        int32_t r = cpu_share(b->n_row, g, n_group);
        const float *q = b->work + (size_t)r * (size_t)b->head_dim;
        float *at = out + r * CPU_PAGE;
        switch (cpu_share(b->n_row, g + 1, n_group) - r) {
        case 3:
            score_rows(type, 1, 3, b, &k, q, &at);
            break;
        case 4:
            score_rows(type, 1, 4, b, &k, q, &at);
            break;
        case 5:
            score_rows(type, 1, 5, b, &k, q, &at);
            break;
        default:
            score_rows(type, 1, 6, b, &k, q, &at);
        }
    }
}

INLINE void score_typed(kern_kv_type type, const cpu_block *b, const uint8_t *const *k,
                        float *const *out) {
    if (b->n_row <= FEW)
        score_few(type, b, k, out);
    else
        score_many(type, b, k[0], out[0]);
}

static void score(const cpu_block *b, const cpu_page *pages, int32_t n) {
    const uint8_t *k[4];
    float *out[4];
    for (int32_t p = 0; p < b->page_batch; p++) {
        /* A batch that is not full repeats its last page. */
        k[p] = pages[p < n ? p : n - 1].k;
        out[p] = scores(b, p);
    }
    kern_kv_type type = b->type;
    if (is_reused(b)) { /* then a batch is one page */
        widen_keys(b, k[0], wide_keys(b));
        k[0] = (const uint8_t *)wide_keys(b);
        type = KERN_KV_F32;
    }
    switch (type) {
    case KERN_KV_F32:
        score_typed(KERN_KV_F32, b, k, out);
        break;
    case KERN_KV_F16:
        score_typed(KERN_KV_F16, b, k, out);
        break;
    case KERN_KV_BF16:
        score_typed(KERN_KV_BF16, b, k, out);
        break;
    }
}

/* ---- softmax ---- */

INLINE __m256 fold_op(bool add, __m256 a, __m256 b) {
    return add ? _mm256_add_ps(a, b) : _mm256_max_ps(a, b); /* max_ps(a, b) is a > b ? a : b */
}

/* The fold (j with j + 8, + 4, + 2, + 1) of four rows a, b, c, d at once. Each shuffle brings lane
 * j of two rows into one vector and lane j + step into another (128-bit parts between bars):
 *   step 8: the halves of a row: [a0..a3 | a4..a7]
 *   step 4: [a0..a3 | b0..b3] op [a4..a7 | b4..b7]
 *   step 2: [a0 a1 c0 c1 | b0 b1 d0 d1] op [a2 a3 c2 c3 | b2 b3 d2 d3]
 *   step 1: neighbours; the rows' results are in lanes 0, 4, 2, 6. */
INLINE __m128 fold_rows(bool add, __m256 v[ROWS][2]) {
    __m256 x[ROWS];
    EACH(i, ROWS) {
        x[i] = fold_op(add, v[i][0], v[i][1]);
    }
    __m256 ab = fold_op(add, _mm256_permute2f128_ps(x[0], x[1], 0x20),
                        _mm256_permute2f128_ps(x[0], x[1], 0x31));
    __m256 cd = fold_op(add, _mm256_permute2f128_ps(x[2], x[3], 0x20),
                        _mm256_permute2f128_ps(x[2], x[3], 0x31));
    __m256 y = fold_op(add, _mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    y = fold_op(add, y, _mm256_permute_ps(y, 0xf5));
    __m128 acbd = _mm_shuffle_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1), 0x88);
    return _mm_permute_ps(acbd, 0xd8);
}

/* All bits in the lanes of keys [lo, hi); key0: the key of lane 0. */
INLINE __m256 seen_lanes(int32_t lo, int32_t hi, int32_t key0) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i before_hi = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi - key0), lane);
    __m256i before_lo = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo - key0), lane);
    return _mm256_castsi256_ps(_mm256_andnot_si256(before_lo, before_hi));
}

/* Softmax update of rows r .. r + 3: m and l in place, p and a out. Row i sees the keys
 * [lo, hi[i]). */
INLINE void soften(const float *s, int32_t lo, const int32_t *hi, const cpu_states *st, int32_t r,
                   float *p, float *a) {
    __m256 x[ROWS][2];
    EACH(i, ROWS) {
        EACH(h, 2) {
            x[i][h] = _mm256_blendv_ps(_mm256_set1_ps(-INFINITY),
                                       _mm256_loadu_ps(s + i * CPU_PAGE + h * HALF),
                                       seen_lanes(lo, hi[i], h * HALF));
        }
    }
    __m128i ends = _mm_loadu_si128((const __m128i *)(const void *)hi);
    __m128 any = _mm_castsi128_ps(_mm_cmpgt_epi32(ends, _mm_set1_epi32(lo)));
    __m128 m = _mm_loadu_ps(st->m + r), l = _mm_loadu_ps(st->l + r);
    __m128 top = _mm_add_ps(_mm_max_ps(m, fold_rows(false, x)), _mm_setzero_ps());
    __m128 scale =
        _mm256_castps256_ps128(exact_exp_neg8(_mm256_zextps128_ps256(_mm_sub_ps(m, top))));
    scale = _mm_blendv_ps(_mm_set1_ps(1.0f), scale, any);
    float tops[ROWS];
    _mm_storeu_ps(tops, top);
    EACH(i, ROWS) {
        EACH(h, 2) {
            __m256 e = exact_exp_neg8(_mm256_sub_ps(x[i][h], _mm256_broadcast_ss(tops + i)));
            x[i][h] = _mm256_and_ps(e, seen_lanes(lo, hi[i], h * HALF));
            _mm256_storeu_ps(p + i * CPU_PAGE + h * HALF, x[i][h]);
        }
    }
    __m128 sum = _mm_fmadd_ps(l, scale, fold_rows(true, x));
    _mm_storeu_ps(st->m + r, _mm_blendv_ps(m, top, any));
    _mm_storeu_ps(st->l + r, _mm_blendv_ps(l, sum, any));
    _mm_storeu_ps(a, scale);
}

/* ---- outputs ---- */

typedef struct values {
    kern_kv_type type;
    const uint8_t *v;
    int32_t stride; /* elements from key to key, a multiple of 16 */
} values;

INLINE void weigh_key(kern_kv_type type, int n_row, int n_vec, const values *v, int32_t key,
                      bool odd, int32_t d, const float *p, __m256 acc[ROWS][MAX_VECTOR]) {
    /* With several rows the values stay in registers, with one row it is p. */
    __m256 x[MAX_VECTOR];
    EACH(z, n_vec) {
        x[z] = load_values(type, v->v, v->stride, key, odd, d + HALF * z);
    }
    EACH(r, n_row) {
        __m256 w = _mm256_broadcast_ss(p + r * CPU_PAGE + key);
        EACH(z, n_vec) {
            acc[r][z] = _mm256_fmadd_ps(w, x[z], acc[r][z]);
        }
    }
}

/* o = o * a, then keys [lo, hi) ascending, for n_row rows and 8 n_vec lanes from d on. */
INLINE void weigh_part(kern_kv_type type, int n_row, int n_vec, const values *v, int32_t lo,
                       int32_t hi, int32_t d, const float *p, const float *a, float *o,
                       int32_t stride) {
    __m256 acc[ROWS][MAX_VECTOR];
    EACH(r, n_row) {
        EACH(z, n_vec) {
            acc[r][z] = _mm256_mul_ps(_mm256_loadu_ps(o + r * stride + d + HALF * z),
                                      _mm256_broadcast_ss(a + r));
        }
    }
    int32_t key = lo;
    if (key & 1 && key < hi)
        weigh_key(type, n_row, n_vec, v, key++, true, d, p, acc);
    for (; key + 1 < hi; key += 2) {
        weigh_key(type, n_row, n_vec, v, key, false, d, p, acc);
        weigh_key(type, n_row, n_vec, v, key + 1, true, d, p, acc);
    }
    if (key < hi)
        weigh_key(type, n_row, n_vec, v, key, false, d, p, acc);
    EACH(r, n_row) {
        EACH(z, n_vec) {
            _mm256_storeu_ps(o + r * stride + d + HALF * z, acc[r][z]);
        }
    }
}

/* n_vec vectors of each row at a time, then what is left by two. */
INLINE void weigh_rows(kern_kv_type type, int n_row, int n_vec, const values *v, int32_t lo,
                       int32_t hi, const float *p, const float *a, float *o, int32_t stride) {
    int32_t d = 0;
    for (; d + HALF * n_vec <= stride; d += HALF * n_vec)
        weigh_part(type, n_row, n_vec, v, lo, hi, d, p, a, o, stride);
    for (; n_vec > 2 && d < stride; d += 2 * HALF)
        weigh_part(type, n_row, 2, v, lo, hi, d, p, a, o, stride);
}

INLINE void weigh_typed(kern_kv_type type, int32_t n_row, const values *v, int32_t lo, int32_t hi,
                        const float *p, const float *a, float *o, int32_t stride) {
    switch (n_row) {
    case 1:
        weigh_rows(type, 1, 8, v, lo, hi, p, a, o, stride);
        break;
    case 2:
        weigh_rows(type, 2, 4, v, lo, hi, p, a, o, stride);
        break;
    case 3:
        weigh_rows(type, 3, 4, v, lo, hi, p, a, o, stride);
        break;
    default:
        weigh_rows(type, 4, 2, v, lo, hi, p, a, o, stride);
    }
}

static void weigh(int32_t n_row, const values *v, int32_t lo, int32_t hi, const float *p,
                  const float *a, float *o, int32_t stride) {
    switch (v->type) {
    case KERN_KV_F32:
        weigh_typed(KERN_KV_F32, n_row, v, lo, hi, p, a, o, stride);
        break;
    case KERN_KV_F16:
        weigh_typed(KERN_KV_F16, n_row, v, lo, hi, p, a, o, stride);
        break;
    case KERN_KV_BF16:
        weigh_typed(KERN_KV_BF16, n_row, v, lo, hi, p, a, o, stride);
        break;
    }
}

/* Rows r .. r + n - 1, n <= 4. They see keys from lo on; the shortest row's keys are folded
 * together, what the others see beyond that row by row: a key that a row does not see is never
 * multiplied, not even by 0. */
static void update_rows(const cpu_block *b, const cpu_page *page, const values *v, const float *s,
                        int32_t r, int32_t n, const cpu_states *st) {
    int32_t lo = cpu_seen_from(b, page), hi[ROWS], least = CPU_PAGE, most = 0;
    for (int32_t i = 0; i < ROWS; i++) {
        int32_t to = cpu_seen_to(b, page, r + i);
        hi[i] = to > lo ? to : lo;
        if (i < n) {
            least = hi[i] < least ? hi[i] : least;
            most = hi[i] > most ? hi[i] : most;
        }
    }
    if (most <= lo)
        return;
    float a[ROWS], *p = weights(b), *o = st->o + (size_t)r * (size_t)b->o_stride;
    soften(s, lo, hi, st, r, p, a);
    weigh(n, v, lo, least, p, a, o, b->o_stride);
    const float one = 1.0f;
    for (int32_t i = 0; i < n; i++)
        if (hi[i] > least)
            weigh(1, v, least, hi[i], p + i * CPU_PAGE, &one, o + i * b->o_stride, b->o_stride);
}

static void update(const cpu_block *b, const cpu_page *page, int32_t at, const cpu_states *st) {
    values v = {.type = b->type, .v = cpu_page_values(b, page), .stride = b->o_stride};
    if (values_are_widened(b)) {
        widen_values(b, v.v, wide_values(b));
        v.type = KERN_KV_F32;
        v.v = (const uint8_t *)wide_values(b);
    }
    for (int32_t r = 0; r < b->n_row; r += ROWS) {
        int32_t n = b->n_row - r < ROWS ? b->n_row - r : ROWS;
        update_rows(b, page, &v, scores(b, at) + (size_t)r * CPU_PAGE, r, n, st);
    }
}

/* ---- rows of any length ---- */

/* The first n of 8 floats; the others are 0. */
INLINE __m256 load_first(const float *at, int32_t n) {
    return n >= HALF ? _mm256_loadu_ps(at) : _mm256_maskload_ps(at, lanes8(0, n));
}
INLINE void store_first(float *at, int32_t n, __m256 x) {
    if (n >= HALF)
        _mm256_storeu_ps(at, x);
    else
        _mm256_maskstore_ps(at, lanes8(0, n), x);
}

/* ---- merge, divide ---- */

static void merge_row(float *oa, float *ma, float *la, const float *ob, float mb, float lb,
                      int32_t n) {
    if (lb == 0.0f)
        return;
    if (*la == 0.0f) {
        memcpy(oa, ob, (size_t)n * sizeof *oa);
        *ma = mb;
        *la = lb;
        return;
    }
    float m = (*ma > mb ? *ma : mb) + 0.0f;
    __m256 both = exact_exp_neg8(_mm256_zextps128_ps256(_mm_setr_ps(*ma - m, mb - m, 0.0f, 0.0f)));
    float factor[HALF];
    _mm256_storeu_ps(factor, both);
    __m256 a = _mm256_broadcast_ss(factor), b = _mm256_broadcast_ss(factor + 1);
    for (int32_t d = 0; d < n; d += HALF) {
        __m256 x = _mm256_mul_ps(load_first(oa + d, n - d), a);
        __m256 y = _mm256_mul_ps(load_first(ob + d, n - d), b);
        store_first(oa + d, n - d, _mm256_add_ps(x, y));
    }
    *ma = m;
    *la = *la * factor[0] + lb * factor[1];
}

static void merge(const cpu_states *a, const cpu_states *b, int32_t n, int32_t head_dim,
                  int32_t stride) {
    for (int32_t r = 0; r < n; r++)
        merge_row(a->o + (size_t)r * (size_t)stride, a->m + r, a->l + r,
                  b->o + (size_t)r * (size_t)stride, b->m[r], b->l[r], head_dim);
}

static void divide(const float *o, float l, int32_t n, float *out) {
    if (l == 0.0f) {
        memset(out, 0, (size_t)n * sizeof *out);
        return;
    }
    __m256 by = _mm256_set1_ps(l);
    for (int32_t d = 0; d < n; d += HALF)
        store_first(out + d, n - d, _mm256_div_ps(load_first(o + d, n - d), by));
}

/* ---- RoPE, rounding ---- */

/* 4 pairs: even lanes x0 c - x1 s, odd lanes x0 s + x1 c. */
static void rope(const float *x, const float *cs, int32_t n_pair, float *y) {
    int32_t n = 2 * n_pair;
    for (int32_t i = 0; i < n; i += HALF) {
        __m256 v = load_first(x + i, n - i), w = load_first(cs + i, n - i);
        __m256 x1 = _mm256_mul_ps(_mm256_movehdup_ps(v), _mm256_permute_ps(w, 0xb1));
        store_first(y + i, n - i, _mm256_fmaddsub_ps(_mm256_moveldup_ps(v), w, x1));
    }
}

INLINE __m128i to_bf16(__m256 x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i high = _mm256_srli_epi32(u, 16);
    __m256i half =
        _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
    __m256i y = _mm256_srli_epi32(_mm256_add_epi32(u, half), 16);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    y = _mm256_blendv_epi8(y, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
    return _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}

static void round_to(kern_kv_type type, const float *x, int32_t n, void *out) {
    if (type == KERN_KV_F32) {
        memcpy(out, x, (size_t)n * sizeof *x);
        return;
    }
    uint16_t *to = out;
    for (int32_t i = 0; i < n; i += HALF) {
        __m256 v = load_first(x + i, n - i);
        __m128i h = type == KERN_KV_F16
                        ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                        : to_bf16(v);
        memcpy(to + i, &h, (size_t)(n - i < HALF ? n - i : HALF) * sizeof *to);
    }
}

const cpu_attn_isa cpu_attn_avx2 = {
    .begin = begin,
    .score = score,
    .update = update,
    .merge = merge,
    .divide = divide,
    .rope = rope,
    .round = round_to,
};
