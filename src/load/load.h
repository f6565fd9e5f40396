/* Model files: GGUF v2/v3, or a folder as Hugging Face writes it -> tensors by name, a description by
 * key, a vocabulary. mmap, borrowed pointers, strict bounds.
 *
 * Knows containers, not models: after load_open every tensor lies inside its file and every value
 * inside the description; what they mean, and whether any is missing, is for model/ to say. Every
 * failure is WEFT_ERR_FILE with the key or tensor, its value, what would be right, and the offset.
 * Nothing is allocated by a length from the file before it was compared with the bytes left.
 * Doubtful but usable things warn (log_warn). */
#ifndef WEFT_LOAD_LOAD_H
#define WEFT_LOAD_LOAD_H

#include "base/status.h"
#include "tensor/dtype.h"

/* ggml_type of a tensor whose type has no number there (safetensors' U8, F8_E4M3, ...): dtype_find
 * and dtype_ggml_name do not know it, type_name names it. Such tensors are listed; who needs one
 * refuses it. */
#define LOAD_NO_GGML_TYPE UINT32_MAX

typedef struct load_tensor {
    const char *name; /* NUL-terminated, owned by the model */
    uint32_t ggml_type;
    const char *type_name; /* as the file calls it: "Q4_1", "BF16", "F8_E4M3" */
    int32_t n_dim;         /* 1 to 4 */
    int64_t dim[4];   /* GGUF order: dim[0] is the row length (k), dim[1] the number of rows; unused
                         ones are 1. safetensors has them the other way round. */
    const void *data; /* into the mapping */
    size_t bytes;
    int64_t offset; /* in its file */
} load_tensor;

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
    const char *shown;          /* the model, for messages; NULL: they name none */
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
    load_string bos_text; /* of a folder: the token that `bos` gives way to; data NULL: none */
    bool add_bos;         /* a text begins with bos, also where tokenizer_json does not say so */
    bool drop_bos;        /* a text does not, whatever tokenizer_json says */
    load_string chat_template; /* data NULL: none */
} load_vocab;

typedef struct load_model load_model;
typedef enum load_kind { LOAD_GGUF, LOAD_FOLDER } load_kind;

/* A GGUF file; one file of a split one (-00001-of-00003.gguf: the others are opened too); a folder or
 * its config.json, with weights in model.safetensors or in the files that
 * model.safetensors.index.json names. A folder's tokenizer.json, generation_config.json,
 * chat_template.jinja and tokenizer_config.json may be absent: then the vocabulary lacks what they
 * say. */
weft_status load_open(const char *path, load_model **out, weft_error *err);
/* Only the vocabulary: a folder's weights and config.json are not needed. A GGUF is opened as by
 * load_open, which asks for no tensors. */
weft_status load_open_vocab(const char *path, load_model **out, weft_error *err);
/* A GGUF file's bytes in memory (borrowed, 8-byte aligned), for fuzzing. */
weft_status load_open_memory(const void *data, size_t bytes, const char *name, load_model **out,
                             weft_error *err);
void load_close(load_model *m); /* NULL is allowed */
/* The files' pages stop counting as the process's; who reads them again gets them from the system's
 * file cache. For after the weights are packed: the plain ones are hardly read any more. */
void load_forget_pages(const load_model *m);
/* The same for the pages that hold nothing but this tensor: packing that calls it tensor by tensor
 * never has more of the files in memory than one of them. */
void load_forget_tensor(const load_model *m, const load_tensor *t);

/* A folder that holds a language model beside other ones: from here on keys are looked up inside of
 * config.json's object `member`, and tensors "model.X" under `stem`X, others under `rest` and their
 * name. All three texts stay the caller's. Messages and lists say whole names. */
void load_enter(load_model *m, const char *member, const char *stem, const char *rest);

load_kind load_get_kind(const load_model *m);
/* File or folder, fit for a message: as it was given, and without what stands before its name. */
const char *load_shown_name(const load_model *m);
const char *load_name(const load_model *m);
const load_vocab *load_get_vocab(const load_model *m);
int64_t load_file_bytes(const load_model *m); /* of all files with tensors */
int32_t load_tensor_count(const load_model *m);
const load_tensor *load_tensor_at(const load_model *m, int32_t i);    /* file order */
int32_t load_tensor_index(const load_model *m, const load_tensor *t); /* of load_tensor_at */
/* NULL when there is none. */
const load_tensor *load_find_tensor(const load_model *m, const char *name);

/* ---- the description: GGUF metadata, or config.json ----
 * A key of a folder is a path of member names joined by dots: "rope_parameters.rope_theta"; also a
 * path to an object is there (load_has), but has no value. A null is an absent key. An integer may
 * have any of GGUF's integer types, in config.json also the form 1e4 or 10000.0; a real number is
 * FLOAT32 or FLOAT64, in config.json any number. The getters leave *out as it is when the key is absent and not required; a value of
 * the wrong type or outside [lo, hi] is WEFT_ERR_FILE naming the key, the value and what was
 * expected. Each marks the key as read (load_key_is_read), also when it fails or is absent. */
bool load_has(const load_model *m, const char *key);
weft_status load_get_int(const load_model *m, const char *key, bool required, int32_t lo,
                         int32_t hi, int32_t *out, weft_error *err);
weft_status load_get_real(const load_model *m, const char *key, bool required, double lo, double hi,
                          double *out, weft_error *err);
weft_status load_get_flag(const load_model *m, const char *key, bool required, bool *out,
                          weft_error *err);
/* Borrowed until load_close. */
weft_status load_get_text(const load_model *m, const char *key, bool required, load_string *out,
                          weft_error *err);
/* Entries of an array; -1 when the key is absent or no array. */
int32_t load_array_length(const load_model *m, const char *key);
/* Entry i of an array: an integer (a bool is 0 or 1), or a text. */
weft_status load_array_int(const load_model *m, const char *key, int32_t i, int32_t lo, int32_t hi,
                           int32_t *out, weft_error *err);
weft_status load_array_text(const load_model *m, const char *key, int32_t i, load_string *out,
                            weft_error *err);
/* "KEY is VALUE: weft does not compute this, expected EXPECTED". Always WEFT_ERR_FILE. */
weft_status load_refuse(const load_model *m, const char *key, const char *expected,
                        weft_error *err);

/* Key i of n (of a folder: every leaf and every array of config.json, as a path; of a split GGUF: the first
 * file's), its value as text (long arrays and strings are cut with "..."), its value as a number (a
 * flag is 0 or 1; false when it is none). */
int32_t load_key_count(const load_model *m);
const char *load_key_at(const load_model *m, int32_t i);
void load_value_text(const load_model *m, int32_t i, char *out, size_t out_bytes);
bool load_value_number(const load_model *m, int32_t i, double *out);
bool load_key_is_read(const load_model *m, int32_t i);

/* safetensors reader for goldens and references (eval), as strict as that of models; empty tensors
 * are fine here. */
typedef struct load_st load_st;
typedef struct load_st_tensor {
    char dtype[16]; /* "F32", "I64", ... */
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
