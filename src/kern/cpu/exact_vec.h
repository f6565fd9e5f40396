/* exact_exp_neg and exact_silu of exact_math.h in vectors: the same roundings in the same order, so
 * the same bits. Included after vec_avx2.h or vec_avx512.h. */
#ifndef WEFT_KERN_CPU_EXACT_VEC_H
#define WEFT_KERN_CPU_EXACT_VEC_H

VEC_INLINE vec exact_exp_neg_vec(vec x) {
    const vec magic = vec_set(12582912.0f);
    vec under = vec_min(x, vec_zero()); /* above 0 the result is 1 = exp(0) */
    vec sum = vec_fma(under, vec_set(1.44269504088896341f), magic);
    vec n = vec_sub(sum, magic);
    vec r = vec_fma(n, vec_set(-0.693145751953125f), under);
    r = vec_fma(n, vec_set(-1.42860682030941723e-6f), r);
    vec p = vec_set(1.38888889e-3f);
    p = vec_fma(p, r, vec_set(8.33333333e-3f));
    p = vec_fma(p, r, vec_set(4.16666667e-2f));
    p = vec_fma(p, r, vec_set(1.66666667e-1f));
    p = vec_fma(p, r, vec_set(0.5f));
    p = vec_fma(p, r, vec_set(1.0f));
    p = vec_fma(p, r, vec_set(1.0f));
    p = vec_scale_exponent(p, sum); /* nonsense below -87.33, cleared next */
    p = vec_clear(vec_less(x, vec_set(-87.33f)), p);
    return vec_select(vec_is_nan(x), x, p);
}

VEC_INLINE vec exact_silu_vec(vec x) {
    const vec one = vec_set(1.0f);
    vec_mask negative = vec_less(x, vec_zero());
    vec minus_abs = vec_select(negative, x, vec_negate(x));
    vec e = exact_exp_neg_vec(minus_abs);
    vec top = vec_select(negative, e, one);
    return vec_mul(x, vec_div(top, vec_add(one, e)));
}

#endif
