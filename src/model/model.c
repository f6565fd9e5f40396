/* Packed weights of a process: planning, and packing on many threads. */
#include "model/model.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/team.h"

/* ---- planning ---- */

static weft_status no_memory(weft_error *err) {
    return error_set(err, WEFT_ERR_MEMORY, "no memory for the weights' table");
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

/* A stack is packed matrix after matrix, each by itself: panels do not reach over. */
static void weight_add(model_weights *w, const model_matrix *from, kern_weight *to) {
    if (from->t == NULL)
        return;
    *to = (kern_weight){.type = model_matrix_type(from), .n_out = from->n_out, .n_in = from->n_in};
    size_t one = w->k->packed_bytes(to->type, to->n_out, to->n_in);
    kern_memory_add(&w->memory, from->t->name, one * (size_t)from->n_stack, &to->data);
    for (int32_t e = 0; e < from->n_stack; e++)
        item_add(w, (model_item){.from = from, .e = e, .weight = to, .byte = (size_t)e * one});
}

static void vector_add(model_weights *w, const model_matrix *from, kern_mem *to) {
    if (from->t == NULL)
        return;
    kern_memory_add(&w->memory, from->t->name, (size_t)from->n_out * sizeof(float), to);
    item_add(w, (model_item){.from = from, .vector = to});
}

/* Index of the leaves of a row-parallel layer with k inputs; -1 for none. */
static int32_t leaves_of(model_weights *w, const kern_weight *row_parallel) {
    int32_t k = row_parallel->n_in;
    if (k == 0)
        return -1;
    for (int32_t i = 0; i < w->n_leaves; i++)
        if (w->leaves[i].k == k)
            return i;
    const kern_profile *p = &w->k->profile;
    w->leaves[w->n_leaves] = (model_leaves){
        k, topo_leaves(model_most_heads(w->desc)->n_kv_head, k, p->max_leaves, p->leaf_multiple)};
    return w->n_leaves++;
}

static void layer_add(model_weights *w, int32_t i) {
    const model_layer *l = &w->desc->layer[i];
    model_layer_weights *to = &w->layer[i];
    for (int32_t role = 0; role < MODEL_N_ROLE; role++)
        if (role < MODEL_N_MATRIX)
            weight_add(w, &l->m[role], &to->w[role]);
        else
            vector_add(w, &l->m[role], &to->v[role - MODEL_N_MATRIX]);
    to->o = leaves_of(w, &to->w[MODEL_O]);
    to->down = leaves_of(w, &to->w[MODEL_DOWN]);
    to->expert_down = leaves_of(w, &to->w[MODEL_EXPERT_DOWN]);
    to->shared_down = leaves_of(w, &to->w[MODEL_SHARED_DOWN]);
}

weft_status model_weights_open(const model_desc *d, const kern_table *k, int32_t max_len,
                               model_weights **out, weft_error *err) {
    model_weights *w = calloc(1, sizeof *w);
    if (!w)
        return no_memory(err);
    *w = (model_weights){.desc = d, .k = k, .max_len = max_len};
    w->layer = calloc((size_t)d->config.n_layer, sizeof *w->layer);
    if (!w->layer) {
        free(w);
        return no_memory(err);
    }
    for (int32_t i = 0; i < d->config.n_rope; i++)
        kern_memory_add(&w->memory, "RoPE table",
                        (size_t)max_len * (size_t)d->config.rope[i].n_pair * 2 * sizeof(float),
                        &w->rope[i]);
    /* the largest first: its pages of the file stand beside little that is packed */
    weight_add(w, &d->head, &w->head);
    for (int32_t i = 0; i < d->config.n_layer; i++)
        layer_add(w, i);
    vector_add(w, &d->output_norm, &w->output_norm);
    weight_add(w, &d->ple_project, &w->ple_project);
    vector_add(w, &d->ple_norm, &w->ple_norm);
    *out = w;
    return WEFT_OK;
}

void model_weights_close(model_weights *w) {
    if (!w)
        return;
    kern_memory_release(&w->memory, w->k);
    free(w->layer);
    free(w->item);
    free(w);
}

/* ---- packing ---- */

/* Rows of a matrix that one claim packs: a multiple of every table's panel. */
enum { PACK_ROWS = 256 };

typedef struct pack_job {
    model_weights *w;
    team *threads;
    int32_t n_claim;
    int32_t *first;   /* [n_item + 1] first claim of each item */
    atomic_int *left; /* [tensors of the files] claims that will still read it */
    uint8_t *rows;    /* [threads][rows_bytes]: rows in the program's order */
    size_t rows_bytes;
    bool (*progress)(void *, double);
    void *user;
    atomic_int done;
    atomic_bool stopped; /* by progress */
} pack_job;

/* Rows lie one behind the other in the file as the program wants them. */
static bool in_order(const model_matrix *m) {
    return !m->transposed && m->exponents == NULL && m->pair_dim == 0 && m->step == 1 &&
           (m->group == m->n_out || m->group == m->group_stride);
}

static size_t row_bytes(const model_matrix *m) {
    return dtype_bytes(dtype_find(model_matrix_type(m)), m->n_in);
}

/* Values keep their type and bits; only their places change. */
static void gather_transposed(const model_item *i, int32_t row0, int32_t n, uint8_t *out) {
    const model_matrix *m = i->from;
    const load_tensor *t = model_matrix_tensor(m, i->e);
    size_t elem = t->ggml_type == DTYPE_F32 ? 4 : 2;
    for (int32_t r = row0; r < row0 + n; r++)
        for (int32_t k = 0; k < m->n_in; k++, out += elem)
            memcpy(out, (const uint8_t *)t->data + (size_t)model_matrix_at(m, i->e, r, k) * elem,
                   elem);
}

/* Rows [row0, row0 + n) in the program's order: where they lie, or in the buffer. */
static const void *rows_of(const model_item *i, int32_t row0, int32_t n, uint8_t *buffer) {
    const model_matrix *m = i->from;
    const uint8_t *data = model_matrix_tensor(m, i->e)->data;
    size_t bytes = row_bytes(m);
    if (in_order(m))
        return data + (size_t)model_matrix_row(m, i->e, row0) * bytes;
    if (m->transposed)
        gather_transposed(i, row0, n, buffer);
    else if (m->exponents)
        for (int32_t r = 0; r < n; r++)
            model_matrix_blocks(m, model_matrix_row(m, i->e, row0 + r), buffer + (size_t)r * bytes);
    else
        for (int32_t r = 0; r < n; r++)
            memcpy(buffer + (size_t)r * bytes,
                   data + (size_t)model_matrix_row(m, i->e, row0 + r) * bytes, bytes);
    return buffer;
}

/* As a matrix of its own that begins at these panels. */
static void pack_rows(const pack_job *j, const model_item *i, int32_t row0, uint8_t *buffer) {
    const kern_table *k = j->w->k;
    kern_weight part = *i->weight;
    int32_t left = part.n_out - row0, n = left < PACK_ROWS ? left : PACK_ROWS;
    part.data = kern_at(part.data, i->byte + k->packed_bytes(part.type, row0, part.n_in));
    part.n_out = n;
    k->pack(rows_of(i, row0, n, buffer), 0, n, &part);
}

/* In parts of the buffer's size. */
static void upload_vector(const pack_job *j, const model_item *i, uint8_t *buffer) {
    int32_t most = PACK_ROWS;
    for (int32_t r = 0; r < i->from->n_out; r += most) {
        int32_t left = i->from->n_out - r, n = left < most ? left : most;
        model_matrix_read(i->from, 0, r, n, (float *)(void *)buffer);
        j->w->k->upload(NULL, kern_at(*i->vector, (size_t)r * sizeof(float)), buffer,
                        (size_t)n * sizeof(float));
    }
}

static void pack_report(pack_job *j, double done) {
    if (j->progress && !j->progress(j->user, done))
        atomic_store(&j->stopped, true);
}

static void pack_thread(void *arg, int32_t thread, int32_t n_thread) {
    pack_job *j = arg;
    (void)n_thread;
    uint8_t *buffer = j->rows + (size_t)thread * j->rows_bytes;
    int32_t i = 0;
    for (int32_t c; !atomic_load(&j->stopped) && (c = team_claim(j->threads, j->n_claim)) >= 0;) {
        while (c >= j->first[i + 1]) /* claims ascend on one thread */
            i++;
        const model_item *item = &j->w->item[i];
        if (item->vector)
            upload_vector(j, item, buffer);
        else
            pack_rows(j, item, (c - j->first[i]) * PACK_ROWS, buffer);
        const load_tensor *t = model_matrix_tensor(item->from, item->e);
        if (atomic_fetch_sub(&j->left[load_tensor_index(j->w->desc->file, t)], 1) == 1) {
            load_forget_tensor(j->w->desc->file, t);
            if (item->from->exponents)
                load_forget_tensor(j->w->desc->file, item->from->exponents);
        }
        int32_t done = atomic_fetch_add(&j->done, 1) + 1;
        if (thread == 0 && done < j->n_claim)
            pack_report(j, (double)done / j->n_claim);
    }
}

static void rope_fill(model_weights *w, int32_t at, float *rows, int32_t n_row) {
    const model_rope *rope = &w->desc->config.rope[at];
    size_t row = (size_t)rope->n_pair * 2 * sizeof *rows;
    for (int32_t p = 0; p < w->max_len; p += n_row) {
        int32_t n = w->max_len - p < n_row ? w->max_len - p : n_row;
        kern_rope_table(rope->freq, rope->n_pair, rope->scale, p, n, rows);
        w->k->upload(NULL, kern_at(w->rope[at], (size_t)p * row), rows, (size_t)n * row);
    }
}

enum { ROPE_ROWS = 64 };

/* What a thread needs at most: gathered rows, or a part of a RoPE table. */
static size_t buffer_bytes(const model_weights *w) {
    size_t most = PACK_ROWS * sizeof(float);
    for (int32_t i = 0; i < w->n_item; i++) {
        const model_item *item = &w->item[i];
        size_t n = item->vector || in_order(item->from) ? 0 : PACK_ROWS * row_bytes(item->from);
        most = n > most ? n : most;
    }
    for (int32_t i = 0; i < w->desc->config.n_rope; i++) {
        size_t n = ROPE_ROWS * (size_t)w->desc->config.rope[i].n_pair * 2 * sizeof(float);
        most = n > most ? n : most;
    }
    return (most + 63) / 64 * 64;
}

static weft_status pack_run(pack_job *j, weft_error *err) {
    uint32_t clients = team_float_mode_save();
    team_run(j->threads, pack_thread, j);
    team_set_float_mode(); /* progress is the client's code */
    for (int32_t i = 0; i < j->w->desc->config.n_rope && !atomic_load(&j->stopped); i++)
        rope_fill(j->w, i, (float *)(void *)j->rows, ROPE_ROWS);
    if (!atomic_load(&j->stopped))
        pack_report(j, 1);
    team_float_mode_restore(clients);
    return atomic_load(&j->stopped)
               ? error_set(err, WEFT_ERR_INTERRUPTED, "interrupted while the model was loaded")
               : WEFT_OK;
}

static void count_claims(pack_job *j) {
    const model_weights *w = j->w;
    j->first[0] = 0;
    for (int32_t i = 0; i < w->n_item; i++) {
        const model_item *item = &w->item[i];
        int32_t n = item->weight ? (item->weight->n_out + PACK_ROWS - 1) / PACK_ROWS : 1;
        const load_tensor *t = model_matrix_tensor(item->from, item->e);
        j->left[load_tensor_index(w->desc->file, t)] += n;
        j->first[i + 1] = j->first[i] + n;
    }
    j->n_claim = j->first[w->n_item];
}

weft_status model_weights_pack(model_weights *w, int32_t n_thread,
                               bool (*progress)(void *user, double done), void *user,
                               weft_error *err) {
    weft_status s = kern_memory_commit(&w->memory, w->k, err);
    if (s != WEFT_OK)
        return s;
    pack_job job = {.w = w, .progress = progress, .user = user, .rows_bytes = buffer_bytes(w)};
    job.first = malloc((size_t)(w->n_item + 1) * sizeof *job.first);
    job.left = calloc((size_t)load_tensor_count(w->desc->file), sizeof *job.left);
    job.rows = malloc((size_t)n_thread * job.rows_bytes);
    if (!job.first || !job.left || !job.rows) {
        s = error_set(err, WEFT_ERR_MEMORY, "no memory to pack %d matrices", w->n_item);
        goto undo_lists;
    }
    s = team_open(n_thread, &job.threads, err);
    if (s != WEFT_OK)
        goto undo_lists;
    count_claims(&job);
    s = pack_run(&job, err);
    team_close(job.threads);
    load_forget_pages(w->desc->file);
undo_lists:
    free(job.rows);
    free(job.left);
    free(job.first);
    return s;
}

/* ---- facts for others ---- */

static void add_once(int32_t *list, int32_t n) {
    int32_t i = 0;
    while (i < TOPO_MAX_MORE && list[i] != 0 && list[i] != n)
        i++;
    if (n > 0 && i < TOPO_MAX_MORE)
        list[i] = n;
}

static bool same_heads(topo_heads a, topo_heads b) {
    return a.n_kv_head == b.n_kv_head && a.head_dim == b.head_dim;
}

static void add_heads(topo_model *m, topo_heads h) {
    int32_t i = 0;
    while (i < TOPO_MAX_MORE && m->heads_more[i].n_kv_head != 0 && !same_heads(m->heads_more[i], h))
        i++;
    if (i < TOPO_MAX_MORE && !same_heads((topo_heads){m->n_kv_head, m->head_dim}, h))
        m->heads_more[i] = h;
}

/* MLA: what a rank has of the heads' outputs; its own rows of q are cut by kinds. */
static void topo_mla(const model_desc *d, const kern_profile *p, topo_model *out) {
    const model_mla *m = &d->config.mla;
    int32_t n = out->n_head;
    out->head_dim = p->panel; /* the latent head is not cut */
    add_once(out->width_more, n * m->nope);
    add_once(out->width_more, n * m->rope);
    add_once(out->width_more, n * m->value);
    add_once(out->width_more, n * m->latent);
}

/* ffn: of the dense MLPs, 0: there are none; rows: the row-parallel matrices that tp cuts. */
static void topo_fill(const model_desc *d, const kern_profile *p, int32_t ffn,
                      const model_role *rows, size_t n_role, topo_model *out) {
    const model_config *c = &d->config;
    const model_layer *first = model_most_heads(d);
    *out = (topo_model){.n_head = first->n_head,
                        .n_kv_head = first->n_kv_head,
                        .head_dim = first->head_dim,
                        .ffn = ffn,
                        .hidden = c->hidden,
                        .n_vocab = c->n_vocab,
                        .kv_shards = p->kv_shards,
                        .panel = p->panel,
                        .leaf_multiple = p->leaf_multiple};
    if (first->latent)
        topo_mla(d, p, out);
    out->leaves_o =
        topo_leaves(first->n_kv_head, first->m[MODEL_O].n_in, p->max_leaves, p->leaf_multiple);
    if (ffn > 0)
        out->leaves_down = topo_leaves(first->n_kv_head, ffn, p->max_leaves, p->leaf_multiple);
    for (int32_t i = 0; i < c->n_layer; i++) {
        const model_layer *l = &d->layer[i];
        for (size_t k = 0; k < n_role; k++) {
            int32_t n_in = l->m[rows[k]].n_in;
            if (n_in > 0 && n_in != first->m[MODEL_O].n_in && n_in != ffn)
                add_once(out->leaves_more,
                         topo_leaves(first->n_kv_head, n_in, p->max_leaves, p->leaf_multiple));
            if (n_in > 0 && n_in != ffn && rows[k] != MODEL_O)
                add_once(out->width_more, n_in);
        }
        if (!l->latent)
            add_heads(out, (topo_heads){l->n_kv_head, l->head_dim});
    }
}

void model_topo(const model_desc *d, const kern_profile *p, topo_model *out) {
    static const model_role rows[] = {MODEL_O, MODEL_DOWN, MODEL_EXPERT_DOWN, MODEL_SHARED_DOWN};
    topo_fill(d, p, d->config.ffn, rows, sizeof rows / sizeof *rows, out);
}

void model_topo_whole(const model_desc *d, const kern_profile *p, topo_model *out) {
    static const model_role rows[] = {MODEL_O, MODEL_DOWN, MODEL_SHARED_DOWN};
    int32_t ffn = 0;
    for (int32_t i = 0; i < d->config.n_layer; i++)
        ffn = d->layer[i].m[MODEL_DOWN].n_in > 0 ? d->config.ffn : ffn;
    topo_fill(d, p, ffn, rows, sizeof rows / sizeof *rows, out);
}

int32_t model_group_layers(const model_desc *d, int32_t group) {
    int32_t n = 0;
    for (int32_t i = 0; i < d->config.n_layer; i++)
        n += d->layer[i].group == group && d->layer[i].kv_from == i;
    return n;
}

size_t model_kv_head_bytes(const model_layer *l, kern_kv_type type) {
    return kern_kv_token_bytes(type, l->head_dim, l->value_dim, l->latent);
}

size_t model_kv_token_bytes(const model_desc *d, int32_t group, int32_t tp, kern_kv_type type) {
    size_t n = 0;
    for (int32_t i = 0; i < d->config.n_layer; i++) {
        const model_layer *l = &d->layer[i];
        if (l->group == group && l->kv_from == i)
            n += (size_t)topo_kv_heads(l->n_kv_head, tp) * model_kv_head_bytes(l, type);
    }
    return n;
}

static int32_t max32(int32_t a, int32_t b) {
    return a > b ? a : b;
}

kern_limits model_limits(const model_desc *d, int32_t tp, int32_t max_rows) {
    const model_config *c = &d->config;
    kern_limits out = {.max_rows = max_rows, .max_in = max32(c->hidden, c->mla.q_latent)};
    out.max_in = max32(out.max_in, c->ple);
    for (int32_t i = 0; i < c->n_layer; i++) {
        const model_layer *l = &d->layer[i];
        static const model_role rows[] = {MODEL_O, MODEL_DOWN, MODEL_EXPERT_DOWN,
                                          MODEL_SHARED_DOWN};
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            out.max_in = max32(out.max_in, l->m[rows[k]].n_in);
        out.max_in = max32(out.max_in, l->n_head / tp * l->value_dim);
        out.max_head_dim = max32(out.max_head_dim, max32(l->head_dim, l->value_dim));
        out.max_group = max32(out.max_group, l->n_head / l->n_kv_head);
    }
    return out;
}
