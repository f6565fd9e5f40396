/* Opening and closing a model file; the questions that a model answers. */
#include <errno.h>
#include <fcntl.h>
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

/* ---- models ---- */

/* Puts the file's name in front of what went wrong in it. */
static weft_status name_error(const char *file_name, const weft_error *what, weft_error *err) {
    return error_set_at(err, what->status, what->offset, "%s: %s", file_name, what->text);
}

static weft_status read_rest(load_model *m, weft_error *err) {
    weft_status s;
    if ((s = load_read_config(m, err)) != WEFT_OK || (s = load_read_vocab(m, err)) != WEFT_OK) {
        return s;
    }
    return load_read_llama(m, err);
}

static weft_status open_bytes(const void *data, size_t bytes, const char *name,
                              weft_status (*read)(load_model *, weft_error *), load_model **out,
                              weft_error *err) {
    enum { NAME_BYTES = 128 };
    load_model *m = calloc(1, sizeof *m);
    char *shown = m != NULL ? load_arena_take(&m->arena, NAME_BYTES, 1) : NULL;
    if (shown == NULL) {
        free(m);
        return error_set(err, WEFT_ERR_MEMORY, "no memory to open a model");
    }
    text_show(text_of(name), shown, NAME_BYTES);
    m->shown_name = shown;
    weft_error what;
    weft_status s;
    if ((s = gguf_read(data, bytes, shown, &m->arena, &m->file, &what)) != WEFT_OK ||
        (s = read(m, &what)) != WEFT_OK) {
        name_error(shown, &what, err);
        load_close(m);
        return s;
    }
    *out = m;
    return WEFT_OK;
}

weft_status load_open_memory(const void *data, size_t bytes, const char *name, load_model **out,
                             weft_error *err) {
    return open_bytes(data, bytes, name, read_rest, out, err);
}

static weft_status open_path(const char *path, weft_status (*read)(load_model *, weft_error *),
                             load_model **out, weft_error *err) {
    const void *bytes;
    size_t n_bytes;
    weft_status s = load_map_file(path, &bytes, &n_bytes, err);
    if (s != WEFT_OK) {
        return s;
    }
    const char *slash = strrchr(path, '/');
    load_model *m;
    s = open_bytes(bytes, n_bytes, slash != NULL ? slash + 1 : path, read, &m, err);
    if (s != WEFT_OK) {
        load_unmap_file(bytes, n_bytes);
        return s;
    }
    m->map = bytes;
    m->map_bytes = n_bytes;
    *out = m;
    return WEFT_OK;
}

weft_status load_open(const char *path, load_model **out, weft_error *err) {
    return open_path(path, read_rest, out, err);
}

weft_status load_open_vocab(const char *path, load_model **out, weft_error *err) {
    return open_path(path, load_read_vocab, out, err);
}

void load_forget_pages(const load_model *m) {
    if (m->map != NULL) {
        madvise((void *)(uintptr_t)m->map, m->map_bytes, MADV_DONTNEED);
    }
}

void load_close(load_model *m) {
    if (m != NULL) {
        load_unmap_file(m->map, m->map_bytes);
        load_arena_free(&m->arena);
        free(m);
    }
}

const load_config *load_get_config(const load_model *m) {
    return &m->config;
}

const load_vocab *load_get_vocab(const load_model *m) {
    return &m->vocab;
}

const load_llama *load_get_llama(const load_model *m) {
    return &m->llama;
}

int64_t load_file_bytes(const load_model *m) {
    return (int64_t)m->file.n_bytes;
}

int32_t load_tensor_count(const load_model *m) {
    return m->file.n_tensor;
}

const load_tensor *load_tensor_at(const load_model *m, int32_t i) {
    return &m->file.tensor[i];
}

int32_t load_key_count(const load_model *m) {
    return m->file.n_key;
}

const char *load_key_at(const load_model *m, int32_t i) {
    return m->file.key[i].data;
}

void load_value_text(const load_model *m, int32_t i, char *out, size_t out_bytes) {
    gguf_value_text(&m->file.value[i], out, out_bytes);
}
