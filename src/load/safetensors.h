/* The container format safetensors: bytes -> named tensors. Knows nothing of models.
 *
 *   u64 header bytes | JSON header | data
 *
 * The header maps each name to {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]},
 * offsets counted from the end of the header; "__metadata__" maps strings to strings and is
 * skipped. */
#ifndef WEFT_LOAD_SAFETENSORS_H
#define WEFT_LOAD_SAFETENSORS_H

#include "load/text.h"

typedef struct st_tensor {
    load_string name;   /* NUL-terminated, UTF-8 without control characters */
    const char *dtype;  /* static */
    uint32_t ggml_type; /* LOAD_NO_GGML_TYPE: none */
    int32_t n_dim;
    int64_t dim[8];      /* as the file has them: the row length is the last */
    uint64_t begin, end; /* in the data */
    int64_t offset;      /* in the file */
} st_tensor;

/* Reads and checks: afterwards the tensors cover the data from the first byte to the last, none
 * overlaps another, each has as many bytes as dtype and shape make and is aligned for its dtype.
 * *out: [*n_out] by offset. Memory comes from the arena, which the caller frees on failure too. */
weft_status st_read(const void *bytes, size_t n_bytes, load_arena *arena, st_tensor **out,
                    int32_t *n_out, weft_error *err);

#endif
