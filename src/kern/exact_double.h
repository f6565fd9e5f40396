/* exp, log, sin and cos in double by plain IEEE additions, multiplications and divisions in a fixed
 * order: the same bits on every machine and at every optimisation level. For tables and the
 * sampler, not for kernels (exact_math.h). */
#ifndef WEFT_KERN_EXACT_DOUBLE_H
#define WEFT_KERN_EXACT_DOUBLE_H

/* ln 2 in two parts; the upper one has 32 bits, so that k * EXACT_LN2_HI is exact for |k| < 2^21. */
#define EXACT_LN2_HI 0x1.62e42feep-1
#define EXACT_LN2_LO 0x1.a39ef35793c76p-33

/* Relative error below 4e-16 (below the smallest normal number: half its spacing). Overflow gives
 * +inf, underflow +0, NaN gives NaN. */
double exact_exp(double x);
/* Relative error below 6e-16. log(+-0) = -inf, log(inf) = inf, NaN for x < 0 and NaN. */
double exact_log(double x);

/* Absolute error below 4e-16 for |x| <= 2^31; NaN outside. */
double exact_sin(double x);
double exact_cos(double x);
void exact_sincos(double x, double *sin_out, double *cos_out);

#endif
