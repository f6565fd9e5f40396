/* The prefix cache: cold, warm and half evicted give the same bytes on any topology (traps T28-T30;
 * field reports A02, B04, B05, B07, B08, B13), and count what they found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

enum { N_ID = 250, P = 16 };

static const topo_sizes sizes[] = {{1, 1, 1}, {2, 2, 2}, {1, 4, 4}, {1, 2, 2}, {1, 2, 1}};

static int32_t n_size(void) {
    return run_small() ? 2 : (int32_t)(sizeof sizes / sizeof *sizes);
}

static weft_engine_params params_of(topo_sizes t) {
    weft_engine_params p = run_params(t.tp, t.pcp, t.dcp);
    p.max_model_len = 512;
    p.max_num_batched_tokens = 48;
    return p;
}

/* The first n tokens of a text of its own, without rows of the prompt (they bypass the cache). */
static weft_request prefix_of(int32_t n, uint64_t text, int32_t max_tokens) {
    weft_request q = run_request(N_ID, n, max_tokens, text);
    q.prompt_logits = false;
    return q;
}

/* The first n_shared tokens of one text, then another one. */
static weft_request branch(uint64_t text, int32_t n_shared, int32_t n, uint64_t other) {
    weft_request q = prefix_of(n, other, 20), from = prefix_of(n_shared, text, 1);
    memcpy((int32_t *)q.prompt, from.prompt, (size_t)n_shared * sizeof *q.prompt);
    return q;
}

static weft_engine *open_engine(weft_model *m, const weft_engine_params *p) {
    weft_engine *e = NULL;
    weft_error err = {0};
    if (weft_engine_open(m, p, &e, &err) != WEFT_OK)
        fail_msg("tp%d pcp%d dcp%d: %s", p->tp, p->pcp, p->dcp, err.text);
    return e;
}

/* One after the other in a living engine; found: [n] what each is to find, NULL: anything. */
static void one_by_one(const char *label, weft_engine *e, const weft_request *q, int32_t n,
                       const run_answer *oracle, const int32_t *found) {
    weft_error err = {0};
    for (int32_t i = 0; i < n; i++) {
        run_answer got;
        if (run_requests(e, &q[i], 1, NULL, &got, &err) != WEFT_OK)
            fail_msg("%s: %s", label, err.text);
        run_assert_same(label, &oracle[i], &got, 1);
        if (found && got.n_cached != found[i])
            fail_msg("%s: request %d of %d tokens found %d, expected %d", label, i, q[i].n_prompt,
                     got.n_cached, found[i]);
        run_free(&got, 1);
    }
}

/* A02: whole pages of 16 tokens, whatever dcp. */
static void shared_beginnings(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    const weft_request q[] = {branch(1, 100, 100, 9), branch(1, 40, 100, 2), branch(1, 80, 100, 3),
                              branch(1, 64, 100, 4),  branch(2, 5, 60, 5),   branch(1, 16, 17, 6)};
    const int32_t found[] = {0, 32, 80, 64, 0, 16};
    enum { N = sizeof q / sizeof *q };
    run_answer oracle[N];
    weft_engine_params p = params_of(sizes[0]);
    run_oracle(m, &p, q, N, oracle);
    for (int32_t k = 0; k < n_size(); k++) {
        p = params_of(sizes[k]);
        weft_engine *e = open_engine(m, &p);
        one_by_one("A02", e, q, N, oracle, found);
        weft_engine_close(e);
    }
    run_free(oracle, N);
    weft_model_close(m);
}

/* B04, T28: lengths around page edges, three times each: the last token is always computed. */
static void sent_again(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    const int32_t length[] = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128, 129};
    enum { N = sizeof length / sizeof *length };
    weft_request q[N];
    run_answer oracle[N];
    int32_t none[N] = {0}, found[N];
    for (int32_t i = 0; i < N; i++) {
        q[i] = prefix_of(length[i], 100 + (uint64_t)i, 6);
        found[i] = (length[i] - 1) / P * P;
    }
    weft_engine_params p = params_of(sizes[0]);
    run_oracle(m, &p, q, N, oracle);
    for (int32_t k = 0; k < n_size(); k++) {
        p = params_of(sizes[k]);
        weft_engine *e = open_engine(m, &p);
        one_by_one("B04 cold", e, q, N, oracle, none);
        one_by_one("B04 again", e, q, N, oracle, found);
        one_by_one("B04 third", e, q, N, oracle, found);
        weft_engine_close(e);
    }
    p = params_of(sizes[1]);
    p.no_prefix_cache = true;
    weft_engine *e = open_engine(m, &p);
    one_by_one("off", e, q, N, oracle, none);
    one_by_one("off, again", e, q, N, oracle, none);
    weft_engine_close(e);
    run_free(oracle, N);
    weft_model_close(m);
}

/* Turns of a chat: each finds the one before it, the generated text included. */
static void turns(void **state) {
    (void)state;
    enum { N = 4, ANSWER = 30, USER = 25 };
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[N];
    run_answer oracle[N];
    int32_t found[N] = {0};
    weft_engine_params p = params_of(sizes[0]);
    for (int32_t i = 0; i < N; i++) {
        int32_t before = i == 0 ? 0 : q[i - 1].n_prompt + ANSWER;
        q[i] = prefix_of(before + USER, 200 + (uint64_t)i, ANSWER);
        if (i > 0) {
            int32_t *to = (int32_t *)q[i].prompt, n = q[i - 1].n_prompt;
            memcpy(to, q[i - 1].prompt, (size_t)n * sizeof *to);
            memcpy(to + n, oracle[i - 1].token, ANSWER * sizeof *to);
            /* the last token of an answer is told, not computed */
            found[i] = (before - 1) / P * P;
        }
        run_oracle(m, &p, &q[i], 1, &oracle[i]);
    }
    for (int32_t k = 0; k < n_size(); k++) {
        p = params_of(sizes[k]);
        weft_engine *e = open_engine(m, &p);
        one_by_one("turns", e, q, N, oracle, found);
        weft_engine_close(e);
    }
    run_free(oracle, N);
    weft_model_close(m);
}

/* B07, B08: rows of the prompt are those of a cold run, in any order of company. */
static void prompt_rows(void **state) {
    (void)state;
    enum { N = 5 };
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[N];
    run_answer oracle[N];
    for (int32_t i = 0; i < N; i++) {
        q[i] = branch(1, 40, 45 + i, 300 + (uint64_t)i);
        q[i].prompt_logits = true;
        q[i].sampling.logprob = true;
        q[i].max_tokens = 1 + i;
    }
    weft_engine_params p = params_of(sizes[0]);
    run_oracle(m, &p, q, N, oracle);
    for (int32_t k = 0; k < n_size(); k++) {
        p = params_of(sizes[k]);
        weft_engine *e = open_engine(m, &p);
        int32_t none[N] = {0};
        for (int32_t turn = 0; turn < 2; turn++)
            one_by_one("B07", e, q, N, oracle, none);
        run_answer got[N];
        weft_error err = {0};
        assert_int_equal(run_requests(e, q, N, NULL, got, &err), WEFT_OK);
        run_assert_same("B08", oracle, got, N);
        run_free(got, N);
        weft_engine_close(e);
    }
    run_free(oracle, N);
    weft_model_close(m);
}

typedef struct hang_up {
    int32_t rows; /* events before it */
} hang_up;

static void cancel_at(void *user, weft_engine *e, const weft_event *ev, const run_answer *a) {
    hang_up *h = user;
    (void)a;
    if (ev->kind != WEFT_EVENT_END && --h->rows == 0)
        weft_engine_cancel(e, ev->request);
}

/* B13: cancelled in the middle of its prompt, or of its answer, then sent again. */
static void cancelled(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    weft_request q = prefix_of(200, 7, 40);
    run_answer oracle, got;
    weft_engine_params p = params_of(sizes[0]);
    run_oracle(m, &p, &q, 1, &oracle);
    for (int32_t k = 0; k < n_size(); k++)
        for (int32_t rows = 10; rows <= 210; rows += 100) {
            weft_error err = {0};
            p = params_of(sizes[k]);
            weft_engine *e = open_engine(m, &p);
            weft_request first = q;
            first.prompt_logits = true; /* events tell how far it is */
            first.max_tokens = 300;     /* longer than a cancellation may take */
            hang_up h = {rows};
            const run_hooks hooks = {cancel_at, &h};
            assert_int_equal(run_requests(e, &first, 1, &hooks, &got, &err), WEFT_OK);
            assert_int_equal(got.finish, WEFT_FINISH_ERROR);
            run_free(&got, 1);
            assert_int_equal(run_requests(e, &q, 1, NULL, &got, &err), WEFT_OK);
            run_assert_same("B13", &oracle, &got, 1);
            assert_true(got.n_cached >= 48 && got.n_cached < 200);
            run_free(&got, 1);
            weft_engine_stats stats;
            weft_engine_get_stats(e, &stats);
            assert_int_equal(stats.n_page_used, 0);
            weft_engine_close(e);
        }
    run_free(&oracle, 1);
    weft_model_close(m);
}

/* Pools that hold one request and a part of another, and requests that take turns: every mix of
 * found and evicted pages, with preemption. */
static void half_evicted(void **state) {
    (void)state;
    enum { N = 12 };
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[N];
    run_answer oracle[N];
    for (int32_t i = 0; i < N; i++) {
        q[i] = branch((uint64_t)(i % 3), 60 + 10 * (i % 4), 100, 400 + (uint64_t)i);
        q[i].max_tokens = 40;
    }
    weft_engine_params p = params_of(sizes[0]);
    run_oracle(m, &p, q, N, oracle);
    int64_t found = 0, all = 0, preemptions = 0;
    for (int32_t k = 0; k < n_size(); k++)
        for (int32_t pages = 9; pages <= 16; pages += 3) {
            weft_engine_stats stats;
            run_answer got[N];
            weft_error err = {0};
            p = params_of(sizes[k]);
            p.kv_pages = (pages + p.dcp - 1) / p.dcp;
            p.exchange = pages == 12 ? WEFT_EXCHANGE_KV : WEFT_EXCHANGE_AUTO;
            weft_engine *e = open_engine(m, &p);
            one_by_one("half evicted", e, q, N, oracle, NULL);
            assert_int_equal(run_requests(e, q, N, NULL, got, &err), WEFT_OK);
            run_assert_same("half evicted, together", oracle, got, N);
            run_free(got, N);
            weft_engine_get_stats(e, &stats);
            assert_int_equal(stats.n_page_used, 0);
            found += stats.n_cached_token;
            all += stats.n_prefix_token;
            preemptions += stats.n_preemption;
            weft_engine_close(e);
        }
    assert_true(found > all / 10 && found < all * 9 / 10 && preemptions > 0);
    run_free(oracle, N);
    weft_model_close(m);
}

/* Choices of one prompt: it is computed once, all pages but the last are shared. */
static void choices_share_the_prompt(void **state) {
    (void)state;
    enum { N = 6, PROMPT = 200, ANSWER = 8 };
    weft_model *m = toy_open(&toy_gqa);
    weft_request q[N];
    run_answer oracle[N], got[N];
    for (int32_t i = 0; i < N; i++) {
        q[i] = prefix_of(PROMPT, 11, ANSWER);
        q[i].sampling.temperature = 1.0f;
        q[i].sampling.seed = (uint64_t)i;
    }
    weft_engine_params p = params_of(sizes[0]);
    run_oracle(m, &p, q, N, oracle);
    for (int32_t k = 0; k < n_size(); k++) {
        weft_engine_stats stats;
        p = params_of(sizes[k]);
        run_ok("choices", m, &p, q, N, got, &stats);
        run_assert_same("choices", oracle, got, N);
        int32_t tail = PROMPT - PROMPT / P * P;
        assert_int_equal(stats.n_row, PROMPT + (N - 1) * tail + N * (ANSWER - 1));
        assert_true(stats.group[0].n_page_most <= (PROMPT / P) + 2 * N);
        run_free(got, N);
    }
    run_free(oracle, N);
    weft_model_close(m);
}

static void salts(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    const char *salt[] = {NULL, "a", "b", "", NULL, "a", "b", ""};
    const int32_t found[] = {0, 0, 0, 0, 48, 48, 48, 48};
    weft_request q[8];
    run_answer oracle[8];
    for (int32_t i = 0; i < 8; i++) {
        q[i] = prefix_of(60, 12, 4);
        q[i].cache_salt = salt[i];
    }
    weft_engine_params p = params_of(sizes[0]);
    run_oracle(m, &p, q, 8, oracle);
    weft_engine *e = open_engine(m, &p);
    one_by_one("salts", e, q, 8, oracle, found);
    weft_engine_close(e);
    run_free(oracle, 8);
    weft_model_close(m);
}

/* Groups of layers with windows find a context where every group has what it needs. */
static void windows(void **state) {
    (void)state;
    enum { N = 5 };
    static const struct {
        const char *path;
        topo_sizes sizes[3];
    } model[] = {{WEFT_GOLDEN "/models/gemma3", {{1, 1, 1}, {1, 2, 2}, {2, 2, 2}}},
                 {WEFT_GOLDEN "/models/mistral_swa", {{1, 1, 1}, {1, 2, 2}, {1, 4, 4}}},
                 {WEFT_GOLDEN "/models/deepseek_v2_lite", {{1, 1, 1}, {1, 2, 2}, {2, 2, 4}}}};
    for (size_t i = 0; i < sizeof model / sizeof *model; i++) {
        weft_model *m = NULL;
        weft_error err = {0};
        weft_request q[N];
        run_answer oracle[N], got[N];
        int64_t found = 0;
        assert_int_equal(weft_model_open(model[i].path, &m, &err), WEFT_OK);
        for (int32_t k = 0; k < N; k++)
            q[k] = branch(1, 60 + 30 * k, 100 + 30 * k, 500 + (uint64_t)k);
        weft_engine_params p = params_of(sizes[0]);
        run_oracle(m, &p, q, N, oracle);
        for (int32_t k = run_small() ? 1 : 0; k < (run_small() ? 2 : 3); k++) {
            weft_engine_stats stats;
            p = params_of(model[i].sizes[k]);
            weft_engine *e = open_engine(m, &p);
            one_by_one(model[i].path, e, q, N, oracle, NULL);
            one_by_one(model[i].path, e, q, N, oracle, NULL);
            assert_int_equal(run_requests(e, q, N, NULL, got, &err), WEFT_OK);
            run_assert_same(model[i].path, oracle, got, N);
            run_free(got, N);
            weft_engine_get_stats(e, &stats);
            assert_int_equal(stats.n_page_used, 0);
            found += stats.n_cached_token;
            weft_engine_close(e);
        }
        assert_true(found > 0);
        run_free(oracle, N);
        weft_model_close(m);
    }
}

int main(void) {
    if (access(WEFT_GOLDEN "/models/gemma3", R_OK) != 0)
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_beginnings),
        cmocka_unit_test(sent_again),
        cmocka_unit_test(turns),
        cmocka_unit_test(prompt_rows),
        cmocka_unit_test(cancelled),
        cmocka_unit_test(half_evicted),
        cmocka_unit_test(choices_share_the_prompt),
        cmocka_unit_test(salts),
        cmocka_unit_test(windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
