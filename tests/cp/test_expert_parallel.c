/* Whole experts on the ranks give the bytes of one rank that has them all: every architecture with
 * experts, on topologies with tp and pcp; experts that ranks do not divide and ranks without any (H11);
 * steps with fewer rows than ranks (H08, T35); all tokens on the experts of one rank, and ranks without
 * rows (H10, H13). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"
#include "engine/engine.h"
#include "unit/model/golden_edit.h"

enum { MAX_TOPO = 256, MAX_REQ = 16 };

static weft_engine_params whole_params(topo_sizes t) {
    weft_engine_params p = run_params(t.tp, t.pcp, t.dcp);
    p.expert_parallel = true;
    return p;
}

/* Legal topologies with whole experts. */
static int32_t topologies(weft_model *m, int32_t max_world, topo_sizes *out) {
    engine_setup s;
    weft_error err = {0};
    weft_engine_params p = whole_params((topo_sizes){1, 1, 1});
    assert_int_equal(engine_setup_make(m->desc, &p, &s, &err), WEFT_OK);
    int32_t n = topo_list(&s.model, max_world, out, MAX_TOPO);
    assert_in_range(n, 1, MAX_TOPO);
    return n;
}

/* Prompts of these lengths, and what one rank answers. */
typedef struct scene {
    weft_model *m;
    int32_t n;
    weft_request q[MAX_REQ];
    run_answer oracle[MAX_REQ];
} scene;

static void scene_open(scene *s, weft_model *m, const int32_t *length, int32_t n,
                       int32_t max_tokens) {
    weft_model_info info;
    weft_engine_params p = run_params(1, 1, 1);
    weft_model_get_info(m, &info);
    *s = (scene){.m = m, .n = n};
    for (int32_t i = 0; i < n; i++) {
        s->q[i] = run_request(info.n_vocab, length[i], max_tokens, 300 + (uint64_t)i);
        s->q[i].arrival_step = i / 3;
    }
    run_oracle(m, &p, s->q, n, s->oracle);
}

static void scene_close(scene *s) {
    run_free(s->oracle, s->n);
    weft_model_close(s->m);
}

/* The number of topologies with tp and pcp above 1. */
static int32_t check_all(const char *name, const scene *s, int32_t max_world, const int32_t *budget,
                         int32_t n_budget) {
    topo_sizes list[MAX_TOPO];
    int32_t n = topologies(s->m, max_world, list), both = 0;
    for (int32_t i = 0; i < n; i++) {
        weft_engine_params p = whole_params(list[i]);
        p.max_num_batched_tokens = budget[i % n_budget];
        p.cp_min_split = i % 2 ? 1 : 32;
        p.exchange = (weft_exchange)(i % 3);
        run_check(name, s->m, &p, s->q, s->n, s->oracle);
        both += list[i].tp > 1 && list[i].pcp > 1;
    }
    print_message("%s: %d topologies, %d with tp and pcp\n", name, n, both);
    return both;
}

/* ---- every architecture with experts ---- */

static void golden_models(void **state) {
    (void)state;
    static const char *const names[] = {"mixtral", "qwen3_moe", "gpt_oss", "deepseek_v2_lite",
                                        "deepseek_v3"};
    static const int32_t length[] = {1, 2, 3, 17, 40, 97}, budget[] = {512, 37};
    for (int32_t i = 0; i < 5; i++) {
        char path[400];
        weft_model *m = NULL;
        weft_error err = {0};
        snprintf(path, sizeof path, WEFT_GOLDEN "/models/%s", names[i]);
        if (access(path, R_OK) != 0)
            skip();
        if (weft_model_open(path, &m, &err) != WEFT_OK)
            fail_msg("%s", err.text);
        scene s;
        scene_open(&s, m, length, 6, 4);
        int32_t both = check_all(names[i], &s, run_small() ? 4 : 8, budget, 2);
        assert_true(both > 0 || i == 0); /* mixtral's attention has one leaf */
        scene_close(&s);
    }
}

/* Values of a bias, which the golden model has as zeros. */
static void bias_fill(char *file, const char *name, uint64_t *rng) {
    uint64_t n_header;
    size_t first = 0, end = 0;
    memcpy(&n_header, file, sizeof n_header);
    const char *at = strstr(file + 8, name), *offsets = at ? strstr(at, "data_offsets") : NULL;
    if (!offsets || sscanf(offsets, "data_offsets\":[%zu,%zu]", &first, &end) != 2)
        fail_msg("no %s", name);
    for (size_t i = first; i < end; i += 2) { /* BF16: +-0.5 to 1 */
        uint16_t v = (uint16_t)(0x3F00 | (run_draw(rng) & 0x807F));
        memcpy(file + 8 + n_header + i, &v, sizeof v);
    }
}

/* Each rank adds the biases of its own experts. */
static void biases_of_experts(void **state) {
    (void)state;
    static const int32_t length[] = {1, 5, 40}, budget[] = {512, 16};
    if (access(WEFT_GOLDEN "/models/gpt_oss", R_OK) != 0)
        skip();
    size_t n = 0, n_config = 0;
    char *file = golden_text("gpt_oss", "model.safetensors", &n);
    char *config = golden_text("gpt_oss", "config.json", &n_config);
    uint64_t rng = 5;
    for (int32_t l = 0; l < 4; l++)
        for (int32_t k = 0; k < 2; k++) {
            char name[80];
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s_proj_bias", l,
                     k ? "down" : "gate_up");
            bias_fill(file, name, &rng);
        }
    folder f = folder_new();
    folder_put(&f, "model.safetensors", file, n);
    folder_put(&f, "config.json", config, n_config);
    weft_model *m = NULL;
    weft_error err = {0};
    weft_status st = weft_model_open(f.path, &m, &err); /* mapped */
    folder_end(&f);
    free(file);
    free(config);
    if (st != WEFT_OK)
        fail_msg("%s", err.text);
    scene s;
    scene_open(&s, m, length, 3, 4);
    check_all("biases", &s, 4, budget, 2);
    scene_close(&s);
}

/* Its experts' width of 96 is one leaf, which no tp above 1 cuts. */
static void tp_need_not_cut_experts(void **state) {
    (void)state;
    weft_model *m = NULL;
    weft_error err = {0};
    engine_setup s, one;
    if (access(WEFT_GOLDEN "/models/gpt_oss", R_OK) != 0)
        skip();
    assert_int_equal(weft_model_open(WEFT_GOLDEN "/models/gpt_oss", &m, &err), WEFT_OK);
    weft_engine_params p = whole_params((topo_sizes){2, 2, 2});
    assert_int_equal(engine_setup_make(m->desc, &p, &s, &err), WEFT_OK);
    p = run_params(1, 1, 1);
    assert_int_equal(engine_setup_make(m->desc, &p, &one, &err), WEFT_OK);
    assert_string_equal(s.identity, one.identity); /* whoever has the experts */
    p = run_params(2, 2, 2);
    assert_int_equal(engine_setup_make(m->desc, &p, &s, &err), WEFT_ERR_SETUP);
    weft_model_close(m);
}

/* ---- toys ---- */

/* The experts' leaves are 2: tp 4 and 8 are legal with whole experts alone. */
static const toy_shape toy_ten = {.name = "10 experts Q4_0",
                                  .n_layer = 2,
                                  .n_head = 8,
                                  .n_kv_head = 2,
                                  .head_dim = 32,
                                  .hidden = 256,
                                  .ffn = 64,
                                  .n_vocab = 300,
                                  .context = 512,
                                  .type = TOY_Q4_0,
                                  .seed = 51,
                                  .n_expert = 10,
                                  .n_used = 3};

/* H11; codes, floats and both travel; every step size. */
static void h11_uneven_experts(void **state) {
    (void)state;
    static const int32_t length[] = {1, 2, 5, 33, 64, 100}, budget[] = {512, 16, 37, 64};
    static const struct {
        uint32_t type;
        bool up_half;
        int32_t n_expert, n_used;
    } kind[] = {{TOY_Q4_0, false, 10, 3},
                {TOY_Q8_0, true, 7, 2},
                {TOY_F32, false, 4, 4},
                {TOY_F16, false, 1, 1},
                {TOY_Q8_0, false, 64, 8}};
    for (int32_t i = 0; i < (run_small() ? 3 : 5); i++) {
        toy_shape shape = toy_ten;
        shape.type = kind[i].type, shape.up_half = kind[i].up_half;
        shape.n_expert = kind[i].n_expert, shape.n_used = kind[i].n_used;
        char name[60];
        snprintf(name, sizeof name, "%d of %d experts, type %u%s", shape.n_used, shape.n_expert,
                 shape.type, shape.up_half ? " and F16" : "");
        scene s;
        scene_open(&s, toy_open(&shape), length, 6, 4);
        assert_true(check_all(name, &s, run_small() ? 4 : 8, budget, 4) > 0);
        scene_close(&s);
    }
}

/* H08: 1 to 5 rows in a step on tp 4, decode rows after prompts of one token. */
static void h08_few_rows(void **state) {
    (void)state;
    static const int32_t length[] = {1, 1, 1, 1, 1};
    static const topo_sizes sizes[] = {{4, 1, 1}, {4, 2, 2}, {8, 1, 4}};
    scene s;
    scene_open(&s, toy_open(&toy_ten), length, 5, 6);
    for (int32_t n = 1; n <= 5; n++)
        for (int32_t i = 0; i < (run_small() ? 1 : 3); i++) {
            weft_engine_params p = whole_params(sizes[i]);
            for (int32_t k = 0; k < n; k++)
                s.q[k].arrival_step = 0;
            run_check("few rows", s.m, &p, s.q, n, s.oracle);
        }
    scene_close(&s);
}

/* The last step's choices of all ranks. */
static void expect_liked(const weft_engine *e, const toy_shape *shape) {
    for (int32_t r = 0; r < e->setup.world; r++) {
        const int32_t *expert = (const int32_t *)e->rank[r].model->expert.at;
        const batch_local *b = &e->rank[r].local;
        int32_t tp = e->setup.sizes.tp, t = r % tp;
        int32_t rows = model_share(b->n_tok, tp, t + 1) - model_share(b->n_tok, tp, t);
        for (int32_t i = 0; i < rows * shape->n_used; i++)
            assert_int_equal(expert[i], shape->liked + i % shape->n_used);
    }
}

/* All rows of full steps at the experts [liked, liked + 2) of 8. */
static void check_liked(int32_t liked, topo_sizes sizes) {
    static const int32_t length[] = {64, 64, 130, 1, 20, 31};
    toy_shape shape = toy_ten;
    shape.type = TOY_F32, shape.n_expert = 8, shape.n_used = 2;
    shape.like_one = true, shape.liked = liked;
    scene s;
    scene_open(&s, toy_open(&shape), length, 6, 4);
    weft_engine_params p = whole_params(sizes);
    run_answer got[6];
    weft_engine *e = NULL;
    weft_error err = {0};
    p.max_num_batched_tokens = 64; /* the first steps are full */
    assert_int_equal(weft_engine_open(s.m, &p, &e, &err), WEFT_OK);
    assert_int_equal(run_requests(e, s.q, s.n, NULL, got, &err), WEFT_OK);
    expect_liked(e, &shape);
    weft_engine_close(e);
    run_assert_same("all at one rank", s.oracle, got, s.n);
    run_free(got, s.n);
    p.cp_min_split = 512; /* each prompt on one PCP rank, the others may have no row */
    p.max_num_seqs = 1;
    run_check("all at one rank, a request alone", s.m, &p, s.q, s.n, s.oracle);
    scene_close(&s);
}

static void h10_one_rank_gets_all(void **state) {
    (void)state;
    check_liked(4, (topo_sizes){1, 4, 2});
    check_liked(4, (topo_sizes){2, 2, 2});
    check_liked(4, (topo_sizes){4, 1, 1});
}

static void h13_expert_0_gets_all(void **state) {
    (void)state;
    check_liked(0, (topo_sizes){1, 1, 1});
    check_liked(0, (topo_sizes){1, 2, 2});
    check_liked(0, (topo_sizes){2, 2, 1});
    check_liked(6, (topo_sizes){1, 3, 3});
}

static void needs_experts(void **state) {
    (void)state;
    weft_model *m = toy_open(&toy_gqa);
    weft_engine *e = NULL;
    weft_error err = {0};
    weft_engine_params p = whole_params((topo_sizes){1, 2, 1});
    assert_int_equal(weft_engine_open(m, &p, &e, &err), WEFT_ERR_SETUP);
    assert_non_null(strstr(err.text, "--expert-parallel: the model has no experts"));
    weft_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_models),
        cmocka_unit_test(biases_of_experts),
        cmocka_unit_test(tp_need_not_cut_experts),
        cmocka_unit_test(h11_uneven_experts),
        cmocka_unit_test(h08_few_rows),
        cmocka_unit_test(h10_one_rank_gets_all),
        cmocka_unit_test(h13_expert_0_gets_all),
        cmocka_unit_test(needs_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
