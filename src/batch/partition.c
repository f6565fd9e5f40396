/* The one place that cuts a global batch over PCP ranks. Reads global numbers only. */
#include <string.h>

#include "batch/builder.h"

int32_t batch_chunk_start(int32_t n, int32_t pcp, int32_t i) {
    int32_t longer = n % (2 * pcp); /* the first chunks have one token more */
    return i * (n / (2 * pcp)) + (i < longer ? i : longer);
}

batch_moved batch_bytes_moved(const batch_caps *caps, const topo *t, int32_t start, int32_t n_new) {
    int64_t k = caps->head_dim, v = caps->value_dim;
    return (batch_moved){.q = (int64_t)n_new * t->n_head * (4 * k + 4 * v + 8),
                         .kv = ((int64_t)start + n_new) * t->n_kv_head * caps->kv_bytes};
}

weft_exchange batch_choose_exchange(const batch_caps *caps, const topo *t, int32_t start,
                                    int32_t n_new) {
    batch_moved m = batch_bytes_moved(caps, t, start, n_new);
    return m.kv < m.q ? WEFT_EXCHANGE_KV : WEFT_EXCHANGE_Q;
}

static bool passes_kv(const batch_builder *b, const batch_request *r) {
    if (b->topo->sizes.dcp == 1) {
        return false;
    }
    weft_exchange x = b->caps.exchange;
    if (x == WEFT_EXCHANGE_AUTO) {
        x = batch_choose_exchange(&b->caps, b->topo, r->start, r->n_new);
    }
    return x == WEFT_EXCHANGE_KV;
}

/* What the open round of pass-KV requests can still take: pages that one rank receives, and pages
 * that each owner sends to one destination. Short requests all begin at the same owner, so its end
 * can be full long before a receiver's. */
typedef struct round_room {
    int32_t recv, send[TOPO_MAX_WORLD];
} round_room;

static void round_open(batch_builder *b, round_room *room) {
    b->n_round++;
    room->recv = b->caps.round_pages;
    for (int32_t r = 0; r < b->topo->sizes.dcp; r++) {
        room->send[r] = b->send_cap;
    }
}

static bool round_takes(const batch_builder *b, const round_room *room, int32_t n_page) {
    bool fits = n_page <= room->recv;
    for (int32_t r = 0; r < b->topo->sizes.dcp && fits; r++) {
        fits = topo_pages_owned(b->topo, r, n_page) <= room->send[r];
    }
    return fits;
}

/* Exchange of each request; pass-KV requests are packed into rounds in batch order, greedily. */
static void share_exchange(batch_builder *b, const batch_global *g) {
    round_room room = {0};
    b->n_round = 0;
    for (int32_t i = 0; i < g->n_req; i++) {
        batch_share *s = &b->share[i];
        int32_t end = g->req[i].start + g->req[i].n_new;
        s->n_page = (end - 1) / b->caps.page_tokens + 1;
        s->round = -1;
        assert(s->n_page <= b->caps.max_pages);
        if (!passes_kv(b, &g->req[i])) {
            continue;
        }
        if (b->n_round == 0 || !round_takes(b, &room, s->n_page)) {
            round_open(b, &room);
        }
        s->round = b->n_round - 1;
        room.recv -= s->n_page;
        for (int32_t r = 0; r < b->topo->sizes.dcp; r++) {
            room.send[r] -= topo_pages_owned(b->topo, r, s->n_page);
        }
    }
}

/* A cut request of n tokens gives every rank n / pcp tokens, and one more to n mod pcp ranks that
 * follow each other, seen from virtual rank `first`:
 *
 *   pcp 4, n = 11: chunks 2 2 2 1 1 1 1 1    v: 0 = 2+1, 1 = 2+1, 2 = 2+1, 3 = 1+1    first 0
 *   pcp 4, n = 13: chunks 2 2 2 2 2 1 1 1    v: 0 = 2+1, 1 = 2+1, 2 = 2+1, 3 = 2+2    first 3
 *
 * The turn lets the extras begin where the last request's ended. So the tokens of all cut requests
 * are dealt out round robin, and their sum differs by at most one between ranks. */
static int32_t deal_turn(int32_t n, int32_t pcp, int32_t *next) {
    int32_t longer = n % (2 * pcp);
    int32_t first = longer <= pcp ? 0 : 2 * pcp - longer;
    int32_t turn = *next < 0 ? 0 : (*next - first + pcp) % pcp;
    if (longer % pcp != 0) {
        *next = (first + turn + longer % pcp) % pcp;
    }
    return turn;
}

/* The largest load that share_rows can give a rank. Decode rows and the tokens of cut requests are
 * both dealt round robin: of x successive ones a rank gets at most ceil(x / pcp). Take the last
 * whole prompt, of w tokens, that rank c received: c was the least loaded, so it had at most
 * A / pcp of the A tokens before; x cut tokens and y decode rows followed. In all
 *
 *   A / pcp + w + (x + pcp - 1) / pcp + (y + pcp - 1) / pcp,     A + w + x + y <= max_step_tokens
 *
 * which grows with w, and w <= min_split - 1. Without a whole prompt it is the same with A = w = 0.
 */
int32_t batch_partition_tok_cap(const batch_caps *caps, int32_t pcp) {
    int64_t all = caps->max_step_tokens;
    int64_t w = caps->min_split - 1 < all ? caps->min_split - 1 : all;
    int64_t cap = (all - w + w * pcp + 2 * ((int64_t)pcp - 1)) / pcp;
    return (int32_t)(cap < all ? cap : all);
}

static int32_t least_loaded(const int32_t *load, int32_t pcp) {
    int32_t best = 0;
    for (int32_t c = 1; c < pcp; c++) {
        best = load[c] < load[best] ? c : best;
    }
    return best;
}

/* Chunk v, then chunk 2 * pcp - 1 - v, of the virtual rank v that c is for this request. */
static int32_t virtual_rank(const batch_builder *b, const batch_share *s, int32_t c) {
    int32_t pcp = b->topo->sizes.pcp;
    return (c - s->turn + pcp) % pcp;
}

static int32_t virtual_size(int32_t n, int32_t pcp, int32_t v) {
    int32_t far = 2 * pcp - 1 - v;
    return batch_chunk_start(n, pcp, v + 1) - batch_chunk_start(n, pcp, v) +
           batch_chunk_start(n, pcp, far + 1) - batch_chunk_start(n, pcp, far);
}

static void share_rows(batch_builder *b, const batch_global *g) {
    int32_t pcp = b->topo->sizes.pcp;
    int32_t load[TOPO_MAX_WORLD] = {0};
    int32_t n_decode = 0;
    int32_t next = -1;
    for (int32_t i = 0; i < g->n_req; i++) {
        const batch_request *r = &g->req[i];
        batch_share *s = &b->share[i];
        s->whole = -1;
        s->turn = 0;
        if (r->decode) {
            s->whole = n_decode++ % pcp;
        } else if (r->n_new < b->caps.min_split) {
            s->whole = least_loaded(load, pcp);
        }
        if (s->whole >= 0) {
            load[s->whole] += r->n_new;
            continue;
        }
        s->turn = deal_turn(r->n_new, pcp, &next);
        for (int32_t c = 0; c < pcp; c++) {
            load[c] += virtual_size(r->n_new, pcp, virtual_rank(b, s, c));
        }
    }
}

bool batch_has_rows(const batch_builder *b, const batch_global *g, int32_t req, int32_t c) {
    const batch_share *s = &b->share[req];
    if (s->whole >= 0) {
        return s->whole == c;
    }
    /* Chunks do not grow: chunk v is empty exactly when v >= n_new, and then its partner is. */
    return virtual_rank(b, s, c) < g->req[req].n_new;
}

static void append_row(batch_builder *b, int32_t c, int32_t req, int32_t start, int32_t len) {
    if (len == 0) {
        return;
    }
    batch_row *rows = b->row + (size_t)c * (size_t)b->row_cap;
    batch_row *last = b->n_row[c] > 0 ? &rows[b->n_row[c] - 1] : NULL;
    if (last && last->req == req && last->start + last->len == start) {
        last->len += len; /* chunks pcp - 1 and pcp stand side by side */
    } else {
        assert(b->n_row[c] < b->row_cap);
        rows[b->n_row[c]++] = (batch_row){req, start, len, b->n_tok[c]};
    }
    b->n_tok[c] += len;
    assert(b->n_tok[c] <= b->tok_cap);
}

static void append_request(batch_builder *b, const batch_global *g, int32_t req) {
    const batch_request *r = &g->req[req];
    const batch_share *s = &b->share[req];
    int32_t pcp = b->topo->sizes.pcp;
    if (s->whole >= 0) {
        append_row(b, s->whole, req, r->start, r->n_new);
        return;
    }
    for (int32_t c = 0; c < pcp; c++) {
        int32_t v = virtual_rank(b, s, c);
        const int32_t chunk[2] = {v, 2 * pcp - 1 - v};
        for (int32_t k = 0; k < 2; k++) {
            int32_t lo = batch_chunk_start(r->n_new, pcp, chunk[k]);
            int32_t hi = batch_chunk_start(r->n_new, pcp, chunk[k] + 1);
            append_row(b, c, req, r->start + lo, hi - lo);
        }
    }
}

void batch_partition(batch_builder *b, const batch_global *g) {
    assert(g->n_req <= b->caps.max_reqs);
    share_exchange(b, g);
    share_rows(b, g);
    memset(b->n_row, 0, sizeof b->n_row);
    memset(b->n_tok, 0, sizeof b->n_tok);
    for (int32_t i = 0; i < g->n_req; i++) {
        if (b->share[i].round < 0) {
            append_request(b, g, i);
        }
    }
    memcpy(b->n_q_row, b->n_row, sizeof b->n_row);
    memcpy(b->n_q_tok, b->n_tok, sizeof b->n_tok);
    for (int32_t i = 0; i < g->n_req; i++) {
        if (b->share[i].round >= 0) {
            append_request(b, g, i);
        }
    }
}
