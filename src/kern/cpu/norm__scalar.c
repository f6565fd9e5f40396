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

void cpu_silu_mul__scalar(float *g, const float *u, int32_t n) {
    for (int32_t j = 0; j < n; j++) {
        float y = exact_silu(g[j]) * u[j];
        g[j] = y == y ? y : cpu_nan();
    }
}
