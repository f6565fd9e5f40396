/* Everything that follows from the model's description and the parameters before any weight is packed:
 * legality, sizes, memory. `weft plan` prints it, weft_engine_open builds from it. */
#ifndef WEFT_ENGINE_SETUP_H
#define WEFT_ENGINE_SETUP_H

#include "batch/batch.h"
#include "kern/kern.h"
#include "kv/kv.h"
#include "model/desc.h"

/* The most of each; counts of rows and pages stay far inside int32. */
enum {
    ENGINE_MAX_THREADS = 1024,
    ENGINE_MAX_SEQS = 4096,
    ENGINE_MAX_STEP_TOKENS = 1 << 20,
    ENGINE_MAX_MODEL_LEN = 1 << 26, /* tokens */
    ENGINE_MAX_KV_PAGES = 1 << 26
};

typedef struct engine_setup {
    /* With every 0 = "default" resolved, and as many threads as there are ranks at least. */
    weft_engine_params p;
    const kern_table *k;
    topo_model model;
    topo_sizes sizes;
    int32_t world;
    kern_kv_type kv_type;
    uint64_t free_bytes; /* of the machine, before anything is reserved; 0: unknown */
    batch_caps caps;
    int32_t kv_pages[KV_MAX_GROUP];  /* by group of layers, per rank */
    int32_t longest[KV_MAX_GROUP];   /* pages that the longest request holds on the fullest rank */
    size_t page_bytes[KV_MAX_GROUP]; /* of a page of the group's layers on one rank */
    char identity[96];
} engine_setup;

/* The one validation of a set-up. WEFT_ERR_SETUP names the option, its value and what would be
 * right; WEFT_ERR_MEMORY names the sizes. */
weft_status engine_setup_make(const model_desc *d, const weft_engine_params *params,
                              engine_setup *out, weft_error *err);

/* Threads of one rank: n_thread spread over the ranks, at least one each. */
int32_t engine_setup_threads(const engine_setup *s, int32_t rank);
/* Windows and pages of the groups of layers: group[caps.n_group]. */
void engine_setup_groups(const engine_setup *s, kv_group *group);
/* Sizes of the page pools; group is room for KV_MAX_GROUP, which the result points to. t: of any
 * rank. */
kv_sizes engine_setup_kv(const engine_setup *s, const topo *t, kv_group *group);
kern_limits engine_setup_limits(const model_desc *d, const engine_setup *s, const batch_builder *b);

#endif
