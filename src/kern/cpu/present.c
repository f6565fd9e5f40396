/* What this machine has, by CPUID. A file of its own because the tests link another one in its place
 * (tests/emulate). */
#include <cpuid.h>

#include "kern/cpu/cpu.h"

/* Feature bits count only when the operating system saves the registers (XCR0). */
typedef struct features {
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx;
    uint64_t xcr0;
} features;

static features detect(void) {
    features f = {0};
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return f;
    f.leaf1_ecx = c;
    if (c & bit_OSXSAVE) {
        uint32_t lo, hi;
        __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
        f.xcr0 = (uint64_t)hi << 32 | lo;
    }
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        f.leaf7_ebx = b;
        f.leaf7_ecx = c;
    }
    return f;
}

static bool has_all(uint64_t value, uint64_t bits) {
    return (value & bits) == bits;
}

enum {
    XCR0_YMM = 0x06, /* SSE and AVX state */
    XCR0_ZMM = 0xE6  /* and mask registers, both halves of ZMM */
};

/* The scalar files are compiled with FMA, so that fmaf is one instruction. */
bool cpu_has_scalar(void) {
    features f = detect();
    return has_all(f.xcr0, XCR0_YMM) && has_all(f.leaf1_ecx, bit_AVX | bit_FMA);
}

bool cpu_has_avx2(void) {
    features f = detect();
    return cpu_has_scalar() && has_all(f.leaf1_ecx, bit_F16C) && has_all(f.leaf7_ebx, bit_AVX2);
}

bool cpu_has_avx512(void) {
    features f = detect();
    return cpu_has_avx2() && has_all(f.xcr0, XCR0_ZMM) &&
           has_all(f.leaf7_ebx, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ);
}

/* Not AVX-VNNI (leaf 7, subleaf 1), which has no 512-bit form. */
bool cpu_has_avx512vnni(void) {
    return cpu_has_avx512() && has_all(detect().leaf7_ecx, bit_AVX512VNNI);
}
