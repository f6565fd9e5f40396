/* exact_vec.h compiled for its two widths: 16 values at a time. Run only where the level exists. */
#ifndef WEFT_TESTS_UNIT_KERN_VECTOR_MATH_H
#define WEFT_TESTS_UNIT_KERN_VECTOR_MATH_H

typedef void math16_fn(const float *x, float *y);
math16_fn exp_neg_avx2, silu_avx2, exp_neg_avx512, silu_avx512;

#endif
