/* Blocks of many rows (prefill), for every vector width: query rows in the lanes. Everything of the
 * softmax is vertical then: no shuffle, and a row's state is a lane.
 *
 *   queries  [d][lane]          lane = row; rows that only fill the last vector repeat the last row
 *   scores   [key][lane]        sum over d of q[d][lane] * k[d][key]    (a key is a broadcast)
 *   o        [d][lane]          sum over keys of p[key][lane] * v[key][d]    (so is a value)
 *
 * A broadcast comes from any place, so values inside keys are read where they stand, from K.
 *
 * The including file gives many_broadcasts(n): how many keys, or d, n vectors of lanes take
 * together so that n * many_broadcasts(n) accumulators fill the registers. */
#ifndef WEFT_KERN_CPU_ATTN_MANY_VEC_H
#define WEFT_KERN_CPU_ATTN_MANY_VEC_H

#include "kern/cpu/attn_rows_vec.h"

enum { MANY_VECTORS = 3, MANY_BROADCASTS = 16 };

/* ---- work memory: queries [d][lane] | K [d][16] | V [16][e] | scores [16][lane] | a [lane] ---- */

static size_t many_lanes(const cpu_block *b) {
    return (size_t)cpu_round_up(b->n_row, VEC_LANES);
}
static float *many_keys(const cpu_block *b) {
    return b->work + many_lanes(b) * (size_t)b->head_dim;
}
static float *many_values(const cpu_block *b) {
    return many_keys(b) + (size_t)CPU_PAGE * (size_t)b->head_dim;
}
static float *many_scores(const cpu_block *b) {
    return many_values(b) + (size_t)CPU_PAGE * (size_t)b->o_stride;
}
static float *many_factors(const cpu_block *b) {
    return many_scores(b) + CPU_PAGE * many_lanes(b);
}

/* ---- rows to lanes and back, four by four ---- */

static void many_begin(cpu_block *b) {
    b->page_batch = 1;
    int32_t lanes = (int32_t)many_lanes(b), n_d = b->head_dim;
    for (int32_t r = 0; r < lanes; r += 4) {
        const float *q[4];
        for (int32_t i = 0; i < 4; i++)
            q[i] = cpu_block_query(b, r + i < b->n_row ? r + i : b->n_row - 1);
        int32_t d = 0;
        for (; d + 4 <= n_d; d += 4) {
            __m128 x[4];
            EACH(i, 4) {
                x[i] = _mm_loadu_ps(q[i] + d);
            }
            _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
            EACH(i, 4) {
                _mm_storeu_ps(b->work + (d + i) * lanes + r, x[i]);
            }
        }
        for (; d < n_d; d++)
            for (int32_t i = 0; i < 4; i++)
                b->work[d * lanes + r + i] = q[i][d];
    }
}

static void many_emit(const cpu_block *b, const cpu_states *s, const cpu_nodes *to) {
    int32_t lanes = (int32_t)many_lanes(b), n_d = b->value_dim;
    for (int32_t r = 0; r < b->n_row; r += 4) {
        int32_t n = b->n_row - r < 4 ? b->n_row - r : 4, d = 0;
        for (; n == 4 && d + 4 <= n_d; d += 4) {
            __m128 x[4];
            EACH(i, 4) {
                x[i] = _mm_loadu_ps(s->o + (d + i) * lanes + r);
            }
            _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
            EACH(i, 4) {
                _mm_storeu_ps(cpu_node(b, to, r + i) + d, x[i]);
            }
        }
        for (int32_t i = 0; i < n; i++) {
            float *node = cpu_node(b, to, r + i);
            for (int32_t e = d; e < n_d; e++)
                node[e] = s->o[e * lanes + r + i];
            node[n_d] = s->m[r + i];
            node[n_d + 1] = s->l[r + i];
        }
    }
}

/* ---- scores ---- */

/* n_key keys from k on, n_vec vectors of lanes from q on. */
VEC_INLINE void many_score_part(int n_vec, int n_key, const cpu_block *b, const float *q,
                                const float *k, float *s) {
    vec acc[MANY_BROADCASTS][MANY_VECTORS];
    EACH(j, n_key) {
        EACH(v, n_vec) {
            acc[j][v] = vec_zero();
        }
    }
    size_t lanes = many_lanes(b);
    for (int32_t d = 0; d < b->head_dim; d++, q += lanes, k += CPU_PAGE) {
        vec x[MANY_VECTORS];
        EACH(v, n_vec) {
            x[v] = vec_load(q + v * VEC_LANES);
        }
        EACH(j, n_key) {
            vec key = vec_broadcast(k + j);
            EACH(v, n_vec) {
                acc[j][v] = vec_fma(x[v], key, acc[j][v]);
            }
        }
    }
    vec scale = vec_set(b->scale);
    EACH(j, n_key) {
        EACH(v, n_vec) {
            vec_store(s + (size_t)j * lanes + v * VEC_LANES, vec_mul(acc[j][v], scale));
        }
    }
}

VEC_INLINE void many_score_lanes(int n_vec, const cpu_block *b, const float *k, int32_t lane) {
    const int n_key = many_broadcasts(n_vec);
    for (int32_t j = 0; j < CPU_PAGE; j += n_key)
        many_score_part(n_vec, n_key, b, b->work + lane, k + j,
                        many_scores(b) + (size_t)j * many_lanes(b) + lane);
}

/* K of the page that is scored, as floats [d][16]. */
static const float *many_page_keys(const cpu_block *b, const cpu_page *page) {
    return b->type == KERN_KV_F32 ? (const float *)(const void *)page->k : many_keys(b);
}

static void many_score(const cpu_block *b, const cpu_page *pages, int32_t n) {
    (void)n; /* one page */
    if (b->type != KERN_KV_F32)
        widen_keys(b->type, b->head_dim, pages->k, many_keys(b));
    const float *k = many_page_keys(b, pages);
    int32_t lane = 0, lanes = (int32_t)many_lanes(b);
    for (; lane + 3 * VEC_LANES <= lanes; lane += 3 * VEC_LANES)
        many_score_lanes(3, b, k, lane);
    if (lane + 2 * VEC_LANES <= lanes)
        many_score_lanes(2, b, k, lane);
    else if (lane < lanes)
        many_score_lanes(1, b, k, lane);
}

/* ---- softmax ---- */

/* The fold of 16 keys: j with j + 8, then + 4, + 2, + 1, in every lane. */
VEC_INLINE vec many_fold(bool add, const vec *x) {
    vec t[CPU_PAGE / 2];
    EACH(j, 8) {
        t[j] = add ? vec_add(x[j], x[j + 8]) : vec_max(x[j], x[j + 8]);
    }
    EACH(j, 4) {
        t[j] = add ? vec_add(t[j], t[j + 4]) : vec_max(t[j], t[j + 4]);
    }
    EACH(j, 2) {
        t[j] = add ? vec_add(t[j], t[j + 2]) : vec_max(t[j], t[j + 2]);
    }
    return add ? vec_add(t[0], t[1]) : vec_max(t[0], t[1]);
}

/* One vector of lanes: scores become weights p; m, l and a. `partial`: some lane may not see some
 * key; its weight is -0, which no other is, and changes no sum of weights. */
VEC_INLINE void many_soften(bool partial, const cpu_block *b, const cpu_page *page, int32_t lane,
                            const cpu_states *st) {
    size_t lanes = many_lanes(b);
    float *s = many_scores(b) + lane;
    const int32_t *begin = b->row_begin + lane, *end = b->row_end + lane;
    const vec none = vec_set(-INFINITY);
    vec x[CPU_PAGE];
    EACH(j, CPU_PAGE) {
        x[j] = vec_load(s + (size_t)j * lanes);
        if (partial)
            x[j] = vec_select(vec_meet(begin, end, page->key0 + j, page->key0 + j), x[j], none);
    }
    vec m = st->empty ? none : vec_load(st->m + lane);
    vec l = st->empty ? vec_zero() : vec_load(st->l + lane);
    vec top = vec_add(vec_max(m, many_fold(false, x)), vec_zero());
    vec a = exact_exp_neg_vec(vec_sub(m, top));
    EACH(four, CPU_PAGE / 4) {
        EACH(i, 4) {
            x[4 * four + i] = vec_sub(x[4 * four + i], top);
        }
        exact_exp_neg_vecs(x + 4 * four, 4);
    }
    EACH(j, CPU_PAGE) {
        if (partial)
            x[j] = vec_select(vec_meet(begin, end, page->key0 + j, page->key0 + j), x[j],
                              vec_set(-0.0f));
        vec_store(s + (size_t)j * lanes, x[j]);
    }
    vec sum = vec_fma(l, a, many_fold(true, x));
    if (partial) {
        vec_mask any = vec_meet(begin, end, page->key0, page->key0 + CPU_PAGE - 1);
        top = vec_select(any, top, m);
        sum = vec_select(any, sum, l);
        a = vec_select(any, a, vec_set(1.0f));
    }
    vec_store(st->m + lane, top);
    vec_store(st->l + lane, sum);
    vec_store(many_factors(b) + lane, a);
}

/* ---- outputs ---- */

typedef struct many_source {
    const float *v;         /* [16][stride]; in_key: [d][16] */
    int32_t stride, lo, hi; /* keys [lo, hi) of the page */
} many_source;

/* What differs between the copies of the loops: `partial`: some lane may not see some key; `in_key`:
 * values stand in K. */
typedef struct many_kind {
    bool partial, in_key;
} many_kind;

/* o[d .. d + n_d) of n_vec vectors of lanes: o * a (from 0 when the state is empty), then the keys
 * ascending; a lane that does not see a key keeps its sum. */
VEC_INLINE void many_weigh_part(many_kind kind, int n_vec, int n_d, const cpu_block *b,
                                const many_source *v, int32_t d, int32_t lane,
                                const cpu_states *st) {
    size_t lanes = many_lanes(b);
    float *o = st->o + (size_t)d * lanes + lane;
    const float *p = many_scores(b) + (size_t)v->lo * lanes + lane;
    vec acc[MANY_BROADCASTS][MANY_VECTORS];
    EACH(i, n_d) {
        EACH(z, n_vec) {
            acc[i][z] = st->empty ? vec_zero()
                                  : vec_mul(vec_load(o + (size_t)i * lanes + z * VEC_LANES),
                                            vec_load(many_factors(b) + lane + z * VEC_LANES));
        }
    }
    for (int32_t key = v->lo; key < v->hi; key++, p += lanes) {
        const float *value = kind.in_key ? v->v + d * CPU_PAGE + key : v->v + key * v->stride + d;
        vec x[MANY_VECTORS];
        vec_mask unseen[MANY_VECTORS];
        EACH(z, n_vec) {
            x[z] = vec_load(p + z * VEC_LANES);
            if (kind.partial)
                unseen[z] = vec_is_minus_zero(x[z]);
        }
        EACH(i, n_d) {
            vec w = vec_broadcast(value + (kind.in_key ? i * CPU_PAGE : i));
            EACH(z, n_vec) {
                vec sum = vec_fma(x[z], w, acc[i][z]);
                acc[i][z] = kind.partial ? vec_select(unseen[z], acc[i][z], sum) : sum;
            }
        }
    }
    EACH(i, n_d) {
        EACH(z, n_vec) {
            vec_store(o + (size_t)i * lanes + z * VEC_LANES, acc[i][z]);
        }
    }
}

VEC_INLINE void many_weigh_lanes(many_kind kind, int n_vec, const cpu_block *b,
                                 const many_source *v, int32_t lane, const cpu_states *st) {
    const int n_d = many_broadcasts(n_vec);
    int32_t d = 0;
    for (; d + n_d <= b->value_dim; d += n_d)
        many_weigh_part(kind, n_vec, n_d, b, v, d, lane, st);
    for (; d < b->value_dim; d += 2)
        many_weigh_part(kind, n_vec, 2, b, v, d, lane, st);
}

VEC_INLINE void many_update_kind(many_kind kind, const cpu_block *b, const cpu_page *page,
                                 const many_source *v, const cpu_states *st) {
    int32_t lane = 0, lanes = (int32_t)many_lanes(b);
    for (int32_t i = 0; i < lanes; i += VEC_LANES)
        many_soften(kind.partial, b, page, i, st);
    for (; lane + 3 * VEC_LANES <= lanes; lane += 3 * VEC_LANES)
        many_weigh_lanes(kind, 3, b, v, lane, st);
    if (lane + 2 * VEC_LANES <= lanes)
        many_weigh_lanes(kind, 2, b, v, lane, st);
    else if (lane < lanes)
        many_weigh_lanes(kind, 1, b, v, lane, st);
}

static void many_find_values(const cpu_block *b, const cpu_page *page, many_source *v) {
    if (b->value_in_key) {
        v->v = many_page_keys(b, page);
        return;
    }
    v->v = (const float *)(const void *)cpu_page_values(b, page);
    if (b->type != KERN_KV_F32) {
        widen_values(b->type, b->value_dim, b->o_stride, cpu_page_values(b, page), many_values(b));
        v->v = many_values(b);
        v->stride = b->o_stride;
    }
}

/* Rows stand in the order of their positions: of what they see, the first row has the first key and
 * the last row the last. */
static void many_update(const cpu_block *b, const cpu_page *page, int32_t at, cpu_states *st) {
    (void)at; /* one page */
    int32_t last = b->n_row - 1;
    many_source v = {
        .stride = b->value_dim, .lo = cpu_seen_from(b, page, 0), .hi = cpu_seen_to(b, page, last)};
    if (v.hi <= v.lo)
        return;
    many_find_values(b, page, &v);
    bool partial = cpu_seen_from(b, page, last) > 0 || cpu_seen_to(b, page, 0) < CPU_PAGE;
    if (partial && b->value_in_key)
        many_update_kind((many_kind){true, true}, b, page, &v, st);
    else if (partial)
        many_update_kind((many_kind){true, false}, b, page, &v, st);
    else if (b->value_in_key)
        many_update_kind((many_kind){false, true}, b, page, &v, st);
    else
        many_update_kind((many_kind){false, false}, b, page, &v, st);
    st->empty = false;
}

/* ---- merge ---- */

/* odd: some lane of a side has seen no key, and leaves the other side untouched. */
VEC_INLINE void many_merge_lanes(bool odd, const cpu_block *b, const cpu_states *to,
                                 const cpu_states *from, int32_t lane) {
    size_t lanes = many_lanes(b);
    vec ma = vec_load(to->m + lane), mb = vec_load(from->m + lane);
    vec la = vec_load(to->l + lane), lb = vec_load(from->l + lane);
    vec m = vec_add(vec_max(ma, mb), vec_zero());
    vec a = exact_exp_neg_vec(vec_sub(ma, m)), c = exact_exp_neg_vec(vec_sub(mb, m));
    vec_mask keep = vec_equal(lb, vec_zero()), take = vec_equal(la, vec_zero());
    float *o = to->o + lane;
    const float *with = from->o + lane;
    for (int32_t d = 0; d < b->value_dim; d++, o += lanes, with += lanes) {
        vec x = vec_load(o), y = vec_load(with);
        vec sum = vec_add(vec_mul(x, a), vec_mul(y, c));
        vec_store(o, odd ? vec_select(keep, x, vec_select(take, y, sum)) : sum);
    }
    vec l = vec_add(vec_mul(la, a), vec_mul(lb, c));
    vec_store(to->m + lane, vec_select(keep, ma, vec_select(take, mb, m)));
    vec_store(to->l + lane, vec_select(keep, la, vec_select(take, lb, l)));
}

static void many_merge(const cpu_block *b, cpu_states *to, const cpu_states *from) {
    int32_t lanes = (int32_t)many_lanes(b);
    for (int32_t lane = 0; lane < lanes; lane += VEC_LANES) {
        vec_mask none = vec_equal(vec_load(to->l + lane), vec_zero());
        vec_mask no_other = vec_equal(vec_load(from->l + lane), vec_zero());
        if (vec_any(none) || vec_any(no_other))
            many_merge_lanes(true, b, to, from, lane);
        else
            many_merge_lanes(false, b, to, from, lane);
    }
}

static const cpu_fold many = {many_begin, many_score, many_update, many_merge, many_emit};

#endif
