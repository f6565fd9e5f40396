/* weft check: the same requests on a list of topologies; the bytes of every logits row are
 * compared. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/common.h"
#include "cli/json.h"
#include "cli/suite.h"
#include "engine/setup.h"

typedef struct values {
    cli_model_values model;
    weft_engine_params engine;
    const char *suite, *topologies, *fault;
    int32_t max_ranks, max_tokens;
    uint64_t seed;
    bool each_exchange, json;
} values;

static const option check_options[] = {
    {.names = "-m --model",
     .type = OPTION_STRING,
     .at = offsetof(values, model.path),
     .metavar = "MODEL",
     .help = CLI_MODEL_HELP " (required, but for --fault list)"},
    {.names = "--suite",
     .type = OPTION_STRING,
     .at = offsetof(values, suite),
     .metavar = "NAME",
     .choices = "cp mixed random prefix",
     .help = "cp (6 prompts), mixed (2 decode while 6 arrive), random (draws lengths, arrivals "
             "and, past the reference, sequences, budgets, pools and splits) or prefix (the same "
             "with prompts that begin alike; the reference has no prefix cache)"},
    {.names = "--topologies",
     .type = OPTION_STRING,
     .at = offsetof(values, topologies),
     .metavar = "LIST",
     .help = "tp1pcp1dcp1,tp1pcp2dcp2:kv,...; the first is the reference, :q and :kv force the "
             "exchange; one alone is compared with a second run of itself",
     .zero = "every legal one"},
    {.names = "--max-ranks",
     .type = OPTION_INT,
     .at = offsetof(values, max_ranks),
     .metavar = "N",
     .help = "ranks of the largest topology of the default list",
     .min = 1,
     .max = TOPO_MAX_WORLD,
     .excludes = "--topologies"},
    {.names = "--each-exchange",
     .type = OPTION_FLAG,
     .at = offsetof(values, each_exchange),
     .help = "runs topologies with dcp > 1 of the default list with auto, q and kv",
     .excludes = "--topologies"},
    {.names = "-n --max-tokens",
     .type = OPTION_COUNT,
     .at = offsetof(values, max_tokens),
     .metavar = "N",
     .help = "new tokens per request",
     .min = 0,
     .max = 1 << 20,
     .zero = "the suite's"},
    {.names = "--seed",
     .type = OPTION_U64,
     .at = offsetof(values, seed),
     .metavar = "N",
     .help = "of the random suite"},
    {.names = "--fault",
     .type = OPTION_STRING,
     .at = offsetof(values, fault),
     .metavar = "NAME",
     .help = "plants a fault in every topology but the reference: the check must fail; `list` "
             "names them",
     .choices = "list",
     .zero = "none"},
    {.names = "--json",
     .type = OPTION_FLAG,
     .at = offsetof(values, json),
     .help = "prints one JSON object"},
    {.names = NULL},
};

static const option_section sections[] = {
    {"Check", check_options, 0},
    {"Engine", cli_engine_options, offsetof(values, engine)},
    {NULL, NULL, 0},
};

static void defaults(void *v_) {
    values *v = v_;
    weft_engine_params_default(&v->engine);
    v->engine.max_num_seqs = 8;
    v->engine.max_num_batched_tokens = 512;
    v->suite = "cp";
    v->max_ranks = 8;
    v->seed = 1;
}

typedef struct entry {
    topo_sizes sizes;
    weft_exchange exchange;
} entry;

enum { MAX_ENTRY = 256 };
static const char *const exchange_name[] = {"auto", "q", "kv"};

/* "tp1pcp2dcp2" or "tp1pcp2dcp2:kv" */
static bool entry_parse(const char *word, weft_exchange exchange, entry *out) {
    int end = 0;
    entry e = {.exchange = exchange};
    /* seven characters, a sign among them, are an int; a longer number leaves digits behind */
    if (sscanf(word, "tp%7dpcp%7ddcp%7d%n", &e.sizes.tp, &e.sizes.pcp, &e.sizes.dcp, &end) != 3)
        return false;
    if (word[end] == ':') {
        for (int32_t i = 0; i < 3; i++)
            if (strcmp(word + end + 1, exchange_name[i]) == 0) {
                e.exchange = (weft_exchange)i;
                *out = e;
                return true;
            }
        return false;
    }
    *out = e;
    return word[end] == '\0';
}

static weft_status list_parse(const char *text, weft_exchange exchange, entry *out, int32_t *n,
                              weft_error *err) {
    char *copy = strdup(text), *save = NULL;
    weft_status s =
        copy ? WEFT_OK : error_set(err, WEFT_ERR_MEMORY, "no memory for the list of topologies");
    *n = 0;
    for (char *w = copy ? strtok_r(copy, ", ", &save) : NULL; w && s == WEFT_OK;
         w = strtok_r(NULL, ", ", &save)) {
        if (*n == MAX_ENTRY)
            s = error_set(err, WEFT_ERR_USAGE, "--topologies: more than %d", MAX_ENTRY);
        else if (!entry_parse(w, exchange, &out[(*n)++]))
            s = error_set(err, WEFT_ERR_USAGE,
                          "--topologies: %.60s is not of the form tp1pcp2dcp2 or tp1pcp2dcp2:kv",
                          w);
    }
    free(copy);
    return s == WEFT_OK && *n == 0
               ? error_set(err, WEFT_ERR_USAGE, "--topologies: the list is empty")
               : s;
}

static int32_t list_default(const values *v, const topo_model *m, entry *out) {
    topo_sizes sizes[MAX_ENTRY];
    int32_t n_size = topo_list(m, v->max_ranks, sizes, MAX_ENTRY), n = 0;
    n_size = n_size < MAX_ENTRY ? n_size : MAX_ENTRY;
    for (int32_t i = 0; i < n_size; i++) {
        int32_t kinds = v->each_exchange && sizes[i].dcp > 1 ? 3 : 1;
        for (int32_t x = 0; x < kinds && n < MAX_ENTRY; x++)
            out[n++] = (entry){sizes[i], kinds > 1 ? (weft_exchange)x : v->engine.exchange};
    }
    return n;
}

/* ---- the run ---- */

typedef struct check {
    const values *v;
    weft_model *model;
    model_desc *desc; /* for legality without an engine */
    suite suite;
    entry entry[MAX_ENTRY];
    int32_t n_entry;
    bool again; /* the second entry is the first one */
    char identity[96];
    suite_result reference;
    json_t *rows;
    int32_t n_different;
} check;

static weft_engine_params entry_params(const check *c, int32_t i) {
    weft_engine_params p = c->v->engine;
    p.tp = c->entry[i].sizes.tp, p.pcp = c->entry[i].sizes.pcp, p.dcp = c->entry[i].sizes.dcp;
    p.exchange = c->entry[i].exchange;
    p.hash_logits = true;
    p.on_load = cli_on_load;
    p.expert_parallel = i > 0 && p.expert_parallel; /* the reference is the other way */
    p.fault = i > 0 || c->n_entry == 1 ? c->v->fault : NULL;
    if (p.max_model_len == 0)
        p.max_model_len = c->suite.max_len;
    p.no_prefix_cache |= i == 0; /* the reference computes everything */
    return p;
}

/* Limits of a run that may be its own (random and prefix suites): pools just above what the longest request
 * needs on the fullest rank. */
static weft_status limits_apply(const check *c, int32_t i, weft_engine_params *p, weft_error *err) {
    engine_setup s;
    weft_engine_params one = *p;
    one.max_num_seqs = 1;
    one.kv_pages = 0;
    weft_status st = engine_setup_make(c->desc, &one, &s, err);
    if (st != WEFT_OK)
        return st;
    suite_limits l = suite_limits_of(&c->suite, i, s.p.kv_pages);
    if (l.max_num_seqs)
        p->max_num_seqs = l.max_num_seqs;
    if (l.max_num_batched_tokens)
        p->max_num_batched_tokens = l.max_num_batched_tokens;
    if (l.kv_pages)
        p->kv_pages = l.kv_pages;
    if (l.cp_min_split)
        p->cp_min_split = l.cp_min_split;
    return WEFT_OK;
}

static json_t *difference_json(const suite_difference *d) {
    if (d->request < 0)
        return json_null();
    char a[24], b[24];
    bool hash = strcmp(d->what, "logits") == 0 || strcmp(d->what, "rows") == 0;
    snprintf(a, sizeof a, hash ? "%016llx" : "%llu", (unsigned long long)d->expected);
    snprintf(b, sizeof b, hash ? "%016llx" : "%llu", (unsigned long long)d->got);
    return json_pack("{s:i, s:i, s:s, s:s, s:s}", "request", d->request, "position", d->position,
                     "what", d->what, "expected", a, "got", b);
}

static void entry_report(check *c, int32_t i, const suite_result *r, int32_t different,
                         const suite_difference *d) {
    const entry *e = &c->entry[i];
    json_array_append_new(
        c->rows, json_pack("{s:i, s:i, s:i, s:s, s:b, s:i, s:I, s:I, s:i, s:o, s:I, s:I, s:I, s:f}",
                           "tp", e->sizes.tp, "pcp", e->sizes.pcp, "dcp", e->sizes.dcp, "exchange",
                           exchange_name[e->exchange], "expert_parallel",
                           entry_params(c, i).expert_parallel, "requests", r->n, "tokens",
                           (json_int_t)r->n_token, "logits_rows", (json_int_t)r->n_row, "different",
                           different, "first_difference", difference_json(d), "steps",
                           (json_int_t)r->n_step, "preemptions", (json_int_t)r->n_preemption,
                           "cached_tokens", (json_int_t)r->n_cached, "seconds", r->seconds));
    if (c->v->json)
        return;
    char name[48];
    snprintf(name, sizeof name, "tp%d pcp%d dcp%d", e->sizes.tp, e->sizes.pcp, e->sizes.dcp);
    const char *on = cli_color(stdout) ? (different ? "\033[31m" : "\033[32m") : "",
               *off = *on ? "\033[0m" : "";
    printf("%-15s %-4s %4d %6lld %6lld %6lld %5lld %8lld %7.2f %s%9d%s\n", name,
           exchange_name[e->exchange], r->n, (long long)r->n_token, (long long)r->n_row,
           (long long)r->n_cached, (long long)r->n_step, (long long)r->n_preemption, r->seconds, on,
           different, off);
    if (d->request >= 0)
        printf("  first difference: request %d, position %d, %s\n", d->request, d->position,
               d->what);
    fflush(stdout);
}

static weft_status entry_run(check *c, int32_t i, weft_error *err) {
    weft_engine_params p = entry_params(c, i);
    weft_status s = limits_apply(c, i, &p, err);
    if (s != WEFT_OK)
        return s;
    suite_result r = {0};
    cli_progress bar;
    cli_progress_begin(&bar, "check", c->n_entry);
    cli_progress_set(&bar, i);
    s = suite_run(&c->suite, c->model, &p, &r, err);
    cli_progress_end(&bar); /* before a line of the table */
    if (s != WEFT_OK) {
        suite_result_free(&r);
        return s;
    }
    suite_difference d = {.request = -1};
    int32_t different = i > 0 ? suite_compare(&c->reference, &r, &d) : 0;
    c->n_different += different;
    entry_report(c, i, &r, different, &d);
    if (i == 0)
        c->reference = r;
    else
        suite_result_free(&r);
    return WEFT_OK;
}

static weft_status run_all(check *c, weft_error *err) {
    weft_status s = WEFT_OK;
    if (!c->v->json)
        printf("%-15s %-4s %4s %6s %6s %6s %5s %8s %7s %9s\n", "topology", "exch", "reqs", "tokens",
               "rows", "cached", "steps", "preempts", "seconds", "different");
    for (int32_t i = 0; i < c->n_entry && s == WEFT_OK; i++) {
        s = entry_run(c, i, err);
        if (s == WEFT_ERR_INTERRUPTED) {
            error_set(err, s, "interrupted after %d of %d topologies", i, c->n_entry);
        } else if (s != WEFT_OK) {
            weft_error why = *err;
            error_set(err, s, "tp%d pcp%d dcp%d: %s", c->entry[i].sizes.tp, c->entry[i].sizes.pcp,
                      c->entry[i].sizes.dcp, why.text);
        }
    }
    return s;
}

/* A value that the suite overrides is refused, not ignored. */
static weft_status overridden(const values *v, weft_error *err) {
    const weft_engine_params *p = &v->engine;
    values d = {0};
    defaults(&d);
    bool draws = strcmp(v->suite, "random") == 0 || strcmp(v->suite, "prefix") == 0;
    const struct {
        const char *option, *by;
        bool given;
    } rule[] = {
        {"--max-num-seqs", "the suite", draws && p->max_num_seqs != d.engine.max_num_seqs},
        {"--max-num-batched-tokens", "the suite",
         draws && p->max_num_batched_tokens != d.engine.max_num_batched_tokens},
        {"--kv-pages", "the suite", draws && p->kv_pages != d.engine.kv_pages},
        {"--cp-min-split", "the suite", draws && p->cp_min_split != d.engine.cp_min_split},
        {"--cp-exchange", "--each-exchange", v->each_exchange && p->exchange != d.engine.exchange},
    };
    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++)
        if (rule[i].given)
            return error_set(err, WEFT_ERR_USAGE, "%s: %s chooses it; leave one of them out",
                             rule[i].option, rule[i].by);
    if (p->no_prefix_cache && strcmp(v->suite, "prefix") == 0)
        return error_set(err, WEFT_ERR_USAGE,
                         "--no-prefix-cache: --suite prefix would compare nothing; leave one of "
                         "them out");
    if (!draws && v->seed != d.seed)
        return error_set(err, WEFT_ERR_USAGE,
                         "--seed: only --suite random and --suite prefix draw anything");
    return WEFT_OK;
}

/* Without --expert-parallel fewer topologies may be legal. */
static weft_status reference_check(const check *c, weft_error *err) {
    engine_setup setup;
    weft_engine_params p = c->v->engine;
    p.tp = p.pcp = p.dcp = 1;
    p.expert_parallel = false;
    weft_status s = engine_setup_make(c->desc, &p, &setup, err);
    return s == WEFT_OK ? topo_check(&setup.model, c->entry[0].sizes, err) : s;
}

/* Legality of every entry is known before the first is run. */
static weft_status prepare(check *c, weft_error *err) {
    engine_setup setup;
    weft_engine_params p = c->v->engine;
    p.tp = p.pcp = p.dcp = 1;
    p.fault = c->v->fault;
    weft_status s = overridden(c->v, err);
    if (s == WEFT_OK)
        s = engine_setup_make(c->desc, &p, &setup, err);
    if (s != WEFT_OK)
        return s;
    snprintf(c->identity, sizeof c->identity, "%s", setup.identity);
    if (c->v->topologies)
        s = list_parse(c->v->topologies, c->v->engine.exchange, c->entry, &c->n_entry, err);
    else
        c->n_entry = list_default(c->v, &setup.model, c->entry);
    for (int32_t i = 0; i < c->n_entry && s == WEFT_OK; i++)
        s = topo_check(&setup.model, c->entry[i].sizes, err);
    if (s == WEFT_OK)
        s = reference_check(c, err);
    c->again = c->n_entry == 1;
    if (s == WEFT_OK && c->again)
        c->entry[c->n_entry++] = c->entry[0];
    if (s == WEFT_OK)
        s = suite_make(c->v->suite, c->model, c->v->max_tokens, c->v->seed, &c->suite, err);
    return s;
}

static int finish(check *c) {
    char digest[24];
    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)suite_digest(&c->reference));
    if (c->v->json) {
        const topo_sizes *r = &c->entry[0].sizes;
        char reference[48];
        snprintf(reference, sizeof reference, "tp%dpcp%ddcp%d", r->tp, r->pcp, r->dcp);
        int rc =
            cli_json_print(json_pack("{s:s, s:s, s:s, s:s, s:O, s:i}", "identity", c->identity,
                                     "suite", c->v->suite, "reference", reference, "digest", digest,
                                     "topologies", c->rows, "different", c->n_different));
        return rc ? rc : c->n_different > 0;
    }
    int32_t n = c->n_entry - 1, differ = c->n_different;
    printf("%s, suite %s, digest %s\n%d topolog%s%s compared with %s%s, %d request%s\n",
           c->identity, c->v->suite, digest, n, n == 1 ? "y" : "ies",
           c->v->engine.expert_parallel ? " with --expert-parallel" : "",
           c->again ? "a second run of itself" : "the first",
           c->v->engine.expert_parallel ? ", which runs without" : "", differ,
           differ == 1 ? " differs" : "s differ");
    return c->n_different > 0;
}

static int list_faults(void) {
    for (int32_t i = 0; weft_fault_name(i); i++)
        puts(weft_fault_name(i));
    return 0;
}

static int run(const void *v_, const option_list *args) {
    (void)args;
    const values *v = v_;
    if (v->fault && strcmp(v->fault, "list") == 0)
        return list_faults();
    if (!v->model.path)
        return cli_fail_text(WEFT_ERR_USAGE, "check needs -m MODEL");
    check *c = calloc(1, sizeof *c);
    if (!c)
        return cli_fail_text(WEFT_ERR_MEMORY, "no memory for a check");
    weft_error err = {0};
    c->v = v;
    c->rows = json_array();
    weft_status s = weft_model_open(v->model.path, &c->model, &err);
    if (s == WEFT_OK)
        s = model_desc_load(v->model.path, &c->desc, &err);
    if (s == WEFT_OK)
        s = prepare(c, &err);
    if (s == WEFT_OK)
        s = run_all(c, &err);
    int rc = s == WEFT_OK ? finish(c) : cli_fail(&err);
    json_decref(c->rows);
    suite_result_free(&c->reference);
    suite_free(&c->suite);
    model_desc_close(c->desc);
    weft_model_close(c->model);
    free(c);
    return rc;
}

const cli_command cli_check = {
    .options = {.name = "check",
                .brief = "compares logits bytes of the same prompts over topologies",
                .sections = sections,
                .values_bytes = sizeof(values),
                .defaults = defaults,
                .notes =
                    "With --expert-parallel the first topology, the reference, runs without it and "
                    "the others with it.\n"
                    "Exit: 0 when no byte differs, 1 when one does.\n"},
    .run = run,
};
