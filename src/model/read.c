/* Reading a description: keys and tensors of either source, one failure at most. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "load/arena.h"
#include "model/arch.h"

void read_fail(model_reader *r, const char *text, ...) {
    if (r->status != WEFT_OK)
        return;
    char line[512];
    va_list args;
    va_start(args, text);
    vsnprintf(line, sizeof line, text, args);
    va_end(args);
    r->status = error_set(r->err, WEFT_ERR_FILE, "%s", line);
}

void *read_take(model_reader *r, size_t n, size_t item_bytes) {
    if (r->status != WEFT_OK)
        return NULL;
    void *p = load_arena_take(r->d->memory, n, item_bytes);
    if (p == NULL)
        r->status = error_set(r->err, WEFT_ERR_MEMORY, "no memory for %zu parts of a model", n);
    return p;
}

/* ---- keys ---- */

enum {
    KEY_BYTES = 160,
    MAX_SIZE = 1 << 20, /* of a head count or a width */
    MAX_LAYER = 1 << 12,
};

/* The source's own key; false when it has none, or something is wrong already. */
static bool key_of(const model_reader *r, const char *folder, const char *gguf, char *out,
                   size_t cap) {
    if (r->status != WEFT_OK || (r->folder ? folder : gguf) == NULL)
        return false;
    if (r->folder)
        snprintf(out, cap, "%s", folder);
    else
        snprintf(out, cap, "%s.%s", r->c->architecture, gguf);
    return true;
}

/* What a folder's class of transformers says for an absent member. */
static double default_of(const model_reader *r, const char *folder, double otherwise) {
    const model_default *d = r->folder && folder != NULL ? r->d->arch->defaults : NULL;
    for (; d != NULL && d->key != NULL; d++)
        if (strcmp(d->key, folder) == 0)
            return d->value;
    return otherwise;
}

int32_t read_int(model_reader *r, const char *folder, const char *gguf, int32_t lo, int32_t hi,
                 int32_t otherwise) {
    char key[KEY_BYTES];
    otherwise = (int32_t)default_of(r, folder, otherwise);
    int32_t n = otherwise;
    if (key_of(r, folder, gguf, key, sizeof key))
        r->status = load_get_int(r->file, key, otherwise == READ_MUST, lo, hi, &n, r->err);
    return n == READ_MUST ? lo : n;
}

double read_real(model_reader *r, const char *folder, const char *gguf, double lo, double hi,
                 double otherwise) {
    char key[KEY_BYTES];
    otherwise = default_of(r, folder, otherwise);
    double x = otherwise;
    if (key_of(r, folder, gguf, key, sizeof key))
        r->status = load_get_real(r->file, key, otherwise == (double)READ_MUST, lo, hi, &x, r->err);
    return x == (double)READ_MUST ? lo : x;
}

bool read_flag(model_reader *r, const char *folder, const char *gguf, bool otherwise) {
    char key[KEY_BYTES];
    bool flag = otherwise;
    if (key_of(r, folder, gguf, key, sizeof key))
        r->status = load_get_flag(r->file, key, false, &flag, r->err);
    return flag;
}

static bool text_is(load_string s, const char *text) {
    return s.data != NULL && s.bytes == strlen(text) && memcmp(s.data, text, s.bytes) == 0;
}

bool read_text_is(model_reader *r, const char *folder, const char *gguf, const char *text) {
    char key[KEY_BYTES];
    load_string s = {0};
    if (key_of(r, folder, gguf, key, sizeof key))
        r->status = load_get_text(r->file, key, false, &s, r->err);
    return text_is(s, text);
}

void read_only_int(model_reader *r, const char *folder, const char *gguf, int32_t value) {
    char key[KEY_BYTES], expected[64];
    snprintf(expected, sizeof expected, "%d, or no such key", value);
    if (read_int(r, folder, gguf, INT32_MIN + 1, INT32_MAX, value) != value &&
        key_of(r, folder, gguf, key, sizeof key))
        r->status = load_refuse(r->file, key, expected, r->err);
}

void read_only_flag(model_reader *r, const char *folder, const char *gguf, bool value) {
    char key[KEY_BYTES];
    if (read_flag(r, folder, gguf, value) != value && key_of(r, folder, gguf, key, sizeof key))
        r->status = load_refuse(r->file, key,
                                value ? "true, or no such key" : "false, or no such key", r->err);
}

void read_only_text(model_reader *r, const char *folder, const char *gguf, const char *value) {
    char key[KEY_BYTES], expected[96];
    snprintf(expected, sizeof expected, "%s, or no such key", value);
    if (!key_of(r, folder, gguf, key, sizeof key) || !load_has(r->file, key))
        return;
    if (!read_text_is(r, folder, gguf, value) && r->status == WEFT_OK)
        r->status = load_refuse(r->file, key, expected, r->err);
}

void read_product(model_reader *r, const char *what, int64_t a, int64_t b) {
    if (r->status == WEFT_OK && a * b > INT32_MAX / 4)
        read_fail(r, "%s: %lld x %lld, expected at most %d in all", what, (long long)a,
                  (long long)b, INT32_MAX / 4);
}

void read_member_must(model_reader *r, const char *folder) {
    if (r->status == WEFT_OK && r->folder && !load_has(r->file, folder))
        read_fail(r, "%s is missing from config.json", folder);
}

static const char layer_types[] = "layer_types";

static void read_layer_types(model_reader *r, bool *windowed) {
    if (load_array_length(r->file, layer_types) != r->c->n_layer) {
        read_fail(r, "layer_types has %d entries, expected num_hidden_layers %d",
                  load_array_length(r->file, layer_types), r->c->n_layer);
        return;
    }
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++) {
        load_string s = {0};
        r->status = load_array_text(r->file, layer_types, i, &s, r->err);
        windowed[i] = text_is(s, "sliding_attention");
        if (r->status == WEFT_OK && !windowed[i] && !text_is(s, "full_attention"))
            read_fail(r, "layer_types[%d] is %.*s, expected full_attention or sliding_attention", i,
                      (int)(s.bytes < 60 ? s.bytes : 60), s.data);
    }
}

/* GGUF's short form: every period'th layer has none. */
static bool read_window_period(model_reader *r, const char *key, bool *windowed) {
    if (r->folder || !load_has(r->file, key))
        return false;
    int32_t period = 1;
    r->status = load_get_int(r->file, key, true, 1, MAX_SIZE, &period, r->err);
    for (int32_t i = 0; i < r->c->n_layer; i++)
        windowed[i] = (i + 1) % period != 0;
    return true;
}

bool read_windows(model_reader *r, bool *windowed) {
    char key[KEY_BYTES];
    if (!key_of(r, layer_types, "attention.sliding_window_pattern", key, sizeof key))
        return false;
    if (load_array_length(r->file, key) < 0)
        return read_window_period(r, key, windowed);
    if (r->folder) {
        read_layer_types(r, windowed);
        return true;
    }
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++) {
        int32_t flag = 0;
        r->status = load_array_int(r->file, key, i, 0, 1, &flag, r->err);
        windowed[i] = flag == 1;
    }
    return true;
}

void read_unused_window(model_reader *r) {
    read_only_flag(r, "use_sliding_window", NULL, false);
    read_int(r, "sliding_window", NULL, 0, INT32_MAX, 0);
}

/* ---- sizes ---- */

/* The source's own name of a value, for messages. */
static const char *name_of(const model_reader *r, const char *folder, const char *gguf,
                           char out[KEY_BYTES]) {
    if (r->folder)
        return folder;
    snprintf(out, KEY_BYTES, "%s.%s", r->c->architecture, gguf);
    return out;
}

static void check_heads(model_reader *r, const model_layer *l, int32_t key, int32_t value) {
    char a[KEY_BYTES], b[KEY_BYTES], c[KEY_BYTES];
    const char *heads = name_of(r, "num_attention_heads", "attention.head_count", a);
    const char *width = name_of(r, "head_dim", "attention.key_length", b);
    if ((key == 0 || value == 0) && r->c->hidden % l->n_head != 0)
        read_fail(r, "%s %d does not divide %s %d, and %s does not say how wide a head is", heads,
                  l->n_head, name_of(r, "hidden_size", "embedding_length", c), r->c->hidden, width);
}

static void check_widths(model_reader *r, const model_layer *l, int32_t key, int32_t value) {
    char a[KEY_BYTES], b[KEY_BYTES];
    const char *heads = name_of(r, "num_attention_heads", "attention.head_count", a);
    const char *width = name_of(r, "head_dim", "attention.key_length", b);
    if (key != value)
        read_fail(r, "%s is %d and %s.attention.value_length %d, expected them equal", width, key,
                  r->c->architecture, value);
    else if (key % 2 != 0)
        read_fail(r, "%s is %d, expected an even number", width, key);
    else if ((int64_t)l->n_head * key > INT32_MAX / 4)
        read_fail(r, "%s %d heads of %s %d: expected at most %d in all", heads, l->n_head, width,
                  key, INT32_MAX / 4);
}

/* A number of layer i: GGUF may list one for each layer. */
static int32_t read_listed(model_reader *r, int32_t i, const char *folder, const char *gguf,
                           int32_t otherwise) {
    char key[KEY_BYTES];
    int32_t n = 0;
    if (r->folder || !key_of(r, NULL, gguf, key, sizeof key) || load_array_length(r->file, key) < 0)
        return read_int(r, folder, gguf, 1, MAX_SIZE, otherwise);
    if (load_array_length(r->file, key) != r->c->n_layer)
        read_fail(r, "%s has %d entries, expected block_count %d", key,
                  load_array_length(r->file, key), r->c->n_layer);
    else
        r->status = load_array_int(r->file, key, i, 1, MAX_SIZE, &n, r->err);
    return n;
}

int32_t read_kv_heads(model_reader *r, int32_t i, const char *folder, int32_t n_head,
                      int32_t otherwise) {
    static const char gguf[] = "attention.head_count_kv";
    char a[KEY_BYTES], b[KEY_BYTES];
    int32_t n = read_listed(r, i, folder, gguf, otherwise);
    if (r->status == WEFT_OK && n_head % n != 0)
        read_fail(r, "%s %d does not divide %s %d", name_of(r, folder, gguf, a), n,
                  name_of(r, "num_attention_heads", "attention.head_count", b), n_head);
    return n;
}

/* Of layer i; the heads where the source says nothing. */
static int32_t first_kv_heads(model_reader *r, int32_t i, int32_t n_head) {
    return read_kv_heads(r, i, "num_key_value_heads", n_head, n_head);
}

static int32_t read_ffn(model_reader *r, int32_t i) {
    return read_listed(r, i, "intermediate_size", "feed_forward_length", 0);
}

static void read_heads(model_reader *r, model_layer *l) {
    l->n_head = read_int(r, "num_attention_heads", "attention.head_count", 1, MAX_SIZE, READ_MUST);
    l->n_kv_head = first_kv_heads(r, 0, l->n_head);
}

static void read_head_widths(model_reader *r, model_layer *l) {
    int32_t key = read_int(r, "head_dim", "attention.key_length", 1, MAX_SIZE, 0);
    int32_t value = read_int(r, NULL, "attention.value_length", 1, MAX_SIZE, key);
    if (r->status != WEFT_OK)
        return;
    check_heads(r, l, key, value);
    key = key != 0 ? key : r->c->hidden / l->n_head;
    value = value != 0 ? value : r->c->hidden / l->n_head;
    check_widths(r, l, key, value);
    l->head_dim = l->value_dim = key;
    l->rope_dim = read_int(r, NULL, "rope.dimension_count", 2, key, key);
    if (l->rope_dim % 2 != 0)
        read_fail(r,
                  "%s.rope.dimension_count %d: expected an even number from 2 to the head size %d",
                  r->c->architecture, l->rope_dim, key);
    l->scale = 1.0f / sqrtf((float)key);
}

static void read_eps(model_reader *r) {
    double eps = read_real(r, "rms_norm_eps", "attention.layer_norm_rms_epsilon", 1e-30, 0.5,
                           (double)READ_MUST);
    r->c->rms_eps = (float)eps;
}

/* Tensors are distinct, so a layer count beyond those at hand is wrong; nothing is allocated by it
 * before this. */
static void check_layer_count(model_reader *r) {
    if (r->status == WEFT_OK && r->c->n_layer > load_tensor_count(r->file))
        read_fail(r, "%s is %d, but the files hold %d tensors in all",
                  r->folder ? "num_hidden_layers" : "block_count", r->c->n_layer,
                  load_tensor_count(r->file));
}

static void read_vocabulary(model_reader *r) {
    model_config *c = r->c;
    if (r->folder) {
        c->n_vocab = read_int(r, "vocab_size", NULL, 1, 1 << 26, READ_MUST);
        return;
    }
    /* the vocabulary is counted from the tokens; vocab_size only repeats it */
    c->n_vocab = load_get_vocab(r->file)->n_token;
    int32_t said = read_int(r, NULL, "vocab_size", 1, INT32_MAX, c->n_vocab);
    if (r->status == WEFT_OK && said != c->n_vocab)
        log_warn("%s: %s.vocab_size is %d, taken are the %d of tokenizer.ggml.tokens",
                 load_shown_name(r->file), c->architecture, said, c->n_vocab);
}

static void read_sizes_with(model_reader *r, void (*read_widths)(model_reader *, model_layer *)) {
    model_config *c = r->c;
    c->n_layer = read_int(r, "num_hidden_layers", "block_count", 1, MAX_LAYER, READ_MUST);
    c->hidden = read_int(r, "hidden_size", "embedding_length", 1, MAX_SIZE, READ_MUST);
    c->ffn = read_ffn(r, 0);
    c->context_length =
        read_int(r, "max_position_embeddings", "context_length", 1, INT32_MAX, READ_MUST);
    model_layer first = {.x_scale = 1.0f, .ffn = c->ffn};
    read_heads(r, &first);
    if (read_widths)
        read_widths(r, &first);
    read_eps(r);
    read_vocabulary(r);
    c->embed_scale = 1.0f;
    check_layer_count(r);
    r->d->layer = read_take(r, (size_t)c->n_layer, sizeof *r->d->layer);
    for (int32_t i = 0; r->d->layer && i < c->n_layer; i++) {
        r->d->layer[i] = first;
        r->d->layer[i].ffn = read_ffn(r, i);
        r->d->layer[i].n_kv_head = first_kv_heads(r, i, first.n_head);
        r->d->layer[i].kv_from = i;
    }
}

void read_sizes(model_reader *r) {
    read_sizes_with(r, read_head_widths);
}

void read_sizes_latent(model_reader *r) {
    read_sizes_with(r, NULL);
}

/* ---- tensors ---- */

const char *read_name(model_reader *r, int32_t layer, const char *folder, const char *gguf,
                      char *out, size_t cap) {
    if (layer >= 0)
        snprintf(out, cap, r->folder ? "model.layers.%d.%s" : "blk.%d.%s", layer,
                 r->folder ? folder : gguf);
    else
        snprintf(out, cap, "%s", r->folder ? folder : gguf);
    return out;
}

bool read_has(model_reader *r, int32_t layer, const char *folder, const char *gguf) {
    char name[KEY_BYTES];
    return (r->folder ? folder : gguf) != NULL &&
           load_find_tensor(r->file, read_name(r, layer, folder, gguf, name, sizeof name)) != NULL;
}

static void shape_text(const load_tensor *t, char *out, size_t cap) {
    size_t n = 0;
    for (int32_t i = 0; i < t->n_dim && n < cap; i++)
        n += (size_t)snprintf(out + n, cap - n, "%s%" PRId64, i > 0 ? ", " : "", t->dim[i]);
}

static const char known_types[] = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, "
                                  "Q5_K, Q6_K, IQ4_NL, IQ4_XS or MXFP4";

static void mark_used(model_reader *r, const load_tensor *t) {
    if (t != NULL)
        r->used[load_tensor_index(r->file, t)] = true;
}

/* The tensor of this name if it has n_row rows of n_in values, whatever their type. */
static const load_tensor *find_tensor(model_reader *r, const char *name, int64_t n_in,
                                      int64_t n_row) {
    if (r->status != WEFT_OK)
        return NULL;
    const load_tensor *t = load_find_tensor(r->file, name);
    if (t == NULL) {
        read_fail(r, "tensor %s is missing (the model has %d layers)", name, r->c->n_layer);
        return NULL;
    }
    char have[100] = "", expected[64];
    shape_text(t, have, sizeof have);
    if (t->dim[0] != n_in || t->dim[1] * t->dim[2] * t->dim[3] != n_row) {
        if (n_row == 1)
            snprintf(expected, sizeof expected, "[%" PRId64 "]", n_in);
        else
            snprintf(expected, sizeof expected, "[%" PRId64 ", %" PRId64 "]", n_in, n_row);
        r->status = error_set_at(r->err, WEFT_ERR_FILE, t->offset,
                                 "tensor %s has dimensions [%s], expected %s by the sizes in %s",
                                 name, have, expected, r->folder ? "config.json" : "the metadata");
        return NULL;
    }
    return t;
}

const load_tensor *read_tensor(model_reader *r, const char *name, int64_t n_in, int64_t n_row,
                               bool vector) {
    const load_tensor *t = find_tensor(r, name, n_in, n_row);
    if (t == NULL)
        return NULL;
    const dtype_info *type = dtype_find(t->ggml_type);
    if (type == NULL)
        r->status = error_set_at(r->err, WEFT_ERR_FILE, t->offset,
                                 "tensor %s has type %s: %s is not supported, expected %s", name,
                                 t->type_name, t->type_name, known_types);
    else if (vector && (type->quantised || (!r->folder && t->ggml_type != DTYPE_F32)))
        r->status = error_set_at(r->err, WEFT_ERR_FILE, t->offset,
                                 "tensor %s has type %s, expected %s for a norm or a bias", name,
                                 t->type_name, r->folder ? "F32, F16 or BF16" : "F32");
    if (r->status != WEFT_OK)
        return NULL;
    mark_used(r, t);
    return t;
}

/* Bytes that belong to MXFP4 blocks. */
static const load_tensor *read_bytes(model_reader *r, const char *name, const char *suffix,
                                     int64_t n_in, int64_t n_row) {
    char whole[KEY_BYTES];
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    const load_tensor *t = find_tensor(r, whole, n_in, n_row);
    if (t != NULL && strcmp(t->type_name, "U8") != 0)
        r->status = error_set_at(r->err, WEFT_ERR_FILE, t->offset,
                                 "tensor %s has type %s, expected U8 for a part of MXFP4 blocks",
                                 whole, t->type_name);
    mark_used(r, t);
    return r->status == WEFT_OK ? t : NULL;
}

model_matrix read_mxfp4(model_reader *r, const char *name, int64_t n_in, int64_t n_row) {
    enum { BLOCK = MODEL_MXFP4_BLOCK, CODE_BYTES = BLOCK / 2 };
    if (n_in % BLOCK != 0)
        read_fail(r, "%s_blocks: rows of %" PRId64 " values, expected a multiple of %d", name, n_in,
                  BLOCK);
    int64_t n_block = n_in / BLOCK;
    return (model_matrix){.t = read_bytes(r, name, "_blocks", CODE_BYTES, n_block * n_row),
                          .exponents = read_bytes(r, name, "_scales", n_block, n_row)};
}

void read_leave(model_reader *r, int32_t layer, const char *folder, const char *gguf) {
    char name[KEY_BYTES];
    mark_used(r, load_find_tensor(r->file, read_name(r, layer, folder, gguf, name, sizeof name)));
}

model_matrix matrix_whole(const load_tensor *t, int32_t n_out, int32_t n_in) {
    return (model_matrix){.t = t,
                          .n_out = n_out,
                          .n_in = n_in,
                          .group = n_out,
                          .group_stride = n_out,
                          .step = 1,
                          .n_stack = 1};
}

static model_matrix *put(model_reader *r, int32_t layer, model_role role, model_matrix m) {
    if (r->status != WEFT_OK)
        return NULL;
    r->d->layer[layer].m[role] = m;
    return &r->d->layer[layer].m[role];
}

model_matrix *read_matrix(model_reader *r, int32_t layer, model_role role, const char *folder,
                          const char *gguf, int32_t n_out, int32_t n_in) {
    char name[KEY_BYTES];
    const load_tensor *t =
        read_tensor(r, read_name(r, layer, folder, gguf, name, sizeof name), n_in, n_out, false);
    return put(r, layer, role, matrix_whole(t, n_out, n_in));
}

model_matrix *read_vector(model_reader *r, int32_t layer, model_role role, const char *folder,
                          const char *gguf, int32_t n) {
    char name[KEY_BYTES];
    const load_tensor *t =
        read_tensor(r, read_name(r, layer, folder, gguf, name, sizeof name), n, 1, true);
    return put(r, layer, role, matrix_whole(t, n, 1));
}

float read_scalar(model_reader *r, int32_t layer, const char *folder, const char *gguf) {
    char name[KEY_BYTES];
    const load_tensor *t =
        read_tensor(r, read_name(r, layer, folder, gguf, name, sizeof name), 1, 1, true);
    float x = 1.0f;
    if (t != NULL)
        dtype_to_f32((dtype)t->ggml_type, t->data, 1, &x);
    return x;
}

void pair_rows(model_matrix *m, int32_t head_dim, int32_t pair_dim) {
    if (m == NULL)
        return;
    m->group = m->group_stride = head_dim;
    m->pair_dim = pair_dim;
}

/* ---- parts that many architectures have ---- */

static model_matrix end_vector(model_reader *r, const char *folder, const char *gguf, int32_t n,
                               bool plus_one) {
    model_matrix m = matrix_whole(read_tensor(r, r->folder ? folder : gguf, n, 1, true), n, 1);
    m.plus_one = plus_one && r->folder; /* GGUF's converter has added it */
    return m;
}

void read_ends(model_reader *r, bool plus_one) {
    const char *embed = r->folder ? "model.embed_tokens.weight" : "token_embd.weight";
    const char *head = r->folder ? "lm_head.weight" : "output.weight";
    int32_t vocab = r->c->n_vocab, hidden = r->c->hidden;
    model_desc *d = r->d;
    d->embed = matrix_whole(read_tensor(r, embed, hidden, vocab, false), vocab, hidden);
    d->output_norm = end_vector(r, "model.norm.weight", "output_norm.weight", hidden, plus_one);
    bool has_head = load_find_tensor(r->file, head) != NULL;
    bool tied = read_flag(r, "tie_word_embeddings", NULL, !has_head);
    d->head =
        tied ? d->embed : matrix_whole(read_tensor(r, head, hidden, vocab, false), vocab, hidden);
    if (tied && has_head && r->status == WEFT_OK)
        read_tensor(r, head, hidden, vocab, false); /* a copy of the embedding */
    r->c->tied_output = tied;
}

model_matrix *read_norm(model_reader *r, int32_t i, model_role role, const char *folder,
                        const char *gguf, int32_t n, bool plus_one) {
    model_matrix *m = read_vector(r, i, role, folder, gguf, n);
    if (m != NULL)
        m->plus_one = plus_one && r->folder;
    return m;
}

static void read_gqa_layer(model_reader *r, read_gqa_form form, int32_t i) {
    model_layer *l = &r->d->layer[i];
    int32_t hidden = r->c->hidden, d = l->head_dim;
    int32_t q = l->n_head * d, kv = l->n_kv_head * d, pair = form.halves ? l->rope_dim : 0;
    bool own = l->kv_from == i;
    read_norm(r, i, MODEL_ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", hidden,
              form.plus_one);
    pair_rows(read_matrix(r, i, MODEL_Q, "self_attn.q_proj.weight", "attn_q.weight", q, hidden), d,
              pair);
    if (own) {
        pair_rows(
            read_matrix(r, i, MODEL_K, "self_attn.k_proj.weight", "attn_k.weight", kv, hidden), d,
            pair);
        if (l->v_is_k && r->status == WEFT_OK)
            l->m[MODEL_V] = matrix_whole(l->m[MODEL_K].t, kv, hidden);
        else
            read_matrix(r, i, MODEL_V, "self_attn.v_proj.weight", "attn_v.weight", kv, hidden);
    }
    read_matrix(r, i, MODEL_O, "self_attn.o_proj.weight", "attn_output.weight", hidden, q);
    if (form.qkv_bias) {
        pair_rows(read_vector(r, i, MODEL_Q_BIAS, "self_attn.q_proj.bias", "attn_q.bias", q), d,
                  pair);
        pair_rows(read_vector(r, i, MODEL_K_BIAS, "self_attn.k_proj.bias", "attn_k.bias", kv), d,
                  pair);
        read_vector(r, i, MODEL_V_BIAS, "self_attn.v_proj.bias", "attn_v.bias", kv);
    }
    if (form.o_bias)
        read_vector(r, i, MODEL_O_BIAS, "self_attn.o_proj.bias", "attn_output.bias", hidden);
    if (form.head_norms) {
        pair_rows(read_norm(r, i, MODEL_Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", d,
                            form.plus_one),
                  d, pair);
        if (own)
            pair_rows(read_norm(r, i, MODEL_K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight",
                                d, form.plus_one),
                      d, pair);
    }
}

void read_gqa(model_reader *r, read_gqa_form form) {
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++)
        read_gqa_layer(r, form, i);
}

void read_mlp(model_reader *r, const char *norm_folder, const char *norm_gguf, bool plus_one) {
    int32_t hidden = r->c->hidden;
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++) {
        int32_t ffn = r->d->layer[i].ffn;
        read_norm(r, i, MODEL_FFN_NORM, norm_folder, norm_gguf, hidden, plus_one);
        if (ffn == 0)
            continue;
        read_matrix(r, i, MODEL_GATE, "mlp.gate_proj.weight", "ffn_gate.weight", ffn, hidden);
        read_matrix(r, i, MODEL_UP, "mlp.up_proj.weight", "ffn_up.weight", ffn, hidden);
        read_matrix(r, i, MODEL_DOWN, "mlp.down_proj.weight", "ffn_down.weight", hidden, ffn);
    }
}

/* A stack of matrices: one tensor that holds all (GGUF), or one each. folder: with %d for the expert. */
static void read_stack(model_reader *r, int32_t layer, model_role role, const char *folder,
                       const char *gguf, int32_t n_out, int32_t n_in) {
    int32_t n = r->c->moe.n_expert;
    char name[KEY_BYTES], one[KEY_BYTES];
    model_matrix m = matrix_whole(NULL, n_out, n_in);
    m.n_stack = n;
    if (!r->folder) {
        m.t = read_tensor(r, read_name(r, layer, folder, gguf, name, sizeof name), n_in,
                          (int64_t)n_out * n, false);
        m.stack_rows = n_out;
        put(r, layer, role, m);
        return;
    }
    const load_tensor **stack = read_take(r, (size_t)n, sizeof *stack);
    for (int32_t e = 0; e < n && r->status == WEFT_OK; e++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(one, sizeof one, folder, e);
#pragma GCC diagnostic pop
        stack[e] =
            read_tensor(r, read_name(r, layer, one, NULL, name, sizeof name), n_in, n_out, false);
        if (stack[e] != NULL && stack[e]->ggml_type != stack[0]->ggml_type)
            read_fail(r, "tensor %s has type %s, expected %s as expert 0 has", name,
                      stack[e]->type_name, stack[0]->type_name);
    }
    m.stack = stack;
    m.t = r->status == WEFT_OK ? stack[0] : NULL;
    put(r, layer, role, m);
}

void read_experts(model_reader *r, int32_t i, const char *gate, const char *up, const char *down) {
    int32_t hidden = r->c->hidden, ffn = r->c->moe.ffn;
    read_stack(r, i, MODEL_EXPERT_GATE, gate, "ffn_gate_exps.weight", ffn, hidden);
    read_stack(r, i, MODEL_EXPERT_UP, up, "ffn_up_exps.weight", ffn, hidden);
    read_stack(r, i, MODEL_EXPERT_DOWN, down, "ffn_down_exps.weight", hidden, ffn);
}
