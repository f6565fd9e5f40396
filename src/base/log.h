/* Log lines to stderr: "weft: LEVEL: text". One line per event; never a prompt's text. Thread-safe.
 */
#ifndef WEFT_BASE_LOG_H
#define WEFT_BASE_LOG_H

typedef enum log_level { LOG_QUIET, LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level;
void log_set_level(log_level level); /* default LOG_WARN; WEFT_LOG=quiet|error|warn|info|debug sets
                                        it at start of the program */
void log_line(log_level level, const char *text, ...) __attribute__((format(printf, 2, 3)));
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

#endif
