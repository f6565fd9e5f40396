/* How many cores the process may use, with the root of the file system as an argument so that
 * tests can put a made tree in its place. Inside base only; others call wait_core_count. */
#ifndef WEFT_BASE_CORES_H
#define WEFT_BASE_CORES_H

#include <stdint.h>

/* The smallest CPU quota of the cgroups (v1 and v2) that the process is in, their parents
 * included, rounded down, at least 1; `mask_cores` where that is smaller or there is no quota.
 * `root` is put before "/proc/self/cgroup" and the like: "" for the real system. */
int32_t cores_within_quota(const char *root, int32_t mask_cores);
/* Cores in the calling thread's affinity mask, at least 1. */
int32_t cores_in_mask(void);

#endif
