/* weft bench: options, and the loop over repeats and cases. */
#include "cli/bench.h"

#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static const option own_options[] = {
    {.names = "--repeat",
     .type = OPTION_INT,
     .at = offsetof(bench_values, repeat),
     .metavar = "N",
     .help = "measures every case N times, in turn; median, smallest and largest are printed",
     .min = 1,
     .max = BENCH_MAX_REPEAT},
    {.names = "--prompts",
     .type = OPTION_COUNT,
     .at = offsetof(bench_values, prompts),
     .metavar = "N",
     .help = "throughput: requests, all handed in at once",
     .min = 1,
     .max = 1 << 20,
     .zero = "64"},
    {.names = "--input",
     .type = OPTION_COUNT,
     .at = offsetof(bench_values, input),
     .metavar = "N",
     .help = "throughput: tokens of a prompt",
     .min = 1,
     .max = 1 << 26,
     .zero = "32"},
    {.names = "--output",
     .type = OPTION_COUNT,
     .at = offsetof(bench_values, output),
     .metavar = "N",
     .help = "throughput, latency: tokens of an answer; end tokens are ignored",
     .min = 1,
     .max = 1 << 26,
     .zero = "512 for throughput, 64 for latency"},
    {.names = "--prefill",
     .type = OPTION_STRING,
     .at = offsetof(bench_values, prefill),
     .metavar = "LIST",
     .help = "latency: lengths of prompts, as 512,4096; alone: no decode",
     .zero = "512,4096 as far as the model goes"},
    {.names = "--decode",
     .type = OPTION_STRING,
     .at = offsetof(bench_values, decode),
     .metavar = "LIST",
     .help = "latency: tokens in the cache before the measured ones, as 32,512; alone: no prefill",
     .zero = "32,512 as far as the model goes"},
    {.names = "--temperature",
     .type = OPTION_FLOAT,
     .at = offsetof(bench_values, temperature),
     .metavar = "T",
     .help = "throughput, latency: tokens are sampled at T; 0 takes the most likely one",
     .min = 0,
     .max = 100},
    {.names = "--seed",
     .type = OPTION_U64,
     .at = offsetof(bench_values, seed),
     .metavar = "N",
     .help = "of the random tokens of throughput and latency"},
    {.names = "--json",
     .type = OPTION_FLAG,
     .at = offsetof(bench_values, json),
     .help = "prints one JSON object per case"},
    {.names = "--plot",
     .type = OPTION_STRING,
     .at = offsetof(bench_values, plot),
     .metavar = "FILE",
     .help = "draws an SVG picture too, with gnuplot"},
    {.names = NULL},
};

static const option_section sections[] = {
    {"Model", cli_model_options, offsetof(bench_values, model)},
    {"Bench", own_options, 0},
    {"Topology", cli_topology_options, offsetof(bench_values, engine)},
    {"Engine", cli_engine_options, offsetof(bench_values, engine)},
    {"Trace", cli_trace_options, offsetof(bench_values, engine)},
    {NULL, NULL, 0},
};

static void defaults(void *v_) {
    bench_values *v = v_;
    weft_engine_params_default(&v->engine);
    v->repeat = 3;
    v->seed = 1;
}

static const bench_kind *const kinds[] = {&bench_throughput, &bench_latency, &bench_kernels,
                                          &bench_comm};
enum { N_KIND = sizeof kinds / sizeof *kinds };

static const bench_kind *kind_find(const char *name, weft_error *err) {
    const char *words[N_KIND];
    for (int32_t i = 0; i < N_KIND; i++) {
        words[i] = kinds[i]->name;
        if (strcmp(words[i], name) == 0)
            return kinds[i];
    }
    const char *near = options_nearest(name, words, N_KIND);
    error_set(err, WEFT_ERR_USAGE, "no bench %.60s; %s%s%s", name, near ? "did you mean " : "",
              near ? near : "there are throughput, latency, kernels and comm", near ? "?" : "");
    return NULL;
}

/* An option that this kind would ignore is refused. Letters: the kinds that look at it. */
static weft_status unused_check(const bench_kind *kind, const bench_values *v, weft_error *err) {
    bench_values d = {0};
    defaults(&d);
    const weft_engine_params *p = &v->engine, *q = &d.engine;
    const struct {
        const char *option, *kinds;
        bool given;
    } rule[] = {
        {"--prompts", "t", v->prompts != 0},
        {"--input", "t", v->input != 0},
        {"--output", "tl", v->output != 0},
        {"--prefill", "l", v->prefill != NULL},
        {"--decode", "l", v->decode != NULL},
        {"--temperature", "tl", v->temperature > 0},
        {"--seed", "tl", v->seed != d.seed},
        {"--tp", "tl", p->tp != q->tp},
        {"--pcp", "tl", p->pcp != q->pcp},
        {"--dcp", "tl", p->dcp != q->dcp},
        {"--threads", "tlk", p->n_thread != q->n_thread},
        {"--isa", "tlk", p->isa != q->isa},
        {"--max-num-seqs", "t", p->max_num_seqs != q->max_num_seqs},
        {"--max-num-batched-tokens", "tl", p->max_num_batched_tokens != q->max_num_batched_tokens},
        {"--max-model-len", "tl", p->max_model_len != q->max_model_len},
        {"--kv-cache-dtype", "tlk", p->kv_dtype != q->kv_dtype},
        {"--kv-cache-memory", "tl", p->kv_bytes != q->kv_bytes},
        {"--kv-pages", "tl", p->kv_pages != q->kv_pages},
        {"--cp-exchange", "tl", p->exchange != q->exchange},
        {"--cp-min-split", "tl", p->cp_min_split != q->cp_min_split},
        {"--expert-parallel", "tl", p->expert_parallel},
        {"--no-prefix-cache", "tl", p->no_prefix_cache},
        {"--trace", "tl", p->trace_path != NULL},
    };
    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++)
        if (rule[i].given && !strchr(rule[i].kinds, kind->name[0]))
            return error_set(err, WEFT_ERR_USAGE, "%s: bench %s has no use for it", rule[i].option,
                             kind->name);
    return WEFT_OK;
}

uint64_t bench_draw(uint64_t *state) {
    uint64_t x = (*state += 0x9E3779B97F4A7C15u);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

weft_status bench_case_add(bench *b, const char *series, int32_t size, const char *unit,
                           bench_case **out, weft_error *err) {
    if (b->n_case == BENCH_MAX_CASE)
        return error_set(err, WEFT_ERR_USAGE, "bench %s: more than %d cases", b->kind->name,
                         BENCH_MAX_CASE);
    bench_case *c = &b->cases[b->n_case++];
    *c = (bench_case){.series = series, .size = size, .unit = unit};
    snprintf(c->name, sizeof c->name, "%s %d", series, size);
    *out = c;
    return WEFT_OK;
}

static weft_status measure_all(bench *b, weft_error *err) {
    int32_t total = b->v->repeat * b->n_case;
    weft_status s = WEFT_OK;
    cli_progress bar;
    cli_progress_begin(&bar, "bench", total);
    for (int32_t i = 0; i < total && s == WEFT_OK; i++) {
        cli_progress_set(&bar, i);
        int32_t r = i / b->n_case, c = i % b->n_case;
        bench_sample got = {0};
        s = cli_interrupted ? WEFT_ERR_INTERRUPTED : b->kind->measure(b, c, r, &got, err);
        b->cases[c].sample[r] = got;
        if (s == WEFT_ERR_INTERRUPTED)
            error_set(err, s, "interrupted after %d of %d measurements", i, total);
    }
    cli_progress_end(&bar);
    return s;
}

static weft_status bench_run(bench *b, bench_plot *plot, weft_error *err) {
    weft_status s = WEFT_OK;
    if (b->v->plot)
        s = bench_plot_open(plot, b->v->plot, err);
    if (s == WEFT_OK)
        s = b->kind->open(b, err);
    if (s == WEFT_OK)
        s = measure_all(b, err);
    if (s == WEFT_OK && b->v->plot)
        s = bench_plot_draw(plot, b, err);
    return s;
}

static int run(const void *v_, const option_list *args) {
    const bench_values *v = v_;
    weft_error err = {0};
    const bench_kind *kind = kind_find(args->item[0], &err);
    if (!kind || unused_check(kind, v, &err) != WEFT_OK)
        return cli_fail(&err);
    bench b = {.kind = kind, .v = v};
    b.cases = calloc(BENCH_MAX_CASE, sizeof *b.cases);
    if (!b.cases)
        return cli_fail_text(WEFT_ERR_MEMORY, "no memory for the list of cases");
    bench_plot plot = {.fd = -1};
    int rc = 0;
    if (bench_run(&b, &plot, &err) != WEFT_OK)
        rc = cli_fail(&err);
    else if (v->json)
        rc = bench_print_json(&b);
    else
        bench_print_table(&b);
    bench_plot_close(&plot);
    kind->close(&b);
    rc = rc == 0 ? status_exit_code(b.closed) : rc;
    free(b.cases);
    return rc;
}

const cli_command cli_bench = {
    .options = {.name = "bench",
                .brief = "measures whole runs, kernels against the machine's limits, transport",
                .args = "throughput|latency|kernels|comm",
                .arg_words = "throughput latency kernels comm",
                .min_args = 1,
                .max_args = 1,
                .sections = sections,
                .values_bytes = sizeof(bench_values),
                .defaults = defaults,
                .notes =
                    "Kinds:\n"
                    "  throughput  output tokens per second of many requests handed in at once\n"
                    "  latency     one request at a time: prefill by length, decode by context\n"
                    "  kernels     the model's matrices and attention, beside the limits of this\n"
                    "              machine measured in the same repeat\n"
                    "  comm        collectives between 2, 4 and 8 ranks, for 1, 64 and 512 rows\n"
                    "              of the model\n"},
    .run = run,
};
