/* Opening and closing a model; the questions about its files and tensors. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "load/mapping.h"
#include "load/model.h"

weft_status load_map_file(const char *path, const void **bytes, size_t *n_bytes, weft_error *err) {
    char shown[400];
    text_show(text_of(path), shown, sizeof shown);
    /* O_NONBLOCK: a pipe without a writer must not hold us up before it is refused */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return error_set(err, WEFT_ERR_FILE, "cannot open %s: %s", shown, strerror(errno));
    }
    struct stat st;
    weft_status s = WEFT_OK;
    void *map = NULL;
    if (fstat(fd, &st) != 0) {
        s = error_set(err, WEFT_ERR_FILE, "cannot open %s: %s", shown, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        s = error_set(err, WEFT_ERR_FILE, "cannot open %s: it is %s, expected a file", shown,
                      S_ISDIR(st.st_mode) ? "a directory" : "no regular file");
    } else if (st.st_size > 0) { /* nothing can be mapped of an empty file */
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            s = error_set(err, WEFT_ERR_FILE, "cannot map %s: %s", shown, strerror(errno));
        }
    }
    close(fd);
    if (s == WEFT_OK) {
        *bytes = map;
        *n_bytes = (size_t)st.st_size;
    }
    return s;
}

void load_unmap_file(const void *bytes, size_t n_bytes) {
    if (bytes != NULL) {
        munmap((void *)(uintptr_t)bytes, n_bytes);
    }
}

weft_status load_name_error(const char *shown, const weft_error *what, weft_error *err) {
    return error_set_at(err, what->status, what->offset, "%s: %s", shown, what->text);
}

/* ---- for the readers ---- */

weft_status load_map_part(const char *path, const char *shown, load_part *out, weft_error *err) {
    const void *bytes;
    size_t n_bytes;
    weft_status s = load_map_file(path, &bytes, &n_bytes, err);
    if (s == WEFT_OK) {
        *out = (load_part){.shown = shown, .bytes = bytes, .n_bytes = n_bytes, .mapped = true};
    }
    return s;
}

const char *load_join(load_model *m, const char *a, const char *b, const char *c) {
    size_t n_a = strlen(a), n_b = strlen(b), n_c = strlen(c);
    char *out = load_arena_take(&m->arena, n_a + n_b + n_c + 1, 1);
    if (out != NULL) {
        memcpy(out, a, n_a);
        memcpy(out + n_a, b, n_b);
        memcpy(out + n_a + n_b, c, n_c);
    }
    return out;
}

weft_status load_reserve_tensors(load_model *m, size_t n, weft_error *err) {
    m->tensor = load_arena_take(&m->arena, n, sizeof *m->tensor);
    m->tensor_name = load_arena_take(&m->arena, n, sizeof *m->tensor_name);
    if (n > INT32_MAX || m->tensor == NULL || m->tensor_name == NULL ||
        !text_table_init(&m->tensor_table, &m->arena, m->tensor_name, n)) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %zu tensors", n);
    }
    m->max_tensor = (int32_t)n;
    return WEFT_OK;
}

weft_status load_add_tensor(load_model *m, const load_tensor *t, weft_error *err) {
    int32_t i = m->n_tensor;
    m->tensor[i] = *t;
    m->tensor_name[i] = text_of(t->name);
    int32_t other = text_table_add(&m->tensor_table, i);
    if (other >= 0) {
        return error_set_at(
            err, WEFT_ERR_FILE, t->offset, "tensor %s stands twice, in %s and in %s", t->name,
            load_part_of(m, m->tensor[other].data)->shown, load_part_of(m, t->data)->shown);
    }
    m->n_tensor++;
    return WEFT_OK;
}

const load_part *load_part_of(const load_model *m, const void *address) {
    uintptr_t at = (uintptr_t)address;
    for (int32_t i = 0; i < m->n_part; i++) {
        uintptr_t begin = (uintptr_t)m->part[i].bytes;
        if (at >= begin && at - begin < m->part[i].n_bytes) {
            return &m->part[i];
        }
    }
    return NULL;
}

const char *load_show_path(load_model *m, const char *path) {
    enum { SHOWN_BYTES = 400 };
    char *shown = load_arena_take(&m->arena, SHOWN_BYTES, 1);
    if (shown != NULL) {
        text_show(text_of(path), shown, SHOWN_BYTES);
    }
    return shown;
}

/* ---- opening ---- */

static weft_status model_new(const char *path, const char *name, load_model **out,
                             weft_error *err) {
    load_model *m = calloc(1, sizeof *m);
    if (m == NULL || (m->shown_name = load_show_path(m, path)) == NULL ||
        (m->name = load_show_path(m, name)) == NULL) {
        load_close(m);
        return error_set(err, WEFT_ERR_MEMORY, "no memory to open a model");
    }
    m->vocab.shown = m->shown_name;
    *out = m;
    return WEFT_OK;
}

static weft_status finish(load_model *m, weft_status s, load_model **out) {
    if (s != WEFT_OK) {
        load_close(m);
        return s;
    }
    *out = m;
    return WEFT_OK;
}

weft_status load_open_memory(const void *data, size_t bytes, const char *name, load_model **out,
                             weft_error *err) {
    load_model *m;
    weft_status s = model_new(name, name, &m, err);
    if (s != WEFT_OK) {
        return s;
    }
    m->part = load_arena_take(&m->arena, 1, sizeof *m->part);
    if (m->part == NULL) {
        return finish(m, error_set(err, WEFT_ERR_MEMORY, "no memory to open a model"), out);
    }
    m->part[0] = (load_part){.shown = m->shown_name, .bytes = data, .n_bytes = bytes};
    m->n_part = 1;
    return finish(m, load_read_gguf_memory(m, err), out);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* `folder` ends without a slash, unless it is "/". */
static weft_status open_folder(const char *folder, bool weights, load_model **out,
                               weft_error *err) {
    const char *name = base_name(folder);
    char *resolved = NULL;
    if (name[0] == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        resolved = realpath(folder, NULL);
        name = resolved != NULL ? base_name(resolved) : folder;
    }
    load_model *m;
    weft_status s = model_new(folder, name, &m, err);
    free(resolved);
    return s != WEFT_OK ? s : finish(m, load_read_folder(m, folder, weights, err), out);
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static weft_status open_file(const char *path, load_model **out, weft_error *err) {
    if (ends_with(path, ".safetensors") || ends_with(path, ".safetensors.index.json")) {
        char shown[300];
        text_show(text_of(path), shown, sizeof shown);
        return error_set(err, WEFT_ERR_FILE,
                         "cannot open %s: weights alone are no model, expected their folder, with "
                         "config.json",
                         shown);
    }
    load_model *m;
    weft_status s = model_new(path, base_name(path), &m, err);
    return s != WEFT_OK ? s : finish(m, load_read_gguf(m, path, err), out);
}

static weft_status open_path(const char *path, bool weights, load_model **out, weft_error *err) {
    struct stat st;
    bool is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    const char *base = base_name(path);
    if (!is_folder && strcmp(base, "config.json") != 0) {
        return open_file(path, out, err);
    }
    size_t n = is_folder ? strlen(path) : (size_t)(base - path);
    while (n > 1 && path[n - 1] == '/') {
        n--;
    }
    char *folder = n > 0 ? strndup(path, n) : strdup(".");
    if (folder == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory to open a model");
    }
    weft_status s = open_folder(folder, weights, out, err);
    free(folder);
    return s;
}

weft_status load_open(const char *path, load_model **out, weft_error *err) {
    return open_path(path, true, out, err);
}

weft_status load_open_vocab(const char *path, load_model **out, weft_error *err) {
    return open_path(path, false, out, err);
}

static void unmap_part(const load_part *p) {
    if (p->mapped) {
        load_unmap_file(p->bytes, p->n_bytes);
    }
}

void load_close(load_model *m) {
    if (m == NULL) {
        return;
    }
    for (int32_t i = 0; i < m->n_part; i++) {
        unmap_part(&m->part[i]);
    }
    for (int32_t i = 0; i < m->n_side; i++) {
        unmap_part(&m->side[i]);
    }
    json_decref(m->paths.root);
    load_arena_free(&m->arena);
    free(m);
}

/* ---- pages ---- */

void load_forget_pages(const load_model *m) {
    for (int32_t i = 0; i < m->n_part; i++) {
        const load_part *p = &m->part[i];
        if (p->mapped && p->bytes != NULL) {
            madvise((void *)(uintptr_t)p->bytes, p->n_bytes, MADV_DONTNEED);
        }
    }
}

void load_forget_tensor(const load_model *m, const load_tensor *t) {
    const load_part *p = load_part_of(m, t->data);
    if (p == NULL || !p->mapped) { /* of the caller's own memory this would clear the contents */
        return;
    }
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)t->data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)t->data + t->bytes) / page * page;
    if (end > begin) {
        madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
}

/* ---- questions ---- */

load_kind load_get_kind(const load_model *m) {
    return m->kind;
}

const char *load_shown_name(const load_model *m) {
    return m->shown_name;
}

const char *load_name(const load_model *m) {
    return m->name;
}

const load_vocab *load_get_vocab(const load_model *m) {
    return &m->vocab;
}

int64_t load_file_bytes(const load_model *m) {
    int64_t n = 0;
    for (int32_t i = 0; i < m->n_part; i++) {
        n += (int64_t)m->part[i].n_bytes;
    }
    return n;
}

int32_t load_tensor_count(const load_model *m) {
    return m->n_tensor;
}

const load_tensor *load_tensor_at(const load_model *m, int32_t i) {
    return &m->tensor[i];
}

int32_t load_tensor_index(const load_model *m, const load_tensor *t) {
    return (int32_t)(t - m->tensor);
}

void load_enter(load_model *m, const char *member, const char *stem, const char *rest) {
    m->member = member;
    m->stem = stem;
    m->rest = rest;
}

const load_tensor *load_find_tensor(const load_model *m, const char *name) {
    enum { NAME_BYTES = 256 };
    static const char model[] = "model.";
    char whole[NAME_BYTES];
    if (m->stem != NULL) {
        bool inner = strncmp(name, model, sizeof model - 1) == 0;
        snprintf(whole, sizeof whole, "%s%s", inner ? m->stem : m->rest,
                 inner ? name + sizeof model - 1 : name);
        name = whole;
    }
    int32_t i = text_table_find(&m->tensor_table, text_of(name));
    return i < 0 ? NULL : &m->tensor[i];
}
