/* Mixtures of experts on every level: the slots through their experts against dense scalar
 * operations, one row and one expert at a time; the sum of a token's slots; cuts and batches, which
 * no bit may show. */
#include <math.h>

#include "route_case.h"
#include "tensor/tree.h"

static const tree_prog one_leaf = {2, 1, 1, {0, TREE_EMIT}};

/* ---- the slots through their experts ---- */

typedef struct moe_case {
    dtype gate_type, down_type;
    int32_t hidden, leaf_in, n_leaf; /* ffn = leaf_in * n_leaf */
    int32_t n_expert, n_used, n_row;
    kern_glu_rule rule;
    bool bias;
    bool mixed; /* up is of a type that reads the other form of x */
} moe_case;

/* Which part of a case: leaves [lo, hi), and the table, level and threads that do it. */
typedef struct moe_run {
    int32_t isa, n_thread, lo, hi;
} moe_run;

typedef struct moe_world {
    const moe_case *c;
    int32_t ffn;
    buf gate, up, down; /* plain, [n_expert] */
    act_buf gate_bias, up_bias, down_bias;
    act_buf x;
    buf expert, weight;
} moe_world;

static bool is_quantised(dtype type) {
    return dtype_find(type)->quantised;
}

static dtype up_type(const moe_case *c) {
    if (!c->mixed)
        return c->gate_type;
    return is_quantised(c->gate_type) ? DTYPE_F16 : DTYPE_Q8_0;
}

static size_t slot_count(const moe_case *c) {
    return (size_t)(c->n_row * c->n_used);
}

/* n_used different experts, ascending. Expert 1 is nobody's where others suffice, the last one a
 * favourite. */
static void random_slots(const moe_case *c, int32_t *expert) {
    bool spare = c->n_expert > c->n_used;
    for (int32_t r = 0; r < c->n_row; r++) {
        bool taken[KERN_MAX_EXPERT] = {false};
        for (int32_t n = 0; n < c->n_used;) {
            int32_t e = rng_below(3) ? rng_below(c->n_expert) : c->n_expert - 1;
            if (taken[e] || (e == 1 && spare))
                continue;
            taken[e] = true;
            n++;
        }
        for (int32_t e = 0; e < c->n_expert; e++)
            if (taken[e])
                *expert++ = e;
    }
}

static moe_world world_make(const moe_case *c) {
    moe_world w = {.c = c, .ffn = c->leaf_in * c->n_leaf};
    w.gate = random_plain(c->gate_type, c->n_expert * w.ffn, c->hidden);
    w.up = random_plain(up_type(c), c->n_expert * w.ffn, c->hidden);
    w.down = random_plain(c->down_type, c->n_expert * c->hidden, w.ffn);
    w.gate_bias = random_act(c->n_expert, w.ffn);
    w.up_bias = random_act(c->n_expert, w.ffn);
    w.down_bias = random_act(c->n_expert, c->hidden);
    w.x = random_act(c->n_row, c->hidden);
    w.expert = buf_take(slot_count(c) * 4);
    w.weight = buf_take(slot_count(c) * 4);
    random_slots(c, buf_at(w.expert));
    for (size_t i = 0; i < slot_count(c); i++)
        buf_floats(w.weight)[i] = rng_float();
    return w;
}

static void world_free(moe_world w) {
    buf_free(w.gate);
    buf_free(w.up);
    buf_free(w.down);
    act_free(w.gate_bias);
    act_free(w.up_bias);
    act_free(w.down_bias);
    act_free(w.x);
    buf_free(w.expert);
    buf_free(w.weight);
}

/* All experts, each packed by itself; *w describes expert 0. */
static buf packed_experts(const kern_table *t, dtype type, int32_t n_expert, int32_t n_out,
                          int32_t n_in, buf plain, kern_weight *w) {
    size_t bytes = t->packed_bytes(type, n_out, n_in);
    size_t plain_bytes = (size_t)n_out * dtype_bytes(dtype_find(type), n_in);
    buf b = buf_take((size_t)n_expert * bytes);
    for (int32_t e = 0; e < n_expert; e++) {
        kern_weight one = {type, n_out, n_in, kern_at(b.mem, (size_t)e * bytes)};
        t->pack((const uint8_t *)buf_at(plain) + (size_t)e * plain_bytes, 0, n_out, &one);
    }
    *w = (kern_weight){type, n_out, n_in, b.mem};
    return b;
}

/* The nodes of all slots, [emit][slot][hidden]; x_row as in kern_experts. */
static buf run_experts_of(const moe_world *w, const moe_run *run, kern_mem x_row) {
    const moe_case *c = w->c;
    const kern_table *t = table_of(run->isa);
    kern_dev *dev = dev_open(t, run->n_thread);
    kern_weight gate, up, down;
    buf gate_buf = packed_experts(t, c->gate_type, c->n_expert, w->ffn, c->hidden, w->gate, &gate);
    buf up_buf = packed_experts(t, up_type(c), c->n_expert, w->ffn, c->hidden, w->up, &up);
    buf down_buf = packed_experts(t, c->down_type, c->n_expert, c->hidden, w->ffn, w->down, &down);
    tree_prog tree;
    tree_cover(c->n_leaf, run->lo, run->hi, &tree);
    int32_t n_slot = (int32_t)slot_count(c), n_in = (run->hi - run->lo) * c->leaf_in;
    bool x_q8 = is_quantised(c->gate_type), inner_q8 = is_quantised(c->down_type);
    act_buf sorted = act_take(n_slot, c->hidden, !x_q8 || c->mixed, x_q8 || c->mixed);
    act_buf inner = act_take(n_slot, n_in, !inner_q8, inner_q8);
    buf order = buf_take((size_t)(n_slot + c->n_expert) * 4);
    size_t node_bytes = (size_t)n_slot * (size_t)c->hidden * 4;
    buf nodes = buf_take((size_t)tree.n_emit * node_bytes);
    kern_experts p = {.x = w->x.act,
                      .n_row = c->n_row,
                      .n_expert = c->n_expert,
                      .n_used = c->n_used,
                      .expert = w->expert.mem,
                      .x_row = x_row,
                      .gate = &gate,
                      .up = &up,
                      .down = &down,
                      .gate_bias = c->bias ? w->gate_bias.f32.mem : (kern_mem){0},
                      .up_bias = c->bias ? w->up_bias.f32.mem : (kern_mem){0},
                      .rule = c->rule,
                      .in0 = run->lo * c->leaf_in,
                      .n_in = n_in,
                      .tree = &tree,
                      .leaf_in = c->leaf_in,
                      .sorted = sorted.act,
                      .inner = inner.act,
                      .order = order.mem,
                      .nodes = nodes.mem,
                      .node_bytes = node_bytes};
    t->experts(dev, &p);
    t->close(dev);
    buf_free(gate_buf);
    buf_free(up_buf);
    buf_free(down_buf);
    act_free(sorted);
    act_free(inner);
    buf_free(order);
    return nodes;
}

static buf run_experts(const moe_world *w, const moe_run *run) {
    return run_experts_of(w, run, (kern_mem){0});
}

/* y = weight of rows [e n_out, (e + 1) n_out) of `plain` . x, one row, by the dense scalar
 * operation. */
static void dense(kern_dev *dev, dtype type, int32_t e, int32_t n_out, int32_t n_in, buf plain,
                  const kern_linear *shape, kern_mem bias, kern_mem y) {
    const kern_table *t = table_of(0);
    kern_weight w = {type, n_out, n_in, {0}};
    buf b = buf_take(t->packed_bytes(type, n_out, n_in));
    w.data = b.mem;
    size_t row_bytes = dtype_bytes(dtype_find(type), n_in);
    t->pack((const uint8_t *)buf_at(plain) + (size_t)e * (size_t)n_out * row_bytes, 0, n_out, &w);
    kern_linear p = *shape;
    p.n_row = p.n_part = 1;
    p.part[0] = (kern_linear_part){&w, 0, n_out, bias, y, n_out};
    t->linear(dev, &p);
    buf_free(b);
}

static kern_act row_of(const kern_act *act, int32_t r) {
    kern_act a = *act;
    a.f32 = kern_at(a.f32, (size_t)r * (size_t)a.k * 4);
    if (a.q8.at)
        a.q8 = kern_at(a.q8, (size_t)r * kern_act_q8_bytes(a.k));
    return a;
}

/* One slot, all leaves of [lo, hi): [emit][hidden] to `node`. */
static void reference_slot(const moe_world *w, const moe_run *run, kern_dev *dev, int32_t slot,
                           float *node) {
    const moe_case *c = w->c;
    int32_t e = ((const int32_t *)buf_at(w->expert))[slot];
    int32_t n_in = (run->hi - run->lo) * c->leaf_in, in0 = run->lo * c->leaf_in;
    size_t bias_at = (size_t)e * (size_t)w->ffn * 4;
    kern_mem gate_bias = c->bias ? kern_at(w->gate_bias.f32.mem, bias_at) : (kern_mem){0};
    kern_mem up_bias = c->bias ? kern_at(w->up_bias.f32.mem, bias_at) : (kern_mem){0};
    kern_linear first = {.x = row_of(&w->x.act, slot / c->n_used), .n_in = c->hidden};
    first.tree = &one_leaf;
    first.leaf_in = c->hidden;
    buf g = buf_take((size_t)w->ffn * 4), u = buf_take((size_t)w->ffn * 4);
    dense(dev, c->gate_type, e, w->ffn, c->hidden, w->gate, &first, gate_bias, g.mem);
    dense(dev, up_type(c), e, w->ffn, c->hidden, w->up, &first, up_bias, u.mem);
    act_buf inner = act_take(1, n_in, true, is_quantised(c->down_type));
    for (int32_t j = 0; j < n_in; j++)
        buf_floats(inner.f32)[j] =
            reference_glu(&c->rule, buf_floats(g)[in0 + j], buf_floats(u)[in0 + j]);
    if (inner.act.q8.at)
        act_quantise(&inner.act, 1);
    tree_prog tree;
    tree_cover(c->n_leaf, run->lo, run->hi, &tree);
    kern_linear second = {.x = inner.act, .in0 = in0, .n_in = n_in, .tree = &tree};
    second.leaf_in = c->leaf_in;
    second.node_bytes = (size_t)c->hidden * 4;
    dense(dev, c->down_type, e, c->hidden, w->ffn, w->down, &second, (kern_mem){0},
          (kern_mem){(uintptr_t)node});
    buf_free(g);
    buf_free(u);
    act_free(inner);
}

static buf reference_experts(const moe_world *w, const moe_run *run) {
    const moe_case *c = w->c;
    tree_prog tree;
    tree_cover(c->n_leaf, run->lo, run->hi, &tree);
    size_t hidden = (size_t)c->hidden, n_slot = slot_count(c);
    buf nodes = buf_take((size_t)tree.n_emit * n_slot * hidden * 4);
    buf one = buf_take((size_t)tree.n_emit * hidden * 4);
    kern_dev *dev = dev_open(table_of(0), 1);
    for (size_t i = 0; i < n_slot; i++) {
        reference_slot(w, run, dev, (int32_t)i, buf_floats(one));
        for (size_t e = 0; e < (size_t)tree.n_emit; e++)
            memcpy(buf_floats(nodes) + (e * n_slot + i) * hidden, buf_floats(one) + e * hidden,
                   hidden * 4);
    }
    table_of(0)->close(dev);
    buf_free(one);
    return nodes;
}

static void check_experts(const moe_case *c, int32_t lo, int32_t hi, int32_t n_thread) {
    moe_world w = world_make(c);
    moe_run run = {0, 1, lo, hi};
    buf want = reference_experts(&w, &run);
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        buf got = run_experts(&w, &(moe_run){isa, n_thread, lo, hi});
        char what[160];
        snprintf(what, sizeof what, "%s %s/%s hidden %d leaves %d..%d x %d experts %d/%d rows %d",
                 isa_at(isa)->name, dtype_find(c->gate_type)->name, dtype_find(c->down_type)->name,
                 c->hidden, lo, hi, c->leaf_in, c->n_used, c->n_expert, c->n_row);
        assert_same_floats(buf_floats(got), buf_floats(want), want.bytes / 4, what);
        buf_free(got);
    }
    buf_free(want);
    world_free(w);
}

static const dtype all_types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16,
                                  DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q8_0};
enum { N_TYPE = 6 };

/* Every type for gate and up with every type for down. */
static void experts_types(void **state) {
    (void)state;
    for (int32_t i = 0; i < N_TYPE; i++)
        for (int32_t j = 0; j < N_TYPE; j++)
            check_experts(&(moe_case){all_types[i], all_types[j], 64, 32, 3, 5, 2, 1 + i + 3 * j,
                                      all_rules[(i + j) % 3], i % 2 == j % 2, j % 3 == 1},
                          0, 3, 1 + (i + j) % 3);
}

/* Types with blocks longer than a leaf, each for gate and up and each for down. */
static void experts_long_blocks(void **state) {
    (void)state;
    static const dtype types[] = {DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q2_K,   DTYPE_Q3_K,   DTYPE_Q4_K,
                                  DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
    enum { N = sizeof types / sizeof types[0] };
    for (int32_t i = 0; i < N; i++)
        check_experts(&(moe_case){types[i], types[(i + 3) % N], 256, 64, 4, 3, 2, 1 + 2 * i,
                                  all_rules[i % 3], i % 2, i % 4 == 1},
                      i % 3, 4, 1 + i % 3);
}

/* Widths that fill no panel, so that experts end inside one. */
static void experts_odd_widths(void **state) {
    (void)state;
    for (int32_t i = 0; i < 3; i++) {
        check_experts(&(moe_case){all_types[i], all_types[(i + 1) % 3], 37, 21, 1, 4, 3, 9,
                                  all_rules[i], true, false},
                      0, 1, 2);
        check_experts(
            &(moe_case){all_types[i], DTYPE_Q4_0, 45, 32, 2, 7, 2, 5, all_rules[i], false, false},
            0, 2, 1 + i);
        check_experts(
            &(moe_case){DTYPE_Q8_0, all_types[i], 96, 8, 6, 3, 1, 11, all_rules[i], true, false}, 2,
            6, 2);
    }
}

/* One row with some experts, many rows with few, few rows with many; every count of used experts.
 */
static void experts_shapes(void **state) {
    (void)state;
    for (int32_t n_used = 1; n_used <= 8; n_used++) {
        check_experts(&(moe_case){DTYPE_Q4_0, DTYPE_Q4_1, 96, 32, 4, 8, n_used, 1, all_rules[0],
                                  false, false},
                      0, 4, 1 + n_used % 3);
        check_experts(&(moe_case){DTYPE_Q4_1, DTYPE_Q8_0, 32, 32, 2, 40, n_used, 7 * n_used,
                                  all_rules[1], true, false},
                      0, 2, 3);
    }
    check_experts(
        &(moe_case){DTYPE_Q4_0, DTYPE_Q4_0, 64, 32, 1, 2, 1, 230, all_rules[0], false, false}, 0, 1,
        3);
    check_experts(&(moe_case){DTYPE_F32, DTYPE_F32, 20, 32, 1, 3, 3, 70, all_rules[2], true, false},
                  0, 1, 2);
}

/* Every contiguous part of the leaves, as TP ranks have them. */
static void experts_leaves(void **state) {
    (void)state;
    for (int32_t lo = 0; lo < 6; lo++)
        for (int32_t hi = lo + 1; hi <= 6; hi++)
            check_experts(&(moe_case){DTYPE_Q4_0, lo % 2 ? DTYPE_BF16 : DTYPE_Q8_0, 32, 32, 6, 4, 2,
                                      3, all_rules[0], hi % 2, false},
                          lo, hi, 1 + hi % 2);
}

/* A row that is not finite makes its own slots NaN, and no other. */
static void experts_non_finite_row(void **state) {
    (void)state;
    moe_case c = {DTYPE_Q4_0, DTYPE_Q4_0, 64, 32, 2, 4, 2, 9, all_rules[0], false, false};
    moe_world w = world_make(&c);
    buf_floats(w.x.f32)[4 * c.hidden + 7] = NAN;
    cpu_act_write_row(&cpu_linear_scalar, &w.x.act, 4, buf_floats(w.x.f32) + 4 * c.hidden);
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        buf nodes = run_experts(&w, &(moe_run){isa, 2, 0, 2});
        for (int32_t i = 0; i < c.n_row * c.n_used * c.hidden; i++)
            if (i / c.hidden / c.n_used == 4)
                assert_int_equal(bits_of(buf_floats(nodes)[i]), 0xFFC00000u);
            else
                assert_true(isfinite(buf_floats(nodes)[i]));
        buf_free(nodes);
    }
    world_free(w);
}

/* ---- the sum of a token's slots ---- */

/* Nodes lie backwards, so that node_off is needed. */
static void offsets(const tree_prog *tree, size_t node_bytes, size_t *off) {
    for (int32_t i = 0; i < tree->n_push; i++)
        off[i] = (size_t)(tree->n_push - 1 - i) * node_bytes;
}

static float reference_root(const tree_prog *tree, buf nodes, const size_t *off, int32_t at) {
    float stack[TREE_MAX_LEAF];
    int32_t depth = 0;
    for (int32_t i = 0; i < tree->n_op; i++) {
        if (tree->op[i] >= 0) {
            const void *node = (const uint8_t *)buf_at(nodes) + off[tree->op[i]];
            stack[depth++] = ((const float *)node)[at];
        } else if (tree->op[i] == TREE_ADD) {
            depth--;
            stack[depth - 1] = stack[depth - 1] + stack[depth];
        }
    }
    return stack[0];
}

static void check_sum(int32_t hidden, int32_t n_row, int32_t n_used, int32_t n_leaf, bool bias,
                      int32_t n_shared, int32_t n_thread) {
    enum { N_EXPERT = 11 };
    tree_prog tree, shared;
    tree_cover(n_leaf, 0, n_leaf, &tree);
    tree_cover(n_shared ? n_shared : 1, 0, n_shared ? n_shared : 1, &shared);
    size_t row = (size_t)hidden * 4, off[TREE_MAX_LEAF], shared_off[TREE_MAX_LEAF];
    offsets(&tree, (size_t)(n_row * n_used) * row, off);
    offsets(&shared, (size_t)n_row * row, shared_off);
    act_buf nodes = random_act(n_leaf * n_row * n_used, hidden);
    act_buf shared_nodes = random_act(shared.n_push * n_row, hidden);
    act_buf down_bias = random_act(N_EXPERT, hidden), weight = random_act(n_row, n_used);
    moe_case c = {.n_expert = N_EXPERT, .n_used = n_used, .n_row = n_row};
    buf expert = buf_take(slot_count(&c) * 4), want = buf_take((size_t)n_row * row);
    random_slots(&c, buf_at(expert));
    for (int32_t i = 0; i < n_row * hidden; i++) {
        float y = 0;
        for (int32_t s = i / hidden * n_used; s < (i / hidden + 1) * n_used; s++) {
            float t = reference_root(&tree, nodes.f32, off, s * hidden + i % hidden);
            if (bias)
                t = t +
                    buf_floats(down_bias.f32)[((int32_t *)buf_at(expert))[s] * hidden + i % hidden];
            y = fmaf(buf_floats(weight.f32)[s], t, y);
        }
        if (n_shared)
            y = y + reference_root(&shared, shared_nodes.f32, shared_off, i);
        buf_floats(want)[i] = y;
    }
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        const kern_table *t = table_of(isa);
        kern_dev *dev = dev_open(t, n_thread);
        buf y = buf_take((size_t)n_row * row);
        t->moe_sum(dev, &(kern_moe_sum){.n_row = n_row,
                                        .n_used = n_used,
                                        .hidden = hidden,
                                        .tree = &tree,
                                        .nodes = nodes.f32.mem,
                                        .node_off = off,
                                        .expert = expert.mem,
                                        .weight = weight.f32.mem,
                                        .down_bias = bias ? down_bias.f32.mem : (kern_mem){0},
                                        .shared_tree = n_shared ? &shared : NULL,
                                        .shared_nodes = shared_nodes.f32.mem,
                                        .shared_off = shared_off,
                                        .y = y.mem});
        assert_same_floats(buf_floats(y), buf_floats(want), y.bytes / 4, "moe_sum");
        t->close(dev);
        buf_free(y);
    }
    act_free(nodes);
    act_free(shared_nodes);
    act_free(down_bias);
    act_free(weight);
    buf_free(expert);
    buf_free(want);
}

static void moe_sum(void **state) {
    (void)state;
    static const int32_t widths[] = {1, 37, 512, 515, 1100};
    for (int32_t i = 0; i < 5; i++)
        for (int32_t n_used = 1; n_used <= 8; n_used++)
            check_sum(widths[i], 1 + (i + n_used) % 4, n_used, 1 + (i * n_used) % 7, n_used % 2,
                      (i + n_used) % 3, 1 + n_used % 3);
}

/* ---- all of it: cuts and batches ---- */

static buf run_sum_placed(const moe_world *w, const moe_run *run, buf nodes, const tree_prog *tree,
                          const size_t *off, kern_mem place) {
    const moe_case *c = w->c;
    const kern_table *t = table_of(run->isa);
    kern_dev *dev = dev_open(t, run->n_thread);
    buf y = buf_take((size_t)(c->n_row * c->hidden) * 4);
    t->moe_sum(dev, &(kern_moe_sum){.n_row = c->n_row,
                                    .n_used = c->n_used,
                                    .hidden = c->hidden,
                                    .tree = tree,
                                    .nodes = nodes.mem,
                                    .node_off = off,
                                    .place = place,
                                    .expert = w->expert.mem,
                                    .weight = w->weight.mem,
                                    .down_bias = w->down_bias.f32.mem,
                                    .y = y.mem});
    t->close(dev);
    return y;
}

static buf run_sum(const moe_world *w, const moe_run *run, buf nodes, const tree_prog *tree,
                   const size_t *off) {
    return run_sum_placed(w, run, nodes, tree, off, (kern_mem){0});
}

/* Leaves [0, cut) on one rank, the rest on another; nodes behind each other, as gathered. */
static buf run_cut(const moe_world *w, int32_t isa, int32_t cut_at) {
    int32_t cut[3] = {0, cut_at, w->c->n_leaf};
    size_t node_bytes = slot_count(w->c) * (size_t)w->c->hidden * 4, off[TREE_MAX_LEAF], at = 0;
    buf nodes = buf_take(TREE_MAX_DEPTH * node_bytes);
    for (int32_t rank = 0; rank < 2; rank++) {
        if (cut[rank] == cut[rank + 1])
            continue;
        buf part = run_experts(w, &(moe_run){isa, 1 + rank, cut[rank], cut[rank + 1]});
        memcpy((uint8_t *)buf_at(nodes) + at, buf_at(part), part.bytes);
        at += part.bytes;
        buf_free(part);
    }
    tree_prog rest;
    tree_finish(w->c->n_leaf, cut, 2, &rest);
    assert_int_equal((size_t)rest.n_push * node_bytes, at);
    for (int32_t i = 0; i < rest.n_push; i++)
        off[i] = (size_t)i * node_bytes;
    buf y = run_sum(w, &(moe_run){isa, 2, 0, 0}, nodes, &rest, off);
    buf_free(nodes);
    return y;
}

static void cuts_of_ffn(void **state) {
    (void)state;
    for (int32_t i = 0; i < N_TYPE; i++) {
        moe_case c = {
            all_types[i], all_types[(i + 2) % N_TYPE], 64, 32, 6, 5, 2, 4, all_rules[i % 3], true,
            false};
        moe_world w = world_make(&c);
        buf whole = run_cut(&w, 0, 0);
        for (int32_t isa = 0; isa < isa_count(); isa++)
            for (int32_t cut = 0; cut <= c.n_leaf; cut++) {
                buf y = run_cut(&w, isa, cut);
                assert_same_floats(buf_floats(y), buf_floats(whole), y.bytes / 4, "cut of ffn");
                buf_free(y);
            }
        buf_free(whole);
        world_free(w);
    }
}

/* ---- whole experts on ranks ---- */

/* w with the experts [lo, hi) alone, and slots of `expert` for them. */
static moe_world part_of(const moe_world *w, moe_case *c, int32_t lo, int32_t hi, buf expert) {
    moe_world part = *w;
    size_t gate = (size_t)w->ffn * dtype_bytes(dtype_find(c->gate_type), c->hidden);
    size_t up = (size_t)w->ffn * dtype_bytes(dtype_find(up_type(c)), c->hidden);
    size_t down = (size_t)c->hidden * dtype_bytes(dtype_find(c->down_type), w->ffn);
    part.gate.mem = kern_at(w->gate.mem, (size_t)lo * gate);
    part.up.mem = kern_at(w->up.mem, (size_t)lo * up);
    part.down.mem = kern_at(w->down.mem, (size_t)lo * down);
    part.gate_bias.f32.mem = kern_at(w->gate_bias.f32.mem, (size_t)(lo * w->ffn) * 4);
    part.up_bias.f32.mem = kern_at(w->up_bias.f32.mem, (size_t)(lo * w->ffn) * 4);
    part.expert = expert;
    c->n_expert = hi - lo;
    part.c = c;
    return part;
}

/* Outputs of all slots, in the order in which kern_dispatch sends them; *place: where each is. */
static buf run_ranks(const moe_world *w, int32_t isa, int32_t n_rank, buf *place) {
    const moe_case *c = w->c;
    const kern_table *t = table_of(isa);
    kern_dev *dev = dev_open(t, 2);
    size_t n = slot_count(c), output = (size_t)c->hidden * 4;
    int32_t cut[9], count[8][2];
    for (int32_t m = 0; m <= n_rank; m++)
        cut[m] = m * c->n_expert / n_rank;
    buf row = buf_take(n * 4), slot = buf_take(n * 4), made = buf_take(n * output);
    *place = buf_take(n * 4);
    t->dispatch(dev, &(kern_dispatch){c->n_row, c->n_used, n_rank, cut, w->expert.mem, row.mem,
                                      slot.mem, place->mem, &count[0][0]});
    for (int32_t m = 0, rows = 0, slots = 0; m < n_rank; m++) {
        size_t k = (size_t)count[m][1];
        buf expert = buf_take(k * 4), x_row = buf_take(k * 4);
        t->arrive(dev, &(kern_arrive){count[m][1], kern_at(slot.mem, (size_t)slots * 4), expert.mem,
                                      x_row.mem});
        int32_t *from = buf_at(x_row); /* rows are not moved here */
        for (size_t i = 0; i < k; i++)
            from[i] = ((int32_t *)buf_at(row))[rows + from[i]];
        moe_case part_case = *c;
        moe_world part = part_of(w, &part_case, cut[m], cut[m + 1], expert);
        part_case.n_row = count[m][1], part_case.n_used = 1;
        buf nodes = run_experts_of(&part, &(moe_run){isa, 1 + m % 2, 0, c->n_leaf}, x_row.mem);
        if (k > 0)
            memcpy((uint8_t *)buf_at(made) + (size_t)slots * output, buf_at(nodes), k * output);
        rows += count[m][0], slots += count[m][1];
        buf_free(nodes);
        buf_free(expert);
        buf_free(x_row);
    }
    t->close(dev);
    buf_free(row);
    buf_free(slot);
    return made;
}

/* Whoever has an expert: the bits of one rank. */
static void experts_on_ranks(void **state) {
    (void)state;
    for (int32_t i = 0; i < N_TYPE; i++)
        for (int32_t n_rank = 1; n_rank <= 8; n_rank++) {
            moe_case c = {all_types[i],
                          all_types[(i + 1) % N_TYPE],
                          64,
                          32,
                          3,
                          6,
                          1 + (i + n_rank) % 4,
                          1 + 5 * (n_rank % 3),
                          all_rules[i % 3],
                          i % 2 == 0,
                          i % 3 == 2};
            moe_world w = world_make(&c);
            buf nodes = run_experts(&w, &(moe_run){0, 1, 0, c.n_leaf});
            for (int32_t isa = 0; isa < isa_count(); isa++) {
                buf place, made = run_ranks(&w, isa, n_rank, &place);
                moe_run run = {isa, 2, 0, 0};
                buf want = run_sum(&w, &run, nodes, &one_leaf, (size_t[]){0});
                buf got = run_sum_placed(&w, &run, made, &one_leaf, (size_t[]){0}, place.mem);
                assert_same_floats(buf_floats(got), buf_floats(want), got.bytes / 4, "ranks");
                buf_free(want);
                buf_free(got);
                buf_free(made);
                buf_free(place);
            }
            buf_free(nodes);
            world_free(w);
        }
}

/* Router logits of a row -> slots and their weights, then y: one row or many. */
static buf run_all(const moe_world *all, int32_t isa, int32_t row, int32_t n_row, buf logits) {
    moe_case c = *all->c;
    moe_world w = *all;
    c.n_row = n_row;
    w.c = &c;
    kern_route p = {.kind = KERN_ROUTE_SOFTMAX,
                    .renorm = true,
                    .logit_scale = 1,
                    .scale = 1,
                    .n_row = n_row,
                    .n_expert = c.n_expert,
                    .n_used = c.n_used};
    routed r = route_on(isa, p, 2, buf_floats(logits) + row * c.n_expert, NULL);
    w.expert = r.expert;
    w.weight = r.weight;
    w.x.act = row_of(&w.x.act, row);
    moe_run run = {isa, 2, 0, c.n_leaf};
    buf nodes = run_experts(&w, &run);
    buf y = run_sum(&w, &run, nodes, &one_leaf, (size_t[]){0});
    buf_free(nodes);
    routed_free(r);
    return y;
}

/* Row r alone has the bits of row r among 64. */
static void row_independence(void **state) {
    (void)state;
    enum { N_ROW = 64 };
    for (int32_t isa = 0; isa < isa_count(); isa++)
        for (int32_t i = 0; i < N_TYPE; i++) {
            moe_case c = {all_types[i],
                          all_types[(i + 3) % N_TYPE],
                          64,
                          32,
                          2,
                          8,
                          3,
                          N_ROW,
                          all_rules[i % 3],
                          true,
                          false};
            moe_world w = world_make(&c);
            buf logits = buf_take((size_t)(N_ROW * c.n_expert) * 4);
            for (int32_t k = 0; k < N_ROW * c.n_expert; k++)
                buf_floats(logits)[k] = rng_float() * 4.0f;
            buf all = run_all(&w, isa, 0, N_ROW, logits);
            for (int32_t r = i; r < N_ROW; r += N_TYPE) {
                buf y = run_all(&w, isa, r, 1, logits);
                assert_same_floats(buf_floats(y), buf_floats(all) + r * c.hidden, (size_t)c.hidden,
                                   "row alone");
                buf_free(y);
            }
            buf_free(all);
            buf_free(logits);
            world_free(w);
        }
}

/* Ranks without rows, and ranks without columns of ffn. */
static void nothing_to_do(void **state) {
    (void)state;
    const kern_table *t = table_of(0);
    kern_dev *dev = dev_open(t, 2);
    t->experts(dev, &(kern_experts){.n_expert = 4, .n_used = 2, .n_in = 32});
    t->experts(dev, &(kern_experts){.n_row = 3, .n_expert = 4, .n_used = 2});
    t->moe_sum(dev, &(kern_moe_sum){.n_used = 2, .hidden = 32});
    t->close(dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_types),
        cmocka_unit_test(experts_long_blocks),
        cmocka_unit_test(experts_odd_widths),
        cmocka_unit_test(experts_shapes),
        cmocka_unit_test(experts_leaves),
        cmocka_unit_test(experts_non_finite_row),
        cmocka_unit_test(moe_sum),
        cmocka_unit_test(cuts_of_ffn),
        cmocka_unit_test(experts_on_ranks),
        cmocka_unit_test(row_independence),
        cmocka_unit_test(nothing_to_do),
    };
    isa_print_absent();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
