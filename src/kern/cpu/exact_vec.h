/* exact_exp_neg, exact_sigmoid and exact_silu of exact_math.h in vectors: the same roundings in the same order, so
 * the same bits. Included after vec_avx2.h or vec_avx512.h. */
#ifndef WEFT_KERN_CPU_EXACT_VEC_H
#define WEFT_KERN_CPU_EXACT_VEC_H

/* A loop over a constant count, unrolled so that arrays of vectors become registers. */
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

/* x = exp of each of n vectors, n <= 4 and constant: side by side, since one chain of fma alone
 * waits for itself, and each constant is loaded once for all. */
VEC_INLINE void exact_exp_neg_vecs(vec *x, const int n) {
    const vec magic = vec_set(12582912.0f);
    vec sum[4], r[4], p[4];
    EACH(i, n) {
        r[i] = vec_min(x[i], vec_zero()); /* above 0 the result is 1 = exp(0) */
        sum[i] = vec_fma(r[i], vec_set(1.44269504088896341f), magic);
        vec steps = vec_sub(sum[i], magic);
        r[i] = vec_fma(steps, vec_set(-0.693145751953125f), r[i]);
        r[i] = vec_fma(steps, vec_set(-1.42860682030941723e-6f), r[i]);
        p[i] = vec_fma(vec_set(1.38888889e-3f), r[i], vec_set(8.33333333e-3f));
    }
    static const float factor[] = {4.16666667e-2f, 1.66666667e-1f, 0.5f, 1.0f, 1.0f};
    EACH(k, 5) {
        vec c = vec_set(factor[k]);
        EACH(i, n) {
            p[i] = vec_fma(p[i], r[i], c);
        }
    }
    EACH(i, n) {
        p[i] = vec_scale_exponent(p[i], sum[i]); /* nonsense below -87.33, cleared next */
        p[i] = vec_clear(vec_less(x[i], vec_set(-87.33f)), p[i]);
        x[i] = vec_select(vec_is_nan(x[i]), x[i], p[i]);
    }
}

VEC_INLINE vec exact_exp_neg_vec(vec x) {
    exact_exp_neg_vecs(&x, 1);
    return x;
}

VEC_INLINE vec exact_sigmoid_vec(vec x) {
    const vec one = vec_set(1.0f);
    vec_mask negative = vec_less(x, vec_zero());
    vec minus_abs = vec_select(negative, x, vec_negate(x));
    vec e = exact_exp_neg_vec(minus_abs);
    vec top = vec_select(negative, e, one);
    return vec_div(top, vec_add(one, e));
}

VEC_INLINE vec exact_silu_vec(vec x) {
    return vec_mul(x, exact_sigmoid_vec(x));
}

#endif
