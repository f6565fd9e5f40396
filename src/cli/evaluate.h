/* Running prompts for their logits: what the evaluations share. */
#ifndef WEFT_CLI_EVALUATE_H
#define WEFT_CLI_EVALUATE_H

#include "weft.h"

/* A prompt to score, and what to call with each logits row of it (position: of the fed token). Rows
 * of one prompt may come in any order and from several threads at once: row() must touch nothing
 * but what belongs to its position. */
typedef struct evaluate_prompt {
    const int32_t *ids; /* [n] borrowed */
    int32_t n;
    int32_t n_greedy; /* tokens to continue with greedily, at least 1 */
    int32_t *greedy;  /* [n_greedy] out, may be NULL */
    void (*row)(void *user, int32_t position, const float *logits, int32_t n_vocab);
    void *user;
} evaluate_prompt;

/* Opens an engine with `params` (max_model_len is raised to what the prompts need), runs all
 * prompts, closes it. */
weft_status evaluate_run(weft_model *model, const weft_engine_params *params,
                         evaluate_prompt *prompts, int32_t n, weft_error *err);

/* The place of the largest logit. */
int32_t evaluate_argmax(const float *logits, int32_t n_vocab);

#endif
