/* The tree of numerics rule N4 as data.
 *
 * Leaves 0..n-1, n = odd * 2^j. Inside each of the `odd` groups of 2^j leaves a balanced binary
 * tree; the groups are folded left to right. A tree_prog is that tree, or the part of it that one
 * participant can do, as a postfix program:
 *
 *   n = 6 (3 groups of 2), all leaves:   0 1 +  2 3 +  +  4 5 +  +  emit
 *   n = 6, leaves 2..5 only:             0 1 + emit  2 3 + emit    (cover: two maximal subtrees)
 *   n = 4, leaves 0..2 only:             0 1 + emit  2 emit
 *
 * An operand is pushed, TREE_ADD replaces the two values on top (a below, b on top) by a (+) b,
 * TREE_EMIT pops a value and hands it out as the next node. (+) is a float addition for linear
 * layers, the state merge for attention. The bits of the root do not depend on how the leaves are
 * cut over participants. */
#ifndef WEFT_TENSOR_TREE_H
#define WEFT_TENSOR_TREE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    TREE_MAX_LEAF = 64, /* of one tree */
    TREE_MAX_OP = 3 * TREE_MAX_LEAF,
    TREE_MAX_DEPTH = 8, /* of the operand stack */
    TREE_ADD = -1,
    TREE_EMIT = -2
};

typedef struct tree_prog {
    int32_t n_op;
    int32_t n_push;         /* operands pushed, in ascending order */
    int32_t n_emit;         /* nodes handed out */
    int8_t op[TREE_MAX_OP]; /* >= 0: push that operand */
} tree_prog;

/* The part of the tree over n leaves that the owner of leaves [lo, hi) can do. Operands are
 * numbered from 0 at lo (operand i = leaf lo + i). lo == hi gives an empty program. */
void tree_cover(int32_t n, int32_t lo, int32_t hi, tree_prog *out);

/* The rest of the tree: operands are the nodes that the participants' covers emit, in ascending
 * order of participant, cut[p] .. cut[p + 1] being the leaves of participant p; cut: [n_part + 1],
 * cut[0] = 0, cut[n_part] = n. Emits one node. */
void tree_finish(int32_t n, const int32_t *cut, int32_t n_part, tree_prog *out);

/* A program cut into pieces that different threads can do: the maximal subtrees with up to max_push
 * operands, each a program of its own (operands numbered from 0 at first[i], one node), and the
 * rest, whose operands are the pieces. */
typedef struct tree_split {
    int32_t n_piece;
    tree_prog piece[TREE_MAX_LEAF];
    int32_t first[TREE_MAX_LEAF];
    tree_prog rest;
} tree_split;
void tree_split_make(const tree_prog *p, int32_t max_push, tree_split *out);

#endif
