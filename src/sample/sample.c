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

enum {
    CHUNK = 240, /* entries that a loop of kern_table gets at a time: whole vectors, whole lanes */
    LANES = 8,   /* of a search for the largest */
    LSE_LANES = 16, /* of the sum of sample_lse */
    FEW = 8,        /* entries of which the best is looked for one by one */
    MAX_CUT = 128   /* twice the logarithm of the largest vocabulary are likely */
};

struct sampler {
    const kern_table *k;
    int32_t n_vocab;
    int32_t n_finite; /* of the row in x */
    double *x;        /* [n_vocab] the row */
    int32_t *n_out;   /* [n_vocab] occurrences in the output; zero between picks */
    uint8_t *seen;    /* [n_vocab] zero between picks */

    int32_t *order; /* [n_vocab] ids, the first n_taken of them the best, best first */
    int32_t n_order, n_taken, n_span, n_cut;
    int32_t cut[MAX_CUT];
    double most; /* the largest x */
    uint64_t random;
};

size_t sampler_bytes(int32_t n_vocab) {
    const sampler *s = NULL;
    return sizeof *s +
           (size_t)n_vocab * (sizeof *s->x + sizeof *s->order + sizeof *s->n_out + sizeof *s->seen);
}

weft_status sampler_open(const kern_table *k, int32_t n_vocab, sampler **out, weft_error *err) {
    if (n_vocab < 1)
        return error_set(err, WEFT_ERR_SETUP, "vocabulary: %d tokens; at least 1 is needed",
                         n_vocab);
    sampler *s = calloc(1, sizeof *s);
    if (!s)
        goto undo_nothing;
    s->k = k;
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

static int32_t min32(int32_t a, int32_t b) {
    return a < b ? a : b;
}

static bool is_finite(float x) {
    return fabsf(x) <= FLT_MAX;
}

/* A row as doubles, -inf where it is not finite. Returns how many are. */
static int32_t to_doubles(const float *logits, int32_t n, double *x) {
    int32_t n_finite = 0;
    for (int32_t i = 0; i < n; i++) {
        bool finite = is_finite(logits[i]);
        x[i] = finite ? (double)logits[i] : -HUGE_VAL;
        n_finite += finite;
    }
    return n_finite;
}

/* The largest of n numbers, none of them a NaN; -inf when n is 0. Lanes, so that one comparison does
 * not wait for the other. */
static double largest_value(const double *x, int32_t n) {
    double lane[LANES], most = -HUGE_VAL;
    int32_t i = 0;
    for (int32_t j = 0; j < LANES; j++)
        lane[j] = -HUGE_VAL;
    for (; i + LANES <= n; i += LANES)
        for (int32_t j = 0; j < LANES; j++)
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (int32_t j = 0; j < LANES; j++)
        most = lane[j] > most ? lane[j] : most;
    for (; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* The same of the finite ones among n floats. */
static float largest_finite(const float *x, int32_t n) {
    float lane[LANES], most = -HUGE_VALF;
    int32_t i = 0;
    for (int32_t j = 0; j < LANES; j++)
        lane[j] = -HUGE_VALF;
    for (; i + LANES <= n; i += LANES)
        for (int32_t j = 0; j < LANES; j++) {
            float v = is_finite(x[i + j]) ? x[i + j] : -HUGE_VALF;
            lane[j] = v > lane[j] ? v : lane[j];
        }
    for (int32_t j = 0; j < LANES; j++)
        most = lane[j] > most ? lane[j] : most;
    for (; i < n; i++)
        most = is_finite(x[i]) && x[i] > most ? x[i] : most;
    return most;
}

/* exp(x - max) of a chunk of a row: entry j goes to lane j mod 16; -inf adds +0. */
static void lse_add(const kern_table *k, const double *x, double max, int32_t n, double *lane) {
    double e[CHUNK];
    k->exp_below(x, max, n, e);
    for (int32_t i = 0; i < n; i++)
        lane[i % LSE_LANES] += e[i];
}

static double lse_end(double max, double *lane) {
    for (int32_t step = LSE_LANES / 2; step >= 1; step /= 2)
        for (int32_t j = 0; j < step; j++)
            lane[j] += lane[j + step];
    return max + exact_log(lane[0]);
}

double sample_lse(const kern_table *k, const float *logits, int32_t n) {
    double x[CHUNK], lane[LSE_LANES] = {0}, max = (double)largest_finite(logits, n);
    if (max == -HUGE_VAL)
        return max;
    for (int32_t at = 0; at < n; at += CHUNK) {
        int32_t m = min32(CHUNK, n - at);
        to_doubles(logits + at, m, x);
        lse_add(k, x, max, m, lane);
    }
    return lse_end(max, lane);
}

/* The same of a row that read_row has just read. */
static double row_lse(const sampler *s) {
    double lane[LSE_LANES] = {0}, max = largest_value(s->x, s->n_vocab);
    for (int32_t at = 0; at < s->n_vocab; at += CHUNK)
        lse_add(s->k, s->x + at, max, min32(CHUNK, s->n_vocab - at), lane);
    return lse_end(max, lane);
}

/* WEFT_ERR_NUMERIC when no entry is finite. */
static weft_status read_row(sampler *s, const float *logits) {
    s->n_finite = to_doubles(logits, s->n_vocab, s->x);
    return s->n_finite > 0 ? WEFT_OK : WEFT_ERR_NUMERIC;
}

static bool before(const double *x, int32_t a, int32_t b) {
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

/* ---- the row's entries from the best on ---- */

/* Incremental quicksort (Paredes and Navarro, "Optimal incremental sorting", 2006): order[0, n_taken) is
 * sorted; what follows up to each cut is before everything behind the cut in the order, the cuts
 * ascend from the last to the first. Taking k of n entries costs about n + k log k comparisons. Only
 * entries near the largest are there at first: mostly no others are wanted. */
static void order_begin(sampler *s) {
    s->n_taken = s->n_order = s->n_span = 0;
    s->most = largest_value(s->x, s->n_vocab);
}

/* The entries of the next span; false when there are no more. */
static bool order_fill(sampler *s) {
    static const double spans[] = {8, 24, HUGE_VAL};
    while (s->n_order == s->n_taken && s->n_span < (int32_t)(sizeof spans / sizeof *spans)) {
        double below = s->n_span > 0 ? s->most - spans[s->n_span - 1] : HUGE_VAL;
        double from = s->most - spans[s->n_span++];
        for (int32_t i = 0; i < s->n_vocab; i++)
            if (s->x[i] < below && s->x[i] >= from && s->x[i] != -HUGE_VAL)
                s->order[s->n_order++] = i;
    }
    s->n_cut = 0;
    s->cut[s->n_cut++] = s->n_order;
    return s->n_order > s->n_taken;
}

static void swap_ids(int32_t *a, int32_t *b) {
    int32_t id = *a;
    *a = *b;
    *b = id;
}

/* Cuts order[from, to) at a random entry: it goes to the place that is returned, those before it in the
 * order to its left. Where the cut lies changes the time, never the order. */
static int32_t order_cut(sampler *s, int32_t from, int32_t to) {
    int32_t *order = s->order;
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    int32_t at = from + (int32_t)((s->random >> 33) % (uint64_t)(to - from));
    int32_t pivot = order[at];
    swap_ids(&order[at], &order[to - 1]);
    int32_t left = from;
    for (int32_t i = from; i < to - 1; i++)
        if (before(s->x, order[i], pivot))
            swap_ids(&order[left++], &order[i]);
    swap_ids(&order[left], &order[to - 1]);
    return left;
}

/* The best of what is left, -1 when nothing is. */
static int32_t order_next(sampler *s) {
    if (s->n_taken == s->n_order && !order_fill(s))
        return -1;
    if (s->cut[s->n_cut - 1] == s->n_taken) { /* an entry cut at: it is in its place */
        s->n_cut--;
        return s->order[s->n_taken++];
    }
    int32_t to = s->cut[s->n_cut - 1];
    while (to - s->n_taken > FEW && s->n_cut < MAX_CUT) {
        int32_t at = order_cut(s, s->n_taken, to);
        if (at == s->n_taken)
            return s->order[s->n_taken++];
        s->cut[s->n_cut++] = to = at;
    }
    int32_t best = s->n_taken;
    for (int32_t i = best + 1; i < to; i++)
        if (before(s->x, s->order[i], s->order[best]))
            best = i;
    swap_ids(&s->order[s->n_taken], &s->order[best]);
    return s->order[s->n_taken++];
}

/* Of a row that read_row has just read: the n_top best and their log-probabilities. */
static void report_top(sampler *s, double lse, int32_t n_top, sample_result *out) {
    out->n_top = 0;
    if (n_top == 0)
        return;
    order_begin(s);
    for (int32_t id; out->n_top < n_top && (id = order_next(s)) >= 0;)
        out->top[out->n_top++] = (sample_top){.token = id, .logprob = (float)(s->x[id] - lse)};
}

/* ---- the pick ---- */

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
    double most = largest_value(s->x, s->n_vocab);
    int32_t best = 0;
    while (s->x[best] != most)
        best++;
    return best;
}

/* The shortest prefix of the order whose mass reaches top_p of `whole`; all n at most, if they do not:
 * two orders of summing differ in the last bits. Of what is taken already it needs nothing anew. */
static int32_t cut_top_p(sampler *s, int32_t n, double top_p, double whole) {
    double max = s->most, mass = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t id = i < s->n_taken ? s->order[i] : order_next(s);
        mass += exact_exp(s->x[id] - max);
        if (mass >= top_p * whole)
            return i + 1;
    }
    return n;
}

/* Without top-k the whole mass is summed in the order of ids, so that only the prefix that top-p
 * needs has to be sorted. */
static int32_t keep_top_p(sampler *s, double top_p) {
    double whole = 0, e[CHUNK];
    order_begin(s);
    for (int32_t at = 0; at < s->n_vocab; at += CHUNK) {
        int32_t m = min32(CHUNK, s->n_vocab - at);
        s->k->exp_below(s->x + at, s->most, m, e);
        for (int32_t i = 0; i < m; i++) /* +0 from an entry without probability */
            whole += e[i];
    }
    return cut_top_p(s, s->n_finite, top_p, whole);
}

static int32_t keep_top_k(sampler *s, int32_t top_k, double top_p) {
    double whole = 0;
    order_begin(s);
    for (int32_t id; s->n_taken < top_k && (id = order_next(s)) >= 0;)
        whole += top_p < 1 ? exact_exp(s->x[id] - s->most) : 0;
    int32_t n = s->n_taken;
    return top_p < 1 ? cut_top_p(s, n, top_p, whole) : n; /* the same sum: it is reached */
}

/* The best token so far: the largest x + g, of equal ones the smaller id. */
typedef struct noisy_best {
    const sampler *s;
    double max, min_p; /* the largest x; probabilities below min_p of its are left out */
    int32_t id;
    double value;
} noisy_best;

/* Most tokens are below the best one by a bound of their noise, which is cheap. */
static void noisy_try(noisy_best *b, int32_t id, uint64_t bits) {
    double x = b->s->x[id];
    if (x + noise_bound(bits) < b->value || x == -HUGE_VAL)
        return;
    if (b->min_p > 0 && exact_exp(x - b->max) < b->min_p)
        return;
    double value = x + noise_gumbel(bits);
    if (value > b->value || (value == b->value && id < b->id)) {
        b->id = id;
        b->value = value;
    }
}

/* Begins with the most likely token, which min-p never leaves out. */
static noisy_best noisy_begin(const sampler *s, int32_t first, double min_p, noise_row row) {
    double x = s->x[first];
    return (noisy_best){s, x, min_p, first, x + noise_gumbel(noise_bits(row, first))};
}

static int32_t pick_kept(const sampler *s, int32_t n, double min_p, noise_row row) {
    noisy_best b = noisy_begin(s, s->order[0], min_p, row);
    for (int32_t i = 1; i < n; i++)
        noisy_try(&b, s->order[i], noise_bits(row, s->order[i]));
    return b.id;
}

static int32_t pick_any(const sampler *s, double min_p, noise_row row) {
    uint64_t bits[CHUNK];
    noisy_best b = noisy_begin(s, largest(s), min_p, row);
    for (int32_t at = 0; at < s->n_vocab; at += CHUNK) {
        int32_t m = min32(CHUNK, s->n_vocab - at);
        if (largest_value(s->x + at, m) + NOISE_MOST < b.value)
            continue;
        s->k->noise(row, at, m, bits);
        for (int32_t i = 0; i < m; i++)
            noisy_try(&b, at + i, bits[i]);
    }
    return b.id;
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
        return pick_kept(s, keep_top_k(s, p->top_k, top_p), min_p, row);
    if (top_p < 1)
        return pick_kept(s, keep_top_p(s, top_p), min_p, row);
    return pick_any(s, min_p, row);
}

/* Nothing but the token is wanted, and nothing changes the logits. */
static bool is_plain_greedy(const weft_sampling *p, const sample_context *c) {
    return p->temperature == 0.0f && !p->logprob && p->n_top == 0 && c->n_bias == 0 &&
           p->repetition_penalty == 1.0f && p->presence_penalty == 0.0f &&
           p->frequency_penalty == 0.0f;
}

/* The token of the largest finite logit, the first of equal ones; -1: none. A step of many requests
 * does this for each. */
static int32_t largest_logit(const float *x, int32_t n) {
    float max = largest_finite(x, n);
    for (int32_t i = 0; max > -HUGE_VALF && i < n; i++)
        if (x[i] == max)
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
    double lse = report ? row_lse(s) : 0;
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
    double lse = row_lse(s);
    report_top(s, lse, n_top, out);
    out->token = token;
    out->logprob = token < 0 ? 0.0f : (float)(s->x[token] - lse); /* not finite: -inf */
    return WEFT_OK;
}
