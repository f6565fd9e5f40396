/* Layers with a window keep little of a context: contexts of many windows through pools of a few
 * pages give the bytes of large pools, on any topology, whatever the company. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "runner.h"

enum { N = 4, LONG = 1000, N_ID = 320, WINDOW = 24, CHUNK = 32 };
/* that WINDOW - 1 + CHUNK positions touch at most */
enum { WINDOW_PAGES = (WINDOW + CHUNK - 3) / 16 + 2 };

static const struct {
    const char *path;
    int32_t n_group, pages; /* pages of group 0 that the longest request needs */
    int32_t n_size;         /* of the list of sizes that are legal */
} model[] = {
    {WEFT_GOLDEN "/models/mistral_swa", 1, WINDOW_PAGES, 4},
    {WEFT_GOLDEN "/models/gemma3", 2, (LONG + 24) / 16, 5}, /* group 0 sees all */
};
enum { N_MODEL = sizeof model / sizeof *model };

static weft_engine_params params_of(int32_t tp, int32_t pcp, int32_t dcp) {
    weft_engine_params p = run_params(tp, pcp, dcp);
    p.max_model_len = 1100;
    p.max_num_batched_tokens = CHUNK;
    p.cp_min_split = 1;
    return p;
}

static void make_requests(weft_request *q) {
    q[0] = run_request(N_ID, LONG, 24, 1);
    for (int32_t i = 1; i < N; i++) {
        q[i] = run_request(N_ID, 5 + 40 * i, 100, (uint64_t)i + 1);
        q[i].arrival_step = 5 * i;
    }
}

/* The answers are those of pools that hold everything. */
static void tight_pools(void **state) {
    (void)state;
    static const topo_sizes sizes[] = {{1, 1, 1}, {1, 2, 1}, {1, 2, 2}, {1, 4, 4}, {2, 2, 2}};
    int64_t n_preemption = 0;
    for (int32_t i = 0; i < N_MODEL; i++) {
        weft_model *m = NULL;
        weft_error err = {0};
        weft_request q[N];
        run_answer oracle[N], got[N];
        weft_engine_stats stats;
        assert_int_equal(weft_model_open(model[i].path, &m, &err), WEFT_OK);
        make_requests(q);
        weft_engine_params p = params_of(1, 1, 1);
        run_oracle(m, &p, q, N, oracle);
        assert_int_equal(oracle[0].n_token, 24);
        for (size_t k = 0; k < (size_t)model[i].n_size; k++)
            for (weft_exchange x = WEFT_EXCHANGE_AUTO; x <= WEFT_EXCHANGE_KV; x++) {
                if (x != WEFT_EXCHANGE_AUTO && (sizes[k].dcp == 1 || run_small()))
                    continue;
                p = params_of(sizes[k].tp, sizes[k].pcp, sizes[k].dcp);
                p.exchange = x;
                p.kv_pages = (model[i].pages + p.dcp - 1) / p.dcp;
                run_ok(model[i].path, m, &p, q, N, got, &stats);
                run_assert_same(model[i].path, oracle, got, N);
                assert_in_range(stats.group[stats.n_group - 1].n_page, 1, WINDOW_PAGES + p.dcp);
                n_preemption += stats.n_preemption;
                run_free(got, N);
            }
        run_free(oracle, N);
        weft_model_close(m);
    }
    assert_true(n_preemption > 0); /* pages have changed hands */
}

/* Pages of a context of 50 windows. */
static void memory_is_bounded(void **state) {
    (void)state;
    for (int32_t i = 0; i < N_MODEL; i++) {
        weft_model *m = NULL;
        weft_engine *e = NULL;
        weft_error err = {0};
        weft_engine_stats stats;
        run_answer got;
        assert_int_equal(weft_model_open(model[i].path, &m, &err), WEFT_OK);
        weft_engine_params p = params_of(1, 1, 1);
        weft_request q = run_request(N_ID, LONG, 24, 1);
        assert_int_equal(weft_engine_open(m, &p, &e, &err), WEFT_OK);
        assert_int_equal(run_requests(e, &q, 1, NULL, &got, &err), WEFT_OK);
        weft_engine_get_stats(e, &stats);
        assert_int_equal(stats.n_group, model[i].n_group);
        int32_t last = stats.n_group - 1; /* the group with the window */
        assert_int_equal(stats.group[last].window, WINDOW);
        int64_t most = stats.group[last].n_page_most;
        assert_true(most > 0 && most <= WINDOW_PAGES);
        if (stats.n_group > 1) {
            assert_int_equal(stats.group[0].n_page_most, model[i].pages);
            assert_true(stats.group[0].n_page > 8 * stats.group[last].n_page);
        }
        weft_engine_close(e);
        run_free(&got, 1);
        weft_model_close(m);
    }
}

int main(void) {
    if (access(WEFT_GOLDEN "/models/gemma3", R_OK) != 0)
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tight_pools),
        cmocka_unit_test(memory_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
