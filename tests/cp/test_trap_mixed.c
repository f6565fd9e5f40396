/* Failures of other engines (design page "traps"), each as an equality with one rank on the
 * topology that it names. The symptom cannot occur here by design; the test says so by running. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

enum { MAX_REQ = 16 };

/* A set of requests with its oracle, and the topologies it is run on. */
typedef struct scene {
    weft_model *m;
    weft_engine_params params;
    weft_request q[MAX_REQ];
    run_answer oracle[MAX_REQ];
    int32_t n;
} scene;

static void scene_open(scene *s, const toy_shape *shape) {
    *s = (scene){.m = toy_open(shape), .params = run_params(1, 1, 1)};
}

static void scene_add(scene *s, const toy_shape *shape, int32_t prompt, int32_t tokens,
                      int64_t arrival) {
    weft_request q = run_request(shape->n_vocab, prompt, tokens, 1000 + (uint64_t)s->n);
    q.arrival_step = arrival;
    s->q[s->n++] = q;
}

static void scene_run(const char *label, scene *s, topo_sizes t) {
    if (!s->oracle[0].token)
        run_oracle(s->m, &s->params, s->q, s->n, s->oracle);
    s->params.tp = t.tp, s->params.pcp = t.pcp, s->params.dcp = t.dcp;
    for (int32_t x = 0; x < (t.dcp > 1 ? 3 : 1); x++) {
        s->params.exchange = (weft_exchange)x;
        run_check(label, s->m, &s->params, s->q, s->n, s->oracle);
    }
}

static void scene_close(scene *s) {
    run_free(s->oracle, s->n);
    weft_model_close(s->m);
}

/* T1, T2, T7: 2 requests decode while 6 prompts arrive, max_num_seqs 8: 14 rows on each of two
 * ranks, 28 gathered; with dcp 1 both ranks keep every page, with dcp 2 one of them. */
static void two_decodes_six_prefills(void **state) {
    (void)state;
    static const topo_sizes sizes[] = {{1, 2, 2}, {1, 2, 1}, {2, 2, 2}, {1, 4, 2}};
    scene s;
    scene_open(&s, &toy_gqa);
    for (int32_t i = 0; i < 8; i++)
        scene_add(&s, &toy_gqa, i < 2 ? 12 + i : 64, run_small() ? 8 : 40, i < 2 ? 0 : 4);
    s.params.max_num_seqs = 8;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        scene_run("T1: 2 decodes and 6 prefills", &s, sizes[i]);
    s.params.max_num_batched_tokens = 40; /* no step can take all six */
    scene_run("T2: the same in chunks", &s, sizes[0]);
    scene_close(&s);
}

/* T3, T13, T14: fresh prompts beside prompts with context: a row that starts at 0 on one rank, a
 * row that does not on the other; chunks of 7 put context and own tokens into one page. */
static void fresh_beside_context(void **state) {
    (void)state;
    static const topo_sizes sizes[] = {{1, 2, 2}, {1, 4, 4}};
    scene s;
    scene_open(&s, &toy_gqa);
    scene_add(&s, &toy_gqa, 90, 5, 0);
    scene_add(&s, &toy_gqa, 2, 5, 2);
    scene_add(&s, &toy_gqa, 33, 5, 3);
    scene_add(&s, &toy_gqa, 200, 5, 4);
    for (int32_t budget = 7; budget <= 112; budget *= 4)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            s.params.max_num_batched_tokens = budget;
            scene_run("T3: fresh beside context", &s, sizes[i]);
        }
    scene_close(&s);
}

/* T4, T8, T20: prompts of 1 and 2 tokens and then nothing but decode steps: ranks without rows,
 * tokens whose page is elsewhere. A05: the same with a 37-token prefill in between. */
static void short_prompts_and_pure_decode(void **state) {
    (void)state;
    static const topo_sizes sizes[] = {{1, 2, 2}, {1, 4, 4}, {2, 4, 4}, {1, 4, 1}};
    scene s;
    scene_open(&s, &toy_gqa);
    scene_add(&s, &toy_gqa, 2, 40, 0);
    scene_add(&s, &toy_gqa, 1, 20, 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes - (run_small() ? 2 : 0); i++)
        scene_run("T4: two tokens", &s, sizes[i]);
    run_free(s.oracle, s.n);
    scene_add(&s, &toy_gqa, 37, 3, 9);
    scene_run("A05: a prefill in between", &s, sizes[0]);
    scene_close(&s);
}

/* T12, T16: lengths far apart, 9 heads and 5 requests, so that no two extents are the same. */
static void lengths_far_apart(void **state) {
    (void)state;
    static const int32_t len[] = {1, 180, 3, 77, 16};
    const toy_shape *nine = toy_shapes[1];
    scene s;
    scene_open(&s, nine);
    for (int32_t i = 0; i < 5; i++)
        scene_add(&s, nine, len[i], 7, i % 2);
    scene_run("T12: lengths far apart", &s, (topo_sizes){1, 2, 2});
    scene_run("T16: heads and rows differ", &s, (topo_sizes){3, 2, 2});
    scene_close(&s);
}

/* T17: the DCP rank is not the TP rank: two copies of one KV head, cache in four parts. */
static void dcp_rank_is_not_tp_rank(void **state) {
    (void)state;
    const toy_shape *mqa = toy_shapes[3];
    scene s;
    scene_open(&s, mqa);
    for (int32_t i = 0; i < 5; i++)
        scene_add(&s, mqa, 5 + 30 * i, 12, i);
    scene_run("T17: tp2 pcp2 dcp4", &s, (topo_sizes){2, 2, 4});
    scene_run("T17: tp2 pcp1 dcp2", &s, (topo_sizes){2, 1, 2});
    scene_close(&s);
}

/* T31: the first step of an engine is a step like any other: one token, decode-free. */
static void first_step(void **state) {
    (void)state;
    static const int32_t len[] = {1, 2, 31, 200};
    for (int32_t i = 0; i < 4; i++) {
        scene s;
        scene_open(&s, &toy_gqa);
        scene_add(&s, &toy_gqa, len[i], 2, 0);
        scene_run("T31: first step", &s, (topo_sizes){2, 2, 2});
        scene_close(&s);
    }
}

/* T36: one decision for all ranks, at any temperature. */
static void one_decision(void **state) {
    (void)state;
    scene s;
    scene_open(&s, &toy_gqa);
    for (int32_t i = 0; i < 8; i++) {
        scene_add(&s, &toy_gqa, 4 + 9 * i, 24, 0);
        s.q[i].sampling.temperature = 0.5f * (float)i;
        s.q[i].sampling.seed = 42;
        s.q[i].sampling.logprob = true;
    }
    scene_run("T36: sampling", &s, (topo_sizes){1, 4, 2});
    scene_run("T36: sampling", &s, (topo_sizes){4, 2, 4});
    scene_close(&s);
}

/* T33: a long context in a mixed batch; the bytes of every row, so no drift at any length. */
static void long_context(void **state) {
    (void)state;
    toy_shape shape = toy_gqa;
    shape.context = 2048;
    scene s;
    scene_open(&s, &shape);
    s.params.max_model_len = 2048;
    scene_add(&s, &shape, run_small() ? 600 : 1990, 40, 0);
    scene_add(&s, &shape, 30, 60, 1);
    scene_add(&s, &shape, run_small() ? 300 : 900, 20, 2);
    scene_add(&s, &shape, 7, 60, 3);
    s.params.max_num_batched_tokens = 300;
    scene_run("T33: long context", &s, (topo_sizes){1, 4, 4});
    scene_run("T33: long context", &s, (topo_sizes){2, 2, 1});
    if (!run_small())
        scene_run("T33: long context", &s, (topo_sizes){4, 2, 4});
    scene_close(&s);
}

/* ---- T18, A13: legality ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static weft_status try_open(weft_model *m, topo_sizes t, weft_error *err) {
    weft_engine_params p = run_params(t.tp, t.pcp, t.dcp);
    weft_engine *e = NULL;
    weft_status st = weft_engine_open(m, &p, &e, err);
    weft_engine_close(e);
    return st;
}

static void refused(weft_model *m, topo_sizes t, const char *rule) {
    weft_error err = {0};
    double t0 = now();
    assert_int_equal(try_open(m, t, &err), WEFT_ERR_SETUP);
    assert_true(now() - t0 < 0.5);
    if (!strstr(err.text, rule) || !strstr(err.text, "nearest legal"))
        fail_msg("tp%d pcp%d dcp%d is refused with \"%s\", expected \"%s\"", t.tp, t.pcp, t.dcp,
                 err.text, rule);
}

static void illegal_groups(void **state) {
    (void)state;
    toy_shape shape = toy_gqa;
    shape.n_head = 12, shape.n_kv_head = 4, shape.hidden = 384, shape.ffn = 384;
    weft_model *m = toy_open(&shape);
    refused(m, (topo_sizes){12, 1, 2}, "tp must divide the leaves");
    refused(m, (topo_sizes){4, 1, 2}, "dcp must divide the 1 ranks");
    refused(m, (topo_sizes){4, 3, 2}, "dcp must divide the 3 ranks");
    refused(m, (topo_sizes){3, 1, 1}, "tp must divide the model's 4 KV heads");
    refused(m, (topo_sizes){5, 1, 1}, "tp must divide the model's 12 query heads");
    refused(m, (topo_sizes){1, 65, 1}, "at most 64");
    refused(m, (topo_sizes){1, 32, 32}, "dcp must be at most the 16 KV shards");
    refused(m, (topo_sizes){0, 1, 1}, "at least 1");
    refused(m, (topo_sizes){1, 2, -2}, "at least 1");
    weft_model_close(m);
}

/* Every combination of the table either gives the oracle's bytes or is refused by a named rule, and
 * the refusal is the one that the arithmetic of the groups says. */
static void legality_table(void **state) {
    (void)state;
    int32_t n_run = 0, n_refused = 0;
    for (int32_t kv = 1; kv <= 8; kv *= 2) {
        toy_shape shape = toy_gqa;
        shape.n_layer = 1, shape.n_kv_head = kv;
        scene s;
        scene_open(&s, &shape);
        scene_add(&s, &shape, 21, 3, 0);
        scene_add(&s, &shape, 70, 3, 1);
        run_oracle(s.m, &s.params, s.q, s.n, s.oracle);
        for (int32_t i = 0; i < 27; i++) {
            topo_sizes t = {1 << i % 3, 1 << i / 3 % 3, 1 << i / 9};
            int32_t same = t.pcp * (t.tp > kv ? t.tp / kv : 1);
            if (same % t.dcp != 0) {
                refused(s.m, t, "dcp must divide");
                n_refused++;
                continue;
            }
            if (run_small() && t.tp * t.pcp > 4)
                continue;
            s.params.tp = t.tp, s.params.pcp = t.pcp, s.params.dcp = t.dcp;
            run_check("A13: a legal combination", s.m, &s.params, s.q, s.n, s.oracle);
            n_run++;
        }
        scene_close(&s);
    }
    assert_int_equal(n_refused, 4 + 7 + 9 + 9);
    assert_true(run_small() || n_run == 4 * 27 - 29);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_decodes_six_prefills),
        cmocka_unit_test(fresh_beside_context),
        cmocka_unit_test(short_prompts_and_pure_decode),
        cmocka_unit_test(lengths_far_apart),
        cmocka_unit_test(dcp_rank_is_not_tp_rank),
        cmocka_unit_test(first_step),
        cmocka_unit_test(one_decision),
        cmocka_unit_test(long_context),
        cmocka_unit_test(illegal_groups),
        cmocka_unit_test(legality_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
