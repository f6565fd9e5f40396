/* The GGUF reader against the broken files and the goldens: what must be refused is refused by name
 * and without memory that the file cannot fill; what must load has the right values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "load/load.h"
#include "unit/load/gguf_edit.h"

/* ---- memory asked for while `counting` (plain build), or a limit on one piece (others) ---- */

static size_t counted;
static bool counting;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_COUNT 1
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t each);
void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n) {
    counted += counting ? n : 0;
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t each) {
    size_t bytes;
    if (__builtin_mul_overflow(n, each, &bytes)) {
        bytes = SIZE_MAX / 2;
    }
    counted += counting ? bytes : 0;
    return __libc_calloc(n, each);
}

void *realloc(void *p, size_t n) {
    counted += counting ? n : 0;
    return __libc_realloc(p, n);
}
#else
#define CAN_COUNT 0
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "max_allocation_size_mb=64:allocator_may_return_null=0";
}
#endif

/* ---- helpers ---- */

static const char golden[] = WEFT_GOLDEN "/gguf";

static uint8_t *read_golden(const char *name, size_t *n) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", golden, name);
    return file_read(path, n);
}

/* What was logged to stderr while `fn` ran goes to `text`. */
static int saved_stderr;
static FILE *capture;

static void capture_begin(void) {
    fflush(stderr);
    saved_stderr = dup(2);
    capture = tmpfile();
    assert_non_null(capture);
    dup2(fileno(capture), 2);
}

static void capture_end(char *text, size_t n) {
    fflush(stderr);
    dup2(saved_stderr, 2);
    close(saved_stderr);
    rewind(capture);
    text[fread(text, 1, n - 1, capture)] = '\0';
    fclose(capture);
}

static bool holds(const char *text, const char *part) {
    size_t n = strlen(part);
    for (; strlen(text) >= n; text++) {
        size_t i = 0;
        while (i < n && tolower((unsigned char)text[i]) == tolower((unsigned char)part[i])) {
            i++;
        }
        if (i == n) {
            return true;
        }
    }
    return false;
}

static bool holds_one(const char *text, const json_t *names) {
    for (size_t i = 0; i < json_array_size(names); i++) {
        if (holds(text, json_string_value(json_array_get(names, i)))) {
            return true;
        }
    }
    return false;
}

/* Opens a copy of exactly these bytes, so that a sanitizer sees a read past the end. */
static weft_status open_bytes(const uint8_t *data, size_t n, load_model **out, weft_error *err) {
    uint8_t *copy = malloc(n + (n == 0));
    memcpy(copy, data, n);
    load_model *m = (load_model *)1;
    counted = 0;
    counting = true;
    weft_status s = load_open_memory(copy, n, "it", &m, err);
    counting = false;
    if (s == WEFT_OK) {
        *out = m;
        /* the model borrows the bytes: keep them until the end of the process */
        static void *kept[64];
        static int n_kept;
        if (n_kept == 64) {
            n_kept = 0;
        }
        free(kept[n_kept]);
        kept[n_kept++] = copy;
    } else {
        assert_ptr_equal(m, (load_model *)1); /* outputs are untouched on failure */
        free(copy);
    }
    return s;
}

/* ---- the broken files ---- */

/* Sound containers whose model is not: model/ refuses them. */
static const char *const models[] = {
    "block_count_0.gguf",       "block_count_2.gguf",    "block_count_2e31.gguf",
    "block_count_string.gguf",  "context_length_0.gguf", "embedding_length_0.gguf",
    "embedding_length_32.gguf", "head_count_0.gguf",     "head_count_3.gguf",
    "head_count_kv_0.gguf",     "head_count_kv_3.gguf",  "missing_architecture.gguf",
    "missing_block_count.gguf", "missing_rms_eps.gguf",  "missing_tensor.gguf",
    "rms_eps_nan.gguf",         "rope_dim_9.gguf",       "unknown_architecture.gguf",
    "vocab_mismatch.gguf",      "wrong_shape.gguf",
};

static bool is_sound(const char *file) {
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        if (strcmp(file, models[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void check_bad_file(const json_t *expect) {
    const char *file = json_string_value(json_object_get(expect, "file"));
    const char *must = json_string_value(json_object_get(expect, "must"));
    const json_t *names = json_object_get(expect, "names");
    char path[256], log[8192];
    size_t n = 0;
    snprintf(path, sizeof path, "bad/%s", file);
    uint8_t *data = read_golden(path, &n);
    assert_non_null(data);
    load_model *m = NULL;
    weft_error err = {.status = WEFT_OK, .text = ""};
    capture_begin();
    weft_status s = open_bytes(data, n, &m, &err);
    capture_end(log, sizeof log);
    if (CAN_COUNT && counted > n + (1 << 20)) {
        fail_msg("%s: asked for %zu bytes", file, counted);
    }
    if (strcmp(must, "load") == 0 || is_sound(file)) {
        if (s != WEFT_OK || log[0] != '\0') {
            fail_msg("%s: %s %s", file, err.text, log);
        }
    } else if (s == WEFT_OK) {
        if (strcmp(must, "reject or warn") != 0 || !holds_one(log, names)) {
            fail_msg("%s was loaded; logged: %s", file, log);
        }
    } else if (s != WEFT_ERR_FILE || err.status != s || !holds_one(err.text, names) ||
               strchr(err.text, '\n') != NULL || log[0] != '\0') {
        fail_msg("%s: status %d, %s (%s)", file, (int)s, err.text, log);
    }
    load_close(s == WEFT_OK ? m : NULL);
    free(data);
}

static void test_bad_files(void **state) {
    (void)state;
    json_error_t why;
    json_t *expect = json_load_file(WEFT_GOLDEN "/gguf/bad/expect.json", 0, &why);
    assert_non_null(expect);
    assert_int_equal(json_array_size(expect), 95);
    for (size_t i = 0; i < json_array_size(expect); i++) {
        const json_t *entry = json_array_get(expect, i);
        /* pre_missing and pre_nonsense: which names are known is said by tok, and tested there */
        if (strncmp(json_string_value(json_object_get(entry, "file")), "pre_", 4) != 0) {
            check_bad_file(entry);
        }
    }
    json_decref(expect);
}

/* Each cut of a sound file is an error, at every byte. */
static void test_every_cut(void **state) {
    (void)state;
    size_t n = 0;
    uint8_t *data = read_golden("bad/ok_base.gguf", &n);
    assert_non_null(data);
    for (size_t cut = 0; cut < n; cut++) {
        load_model *m;
        weft_error err;
        if (open_bytes(data, cut, &m, &err) != WEFT_ERR_FILE || err.text[0] == '\0' ||
            err.offset > (int64_t)n) {
            fail_msg("cut at %zu", cut);
        }
    }
    free(data);
}

static uint64_t rng_state = 0x9E3779B97F4A7C15u;

static uint64_t rng(void) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

/* Any damage to the head of the file gives a model or an error, and never asks for memory that the
 * file could not fill. */
static void test_random_damage(void **state) {
    (void)state;
    static const uint8_t values[] = {0, 1, 2, 4, 8, 9, 0x20, 0x7F, 0x80, 0xFE, 0xFF};
    size_t n = 0;
    uint8_t *data = read_golden("bad/ok_base.gguf", &n);
    assert_non_null(data);
    log_set_level(LOG_QUIET);
    int n_loaded = 0, n_refused = 0;
    for (int i = 0; i < 8000; i++) {
        size_t at[3];
        uint8_t old[3];
        int n_byte = 1 + i % 3;
        for (int k = 0; k < n_byte; k++) {
            at[k] = (size_t)(rng() % 5184);
            old[k] = data[at[k]];
            data[at[k]] = rng() % 2 != 0 ? values[rng() % sizeof values] : (uint8_t)rng();
        }
        load_model *m = NULL;
        weft_error err;
        weft_status s = open_bytes(data, n, &m, &err);
        assert_true(s == WEFT_OK || s == WEFT_ERR_FILE);
        assert_true(!CAN_COUNT || counted <= n + (1 << 20));
        n_loaded += s == WEFT_OK;
        n_refused += s != WEFT_OK;
        load_close(s == WEFT_OK ? m : NULL);
        for (int k = n_byte - 1; k >= 0; k--) {
            data[at[k]] = old[k];
        }
    }
    log_set_level(LOG_WARN);
    print_message("%d loaded, %d refused\n", n_loaded, n_refused);
    assert_true(n_loaded > 100 && n_refused > 1000);
    free(data);
}

/* ---- sound files ---- */

static void check_dequant(const char *type) {
    char path[256];
    load_model *m;
    load_st *st;
    weft_error err;
    snprintf(path, sizeof path, "%s/%s.gguf", golden, type);
    assert_int_equal(load_open(path, &m, &err), WEFT_OK);
    snprintf(path, sizeof path, "%s/%s.golden.safetensors", golden, type);
    assert_int_equal(load_st_open(path, &st, &err), WEFT_OK);
    int n_compared = 0;
    for (int32_t i = 0; i < load_tensor_count(m); i++) {
        const load_tensor *t = load_tensor_at(m, i);
        char name[128];
        load_st_tensor want;
        snprintf(name, sizeof name, "dequant.%s", t->name);
        if (!load_st_find(st, name, &want)) {
            continue;
        }
        assert_string_equal(want.dtype, "F32");
        int64_t n = (int64_t)(want.bytes / 4);
        float *got = malloc(want.bytes);
        dtype_to_f32((dtype)t->ggml_type, t->data, n, got);
        if (memcmp(got, want.data, want.bytes) != 0) {
            fail_msg("%s: %s differs", type, name);
        }
        free(got);
        n_compared++;
    }
    /* one tensor of each type in the file; norms are F32 */
    assert_int_equal(n_compared, strcmp(type, "F32") == 0      ? 1
                                 : strcmp(type, "Q4_K_M") == 0 ? 3
                                                               : 2);
    load_st_close(st);
    load_close(m);
}

static void test_dequant(void **state) {
    (void)state;
    static const char *const types[] = {"F32",  "F16",    "BF16",   "Q8_0",  "Q4_0", "Q4_1",
                                        "Q5_0", "Q5_1",   "Q2_K",   "Q3_K",  "Q4_K", "Q5_K",
                                        "Q6_K", "IQ4_NL", "IQ4_XS", "Q4_K_M"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        check_dequant(types[i]);
    }
}

static void int_is(const load_model *m, const char *key, int32_t expected) {
    int32_t n = -1;
    weft_error err = {.text = ""};
    if (load_get_int(m, key, true, 0, INT32_MAX, &n, &err) != WEFT_OK || n != expected) {
        fail_msg("%s: %d, %s", key, n, err.text);
    }
}

static void real_is(const load_model *m, const char *key, double expected) {
    double r = -1;
    assert_int_equal(load_get_real(m, key, true, 0, 1e9, &r, NULL), WEFT_OK);
    assert_true(r == expected);
}

static void test_golden_values(void **state) {
    (void)state;
    load_model *m;
    weft_error err;
    assert_int_equal(load_open(WEFT_GOLDEN "/gguf/Q8_0.gguf", &m, &err), WEFT_OK);
    assert_int_equal(load_get_kind(m), LOAD_GGUF);
    assert_string_equal(load_name(m), "Q8_0.gguf");
    int_is(m, "llama.block_count", 2);
    int_is(m, "llama.attention.head_count_kv", 2);
    real_is(m, "llama.rope.freq_base", 10000.0);
    real_is(m, "llama.attention.layer_norm_rms_epsilon", (double)1e-5f);
    const load_tensor *t = load_find_tensor(m, "blk.0.ffn_down.weight");
    assert_int_equal(t->ggml_type, DTYPE_Q8_0);
    assert_string_equal(t->type_name, "Q8_0");
    assert_int_equal(t->dim[0], 512);
    assert_int_equal(t->dim[1], 256);
    assert_int_equal(t->bytes, 512 * 256 / 32 * 34);
    assert_null(load_find_tensor(m, "blk.2.ffn_down.weight"));
    const load_vocab *v = load_get_vocab(m);
    assert_null(v->tokenizer_json.data);
    assert_int_equal(v->bos, 376);
    assert_int_equal(v->n_eos, 1);
    assert_int_equal(v->eos_ids[0], 378);
    assert_int_equal(v->type[382], LOAD_TOKEN_USER);
    assert_int_equal(v->type[376], LOAD_TOKEN_CONTROL);
    assert_int_equal(v->type[0], LOAD_TOKEN_NORMAL);
    assert_int_equal(v->n_merge, 120);
    assert_memory_equal(v->merge[1].data, "h e", 3);
    assert_int_equal(v->merge[1].bytes, 3);
    assert_string_equal(v->pre, "gpt-2");
    load_close(m);
}

/* A seed of the fuzzer: the smallest model, with every key that weft reads. */
static void test_all_keys(void **state) {
    (void)state;
    size_t n = 0;
    uint8_t *data = file_read(WEFT_SOURCE "/fuzz/corpus/gguf/tiny_all_keys.gguf", &n);
    assert_non_null(data);
    load_model *m = NULL;
    weft_error err = {.text = ""};
    weft_status s = open_bytes(data, n, &m, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(s, WEFT_OK);
    const load_vocab *v = load_get_vocab(m);
    assert_string_equal(v->pre, "llama-bpe");
    assert_true(v->add_bos && !v->add_bos_unsaid);
    assert_int_equal(v->eos_ids[v->n_eos - 1], 3);
    assert_int_equal(v->n_merge, 1); /* without the head line */
    assert_memory_equal(v->merge[0].data, "a b", 3);
    assert_int_equal(v->chat_template.bytes, 5);
    int_is(m, "llama.rope.dimension_count", 2);
    assert_int_equal(load_find_tensor(m, "output.weight")->ggml_type, DTYPE_BF16);
    assert_int_equal(load_find_tensor(m, "token_embd.weight")->ggml_type, DTYPE_F16);
    load_close(m);
    free(data);
}

static void test_demo(void **state) {
    (void)state;
    if (access(WEFT_DEMO_MODEL, R_OK) != 0) {
        skip();
    }
    load_model *m;
    weft_error err;
    assert_int_equal(load_open(WEFT_DEMO_MODEL, &m, &err), WEFT_OK);
    int_is(m, "llama.block_count", 30);
    real_is(m, "llama.rope.freq_base", 100000.0);
    assert_int_equal(load_find_tensor(m, "token_embd.weight")->ggml_type, DTYPE_Q8_0);
    assert_int_equal(load_find_tensor(m, "blk.29.attn_k.weight")->dim[1], 192);
    const load_vocab *v = load_get_vocab(m);
    assert_string_equal(v->model, "gpt2");
    assert_string_equal(v->pre, "smollm");
    assert_int_equal(v->n_token, 49152);
    assert_int_equal(v->n_merge, 48900);
    assert_int_equal(v->bos, 1);
    assert_int_equal(v->eos_ids[0], 2);
    assert_false(v->add_bos);
    assert_non_null(v->chat_template.data);
    assert_memory_equal(v->token[2].data, "<|im_end|>", v->token[2].bytes);
    assert_int_equal(load_tensor_count(m), 272);
    assert_int_equal(load_file_bytes(m), 98362432);
    load_close(m);
}

static void test_value_text(void **state) {
    (void)state;
    size_t n = 0;
    uint8_t *data = read_golden("bad/ok_base.gguf", &n);
    assert_non_null(data);
    load_model *m = NULL;
    weft_error err;
    assert_int_equal(open_bytes(data, n, &m, &err), WEFT_OK);
    static const struct {
        const char *key, *text;
        size_t cap;
    } cases[] = {
        {"general.architecture", "llama", 100},
        {"general.name", "weft broken-file base", 100},
        {"general.name", "weft broken-file base", 25},
        {"general.name", "weft broken-f...", 20},
        {"general.alignment", "32", 100},
        {"llama.rope.freq_base", "10000", 100},
        {"tokenizer.ggml.add_bos_token", "false", 100},
        {"tokenizer.ggml.tokens", "264 x STRING [!, \", #, $, %, &, ', (, ...]", 100},
        {"tokenizer.ggml.tokens", "264 x STRING [!, ...", 21},
        {"tokenizer.ggml.token_type", "264 x INT32 [1, 1, 1, 1, 1, 1, 1, 1, ...]", 100},
        {"tokenizer.ggml.merges", "4 x STRING [\xC4\xA0 t, h e, \xC4\xA0t he, i n]", 100},
        {"general.alignment", "", 3},
        {"tokenizer.ggml.tokens", "...", 4},
    };
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        bool found = false;
        for (int32_t i = 0; i < load_key_count(m); i++) {
            if (strcmp(load_key_at(m, i), cases[k].key) == 0) {
                char *text = malloc(cases[k].cap);
                load_value_text(m, i, text, cases[k].cap);
                assert_string_equal(text, cases[k].text);
                free(text);
                found = true;
            }
        }
        assert_true(found);
    }
    load_close(m);
    free(data);
}

static void test_paths(void **state) {
    (void)state;
    char dir[] = "/tmp/weft_test_XXXXXX", path[64];
    weft_error err;
    load_model *m = (load_model *)1;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(load_open(dir, &m, &err), WEFT_ERR_FILE);
    assert_true(holds(err.text, "cannot open") && holds(err.text, "directory"));
    snprintf(path, sizeof path, "%s/none.gguf", dir);
    assert_int_equal(load_open(path, &m, &err), WEFT_ERR_FILE);
    assert_true(holds(err.text, "cannot open") && holds(err.text, "none.gguf"));
    snprintf(path, sizeof path, "%s/pipe", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(load_open(path, &m, &err), WEFT_ERR_FILE); /* and does not wait for a writer */
    assert_true(holds(err.text, "cannot open"));
    unlink(path);
    snprintf(path, sizeof path, "%s/empty.gguf", dir);
    fclose(fopen(path, "wb"));
    assert_int_equal(load_open(path, &m, &err), WEFT_ERR_FILE);
    assert_true(holds(err.text, "empty.gguf: ") && holds(err.text, "it is empty"));
    assert_int_equal(load_open(path, &m, NULL), WEFT_ERR_FILE); /* no error record is fine */
    unlink(path);
    rmdir(dir);
    assert_ptr_equal(m, (load_model *)1);
    load_close(NULL);
}

int main(void) {
    if (access(WEFT_GOLDEN "/gguf/bad/expect.json", R_OK) != 0) {
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_files),     cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_random_damage), cmocka_unit_test(test_dequant),
        cmocka_unit_test(test_golden_values), cmocka_unit_test(test_demo),
        cmocka_unit_test(test_all_keys),      cmocka_unit_test(test_value_text),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
