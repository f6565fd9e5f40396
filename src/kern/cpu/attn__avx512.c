/* Attention, AVX-512: the shapes for 32 registers of 16 floats. */
#include "kern/cpu/vec_avx512.h"

#define FEW_ROWS 8

/* 4 to 16 accumulators; one token's heads seldom are more than 8. */
static inline int few_pages(int n_row) {
    return n_row <= 4 ? 4 : 2;
}
static inline int few_vectors(int n_row) {
    (void)n_row;
    return 4;
}
static inline int many_broadcasts(int n_vec) {
    return n_vec == 1 ? 16 : 8;
}

#include "kern/cpu/attn_few_vec.h"
#include "kern/cpu/attn_many_vec.h"

const cpu_attn_isa cpu_attn_avx512 = {.few = &few,
                                      .many = &many,
                                      .few_rows = FEW_ROWS,
                                      .merge_row = merge_row,
                                      .divide = divide,
                                      .rope = rope,
                                      .round = round_to};
