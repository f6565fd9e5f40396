/* A step's plan: plain bytes that the scheduler makes once and broadcasts; a rank needs no other
 * input.
 *
 *   plan_head | n_release x i32 slot | n_admit x { plan_admit, n_token x i32, n_bias x weft_bias }
 *             | n_run x { plan_run, n_group x n_page x i32 }
 *
 * Applied in that order: slots given back, slots taken (with all tokens so far), then the step's
 * work. */
#ifndef WEFT_BATCH_PLAN_H
#define WEFT_BATCH_PLAN_H

#include "base/status.h"
#include "kv/kv.h"

enum { PLAN_STEP = 1, PLAN_IDLE = 2, PLAN_STOP = 3 };

typedef struct plan_head {
    int64_t bytes; /* of the whole plan */
    int64_t step;  /* counts PLAN_STEP */
    int32_t kind, n_release, n_admit, n_run;
} plan_head;

typedef struct plan_admit {
    weft_sampling sampling;
    uint64_t request;
    int32_t slot, n_prompt, n_token; /* n_token: prompt and output so far */
    int32_t logits_from;             /* positions >= this need a logits row */
    int32_t n_bias, pad;
} plan_admit;

typedef struct plan_run {
    int32_t slot;
    int32_t start, n_new; /* positions [start, start + n_new) are computed */
    int32_t append;       /* token id to append to the slot first; -1: none */
    int32_t decode;       /* 1: a decode row (one new token, all before it computed, at least one of
                             output) */
    /* New logical pages; their physical ones follow, group after group. In the first run of an
     * admission the pages of the cached prefix are among them. */
    int32_t n_page;
    int32_t first[KV_MAX_GROUP]; /* by group: leading pages that are not held; listed as -1 */
} plan_run;

/* Writer over a fixed buffer. cap must be enough (plan_cap); an overflow is a programming error and
 * asserts. */
typedef struct plan_writer {
    uint8_t *buf;
    size_t cap, n;
} plan_writer;
void plan_begin(plan_writer *w, uint8_t *buf, size_t cap, int32_t kind, int64_t step);
/* Sections must be written in order: release, admit, run. */
void plan_put_release(plan_writer *w, int32_t slot);
void plan_put_admit(plan_writer *w, const plan_admit *a, const int32_t *tokens,
                    const weft_bias *bias);
/* pages: [n_group] lists of r->n_page. */
void plan_put_run(plan_writer *w, const plan_run *r, int32_t n_group, const int32_t *const *pages);
size_t plan_cap(int32_t max_seqs, int32_t max_len, int32_t page_tokens, int32_t n_group);

/* Persistent rows of the requests that are in the engine, the same on every rank. */
typedef struct batch_slot {
    uint64_t request; /* 0: free */
    uint64_t ran;     /* n_apply of the slots when it last ran */
    weft_sampling sampling;
    int32_t n_prompt, n_token, logits_from, n_page;
    int32_t *token;  /* [max_len] */
    weft_bias *bias; /* [n_bias], room for WEFT_MAX_BIAS */
    int32_t n_bias;
    int32_t first[KV_MAX_GROUP]; /* leading pages not held; -1 in the lists */
    int32_t *page[KV_MAX_GROUP]; /* [max_pages] each */
} batch_slot;
/* What a plan may name. */
typedef struct batch_limits {
    int32_t n_slot, max_len, page_tokens, n_vocab, n_group;
    kv_group group[KV_MAX_GROUP];
} batch_limits;
typedef struct batch_slots {
    batch_limits l;
    batch_slot *slot; /* [n_slot] */
    uint64_t n_apply; /* plans applied, this one too */
} batch_slots;
weft_status batch_slots_open(const batch_limits *l, batch_slots *out, weft_error *err);
void batch_slots_close(batch_slots *s);

struct batch_global;
/* Applies a plan (checked: a plan that breaks a bound is WEFT_ERR_RANK) and gives the step's global
 * batch; its pointers are into the slots, valid until the next apply. out->req must have room for
 * n_slot entries. */
weft_status batch_slots_apply(batch_slots *s, const uint8_t *plan, size_t bytes,
                              struct batch_global *out, weft_error *err);

#endif
