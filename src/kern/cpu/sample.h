/* The sampler's loops over a vocabulary row (kern_table's exp_below and noise), by level. The AVX-512
 * levels have those of AVX2. */
#ifndef WEFT_KERN_CPU_SAMPLE_H
#define WEFT_KERN_CPU_SAMPLE_H

#include "kern/kern.h"

void cpu_exp_below__scalar(const double *x, double most, int32_t n, double *out);
void cpu_noise__scalar(noise_row row, int32_t first, int32_t n, uint64_t *out);
void cpu_exp_below__avx2(const double *x, double most, int32_t n, double *out);
void cpu_noise__avx2(noise_row row, int32_t first, int32_t n, uint64_t *out);

#endif
