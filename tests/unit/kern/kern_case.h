/* Shared by the tests of the linear half of the kernel tables: random numbers, devices, guarded
 * buffers, random weights in plain GGUF form. */
#ifndef KERN_CASE_H
#define KERN_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kern/cpu/linear_isa.h"
#include "kern/exact_math.h"
#include "tensor/block.h"

static uint64_t rng_state = 0x9E3779B97F4A7C15u;

static inline uint32_t rng_next(void) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 32);
}

static inline int32_t rng_below(int32_t n) {
    return (int32_t)(rng_next() % (uint32_t)n);
}

/* In [-1, 1). */
static inline float rng_float(void) {
    return (float)(int32_t)rng_next() * 0x1p-31f;
}

static inline uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

/* All levels, from the plainest to the best; tests count those of this machine: isa 0 is always the
 * scalar one. */
enum { N_ISA = 4 };
static const cpu_isa *const all_isas[N_ISA] = {&cpu_isa_scalar, &cpu_isa_avx2, &cpu_isa_avx512,
                                               &cpu_isa_avx512vnni};

static inline int32_t isa_count(void) {
    int32_t n = 0;
    for (int32_t i = 0; i < N_ISA; i++)
        n += all_isas[i]->present();
    return n;
}

static inline const cpu_isa *isa_at(int32_t isa) {
    for (int32_t i = 0; i < N_ISA; i++)
        if (all_isas[i]->present() && isa-- == 0)
            return all_isas[i];
    fail_msg("this machine has only %d levels", isa_count());
    return NULL;
}

static inline void isa_print_absent(void) {
    for (int32_t i = 0; i < N_ISA; i++)
        if (!all_isas[i]->present())
            printf("NOT TESTED: this machine lacks %s\n", all_isas[i]->name);
}

static inline const kern_table *table_of(int32_t isa) {
    const kern_table *t = NULL;
    weft_error err;
    assert_int_equal(kern_cpu_table(isa_at(isa)->name, &t, &err), WEFT_OK);
    return t;
}

static inline kern_dev *dev_open(const kern_table *t, int32_t n_thread) {
    static const kern_limits limits = {64, 4096, 64, 8};
    kern_dev *dev = NULL;
    weft_error err;
    assert_int_equal(t->open(n_thread, &limits, &dev, &err), WEFT_OK);
    return dev;
}

/* 64-byte aligned, of 0xA5 bytes, with a zone after the end that buf_free checks. */
enum { BUF_GUARD = 256, BUF_FILL = 0xA5 };
typedef struct buf {
    kern_mem mem;
    size_t bytes;
} buf;

static inline buf buf_take(size_t bytes) {
    size_t all = (bytes + BUF_GUARD + 63) / 64 * 64;
    void *at = aligned_alloc(64, all);
    assert_non_null(at);
    memset(at, BUF_FILL, all);
    return (buf){{(uintptr_t)at}, bytes};
}

static inline void *buf_at(buf b) {
    return (void *)b.mem.at;
}

static inline float *buf_floats(buf b) {
    return (float *)b.mem.at;
}

static inline void buf_free(buf b) {
    const uint8_t *end = (const uint8_t *)b.mem.at + b.bytes;
    for (int32_t i = 0; i < BUF_GUARD; i++)
        assert_int_equal(end[i], BUF_FILL);
    free((void *)b.mem.at);
}

static inline void assert_same_floats(const float *a, const float *b, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++)
        if (bits_of(a[i]) != bits_of(b[i]))
            fail_msg("%s: element %zu of %zu is %08x (%g), expected %08x (%g)", what, i, n,
                     bits_of(a[i]), (double)a[i], bits_of(b[i]), (double)b[i]);
}

/* Where a block of a quantised type has its scale and behind it, in most formats that have one, its
 * minimum's: f16, but one byte in MXFP4. */
static inline int32_t plain_scale_at(dtype type) {
    return type == DTYPE_Q2_K ? 80 : type == DTYPE_Q3_K ? 108 : type == DTYPE_Q6_K ? 208 : 0;
}
static inline int32_t plain_scale_bytes(dtype type) {
    block_scaling scaling = (block_scaling)block_forms[type].scaling;
    if (scaling == BLOCK_EXPONENT)
        return 1;
    return scaling == BLOCK_D_M || scaling == BLOCK_D_SC_MN ? 4 : 2;
}

/* Sets scale and minimum's scale of a block, f16; MXFP4 takes the scale's high byte. */
static inline void plain_set_scales(dtype type, uint8_t *block, uint16_t d, uint16_t m) {
    uint8_t *at = block + plain_scale_at(type), e = (uint8_t)(d >> 8);
    int32_t n = plain_scale_bytes(type);
    if (n == 1)
        *at = e;
    else
        memcpy(at, &d, 2);
    if (n == 4)
        memcpy(at + 2, &m, 2);
}

/* Random weights as a model file has them. */
static inline buf random_plain(dtype type, int32_t n_out, int32_t n_in) {
    const dtype_info *info = dtype_find(type);
    size_t row_bytes = dtype_bytes(info, n_in);
    buf b = buf_take((size_t)n_out * row_bytes);
    uint8_t *at = buf_at(b);
    for (size_t i = 0; i < b.bytes; i++)
        at[i] = (uint8_t)rng_next();
    for (size_t i = 0; i < b.bytes; i += (size_t)info->block_bytes) {
        float f = rng_float() * 0.05f;
        uint16_t h = type == DTYPE_BF16 ? f32_to_bf16(f) : f32_to_f16(f);
        if (type == DTYPE_MXFP4)
            h = (uint16_t)((110 + rng_below(20)) << 8);
        if (info->quantised)
            plain_set_scales(type, at + i, h, f32_to_f16(rng_float()));
        else
            memcpy(at + i, type == DTYPE_F32 ? (void *)&f : (void *)&h, type == DTYPE_F32 ? 4 : 2);
    }
    return b;
}

static inline buf packed(const kern_table *t, dtype type, int32_t n_out, int32_t n_in, buf plain,
                         kern_weight *w) {
    buf b = buf_take(t->packed_bytes(type, n_out, n_in));
    *w = (kern_weight){type, n_out, n_in, b.mem};
    t->pack(buf_at(plain), 0, n_out, w);
    return b;
}

/* A q8 record as arrays. */
typedef struct record {
    const int8_t *q;
    const float *dx, *xs;
    const int16_t *sum; /* [block][2][2] */
} record;

static inline record record_at(const kern_act *act, int32_t row) {
    const uint8_t *at = (const uint8_t *)act->q8.at + (size_t)row * kern_act_q8_bytes(act->k);
    const float *dx = (const float *)(at + act->k);
    size_t n_block = (size_t)act->k / 32;
    return (record){(const int8_t *)at, dx, dx + n_block, (const int16_t *)(dx + 2 * n_block)};
}

/* The rule of kern.h written down once more, for one block of ordinary values. */
static inline void reference_block(const float *x, int8_t *q, float *dx, float *xs, int16_t *sum) {
    float amax = 0.0f;
    for (int32_t i = 0; i < 32; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    float id = amax > 0.0f ? 127.0f / amax : 0.0f;
    *dx = amax / 127.0f;
    memset(sum, 0, 4 * sizeof *sum);
    int32_t square = 0, total = 0;
    float lane[16];
    for (int32_t i = 0; i < 32; i++) {
        float y = x[i] * id;
        q[i] = (int8_t)nearbyintf(y);
        total += q[i];
        int16_t *part = &sum[i / 16 * 2 + i / 2 % 2];
        *part = (int16_t)(*part + q[i]);
        square += q[i] * q[i];
        lane[i % 16] = i < 16 ? x[i] * (float)q[i] : fmaf(x[i], (float)q[i], lane[i % 16]);
    }
    for (int32_t step = 8; step > 0; step /= 2)
        for (int32_t i = 0; i < step; i++)
            lane[i] += lane[i + step];
    if (square > 0)
        *dx = lane[0] / (float)square;
    *xs = *dx * (float)total;
}

/* The rules of kern.h once more, for one pair. The one NaN is told apart by its bits. */
static inline float reference_glu(const kern_glu_rule *rule, float g, float u) {
    float y;
    if (rule->kind == KERN_GLU_SILU) {
        float gate = g * exact_sigmoid(g);
        y = gate * u;
    } else if (rule->kind == KERN_GLU_GELU) {
        float inner = fmaf(g * g, 0.044715f, 1.0f);
        float z = 1.5957691f * (g * inner);
        float gate = g * exact_sigmoid(z);
        y = gate * u;
    } else {
        float least = isnan(g) || g < rule->limit ? g : rule->limit;
        float value = u;
        if (u > rule->limit)
            value = rule->limit;
        if (u < -rule->limit)
            value = -rule->limit;
        float gate = least * exact_sigmoid(rule->alpha * least);
        y = gate * (value + 1.0f);
    }
    return isnan(y) ? float_of(0xFFC00000u) : y;
}

/* One rule of each kind. */
static const kern_glu_rule all_rules[] = {
    {KERN_GLU_SILU, 0, 0}, {KERN_GLU_GELU, 0, 0}, {KERN_GLU_CLAMPED, 1.702f, 7.0f}};

/* Both forms of n_row random rows of k values; the q8 form only when k allows it. */
typedef struct act_buf {
    kern_act act;
    buf f32, q8;
} act_buf;

static inline act_buf act_take(int32_t n_row, int32_t k, bool f32, bool q8) {
    act_buf a = {.act = {.k = k}};
    if (f32)
        a.f32 = buf_take((size_t)n_row * (size_t)k * 4);
    if (q8)
        a.q8 = buf_take((size_t)n_row * kern_act_q8_bytes(k));
    a.act.f32 = a.f32.mem;
    a.act.q8 = a.q8.mem;
    return a;
}

static inline void act_free(act_buf a) {
    if (a.f32.mem.at)
        buf_free(a.f32);
    if (a.q8.mem.at)
        buf_free(a.q8);
}

/* Writes the q8 form of the f32 form by the reference rule. */
static inline void act_quantise(const kern_act *act, int32_t n_row) {
    for (int32_t r = 0; r < n_row; r++) {
        record rec = record_at(act, r);
        const float *x = (const float *)act->f32.at + (size_t)r * (size_t)act->k;
        for (int32_t b = 0; b < act->k / 32; b++)
            reference_block(x + 32 * b, (int8_t *)rec.q + 32 * b, (float *)rec.dx + b,
                            (float *)rec.xs + b, (int16_t *)rec.sum + 4 * b);
    }
}

static inline act_buf random_act(int32_t n_row, int32_t k) {
    act_buf a = act_take(n_row, k, true, k % 32 == 0);
    for (int32_t i = 0; i < n_row * k; i++)
        buf_floats(a.f32)[i] = rng_float() * (rng_below(16) == 0 ? 8.0f : 1.0f);
    if (a.act.q8.at)
        act_quantise(&a.act, n_row);
    return a;
}

#endif
