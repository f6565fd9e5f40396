#include "vector_math.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")
#include "kern/cpu/vec_avx512.h"

#include "kern/cpu/exact_vec.h"

void exp_neg_avx512(const float *x, float *y) {
    for (int i = 0; i < 16; i += VEC_LANES)
        vec_store(y + i, exact_exp_neg_vec(vec_load(x + i)));
}

void silu_avx512(const float *x, float *y) {
    for (int i = 0; i < 16; i += VEC_LANES)
        vec_store(y + i, exact_silu_vec(vec_load(x + i)));
}
