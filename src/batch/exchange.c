/* What a rank sends and receives in a step: new K/V to page owners, queries to pages (pass-Q),
 * pages to queries (pass-KV). */
#include <string.h>

#include "batch/builder.h"
#include "kern/kern.h"

enum { SPAN_INTS = (int32_t)(sizeof(kern_span) / sizeof(int32_t)) };
static_assert(SPAN_INTS == 6, "a span is 6 ints of the step block");

/* A run of a row's positions in one page: the next one from *pos on. */
typedef struct page_run {
    int32_t page, pos, len;
} page_run;

static bool next_page_run(const batch_row *row, int32_t page_tokens, int32_t *pos, page_run *out) {
    int32_t end = row->start + row->len;
    if (*pos >= end) {
        return false;
    }
    out->page = *pos / page_tokens;
    out->pos = *pos;
    out->len = page_tokens - *pos % page_tokens;
    out->len = out->len < end - *pos ? out->len : end - *pos;
    *pos += out->len;
    return true;
}

/* ---- deliver KV ---- */

/* Own tokens in the wire buffer: owner 0's, owner 1's, ...; within an owner by local token. */
static void build_wire(batch_builder *b, batch_local *out) {
    const topo *t = b->topo;
    const batch_row *row = batch_rows_of(b, t->c);
    int32_t n_of[TOPO_MAX_WORLD] = {0};
    int32_t at_of[TOPO_MAX_WORLD];
    page_run run;
    for (int32_t i = 0; i < b->n_row[t->c]; i++) {
        for (int32_t pos = row[i].start; next_page_run(&row[i], b->caps.page_tokens, &pos, &run);) {
            n_of[batch_owner(b, run.page)] += run.len;
        }
    }
    for (int32_t r = 0, at = 0; r < t->sizes.dcp; at += n_of[r++]) {
        at_of[r] = at;
    }
    for (int32_t c = 0; c < t->sizes.pcp; c++) {
        out->kv_send_n[c] = n_of[t->pcp_dcp_rank[c]];
        out->kv_send_at[c] = at_of[t->pcp_dcp_rank[c]];
    }
    int32_t *at_kv = b->block + out->at_kv;
    for (int32_t i = 0; i < b->n_row[t->c]; i++) {
        for (int32_t pos = row[i].start; next_page_run(&row[i], b->caps.page_tokens, &pos, &run);) {
            int32_t tok = row[i].tok0 + run.pos - row[i].start;
            int32_t owner = batch_owner(b, run.page);
            for (int32_t k = 0; k < run.len; k++) {
                at_kv[tok + k] = at_of[owner]++;
            }
        }
    }
}

/* Tokens of all PCP members that stand in pages of this rank, member after member. */
static void count_received(const batch_builder *b, batch_local *out) {
    const topo *t = b->topo;
    for (int32_t c = 0; c < t->sizes.pcp; c++) {
        const batch_row *row = batch_rows_of(b, c);
        out->kv_recv_at[c] = out->n_recv;
        for (int32_t i = 0; i < b->n_row[c]; i++) {
            page_run run;
            for (int32_t pos = row[i].start;
                 next_page_run(&row[i], b->caps.page_tokens, &pos, &run);) {
                out->n_recv += batch_owner(b, run.page) == t->dcp_rank ? run.len : 0;
            }
        }
        out->kv_recv_n[c] = out->n_recv - out->kv_recv_at[c];
    }
}

/* Where they are kept in a group's pages. */
static void build_slots(batch_builder *b, const batch_global *g, batch_local *out, int32_t group) {
    const topo *t = b->topo;
    int32_t page_tokens = b->caps.page_tokens;
    out->at_slot[group] = batch_block_take(b, out->n_recv);
    int32_t *slot = b->block + out->at_slot[group];
    for (int32_t c = 0; c < t->sizes.pcp; c++) {
        const batch_row *row = batch_rows_of(b, c);
        for (int32_t i = 0; i < b->n_row[c]; i++) {
            page_run run;
            for (int32_t pos = row[i].start; next_page_run(&row[i], page_tokens, &pos, &run);) {
                if (batch_owner(b, run.page) != t->dcp_rank) {
                    continue;
                }
                int32_t first = g->req[row[i].req].page[group][run.page] * page_tokens;
                assert(first >= 0);
                for (int32_t k = 0; k < run.len; k++) {
                    *slot++ = first + run.pos % page_tokens + k;
                }
            }
        }
    }
}

void batch_deliver_build(batch_builder *b, const batch_global *g, batch_local *out) {
    out->at_kv = batch_block_take(b, out->n_tok);
    build_wire(b, out);
    count_received(b, out);
    for (int32_t group = 0; group < b->caps.n_group; group++) {
        build_slots(b, g, out, group);
    }
}

/* ---- attend ---- */

/* Query buffer: the DCP group's pass-Q tokens, member after member, then own pass-KV tokens. */
static void build_query_places(batch_builder *b, batch_local *out) {
    const topo *t = b->topo;
    for (int32_t m = 0; m < t->sizes.dcp; m++) {
        out->q_n[m] = b->n_q_tok[t->dcp_c[m]];
        out->q_at[m] = out->n_gather;
        out->n_gather += out->q_n[m];
    }
    int32_t *at_q = b->block + out->at_q;
    for (int32_t i = 0; i < out->n_q_tok; i++) {
        at_q[i] = out->q_at[t->dcp_rank] + i;
    }
    for (int32_t i = out->n_q_tok; i < out->n_tok; i++) {
        at_q[i] = out->n_gather + i - out->n_q_tok;
    }
}

static void put_span(batch_builder *b, int32_t at, const batch_row *row, int32_t q0) {
    const kern_span span = {.q0 = q0,
                            .len = row->len,
                            .pos = row->start,
                            .first_key = 0,
                            .table = b->share[row->req].table,
                            .n_page = (row->start + row->len - 1) / b->caps.page_tokens + 1};
    memcpy(b->block + at, &span, sizeof span);
}

/* Places of the page tables, alike in all groups: one for each request that has pass-Q rows in the
 * DCP group or pass-KV rows here. The ints of a group's tables. */
static int32_t place_tables(batch_builder *b, const batch_global *g) {
    const topo *t = b->topo;
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_req; i++) {
        batch_share *s = &b->share[i];
        bool here = s->round >= 0 && batch_has_rows(b, g, i, t->c);
        for (int32_t m = 0; m < t->sizes.dcp && s->round < 0 && !here; m++) {
            here = batch_has_rows(b, g, i, t->dcp_c[m]);
        }
        s->table = here ? n : -1;
        n += here ? s->n_page : 0;
    }
    return n;
}

/* Spans over the gathered tokens. */
static void build_pass_q(batch_builder *b, batch_local *out) {
    const topo *t = b->topo;
    int32_t at = out->at_span;
    for (int32_t m = 0; m < t->sizes.dcp; m++) {
        const batch_row *row = batch_rows_of(b, t->dcp_c[m]);
        for (int32_t i = 0; i < b->n_q_row[t->dcp_c[m]]; i++, at += SPAN_INTS) {
            put_span(b, at, &row[i], out->q_at[m] + row[i].tok0);
        }
    }
}

/* Tables of pass-Q requests: their pages in the pools. */
static void fill_tables(batch_builder *b, const batch_global *g, batch_local *out, int32_t group) {
    for (int32_t i = 0; i < g->n_req; i++) {
        const batch_share *s = &b->share[i];
        if (s->round >= 0 || s->table < 0) {
            continue;
        }
        int32_t *table = b->block + out->at_table[group] + s->table;
        memcpy(table, g->req[i].page[group], (size_t)s->n_page * sizeof table[0]);
        for (int32_t page = 0; page < batch_first_page(b, group, &g->req[i]); page++) {
            table[page] = -1;
        }
    }
}

/* Requests [lo, hi) of the batch; those of round k are the pass-KV ones among them. */
typedef struct round_range {
    int32_t k, lo, hi;
} round_range;

static bool next_round(const batch_builder *b, const batch_global *g, round_range *r) {
    r->k++;
    r->lo = r->hi;
    while (r->hi < g->n_req && b->share[r->hi].round <= r->k) {
        r->hi++;
    }
    return r->k < b->n_round;
}

/* Pages [first, n_page) of a request that DCP rank r owns. */
static int32_t pages_owned(const batch_builder *b, int32_t r, int32_t first, int32_t n_page) {
    return topo_pages_owned(b->topo, r, n_page) - topo_pages_owned(b->topo, r, first);
}

/* Pages of a round that this rank receives, and where each logical page of its requests lands:
 *
 *   dcp 2, requests A (pages 0..2) and B (pages 0..1), rows of both here:
 *   from member 0: A0 A2 B0    from member 1: A1 B1
 *   table of A: 0 3 1    table of B: 2 4 */
static void build_round_in(batch_builder *b, const batch_global *g, const batch_local *out,
                           const round_range *r, int32_t group) {
    const topo *t = b->topo;
    batch_round *round = &b->round[r->k * b->caps.n_group + group];
    for (int32_t m = 0; m < t->sizes.dcp; m++) {
        round->recv_at[m] = round->n_recv;
        for (int32_t i = r->lo; i < r->hi; i++) {
            if (b->share[i].round == r->k && b->share[i].table >= 0) {
                round->n_recv +=
                    pages_owned(b, m, batch_first_page(b, group, &g->req[i]), b->share[i].n_page);
            }
        }
        round->recv_n[m] = round->n_recv - round->recv_at[m];
    }
    int32_t next[TOPO_MAX_WORLD];
    memcpy(next, round->recv_at, sizeof next);
    for (int32_t i = r->lo; i < r->hi; i++) {
        const batch_share *s = &b->share[i];
        if (s->round != r->k || s->table < 0) {
            continue;
        }
        int32_t *table = b->block + out->at_table[group] + s->table;
        int32_t first = batch_first_page(b, group, &g->req[i]);
        for (int32_t page = 0; page < s->n_page; page++) {
            table[page] = page < first ? -1 : next[batch_owner(b, page)]++;
        }
    }
}

/* Own pages of a round's requests for every member that has rows of them. */
static void build_round_out(batch_builder *b, const batch_global *g, const round_range *r,
                            int32_t group) {
    const topo *t = b->topo;
    batch_round *round = &b->round[r->k * b->caps.n_group + group];
    round->at_send = b->n_block;
    for (int32_t m = 0; m < t->sizes.dcp; m++) {
        round->send_at[m] = round->n_send;
        for (int32_t i = r->lo; i < r->hi; i++) {
            const batch_share *s = &b->share[i];
            if (s->round != r->k || !batch_has_rows(b, g, i, t->dcp_c[m])) {
                continue;
            }
            for (int32_t page = batch_first_page(b, group, &g->req[i]); page < s->n_page; page++) {
                if (batch_owner(b, page) == t->dcp_rank) {
                    assert(g->req[i].page[group][page] >= 0);
                    b->block[batch_block_take(b, 1)] = g->req[i].page[group][page];
                    round->n_send++;
                }
            }
        }
        round->send_n[m] = round->n_send - round->send_at[m];
    }
}

/* Spans over own pass-KV tokens, the same in all groups. */
static void build_round_spans(batch_builder *b, const batch_local *out, int32_t at_span) {
    const topo *t = b->topo;
    const batch_row *row = batch_rows_of(b, t->c);
    int32_t i = b->n_q_row[t->c], n_group = b->caps.n_group;
    for (int32_t k = 0; k < b->n_round; k++) {
        batch_round *round = &b->round[k * n_group];
        round->at_span = at_span;
        for (; i < b->n_row[t->c] && b->share[row[i].req].round == k; i++) {
            put_span(b, at_span, &row[i], out->n_gather + row[i].tok0 - out->n_q_tok);
            at_span += SPAN_INTS;
            round->n_span++;
        }
        for (int32_t group = 1; group < n_group; group++) {
            round[group].at_span = round->at_span;
            round[group].n_span = round->n_span;
        }
    }
}

static void build_pass_kv(batch_builder *b, const batch_global *g, batch_local *out,
                          int32_t at_span) {
    memset(b->round, 0, (size_t)b->n_round * (size_t)b->caps.n_group * sizeof b->round[0]);
    build_round_spans(b, out, at_span);
    for (round_range r = {.k = -1}; next_round(b, g, &r);) {
        for (int32_t group = 0; group < b->caps.n_group; group++) {
            build_round_in(b, g, out, &r, group);
            build_round_out(b, g, &r, group);
        }
    }
    out->n_round = b->n_round;
    out->round = b->round;
}

void batch_exchange_build(batch_builder *b, const batch_global *g, batch_local *out) {
    const topo *t = b->topo;
    out->at_q = batch_block_take(b, out->n_tok);
    build_query_places(b, out);
    for (int32_t m = 0; m < t->sizes.dcp; m++) {
        out->n_span += b->n_q_row[t->dcp_c[m]];
    }
    out->at_span = batch_block_take(b, out->n_span * SPAN_INTS);
    int32_t n_kv_row = b->n_row[t->c] - b->n_q_row[t->c];
    int32_t at_kv_span = batch_block_take(b, n_kv_row * SPAN_INTS);
    int32_t n_table = place_tables(b, g);
    for (int32_t group = 0; group < b->caps.n_group; group++) {
        out->at_table[group] = batch_block_take(b, n_table);
        fill_tables(b, g, out, group);
    }
    build_pass_q(b, out);
    build_pass_kv(b, g, out, at_kv_span);
}
