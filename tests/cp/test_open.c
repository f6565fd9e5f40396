/* Opening an engine: a client may end the packing of the weights, and is told before it what is wrong
 * with a request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

typedef struct watcher {
    int32_t n_call, stop_at; /* calls so far; the one that is answered with false, 0: none */
    double last;
} watcher;

static bool watch(void *user, double done) {
    watcher *w = user;
    assert_true(done > w->last && done <= 1);
    w->last = done;
    return ++w->n_call != w->stop_at;
}

static void the_client_ends_the_loading(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    weft_engine_params params = run_params(1, 2, 2);
    watcher all = {0};
    params.on_load = watch;
    params.on_load_user = &all;
    weft_engine *e = NULL;
    weft_error err = {0};
    params.n_thread = 2;
    assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_OK);
    assert_true(all.last == 1); /* one thread calls, and may be late for all but the last */
    weft_engine_close(e);
    params = run_params(1, 1, 1);
    params.n_thread = 1; /* as many calls as there are pieces */
    params.on_load = watch;
    params.on_load_user = &all;
    all = (watcher){0};
    assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_OK);
    assert_true(all.last == 1 && all.n_call > 1);
    weft_engine_close(e);
    e = NULL;
    const int32_t stops[] = {1, all.n_call / 2, all.n_call};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        watcher w = {.stop_at = stops[i]};
        params.on_load_user = &w;
        assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_ERR_INTERRUPTED);
        assert_null(e);
        assert_int_equal(w.n_call, stops[i]); /* it is not asked again */
        assert_non_null(strstr(err.text, "interrupted"));
    }
    weft_model_close(m);
}

static void requests_are_checked_before(void **state) {
    (void)state;
    static const int32_t prompt[300] = {1};
    weft_model *m = toy_open(&toy_gqa);
    weft_engine_params params = run_params(1, 1, 1);
    watcher loaded = {0};
    params.on_load = watch;
    params.on_load_user = &loaded;
    weft_request good, q;
    weft_request_default(&good);
    good.prompt = prompt;
    good.n_prompt = 10;
    weft_error err = {0};
    assert_int_equal(weft_request_check(m, &params, &good, &err), WEFT_OK);
    q = good, q.n_prompt = 300; /* run_params: 256 */
    assert_int_equal(weft_request_check(m, &params, &q, &err), WEFT_ERR_TOO_LONG);
    assert_non_null(strstr(err.text, "model length of 256"));
    q = good, q.sampling.top_p = 0;
    assert_int_equal(weft_request_check(m, &params, &q, &err), WEFT_ERR_USAGE);
    assert_non_null(strstr(err.text, "top_p"));
    q = good, q.stop = &(const char *){""}, q.n_stop = 1;
    assert_int_equal(weft_request_check(m, &params, &q, &err), WEFT_ERR_USAGE);
    params.kv_pages = 2; /* of 16 tokens */
    q = good, q.n_prompt = 100;
    assert_int_equal(weft_request_check(m, &params, &q, &err), WEFT_ERR_TOO_LONG);
    assert_non_null(strstr(err.text, "capacity of 32"));
    params.dcp = 3;
    assert_int_equal(weft_request_check(m, &params, &good, &err), WEFT_ERR_SETUP);
    assert_int_equal(loaded.n_call, 0);
    weft_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_client_ends_the_loading),
        cmocka_unit_test(requests_are_checked_before),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
