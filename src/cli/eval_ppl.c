/* weft eval ppl: perplexity of a text, or perplexity, KL and same-top against stored
 * log-probabilities of a reference. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/eval.h"
#include "cli/evaluate.h"
#include "cli/json.h"
#include "load/load.h"
#include "sample/sample.h"

/* One piece of text: nll[t] = -log p(ids[t + 1] | ids[0..t]), and the most likely next token. */
typedef struct piece {
    const kern_table *k;
    int32_t *ids;
    double *nll;           /* [n - 1] */
    int32_t *top;          /* [n] */
    double *kl;            /* [n] or NULL: filled for positions >= kl_from */
    const int32_t *ref_id; /* [n - kl_from][n_ref] */
    const float *ref_logprob;
    int32_t n, kl_from, n_ref;
} piece;

/* KL(reference || weft) at one position from the reference's n most likely tokens; all the rest is
 * one more outcome. */
static double kl_of(const piece *p, int32_t position, const float *logits, int32_t n_vocab,
                    double lse) {
    const int32_t *id = p->ref_id + (size_t)(position - p->kl_from) * (size_t)p->n_ref;
    const float *lp = p->ref_logprob + (size_t)(position - p->kl_from) * (size_t)p->n_ref;
    double kl = 0, mass_ref = 0, mass = 0;
    for (int32_t i = 0; i < p->n_ref; i++) {
        if (id[i] < 0 || id[i] >= n_vocab)
            return NAN;
        double q = (double)logits[id[i]] - lse;
        kl += exp((double)lp[i]) * ((double)lp[i] - q);
        mass_ref += exp((double)lp[i]);
        mass += exp(q);
    }
    double rest_ref = 1 - mass_ref, rest = 1 - mass;
    if (rest_ref > 1e-9 && rest > 1e-9)
        kl += rest_ref * log(rest_ref / rest);
    return kl;
}

static void row_score(void *user, int32_t position, const float *logits, int32_t n_vocab) {
    piece *p = user;
    double lse = sample_lse(p->k, logits, n_vocab);
    if (position + 1 < p->n)
        p->nll[position] = lse - (double)logits[p->ids[position + 1]];
    p->top[position] = evaluate_argmax(logits, n_vocab);
    if (p->kl && position >= p->kl_from)
        p->kl[position] = kl_of(p, position, logits, n_vocab, lse);
}

static weft_status piece_make(piece *p, const int32_t *ids, int32_t n, weft_error *err) {
    *p = (piece){.n = n, .kl_from = n};
    p->ids = malloc((size_t)n * sizeof *p->ids);
    p->nll = calloc((size_t)n, sizeof *p->nll);
    p->top = calloc((size_t)n, sizeof *p->top);
    if (!p->ids || !p->nll || !p->top)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a text of %d tokens", n);
    memcpy(p->ids, ids, (size_t)n * sizeof *ids);
    return WEFT_OK;
}

static void pieces_free(piece *p, int32_t n) {
    for (int32_t i = 0; p && i < n; i++) {
        free(p[i].ids);
        free(p[i].nll);
        free(p[i].top);
        free(p[i].kl);
    }
    free(p);
}

static weft_status pieces_run(const eval_values *v, weft_model *model, piece *p, int32_t n,
                              weft_error *err) {
    const kern_table *k;
    weft_status s = kern_cpu_table(v->engine.isa, &k, err);
    if (s != WEFT_OK)
        return s;
    evaluate_prompt *run = calloc((size_t)n, sizeof *run);
    if (!run)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d texts", n);
    for (int32_t i = 0; i < n; i++) {
        p[i].k = k;
        run[i] = (evaluate_prompt){p[i].ids, p[i].n, 1, NULL, row_score, &p[i]};
    }
    s = evaluate_run(model, &v->engine, run, n, err);
    free(run);
    return s;
}

/* Perplexity of positions [from, n - 1) of some pieces. */
static double perplexity(const piece *p, int32_t n, int32_t from) {
    double sum = 0, count = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = from; t + 1 < p[i].n; t++, count++)
            sum += p[i].nll[t];
    return exp(sum / count);
}

/* ---- a text file ---- */

int eval_ppl_file(const eval_values *v, weft_model *model, const char *path) {
    char *text = NULL;
    size_t bytes = 0, n = 0;
    int32_t *ids = NULL, n_piece = 0;
    piece *p = NULL;
    weft_error err = {0};
    weft_status s = cli_read_text(path, &text, &bytes, &err);
    if (s == WEFT_OK)
        s = weft_tokenize(model, text, bytes, WEFT_TEXT_PLAIN, NULL, 0, &n, &err);
    if (s == WEFT_OK && !(ids = malloc((n + 1) * sizeof *ids)))
        s = error_set(&err, WEFT_ERR_MEMORY, "no memory for %zu tokens", n);
    if (s == WEFT_OK)
        s = weft_tokenize(model, text, bytes, WEFT_TEXT_PLAIN, ids, n, &n, &err);
    n_piece = (int32_t)(n / (size_t)v->window);
    if (s == WEFT_OK && n_piece == 0)
        s = error_set(&err, WEFT_ERR_USAGE, "%.300s: %zu tokens, fewer than one --window of %d",
                      path, n, v->window);
    if (s == WEFT_OK && !(p = calloc((size_t)n_piece, sizeof *p)))
        s = error_set(&err, WEFT_ERR_MEMORY, "no memory for %d texts", n_piece);
    for (int32_t i = 0; i < n_piece && s == WEFT_OK; i++)
        s = piece_make(&p[i], ids + (size_t)i * (size_t)v->window, v->window, &err);
    if (s == WEFT_OK)
        s = pieces_run(v, model, p, n_piece, &err);
    int rc = s == WEFT_OK ? 0 : cli_fail(&err);
    if (s == WEFT_OK) {
        double ppl = perplexity(p, n_piece, v->window / 2 - 1);
        if (v->json)
            rc = cli_json_print(
                json_pack("{s:f, s:i, s:i}", "ppl", ppl, "pieces", n_piece, "window", v->window));
        else
            printf("perplexity %.4f over the second halves of %d pieces of %d tokens\n", ppl,
                   n_piece, v->window);
    }
    pieces_free(p, n_piece);
    free(ids);
    free(text);
    return rc;
}

/* ---- a reference ---- */

typedef struct reference {
    load_st *file;
    load_st_tensor ids, nll, topk_id, topk_logprob, long_ids, long_nll, long_argmax;
} reference;

static weft_status reference_open(const char *path, reference *r, weft_error *err) {
    weft_status s = load_st_open(path, &r->file, err);
    if (s != WEFT_OK)
        return s;
    const struct {
        const char *name, *dtype;
        int32_t n_dim;
        load_st_tensor *to;
    } due[] = {
        {"chunks.ids", "I32", 2, &r->ids},
        {"chunks.nll", "F32", 2, &r->nll},
        {"chunks.topk_id", "I32", 3, &r->topk_id},
        {"chunks.topk_logprob", "F32", 3, &r->topk_logprob},
        {"long.ids", "I32", 1, &r->long_ids},
        {"long.nll", "F32", 1, &r->long_nll},
        {"long.argmax", "I32", 1, &r->long_argmax},
    };
    for (size_t i = 0; i < sizeof due / sizeof *due; i++)
        if (!load_st_find(r->file, due[i].name, due[i].to) ||
            strcmp(due[i].to->dtype, due[i].dtype) != 0 || due[i].to->n_dim != due[i].n_dim)
            return error_set(err, WEFT_ERR_FILE, "%.300s: %s: expected %s with %d dimensions", path,
                             due[i].name, due[i].dtype, due[i].n_dim);
    int64_t c = r->ids.dim[0], n = r->ids.dim[1], k = r->topk_id.dim[1];
    if (c < 1 || n < 2 || n > 1 << 20 || r->nll.dim[0] != c || r->nll.dim[1] != n - 1 ||
        r->topk_id.dim[0] != c || k < 1 || k >= n || r->topk_logprob.dim[0] != c ||
        r->topk_logprob.dim[1] != k || r->topk_logprob.dim[2] != r->topk_id.dim[2] ||
        r->long_nll.dim[0] != r->long_ids.dim[0] - 1 || r->long_argmax.dim[0] != r->long_ids.dim[0])
        return error_set(err, WEFT_ERR_FILE,
                         "%.300s: the shapes of chunks.* or long.* do not fit together", path);
    return WEFT_OK;
}

/* The chunks, their top-k columns at positions n - 1 - k .. n - 2, and the long text last. */
static weft_status reference_pieces(const reference *r, piece *p, weft_error *err) {
    int32_t c = (int32_t)r->ids.dim[0], n = (int32_t)r->ids.dim[1], k = (int32_t)r->topk_id.dim[1],
            m = (int32_t)r->topk_id.dim[2];
    for (int32_t i = 0; i < c; i++) {
        weft_status s =
            piece_make(&p[i], (const int32_t *)r->ids.data + (size_t)i * (size_t)n, n, err);
        if (s != WEFT_OK)
            return s;
        p[i].kl_from = n - 1 - k;
        p[i].n_ref = m;
        p[i].ref_id = (const int32_t *)r->topk_id.data + (size_t)i * (size_t)k * (size_t)m;
        p[i].ref_logprob = (const float *)r->topk_logprob.data + (size_t)i * (size_t)k * (size_t)m;
        if (!(p[i].kl = calloc((size_t)n, sizeof *p[i].kl)))
            return error_set(err, WEFT_ERR_MEMORY, "no memory for a text of %d tokens", n);
    }
    return piece_make(&p[c], r->long_ids.data, (int32_t)r->long_ids.dim[0], err);
}

typedef struct scores {
    double ppl, ppl_ref, kl, kl_max, same_top, long_ppl, long_ppl_ref, long_same_top;
    int32_t scored;
} scores;

static double mean_exp(const float *nll, int32_t from, int32_t n, int32_t stride, int32_t rows) {
    double sum = 0;
    for (int32_t i = 0; i < rows; i++)
        for (int32_t t = from; t < n; t++)
            sum += (double)nll[(size_t)i * (size_t)stride + (size_t)t];
    return exp(sum / ((double)rows * (n - from)));
}

static scores reference_score(const reference *r, const piece *p) {
    int32_t c = (int32_t)r->ids.dim[0], n = (int32_t)r->ids.dim[1], from = p[0].kl_from, same = 0,
            long_n = p[c].n;
    scores s = {.ppl = perplexity(p, c, from),
                .ppl_ref = mean_exp(r->nll.data, from, n - 1, n - 1, c)};
    for (int32_t i = 0; i < c; i++)
        for (int32_t t = from; t < n - 1; t++, s.scored++) {
            s.kl += p[i].kl[t];
            s.kl_max = p[i].kl[t] > s.kl_max ? p[i].kl[t] : s.kl_max;
            same += p[i].top[t] == p[i].ref_id[(size_t)(t - from) * (size_t)p[i].n_ref];
        }
    s.kl /= s.scored;
    s.same_top = (double)same / s.scored;
    s.long_ppl = perplexity(&p[c], 1, 0);
    s.long_ppl_ref = mean_exp(r->long_nll.data, 0, long_n - 1, long_n - 1, 1);
    same = 0;
    for (int32_t t = 0; t < long_n; t++)
        same += p[c].top[t] == ((const int32_t *)r->long_argmax.data)[t];
    s.long_same_top = (double)same / long_n;
    return s;
}

static int scores_print(const eval_values *v, const scores *s) {
    if (v->json)
        return cli_json_print(json_pack("{s:f, s:f, s:f, s:f, s:f, s:i, s:f, s:f, s:f}", "ppl",
                                        s->ppl, "ppl_reference", s->ppl_ref, "kl_mean", s->kl,
                                        "kl_max", s->kl_max, "same_top", s->same_top, "scored",
                                        s->scored, "long_ppl", s->long_ppl, "long_ppl_reference",
                                        s->long_ppl_ref, "long_same_top", s->long_same_top));
    printf("perplexity %.4f, reference %.4f (%d tokens)\nmean KL %.6f, largest %.4f\nsame top "
           "token %.2f %%\n",
           s->ppl, s->ppl_ref, s->scored, s->kl, s->kl_max, 100 * s->same_top);
    printf("long text: perplexity %.4f, reference %.4f, same top token %.2f %%\n", s->long_ppl,
           s->long_ppl_ref, 100 * s->long_same_top);
    return 0;
}

int eval_ppl_reference(const eval_values *v, weft_model *model) {
    weft_error err = {0};
    reference r = {0};
    piece *p = NULL;
    int32_t n = 0;
    weft_status s = reference_open(v->reference, &r, &err);
    if (s == WEFT_OK) {
        n = (int32_t)r.ids.dim[0] + 1;
        p = calloc((size_t)n, sizeof *p);
        s = p ? reference_pieces(&r, p, &err)
              : error_set(&err, WEFT_ERR_MEMORY, "no memory for %d texts", n);
    }
    if (s == WEFT_OK)
        s = pieces_run(v, model, p, n, &err);
    int rc;
    if (s == WEFT_OK) {
        scores sc = reference_score(&r, p);
        rc = scores_print(v, &sc);
    } else {
        rc = cli_fail(&err);
    }
    pieces_free(p, n);
    load_st_close(r.file);
    return rc;
}
