/* All ranks of a world build the same step in one process; their exchanges are then played through
 * with integers: a token is its key, a page is its (request, logical number). */
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

enum { MAX_RANK = 16, MAX_REQ = 12, MAX_POS = 3008, MAX_TOK = 3200, MAX_QUERY = 16 * MAX_TOK };

static uint64_t random_state = 0x2545f4914f6cdd1du;
static uint32_t random_u32(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}
/* [lo, hi] */
static int32_t random_in(int32_t lo, int32_t hi) {
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
    int32_t token[MAX_REQ][MAX_POS], page[MAX_REQ][MAX_POS];
    /* [dcp rank][physical page] -> page_key of what it holds; 0: free */
    int32_t held[MAX_RANK][MAX_REQ * MAX_POS];
    int32_t n_slot;                    /* slots in use in a pool at most */
    int32_t owner_c[MAX_REQ][MAX_POS]; /* PCP rank of a new token, by the rows */
} step;

static world w;
static step st;

static int32_t key(int32_t req, int32_t pos) {
    return req * MAX_POS + pos + 1;
}

static topo_model model_of(int32_t n_head, int32_t n_kv_head) {
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

static batch_caps caps_of(int32_t max_reqs, int32_t max_step_tokens) {
    return (batch_caps){.max_reqs = max_reqs,
                        .max_step_tokens = max_step_tokens,
                        .max_pages = 64,
                        .page_tokens = 16,
                        .round_pages = 64,
                        .min_split = 1,
                        .exchange = WEFT_EXCHANGE_AUTO,
                        .head_dim = 32,
                        .kv_elem = 2};
}

static void open_world(topo_model m, topo_sizes s, batch_caps caps) {
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

static void close_world(void) {
    for (int32_t r = 0; r < w.n; r++) {
        batch_builder_close(w.b[r]);
    }
}

static void begin_step(void) {
    st.g = (batch_global){.step = 1, .kind = PLAN_STEP, .n_req = 0, .req = st.req};
}

static void add(int32_t start, int32_t n_new, bool decode) {
    assert_true(st.g.n_req < MAX_REQ && start + n_new <= MAX_POS);
    int32_t i = st.g.n_req++;
    st.req[i] = (batch_request){.slot = i,
                                .start = start,
                                .n_new = n_new,
                                .n_logits = 1,
                                .sample = true,
                                .decode = decode,
                                .token = st.token[i],
                                .page = st.page[i]};
}

static int32_t pages_of(const batch_request *r) {
    return (r->start + r->n_new + w.caps.page_tokens - 1) / w.caps.page_tokens;
}

/* Tokens by key; physical pages in each owner's pool in a scattered order. */
static void fill_step(void) {
    int32_t next[MAX_RANK] = {0};
    int32_t n_page = 2; /* ids are scattered by one */
    for (int32_t i = 0; i < st.g.n_req; i++) {
        n_page += pages_of(&st.req[i]);
    }
    for (int32_t r = 0; r < w.s.dcp; r++) {
        memset(st.held[r], 0, (size_t)n_page * sizeof st.held[r][0]);
    }
    st.n_slot = n_page * w.caps.page_tokens;
    for (int32_t i = 0; i < st.g.n_req; i++) {
        for (int32_t p = 0; p < st.req[i].start + st.req[i].n_new; p++) {
            st.token[i][p] = key(i, p);
        }
    }
    for (int32_t i = st.g.n_req - 1; i >= 0; i--) {
        for (int32_t p = 0; p < pages_of(&st.req[i]); p++) {
            int32_t owner = topo_page_owner(&w.t[0], p);
            int32_t id = next[owner]++ ^ 1;
            st.page[i][p] = id;
            st.held[owner][id] = key(i, p);
        }
    }
}

static bool wants_kv(const batch_request *r) {
    if (w.s.dcp == 1 || w.caps.exchange != WEFT_EXCHANGE_AUTO) {
        return w.s.dcp > 1 && w.caps.exchange == WEFT_EXCHANGE_KV;
    }
    int64_t hk = w.model.n_kv_head > w.s.tp ? w.model.n_kv_head / w.s.tp : 1;
    int64_t hq = w.model.n_head / w.s.tp;
    int64_t d = w.caps.head_dim;
    return (r->start + r->n_new) * 2 * hk * d * w.caps.kv_elem < r->n_new * hq * (8 * d + 8);
}

/* ---- checks of one step ---- */

/* Own view of a rank: token numbering, order of rows, ids and positions. */
static void check_rows(int32_t rank) {
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
static void check_cover(void) {
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

static void check_logits(int32_t rank) {
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
static void check_deliver(void) {
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
                int32_t slot = l->block[l->at_slot + n];
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
                    int32_t slot = st.page[i][pos / p_tokens] * p_tokens + pos % p_tokens;
                    assert_int_equal(cache[slot], key(i, pos));
                    n_want++;
                }
            }
        }
        assert_int_equal(n, n_want);
    }
}

static kern_span span_at(const batch_local *l, int32_t at) {
    kern_span span;
    assert_true(at >= 0 && at + 6 <= l->n_block);
    memcpy(&span, l->block + at, sizeof span);
    return span;
}

/* A span's tokens stand in the query buffer, and its row end is its own. */
static void check_span(kern_span s, const int32_t *query, int32_t n_query, int32_t *seen) {
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
static void fill_query(int32_t rank, int32_t *query) {
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

static void check_attend(int32_t rank) {
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
        for (int32_t p = 0; p < pages_of(&st.req[req]); p++) {
            assert_int_equal(l->block[l->at_table + s.table + p], st.page[req][p]);
        }
    }
    for (int32_t k = 0; k < l->n_round; k++) {
        const batch_round *round = &l->round[k];
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
static void check_round(int32_t k) {
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
                got[to][at] = st.held[w.t[r].dcp_rank][id];
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
            n_want += req == last ? 0 : pages_of(&st.req[req]);
            last = req;
            for (int32_t p = 0; p < s.n_page; p++) {
                int32_t at = l->block[l->at_table + s.table + p];
                assert_true(at >= 0 && at < round->n_recv);
                assert_int_equal(got[r][at], key(req, p));
            }
        }
        assert_int_equal(round->n_recv, n_want);
    }
}

static void check_caps(int32_t rank) {
    const batch_local *l = &w.l[rank];
    assert_true(l->n_tok <= batch_tok_cap(w.b[rank]));
    assert_true(l->n_block <= batch_block_cap(w.b[rank]));
    assert_true(l->n_gather + l->n_tok - l->n_q_tok <= batch_query_cap(w.b[rank]));
    assert_true(l->n_recv <= batch_recv_cap(w.b[rank]));
    assert_true(l->n_row <= 2 * st.g.n_req);
    assert_true(l->n_span <= w.s.dcp * 2 * st.g.n_req);
    assert_true(l->n_q_tok <= l->n_tok);
    assert_int_equal(l->n_round, w.l[0].n_round);
    assert_int_equal(l->n_req, st.g.n_req);
    assert_memory_equal(l->logit_n, w.l[0].logit_n, sizeof l->logit_n);
}

/* A builder that never saw another batch gives the same block and the same view (T11, A04). */
static void check_rebuild(int32_t rank) {
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
        assert_memory_equal(l.round, a.round, (size_t)l.n_round * sizeof l.round[0]);
    }
    a.block = l.block;
    a.row = l.row;
    a.logit = l.logit;
    a.round = l.round;
    assert_memory_equal(&a, &l, sizeof l);
    batch_builder_close(b);
}

static void build_step(void) {
    fill_step();
    for (int32_t r = 0; r < w.n; r++) {
        memset(&w.l[r], 0x5a, sizeof w.l[r]);
        batch_build(w.b[r], &st.g, &w.l[r]);
    }
}

static void check_step(void) {
    build_step();
    for (int32_t r = 0; r < w.n; r++) {
        check_rows(r);
    }
    check_cover();
    check_deliver();
    for (int32_t r = 0; r < w.n; r++) {
        check_caps(r);
        check_logits(r);
        check_attend(r);
    }
    for (int32_t k = 0; k < w.l[0].n_round; k++) {
        check_round(k);
    }
    check_rebuild(random_in(0, w.n - 1));
}

/* ---- worked numbers ---- */

static void test_chunks(void **state) {
    (void)state;
    for (int32_t pcp = 1; pcp <= 9; pcp++) {
        for (int32_t n = 0; n <= 120; n++) {
            assert_int_equal(batch_chunk_start(n, pcp, 0), 0);
            assert_int_equal(batch_chunk_start(n, pcp, 2 * pcp), n);
            for (int32_t i = 0; i < 2 * pcp; i++) {
                int32_t len = batch_chunk_start(n, pcp, i + 1) - batch_chunk_start(n, pcp, i);
                assert_int_equal(len, n / (2 * pcp) + (i < n % (2 * pcp)));
            }
        }
    }
    assert_int_equal(batch_chunk_start(INT32_MAX, 32, 64), INT32_MAX);
}

static void check_row(int32_t rank, int32_t i, int32_t start, int32_t len) {
    assert_true(i < w.l[rank].n_row);
    assert_int_equal(w.l[rank].row[i].start, start);
    assert_int_equal(w.l[rank].row[i].len, len);
}

static void one_prompt(int32_t start, int32_t n) {
    begin_step();
    add(start, n, false);
    check_step();
}

static void test_worked_numbers(void **state) {
    (void)state;
    open_world(model_of(4, 4), (topo_sizes){1, 2, 2}, caps_of(8, 512));
    one_prompt(0, 7);
    assert_int_equal(w.l[0].n_row, 2);
    check_row(0, 0, 0, 2);
    check_row(0, 1, 6, 1);
    assert_int_equal(w.l[1].n_row, 1); /* [2,4) and [4,6) side by side */
    check_row(1, 0, 2, 4);
    one_prompt(0, 9);
    assert_int_equal(w.l[0].n_tok, 5);
    assert_int_equal(w.l[1].n_tok, 4);

    /* T1, T2: 2 decodes and 6 prompts of 64 */
    begin_step();
    add(40, 1, true);
    add(77, 1, true);
    for (int32_t i = 0; i < 6; i++) {
        add(0, 64, false);
    }
    w.caps.exchange = WEFT_EXCHANGE_Q;
    close_world();
    open_world(model_of(4, 4), (topo_sizes){1, 2, 2}, w.caps);
    check_step();
    for (int32_t r = 0; r < 2; r++) {
        assert_true(w.l[r].n_row <= 14);
        assert_int_equal(w.l[r].n_tok, 1 + 6 * 32);
        assert_int_equal(w.l[r].n_span, w.l[0].n_row + w.l[1].n_row);
        assert_true(w.l[r].n_span <= 28);
        assert_int_equal(w.l[r].n_gather, 2 + 6 * 64);
    }
    assert_int_equal(w.l[0].row[0].req, 0);
    assert_int_equal(w.l[1].row[0].req, 1);
    close_world();

    open_world(model_of(4, 4), (topo_sizes){1, 4, 1}, caps_of(1, 33));
    one_prompt(0, 33);
    for (int32_t r = 0; r < 4; r++) {
        assert_in_range(w.l[r].n_tok, 8, 9);
    }
    close_world();

    /* page 16, V 16, dcp 2, 100 tokens: pages 0,2,4,6 and 1,3,5 */
    open_world(model_of(4, 4), (topo_sizes){1, 2, 2}, caps_of(1, 128));
    one_prompt(0, 100);
    assert_int_equal(w.l[0].n_recv, 16 * 3 + 4);
    assert_int_equal(w.l[1].n_recv, 16 * 3);
    close_world();
}

/* Rotation: the extras of one prompt begin where the last one's ended. */
static void test_rotation(void **state) {
    (void)state;
    for (int32_t pcp = 2; pcp <= 7; pcp++) {
        open_world(model_of(4, 4), (topo_sizes){1, pcp, 1}, caps_of(MAX_REQ, 3000));
        for (int32_t k = 0; k < 200; k++) {
            begin_step();
            int32_t n_req = random_in(1, MAX_REQ);
            for (int32_t i = 0; i < n_req; i++) {
                add(random_in(0, 20), random_in(1, 60), false);
            }
            check_step();
            int32_t least = MAX_TOK;
            int32_t most = 0;
            for (int32_t r = 0; r < pcp; r++) {
                least = w.l[r].n_tok < least ? w.l[r].n_tok : least;
                most = w.l[r].n_tok > most ? w.l[r].n_tok : most;
            }
            assert_true(most - least <= 1);
            assert_int_equal(w.l[0].row[0].start, st.req[0].start); /* the first is not turned */
        }
        close_world();
    }
}

/* T9, A14: every short length, and the odd long ones; tails of 1 to 7 tokens after a chunk. */
static void test_lengths(void **state) {
    (void)state;
    const topo_sizes sizes[] = {{1, 2, 2}, {1, 3, 3}, {1, 4, 2}, {1, 4, 4}, {1, 7, 7}, {2, 3, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int32_t x = WEFT_EXCHANGE_AUTO; x <= WEFT_EXCHANGE_KV; x++) {
            batch_caps caps = caps_of(2, 1000);
            caps.exchange = (weft_exchange)x;
            open_world(model_of(4, 4), sizes[i], caps);
            for (int32_t n = 1; n <= 4 * sizes[i].pcp + 3; n++) {
                one_prompt(0, n);
                one_prompt(64, n);
                one_prompt(61, n);
            }
            one_prompt(0, 97);
            one_prompt(0, 999);
            close_world();
        }
    }
    batch_caps caps = caps_of(1, 2999);
    caps.max_pages = caps.round_pages = 188;
    open_world(model_of(4, 4), (topo_sizes){1, 4, 4}, caps);
    one_prompt(0, 2999);
    int32_t n = 0;
    for (int32_t r = 0; r < 4; r++) {
        assert_in_range(w.l[r].n_tok, 749, 750);
        n += w.l[r].n_tok;
    }
    assert_int_equal(n, 2999);
    close_world();
}

/* ---- traps ---- */

/* T4, T5, G08: fewer tokens than ranks. The idle ranks have the same counts as the busy ones expect
 * (check_step) and an empty, valid view. */
static void test_idle_ranks(void **state) {
    (void)state;
    for (int32_t x = WEFT_EXCHANGE_Q; x <= WEFT_EXCHANGE_KV; x++) {
        batch_caps caps = caps_of(4, 64);
        caps.exchange = (weft_exchange)x;
        open_world(model_of(4, 4), (topo_sizes){1, 2, 2}, caps);
        one_prompt(0, 1);
        assert_int_equal(w.l[0].n_tok, 1);
        assert_int_equal(w.l[1].n_tok, 0);
        assert_int_equal(w.l[1].n_round, x == WEFT_EXCHANGE_KV);
        if (x == WEFT_EXCHANGE_Q) {
            assert_int_equal(w.l[1].n_gather, 1); /* it still folds the other's query */
            assert_int_equal(w.l[1].n_span, 1);
        } else {
            assert_int_equal(w.l[1].round[0].n_send, 0); /* page 0 is the other's */
            assert_int_equal(w.l[1].round[0].n_recv, 0);
        }
        one_prompt(0, 2);
        assert_int_equal(w.l[1].n_tok, 1);
        begin_step();
        add(16, 1, true); /* page 1: rank 1's; the row is rank 0's */
        check_step();
        assert_int_equal(w.l[0].n_recv, 0); /* T20: no slot here, the query is there */
        assert_int_equal(w.l[0].n_tok, 1);
        assert_int_equal(w.l[1].n_recv, 1);
        close_world();
    }
}

/* T31: a step without requests goes through the same builder. */
static void test_empty_step(void **state) {
    (void)state;
    open_world(model_of(4, 2), (topo_sizes){2, 4, 2}, caps_of(4, 64));
    one_prompt(0, 50); /* leaves garbage behind */
    begin_step();
    st.g.kind = PLAN_IDLE;
    check_step();
    for (int32_t r = 0; r < w.n; r++) {
        const batch_local *l = &w.l[r];
        assert_int_equal(l->n_tok + l->n_row + l->n_logit + l->n_recv + l->n_span + l->n_round, 0);
        assert_int_equal(l->n_block, 0);
        for (int32_t m = 0; m < TOPO_MAX_WORLD; m++) {
            assert_int_equal(l->kv_send_n[m] + l->kv_recv_n[m] + l->q_n[m] + l->logit_n[m], 0);
        }
    }
    /* A11: the four kinds of batch after warm-up. */
    begin_step();
    add(9, 1, true);
    add(30, 1, true);
    check_step();
    one_prompt(0, 33);
    begin_step();
    add(9, 1, true);
    add(0, 33, false);
    check_step();
    one_prompt(0, 1);
    close_world();
}

/* T3, T13: fresh and cached requests in one batch; a row sees keys 0 .. own position, whoever has
 * the row, in exactly one span. */
static void test_context(void **state) {
    (void)state;
    batch_caps caps = caps_of(4, 128);
    caps.exchange = WEFT_EXCHANGE_Q;
    open_world(model_of(4, 4), (topo_sizes){1, 2, 2}, caps);
    begin_step();
    add(0, 20, false);
    add(100, 5, false);
    check_step();
    for (int32_t r = 0; r < 2; r++) {
        bool cached = false;
        for (int32_t i = 0; i < w.l[r].n_span; i++) {
            kern_span s = span_at(&w.l[r], w.l[r].at_span + 6 * i);
            cached = cached || s.pos >= 100;
            assert_true(s.len <= 20); /* T12: a span's own length */
        }
        assert_true(cached);
    }
    close_world();
}

/* T7, T22, A05: one decode row and a 37-token prompt; all 38 positions are written once per
 * replica, on the owner. */
static void test_mixed_slots(void **state) {
    (void)state;
    const topo_sizes sizes[] = {{1, 2, 2}, {1, 2, 1}, {2, 2, 2}, {2, 2, 4}};
    const int32_t kv_heads[] = {4, 4, 2, 1};
    for (int32_t i = 0; i < 4; i++) {
        open_world(model_of(4, kv_heads[i]), sizes[i], caps_of(2, 64));
        begin_step();
        add(25, 1, true);
        add(0, 37, false);
        check_step();
        int32_t n = 0;
        for (int32_t r = 0; r < w.n; r++) {
            n += w.l[r].n_recv;
        }
        assert_int_equal(n, 38 * w.n / w.s.dcp);
        close_world();
    }
}

/* A04: a small step after a large one writes its own slots only. */
static void test_stale_slots(void **state) {
    (void)state;
    open_world(model_of(4, 4), (topo_sizes){1, 2, 1}, caps_of(4, 200));
    one_prompt(0, 64);
    one_prompt(0, 5);
    for (int32_t r = 0; r < 2; r++) {
        assert_int_equal(w.l[r].n_recv, 5);
    }
    close_world();
}

/* T19: a last prompt chunk of one token is cut like any prompt, with no turn in the round robin of
 * decode rows. */
static void test_one_token_prompt(void **state) {
    (void)state;
    open_world(model_of(4, 4), (topo_sizes){1, 2, 2}, caps_of(4, 64));
    begin_step();
    add(50, 1, true);
    add(31, 1, false);
    add(60, 1, true);
    check_step();
    assert_int_equal(st.owner_c[0][50], 0);
    assert_int_equal(st.owner_c[1][31], 0);
    assert_int_equal(st.owner_c[2][60], 1);
    close_world();
}

/* T30: a request that no single pool could hold: each pool holds its share. */
static void test_long_request(void **state) {
    (void)state;
    batch_caps caps = caps_of(1, 64);
    caps.max_pages = 60;
    caps.round_pages = 60;
    for (int32_t x = WEFT_EXCHANGE_Q; x <= WEFT_EXCHANGE_KV; x++) {
        caps.exchange = (weft_exchange)x;
        open_world(model_of(4, 4), (topo_sizes){1, 4, 4}, caps);
        one_prompt(900, 50); /* 60 pages, 15 per pool */
        for (int32_t r = 0; r < 4; r++) {
            int32_t n = 0;
            for (int32_t id = 0; id < 62; id++) {
                n += st.held[r][id] != 0;
            }
            assert_int_equal(n, 15);
            if (x == WEFT_EXCHANGE_KV) {
                assert_int_equal(w.l[r].round[0].n_recv, 60);
            }
        }
        close_world();
    }
}

/* ---- exchange ---- */

static void test_choose_exchange(void **state) {
    (void)state;
    topo_model m = model_of(8, 2);
    batch_caps caps = caps_of(4, 64);
    caps.head_dim = 64;
    topo t;
    topo_init(&m, (topo_sizes){1, 2, 2}, 0, &t);
    /* (C + T) * 2 * 2 * 64 * 2 = (C + T) * 512  against  T * 8 * 520 = T * 4160: equal at
     * C = 7.125 T */
    assert_int_equal(batch_choose_exchange(&caps, &t, 0, 100), WEFT_EXCHANGE_KV);
    assert_int_equal(batch_choose_exchange(&caps, &t, 712, 100), WEFT_EXCHANGE_KV);
    assert_int_equal(batch_choose_exchange(&caps, &t, 713, 100), WEFT_EXCHANGE_Q);
    assert_int_equal(batch_choose_exchange(&caps, &t, 57, 8), WEFT_EXCHANGE_Q); /* a tie */
    assert_int_equal(batch_choose_exchange(&caps, &t, 56, 8), WEFT_EXCHANGE_KV);
    assert_int_equal(batch_choose_exchange(&caps, &t, 2000, 1), WEFT_EXCHANGE_Q);
    assert_int_equal(batch_choose_exchange(&caps, &t, 0, 2000000000), WEFT_EXCHANGE_KV);
    /* 4-byte cache, and TP beyond the KV heads: 4 query heads on 1 KV head per rank */
    caps.kv_elem = 4;
    topo_init(&m, (topo_sizes){4, 2, 2}, 0, &t);
    /* (C + T) * 2 * 64 * 4 = (C + T) * 512 against T * 2 * 520 = T * 1040 */
    assert_int_equal(batch_choose_exchange(&caps, &t, 103, 100), WEFT_EXCHANGE_KV);
    assert_int_equal(batch_choose_exchange(&caps, &t, 104, 100), WEFT_EXCHANGE_Q);
}

/* Rounds are packed greedily in batch order and are the same everywhere. */
static void test_rounds(void **state) {
    (void)state;
    batch_caps caps = caps_of(MAX_REQ, 600);
    caps.max_pages = 8;
    caps.round_pages = 10;
    caps.exchange = WEFT_EXCHANGE_KV;
    open_world(model_of(4, 4), (topo_sizes){1, 3, 3}, caps);
    begin_step();
    add(0, 65, false);   /* 5 pages: round 0 */
    add(70, 10, false);  /* 5 pages: round 0, full */
    add(0, 1, false);    /* 1 page: round 1; one rank has rows */
    add(100, 28, false); /* 8 pages: round 1 */
    add(20, 1, true);    /* 2 pages: round 2 */
    check_step();
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(w.l[r].n_round, 3);
        assert_int_equal(w.l[r].round[0].n_recv, 10);
        assert_int_equal(w.l[r].n_gather, 0);
        assert_int_equal(w.l[r].n_q_tok, 0);
    }
    assert_int_equal(w.l[0].round[2].n_recv, 2);
    assert_int_equal(w.l[1].round[2].n_recv, 0);
    assert_int_equal(w.l[1].round[2].n_span, 0);
    close_world();

    /* With dcp 1 there is nobody to exchange with. */
    open_world(model_of(4, 4), (topo_sizes){1, 3, 1}, caps);
    one_prompt(0, 65);
    assert_int_equal(w.l[0].n_round, 0);
    assert_int_equal(w.l[0].n_q_tok, w.l[0].n_tok);
    close_world();
}

/* ---- capacities ---- */

/* The bound of partition.c against the worst that the rules can give: decode rows and cut prompts
 * that end on the same rank, and a longest whole prompt on top. */
static void test_tok_cap(void **state) {
    (void)state;
    batch_caps caps = caps_of(8, 100);
    open_world(model_of(4, 4), (topo_sizes){1, 1, 1}, caps);
    assert_int_equal(batch_tok_cap(w.b[0]), 100);
    assert_int_equal(batch_query_cap(w.b[0]), 100);
    close_world();
    open_world(model_of(4, 4), (topo_sizes){1, 4, 2}, caps);
    assert_int_equal(batch_tok_cap(w.b[0]), (100 + 6) / 4);
    assert_int_equal(batch_recv_cap(w.b[0]), 100);
    close_world();
    caps.min_split = 33; /* whole prompts of up to 32 */
    open_world(model_of(4, 4), (topo_sizes){1, 4, 2}, caps);
    assert_int_equal(batch_tok_cap(w.b[0]), (68 + 6) / 4 + 32);
    close_world();
    caps.min_split = 1000;
    open_world(model_of(4, 4), (topo_sizes){1, 4, 2}, caps);
    assert_int_equal(batch_tok_cap(w.b[0]), 100);
    begin_step();
    add(0, 100, false);
    check_step();
    assert_int_equal(w.l[0].n_tok, 100);
    close_world();

    /* Every token with a logits row, all in one request: the block has room. */
    open_world(model_of(4, 4), (topo_sizes){1, 1, 1}, caps_of(1, 1000));
    begin_step();
    add(0, 1000, false);
    st.req[0].n_logits = 1000;
    check_step();
    close_world();

    /* 1 decode + 1 extra of a cut prompt + a whole one, exactly at the bound: rank 0 of 2 gets
     * 1 + 1 + 0 of 3 rows, cap (3 + 2) / 2 = 2 */
    open_world(model_of(4, 4), (topo_sizes){1, 2, 1}, caps_of(2, 2));
    begin_step();
    add(5, 1, true);
    add(0, 1, false);
    check_step();
    assert_int_equal(w.l[0].n_tok, 2);
    assert_int_equal(batch_tok_cap(w.b[0]), 2);
    close_world();
}

static void expect_refused(batch_caps caps, const char *text) {
    batch_builder *b = (batch_builder *)&w;
    weft_error err;
    assert_int_equal(batch_builder_open(&w.t[0], &caps, &b, &err), WEFT_ERR_SETUP);
    if (!strstr(err.text, text)) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    }
    assert_ptr_equal(b, &w);
}

static void test_bad_caps(void **state) {
    (void)state;
    open_world(model_of(4, 4), (topo_sizes){1, 2, 2}, caps_of(8, 100));
    batch_caps caps = w.caps;
    caps.max_reqs = 0;
    expect_refused(caps, "0 requests");
    caps = w.caps;
    caps.min_split = 0;
    expect_refused(caps, "cp_min_split 0");
    caps = w.caps;
    caps.round_pages = 63;
    expect_refused(caps, "round of 63 pages cannot take a request of 64");
    caps = w.caps;
    caps.max_reqs = 1 << 20;
    caps.max_pages = caps.round_pages = 1 << 14;
    expect_refused(caps, "1048576 requests");
    caps.max_reqs = INT32_MAX;
    expect_refused(caps, "2147483647 requests");
    close_world();
    batch_builder_close(NULL);
}

/* ---- random steps ---- */

static void random_request(int32_t *budget) {
    int32_t kind = random_in(0, 9);
    int32_t limit = w.caps.max_pages * w.caps.page_tokens;
    int32_t n = kind < 3   ? 1
                : kind < 6 ? random_in(1, 9)
                           : random_in(1, *budget < limit ? *budget : limit);
    n = n < *budget ? n : *budget;
    n = n < limit ? n : limit;
    int32_t start = random_in(0, 2) ? random_in(0, limit - n) : 0;
    bool decode = kind < 3 && start > 0;
    add(start, decode ? 1 : n, decode);
    batch_request *r = &st.req[st.g.n_req - 1];
    r->n_logits = random_in(0, 2) ? r->n_logits : random_in(0, r->n_new);
    r->sample = r->n_logits > 0 && random_in(0, 3) > 0;
    *budget -= r->n_new;
}

static void random_world(void) {
    const int32_t kvs[] = {1, 2, 3, 4};
    const int32_t sizes[] = {16, 16, 4, 1};
    topo_model m = model_of(12, kvs[random_in(0, 3)]);
    topo_sizes list[400];
    int32_t n = topo_list(&m, MAX_RANK, list, 400);
    assert_true(n > 10 && n <= 400);
    batch_caps caps = caps_of(random_in(1, MAX_REQ), random_in(1, 150));
    caps.page_tokens = sizes[random_in(0, 3)];
    caps.max_pages = random_in(1, 40);
    caps.round_pages = caps.max_pages + random_in(0, 40);
    caps.min_split = random_in(0, 2) ? 1 : random_in(1, 40);
    caps.exchange = (weft_exchange)random_in(0, 2);
    topo_sizes s;
    do { /* half of the worlds with a DCP group */
        s = list[random_in(0, n - 1)];
    } while (s.dcp == 1 && random_in(0, 1));
    open_world(m, s, caps);
}

static void test_random_steps(void **state) {
    (void)state;
    bool odd_dcp[MAX_RANK + 1] = {false};
    int32_t n_step = 0;
    for (int32_t k = 0; k < 700; k++) {
        random_world();
        odd_dcp[w.s.dcp] = true;
        for (int32_t i = 0; i < 6; i++, n_step++) {
            int32_t budget =
                random_in(0, 4) ? w.caps.max_step_tokens : random_in(1, w.caps.max_step_tokens);
            begin_step();
            while (budget > 0 && st.g.n_req < w.caps.max_reqs) {
                random_request(&budget);
            }
            check_step();
        }
        close_world();
    }
    assert_true(n_step > 4000);
    assert_true(odd_dcp[3] && odd_dcp[5] && odd_dcp[6] && odd_dcp[7]);
}

/* G08: ten thousand uneven steps of one world; what the ranks will call is the same on all. */
static void test_uneven_steps(void **state) {
    (void)state;
    batch_caps caps = caps_of(5, 24);
    caps.max_pages = caps.round_pages = 12;
    open_world(model_of(4, 1), (topo_sizes){2, 3, 6}, caps);
    int64_t n_call[MAX_RANK] = {0};
    for (int32_t k = 0; k < 10000; k++) {
        begin_step();
        int32_t budget = random_in(1, 24);
        for (int32_t i = random_in(0, 5); i > 0 && budget > 0; i--) {
            random_request(&budget);
        }
        build_step();
        for (int32_t r = 0; r < w.n; r++) {
            n_call[r] += w.l[r].n_round;
            for (int32_t m = 0; m < w.s.dcp; m++) {
                int32_t to = w.t[r].group_list[COMM_DCP][m];
                for (int32_t j = 0; j < w.l[r].n_round; j++) {
                    assert_int_equal(w.l[r].round[j].send_n[m],
                                     w.l[to].round[j].recv_n[w.t[r].dcp_rank]);
                }
            }
            for (int32_t c = 0; c < w.s.pcp; c++) {
                assert_int_equal(w.l[r].kv_send_n[c],
                                 w.l[c * w.s.tp + w.t[r].t].kv_recv_n[w.t[r].c]);
            }
            assert_int_equal(n_call[r], n_call[0]);
        }
    }
    assert_true(n_call[0] > 1000);
    close_world();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),       cmocka_unit_test(test_worked_numbers),
        cmocka_unit_test(test_rotation),     cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_idle_ranks),   cmocka_unit_test(test_empty_step),
        cmocka_unit_test(test_context),      cmocka_unit_test(test_mixed_slots),
        cmocka_unit_test(test_stale_slots),  cmocka_unit_test(test_one_token_prompt),
        cmocka_unit_test(test_long_request), cmocka_unit_test(test_choose_exchange),
        cmocka_unit_test(test_rounds),       cmocka_unit_test(test_tok_cap),
        cmocka_unit_test(test_bad_caps),     cmocka_unit_test(test_random_steps),
        cmocka_unit_test(test_uneven_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
