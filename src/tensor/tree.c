#include "tensor/tree.h"

#include <assert.h>

/* A node of the tree is the range of leaves below it. Node kinds, for n = 12 (3 groups of 4):
 *
 *   inside a group   [4, 6)   aligned, length a power of two below the group's
 *   a group          [4, 8)
 *   a prefix         [0, 8)   groups 0 and 1 folded; [0, 12) is the root */
typedef struct node {
    int32_t lo, hi;
} node;

static int32_t group_size(int32_t n) {
    return n & -n;
}

/* The root has no parent. */
static node node_parent(int32_t n, node a) {
    int32_t group = group_size(n);
    int32_t len = a.hi - a.lo;
    if (len < group) {
        int32_t lo = a.lo & ~(2 * len - 1);
        return (node){lo, lo + 2 * len};
    }
    return a.lo == 0 ? (node){0, a.hi + group} : (node){0, a.hi};
}

/* The largest node that starts at leaf lo and ends at hi or before. */
static node largest_node(int32_t n, int32_t lo, int32_t hi) {
    node a = {lo, lo + 1};
    while (a.hi - a.lo < n) {
        node up = node_parent(n, a);
        if (up.lo != lo || up.hi > hi) {
            break;
        }
        a = up;
    }
    return a;
}

static void put_op(tree_prog *out, int32_t op) {
    assert(out->n_op < TREE_MAX_OP);
    out->op[out->n_op++] = (int8_t)op;
    out->n_emit += op == TREE_EMIT;
}

/* Pushes the operand that is node a and adds upwards while it completes its parent, but not beyond
 * `top`, which is handed out. A left child stays on the stack until its sibling is complete. */
static void put_operand(tree_prog *out, int32_t n, node a, node top) {
    put_op(out, out->n_push++);
    while (a.lo != top.lo || a.hi != top.hi) {
        node up = node_parent(n, a);
        if (up.hi != a.hi) {
            return;
        }
        put_op(out, TREE_ADD);
        a = up;
    }
    put_op(out, TREE_EMIT);
}

void tree_cover(int32_t n, int32_t lo, int32_t hi, tree_prog *out) {
    assert(n >= 1 && n <= TREE_MAX_LEAF && 0 <= lo && lo <= hi && hi <= n);
    out->n_op = out->n_push = out->n_emit = 0;
    for (node top; lo < hi; lo = top.hi) {
        top = largest_node(n, lo, hi);
        for (int32_t leaf = top.lo; leaf < top.hi; leaf++) {
            put_operand(out, n, (node){leaf, leaf + 1}, top);
        }
    }
}

void tree_finish(int32_t n, const int32_t *cut, int32_t n_part, tree_prog *out) {
    assert(n >= 1 && n <= TREE_MAX_LEAF && cut[0] == 0 && cut[n_part] == n);
    out->n_op = out->n_push = out->n_emit = 0;
    for (int32_t p = 0; p < n_part; p++) {
        int32_t lo = cut[p];
        for (node a; lo < cut[p + 1]; lo = a.hi) {
            a = largest_node(n, lo, cut[p + 1]);
            put_operand(out, n, a, (node){0, n});
        }
    }
}

/* In postfix the subtree whose root is operation i is a range of operations that ends at i. */
typedef struct subtree {
    int32_t n_op, n_push;
    int32_t parent; /* operation; -1 when the node is handed out */
} subtree;

static void find_subtrees(const tree_prog *p, subtree *at) {
    int32_t root[TREE_MAX_DEPTH], depth = 0;
    for (int32_t i = 0; i < p->n_op; i++) {
        at[i] = (subtree){.n_op = 1, .n_push = p->op[i] >= 0, .parent = -1};
        if (p->op[i] == TREE_EMIT)
            depth--;
        if (p->op[i] == TREE_ADD) {
            for (int32_t k = 0; k < 2; k++) {
                subtree *child = &at[root[--depth]];
                at[i].n_op += child->n_op;
                at[i].n_push += child->n_push;
                child->parent = i;
            }
        }
        if (p->op[i] != TREE_EMIT)
            root[depth++] = i;
    }
}

static void put_piece(const tree_prog *p, int32_t end, const subtree *s, int32_t first,
                      tree_prog *out) {
    *out = (tree_prog){.n_push = s->n_push};
    for (int32_t i = end - s->n_op + 1; i <= end; i++)
        put_op(out, p->op[i] >= 0 ? p->op[i] - first : p->op[i]);
    put_op(out, TREE_EMIT);
}

void tree_split_make(const tree_prog *p, int32_t max_push, tree_split *out) {
    subtree at[TREE_MAX_OP];
    int32_t first = 0;
    find_subtrees(p, at);
    out->n_piece = 0;
    out->rest = (tree_prog){0};
    for (int32_t i = 0; i < p->n_op; i++) {
        bool small = p->op[i] != TREE_EMIT && at[i].n_push <= max_push;
        if (!small) {
            put_op(&out->rest, p->op[i]);
        } else if (at[i].parent < 0 || at[at[i].parent].n_push > max_push) {
            put_piece(p, i, &at[i], first, &out->piece[out->n_piece]);
            out->first[out->n_piece] = first;
            first += at[i].n_push;
            put_op(&out->rest, out->n_piece++);
        }
    }
    out->rest.n_push = out->n_piece;
}
