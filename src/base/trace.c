/* Lanes of spans, and the file that they become. */
#include "base/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/wait.h"

typedef struct record {
    const char *name, *key; /* key NULL: no number */
    int64_t begin, end;     /* CLOCK_MONOTONIC, ns */
    int32_t value;
} record;

typedef struct process process;

struct trace_lane {
    record *record; /* [cap] in the order of their ends */
    int32_t n, cap;
    int64_t n_lost;
    trace_state now;
    const process *process;
} __attribute__((aligned(64))); /* a cache line of its own: each has another writer */

struct process {
    char label[64];
    int32_t n_lane;
    trace_lane *lane; /* [n_lane] */
};

struct trace {
    char *path;
    int fd;
    bool made; /* the file was not there before */
    int32_t n_process, n_span;
    int64_t begin;
    process *process; /* [n_process] */
};

_Thread_local trace_lane *trace_lane_here;

/* ---- opening and freeing ---- */

static const char file_start[] = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"weft\":";

/* A file with something else in it, the model say, is not written over. */
static bool is_foreign_file(int fd) {
    struct stat st;
    char start[sizeof file_start - 1];
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0) {
        return false;
    }
    return pread(fd, start, sizeof start, 0) != (ssize_t)sizeof start ||
           memcmp(start, file_start, sizeof start) != 0;
}

static weft_status file_open(trace *t, weft_error *err) {
    t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    t->made = t->fd >= 0;
    if (!t->made && errno == EEXIST) {
        t->fd =
            open(t->path, O_RDWR | O_CLOEXEC); /* RDWR: a FIFO without a reader does not block */
    }
    if (t->fd < 0) {
        return error_set(err, WEFT_ERR_USAGE, "--trace %.500s: %s", t->path, strerror(errno));
    }
    if (is_foreign_file(t->fd)) {
        return error_set(err, WEFT_ERR_USAGE,
                         "--trace %.500s: the file holds something else than a trace of weft; "
                         "expected a new file or an earlier trace",
                         t->path);
    }
    return WEFT_OK;
}

static void trace_free(trace *t) {
    for (int32_t p = 0; t->process && p < t->n_process; p++) {
        for (int32_t i = 0; i < t->process[p].n_lane; i++) {
            free(t->process[p].lane[i].record);
        }
        free(t->process[p].lane);
    }
    if (t->fd >= 0) {
        close(t->fd);
    }
    free(t->process);
    free(t->path);
    free(t);
}

weft_status trace_open(const char *path, int32_t n_process, int32_t n_span, trace **out,
                       weft_error *err) {
    if (n_span < 1 || n_span > TRACE_SPANS_MAX) {
        return error_set(err, WEFT_ERR_SETUP, "--trace-spans %d: expected 1 to %d", n_span,
                         TRACE_SPANS_MAX);
    }
    trace *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a trace");
    }
    *t = (trace){.fd = -1, .n_process = n_process, .n_span = n_span, .begin = wait_now_ns()};
    t->path = strdup(path);
    t->process = calloc((size_t)n_process, sizeof *t->process);
    weft_status s = t->path != NULL && t->process != NULL
                        ? file_open(t, err)
                        : error_set(err, WEFT_ERR_MEMORY, "no memory for a trace");
    if (s != WEFT_OK) {
        trace_free(t);
        return s;
    }
    *out = t;
    return WEFT_OK;
}

weft_status trace_process_open(trace *t, int32_t i, int32_t n_thread, const char *label,
                               weft_error *err) {
    process *p = &t->process[i];
    snprintf(p->label, sizeof p->label, "%s", label);
    p->lane = aligned_alloc(_Alignof(trace_lane), (size_t)n_thread * sizeof *p->lane);
    for (; p->lane != NULL && p->n_lane < n_thread; p->n_lane++) {
        /* large, so its pages are zero and untouched */
        record *r = calloc((size_t)t->n_span, sizeof *r);
        if (r == NULL) {
            break;
        }
        p->lane[p->n_lane] = (trace_lane){.record = r, .cap = t->n_span, .process = p};
    }
    if (p->n_lane == n_thread) {
        return WEFT_OK;
    }
    return error_set(err, WEFT_ERR_MEMORY,
                     "no memory for a trace of %d threads with %d spans each; --trace-spans N "
                     "takes less",
                     n_thread, t->n_span);
}

void trace_discard(trace *t) {
    if (t == NULL) {
        return;
    }
    if (t->made) {
        unlink(t->path);
    }
    trace_free(t);
}

void trace_take(trace *t, int32_t i) {
    trace_lane_here = t != NULL ? &t->process[i].lane[0] : NULL;
}

/* ---- recording ---- */

static void add(trace_lane *l, const char *name, int64_t begin, int64_t end) {
    if (l->n == l->cap) {
        l->n_lost++;
        return;
    }
    l->record[l->n++] = (record){name, l->now.key, begin, end, l->now.value};
}

static void phase_end(trace_lane *l, int64_t now) {
    if (l->now.phase != NULL) {
        add(l, l->now.phase, l->now.phase_begin, now);
        l->now.phase = NULL;
    }
}

void trace_lane_begin(trace_lane *l, const char *name, const char *key, int32_t value,
                      trace_span *out) {
    int64_t now = wait_now_ns();
    phase_end(l, now);
    *out = (trace_span){l, name, now, l->now};
    l->now = (trace_state){.key = key, .value = value};
}

void trace_lane_begin_wait(trace_lane *l, const char *name, trace_span *out) {
    *out = (trace_span){l, name, wait_now_ns(), l->now};
    l->now.phase = NULL;
}

void trace_lane_end(const trace_span *t) {
    trace_lane *l = t->lane;
    int64_t now = wait_now_ns();
    phase_end(l, now);
    add(l, t->name, t->begin, now);
    l->now = t->outer;
}

void trace_lane_phase(trace_lane *l, const char *name) {
    int64_t now = wait_now_ns();
    phase_end(l, now);
    l->now.phase = name;
    l->now.phase_begin = now;
}

trace_work trace_lane_work(trace_lane *l) {
    return (trace_work){l, l->now.phase != NULL ? l->now.phase : "work", l->now.key, l->now.value};
}

void trace_lane_begin_work(const trace_work *w, int32_t thread, trace_span *out) {
    if (thread < w->lane->process->n_lane) {
        trace_lane_here = &w->lane->process->lane[thread];
        trace_lane_begin(trace_lane_here, w->name, w->key, w->value, out);
    }
}

/* ---- the file ---- */

/* By begin, and of those that begin at one time the longest first: it is around the others. */
static int compare(const void *a_, const void *b_) {
    const record *a = a_, *b = b_;
    if (a->begin != b->begin) {
        return a->begin < b->begin ? -1 : 1;
    }
    return (a->end < b->end) - (a->end > b->end);
}

/* Times in the file are microseconds. */
static void record_write(FILE *f, const record *r, int64_t zero, int32_t pid, int32_t tid) {
    long long begin = r->begin - zero, dur = r->end - r->begin;
    fprintf(f,
            ",\n{\"ph\":\"X\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%lld.%03lld,"
            "\"dur\":%lld.%03lld",
            r->name, pid, tid, begin / 1000, begin % 1000, dur / 1000, dur % 1000);
    if (r->key != NULL) {
        fprintf(f, ",\"args\":{\"%s\":%d}", r->key, r->value);
    }
    fputc('}', f);
}

static void lane_write(FILE *f, const trace *t, int32_t pid, int32_t tid) {
    trace_lane *l = &t->process[pid].lane[tid];
    fprintf(f,
            ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,"
            "\"args\":{\"name\":\"thread %d",
            pid, tid, tid);
    if (l->n_lost > 0) {
        fprintf(f, " (full: %lld spans lost)", (long long)l->n_lost);
    }
    fprintf(f,
            "\"}},\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,"
            "\"args\":{\"sort_index\":%d}}",
            pid, tid, tid);
    qsort(l->record, (size_t)l->n, sizeof *l->record, compare);
    for (int32_t i = 0; i < l->n; i++) {
        record_write(f, &l->record[i], t->begin, pid, tid);
    }
}

static void events_write(FILE *f, const trace *t, int64_t n_lost) {
    fprintf(f,
            "%s\"%s\",\"spans_lost\":%lld},\n"
            "\"traceEvents\":[",
            file_start, WEFT_VERSION, (long long)n_lost);
    for (int32_t p = 0; p < t->n_process; p++) {
        fprintf(f,
                "%s\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":"
                "\"%s\"}},\n{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%d,"
                "\"args\":{\"sort_index\":%d}}",
                p == 0 ? "" : ",", p, t->process[p].label, p, p);
        for (int32_t i = 0; i < t->process[p].n_lane; i++) {
            lane_write(f, t, p, i);
        }
    }
    fputs("\n]}\n", f);
}

/* Says how much is missing, and returns it. */
static int64_t lost_report(const trace *t) {
    int64_t n_lost = 0;
    int32_t n_full = 0, n_lane = 0;
    for (int32_t p = 0; p < t->n_process; p++) {
        for (int32_t i = 0; i < t->process[p].n_lane; i++, n_lane++) {
            n_lost += t->process[p].lane[i].n_lost;
            n_full += t->process[p].lane[i].n_lost > 0;
        }
    }
    if (n_lost > 0) {
        log_warn("--trace %s: %lld spans of %d of %d threads are not in it; it holds the first %d "
                 "of each (--trace-spans)",
                 t->path, (long long)n_lost, n_full, n_lane, t->n_span);
    }
    return n_lost;
}

weft_status trace_close(trace *t) {
    if (t == NULL) {
        return WEFT_OK;
    }
    int64_t n_lost = lost_report(t);
    struct stat st;
    errno = 0;
    bool whole = fstat(t->fd, &st) == 0 && (!S_ISREG(st.st_mode) || ftruncate(t->fd, 0) == 0);
    FILE *f = whole ? fdopen(t->fd, "w") : NULL;
    if (f != NULL) {
        t->fd = -1; /* now the stream's */
        events_write(f, t, n_lost);
        whole = !ferror(f);
        whole = fclose(f) == 0 && whole;
    }
    weft_status s = f != NULL && whole ? WEFT_OK : WEFT_ERR_IO;
    if (s != WEFT_OK) {
        log_error("--trace %s: %s; the file is not whole", t->path, strerror(errno));
    }
    trace_free(t);
    return s;
}
