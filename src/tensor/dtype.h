/* Element types, quantised block formats, and exact 16-bit conversions. No arithmetic on tensors.
 */
#ifndef WEFT_TENSOR_DTYPE_H
#define WEFT_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Values are GGUF's ggml type numbers, so that a file's type field converts by a range check.
 * tensor/block.h has the quantised formats. */
typedef enum dtype {
    DTYPE_F32 = 0,
    DTYPE_F16 = 1,
    DTYPE_Q4_0 = 2,
    DTYPE_Q4_1 = 3,
    DTYPE_Q5_0 = 6,
    DTYPE_Q5_1 = 7,
    DTYPE_Q8_0 = 8,
    DTYPE_Q2_K = 10,
    DTYPE_Q3_K = 11,
    DTYPE_Q4_K = 12,
    DTYPE_Q5_K = 13,
    DTYPE_Q6_K = 14,
    DTYPE_IQ4_NL = 20,
    DTYPE_IQ4_XS = 23,
    DTYPE_BF16 = 30,
    DTYPE_MXFP4 = 39,
} dtype;

typedef struct dtype_info {
    const char *name;
    int32_t block_len;   /* values per block; 1 for plain types */
    int32_t block_bytes; /* bytes per block */
    bool quantised;
} dtype_info;

/* NULL for a type that weft does not compute with. */
const dtype_info *dtype_find(uint32_t ggml_type);
/* Name of any ggml type number that the format defines ("Q4_K"), "type 200" style text is the
 * caller's; NULL when unknown or removed. *block_len and *block_bytes are filled when the type is
 * known. */
const char *dtype_ggml_name(uint32_t ggml_type, int32_t *block_len, int32_t *block_bytes);

/* Bytes of n values (n a multiple of the block length). */
static inline size_t dtype_bytes(const dtype_info *t, int64_t n) {
    return (size_t)(n / t->block_len) * (size_t)t->block_bytes;
}

/* Dequantises n values (multiple of the block length) from raw blocks to fp32, in the order of
 * operations of gguf.quants: scale times code, then plus the minimum, each rounded to fp32. */
void dtype_to_f32(dtype t, const void *src, int64_t n, float *dst);

/* IEEE binary16 <-> binary32, exact widening; narrowing rounds to nearest even, overflow gives
 * infinity, NaN stays NaN (quiet). */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f);
static inline float bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}
/* Round to nearest even; NaN stays NaN (quiet). */
uint16_t f32_to_bf16(float f);

#endif
