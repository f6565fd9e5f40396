/* Text of answers: stop strings over token borders, text held back and let go, characters that are
 * cut in the middle, the end token. The model says the letters of a fixed chain one after another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "cp/toy.h"

enum { N_VOCAB = 263, END = N_VOCAB - 1 };
/* A..J, U+010F (C4 8F), U+1F600 (F0 9F 98 80), x, y, the end token, and A again. */
static const int32_t chain[] = {'A',  'B',  'C',  'D',  'E',  'F',  'G', 'H', 'I', 'J',
                                0xC4, 0x8F, 0xF0, 0x9F, 0x98, 0x80, 'x', 'y', END};
static const toy_shape speller = {.name = "speller",
                                  .n_layer = 1,
                                  .n_head = 4,
                                  .n_kv_head = 2,
                                  .head_dim = 32,
                                  .hidden = 128,
                                  .ffn = 128,
                                  .n_vocab = N_VOCAB,
                                  .context = 256,
                                  .type = TOY_F32,
                                  .seed = 3,
                                  .chain = chain,
                                  .n_chain = sizeof chain / sizeof *chain};
#define SMILE "\xF0\x9F\x98\x80"
#define BAD "\xEF\xBF\xBD"

typedef struct text_case {
    const char *stop[3];
    int32_t max_tokens;
    bool ignore_eos;
    const char *text;
    weft_finish finish;
    int32_t n_token; /* 0: not looked at */
} text_case;

/* The prompt is "ABC". */
static const text_case cases[] = {
    {{NULL}, 40, false, "DEFGHIJ\xC4\x8F" SMILE "xy", WEFT_FINISH_STOP, 16},
    {{NULL}, 18, true, "DEFGHIJ\xC4\x8F" SMILE "xyAB", WEFT_FINISH_LENGTH, 18},
    {{"DEFGHIJ"}, 40, false, "", WEFT_FINISH_STOP, 7},
    {{"FG"}, 40, false, "DE", WEFT_FINISH_STOP, 4},
    {{"D"}, 40, false, "", WEFT_FINISH_STOP, 1}, /* in the first token */
    {{"y"}, 40, false, "DEFGHIJ\xC4\x8F" SMILE "x", WEFT_FINISH_STOP, 0},
    {{"ABC"},
     5,
     false,
     "DEFGH",
     WEFT_FINISH_LENGTH,
     5}, /* the end of the prompt is not looked at */
    {{"CDE"}, 5, false, "DEFGH", WEFT_FINISH_LENGTH, 5}, /* nor joined to the answer */
    {{"GHZ"}, 5, false, "DEFGH", WEFT_FINISH_LENGTH, 5}, /* held back, let go at the end */
    {{"xyz"}, 40, false, "DEFGHIJ\xC4\x8F" SMILE "xy", WEFT_FINISH_STOP, 0}, /* by the end token */
    {{"EFX", "GX"}, 6, false, "DEFGHI", WEFT_FINISH_LENGTH, 6},
    {{"IJ", "EF"}, 40, false, "D", WEFT_FINISH_STOP, 3}, /* the first to appear, not to be listed */
    {{"FGH", "GH", "H"}, 40, false, "DE", WEFT_FINISH_STOP, 5},
    {{"EFGX", "FG"}, 40, false, "DE", WEFT_FINISH_STOP, 4},
    {{SMILE}, 40, false, "DEFGHIJ\xC4\x8F", WEFT_FINISH_STOP, 13},
    {{"J\xC4\x8F"}, 40, false, "DEFGHI", WEFT_FINISH_STOP, 9},
    {{NULL}, 8, false, "DEFGHIJ" BAD, WEFT_FINISH_LENGTH, 8}, /* half a character */
    {{NULL}, 12, false, "DEFGHIJ\xC4\x8F" BAD, WEFT_FINISH_LENGTH, 12},
    {{"HIJ" SMILE}, 8, false, "DEFGHIJ" BAD, WEFT_FINISH_LENGTH, 8},
    {{"J" BAD},
     8,
     false,
     "DEFGHI",
     WEFT_FINISH_STOP,
     8},                                            /* complete by the end of the text alone */
    {{"DEFGH"}, 5, false, "", WEFT_FINISH_STOP, 5}, /* complete in the last token */
};
enum { N_CASE = sizeof cases / sizeof *cases };

static weft_request request_of(const text_case *c, const int32_t *prompt) {
    weft_request q = run_request(N_VOCAB, 1, c->max_tokens, 0);
    q.prompt = prompt;
    q.n_prompt = 3;
    q.stop = c->stop;
    while (q.n_stop < 3 && c->stop[q.n_stop])
        q.n_stop++;
    q.ignore_eos = c->ignore_eos;
    return q;
}

static void expect_case(int32_t i, const run_answer *a) {
    const text_case *c = &cases[i];
    if (strcmp(a->text, c->text) != 0 || a->finish != c->finish ||
        (c->n_token > 0 && a->n_token != c->n_token))
        fail_msg("case %d: \"%s\", finish %d, %d tokens; expected \"%s\", %d, %d", i, a->text,
                 (int)a->finish, a->n_token, c->text, (int)c->finish, c->n_token);
    assert_int_equal(a->status, WEFT_OK);
}

/* Each case alone and all together, in one engine, so that every one runs after stops and ends. */
static void text_of_answers(void **state) {
    (void)state;
    static const int32_t prompt[] = {'A', 'B', 'C'};
    static const topo_sizes sizes[] = {{1, 1, 1}, {1, 2, 2}, {2, 2, 2}};
    weft_model *m = toy_open(&speller);
    weft_request q[N_CASE];
    run_answer got[N_CASE];
    for (int32_t i = 0; i < N_CASE; i++)
        q[i] = request_of(&cases[i], prompt);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        weft_engine_params params = run_params(sizes[s].tp, sizes[s].pcp, sizes[s].dcp);
        weft_engine *e = NULL;
        weft_error err = {0};
        assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_OK);
        for (int32_t i = 0; i < N_CASE; i++) {
            assert_int_equal(run_requests(e, &q[i], 1, NULL, got, &err), WEFT_OK);
            expect_case(i, got);
            run_free(got, 1);
        }
        assert_int_equal(run_requests(e, q, N_CASE, NULL, got, &err), WEFT_OK);
        for (int32_t i = 0; i < N_CASE; i++)
            expect_case(i, &got[i]);
        run_free(got, N_CASE);
        weft_engine_close(e);
    }
    weft_model_close(m);
}

/* A penalty that is as large as the chain's pull keeps a token from coming twice. */
static void penalty_counts_own_tokens(void **state) {
    (void)state;
    static const int32_t prompt[] = {'A', 'B', 'C'};
    weft_model *m = toy_open(&speller);
    weft_request q[2];
    run_answer got[2];
    for (int32_t i = 0; i < 2; i++) {
        q[i] = request_of(&cases[1], prompt);
        q[i].max_tokens = 40;
    }
    q[1].sampling.presence_penalty = 2, q[1].sampling.repetition_penalty = 1000;
    weft_engine_params params = run_params(1, 2, 2);
    run_ok("penalty", m, &params, q, 2, got, NULL);
    assert_int_equal(got[0].token[0], got[0].token[19]); /* once around */
    for (int32_t i = 0; i < 40; i++)
        for (int32_t j = 0; j < i; j++)
            assert_int_not_equal(got[1].token[i], got[1].token[j]);
    run_free(got, 2);
    weft_model_close(m);
}

static void bad_requests_are_refused(void **state) {
    (void)state;
    static const int32_t prompt[] = {'A', N_VOCAB, 'C'};
    static const char *const empty[] = {""}, *const half[] = {"\x8F"};
    weft_model *m = toy_open(&speller);
    weft_engine_params params = run_params(1, 2, 2);
    weft_engine *e = NULL;
    weft_error err = {0};
    uint64_t id = 0;
    assert_int_equal(weft_engine_open(m, &params, &e, &err), WEFT_OK);
    weft_request good = request_of(&cases[0], chain), q = good;
    q.prompt = prompt;
    assert_int_equal(weft_engine_submit(e, &q, 1, &id, &err), WEFT_ERR_USAGE);
    assert_non_null(strstr(err.text, "263"));
    q = good, q.max_tokens = 0;
    assert_int_equal(weft_engine_submit(e, &q, 1, &id, &err), WEFT_ERR_USAGE);
    q = good, q.stop = empty, q.n_stop = 1;
    assert_int_equal(weft_engine_submit(e, &q, 1, &id, &err), WEFT_ERR_USAGE);
    q = good, q.stop = half, q.n_stop = 1; /* would cut a character */
    assert_int_equal(weft_engine_submit(e, &q, 1, &id, &err), WEFT_ERR_USAGE);
    q = good, q.n_prompt = 0;
    assert_int_equal(weft_engine_submit(e, &q, 1, &id, &err), WEFT_ERR_USAGE);
    q = good, q.sampling.top_p = 2;
    assert_int_equal(weft_engine_submit(e, &q, 1, &id, &err), WEFT_ERR_USAGE);
    assert_int_equal(id, 0);
    run_answer got;
    assert_int_equal(run_requests(e, &good, 1, NULL, &got, &err), WEFT_OK);
    expect_case(0, &got);
    run_free(&got, 1);
    weft_engine_close(e);
    weft_model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_of_answers),
        cmocka_unit_test(penalty_counts_own_tokens),
        cmocka_unit_test(bad_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
