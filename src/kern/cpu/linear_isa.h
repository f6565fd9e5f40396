/* What an instruction-set level gives to the linear layers, norms and activations. The scalar
 * version of each function is its specification; every other level must give the same bits.
 *
 * The one NaN: x86 itself makes 0xFFC00000 of an invalid operation. Where weft makes a NaN it makes
 * the same one, because the bits of (NaN op NaN) depend on operand order, which compilers choose;
 * with a single NaN in circulation no order matters. */
#ifndef WEFT_KERN_CPU_LINEAR_ISA_H
#define WEFT_KERN_CPU_LINEAR_ISA_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "kern/cpu/cpu.h"
#include "kern/cpu/packed.h"

enum {
    CPU_TILE_ROWS = 6,       /* most rows of a tile */
    CPU_TILE_FLOATS = 384,   /* most sums of a tile: 6 rows x 4 panels */
    CPU_UNPACKED_ROWS = 4,   /* least rows of a tile of unpacked panels */
    CPU_UNPACKED_PANELS = 4, /* most panels of a weight that are unpacked at a time */
    CPU_NORM_SEGMENT = 512   /* floats of a row over which reduce_norm walks its tree at a time */
};

/* One leaf of a tile: sum over k in [0, n_k) of W[.][k0 + k] x[row][x_k0 + k]. */
typedef struct cpu_leaf {
    dtype type;
    const uint8_t *w; /* first panel */
    size_t panel_bytes, scale_at;
    int32_t k0, n_k;
    const uint8_t *x;  /* first row: floats, or a q8 record */
    size_t x_stride;   /* bytes from row to row */
    int32_t x_k, x_k0; /* k of the whole row (says where dx, xs and sum lie), start of the leaf */
    size_t prefetch;   /* distance in bytes at which weights will be wanted next */
    int32_t fetch_first, fetch_step; /* turns of the walk over k (blocks, columns, pairs of columns)
                                        that fetch what lies at that distance: first, first + step.. */
    float *out;                      /* [row][n_panel * 16] */
} cpu_leaf;

struct cpu_linear_isa {
    /* n_row 1..CPU_TILE_ROWS; n_panel 1, 2, or 4 when n_row <= 3.
     * Quantised: per group of 32 or 16 values that share a scale, k ascending: isum = exact integer
     * sum of (level - offset) * q, acc = fma(scale * dx, (float)isum, acc); with a minimum then acc
     * = fma(minimum, xs, acc), where xs = dx * (float)sum of the group. tensor/block.h has the
     * words.
     * Float: acc = fma(w, x, acc), k ascending, w widened to f32. */
    void (*leaf)(const cpu_leaf *l, int32_t n_row, int32_t n_panel);

    /* For many tiles of rows, quantised types; NULL: the level has none. unpack writes columns [k0,
     * k0 + n_k) of n_panel panels to `to`, n_k / 32 * cpu_unpacked_bytes(type) bytes each, in the
     * level's own form; `to` is aligned to 64 bytes. leaf_unpacked is leaf with w, panel_bytes and
     * k0 in there, n_row CPU_UNPACKED_ROWS..CPU_TILE_ROWS; it fetches nothing. */
    void (*unpack)(const cpu_leaf *l, int32_t n_panel, uint8_t *to);
    void (*leaf_unpacked)(const cpu_leaf *l, int32_t n_row, int32_t n_panel);

    /* y[r * y_stride + o] = tile[r * width + o] (+ bias[o] when not NULL), o in [0, n_valid). */
    void (*store)(const float *tile, int32_t n_row, int32_t width, int32_t n_valid,
                  const float *bias, float *y, size_t y_stride);

    /* out = a + b; out may be a or b. */
    void (*add)(float *out, const float *a, const float *b, int32_t n);

    /* Activation blocks of 32 (rule in kern.h); cpu_q8_scale says what happens at the edges. */
    void (*quantise)(const float *x, int32_t n_block, int8_t *q, float *dx, float *xs,
                     int16_t *sum);

    /* Sum of x^2: lane[j % 16] = fma(x[j], x[j], lane[j % 16]), then the fold of 16. */
    float (*square_sum)(const float *x, int32_t n);

    /* out[j] = (x[j] * factor) * weight[j]; out may be x. */
    void (*scale)(const float *x, float factor, const float *weight, int32_t n, float *out);

    /* y[j] = fma(w, x[j], y[j]) */
    void (*add_scaled)(float *y, float w, const float *x, int32_t n);

    /* out[j] = rule(g[j], u[j]) (kern_glu_rule); out may be g. Any NaN becomes the one NaN. */
    void (*glu)(const kern_glu_rule *rule, float *out, const float *g, const float *u, int32_t n);

    /* x[j] = cap * tanh(x[j] / cap) (kern_softcap); any NaN becomes the one NaN. */
    void (*softcap)(float *x, float cap, int32_t n);
};

extern const cpu_linear_isa cpu_linear_scalar, cpu_linear_avx2, cpu_linear_avx512,
    cpu_linear_avx512vnni;

/* What RMSNorm multiplies x with, before the weight: 1 / sqrt(mean of x^2 + eps). */
static inline float cpu_norm_factor(const cpu_linear_isa *isa, const float *x, int32_t n,
                                    float eps) {
    float mean = isa->square_sum(x, n) / (float)n;
    return 1.0f / sqrtf(mean + eps);
}

static inline float cpu_nan(void) {
    const uint32_t bits = 0xFFC00000u;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* VPMADDUBSW adds the products of two unsigned levels with two codes in int16; it saturates, so 2 *
 * 127 * the largest level must be at most 32767. Levels up to 129 are short in that sense; Q8_0's
 * and IQ4's are not. n quads then add 2 n products in each int16 lane, where sums may wrap on their
 * way as long as the end fits, offset * (the lane's sum of codes) taken off, modulo 2^16 too:
 *   2 n max|level - offset| 127 <= 32767, that is  n max|level - offset| <= 129
 * A group is added in as many runs of quads as that takes. */
static inline bool cpu_is_short(dtype type) {
    return block_forms[type].most <= 129;
}
static inline int cpu_short_runs(dtype type) {
    int below = block_forms[type].offset, above = block_forms[type].most - below;
    int n_quad = block_forms[type].group / 4;
    return n_quad * (above > below ? above : below) <= 129 ? 1 : 2;
}

/* Bytes of 32 columns of an unpacked panel: levels of a byte each and the groups' scales and minima
 * in f32; levels that are not short take two bytes, with an int32 for each output. */
enum { CPU_UNPACKED_MOST = 2 * CPU_BLOCK * CPU_PANEL + 2 * 4 * CPU_PANEL };
static inline size_t cpu_unpacked_bytes(dtype type) {
    const block_form f = block_forms[type];
    size_t levels = CPU_BLOCK * CPU_PANEL, scales = 4u * CPU_PANEL * CPU_BLOCK / f.group;
    if (!cpu_is_short(type))
        return 2 * levels + scales + 4 * CPU_PANEL;
    return levels + (f.scaling == BLOCK_D_M || f.scaling == BLOCK_D_SC_MN ? 2 : 1) * scales;
}

/* Scale of a block from the largest |x| given as its bits (for non-negative floats the order of the
 * bits is the order of the values; every NaN is above infinity, so a NaN cannot hide):
 *   a NaN or infinity in the block:  *d = NaN, *id = 0; the kernels then write q = 0, sum = 0
 *   amax = 0, or so small that 127 / amax overflows (below 3.8e-37):  *d = *id = 0: block of zeros
 *   else *d = amax / 127, *id = 127 / amax; |x * id| rounds to 127 at most
 * Returns false for the first case: x * 0 is not 0 there. */
static inline bool cpu_q8_scale(uint32_t amax_bits, float *d, float *id) {
    float amax;
    memcpy(&amax, &amax_bits, 4);
    *id = 0.0f;
    if (amax_bits >= 0x7F800000u) {
        *d = cpu_nan();
        return false;
    }
    *d = 0.0f;
    float inverse = amax == 0.0f ? 0.0f : 127.0f / amax;
    if (inverse <= FLT_MAX && inverse > 0.0f) {
        *d = amax / 127.0f;
        *id = inverse;
    }
    return true;
}

/* Writes columns [k0, k0 + n) of row r of an activation, in the forms that it has; k0 and n are
 * multiples of 32 when it has the q8 form. */
static inline void cpu_act_write(const cpu_linear_isa *isa, const kern_act *act, int32_t r,
                                 int32_t k0, int32_t n, const float *x) {
    size_t k = (size_t)act->k, at = (size_t)k0;
    if (act->f32.at) {
        float *to = (float *)cpu_ptr(act->f32) + (size_t)r * k + at;
        if (to != x)
            memcpy(to, x, (size_t)n * sizeof *x);
    }
    if (act->q8.at) {
        uint8_t *record = (uint8_t *)cpu_ptr(act->q8) + (size_t)r * kern_act_q8_bytes(act->k);
        size_t n_block = k / CPU_BLOCK, b = at / CPU_BLOCK;
        float *dx = (float *)(record + k);
        float *xs = dx + n_block;
        int16_t *sum = (int16_t *)(xs + n_block);
        isa->quantise(x, n / CPU_BLOCK, (int8_t *)record + at, dx + b, xs + b, sum + 4 * b);
    }
}

#endif
