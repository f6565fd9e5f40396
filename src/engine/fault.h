/* Planted faults: negative controls of `weft check`. Each breaks one thing that the contract
 * depends on, on rank 0 unless said otherwise, so that a harness which passes them is proved to be
 * blind. */
#ifndef WEFT_ENGINE_FAULT_H
#define WEFT_ENGINE_FAULT_H

#include "attn/attn.h"
#include "model/model.h"

/* X(name in enum, name on the command line, what it does) */
#define ENGINE_FAULT_TABLE(X)                                                                      \
    X(SWAP_LEAVES, "swap-leaves", "two leaves of the attention output's sum change places")        \
    X(SKIP_CONTEXT, "skip-context", "one rank sees only the new tokens of its rows")               \
    X(STALE_SLOT, "stale-slot", "one token is written to the slot of an earlier one")              \
    X(WRITE_TWICE, "write-twice",                                                                  \
      "tokens are written to their own slot and over the next token's")                            \
    X(OWN_TWICE, "own-twice",                                                                      \
      "one half of the shards, own tokens among them, is counted twice (pass-Q rows)")             \
    X(EARLY_EXIT, "early-exit",                                                                    \
      "a rank leaves the exchange when its own first row is not the start of a prompt")            \
    X(RANK_FAILS, "rank-fails", "the last rank fails in its third step")

typedef enum engine_fault {
    ENGINE_FAULT_NONE,
#define ENGINE_FAULT_ENUM(id, name, text) ENGINE_FAULT_##id,
    ENGINE_FAULT_TABLE(ENGINE_FAULT_ENUM)
#undef ENGINE_FAULT_ENUM
} engine_fault;

/* ENGINE_FAULT_NONE for an unknown name. */
engine_fault engine_fault_find(const char *name);

/* The part that attention plants, known when its buffers are planned. */
attn_fault engine_fault_attn(engine_fault f, int32_t rank);
/* Once, when the rank is built. */
void engine_fault_arm(engine_fault f, int32_t rank, model_rank *m);
/* Every step, between building the local batch and uploading its block. WEFT_ERR_RANK is the fault
 * itself. */
weft_status engine_fault_apply(engine_fault f, int32_t rank, int32_t world, batch_local *b,
                               int64_t step, weft_error *err);

#endif
