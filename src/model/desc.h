/* What a model is: sizes, and where each of its matrices and vectors lies in the files. One
 * description for every architecture and source; a file per architecture fills it (arch.h), the
 * layer program and the packer read it.
 *
 * After model_desc_open every matrix that the program needs is there, in the right shape and in a
 * type that weft computes with; nothing of the files that would change the result is left over. */
#ifndef WEFT_MODEL_DESC_H
#define WEFT_MODEL_DESC_H

#include "kern/kern.h"
#include "kv/kv.h"
#include "load/load.h"

/* A matrix y[n_out] = W[n_out, n_in] x[n_in] inside a tensor. The program's row i is found by
 *   base = row0 + i / group * group_stride,   j = at + step * turn(i % group)
 * plain:      row base + j of the tensor (rows of dim[0] values)
 * transposed: column j of its rows base .. base + n_in - 1 (float types only)
 * turn(r) puts RoPE's pairs (r, r + pair_dim / 2) side by side, where the source has them half a head
 * apart: turn(2 i) = i, turn(2 i + 1) = i + pair_dim / 2 below pair_dim, r above; 0: turn(r) = r.
 *   8 heads of 4, rows as they are: group 32, step 1      the odd rows of 64: group 32, step 2, at 1
 *   pair_dim 4: program rows 0 1 2 3 | 4 5 6 7 are the tensor's 0 2 1 3 | 4 6 5 7 (group 4, group_stride 4)
 * A stack is n_stack such matrices (experts): number e lies in stack[e], or e * stack_rows further on
 * in one tensor. A vector is a matrix with n_in = 1.
 *
 * Folders keep MXFP4 in two tensors of bytes: t has the codes, 16 a block, `exponents` one byte a
 * block. Code k of a block is the low (k even) or high half of its byte k / 2; in the block of
 * GGUF, 17 bytes, the exponent comes first and code k is the low (k < 16) or high half of byte
 * 1 + k % 16. */
enum { MODEL_MXFP4_BLOCK = 32 };
typedef struct model_matrix {
    const load_tensor *t;         /* NULL: the model has none */
    const load_tensor *exponents; /* NULL: t has a type of its own */
    int32_t n_out, n_in;
    int64_t row0;
    int32_t group, group_stride, at, step, pair_dim;
    bool transposed;
    bool plus_one;   /* of a norm: the file holds w - 1 */
    int32_t n_stack; /* 1: no stack */
    int64_t stack_rows;
    const load_tensor *const *stack;
} model_matrix;

/* The type that rows have in the program's hands; not NULL matrices. */
dtype model_matrix_type(const model_matrix *m);
/* Row `row` of the tensor of an MXFP4 matrix with exponents, as GGUF's blocks. */
void model_matrix_blocks(const model_matrix *m, int64_t row, uint8_t *out);
/* Value rows of matrix e of a stack as floats: rows [row, row + n), out: [n][n_in]. */
void model_matrix_read(const model_matrix *m, int32_t e, int32_t row, int32_t n, float *out);
/* Row of the tensor that holds row i of matrix e; not for transposed ones. */
int64_t model_matrix_row(const model_matrix *m, int32_t e, int32_t i);
/* Place in the tensor of value k of row i, counted in values; for transposed ones. */
int64_t model_matrix_at(const model_matrix *m, int32_t e, int32_t i, int32_t k);
const load_tensor *model_matrix_tensor(const model_matrix *m, int32_t e);

typedef enum model_role {
    /* GQA */
    MODEL_Q,
    MODEL_K,
    MODEL_V,
    MODEL_O,
    /* MLA: x -> q (or through q_a, q_a_norm), its rows apart: all heads' nope parts, all heads'
     * rope parts; x -> kv_a = (latent, rope part); k_up: latent <- nope per head; v_up: value <- latent */
    MODEL_Q_A,
    MODEL_Q_NOPE,
    MODEL_Q_ROPE,
    MODEL_KV_A,
    MODEL_K_UP,
    MODEL_V_UP,
    /* MLP */
    MODEL_GATE,
    MODEL_UP,
    MODEL_DOWN,
    MODEL_ROUTER,
    MODEL_EXPERT_GATE,
    MODEL_EXPERT_UP,
    MODEL_EXPERT_DOWN,
    MODEL_SHARED_GATE,
    MODEL_SHARED_UP,
    MODEL_SHARED_DOWN,
    /* per-layer inputs */
    MODEL_PLE_GATE,
    MODEL_PLE_OUT,
    MODEL_N_MATRIX,
    /* vectors, f32 in memory */
    MODEL_ATTN_NORM = MODEL_N_MATRIX,
    MODEL_Q_BIAS,
    MODEL_K_BIAS,
    MODEL_V_BIAS,
    MODEL_O_BIAS,
    MODEL_Q_NORM,
    MODEL_K_NORM,
    MODEL_Q_A_NORM,
    MODEL_KV_A_NORM,
    MODEL_SINKS,
    MODEL_ATTN_POST,
    MODEL_FFN_NORM,
    MODEL_ROUTER_BIAS,
    MODEL_ROUTER_CORRECTION,
    MODEL_EXPERT_GATE_BIAS,
    MODEL_EXPERT_UP_BIAS,
    MODEL_EXPERT_DOWN_BIAS,
    MODEL_FFN_POST,
    MODEL_PLE_POST,
    /* Experts beside a dense MLP: each has norms of its own, and FFN_NORM is that of the router. */
    MODEL_EXPERT_NORM,
    MODEL_EXPERT_POST,
    MODEL_MLP_NORM,
    MODEL_MLP_POST,
    MODEL_EXPERT_SCALE, /* of their weights */
    MODEL_N_ROLE
} model_role;

/* One layer. Sizes are the whole model's, not a rank's. */
typedef struct model_layer {
    bool latent;               /* MLA: values are read from the cached keys (kern_kv) */
    int32_t n_head, n_kv_head; /* MLA: one KV head; two counts in a model, one divides the other */
    int32_t head_dim, value_dim; /* of the cache; MLA: latent + rope, latent */
    int32_t rope, rope_dim;      /* table, width */
    int32_t window;              /* 0: sees all */
    int32_t kv_from;             /* layer whose cache is read; its own number: itself */
    int32_t group;               /* of layers whose caches keep the same; that of kv_from */
    int32_t ffn;                 /* of the dense MLP; 0: only experts */
    float scale;                 /* of scores */
    float x_scale;               /* of the residual at the layer's end */
    bool v_norm;
    bool v_is_k; /* values are made by the keys' matrix, whose norm and RoPE they do not see */
    model_matrix m[MODEL_N_ROLE];
} model_layer;

/* Frequencies of a RoPE table: angle = position * freq[i]; cos and sin times `scale`. */
typedef struct model_rope {
    int32_t n_pair;
    const double *freq; /* [n_pair] */
    double scale;
    double
        score; /* what YaRN's mscale_all_dim makes of the scores' scale, for those that have it */
    bool truncate; /* YaRN's limits are whole pairs unless the source says otherwise */
} model_rope;
enum { MODEL_MAX_ROPE = 2 };

typedef struct model_moe {
    int32_t n_expert, n_used, ffn,
        shared_ffn; /* n_expert 0: no experts; shared_ffn 0: none shared */
    kern_route_kind route;
    bool renorm;
    float logit_scale, scale;
    int32_t n_group, n_group_used;
} model_moe;

typedef struct model_mla {
    int32_t latent, nope, rope, value, q_latent; /* q_latent 0: q comes from x at once */
} model_mla;

typedef struct model_config {
    const char *architecture; /* "qwen3" */
    const char *name;
    int32_t n_layer, hidden, n_vocab, context_length;
    int32_t n_head, n_kv_head, head_dim, ffn; /* of the first layer, for show */
    float rms_eps, embed_scale, final_cap;    /* final_cap 0: none */
    bool tied_output;
    kern_glu_rule glu;
    int32_t n_rope;
    model_rope rope[MODEL_MAX_ROPE];
    model_moe moe;
    model_mla mla;
    int32_t ple; /* width of per-layer inputs; 0: none */
} model_config;

struct model_arch;
typedef struct model_desc {
    const struct model_arch *arch;
    const load_model *file;
    load_model *owned; /* the same where model_desc_load opened it, else NULL */
    model_config config;
    model_layer *layer; /* [n_layer] */
    /* Groups of layers: those that see all, then by window, the largest first. */
    int32_t n_group;
    int32_t window[KV_MAX_GROUP];                  /* tokens that caches of a group keep; 0: all */
    model_matrix embed, head, output_norm;         /* head == embed's tensor when tied */
    model_matrix ple_embed, ple_project, ple_norm; /* per-layer inputs */
    struct load_arena *memory;                     /* owns what hangs on this */
} model_desc;

/* WEFT_ERR_FILE names what is missing, too much, misshapen or not computed. The file must outlive
 * the description. */
weft_status model_desc_open(load_model *file, model_desc **out, weft_error *err);
/* The same, opening the file too; closing the description closes it. */
weft_status model_desc_load(const char *path, model_desc **out, weft_error *err);
void model_desc_close(model_desc *d); /* NULL is allowed */

/* The first of the layers with the most KV heads. */
const model_layer *model_most_heads(const model_desc *d);

/* What weft does with a tensor, for people: "packed", "packed as MXFP4", "vector", "rows", "rows + packed",
 * "not used". */
const char *model_desc_use(const model_desc *d, const load_tensor *t);

#endif
