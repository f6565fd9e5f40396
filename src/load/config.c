/* Metadata keys -> load_config, and the refusal of everything that would change the result and that
 * weft does not compute. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "load/model.h"

enum { MAX_SIZE = 1 << 20 }; /* of a layer count, a head count or a width */

/* A required count in lo..hi. */
static weft_status need_count(const gguf_file *f, const char *key, int32_t hi, int32_t *out,
                              weft_error *err) {
    const gguf_value *v;
    weft_status s = gguf_get(f, key, GGUF_U32, false, true, &v, err);
    if (s != WEFT_OK) {
        return s;
    }
    uint32_t n = gguf_u32(v);
    if (n < 1 || n > (uint32_t)hi) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(f, v), "%s is %u, expected 1 to %d",
                            key, n, hi);
    }
    *out = (int32_t)n;
    return WEFT_OK;
}

/* The same; *out stays as it is when the key is absent. */
static weft_status want_count(const gguf_file *f, const char *key, int32_t hi, int32_t *out,
                              weft_error *err) {
    return gguf_find(f, key) == NULL ? WEFT_OK : need_count(f, key, hi, out, err);
}

static weft_status string_of(const gguf_file *f, const char *key, bool required, load_string *out,
                             weft_error *err) {
    const gguf_value *v;
    weft_status s = gguf_get(f, key, GGUF_STRING, false, required, &v, err);
    if (s == WEFT_OK) {
        *out = v != NULL ? gguf_string(v) : (load_string){0};
    }
    return s;
}

static bool is(load_string s, const char *text) {
    return s.bytes == strlen(text) && memcmp(s.data, text, s.bytes) == 0;
}

/* ---- what kind of file it is ---- */

/* A part of a model that was cut into several files has its own message: else it would be called a
 * file with tensors missing. */
static weft_status check_split(const gguf_file *f, weft_error *err) {
    const gguf_value *count = gguf_find(f, "split.count"), *no = gguf_find(f, "split.no");
    double n = 0, i = 0;
    if (count == NULL || !gguf_number(count, &n) || n <= 1) {
        return WEFT_OK;
    }
    if (no != NULL && gguf_number(no, &i)) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(f, count),
                            "split.count is %g: this is part %g of a model in %g files; merge the "
                            "parts into one file first",
                            n, i + 1, n);
    }
    return error_set_at(err, WEFT_ERR_FILE, gguf_offset(f, count),
                        "split.count is %g: this is one part of a model; merge the parts into one "
                        "file first",
                        n);
}

static weft_status check_kind(const gguf_file *f, weft_error *err) {
    load_string text;
    char shown[100];
    weft_status s = string_of(f, "general.architecture", true, &text, err);
    if (s != WEFT_OK) {
        return s;
    }
    if (!is(text, "llama")) {
        text_show(text, shown, sizeof shown);
        return error_set(err, WEFT_ERR_FILE,
                         "general.architecture %s is not supported, expected llama", shown);
    }
    if ((s = string_of(f, "general.type", false, &text, err)) != WEFT_OK) {
        return s;
    }
    if (text.data != NULL && !is(text, "model")) {
        text_show(text, shown, sizeof shown);
        return error_set(err, WEFT_ERR_FILE, "general.type is %s, expected model", shown);
    }
    const gguf_value *v;
    s = gguf_get(f, "general.quantization_version", GGUF_U32, false, false, &v, err);
    if (s == WEFT_OK && v != NULL && gguf_u32(v) != 2) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(f, v),
                            "general.quantization_version %u is not supported, expected 2",
                            gguf_u32(v));
    }
    return s != WEFT_OK ? s : check_split(f, err);
}

/* ---- keys that weft reads, keys that change nothing, keys that it must refuse ---- */

/* Under "llama.": read below, or of no influence on the result. */
static const char *const known_keys[] = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "tensor_data_layout",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    /* only looked at by scalings, which are refused by their type */
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
};

/* Under "llama.": features that weft does not compute, with the value that switches each off. */
static const struct {
    const char *key;
    double off;
} features[] = {
    {"rope.scaling.factor", 1},       {"rope.scaling.attn_factor", 1},
    {"rope.scale_linear", 1},         {"expert_count", 0},
    {"expert_used_count", 0},         {"expert_shared_count", 0},
    {"leading_dense_block_count", 0}, {"attention.sliding_window", 0},
    {"attention.clamp_kqv", 0},       {"attention.max_alibi_bias", 0},
    {"attention.causal", 1},          {"attention.q_lora_rank", 0},
    {"attention.kv_lora_rank", 0},    {"attention.shared_kv_layers", 0},
    {"attn_logit_softcapping", 0},    {"router_logit_softcapping", 0},
    {"final_logit_softcapping", 0},   {"logit_scale", 1},
    {"embedding_scale", 1},           {"residual_scale", 1},
    {"use_parallel_residual", 0},     {"swin_norm", 0},
    {"nextn_predict_layers", 0},      {"pooling_type", 0},
};

/* Where an unknown key is certainly part of the computation. */
static const char *const strict_groups[] = {"attention.", "rope.", "expert_", "ssm.", "wkv."};

static weft_status refuse(const gguf_file *f, int32_t i, const char *expected, weft_error *err) {
    char value[100];
    gguf_value_text(&f->value[i], value, sizeof value);
    return error_set_at(err, WEFT_ERR_FILE, gguf_offset(f, &f->value[i]),
                        "%.100s is %s: weft does not compute this, expected %s", f->key[i].data,
                        value, expected);
}

static weft_status check_feature(const gguf_file *f, int32_t i, const char *rest,
                                 const char *file_name, weft_error *err) {
    for (size_t k = 0; k < sizeof known_keys / sizeof known_keys[0]; k++) {
        if (strcmp(rest, known_keys[k]) == 0) {
            return WEFT_OK;
        }
    }
    const gguf_value *v = &f->value[i];
    if (strcmp(rest, "rope.scaling.type") == 0) {
        bool none = !v->is_array && v->type == GGUF_STRING && is(gguf_string(v), "none");
        return none ? WEFT_OK : refuse(f, i, "none, or no such key", err);
    }
    for (size_t k = 0; k < sizeof features / sizeof features[0]; k++) {
        if (strcmp(rest, features[k].key) == 0) {
            double value;
            char expected[64];
            snprintf(expected, sizeof expected, "%g, or no such key", features[k].off);
            bool off = gguf_number(v, &value) && value == features[k].off;
            return off ? WEFT_OK : refuse(f, i, expected, err);
        }
    }
    for (size_t k = 0; k < sizeof strict_groups / sizeof strict_groups[0]; k++) {
        if (strncmp(rest, strict_groups[k], strlen(strict_groups[k])) == 0) {
            return refuse(f, i, "no such key", err);
        }
    }
    log_warn("%s: %.100s is not known to weft and not used", file_name, f->key[i].data);
    return WEFT_OK;
}

static weft_status check_features(const gguf_file *f, const char *file_name, weft_error *err) {
    for (int32_t i = 0; i < f->n_key; i++) {
        if (strncmp(f->key[i].data, "llama.", 6) == 0) {
            weft_status s = check_feature(f, i, f->key[i].data + 6, file_name, err);
            if (s != WEFT_OK) {
                return s;
            }
        }
    }
    return WEFT_OK;
}

/* ---- values ---- */

static weft_status read_heads(const gguf_file *f, load_config *c, weft_error *err) {
    weft_status s = need_count(f, "llama.attention.head_count", MAX_SIZE, &c->n_head, err);
    if (s != WEFT_OK) {
        return s;
    }
    c->n_kv_head = c->n_head; /* what the format says for an absent key */
    s = want_count(f, "llama.attention.head_count_kv", MAX_SIZE, &c->n_kv_head, err);
    if (s != WEFT_OK) {
        return s;
    }
    if (c->n_head % c->n_kv_head != 0) {
        return error_set(err, WEFT_ERR_FILE,
                         "llama.attention.head_count_kv %d does not divide "
                         "llama.attention.head_count %d",
                         c->n_kv_head, c->n_head);
    }
    int32_t key_length = 0, value_length = 0;
    if ((s = want_count(f, "llama.attention.key_length", MAX_SIZE, &key_length, err)) != WEFT_OK ||
        (s = want_count(f, "llama.attention.value_length", MAX_SIZE, &value_length, err)) !=
            WEFT_OK) {
        return s;
    }
    if ((key_length == 0 || value_length == 0) && c->hidden % c->n_head != 0) {
        return error_set(err, WEFT_ERR_FILE,
                         "llama.attention.head_count %d does not divide llama.embedding_length %d, "
                         "and llama.attention.key_length and value_length do not both say how wide "
                         "a head is",
                         c->n_head, c->hidden);
    }
    key_length = key_length != 0 ? key_length : c->hidden / c->n_head;
    value_length = value_length != 0 ? value_length : c->hidden / c->n_head;
    if (key_length != value_length || key_length % 2 != 0) {
        return error_set(err, WEFT_ERR_FILE,
                         "llama.attention.key_length is %d and llama.attention.value_length %d, "
                         "expected them equal and even",
                         key_length, value_length);
    }
    if ((int64_t)c->n_head * key_length > INT32_MAX / 4) {
        return error_set(err, WEFT_ERR_FILE,
                         "llama.attention.head_count %d heads of llama.attention.key_length %d: "
                         "expected at most %d in all",
                         c->n_head, key_length, INT32_MAX / 4);
    }
    c->head_dim = key_length;
    return WEFT_OK;
}

static weft_status read_rope(const gguf_file *f, load_config *c, weft_error *err) {
    const gguf_value *v;
    weft_status s = gguf_get(f, "llama.rope.dimension_count", GGUF_U32, false, false, &v, err);
    if (s != WEFT_OK) {
        return s;
    }
    uint32_t dim = v != NULL ? gguf_u32(v) : (uint32_t)c->head_dim;
    if (dim < 2 || dim % 2 != 0 || dim > (uint32_t)c->head_dim) {
        return error_set_at(err, WEFT_ERR_FILE, v != NULL ? gguf_offset(f, v) : -1,
                            "llama.rope.dimension_count %u: expected an even number from 2 to the "
                            "head size %d",
                            dim, c->head_dim);
    }
    c->rope_dim = (int32_t)dim;
    if ((s = gguf_get(f, "llama.rope.freq_base", GGUF_F32, false, false, &v, err)) != WEFT_OK) {
        return s;
    }
    c->rope_base = v != NULL ? (double)gguf_f32(v) : 10000.0; /* the format's default */
    if (!isfinite(c->rope_base) || c->rope_base < 1) {
        return error_set(err, WEFT_ERR_FILE,
                         "llama.rope.freq_base is %g, expected a finite number of at least 1",
                         c->rope_base);
    }
    return WEFT_OK;
}

static weft_status read_eps(const gguf_file *f, load_config *c, weft_error *err) {
    static const char key[] = "llama.attention.layer_norm_rms_epsilon";
    const gguf_value *v;
    weft_status s = gguf_get(f, key, GGUF_F32, false, true, &v, err);
    if (s != WEFT_OK) {
        return s;
    }
    c->rms_eps = gguf_f32(v);
    if (!(c->rms_eps > 0) || !(c->rms_eps < 1)) {
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(f, v),
                            "%s is %g, expected a number above 0 and below 1", key,
                            (double)c->rms_eps);
    }
    return WEFT_OK;
}

/* general.name, or the file's name. */
static weft_status read_model_name(load_model *m, weft_error *err) {
    load_string text;
    weft_status s = string_of(&m->file, "general.name", false, &text, err);
    if (s != WEFT_OK || text.data == NULL || text.bytes == 0) {
        m->config.name = m->shown_name;
        return s;
    }
    enum { NAME_BYTES = 256 };
    char *copy = load_arena_take(&m->arena, NAME_BYTES, 1);
    if (copy == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for general.name");
    }
    text_show(text, copy, NAME_BYTES);
    m->config.name = copy;
    return WEFT_OK;
}

weft_status load_read_config(load_model *m, weft_error *err) {
    const gguf_file *f = &m->file;
    load_config *c = &m->config;
    c->architecture = "llama";
    weft_status s;
    if ((s = check_kind(f, err)) != WEFT_OK || (s = read_model_name(m, err)) != WEFT_OK ||
        (s = need_count(f, "llama.block_count", MAX_SIZE, &c->n_layer, err)) != WEFT_OK ||
        (s = need_count(f, "llama.embedding_length", MAX_SIZE, &c->hidden, err)) != WEFT_OK ||
        (s = need_count(f, "llama.feed_forward_length", MAX_SIZE, &c->ffn, err)) != WEFT_OK ||
        (s = need_count(f, "llama.context_length", INT32_MAX, &c->context_length, err)) !=
            WEFT_OK ||
        (s = read_heads(f, c, err)) != WEFT_OK || (s = read_rope(f, c, err)) != WEFT_OK ||
        (s = read_eps(f, c, err)) != WEFT_OK) {
        return s;
    }
    return check_features(f, m->shown_name, err);
}
