/* Plans: what is written comes out again; what breaks a bound is refused with its reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "batch/batch.h"

enum { N_SLOT = 3, MAX_LEN = 50, P = 16, MAX_PAGES = 4, N_VOCAB = 100, N_PAGE = 44 };
static const batch_limits one_group = {N_SLOT, MAX_LEN, P, N_VOCAB, 1, {{0, N_PAGE}}};
static const batch_limits two_groups = {N_SLOT,  MAX_LEN, P,
                                        N_VOCAB, 2,       {{0, N_PAGE}, {20, N_PAGE}}};

static uint64_t random_state = 0x123456789abcdefu;
static uint32_t random_u32(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

typedef struct fixture {
    batch_slots slots;
    batch_request req[N_SLOT];
    batch_global global;
    uint8_t plan[4096];
    plan_writer w;
} fixture;

static void open_with(fixture *f, const batch_limits *l) {
    memset(f, 0, sizeof *f);
    assert_int_equal(batch_slots_open(l, &f->slots, NULL), WEFT_OK);
    f->global.req = f->req;
    plan_begin(&f->w, f->plan, sizeof f->plan, PLAN_STEP, 1);
}

static void open_fixture(fixture *f) {
    open_with(f, &one_group);
}

static const int32_t tokens[64] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};
static const int32_t pages[8] = {7, 5, 9, 2, 1, 0, 3, 4};

static plan_admit admission(uint64_t request, int32_t slot, int32_t n_token) {
    return (plan_admit){.request = request,
                        .slot = slot,
                        .n_prompt = n_token,
                        .n_token = n_token,
                        .logits_from = n_token - 1,
                        .sampling = {.temperature = 0.5f, .top_k = 3, .seed = request * 7}};
}

/* Applies what is written and starts the next plan. */
static weft_status apply(fixture *f, weft_error *err) {
    weft_status s = batch_slots_apply(&f->slots, f->plan, f->w.n, &f->global, err);
    plan_begin(&f->w, f->plan, sizeof f->plan, PLAN_STEP, f->global.step + 1);
    return s;
}

static void put_run(fixture *f, plan_run r) {
    plan_put_run(&f->w, &r, 1, (const int32_t *[]){pages});
}

/* Two requests: chunked prompt with prompt logits, and a whole one; then decode; then a release and
 * the slot's next owner in one plan. */
static void test_round_trip(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    plan_admit a = admission(70, 2, 40);
    a.logits_from = 0;
    plan_put_admit(&f.w, &a, tokens, NULL);
    a = admission(71, 0, 5);
    plan_put_admit(&f.w, &a, tokens + 1, NULL);
    put_run(&f, (plan_run){.slot = 2, .start = 0, .n_new = 30, .append = -1, .n_page = 2});
    put_run(&f, (plan_run){.slot = 0, .start = 0, .n_new = 5, .append = -1, .n_page = 1});
    assert_int_equal(apply(&f, NULL), WEFT_OK);

    assert_int_equal(f.global.kind, PLAN_STEP);
    assert_int_equal(f.global.step, 1);
    assert_int_equal(f.global.n_req, 2);
    const batch_request *r = f.global.req;
    assert_int_equal(r[0].slot, 2);
    assert_int_equal(r[0].n_new, 30);
    assert_int_equal(r[0].n_logits, 30);
    assert_false(r[0].sample);
    assert_false(r[0].decode);
    assert_memory_equal(r[0].token, tokens, 40 * 4);
    assert_memory_equal(r[0].page[0], pages, 2 * 4);
    assert_int_equal(r[1].slot, 0);
    assert_int_equal(r[1].n_logits, 1);
    assert_true(r[1].sample);
    assert_int_equal(r[1].token[0], 12);
    assert_int_equal(f.slots.slot[2].request, 70);
    assert_int_equal(f.slots.slot[2].sampling.seed, 490);
    assert_true(f.slots.slot[2].sampling.temperature == 0.5f);
    assert_int_equal(f.slots.slot[1].request, 0);

    /* The prompt's last 10 tokens beside a decode row. */
    put_run(&f, (plan_run){.slot = 2, .start = 30, .n_new = 10, .append = -1, .n_page = 1});
    put_run(&f, (plan_run){.slot = 0, .start = 5, .n_new = 1, .append = 99, .decode = 1});
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    assert_int_equal(f.global.step, 2);
    assert_int_equal(r[0].n_logits, 10);
    assert_true(r[0].sample);
    assert_int_equal(r[0].page[0][2], pages[0]);
    assert_true(r[1].decode && r[1].sample);
    assert_int_equal(r[1].n_logits, 1);
    assert_int_equal(r[1].token[5], 99);
    assert_int_equal(f.slots.slot[0].n_token, 6);

    /* Slot 0 changes hands inside one plan; the new request finds no pages of the old one. */
    plan_put_release(&f.w, 0);
    a = admission(72, 0, 13);
    plan_put_admit(&f.w, &a, tokens, NULL);
    put_run(&f, (plan_run){.slot = 0, .start = 0, .n_new = 13, .append = -1, .n_page = 1});
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    assert_int_equal(f.global.n_req, 1);
    assert_int_equal(f.slots.slot[0].n_page, 1);
    assert_int_equal(f.slots.slot[0].n_token, 13);

    /* Work-free plans. */
    plan_begin(&f.w, f.plan, sizeof f.plan, PLAN_IDLE, 9);
    plan_put_release(&f.w, 2);
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    assert_int_equal(f.global.kind, PLAN_IDLE);
    assert_int_equal(f.global.n_req, 0);
    assert_int_equal(f.slots.slot[2].request, 0);
    plan_begin(&f.w, f.plan, sizeof f.plan, PLAN_STOP, 9);
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    assert_int_equal(f.global.kind, PLAN_STOP);
    batch_slots_close(&f.slots);
}

/* T19: the last prompt token alone is a prefill; a recomputed request with output is a decode row
 * only when one token is left. */
static void test_decode_mark(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    plan_admit a = admission(1, 0, 20);
    plan_put_admit(&f.w, &a, tokens, NULL);
    put_run(&f, (plan_run){.slot = 0, .start = 0, .n_new = 19, .append = -1, .n_page = 2});
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    assert_int_equal(f.req[0].n_logits, 0);
    assert_false(f.req[0].sample);
    put_run(&f, (plan_run){.slot = 0, .start = 19, .n_new = 1, .append = -1});
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    assert_false(f.req[0].decode);
    assert_true(f.req[0].sample);
    assert_int_equal(f.req[0].n_logits, 1);
    /* Marked as decode it is refused. */
    put_run(&f, (plan_run){.slot = 0, .start = 19, .n_new = 1, .append = -1, .decode = 1});
    assert_int_equal(apply(&f, NULL), WEFT_ERR_RANK);
    batch_slots_close(&f.slots);
}

/* Recompute after preemption: 8 prompt tokens, 5 of output; rows that were delivered are not due
 * again. */
static void test_recompute(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    plan_admit a = admission(5, 1, 13);
    a.n_prompt = 8;
    plan_put_admit(&f.w, &a, tokens, NULL);
    put_run(&f, (plan_run){.slot = 1, .start = 0, .n_new = 7, .append = -1, .n_page = 1});
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    assert_int_equal(f.req[0].n_logits, 0);
    put_run(&f, (plan_run){.slot = 1, .start = 7, .n_new = 6, .append = -1});
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    assert_int_equal(f.req[0].n_logits, 1);
    assert_true(f.req[0].sample);
    put_run(&f, (plan_run){.slot = 1, .start = 13, .n_new = 1, .append = 40, .decode = 1});
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    assert_int_equal(f.req[0].n_logits, 1);
    batch_slots_close(&f.slots);
}

typedef struct bad_run {
    plan_run run;
    const char *text;
} bad_run;

/* Each on a slot with 20 tokens (18 prompt), 16 computed, 1 page known. */
static void test_bad_runs(void **state) {
    (void)state;
    static const bad_run bad[] = {
        {{.slot = 3, .start = 16, .n_new = 1, .append = -1, .n_page = 1}, "slots are 0..2"},
        {{.slot = -1, .start = 16, .n_new = 1, .append = -1, .n_page = 1}, "slot -1"},
        {{.slot = INT32_MIN, .start = 16, .n_new = 1, .append = -1, .n_page = 1}, "slots are 0..2"},
        {{.slot = 1, .start = 0, .n_new = 1, .append = -1, .n_page = 1}, "slot 1, which is free"},
        {{.slot = 0, .start = -1, .n_new = 1, .append = -1, .n_page = 1}, "from -1 on"},
        {{.slot = 0, .start = 16, .n_new = 0, .append = -1, .n_page = 1}, "0 positions"},
        {{.slot = 0, .start = 16, .n_new = -4, .append = -1, .n_page = 1}, "-4 positions"},
        {{.slot = 0, .start = 16, .n_new = 5, .append = -1, .n_page = 1}, "it has 20 tokens"},
        {{.slot = 0, .start = INT32_MAX, .n_new = INT32_MAX, .append = -1}, "it has 20 tokens"},
        {{.slot = 0, .start = 16, .n_new = 4, .append = -2, .n_page = 1}, "token -2"},
        {{.slot = 0, .start = 16, .n_new = 4, .append = N_VOCAB, .n_page = 1}, "token 100"},
        {{.slot = 0, .start = 16, .n_new = 4, .append = -1, .n_page = 0}, "1 + 0 pages"},
        {{.slot = 0, .start = 16, .n_new = 4, .append = -1, .n_page = -1}, "1 + -1 pages"},
        {{.slot = 0, .start = 16, .n_new = 4, .append = -1, .n_page = 4}, "at most 4"},
        {{.slot = 0, .start = 16, .n_new = 4, .append = -1, .n_page = 1, .decode = 1}, "decode"},
        {{.slot = 0, .start = 18, .n_new = 1, .append = -1, .n_page = 1, .decode = 1}, "decode"},
        {{.slot = 0, .start = 16, .n_new = 4, .append = -1, .n_page = 1, .decode = 2}, "(2)"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fixture f;
        open_fixture(&f);
        plan_admit a = admission(4, 0, 20);
        a.n_prompt = 18;
        plan_put_admit(&f.w, &a, tokens, NULL);
        put_run(&f, (plan_run){.slot = 0, .start = 0, .n_new = 16, .append = -1, .n_page = 1});
        assert_int_equal(apply(&f, NULL), WEFT_OK);
        batch_global before = f.global;
        plan_run r = bad[i].run;
        int32_t n_page = r.n_page;
        r.n_page = n_page < 0 ? 0 : n_page;
        put_run(&f, r);
        if (n_page < 0) { /* the writer would copy a negative count */
            memcpy(f.plan + sizeof(plan_head) + offsetof(plan_run, n_page), &n_page, 4);
        }
        weft_error err;
        assert_int_equal(apply(&f, &err), WEFT_ERR_RANK);
        if (!strstr(err.text, bad[i].text)) {
            fail_msg("\"%s\" does not say \"%s\"", err.text, bad[i].text);
        }
        assert_memory_equal(&before, &f.global, sizeof before);
        /* The good run is still possible. */
        put_run(&f, (plan_run){.slot = 0, .start = 16, .n_new = 4, .append = -1, .n_page = 1});
        assert_int_equal(apply(&f, NULL), WEFT_OK);
        batch_slots_close(&f.slots);
    }
}

static void check_bad_admit(plan_admit a, const char *text) {
    fixture f;
    open_fixture(&f);
    plan_admit first = admission(4, 0, 20);
    plan_put_admit(&f.w, &first, tokens, NULL);
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    int32_t n_token = a.n_token;
    a.n_token = n_token < 0 || n_token > 64 ? 1 : n_token;
    plan_put_admit(&f.w, &a, tokens, NULL);
    memcpy(f.plan + sizeof(plan_head) + offsetof(plan_admit, n_token), &n_token, 4);
    weft_error err;
    assert_int_equal(apply(&f, &err), WEFT_ERR_RANK);
    if (!strstr(err.text, text)) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    }
    batch_slots_close(&f.slots);
}

static void test_bad_admissions(void **state) {
    (void)state;
    check_bad_admit(admission(9, 0, 3), "slot 0, which is taken");
    check_bad_admit(admission(9, 3, 3), "slots are 0..2");
    check_bad_admit(admission(4, 1, 3), "it is in slot 0");
    check_bad_admit(admission(0, 1, 3), "request 0");
    check_bad_admit(admission(9, 1, 0), "0 tokens");
    check_bad_admit(admission(9, 1, MAX_LEN + 1), "at most 50");
    check_bad_admit(admission(9, 1, INT32_MAX), "at most 50");
    check_bad_admit(admission(9, 1, -5), "-5 tokens");
    plan_admit a = admission(9, 1, 3);
    a.n_prompt = 4;
    check_bad_admit(a, "4 prompt tokens, 3 tokens");
    a.n_prompt = 0;
    check_bad_admit(a, "0 prompt tokens");
    a = admission(9, 1, 3);
    a.logits_from = 3;
    check_bad_admit(a, "position 3 of 3");
    a.logits_from = -1;
    check_bad_admit(a, "position -1");
}

static void expect_refused(fixture *f, const char *text) {
    weft_error err;
    assert_int_equal(apply(f, &err), WEFT_ERR_RANK);
    if (!strstr(err.text, text)) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    }
}

static void test_bad_plans(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    plan_put_release(&f.w, 1);
    expect_refused(&f, "slot 1, which is free");
    plan_put_release(&f.w, -1);
    expect_refused(&f, "slot -1");

    plan_admit a = admission(4, 1, 20);
    plan_put_admit(&f.w, &a, tokens, NULL);
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    plan_put_release(&f.w, 1);
    plan_put_release(&f.w, 1);
    expect_refused(&f, "slot 1, which is free");
    plan_put_admit(&f.w, &a, tokens, NULL);
    put_run(&f, (plan_run){.slot = 1, .start = 0, .n_new = 4, .append = -1, .n_page = 1});
    put_run(&f, (plan_run){.slot = 1, .start = 4, .n_new = 4, .append = -1, .n_page = 0});
    expect_refused(&f, "two runs of slot 1");

    /* Ids of tokens, biases and pages that are not there. */
    plan_put_release(&f.w, 1);
    const int32_t negative[3] = {3, -3, 3}, no_token[3] = {3, N_VOCAB, 3}, no_page[3] = {3, N_PAGE};
    const weft_bias no_bias[2] = {{N_VOCAB - 1, 1}, {N_VOCAB, 1}};
    a = admission(5, 1, 3);
    plan_put_admit(&f.w, &a, negative, NULL);
    expect_refused(&f, "id -3 is not in 0..99");
    plan_put_admit(&f.w, &a, no_token, NULL);
    expect_refused(&f, "id 100 is not in 0..99");
    a.n_bias = 2;
    plan_put_admit(&f.w, &a, tokens, no_bias);
    expect_refused(&f, "id 100, not in 0..99");
    a = admission(6, 1, 20);
    plan_put_admit(&f.w, &a, tokens, NULL);
    plan_run r = {.slot = 1, .start = 0, .n_new = 20, .append = -1, .n_page = 2};
    plan_put_run(&f.w, &r, 1, (const int32_t *[]){negative});
    expect_refused(&f, "id -3 is not in 0..43");
    plan_put_run(&f.w, &r, 1, (const int32_t *[]){no_page});
    expect_refused(&f, "id 44 is not in 0..43");

    /* The head. */
    const struct {
        size_t at;
        int32_t value;
        const char *text;
    } heads[] = {
        {offsetof(plan_head, kind), 4, "kind 4"},
        {offsetof(plan_head, kind), 0, "kind 0"},
        {offsetof(plan_head, kind), PLAN_IDLE, "1 runs in a plan of kind 2"},
        {offsetof(plan_head, bytes), 33, "says 33 bytes"},
        {offsetof(plan_head, bytes) + 4, -1, "says -"},
        {offsetof(plan_head, n_release), -1, "-1 releases"},
        {offsetof(plan_head, n_admit), 4, "4 admissions"},
        {offsetof(plan_head, n_run), INT32_MAX, "runs for 3 slots"},
        {offsetof(plan_head, n_run), 0, "after the last run"},
        {offsetof(plan_head, n_run), 2, "run 1 needs"},
    };
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        put_run(&f, (plan_run){.slot = 1, .start = 0, .n_new = 20, .append = -1, .n_page = 2});
        memcpy(f.plan + heads[i].at, &heads[i].value, 4);
        expect_refused(&f, heads[i].text);
        batch_slots_close(&f.slots);
        open_fixture(&f);
        a = admission(6, 1, 20);
        plan_put_admit(&f.w, &a, tokens, NULL);
        assert_int_equal(apply(&f, NULL), WEFT_OK);
    }
    batch_slots_close(&f.slots);
}

/* A slot that is full takes no more tokens. */
static void test_full_slot(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    plan_admit a = admission(4, 0, MAX_LEN);
    plan_put_admit(&f.w, &a, tokens, NULL);
    put_run(&f, (plan_run){.slot = 0, .start = 0, .n_new = MAX_LEN, .append = -1, .n_page = 4});
    assert_int_equal(apply(&f, NULL), WEFT_OK);
    put_run(&f, (plan_run){.slot = 0, .start = MAX_LEN, .n_new = 1, .append = 1, .decode = 1});
    expect_refused(&f, "to 50 of at most 50");
    batch_slots_close(&f.slots);
}

/* Every cut of a good plan is refused, and random damage never writes outside (sanitizers watch).
 */
static void test_damage(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f);
    plan_admit a = admission(4, 0, 20);
    plan_put_admit(&f.w, &a, tokens, NULL);
    put_run(&f, (plan_run){.slot = 0, .start = 0, .n_new = 20, .append = -1, .n_page = 2});
    uint8_t good[512];
    size_t n = f.w.n;
    assert_true(n <= sizeof good);
    memcpy(good, f.plan, n);
    int32_t accepted = 0;
    for (int32_t i = 0; i < 60000; i++) {
        batch_slots_close(&f.slots);
        assert_int_equal(batch_slots_open(&one_group, &f.slots, NULL), WEFT_OK);
        size_t bytes = i < (int32_t)n ? (size_t)i : n;
        uint8_t *copy = malloc(bytes + !bytes);
        memcpy(copy, good, bytes);
        if (bytes >= sizeof(plan_head)) {
            int64_t said = (int64_t)bytes;
            memcpy(copy + offsetof(plan_head, bytes), &said, sizeof said);
        }
        if (bytes == n) {
            for (uint32_t k = random_u32() % 4; k > 0; k--) {
                int32_t value = (int32_t)random_u32() >> random_u32() % 32;
                memcpy(copy + random_u32() % (n / 4) * 4, &value, 4);
            }
        }
        f.global = (batch_global){.req = f.req};
        weft_error err;
        weft_status s = batch_slots_apply(&f.slots, copy, bytes, &f.global, &err);
        assert_true(s == WEFT_OK || (s == WEFT_ERR_RANK && err.text[0] != 0));
        if (bytes < n) {
            assert_int_equal(s, WEFT_ERR_RANK);
        }
        if (s == WEFT_OK) {
            accepted++;
            for (int32_t k = 0; k < f.global.n_req; k++) {
                const batch_request *r = &f.global.req[k];
                assert_true(r->start >= 0 && r->n_new >= 1 && r->start + r->n_new <= MAX_LEN);
                assert_in_range(r->n_logits, 0, r->n_new);
                assert_true(!r->sample || r->n_logits >= 1);
                for (int32_t at = 0; at < r->start + r->n_new; at++) {
                    assert_in_range(r->token[at], 0, N_VOCAB - 1);
                    assert_in_range(r->page[0][at / P], 0, N_PAGE - 1);
                }
            }
        }
        free(copy);
    }
    assert_true(accepted > 1000 && accepted < 59000);
    batch_slots_close(&f.slots);
}

/* The largest plan that a scheduler can make fits plan_cap exactly. */
static void test_cap(void **state) {
    (void)state;
    static const weft_bias bias[WEFT_MAX_BIAS] = {{0, 0}};
    size_t cap = plan_cap(N_SLOT, MAX_LEN, P, 2);
    uint8_t *buf = malloc(cap);
    plan_writer w;
    plan_begin(&w, buf, cap, PLAN_STEP, 1);
    for (int32_t i = 0; i < N_SLOT; i++) {
        plan_put_release(&w, i);
    }
    for (int32_t i = 0; i < N_SLOT; i++) {
        plan_admit a = admission(10 + (uint64_t)i, i, MAX_LEN);
        a.n_bias = WEFT_MAX_BIAS;
        plan_put_admit(&w, &a, tokens, bias);
    }
    for (int32_t i = 0; i < N_SLOT; i++) {
        plan_run r = {.slot = i, .n_new = MAX_LEN, .append = -1, .n_page = MAX_PAGES};
        plan_put_run(&w, &r, 2, (const int32_t *[]){pages, pages});
    }
    assert_int_equal(w.n, cap);
    plan_head h;
    memcpy(&h, buf, sizeof h);
    assert_int_equal(h.bytes, cap);
    free(buf);
}

/* An admission that begins behind a cached prefix: the ranks hear of its pages with the first run,
 * those that the window does not see are -1 in it and nothing else may be. Biases come with it. */
static void test_cached_prefix(void **state) {
    (void)state;
    const weft_bias bias[2] = {{7, 1.5f}, {9, -2.0f}};
    for (int32_t turn = 0; turn < 3; turn++) {
        const int32_t seen[4] = {turn == 1 ? 40 : -1, turn == 2 ? -1 : 41, 42, 43};
        fixture f;
        weft_error err = {0};
        open_with(&f, &two_groups);
        plan_admit a = admission(1, 1, 50);
        a.n_bias = 2;
        plan_put_admit(&f.w, &a, tokens, bias);
        plan_run r = {.slot = 1, .start = 40, .n_new = 10, .append = -1, .n_page = 4};
        r.first[1] = 1; /* position 40 sees 21 and what follows */
        plan_put_run(&f.w, &r, 2, (const int32_t *[]){pages, seen});
        weft_status s = apply(&f, &err);
        assert_int_equal(s, turn == 2 ? WEFT_ERR_RANK : WEFT_OK);
        if (s == WEFT_OK) { /* whatever stood in its place */
            assert_int_equal(f.req[0].page[1][0], -1);
            assert_memory_equal(f.req[0].page[1] + 1, seen + 1, 3 * sizeof seen[0]);
            assert_memory_equal(f.req[0].page[0], pages, 4 * sizeof pages[0]);
            assert_int_equal(f.slots.slot[1].n_bias, 2);
            assert_memory_equal(f.slots.slot[1].bias, bias, sizeof bias);
        }
        batch_slots_close(&f.slots);
    }
}

/* Two groups: pages of each; what the window has left becomes -1, and a plan that lacks a page which
 * a position of its run sees, or one that never was there, is refused. */
static void test_groups(void **state) {
    (void)state;
    const int32_t other[4] = {40, 41, 42, 43};
    for (int32_t first = -1; first <= 3; first++) {
        fixture f;
        weft_error err = {0};
        open_with(&f, &two_groups);
        plan_admit a = admission(1, 1, 50);
        plan_put_admit(&f.w, &a, tokens, NULL);
        plan_run r = {.slot = 1, .n_new = 40, .append = -1, .n_page = 3};
        plan_put_run(&f.w, &r, 2, (const int32_t *[]){pages, other});
        assert_int_equal(apply(&f, &err), WEFT_OK);
        assert_memory_equal(f.req[0].page[0], pages, 3 * 4);
        assert_memory_equal(f.req[0].page[1], other, 3 * 4);
        /* position 40 sees 21 and what follows: page 1 is the first of the window */
        r = (plan_run){.slot = 1, .start = 40, .n_new = 10, .append = -1, .n_page = 1};
        r.first[1] = first;
        plan_put_run(&f.w, &r, 2, (const int32_t *[]){pages + 3, other + 3});
        weft_status s = apply(&f, &err);
        if (first == 0 || first == 1) {
            assert_int_equal(s, WEFT_OK);
            assert_int_equal(f.req[0].page[1][0], first == 0 ? other[0] : -1);
            assert_memory_equal(f.req[0].page[1] + 1, other + 1, 3 * 4);
            assert_memory_equal(f.req[0].page[0], pages, 4 * 4);
        } else {
            assert_int_equal(s, WEFT_ERR_RANK);
            assert_non_null(strstr(err.text, "leading pages of group 1"));
        }
        batch_slots_close(&f.slots);
    }
}

static void test_open(void **state) {
    (void)state;
    static const batch_limits bad[] = {
        {0, 8, 16, 9, 1, {{0, 9}}}, {1, 0, 16, 9, 1, {{0, 9}}}, {1, 8, 0, 9, 1, {{0, 9}}},
        {1, 8, 16, 0, 1, {{0, 9}}}, {1, 8, 16, 9, 0, {{0, 9}}}, {1, 8, 16, 9, 5, {{0, 9}}},
    };
    batch_slots s = {.l.n_slot = 77};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(batch_slots_open(&bad[i], &s, NULL), WEFT_ERR_SETUP);
        assert_int_equal(s.l.n_slot, 77);
    }
    s = (batch_slots){0};
    batch_slots_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_decode_mark),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_bad_runs),
        cmocka_unit_test(test_bad_admissions),
        cmocka_unit_test(test_bad_plans),
        cmocka_unit_test(test_full_slot),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_cap),
        cmocka_unit_test(test_cached_prefix),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
