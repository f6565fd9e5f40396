/* Models in several GGUF files: any of them opens all, and a missing, exchanged or foreign one is
 * named. The parts are cut from a golden file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "unit/load/folder_make.h"
#include "unit/load/gguf_edit.h"

enum { N_PART = 3 };

/* What to write wrong into one part. */
typedef struct fault {
    int32_t part;               /* -1: none */
    int32_t no, count, tensors; /* -1: as it should be; -2: the key is left out */
    bool twice;                 /* the part also holds the first tensor of the part before it */
} fault;

static const fault no_fault = {.part = -1, .no = -1, .count = -1, .tensors = -1};

static void put_key(buffer *b, uint64_t *n, const char *key, uint32_t type, int32_t value,
                    size_t bytes) {
    if (value != -2) {
        buffer_string(b, key);
        buffer_u32(b, type);
        buffer_add(b, &value, bytes);
        (*n)++;
    }
}

static void put_split_keys(buffer *b, uint64_t *n, int32_t part, int32_t n_tensor, const fault *f) {
    bool here = f->part == part;
    put_key(b, n, "split.no", 2, here && f->no != -1 ? f->no : part, 2);
    put_key(b, n, "split.count", 2, here && f->count != -1 ? f->count : N_PART, 2);
    put_key(b, n, "split.tensors.count", 5, here && f->tensors != -1 ? f->tensors : n_tensor, 4);
}

static void put_tensor(buffer *infos, buffer *data, const load_tensor *t) {
    static const uint8_t zero[32];
    buffer_string(infos, t->name);
    buffer_u32(infos, (uint32_t)t->n_dim);
    for (int32_t i = 0; i < t->n_dim; i++) {
        buffer_u64(infos, (uint64_t)t->dim[i]);
    }
    buffer_u32(infos, t->ggml_type);
    buffer_u64(infos, data->n);
    buffer_add(data, t->data, t->bytes);
    buffer_add(data, zero, (32 - data->n % 32) % 32);
}

/* Part `part` of the model m, whose file is `file`: no tensors in the first, half of them in each of
 * the others. */
static void write_part(const folder *to, const uint8_t *file, const load_model *m, int32_t part,
                       const fault *f) {
    static const uint8_t zero[32];
    int32_t n = load_tensor_count(m), half = n / 2;
    int32_t begin = part == 0   ? 0
                    : part == 1 ? 0
                                : half,
            end = part == 0   ? 0
                  : part == 1 ? half
                              : n;
    buffer keys = {0}, infos = {0}, data = {0}, out = {0};
    uint64_t n_key = 0, n_tensor = (uint64_t)(end - begin);
    if (part == 0) {
        const uint8_t *p = file + 24;
        n_key = get_u64(file + 16);
        for (uint64_t i = 0; i < n_key; i++) {
            const uint8_t *type = p + 8 + get_u64(p);
            p = past_value(type + 4, get_u32(type));
        }
        buffer_add(&keys, file + 24, (size_t)(p - file - 24));
    }
    put_split_keys(&keys, &n_key, part, n, f);
    for (int32_t i = begin; i < end; i++) {
        put_tensor(&infos, &data, load_tensor_at(m, i));
    }
    if (f->twice && f->part == part) {
        put_tensor(&infos, &data, load_tensor_at(m, 0));
        n_tensor++;
    }
    buffer_add(&out, file, 8);
    buffer_u64(&out, n_tensor);
    buffer_u64(&out, n_key);
    buffer_add(&out, keys.at, keys.n);
    buffer_add(&out, infos.at, infos.n);
    buffer_add(&out, zero, (32 - out.n % 32) % 32);
    buffer_add(&out, data.at, data.n);
    char name[100];
    snprintf(name, sizeof name, "it-%05d-of-%05d.gguf", part + 1, (int)N_PART);
    folder_put(to, name, out.at, out.n);
    free(keys.at);
    free(infos.at);
    free(data.at);
    free(out.at);
}

static const char source[] = WEFT_GOLDEN "/gguf/Q8_0.gguf";

static folder split_model(const fault *f) {
    folder to = folder_new();
    size_t n = 0;
    uint8_t *file = file_read(source, &n);
    load_model *m = NULL;
    assert_int_equal(load_open_memory(file, n, "it", &m, NULL), WEFT_OK);
    for (int32_t part = 0; part < N_PART; part++) {
        write_part(&to, file, m, part, f);
    }
    load_close(m);
    free(file);
    return to;
}

static weft_status open_part(const folder *f, int32_t part, load_model **m, weft_error *err) {
    char path[200];
    snprintf(path, sizeof path, "%s/it-%05d-of-%05d.gguf", f->path, part + 1, (int)N_PART);
    return load_open(path, m, err);
}

static void same_models(const load_model *a, const load_model *b) {
    assert_int_equal(load_tensor_count(a), load_tensor_count(b));
    for (int32_t i = 0; i < load_tensor_count(a); i++) {
        const load_tensor *x = load_tensor_at(a, i), *y = load_find_tensor(b, x->name);
        assert_ptr_equal(y, load_tensor_at(b, i));
        assert_int_equal(x->ggml_type, y->ggml_type);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->dim, y->dim, sizeof x->dim);
        assert_memory_equal(x->data, y->data, x->bytes);
    }
    int32_t n_x = 0, n_y = 0;
    assert_int_equal(load_get_int(a, "llama.block_count", true, 0, 99, &n_x, NULL), WEFT_OK);
    assert_int_equal(load_get_int(b, "llama.block_count", true, 0, 99, &n_y, NULL), WEFT_OK);
    assert_int_equal(n_x, n_y);
    assert_int_equal(load_get_vocab(a)->n_token, load_get_vocab(b)->n_token);
}

static void test_any_part(void **state) {
    (void)state;
    folder f = split_model(&no_fault);
    load_model *whole = NULL;
    assert_int_equal(load_open(source, &whole, NULL), WEFT_OK);
    for (int32_t part = 0; part < N_PART; part++) {
        load_model *m = NULL;
        weft_error err = {.text = ""};
        weft_status s = open_part(&f, part, &m, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(s, WEFT_OK);
        assert_int_equal(load_get_kind(m), LOAD_GGUF);
        same_models(whole, m);
        load_forget_pages(m);
        load_forget_tensor(m, load_tensor_at(m, 3));
        same_models(whole, m);
        assert_true(load_file_bytes(m) > load_file_bytes(whole));
        for (int32_t i = 0; i < load_key_count(m); i++) {
            assert_true(strncmp(load_key_at(m, i), "split.", 6) != 0 || load_key_is_read(m, i));
        }
        load_close(m);
    }
    load_close(whole);
    folder_end(&f);
}

/* Whichever part is opened, the message names `file` and says `text`. */
static void must_refuse(const folder *f, int32_t part, const char *file, const char *text) {
    load_model *m = (load_model *)1;
    weft_error err = {.text = ""};
    weft_status s = open_part(f, part, &m, &err);
    if (s != WEFT_ERR_FILE || strstr(err.text, file) == NULL || strstr(err.text, text) == NULL ||
        strchr(err.text, '\n') != NULL) {
        fail_msg("%s, %s: status %d, %s", file, text, (int)s, err.text);
    }
    assert_ptr_equal(m, (load_model *)1);
}

static void test_faults(void **state) {
    (void)state;
    static const struct {
        fault f;
        const char *file, *text;
    } cases[] = {
        {{1, 2, -1, -1, false}, "it-00002-of-00003.gguf: ", "split.no is 2, expected 1"},
        {{2, -1, 4, -1, false}, "it-00003-of-00003.gguf: ", "split.count is 4, expected 3"},
        {{2, -1, -1, 7, false}, "it-00003-of-00003.gguf: ", "split.tensors.count is 7"},
        {{1, -2, -1, -1, false}, "it-00002-of-00003.gguf: ", "split.no is missing"},
        {{1, -1, -2, -1, false}, "it-00002-of-00003.gguf: ", "split.count is missing"},
        {{2, -1, -1, -2, false}, "it-00003-of-00003.gguf: ", "split.tensors.count is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        folder f = split_model(&cases[i].f);
        must_refuse(&f, 0, cases[i].file, cases[i].text);
        folder_end(&f);
    }
}

/* Every part counts the tensor that stands twice. */
static void test_twice(void **state) {
    (void)state;
    folder to = folder_new();
    size_t n = 0;
    uint8_t *file = file_read(source, &n);
    load_model *m = NULL;
    assert_int_equal(load_open_memory(file, n, "it", &m, NULL), WEFT_OK);
    for (int32_t part = 0; part < N_PART; part++) {
        fault f = {part, -1, -1, load_tensor_count(m) + 1, part == 2};
        write_part(&to, file, m, part, &f);
    }
    load_close(m);
    free(file);
    must_refuse(&to, 0, "/it-00002-of-00003.gguf and in ", "stands twice");
    must_refuse(&to, 0, "/it-00003-of-00003.gguf", "stands twice");
    folder_end(&to);
}

static void test_missing(void **state) {
    (void)state;
    folder f = split_model(&no_fault);
    char from[200], to[200];
    snprintf(from, sizeof from, "%s/it-00003-of-00003.gguf", f.path);
    snprintf(to, sizeof to, "%s/other.gguf", f.path);
    assert_int_equal(rename(from, to), 0);
    load_model *m = NULL;
    weft_error err;
    assert_int_equal(load_open(to, &m, &err), WEFT_ERR_FILE);
    assert_non_null(strstr(err.text, "other.gguf: split.count is 3"));
    assert_non_null(strstr(err.text, "-00001-of-00003.gguf"));
    must_refuse(&f, 0, "it-00003-of-00003.gguf is missing", "part 3 of a model in 3 files");
    must_refuse(&f, 1, "it-00003-of-00003.gguf is missing", "part 3");
    /* a name that does not fit the count */
    snprintf(from, sizeof from, "%s/it-00001-of-00004.gguf", f.path);
    assert_int_equal(rename(to, from), 0);
    assert_int_equal(load_open(from, &m, &err), WEFT_ERR_FILE);
    assert_non_null(strstr(err.text, "it-00001-of-00004.gguf: split.count is 3"));
    folder_end(&f);
}

static void test_broken_part(void **state) {
    (void)state;
    folder f = split_model(&no_fault);
    folder_text(&f, "it-00002-of-00003.gguf", "GGUF");
    must_refuse(&f, 0, "it-00002-of-00003.gguf: ", "truncated");
    folder_text(&f, "it-00002-of-00003.gguf", "");
    must_refuse(&f, 2, "it-00002-of-00003.gguf: ", "empty");
    folder_end(&f);
}

/* A part of its own in memory has no neighbours. */
static void test_memory(void **state) {
    (void)state;
    folder f = split_model(&no_fault);
    char path[200];
    snprintf(path, sizeof path, "%s/it-00001-of-00003.gguf", f.path);
    size_t n = 0;
    uint8_t *bytes = file_read(path, &n);
    load_model *m = NULL;
    weft_error err;
    assert_int_equal(load_open_memory(bytes, n, "it", &m, &err), WEFT_ERR_FILE);
    assert_non_null(strstr(err.text, "it: split.count is 3"));
    free(bytes);
    folder_end(&f);
}

int main(void) {
    if (access(source, R_OK) != 0) {
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_part),    cmocka_unit_test(test_faults),
        cmocka_unit_test(test_twice),       cmocka_unit_test(test_missing),
        cmocka_unit_test(test_broken_part), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
