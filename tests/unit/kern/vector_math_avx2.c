#include "vector_math.h"

#pragma GCC target("avx2,fma,f16c")
#include "kern/cpu/vec_avx2.h"

#include "kern/cpu/exact_vec.h"

void exp_neg_avx2(const float *x, float *y) {
    for (int i = 0; i < 16; i += VEC_LANES)
        vec_store(y + i, exact_exp_neg_vec(vec_load(x + i)));
}

void silu_avx2(const float *x, float *y) {
    for (int i = 0; i < 16; i += VEC_LANES)
        vec_store(y + i, exact_silu_vec(vec_load(x + i)));
}
