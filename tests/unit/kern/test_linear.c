/* Linear layers of every instruction-set level against one reference that works on the plain
 * weights of the model file, bit for bit. */
#include <math.h>

#include "kern_case.h"
#include "tensor/tree.h"

static const dtype all_types[] = {DTYPE_F32,  DTYPE_F16,    DTYPE_BF16,   DTYPE_Q4_0,
                                  DTYPE_Q4_1, DTYPE_Q8_0,   DTYPE_Q5_0,   DTYPE_Q5_1,
                                  DTYPE_Q2_K, DTYPE_Q3_K,   DTYPE_Q4_K,   DTYPE_Q5_K,
                                  DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
enum { N_TYPE = 16, N_FLOAT_TYPE = 3, MAX_NODE = TREE_MAX_LEAF };

/* The columns that a weight needs so that it has n: whole blocks of its type. */
static int32_t whole_blocks(dtype type, int32_t n) {
    int32_t len = dtype_find(type)->block_len;
    return (n + len - 1) / len * len;
}

/* ---- the reference: numerics N2, one output at a time, no packing ---- */

/* Block wb of a weight row with block xb of an activation row. */
static float reference_block_dot(dtype type, const uint8_t *w_row, int32_t wb, const kern_act *x,
                                 int32_t row, int32_t xb, float acc) {
    const block_form *f = &block_forms[type];
    record rec = record_at(x, row);
    block_part p;
    block_read(type, w_row, wb, &p);
    for (int32_t at = 0; at < 32; at += f->group) {
        int32_t isum = 0, sum = 0;
        for (int32_t i = at; i < at + f->group; i++) {
            int32_t level = (p.quad[i / 4] >> 8 * (i % 4)) & 255;
            if (f->table)
                level = block_tables[f->table][level];
            isum += (level - f->offset) * rec.q[32 * xb + i];
            sum += rec.q[32 * xb + i];
        }
        float scale, minimum;
        block_scale(type, &p, at / 16, &scale, &minimum);
        acc = fmaf(scale * rec.dx[xb], (float)isum, acc);
        if (f->scaling == BLOCK_D_M || f->scaling == BLOCK_D_SC_MN)
            acc = fmaf(minimum, f->group == 32 ? rec.xs[xb] : rec.dx[xb] * (float)sum, acc);
    }
    return acc;
}

/* Columns [k0, k0 + n) of a weight row with columns [x0, x0 + n) of an activation row. */
static float reference_leaf(dtype type, const uint8_t *w_row, int32_t k0, const kern_act *x,
                            int32_t row, int32_t x0, int32_t n) {
    const dtype_info *info = dtype_find(type);
    float acc = 0.0f;
    if (!info->quantised) {
        const float *xr = (const float *)x->f32.at + (size_t)row * (size_t)x->k + x0;
        for (int32_t k = 0; k < n; k++) {
            float w;
            dtype_to_f32(type, w_row + (k0 + k) * info->block_bytes, 1, &w);
            acc = fmaf(w, xr[k], acc);
        }
        return acc;
    }
    for (int32_t b = 0; b < n / 32; b++)
        acc = reference_block_dot(type, w_row, k0 / 32 + b, x, row, x0 / 32 + b, acc);
    return acc;
}

/* One output of one row: all nodes of the leaf program. */
static void reference_nodes(dtype type, const uint8_t *w_row, int32_t in0, const kern_act *x,
                            int32_t row, const tree_prog *tree, int32_t leaf_in, float *node) {
    float stack[TREE_MAX_LEAF];
    int32_t depth = 0, n_node = 0;
    for (int32_t i = 0; i < tree->n_op; i++) {
        int32_t op = tree->op[i];
        if (op >= 0) {
            stack[depth++] =
                reference_leaf(type, w_row, in0 + op * leaf_in, x, row, op * leaf_in, leaf_in);
        } else if (op == TREE_ADD) {
            depth--;
            stack[depth - 1] = stack[depth - 1] + stack[depth];
        } else {
            node[n_node++] = stack[--depth];
        }
    }
}

/* ---- one case, run on every level ---- */

typedef struct linear_case {
    dtype type;
    int32_t n_out, n_in; /* of the weight */
    int32_t out0, part_out;
    int32_t in0, leaf_in;
    int32_t n_row;
    bool bias;
    int32_t n_thread;
    const tree_prog *tree;
} linear_case;

static const tree_prog one_leaf = {2, 1, 1, {0, TREE_EMIT}};

static buf run_case(int32_t isa, const linear_case *c, buf plain, const kern_act *x, buf bias,
                    int32_t y_stride) {
    const kern_table *t = table_of(isa);
    kern_dev *dev = dev_open(t, c->n_thread);
    kern_weight w;
    buf w_buf = packed(t, c->type, c->n_out, c->n_in, plain, &w);
    size_t node_bytes = (size_t)c->n_row * (size_t)y_stride * 4;
    buf y = buf_take((size_t)c->tree->n_emit * node_bytes);
    kern_linear p = {
        .x = *x,
        .n_row = c->n_row,
        .in0 = c->in0,
        .n_in = x->k,
        .n_part = 1,
        .part = {{&w, c->out0, c->part_out, bias.mem, y.mem, y_stride}},
        .tree = c->tree,
        .leaf_in = c->leaf_in,
        .node_bytes = node_bytes,
    };
    t->linear(dev, &p);
    t->close(dev);
    buf_free(w_buf);
    return y;
}

/* The expected output, with the fill bytes where nothing is written. */
static buf expected_case(const linear_case *c, buf plain, const kern_act *x, buf bias,
                         int32_t y_stride) {
    size_t plane = (size_t)c->n_row * (size_t)y_stride;
    size_t row_bytes = dtype_bytes(dtype_find(c->type), c->n_in);
    buf y = buf_take((size_t)c->tree->n_emit * plane * 4);
    for (int32_t r = 0; r < c->n_row; r++)
        for (int32_t o = 0; o < c->part_out; o++) {
            float node[MAX_NODE];
            const uint8_t *w_row =
                (const uint8_t *)buf_at(plain) + (size_t)(c->out0 + o) * row_bytes;
            reference_nodes(c->type, w_row, c->in0, x, r, c->tree, c->leaf_in, node);
            for (int32_t e = 0; e < c->tree->n_emit; e++)
                buf_floats(y)[(size_t)e * plane + (size_t)(r * y_stride + o)] =
                    c->bias ? node[e] + buf_floats(bias)[o] : node[e];
        }
    return y;
}

static void check_case_on(const linear_case *c, buf plain, const kern_act *x) {
    buf bias = {0};
    if (c->bias) {
        bias = buf_take((size_t)c->part_out * 4);
        for (int32_t o = 0; o < c->part_out; o++)
            buf_floats(bias)[o] = rng_float();
    }
    int32_t y_stride = c->part_out + rng_below(3) * 5;
    buf want = expected_case(c, plain, x, bias, y_stride);
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        buf y = run_case(isa, c, plain, x, bias, y_stride);
        char what[160];
        snprintf(what, sizeof what, "%s %s n_out %d n_in %d out0 %d in0 %d leaf %d x %d rows %d",
                 isa_at(isa)->name, dtype_find(c->type)->name, c->n_out, c->n_in, c->out0, c->in0,
                 c->tree->n_push, c->leaf_in, c->n_row);
        assert_same_floats(buf_floats(y), buf_floats(want), y.bytes / 4, what);
        buf_free(y);
    }
    buf_free(want);
    if (c->bias)
        buf_free(bias);
}

/* A type with longer blocks than the case has columns gets more columns, and a start inside a
 * block. */
static void check_case(const linear_case *given) {
    linear_case c = *given;
    c.n_in = whole_blocks(c.type, c.n_in);
    c.in0 += rng_below((c.n_in - given->n_in) / 32 + 1) * 32;
    buf plain = random_plain(c.type, c.n_out, c.n_in);
    act_buf x = random_act(c.n_row, c.leaf_in * c.tree->n_push);
    check_case_on(&c, plain, &x.act);
    act_free(x);
    buf_free(plain);
}

/* ---- tests ---- */

static void shapes(void **state) {
    (void)state;
    static const int32_t blocks[] = {1, 3, 5, 18, 24, 48};
    static const int32_t outs[] = {16, 1, 17, 37, 64, 80, 111};
    int32_t n = 0;
    for (int32_t i = 0; i < N_TYPE; i++)
        for (int32_t j = 0; j < 6; j++)
            for (int32_t k = 0; k < 3; k++, n++) {
                int32_t n_in = blocks[j] * 32, n_out = outs[(n + k) % 7];
                int32_t n_row = n_in > 600 ? 1 + n % 9 : 1 + n % 33;
                check_case(&(linear_case){all_types[i], n_out, n_in, 0, n_out, 0, n_in, n_row,
                                          k == 1, 1 + n % 3, &one_leaf});
            }
}

static void every_row_count(void **state) {
    (void)state;
    for (int32_t i = 0; i < N_TYPE; i++)
        for (int32_t n_row = 1; n_row <= 33; n_row++)
            check_case(&(linear_case){all_types[i], 83, 96, 0, 83, 0, 96, n_row, false,
                                      1 + n_row % 2, &one_leaf});
}

/* Builds with a sanitizer. */
static bool is_small(void) {
    const char *scale = getenv("WEFT_TEST_SCALE");
    return scale && strcmp(scale, "small") == 0;
}

/* Many rows: several row blocks of several panels, claimed by several threads. Their panels are
 * unpacked, 8 blocks at a time are done; 19 rows have the smallest tiles for which that is so. */
static void many_rows(void **state) {
    (void)state;
    static const int32_t blocks[] = {1, 7, 8, 9, 17};
    for (int32_t i = 0; i < N_TYPE; i++) {
        check_case(&(linear_case){all_types[i], 150, 64, 16, 134, 0, 64, 211, false, 3, &one_leaf});
        for (int32_t j = is_small() ? 4 : 0; j < 5; j++) {
            int32_t n_in = blocks[j] * 32;
            check_case(&(linear_case){all_types[i], 70, n_in, 0, 70, 0, n_in, 97 + j, j % 2 == 1,
                                      1 + j % 2, &one_leaf});
        }
        check_case(&(linear_case){all_types[i], 250, 96, 0, 250, 0, 96, 19, false, 1, &one_leaf});
    }
}

static void odd_widths_of_float_types(void **state) {
    (void)state;
    static const int32_t widths[] = {1, 2, 3, 8, 37, 63};
    for (int32_t i = 0; i < N_FLOAT_TYPE; i++)
        for (int32_t j = 0; j < 6; j++)
            for (int32_t in0 = 0; in0 < 3; in0++)
                check_case(&(linear_case){all_types[i], 45, widths[j] + 5, 16, 29, in0, widths[j],
                                          1 + 2 * j, j == 2, 1, &one_leaf});
}

/* Leaves of 3 blocks (and of 8 columns for float types), every contiguous part of the tree. */
static void leaves(void **state) {
    (void)state;
    static const int32_t counts[] = {2, 3, 6, 12};
    for (int32_t i = 0; i < N_TYPE; i++)
        for (int32_t j = 0; j < 4; j++)
            for (int32_t lo = 0; lo < counts[j]; lo += 2)
                for (int32_t hi = lo + 1; hi <= counts[j]; hi += 3) {
                    tree_prog tree;
                    tree_cover(counts[j], lo, hi, &tree);
                    int32_t leaf_in = !dtype_find(all_types[i])->quantised && lo % 4 ? 8 : 96;
                    check_case(&(linear_case){all_types[i], 40, counts[j] * leaf_in, 0, 40,
                                              lo * leaf_in, leaf_in,
                                              hi % 4 == 3 && !is_small() ? 100 : 1 + (lo + hi) % 8,
                                              false, 1 + hi % 2, &tree});
                }
}

/* Operands are numbers of leaves; a program may push them in any order. */
static void operands_out_of_order(void **state) {
    (void)state;
    static const tree_prog tree = {7, 4, 1, {3, 1, TREE_ADD, 2, 0, TREE_ADD, TREE_ADD}};
    tree_prog emitting = tree;
    emitting.op[emitting.n_op++] = TREE_EMIT;
    for (int32_t i = 0; i < N_TYPE; i++)
        check_case(&(linear_case){all_types[i], 32, 256, 0, 32, 64, 32, 5, false, 1, &emitting});
}

/* The deepest stack a tree can have: 64 leaves in one balanced tree. */
static void deepest_tree(void **state) {
    (void)state;
    tree_prog tree;
    tree_cover(64, 0, 64, &tree);
    check_case(&(linear_case){DTYPE_Q4_0, 20, 64 * 32, 0, 20, 0, 32, 3, false, 1, &tree});
}

/* Weights and activations at the ends of their ranges: no dot product may saturate, no scale may be
 * flushed. */
static void extremes(void **state) {
    (void)state;
    static const uint16_t scales[] = {0x0001, 0x03FF, 0x7BFF, 0x8001, 0x0000, 0x8000, 0x3C00};
    static const uint8_t exponents[] = {0, 1, 2, 3, 127, 254, 255};
    static const uint8_t codes[] = {0x00, 0xFF, 0x80, 0x7F, 0x88, 0x0F};
    static const float values[] = {1.0f, -1.0f, 0x1p-100f, -0.0f, 0.0f, 0x1p-126f, 3e38f, 1e30f};
    int32_t n_in = 96, n_out = 21, n_row = 8 * 13; /* so many that panels are unpacked */
    for (int32_t i = N_FLOAT_TYPE; i < N_TYPE; i++)
        for (int32_t code = 0; code < 6; code++)
            for (int32_t scale = 0; scale < 7; scale++) {
                int32_t w_in = whole_blocks(all_types[i], n_in);
                buf plain = random_plain(all_types[i], n_out, w_in);
                int32_t block_bytes = dtype_find(all_types[i])->block_bytes;
                for (size_t at = 0; at < plain.bytes; at += (size_t)block_bytes) {
                    uint8_t *block = (uint8_t *)buf_at(plain) + at;
                    memset(block, codes[code], (size_t)block_bytes);
                    if (all_types[i] == DTYPE_MXFP4)
                        *block = exponents[scale];
                    else
                        plain_set_scales(all_types[i], block, scales[scale],
                                         scales[(scale + code) % 7]);
                }
                act_buf x = random_act(n_row, n_in);
                for (int32_t r = 0; r < n_row; r++)
                    for (int32_t k = 0; k < n_in; k++)
                        buf_floats(x.f32)[r * n_in + k] = values[r % 8];
                for (int32_t r = 0; r < n_row; r++)
                    cpu_act_write_row(&cpu_linear_scalar, &x.act, r, buf_floats(x.f32) + r * n_in);
                check_case_on(&(linear_case){all_types[i], n_out, w_in, 0, n_out, 0, n_in, n_row,
                                             false, 1, &one_leaf},
                              plain, &x.act);
                act_free(x);
                buf_free(plain);
            }
}

/* Every pair of an extreme weight code and an extreme activation code, and signs that alternate by
 * output or by column: the partial sums that a narrower type could not hold. */
static void saturation(void **state) {
    (void)state;
    static const int8_t q_codes[] = {127, -127, 126, -1, 0};
    static const uint8_t nibbles[] = {0xFF, 0x00, 0xF0, 0x0F, 0x88, 0x77};
    static const uint8_t bytes[] = {0x80, 0x81, 0x7F, 0xFF, 0x1F, 0x00};
    enum { N_IN = 64, N_OUT = 37, N_ROW = 100 };
    static const int32_t row_counts[] = {1, 4, 7, 10, N_ROW};
    for (int32_t i = N_FLOAT_TYPE; i < N_TYPE; i++)
        for (int32_t code = 0; code < 6; code++)
            for (int32_t mix = 0; mix < 3; mix++) {
                const dtype type = all_types[i];
                const uint8_t *codes = type == DTYPE_Q8_0 ? bytes : nibbles;
                int32_t w_in = whole_blocks(type, N_IN);
                buf plain = random_plain(type, N_OUT, w_in);
                int32_t block_bytes = dtype_find(type)->block_bytes, at0 = plain_scale_at(type);
                for (size_t at = 0; at < plain.bytes; at += (size_t)block_bytes)
                    for (int32_t k = 0; k < block_bytes; k++)
                        if (k < at0 || k >= at0 + plain_scale_bytes(type))
                            ((uint8_t *)buf_at(plain))[at + (size_t)k] =
                                codes[mix == 2 ? (code + k) % 6 : code];
                act_buf x = random_act(N_ROW, N_IN);
                for (int32_t r = 0; r < N_ROW; r++) {
                    record rec = record_at(&x.act, r);
                    int8_t *q = (int8_t *)rec.q;
                    int16_t *sum = (int16_t *)rec.sum;
                    memset(sum, 0, N_IN / 8 * sizeof *sum);
                    for (int32_t k = 0; k < N_IN; k++) {
                        q[k] = q_codes[mix ? (r + k) % 5 : r % 5];
                        int16_t *part = &sum[k / 16 * 2 + k / 2 % 2];
                        *part = (int16_t)(*part + q[k]);
                    }
                }
                for (int32_t j = 0; j < 5; j++)
                    check_case_on(&(linear_case){type, N_OUT, w_in, 0, N_OUT, 0, N_IN,
                                                 row_counts[j], false, 1, &one_leaf},
                                  plain, &x.act);
                act_free(x);
                buf_free(plain);
            }
}

/* Float types with denormals, signed zeros and values near the end of the range. */
static void float_extremes(void **state) {
    (void)state;
    static const float values[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-126f, 3e38f, 1.0f, -1.0f, 1e-30f};
    int32_t n_in = 37, n_out = 30, n_row = 7;
    for (int32_t round = 0; round < 20; round++)
        for (int32_t i = 0; i < 3; i++) {
            buf plain = random_plain(all_types[i], n_out, n_in);
            for (int32_t k = 0; k < n_out * n_in; k++) {
                float f = values[rng_below(8)];
                uint16_t h = all_types[i] == DTYPE_F16 ? f32_to_f16(f) : f32_to_bf16(f);
                if (all_types[i] == DTYPE_F32)
                    buf_floats(plain)[k] = f;
                else
                    memcpy((uint8_t *)buf_at(plain) + 2 * k, &h, 2);
            }
            act_buf x = random_act(n_row, n_in);
            for (int32_t k = 0; k < n_row * n_in; k++)
                buf_floats(x.f32)[k] = values[rng_below(8)] * (round % 2 ? 0.25f : 1.0f);
            check_case_on(&(linear_case){all_types[i], n_out, n_in, 0, n_out, 0, n_in, n_row, false,
                                         1, &one_leaf},
                          plain, &x.act);
            act_free(x);
            buf_free(plain);
        }
}

/* A row that is not finite gives NaN in its own outputs only, the same bits on every level. */
static void non_finite_row(void **state) {
    (void)state;
    static const uint32_t bad[] = {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFC00001u, 0x7F800001u};
    for (int32_t i = N_FLOAT_TYPE; i < N_TYPE; i++)
        for (int32_t j = 0; j < 5; j++) {
            int32_t n_in = 96, n_out = 20, w_in = whole_blocks(all_types[i], n_in);
            int32_t n_row = j % 2 ? 5 : 101;
            buf plain = random_plain(all_types[i], n_out, w_in);
            act_buf x = random_act(n_row, n_in);
            buf_floats(x.f32)[2 * n_in + 40] = float_of(bad[j]);
            cpu_act_write_row(&cpu_linear_scalar, &x.act, 2, buf_floats(x.f32) + 2 * n_in);
            linear_case c = {all_types[i], n_out, w_in,  0, n_out,    0,
                             n_in,         n_row, false, 1, &one_leaf};
            for (int32_t isa = 0; isa < isa_count(); isa++) {
                buf y = run_case(isa, &c, plain, &x.act, (buf){0}, n_out);
                for (int32_t k = 0; k < n_row * n_out; k++)
                    if (k / n_out == 2)
                        assert_int_equal(bits_of(buf_floats(y)[k]), 0xFFC00000u);
                    else
                        assert_true(isfinite(buf_floats(y)[k]));
                buf_free(y);
            }
            act_free(x);
            buf_free(plain);
        }
}

/* Row r alone has the bits of row r among 33. */
static void row_independence(void **state) {
    (void)state;
    int32_t n_in = 160, n_out = 72, n_row = 33;
    for (int32_t i = 0; i < N_TYPE; i++)
        for (int32_t isa = 0; isa < isa_count(); isa++) {
            int32_t w_in = whole_blocks(all_types[i], n_in);
            buf plain = random_plain(all_types[i], n_out, w_in);
            act_buf x = random_act(n_row, n_in);
            linear_case c = {all_types[i], n_out, w_in,  0, n_out,    0,
                             n_in,         n_row, false, 2, &one_leaf};
            buf all = run_case(isa, &c, plain, &x.act, (buf){0}, n_out);
            c.n_row = 1;
            for (int32_t r = 0; r < n_row; r++) {
                kern_act one = x.act;
                one.f32 = kern_at(one.f32, (size_t)(r * n_in) * 4);
                if (one.q8.at)
                    one.q8 = kern_at(one.q8, (size_t)r * kern_act_q8_bytes(n_in));
                buf y = run_case(isa, &c, plain, &one, (buf){0}, n_out);
                assert_same_floats(buf_floats(y), buf_floats(all) + r * n_out, (size_t)n_out,
                                   "row alone");
                buf_free(y);
            }
            buf_free(all);
            act_free(x);
            buf_free(plain);
        }
}

static void thread_counts(void **state) {
    (void)state;
    int32_t n_in = 96, n_out = 250;
    static const int32_t row_counts[] = {1, 4, 29};
    for (int32_t i = 0; i < N_TYPE; i++)
        for (int32_t j = 0; j < 3; j++) {
            int32_t w_in = whole_blocks(all_types[i], n_in);
            buf plain = random_plain(all_types[i], n_out, w_in);
            act_buf x = random_act(row_counts[j], n_in);
            for (int32_t n_thread = 1; n_thread <= 3; n_thread++)
                check_case_on(&(linear_case){all_types[i], n_out, w_in, 0, n_out, 0, n_in,
                                             row_counts[j], false, n_thread, &one_leaf},
                              plain, &x.act);
            act_free(x);
            buf_free(plain);
        }
}

/* q, k and v in one call, side by side in one y, are what three calls give. */
static void parts(void **state) {
    (void)state;
    int32_t n_in = 96;
    static const int32_t outs[3] = {112, 48, 20};
    for (int32_t n_row = 1; n_row <= 15; n_row += 7)
        for (int32_t isa = 0; isa < isa_count(); isa++) {
            const kern_table *t = table_of(isa);
            kern_dev *dev = dev_open(t, 3);
            act_buf x = random_act(n_row, n_in);
            buf plain[3], w_buf[3];
            kern_weight w[3];
            buf y = buf_take((size_t)n_row * 180 * 4), want = buf_take((size_t)n_row * 180 * 4);
            kern_linear all = {.x = x.act, .n_row = n_row, .n_in = n_in, .n_part = 3};
            all.tree = &one_leaf;
            all.leaf_in = n_in;
            int32_t at = 0;
            for (int32_t i = 0; i < 3; i++) {
                plain[i] = random_plain(all_types[i + 2], outs[i], n_in);
                w_buf[i] = packed(t, all_types[i + 2], outs[i], n_in, plain[i], &w[i]);
                all.part[i] =
                    (kern_linear_part){&w[i], 0, outs[i], {0}, kern_at(y.mem, (size_t)at * 4), 180};
                kern_linear one = all;
                one.n_part = 1;
                one.part[0] = all.part[i];
                one.part[0].y = kern_at(want.mem, (size_t)at * 4);
                t->linear(dev, &one);
                at += outs[i];
            }
            t->linear(dev, &all);
            assert_memory_equal(buf_at(y), buf_at(want), y.bytes);
            for (int32_t i = 0; i < 3; i++) {
                buf_free(plain[i]);
                buf_free(w_buf[i]);
            }
            buf_free(y);
            buf_free(want);
            act_free(x);
            t->close(dev);
        }
}

/* Against double precision on dequantised weights and unquantised activations. An activation is off
 * by half a step of its block at most. */
static void accuracy(void **state) {
    (void)state;
    int32_t n_out = 48, n_row = 7;
    for (int32_t i = 0; i < N_TYPE; i++) {
        int32_t n_in = whole_blocks(all_types[i], 576);
        buf plain = random_plain(all_types[i], n_out, n_in);
        act_buf x = random_act(n_row, n_in);
        linear_case c = {all_types[i], n_out, n_in, 0, n_out, 0, n_in, n_row, false, 1, &one_leaf};
        buf y = run_case(0, &c, plain, &x.act, (buf){0}, n_out);
        float *w = malloc((size_t)n_in * sizeof *w);
        assert_non_null(w);
        size_t row_bytes = dtype_bytes(dtype_find(c.type), n_in);
        bool q8 = dtype_find(c.type)->quantised;
        for (int32_t o = 0; o < n_out; o++) {
            dtype_to_f32(c.type, (uint8_t *)buf_at(plain) + (size_t)o * row_bytes, n_in, w);
            for (int32_t r = 0; r < n_row; r++) {
                double sum = 0, bound = 0;
                for (int32_t k = 0; k < n_in; k++) {
                    double v = (double)buf_floats(x.f32)[r * n_in + k];
                    double step = q8 ? (double)record_at(&x.act, r).dx[k / 32] : 0;
                    sum += (double)w[k] * v;
                    bound += fabs((double)w[k]) * (step * 0.5001 + fabs(v) * 1e-5);
                }
                double error = fabs((double)buf_floats(y)[r * n_out + o] - sum);
                assert_true(error <= bound);
            }
        }
        free(w);
        buf_free(y);
        act_free(x);
        buf_free(plain);
    }
}

/* K cut over two ranks: covers, then the rest of the tree in reduce_norm: the bits of one rank. */
static buf cut_over(const kern_table *t, kern_dev *dev, const kern_weight *w, const kern_act *x,
                    int32_t n_row, int32_t n_leaf, int32_t cut_at, buf residual, kern_mem norm) {
    int32_t hidden = w->n_out, leaf_in = x->k / n_leaf;
    size_t node_bytes = (size_t)(n_row * hidden) * 4, node_off[TREE_MAX_LEAF];
    buf nodes = buf_take(TREE_MAX_DEPTH * node_bytes);
    int32_t cut[3] = {0, cut_at, n_leaf}, n_node = 0;
    for (int32_t rank = 0; rank < 2; rank++) {
        tree_prog tree;
        tree_cover(n_leaf, cut[rank], cut[rank + 1], &tree);
        if (tree.n_push == 0)
            continue;
        int32_t n_in = (cut[rank + 1] - cut[rank]) * leaf_in;
        act_buf mine = act_take(n_row, n_in, true, true);
        for (int32_t r = 0; r < n_row; r++)
            memcpy(buf_floats(mine.f32) + r * n_in,
                   (const float *)x->f32.at + r * x->k + cut[rank] * leaf_in, (size_t)n_in * 4);
        act_quantise(&mine.act, n_row);
        kern_linear p = {.x = mine.act, .n_row = n_row, .in0 = cut[rank] * leaf_in, .n_in = n_in};
        p.n_part = 1;
        p.part[0] = (kern_linear_part){
            w, 0, hidden, {0}, kern_at(nodes.mem, (size_t)n_node * node_bytes), hidden};
        p.tree = &tree;
        p.leaf_in = leaf_in;
        p.node_bytes = node_bytes;
        t->linear(dev, &p);
        act_free(mine);
        for (int32_t e = 0; e < tree.n_emit; e++, n_node++)
            node_off[n_node] = (size_t)n_node * node_bytes;
    }
    tree_prog rest;
    tree_finish(n_leaf, cut, 2, &rest);
    assert_int_equal(rest.n_push, n_node);
    buf x_row = buf_take((size_t)(n_row * hidden) * 4),
        out = buf_take((size_t)(n_row * hidden) * 8);
    memcpy(buf_at(x_row), buf_at(residual), x_row.bytes);
    kern_reduce_norm norm_p = {.n_row = n_row, .hidden = hidden, .tree = &rest, .nodes = nodes.mem};
    norm_p.node_off = node_off;
    norm_p.x = x_row.mem;
    norm_p.x_scale = 1.0f;
    norm_p.weight = norm;
    norm_p.eps = 1e-5f;
    norm_p.out = (kern_act){.k = hidden, .f32 = out.mem};
    t->reduce_norm(dev, &norm_p);
    memcpy(buf_floats(out) + n_row * hidden, buf_at(x_row), x_row.bytes);
    buf_free(nodes);
    buf_free(x_row);
    return out;
}

static void cuts_of_k(void **state) {
    (void)state;
    enum { N_LEAF = 12, HIDDEN = 100, N_ROW = 5 };
    for (int32_t i = 0; i < N_TYPE; i++) {
        int32_t w_in = whole_blocks(all_types[i], N_LEAF * 32);
        buf plain = random_plain(all_types[i], HIDDEN, w_in);
        act_buf x = random_act(N_ROW, N_LEAF * 32), residual = random_act(N_ROW, HIDDEN);
        act_buf norm = random_act(1, HIDDEN);
        buf first = {0};
        for (int32_t isa = 0; isa < isa_count(); isa++) {
            const kern_table *t = table_of(isa);
            kern_dev *dev = dev_open(t, 2);
            kern_weight w;
            buf w_buf = packed(t, all_types[i], HIDDEN, w_in, plain, &w);
            for (int32_t cut = 0; cut <= N_LEAF; cut++) {
                buf out =
                    cut_over(t, dev, &w, &x.act, N_ROW, N_LEAF, cut, residual.f32, norm.f32.mem);
                if (!first.mem.at) {
                    first = out;
                    continue;
                }
                assert_memory_equal(buf_at(out), buf_at(first), out.bytes);
                buf_free(out);
            }
            buf_free(w_buf);
            t->close(dev);
        }
        buf_free(first);
        buf_free(plain);
        act_free(x);
        act_free(residual);
        act_free(norm);
    }
}

/* SwiGLU is two linear layers, the rule of the gated unit, and the rule of the q8 form. */
static void check_swiglu(dtype type, int32_t n_in, int32_t n_out, int32_t out0, int32_t n_row,
                         bool f32, bool q8) {
    kern_glu_rule rule = all_rules[n_row / 2 % 3];
    int32_t rows_of_w = out0 + n_out, w_in = whole_blocks(type, n_in);
    buf gate = random_plain(type, rows_of_w, w_in), up = random_plain(type, rows_of_w, w_in);
    act_buf x = random_act(n_row, n_in), want = act_take(n_row, n_out, true, n_out % 32 == 0);
    linear_case c = {type, rows_of_w, w_in, out0, n_out, 0, n_in, n_row, false, 1, &one_leaf};
    buf g = expected_case(&c, gate, &x.act, (buf){0}, n_out);
    buf u = expected_case(&c, up, &x.act, (buf){0}, n_out);
    for (int32_t i = 0; i < n_row * n_out; i++)
        buf_floats(want.f32)[i] = reference_glu(&rule, buf_floats(g)[i], buf_floats(u)[i]);
    if (q8)
        act_quantise(&want.act, n_row);
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        const kern_table *t = table_of(isa);
        kern_dev *dev = dev_open(t, 1 + n_row % 3);
        kern_weight gate_w, up_w;
        buf gate_buf = packed(t, type, rows_of_w, w_in, gate, &gate_w);
        buf up_buf = packed(t, type, rows_of_w, w_in, up, &up_w);
        act_buf out = act_take(n_row, n_out, f32, q8);
        kern_swiglu p = {x.act, n_row, &gate_w, &up_w, out0, n_out, rule, out.act};
        t->swiglu(dev, &p);
        if (f32)
            assert_same_floats(buf_floats(out.f32), buf_floats(want.f32), out.f32.bytes / 4,
                               "swiglu f32");
        if (q8)
            assert_memory_equal(buf_at(out.q8), buf_at(want.q8), out.q8.bytes);
        act_free(out);
        buf_free(gate_buf);
        buf_free(up_buf);
        t->close(dev);
    }
    buf_free(g);
    buf_free(u);
    buf_free(gate);
    buf_free(up);
    act_free(x);
    act_free(want);
}

static void swiglu(void **state) {
    (void)state;
    for (int32_t i = 0; i < N_TYPE; i++) {
        for (int32_t n_row = 1; n_row <= 13; n_row += 2) {
            check_swiglu(all_types[i], 96, 160, 0, n_row, true, true);
            check_swiglu(all_types[i], 32, 96, 48, n_row, false, true);
        }
        check_swiglu(all_types[i], 64, 48, 16, 5, true, false);
        check_swiglu(all_types[i], 96, 160, 16, 99, true, true);
        check_swiglu(all_types[i], 64, 75, 0, 2, true, false);
    }
    check_swiglu(DTYPE_F32, 37, 41, 0, 9, true, false);
}

/* The same of the types with planes of bits. */
static void block_layout(dtype type, size_t panel, const uint8_t *p, const uint8_t *row5) {
    switch (type) {
    case DTYPE_Q5_1: /* column 54: bit 22 of 4 bytes; quad 5 = 1 + 4: bit 4 + 1 of the byte */
        assert_int_equal(panel, 3 * 320 + 192);
        assert_int_equal(p[320 + 86], row5[24 + 8 + 6]);
        assert_int_equal(p[320 + 256 + 22] >> 5 & 1, row5[24 + 4 + 2] >> 6 & 1);
        assert_memory_equal(p + 3 * 320 + 64 + 32 + 10, row5 + 24 + 2, 2);
        break;
    case DTYPE_Q2_K: /* column 54: group 3 of the block, line 0, bits 2 + 4 */
        assert_int_equal(panel, 8 * 128 + 64 + 8 * 32);
        assert_int_equal(p[128 + 22] >> 6 & 3, row5[16 + 22] >> 2 & 3);
        assert_memory_equal(p + 8 * 128 + 10, row5 + 80, 2);
        assert_int_equal(p[8 * 128 + 32 + 11], row5[83] ^ 0x80);
        assert_int_equal(p[8 * 128 + 64 + 32 + 16 + 5], row5[3]);
        break;
    case DTYPE_Q6_K: /* column 54: low nibble of byte 54, bits 2 and 3 of byte 22 above */
        assert_int_equal(panel, 8 * 384 + 320);
        assert_int_equal(p[384 + 86] >> 4, row5[54] & 15);
        assert_int_equal(p[384 + 256 + 22] >> 6 & 3, row5[128 + 22] >> 2 & 3);
        assert_memory_equal(p + 8 * 384 + 10, row5 + 208, 2);
        assert_int_equal(p[8 * 384 + 32 + 32 + 16 + 5], row5[192 + 3]);
        break;
    case DTYPE_Q4_K: /* column 54: high nibble of byte 22 */
        assert_int_equal(panel, 8 * 256 + 320);
        assert_int_equal(p[256 + 86] >> 4, row5[16 + 22] >> 4);
        assert_int_equal(p[8 * 256 + 64 + 32 + 5], row5[4 + 1] & 63);
        assert_int_equal(p[8 * 256 + 64 + 32 + 16 + 5], row5[4 + 5] & 63);
        break;
    case DTYPE_MXFP4:
        assert_int_equal(panel, 3 * 256 + 64);
        assert_int_equal(p[256 + 86], row5[17 + 1 + 6]);
        assert_int_equal(p[3 * 256 + 16 + 5], row5[17]);
        break;
    default:
        break;
    }
}

/* The worked indices of docs/packed-layouts.md. */
static void packed_layouts(void **state) {
    (void)state;
    const kern_table *t = table_of(0);
    int32_t n_out = 21;
    kern_weight w;
    for (int32_t i = 0; i < N_TYPE; i++) {
        dtype type = all_types[i];
        int32_t n_in = whole_blocks(type, 96);
        buf plain = random_plain(type, n_out, n_in);
        buf b = packed(t, type, n_out, n_in, plain, &w);
        size_t panel = b.bytes / 2;
        const uint8_t *p = buf_at(b), *src = buf_at(plain);
        assert_int_equal(b.bytes % 128, 0);
        /* output 5 of panel 0, column 32 + 22; output 4 of panel 1, column 1 */
        const uint8_t *row5 = src + 5 * dtype_bytes(dtype_find(type), n_in);
        const uint8_t *row20 = src + 20 * dtype_bytes(dtype_find(type), n_in);
        switch (type) {
        case DTYPE_F32:
            assert_int_equal(panel, 96 * 64);
            assert_memory_equal(p + 54 * 64 + 20, row5 + 54 * 4, 4);
            assert_memory_equal(p + panel + 64 + 16, row20 + 4, 4);
            break;
        case DTYPE_F16:
            assert_int_equal(panel, 96 * 32);
            assert_memory_equal(p + 54 * 32 + 10, row5 + 54 * 2, 2);
            assert_memory_equal(p + panel + 32 + 8, row20 + 2, 2);
            break;
        case DTYPE_BF16:
            assert_int_equal(panel, 48 * 64);
            assert_memory_equal(p + 27 * 64 + 20, row5 + 54 * 2, 2);
            assert_memory_equal(p + panel + 16 + 2, row20 + 2, 2);
            break;
        case DTYPE_Q4_0:
            assert_int_equal(panel, 3 * 256 + 128);
            assert_int_equal(p[256 + 86] >> 4, row5[18 + 2 + 6] >> 4);
            assert_int_equal(p[256 + 86] & 15, row5[18 + 2 + 6] & 15);
            assert_memory_equal(p + 3 * 256 + 32 + 10, row5 + 18, 2);
            assert_int_equal(p[panel + 4 * 5], 0x88);
            break;
        case DTYPE_Q4_1:
            assert_int_equal(panel, 3 * 256 + 192);
            assert_int_equal(p[256 + 86], row5[20 + 4 + 6]);
            assert_memory_equal(p + 3 * 256 + 64 + 10, row5 + 20, 2);
            assert_memory_equal(p + 3 * 256 + 64 + 32 + 10, row5 + 22, 2);
            assert_int_equal(p[panel + 4 * 5], 0);
            break;
        case DTYPE_Q8_0:
            assert_int_equal(panel, 3 * 512 + 128);
            assert_int_equal(p[512 + 342], row5[34 + 2 + 22] ^ 0x80);
            assert_memory_equal(p + 3 * 512 + 32 + 10, row5 + 34, 2);
            assert_int_equal(p[panel + 4 * 5], 0x80);
            break;
        default:
            block_layout(type, panel, p, row5);
            break;
        }
        buf_free(plain);
        buf_free(b);
    }
}

/* Packing in pieces, as loading threads do it, writes the same bytes. */
static void packing_in_pieces(void **state) {
    (void)state;
    const kern_table *t = table_of(0);
    for (int32_t i = 0; i < N_TYPE; i++) {
        int32_t n_in = whole_blocks(all_types[i], 64);
        buf plain = random_plain(all_types[i], 75, n_in);
        kern_weight w;
        buf whole = packed(t, all_types[i], 75, n_in, plain, &w);
        buf pieces = buf_take(whole.bytes);
        w.data = pieces.mem;
        t->pack(buf_at(plain), 48, 27, &w);
        t->pack(buf_at(plain), 0, 16, &w);
        t->pack(buf_at(plain), 16, 32, &w);
        assert_memory_equal(buf_at(pieces), buf_at(whole), whole.bytes);
        buf_free(whole);
        buf_free(pieces);
        buf_free(plain);
    }
}

/* Outputs in groups, each with columns of its own: what one call per group gives. */
static void check_groups(dtype type, int32_t group_out, int32_t n_group, int32_t group0,
                         int32_t n_row, int32_t n_thread) {
    int32_t n_in = whole_blocks(type, 64), n_out = group_out * n_group, out0 = group_out * group0,
            y_stride = n_out + 7;
    buf plain = random_plain(type, out0 + n_out, n_in);
    act_buf x = random_act(n_row, n_in * n_group);
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        const kern_table *t = table_of(isa);
        kern_dev *dev = dev_open(t, n_thread);
        kern_weight w;
        buf w_buf = packed(t, type, out0 + n_out, n_in, plain, &w);
        buf y = buf_take((size_t)(n_row * y_stride) * 4);
        kern_linear p = {.x = x.act, .n_row = n_row, .n_in = n_in, .n_part = 1};
        p.part[0] = (kern_linear_part){&w, out0, n_out, {0}, y.mem, y_stride};
        p.tree = &one_leaf;
        p.leaf_in = n_in;
        p.group_out = group_out;
        t->linear(dev, &p);
        size_t row_bytes = dtype_bytes(dtype_find(type), n_in);
        for (int32_t r = 0; r < n_row; r++)
            for (int32_t o = 0; o < y_stride; o++) {
                const uint8_t *w_row =
                    (const uint8_t *)buf_at(plain) + (size_t)(out0 + o) * row_bytes;
                uint32_t got = bits_of(buf_floats(y)[r * y_stride + o]);
                if (o >= n_out)
                    assert_int_equal(got, 0xA5A5A5A5u);
                else
                    assert_int_equal(got, bits_of(reference_leaf(type, w_row, 0, &x.act, r,
                                                                 o / group_out * n_in, n_in)));
            }
        t->close(dev);
        buf_free(w_buf);
        buf_free(y);
    }
    act_free(x);
    buf_free(plain);
}

static void groups(void **state) {
    (void)state;
    static const int32_t widths[] = {16, 48, 64, 80}, row_counts[] = {1, 3, 8, 125};
    for (int32_t i = 0; i < N_TYPE; i++)
        for (int32_t j = 0; j < 4; j++) {
            int32_t k = (i + j) % 4;
            check_groups(all_types[i], widths[j], 1 + (i + k) % 4, j % 2, row_counts[k],
                         1 + (j + k) % 3);
        }
}

static void no_rows(void **state) {
    (void)state;
    const kern_table *t = table_of(0);
    kern_dev *dev = dev_open(t, 2);
    t->linear(dev, &(kern_linear){.n_part = 1});
    t->swiglu(dev, &(kern_swiglu){0});
    t->glu(dev, &(kern_glu){0});
    t->act_make(dev, &(kern_act_make){0});
    t->softcap(dev, &(kern_softcap){.cap = 1.0f});
    t->reduce_norm(dev, &(kern_reduce_norm){0});
    t->embed(dev, &(kern_embed){0});
    t->pick(dev, &(kern_pick){0});
    t->close(dev);
}

/* A TP rank may own no panel of a vocabulary that is smaller than tp panels, whatever the rows. */
static void no_outputs(void **state) {
    (void)state;
    buf plain = random_plain(DTYPE_F32, 16, 32);
    act_buf x = random_act(40, 32);
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        const kern_table *t = table_of(isa);
        kern_dev *dev = dev_open(t, 2);
        kern_weight w;
        buf w_buf = packed(t, DTYPE_F32, 16, 32, plain, &w);
        for (int32_t n_row = 1; n_row <= 40; n_row += 13) {
            buf y = buf_take(0);
            t->linear(dev, &(kern_linear){.x = x.act,
                                          .n_row = n_row,
                                          .n_in = 32,
                                          .n_part = 1,
                                          .part = {{&w, 0, 0, {0}, y.mem, 0}},
                                          .tree = &one_leaf,
                                          .leaf_in = 32});
            buf_free(y);
        }
        t->close(dev);
        buf_free(w_buf);
    }
    act_free(x);
    buf_free(plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_layouts), cmocka_unit_test(packing_in_pieces),
        cmocka_unit_test(shapes),         cmocka_unit_test(every_row_count),
        cmocka_unit_test(many_rows),      cmocka_unit_test(odd_widths_of_float_types),
        cmocka_unit_test(leaves),         cmocka_unit_test(operands_out_of_order),
        cmocka_unit_test(deepest_tree),   cmocka_unit_test(extremes),
        cmocka_unit_test(saturation),     cmocka_unit_test(float_extremes),
        cmocka_unit_test(non_finite_row), cmocka_unit_test(row_independence),
        cmocka_unit_test(thread_counts),  cmocka_unit_test(parts),
        cmocka_unit_test(accuracy),       cmocka_unit_test(cuts_of_k),
        cmocka_unit_test(swiglu),         cmocka_unit_test(no_rows),
        cmocka_unit_test(no_outputs),     cmocka_unit_test(groups),
    };
    isa_print_absent();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
