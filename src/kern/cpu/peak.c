/* Limits of this machine: all threads run a level's measuring loop at once. */
#include "kern/peak.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/team.h"
#include "base/wait.h"
#include "kern/cpu/cpu.h"
#include "kern/cpu/peak_isa.h"

enum {
    ALIGN = 2 << 20,         /* a huge page: the buffer is made of whole ones */
    MAX_BYTES = 512 << 20,   /* reading more only takes longer */
    NO_CACHE_SIZE = 32 << 20 /* taken for the last level where the system does not say */
};
static const int64_t MEASURE_NS = 20000000;

struct kern_peaks {
    team *team;
    const cpu_peak_isa *isa;
    uint8_t *buffer;
    size_t bytes;
    kern_peak which;
    _Atomic int64_t n_op; /* or bytes, of the measurement that runs */
    _Atomic uint32_t sink;
};

/* A thread's share of the buffer, in whole pieces that the loops can read. */
static uint8_t *share(const kern_peaks *p, int32_t thread, int32_t n_thread, size_t *bytes) {
    size_t each = p->bytes / (size_t)n_thread / 512 * 512;
    *bytes = each;
    return p->buffer + (size_t)thread * each;
}

/* Every thread touches its own share first, so that it lies near it. */
static void thread_fill(void *arg, int32_t thread, int32_t n_thread) {
    kern_peaks *p = arg;
    size_t bytes;
    uint8_t *at = share(p, thread, n_thread, &bytes);
    memset(at, thread + 1, bytes);
}

static void thread_read(void *arg, int32_t thread, int32_t n_thread) {
    kern_peaks *p = arg;
    size_t bytes;
    const uint8_t *at = share(p, thread, n_thread, &bytes);
    atomic_fetch_add(&p->sink, p->isa->read(at, bytes));
    atomic_fetch_add(&p->n_op, (int64_t)bytes);
}

static void thread_compute(void *arg, int32_t thread, int32_t n_thread) {
    enum { ROUNDS = 20000 };
    kern_peaks *p = arg;
    (void)thread;
    (void)n_thread;
    const cpu_peak_loop *loop = &p->isa->loop[p->which];
    int64_t n = 0, end = wait_now_ns() + MEASURE_NS;
    do {
        atomic_fetch_add(&p->sink, loop->run(ROUNDS));
        n += (int64_t)ROUNDS * loop->ops;
    } while (wait_now_ns() < end);
    atomic_fetch_add(&p->n_op, n);
}

/* NULL: none. */
static const cpu_peak_isa *best_level(void) {
    return cpu_has_avx512vnni() ? &cpu_peak_avx512vnni
           : cpu_has_avx512()   ? &cpu_peak_avx512
           : cpu_has_avx2()     ? &cpu_peak_avx2
           : cpu_has_scalar()   ? &cpu_peak_scalar
                                : NULL;
}

weft_status kern_cpu_peaks_open(int32_t n_thread, kern_peaks **out, weft_error *err) {
    const cpu_peak_isa *isa = best_level();
    if (!isa)
        return error_set(err, WEFT_ERR_SETUP, "this machine has no AVX and FMA");
    kern_peaks *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a measurement");
    p->isa = isa;
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t bytes = 2 * (size_t)(cache > 0 ? cache : NO_CACHE_SIZE);
    uint64_t left = memory_available("");
    bytes = bytes < MAX_BYTES ? bytes : MAX_BYTES;
    bytes = left && left / 8 < bytes ? (size_t)(left / 8) : bytes;
    p->bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    weft_status s = team_open(n_thread, &p->team, err);
    if (s != WEFT_OK)
        goto undo_peaks;
    p->buffer = aligned_alloc(ALIGN, p->bytes);
    if (!p->buffer) {
        s = error_set(err, WEFT_ERR_MEMORY, "no memory for a buffer of %zu bytes", p->bytes);
        goto undo_team;
    }
    madvise(p->buffer, p->bytes, MADV_HUGEPAGE); /* weights and cache lie in huge pages too */
    team_run(p->team, thread_fill, p);
    *out = p;
    return WEFT_OK;

undo_team:
    team_close(p->team);
undo_peaks:
    free(p);
    return s;
}

void kern_peaks_close(kern_peaks *p) {
    if (!p)
        return;
    team_close(p->team);
    free(p->buffer);
    free(p);
}

double kern_peaks_measure(kern_peaks *p, kern_peak which) {
    p->which = which;
    atomic_store(&p->n_op, 0);
    int64_t from = wait_now_ns(), now;
    do {
        team_run(p->team, which == KERN_PEAK_READ ? thread_read : thread_compute, p);
        now = wait_now_ns();
    } while (now - from < MEASURE_NS);
    return (double)atomic_load(&p->n_op) / (double)(now - from); /* per ns: 10^9 per second */
}

void kern_peaks_evict(kern_peaks *p) {
    team_run(p->team, thread_read, p);
}
