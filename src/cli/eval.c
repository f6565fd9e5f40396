#include "cli/eval.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static const option own_options[] = {
    {.names = "--reference",
     .type = OPTION_STRING,
     .at = offsetof(eval_values, reference),
     .metavar = "FILE",
     .help = "golden: logits of another framework; ppl: stored log-probabilities (.safetensors)"},
    {.names = "--tolerance",
     .type = OPTION_FLOAT,
     .at = offsetof(eval_values, tolerance),
     .metavar = "X",
     .help = "golden: logits may be X off; greedy steps count while the reference's first two are "
             "2 X apart",
     .min = 0,
     .max = 1000},
    {.names = "--window",
     .type = OPTION_COUNT,
     .at = offsetof(eval_values, window),
     .metavar = "N",
     .help = "ppl FILE: tokens per piece; the second half of each is scored",
     .min = 2,
     .max = 1 << 20},
    {.names = "--json",
     .type = OPTION_FLAG,
     .at = offsetof(eval_values, json),
     .help = "prints one JSON object"},
    {.names = NULL},
};

static const option_section sections[] = {
    {"Model", cli_model_options, offsetof(eval_values, model)},
    {"Evaluation", own_options, 0},
    {"Topology", cli_topology_options, offsetof(eval_values, engine)},
    {"Engine", cli_engine_options, offsetof(eval_values, engine)},
    {NULL, NULL, 0},
};

static void defaults(void *v_) {
    eval_values *v = v_;
    weft_engine_params_default(&v->engine);
    v->engine.max_num_seqs = 8;
    v->tolerance = 2e-4f;
    v->window = 512;
}

/* What does not belong to the kind is refused, not ignored. */
static weft_status arguments_check(const eval_values *v, const option_list *args, weft_error *err) {
    eval_values d = {0};
    defaults(&d);
    const char *kind = args->item[0];
    bool golden = strcmp(kind, "golden") == 0, ppl = strcmp(kind, "ppl") == 0;
    if (!golden && !ppl)
        return error_set(err, WEFT_ERR_USAGE, "eval %.40s: expected golden or ppl", kind);
    if (golden && (!v->reference || args->n != 1))
        return error_set(err, WEFT_ERR_USAGE,
                         "eval golden takes --reference FILE and nothing else");
    if (ppl && (v->reference != NULL) == (args->n == 2))
        return error_set(err, WEFT_ERR_USAGE, "eval ppl takes a text file or --reference FILE");
    if (ppl && v->tolerance != d.tolerance)
        return error_set(err, WEFT_ERR_USAGE, "--tolerance: eval ppl has no use for it");
    if (v->reference && v->window != d.window)
        return error_set(err, WEFT_ERR_USAGE, "--window: only eval ppl FILE has a use for it");
    if (v->reference && access(v->reference, R_OK) != 0)
        return error_set(err, WEFT_ERR_USAGE, "--reference: cannot open %s: %s", v->reference,
                         strerror(errno));
    return WEFT_OK;
}

static int run_kind(const eval_values *v, weft_model *model, const option_list *args) {
    bool golden = strcmp(args->item[0], "golden") == 0;
    if (golden && v->reference && args->n == 1)
        return eval_golden(v, model);
    if (!golden && v->reference && args->n == 1)
        return eval_ppl_reference(v, model);
    return eval_ppl_file(v, model, args->item[1]);
}

static int run(const void *v_, const option_list *args) {
    const eval_values *v = v_;
    weft_model *model = NULL;
    weft_model_info info = {0};
    weft_error err = {0};
    weft_status s = arguments_check(v, args, &err);
    if (s == WEFT_OK)
        s = weft_model_open(v->model.path, &model, &err);
    if (s == WEFT_OK)
        weft_model_get_info(model, &info);
    if (s == WEFT_OK && !v->reference && !info.has_text)
        s = cli_no_text("eval ppl FILE", v->model.path, &err);
    int rc = s == WEFT_OK ? run_kind(v, model, args) : cli_fail(&err);
    weft_model_close(model);
    return rc;
}

const cli_command cli_eval = {
    .options = {.name = "eval",
                .brief = "measures a model: golden (logits of another framework), ppl (perplexity)",
                .args = "golden|ppl [FILE]",
                .arg_words = "golden ppl",
                .min_args = 1,
                .max_args = 2,
                .sections = sections,
                .values_bytes = sizeof(eval_values),
                .defaults = defaults,
                .notes =
                    "Exit: 1 when golden finds a logit off by more than --tolerance or another "
                    "greedy token.\n"},
    .run = run,
};
