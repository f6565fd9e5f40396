/* Negative controls: each planted fault ends in a difference or an error on every topology where it
 * can show, and never in a hang. Else the comparisons of the other tests would prove nothing.
 *
 * Where a fault cannot show:
 * - own-twice with every row by pass-KV (exchange kv and dcp > 1): it counts a node of the pass-Q
 *   exchange twice, and there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

enum { N = 8, MAX_TOPO = 64 };

typedef struct scene {
    weft_model *m;
    weft_request q[N];
    run_answer oracle[N];
} scene;

/* Two requests are decoding when six prompts of several pages arrive. */
static void scene_open(scene *s, const toy_shape *shape) {
    weft_engine_params p = run_params(1, 1, 1);
    s->m = toy_open(shape);
    for (int32_t i = 0; i < N; i++) {
        s->q[i] = run_request(shape->n_vocab, i < 2 ? 12 + i : 40 + 7 * i, 6, (uint64_t)i + 1);
        s->q[i].arrival_step = i < 2 ? 0 : 3;
    }
    run_oracle(s->m, &p, s->q, N, s->oracle);
}

static void scene_close(scene *s) {
    run_free(s->oracle, N);
    weft_model_close(s->m);
}

static bool can_show(const char *fault, const weft_engine_params *p) {
    return strcmp(fault, "own-twice") != 0 || p->dcp == 1 || p->exchange != WEFT_EXCHANGE_KV;
}

/* Number of requests that show it; an engine that failed shows it in all. */
static int32_t seen_by(const scene *s, const weft_engine_params *p) {
    run_answer got[N];
    weft_error err = {0};
    int32_t n = 0;
    if (run_engine(s->m, p, s->q, N, got, NULL, &err) != WEFT_OK)
        n = N;
    for (int32_t i = 0; i < N && n < N; i++)
        n += got[i].n_token != s->oracle[i].n_token ||
             memcmp(got[i].hash, s->oracle[i].hash,
                    (size_t)s->oracle[i].n_row_cap * sizeof *got[i].hash) != 0;
    run_free(got, N);
    return n;
}

static void expect_fault(const scene *s, const char *fault, topo_sizes t, weft_exchange x) {
    weft_engine_params p = run_params(t.tp, t.pcp, t.dcp);
    char label[100];
    snprintf(label, sizeof label, "%s on tp%d pcp%d dcp%d, exchange %d", fault, t.tp, t.pcp, t.dcp,
             (int)x);
    p.exchange = x;
    p.fault = fault;
    run_watch(label, 60); /* far below the transport's deadline: ranks that wait for each other
                             must be found, not waited out */
    int32_t n = seen_by(s, &p);
    run_watch(NULL, 0);
    if ((n > 0) != can_show(fault, &p))
        fail_msg("%s: %d of %d requests show it", label, n, N);
}

/* Every fault on every topology, with the exchange that auto chooses. */
static void every_fault_everywhere(void **state) {
    (void)state;
    scene s;
    topo_sizes list[MAX_TOPO];
    scene_open(&s, &toy_gqa);
    int32_t n = run_topologies(s.m, run_small() ? 2 : 8, list, MAX_TOPO), n_run = 0;
    for (int32_t f = 0; weft_fault_name(f); f++)
        for (int32_t i = 0; i < n; i++, n_run++)
            expect_fault(&s, weft_fault_name(f), list[i], WEFT_EXCHANGE_AUTO);
    print_message("%d faults planted\n", n_run);
    scene_close(&s);
}

/* With both exchanges forced, on the topologies of the design pages; and on a model of three KV
 * heads, whose trees have an odd factor. */
static void faults_in_both_exchanges(void **state) {
    (void)state;
    static const topo_sizes sizes[] = {{1, 2, 1}, {1, 2, 2}, {1, 4, 4}, {2, 2, 2}, {4, 2, 4}};
    scene s;
    scene_open(&s, &toy_gqa);
    for (int32_t f = 0; weft_fault_name(f); f++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes - (run_small() ? 2 : 0); i++)
            for (int32_t x = WEFT_EXCHANGE_Q; x <= WEFT_EXCHANGE_KV; x++)
                expect_fault(&s, weft_fault_name(f), sizes[i], (weft_exchange)x);
    scene_close(&s);
    scene_open(&s, toy_shapes[1]);
    for (int32_t f = 0; weft_fault_name(f); f++) {
        expect_fault(&s, weft_fault_name(f), (topo_sizes){3, 2, 2}, WEFT_EXCHANGE_AUTO);
        expect_fault(&s, weft_fault_name(f), (topo_sizes){1, 3, 3}, WEFT_EXCHANGE_AUTO);
    }
    scene_close(&s);
}

/* A rank that fails takes the engine down in order: every request ends with the status, then the
 * reason is told, later requests are refused with it, and close returns. */
static void failure_is_told(void **state) {
    (void)state;
    scene s;
    scene_open(&s, &toy_gqa);
    weft_engine_params p = run_params(1, 2, 2);
    weft_engine *e = NULL;
    weft_error err = {0};
    run_answer got[N];
    p.fault = "rank-fails";
    run_watch("failure is told", 60);
    assert_int_equal(weft_engine_open(s.m, &p, &e, &err), WEFT_OK);
    assert_int_equal(run_requests(e, s.q, N, NULL, got, &err), WEFT_OK); /* each has its end */
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(got[i].finish, WEFT_FINISH_ERROR);
        assert_int_equal(got[i].status, WEFT_ERR_RANK);
    }
    weft_event ev;
    bool any = true;
    assert_int_equal(weft_engine_next(e, -1, &ev, &any, &err), WEFT_ERR_RANK);
    assert_false(any);
    assert_non_null(strstr(err.text, "rank 1"));
    uint64_t id = 0;
    err = (weft_error){0};
    assert_int_equal(weft_engine_submit(e, s.q, 1, &id, &err), WEFT_ERR_RANK);
    assert_non_null(strstr(err.text, "rank 1"));
    weft_engine_cancel(e, got[0].id);
    weft_engine_close(e);
    run_watch(NULL, 0);
    run_free(got, N);
    scene_close(&s);
}

static void unknown_fault_is_refused(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    weft_engine_params p = run_params(1, 1, 1);
    weft_engine *e = NULL;
    weft_error err = {0};
    p.fault = "no-such-fault";
    assert_int_equal(weft_engine_open(m, &p, &e, &err), WEFT_ERR_SETUP);
    assert_non_null(strstr(err.text, "no-such-fault"));
    assert_null(e);
    assert_null(weft_fault_name(-1));
    weft_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fault_everywhere),
        cmocka_unit_test(faults_in_both_exchanges),
        cmocka_unit_test(failure_is_told),
        cmocka_unit_test(unknown_fault_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
