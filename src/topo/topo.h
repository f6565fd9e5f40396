/* World -> groups, legality, ownership. Integers only.
 *
 *   rank = c * tp + t          c: PCP index, t: TP index (innermost);   world = tp * pcp
 *   KV heads of TP rank t:     kv_heads >= tp: [t * kv/tp, (t+1) * kv/tp);   kv_heads < tp: head t
 * * kv / tp (replicated on tp/kv ranks) R = pcp * max(1, tp / kv_heads) ranks hold the same KV
 * heads: member i = t' * pcp + c, t' = t mod (tp/kv_heads) DCP group of member i: i / dcp, DCP rank
 * i mod dcp. dcp divides R. One DCP group holds one whole replica of the cache.
 * Where layers differ, R and the groups follow from the most KV heads that a layer has; fewer divide
 * them, so a group's members hold the same KV heads of every layer.
 *
 *   tp1 pcp4 dcp2:             DCP groups {0,1} {2,3}
 *   tp2 pcp2 dcp2, 2 KV heads: ranks c*2+t; DCP groups {0,2} (head 0) {1,3} (head 1)
 *   tp2 pcp2 dcp4, 1 KV head:  members i = t*2 + c -> ranks 0, 2, 1, 3: one DCP group {0,2,1,3} */
#ifndef WEFT_TOPO_TOPO_H
#define WEFT_TOPO_TOPO_H

#include "base/status.h"
#include "comm/comm.h"

enum { TOPO_MAX_WORLD = 64, TOPO_MAX_MORE = 8 };

typedef struct topo_heads {
    int32_t n_kv_head, head_dim;
} topo_heads;

/* What legality depends on; filled by the engine from the model and the profile. */
typedef struct topo_model {
    int32_t n_head, n_kv_head, head_dim, ffn, hidden,
        n_vocab; /* heads: of layers with most KV heads */
    /* L of the two row-parallel layers; ffn and leaves_down are 0 where tp cuts no dense MLP */
    int32_t leaves_o, leaves_down;
    /* of models with more kinds of layers; 0: no more */
    int32_t leaves_more[TOPO_MAX_MORE]; /* L of further row-parallel layers */
    int32_t width_more[TOPO_MAX_MORE];  /* outputs of further column-parallel layers */
    topo_heads
        heads_more[TOPO_MAX_MORE]; /* other kinds of heads; their n_kv_head divides the first */
    int32_t kv_shards, panel, leaf_multiple;
} topo_model;

typedef struct topo_sizes {
    int32_t tp, pcp, dcp;
} topo_sizes;

/* WEFT_ERR_SETUP with the rule, the numbers and the nearest legal sizes; decided from these
 * integers alone. Rules, in order: each size >= 1; world <= TOPO_MAX_WORLD; tp divides n_head; tp
 * divides n_kv_head or n_kv_head divides tp, those of heads_more too; tp divides leaves_o and leaves_down (a rank's columns
 * are whole leaves), and all of leaves_more; with tp > 1 local q, kv and ffn outputs, and those of
 * width_more and heads_more, are multiples of the panel; dcp divides R; dcp <= kv_shards. */
weft_status topo_check(const topo_model *m, topo_sizes s, weft_error *err);
/* Every legal size set with world <= max_world, ordered by world, then tp, pcp, dcp ascending.
 * Returns the count; writes at most cap. */
int32_t topo_list(const topo_model *m, int32_t max_world, topo_sizes *out, int32_t cap);

/* L of a row-parallel layer with K inputs: odd(kv_heads) * 2^j, the largest <= max_leaves for which
 * K/L is a multiple of `multiple`; 1 when there is none. */
int32_t topo_leaves(int32_t n_kv_head, int32_t k, int32_t max_leaves, int32_t multiple);

/* KV heads that a rank of tp has in a layer with n_kv_head, and the first of those of TP rank t. */
int32_t topo_kv_heads(int32_t n_kv_head, int32_t tp);
int32_t topo_kv_head0(int32_t n_kv_head, int32_t tp, int32_t t);
/* What other layers than those with most have; 0: all have as many. */
int32_t topo_fewer_kv_heads(const topo_model *m);

typedef struct topo {
    topo_sizes sizes;
    int32_t world, rank, c, t;
    int32_t kv_shards;
    int32_t n_head, n_kv_head;                        /* local */
    int32_t head0, kv_head0;                          /* first of each, in the model's numbering */
    int32_t dcp_rank;                                 /* in its DCP group */
    int32_t group_list[COMM_N_GROUP][TOPO_MAX_WORLD]; /* world ranks in group order */
    comm_members members;                             /* points into group_list */
    /* PCP index and TP index of each member of this rank's DCP group, in group order */
    int32_t dcp_c[TOPO_MAX_WORLD], dcp_t[TOPO_MAX_WORLD];
    /* DCP rank (page owner number) of each PCP group member (c' = 0..pcp-1, same t) */
    int32_t pcp_dcp_rank[TOPO_MAX_WORLD];
    int32_t shard_cut[TOPO_MAX_WORLD + 1]; /* DCP rank r owns shards [shard_cut[r], shard_cut[r+1])
                                              = [r*V/dcp, (r+1)*V/dcp) */
} topo;

/* Fills *out for a rank of legal sizes. *out must not be moved afterwards (members points inside).
 */
void topo_init(const topo_model *m, topo_sizes s, int32_t rank, topo *out);

/* bitrev(page mod V) */
int32_t topo_page_shard(int32_t kv_shards, int32_t logical_page);
/* DCP rank that owns the logical page. */
int32_t topo_page_owner(const topo *t, int32_t logical_page);
/* Pages of [0, n_page) that DCP rank r owns. */
int32_t topo_pages_owned(const topo *t, int32_t dcp_rank, int32_t n_page);

/* Where whole experts belong to ranks: rank r of the world has [topo_expert_cut(r),
 * topo_expert_cut(r + 1)), which is empty for some ranks when there are fewer experts than ranks. */
int32_t topo_expert_cut(int32_t n_expert, int32_t world, int32_t rank);

#endif
