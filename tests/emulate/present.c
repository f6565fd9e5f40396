/* In place of src/kern/cpu/present.c: the AVX-512 levels are there wherever AVX2 is, because
 * immintrin.h of this folder makes them of AVX2. */
#include "kern/cpu/cpu.h"

/* Every machine with AVX2 has F16C. */
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool cpu_has_scalar(void) {
    return has_avx2();
}

bool cpu_has_avx2(void) {
    return has_avx2();
}

bool cpu_has_avx512(void) {
    return has_avx2();
}

bool cpu_has_avx512vnni(void) {
    return has_avx2();
}
