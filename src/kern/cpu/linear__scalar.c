/* Packed linear micro-kernel, scalar: the specification of all others. Inner loops have constant
 * bounds and no branches, so the compiler can vectorise them. */
#include "kern/cpu/norm__scalar.h"

#include <math.h>

/* Bits of a plane that belong to column k of output n. */
static uint32_t plane_bits(const uint8_t *lines, int n_bits, int32_t n, int32_t k) {
    int32_t j = k / 4 % 4;
    uint32_t byte = lines[CPU_LINE * packed_line(n_bits, j) + 4 * n + k % 4];
    return byte >> (packed_shift(n_bits, j) + k / 16 * 4) & ((1u << n_bits) - 1);
}

static uint32_t code_at(dtype type, const uint8_t *quants, int32_t n, int32_t k) {
    if (block_forms[type].bits == 8)
        return quants[CPU_LINE * (k / 4) + 4 * n + k % 4];
    int low = packed_low_bits(type), high = packed_high_bits(type);
    uint32_t code = plane_bits(quants, low, n, k);
    return high ? code | plane_bits(quants + low * CPU_LINE, high, n, k) << low : code;
}

/* Values of one block with their offset applied. int16: compilers know a dot product of int16 into
 * int32. */
static void unpack_block(dtype type, const uint8_t *quants, int16_t value[CPU_PANEL][CPU_BLOCK]) {
    const block_form *f = &block_forms[type];
    for (int32_t n = 0; n < CPU_PANEL; n++)
        for (int32_t k = 0; k < CPU_BLOCK; k++) {
            uint32_t level = code_at(type, quants, n, k);
            if (f->table != BLOCK_NO_TABLE)
                level = block_tables[f->table][level];
            value[n][k] = (int16_t)((int32_t)level - f->offset);
        }
}

static float f16_at(const uint8_t *at) {
    uint16_t h;
    memcpy(&h, at, 2);
    return f16_to_f32(h);
}

static void load_f16(const uint8_t *from, float *to) {
    for (int32_t n = 0; n < CPU_PANEL; n++)
        to[n] = f16_at(from + 2 * n);
}

/* Scales and minima of 16 outputs for group g of a block. */
static void load_scales(dtype type, const uint8_t *head, const uint8_t *part, int32_t g, float *d,
                        float *m) {
    const block_form *f = &block_forms[type];
    for (int32_t n = 0; n < CPU_PANEL; n++) {
        if (f->scaling == BLOCK_EXPONENT) {
            d[n] = block_exponent_scale(part[n]);
            continue;
        }
        d[n] = f16_at(head + 2 * n);
        if (packed_head_bytes(type) > 32)
            m[n] = f16_at(head + 32 + 2 * n);
        if (f->scaling < BLOCK_D_SC)
            continue;
        int32_t sc = (int8_t)part[16 * g + n], mn = part[16 + n];
        if (f->scaling == BLOCK_D_SC_MN && f->group == 16) {
            sc = part[16 * g + n] & 15;
            mn = part[16 * g + n] >> 4;
        }
        d[n] *= (float)sc;
        if (f->scaling == BLOCK_D_SC_MN)
            m[n] *= (float)mn;
    }
}

/* n columns of a block, whose values start at column k of `value`. */
static void add_group(int16_t value[CPU_PANEL][CPU_BLOCK], int32_t k, int32_t n_k, const float *d,
                      const int8_t *q8, float dx, float *acc) {
    for (int32_t n = 0; n < CPU_PANEL; n++) {
        int32_t isum = 0;
        for (int32_t i = 0; i < n_k; i++)
            isum += value[n][k + i] * q8[k + i];
        acc[n] = fmaf(d[n] * dx, (float)isum, acc[n]);
    }
}

/* A block with one row: x is its record, xb the block's number there. */
static void add_block(dtype type, int16_t value[CPU_PANEL][CPU_BLOCK], const uint8_t *head,
                      const uint8_t *part, const cpu_leaf *l, const uint8_t *x, size_t xb,
                      float *acc) {
    const block_form *f = &block_forms[type];
    const size_t n_all = (size_t)l->x_k / CPU_BLOCK;
    const float *dx = (const float *)(x + l->x_k), *xs = dx + n_all;
    const int16_t *sum = (const int16_t *)(xs + n_all);
    float d[CPU_PANEL], m[CPU_PANEL];
    for (int32_t g = 0; g < CPU_BLOCK / f->group; g++) {
        load_scales(type, head, part, g, d, m);
        add_group(value, g * f->group, f->group, d, (const int8_t *)x + xb * CPU_BLOCK, dx[xb],
                  acc);
        if (f->scaling != BLOCK_D_M && f->scaling != BLOCK_D_SC_MN)
            continue;
        const int16_t *half = sum + 4 * xb + 2 * g;
        float by = f->group == CPU_BLOCK ? xs[xb] : dx[xb] * (float)(half[0] + half[1]);
        for (int32_t n = 0; n < CPU_PANEL; n++)
            acc[n] = fmaf(m[n], by, acc[n]);
    }
}

/* One panel; out: [row][stride]. */
static void leaf_quantised(const cpu_leaf *l, const uint8_t *panel, int32_t n_row, float *out,
                           int32_t stride) {
    int16_t value[CPU_PANEL][CPU_BLOCK];
    size_t n_unit = (size_t)packed_unit_blocks(l->type);
    for (int32_t b = 0; b < l->n_k / CPU_BLOCK; b++) {
        size_t wb = (size_t)(l->k0 / CPU_BLOCK + b), xb = (size_t)(l->x_k0 / CPU_BLOCK + b);
        const uint8_t *head = panel + l->scale_at + wb / n_unit * packed_unit_bytes(l->type);
        const uint8_t *part =
            head + packed_head_bytes(l->type) + wb % n_unit * packed_part_bytes(l->type);
        unpack_block(l->type, panel + wb * packed_quant_bytes(l->type), value);
        for (int32_t r = 0; r < n_row; r++)
            add_block(l->type, value, head, part, l, l->x + (size_t)r * l->x_stride, xb,
                      out + r * stride);
    }
}

/* Column k of a panel of a float type, widened. */
static void load_column(dtype type, const uint8_t *panel, size_t k, float *w) {
    if (type == DTYPE_F32) {
        memcpy(w, panel + k * 64, 64);
    } else if (type == DTYPE_F16) {
        load_f16(panel + k * 32, w);
    } else {
        for (size_t n = 0; n < CPU_PANEL; n++) {
            uint16_t h;
            memcpy(&h, panel + k / 2 * 64 + n * 4 + k % 2 * 2, 2);
            w[n] = bf16_to_f32(h);
        }
    }
}

static void leaf_float(const cpu_leaf *l, const uint8_t *panel, int32_t n_row, float *out,
                       int32_t stride) {
    float w[CPU_PANEL];
    for (int32_t k = 0; k < l->n_k; k++) {
        load_column(l->type, panel, (size_t)(l->k0 + k), w);
        for (int32_t r = 0; r < n_row; r++) {
            const float *row = (const float *)(l->x + (size_t)r * l->x_stride);
            float x = row[l->x_k0 + k];
            float *acc = out + r * stride;
            for (int32_t n = 0; n < CPU_PANEL; n++)
                acc[n] = fmaf(w[n], x, acc[n]);
        }
    }
}

static void leaf_scalar(const cpu_leaf *l, int32_t n_row, int32_t n_panel) {
    int32_t stride = n_panel * CPU_PANEL;
    memset(l->out, 0, (size_t)(n_row * stride) * sizeof(float));
    for (int32_t p = 0; p < n_panel; p++) {
        const uint8_t *panel = l->w + (size_t)p * l->panel_bytes;
        if (packed_is_quantised(l->type))
            leaf_quantised(l, panel, n_row, l->out + p * CPU_PANEL, stride);
        else
            leaf_float(l, panel, n_row, l->out + p * CPU_PANEL, stride);
    }
}

static void store_scalar(const float *tile, int32_t n_row, int32_t width, int32_t n_valid,
                         const float *bias, float *y, size_t y_stride) {
    for (int32_t r = 0; r < n_row; r++)
        for (int32_t o = 0; o < n_valid; o++) {
            float sum = tile[r * width + o];
            y[(size_t)r * y_stride + (size_t)o] = bias ? sum + bias[o] : sum;
        }
}

const cpu_linear_isa cpu_linear_scalar = {
    .leaf = leaf_scalar,
    .store = store_scalar,
    .add = cpu_add__scalar,
    .quantise = cpu_quantise__scalar,
    .square_sum = cpu_square_sum__scalar,
    .scale = cpu_scale__scalar,
    .add_scaled = cpu_add_scaled__scalar,
    .glu = cpu_glu__scalar,
    .softcap = cpu_softcap__scalar,
};
