/* One table per command says everything about its options; parsing, --help, shell completion and
 * the man page are made from it.
 *
 * An option writes one field of the command's values struct, found by its offset. Defaults are the
 * values that the struct holds before parsing, and --help prints them from there: no default is
 * written twice.
 *
 *   typedef struct run_values { weft_engine_params engine; const char *prompt; } run_values;
 *   section {"Input", input_options, 0}            option.at = offsetof(run_values, prompt)
 *   section {"Engine", engine_options, offsetof(run_values, engine)}
 *                                                  option.at = offsetof(weft_engine_params, tp)
 *
 * Accepted forms: `--tp 4`, `--tp=4`, `-n 4`, `-n=4`. `--` ends the options. -h and --help belong
 * to
 * every command. An option stands once, but for OPTION_LIST: a second one would silently win over
 * the first. */
#ifndef WEFT_BASE_OPTIONS_H
#define WEFT_BASE_OPTIONS_H

#include <stdio.h>

#include "base/status.h"

typedef enum option_type {
    OPTION_FLAG,   /* bool, no value */
    OPTION_INT,    /* int32_t in [min, max] */
    OPTION_COUNT,  /* the same, takes k, M, G (1024-based) */
    OPTION_SIZE,   /* uint64_t bytes, takes k, M, G, T (1024-based) */
    OPTION_U64,    /* uint64_t */
    OPTION_FLOAT,  /* float in [min, max], finite */
    OPTION_STRING, /* const char *, borrowed from argv */
    OPTION_CHOICE, /* int32_t: index into the words of `choices` */
    OPTION_LIST    /* option_list, one item per use */
} option_type;

typedef struct option_list {
    const char **item; /* [n], the array owned by the values (options_free), the texts by argv */
    int32_t n;
} option_list;

typedef struct option {
    const char *names; /* space between; shortest first: "-m --model" */
    option_type type;
    size_t at;           /* of the field, from the section's base */
    const char *metavar; /* NULL for flags and choices */
    const char *help;    /* one sentence, no full stop */
    double min, max;     /* OPTION_INT, _COUNT, _FLOAT */
    bool above_min;      /* OPTION_FLOAT: min itself is not taken */
    /* OPTION_CHOICE: words in the order of the enum, space between; OPTION_STRING: what the shell
     * completes. */
    const char *choices;
    const char *zero; /* shown as the default when it is 0 or NULL; NULL: "0", or nothing */
    bool required;
    const char *needs;    /* a name of the option without which this one would do nothing */
    const char *excludes; /* a name of the option beside which this one would do nothing */
} option;

/* A table of options (ended by names == NULL), and where in the values its struct begins. */
typedef struct option_section {
    const char *title;
    const option *options;
    size_t at;
} option_section;

typedef struct option_command {
    const char *name;
    const char *brief;              /* one line, starts with a verb */
    const char *args;               /* metavars of the positional arguments; NULL: none */
    const char *arg_words;          /* that the first one may be, for the shell; NULL: anything */
    int32_t min_args, max_args;     /* max_args INT32_MAX: any number */
    const option_section *sections; /* ended by title == NULL */
    size_t values_bytes;
    void (*defaults)(void *values); /* fills defaults into zeroed values; NULL: all zero */
    const char *notes;              /* shown after the options of --help; NULL: none */
} option_command;

typedef struct option_program {
    const char *name, *version, *brief;
    const option_command *const *commands; /* [n_command] */
    int32_t n_command;
    const char *notes;  /* end of the program's --help */
    const char *manual; /* troff of the man page after the commands */
} option_program;

/* Parses argv[0 .. argc) (without program and command name) into values (zeroed; defaults are
 * filled in first) and positional arguments. *help: --help was met, and nothing after it was looked
 * at. WEFT_ERR_USAGE names the option, its value and what would be right. Both out-structs are to
 * be freed with options_free in either case. */
weft_status options_parse(const option_command *c, int argc, char *const *argv, void *values,
                          option_list *args, bool *help, weft_error *err);
void options_free(const option_command *c, void *values, option_list *args);

/* Digits, then one of the suffixes ("KMG": each 1024 times the one before, small letters too).
 * Nothing else: no sign, no space, no 0x. False: text [n] is something else, or past 64 bits. */
bool options_read_whole(const char *text, size_t n, const char *suffixes, uint64_t *out);

/* The word nearest to `typed` in a list of n; NULL when none is near. A word that starts with
 * `typed` is near. */
const char *options_nearest(const char *typed, const char *const *words, int32_t n);

/* --help of a command and of the program; lines are at most `width` characters. */
void options_print_help(FILE *out, const option_program *p, const option_command *c, int32_t width);
void options_print_program_help(FILE *out, const option_program *p, int32_t width);
/* Bash completion and man page of the whole program. */
void options_print_bash(FILE *out, const option_program *p);
void options_print_man(FILE *out, const option_program *p);

#endif
