/* Model folders written on the fly, in a temporary folder of their own. */
#ifndef WEFT_TEST_FOLDER_MAKE_H
#define WEFT_TEST_FOLDER_MAKE_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "load/load.h"

typedef struct folder {
    char path[64];
} folder;

static inline folder folder_new(void) {
    folder f = {"/tmp/weft_folder_XXXXXX"};
    assert_non_null(mkdtemp(f.path));
    return f;
}

static inline void folder_put(const folder *f, const char *name, const void *data, size_t n) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static inline void folder_text(const folder *f, const char *name, const char *text) {
    folder_put(f, name, text, strlen(text));
}

/* A safetensors file: the header, padded to 8 bytes, and n_data bytes 0, 1, 2, ... */
static inline void folder_st(const folder *f, const char *name, const char *header, size_t n_data) {
    size_t n = (strlen(header) + 7) / 8 * 8;
    uint64_t n_header = n;
    uint8_t *all = malloc(8 + n + n_data);
    memcpy(all, &n_header, 8);
    memset(all + 8, ' ', n);
    memcpy(all + 8, header, strlen(header));
    for (size_t i = 0; i < n_data; i++) {
        all[8 + n + i] = (uint8_t)i;
    }
    folder_put(f, name, all, 8 + n + n_data);
    free(all);
}

static inline void folder_drop(const folder *f, const char *name) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    assert_int_equal(unlink(path), 0);
}

static inline void folder_end(const folder *f) {
    DIR *d = opendir(f->path);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            folder_drop(f, e->d_name);
        }
    }
    closedir(d);
    assert_int_equal(rmdir(f->path), 0);
}

static inline load_model *folder_open(const folder *f) {
    load_model *m = NULL;
    weft_error err = {.text = ""};
    if (load_open(f->path, &m, &err) != WEFT_OK) {
        fail_msg("%s", err.text);
    }
    return m;
}

/* One line that holds all of the given parts (NULL: none). */
static inline void folder_refuses(const folder *f, const char *a, const char *b, const char *c) {
    load_model *m = (load_model *)1;
    weft_error err = {.text = ""};
    weft_status s = load_open(f->path, &m, &err);
    if (s != WEFT_ERR_FILE || strchr(err.text, '\n') != NULL || strstr(err.text, a) == NULL ||
        (b != NULL && strstr(err.text, b) == NULL) || (c != NULL && strstr(err.text, c) == NULL)) {
        fail_msg("%s, %s, %s: status %d, %s", a, b, c, (int)s, err.text);
    }
    assert_ptr_equal(m, (load_model *)1);
}

#define ST(name, dtype, shape, offsets)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

#endif
