#include "kern/exact_double.h"

#include <stdint.h>
#include <string.h>

static double from_bits(uint64_t u) {
    double d;
    memcpy(&d, &u, 8);
    return d;
}

static uint64_t to_bits(double d) {
    uint64_t u;
    memcpy(&u, &d, 8);
    return u;
}

/* 2^k for k in [-1022, 1023]. */
static double power_of_two(int64_t k) {
    return from_bits((uint64_t)(k + 1023) << 52);
}

/* Nearest integer, halves away from zero; |x| < 2^62. */
static int64_t nearest(double x) {
    return (int64_t)(x < 0 ? x - 0.5 : x + 0.5);
}

double exact_exp(double x) {
    if (x != x)
        return x;
    if (x > 709.8)
        return from_bits(0x7ff0000000000000u);
    if (x < -745.2)
        return 0;
    int64_t k = nearest(x * 0x1.71547652b82fep+0);
    double hi = x - (double)k * EXACT_LN2_HI;
    double lo = (double)k * EXACT_LN2_LO;
    double r = hi - lo;
    double lost = (hi - r) - lo;
    /* r^13/13! and down: |r| < 0.35, so the next term is below 5e-18 */
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * (r * r) + (lost + lost * r);
    p = 1.0 + (r + p);
    /* In two steps: 2^k alone may leave the range of doubles where the product does not. */
    int64_t half = k / 2;
    return p * power_of_two(half) * power_of_two(k - half);
}

double exact_log(double x) {
    if (x != x || x < 0)
        return from_bits(0x7ff8000000000000u);
    if (x == 0)
        return from_bits(0xfff0000000000000u);
    if (to_bits(x) == 0x7ff0000000000000u)
        return x;
    int64_t k = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        k = -54;
    }
    uint64_t u = to_bits(x);
    k += (int64_t)(u >> 52) - 1023;
    double m = from_bits((u & 0x000fffffffffffffu) | 0x3ff0000000000000u);
    if (m > 0x1.6a09e667f3bcdp+0) { /* sqrt 2: keeps m near 1, so that k ln 2 never cancels */
        m *= 0.5;
        k++;
    }
    /* log(1 + f) = 2 atanh(s) = f - s (f - R) with s = f / (2 + f), R = 2/3 s^2 + 2/5 s^4 + ...;
     * |s| < 0.172, so the terms after s^22 are below 1e-18. f is exact: the error is that of s (f -
     * R). */
    double f = m - 1.0;
    double s = f / (2.0 + f);
    double z = s * s;
    double r = 2.0 / 23.0;
    r = r * z + 2.0 / 21.0;
    r = r * z + 2.0 / 19.0;
    r = r * z + 2.0 / 17.0;
    r = r * z + 2.0 / 15.0;
    r = r * z + 2.0 / 13.0;
    r = r * z + 2.0 / 11.0;
    r = r * z + 2.0 / 9.0;
    r = r * z + 2.0 / 7.0;
    r = r * z + 2.0 / 5.0;
    r = r * z + 2.0 / 3.0;
    r = r * z;
    double small = s * (f - r) - (double)k * EXACT_LN2_LO;
    return (double)k * EXACT_LN2_HI - (small - f);
}

/* x - q pi/2 for the nearest q, |result| <= pi/4 and a little; *quadrant = q mod 4. pi/2 in three
 * parts, the first two of 22 bits: q * part is exact for |q| < 2^31. */
static double reduce(double x, int *quadrant) {
    double q = (double)nearest(x * 0x1.45f306dc9c883p-1);
    *quadrant = (int)((int64_t)q & 3);
    double r = x - q * 0x1.921fbp+0;
    r = r - q * 0x1.5110bp-22;
    return r - q * 0x1.18469898cc517p-44;
}

/* Taylor series on |r| < 0.79: the first terms left out are below 1e-18. */
static double sin_poly(double r) {
    double z = r * r;
    double p = 1.0 / 355687428096000.0;
    p = p * z - 1.0 / 1307674368000.0;
    p = p * z + 1.0 / 6227020800.0;
    p = p * z - 1.0 / 39916800.0;
    p = p * z + 1.0 / 362880.0;
    p = p * z - 1.0 / 5040.0;
    p = p * z + 1.0 / 120.0;
    p = p * z - 1.0 / 6.0;
    return r + r * z * p;
}

static double cos_poly(double r) {
    double z = r * r;
    double p = -1.0 / 6402373705728000.0;
    p = p * z + 1.0 / 20922789888000.0;
    p = p * z - 1.0 / 87178291200.0;
    p = p * z + 1.0 / 479001600.0;
    p = p * z - 1.0 / 3628800.0;
    p = p * z + 1.0 / 40320.0;
    p = p * z - 1.0 / 720.0;
    p = p * z + 1.0 / 24.0;
    return 1.0 - (0.5 * z - z * z * p);
}

void exact_sincos(double x, double *sin_out, double *cos_out) {
    if (!(x >= -0x1p31 && x <= 0x1p31)) {
        *sin_out = *cos_out = from_bits(0x7ff8000000000000u);
        return;
    }
    int quadrant;
    double r = reduce(x, &quadrant);
    double s = sin_poly(r), c = cos_poly(r);
    double ys = quadrant & 1 ? c : s;
    double yc = quadrant & 1 ? s : c;
    *sin_out = quadrant >= 2 ? -ys : ys;
    *cos_out = quadrant == 1 || quadrant == 2 ? -yc : yc;
}

double exact_sin(double x) {
    double s, c;
    exact_sincos(x, &s, &c);
    return s;
}

double exact_cos(double x) {
    double s, c;
    exact_sincos(x, &s, &c);
    return c;
}
