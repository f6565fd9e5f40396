/* Logits -> token (numerics rule N7), by one rule whatever the batch.
 *
 * Order: bias, penalties, temperature, top-k, top-p, min-p, then Gumbel-max over the kept set with noise
 * keyed by (seed, output index, token id). Penalties come from integer counts of this request's own
 * tokens (repetition: prompt and output; presence, frequency: output). Non-finite logits have
 * probability 0; a row without a finite one is WEFT_ERR_NUMERIC. Ties go to the smaller id. */
#ifndef WEFT_SAMPLE_SAMPLE_H
#define WEFT_SAMPLE_SAMPLE_H

#include "kern/kern.h"

typedef struct sampler sampler; /* scratch of one thread */

weft_status sampler_open(const kern_table *k, int32_t n_vocab, sampler **out, weft_error *err);
size_t sampler_bytes(int32_t n_vocab); /* that it takes */
void sampler_close(sampler *s);

typedef struct sample_top {
    int32_t token;
    float logprob;
} sample_top;

typedef struct sample_result {
    int32_t token;
    float logprob; /* of token, from the raw logits */
    int32_t n_top;
    sample_top top[WEFT_MAX_TOP]; /* logit descending, id ascending */
} sample_result;

/* WEFT_ERR_USAGE names the first parameter out of range and its range. top_k <= 0 is off and larger
 * than the vocabulary is the vocabulary. */
weft_status sample_check(const weft_sampling *p, weft_error *err);
weft_status sample_check_bias(const weft_bias *bias, int32_t n_bias, int32_t n_vocab,
                              weft_error *err);

/* What a pick knows of its request beside the parameters. */
typedef struct sample_context {
    const int32_t *token;      /* [n_token] prompt and output so far, n_prompt of them prompt */
    int32_t n_prompt, n_token; /* the output index is n_token - n_prompt */
    const weft_bias *bias;     /* [n_bias] */
    int32_t n_bias;
} sample_context;

/* Picks the next token. No malloc. */
weft_status sample_pick(sampler *s, const float *logits, const weft_sampling *p,
                        const sample_context *c, sample_result *out);
/* Log-probability of a given token and the n_top most likely, for rows of a prompt. token -1: only
 * the top. */
weft_status sample_score(sampler *s, const float *logits, int32_t token, int32_t n_top,
                         sample_result *out);

/* log(sum exp(logits)) over finite entries, fixed order, double; -inf when none is finite. */
double sample_lse(const kern_table *k, const float *logits, int32_t n);

#endif
