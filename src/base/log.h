/* Log lines to stderr, one per event; never a prompt's text. Thread-safe.
 *
 *   text   weft: LEVEL: text            weft: LEVEL: EVENT name=value name="a text"
 *   json   {"time": "...", "level": "...", "text": "..."}
 *          {"time": "...", "level": "...", "event": "...", "name": value, ...} */
#ifndef WEFT_BASE_LOG_H
#define WEFT_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>

typedef enum log_level { LOG_QUIET, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;
void log_set_level(log_level level); /* default LOG_WARN; WEFT_LOG=quiet|error|warn|info|debug sets
                                        it at start of the program */
/* False: WEFT_LOG is set to something else, and does nothing. */
bool log_environment_valid(void);
/* The level where the environment says none. */
void log_set_default_level(log_level level);
void log_set_json(bool json); /* before other threads log */
/* A reader of stderr that stops reading does not stop the program: lines that find no room are left
 * out, and their number is told when there is room again. */
void log_set_lossy(bool lossy);
void log_line(log_level level, const char *text, ...) __attribute__((format(printf, 2, 3)));

typedef struct log_field {
    const char *name; /* a plain word */
    const char *text; /* valid UTF-8, cut where it is very long; NULL: number */
    double number;
} log_field;
void log_event(log_level level, const char *event, const log_field *field, size_t n);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
