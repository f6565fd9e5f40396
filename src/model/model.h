/* Models as layer programs: one file per architecture, found by name in a table.
 *
 * A model_weights is the process's packed weights (never per rank); a model_rank is what one rank
 * needs to run the program. A program is made of the kern operations and attn_layer; it never looks
 * at the world's size. */
#ifndef WEFT_MODEL_MODEL_H
#define WEFT_MODEL_MODEL_H

#include "attn/attn.h"
#include "load/load.h"

typedef struct model_arch model_arch;

/* Logits rows that go through the head at a time. */
enum { MODEL_LOGIT_CHUNK = 32 };

/* One tensor of the file and where it goes: packed into a weight, or as it is into a vector. */
typedef struct model_item {
    const load_tensor *from;
    kern_weight *weight; /* NULL: a vector */
    kern_mem *vector;
} model_item;

typedef struct model_weights {
    const model_arch *arch;
    const kern_table *k;
    const load_model *file; /* borrowed */
    const load_config *cfg;
    int32_t leaves_o, leaves_down; /* L of the row-parallel layers (N2) */
    int32_t max_len;
    kern_memory memory; /* packed weights, norms, RoPE table */
    kern_mem rope;
    model_item *item; /* [n_item] what to pack */
    int32_t n_item, item_cap;
    void *body; /* the architecture's own weights */
} model_weights;

typedef struct model_rank {
    const model_weights *w;
    const kern_table *k;
    kern_dev *dev;
    comm *comm;
    const topo *topo;
    int32_t kv_pages, tok_cap;
    attn_rank attn;
    kern_mem kv; /* [n_layer][kv_pages] pages */
    kern_mem
        logits; /* f32, gathered over TP: member after member, [MODEL_LOGIT_CHUNK][its slice] */
    void *body; /* the architecture's own buffers and trees */
} model_rank;

struct model_arch {
    const char *name;
    weft_status (*weights_open)(model_weights *w,
                                weft_error *err); /* fills body, lists its tensors */
    void (*weights_close)(model_weights *w);
    weft_status (*rank_open)(model_rank *r, kern_memory *plan, weft_error *err); /* fills body */
    void (*rank_close)(model_rank *r);
    /* All layers and the final norm of the step's tokens. */
    weft_status (*forward)(model_rank *r, const batch_local *b, kern_mem block);
    /* Logits rows [first, first + n) of the batch's list, n <= MODEL_LOGIT_CHUNK, gathered over TP;
     * the ranks of a TP group call together. host: f32 [n][n_vocab], or NULL on ranks that do not
     * sample. */
    weft_status (*logits)(model_rank *r, const batch_local *b, kern_mem block, int32_t first,
                          int32_t n, float *host);
    /* For a planted fault: swaps two leaves of the attention output's tree. */
    void (*swap_leaves)(model_rank *r);
};

extern const model_arch model_llama;

/* Facts for topo_check, from the config and the table's profile alone. */
void model_topo(const load_config *cfg, const kern_profile *p, topo_model *out);

/* Plans the weights of a model (nothing is packed, nothing allocated for them yet). */
weft_status model_weights_open(const load_model *file, const kern_table *k, int32_t max_len,
                               model_weights **out, weft_error *err);
/* Takes the memory and packs, on n_thread threads, each tensor once. progress (may be NULL) is
 * called with the share done, 0..1, from this thread. */
weft_status model_weights_pack(model_weights *w, int32_t n_thread,
                               void (*progress)(void *user, double done), void *user,
                               weft_error *err);
void model_weights_close(model_weights *w);

typedef struct model_rank_setup {
    kern_dev *dev; /* dev, comm: NULL while only planning */
    comm *comm;
    const topo *topo;
    const batch_builder *builder;
    kern_kv_type kv_type;
    int32_t kv_pages, round_pages;
    attn_fault fault;
} model_rank_setup;
/* Adds the rank's cache and buffers to `plan`; the caller commits it before the first forward. */
weft_status model_rank_open(const model_weights *w, const model_rank_setup *s, kern_memory *plan,
                            model_rank **out, weft_error *err);
void model_rank_close(model_rank *r);

/* Shared by layer programs. Listing a tensor plans its memory; packing fills it. `to` must stay
 * where it is. */
void model_weight_add(model_weights *w, const load_tensor *from, kern_weight *to);
void model_vector_add(model_weights *w, const load_tensor *from, kern_mem *to);
/* Address of element i of the uploaded step block. */
kern_mem model_block_at(kern_mem block, int32_t i);
/* This layer's page 0. The cache is [page][layer], so that a short context touches little memory. */
kern_mem model_layer_pages(const model_rank *r, int32_t layer);

#endif
