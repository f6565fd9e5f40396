/* Groups, legality and page ownership, against brute force and the worked examples of topo.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "topo/topo.h"

/* A model whose only limits are its heads: anything that heads allow is legal. */
static topo_model wide_model(int32_t n_head, int32_t n_kv_head) {
    return (topo_model){.n_head = n_head,
                        .n_kv_head = n_kv_head,
                        .head_dim = 64,
                        .ffn = 64 * 64 * 9 * 5,
                        .hidden = 4096,
                        .n_vocab = 1000,
                        .leaves_o = 64 * 9 * 5,
                        .leaves_down = 64 * 9 * 5,
                        .kv_shards = 16,
                        .panel = 16,
                        .leaf_multiple = 32};
}

static topo_model demo_model(void) {
    return (topo_model){.n_head = 9,
                        .n_kv_head = 3,
                        .head_dim = 64,
                        .ffn = 1536,
                        .hidden = 576,
                        .n_vocab = 49152,
                        .leaves_o = 6,
                        .leaves_down = 12,
                        .kv_shards = 16,
                        .panel = 16,
                        .leaf_multiple = 32};
}

static void check_group(const topo *t, comm_group g, int32_t n, const int32_t *want) {
    assert_int_equal(t->members.size[g], n);
    assert_memory_equal(t->members.list[g], want, (size_t)n * sizeof want[0]);
    assert_int_equal(t->members.list[g][t->members.index[g]], t->rank);
}

/* The worked examples of the header, and T17: the DCP rank is not the TP rank. */
static void test_examples(void **state) {
    (void)state;
    topo t;
    topo_model one = wide_model(4, 4);
    topo_init(&one, (topo_sizes){1, 4, 2}, 2, &t);
    check_group(&t, COMM_DCP, 2, (const int32_t[]){2, 3});
    check_group(&t, COMM_PCP, 4, (const int32_t[]){0, 1, 2, 3});
    topo_init(&one, (topo_sizes){1, 4, 2}, 1, &t);
    check_group(&t, COMM_DCP, 2, (const int32_t[]){0, 1});
    assert_memory_equal(t.pcp_dcp_rank, ((const int32_t[]){0, 1, 0, 1}), 16);

    topo_model two = wide_model(4, 2);
    topo_init(&two, (topo_sizes){2, 2, 2}, 1, &t);
    check_group(&t, COMM_DCP, 2, (const int32_t[]){1, 3});
    check_group(&t, COMM_TP, 2, (const int32_t[]){0, 1});
    check_group(&t, COMM_PCP, 2, (const int32_t[]){1, 3});
    check_group(&t, COMM_WORLD, 4, (const int32_t[]){0, 1, 2, 3});
    assert_int_equal(t.kv_head0, 1);
    assert_int_equal(t.head0, 2);
    topo_init(&two, (topo_sizes){2, 2, 2}, 2, &t);
    check_group(&t, COMM_DCP, 2, (const int32_t[]){0, 2});

    topo_model mqa = wide_model(4, 1);
    const int32_t dcp_rank[4] = {0, 2, 1, 3};
    for (int32_t rank = 0; rank < 4; rank++) {
        topo_init(&mqa, (topo_sizes){2, 2, 4}, rank, &t);
        check_group(&t, COMM_DCP, 4, (const int32_t[]){0, 2, 1, 3});
        assert_int_equal(t.dcp_rank, dcp_rank[rank]);
        assert_memory_equal(t.dcp_c, ((const int32_t[]){0, 1, 0, 1}), 16);
        assert_memory_equal(t.dcp_t, ((const int32_t[]){0, 0, 1, 1}), 16);
        assert_int_equal(t.head0, t.t * 2);
        assert_int_equal(t.n_kv_head, 1);
        assert_int_equal(t.kv_head0, 0);
    }
}

static bool legal_by_hand(const topo_model *m, topo_sizes s) {
    if (s.tp < 1 || s.pcp < 1 || s.dcp < 1 || s.tp * s.pcp > 64 || s.dcp > m->kv_shards) {
        return false;
    }
    if (m->n_head % s.tp || (m->n_kv_head % s.tp && s.tp % m->n_kv_head) || m->leaves_o % s.tp ||
        m->leaves_down % s.tp) {
        return false;
    }
    int32_t kv = m->n_kv_head > s.tp ? m->n_kv_head / s.tp : 1;
    if (s.tp > 1 && ((m->n_head / s.tp * m->head_dim) % m->panel || (kv * m->head_dim) % m->panel ||
                     m->ffn % (s.tp * m->panel))) {
        return false;
    }
    int32_t copies = s.tp > m->n_kv_head ? s.tp / m->n_kv_head : 1;
    return (s.pcp * copies) % s.dcp == 0;
}

/* Bit h: query heads of the rank read KV head h. */
static uint64_t kv_heads_needed(const topo_model *m, const topo *t) {
    uint64_t set = 0;
    for (int32_t h = t->head0; h < t->head0 + t->n_head; h++) {
        set |= (uint64_t)1 << (h / (m->n_head / m->n_kv_head));
    }
    return set;
}

static uint64_t kv_heads_held(const topo *t) {
    uint64_t set = 0;
    for (int32_t h = t->kv_head0; h < t->kv_head0 + t->n_kv_head; h++) {
        set |= (uint64_t)1 << h;
    }
    return set;
}

static void check_pages(const topo *t) {
    int32_t counted[TOPO_MAX_WORLD] = {0};
    for (int32_t page = 0; page < 70; page++) {
        int32_t owner = topo_page_owner(t, page);
        int32_t shard = topo_page_shard(t->kv_shards, page);
        assert_in_range(owner, 0, t->sizes.dcp - 1);
        assert_true(shard >= t->shard_cut[owner] && shard < t->shard_cut[owner + 1]);
        for (int32_t r = 0; r < t->sizes.dcp; r++) {
            assert_int_equal(topo_pages_owned(t, r, page), counted[r]);
        }
        counted[owner]++;
    }
}

/* All ranks of one legal set: groups are consistent, a DCP group holds one set of KV heads, and its
 * members cover all shards once. */
static void check_world(const topo_model *m, topo_sizes s) {
    static topo all[TOPO_MAX_WORLD];
    int32_t world = s.tp * s.pcp;
    for (int32_t r = 0; r < world; r++) {
        topo_init(m, s, r, &all[r]);
    }
    for (int32_t r = 0; r < world; r++) {
        const topo *t = &all[r];
        assert_int_equal(t->world, world);
        assert_int_equal(t->c * s.tp + t->t, r);
        assert_int_equal(kv_heads_held(t), kv_heads_needed(m, t));
        for (int32_t g = 0; g < COMM_N_GROUP; g++) {
            assert_int_equal(t->members.list[g][t->members.index[g]], r);
            for (int32_t i = 0; i < t->members.size[g]; i++) {
                const topo *o = &all[t->members.list[g][i]];
                assert_int_equal(o->members.size[g], t->members.size[g]);
                assert_int_equal(o->members.index[g], i);
                assert_memory_equal(o->members.list[g], t->members.list[g],
                                    (size_t)t->members.size[g] * sizeof(int32_t));
            }
        }
        assert_int_equal(t->members.size[COMM_DCP], s.dcp);
        int32_t shard = 0;
        for (int32_t i = 0; i < s.dcp; i++) {
            const topo *o = &all[t->members.list[COMM_DCP][i]];
            assert_int_equal(kv_heads_held(o), kv_heads_held(t));
            assert_int_equal(o->dcp_rank, i);
            assert_int_equal(o->c, t->dcp_c[i]);
            assert_int_equal(o->t, t->dcp_t[i]);
            assert_int_equal(o->shard_cut[i], shard);
            assert_true(o->shard_cut[i + 1] > shard); /* nobody is without a shard */
            shard = o->shard_cut[i + 1];
        }
        assert_int_equal(shard, m->kv_shards);
        for (int32_t c = 0; c < s.pcp; c++) {
            assert_int_equal(t->pcp_dcp_rank[c], all[c * s.tp + t->t].dcp_rank);
        }
    }
    check_pages(&all[world - 1]);
}

/* A13 (same decision everywhere, from integers) and more: every small combination is either legal
 * and well-formed, or refused with the numbers. */
static void test_table(void **state) {
    (void)state;
    const int32_t kvs[] = {1, 2, 3, 4, 8};
    int32_t n_legal = 0;
    int32_t n_refused = 0;
    for (size_t k = 0; k < sizeof kvs / sizeof kvs[0]; k++) {
        topo_model m = wide_model(24, kvs[k]);
        for (topo_sizes s = {1, 1, 1}; s.tp <= 12; s.tp++) {
            for (s.pcp = 1; s.pcp <= 6; s.pcp++) {
                for (s.dcp = 1; s.dcp <= 18; s.dcp++) {
                    weft_error err;
                    bool legal = legal_by_hand(&m, s);
                    assert_int_equal(topo_check(&m, s, &err), legal ? WEFT_OK : WEFT_ERR_SETUP);
                    if (legal) {
                        check_world(&m, s);
                        n_legal++;
                    } else {
                        n_refused++;
                    }
                }
            }
        }
    }
    assert_true(n_legal > 200 && n_refused > 200);

    /* The report's own table. */
    const int32_t two[] = {1, 2, 4};
    const int32_t heads[] = {1, 2, 4, 8};
    for (int32_t i = 0; i < 3 * 4 * 3 * 3; i++) {
        topo_sizes s = {two[i % 3], two[i / 3 % 3], two[i / 9 % 3]};
        topo_model m = wide_model(8, heads[i / 27]);
        int32_t copies = s.tp > m.n_kv_head ? s.tp / m.n_kv_head : 1;
        weft_status want = s.pcp * copies % s.dcp == 0 ? WEFT_OK : WEFT_ERR_SETUP;
        assert_int_equal(topo_check(&m, s, NULL), want);
    }
}

static uint64_t bits(int32_t first, int32_t n) {
    return (((uint64_t)1 << n) - 1) << first;
}

/* Every rank holds what its query heads read of a layer with n KV heads, and a DCP group's members
 * hold the same. */
static void check_fewer(const topo_model *m, topo_sizes s, int32_t n) {
    for (int32_t r = 0; r < s.tp * s.pcp; r++) {
        topo t;
        topo_init(m, s, r, &t);
        topo_model layer = *m;
        layer.n_kv_head = n;
        uint64_t held = bits(t.t * n / s.tp, topo_kv_heads(n, s.tp));
        assert_int_equal(held, kv_heads_needed(&layer, &t));
        for (int32_t i = 0; i < s.dcp; i++)
            assert_int_equal(bits(t.dcp_t[i] * n / s.tp, topo_kv_heads(n, s.tp)), held);
    }
}

/* Layers with fewer KV heads: both numbers decide what is legal, the larger one the groups. */
static void test_fewer_kv_heads(void **state) {
    (void)state;
    static const struct {
        int32_t most, fewer, dim;
    } cases[] = {{8, 2, 128}, {4, 1, 64}, {6, 3, 64}, {12, 4, 8}, {8, 8, 8}, {2, 1, 8}};
    int32_t n_legal = 0, n_refused = 0;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        topo_model m = wide_model(24, cases[k].most);
        int32_t n = cases[k].fewer;
        m.heads_more[0] = (topo_heads){n, cases[k].dim};
        assert_int_equal(topo_fewer_kv_heads(&m), n == cases[k].most ? 0 : n);
        for (topo_sizes s = {1, 1, 1}; s.tp <= 12; s.tp++)
            for (s.pcp = 1; s.pcp <= 4; s.pcp++)
                for (s.dcp = 1; s.dcp <= 8; s.dcp++) {
                    int32_t local = n > s.tp ? n / s.tp : 1;
                    bool fits = (n % s.tp == 0 || s.tp % n == 0) &&
                                (s.tp == 1 || (24 / s.tp * cases[k].dim % m.panel == 0 &&
                                               local * cases[k].dim % m.panel == 0));
                    bool legal = legal_by_hand(&m, s) && fits;
                    assert_int_equal(topo_check(&m, s, NULL), legal ? WEFT_OK : WEFT_ERR_SETUP);
                    n_refused += legal_by_hand(&m, s) && !fits;
                    n_legal += legal;
                    if (legal)
                        check_fewer(&m, s, n);
                }
    }
    assert_true(n_legal > 100 && n_refused > 20);
    topo_model m = wide_model(24, 6);
    m.heads_more[0] = (topo_heads){3, 64};
    weft_error err;
    assert_int_equal(topo_check(&m, (topo_sizes){2, 1, 1}, &err), WEFT_ERR_SETUP);
    assert_non_null(strstr(err.text, "tp must divide the model's 3 KV heads"));
    m.heads_more[0] = (topo_heads){2, 8};
    assert_int_equal(topo_check(&m, (topo_sizes){2, 1, 1}, &err), WEFT_ERR_SETUP);
    assert_non_null(strstr(err.text, "KV 6 heads of 64, KV 2 heads of 8, MLP"));
}

static void check_refused(const topo_model *m, topo_sizes s, const char *rule) {
    weft_error err;
    assert_int_equal(topo_check(m, s, &err), WEFT_ERR_SETUP);
    assert_int_equal(err.status, WEFT_ERR_SETUP);
    if (!strstr(err.text, rule)) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, rule);
    }
    char own[64];
    snprintf(own, sizeof own, "tp %d pcp %d dcp %d: ", s.tp, s.pcp, s.dcp);
    assert_int_equal(strncmp(err.text, own, strlen(own)), 0);

    /* The sizes offered are legal, and none is nearer than the first. */
    const char *at = strstr(err.text, "nearest legal: ");
    assert_non_null(at);
    at += strlen("nearest legal: ");
    int64_t first = -1;
    int64_t last = -1;
    topo_sizes l;
    for (int32_t n; sscanf(at, "tp %d pcp %d dcp %d%n", &l.tp, &l.pcp, &l.dcp, &n) == 3;) {
        assert_true(legal_by_hand(m, l));
        last = llabs((int64_t)l.tp - s.tp) + llabs((int64_t)l.pcp - s.pcp) +
               llabs((int64_t)l.dcp - s.dcp);
        first = first < 0 ? last : first;
        at += n;
        at += *at == ',' ? 2 : 0;
    }
    assert_int_equal(*at, 0);
    assert_true(first > 0 && last >= first);
    for (topo_sizes o = {1, 1, 1}; o.tp <= 64; o.tp++) {
        for (o.pcp = 1; o.tp * o.pcp <= 64; o.pcp++) {
            for (o.dcp = 1; o.dcp <= 64; o.dcp++) {
                int64_t d = llabs((int64_t)o.tp - s.tp) + llabs((int64_t)o.pcp - s.pcp) +
                            llabs((int64_t)o.dcp - s.dcp);
                assert_true(!legal_by_hand(m, o) || d >= first);
            }
        }
    }
}

/* T18 and each rule, in the order of the header. */
static void test_refusals(void **state) {
    (void)state;
    topo_model m = wide_model(24, 4);
    check_refused(&m, (topo_sizes){0, 1, 1}, "at least 1");
    check_refused(&m, (topo_sizes){1, -3, 1}, "at least 1");
    check_refused(&m, (topo_sizes){1, 1, 0}, "at least 1");
    check_refused(&m, (topo_sizes){8, 9, 1}, "72 ranks, at most 64");
    check_refused(&m, (topo_sizes){INT32_MAX, INT32_MAX, 1}, "4611686014132420609 ranks");
    check_refused(&m, (topo_sizes){5, 1, 1}, "24 query heads");
    check_refused(&m, (topo_sizes){3, 1, 1}, "4 KV heads");
    check_refused(&m, (topo_sizes){12, 1, 2}, "divide the 3 ranks that hold the same KV heads");
    check_refused(&m, (topo_sizes){1, 3, 2}, "divide the 3 ranks");
    check_refused(&m, (topo_sizes){1, 2, 4}, "divide the 2 ranks");
    check_refused(&m, (topo_sizes){1, 32, 32}, "16 KV shards");
    topo_model draft = wide_model(8, 8);
    check_refused(&draft, (topo_sizes){4, 1, 4}, "divide the 1 ranks");

    topo_model demo = demo_model();
    check_refused(&demo, (topo_sizes){9, 1, 1}, "attention output 6, MLP down 12");
    check_refused(&demo, (topo_sizes){2, 1, 1}, "9 query heads");
    demo.leaves_o = 9;
    check_refused(&demo, (topo_sizes){9, 1, 1}, "MLP down 12");
    demo.leaves_o = 6;
    demo.leaves_down = 9;
    check_refused(&demo, (topo_sizes){9, 1, 1}, "attention output 6");
    demo.panel = 128; /* 3 heads of 64 are not whole panels */
    check_refused(&demo, (topo_sizes){3, 1, 1}, "multiples of 128");
    topo_sizes one = {1, 1, 1};
    assert_int_equal(topo_check(&demo, one, NULL), WEFT_OK); /* no cut, no panel rule */
    demo.n_head = 12; /* now 4 query heads are, one KV head is not */
    check_refused(&demo, (topo_sizes){3, 1, 1}, "KV 3 heads of 64");
    demo = demo_model();
    demo.ffn = 1536 + 24; /* 520 per rank */
    check_refused(&demo, (topo_sizes){3, 1, 1}, "MLP 1560");
    assert_int_equal(topo_check(&demo, (topo_sizes){2, 1, 1}, NULL), WEFT_ERR_SETUP);
}

static void test_list(void **state) {
    (void)state;
    topo_model m = demo_model();
    topo_sizes got[200];
    int32_t n = topo_list(&m, 8, got, 200);
    int32_t want = 0;
    for (int32_t world = 1; world <= 8; world++) {
        for (topo_sizes s = {1, 1, 1}; s.tp <= world; s.tp++) {
            for (s.pcp = world / s.tp, s.dcp = 1; s.tp * s.pcp == world && s.dcp <= 64; s.dcp++) {
                if (legal_by_hand(&m, s)) {
                    assert_true(want < n);
                    assert_memory_equal(&got[want], &s, sizeof s);
                    assert_true(s.tp == 1 || s.tp == 3);
                    want++;
                }
            }
        }
    }
    assert_int_equal(n, want);
    /* tp1: divisors of 1..8 = 20 sets; tp3: pcp 1 and 2 = 3 sets */
    assert_int_equal(n, 23);
    topo_sizes few[3] = {{7, 7, 7}, {7, 7, 7}, {7, 7, 7}};
    assert_int_equal(topo_list(&m, 8, few, 2), 23);
    assert_memory_equal(few, got, 2 * sizeof few[0]);
    assert_int_equal(few[2].tp, 7);
    assert_int_equal(topo_list(&m, 0, NULL, 0), 0);
    assert_int_equal(topo_list(&m, INT32_MAX, NULL, 0), topo_list(&m, 64, NULL, 0));

    /* The legal examples of the design page. */
    m = wide_model(16, 2);
    assert_int_equal(topo_check(&m, (topo_sizes){1, 2, 2}, NULL), WEFT_OK);
    assert_int_equal(topo_check(&m, (topo_sizes){2, 2, 2}, NULL), WEFT_OK);
    assert_int_equal(topo_check(&m, (topo_sizes){2, 4, 2}, NULL), WEFT_OK);
    assert_int_equal(topo_check(&m, (topo_sizes){8, 1, 4}, NULL), WEFT_OK);
}

static void test_leaves(void **state) {
    (void)state;
    assert_int_equal(topo_leaves(3, 576, 16, 32), 6);
    assert_int_equal(topo_leaves(3, 1536, 16, 32), 12);
    assert_int_equal(topo_leaves(8, 4096, 16, 32), 16);
    assert_int_equal(topo_leaves(8, 14336, 16, 32), 16);
    assert_int_equal(topo_leaves(12, 1536, 16, 32), 12);
    assert_int_equal(topo_leaves(5, 4096, 16, 32), 1); /* 5 does not divide it */
    assert_int_equal(topo_leaves(3, 96, 16, 32), 3);
    assert_int_equal(topo_leaves(1, 48, 16, 32), 1);
    assert_int_equal(topo_leaves(17, 17 * 32, 16, 32), 1);
}

static void test_page_owners(void **state) {
    (void)state;
    topo_model m = wide_model(4, 4);
    topo t;
    topo_init(&m, (topo_sizes){1, 2, 2}, 0, &t);
    for (int32_t page = 0; page < 7; page++) {
        assert_int_equal(topo_page_owner(&t, page), page % 2);
    }
    assert_int_equal(topo_pages_owned(&t, 0, 7), 4);
    assert_int_equal(topo_pages_owned(&t, 1, 7), 3);
    const int32_t reversed[18] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15, 0, 8};
    for (int32_t page = 0; page < 18; page++) {
        assert_int_equal(topo_page_shard(16, page), reversed[page]);
    }
    assert_int_equal(topo_page_shard(1, 5), 0);
    assert_int_equal(topo_page_owner(&t, INT32_MAX), 1);
    /* 16 shards over 3: [0, 5) [5, 10) [10, 16) */
    topo_init(&m, (topo_sizes){1, 3, 3}, 0, &t);
    assert_memory_equal(t.shard_cut, ((const int32_t[]){0, 5, 10, 16}), 16);
}

/* Every expert has one owner; H11: counts that ranks do not divide, fewer experts than ranks. */
static void test_experts(void **state) {
    (void)state;
    static const int32_t n_expert[] = {10, 64, 128, 4, 1024}, world[] = {4, 3, 6, 8, 64};
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(topo_expert_cut(n_expert[i], world[i], 0), 0);
        assert_int_equal(topo_expert_cut(n_expert[i], world[i], world[i]), n_expert[i]);
        for (int32_t r = 0; r < world[i]; r++) {
            int32_t n = topo_expert_cut(n_expert[i], world[i], r + 1) -
                        topo_expert_cut(n_expert[i], world[i], r);
            assert_in_range(n, n_expert[i] / world[i], (n_expert[i] + world[i] - 1) / world[i]);
        }
    }
    assert_int_equal(topo_expert_cut(10, 4, 1), 2);
    assert_int_equal(topo_expert_cut(10, 4, 2), 5);
}

/* Models without a dense MLP that tp cuts. */
static void test_no_mlp(void **state) {
    (void)state;
    topo_model m = wide_model(4, 4);
    m.ffn = m.leaves_down = 0;
    weft_error err = {0};
    assert_int_equal(topo_check(&m, (topo_sizes){4, 1, 1}, &err), WEFT_OK);
    m.leaves_o = 1;
    assert_int_equal(topo_check(&m, (topo_sizes){4, 1, 1}, &err), WEFT_ERR_SETUP);
    assert_non_null(strstr(err.text, "attention output 1;"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),       cmocka_unit_test(test_table),
        cmocka_unit_test(test_fewer_kv_heads), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_list),           cmocka_unit_test(test_leaves),
        cmocka_unit_test(test_page_owners),    cmocka_unit_test(test_experts),
        cmocka_unit_test(test_no_mlp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
