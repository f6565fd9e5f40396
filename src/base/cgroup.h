/* The control groups (v1 and v2) of the process, their parents included. Inside base only. */
#ifndef WEFT_BASE_CGROUP_H
#define WEFT_BASE_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Called with each group's folder, which need not hold the controller's files. */
typedef void (*cgroup_visit)(void *user, const char *folder, bool v2);
/* `root` is put before "/proc/self/cgroup" and the like: "" for the real system. `controller`:
 * "cpu", "memory". */
void cgroup_walk(const char *root, const char *controller, cgroup_visit visit, void *user);

/* A text file line by line, without memory of its own: looking at limits works when memory is short. */
typedef struct cgroup_lines {
    int fd;
    size_t n, at;
    char buf[1024];
} cgroup_lines;
bool cgroup_lines_open(cgroup_lines *l, const char *path);
/* The next line without its end, cut at cap - 1 bytes; false after the last. */
bool cgroup_lines_next(cgroup_lines *l, char *out, size_t cap);
void cgroup_lines_close(cgroup_lines *l);

/* First line of a small file; false when it is absent or empty. */
bool cgroup_read(const char *path, char *out, size_t cap);
/* A number above 0 at the start of a text; false for anything else ("max", "-1"). */
bool cgroup_parse(const char *text, int64_t *out);

#endif
