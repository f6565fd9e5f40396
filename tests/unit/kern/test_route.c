/* The router of mixtures of experts on every level: cases worked out by hand, and the rules of
 * kern.h once more in another way (by sorting). */
#include <math.h>

#include "route_case.h"

/* One row on every level: the ids, and the weights unless `weight` is NULL. */
static void check_row(kern_route p, const float *logits, const float *correction,
                      const int32_t *expert, const float *weight) {
    p.n_row = 1;
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        routed r = route_on(isa, p, 1, logits, correction);
        for (int32_t i = 0; i < p.n_used; i++) {
            assert_int_equal(experts_of(r)[i], expert[i]);
            if (weight)
                assert_int_equal(bits_of(buf_floats(r.weight)[i]), bits_of(weight[i]));
        }
        routed_free(r);
    }
}

/* Equal numbers: the lower ids, whatever stands between them. */
static void route_ties(void **state) {
    (void)state;
    static const float same[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const float pairs[8] = {0, 2, 1, 2, 1, 0, 2, 1};
    kern_route p = {
        .kind = KERN_ROUTE_SOFTMAX, .logit_scale = 1, .scale = 1, .n_expert = 8, .n_used = 3};
    for (int32_t kind = KERN_ROUTE_SOFTMAX; kind <= KERN_ROUTE_SIGMOID; kind++) {
        p.kind = (kern_route_kind)kind;
        check_row(p, same, NULL, (int32_t[]){0, 1, 2}, NULL);
        check_row(p, pairs, NULL, (int32_t[]){1, 3, 6}, NULL);
    }
    p.n_used = 4;
    check_row(p, pairs, NULL, (int32_t[]){1, 2, 3, 6}, NULL);
}

/* Logits made smaller before anything else; each expert's weight times a number of its own. */
static void route_scales(void **state) {
    (void)state;
    static const float rising[4] = {-4, 0, 20, 8}, each[4] = {1, 1, 0.5f, 3};
    kern_route p = {.kind = KERN_ROUTE_SOFTMAX,
                    .renorm = true,
                    .logit_scale = 0.25f,
                    .scale = 2,
                    .n_expert = 4,
                    .n_used = 2,
                    .expert_scale = {(uintptr_t)each}};
    float s[4], sum = 0;
    for (int32_t e = 0; e < 4; e++)
        sum += s[e] = exact_exp_neg(rising[e] * 0.25f - 5);
    for (int32_t e = 0; e < 4; e++)
        s[e] /= sum;
    sum = s[2] + s[3];
    check_row(p, rising, NULL, (int32_t[]){2, 3},
              (float[]){s[2] / sum * 2 * 0.5f, s[3] / sum * 2 * 3});
    p.kind = KERN_ROUTE_SIGMOID;
    p.renorm = false;
    check_row(p, rising, NULL, (int32_t[]){2, 3},
              (float[]){exact_sigmoid(5) * 2 * 0.5f, exact_sigmoid(2) * 2 * 3});
}

/* Weights in order of id and not of size; what each kind makes of equal logits is known exactly. */
static void route_weights(void **state) {
    (void)state;
    static const float same[4] = {3, 3, 3, 3};
    static const float zeros[4] = {0};
    kern_route p = {
        .kind = KERN_ROUTE_SOFTMAX, .logit_scale = 1, .scale = 1, .n_expert = 4, .n_used = 2};
    check_row(p, same, NULL, (int32_t[]){0, 1}, (float[]){0.25f, 0.25f});
    p.renorm = true;
    check_row(p, same, NULL, (int32_t[]){0, 1}, (float[]){0.5f, 0.5f});
    p.scale = 2.5f;
    check_row(p, same, NULL, (int32_t[]){0, 1}, (float[]){1.25f, 1.25f});
    p.kind = KERN_ROUTE_CHOSEN;
    p.renorm = false;
    check_row(p, same, NULL, (int32_t[]){0, 1}, (float[]){1.25f, 1.25f});
    p.kind = KERN_ROUTE_SIGMOID;
    check_row(p, zeros, NULL, (int32_t[]){0, 1}, (float[]){1.25f, 1.25f});
    p.renorm = true;
    p.scale = 1;
    check_row(p, zeros, NULL, (int32_t[]){0, 1}, (float[]){0.5f, 0.5f});
    static const float rising[4] = {-1, 0, 5, 2};
    float a = exact_exp_neg(0), b = exact_exp_neg(-3), sum = a + b;
    p.kind = KERN_ROUTE_CHOSEN;
    check_row(p, rising, NULL, (int32_t[]){2, 3}, (float[]){a / sum, b / sum});
}

/* A correction decides who is chosen and leaves the weights alone. */
static void route_correction(void **state) {
    (void)state;
    static const float logits[6] = {2, 1, 0, -1, -2, -3};
    static const float correction[6] = {-1, 0, 0, 0, 0.9f, 0};
    kern_route p = {
        .kind = KERN_ROUTE_SIGMOID, .logit_scale = 1, .scale = 1, .n_expert = 6, .n_used = 2};
    check_row(p, logits, NULL, (int32_t[]){0, 1}, (float[]){exact_sigmoid(2), exact_sigmoid(1)});
    check_row(p, logits, correction, (int32_t[]){1, 4},
              (float[]){exact_sigmoid(1), exact_sigmoid(-2)});
}

/* 4 groups of 3. By the two best 3 + 3 beats 5 + 0 and 4 + 1; by the best alone it does not. */
static void route_groups(void **state) {
    (void)state;
    static const float logits[12] = {-9, -9, -9, 5, -9, -9, 3, 3, -9, 4, -9, -9};
    kern_route p = {.kind = KERN_ROUTE_SIGMOID,
                    .logit_scale = 1,
                    .scale = 1,
                    .n_expert = 12,
                    .n_used = 2,
                    .n_group = 4,
                    .n_group_used = 1};
    check_row(p, logits, NULL, (int32_t[]){6, 7}, (float[]){exact_sigmoid(3), exact_sigmoid(3)});
    p.n_group_used = 2;
    p.n_used = 3;
    check_row(p, logits, NULL, (int32_t[]){3, 6, 7}, NULL);
    p.kind = KERN_ROUTE_SOFTMAX;
    check_row(p, logits, NULL, (int32_t[]){3, 4, 9}, NULL);
    /* equal groups: the lower ones */
    static const float same[12] = {0};
    p.kind = KERN_ROUTE_SIGMOID;
    check_row(p, same, NULL, (int32_t[]){0, 1, 2}, NULL);
    p.n_used = 6;
    check_row(p, same, NULL, (int32_t[]){0, 1, 2, 3, 4, 5}, NULL);
    /* groups of one expert have one best */
    p.n_group = 12;
    p.n_group_used = 3;
    p.n_used = 3;
    check_row(p, logits, NULL, (int32_t[]){3, 6, 9}, NULL);
}

/* The rules once more: numbers by rank, that is by how many are before them. */
typedef struct ranked {
    float score;
    int32_t id;
} ranked;

static int ranked_compare(const void *pa, const void *pb) {
    const ranked *a = pa, *b = pb;
    if (isnan(a->score) != isnan(b->score))
        return isnan(a->score) ? 1 : -1;
    if (a->score != b->score && !isnan(a->score))
        return a->score > b->score ? -1 : 1;
    return a->id - b->id;
}

static void reference_softmax(const float *x, int32_t n, float *out) {
    float max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int32_t i = 0; i < n; i++) {
        out[i] = exact_exp_neg(x[i] - max);
        sum += out[i];
    }
    for (int32_t i = 0; i < n; i++)
        out[i] /= sum;
}

static int int_compare(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void reference_route(const kern_route *p, const float *l, const float *correction,
                            int32_t *expert, float *weight) {
    float s[KERN_MAX_EXPERT];
    ranked order[KERN_MAX_EXPERT], group[KERN_MAX_EXPERT];
    int32_t n_group = p->n_group > 1 ? p->n_group : 1, size = p->n_expert / n_group, n = 0;
    float scaled[KERN_MAX_EXPERT];
    for (int32_t e = 0; e < p->n_expert; e++)
        s[e] = scaled[e] = l[e] * p->logit_scale;
    if (p->kind == KERN_ROUTE_SOFTMAX)
        reference_softmax(scaled, p->n_expert, s);
    if (p->kind == KERN_ROUTE_SIGMOID)
        for (int32_t e = 0; e < p->n_expert; e++)
            s[e] = exact_sigmoid(scaled[e]);
    for (int32_t e = 0; e < p->n_expert; e++)
        order[e] = (ranked){correction ? s[e] + correction[e] : s[e], e};
    for (int32_t g = 0; g < n_group; g++) {
        qsort(order + g * size, (size_t)size, sizeof *order, ranked_compare);
        group[g] = (ranked){order[g * size].score, g};
        if (p->kind == KERN_ROUTE_SIGMOID && size > 1)
            group[g].score += order[g * size + 1].score;
    }
    qsort(group, (size_t)n_group, sizeof *group, ranked_compare);
    for (int32_t e = 0; e < p->n_expert; e++)
        for (int32_t g = 0; g < (n_group > 1 ? p->n_group_used : 1); g++)
            if (order[e].id / size == group[g].id)
                order[n++] = order[e];
    qsort(order, (size_t)n, sizeof *order, ranked_compare);
    for (int32_t i = 0; i < p->n_used; i++)
        expert[i] = order[i].id;
    qsort(expert, (size_t)p->n_used, sizeof *expert, int_compare);
    float sum = 0;
    for (int32_t i = 0; i < p->n_used; i++) {
        weight[i] = s[expert[i]];
        sum += weight[i];
    }
    if (p->kind == KERN_ROUTE_CHOSEN) {
        float chosen[KERN_MAX_EXPERT];
        memcpy(chosen, weight, (size_t)p->n_used * sizeof *weight);
        reference_softmax(chosen, p->n_used, weight);
    }
    if (p->kind == KERN_ROUTE_SIGMOID)
        sum += 1e-20f;
    for (int32_t i = 0; i < p->n_used; i++) {
        if (p->renorm && p->kind != KERN_ROUTE_CHOSEN)
            weight[i] /= sum;
        weight[i] *= p->scale;
        if (p->expert_scale.at)
            weight[i] *= ((const float *)p->expert_scale.at)[expert[i]];
        if (isnan(weight[i]))
            weight[i] = float_of(0xFFC00000u);
    }
}

static float router_logit(int32_t how) {
    static const float special[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 3e38f, -3e38f, 1.0f};
    if (how == 0)
        return rng_float() * 8.0f;
    if (how == 1)
        return (float)rng_below(5); /* many ties */
    return rng_below(4) ? rng_float() * 100.0f : special[rng_below(8)];
}

static void check_route(kern_route p, int32_t how, bool corrected, int32_t n_thread) {
    int32_t n = p.n_row * p.n_expert;
    buf logits = buf_take((size_t)n * 4), correction = buf_take((size_t)p.n_expert * 4);
    for (int32_t i = 0; i < n; i++)
        buf_floats(logits)[i] = router_logit(how);
    for (int32_t e = 0; e < p.n_expert; e++)
        buf_floats(correction)[e] = how == 1 ? (float)rng_below(3) : rng_float();
    const float *add = corrected ? buf_floats(correction) : NULL;
    if (how == 1) /* some are 0 */
        p.expert_scale = correction.mem;
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        routed r = route_on(isa, p, n_thread, buf_floats(logits), add);
        for (int32_t row = 0; row < p.n_row; row++) {
            int32_t expert[KERN_MAX_EXPERT];
            float weight[KERN_MAX_EXPERT];
            reference_route(&p, buf_floats(logits) + row * p.n_expert, add, expert, weight);
            assert_memory_equal(experts_of(r) + row * p.n_used, expert, (size_t)p.n_used * 4);
            assert_same_floats(buf_floats(r.weight) + row * p.n_used, weight, (size_t)p.n_used,
                               "weight");
        }
        routed_free(r);
    }
    buf_free(logits);
    buf_free(correction);
}

static void route_random(void **state) {
    (void)state;
    static const int32_t counts[] = {8, 32, 60, 128, 256, KERN_MAX_EXPERT};
    for (int32_t round = 0; round < 108; round++) {
        kern_route p = {.kind = (kern_route_kind)(round % 3),
                        .renorm = round / 3 % 2,
                        .logit_scale = round % 7 ? 1.0f : 0.3f,
                        .scale = round % 5 ? 1.0f : 2.5f,
                        .n_row = 1 + rng_below(4),
                        .n_expert = counts[round / 9 % 6]};
        p.n_used = 1 + rng_below(8);
        if (round % 4 > 1) {
            p.n_group = p.n_expert % 8 ? 4 : 8;
            p.n_group_used = 1 + rng_below(p.n_group);
            int32_t open = p.n_group_used * (p.n_expert / p.n_group);
            p.n_used = p.n_used < open ? p.n_used : open;
        }
        check_route(p, round / 3 % 3, round % 2, 1 + round % 3);
    }
}

/* H07: more rows and experts than any block of a kernel. */
static void route_many_rows(void **state) {
    (void)state;
    static const int32_t rows[] = {15, 16, 17, 63, 64, 65, 300};
    static const int32_t experts[] = {60, 64, 65, 160, 257, 512, 8};
    for (int32_t i = 0; i < 7; i++) {
        kern_route p = {.kind = (kern_route_kind)(i % 3),
                        .renorm = true,
                        .logit_scale = 1,
                        .scale = 1,
                        .n_row = rows[i],
                        .n_expert = experts[i],
                        .n_used = 1 + i};
        check_route(p, i % 2, false, 1 + i % 3);
    }
}

static void no_rows(void **state) {
    (void)state;
    routed_free(route_on(0, (kern_route){.n_expert = 4, .n_used = 2}, 2, NULL, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route_ties),      cmocka_unit_test(route_weights),
        cmocka_unit_test(route_scales),    cmocka_unit_test(route_correction),
        cmocka_unit_test(route_groups),    cmocka_unit_test(route_random),
        cmocka_unit_test(route_many_rows), cmocka_unit_test(no_rows),
    };
    isa_print_absent();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
