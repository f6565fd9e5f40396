/* Inside of batch_builder, shared by the files of this folder only. */
#ifndef WEFT_BATCH_BUILDER_H
#define WEFT_BATCH_BUILDER_H

#include <assert.h>

#include "batch/batch.h"

/* How one request of the batch is cut over the PCP ranks, and how its attention is exchanged. */
typedef struct batch_share {
    int32_t whole;  /* PCP rank that takes all new tokens; -1: cut into chunks */
    int32_t turn;   /* chunks v and 2 * pcp - 1 - v belong to PCP rank (v + turn) mod pcp */
    int32_t round;  /* pass-KV round; -1: pass-Q */
    int32_t n_page; /* logical pages up to the last new token */
    int32_t table;  /* its page tables in the block, from at_table; -1: not there */
} batch_share;

struct batch_builder {
    const topo *topo; /* borrowed until close */
    batch_caps caps;
    int32_t tok_cap, row_cap, query_cap, block_cap;
    int32_t send_cap; /* pages that an owner sends to one destination in a round at most */
    int32_t *owner;   /* [kv_shards] DCP rank that owns the pages i with i mod V = index */

    /* Of the batch in work: every PCP rank's rows, because exchanges are derived from all. */
    batch_share *share;                                     /* [max_reqs] */
    batch_row *row;                                         /* [pcp][row_cap] */
    int32_t n_row[TOPO_MAX_WORLD], n_q_row[TOPO_MAX_WORLD]; /* [pcp] rows; pass-Q rows, in front */
    int32_t n_tok[TOPO_MAX_WORLD], n_q_tok[TOPO_MAX_WORLD]; /* [pcp] the same in tokens */
    int32_t n_round;

    batch_logit *logit; /* [tok_cap] */
    batch_round *round; /* [max_reqs][n_group] */
    int32_t *block;     /* [block_cap] */
    int32_t n_block;
};

static inline const batch_row *batch_rows_of(const batch_builder *b, int32_t c) {
    return b->row + (size_t)c * (size_t)b->row_cap;
}

static inline int32_t batch_owner(const batch_builder *b, int32_t logical_page) {
    return b->owner[logical_page % b->topo->kv_shards];
}

/* The first logical page of a group that the new tokens of a request see. */
static inline int32_t batch_first_page(const batch_builder *b, int32_t group,
                                       const batch_request *r) {
    return kv_first_page(b->caps.window[group], b->caps.page_tokens, r->start);
}

/* Takes n ints of the block; the index of the first. */
static inline int32_t batch_block_take(batch_builder *b, int32_t n) {
    int32_t at = b->n_block;
    assert(n <= b->block_cap - at);
    b->n_block += n;
    return at;
}

/* partition.c: fills share, row, n_row, n_q_row, n_tok, n_q_tok and n_round. */
void batch_partition(batch_builder *b, const batch_global *g);
/* True when PCP rank c owns new tokens of request `req`. */
bool batch_has_rows(const batch_builder *b, const batch_global *g, int32_t req, int32_t c);
/* The most tokens that a rank can own under caps (partition.c proves it). */
int32_t batch_partition_tok_cap(const batch_caps *caps, int32_t pcp);

/* exchange.c */
void batch_deliver_build(batch_builder *b, const batch_global *g, batch_local *out);
/* Query buffer places, spans and page tables of both exchanges, and the rounds' page lists. */
void batch_exchange_build(batch_builder *b, const batch_global *g, batch_local *out);

#endif
