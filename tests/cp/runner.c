#include "cp/runner.h"

#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#include "engine/engine.h"

uint64_t run_draw(uint64_t *state) {
    uint64_t x = (*state += 0x9E3779B97F4A7C15u);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

int32_t run_draw_in(uint64_t *state, int32_t lo, int32_t hi) {
    return lo + (int32_t)(run_draw(state) % (uint64_t)(hi - lo + 1));
}

bool run_small(void) {
    const char *scale = getenv("WEFT_TEST_SCALE");
    return scale && strcmp(scale, "small") == 0;
}

/* ---- requests ---- */

/* Prompts are kept in one chain, so that a leak checker still finds them. */
typedef struct kept {
    struct kept *next;
    int32_t ids[];
} kept;
static kept *all_prompts;

weft_request run_request(int32_t n_id, int32_t n_prompt, int32_t max_tokens, uint64_t seed) {
    kept *k = malloc(sizeof *k + (size_t)n_prompt * sizeof *k->ids);
    assert_non_null(k);
    k->next = all_prompts;
    all_prompts = k;
    for (int32_t i = 0; i < n_prompt; i++)
        k->ids[i] = run_draw_in(&seed, 0, n_id - 1);
    weft_request q;
    weft_request_default(&q);
    q.prompt = k->ids;
    q.n_prompt = n_prompt;
    q.max_tokens = max_tokens;
    q.ignore_eos = true;
    q.prompt_logits = true;
    return q;
}

weft_engine_params run_params(int32_t tp, int32_t pcp, int32_t dcp) {
    weft_engine_params p;
    weft_engine_params_default(&p);
    p.tp = tp, p.pcp = pcp, p.dcp = dcp;
    p.n_thread = 1;
    p.max_num_seqs = 8;
    p.max_model_len = 256;
    p.cp_min_split = 1;
    p.hash_logits = true;
    return p;
}

/* ---- one run ---- */

static void answer_open(run_answer *a, const weft_request *q, uint64_t id) {
    int32_t rows = q->n_prompt + q->max_tokens;
    *a = (run_answer){.id = id, .n_prompt = q->n_prompt, .n_row_cap = rows};
    a->token = calloc((size_t)rows, sizeof *a->token);
    a->hash = calloc((size_t)rows, sizeof *a->hash);
    a->seen = calloc((size_t)rows, sizeof *a->seen);
    a->logprob = calloc((size_t)rows, sizeof *a->logprob);
    a->text = calloc(1, 1);
    assert_true(a->token && a->hash && a->seen && a->logprob && a->text);
}

void run_free(run_answer *answers, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        free(answers[i].token);
        free(answers[i].hash);
        free(answers[i].seen);
        free(answers[i].logprob);
        free(answers[i].text);
        answers[i] = (run_answer){0};
    }
}

/* Length of the UTF-8 character at s, 0 when there is no whole one in n bytes. */
static size_t character(const uint8_t *s, size_t n) {
    size_t len = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (s[0] > 0xF4 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    return len;
}

static void text_note(run_answer *a, const weft_event *ev) {
    for (size_t i = 0, len; i < ev->text_bytes; i += len) {
        len = character((const uint8_t *)ev->text + i, ev->text_bytes - i);
        assert_true(len > 0); /* no piece holds part of a character */
    }
    a->text = realloc(a->text, a->n_text + ev->text_bytes + 1);
    assert_non_null(a->text);
    memcpy(a->text + a->n_text, ev->text, ev->text_bytes);
    a->n_text += ev->text_bytes;
    a->text[a->n_text] = '\0';
}

static void row_note(run_answer *a, const weft_request *q, const weft_event *ev) {
    int64_t row = ev->kind == WEFT_EVENT_TOKEN ? ev->position - 1 : ev->position;
    assert_in_range(row, 0, a->n_row_cap - 1);
    assert_int_equal(a->seen[row], 0);
    if (row > 0 && q->prompt_logits)
        assert_int_equal(a->seen[row - 1], 1); /* in the order of positions, none left out */
    a->seen[row] = 1;
    a->hash[row] = ev->logits_hash;
    a->logprob[row] = ev->logprob;
    if (ev->kind == WEFT_EVENT_PROMPT_ROW) {
        assert_true(q->prompt_logits);
        assert_true(row + 1 < a->n_prompt);
        assert_int_equal(ev->token, q->prompt[row + 1]);
        return;
    }
    assert_int_equal(ev->position, a->n_prompt + a->n_token);
    assert_true(a->n_token < q->max_tokens);
    a->token[a->n_token++] = ev->token;
}

static void end_note(run_answer *a, const weft_request *q, const weft_event *ev) {
    a->ended = true;
    a->finish = ev->finish;
    a->status = ev->status;
    a->n_cached = ev->n_cached_token;
    assert_int_equal(ev->n_prompt_token, q->n_prompt);
    assert_int_equal(ev->n_output_token, a->n_token);
    assert_true((ev->finish == WEFT_FINISH_ERROR) == (ev->status != WEFT_OK));
    if (ev->finish == WEFT_FINISH_ERROR || !q->prompt_logits)
        return;
    for (int32_t row = 0; row < a->n_prompt + a->n_token - 1; row++)
        assert_int_equal(a->seen[row], 1);
}

weft_status run_requests(weft_engine *e, const weft_request *q, int32_t n, const run_hooks *hooks,
                         run_answer *answers, weft_error *err) {
    enum { WAIT_MS = 120000 };
    uint64_t *ids = calloc((size_t)n, sizeof *ids);
    assert_non_null(ids);
    weft_status st = weft_engine_submit(e, q, n, ids, err);
    for (int32_t i = 0; i < n; i++)
        answer_open(&answers[i], &q[i], ids[i]);
    free(ids);
    int64_t n_end = 0;
    for (int32_t left = n; left > 0 && st == WEFT_OK;) {
        weft_event ev;
        bool got = false;
        st = weft_engine_next(e, WAIT_MS, &ev, &got, err);
        if (st != WEFT_OK)
            break;
        if (!got)
            fail_msg("no event within %d ms, %d requests are left", WAIT_MS, left);
        int32_t i = 0;
        while (i < n && answers[i].id != ev.request)
            i++;
        if (i == n) /* of an earlier call */
            continue;
        assert_false(answers[i].ended);
        if (ev.kind == WEFT_EVENT_END)
            end_note(&answers[i], &q[i], &ev);
        else
            row_note(&answers[i], &q[i], &ev);
        if (ev.kind != WEFT_EVENT_PROMPT_ROW)
            text_note(&answers[i], &ev);
        if (ev.kind == WEFT_EVENT_END)
            answers[i].end_step_order = n_end++, left--;
        if (hooks)
            hooks->event(hooks->user, e, &ev, &answers[i]);
    }
    return st;
}

weft_status run_engine(weft_model *m, const weft_engine_params *p, const weft_request *q, int32_t n,
                       run_answer *answers, weft_engine_stats *stats, weft_error *err) {
    weft_engine *e = NULL;
    memset(answers, 0, (size_t)n * sizeof *answers);
    weft_status st = weft_engine_open(m, p, &e, err);
    if (st == WEFT_OK)
        st = run_requests(e, q, n, NULL, answers, err);
    if (e && stats)
        weft_engine_get_stats(e, stats);
    weft_engine_close(e);
    return st;
}

void run_ok(const char *label, weft_model *m, const weft_engine_params *p, const weft_request *q,
            int32_t n, run_answer *answers, weft_engine_stats *stats) {
    weft_error err = {0};
    if (run_engine(m, p, q, n, answers, stats, &err) != WEFT_OK)
        fail_msg("%s, tp%d pcp%d dcp%d: %s", label, p->tp, p->pcp, p->dcp, err.text);
}

void run_oracle(weft_model *m, const weft_engine_params *like, const weft_request *q, int32_t n,
                run_answer *answers) {
    weft_engine_params p = *like;
    p.tp = p.pcp = p.dcp = 1;
    p.max_num_seqs = 1;
    p.max_num_batched_tokens = like->max_model_len;
    p.kv_pages = 0;
    p.exchange = WEFT_EXCHANGE_AUTO;
    p.expert_parallel = false;
    p.fault = NULL;
    p.no_prefix_cache = true;
    weft_request *alone = malloc((size_t)n * sizeof *alone);
    assert_non_null(alone);
    for (int32_t i = 0; i < n; i++) {
        alone[i] = q[i];
        alone[i].arrival_step = 0;
    }
    run_ok("oracle", m, &p, alone, n, answers, NULL);
    free(alone);
}

/* ---- compare ---- */

static bool answer_same(const char *label, int32_t i, const run_answer *a, const run_answer *b) {
    int32_t rows = a->n_row_cap < b->n_row_cap ? a->n_row_cap : b->n_row_cap;
    for (int32_t r = 0; r < rows; r++) {
        int32_t t = r + 1 - a->n_prompt;
        bool token = t >= 0 && (t < a->n_token) == (t < b->n_token) && a->token[t] != b->token[t];
        bool hash = a->seen[r] != b->seen[r] || a->hash[r] != b->hash[r];
        bool logprob = memcmp(&a->logprob[r], &b->logprob[r], sizeof *a->logprob) != 0;
        if (!token && !hash && !logprob)
            continue;
        print_message("%s: request %d of %d tokens: %s of position %d differs\n", label, i,
                      a->n_prompt,
                      hash    ? "the row"
                      : token ? "the token"
                              : "logprob",
                      r);
        return false;
    }
    if (a->n_token == b->n_token && a->finish == b->finish && a->status == b->status &&
        strcmp(a->text, b->text) == 0)
        return true;
    print_message("%s: request %d of %d tokens: %d and %d tokens, finish %d and %d, \"%s\" and "
                  "\"%s\"\n",
                  label, i, a->n_prompt, a->n_token, b->n_token, (int)a->finish, (int)b->finish,
                  a->text, b->text);
    return false;
}

int32_t run_different(const char *label, const run_answer *expected, const run_answer *got,
                      int32_t n) {
    int32_t different = 0;
    for (int32_t i = 0; i < n; i++)
        different += !answer_same(label, i, &expected[i], &got[i]);
    return different;
}

void run_assert_same(const char *label, const run_answer *expected, const run_answer *got,
                     int32_t n) {
    int32_t different = run_different(label, expected, got, n);
    if (different)
        fail_msg("%s: %d of %d requests differ from the oracle", label, different, n);
}

int32_t run_topologies(weft_model *m, int32_t max_world, topo_sizes *out, int32_t cap) {
    engine_setup s;
    weft_error err = {0};
    weft_engine_params p = run_params(1, 1, 1);
    assert_int_equal(engine_setup_make(m->desc, &p, &s, &err), WEFT_OK);
    int32_t n = topo_list(&s.model, max_world, out, cap);
    assert_in_range(n, 1, cap);
    return n;
}

void run_check(const char *label, weft_model *m, const weft_engine_params *p, const weft_request *q,
               int32_t n, const run_answer *oracle) {
    run_answer *got = calloc((size_t)n, sizeof *got);
    assert_non_null(got);
    char full[160];
    snprintf(full, sizeof full,
             "%s, tp%d pcp%d dcp%d%s exchange %d split %d seqs %d budget %d pages "
             "%d",
             label, p->tp, p->pcp, p->dcp, p->expert_parallel ? " experts whole," : "",
             (int)p->exchange, p->cp_min_split, p->max_num_seqs, p->max_num_batched_tokens,
             p->kv_pages);
    run_watch(full, 180);
    run_ok(full, m, p, q, n, got, NULL);
    run_watch(NULL, 0);
    run_assert_same(full, oracle, got, n);
    run_free(got, n);
    free(got);
}

/* ---- watch ---- */

static char watched[200];

static void watch_end(int sig) {
    (void)sig;
    static const char text[] = "hangs: ";
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    n += write(STDERR_FILENO, watched, strlen(watched));
    n += write(STDERR_FILENO, "\n", 1);
    _exit(n > 0 ? 1 : 2);
}

void run_watch(const char *what, unsigned seconds) {
    snprintf(watched, sizeof watched, "%s", what ? what : "");
    signal(SIGALRM, watch_end);
    alarm(seconds);
}
