/* The trace: which spans stand in the file, how they nest, what a full lane and an unwritable file
 * do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/team.h"
#include "base/trace.h"

static char folder[256], path[300];

static int folder_make(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/weft-trace-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/t.json", folder);
    return 0;
}

static int folder_remove(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static trace *open_one(int32_t n_thread, int32_t n_span) {
    trace *t = NULL;
    weft_error err = {0};
    assert_int_equal(trace_open(path, 1, n_span, &t, &err), WEFT_OK);
    assert_int_equal(trace_process_open(t, 0, n_thread, "rank 0 (t0 p0 d0)", &err), WEFT_OK);
    return t;
}

/* Ends recording and returns what the file holds. */
static json_t *close_and_read(trace *t) {
    json_error_t why;
    trace_take(NULL, 0);
    assert_int_equal(trace_close(t), WEFT_OK);
    json_t *root = json_load_file(path, 0, &why);
    if (!root)
        fail_msg("line %d: %s", why.line, why.text);
    return root;
}

static const char *text_of(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static int64_t int_of(const json_t *o, const char *key) {
    return json_integer_value(json_object_get(o, key));
}

/* Microseconds with three decimals are whole nanoseconds. */
static int64_t ns_of(const json_t *o, const char *key) {
    return (int64_t)(json_number_value(json_object_get(o, key)) * 1000 + 0.5);
}

/* The i-th span of a thread in the order of the file; NULL past the last. */
static const json_t *span_at(const json_t *root, int32_t thread, int32_t i) {
    size_t at;
    json_t *e;
    json_array_foreach(json_object_get(root, "traceEvents"), at, e) {
        if (strcmp(text_of(e, "ph"), "X") == 0 && int_of(e, "tid") == thread && i-- == 0)
            return e;
    }
    return NULL;
}

static const char *thread_name(const json_t *root, int32_t thread) {
    size_t at;
    json_t *e;
    json_array_foreach(json_object_get(root, "traceEvents"), at, e) {
        if (strcmp(text_of(e, "name"), "thread_name") == 0 && int_of(e, "tid") == thread)
            return text_of(json_object_get(e, "args"), "name");
    }
    return "";
}

/* What a span should be: its name, its number, and the place of the span around it. */
typedef struct due {
    const char *name, *key;
    int32_t value, inside; /* inside: index of a due, -1: none */
} due;

static void expect_spans(const json_t *root, int32_t thread, const due *d, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const json_t *e = span_at(root, thread, i), *args = json_object_get(e, "args");
        assert_non_null(e);
        assert_string_equal(text_of(e, "name"), d[i].name);
        assert_int_equal(int_of(e, "pid"), 0);
        assert_int_equal(json_object_size(args), d[i].key ? 1 : 0);
        if (d[i].key)
            assert_int_equal(int_of(args, d[i].key), d[i].value);
        int64_t begin = ns_of(e, "ts"), end = begin + ns_of(e, "dur");
        assert_true(begin >= 0 && end >= begin);
        if (i > 0)
            assert_true(begin >= ns_of(span_at(root, thread, i - 1), "ts"));
        if (d[i].inside >= 0) {
            const json_t *o = span_at(root, thread, d[i].inside);
            assert_true(begin >= ns_of(o, "ts") && end <= ns_of(o, "ts") + ns_of(o, "dur"));
        }
    }
    assert_null(span_at(root, thread, n));
}

/* ---- one thread ---- */

static void spans_nest(void **state) {
    (void)state;
    trace *t = open_one(1, 100);
    trace_take(t, 0);
    trace_span plan = trace_begin("plan", NULL, 0);
    trace_span wait = trace_begin_wait("wait: requests");
    trace_end(&wait);
    trace_phase("apply");
    trace_end(&plan);
    trace_span step = trace_begin("step", "step", 7);
    trace_phase("embed");
    for (int32_t i = 0; i < 2; i++) {
        trace_span layer = trace_begin("layer", "layer", i);
        trace_phase("qkv");
        trace_span meet = trace_begin_wait("wait: barrier");
        trace_end(&meet);
        trace_phase("rope");
        trace_end(&layer);
    }
    trace_phase("logits");
    trace_end(&step);
    trace_span last = trace_begin("step", "step", 8);
    trace_end(&last);
    json_t *root = close_and_read(t);
    static const due spans[] = {
        {"plan", NULL, 0, -1},   {"wait: requests", NULL, 0, 0},
        {"apply", NULL, 0, 0},   {"step", "step", 7, -1},
        {"embed", "step", 7, 3}, {"layer", "layer", 0, 3},
        {"qkv", "layer", 0, 5},  {"wait: barrier", "layer", 0, 6},
        {"rope", "layer", 0, 5}, {"layer", "layer", 1, 3},
        {"qkv", "layer", 1, 9},  {"wait: barrier", "layer", 1, 10},
        {"rope", "layer", 1, 9}, {"logits", "step", 7, 3},
        {"step", "step", 8, -1},
    };
    expect_spans(root, 0, spans, sizeof spans / sizeof *spans);
    assert_string_equal(thread_name(root, 0), "thread 0");
    const json_t *process = json_array_get(json_object_get(root, "traceEvents"), 0);
    assert_string_equal(text_of(process, "name"), "process_name");
    assert_string_equal(text_of(json_object_get(process, "args"), "name"), "rank 0 (t0 p0 d0)");
    assert_int_equal(int_of(json_object_get(root, "otherData"), "spans_lost"), 0);
    json_decref(root);
}

/* A thread without a lane records nowhere. */
static void off_is_nothing(void **state) {
    (void)state;
    trace *t = open_one(1, 10);
    trace_span s = trace_begin("step", "step", 1);
    trace_phase("qkv");
    trace_span w = trace_begin_wait("wait: barrier");
    assert_null(s.lane);
    assert_null(w.lane);
    trace_end(&w);
    trace_end(&s);
    assert_null(trace_work_here().lane);
    json_t *root = close_and_read(t);
    expect_spans(root, 0, NULL, 0);
    json_decref(root);
}

/* ---- a team ---- */

static void helper_is_slow(void *arg, int32_t thread, int32_t n_thread) {
    (void)arg, (void)n_thread;
    if (thread > 0)
        usleep(1000);
}

/* The helper's spans are the owner's phases and waits between them. Whether the owner waits for
 * the helper is up to the machine, but not every time in many. */
static void helpers_have_lanes(void **state) {
    (void)state;
    enum { N_JOB = 30 };
    trace *t = open_one(2, 200);
    team *threads = NULL;
    weft_error err = {0};
    due helper[2 * N_JOB], owner[1 + 2 * N_JOB] = {{"layer", "layer", 5, -1}};
    assert_int_equal(team_open(2, &threads, &err), WEFT_OK);
    team_run(threads, helper_is_slow, NULL); /* not recorded */
    trace_take(t, 0);
    trace_span layer = trace_begin("layer", "layer", 5);
    for (int32_t i = 0; i < N_JOB; i++) {
        const char *name = i % 2 ? "down" : "qkv";
        trace_phase(name);
        team_run(threads, helper_is_slow, NULL);
        helper[2 * i] = (due){name, "layer", 5, -1};
        helper[2 * i + 1] = (due){"wait: work", NULL, 0, -1};
    }
    trace_end(&layer);
    team_close(threads);
    json_t *root = close_and_read(t);
    expect_spans(root, 1, helper, 2 * N_JOB);
    int32_t n = 1, n_wait = 0;
    for (int32_t i = 0; i < N_JOB; i++) {
        owner[n++] = (due){helper[2 * i].name, "layer", 5, 0};
        const json_t *next = span_at(root, 0, n);
        if (next && strcmp(text_of(next, "name"), "wait: helpers") == 0) {
            owner[n] = (due){"wait: helpers", "layer", 5, n - 1};
            n++, n_wait++;
        }
    }
    expect_spans(root, 0, owner, n);
    assert_true(n_wait > 0);
    json_decref(root);
}

/* ---- a full lane ---- */

static void full_lane_counts(void **state) {
    (void)state;
    trace *t = open_one(2, 3);
    trace_take(t, 0);
    for (int32_t i = 0; i < 20; i++) {
        trace_span s = trace_begin("step", "step", i);
        trace_end(&s);
    }
    log_set_level(LOG_QUIET);
    json_t *root = close_and_read(t);
    log_set_level(LOG_WARN);
    static const due spans[] = {
        {"step", "step", 0, -1}, {"step", "step", 1, -1}, {"step", "step", 2, -1}};
    expect_spans(root, 0, spans, 3);
    expect_spans(root, 1, NULL, 0);
    assert_int_equal(int_of(json_object_get(root, "otherData"), "spans_lost"), 17);
    assert_string_equal(thread_name(root, 0), "thread 0 (full: 17 spans lost)");
    assert_string_equal(thread_name(root, 1), "thread 1");
    json_decref(root);
}

/* ---- files ---- */

static void files_that_cannot_be(void **state) {
    (void)state;
    trace *t = NULL;
    weft_error err = {0};
    char below[320];
    snprintf(below, sizeof below, "%s/none/t.json", folder);
    assert_int_equal(trace_open(below, 1, 10, &t, &err), WEFT_ERR_USAGE);
    assert_non_null(strstr(err.text, below));
    assert_int_equal(trace_open(folder, 1, 10, &t, &err), WEFT_ERR_USAGE);
    assert_int_equal(trace_open(path, 1, 0, &t, &err), WEFT_ERR_SETUP);
    assert_int_equal(trace_open(path, 1, TRACE_SPANS_MAX + 1, &t, &err), WEFT_ERR_SETUP);
    assert_null(t);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(trace_open("/dev/full", 1, 10, &t, &err), WEFT_OK);
    log_set_level(LOG_QUIET);
    assert_int_equal(trace_close(t), WEFT_ERR_IO);
    log_set_level(LOG_WARN);
    assert_int_equal(trace_close(NULL), WEFT_OK);
}

static void file_fill(const char *start) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(start, f);
    for (int i = 0; i < 1000; i++)
        fputs("old text ", f);
    assert_int_equal(fclose(f), 0);
}

static void check_start(const char *want) {
    char got[8] = "";
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(got, (int)strlen(want) + 1, f));
    fclose(f);
    assert_string_equal(got, want);
}

/* An earlier trace, longer than the new one, is replaced when the new one is written and not
 * before; a file with something else in it is refused and stays. */
static void old_files(void **state) {
    (void)state;
    trace_discard(open_one(1, 10));
    assert_int_equal(access(path, F_OK), -1);
    file_fill("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"weft\":");
    trace_discard(open_one(1, 10));
    check_start("{\"dis");
    trace *t = open_one(1, 10);
    check_start("{\"dis");
    json_decref(close_and_read(t));
    weft_error err = {0};
    file_fill("");
    assert_int_equal(trace_open(path, 1, 10, &t, &err), WEFT_ERR_USAGE);
    assert_non_null(strstr(err.text, "something else"));
    check_start("old");
    unlink(path);
}

int main(void) {
    alarm(60);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(spans_nest, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(off_is_nothing, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(helpers_have_lanes, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(full_lane_counts, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(files_that_cannot_be, folder_make, folder_remove),
        cmocka_unit_test_setup_teardown(old_files, folder_make, folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
