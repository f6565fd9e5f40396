/* Row functions of the scalar level, collected into its table by linear__scalar.c. */
#ifndef WEFT_KERN_CPU_NORM_SCALAR_H
#define WEFT_KERN_CPU_NORM_SCALAR_H

#include "kern/cpu/linear_isa.h"

void cpu_add__scalar(float *out, const float *a, const float *b, int32_t n);
void cpu_quantise__scalar(const float *x, int32_t n_block, int8_t *q, float *dx, float *xs,
                          int16_t *sum);
float cpu_square_sum__scalar(const float *x, int32_t n);
void cpu_scale__scalar(const float *x, float factor, const float *weight, int32_t n, float *out);
void cpu_add_scaled__scalar(float *y, float w, const float *x, int32_t n);
void cpu_glu__scalar(const kern_glu_rule *rule, float *out, const float *g, const float *u,
                     int32_t n);
void cpu_softcap__scalar(float *x, float cap, int32_t n);

#endif
