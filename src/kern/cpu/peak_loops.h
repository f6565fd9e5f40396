/* Measuring loops of a level, for any width of vector. The including file says which one:
 *
 *   ints, floats   types
 *   I(op), F(op)   the intrinsic of that name for the type
 *   FMA_CHAINS     sums side by side: more than latency times ports of the machines meant
 *
 * A dot loop is the fastest exact dot of int8 that the instructions of a level before VNNI allow:
 *
 *   4-bit codes   the quads of a block are added in int16 (30480 at most), then widened: 8 VPMADDUBSW,
 *                 7 VPADDW, 1 VPMADDWD and 1 VPADDD for 32 products in each lane of 32 bits
 *   8-bit codes   VPMADDUBSW would saturate, so both sides are int16: 1 VPMADDWD and 1 VPADDD for 2
 *
 * Unpacking is left out: a tile shares it among its rows and panels. */
#ifndef WEFT_KERN_CPU_PEAK_LOOPS_H
#define WEFT_KERN_CPU_PEAK_LOOPS_H

#include <immintrin.h>
#include <string.h>

#include "kern/cpu/peak_isa.h"

enum {
    LANES = sizeof(ints) / 4,
    QUADS = 8, /* of a block */
    DOT4_CHAINS = 2,
    DOT8_CHAINS = 6,
    READ_BYTES = 512,
    READ_SUMS = 8,

    DOT4_OPS = DOT4_CHAINS * QUADS * LANES * 4 * 2,
    DOT8_OPS = DOT8_CHAINS * LANES * 2 * 2,
    FMA_OPS = FMA_CHAINS * (sizeof(floats) / 4) * 2
};

/* The compiler takes x for changed, so that what depends on it is computed again. */
#define CHANGED(x) __asm__ volatile("" : "+x"(x))

static inline uint32_t lanes_sum(const void *vectors, size_t bytes) {
    uint32_t sum = 0;
    for (size_t at = 0; at < bytes; at += 4) {
        uint32_t lane;
        memcpy(&lane, (const char *)vectors + at, 4);
        sum += lane;
    }
    return sum;
}

static inline uint32_t loop_dot4(int64_t n_round) {
    ints acc[DOT4_CHAINS], w = I(set1_epi8)(3), q = I(set1_epi8)(-2), ones = I(set1_epi16)(1);
    for (int c = 0; c < DOT4_CHAINS; c++)
        acc[c] = I(set1_epi32)(c);
    for (int64_t i = 0; i < n_round; i++) {
#pragma GCC unroll 2
        for (int c = 0; c < DOT4_CHAINS; c++) {
            ints sum = I(maddubs_epi16)(w, q);
#pragma GCC unroll 8
            for (int j = 1; j < QUADS; j++) {
                CHANGED(w);
                sum = I(add_epi16)(sum, I(maddubs_epi16)(w, q));
            }
            CHANGED(w);
            acc[c] = I(add_epi32)(acc[c], I(madd_epi16)(sum, ones));
        }
    }
    return lanes_sum(acc, sizeof acc);
}

/* All products, then all additions: in turn they get into each other's way on some machines. */
static inline uint32_t loop_dot8(int64_t n_round) {
    ints acc[DOT8_CHAINS], w = I(set1_epi16)(3), q = I(set1_epi16)(-2);
    for (int c = 0; c < DOT8_CHAINS; c++)
        acc[c] = I(set1_epi32)(c);
    for (int64_t i = 0; i < n_round; i++) {
        ints pairs[DOT8_CHAINS];
#pragma GCC unroll 6
        for (int c = 0; c < DOT8_CHAINS; c++) {
            CHANGED(w);
            pairs[c] = I(madd_epi16)(w, q);
            CHANGED(pairs[c]);
        }
#pragma GCC unroll 6
        for (int c = 0; c < DOT8_CHAINS; c++)
            acc[c] = I(add_epi32)(acc[c], pairs[c]);
    }
    return lanes_sum(acc, sizeof acc);
}

/* x = x / 2 + 1 stays near 2: no denormal slows it. */
static inline uint32_t loop_fma(int64_t n_round) {
    floats acc[FMA_CHAINS], half = F(set1_ps)(0.5f), one = F(set1_ps)(1.0f);
    for (int c = 0; c < FMA_CHAINS; c++)
        acc[c] = F(set1_ps)((float)c);
    for (int64_t i = 0; i < n_round; i++) {
#pragma GCC unroll 16
        for (int c = 0; c < FMA_CHAINS; c++)
            acc[c] = F(fmadd_ps)(acc[c], half, one);
    }
    float lane[sizeof acc / 4], sum = 0;
    memcpy(lane, acc, sizeof acc);
    for (size_t j = 0; j < sizeof acc / 4; j++)
        sum += lane[j];
    return (uint32_t)sum;
}

static inline uint32_t loop_read(const uint8_t *from, size_t bytes) {
    floats acc[READ_SUMS];
    for (int c = 0; c < READ_SUMS; c++)
        acc[c] = F(setzero_ps)();
    for (const uint8_t *end = from + bytes; from < end; from += READ_BYTES) {
#pragma GCC unroll 16
        for (size_t at = 0; at < READ_BYTES; at += sizeof(floats)) {
            floats *sum = &acc[at / sizeof(floats) % READ_SUMS];
            if (at % 64 == 0)
                _mm_prefetch((const char *)from + 4096 + at, _MM_HINT_T0);
            *sum = F(xor_ps)(*sum, F(loadu_ps)((const float *)(const void *)(from + at)));
        }
    }
    return lanes_sum(acc, sizeof acc);
}

#endif
