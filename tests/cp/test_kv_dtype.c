/* The cache types: each gives the same bytes on every topology, they differ from each other, and
 * the f32 cache gives the golden logits of the float files. */
#include <math.h>
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
#include "load/load.h"

static const weft_kv_dtype kv[] = {WEFT_KV_F16, WEFT_KV_F32, WEFT_KV_BF16};

static void types_over_topologies(void **state) {
    (void)state;
    enum { N = 6, MAX_TOPO = 64 };
    weft_model *m = toy_open(&toy_gqa);
    topo_sizes list[MAX_TOPO];
    int32_t n = run_topologies(m, run_small() ? 4 : 8, list, MAX_TOPO);
    weft_request q[N];
    run_answer oracle[3][N];
    for (int32_t i = 0; i < N; i++) {
        q[i] = run_request(toy_gqa.n_vocab, 1 + 23 * i, 8, 10 + (uint64_t)i);
        q[i].arrival_step = i;
    }
    for (int32_t k = 0; k < 3; k++) {
        weft_engine_params p = run_params(1, 1, 1);
        p.kv_dtype = kv[k];
        run_oracle(m, &p, q, N, oracle[k]);
        for (int32_t i = 0; i < n; i++) {
            p.tp = list[i].tp, p.pcp = list[i].pcp, p.dcp = list[i].dcp;
            p.exchange = (weft_exchange)(i % 3);
            run_check(k == 0 ? "f16" : k == 1 ? "f32" : "bf16", m, &p, q, N, oracle[k]);
        }
    }
    for (int32_t k = 0; k < 3; k++) /* the option is not ignored */
        assert_true(oracle[k][5].hash[100] != oracle[(k + 1) % 3][5].hash[100]);
    for (int32_t k = 0; k < 3; k++)
        run_free(oracle[k], N);
    weft_model_close(m);
}

/* ---- goldens ---- */

typedef struct row_sink {
    float *row; /* [n_position][n_vocab] */
    int32_t n_position, n_vocab;
} row_sink;

/* From rank threads; each row is another place. */
static void keep_row(void *user, const weft_logits_row *r) {
    row_sink *s = user;
    if (r->position < s->n_position)
        memcpy(s->row + r->position * r->n_vocab, r->logits, (size_t)r->n_vocab * sizeof(float));
}

static load_st_tensor golden(const load_st *st, int32_t prompt, const char *what) {
    char name[32];
    load_st_tensor t;
    snprintf(name, sizeof name, "p%d.%s", prompt, what);
    if (!load_st_find(st, name, &t))
        fail_msg("no %s in the golden file", name);
    return t;
}

/* Tokens up to the first step whose two best logits are closer than twice the tolerance. */
static void expect_greedy(const load_st *st, int32_t prompt, const run_answer *a, float tolerance) {
    const int64_t *greedy = golden(st, prompt, "greedy").data;
    const float *gap = golden(st, prompt, "gap").data;
    for (int32_t i = 0; i < 16 && gap[i] > 2 * tolerance; i++)
        assert_int_equal(a->token[i], greedy[i]);
}

static void expect_golden(const char *file, weft_model *m, const load_st *st,
                          const weft_engine_params *like, int32_t prompt) {
    static const float tolerance = 2e-4f;
    load_st_tensor ids = golden(st, prompt, "ids"), logits = golden(st, prompt, "logits");
    int32_t n = (int32_t)ids.dim[0], n_vocab = (int32_t)logits.dim[1];
    row_sink sink = {.n_position = n, .n_vocab = n_vocab};
    sink.row = calloc((size_t)n * (size_t)n_vocab, sizeof *sink.row);
    assert_non_null(sink.row);
    int32_t prompt_ids[256];
    assert_in_range(n, 1, 256);
    for (int32_t i = 0; i < n; i++)
        prompt_ids[i] = (int32_t)((const int64_t *)ids.data)[i];
    weft_request q = run_request(n_vocab, 1, 16, 0);
    q.prompt = prompt_ids;
    q.n_prompt = n;
    weft_engine_params p = *like;
    p.on_logits = keep_row;
    p.on_logits_user = &sink;
    run_answer a;
    run_ok(file, m, &p, &q, 1, &a, NULL);
    float worst = 0;
    for (int32_t i = 0; i < n * n_vocab; i++) {
        float d = fabsf(sink.row[i] - ((const float *)logits.data)[i]);
        worst = d > worst || isnan(d) ? d : worst;
    }
    if (!(worst <= tolerance))
        fail_msg("%s, prompt of %d: largest difference %g", file, n, (double)worst);
    expect_greedy(st, prompt, &a, tolerance);
    run_free(&a, 1);
    free(sink.row);
}

static void f32_cache_is_golden(void **state) {
    (void)state;
    static const char *const files[] = {"F32", "F16", "BF16"};
    static const topo_sizes sizes[] = {{1, 1, 1}, {1, 2, 2}, {4, 2, 4}};
    if (access(WEFT_GOLDEN "/gguf/F32.gguf", R_OK) != 0)
        skip();
    for (int32_t f = 0; f < 3; f++) {
        char path[400];
        weft_model *m = NULL;
        load_st *st = NULL;
        snprintf(path, sizeof path, WEFT_GOLDEN "/gguf/%s.gguf", files[f]);
        assert_int_equal(weft_model_open(path, &m, NULL), WEFT_OK);
        snprintf(path, sizeof path, WEFT_GOLDEN "/gguf/%s.golden.safetensors", files[f]);
        assert_int_equal(load_st_open(path, &st, NULL), WEFT_OK);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int32_t prompt = 0; prompt < 4; prompt++) {
                weft_engine_params p = run_params(sizes[i].tp, sizes[i].pcp, sizes[i].dcp);
                p.kv_dtype = WEFT_KV_F32;
                p.max_num_batched_tokens = 64;
                expect_golden(files[f], m, st, &p, prompt);
            }
        load_st_close(st);
        weft_model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(types_over_topologies),
        cmocka_unit_test(f32_cache_is_golden),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    return rc == 0 && access(WEFT_GOLDEN "/gguf/F32.gguf", R_OK) != 0 ? 77 : rc;
}
