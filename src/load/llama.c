/* Tensor table -> load_llama: every weight of a llama model is there, in the shape that the config
 * says and in a type that weft computes with; and no weight that it would have to ignore. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "load/model.h"

static const char *type_name(const load_tensor *t) {
    return dtype_ggml_name(t->ggml_type, NULL, NULL); /* gguf_read knows every type it let pass */
}

/* n == 1 with norm: a vector of k values, which must be F32. */
static weft_status check_weight(const load_tensor *t, int64_t k, int64_t n, bool norm,
                                const char *why, weft_error *err) {
    char expected[64];
    if (norm) {
        snprintf(expected, sizeof expected, "[%" PRId64 "]", k);
    } else {
        snprintf(expected, sizeof expected, "[%" PRId64 ", %" PRId64 "]", k, n);
    }
    if (t->dim[0] != k || t->dim[1] != n || t->dim[2] != 1 || t->dim[3] != 1) {
        char have[4 * 22 + 2] = "[";
        for (int32_t i = 0; i < t->n_dim; i++) {
            size_t to = strlen(have);
            snprintf(have + to, sizeof have - to, "%s%" PRId64, i > 0 ? ", " : "", t->dim[i]);
        }
        return error_set_at(err, WEFT_ERR_FILE, t->offset,
                            "tensor %s has dimensions %s], expected %s (%s)", t->name, have,
                            expected, why);
    }
    if (norm && t->ggml_type != DTYPE_F32) {
        return error_set_at(err, WEFT_ERR_FILE, t->offset,
                            "tensor %s has type %s, expected F32 for a norm", t->name,
                            type_name(t));
    }
    if (dtype_find(t->ggml_type) == NULL) {
        return error_set_at(err, WEFT_ERR_FILE, t->offset,
                            "tensor %s has type %s: %s is not supported, expected F32, F16, BF16, "
                            "Q8_0, Q4_0 or Q4_1",
                            t->name, type_name(t), type_name(t));
    }
    return WEFT_OK;
}

/* ---- the layers ---- */

enum { SIZE_ONE, SIZE_HIDDEN, SIZE_FFN, SIZE_Q, SIZE_KV };

static const struct {
    const char *name;
    size_t member; /* of load_llama_layer */
    int32_t k, n;  /* SIZE_ONE as n: a norm */
    const char *why;
} layer_weights[] = {
    {"attn_norm", offsetof(load_llama_layer, attn_norm), SIZE_HIDDEN, SIZE_ONE,
     "llama.embedding_length"},
    {"attn_q", offsetof(load_llama_layer, attn_q), SIZE_HIDDEN, SIZE_Q,
     "llama.embedding_length, head_count x head size"},
    {"attn_k", offsetof(load_llama_layer, attn_k), SIZE_HIDDEN, SIZE_KV,
     "llama.embedding_length, head_count_kv x head size"},
    {"attn_v", offsetof(load_llama_layer, attn_v), SIZE_HIDDEN, SIZE_KV,
     "llama.embedding_length, head_count_kv x head size"},
    {"attn_output", offsetof(load_llama_layer, attn_o), SIZE_Q, SIZE_HIDDEN,
     "head_count x head size, llama.embedding_length"},
    {"ffn_norm", offsetof(load_llama_layer, ffn_norm), SIZE_HIDDEN, SIZE_ONE,
     "llama.embedding_length"},
    {"ffn_gate", offsetof(load_llama_layer, ffn_gate), SIZE_HIDDEN, SIZE_FFN,
     "llama.embedding_length, llama.feed_forward_length"},
    {"ffn_up", offsetof(load_llama_layer, ffn_up), SIZE_HIDDEN, SIZE_FFN,
     "llama.embedding_length, llama.feed_forward_length"},
    {"ffn_down", offsetof(load_llama_layer, ffn_down), SIZE_FFN, SIZE_HIDDEN,
     "llama.feed_forward_length, llama.embedding_length"},
};
enum { N_LAYER_WEIGHT = sizeof layer_weights / sizeof layer_weights[0] };

static int64_t size_of(const load_config *c, int32_t which) {
    switch (which) {
    case SIZE_HIDDEN:
        return c->hidden;
    case SIZE_FFN:
        return c->ffn;
    case SIZE_Q:
        return (int64_t)c->n_head * c->head_dim;
    case SIZE_KV:
        return (int64_t)c->n_kv_head * c->head_dim;
    default:
        return 1;
    }
}

static const load_tensor *layer_tensor(const gguf_file *f, int32_t layer, int32_t w) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, layer_weights[w].name);
    return gguf_find_tensor(f, name);
}

/* Names are distinct, so a block_count beyond the tensors at hand ends after as many look-ups as
 * there are tensors. Nothing is allocated by block_count before this has passed. */
static weft_status check_layers(const load_model *m, weft_error *err) {
    const load_config *c = &m->config;
    for (int32_t l = 0; l < c->n_layer; l++) {
        for (int32_t w = 0; w < N_LAYER_WEIGHT; w++) {
            const load_tensor *t = layer_tensor(&m->file, l, w);
            if (t == NULL) {
                return error_set(err, WEFT_ERR_FILE,
                                 "tensor blk.%d.%s.weight is missing (llama.block_count is %d)", l,
                                 layer_weights[w].name, c->n_layer);
            }
            weft_status s =
                check_weight(t, size_of(c, layer_weights[w].k), size_of(c, layer_weights[w].n),
                             layer_weights[w].n == SIZE_ONE, layer_weights[w].why, err);
            if (s != WEFT_OK) {
                return s;
            }
        }
    }
    const load_tensor *more = layer_tensor(&m->file, c->n_layer, 0);
    if (more != NULL) {
        return error_set_at(err, WEFT_ERR_FILE, more->offset,
                            "llama.block_count is %d, but the file has a layer more: %s",
                            c->n_layer, more->name);
    }
    return WEFT_OK;
}

static weft_status fill_layers(load_model *m, weft_error *err) {
    size_t n = (size_t)m->config.n_layer;
    load_llama_layer *layer = load_arena_take(&m->arena, n, sizeof *layer);
    if (layer == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %zu layers", n);
    }
    for (int32_t l = 0; l < m->config.n_layer; l++) {
        for (int32_t w = 0; w < N_LAYER_WEIGHT; w++) {
            const load_tensor *t = layer_tensor(&m->file, l, w);
            memcpy((char *)&layer[l] + layer_weights[w].member, &t, sizeof t);
        }
    }
    m->llama.layer = layer;
    return WEFT_OK;
}

/* ---- tensors that are not llama's ---- */

/* Endings and stems of tensors that take part in the computation of relatives of llama. Ignoring
 * one would give fluent wrong text. A stem is what stands after "blk.N.", or the whole name. */
static const char *const refused_ends[] = {".bias", ".scale", ".input_scale"};
static const char *const refused_stems[] = {
    "rope_freqs.",     "rope_factors_",   "attn_q_norm.",  "attn_k_norm.",  "attn_qkv.",
    "attn_post_norm.", "attn_sub_norm",   "attn_sinks.",   "attn_norm_2.",  "attn_gate.",
    "ffn_sub_norm",    "ffn_gate_",       "ffn_up_",       "ffn_down_",     "ffn_post_norm",
    "ffn_norm_exps",   "post_attention_", "post_ffw_norm", "layer_output_", "token_embd_norm.",
    "position_embd.",  "token_types.",    "exp_probs_b",   "per_layer_",    "nextn.",
};

static const char *stem_of(const char *name) {
    if (strncmp(name, "blk.", 4) != 0) {
        return name;
    }
    const char *dot = strchr(name + 4, '.');
    return dot != NULL ? dot + 1 : name;
}

static bool is_refused(const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof refused_ends / sizeof refused_ends[0]; i++) {
        size_t end = strlen(refused_ends[i]);
        if (n >= end && strcmp(name + n - end, refused_ends[i]) == 0) {
            return true;
        }
    }
    const char *stem = stem_of(name);
    for (size_t i = 0; i < sizeof refused_stems / sizeof refused_stems[0]; i++) {
        if (strncmp(stem, refused_stems[i], strlen(refused_stems[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* Marks the tensors that the model uses; used: [n_tensor], zeroed. */
static void mark_used(const load_model *m, bool *used) {
    const load_tensor *first = m->file.tensor;
    used[m->llama.token_embd - first] = true;
    used[m->llama.output_norm - first] = true;
    used[m->llama.output - first] = true;
    for (int32_t l = 0; l < m->config.n_layer; l++) {
        for (int32_t w = 0; w < N_LAYER_WEIGHT; w++) {
            used[layer_tensor(&m->file, l, w) - first] = true;
        }
    }
}

/* One warning for all: a foreign file may hold thousands. */
static weft_status check_extra(load_model *m, weft_error *err) {
    size_t n = (size_t)m->file.n_tensor;
    bool *used = load_arena_take(&m->arena, n, sizeof *used);
    if (used == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %zu tensors", n);
    }
    mark_used(m, used);
    const char *first = NULL;
    int32_t n_extra = 0;
    for (size_t i = 0; i < n; i++) {
        const load_tensor *t = &m->file.tensor[i];
        if (!used[i] && is_refused(t->name)) {
            return error_set_at(err, WEFT_ERR_FILE, t->offset,
                                "tensor %s: weft does not compute with it, expected a llama model "
                                "without it",
                                t->name);
        }
        if (!used[i] && n_extra++ == 0) {
            first = t->name;
        }
    }
    if (n_extra > 0) {
        log_warn("%s: %d tensors are not part of a llama model and not used, the first is %s",
                 m->shown_name, n_extra, first);
    }
    return WEFT_OK;
}

static weft_status find_needed(const gguf_file *f, const char *name, const load_tensor **out,
                               weft_error *err) {
    *out = gguf_find_tensor(f, name);
    return *out != NULL ? WEFT_OK : error_set(err, WEFT_ERR_FILE, "tensor %s is missing", name);
}

/* The vocabulary is counted from the tokens; llama.vocab_size only repeats it. */
static weft_status check_vocab_size(const load_model *m, weft_error *err) {
    const gguf_value *v;
    weft_status s = gguf_get(&m->file, "llama.vocab_size", GGUF_U32, false, false, &v, err);
    if (s == WEFT_OK && v != NULL && gguf_u32(v) != (uint32_t)m->config.n_vocab) {
        log_warn("%s: llama.vocab_size is %u, taken are the %d of tokenizer.ggml.tokens",
                 m->shown_name, gguf_u32(v), m->config.n_vocab);
    }
    return s;
}

weft_status load_read_llama(load_model *m, weft_error *err) {
    static const char why[] = "llama.embedding_length, entries of tokenizer.ggml.tokens";
    const gguf_file *f = &m->file;
    const load_config *c = &m->config;
    load_llama *w = &m->llama;
    weft_status s;
    if ((s = find_needed(f, "token_embd.weight", &w->token_embd, err)) != WEFT_OK ||
        (s = find_needed(f, "output_norm.weight", &w->output_norm, err)) != WEFT_OK) {
        return s;
    }
    w->output = gguf_find_tensor(f, "output.weight");
    m->config.tied_output = w->output == NULL;
    w->output = w->output == NULL ? w->token_embd : w->output;
    if ((s = check_vocab_size(m, err)) != WEFT_OK ||
        (s = check_weight(w->token_embd, c->hidden, c->n_vocab, false, why, err)) != WEFT_OK ||
        (s = check_weight(w->output_norm, c->hidden, 1, true, "llama.embedding_length", err)) !=
            WEFT_OK ||
        (s = check_weight(w->output, c->hidden, c->n_vocab, false, why, err)) != WEFT_OK ||
        (s = check_layers(m, err)) != WEFT_OK || (s = check_extra(m, err)) != WEFT_OK) {
        return s;
    }
    return fill_layers(m, err);
}
