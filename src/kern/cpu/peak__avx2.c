/* Measuring loops on 256-bit registers. */
#include <immintrin.h>

#define I(op) _mm256_##op
#define F(op) _mm256_##op
typedef __m256i ints;
typedef __m256 floats;
enum { FMA_CHAINS = 12 };

#include "kern/cpu/peak_loops.h"

const cpu_peak_isa cpu_peak_avx2 = {
    .loop = {[KERN_PEAK_DOT4] = {DOT4_OPS, loop_dot4},
             [KERN_PEAK_DOT8] = {DOT8_OPS, loop_dot8},
             [KERN_PEAK_FMA] = {FMA_OPS, loop_fma}},
    .read = loop_read,
};
