/* Attention's row functions, written once for every vector width (vec_avx2.h, vec_avx512.h): merge
 * and divide of single states, RoPE, rounding to the cache's type, widening of pages. */
#ifndef WEFT_KERN_CPU_ATTN_ROWS_VEC_H
#define WEFT_KERN_CPU_ATTN_ROWS_VEC_H

#include <math.h>

#include "kern/cpu/attn_isa.h"
#include "kern/cpu/exact_vec.h"

/* ---- merge, divide ---- */

static void merge_row(float *oa, float *ma, float *la, const float *ob, float mb, float lb,
                      int32_t n) {
    if (lb == 0.0f)
        return;
    if (*la == 0.0f) {
        memcpy(oa, ob, (size_t)n * sizeof *oa);
        *ma = mb;
        *la = lb;
        return;
    }
    float m = (*ma > mb ? *ma : mb) + 0.0f;
    vec both = exact_exp_neg_vec(vec_of_4(_mm_setr_ps(*ma - m, mb - m, 0.0f, 0.0f)));
    float factor[VEC_LANES];
    vec_store(factor, both);
    vec a = vec_set(factor[0]), b = vec_set(factor[1]);
    for (int32_t d = 0; d < n; d += VEC_LANES) {
        vec x = vec_mul(vec_first(oa + d, n - d), a), y = vec_mul(vec_first(ob + d, n - d), b);
        vec_put_first(oa + d, n - d, vec_add(x, y));
    }
    *ma = m;
    *la = *la * factor[0] + lb * factor[1];
}

static void divide(const float *o, float l, int32_t n, float *out) {
    if (l == 0.0f) {
        memset(out, 0, (size_t)n * sizeof *out);
        return;
    }
    vec by = vec_set(l);
    for (int32_t d = 0; d < n; d += VEC_LANES)
        vec_put_first(out + d, n - d, vec_div(vec_first(o + d, n - d), by));
}

/* ---- RoPE, rounding ---- */

static void rope(const float *x, const float *cs, int32_t n_pair, float *y) {
    int32_t n = 2 * n_pair;
    for (int32_t i = 0; i < n; i += VEC_LANES)
        vec_put_first(y + i, n - i,
                      vec_rotate_pairs(vec_first(x + i, n - i), vec_first(cs + i, n - i)));
}

static void round_to(kern_kv_type type, const float *x, int32_t n, void *out) {
    if (type == KERN_KV_F32) {
        memcpy(out, x, (size_t)n * sizeof *x);
        return;
    }
    uint16_t *to = out;
    for (int32_t i = 0; i < n; i += VEC_LANES) {
        uint8_t half[2 * VEC_LANES];
        vec v = vec_first(x + i, n - i);
        if (type == KERN_KV_F16)
            vec_put_f16(half, v);
        else
            vec_put_bf16(half, v);
        memcpy(to + i, half, (size_t)(n - i < VEC_LANES ? n - i : VEC_LANES) * sizeof *to);
    }
}

/* ---- widening (page layouts: kern.h) ---- */

VEC_INLINE vec load_f32(const uint8_t *at) {
    return vec_load((const float *)(const void *)at);
}

/* VEC_LANES keys from key0 on, at d; odd: d's parity, a constant. */
VEC_INLINE vec load_keys(kern_kv_type type, const uint8_t *k, int32_t d, bool odd, int key0) {
    if (type == KERN_KV_F32)
        return load_f32(k + (d * CPU_PAGE + key0) * 4);
    if (type == KERN_KV_F16)
        return vec_f16(k + (d * CPU_PAGE + key0) * 2);
    return vec_bf16(k + (d - odd) * CPU_PAGE * 2 + key0 * 4, odd);
}

/* VEC_LANES values of one key from d on; odd: the key's parity, a constant; stride: elements from
 * key to key. */
VEC_INLINE vec load_values(kern_kv_type type, const uint8_t *v, int32_t stride, int32_t key,
                           bool odd, int32_t d) {
    if (type == KERN_KV_F32)
        return load_f32(v + 4 * (key * stride + d));
    if (type == KERN_KV_F16)
        return vec_f16(v + 2 * (key * stride + d));
    return vec_bf16(v + 4 * ((key >> 1) * stride + d), odd);
}

/* A page's keys as floats [d][16]. */
VEC_INLINE void widen_keys_typed(kern_kv_type type, int32_t n_d, const uint8_t *k, float *to) {
    for (int32_t d = 0; d < n_d; d += 2)
        EACH(i, 2) {
            EACH(h, CPU_PAGE / VEC_LANES) {
                vec_store(to + (d + i) * CPU_PAGE + h * VEC_LANES,
                          load_keys(type, k, d + i, i, h * VEC_LANES));
            }
        }
}

static void widen_keys(kern_kv_type type, int32_t n_d, const uint8_t *k, float *to) {
    if (type == KERN_KV_F16)
        widen_keys_typed(KERN_KV_F16, n_d, k, to);
    else
        widen_keys_typed(KERN_KV_BF16, n_d, k, to);
}

/* VEC_LANES values from d on, of the two keys of a pair. */
VEC_INLINE void widen_pair(kern_kv_type type, const uint8_t *v, int32_t stride, int32_t d,
                           float *to, int32_t to_stride) {
    vec_store(to, load_values(type, v, stride, 0, false, d));
    vec_store(to + to_stride, load_values(type, v, stride, 1, true, d));
}

/* The last n values of two keys and zeros behind, copied to where whole vectors can be loaded. */
VEC_INLINE void widen_tail(kern_kv_type type, const uint8_t *v, int32_t stride, int32_t d,
                           int32_t n, float *to, int32_t to_stride) {
    uint8_t copy[2 * VEC_LANES * 4] = {0};
    size_t elem = kern_kv_elem(type);
    if (type == KERN_KV_BF16) {
        memcpy(copy, v + (size_t)d * 4, (size_t)n * 4);
    } else {
        memcpy(copy, v + (size_t)d * elem, (size_t)n * elem);
        memcpy(copy + VEC_LANES * elem, v + (size_t)(stride + d) * elem, (size_t)n * elem);
    }
    widen_pair(type, copy, VEC_LANES, 0, to, to_stride);
}

VEC_INLINE void widen_values_typed(kern_kv_type type, int32_t n_d, int32_t stride, const uint8_t *v,
                                   float *to) {
    int32_t whole = n_d / VEC_LANES * VEC_LANES;
    size_t pair_bytes = 2 * (size_t)n_d * kern_kv_elem(type);
    for (int32_t key = 0; key < CPU_PAGE; key += 2, v += pair_bytes, to += 2 * stride) {
        for (int32_t d = 0; d < whole; d += VEC_LANES)
            widen_pair(type, v, n_d, d, to + d, stride);
        for (int32_t d = whole; d < stride; d += VEC_LANES)
            widen_tail(type, v, n_d, d, d < n_d ? n_d - d : 0, to + d, stride);
    }
}

/* A page's values as floats [16][stride], 0 behind n_d. */
static void widen_values(kern_kv_type type, int32_t n_d, int32_t stride, const uint8_t *v,
                         float *to) {
    switch (type) {
    case KERN_KV_F32:
        widen_values_typed(KERN_KV_F32, n_d, stride, v, to);
        break;
    case KERN_KV_F16:
        widen_values_typed(KERN_KV_F16, n_d, stride, v, to);
        break;
    case KERN_KV_BF16:
        widen_values_typed(KERN_KV_BF16, n_d, stride, v, to);
        break;
    }
}

#endif
