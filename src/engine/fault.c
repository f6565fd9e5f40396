#include "engine/fault.h"

#include <string.h>

static const struct {
    const char *name;
} table[] = {{NULL},
#define ENGINE_FAULT_NAME(id, name, text) {name},
             ENGINE_FAULT_TABLE(ENGINE_FAULT_NAME)
#undef ENGINE_FAULT_NAME
};
enum { N_FAULT = sizeof table / sizeof *table };

const char *weft_fault_name(int32_t i) {
    return i >= 0 && i + 1 < N_FAULT ? table[i + 1].name : NULL;
}

engine_fault engine_fault_find(const char *name) {
    for (int32_t i = 1; name && i < N_FAULT; i++)
        if (strcmp(table[i].name, name) == 0)
            return (engine_fault)i;
    return ENGINE_FAULT_NONE;
}

attn_fault engine_fault_attn(engine_fault f, int32_t rank) {
    if (f == ENGINE_FAULT_EARLY_EXIT)
        return ATTN_FAULT_EARLY_EXIT;
    if (f == ENGINE_FAULT_OWN_TWICE)
        return ATTN_FAULT_OWN_TWICE;
    return f == ENGINE_FAULT_WRITE_TWICE && rank == 0 ? ATTN_FAULT_WRITE_TWICE : ATTN_FAULT_NONE;
}

void engine_fault_arm(engine_fault f, int32_t rank, model_rank *m) {
    if (f == ENGINE_FAULT_SWAP_LEAVES && rank == 0)
        model_swap_leaves(m);
}

enum { SPAN_INTS = sizeof(kern_span) / sizeof(int32_t) };

static kern_span *span_at(batch_local *b, int32_t at, int32_t i) {
    return (kern_span *)(void *)(b->block + at + i * SPAN_INTS);
}

static void skip_context(batch_local *b) {
    for (int32_t i = 0; i < b->n_span; i++)
        span_at(b, b->at_span, i)->first_key = span_at(b, b->at_span, i)->pos;
    for (int32_t r = 0; r < b->n_round; r++) {
        const batch_round *round = &b->round[r * b->n_group]; /* the spans of all groups */
        for (int32_t i = 0; i < round->n_span; i++)
            span_at(b, round->at_span, i)->first_key = span_at(b, round->at_span, i)->pos;
    }
}

/* The last new token goes to the slot of the one before it. */
static void stale_slot(batch_local *b) {
    for (int32_t g = 0; g < b->n_group; g++) {
        int32_t *slot = b->block + b->at_slot[g];
        if (b->n_recv >= 2)
            slot[b->n_recv - 1] = slot[b->n_recv - 2];
        else if (b->n_recv == 1)
            slot[0] ^= 1; /* the neighbour in the same page */
    }
}

weft_status engine_fault_apply(engine_fault f, int32_t rank, int32_t world, batch_local *b,
                               int64_t step, weft_error *err) {
    if (f == ENGINE_FAULT_RANK_FAILS && rank == world - 1 && step == 2)
        return error_set(err, WEFT_ERR_RANK, "rank %d: planted fault rank-fails in its third step",
                         rank);
    if (rank != 0)
        return WEFT_OK;
    if (f == ENGINE_FAULT_SKIP_CONTEXT)
        skip_context(b);
    if (f == ENGINE_FAULT_STALE_SLOT)
        stale_slot(b);
    return WEFT_OK;
}
