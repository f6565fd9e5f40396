/* weft plan: what a set-up is and what it does in one step, without running it. */
#include "cli/plan.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/common.h"
#include "cli/json.h"

typedef struct values {
    cli_model_values model;
    weft_engine_params engine;
    const char *prompts, *decode, *svg;
    bool json;
} values;

static const option own_options[] = {
    {.names = "--prompts",
     .type = OPTION_STRING,
     .at = offsetof(values, prompts),
     .metavar = "LIST",
     .help = "lengths of fresh prompts in the step, as 100,37,9",
     .zero = "100, or none with --decode"},
    {.names = "--decode",
     .type = OPTION_STRING,
     .at = offsetof(values, decode),
     .metavar = "LIST",
     .help = "requests that decode in the step, by the tokens they have in the cache, as 64,500",
     .zero = "64, or none with --prompts"},
    {.names = "--svg",
     .type = OPTION_STRING,
     .at = offsetof(values, svg),
     .metavar = "FILE",
     .help = "draws rows and pages into a file too"},
    {.names = "--json",
     .type = OPTION_FLAG,
     .at = offsetof(values, json),
     .help = "prints one JSON object"},
    {.names = NULL},
};

static const option_section sections[] = {
    {"Model", cli_model_options, offsetof(values, model)},
    {"Plan", own_options, 0},
    {"Topology", cli_topology_options, offsetof(values, engine)},
    {"Engine", cli_engine_options, offsetof(values, engine)},
    {NULL, NULL, 0},
};

static void defaults(void *v_) {
    values *v = v_;
    weft_engine_params_default(&v->engine);
}

enum { MAX_REQUEST = 4096 };

/* "100,37,9" into a malloc'ed list. */
static weft_status sizes_parse(const char *name, const char *text, int32_t **out, int32_t *n,
                               weft_error *err) {
    int32_t *list = malloc(MAX_REQUEST * sizeof *list);
    if (!list)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %s", name);
    int32_t count = 0;
    weft_status s;
    const char *p = text;
    do {
        s = count < MAX_REQUEST
                ? cli_next_size(name, text, &p, &list[count], err)
                : error_set(err, WEFT_ERR_USAGE, "%s: more than %d", name, MAX_REQUEST);
        count++;
    } while (s == WEFT_OK && *p);
    if (s != WEFT_OK) {
        free(list);
        return s;
    }
    *out = list;
    *n = count;
    return WEFT_OK;
}

static weft_status ask_parse(const values *v, int32_t **prompt, int32_t **decode, explain_ask *ask,
                             weft_error *err) {
    bool neither = !v->prompts && !v->decode;
    const char *prompts = neither ? "100" : v->prompts, *decodes = neither ? "64" : v->decode;
    weft_status s = WEFT_OK;
    if (prompts)
        s = sizes_parse("--prompts", prompts, prompt, &ask->n_prompt, err);
    if (s == WEFT_OK && decodes)
        s = sizes_parse("--decode", decodes, decode, &ask->n_decode, err);
    ask->prompt = *prompt;
    ask->decode = *decode;
    return s;
}

char plan_digit(int32_t rank) {
    static const char digit[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@#";
    static_assert(sizeof digit == TOPO_MAX_WORLD + 1, "a digit for every rank");
    return digit[rank];
}

void plan_request_name(const explain_request *r, char *out, size_t cap) {
    snprintf(out, cap, "%s %d", r->decode ? "decode" : "prompt", r->size);
}

static int svg_write(const char *path, const explain *e, const char *model) {
    FILE *f = fopen(path, "w");
    if (!f)
        return cli_fail_text(WEFT_ERR_USAGE, "--svg %s: %s", path, strerror(errno));
    plan_print_svg(f, e, model);
    bool failed = ferror(f) != 0;
    if (fclose(f) != 0 || failed)
        return cli_fail_text(WEFT_ERR_IO, "--svg %s: cannot write: %s", path, strerror(errno));
    return 0;
}

static int run(const void *v_, const option_list *args) {
    (void)args;
    const values *v = v_;
    int32_t *prompt = NULL, *decode = NULL;
    model_desc *desc = NULL;
    explain *e = NULL;
    explain_ask ask = {0};
    weft_error err = {0};
    int rc = 0;
    weft_status s = ask_parse(v, &prompt, &decode, &ask, &err);
    if (s == WEFT_OK)
        s = model_desc_load(v->model.path, &desc, &err);
    if (s == WEFT_OK)
        s = explain_open(desc, &v->engine, &ask, &e, &err);
    if (s != WEFT_OK) {
        rc = cli_fail(&err);
    } else {
        const char *model = desc->config.name;
        rc = v->svg ? svg_write(v->svg, e, model) : 0;
        if (rc == 0 && v->json)
            rc = cli_json_print(plan_make_json(e, model));
        else if (rc == 0)
            plan_print_text(stdout, e, model, cli_width(stdout), cli_color(stdout));
    }
    explain_close(e);
    model_desc_close(desc);
    free(decode);
    free(prompt);
    return rc;
}

const cli_command cli_plan = {
    .options =
        {.name = "plan",
         .brief = "explains ranks, memory and one step of a set-up without running it",
         .sections = sections,
         .values_bytes = sizeof(values),
         .defaults = defaults,
         .notes = "Examples:\n"
                  "  weft plan -m MODEL --pcp 2 --dcp 2\n"
                  "  weft plan -m MODEL --tp 3 --pcp 4 --dcp 2 --prompts 2000 --svg plan.svg\n"
                  "  weft plan -m MODEL --pcp 2 --dcp 2 --decode 64,500,7000 --cp-exchange q\n"
                  "Exit: 2 and the reason when the set-up is illegal or a request does not fit.\n"},
    .run = run,
};
