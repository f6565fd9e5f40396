/* Control groups: where the process's limits stand.
 *
 * /proc/self/cgroup names the process's group in each hierarchy, /proc/self/mountinfo where each is
 * mounted and which of its groups stands at the mount point:
 *
 *   cgroup      0::/user/job                       v2, group /user/job
 *               4:cpu,cpuacct:/docker/abc          v1, group /docker/abc
 *   mountinfo   31 23 0:28 /docker /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
 *               the group /docker stands at /sys/fs/cgroup/cpu, so ours is at .../cpu/abc
 *
 * A limit binds all groups below it, so every folder from ours up to the mount point counts. A
 * container often sees a path from the host's view that is not under its mount: the mount point
 * itself is then the nearest group that can be seen, and it is looked at in every case. */
#include "base/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_CAP = 4096, LINE_CAP = 8192 };

typedef struct search {
    const char *root, *controller;
    cgroup_visit visit;
    void *user;
} search;

bool cgroup_lines_open(cgroup_lines *l, const char *path) {
    l->fd = open(path, O_RDONLY | O_CLOEXEC);
    l->n = l->at = 0;
    return l->fd >= 0;
}

bool cgroup_lines_next(cgroup_lines *l, char *out, size_t cap) {
    bool any = false;
    for (size_t len = 0;; any = true) {
        if (l->at == l->n) {
            ssize_t got = read(l->fd, l->buf, sizeof l->buf);
            l->n = got > 0 ? (size_t)got : 0;
            l->at = 0;
        }
        out[len] = '\0';
        if (l->n == 0)
            return any;
        char c = l->buf[l->at++];
        if (c == '\n')
            return true;
        if (len + 1 < cap)
            out[len++] = c;
    }
}

void cgroup_lines_close(cgroup_lines *l) {
    close(l->fd);
}

bool cgroup_read(const char *path, char *out, size_t cap) {
    cgroup_lines l;
    if (!cgroup_lines_open(&l, path))
        return false;
    bool any = cgroup_lines_next(&l, out, cap);
    cgroup_lines_close(&l);
    return any && out[0] != '\0';
}

bool cgroup_parse(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || errno != 0 || value <= 0) {
        return false;
    }
    *out = value;
    return true;
}

/* Is `word` one of the comma-separated words of `list`? */
static bool list_has(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; *at != '\0';) {
        size_t len = strcspn(at, ",");
        if (len == n && memcmp(at, word, n) == 0) {
            return true;
        }
        at += len + (at[len] == ',');
    }
    return false;
}

/* The process's group in the v2 hierarchy, or in the v1 one of the controller. */
static bool own_group(const search *s, bool v2, char out[PATH_CAP]) {
    char path[PATH_CAP], line[LINE_CAP];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", s->root);
    cgroup_lines l;
    if (!cgroup_lines_open(&l, path)) {
        return false;
    }
    bool found = false;
    while (!found && cgroup_lines_next(&l, line, sizeof line)) {
        char *controllers = strchr(line, ':');
        char *group = controllers == NULL ? NULL : strchr(controllers + 1, ':');
        if (group == NULL) {
            continue;
        }
        *group++ = '\0';
        controllers++;
        found = v2 ? controllers[0] == '\0' : list_has(controllers, s->controller);
        if (found) {
            found = strlen(group) < PATH_CAP;
            snprintf(out, PATH_CAP, "%.*s", PATH_CAP - 1, group);
        }
    }
    cgroup_lines_close(&l);
    return found;
}

/* mountinfo writes space, tab, line feed and backslash as \ooo. */
static void undo_octal(char *text) {
    char *to = text;
    for (const char *at = text; *at != '\0';) {
        if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] >= '0' && at[2] <= '7' &&
            at[3] >= '0' && at[3] <= '7') {
            *to++ = (char)((at[1] - '0') * 64 + (at[2] - '0') * 8 + (at[3] - '0'));
            at += 4;
        } else {
            *to++ = *at++;
        }
    }
    *to = '\0';
}

typedef struct mount {
    char *top;   /* the group that stands at the mount point */
    char *point; /* the mount point */
    char *kind, *options;
} mount;

/* "31 23 0:28 TOP POINT OPTIONS [tags...] - KIND SOURCE SUPER" */
static bool parse_mount(char *line, mount *out) {
    char *field[5], *rest = NULL, *tail = strstr(line, " - ");
    if (tail == NULL) {
        return false;
    }
    *tail = '\0';
    tail += 3;
    for (int i = 0; i < 5; i++) {
        field[i] = strtok_r(i == 0 ? line : NULL, " ", &rest);
        if (field[i] == NULL) {
            return false;
        }
    }
    out->top = field[3];
    out->point = field[4];
    out->kind = strtok_r(tail, " ", &rest);
    char *source = out->kind == NULL ? NULL : strtok_r(NULL, " ", &rest);
    out->options = source == NULL ? NULL : strtok_r(NULL, " \n", &rest);
    if (out->options == NULL) {
        return false;
    }
    undo_octal(out->top);
    undo_octal(out->point);
    return true;
}

/* The part of `group` below `top`, or "" when it is not below. */
static const char *below(const char *group, const char *top) {
    size_t n = strcmp(top, "/") == 0 ? 0 : strlen(top);
    bool inside = strncmp(group, top, n) == 0 && (group[n] == '/' || group[n] == '\0');
    return inside && strstr(group, "/..") == NULL ? group + n : "";
}

/* Looks at the group's folder and at each parent, the mount point last. */
static void climb(const search *s, const mount *m, const char *group, bool v2) {
    char folder[PATH_CAP];
    int base = snprintf(folder, sizeof folder, "%s%s", s->root, m->point);
    if (base < 0 || (size_t)base >= sizeof folder) {
        return;
    }
    int made = snprintf(folder + base, sizeof folder - (size_t)base, "%s", below(group, m->top));
    if (made < 0 || (size_t)made >= sizeof folder - (size_t)base) {
        folder[base] = '\0';
    }
    for (;;) {
        s->visit(s->user, folder, v2);
        char *slash = strrchr(folder + base, '/');
        if (slash == NULL) {
            return;
        }
        *slash = '\0';
    }
}

static void search_hierarchy(const search *s, bool v2) {
    char group[PATH_CAP], path[PATH_CAP], line[LINE_CAP];
    if (!own_group(s, v2, group)) {
        return;
    }
    snprintf(path, sizeof path, "%s/proc/self/mountinfo", s->root);
    cgroup_lines l;
    if (!cgroup_lines_open(&l, path)) {
        return;
    }
    while (cgroup_lines_next(&l, line, sizeof line)) {
        mount m;
        if (parse_mount(line, &m) && strcmp(m.kind, v2 ? "cgroup2" : "cgroup") == 0 &&
            (v2 || list_has(m.options, s->controller))) {
            climb(s, &m, group, v2);
        }
    }
    cgroup_lines_close(&l);
}

void cgroup_walk(const char *root, const char *controller, cgroup_visit visit, void *user) {
    search s = {root, controller, visit, user};
    search_hierarchy(&s, false);
    search_hierarchy(&s, true);
}
