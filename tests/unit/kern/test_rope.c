/* RoPE: double functions and table against libm, norms of heads, rotation, rounding to the cache's
 * type, and where the rows go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "kern/cpu/linear_isa.h"
#include "kern/exact_double.h"
#include "unit/kern/attn_world.h"

static double relative(double got, long double want) {
    return want == 0 ? fabs(got) : (double)fabsl((got - want) / want);
}

static void double_functions_are_close(void **state) {
    (void)state;
    world_rng r = {3};
    for (int32_t i = 0; i < 60000; i++) {
        double u = (double)rng_float(&r), x = u * 700;
        assert_true(relative(exact_exp(x), expl((long double)x)) < 4e-16);
        assert_true(relative(exact_exp(u), expl((long double)u)) < 4e-16);
        double y = exp(x);
        assert_true(relative(exact_log(y), logl((long double)y)) < 6e-16);
        y = 1 + u * exp(-40 * fabs((double)rng_float(&r)));
        assert_true(relative(exact_log(y), logl((long double)y)) < 6e-16);
        x = u * (i % 2 ? 1e6 : 0x1p31);
        assert_true(fabs(exact_sin(x) - (double)sinl((long double)x)) < 4e-16);
        assert_true(fabs(exact_cos(x) - (double)cosl((long double)x)) < 4e-16);
    }
}

static void double_functions_at_the_edges(void **state) {
    (void)state;
    assert_true(exact_exp(0) == 1 && exact_exp(-0.0) == 1);
    assert_true(exact_exp(710) == INFINITY && exact_exp(INFINITY) == INFINITY);
    assert_true(exact_exp(-746) == 0 && exact_exp(-INFINITY) == 0 && isnan(exact_exp(NAN)));
    assert_true(fabs(exact_exp(-740) - exp(-740)) <= 0x1p-1074); /* below the normal numbers */
    assert_true(exact_exp(709.78) < INFINITY);
    assert_true(exact_log(1) == 0 && exact_log(0) == -INFINITY && exact_log(-0.0) == -INFINITY);
    assert_true(exact_log(INFINITY) == INFINITY && isnan(exact_log(-1)) && isnan(exact_log(NAN)));
    assert_true(relative(exact_log(0x1p-1074), logl(0x1p-1074L)) < 6e-16);
    assert_true(exact_sin(0) == 0 && exact_cos(0) == 1);
    assert_true(isnan(exact_sin(NAN)) && isnan(exact_cos(INFINITY)) && isnan(exact_sin(1e10)));
}

/* The angles of pos * base^(-2i / rope_dim), not scaled. */
static void plain_table(double base, int32_t rope_dim, int32_t pos0, int32_t n_pos, float *out) {
    double freq[128];
    for (int32_t i = 0; i < rope_dim / 2; i++)
        freq[i] = exact_exp(-(2.0 * i / rope_dim) * exact_log(base));
    kern_rope_table(freq, rope_dim / 2, 1.0, pos0, n_pos, out);
}

/* The positions of I08 and more: within half a step of f32 of libm's value. */
static void table_against_libm(void **state) {
    (void)state;
    static const int32_t positions[] = {0,    1,    2,     255,    256,     257,
                                        4095, 4096, 15962, 131071, 1000000, 100000000};
    static const double bases[] = {10000.0, 100000.0, 500000.0, 1e6, 130000.0};
    static const int32_t dims[] = {2, 6, 64, 80, 128};
    for (size_t b = 0; b < 5; b++)
        for (size_t k = 0; k < 5; k++) {
            int32_t d = dims[k];
            float row[128];
            for (size_t p = 0; p < sizeof positions / sizeof *positions; p++) {
                plain_table(bases[b], d, positions[p], 1, row);
                for (int32_t i = 0; i < d / 2; i++) {
                    long double angle = positions[p] * powl(bases[b], -2.0L * i / d);
                    double tolerance = 2.99e-8 + 3e-16 * (double)angle; /* angle in double */
                    assert_true(fabs(row[2 * i] - (double)cosl(angle)) <= tolerance);
                    assert_true(fabs(row[2 * i + 1] - (double)sinl(angle)) <= tolerance);
                }
            }
        }
}

/* A power of two is exact: the scaled table is the plain one times it. */
static void table_is_scaled(void **state) {
    (void)state;
    const double freq[3] = {1.0, 0.0625, 0.3};
    float plain[7 * 6], scaled[7 * 6];
    kern_rope_table(freq, 3, 1.0, 5, 7, plain);
    kern_rope_table(freq, 3, 4.0, 5, 7, scaled);
    for (int32_t i = 0; i < 42; i++)
        assert_true(scaled[i] == 4.0f * plain[i]);
    assert_true(fabs(plain[5] - sin(5 * 0.3)) < 1e-7);
}

static void table_does_not_depend_on_its_start(void **state) {
    (void)state;
    static float whole[300 * 24], part[300 * 24];
    plain_table(10000.0, 24, 0, 300, whole);
    for (int32_t pos = 0; pos < 300; pos += 37)
        plain_table(10000.0, 24, pos, pos + 37 < 300 ? 37 : 300 - pos, part + pos * 24);
    assert_memory_equal(whole, part, sizeof whole);
    for (int32_t i = 0; i < 12; i++) {
        assert_true(whole[2 * i] == 1.0f);
        assert_true(whole[2 * i + 1] == 0.0f);
    }
}

typedef struct rope_case {
    int32_t n_tok, n_head, n_kv, head_dim, rope_dim, rows; /* rows of q and of the wire buffer */
    kern_kv_type type;
    float *q_norm, *k_norm; /* NULL: none */
    bool v_norm;
    float *qkv, *table;
    int32_t *pos, *q_at, *kv_at;
    size_t q_floats, wire_bytes;
} rope_case;

enum { MAX_LEN = 500 };
static const float EPS = 1e-5f;

static int32_t *scattered(world_rng *r, int32_t rows) {
    int32_t *at = malloc((size_t)rows * sizeof *at);
    for (int32_t i = 0; i < rows; i++) {
        int32_t k = rng_int(r, 0, i);
        at[i] = at[k];
        at[k] = i;
    }

    return at;
}

static float *norm_weight(world_rng *r, int32_t n) {
    float *w = world_floats((size_t)n);
    for (int32_t i = 0; i < n; i++)
        w[i] = 1.0f + rng_float(r);
    return w;
}

static rope_case draw_case(world_rng *r) {
    static const int32_t dims[] = {2, 4, 18, 64, 80, 128, 256};
    static const float special[] = {
        0.0f,     -0.0f,    1e-40f,   65504.0f,       65519.9f,       65520.0f,    1e30f,
        INFINITY, 5.96e-8f, 2.98e-8f, 1.00048828125f, 1.00146484375f, 1.00390625f, 1.01171875f};
    rope_case c = {.n_tok = rng_int(r, 1, 30), .n_head = rng_int(r, 1, 9)};
    c.n_kv = rng_int(r, 0, 3);
    c.head_dim = dims[rng_int(r, 0, 6)];
    c.q_norm = rng_int(r, 0, 1) ? norm_weight(r, c.head_dim) : NULL;
    c.k_norm = rng_int(r, 0, 1) ? norm_weight(r, c.head_dim) : NULL;
    c.v_norm = rng_int(r, 0, 1);
    c.rope_dim = rng_int(r, 0, 1) ? c.head_dim : 2 * rng_int(r, 1, c.head_dim / 2);
    c.type = (kern_kv_type)rng_int(r, 0, 2);
    c.rows = c.n_tok + rng_int(r, 0, 5);
    size_t width = (size_t)(c.n_head + 2 * c.n_kv) * (size_t)c.head_dim;
    size_t n = (size_t)c.n_tok * width;
    c.qkv = world_floats(n);
    for (size_t i = 0; i < n; i++)
        c.qkv[i] = rng_int(r, 0, 9) ? 4 * rng_float(r) : special[rng_int(r, 0, 13)];
    c.table = world_floats((size_t)MAX_LEN * (size_t)c.rope_dim);
    plain_table(10000.0, c.rope_dim, 0, MAX_LEN, c.table);
    c.pos = malloc((size_t)c.n_tok * sizeof *c.pos);
    for (int32_t i = 0; i < c.n_tok; i++)
        c.pos[i] = rng_int(r, 0, 3) ? rng_int(r, 0, MAX_LEN - 1) : 0;
    c.q_at = scattered(r, c.rows);
    c.kv_at = scattered(r, c.rows);
    c.q_floats = (size_t)c.rows * (size_t)c.n_head * (size_t)c.head_dim;
    c.wire_bytes = (size_t)c.rows * 2 * (size_t)c.n_kv * (size_t)c.head_dim * kern_kv_elem(c.type);
    return c;
}

static void free_case(rope_case *c) {
    free(c->q_norm);
    free(c->k_norm);
    free(c->qkv);
    free(c->table);
    free(c->pos);
    free(c->q_at);
    free(c->kv_at);
}

/* The formulas of kern.h, element by element. */
static void expect_norm(const float *x, const float *w, int32_t n, float *y) {
    float lane[16] = {0};
    for (int32_t i = 0; i < n; i++)
        lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
    for (int32_t step = 8; step >= 1; step /= 2)
        for (int32_t i = 0; i < step; i++)
            lane[i] += lane[i + step];
    float factor = 1.0f / sqrtf(lane[0] / (float)n + EPS);
    for (int32_t i = 0; i < n; i++)
        y[i] = (x[i] * factor) * (w ? w[i] : 1.0f);
}

static void expect_turned(const float *x, const float *cs, int32_t rope_dim, float *y) {
    for (int32_t i = 0; i < rope_dim / 2; i++) {
        y[2 * i] = fmaf(x[2 * i], cs[2 * i], -(x[2 * i + 1] * cs[2 * i + 1]));
        y[2 * i + 1] = fmaf(x[2 * i], cs[2 * i + 1], x[2 * i + 1] * cs[2 * i]);
    }
}

static void expect_head(const rope_case *c, int32_t t, const float *x, const float *norm,
                        float *y) {
    float normed[256];
    memcpy(normed, x, (size_t)c->head_dim * sizeof *x);
    if (norm)
        expect_norm(x, norm, c->head_dim, normed);
    memcpy(y, normed, (size_t)c->head_dim * sizeof *y);
    expect_turned(normed, c->table + (size_t)c->pos[t] * (size_t)c->rope_dim, c->rope_dim, y);
}

static void expect_case(const rope_case *c, float *q, uint8_t *wire) {
    int32_t d = c->head_dim;
    size_t elem = kern_kv_elem(c->type);
    float y[256];
    memset(q, 0xff, c->q_floats * sizeof *q);
    memset(wire, 0xff, c->wire_bytes);
    for (int32_t t = 0; t < c->n_tok; t++) {
        const float *x = c->qkv + (size_t)t * (size_t)((c->n_head + 2 * c->n_kv) * d);
        for (int32_t h = 0; h < c->n_head; h++)
            expect_head(c, t, x + h * d, c->q_norm, q + (size_t)((c->q_at[t] * c->n_head + h) * d));
        uint8_t *to = wire + (size_t)(c->kv_at[t] * 2 * c->n_kv * d) * elem;
        for (int32_t h = 0; h < c->n_kv; h++) {
            expect_head(c, t, x + (c->n_head + h) * d, c->k_norm, y);
            world_narrow(c->type, y, (size_t)d, to + (size_t)(h * d) * elem);
        }
        for (int32_t h = 0; h < c->n_kv; h++) {
            const float *v = x + (c->n_head + c->n_kv + h) * d;
            expect_norm(v, NULL, d, y);
            world_narrow(c->type, c->v_norm ? y : v, (size_t)d,
                         to + (size_t)((c->n_kv + h) * d) * elem);
        }
    }
}

/* Infinities in q or k rotate to NaN, whose sign is the compiler's choice (-(x * s)): NaN matches
 * NaN. */
static bool same_float(float a, float b) {
    return memcmp(&a, &b, 4) == 0 || (isnan(a) && isnan(b));
}

static float wire_value(kern_kv_type type, const uint8_t *wire, size_t i) {
    float f;
    uint16_t h;
    if (type == KERN_KV_F32) {
        memcpy(&f, wire + i * 4, 4);
        return f;
    }
    memcpy(&h, wire + i * 2, 2);
    return type == KERN_KV_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static void assert_same_q(const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        assert_true(same_float(got[i], want[i]));
}

static void assert_same_wire(kern_kv_type type, const uint8_t *got, const uint8_t *want,
                             size_t bytes) {
    size_t elem = kern_kv_elem(type);
    for (size_t i = 0; i < bytes / elem; i++)
        assert_true(memcmp(got + i * elem, want + i * elem, elem) == 0 ||
                    same_float(wire_value(type, got, i), wire_value(type, want, i)));
}

static bool run_case(const rope_case *c, const char *isa, int32_t n_thread, float *q,
                     uint8_t *wire) {
    const kern_table *t;
    kern_dev *dev;
    if (kern_cpu_table(isa, &t, NULL) != WEFT_OK)
        return false;
    kern_limits limits = {
        .max_rows = 32, .max_in = 64, .max_head_dim = c->head_dim, .max_group = 9};
    assert_int_equal(t->open(n_thread, &limits, &dev, NULL), WEFT_OK);
    memset(q, 0xff, c->q_floats * sizeof *q);
    memset(wire, 0xff, c->wire_bytes);
    kern_qk_rope p = {.n_tok = c->n_tok,
                      .n_head = c->n_head,
                      .n_kv_head = c->n_kv,
                      .head_dim = c->head_dim,
                      .rope_dim = c->rope_dim,
                      .q_norm = {(uintptr_t)c->q_norm},
                      .k_norm = {(uintptr_t)c->k_norm},
                      .v_norm = c->v_norm,
                      .eps = EPS,
                      .qkv = {(uintptr_t)c->qkv},
                      .rope = {(uintptr_t)c->table},
                      .pos = {(uintptr_t)c->pos},
                      .q_at = {(uintptr_t)c->q_at},
                      .kv_at = {c->n_kv ? (uintptr_t)c->kv_at : 0},
                      .q = {(uintptr_t)q},
                      .kv_type = c->type,
                      .wire = {c->n_kv ? (uintptr_t)wire : 0}};
    t->qk_rope(dev, &p);
    t->drain(dev);
    t->close(dev);
    return true;
}

static void rope_follows_the_formula(void **state) {
    (void)state;
    world_rng r = {11};
    for (int32_t round = 0; round < 120; round++) {
        rope_case c = draw_case(&r);
        float *want = world_floats(c.q_floats), *got = world_floats(c.q_floats);
        uint8_t *want_wire = malloc(c.wire_bytes), *got_wire = malloc(c.wire_bytes);
        expect_case(&c, want, want_wire);
        for (int32_t l = 0; l < 2 * N_LEVEL; l++) {
            if (!run_case(&c, levels[l % N_LEVEL], 1 + l % 4, got, got_wire))
                continue;
            assert_same_q(got, want, c.q_floats);
            assert_same_wire(c.type, got_wire, want_wire, c.wire_bytes);
        }
        free(want);
        free(got);
        free(want_wire);
        free(got_wire);
        free_case(&c);
    }
}

/* A case whose head_dim is C + R and rope_dim R; its qkv holds q_latent, q_rope and kv. */
static rope_case draw_latent_case(world_rng *r, int32_t latent, int32_t rope) {
    rope_case c = {.n_tok = rng_int(r, 1, 20), .n_head = rng_int(r, 1, 9), .n_kv = 1};
    c.head_dim = latent + rope;
    c.rope_dim = rope;
    c.type = (kern_kv_type)rng_int(r, 0, 2);
    c.rows = c.n_tok + rng_int(r, 0, 5);
    c.k_norm = norm_weight(r, latent);
    size_t n = (size_t)c.n_tok * (size_t)((c.n_head + 1) * c.head_dim);
    c.qkv = world_floats(n);
    for (size_t i = 0; i < n; i++)
        c.qkv[i] = 4 * rng_float(r);
    c.table = world_floats((size_t)MAX_LEN * (size_t)rope);
    plain_table(10000.0, rope, 0, MAX_LEN, c.table);
    c.pos = malloc((size_t)c.n_tok * sizeof *c.pos);
    for (int32_t i = 0; i < c.n_tok; i++)
        c.pos[i] = rng_int(r, 0, MAX_LEN - 1);
    c.q_at = scattered(r, c.rows);
    c.kv_at = scattered(r, c.rows);
    c.q_floats = (size_t)c.rows * (size_t)(c.n_head * c.head_dim);
    c.wire_bytes = (size_t)c.rows * (size_t)c.head_dim * kern_kv_elem(c.type);
    return c;
}

typedef struct latent_inputs {
    const float *q_latent, *q_rope, *kv;
} latent_inputs;

static latent_inputs inputs_of(const rope_case *c) {
    size_t latent = (size_t)(c->head_dim - c->rope_dim), heads = (size_t)(c->n_tok * c->n_head);
    return (latent_inputs){c->qkv, c->qkv + heads * latent, c->qkv + heads * (size_t)c->head_dim};
}

static void expect_latent(const rope_case *c, float *q, uint8_t *wire) {
    int32_t rope = c->rope_dim, latent = c->head_dim - rope;
    latent_inputs in = inputs_of(c);
    float k[1024];
    size_t elem = kern_kv_elem(c->type);
    memset(q, 0xff, c->q_floats * sizeof *q);
    memset(wire, 0xff, c->wire_bytes);
    for (int32_t t = 0; t < c->n_tok; t++) {
        const float *cs = c->table + (size_t)(c->pos[t] * rope);
        for (int32_t h = 0; h < c->n_head; h++) {
            float *y = q + (size_t)((c->q_at[t] * c->n_head + h) * c->head_dim);
            int32_t head = t * c->n_head + h;
            memcpy(y, in.q_latent + (size_t)(head * latent), (size_t)latent * sizeof *y);
            expect_turned(in.q_rope + (size_t)(head * rope), cs, rope, y + latent);
        }
        const float *kv = in.kv + (size_t)(t * c->head_dim);
        expect_norm(kv, c->k_norm, latent, k);
        expect_turned(kv + latent, cs, rope, k + latent);
        uint8_t *to = wire + (size_t)(c->kv_at[t] * c->head_dim) * elem;
        world_narrow(c->type, k, (size_t)c->head_dim, to);
    }
}

static bool run_latent(const rope_case *c, const char *isa, int32_t n_thread, float *q,
                       uint8_t *wire) {
    const kern_table *t;
    kern_dev *dev;
    if (kern_cpu_table(isa, &t, NULL) != WEFT_OK)
        return false;
    kern_limits limits = {
        .max_rows = 32, .max_in = 64, .max_head_dim = c->head_dim, .max_group = 9};
    assert_int_equal(t->open(n_thread, &limits, &dev, NULL), WEFT_OK);
    memset(q, 0xff, c->q_floats * sizeof *q);
    memset(wire, 0xff, c->wire_bytes);
    latent_inputs in = inputs_of(c);
    kern_mla_rope p = {.n_tok = c->n_tok,
                       .n_head = c->n_head,
                       .latent_dim = c->head_dim - c->rope_dim,
                       .rope_dim = c->rope_dim,
                       .q_latent = {(uintptr_t)in.q_latent},
                       .q_rope = {(uintptr_t)in.q_rope},
                       .kv = {(uintptr_t)in.kv},
                       .kv_norm = {(uintptr_t)c->k_norm},
                       .eps = EPS,
                       .rope = {(uintptr_t)c->table},
                       .pos = {(uintptr_t)c->pos},
                       .q_at = {(uintptr_t)c->q_at},
                       .kv_at = {(uintptr_t)c->kv_at},
                       .q = {(uintptr_t)q},
                       .kv_type = c->type,
                       .wire = {(uintptr_t)wire}};
    t->mla_rope(dev, &p);
    t->drain(dev);
    t->close(dev);
    return true;
}

static void latent_rows_follow_the_formula(void **state) {
    (void)state;
    static const int32_t dims[][2] = {{32, 16}, {512, 64}, {8, 2}, {18, 6}};
    world_rng r = {13};
    for (size_t round = 0; round < 40; round++) {
        rope_case c = draw_latent_case(&r, dims[round % 4][0], dims[round % 4][1]);
        float *want = world_floats(c.q_floats), *got = world_floats(c.q_floats);
        uint8_t *want_wire = malloc(c.wire_bytes), *got_wire = malloc(c.wire_bytes);
        expect_latent(&c, want, want_wire);
        for (int32_t l = 0; l < 2 * N_LEVEL; l++) {
            if (!run_latent(&c, levels[l % N_LEVEL], 1 + l % 4, got, got_wire))
                continue;
            assert_same_q(got, want, c.q_floats);
            assert_same_wire(c.type, got_wire, want_wire, c.wire_bytes);
        }
        free(want);
        free(got);
        free(want_wire);
        free(got_wire);
        free_case(&c);
    }
}

/* Infinite and NaN elements make the one NaN (linear_isa.h) and no other, at every level: the bits
 * of a row that holds two kinds would depend on operand order. Position 0 has s = 0. */
static void rope_makes_one_nan(void **state) {
    (void)state;
    enum { N_PAIR = 24 };
    world_rng r = {12};
    const float odd[] = {INFINITY, -INFINITY, cpu_nan(), 0.0f, -0.0f};
    for (int32_t round = 0; round < 500; round++) {
        float x[2 * N_PAIR], cs[2 * N_PAIR], y[2][2 * N_PAIR];
        plain_table(10000.0, 2 * N_PAIR, round % 3 ? round : 0, 1, cs);
        for (int32_t i = 0; i < 2 * N_PAIR; i++)
            x[i] = rng_int(&r, 0, 2) ? rng_float(&r) : odd[rng_int(&r, 0, 4)];
        int32_t n_pair = 1 + round % N_PAIR; /* a compiler's tail may differ from its loop */
        cpu_attn_scalar.rope(x, cs, n_pair, y[0]);
        const float nan = cpu_nan();
        for (int32_t i = 0; i < 2 * n_pair; i++)
            assert_true(!isnan(y[0][i]) || memcmp(&y[0][i], &nan, sizeof nan) == 0);
        for (size_t l = 1; l < N_LEVEL; l++) {
            const kern_table *t;
            if (kern_cpu_table(levels[l], &t, NULL) != WEFT_OK)
                continue;
            micro_kernels[l]->rope(x, cs, n_pair, y[1]);
            assert_memory_equal(y[1], y[0], 2 * (size_t)n_pair * sizeof y[0][0]);
        }
    }
}

/* v goes through rounding alone: known ties, both ends of the range, denormals, NaN; every level
 * the same bits as the conversions of tensor/. */
static void values_round_to_nearest_even(void **state) {
    (void)state;
    typedef struct known {
        uint32_t f32;
        uint16_t f16, bf16;
    } known;
    static const known table[] = {
        {0x3f800000, 0x3c00, 0x3f80}, /* 1 */
        {0x3f801000, 0x3c00, 0x3f80}, /* 1 + 2^-11: f16 tie to even, down */
        {0x3f803000, 0x3c02, 0x3f80}, /* 1 + 3 2^-11: f16 tie to even, up */
        {0x3f808000, 0x3c04, 0x3f80}, /* 1 + 2^-8: bf16 tie to even, down */
        {0x3f818000, 0x3c0c, 0x3f82}, /* 1 + 3 2^-8: bf16 tie to even, up */
        {0x477fe000, 0x7bff, 0x4780}, /* 65504 */
        {0x477fefff, 0x7bff, 0x4780}, /* below 65520 */
        {0x477ff000, 0x7c00, 0x4780}, /* 65520: infinity in f16 */
        {0x33000000, 0x0000, 0x3300}, /* 2^-25: half the smallest f16, tie to 0 */
        {0x33000001, 0x0001, 0x3300}, {0xb8000000, 0x8200, 0xb800}, /* -2^-15: f16 denormal */
        {0x80000000, 0x8000, 0x8000},                               /* -0 */
        {0x7f7fffff, 0x7c00, 0x7f80}, /* largest f32: infinity in both */
        {0xff800000, 0xfc00, 0xff80}, {0x7fc00000, 0x7e00, 0x7fc0}, /* NaN */
        {0x00000001, 0x0000, 0x0000}, {0x00008001, 0x0000, 0x0001}, /* f32 denormals */
        {0x7f800001, 0x7e00, 0x7fc0},                               /* signalling NaN: quiet */
    };
    enum { N = sizeof table / sizeof *table };
    float qkv[3 * N], cs[N], q[N];
    int32_t zero = 0;
    for (size_t i = 0; i < N; i++) {
        qkv[i] = qkv[N + i] = 0.0f;
        memcpy(&qkv[2 * N + i], &table[i].f32, 4);
        cs[i] = (float)(i % 2 == 0);
    }
    for (size_t l = 0; l < N_LEVEL; l++)
        for (int32_t type = 0; type < 3; type++) {
            rope_case c = {.n_tok = 1,
                           .n_head = 1,
                           .n_kv = 1,
                           .head_dim = N,
                           .rope_dim = N,
                           .rows = 1,
                           .type = (kern_kv_type)type,
                           .qkv = qkv,
                           .table = cs,
                           .pos = &zero,
                           .q_at = &zero,
                           .kv_at = &zero,
                           .q_floats = N,
                           .wire_bytes = 2 * N * kern_kv_elem((kern_kv_type)type)};
            uint8_t wire[2 * N * 4];
            if (!run_case(&c, levels[l], 1, q, wire))
                continue;
            for (size_t i = 0; i < N; i++) {
                if (type == KERN_KV_F32) {
                    assert_memory_equal(wire + (N + i) * 4, &table[i].f32, 4);
                    continue;
                }
                uint16_t h;
                memcpy(&h, wire + (N + i) * 2, 2);
                assert_int_equal(h, type == KERN_KV_F16 ? table[i].f16 : table[i].bf16);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(double_functions_are_close),
        cmocka_unit_test(double_functions_at_the_edges),
        cmocka_unit_test(table_against_libm),
        cmocka_unit_test(table_is_scaled),
        cmocka_unit_test(table_does_not_depend_on_its_start),
        cmocka_unit_test(rope_follows_the_formula),
        cmocka_unit_test(latent_rows_follow_the_formula),
        cmocka_unit_test(rope_makes_one_nan),
        cmocka_unit_test(values_round_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
