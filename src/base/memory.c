#include "base/memory.h"

#include <stdio.h>
#include <string.h>

#include "base/cgroup.h"

enum { PATH_CAP = 4096 + 64 };

static bool read_number(const char *folder, const char *name, int64_t *out) {
    char path[PATH_CAP], text[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return cgroup_read(path, text, sizeof text) && cgroup_parse(text, out);
}

/* Bytes of file pages that the group could drop: "inactive_file" (v1: with those below it). */
static int64_t droppable(const char *folder, bool v2) {
    char path[PATH_CAP], line[256];
    const char *key = v2 ? "inactive_file " : "total_inactive_file ";
    int64_t bytes = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    cgroup_lines l;
    if (!cgroup_lines_open(&l, path))
        return 0;
    while (bytes == 0 && cgroup_lines_next(&l, line, sizeof line))
        if (strncmp(line, key, strlen(key)) == 0 && !cgroup_parse(line + strlen(key), &bytes))
            break;
    cgroup_lines_close(&l);
    return bytes;
}

/* v2: memory.max ("max": none) and memory.current; v1: memory.limit_in_bytes (near 2^63: none). */
static void look_at_group(void *user, const char *folder, bool v2) {
    uint64_t *left = user;
    int64_t limit, used = 0;
    if (!read_number(folder, v2 ? "memory.max" : "memory.limit_in_bytes", &limit))
        return;
    if (read_number(folder, v2 ? "memory.current" : "memory.usage_in_bytes", &used)) {
        int64_t drop = droppable(folder, v2);
        used -= drop < used ? drop : used;
    }
    uint64_t here = limit > used ? (uint64_t)(limit - used) : 1; /* 0 would say: unknown */
    if (here < *left)
        *left = here;
}

uint64_t memory_available(const char *root) {
    char path[PATH_CAP], line[128];
    unsigned long long kib = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    cgroup_lines l;
    if (cgroup_lines_open(&l, path)) {
        while (cgroup_lines_next(&l, line, sizeof line))
            if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
                break;
        cgroup_lines_close(&l);
    }
    uint64_t left = kib ? (uint64_t)kib * 1024 : UINT64_MAX;
    cgroup_walk(root, "memory", look_at_group, &left);
    return left == UINT64_MAX ? 0 : left;
}
