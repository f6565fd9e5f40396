/* The sampler's loops: the specification. */
#include "kern/cpu/sample.h"

void cpu_exp_below__scalar(const double *x, double most, int32_t n, double *out) {
    for (int32_t i = 0; i < n; i++)
        out[i] = exact_exp(x[i] - most);
}

void cpu_noise__scalar(noise_row row, int32_t first, int32_t n, uint64_t *out) {
    for (int32_t i = 0; i < n; i++)
        out[i] = noise_bits(row, first + i);
}
