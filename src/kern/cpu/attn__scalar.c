/* The specification of attention: plain loops in the order of the contract. */
#include "kern/cpu/attn_isa.h"
#include "kern/exact_math.h"

static float max_of(float a, float b) {
    return a > b ? a : b;
}

static float widen(kern_kv_type type, const uint8_t *at, int64_t i) {
    if (type == KERN_KV_F32) {
        float f;
        memcpy(&f, at + i * 4, 4);
        return f;
    }
    uint16_t h;
    memcpy(&h, at + i * 2, 2);
    return type == KERN_KV_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* Layouts of a page: kern.h. */
static float key_at(const cpu_block *b, const cpu_page *p, int32_t key, int32_t d) {
    if (b->type == KERN_KV_BF16)
        return widen(b->type, p->k, (int64_t)(d / 2) * 32 + key * 2 + d % 2);
    return widen(b->type, p->k, (int64_t)d * CPU_PAGE + key);
}
static float value_at(const cpu_block *b, const cpu_page *p, int32_t key, int32_t d) {
    if (b->value_in_key)
        return key_at(b, p, key, d);
    const uint8_t *v = cpu_page_values(b, p);
    if (b->type == KERN_KV_BF16)
        return widen(b->type, v, (int64_t)(key / 2) * 2 * b->value_dim + d * 2 + key % 2);
    return widen(b->type, v, (int64_t)key * b->value_dim + d);
}

/* Work: scores of the last batch [page][row][16] | one page widened [d][16], [16][e]. */
static float *scores(const cpu_block *b, int32_t page) {
    return b->work + (size_t)page * (size_t)b->n_row * CPU_PAGE;
}
static float *widened(const cpu_block *b) {
    return scores(b, b->page_batch);
}

static void begin(cpu_block *b) {
    b->page_batch = 1;
}

static void score(const cpu_block *b, const cpu_page *pages, int32_t n) {
    float *k = widened(b);
    for (int32_t at = 0; at < n; at++) {
        for (int32_t d = 0; d < b->head_dim; d++)
            for (int32_t j = 0; j < CPU_PAGE; j++)
                k[d * CPU_PAGE + j] = key_at(b, &pages[at], j, d);
        for (int32_t r = 0; r < b->n_row; r++) {
            const float *q = cpu_block_query(b, r);
            float *s = scores(b, at) + (size_t)r * CPU_PAGE;
            for (int32_t j = 0; j < CPU_PAGE; j++)
                s[j] = 0.0f;
            for (int32_t d = 0; d < b->head_dim; d++)
                for (int32_t j = 0; j < CPU_PAGE; j++)
                    s[j] = fmaf(q[d], k[d * CPU_PAGE + j], s[j]);
            for (int32_t j = 0; j < CPU_PAGE; j++)
                s[j] = s[j] * b->scale;
        }
    }
}

/* Keys [lo, hi) of one row; v: [16][value_dim]. */
static void update_row(const cpu_block *b, const float *s, const float *v, int32_t lo, int32_t hi,
                       float *m, float *l, float *o) {
    float top[CPU_PAGE], p[CPU_PAGE], sum[CPU_PAGE];
    for (int32_t j = 0; j < CPU_PAGE; j++)
        top[j] = j >= lo && j < hi ? s[j] : -INFINITY;
    for (int32_t step = 8; step >= 1; step /= 2)
        for (int32_t j = 0; j < step; j++)
            top[j] = max_of(top[j], top[j + step]);
    float m_new = max_of(*m, top[0]) + 0.0f;
    float a = exact_exp_neg(*m - m_new);
    for (int32_t j = 0; j < CPU_PAGE; j++)
        sum[j] = p[j] = j >= lo && j < hi ? exact_exp_neg(s[j] - m_new) : 0.0f;
    *m = m_new;
    *l = fmaf(*l, a, exact_fold16(sum));
    for (int32_t d = 0; d < b->value_dim; d++)
        o[d] = o[d] * a;
    for (int32_t j = lo; j < hi; j++)
        for (int32_t d = 0; d < b->value_dim; d++)
            o[d] = fmaf(p[j], v[j * b->value_dim + d], o[d]);
}

static void update(const cpu_block *b, const cpu_page *page, int32_t at, cpu_states *st) {
    if (st->empty)
        cpu_states_identity(b, st);
    float *v = widened(b);
    for (int32_t j = 0; j < CPU_PAGE; j++)
        for (int32_t d = 0; d < b->value_dim; d++)
            v[j * b->value_dim + d] = value_at(b, page, j, d);
    for (int32_t r = 0; r < b->n_row; r++) {
        int32_t lo = cpu_seen_from(b, page, r), hi = cpu_seen_to(b, page, r);
        if (hi > lo)
            update_row(b, scores(b, at) + (size_t)r * CPU_PAGE, v, lo, hi, st->m + r, st->l + r,
                       st->o + (size_t)r * (size_t)b->o_stride);
    }
}

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
    float m = max_of(*ma, mb) + 0.0f;
    float a = exact_exp_neg(*ma - m), b = exact_exp_neg(mb - m);
    for (int32_t d = 0; d < n; d++)
        oa[d] = oa[d] * a + ob[d] * b;
    *ma = m;
    *la = *la * a + lb * b;
}

static void merge(const cpu_block *b, cpu_states *to, const cpu_states *from) {
    for (int32_t r = 0; r < b->n_row; r++) {
        size_t at = (size_t)r * (size_t)b->o_stride;
        merge_row(to->o + at, to->m + r, to->l + r, from->o + at, from->m[r], from->l[r],
                  b->value_dim);
    }
}

static void divide(const float *o, float l, int32_t n, float *out) {
    for (int32_t d = 0; d < n; d++)
        out[d] = l == 0.0f ? 0.0f : o[d] / l;
}

static void rope(const float *x, const float *cs, int32_t n_pair, float *y) {
    for (int32_t i = 0; i < n_pair; i++) {
        float x0 = x[2 * i], x1 = x[2 * i + 1], c = cs[2 * i], s = cs[2 * i + 1];
        float turned = x1 * s; /* a NaN keeps its sign: there is one NaN (linear_isa.h) */
        y[2 * i] = fmaf(x0, c, turned == turned ? -turned : turned);
        y[2 * i + 1] = fmaf(x0, s, x1 * c);
    }
}

static void round_to(kern_kv_type type, const float *x, int32_t n, void *out) {
    if (type == KERN_KV_F32) {
        memcpy(out, x, (size_t)n * sizeof *x);
        return;
    }
    uint16_t *h = out;
    for (int32_t i = 0; i < n; i++)
        h[i] = type == KERN_KV_F16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
}

static const cpu_fold fold = {begin, score, update, merge, cpu_states_emit};

const cpu_attn_isa cpu_attn_scalar = {.few = &fold,
                                      .many = &fold,
                                      .merge_row = merge_row,
                                      .divide = divide,
                                      .rope = rope,
                                      .round = round_to};
