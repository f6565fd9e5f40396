/* Where the emulated kernels touch memory. This file has the build's sanitizers, the kernels have not:
 * instrumented, they take minutes to compile. */
#include <immintrin.h>

void emulated_copy_all(void *to, const void *from) {
    memcpy(to, from, sizeof(__m512));
}

void emulated_copy(void *to, const void *from, uint32_t bits, int n, size_t bytes) {
    for (int j = 0; j < n; j++)
        if (bits >> j & 1)
            memcpy((uint8_t *)to + (size_t)j * bytes, (const uint8_t *)from + (size_t)j * bytes,
                   bytes);
}
