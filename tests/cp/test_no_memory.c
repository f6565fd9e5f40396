/* Each allocation of an engine's life fails once: the call says so, everything is given back, and
 * the next engine works. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void) {
    puts("skipped: a sanitizer has its own malloc");
    return 77;
}
#else

static atomic_bool watching;
static atomic_int n_call, n_held, fail_at;

static bool refused(void) {
    if (!atomic_load(&watching))
        return false;
    if (atomic_fetch_add(&n_call, 1) != atomic_load(&fail_at))
        return false;
    errno = ENOMEM;
    return true;
}

static void *taken(void *p) {
    if (p && atomic_load(&watching))
        atomic_fetch_add(&n_held, 1);
    return p;
}

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

void *malloc(size_t n) {
    return refused() ? NULL : taken(__libc_malloc(n));
}

void *calloc(size_t n, size_t size) {
    return refused() ? NULL : taken(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n) {
    if (refused())
        return NULL;
    return p ? __libc_realloc(p, n) : taken(__libc_realloc(p, n));
}

void *aligned_alloc(size_t align, size_t n) {
    return refused() ? NULL : taken(__libc_memalign(align, n));
}

void free(void *p) {
    if (p && atomic_load(&watching))
        atomic_fetch_sub(&n_held, 1);
    __libc_free(p);
}

/* Opens, answers two requests, closes; number `at` of its allocations fails. */
static weft_status life(weft_model *m, int32_t at) {
    static const int32_t prompt[] = {1, 2, 3, 4, 5};
    static const char *const stop[] = {"zzzzz"};
    weft_engine_params p = run_params(1, 2, 2);
    p.n_thread = 2;
    weft_request q[2];
    weft_error err;
    weft_engine *e = NULL;
    uint64_t ids[2];
    bool one_failed = false;
    for (int32_t i = 0; i < 2; i++) {
        weft_request_default(&q[i]);
        q[i].prompt = prompt, q[i].n_prompt = 5, q[i].max_tokens = 4;
        q[i].stop = stop, q[i].n_stop = 1, q[i].ignore_eos = true;
    }
    atomic_store(&n_call, 0);
    atomic_store(&n_held, 0);
    atomic_store(&fail_at, at);
    atomic_store(&watching, true);
    weft_status s = weft_engine_open(m, &p, &e, &err);
    if (s == WEFT_OK)
        s = weft_engine_submit(e, q, 2, ids, &err);
    for (int32_t left = 2; left > 0 && s == WEFT_OK;) {
        weft_event ev;
        bool got = false;
        s = weft_engine_next(e, -1, &ev, &got, &err);
        left -= got && ev.kind == WEFT_EVENT_END;
        one_failed |= got && ev.kind == WEFT_EVENT_END && ev.status == WEFT_ERR_MEMORY;
    }
    weft_engine_close(e);
    atomic_store(&watching, false);
    return s == WEFT_OK && one_failed ? WEFT_ERR_MEMORY : s;
}

static void each_fails_once(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    run_watch("no memory", 120);
    assert_int_equal(life(m, -1), WEFT_OK); /* the C library fills caches of its own */
    assert_int_equal(life(m, -1), WEFT_OK);
    assert_int_equal(atomic_load(&n_held), 0);
    int32_t n = atomic_load(&n_call), n_refused = 0;
    assert_true(n > 50);
    for (int32_t at = 0; at < n; at++) {
        weft_status s = life(m, at);
        /* the look at the free memory does without it */
        if (s != WEFT_ERR_MEMORY && s != WEFT_OK)
            fail_msg("allocation %d of %d: status %d", at, n, s);
        if (atomic_load(&n_held) != 0)
            fail_msg("allocation %d of %d: %d are never given back", at, n, atomic_load(&n_held));
        n_refused += s == WEFT_ERR_MEMORY;
    }
    assert_true(n_refused >= n - 4);
    assert_int_equal(life(m, -1), WEFT_OK);
    run_watch("no memory", 0);
    weft_model_close(m);
}

/* ---- the text of one request ---- */

enum { N_REQ = 3 };

typedef struct answer {
    char text[512];
    weft_finish finish;
    weft_status status;
} answer;

/* All requests of q to their ends; allocation `at` of taking events fails. Whether there were as
 * many. */
static bool take_all(weft_engine *e, const weft_request *q, int32_t at, answer *out) {
    uint64_t ids[N_REQ];
    memset(out, 0, N_REQ * sizeof *out);
    assert_int_equal(weft_engine_submit(e, q, N_REQ, ids, NULL), WEFT_OK);
    atomic_store(&n_call, 0);
    atomic_store(&fail_at, at);
    for (int32_t n_end = 0; n_end < N_REQ;) {
        weft_event ev;
        bool got = false;
        atomic_store(&watching, true);
        weft_status s = weft_engine_next(e, -1, &ev, &got, NULL);
        atomic_store(&watching, false);
        assert_true(s == WEFT_OK && got);
        answer *of = &out[ev.request - ids[0]];
        strncat(of->text, ev.text, sizeof of->text - 1 - strlen(of->text));
        if (ev.kind == WEFT_EVENT_END) {
            of->finish = ev.finish;
            of->status = ev.status;
            n_end++;
        }
    }
    return at >= 0 && atomic_load(&n_call) > at;
}

/* That request ends with an error of its own; the others, and the engine, go on. */
static void one_request_ends(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    weft_engine_params p = run_params(1, 1, 1);
    weft_request q[N_REQ];
    run_watch("no memory for a text", 120);
    for (int32_t i = 0; i < N_REQ; i++) {
        q[i] = run_request(toy_gqa.n_vocab, 9 + i, 12, 5 + (uint64_t)i);
        q[i].prompt_logits = false;
    }
    int32_t at = 0;
    for (bool failed = true; failed; at++) {
        weft_engine *e;
        answer right[N_REQ], got[N_REQ];
        assert_int_equal(weft_engine_open(m, &p, &e, NULL), WEFT_OK);
        failed = take_all(e, q, at, got);
        take_all(e, q, -1, right);
        int32_t n_error = 0;
        for (int32_t i = 0; i < N_REQ; i++) {
            assert_int_equal(right[i].finish, WEFT_FINISH_LENGTH);
            if (got[i].status == WEFT_OK) {
                assert_int_equal(got[i].finish, WEFT_FINISH_LENGTH);
                assert_string_equal(got[i].text, right[i].text);
                continue;
            }
            assert_int_equal(got[i].status, WEFT_ERR_MEMORY);
            assert_int_equal(got[i].finish, WEFT_FINISH_ERROR);
            assert_memory_equal(got[i].text, right[i].text, strlen(got[i].text));
            n_error++;
        }
        assert_int_equal(n_error, failed);
        weft_engine_close(e);
    }
    assert_true(at > N_REQ); /* each request has failed at least once */
    run_watch("no memory for a text", 0);
    weft_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_fails_once),
                                       cmocka_unit_test(one_request_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
