/* Fork-join over a generation word.
 *
 *   owner   writes fn, arg, n_busy = n - 1; generation++ (release); wakes; runs fn(arg, 0, n);
 *           waits until n_busy is 0
 *   helper  waits for a new generation (acquire); runs; n_busy-- (release); the last one wakes
 *
 * fn, arg and work are plain fields: the generation word orders them for the helpers, n_busy orders their
 * work before the owner's return. Each word that is written often has a cache line of its own. */
#include "base/team.h"

#include <errno.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/trace.h"
#include "base/wait.h"

enum {
    LINE_BYTES = 64,
    TEAM_MAX_THREAD = 1024,
    MXCSR_DEFAULT = 0x1F80, /* round to nearest, all exceptions masked, no FTZ (bit 15), no DAZ
                               (bit 6) */
    MXCSR_FLAGS = 0x003F    /* sticky exception flags: set by any inexact sum, they mean nothing */
};

typedef struct helper {
    team *t;
    pthread_t thread;
    int32_t i;
} helper;

struct team {
    alignas(LINE_BYTES) _Atomic uint32_t generation;
    alignas(LINE_BYTES) _Atomic uint32_t n_busy;
    alignas(LINE_BYTES) _Atomic int32_t next; /* first unclaimed item */
    alignas(LINE_BYTES) int32_t n_thread;
    bool stop;
    team_fn fn;
    void *arg;
    trace_work work; /* what the owner is at */
    helper *helpers; /* [n_thread - 1] */
};

void team_set_float_mode(void) {
#if defined(__x86_64__)
    _mm_setcsr(MXCSR_DEFAULT);
#endif
}

uint32_t team_float_mode_save(void) {
#if defined(__x86_64__)
    return _mm_getcsr();
#else
    return 0;
#endif
}

void team_float_mode_restore(uint32_t saved) {
#if defined(__x86_64__)
    _mm_setcsr(saved);
#else
    (void)saved;
#endif
}

/* Code that changes the mode and leaves it would change bits silently; a debug build stops there.
 * A release build puts it right, at the cost of one register read. */
static void keep_float_mode(void) {
#if defined(__x86_64__)
    if ((_mm_getcsr() & ~(unsigned)MXCSR_FLAGS) != MXCSR_DEFAULT) {
#ifdef WEFT_DEBUG
        __builtin_trap();
#else
        team_set_float_mode();
#endif
    }
#endif
}

static void *helper_main(void *arg) {
    helper *h = arg;
    team *t = h->t;
    team_set_float_mode();
    for (uint32_t seen = 0;;) {
        trace_span wait = trace_begin_wait("wait: work");
        wait_while_equal(&t->generation, seen, INT64_MAX);
        trace_end(&wait);
        seen++;
        if (t->stop) {
            return NULL;
        }
        keep_float_mode();
        trace_span work = trace_begin_work(&t->work, h->i);
        t->fn(t->arg, h->i, t->n_thread);
        trace_end(&work);
        if (atomic_fetch_sub_explicit(&t->n_busy, 1, memory_order_acq_rel) == 1) {
            wait_wake_all(&t->n_busy);
        }
    }
}

static void release_helpers(team *t) {
    atomic_fetch_add_explicit(&t->generation, 1, memory_order_release);
    wait_wake_all(&t->generation);
}

static void stop_helpers(team *t, int32_t n_started) {
    t->stop = true;
    release_helpers(t);
    for (int32_t i = 0; i < n_started; i++) {
        pthread_join(t->helpers[i].thread, NULL);
    }
}

weft_status team_open(int32_t n_thread, team **out, weft_error *err) {
    if (n_thread < 1 || n_thread > TEAM_MAX_THREAD) {
        return error_set(err, WEFT_ERR_SETUP, "a rank has %d threads; it can have 1 to %d",
                         n_thread, TEAM_MAX_THREAD);
    }
    team *t = aligned_alloc(LINE_BYTES, sizeof *t);
    if (t == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a team of %d threads", n_thread);
    }
    memset(t, 0, sizeof *t);
    t->n_thread = n_thread;
    t->helpers = calloc((size_t)n_thread, sizeof *t->helpers);
    if (t->helpers == NULL) {
        error_set(err, WEFT_ERR_MEMORY, "no memory for a team of %d threads", n_thread);
        goto undo_team;
    }
    int32_t n_started = 0;
    for (; n_started < n_thread - 1; n_started++) {
        helper *h = &t->helpers[n_started];
        *h = (helper){.t = t, .i = n_started + 1};
        int rc = pthread_create(&h->thread, NULL, helper_main, h);
        if (rc != 0) {
            error_set(err, WEFT_ERR_MEMORY, "thread %d of %d cannot be started: %s", n_started + 2,
                      n_thread, strerror(rc));
            goto undo_helpers;
        }
    }
    *out = t;
    return WEFT_OK;

undo_helpers:
    stop_helpers(t, n_started);
    free(t->helpers);
undo_team:
    free(t);
    return WEFT_ERR_MEMORY;
}

void team_close(team *t) {
    if (t == NULL) {
        return;
    }
    stop_helpers(t, t->n_thread - 1);
    free(t->helpers);
    free(t);
}

int32_t team_size(const team *t) {
    return t->n_thread;
}

static void wait_for_helpers(team *t) {
    uint32_t busy = atomic_load_explicit(&t->n_busy, memory_order_acquire);
    if (busy == 0) {
        return;
    }
    trace_span wait = trace_begin_wait("wait: helpers");
    while (busy != 0) {
        wait_while_equal(&t->n_busy, busy, INT64_MAX);
        busy = atomic_load_explicit(&t->n_busy, memory_order_acquire);
    }
    trace_end(&wait);
}

void team_run(team *t, team_fn fn, void *arg) {
    team_set_float_mode();
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    if (t->n_thread == 1) {
        fn(arg, 0, 1);
        return;
    }
    t->fn = fn;
    t->arg = arg;
    t->work = trace_work_here();
    atomic_store_explicit(&t->n_busy, (uint32_t)t->n_thread - 1, memory_order_relaxed);
    release_helpers(t);
    fn(arg, 0, t->n_thread);
    wait_for_helpers(t);
}

/* A thread that comes too late adds one more to `next`, which stays far below overflow: at most one
 * add per call of a thread that then stops claiming. */
int32_t team_claim(team *t, int32_t n) {
    if (atomic_load_explicit(&t->next, memory_order_relaxed) >= n) {
        return -1;
    }
    int32_t i = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
    return i < n ? i : -1;
}
