/* A plan against the engine that is really opened, and against worked numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/explain.h"

static const char tiny_path[] = WEFT_GOLDEN "/gguf/Q8_0.gguf";
static const char demo_path[] = WEFT_DEMO_MODEL;
static model_desc *tiny, *demo;
static weft_model *tiny_model;

static weft_engine_params params_of(int32_t tp, int32_t pcp, int32_t dcp) {
    weft_engine_params p;
    weft_engine_params_default(&p);
    p.tp = tp, p.pcp = pcp, p.dcp = dcp;
    p.max_num_seqs = 8;
    p.kv_pages = 64;
    p.n_thread = 2;
    return p;
}

static explain *plan(const model_desc *d, const weft_engine_params *p, explain_ask ask) {
    explain *e = NULL;
    weft_error err = {0};
    if (explain_open(d, p, &ask, &e, &err) != WEFT_OK)
        fail_msg("%s", err.text);
    return e;
}

#define LIST(...) ((const int32_t[]){__VA_ARGS__}), (int32_t)(sizeof((int32_t[]){__VA_ARGS__}) / 4)
static explain_ask ask_of(const int32_t *prompt, int32_t n_prompt, const int32_t *decode,
                          int32_t n_decode) {
    return (explain_ask){prompt, decode, n_prompt, n_decode};
}

static void expect_row(const explain *e, int32_t rank, int32_t i, int32_t req, int32_t start,
                       int32_t end) {
    assert_true(i < e->rank[rank].n_row);
    const batch_row *row = &e->rank[rank].row[i];
    assert_int_equal(row->req, req);
    assert_int_equal(row->start, start);
    assert_int_equal(row->start + row->len, end);
}

/* ---- memory ---- */

/* The items of every rank, and the sums. */
static void check_memory(weft_model *m, const weft_engine_params *p) {
    weft_engine *engine;
    weft_engine_stats st;
    weft_error err = {0};
    if (weft_engine_open(m, p, &engine, &err) != WEFT_OK)
        fail_msg("%s", err.text);
    weft_engine_get_stats(engine, &st);
    explain *e = plan(m->desc, p, ask_of(LIST(20), LIST(5)));
    size_t all = 0, beside = 0;
    for (int32_t r = 0; r < e->setup.world; r++) {
        const kern_memory *real = &engine->rank[r].memory, *ours = &e->rank[r].memory;
        all += ours->bytes;
        beside += e->rank[r].scratch_bytes + e->rank[r].host_bytes;
        assert_int_equal(ours->n, real->n);
        for (int32_t k = 0; k < real->n; k++) {
            assert_string_equal(ours->item[k].name, real->item[k].name);
            assert_int_equal(ours->item[k].bytes, real->item[k].bytes);
        }
    }
    assert_int_equal(e->weight_bytes, st.weight_bytes);
    assert_int_equal(all, st.kv_bytes + st.scratch_bytes);
    assert_int_equal(e->weight_bytes + all + beside, st.planned_bytes);
    assert_int_equal(e->setup.p.kv_bytes, st.kv_bytes);
    assert_int_equal(e->cache_tokens, st.n_page * e->setup.caps.page_tokens);
    explain_close(e);
    weft_engine_close(engine);
}

static void memory_is_the_engines(void **state) {
    (void)state;
    topo_sizes list[64];
    weft_engine_params p = params_of(1, 1, 1);
    explain *e = plan(tiny, &p, ask_of(LIST(20), NULL, 0));
    int32_t n = topo_list(&e->setup.model, 4, list, 64);
    explain_close(e);
    assert_true(n >= 5 && n <= 64);
    for (int32_t i = 0; i < n; i++) {
        p = params_of(list[i].tp, list[i].pcp, list[i].dcp);
        p.exchange = (weft_exchange)(i % 3);
        p.kv_dtype = (weft_kv_dtype)(i % 2);
        check_memory(tiny_model, &p);
    }
}

/* ---- whole experts on ranks ---- */

static weft_model *golden_open(const char *path) {
    weft_model *m = NULL;
    weft_error err;
    if (access(path, R_OK) != 0)
        skip();
    assert_int_equal(weft_model_open(path, &m, &err), WEFT_OK);
    return m;
}

/* The plan is the engine's, what is sent arrives, and the work is that of one rank: no row is
 * computed twice (T35). */
static void check_whole_experts(const char *path) {
    topo_sizes list[64];
    weft_model *m = golden_open(path);
    weft_engine_params p = params_of(1, 1, 1);
    p.expert_parallel = true;
    explain *one = plan(m->desc, &p, ask_of(LIST(20), LIST(5)));
    int32_t n = topo_list(&one->setup.model, 4, list, 64);
    assert_true(n >= 10 && n <= 64);
    for (int32_t i = 0; i < n; i++) {
        p = params_of(list[i].tp, list[i].pcp, list[i].dcp);
        p.expert_parallel = true;
        check_memory(m, &p);
        explain *e = plan(m->desc, &p, ask_of(LIST(20), LIST(5)));
        for (int32_t k = 0; k < EXPLAIN_N_MOVE; k++) {
            int64_t left = 0;
            for (int32_t r = 0; r < e->setup.world; r++)
                left += e->rank[r].sent[k] - e->rank[r].received[k];
            assert_int_equal(left, 0);
        }
        int32_t owned = 0;
        for (int32_t r = 0; r < e->setup.world; r++) {
            assert_int_equal(e->rank[r].expert0, owned);
            owned += e->rank[r].n_expert;
        }
        assert_int_equal(owned, 8);
        if (list[i].tp <= m->desc->layer[0].n_kv_head) /* else k and v are computed twice */
            assert_memory_equal(e->work.linear_ops, one->work.linear_ops,
                                sizeof one->work.linear_ops);
        explain_close(e);
    }
    explain_close(one);
    weft_model_close(m);
}

static void whole_experts(void **state) {
    (void)state;
    check_whole_experts(WEFT_GOLDEN "/models/deepseek_v2_lite");
    check_whole_experts(WEFT_GOLDEN "/models/qwen3_moe");
}

/* Qwen3-MoE's golden model: 3 layers, 8 experts, 2 of them for a token, rows of 96 floats. Each of
 * two ranks dispatches 4 of 8 rows; row i's slots are taken to go to the experts 2 i and 2 i + 1, and
 * rank 1 has the upper four: 2 rows and 4 slots go there and 4 outputs come back. With tp 2 the sums
 * of 4 rows follow, and of the leaf nodes only those of attention are left. */
static void bytes_of_whole_experts(void **state) {
    (void)state;
    weft_model *m = golden_open(WEFT_GOLDEN "/models/qwen3_moe");
    const int64_t row = 96 * 4;
    for (int32_t tp = 1; tp <= 2; tp++) {
        weft_engine_params p = params_of(tp, 3 - tp, 1);
        p.cp_min_split = 1;
        p.expert_parallel = true;
        explain *e = plan(m->desc, &p, ask_of(LIST(8), NULL, 0));
        for (int32_t r = 0; r < 2; r++) {
            const int64_t *sent = e->rank[r].sent;
            assert_int_equal(sent[EXPLAIN_EXPERT_ROWS], 3 * (2 * row + 4 * 4 + 2 * 4));
            assert_int_equal(sent[EXPLAIN_EXPERT_OUTPUTS], 3 * 4 * row);
            assert_int_equal(sent[EXPLAIN_EXPERT_SUMS], tp == 2 ? 3 * 4 * row : 0);
            assert_int_equal(sent[EXPLAIN_NODES], tp == 2 ? 3 * 8 * row : 0);
        }
        explain_close(e);
    }
    weft_model_close(m);
}

/* ---- groups of layers ---- */

/* Two layers see all, two a window of 24. Longest requests: 2048 / 16 = 128 pages; 24 - 1 + 512
 * positions touch 35 at most. 256 pages are two requests, so the others have 2 * 35. */
static void window_has_pages_of_its_own(void **state) {
    (void)state;
    weft_model *m = NULL;
    weft_engine *engine = NULL;
    weft_error err;
    weft_engine_stats st;
    const char *path = WEFT_GOLDEN "/models/gemma3";
    if (access(path, R_OK) != 0)
        skip();
    assert_int_equal(weft_model_open(path, &m, &err), WEFT_OK);
    weft_engine_params p = params_of(1, 1, 1);
    p.kv_pages = 256;
    explain *e = plan(m->desc, &p, ask_of(LIST(100), LIST(200)));
    const engine_setup *s = &e->setup;
    assert_int_equal(s->caps.n_group, 2);
    assert_int_equal(s->longest[0], 128);
    assert_int_equal(s->longest[1], 35);
    assert_int_equal(s->kv_pages[0], 256);
    assert_int_equal(s->kv_pages[1], 70);
    assert_int_equal(s->p.kv_bytes, (256 + 70) * 16 * 512); /* 2 layers x 2 heads x 64 x f16 */
    /* position 200 sees 177 and what follows: pages 11 and 12 of 13 */
    assert_int_equal(e->request[0].first_page[0], 0);
    assert_int_equal(e->request[0].first_page[1], 11);
    assert_int_equal(e->request[0].held[0], 13);
    assert_int_equal(e->request[0].held[1], 2);
    assert_int_equal(e->request[1].held[0], 7);
    assert_int_equal(e->request[1].held[1], 7);
    assert_int_equal(weft_engine_open(m, &p, &engine, &err), WEFT_OK);
    weft_engine_get_stats(engine, &st);
    weft_engine_close(engine);
    assert_int_equal(st.n_group, 2);
    assert_int_equal(st.kv_bytes, s->p.kv_bytes);
    assert_int_equal(st.n_page, 256 + 70);
    for (int32_t g = 0; g < 2; g++) {
        assert_int_equal(st.group[g].window, g == 0 ? 0 : 24);
        assert_int_equal(st.group[g].n_layer, 2);
        assert_int_equal(st.group[g].token_bytes, 512);
        assert_int_equal(st.group[g].n_page, s->kv_pages[g]);
        assert_int_equal(st.group[g].n_page_used, 0);
    }
    explain_close(e);
    weft_model_close(m);
}

/* A limit of memory is shared: as many of the longest requests fit in each group, or one that takes
 * all pages. */
static void memory_is_shared(void **state) {
    (void)state;
    model_desc *d = NULL;
    weft_error err;
    const char *path = WEFT_GOLDEN "/models/gemma3";
    if (access(path, R_OK) != 0)
        skip();
    assert_int_equal(model_desc_load(path, &d, &err), WEFT_OK);
    engine_setup s;
    weft_engine_params p = params_of(1, 1, 1);
    p.kv_pages = 0;
    p.kv_bytes = 1 << 30; /* more than 8 requests need */
    assert_int_equal(engine_setup_make(d, &p, &s, &err), WEFT_OK);
    assert_int_equal(s.kv_pages[0], 8 * 128);
    assert_int_equal(s.kv_pages[1], 8 * 35);
    for (uint64_t bytes = 2 * 16 * 512; bytes < 8 * 163 * 16 * 512; bytes += 77777) {
        p.kv_bytes = bytes;
        assert_int_equal(engine_setup_make(d, &p, &s, &err), WEFT_OK);
        int32_t n = s.kv_pages[0], beside = s.kv_pages[1];
        assert_true(s.p.kv_bytes == (uint64_t)(n + beside) * 16 * 512 && s.p.kv_bytes <= bytes);
        assert_true(bytes - s.p.kv_bytes < 2 * 16 * 512); /* not a page more */
        assert_int_equal(beside, n <= 128 ? (n < 35 ? n : 35) : (n * 35 + 127) / 128);
    }
    p.kv_bytes = 2 * 16 * 512 - 1;
    assert_int_equal(engine_setup_make(d, &p, &s, &err), WEFT_ERR_MEMORY);
    model_desc_close(d);
}

/* ---- latent attention ---- */

static size_t item_bytes(const explain_rank *r, const char *name) {
    for (int32_t i = 0; i < r->memory.n; i++)
        if (strcmp(r->memory.item[i].name, name) == 0)
            return r->memory.item[i].bytes;
    fail_msg("no item %s", name);
    return 0;
}

/* DeepSeek V2 Lite's golden model: 3 layers, keys of 32 + 16 elements, the first 32 of them values.
 * In f16 a token has 96 bytes in a layer, wherever it is counted: in the pool, on the way to the
 * other replica, in pages that go to a query (64 at once, 1,024 tokens). */
static void latents_are_kept_once(void **state) {
    (void)state;
    enum { LAYERS = 3, TOKEN = 48 * 2, PAGE = 16 * TOKEN };
    weft_model *m = golden_open(WEFT_GOLDEN "/models/deepseek_v2_lite");
    weft_engine_params p = params_of(1, 2, 1);
    p.cp_min_split = 1;
    explain *e = plan(m->desc, &p, ask_of(LIST(40), NULL, 0));
    assert_int_equal(e->setup.page_bytes[0], LAYERS * PAGE);
    assert_int_equal(e->setup.p.kv_bytes, 2 * 64 * LAYERS * PAGE); /* 64 pages on each of 2 ranks */
    for (int32_t r = 0; r < 2; r++)
        assert_int_equal(e->rank[r].sent[EXPLAIN_DELIVER], LAYERS * 20 * TOKEN);
    explain_close(e);

    p = params_of(1, 2, 2);
    p.exchange = WEFT_EXCHANGE_KV;
    e = plan(m->desc, &p, ask_of(NULL, 0, LIST(100)));
    assert_int_equal(e->request[0].kv_bytes, 101 * TOKEN);
    assert_int_equal(e->work.kv_bytes, LAYERS * 7 * PAGE);
    assert_int_equal(e->rank[1].sent[EXPLAIN_PAGES], LAYERS * 3 * PAGE); /* 1, 3 and 5 of 7 */
    assert_int_equal(item_bytes(&e->rank[1], "KV cache"), 64 * LAYERS * PAGE);
    assert_int_equal(item_bytes(&e->rank[1], "pages received"), 64 * PAGE);
    explain_close(e);
    for (int32_t type = 0; type < 3; type++) {
        p.kv_dtype = (weft_kv_dtype)type;
        check_memory(m, &p);
    }
    weft_model_close(m);
}

/* ---- rows and pages: the worked numbers of the design ---- */

static void prompt_of_7_and_9(void **state) {
    (void)state;
    weft_engine_params p = params_of(1, 2, 1);
    p.cp_min_split = 1;
    explain *e = plan(demo, &p, ask_of(LIST(7), NULL, 0));
    expect_row(e, 0, 0, 0, 0, 2);
    expect_row(e, 0, 1, 0, 6, 7);
    expect_row(e, 1, 0, 0, 2, 6);
    assert_int_equal(e->rank[0].n_tok, 3);
    assert_int_equal(e->rank[1].n_tok, 4);
    const uint8_t owner[7] = {0, 0, 1, 1, 1, 1, 0};
    assert_memory_equal(e->request[0].owner, owner, sizeof owner);
    explain_close(e);
    e = plan(demo, &p, ask_of(LIST(9), NULL, 0));
    assert_int_equal(e->rank[0].n_tok, 5);
    assert_int_equal(e->rank[1].n_tok, 4);
    explain_close(e);
}

static void two_decodes_six_prompts(void **state) {
    (void)state;
    weft_engine_params p = params_of(1, 2, 2);
    explain *e = plan(demo, &p, ask_of(LIST(64, 64, 64, 64, 64, 64), LIST(10, 20)));
    assert_int_equal(e->n_run, 8);
    assert_int_equal(e->n_tok, 2 + 6 * 64);
    for (int32_t r = 0; r < 2; r++) {
        int32_t n_decode = 0;
        assert_true(e->rank[r].n_row <= 14);
        for (int32_t i = 0; i < e->rank[r].n_row; i++)
            n_decode += e->request[e->rank[r].row[i].req].decode;
        assert_int_equal(n_decode, 1);
    }
    explain_close(e);
}

static void pages_of_100_tokens(void **state) {
    (void)state;
    weft_engine_params p = params_of(1, 2, 2);
    explain *e = plan(demo, &p, ask_of(LIST(100), NULL, 0));
    assert_int_equal(e->request[0].n_page, 7);
    for (int32_t i = 0; i < 7; i++)
        assert_int_equal(topo_page_owner(&e->rank[0].topo, i), i % 2);
    explain_close(e);
}

/* ---- the step as the scheduler would make it ---- */

static void budget_cuts(void **state) {
    (void)state;
    weft_engine_params p = params_of(1, 2, 1);
    p.max_num_batched_tokens = 50;
    explain *e = plan(demo, &p, ask_of(LIST(30, 40, 5), LIST(64)));
    assert_int_equal(e->n_run, 3);
    assert_int_equal(e->n_tok, 50);
    assert_int_equal(e->request[0].start, 64);
    assert_int_equal(e->request[1].n_new, 30);
    assert_null(e->request[1].limit);
    assert_int_equal(e->request[2].n_new, 19);
    assert_string_equal(e->request[2].limit, "--max-num-batched-tokens");
    assert_int_equal(e->request[2].n_page, 2);
    assert_int_equal(e->request[3].n_new, 0);
    assert_string_equal(e->request[3].limit, "--max-num-batched-tokens");
    explain_close(e);
}

/* 10 pages: the decoding request has 5 of them, the prompt of 70 needs 5, the next 1, and nobody
 * overtakes it. */
static void pages_and_seqs_cut(void **state) {
    (void)state;
    weft_engine_params p = params_of(1, 1, 1);
    p.kv_pages = 10;
    explain *e = plan(demo, &p, ask_of(LIST(70, 17, 3), LIST(64)));
    assert_int_equal(e->n_run, 2);
    assert_string_equal(e->request[2].limit, "pages of the cache");
    assert_string_equal(e->request[3].limit, "the one before it waits");
    explain_close(e);
    p.kv_pages = 64;
    p.max_num_seqs = 2;
    e = plan(demo, &p, ask_of(LIST(70, 17), LIST(64)));
    assert_int_equal(e->n_run, 2);
    assert_string_equal(e->request[2].limit, "--max-num-seqs");
    explain_close(e);
}

/* The same requests through the real scheduler. */
static void step_is_the_schedulers(void **state) {
    (void)state;
    weft_engine_params p = params_of(1, 1, 1);
    p.kv_pages = 9, p.max_num_batched_tokens = 60, p.max_num_seqs = 3;
    const int32_t prompt[] = {20, 33, 50, 9}, token[64] = {0};
    explain *e = plan(demo, &p, ask_of(prompt, 4, NULL, 0));
    kv_pools *kv;
    sched *s;
    const sched_run *run;
    weft_error err;
    int32_t cut[2] = {0, 16};
    size_t bytes;
    static uint8_t buf[1 << 16];
    const kv_group all = {0, 9};
    const kv_sizes sizes = {1, cut, 16, 16, 60, 1, &all, false};
    assert_int_equal(kv_open(&sizes, &kv, &err), WEFT_OK);
    assert_int_equal(
        sched_open(&(sched_limits){3, 60, e->setup.p.max_model_len, 16, false}, kv, &s, &err),
        WEFT_OK);
    for (int32_t i = 0; i < 4; i++) {
        sched_request *r;
        assert_int_equal(sched_request_new(s, token, prompt[i], 1, &r, &err), WEFT_OK);
        sched_submit(s, r);
    }
    sched_plan(s, buf, sizeof buf, &bytes);
    assert_int_equal(sched_runs(s, &run), e->n_run);
    for (int32_t i = 0; i < e->n_run; i++) {
        assert_int_equal(run[i].start, e->request[i].start);
        assert_int_equal(run[i].n_new, e->request[i].n_new);
    }
    sched_close(s);
    kv_close(kv);
    explain_close(e);
}

static void refusals(void **state) {
    (void)state;
    const struct {
        weft_engine_params p;
        explain_ask ask;
        weft_status status;
        const char *names;
    } c[] = {
        {params_of(2, 1, 1), ask_of(LIST(7), NULL, 0), WEFT_ERR_SETUP, "tp"},
        {params_of(1, 2, 3), ask_of(LIST(7), NULL, 0), WEFT_ERR_SETUP, "dcp"},
        {params_of(1, 1, 1), ask_of(LIST(1024), NULL, 0), WEFT_ERR_TOO_LONG, "--prompts 1024"},
        {params_of(1, 1, 1), ask_of(NULL, 0, LIST(1024)), WEFT_ERR_TOO_LONG, "--decode 1024"},
        {params_of(1, 1, 1), ask_of(NULL, 0, LIST(1000, 100)), WEFT_ERR_TOO_LONG, "1024 tokens"},
        {params_of(1, 1, 1), ask_of(NULL, 0, LIST(1, 1, 1, 1, 1, 1, 1, 1, 1)), WEFT_ERR_TOO_LONG,
         "--max-num-seqs"},
        {params_of(1, 1, 1), ask_of(LIST(0), NULL, 0), WEFT_ERR_TOO_LONG, "--prompts 0"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        explain *e = NULL;
        weft_error err = {0};
        assert_int_equal(explain_open(demo, &c[i].p, &c[i].ask, &e, &err), c[i].status);
        assert_null(e);
        if (!strstr(err.text, c[i].names))
            fail_msg("\"%s\" does not name %s", err.text, c[i].names);
    }
    weft_engine_params p = params_of(1, 1, 1);
    explain_close(plan(demo, &p, ask_of(LIST(1023), NULL, 0)));
    explain_close(plan(demo, &p, ask_of(NULL, 0, LIST(1023))));
    explain_close(plan(demo, &p, (explain_ask){0}));
}

/* ---- bytes ---- */

/* SmolLM2-135M: 9 heads, 3 KV heads of 64, 30 layers; f16 cache. A wire row is 3 * 2 * 64 * 2 =
 * 768 bytes, a page 16 of them. The prompt of 100 goes by pass-KV: rank 0 has pages 0 2 4 6,
 * rank 1 has 1 3 5, each sends its own. The decode row goes by pass-Q: its query of 9 * 64 * 4
 * bytes to rank 1, one state of (64 + 2) * 4 bytes per head back. */
static void bytes_of_pcp2_dcp2(void **state) {
    (void)state;
    weft_engine_params p = params_of(1, 2, 2);
    explain *e = plan(demo, &p, ask_of(LIST(100), LIST(64)));
    const int64_t layers = 30;
    const explain_rank *r = e->rank;
    assert_false(e->request[0].pass_kv);
    assert_true(e->request[1].pass_kv);
    assert_int_equal(r[0].sent[EXPLAIN_PAGES], layers * 4 * 16 * 768);
    assert_int_equal(r[1].sent[EXPLAIN_PAGES], layers * 3 * 16 * 768);
    assert_int_equal(r[0].sent[EXPLAIN_QUERIES], layers * 9 * 64 * 4);
    assert_int_equal(r[1].sent[EXPLAIN_QUERIES], 0);
    assert_int_equal(r[0].sent[EXPLAIN_STATES], 0);
    assert_int_equal(r[1].sent[EXPLAIN_STATES], layers * 9 * 66 * 4);
    /* own rows in pages of the other: rank 0 has [0,25) and [75,100), of these 16-24 and 80-95;
     * rank 1 has [25,75): 32-47, 64-74 */
    assert_int_equal(r[0].sent[EXPLAIN_DELIVER], layers * (9 + 16 + 0) * 768);
    assert_int_equal(r[1].sent[EXPLAIN_DELIVER], layers * (16 + 11) * 768);
    assert_int_equal(r[0].sent[EXPLAIN_NODES] + r[0].sent[EXPLAIN_LOGITS], 0);
    assert_int_equal(r[0].sent[EXPLAIN_RESULTS] + r[1].sent[EXPLAIN_RESULTS],
                     2 * (int64_t)sizeof(engine_result));
    assert_int_equal(e->request[1].q_bytes, 100 * 9 * (4 * 64 + 4 * 64 + 8));
    assert_int_equal(e->request[1].kv_bytes, 100 * 2 * 3 * 64 * 2);
    explain_close(e);
}

/* tp 3: a rank has 2 of 6 and 4 of 12 leaves, which fold to one node each, sent to 2 others. Two
 * rows need logits: every rank sends its slice of the vocabulary, 49152 / 3 columns. */
static void bytes_of_tp3(void **state) {
    (void)state;
    weft_engine_params p = params_of(3, 1, 1);
    explain *e = plan(demo, &p, ask_of(LIST(33), LIST(64)));
    for (int32_t i = 0; i < 3; i++) {
        const int64_t *sent = e->rank[i].sent;
        assert_int_equal(sent[EXPLAIN_NODES], 30 * 2 * 2 * 34 * 576 * 4);
        assert_int_equal(sent[EXPLAIN_LOGITS], 2 * 2 * (49152 / 3) * 4);
        assert_int_equal(sent[EXPLAIN_RESULTS], i == 0 ? 4 * (int64_t)sizeof(engine_result) : 0);
        assert_int_equal(explain_sent(&e->rank[i]),
                         sent[EXPLAIN_NODES] + sent[EXPLAIN_LOGITS] + sent[EXPLAIN_RESULTS]);
    }
    explain_close(e);
}

/* ---- work ---- */

/* SmolLM2-135M: a layer has 576 x (576 + 2 * 192 + 576 + 3 * 1536) weights, the head 576 x 49152.
 * Three rows and two logits rows; the prompt's queries see 1 + 2 keys, the decode row 65. Pages: one
 * of the prompt, five of the other. */
static void work_of_a_step(void **state) {
    (void)state;
    weft_engine_params p = params_of(1, 1, 1);
    explain *e = plan(demo, &p, ask_of(LIST(2), LIST(64)));
    const int64_t layer = 576 * (576 + 2 * 192 + 576 + 3 * 1536), head = 576 * 49152;
    assert_int_equal(e->work.linear_ops[KERN_PEAK_DOT4], 2 * 3 * 30 * layer);
    assert_int_equal(e->work.linear_ops[KERN_PEAK_DOT8], 2 * 2 * head); /* Q8_0 */
    assert_int_equal(e->work.linear_ops[KERN_PEAK_FMA], 0);
    assert_int_equal(e->work.attn_ops, 4 * (1 + 2 + 65) * 9 * 64 * 30);
    assert_int_equal(e->work.kv_bytes, (1 + 5) * 16 * 768 * 30);
    /* norms and angles are packed too, and no work of a linear layer */
    assert_true(e->work.weight_bytes > layer * 30 / 2 && e->work.weight_bytes < 98673920);
    explain_work one = e->work;
    explain_close(e);
    /* the same whoever computes it, but each rank that has rows reads weights */
    const topo_sizes sizes[] = {{3, 1, 1}, {1, 2, 2}, {3, 2, 1}};
    for (int32_t i = 0; i < 3; i++) {
        p = params_of(sizes[i].tp, sizes[i].pcp, sizes[i].dcp);
        e = plan(demo, &p, ask_of(LIST(2), LIST(64)));
        assert_memory_equal(e->work.linear_ops, one.linear_ops, sizeof one.linear_ops);
        assert_int_equal(e->work.attn_ops, one.attn_ops);
        assert_int_equal(e->work.kv_bytes, one.kv_bytes);
        assert_true(e->work.weight_bytes >= one.weight_bytes);
        explain_close(e);
    }
}

/* Each half takes as long as whichever of its two sides is longer. */
static void seconds_of_work(void **state) {
    (void)state;
    const double peak[KERN_N_PEAK] = {
        [KERN_PEAK_DOT4] = 4, [KERN_PEAK_DOT8] = 8, [KERN_PEAK_FMA] = 2, [KERN_PEAK_READ] = 1};
    const explain_work compute = {.linear_ops = {[KERN_PEAK_DOT4] = 2000000000,
                                                 [KERN_PEAK_DOT8] = 4000000000,
                                                 [KERN_PEAK_FMA] = 6000000000},
                                  .attn_ops = 10000000000,
                                  .weight_bytes = 1,
                                  .kv_bytes = 1},
                       read = {.linear_ops = {[KERN_PEAK_DOT4] = 1},
                               .attn_ops = 1,
                               .weight_bytes = 7000000000,
                               .kv_bytes = 500000000};
    assert_float_equal(explain_seconds(&compute, peak), 1 + 3 + 5, 1e-9);
    assert_float_equal(explain_seconds(&read, peak), 7.5, 1e-9);
}

/* On every topology each byte that is sent arrives, a lone rank sends nothing, the rule's choice
 * is taken, and the rows of all ranks are the step. */
static void every_topology(void **state) {
    (void)state;
    topo_sizes list[256];
    weft_engine_params p = params_of(1, 1, 1);
    explain *e = plan(demo, &p, ask_of(LIST(9), NULL, 0));
    int32_t n = topo_list(&e->setup.model, 12, list, 256);
    explain_close(e);
    assert_true(n > 10 && n <= 256);
    for (int32_t i = 0; i < n; i++) {
        p = params_of(list[i].tp, list[i].pcp, list[i].dcp);
        e = plan(demo, &p, ask_of(LIST(100, 9, 33, 1), LIST(64, 500, 1)));
        int64_t all = 0, tokens = 0;
        for (int32_t k = 0; k < EXPLAIN_N_MOVE; k++) {
            int64_t sent = 0, received = 0;
            for (int32_t r = 0; r < e->setup.world; r++)
                sent += e->rank[r].sent[k], received += e->rank[r].received[k];
            assert_int_equal(sent, received);
            all += sent;
        }
        for (int32_t r = 0; r < e->setup.world; r++)
            tokens += e->rank[r].n_tok;
        assert_int_equal(tokens, (int64_t)e->n_tok * list[i].tp);
        assert_int_equal(all == 0, e->setup.world == 1);
        for (int32_t q = 0; q < e->n_run; q++)
            assert_int_equal(e->request[q].pass_kv,
                             list[i].dcp > 1 && e->request[q].kv_bytes < e->request[q].q_bytes);
        explain_close(e);
    }
}

static int open_models(void **state) {
    (void)state;
    weft_error err;
    if (model_desc_load(tiny_path, &tiny, &err) != WEFT_OK ||
        model_desc_load(demo_path, &demo, &err) != WEFT_OK)
        return -1;
    return weft_model_open(tiny_path, &tiny_model, &err) == WEFT_OK ? 0 : -1;
}

static int close_models(void **state) {
    (void)state;
    weft_model_close(tiny_model);
    model_desc_close(demo);
    model_desc_close(tiny);
    return 0;
}

int main(void) {
    if (access(tiny_path, R_OK) != 0 || access(demo_path, R_OK) != 0)
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_the_engines),
        cmocka_unit_test(whole_experts),
        cmocka_unit_test(bytes_of_whole_experts),
        cmocka_unit_test(window_has_pages_of_its_own),
        cmocka_unit_test(memory_is_shared),
        cmocka_unit_test(latents_are_kept_once),
        cmocka_unit_test(prompt_of_7_and_9),
        cmocka_unit_test(two_decodes_six_prompts),
        cmocka_unit_test(pages_of_100_tokens),
        cmocka_unit_test(budget_cuts),
        cmocka_unit_test(pages_and_seqs_cut),
        cmocka_unit_test(step_is_the_schedulers),
        cmocka_unit_test(refusals),
        cmocka_unit_test(bytes_of_pcp2_dcp2),
        cmocka_unit_test(bytes_of_tp3),
        cmocka_unit_test(every_topology),
        cmocka_unit_test(work_of_a_step),
        cmocka_unit_test(seconds_of_work),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
