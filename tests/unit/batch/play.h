/* All ranks of a world build the same step in one process; their exchanges are then played through
 * with integers: a token is its key, a page is its (request, logical number). */
#ifndef WEFT_TEST_BATCH_PLAY_H
#define WEFT_TEST_BATCH_PLAY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "batch/batch.h"
#include "kern/kern.h"

enum {
    MAX_RANK = 16,
    MAX_REQ = 12,
    MAX_POS = 3008,
    MAX_TOK = 3200,
    MAX_QUERY = 16 * MAX_TOK,
    PLAY_GROUPS = 2
};

static uint64_t random_state = 0x2545f4914f6cdd1du;
static inline uint32_t random_u32(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}
/* [lo, hi] */
static inline int32_t random_in(int32_t lo, int32_t hi) {
    return lo + (int32_t)(random_u32() % (uint32_t)(hi - lo + 1));
}

/* ---- world and step ---- */

typedef struct world {
    topo_model model;
    topo_sizes s;
    batch_caps caps;
    int32_t n;
    topo t[MAX_RANK];
    batch_builder *b[MAX_RANK];
    batch_local l[MAX_RANK];
} world;

typedef struct step {
    batch_global g;
    batch_request req[MAX_REQ];
    int32_t token[MAX_REQ][MAX_POS], page[PLAY_GROUPS][MAX_REQ][MAX_POS];
    /* [dcp rank][physical page] -> page_key of what it holds; 0: free */
    int32_t held[PLAY_GROUPS][MAX_RANK][MAX_REQ * MAX_POS];
    int32_t n_slot;                    /* slots in use in a pool at most */
    int32_t owner_c[MAX_REQ][MAX_POS]; /* PCP rank of a new token, by the rows */
} step;

static world w;
static step st;

static inline int32_t key(int32_t req, int32_t pos) {
    return req * MAX_POS + pos + 1;
}

static inline topo_model model_of(int32_t n_head, int32_t n_kv_head) {
    return (topo_model){.n_head = n_head,
                        .n_kv_head = n_kv_head,
                        .head_dim = 32,
                        .ffn = 16 * 720,
                        .hidden = 64,
                        .n_vocab = 100,
                        .leaves_o = 720,
                        .leaves_down = 720,
                        .kv_shards = 16,
                        .panel = 16,
                        .leaf_multiple = 32};
}

static inline batch_caps caps_of(int32_t max_reqs, int32_t max_step_tokens) {
    return (batch_caps){.max_reqs = max_reqs,
                        .max_step_tokens = max_step_tokens,
                        .max_pages = 64,
                        .page_tokens = 16,
                        .round_pages = 64,
                        .min_split = 1,
                        .exchange = WEFT_EXCHANGE_AUTO,
                        .head_dim = 32,
                        .value_dim = 32,
                        .kv_bytes = 2 * 32 * 2,
                        .n_group = 1};
}

static inline void open_world(topo_model m, topo_sizes s, batch_caps caps) {
    assert_int_equal(topo_check(&m, s, NULL), WEFT_OK);
    w.model = m;
    w.s = s;
    w.caps = caps;
    w.n = s.tp * s.pcp;
    assert_true(w.n <= MAX_RANK);
    for (int32_t r = 0; r < w.n; r++) {
        topo_init(&m, s, r, &w.t[r]);
        assert_int_equal(batch_builder_open(&w.t[r], &caps, &w.b[r], NULL), WEFT_OK);
    }
}

static inline void close_world(void) {
    for (int32_t r = 0; r < w.n; r++) {
        batch_builder_close(w.b[r]);
    }
}

static inline void begin_step(void) {
    st.g = (batch_global){.step = 1, .kind = PLAN_STEP, .n_req = 0, .req = st.req};
}

static inline void add(int32_t start, int32_t n_new, bool decode) {
    assert_true(st.g.n_req < MAX_REQ && start + n_new <= MAX_POS);
    int32_t i = st.g.n_req++;
    st.req[i] = (batch_request){.slot = i,
                                .start = start,
                                .n_new = n_new,
                                .n_logits = 1,
                                .sample = true,
                                .decode = decode,
                                .token = st.token[i],
                                .page = {st.page[0][i], st.page[1][i]}};
}

static inline int32_t pages_of(const batch_request *r) {
    return (r->start + r->n_new + w.caps.page_tokens - 1) / w.caps.page_tokens;
}

/* First logical page that a new token of the request sees. */
static inline int32_t first_page(int32_t group, const batch_request *r) {
    int32_t window = w.caps.window[group];
    int32_t key0 = window > 0 ? r->start - (window - 1) : 0;
    return key0 > 0 ? key0 / w.caps.page_tokens : 0;
}

/* Physical pages in each owner's pool in a scattered order; what no token sees is not there. */
static inline void fill_pages(int32_t group) {
    int32_t next[MAX_RANK] = {0};
    for (int32_t i = st.g.n_req - 1; i >= 0; i--) {
        for (int32_t p = 0; p < pages_of(&st.req[i]); p++) {
            st.page[group][i][p] = -1;
            if (p < first_page(group, &st.req[i])) {
                continue;
            }
            int32_t owner = topo_page_owner(&w.t[0], p);
            int32_t id = next[owner]++ ^ 1;
            st.page[group][i][p] = id;
            st.held[group][owner][id] = key(i, p);
        }
    }
}

static inline void fill_step(void) {
    int32_t n_page = 2; /* ids are scattered by one */
    for (int32_t i = 0; i < st.g.n_req; i++) {
        n_page += pages_of(&st.req[i]);
        for (int32_t p = 0; p < st.req[i].start + st.req[i].n_new; p++) {
            st.token[i][p] = key(i, p);
        }
    }
    st.n_slot = n_page * w.caps.page_tokens;
    for (int32_t group = 0; group < w.caps.n_group; group++) {
        for (int32_t r = 0; r < w.s.dcp; r++) {
            memset(st.held[group][r], 0, (size_t)n_page * sizeof st.held[group][r][0]);
        }
        fill_pages(group);
    }
}

static inline bool wants_kv(const batch_request *r) {
    if (w.s.dcp == 1 || w.caps.exchange != WEFT_EXCHANGE_AUTO) {
        return w.s.dcp > 1 && w.caps.exchange == WEFT_EXCHANGE_KV;
    }
    int64_t hk = w.model.n_kv_head > w.s.tp ? w.model.n_kv_head / w.s.tp : 1;
    int64_t hq = w.model.n_head / w.s.tp;
    int64_t d = w.caps.head_dim;
    return (r->start + r->n_new) * hk * w.caps.kv_bytes < r->n_new * hq * (8 * d + 8);
}

/* ---- checks of one step ---- */

/* Own view of a rank: token numbering, order of rows, ids and positions. */
static inline void check_rows(int32_t rank) {
    const batch_local *l = &w.l[rank];
    int32_t tok = 0;
    for (int32_t i = 0; i < l->n_row; i++) {
        const batch_row *row = &l->row[i];
        const batch_request *r = &st.req[row->req];
        assert_true(row->len >= 1 && row->start >= r->start);
        assert_true(row->start + row->len <= r->start + r->n_new);
        assert_int_equal(row->tok0, tok);
        bool kv = wants_kv(r);
        assert_int_equal(kv, tok >= l->n_q_tok);
        if (i > 0 && row->req == row[-1].req) {
            assert_true(row->start > row[-1].start + row[-1].len); /* neighbours are one row */
            assert_true(i < 2 || row[-2].req != row->req);
        } else if (i > 0 && kv == wants_kv(&st.req[row[-1].req])) {
            assert_true(row->req > row[-1].req);
        }
        for (int32_t k = 0; k < row->len; k++, tok++) {
            assert_int_equal(l->block[l->at_id + tok], key(row->req, row->start + k));
            assert_int_equal(l->block[l->at_pos + tok], row->start + k);
        }
    }
    assert_int_equal(tok, l->n_tok);
    const batch_local *peer = &w.l[w.t[rank].c * w.s.tp]; /* same PCP index: same rows */
    assert_int_equal(peer->n_row, l->n_row);
    assert_memory_equal(peer->row, l->row, (size_t)l->n_row * sizeof l->row[0]);
}

/* Every new token has one owner; a request's tokens are spread within one. */
static inline void check_cover(void) {
    int32_t n_of[MAX_REQ][MAX_RANK] = {{0}};
    int32_t n_decode = 0;
    memset(st.owner_c, 0xff, sizeof st.owner_c);
    for (int32_t c = 0; c < w.s.pcp; c++) {
        const batch_local *l = &w.l[c * w.s.tp];
        for (int32_t i = 0; i < l->n_row; i++) {
            for (int32_t k = 0; k < l->row[i].len; k++) {
                int32_t *owner = &st.owner_c[l->row[i].req][l->row[i].start + k];
                assert_int_equal(*owner, -1);
                *owner = c;
            }
            n_of[l->row[i].req][c] += l->row[i].len;
        }
    }
    for (int32_t i = 0; i < st.g.n_req; i++) {
        const batch_request *r = &st.req[i];
        int32_t least = MAX_POS;
        int32_t most = 0;
        for (int32_t p = r->start; p < r->start + r->n_new; p++) {
            assert_in_range(st.owner_c[i][p], 0, w.s.pcp - 1);
        }
        for (int32_t c = 0; c < w.s.pcp; c++) {
            least = n_of[i][c] < least ? n_of[i][c] : least;
            most = n_of[i][c] > most ? n_of[i][c] : most;
        }
        if (r->decode) {
            assert_int_equal(n_of[i][n_decode++ % w.s.pcp], 1);
        } else if (r->n_new < w.caps.min_split) {
            assert_int_equal(most, r->n_new);
        } else {
            assert_true(most - least <= 1);
        }
    }
}

static inline void check_logits(int32_t rank) {
    const batch_local *l = &w.l[rank];
    int32_t n_want[MAX_RANK] = {0};
    for (int32_t i = 0; i < st.g.n_req; i++) {
        const batch_request *r = &st.req[i];
        for (int32_t k = r->n_new - r->n_logits; k < r->n_new; k++) {
            n_want[st.owner_c[i][r->start + k]]++;
        }
    }
    assert_memory_equal(l->logit_n, n_want, (size_t)w.s.pcp * sizeof n_want[0]);
    assert_int_equal(l->n_logit, n_want[w.t[rank].c]);
    for (int32_t i = 0; i < l->n_logit; i++) {
        const batch_logit *g = &l->logit[i];
        const batch_request *r = &st.req[g->req];
        assert_true(i == 0 || g->tok > g[-1].tok);
        assert_int_equal(l->block[l->at_logit + i], g->tok);
        assert_int_equal(l->block[l->at_id + g->tok], key(g->req, g->position));
        assert_true(g->position >= r->start + r->n_new - r->n_logits);
        assert_int_equal(g->sample, r->sample && g->position == r->start + r->n_new - 1);
    }
}

/* Plays the delivery of new K/V: each new token arrives once on every rank that owns its page, in
 * its slot, and nowhere else. */
static inline void check_deliver(int32_t group) {
    static int32_t wire[MAX_RANK][MAX_TOK];
    static int32_t cache[MAX_REQ * MAX_POS];
    int32_t p_tokens = w.caps.page_tokens;
    for (int32_t r = 0; r < w.n; r++) {
        const batch_local *l = &w.l[r];
        memset(wire[r], 0, sizeof wire[r]);
        for (int32_t i = 0; i < l->n_tok; i++) {
            int32_t at = l->block[l->at_kv + i];
            assert_in_range(at, 0, l->n_tok - 1);
            assert_int_equal(wire[r][at], 0);
            wire[r][at] = l->block[l->at_id + i];
        }
    }
    for (int32_t r = 0; r < w.n; r++) {
        const batch_local *l = &w.l[r];
        const topo *t = &w.t[r];
        int32_t n = 0;
        memset(cache, 0, (size_t)st.n_slot * sizeof cache[0]);
        for (int32_t c = 0; c < w.s.pcp; c++) {
            const batch_local *from = &w.l[c * w.s.tp + t->t];
            assert_int_equal(from->kv_send_n[t->c], l->kv_recv_n[c]);
            assert_int_equal(l->kv_recv_at[c], n);
            assert_true(from->kv_send_at[t->c] + from->kv_send_n[t->c] <= from->n_tok);
            for (int32_t i = 0; i < l->kv_recv_n[c]; i++, n++) {
                int32_t token = wire[c * w.s.tp + t->t][from->kv_send_at[t->c] + i];
                int32_t slot = l->block[l->at_slot[group] + n];
                assert_true(slot >= 0 && slot < st.n_slot);
                assert_int_equal(cache[slot], 0);
                cache[slot] = token;
            }
        }
        assert_int_equal(n, l->n_recv);
        int32_t n_want = 0;
        for (int32_t i = 0; i < st.g.n_req; i++) {
            for (int32_t k = 0; k < st.req[i].n_new; k++) {
                int32_t pos = st.req[i].start + k;
                if (topo_page_owner(t, pos / p_tokens) == t->dcp_rank) {
                    int32_t slot = st.page[group][i][pos / p_tokens] * p_tokens + pos % p_tokens;
                    assert_int_equal(cache[slot], key(i, pos));
                    n_want++;
                }
            }
        }
        assert_int_equal(n, n_want);
    }
}

static inline kern_span span_at(const batch_local *l, int32_t at) {
    kern_span span;
    assert_true(at >= 0 && at + 6 <= l->n_block);
    memcpy(&span, l->block + at, sizeof span);
    return span;
}

/* A span's tokens stand in the query buffer, and its row end is its own. */
static inline void check_span(kern_span s, const int32_t *query, int32_t n_query, int32_t *seen) {
    assert_true(s.len >= 1 && s.q0 >= 0 && s.q0 + s.len <= n_query);
    int32_t req = (query[s.q0] - 1) / MAX_POS;
    for (int32_t k = 0; k < s.len; k++) {
        assert_int_equal(query[s.q0 + k], key(req, s.pos + k));
        assert_int_equal(seen[s.q0 + k]++, 0);
    }
    assert_int_equal(s.first_key, 0);
    assert_int_equal(s.n_page, (s.pos + s.len + w.caps.page_tokens - 1) / w.caps.page_tokens);
}

/* Query buffer after the gather, built from what every member put at its own places. */
static inline void fill_query(int32_t rank, int32_t *query) {
    const batch_local *l = &w.l[rank];
    const topo *t = &w.t[rank];
    int32_t n = 0;
    for (int32_t m = 0; m < w.s.dcp; m++) {
        const batch_local *from = &w.l[t->group_list[COMM_DCP][m]];
        assert_int_equal(l->q_at[m], n);
        assert_int_equal(l->q_n[m], from->n_q_tok);
        assert_memory_equal(l->q_at, from->q_at, sizeof l->q_at); /* one view in the group */
        assert_memory_equal(l->q_n, from->q_n, sizeof l->q_n);
        for (int32_t i = 0; i < from->n_q_tok; i++) {
            assert_int_equal(from->block[from->at_q + i], n);
            query[n++] = from->block[from->at_id + i];
        }
    }
    assert_int_equal(n, l->n_gather);
    for (int32_t i = l->n_q_tok; i < l->n_tok; i++) {
        assert_int_equal(l->block[l->at_q + i], n);
        query[n++] = l->block[l->at_id + i];
    }
}

static inline void check_attend(int32_t rank) {
    static int32_t query[MAX_QUERY];
    static int32_t seen[MAX_QUERY];
    const batch_local *l = &w.l[rank];
    int32_t n_query = l->n_gather + l->n_tok - l->n_q_tok;
    fill_query(rank, query);
    memset(seen, 0, (size_t)n_query * sizeof seen[0]);
    for (int32_t i = 0; i < l->n_span; i++) {
        kern_span s = span_at(l, l->at_span + 6 * i);
        check_span(s, query, l->n_gather, seen);
        int32_t req = (query[s.q0] - 1) / MAX_POS;
        assert_false(wants_kv(&st.req[req]));
        for (int32_t group = 0; group < w.caps.n_group; group++) {
            const int32_t *table = l->block + l->at_table[group] + s.table;
            for (int32_t p = 0; p < pages_of(&st.req[req]); p++) {
                assert_int_equal(table[p], st.page[group][req][p]);
            }
        }
    }
    for (int32_t k = 0; k < l->n_round; k++) {
        const batch_round *round = &l->round[k * l->n_group];
        for (int32_t group = 1; group < l->n_group; group++) {
            assert_int_equal(round[group].n_span, round->n_span);
            assert_int_equal(round[group].at_span, round->at_span);
        }
        for (int32_t i = 0; i < round->n_span; i++) {
            kern_span s = span_at(l, round->at_span + 6 * i);
            assert_true(s.q0 >= l->n_gather);
            check_span(s, query, n_query, seen);
        }
    }
    for (int32_t i = 0; i < n_query; i++) {
        assert_int_equal(seen[i], 1); /* every query folded, once */
    }
}

/* Plays one round's page exchange in the DCP groups. */
static inline void check_round(int32_t round_k, int32_t group) {
    int32_t k = round_k * w.caps.n_group + group;
    static int32_t got[MAX_RANK][MAX_REQ * 128];
    memset(got, 0, sizeof got);
    for (int32_t r = 0; r < w.n; r++) {
        const batch_round *out = &w.l[r].round[k];
        int32_t n = 0;
        for (int32_t m = 0; m < w.s.dcp; m++) {
            int32_t to = w.t[r].group_list[COMM_DCP][m];
            const batch_round *in = &w.l[to].round[k];
            assert_int_equal(out->send_at[m], n);
            assert_int_equal(in->recv_n[w.t[r].dcp_rank], out->send_n[m]);
            for (int32_t i = 0; i < out->send_n[m]; i++, n++) {
                int32_t id = w.l[r].block[out->at_send + n];
                int32_t at = in->recv_at[w.t[r].dcp_rank] + i;
                assert_true(at >= 0 && at < in->n_recv && got[to][at] == 0);
                got[to][at] = st.held[group][w.t[r].dcp_rank][id];
            }
        }
        assert_int_equal(n, out->n_send);
    }
    for (int32_t r = 0; r < w.n; r++) {
        const batch_local *l = &w.l[r];
        const batch_round *round = &l->round[k];
        int32_t n_want = 0;
        int32_t last = -1;
        assert_true(round->n_recv <= w.caps.round_pages);
        for (int32_t i = 0; i < round->n_span; i++) {
            kern_span s = span_at(l, round->at_span + 6 * i);
            int32_t tok = s.q0 - l->n_gather + l->n_q_tok;
            int32_t req = (l->block[l->at_id + tok] - 1) / MAX_POS;
            int32_t first = first_page(group, &st.req[req]);
            n_want += req == last ? 0 : pages_of(&st.req[req]) - first;
            last = req;
            for (int32_t p = 0; p < s.n_page; p++) {
                int32_t at = l->block[l->at_table[group] + s.table + p];
                if (p < first) {
                    assert_int_equal(at, -1);
                    continue;
                }
                assert_true(at >= 0 && at < round->n_recv);
                assert_int_equal(got[r][at], key(req, p));
            }
        }
        assert_int_equal(round->n_recv, n_want);
    }
}

static inline void check_caps(int32_t rank) {
    const batch_local *l = &w.l[rank];
    assert_true(l->n_tok <= batch_tok_cap(w.b[rank]));
    assert_true(l->n_block <= batch_block_cap(w.b[rank]));
    assert_true(l->n_gather + l->n_tok - l->n_q_tok <= batch_query_cap(w.b[rank]));
    assert_true(l->n_recv <= batch_recv_cap(w.b[rank]));
    assert_true(l->n_row <= 2 * st.g.n_req);
    assert_true(l->n_span <= w.s.dcp * 2 * st.g.n_req);
    assert_true(l->n_q_tok <= l->n_tok);
    assert_int_equal(l->n_round, w.l[0].n_round);
    for (int32_t k = 0; k < l->n_round * l->n_group; k++) {
        assert_true(l->round[k].n_send <= batch_round_send_cap(w.b[rank]));
    }
    assert_int_equal(l->n_req, st.g.n_req);
    assert_memory_equal(l->logit_n, w.l[0].logit_n, sizeof l->logit_n);
}

/* A builder that never saw another batch gives the same block and the same view (T11, A04). */
static inline void check_rebuild(int32_t rank) {
    batch_builder *b;
    batch_local a = w.l[rank];
    batch_local l;
    memset(&l, 0xa5, sizeof l);
    assert_int_equal(batch_builder_open(&w.t[rank], &w.caps, &b, NULL), WEFT_OK);
    batch_build(b, &st.g, &l);
    assert_int_equal(l.n_block, a.n_block);
    assert_memory_equal(l.block, a.block, (size_t)l.n_block * sizeof l.block[0]);
    assert_memory_equal(l.row, a.row, (size_t)l.n_row * sizeof l.row[0]);
    for (int32_t i = 0; i < l.n_logit; i++) {
        assert_int_equal(l.logit[i].tok, a.logit[i].tok);
        assert_int_equal(l.logit[i].req, a.logit[i].req);
        assert_int_equal(l.logit[i].sample, a.logit[i].sample);
    }
    assert_int_equal(l.n_round, a.n_round);
    if (l.n_round > 0) {
        assert_memory_equal(l.round, a.round, (size_t)(l.n_round * l.n_group) * sizeof l.round[0]);
    }
    a.block = l.block;
    a.row = l.row;
    a.logit = l.logit;
    a.round = l.round;
    assert_memory_equal(&a, &l, sizeof l);
    batch_builder_close(b);
}

static inline void build_step(void) {
    fill_step();
    for (int32_t r = 0; r < w.n; r++) {
        memset(&w.l[r], 0x5a, sizeof w.l[r]);
        batch_build(w.b[r], &st.g, &w.l[r]);
    }
}

static inline void check_step(void) {
    build_step();
    for (int32_t r = 0; r < w.n; r++) {
        check_rows(r);
    }
    check_cover();
    for (int32_t group = 0; group < w.caps.n_group; group++) {
        check_deliver(group);
    }
    for (int32_t r = 0; r < w.n; r++) {
        check_caps(r);
        check_logits(r);
        check_attend(r);
    }
    for (int32_t k = 0; k < w.l[0].n_round; k++) {
        for (int32_t group = 0; group < w.caps.n_group; group++) {
            check_round(k, group);
        }
    }
    check_rebuild(random_in(0, w.n - 1));
}

static inline void one_prompt(int32_t start, int32_t n) {
    begin_step();
    add(start, n, false);
    check_step();
}

#endif
