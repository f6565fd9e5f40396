/* Rules of the tokeniser on a small vocabulary built here: no files needed. */
#include "tok/tok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- a vocabulary in code ----
 * 0..255: the bytes in the byte alphabet (byte b has id b); then tokens by name. */

enum { TOY_CAP = 400 };
typedef struct toy {
    load_vocab vocab;
    char byte_text[256][2];
    load_string token[TOY_CAP], merge[64];
    uint8_t type[TOY_CAP];
} toy;

static load_string string_of(const char *text) {
    return (load_string){text, strlen(text)};
}

static int32_t toy_add(toy *v, const char *text, uint8_t type) {
    int32_t id = v->vocab.n_token++;
    v->token[id] = string_of(text);
    v->type[id] = type;
    return id;
}

static void toy_merge(toy *v, const char *merge) {
    v->merge[v->vocab.n_merge++] = string_of(merge);
}

static toy *toy_new(const char *pre) {
    toy *v = calloc(1, sizeof *v);
    uint32_t other = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        uint32_t point = itself ? b : other++;
        size_t bytes = point < 0x80 ? 1 : 2;
        v->byte_text[b][0] = (char)(bytes == 1 ? point : 0xC0 | point >> 6);
        v->byte_text[b][1] = (char)(0x80 | (point & 0x3F));
        v->token[b] = (load_string){v->byte_text[b], bytes};
        v->type[b] = LOAD_TOKEN_NORMAL;
    }
    v->vocab = (load_vocab){.model = "gpt2",
                            .pre = pre,
                            .n_token = 256,
                            .token = v->token,
                            .type = v->type,
                            .merge = v->merge,
                            .unk = -1,
                            .bos = -1};
    toy_add(v, "ab", LOAD_TOKEN_NORMAL); /* 256 */
    toy_add(v, "bc", LOAD_TOKEN_NORMAL); /* 257 */
    toy_merge(v, "b c");
    toy_merge(v, "a b");
    return v;
}

static tok *create(const toy *v) {
    weft_error err = {.text = ""};
    tok *t = NULL;
    if (tok_create(&v->vocab, &t, &err) != WEFT_OK) {
        fail_msg("tok_create: %s", err.text);
    }
    return t;
}

static void check_refused(const toy *v, const char *must_say) {
    weft_error err = {.text = ""};
    tok *t = (tok *)0x1;
    assert_int_equal(tok_create(&v->vocab, &t, &err), WEFT_ERR_FILE);
    assert_ptr_equal(t, (tok *)0x1);
    if (strstr(err.text, must_say) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, must_say);
    }
}

static void check_ids(const tok *t, const char *text, size_t bytes, bool special,
                      const int32_t *want, size_t n_want) {
    weft_error err = {.text = ""};
    int32_t *ids = NULL;
    size_t n = 0;
    if (tok_encode(t, text, bytes, special, &ids, &n, &err) != WEFT_OK) {
        fail_msg("tok_encode: %s", err.text);
    }
    assert_non_null(ids);
    assert_int_equal(n, n_want);
    if (n > 0) {
        assert_memory_equal(ids, want, n * sizeof *ids);
    }
    free(ids);
}
#define CHECK_IDS(t, text, special, ...)                                                           \
    check_ids(t, text, sizeof(text) - 1, special, (const int32_t[]){__VA_ARGS__},                  \
              sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* ---- encoding ---- */

static void test_merge_order(void **state) {
    (void)state;
    toy *v = toy_new("gpt-2");
    tok *t = create(v);
    CHECK_IDS(t, "abc", false, 'a', 257); /* the lower rank, though it is not leftmost */
    CHECK_IDS(t, "ababc", false, 256, 'a', 257);
    CHECK_IDS(t, "a bc", false, 'a', ' ', 257);
    CHECK_IDS(t, "a\0b", false, 'a', 0, 'b'); /* NUL is a character like others */
    CHECK_IDS(t, "\xC3\xA9", false, 0xC3, 0xA9);
    check_ids(t, "", 0, true, NULL, 0);
    tok_destroy(t);
    free(v);
}

static void test_leftmost_among_equals(void **state) {
    (void)state;
    toy *v = toy_new("gpt-2");
    int32_t aa = toy_add(v, "aa", LOAD_TOKEN_NORMAL), aaaa = toy_add(v, "aaaa", LOAD_TOKEN_NORMAL);
    toy_merge(v, "a a");
    toy_merge(v, "aa aa");
    tok *t = create(v);
    CHECK_IDS(t, "aaa", false, aa, 'a');
    CHECK_IDS(t, "aaaaa", false, aaaa, 'a');
    CHECK_IDS(t, "aaaaaaa", false, aaaa, aa, 'a');
    tok_destroy(t);
    free(v);
}

/* A part that was taken has a merge waiting still; it must not happen. */
static void test_taken_part(void **state) {
    (void)state;
    toy *v = toy_new("gpt-2");
    int32_t xy = toy_add(v, "xy", LOAD_TOKEN_NORMAL);
    toy_add(v, "yz", LOAD_TOKEN_NORMAL);
    toy_add(v, "wv", LOAD_TOKEN_NORMAL);
    int32_t zwv = toy_add(v, "zwv", LOAD_TOKEN_NORMAL);
    toy_merge(v, "x y");
    toy_merge(v, "y z");
    toy_merge(v, "w v");
    toy_merge(v, "z wv");
    tok *t = create(v);
    CHECK_IDS(t, "xyz", false, xy, 'z');
    CHECK_IDS(t, "xyzwv", false, xy, zwv);
    tok_destroy(t);
    free(v);
}

static void test_missing_bytes(void **state) {
    (void)state;
    toy *v = toy_new("gpt-2");
    v->type[0x01] = LOAD_TOKEN_CONTROL; /* so no text reaches it: byte 01 has no token now */
    tok *t = create(v);
    CHECK_IDS(t, "[\x01]", false, '[', ']');
    check_ids(t, "\x01\x01", 2, false, NULL, 0);
    tok_destroy(t);
    toy_add(v, "[]", LOAD_TOKEN_NORMAL);
    toy_merge(v, "[ ]");
    t = create(v);
    CHECK_IDS(t, "[\x01]", false, 258); /* dropped before merging */
    tok_destroy(t);
    free(v);
}

static void check_bad_text(const tok *t, const char *text, size_t bytes, int64_t offset) {
    weft_error err = {.text = ""};
    int32_t *ids = (int32_t *)0x1;
    size_t n = 77;
    assert_int_equal(tok_encode(t, text, bytes, true, &ids, &n, &err), WEFT_ERR_USAGE);
    assert_int_equal(err.offset, offset);
    assert_ptr_equal(ids, (int32_t *)0x1);
    assert_int_equal(n, 77);
}

static void test_bad_text(void **state) {
    (void)state;
    toy *v = toy_new("qwen2");
    tok *t = create(v);
    check_bad_text(t, "ab\xC4", 3, 2);
    check_bad_text(t, "\xC4\xE3\xBA\xC3", 4, 0);
    check_bad_text(t, "a\xC0\x80", 3, 1);        /* overlong */
    check_bad_text(t, "a\xE0\x9F\xBF", 4, 1);    /* overlong */
    check_bad_text(t, "ab\xED\xA0\x80", 5, 2);   /* surrogate */
    check_bad_text(t, "\xF4\x90\x80\x80", 4, 0); /* past 10FFFF */
    check_bad_text(t, "\xF0\x9F\x98\x80\xFF", 5, 4);
    check_bad_text(t, "\x80", 1, 0);
    weft_error err;
    int32_t *ids = NULL;
    size_t n;
    assert_int_equal(tok_encode(t, "", ((size_t)1 << 30) + 1, true, &ids, &n, &err),
                     WEFT_ERR_TOO_LONG); /* refused before the text is looked at */
    tok_destroy(t);
    free(v);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Long repeats: any quadratic step takes minutes, so a loose bound on time tells. */
static void check_long(const char *pre, const char *unit, size_t n_unit) {
    toy *v = toy_new(pre);
    static const char *const power[] = {"a", "aa", "aaaa", "aaaaaaaa", "aaaaaaaaaaaaaaaa"};
    static const char *const merge[] = {"a a", "aa aa", "aaaa aaaa", "aaaaaaaa aaaaaaaa"};
    for (int i = 0; i < 4; i++) {
        toy_add(v, power[i + 1], LOAD_TOKEN_NORMAL);
        toy_merge(v, merge[i]);
    }
    toy_add(v, "<|<|<|", LOAD_TOKEN_USER);
    tok *t = create(v);
    size_t unit_bytes = strlen(unit), bytes = unit_bytes * n_unit, n = 0, total = 0;
    char *text = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) {
        text[i] = unit[i % unit_bytes];
    }
    int32_t *ids = NULL;
    double start = seconds();
    assert_int_equal(tok_encode(t, text, bytes, true, &ids, &n, NULL), WEFT_OK);
    assert_true(seconds() - start < 20);
    for (size_t i = 0; i < n; i++) {
        size_t part;
        const char *piece = tok_bytes(t, ids[i], &part);
        assert_true(total + part <= bytes && memcmp(piece, text + total, part) == 0);
        total += part;
    }
    assert_int_equal(total, bytes);
    free(ids);
    free(text);
    tok_destroy(t);
    free(v);
}

static void test_long_repeats(void **state) {
    (void)state;
    check_long("gpt-2", "a", 1 << 20);
    check_long("smollm", " ", 1 << 20);
    check_long("smollm", "1", 1 << 18);
    check_long("llama-bpe", " ", 1 << 20);
    check_long("llama-bpe", "\r\n", 1 << 19);
    check_long("qwen2", "a", 1 << 20);
    check_long("qwen2", "!", 1 << 20);
    check_long("gpt-2", "<|", 1 << 18);
}

/* Sorting marks by exchanging neighbours is quadratic in their number. */
static void test_unordered_marks(void **state) {
    (void)state;
    toy *v = toy_new("qwen2");
    tok *t = create(v);
    /* U+030D (class 230) and U+0323 (220) compose with nothing here; NFC puts all 220 first. */
    enum { N = 100000 };
    char *text = malloc(4 * N + 1);
    text[0] = 'x';
    for (size_t i = 0; i < 4 * N; i++) {
        text[1 + i] = "\xCC\x8D\xCC\xA3"[i % 4];
    }
    int32_t *ids = NULL;
    size_t n = 0;
    double start = seconds();
    assert_int_equal(tok_encode(t, text, 4 * N + 1, false, &ids, &n, NULL), WEFT_OK);
    assert_true(seconds() - start < 5);
    /* x + U+0323 has no composed form in Unicode: 4 N + 1 bytes, first all CC A3, then all CC 8D */
    assert_int_equal(n, 4 * N + 1);
    assert_int_equal(ids[0], 'x');
    assert_int_equal(ids[2], 0xA3);
    assert_int_equal(ids[2 * N], 0xA3);
    assert_int_equal(ids[2 * N + 2], 0x8D);
    assert_int_equal(ids[4 * N], 0x8D);
    free(ids);
    free(text);
    tok_destroy(t);
    free(v);
}

static void test_normalisation(void **state) {
    (void)state;
    toy *v = toy_new("qwen2");
    tok *t = create(v);
    CHECK_IDS(t, "e\xCC\x81", false, 0xC3, 0xA9); /* e + acute */
    CHECK_IDS(t, "\xC3\xA9", false, 0xC3, 0xA9);
    CHECK_IDS(t, "\xE2\x84\xAB", false, 0xC3, 0x85);                         /* Angstrom sign */
    CHECK_IDS(t, "\xE1\x84\x80\xE1\x85\xA1", false, 0xEA, 0xB0, 0x80);       /* Hangul */
    CHECK_IDS(t, "\xE0\xA5\x98", false, 0xE0, 0xA4, 0x95, 0xE0, 0xA4, 0xBC); /* excluded */
    tok_destroy(t);
    v->vocab.pre = "gpt-2";
    t = create(v);
    CHECK_IDS(t, "e\xCC\x81", false, 'e', 0xCC, 0x81); /* only qwen2 composes */
    tok_destroy(t);
    free(v);
}

/* ---- pre-tokenisers (C10): a merge over a cut shows where the cut is ---- */

static bool is_cut(const char *pre, const char *left, const char *right) {
    char both[64], merge[64];
    toy *v = toy_new(pre);
    snprintf(both, sizeof both, "%s%s", left, right);
    snprintf(merge, sizeof merge, "%s %s", left, right);
    int32_t id = toy_add(v, both, LOAD_TOKEN_NORMAL);
    toy_merge(v, merge);
    tok *t = create(v);
    size_t bytes;
    const char *text = tok_bytes(t, id, &bytes);
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(tok_encode(t, text, bytes, false, &ids, &n, NULL), WEFT_OK);
    assert_true(n == 1 || n == 2);
    free(ids);
    tok_destroy(t);
    free(v);
    return n == 2;
}

static void test_cuts(void **state) {
    (void)state;
    static const struct {
        const char *left, *right;
        bool gpt2, smollm, llama, qwen2;
    } cases[] = {
        {"-", ">", false, false, false, false},
        {")", ":", false, false, false, false},
        {"1", "2", false, true, false, true},
        {"\xC4\xA0", "1", false, true, true, true}, /* blank and digit */
        {"\xC4\xA0", "a", false, false, false, false},
        {"\xC4\x8A", "a", true, true, true, true},   /* newline and letter */
        {":", "\xC4\x8A", true, true, false, false}, /* punctuation takes the newlines after it */
        {"\xC4\x8D", "\xC4\x8A", false, false, false, false}, /* CR LF */
        {"(", "a", true, true, false, false},        /* any one character may lead a word */
        {"\xC4\x89", "a", true, true, false, false}, /* tab */
        {"'", "s", false, false, false, false},
        {"'", "S", true, true, false, false},
        {"a", "1", true, true, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *left = cases[i].left, *right = cases[i].right;
        bool got[4] = {is_cut("gpt-2", left, right), is_cut("smollm", left, right),
                       is_cut("llama-bpe", left, right), is_cut("qwen2", left, right)};
        bool want[4] = {cases[i].gpt2, cases[i].smollm, cases[i].llama, cases[i].qwen2};
        if (memcmp(got, want, sizeof got) != 0) {
            fail_msg("case %zu: \"%s\" and \"%s\"", i, left, right);
        }
    }
}

static void test_digit_groups(void **state) {
    (void)state;
    toy *v = toy_new("llama-bpe");
    toy_add(v, "34", LOAD_TOKEN_NORMAL); /* 258 */
    toy_add(v, "45", LOAD_TOKEN_NORMAL); /* 259 */
    toy_merge(v, "3 4");
    toy_merge(v, "4 5");
    tok *t = create(v);
    CHECK_IDS(t, "12345", false, '1', '2', '3', 259);
    tok_destroy(t);
    v->vocab.pre = "gpt-2";
    t = create(v);
    CHECK_IDS(t, "12345", false, '1', '2', 258, '5');
    tok_destroy(t);
    v->vocab.pre = "qwen2";
    t = create(v);
    CHECK_IDS(t, "12345", false, '1', '2', '3', '4', '5');
    tok_destroy(t);
    free(v);
}

/* In llama-bpe and qwen2 contractions may be in capitals or with U+017F: "x'Sa" is cut before the
 * "a"; elsewhere "Sa" is one piece. */
static void test_contractions(void **state) {
    (void)state;
    toy *v = toy_new("llama-bpe");
    int32_t sa = toy_add(v, "Sa", LOAD_TOKEN_NORMAL);
    toy_merge(v, "S a");
    tok *t = create(v);
    CHECK_IDS(t, "x'Sa", false, 'x', '\'', 'S', 'a');
    tok_destroy(t);
    v->vocab.pre = "gpt-2";
    t = create(v);
    CHECK_IDS(t, "x'Sa", false, 'x', '\'', sa);
    tok_destroy(t);
    free(v);

    v = toy_new("qwen2");
    /* U+017F is C5 BF, in the alphabet "\u00C5\u00BF"; a merge of BF and "a" is over the cut */
    int32_t over = toy_add(v,
                           "\xC2\xBF"
                           "a",
                           LOAD_TOKEN_NORMAL);
    toy_merge(v, "\xC2\xBF a");
    t = create(v);
    CHECK_IDS(t,
              "x'\xC5\xBF"
              "a",
              false, 'x', '\'', 0xC5, 0xBF, 'a');
    tok_destroy(t);
    v->vocab.pre = "smollm";
    t = create(v);
    CHECK_IDS(t,
              "x'\xC5\xBF"
              "a",
              false, 'x', '\'', 0xC5, over);
    tok_destroy(t);
    free(v);
}

/* White space is White_Space: U+0085 is, U+180E and U+001C are not. A merge with the "!" before
 * shows it. */
static void test_white_space(void **state) {
    (void)state;
    static const char *const pre[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    for (int i = 0; i < 4; i++) {
        toy *v = toy_new(pre[i]);
        int32_t mongolian = toy_add(v, "!\xC3\xA1", LOAD_TOKEN_NORMAL); /* ! and E1 */
        toy_merge(v, "! \xC3\xA1");
        toy_add(v, "!\xC3\x82", LOAD_TOKEN_NORMAL); /* ! and C2 */
        toy_merge(v, "! \xC3\x82");
        int32_t separator = toy_add(v, "!\xC4\x9C", LOAD_TOKEN_NORMAL); /* ! and 1C */
        toy_merge(v, "! \xC4\x9C");
        tok *t = create(v);
        CHECK_IDS(t, "!\xE1\xA0\x8E", false, mongolian, 0xA0, 0x8E);
        CHECK_IDS(t, "!\xC2\x85", false, '!', 0xC2, 0x85);
        CHECK_IDS(t, "!\x1C", false, separator);
        tok_destroy(t);
        free(v);
    }
}

static void test_whole_piece(void **state) {
    (void)state;
    toy *v = toy_new("llama-bpe");
    int32_t word = toy_add(v, "\xC4\xA0xyz", LOAD_TOKEN_NORMAL); /* " xyz", without merges */
    int32_t control = toy_add(v, "qqq", LOAD_TOKEN_CONTROL);
    tok *t = create(v);
    CHECK_IDS(t, "a xyz", false, 'a', word);
    CHECK_IDS(t, " xyzz", false, ' ', 'x', 'y', 'z', 'z');
    CHECK_IDS(t, "qqq", false, 'q', 'q', 'q'); /* text cannot become a control token */
    CHECK_IDS(t, "qqq", true, control);
    tok_destroy(t);
    v->vocab.pre = "qwen2";
    t = create(v);
    CHECK_IDS(t, " xyz", false, ' ', 'x', 'y', 'z');
    tok_destroy(t);
    free(v);
}

/* ---- special tokens ---- */

static void test_special(void **state) {
    (void)state;
    toy *v = toy_new("gpt-2");
    int32_t im_end = toy_add(v, "<|im_end|>", LOAD_TOKEN_CONTROL);
    int32_t tool = toy_add(v, "<tool>", LOAD_TOKEN_USER);
    int32_t tools = toy_add(v, "<tool></tool>", LOAD_TOKEN_USER);
    int32_t blanks = toy_add(v, "    ", LOAD_TOKEN_USER);
    int32_t check = toy_add(v, "<\xE2\x9C\x93>", LOAD_TOKEN_USER);
    tok *t = create(v);
    CHECK_IDS(t, "<|im_end|>", true, im_end);
    CHECK_IDS(t, "<|im_end|>", false, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    CHECK_IDS(t, "a<|im_end|>bc<|im_end|><|im_end|>", true, 'a', im_end, 257, im_end, im_end);
    CHECK_IDS(t, "<|im_end|", true, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|');
    CHECK_IDS(t, "<<tool>", false, '<', tool); /* user-defined: always */
    CHECK_IDS(t, "<tool></tool>", false, tools);
    CHECK_IDS(t, "<tool></tool", false, tool, '<', '/', 't', 'o', 'o', 'l');
    CHECK_IDS(t, "<tool><tool></tool>", true, tool, tools);
    CHECK_IDS(t, "     ", true, blanks, ' '); /* leftmost */
    CHECK_IDS(t, "<\xE2\x9C\x93>", true, check);
    CHECK_IDS(t, "ab<tool>c", true, 256, tool, 'c'); /* nothing merges across */
    size_t bytes;
    assert_memory_equal(tok_bytes(t, check, &bytes), "<\xE2\x9C\x93>", 5);
    assert_int_equal(bytes, 5);
    assert_memory_equal(tok_bytes(t, im_end, &bytes), "<|im_end|>", 10);
    assert_true(tok_is_special(t, im_end));
    assert_false(tok_is_special(t, tool));
    assert_false(tok_is_special(t, 'a'));
    tok_destroy(t);
    free(v);
}

static void test_token_bytes(void **state) {
    (void)state;
    toy *v = toy_new("gpt-2");
    int32_t pad = toy_add(v, "[PAD 7]", LOAD_TOKEN_UNUSED);
    tok *t = create(v);
    for (int32_t b = 0; b < 256; b++) {
        size_t bytes = 0;
        const char *text = tok_bytes(t, b, &bytes);
        assert_int_equal(bytes, 1);
        assert_int_equal((uint8_t)text[0], b);
    }
    size_t bytes = 9;
    assert_memory_equal(tok_bytes(t, pad, &bytes), "[PAD 7]", 7);
    assert_null(tok_bytes(t, -1, &bytes));
    assert_int_equal(bytes, 0);
    bytes = 9;
    assert_null(tok_bytes(t, v->vocab.n_token, &bytes));
    assert_int_equal(bytes, 0);
    assert_false(tok_is_end(t, -1) || tok_is_end(t, v->vocab.n_token));
    assert_false(tok_is_special(t, -1) || tok_is_special(t, INT32_MAX));
    tok_destroy(t);
    tok_destroy(NULL);
    free(v);
}

static void test_ends(void **state) { /* C13 */
    (void)state;
    toy *v = toy_new("gpt-2");
    int32_t eos = toy_add(v, "<eos>", LOAD_TOKEN_CONTROL);
    int32_t eot = toy_add(v, "<eot>", LOAD_TOKEN_CONTROL);
    int32_t turn = toy_add(v, "<end_of_turn>", LOAD_TOKEN_CONTROL);
    int32_t start = toy_add(v, "<|im_start|>", LOAD_TOKEN_CONTROL);
    int32_t plain = toy_add(v, "</s>", LOAD_TOKEN_NORMAL);
    v->vocab.n_eos = 2;
    v->vocab.eos_ids[0] = eos;
    v->vocab.eos_ids[1] = eot;
    tok *t = create(v);
    assert_int_equal(tok_eos(t), eos);
    assert_true(tok_is_end(t, eos) && tok_is_end(t, eot) && tok_is_end(t, turn));
    assert_false(tok_is_end(t, start) || tok_is_end(t, plain) || tok_is_end(t, 'a'));
    tok_destroy(t);
    v->type[turn] = LOAD_TOKEN_NORMAL; /* as some files have it */
    int32_t part = toy_add(v, "<|end|>", LOAD_TOKEN_CONTROL);
    t = create(v);
    assert_true(tok_is_end(t, turn) && tok_is_end(t, part));
    tok_destroy(t);
    /* GPT-OSS: the end of a part, such as what was thought, is not the answer's */
    int32_t done = toy_add(v, "<|return|>", LOAD_TOKEN_CONTROL);
    int32_t call = toy_add(v, "<|call|>", LOAD_TOKEN_CONTROL);
    t = create(v);
    assert_true(tok_is_end(t, done) && tok_is_end(t, call) && !tok_is_end(t, part));
    tok_destroy(t);
    free(v);
}

static void check_prompt(const tok *t, const char *text, const int32_t *want, size_t n_want) {
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(tok_encode_prompt(t, text, strlen(text), &ids, &n, NULL), WEFT_OK);
    assert_int_equal(n, n_want);
    if (n > 0) {
        assert_memory_equal(ids, want, n * sizeof *ids);
    }
    free(ids);
}
#define CHECK_PROMPT(t, text, ...)                                                                 \
    check_prompt(t, text, (const int32_t[]){__VA_ARGS__},                                          \
                 sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void test_bos(void **state) { /* C08 */
    (void)state;
    toy *v = toy_new("gpt-2");
    int32_t bos = toy_add(v, "<s>", LOAD_TOKEN_CONTROL);
    size_t n = 7;
    v->vocab.bos = bos;
    tok *t = create(v);
    assert_int_equal(tok_bos(t), bos);
    tok_lead(t, &n);
    assert_int_equal(n, 0); /* the model has one but does not ask for it */
    CHECK_PROMPT(t, "a", 'a');
    CHECK_PROMPT(t, "<s>a", bos, 'a');
    tok_destroy(t);
    v->vocab.add_bos = true;
    t = create(v);
    assert_int_equal(tok_lead(t, &n)[0], bos);
    assert_int_equal(n, 1);
    CHECK_PROMPT(t, "a", bos, 'a');
    CHECK_PROMPT(t, "", bos);
    CHECK_PROMPT(t, "<s>a", bos, 'a'); /* never two */
    CHECK_PROMPT(t, "a<s>", bos, 'a', bos);
    CHECK_IDS(t, "a", true, 'a'); /* encoding itself adds none */
    tok_destroy(t);
    v->vocab.add_bos = false;
    v->vocab.add_bos_unsaid = true; /* gpt-2 is not known to want one, llama-bpe is */
    t = create(v);
    CHECK_PROMPT(t, "a", 'a');
    tok_destroy(t);
    v->vocab.pre = "llama-bpe";
    t = create(v);
    CHECK_PROMPT(t, "a", bos, 'a');
    tok_destroy(t);
    v->vocab.bos_text = (load_string){"a", 1}; /* a folder's, which goes before the id */
    t = create(v);
    assert_int_equal(tok_bos(t), 'a');
    tok_destroy(t);
    v->vocab.bos_text = (load_string){"nowhere", 7};
    t = create(v);
    assert_int_equal(tok_bos(t), bos);
    tok_destroy(t);
    v->vocab.bos_text = (load_string){0};
    v->vocab.bos = -1;
    v->vocab.add_bos = true;
    check_refused(v, "no bos token");
    free(v);
}

/* ---- refused vocabularies ---- */

static void test_refused_names(void **state) { /* C11 */
    (void)state;
    toy *v = toy_new("nonsense");
    check_refused(v, "tokenizer.ggml.pre");
    check_refused(v, "\"nonsense\"");
    check_refused(v, "known: gpt-2 ");
    check_refused(v, " qwen2 ");
    v->vocab.pre = NULL;
    check_refused(v, "tokenizer.ggml.pre is missing");
    v->vocab.pre = "";
    check_refused(v, "tokenizer.ggml.pre");
    v->vocab.pre = "gpt2"; /* near is not enough */
    check_refused(v, "\"gpt2\"");
    v->vocab.pre = "gpt-2";
    v->vocab.model = "bert";
    check_refused(v, "tokenizer.ggml.model is \"bert\" (WordPiece); known: gpt2");
    v->vocab.model = "llama";
    check_refused(v, "tokenizer.ggml.scores is missing");
    v->vocab.model = "gpt2";
    v->vocab.n_eos = 1;
    v->vocab.eos_ids[0] = v->vocab.n_token;
    check_refused(v, "eos token 258");
    v->vocab.n_eos = 0;
    v->vocab.bos = v->vocab.n_token;
    check_refused(v, "bos token 258");
    free(v);
}

static void check_bad_merge(const char *merge, const char *must_say) {
    toy *v = toy_new("gpt-2");
    toy_merge(v, merge);
    check_refused(v, "tokenizer.ggml.merges[2]");
    check_refused(v, must_say);
    free(v);
}

static void test_refused_merges(void **state) { /* C14 */
    (void)state;
    check_bad_merge("ab", "two tokens");
    check_bad_merge(" b", "two tokens");
    check_bad_merge("a ", "two tokens");
    check_bad_merge("", "two tokens");
    check_bad_merge("a b c", "right part");
    check_bad_merge("a \xE2\x9C\x93", "right part");
    check_bad_merge("a \xFF", "right part");
    check_bad_merge("aq b", "left part");
    check_bad_merge("a bq", "right part");
    check_bad_merge("x y", "merged token");
    toy *v = toy_new("gpt-2");
    v->vocab.n_merge = 0;
    check_refused(v, "tokenizer.ggml.merges is missing");
    free(v);
}

static void test_merge_list_forms(void **state) {
    (void)state;
    toy *v = toy_new("gpt-2");
    v->merge[2] = v->merge[1];
    v->merge[1] = v->merge[0];
    v->merge[0] = string_of("#version: 0.2");
    v->merge[3] = v->merge[1]; /* listed again: the first rank counts */
    v->vocab.n_merge = 4;
    tok *t = create(v);
    CHECK_IDS(t, "abc", false, 'a', 257);
    tok_destroy(t);
    free(v);
}

static void test_refused_tokens(void **state) {
    (void)state;
    toy *v = toy_new("gpt-2");
    int32_t odd = toy_add(v, "a b", LOAD_TOKEN_NORMAL);
    toy_add(v, "\xE2\x9C\x93", LOAD_TOKEN_NORMAL);
    tok *t = create(v); /* a few are no text's token and stay as they are */
    size_t bytes;
    CHECK_IDS(t, "a b", true, 'a', ' ', 'b');
    assert_memory_equal(tok_bytes(t, odd, &bytes), "a b", 3);
    assert_int_equal(bytes, 3);
    tok_destroy(t);
    toy_add(v, "b c", LOAD_TOKEN_NORMAL);
    check_refused(v, "3 of tokenizer.ggml.tokens, the first is [258] = \"a b\"");
    v->vocab.n_token = 259;
    v->token[258] = string_of("\xC4");
    tok_destroy(create(v));
    v->type[258] = LOAD_TOKEN_USER;
    check_refused(v, "valid UTF-8");
    v->token[258] = string_of("");
    tok_destroy(create(v)); /* an empty added token is never found */
    free(v);
}

/* ---- streaming ---- */

static void check_stream(const char *const *parts, const size_t *bytes, size_t n,
                         const char *const *want, const char *want_end) {
    tok_utf8 s = {.n_held = 0};
    char out[128];
    for (size_t i = 0; i < n; i++) {
        size_t length = tok_utf8_push(&s, parts[i], bytes[i], out);
        assert_int_equal(length, strlen(want[i]));
        assert_string_equal(out, want[i]);
    }
    assert_int_equal(tok_utf8_end(&s, out), strlen(want_end));
    assert_string_equal(out, want_end);
    assert_int_equal(tok_utf8_end(&s, out), 0); /* nothing is said twice */
}
#define BAD "\xEF\xBF\xBD"

static void test_stream(void **state) { /* C01, C02, C04 */
    (void)state;
    check_stream((const char *[]){"\xC4", "\x8F"}, (size_t[]){1, 1}, 2,
                 (const char *[]){"", "\xC4\x8F"}, "");
    check_stream((const char *[]){"\xF0\x9F", "\x98\x80"}, (size_t[]){2, 2}, 2,
                 (const char *[]){"", "\xF0\x9F\x98\x80"}, "");
    check_stream((const char *[]){"\xF0", "\x9F", "\x98", "\x80!"}, (size_t[]){1, 1, 1, 2}, 4,
                 (const char *[]){"", "", "", "\xF0\x9F\x98\x80!"}, "");
    check_stream((const char *[]){"\xE4\xBD", " the"}, (size_t[]){2, 4}, 2,
                 (const char *[]){"", BAD " the"}, "");
    check_stream((const char *[]){"\xE4", " x", "\xA0"}, (size_t[]){1, 2, 1}, 3,
                 (const char *[]){"", BAD " x", BAD}, "");
    check_stream((const char *[]){"\xFF"}, (size_t[]){1}, 1, (const char *[]){BAD}, "");
    check_stream((const char *[]){"a\xF0\x9F"}, (size_t[]){3}, 1, (const char *[]){"a"}, BAD);
    check_stream((const char *[]){"\xE4", "\xC3"}, (size_t[]){1, 1}, 2, (const char *[]){"", BAD},
                 BAD);
    check_stream((const char *[]){"\xED\xA0\x80"}, (size_t[]){3}, 1, (const char *[]){BAD BAD BAD},
                 "");
    check_stream((const char *[]){"\xC0\x80\xF5\xF0\x80"}, (size_t[]){5}, 1,
                 (const char *[]){BAD BAD BAD BAD BAD}, "");
    check_stream((const char *[]){"\xF1\x80\x80\xE1\x80\xC2"
                                  "a"},
                 (size_t[]){7}, 1, (const char *[]){BAD BAD BAD "a"},
                 ""); /* the example of the Unicode standard */
    check_stream((const char *[]){""}, (size_t[]){0}, 1, (const char *[]){""}, "");
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* However the bytes are cut, the joined text is the same, and each part is whole characters. */
static void test_stream_cuts(void **state) {
    (void)state;
    static const uint8_t pool[] = {'a',  ' ',  0x80, 0xA0, 0x9F, 0xBF, 0xC2, 0xC4, 0xE0, 0xE4,
                                   0xED, 0xF0, 0xF1, 0xF4, 0x90, 0x8F, 0xC0, 0xF5, 0xFF};
    uint64_t random = 88172645463325252u;
    for (int round = 0; round < 3000; round++) {
        char bytes[24], whole[128], joined[128], part[128];
        size_t n = 1 + next_random(&random) % sizeof bytes, n_joined = 0;
        for (size_t i = 0; i < n; i++) {
            bytes[i] = (char)pool[next_random(&random) % sizeof pool];
        }
        tok_utf8 s = {.n_held = 0};
        size_t n_whole = tok_utf8_push(&s, bytes, n, whole);
        n_whole += tok_utf8_end(&s, whole + n_whole);
        for (size_t at = 0; at < n;) {
            size_t take = 1 + next_random(&random) % 4;
            take = take < n - at ? take : n - at;
            size_t length = tok_utf8_push(&s, bytes + at, take, part);
            assert_true(length <= 3 * (take + 3));
            assert_true(length == 0 || ((uint8_t)part[0] & 0xC0) != 0x80);
            memcpy(joined + n_joined, part, length);
            n_joined += length;
            at += take;
        }
        n_joined += tok_utf8_end(&s, joined + n_joined);
        assert_int_equal(n_joined, n_whole);
        assert_memory_equal(joined, whole, n_whole);
    }
}

/* ---- chat templates ---- */

#define LOOP "{% for m in messages %}"
#define MESSAGE "{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}"
#define PROMPT "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

/* want NULL: refused. Messages: user "  hi ", assistant "yo". */
static void check_template(const char *template, const char *want) {
    toy *v = toy_new("gpt-2");
    v->vocab.bos = toy_add(v, "<s>", LOAD_TOKEN_CONTROL);
    v->vocab.chat_template = (load_string){template, template != NULL ? strlen(template) : 0};
    tok *t = create(v);
    const char *roles[] = {"user", "assistant"}, *texts[] = {"  hi ", "yo"};
    weft_error err = {.text = ""};
    char *text = NULL;
    weft_status status = tok_chat_render(t, roles, texts, 2, true, &text, &err);
    if (want == NULL) {
        assert_int_equal(status, WEFT_ERR_SETUP);
        assert_non_null(strstr(err.text, "tokenizer.chat_template"));
        assert_null(text);
    } else {
        if (status != WEFT_OK) {
            fail_msg("%s", err.text);
        }
        assert_string_equal(text, want);
    }
    free(text);
    tok_destroy(t);
    free(v);
}

#define TURNS "<|im_start|>user\n  hi <|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n"
#define ASK "<|im_start|>assistant\n"

static void test_templates(void **state) {
    (void)state;
    check_template(LOOP MESSAGE "{% endfor %}" PROMPT, TURNS ASK);
    check_template("{{ bos_token }}" LOOP MESSAGE "{% endfor %}" PROMPT, "<s>" TURNS ASK);
    check_template(LOOP "<|im_start|>{{ m.role }}\n{{ m.content|trim }}<|im_end|>\n"
                        "{% endfor %}" PROMPT,
                   "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n" ASK);
    /* the literals with backslashes, over several lines, as Qwen writes them */
    check_template(
        "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n"
        "    {%- if messages[0]['role'] == 'system' %}\n        {{- messages[0]['content'] }}\n"
        "    {%- else %}\n        {{- 'You are Q.' }}\n    {%- endif %}\n    {{- \"# Tools\" }}\n"
        "{%- else %}\n    {%- if messages[0]['role'] == 'system' %}\n"
        "        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n"
        "    {%- else %}\n        {{- '<|im_start|>system\\nYou\\'re \"Q\" + more. {x}"
        "<|im_end|>\\n' }}\n    {%- endif %}\n{%- endif %}\n{%- for message in messages %}\n"
        "    {%- if (message.role == \"user\") or not message.tool_calls %}\n"
        "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + "
        "'\\n' }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n"
        "    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
        "<|im_start|>system\nYou're \"Q\" + more. {x}<|im_end|>\n" TURNS ASK);
    check_template(LOOP "\n    {# a comment #}\n    {%- if true %}" MESSAGE
                        "{% endif %}{% endfor %}" PROMPT,
                   TURNS ASK);
}

static void test_refused_templates(void **state) {
    (void)state;
    check_template(NULL, NULL);
    check_template("", NULL);
    check_template("{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}", NULL);
    check_template(LOOP MESSAGE "{% endfor %}", NULL);            /* no generation prompt */
    check_template(LOOP MESSAGE "\n{% endfor %}" PROMPT, NULL);   /* one newline more */
    check_template(LOOP " " MESSAGE "{% endfor %}" PROMPT, NULL); /* a blank in front */
    check_template(LOOP "{{'<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>'}}"
                        "{% endfor %}" PROMPT,
                   NULL);
    check_template(LOOP MESSAGE "{% endfor %}{% if add_generation_prompt %}"
                                "{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}",
                   NULL);
    check_template(
        "{% set s = 'You are' %}{{'<|im_start|>system\n' + s + '<|im_end|>\n'}}" LOOP MESSAGE
        "{% endfor %}" PROMPT,
        NULL);
    check_template("{{'<|im_start|>system\nAlways.<|im_end|>\n'}}" LOOP MESSAGE
                   "{% endfor %}" PROMPT,
                   NULL); /* not only when the first message is none */
    check_template(LOOP MESSAGE "{% endfor %}" PROMPT "{{ 'open", NULL);
    check_template("\1" LOOP MESSAGE "{% endfor %}" PROMPT, NULL);
    check_template("{{", NULL);
    check_template("{%-", NULL);
    check_template("{{''}}<|im_start|>{{-}}", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merge_order),
        cmocka_unit_test(test_leftmost_among_equals),
        cmocka_unit_test(test_taken_part),
        cmocka_unit_test(test_missing_bytes),
        cmocka_unit_test(test_bad_text),
        cmocka_unit_test(test_long_repeats),
        cmocka_unit_test(test_unordered_marks),
        cmocka_unit_test(test_normalisation),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_digit_groups),
        cmocka_unit_test(test_contractions),
        cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_whole_piece),
        cmocka_unit_test(test_special),
        cmocka_unit_test(test_token_bytes),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_bos),
        cmocka_unit_test(test_refused_names),
        cmocka_unit_test(test_refused_merges),
        cmocka_unit_test(test_merge_list_forms),
        cmocka_unit_test(test_refused_tokens),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_stream_cuts),
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_refused_templates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
