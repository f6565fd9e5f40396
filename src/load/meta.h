/* The description of a model behind one view, whatever holds it: meta.c answers the questions of
 * load.h, a container only says what stands where. */
#ifndef WEFT_LOAD_META_H
#define WEFT_LOAD_META_H

#include "load/load.h"

/* What a value may be read as. */
enum { META_INT = 1, META_REAL = 2, META_FLAG = 4, META_TEXT = 8 };

typedef struct meta_value {
    uint32_t as;      /* META_*; 0: an array or a group */
    int64_t i;        /* META_INT, META_FLAG */
    double r;         /* META_REAL */
    load_string text; /* META_TEXT */
    const char *type; /* for messages: "FLOAT32"; NULL: the value's text says it */
    int64_t offset;   /* in the file, -1: not known */
} meta_value;

typedef struct load_meta {
    int32_t (*count)(const load_model *m);
    /* -1: none. Indices past count() are groups, which are found but not listed. */
    int32_t (*find)(const load_model *m, const char *key);
    const char *(*key)(const load_model *m, int32_t i);
    int32_t (*length)(const load_model *m, int32_t i); /* of an array; -1: no array */
    /* Value i, or entry e >= 0 of array i. */
    meta_value (*value)(const load_model *m, int32_t i, int32_t e);
    void (*text)(const load_model *m, int32_t i, int32_t e, char *out, size_t out_bytes);
} load_meta;

extern const load_meta meta_gguf, meta_json;

#endif
