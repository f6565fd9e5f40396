/* base: status tables, error records, core counting on made trees, waiting, teams, float mode. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/cores.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/team.h"
#include "base/wait.h"

/* ---- status ---- */

static void test_status_tables(void **state) {
    (void)state;
    static const struct {
        weft_status s;
        int exit, http;
    } due[] = {
        {WEFT_OK, 0, 200},           {WEFT_ERR_USAGE, 2, 400},         {WEFT_ERR_SETUP, 2, 400},
        {WEFT_ERR_FILE, 3, 500},     {WEFT_ERR_MEMORY, 4, 503},        {WEFT_ERR_RANK, 5, 503},
        {WEFT_ERR_TOO_LONG, 2, 400}, {WEFT_ERR_CANCELLED, 130, 499},   {WEFT_ERR_NUMERIC, 5, 500},
        {WEFT_ERR_IO, 5, 500},       {WEFT_ERR_INTERRUPTED, 130, 499},
    };
    for (size_t i = 0; i < sizeof due / sizeof due[0]; i++) {
        assert_int_equal((int)due[i].s, (int)i);
        assert_int_equal(status_exit_code(due[i].s), due[i].exit);
        assert_int_equal(status_http(due[i].s), due[i].http);
        assert_string_not_equal(weft_status_text(due[i].s), "unknown status");
    }
    assert_string_equal(weft_status_text(WEFT_OK), "ok");
    assert_string_equal(weft_status_text((weft_status)11), "unknown status");
    assert_string_equal(weft_status_text((weft_status)-1), "unknown status");
    assert_int_equal(status_exit_code((weft_status)77), 5);
    assert_int_equal(status_http((weft_status)77), 500);
}

static void test_error_set(void **state) {
    (void)state;
    weft_error err;
    assert_int_equal(error_set(&err, WEFT_ERR_SETUP, "dcp %d", 3), WEFT_ERR_SETUP);
    assert_int_equal(err.status, WEFT_ERR_SETUP);
    assert_int_equal(err.offset, -1);
    assert_string_equal(err.text, "dcp 3");
    assert_int_equal(error_set_at(&err, WEFT_ERR_FILE, 1234567890123, "%s again", err.text),
                     WEFT_ERR_FILE);
    assert_true(err.offset == 1234567890123);
    assert_string_equal(err.text, "dcp 3 again"); /* an argument inside the record itself */
    assert_int_equal(error_set(NULL, WEFT_ERR_IO, "nobody reads"), WEFT_ERR_IO);
    assert_int_equal(error_set_at(NULL, WEFT_ERR_IO, 7, "nobody reads"), WEFT_ERR_IO);
    error_set(&err, WEFT_ERR_FILE, "name %s", "a\nb\tc\x01");
    assert_string_equal(err.text, "name a b c ");
}

/* A text of `lead` letters and then characters of `n` bytes is cut between characters, whatever
 * the position at which the record's end falls. */
static void test_error_cut(void **state) {
    (void)state;
    static const char *const letters[] = {"x", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};
    const size_t room = sizeof((weft_error *)0)->text - 1;
    for (size_t l = 0; l < 4; l++) {
        size_t n = strlen(letters[l]);
        for (size_t lead = 0; lead < 4; lead++) {
            char text[2048] = "";
            memset(text, 'a', lead);
            for (size_t at = lead; at + n < sizeof text; at += n) {
                memcpy(text + at, letters[l], n);
                text[at + n] = '\0';
            }
            weft_error err;
            error_set(&err, WEFT_ERR_FILE, "%s", text);
            size_t due = lead + (room - lead) / n * n;
            assert_int_equal(strlen(err.text), due);
            assert_memory_equal(err.text, text, due);

            text[due] = '\0'; /* fits exactly: nothing is cut */
            error_set(&err, WEFT_ERR_FILE, "%s", text);
            assert_string_equal(err.text, text);
        }
    }
    char stray[2048];
    memset(stray, 0x80, sizeof stray - 1); /* no character starts anywhere: cut at the end */
    stray[sizeof stray - 1] = '\0';
    weft_error err;
    error_set(&err, WEFT_ERR_FILE, "%s", stray);
    assert_int_equal(strlen(err.text), room);
}

/* ---- log ---- */

/* What fn writes to stderr; at most cap - 1 bytes. */
static void catch_stderr(void (*fn)(void), char *out, size_t cap) {
    int ends[2], keep = dup(STDERR_FILENO);
    assert_true(keep >= 0 && pipe(ends) == 0);
    dup2(ends[1], STDERR_FILENO);
    fn();
    dup2(keep, STDERR_FILENO);
    close(keep);
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; n < cap - 1 && (got = read(ends[0], out + n, cap - 1 - n)) > 0;) {
        n += (size_t)got;
    }
    close(ends[0]);
    out[n] = '\0';
}

static void write_all_levels(void) {
    errno = 99;
    log_error("e %d", 1);
    log_warn("two\nlines");
    log_info("i");
    log_debug("d");
    assert_int_equal(errno, 99);
}

static void write_long(void) {
    char text[5000];
    memset(text, 'z', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    log_error("%s", text);
    log_error("next");
}

static void write_events(void) {
    const log_field f[] = {{"id", "a-1", 0},
                           {"text", "two words\n\"\\\t\x01 \xC3\xA9", 0},
                           {"empty", "", 0},
                           {"n", NULL, 12},
                           {"s", NULL, 0.25}};
    log_event(LOG_WARN, "request", f, 5);
    log_event(LOG_INFO, "not wanted", f, 5);
    log_warn("a \"text\"");
}

static void write_long_event(void) {
    char text[5000];
    for (size_t i = 0; i + 2 < sizeof text; i += 2)
        memcpy(text + i, "\xC3\xA9", 2);
    text[sizeof text - 2] = '\0';
    const log_field f[] = {{"text", text, 0}, {"n", NULL, 1}};
    log_event(LOG_WARN, "long", f, 2);
}

/* A line of JSON parses whatever is in it, and however long it is. */
static void test_log_events(void **state) {
    (void)state;
    char got[8192];
    json_error_t why;
    catch_stderr(write_events, got, sizeof got);
    assert_string_equal(got,
                        "weft: warn: request id=a-1 text=\"two words\\u000a\\\"\\\\\\u0009\\u0001 "
                        "\xC3\xA9\" empty=\"\" n=12 s=0.25\nweft: warn: a \"text\"\n");
    log_set_json(true);
    catch_stderr(write_events, got, sizeof got);
    json_t *event = json_loads(got, JSON_DISABLE_EOF_CHECK, &why);
    assert_non_null(event);
    assert_string_equal(json_string_value(json_object_get(event, "level")), "warn");
    assert_string_equal(json_string_value(json_object_get(event, "event")), "request");
    assert_string_equal(json_string_value(json_object_get(event, "text")),
                        "two words\n\"\\\t\x01 \xC3\xA9");
    assert_int_equal(json_integer_value(json_object_get(event, "n")), 12);
    assert_int_equal(strlen(json_string_value(json_object_get(event, "time"))), 24);
    json_decref(event);
    json_t *line = json_loads(strchr(got, '\n') + 1, 0, &why);
    assert_string_equal(json_string_value(json_object_get(line, "text")), "a \"text\"");
    json_decref(line);
    catch_stderr(write_long_event, got, sizeof got);
    json_t *cut = json_loads(got, 0, &why);
    assert_non_null(cut);
    size_t n = strlen(json_string_value(json_object_get(cut, "text")));
    assert_true(n > 1000 && n < 2048);
    json_decref(cut);
    log_set_json(false);
}

static void test_log(void **state) {
    (void)state;
    static const char *const due[] = {
        "", "weft: error: e 1\n", "weft: error: e 1\nweft: warn: two lines\n",
        "weft: error: e 1\nweft: warn: two lines\nweft: info: i\n",
        "weft: error: e 1\nweft: warn: two lines\nweft: info: i\nweft: debug: d\n"};
    char got[8192];
    for (int level = LOG_QUIET; level <= LOG_DEBUG; level++) {
        log_set_level((log_level)level);
        catch_stderr(write_all_levels, got, sizeof got);
        assert_string_equal(got, due[level]);
    }
    log_set_level(LOG_WARN);
    catch_stderr(write_long, got, sizeof got);
    const char *end = strchr(got, '\n');
    assert_non_null(end);
    assert_true(end - got > 1000 && end - got < 2048);
    assert_string_equal(end, "\nweft: error: next\n");
}

/* ---- cores ---- */

static char tree[256]; /* the made root */

static void remove_tree(void) {
    char command[300];
    snprintf(command, sizeof command, "rm -r '%s'", tree);
    assert_int_equal(system(command), 0);
}

static void make_tree(void) {
    const char *base = getenv("TMPDIR");
    snprintf(tree, sizeof tree, "%s/weft-base-XXXXXX", base == NULL ? "/tmp" : base);
    assert_non_null(mkdtemp(tree));
}

/* Writes a file under the root, with its folders. */
static void put(const char *path, const char *text) {
    char full[1024];
    snprintf(full, sizeof full, "%s%s", tree, path);
    for (char *at = full + strlen(tree) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        assert_true(mkdir(full, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

#define V2_MOUNT(top, point)                                                                       \
    "30 20 0:26 " top " " point " rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
#define V1_MOUNT(top, point) "31 20 0:27 " top " " point " rw - cgroup cgroup rw,cpu,cpuacct\n"
#define OTHER_MOUNTS                                                                               \
    "21 20 0:5 / /proc rw - proc proc rw\n"                                                        \
    "32 20 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\nbroken line\n"

static int32_t v2_cores(const char *limit, int32_t mask) {
    make_tree();
    put("/proc/self/cgroup", "0::/job\n");
    put("/proc/self/mountinfo", OTHER_MOUNTS V2_MOUNT("/", "/sys/fs/cgroup"));
    put("/sys/fs/cgroup/job/cpu.max", limit);
    int32_t n = cores_within_quota(tree, mask);
    remove_tree();
    return n;
}

static void test_quota_v2(void **state) {
    (void)state;
    static const struct {
        const char *limit;
        int32_t mask, due;
    } cases[] = {
        {"400000 100000\n", 64, 4},
        {"200000 100000\n", 64, 2},
        {"765000 100000\n", 64, 7},
        {"50000 100000\n", 64, 1},
        {"1 1000000\n", 64, 1},
        {"max 100000\n", 64, 64},
        {"400000 100000\n", 3, 3}, /* the mask is smaller */
        {"25000 5000\n", 64, 5},
        {"300000\n", 64, 3}, /* no period: the default */
        {"300000 0\n", 64, 3},
        {"", 64, 64},
        {"-1 100000\n", 64, 64},
        {"rubbish\n", 64, 64},
        {"9223372036854775807 1\n", 64, 64},
        {"99999999999999999999999 100000\n", 64, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(v2_cores(cases[i].limit, cases[i].mask), cases[i].due);
    }
}

static int32_t v1_cores(const char *quota, const char *period) {
    make_tree();
    put("/proc/self/cgroup", "9:cpuset:/elsewhere\n4:cpu,cpuacct:/docker/abc\n0::/\n");
    put("/proc/self/mountinfo", OTHER_MOUNTS V1_MOUNT("/", "/sys/fs/cgroup/cpu,cpuacct"));
    put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", quota);
    put("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", period);
    int32_t n = cores_within_quota(tree, 32);
    remove_tree();
    return n;
}

static void test_quota_v1(void **state) {
    (void)state;
    assert_int_equal(v1_cores("400000\n", "100000\n"), 4);
    assert_int_equal(v1_cores("765000\n", "100000\n"), 7);
    assert_int_equal(v1_cores("50000\n", "100000\n"), 1);
    assert_int_equal(v1_cores("-1\n", "100000\n"), 32);
    assert_int_equal(v1_cores("100000\n", "50000\n"), 2);
    assert_int_equal(v1_cores("300000\n", "\n"), 3);
}

/* The limit stands on a parent, or on several levels: the smallest counts. */
static void test_quota_parents(void **state) {
    (void)state;
    make_tree();
    put("/proc/self/cgroup", "0::/pod/box/job\n");
    put("/proc/self/mountinfo", V2_MOUNT("/", "/sys/fs/cgroup"));
    put("/sys/fs/cgroup/pod/box/job/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/pod/cpu.max", "350000 100000\n");
    assert_int_equal(cores_within_quota(tree, 16), 3);
    put("/sys/fs/cgroup/pod/box/cpu.max", "800000 100000\n");
    assert_int_equal(cores_within_quota(tree, 16), 3);
    put("/sys/fs/cgroup/pod/box/job/cpu.max", "200000 100000\n");
    assert_int_equal(cores_within_quota(tree, 16), 2);
    put("/sys/fs/cgroup/cpu.max", "100000 100000\n"); /* the mount point too */
    assert_int_equal(cores_within_quota(tree, 16), 1);
    remove_tree();

    make_tree();
    put("/proc/self/cgroup", "3:cpu:/outer/inner\n");
    put("/proc/self/mountinfo", V1_MOUNT("/", "/sys/fs/cgroup/cpu"));
    put("/sys/fs/cgroup/cpu/outer/inner/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/outer/cpu.cfs_quota_us", "250000\n");
    put("/sys/fs/cgroup/cpu/outer/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cores_within_quota(tree, 16), 2);
    remove_tree();
}

/* Containers: the mount shows a part of the hierarchy only. */
static void test_quota_mounts(void **state) {
    (void)state;
    make_tree(); /* our group stands at the mount point itself */
    put("/proc/self/cgroup", "4:cpuacct,cpu:/docker/abc\n");
    put("/proc/self/mountinfo", V1_MOUNT("/docker/abc", "/sys/fs/cgroup/cpu"));
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "500000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cores_within_quota(tree, 16), 5);
    put("/proc/self/cgroup", "4:cpuacct,cpu:/docker/abcdef\n"); /* not below /docker/abc */
    put("/sys/fs/cgroup/cpu/def/cpu.cfs_quota_us", "100000\n");
    assert_int_equal(cores_within_quota(tree, 16), 5);
    put("/proc/self/cgroup", "4:cpuacct,cpu:/docker/abc/job\n");
    put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "300000\n");
    assert_int_equal(cores_within_quota(tree, 16), 3);
    remove_tree();

    make_tree(); /* a path from outside the namespace; a mount point with a space */
    put("/proc/self/cgroup", "0::/../../other\n");
    put("/proc/self/mountinfo", V2_MOUNT("/", "/sys/my\\040groups"));
    put("/sys/my groups/cpu.max", "600000 100000\n");
    assert_int_equal(cores_within_quota(tree, 16), 6);
    remove_tree();

    make_tree(); /* both versions mounted: the smaller counts */
    put("/proc/self/cgroup", "2:cpu,cpuacct:/a:b\n0::/c\n");
    put("/proc/self/mountinfo",
        V1_MOUNT("/", "/sys/fs/cgroup/cpu") V2_MOUNT("/", "/sys/fs/cgroup/unified"));
    put("/sys/fs/cgroup/cpu/a:b/cpu.cfs_quota_us", "700000\n");
    assert_int_equal(cores_within_quota(tree, 16), 7);
    put("/sys/fs/cgroup/unified/c/cpu.max", "400000 100000\n");
    assert_int_equal(cores_within_quota(tree, 16), 4);
    remove_tree();

    make_tree(); /* nothing there at all, and files of no use */
    assert_int_equal(cores_within_quota(tree, 16), 16);
    assert_int_equal(cores_within_quota(tree, 0), 1);
    put("/proc/self/cgroup", "no colon\n:\n\n");
    put("/proc/self/mountinfo", "1 2 - \n - - -\n");
    assert_int_equal(cores_within_quota(tree, 16), 16);
    remove_tree();
}

static void test_core_count(void **state) {
    (void)state;
    int32_t n = wait_core_count();
    assert_true(n >= 1 && n <= cores_in_mask());
    assert_int_equal(n, cores_within_quota("", cores_in_mask()));
    assert_int_equal(wait_core_count(), n);
}

/* ---- wait ---- */

static void test_wait_deadline(void **state) {
    (void)state;
    _Atomic uint32_t word = 5;
    for (int32_t n_thread = 0; n_thread <= 1; n_thread++) { /* without and with the spin */
        wait_threads_add(n_thread);
        int64_t start = wait_now_ns();
        assert_false(wait_while_equal(&word, 5, start + 30000000));
        assert_true(wait_now_ns() - start >= 30000000);
        assert_false(wait_while_equal(&word, 5, start)); /* passed already */
        assert_false(wait_while_equal(&word, 5, 0));
        assert_false(wait_while_equal(&word, 5, -1));
        assert_true(wait_while_equal(&word, 4, 0)); /* differs: the deadline does not matter */
        assert_true(wait_while_equal(&word, 6, INT64_MAX));
        wait_threads_add(-n_thread);
    }
}

typedef struct ping {
    _Atomic uint32_t to, from;
    int plain; /* ordered by the words alone */
} ping;

enum { N_PING = 3000 };

static void *answer(void *arg) {
    ping *p = arg;
    for (uint32_t i = 0; i < N_PING; i++) {
        wait_while_equal(&p->to, i, INT64_MAX);
        p->plain++;
        atomic_store_explicit(&p->from, i + 1, memory_order_release);
        wait_wake_all(&p->from);
    }
    return NULL;
}

static void test_wait_wakes(void **state) {
    (void)state;
    for (int32_t n_active = 0; n_active <= 2; n_active += 2) {
        ping p = {0};
        pthread_t thread;
        wait_threads_add(n_active);
        assert_int_equal(pthread_create(&thread, NULL, answer, &p), 0);
        for (uint32_t i = 0; i < N_PING; i++) {
            p.plain++;
            atomic_store_explicit(&p.to, i + 1, memory_order_release);
            wait_wake_all(&p.to);
            assert_true(wait_while_equal(&p.from, i, wait_now_ns() + 20000000000));
        }
        pthread_join(thread, NULL);
        wait_threads_add(-n_active);
        assert_int_equal(p.plain, 2 * N_PING);
    }
}

/* ---- team ---- */

enum { MAX_THREAD = 8, MAX_ITEM = 40 };

typedef struct work {
    team *t;
    int32_t n_item;
    int32_t seen[MAX_THREAD]; /* calls per thread */
    int32_t done[MAX_ITEM];   /* how often each item was claimed */
    int32_t n_thread;
} work;

static void run_work(void *arg, int32_t thread, int32_t n_thread) {
    work *w = arg;
    w->seen[thread]++;
    if (thread == 0) {
        w->n_thread = n_thread;
    }
    for (int32_t i; (i = team_claim(w->t, w->n_item)) >= 0;) {
        w->done[i]++; /* plain: a double claim is a race that the thread sanitiser sees too */
    }
    if (team_claim(w->t, w->n_item) != -1) {
        w->seen[thread] = -1; /* helpers cannot use cmocka's asserts: the count is wrong now */
    }
}

static void test_team(void **state) {
    (void)state;
    for (int32_t n = 1; n <= MAX_THREAD; n++) {
        work w = {0};
        assert_int_equal(team_open(n, &w.t, NULL), WEFT_OK);
        assert_int_equal(team_size(w.t), n);
        int32_t due[MAX_ITEM] = {0};
        for (int32_t round = 0; round < 2000; round++) {
            w.n_item = round % (MAX_ITEM + 1);
            team_run(w.t, run_work, &w);
            for (int32_t i = 0; i < w.n_item; i++) {
                due[i]++;
            }
            assert_memory_equal(w.done, due, sizeof due);
        }
        assert_int_equal(w.n_thread, n);
        for (int32_t i = 0; i < MAX_THREAD; i++) {
            assert_int_equal(w.seen[i], i < n ? 2000 : 0);
        }
        team_close(w.t);
    }
    team_close(NULL);
}

/* Long claiming by several threads at once; each item must be claimed by exactly one. */
enum { N_CROWD_ITEM = 100000 };

typedef struct crowd {
    team *t;
    _Atomic int32_t n_started;
    _Atomic uint8_t claims[N_CROWD_ITEM];
} crowd;

static void claim_all(void *arg, int32_t thread, int32_t n_thread) {
    (void)thread;
    crowd *c = arg;
    atomic_fetch_add(&c->n_started, 1);
    while (atomic_load(&c->n_started) % n_thread != 0) { /* nobody is done before all are there */
        sched_yield();
    }
    for (int32_t i; (i = team_claim(c->t, N_CROWD_ITEM)) >= 0;) {
        atomic_fetch_add(&c->claims[i], 1);
    }
}

static void test_team_claim(void **state) {
    (void)state;
    static crowd c;
    assert_int_equal(team_open(4, &c.t, NULL), WEFT_OK);
    for (int32_t round = 1; round <= 10; round++) {
        team_run(c.t, claim_all, &c);
        for (int32_t i = 0; i < N_CROWD_ITEM; i++) {
            assert_int_equal(c.claims[i], round);
        }
    }
    team_close(c.t);
}

static void test_team_refuses(void **state) {
    (void)state;
    weft_error err;
    team *t = (team *)&err;
    assert_int_equal(team_open(0, &t, &err), WEFT_ERR_SETUP);
    assert_non_null(strstr(err.text, "0 threads"));
    assert_int_equal(team_open(-3, &t, NULL), WEFT_ERR_SETUP);
    assert_int_equal(team_open(1 << 20, &t, &err), WEFT_ERR_SETUP);
    assert_ptr_equal(t, &err); /* outputs untouched */
}

static void test_team_open_close(void **state) {
    (void)state;
    for (int32_t i = 0; i < 50; i++) { /* closed before helpers have looked around once */
        team *t;
        assert_int_equal(team_open(1 + i % MAX_THREAD, &t, NULL), WEFT_OK);
        team_close(t);
    }
}

/* ---- float mode ---- */

#if defined(__x86_64__)
enum { MXCSR_ROUND_UP = 0x4000, MXCSR_FTZ = 0x8000, MXCSR_DAZ = 0x0040, MXCSR_FLAGS = 0x3F };

static void note_mode(void *arg, int32_t thread, int32_t n_thread) {
    (void)n_thread;
    ((uint32_t *)arg)[thread] = _mm_getcsr() & ~(uint32_t)MXCSR_FLAGS;
}

static void test_float_mode(void **state) {
    (void)state;
    /* Helpers inherit a bad mode from the thread that opens the team; it must not last. */
    _mm_setcsr(0x1F80 | MXCSR_FTZ | MXCSR_DAZ | MXCSR_ROUND_UP);
    team *t;
    assert_int_equal(team_open(4, &t, NULL), WEFT_OK);
    uint32_t mode[4] = {0};
    team_run(t, note_mode, mode);
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(mode[i], 0x1F80);
    }
    _mm_setcsr(0x1F80 | MXCSR_FTZ);
    team_set_float_mode();
    assert_int_equal(_mm_getcsr() & ~(uint32_t)MXCSR_FLAGS, 0x1F80);
    volatile float small = 1.5e-38f;
    volatile float half = small * 0.25f; /* a denormal: zero under FTZ */
    assert_true(half > 0.0f);
    team_close(t);
}

static void spoil_helper(void *arg, int32_t thread, int32_t n_thread) {
    (void)arg;
    (void)n_thread;
    if (thread == 1) {
        _mm_setcsr(0x1F80 | MXCSR_FTZ);
    }
}

/* A helper whose mode was changed and left: a debug build stops, a release build repairs it. */
static void test_float_mode_kept(void **state) {
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGILL, SIG_DFL); /* cmocka and sanitisers have handlers of their own */
        signal(SIGTRAP, SIG_DFL);
        team *t;
        uint32_t mode[2] = {0};
        if (team_open(2, &t, NULL) != WEFT_OK) {
            _exit(3);
        }
        team_run(t, spoil_helper, NULL);
        team_run(t, note_mode, mode);
        _exit(mode[1] == 0x1F80 ? 0 : 4);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
#ifdef WEFT_DEBUG
    assert_true(WIFSIGNALED(how));
#else
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
#endif
}
#endif

/* ---- memory ---- */

#define V1_MEMORY_MOUNT "33 20 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"

static void make_memory_tree(const char *cgroup) {
    make_tree();
    put("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:     800 kB\n");
    put("/proc/self/cgroup", cgroup);
    put("/proc/self/mountinfo", OTHER_MOUNTS V1_MEMORY_MOUNT V2_MOUNT("/", "/sys/fs/cgroup"));
}

static void test_memory_v2(void **state) {
    (void)state;
    static const struct {
        const char *max, *current, *stat;
        uint64_t due;
    } cases[] = {
        {"max\n", "5000\n", "", 800 * 1024},
        {"500000\n", "100000\n", "anon 5\ninactive_file 30000\n", 430000},
        {"500000\n", "100000\n", "", 400000},
        {"500000\n", "100000\n", "inactive_file 200000\n", 500000}, /* stale by a little */
        {"500000\n", "600000\n", "", 1},                            /* nothing left, but known */
        {"9000000\n", "100\n", "", 800 * 1024},                     /* the machine has less */
        {"rubbish\n", "100\n", "", 800 * 1024},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make_memory_tree("0::/job/step\n");
        put("/sys/fs/cgroup/job/memory.max", cases[i].max); /* a parent binds too */
        put("/sys/fs/cgroup/job/memory.current", cases[i].current);
        put("/sys/fs/cgroup/job/memory.stat", cases[i].stat);
        put("/sys/fs/cgroup/job/step/memory.max", "max\n");
        assert_int_equal(memory_available(tree), cases[i].due);
        remove_tree();
    }
}

static void test_memory_v1(void **state) {
    (void)state;
    make_memory_tree("7:memory:/box\n3:cpu,cpuacct:/\n");
    put("/sys/fs/cgroup/memory/box/memory.limit_in_bytes", "300000\n");
    put("/sys/fs/cgroup/memory/box/memory.usage_in_bytes", "200000\n");
    put("/sys/fs/cgroup/memory/box/memory.stat", "inactive_file 1\ntotal_inactive_file 50000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(memory_available(tree), 150000);
    remove_tree();
    make_tree(); /* nothing to read: unknown */
    put("/proc/self/none", "\n");
    assert_int_equal(memory_available(tree), 0);
    remove_tree();
    assert_true(memory_available("") > 0);
}

int main(void) {
    alarm(120); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_tables),
        cmocka_unit_test(test_error_set),
        cmocka_unit_test(test_error_cut),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_log_events),
        cmocka_unit_test(test_memory_v1),
        cmocka_unit_test(test_memory_v2),
        cmocka_unit_test(test_quota_v2),
        cmocka_unit_test(test_quota_v1),
        cmocka_unit_test(test_quota_parents),
        cmocka_unit_test(test_quota_mounts),
        cmocka_unit_test(test_core_count),
        cmocka_unit_test(test_wait_deadline),
        cmocka_unit_test(test_wait_wakes),
        cmocka_unit_test(test_team),
        cmocka_unit_test(test_team_claim),
        cmocka_unit_test(test_team_refuses),
        cmocka_unit_test(test_team_open_close),
#if defined(__x86_64__)
        cmocka_unit_test(test_float_mode),
        cmocka_unit_test(test_float_mode_kept),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
