/* Whole-row operations: embedding, finishing a leaf tree with residual and RMSNorm, copying rows.
 * A row is done by one thread; a single row is done by the caller, which costs less than a join. */
#include <math.h>

#include "kern/cpu/linear_isa.h"

/* Scratch of a thread, for whichever of its users needs most:
 *   linear layers   [TREE_MAX_DEPTH][CPU_TILE_FLOATS] partial tiles
 *   reduce_norm     [TREE_MAX_DEPTH][CPU_NORM_SEGMENT] partial sums | [max_in] normalised row */
size_t cpu_linear_scratch_bytes(const kern_limits *l) {
    size_t norm = (size_t)TREE_MAX_DEPTH * CPU_NORM_SEGMENT + (size_t)l->max_in;
    size_t tile = (size_t)TREE_MAX_DEPTH * CPU_TILE_FLOATS;
    return packed_align((norm > tile ? norm : tile) * sizeof(float));
}

/* A per-row function over n_row rows: thread t takes a contiguous share. */
typedef struct rows {
    kern_dev *dev;
    const void *op;
    void (*row)(kern_dev *dev, int32_t thread, const void *op, int32_t r);
    int32_t n_row;
} rows;

static void run_rows(void *arg, int32_t thread, int32_t n_thread) {
    const rows *a = arg;
    int32_t from = (int32_t)((int64_t)a->n_row * thread / n_thread);
    int32_t to = (int32_t)((int64_t)a->n_row * (thread + 1) / n_thread);
    for (int32_t r = from; r < to; r++)
        a->row(a->dev, thread, a->op, r);
}

static void rows_run(rows a) {
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
}

void cpu_embed(kern_dev *dev, const kern_embed *p) {
    rows_run((rows){dev, p, embed_row, p->n_row});
}

/* x[0..n) += the tree over the nodes of this row at columns [j, j + n). Operands are read where
 * they lie; only sums take a buffer of their depth. */
static void add_tree(const cpu_linear_isa *isa, const kern_reduce_norm *p, int32_t r, size_t j,
                     int32_t n, float *sums, float *x) {
    const float *stack[TREE_MAX_DEPTH];
    int32_t depth = 0;
    for (int32_t i = 0; i < p->tree->n_op; i++) {
        int32_t op = p->tree->op[i];
        if (op >= 0) {
            size_t row = (size_t)r * (size_t)p->hidden + j;
            stack[depth++] = (const float *)cpu_ptr(kern_at(p->nodes, p->node_off[op])) + row;
        } else if (op == TREE_ADD) {
            depth--;
            float *sum = sums + (depth - 1) * CPU_NORM_SEGMENT;
            isa->add(sum, stack[depth - 1], stack[depth], n);
            stack[depth - 1] = sum;
        } else {
            isa->add(x, x, stack[--depth], n);
        }
    }
}

static void norm_row(kern_dev *dev, int32_t thread, const void *op, int32_t r) {
    const kern_reduce_norm *p = op;
    const cpu_linear_isa *isa = dev->isa->linear;
    float *sums = (float *)cpu_scratch(dev, thread);
    size_t hidden = (size_t)p->hidden;
    float *x = (float *)cpu_ptr(p->x) + (size_t)r * hidden;
    for (int32_t j = 0; p->tree && j < p->hidden; j += CPU_NORM_SEGMENT) {
        int32_t left = p->hidden - j;
        add_tree(isa, p, r, (size_t)j, left < CPU_NORM_SEGMENT ? left : CPU_NORM_SEGMENT, sums,
                 x + j);
    }
    float mean = isa->square_sum(x, p->hidden) / (float)p->hidden;
    float factor = 1.0f / sqrtf(mean + p->eps);
    float *out = p->out.f32.at ? (float *)cpu_ptr(p->out.f32) + (size_t)r * hidden
                               : sums + TREE_MAX_DEPTH * CPU_NORM_SEGMENT;
    isa->scale(x, factor, cpu_ptr(p->weight), p->hidden, out);
    cpu_act_write_row(isa, &p->out, r, out);
}

void cpu_reduce_norm(kern_dev *dev, const kern_reduce_norm *p) {
    rows_run((rows){dev, p, norm_row, p->n_row});
}

void cpu_act_write_row(const cpu_linear_isa *isa, const kern_act *act, int32_t r, const float *x) {
    cpu_act_write(isa, act, r, 0, act->k, x);
}

static void pick_row(kern_dev *dev, int32_t thread, const void *op, int32_t r) {
    (void)dev, (void)thread;
    const kern_pick *p = op;
    size_t from = (size_t)((const int32_t *)cpu_ptr(p->idx))[r], to = (size_t)r;
    size_t f32 = (size_t)p->to.k * sizeof(float), q8 = kern_act_q8_bytes(p->to.k);
    if (p->to.f32.at)
        memcpy(cpu_ptr(kern_at(p->to.f32, to * f32)), cpu_ptr(kern_at(p->from.f32, from * f32)),
               f32);
    if (p->to.q8.at)
        memcpy(cpu_ptr(kern_at(p->to.q8, to * q8)), cpu_ptr(kern_at(p->from.q8, from * q8)), q8);
}

void cpu_pick(kern_dev *dev, const kern_pick *p) {
    rows_run((rows){dev, p, pick_row, p->n});
}
