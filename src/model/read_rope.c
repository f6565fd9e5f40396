/* RoPE: the frequencies of a table, with what stretches them for long contexts. All in double by
 * fixed formulas, so that every machine has the same table. */
#include <math.h>
#include <stdio.h>

#include "kern/exact_double.h"
#include "model/arch.h"

#define PI 3.14159265358979323846

typedef struct rope_keys {
    model_reader *r;
    char prefix[64]; /* of the scaling's members in config.json */
    int32_t dim;
    double base, factor;
} rope_keys;

static double member(rope_keys *k, const char *folder, const char *gguf, double lo, double hi,
                     double otherwise) {
    char path[128];
    snprintf(path, sizeof path, "%s%s", k->prefix, folder);
    return read_real(k->r, path, gguf, lo, hi, otherwise);
}

static int32_t original_length(rope_keys *k) {
    char path[128];
    snprintf(path, sizeof path, "%soriginal_max_position_embeddings", k->prefix);
    return read_int(k->r, path, "rope.scaling.original_context_length", 1, INT32_MAX,
                    k->r->c->context_length);
}

/* Llama 3.1: long waves are slowed by `factor`, short ones stay, between them a ramp over the wave's
 * turns in the original length. */
static void scale_llama3(rope_keys *k, double *freq) {
    double low = member(k, "low_freq_factor", NULL, 1e-3, 1e3, 1),
           high = member(k, "high_freq_factor", NULL, 1e-3, 1e3, 4);
    double length = original_length(k);
    if (!(high > low))
        read_fail(k->r, "%shigh_freq_factor %g: expected more than low_freq_factor %g", k->prefix,
                  high, low);
    for (int32_t i = 0; i < k->dim / 2; i++) {
        double turns = length * freq[i] / (2 * PI);
        double keep = (turns - low) / (high - low);
        keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
        freq[i] = (1 - keep) * freq[i] / k->factor + keep * freq[i];
    }
}

static double get_mscale(double factor, double mscale) {
    return factor <= 1 ? 1.0 : 0.1 * mscale * exact_log(factor) + 1.0;
}

/* Pair number (not whole) whose wave turns `turns` times in the original length. */
static double turning_pair(const rope_keys *k, double turns, double length) {
    return k->dim * exact_log(length / (turns * 2 * PI)) / (2 * exact_log(k->base));
}

static double clamp(double x, double lo, double hi) {
    return x < lo ? lo : x > hi ? hi : x;
}

/* YaRN: pairs beyond `high` are slowed by `factor`, pairs below `low` stay. */
static void scale_yarn(rope_keys *k, double *freq, model_rope *rope) {
    if (!(k->base > 1.001)) {
        read_fail(k->r, "YaRN over a RoPE base of %g: expected more than 1.001", k->base);
        return;
    }
    double fast = member(k, "beta_fast", "rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32),
           slow = member(k, "beta_slow", "rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1);
    double length = original_length(k);
    char path[128];
    snprintf(path, sizeof path, "%struncate", k->prefix);
    bool truncate = read_flag(k->r, path, NULL, rope->truncate);
    double low = turning_pair(k, fast, length), high = turning_pair(k, slow, length);
    enum { FAR = 1 << 30 };
    low = clamp(low, 0, FAR);
    high = clamp(high, -FAR, k->dim - 1);
    if (truncate) { /* the limits are whole: clamped before or after is the same */
        low = (double)(int32_t)low;
        high = (double)(int32_t)high + (high > (double)(int32_t)high);
    }
    high = high == low ? high + 0.001 : high;
    for (int32_t i = 0; i < k->dim / 2; i++) {
        double slowed = (i - low) / (high - low);
        slowed = slowed < 0 ? 0 : slowed > 1 ? 1 : slowed;
        freq[i] = slowed * freq[i] / k->factor + (1 - slowed) * freq[i];
    }
    double mscale = member(k, "mscale", NULL, 0, 100, 0),
           all = member(k, "mscale_all_dim", NULL, 0, 100, 0);
    double log_multiplier = read_real(k->r, NULL, "rope.scaling.yarn_log_multiplier", 0, 10, 0);
    if (log_multiplier != 0) /* GGUF holds 0.1 mscale_all_dim, and means mscale to be the same */
        mscale = all = log_multiplier / 0.1;
    double implied = mscale != 0 && all != 0
                         ? get_mscale(k->factor, mscale) / get_mscale(k->factor, all)
                         : get_mscale(k->factor, 1);
    rope->scale = member(k, "attention_factor", NULL, 1e-3, 1e3, implied);
    rope->score = all != 0 ? get_mscale(k->factor, all) * get_mscale(k->factor, all) : 1;
}

/* Where the scaling stands in config.json: rope_parameters (of newer files; perhaps one per kind of
 * layer), or rope_scaling beside rope_theta. */
static void find_prefix(rope_keys *k, const char *under) {
    bool newer = k->r->folder && load_has(k->r->file, "rope_parameters");
    if (newer && under != NULL)
        snprintf(k->prefix, sizeof k->prefix, "rope_parameters.%s.", under);
    else
        snprintf(k->prefix, sizeof k->prefix, newer ? "rope_parameters." : "rope_scaling.");
    char theta[128];
    snprintf(theta, sizeof theta, "%srope_theta", newer ? k->prefix : "");
    k->base = read_real(k->r, theta, "rope.freq_base", 1, 1e30,
                        k->r->folder ? (double)READ_MUST : 10000.0);
}

static bool type_is(rope_keys *k, const char *type) {
    char path[128];
    snprintf(path, sizeof path, "%srope_type", k->prefix);
    if (!k->r->folder || load_has(k->r->file, path))
        return read_text_is(k->r, path, "rope.scaling.type", type);
    snprintf(path, sizeof path, "%stype", k->prefix); /* older files */
    return read_text_is(k->r, path, NULL, type);
}

/* Files may have both names; then rope_type is the one that counts. */
static void read_older_type(rope_keys *k) {
    char path[128];
    snprintf(path, sizeof path, "%stype", k->prefix);
    read_text_is(k->r, path, NULL, "");
}

static bool type_is_absent(const rope_keys *k) {
    char path[128], older[128];
    if (!k->r->folder) {
        snprintf(path, sizeof path, "%s.rope.scaling.type", k->r->c->architecture);
        return !load_has(k->r->file, path);
    }
    snprintf(path, sizeof path, "%srope_type", k->prefix);
    snprintf(older, sizeof older, "%stype", k->prefix);
    return !load_has(k->r->file, path) && !load_has(k->r->file, older);
}

static void refuse_type(rope_keys *k) {
    char path[128];
    if (k->r->folder)
        snprintf(path, sizeof path, "%srope_type", k->prefix);
    else
        snprintf(path, sizeof path, "%s.rope.scaling.type", k->r->c->architecture);
    if (k->r->folder && !load_has(k->r->file, path))
        snprintf(path, sizeof path, "%stype", k->prefix);
    if (k->r->status == WEFT_OK)
        k->r->status = load_refuse(k->r->file, path,
                                   "default, linear, llama3, yarn or proportional", k->r->err);
}

/* GGUF brings Llama 3.1's stretching as a tensor of divisors, and 1e30 for the pairs of Gemma 4 that
 * do not turn. */
#define STANDS_STILL 1e29f
static void divide_by_tensor(rope_keys *k, double *freq) {
    if (k->r->folder || load_find_tensor(k->r->file, "rope_freqs.weight") == NULL)
        return;
    const load_tensor *t = read_tensor(k->r, "rope_freqs.weight", k->dim / 2, 1, true);
    for (int32_t i = 0; t != NULL && i < k->dim / 2; i++) {
        float by;
        dtype_to_f32(DTYPE_F32, (const float *)t->data + i, 1, &by);
        if (!(by >= 1e-3f && by <= 1e30f))
            read_fail(k->r, "tensor rope_freqs.weight: value %d is %g, expected 1e-3 to 1e30", i,
                      (double)by);
        freq[i] = by < STANDS_STILL ? freq[i] / (double)by : 0;
    }
}

static void stretch(rope_keys *k, double *freq, model_rope *rope) {
    k->factor = member(k, "factor", "rope.scaling.factor", 1e-3, 1e6, 1);
    double part = member(k, "partial_rotary_factor", NULL, 0, 1, 1);
    if (part != 1 && !type_is(k, "proportional"))
        read_fail(k->r, "%spartial_rotary_factor is %g: expected 1 with this rope_type", k->prefix,
                  part);
    read_older_type(k);
    if (type_is(k, "llama3"))
        scale_llama3(k, freq);
    else if (type_is(k, "yarn"))
        scale_yarn(k, freq, rope);
    else if (type_is(k, "linear"))
        for (int32_t i = 0; i < k->dim / 2; i++)
            freq[i] /= k->factor;
    else if (type_is(k, "proportional")) {
        /* only the first part of the head's pairs turns */
        for (int32_t i = 0; i < k->dim / 2; i++)
            freq[i] = i < (int32_t)(part * k->dim / 2) ? freq[i] / k->factor : 0;
    } else if (!type_is_absent(k) && !type_is(k, "default") && !type_is(k, "none"))
        refuse_type(k);
    else if (type_is_absent(k) && k->factor != 1)
        read_fail(k->r, "RoPE is scaled by %g, but nothing says how (%s is missing)", k->factor,
                  k->r->folder ? "rope_type" : "rope.scaling.type");
    divide_by_tensor(k, freq);
}

/* Unscaled frequencies into table `at`; NULL when something is wrong. */
static double *plain_table(model_reader *r, int32_t at, int32_t rope_dim, double base) {
    double *freq = read_take(r, (size_t)rope_dim / 2, sizeof *freq);
    if (freq == NULL)
        return NULL;
    double log_base = exact_log(base);
    for (int32_t i = 0; i < rope_dim / 2; i++)
        freq[i] = exact_exp(-(2.0 * i / rope_dim) * log_base);
    model_rope *rope = &r->c->rope[at];
    rope->n_pair = rope_dim / 2;
    rope->freq = freq;
    rope->scale = rope->score = 1;
    r->c->n_rope = r->c->n_rope > at + 1 ? r->c->n_rope : at + 1;
    return freq;
}

void read_rope(model_reader *r, int32_t at, int32_t rope_dim, const char *under) {
    rope_keys k = {.r = r, .dim = rope_dim};
    find_prefix(&k, under);
    double *freq = plain_table(r, at, rope_dim, k.base);
    if (freq != NULL)
        stretch(&k, freq, &r->c->rope[at]);
}

void read_rope_base(model_reader *r, int32_t at, int32_t rope_dim, double base) {
    plain_table(r, at, rope_dim, base);
}
