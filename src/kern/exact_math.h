/* exp, log, sigmoid and the 16-lane fold of the exact profile: fixed formulas with explicit fma,
 * the specification that every vector
 * version repeats bit for bit. No libm call changes a bit here: fmaf, sqrt and division are exact
 * by IEEE 754. */
#ifndef WEFT_KERN_EXACT_MATH_H
#define WEFT_KERN_EXACT_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* exp(x) for x <= 0; +0 below -87.33 (so no denormal result); NaN gives NaN.
 *   n = round-half-even(x * log2 e) by the magic-number addition; r = x - n ln 2 in two fma;
 *   degree-6 polynomial; n added to the exponent. */
static inline float exact_exp_neg(float x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23 */
    float n = fmaf(x, 1.44269504088896341f, magic) - magic;
    float r = fmaf(n, -0.693145751953125f, x);
    r = fmaf(n, -1.42860682030941723e-6f, r);
    float p = 1.38888889e-3f;
    p = fmaf(p, r, 8.33333333e-3f);
    p = fmaf(p, r, 4.16666667e-2f);
    p = fmaf(p, r, 1.66666667e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    if (x < -87.33f)
        return 0.0f;
    if (!(x <= 0.0f)) /* NaN, or a caller's fault */
        return x != x ? x : 1.0f;
    uint32_t u;
    memcpy(&u, &p, 4);
    u += (uint32_t)(int32_t)n << 23;
    memcpy(&p, &u, 4);
    return p;
}

/* 1 / (1 + exp(-x)): e = exp(-|x|); x >= 0: 1 / (1 + e), x < 0: e / (1 + e). */
static inline float exact_sigmoid(float x) {
    float e = exact_exp_neg(x < 0.0f ? x : -x);
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

static inline float exact_silu(float x) {
    return x * exact_sigmoid(x);
}

/* j += j+8, then j+4, j+2, j+1. v: [16], destroyed. */
static inline float exact_fold16(float *v) {
    for (int step = 8; step >= 1; step /= 2)
        for (int j = 0; j < step; j++)
            v[j] = v[j] + v[j + step];
    return v[0];
}

#endif
