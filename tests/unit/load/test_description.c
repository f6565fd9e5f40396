/* The description of a model by key: config.json and GGUF metadata answer the same questions, and
 * what a value may not be is refused with key, value and expectation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "unit/load/folder_make.h"
#include "unit/load/gguf_edit.h"

/* A folder with this config.json, and no tensors. */
static folder with_config(const char *config) {
    folder f = folder_new();
    folder_text(&f, "config.json", config);
    folder_st(&f, "model.safetensors", "{}", 0);
    return f;
}

static const char config[] =
    "{\"hidden_size\": 144, \"half\": 0.5, \"whole\": 10000.0, \"power\": 1e4, \"eps\": 1e-06,"
    "\"large\": 3000000000, \"larger\": 9007199254740993, \"tie\": true, \"off\": false,"
    "\"name\": \"llama\\u00e9\", \"none\": null, \"count\": \"12\","
    "\"rope\": {\"theta\": 500000, \"full\": {\"type\": \"yarn\"}, \"empty\": {}},"
    "\"kinds\": [\"a\", \"b\", 3, null], \"sizes\": [1, 2.0, 2.5, true, 4294967296], \"no\": []}";

static void int_is(const load_model *m, const char *key, int32_t expected) {
    int32_t n = -7;
    weft_error err = {.text = ""};
    assert_int_equal(load_get_int(m, key, true, 0, INT32_MAX, &n, &err), WEFT_OK);
    assert_int_equal(n, expected);
}

static void int_fails(const load_model *m, const char *key, int32_t lo, int32_t hi,
                      const char *text) {
    int32_t n = -7;
    weft_error err = {.text = ""};
    weft_status s = load_get_int(m, key, true, lo, hi, &n, &err);
    if (s != WEFT_ERR_FILE || strcmp(err.text, text) != 0) {
        fail_msg("%s: status %d, %s", key, (int)s, err.text);
    }
    assert_int_equal(n, -7);
}

static void test_ints(void **state) {
    (void)state;
    folder f = with_config(config);
    load_model *m = folder_open(&f);
    int_is(m, "hidden_size", 144);
    int_is(m, "whole", 10000);
    int_is(m, "power", 10000);
    int_is(m, "rope.theta", 500000);
    int_fails(m, "hidden_size", 1, 100, "hidden_size is 144, expected 1 to 100");
    int_fails(m, "hidden_size", 3, 3, "hidden_size is 144, expected 3");
    int_fails(m, "half", 0, 9, "half is 0.5, expected an integer");
    int_fails(m, "large", 0, INT32_MAX, "large is 3000000000, expected 0 to 2147483647");
    int_fails(m, "tie", 0, 9, "tie is true, expected an integer");
    int_fails(m, "count", 0, 99, "count is 12 (a string), expected an integer");
    int_fails(m, "none", 0, 9, "none is missing, expected an integer");
    int_fails(m, "rope", 0, 9, "rope is {...}, expected an integer");
    int_fails(m, "sizes", 0, 9,
              "sizes is 5 x [1, 2.0, 2.5, true, 4294967296], expected an integer");
    int32_t n = 5;
    assert_int_equal(load_get_int(m, "absent", false, 0, 9, &n, NULL), WEFT_OK);
    assert_int_equal(load_get_int(m, "none", false, 0, 9, &n, NULL), WEFT_OK);
    assert_int_equal(n, 5);
    load_close(m);
    folder_end(&f);
}

static void test_others(void **state) {
    (void)state;
    folder f = with_config(config);
    load_model *m = folder_open(&f);
    weft_error err;
    double r = 0;
    bool flag = false;
    load_string text = {0};
    assert_int_equal(load_get_real(m, "eps", true, 0, 1, &r, &err), WEFT_OK);
    assert_true(r == 1e-6);
    assert_int_equal(load_get_real(m, "rope.theta", true, 0, 1e9, &r, &err), WEFT_OK);
    assert_true(r == 500000);
    assert_int_equal(load_get_real(m, "half", true, 1, 2, &r, &err), WEFT_ERR_FILE);
    assert_string_equal(err.text, "half is 0.5, expected 1 to 2");
    assert_int_equal(load_get_real(m, "name", true, 1, 2, &r, &err), WEFT_ERR_FILE);
    assert_int_equal(load_get_flag(m, "tie", true, &flag, &err), WEFT_OK);
    assert_true(flag);
    assert_int_equal(load_get_flag(m, "off", true, &flag, &err), WEFT_OK);
    assert_false(flag);
    assert_int_equal(load_get_flag(m, "hidden_size", true, &flag, &err), WEFT_ERR_FILE);
    assert_string_equal(err.text, "hidden_size is 144, expected true or false");
    assert_int_equal(load_get_text(m, "name", true, &text, &err), WEFT_OK);
    assert_int_equal(text.bytes, 7);
    assert_memory_equal(text.data, "llama\xC3\xA9", 7);
    assert_int_equal(load_get_text(m, "tie", true, &text, &err), WEFT_ERR_FILE);
    assert_int_equal(load_refuse(m, "rope.full.type", "default", &err), WEFT_ERR_FILE);
    assert_string_equal(err.text,
                        "rope.full.type is yarn: weft does not compute this, expected default");
    assert_int_equal(load_refuse(m, "x", "y", &err), WEFT_ERR_FILE);
    assert_string_equal(err.text, "x is absent: weft does not compute this, expected y");
    assert_true(load_has(m, "rope") && load_has(m, "rope.full") && load_has(m, "rope.full.type"));
    assert_true(load_has(m, "rope.empty") && load_has(m, "no"));
    assert_false(load_has(m, "none") || load_has(m, "rope.") || load_has(m, "rope.full.x"));
    load_close(m);
    folder_end(&f);
}

static void test_arrays(void **state) {
    (void)state;
    folder f = with_config(config);
    load_model *m = folder_open(&f);
    weft_error err;
    load_string text;
    int32_t n = 0;
    assert_int_equal(load_array_length(m, "kinds"), 4);
    assert_int_equal(load_array_length(m, "no"), 0);
    assert_int_equal(load_array_length(m, "name"), -1);
    assert_int_equal(load_array_length(m, "absent"), -1);
    assert_int_equal(load_array_text(m, "kinds", 1, &text, &err), WEFT_OK);
    assert_memory_equal(text.data, "b", 2);
    assert_int_equal(load_array_text(m, "kinds", 2, &text, &err), WEFT_ERR_FILE);
    assert_string_equal(err.text, "kinds[2] is 3, expected a text");
    assert_int_equal(load_array_text(m, "kinds", 3, &text, &err), WEFT_ERR_FILE);
    assert_string_equal(err.text, "kinds[3] is null, expected a text");
    assert_int_equal(load_array_text(m, "kinds", 4, &text, &err), WEFT_ERR_FILE);
    assert_string_equal(err.text, "kinds has 4 entries, expected more than 4");
    assert_int_equal(load_array_text(m, "kinds", -1, &text, &err), WEFT_ERR_FILE);
    assert_string_equal(err.text, "kinds has 4 entries, expected more than -1");
    assert_int_equal(load_array_int(m, "sizes", 1, 0, 9, &n, &err), WEFT_OK);
    assert_int_equal(n, 2);
    assert_int_equal(load_array_int(m, "sizes", 3, 0, 9, &n, &err), WEFT_OK);
    assert_int_equal(n, 1);
    assert_int_equal(load_array_int(m, "sizes", 2, 0, 9, &n, &err), WEFT_ERR_FILE);
    assert_string_equal(err.text, "sizes[2] is 2.5, expected an integer");
    assert_int_equal(load_array_int(m, "sizes", 4, 0, 9, &n, &err), WEFT_ERR_FILE);
    assert_string_equal(err.text, "sizes[4] is 4294967296, expected 0 to 9");
    assert_int_equal(load_array_int(m, "name", 0, 0, 9, &n, &err), WEFT_ERR_FILE);
    assert_int_equal(load_array_int(m, "absent", 0, 0, 9, &n, &err), WEFT_ERR_FILE);
    assert_string_equal(err.text, "absent is missing, expected an array");
    load_close(m);
    folder_end(&f);
}

/* All leaves in the file's order, and which of them were read. */
static void test_list(void **state) {
    (void)state;
    static const struct {
        const char *key, *text;
        bool is_number;
    } expected[] = {
        {"hidden_size", "144", true},
        {"half", "0.5", true},
        {"whole", "10000.0", true},
        {"power", "10000.0", true},
        {"eps", "1e-06", true},
        {"large", "3000000000", true},
        {"larger", "9007199254740993", true},
        {"tie", "true", true},
        {"off", "false", true},
        {"name", "llama\xC3\xA9", false},
        {"count", "12", false},
        {"rope.theta", "500000", true},
        {"rope.full.type", "yarn", false},
        {"kinds", "4 x [a, b, 3, null]", false},
        {"sizes", "5 x [1, 2.0, 2.5, true, 4294967296]", false},
        {"no", "0 x []", false},
    };
    folder f = with_config(config);
    load_model *m = folder_open(&f);
    int32_t n = 0;
    assert_int_equal(load_key_count(m), sizeof expected / sizeof expected[0]);
    assert_int_equal(load_get_int(m, "rope.theta", true, 0, 10, &n, NULL), WEFT_ERR_FILE);
    for (int32_t i = 0; i < load_key_count(m); i++) {
        char text[100];
        double r;
        assert_string_equal(load_key_at(m, i), expected[i].key);
        load_value_text(m, i, text, sizeof text);
        assert_string_equal(text, expected[i].text);
        assert_int_equal(load_value_number(m, i, &r), expected[i].is_number);
        assert_int_equal(load_key_is_read(m, i), i == 11); /* also where the getter failed */
        load_value_text(m, i, text, 1);
        assert_string_equal(text, "");
    }
    load_close(m);
    folder_end(&f);
}

/* ---- what config.json may not be ---- */

static void refuses(const char *text, const char *a, const char *b) {
    folder f = with_config(text);
    folder_refuses(&f, "config.json: ", a, b);
    folder_end(&f);
}

static void test_bad_config(void **state) {
    (void)state;
    refuses("", "no JSON object", NULL);
    refuses("[1]", "no JSON object", NULL);
    refuses("{\"a\": 1,}", "no JSON object", NULL);
    refuses("{\"a\": 1} {", "no JSON object", NULL);
    refuses("{\"a\": 1, \"a\": 2}", "duplicate", NULL);
    refuses("{\"a\": {\"b\": 1, \"b\": 2}}", "duplicate", NULL);
    refuses("{\"a\": {\"b\": 1}, \"a.b\": 2}", "a.b", "stands twice");
    refuses("{\"a\": NaN}", "no JSON object", NULL);
    refuses("{\"a\": 1e999}", "no JSON object", NULL);
    refuses("{\"a\": 99999999999999999999}", "no JSON object", NULL);
    refuses("{\"a\": \"\xFF\"}", "no JSON object", NULL);
    refuses("{\"a\\nb\": 1}", "a\\x0Ab", "control");
    refuses("{\"a\\u0000b\": 1}", "no JSON object", NULL);
}

static void test_large_config(void **state) {
    (void)state;
    enum { N = 70000 };
    char *text = malloc(20 * N), *to = text;
    to += sprintf(to, "{");
    for (int i = 0; i < 17; i++) {
        to += sprintf(to, "\"a\":{");
    }
    for (int i = 0; i < 18; i++) {
        *to++ = '}';
    }
    *to = '\0';
    refuses(text, "a.a.a.a", "nested deeper");
    to = text + sprintf(text, "{");
    for (int i = 0; i < N; i++) {
        to += sprintf(to, "%s\"%d\":1", i > 0 ? "," : "", i);
    }
    strcpy(to, "}");
    refuses(text, "more than 65536 members", NULL);
    memset(text, 'x', 400);
    memcpy(text, "{\"", 2);
    strcpy(text + 400, "\": 1}");
    refuses(text, "longer than 255 bytes", NULL);
    memset(text, '[', 100000);
    memcpy(text, "{\"a\":", 5);
    text[100000] = '\0';
    refuses(text, "no JSON object", NULL);
    free(text);
}

/* ---- GGUF ---- */

/* ok_base with one key more. */
static load_model *with_key(uint32_t type, const void *value, size_t n_value, uint8_t **bytes) {
    size_t n = 0;
    uint8_t *base = file_read(WEFT_GOLDEN "/gguf/bad/ok_base.gguf", &n);
    assert_non_null(base);
    edit e = {.key = "x", .key_type = type, .value = value, .value_bytes = n_value};
    *bytes = gguf_edit(base, &e, &n);
    free(base);
    load_model *m = NULL;
    weft_error err = {.text = ""};
    if (load_open_memory(*bytes, n, "it", &m, &err) != WEFT_OK) {
        fail_msg("%s", err.text);
    }
    return m;
}

static void test_gguf_ints(void **state) {
    (void)state;
    static const uint64_t five = 5, all = UINT64_MAX;
    /* U8 I8 U16 I16 U32 I32, U64 I64 */
    static const struct {
        uint32_t type;
        size_t bytes;
        const char *all_ones;
    } types[] = {
        {0, 1, "255"},        {1, 1, "-1"}, {2, 2, "65535"}, {3, 2, "-1"},
        {4, 4, "4294967295"}, {5, 4, "-1"}, {11, 8, "-1"},   {10, 8, "18446744073709551615"},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        uint8_t *bytes;
        char text[100];
        double r;
        load_model *m = with_key(types[i].type, &five, types[i].bytes, &bytes);
        int_is(m, "x", 5);
        assert_int_equal(load_get_real(m, "x", true, 0, 9, &r, NULL), WEFT_ERR_FILE);
        load_close(m);
        free(bytes);
        m = with_key(types[i].type, &all, types[i].bytes, &bytes);
        snprintf(text, sizeof text, "x is %s, expected 6 to 9", types[i].all_ones);
        int_fails(m, "x", 6, 9, text);
        if (types[i].type == 10) { /* not -1 */
            int_fails(m, "x", -5, 9, "x is 18446744073709551615, expected -5 to 9");
        }
        load_close(m);
        free(bytes);
    }
}

static void test_gguf_others(void **state) {
    (void)state;
    uint8_t *bytes;
    double r = 0;
    float half = 0.5f, nan = __builtin_nanf("");
    double quarter = 0.25;
    weft_error err;
    load_model *m = with_key(6, &half, 4, &bytes);
    assert_int_equal(load_get_real(m, "x", true, 0, 1, &r, NULL), WEFT_OK);
    assert_true(r == 0.5);
    int_fails(m, "x", 0, 9, "x is 0.5 (FLOAT32), expected an integer");
    load_close(m);
    free(bytes);
    m = with_key(12, &quarter, 8, &bytes);
    assert_int_equal(load_get_real(m, "x", true, 0, 1, &r, NULL), WEFT_OK);
    assert_true(r == 0.25);
    load_close(m);
    free(bytes);
    m = with_key(6, &nan, 4, &bytes);
    assert_int_equal(load_get_real(m, "x", true, 0, 1, &r, &err), WEFT_ERR_FILE);
    load_close(m);
    free(bytes);
    m = with_key(4, "\1\2\3\4", 4, &bytes);
    load_string text;
    assert_int_equal(load_get_text(m, "tokenizer.ggml.pre", true, &text, &err), WEFT_OK);
    assert_memory_equal(text.data, "gpt-2", text.bytes);
    assert_int_equal(load_array_text(m, "tokenizer.ggml.tokens", 2, &text, &err), WEFT_OK);
    assert_memory_equal(text.data, "#", text.bytes);
    assert_int_equal(load_array_length(m, "tokenizer.ggml.tokens"), 264);
    assert_true(load_has(m, "x"));
    assert_false(load_has(m, "y"));
    load_close(m);
    free(bytes);
}

/* Arrays of any integer type, and of bools. */
static void test_gguf_arrays(void **state) {
    (void)state;
    static const uint8_t bools[] = {7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1};
    static const uint8_t shorts[] = {3, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0xFE, 0xFF};
    static const uint8_t longs[] = {10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0};
    uint8_t *bytes;
    int32_t n = 0;
    weft_error err;
    load_model *m = with_key(9, bools, sizeof bools, &bytes);
    assert_int_equal(load_array_int(m, "x", 1, 0, 1, &n, &err), WEFT_OK);
    assert_int_equal(n, 1);
    assert_int_equal(load_array_int(m, "x", 0, 1, 1, &n, &err), WEFT_ERR_FILE);
    load_close(m);
    free(bytes);
    m = with_key(9, shorts, sizeof shorts, &bytes);
    assert_int_equal(load_array_length(m, "x"), 2);
    assert_int_equal(load_array_int(m, "x", 0, 0, 9, &n, &err), WEFT_OK);
    assert_int_equal(n, 5);
    assert_int_equal(load_array_int(m, "x", 1, 0, 9, &n, &err), WEFT_ERR_FILE);
    assert_string_equal(err.text, "x[1] is -2, expected 0 to 9");
    assert_true(err.offset > 0);
    load_close(m);
    free(bytes);
    m = with_key(9, longs, sizeof longs, &bytes);
    assert_int_equal(load_array_int(m, "x", 0, 0, 9, &n, &err), WEFT_OK);
    assert_int_equal(n, 6);
    int_fails(m, "x", 0, 9, "x is 1 x UINT64 [6], expected an integer");
    load_close(m);
    free(bytes);
}

/* ---- goldens ---- */

static void test_golden(void **state) {
    (void)state;
    load_model *m = NULL;
    load_string text;
    double r = 0;
    int32_t n = 0;
    assert_int_equal(load_open(WEFT_GOLDEN "/models/gemma4_kvshare", &m, NULL), WEFT_OK);
    int_is(m, "hidden_size", 96);
    int_is(m, "per_layer_config.3.head_dim", 64);
    assert_false(load_has(m, "final_logit_softcapping"));
    assert_int_equal(load_array_length(m, "layer_types"), 6);
    assert_int_equal(load_array_text(m, "layer_types", 5, &text, NULL), WEFT_OK);
    assert_memory_equal(text.data, "full_attention", text.bytes);
    assert_int_equal(load_get_real(m, "rope_parameters.full_attention.partial_rotary_factor", true,
                                   0, 1, &r, NULL),
                     WEFT_OK);
    assert_true(r == 0.25);
    assert_int_equal(load_get_int(m, "vocab_size", true, 0, 1000, &n, NULL), WEFT_OK);
    assert_int_equal(n, 320);
    load_close(m);
}

int main(void) {
    if (access(WEFT_GOLDEN "/models", R_OK) != 0) {
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ints),        cmocka_unit_test(test_others),
        cmocka_unit_test(test_arrays),      cmocka_unit_test(test_list),
        cmocka_unit_test(test_bad_config),  cmocka_unit_test(test_large_config),
        cmocka_unit_test(test_gguf_ints),   cmocka_unit_test(test_gguf_others),
        cmocka_unit_test(test_gguf_arrays), cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
