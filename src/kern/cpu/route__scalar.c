/* The router of a mixture of experts: one row of logits -> slots. One version for every level: a
 * row is a few thousand operations. The name gives it the flags of scalar kernels, for fmaf. */
#include <assert.h>

#include "kern/cpu/linear_isa.h"
#include "kern/exact_math.h"

/* Order of choice: larger first, a NaN below every number. Equal ones are left to the caller, who
 * goes through the ids upward. */
static bool above(float a, float b) {
    return a > b || (a == a && b != b);
}

static void softmax(float *x, int32_t n) {
    float max = x[0], sum = 0.0f;
    for (int32_t i = 1; i < n; i++)
        max = above(x[i], max) ? x[i] : max;
    for (int32_t i = 0; i < n; i++) {
        x[i] = exact_exp_neg(x[i] - max);
        sum = sum + x[i];
    }
    for (int32_t i = 0; i < n; i++)
        x[i] = x[i] / sum;
}

/* The n_pick best of those that are open. */
static void choose(const float *score, const bool *open, int32_t n, int32_t n_pick, bool *chosen) {
    for (int32_t k = 0; k < n_pick; k++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++)
            if (open[i] && !chosen[i] && (best < 0 || above(score[i], score[best])))
                best = i;
        assert(best >= 0);
        chosen[best] = true;
    }
}

static float group_score(const float *score, int32_t n, bool two) {
    int32_t best = 0, second = -1;
    for (int32_t i = 1; i < n; i++) {
        if (above(score[i], score[best])) {
            second = best;
            best = i;
        } else if (second < 0 || above(score[i], score[second])) {
            second = i;
        }
    }
    return two && second >= 0 ? score[best] + score[second] : score[best];
}

/* The experts of the groups that may be used. */
static void open_groups(const kern_route *p, const float *score, bool *open) {
    int32_t n_group = p->n_group > 1 ? p->n_group : 1, size = p->n_expert / n_group;
    int32_t n_used = n_group > 1 ? p->n_group_used : 1;
    float best[KERN_MAX_EXPERT];
    bool any[KERN_MAX_EXPERT], used[KERN_MAX_EXPERT] = {false};
    for (int32_t g = 0; g < n_group; g++) {
        best[g] = group_score(score + g * size, size, p->kind == KERN_ROUTE_SIGMOID);
        any[g] = true;
    }
    choose(best, any, n_group, n_used, used);
    for (int32_t e = 0; e < p->n_expert; e++)
        open[e] = used[e / size];
}

static void renorm(const kern_route *p, float *weight) {
    float sum = 0.0f;
    for (int32_t i = 0; i < p->n_used; i++)
        sum = sum + weight[i];
    if (p->kind == KERN_ROUTE_SIGMOID)
        sum = sum + 1e-20f;
    for (int32_t i = 0; i < p->n_used; i++)
        weight[i] = weight[i] / sum;
}

void cpu_route_row(const kern_route *p, const float *logit, int32_t *expert, float *weight) {
    float s[KERN_MAX_EXPERT], score[KERN_MAX_EXPERT];
    bool open[KERN_MAX_EXPERT], chosen[KERN_MAX_EXPERT] = {false};
    const float *correction = cpu_ptr(p->correction), *each = cpu_ptr(p->expert_scale);
    assert(p->n_expert <= KERN_MAX_EXPERT);
    for (int32_t e = 0; e < p->n_expert; e++) {
        float l = logit[e] * p->logit_scale;
        s[e] = p->kind == KERN_ROUTE_SIGMOID ? exact_sigmoid(l) : l;
    }
    if (p->kind == KERN_ROUTE_SOFTMAX)
        softmax(s, p->n_expert);
    for (int32_t e = 0; e < p->n_expert; e++)
        score[e] = correction ? s[e] + correction[e] : s[e];
    open_groups(p, score, open);
    choose(score, open, p->n_expert, p->n_used, chosen);
    for (int32_t e = 0, i = 0; e < p->n_expert; e++)
        if (chosen[e]) {
            expert[i] = e;
            weight[i++] = s[e];
        }
    if (p->kind == KERN_ROUTE_CHOSEN)
        softmax(weight, p->n_used);
    else if (p->renorm)
        renorm(p, weight);
    for (int32_t i = 0; i < p->n_used; i++) {
        float w = weight[i] * p->scale;
        w = each ? w * each[expert[i]] : w;
        weight[i] = w == w ? w : cpu_nan();
    }
}
