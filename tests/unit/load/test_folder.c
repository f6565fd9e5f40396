/* Folders as Hugging Face writes them: what stands in them is found, every hostile or broken one is
 * refused with the file and the thing at fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/log.h"
#include "unit/load/folder_make.h"

#define A ST("a", "BF16", "[2,3]", "[0,12]")
#define B ST("b", "F32", "[2]", "[12,20]")

/* A sound folder with tensors a [2, 3] and b [2]. */
static folder sound(void) {
    folder f = folder_new();
    folder_text(&f, "config.json", "{\"model_type\": \"llama\"}");
    folder_st(&f, "model.safetensors", "{" A "," B "}", 20);
    return f;
}

/* The same in two files. */
static folder sharded(void) {
    folder f = folder_new();
    folder_text(&f, "config.json", "{}");
    folder_st(&f, "m-00001-of-00002.safetensors", "{" A "}", 12);
    folder_st(&f, "m-00002-of-00002.safetensors", "{" ST("b", "F32", "[2]", "[0,8]") "}", 8);
    folder_text(&f, "model.safetensors.index.json",
                "{\"metadata\": {\"total_size\": 20}, \"weight_map\": {\"b\": "
                "\"m-00002-of-00002.safetensors\", \"a\": \"m-00001-of-00002.safetensors\"}}");
    return f;
}

static void check_a_and_b(const load_model *m) {
    assert_int_equal(load_get_kind(m), LOAD_FOLDER);
    assert_int_equal(load_tensor_count(m), 2);
    const load_tensor *a = load_find_tensor(m, "a"), *b = load_find_tensor(m, "b");
    assert_ptr_equal(a, load_tensor_at(m, 0));
    assert_ptr_equal(b, load_tensor_at(m, 1));
    assert_null(load_find_tensor(m, "c"));
    assert_string_equal(a->name, "a");
    assert_int_equal(a->ggml_type, DTYPE_BF16);
    assert_string_equal(a->type_name, "BF16");
    assert_int_equal(a->n_dim, 2);
    assert_int_equal(a->dim[0], 3); /* the row length first */
    assert_int_equal(a->dim[1], 2);
    assert_int_equal(a->dim[2], 1);
    assert_int_equal(a->bytes, 12);
    assert_memory_equal(a->data, "\0\1\2\3\4\5\6\7\x08\x09\x0A\x0B", 12);
    assert_int_equal(b->ggml_type, DTYPE_F32);
    assert_int_equal(b->n_dim, 1);
    assert_int_equal(b->dim[0], 2);
}

static void test_sound(void **state) {
    (void)state;
    folder f = sound();
    load_model *m = folder_open(&f);
    check_a_and_b(m);
    assert_string_equal(load_name(m), strrchr(f.path, '/') + 1);
    assert_memory_equal(load_find_tensor(m, "b")->data, "\x0C\x0D\x0E\x0F", 4);
    const load_vocab *v = load_get_vocab(m);
    assert_null(v->tokenizer_json.data);
    assert_null(v->chat_template.data);
    assert_int_equal(v->bos, -1);
    assert_int_equal(v->n_eos, 0);
    load_close(m);
    folder_end(&f);
}

/* However the folder is named. */
static void test_names(void **state) {
    (void)state;
    folder f = sound();
    char path[400], here[400];
    static const char *const ends[] = {"/", "//", "/config.json", "/."};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        snprintf(path, sizeof path, "%s%s", f.path, ends[i]);
        load_model *m = NULL;
        assert_int_equal(load_open(path, &m, NULL), WEFT_OK);
        check_a_and_b(m);
        assert_string_equal(load_name(m), strrchr(f.path, '/') + 1);
        load_close(m);
    }
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(f.path), 0);
    load_model *m = NULL;
    assert_int_equal(load_open("config.json", &m, NULL), WEFT_OK);
    assert_string_equal(load_name(m), strrchr(f.path, '/') + 1);
    load_close(m);
    assert_int_equal(chdir(here), 0);
    weft_error err;
    snprintf(path, sizeof path, "%s/model.safetensors", f.path);
    assert_int_equal(load_open(path, &m, &err), WEFT_ERR_FILE);
    assert_non_null(strstr(err.text, "expected their folder"));
    folder_end(&f);
}

static void test_sharded(void **state) {
    (void)state;
    folder f = sharded();
    load_model *m = folder_open(&f);
    check_a_and_b(m);
    assert_memory_equal(load_find_tensor(m, "b")->data, "\0\1\2\3", 4);
    load_forget_pages(m);
    load_forget_tensor(m, load_find_tensor(m, "a"));
    check_a_and_b(m);
    load_close(m);
    folder_end(&f);
}

static void test_missing_files(void **state) {
    (void)state;
    folder f = sound();
    folder_drop(&f, "model.safetensors");
    folder_refuses(&f, "no weights", "model.safetensors.index.json", NULL);
    folder_drop(&f, "config.json");
    folder_refuses(&f, "without config.json", f.path, NULL);
    folder_end(&f);
}

/* ---- what a model's tensors may not be, though the container allows it ---- */

static void refuses_weights(const char *header, size_t n_data, const char *a, const char *b) {
    folder f = sound();
    folder_st(&f, "model.safetensors", header, n_data);
    folder_refuses(&f, "/model.safetensors: ", a, b);
    folder_end(&f);
}

static void test_weights(void **state) {
    (void)state;
    refuses_weights("{" ST("a", "F32", "[0]", "[0,0]") "}", 0, "tensor a", "empty");
    refuses_weights("{" ST("a", "F32", "[4,0,2]", "[0,0]") "}", 0, "tensor a", "empty");
    refuses_weights("{" ST("a", "F32", "[1,1,1,1,1]", "[0,4]") "}", 4, "tensor a", "5 dimensions");
    refuses_weights("{" A "," A "}", 20, "duplicate", NULL);
    refuses_weights("{" A "," ST("b", "F32", "[2]", "[8,16]") "}", 16, "overlap",
                    "tensors a and b");
    refuses_weights("{" A "," B "}", 21, "1 bytes of data after", NULL);
    refuses_weights("{" A "}", 4, "tensor a", "truncated");
    refuses_weights("{" ST("a\\nb", "F32", "[1]", "[0,4]") "}", 4, "tensor a\\x0Ab", "control");
    refuses_weights("{" ST("a", "F31", "[1]", "[0,4]") "}", 4, "tensor a", "dtype F31");
}

/* Types that weft does not compute with are there for who lists them. */
static void test_other_types(void **state) {
    (void)state;
    folder f = sound();
    folder_st(&f, "model.safetensors",
              "{" ST("i", "I64", "[1]", "[0,8]") "," ST("q", "F8_E4M3", "[2,2]", "[8,12]") "," ST(
                  "s", "U8", "[]", "[12,13]") "}",
              13);
    load_model *m = folder_open(&f);
    const load_tensor *i = load_find_tensor(m, "i"), *q = load_find_tensor(m, "q"),
                      *s = load_find_tensor(m, "s");
    assert_null(dtype_find(i->ggml_type));
    assert_string_equal(dtype_ggml_name(i->ggml_type, NULL, NULL), "I64");
    assert_int_equal(q->ggml_type, LOAD_NO_GGML_TYPE);
    assert_null(dtype_find(q->ggml_type));
    assert_null(dtype_ggml_name(q->ggml_type, NULL, NULL));
    assert_string_equal(q->type_name, "F8_E4M3");
    assert_int_equal(s->n_dim, 1); /* a scalar */
    assert_int_equal(s->dim[0], 1);
    load_close(m);
    folder_end(&f);
}

/* ---- the index ---- */

static void refuses_index(const char *map, const char *a, const char *b) {
    folder f = sharded();
    folder_text(&f, "model.safetensors.index.json", map);
    folder_refuses(&f, a, b, NULL);
    folder_end(&f);
}

#define FIRST "\"m-00001-of-00002.safetensors\""
#define SECOND "\"m-00002-of-00002.safetensors\""

static void test_index(void **state) {
    (void)state;
    refuses_index("{\"weight_map\": {\"a\": " FIRST ", \"b\": \"m-00003.safetensors\"}}",
                  "cannot open", "m-00003.safetensors");
    refuses_index("{\"weight_map\": {\"a\": " FIRST ", \"b\": " SECOND ", \"c\": " SECOND "}}",
                  "tensor c into m-00002-of-00002.safetensors", "does not hold it");
    refuses_index("{\"weight_map\": {\"a\": " FIRST ", \"c\": " SECOND "}}", "tensor b",
                  "m-00002-of-00002.safetensors: ");
    refuses_index("{\"weight_map\": {\"a\": " FIRST ", \"b\": " FIRST "}}", "tensor b",
                  "does not hold it");
    refuses_index("{\"weight_map\": {\"a\": " SECOND ", \"b\": " SECOND "}}", "tensor a",
                  "does not hold it");
    refuses_index("{\"weight_map\": {\"b\": " FIRST ", \"a\": " SECOND "}}", "tensor a",
                  "puts it into m-00002-of-00002.safetensors, expected this file");
    refuses_index("{\"weight_map\": {\"a\": \"../m.safetensors\"}}", "tensor a",
                  "../m.safetensors");
    refuses_index("{\"weight_map\": {\"a\": \"/etc/m.safetensors\"}}", "tensor a",
                  "/etc/m.safetensors");
    refuses_index("{\"weight_map\": {\"a\": \"sub/m.safetensors\"}}", "tensor a", "beside");
    refuses_index("{\"weight_map\": {\"a\": \"..\"}}", "tensor a", "beside");
    refuses_index("{\"weight_map\": {\"a\": \".safetensors\"}}", "tensor a", "beside");
    refuses_index("{\"weight_map\": {\"a\": \"m\\n.safetensors\"}}", "tensor a", "m\\x0A");
    refuses_index("{\"weight_map\": {\"a\": \"\"}}", "tensor a", "beside");
    refuses_index("{\"weight_map\": {\"a\": 3}}", "tensor a", "expected the name of a file");
    refuses_index("{\"weight_map\": {\"a\": " FIRST ", \"a\": " FIRST "}}", "duplicate",
                  "index.json: ");
    refuses_index("{\"weight_map\": {}}", "weight_map", "index.json: ");
    refuses_index("{\"weight_map\": []}", "weight_map", "index.json: ");
    refuses_index("{}", "weight_map", "index.json: ");
    refuses_index("[]", "no JSON object", "index.json: ");
    refuses_index("", "no JSON object", "index.json: ");
}

/* k in one shard and again in the other: the index can name one place only. */
static void test_twice(void **state) {
    (void)state;
    folder f = sharded();
    folder_st(&f, "m-00002-of-00002.safetensors",
              "{" ST("a", "F32", "[1]", "[0,4]") "," ST("b", "F32", "[1]", "[4,8]") "}", 8);
    folder_refuses(&f, "m-00002-of-00002.safetensors: ", "tensor a",
                   "puts it into m-00001-of-00002.safetensors");
    folder_st(&f, "m-00002-of-00002.safetensors", "{" ST("b", "F32", "[2]", "[0,8]") "}", 7);
    folder_refuses(&f, "m-00002-of-00002.safetensors: ", "tensor b", "truncated");
    folder_drop(&f, "m-00002-of-00002.safetensors");
    folder_refuses(&f, "cannot open", "m-00002-of-00002.safetensors", NULL);
    folder_end(&f);
}

/* ---- vocabulary ---- */

static void test_specials(void **state) {
    (void)state;
    static const struct {
        const char *config, *generation; /* generation NULL: absent */
        int32_t bos, n_eos, eos[2];
    } cases[] = {
        {"{\"bos_token_id\": 1, \"eos_token_id\": 2}", NULL, 1, 1, {2}},
        {"{\"bos_token_id\": 1, \"eos_token_id\": [7, 2]}", NULL, 1, 2, {7, 2}},
        {"{\"bos_token_id\": 1, \"eos_token_id\": 2}", "{\"eos_token_id\": [5, 6]}", 1, 2, {5, 6}},
        {"{\"eos_token_id\": 2}", "{\"bos_token_id\": 4, \"eos_token_id\": null}", 4, 1, {2}},
        {"{\"bos_token_id\": null}", "{}", -1, 0, {0}},
        {"{\"text_config\": {\"bos_token_id\": 8, \"eos_token_id\": 9}}", NULL, 8, 1, {9}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        folder f = sound();
        folder_text(&f, "config.json", cases[i].config);
        if (cases[i].generation != NULL) {
            folder_text(&f, "generation_config.json", cases[i].generation);
        }
        load_model *m = folder_open(&f);
        const load_vocab *v = load_get_vocab(m);
        assert_int_equal(v->bos, cases[i].bos);
        assert_int_equal(v->n_eos, cases[i].n_eos);
        for (int32_t k = 0; k < v->n_eos; k++) {
            assert_int_equal(v->eos_ids[k], cases[i].eos[k]);
        }
        load_close(m);
        folder_end(&f);
    }
}

static void refuses_file(const char *name, const char *text, const char *a, const char *b) {
    folder f = sound();
    folder_text(&f, name, text);
    folder_refuses(&f, name, a, b);
    folder_end(&f);
}

static void test_bad_specials(void **state) {
    (void)state;
    static const char g[] = "generation_config.json";
    refuses_file(g, "{\"eos_token_id\": \"</s>\"}", "eos_token_id is </s>", NULL);
    refuses_file(g, "{\"eos_token_id\": -1}", "eos_token_id is -1", "0 to 16777215");
    refuses_file(g, "{\"eos_token_id\": 2147483648}", "eos_token_id is 2147483648", NULL);
    refuses_file(g, "{\"eos_token_id\": 2.5}", "eos_token_id is 2.5", NULL);
    refuses_file(g, "{\"eos_token_id\": [1, null]}", "eos_token_id is null", NULL);
    refuses_file(g, "{\"eos_token_id\": [1,2,3,4,5,6,7,8,9]}", "9 entries", "at most 8");
    refuses_file(g, "{\"bos_token_id\": [1,2]}", "bos_token_id has 2 entries", NULL);
    refuses_file(g, "[]", "no JSON object", NULL);
    refuses_file("config.json", "{\"eos_token_id\": true}", "eos_token_id is true", NULL);
}

static void check_template(const folder *f, const char *expected) {
    load_model *m = folder_open(f);
    load_string t = load_get_vocab(m)->chat_template;
    if (expected == NULL) {
        assert_null(t.data);
    } else {
        assert_int_equal(t.bytes, strlen(expected));
        assert_memory_equal(t.data, expected, t.bytes);
    }
    load_close(m);
}

static void test_template(void **state) {
    (void)state;
    static const char c[] = "tokenizer_config.json";
    folder f = sound();
    folder_text(&f, c, "{\"bos_token\": \"<s>\"}");
    check_template(&f, NULL);
    folder_text(&f, c, "{\"chat_template\": null}");
    check_template(&f, NULL);
    folder_text(&f, c, "{\"chat_template\": \"{{ x }}\\u00e9\"}");
    check_template(&f, "{{ x }}\xC3\xA9");
    folder_text(&f, c,
                "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T\"}, {\"name\": "
                "\"default\", \"template\": \"D\"}]}");
    check_template(&f, "D");
    folder_text(&f, "chat_template.jinja", "J");
    check_template(&f, "J");
    folder_end(&f);
    refuses_file(c, "{\"chat_template\": [{\"name\": \"x\", \"template\": \"T\"}]}", "default",
                 NULL);
    refuses_file(c, "{\"chat_template\": 3}", "chat_template is no string", NULL);
    refuses_file(c, "{\"chat_template\": [{\"name\": \"default\"}]}", "chat_template is no", NULL);
    refuses_file("chat_template.jinja", "\xFF", "not UTF-8", NULL);
    refuses_file("chat_template.jinja", "", "empty", NULL);
}

/* How a text begins, and a number that no integer holds ("no limit"). */
static void test_tokenizer_config(void **state) {
    (void)state;
    static const struct {
        const char *text, *bos;
        bool add, drop;
    } cases[] = {
        {"{\"model_max_length\": 1000000000000000019884624838656, \"add_bos_token\": true, "
         "\"bos_token\": \"<s>\"}",
         "<s>", true, false},
        {"{\"add_bos_token\": true, \"bos_token\": {\"__type\": \"AddedToken\", \"content\": "
         "\"<|b|>\"}, \"tokenizer_class\": \"LlamaTokenizerFast\"}",
         "<|b|>", true, false},
        {"{\"add_bos_token\": false, \"bos_token\": \"<s>\"}", "<s>", false, true},
        {"{\"add_bos_token\": true, \"bos_token\": null}", NULL, false, false},
        {"{}", NULL, false, false},
    };
    log_set_level(LOG_QUIET); /* no eos_token_id: warned of */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder f = sound();
        folder_text(&f, "tokenizer.json", "{\"version\": \"1.0\"}");
        folder_text(&f, "tokenizer_config.json", cases[i].text);
        load_model *m = folder_open(&f);
        const load_vocab *v = load_get_vocab(m);
        assert_int_equal(v->add_bos, cases[i].add);
        assert_int_equal(v->drop_bos, cases[i].drop);
        assert_int_equal(v->bos_text.data != NULL, cases[i].bos != NULL);
        if (cases[i].bos != NULL) {
            assert_string_equal(v->bos_text.data, cases[i].bos);
        }
        load_close(m);
        folder_end(&f);
    }
    log_set_level(LOG_WARN);
}

static void test_tokenizer(void **state) {
    (void)state;
    folder f = sound();
    folder_text(&f, "tokenizer.json", "{\"version\": \"1.0\"}");
    log_set_level(LOG_QUIET); /* no eos_token_id: warned of */
    load_model *m = folder_open(&f);
    log_set_level(LOG_WARN);
    assert_int_equal(load_get_vocab(m)->tokenizer_json.bytes, 18);
    assert_memory_equal(load_get_vocab(m)->tokenizer_json.data, "{\"version\": \"1.0\"}", 18);
    load_close(m);
    folder_end(&f);
    refuses_file("tokenizer.json", "", "empty", NULL);
    refuses_file("tokenizer.json", "{\"\xC0\x80\": 1}", "not UTF-8", NULL);
}

/* A vocabulary needs no model around it. */
static void test_vocab_alone(void **state) {
    (void)state;
    folder f = folder_new();
    load_model *m = NULL;
    folder_text(&f, "tokenizer.json", "{}");
    folder_text(&f, "generation_config.json", "{\"eos_token_id\": 3}");
    folder_refuses(&f, "config.json", NULL, NULL);
    assert_int_equal(load_open_vocab(f.path, &m, NULL), WEFT_OK);
    assert_int_equal(load_get_vocab(m)->tokenizer_json.bytes, 2);
    assert_int_equal(load_get_vocab(m)->eos_ids[0], 3);
    assert_int_equal(load_tensor_count(m), 0);
    assert_null(load_find_tensor(m, "a"));
    assert_false(load_has(m, "a"));
    load_close(m);
    folder_end(&f);
}

/* ---- memory ---- */

/* Pages of files that count as this process's, in bytes. */
static size_t resident(void) {
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    char line[200];
    size_t kb = 0;
    while (fgets(line, sizeof line, f) != NULL) {
        sscanf(line, "RssFile: %zu", &kb);
    }
    fclose(f);
    return kb * 1024;
}

/* A model is read tensor by tensor with no more than one of them in memory. */
static void test_forget(void **state) {
    (void)state;
    enum { N = 8, BYTES = 4 << 20 };
    folder f = sound();
    char header[N * 100], *to = header;
    for (int i = 0; i < N; i++) {
        to += sprintf(to, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}",
                      i == 0 ? "{" : ",", i, (int)BYTES, i * BYTES, (i + 1) * BYTES);
    }
    strcpy(to, "}");
    folder_st(&f, "model.safetensors", header, (size_t)N * BYTES);
    load_model *m = folder_open(&f);
    size_t before = resident(), most = 0, sum = 0;
    for (int32_t i = 0; i < N; i++) {
        const load_tensor *t = load_tensor_at(m, i);
        for (size_t k = 0; k < t->bytes; k += 64) {
            sum += ((const uint8_t *)t->data)[k];
        }
        size_t now = resident();
        most = now > before + most ? now - before : most;
        load_forget_tensor(m, t);
    }
    assert_int_equal(sum, (size_t)N * BYTES / 256 * (0 + 64 + 128 + 192));
    print_message("%zu bytes at most\n", most);
    assert_true(most >= BYTES / 2 && most < 2 * BYTES);
    load_close(m);
    folder_end(&f);
}

/* ---- goldens ---- */

static void test_golden(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int32_t n_tensor;
    } cases[] = {
        {"deepseek_v2_lite", 83}, {"deepseek_v3", 91}, {"gemma3", 54},     {"gemma4_kvshare", 101},
        {"gpt_oss", 71},          {"llama3_rope", 30}, {"llama_gqa3", 29}, {"mistral_swa", 30},
        {"mixtral", 60},          {"qwen2", 38},       {"qwen3", 35},      {"qwen3_moe", 102},
        {"qwen3_tp8", 24},
    };
    if (access(WEFT_GOLDEN "/models", R_OK) != 0) {
        skip();
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[512];
        load_model *m = NULL;
        weft_error err = {.text = ""};
        snprintf(path, sizeof path, "%s/models/%s", WEFT_GOLDEN, cases[i].name);
        if (load_open(path, &m, &err) != WEFT_OK) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(load_tensor_count(m), cases[i].n_tensor);
        assert_string_equal(load_name(m), cases[i].name);
        assert_int_equal(load_get_vocab(m)->eos_ids[0], 2);
        load_close(m);
    }
}

static void test_golden_tensor(void **state) {
    (void)state;
    if (access(WEFT_GOLDEN "/models", R_OK) != 0) {
        skip();
    }
    load_model *m = NULL;
    assert_int_equal(load_open(WEFT_GOLDEN "/models/llama_gqa3", &m, NULL), WEFT_OK);
    assert_int_equal(load_file_bytes(m), 926672);
    const load_tensor *t = load_find_tensor(m, "model.layers.1.self_attn.k_proj.weight");
    assert_non_null(t);
    assert_int_equal(t->ggml_type, DTYPE_BF16);
    assert_int_equal(t->n_dim, 2);
    assert_int_equal(t->dim[0], 144);
    assert_int_equal(t->dim[1], 48);
    assert_int_equal(t->offset, 538736);
    assert_memory_equal(t->data, "\xAD\xBD\x06\xBE", 4);
    load_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound),         cmocka_unit_test(test_names),
        cmocka_unit_test(test_sharded),       cmocka_unit_test(test_missing_files),
        cmocka_unit_test(test_weights),       cmocka_unit_test(test_other_types),
        cmocka_unit_test(test_index),         cmocka_unit_test(test_twice),
        cmocka_unit_test(test_specials),      cmocka_unit_test(test_bad_specials),
        cmocka_unit_test(test_template),      cmocka_unit_test(test_tokenizer_config),
        cmocka_unit_test(test_tokenizer),     cmocka_unit_test(test_vocab_alone),
        cmocka_unit_test(test_forget),        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_golden_tensor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
