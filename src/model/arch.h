/* What a file of an architecture is made of, and what it is made with.
 *
 * An architecture is a record: its names in the two sources, a function that fills the description
 * (which key is which size, which tensor is which matrix), and a layer program (program.h). The
 * description is read with the functions here; they do nothing once r->status says that something is
 * wrong, so a describing function reads from top to bottom without checks between. */
#ifndef WEFT_MODEL_ARCH_H
#define WEFT_MODEL_ARCH_H

#include "model/model.h"

typedef struct model_reader {
    load_model *file;
    model_desc *d;
    model_config *c; /* &d->config */
    bool folder;     /* of Hugging Face; else GGUF */
    bool *used;      /* [tensors] */
    bool coded;      /* a folder with a quantization_config, of the architecture's quant_method */
    /* Of a folder that holds more than a language model: model_type that its text_config has, and how
     * its tensors' names begin; NULL: it holds no more. */
    const char *inner_type, *wrapped;
    int32_t n_nextn; /* layers behind the last that stay unused (multi-token prediction) */
    weft_status status;
    weft_error *err;
} model_reader;

typedef struct model_default {
    const char *key;
    double value;
} model_default;

struct model_arch {
    const char *name;       /* GGUF's general.architecture, and what weft calls it */
    const char *model_type; /* config.json's */
    /* of a quantization_config that describe() follows; NULL: none */
    const char *quant_method;
    /* Numbers that config.json may leave out, as transformers' class has them; NULL: none. The last
     * has no key. */
    const model_default *defaults;
    void (*describe)(model_reader *r);
    weft_status (*layer)(model_rank *r, const model_step *s, int32_t i); /* program.h */
};

extern const model_arch model_llama, model_mistral, model_mixtral, model_qwen2, model_qwen3,
    model_qwen3moe, model_gemma3, model_gemma4, model_gpt_oss, model_deepseek2, model_deepseek3;

/* WEFT_ERR_FILE, printf style; the first failure stays. */
void read_fail(model_reader *r, const char *text, ...) __attribute__((format(printf, 2, 3)));
/* Zeroed, lives as long as the description. NULL: r->status says so. */
void *read_take(model_reader *r, size_t n, size_t item_bytes);

/* ---- keys ----
 * `folder` is the path in config.json, `gguf` the key behind "<architecture>."; NULL: the source has
 * none. An absent key gives `otherwise`; READ_MUST: the key must be there. */
#define READ_MUST INT32_MIN
int32_t read_int(model_reader *r, const char *folder, const char *gguf, int32_t lo, int32_t hi,
                 int32_t otherwise);
double read_real(model_reader *r, const char *folder, const char *gguf, double lo, double hi,
                 double otherwise);
bool read_flag(model_reader *r, const char *folder, const char *gguf, bool otherwise);
/* False when absent. */
bool read_text_is(model_reader *r, const char *folder, const char *gguf, const char *text);
/* Refuses any value but this one; absent is fine. */
void read_only_int(model_reader *r, const char *folder, const char *gguf, int32_t value);
void read_only_flag(model_reader *r, const char *folder, const char *gguf, bool value);
void read_only_text(model_reader *r, const char *folder, const char *gguf, const char *value);
/* a * b values, refused when they are more than any matrix may have; `what` names them. */
void read_product(model_reader *r, const char *what, int64_t a, int64_t b);
/* A member that decides the result and has no default that all versions agree on. */
void read_member_must(model_reader *r, const char *folder);
/* Which layers have a window: layer_types, or GGUF's sliding_window_pattern (an array of flags, or
 * the period of the layers without). False when neither is there: `windowed` is as it was. */
bool read_windows(model_reader *r, bool *windowed);

/* Qwen's folders name a sliding_window that use_sliding_window switches off; on, it is refused. */
void read_unused_window(model_reader *r);

/* n_layer, hidden, ffn, heads, head_dim, context, eps, vocabulary, tied output; the layers, all alike:
 * GQA with a dense MLP, their scale 1 / sqrt(head_dim). */
void read_sizes(model_reader *r);
/* The same without widths of heads: those of MLA have keys of their own. */
void read_sizes_latent(model_reader *r);
/* KV heads of layer i, which divide n_head; GGUF may list one number for each layer. `folder`: the member
 * that says it. */
int32_t read_kv_heads(model_reader *r, int32_t i, const char *folder, int32_t n_head,
                      int32_t otherwise);
/* RoPE table `at` of rope_dim values: base and scaling as the source says (none, linear, llama3,
 * yarn); other types are refused. `under`: member of rope_parameters for this kind of layer, or NULL. */
void read_rope(model_reader *r, int32_t at, int32_t rope_dim, const char *under);

/* The same with this base and no scaling. */
void read_rope_base(model_reader *r, int32_t at, int32_t rope_dim, double base);

/* ---- tensors ----
 * Names: a folder's are behind "model.layers.N.", GGUF's behind "blk.N."; NULL: the source has none.
 * The matrix must have n_out rows of n_in values. */
model_matrix *read_matrix(model_reader *r, int32_t layer, model_role role, const char *folder,
                          const char *gguf, int32_t n_out, int32_t n_in);
/* n values, of a float type. */
model_matrix *read_vector(model_reader *r, int32_t layer, model_role role, const char *folder,
                          const char *gguf, int32_t n);
/* The same for a norm; plus_one: the architecture stores it less one (in a folder: GGUF's converter has
 * added it). */
model_matrix *read_norm(model_reader *r, int32_t layer, model_role role, const char *folder,
                        const char *gguf, int32_t n, bool plus_one);
/* Whether the files have it. */
bool read_has(model_reader *r, int32_t layer, const char *folder, const char *gguf);
/* Marks a tensor that may be there and that takes no part in the computation. */
void read_leave(model_reader *r, int32_t layer, const char *folder, const char *gguf);
/* Any tensor by its whole name, marked as used; checks dim[] = {n_in, rows of all above}. */
const load_tensor *read_tensor(model_reader *r, const char *name, int64_t n_in, int64_t n_row,
                               bool vector);
/* Codes and exponents of MXFP4 rows in a folder, NAME_blocks and NAME_scales (desc.h). The matrix has
 * no place in the tensor yet, all else is for the caller. */
model_matrix read_mxfp4(model_reader *r, const char *name, int64_t n_in, int64_t n_row);
const char *read_name(model_reader *r, int32_t layer, const char *folder, const char *gguf,
                      char *out, size_t cap);
model_matrix matrix_whole(const load_tensor *t, int32_t n_out, int32_t n_in);
/* One float. */
float read_scalar(model_reader *r, int32_t layer, const char *folder, const char *gguf);

/* Pairs half a head apart in the source: m's rows (heads of head_dim) are taken in pairs. */
void pair_rows(model_matrix *m, int32_t head_dim, int32_t pair_dim);

/* embedding, head, final norm (with plus_one as the architecture's norms have it) */
void read_ends(model_reader *r, bool plus_one);
/* attn_norm, q, k, v (none with v_is_k), o of every layer; `halves`: RoPE's pairs stand half a head apart. Biases and
 * norms per head when the files have them and the flag is set. */
typedef struct read_gqa_form {
    bool halves, qkv_bias, o_bias, head_norms, plus_one;
} read_gqa_form;
void read_gqa(model_reader *r, read_gqa_form form);
/* gate, up, down and their norm, of layers with ffn > 0. */
void read_mlp(model_reader *r, const char *norm_folder, const char *norm_gguf, bool plus_one);
/* The experts of layer i under these names ("block_sparse_moe.experts.%d.w1.weight"); GGUF's are
 * stacks in one tensor. */
void read_experts(model_reader *r, int32_t i, const char *gate, const char *up, const char *down);

#endif
