/* Random numbers without state: Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: "Parallel
 * random numbers: as easy as 1, 2, 3", SC 2011), counter = (token id, output index, 0, 0), key =
 * the request's seed. */
#ifndef WEFT_KERN_NOISE_H
#define WEFT_KERN_NOISE_H

#include <stdint.h>

#include "kern/exact_double.h"

static inline void noise_philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
    for (int32_t round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

typedef struct noise_row {
    uint64_t seed;
    int32_t output_index;
} noise_row;

/* u = noise_bits / 2^53: odd multiples of 2^-53, so never 0 or 1 and exact in a double. */
static inline uint64_t noise_bits(noise_row row, int32_t token) {
    uint32_t c[4] = {(uint32_t)token, (uint32_t)row.output_index, 0, 0};
    noise_philox(c, (uint32_t)row.seed, (uint32_t)(row.seed >> 32));
    return (((uint64_t)c[1] << 32 | c[0]) >> 12) * 2 + 1;
}

static inline double noise_gumbel(uint64_t bits) {
    return -exact_log(-exact_log((double)bits * 0x1p-53));
}

/* Not less than noise_gumbel(bits), without a logarithm. 1 - u lies in [2^-(z + 1), 2^-z) for z
 * leading zeros of its 53 bits; -log u >= 1 - u, so -log(-log u) <= (z + 1) log 2. Half of all
 * tokens have z = 0, so nearly all are below the best value by this bound alone. */
static inline double noise_bound(uint64_t bits) {
    int32_t z = __builtin_clzll((UINT64_C(1) << 53) - bits) - 11;
    return (z + 1) * 0.6931471805599454 + 1e-9; /* 1e-9: room for the rounding of noise_gumbel */
}

#define NOISE_MOST 36.8 /* above every noise_bound: z is at most 52 */

#endif
