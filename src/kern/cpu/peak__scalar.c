/* Measuring loops for machines without AVX2: what AVX and FMA give, which every level needs. Integers
 * are 128 bits wide there. */
#include <immintrin.h>

#define I(op) _mm_##op
#define F(op) _mm256_##op
typedef __m128i ints;
typedef __m256 floats;
enum { FMA_CHAINS = 12 };

#include "kern/cpu/peak_loops.h"

const cpu_peak_isa cpu_peak_scalar = {
    .loop = {[KERN_PEAK_DOT4] = {DOT4_OPS, loop_dot4},
             [KERN_PEAK_DOT8] = {DOT8_OPS, loop_dot8},
             [KERN_PEAK_FMA] = {FMA_OPS, loop_fma}},
    .read = loop_read,
};
