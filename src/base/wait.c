/* Spin a little, then sleep on a futex. */
#include "base/wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/log.h"

enum { SPIN_NS = 20000, PAUSES_PER_CLOCK = 16 };

static _Atomic int32_t n_thread_active;
static _Atomic int32_t n_core_known; /* 0: not counted yet */

int32_t wait_core_count(void) {
    int32_t n = atomic_load_explicit(&n_core_known, memory_order_relaxed);
    if (n == 0) {
        int32_t n_mask = cores_in_mask();
        n = cores_within_quota("", n_mask);
        /* The first answer stays: a thread that is pinned later has a mask of its own. */
        int32_t known = 0;
        if (atomic_compare_exchange_strong(&n_core_known, &known, n)) {
            log_info("cores: %d of the %d in the affinity mask, within the cgroup's CPU quota", n,
                     n_mask);
        } else {
            n = known;
        }
    }
    return n;
}

void wait_threads_add(int32_t n) {
    atomic_fetch_add_explicit(&n_thread_active, n, memory_order_relaxed);
}

int64_t wait_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double wait_now_s(void) {
    return 1e-9 * (double)wait_now_ns();
}

static void pause_core(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* True when the word changed. A pause lasts 4 ns on one core and 40 on another, so the length of
 * the spin is measured, not counted. */
static bool spin(_Atomic uint32_t *word, uint32_t seen) {
    int32_t n = atomic_load_explicit(&n_thread_active, memory_order_relaxed);
    if (n <= 0 || n > wait_core_count()) {
        return false;
    }
    int64_t end = wait_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < PAUSES_PER_CLOCK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen) {
                return true;
            }
            pause_core();
        }
    } while (wait_now_ns() < end);
    return false;
}

/* FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC: a wake-up by a signal or by chance
 * needs no new sum. The kernel compares the word under its own lock, so a change between our look
 * and the sleep is not missed. */
bool wait_while_equal(_Atomic uint32_t *word, uint32_t seen, int64_t deadline_ns) {
    if (atomic_load_explicit(word, memory_order_acquire) != seen || spin(word, seen)) {
        return true;
    }
    int64_t until_ns = deadline_ns < 0 ? 0 : deadline_ns;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                             .tv_nsec = (long)(until_ns % 1000000000)};
    while (atomic_load_explicit(word, memory_order_acquire) == seen) {
        long rc = syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_BITSET_PRIVATE, seen,
                          deadline_ns == INT64_MAX ? NULL : &until, NULL, FUTEX_BITSET_MATCH_ANY);
        if (rc != 0 && errno == ETIMEDOUT) {
            return atomic_load_explicit(word, memory_order_acquire) != seen;
        }
    }
    return true;
}

void wait_wake_all(_Atomic uint32_t *word) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
