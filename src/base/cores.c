/* Core count: the affinity mask, cut by the CPU quota of the process's control groups. */
#include "base/cores.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/cgroup.h"

typedef struct quota_search {
    int64_t milli; /* thousandths of a core; INT64_MAX: no quota found */
} quota_search;

static void note_quota(quota_search *s, int64_t quota_us, int64_t period_us) {
    int64_t milli = quota_us > INT64_MAX / 1000 ? INT64_MAX : quota_us * 1000 / period_us;
    if (milli < s->milli) {
        s->milli = milli;
    }
}

/* v2: "max 100000" or "765000 100000". v1: two files, quota -1 when there is none. A period that
 * cannot be read is taken for the kernel's default. */
static void look_at_group(void *user, const char *folder, bool v2) {
    quota_search *s = user;
    char path[4096 + 32], text[128];
    snprintf(path, sizeof path, "%s/%s", folder, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    int64_t quota_us, period_us = 100000;
    if (!cgroup_read(path, text, sizeof text) || !cgroup_parse(text, &quota_us)) {
        return;
    }
    const char *period = strchr(text, ' ');
    if (!v2) {
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        period = cgroup_read(path, text, sizeof text) ? text : NULL;
    }
    if (period == NULL || !cgroup_parse(period, &period_us)) {
        period_us = 100000;
    }
    note_quota(s, quota_us, period_us);
}

int32_t cores_within_quota(const char *root, int32_t mask_cores) {
    quota_search s = {INT64_MAX};
    cgroup_walk(root, "cpu", look_at_group, &s);
    int64_t cores = s.milli == INT64_MAX ? mask_cores : s.milli / 1000;
    if (cores > mask_cores) {
        cores = mask_cores;
    }
    return cores < 1 ? 1 : (int32_t)cores;
}

/* The kernel refuses a mask smaller than its own: grow until it fits. */
int32_t cores_in_mask(void) {
    for (int n_cpu = 1024; n_cpu <= 1 << 20; n_cpu *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)n_cpu);
        if (set == NULL) {
            return 1;
        }
        size_t bytes = CPU_ALLOC_SIZE((size_t)n_cpu);
        int rc = sched_getaffinity(0, bytes, set);
        int why = errno, n = rc == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (rc == 0) {
            return n < 1 ? 1 : n;
        }
        if (why != EINVAL) {
            return 1;
        }
    }
    return 1;
}
