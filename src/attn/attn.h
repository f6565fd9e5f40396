/* Attention of one rank: deliver new K/V to the page owners, fold, bring partial states home,
 * finish the tree.
 *
 * One function for prefill, decode and mixed batches, whatever pcp and dcp: the batch says which
 * tokens go by pass-Q and which by pass-KV, and with one rank every exchange is with itself. */
#ifndef WEFT_ATTN_ATTN_H
#define WEFT_ATTN_ATTN_H

#include "batch/batch.h"
#include "comm/comm.h"
#include "kern/kern.h"
#include "kern/memory.h"

/* Planted faults that only this file can show (src/engine/fault.h). */
typedef enum attn_fault {
    ATTN_FAULT_NONE,
    ATTN_FAULT_WRITE_TWICE,
    ATTN_FAULT_OWN_TWICE,
    ATTN_FAULT_EARLY_EXIT
} attn_fault;

/* What differs between the layers of a model; sizes of one head. */
typedef struct attn_shape {
    int32_t n_kv_head;           /* local */
    int32_t head_dim, value_dim; /* of K, of V */
    bool value_in_key;           /* as in kern_kv */
    int32_t window;              /* 0: none */
    int32_t group;               /* whose pages hold its K and V */
    float scale;
    kern_mem sinks;  /* f32 [local heads] or 0 */
    bool reads_only; /* the cache is another layer's: there is nothing new to deliver */
} attn_shape;

typedef struct attn_rank {
    const kern_table *k;
    kern_dev *dev;
    comm *comm;
    const topo *topo;
    kern_kv_type kv_type;
    int32_t n_head; /* local */
    /* by group: bytes from page to page of one layer in the cache; its owner sets them */
    size_t page_stride[KV_MAX_GROUP];
    attn_fault fault;

    /* Trees over the V shards: what each DCP member's own shards fold to, and the rest at home. */
    tree_prog cover;                /* of this rank */
    int32_t n_emit[TOPO_MAX_WORLD]; /* nodes that each DCP member sends per token and head */
    tree_prog finish;               /* over all members' nodes */
    tree_prog whole, root;          /* all shards on one rank; one finished node */

    /* Buffers, part of the rank's memory plan; as large as the largest shape needs. */
    kern_mem
        q; /* f32 [query_cap][n_head][head_dim]: gathered pass-Q tokens, then own pass-KV tokens */
    kern_mem wire_send;  /* [tok_cap] wire rows, by owner */
    kern_mem wire_recv;  /* [recv_cap] wire rows */
    kern_mem state;      /* [query_cap][n_head][n_emit own] states of the gathered tokens */
    kern_mem state_recv; /* per other member [tok_cap][n_head][its n_emit] */
    kern_mem state_kv;   /* [tok_cap][n_head] root states of own pass-KV tokens */
    kern_mem
        page_send; /* [batch_round_send_cap] pages of one layer, destination after destination */
    kern_mem page_recv; /* [round_pages] pages of one layer */
} attn_rank;

/* The most that a layer has of each. */
typedef struct attn_most {
    int32_t head_dim, value_dim;
    size_t token_bytes; /* of one token in the cache, all local heads */
} attn_most;

/* Fills the facts and adds the buffers to the plan. dev, comm may be NULL while planning without
 * running. */
void attn_rank_init(attn_rank *a, const kern_table *k, kern_dev *dev, comm *c, const topo *t,
                    kern_kv_type kv_type, attn_most most, const batch_builder *b,
                    int32_t round_pages, attn_fault fault, kern_memory *plan);

/* Where the plan of the exchange changes for a fault (fault.c); called by attn_rank_init. */
void attn_fault_plan(attn_rank *a);

/* Bytes of one token's wire row, and of one page of one layer. */
size_t attn_wire_bytes(const attn_rank *a, const attn_shape *s);
size_t attn_page_bytes(const attn_rank *a, const attn_shape *s);

/* One layer. Before it, qk_rope has written a->q (by at_q) and a->wire_send (by at_kv). `block`:
 * the uploaded step block; `pages`: page 0 of the cache that this layer reads. Writes out rows
 * [0, n_tok). */
weft_status attn_layer(attn_rank *a, const batch_local *b, kern_mem block, kern_mem pages,
                       const attn_shape *s, kern_act out);

#endif
