/* Attention, AVX2: the shapes for sixteen registers of 8 floats. */
#include "kern/cpu/vec_avx2.h"

#define FEW_ROWS 6

/* 8 to 12 accumulators beside the keys and a query. */
static inline int few_pages(int n_row) {
    return n_row == 1 ? 4 : n_row <= 3 ? 2 : 1;
}
static inline int few_vectors(int n_row) {
    return n_row == 1 ? 8 : n_row <= 3 ? 4 : 2;
}
static inline int many_broadcasts(int n_vec) {
    return n_vec == 1 ? 8 : 4;
}

#include "kern/cpu/attn_few_vec.h"
#include "kern/cpu/attn_many_vec.h"

const cpu_attn_isa cpu_attn_avx2 = {.few = &few,
                                    .many = &many,
                                    .few_rows = FEW_ROWS,
                                    .merge_row = merge_row,
                                    .divide = divide,
                                    .rope = rope,
                                    .round = round_to};
