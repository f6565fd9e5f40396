/* Functions of the avx2 level that linear__avx2.c collects into its table. */
#ifndef WEFT_KERN_CPU_NORM_AVX2_H
#define WEFT_KERN_CPU_NORM_AVX2_H

#include "kern/cpu/linear_isa.h"

void cpu_add__avx2(float *out, const float *a, const float *b, int32_t n);
void cpu_quantise__avx2(const float *x, int32_t n_block, int8_t *q, float *dx, float *xs,
                        int16_t *sum);
float cpu_square_sum__avx2(const float *x, int32_t n);
void cpu_scale__avx2(const float *x, float factor, const float *weight, int32_t n, float *out);
void cpu_add_scaled__avx2(float *y, float w, const float *x, int32_t n);
void cpu_glu__avx2(const kern_glu_rule *rule, float *out, const float *g, const float *u,
                   int32_t n);
void cpu_softcap__avx2(float *x, float cap, int32_t n);

void cpu_unpack__avx2(const cpu_leaf *l, int32_t n_panel, uint8_t *to);
void cpu_leaf_unpacked__avx2(const cpu_leaf *l, int32_t n_row, int32_t n_panel);

#endif
