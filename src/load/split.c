/* GGUF files -> tensors and description. A model may be cut into files NAME-00001-of-00003.gguf:
 * split.count (3), split.no (0, 1, 2) and split.tensors.count (of all) stand in each, the
 * description and the vocabulary in the first. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "load/mapping.h"
#include "load/model.h"

enum { MAX_PARTS = 99999, SUFFIX_BYTES = 20 /* "-00001-of-00003.gguf" */ };

static weft_status read_part(load_model *m, int32_t i, gguf_file *out, weft_error *err) {
    const load_part *p = &m->part[i];
    weft_error what;
    weft_status s = gguf_read(p->bytes, p->n_bytes, p->shown, &m->arena, out, &what);
    return s == WEFT_OK ? s : load_name_error(p->shown, &what, err);
}

/* An integer of any type; *out stays as it is when the key is absent and not required. */
static weft_status split_key(const gguf_file *f, const char *key, bool required, int32_t hi,
                             int32_t *out, weft_error *err) {
    const gguf_value *v = gguf_find(f, key);
    int64_t n;
    if (v == NULL) {
        return required
                   ? error_set(err, WEFT_ERR_FILE,
                               "%s is missing, expected it in every part of a split model", key)
                   : WEFT_OK;
    }
    if (v->is_array || !gguf_element_integer(v, 0, &n) || n < 0 || n > hi) {
        char text[100];
        gguf_value_text(v, text, sizeof text);
        return error_set_at(err, WEFT_ERR_FILE, gguf_offset(f, v),
                            "%s is %s, expected an integer from 0 to %d", key, text, hi);
    }
    *out = (int32_t)n;
    return WEFT_OK;
}

/* ---- one description of one or more files ---- */

static weft_status take_tensors(load_model *m, const gguf_file *file, int32_t n_file,
                                weft_error *err) {
    size_t n = 0;
    for (int32_t i = 0; i < n_file; i++) {
        n += (size_t)file[i].n_tensor;
    }
    weft_status s = load_reserve_tensors(m, n, err);
    for (int32_t i = 0; i < n_file && s == WEFT_OK; i++) {
        for (int32_t k = 0; k < file[i].n_tensor && s == WEFT_OK; k++) {
            s = load_add_tensor(m, &file[i].tensor[k], err);
        }
    }
    return s;
}

static void mark_read(load_model *m, const char *key) {
    int32_t i = m->meta->find(m, key);
    if (i >= 0) {
        m->key_read[i] = true;
    }
}

static weft_status take_description(load_model *m, const gguf_file *first, weft_error *err) {
    m->kind = LOAD_GGUF;
    m->meta = &meta_gguf;
    m->file = *first;
    m->key_read = load_arena_take(&m->arena, (size_t)first->n_key, sizeof *m->key_read);
    if (m->key_read == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d keys", first->n_key);
    }
    mark_read(m, "general.alignment");
    mark_read(m, "split.count");
    mark_read(m, "split.no");
    mark_read(m, "split.tensors.count");
    weft_error what;
    weft_status s = load_read_vocab(m, &what);
    return s == WEFT_OK ? s : load_name_error(m->part[0].shown, &what, err);
}

static weft_status take(load_model *m, const gguf_file *file, int32_t n_file, weft_error *err) {
    weft_status s = take_tensors(m, file, n_file, err);
    return s == WEFT_OK ? take_description(m, &file[0], err) : s;
}

/* ---- one file ---- */

/* *n: parts of the model, 1 when the file does not say. */
static weft_status read_count(const load_part *p, const gguf_file *f, int32_t *n, weft_error *err) {
    weft_error what;
    *n = 1;
    weft_status s = split_key(f, "split.count", false, MAX_PARTS, n, &what);
    *n = *n > 0 ? *n : 1;
    return s == WEFT_OK ? s : load_name_error(p->shown, &what, err);
}

weft_status load_read_gguf_memory(load_model *m, weft_error *err) {
    gguf_file file;
    int32_t n;
    weft_status s;
    if ((s = read_part(m, 0, &file, err)) != WEFT_OK ||
        (s = read_count(&m->part[0], &file, &n, err)) != WEFT_OK) {
        return s;
    }
    if (n > 1) {
        return error_set(err, WEFT_ERR_FILE,
                         "%s: split.count is %d: this is one part of a model, expected its file in "
                         "a folder with the others",
                         m->shown_name, n);
    }
    return take(m, &file, 1, err);
}

/* ---- many files ---- */

typedef struct split {
    load_model *m;
    const char *path;  /* of the part that was opened */
    size_t n_stem;     /* its bytes before the suffix */
    int32_t n, opened; /* parts; index of the opened one */
    gguf_file *file;   /* [n] */
    weft_error *err;
} split;

/* The path of part i, in the model's memory. */
static const char *part_path(const split *sp, int32_t i) {
    char suffix[32];
    snprintf(suffix, sizeof suffix, "-%05d-of-%05d.gguf", i + 1, sp->n);
    char *stem = strndup(sp->path, sp->n_stem);
    const char *out = stem != NULL ? load_join(sp->m, stem, suffix, "") : NULL;
    free(stem);
    return out;
}

static weft_status no_memory(const split *sp) {
    return error_set(sp->err, WEFT_ERR_MEMORY, "no memory for the %d parts of a model", sp->n);
}

/* Which part the file's name says, and how many. */
static weft_status read_suffix(split *sp, const load_part *opened) {
    size_t n = strlen(sp->path);
    int no = 0, count = 0, end = 0;
    sp->n_stem = n > SUFFIX_BYTES ? n - SUFFIX_BYTES : 0;
    const char *suffix = sp->path + sp->n_stem;
    bool matches = n > SUFFIX_BYTES &&
                   sscanf(suffix, "-%5d-of-%5d.gguf%n", &no, &count, &end) == 2 &&
                   end == SUFFIX_BYTES;
    if (!matches || count != sp->n || no < 1 || no > sp->n) {
        return error_set(sp->err, WEFT_ERR_FILE,
                         "%s: split.count is %d: this is one part of a model, expected a file name "
                         "that ends in -00001-of-%05d.gguf to -%05d-of-%05d.gguf",
                         opened->shown, sp->n, sp->n, sp->n, sp->n);
    }
    sp->opened = no - 1;
    return WEFT_OK;
}

/* Before memory is taken for as many parts as one of them claims. */
static weft_status check_all_there(const split *sp) {
    char shown[300];
    for (int32_t i = 0; i < sp->n; i++) {
        const char *path = part_path(sp, i);
        if (path == NULL) {
            return no_memory(sp);
        }
        if (access(path, F_OK) != 0) {
            text_show(text_of(path), shown, sizeof shown);
            return error_set(sp->err, WEFT_ERR_FILE,
                             "%s is missing: part %d of a model in %d files", shown, i + 1, sp->n);
        }
    }
    return WEFT_OK;
}

/* What part i says of itself against what its name and the first part say. */
static weft_status check_keys(const split *sp, int32_t i, int32_t n_tensor, weft_error *err) {
    const gguf_file *f = &sp->file[i];
    int32_t no = 0, count = 0, tensors = 0;
    weft_status s;
    if ((s = split_key(f, "split.count", true, MAX_PARTS, &count, err)) != WEFT_OK ||
        (s = split_key(f, "split.no", true, MAX_PARTS, &no, err)) != WEFT_OK ||
        (s = split_key(f, "split.tensors.count", true, INT32_MAX, &tensors, err)) != WEFT_OK) {
        return s;
    }
    if (count != sp->n) {
        return error_set(err, WEFT_ERR_FILE, "split.count is %d, expected %d as in the file opened",
                         count, sp->n);
    }
    if (no != i) {
        return error_set(err, WEFT_ERR_FILE,
                         "split.no is %d, expected %d: this is another part than its name says", no,
                         i);
    }
    if (tensors != n_tensor) {
        return error_set(err, WEFT_ERR_FILE,
                         "split.tensors.count is %d, but all %d parts hold %d: parts of different "
                         "models?",
                         tensors, sp->n, n_tensor);
    }
    return WEFT_OK;
}

static weft_status check_parts(const split *sp) {
    int64_t n_tensor = 0;
    for (int32_t i = 0; i < sp->n; i++) {
        n_tensor += sp->file[i].n_tensor;
    }
    for (int32_t i = 0; i < sp->n; i++) {
        weft_error what;
        if (check_keys(sp, i, (int32_t)n_tensor, &what) != WEFT_OK) {
            return load_name_error(sp->m->part[i].shown, &what, sp->err);
        }
    }
    return WEFT_OK;
}

static weft_status open_part(const split *sp, int32_t i) {
    const char *path = part_path(sp, i);
    const char *shown = path != NULL ? load_show_path(sp->m, path) : NULL;
    if (shown == NULL) {
        return no_memory(sp);
    }
    weft_status s = load_map_part(path, shown, &sp->m->part[i], sp->err);
    return s == WEFT_OK ? read_part(sp->m, i, &sp->file[i], sp->err) : s;
}

/* Takes the place of m->part, the one part that is open, by all. */
static weft_status open_split(split *sp, const gguf_file *opened) {
    load_model *m = sp->m;
    load_part one = m->part[0];
    weft_status s;
    if ((s = read_suffix(sp, &one)) != WEFT_OK || (s = check_all_there(sp)) != WEFT_OK) {
        return s;
    }
    load_part *part = load_arena_take(&m->arena, (size_t)sp->n, sizeof *part);
    sp->file = load_arena_take(&m->arena, (size_t)sp->n, sizeof *sp->file);
    if (part == NULL || sp->file == NULL) {
        return no_memory(sp);
    }
    part[sp->opened] = one;
    sp->file[sp->opened] = *opened;
    m->part = part;
    m->n_part = sp->n;
    for (int32_t i = 0; i < sp->n; i++) {
        if (i != sp->opened && (s = open_part(sp, i)) != WEFT_OK) {
            return s;
        }
    }
    return (s = check_parts(sp)) == WEFT_OK ? take(m, sp->file, sp->n, sp->err) : s;
}

weft_status load_read_gguf(load_model *m, const char *path, weft_error *err) {
    gguf_file file;
    m->part = load_arena_take(&m->arena, 1, sizeof *m->part);
    if (m->part == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory to open a model");
    }
    weft_status s = load_map_part(path, m->shown_name, &m->part[0], err);
    if (s != WEFT_OK) {
        return s;
    }
    m->n_part = 1;
    split sp = {.m = m, .path = path, .err = err};
    if ((s = read_part(m, 0, &file, err)) != WEFT_OK ||
        (s = read_count(&m->part[0], &file, &sp.n, err)) != WEFT_OK) {
        return s;
    }
    return sp.n > 1 ? open_split(&sp, &file) : take(m, &file, 1, err);
}
