/* Waiting between threads that does not collapse when threads outnumber cores: spin for a short
 * time measured by the clock when every waiting thread can have a core, then sleep on the word in
 * the kernel (futex). */
#ifndef WEFT_BASE_WAIT_H
#define WEFT_BASE_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Cores that this process may use: affinity mask, cut by the cgroup CPU quota (v1, v2, and
 * parents), at least 1. */
int32_t wait_core_count(void);
/* Tells the module how many threads will be active at once in this process (all ranks): spin only
 * when they fit the cores. Adds `n` (may be negative when an engine closes). */
void wait_threads_add(int32_t n);

/* Blocks while *word == seen. Returns false when deadline_ns (CLOCK_MONOTONIC; INT64_MAX: none)
 * passed first. */
bool wait_while_equal(_Atomic uint32_t *word, uint32_t seen, int64_t deadline_ns);
/* Wakes all threads that wait on the word; call after changing it. */
void wait_wake_all(_Atomic uint32_t *word);
int64_t wait_now_ns(void); /* CLOCK_MONOTONIC */
double wait_now_s(void);   /* the same in seconds */

#endif
