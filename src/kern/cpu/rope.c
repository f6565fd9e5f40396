/* RoPE: the table, and the norm and rotation of a step's queries and keys on their way to the query
 * buffer and the wire. */
#include <assert.h>
#include <math.h>

#include "kern/cpu/attn_isa.h"
#include "kern/cpu/linear_isa.h"
#include "kern/exact_double.h"

void kern_rope_table(const double *freq, int32_t n_pair, double scale, int32_t pos0, int32_t n_pos,
                     float *out) {
    for (int32_t i = 0; i < n_pair; i++) {
        for (int32_t n = 0; n < n_pos; n++) {
            double s, c;
            exact_sincos(((double)pos0 + n) * freq[i], &s, &c);
            float *at = out + ((size_t)n * (size_t)n_pair + (size_t)i) * 2;
            at[0] = (float)(scale * c);
            at[1] = (float)(scale * s);
        }
    }
}

/* ---- heads ---- */

/* A token's (cos, sin) pairs. */
static const float *angles(kern_mem rope, kern_mem pos, int32_t rope_dim, int32_t t) {
    size_t at = (size_t)((const int32_t *)cpu_ptr(pos))[t];
    return (const float *)cpu_ptr(rope) + at * (size_t)rope_dim;
}

static size_t index_at(kern_mem list, int32_t i) {
    return (size_t)((const int32_t *)cpu_ptr(list))[i];
}

static void norm_head(const kern_dev *dev, const float *x, const float *weight, int32_t n,
                      float eps, float *out) {
    const cpu_linear_isa *isa = dev->isa->linear;
    isa->scale(x, cpu_norm_factor(isa, x, n, eps), weight, n, out);
}

/* Scratch of a thread. */
typedef struct head_scratch {
    float *normed, *turned, *ones; /* [head_dim]; for v_norm */
} head_scratch;

static head_scratch head_scratch_of(kern_dev *dev, int32_t thread, int32_t head_dim) {
    float *at = (float *)(void *)cpu_scratch(dev, thread);
    head_scratch s = {at, at + head_dim, at + 2 * head_dim};
    for (int32_t i = 0; i < head_dim; i++)
        s.ones[i] = 1.0f;
    return s;
}

/* ---- q and k of their own, or q alone ---- */

/* A head of q or k: normed where there is a weight, then rotated in its first rope_dim elements. */
static void turn_head(const kern_dev *dev, const kern_qk_rope *p, const float *x, kern_mem weight,
                      const float *cs, const head_scratch *s, float *y) {
    if (weight.at) {
        norm_head(dev, x, cpu_ptr(weight), p->head_dim, p->eps, s->normed);
        x = s->normed;
    }
    dev->isa->attn->rope(x, cs, p->rope_dim / 2, y);
    memcpy(y + p->rope_dim, x + p->rope_dim, (size_t)(p->head_dim - p->rope_dim) * sizeof *y);
}

/* x: the row's k, v behind it; wire: its wire row. */
static void wire_token(const kern_dev *dev, const kern_qk_rope *p, const float *x, const float *cs,
                       const head_scratch *s, uint8_t *wire) {
    size_t d = (size_t)p->head_dim, n_kv = (size_t)p->n_kv_head;
    size_t head_bytes = d * kern_kv_elem(p->kv_type);
    const cpu_attn_isa *isa = dev->isa->attn;
    for (size_t h = 0; h < n_kv; h++, x += d, wire += head_bytes) {
        turn_head(dev, p, x, p->k_norm, cs, s, s->turned);
        isa->round(p->kv_type, s->turned, p->head_dim, wire);
    }
    if (!p->v_norm) {
        isa->round(p->kv_type, x, (int32_t)(n_kv * d), wire);
        return;
    }
    for (size_t h = 0; h < n_kv; h++, x += d, wire += head_bytes) {
        norm_head(dev, x, s->ones, p->head_dim, p->eps, s->normed);
        isa->round(p->kv_type, s->normed, p->head_dim, wire);
    }
}

static void rope_token(const kern_dev *dev, const kern_qk_rope *p, int32_t t,
                       const head_scratch *s) {
    size_t d = (size_t)p->head_dim, n_head = (size_t)p->n_head, n_kv = (size_t)p->n_kv_head;
    const float *x = (const float *)cpu_ptr(p->qkv) + (size_t)t * (n_head + 2 * n_kv) * d;
    const float *cs = angles(p->rope, p->pos, p->rope_dim, t);
    float *q = (float *)cpu_ptr(p->q) + index_at(p->q_at, t) * n_head * d;
    for (size_t h = 0; h < n_head; h++)
        turn_head(dev, p, x + h * d, p->q_norm, cs, s, q + h * d);
    if (n_kv == 0)
        return;
    size_t row_bytes = 2 * n_kv * d * kern_kv_elem(p->kv_type);
    wire_token(dev, p, x + n_head * d, cs, s,
               (uint8_t *)cpu_ptr(p->wire) + index_at(p->kv_at, t) * row_bytes);
}

typedef struct rope_job {
    kern_dev *dev;
    const kern_qk_rope *p;
} rope_job;

static void rope_thread(void *arg, int32_t thread, int32_t n_thread) {
    const rope_job *j = arg;
    head_scratch s = head_scratch_of(j->dev, thread, j->p->head_dim);
    int32_t to = cpu_share(j->p->n_tok, thread + 1, n_thread);
    for (int32_t t = cpu_share(j->p->n_tok, thread, n_thread); t < to; t++)
        rope_token(j->dev, j->p, t, &s);
}

void cpu_qk_rope(kern_dev *dev, const kern_qk_rope *p) {
    assert(p->head_dim <= dev->limits.max_head_dim);
    rope_job j = {.dev = dev, .p = p};
    int64_t width = (int64_t)(p->n_head + 2 * p->n_kv_head) * p->head_dim;
    if (p->n_tok * width < CPU_SMALL)
        rope_thread(&j, 0, 1);
    else
        team_run(dev->team, rope_thread, &j);
}

/* ---- latent attention ---- */

static void mla_token(const kern_dev *dev, const kern_mla_rope *p, int32_t t, float *latent,
                      float *turned) {
    size_t c = (size_t)p->latent_dim, r = (size_t)p->rope_dim, n_head = (size_t)p->n_head;
    const cpu_attn_isa *isa = dev->isa->attn;
    const float *cs = angles(p->rope, p->pos, p->rope_dim, t);
    const float *q_latent = (const float *)cpu_ptr(p->q_latent) + (size_t)t * n_head * c;
    const float *q_rope = (const float *)cpu_ptr(p->q_rope) + (size_t)t * n_head * r;
    float *q = (float *)cpu_ptr(p->q) + index_at(p->q_at, t) * n_head * (c + r);
    for (size_t h = 0; h < n_head; h++, q += c + r) {
        memcpy(q, q_latent + h * c, c * sizeof *q);
        isa->rope(q_rope + h * r, cs, p->rope_dim / 2, q + c);
    }
    const float *kv = (const float *)cpu_ptr(p->kv) + (size_t)t * (c + r);
    norm_head(dev, kv, cpu_ptr(p->kv_norm), p->latent_dim, p->eps, latent);
    isa->rope(kv + c, cs, p->rope_dim / 2, turned);
    size_t elem = kern_kv_elem(p->kv_type);
    uint8_t *k = (uint8_t *)cpu_ptr(p->wire) + index_at(p->kv_at, t) * (c + r) * elem;
    isa->round(p->kv_type, latent, p->latent_dim, k);
    isa->round(p->kv_type, turned, p->rope_dim, k + c * elem);
}

typedef struct mla_job {
    kern_dev *dev;
    const kern_mla_rope *p;
} mla_job;

static void mla_thread(void *arg, int32_t thread, int32_t n_thread) {
    const mla_job *j = arg;
    float *latent = (float *)(void *)cpu_scratch(j->dev, thread);
    int32_t to = cpu_share(j->p->n_tok, thread + 1, n_thread);
    for (int32_t t = cpu_share(j->p->n_tok, thread, n_thread); t < to; t++)
        mla_token(j->dev, j->p, t, latent, latent + j->p->latent_dim);
}

void cpu_mla_rope(kern_dev *dev, const kern_mla_rope *p) {
    assert(p->latent_dim + p->rope_dim <= dev->limits.max_head_dim);
    mla_job j = {.dev = dev, .p = p};
    int64_t width = (int64_t)(p->n_head + 1) * (p->latent_dim + p->rope_dim);
    if (p->n_tok * width < CPU_SMALL)
        mla_thread(&j, 0, 1);
    else
        team_run(dev->team, mla_thread, &j);
}
