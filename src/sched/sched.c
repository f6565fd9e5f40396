/* Queues and the step plan.
 *
 *   submit -> waiting (first come first served) -> running (oldest first) -> finished: the caller's
 *                ^ front                              |
 *                +-- preempted: pages and slot back --+
 *
 * Age is the order of the running queue followed by the order of the waiting queue. A victim is
 * always the tail of the running queue and goes to the head of the waiting queue, so preemption
 * never changes who is older than whom. Two consequences:
 * - The running queue is planned from its head, so a victim is the request being planned or one
 *   that comes after it: no run of this step ever has to be taken back.
 * - The oldest running request can always run: everybody else gives way, and alone it fits, because
 *   max_total is cut to the capacity of empty pools. So every step computes something of it and the
 *   whole queue ends, whatever the sizes.
 *
 * A request is admitted when the pages for all of its known tokens are there, not only those of its
 * first chunk: a prefill that runs out of pages half way would be computed again and again. (Of a
 * group of layers with a window, those that it holds at a time.) The ranks hear of a page only in
 * the step that first needs it, and that it is gone in the first that does not see it.
 *
 * With the prefix cache an admission begins behind the leading pages that are published already. The
 * last token is always computed, and so is every row that owes logits. A request whose next page a
 * running one is about to compute waits until that is done: it would compute the same
 * bytes beside it (several choices of one prompt are the usual case). That wait is bounded: the
 * other one advances in every step, or stops running. Nobody behind it is admitted meanwhile. */
#include "sched/sched.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct queue {
    sched_request *head, *tail;
    int32_t n;
} queue;

struct sched {
    sched_limits limits;
    kv_pools *kv; /* borrowed */
    sched_counts count;
    queue waiting, running, cancelled;
    bool cancel_pending; /* a queued request is marked */
    sched_run *run;      /* [max_num_seqs] work of the plan just made */
    int32_t n_run;
    int32_t *free_slot; /* [max_num_seqs] stack */
    int32_t n_free_slot;
    int32_t *released; /* [max_num_seqs] slots whose return the ranks have not been told */
    int32_t n_released;
};

static void queue_insert(queue *q, sched_request *r, sched_request *before) {
    r->next = before;
    r->prev = before ? before->prev : q->tail;
    *(r->prev ? &r->prev->next : &q->head) = r;
    *(before ? &before->prev : &q->tail) = r;
    q->n++;
}

static void queue_remove(queue *q, sched_request *r) {
    *(r->prev ? &r->prev->next : &q->head) = r->next;
    *(r->next ? &r->next->prev : &q->tail) = r->prev;
    r->next = r->prev = NULL;
    q->n--;
}

static void queue_free(queue *q) {
    while (q->head) {
        sched_request *r = q->head;
        queue_remove(q, r);
        sched_request_free(r);
    }
}

weft_status sched_open(const sched_limits *l, kv_pools *kv, sched **out, weft_error *err) {
    const struct {
        const char *name;
        int32_t value;
    } limit[] = {{"max_num_seqs", l->max_num_seqs},
                 {"max_num_batched_tokens", l->max_num_batched_tokens},
                 {"max_model_len", l->max_model_len},
                 {"page size", l->page_tokens}};
    for (size_t i = 0; i < sizeof limit / sizeof *limit; i++)
        if (limit[i].value < 1)
            return error_set(err, WEFT_ERR_SETUP, "%s: %d; at least 1 is needed", limit[i].name,
                             limit[i].value);
    sched *s = calloc(1, sizeof *s);
    if (!s)
        goto undo_nothing;
    size_t n = (size_t)l->max_num_seqs;
    s->limits = *l;
    s->kv = kv;
    s->run = calloc(n, sizeof *s->run);
    s->free_slot = calloc(n, sizeof *s->free_slot);
    s->released = calloc(n, sizeof *s->released);
    if (!s->run || !s->free_slot || !s->released)
        goto undo_sched;
    for (int32_t i = l->max_num_seqs - 1; i >= 0; i--) /* slot 0 on top */
        s->free_slot[s->n_free_slot++] = i;
    *out = s;
    return WEFT_OK;
undo_sched:
    sched_close(s);
undo_nothing:
    return error_set(err, WEFT_ERR_MEMORY, "no memory for the queues of %d sequences",
                     l->max_num_seqs);
}

/* Pages are not given back: the pools go with the scheduler, in either order. */
void sched_close(sched *s) {
    if (!s)
        return;
    queue_free(&s->waiting);
    queue_free(&s->running);
    queue_free(&s->cancelled);
    free(s->run);
    free(s->free_slot);
    free(s->released);
    free(s);
}

static weft_status check_length(const sched *s, int32_t n_prompt, int32_t max_tokens,
                                weft_error *err) {
    if (n_prompt < 1)
        return error_set(err, WEFT_ERR_USAGE, "the prompt is empty; at least one token is needed");
    if (max_tokens < 1)
        return error_set(err, WEFT_ERR_USAGE, "max_tokens: %d; at least 1 is needed", max_tokens);
    int32_t capacity = kv_capacity_tokens(s->kv);
    if (n_prompt >= s->limits.max_model_len)
        return error_set(err, WEFT_ERR_TOO_LONG,
                         "the prompt of %d tokens leaves no room for an answer within the model "
                         "length of %d tokens",
                         n_prompt, s->limits.max_model_len);
    if (n_prompt >= capacity)
        return error_set(err, WEFT_ERR_TOO_LONG,
                         "the prompt of %d tokens leaves no room for an answer within the KV "
                         "cache capacity of %d tokens",
                         n_prompt, capacity);
    return WEFT_OK;
}

static int32_t least(int64_t a, int32_t b) {
    return a < b ? (int32_t)a : b;
}

weft_status sched_request_new(const sched *s, const int32_t *prompt, int32_t n_prompt,
                              int32_t max_tokens, sched_request **out, weft_error *err) {
    weft_status st = check_length(s, n_prompt, max_tokens, err);
    if (st != WEFT_OK)
        return st;
    sched_request *r = calloc(1, sizeof *r);
    if (!r)
        goto undo_nothing;
    r->slot = r->n_cached = -1;
    r->n_prompt = r->n_token = n_prompt;
    r->max_total = least((int64_t)n_prompt + max_tokens, s->limits.max_model_len);
    r->max_total = least(r->max_total, kv_capacity_tokens(s->kv));
    r->table.cap = (r->max_total - 1) / s->limits.page_tokens + 1;
    r->token = calloc((size_t)r->max_total, sizeof *r->token);
    int32_t n_group = kv_group_count(s->kv);
    int32_t *page = calloc((size_t)n_group * (size_t)r->table.cap, sizeof *page);
    for (int32_t g = 0; page && g < n_group; g++) /* group 0's begin the one allocation */
        r->table.page[g] = page + (size_t)g * (size_t)r->table.cap;
    r->name = calloc((size_t)(r->max_total / s->limits.page_tokens) + 1, sizeof *r->name);
    if (!r->token || !page || !r->name)
        goto undo_request;
    memcpy(r->token, prompt, (size_t)n_prompt * sizeof *prompt);
    *out = r;
    return WEFT_OK;
undo_request:
    sched_request_free(r);
undo_nothing:
    return error_set(err, WEFT_ERR_MEMORY, "no memory for a request of %d tokens", n_prompt);
}

void sched_request_free(sched_request *r) {
    if (!r)
        return;
    free(r->token);
    free(r->name);
    free(r->table.page[0]);
    free(r);
}

void sched_submit(sched *s, sched_request *r) {
    queue_insert(&s->waiting, r, NULL);
}

void sched_cancel(sched *s, sched_request *r) {
    r->cancelled = s->cancel_pending = true;
}

bool sched_idle(const sched *s) {
    return s->waiting.n == 0 && s->running.n == 0;
}

/* The table is empty again. */
static void drop_prefix(sched *s, sched_request *r) {
    kv_release(s->kv, &r->table);
    r->n_computed = 0;
}

/* Out of its queue; pages and slot are free again and the ranks know nothing of it any more. */
static void leave(sched *s, sched_request *r) {
    queue_remove(r->slot >= 0 ? &s->running : &s->waiting, r);
    drop_prefix(s, r);
    if (r->slot >= 0) {
        s->free_slot[s->n_free_slot++] = r->slot;
        /* Each slot is here once at most: it is taken again only by an admission, and the plan that
         * holds the admission announces the returns first. */
        s->released[s->n_released++] = r->slot;
    }
    r->slot = -1;
    r->n_told = r->n_page_told = 0;
}

static void remove_cancelled(sched *s) {
    queue *both[] = {&s->running, &s->waiting};
    for (int32_t i = 0; i < 2 && s->cancel_pending; i++)
        for (sched_request *r = both[i]->head, *next; r; r = next) {
            next = r->next;
            if (r->cancelled) {
                leave(s, r);
                queue_insert(&s->cancelled, r, NULL);
            }
        }
    s->cancel_pending = false;
}

/* Adds the request's next tokens to the step; returns how many (0: all it has are computed). A row
 * of logits is due from logits_from on: the last token known, or for prompt_logits the first whose
 * row was never delivered. The ranks fix logits_from at admission and come to the same counts: it
 * only moves while runs cover everything from it on. */
static int32_t add_run(sched *s, sched_request *r, int32_t budget) {
    int32_t n_new = least(r->n_token - r->n_computed, budget);
    if (n_new == 0)
        return 0;
    int32_t end = r->n_computed + n_new;
    int32_t logits_from = r->prompt_logits ? r->logits_done : r->n_token - 1;
    if (logits_from < r->n_computed)
        logits_from = r->n_computed;
    s->run[s->n_run++] = (sched_run){.r = r,
                                     .start = r->n_computed,
                                     .n_new = n_new,
                                     .n_logits = end > logits_from ? end - logits_from : 0,
                                     .sample = end == r->n_token};
    return n_new;
}

/* Pages for all known tokens, taken from the youngest if need be. False: r itself gave way. */
static bool make_room(sched *s, sched_request *r) {
    while (!kv_extend(s->kv, &r->table, r->n_token, r->n_computed)) {
        sched_request *victim = s->running.tail;
        leave(s, victim);
        queue_insert(&s->waiting, victim, s->waiting.head);
        s->count.n_preemption++;
        if (victim == r)
            return false;
    }
    return true;
}

/* What nobody sees any more first: a request that does not run in this step gives too. */
static int32_t plan_running(sched *s, int32_t budget) {
    for (sched_request *r = s->running.head; r; r = r->next)
        kv_trim(s->kv, &r->table, r->n_computed);
    for (sched_request *r = s->running.head, *next; r && budget > 0; r = next) {
        if (!make_room(s, r))
            break; /* r was the tail: nobody is left */
        next = r->next;
        budget -= add_run(s, r, budget);
    }
    return budget;
}

/* ---- prefix cache ---- */

/* Names of the pages that the known tokens fill. */
static void name_pages(const sched *s, sched_request *r) {
    int32_t p = s->limits.page_tokens;
    if (r->n_name == 0)
        r->name[0] = r->root;
    for (; r->n_name < r->n_token / p; r->n_name++)
        r->name[r->n_name + 1] =
            kv_name_next(r->name[r->n_name], r->token + (int64_t)r->n_name * p, p);
}

/* Pages that need not be computed if they are published: none with a row that owes logits. */
static int32_t reusable_pages(const sched *s, const sched_request *r) {
    int32_t end = r->n_token - 1;
    if (r->prompt_logits && r->logits_done < end)
        end = r->logits_done;
    return end / s->limits.page_tokens;
}

/* A running request has the same context up to and with this page, and has yet to compute it. */
static bool being_computed(const sched *s, const sched_request *r, int32_t page) {
    kv_name name = r->name[page + 1];
    for (const sched_request *o = s->running.head; o; o = o->next)
        if (page < o->n_name && o->name[page + 1].lo == name.lo &&
            o->name[page + 1].hi == name.hi && o->n_computed < (page + 1) * s->limits.page_tokens)
            return true;
    return false;
}

/* Lets the request hold the pages that are published. False: the next one is on its way. */
static bool find_prefix(sched *s, sched_request *r) {
    name_pages(s, r);
    int32_t most = reusable_pages(s, r);
    int32_t n = kv_find(s->kv, &r->table, r->name, r->token, most);
    r->n_computed = n * s->limits.page_tokens;
    if (n == most || !being_computed(s, r, n))
        return true;
    drop_prefix(s, r);
    return false;
}

static void publish(sched *s, sched_request *r, int32_t from, int32_t to) {
    int32_t p = s->limits.page_tokens;
    name_pages(s, r);
    for (int32_t page = from / p; page < to / p; page++)
        kv_publish(s->kv, &r->table, page, r->name, r->token + (int64_t)page * p);
}

/* ---- admission ---- */

static void admit(sched *s, sched_request *r) {
    queue_remove(&s->waiting, r);
    queue_insert(&s->running, r, NULL);
    r->slot = s->free_slot[--s->n_free_slot];
    if (s->limits.prefix_cache)
        s->count.n_prefix_token += r->n_token;
    s->count.n_cached_token += r->n_computed;
    if (r->n_cached < 0)
        r->n_cached = r->n_computed;
}

/* Requests that have not arrived are passed over; the first that has arrived and does not fit, or
 * waits for pages of a running one, ends the search, so nobody overtakes it. */
static void plan_waiting(sched *s, int32_t budget) {
    for (sched_request *r = s->waiting.head, *next; r && budget > 0; r = next) {
        next = r->next;
        if (r->arrival_step > s->count.step)
            continue;
        if (s->n_free_slot == 0)
            return;
        /* before the long look for what is cached, which would be for nothing in every step */
        if (!kv_may_extend(s->kv, s->limits.prefix_cache ? reusable_pages(s, r) : 0, r->n_token))
            return;
        if (s->limits.prefix_cache && !find_prefix(s, r))
            return;
        if (!kv_extend(s->kv, &r->table, r->n_token, r->n_computed)) {
            drop_prefix(s, r);
            return;
        }
        admit(s, r);
        budget -= add_run(s, r, budget);
    }
}

/* With nothing running every page is free, so only arrivals in the future can wait. */
static void jump_to_arrival(sched *s) {
    if (s->running.n > 0 || s->waiting.n == 0)
        return;
    int64_t first = INT64_MAX;
    for (const sched_request *r = s->waiting.head; r; r = r->next)
        if (r->arrival_step < first)
            first = r->arrival_step;
    if (first > s->count.step)
        s->count.step = first;
}

static void write_admit(plan_writer *w, sched_request *r) {
    plan_admit a = {.sampling = r->sampling,
                    .request = r->id,
                    .slot = r->slot,
                    .n_prompt = r->n_prompt,
                    .n_token = r->n_token,
                    .logits_from = r->prompt_logits ? r->logits_done : r->n_token - 1,
                    .n_bias = r->n_bias};
    plan_put_admit(w, &a, r->token, r->bias);
    r->n_told = r->n_token;
}

static void write_run(const sched *s, plan_writer *w, const sched_run *run) {
    sched_request *r = run->r;
    int32_t n_page = (run->start + run->n_new - 1) / s->limits.page_tokens + 1;
    int32_t n_group = kv_group_count(s->kv);
    const int32_t *page[KV_MAX_GROUP] = {NULL};
    assert(r->n_token - r->n_told <= 1);
    plan_run p = {.slot = r->slot,
                  .start = run->start,
                  .n_new = run->n_new,
                  .append = r->n_token > r->n_told ? r->token[r->n_token - 1] : -1,
                  /* the last token of a prompt is a prefill even when it comes alone */
                  .decode = run->start == r->n_token - 1 && r->n_token > r->n_prompt,
                  .n_page = n_page - r->n_page_told};
    for (int32_t g = 0; g < n_group; g++) {
        assert(n_page <= r->table.n_page[g] && r->table.first[g] <= n_page);
        p.first[g] = r->table.first[g];
        page[g] = r->table.page[g] + r->n_page_told;
    }
    plan_put_run(w, &p, n_group, page);
    r->n_told = r->n_token;
    r->n_page_told = n_page;
}

void sched_plan(sched *s, uint8_t *buf, size_t cap, size_t *bytes) {
    remove_cancelled(s);
    jump_to_arrival(s);
    s->n_run = 0;
    int64_t preemptions = s->count.n_preemption;
    int32_t budget = plan_running(s, s->limits.max_num_batched_tokens);
    if (s->count.n_preemption == preemptions) /* else its victim heads the queue: it has to wait */
        plan_waiting(s, budget);
    plan_writer w;
    plan_begin(&w, buf, cap, s->n_run > 0 ? PLAN_STEP : PLAN_IDLE, s->count.step);
    if (s->n_run > 0) {
        for (int32_t i = 0; i < s->n_released; i++)
            plan_put_release(&w, s->released[i]);
        s->n_released = 0;
        for (int32_t i = 0; i < s->n_run; i++)
            if (s->run[i].r->n_told == 0)
                write_admit(&w, s->run[i].r);
        for (int32_t i = 0; i < s->n_run; i++)
            write_run(s, &w, &s->run[i]);
        s->count.step++;
    }
    *bytes = w.n;
}

int32_t sched_runs(const sched *s, const sched_run **out) {
    *out = s->run;
    return s->n_run;
}

void sched_step_done(sched *s) {
    for (int32_t i = 0; i < s->n_run; i++) {
        sched_request *r = s->run[i].r;
        r->n_computed = s->run[i].start + s->run[i].n_new;
        if (s->limits.prefix_cache)
            publish(s, r, s->run[i].start, r->n_computed);
        if (r->logits_done < r->n_computed)
            r->logits_done = r->n_computed;
    }
}

void sched_append(sched *s, sched_request *r, int32_t token) {
    (void)s;
    assert(r->n_token < r->max_total);
    r->token[r->n_token++] = token;
}

void sched_finish(sched *s, sched_request *r) {
    leave(s, r);
}

sched_request *sched_take_cancelled(sched *s) {
    sched_request *r = s->cancelled.head;
    if (r)
        queue_remove(&s->cancelled, r);
    return r;
}

sched_counts sched_count(const sched *s) {
    sched_counts c = s->count;
    c.n_waiting = s->waiting.n;
    c.n_running = s->running.n;
    return c;
}
