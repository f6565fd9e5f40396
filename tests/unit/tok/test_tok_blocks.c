/* GGUF vocabularies whose tokens are whole characters with U+2581 for a blank: model "llama", which
 * merges by score, and "gemma4", which has merges. */
#include "tok/tok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK "\xE2\x96\x81"

enum { UNK, BOS, FIRST_BYTE, FIRST_PLAIN = FIRST_BYTE + 256, CAP = 300 };

typedef struct toy {
    load_vocab vocab;
    char byte_text[256][8];
    load_string token[CAP], merge[8];
    uint8_t type[CAP];
    float score[CAP];
} toy;

static int32_t add(toy *v, const char *text, uint8_t type, float score) {
    int32_t id = v->vocab.n_token++;
    v->token[id] = (load_string){text, strlen(text)};
    v->type[id] = type;
    v->score[id] = score;
    return id;
}

static toy *toy_new(const char *model) {
    toy *v = calloc(1, sizeof *v);
    v->vocab = (load_vocab){.model = model,
                            .pre = "default",
                            .token = v->token,
                            .type = v->type,
                            .score = v->score,
                            .merge = v->merge,
                            .unk = UNK,
                            .add_space_prefix = true,
                            .bos = BOS,
                            .add_bos_unsaid = true};
    add(v, "<unk>", LOAD_TOKEN_UNKNOWN, 0);
    add(v, "<s>", LOAD_TOKEN_CONTROL, 0);
    for (int b = 0; b < 256; b++) {
        snprintf(v->byte_text[b], sizeof v->byte_text[b], "<0x%02X>", b);
        add(v, v->byte_text[b], LOAD_TOKEN_BYTE, 0);
    }
    return v;
}

static tok *create(const toy *v) {
    weft_error err = {.text = ""};
    tok *t = NULL;
    if (tok_create(&v->vocab, &t, &err) != WEFT_OK) {
        fail_msg("%s", err.text);
    }
    return t;
}

static void check_ids(const tok *t, const char *text, const int32_t *want, size_t n_want) {
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(tok_encode(t, text, strlen(text), true, &ids, &n, NULL), WEFT_OK);
    if (n != n_want || (n > 0 && memcmp(ids, want, n * sizeof *ids) != 0)) {
        for (size_t i = 0; i < n; i++) {
            print_message("%d ", ids[i]);
        }
        fail_msg("for \"%s\"", text);
    }
    free(ids);
}
#define CHECK_IDS(t, text, ...)                                                                    \
    check_ids(t, text, (const int32_t[]){__VA_ARGS__},                                             \
              sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void check_text(const tok *t, const int32_t *ids, size_t n, const char *want) {
    tok_stream *s = NULL;
    const char *text;
    char got[128];
    size_t n_got = 0, bytes;
    assert_int_equal(tok_stream_open(t, false, &s, NULL), WEFT_OK);
    for (size_t i = 0; i <= n; i++) {
        assert_int_equal(i < n ? tok_stream_push(s, ids[i], &text, &bytes, NULL)
                               : tok_stream_end(s, &text, &bytes, NULL),
                         WEFT_OK);
        memcpy(got + n_got, text, bytes);
        n_got += bytes;
    }
    got[n_got] = '\0';
    assert_string_equal(got, want);
    tok_stream_close(s);
}
#define CHECK_TEXT(t, want, ...)                                                                   \
    check_text(t, (const int32_t[]){__VA_ARGS__},                                                  \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t), want)

static void test_scores(void **state) {
    (void)state;
    toy *v = toy_new("llama");
    int32_t block = add(v, BLOCK, LOAD_TOKEN_NORMAL, -9), a = add(v, "a", LOAD_TOKEN_NORMAL, -9);
    int32_t b = add(v, "b", LOAD_TOKEN_NORMAL, -9), c = add(v, "c", LOAD_TOKEN_NORMAL, -9);
    int32_t ab = add(v, "ab", LOAD_TOKEN_NORMAL, -3), bc = add(v, "bc", LOAD_TOKEN_NORMAL, -2);
    int32_t abc = add(v, "abc", LOAD_TOKEN_NORMAL, -8), aa = add(v, "aa", LOAD_TOKEN_NORMAL, -3);
    int32_t tool = add(v, "<tool>", LOAD_TOKEN_USER, 0);
    tok *t = create(v);
    CHECK_IDS(t, "abc", block, abc); /* bc first; a and bc are a token together */
    CHECK_IDS(t, "bca", block, bc, a);
    CHECK_IDS(t, "aab", block, aa, b); /* of equal scores the leftmost */
    CHECK_IDS(t, "cab", block, c, ab);
    CHECK_IDS(t, " a", block, block, a);                /* the prefix is one more blank */
    CHECK_IDS(t, "a<tool>b", block, a, tool, block, b); /* for every stretch */
    CHECK_IDS(t, "a\xC3\xA9", block, a, FIRST_BYTE + 0xC3, FIRST_BYTE + 0xA9);
    CHECK_IDS(t, "<s>", BOS);
    check_ids(t, "", (const int32_t[]){0}, 0);
    size_t n;
    assert_int_equal(tok_lead(t, &n)[0], BOS); /* usual for this model */
    assert_int_equal(n, 1);
    CHECK_TEXT(t, "a b", block, a, block, b);
    CHECK_TEXT(t, "a\xC3\xA9", a, FIRST_BYTE + 0xC3, FIRST_BYTE + 0xA9);
    CHECK_TEXT(t,
               "\xEF\xBF\xBD\xEF\xBF\xBD"
               "a",
               FIRST_BYTE + 0xC3, FIRST_BYTE + 0xC3, a);
    size_t bytes;
    assert_memory_equal(tok_bytes(t, FIRST_BYTE + 10, &bytes), "\n", 1);
    assert_int_equal(bytes, 1);
    assert_memory_equal(tok_bytes(t, block, &bytes), " ", 1);
    tok_destroy(t);
    v->vocab.add_space_prefix = false;
    v->vocab.add_bos_unsaid = false;
    t = create(v);
    CHECK_IDS(t, "a b", a, block, b);
    CHECK_TEXT(t, " a", block, a);
    tok_lead(t, &n);
    assert_int_equal(n, 0);
    tok_destroy(t);
    free(v);
}

/* A character without a token may still be part of one. */
static void test_unknown(void **state) {
    (void)state;
    toy *v = toy_new("llama");
    int32_t block = add(v, BLOCK, LOAD_TOKEN_NORMAL, -1);
    int32_t pair = add(v, "xy", LOAD_TOKEN_NORMAL, -2);
    tok *t = create(v);
    CHECK_IDS(t, "xyx", block, pair, FIRST_BYTE + 'x');
    tok_destroy(t);
    v->token[FIRST_BYTE + 'x'].bytes = 0; /* without all bytes: unk, once for neighbours */
    v->type[FIRST_BYTE + 'x'] = LOAD_TOKEN_NORMAL;
    t = create(v);
    CHECK_IDS(t, "xyxxx", block, pair, UNK);
    tok_destroy(t);
    v->type[FIRST_BYTE + 'x'] = LOAD_TOKEN_BYTE;
    weft_error err = {.text = ""};
    assert_int_equal(tok_create(&v->vocab, &t, &err), WEFT_ERR_FILE);
    assert_non_null(strstr(err.text, "has the type of a byte"));
    v->vocab.score = NULL;
    assert_int_equal(tok_create(&v->vocab, &t, &err), WEFT_ERR_FILE);
    free(v);
}

static void test_gemma4(void **state) {
    (void)state;
    toy *v = toy_new("gemma4");
    int32_t block = add(v, BLOCK, LOAD_TOKEN_NORMAL, 0), a = add(v, "a", LOAD_TOKEN_NORMAL, 0);
    int32_t word = add(v, BLOCK "a", LOAD_TOKEN_NORMAL, 0);
    int32_t line = add(v, "\n", LOAD_TOKEN_NORMAL, 0),
            lines = add(v, "\n\n\n", LOAD_TOKEN_NORMAL, 0);
    v->merge[0] = (load_string){BLOCK " a", 5};
    v->vocab.n_merge = 1;
    tok *t = create(v);
    CHECK_IDS(t, "a a", a, word); /* no prefix */
    CHECK_IDS(t, "a \n\n\n a", a, block, lines, word);
    CHECK_IDS(t, "\n\n", line, line);
    CHECK_IDS(t, "\xC3\xA9", FIRST_BYTE + 0xC3, FIRST_BYTE + 0xA9);
    CHECK_TEXT(t, " a\n", word, line);
    size_t n;
    assert_int_equal(tok_lead(t, &n)[0], BOS);
    tok_destroy(t);
    free(v);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_gemma4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
