/* What every architecture shares: the table, packing on many threads, planning. */
#include "model/model.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/team.h"

static const model_arch *const arch_table[] = {&model_llama};

static const model_arch *arch_find(const char *name) {
    for (size_t i = 0; i < sizeof arch_table / sizeof *arch_table; i++)
        if (strcmp(arch_table[i]->name, name) == 0)
            return arch_table[i];
    return NULL;
}

kern_mem model_block_at(kern_mem block, int32_t i) {
    return kern_at(block, (size_t)i * sizeof(int32_t));
}

kern_mem model_layer_pages(const model_rank *r, int32_t layer) {
    return kern_at(r->kv, (size_t)layer * attn_page_bytes(&r->attn));
}

void model_topo(const load_config *cfg, const kern_profile *p, topo_model *out) {
    *out = (topo_model){.n_head = cfg->n_head,
                        .n_kv_head = cfg->n_kv_head,
                        .head_dim = cfg->head_dim,
                        .ffn = cfg->ffn,
                        .hidden = cfg->hidden,
                        .n_vocab = cfg->n_vocab,
                        .kv_shards = p->kv_shards,
                        .panel = p->panel,
                        .leaf_multiple = p->leaf_multiple};
    out->leaves_o =
        topo_leaves(cfg->n_kv_head, cfg->n_head * cfg->head_dim, p->max_leaves, p->leaf_multiple);
    out->leaves_down = topo_leaves(cfg->n_kv_head, cfg->ffn, p->max_leaves, p->leaf_multiple);
}

weft_status model_weights_open(const load_model *file, const kern_table *k, int32_t max_len,
                               model_weights **out, weft_error *err) {
    const load_config *cfg = load_get_config(file);
    const model_arch *arch = arch_find(cfg->architecture);
    if (!arch)
        return error_set(err, WEFT_ERR_FILE,
                         "general.architecture \"%s\" has no layer program in weft",
                         cfg->architecture);
    model_weights *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the model's table");
    topo_model t;
    model_topo(cfg, &k->profile, &t);
    *w = (model_weights){.arch = arch,
                         .k = k,
                         .file = file,
                         .cfg = cfg,
                         .max_len = max_len,
                         .leaves_o = t.leaves_o,
                         .leaves_down = t.leaves_down};
    kern_memory_add(&w->memory, "RoPE table",
                    (size_t)max_len * (size_t)cfg->rope_dim * sizeof(float), &w->rope);
    weft_status s = arch->weights_open(w, err);
    if (s != WEFT_OK) {
        kern_memory_release(&w->memory, k); /* the list of buffers */
        free(w);
        return s;
    }
    *out = w;
    return WEFT_OK;
}

static void item_add(model_weights *w, model_item item) {
    if (w->n_item == w->item_cap) {
        int32_t cap = w->item_cap ? 2 * w->item_cap : 64;
        model_item *grown = realloc(w->item, (size_t)cap * sizeof *grown);
        if (!grown) {
            w->memory.failed = true; /* commit reports it */
            return;
        }
        w->item = grown;
        w->item_cap = cap;
    }
    w->item[w->n_item++] = item;
}

void model_weight_add(model_weights *w, const load_tensor *from, kern_weight *to) {
    *to = (kern_weight){.type = (dtype)from->ggml_type,
                        .n_out = (int32_t)from->dim[1],
                        .n_in = (int32_t)from->dim[0]};
    kern_memory_add(&w->memory, from->name, w->k->packed_bytes(to->type, to->n_out, to->n_in),
                    &to->data);
    item_add(w, (model_item){from, to, NULL});
}

void model_vector_add(model_weights *w, const load_tensor *from, kern_mem *to) {
    kern_memory_add(&w->memory, from->name, from->bytes, to);
    item_add(w, (model_item){from, NULL, to});
}

/* Rows of a tensor that one claim packs: a multiple of every table's panel. */
enum { PACK_ROWS = 512 };

typedef struct pack_job {
    model_weights *w;
    team *threads;
    int32_t n_claim;
    int32_t *first; /* [n_item + 1] first claim of each item */
    void (*progress)(void *, double);
    void *user;
    atomic_int done;
} pack_job;

static void pack_thread(void *arg, int32_t thread, int32_t n_thread) {
    pack_job *j = arg;
    (void)n_thread;
    int32_t i = 0;
    for (int32_t c; (c = team_claim(j->threads, j->n_claim)) >= 0;) {
        while (c >= j->first[i + 1]) /* claims ascend on one thread */
            i++;
        const model_item *item = &j->w->item[i];
        if (item->vector) {
            j->w->k->upload(NULL, *item->vector, item->from->data, item->from->bytes);
        } else {
            int32_t row0 = (c - j->first[i]) * PACK_ROWS, left = item->weight->n_out - row0;
            j->w->k->pack(item->from->data, row0, left < PACK_ROWS ? left : PACK_ROWS,
                          item->weight);
        }
        int32_t done = atomic_fetch_add(&j->done, 1) + 1;
        if (thread == 0 && j->progress)
            j->progress(j->user, (double)done / j->n_claim);
    }
}

static void rope_fill(model_weights *w, float *rows, int32_t n_row) {
    size_t row = (size_t)w->cfg->rope_dim * sizeof *rows;
    for (int32_t p = 0; p < w->max_len; p += n_row) {
        int32_t n = w->max_len - p < n_row ? w->max_len - p : n_row;
        kern_rope_table(w->cfg->rope_base, w->cfg->rope_dim, p, n, rows);
        w->k->upload(NULL, kern_at(w->rope, (size_t)p * row), rows, (size_t)n * row);
    }
}

weft_status model_weights_pack(model_weights *w, int32_t n_thread,
                               void (*progress)(void *user, double done), void *user,
                               weft_error *err) {
    enum { ROPE_ROWS = 256 };
    weft_status s = kern_memory_commit(&w->memory, w->k, err);
    if (s != WEFT_OK)
        return s;
    pack_job job = {.w = w, .progress = progress, .user = user};
    job.first = malloc((size_t)(w->n_item + 1) * sizeof *job.first);
    float *rope = malloc((size_t)ROPE_ROWS * (size_t)w->cfg->rope_dim * sizeof *rope);
    if (!job.first || !rope) {
        s = error_set(err, WEFT_ERR_MEMORY, "no memory to pack %d tensors", w->n_item);
        goto undo_lists;
    }
    s = team_open(n_thread, &job.threads, err);
    if (s != WEFT_OK)
        goto undo_lists;
    job.first[0] = 0;
    for (int32_t i = 0; i < w->n_item; i++) {
        const kern_weight *to = w->item[i].weight;
        job.first[i + 1] = job.first[i] + (to ? (to->n_out + PACK_ROWS - 1) / PACK_ROWS : 1);
    }
    job.n_claim = job.first[w->n_item];
    uint32_t clients = team_float_mode_save();
    team_run(job.threads, pack_thread, &job);
    team_set_float_mode(); /* progress is the client's code */
    rope_fill(w, rope, ROPE_ROWS);
    team_float_mode_restore(clients);
    team_close(job.threads);
    load_forget_pages(w->file);
undo_lists:
    free(rope);
    free(job.first);
    return s;
}

void model_weights_close(model_weights *w) {
    if (!w)
        return;
    w->arch->weights_close(w);
    kern_memory_release(&w->memory, w->k);
    free(w->item);
    free(w);
}

weft_status model_rank_open(const model_weights *w, const model_rank_setup *s, kern_memory *plan,
                            model_rank **out, weft_error *err) {
    model_rank *r = calloc(1, sizeof *r);
    if (!r)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a rank's table");
    *r = (model_rank){.w = w,
                      .k = w->k,
                      .dev = s->dev,
                      .comm = s->comm,
                      .topo = s->topo,
                      .kv_pages = s->kv_pages,
                      .tok_cap = batch_tok_cap(s->builder)};
    attn_rank_init(&r->attn, w->k, s->dev, s->comm, s->topo, s->kv_type, w->cfg->head_dim,
                   s->builder, s->round_pages, s->fault, plan);
    r->attn.page_stride = (size_t)w->cfg->n_layer * attn_page_bytes(&r->attn);
    kern_memory_add(plan, "KV cache", (size_t)s->kv_pages * r->attn.page_stride, &r->kv);
    kern_memory_add(plan, "logits",
                    (size_t)MODEL_LOGIT_CHUNK * (size_t)w->cfg->n_vocab * sizeof(float),
                    &r->logits);
    weft_status st = w->arch->rank_open(r, plan, err);
    if (st != WEFT_OK) {
        free(r);
        return st;
    }
    *out = r;
    return WEFT_OK;
}

void model_rank_close(model_rank *r) {
    if (!r)
        return;
    r->w->arch->rank_close(r);
    free(r);
}
