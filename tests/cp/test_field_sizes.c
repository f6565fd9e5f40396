/* Sizes that are no round numbers: head sizes, groups, widths and vocabularies of no vector's
 * length (D14), shards that do not divide evenly over the DCP ranks, long odd prompts (A14). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

enum { MAX_TOPO = 512 };

#define SHAPE(label, layers, heads, kv, d, width, inner, vocab, weights)                           \
    {                                                                                              \
        .name = (label), .n_layer = (layers), .n_head = (heads), .n_kv_head = (kv),                \
        .head_dim = (d), .hidden = (width), .ffn = (inner), .n_vocab = (vocab), .context = 4096,   \
        .type = (weights), .seed = (heads)*100 + (d)                                               \
    }
static const toy_shape shapes[] = {
    SHAPE("heads of 2, group 16", 2, 16, 1, 2, 32, 96, 263, TOY_F32),
    SHAPE("heads of 6", 2, 5, 5, 6, 34, 70, 291, TOY_F32),
    SHAPE("heads of 10", 1, 7, 1, 10, 50, 33, 299, TOY_F16),
    SHAPE("heads of 18", 2, 3, 1, 18, 54, 54, 263, TOY_BF16),
    SHAPE("heads of 34", 2, 6, 2, 34, 102, 130, 264, TOY_BF16),
    SHAPE("heads of 80", 2, 4, 2, 80, 160, 288, 280, TOY_Q4_0),
    SHAPE("heads of 96", 1, 6, 3, 96, 96, 576, 300, TOY_Q8_0),
    SHAPE("heads of 256", 1, 4, 2, 256, 128, 128, 265, TOY_F16),
    SHAPE("12/3 heads of 48", 2, 12, 3, 48, 192, 384, 333, TOY_BF16),
    SHAPE("16/2 heads of 16", 2, 16, 2, 16, 64, 256, 384, TOY_Q4_0),
    SHAPE("group 70", 1, 70, 1, 4, 64, 64, 263, TOY_F32),
};

/* Every shape on topologies drawn from its legal ones, at both levels, with each cache type. */
static void odd_sizes(void **state) {
    (void)state;
    enum { N = 4 };
    static const int32_t len[N] = {1, 17, 40, 70};
    static const int32_t budget[] = {512, 7, 37};
    uint64_t rng = 14;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const toy_shape *s = &shapes[i];
        weft_model *m = toy_open(s);
        topo_sizes list[MAX_TOPO];
        int32_t n_topo = run_topologies(m, run_small() ? 4 : 9, list, MAX_TOPO);
        weft_request q[N];
        run_answer oracle[N];
        for (int32_t r = 0; r < N; r++) {
            q[r] = run_request(s->n_vocab, len[r], 3, s->seed + (uint64_t)r);
            q[r].arrival_step = r;
        }
        for (int32_t kv = 0; kv < 3; kv++) {
            weft_engine_params p = run_params(1, 1, 1);
            p.kv_dtype = (weft_kv_dtype)kv;
            p.isa = "scalar";
            run_oracle(m, &p, q, N, oracle);
            p.isa = NULL;
            for (int32_t k = 0; k < (run_small() ? 2 : 6); k++) {
                topo_sizes t =
                    k == 0 ? (topo_sizes){1, 1, 1} : list[run_draw_in(&rng, 0, n_topo - 1)];
                p.tp = t.tp, p.pcp = t.pcp, p.dcp = t.dcp;
                p.n_thread = run_draw_in(&rng, 1, 4);
                p.exchange = (weft_exchange)run_draw_in(&rng, 0, 2);
                p.max_num_batched_tokens = budget[run_draw_in(&rng, 0, 2)];
                run_check(s->name, m, &p, q, N, oracle);
            }
            run_free(oracle, N);
        }
        weft_model_close(m);
    }
}

/* 16 shards over each number of DCP ranks, most of which cut the tree through its subtrees; one
 * context just below, at and above one turn of the shards (256), one of two turns. */
static void uneven_shards(void **state) {
    (void)state;
    enum { N = 5 };
    static const int32_t len[N] = {255, 256, 257, 520, 3};
    toy_shape longer = toy_gqa;
    longer.context = 1024;
    weft_model *m = toy_open(&longer);
    weft_engine_params p = run_params(1, 1, 1);
    p.max_model_len = 528;
    weft_request q[N];
    run_answer oracle[N];
    for (int32_t i = 0; i < N; i++)
        q[i] = run_request(longer.n_vocab, len[i], 4, 500 + (uint64_t)i);
    run_oracle(m, &p, q, N, oracle);
    for (int32_t dcp = 3; dcp <= (run_small() ? 5 : 16); dcp++) {
        p.pcp = p.dcp = dcp;
        for (int32_t x = WEFT_EXCHANGE_Q; x <= WEFT_EXCHANGE_KV; x++) {
            p.exchange = (weft_exchange)x;
            p.max_num_batched_tokens = dcp % 2 ? 512 : 200;
            run_check("uneven shards", m, &p, q, N, oracle);
        }
    }
    run_free(oracle, N);
    weft_model_close(m);
}

/* A14: prompts whose chunks of ranks and halves are all of different sizes. */
static void odd_long_prompts(void **state) {
    (void)state;
    enum { N = 2 };
    static const toy_shape tiny = SHAPE("tiny", 1, 2, 1, 16, 32, 32, 263, TOY_Q8_0);
    weft_model *m = toy_open(&tiny);
    weft_engine_params p = run_params(1, 1, 1);
    p.max_model_len = 3008;
    weft_request q[N] = {run_request(tiny.n_vocab, run_small() ? 997 : 2999, 3, 1),
                         run_request(tiny.n_vocab, 97, 3, 2)};
    run_answer oracle[N];
    run_oracle(m, &p, q, N, oracle);
    for (int32_t dcp = 1; dcp <= 4; dcp *= 2) {
        p.pcp = 4, p.dcp = dcp;
        for (int32_t budget = 431; budget <= 3448; budget *= 8) {
            p.max_num_batched_tokens = budget;
            run_check("A14: 2999 tokens", m, &p, q, N, oracle);
        }
    }
    run_free(oracle, N);
    weft_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_sizes),
        cmocka_unit_test(uneven_shards),
        cmocka_unit_test(odd_long_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
