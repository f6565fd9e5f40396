/* What the files of load/ hand to each other: from a read container to a checked model. */
#ifndef WEFT_LOAD_MODEL_H
#define WEFT_LOAD_MODEL_H

#include "load/gguf.h"

struct load_model {
    load_arena arena; /* owns everything but the mapping */
    const char *shown_name;
    gguf_file file;
    load_config config;
    load_vocab vocab;
    load_llama llama;
    const void *map; /* NULL: the bytes are the caller's */
    size_t map_bytes;
};

/* Each fills its part of *m from what the ones before it have filled, in this order. */
weft_status load_read_config(load_model *m, weft_error *err); /* all but n_vocab, tied_output */
weft_status load_read_vocab(load_model *m, weft_error *err);  /* also config.n_vocab */
weft_status load_read_llama(load_model *m, weft_error *err);  /* also config.tied_output */

#endif
