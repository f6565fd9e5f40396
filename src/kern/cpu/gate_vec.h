/* Gated units, the soft cap and the weighted sum of rows, written once for all widths. Included
 * after vec_avx2.h or vec_avx512.h and exact_vec.h. Lanes past the end compute on zeros, are not
 * stored. */
#ifndef WEFT_KERN_CPU_GATE_VEC_H
#define WEFT_KERN_CPU_GATE_VEC_H

#include "kern/cpu/linear_isa.h"

VEC_INLINE vec one_nan(vec x) {
    return vec_select(vec_is_nan(x), vec_set(cpu_nan()), x);
}

/* vec_min and vec_max give their second argument when one is a NaN: the value stands there. */
VEC_INLINE vec gate_clamped(const kern_glu_rule *rule, vec g, vec u) {
    const vec limit = vec_set(rule->limit);
    g = vec_min(limit, g);
    u = vec_max(vec_negate(limit), vec_min(limit, u));
    vec gate = vec_mul(g, exact_sigmoid_vec(vec_mul(vec_set(rule->alpha), g)));
    return vec_mul(gate, vec_add(u, vec_set(1.0f)));
}

VEC_INLINE vec gate_gelu(vec g, vec u) {
    vec inner = vec_fma(vec_mul(g, g), vec_set(0.044715f), vec_set(1.0f));
    vec z = vec_mul(vec_set(1.5957691f), vec_mul(g, inner));
    return vec_mul(vec_mul(g, exact_sigmoid_vec(z)), u);
}

VEC_INLINE vec gate_any(const kern_glu_kind kind, const kern_glu_rule *rule, vec g, vec u) {
    if (kind == KERN_GLU_GELU)
        return gate_gelu(g, u);
    if (kind == KERN_GLU_CLAMPED)
        return gate_clamped(rule, g, u);
    return vec_mul(exact_silu_vec(g), u);
}

VEC_INLINE void glu_of_kind(const kern_glu_kind kind, const kern_glu_rule *rule, float *out,
                            const float *g, const float *u, int32_t n) {
    for (int32_t j = 0; j < n; j += VEC_LANES) {
        vec y = gate_any(kind, rule, vec_first(g + j, n - j), vec_first(u + j, n - j));
        vec_put_first(out + j, n - j, one_nan(y));
    }
}

/* A loop for each kind, so that none asks inside. */
VEC_INLINE void glu_vec(const kern_glu_rule *rule, float *out, const float *g, const float *u,
                        int32_t n) {
    if (rule->kind == KERN_GLU_GELU)
        glu_of_kind(KERN_GLU_GELU, rule, out, g, u, n);
    else if (rule->kind == KERN_GLU_CLAMPED)
        glu_of_kind(KERN_GLU_CLAMPED, rule, out, g, u, n);
    else
        glu_of_kind(KERN_GLU_SILU, rule, out, g, u, n);
}

VEC_INLINE void softcap_vec(float *x, float cap, int32_t n) {
    const vec one = vec_set(1.0f), by = vec_set(cap);
    for (int32_t j = 0; j < n; j += VEC_LANES) {
        vec y = vec_div(vec_first(x + j, n - j), by);
        vec_mask negative = vec_less(y, vec_zero());
        vec minus_abs = vec_select(negative, y, vec_negate(y));
        vec e = exact_exp_neg_vec(vec_mul(vec_set(2.0f), minus_abs));
        vec t = vec_div(vec_sub(one, e), vec_add(one, e));
        t = vec_mul(by, vec_select(negative, vec_negate(t), t));
        vec_put_first(x + j, n - j, one_nan(t));
    }
}

VEC_INLINE void add_scaled_vec(float *y, float w, const float *x, int32_t n) {
    const vec by = vec_set(w);
    for (int32_t j = 0; j < n; j += VEC_LANES)
        vec_put_first(y + j, n - j, vec_fma(by, vec_first(x + j, n - j), vec_first(y + j, n - j)));
}

#endif
