/* Plan -> global batch -> local batch: which rows, pages, slots and exchange counts are this rank's
 * in this step.
 *
 * One function partitions (batch_build). It reads the global batch alone, so every rank derives the
 * same collectives. Integers only. Field terms: a row is a run of new tokens of one request on one
 * rank; tokens of a rank are numbered 0..n_tok-1, row after row, rows of pass-Q requests first,
 * then rows of pass-KV requests; within each, requests in batch order, positions ascending. */
#ifndef WEFT_BATCH_BATCH_H
#define WEFT_BATCH_BATCH_H

#include "base/status.h"
#include "batch/plan.h"
#include "topo/topo.h"

typedef struct batch_request {
    int32_t slot, start, n_new;
    int32_t n_logits; /* the last n_logits of the new tokens need a logits row */
    bool sample;      /* the last new token's row is sampled */
    bool decode;
    const int32_t *token; /* [start + n_new] */
    /* By group of layers, [ceil((start + n_new) / P)] each: physical page in its owner's pool. What
     * no position of the run sees may be -1. */
    const int32_t *page[KV_MAX_GROUP];
} batch_request;

typedef struct batch_global {
    int64_t step;
    int32_t kind; /* PLAN_* */
    int32_t n_req;
    batch_request *req;
} batch_global;

typedef struct batch_row {
    int32_t req, start, len, tok0; /* positions [start, start + len) are local tokens tok0.. */
} batch_row;

typedef struct batch_logit {
    int32_t req, position, tok; /* tok: local token */
    bool sample;
} batch_logit;

/* One exchange of whole pages of a group of layers, for pass-KV requests: those that a row of
 * theirs sees. Counts in pages, arrays over the DCP group. */
typedef struct batch_round {
    int32_t n_send, at_send; /* send list in the block: page ids of this rank's pool, destination
                                after destination */
    int32_t send_n[TOPO_MAX_WORLD], send_at[TOPO_MAX_WORLD];
    int32_t recv_n[TOPO_MAX_WORLD], recv_at[TOPO_MAX_WORLD];
    int32_t n_recv;
    int32_t n_span,
        at_span; /* spans over this rank's own pass-KV tokens; their tables hold recv positions */
} batch_round;

/* Fixed sizes, from the engine's plan. */
typedef struct batch_caps {
    int32_t max_reqs;        /* requests in a step */
    int32_t max_step_tokens; /* token rows of all ranks in a step */
    int32_t max_pages;       /* logical pages of one request */
    int32_t page_tokens;
    int32_t round_pages;    /* pages that one pass-KV round may bring to a rank; >= max_pages */
    int32_t min_split;      /* prefills of fewer new tokens stay whole on one rank; >= 1 */
    weft_exchange exchange; /* AUTO: per request by bytes */
    /* Of a layer, for the byte rule; kv_bytes: of a token and KV head in the cache. */
    int32_t head_dim, value_dim, kv_bytes;
    int32_t n_group;              /* of layers; each has its own pages */
    int32_t window[KV_MAX_GROUP]; /* by group; 0: none */
} batch_caps;

typedef struct batch_local {
    int32_t n_req, n_tok, n_row, n_q_tok; /* tokens [0, n_q_tok) are pass-Q, the rest pass-KV */
    const batch_row *row;                 /* [n_row] */
    int32_t n_logit;
    const batch_logit *logit;        /* [n_logit], ascending local token */
    int32_t logit_n[TOPO_MAX_WORLD]; /* [pcp] logits rows of each PCP rank */
    int32_t tok_n[TOPO_MAX_WORLD];   /* [pcp] tokens of each PCP rank */

    /* The packed step block, uploaded once: i32 [n_block]; at_*: index of the first element. */
    int32_t *block;
    int32_t n_block;
    int32_t at_id, at_pos; /* [n_tok] token id, position */
    int32_t at_q, at_kv;   /* [n_tok] row of the query buffer, row of the wire buffer */
    int32_t at_logit;      /* [n_logit] local token */
    /* by group: [n_recv] slot of each received wire row, page * P + offset; never negative */
    int32_t at_slot[KV_MAX_GROUP];
    int32_t at_span, n_span; /* pass-Q spans over the gathered query buffer (kern_span) */
    /* by group: page tables that the spans point into (kern_span.table is relative to this); alike
     * in all groups but for the pages in them, and -1 where no row sees the page */
    int32_t at_table[KV_MAX_GROUP];

    /* Deliver KV: wire rows over the PCP group. Tokens stand in the wire buffer by owner; members
     * with the same owner number are sent the same range. recv: in order of member, each member's
     * tokens in its wire order. */
    int32_t kv_send_n[TOPO_MAX_WORLD], kv_send_at[TOPO_MAX_WORLD];
    int32_t kv_recv_n[TOPO_MAX_WORLD], kv_recv_at[TOPO_MAX_WORLD];
    int32_t n_recv;

    /* Pass-Q over the DCP group: member m's q_n[m] tokens stand at row q_at[m] of the query buffer
     * (rank-major); own pass-KV tokens follow at n_gather. This rank's own slice is at q_at[own].
     */
    int32_t q_n[TOPO_MAX_WORLD], q_at[TOPO_MAX_WORLD];
    int32_t n_gather;

    int32_t n_group, n_round;
    const batch_round *round; /* [n_round][n_group] */
} batch_local;

typedef struct batch_builder batch_builder;
weft_status batch_builder_open(const topo *t, const batch_caps *caps, batch_builder **out,
                               weft_error *err);
void batch_builder_close(batch_builder *b);
/* Ints that a step block can need at most; token rows that one rank can own at most; query-buffer
 * rows at most (gathered + own). */
int32_t batch_block_cap(const batch_builder *b);
int32_t batch_tok_cap(const batch_builder *b);
int32_t batch_step_cap(const batch_builder *b); /* token rows of all ranks in a step at most */
int32_t batch_query_cap(const batch_builder *b);
int32_t batch_recv_cap(const batch_builder *b); /* wire rows received at most */
bool batch_moves_pages(const batch_builder *b); /* some request may take pass-KV */
/* Pages that a rank sends in one pass-KV round at most, all destinations together. */
int32_t batch_round_send_cap(const batch_builder *b);

/* Builds this rank's view. *out and what it points to stay valid until the next build. Never fails:
 * the plan respects the caps. */
void batch_build(batch_builder *b, const batch_global *g, batch_local *out);

/* The cut of n new tokens over pcp ranks: chunk i of 2 * pcp starts at batch_chunk_start(n, pcp,
 * i); sizes differ by at most one. */
int32_t batch_chunk_start(int32_t n, int32_t pcp, int32_t i);
/* Bytes of a layer that either exchange moves for a request, and the exchange that moves fewer, pass-Q
 * of equal ones: the rule of the design, from global numbers. */
typedef struct batch_moved {
    int64_t q, kv;
} batch_moved;
batch_moved batch_bytes_moved(const batch_caps *caps, const topo *t, int32_t start, int32_t n_new);
weft_exchange batch_choose_exchange(const batch_caps *caps, const topo *t, int32_t start,
                                    int32_t n_new);

#endif
