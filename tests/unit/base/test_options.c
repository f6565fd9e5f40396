/* The options table: every type, every form, every way to be wrong, and what is generated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/options.h"

typedef struct inner {
    int32_t tp;
    int32_t dtype;
    uint64_t bytes;
} inner;

typedef struct values {
    uint64_t guard;
    const char *model, *prompt;
    int32_t n;
    bool json;
    float temperature, top_p;
    uint64_t seed;
    option_list stop;
    inner in;
    uint64_t guard_end;
} values;

static const option own[] = {
    {.names = "-m --model",
     .type = OPTION_STRING,
     .at = offsetof(values, model),
     .metavar = "MODEL",
     .help = "the model",
     .required = true},
    {.names = "-p --prompt",
     .type = OPTION_STRING,
     .at = offsetof(values, prompt),
     .metavar = "TEXT",
     .help = "the prompt",
     .zero = "standard input"},
    {.names = "-n --max-tokens",
     .type = OPTION_COUNT,
     .at = offsetof(values, n),
     .metavar = "N",
     .help = "longest answer",
     .min = 1,
     .max = INT32_MAX},
    {.names = "--json", .type = OPTION_FLAG, .at = offsetof(values, json), .help = "as JSON"},
    {.names = "--temperature",
     .type = OPTION_FLOAT,
     .at = offsetof(values, temperature),
     .metavar = "T",
     .help = "flattens",
     .min = 0,
     .max = INT32_MAX},
    {.names = "--top-p",
     .type = OPTION_FLOAT,
     .at = offsetof(values, top_p),
     .metavar = "P",
     .help = "cuts",
     .above_min = true,
     .max = 1},
    {.names = "--seed",
     .type = OPTION_U64,
     .at = offsetof(values, seed),
     .metavar = "N",
     .help = "of the noise"},
    {.names = "--stop",
     .type = OPTION_LIST,
     .at = offsetof(values, stop),
     .metavar = "TEXT",
     .help = "ends the answer"},
    {.names = NULL},
};
static const option engine[] = {
    {.names = "--tp -tp --tensor-parallel-size",
     .type = OPTION_INT,
     .at = offsetof(inner, tp),
     .metavar = "N",
     .help = "ranks",
     .min = 1,
     .max = 64},
    {.names = "--kv-cache-dtype",
     .type = OPTION_CHOICE,
     .at = offsetof(inner, dtype),
     .help = "type of the cache",
     .choices = "f16 f32 bf16"},
    {.names = "--kv-cache-memory",
     .type = OPTION_SIZE,
     .at = offsetof(inner, bytes),
     .metavar = "SIZE",
     .help = "of all ranks",
     .zero = "a quarter of what is free"},
    {.names = NULL},
};
static const option_section sections[] = {
    {"Own", own, 0}, {"Engine", engine, offsetof(values, in)}, {NULL, NULL, 0}};

static void set_defaults(void *v) {
    values *x = v;
    x->n = 128;
    x->in.tp = 1;
    x->in.dtype = 2;
}

static const option_command command = {.name = "run",
                                       .brief = "completes a prompt",
                                       .args = "[FILE]",
                                       .max_args = 1,
                                       .sections = sections,
                                       .values_bytes = sizeof(values),
                                       .defaults = set_defaults};

typedef struct outcome {
    values v;
    option_list args;
    bool help;
    weft_status st;
    weft_error err;
} outcome;

/* Parses up to 12 arguments, NULL-ended. */
static void parse(outcome *o, const char *const *argv) {
    int argc = 0;
    char *copy[16];
    for (; argv[argc]; argc++) {
        copy[argc] = (char *)(uintptr_t)argv[argc];
    }
    memset(o, 0, sizeof *o);
    o->v.guard = o->v.guard_end = 0x5a5a5a5a5a5a5a5aULL;
    o->st = options_parse(&command, argc, copy, &o->v, &o->args, &o->help, &o->err);
    assert_true(o->v.guard == 0x5a5a5a5a5a5a5a5aULL);
    assert_true(o->v.guard_end == 0x5a5a5a5a5a5a5a5aULL);
}
#define PARSE(o, ...) parse(&(o), (const char *const[]){__VA_ARGS__, NULL})

static void finish(outcome *o) {
    options_free(&command, &o->v, &o->args);
    assert_null(o->v.stop.item);
    assert_null(o->args.item);
}

static void fails_with(const char *const *argv, const char *want) {
    outcome o;
    parse(&o, argv);
    assert_int_equal(o.st, WEFT_ERR_USAGE);
    assert_string_equal(o.err.text, want);
    finish(&o);
}
#define FAILS(want, ...) fails_with((const char *const[]){__VA_ARGS__, NULL}, want)

static void forms_and_types(void **state) {
    (void)state;
    outcome o;
    PARSE(o, "-m", "a.gguf", "--tp=4", "-n", "2k", "--json", "--temperature", "0.5", "--seed",
          "18446744073709551615", "--stop", "a", "--stop=b=c", "--kv-cache-dtype", "f32",
          "--kv-cache-memory=3G");
    assert_int_equal(o.st, WEFT_OK);
    assert_string_equal(o.v.model, "a.gguf");
    assert_int_equal(o.v.in.tp, 4);
    assert_int_equal(o.v.n, 2048);
    assert_true(o.v.json);
    assert_true(o.v.temperature == 0.5f);
    assert_true(o.v.seed == UINT64_MAX);
    assert_int_equal(o.v.stop.n, 2);
    assert_string_equal(o.v.stop.item[0], "a");
    assert_string_equal(o.v.stop.item[1], "b=c");
    assert_int_equal(o.v.in.dtype, 1);
    assert_true(o.v.in.bytes == 3ULL << 30);
    assert_int_equal(o.args.n, 0);
    finish(&o);
}

static void defaults_stay(void **state) {
    (void)state;
    outcome o;
    PARSE(o, "--model=m", "-tp", "2");
    assert_int_equal(o.st, WEFT_OK);
    assert_int_equal(o.v.n, 128);
    assert_int_equal(o.v.in.tp, 2);
    assert_int_equal(o.v.in.dtype, 2);
    assert_null(o.v.prompt);
    finish(&o);
}

static void ends_and_arguments(void **state) {
    (void)state;
    outcome o;
    PARSE(o, "-m", "m", "--", "--tp");
    assert_int_equal(o.st, WEFT_OK);
    assert_int_equal(o.args.n, 1);
    assert_string_equal(o.args.item[0], "--tp");
    finish(&o);
    PARSE(o, "-", "-m", "m"); /* a lone '-' is an argument */
    assert_int_equal(o.st, WEFT_OK);
    assert_string_equal(o.args.item[0], "-");
    finish(&o);
    PARSE(o, "-p", "", "-m", "m"); /* an empty text is a text */
    assert_int_equal(o.st, WEFT_OK);
    assert_string_equal(o.v.prompt, "");
    finish(&o);
    PARSE(o, "-p", "- item", "-m", "m");
    assert_int_equal(o.st, WEFT_OK);
    assert_string_equal(o.v.prompt, "- item");
    finish(&o);
    PARSE(o, "-p=--json", "-m", "m");
    assert_int_equal(o.st, WEFT_OK);
    assert_string_equal(o.v.prompt, "--json");
    assert_false(o.v.json);
    finish(&o);
    PARSE(o, "--help", "--nonsense"); /* nothing after --help is looked at, nothing is required */
    assert_int_equal(o.st, WEFT_OK);
    assert_true(o.help);
    finish(&o);
}

static void wrong_numbers(void **state) {
    (void)state;
    static const char *const whole[] = {"0",
                                        "65",
                                        "-1",
                                        "",
                                        " 1",
                                        "1 ",
                                        "+1",
                                        "0x1",
                                        "1.0",
                                        "one",
                                        "1k",
                                        "4294967297",
                                        "99999999999999999999"};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        outcome o;
        PARSE(o, "-m", "m", "--tp", whole[i]);
        assert_int_equal(o.st, WEFT_ERR_USAGE);
        assert_non_null(strstr(o.err.text, "--tp"));
        assert_non_null(strstr(o.err.text, "from 1 to 64"));
        assert_int_equal(o.v.in.tp, 1);
        finish(&o);
    }
    static const char *const size[] = {
        "-1", "1.5G", "4GB", "G", "16777216T", "18446744073709551616", ""};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        outcome o;
        PARSE(o, "-m", "m", "--kv-cache-memory", size[i]);
        assert_int_equal(o.st, WEFT_ERR_USAGE);
        finish(&o);
    }
    static const char *const number[] = {"nan", "inf", "-0.5", "1e99", "0x1p3",
                                         " 1",  "",    "1,5",  "e"};
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        outcome o;
        PARSE(o, "-m", "m", "--temperature", number[i]);
        assert_int_equal(o.st, WEFT_ERR_USAGE);
        finish(&o);
    }
    outcome o;
    PARSE(o, "-m", "m", "-n", "1m", "--kv-cache-memory", "16777215t", "--temperature", "1e-3");
    assert_int_equal(o.st, WEFT_OK);
    assert_int_equal(o.v.n, 1 << 20);
    assert_true(o.v.in.bytes == 16777215ULL << 40);
    assert_true(o.v.temperature == 1e-3f);
    finish(&o);
}

static void errors_name_what_is_right(void **state) {
    (void)state;
    FAILS("--tp 0 is wrong; expected a whole number from 1 to 64", "-m", "m", "--tp", "0");
    FAILS("--tp '' is wrong; expected a whole number from 1 to 64", "-m", "m", "--tp=");
    FAILS("-n 2q is wrong; expected a whole number from 1 to 2147483647 (k, M, G allowed)", "-m",
          "m", "-n", "2q");
    FAILS("-n 99999999999 is wrong; expected a whole number from 1 to 2147483647 (k, M, G allowed)",
          "-m", "m", "-n", "99999999999");
    FAILS("--top-p 0 is wrong; expected a number above 0 and up to 1", "-m", "m", "--top-p", "0");
    FAILS("--top-p 1.5 is wrong; expected a number above 0 and up to 1", "-m", "m", "--top-p=1.5");
    FAILS("--kv-cache-dtype f8 is wrong; expected one of: f16 f32 bf16", "-m", "m",
          "--kv-cache-dtype", "f8");
    FAILS("--json takes no value, but 1 was given", "-m", "m", "--json=1");
    FAILS("--tensor-parallel-size is given twice; once is right", "-m", "m", "--tp", "2",
          "--tensor-parallel-size", "2");
    FAILS("run needs -m MODEL", "--json");
    FAILS("run: unexpected argument b; it takes [FILE]", "-m", "m", "a", "b");
    FAILS("-p needs a value", "-m", "m", "-p");
    FAILS("-p needs a value, but the option --json follows; to give that text as the value write "
          "-p=--json",
          "-m", "m", "-p", "--json");
}

static void nearest_option(void **state) {
    (void)state;
    FAILS("run has no option --tensor-paralel-size; did you mean --tensor-parallel-size?", "-m",
          "m", "--tensor-paralel-size", "2");
    FAILS("run has no option --max_tokens; did you mean --max-tokens?", "--max_tokens=3");
    FAILS("run has no option --sotp; did you mean --stop?", "--sotp", "x");
    FAILS("run has no option --temp; did you mean --temperature?", "--temp", "0");
    FAILS("run has no option --xyzzy; its --help lists all", "--xyzzy");
    static const char *const words[] = {"run", "check", "tokenize"};
    assert_string_equal(options_nearest("rnu", words, 3), "run");
    assert_string_equal(options_nearest("tokenise", words, 3), "tokenize");
    assert_string_equal(options_nearest("chk", words, 3), "check");
    assert_null(options_nearest("serve", words, 3));
    assert_null(options_nearest("", words, 3));
    char *longest = malloc(100001);
    assert_non_null(longest);
    memset(longest, 'r', 100000);
    longest[100000] = '\0';
    assert_null(options_nearest(longest, words, 3));
    free(longest);
}

/* ---- generated texts ---- */

static const option_command *const commands[] = {&command};
static const option_program program = {.name = "weft",
                                       .version = "1.2",
                                       .brief = "one-liner",
                                       .commands = commands,
                                       .n_command = 1,
                                       .notes = "The end.\n",
                                       .manual = ".SH EXIT STATUS\nnone\n"};

static char *help_of(int32_t width) {
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    assert_non_null(f);
    options_print_help(f, &program, &command, width);
    fclose(f);
    return text;
}

static void help_lists_all(void **state) {
    (void)state;
    for (int32_t width = 80; width <= 100; width += 20) {
        char *text = help_of(width);
        for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
            assert_true(strcspn(line, "\n") <= (size_t)width);
        }
        assert_non_null(strstr(text, "Usage: weft run -m MODEL [options] [FILE]\n"));
        assert_non_null(strstr(text, "  -m, --model MODEL           the model (required)\n"));
        assert_non_null(strstr(text, "longest answer [default: 128]"));
        assert_non_null(strstr(text, "[default: standard input]"));
        assert_non_null(strstr(text, "  --tp, -tp, --tensor-parallel-size N\n"));
        assert_non_null(strstr(text, "--kv-cache-dtype f16|f32|bf16"));
        assert_non_null(strstr(text, "[default: bf16]"));
        assert_non_null(strstr(text, "[default: a quarter of what is free]"));
        assert_non_null(strstr(text, "ends the answer; may be repeated\n"));
        assert_non_null(strstr(text, "flattens [default: 0]"));
        assert_non_null(strstr(text, "-h, --help"));
        free(text);
    }
}

static void completion_and_man(void **state) {
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    assert_non_null(f);
    options_print_bash(f, &program);
    fclose(f);
    assert_non_null(strstr(text, "run:-m|run:--model) compopt -o filenames"));
    assert_non_null(strstr(text, "run:--kv-cache-dtype) _weft_offer -W 'f16 f32 bf16'"));
    assert_non_null(strstr(text, "complete -o default -F _weft weft\n"));
    free(text);
    f = open_memstream(&text, &n);
    assert_non_null(f);
    options_print_man(f, &program);
    fclose(f);
    assert_non_null(strstr(text, ".TH WEFT 1 \"\" \"weft 1.2\""));
    assert_non_null(strstr(text, "weft \\- one\\-liner\n"));
    assert_non_null(strstr(text, ".TP\n.B \\-m, \\-\\-model MODEL\nthe model (required)\n"));
    assert_non_null(strstr(text, ".SH EXIT STATUS\nnone\n"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_and_types),
        cmocka_unit_test(defaults_stay),
        cmocka_unit_test(ends_and_arguments),
        cmocka_unit_test(wrong_numbers),
        cmocka_unit_test(errors_name_what_is_right),
        cmocka_unit_test(nearest_option),
        cmocka_unit_test(help_lists_all),
        cmocka_unit_test(completion_and_man),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
