/* weft eval golden: logits and greedy text of another framework, in a golden.safetensors, against
 * weft's.
 *
 * For i = 0, 1, ...: p<i>.ids I64 [n], p<i>.logits F32 [n, vocabulary], p<i>.greedy I64 [k],
 * p<i>.gap F32 [k] (top-1 minus top-2 logit). Greedy steps count up to the first whose gap is below
 * twice the tolerance: from there two right programs may part. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/eval.h"
#include "cli/evaluate.h"
#include "cli/json.h"
#include "load/load.h"

enum { MAX_PROMPT = 64 };

typedef struct golden_prompt {
    int32_t *ids, *greedy;
    const float *logits; /* [n][n_vocab] borrowed from the file */
    const int64_t *greedy_due;
    const float *gap;
    int32_t n, n_greedy, n_vocab;
    double *worst, *sum; /* [n] largest and summed |difference| of a row */
} golden_prompt;

static void row_compare(void *user, int32_t position, const float *logits, int32_t n_vocab) {
    golden_prompt *p = user;
    const float *due = p->logits + (size_t)position * (size_t)n_vocab;
    double worst = 0, sum = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        double d = fabs((double)logits[i] - (double)due[i]);
        worst = d > worst || isnan(d) ? d : worst;
        sum += d;
    }
    p->worst[position] = worst;
    p->sum[position] = sum;
}

static bool tensor_get(const load_st *st, int32_t i, const char *what, const char *type,
                       int32_t n_dim, load_st_tensor *out) {
    char name[48];
    snprintf(name, sizeof name, "p%d.%s", i, what);
    return load_st_find(st, name, out) && strcmp(out->dtype, type) == 0 && out->n_dim == n_dim;
}

/* False: no prompt i in the file. */
static weft_status prompt_load(const load_st *st, int32_t i, int32_t n_vocab, golden_prompt *p,
                               bool *found, weft_error *err) {
    load_st_tensor ids, logits, greedy, gap;
    *found = tensor_get(st, i, "ids", "I64", 1, &ids);
    if (!*found)
        return WEFT_OK;
    if (!tensor_get(st, i, "logits", "F32", 2, &logits) || logits.dim[0] != ids.dim[0] ||
        logits.dim[1] != n_vocab)
        return error_set(err, WEFT_ERR_FILE, "p%d.logits: expected F32 [%lld, %d]", i,
                         (long long)ids.dim[0], n_vocab);
    if (!tensor_get(st, i, "greedy", "I64", 1, &greedy) ||
        !tensor_get(st, i, "gap", "F32", 1, &gap) || gap.dim[0] != greedy.dim[0])
        return error_set(err, WEFT_ERR_FILE, "p%d.greedy, p%d.gap: expected I64 [k] and F32 [k]", i,
                         i);
    *p = (golden_prompt){.logits = logits.data,
                         .greedy_due = greedy.data,
                         .gap = gap.data,
                         .n = (int32_t)ids.dim[0],
                         .n_greedy = (int32_t)greedy.dim[0],
                         .n_vocab = n_vocab};
    p->ids = malloc((size_t)p->n * sizeof *p->ids);
    p->greedy = calloc((size_t)p->n_greedy + 1, sizeof *p->greedy);
    p->worst = calloc((size_t)p->n, sizeof *p->worst);
    p->sum = calloc((size_t)p->n, sizeof *p->sum);
    if (!p->ids || !p->greedy || !p->worst || !p->sum)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a prompt of %d tokens", p->n);
    for (int32_t t = 0; t < p->n; t++)
        p->ids[t] = (int32_t)((const int64_t *)ids.data)[t];
    return WEFT_OK;
}

typedef struct golden_score {
    double worst, mean;
    int32_t equal, total, prompts;
} golden_score;

static golden_score score(const golden_prompt *p, int32_t n, double tolerance) {
    golden_score s = {.prompts = n};
    double cells = 0;
    for (int32_t i = 0; i < n; i++) {
        for (int32_t t = 0; t < p[i].n; t++) {
            s.worst = p[i].worst[t] > s.worst || isnan(p[i].worst[t]) ? p[i].worst[t] : s.worst;
            s.mean += p[i].sum[t];
        }
        cells += (double)p[i].n * p[i].n_vocab;
        bool same = true; /* once two texts part, all later steps count as different */
        for (int32_t t = 0; t < p[i].n_greedy && (double)p[i].gap[t] >= 2 * tolerance; t++) {
            same = same && p[i].greedy[t] == (int32_t)p[i].greedy_due[t];
            s.equal += same;
            s.total++;
        }
    }
    s.mean = cells > 0 ? s.mean / cells : 0;
    return s;
}

/* Returns the exit code. */
static int report(const eval_values *v, golden_score g) {
    double tolerance = (double)v->tolerance;
    bool same = g.worst <= tolerance && g.equal == g.total; /* a NaN is not */
    int rc = 0;
    if (v->json)
        rc = cli_json_print(json_pack("{s:f, s:f, s:i, s:i, s:i, s:b}", "max_abs_diff", g.worst,
                                      "mean_abs_diff", g.mean, "greedy_equal", g.equal,
                                      "greedy_total", g.total, "prompts", g.prompts, "same", same));
    else
        printf("logits: largest difference %.3g, mean %.3g over %d prompts\ngreedy: %d of %d "
               "steps equal (gap >= %g)\n%s within --tolerance %g\n",
               g.worst, g.mean, g.prompts, g.equal, g.total, 2 * tolerance, same ? "all" : "not",
               tolerance);
    return rc != 0 ? rc : !same;
}

int eval_golden(const eval_values *v, weft_model *model) {
    weft_error err = {0};
    load_st *st = NULL;
    golden_prompt *p = calloc(MAX_PROMPT, sizeof *p);
    evaluate_prompt run[MAX_PROMPT] = {0};
    weft_model_info info;
    weft_model_get_info(model, &info);
    int32_t n = 0;
    weft_status s =
        p ? load_st_open(v->reference, &st, &err) : error_set(&err, WEFT_ERR_MEMORY, "no memory");
    for (bool found = true; s == WEFT_OK && found && n < MAX_PROMPT; n += s == WEFT_OK && found)
        s = prompt_load(st, n, info.n_vocab, &p[n], &found, &err);
    if (s == WEFT_OK && n == 0)
        s = error_set(&err, WEFT_ERR_FILE, "%.300s: no tensor p0.ids: not a golden file",
                      v->reference);
    for (int32_t i = 0; i < n; i++)
        run[i] = (evaluate_prompt){p[i].ids,    p[i].n,      p[i].n_greedy > 0 ? p[i].n_greedy : 1,
                                   p[i].greedy, row_compare, &p[i]};
    if (s == WEFT_OK)
        s = evaluate_run(model, &v->engine, run, n, &err);
    int rc = s == WEFT_OK ? 0 : cli_fail(&err);
    if (s == WEFT_OK)
        rc = report(v, score(p, n, (double)v->tolerance));
    for (int32_t i = 0; p && i < MAX_PROMPT; i++) {
        free(p[i].ids);
        free(p[i].greedy);
        free(p[i].worst);
        free(p[i].sum);
    }
    free(p);
    load_st_close(st);
    return rc;
}
