/* Failures of other engines with windows, sinks, MLA, shared caches and experts, on the golden models:
 * what a decode step computes is what a prompt computes (I05, I07, T6b), steps with fewer rows than
 * ranks (T35, H08, H10), ranks that a token has no slot on (A07). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cp/runner.h"

enum { VOCAB = 320, MAX_TOPO = 512 };

static weft_model *model_open(const char *name) {
    char path[400];
    weft_model *m = NULL;
    weft_error err = {0};
    snprintf(path, sizeof path, WEFT_GOLDEN "/models/%s", name);
    if (access(path, R_OK) != 0) /* of tests/tools/make-golden */
        snprintf(path, sizeof path, WEFT_TWINS "/%s", name);
    if (weft_model_open(path, &m, &err) != WEFT_OK)
        fail_msg("%s", err.text);
    return m;
}

static bool is_legal(weft_model *m, topo_sizes t) {
    static topo_sizes list[MAX_TOPO];
    int32_t n = run_topologies(m, t.tp * t.pcp, list, MAX_TOPO);
    for (int32_t i = 0; i < n; i++)
        if (list[i].tp == t.tp && list[i].pcp == t.pcp && list[i].dcp == t.dcp)
            return true;
    return false;
}

static weft_engine_params params_on(topo_sizes t, weft_exchange exchange, int32_t budget) {
    weft_engine_params p = run_params(t.tp, t.pcp, t.dcp);
    p.exchange = exchange;
    p.max_num_batched_tokens = budget;
    return p;
}

/* ---- decode rows and prompt rows ---- */

enum { N_LENGTH = 6, N_DECODE = 60, MAX_LENGTH = 180 + N_DECODE };
/* around the window of 24 and twice it */
static const int32_t lengths[N_LENGTH] = {23, 24, 25, 48, 65, 180};

/* The answer's tokens as part of the prompt: its rows must be those of the decode steps. */
static weft_request longer(const weft_request *q, const run_answer *a,
                           int32_t out[static MAX_LENGTH]) {
    weft_request l = *q;
    memcpy(out, q->prompt, (size_t)q->n_prompt * sizeof *out);
    memcpy(out + q->n_prompt, a->token, (N_DECODE - 1) * sizeof *out);
    l.prompt = out;
    l.n_prompt = q->n_prompt + N_DECODE - 1;
    l.max_tokens = 1;
    return l;
}

static void expect_rows(const char *label, const run_answer *decoded, const run_answer *prompt) {
    for (int32_t i = 0; i < N_LENGTH; i++) {
        int32_t n = lengths[i] + N_DECODE - 1;
        assert_int_equal(prompt[i].token[0], decoded[i].token[N_DECODE - 1]);
        for (int32_t p = 0; p < n; p++)
            if (decoded[i].hash[p] != prompt[i].hash[p])
                fail_msg("%s: prompt of %d: row %d differs", label, lengths[i], p);
    }
}

static void decode_like_prompts(const char *name) {
    static const struct {
        topo_sizes t;
        weft_exchange exchange;
        int32_t budget;
    } runs[] = {
        {{1, 1, 1}, WEFT_EXCHANGE_AUTO, 512}, {{1, 2, 2}, WEFT_EXCHANGE_KV, 16},
        {{1, 2, 2}, WEFT_EXCHANGE_Q, 48},     {{1, 4, 4}, WEFT_EXCHANGE_AUTO, 48},
        {{2, 2, 4}, WEFT_EXCHANGE_KV, 512},
    };
    static int32_t ids[N_LENGTH][MAX_LENGTH];
    weft_model *m = model_open(name);
    weft_request q[N_LENGTH], l[N_LENGTH];
    run_answer decoded[N_LENGTH], prompt[N_LENGTH];
    weft_engine_params one = run_params(1, 1, 1);
    for (int32_t i = 0; i < N_LENGTH; i++)
        q[i] = run_request(VOCAB, lengths[i], N_DECODE, 50 + (uint64_t)i);
    run_oracle(m, &one, q, N_LENGTH, decoded);
    for (int32_t i = 0; i < N_LENGTH; i++)
        l[i] = longer(&q[i], &decoded[i], ids[i]);
    for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
        if (!is_legal(m, runs[k].t) || (run_small() && k != 1))
            continue;
        weft_engine_params p = params_on(runs[k].t, runs[k].exchange, runs[k].budget);
        run_ok(name, m, &p, l, N_LENGTH, prompt, NULL);
        expect_rows(name, decoded, prompt);
        run_free(prompt, N_LENGTH);
        run_check(name, m, &p, q, N_LENGTH, decoded);
    }
    run_free(decoded, N_LENGTH);
    weft_model_close(m);
}

static void i05_i07_windows(void **state) {
    (void)state;
    decode_like_prompts("mistral_swa");
    decode_like_prompts("gemma3");
}

static void t25_sinks(void **state) {
    (void)state;
    decode_like_prompts("gpt_oss");
}

static void t6b_shared_caches(void **state) {
    (void)state;
    decode_like_prompts("gemma4_kvshare");
}

static void latent_caches(void **state) {
    (void)state;
    decode_like_prompts("deepseek_v2_lite");
    decode_like_prompts("deepseek_v3");
}

/* ---- few rows on many ranks ---- */

static const topo_sizes many_ranks[] = {
    {1, 2, 2}, {1, 4, 1}, {1, 4, 4}, {2, 2, 4}, {4, 1, 1}, {4, 2, 8}, {1, 8, 8},
};

/* Prompts of one token and of the same token again and again, which all experts' rows are alike
 * for; one to five decode rows in a step. */
static void few_rows(const char *name) {
    enum { N = 5 };
    static int32_t same[20];
    weft_model *m = model_open(name);
    weft_request q[N];
    run_answer oracle[N];
    int32_t n_tried = 0;
    for (int32_t i = 0; i < 20; i++)
        same[i] = 7;
    for (int32_t i = 0; i < N; i++) {
        q[i] = run_request(VOCAB, 1, 6, 80 + (uint64_t)i);
        q[i].arrival_step = i;
    }
    q[3].prompt = same, q[3].n_prompt = 20;
    q[4].prompt = same, q[4].n_prompt = 1;
    weft_engine_params one = run_params(1, 1, 1);
    run_oracle(m, &one, q, N, oracle);
    for (size_t k = 0; k < sizeof many_ranks / sizeof *many_ranks; k++) {
        if (!is_legal(m, many_ranks[k]) || (run_small() && k > 2))
            continue;
        for (int32_t exchange = WEFT_EXCHANGE_Q; exchange <= WEFT_EXCHANGE_KV; exchange++) {
            weft_engine_params p = params_on(many_ranks[k], (weft_exchange)exchange, 512);
            p.cp_min_split = 1;
            run_check(name, m, &p, q, N, oracle);
            n_tried++;
        }
    }
    assert_true(n_tried >= (run_small() ? 2 : 6)); /* the sizes above are legal ones */
    run_free(oracle, N);
    weft_model_close(m);
}

static void t35_experts(void **state) {
    (void)state;
    few_rows("qwen3_moe");
    few_rows("mixtral");
    few_rows("gpt_oss");
    few_rows("gemma4_moe");
}

static void latent_with_dcp_beyond_tp(void **state) {
    (void)state;
    few_rows("deepseek_v2_lite");
    few_rows("deepseek_v3");
}

/* A07: heads are normed on ranks that hold none of a token's pages too. T6: layers that share. */
static void a07_head_norms(void **state) {
    (void)state;
    few_rows("qwen3");
    few_rows("gemma3");
    few_rows("gemma4_kvshare");
}

int main(void) {
    FILE *f = fopen(WEFT_GOLDEN "/models/qwen3/config.json", "r");
    if (f == NULL)
        return 77;
    fclose(f);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(i05_i07_windows),   cmocka_unit_test(t25_sinks),
        cmocka_unit_test(t6b_shared_caches), cmocka_unit_test(latent_caches),
        cmocka_unit_test(t35_experts),       cmocka_unit_test(latent_with_dcp_beyond_tp),
        cmocka_unit_test(a07_head_norms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
