/* What an engine of a set-up would be, and what it would do in one step, without packing a
 * weight or starting a rank. Nothing is worked out a second time here: memory comes from the
 * same planning calls, the step from the same batch builder, and the bytes between ranks from
 * running the layer program with kernels and a transport that only count. Which experts a token
 * goes to is not known: where whole experts are on ranks, each rank's rows choose all in turn. */
#ifndef WEFT_ENGINE_EXPLAIN_H
#define WEFT_ENGINE_EXPLAIN_H

#include "engine/setup.h"
#include "kern/memory.h"
#include "kern/peak.h"
#include "model/model.h"

/* X(name in enum, name in JSON, text). Those before LOGITS happen in every layer, the rest once
 * in a step. The plan that rank 0 broadcasts is not among them: it depends on what the requests
 * hold. */
#define EXPLAIN_MOVE_TABLE(X)                                                                      \
    X(DELIVER, "deliver_kv", "new K/V to the page owners")                                         \
    X(QUERIES, "queries", "pass-Q: queries to the pages")                                          \
    X(STATES, "states", "pass-Q: partial states back")                                             \
    X(PAGES, "pages", "pass-KV: pages to the queries")                                             \
    X(NODES, "leaf_nodes", "leaf nodes over TP")                                                   \
    X(EXPERT_ROWS, "expert_rows", "rows and slots to whole experts")                               \
    X(EXPERT_OUTPUTS, "expert_outputs", "their outputs back")                                      \
    X(EXPERT_SUMS, "expert_sums", "sums of experts over TP")                                       \
    X(LOGITS, "logits", "logits over TP")                                                          \
    X(RESULTS, "results", "results to all ranks")
typedef enum explain_move {
#define EXPLAIN_MOVE_ENUM(id, name, text) EXPLAIN_##id,
    EXPLAIN_MOVE_TABLE(EXPLAIN_MOVE_ENUM)
#undef EXPLAIN_MOVE_ENUM
        EXPLAIN_N_MOVE
} explain_move;
enum { EXPLAIN_N_LAYER_MOVE = EXPLAIN_LOGITS };
extern const char *const explain_move_name[EXPLAIN_N_MOVE],
    *const explain_move_text[EXPLAIN_N_MOVE];

/* Requests of the step, in the scheduler's order: those that decode, then fresh prompts. */
typedef struct explain_request {
    bool decode;
    int32_t size;         /* tokens of the prompt, or tokens in the cache of one that decodes */
    int32_t start, n_new; /* positions [start, start + n_new) are computed; n_new 0: it waits */
    const char *limit;    /* what cuts it or lets it wait; NULL: nothing does. Static text */
    int32_t n_page;       /* logical pages up to its last new token */
    /* By group of layers: the first page that the new tokens see, and how many the request holds,
     * over its DCP group. */
    int32_t first_page[KV_MAX_GROUP], held[KV_MAX_GROUP];
    bool pass_kv;
    int64_t q_bytes, kv_bytes; /* what the rule compares: per layer, before the factor (D-1)/D */
    uint8_t *owner;            /* [n_new] PCP rank of each new token */
} explain_request;

typedef struct explain_rank {
    topo topo;
    int32_t n_thread;
    kern_memory memory;   /* planned, never committed: the names and sizes of its items */
    size_t scratch_bytes; /* of the kernels' threads */
    size_t host_bytes;    /* plan, results and logits on the host */
    int32_t n_tok, n_row;
    batch_row *row;            /* [n_row]; req counts the requests that run */
    int32_t expert0, n_expert; /* whole experts; none where experts are split over TP */
    /* Over the whole step, to and from other ranks. */
    int64_t sent[EXPLAIN_N_MOVE], received[EXPLAIN_N_MOVE];
} explain_rank;

/* What the step has to compute and to read at least, all layers and all ranks together: what any
 * implementation would have to do. An operation is a multiplication or an addition. */
typedef struct explain_work {
    int64_t linear_ops[KERN_N_PEAK]; /* of linear layers, by the limit of their weights' type */
    int64_t attn_ops;     /* fp32: a score and a value row per query, head and visible key */
    int64_t weight_bytes; /* packed; once per linear operation and rank that has rows */
    int64_t kv_bytes;     /* whole pages, each once */
} explain_work;

typedef struct explain {
    engine_setup setup;
    const model_desc *desc; /* borrowed */
    size_t weight_bytes;
    int32_t n_request, n_run; /* those that run are requests [0, n_run) */
    explain_request *request; /* [n_request] */
    int32_t n_tok;            /* of the step */
    int64_t
        cache_tokens; /* that one DCP group holds in the pages of layer group 0, which keeps most */
    int32_t longest;  /* request that empty pools hold, within the model length too */
    explain_rank *rank; /* [world] */
    explain_work work;
} explain;

typedef struct explain_ask {
    const int32_t *prompt, *decode; /* [n_prompt] lengths, [n_decode] contexts */
    int32_t n_prompt, n_decode;
} explain_ask;

/* Legality as engine_setup_make. WEFT_ERR_TOO_LONG for a request that the engine would refuse,
 * and for contexts that do not fit the cache together. *out is owned by the caller; `d` is
 * borrowed until explain_close. */
weft_status explain_open(const model_desc *d, const weft_engine_params *params,
                         const explain_ask *ask, explain **out, weft_error *err);
void explain_close(explain *e); /* NULL is allowed */

/* Bytes that a rank sends in a step. */
int64_t explain_sent(const explain_rank *r);

/* The cost model: the linear layers, then attention, each as long as its arithmetic or its reading
 * takes at these limits, whichever is longer. peak: as kern_peaks_measure gives them, each > 0. */
double explain_seconds(const explain_work *w, const double peak[KERN_N_PEAK]);

#endif
