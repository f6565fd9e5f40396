/* Attention over the paged cache: levels against each other bit for bit, against a double oracle,
 * and the promises that no cut of the work shows in the output. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "unit/kern/attn_world.h"

static const int32_t groups[] = {1, 2, 3, 4, 5, 8, 9, 71};
static const int32_t windows[] = {1, 2, 3, 15, 16, 17, 40, 1000};

static void draw_world(world *w, world_rng *r) {
    *w = (world){.type = (kern_kv_type)rng_int(r, 0, 2), .n_kv = rng_int(r, 1, 3)};
    w->head_dim = head_dims[rng_int(r, 0, 8)];
    w->group = groups[rng_int(r, 0, 6)];
    w->value_dim = rng_int(r, 0, 1) ? 0 : head_dims[rng_int(r, 0, 8)];
    w->value_in_key = w->value_dim <= w->head_dim && rng_int(r, 0, 1);
    w->window = rng_int(r, 0, 1) ? 0 : windows[rng_int(r, 0, 7)];
    w->has_sinks = rng_int(r, 0, 2) == 0;
    w->kv_shards = 1 << rng_int(r, 0, 4);
    w->n_req = rng_int(r, 1, WORLD_REQS);
    for (int32_t i = 0; i < w->n_req; i++) {
        w->len[i] = rng_int(r, 1, rng_int(r, 0, 3) ? 70 : 300);
        int32_t most = w->len[i] < 40 ? w->len[i] : 40;
        w->n_new[i] = rng_int(r, 0, 2) ? rng_int(r, 1, most) : 1;
        w->first_key[i] = rng_int(r, 0, 2) ? 0 : rng_int(r, 0, w->len[i] - w->n_new[i]);
    }
    world_fill(w, r);
}

/* Runs the world and compares with `want` to the byte. */
static void check_same(const world *w, const world_run *run, const float *want) {
    size_t n = world_out_floats(w);
    float *got = world_floats(n);
    memset(got, 0xff, n * sizeof *got);
    assert_true(world_attend(w, run, got, NULL));
    for (size_t i = 0; i < n; i++)
        if (memcmp(got + i, want + i, 4) != 0)
            fail_msg("%s, %d threads, dcp %d, chunks %d, type %d, D %d, E %d (in key: %d), kv %d, "
                     "group %d, window %d, sinks %d: value %zu is %a, not %a",
                     run->isa, run->n_thread, run->dcp, (int)run->chunk_seed, (int)w->type,
                     w->head_dim, w->value_dim, w->value_in_key, w->n_kv, w->group, w->window,
                     w->has_sinks, i, (double)got[i], (double)want[i]);
    free(got);
}

static float *reference(const world *w) {
    float *want = world_floats(world_out_floats(w));
    memset(want, 0xff, world_out_floats(w) * sizeof *want);
    world_run run = {.isa = "scalar", .n_thread = 1, .dcp = 1};
    assert_true(world_attend(w, &run, want, NULL));
    return want;
}

static void check_oracle(const world *w, const float *got, double tolerance) {
    size_t n = world_out_floats(w);
    double *want = malloc(n * sizeof *want);
    world_oracle(w, want);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= tolerance))
            fail_msg("value %zu is %g, the oracle says %g", i, (double)got[i], want[i]);
    free(want);
}

static void every_cut_gives_the_same_bits(void **state) {
    (void)state;
    world_rng r = {20251};
    static const int32_t dcps[] = {1, 2, 3, 4, 5, 8, 16};
    for (int32_t round = 0; round < 60; round++) {
        world w;
        draw_world(&w, &r);
        float *want = reference(&w);
        check_oracle(&w, want, 1e-5);
        for (size_t l = 0; l < N_LEVEL; l++) {
            if (!has_level(levels[l]))
                continue;
            for (int32_t k = 0; k < 4; k++) {
                int32_t dcp = dcps[rng_int(&r, 0, 6)];
                world_run run = {.isa = levels[l],
                                 .n_thread = rng_int(&r, 1, 3),
                                 .dcp = dcp <= w.kv_shards ? dcp : 1,
                                 .chunk_seed = k < 2 ? (uint64_t)k : rng_next(&r)};
                check_same(&w, &run, want);
            }
        }
        free(want);
        world_free(&w);
    }
}

/* Every DCP size, one by one, on lengths around page and shard edges; most ranks own nothing of the
 * short ones (T10), and new tokens stand inside the shards (T13, T26). */
static void every_dcp_gives_the_same_bits(void **state) {
    (void)state;
    world_rng r = {77};
    static const int32_t lens[] = {1, 2, 15, 16, 17, 255, 256, 257};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        world w = {.type = KERN_KV_F16, .n_kv = 1, .head_dim = 4, .group = 3, .kv_shards = 16};
        w.n_req = 1;
        w.len[0] = lens[i];
        w.n_new[0] = lens[i] < 20 ? lens[i] : 20;
        world_fill(&w, &r);
        float *want = reference(&w);
        check_oracle(&w, want, 1e-6);
        for (int32_t dcp = 1; dcp <= 16; dcp++)
            for (size_t l = 0; l < N_LEVEL; l++) {
                world_run run = {.isa = levels[l], .n_thread = 1, .dcp = dcp};
                if (has_level(levels[l]))
                    check_same(&w, &run, want);
            }
        free(want);
        world_free(&w);
    }
}

/* 33 rows at once and one by one, and any chunking, on every group size and head size. */
static void rows_do_not_see_each_other(void **state) {
    (void)state;
    world_rng r = {5};
    for (int32_t g = 0; g < 8; g++) {
        world w = {.type = (kern_kv_type)(g % 3), .n_kv = 1, .head_dim = g % 2 ? 20 : 64};
        w.group = groups[g];
        w.kv_shards = 16;
        w.n_req = 1;
        w.len[0] = 61;
        w.n_new[0] = 33;
        world_fill(&w, &r);
        float *want = reference(&w);
        for (uint64_t chunk = 0; chunk < 6; chunk++)
            for (size_t l = 0; l < N_LEVEL; l++) {
                world_run run = {.isa = levels[l], .n_thread = 2, .dcp = 2, .chunk_seed = chunk};
                if (has_level(levels[l]))
                    check_same(&w, &run, want);
            }
        free(want);
        world_free(&w);
    }
}

/* Groups that are larger than a block, some with values inside keys as in latent attention: cut over
 * items, the finer the more threads there are. */
static void large_groups_are_cut(void **state) {
    (void)state;
    static const struct {
        int32_t group, n_kv, head_dim, value_dim, len, n_new, window;
        bool value_in_key;
    } cases[] = {{128, 1, 576, 512, 37, 2, 0, true},  {71, 2, 48, 32, 70, 19, 0, false},
                 {65, 1, 192, 128, 50, 3, 20, false}, {71, 1, 48, 32, 300, 1, 0, true},
                 {40, 1, 18, 34, 90, 5, 7, false},    {17, 2, 32, 2, 200, 1, 0, true}};
    world_rng r = {128};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w = {.type = (kern_kv_type)(i % 3), .n_req = 1, .kv_shards = 16};
        w.n_kv = cases[i].n_kv;
        w.group = cases[i].group;
        w.head_dim = cases[i].head_dim;
        w.value_dim = cases[i].value_dim;
        w.value_in_key = cases[i].value_in_key;
        w.window = cases[i].window;
        w.len[0] = cases[i].len;
        w.n_new[0] = cases[i].n_new;
        w.has_sinks = i % 2;
        world_fill(&w, &r);
        float *want = reference(&w);
        check_oracle(&w, want, 1e-5);
        for (int32_t n_thread = 1; n_thread <= 9; n_thread += 4)
            for (size_t l = 0; l < N_LEVEL; l++) {
                world_run run = {.isa = levels[l], .n_thread = n_thread, .dcp = 1 + n_thread / 3};
                if (has_level(levels[l]))
                    check_same(&w, &run, want);
            }
        free(want);
        world_free(&w);
    }
}

/* Long contexts of few decoding rows: items are cut along the tree, and whoever is last joins. */
static void long_decodes_are_cut(void **state) {
    (void)state;
    world_rng r = {404};
    for (int32_t round = 0; round < 12; round++) {
        world w = {.type = (kern_kv_type)(round % 3), .n_kv = rng_int(&r, 1, 3), .head_dim = 32};
        w.value_in_key = round % 2;
        w.group = groups[rng_int(&r, 0, 6)];
        w.kv_shards = round % 4 ? 16 : 4;
        w.n_req = rng_int(&r, 1, 2);
        for (int32_t i = 0; i < w.n_req; i++) {
            w.len[i] = rng_int(&r, 250, 700);
            w.n_new[i] = 1;
        }
        world_fill(&w, &r);
        float *want = reference(&w);
        check_oracle(&w, want, 1e-5);
        for (int32_t dcp = 1; dcp <= 4; dcp++)
            for (int32_t n_thread = 2; n_thread <= 5; n_thread++)
                for (size_t l = 0; l < N_LEVEL; l++) {
                    world_run run = {.isa = levels[l], .n_thread = n_thread, .dcp = dcp};
                    if (has_level(levels[l]))
                        check_same(&w, &run, want);
                }
        free(want);
        world_free(&w);
    }
}

static float *attend(const world *w, const char *isa) {
    float *out = world_floats(world_out_floats(w));
    world_run run = {.isa = isa, .n_thread = 1, .dcp = 1};
    assert_true(world_attend(w, &run, out, NULL));
    return out;
}

/* Keys that a row does not see are NaN or infinite: later tokens of its page, keys before the
 * window, and memory that was never written. Rows that do not see them keep their bits. */
static void unseen_keys_are_never_used(void **state) {
    (void)state;
    world_rng r = {91};
    for (int32_t round = 0; round < 18; round++) {
        world w = {.type = (kern_kv_type)(round % 3), .n_kv = 2, .group = 1 + round % 4};
        w.head_dim = round % 2 ? 64 : 24;
        w.kv_shards = 4;
        w.n_req = 1;
        w.len[0] = 90;
        w.n_new[0] = 30;
        w.first_key[0] = round < 9 ? 0 : 21;
        w.value_in_key = round / 3 % 2;
        w.value_dim = w.head_dim - (w.value_in_key ? 6 : 0);
        world_fill(&w, &r);
        float *want = reference(&w);
        size_t key = (size_t)w.n_kv * (size_t)w.head_dim;
        size_t value = (size_t)w.n_kv * (size_t)w.value_dim;
        int32_t bad = 70; /* rows 0..9 stand at 60..69 */
        for (int32_t p = 0; p < 90; p++)
            if (p >= bad || p < w.first_key[0])
                for (size_t e = 0; e < key; e++) {
                    w.k[0][(size_t)p * key + e] = e % 2 ? NAN : INFINITY;
                    if (e < value)
                        w.v[0][(size_t)p * value + e] = e % 3 ? -INFINITY : NAN;
                }
        world_read_values(&w);
        size_t good = 10 * (size_t)world_heads(&w) * (size_t)w.value_dim;
        for (size_t l = 0; l < N_LEVEL; l++)
            if (has_level(levels[l])) {
                float *got = attend(&w, levels[l]);
                assert_memory_equal(got, want, good * sizeof *got);
                free(got);
                w.stored[0] = bad; /* the same rows with the later keys not written at all */
                got = attend(&w, levels[l]);
                assert_memory_equal(got, want, good * sizeof *got);
                free(got);
                w.stored[0] = w.len[0];
            }
        free(want);
        world_free(&w);
    }
}

/* One key is NaN: the rows that see it are NaN in every value, all others keep their bits, whether
 * the key is ahead of them, in their past beyond the window, or before first_key. */
static void a_key_is_seen_inside_its_window_only(void **state) {
    (void)state;
    world_rng r = {92};
    for (int32_t round = 0; round < 48; round++) {
        world w = {.type = (kern_kv_type)(round % 3), .n_kv = 1, .n_req = 1, .kv_shards = 4};
        w.group = groups[rng_int(&r, 0, 6)];
        w.head_dim = round % 2 ? 16 : 6;
        w.value_dim = round % 5 ? 0 : 18;
        w.window = windows[rng_int(&r, 0, 6)];
        w.len[0] = 75;
        w.n_new[0] = round % 4 ? rng_int(&r, 2, 60) : 2;
        w.first_key[0] = round % 3 ? 0 : rng_int(&r, 0, 75 - w.n_new[0]);
        world_fill(&w, &r);
        float *want = reference(&w);
        int32_t pos0 = w.len[0] - w.n_new[0], bad = rng_int(&r, pos0 > 20 ? pos0 - 20 : 0, 74);
        for (int32_t d = 0; d < w.head_dim; d++)
            w.k[0][bad * w.head_dim + d] = NAN;
        for (int32_t e = 0; e < w.value_dim; e++)
            w.v[0][bad * w.value_dim + e] = NAN;
        size_t row = (size_t)w.group * (size_t)w.value_dim;
        for (size_t l = 0; l < N_LEVEL; l++) {
            if (!has_level(levels[l]))
                continue;
            float *got = attend(&w, levels[l]);
            for (int32_t t = 0; t < w.n_new[0]; t++) {
                const float *of = got + (size_t)t * row;
                bool sees = bad <= pos0 + t && bad >= world_seen_from(&w, 0, pos0 + t);
                for (size_t e = 0; e < row && sees; e++)
                    assert_true(isnan(of[e]));
                if (!sees)
                    assert_memory_equal(of, want + (size_t)t * row, row * sizeof *of);
            }
            free(got);
        }
        free(want);
        world_free(&w);
    }
}

/* A NaN or infinite query makes NaN of its own head's row and of nothing else; levels agree on
 * which values are NaN. */
static void nan_scores_stay_in_their_row(void **state) {
    (void)state;
    world_rng r = {17};
    world w = {.type = KERN_KV_F16, .n_kv = 1, .group = 3, .head_dim = 32, .kv_shards = 4};
    w.n_req = 1;
    w.len[0] = 70;
    w.n_new[0] = 9;
    world_fill(&w, &r);
    float *want = reference(&w);
    size_t d = 32;
    w.q[4 * d + 3] = NAN;
    w.q[7 * d + 3] = INFINITY;
    w.q[9 * d + 1] = -INFINITY;
    w.k[0][20 * d + 5] = INFINITY; /* key 20: scores of +-inf or NaN for every row */
    float *scalar = attend(&w, "scalar");
    for (size_t e = 0; e < d; e++)
        assert_true(isnan(scalar[4 * d + e]));
    for (size_t l = 1; l < N_LEVEL; l++) {
        if (!has_level(levels[l]))
            continue;
        float *vector = attend(&w, levels[l]);
        for (size_t i = 0; i < world_out_floats(&w); i++)
            assert_true(memcmp(vector + i, scalar + i, 4) == 0 ||
                        (isnan(vector[i]) && isnan(scalar[i])));
        free(vector);
    }
    w.k[0][20 * d + 5] = 0.5f;
    for (size_t l = 0; l < N_LEVEL; l++)
        if (has_level(levels[l])) {
            w.k[0][20 * d + 5] = world_rounded(w.type, 0.5f);
            float *one = attend(&w, levels[l]);
            w.q[4 * d + 3] = 0.25f;
            float *two = attend(&w, levels[l]);
            w.q[4 * d + 3] = NAN;
            for (size_t i = 0; i < world_out_floats(&w); i++)
                if (i / d != 4 && i / d != 7 && i / d != 9)
                    assert_memory_equal(one + i, two + i, 4);
            free(one);
            free(two);
        }
    free(scalar);
    free(want);
    world_free(&w);
}

/* Scores up to 1e30 apart, equal scores, scores that differ by one step around the cut of exp. */
static void extreme_scores(void **state) {
    (void)state;
    world_rng r = {23};
    static const float factors[] = {1e-30f, 0.0f, 30.0f, 1e4f, 1e15f};
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
        world w = {.type = KERN_KV_F32, .n_kv = 1, .group = 2, .head_dim = 16, .kv_shards = 8};
        w.n_req = 1;
        w.len[0] = 150;
        w.n_new[0] = 21;
        world_fill(&w, &r);
        for (size_t i = 0; i < world_q_floats(&w); i++)
            w.q[i] *= factors[f];
        for (size_t i = 0; i < 150 * 16; i++)
            w.k[0][i] *= factors[f] == 1e-30f || factors[f] == 1e15f ? factors[f] : 1.0f;
        float *want = reference(&w);
        if (factors[f] < 100.0f) /* an error of 2^-24 of a score is an error of a weight */
            check_oracle(&w, want, 2e-4);
        for (size_t i = 0; i < world_out_floats(&w); i++)
            assert_true(isfinite(want[i]));
        for (int32_t dcp = 1; dcp <= 8; dcp++)
            for (size_t l = 1; l < N_LEVEL; l++) {
                world_run run = {.isa = levels[l], .n_thread = 1, .dcp = dcp};
                if (has_level(levels[l]))
                    check_same(&w, &run, want);
            }
        free(want);
        world_free(&w);
    }
}

/* Uniform scores: the mean of the values, exactly representable here (a key counted twice or left
 * out would show as another number). */
static void own_tokens_count_once(void **state) {
    (void)state;
    world_rng r = {29};
    for (int32_t len = 1; len <= 64; len *= 2) {
        world w = {.type = KERN_KV_F16, .n_kv = 1, .group = 1, .head_dim = 2, .kv_shards = 16};
        w.n_req = 1;
        w.len[0] = w.n_new[0] = len;
        world_fill(&w, &r);
        memset(w.q, 0, world_q_floats(&w) * sizeof *w.q);
        for (int32_t p = 0; p < len; p++) {
            w.v[0][2 * p] = 1.0f;
            w.v[0][2 * p + 1] = (float)p;
        }
        for (size_t l = 0; l < N_LEVEL; l++)
            if (has_level(levels[l])) {
                float *out = attend(&w, levels[l]);
                for (int32_t t = 0; t < len; t++) {
                    assert_true(out[2 * t] == 1.0f);
                    assert_true(fabsf(out[2 * t + 1] - 0.5f * (float)t) <= 1e-6f * (float)t);
                }
                assert_true(out[2 * len - 1] == 0.5f * (float)(len - 1));
                free(out);
            }
        world_free(&w);
    }
}

/* Equal scores of 0 give every key the weight 1, so a row's l is the number of keys that it sees:
 * `window` of them once the context is as long; values are positions, so the output is their mean. */
static void windows_hold_their_keys(void **state) {
    (void)state;
    world_rng r = {30};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
        for (size_t l = 0; l < N_LEVEL; l++) {
            world w = {.type = KERN_KV_F16, .n_kv = 1, .group = 1, .head_dim = 4, .kv_shards = 1};
            w.value_dim = 2;
            w.window = windows[i];
            w.n_req = 1;
            w.len[0] = w.n_new[0] = 80;
            world_fill(&w, &r);
            memset(w.q, 0, world_q_floats(&w) * sizeof *w.q);
            for (int32_t p = 0; p < 80; p++)
                w.v[0][2 * p] = (float)p;
            float out[160];
            for (uint64_t chunk = 0; chunk < 3 && has_level(levels[l]); chunk++) {
                world_state s;
                world_run run = {.isa = levels[l], .n_thread = 1, .dcp = 1, .chunk_seed = chunk};
                assert_true(world_attend(&w, &run, out, &s));
                for (int32_t t = 0; t < 80; t++) {
                    int32_t n = t + 1 < windows[i] ? t + 1 : windows[i];
                    assert_true(s.at[4 * t + 3] == (float)n);
                    assert_true(fabsf(out[2 * t] - ((float)t - (float)(n - 1) / 2)) < 1e-4f);
                }
                free(s.at);
            }
            world_free(&w);
        }
}

/* A row that sees one key beside a sink, by hand; a sink alone gives zeros. */
static void a_sink_takes_its_share(void **state) {
    (void)state;
    world_rng r = {31};
    static const float sinks[] = {0.0f, 1.5f, -2.0f, 80.0f, -200.0f, -INFINITY};
    world w = {.type = KERN_KV_F32, .n_kv = 1, .group = 2, .head_dim = 2, .kv_shards = 4};
    w.window = 1;
    w.has_sinks = true;
    w.n_req = 1;
    w.len[0] = w.n_new[0] = 6;
    world_fill(&w, &r);
    for (size_t i = 0; i < sizeof sinks / sizeof *sinks; i++)
        for (size_t l = 0; l < N_LEVEL; l++) {
            if (!has_level(levels[l]))
                continue;
            w.sinks[0] = sinks[i];
            w.sinks[1] = -INFINITY;
            float *out = attend(&w, levels[l]);
            for (size_t t = 0; t < 6; t++) {
                const float *q = w.q + 4 * t, *k = w.k[0] + 2 * t, *v = w.v[0] + 2 * t;
                double score = w.scale * ((double)q[0] * k[0] + (double)q[1] * k[1]);
                double share = 1 / (1 + exp(sinks[i] - score));
                for (size_t d = 0; d < 2; d++) {
                    assert_true(fabs(out[4 * t + d] - share * v[d]) < 1e-6);
                    assert_true(out[4 * t + 2 + d] == v[d]);
                }
            }
            free(out);
        }
    world_free(&w);
}

/* Ranks without a visible key hand out the identity, bytes and all (I02); m is never -0. */
static void empty_states_are_the_identity(void **state) {
    (void)state;
    world_rng r = {31};
    world w = {.type = KERN_KV_F32, .n_kv = 1, .group = 2, .head_dim = 6, .kv_shards = 16};
    w.n_req = 1;
    w.len[0] = 20;  /* pages 0 and 1: shards 0 and 8 */
    w.n_new[0] = 6; /* at 14..19: tokens 0 and 1 see nothing of page 1, the others do */
    world_fill(&w, &r);
    /* Every score is a negative number too small for a float: -0 before the maximum. */
    for (size_t i = 0; i < world_q_floats(&w); i++)
        w.q[i] = -1e-30f;
    for (size_t i = 0; i < 20 * 6; i++)
        w.k[0][i] = 1e-30f;
    for (size_t l = 0; l < N_LEVEL; l++) {
        if (!has_level(levels[l]))
            continue;
        float *out = world_floats(world_out_floats(&w));
        world_state s[16];
        world_run run = {.isa = levels[l], .n_thread = 1, .dcp = 16};
        assert_true(world_attend(&w, &run, out, s));
        for (int32_t rank = 0; rank < 16; rank++) {
            for (int32_t row = 0; row < 12; row++) {
                const float *node = s[rank].at + row * 8;
                uint32_t m_bits;
                memcpy(&m_bits, node + 6, 4);
                bool empty = rank != 0 && !(rank == 8 && row >= 4);
                assert_int_equal(m_bits, empty ? 0xff800000u : 0u);
                assert_true(empty ? node[7] == 0.0f : node[7] >= 1.0f);
                for (int32_t d = 0; empty && d < 6; d++) {
                    uint32_t bits;
                    memcpy(&bits, node + d, 4);
                    assert_int_equal(bits, 0);
                }
            }
            free(s[rank].at);
        }
        free(out);
    }
    world_free(&w);
}

/* A page beyond 2^32 bytes (2^31 elements); the rest is address space only (I10). */
static void high_pages_are_reached(void **state) {
    (void)state;
    enum { D = 256, KV = 8, GROUP = 1 };
    const size_t page_bytes = (size_t)KV * 2 * 16 * D * 2;
    const int32_t high = 40000; /* 5.2 GB */
    const size_t pool_bytes = (size_t)(high + 1) * page_bytes;
    uint8_t *pool = mmap(NULL, pool_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool == MAP_FAILED)
        skip();
    uint16_t *wire = malloc(KV * D * 2 * sizeof *wire);
    for (int32_t i = 0; i < KV * D * 2; i++)
        wire[i] = f32_to_f16((float)(i % 61));
    float *q = world_floats(KV * D), *out = world_floats(KV * D);
    for (int32_t i = 0; i < KV * D; i++)
        q[i] = 0.01f;
    for (size_t l = 0; l < N_LEVEL; l++) {
        const kern_table *t;
        kern_dev *dev;
        if (kern_cpu_table(levels[l], &t, NULL) != WEFT_OK)
            continue;
        kern_limits limits = {
            .max_rows = 1, .max_in = KV * D, .max_head_dim = D, .max_group = GROUP};
        assert_int_equal(t->open(1, &limits, &dev, NULL), WEFT_OK);
        int32_t slot = high * 16, table[1] = {high};
        kern_span span = {.q0 = 0, .len = 1, .pos = 0, .table = 0, .n_page = 1};
        kern_kv kv = {.type = KERN_KV_F16,
                      .n_kv_head = KV,
                      .head_dim = D,
                      .value_dim = D,
                      .page_stride = page_bytes,
                      .pages = {(uintptr_t)pool}};
        kern_kv_store s = {
            .kv = kv, .n = 1, .wire = {(uintptr_t)wire}, .slots = {(uintptr_t)&slot}};
        t->kv_store(dev, &s);
        tree_prog tree;
        tree_cover(1, 0, 1, &tree);
        float *node = world_floats(KV * (D + 2));
        kern_attn_fold f = {.kv = kv,
                            .n_head = KV,
                            .scale = 0.1f,
                            .q = {(uintptr_t)q},
                            .n_span = 1,
                            .spans = {(uintptr_t)&span},
                            .tables = {(uintptr_t)table},
                            .kv_shards = 1,
                            .tree = &tree,
                            .state = {(uintptr_t)node}};
        t->attn_fold(dev, &f);
        t->drain(dev);
        for (int32_t i = 0; i < KV * D; i++)
            assert_true(node[i / D * (D + 2) + i % D] == (float)((KV * D + i) % 61));
        free(node);
        t->close(dev);
    }
    munmap(pool, pool_bytes);
    free(wire);
    free(q);
    free(out);
}

/* state_q0: nodes of a buffer that starts at another query row; no spans, spans without tokens and
 * windows beyond the row are all right. */
static void spans_at_the_edge(void **state) {
    (void)state;
    for (size_t l = 0; l < N_LEVEL; l++) {
        const kern_table *t;
        kern_dev *dev;
        if (kern_cpu_table(levels[l], &t, NULL) != WEFT_OK)
            continue;
        kern_limits limits = {.max_rows = 8, .max_in = 64, .max_head_dim = 4, .max_group = 1};
        assert_int_equal(t->open(2, &limits, &dev, NULL), WEFT_OK);
        float pages[2 * 16 * 4], q[10 * 4], node[4 * 6];
        int32_t table[1] = {0};
        memset(pages, 0xff, sizeof pages);
        for (int32_t i = 0; i < 40; i++)
            q[i] = 1.0f;
        for (int32_t d = 0; d < 4; d++) { /* key 0 alone is written */
            pages[d * 16] = 0.5f;
            pages[16 * 4 + d] = (float)d;
        }
        kern_span spans[3] = {
            {.q0 = 7, .len = 1, .pos = 0, .n_page = 1},
            {.q0 = 8, .len = 0, .pos = 3, .n_page = 1},
            {.q0 = 9, .len = 1, .pos = 4, .first_key = 5, .n_page = 1}, /* sees nothing */
        };
        tree_prog tree;
        tree_cover(16, 0, 16, &tree);
        kern_attn_fold f = {.kv = {.type = KERN_KV_F32,
                                   .n_kv_head = 1,
                                   .head_dim = 4,
                                   .value_dim = 4,
                                   .page_stride = 2 * 16 * 4 * 4,
                                   .pages = {(uintptr_t)pages}},
                            .n_head = 1,
                            .scale = 1.0f,
                            .q = {(uintptr_t)q},
                            .n_span = 0,
                            .spans = {(uintptr_t)spans},
                            .tables = {(uintptr_t)table},
                            .kv_shards = 16,
                            .tree = &tree,
                            .state_q0 = 6,
                            .state = {(uintptr_t)node}};
        memset(node, 0x11, sizeof node);
        t->attn_fold(dev, &f);
        float untouched;
        memset(&untouched, 0x11, 4);
        for (int32_t i = 0; i < 24; i++)
            assert_true(node[i] == untouched);
        f.n_span = 3;
        t->attn_fold(dev, &f);
        t->drain(dev);
        const float seen[6] = {0, 1, 2, 3, 2.0f, 1}, empty[6] = {0, 0, 0, 0, -INFINITY, 0};
        for (int32_t i = 0; i < 6; i++) {
            assert_true(node[i] == untouched && node[12 + i] == untouched);
            assert_true(node[6 + i] == seen[i]);
            assert_true(node[18 + i] == empty[i]);
        }
        t->close(dev);
    }
}

/* ---- values inside keys, by hand: two KV heads of 6 elements, the first 4 of them values ---- */

enum { IN_D = 6, IN_E = 4, IN_KV = 2, IN_GROUP = 3, IN_ROWS = 18 };

/* Element d of a key: an integer that every type can hold. */
static float in_key_element(int32_t head, int32_t key, int32_t d) {
    return (float)(64 * head + 8 * d + key % 7);
}

/* A pool of two pages, NaN but for n keys: logical page 0 is page 1. */
static void in_key_store(const kern_table *t, kern_dev *dev, kern_kv kv, int32_t n) {
    uint8_t wire[17 * IN_KV * IN_D * 4], *at = wire;
    int32_t slots[17];
    memset(cpu_ptr(kv.pages), 0xff, 2 * kv.page_stride);
    for (int32_t key = 0; key < n; key++) {
        slots[key] = key < 16 ? 16 + key : key - 16;
        for (int32_t i = 0; i < IN_KV * IN_D; i++, at += kern_kv_elem(kv.type)) {
            float x = in_key_element(i / IN_D, key, i % IN_D);
            world_narrow(kv.type, &x, 1, at);
        }
    }
    t->kv_store(dev, &(kern_kv_store){kv, n, {(uintptr_t)wire}, {(uintptr_t)slots}});
}

/* Queries of 0 give every key the weight 1: a row's node is the sum of the values that it sees, 0,
 * their number. */
static void in_key_check(const float *node, int32_t row, int32_t seen) {
    for (int32_t e = 0; e < IN_E; e++) {
        float sum = 0;
        for (int32_t key = 0; key < seen; key++)
            sum += in_key_element(row / IN_GROUP % IN_KV, key, e);
        assert_true(node[e] == sum);
    }
    assert_true(node[IN_E] == (seen ? 0.0f : -INFINITY));
    assert_true(node[IN_E + 1] == (float)seen);
}

/* n keys are there; the last row alone, then a prompt of all of them. With none the row of position
 * 0 sees from key 1 on. */
static void in_key_fold(const kern_table *t, kern_dev *dev, kern_kv kv, int32_t n) {
    enum { HEADS = IN_KV * IN_GROUP };
    float q[IN_ROWS * HEADS * IN_D] = {0}, node[IN_ROWS * HEADS * (IN_E + 2)];
    int32_t table[2] = {1, 0}, last = n > 0 ? n - 1 : 0;
    kern_span spans[2] = {
        {.q0 = 0, .len = 1, .pos = last, .first_key = n == 0, .n_page = last / 16 + 1},
        {.q0 = 1, .len = n, .pos = 0, .n_page = last / 16 + 1}};
    tree_prog tree;
    tree_cover(1, 0, 1, &tree);
    t->attn_fold(dev, &(kern_attn_fold){.kv = kv,
                                        .n_head = HEADS,
                                        .scale = 1.0f,
                                        .q = {(uintptr_t)q},
                                        .n_span = 2,
                                        .spans = {(uintptr_t)spans},
                                        .tables = {(uintptr_t)table},
                                        .kv_shards = 1,
                                        .tree = &tree,
                                        .state = {(uintptr_t)node}});
    t->drain(dev);
    for (int32_t row = 0; row < (n + 1) * HEADS; row++)
        in_key_check(node + row * (IN_E + 2), row, row < HEADS ? n : row / HEADS);
}

static void values_are_read_from_keys(void **state) {
    (void)state;
    static const int32_t lens[] = {0, 1, 15, 16, 17};
    /* by type: bytes of a page, 2 x 16 x 6 elements; where head 1 has element 5 of key 3 */
    static const struct {
        kern_kv_type type;
        size_t page, at;
    } by_type[] = {{KERN_KV_F16, 384, 192 + (5 * 16 + 3) * 2},
                   {KERN_KV_F32, 768, 384 + (5 * 16 + 3) * 4},
                   {KERN_KV_BF16, 384, 192 + (2 * 16 + 3) * 4 + 2}};
    for (size_t i = 0; i < 3 * N_LEVEL; i++) {
        const kern_table *t;
        kern_dev *dev;
        if (kern_cpu_table(levels[i / 3], &t, NULL) != WEFT_OK)
            continue;
        kern_limits limits = {.max_rows = 32, .max_in = 64, .max_head_dim = IN_D, .max_group = 3};
        assert_int_equal(t->open(2, &limits, &dev, NULL), WEFT_OK);
        _Alignas(64) uint8_t pool[2 * 768];
        kern_kv kv = {.type = by_type[i % 3].type,
                      .n_kv_head = IN_KV,
                      .head_dim = IN_D,
                      .value_dim = IN_E,
                      .value_in_key = true,
                      .page_stride = by_type[i % 3].page,
                      .pages = {(uintptr_t)pool}};
        assert_int_equal(kern_kv_page_bytes(&kv), by_type[i % 3].page);
        for (size_t k = 0; k < sizeof lens / sizeof *lens; k++) {
            in_key_store(t, dev, kv, lens[k]);
            in_key_fold(t, dev, kv, lens[k]);
        }
        uint8_t want[4];
        world_narrow(kv.type, &(float){64 + 8 * 5 + 3}, 1, want);
        assert_memory_equal(pool + kv.page_stride + by_type[i % 3].at, want, kern_kv_elem(kv.type));
        t->close(dev);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_gives_the_same_bits),
        cmocka_unit_test(every_dcp_gives_the_same_bits),
        cmocka_unit_test(rows_do_not_see_each_other),
        cmocka_unit_test(large_groups_are_cut),
        cmocka_unit_test(long_decodes_are_cut),
        cmocka_unit_test(unseen_keys_are_never_used),
        cmocka_unit_test(a_key_is_seen_inside_its_window_only),
        cmocka_unit_test(nan_scores_stay_in_their_row),
        cmocka_unit_test(extreme_scores),
        cmocka_unit_test(own_tokens_count_once),
        cmocka_unit_test(windows_hold_their_keys),
        cmocka_unit_test(a_sink_takes_its_share),
        cmocka_unit_test(empty_states_are_the_identity),
        cmocka_unit_test(high_pages_are_reached),
        cmocka_unit_test(spans_at_the_edge),
        cmocka_unit_test(values_are_read_from_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
