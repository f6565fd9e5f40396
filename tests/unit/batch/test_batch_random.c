/* Random batches over random worlds; every step is played through (play.h). */
#include "unit/batch/play.h"

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
    caps.n_group = random_in(1, PLAY_GROUPS);
    for (int32_t g = 0; g < caps.n_group; g++) {
        caps.window[g] = random_in(0, 2) ? 0 : random_in(1, 150);
    }
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
        cmocka_unit_test(test_random_steps),
        cmocka_unit_test(test_uneven_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
