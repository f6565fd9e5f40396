#include "engine/setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/trace.h"
#include "base/wait.h"
#include "engine/fault.h"
#include "model/model.h"
#include "tok/tok.h"

enum { DEFAULT_MODEL_LEN = 8192 };

void weft_engine_params_default(weft_engine_params *out) {
    *out = (weft_engine_params){.tp = 1,
                                .pcp = 1,
                                .dcp = 1,
                                .max_num_seqs = 64,
                                .max_num_batched_tokens = 512,
                                .kv_dtype = WEFT_KV_F16,
                                .exchange = WEFT_EXCHANGE_AUTO,
                                .trace_spans = TRACE_SPANS_DEFAULT,
                                .cp_min_split = 32};
}

static weft_status range_check(const char *option, int64_t value, int64_t lo, int64_t hi,
                               weft_error *err) {
    if (value >= lo && value <= hi)
        return WEFT_OK;
    return error_set(err, WEFT_ERR_SETUP, "%s %lld: expected %lld to %lld", option,
                     (long long)value, (long long)lo, (long long)hi);
}

static weft_status sizes_check(const model_config *cfg, engine_setup *s, weft_error *err) {
    weft_engine_params *p = &s->p;
    int32_t longest =
        cfg->context_length < ENGINE_MAX_MODEL_LEN ? cfg->context_length : ENGINE_MAX_MODEL_LEN;
    const struct {
        const char *option;
        int64_t value, lo, hi;
    } rule[] = {
        {"--threads", p->n_thread, 0, ENGINE_MAX_THREADS},
        {"--max-num-seqs", p->max_num_seqs, 1, ENGINE_MAX_SEQS},
        {"--max-num-batched-tokens", p->max_num_batched_tokens, 1, ENGINE_MAX_STEP_TOKENS},
        {"--max-model-len", p->max_model_len, 0, longest},
        {"--kv-pages", p->kv_pages, 0, ENGINE_MAX_KV_PAGES},
        {"--cp-min-split", p->cp_min_split, 1, ENGINE_MAX_STEP_TOKENS},
        {"--kv-cache-dtype (index)", p->kv_dtype, WEFT_KV_F16, WEFT_KV_BF16},
        {"--cp-exchange (index)", p->exchange, WEFT_EXCHANGE_AUTO, WEFT_EXCHANGE_KV},
    };
    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++) {
        weft_status st = range_check(rule[i].option, rule[i].value, rule[i].lo, rule[i].hi, err);
        if (st != WEFT_OK)
            return st;
    }
    if (p->fault && engine_fault_find(p->fault) == ENGINE_FAULT_NONE)
        return error_set(err, WEFT_ERR_SETUP,
                         "--fault %.40s: unknown; `weft check --fault list` names them", p->fault);
    if (p->max_model_len == 0)
        p->max_model_len =
            cfg->context_length < DEFAULT_MODEL_LEN ? cfg->context_length : DEFAULT_MODEL_LEN;
    if (p->n_thread == 0)
        p->n_thread = wait_core_count();
    return WEFT_OK;
}

void engine_setup_groups(const engine_setup *s, kv_group *group) {
    for (int32_t g = 0; g < s->caps.n_group; g++)
        group[g] = (kv_group){s->caps.window[g], s->kv_pages[g]};
}

kv_sizes engine_setup_kv(const engine_setup *s, const topo *t, kv_group *group) {
    engine_setup_groups(s, group);
    return (kv_sizes){.dcp = s->sizes.dcp,
                      .shard_cut = t->shard_cut,
                      .kv_shards = t->kv_shards,
                      .page_tokens = s->caps.page_tokens,
                      .max_new = s->caps.max_step_tokens,
                      .n_group = s->caps.n_group,
                      .group = group,
                      .prefix_cache = !s->p.no_prefix_cache};
}

/* Bytes of a page, and the pages that the longest request holds on the fullest rank of a DCP
 * group. */
static void groups_measure(const model_desc *d, engine_setup *s) {
    topo t;
    kv_group group[KV_MAX_GROUP];
    topo_init(&s->model, s->sizes, 0, &t);
    kv_sizes sizes = engine_setup_kv(s, &t, group);
    for (int32_t g = 0; g < d->n_group; g++) {
        s->page_bytes[g] =
            model_kv_token_bytes(d, g, s->sizes.tp, s->kv_type) * (size_t)s->k->profile.page_tokens;
        for (int32_t r = 0; r < s->sizes.dcp; r++) {
            int32_t n = topo_pages_owned(&t, r, s->caps.max_pages);
            if (d->window[g] > 0) {
                int32_t most = kv_window_pages(&sizes, d->window[g], r);
                n = most < n ? most : n;
            }
            s->longest[g] = n > s->longest[g] ? n : s->longest[g];
        }
    }
}

/* Pages of a group beside n of group 0, which keeps most: for as many of the longest requests, and
 * for one that takes all n. */
static int32_t pages_beside(const engine_setup *s, int32_t g, int64_t n) {
    if (n <= s->longest[0])
        return n < s->longest[g] ? (int32_t)n : s->longest[g];
    return (int32_t)((n * s->longest[g] + s->longest[0] - 1) / s->longest[0]);
}

static uint64_t cache_bytes(const engine_setup *s, int64_t n) {
    uint64_t bytes = 0;
    for (int32_t g = 0; g < s->caps.n_group; g++)
        bytes += (uint64_t)pages_beside(s, g, n) * s->page_bytes[g];
    return bytes * (uint64_t)s->world;
}

/* The most pages of group 0, up to `want`, that fit the limit with those of the others; 0: none. */
static int64_t pages_within(const engine_setup *s, int64_t want, uint64_t limit) {
    int64_t lo = 0, hi = want;
    while (lo < hi) {
        int64_t n = lo + (hi - lo + 1) / 2;
        if (cache_bytes(s, n) <= limit)
            lo = n;
        else
            hi = n - 1;
    }
    return lo;
}

static weft_status pages_choose(const model_desc *d, engine_setup *s, weft_error *err) {
    static const double GIB = 1 << 30;
    weft_engine_params *p = &s->p;
    groups_measure(d, s);
    uint64_t free_bytes = s->free_bytes = memory_available("");
    uint64_t limit = p->kv_bytes ? p->kv_bytes : free_bytes / 4;
    if (p->kv_pages == 0) {
        int64_t want = (int64_t)p->max_num_seqs * s->longest[0];
        want = want < ENGINE_MAX_KV_PAGES ? want : ENGINE_MAX_KV_PAGES;
        p->kv_pages = (int32_t)(limit ? pages_within(s, want, limit) : want);
        if (p->kv_pages < 1)
            return error_set(err, WEFT_ERR_MEMORY,
                             "--kv-cache-memory: %llu bytes hold no page on each of %d ranks; one "
                             "page takes %zu bytes on a rank",
                             (unsigned long long)limit, s->world,
                             (size_t)cache_bytes(s, 1) / (size_t)s->world);
    }
    uint64_t need = cache_bytes(s, p->kv_pages);
    if (p->kv_bytes && need > p->kv_bytes)
        return error_set(
            err, WEFT_ERR_SETUP,
            "--kv-pages %d on %d ranks take %llu bytes, more than --kv-cache-memory %llu",
            p->kv_pages, s->world, (unsigned long long)need, (unsigned long long)p->kv_bytes);
    if (free_bytes && need > free_bytes)
        return error_set(
            err, WEFT_ERR_MEMORY,
            "the KV cache takes %.1f GiB, and %.1f GiB of memory are free; fewer "
            "--kv-pages, a smaller --kv-cache-memory or fewer --max-num-seqs need less",
            (double)need / GIB, (double)free_bytes / GIB);
    p->kv_bytes = need;
    for (int32_t g = 0; g < d->n_group; g++)
        s->kv_pages[g] = pages_beside(s, g, p->kv_pages);
    return WEFT_OK;
}

/* L of the row-parallel layers, as "6-12". */
static void leaves_text(const topo_model *m, char *out, size_t cap) {
    int n = snprintf(out, cap, "%d-%d", m->leaves_o, m->leaves_down);
    for (int32_t i = 0; i < TOPO_MAX_MORE && m->leaves_more[i] > 0; i++)
        n += snprintf(out + n, cap - (size_t)n, "-%d", m->leaves_more[i]);
}

static void identity_write(engine_setup *s) {
    static const char *const kv[] = {"f16", "f32", "bf16"};
    const kern_profile *f = &s->k->profile;
    char leaves[40];
    leaves_text(&s->model, leaves, sizeof leaves);
    snprintf(s->identity, sizeof s->identity, "%s/P%d/V%d/L%s/kv-%s", f->name, f->page_tokens,
             f->kv_shards, leaves, kv[s->p.kv_dtype]);
}

/* The bytes do not depend on who has the experts, nor does the identity: it is written before. */
static weft_status experts_check(const model_desc *d, engine_setup *s, weft_error *err) {
    if (!s->p.expert_parallel)
        return WEFT_OK;
    if (d->config.moe.n_expert == 0)
        return error_set(
            err, WEFT_ERR_SETUP,
            "--expert-parallel: the model has no experts (architecture %.40s); leave it out",
            d->config.architecture);
    model_topo_whole(d, &s->k->profile, &s->model);
    return WEFT_OK;
}

weft_status engine_setup_make(const model_desc *d, const weft_engine_params *params,
                              engine_setup *out, weft_error *err) {
    const model_config *cfg = &d->config;
    const model_layer *most = model_most_heads(d);
    engine_setup s = {.p = *params, .sizes = {params->tp, params->pcp, params->dcp}};
    weft_status st = kern_cpu_table(params->isa, &s.k, err);
    if (st == WEFT_OK)
        st = sizes_check(cfg, &s, err);
    if (st != WEFT_OK)
        return st;
    model_topo(d, &s.k->profile, &s.model);
    identity_write(&s);
    st = experts_check(d, &s, err);
    if (st == WEFT_OK)
        st = topo_check(&s.model, s.sizes, err);
    if (st != WEFT_OK)
        return st;
    static const kern_kv_type kv[] = {KERN_KV_F16, KERN_KV_F32, KERN_KV_BF16};
    s.kv_type = kv[s.p.kv_dtype];
    s.world = s.sizes.tp * s.sizes.pcp;
    s.p.n_thread = s.p.n_thread > s.world ? s.p.n_thread : s.world;
    int32_t page_tokens = s.k->profile.page_tokens;
    int32_t max_pages = (s.p.max_model_len + page_tokens - 1) / page_tokens;
    s.caps = (batch_caps){.max_reqs = s.p.max_num_seqs,
                          .max_step_tokens = s.p.max_num_batched_tokens,
                          .max_pages = max_pages,
                          .page_tokens = page_tokens,
                          .round_pages = max_pages,
                          .min_split = s.p.cp_min_split,
                          .exchange = s.p.exchange,
                          .head_dim = most->head_dim,
                          .value_dim = most->value_dim,
                          .kv_bytes = (int32_t)model_kv_head_bytes(most, s.kv_type),
                          .n_group = d->n_group};
    memcpy(s.caps.window, d->window, sizeof s.caps.window);
    st = pages_choose(d, &s, err);
    if (st != WEFT_OK)
        return st;
    *out = s;
    return WEFT_OK;
}

int32_t engine_setup_threads(const engine_setup *s, int32_t rank) {
    int32_t n = s->p.n_thread / s->world + (rank < s->p.n_thread % s->world);
    return n > 1 ? n : 1;
}

kern_limits engine_setup_limits(const model_desc *d, const engine_setup *s,
                                const batch_builder *b) {
    return model_limits(d, s->sizes.tp, batch_query_cap(b));
}
