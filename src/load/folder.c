/* A folder as Hugging Face writes it: config.json, weights in model.safetensors or in the files that
 * model.safetensors.index.json names, and the files of the vocabulary (folder_vocab.c). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "load/json.h"
#include "load/mapping.h"
#include "load/model.h"
#include "load/safetensors.h"

#define WEIGHTS "model.safetensors"
#define INDEX "model.safetensors.index.json"

enum { MAX_CONFIG_BYTES = 16 << 20, MAX_INDEX_BYTES = 100 << 20, MAX_TENSOR_DIM = 4 };

weft_status folder_file(load_model *m, const char *folder, const char *name, const char **path,
                        const char **shown, weft_error *err) {
    *path = load_join(m, folder, "/", name);
    *shown = load_join(m, m->shown_name, "/", name);
    return *path != NULL && *shown != NULL
               ? WEFT_OK
               : error_set(err, WEFT_ERR_MEMORY, "no memory for the names of files");
}

/* ---- config.json ---- */

static weft_status no_config(const char *folder, weft_error *err) {
    char text[300];
    text_show(text_of(folder), text, sizeof text);
    return error_set(err, WEFT_ERR_FILE,
                     "cannot open %s: a directory without config.json, expected a GGUF file or a "
                     "folder with config.json and " WEIGHTS,
                     text);
}

static weft_status read_config(load_model *m, const char *folder, bool required, weft_error *err) {
    const char *path, *shown;
    json_t *root = NULL;
    weft_status s = folder_file(m, folder, "config.json", &path, &shown, err);
    if (s != WEFT_OK) {
        return s;
    }
    if (access(path, F_OK) == 0) {
        s = json_read_file(path, shown, MAX_CONFIG_BYTES, &root, err);
    } else if (required) {
        return no_config(folder, err);
    } else {
        root = json_object();
    }
    if (root == NULL) {
        return s != WEFT_OK ? s : error_set(err, WEFT_ERR_MEMORY, "no memory to open a model");
    }
    m->kind = LOAD_FOLDER;
    m->meta = &meta_json;
    weft_error what;
    s = load_read_paths(m, root, &what);
    return s == WEFT_OK ? s : load_name_error(shown, &what, err);
}

/* ---- tensors of one file ---- */

/* What a model can hold is less than what the container can. */
static weft_status convert(const load_part *p, const st_tensor *from, load_tensor *t,
                           weft_error *err) {
    char name[160];
    text_show(from->name, name, sizeof name);
    if (from->n_dim > MAX_TENSOR_DIM) {
        return error_set_at(err, WEFT_ERR_FILE, from->offset,
                            "tensor %s: %d dimensions, expected at most %d", name, from->n_dim,
                            MAX_TENSOR_DIM);
    }
    if (from->begin == from->end) {
        return error_set_at(err, WEFT_ERR_FILE, from->offset,
                            "tensor %s: the tensor is empty, expected every dimension to be at "
                            "least 1",
                            name);
    }
    *t = (load_tensor){.name = from->name.data,
                       .ggml_type = from->ggml_type,
                       .type_name = from->dtype,
                       .n_dim = from->n_dim > 0 ? from->n_dim : 1,
                       .dim = {1, 1, 1, 1},
                       .data = p->bytes + from->offset,
                       .bytes = (size_t)(from->end - from->begin),
                       .offset = from->offset};
    for (int32_t i = 0; i < from->n_dim; i++) {
        t->dim[i] = from->dim[from->n_dim - 1 - i];
    }
    return WEFT_OK;
}

/* Maps and reads part i. */
static weft_status open_part(load_model *m, int32_t i, const char *folder, const char *name,
                             st_tensor **tensor, int32_t *n, weft_error *err) {
    const char *path, *shown;
    weft_status s;
    if ((s = folder_file(m, folder, name, &path, &shown, err)) != WEFT_OK ||
        (s = load_map_part(path, shown, &m->part[i], err)) != WEFT_OK) {
        return s;
    }
    m->n_part = i + 1;
    weft_error what;
    s = st_read(m->part[i].bytes, m->part[i].n_bytes, &m->arena, tensor, n, &what);
    return s == WEFT_OK ? s : load_name_error(shown, &what, err);
}

static weft_status add(load_model *m, const load_part *p, const st_tensor *from, weft_error *err) {
    load_tensor t;
    weft_error what;
    weft_status s;
    if ((s = convert(p, from, &t, &what)) == WEFT_OK &&
        (s = load_add_tensor(m, &t, &what)) == WEFT_OK) {
        return s;
    }
    return load_name_error(p->shown, &what, err);
}

static weft_status read_single(load_model *m, const char *folder, weft_error *err) {
    st_tensor *tensor;
    int32_t n;
    weft_status s;
    m->part = load_arena_take(&m->arena, 1, sizeof *m->part);
    if (m->part == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory to open a model");
    }
    if ((s = open_part(m, 0, folder, WEIGHTS, &tensor, &n, err)) != WEFT_OK ||
        (s = load_reserve_tensors(m, (size_t)n, err)) != WEFT_OK) {
        return s;
    }
    for (int32_t i = 0; i < n && s == WEFT_OK; i++) {
        s = add(m, &m->part[0], &tensor[i], err);
    }
    return s;
}

/* ---- many files ---- */

typedef struct shards {
    load_model *m;
    const char *folder, *shown; /* of the index */
    const json_t *map;          /* tensor -> name of a file */
    load_string *name;          /* [n] files, in the order of their names */
    int32_t n;
    weft_error *err;
} shards;

static weft_status bad_index(const shards *sh, const char *tensor, const char *value,
                             const char *wrong) {
    char what[160], shown[160];
    text_show(text_of(tensor), what, sizeof what);
    text_show(text_of(value), shown, sizeof shown);
    return error_set(sh->err, WEFT_ERR_FILE, "%s: weight_map puts tensor %s into %s: %s", sh->shown,
                     what, shown, wrong);
}

/* A shard is a file beside the index and nowhere else. */
static bool is_file_name(const char *name) {
    static const char suffix[] = ".safetensors";
    size_t n = strlen(name), n_suffix = strlen(suffix);
    return n > n_suffix && strcmp(name + n - n_suffix, suffix) == 0 && strchr(name, '/') == NULL &&
           text_is_plain(text_of(name));
}

static int by_text(const void *a, const void *b) {
    return strcmp(((const load_string *)a)->data, ((const load_string *)b)->data);
}

/* sh->name: every file that the index names, once. */
static weft_status list_files(shards *sh) {
    text_table table;
    size_t n = json_object_size(sh->map);
    load_arena *arena = &sh->m->arena;
    sh->name = load_arena_take(arena, n + 1, sizeof *sh->name);
    if (sh->name == NULL || !text_table_init(&table, arena, sh->name, n + 1)) {
        return error_set(sh->err, WEFT_ERR_MEMORY, "no memory for the %zu entries of " INDEX, n);
    }
    const char *tensor;
    const json_t *file;
    json_object_foreach((json_t *)(uintptr_t)sh->map, tensor, file) {
        const char *name = json_string_value(file);
        if (name == NULL) {
            return bad_index(sh, tensor, "no string", "expected the name of a file");
        }
        if (!is_file_name(name)) {
            return bad_index(sh, tensor, name,
                             "expected the name of a file beside the index that ends in "
                             ".safetensors");
        }
        sh->name[sh->n] = text_of(name);
        sh->n += text_table_add(&table, sh->n) < 0;
    }
    qsort(sh->name, (size_t)sh->n, sizeof *sh->name, by_text);
    return WEFT_OK;
}

static weft_status read_shard(const shards *sh, int32_t i) {
    load_model *m = sh->m;
    st_tensor *tensor;
    int32_t n;
    weft_status s = open_part(m, i, sh->folder, sh->name[i].data, &tensor, &n, sh->err);
    if (s != WEFT_OK) {
        return s;
    }
    for (int32_t k = 0; k < n; k++) {
        const char *named = json_string_value(json_object_get(sh->map, tensor[k].name.data));
        if (named == NULL || strcmp(named, sh->name[i].data) != 0) {
            char name[160], other[160];
            text_show(tensor[k].name, name, sizeof name);
            text_show(text_of(named != NULL ? named : "no file"), other, sizeof other);
            return error_set_at(sh->err, WEFT_ERR_FILE, tensor[k].offset,
                                "%s: tensor %s: weight_map of " INDEX
                                " puts it into %s, expected this file",
                                m->part[i].shown, name, other);
        }
        if ((s = add(m, &m->part[i], &tensor[k], sh->err)) != WEFT_OK) {
            return s;
        }
    }
    return WEFT_OK;
}

/* Every tensor of every file is one that the index names; now the other way round. */
static weft_status check_complete(const shards *sh) {
    const char *tensor;
    const json_t *file;
    json_object_foreach((json_t *)(uintptr_t)sh->map, tensor, file) {
        if (load_find_tensor(sh->m, tensor) == NULL) {
            return bad_index(sh, tensor, json_string_value(file), "the file does not hold it");
        }
    }
    return WEFT_OK;
}

static weft_status read_shards(shards *sh) {
    load_model *m = sh->m;
    weft_status s = list_files(sh);
    if (s != WEFT_OK ||
        (s = load_reserve_tensors(m, json_object_size(sh->map), sh->err)) != WEFT_OK) {
        return s;
    }
    m->part = load_arena_take(&m->arena, (size_t)sh->n, sizeof *m->part);
    if (m->part == NULL) {
        return error_set(sh->err, WEFT_ERR_MEMORY, "no memory for %d files", sh->n);
    }
    for (int32_t i = 0; i < sh->n && s == WEFT_OK; i++) {
        s = read_shard(sh, i);
    }
    return s == WEFT_OK ? check_complete(sh) : s;
}

static weft_status read_index(load_model *m, const char *folder, weft_error *err) {
    shards sh = {.m = m, .folder = folder, .err = err};
    const char *path;
    json_t *root = NULL;
    weft_status s;
    if ((s = folder_file(m, folder, INDEX, &path, &sh.shown, err)) != WEFT_OK ||
        (s = json_read_file(path, sh.shown, MAX_INDEX_BYTES, &root, err)) != WEFT_OK) {
        return s;
    }
    sh.map = json_object_get(root, "weight_map");
    s = json_is_object(sh.map) && json_object_size(sh.map) > 0
            ? read_shards(&sh)
            : error_set(err, WEFT_ERR_FILE,
                        "%s: weight_map is missing or empty, expected an object that maps names of "
                        "tensors to names of files",
                        sh.shown);
    json_decref(root);
    return s;
}

/* ---- the folder ---- */

static weft_status read_weights(load_model *m, const char *folder, weft_error *err) {
    const char *single = load_join(m, folder, "/", WEIGHTS);
    const char *index = load_join(m, folder, "/", INDEX);
    if (single == NULL || index == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the names of files");
    }
    bool has_single = access(single, F_OK) == 0, has_index = access(index, F_OK) == 0;
    if (!has_single && !has_index) {
        return error_set(err, WEFT_ERR_FILE,
                         "%s: no weights, expected " WEIGHTS ", or " INDEX
                         " and the files that it names",
                         m->shown_name);
    }
    if (has_single && has_index) {
        log_warn("%s: " WEIGHTS " is read, " INDEX " beside it is not", m->shown_name);
    }
    return has_single ? read_single(m, folder, err) : read_index(m, folder, err);
}

weft_status load_read_folder(load_model *m, const char *folder, bool weights, weft_error *err) {
    weft_status s;
    if ((s = read_config(m, folder, weights, err)) != WEFT_OK ||
        (s = weights ? read_weights(m, folder, err) : load_reserve_tensors(m, 0, err)) != WEFT_OK) {
        return s;
    }
    return load_read_folder_vocab(m, folder, err);
}
