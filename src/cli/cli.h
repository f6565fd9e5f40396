/* What the sub-commands share: the command record, errors, the terminal, input texts, interruption.
 *
 * A new command is one file with its values struct, its option tables and
 * `const cli_command cli_<name>`, an extern line here, and a line in the list in main.c.
 *
 * Data goes to stdout, everything else to stderr. A run function returns the exit code:
 * 0, 1 for a difference that a check found, or cli_fail's. */
#ifndef WEFT_CLI_CLI_H
#define WEFT_CLI_CLI_H

#include <signal.h>
#include <stdio.h>

#include "base/options.h"

typedef struct cli_command {
    option_command options;
    int (*run)(const void *values, const option_list *args);
} cli_command;

extern const cli_command cli_run, cli_serve, cli_check, cli_plan, cli_bench, cli_eval, cli_tokenize,
    cli_inspect, cli_completion, cli_man;

/* The program with all its commands, for what is generated from the tables. */
const option_program *cli_program(void);

/* ---- errors ---- */
/* Prints "weft: text" to stderr and returns the exit code of the status. */
int cli_fail(const weft_error *err);
int cli_fail_text(weft_status s, const char *text, ...) __attribute__((format(printf, 2, 3)));

/* ---- interruption: set by the first Ctrl-C; a second one ends the program at once ---- */
extern volatile sig_atomic_t cli_interrupted;
void cli_interrupt_install(void);
/* The same, for loops that wait for an engine; says once that its step is waited for. */
bool cli_interrupt_noticed(void);

/* ---- terminal ---- */
/* Colours are for terminals, and not when NO_COLOR is set or TERM is dumb. */
bool cli_color(FILE *f);
/* Columns to write to: the terminal's, held to 80..100; 80 when f is none. */
int32_t cli_width(FILE *f);

/* A bar on stderr, drawn at most ten times a second, only when stderr is a terminal. */
typedef struct cli_progress {
    const char *label; /* borrowed until cli_progress_end */
    int64_t total, next_ns;
    bool on;
} cli_progress;
void cli_progress_begin(cli_progress *p, const char *label, int64_t total); /* draws nothing yet */
void cli_progress_set(cli_progress *p, int64_t done);
void cli_progress_end(cli_progress *p); /* wipes the bar */
/* Loading a model. on_load is for weft_engine_params and ends the loading after Ctrl-C; its user is a
 * cli_progress of cli_load_begin, or NULL. The bar is wiped before the engine may log something. */
void cli_load_begin(cli_progress *p);
bool cli_on_load(void *bar, double done);

/* ---- input ---- */
/* WEFT_ERR_USAGE with the offset when the text, which the user knows as `name`, is not UTF-8. */
weft_status cli_check_text(const char *name, const char *text, size_t bytes, weft_error *err);
/* The next number of an option's (name) list such as "100,2k, 9". *at begins at the list, and is moved on, to
 * the text's end after the last number. */
weft_status cli_next_size(const char *name, const char *list, const char **at, int32_t *out,
                          weft_error *err);
/* All of a file, as it is; path NULL or "-": standard input. *text is malloc'ed and ended by a NUL
 * that *bytes does not count. WEFT_ERR_USAGE for a file that cannot be opened or is not UTF-8,
 * WEFT_ERR_IO when reading fails, WEFT_ERR_INTERRUPTED after Ctrl-C. */
weft_status cli_read_text(const char *path, char **text, size_t *bytes, weft_error *err);
/* The prompt of -p TEXT and -f FILE, which exclude each other; neither: standard input. */
weft_status cli_read_prompt(const char *text_option, const char *file_option, char **text,
                            size_t *bytes, weft_error *err);
/* What `command` says of a model without a tokeniser. */
weft_status cli_no_text(const char *command, const char *path, weft_error *err);

#endif
