/* Geometry of packed weights, shared by the packer and the micro-kernels (docs/packed-layouts.md).
 *
 * A panel is 16 outputs over all of n_in: the quant plane (for float types: the values), then the
 * scale plane of the quantised types. Both start at a multiple of 64 bytes. */
#ifndef WEFT_KERN_CPU_PACKED_H
#define WEFT_KERN_CPU_PACKED_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/dtype.h"

enum {
    CPU_PANEL = 16, /* outputs of a panel */
    CPU_BLOCK = 32, /* values of k in a quantised block */
    CPU_LINE = 64
};

static inline size_t packed_align(size_t bytes) {
    return (bytes + CPU_LINE - 1) / CPU_LINE * CPU_LINE;
}

/* Bytes that 16 outputs take in the quant plane per block. */
static inline size_t packed_quant_bytes(dtype type) {
    return type == DTYPE_Q8_0 ? 512 : 256;
}

/* Bytes that 16 outputs take in the scale plane per block: f16 d[16], and f16 m[16] for Q4_1. */
static inline size_t packed_scale_bytes(dtype type) {
    return type == DTYPE_Q4_1 ? 64 : 32;
}

static inline bool packed_is_quantised(dtype type) {
    return type == DTYPE_Q4_0 || type == DTYPE_Q4_1 || type == DTYPE_Q8_0;
}

/* Where the scale plane starts in a panel; for float types the end of the values. */
static inline size_t packed_scale_at(dtype type, int32_t n_in) {
    size_t k = (size_t)n_in;
    switch (type) {
    case DTYPE_F32:
        return k * 64;
    case DTYPE_F16:
        return packed_align(k * 32);
    case DTYPE_BF16:
        return (k + 1) / 2 * 64;
    default:
        return k / CPU_BLOCK * packed_quant_bytes(type);
    }
}

static inline size_t packed_panel_bytes(dtype type, int32_t n_in) {
    size_t at = packed_scale_at(type, n_in);
    if (!packed_is_quantised(type))
        return at;
    return at + packed_align((size_t)n_in / CPU_BLOCK * packed_scale_bytes(type));
}

#endif
