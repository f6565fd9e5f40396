/* Attention with keys in the lanes for scores and softmax, values' d in the lanes for outputs.
 *
 * One zmm holds a page's 16 scores of a row. Scores take 8 rows x 2 pages or up to 4 rows x 4 pages
 * at a time (12 to 16 fma chains); softmax and outputs take 4 rows at a time. */
#include "kern/cpu/attn_isa.h"
#include "kern/cpu/exact_avx512.h"

#include <immintrin.h>
#include <math.h>

#define INLINE static inline __attribute__((always_inline))
/* A loop over a constant count, unrolled so that arrays of accumulators become registers. */
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

enum {
    FEW = 4,         /* rows of a block that are scored four pages at a time */
    WIDE = 8,        /* rows scored together otherwise */
    WIDEN_ABOVE = 8, /* rows from which on a page is widened once instead of at each use */
    ROWS = 4         /* rows of softmax and output together */
};

/* ---- work memory: attn_isa.h's sizes ---- */

/* Queries: groups of `lane` rows, [group][d][lane], so that one address and constant distances
 * serve the rows of a group. Rows that only fill a group up are zero. */
static int32_t query_lanes(const cpu_block *b) {
    return b->n_row <= FEW ? FEW : WIDE;
}
static int32_t padded_rows(const cpu_block *b) {
    return cpu_round_up(b->n_row, query_lanes(b));
}
static float *wide_keys(const cpu_block *b, int32_t page) {
    size_t d = (size_t)b->o_stride;
    return b->work + (size_t)padded_rows(b) * d + (size_t)page * CPU_PAGE * d;
}
static float *wide_values(const cpu_block *b) {
    return wide_keys(b, 2);
}
static float *weights(const cpu_block *b) { /* p: [4][16] */
    return wide_keys(b, 3);
}
static float *scores(const cpu_block *b, int32_t page) { /* [page][padded row][16] */
    return weights(b) + ROWS * CPU_PAGE + (size_t)page * (size_t)padded_rows(b) * CPU_PAGE;
}
static bool is_widened(const cpu_block *b) {
    return b->n_row > WIDEN_ABOVE && b->type != KERN_KV_F32;
}

static void begin(cpu_block *b) {
    b->page_batch = b->n_row <= FEW ? 4 : 2;
    int32_t lane = query_lanes(b), n_d = b->head_dim;
    float *to = b->work;
    for (int32_t r0 = 0; r0 < b->n_row; r0 += lane)
        for (int32_t i = 0; i < lane; i++) {
            int32_t r = r0 + i;
            const float *q =
                b->q + (size_t)(r / b->group) * b->q_stride + (size_t)(r % b->group) * (size_t)n_d;
            float *at = to + (size_t)r0 * (size_t)n_d + i;
            for (int32_t d = 0; d < n_d; d++)
                at[d * lane] = r < b->n_row ? q[d] : 0.0f;
        }
}

/* ---- loads that widen ---- */

INLINE __m512 even_bf16(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
INLINE __m512 odd_bf16(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

/* 16 keys at d and d + 1, d even. */
INLINE void load_keys(kern_kv_type type, const uint8_t *k, int32_t d, __m512 *k0, __m512 *k1) {
    if (type == KERN_KV_F32) {
        *k0 = _mm512_loadu_ps((const float *)(const void *)k + d * CPU_PAGE);
        *k1 = _mm512_loadu_ps((const float *)(const void *)k + d * CPU_PAGE + CPU_PAGE);
        return;
    }
    const uint8_t *at = k + d * CPU_PAGE * 2;
    if (type == KERN_KV_F16) {
        *k0 = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)at));
        *k1 = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(at + 32)));
    } else {
        __m512i pairs = _mm512_loadu_si512(at);
        *k0 = even_bf16(pairs);
        *k1 = odd_bf16(pairs);
    }
}

/* Values of one key at d .. d + 15 (lanes of `mask`); stride: elements from key to key. */
INLINE __m512 load_values(kern_kv_type type, const uint8_t *v, int32_t stride, int32_t key,
                          bool odd, int32_t d, __mmask16 mask) {
    if (type == KERN_KV_F32)
        return _mm512_maskz_loadu_ps(mask, (const float *)(const void *)v + key * stride + d);
    if (type == KERN_KV_F16)
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, v + 2 * (key * stride + d)));
    __m512i pairs = _mm512_maskz_loadu_epi32(mask, v + 4 * ((key >> 1) * stride + d));
    return odd ? odd_bf16(pairs) : even_bf16(pairs);
}

INLINE __mmask16 lanes(int32_t n) {
    return (__mmask16)(n >= 16 ? 0xffffu : (1u << n) - 1);
}

static void widen_keys(const cpu_block *b, const uint8_t *k, float *to) {
    for (int32_t d = 0; d < b->head_dim; d += 2) {
        __m512 k0, k1;
        if (b->type == KERN_KV_F16)
            load_keys(KERN_KV_F16, k, d, &k0, &k1);
        else
            load_keys(KERN_KV_BF16, k, d, &k0, &k1);
        _mm512_storeu_ps(to + d * CPU_PAGE, k0);
        _mm512_storeu_ps(to + d * CPU_PAGE + CPU_PAGE, k1);
    }
}

static void widen_values(const cpu_block *b, const uint8_t *v, float *to) {
    int32_t n = b->head_dim;
    for (int32_t key = 0; key < CPU_PAGE; key++)
        for (int32_t d = 0; d < n; d += 16) {
            __mmask16 mask = lanes(n - d);
            __m512 x = b->type == KERN_KV_F16
                           ? load_values(KERN_KV_F16, v, n, key, false, d, mask)
                           : load_values(KERN_KV_BF16, v, n, key, key & 1, d, mask);
            _mm512_storeu_ps(to + key * b->o_stride + d, x);
        }
}

/* ---- scores ---- */

/* n_row rows of one query group against n_page pages; V of the pages is fetched ahead. */
INLINE void score_rows(kern_kv_type type, int n_page, int n_row, const cpu_block *b, bool ahead,
                       const uint8_t *const *k, const float *q, int32_t lane, float *const *out) {
    __m512 acc[4][WIDE];
    EACH(p, n_page) {
        EACH(r, n_row) {
            acc[p][r] = _mm512_setzero_ps();
        }
    }
    int32_t n_d = b->head_dim;
    size_t line = 2 * CPU_PAGE * kern_kv_elem(type); /* bytes of K, and of V, for two d */
    size_t values = line * (size_t)(n_d / 2);
    for (int32_t d = 0; d < n_d; d += 2) {
        __m512 k0[4], k1[4];
        EACH(p, n_page) {
            load_keys(type, k[p], d, &k0[p], &k1[p]);
            if (ahead) {
                const char *v = (const char *)k[p] + values + line * (size_t)(d / 2);
                _mm_prefetch(v, _MM_HINT_T0);
                if (type == KERN_KV_F32)
                    _mm_prefetch(v + 64, _MM_HINT_T0);
            }
        }
        EACH(r, n_row) {
            __m512 x = _mm512_set1_ps(q[d * lane + r]);
            EACH(p, n_page) {
                acc[p][r] = _mm512_fmadd_ps(x, k0[p], acc[p][r]);
            }
        }
        EACH(r, n_row) {
            __m512 x = _mm512_set1_ps(q[d * lane + lane + r]);
            EACH(p, n_page) {
                acc[p][r] = _mm512_fmadd_ps(x, k1[p], acc[p][r]);
            }
        }
    }
    __m512 scale = _mm512_set1_ps(b->scale);
    EACH(p, n_page) {
        EACH(r, n_row) {
            _mm512_storeu_ps(out[p] + r * CPU_PAGE, _mm512_mul_ps(acc[p][r], scale));
        }
    }
}

INLINE void score_few(kern_kv_type type, const cpu_block *b, const uint8_t *const *k,
                      float *const *out) {
    switch (b->n_row) {
    case 1:
        score_rows(type, 4, 1, b, true, k, b->work, FEW, out);
        break;
    case 2:
        score_rows(type, 4, 2, b, true, k, b->work, FEW, out);
        break;
    case 3:
        score_rows(type, 4, 3, b, true, k, b->work, FEW, out);
        break;
    default:
        score_rows(type, 4, 4, b, true, k, b->work, FEW, out);
    }
}

INLINE void score_many(kern_kv_type type, const cpu_block *b, const uint8_t *const *k,
                       float *const *out) {
    for (int32_t r = 0; r < b->n_row; r += WIDE) {
        float *at[2] = {out[0] + r * CPU_PAGE, out[1] + r * CPU_PAGE};
        score_rows(type, 2, WIDE, b, false, k, b->work + (size_t)r * (size_t)b->head_dim, WIDE, at);
    }
}

static void score(const cpu_block *b, const cpu_page *pages, int32_t n) {
    bool few = b->n_row <= FEW, widened = is_widened(b);
    const uint8_t *k[4];
    float *out[4];
    for (int32_t p = 0; p < b->page_batch; p++) {
        /* A batch that is not full repeats its last page. */
        const cpu_page *page = &pages[p < n ? p : n - 1];
        k[p] = page->k;
        out[p] = scores(b, p);
        if (widened) {
            float *wide = wide_keys(b, p < n ? p : n - 1);
            if (p < n)
                widen_keys(b, page->k, wide);
            k[p] = (const uint8_t *)wide;
        }
    }
    switch (widened ? KERN_KV_F32 : b->type) {
    case KERN_KV_F32:
        few ? score_few(KERN_KV_F32, b, k, out) : score_many(KERN_KV_F32, b, k, out);
        break;
    case KERN_KV_F16:
        few ? score_few(KERN_KV_F16, b, k, out) : score_many(KERN_KV_F16, b, k, out);
        break;
    case KERN_KV_BF16:
        few ? score_few(KERN_KV_BF16, b, k, out) : score_many(KERN_KV_BF16, b, k, out);
        break;
    }
}

/* ---- softmax ---- */

INLINE __m512 fold_op(bool add, __m512 a, __m512 b) {
    return add ? _mm512_add_ps(a, b) : _mm512_max_ps(a, b); /* max_ps(a, b) is a > b ? a : b */
}

/* The fold (j with j + 8, + 4, + 2, + 1) of four vectors at once; its results in lanes 0..3. Each
 * shuffle brings lane j of two rows into one vector and lane j + step into another:
 *   step 8: v0 = [a b | c d], v1 = [e f | g h] (128-bit parts): [a b e f] op [c d g h]
 *   step 4: [A B C D], [E F G H]: [A C E G] op [B D F H], after which each part is one row. */
INLINE __m128 fold_rows(bool add, const __m512 *v) {
    __m512 ab = fold_op(add, _mm512_shuffle_f32x4(v[0], v[1], 0x44),
                        _mm512_shuffle_f32x4(v[0], v[1], 0xee));
    __m512 cd = fold_op(add, _mm512_shuffle_f32x4(v[2], v[3], 0x44),
                        _mm512_shuffle_f32x4(v[2], v[3], 0xee));
    __m512 x = fold_op(add, _mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    x = fold_op(add, x, _mm512_permute_ps(x, 0x0e));
    x = fold_op(add, x, _mm512_permute_ps(x, 0x01));
    const __m512i first = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(first, x));
}

/* Softmax update of rows r .. r + 3: m and l in place, p and a out. seen[i]: the keys of row i. */
INLINE void soften(const float *s, const __mmask16 *seen, const cpu_states *st, int32_t r, float *p,
                   float *a) {
    __m512 x[ROWS];
    EACH(i, ROWS) {
        x[i] = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), seen[i], s + i * CPU_PAGE);
    }
    __mmask8 any =
        (__mmask8)((seen[0] ? 1 : 0) | (seen[1] ? 2 : 0) | (seen[2] ? 4 : 0) | (seen[3] ? 8 : 0));
    __m128 m = _mm_loadu_ps(st->m + r), l = _mm_loadu_ps(st->l + r);
    __m128 top = _mm_add_ps(_mm_max_ps(m, fold_rows(false, x)), _mm_setzero_ps());
    __m128 scale =
        _mm512_castps512_ps128(exact_exp_neg16(_mm512_zextps128_ps512(_mm_sub_ps(m, top))));
    scale = _mm_mask_mov_ps(_mm_set1_ps(1.0f), any, scale);
    __m512 tops = _mm512_broadcast_f32x4(top);
    const __m512i pick[ROWS] = {_mm512_set1_epi32(0), _mm512_set1_epi32(1), _mm512_set1_epi32(2),
                                _mm512_set1_epi32(3)};
    EACH(i, ROWS) {
        __m512 below = _mm512_sub_ps(x[i], _mm512_permutexvar_ps(pick[i], tops));
        x[i] = _mm512_maskz_mov_ps(seen[i], exact_exp_neg16(below));
        _mm512_storeu_ps(p + i * CPU_PAGE, x[i]);
    }
    __m128 sum = _mm_fmadd_ps(l, scale, fold_rows(true, x));
    _mm_mask_storeu_ps(st->m + r, any, top);
    _mm_mask_storeu_ps(st->l + r, any, sum);
    _mm_storeu_ps(a, scale);
}

/* ---- outputs ---- */

typedef struct values {
    kern_kv_type type;
    const uint8_t *v;
    int32_t stride, head_dim; /* stride: elements from key to key */
} values;

INLINE void weigh_key(kern_kv_type type, int n_row, int n_vec, const values *v, int32_t key,
                      bool odd, int32_t d, const float *p, __m512 acc[ROWS][4]) {
    __m512 x[4];
    EACH(z, n_vec) {
        __mmask16 mask = z == n_vec - 1 ? lanes(v->head_dim - d - 16 * z) : (__mmask16)0xffff;
        x[z] = load_values(type, v->v, v->stride, key, odd, d + 16 * z, mask);
    }
    EACH(r, n_row) {
        __m512 w = _mm512_set1_ps(p[r * CPU_PAGE + key]);
        EACH(z, n_vec) {
            acc[r][z] = _mm512_fmadd_ps(w, x[z], acc[r][z]);
        }
    }
}

/* o = o * a, then keys [lo, hi) ascending, for n_row rows and 16 n_vec lanes from d on. */
INLINE void weigh_part(kern_kv_type type, int n_row, int n_vec, const values *v, int32_t lo,
                       int32_t hi, int32_t d, const float *p, const float *a, float *o,
                       int32_t stride) {
    __m512 acc[ROWS][4];
    EACH(r, n_row) {
        EACH(z, n_vec) {
            acc[r][z] =
                _mm512_mul_ps(_mm512_loadu_ps(o + r * stride + d + 16 * z), _mm512_set1_ps(a[r]));
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
            _mm512_storeu_ps(o + r * stride + d + 16 * z, acc[r][z]);
        }
    }
}

INLINE void weigh_rows(kern_kv_type type, int n_row, const values *v, int32_t lo, int32_t hi,
                       const float *p, const float *a, float *o, int32_t stride) {
    int32_t d = 0;
    for (; d + 64 <= stride; d += 64)
        weigh_part(type, n_row, 4, v, lo, hi, d, p, a, o, stride);
    for (; d < stride; d += 16)
        weigh_part(type, n_row, 1, v, lo, hi, d, p, a, o, stride);
}

INLINE void weigh_typed(kern_kv_type type, int32_t n_row, const values *v, int32_t lo, int32_t hi,
                        const float *p, const float *a, float *o, int32_t stride) {
    switch (n_row) {
    case 1:
        weigh_rows(type, 1, v, lo, hi, p, a, o, stride);
        break;
    case 2:
        weigh_rows(type, 2, v, lo, hi, p, a, o, stride);
        break;
    case 3:
        weigh_rows(type, 3, v, lo, hi, p, a, o, stride);
        break;
    default:
        weigh_rows(type, 4, v, lo, hi, p, a, o, stride);
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
    __mmask16 seen[ROWS];
    for (int32_t i = 0; i < ROWS; i++) {
        int32_t to = cpu_seen_to(b, page, r + i);
        hi[i] = to > lo ? to : lo;
        seen[i] = to > lo ? (__mmask16)(lanes(to) & ~lanes(lo)) : 0;
        if (i < n) {
            least = hi[i] < least ? hi[i] : least;
            most = hi[i] > most ? hi[i] : most;
        }
    }
    if (most <= lo)
        return;
    float a[ROWS], *p = weights(b), *o = st->o + (size_t)r * (size_t)b->o_stride;
    soften(s, seen, st, r, p, a);
    weigh(n, v, lo, least, p, a, o, b->o_stride);
    const float one = 1.0f;
    for (int32_t i = 0; i < n; i++)
        if (hi[i] > least)
            weigh(1, v, least, hi[i], p + i * CPU_PAGE, &one, o + i * b->o_stride, b->o_stride);
}

static void update(const cpu_block *b, const cpu_page *page, int32_t at, const cpu_states *st) {
    values v = {.type = b->type,
                .v = cpu_page_values(b, page),
                .stride = b->head_dim,
                .head_dim = b->head_dim};
    if (is_widened(b)) {
        float *wide = wide_values(b);
        widen_values(b, v.v, wide);
        v.type = KERN_KV_F32;
        v.v = (const uint8_t *)wide;
        v.stride = b->o_stride;
    }
    for (int32_t r = 0; r < b->n_row; r += ROWS) {
        int32_t n = b->n_row - r < ROWS ? b->n_row - r : ROWS;
        update_rows(b, page, &v, scores(b, at) + (size_t)r * CPU_PAGE, r, n, st);
    }
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
    __m512 both = exact_exp_neg16(_mm512_zextps128_ps512(_mm_setr_ps(*ma - m, mb - m, 0.0f, 0.0f)));
    float factor[16];
    _mm512_storeu_ps(factor, both);
    __m512 a = _mm512_set1_ps(factor[0]), b = _mm512_set1_ps(factor[1]);
    for (int32_t d = 0; d < n; d += 16) {
        __mmask16 mask = lanes(n - d);
        __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, oa + d), a);
        __m512 y = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, ob + d), b);
        _mm512_mask_storeu_ps(oa + d, mask, _mm512_add_ps(x, y));
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
    __m512 by = _mm512_set1_ps(l);
    __mmask16 keep = l == 0.0f ? 0 : 0xffff;
    for (int32_t d = 0; d < n; d += 16) {
        __mmask16 mask = lanes(n - d);
        __m512 x = _mm512_maskz_div_ps(keep, _mm512_maskz_loadu_ps(mask, o + d), by);
        _mm512_mask_storeu_ps(out + d, mask, x);
    }
}

/* ---- RoPE, rounding ---- */

/* 8 pairs: even lanes x0 c - x1 s, odd lanes x0 s + x1 c. */
static void rope(const float *x, const float *cs, int32_t n_pair, float *y) {
    for (int32_t i = 0; i < 2 * n_pair; i += 16) {
        __mmask16 mask = lanes(2 * n_pair - i);
        __m512 v = _mm512_maskz_loadu_ps(mask, x + i), w = _mm512_maskz_loadu_ps(mask, cs + i);
        __m512 x1 = _mm512_mul_ps(_mm512_movehdup_ps(v), _mm512_permute_ps(w, 0xb1));
        _mm512_mask_storeu_ps(y + i, mask, _mm512_fmaddsub_ps(_mm512_moveldup_ps(v), w, x1));
    }
}

INLINE __m256i to_bf16(__m512 x) {
    __m512i u = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i y = _mm512_srli_epi32(_mm512_add_epi32(u, half), 16);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    y = _mm512_mask_mov_epi32(y, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    return _mm512_cvtepi32_epi16(y);
}

static void round_to(kern_kv_type type, const float *x, int32_t n, void *out) {
    if (type == KERN_KV_F32) {
        memcpy(out, x, (size_t)n * sizeof *x);
        return;
    }
    uint16_t *to = out;
    for (int32_t i = 0; i < n; i += 16) {
        __mmask16 mask = lanes(n - i);
        __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
        __m256i h = type == KERN_KV_F16
                        ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                        : to_bf16(v);
        _mm256_mask_storeu_epi16(to + i, mask, h);
    }
}

const cpu_attn_isa cpu_attn_avx512 = {
    .begin = begin,
    .score = score,
    .update = update,
    .merge = merge,
    .divide = divide,
    .rope = rope,
    .round = round_to,
};
