#include "topo/topo.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- legality ---- */

typedef enum rule {
    RULE_NONE, /* legal */
    RULE_POSITIVE,
    RULE_WORLD,
    RULE_HEADS,
    RULE_KV_HEADS,
    RULE_LEAVES,
    RULE_PANEL,
    RULE_REPLICA,
    RULE_SHARDS
} rule;

/* Ranks of one PCP index that hold the same KV heads. */
static int32_t kv_copies(const topo_model *m, int32_t tp) {
    return tp > m->n_kv_head ? tp / m->n_kv_head : 1;
}

int32_t topo_kv_heads(int32_t n_kv_head, int32_t tp) {
    return tp > n_kv_head ? 1 : n_kv_head / tp;
}

int32_t topo_kv_head0(int32_t n_kv_head, int32_t tp, int32_t t) {
    return t * n_kv_head / tp;
}

/* Kind k of heads, the model's first being 0; n_kv_head 0: there are no more. */
static topo_heads heads_of(const topo_model *m, int32_t k) {
    return k == 0              ? (topo_heads){m->n_kv_head, m->head_dim}
           : k > TOPO_MAX_MORE ? (topo_heads){0, 0}
                               : m->heads_more[k - 1];
}

int32_t topo_fewer_kv_heads(const topo_model *m) {
    int32_t k = 1;
    while (heads_of(m, k).n_kv_head == m->n_kv_head) {
        k++;
    }
    return heads_of(m, k).n_kv_head;
}

/* KV heads of the first kind that tp cuts unevenly; 0: none. */
static int32_t cut_kv_heads(const topo_model *m, int32_t tp) {
    int32_t k = 0, n;
    while ((n = heads_of(m, k).n_kv_head) > 0 && (n % tp == 0 || tp % n == 0)) {
        k++;
    }
    return n;
}

/* Query heads are a multiple of KV heads: where these fit, those do. */
static bool cuts_panels(const topo_model *m, int32_t tp) {
    topo_heads h;
    for (int32_t k = 0; (h = heads_of(m, k)).n_kv_head > 0; k++) {
        if (topo_kv_heads(h.n_kv_head, tp) * h.head_dim % m->panel != 0) {
            return true;
        }
    }
    for (int32_t i = 0; i < TOPO_MAX_MORE && m->width_more[i] > 0; i++) {
        if (m->width_more[i] % (tp * m->panel) != 0) {
            return true;
        }
    }
    return m->ffn % tp != 0 || m->ffn / tp % m->panel != 0;
}

static bool cuts_leaves(const topo_model *m, int32_t tp) {
    for (int32_t i = 0; i < TOPO_MAX_MORE && m->leaves_more[i] > 0; i++) {
        if (m->leaves_more[i] % tp != 0) {
            return true;
        }
    }
    return m->leaves_o % tp != 0 || m->leaves_down % tp != 0;
}

/* ", 4, 8": the numbers before the first 0. */
static void more_text(const int32_t *more, char *out, size_t out_bytes) {
    size_t n = 0;
    out[0] = 0;
    for (int32_t i = 0; i < TOPO_MAX_MORE && more[i] > 0 && n < out_bytes; i++) {
        n += (size_t)snprintf(out + n, out_bytes - n, ", %d", more[i]);
    }
}

/* ", KV 2 heads of 64": the other kinds. */
static void heads_text(const topo_model *m, char *out, size_t out_bytes) {
    size_t n = 0;
    topo_heads h;
    out[0] = 0;
    for (int32_t k = 1; (h = heads_of(m, k)).n_kv_head > 0 && n < out_bytes; k++) {
        n += (size_t)snprintf(out + n, out_bytes - n, ", KV %d heads of %d", h.n_kv_head,
                              h.head_dim);
    }
}

/* The first rule that the sizes break, in the order of topo.h. */
static rule broken_rule(const topo_model *m, topo_sizes s) {
    if (s.tp < 1 || s.pcp < 1 || s.dcp < 1) {
        return RULE_POSITIVE;
    }
    if ((int64_t)s.tp * s.pcp > TOPO_MAX_WORLD) {
        return RULE_WORLD;
    }
    if (m->n_head % s.tp != 0) {
        return RULE_HEADS;
    }
    if (cut_kv_heads(m, s.tp) > 0) {
        return RULE_KV_HEADS;
    }
    if (cuts_leaves(m, s.tp)) {
        return RULE_LEAVES;
    }
    if (s.tp > 1 && cuts_panels(m, s.tp)) {
        return RULE_PANEL;
    }
    if (s.pcp * kv_copies(m, s.tp) % s.dcp != 0) {
        return RULE_REPLICA;
    }
    return s.dcp > m->kv_shards ? RULE_SHARDS : RULE_NONE;
}

/* Walks the legal size sets in topo_list's order: fills *s with the first after *s; {0, 0, 0} is
 * before all. False when there is none with world <= max_world. */
static bool next_legal(const topo_model *m, int32_t max_world, topo_sizes *s) {
    topo_sizes n = s->tp ? *s : (topo_sizes){1, 1, 0};
    int32_t last = max_world < TOPO_MAX_WORLD ? max_world : TOPO_MAX_WORLD;
    for (int32_t world = n.tp * n.pcp; world <= last; world++, n.tp = 1) {
        for (; n.tp <= world; n.tp++, n.dcp = 0) {
            if (world % n.tp != 0) {
                continue;
            }
            n.pcp = world / n.tp;
            while (++n.dcp <= m->kv_shards && n.dcp <= TOPO_MAX_WORLD) {
                if (broken_rule(m, n) == RULE_NONE) {
                    *s = n;
                    return true;
                }
            }
        }
    }
    return false;
}

static int64_t distance(int32_t a, int32_t b) {
    int64_t d = (int64_t)a - b;
    return d < 0 ? -d : d;
}

/* How far two size sets are apart: the sum of the steps; among equals, fewer sizes changed. */
static int64_t sizes_distance(topo_sizes a, topo_sizes b) {
    int64_t steps = distance(a.tp, b.tp) + distance(a.pcp, b.pcp) + distance(a.dcp, b.dcp);
    return steps * 4 + (a.tp != b.tp) + (a.pcp != b.pcp) + (a.dcp != b.dcp);
}

/* "tp 1 pcp 2 dcp 2, tp 3 pcp 2 dcp 2": the three nearest legal size sets. tp1 pcp1 dcp1 is always
 * one. */
static void nearest_text(const topo_model *m, topo_sizes s, char *out, size_t out_bytes) {
    enum { N_NEAR = 3 };
    topo_sizes near[N_NEAR];
    int32_t n = 0;
    for (topo_sizes l = {0}; next_legal(m, TOPO_MAX_WORLD, &l);) {
        int32_t at = n;
        while (at > 0 && sizes_distance(l, s) < sizes_distance(near[at - 1], s)) {
            at--;
        }
        if (at == N_NEAR) {
            continue;
        }
        n = n < N_NEAR ? n + 1 : n;
        memmove(&near[at + 1], &near[at], (size_t)(n - 1 - at) * sizeof near[0]);
        near[at] = l;
    }
    size_t used = 0;
    out[0] = 0;
    for (int32_t i = 0; i < n && used < out_bytes; i++) {
        used += (size_t)snprintf(out + used, out_bytes - used, "%stp %d pcp %d dcp %d",
                                 i ? ", " : "", near[i].tp, near[i].pcp, near[i].dcp);
    }
}

weft_status topo_check(const topo_model *m, topo_sizes s, weft_error *err) {
    rule broken = broken_rule(m, s);
    if (broken == RULE_NONE) {
        return WEFT_OK;
    }
    char why[320] = "", more[80], down[32] = "", heads[80];
    switch (broken) {
    case RULE_NONE:
        break;
    case RULE_POSITIVE:
        snprintf(why, sizeof why, "each of tp, pcp and dcp must be at least 1");
        break;
    case RULE_WORLD:
        snprintf(why, sizeof why, "tp * pcp = %lld ranks, at most %d are possible",
                 (long long)s.tp * s.pcp, TOPO_MAX_WORLD);
        break;
    case RULE_HEADS:
        snprintf(why, sizeof why, "tp must divide the model's %d query heads", m->n_head);
        break;
    case RULE_KV_HEADS:
        snprintf(why, sizeof why, "tp must divide the model's %d KV heads or be a multiple of them",
                 cut_kv_heads(m, s.tp));
        break;
    case RULE_LEAVES:
        more_text(m->leaves_more, more, sizeof more);
        if (m->leaves_down > 0)
            snprintf(down, sizeof down, ", MLP down %d", m->leaves_down);
        snprintf(why, sizeof why,
                 "tp must divide the leaves of the row-parallel layers: attention output %d%s%s",
                 m->leaves_o, down, more);
        break;
    case RULE_PANEL:
        more_text(m->width_more, more, sizeof more);
        heads_text(m, heads, sizeof heads);
        snprintf(why, sizeof why,
                 "tp must cut the outputs into multiples of %d: query %d heads of %d, KV %d heads "
                 "of %d%s, MLP %d%s",
                 m->panel, m->n_head, m->head_dim, m->n_kv_head, m->head_dim, heads, m->ffn, more);
        break;
    case RULE_REPLICA:
        snprintf(why, sizeof why,
                 "dcp must divide the %d ranks that hold the same KV heads: pcp %d * max(1, tp %d "
                 "/ %d KV heads)",
                 s.pcp * kv_copies(m, s.tp), s.pcp, s.tp, m->n_kv_head);
        break;
    case RULE_SHARDS:
        snprintf(why, sizeof why, "dcp must be at most the %d KV shards", m->kv_shards);
        break;
    }
    char nearest[160];
    nearest_text(m, s, nearest, sizeof nearest);
    return error_set(err, WEFT_ERR_SETUP, "tp %d pcp %d dcp %d: %s; nearest legal: %s", s.tp, s.pcp,
                     s.dcp, why, nearest);
}

int32_t topo_list(const topo_model *m, int32_t max_world, topo_sizes *out, int32_t cap) {
    int32_t n = 0;
    for (topo_sizes s = {0}; next_legal(m, max_world, &s); n++) {
        if (n < cap) {
            out[n] = s;
        }
    }
    return n;
}

int32_t topo_leaves(int32_t n_kv_head, int32_t k, int32_t max_leaves, int32_t multiple) {
    int32_t best = 1;
    for (int32_t l = n_kv_head / (n_kv_head & -n_kv_head); l <= max_leaves; l *= 2) {
        if (k % l == 0 && k / l % multiple == 0) {
            best = l;
        }
    }
    return best;
}

/* ---- groups ---- */

static void init_dcp_group(const topo_model *m, topo *out) {
    topo_sizes s = out->sizes;
    int32_t copies = kv_copies(m, s.tp);
    int32_t t_first = out->t / copies * copies; /* ranks t_first.. hold the same KV heads */
    int32_t own = (out->t - t_first) * s.pcp + out->c;
    int32_t first = own / s.dcp * s.dcp;
    out->dcp_rank = own - first;
    for (int32_t r = 0; r < s.dcp; r++) {
        int32_t i = first + r;
        out->dcp_c[r] = i % s.pcp;
        out->dcp_t[r] = t_first + i / s.pcp;
        out->group_list[COMM_DCP][r] = out->dcp_c[r] * s.tp + out->dcp_t[r];
    }
    for (int32_t c = 0; c < s.pcp; c++) {
        out->pcp_dcp_rank[c] = ((out->t - t_first) * s.pcp + c) % s.dcp;
    }
}

void topo_init(const topo_model *m, topo_sizes s, int32_t rank, topo *out) {
    assert(broken_rule(m, s) == RULE_NONE && rank >= 0 && rank < s.tp * s.pcp);
    memset(out, 0, sizeof *out);
    out->sizes = s;
    out->world = s.tp * s.pcp;
    out->rank = rank;
    out->c = rank / s.tp;
    out->t = rank % s.tp;
    out->kv_shards = m->kv_shards;
    out->n_head = m->n_head / s.tp;
    out->n_kv_head = topo_kv_heads(m->n_kv_head, s.tp);
    out->head0 = out->t * out->n_head;
    out->kv_head0 = topo_kv_head0(m->n_kv_head, s.tp, out->t);
    for (int32_t i = 0; i < out->world; i++) {
        out->group_list[COMM_WORLD][i] = i;
    }
    for (int32_t i = 0; i < s.tp; i++) {
        out->group_list[COMM_TP][i] = out->c * s.tp + i;
    }
    for (int32_t i = 0; i < s.pcp; i++) {
        out->group_list[COMM_PCP][i] = i * s.tp + out->t;
    }
    init_dcp_group(m, out);
    for (int32_t r = 0; r <= s.dcp; r++) {
        out->shard_cut[r] = r * m->kv_shards / s.dcp;
    }
    const int32_t size[COMM_N_GROUP] = {
        [COMM_WORLD] = out->world, [COMM_TP] = s.tp, [COMM_PCP] = s.pcp, [COMM_DCP] = s.dcp};
    const int32_t index[COMM_N_GROUP] = {
        [COMM_WORLD] = rank, [COMM_TP] = out->t, [COMM_PCP] = out->c, [COMM_DCP] = out->dcp_rank};
    for (int32_t g = 0; g < COMM_N_GROUP; g++) {
        out->members.size[g] = size[g];
        out->members.index[g] = index[g];
        out->members.list[g] = out->group_list[g];
    }
}

/* ---- pages ---- */

int32_t topo_page_shard(int32_t kv_shards, int32_t logical_page) {
    int32_t shard = 0;
    for (int32_t bit = 1, page = logical_page; bit < kv_shards; bit *= 2, page /= 2) {
        shard = shard * 2 + page % 2;
    }
    return shard;
}

/* The largest r with shard_cut[r] = r * V / dcp (rounded down) <= shard. */
int32_t topo_page_owner(const topo *t, int32_t logical_page) {
    int32_t shard = topo_page_shard(t->kv_shards, logical_page);
    return ((shard + 1) * t->sizes.dcp - 1) / t->kv_shards;
}

int32_t topo_pages_owned(const topo *t, int32_t dcp_rank, int32_t n_page) {
    int32_t cycle = t->kv_shards;
    int32_t n = n_page / cycle * (t->shard_cut[dcp_rank + 1] - t->shard_cut[dcp_rank]);
    for (int32_t page = n_page / cycle * cycle; page < n_page; page++) {
        n += topo_page_owner(t, page) == dcp_rank;
    }
    return n;
}

/* ---- experts ---- */

int32_t topo_expert_cut(int32_t n_expert, int32_t world, int32_t rank) {
    return rank * n_expert / world;
}
