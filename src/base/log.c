/* Log lines: made whole in a buffer, written with one write, so that threads cannot mix them. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEVEL_UNSET = -1, LINE_CAP = 2048 };

static _Atomic int level_now = LEVEL_UNSET;
static const char *const level_name[] = {"quiet", "error", "warn", "info", "debug"};

static int level_from_environment(void) {
    const char *wish = getenv("WEFT_LOG");
    for (int i = 0; wish != NULL && i <= LOG_DEBUG; i++) {
        if (strcmp(wish, level_name[i]) == 0) {
            return i;
        }
    }
    return LOG_WARN;
}

/* The environment counts until somebody sets a level: a log_set_level that runs at the same time
 * must win, hence the exchange only from LEVEL_UNSET. */
static int level_get(void) {
    int level = atomic_load_explicit(&level_now, memory_order_relaxed);
    if (level == LEVEL_UNSET) {
        int wish = level_from_environment();
        if (atomic_compare_exchange_strong(&level_now, &level, wish)) {
            level = wish;
        }
    }
    return level;
}

void log_set_level(log_level level) {
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

void log_line(log_level level, const char *text, ...) {
    if (level == LOG_QUIET || (int)level > level_get()) {
        return;
    }
    int errno_before = errno; /* callers log first and look at errno after */
    char line[LINE_CAP];
    int head = snprintf(line, sizeof line, "weft: %s: ", level_name[level]);
    va_list args;
    va_start(args, text);
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, text, args);
    va_end(args);
    size_t n = (size_t)head;
    if (body > 0) {
        size_t room = sizeof line - (size_t)head - 2;
        n += (size_t)body < room ? (size_t)body : room;
    }
    for (size_t i = 0; i < n; i++) {
        if (line[i] == '\n' || line[i] == '\r') {
            line[i] = ' ';
        }
    }
    line[n++] = '\n';
    for (size_t at = 0; at < n;) {
        ssize_t put = write(STDERR_FILENO, line + at, n - at);
        if (put < 0 && errno != EINTR) {
            break;
        }
        at += put > 0 ? (size_t)put : 0;
    }
    errno = errno_before;
}
