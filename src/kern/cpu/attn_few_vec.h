/* Blocks of few rows (decode: the heads of one token), for every vector width: keys in the lanes
 * for scores and softmax, d in the lanes for outputs.
 *
 * A page's 16 scores of a row are HALVES vectors. The including file gives the shapes, so that
 * the accumulators fill the registers:
 *   FEW_ROWS        most rows of a block
 *   few_pages(n)    pages that n rows are scored against at a time
 *   few_vectors(n)  vectors of d that n <= 4 rows take together for their outputs */
#ifndef WEFT_KERN_CPU_ATTN_FEW_VEC_H
#define WEFT_KERN_CPU_ATTN_FEW_VEC_H

#include "kern/cpu/attn_rows_vec.h"

enum {
    HALVES = CPU_PAGE / VEC_LANES,
    ROWS = 4, /* rows of softmax and output together */
    FEW_MOST_VECTORS = 8
};

/* ---- work memory: queries [d][row] | one widened V page | p [4][16] | scores [page][row][16] ---- */

static float *few_values(const cpu_block *b) {
    return b->work + (size_t)cpu_round_up(b->n_row, ROWS) * (size_t)cpu_round_up(b->head_dim, 16);
}
static float *few_weights(const cpu_block *b) {
    return few_values(b) + (size_t)CPU_PAGE * (size_t)b->o_stride;
}
static float *few_scores(const cpu_block *b, int32_t page) {
    size_t rows = (size_t)cpu_round_up(b->n_row, ROWS);
    return few_weights(b) + ROWS * CPU_PAGE + (size_t)page * rows * CPU_PAGE;
}

static void few_begin(cpu_block *b) {
    size_t n_d = (size_t)b->head_dim, n = (size_t)b->n_row;
    b->page_batch = few_pages(b->n_row);
    for (int32_t r = 0; r < b->n_row; r++) {
        const float *q = cpu_block_query(b, r);
        for (size_t d = 0; d < n_d; d++)
            b->work[d * n + (size_t)r] = q[d];
    }
}

/* ---- scores ---- */

VEC_INLINE void few_score_step(kern_kv_type type, int n_page, int n_row, const uint8_t *const *k,
                               int32_t d, bool odd, const float *q,
                               vec acc[CPU_BATCH][FEW_ROWS][HALVES]) {
    EACH(p, n_page) {
        vec key[HALVES];
        EACH(h, HALVES) {
            key[h] = load_keys(type, k[p], d, odd, h * VEC_LANES);
        }
        EACH(r, n_row) {
            vec x = vec_broadcast(q + r);
            EACH(h, HALVES) {
                acc[p][r][h] = vec_fma(x, key[h], acc[p][r][h]);
            }
        }
    }
}

/* All rows against n_page pages; the pages' values are fetched ahead. */
VEC_INLINE void few_score_rows(kern_kv_type type, int n_row, const cpu_block *b,
                               const uint8_t *const *k) {
    const int n_page = few_pages(n_row);
    vec acc[CPU_BATCH][FEW_ROWS][HALVES];
    EACH(p, n_page) {
        EACH(r, n_row) {
            EACH(h, HALVES) {
                acc[p][r][h] = vec_zero();
            }
        }
    }
    const float *q = b->work;
    size_t line = 2 * CPU_PAGE * kern_kv_elem(type); /* bytes of K, and of V, for two d */
    size_t values = line * (size_t)(b->head_dim / 2);
    int32_t last = b->value_dim - 2;
    for (int32_t d = 0; d < b->head_dim; d += 2, q += 2 * n_row) {
        size_t ahead = values + line * (size_t)((d < last ? d : last) / 2);
        EACH(p, n_page) {
            const char *v = (const char *)k[p] + ahead;
            _mm_prefetch(v, _MM_HINT_T0);
            if (type == KERN_KV_F32)
                _mm_prefetch(v + 64, _MM_HINT_T0);
        }
        few_score_step(type, n_page, n_row, k, d, false, q, acc);
        few_score_step(type, n_page, n_row, k, d + 1, true, q + n_row, acc);
    }
    vec scale = vec_set(b->scale);
    EACH(p, n_page) {
        float *out = few_scores(b, p);
        EACH(r, n_row) {
            EACH(h, HALVES) {
                vec_store(out + r * CPU_PAGE + h * VEC_LANES, vec_mul(acc[p][r][h], scale));
            }
        }
    }
}

VEC_INLINE void few_score_typed(kern_kv_type type, const cpu_block *b, const uint8_t *const *k) {
    switch (b->n_row) {
    case 1:
        few_score_rows(type, 1, b, k);
        break;
    case 2:
        few_score_rows(type, 2, b, k);
        break;
    case 3:
        few_score_rows(type, 3, b, k);
        break;
    case 4:
        few_score_rows(type, 4, b, k);
        break;
    case 5:
        few_score_rows(type, 5, b, k);
        break;
#if FEW_ROWS == 8
    case 7:
        few_score_rows(type, 7, b, k);
        break;
    case 8:
        few_score_rows(type, 8, b, k);
        break;
#endif
    default:
        few_score_rows(type, 6, b, k);
    }
}

static void few_score(const cpu_block *b, const cpu_page *pages, int32_t n) {
    const uint8_t *k[CPU_BATCH];
    for (int32_t p = 0; p < b->page_batch; p++)
        k[p] = pages[p < n ? p : n - 1].k; /* a batch that is not full repeats its last page */
    switch (b->type) {
    case KERN_KV_F32:
        few_score_typed(KERN_KV_F32, b, k);
        break;
    case KERN_KV_F16:
        few_score_typed(KERN_KV_F16, b, k);
        break;
    case KERN_KV_BF16:
        few_score_typed(KERN_KV_BF16, b, k);
        break;
    }
}

/* ---- softmax ---- */

/* The lanes of keys [lo, hi); key0: the key of lane 0. */
VEC_INLINE vec_mask few_seen(int32_t lo, int32_t hi, int32_t key0) {
    static const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return vec_between(lane, lo - key0, hi - key0);
}

/* Softmax update of rows r .. r + 3, of which n are wanted and the rest repeat the last: m and l in
 * place, p and a out. Row i sees the keys [lo[i], hi[i]); `partial`: some row not the whole page. */
VEC_INLINE void few_soften(bool partial, const float *s, int32_t n, const int32_t *lo,
                           const int32_t *hi, const cpu_states *st, int32_t r, float *p, float *a) {
    vec x[ROWS][HALVES];
    EACH(i, ROWS) {
        const float *of = s + (i < n ? i : n - 1) * CPU_PAGE;
        EACH(h, HALVES) {
            x[i][h] = vec_load(of + h * VEC_LANES);
            if (partial)
                x[i][h] =
                    vec_select(few_seen(lo[i], hi[i], h * VEC_LANES), x[i][h], vec_set(-INFINITY));
        }
    }
    __m128 m = _mm_loadu_ps(st->m + r), l = _mm_loadu_ps(st->l + r);
    __m128 top = _mm_add_ps(_mm_max_ps(m, vec_fold_rows(false, x)), _mm_setzero_ps());
    __m128 scale = vec_first_4(exact_exp_neg_vec(vec_of_4(_mm_sub_ps(m, top))));
    float tops[ROWS];
    _mm_storeu_ps(tops, top);
    EACH(i, ROWS) {
        EACH(h, HALVES) {
            x[i][h] = exact_exp_neg_vec(vec_sub(x[i][h], vec_broadcast(tops + i)));
            if (partial)
                x[i][h] = vec_select(few_seen(lo[i], hi[i], h * VEC_LANES), x[i][h], vec_zero());
            vec_store(p + i * CPU_PAGE + h * VEC_LANES, x[i][h]);
        }
    }
    __m128 sum = _mm_fmadd_ps(l, scale, vec_fold_rows(true, x));
    if (partial) {
        __m128i begins = _mm_loadu_si128((const __m128i *)(const void *)lo);
        __m128i ends = _mm_loadu_si128((const __m128i *)(const void *)hi);
        __m128 any = _mm_castsi128_ps(_mm_cmpgt_epi32(ends, begins));
        scale = _mm_blendv_ps(_mm_set1_ps(1.0f), scale, any);
        top = _mm_blendv_ps(m, top, any);
        sum = _mm_blendv_ps(l, sum, any);
    }
    _mm_storeu_ps(st->m + r, top);
    _mm_storeu_ps(st->l + r, sum);
    _mm_storeu_ps(a, scale);
}

/* ---- outputs ---- */

typedef struct few_source {
    kern_kv_type type;
    const uint8_t *v;
    int32_t stride; /* elements from key to key */
} few_source;

VEC_INLINE void few_weigh_key(kern_kv_type type, int n_row, int n_vec, const few_source *v,
                              int32_t key, bool odd, int32_t d, const float *p,
                              vec acc[ROWS][FEW_MOST_VECTORS]) {
    vec x[FEW_MOST_VECTORS];
    EACH(z, n_vec) {
        x[z] = load_values(type, v->v, v->stride, key, odd, d + VEC_LANES * z);
    }
    EACH(r, n_row) {
        vec w = vec_broadcast(p + r * CPU_PAGE + key);
        EACH(z, n_vec) {
            acc[r][z] = vec_fma(w, x[z], acc[r][z]);
        }
    }
}

/* o = o * a, then keys [lo, hi) ascending, for n_row rows and n_vec vectors from d on. */
VEC_INLINE void few_weigh_part(kern_kv_type type, int n_row, int n_vec, const few_source *v,
                               int32_t lo, int32_t hi, int32_t d, const float *p, const float *a,
                               float *o, int32_t stride) {
    vec acc[ROWS][FEW_MOST_VECTORS];
    EACH(r, n_row) {
        EACH(z, n_vec) {
            acc[r][z] = vec_mul(vec_load(o + r * stride + d + VEC_LANES * z), vec_broadcast(a + r));
        }
    }
    int32_t key = lo;
    if (key & 1 && key < hi)
        few_weigh_key(type, n_row, n_vec, v, key++, true, d, p, acc);
    for (; key + 1 < hi; key += 2) {
        few_weigh_key(type, n_row, n_vec, v, key, false, d, p, acc);
        few_weigh_key(type, n_row, n_vec, v, key + 1, true, d, p, acc);
    }
    if (key < hi)
        few_weigh_key(type, n_row, n_vec, v, key, false, d, p, acc);
    EACH(r, n_row) {
        EACH(z, n_vec) {
            vec_store(o + r * stride + d + VEC_LANES * z, acc[r][z]);
        }
    }
}

VEC_INLINE void few_weigh_rows(kern_kv_type type, int n_row, const few_source *v, int32_t lo,
                               int32_t hi, const float *p, const float *a, float *o,
                               int32_t stride) {
    const int n_vec = few_vectors(n_row);
    int32_t d = 0;
    for (; d + VEC_LANES * n_vec <= stride; d += VEC_LANES * n_vec)
        few_weigh_part(type, n_row, n_vec, v, lo, hi, d, p, a, o, stride);
    for (; d < stride; d += 16)
        few_weigh_part(type, n_row, HALVES, v, lo, hi, d, p, a, o, stride);
}

VEC_INLINE void few_weigh_typed(kern_kv_type type, int32_t n_row, const few_source *v, int32_t lo,
                                int32_t hi, const float *p, const float *a, float *o,
                                int32_t stride) {
    switch (n_row) {
    case 1:
        few_weigh_rows(type, 1, v, lo, hi, p, a, o, stride);
        break;
    case 2:
        few_weigh_rows(type, 2, v, lo, hi, p, a, o, stride);
        break;
    case 3:
        few_weigh_rows(type, 3, v, lo, hi, p, a, o, stride);
        break;
    default:
        few_weigh_rows(type, 4, v, lo, hi, p, a, o, stride);
    }
}

static void few_weigh(int32_t n_row, const few_source *v, int32_t lo, int32_t hi, const float *p,
                      const float *a, float *o, int32_t stride) {
    switch (v->type) {
    case KERN_KV_F32:
        few_weigh_typed(KERN_KV_F32, n_row, v, lo, hi, p, a, o, stride);
        break;
    case KERN_KV_F16:
        few_weigh_typed(KERN_KV_F16, n_row, v, lo, hi, p, a, o, stride);
        break;
    case KERN_KV_BF16:
        few_weigh_typed(KERN_KV_BF16, n_row, v, lo, hi, p, a, o, stride);
        break;
    }
}

/* Outputs of n rows, n <= 4. Where the rows' keys begin together, those of the shortest row are
 * folded together and what the others see behind them row by row; else all row by row. A key that a
 * row does not see is never multiplied, not even by 0. */
static void few_weigh_seen(int32_t n, const few_source *v, const int32_t *lo, const int32_t *hi,
                           const float *p, const float *a, float *o, int32_t stride) {
    const float one = 1.0f;
    int32_t least = hi[0];
    bool together = true;
    for (int32_t i = 1; i < n; i++) {
        least = hi[i] < least ? hi[i] : least;
        together = together && lo[i] == lo[0];
    }
    if (together)
        few_weigh(n, v, lo[0], least, p, a, o, stride);
    for (int32_t i = 0; i < n; i++) {
        int32_t from = together ? least : lo[i];
        if (hi[i] > from)
            few_weigh(1, v, from, hi[i], p + i * CPU_PAGE, together ? &one : a + i, o + i * stride,
                      stride);
    }
}

/* Rows r .. r + n - 1, n <= 4. */
static void few_update_rows(const cpu_block *b, const cpu_page *page, const few_source *v,
                            const float *s, int32_t r, int32_t n, const cpu_states *st) {
    int32_t lo[ROWS] = {0}, hi[ROWS] = {0};
    bool any = false, whole = true;
    for (int32_t i = 0; i < n; i++) {
        int32_t from = cpu_seen_from(b, page, r + i), to = cpu_seen_to(b, page, r + i);
        lo[i] = from;
        hi[i] = to > from ? to : from;
        any = any || to > from;
        whole = whole && from == 0 && to == CPU_PAGE;
    }
    float a[ROWS], *p = few_weights(b), *o = st->o + (size_t)r * (size_t)b->o_stride;
    if (whole) {
        few_soften(false, s, n, lo, hi, st, r, p, a);
        few_weigh(n, v, 0, CPU_PAGE, p, a, o, b->o_stride);
    } else if (any) {
        few_soften(true, s, n, lo, hi, st, r, p, a);
        few_weigh_seen(n, v, lo, hi, p, a, o, b->o_stride);
    }
}

static void few_update(const cpu_block *b, const cpu_page *page, int32_t at, cpu_states *st) {
    if (st->empty)
        cpu_states_identity(b, st);
    few_source v = {.type = b->type, .v = cpu_page_values(b, page), .stride = b->value_dim};
    if (b->value_dim != b->o_stride) { /* whole vectors would be read past the page's end */
        widen_values(b->type, b->value_dim, b->o_stride, v.v, few_values(b));
        v = (few_source){KERN_KV_F32, (const uint8_t *)few_values(b), b->o_stride};
    }
    for (int32_t r = 0; r < b->n_row; r += ROWS) {
        int32_t n = b->n_row - r < ROWS ? b->n_row - r : ROWS;
        few_update_rows(b, page, &v, few_scores(b, at) + (size_t)r * CPU_PAGE, r, n, st);
    }
}

/* Rows r .. r + 3: the factors of all at once. */
static void few_merge_rows(const cpu_block *b, cpu_states *to, const cpu_states *from, int32_t r) {
    __m128 ma = _mm_loadu_ps(to->m + r), mb = _mm_loadu_ps(from->m + r);
    __m128 m = _mm_add_ps(_mm_max_ps(ma, mb), _mm_setzero_ps());
    float factor[VEC_LANES], top[ROWS];
    vec_store(factor, exact_exp_neg_vec(vec_of_4_and_4(_mm_sub_ps(ma, m), _mm_sub_ps(mb, m))));
    _mm_storeu_ps(top, m);
    for (int32_t i = r; i < r + ROWS && i < b->n_row; i++) {
        float *o = to->o + (size_t)i * (size_t)b->o_stride;
        const float *other = from->o + (size_t)i * (size_t)b->o_stride;
        float x = factor[i - r], y = factor[i - r + ROWS];
        if (from->l[i] == 0.0f)
            continue;
        if (to->l[i] == 0.0f) {
            memcpy(o, other, (size_t)b->value_dim * sizeof *o);
            to->m[i] = from->m[i];
            to->l[i] = from->l[i];
            continue;
        }
        for (int32_t d = 0; d < b->o_stride; d += VEC_LANES)
            vec_store(o + d, vec_add(vec_mul(vec_load(o + d), vec_set(x)),
                                     vec_mul(vec_load(other + d), vec_set(y))));
        to->m[i] = top[i - r];
        to->l[i] = to->l[i] * x + from->l[i] * y;
    }
}

static void few_merge(const cpu_block *b, cpu_states *to, const cpu_states *from) {
    for (int32_t r = 0; r < b->n_row; r += ROWS)
        few_merge_rows(b, to, from, r);
}

static const cpu_fold few = {few_begin, few_score, few_update, few_merge, cpu_states_emit};

#endif
