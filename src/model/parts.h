/* What the pieces of layer programs share. Private to src/model. */
#ifndef WEFT_MODEL_PARTS_H
#define WEFT_MODEL_PARTS_H

#include "base/trace.h"
#include "model/program.h"

/* Address of element i of the uploaded step block. */
static inline kern_mem step_at(const model_step *s, int32_t i) {
    return kern_at(s->block, (size_t)i * sizeof(int32_t));
}

/* The norm behind layer i: that of the next layer's attention, or the last. */
kern_mem next_norm(const model_rank *r, int32_t i);

/* y rows [n][y_stride] of one matrix's outputs [out0, out0 + n_out), column-parallel. */
void linear_one(model_rank *r, kern_act x, int32_t n_row, const kern_weight *w, int32_t out0,
                int32_t n_out, kern_mem bias, kern_mem y, int32_t y_stride);
/* The same for heads: output o reads the columns of its group of group_out outputs. */
void linear_groups(model_rank *r, kern_act x, int32_t n_row, const kern_weight *w, int32_t out0,
                   int32_t n_out, int32_t group_out, kern_mem y);

/* Own leaves of a row-parallel layer to nodes [emit][n_row][hidden] at `to`. */
void reduce_own(model_rank *r, const model_reduce *d, const char *name, const kern_weight *w,
                kern_act in, int32_t n_row, kern_mem to);
/* A row-parallel layer: own leaves, all members' nodes here, tree, x += it, the next norm. */
typedef struct reduce_end {
    kern_mem bias, post, norm; /* as in kern_reduce_norm */
    float x_scale;
} reduce_end;
weft_status reduce_layer(model_rank *r, const model_reduce *d, const char *name,
                         const kern_weight *w, kern_act in, int32_t n_row, reduce_end end);
/* Its first half: own leaves, all members' nodes at r->nodes, off: [d->finish.n_push] where each begins. */
weft_status reduce_gather(model_rank *r, const model_reduce *d, const char *name,
                          const kern_weight *w, kern_act in, int32_t n_row, size_t *off);
/* out = norm(x, weight), rows of out.k; out may be where x lies. */
void norm_rows(model_rank *r, kern_mem x, int32_t n_row, kern_mem weight, kern_act out);
/* x += rows that are whole already. */
void add_rows(model_rank *r, kern_mem rows, int32_t n_row, reduce_end end);

/* rule(gate a, up a) of this rank's columns, for the matrix `down`. */
kern_act gated(model_rank *r, int32_t n_row, const kern_weight *gate, const kern_weight *up,
               const model_reduce *down);
/* What ends the MLP half of layer i. */
reduce_end mlp_end(const model_rank *r, int32_t i);

/* Experts of n_row rows, into r->expert and r->weight; x: what the router reads, then what the experts
 * read, both normed rows of `residual`. */
void choose_experts(model_rank *r, kern_act x, kern_mem residual, int32_t n_row,
                    const model_layer_weights *w);

#endif
