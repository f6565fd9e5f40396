/* What the program writes about itself: shell completion and man page, for the installation. */
#include <string.h>

#include "cli/cli.h"

static const option_section no_options[] = {{NULL, NULL, 0}};

static int run_completion(const void *values, const option_list *args) {
    (void)values;
    if (strcmp(args->item[0], "bash") != 0) {
        return cli_fail_text(WEFT_ERR_USAGE, "completion %.60s is not supported; bash is",
                             args->item[0]);
    }
    options_print_bash(stdout, cli_program());
    return 0;
}

const cli_command cli_completion = {
    .options = {.name = "completion",
                .brief = "prints the completion script of a shell",
                .args = "bash",
                .arg_words = "bash",
                .min_args = 1,
                .max_args = 1,
                .sections = no_options},
    .run = run_completion,
};

static int run_man(const void *values, const option_list *args) {
    (void)values;
    (void)args;
    options_print_man(stdout, cli_program());
    return 0;
}

const cli_command cli_man = {
    .options = {.name = "man", .brief = "prints the man page", .sections = no_options},
    .run = run_man,
};
