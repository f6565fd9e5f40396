/* Whole-row operations: embedding, finishing a leaf tree with residual and RMSNorm, gated units and
 * activations of rows that are there already, copying rows, the soft cap of logits.
 * A row is done by one thread; a single row is done by the caller, which costs less than a join. */
#include <math.h>

#include "kern/cpu/linear_isa.h"

/* Scratch of a thread, for whichever of its users needs most:
 *   linear layers   [TREE_MAX_DEPTH][CPU_TILE_FLOATS] partial tiles | unpacked panels of two weights
 *   row operations  [TREE_MAX_DEPTH][CPU_NORM_SEGMENT] partial sums | [max_in] one row */
size_t cpu_linear_scratch_bytes(const kern_limits *l) {
    size_t row = (size_t)TREE_MAX_DEPTH * CPU_NORM_SEGMENT + (size_t)l->max_in;
    size_t tile = (size_t)TREE_MAX_DEPTH * CPU_TILE_FLOATS * sizeof(float);
    size_t unpacked =
        2u * CPU_UNPACKED_PANELS * (size_t)(l->max_in / CPU_BLOCK) * CPU_UNPACKED_MOST;
    row *= sizeof(float);
    return packed_align(row > tile + unpacked ? row : tile + unpacked);
}

static float *scratch_sums(kern_dev *dev, int32_t thread) {
    return (float *)cpu_scratch(dev, thread);
}

static float *scratch_row(kern_dev *dev, int32_t thread) {
    return scratch_sums(dev, thread) + TREE_MAX_DEPTH * CPU_NORM_SEGMENT;
}

/* Where a row of an activation is made: its f32 form, or scratch when it has none. */
static float *row_to_make(kern_dev *dev, int32_t thread, const kern_act *act, int32_t r) {
    if (act->f32.at)
        return (float *)cpu_ptr(act->f32) + (size_t)r * (size_t)act->k;
    return scratch_row(dev, thread);
}

static void run_rows(void *arg, int32_t thread, int32_t n_thread) {
    const cpu_rows *a = arg;
    int32_t from = (int32_t)((int64_t)a->n_row * thread / n_thread);
    int32_t to = (int32_t)((int64_t)a->n_row * (thread + 1) / n_thread);
    for (int32_t r = from; r < to; r++)
        a->row(a->dev, thread, a->op, r);
}

void cpu_rows_run(cpu_rows a) {
    if (a.n_row > 1)
        team_run(a.dev->team, run_rows, &a);
    else
        run_rows(&a, 0, 1);
}

static void embed_row(kern_dev *dev, int32_t thread, const void *op, int32_t r) {
    (void)dev, (void)thread;
    const kern_embed *p = op;
    int32_t id = ((const int32_t *)cpu_ptr(p->ids))[r];
    size_t row_bytes = dtype_bytes(dtype_find(p->type), p->hidden);
    float *x = (float *)cpu_ptr(p->x) + (size_t)r * (size_t)p->hidden;
    dtype_to_f32(p->type, (const uint8_t *)p->table + (size_t)id * row_bytes, p->hidden, x);
    for (int32_t j = 0; j < p->hidden; j++)
        x[j] = x[j] * p->scale;
}

void cpu_embed(kern_dev *dev, const kern_embed *p) {
    cpu_rows_run((cpu_rows){dev, p, embed_row, p->n_row});
}

/* Operands are read where they lie; only sums take a buffer of their depth. */
const float *cpu_tree_root(const cpu_linear_isa *isa, const tree_prog *tree, kern_mem nodes,
                           const size_t *node_off, size_t at, int32_t n, float *sums) {
    const float *stack[TREE_MAX_DEPTH];
    int32_t depth = 0;
    for (int32_t i = 0; i < tree->n_op; i++) {
        int32_t op = tree->op[i];
        if (op >= 0) {
            stack[depth++] = (const float *)cpu_ptr(kern_at(nodes, node_off[op])) + at;
        } else if (op == TREE_ADD) {
            depth--;
            float *sum = sums + (depth - 1) * CPU_NORM_SEGMENT;
            isa->add(sum, stack[depth - 1], stack[depth], n);
            stack[depth - 1] = sum;
        }
    }
    return stack[0];
}

/* x + t; with a norm in between t is needed whole before its first value is added. */
static void add_half(kern_dev *dev, int32_t thread, const kern_reduce_norm *p, int32_t r,
                     float *x) {
    const cpu_linear_isa *isa = dev->isa->linear;
    float *sums = scratch_sums(dev, thread), *whole = scratch_row(dev, thread);
    const float *bias = cpu_ptr(p->bias), *post = cpu_ptr(p->post);
    for (int32_t j = 0; j < p->hidden; j += CPU_NORM_SEGMENT) {
        int32_t n = p->hidden - j < CPU_NORM_SEGMENT ? p->hidden - j : CPU_NORM_SEGMENT;
        size_t at = (size_t)r * (size_t)p->hidden + (size_t)j;
        const float *t = cpu_tree_root(isa, p->tree, p->nodes, p->node_off, at, n, sums);
        if (bias) {
            isa->add(sums, t, bias + j, n);
            t = sums;
        }
        if (post)
            memcpy(whole + j, t, (size_t)n * sizeof *t);
        else
            isa->add(x + j, x + j, t, n);
    }
    if (post) {
        isa->scale(whole, cpu_norm_factor(isa, whole, p->hidden, p->eps), post, p->hidden, whole);
        isa->add(x, x, whole, p->hidden);
    }
    for (int32_t j = 0; p->x_scale != 1.0f && j < p->hidden; j++)
        x[j] = x[j] * p->x_scale;
}

static void norm_row(kern_dev *dev, int32_t thread, const void *op, int32_t r) {
    const kern_reduce_norm *p = op;
    const cpu_linear_isa *isa = dev->isa->linear;
    float *x = (float *)cpu_ptr(p->x) + (size_t)r * (size_t)p->hidden;
    if (p->tree)
        add_half(dev, thread, p, r, x);
    float *out = row_to_make(dev, thread, &p->out, r);
    isa->scale(x, cpu_norm_factor(isa, x, p->hidden, p->eps), cpu_ptr(p->weight), p->hidden, out);
    cpu_act_write_row(isa, &p->out, r, out);
}

void cpu_reduce_norm(kern_dev *dev, const kern_reduce_norm *p) {
    cpu_rows_run((cpu_rows){dev, p, norm_row, p->n_row});
}

void cpu_act_write_row(const cpu_linear_isa *isa, const kern_act *act, int32_t r, const float *x) {
    cpu_act_write(isa, act, r, 0, act->k, x);
}

static void glu_row(kern_dev *dev, int32_t thread, const void *op, int32_t r) {
    const kern_glu *p = op;
    const cpu_linear_isa *isa = dev->isa->linear;
    const float *g = (const float *)cpu_ptr(p->g) + (size_t)r * (size_t)p->g_stride;
    const float *u = (const float *)cpu_ptr(p->u) + (size_t)r * (size_t)p->u_stride;
    float *out = row_to_make(dev, thread, &p->out, r);
    isa->glu(&p->rule, out, g, u, p->out.k);
    cpu_act_write_row(isa, &p->out, r, out);
}

void cpu_glu(kern_dev *dev, const kern_glu *p) {
    cpu_rows_run((cpu_rows){dev, p, glu_row, p->n_row});
}

static void act_make_row(kern_dev *dev, int32_t thread, const void *op, int32_t r) {
    (void)thread;
    const kern_act_make *p = op;
    const float *from = (const float *)cpu_ptr(p->from) + (size_t)r * (size_t)p->to.k;
    cpu_act_write_row(dev->isa->linear, &p->to, r, from);
}

void cpu_act_make(kern_dev *dev, const kern_act_make *p) {
    cpu_rows_run((cpu_rows){dev, p, act_make_row, p->n_row});
}

/* Logits are one long row of numbers that have nothing to do with each other: cut into pieces. */
enum { SOFTCAP_PIECE = 4096 };

static void softcap_piece(kern_dev *dev, int32_t thread, const void *op, int32_t r) {
    (void)thread;
    const kern_softcap *p = op;
    int64_t at = (int64_t)r * SOFTCAP_PIECE, left = p->n - at;
    dev->isa->linear->softcap((float *)cpu_ptr(p->x) + at, p->cap,
                              left < SOFTCAP_PIECE ? (int32_t)left : SOFTCAP_PIECE);
}

void cpu_softcap(kern_dev *dev, const kern_softcap *p) {
    int32_t n_piece = (int32_t)((p->n + SOFTCAP_PIECE - 1) / SOFTCAP_PIECE);
    cpu_rows_run((cpu_rows){dev, p, softcap_piece, n_piece});
}

void cpu_act_copy_row(const kern_act *from, size_t from_row, const kern_act *to, size_t to_row) {
    size_t f32 = (size_t)to->k * sizeof(float), q8 = kern_act_q8_bytes(to->k);
    if (to->f32.at)
        memcpy(cpu_ptr(kern_at(to->f32, to_row * f32)), cpu_ptr(kern_at(from->f32, from_row * f32)),
               f32);
    if (to->q8.at)
        memcpy(cpu_ptr(kern_at(to->q8, to_row * q8)), cpu_ptr(kern_at(from->q8, from_row * q8)),
               q8);
}

static void pick_row(kern_dev *dev, int32_t thread, const void *op, int32_t r) {
    (void)dev, (void)thread;
    const kern_pick *p = op;
    size_t from = (size_t)((const int32_t *)cpu_ptr(p->idx))[r];
    cpu_act_copy_row(&p->from, from, &p->to, (size_t)r);
}

void cpu_pick(kern_dev *dev, const kern_pick *p) {
    cpu_rows_run((cpu_rows){dev, p, pick_row, p->n});
}
