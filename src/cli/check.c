/* weft check: the same requests on a list of topologies; the bytes of every logits row are compared. */
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
    {"-m --model", OPTION_STRING, offsetof(values, model.path), "MODEL", "the model, a .gguf file",
     0, 0, NULL, NULL, false},
    {"--suite", OPTION_STRING, offsetof(values, suite), "NAME",
     "cp (6 prompts), mixed (2 decode while 6 arrive) or random (lengths, arrivals, budgets, "
     "pools)",
     0, 0, NULL, NULL, false},
    {"--topologies", OPTION_STRING, offsetof(values, topologies), "LIST",
     "tp1pcp1dcp1,tp1pcp2dcp2:kv,...; the first is the reference, :q and :kv force the exchange", 0,
     0, NULL, "every legal one", false},
    {"--max-ranks", OPTION_INT, offsetof(values, max_ranks), "N",
     "ranks of the largest topology of the default list", 1, TOPO_MAX_WORLD, NULL, NULL, false},
    {"--each-exchange", OPTION_FLAG, offsetof(values, each_exchange), NULL,
     "run topologies with dcp > 1 of the default list with auto, q and kv", 0, 0, NULL, NULL,
     false},
    {"-n --max-tokens", OPTION_COUNT, offsetof(values, max_tokens), "N", "new tokens per request",
     0, 1 << 20, NULL, "the suite's", false},
    {"--seed", OPTION_U64, offsetof(values, seed), "N", "of the random suite", 0, 0, NULL, NULL,
     false},
    {"--fault", OPTION_STRING, offsetof(values, fault), "NAME",
     "plant a fault in every topology but the reference: the check must fail; `list` names them", 0,
     0, NULL, "none", false},
    {"--json", OPTION_FLAG, offsetof(values, json), NULL, "print one JSON object", 0, 0, NULL, NULL,
     false},
    {0},
};

static const option_section sections[] = {
    {"Check", check_options, 0},
    {"Engine", cli_engine_options, offsetof(values, engine)},
    {0},
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
    if (sscanf(word, "tp%dpcp%ddcp%d%n", &e.sizes.tp, &e.sizes.pcp, &e.sizes.dcp, &end) != 3)
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
    load_model *file; /* for legality without an engine */
    suite suite;
    entry entry[MAX_ENTRY];
    int32_t n_entry;
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
    p.fault = i > 0 || c->n_entry == 1 ? c->v->fault : NULL;
    if (p.max_model_len == 0)
        p.max_model_len = c->suite.max_len;
    return p;
}

/* Limits of a run that may be its own (random suite): pools just above what the longest request needs on the fullest rank. */
static weft_status limits_apply(const check *c, int32_t i, weft_engine_params *p, weft_error *err) {
    engine_setup s;
    weft_engine_params one = *p;
    one.max_num_seqs = 1;
    one.kv_pages = 0;
    weft_status st = engine_setup_make(c->file, &one, &s, err);
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
        c->rows,
        json_pack("{s:i, s:i, s:i, s:s, s:i, s:I, s:I, s:i, s:o, s:I, s:I, s:f}", "tp", e->sizes.tp,
                  "pcp", e->sizes.pcp, "dcp", e->sizes.dcp, "exchange", exchange_name[e->exchange],
                  "requests", r->n, "tokens", (json_int_t)r->n_token, "logits_rows",
                  (json_int_t)r->n_row, "different", different, "first_difference",
                  difference_json(d), "steps", (json_int_t)r->n_step, "preemptions",
                  (json_int_t)r->n_preemption, "seconds", r->seconds));
    if (c->v->json)
        return;
    char name[48], where[96] = "";
    snprintf(name, sizeof name, "tp%d pcp%d dcp%d", e->sizes.tp, e->sizes.pcp, e->sizes.dcp);
    if (d->request >= 0)
        snprintf(where, sizeof where, "  first: request %d, position %d, %s", d->request,
                 d->position, d->what);
    const char *on = cli_color(stdout) ? (different ? "\033[31m" : "\033[32m") : "",
               *off = *on ? "\033[0m" : "";
    printf("%-16s %-8s %8d %7lld %7lld %6lld %8lld %7.2f  %s%9d%s%s\n", name,
           exchange_name[e->exchange], r->n, (long long)r->n_token, (long long)r->n_row,
           (long long)r->n_step, (long long)r->n_preemption, r->seconds, on, different, off, where);
    fflush(stdout);
}

static weft_status entry_run(check *c, int32_t i, weft_error *err) {
    weft_engine_params p = entry_params(c, i);
    weft_status s = limits_apply(c, i, &p, err);
    if (s != WEFT_OK)
        return s;
    suite_result r = {0};
    s = suite_run(&c->suite, c->model, &p, &cli_interrupted, &r, err);
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
    cli_progress bar;
    weft_status s = WEFT_OK;
    if (!c->v->json)
        printf("%-16s %-8s %8s %7s %7s %6s %8s %7s  %9s\n", "topology", "exchange", "requests",
               "tokens", "rows", "steps", "preempts", "seconds", "different");
    for (int32_t i = 0; i < c->n_entry && s == WEFT_OK; i++) {
        cli_progress_begin(&bar, "check", c->n_entry);
        cli_progress_set(&bar, i);
        s = entry_run(c, i, err);
        cli_progress_end(&bar);
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

/* Legality of every entry is known before the first is run. */
static weft_status prepare(check *c, weft_error *err) {
    engine_setup setup;
    weft_engine_params p = c->v->engine;
    p.tp = p.pcp = p.dcp = 1;
    p.fault = c->v->fault;
    weft_status s = engine_setup_make(c->file, &p, &setup, err);
    if (s != WEFT_OK)
        return s;
    snprintf(c->identity, sizeof c->identity, "%s", setup.identity);
    if (c->v->topologies)
        s = list_parse(c->v->topologies, c->v->engine.exchange, c->entry, &c->n_entry, err);
    else
        c->n_entry = list_default(c->v, &setup.model, c->entry);
    for (int32_t i = 0; i < c->n_entry && s == WEFT_OK; i++)
        s = topo_check(&setup.model, c->entry[i].sizes, err);
    if (s == WEFT_OK && c->n_entry == 1 && c->n_entry < MAX_ENTRY)
        c->entry[c->n_entry++] = c->entry[0]; /* one topology: against a second run of itself */
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
    printf("%s, suite %s, digest %s\n%d topologies compared with the first, %d requests differ\n",
           c->identity, c->v->suite, digest, c->n_entry - 1, c->n_different);
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
        return cli_fail_text(WEFT_ERR_USAGE, "-m MODEL is missing");
    check *c = calloc(1, sizeof *c);
    if (!c)
        return cli_fail_text(WEFT_ERR_MEMORY, "no memory for a check");
    weft_error err = {0};
    c->v = v;
    c->rows = json_array();
    weft_status s = weft_model_open(v->model.path, &c->model, &err);
    if (s == WEFT_OK)
        s = load_open(v->model.path, &c->file, &err);
    if (s == WEFT_OK)
        s = prepare(c, &err);
    if (s == WEFT_OK)
        s = run_all(c, &err);
    int rc = s == WEFT_OK ? finish(c) : cli_fail(&err);
    json_decref(c->rows);
    suite_result_free(&c->reference);
    suite_free(&c->suite);
    load_close(c->file);
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
                .notes = "Exit: 0 when no byte differs, 1 when one does.\n"},
    .run = run,
};
