/* The pieces that layer programs are made of. x is the residual (f32 rows), a the normed rows that
 * the next matrix reads; every piece works on this rank's rows and leaves x and a ready for the next.
 * Pieces that exchange something are called by every rank in every layer, with or without rows. */
#ifndef WEFT_MODEL_PROGRAM_H
#define WEFT_MODEL_PROGRAM_H

#include "model/model.h"

/* Attention half: x += post(attention(a)) ; a = norm(x) for the other half. */
weft_status program_gqa(model_rank *r, const model_step *s, int32_t i);
weft_status program_mla(model_rank *r, const model_step *s, int32_t i);
/* MLP half: x += post(mlp(a)) ; a = norm(x) for the next layer. */
weft_status program_mlp(model_rank *r, const model_step *s, int32_t i);
weft_status program_moe(model_rank *r, const model_step *s, int32_t i);
/* Experts beside the dense MLP, both of x: x += post(expert_post(moe(..)) + mlp_post(mlp(..))). */
weft_status program_moe_and_mlp(model_rank *r, const model_step *s, int32_t i);
/* r->moe = what the experts make of the rows. Two ways: each expert cut over TP, whole experts over the
 * world. The same bytes. */
weft_status program_moe_cut(model_rank *r, const model_step *s, int32_t i);
weft_status program_moe_whole(model_rank *r, const model_step *s, int32_t i);
/* Per-layer inputs: x = (x + norm(W_out (gelu(W_gate x) * input_i))) * x_scale. */
weft_status program_ple(model_rank *r, const model_step *s, int32_t i);

#endif
