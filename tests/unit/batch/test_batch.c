/* Worked numbers, traps and capacities of the partition; every step is played through (play.h). */
#include "unit/batch/play.h"

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
                n += st.held[0][r][id] != 0;
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
    caps.head_dim = caps.value_dim = 64;
    caps.kv_bytes = 2 * 64 * 2;
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
    caps.kv_bytes = 2 * 64 * 4;
    topo_init(&m, (topo_sizes){4, 2, 2}, 0, &t);
    /* (C + T) * 2 * 64 * 4 = (C + T) * 512 against T * 2 * 520 = T * 1040 */
    assert_int_equal(batch_choose_exchange(&caps, &t, 103, 100), WEFT_EXCHANGE_KV);
    assert_int_equal(batch_choose_exchange(&caps, &t, 104, 100), WEFT_EXCHANGE_Q);
    /* keys of 64 whose first 32 elements are the values:
     * (C + T) * 64 * 4 = (C + T) * 256 against T * 2 * (4 * 64 + 4 * 32 + 8) = T * 784 */
    caps.value_dim = 32;
    caps.kv_bytes = 64 * 4;
    assert_int_equal(batch_choose_exchange(&caps, &t, 206, 100), WEFT_EXCHANGE_KV);
    assert_int_equal(batch_choose_exchange(&caps, &t, 207, 100), WEFT_EXCHANGE_Q);
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
    add(100, 28, false); /* 8 pages: round 1 */
    add(0, 20, false);   /* 2 pages: round 1, full */
    add(20, 1, true);    /* 2 pages: round 2; one rank has rows */
    check_step();
    for (int32_t r = 0; r < 3; r++) {
        assert_int_equal(w.l[r].n_round, 3);
        assert_int_equal(w.l[r].round[0].n_recv, 5);
        assert_int_equal(w.l[r].round[1].n_recv, 10);
        assert_int_equal(w.l[r].n_gather, 0);
        assert_int_equal(w.l[r].n_q_tok, 0);
    }
    assert_int_equal(w.l[0].round[2].n_recv, 2);
    assert_int_equal(w.l[1].round[2].n_recv, 0);
    assert_int_equal(w.l[1].round[2].n_span, 0);

    /* Page 0 of every request has the same owner, which sends at most 4 to each rank in a round:
     * of 10 pages it has 0, 2, 4 and 8. */
    begin_step();
    for (int32_t i = 0; i < 5; i++) {
        add(0, 3, false);
    }
    check_step();
    assert_int_equal(w.l[0].n_round, 2);
    assert_int_equal(w.l[0].round[0].n_send, 12);
    assert_int_equal(w.l[0].round[1].n_send, 3);
    assert_int_equal(batch_round_send_cap(w.b[0]), 12);
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
    caps.n_group = KV_MAX_GROUP + 1;
    expect_refused(caps, "5 groups");
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),       cmocka_unit_test(test_worked_numbers),
        cmocka_unit_test(test_rotation),     cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_idle_ranks),   cmocka_unit_test(test_empty_step),
        cmocka_unit_test(test_context),      cmocka_unit_test(test_mixed_slots),
        cmocka_unit_test(test_stale_slots),  cmocka_unit_test(test_one_token_prompt),
        cmocka_unit_test(test_long_request), cmocka_unit_test(test_choose_exchange),
        cmocka_unit_test(test_rounds),       cmocka_unit_test(test_tok_cap),
        cmocka_unit_test(test_bad_caps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
