/* How much memory the process can still have. */
#ifndef WEFT_BASE_MEMORY_H
#define WEFT_BASE_MEMORY_H

#include <stdint.h>

/* The kernel's estimate for a new allocation (MemAvailable), cut by what the process's control
 * groups have left below their limits; 0 when unknown. Page cache that a group could drop counts as
 * left. `root` as in cgroup_walk: "" for the real system. */
uint64_t memory_available(const char *root);

#endif
