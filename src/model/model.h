/* Models as layer programs: a description (desc.h) says what the model is, a file per architecture
 * has its program.
 *
 * A model_weights is the process's packed weights (never per rank); a model_rank is what one rank
 * needs to run the program. A program is made of the kern operations and attn_layer; it never looks
 * at the world's size. */
#ifndef WEFT_MODEL_MODEL_H
#define WEFT_MODEL_MODEL_H

#include "attn/attn.h"
#include "model/desc.h"

typedef struct model_arch model_arch;

/* Logits rows that go through the head at a time. */
enum { MODEL_LOGIT_CHUNK = 32 };

/* What is packed: matrix e of `from` to `byte` bytes into the weight, or the values as f32 to a vector. */
typedef struct model_item {
    const model_matrix *from;
    int32_t e;
    const kern_weight *weight; /* NULL: a vector */
    size_t byte;
    const kern_mem *vector;
} model_item;

/* A row-parallel layer: K inputs in `leaves` leaves (N2). Layers of equal K share one. */
typedef struct model_leaves {
    int32_t k, leaves;
} model_leaves;
enum { MODEL_MAX_LEAVES = 4 };

typedef struct model_layer_weights {
    kern_weight w[MODEL_N_MATRIX];
    kern_mem v[MODEL_N_ROLE - MODEL_N_MATRIX]; /* f32; 0 where the model has none */
    int32_t o, down, expert_down, shared_down; /* their model_leaves; -1: none */
} model_layer_weights;

typedef struct model_weights {
    const model_desc *desc; /* borrowed */
    const kern_table *k;
    int32_t max_len;
    kern_memory memory; /* packed weights, vectors, RoPE tables */
    kern_mem rope[MODEL_MAX_ROPE];
    int32_t n_leaves;
    model_leaves leaves[MODEL_MAX_LEAVES];
    model_layer_weights *layer; /* [n_layer] */
    kern_weight head, ple_project;
    kern_mem output_norm, ple_norm;
    model_item *item; /* [n_item] what to pack */
    int32_t n_item, item_cap;
} model_weights;

static inline kern_mem model_vector(const model_layer_weights *l, model_role role) {
    return l->v[role - MODEL_N_MATRIX];
}

/* A row-parallel layer on one rank: own part of the tree, where the TP members' nodes lie, and the
 * rest of the tree. */
typedef struct model_reduce {
    int32_t in0, n_in, leaf_in;
    tree_prog cover, finish;
    int32_t n_emit[TOPO_MAX_WORLD];
} model_reduce;

/* Whole experts on the ranks of the world: rank m owns [cut[m], cut[m + 1]). The most that comes are all
 * rows of a step and of each as many slots as it can have here. */
typedef struct model_whole {
    int32_t cut[TOPO_MAX_WORLD + 1];
    tree_prog tree; /* all leaves of an expert's down */
    int32_t leaf_in;
    kern_mem row_out, slot_out, place; /* as kern_dispatch writes them */
    kern_act rows_out, rows_in;        /* in the forms that experts read */
    kern_mem slot_in, expert_in, row_in;
    kern_mem made, back; /* f32 [slot][hidden]: of own experts; of own rows */
} model_whole;

/* First of n_row rows of a TP group that a member dispatches. */
static inline int32_t model_share(int32_t n_row, int32_t tp, int32_t member) {
    return n_row * member / tp;
}

struct model_step;
typedef struct model_rank {
    const model_weights *w;
    const kern_table *k;
    kern_dev *dev;
    comm *comm;
    const topo *topo;
    int32_t tok_cap;
    attn_rank attn;
    kern_mem kv[KV_MAX_GROUP]; /* by group: [pages][layers of it that have a cache] */
    size_t *page_at; /* [n_layer] bytes from a page's start to the cache that the layer reads */
    kern_mem
        logits; /* f32, gathered over TP: member after member, [MODEL_LOGIT_CHUNK][its slice] */
    model_reduce reduce[MODEL_MAX_LEAVES]; /* as w->leaves */

    kern_mem x;     /* f32 [tok_cap][hidden] residual */
    kern_mem qkv;   /* f32 rows of projections, [tok_cap][widest] */
    kern_mem nodes; /* leaf nodes of all TP members */
    kern_act hidden, heads, inner,
        rows; /* normed rows; attention's output; MLP's; picked for the head */
    /* MLA */
    kern_act q_latent, nope, values; /* q_a's output; nope parts; attention's output over latents */
    kern_mem absorbed;               /* f32 [tok_cap][heads][latent] */
    /* experts */
    kern_mem router, expert, weight, order,
        moe;           /* logits; slots; their weights; scratch; the sum */
    kern_act sorted;   /* the normed rows, by expert */
    kern_act slots;    /* rows of the experts' inner width */
    model_whole whole; /* nothing but with --expert-parallel */
    weft_status (*moe_way)(struct model_rank *r, const struct model_step *s, int32_t layer);
    /* per-layer inputs */
    kern_mem ple, ple_part; /* f32 [tok_cap][n_layer * ple]; projections */
    kern_act ple_gate;      /* [tok_cap] rows of ple */
    kern_act residual;      /* x as an activation */
} model_rank;

/* What a layer gets: this rank's rows of the step, and the uploaded step block. */
typedef struct model_step {
    const batch_local *b;
    kern_mem block;
} model_step;

/* Facts for topo_check, from the description and the table's profile alone. */
void model_topo(const model_desc *d, const kern_profile *p, topo_model *out);
/* The same where experts are whole: tp does not cut them. */
void model_topo_whole(const model_desc *d, const kern_profile *p, topo_model *out);
/* What the cache keeps of a token and KV head in a layer, bytes. */
size_t model_kv_head_bytes(const model_layer *l, kern_kv_type type);
/* Layers of a group that have a cache, and bytes of one token's K and V in them on a rank of tp. */
int32_t model_group_layers(const model_desc *d, int32_t group);
size_t model_kv_token_bytes(const model_desc *d, int32_t group, int32_t tp, kern_kv_type type);
/* Widest row that a kernel meets on one rank of tp, and the largest head. */
kern_limits model_limits(const model_desc *d, int32_t tp, int32_t max_rows);

/* Plans the weights of a model (nothing is packed, nothing allocated for them yet). */
weft_status model_weights_open(const model_desc *d, const kern_table *k, int32_t max_len,
                               model_weights **out, weft_error *err);
/* Takes the memory and packs, on n_thread threads, each matrix once. progress (may be NULL) is
 * called with the share done, 0..1, from this thread; the last call has 1. False ends the packing:
 * WEFT_ERR_INTERRUPTED. */
weft_status model_weights_pack(model_weights *w, int32_t n_thread,
                               bool (*progress)(void *user, double done), void *user,
                               weft_error *err);
void model_weights_close(model_weights *w);

typedef struct model_rank_setup {
    kern_dev *dev; /* dev, comm: NULL while only planning */
    comm *comm;
    const topo *topo;
    const batch_builder *builder;
    kern_kv_type kv_type;
    const int32_t *kv_pages; /* by group */
    int32_t round_pages;
    bool expert_parallel;
    attn_fault fault;
} model_rank_setup;
/* Adds the rank's cache and buffers to `plan`; the caller commits it before the first forward. */
weft_status model_rank_open(const model_weights *w, const model_rank_setup *s, kern_memory *plan,
                            model_rank **out, weft_error *err);
void model_rank_close(model_rank *r);

/* All layers and the final norm of the step's tokens. */
weft_status model_forward(model_rank *r, const model_step *s);
/* Logits rows [first, first + n) of the batch's list, n <= MODEL_LOGIT_CHUNK, gathered over TP; the
 * ranks of a TP group call together. host: f32 [n][n_vocab], or NULL on ranks that do not sample. */
weft_status model_logits(model_rank *r, const model_step *s, int32_t first, int32_t n, float *host);
/* For a planted fault: swaps two leaves of a row-parallel layer's tree. */
void model_swap_leaves(model_rank *r);

#endif
