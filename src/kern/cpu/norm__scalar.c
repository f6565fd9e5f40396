/* Row functions, scalar: the specification of all others. */
#include "kern/cpu/norm__scalar.h"

#include <math.h>

#include "kern/exact_math.h"

void cpu_add__scalar(float *out, const float *a, const float *b, int32_t n) {
    for (int32_t j = 0; j < n; j++)
        out[j] = a[j] + b[j];
}

static uint32_t amax_bits(const float *x) {
    uint32_t amax = 0;
    for (int32_t j = 0; j < CPU_BLOCK; j++) {
        uint32_t u;
        memcpy(&u, x + j, 4);
        u &= 0x7FFFFFFFu;
        amax = u > amax ? u : amax;
    }
    return amax;
}

/* Least-squares scale of the rounded block: sum(x q) / sum(q q), the first in 16 lanes (j and j +
 * 16) and the fold. */
static float refit(const float *x, const int8_t *q) {
    float lane[16];
    int32_t square = 0;
    for (int32_t i = 0; i < 16; i++) {
        lane[i] = fmaf(x[i + 16], (float)q[i + 16], x[i] * (float)q[i]);
        square += q[i] * q[i] + q[i + 16] * q[i + 16];
    }
    return exact_fold16(lane) / (float)square;
}

void cpu_quantise__scalar(const float *x, int32_t n_block, int8_t *q, float *dx, float *xs,
                          int16_t *sum) {
    for (int32_t b = 0; b < n_block; b++, x += CPU_BLOCK, q += CPU_BLOCK) {
        float id;
        int32_t total = 0;
        memset(sum + 4 * b, 0, 4 * sizeof *sum);
        bool finite = cpu_q8_scale(amax_bits(x), &dx[b], &id);
        for (int32_t j = 0; j < CPU_BLOCK; j++) {
            int32_t code = finite ? (int32_t)rintf(x[j] * id) : 0;
            q[j] = (int8_t)code;
            int16_t *part = &sum[4 * b + j / 16 * 2 + j / 2 % 2];
            *part = (int16_t)(*part + code);
            total += code;
        }
        if (id > 0.0f)
            dx[b] = refit(x, q);
        xs[b] = dx[b] * (float)total;
    }
}

float cpu_square_sum__scalar(const float *x, int32_t n) {
    float lane[16] = {0};
    int32_t j = 0;
    for (; j + 16 <= n; j += 16)
        for (int32_t i = 0; i < 16; i++)
            lane[i] = fmaf(x[j + i], x[j + i], lane[i]);
    for (int32_t i = 0; j + i < n; i++)
        lane[i] = fmaf(x[j + i], x[j + i], lane[i]);
    return exact_fold16(lane);
}

void cpu_scale__scalar(const float *x, float factor, const float *weight, int32_t n, float *out) {
    for (int32_t j = 0; j < n; j++)
        out[j] = (x[j] * factor) * weight[j];
}

void cpu_add_scaled__scalar(float *y, float w, const float *x, int32_t n) {
    for (int32_t j = 0; j < n; j++)
        y[j] = fmaf(w, x[j], y[j]);
}

static float one_nan(float x) {
    return x == x ? x : cpu_nan();
}

static float gate_clamped(const kern_glu_rule *rule, float g, float u) {
    g = rule->limit < g ? rule->limit : g;
    u = rule->limit < u ? rule->limit : u;
    u = -rule->limit > u ? -rule->limit : u;
    return g * exact_sigmoid(rule->alpha * g) * (u + 1.0f);
}

static float gate_gelu(float g, float u) {
    float z = 1.5957691f * (g * fmaf(g * g, 0.044715f, 1.0f));
    return g * exact_sigmoid(z) * u;
}

static float gate_any(const kern_glu_rule *rule, float g, float u) {
    switch (rule->kind) {
    case KERN_GLU_GELU:
        return gate_gelu(g, u);
    case KERN_GLU_CLAMPED:
        return gate_clamped(rule, g, u);
    default:
        return exact_silu(g) * u;
    }
}

void cpu_glu__scalar(const kern_glu_rule *rule, float *out, const float *g, const float *u,
                     int32_t n) {
    for (int32_t j = 0; j < n; j++)
        out[j] = one_nan(gate_any(rule, g[j], u[j]));
}

void cpu_softcap__scalar(float *x, float cap, int32_t n) {
    for (int32_t j = 0; j < n; j++) {
        float y = x[j] / cap;
        float e = exact_exp_neg(2.0f * (y < 0.0f ? y : -y));
        float t = (1.0f - e) / (1.0f + e);
        x[j] = one_nan(cap * (y < 0.0f ? -t : t));
    }
}
