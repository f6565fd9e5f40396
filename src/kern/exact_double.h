/* exp, log, sin and cos in double by plain IEEE additions, multiplications and divisions in a fixed
 * order: the same bits on every machine and at every optimisation level. For tables and the
 * sampler, not for kernels (exact_math.h). */
#ifndef WEFT_KERN_EXACT_DOUBLE_H
#define WEFT_KERN_EXACT_DOUBLE_H

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
