/* Row functions of the avx512 levels, collected into tables by linear__avx512.c and
 * linear__avx512vnni.c. */
#ifndef WEFT_KERN_CPU_NORM_AVX512_H
#define WEFT_KERN_CPU_NORM_AVX512_H

#include "kern/cpu/linear_isa.h"

void cpu_add__avx512(float *out, const float *a, const float *b, int32_t n);
void cpu_quantise__avx512(const float *x, int32_t n_block, int8_t *q, float *dx, float *xs,
                          int16_t *sum);
float cpu_square_sum__avx512(const float *x, int32_t n);
void cpu_scale__avx512(const float *x, float factor, const float *weight, int32_t n, float *out);
void cpu_add_scaled__avx512(float *y, float w, const float *x, int32_t n);
void cpu_glu__avx512(const kern_glu_rule *rule, float *out, const float *g, const float *u,
                     int32_t n);
void cpu_softcap__avx512(float *x, float cap, int32_t n);

#endif
