/* The order of a pick, all in double:
 *
 *   x = raw logit + bias, -inf when not finite
 *   penalties      x > 0 ? x / repetition : x * repetition for tokens of prompt or output, then
 *                  x - frequency * count - presence for tokens of the output
 *   temperature 0  the largest x
 *   temperature    x / temperature, before the cuts, as engines of the OpenAI kind do: logits
 *                  {3, 2, 1} at temperature 0.5 and top_p 0.8 keep token 0 only
 *   top-k          the k first by (x descending, id ascending)
 *   top-p          of these, the shortest prefix whose mass is at least top_p of theirs
 *   min-p          of these, probability >= min_p * largest probability
 *   Gumbel-max     the largest x + g, g = -log(-log u)
 *
 * u is a function of (seed, output index, token id) and nothing else: neighbours, chunks,
 * preemption and the ranks that the vocabulary is split over cannot move it. Two requests with one
 * seed do get the same noise at the same output index; a front that wants independent answers gives
 * each its own seed. */
#include "sample/sample.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "kern/exact_double.h"
#include "sample/noise.h"

struct sampler {
    int32_t n_vocab;
    int32_t n_finite; /* of the row in x */
    double *x;        /* [n_vocab] the row */
    int32_t *order;   /* [n_vocab] ids of the best, best first */
    int32_t *n_out;   /* [n_vocab] occurrences in the output; zero between picks */
    uint8_t *seen;    /* [n_vocab] zero between picks */
};

weft_status sampler_open(int32_t n_vocab, sampler **out, weft_error *err) {
    if (n_vocab < 1)
        return error_set(err, WEFT_ERR_SETUP, "vocabulary: %d tokens; at least 1 is needed",
                         n_vocab);
    sampler *s = calloc(1, sizeof *s);
    if (!s)
        goto undo_nothing;
    s->n_vocab = n_vocab;
    size_t n = (size_t)n_vocab;
    s->x = calloc(n, sizeof *s->x);
    s->order = calloc(n, sizeof *s->order);
    s->n_out = calloc(n, sizeof *s->n_out);
    s->seen = calloc(n, sizeof *s->seen);
    if (!s->x || !s->order || !s->n_out || !s->seen)
        goto undo_sampler;
    *out = s;
    return WEFT_OK;
undo_sampler:
    sampler_close(s);
undo_nothing:
    return error_set(err, WEFT_ERR_MEMORY, "no memory to sample from %d tokens", n_vocab);
}

void sampler_close(sampler *s) {
    if (!s)
        return;
    free(s->x);
    free(s->order);
    free(s->n_out);
    free(s->seen);
    free(s);
}

weft_status sample_check(const weft_sampling *p, weft_error *err) {
    const struct {
        const char *name;
        float value, low, high;
        bool open; /* low itself is out */
        const char *range;
    } rule[] = {
        {"temperature", p->temperature, 0.0f, 100.0f, false, "between 0 and 100"},
        {"top_p", p->top_p, 0.0f, 1.0f, true, "greater than 0 and at most 1"},
        {"min_p", p->min_p, 0.0f, 1.0f, false, "between 0 and 1"},
        {"repetition_penalty", p->repetition_penalty, 0.0f, HUGE_VALF, true,
         "finite and greater than 0"},
        {"presence_penalty", p->presence_penalty, -2.0f, 2.0f, false, "between -2 and 2"},
        {"frequency_penalty", p->frequency_penalty, -2.0f, 2.0f, false, "between -2 and 2"},
    };
    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++) {
        float v = rule[i].value;
        if (!(v >= rule[i].low && v <= rule[i].high) || !isfinite(v) ||
            (rule[i].open && v == rule[i].low))
            return error_set(err, WEFT_ERR_USAGE, "%s: %g is not %s", rule[i].name, (double)v,
                             rule[i].range);
    }
    if (p->n_top < 0 || p->n_top > WEFT_MAX_TOP)
        return error_set(err, WEFT_ERR_USAGE, "top log-probabilities: %d is not between 0 and %d",
                         p->n_top, WEFT_MAX_TOP);
    return WEFT_OK;
}

weft_status sample_check_bias(const weft_bias *bias, int32_t n_bias, int32_t n_vocab,
                              weft_error *err) {
    if (n_bias < 0 || n_bias > WEFT_MAX_BIAS)
        return error_set(err, WEFT_ERR_USAGE, "logit_bias: %d tokens; 0 to %d are possible", n_bias,
                         WEFT_MAX_BIAS);
    for (int32_t i = 0; i < n_bias; i++) {
        if (bias[i].token < 0 || bias[i].token >= n_vocab)
            return error_set(err, WEFT_ERR_USAGE, "logit_bias: token %d is not between 0 and %d",
                             bias[i].token, n_vocab - 1);
        if (!(bias[i].value >= -100.0f && bias[i].value <= 100.0f))
            return error_set(err, WEFT_ERR_USAGE,
                             "logit_bias: %g of token %d is not between -100 and 100",
                             (double)bias[i].value, bias[i].token);
    }
    return WEFT_OK;
}

double sample_lse(const float *logits, int32_t n) {
    double max = -HUGE_VAL;
    for (int32_t i = 0; i < n; i++)
        if (isfinite(logits[i]) && (double)logits[i] > max)
            max = (double)logits[i];
    if (max == -HUGE_VAL)
        return max;
    double lane[16] = {0}; /* entry j goes to lane j mod 16 */
    for (int32_t i = 0; i < n; i++)
        if (isfinite(logits[i]))
            lane[i % 16] += exact_exp((double)logits[i] - max);
    for (int32_t step = 8; step >= 1; step /= 2)
        for (int32_t j = 0; j < step; j++)
            lane[j] += lane[j + step];
    return max + exact_log(lane[0]);
}

/* WEFT_ERR_NUMERIC when no entry is finite. */
static weft_status read_row(sampler *s, const float *logits) {
    s->n_finite = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        bool finite = isfinite(logits[i]);
        s->x[i] = finite ? (double)logits[i] : -HUGE_VAL;
        s->n_finite += finite;
    }
    return s->n_finite > 0 ? WEFT_OK : WEFT_ERR_NUMERIC;
}

static bool before(const double *x, int32_t a, int32_t b) {
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

/* heap: [n] ids; a parent comes after its children in the order `before`: the root is the last. */
static void sink(const double *x, int32_t *heap, int32_t n, int32_t at) {
    int32_t id = heap[at];
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(x, heap[child], heap[child + 1]))
            child++;
        if (!before(x, id, heap[child]))
            break;
        heap[at] = heap[child];
    }
    heap[at] = id;
}

/* order[0..k) = the first k finite entries of the full sort; returns k, cut to their number. A heap
 * of the k best so far: one comparison for most entries. */
static int32_t sort_prefix(sampler *s, int32_t k) {
    int32_t *heap = s->order, n = 0;
    if (k > s->n_finite)
        k = s->n_finite;
    for (int32_t i = 0; i < s->n_vocab && k > 0; i++) {
        if (s->x[i] == -HUGE_VAL)
            continue;
        if (n < k) {
            heap[n++] = i;
            for (int32_t at = n / 2 - 1; n == k && at >= 0; at--)
                sink(s->x, heap, n, at);
        } else if (before(s->x, i, heap[0])) {
            heap[0] = i;
            sink(s->x, heap, n, 0);
        }
    }
    while (n > 1) { /* the last one goes to the end */
        int32_t last = heap[0];
        heap[0] = heap[--n];
        heap[n] = last;
        sink(s->x, heap, n, 0);
    }
    return k;
}

/* Of a row that read_row has just read: the n_top best and their log-probabilities. */
static void report_top(sampler *s, double lse, int32_t n_top, sample_result *out) {
    out->n_top = sort_prefix(s, n_top);
    for (int32_t i = 0; i < out->n_top; i++) {
        int32_t id = s->order[i];
        out->top[i] = (sample_top){.token = id, .logprob = (float)(s->x[id] - lse)};
    }
}

static void add_bias(sampler *s, const sample_context *c) {
    for (int32_t i = 0; i < c->n_bias; i++)
        s->x[c->bias[i].token] += (double)c->bias[i].value; /* -inf stays */
}

static void penalise(sampler *s, const weft_sampling *p, const sample_context *c) {
    const int32_t *tokens = c->token;
    if (p->repetition_penalty == 1.0f && p->presence_penalty == 0.0f &&
        p->frequency_penalty == 0.0f)
        return;
    double repetition = (double)p->repetition_penalty;
    for (int32_t i = c->n_prompt; i < c->n_token; i++)
        s->n_out[tokens[i]]++;
    for (int32_t i = 0; i < c->n_token; i++) {
        int32_t id = tokens[i], n = s->n_out[id];
        if (s->seen[id] || s->x[id] == -HUGE_VAL)
            continue;
        s->seen[id] = 1;
        double x = s->x[id] > 0 ? s->x[id] / repetition : s->x[id] * repetition;
        if (n > 0)
            x = x - (double)p->frequency_penalty * n - (double)p->presence_penalty;
        s->x[id] = x;
    }
    for (int32_t i = 0; i < c->n_token; i++) {
        s->n_out[tokens[i]] = 0;
        s->seen[tokens[i]] = 0;
    }
}

static int32_t largest(const sampler *s) {
    int32_t best = 0;
    for (int32_t i = 1; i < s->n_vocab; i++)
        if (s->x[i] > s->x[best])
            best = i;
    return best;
}

/* Length of the shortest prefix of the order whose mass reaches top_p of `whole`; -1 when the n
 * sorted entries do not reach it. */
static int32_t cut_top_p(const sampler *s, int32_t n, double top_p, double whole) {
    double max = s->x[s->order[0]], mass = 0;
    for (int32_t i = 0; i < n; i++) {
        mass += exact_exp(s->x[s->order[i]] - max);
        if (mass >= top_p * whole)
            return i + 1;
    }
    return -1;
}

/* Without top-k the whole mass is summed in the order of ids, so that only the prefix that top-p
 * needs has to be sorted; how much is sorted at a time does not change the prefix. */
static int32_t keep_top_p(sampler *s, double top_p) {
    double max = s->x[largest(s)], whole = 0;
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (s->x[i] != -HUGE_VAL)
            whole += exact_exp(s->x[i] - max);
    for (int32_t n = 64;; n = n > s->n_finite / 8 ? s->n_finite : n * 8) {
        int32_t sorted = sort_prefix(s, n);
        int32_t kept = cut_top_p(s, sorted, top_p, whole);
        if (kept >= 0)
            return kept;
        if (sorted == s->n_finite) /* the two orders of summing differ in the last bits */
            return sorted;
    }
}

static int32_t keep_top_k(sampler *s, int32_t top_k, double top_p) {
    int32_t n = sort_prefix(s, top_k);
    if (top_p >= 1)
        return n;
    double max = s->x[s->order[0]], whole = 0;
    for (int32_t i = 0; i < n; i++)
        whole += exact_exp(s->x[s->order[i]] - max);
    return cut_top_p(s, n, top_p, whole); /* the same sum: it is reached */
}

/* order: the kept ids, or NULL: all. */
static int32_t pick_noisy(const sampler *s, const int32_t *order, int32_t n, double min_p,
                          noise_row row) {
    int32_t best = -1, first = order ? order[0] : largest(s);
    double best_value = 0, max = s->x[first];
    for (int32_t i = 0; i < n; i++) {
        int32_t id = order ? order[i] : i;
        double x = s->x[id];
        if (x == -HUGE_VAL || (min_p > 0 && exact_exp(x - max) < min_p))
            continue;
        uint64_t u = noise_bits(row, id);
        if (best >= 0 && x + noise_bound(u) < best_value)
            continue;
        double value = x + noise_gumbel(u);
        if (best < 0 || value > best_value || (value == best_value && id < best)) {
            best = id;
            best_value = value;
        }
    }
    return best;
}

static int32_t pick(sampler *s, const weft_sampling *p, int32_t output_index) {
    if (p->temperature == 0.0f)
        return largest(s);
    if (p->temperature != 1.0f)
        for (int32_t i = 0; i < s->n_vocab; i++)
            s->x[i] /= (double)p->temperature;
    noise_row row = {.seed = p->seed, .output_index = output_index};
    double top_p = (double)p->top_p, min_p = (double)p->min_p;
    if (p->top_k > 0 && p->top_k < s->n_finite)
        return pick_noisy(s, s->order, keep_top_k(s, p->top_k, top_p), min_p, row);
    if (top_p < 1)
        return pick_noisy(s, s->order, keep_top_p(s, top_p), min_p, row);
    return pick_noisy(s, NULL, s->n_vocab, min_p, row);
}

/* Nothing but the token is wanted, and nothing changes the logits. */
static bool is_plain_greedy(const weft_sampling *p, const sample_context *c) {
    return p->temperature == 0.0f && !p->logprob && p->n_top == 0 && c->n_bias == 0 &&
           p->repetition_penalty == 1.0f && p->presence_penalty == 0.0f &&
           p->frequency_penalty == 0.0f;
}

/* The largest finite logit, the first of equal ones, by its value and then its place; -1: none. A
 * step of many requests does this for each: lanes without branches, not one comparison after the
 * other. */
static int32_t largest_logit(const float *x, int32_t n) {
    enum { LANES = 8 };
    float lane[LANES], max = -HUGE_VALF;
    int32_t i = 0;
    for (int32_t j = 0; j < LANES; j++)
        lane[j] = -HUGE_VALF;
    for (; i + LANES <= n; i += LANES)
        for (int32_t j = 0; j < LANES; j++) {
            float v = fabsf(x[i + j]) <= FLT_MAX ? x[i + j] : -HUGE_VALF;
            lane[j] = v > lane[j] ? v : lane[j];
        }
    for (; i < n; i++)
        if (isfinite(x[i]) && x[i] > max)
            max = x[i];
    for (int32_t j = 0; j < LANES; j++)
        max = lane[j] > max ? lane[j] : max;
    for (i = 0; i < n; i++)
        if (x[i] == max && max > -HUGE_VALF)
            return i;
    return -1;
}

weft_status sample_pick(sampler *s, const float *logits, const weft_sampling *p,
                        const sample_context *c, sample_result *out) {
    if (is_plain_greedy(p, c)) {
        int32_t best = largest_logit(logits, s->n_vocab);
        if (best >= 0) {
            *out = (sample_result){.token = best};
            return WEFT_OK;
        }
    }
    weft_status st = read_row(s, logits);
    if (st != WEFT_OK) { /* ends the request, so there is one line of it; scored rows may be many */
        log_error("sampling: none of a row's %d logits is finite", s->n_vocab);
        return st;
    }
    bool report = p->logprob || p->n_top > 0;
    double lse = report ? sample_lse(logits, s->n_vocab) : 0;
    report_top(s, lse, p->n_top, out);
    add_bias(s, c);
    penalise(s, p, c);
    out->token = pick(s, p, c->n_token - c->n_prompt);
    out->logprob = report ? (float)((double)logits[out->token] - lse) : 0.0f;
    return WEFT_OK;
}

weft_status sample_score(sampler *s, const float *logits, int32_t token, int32_t n_top,
                         sample_result *out) {
    assert(token >= -1 && token < s->n_vocab && n_top <= WEFT_MAX_TOP);
    weft_status st = read_row(s, logits);
    if (st != WEFT_OK)
        return st;
    double lse = sample_lse(logits, s->n_vocab);
    report_top(s, lse, n_top, out);
    out->token = token;
    out->logprob = token < 0 ? 0.0f : (float)(s->x[token] - lse); /* not finite: -inf */
    return WEFT_OK;
}
