/* What the files of load/ hand to each other: from a read container to a checked model. */
#ifndef WEFT_LOAD_MODEL_H
#define WEFT_LOAD_MODEL_H

#include "load/gguf.h"

struct load_model {
    load_arena arena; /* owns everything but the mapping */
    const char *shown_name;
    gguf_file file;
    bool *key_read; /* [file.n_key] */
    load_vocab vocab;
    const void *map; /* NULL: the bytes are the caller's */
    size_t map_bytes;
};

/* Fills m->vocab from m->file. */
weft_status load_read_vocab(load_model *m, weft_error *err);

#endif
