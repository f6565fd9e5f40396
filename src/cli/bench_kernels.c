/* weft bench kernels: the operations of the model's own shapes and weights, beside the limits of
 * the machine measured in the same repeat. */
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"
#include "cli/bench_kernels.h"
#include "cli/cli.h"

float kernels_random(uint64_t *state) {
    return (float)((double)(bench_draw(state) >> 11) * 0x1p-52 - 1.0);
}

static const struct {
    const char *name, *unit;
} peaks[KERN_N_PEAK] = {
    [KERN_PEAK_DOT4] = {"4-bit dot", "GOP/s"},
    [KERN_PEAK_DOT8] = {"8-bit dot", "GOP/s"},
    [KERN_PEAK_FMA] = {"fp32 FMA", "GFLOP/s"},
    [KERN_PEAK_READ] = {"memory read", "GB/s"},
};

static weft_status peak_add(bench *b, kernels *k, int32_t which, weft_error *err) {
    bench_case *c;
    weft_status s = bench_case_add(b, "machine", 0, peaks[which].unit, &c, err);
    if (s == WEFT_OK)
        snprintf(c->name, sizeof c->name, "machine, %s", peaks[which].name);
    k->cases[b->n_case - 1].kind = KERNELS_PEAK;
    return s;
}

static weft_status cases_list(bench *b, kernels *k, weft_error *err) {
    weft_status s = WEFT_OK;
    for (int32_t i = 0; i < KERN_N_PEAK && s == WEFT_OK; i++)
        s = peak_add(b, k, i, err);
    if (s == WEFT_OK)
        s = kernels_layers_list(b, k, err);
    return s == WEFT_OK ? kernels_attn_list(b, k, err) : s;
}

static weft_status kernels_start(bench *b, kernels *k, weft_error *err) {
    weft_status s = model_desc_load(b->v->model.path, &k->desc, err);
    if (s != WEFT_OK)
        return s;
    k->cfg = &k->desc->config;
    weft_engine_params p = b->v->engine;
    p.max_num_seqs = 1;
    s = engine_setup_make(k->desc, &p, &k->setup, err);
    if (s != WEFT_OK)
        return s;
    k->k = k->setup.k;
    b->isa = k->k->isa;
    b->n_thread = k->setup.p.n_thread;
    wait_threads_add(b->n_thread);
    k->counted = b->n_thread;
    s = kernels_weights_plan(k, err);
    if (s == WEFT_OK)
        s = cases_list(b, k, err);
    return s == WEFT_OK ? kern_cpu_peaks_open(b->n_thread, &k->peaks, err) : s;
}

static weft_status weights_pack(kernels *k, int32_t n_thread, weft_error *err) {
    cli_progress bar;
    cli_load_begin(&bar);
    weft_status s = model_weights_pack(k->w, n_thread, cli_on_load, &bar, err);
    cli_progress_end(&bar);
    return s;
}

static weft_status kernels_open(bench *b, weft_error *err) {
    kernels *k = calloc(1, sizeof *k);
    if (!k)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a bench");
    b->body = k;
    weft_status s = kernels_start(b, k, err);
    if (s != WEFT_OK)
        return s;
    kernels_layers_plan(k);
    kernels_attn_plan(k);
    s = kern_memory_commit(&k->memory, k->k, err);
    kern_limits limits = model_limits(k->desc, 1, KERNELS_ROWS);
    if (s == WEFT_OK)
        s = k->k->open(b->n_thread, &limits, &k->dev, err);
    if (s == WEFT_OK)
        s = weights_pack(k, b->n_thread, err);
    if (s == WEFT_OK)
        s = kernels_layers_fill(k, err);
    return s == WEFT_OK ? kernels_attn_fill(k, err) : s;
}

static void kernels_close(bench *b) {
    kernels *k = b->body;
    if (!k)
        return;
    if (k->dev)
        k->k->close(k->dev);
    kern_peaks_close(k->peaks);
    wait_threads_add(-k->counted);
    model_weights_close(k->w);
    if (k->k)
        kern_memory_release(&k->memory, k->k);
    model_desc_close(k->desc);
    free(k);
}

/* Seconds that the arithmetic takes at the peaks, and the peak that most of them are spent at. */
static double arithmetic_seconds(const kernels *k, const kernels_work *w, kern_peak *most) {
    double sum = 0, longest = 0;
    for (int32_t i = 0; i < KERN_N_PEAK; i++) {
        double seconds = w->ops[i] / (k->peak[i] * 1e9);
        sum += seconds;
        if (seconds > longest) {
            longest = seconds;
            *most = (kern_peak)i;
        }
    }
    return sum;
}

/* Figure and limit in the unit of whichever binds, as the first repeat's limits say: reading bytes or
 * doing operations. Where arithmetic is of several kinds its limit is their mean, by time. */
static void sample_fill(const kernels *k, bench_case *c, int32_t repeat, const kernels_work *w,
                        bench_sample *out) {
    kern_peak most = KERN_PEAK_FMA;
    double compute = arithmetic_seconds(k, w, &most), ops = 0;
    double read = w->bytes / (k->peak[KERN_PEAK_READ] * 1e9);
    for (int32_t i = 0; i < KERN_N_PEAK; i++)
        ops += w->ops[i];
    if (repeat == 0) {
        kern_peak by = read > compute ? KERN_PEAK_READ : most;
        c->limit = peaks[by].name;
        c->unit = peaks[by].unit;
    }
    bool reads = c->limit == peaks[KERN_PEAK_READ].name;
    *out = (bench_sample){.figure = (reads ? w->bytes : ops) * 1e-9 / w->seconds,
                          .seconds = w->seconds / (double)w->n_call,
                          .limit = reads ? k->peak[KERN_PEAK_READ] : ops * 1e-9 / compute};
}

static weft_status kernels_measure(bench *b, int32_t i, int32_t repeat, bench_sample *out,
                                   weft_error *err) {
    (void)err;
    kernels *k = b->body;
    const kernels_case *c = &k->cases[i];
    if (c->kind == KERNELS_PEAK) { /* the first cases, in the order of kern_peak */
        double t0 = wait_now_s();
        k->peak[i] = kern_peaks_measure(k->peaks, (kern_peak)i);
        *out = (bench_sample){.figure = k->peak[i], .seconds = wait_now_s() - t0};
        return WEFT_OK;
    }
    kernels_work w = {0};
    weft_status s = c->kind == KERNELS_LAYERS ? kernels_layers_measure(k, c, &w)
                                              : kernels_attn_measure(k, c, &w);
    if (s == WEFT_OK)
        sample_fill(k, &b->cases[i], repeat, &w, out);
    return s;
}

const bench_kind bench_kernels = {"kernels", kernels_open, kernels_measure, kernels_close};
