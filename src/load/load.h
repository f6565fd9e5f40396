/* Model files: GGUF v2/v3 -> one weight table, one config, one vocabulary. mmap, borrowed pointers,
 * strict bounds.
 *
 * load_open validates everything that running the model needs: after it, no later code meets a
 * missing tensor, a wrong shape, or an index outside the file. Every failure is WEFT_ERR_FILE with
 * the key or tensor, its value, what would be right, and the offset. Nothing is allocated by a
 * length from the file before it was compared with the bytes left. Doubtful but usable things warn
 * (log_warn). */
#ifndef WEFT_LOAD_LOAD_H
#define WEFT_LOAD_LOAD_H

#include "base/status.h"
#include "tensor/dtype.h"

typedef struct load_tensor {
    const char *name; /* NUL-terminated, owned by the model */
    uint32_t ggml_type;
    int32_t n_dim;
    int64_t dim[4];   /* GGUF order: dim[0] is the row length (k), dim[1] the number of rows; unused
                         ones are 1 */
    const void *data; /* into the mapping */
    size_t bytes;
    int64_t offset; /* in the file */
} load_tensor;

typedef struct load_config {
    const char *architecture; /* "llama" */
    const char *name;
    int32_t n_layer, hidden, ffn, n_head, n_kv_head, head_dim, n_vocab, context_length, rope_dim;
    double rope_base;
    float rms_eps;
    bool tied_output;
} load_config;

enum {
    LOAD_TOKEN_NORMAL = 1,
    LOAD_TOKEN_UNKNOWN = 2,
    LOAD_TOKEN_CONTROL = 3,
    LOAD_TOKEN_USER = 4,
    LOAD_TOKEN_UNUSED = 5,
    LOAD_TOKEN_BYTE = 6
};

typedef struct load_string {
    const char *data; /* not NUL-terminated */
    size_t bytes;
} load_string;

/* A vocabulary has one of two sources. Of a folder: tokenizer_json, which says all about texts and
 * tokens; then `model`, `pre` and the arrays are NULL and their counts 0. Of a GGUF: all but
 * tokenizer_json. The last group belongs to both. */
enum { LOAD_MAX_EOS = 8 };
typedef struct load_vocab {
    load_string tokenizer_json; /* the bytes of tokenizer.json; data NULL: none */

    const char *model; /* tokenizer.ggml.model: "gpt2", "llama", "gemma4" */
    const char *pre;   /* tokenizer.ggml.pre, NULL: none */
    int32_t n_token, n_merge;
    const load_string *token; /* [n_token] as the file spells them */
    const uint8_t *type;      /* [n_token] LOAD_TOKEN_* */
    const float *score;       /* [n_token], NULL: none */
    const load_string *merge; /* [n_merge] "left right" */
    int32_t unk;              /* -1: none */
    bool add_space_prefix;    /* a text begins with a blank of its own (model "llama") */
    bool add_bos_unsaid;      /* the file has no add_bos: what is usual for model and pre holds */

    int32_t bos;                   /* -1: none */
    int32_t eos_ids[LOAD_MAX_EOS]; /* [n_eos] tokens that end an answer, the main one first */
    int32_t n_eos;
    bool add_bos; /* a text begins with bos, also where tokenizer_json does not say so */
    load_string chat_template; /* data NULL: none */
} load_vocab;

/* One layer of a llama model; NULL where the model has none. */
typedef struct load_llama_layer {
    const load_tensor *attn_norm, *attn_q, *attn_k, *attn_v, *attn_o, *ffn_norm, *ffn_gate, *ffn_up,
        *ffn_down;
} load_llama_layer;
typedef struct load_llama {
    const load_tensor *token_embd, *output_norm, *output; /* output == token_embd when tied */
    const load_llama_layer *layer;                        /* [n_layer] */
} load_llama;

typedef struct load_model load_model;

weft_status load_open(const char *path, load_model **out, weft_error *err);
/* Only the vocabulary: the rest of the file is not looked at and may be missing. The questions below
 * about configuration and weights have no answer then. */
weft_status load_open_vocab(const char *path, load_model **out, weft_error *err);
/* load_open over bytes in memory (borrowed, 8-byte aligned), for fuzzing. */
weft_status load_open_memory(const void *data, size_t bytes, const char *name, load_model **out,
                             weft_error *err);
void load_close(load_model *m); /* NULL is allowed */
/* The file's pages stop counting as the process's; who reads them again gets them from the system's
 * file cache. For after the weights are packed: the plain ones are hardly read any more. */
void load_forget_pages(const load_model *m);

const load_config *load_get_config(const load_model *m);
const load_vocab *load_get_vocab(const load_model *m);
const load_llama *load_get_llama(const load_model *m);
int64_t load_file_bytes(const load_model *m);
int32_t load_tensor_count(const load_model *m);
const load_tensor *load_tensor_at(const load_model *m, int32_t i); /* file order */

/* Metadata for `inspect`: key i of n, its value as text (long arrays and strings are cut with
 * "..."). */
int32_t load_key_count(const load_model *m);
const char *load_key_at(const load_model *m, int32_t i);
void load_value_text(const load_model *m, int32_t i, char *out, size_t out_bytes);

/* safetensors reader for goldens and references (eval): header JSON by jansson, strict ranges. */
typedef struct load_st load_st;
typedef struct load_st_tensor {
    char dtype[8]; /* "F32", "I64", ... */
    int32_t n_dim;
    int64_t dim[8];
    const void *data;
    size_t bytes;
} load_st_tensor;
weft_status load_st_open(const char *path, load_st **out, weft_error *err);
void load_st_close(load_st *s);
/* False when there is no such tensor. */
bool load_st_find(const load_st *s, const char *name, load_st_tensor *out);

#endif
