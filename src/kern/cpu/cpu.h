/* Inside of the CPU table: what the operations share. Nothing outside src/kern/cpu includes this.
 *
 * Two levels: an operation (cpu_linear, cpu_attn_fold, ...) cuts its work into items and gives them
 * to the rank's threads; a
 * micro-kernel of an ISA level does one item. Operations exist once; micro-kernels exist per level,
 * chosen by one pointer. */
#ifndef WEFT_KERN_CPU_CPU_H
#define WEFT_KERN_CPU_CPU_H

#include "base/team.h"
#include "kern/kern.h"

typedef struct cpu_linear_isa
    /* linear_isa.h: packed linear micro-kernels, quantisation of activations, norm, gates */
    cpu_linear_isa;
typedef struct cpu_attn_isa
    cpu_attn_isa; /* attn_isa.h: page update, state merge, rope, rounding to the cache's type */

/* One instruction-set level: filled once, const. */
typedef struct cpu_isa {
    const char *name;
    bool (*present)(void); /* does this machine have it */
    const cpu_linear_isa *linear;
    const cpu_attn_isa *attn;
} cpu_isa;

/* present.c: does this machine, and its operating system, have all instructions of a level. */
bool cpu_has_scalar(void);
bool cpu_has_avx2(void);
bool cpu_has_avx512(void);
bool cpu_has_avx512vnni(void);

extern const cpu_isa cpu_isa_scalar, cpu_isa_avx2, cpu_isa_avx512, cpu_isa_avx512vnni;

struct kern_dev {
    team *team;
    int32_t n_thread;
    kern_limits limits;
    const cpu_isa *isa;
    uint8_t *scratch; /* [n_thread][scratch_bytes], 64-byte aligned */
    size_t scratch_bytes;
};

/* Scratch of one thread, for both families of operations: each says what it needs, an operation may
 * use all of it. */
size_t cpu_linear_scratch_bytes(const kern_limits *l);
size_t cpu_attn_scratch_bytes(const kern_limits *l);
static inline uint8_t *cpu_scratch(kern_dev *dev, int32_t thread) {
    return dev->scratch + (size_t)thread * dev->scratch_bytes;
}
static inline void *cpu_ptr(kern_mem m) {
    return (void *)m.at;
}

/* linear.c, norm.c */
size_t cpu_packed_bytes(dtype type, int32_t n_out, int32_t n_in);
void cpu_pack(const void *src, int32_t row0, int32_t n_row, kern_weight *w);
void cpu_embed(kern_dev *dev, const kern_embed *p);
void cpu_linear(kern_dev *dev, const kern_linear *p);
void cpu_swiglu(kern_dev *dev, const kern_swiglu *p);
void cpu_reduce_norm(kern_dev *dev, const kern_reduce_norm *p);
void cpu_glu(kern_dev *dev, const kern_glu *p);
void cpu_act_make(kern_dev *dev, const kern_act_make *p);
void cpu_softcap(kern_dev *dev, const kern_softcap *p);
void cpu_pick(kern_dev *dev, const kern_pick *p);

/* A per-row function over n_row rows: thread t takes a contiguous share. */
typedef struct cpu_rows {
    kern_dev *dev;
    const void *op;
    void (*row)(kern_dev *dev, int32_t thread, const void *op, int32_t r);
    int32_t n_row;
} cpu_rows;
void cpu_rows_run(cpu_rows a);
/* The root of a tree over nodes (one emit) at floats [at, at + n) of each node, n at most
 * CPU_NORM_SEGMENT: a node, or `sums` [TREE_MAX_DEPTH][CPU_NORM_SEGMENT], where the sums lie. */
const float *cpu_tree_root(const cpu_linear_isa *isa, const tree_prog *tree, kern_mem nodes,
                           const size_t *node_off, size_t at, int32_t n, float *sums);
/* The forms that `to` has. */
void cpu_act_copy_row(const kern_act *from, size_t from_row, const kern_act *to, size_t to_row);
/* Row of floats -> the forms of an activation that are wanted (row index r of act). */
void cpu_act_write_row(const cpu_linear_isa *isa, const kern_act *act, int32_t r, const float *x);

/* moe.c, dispatch.c, route__scalar.c */
void cpu_route(kern_dev *dev, const kern_route *p);
void cpu_experts(kern_dev *dev, const kern_experts *p);
void cpu_dispatch(kern_dev *dev, const kern_dispatch *p);
void cpu_arrive(kern_dev *dev, const kern_arrive *p);
void cpu_moe_sum(kern_dev *dev, const kern_moe_sum *p);
/* The slots of one row, [n_used] each. */
void cpu_route_row(const kern_route *p, const float *logit, int32_t *expert, float *weight);

/* attn.c, rope.c */
void cpu_qk_rope(kern_dev *dev, const kern_qk_rope *p);
void cpu_mla_rope(kern_dev *dev, const kern_mla_rope *p);
void cpu_kv_store(kern_dev *dev, const kern_kv_store *p);
void cpu_kv_pack(kern_dev *dev, const kern_kv_pack *p);
void cpu_attn_fold(kern_dev *dev, const kern_attn_fold *p);
void cpu_attn_finish(kern_dev *dev, const kern_attn_finish *p);

#endif
