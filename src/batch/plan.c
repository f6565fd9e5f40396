#include "batch/plan.h"

#include <assert.h>
#include <string.h>

/* Ids and pages are 4 bytes, so a section may start at any multiple of 4: everything goes in and
 * out by memcpy. */
static void put(plan_writer *w, const void *src, size_t bytes) {
    assert(bytes <= w->cap - w->n);
    if (bytes > 0) {
        memcpy(w->buf + w->n, src, bytes);
    }
    w->n += bytes;
}

/* The head in front of the sections says how much there is; it is kept right after every put. */
static plan_head head_of(const plan_writer *w) {
    plan_head h;
    memcpy(&h, w->buf, sizeof h);
    return h;
}

static void set_head(plan_writer *w, plan_head h) {
    h.bytes = (int64_t)w->n;
    memcpy(w->buf, &h, sizeof h);
}

void plan_begin(plan_writer *w, uint8_t *buf, size_t cap, int32_t kind, int64_t step) {
    const plan_head h = {.kind = kind, .step = step};
    *w = (plan_writer){.buf = buf, .cap = cap, .n = 0};
    put(w, &h, sizeof h);
    set_head(w, h);
}

void plan_put_release(plan_writer *w, int32_t slot) {
    plan_head h = head_of(w);
    assert(h.n_admit == 0 && h.n_run == 0);
    put(w, &slot, sizeof slot);
    h.n_release++;
    set_head(w, h);
}

void plan_put_admit(plan_writer *w, const plan_admit *a, const int32_t *tokens,
                    const weft_bias *bias) {
    plan_head h = head_of(w);
    assert(h.n_run == 0);
    put(w, a, sizeof *a);
    put(w, tokens, (size_t)a->n_token * sizeof tokens[0]);
    put(w, bias, (size_t)a->n_bias * sizeof bias[0]);
    h.n_admit++;
    set_head(w, h);
}

void plan_put_run(plan_writer *w, const plan_run *r, int32_t n_group, const int32_t *const *pages) {
    plan_head h = head_of(w);
    put(w, r, sizeof *r);
    for (int32_t g = 0; g < n_group; g++) {
        put(w, pages[g], (size_t)r->n_page * sizeof(int32_t));
    }
    h.n_run++;
    set_head(w, h);
}

size_t plan_cap(int32_t max_seqs, int32_t max_len, int32_t page_tokens, int32_t n_group) {
    size_t max_pages = ((size_t)max_len + (size_t)page_tokens - 1) / (size_t)page_tokens;
    size_t one = sizeof(int32_t) + sizeof(plan_admit) + (size_t)max_len * sizeof(int32_t) +
                 WEFT_MAX_BIAS * sizeof(weft_bias) + sizeof(plan_run) +
                 (size_t)n_group * max_pages * sizeof(int32_t);
    return sizeof(plan_head) + (size_t)max_seqs * one;
}
