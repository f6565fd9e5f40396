/* The golden models with one change: a folder whose config.json or tensor names differ, or its GGUF
 * twin with a key or tensor more or less. */
#ifndef WEFT_TEST_GOLDEN_EDIT_H
#define WEFT_TEST_GOLDEN_EDIT_H

#include "model/desc.h"
#include "unit/load/folder_make.h"
#include "unit/load/gguf_edit.h"

/* `text` with the first `from` replaced; malloc'ed. The test fails when there is none. */
static inline char *text_replace(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (at == NULL)
        fail_msg("nothing to replace: %s", from);
    size_t before = (size_t)(at - text);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    assert_non_null(out);
    memcpy(out, text, before);
    strcpy(out + before, to);
    strcat(out, at + strlen(from));
    return out;
}

static inline char *golden_text(const char *model, const char *file, size_t *n) {
    char path[400];
    snprintf(path, sizeof path, WEFT_GOLDEN "/models/%s/%s", model, file);
    uint8_t *data = file_read(path, n);
    if (data == NULL) { /* of tests/tools/make-golden */
        snprintf(path, sizeof path, WEFT_TWINS "/%s/%s", model, file);
        data = file_read(path, n);
    }
    if (data == NULL)
        fail_msg("%s is not there", path);
    char *text = realloc(data, *n + 1);
    assert_non_null(text);
    text[*n] = '\0';
    return text;
}

/* Part of a folder's file to replace; NULL: nothing. A header of tensors keeps its length. */
typedef struct folder_change {
    const char *config_from, *config_to, *header_from, *header_to;
} folder_change;

static inline void golden_config(const folder *f, const char *model, const folder_change *c) {
    size_t n;
    char *config = golden_text(model, "config.json", &n);
    char *edited = c->config_from != NULL ? text_replace(config, c->config_from, c->config_to)
                                          : strdup(config);
    folder_text(f, "config.json", edited);
    free(edited);
    free(config);
}

static inline void golden_tensors(const folder *f, const char *model, const folder_change *c) {
    size_t n;
    char *data = golden_text(model, "model.safetensors", &n);
    if (c->header_from != NULL) {
        assert_int_equal(strlen(c->header_from), strlen(c->header_to));
        char *at = strstr(data + 8, c->header_from); /* the header is text without a NUL */
        if (at == NULL)
            fail_msg("no %s in %s", c->header_from, model);
        memcpy(at, c->header_to, strlen(c->header_to));
    }
    folder_put(f, "model.safetensors", data, n);
    free(data);
}

/* Opens the changed folder. On success *out and *file are the caller's. */
static inline weft_status golden_open(const char *model, const folder_change *c, load_model **file,
                                      model_desc **out, weft_error *err) {
    folder f = folder_new();
    golden_config(&f, model, c);
    golden_tensors(&f, model, c);
    weft_status s = load_open(f.path, file, err);
    if (s == WEFT_OK) {
        s = model_desc_open(*file, out, err);
        if (s != WEFT_OK)
            load_close(*file);
    }
    folder_end(&f); /* an open file stays mapped */
    return s;
}

/* The twin's bytes; NULL: tests/tools/make-gguf-twin has not run. */
static inline uint8_t *twin_read(const char *model, size_t *n) {
    char path[400];
    snprintf(path, sizeof path, WEFT_TWINS "/%s.gguf", model);
    return file_read(path, n);
}

static inline weft_status twin_open(const char *model, const edit *e, load_model **file,
                                    model_desc **out, uint8_t **bytes, weft_error *err) {
    size_t n;
    uint8_t *whole = twin_read(model, &n);
    assert_non_null(whole);
    *bytes = gguf_edit(whole, e, &n);
    free(whole);
    weft_status s = load_open_memory(*bytes, n, "it", file, err);
    if (s == WEFT_OK) {
        s = model_desc_open(*file, out, err);
        if (s != WEFT_OK)
            load_close(*file);
    }
    if (s != WEFT_OK)
        free(*bytes);
    return s;
}

#endif
