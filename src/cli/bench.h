/* weft bench: what its kinds share.
 *
 * A kind lists its cases when it opens; the loop in bench.c then goes over all cases once per
 * repeat, so that a slow minute of the machine falls on every case and not on one:
 *
 *   repeat 0: case 0, case 1, case 2    repeat 1: case 0, case 1, case 2    ... */
#ifndef WEFT_CLI_BENCH_H
#define WEFT_CLI_BENCH_H

#include <jansson.h>

#include "cli/common.h"
#include "engine/explain.h"

enum { BENCH_MAX_CASE = 256, BENCH_MAX_REPEAT = 100 };

typedef struct bench_values {
    cli_model_values model;
    weft_engine_params engine;
    int32_t prompts, input, output, repeat; /* 0 but for repeat: the kind's own */
    float temperature;
    uint64_t seed;
    const char *prefill, *decode, *plot;
    bool json;
} bench_values;

/* What one measurement gave. */
typedef struct bench_sample {
    double figure;  /* in the case's unit */
    double seconds; /* that the measured work took */
    double limit;   /* of this machine, in the case's unit; 0: none known */
    int64_t n_step; /* of the engine; 0: none */
} bench_sample;

typedef struct bench_case {
    char name[48];      /* "prefill 512" */
    const char *series; /* "prefill": cases of one line in the plot */
    int32_t size;       /* tokens, context, rows, or bytes: along the plot's axis */
    int32_t world;      /* ranks; 0: the topology's */
    const char *unit;   /* "tok/s", "GB/s", "us", ... */
    const char *limit;  /* name of the limit; NULL: none */
    bench_sample sample[BENCH_MAX_REPEAT];
} bench_case;

typedef struct bench bench;
typedef struct bench_kind {
    const char *name;
    weft_status (*open)(bench *b, weft_error *err); /* lists the cases, fills isa and n_thread */
    weft_status (*measure)(bench *b, int32_t i, int32_t repeat, bench_sample *out, weft_error *err);
    void (*close)(bench *b); /* after a failed open too */
} bench_kind;
extern const bench_kind bench_throughput, bench_latency, bench_kernels, bench_comm;

struct bench {
    const bench_kind *kind;
    const bench_values *v;
    bench_case *cases; /* [BENCH_MAX_CASE] */
    int32_t n_case;
    const char *isa; /* static, or alive until close */
    int32_t n_thread;
    weft_status closed; /* by close: could the trace be written? */
    void *body;         /* the kind's own */
};

/* The next case, zeroed but for the arguments; WEFT_ERR_USAGE when there are too many. */
weft_status bench_case_add(bench *b, const char *series, int32_t size, const char *unit,
                           bench_case **out, weft_error *err);
uint64_t bench_draw(uint64_t *state); /* random bits */

/* ---- bench_report.c ---- */
typedef struct bench_summary {
    double median, min, max, limit;           /* limit: the median one */
    double seconds, min_seconds, max_seconds; /* seconds: the median */
} bench_summary;
bench_summary bench_summarise(const bench_case *c, int32_t n_repeat);
void bench_print_table(const bench *b);
int bench_print_json(const bench *b); /* returns an exit code */

/* ---- bench_limit.c ---- */
/* What `weft plan` counts for a prompt of n_token tokens in one step, or with `decode` for a step of
 * one request that has n_token tokens in the cache. */
enum { BENCH_WORK_MOST = 1 << 20 }; /* tokens of a prompt: a step has no more */
weft_status bench_work(const model_desc *d, const weft_engine_params *p, bool decode,
                       int32_t n_token, explain_work *out, weft_error *err);
/* The limits of this machine, measured now. */
weft_status bench_peaks(int32_t n_thread, double peak[KERN_N_PEAK], weft_error *err);

/* ---- bench_plot.c ---- */
typedef struct bench_plot {
    const char *path;
    int fd; /* of the picture; -1: none */
    bool made, drawn;
} bench_plot;
/* Before anything is measured: is gnuplot there, can the file be written? */
weft_status bench_plot_open(bench_plot *p, const char *path, weft_error *err);
weft_status bench_plot_draw(bench_plot *p, const bench *b, weft_error *err);
void bench_plot_close(bench_plot *p); /* removes a file that it made and did not fill */

#endif
