/* Tiny random-weight llama and mixtral models, written as GGUF files of the shape that a test wants.
 *
 * Vocabulary: ids 0..255 are the bytes, then six merges, then unused words; the last id is the end
 * token. */
#ifndef WEFT_TESTS_CP_TOY_H
#define WEFT_TESTS_CP_TOY_H

#include "weft.h"

enum { TOY_F32 = 0, TOY_F16 = 1, TOY_Q4_0 = 2, TOY_Q8_0 = 8, TOY_BF16 = 30 }; /* ggml's numbers */

typedef struct toy_shape {
    const char *name; /* for messages */
    int32_t n_layer, n_head, n_kv_head, head_dim, hidden, ffn, n_vocab, context;
    uint32_t type; /* of the matrices; norms are F32 */
    bool tied;     /* no output tensor: the embedding is the head */
    uint64_t seed;
    /* After chain[i] the greedy token is chain[i + 1]; after the last one the first. Ids are
     * distinct; the matrices are F32 and the layers nearly silent. NULL: random. */
    const int32_t *chain;
    int32_t n_chain;
    int32_t poison; /* > 0: the embedding of this id is infinite (F32 only) */
    float down;     /* > 0: size of the MLP's down projection, instead of the usual one */
    /* > 0: experts in place of the MLP, each ffn wide */
    int32_t n_expert, n_used;
    bool up_half;  /* their up is F16, whatever the type */
    bool like_one; /* all tokens choose alike: experts liked, liked + 1, .. (F32 only) */
    int32_t liked;
} toy_shape;

/* 8 query and 2 KV heads of 32, two Q4_0 layers: legal with tp 8, more ranks than KV heads. */
extern const toy_shape toy_gqa;
/* The shapes that tests over several models use, among them toy_gqa. */
extern const toy_shape *const toy_shapes[];
extern const int32_t toy_n_shape;

/* Writes the file, opens the model and removes the file. A failure fails the test. */
weft_model *toy_open(const toy_shape *s);
int32_t toy_end_token(const toy_shape *s);

#endif
