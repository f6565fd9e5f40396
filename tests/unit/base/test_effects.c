/* Options that would do nothing are refused: `needs` and `excludes` of the options table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/options.h"

typedef struct values {
    int32_t top;
    bool json, all;
    const char *list;
} values;

static const option table[] = {
    {.names = "--json", .type = OPTION_FLAG, .at = offsetof(values, json), .help = "as JSON"},
    {.names = "-t --top",
     .type = OPTION_INT,
     .at = offsetof(values, top),
     .metavar = "N",
     .help = "so many",
     .max = 20,
     .needs = "--json"},
    {.names = "--list",
     .type = OPTION_STRING,
     .at = offsetof(values, list),
     .metavar = "LIST",
     .help = "these"},
    {.names = "--all",
     .type = OPTION_FLAG,
     .at = offsetof(values, all),
     .help = "every one",
     .excludes = "--list"},
    {.names = NULL},
};
static const option_section sections[] = {{"Options", table, 0}, {NULL, NULL, 0}};
static const option_command command = {
    .name = "try", .brief = "tries", .sections = sections, .values_bytes = sizeof(values)};

/* Space-separated arguments. */
static weft_status parse(const char *line, weft_error *err) {
    char copy[128], *argv[8], *save = NULL;
    int argc = 0;
    strcpy(copy, line);
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    values v = {0};
    option_list args;
    bool help = false;
    weft_status s = options_parse(&command, argc, argv, &v, &args, &help, err);
    options_free(&command, &v, &args);
    return s;
}

static void effects(void **state) {
    (void)state;
    static const struct {
        const char *line, *part; /* part of the message; NULL: all right */
    } cases[] = {
        {"", NULL},
        {"--top 3 --json", NULL},
        {"--json -t 3", NULL},
        {"--top 3", "--top has an effect only together with --json"},
        {"-t 0", "--top has an effect only together with --json"},
        {"--all", NULL},
        {"--list a", NULL},
        {"--all --list a", "--all has no effect together with --list"},
        {"--list a --all", "--all has no effect together with --list"},
        {"--top 3 --help", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weft_error err = {0};
        weft_status s = parse(cases[i].line, &err);
        assert_int_equal(s, cases[i].part ? WEFT_ERR_USAGE : WEFT_OK);
        if (cases[i].part && !strstr(err.text, cases[i].part))
            fail_msg("%s: %s", cases[i].line, err.text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(effects)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
