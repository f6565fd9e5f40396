/* Plain GGUF rows -> packed panels (docs/packed-layouts.md).
 *
 * Packing is a transposition: no value is rounded or rescaled. The only bits that change are two
 * signs: those of Q8_0's codes (w ^ 0x80 = w + 128 as unsigned, what the dot instruction takes) and
 * that of the scale of minima of K types, which are subtracted. Outputs past the end of the matrix
 * get weights that are 0 in their format (where it has a 0) and scales +0, so a tail panel needs no
 * other kernel. */
#include <assert.h>

#include "kern/cpu/cpu.h"
#include "kern/cpu/packed.h"

size_t cpu_packed_bytes(dtype type, int32_t n_out, int32_t n_in) {
    size_t n_panel = ((size_t)n_out + CPU_PANEL - 1) / CPU_PANEL;
    return n_panel * packed_panel_bytes(type, n_in);
}

/* Bits [from, from + n_bits) of all codes into the plane's lines, as dword n of each. */
static void pack_plane(const uint32_t *quad, int from, int n_bits, int32_t n, uint8_t *lines) {
    uint32_t dword[4] = {0}, mask = ((1u << n_bits) - 1) * 0x01010101u;
    for (int j = 0; j < 4; j++) {
        uint32_t two = ((quad[j] >> from) & mask) | ((quad[j + 4] >> from) & mask) << 4;
        dword[packed_line(n_bits, j)] |= two << packed_shift(n_bits, j);
    }
    for (int line = 0; line < n_bits; line++)
        memcpy(lines + CPU_LINE * line + 4 * n, &dword[line], 4);
}

static void pack_codes(dtype type, const uint32_t *quad, int32_t n, uint8_t *quants) {
    if (block_forms[type].bits == 8) {
        for (int j = 0; j < 8; j++)
            memcpy(quants + CPU_LINE * j + 4 * n, &quad[j], 4);
        return;
    }
    int low = packed_low_bits(type), high = packed_high_bits(type);
    pack_plane(quad, 0, low, n, quants);
    if (high)
        pack_plane(quad, low, high, n, quants + low * CPU_LINE);
}

/* Scales of output n for the block of a unit whose part starts at `part`. */
static void pack_scales(dtype type, const block_part *p, int32_t n, uint8_t *head, uint8_t *part) {
    const block_form *f = &block_forms[type];
    uint16_t m = f->scaling == BLOCK_D_SC_MN ? p->m ^ 0x8000 : p->m;
    if (f->scaling == BLOCK_EXPONENT) {
        part[n] = (uint8_t)p->d;
        return;
    }
    memcpy(head + 2 * n, &p->d, 2);
    if (packed_head_bytes(type) > 32)
        memcpy(head + 32 + 2 * n, &m, 2);
    if (f->scaling == BLOCK_D_SC_MN && f->group == 32) {
        part[n] = (uint8_t)p->sc[0];
        part[16 + n] = p->mn[0];
    } else if (f->scaling >= BLOCK_D_SC) {
        for (int half = 0; half < CPU_BLOCK / f->group; half++)
            part[16 * half + n] = (uint8_t)(p->sc[half] | p->mn[half] << 4);
    }
}

static void pack_quantised(dtype type, const uint8_t *rows, size_t row_bytes, int32_t n_valid,
                           int32_t n_in, uint8_t *panel) {
    const block_form *f = &block_forms[type];
    const uint32_t zeros = (f->table == BLOCK_NO_TABLE ? f->offset : 0) * 0x01010101u;
    const uint32_t zero_quads[8] = {zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros};
    size_t scale_at = packed_scale_at(type, n_in);
    memset(panel + scale_at, 0, packed_panel_bytes(type, n_in) - scale_at);
    for (int32_t b = 0; b < n_in / CPU_BLOCK; b++) {
        int32_t n_unit = packed_unit_blocks(type);
        uint8_t *quants = panel + (size_t)b * packed_quant_bytes(type);
        uint8_t *head = panel + scale_at + (size_t)(b / n_unit) * packed_unit_bytes(type);
        uint8_t *part =
            head + packed_head_bytes(type) + (size_t)(b % n_unit) * packed_part_bytes(type);
        for (int32_t n = 0; n < n_valid; n++) {
            block_part p;
            block_read(type, rows + (size_t)n * row_bytes, b, &p);
            pack_codes(type, p.quad, n, quants);
            pack_scales(type, &p, n, head, part);
        }
        for (int32_t n = n_valid; n < CPU_PANEL; n++)
            pack_codes(type, zero_quads, n, quants);
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
