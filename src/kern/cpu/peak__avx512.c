/* Measuring loops on 512-bit registers, without VNNI. */
#include <immintrin.h>

#define I(op) _mm512_##op
#define F(op) _mm512_##op
typedef __m512i ints;
typedef __m512 floats;
enum { FMA_CHAINS = 16 };

#include "kern/cpu/peak_loops.h"

const cpu_peak_isa cpu_peak_avx512 = {
    .loop = {[KERN_PEAK_DOT4] = {DOT4_OPS, loop_dot4},
             [KERN_PEAK_DOT8] = {DOT8_OPS, loop_dot8},
             [KERN_PEAK_FMA] = {FMA_OPS, loop_fma}},
    .read = loop_read,
};
