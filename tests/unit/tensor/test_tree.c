/* The bits of the root do not depend on how the leaves are cut over participants. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/tree.h"

static uint64_t random_state = 88172645463325252u;
static uint32_t random_u32(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

/* Rounds at nearly every addition: magnitudes over 2^-12 .. 2^12. */
static float random_float(void) {
    float f = (float)random_u32() / 4294967296.0f - 0.5f;
    int32_t e = (int32_t)(random_u32() % 25) - 12;
    return e < 0 ? f / (float)(1 << -e) : f * (float)(1 << e);
}

/* Runs a program over its operands; checks its counts; returns the nodes handed out. */
static int32_t run(const tree_prog *p, const float *operand, float *node) {
    float stack[TREE_MAX_DEPTH];
    int32_t depth = 0;
    int32_t n_push = 0;
    int32_t n_emit = 0;
    assert_in_range(p->n_op, 0, TREE_MAX_OP);
    for (int32_t i = 0; i < p->n_op; i++) {
        if (p->op[i] == TREE_ADD) {
            assert_true(depth >= 2);
            depth--;
            stack[depth - 1] = stack[depth - 1] + stack[depth];
        } else if (p->op[i] == TREE_EMIT) {
            assert_true(depth >= 1);
            node[n_emit++] = stack[--depth];
        } else {
            assert_int_equal(p->op[i], n_push);
            assert_true(depth < TREE_MAX_DEPTH);
            stack[depth++] = operand[n_push++];
        }
    }
    assert_int_equal(depth, 0);
    assert_int_equal(n_push, p->n_push);
    assert_int_equal(n_emit, p->n_emit);
    return n_emit;
}

/* The tree by its definition, recursively. */
static float balanced(const float *x, int32_t n) {
    return n == 1 ? x[0] : balanced(x, n / 2) + balanced(x + n / 2, n / 2);
}
static float root(const float *x, int32_t n) {
    int32_t group = n & -n;
    float sum = balanced(x, group);
    for (int32_t i = group; i < n; i += group) {
        sum = sum + balanced(x + i, group);
    }
    return sum;
}

static void check_cut(int32_t n, const int32_t *cut, int32_t n_part) {
    float x[TREE_MAX_LEAF];
    float node[TREE_MAX_LEAF];
    int32_t n_node = 0;
    for (int32_t i = 0; i < n; i++) {
        x[i] = random_float();
    }
    for (int32_t p = 0; p < n_part; p++) {
        tree_prog cover;
        tree_cover(n, cut[p], cut[p + 1], &cover);
        assert_int_equal(cover.n_push, cut[p + 1] - cut[p]);
        n_node += run(&cover, x + cut[p], node + n_node);
    }
    tree_prog finish;
    tree_finish(n, cut, n_part, &finish);
    assert_int_equal(finish.n_push, n_node);
    float got[2];
    assert_int_equal(run(&finish, node, got), 1);
    float want = root(x, n);
    if (memcmp(&got[0], &want, 4) != 0) {
        fail_msg("n %d, %d parts: %a, right %a", n, n_part, (double)got[0], (double)want);
    }
}

/* Every cut of n leaves into n_part (empty parts too): an odometer over ascending cuts. */
static void check_all_cuts(int32_t n, int32_t n_part) {
    int32_t cut[8] = {0};
    cut[n_part] = n;
    for (;;) {
        check_cut(n, cut, n_part);
        int32_t i = n_part - 1;
        while (i >= 1 && cut[i] == n) {
            i--;
        }
        if (i < 1) {
            return;
        }
        int32_t next = cut[i] + 1;
        for (; i < n_part; i++) {
            cut[i] = next;
        }
    }
}

static void test_all_cuts(void **state) {
    (void)state;
    for (int32_t n = 1; n <= 48; n++) {
        for (int32_t n_part = 1; n_part <= 5; n_part++) {
            check_all_cuts(n, n_part);
        }
    }
}

static void test_random_cuts(void **state) {
    (void)state;
    for (int32_t k = 0; k < 100000; k++) {
        int32_t n = 1 + (int32_t)(random_u32() % TREE_MAX_LEAF);
        int32_t n_part = 1 + (int32_t)(random_u32() % (k % 2 ? 5 : 64));
        int32_t cut[66] = {0};
        for (int32_t p = 1; p < n_part; p++) {
            int32_t v = (int32_t)(random_u32() % (uint32_t)(n + 1));
            int32_t i = p;
            for (; i > 1 && cut[i - 1] > v; i--) {
                cut[i] = cut[i - 1];
            }
            cut[i] = v;
        }
        cut[n_part] = n;
        check_cut(n, cut, n_part);
    }
}

static void check_text(int32_t n, int32_t lo, int32_t hi, const char *want) {
    tree_prog p;
    char got[1024] = "";
    size_t len = 0;
    tree_cover(n, lo, hi, &p);
    for (int32_t i = 0; i < p.n_op; i++) {
        const char *sep = i ? " " : "";
        if (p.op[i] == TREE_ADD) {
            len += (size_t)snprintf(got + len, sizeof got - len, "%s+", sep);
        } else if (p.op[i] == TREE_EMIT) {
            len += (size_t)snprintf(got + len, sizeof got - len, "%s!", sep);
        } else {
            len += (size_t)snprintf(got + len, sizeof got - len, "%s%d", sep, p.op[i]);
        }
    }
    assert_string_equal(got, want);
}

static void test_programs(void **state) {
    (void)state;
    check_text(6, 0, 6, "0 1 + 2 3 + + 4 5 + + !");
    check_text(6, 0, 4, "0 1 + 2 3 + + !"); /* a prefix of the chain is one node */
    check_text(6, 0, 5, "0 1 + 2 3 + + ! 4 !");
    check_text(6, 2, 6, "0 1 + ! 2 3 + !");
    check_text(6, 1, 3, "0 ! 1 !");
    check_text(4, 0, 3, "0 1 + ! 2 !");
    check_text(3, 0, 3, "0 1 + 2 + !");
    check_text(3, 0, 2, "0 1 + !");
    check_text(3, 1, 3, "0 ! 1 !");
    check_text(12, 4, 12, "0 1 + 2 3 + + ! 4 5 + 6 7 + + !");
    check_text(16, 3, 13, "0 ! 1 2 + 3 4 + + ! 5 6 + 7 8 + + ! 9 !");
    check_text(1, 0, 1, "0 !");
    check_text(8, 5, 5, "");
}

static void test_finish_programs(void **state) {
    (void)state;
    tree_prog p;
    /* [0,4) is one node, [4,6) another: one addition. */
    tree_finish(6, (const int32_t[]){0, 4, 6}, 2, &p);
    const int8_t want[] = {0, 1, TREE_ADD, TREE_EMIT};
    assert_int_equal(p.n_op, 4);
    assert_memory_equal(p.op, want, sizeof want);
    /* One participant with everything: the finish only hands on. */
    tree_finish(16, (const int32_t[]){0, 16}, 1, &p);
    assert_int_equal(p.n_op, 2);
    assert_int_equal(p.n_push, 1);
}

/* The most a cover can hand out, and the deepest stack, stay within the constants for every n. */
/* Pieces, then the rest over their nodes: the same nodes as the whole program, for every piece size
 * of programs with one node and with several. */
static void test_splits(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 2, 6, 8, 12, 16, 48, 64};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int32_t lo = 0; lo < sizes[k]; lo += 1 + lo / 3)
            for (int32_t max = 1; max <= sizes[k]; max++) {
                int32_t n = sizes[k], hi = lo + 1 + (int32_t)(random_u32() % (uint32_t)(n - lo));
                tree_prog whole;
                tree_cover(n, lo, hi, &whole);
                float x[TREE_MAX_LEAF], want[TREE_MAX_LEAF], node[TREE_MAX_LEAF],
                    got[TREE_MAX_LEAF];
                for (int32_t i = 0; i < hi - lo; i++)
                    x[i] = random_float();
                run(&whole, x, want);
                tree_split s;
                tree_split_make(&whole, max, &s);
                int32_t next = 0;
                for (int32_t i = 0; i < s.n_piece; i++) {
                    assert_int_equal(s.first[i], next);
                    assert_in_range(s.piece[i].n_push, 1, max);
                    assert_int_equal(run(&s.piece[i], x + s.first[i], &node[i]), 1);
                    next += s.piece[i].n_push;
                }
                assert_int_equal(next, hi - lo);
                assert_int_equal(run(&s.rest, node, got), whole.n_emit);
                assert_memory_equal(got, want, (size_t)whole.n_emit * sizeof *want);
            }
}

/* As few pieces as the size allows: 16 leaves in pieces of 4 and of 5 are four, of 16 one. */
static void test_split_sizes(void **state) {
    (void)state;
    tree_prog whole;
    tree_cover(16, 0, 16, &whole);
    static const int32_t max[] = {1, 2, 4, 5, 8, 16, 99}, n[] = {16, 8, 4, 4, 2, 1, 1};
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        tree_split s;
        tree_split_make(&whole, max[i], &s);
        assert_int_equal(s.n_piece, n[i]);
    }
}

static void test_bounds(void **state) {
    (void)state;
    for (int32_t n = 1; n <= TREE_MAX_LEAF; n++) {
        int32_t cut[TREE_MAX_LEAF + 1];
        for (int32_t i = 0; i <= n; i++) {
            cut[i] = i;
        }
        check_cut(n, cut, n);
        tree_prog p;
        tree_finish(n, cut, n, &p);
        assert_int_equal(p.n_op, 2 * n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs), cmocka_unit_test(test_finish_programs),
        cmocka_unit_test(test_all_cuts), cmocka_unit_test(test_random_cuts),
        cmocka_unit_test(test_splits),   cmocka_unit_test(test_split_sizes),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
