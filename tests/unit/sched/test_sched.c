/* The scheduler against a toy engine that computes from the plan's bytes alone: a cache cell is a
 * hash of all cells before it, read through the page table, so a wrong page, a lost token or a
 * position computed twice with other neighbours changes every later token. The right answer of a
 * request needs no scheduler at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "batch/batch.h"
#include "sched/sched.h"

static uint64_t rng_state;

static void seed_rng(uint64_t seed) {
    rng_state = seed * 0x9E3779B97F4A7C15u + 1;
}

static int32_t below(int32_t n) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (int32_t)((rng_state >> 11) % (uint64_t)n);
}

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* The toy model: cell(p) = mix(sum of cells before p, token p, p); next token = cell mod 100. With
 * more groups the sum has a part for each: of the cells that its window leaves in sight. */
static uint64_t cell_of(uint64_t before, int32_t token, int32_t position) {
    return mix(before + (uint64_t)token * 0x9E3779B97F4A7C15u + (uint64_t)position + 1);
}

static int32_t token_of(uint64_t cell) {
    return (int32_t)(cell % 100);
}

/* ---- the toy engine ---- */

enum { MAX_REQ = 16, MAX_LEN = 200, V = 16 };

typedef struct setup {
    int32_t max_num_seqs, budget, max_model_len, page_tokens, dcp, n_page;
    int32_t n_group; /* 0: one without a window, of n_page */
    kv_group group[KV_MAX_GROUP];
    bool prefix_cache;
} setup;

/* All see all. */
static setup one_group(int32_t max_num_seqs, int32_t budget, int32_t max_model_len,
                       int32_t page_tokens, int32_t dcp, int32_t n_page) {
    return (setup){.max_num_seqs = max_num_seqs,
                   .budget = budget,
                   .max_model_len = max_model_len,
                   .page_tokens = page_tokens,
                   .dcp = dcp,
                   .n_page = n_page};
}

typedef struct front { /* what a client sees of a request */
    uint64_t id;
    int32_t n_out, out[MAX_LEN];
    int32_t n_prompt_row;
    uint64_t row[MAX_LEN]; /* [position], 0: not delivered */
    bool ended, cancelled;
    sched_request *r; /* gone when ended */
} front;

typedef struct toy {
    setup u;
    kv_pools *kv;
    sched *s;
    batch_slots slots;
    uint8_t *plan;
    size_t plan_cap;
    int32_t cut[V + 1];
    uint64_t *cell[KV_MAX_GROUP]; /* [dcp][its n_page][page_tokens] */
    batch_request req[MAX_REQ];
    batch_global step;
    front f[MAX_REQ];
    int32_t n_front;
    int32_t n_step, most_running;
} toy;

static void toy_open(toy *t, setup u) {
    memset(t, 0, sizeof *t);
    if (u.n_group == 0)
        u.group[u.n_group++] = (kv_group){0, u.n_page};
    t->u = u;
    for (int32_t r = 0; r <= u.dcp; r++)
        t->cut[r] = r * V / u.dcp;
    const kv_sizes sizes = {u.dcp,    t->cut,    V,       u.page_tokens,
                            u.budget, u.n_group, u.group, u.prefix_cache};
    assert_int_equal(kv_open(&sizes, &t->kv, NULL), WEFT_OK);
    const sched_limits l = {u.max_num_seqs, u.budget, u.max_model_len, u.page_tokens,
                            u.prefix_cache};
    assert_int_equal(sched_open(&l, t->kv, &t->s, NULL), WEFT_OK);
    batch_limits slots = {.n_slot = u.max_num_seqs,
                          .max_len = u.max_model_len,
                          .page_tokens = u.page_tokens,
                          .n_vocab = INT32_MAX,
                          .n_group = u.n_group};
    memcpy(slots.group, u.group, sizeof slots.group);
    for (int32_t g = 0; g < u.n_group; g++) {
        t->cell[g] = calloc((size_t)u.dcp * (size_t)u.group[g].n_page * (size_t)u.page_tokens,
                            sizeof *t->cell[g]);
    }
    assert_int_equal(batch_slots_open(&slots, &t->slots, NULL), WEFT_OK);
    t->plan_cap = plan_cap(u.max_num_seqs, u.max_model_len, u.page_tokens, u.n_group);
    t->plan = malloc(t->plan_cap);
    t->step.req = t->req;
}

static void toy_close(toy *t) {
    sched_close(t->s);
    kv_close(t->kv);
    batch_slots_close(&t->slots);
    free(t->plan);
    for (int32_t g = 0; g < t->u.n_group; g++)
        free(t->cell[g]);
}

static weft_status toy_submit(toy *t, const int32_t *prompt, int32_t n_prompt, int32_t max_tokens,
                              bool prompt_logits, int64_t arrival, weft_error *err) {
    sched_request *r;
    weft_status st = sched_request_new(t->s, prompt, n_prompt, max_tokens, &r, err);
    if (st != WEFT_OK)
        return st;
    front *f = &t->f[t->n_front++];
    r->id = f->id = (uint64_t)t->n_front;
    r->prompt_logits = prompt_logits;
    r->arrival_step = arrival;
    r->user = f;
    f->r = r;
    sched_submit(t->s, r);
    return WEFT_OK;
}

static int64_t pages_used(const toy *t) {
    int64_t n = 0;
    for (int32_t g = 0; g < t->u.n_group; g++)
        n += kv_used_total(t->kv, g);
    return n;
}

static uint64_t *cell_at(toy *t, const int32_t *pages, int32_t g, int32_t position) {
    int32_t page = position / t->u.page_tokens, shard = 0, r = 0;
    for (int32_t bit = 1; bit < V; bit *= 2)
        shard = shard * 2 + ((page & bit) != 0);
    while (shard >= t->cut[r + 1])
        r++;
    assert_in_range(pages[page], 0, t->u.group[g].n_page - 1);
    return &t->cell[g][((int64_t)r * t->u.group[g].n_page + pages[page]) * t->u.page_tokens +
                       position % t->u.page_tokens];
}

/* A page that a run writes to belongs to its slot alone (others may share what they read), and the
 * scheduler holds at least the pages that the slots know. */
static void check_pages(toy *t, int32_t g) {
    uint8_t held[4096] = {0}, written[4096] = {0};
    int64_t known = 0;
    for (int32_t i = 0; i < t->step.n_req; i++) {
        const batch_slot *slot = &t->slots.slot[t->req[i].slot];
        for (int32_t j = slot->first[g]; j < slot->n_page; j++, known++) {
            const uint64_t *cell = cell_at(t, slot->page[g], g, j * t->u.page_tokens);
            int64_t at = (cell - t->cell[g]) / t->u.page_tokens;
            assert_in_range(at, 0, sizeof held - 1);
            known -= held[at] > 0;
            held[at]++;
            written[at] |= (j + 1) * t->u.page_tokens > t->req[i].start;
            assert_true(held[at] == 1 || !written[at]);
            assert_true(held[at] == 1 || t->u.prefix_cache);
        }
    }
    assert_true(kv_used_total(t->kv, g) >= known);
}

/* What the ranks derive from the bytes is what rank 0 meant. */
static void check_plan(toy *t, const sched_run *run, int32_t n_run) {
    int32_t n_tok = 0;
    assert_int_equal(t->step.n_req, n_run);
    assert_in_range(n_run, 1, t->u.max_num_seqs);
    for (int32_t i = 0; i < n_run; i++) {
        const batch_request *q = &t->req[i];
        const sched_request *r = run[i].r;
        assert_int_equal(q->slot, r->slot);
        assert_int_equal(q->start, run[i].start);
        assert_int_equal(q->n_new, run[i].n_new);
        assert_true(q->n_new >= 1);
        assert_int_equal(q->n_logits, run[i].n_logits);
        assert_int_equal(q->sample, run[i].sample);
        assert_int_equal(run[i].sample, q->start + q->n_new == r->n_token);
        assert_true(!q->sample || q->n_logits >= 1);
        assert_int_equal(q->decode, q->start == r->n_token - 1 && r->n_token > r->n_prompt);
        assert_int_equal(t->slots.slot[q->slot].request, r->id);
        assert_int_equal(t->slots.slot[q->slot].n_token, r->n_token);
        assert_memory_equal(q->token, r->token, (size_t)(q->start + q->n_new) * 4);
        for (int32_t j = 0; j < i; j++)
            assert_int_not_equal(q->slot, t->req[j].slot);
        n_tok += q->n_new;
    }
    assert_in_range(n_tok, 1, t->u.budget);
    for (int32_t g = 0; g < t->u.n_group; g++)
        check_pages(t, g);
}

/* Sum of the cells that position p sees in a group. */
static uint64_t sum_seen(toy *t, const batch_request *q, int32_t g, int32_t p) {
    int32_t window = t->u.group[g].window;
    uint64_t sum = 0;
    for (int32_t k = window > 0 && p >= window ? p - window + 1 : 0; k < p; k++)
        sum += *cell_at(t, q->page[g], g, k);
    return sum;
}

/* Writes the new cells, reads all that they see, delivers the rows that are due. */
static void compute_run(toy *t, const batch_request *q, const sched_run *run) {
    sched_request *r = run->r;
    front *f = r->user;
    for (int32_t p = q->start; p < q->start + q->n_new; p++) {
        uint64_t before = 0;
        for (int32_t g = 0; g < t->u.n_group; g++)
            before += sum_seen(t, q, g, p);
        uint64_t cell = cell_of(before, q->token[p], p);
        for (int32_t g = 0; g < t->u.n_group; g++)
            *cell_at(t, q->page[g], g, p) = cell;
        if (p < q->start + q->n_new - q->n_logits)
            continue;
        bool row_of_prompt = r->prompt_logits && p < r->n_prompt;
        assert_true(row_of_prompt || p == r->n_token - 1);
        assert_true(f->row[p] == 0); /* each row once, preempted or not */
        f->row[p] = cell;
        f->n_prompt_row += row_of_prompt;
    }
}

static void deliver_token(toy *t, const sched_run *run) {
    sched_request *r = run->r;
    front *f = r->user;
    int32_t token = token_of(f->row[run->start + run->n_new - 1]);
    sched_append(t->s, r, token);
    f->out[f->n_out++] = token;
    if (r->n_token == r->max_total) {
        f->ended = true;
        sched_finish(t->s, r);
        sched_request_free(r);
    }
}

static void take_cancelled(toy *t) {
    for (sched_request *r; (r = sched_take_cancelled(t->s));) {
        front *f = r->user;
        assert_true(f->cancelled && !f->ended);
        f->ended = true;
        sched_request_free(r);
    }
}

/* One turn of the engine's loop; false: nothing was computed. */
static bool toy_step(toy *t) {
    size_t bytes = 0;
    const sched_run *run;
    weft_error err = {0};
    int64_t preemptions = sched_count(t->s).n_preemption;
    sched_plan(t->s, t->plan, t->plan_cap, &bytes);
    plan_head head;
    memcpy(&head, t->plan, sizeof head);
    assert_true(head.n_admit == 0 || sched_count(t->s).n_preemption == preemptions);
    take_cancelled(t);
    if (batch_slots_apply(&t->slots, t->plan, bytes, &t->step, &err) != WEFT_OK)
        fail_msg("%s", err.text);
    int32_t n_run = sched_runs(t->s, &run);
    assert_int_equal(t->step.kind, n_run > 0 ? PLAN_STEP : PLAN_IDLE);
    if (n_run == 0)
        return false;
    assert_int_equal(t->step.step, sched_count(t->s).step - 1);
    check_plan(t, run, n_run);
    for (int32_t i = 0; i < n_run; i++)
        compute_run(t, &t->req[i], &run[i]);
    sched_step_done(t->s);
    for (int32_t i = 0; i < n_run; i++)
        if (run[i].sample)
            deliver_token(t, &run[i]);
    t->n_step++;
    if (n_run > t->most_running)
        t->most_running = n_run;
    return true;
}

/* The answer by the model alone. */
static void check_answer(const toy *t, const front *f, const int32_t *prompt, int32_t n_prompt,
                         int32_t n_out, bool prompt_logits) {
    int32_t token[2 * MAX_LEN];
    uint64_t done[2 * MAX_LEN];
    memcpy(token, prompt, (size_t)n_prompt * sizeof *token);
    for (int32_t p = 0; p < n_prompt + f->n_out - 1; p++) {
        uint64_t before = 0;
        for (int32_t g = 0; g < t->u.n_group; g++) {
            int32_t window = t->u.group[g].window;
            for (int32_t k = window > 0 && p >= window ? p - window + 1 : 0; k < p; k++)
                before += done[k];
        }
        uint64_t cell = done[p] = cell_of(before, token[p], p);
        if (prompt_logits || p >= n_prompt - 1)
            assert_true(f->row[p] == cell || (f->cancelled && f->row[p] == 0));
        if (p >= n_prompt - 1) {
            token[p + 1] = token_of(cell);
            assert_int_equal(f->out[p + 1 - n_prompt], token[p + 1]);
        }
    }
    assert_true(f->ended);
    if (f->cancelled)
        return;
    assert_int_equal(f->n_out, n_out);
    assert_int_equal(f->n_prompt_row, prompt_logits ? n_prompt : 0);
}

static void fill_prompt(int32_t *prompt, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        prompt[i] = below(100);
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* ---- any set-up, any company: the same answers ---- */

static setup random_setup(void) {
    const int32_t pages[] = {1, 2, 4, 16};
    setup u = {.prefix_cache = below(3) > 0,
               .max_num_seqs = 1 + below(8),
               .budget = below(3) ? 1 + below(64) : 1 + below(5),
               .max_model_len = 40 + below(60),
               .page_tokens = pages[below(4)],
               .dcp = 1 + below(5)};
    u.n_page = 2 + below(240 / u.page_tokens / u.dcp);
    int32_t kind = below(3); /* no window, windows only, both */
    if (kind == 2)
        u.group[u.n_group++] = (kv_group){0, u.n_page};
    for (int32_t i = 0, n = 1 + below(2); kind > 0 && i < n; i++)
        u.group[u.n_group++] = (kv_group){1 + below(50), 2 + below(240 / u.page_tokens / u.dcp)};
    return u;
}

/* A prompt that begins like an earlier one goes on, answer included, as far as it is known. */
static int32_t begin_alike(const toy *t, int32_t prompt[][60], const int32_t *n_prompt,
                           int32_t at) {
    int32_t i = below(at), n = below(n_prompt[at] + 1), n_known = n_prompt[i] + t->f[i].n_out;
    n = least(n, n_known);
    for (int32_t p = 0; p < n; p++)
        prompt[at][p] = p < n_prompt[i] ? prompt[i][p] : t->f[i].out[p - n_prompt[i]];
    return n;
}

typedef struct life {
    int64_t n_preemption, n_cached_token;
} life;

static life random_life(uint64_t seed) {
    toy t;
    int32_t prompt[MAX_REQ][60], n_prompt[MAX_REQ], n_out[MAX_REQ], total = 0;
    bool rows[MAX_REQ];
    seed_rng(seed);
    toy_open(&t, random_setup());
    int32_t room = least(t.u.max_model_len, kv_capacity_tokens(t.kv)), n = 1 + below(MAX_REQ);
    for (int32_t i = 0; t.n_front < n && i < 100; i++) {
        int32_t at = t.n_front, max_tokens = 1 + below(50);
        n_prompt[at] = 1 + below(below(3) ? 20 : 60);
        fill_prompt(prompt[at], n_prompt[at]);
        if (at > 0 && below(2))
            begin_alike(&t, prompt, n_prompt, at);
        rows[at] = below(2);
        for (int32_t k = below(6); k > 0 && !sched_idle(t.s); k--)
            toy_step(&t);
        weft_status st = toy_submit(&t, prompt[at], n_prompt[at], max_tokens, rows[at],
                                    below(2) ? 0 : below(80), NULL);
        assert_int_equal(st, n_prompt[at] < room ? WEFT_OK : WEFT_ERR_TOO_LONG);
        n_out[at] = least(max_tokens, room - n_prompt[at]);
        total += st == WEFT_OK ? n_prompt[at] + n_out[at] : 0;
    }
    bool cancels = below(2);
    while (!sched_idle(t.s)) {
        bool worked = toy_step(&t);
        assert_true(worked || sched_idle(t.s));
        /* the oldest always gets on, by one position at least, and is never sent back */
        assert_true(t.n_step <= total);
        front *f = &t.f[below(t.n_front)];
        if (cancels && below(10) == 0 && !f->ended) {
            sched_cancel(t.s, f->r);
            f->cancelled = true;
        }
    }
    for (int32_t i = 0; i < t.n_front; i++)
        check_answer(&t, &t.f[i], prompt[i], n_prompt[i], n_out[i], rows[i]);
    assert_int_equal(pages_used(&t), 0);
    sched_counts c = sched_count(t.s);
    toy_close(&t);
    assert_true(c.n_cached_token <= c.n_prefix_token);
    assert_true(t.u.prefix_cache || c.n_prefix_token == 0);
    return (life){c.n_preemption, c.n_cached_token};
}

static void same_answers_in_any_company(void **state) {
    (void)state;
    int64_t preemptions = 0, lives_with = 0, lives_with_hits = 0;
    for (uint64_t seed = 1; seed <= 4000; seed++) {
        life l = random_life(seed);
        preemptions += l.n_preemption;
        lives_with += l.n_preemption > 0;
        lives_with_hits += l.n_cached_token > 0;
    }
    /* or nothing was tested */
    assert_true(preemptions > 2000 && lives_with > 400 && lives_with_hits > 1000);
}

/* ---- field reports and traps ---- */

static void run_all(toy *t, int32_t limit) {
    while (toy_step(t))
        assert_true(t->n_step <= limit);
    assert_true(sched_idle(t->s));
    assert_int_equal(pages_used(t), 0);
}

/* B02: two answers of 35 tokens in 7 pages of 16: the younger is preempted and loses nothing. */
static void b02_preempted_answer_is_whole(void **state) {
    (void)state;
    const int32_t n_page[2] = {7, 100};
    int32_t prompt[2][34];
    for (int32_t way = 0; way < 2; way++)
        for (int32_t budget = 1; budget <= 100; budget += 11) {
            toy t;
            seed_rng(2);
            toy_open(&t, one_group(4, budget, 128, 16, 1, n_page[way]));
            for (int32_t i = 0; i < 2; i++) {
                fill_prompt(prompt[i], 34);
                assert_int_equal(toy_submit(&t, prompt[i], 34, 35, i == 1, 0, NULL), WEFT_OK);
            }
            run_all(&t, 2 * 69);
            for (int32_t i = 0; i < 2; i++)
                check_answer(&t, &t.f[i], prompt[i], 34, 35, i == 1);
            if (way == 1)
                assert_int_equal(sched_count(t.s).n_preemption, 0);
            else if (budget >= 12) /* else the first is done before the second needs much */
                assert_true(sched_count(t.s).n_preemption >= 1 &&
                            sched_count(t.s).n_preemption <= 3);
            toy_close(&t);
        }
}

/* B10: what can never fit is refused by name; who comes after it is served at once. */
static void b10_too_long_for_the_pool(void **state) {
    (void)state;
    toy t;
    weft_error err = {0};
    int32_t prompt[100] = {0};
    toy_open(&t, one_group(4, 64, 1024, 16, 1, 4));
    assert_int_equal(toy_submit(&t, prompt, 100, 5, false, 0, &err), WEFT_ERR_TOO_LONG);
    assert_non_null(strstr(err.text, "100"));
    assert_non_null(strstr(err.text, "capacity of 64"));
    assert_int_equal(toy_submit(&t, prompt, 64, 5, false, 0, &err), WEFT_ERR_TOO_LONG);
    assert_int_equal(toy_submit(&t, prompt, 63, 5, false, 0, NULL), WEFT_OK);
    assert_int_equal(toy_submit(&t, prompt, 5, 5, false, 0, NULL), WEFT_OK);
    run_all(&t, 69);
    check_answer(&t, &t.f[0], prompt, 63, 1, false);
    check_answer(&t, &t.f[1], prompt, 5, 5, false);
    toy_close(&t);
    /* and by the model's length, when that is the shorter one */
    toy_open(&t, one_group(4, 64, 40, 16, 1, 4));
    assert_int_equal(toy_submit(&t, prompt, 40, 5, false, 0, &err), WEFT_ERR_TOO_LONG);
    assert_non_null(strstr(err.text, "model length of 40"));
    assert_int_equal(toy_submit(&t, prompt, 0, 5, false, 0, &err), WEFT_ERR_USAGE);
    assert_non_null(strstr(err.text, "empty"));
    assert_int_equal(toy_submit(&t, prompt, 1, 0, false, 0, &err), WEFT_ERR_USAGE);
    assert_int_equal(toy_submit(&t, prompt, 1, INT32_MAX, false, 0, NULL), WEFT_OK);
    run_all(&t, 40);
    check_answer(&t, &t.f[0], prompt, 1, 39, false);
    toy_close(&t);
}

/* B11: alone with a small pool: ends at the capacity and never preempts itself. */
static void b11_lone_request_ends_at_capacity(void **state) {
    (void)state;
    for (int32_t dcp = 1; dcp <= 4; dcp *= 2) { /* T30: longer than one rank's pool */
        toy t;
        int32_t prompt[100];
        seed_rng(11);
        fill_prompt(prompt, 100);
        toy_open(&t, one_group(4, 64, 1024, 16, dcp, 8 / dcp));
        assert_int_equal(toy_submit(&t, prompt, 100, 200, false, 0, NULL), WEFT_OK);
        run_all(&t, 128);
        check_answer(&t, &t.f[0], prompt, 100, 28, false);
        assert_int_equal(sched_count(t.s).n_preemption, 0);
        toy_close(&t);
    }
}

/* B14: staggered arrivals of 8 requests never make more than 4 rows. */
static void b14_running_is_bounded(void **state) {
    (void)state;
    toy t;
    int32_t prompt[8][12];
    seed_rng(14);
    toy_open(&t, one_group(4, 16, 64, 4, 2, 100));
    for (int32_t i = 0; i < 8; i++) {
        fill_prompt(prompt[i], 12);
        assert_int_equal(toy_submit(&t, prompt[i], 12, 20, i % 2, i * 3, NULL), WEFT_OK);
    }
    run_all(&t, 8 * 32);
    assert_int_equal(t.most_running, 4);
    for (int32_t i = 0; i < 8; i++)
        check_answer(&t, &t.f[i], prompt[i], 12, 20, i % 2);
    toy_close(&t);
}

/* B16: a request that filled everything leaves everything to the next. */
static void b16_full_then_new(void **state) {
    (void)state;
    toy t;
    int32_t prompt[60];
    seed_rng(16);
    fill_prompt(prompt, 60);
    toy_open(&t, one_group(1, 64, 64, 16, 1, 4));
    const int32_t n_prompt[4] = {60, 10, 30, 60};
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(toy_submit(&t, prompt, n_prompt[i], 100, false, 0, NULL), WEFT_OK);
        run_all(&t, 1000);
        check_answer(&t, &t.f[i], prompt, n_prompt[i], 64 - n_prompt[i], false);
    }
    toy_close(&t);
}

/* T19, B05: whatever the chunk, no chunk is empty and the last prompt token alone is a prefill. */
static void t19_last_chunk_of_one(void **state) {
    (void)state;
    for (int32_t n = 1; n <= 18; n++)
        for (int32_t budget = 1; budget <= 18; budget++) {
            toy t;
            int32_t prompt[18], n_prefill = 0;
            seed_rng(19);
            fill_prompt(prompt, n);
            toy_open(&t, one_group(2, budget, 64, 4, 1, 10));
            assert_int_equal(toy_submit(&t, prompt, n, 3, false, 0, NULL), WEFT_OK);
            while (toy_step(&t)) {
                assert_int_equal(t.req[0].decode, n_prefill >= n);
                assert_int_equal(t.req[0].sample, n_prefill + budget >= n);
                n_prefill += t.req[0].n_new;
            }
            assert_int_equal(t.n_step, (n + budget - 1) / budget + 2);
            check_answer(&t, &t.f[0], prompt, n, 3, false);
            toy_close(&t);
        }
}

/* ---- order ---- */

/* Running ones first, oldest first; then arrivals in order with what is left of the budget. */
static void budget_is_dealt_by_age(void **state) {
    (void)state;
    toy t;
    int32_t prompt[30];
    seed_rng(4);
    fill_prompt(prompt, 30);
    toy_open(&t, one_group(4, 10, 64, 4, 1, 100));
    assert_int_equal(toy_submit(&t, prompt, 4, 9, false, 0, NULL), WEFT_OK);
    assert_int_equal(toy_submit(&t, prompt, 14, 9, false, 0, NULL), WEFT_OK);
    assert_int_equal(toy_submit(&t, prompt, 5, 9, false, 0, NULL), WEFT_OK);
    const int32_t want[4][3] = {{4, 6, 0}, {1, 8, 1}, {1, 1, 4}, {1, 1, 1}};
    for (int32_t i = 0; i < 4; i++) {
        assert_true(toy_step(&t));
        assert_int_equal(t.step.n_req, 2 + (want[i][2] > 0));
        for (int32_t j = 0; j < t.step.n_req; j++) {
            assert_int_equal(t.slots.slot[t.req[j].slot].request, j + 1);
            assert_int_equal(t.req[j].n_new, want[i][j]);
        }
    }
    toy_close(&t);
}

/* A long first in line is not overtaken by a short one that would fit; one that has not arrived is
 * passed over. */
static void nobody_overtakes(void **state) {
    (void)state;
    toy t;
    int32_t prompt[40];
    seed_rng(5);
    fill_prompt(prompt, 40);
    toy_open(&t, one_group(4, 100, 64, 4, 1, 12));
    assert_int_equal(toy_submit(&t, prompt, 20, 8, false, 0, NULL), WEFT_OK);
    assert_int_equal(toy_submit(&t, prompt, 9, 2, false, 5, NULL), WEFT_OK);
    assert_int_equal(toy_submit(&t, prompt, 40, 2, false, 0, NULL), WEFT_OK);
    assert_int_equal(toy_submit(&t, prompt, 1, 2, false, 0, NULL), WEFT_OK);
    for (int32_t i = 0; i < 8; i++) { /* 3 has no room before 1 ends; 2 is older than 3 */
        assert_true(toy_step(&t));
        assert_int_equal(t.step.n_req, i == 5 || i == 6 ? 2 : 1);
        assert_int_equal(t.f[3].n_out, 0);
    }
    run_all(&t, 1000);
    toy_close(&t);
}

/* Preempted ones come back in their order, and nobody is let in during the step that preempted. */
/* A request that waits for pages of a running one is not overtaken by the next one, which would take
 * the pages that it needs. */
static void nobody_overtakes_who_waits_for_pages(void **state) {
    (void)state;
    toy t;
    int32_t prompt[33], other[40];
    seed_rng(11);
    fill_prompt(prompt, 33);
    fill_prompt(other, 40);
    setup u = one_group(3, 16, 64, 4, 1, 24);
    u.prefix_cache = true;
    toy_open(&t, u);
    assert_int_equal(toy_submit(&t, prompt, 33, 8, false, 0, NULL), WEFT_OK);
    assert_int_equal(toy_submit(&t, prompt, 33, 8, false, 0, NULL), WEFT_OK);
    assert_int_equal(toy_submit(&t, other, 40, 20, false, 0, NULL), WEFT_OK);
    for (int32_t step = 0; step < 2; step++) { /* 32 of the 33 tokens */
        assert_true(toy_step(&t));
        assert_int_equal(t.step.n_req, 1);
    }
    assert_true(toy_step(&t));
    assert_int_equal(t.step.n_req, 3);
    assert_int_equal(t.step.req[1].start, 32); /* the second of the three has found its pages */
    run_all(&t, 100);
    check_answer(&t, &t.f[0], prompt, 33, 8, false);
    check_answer(&t, &t.f[1], prompt, 33, 8, false);
    check_answer(&t, &t.f[2], other, 40, 20, false);
    toy_close(&t);
}

static void preemption_keeps_the_order(void **state) {
    (void)state;
    toy t;
    int32_t prompt[4];
    seed_rng(6);
    fill_prompt(prompt, 4);
    /* pages of 4: three requests of one page each; at position 4 each needs a second, 5 exist */
    toy_open(&t, one_group(4, 100, 16, 4, 1, 5));
    for (int32_t i = 0; i < 4; i++)
        assert_int_equal(toy_submit(&t, prompt, i == 3 ? 1 : 4, 8, false, i == 3 ? 1 : 0, NULL),
                         WEFT_OK);
    assert_true(toy_step(&t));
    assert_int_equal(t.step.n_req, 3);
    assert_true(toy_step(&t)); /* 1 and 2 take the pages 4 and 5; 3 goes; 4 (arrived) has to wait */
    assert_int_equal(sched_count(t.s).n_preemption, 1);
    assert_int_equal(t.step.n_req, 2);
    assert_true(toy_step(&t)); /* 3 needs two pages, one is free: 4 does not overtake it */
    assert_int_equal(t.step.n_req, 2);
    int32_t ended[4], n = 0;
    while (toy_step(&t))
        for (int32_t i = 0; i < 4; i++)
            if (t.f[i].ended) {
                bool seen = false;
                for (int32_t j = 0; j < n; j++)
                    seen |= ended[j] == i;
                if (!seen)
                    ended[n++] = i;
            }
    assert_int_equal(n, 4);
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(ended[i], i);
        check_answer(&t, &t.f[i], prompt, i == 3 ? 1 : 4, 8, false);
    }
    toy_close(&t);
}

/* ---- steps, arrivals, cancels ---- */

static void waiting_for_arrivals_costs_no_step(void **state) {
    (void)state;
    toy t;
    int32_t prompt[3] = {1, 2, 3};
    toy_open(&t, one_group(4, 100, 16, 4, 1, 8));
    assert_false(toy_step(&t));
    assert_int_equal(sched_count(t.s).step, 0);
    assert_int_equal(toy_submit(&t, prompt, 3, 2, false, 1000000, NULL), WEFT_OK);
    assert_int_equal(toy_submit(&t, prompt, 3, 3, false, 500, NULL), WEFT_OK);
    assert_int_equal(toy_submit(&t, prompt, 3, 3, false, 501, NULL), WEFT_OK);
    const int64_t want[7] = {500, 501, 502, 503, 1000000, 1000001, -1};
    for (int32_t i = 0; want[i] >= 0; i++) {
        assert_true(toy_step(&t));
        assert_int_equal(t.step.step, want[i]);
    }
    assert_false(toy_step(&t));
    assert_int_equal(sched_count(t.s).step, 1000002);
    toy_close(&t);
}

static void cancel_gives_everything_back(void **state) {
    (void)state;
    toy t;
    int32_t prompt[20];
    seed_rng(8);
    fill_prompt(prompt, 20);
    toy_open(&t, one_group(2, 8, 64, 4, 1, 30));
    for (int32_t i = 0; i < 4; i++) /* 1 runs, 2 prefills, 3 waits, 4 has not arrived */
        assert_int_equal(
            toy_submit(&t, prompt, i == 0 ? 2 : 20, 30, false, i == 3 ? 9999 : 0, NULL), WEFT_OK);
    assert_true(toy_step(&t));
    assert_true(toy_step(&t));
    for (int32_t i = 1; i < 4; i++) {
        sched_cancel(t.s, t.f[i].r);
        t.f[i].cancelled = true;
    }
    assert_null(sched_take_cancelled(t.s)); /* not before the next plan */
    assert_true(toy_step(&t));
    assert_int_equal(t.step.n_req, 1);
    for (int32_t i = 1; i < 4; i++)
        assert_true(t.f[i].ended);
    assert_int_equal(pages_used(&t), 1);
    int32_t resident = 0;
    for (int32_t i = 0; i < 2; i++)
        resident += t.slots.slot[i].request != 0;
    assert_int_equal(resident, 1);
    sched_cancel(t.s, t.f[0].r);
    t.f[0].cancelled = true;
    assert_false(sched_idle(t.s));
    assert_false(toy_step(&t));
    assert_true(sched_idle(t.s));
    assert_int_equal(pages_used(&t), 0);
    /* B13: the same prompt after the cancelled ones; the slots come back with the next plan */
    assert_int_equal(toy_submit(&t, prompt, 20, 10, true, 0, NULL), WEFT_OK);
    assert_int_equal(toy_submit(&t, prompt, 20, 10, true, 0, NULL), WEFT_OK);
    run_all(&t, 100);
    check_answer(&t, &t.f[4], prompt, 20, 10, true);
    check_answer(&t, &t.f[5], prompt, 20, 10, true);
    toy_close(&t);
}

/* ---- windows ---- */

/* A prompt and an answer of many windows, in pools that hold a small part of it. */
static void window_bounds_the_pages(void **state) {
    (void)state;
    for (int32_t dcp = 1; dcp <= 3; dcp++) {
        toy t;
        int32_t prompt[60];
        seed_rng(5);
        fill_prompt(prompt, 60);
        setup u = {2, 7, 180, 4, dcp, 0, 1, {{12, 0}}, false};
        /* 12 - 1 + 7 positions touch 6 pages at most */
        u.group[0].n_page = dcp == 1 ? 6 : dcp == 2 ? 3 : 4;
        toy_open(&t, u);
        assert_true(kv_capacity_tokens(t.kv) > 1000000);
        assert_int_equal(toy_submit(&t, prompt, 60, 120, false, 0, NULL), WEFT_OK);
        while (toy_step(&t)) {
            assert_true(kv_used_total(t.kv, 0) <= 6);
            assert_int_equal(sched_count(t.s).n_preemption, 0);
        }
        check_answer(&t, &t.f[0], prompt, 60, 120, false);
        assert_int_equal(pages_used(&t), 0);
        toy_close(&t);
    }
}

/* Many in a pool of the window that holds two of them: they wait or give way, and all end right. */
static void window_preempts(void **state) {
    (void)state;
    toy t;
    int32_t prompt[6][30];
    seed_rng(6);
    toy_open(&t, (setup){6, 8, 120, 4, 1, 0, 2, {{0, 60}, {9, 9}}, false});
    for (int32_t i = 0; i < 6; i++) {
        fill_prompt(prompt[i], 30);
        int32_t n = i % 2 ? 30 : 3;
        assert_int_equal(toy_submit(&t, prompt[i], n, 60, true, 0, NULL), WEFT_OK);
    }
    while (toy_step(&t))
        assert_true(t.n_step < 2000);
    assert_true(sched_count(t.s).n_preemption > 0);
    for (int32_t i = 0; i < 6; i++)
        check_answer(&t, &t.f[i], prompt[i], i % 2 ? 30 : 3, 60, true);
    assert_int_equal(pages_used(&t), 0);
    toy_close(&t);
}

static void close_frees_what_is_left(void **state) {
    (void)state;
    toy t;
    int32_t prompt[5] = {0};
    toy_open(&t, one_group(1, 8, 64, 4, 1, 30));
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(toy_submit(&t, prompt, 5, 5, false, 0, NULL), WEFT_OK);
    assert_true(toy_step(&t));
    sched_cancel(t.s, t.f[2].r);
    size_t bytes;
    sched_plan(t.s, t.plan, t.plan_cap, &bytes); /* one runs, one waits, one is not taken */
    toy_close(&t);
    sched_close(NULL);
    sched_request_free(NULL);
}

static void bad_limits_are_named(void **state) {
    (void)state;
    const int32_t cut[2] = {0, 16};
    kv_pools *kv = NULL;
    const kv_group all = {0, 4};
    const kv_sizes sizes = {1, cut, 16, 16, 1, 1, &all, false};
    assert_int_equal(kv_open(&sizes, &kv, NULL), WEFT_OK);
    const sched_limits bad[4] = {
        {0, 1, 1, 1, true}, {1, 0, 1, 1, true}, {1, 1, -1, 1, true}, {1, 1, 1, 0, true}};
    const char *name[4] = {"max_num_seqs", "max_num_batched_tokens", "max_model_len", "page size"};
    for (int32_t i = 0; i < 4; i++) {
        sched *s = NULL;
        weft_error err = {0};
        assert_int_equal(sched_open(&bad[i], kv, &s, &err), WEFT_ERR_SETUP);
        assert_non_null(strstr(err.text, name[i]));
        assert_null(s);
    }
    kv_close(kv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_answers_in_any_company),
        cmocka_unit_test(b02_preempted_answer_is_whole),
        cmocka_unit_test(b10_too_long_for_the_pool),
        cmocka_unit_test(b11_lone_request_ends_at_capacity),
        cmocka_unit_test(b14_running_is_bounded),
        cmocka_unit_test(b16_full_then_new),
        cmocka_unit_test(t19_last_chunk_of_one),
        cmocka_unit_test(budget_is_dealt_by_age),
        cmocka_unit_test(nobody_overtakes),
        cmocka_unit_test(nobody_overtakes_who_waits_for_pages),
        cmocka_unit_test(preemption_keeps_the_order),
        cmocka_unit_test(waiting_for_arrivals_costs_no_step),
        cmocka_unit_test(cancel_gives_everything_back),
        cmocka_unit_test(window_bounds_the_pages),
        cmocka_unit_test(window_preempts),
        cmocka_unit_test(close_frees_what_is_left),
        cmocka_unit_test(bad_limits_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
