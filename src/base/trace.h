/* What the threads of the ranks do and what they wait for, written as a file of Chrome's trace
 * format (ui.perfetto.dev and chrome://tracing open it).
 *
 *   trace -> process 0..   one per rank, with its label
 *              lane 0..    one per thread of the rank: a buffer of spans that only it writes
 *
 * A thread that has taken a lane records. On every other thread a call is a look at one
 * thread-local pointer. Recording neither allocates nor locks; a full lane takes nothing more and
 * counts what it loses.
 *
 *   trace_span t = trace_begin("layer", "layer", 3);
 *   trace_phase("qkv");      up to the next phase, the next trace_begin or the end of the layer
 *   trace_phase("rope");
 *   trace_end(&t);
 *
 * Spans of a lane nest: a wait stands inside the phase that runs. Phases and waits bear the number
 * of the span around them. Names and keys are string literals without quotes and backslashes: the
 * file holds them as they are. */
#ifndef WEFT_BASE_TRACE_H
#define WEFT_BASE_TRACE_H

#include "base/status.h"

typedef struct trace trace;
typedef struct trace_lane trace_lane;

enum { TRACE_SPANS_DEFAULT = 1 << 20, TRACE_SPANS_MAX = 1 << 26 };

/* Opens the file at `path` (what it holds stays until trace_close). n_process ranks, whose lanes
 * hold n_span spans each (1..TRACE_SPANS_MAX). WEFT_ERR_USAGE: the file cannot be written,
 * or holds something else than a trace. */
weft_status trace_open(const char *path, int32_t n_process, int32_t n_span, trace **out,
                       weft_error *err);
/* Takes the memory of the lanes of process i, one for each of its threads; pages without spans stay
 * untouched. `label`, as "rank 3 (t0 p1 d1)", is copied; plain text as names are. */
weft_status trace_process_open(trace *t, int32_t i, int32_t n_thread, const char *label,
                               weft_error *err);
/* Writes the file, says on the log what was lost, and frees; no thread records any more.
 * WEFT_ERR_IO, also logged, when the file cannot be written. NULL is allowed. */
weft_status trace_close(trace *t);
/* Frees without writing and removes a file that trace_open made. NULL is allowed. */
void trace_discard(trace *t);

/* From now on the calling thread records into lane 0 of process i; t NULL: no more. */
void trace_take(trace *t, int32_t i);

/* ---- recording ---- */

/* Where a lane stands: what runs in the span around, and the number that it bears. */
typedef struct trace_state {
    const char *phase; /* NULL: none */
    int64_t phase_begin;
    const char *key; /* NULL: no number */
    int32_t value;
} trace_state;

typedef struct trace_span {
    trace_lane *lane; /* NULL: nothing is recorded */
    const char *name;
    int64_t begin;
    trace_state outer;
} trace_span;

/* What an owner of threads is at, for its helpers; lane NULL: nothing is recorded. */
typedef struct trace_work {
    trace_lane *lane;
    const char *name, *key;
    int32_t value;
} trace_work;

extern _Thread_local trace_lane *trace_lane_here;

/* The same for a thread that has a lane. */
void trace_lane_begin(trace_lane *l, const char *name, const char *key, int32_t value,
                      trace_span *out);
void trace_lane_begin_wait(trace_lane *l, const char *name, trace_span *out);
void trace_lane_begin_work(const trace_work *w, int32_t thread, trace_span *out);
void trace_lane_phase(trace_lane *l, const char *name);
void trace_lane_end(const trace_span *t);
trace_work trace_lane_work(trace_lane *l);

/* Ends the phase that runs and begins a span that bears a number, as ("step", "step", 17); key NULL:
 * none. */
static inline trace_span trace_begin(const char *name, const char *key, int32_t value) {
    trace_span t = {0};
    if (trace_lane_here) {
        trace_lane_begin(trace_lane_here, name, key, value, &t);
    }
    return t;
}

/* Begins a wait inside the phase that runs; its name starts with "wait: ". */
static inline trace_span trace_begin_wait(const char *name) {
    trace_span t = {0};
    if (trace_lane_here) {
        trace_lane_begin_wait(trace_lane_here, name, &t);
    }
    return t;
}

/* Ends the phase that runs and begins the next. */
static inline void trace_phase(const char *name) {
    if (trace_lane_here) {
        trace_lane_phase(trace_lane_here, name);
    }
}

static inline void trace_end(const trace_span *t) {
    if (t->lane) {
        trace_lane_end(t);
    }
}

/* What the calling thread is at. */
static inline trace_work trace_work_here(void) {
    return trace_lane_here ? trace_lane_work(trace_lane_here) : (trace_work){0};
}

/* On helper `thread` (1..) of the owner that *w is of: takes its lane and begins a span that has
 * the name and number of the owner's phase. */
static inline trace_span trace_begin_work(const trace_work *w, int32_t thread) {
    trace_span t = {0};
    if (w->lane) {
        trace_lane_begin_work(w, thread, &t);
    }
    return t;
}

#endif
