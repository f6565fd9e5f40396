/* Packed linear micro-kernel, scalar: the specification of all others. Inner loops have constant
 * bounds and no branches, so the compiler can vectorise them. */
#include "kern/cpu/norm__scalar.h"

#include <math.h>

/* Codes of one block as integers with their offset applied. int16: compilers know a dot product of
 * int16 into int32. */
static void unpack_block(dtype type, const uint8_t *quants, int16_t code[CPU_PANEL][CPU_BLOCK]) {
    int16_t offset = type == DTYPE_Q8_0 ? 128 : type == DTYPE_Q4_0 ? 8 : 0;
    int32_t n_line = type == DTYPE_Q8_0 ? 8 : 4;
    for (int32_t n = 0; n < CPU_PANEL; n++)
        for (int32_t j = 0; j < n_line; j++)
            for (int32_t t = 0; t < 4; t++) {
                uint8_t byte = quants[CPU_LINE * j + 4 * n + t];
                int32_t k = 4 * j + t;
                if (type == DTYPE_Q8_0) {
                    code[n][k] = (int16_t)(byte - offset);
                } else {
                    code[n][k] = (int16_t)((byte & 15) - offset);
                    code[n][k + 16] = (int16_t)((byte >> 4) - offset);
                }
            }
}

static void load_f16(const uint8_t *from, float *to) {
    for (int32_t n = 0; n < CPU_PANEL; n++) {
        uint16_t h;
        memcpy(&h, from + 2 * n, 2);
        to[n] = f16_to_f32(h);
    }
}

static void add_block(int16_t code[CPU_PANEL][CPU_BLOCK], const float *d, const float *m,
                      const int8_t *q8, float dx, float xs, float *acc) {
    int16_t q[CPU_BLOCK];
    for (int32_t k = 0; k < CPU_BLOCK; k++)
        q[k] = q8[k];
    for (int32_t n = 0; n < CPU_PANEL; n++) {
        int32_t isum = 0;
        for (int32_t k = 0; k < CPU_BLOCK; k++)
            isum += code[n][k] * q[k];
        acc[n] = fmaf(d[n] * dx, (float)isum, acc[n]);
    }
    if (m)
        for (int32_t n = 0; n < CPU_PANEL; n++)
            acc[n] = fmaf(m[n], xs, acc[n]);
}

/* One panel; out: [row][stride]. */
static void leaf_quantised(const cpu_leaf *l, const uint8_t *panel, int32_t n_row, float *out,
                           int32_t stride) {
    int16_t code[CPU_PANEL][CPU_BLOCK];
    float d[CPU_PANEL], m[CPU_PANEL];
    size_t n_all = (size_t)l->x_k / CPU_BLOCK, x_b0 = (size_t)l->x_k0 / CPU_BLOCK;
    for (int32_t b = 0; b < l->n_k / CPU_BLOCK; b++) {
        size_t wb = (size_t)(l->k0 / CPU_BLOCK + b), xb = x_b0 + (size_t)b;
        const uint8_t *scales = panel + l->scale_at + wb * packed_scale_bytes(l->type);
        unpack_block(l->type, panel + wb * packed_quant_bytes(l->type), code);
        load_f16(scales, d);
        if (l->type == DTYPE_Q4_1)
            load_f16(scales + 32, m);
        for (int32_t r = 0; r < n_row; r++) {
            const uint8_t *x = l->x + (size_t)r * l->x_stride;
            const float *dx = (const float *)(x + l->x_k), *xs = dx + n_all;
            add_block(code, d, l->type == DTYPE_Q4_1 ? m : NULL, (const int8_t *)x + xb * CPU_BLOCK,
                      dx[xb], xs[xb], out + r * stride);
        }
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
