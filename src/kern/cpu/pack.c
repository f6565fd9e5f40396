/* Plain GGUF rows -> packed panels (docs/packed-layouts.md).
 *
 * Packing is a transposition: no value is rounded or rescaled. The only bits that change are the
 * sign bits of Q8_0 (w ^ 0x80 = w + 128 as unsigned, what the dot instruction takes). Outputs past
 * the end of the matrix get weights that are 0 in their format and scales +0, so a tail panel needs
 * no other kernel. */
#include <assert.h>

#include "kern/cpu/cpu.h"
#include "kern/cpu/packed.h"

size_t cpu_packed_bytes(dtype type, int32_t n_out, int32_t n_in) {
    size_t n_panel = ((size_t)n_out + CPU_PANEL - 1) / CPU_PANEL;
    return n_panel * packed_panel_bytes(type, n_in);
}

/* A block of zeros: code 8 is the zero of Q4_0. The Q8_0 codes are zeros before the sign flip. */
static const uint8_t *zero_block(dtype type) {
    static const uint8_t q4_0[18] = {0,    0,    0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88,
                                     0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88};
    static const uint8_t other[34] = {0};
    return type == DTYPE_Q4_0 ? q4_0 : other;
}

/* Block b of output n of the panel: scales into the scale plane, codes by dwords into the lines of
 * the quant plane. */
static void pack_block(dtype type, const uint8_t *block, int32_t n, uint8_t *quants,
                       uint8_t *scales) {
    memcpy(scales + 2 * n, block, 2);
    block += 2;
    if (type == DTYPE_Q4_1) {
        memcpy(scales + 32 + 2 * n, block, 2);
        block += 2;
    }
    int32_t n_line = type == DTYPE_Q8_0 ? 8 : 4;
    uint32_t flip = type == DTYPE_Q8_0 ? 0x80808080u : 0;
    for (int32_t j = 0; j < n_line; j++) {
        uint32_t quad;
        memcpy(&quad, block + 4 * j, 4);
        quad ^= flip;
        memcpy(quants + CPU_LINE * j + 4 * n, &quad, 4);
    }
}

static void pack_quantised(dtype type, const uint8_t *rows, size_t row_bytes, int32_t n_valid,
                           int32_t n_in, uint8_t *panel) {
    size_t block_bytes = (size_t)dtype_find(type)->block_bytes;
    size_t n_block = (size_t)n_in / CPU_BLOCK;
    uint8_t *scales = panel + packed_scale_at(type, n_in);
    memset(scales, 0, packed_panel_bytes(type, n_in) - packed_scale_at(type, n_in));
    for (size_t b = 0; b < n_block; b++)
        for (int32_t n = 0; n < CPU_PANEL; n++) {
            const uint8_t *block =
                n < n_valid ? rows + (size_t)n * row_bytes + b * block_bytes : zero_block(type);
            pack_block(type, block, n, panel + b * packed_quant_bytes(type),
                       scales + b * packed_scale_bytes(type));
        }
}

/* Byte of value (output n, column k) in a panel of a float type. */
static size_t float_at(dtype type, size_t k, size_t n) {
    switch (type) {
    case DTYPE_F32:
        return k * 64 + n * 4;
    case DTYPE_F16:
        return k * 32 + n * 2;
    default:
        return k / 2 * 64 + n * 4 + k % 2 * 2;
    }
}

static void pack_float(dtype type, const uint8_t *rows, size_t row_bytes, int32_t n_valid,
                       int32_t n_in, uint8_t *panel) {
    size_t elem = type == DTYPE_F32 ? 4 : 2;
    memset(panel, 0, packed_panel_bytes(type, n_in));
    for (size_t n = 0; n < (size_t)n_valid; n++)
        for (size_t k = 0; k < (size_t)n_in; k++)
            memcpy(panel + float_at(type, k, n), rows + n * row_bytes + k * elem, elem);
}

void cpu_pack(const void *src, int32_t row0, int32_t n_row, kern_weight *w) {
    assert(row0 % CPU_PANEL == 0 && row0 + n_row <= w->n_out);
    assert(n_row % CPU_PANEL == 0 || row0 + n_row == w->n_out);
    size_t row_bytes = dtype_bytes(dtype_find(w->type), w->n_in);
    size_t panel_bytes = packed_panel_bytes(w->type, w->n_in);
    for (int32_t r = row0; r < row0 + n_row; r += CPU_PANEL) {
        const uint8_t *rows = (const uint8_t *)src + (size_t)r * row_bytes;
        uint8_t *panel = (uint8_t *)cpu_ptr(w->data) + (size_t)(r / CPU_PANEL) * panel_bytes;
        int32_t n_valid = row0 + n_row - r < CPU_PANEL ? row0 + n_row - r : CPU_PANEL;
        if (packed_is_quantised(w->type))
            pack_quantised(w->type, rows, row_bytes, n_valid, w->n_in, panel);
        else
            pack_float(w->type, rows, row_bytes, n_valid, w->n_in, panel);
    }
}
