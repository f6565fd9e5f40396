/* Attention below its operation: folds of one block, states merged by hand, and the bytes of the
 * cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "unit/kern/attn_world.h"

/* ---- folds of one block, with rows that no operation would put side by side ---- */

enum { CASE_ROWS = 64, CASE_PAGES = 4 };

typedef struct page_case {
    cpu_block b;
    cpu_page page[CASE_PAGES];
    int32_t n_page, row_begin[CASE_ROWS], row_end[CASE_ROWS];
    float *q;
    uint8_t *pages;
} page_case;

/* What the rows see: ends ascend, some lie before the first page, some behind the last; the keys of a
 * row are all before its end, or from one common key on, or the last few before its end. */
static void draw_row_edges(world_rng *r, page_case *c) {
    int32_t first = rng_int(r, 0, 1) ? 0 : rng_int(r, 0, 40), end = rng_int(r, 0, 50);
    int32_t most = rng_int(r, 0, 1) ? 1000 : rng_int(r, 1, 40), begin = first;
    for (int32_t i = 0; i < c->b.n_row; i++, end += rng_int(r, 0, 3)) {
        int32_t from = end - rng_int(r, 1, most);
        begin = most < 1000 && end > first && from > begin ? from : begin;
        c->row_begin[i] = begin < end ? begin : 0;
        c->row_end[i] = begin < end ? end : 0;
    }
}

static void draw_page_case(world_rng *r, page_case *c) {
    *c = (page_case){.n_page = rng_int(r, 1, CASE_PAGES)};
    cpu_block *b = &c->b;
    b->group = rng_int(r, 1, 4);
    b->n_row = rng_int(r, 1, rng_int(r, 0, 1) ? 8 : CASE_ROWS);
    b->head_dim = head_dims[rng_int(r, 0, 6)];
    b->value_dim = rng_int(r, 0, 1) ? b->head_dim : head_dims[rng_int(r, 0, 6)];
    b->value_in_key = b->value_dim <= b->head_dim && rng_int(r, 0, 2) == 0;
    b->o_stride = cpu_round_up(b->value_dim, 16);
    b->scale = 0.25f;
    b->type = (kern_kv_type)rng_int(r, 0, 2);
    b->q_stride = (size_t)(b->group * b->head_dim) + 2;
    size_t n_q = (size_t)b->n_row * b->q_stride;
    c->q = world_floats(n_q);
    for (size_t i = 0; i < n_q; i++)
        c->q[i] = 2 * rng_float(r);
    b->q = c->q;
    size_t n_value = 16 * (size_t)(b->head_dim + (b->value_in_key ? 0 : b->value_dim));
    size_t elem = kern_kv_elem(b->type);
    c->pages = malloc(CASE_PAGES * n_value * elem);
    for (size_t i = 0; i < CASE_PAGES * n_value; i++) {
        float x = rng_float(r);
        world_narrow(b->type, &x, 1, c->pages + i * elem);
    }
    for (int32_t p = 0; p < c->n_page; p++)
        c->page[p] = (cpu_page){c->pages + (size_t)p * n_value * elem, 16 * p};
    draw_row_edges(r, c);
}

/* The pages into two states, page after page in turn, and their merge; nodes: [row][value_dim + 2].
 */
static void run_page_case(const page_case *c, const cpu_fold *fold, float *nodes) {
    cpu_block b = c->b;
    size_t rows = (size_t)cpu_round_up(b.n_row, 16), node = (size_t)b.value_dim + 2;
    int32_t begin[CASE_ROWS] = {0}, end[CASE_ROWS] = {0}, most = b.head_dim;
    memcpy(begin, c->row_begin, (size_t)b.n_row * sizeof *begin);
    memcpy(end, c->row_end, (size_t)b.n_row * sizeof *end);
    b.row_begin = begin;
    b.row_end = end;
    most = b.value_dim > most ? b.value_dim : most;
    b.work = aligned_alloc(64, cpu_attn_work_floats(CASE_ROWS, most) * sizeof(float));
    fold->begin(&b);
    float *memory[2];
    cpu_states s[2];
    for (int32_t i = 0; i < 2; i++) {
        memory[i] = world_floats(rows * (size_t)(b.o_stride + 2));
        float *m = memory[i] + rows * (size_t)b.o_stride;
        s[i] = (cpu_states){memory[i], m, m + rows, true};
    }
    for (int32_t at = 0; at < c->n_page; at += b.page_batch) {
        int32_t n = c->n_page - at < b.page_batch ? c->n_page - at : b.page_batch;
        fold->score(&b, c->page + at, n);
        for (int32_t i = 0; i < n; i++)
            fold->update(&b, &c->page[at + i], i, &s[(at + i) % 2]);
    }
    cpu_nodes to = {nodes, (size_t)b.group * node, node};
    int32_t from = s[0].empty ? 1 : 0;
    if (s[from].empty) {
        cpu_states_identity(&b, &s[from]);
        cpu_states_emit(&b, &s[from], &to);
    } else {
        if (from == 0 && !s[1].empty)
            fold->merge(&b, &s[0], &s[1]);
        fold->emit(&b, &s[from], &to);
    }
    for (int32_t i = 0; i < 2; i++)
        free(memory[i]);
    free(b.work);
}

/* Every row has its own end: rows beside each other differ in what they see, and a row that sees
 * nothing is the identity. Both folds of a level, whatever the number of rows; values inside keys are
 * the affair of `many`. */
static void rows_of_a_block_may_differ(void **state) {
    (void)state;
    world_rng r = {61};
    for (int32_t round = 0; round < 400; round++) {
        page_case c;
        draw_page_case(&r, &c);
        size_t e = (size_t)c.b.value_dim, n = (size_t)c.b.n_row * (e + 2);
        float *want = world_floats(n), *got = world_floats(n);
        run_page_case(&c, cpu_attn_scalar.few, want);
        for (size_t level = 0; level < N_LEVEL; level++) {
            const cpu_attn_isa *isa = micro_kernels[level];
            for (int32_t many = 0; many < 2 && has_level(levels[level]); many++) {
                if (!many && (c.b.n_row > isa->few_rows || c.b.value_in_key))
                    continue;
                run_page_case(&c, many ? isa->many : isa->few, got);
                assert_memory_equal(got, want, n * sizeof *want);
            }
        }
        for (int32_t i = 0; i < c.b.n_row; i++) {
            const float *node = want + (size_t)i * (e + 2);
            if (c.row_end[i] == 0 || c.row_begin[i] >= 16 * c.n_page)
                for (size_t d = 0; d < e + 2; d++)
                    assert_true(node[d] == (d == e ? -INFINITY : 0.0f));
        }
        free(want);
        free(got);
        free(c.pages);
        free(c.q);
    }
}

/* ---- finish on nodes made by hand ---- */

typedef struct node4 {
    float o[4], m, l;
} node4;

/* Merges n nodes (n a power of two) of one head, and a sink where there is one, and gives the 4
 * outputs at row 1 of out. */
static void finish_with_sink(const char *isa, const node4 *nodes, int32_t n, const float *sink,
                             float out[8]) {
    const kern_table *t;
    kern_dev *dev;
    assert_int_equal(kern_cpu_table(isa, &t, NULL), WEFT_OK);
    kern_limits limits = {.max_rows = 1, .max_in = 4, .max_head_dim = 4, .max_group = 1};
    assert_int_equal(t->open(1, &limits, &dev, NULL), WEFT_OK);
    tree_prog tree;
    tree_cover(n, 0, n, &tree);
    kern_mem at[16];
    size_t stride[16];
    for (int32_t i = 0; i < n; i++) {
        at[i] = (kern_mem){(uintptr_t)&nodes[i]};
        stride[i] = sizeof(node4);
    }
    kern_attn_finish f = {.n_tok = 1,
                          .n_head = 1,
                          .value_dim = 4,
                          .sinks = {(uintptr_t)sink},
                          .tree = &tree,
                          .node = at,
                          .node_stride = stride,
                          .row0 = 1,
                          .out = {.k = 4, .f32 = {(uintptr_t)out}}};
    for (int32_t i = 0; i < 8; i++)
        out[i] = 77.0f;
    t->attn_finish(dev, &f);
    t->drain(dev);
    t->close(dev);
    for (int32_t i = 0; i < 4; i++)
        assert_true(out[i] == 77.0f); /* row0 is respected */
}

static void finish_nodes(const char *isa, const node4 *nodes, int32_t n, float out[8]) {
    finish_with_sink(isa, nodes, n, NULL, out);
}

static void merging_empty_states(void **state) {
    (void)state;
    const node4 empty = {{0}, -INFINITY, 0}, some = {{2, -4, 1e-3f, -0.0f}, 3.25f, 2};
    /* l == 0 decides: whatever else is in an empty state has no weight (I01). */
    const node4 dirty = {{NAN, INFINITY, NAN, 1}, NAN, 0};
    const float want[4] = {1, -2, 5e-4f, -0.0f}, zero[4] = {0};
    for (size_t l = 0; l < N_LEVEL; l++) {
        if (!has_level(levels[l]))
            continue;
        float out[8];
        node4 n[8];
        for (int32_t where = -1; where < 8; where++)
            for (int32_t with_dirt = 0; with_dirt < 2; with_dirt++) {
                for (int32_t i = 0; i < 8; i++)
                    n[i] = i == where ? some : with_dirt ? dirty : empty;
                finish_nodes(levels[l], n, 8, out);
                assert_memory_equal(out + 4, where < 0 ? zero : want, 16);
            }
        n[0] = n[1] = empty;
        finish_nodes(levels[l], n, 2, out);
        assert_memory_equal(out + 4, zero, 16);
        finish_nodes(levels[l], &some, 1, out);
        assert_memory_equal(out + 4, want, 16);
        n[0] = some;
        n[1] = (node4){{NAN, 1, 1, 1}, NAN, 1}; /* a real NaN is not hidden */
        finish_nodes(levels[l], n, 2, out);
        assert_true(isnan(out[4]));
    }
}

/* Two products, then the sum, in this order of operands: checked against the rule in doubles that
 * are rounded by hand. A fused multiply-add, or an order by participants, gives other bits. */
static void merge_follows_the_rule(void **state) {
    (void)state;
    world_rng r = {41};
    for (int32_t round = 0; round < 300; round++) {
        node4 n[4];
        for (int32_t i = 0; i < 4; i++) {
            n[i].m = 4.0f * rng_float(&r);
            n[i].l = 1.0f + fabsf(rng_float(&r));
            for (int32_t d = 0; d < 4; d++)
                n[i].o[d] = rng_float(&r);
        }
        float scalar[8], vector[8];
        finish_nodes("scalar", n, 4, scalar);
        for (size_t l = 1; l < N_LEVEL; l++)
            if (has_level(levels[l])) {
                finish_nodes(levels[l], n, 4, vector);
                assert_memory_equal(scalar, vector, sizeof scalar);
            }
        /* ((0 1) (2 3)) to 1e-6 */
        double top = -INFINITY, sum = 0, o = 0;
        for (int32_t i = 0; i < 4; i++)
            top = n[i].m > top ? n[i].m : top;
        for (int32_t i = 0; i < 4; i++) {
            sum += n[i].l * exp(n[i].m - top);
            o += n[i].o[2] * exp(n[i].m - top);
        }
        assert_true(fabs(o / sum - scalar[6]) < 1e-6);
    }
    /* equal maxima: factors are exactly 1, so products are exact and the sums are plain */
    node4 e[2] = {{{1.0f, 0x1p-24f, 3, -1}, 5, 1}, {{0x1p-24f, 1.0f, -3, 1}, 5, 1}};
    float out[8];
    finish_nodes("scalar", e, 2, out);
    const float want[4] = {0.5f, 0.5f, 0.0f, 0.0f};
    assert_memory_equal(out + 4, want, 16);
}

/* A sink is a state (0, sink, 1) that is merged last: the same bits as such a state on the right of
 * the root. */
static void a_sink_is_merged_at_the_root(void **state) {
    (void)state;
    world_rng r = {42};
    for (int32_t round = 0; round < 200; round++) {
        float sink = 4.0f * rng_float(&r), m = 4.0f * rng_float(&r);
        node4 n[2];
        for (int32_t i = 0; i < 2; i++) {
            n[i] = (node4){{rng_float(&r), rng_float(&r), -0.0f, 3}, m, 1.0f + (float)i};
            if (rng_int(&r, 0, 3) == 0)
                n[i] = (node4){{0}, -INFINITY, 0};
        }
        /* Their merge by hand: the maxima are equal, the factors 1. */
        node4 root[2] = {n[0], {{0}, sink, 1}};
        if (n[0].l == 0)
            root[0] = n[1];
        else if (n[1].l != 0) {
            for (int32_t d = 0; d < 4; d++)
                root[0].o[d] = n[0].o[d] + n[1].o[d];
            root[0].l = n[0].l + n[1].l;
        }
        float want[8], got[8];
        finish_nodes("scalar", root, 2, want);
        for (size_t l = 0; l < N_LEVEL; l++)
            if (has_level(levels[l])) {
                finish_with_sink(levels[l], n, 2, &sink, got);
                assert_memory_equal(got, want, sizeof got);
            }
    }
    const node4 empty = {{0}, -INFINITY, 0};
    const float sink = 1.25f, zero[4] = {0};
    float out[8];
    finish_with_sink("scalar", &empty, 1, &sink, out);
    assert_memory_equal(out + 4, zero, sizeof zero);
}

/* ---- cache ---- */

static size_t key_byte(const world *w, int32_t head, int32_t key, int32_t d, bool value) {
    size_t n_k = (size_t)w->head_dim, n_v = w->value_in_key ? 0 : (size_t)w->value_dim;
    size_t elem = kern_kv_elem(w->type), at;
    if (w->type == KERN_KV_BF16)
        at = value ? ((size_t)(key / 2) * n_v + (size_t)d) * 2 + (size_t)(key % 2)
                   : ((size_t)(d / 2) * 16 + (size_t)key) * 2 + (size_t)(d % 2);
    else
        at = value ? (size_t)key * n_v + (size_t)d : (size_t)d * 16 + (size_t)key;
    return ((size_t)head * 16 * (n_k + n_v) + value * 16 * n_k + at) * elem;
}

/* Every byte of the pool after a store: as the layout says where a slot was given, untouched
 * elsewhere; negative slots are skipped and only they (T20). */
static void store_writes_its_slots_only(void **state) {
    (void)state;
    world_rng r = {43};
    for (int32_t round = 0; round < 24; round++) {
        world w = {.type = (kern_kv_type)(round % 3), .n_kv = rng_int(&r, 1, 3), .group = 1};
        w.head_dim = head_dims[rng_int(&r, 0, 6)];
        w.value_dim = round % 2 ? 0 : head_dims[rng_int(&r, 0, 6)];
        w.value_in_key = w.value_dim <= w.head_dim && round / 3 % 2;
        w.kv_shards = 1;
        w.n_req = 1;
        w.len[0] = w.n_new[0] = 1;
        world_fill(&w, &r);
        int32_t n = round < 12 ? rng_int(&r, 0, 3) : 60, n_page = 5;
        int32_t n_k = w.n_kv * w.head_dim, n_v = w.value_in_key ? 0 : w.n_kv * w.value_dim;
        size_t row = (size_t)(n_k + n_v) * kern_kv_elem(w.type);
        size_t page_bytes = row * 16, stride = page_bytes + (size_t)(round % 2 ? 64 : 0);
        size_t pool_bytes = (size_t)n_page * stride;
        uint8_t *wire = malloc((size_t)n * row + 1), *pool = malloc(pool_bytes);
        uint8_t *want = malloc(pool_bytes), *packed = malloc(3 * page_bytes);
        int32_t slots[60];
        memset(want, 0xff, pool_bytes);
        for (size_t i = 0; i < (size_t)n * row; i++)
            wire[i] = (uint8_t)rng_next(&r);
        for (int32_t i = 0; i < n; i++) {
            slots[i] = rng_int(&r, 0, 4)   ? (i * 7 + 3) % 80
                       : rng_int(&r, 0, 1) ? -1
                                           : -rng_int(&r, 2, 1000);
            size_t elem = kern_kv_elem(w.type);
            for (int32_t e = 0; slots[i] >= 0 && e < n_k + n_v; e++) {
                bool value = e >= n_k;
                int32_t dim = value ? w.value_dim : w.head_dim, x = value ? e - n_k : e;
                memcpy(want + (size_t)(slots[i] / 16) * stride +
                           key_byte(&w, x / dim, slots[i] % 16, x % dim, value),
                       wire + (size_t)i * row + (size_t)e * elem, elem);
            }
        }
        const kern_table *t;
        kern_dev *dev;
        assert_int_equal(kern_cpu_table("scalar", &t, NULL), WEFT_OK);
        kern_limits limits = {.max_rows = 64, .max_in = 64, .max_head_dim = 128, .max_group = 1};
        assert_int_equal(t->open(3, &limits, &dev, NULL), WEFT_OK);
        memset(pool, 0xff, pool_bytes);
        kern_kv_store s = {.kv = {.type = w.type,
                                  .n_kv_head = w.n_kv,
                                  .head_dim = w.head_dim,
                                  .value_dim = w.value_dim,
                                  .value_in_key = w.value_in_key,
                                  .page_stride = stride,
                                  .pages = {(uintptr_t)pool}},
                           .n = n,
                           .wire = {(uintptr_t)wire},
                           .slots = {(uintptr_t)slots}};
        t->kv_store(dev, &s);
        int32_t pages[3] = {4, 0, 4};
        kern_kv_pack p = {
            .from = s.kv, .n = 3, .pages = {(uintptr_t)pages}, .out = {(uintptr_t)packed}};
        t->kv_pack(dev, &p);
        t->drain(dev);
        assert_memory_equal(pool, want, pool_bytes);
        for (size_t i = 0; i < 3; i++)
            assert_memory_equal(packed + i * page_bytes, want + (size_t)pages[i] * stride,
                                page_bytes);
        t->close(dev);
        free(wire);
        free(pool);
        free(want);
        free(packed);
        world_free(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_a_block_may_differ),
        cmocka_unit_test(merging_empty_states),
        cmocka_unit_test(merge_follows_the_rule),
        cmocka_unit_test(a_sink_is_merged_at_the_root),
        cmocka_unit_test(store_writes_its_slots_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
