/* Geometry of packed weights, shared by the packer and the micro-kernels (docs/packed-layouts.md).
 *
 * A panel is 16 outputs over all of n_in: the quant plane (for float types: the values), then the
 * scale plane of the quantised types. Both start at a multiple of 64 bytes. */
#ifndef WEFT_KERN_CPU_PACKED_H
#define WEFT_KERN_CPU_PACKED_H

#include <stddef.h>
#include <stdint.h>

#include "tensor/block.h"

enum {
    CPU_PANEL = 16, /* outputs of a panel */
    CPU_BLOCK = 32, /* values of k in a quantised block */
    CPU_LINE = 64
};

static inline size_t packed_align(size_t bytes) {
    return (bytes + CPU_LINE - 1) / CPU_LINE * CPU_LINE;
}

static inline bool packed_is_quantised(dtype type) {
    return (size_t)type < sizeof block_forms / sizeof block_forms[0] && block_forms[type].bits != 0;
}

/* Bytes that 16 outputs take in the quant plane per block: a line for each bit of a code. */
static inline size_t packed_quant_bytes(dtype type) {
    return (size_t)block_forms[type].bits * CPU_LINE;
}

/* A code of fewer than 8 bits lies in a plane of its low 4 (or 2) bits and one of the 1 or 2 bits
 * above. */
static inline int packed_low_bits(dtype type) {
    int bits = block_forms[type].bits;
    return bits >= 4 ? 4 : 2;
}
static inline int packed_high_bits(dtype type) {
    return block_forms[type].bits - packed_low_bits(type);
}

/* In a plane of n_bits (1, 2, 4) quads j and j + 4, j < 4, share line packed_line; quad j's bits
 * start at packed_shift, those of j + 4 4 bits higher. */
static inline int packed_line(int n_bits, int j) {
    return j * n_bits / 4;
}
static inline int packed_shift(int n_bits, int j) {
    return j * n_bits % 4;
}

/* The scale plane is a row of units. A unit is the scales of n blocks: a head for all of them, then
 * a part for each. */
static inline int packed_unit_blocks(dtype type) {
    return block_forms[type].scaling >= BLOCK_D_SC ? 256 / CPU_BLOCK : 1;
}
/* f16 d[16], or f16 d[16] | f16 m[16]. */
static inline size_t packed_head_bytes(dtype type) {
    switch ((block_scaling)block_forms[type].scaling) {
    case BLOCK_EXPONENT:
        return 0;
    case BLOCK_D:
    case BLOCK_D_SC:
        return 32;
    default:
        return 64;
    }
}
/* i8 sc[32 / group][16]; u8 sc[16] | u8 mn[16] with one group, u8 (sc | mn << 4)[2][16] with two;
 * or u8 e[16]. */
static inline size_t packed_part_bytes(dtype type) {
    switch ((block_scaling)block_forms[type].scaling) {
    case BLOCK_D:
    case BLOCK_D_M:
        return 0;
    case BLOCK_EXPONENT:
        return 16;
    case BLOCK_D_SC:
        return 16u * CPU_BLOCK / block_forms[type].group;
    default:
        return 32;
    }
}
static inline size_t packed_unit_bytes(dtype type) {
    return packed_head_bytes(type) + (size_t)packed_unit_blocks(type) * packed_part_bytes(type);
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
    size_t n_unit = (size_t)n_in / CPU_BLOCK / (size_t)packed_unit_blocks(type);
    return at + packed_align(n_unit * packed_unit_bytes(type));
}

#endif
