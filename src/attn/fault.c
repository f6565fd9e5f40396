/* Planted faults of the exchange: negative controls, see src/engine/fault.h. */
#include <string.h>

#include "attn/attn.h"

/* One DCP rank hands out one finished node, and a state merged with itself gives the same output:
 * so cut its shards into two nodes first.
 *   "... emit"  ->  left half, emit, right half, emit */
static void halve(attn_rank *a) {
    int32_t shards = a->topo->kv_shards;
    int32_t cut[3] = {0, shards / 2, shards};
    tree_prog right;
    tree_cover(shards, 0, cut[1], &a->cover);
    tree_cover(shards, cut[1], shards, &right);
    for (int32_t i = 0; i < right.n_op; i++)
        a->cover.op[a->cover.n_op++] = (int8_t)(right.op[i] + (right.op[i] >= 0 ? cut[1] : 0));
    a->cover.n_push = shards;
    a->cover.n_emit = a->n_emit[0] = 2;
    tree_finish(shards, cut, 2, &a->finish);
}

void attn_fault_plan(attn_rank *a) {
    if (a->fault != ATTN_FAULT_OWN_TWICE)
        return;
    if (a->topo->sizes.dcp == 1)
        halve(a);
    /* "0 ..." -> "0 0 + ...": the first node counts twice */
    tree_prog *p = &a->finish;
    memmove(p->op + 3, p->op + 1, (size_t)(p->n_op - 1));
    p->op[1] = p->op[0];
    p->op[2] = TREE_ADD;
    p->n_op += 2;
}
