/* Log lines: made whole in a buffer, written with one write, so that threads cannot mix them. */
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LEVEL_UNSET = -1, LINE_CAP = 2048 };

static _Atomic int level_now = LEVEL_UNSET;
static const char *const level_name[] = {"quiet", "error", "warn", "info", "debug"};

static _Atomic int level_default = LOG_WARN;
static atomic_bool json_now, lossy_now;
static _Atomic unsigned long n_lost;

/* LEVEL_UNSET: it names none. */
static int level_from_environment(void) {
    const char *wish = getenv("WEFT_LOG");
    for (int i = 0; wish != NULL && i <= LOG_DEBUG; i++) {
        if (strcmp(wish, level_name[i]) == 0) {
            return i;
        }
    }
    return LEVEL_UNSET;
}

bool log_environment_valid(void) {
    const char *wish = getenv("WEFT_LOG");
    return wish == NULL || wish[0] == '\0' || level_from_environment() != LEVEL_UNSET;
}

/* The environment counts until somebody sets a level: a log_set_level that runs at the same time
 * must win, hence the exchange only from LEVEL_UNSET. */
static int level_get(void) {
    int level = atomic_load_explicit(&level_now, memory_order_relaxed);
    if (level == LEVEL_UNSET) {
        int wish = level_from_environment();
        wish = wish == LEVEL_UNSET ? atomic_load(&level_default) : wish;
        if (atomic_compare_exchange_strong(&level_now, &level, wish)) {
            level = wish;
        }
    }
    return level;
}

void log_set_level(log_level level) {
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

void log_set_default_level(log_level level) {
    atomic_store(&level_default, (int)level);
    atomic_store(&level_now, LEVEL_UNSET);
}

void log_set_json(bool json) {
    atomic_store(&json_now, json);
}

void log_set_lossy(bool lossy) {
    atomic_store(&lossy_now, lossy);
}

/* ---- a line ---- */

/* One byte is kept for the line's end; what does not fit is left out. */
typedef struct line {
    char data[LINE_CAP];
    size_t n, room; /* room < LINE_CAP: the end of a JSON line fits behind it */
} line;

static void add(line *l, const char *text, size_t n) {
    size_t left = l->room - l->n;
    n = n < left ? n : left;
    memcpy(l->data + l->n, text, n);
    l->n += n;
}

static void add_text(line *l, const char *text) {
    add(l, text, strlen(text));
}

/* Whole characters only: a line that is full ends before one. Control bytes are written as escapes,
 * and so are quotes inside of quotes. */
static void add_escaped(line *l, const char *text) {
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        size_t n = *c < 0x80 ? 1 : *c < 0xE0 ? 2 : *c < 0xF0 ? 3 : 4;
        char escape[8];
        if (*c < 0x20 || *c == 0x7F || *c == '"' || *c == '\\') {
            bool quote = *c == '"' || *c == '\\';
            snprintf(escape, sizeof escape, quote ? "\\%c" : "\\u%04x", *c);
            if (l->room - l->n < strlen(escape)) {
                return;
            }
            add_text(l, escape);
            c++;
            continue;
        }
        for (size_t i = 1; i < n; i++) {
            n = c[i] ? n : i;
        }
        if (l->room - l->n < n) {
            return;
        }
        add(l, (const char *)c, n);
        c += n;
    }
}

/* A text that is cut still ends with its quote. */
static void add_quoted(line *l, const char *text) {
    add_text(l, "\"");
    l->room--;
    add_escaped(l, text);
    l->room++;
    add_text(l, "\"");
}

/* {"time": "2026-11-30T12:00:00.123Z", "level": "info" */
static void json_begin(line *l, log_level level) {
    struct timespec now;
    struct tm tm;
    char time_text[64], head[128];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    strftime(time_text, sizeof time_text, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(head, sizeof head, "{\"time\": \"%s.%03ldZ\", \"level\": \"%s\"", time_text,
             now.tv_nsec / 1000000, level_name[level]);
    add_text(l, head);
}

static void line_begin(line *l, log_level level, bool json) {
    l->n = 0;
    l->room = sizeof l->data - 8; /* for the end: quote, brace, line end */
    if (json) {
        json_begin(l, level);
    } else {
        add_text(l, "weft: ");
        add_text(l, level_name[level]);
        add_text(l, ": ");
    }
}

/* A pipe that polls writable takes PIPE_BUF bytes, more than a line has, at once. */
static bool has_room(void) {
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT) != 0;
}

static void line_put(line *l) {
    l->data[l->n++] = '\n';
    for (size_t at = 0; at < l->n;) {
        ssize_t put = write(STDERR_FILENO, l->data + at, l->n - at);
        if (put < 0 && errno != EINTR) {
            break;
        }
        at += put > 0 ? (size_t)put : 0;
    }
}

static void line_write(line *l) {
    int errno_before = errno; /* callers log first and look at errno after */
    if (atomic_load(&lossy_now) && !has_room()) {
        atomic_fetch_add(&n_lost, 1);
    } else {
        unsigned long lost = atomic_exchange(&n_lost, 0);
        line_put(l);
        if (lost > 0) {
            log_line(LOG_WARN, "%lu log lines found no reader and are lost", lost);
        }
    }
    errno = errno_before;
}

static bool is_wanted(log_level level) {
    return level != LOG_QUIET && (int)level <= level_get();
}

void log_line(log_level level, const char *text, ...) {
    if (!is_wanted(level)) {
        return;
    }
    int errno_before = errno;
    bool json = atomic_load(&json_now);
    char body[LINE_CAP];
    va_list args;
    va_start(args, text);
    vsnprintf(body, sizeof body, text, args);
    va_end(args);
    line l;
    line_begin(&l, level, json);
    if (json) {
        add_text(&l, ", \"text\": ");
        add_quoted(&l, body);
        l.room = sizeof l.data - 1;
        add_text(&l, "}");
    } else {
        for (char *c = body; *c; c++) {
            *c = *c == '\n' || *c == '\r' ? ' ' : *c;
        }
        add_text(&l, body);
    }
    errno = errno_before;
    line_write(&l);
}

/* Text is quoted where it is more than a word. */
static void add_value(line *l, const log_field *f, bool json) {
    char number[40];
    if (!f->text) {
        snprintf(number, sizeof number, "%.6g", f->number);
        add_text(l, number);
    } else if (json || f->text[0] == '\0' || strpbrk(f->text, " \"\\=\n\r\t") != NULL) {
        add_quoted(l, f->text);
    } else {
        add_escaped(l, f->text);
    }
}

void log_event(log_level level, const char *event, const log_field *field, size_t n) {
    if (!is_wanted(level)) {
        return;
    }
    bool json = atomic_load(&json_now);
    line l;
    line_begin(&l, level, json);
    add_text(&l, json ? ", \"event\": \"" : "");
    add_text(&l, event);
    add_text(&l, json ? "\"" : "");
    enum { NUMBER = 48 }; /* with what stands around it */
    for (size_t i = 0; i < n && l.room - l.n > strlen(field[i].name) + NUMBER; i++) {
        add_text(&l, json ? ", \"" : " ");
        add_text(&l, field[i].name);
        add_text(&l, json ? "\": " : "=");
        add_value(&l, &field[i], json);
    }
    l.room = sizeof l.data - 1;
    add_text(&l, json ? "}" : "");
    line_write(&l);
}
