/* The program: picks the command, parses its options, runs it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"

/* In the order of --help. */
static const cli_command *const commands[] = {
    &cli_run,  &cli_serve,   &cli_check,    &cli_plan,       &cli_bench,
    &cli_eval, &cli_inspect, &cli_tokenize, &cli_completion, &cli_man,
};
enum { N_COMMAND = sizeof commands / sizeof *commands };

static const char notes[] =
    "weft COMMAND --help lists the options of a command with their defaults.\n"
    "Exit: 0 fine, 1 a check or an evaluation found a difference, 2 wrong use or illegal set-up, "
    "3 unusable model file, 4 not enough memory, 5 a rank, the transport, an input or an output "
    "failed, 130 interrupted.\n";

static const char manual[] =
    ".SS weft help [COMMAND]\nshows the commands, or the options of one; so does "
    "\\fB\\-h\\fR or \\fB\\-\\-help\\fR\n"
    ".SS weft \\-\\-version\nshows the version\n"
    ".SH EXIT STATUS\n"
    ".TP\n.B 0\nfine\n"
    ".TP\n.B 1\na check or an evaluation found a difference\n"
    ".TP\n.B 2\nwrong use or an illegal set\\-up\n"
    ".TP\n.B 3\nthe model file is not usable\n"
    ".TP\n.B 4\nnot enough memory\n"
    ".TP\n.B 5\na rank, the transport, an input or an output failed\n"
    ".TP\n.B 130\ninterrupted\n"
    ".SH ENVIRONMENT\n"
    ".TP\n.B NO_COLOR\nwhen set and not empty, nothing is coloured\n"
    ".TP\n.B WEFT_LOG\nlog level: quiet, error, warn (default; of serve: info), info, debug\n"
    ".TP\n.B WEFT_ISA\ninstruction set of the kernels where \\-\\-isa names none\n"
    ".TP\n.B WEFT_API_KEY\na key that clients of serve must send, beside those of "
    "\\-\\-api\\-key\n";

const option_program *cli_program(void) {
    static const option_command *list[N_COMMAND];
    static option_program program = {.name = "weft",
                                     .version = WEFT_VERSION,
                                     .brief = "one prompt, many ranks, the same bytes",
                                     .commands = list,
                                     .n_command = N_COMMAND,
                                     .notes = notes,
                                     .manual = manual};
    for (int32_t i = 0; i < N_COMMAND; i++) {
        list[i] = &commands[i]->options;
    }
    return &program;
}

static const cli_command *find_command(const char *name) {
    for (int32_t i = 0; i < N_COMMAND; i++) {
        if (strcmp(commands[i]->options.name, name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

static int unknown_command(const char *name) {
    static const char *const dashed[] = {"--version", "--help"};
    const char *words[N_COMMAND + 1] = {"help"};
    for (int32_t i = 0; i < N_COMMAND; i++) {
        words[i + 1] = commands[i]->options.name;
    }
    bool is_dashed = name[0] == '-';
    const char *near =
        is_dashed ? options_nearest(name, dashed, 2) : options_nearest(name, words, N_COMMAND + 1);
    if (near) {
        return cli_fail_text(WEFT_ERR_USAGE, "no %s %.60s; did you mean %s?",
                             is_dashed ? "option" : "command", name, near);
    }
    if (is_dashed) {
        return cli_fail_text(WEFT_ERR_USAGE,
                             "no option %.60s here: a command comes first, and then its options; "
                             "weft --help lists the commands",
                             name);
    }
    return cli_fail_text(WEFT_ERR_USAGE, "no command %.60s; weft --help lists them", name);
}

static int run_command(const cli_command *c, int argc, char **argv) {
    void *values = calloc(1, c->options.values_bytes ? c->options.values_bytes : 1);
    if (!values) {
        return cli_fail_text(WEFT_ERR_MEMORY, "no memory for the command line");
    }
    option_list args;
    bool help = false;
    weft_error err;
    int rc = 0;
    if (options_parse(&c->options, argc, argv, values, &args, &help, &err) != WEFT_OK) {
        rc = cli_fail(&err);
    } else if (help) {
        options_print_help(stdout, cli_program(), &c->options, cli_width(stdout));
    } else {
        rc = c->run(values, &args);
    }
    options_free(&c->options, values, &args);
    free(values);
    return rc;
}

static bool is_help(const char *word) {
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        options_print_program_help(stderr, cli_program(), cli_width(stderr));
        return status_exit_code(WEFT_ERR_USAGE);
    }
    const char *name = argv[1];
    bool help = is_help(name);
    if (help && (argc == 2 || (argc == 3 && is_help(argv[2])))) {
        options_print_program_help(stdout, cli_program(), cli_width(stdout));
        return 0;
    }
    bool version = strcmp(name, "--version") == 0;
    if (argc > (help ? 3 : 2) && (help || version)) {
        return cli_fail_text(WEFT_ERR_USAGE, "%s: unexpected argument %.60s", name,
                             argv[help ? 3 : 2]);
    }
    if (version) {
        puts("weft " WEFT_VERSION);
        return 0;
    }
    const cli_command *c = find_command(help ? argv[2] : name);
    if (!c) {
        return unknown_command(help ? argv[2] : name);
    }
    if (help) {
        options_print_help(stdout, cli_program(), &c->options, cli_width(stdout));
        return 0;
    }
    return run_command(c, argc - 2, argv + 2);
}

int main(int argc, char **argv) {
    cli_interrupt_install();
    int rc = log_environment_valid()
                 ? dispatch(argc, argv)
                 : cli_fail_text(WEFT_ERR_USAGE,
                                 "WEFT_LOG=%.60s: expected quiet, error, warn, info or debug",
                                 getenv("WEFT_LOG"));
    /* A full disk shows only when the last bytes leave the buffer. */
    if ((fflush(stdout) != 0 || ferror(stdout)) && rc == 0) {
        rc = cli_fail_text(WEFT_ERR_IO, "cannot write to standard output: %s", strerror(errno));
    }
    return rc;
}
