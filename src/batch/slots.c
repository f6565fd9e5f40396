/* Plans are read as if they came from a stranger: ranks may be processes one day, and a plan that
 * breaks a bound must end the run with its reason, not write outside a row. */
#include <stdlib.h>
#include <string.h>

#include "batch/batch.h"

static int32_t max_pages(const batch_limits *l) {
    return (l->max_len - 1) / l->page_tokens + 1;
}

static weft_status limits_check(const batch_limits *l, weft_error *err) {
    if (l->n_slot < 1 || l->max_len < 1 || l->page_tokens < 1 || l->n_vocab < 1) {
        return error_set(err, WEFT_ERR_SETUP,
                         "batch: %d slots of %d tokens, %d to a page, ids below %d: each must be "
                         "at least 1",
                         l->n_slot, l->max_len, l->page_tokens, l->n_vocab);
    }
    if (l->n_group < 1 || l->n_group > KV_MAX_GROUP) {
        return error_set(err, WEFT_ERR_SETUP, "batch: %d groups of layers, 1 to %d are possible",
                         l->n_group, KV_MAX_GROUP);
    }
    return WEFT_OK;
}

weft_status batch_slots_open(const batch_limits *l, batch_slots *out, weft_error *err) {
    weft_status status = limits_check(l, err);
    if (status != WEFT_OK) {
        return status;
    }
    batch_slots s = {.l = *l};
    size_t n_slot = (size_t)l->n_slot, pages = (size_t)max_pages(l);
    size_t per_slot = (size_t)l->max_len + (size_t)l->n_group * pages;
    s.slot = calloc(n_slot, sizeof s.slot[0]);
    int32_t *ints = s.slot ? calloc(n_slot, per_slot * sizeof ints[0]) : NULL;
    weft_bias *bias = ints ? calloc(n_slot, WEFT_MAX_BIAS * sizeof bias[0]) : NULL;
    if (!bias) {
        free(ints);
        free(s.slot);
        return error_set(err, WEFT_ERR_MEMORY, "batch: no memory for %d slots of %d tokens",
                         l->n_slot, l->max_len);
    }
    for (size_t i = 0; i < n_slot; i++) { /* slot 0's begin the one allocation */
        s.slot[i].bias = bias + i * WEFT_MAX_BIAS;
        s.slot[i].token = ints + i * per_slot;
        for (int32_t g = 0; g < l->n_group; g++) {
            s.slot[i].page[g] = s.slot[i].token + l->max_len + (size_t)g * pages;
        }
    }
    *out = s;
    return WEFT_OK;
}

void batch_slots_close(batch_slots *s) {
    if (s->slot) {
        free(s->slot[0].token);
        free(s->slot[0].bias);
    }
    free(s->slot);
    *s = (batch_slots){0};
}

/* ---- reading ---- */

typedef struct plan_reader {
    const uint8_t *at;
    size_t left;
    weft_error *err;
} plan_reader;

static bool take(plan_reader *r, void *dst, size_t bytes) {
    if (bytes > r->left) {
        return false;
    }
    if (bytes > 0) {
        memcpy(dst, r->at, bytes);
    }
    r->at += bytes;
    r->left -= bytes;
    return true;
}

static weft_status cut_short(plan_reader *r, const char *what, int32_t i, size_t need) {
    return error_set(r->err, WEFT_ERR_RANK, "plan: %s %d needs %zu bytes, %zu are left", what, i,
                     need, r->left);
}

/* n token or page ids, each in [0, end). */
static weft_status take_ids(plan_reader *r, const char *what, int32_t slot, int32_t *dst, int32_t n,
                            int32_t end) {
    size_t bytes = (size_t)n * sizeof dst[0];
    if (!take(r, dst, bytes)) {
        return cut_short(r, what, slot, bytes);
    }
    for (int32_t i = 0; i < n; i++) {
        if (dst[i] < 0 || dst[i] >= end) {
            return error_set(r->err, WEFT_ERR_RANK, "plan: %s %d: id %d is not in 0..%d", what,
                             slot, dst[i], end - 1);
        }
    }
    return WEFT_OK;
}

static weft_status read_head(plan_reader *r, const batch_slots *s, size_t bytes, plan_head *h) {
    if (!take(r, h, sizeof *h)) {
        return cut_short(r, "head", 0, sizeof *h);
    }
    if (h->bytes < 0 || (uint64_t)h->bytes != bytes) {
        return error_set(r->err, WEFT_ERR_RANK, "plan: says %lld bytes, %zu came",
                         (long long)h->bytes, bytes);
    }
    if (h->kind != PLAN_STEP && h->kind != PLAN_IDLE && h->kind != PLAN_STOP) {
        return error_set(r->err, WEFT_ERR_RANK,
                         "plan: kind %d is not 1 (step), 2 (idle) or 3 (stop)", h->kind);
    }
    const int32_t count[3] = {h->n_release, h->n_admit, h->n_run};
    for (int32_t i = 0; i < 3; i++) {
        if (count[i] < 0 || count[i] > s->l.n_slot) {
            return error_set(r->err, WEFT_ERR_RANK,
                             "plan: %d releases, %d admissions, %d runs for %d slots", h->n_release,
                             h->n_admit, h->n_run, s->l.n_slot);
        }
    }
    if (h->kind != PLAN_STEP && h->n_run > 0) {
        return error_set(r->err, WEFT_ERR_RANK, "plan: %d runs in a plan of kind %d", h->n_run,
                         h->kind);
    }
    return WEFT_OK;
}

static weft_status check_slot(plan_reader *r, const batch_slots *s, const char *what, int32_t slot,
                              bool taken) {
    if (slot < 0 || slot >= s->l.n_slot) {
        return error_set(r->err, WEFT_ERR_RANK, "plan: %s of slot %d, slots are 0..%d", what, slot,
                         s->l.n_slot - 1);
    }
    if ((s->slot[slot].request != 0) != taken) {
        return error_set(r->err, WEFT_ERR_RANK, "plan: %s of slot %d, which is %s", what, slot,
                         taken ? "free" : "taken");
    }
    return WEFT_OK;
}

static weft_status read_release(plan_reader *r, batch_slots *s, int32_t i) {
    int32_t slot;
    if (!take(r, &slot, sizeof slot)) {
        return cut_short(r, "release", i, sizeof slot);
    }
    weft_status status = check_slot(r, s, "release", slot, true);
    if (status == WEFT_OK) {
        s->slot[slot].request = 0;
    }
    return status;
}

static weft_status check_admit(plan_reader *r, const batch_slots *s, const plan_admit *a) {
    weft_status status = check_slot(r, s, "admission", a->slot, false);
    if (status != WEFT_OK) {
        return status;
    }
    if (a->n_prompt < 1 || a->n_token < a->n_prompt || a->n_token > s->l.max_len) {
        return error_set(r->err, WEFT_ERR_RANK,
                         "plan: admission of slot %d with %d prompt tokens, %d tokens, at most %d",
                         a->slot, a->n_prompt, a->n_token, s->l.max_len);
    }
    if (a->logits_from < 0 || a->logits_from >= a->n_token) {
        return error_set(r->err, WEFT_ERR_RANK,
                         "plan: admission of slot %d with logits from position %d of %d", a->slot,
                         a->logits_from, a->n_token);
    }
    if (a->sampling.n_top < 0 || a->sampling.n_top > WEFT_MAX_TOP) {
        return error_set(r->err, WEFT_ERR_RANK,
                         "plan: admission of slot %d that lists %d tokens, at most %d", a->slot,
                         a->sampling.n_top, WEFT_MAX_TOP);
    }
    if (a->n_bias < 0 || a->n_bias > WEFT_MAX_BIAS) {
        return error_set(r->err, WEFT_ERR_RANK,
                         "plan: admission of slot %d with %d biases, at most %d", a->slot,
                         a->n_bias, WEFT_MAX_BIAS);
    }
    if (a->request == 0) {
        return error_set(r->err, WEFT_ERR_RANK,
                         "plan: admission of request 0 to slot %d; ids begin at 1", a->slot);
    }
    for (int32_t i = 0; i < s->l.n_slot; i++) {
        if (s->slot[i].request == a->request) {
            return error_set(r->err, WEFT_ERR_RANK,
                             "plan: admission of request %llu to slot %d, it is in slot %d",
                             (unsigned long long)a->request, a->slot, i);
        }
    }
    return WEFT_OK;
}

static weft_status read_admit(plan_reader *r, batch_slots *s, int32_t i) {
    plan_admit a;
    if (!take(r, &a, sizeof a)) {
        return cut_short(r, "admission", i, sizeof a);
    }
    weft_status status = check_admit(r, s, &a);
    if (status != WEFT_OK) {
        return status;
    }
    batch_slot *slot = &s->slot[a.slot];
    status = take_ids(r, "tokens of slot", a.slot, slot->token, a.n_token, s->l.n_vocab);
    if (status != WEFT_OK) {
        return status;
    }
    size_t bias_bytes = (size_t)a.n_bias * sizeof slot->bias[0];
    if (!take(r, slot->bias, bias_bytes)) {
        return cut_short(r, "biases of slot", a.slot, bias_bytes);
    }
    for (int32_t k = 0; k < a.n_bias; k++) {
        if (slot->bias[k].token < 0 || slot->bias[k].token >= s->l.n_vocab) {
            return error_set(r->err, WEFT_ERR_RANK, "plan: bias of slot %d for id %d, not in 0..%d",
                             a.slot, slot->bias[k].token, s->l.n_vocab - 1);
        }
    }
    slot->n_bias = a.n_bias;
    slot->request = a.request;
    slot->sampling = a.sampling;
    slot->n_prompt = a.n_prompt;
    slot->n_token = a.n_token;
    slot->logits_from = a.logits_from;
    slot->n_page = 0;
    memset(slot->first, 0, sizeof slot->first);
    return WEFT_OK;
}

static weft_status check_run(plan_reader *r, const batch_slots *s, const plan_run *p) {
    weft_status status = check_slot(r, s, "run", p->slot, true);
    if (status != WEFT_OK) {
        return status;
    }
    const batch_slot *slot = &s->slot[p->slot];
    if (slot->ran == s->n_apply) {
        return error_set(r->err, WEFT_ERR_RANK, "plan: two runs of slot %d in a step", p->slot);
    }
    if (p->append < -1 || p->append >= s->l.n_vocab ||
        (p->append >= 0 && slot->n_token == s->l.max_len)) {
        return error_set(r->err, WEFT_ERR_RANK,
                         "plan: run of slot %d appends token %d to %d of at most %d, ids are 0..%d",
                         p->slot, p->append, slot->n_token, s->l.max_len, s->l.n_vocab - 1);
    }
    int32_t n_token = slot->n_token + (p->append >= 0);
    if (p->start < 0 || p->n_new < 1 || (int64_t)p->start + p->n_new > n_token) {
        return error_set(r->err, WEFT_ERR_RANK,
                         "plan: run of slot %d computes %d positions from %d on, it has %d tokens",
                         p->slot, p->n_new, p->start, n_token);
    }
    bool decode_row = p->n_new == 1 && p->start == n_token - 1 && p->start >= slot->n_prompt;
    if (p->decode < 0 || p->decode > 1 || (p->decode == 1 && !decode_row)) {
        return error_set(r->err, WEFT_ERR_RANK,
                         "plan: run of slot %d is marked decode (%d), but computes %d positions "
                         "from %d on of %d tokens, %d of them prompt",
                         p->slot, p->decode, p->n_new, p->start, n_token, slot->n_prompt);
    }
    int64_t n_page = (int64_t)slot->n_page + p->n_page;
    if (p->n_page < 0 || n_page > max_pages(&s->l) ||
        n_page * s->l.page_tokens < (int64_t)p->start + p->n_new) {
        return error_set(r->err, WEFT_ERR_RANK,
                         "plan: run of slot %d has %d + %d pages of %d tokens for %lld positions, "
                         "at most %d",
                         p->slot, slot->n_page, p->n_page, s->l.page_tokens,
                         (long long)p->start + p->n_new, max_pages(&s->l));
    }
    return WEFT_OK;
}

/* Pages that are not held stay so, and no position of the run sees them. Those that the ranks never
 * heard of are in front of what an admission found cached. */
static weft_status check_first(plan_reader *r, const batch_slots *s, const plan_run *p) {
    const batch_slot *slot = &s->slot[p->slot];
    for (int32_t g = 0; g < s->l.n_group; g++) {
        int32_t seen = kv_first_page(s->l.group[g].window, s->l.page_tokens, p->start);
        int32_t n_page = slot->n_page + p->n_page;
        int32_t most = seen < n_page ? seen : n_page;
        if (p->first[g] < slot->first[g] || p->first[g] > most) {
            return error_set(r->err, WEFT_ERR_RANK,
                             "plan: run of slot %d from position %d on lacks %d leading pages of "
                             "group %d with window %d, expected %d to %d",
                             p->slot, p->start, p->first[g], g, s->l.group[g].window,
                             slot->first[g], most);
        }
    }
    return WEFT_OK;
}

/* The new pages of each group; those that are not held are -1, told so or become so. */
static weft_status take_pages(plan_reader *r, const batch_slots *s, const plan_run *p) {
    batch_slot *slot = &s->slot[p->slot];
    for (int32_t g = 0; g < s->l.n_group; g++) {
        int32_t *page = slot->page[g] + slot->n_page;
        int32_t lacking = p->first[g] > slot->n_page ? p->first[g] - slot->n_page : 0;
        size_t bytes = (size_t)lacking * sizeof page[0];
        if (!take(r, page, bytes)) {
            return cut_short(r, "pages of slot", p->slot, bytes);
        }
        weft_status status = take_ids(r, "pages of slot", p->slot, page + lacking,
                                      p->n_page - lacking, s->l.group[g].n_page);
        if (status != WEFT_OK) {
            return status;
        }
        for (; slot->first[g] < p->first[g]; slot->first[g]++) {
            slot->page[g][slot->first[g]] = -1;
        }
    }
    slot->n_page += p->n_page;
    return WEFT_OK;
}

static weft_status read_run(plan_reader *r, batch_slots *s, int32_t i, batch_global *g) {
    plan_run p;
    if (!take(r, &p, sizeof p)) {
        return cut_short(r, "run", i, sizeof p);
    }
    weft_status status = check_run(r, s, &p);
    if (status != WEFT_OK) {
        return status;
    }
    status = check_first(r, s, &p);
    if (status == WEFT_OK) {
        status = take_pages(r, s, &p);
    }
    if (status != WEFT_OK) {
        return status;
    }
    batch_slot *slot = &s->slot[p.slot];
    slot->ran = s->n_apply;
    if (p.append >= 0) {
        slot->token[slot->n_token++] = p.append;
    }
    int32_t end = p.start + p.n_new;
    int32_t logits_from = slot->logits_from > p.start ? slot->logits_from : p.start;
    g->req[g->n_req++] = (batch_request){.slot = p.slot,
                                         .start = p.start,
                                         .n_new = p.n_new,
                                         .n_logits = end > logits_from ? end - logits_from : 0,
                                         .sample = end == slot->n_token,
                                         .decode = p.decode == 1,
                                         .token = slot->token};
    memcpy(g->req[g->n_req - 1].page, slot->page, sizeof slot->page);
    return WEFT_OK;
}

/* A broken plan leaves the slots as far as they got: ranks no longer agree and the run ends. */
weft_status batch_slots_apply(batch_slots *s, const uint8_t *plan, size_t bytes, batch_global *out,
                              weft_error *err) {
    plan_reader r = {.at = plan, .left = bytes, .err = err};
    plan_head h;
    weft_status status = read_head(&r, s, bytes, &h);
    if (status != WEFT_OK) {
        return status;
    }
    batch_global g = {.step = h.step, .kind = h.kind, .n_req = 0, .req = out->req};
    s->n_apply++;
    for (int32_t i = 0; i < h.n_release && status == WEFT_OK; i++) {
        status = read_release(&r, s, i);
    }
    for (int32_t i = 0; i < h.n_admit && status == WEFT_OK; i++) {
        status = read_admit(&r, s, i);
    }
    for (int32_t i = 0; i < h.n_run && status == WEFT_OK; i++) {
        status = read_run(&r, s, i, &g);
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (r.left > 0) {
        return error_set(err, WEFT_ERR_RANK, "plan: %zu bytes after the last run", r.left);
    }
    *out = g;
    return WEFT_OK;
}
