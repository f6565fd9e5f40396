/* Ids, decodings and conversations against references made by other programs. */
#include "load/load.h"
#include "tok/tok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>
#include <utf8proc.h>

static json_t *read_json(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, WEFT_GOLDEN "/%s/%s", folder, name);
    json_error_t error;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (root == NULL) {
        fail_msg("%s: %s", path, error.text);
    }
    return root;
}

static const char *member_text(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static load_string member_string(const json_t *object, const char *key) {
    const json_t *text = json_object_get(object, key);
    return (load_string){json_string_value(text), json_string_length(text)};
}

/* ---- a load_vocab out of a tokenizer.json ---- */

typedef struct json_vocab {
    json_t *root;
    load_vocab vocab;
    load_string *token, *merge;
    uint8_t *type;
    char *joined; /* merges that were pairs */
} json_vocab;

static void read_tokens(json_vocab *v, json_t *table, const json_t *added) {
    const char *key;
    json_t *value;
    size_t i, n = 0;
    json_object_foreach(table, key, value) {
        size_t id = (size_t)json_integer_value(value);
        n = id + 1 > n ? id + 1 : n;
    }
    json_array_foreach(added, i, value) {
        size_t id = (size_t)json_integer_value(json_object_get(value, "id"));
        n = id + 1 > n ? id + 1 : n;
    }
    v->token = calloc(n + 1, sizeof *v->token);
    v->type = calloc(n + 1, sizeof *v->type);
    json_object_foreach(table, key, value) {
        size_t id = (size_t)json_integer_value(value);
        v->token[id] = (load_string){key, strlen(key)};
        v->type[id] = LOAD_TOKEN_NORMAL;
    }
    json_array_foreach(added, i, value) {
        size_t id = (size_t)json_integer_value(json_object_get(value, "id"));
        v->token[id] = member_string(value, "content");
        v->type[id] =
            json_is_true(json_object_get(value, "special")) ? LOAD_TOKEN_CONTROL : LOAD_TOKEN_USER;
    }
    v->vocab.n_token = (int32_t)n;
}

static void read_merges(json_vocab *v, const json_t *merges) {
    size_t n = json_array_size(merges), bytes = 1, i;
    const json_t *entry;
    json_array_foreach(merges, i, entry) {
        bytes += json_string_length(json_array_get(entry, 0)) +
                 json_string_length(json_array_get(entry, 1)) + 1;
    }
    v->merge = calloc(n + 1, sizeof *v->merge);
    v->joined = malloc(bytes);
    char *to = v->joined;
    json_array_foreach(merges, i, entry) {
        if (json_is_string(entry)) {
            v->merge[i] = (load_string){json_string_value(entry), json_string_length(entry)};
            continue;
        }
        int length = sprintf(to, "%s %s", json_string_value(json_array_get(entry, 0)),
                             json_string_value(json_array_get(entry, 1)));
        v->merge[i] = (load_string){to, (size_t)length};
        to += length;
    }
    v->vocab.n_merge = (int32_t)n;
}

static json_vocab read_vocab(const char *name, const char *pre) {
    char file[64];
    snprintf(file, sizeof file, "%s.json", name);
    json_vocab v = {.root = read_json("tokenizers", file)};
    const json_t *model = json_object_get(v.root, "model");
    v.vocab = (load_vocab){.model = "gpt2", .pre = pre, .unk = -1, .bos = -1};
    read_tokens(&v, json_object_get(model, "vocab"), json_object_get(v.root, "added_tokens"));
    read_merges(&v, json_object_get(model, "merges"));
    v.vocab.token = v.token;
    v.vocab.type = v.type;
    v.vocab.merge = v.merge;
    return v;
}

static void free_vocab(json_vocab *v) {
    free(v->token);
    free(v->type);
    free(v->merge);
    free(v->joined);
    json_decref(v->root);
}

static tok *create(const load_vocab *vocab) {
    weft_error err = {.text = ""};
    tok *t = NULL;
    if (tok_create(vocab, &t, &err) != WEFT_OK) {
        fail_msg("tok_create: %s", err.text);
    }
    return t;
}

/* ---- comparing ---- */

static bool same_ids(const tok *t, load_string text, const json_t *want) {
    weft_error err;
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(tok_encode(t, text.data, text.bytes, true, &ids, &n, &err), WEFT_OK);
    bool same = n == json_array_size(want);
    for (size_t i = 0; same && i < n; i++) {
        same = ids[i] == json_integer_value(json_array_get(want, i));
    }
    free(ids);
    return same;
}

/* The ids' text through the stream. */
static bool same_text(const tok *t, const json_t *ids, bool skip_special, load_string want) {
    tok_stream *stream = NULL;
    const char *text;
    size_t i, n, at = 0;
    bool same = true;
    assert_int_equal(tok_stream_open(t, false, &stream, NULL), WEFT_OK);
    for (i = 0; i <= json_array_size(ids) && same; i++) {
        int32_t token = (int32_t)json_integer_value(json_array_get(ids, i));
        if (i == json_array_size(ids)) {
            assert_int_equal(tok_stream_end(stream, &text, &n, NULL), WEFT_OK);
        } else if (skip_special && tok_is_special(t, token)) {
            continue;
        } else {
            assert_int_equal(tok_stream_push(stream, token, &text, &n, NULL), WEFT_OK);
        }
        same = n <= want.bytes - at && memcmp(text, want.data + at, n) == 0;
        at += n;
    }
    tok_stream_close(stream);
    return same && at == want.bytes;
}

static bool contains(load_string text, load_string part) {
    return memmem(text.data, text.bytes, part.data, part.bytes) != NULL;
}

/* Added tokens with lstrip, rstrip or single_word act in a way that GGUF cannot express; so does a
 * normalized one that stands in the text only after the scheme has composed it. */
static bool has_flagged(const json_t *added, load_string text, bool composes) {
    uint8_t *composed = NULL;
    utf8proc_ssize_t bytes = utf8proc_map((const uint8_t *)text.data, (utf8proc_ssize_t)text.bytes,
                                          &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    assert_true(bytes >= 0);
    load_string after = {(const char *)composed, (size_t)bytes};
    bool found = false;
    size_t i;
    const json_t *token;
    json_array_foreach(added, i, token) {
        load_string content = member_string(token, "content");
        bool flagged = json_is_true(json_object_get(token, "lstrip")) ||
                       json_is_true(json_object_get(token, "rstrip")) ||
                       json_is_true(json_object_get(token, "single_word"));
        found = found || (flagged && contains(text, content)) ||
                (composes && json_is_true(json_object_get(token, "normalized")) &&
                 contains(after, content) && !contains(text, content));
    }
    free(composed);
    return found;
}

static size_t compare_file(const tok *t, const json_t *golden, const json_t *added, bool composes,
                           const char *decoded_key, size_t *n_text) {
    size_t n_compared = 0, n_wrong = 0, i;
    const json_t *entry;
    json_array_foreach(golden, i, entry) {
        const char *name = member_text(entry, "name");
        load_string text = member_string(entry, "text");
        if (strncmp(name, "newer_unicode/", 14) == 0 || has_flagged(added, text, composes)) {
            continue;
        }
        n_compared++;
        const json_t *ids = json_object_get(entry, "ids");
        bool wrong = !same_ids(t, text, ids);
        if (decoded_key != NULL) {
            wrong = wrong || !same_text(t, ids, false, member_string(entry, decoded_key)) ||
                    !same_text(t, ids, true, member_string(entry, "decoded_skip"));
        }
        if (wrong && n_wrong++ < 20) {
            print_message("differs: %s\n", name);
        }
    }
    *n_text = json_array_size(golden);
    assert_int_equal(n_wrong, 0);
    return n_compared;
}

/* ---- tests ---- */

static void check_scheme(const char *name, const char *pre, size_t least) {
    char file[64];
    json_vocab v = read_vocab(name, pre);
    tok *t = create(&v.vocab);
    snprintf(file, sizeof file, "%s.golden.json", name);
    json_t *golden = read_json("tokenizers", file);
    size_t n_text;
    size_t n = compare_file(t, golden, json_object_get(v.root, "added_tokens"),
                            strcmp(pre, "qwen2") == 0, "decoded", &n_text);
    print_message("%s: %zu of %zu texts compared\n", name, n, n_text);
    assert_true(n >= least);
    json_decref(golden);

    snprintf(file, sizeof file, "%s.decode.json", name);
    golden = read_json("tokenizers", file);
    assert_true(json_array_size(golden) >= 300);
    size_t i;
    const json_t *entry;
    json_array_foreach(golden, i, entry) {
        const json_t *ids = json_object_get(entry, "ids");
        if (!same_text(t, ids, false, member_string(entry, "decoded")) ||
            !same_text(t, ids, true, member_string(entry, "decoded_skip"))) {
            fail_msg("decode: %s", member_text(entry, "name"));
        }
    }
    json_decref(golden);
    tok_destroy(t);
    free_vocab(&v);
}

static void test_gpt2(void **state) {
    (void)state;
    check_scheme("gpt2", "gpt-2", 1074);
}

static void test_smollm(void **state) {
    (void)state;
    check_scheme("smollm", "smollm", 1074);
}

static void test_llama3(void **state) {
    (void)state;
    check_scheme("llama3", "llama-bpe", 1074);
}

static void test_qwen2(void **state) {
    (void)state;
    check_scheme("qwen2", "qwen2", 1071);
}

static void test_deepseek_v3(void **state) {
    (void)state;
    check_scheme("deepseek_v3", "deepseek-v3", 1074);
}

static void test_o200k(void **state) {
    (void)state;
    check_scheme("o200k", "gpt-4o", 1074);
}

static load_model *open_model(const char *path) {
    weft_error err = {.text = ""};
    load_model *m = NULL;
    if (load_open(path, &m, &err) != WEFT_OK) {
        fail_msg("%s: %s", path, err.text);
    }
    return m;
}

static void test_demo_model(void **state) {
    (void)state;
    load_model *m = open_model(WEFT_DEMO_MODEL);
    tok *t = create(load_get_vocab(m));
    size_t n_lead;
    assert_int_equal(tok_vocab_size(t), 49152);
    tok_lead(t, &n_lead);
    assert_int_equal(n_lead, 0);
    assert_true(tok_is_end(t, tok_eos(t)));
    json_t *golden = read_json("tokenizers", "smollm2.golden.json");
    size_t n_text;
    size_t n = compare_file(t, golden, NULL, false, NULL, &n_text);
    print_message("demo model: %zu of %zu texts compared\n", n, n_text);
    assert_true(n >= 1230);
    json_decref(golden);

    const char *roles[] = {"user", "assistant", "system"};
    const char *texts[] = {" Hi\n", "Hello", "late"};
    char *text = NULL;
    assert_int_equal(tok_chat_render(t, roles, texts, 3, true, &text, NULL), WEFT_OK);
    assert_string_equal(text,
                        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
                        "trained by Hugging Face<|im_end|>\n<|im_start|>user\n Hi\n<|im_end|>\n"
                        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>system\nlate"
                        "<|im_end|>\n<|im_start|>assistant\n");
    free(text);
    assert_int_equal(tok_chat_render(t, roles + 2, texts + 2, 1, false, &text, NULL), WEFT_OK);
    assert_string_equal(text, "<|im_start|>system\nlate<|im_end|>\n");
    free(text);
    assert_int_equal(tok_chat_render(t, NULL, NULL, 0, true, &text, NULL), WEFT_OK);
    assert_string_equal(text, "<|im_start|>assistant\n");
    free(text);
    tok_destroy(t);
    load_close(m);
}

static void check_chat(const tok *t) {
    json_t *golden = read_json("gguf", "chat.golden.json");
    assert_true(json_array_size(golden) >= 8);
    size_t i;
    const json_t *entry;
    json_array_foreach(golden, i, entry) {
        const json_t *messages = json_object_get(entry, "messages");
        const char *roles[8], *texts[8];
        size_t n = json_array_size(messages);
        assert_true(n <= 8);
        for (size_t k = 0; k < n; k++) {
            roles[k] = member_text(json_array_get(messages, k), "role");
            texts[k] = member_text(json_array_get(messages, k), "content");
        }
        bool prompt = json_is_true(json_object_get(entry, "add_generation_prompt"));
        char *text = NULL;
        assert_int_equal(tok_chat_render(t, roles, texts, n, prompt, &text, NULL), WEFT_OK);
        assert_string_equal(text, member_text(entry, "text"));
        free(text);
    }
    json_decref(golden);
}

static void test_gguf_vocabulary(void **state) {
    (void)state;
    load_model *m = open_model(WEFT_GOLDEN "/gguf/Q8_0.gguf");
    tok *t = create(load_get_vocab(m));
    size_t n_lead;
    tok_lead(t, &n_lead);
    assert_int_equal(n_lead, 0);
    assert_true(tok_is_special(t, 376) && tok_is_special(t, 381));
    assert_false(tok_is_special(t, 375) || tok_is_special(t, 382));
    assert_true(tok_is_end(t, 376) && tok_is_end(t, 378));
    assert_false(tok_is_end(t, 377) || tok_is_end(t, 379));
    json_t *golden = read_json("gguf", "vocab.golden.json");
    size_t n_text;
    size_t n = compare_file(t, golden, NULL, false, NULL, &n_text);
    print_message("gguf: %zu of %zu texts compared\n", n, n_text);
    assert_true(n >= 1202);
    json_decref(golden);
    check_chat(t);
    tok_destroy(t);
    load_close(m);
}

/* Broken files whose fault only the tokeniser sees. */
static void test_unknown_pre(void **state) { /* C11 */
    (void)state;
    static const char *const files[][2] = {
        {WEFT_GOLDEN "/gguf/bad/pre_missing.gguf", "tokenizer.ggml.pre is missing"},
        {WEFT_GOLDEN "/gguf/bad/pre_nonsense.gguf", "tokenizer.ggml.pre is \"nonsense\""},
    };
    for (int i = 0; i < 2; i++) {
        load_model *m = open_model(files[i][0]);
        weft_error err = {.text = ""};
        tok *t = NULL;
        assert_int_equal(tok_create(load_get_vocab(m), &t, &err), WEFT_ERR_FILE);
        assert_non_null(strstr(err.text, files[i][1]));
        load_close(m);
    }
}

int main(void) {
    if (access(WEFT_GOLDEN "/tokenizers/gpt2.json", R_OK) != 0 ||
        access(WEFT_DEMO_MODEL, R_OK) != 0) {
        fputs("skipped: no golden files or no demo model\n", stderr);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_smollm),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_deepseek_v3),
        cmocka_unit_test(test_o200k),
        cmocka_unit_test(test_unknown_pre),
        cmocka_unit_test(test_demo_model),
        cmocka_unit_test(test_gguf_vocabulary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
