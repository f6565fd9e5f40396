/* What the files of load/ hand to each other: from read containers to a model. */
#ifndef WEFT_LOAD_MODEL_H
#define WEFT_LOAD_MODEL_H

#include "load/gguf.h"
#include "load/meta.h"

/* A file, or the caller's bytes. */
typedef struct load_part {
    const char *shown; /* its name, fit for a message */
    const uint8_t *bytes;
    size_t n_bytes;
    bool mapped;
} load_part;

/* config.json: every member by its path. */
typedef struct load_paths {
    struct json_t *root;         /* owned */
    load_string *path;           /* [n_node], NUL-terminated */
    const struct json_t **value; /* [n_node]: leaves and arrays in file order, then groups */
    int32_t n_leaf, n_node;
    text_table table;
} load_paths;

struct load_model {
    load_arena arena; /* owns everything but mappings and paths.root */
    load_kind kind;
    const char *shown_name, *name;
    load_part *part; /* [n_part], the files with tensors */
    int32_t n_part;
    load_part side[2]; /* files without: tokenizer.json, chat_template.jinja */
    int32_t n_side;
    /* tensors of all parts */
    load_tensor *tensor;      /* [n_tensor] of room for max_tensor */
    load_string *tensor_name; /* [n_tensor] */
    int32_t n_tensor, max_tensor;
    text_table tensor_table;
    /* description */
    const load_meta *meta;
    gguf_file file;                   /* LOAD_GGUF: the first part */
    load_paths paths;                 /* LOAD_FOLDER */
    const char *member, *stem, *rest; /* of load_enter; NULL: the whole folder */
    bool *key_read;                   /* [keys of the description, groups too] */
    load_vocab vocab;
};

/* ---- open.c ---- */

/* A path as messages show it, in the arena; NULL: no memory. */
const char *load_show_path(load_model *m, const char *path);
/* Maps a file; its messages will call it `shown` (kept). */
weft_status load_map_part(const char *path, const char *shown, load_part *out, weft_error *err);
/* "a" "/" "b" and so on in the model's memory; NULL when there is none. */
const char *load_join(load_model *m, const char *a, const char *b, const char *c);
weft_status load_reserve_tensors(load_model *m, size_t n, weft_error *err);
/* The name stays the caller's and must live as long as the model. Refuses a second tensor of the
 * same name. */
weft_status load_add_tensor(load_model *m, const load_tensor *t, weft_error *err);
/* NULL when the address lies in none. */
const load_part *load_part_of(const load_model *m, const void *address);

/* ---- split.c: m from one GGUF, or from all parts of a split one ---- */

weft_status load_read_gguf(load_model *m, const char *path, weft_error *err);
/* The same from m->part[0] alone. */
weft_status load_read_gguf_memory(load_model *m, weft_error *err);

/* ---- folder.c ---- */

/* m from a folder, shown as m->shown_name; without `weights`, config.json may be absent too. */
weft_status load_read_folder(load_model *m, const char *folder, bool weights, weft_error *err);
/* A file of the folder: its path, and how messages call it. */
weft_status folder_file(load_model *m, const char *folder, const char *name, const char **path,
                        const char **shown, weft_error *err);

/* ---- meta_json.c ---- */

/* Takes the reference to `root`, an object, also on failure. */
weft_status load_read_paths(load_model *m, struct json_t *root, weft_error *err);

/* ---- vocabularies ---- */

/* Fills m->vocab from m->file. */
weft_status load_read_vocab(load_model *m, weft_error *err);
/* The same from the files of a folder; after load_read_paths. */
weft_status load_read_folder_vocab(load_model *m, const char *folder, weft_error *err);

#endif
