/* tokenizer.json of every scheme in the golden folder: ids, the tokens around a text, and texts, as
 * the library that the files are for gives them. */
#include "tok/tok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

enum { N_TEXT = 1195, LEAST_DECODE = 300, MOST_SHOWN = 20 };

static char *read_file(const char *name, const char *suffix, size_t *bytes) {
    char path[512];
    snprintf(path, sizeof path, WEFT_GOLDEN "/tokenizers/%s%s", name, suffix);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size > 0);
    rewind(file);
    char *data = malloc((size_t)size);
    assert_non_null(data);
    *bytes = fread(data, 1, (size_t)size, file);
    assert_int_equal(*bytes, size);
    fclose(file);
    return data;
}

static json_t *read_json(const char *name, const char *suffix) {
    size_t bytes;
    char *data = read_file(name, suffix, &bytes);
    json_error_t error;
    json_t *root = json_loadb(data, bytes, JSON_ALLOW_NUL, &error);
    free(data);
    if (root == NULL) {
        fail_msg("%s%s: %s", name, suffix, error.text);
    }
    return root;
}

static tok *create(const char *name) {
    size_t bytes;
    char *data = read_file(name, ".json", &bytes);
    load_vocab vocab = {.tokenizer_json = {data, bytes}, .bos = -1};
    weft_error err = {.text = ""};
    tok *t = NULL;
    weft_status status = tok_create(&vocab, &t, &err);
    free(data); /* nothing is borrowed of the file */
    if (status != WEFT_OK) {
        fail_msg("%s: %s", name, err.text);
    }
    return t;
}

static bool same_ids(const int32_t *ids, size_t n, const json_t *want) {
    bool same = n == json_array_size(want);
    for (size_t i = 0; same && i < n; i++) {
        same = ids[i] == json_integer_value(json_array_get(want, i));
    }
    return same;
}

/* The ids, and the same with what the model wants around them; a BOS that the text begins with is
 * not doubled, other than in the golden. */
static bool encodes(const tok *t, const json_t *entry) {
    const json_t *text = json_object_get(entry, "text");
    const json_t *want = json_object_get(entry, "ids");
    int32_t *ids = NULL;
    size_t n = 0, n_lead, n_trail;
    weft_error err = {.text = ""};
    const int32_t *lead = tok_lead(t, &n_lead);
    tok_trail(t, &n_trail);
    assert_int_equal(n_trail, 0);
    if (tok_encode(t, json_string_value(text), json_string_length(text), true, &ids, &n, &err) !=
        WEFT_OK) {
        fail_msg("%s", err.text);
    }
    bool same = same_ids(ids, n, want);
    bool has_lead = n_lead > 0 && n > 0 && ids[0] == lead[0];
    free(ids);
    assert_int_equal(
        tok_encode_prompt(t, json_string_value(text), json_string_length(text), &ids, &n, &err),
        WEFT_OK);
    same = same && same_ids(ids, n, has_lead ? want : json_object_get(entry, "ids_special"));
    free(ids);
    return same;
}

typedef struct sink {
    char *data;
    size_t n, cap;
} sink;

static void sink_add(sink *s, const char *text, size_t n) {
    if (s->n + n + 1 > s->cap) {
        s->cap = 2 * (s->n + n + 1);
        s->data = realloc(s->data, s->cap);
        assert_non_null(s->data);
    }
    memcpy(s->data + s->n, text, n);
    s->n += n;
}

static bool decodes(const tok *t, const json_t *ids, bool skip, const json_t *want,
                    const json_t *other) {
    sink out = {0};
    tok_stream *s = NULL;
    const char *text;
    size_t n, i;
    const json_t *value;
    assert_int_equal(tok_stream_open(t, false, &s, NULL), WEFT_OK);
    json_array_foreach(ids, i, value) {
        int32_t id = (int32_t)json_integer_value(value);
        if (skip && tok_is_special(t, id)) {
            continue;
        }
        assert_int_equal(tok_stream_push(s, id, &text, &n, NULL), WEFT_OK);
        sink_add(&out, text, n);
    }
    assert_int_equal(tok_stream_end(s, &text, &n, NULL), WEFT_OK);
    sink_add(&out, text, n);
    assert_int_equal(tok_stream_end(s, &text, &n, NULL), WEFT_OK);
    assert_int_equal(n, 0);
    tok_stream_close(s);
    bool same =
        out.n == json_string_length(want) && memcmp(out.data, json_string_value(want), out.n) == 0;
    same = same || (other != NULL && out.n == json_string_length(other) &&
                    memcmp(out.data, json_string_value(other), out.n) == 0);
    free(out.data);
    return same;
}

static bool decodes_both(const tok *t, const json_t *entry) {
    const json_t *ids = json_object_get(entry, "ids");
    return decodes(t, ids, false, json_object_get(entry, "decoded"),
                   json_object_get(entry, "hf023_decoded")) &&
           decodes(t, ids, true, json_object_get(entry, "decoded_skip"),
                   json_object_get(entry, "hf023_decoded_skip"));
}

static bool is_newer(const json_t *entry) {
    return strncmp(json_string_value(json_object_get(entry, "name")), "newer_unicode/", 14) == 0;
}

static void check_scheme(void **state) {
    const char *name = *state;
    tok *t = create(name);
    json_t *golden = read_json(name, ".golden.json"), *entry;
    size_t i, n_wrong = 0, n = 0;
    assert_int_equal(json_array_size(golden), N_TEXT);
    json_array_foreach(golden, i, entry) {
        bool right = is_newer(entry) || encodes(t, entry);
        bool back = decodes_both(t, entry);
        n += !is_newer(entry);
        if (!right || !back) {
            if (n_wrong++ < MOST_SHOWN) {
                print_message("%s: %s differs: %s\n", name, right ? "text" : "ids",
                              json_string_value(json_object_get(entry, "name")));
            }
        }
    }
    json_decref(golden);
    golden = read_json(name, ".decode.json");
    assert_true(json_array_size(golden) >= LEAST_DECODE);
    json_array_foreach(golden, i, entry) {
        if (!decodes_both(t, entry) && n_wrong++ < MOST_SHOWN) {
            print_message("%s: text differs: decode %s\n", name,
                          json_string_value(json_object_get(entry, "name")));
        }
    }
    print_message("%s: %zu texts, %zu lists of ids, %zu wrong\n", name, n, json_array_size(golden),
                  n_wrong);
    json_decref(golden);
    tok_destroy(t);
    assert_int_equal(n_wrong, 0);
}

int main(void) {
    static const char *const names[] = {"gpt2",        "smollm", "qwen2", "llama3", "deepseek_v2",
                                        "deepseek_v3", "llama2", "gemma", "o200k",  "phi4"};
    enum { N = sizeof names / sizeof names[0] };
    if (access(WEFT_GOLDEN "/tokenizers/gpt2.json", R_OK) != 0) {
        fputs("skipped: no golden files\n", stderr);
        return 77;
    }
    struct CMUnitTest tests[N];
    for (int i = 0; i < N; i++) {
        tests[i] = (struct CMUnitTest){.name = names[i],
                                       .test_func = check_scheme,
                                       .initial_state = (void *)(uintptr_t)names[i]};
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
