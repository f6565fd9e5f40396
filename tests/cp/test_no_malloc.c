/* From the first step of a batch to its last no rank thread allocates. The program's own malloc
 * forwards to the C library's and counts what threads other than the client's ask for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "cp/runner.h"
#include "cp/toy.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int main(void) {
    puts("skipped: a sanitizer has its own malloc");
    return 77;
}
#else

static atomic_bool counting;
static atomic_int n_alloc;
static _Thread_local bool is_client;

static void note(void) {
    if (atomic_load_explicit(&counting, memory_order_relaxed) && !is_client)
        atomic_fetch_add(&n_alloc, 1);
}

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

void *malloc(size_t n) {
    note();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
    note();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    note();
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n) {
    note();
    return __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n) {
    note();
    *out = __libc_memalign(align, n);
    return *out ? 0 : 12; /* ENOMEM */
}

/* A finished request gives its memory back on rank 0: that is no allocation. */
void free(void *p) {
    __libc_free(p);
}

/* ---- the control: the counter sees what another thread does ---- */

static void *allocate(void *arg) {
    void *volatile p = malloc(10);
    void *volatile q = calloc(1, 10);
    void *volatile grown = realloc(p, 100);
    free(grown);
    free(q);
    void *volatile r = aligned_alloc(64, 64);
    free(r);
    return arg;
}

static void counter_counts(void **state) {
    (void)state;
    pthread_t t;
    atomic_store(&n_alloc, 0);
    atomic_store(&counting, true);
    void *volatile own = malloc(10); /* the client's: not counted */
    free(own);
    assert_int_equal(pthread_create(&t, NULL, allocate, NULL), 0);
    pthread_join(t, NULL);
    atomic_store(&counting, false);
    assert_int_equal(atomic_load(&n_alloc), 4);
}

/* ---- the ranks ---- */

typedef struct window {
    int32_t n_end, n;
} window;

static void count_from_first_event(void *user, weft_engine *e, const weft_event *ev,
                                   const run_answer *a) {
    (void)e;
    (void)a;
    window *w = user;
    w->n_end += ev->kind == WEFT_EVENT_END;
    atomic_store(&counting, w->n_end < w->n);
}

/* Four experts on up to eight ranks. */
static const toy_shape toy_whole = {.name = "4 experts",
                                    .n_layer = 2,
                                    .n_head = 8,
                                    .n_kv_head = 2,
                                    .head_dim = 32,
                                    .hidden = 256,
                                    .ffn = 64,
                                    .n_vocab = 384,
                                    .context = 512,
                                    .type = TOY_Q4_0,
                                    .seed = 21,
                                    .n_expert = 4,
                                    .n_used = 2};

/* Prefill chunks, decode steps, admissions, preemption, sampling of every kind, ends, and a trace
 * of it: all between the first event and the last. */
static void check_steps(const toy_shape *shape, bool expert_parallel) {
    enum { N = 10 };
    static const topo_sizes sizes[] = {{1, 1, 1}, {1, 2, 1}, {1, 2, 2}, {2, 2, 2}, {4, 2, 4}};
    weft_model *m = toy_open(shape);
    weft_request q[N];
    int64_t n_preemption = 0;
    for (int32_t i = 0; i < N; i++) {
        q[i] = run_request(shape->n_vocab, 3 + 13 * i, 20, 70 + (uint64_t)i);
        q[i].arrival_step = 3 * i;
        q[i].prompt_logits = i % 2 == 0;
        q[i].sampling.temperature = i % 3 ? 0.9f : 0;
        q[i].sampling.top_k = i % 4 ? 0 : 40;
        q[i].sampling.top_p = i % 5 ? 1 : 0.9f;
        q[i].sampling.min_p = i % 6 ? 0 : 0.02f;
        q[i].sampling.repetition_penalty = i % 2 ? 1 : 1.2f;
        q[i].sampling.logprob = true;
        q[i].sampling.n_top = 5;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int32_t x = 0; x < 3; x++) {
            weft_engine_params p = run_params(sizes[i].tp, sizes[i].pcp, sizes[i].dcp);
            weft_engine *e = NULL;
            weft_error err = {0};
            run_answer got[N];
            window w = {.n = N};
            run_hooks hooks = {count_from_first_event, &w};
            weft_engine_stats stats;
            p.max_num_batched_tokens = 40;
            p.kv_pages = 12 / p.dcp; /* less than all want at once */
            p.exchange = (weft_exchange)x;
            p.expert_parallel = expert_parallel;
            p.trace_path = x == 2 ? "/dev/null" : NULL;
            p.n_thread = 2 * p.tp * p.pcp; /* helper threads are watched as well */
            assert_int_equal(weft_engine_open(m, &p, &e, &err), WEFT_OK);
            atomic_store(&n_alloc, 0);
            assert_int_equal(run_requests(e, q, N, &hooks, got, &err), WEFT_OK);
            assert_false(atomic_load(&counting));
            weft_engine_get_stats(e, &stats);
            weft_engine_close(e);
            run_free(got, N);
            n_preemption += stats.n_preemption;
            assert_int_equal(atomic_load(&n_alloc), 0);
        }
    assert_true(n_preemption > 0);
    weft_model_close(m);
}

static void steps_do_not_allocate(void **state) {
    (void)state;
    check_steps(&toy_gqa, false);
}

static void steps_with_whole_experts(void **state) {
    (void)state;
    check_steps(&toy_whole, true);
}

int main(void) {
    is_client = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counter_counts),
        cmocka_unit_test(steps_do_not_allocate),
        cmocka_unit_test(steps_with_whole_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
