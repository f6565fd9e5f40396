/* The sampler against a plain full sort, statistics and the field reports F01-F14. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "base/log.h"
#include "kern/kern.h"
#include "sample/sample.h"

static uint64_t rng_state;

static void seed_rng(uint64_t seed) {
    rng_state = seed * 0x9E3779B97F4A7C15u + 1;
}

static uint32_t next_random(void) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 24);
}

static int32_t below(int32_t n) {
    return (int32_t)(next_random() % (uint32_t)n);
}

static float uniform(float low, float high) {
    return low + (high - low) * (float)(next_random() % 65536) / 65536.0f;
}

static weft_sampling plain(float temperature, uint64_t seed) {
    return (weft_sampling){
        .temperature = temperature, .top_p = 1, .repetition_penalty = 1, .seed = seed};
}

static const kern_table *table(void) {
    const kern_table *k = NULL;
    assert_int_equal(kern_cpu_table(NULL, &k, NULL), WEFT_OK);
    return k;
}

static sampler *open_sampler(int32_t n_vocab) {
    sampler *s = NULL;
    assert_int_equal(sampler_open(table(), n_vocab, &s, NULL), WEFT_OK);
    return s;
}

/* The token at output index i of a request with a prompt of one token 0. */
static int32_t draw(sampler *s, const float *logits, const weft_sampling *p, int32_t i) {
    int32_t tokens[64] = {0};
    sample_result r;
    assert_in_range(i, 0, 62);
    assert_int_equal(sample_pick(s, logits, p, &(sample_context){tokens, 1, 1 + i, NULL, 0}, &r),
                     WEFT_OK);
    return r.token;
}

/* ---- the plain reference: full sort, no bounds, all of it ---- */

enum { REF_MAX = 700 };

static const double *ref_x;

static int ref_compare(const void *a, const void *b) {
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (ref_x[i] != ref_x[j])
        return ref_x[i] > ref_x[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

static int32_t ref_order(const double *x, int32_t n, int32_t *order) {
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++)
        if (isfinite(x[i]))
            order[m++] = i;
    ref_x = x;
    qsort(order, (size_t)m, sizeof *order, ref_compare);
    return m;
}

static int32_t ref_count(const int32_t *tokens, int32_t from, int32_t to, int32_t id) {
    int32_t n = 0;
    for (int32_t i = from; i < to; i++)
        n += tokens[i] == id;
    return n;
}

static void ref_logits(const float *logits, int32_t n, const weft_sampling *p,
                       const int32_t *tokens, int32_t n_prompt, int32_t n_token, double *x) {
    for (int32_t i = 0; i < n; i++) {
        x[i] = (double)logits[i];
        if (ref_count(tokens, 0, n_token, i) > 0)
            x[i] = x[i] > 0 ? x[i] / (double)p->repetition_penalty
                            : x[i] * (double)p->repetition_penalty;
        int32_t n_out = ref_count(tokens, n_prompt, n_token, i);
        if (n_out > 0)
            x[i] = x[i] - (double)p->frequency_penalty * n_out - (double)p->presence_penalty;
        if (p->temperature != 0)
            x[i] /= (double)p->temperature;
    }
}

static int32_t ref_pick(const float *logits, int32_t n, const weft_sampling *p,
                        const int32_t *tokens, int32_t n_prompt, int32_t n_token) {
    double x[REF_MAX], whole = 0, mass = 0;
    int32_t order[REF_MAX], m, kept = 0, best = -1;
    ref_logits(logits, n, p, tokens, n_prompt, n_token, x);
    m = ref_order(x, n, order);
    if (p->temperature == 0)
        return order[0];
    double max = x[order[0]], best_value = 0;
    if (p->top_k > 0 && p->top_k < m) {
        m = p->top_k;
        for (int32_t i = 0; i < m; i++)
            whole += exact_exp(x[order[i]] - max);
    } else {
        for (int32_t i = 0; i < n; i++)
            whole += isfinite(x[i]) ? exact_exp(x[i] - max) : 0;
    }
    while (kept < m && (kept == 0 || p->top_p == 1 || mass < (double)p->top_p * whole))
        mass += exact_exp(x[order[kept++]] - max);
    for (int32_t i = 0; i < kept; i++) {
        int32_t id = order[i];
        if (exact_exp(x[id] - max) < (double)p->min_p)
            continue;
        noise_row row = {p->seed, n_token - n_prompt};
        double u = (double)noise_bits(row, id) / 9007199254740992.0;
        double value = x[id] - exact_log(-exact_log(u));
        if (best < 0 || value > best_value || (value == best_value && id < best)) {
            best = id;
            best_value = value;
        }
    }
    return best;
}

static void equals_the_full_sort(void **state) {
    (void)state;
    seed_rng(1);
    for (int32_t turn = 0; turn < 1500; turn++) {
        int32_t n = 1 + below(turn % 3 == 0 ? 20 : REF_MAX), tokens[40];
        int32_t n_prompt = 1 + below(20), n_token = n_prompt + below(20);
        static float logits[REF_MAX];
        float spread = turn % 5 == 0 ? 200.0f : turn % 2 ? 1.0f : 8.0f;
        for (int32_t i = 0; i < n; i++) {
            logits[i] = uniform(-spread, spread);
            if (turn % 4 == 0) /* many ties */
                logits[i] = (float)(int32_t)logits[i];
            if (i > 0 && below(10) == 0)
                logits[i] = below(2) ? -INFINITY : below(2) ? INFINITY : NAN;
        }
        for (int32_t i = 0; i < n_token; i++)
            tokens[i] = below(n);
        weft_sampling p = plain(below(5)   ? uniform(0.05f, 3)
                                : below(2) ? 1.0f
                                           : 0.0f,
                                (uint64_t)next_random() << 32 | next_random());
        p.top_k = below(2) ? 1 + below(n + 5) : -below(2);
        p.top_p = below(2) ? uniform(0.001f, 1) : 1;
        p.min_p = below(3) ? 0 : uniform(0, 1);
        if (below(2)) {
            p.repetition_penalty = uniform(0.5f, 2);
            p.presence_penalty = uniform(-2, 2);
            p.frequency_penalty = uniform(-2, 2);
        }
        sampler *s = open_sampler(n);
        for (int32_t again = 0; again < 2; again++) { /* nothing is left over from a pick */
            sample_result r;
            assert_int_equal(sample_pick(s, logits, &p,
                                         &(sample_context){tokens, n_prompt, n_token, NULL, 0}, &r),
                             WEFT_OK);
            assert_int_equal(r.token, ref_pick(logits, n, &p, tokens, n_prompt, n_token));
        }
        sampler_close(s);
    }
}

/* ---- the generator ---- */

static void philox_known_answers(void **state) {
    (void)state;
    /* from the authors' Random123 distribution */
    uint32_t a[4] = {0}, b[4] = {~0u, ~0u, ~0u, ~0u};
    uint32_t c[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    const uint32_t a_want[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const uint32_t b_want[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    const uint32_t c_want[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
    noise_philox(a, 0, 0);
    noise_philox(b, ~0u, ~0u);
    noise_philox(c, 0xa4093822, 0x299f31d0);
    assert_memory_equal(a, a_want, sizeof a);
    assert_memory_equal(b, b_want, sizeof b);
    assert_memory_equal(c, c_want, sizeof c);
}

static void bound_holds_at_the_ends(void **state) {
    (void)state;
    const uint64_t top = UINT64_C(1) << 53;
    for (int32_t shift = 1; shift < 53; shift++)
        for (int64_t step = -3; step <= 3; step += 2) {
            uint64_t w = (UINT64_C(1) << shift) + (uint64_t)step; /* odd */
            if (w == 0 || w >= top)
                continue;
            assert_true(noise_gumbel(top - w) <= noise_bound(top - w));
            assert_true(noise_gumbel(w) <= noise_bound(w));
        }
    assert_true(isfinite(noise_gumbel(1)) && isfinite(noise_gumbel(top - 1)));
    assert_true(noise_gumbel(top - 1) > 36.7);
    noise_row row = {42, 7};
    for (int32_t id = 0; id < 200000; id++) {
        uint64_t u = noise_bits(row, id);
        assert_true(u % 2 == 1 && u < top);
        assert_true(noise_gumbel(u) <= noise_bound(u));
    }
}

/* ---- statistics; the seeds are fixed, so these cannot fail by chance ---- */

enum { N_CHI = 8 };
static const float chi_logits[N_CHI] = {1.0f, 0.0f, -1.0f, 2.0f, 0.5f, -0.5f, 1.5f, 2.0f};

static double chi_square(const int32_t *seen, const double *p, int32_t n, int32_t n_draw) {
    double chi = 0;
    for (int32_t i = 0; i < n; i++) {
        double want = p[i] * n_draw;
        chi += (seen[i] - want) * (seen[i] - want) / want;
    }
    return chi;
}

static void softmax(const float *logits, double temperature, int32_t n, double *p) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += p[i] = exact_exp((double)logits[i] / temperature);
    for (int32_t i = 0; i < n; i++)
        p[i] /= sum;
}

/* Over seeds, and over output indices of few seeds: 7 degrees of freedom, 0.1 % limit 24.3. */
static void follows_softmax(void **state) {
    (void)state;
    sampler *s = open_sampler(N_CHI);
    for (int32_t way = 0; way < 4; way++) {
        double p[N_CHI];
        int32_t seen[N_CHI] = {0};
        const int32_t n_draw = 20000;
        float temperature = way % 2 ? 0.7f : 1.0f;
        for (int32_t i = 0; i < n_draw; i++) {
            weft_sampling w = plain(temperature, (uint64_t)(way < 2 ? i : i / 50));
            seen[draw(s, chi_logits, &w, way < 2 ? 0 : i % 50)]++;
        }
        softmax(chi_logits, (double)temperature, N_CHI, p);
        assert_true(chi_square(seen, p, N_CHI, n_draw) < 24.3);
    }
    sampler_close(s);
}

/* Pairs of neighbours (next output index; next seed) over 4 even tokens: 15 degrees, limit 37.7. */
static void neighbours_are_independent(void **state) {
    (void)state;
    const float even[4] = {0};
    sampler *s = open_sampler(4);
    for (int32_t way = 0; way < 2; way++) {
        int32_t seen[16] = {0}, n_draw = 16000;
        double p[16];
        for (int32_t i = 0; i < 16; i++)
            p[i] = 1.0 / 16;
        for (int32_t i = 0; i < n_draw; i++) {
            weft_sampling a = plain(1, (uint64_t)i * 2), b = a;
            b.seed += way == 0 ? 0 : 1;
            seen[draw(s, even, &a, 0) * 4 + draw(s, even, &b, way == 0 ? 1 : 0)]++;
        }
        assert_true(chi_square(seen, p, 16, n_draw) < 37.7);
    }
    sampler_close(s);
}

/* Top-k and top-p sample the softmax of what they keep. 2 degrees, limit 13.8. */
static void cuts_renormalise(void **state) {
    (void)state;
    sampler *s = open_sampler(N_CHI);
    for (int32_t way = 0; way < 2; way++) {
        const float kept_logits[3] = {2.0f, 2.0f, 1.5f}; /* tokens 3, 7, 6 */
        double p[3];
        int32_t seen[N_CHI] = {0}, n_draw = 20000;
        for (int32_t i = 0; i < n_draw; i++) {
            weft_sampling w = plain(1, (uint64_t)i);
            if (way == 0)
                w.top_k = 3;
            else
                w.top_p = 0.7f; /* cumulated .281 .561 .732 */
            seen[draw(s, chi_logits, &w, 0)]++;
        }
        int32_t three[3] = {seen[3], seen[7], seen[6]};
        assert_int_equal(three[0] + three[1] + three[2], n_draw);
        softmax(kept_logits, 1, 3, p);
        assert_true(chi_square(three, p, 3, n_draw) < 13.8);
    }
    sampler_close(s);
}

/* ---- field reports ---- */

/* F01: one non-finite entry is simply not there; a row of nothing else is an error. */
static void f01_non_finite(void **state) {
    (void)state;
    enum { N = 1000 };
    sampler *s = open_sampler(N);
    const float bad[3] = {NAN, INFINITY, -INFINITY};
    const int32_t place[3] = {0, N / 2, N - 1};
    float logits[N];
    for (int32_t i = 0; i < 9; i++) {
        seed_rng(77);
        for (int32_t j = 0; j < N; j++)
            logits[j] = uniform(-2, 2);
        logits[333] = 3;
        logits[place[i / 3]] = bad[i % 3];
        weft_sampling way[4] = {plain(0, 5), plain(1, 5), plain(1, 5), plain(1, 5)};
        way[1].top_k = N - 1;
        way[2].top_p = 0.999f;
        way[3].min_p = 0.001f;
        assert_int_equal(draw(s, logits, &way[0], 0), 333);
        for (int32_t j = 1; j < 4; j++)
            for (int32_t k = 0; k < 60; k++) {
                int32_t token = draw(s, logits, &way[j], k);
                assert_true(isfinite(logits[token]));
                float finite[N];
                memcpy(finite, logits, sizeof finite);
                finite[place[i / 3]] = -1e30f; /* the same as no chance at all */
                assert_int_equal(token, draw(s, finite, &way[j], k));
            }
    }
    for (int32_t i = 0; i < 3; i++) {
        for (int32_t j = 0; j < N; j++)
            logits[j] = bad[i];
        int32_t token = 0;
        sample_result r = {.token = 12345};
        weft_sampling greedy = plain(0, 1), hot = plain(1, 1);
        assert_int_equal(
            sample_pick(s, logits, &greedy, &(sample_context){&token, 1, 1, NULL, 0}, &r),
            WEFT_ERR_NUMERIC);
        assert_int_equal(sample_pick(s, logits, &hot, &(sample_context){&token, 1, 1, NULL, 0}, &r),
                         WEFT_ERR_NUMERIC);
        assert_int_equal(sample_score(s, logits, 3, 5, &r), WEFT_ERR_NUMERIC);
        assert_int_equal(r.token, 12345);
        assert_true(sample_lse(table(), logits, N) == -HUGE_VAL);
    }
    sampler_close(s);
}

/* F02: a top_k of the vocabulary or more is no cut, and a greedy row between does not matter. */
static void f02_top_k_clamp(void **state) {
    (void)state;
    sampler *s = open_sampler(N_CHI), *alone = open_sampler(N_CHI);
    const int32_t k[] = {9999999, N_CHI, N_CHI + 1, INT32_MAX};
    for (int32_t i = 0; i < 60; i++) {
        weft_sampling off = plain(1.5f, 9), greedy = plain(0, 9), five = plain(1.5f, 9);
        five.top_k = 5;
        int32_t want = draw(alone, chi_logits, &off, i), want5 = draw(alone, chi_logits, &five, i);
        for (size_t j = 0; j < sizeof k / sizeof *k; j++) {
            weft_sampling w = off;
            w.top_k = k[j];
            assert_int_equal(draw(s, chi_logits, &w, i), want);
            assert_int_equal(draw(s, chi_logits, &greedy, i), 3);
            assert_int_equal(draw(s, chi_logits, &five, i), want5);
        }
    }
    sampler_close(s);
    sampler_close(alone);
}

/* F04: 0 and negative are off; 1 is the argmax at any temperature. */
static void f04_top_k_off(void **state) {
    (void)state;
    sampler *s = open_sampler(N_CHI);
    const int32_t k[] = {0, -1, INT32_MIN, 1};
    for (int32_t i = 0; i < 4; i++) {
        int32_t seen[N_CHI] = {0}, kinds = 0;
        for (int32_t seed = 0; seed < 200; seed++) {
            weft_sampling w = plain(1.5f, (uint64_t)seed);
            w.top_k = k[i];
            seen[draw(s, chi_logits, &w, 0)]++;
        }
        for (int32_t j = 0; j < N_CHI; j++)
            kinds += seen[j] > 0;
        assert_int_equal(kinds, i < 3 ? N_CHI : 1);
        assert_true(i < 3 || seen[3] == 200);
    }
    sampler_close(s);
}

/* F05, F07, F14: the draw is keyed by (seed, output index): what was drawn before, and how long the
 * prompt is, do not matter. */
static void f05_f07_no_state(void **state) {
    (void)state;
    sampler *s = open_sampler(N_CHI);
    int32_t tokens[100] = {0};
    weft_sampling w = plain(1, 7), other = plain(10, 99);
    for (int32_t i = 0; i < 40; i++) {
        int32_t want = draw(s, chi_logits, &w, i);
        sample_result r;
        for (int32_t j = 0; j < i % 4; j++)
            draw(s, chi_logits, &other, j);
        assert_int_equal(
            sample_pick(s, chi_logits, &w, &(sample_context){tokens, 50, 50 + i, NULL, 0}, &r),
            WEFT_OK);
        assert_int_equal(r.token, want);
    }
    sampler_close(s);
}

/* F08: documented: the noise is the seed's, so one seed and one distribution give one token
 * whatever the prompt; other seeds give others. */
static void f08_one_seed_one_noise(void **state) {
    (void)state;
    sampler *s = open_sampler(N_CHI);
    int32_t first = -1, kinds = 0, seen[N_CHI] = {0};
    for (int32_t prompt = 0; prompt < 500; prompt++) {
        int32_t tokens[1] = {prompt % N_CHI};
        sample_result r;
        weft_sampling w = plain(1, 1), own = plain(1, (uint64_t)prompt << 32);
        assert_int_equal(
            sample_pick(s, chi_logits, &w, &(sample_context){tokens, 1, 1, NULL, 0}, &r), WEFT_OK);
        assert_true(first < 0 || r.token == first);
        first = r.token;
        kinds += seen[draw(s, chi_logits, &own, 0)]++ == 0;
    }
    assert_int_equal(kinds, N_CHI);
    sampler_close(s);
}

/* F10: penalties count this request's own tokens; a neighbour's pick leaves nothing behind. */
static void f10_neighbour_penalties(void **state) {
    (void)state;
    sampler *s = open_sampler(N_CHI);
    weft_sampling none = plain(0, 0), heavy = plain(0, 0);
    heavy.frequency_penalty = 1.05f;
    int32_t many[30];
    for (int32_t i = 0; i < 30; i++)
        many[i] = 3;
    sample_result r;
    assert_int_equal(sample_pick(s, chi_logits, &none, &(sample_context){many, 5, 6, NULL, 0}, &r),
                     WEFT_OK);
    assert_int_equal(r.token, 3);
    assert_int_equal(
        sample_pick(s, chi_logits, &heavy, &(sample_context){many, 5, 30, NULL, 0}, &r), WEFT_OK);
    assert_int_equal(r.token, 7); /* 3 is used up, the tie's other one comes */
    assert_int_equal(sample_pick(s, chi_logits, &none, &(sample_context){many, 5, 30, NULL, 0}, &r),
                     WEFT_OK);
    assert_int_equal(r.token, 3);
    assert_int_equal(
        sample_pick(s, chi_logits, &heavy, &(sample_context){many, 30, 30, NULL, 0}, &r), WEFT_OK);
    assert_int_equal(r.token, 3); /* a prompt is not output */
    sampler_close(s);
}

/* F11: with a repetition penalty of 5 the model that always says 7 does not say it twice. */
static void f11_penalties_take_effect(void **state) {
    (void)state;
    enum { N = 10 };
    float logits[N], low[N];
    for (int32_t i = 0; i < N; i++) {
        logits[i] = i == 7 ? 4.0f : 1.0f + (float)i * 0.125f;
        low[i] = i == 7 ? -0.5f : -1.0f; /* a negative logit must fall too */
    }
    sampler *s = open_sampler(N);
    weft_sampling p = plain(0, 0);
    p.repetition_penalty = 5;
    int32_t tokens[2] = {0, 7};
    sample_result r;
    assert_int_equal(sample_pick(s, logits, &p, &(sample_context){tokens, 1, 1, NULL, 0}, &r),
                     WEFT_OK);
    assert_int_equal(r.token, 7);
    assert_int_equal(sample_pick(s, logits, &p, &(sample_context){tokens, 1, 2, NULL, 0}, &r),
                     WEFT_OK);
    assert_int_equal(r.token, 9);
    assert_int_equal(sample_pick(s, logits, &p, &(sample_context){tokens, 2, 2, NULL, 0}, &r),
                     WEFT_OK); /* prompt counts */
    assert_int_equal(r.token, 9);
    assert_int_equal(sample_pick(s, low, &p, &(sample_context){tokens, 1, 2, NULL, 0}, &r),
                     WEFT_OK);
    assert_int_equal(r.token, 1); /* 0 and 7 are penalised */
    sampler_close(s);
}

/* Presence is subtracted once, frequency once per occurrence. */
static void counts_are_exact(void **state) {
    (void)state;
    const float logits[3] = {4, 3, 2.75f};
    sampler *s = open_sampler(3);
    const int32_t tokens[4] = {2, 0, 0, 0};
    sample_result r;
    weft_sampling p = plain(0, 0);
    p.presence_penalty = 0.875f; /* 3.125 whatever the count */
    assert_int_equal(sample_pick(s, logits, &p, &(sample_context){tokens, 1, 4, NULL, 0}, &r),
                     WEFT_OK);
    assert_int_equal(r.token, 0);
    p.presence_penalty = 0;
    p.frequency_penalty = 0.375f; /* 3.625, 3.25, 2.875 */
    const int32_t want[4] = {0, 0, 0, 1};
    for (int32_t n = 0; n < 4; n++) {
        assert_int_equal(
            sample_pick(s, logits, &p, &(sample_context){tokens, 1, 1 + n, NULL, 0}, &r), WEFT_OK);
        assert_int_equal(r.token, want[n]);
    }
    sampler_close(s);
}

/* F13: temperature comes before top-p: 0.5 makes {3, 2, 1} into .867 .117 .016. */
static void f13_temperature_first(void **state) {
    (void)state;
    const float logits[3] = {3, 2, 1};
    sampler *s = open_sampler(3);
    int32_t other = 0;
    for (int32_t seed = 0; seed < 1000; seed++) {
        weft_sampling w = plain(0.5f, (uint64_t)seed);
        w.top_p = 0.8f;
        assert_int_equal(draw(s, logits, &w, 0), 0);
        w.top_p = 0.9f; /* and now {0, 1} */
        int32_t token = draw(s, logits, &w, 0);
        assert_in_range(token, 0, 1);
        other += token == 1;
    }
    assert_in_range(other, 80, 160);
    sampler_close(s);
}

/* Exact halves: two of four equal tokens are a mass of one half, with and without top-k. */
static void top_p_keeps_no_more_than_it_needs(void **state) {
    (void)state;
    const float even[6] = {5, 5, -INFINITY, 5, 5, -2000};
    sampler *s = open_sampler(6);
    int32_t seen[6] = {0};
    for (int32_t seed = 0; seed < 400; seed++) {
        weft_sampling w = plain(1, (uint64_t)seed);
        w.top_p = 0.5f;
        w.top_k = seed % 2 ? 4 : 0;
        seen[draw(s, even, &w, 0)]++;
    }
    assert_true(seen[0] > 150 && seen[1] > 150 && seen[0] + seen[1] == 400);
    sampler_close(s);
}

static void min_p_keeps_the_near_ones(void **state) {
    (void)state;
    const float logits[4] = {0, (float)-0.6, -0.75f, -5};
    sampler *s = open_sampler(4);
    int32_t seen[4] = {0};
    for (int32_t seed = 0; seed < 500; seed++) {
        weft_sampling w = plain(1, (uint64_t)seed);
        w.min_p = 0.5f; /* exp(-0.6) = .549, exp(-0.75) = .472 */
        seen[draw(s, logits, &w, 0)]++;
        w.min_p = 1;
        assert_int_equal(draw(s, logits, &w, 0), 0);
    }
    assert_true(seen[0] > 100 && seen[1] > 100);
    assert_int_equal(seen[2] + seen[3], 0);
    sampler_close(s);
}

static void ties_go_to_the_smaller_id(void **state) {
    (void)state;
    const float logits[5] = {-1, 2, -0.0f, 2, 2};
    const float huge[5] = {-1, 3e37f, -3e37f, 3e37f, 0}; /* where no noise can be added */
    sampler *s = open_sampler(5);
    weft_sampling hot = plain(1, 1), greedy = plain(0, 1), one = plain(1, 1);
    one.top_k = 1;
    assert_int_equal(draw(s, logits, &greedy, 0), 1);
    sample_result r;
    assert_int_equal(sample_score(s, logits, -1, 5, &r), WEFT_OK);
    const int32_t want[5] = {1, 3, 4, 2, 0};
    for (int32_t i = 0; i < 5; i++) {
        assert_int_equal(r.top[i].token, want[i]);
        assert_int_equal(draw(s, logits, &one, i), 1);
        assert_int_equal(draw(s, huge, &hot, i), 1);
    }
    sampler_close(s);
}

/* ---- log-probabilities ---- */

/* The short way of a greedy pick and the long one (with a log-probability): the same token on every
 * length, with ties, infinities, NaN, and the best in every place. */
static void greedy_needs_no_report(void **state) {
    (void)state;
    seed_rng(77);
    float x[80];
    for (int32_t n = 1; n <= 80; n++) {
        sampler *s = open_sampler(n);
        for (int32_t round = 0; round < 200; round++) {
            for (int32_t i = 0; i < n; i++) {
                int32_t odd = below(12);
                x[i] = odd == 0   ? NAN
                       : odd == 1 ? INFINITY
                       : odd == 2 ? -INFINITY
                                  : (float)below(9) - 20.0f;
            }
            x[below(n)] = round % 2 ? -3.0e38f : -0.5f;
            weft_sampling p = plain(0, 1), report = p;
            report.logprob = true;
            assert_int_equal(draw(s, x, &p, 0), draw(s, x, &report, 0));
        }
        sampler_close(s);
    }
}

static void lse_has_a_fixed_order(void **state) {
    (void)state;
    seed_rng(3);
    for (int32_t turn = 0; turn < 200; turn++) {
        int32_t n = 1 + below(REF_MAX);
        float logits[REF_MAX];
        for (int32_t i = 0; i < n; i++)
            logits[i] = below(20) ? uniform(-30, 30) : below(2) ? NAN : -INFINITY;
        logits[below(n)] = 31;
        double lane[16] = {0};
        double sum = 0;
        for (int32_t i = 0; i < n; i++)
            if (isfinite(logits[i])) {
                lane[i & 15] += exact_exp((double)logits[i] - 31);
                sum += exact_exp((double)logits[i] - 31);
            }
        for (int32_t j = 0; j < 8; j++)
            lane[j] += lane[j + 8];
        for (int32_t j = 0; j < 4; j++)
            lane[j] += lane[j + 4];
        lane[0] = (lane[0] + lane[2]) + (lane[1] + lane[3]);
        double got = sample_lse(table(), logits, n);
        assert_true(got == 31 + exact_log(lane[0]));
        assert_true(fabs(got - 31 - exact_log(sum)) < 1e-13);
    }
    assert_true(sample_lse(table(), (const float[]){5}, 1) == 5.0);
    assert_true(sample_lse(table(), (const float[]){-3e38f, -3e38f}, 2) <= (double)-3e38f);
}

/* Raw: before penalties and temperature, and only when asked for. */
static void logprobs_are_raw(void **state) {
    (void)state;
    sampler *s = open_sampler(N_CHI);
    const int32_t tokens[3] = {1, 3, 3};
    weft_sampling p = plain(0.25f, 11);
    p.frequency_penalty = 1.5f;
    p.top_k = 2;
    sample_result with = {0}, without = {.logprob = 9}, score;
    assert_int_equal(
        sample_pick(s, chi_logits, &p, &(sample_context){tokens, 1, 3, NULL, 0}, &without),
        WEFT_OK);
    assert_true(without.logprob == 0 && without.n_top == 0);
    p.logprob = true;
    p.n_top = 4;
    assert_int_equal(
        sample_pick(s, chi_logits, &p, &(sample_context){tokens, 1, 3, NULL, 0}, &with), WEFT_OK);
    assert_int_equal(with.token, without.token);
    double lse = sample_lse(table(), chi_logits, N_CHI);
    assert_true(with.logprob == (float)((double)chi_logits[with.token] - lse));
    const int32_t want[4] = {3, 7, 6, 0};
    assert_int_equal(with.n_top, 4);
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(with.top[i].token, want[i]);
        assert_true(with.top[i].logprob == (float)((double)chi_logits[want[i]] - lse));
    }
    assert_int_equal(sample_score(s, chi_logits, with.token, 4, &score), WEFT_OK);
    assert_true(score.token == with.token && score.logprob == with.logprob);
    assert_memory_equal(score.top, with.top, 4 * sizeof *with.top);
    sampler_close(s);
}

static void score_edges(void **state) {
    (void)state;
    const float logits[4] = {1, NAN, INFINITY, 0};
    sampler *s = open_sampler(4);
    sample_result r;
    assert_int_equal(sample_score(s, logits, 2, 20, &r), WEFT_OK);
    assert_true(r.logprob == -INFINITY); /* probability 0 */
    assert_int_equal(r.n_top, 2);        /* only what is finite */
    assert_int_equal(r.top[0].token, 0);
    assert_int_equal(r.top[1].token, 3);
    assert_int_equal(sample_score(s, logits, -1, 0, &r), WEFT_OK);
    assert_true(r.token == -1 && r.logprob == 0 && r.n_top == 0);
    sampler_close(s);
}

/* ---- parameters ---- */

static void refuse(weft_sampling p, const char *name) {
    weft_error err = {0};
    assert_int_equal(sample_check(&p, &err), WEFT_ERR_USAGE);
    assert_memory_equal(err.text, name, strlen(name));
    assert_int_equal(sample_check(&p, NULL), WEFT_ERR_USAGE);
}

static void bounds_are_named(void **state) {
    (void)state;
    weft_sampling p = plain(0, 0);
    assert_int_equal(sample_check(&p, NULL), WEFT_OK);
    p = (weft_sampling){.temperature = 100,
                        .top_p = 1e-30f,
                        .min_p = 1,
                        .repetition_penalty = 1e-30f,
                        .presence_penalty = -2,
                        .frequency_penalty = 2,
                        .top_k = INT32_MIN,
                        .n_top = WEFT_MAX_TOP,
                        .seed = UINT64_MAX};
    assert_int_equal(sample_check(&p, NULL), WEFT_OK);
    const struct {
        size_t at;
        const char *name;
        float bad[4];
    } field[] = {
        {offsetof(weft_sampling, temperature), "temperature", {-0.01f, 100.5f, NAN, INFINITY}},
        {offsetof(weft_sampling, top_p), "top_p", {0, 1.01f, NAN, -1}},
        {offsetof(weft_sampling, min_p), "min_p", {-0.01f, 1.01f, NAN, INFINITY}},
        {offsetof(weft_sampling, repetition_penalty), "repetition_penalty", {0, -1, NAN, INFINITY}},
        {offsetof(weft_sampling, presence_penalty), "presence_penalty", {-2.1f, 2.1f, NAN, 1e30f}},
        {offsetof(weft_sampling, frequency_penalty),
         "frequency_penalty",
         {-2.1f, 2.1f, NAN, -INFINITY}},
    };
    for (size_t i = 0; i < sizeof field / sizeof *field; i++)
        for (int32_t j = 0; j < 4; j++) {
            weft_sampling bad = plain(1, 0);
            memcpy((char *)&bad + field[i].at, &field[i].bad[j], sizeof(float));
            refuse(bad, field[i].name);
        }
    weft_sampling top = plain(1, 0);
    top.n_top = 21;
    refuse(top, "top log");
    top.n_top = -1;
    refuse(top, "top log");
}

/* The ends of what sample_check lets through still give a token. */
static void extreme_parameters(void **state) {
    (void)state;
    const float logits[4] = {3.4e38f, -3.4e38f, 3.3e38f, 1e-45f};
    sampler *s = open_sampler(4);
    const int32_t tokens[4] = {0, 0, 2, 1};
    const float temperature[] = {1e-45f, 1e-3f, 100}, repetition[] = {1e-45f, 1, 3.4e38f};
    for (int32_t i = 0; i < 27; i++) {
        weft_sampling p = plain(temperature[i % 3], 3);
        p.repetition_penalty = repetition[i / 3 % 3];
        p.top_p = i / 9 == 1 ? 1e-45f : 1;
        p.top_k = i / 9 == 2 ? 2 : 0;
        sample_result r;
        assert_int_equal(sample_pick(s, logits, &p, &(sample_context){tokens, 1, 4, NULL, 0}, &r),
                         WEFT_OK);
        assert_in_range(r.token, 0, 3);
        assert_int_equal(r.token, ref_pick(logits, 4, &p, tokens, 1, 4));
    }
    sampler_close(s);
    sampler_close(NULL);
    weft_error err;
    assert_int_equal(sampler_open(table(), 0, &s, &err), WEFT_ERR_SETUP);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_full_sort),
        cmocka_unit_test(philox_known_answers),
        cmocka_unit_test(bound_holds_at_the_ends),
        cmocka_unit_test(follows_softmax),
        cmocka_unit_test(neighbours_are_independent),
        cmocka_unit_test(cuts_renormalise),
        cmocka_unit_test(f01_non_finite),
        cmocka_unit_test(f02_top_k_clamp),
        cmocka_unit_test(f04_top_k_off),
        cmocka_unit_test(f05_f07_no_state),
        cmocka_unit_test(f08_one_seed_one_noise),
        cmocka_unit_test(f10_neighbour_penalties),
        cmocka_unit_test(f11_penalties_take_effect),
        cmocka_unit_test(counts_are_exact),
        cmocka_unit_test(f13_temperature_first),
        cmocka_unit_test(top_p_keeps_no_more_than_it_needs),
        cmocka_unit_test(min_p_keeps_the_near_ones),
        cmocka_unit_test(ties_go_to_the_smaller_id),
        cmocka_unit_test(greedy_needs_no_report),
        cmocka_unit_test(lse_has_a_fixed_order),
        cmocka_unit_test(logprobs_are_raw),
        cmocka_unit_test(score_edges),
        cmocka_unit_test(bounds_are_named),
        cmocka_unit_test(extreme_parameters),
    };
    log_set_level(LOG_QUIET); /* rows without a finite logit are logged */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
