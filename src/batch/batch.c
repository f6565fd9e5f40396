#include "batch/batch.h"

#include <stdlib.h>
#include <string.h>

#include "batch/builder.h"
#include "kern/kern.h"

/* ---- capacities ---- */

static weft_status check_caps(const batch_caps *c, weft_error *err) {
    if (c->max_reqs < 1 || c->max_step_tokens < 1 || c->max_pages < 1 || c->page_tokens < 1 ||
        c->min_split < 1 || c->head_dim < 1 || c->kv_bytes < 1) {
        return error_set(err, WEFT_ERR_SETUP,
                         "batch: every size must be at least 1: %d requests, %d tokens a step, %d "
                         "pages of %d tokens, cp_min_split %d, head size %d, K/V bytes %d",
                         c->max_reqs, c->max_step_tokens, c->max_pages, c->page_tokens,
                         c->min_split, c->head_dim, c->kv_bytes);
    }
    if (c->n_group < 1 || c->n_group > KV_MAX_GROUP) {
        return error_set(err, WEFT_ERR_SETUP, "batch: %d groups of layers, 1 to %d are possible",
                         c->n_group, KV_MAX_GROUP);
    }
    if (c->round_pages < c->max_pages) {
        return error_set(err, WEFT_ERR_SETUP,
                         "batch: a pass-KV round of %d pages cannot take a request of %d pages",
                         c->round_pages, c->max_pages);
    }
    return WEFT_OK;
}

static int64_t min64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

bool batch_moves_pages(const batch_builder *b) {
    return b->topo->sizes.dcp > 1 && b->caps.exchange != WEFT_EXCHANGE_Q;
}

/* Ints of the step block at most: id, position, places in the query and wire buffers and logits
 * index of own tokens; spans of the DCP group's pass-Q rows and of own pass-KV rows; and for each
 * group of layers a slot per received token, one table per request, own pages of all requests for
 * every member. */
static int64_t max_block(const batch_builder *b) {
    const topo *t = b->topo;
    int64_t span_ints = (int64_t)(sizeof(kern_span) / sizeof(int32_t));
    int64_t rows = min64(b->row_cap, b->tok_cap);
    int64_t of_group = b->caps.max_step_tokens + (int64_t)b->caps.max_reqs * b->caps.max_pages;
    if (batch_moves_pages(b)) {
        of_group += (int64_t)b->caps.max_reqs * t->sizes.dcp *
                    topo_pages_owned(t, t->dcp_rank, b->caps.max_pages);
    }
    return 5 * (int64_t)b->tok_cap + (t->sizes.dcp + 1) * rows * span_ints +
           b->caps.n_group * of_group;
}

/* A token of a PCP rank stands in the query buffer once per member with that PCP index, at most
 * ceil(dcp / pcp) times; own pass-KV tokens once. */
static int64_t max_query(const batch_builder *b) {
    topo_sizes s = b->topo->sizes;
    int64_t copies = (s.dcp + s.pcp - 1) / s.pcp;
    return min64((int64_t)s.dcp * b->tok_cap, copies * b->caps.max_step_tokens);
}

static weft_status set_caps(batch_builder *b, weft_error *err) {
    int32_t pcp = b->topo->sizes.pcp;
    b->tok_cap = batch_partition_tok_cap(&b->caps, pcp);
    int64_t rows = 2 * (int64_t)b->caps.max_reqs;
    if (rows * pcp > INT32_MAX) {
        return error_set(err, WEFT_ERR_SETUP, "batch: %d requests on %d PCP ranks are too many",
                         b->caps.max_reqs, pcp);
    }
    b->row_cap = (int32_t)rows;
    for (int32_t r = 0; r < b->topo->sizes.dcp; r++) {
        int32_t owned = topo_pages_owned(b->topo, r, b->caps.round_pages);
        b->send_cap = owned > b->send_cap ? owned : b->send_cap;
    }
    int64_t block = max_block(b);
    int64_t query = max_query(b);
    if (block > INT32_MAX || query > INT32_MAX) {
        return error_set(err, WEFT_ERR_SETUP,
                         "batch: a step of %d requests, %d tokens and %d pages each needs %lld "
                         "ints, at most %d are possible",
                         b->caps.max_reqs, b->caps.max_step_tokens, b->caps.max_pages,
                         (long long)block, INT32_MAX);
    }
    b->block_cap = (int32_t)block;
    b->query_cap = (int32_t)query;
    return WEFT_OK;
}

/* ---- life ---- */

weft_status batch_builder_open(const topo *t, const batch_caps *caps, batch_builder **out,
                               weft_error *err) {
    weft_status status = check_caps(caps, err);
    if (status != WEFT_OK) {
        return status;
    }
    batch_builder *b = calloc(1, sizeof *b);
    if (!b) {
        return error_set(err, WEFT_ERR_MEMORY, "batch: no memory for the builder");
    }
    b->topo = t;
    b->caps = *caps;
    status = set_caps(b, err);
    if (status != WEFT_OK) {
        goto undo_builder;
    }
    b->owner = calloc((size_t)t->kv_shards, sizeof b->owner[0]);
    b->share = calloc((size_t)caps->max_reqs, sizeof b->share[0]);
    b->row = calloc((size_t)t->sizes.pcp * (size_t)b->row_cap, sizeof b->row[0]);
    b->logit = calloc((size_t)b->tok_cap, sizeof b->logit[0]);
    b->round = calloc((size_t)caps->max_reqs * (size_t)caps->n_group, sizeof b->round[0]);
    b->block = calloc((size_t)b->block_cap, sizeof b->block[0]);
    if (!b->owner || !b->share || !b->row || !b->logit || !b->round || !b->block) {
        status = error_set(err, WEFT_ERR_MEMORY, "batch: no memory for a step block of %d ints",
                           b->block_cap);
        goto undo_builder;
    }
    for (int32_t page = 0; page < t->kv_shards; page++) {
        b->owner[page] = topo_page_owner(t, page);
    }
    *out = b;
    return WEFT_OK;
undo_builder:
    batch_builder_close(b);
    return status;
}

void batch_builder_close(batch_builder *b) {
    if (!b) {
        return;
    }
    free(b->block);
    free(b->round);
    free(b->logit);
    free(b->row);
    free(b->share);
    free(b->owner);
    free(b);
}

int32_t batch_block_cap(const batch_builder *b) {
    return b->block_cap;
}

int32_t batch_tok_cap(const batch_builder *b) {
    return b->tok_cap;
}

int32_t batch_step_cap(const batch_builder *b) {
    return b->caps.max_step_tokens;
}

int32_t batch_query_cap(const batch_builder *b) {
    return b->query_cap;
}

int32_t batch_recv_cap(const batch_builder *b) {
    return b->caps.max_step_tokens; /* all of them may stand in this rank's pages */
}

int32_t batch_round_send_cap(const batch_builder *b) {
    return batch_moves_pages(b) ? b->topo->sizes.dcp * b->send_cap : 0;
}

/* ---- build ---- */

static void build_tokens(batch_builder *b, const batch_global *g, batch_local *out) {
    out->at_id = batch_block_take(b, out->n_tok);
    out->at_pos = batch_block_take(b, out->n_tok);
    for (int32_t i = 0; i < out->n_row; i++) {
        const batch_row *row = &out->row[i];
        for (int32_t k = 0; k < row->len; k++) {
            b->block[out->at_id + row->tok0 + k] = g->req[row->req].token[row->start + k];
            b->block[out->at_pos + row->tok0 + k] = row->start + k;
        }
    }
}

/* Tokens of a row that need a logits row: the last ones of it, from this position on. */
static int32_t first_logit(const batch_request *r, const batch_row *row) {
    int32_t first = r->start + r->n_new - r->n_logits;
    return first > row->start ? first : row->start;
}

static void build_logits(batch_builder *b, const batch_global *g, batch_local *out) {
    const topo *t = b->topo;
    for (int32_t c = 0; c < t->sizes.pcp; c++) {
        const batch_row *row = batch_rows_of(b, c);
        for (int32_t i = 0; i < b->n_row[c]; i++) {
            int32_t n = row[i].start + row[i].len - first_logit(&g->req[row[i].req], &row[i]);
            out->logit_n[c] += n > 0 ? n : 0;
        }
    }
    out->n_logit = 0;
    out->at_logit = batch_block_take(b, out->logit_n[t->c]);
    for (int32_t i = 0; i < out->n_row; i++) {
        const batch_row *row = &out->row[i];
        const batch_request *r = &g->req[row->req];
        for (int32_t pos = first_logit(r, row); pos < row->start + row->len; pos++) {
            int32_t tok = row->tok0 + pos - row->start;
            bool last = pos == r->start + r->n_new - 1;
            b->block[out->at_logit + out->n_logit] = tok;
            b->logit[out->n_logit++] = (batch_logit){row->req, pos, tok, last && r->sample};
        }
    }
    out->logit = b->logit;
}

void batch_build(batch_builder *b, const batch_global *g, batch_local *out) {
    int32_t c = b->topo->c;
    batch_partition(b, g);
    b->n_block = 0;
    memset(out, 0, sizeof *out);
    out->n_req = g->n_req;
    out->n_group = b->caps.n_group;
    out->n_tok = b->n_tok[c];
    memcpy(out->tok_n, b->n_tok, (size_t)b->topo->sizes.pcp * sizeof *b->n_tok);
    out->n_row = b->n_row[c];
    out->n_q_tok = b->n_q_tok[c];
    out->row = batch_rows_of(b, c);
    build_tokens(b, g, out);
    build_logits(b, g, out);
    batch_deliver_build(b, g, out);
    batch_exchange_build(b, g, out);
    out->block = b->block;
    out->n_block = b->n_block;
}
