/* Many threads at one engine: some submit, one cancels what is there, what has ended and what never
 * was, one takes events. Each request ends once, nothing follows its end, and all pages come back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "cp/runner.h"
#include "cp/toy.h"

enum { N_CLIENT = 3, N_MAX = 4096 };

typedef struct party {
    weft_engine *e;
    int32_t n_round;
    atomic_int n_submitted, n_running;
    atomic_ullong last;
    atomic_bool over;
} party;

typedef struct client {
    party *p;
    pthread_t thread;
    uint64_t state;
} client;

static void draw_request(uint64_t *state, const int32_t *prompt, weft_request *q) {
    static const char *const stop[] = {"a", "\n"};
    weft_request_default(q);
    q->prompt = prompt;
    q->n_prompt = run_draw_in(state, 1, 40);
    q->max_tokens = run_draw_in(state, 1, 20);
    q->ignore_eos = run_draw_in(state, 0, 1);
    q->prompt_logits = run_draw_in(state, 0, 1);
    q->sampling.temperature = (float)run_draw_in(state, 0, 1);
    q->sampling.seed = run_draw(state);
    q->sampling.logprob = run_draw_in(state, 0, 1);
    q->sampling.n_top = run_draw_in(state, 0, 4);
    q->arrival_step = run_draw_in(state, 0, 3) ? 0 : run_draw_in(state, 0, 300);
    if (run_draw_in(state, 0, 2) == 0)
        q->stop = stop, q->n_stop = 2;
}

static void *submit_all(void *arg) {
    client *c = arg;
    party *p = c->p;
    for (int32_t i = 0; i < p->n_round; i++) {
        int32_t prompt[40], n = run_draw_in(&c->state, 1, 3);
        weft_request q[3];
        uint64_t ids[3];
        for (int32_t t = 0; t < 40; t++)
            prompt[t] = run_draw_in(&c->state, 0, 255);
        for (int32_t r = 0; r < n; r++)
            draw_request(&c->state, prompt, &q[r]);
        if (weft_engine_submit(p->e, q, n, ids, NULL) != WEFT_OK)
            abort();
        atomic_fetch_add(&p->n_submitted, n);
        atomic_store(&p->last, ids[0]);
        if (run_draw_in(&c->state, 0, 2) == 0) {
            weft_engine_cancel(p->e, ids[0]);
            weft_engine_cancel(p->e, ids[0]);
        }
    }
    atomic_fetch_sub(&p->n_running, 1);
    return NULL;
}

static void *cancel_some(void *arg) {
    client *c = arg;
    weft_engine_stats stats;
    while (!atomic_load(&c->p->over)) {
        weft_engine_cancel(c->p->e, atomic_load(&c->p->last) + 2 - run_draw(&c->state) % 16);
        weft_engine_get_stats(c->p->e, &stats);
    }
    return NULL;
}

/* Until all have ended, or `most` events are taken (0: no limit). */
static void take_all(party *p, int32_t most) {
    static bool ended[N_MAX];
    memset(ended, 0, sizeof ended);
    for (int32_t n_end = 0, n = 0; most == 0 || n < most;) {
        weft_event ev;
        bool got = false;
        assert_int_equal(weft_engine_next(p->e, 20, &ev, &got, NULL), WEFT_OK);
        n += got;
        if (!got && atomic_load(&p->n_running) == 0 && n_end == atomic_load(&p->n_submitted))
            return;
        if (!got)
            continue;
        assert_true(ev.request < N_MAX && !ended[ev.request]);
        if (ev.kind == WEFT_EVENT_PROMPT_ROW)
            assert_true(ev.text[0] == '\0' && ev.text_bytes == 0);
        ended[ev.request] = ev.kind == WEFT_EVENT_END;
        n_end += ev.kind == WEFT_EVENT_END;
    }
}

static void run_party(weft_model *m, weft_engine_params params, int32_t most) {
    party p = {.n_round = run_small() ? 15 : 60};
    client c[N_CLIENT + 1];
    weft_engine_stats stats;
    atomic_store(&p.n_running, N_CLIENT);
    assert_int_equal(weft_engine_open(m, &params, &p.e, NULL), WEFT_OK);
    for (int32_t i = 0; i <= N_CLIENT; i++) {
        c[i].p = &p;
        c[i].state = 77 + (uint64_t)i;
        assert_int_equal(
            pthread_create(&c[i].thread, NULL, i < N_CLIENT ? submit_all : cancel_some, &c[i]), 0);
    }
    take_all(&p, most);
    atomic_store(&p.over, true);
    for (int32_t i = 0; i <= N_CLIENT; i++)
        pthread_join(c[i].thread, NULL);
    weft_engine_get_stats(p.e, &stats);
    if (most == 0)
        assert_int_equal(stats.n_page_used, 0);
    weft_engine_close(p.e);
}

static void many_threads(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    run_watch("many threads", 250);
    weft_engine_params p = run_params(1, 1, 1);
    p.max_num_seqs = 8, p.max_num_batched_tokens = 64, p.max_model_len = 64, p.kv_pages = 6;
    p.n_thread = 3;     /* all of them sample */
    run_party(m, p, 0); /* pages run out */
    p.pcp = p.dcp = 2, p.kv_pages = 4, p.n_thread = 2;
    run_party(m, p, 0);
    p.tp = 2, p.max_num_batched_tokens = 7;
    run_party(m, p, 50); /* closed while requests run and events wait */
    run_watch("many threads", 0);
    weft_model_close(m);
}

/* A step number at the end of its range would be counted past it. */
static void arrival_range(void **state) {
    (void)state;
    static const int32_t prompt[] = {1, 2, 3};
    weft_model *m = toy_open(&toy_gqa);
    weft_engine_params p = run_params(1, 1, 1);
    weft_engine *e = NULL;
    weft_error err;
    uint64_t id = 0;
    bool got = false;
    weft_event ev = {0};
    assert_int_equal(weft_engine_open(m, &p, &e, &err), WEFT_OK);
    weft_request q;
    weft_request_default(&q);
    q.prompt = prompt, q.n_prompt = 3, q.max_tokens = 2, q.ignore_eos = true;
    const int64_t wrong[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX / 2 + 1};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        q.arrival_step = wrong[i];
        assert_int_equal(weft_engine_submit(e, &q, 1, &id, &err), WEFT_ERR_USAGE);
        assert_non_null(strstr(err.text, "arrival_step"));
    }
    q.arrival_step = INT64_MAX / 2;
    assert_int_equal(weft_engine_submit(e, &q, 1, &id, &err), WEFT_OK);
    while (ev.kind != WEFT_EVENT_END)
        assert_int_equal(weft_engine_next(e, -1, &ev, &got, &err), WEFT_OK);
    assert_int_equal(ev.n_output_token, 2);
    weft_engine_close(e);
    weft_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_threads),
                                       cmocka_unit_test(arrival_range)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
