/* Row operations and the exact math of every instruction-set level: bit for bit against references
 * written here, and against double precision. */
#include <math.h>

#include "kern_case.h"
#include "tensor/tree.h"
#include "vector_math.h"

static const cpu_linear_isa *functions_of(int32_t isa) {
    return isa_at(isa)->linear;
}

/* ---- quantisation of activations ---- */

/* One block on every level against the given record; the buffers have a zone behind them. */
static void check_block(const float *x, const int8_t *q, float dx, float xs, int32_t sum) {
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        act_buf got = act_take(1, 32, false, true);
        cpu_act_write_row(functions_of(isa), &got.act, 0, x);
        record rec = record_at(&got.act, 0);
        assert_memory_equal(rec.q, q, 32);
        for (int32_t i = 0; i < 4; i++) {
            const int8_t *at = q + i / 2 * 16 + i % 2 * 2;
            assert_int_equal(rec.sum[i],
                             at[0] + at[1] + at[4] + at[5] + at[8] + at[9] + at[12] + at[13]);
        }
        assert_int_equal(rec.sum[0] + rec.sum[1] + rec.sum[2] + rec.sum[3], sum);
        assert_int_equal(bits_of(rec.dx[0]), bits_of(dx));
        assert_int_equal(bits_of(rec.xs[0]), bits_of(xs));
        act_free(got);
    }
}

static void check_ordinary_block(const float *x) {
    int8_t q[32];
    float dx, xs;
    int16_t sum[4];
    reference_block(x, q, &dx, &xs, sum);
    check_block(x, q, dx, xs, sum[0] + sum[1] + sum[2] + sum[3]);
}

static void quantise_random(void **state) {
    (void)state;
    float x[32];
    for (int32_t round = 0; round < 3000; round++) {
        float scale = ldexpf(1.0f, rng_below(180) - 90);
        for (int32_t i = 0; i < 32; i++)
            x[i] = rng_below(8) ? rng_float() * scale : (rng_below(2) ? 0.0f : -0.0f);
        check_ordinary_block(x);
    }
}

/* amax 127 makes the step 1, so halves are ties: to the even neighbour, on both sides of 0. */
static void quantise_ties(void **state) {
    (void)state;
    float x[32] = {127.0f};
    int8_t q[32] = {127};
    int32_t sum = 127;
    for (int32_t i = 1; i < 32; i++) {
        x[i] = (float)(i - 16) + 0.5f;
        int32_t floor_of = i - 16;
        q[i] = (int8_t)(floor_of % 2 ? floor_of + 1 : floor_of);
        sum += q[i];
    }
    int8_t codes[32];
    float dx, xs;
    int16_t total[4];
    reference_block(x, codes, &dx, &xs, total);
    assert_memory_equal(codes, q, sizeof q);
    assert_int_equal(total[0] + total[1] + total[2] + total[3], sum);
    check_block(x, q, dx, xs, sum);
}

static void quantise_edges(void **state) {
    (void)state;
    static const float amax[] = {1.0f, -1.0f, 0x1p-120f, 3.4028235e38f, -3.4028235e38f, 3.9e-37f};
    float x[32];
    for (int32_t i = 0; i < 6; i++) {
        for (int32_t j = 0; j < 32; j++)
            x[j] = j % 3 ? amax[i] : -amax[i];
        check_ordinary_block(x);
    }
    static const int8_t zeros[32] = {0};
    /* all zero, and so small that 127 / amax would overflow */
    static const float tiny[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-126f, 3.7e-37f};
    for (int32_t i = 0; i < 5; i++) {
        for (int32_t j = 0; j < 32; j++)
            x[j] = j % 2 ? tiny[i] : -0.0f;
        check_block(x, zeros, 0.0f, 0.0f, 0);
    }
}

/* One value that is not finite, at any place: codes 0, the one NaN as scale. */
static void quantise_non_finite(void **state) {
    (void)state;
    static const uint32_t bad[] = {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFC12345u, 0x7F800001u};
    static const int8_t zeros[32] = {0};
    float nan = float_of(0xFFC00000u), x[32];
    for (int32_t i = 0; i < 5; i++)
        for (int32_t at = 0; at < 32; at++) {
            for (int32_t j = 0; j < 32; j++)
                x[j] = rng_float();
            x[at] = float_of(bad[i]);
            check_block(x, zeros, nan, nan, 0);
        }
}

/* ---- reduce_norm ---- */

typedef struct norm_case {
    int32_t n_row, hidden, n_leaf, n_thread;
    bool f32, q8;
    bool bias, post;
    float x_scale;
} norm_case;

/* What a case reads besides its nodes. */
typedef struct norm_inputs {
    act_buf start, weight, bias, post;
} norm_inputs;

static void tree_of(const norm_case *c, const buf *nodes, tree_prog *tree, size_t *node_off) {
    tree_cover(c->n_leaf, 0, c->n_leaf, tree);
    for (int32_t i = 0; i < c->n_leaf; i++) /* nodes lie backwards and with gaps */
        node_off[i] =
            nodes->bytes / (size_t)c->n_leaf * (size_t)(c->n_leaf - 1 - i) + (i % 2 ? 64 : 0);
}

static float reference_factor(const float *x, int32_t n) {
    float lane[16] = {0};
    double exact = 0;
    for (int32_t j = 0; j < n; j++) {
        lane[j % 16] = fmaf(x[j], x[j], lane[j % 16]);
        exact += (double)x[j] * (double)x[j];
    }
    for (int32_t step = 8; step; step /= 2)
        for (int32_t i = 0; i < step; i++)
            lane[i] = lane[i] + lane[i + step];
    float factor = 1.0f / sqrtf(lane[0] / (float)n + 1e-5f);
    exact = 1 / sqrt(exact / n + (double)1e-5f);
    assert_true(fabs((double)factor - exact) <= 1e-6 * exact);
    return factor;
}

static float reference_root(const norm_case *c, const tree_prog *tree, buf nodes,
                            const size_t *node_off, int32_t at) {
    float stack[TREE_MAX_LEAF];
    int32_t depth = 0;
    for (int32_t i = 0; c->n_leaf && i < tree->n_op; i++) {
        int32_t op = tree->op[i];
        if (op >= 0) {
            stack[depth++] = ((const float *)((uint8_t *)buf_at(nodes) + node_off[op]))[at];
        } else if (op == TREE_ADD) {
            depth--;
            stack[depth - 1] = stack[depth - 1] + stack[depth];
        }
    }
    return stack[0];
}

/* What a row becomes, one element at a time. */
static void reference_norm(const norm_case *c, const norm_inputs *in, const tree_prog *tree,
                           buf nodes, const size_t *node_off, int32_t r, float *x, float *out) {
    const float *weight = buf_floats(in->weight.f32), *post = buf_floats(in->post.f32);
    if (c->n_leaf) {
        for (int32_t j = 0; j < c->hidden; j++) {
            out[j] = reference_root(c, tree, nodes, node_off, r * c->hidden + j);
            if (c->bias)
                out[j] = out[j] + buf_floats(in->bias.f32)[j];
        }
        float factor = c->post ? reference_factor(out, c->hidden) : 0;
        for (int32_t j = 0; j < c->hidden; j++) {
            float t = c->post ? (out[j] * factor) * post[j] : out[j];
            float sum = x[j] + t;
            x[j] = sum * c->x_scale;
        }
    }
    float factor = reference_factor(x, c->hidden);
    for (int32_t j = 0; j < c->hidden; j++)
        out[j] = (x[j] * factor) * weight[j];
}

static void check_norm(const norm_case *c) {
    int32_t n = c->n_row * c->hidden;
    norm_inputs in = {random_act(c->n_row, c->hidden), random_act(1, c->hidden),
                      random_act(1, c->hidden), random_act(1, c->hidden)};
    buf nodes = buf_take((size_t)(c->n_leaf ? c->n_leaf : 1) * ((size_t)n * 4 + 128));
    for (size_t i = 0; i < nodes.bytes / 4; i++)
        buf_floats(nodes)[i] = rng_float();
    tree_prog tree;
    size_t node_off[TREE_MAX_LEAF];
    if (c->n_leaf)
        tree_of(c, &nodes, &tree, node_off);
    buf want_x = buf_take((size_t)n * 4);
    memcpy(buf_at(want_x), buf_at(in.start.f32), want_x.bytes);
    act_buf want = act_take(c->n_row, c->hidden, true, c->q8);
    for (int32_t r = 0; r < c->n_row; r++)
        reference_norm(c, &in, &tree, nodes, node_off, r, buf_floats(want_x) + r * c->hidden,
                       buf_floats(want.f32) + r * c->hidden);
    if (c->q8)
        act_quantise(&want.act, c->n_row);
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        const kern_table *t = table_of(isa);
        kern_dev *dev = dev_open(t, c->n_thread);
        buf x = buf_take((size_t)n * 4);
        memcpy(buf_at(x), buf_at(in.start.f32), x.bytes);
        act_buf out = act_take(c->n_row, c->hidden, c->f32, c->q8);
        kern_reduce_norm p = {.n_row = c->n_row,
                              .hidden = c->hidden,
                              .tree = c->n_leaf ? &tree : NULL,
                              .nodes = nodes.mem,
                              .node_off = node_off,
                              .bias = c->bias ? in.bias.f32.mem : (kern_mem){0},
                              .post = c->post ? in.post.f32.mem : (kern_mem){0},
                              .x_scale = c->x_scale,
                              .x = x.mem,
                              .weight = in.weight.f32.mem,
                              .eps = 1e-5f,
                              .out = out.act};
        t->reduce_norm(dev, &p);
        assert_same_floats(buf_floats(x), buf_floats(want_x), (size_t)n, "residual");
        if (c->f32)
            assert_same_floats(buf_floats(out.f32), buf_floats(want.f32), (size_t)n, "norm");
        if (c->q8)
            assert_memory_equal(buf_at(out.q8), buf_at(want.q8), out.q8.bytes);
        act_free(out);
        buf_free(x);
        t->close(dev);
    }
    act_free(in.start);
    act_free(in.weight);
    act_free(in.bias);
    act_free(in.post);
    act_free(want);
    buf_free(nodes);
    buf_free(want_x);
}

static void reduce_norm(void **state) {
    (void)state;
    static const int32_t widths[] = {1, 8, 15, 37, 511, 513, 1040, 1543};
    static const float scales[] = {1.0f, 0.37f};
    for (int32_t i = 0; i < 8; i++)
        for (int32_t n_leaf = 0; n_leaf <= 12; n_leaf += 3)
            check_norm(&(norm_case){1 + (i + n_leaf) % 5, widths[i], n_leaf, 1 + i % 3, true, false,
                                    (i + n_leaf) % 3 == 1, i % 2, scales[i / 2 % 2]});
    static const int32_t blocks[] = {1, 3, 18, 24, 33};
    for (int32_t i = 0; i < 5; i++)
        for (int32_t n_leaf = 0; n_leaf <= 7; n_leaf++)
            check_norm(&(norm_case){1 + (i + n_leaf) % 4, 32 * blocks[i], n_leaf, 1 + i % 3,
                                    n_leaf % 2 == 0, true, n_leaf % 3 < 2, n_leaf % 4 > 1,
                                    scales[(i + n_leaf) % 2]});
    check_norm(&(norm_case){2, 600, 64, 2, true, false, false, false, 1.0f});
}

/* ---- embed, pick ---- */

static void embed(void **state) {
    (void)state;
    static const dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16,
                                  DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q8_0};
    enum { VOCAB = 11, HIDDEN = 96, N_ROW = 5 };
    static const int32_t ids[N_ROW] = {10, 0, 3, 3, 7};
    for (int32_t i = 0; i < 6; i++)
        for (int32_t isa = 0; isa < isa_count(); isa++) {
            const kern_table *t = table_of(isa);
            kern_dev *dev = dev_open(t, 2);
            float scale = i % 2 ? 1.0f : 45.254834f;
            buf plain = random_plain(types[i], VOCAB, HIDDEN), x = buf_take(N_ROW * HIDDEN * 4);
            t->embed(
                dev,
                &(kern_embed){
                    buf_at(plain), types[i], N_ROW, HIDDEN, VOCAB, scale, {(uintptr_t)ids}, x.mem});
            float want[HIDDEN];
            for (int32_t r = 0; r < N_ROW; r++) {
                size_t row_bytes = dtype_bytes(dtype_find(types[i]), HIDDEN);
                dtype_to_f32(types[i], (uint8_t *)buf_at(plain) + (size_t)ids[r] * row_bytes,
                             HIDDEN, want);
                for (int32_t j = 0; j < HIDDEN; j++)
                    want[j] = want[j] * scale;
                assert_same_floats(buf_floats(x) + r * HIDDEN, want, HIDDEN, "embed");
            }
            buf_free(plain);
            buf_free(x);
            t->close(dev);
        }
}

static void pick(void **state) {
    (void)state;
    static const int32_t idx[] = {6, 0, 6, 2};
    const kern_table *t = table_of(isa_count() - 1);
    kern_dev *dev = dev_open(t, 3);
    act_buf from = random_act(7, 96);
    for (int32_t forms = 1; forms <= 3; forms++)
        for (int32_t n = 1; n <= 4; n++) {
            act_buf to = act_take(4, 96, forms & 1, forms & 2);
            t->pick(dev, &(kern_pick){from.act, to.act, n, {(uintptr_t)idx}});
            size_t q8 = kern_act_q8_bytes(96);
            for (int32_t i = 0; i < n; i++) {
                if (forms & 1)
                    assert_memory_equal(buf_floats(to.f32) + 96 * i,
                                        buf_floats(from.f32) + 96 * idx[i], 96 * 4);
                if (forms & 2)
                    assert_memory_equal((uint8_t *)buf_at(to.q8) + q8 * (size_t)i,
                                        (uint8_t *)buf_at(from.q8) + q8 * (size_t)idx[i], q8);
            }
            if (n < 4 && forms & 1) /* rows past n stay */
                assert_int_equal(((uint8_t *)buf_at(to.f32))[n * 96 * 4], BUF_FILL);
            act_free(to);
        }
    act_free(from);
    t->close(dev);
}

/* ---- exp, sigmoid, silu ---- */

static void exp_accuracy(void **state) {
    (void)state;
    double worst = 0, at = 0;
    for (double x = 0; x >= -87.33; x -= 0.0011) {
        float f = (float)x;
        double want = exp((double)f);
        int e;
        frexp(want, &e);
        double ulp = ldexp(1.0, e - 24);
        double error = fabs((double)exact_exp_neg(f) - want) / ulp;
        if (error > worst) {
            worst = error;
            at = (double)f;
        }
    }
    printf("exact_exp_neg: at most %.3f ulp from exp, at %g\n", worst, at);
    assert_true(worst < 3.0);
}

static void exp_edges(void **state) {
    (void)state;
    assert_int_equal(bits_of(exact_exp_neg(0.0f)), bits_of(1.0f));
    assert_int_equal(bits_of(exact_exp_neg(-0.0f)), bits_of(1.0f));
    assert_int_equal(bits_of(exact_exp_neg(-INFINITY)), 0);
    float edge = -87.33f;
    assert_true(exact_exp_neg(edge) >= 0x1p-126f);
    assert_int_equal(bits_of(exact_exp_neg(nextafterf(edge, -100.0f))), 0);
    assert_true(isnan(exact_exp_neg(NAN)));
    assert_int_equal(bits_of(exact_sigmoid(0.0f)), bits_of(0.5f));
    assert_int_equal(bits_of(exact_sigmoid(INFINITY)), bits_of(1.0f));
    assert_int_equal(bits_of(exact_sigmoid(-INFINITY)), 0);
    assert_int_equal(bits_of(exact_silu(-0.0f)), bits_of(-0.0f));
}

static void check_math16(math16_fn *exp_fn, math16_fn *silu_fn, const float *x) {
    float y[16];
    exp_fn(x, y);
    for (int32_t i = 0; i < 16; i++) {
        float want = exact_exp_neg(x[i]);
        if (bits_of(y[i]) != bits_of(want))
            fail_msg("exp(%a): %a, expected %a", (double)x[i], (double)y[i], (double)want);
    }
    silu_fn(x, y);
    for (int32_t i = 0; i < 16; i++) {
        float want = exact_silu(x[i]);
        if (bits_of(y[i]) != bits_of(want) && !(isnan(y[i]) && isnan(want)))
            fail_msg("silu(%a): %a, expected %a", (double)x[i], (double)y[i], (double)want);
    }
}

static void vector_math(math16_fn *exp_fn, math16_fn *silu_fn) {
    static const uint32_t special[] = {0,           0x80000000u, 0x7F800000u, 0xFF800000u,
                                       0x7FC00000u, 0xFFC00000u, 0x7FC12345u, 1,
                                       0x80000001u, 0x807FFFFFu, 0x3F800000u, 0xBF800000u,
                                       0xFF7FFFFFu, 0x7F7FFFFFu, 0xC2B00000u, 0x42B00000u};
    float x[16];
    for (int32_t i = 0; i < 16; i++)
        x[i] = float_of(special[i]);
    check_math16(exp_fn, silu_fn, x);
    uint32_t edge = bits_of(-87.33f);
    for (uint32_t u = edge - 4096; u < edge + 4096; u += 16) {
        for (uint32_t i = 0; i < 16; i++)
            x[i] = float_of(u + i);
        check_math16(exp_fn, silu_fn, x);
    }
    for (int32_t round = 0; round < 30000; round++) { /* in range, and any bit pattern */
        for (int32_t i = 0; i < 16; i++)
            x[i] = round % 3 ? rng_float() * 90.0f : float_of(rng_next());
        for (int32_t i = 0; i < 16; i++) /* signalling NaNs become quiet on the way */
            if (isnan(x[i]))
                x[i] = NAN;
        check_math16(exp_fn, silu_fn, x);
    }
}

static void vector_math_avx2(void **state) {
    (void)state;
    if (!cpu_isa_avx2.present())
        skip();
    vector_math(exp_neg_avx2, silu_avx2);
}

static void vector_math_avx512(void **state) {
    (void)state;
    if (!cpu_isa_avx512.present())
        skip();
    vector_math(exp_neg_avx512, silu_avx512);
}

/* Every function for rows of every length up to two vectors and more: nothing past the end is read
 * into a sum or written. */
static void tails(void **state) {
    (void)state;
    for (int32_t n = 1; n <= 70; n++) {
        size_t bytes = (size_t)n * 4;
        buf a = buf_take(bytes), b = buf_take(bytes), want = buf_take(bytes);
        for (int32_t i = 0; i < n; i++) {
            buf_floats(a)[i] = rng_below(6) ? rng_float() * 3.0f : -0.0f;
            buf_floats(b)[i] = rng_float();
        }
        for (int32_t isa = 0; isa < isa_count(); isa++) {
            const cpu_linear_isa *f = functions_of(isa);
            const float *x = buf_floats(a), *y = buf_floats(b);
            buf got = buf_take(bytes);
            for (int32_t i = 0; i < n; i++)
                buf_floats(want)[i] = x[i] + y[i];
            f->add(buf_floats(got), x, y, n);
            assert_same_floats(buf_floats(got), buf_floats(want), (size_t)n, "add");
            for (int32_t i = 0; i < n; i++)
                buf_floats(want)[i] = (x[i] * 0.37f) * y[i];
            f->scale(x, 0.37f, y, n, buf_floats(got));
            assert_same_floats(buf_floats(got), buf_floats(want), (size_t)n, "scale");
            float lane[16] = {0}, sum = f->square_sum(x, n);
            for (int32_t i = 0; i < n; i++)
                lane[i % 16] = fmaf(x[i], x[i], lane[i % 16]);
            assert_int_equal(bits_of(sum), bits_of(exact_fold16(lane)));
            for (int32_t i = 0; i < n; i++) {
                buf_floats(want)[i] = fmaf(0.37f, x[i], y[i]);
                buf_floats(got)[i] = y[i];
            }
            f->add_scaled(buf_floats(got), 0.37f, x, n);
            assert_same_floats(buf_floats(got), buf_floats(want), (size_t)n, "add_scaled");
            buf_free(got);
        }
        buf_free(a);
        buf_free(b);
        buf_free(want);
    }
}

/* Numbers at the ends of every range, and ordinary ones. */
static float any_float(float size) {
    static const uint32_t special[] = {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFC00001u,
                                       0,           0x80000000u, 0x7F7FFFFFu, 0xFF7FFFFFu,
                                       1,           0x80000001u, 0xC2C80000u, 0x7F800001u,
                                       0x40E00000u, 0xC0E00000u, 0x60AD78ECu, 0xE0AD78ECu};
    return rng_below(3) ? rng_float() * size : float_of(special[rng_below(16)]);
}

/* Tails of every length, gate or up not finite: the one NaN, or the right infinity. */
static void glu_of_every_level(void **state) {
    (void)state;
    for (int32_t n = 1; n <= 210; n++) {
        const kern_glu_rule *rule = &all_rules[n % 3];
        buf g = buf_take((size_t)n * 4), u = buf_take((size_t)n * 4),
            want = buf_take((size_t)n * 4);
        for (int32_t i = 0; i < n; i++) {
            buf_floats(g)[i] = any_float(20.0f);
            buf_floats(u)[i] = any_float(n % 2 ? 1.0f : 12.0f);
            buf_floats(want)[i] = reference_glu(rule, buf_floats(g)[i], buf_floats(u)[i]);
        }
        for (int32_t isa = 0; isa < isa_count(); isa++) {
            buf got = buf_take((size_t)n * 4);
            functions_of(isa)->glu(rule, buf_floats(got), buf_floats(g), buf_floats(u), n);
            assert_same_floats(buf_floats(got), buf_floats(want), (size_t)n, "glu");
            memcpy(buf_at(got), buf_at(g), got.bytes);
            functions_of(isa)->glu(rule, buf_floats(got), buf_floats(got), buf_floats(u), n);
            assert_same_floats(buf_floats(got), buf_floats(want), (size_t)n, "glu in place");
            buf_free(got);
        }
        buf_free(g);
        buf_free(u);
        buf_free(want);
    }
}

/* Against double precision, over the range where the unit is neither 0 nor the line. */
static void gelu_accuracy(void **state) {
    (void)state;
    for (float g = -8.0f; g <= 8.0f; g += 0.003f) {
        double x = (double)g, z = sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x);
        double want = 0.5 * x * (1 + tanh(z));
        double got = (double)reference_glu(&all_rules[KERN_GLU_GELU], g, 1.0f);
        assert_true(fabs(got - want) <= 2e-5 * fabs(want) + 1e-9);
    }
}

/* Rows with gaps between them, in each form that the output can have. */
static void glu(void **state) {
    (void)state;
    enum { N_ROW = 5, WIDTH = 96, G_STRIDE = WIDTH + 5, U_STRIDE = WIDTH + 32 };
    for (int32_t forms = 1; forms <= 3; forms++)
        for (int32_t isa = 0; isa < isa_count(); isa++) {
            const kern_table *t = table_of(isa);
            kern_dev *dev = dev_open(t, 1 + forms);
            int32_t n_row = forms == 2 ? 1 : N_ROW;
            act_buf g = random_act(N_ROW, G_STRIDE), u = random_act(N_ROW, U_STRIDE);
            act_buf got = act_take(n_row, WIDTH, forms & 1, forms & 2),
                    want = act_take(n_row, WIDTH, true, true);
            for (int32_t i = 0; i < n_row * WIDTH; i++)
                buf_floats(want.f32)[i] = reference_glu(
                    &all_rules[isa % 3], buf_floats(g.f32)[i / WIDTH * G_STRIDE + i % WIDTH],
                    buf_floats(u.f32)[i / WIDTH * U_STRIDE + i % WIDTH]);
            act_quantise(&want.act, n_row);
            t->glu(dev, &(kern_glu){n_row, g.f32.mem, u.f32.mem, G_STRIDE, U_STRIDE,
                                    all_rules[isa % 3], got.act});
            if (forms & 1)
                assert_same_floats(buf_floats(got.f32), buf_floats(want.f32), got.f32.bytes / 4,
                                   "glu");
            if (forms & 2)
                assert_memory_equal(buf_at(got.q8), buf_at(want.q8), got.q8.bytes);
            act_free(g);
            act_free(u);
            act_free(got);
            act_free(want);
            t->close(dev);
        }
}

static void act_make(void **state) {
    (void)state;
    enum { N_ROW = 4, WIDTH = 160 };
    for (int32_t forms = 1; forms <= 4;
         forms++) /* 4: the q8 form of rows that stay where they are */
        for (int32_t isa = 0; isa < isa_count(); isa++) {
            const kern_table *t = table_of(isa);
            kern_dev *dev = dev_open(t, 3);
            act_buf from = random_act(N_ROW, WIDTH);
            act_buf to = act_take(N_ROW, WIDTH, forms != 2 && forms != 4, forms != 1);
            kern_act act = to.act;
            buf before = buf_take(from.f32.bytes);
            memcpy(buf_at(before), buf_at(from.f32), before.bytes);
            if (forms == 4)
                act.f32 = from.f32.mem;
            t->act_make(dev, &(kern_act_make){N_ROW, from.f32.mem, act});
            assert_memory_equal(buf_at(from.f32), buf_at(before), before.bytes);
            if (to.act.f32.at)
                assert_memory_equal(buf_at(to.f32), buf_at(from.f32), to.f32.bytes);
            if (to.act.q8.at)
                assert_memory_equal(buf_at(to.q8), buf_at(from.q8), to.q8.bytes);
            act_free(from);
            act_free(to);
            buf_free(before);
            t->close(dev);
        }
}

static float reference_softcap(float x, float cap) {
    float y = x / cap;
    float e = exact_exp_neg(-2.0f * fabsf(y));
    float t = (1.0f - e) / (1.0f + e);
    float z = cap * (y < 0.0f ? -t : t);
    return isnan(z) ? float_of(0xFFC00000u) : z;
}

static void check_softcap(int64_t n, float cap, int32_t n_thread) {
    buf x = buf_take((size_t)n * 4), want = buf_take((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        buf_floats(x)[i] = any_float(3.0f * cap);
        buf_floats(want)[i] = reference_softcap(buf_floats(x)[i], cap);
    }
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        const kern_table *t = table_of(isa);
        kern_dev *dev = dev_open(t, n_thread);
        buf got = buf_take((size_t)n * 4);
        memcpy(buf_at(got), buf_at(x), got.bytes);
        t->softcap(dev, &(kern_softcap){n, cap, got.mem});
        assert_same_floats(buf_floats(got), buf_floats(want), (size_t)n, "softcap");
        buf_free(got);
        t->close(dev);
    }
    buf_free(x);
    buf_free(want);
}

static void softcap(void **state) {
    (void)state;
    for (int32_t n = 1; n <= 40; n++)
        check_softcap(n, n % 2 ? 30.0f : 50.0f, 1 + n % 2);
    check_softcap(4096, 30.0f, 2);
    check_softcap(20011, 30.0f, 3);
    double worst = 0;
    for (float x = -200.0f; x <= 200.0f; x += 0.007f)
        worst = fmax(worst, fabs((double)reference_softcap(x, 30.0f) - 30 * tanh((double)x / 30)));
    printf("softcap 30: off by at most %.2e\n", worst);
    assert_true(worst < 30 * 3e-7);
    assert_int_equal(bits_of(reference_softcap(INFINITY, 30.0f)), bits_of(30.0f));
    assert_int_equal(bits_of(reference_softcap(-INFINITY, 30.0f)), bits_of(-30.0f));
    assert_int_equal(bits_of(reference_softcap(-0.0f, 30.0f)), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantise_random),
        cmocka_unit_test(quantise_ties),
        cmocka_unit_test(quantise_edges),
        cmocka_unit_test(quantise_non_finite),
        cmocka_unit_test(reduce_norm),
        cmocka_unit_test(embed),
        cmocka_unit_test(pick),
        cmocka_unit_test(exp_accuracy),
        cmocka_unit_test(exp_edges),
        cmocka_unit_test(vector_math_avx2),
        cmocka_unit_test(vector_math_avx512),
        cmocka_unit_test(tails),
        cmocka_unit_test(glu_of_every_level),
        cmocka_unit_test(gelu_accuracy),
        cmocka_unit_test(glu),
        cmocka_unit_test(act_make),
        cmocka_unit_test(softcap),
    };
    isa_print_absent();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
