/* RoPE: the table, and the rotation of a step's queries and keys on their way to the query buffer
 * and the wire. */
#include "kern/cpu/attn_isa.h"
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

/* x rotated in its first rope_dim elements. */
static void rotate(const kern_dev *dev, const kern_qk_rope *p, const float *x, const float *cs,
                   float *y) {
    dev->isa->attn->rope(x, cs, p->rope_dim / 2, y);
    size_t rest = (size_t)(p->head_dim - p->rope_dim);
    memcpy(y + p->rope_dim, x + p->rope_dim, rest * sizeof *y);
}

/* turned: [head_dim], the thread's scratch. */
static void rope_token(const kern_dev *dev, const kern_qk_rope *p, int32_t t, float *turned) {
    size_t d = (size_t)p->head_dim, n_head = (size_t)p->n_head, n_kv = (size_t)p->n_kv_head;
    const float *x = (const float *)cpu_ptr(p->qkv) + (size_t)t * (n_head + 2 * n_kv) * d;
    int32_t pos = ((const int32_t *)cpu_ptr(p->pos))[t];
    const float *cs = (const float *)cpu_ptr(p->rope) + (size_t)pos * (size_t)p->rope_dim;
    size_t q_at = (size_t)((const int32_t *)cpu_ptr(p->q_at))[t];
    size_t kv_at = (size_t)((const int32_t *)cpu_ptr(p->kv_at))[t];

    float *q = (float *)cpu_ptr(p->q) + q_at * n_head * d;
    for (size_t h = 0; h < n_head; h++)
        rotate(dev, p, x + h * d, cs, q + h * d);

    size_t head_bytes = d * kern_kv_elem(p->kv_type);
    uint8_t *k = (uint8_t *)cpu_ptr(p->wire) + kv_at * 2 * n_kv * head_bytes;
    for (size_t h = 0; h < n_kv; h++) {
        rotate(dev, p, x + (n_head + h) * d, cs, turned);
        dev->isa->attn->round(p->kv_type, turned, p->head_dim, k + h * head_bytes);
    }
    const float *v = x + (n_head + n_kv) * d;
    dev->isa->attn->round(p->kv_type, v, (int32_t)(n_kv * d), k + n_kv * head_bytes);
}

typedef struct rope_job {
    kern_dev *dev;
    const kern_qk_rope *p;
} rope_job;

static void rope_thread(void *arg, int32_t thread, int32_t n_thread) {
    const rope_job *j = arg;
    float *turned = (float *)(void *)cpu_scratch(j->dev, thread);
    int32_t n = j->p->n_tok;
    int32_t from = cpu_share(n, thread, n_thread), to = cpu_share(n, thread + 1, n_thread);
    for (int32_t t = from; t < to; t++)
        rope_token(j->dev, j->p, t, turned);
}

void cpu_qk_rope(kern_dev *dev, const kern_qk_rope *p) {
    rope_job j = {.dev = dev, .p = p};
    int64_t width = (int64_t)(p->n_head + 2 * p->n_kv_head) * p->head_dim;
    if (p->n_tok * width < CPU_SMALL)
        rope_thread(&j, 0, 1);
    else
        team_run(dev->team, rope_thread, &j);
}
