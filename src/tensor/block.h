/* GGUF's quantised blocks taken apart, 32 values at a time: what dequantising and packing share.
 *
 * A value is  scale * (level - offset) [+ minimum], level = code, or what a table says of it. All
 * codes and levels are unsigned, as the dot products take them. */
#ifndef WEFT_TENSOR_BLOCK_H
#define WEFT_TENSOR_BLOCK_H

#include "tensor/dtype.h"

enum { BLOCK_PART = 32 };

/* How a scale (and a minimum) is made; sc and mn are small integers, products are rounded to f32. */
typedef enum block_scaling {
    BLOCK_D,        /* d */
    BLOCK_D_M,      /* d; minimum m */
    BLOCK_EXPONENT, /* 2^(e - 128) */
    BLOCK_D_SC,     /* d sc, d for the block of 256, sc for each group of values */
    BLOCK_D_SC_MN   /* d sc; minimum -(m mn) */
} block_scaling;

typedef enum block_table { BLOCK_NO_TABLE, BLOCK_IQ4, BLOCK_MXFP4 } block_table;

typedef struct block_form {
    uint8_t bits;   /* of a code: 2 to 6, or 8; 0: not a quantised type */
    uint8_t group;  /* values that share sc and mn: 32 or 16 */
    uint8_t offset; /* level of value 0 */
    uint8_t most;   /* largest level */
    uint8_t scaling, table;
} block_form;

/* By dtype. In the header, so that kernels know it while compiling. Q8_0's codes have their sign
 * bit flipped. */
static const block_form block_forms[] = {
    [DTYPE_Q4_0] = {4, 32, 8, 15, BLOCK_D, BLOCK_NO_TABLE},
    [DTYPE_Q4_1] = {4, 32, 0, 15, BLOCK_D_M, BLOCK_NO_TABLE},
    [DTYPE_Q5_0] = {5, 32, 16, 31, BLOCK_D, BLOCK_NO_TABLE},
    [DTYPE_Q5_1] = {5, 32, 0, 31, BLOCK_D_M, BLOCK_NO_TABLE},
    [DTYPE_Q8_0] = {8, 32, 128, 255, BLOCK_D, BLOCK_NO_TABLE},
    [DTYPE_Q2_K] = {2, 16, 0, 3, BLOCK_D_SC_MN, BLOCK_NO_TABLE},
    [DTYPE_Q3_K] = {3, 16, 4, 7, BLOCK_D_SC, BLOCK_NO_TABLE},
    [DTYPE_Q4_K] = {4, 32, 0, 15, BLOCK_D_SC_MN, BLOCK_NO_TABLE},
    [DTYPE_Q5_K] = {5, 32, 0, 31, BLOCK_D_SC_MN, BLOCK_NO_TABLE},
    [DTYPE_Q6_K] = {6, 16, 32, 63, BLOCK_D_SC, BLOCK_NO_TABLE},
    [DTYPE_IQ4_NL] = {4, 32, 127, 240, BLOCK_D, BLOCK_IQ4},
    [DTYPE_IQ4_XS] = {4, 32, 127, 240, BLOCK_D_SC, BLOCK_IQ4},
    [DTYPE_BF16] = {0},
    [DTYPE_MXFP4] = {4, 32, 12, 24, BLOCK_EXPONENT, BLOCK_MXFP4},
};

/* Levels of the 16 codes: value + offset. MXFP4's values are doubled, its scale is halved. */
static const uint8_t block_tables[3][16] = {
    [BLOCK_IQ4] = {0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240},
    [BLOCK_MXFP4] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0},
};

typedef struct block_part {
    uint32_t quad[8]; /* byte t of quad j: the code of value 4j + t */
    uint16_t d, m;    /* f16; MXFP4: d is e */
    int8_t sc[2];     /* of values 0..15 and 16..31 */
    uint8_t mn[2];
} block_part;

/* Values [32 part, 32 part + 32) of a row of a quantised type; fields that the type lacks are 0. */
void block_read(dtype type, const uint8_t *row, int64_t part, block_part *out);

/* 2^(e - 128), subnormal for e < 2. */
static inline float block_exponent_scale(uint32_t e) {
    uint32_t u = e < 2 ? 0x00200000u << e : (e - 1) << 23;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* Scale and minimum of values [16 half, 16 half + 16); the minimum is 0 where the type has none. */
void block_scale(dtype type, const block_part *p, int32_t half, float *scale, float *minimum);

#endif
