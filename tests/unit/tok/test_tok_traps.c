/* Files that are wrong: every message names the thing. And parts of tokenizer.json that the golden
 * files do not use, and texts long enough for a quadratic step to show. */
#include "tok/tok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define VOCAB                                                                                      \
    "\"vocab\":{\"a\":0,\"b\":1,\" \":2,\"ab\":3,\"\xE2\x96\x81\":4,\"1\":5,\"2\":6,\"-\":7}"
#define MERGES "\"merges\":[[\"a\",\"b\"]]"
#define MODEL "\"model\":{" VOCAB "," MERGES "}"
#define FUSE "\"decoder\":{\"type\":\"Fuse\"}"

static tok *try_create(const char *json, size_t bytes, weft_error *err) {
    /* a block of its own, so that a sanitizer sees a read past its end */
    char *copy = malloc(bytes + (bytes == 0));
    memcpy(copy, json, bytes);
    load_vocab vocab = {.tokenizer_json = {copy, bytes}, .bos = -1};
    tok *t = NULL;
    weft_status status = tok_create(&vocab, &t, err);
    assert_true((status == WEFT_OK) == (t != NULL));
    free(copy);
    return t;
}

static void check_refused(const char *json, const char *must_say) {
    weft_error err = {.text = ""};
    tok *t = try_create(json, strlen(json), &err);
    if (t != NULL || err.status != WEFT_ERR_FILE || strstr(err.text, must_say) == NULL ||
        strstr(err.text, "tokenizer.json") == NULL || strchr(err.text, '\n') != NULL) {
        fail_msg("%s\n\"%s\" does not say \"%s\"", json, err.text, must_say);
    }
}

static tok *create(const char *json) {
    weft_error err = {.text = ""};
    tok *t = try_create(json, strlen(json), &err);
    if (t == NULL) {
        fail_msg("%s\n%s", json, err.text);
    }
    return t;
}

/* ids as text: "0 1 2" */
static void check_ids(const tok *t, const char *text, const char *want) {
    int32_t *ids = NULL;
    size_t n = 0, at = 0;
    char got[256] = "";
    assert_int_equal(tok_encode(t, text, strlen(text), true, &ids, &n, NULL), WEFT_OK);
    for (size_t i = 0; i < n && at < 200; i++) {
        at += (size_t)snprintf(got + at, sizeof got - at, "%s%d", i > 0 ? " " : "", ids[i]);
    }
    free(ids);
    assert_string_equal(got, want);
}

static void check_text(const tok *t, const int32_t *ids, size_t n, const char *want) {
    char got[256];
    size_t n_got = 0, bytes;
    const char *text;
    tok_stream *s = NULL;
    assert_int_equal(tok_stream_open(t, false, &s, NULL), WEFT_OK);
    for (size_t i = 0; i <= n; i++) {
        assert_int_equal(i < n ? tok_stream_push(s, ids[i], &text, &bytes, NULL)
                               : tok_stream_end(s, &text, &bytes, NULL),
                         WEFT_OK);
        memcpy(got + n_got, text, bytes);
        n_got += bytes;
    }
    got[n_got] = '\0';
    tok_stream_close(s);
    assert_string_equal(got, want);
}
#define CHECK_TEXT(t, want, ...)                                                                   \
    check_text(t, (const int32_t[]){__VA_ARGS__},                                                  \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t), want)

/* ---- wrong files ---- */

static void test_wrong_json(void **state) {
    (void)state;
    check_refused("", "line 1");
    check_refused("{", "line 1");
    check_refused("[]", "expected an object");
    check_refused("{\"model\":{},\"model\":{}}", "duplicate");
    check_refused("{\"model\":{\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", "duplicate");
    check_refused("{\"model\":{\"vocab\":{\"\xFF\":0},\"merges\":[]}}", "line 1");
    check_refused("{\"model\":{\"vocab\":{\"\\ud800\":0},\"merges\":[]}}", "line 1");
    check_refused("{\"model\":{\"vocab\":{\"a\":99999999999999999999},\"merges\":[]}}", "line 1");
    check_refused("{" MODEL "," FUSE ",\"extra\":1}", "extra is not known");
    char deep[6000];
    memset(deep, '[', sizeof deep);
    deep[sizeof deep - 1] = '\0';
    check_refused(deep, "line 1");
}

static void test_wrong_model(void **state) {
    (void)state;
    check_refused("{}", "model is missing");
    check_refused("{\"model\":7}", "model is a number");
    check_refused("{\"model\":{}}", "neither type nor merges");
    check_refused("{\"model\":{\"type\":\"WordPiece\"}}", "model.type \"WordPiece\"");
    check_refused("{\"model\":{\"type\":\"Unigram\"}}", "model.type \"Unigram\"");
    check_refused("{\"model\":{\"type\":\"WordLevel\"}}", "model.type \"WordLevel\"");
    check_refused("{\"model\":{\"merges\":[]}}", "model.vocab is missing");
    check_refused("{\"model\":{\"vocab\":[],\"merges\":[]}}", "model.vocab is an array");
    check_refused("{\"model\":{\"vocab\":{},\"merges\":[]}}", "model.vocab");
    check_refused("{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "\"a\" has the id -1");
    check_refused("{\"model\":{\"vocab\":{\"a\":2000000000},\"merges\":[]}}", "2000000000");
    check_refused("{\"model\":{\"vocab\":{\"a\":1.5},\"merges\":[]}}", "\"a\" is a number");
    check_refused("{\"model\":{\"vocab\":{\"a\":\"0\"},\"merges\":[]}}", "\"a\" is a text");
    check_refused("{\"model\":{\"vocab\":{\"a\":3,\"b\":3},\"merges\":[]}}",
                  "\"a\" and \"b\" both have the id 3");
    check_refused("{\"model\":{" VOCAB "},\"decoder\":{\"type\":\"Fuse\"}}", "nor merges");
    check_refused("{\"model\":{\"type\":\"BPE\"," VOCAB "}}", "model.merges is missing");
    check_refused("{\"model\":{" VOCAB ",\"merges\":{}}}", "model.merges is an object");
    check_refused("{\"model\":{" VOCAB ",\"merges\":[\"a b\",\"ab\"]}}", "model.merges[1]");
    check_refused("{\"model\":{" VOCAB ",\"merges\":[\"a b c\"]}}", "model.merges[0]");
    check_refused("{\"model\":{" VOCAB ",\"merges\":[[\"a\",\"b\",\"c\"]]}}", "model.merges[0]");
    check_refused("{\"model\":{" VOCAB ",\"merges\":[[\"a\",1]]}}", "model.merges[0]");
    check_refused("{\"model\":{" VOCAB ",\"merges\":[[\"a\",\"x\"]]}}", "the right part is not in");
    check_refused("{\"model\":{" VOCAB ",\"merges\":[[\"x\",\"a\"]]}}", "the left part is not in");
    check_refused("{\"model\":{" VOCAB ",\"merges\":[[\"b\",\"a\"]]}}", "the merged token is not");
    check_refused("{\"model\":{" VOCAB "," MERGES ",\"dropout\":0.1}}", "model.dropout");
    check_refused("{\"model\":{" VOCAB "," MERGES ",\"end_of_word_suffix\":\"</w>\"}}",
                  "end_of_word_suffix is \"</w>\"");
    check_refused("{\"model\":{" VOCAB "," MERGES ",\"continuing_subword_prefix\":\"##\"}}",
                  "continuing_subword_prefix");
    check_refused("{\"model\":{" VOCAB "," MERGES ",\"unk_token\":\"<unk>\"}}",
                  "unk_token \"<unk>\" is not in");
    check_refused("{\"model\":{" VOCAB "," MERGES ",\"byte_fallback\":1}}", "byte_fallback");
    check_refused("{\"model\":{" VOCAB "," MERGES ",\"new\":true}}", "model.new is not known");
}

static void test_wrong_added(void **state) {
    (void)state;
#define ADDED(list) "{\"added_tokens\":" list "," MODEL "," FUSE "}"
    check_refused(ADDED("{}"), "added_tokens is an object");
    check_refused(ADDED("[7]"), "added_tokens[0]");
    check_refused(ADDED("[{\"id\":8,\"content\":\"x\"},{\"content\":\"y\"}]"), "added_tokens[1]");
    check_refused(ADDED("[{\"id\":-8,\"content\":\"x\"}]"), "added_tokens[0] has the id -8");
    check_refused(ADDED("[{\"id\":8}]"), "added_tokens[0].content is missing");
    check_refused(ADDED("[{\"id\":8,\"content\":\"x\",\"special\":0}]"), "added_tokens[0].special");
    check_refused(ADDED("[{\"id\":8,\"content\":\"x\",\"mask\":true}]"), "mask is not known");
    check_refused(ADDED("[{\"id\":0,\"content\":\"x\"}]"), "the id 0, which is \"a\" already");
    check_refused(ADDED("[{\"id\":8,\"content\":\"a\"}]"),
                  "\"a\" has the id 8, model.vocab gives it 0");
    check_refused(ADDED("[{\"id\":8,\"content\":\"x\"},{\"id\":8,\"content\":\"y\"}]"),
                  "added_tokens[1] \"y\" has the id 8");
}

static void test_wrong_steps(void **state) {
    (void)state;
#define WITH(member, step) "{\"" member "\":" step "," MODEL "," FUSE "}"
    check_refused(WITH("normalizer", "[]"), "normalizer is an array");
    check_refused(WITH("normalizer", "{}"), "normalizer.type is missing");
    check_refused(WITH("normalizer", "{\"type\":\"Precompiled\"}"), "type \"Precompiled\"");
    check_refused(WITH("normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"
                                     "{\"type\":\"BertNormalizer\"}]}"),
                  "normalizer.normalizers[1].type \"BertNormalizer\"");
    check_refused(WITH("normalizer", "{\"type\":\"Sequence\"}"), "normalizer.normalizers");
    check_refused(WITH("normalizer", "{\"type\":\"Replace\",\"content\":\"x\"}"),
                  "normalizer.pattern");
    check_refused(WITH("normalizer", "{\"type\":\"Replace\",\"content\":\"x\",\"pattern\":"
                                     "{\"Regex\":\"(\"}}"),
                  "normalizer.pattern.Regex");
    check_refused(WITH("normalizer", "{\"type\":\"NFC\",\"form\":1}"), "normalizer.form");
}

static void test_wrong_cuts(void **state) {
    (void)state;
#define SPLIT(pattern)                                                                             \
    WITH("pre_tokenizer", "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,"        \
                          "\"pattern\":{\"Regex\":\"" pattern "\"}}")
    check_refused(SPLIT("[a-z&&b]"), "&& inside of a class");
    check_refused(SPLIT("[a[b]]"), "a class inside of a class");
    check_refused(SPLIT("[[:alpha:]]"), "a class inside of a class");
    check_refused(SPLIT("[a"), "an open class");
    check_refused(SPLIT("\\\\Ga"), "an escape");
    check_refused(SPLIT("(?s:a)"), "a flag");
    check_refused(SPLIT("\\\\p{Klingon}"), "cannot be used");
    check_refused(SPLIT("\\\\p{L"), "\\p without");
    check_refused(SPLIT("\\\\x{110000}"), "cannot be used");
    check_refused(SPLIT("\\\\xC3"), "\\x80 and above");
    check_refused(SPLIT("(?<=a+)b"), "cannot be used");
    check_refused(SPLIT("a\\\\"), "a backslash at the end");
    check_refused(SPLIT("\\u0000"), "NUL");
    check_refused(WITH("pre_tokenizer", "{\"type\":\"UnicodeScripts\"}"), "UnicodeScripts");
    check_refused(WITH("pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
                                        "\"behavior\":\"isolated\"}"),
                  "behavior is \"isolated\"");
    check_refused(WITH("pre_tokenizer", "{\"type\":\"ByteLevel\"}"), "add_prefix_space is missing");
    check_refused(WITH("pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"),
                  "replacement is not one character");
    check_refused(WITH("pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\","
                                        "\"prepend_scheme\":\"last\"}"),
                  "prepend_scheme is \"last\"");
}

static void test_wrong_ends(void **state) {
    (void)state;
    check_refused(WITH("post_processor", "{\"type\":\"Template\"}"), "\"Template\"");
#define POST(single, special)                                                                      \
    WITH("post_processor",                                                                         \
         "{\"type\":\"TemplateProcessing\",\"single\":" single ",\"special_tokens\":" special "}")
#define A "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define S "{\"SpecialToken\":{\"id\":\"s\",\"type_id\":0}}"
    check_refused(POST("[]", "{}"), "the Sequence A 0 times");
    check_refused(POST("[" A "," A "]", "{}"), "the Sequence A 2 times");
    check_refused(POST("[" S "," A "]", "{}"), "no ids for \"s\"");
    check_refused(POST("[" S "," A "]", "{\"s\":{\"ids\":[8]}}"), "the id 8; the vocabulary has 8");
    check_refused(POST("[" S "," A "]", "{\"s\":{\"ids\":[\"1\"]}}"), "special_tokens \"s\"");
    check_refused(
        "{\"normalizer\":{\"type\":\"StripAccents\"},\"pre_tokenizer\":{\"type\":\"Metaspace\","
        "\"replacement\":\"_\",\"prepend_scheme\":\"first\"}," MODEL "," FUSE "}",
        "prepend_scheme first");
    check_refused("{" MODEL "}", "decoder is missing");
    check_refused("{" MODEL ",\"decoder\":null}", "decoder is missing");
    check_refused("{" MODEL ",\"decoder\":{\"type\":\"WordPiece\"}}", "decoder.type \"WordPiece\"");
    check_refused("{" MODEL ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
                  "{\"type\":\"ByteFallback\"}]}}",
                  "decoder.decoders[1].type \"ByteFallback\"");
    check_refused("{" MODEL ",\"decoder\":{\"type\":\"Strip\",\"content\":\"a\",\"start\":-1,"
                  "\"stop\":0}}",
                  "decoder.start is no number");
}

static void test_nested_steps(void **state) {
    (void)state;
    char nested[2000] = "";
    for (int i = 0; i < 20; i++) {
        strcat(nested, "{\"type\":\"Sequence\",\"normalizers\":[");
    }
    strcat(nested, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 20; i++) {
        strcat(nested, "]}");
    }
    char file[3000];
    snprintf(file, sizeof file, "{\"normalizer\":%s," MODEL "," FUSE "}", nested);
    check_refused(file, "sequences nested");
    char many[2000] = "{\"type\":\"Sequence\",\"normalizers\":[";
    for (int i = 0; i < 40; i++) {
        strcat(many, i > 0 ? ",{\"type\":\"NFC\"}" : "{\"type\":\"NFC\"}");
    }
    snprintf(file, sizeof file, "{\"normalizer\":%s]}," MODEL "," FUSE "}", many);
    weft_error err = {.text = ""};
    assert_null(try_create(file, strlen(file), &err));
    assert_non_null(strstr(err.text, "more than 16 steps"));
}

static void test_wrong_ids(void **state) {
    (void)state;
    static const char json[] = "{" MODEL "," FUSE "}";
    load_vocab vocab = {
        .tokenizer_json = {json, sizeof json - 1}, .bos = 8, .eos_ids = {0, 8}, .n_eos = 1};
    weft_error err = {.text = ""};
    tok *t = NULL;
    assert_int_equal(tok_create(&vocab, &t, &err), WEFT_ERR_FILE);
    assert_non_null(strstr(err.text, "bos token 8: the vocabulary has 8 tokens"));
    vocab.bos = 7;
    vocab.n_eos = 2;
    assert_int_equal(tok_create(&vocab, &t, &err), WEFT_ERR_FILE);
    assert_non_null(strstr(err.text, "eos token 8"));
    vocab.n_eos = 1;
    vocab.add_bos = true; /* though the file has no post-processor */
    assert_int_equal(tok_create(&vocab, &t, &err), WEFT_OK);
    size_t n;
    assert_int_equal(tok_lead(t, &n)[0], 7);
    assert_int_equal(n, 1);
    assert_true(tok_is_end(t, 0));
    tok_destroy(t);
}

/* tokenizer_config.json's add_bos_token: false takes the rule of tokenizer.json away. */
static void test_drop_bos(void **state) {
    (void)state;
    static const char json[] =
        "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
        "\"id\":\"a\","
        "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_"
        "tokens\":{\"a\":"
        "{\"id\":\"a\",\"ids\":[7],\"tokens\":[\"a\"]}}}," MODEL "," FUSE "}";
    load_vocab vocab = {.tokenizer_json = {json, sizeof json - 1}, .bos = 7};
    for (int drop = 0; drop < 2; drop++) {
        vocab.drop_bos = drop == 1;
        tok *t = NULL;
        size_t n;
        assert_int_equal(tok_create(&vocab, &t, NULL), WEFT_OK);
        tok_lead(t, &n);
        assert_int_equal(n, drop == 0);
        tok_destroy(t);
    }
}

/* Small files that ask for a lot of memory or time. */
static void test_limits(void **state) {
    (void)state;
    char *file = malloc(1 << 20);
    assert_non_null(file);
    size_t n = (size_t)sprintf(
        file, "{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
              "[{\"SpecialToken\":{\"id\":\"x\",\"type_id\":0}},{\"Sequence\":"
              "{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"x\":"
              "{\"id\":\"x\",\"ids\":[0");
    for (int i = 0; i < 100000; i++) {
        n += (size_t)sprintf(file + n, ",0");
    }
    sprintf(file + n, "],\"tokens\":[]}}}," MODEL "," FUSE "}");
    check_refused(file, "more than 128 ids");

    n = (size_t)sprintf(file, "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[");
    for (int i = 0; i < 3; i++) { /* each makes an "a" 20,000 of them */
        n += (size_t)sprintf(file + n, "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                                       "\"content\":\"");
        memset(file + n, 'a', 20000);
        n += 20000;
        n += (size_t)sprintf(file + n, "\"},");
    }
    sprintf(file + n, "{\"type\":\"Fuse\"}]}," MODEL "}");
    check_refused(file, "decoder makes more than");

    check_refused("{\"model\":{\"vocab\":{\"a\":0,\"b\":16777215}," MERGES "}," FUSE "}",
                  "far beyond the number of tokens");

    n = (size_t)sprintf(file, "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a");
    for (int i = 0; i < 20000; i++) {
        n += (size_t)sprintf(file + n, "{1}+");
    }
    sprintf(file + n, "\"},\"behavior\":\"Isolated\",\"invert\":false}," MODEL "," FUSE "}");
    check_refused(file, "a pattern of 80001 bytes");
    free(file);
}

static void check_added_limit(size_t n_byte, const char *normalizer, const char *must_say) {
    char *file = malloc(n_byte + 1000);
    assert_non_null(file);
    size_t n = (size_t)sprintf(
        file, "{\"normalizer\":%s,\"added_tokens\":[{\"id\":8,\"content\":\"", normalizer);
    memset(file + n, 'a', n_byte);
    sprintf(file + n + n_byte,
            "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":true,"
            "\"special\":false}]," MODEL "," FUSE "}");
    weft_error err = {.text = ""};
    tok *t = try_create(file, strlen(file), &err);
    assert_int_equal(t == NULL, must_say != NULL);
    if (must_say != NULL && strstr(err.text, must_say) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, must_say);
    }
    tok_destroy(t);
    free(file);
}

static void test_added_limits(void **state) {
    (void)state;
    check_added_limit(4096, "null", NULL);
    check_added_limit(4097, "null", "added token 8 has 4097 bytes");
#define TIMES_16                                                                                   \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaaaaaaaa\"}"
    check_added_limit(2048, "{\"type\":\"Sequence\",\"normalizers\":[" TIMES_16 "]}", NULL);
    /* also when it would end short */
    check_added_limit(2048,
                      "{\"type\":\"Sequence\",\"normalizers\":[" TIMES_16 "," TIMES_16
                      ",{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a+\"},\"content\":\"a\"}]}",
                      "added token 8 has 2048 bytes: at most 4096");
}

/* ---- parts that no golden file has ---- */

static void check_cut(const char *step, const char *text, const char *want) {
    char json[1000];
    snprintf(json, sizeof json, "{\"pre_tokenizer\":%s," MODEL "," FUSE "}", step);
    tok *t = create(json);
    check_ids(t, text, want);
    tok_destroy(t);
}

static void test_cuts(void **state) {
    (void)state;
#define BY(pattern, behavior, invert)                                                              \
    "{\"type\":\"Split\",\"pattern\":" pattern ",\"behavior\":\"" behavior "\",\"invert\":" invert \
    "}"
    /* ab is one token where nothing cuts it */
    check_cut("null", "abab", "3 3");
    check_cut(BY("{\"String\":\"b\"}", "Isolated", "false"), "abab", "0 1 0 1");
    check_cut(BY("{\"String\":\"b\"}", "Removed", "false"), "abab", "0 0");
    check_cut(BY("{\"String\":\"b\"}", "Removed", "true"), "abab", "1 1");
    check_cut(BY("{\"String\":\"b\"}", "MergedWithPrevious", "false"), "abab", "3 3");
    check_cut(BY("{\"String\":\"b\"}", "MergedWithNext", "false"), "abab", "0 1 0 1");
    check_cut(BY("{\"String\":\"a\"}", "MergedWithNext", "false"), "abab", "3 3");
    check_cut(BY("{\"Regex\":\"[12]\"}", "Contiguous", "false"), "ab12ab", "3 5 6 3");
    check_cut(BY("{\"Regex\":\"(?=b)\"}", "Isolated", "false"), "ab", "0 1");
    check_cut(BY("{\"Regex\":\"\"}", "Isolated", "false"), "ab", "0 1");
    check_cut(BY("{\"String\":\"\"}", "Isolated", "false"), "ab", "3");
    check_cut("{\"type\":\"Whitespace\"}", " ab -", "3 7");
    check_cut("{\"type\":\"WhitespaceSplit\"}", " ab-", "3 7");
    check_cut("{\"type\":\"Punctuation\",\"behavior\":\"Removed\"}", "a-b", "0 1");
    check_cut("{\"type\":\"Punctuation\"}", "a-b", "0 7 1");
    check_cut("{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\"}", "a b", "4 0 4 1");
    check_cut("{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":"
              "\"never\",\"split\":false}",
              "a b", "0 4 1");
    check_cut("{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"add_prefix_space\":"
              "false}",
              " ab", "4 3");
    check_cut("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":"
              "\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"first\"}]}",
              "a b", "4 0 1");
}

static void test_normalisers(void **state) {
    (void)state;
    static const char *const steps[][3] = {
        {"{\"type\":\"Lowercase\"}", "AB", "3"},
        {"{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", " ab ", "3 2"},
        {"{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true}", " ab\xE3\x80\x80",
         "2 3"},
        {"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[xyz]+\"},\"content\":\"ab\"}", "xyx",
         "3"},
        {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"ab\"}", "1", "5"},
        {"{\"type\":\"NFKC\"}", "\xEF\xBD\x81\xC2\xB2", "0 6"}, /* a full-width a, a raised 2 */
        {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"}]}",
         "\xC3\xA1"
         "b",
         "3"},
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        char json[1000];
        snprintf(json, sizeof json, "{\"normalizer\":%s," MODEL "," FUSE "}", steps[i][0]);
        tok *t = create(json);
        check_ids(t, steps[i][1], steps[i][2]);
        tok_destroy(t);
    }
}

/* Where Oniguruma and PCRE2 do not mean the same; what is right here was asked of the library. */
static void test_patterns(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *character;
        bool matches;
    } cases[] = {
        {"\\\\w", "\xC2\xBD", true},
        {"[\\\\w]", "\xC2\xBD", false}, /* one half */
        {"\\\\w", "\xE2\x91\xA0", false},
        {"\\\\w", "\xE2\x92\xB6", true}, /* circled 1, A */
        {"\\\\w", "\xE2\x80\xBF", true},
        {"\\\\w", "\xE2\x80\x8D", false}, /* tie, joiner */
        {"\\\\W", "\xE2\x91\xA0", true},
        {"[^\\\\w]", "\xC2\xBD", true},
        {"\\\\d", "\xD9\xA1", true},
        {"\\\\d", "\xC2\xB2", false},
        {"\\\\s", "\xC2\x85", true},
        {"\\\\s", "\xE1\xA0\x8E", false},
        {"[^\\\\S]", "\xC2\x85", true},
        {"[\\\\S]", "\xE1\xA0\x8E", true},
        {"\\\\h", "f", true},
        {"\\\\h", "\t", false},
        {"\\\\v", "\x0B", true},
        {"\\\\v", "\n", false},
        {".", "\n", false},
        {"(?m:.)", "\n", true},
        {"(?i:s)", "\xC5\xBF", true},
        {"\\\\p{^L}", "1", true},
        {"\\\\p{Han}", "\xE6\xBC\xA2", true},
        {"\\\\p{Han}", "\xE3\x80\x82", false}, /* full stop */
        {"\\\\p{Alpha}", "\xE2\x92\xB6", true},
        {"\\\\u00bd", "\xC2\xBD", true},
        {"\\\\x{bd}", "\xC2\xBD", true},
        {"x{,2}y", "y", true},
        {"^x$", "x", true},
        {"{", "{", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[1000];
        snprintf(json, sizeof json,
                 "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"%s\"},\"content\":"
                 "\"ab\"}," MODEL "," FUSE "}",
                 cases[i].pattern);
        tok *t = create(json);
        int32_t *ids = NULL;
        size_t n = 0;
        assert_int_equal(
            tok_encode(t, cases[i].character, strlen(cases[i].character), true, &ids, &n, NULL),
            WEFT_OK);
        if ((n == 1 && ids[0] == 3) != cases[i].matches) {
            fail_msg("%s on character %zu", cases[i].pattern, i);
        }
        free(ids);
        tok_destroy(t);
    }
    check_cut(BY("{\"Regex\":\"[12]{1,1}+\"}", "Isolated", "false"), "a1",
              "0 5");                                                         /* no possessive */
    check_cut(BY("{\"Regex\":\"a$\"}", "Isolated", "false"), "a\nab", "0 3"); /* end of a line */
    check_cut(BY("{\"Regex\":\"\\\\b\"}", "Isolated", "false"), "ab-ab", "3 7 3");
    check_cut(BY("{\"Regex\":\"\\\\B\"}", "Isolated", "false"), "ab-ab", "0 1 7 0 1");
}

static void test_added(void **state) {
    (void)state;
#define ADD(list) "{\"added_tokens\":[" list "]," MODEL "," FUSE "}"
    /* blanks that <x> takes are looked at again, as in the library, but not taken again */
    tok *t = create(ADD("{\"id\":8,\"content\":\"<x>\",\"rstrip\":true},"
                        "{\"id\":9,\"content\":\"  \"}"));
    check_ids(t, "<x>   a", "8 9 2 0");
    check_ids(t, "a   <x>", "0 9 2 8");
    tok_destroy(t);
    t = create(ADD("{\"id\":8,\"content\":\"<x>\",\"rstrip\":true},"
                   "{\"id\":9,\"content\":\"  \",\"lstrip\":true}"));
    check_ids(t, "<x>  a", "8 0");
    check_ids(t, "<x>    a", "8 0");
    tok_destroy(t);
    t = create(ADD("{\"id\":8,\"content\":\"x\",\"single_word\":true,\"lstrip\":true}"));
    check_ids(t, "a x-x1x x", "0 8 7 5 8");
    tok_destroy(t);
    /* a control token can be a token of the model; text becomes it only where it could name it */
    t = create(ADD("{\"id\":3,\"content\":\"ab\",\"special\":true,\"single_word\":true}"));
    check_ids(t, "ab1", "3 5");
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(tok_encode(t, "ab", 2, false, &ids, &n, NULL), WEFT_OK);
    assert_int_equal(n, 2);
    assert_true(tok_is_special(t, 3));
    free(ids);
    tok_destroy(t);
    t = create("{\"added_tokens\":[{\"id\":8,\"content\":\"<x>\"}],\"pre_tokenizer\":{\"type\":"
               "\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"first\"}," MODEL
               "," FUSE "}");
    check_ids(t, "a<x>b", "4 0 8 1"); /* the second stretch does not begin the text */
    check_ids(t, "<x>b", "8 1");
    tok_destroy(t);
}

static void test_unknown_characters(void **state) {
    (void)state;
#define UNK "{\"model\":{\"vocab\":{\"a\":0,\"u\":1,\"<0xC3>\":2},\"merges\":[],\"unk_token\":\"u\""
    tok *t = create(UNK "}," FUSE "}");
    check_ids(t, "a??a", "0 1 1 0");
    tok_destroy(t);
    t = create(UNK ",\"fuse_unk\":true}," FUSE "}");
    check_ids(t, "a??a?", "0 1 0 1");
    tok_destroy(t);
    t = create(UNK ",\"byte_fallback\":true}," FUSE "}"); /* only if it has all bytes */
    check_ids(t, "\xC3\xA9", "1");
    tok_destroy(t);
}

static void test_pairs_and_lines(void **state) {
    (void)state;
    /* of a pair listed twice the last rank counts: b1 merges before ab */
    tok *twice =
        create("{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"1\":2,\"ab\":3,\"b1\":4},\"merges\":["
               "\"a b\",\"b 1\",\"a b\"]}," FUSE "}");
    check_ids(twice, "ab1", "0 4");
    tok_destroy(twice);
    tok *t = create("{\"model\":{" VOCAB ",\"merges\":[\"a b\"]}," FUSE "}");
    check_ids(t, "ab", "3");
    tok_destroy(t);
    t = create("{\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"b\",1],\"cls\":[\"a\","
               "0]}," MODEL "," FUSE "}");
    int32_t *ids = NULL;
    size_t n = 0;
    assert_int_equal(tok_encode_prompt(t, "1", 1, &ids, &n, NULL), WEFT_OK);
    assert_int_equal(n, 3);
    assert_true(ids[0] == 0 && ids[1] == 5 && ids[2] == 1);
    free(ids);
    tok_destroy(t);
}

static void test_decoders(void **state) {
    (void)state;
#define DECODED(decoder)                                                                           \
    "{\"model\":{\"vocab\":{\"\xE2\x96\x81\":0,\"a\":1,\"<0xC3>\":2,\"<0xA9>\":3,\" \":4},"        \
    "\"merges\":[]},\"decoder\":" decoder "}"
    tok *t = create(DECODED("{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\"}"));
    CHECK_TEXT(t, "a a", 0, 1, 0, 1);
    CHECK_TEXT(t, "a ", 1, 0);
    tok_destroy(t);
    t = create(DECODED("{\"type\":\"ByteFallback\"}"));
    CHECK_TEXT(t, "a\xC3\xA9", 1, 2, 3);
    CHECK_TEXT(t, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 2, 3, 3); /* bad as a whole */
    CHECK_TEXT(t,
               "\xEF\xBF\xBD"
               "a\xEF\xBF\xBD",
               2, 1, 3);
    CHECK_TEXT(t, "a", 99, 1, -1); /* no tokens */
    tok_destroy(t);
    t = create(DECODED("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
                       "\"Strip\",\"content\":\" \",\"start\":2,\"stop\":1}]}"));
    CHECK_TEXT(t, " a a", 4, 4, 4, 1, 4, 1, 4);
    CHECK_TEXT(t, "a", 1);
    CHECK_TEXT(t, "a ", 1, 4, 4);
    tok_destroy(t);
    t = create(DECODED("{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"));
    CHECK_TEXT(t, "aa", 4, 1, 4, 1); /* each token by itself */
    tok_destroy(t);
}

/* A text that goes on from another keeps its first blank. */
static void test_inside(void **state) {
    (void)state;
    tok *t = create(DECODED("{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
                            "\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"));
    for (int inside = 0; inside < 2; inside++) {
        tok_stream *s = NULL;
        const char *text;
        size_t n;
        assert_int_equal(tok_stream_open(t, inside == 1, &s, NULL), WEFT_OK);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(tok_stream_push(s, 4, &text, &n, NULL), WEFT_OK);
            assert_int_equal(n, (size_t)inside);
            assert_int_equal(tok_stream_end(s, &text, &n, NULL), WEFT_OK);
            assert_int_equal(n, 0);
        }
        tok_stream_close(s);
    }
    tok_destroy(t);
}

/* ---- long texts ---- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A quadratic step takes minutes here, so a loose bound tells. */
static void check_long(const char *step, const char *unit, const char *last) {
    enum { BYTES = 1 << 20 };
    char json[2000];
    size_t n_unit = strlen(unit), n_last = strlen(last), bytes = BYTES / n_unit * n_unit, n = 0;
    snprintf(json, sizeof json, "{%s" MODEL "," FUSE "}", step);
    tok *t = create(json);
    char *text = malloc(bytes + n_last);
    for (size_t i = 0; i < bytes; i++) {
        text[i] = unit[i % n_unit];
    }
    memcpy(text + bytes, last, n_last);
    int32_t *ids = NULL;
    double begin = seconds();
    assert_int_equal(tok_encode(t, text, bytes + n_last, true, &ids, &n, NULL), WEFT_OK);
    assert_true(seconds() - begin < 20);
    assert_true(n > 0);
    free(ids);
    free(text);
    tok_destroy(t);
}

static void test_long(void **state) {
    (void)state;
    check_long("", "ab", "");
    check_long("\"pre_tokenizer\":" BY("{\"Regex\":\"\\\\s+$\"}", "Isolated", "false") ",", " ",
               "a");
    check_long("\"pre_tokenizer\":" BY("{\"Regex\":\"a\"}", "MergedWithNext", "false") ",", "a",
               "");
    check_long("\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":"
               "\"\xE2\x96\x81\"},",
               " ", "");
    check_long("\"added_tokens\":[{\"id\":8,\"content\":\"<x>\",\"lstrip\":true,\"rstrip\":true}],",
               "<x> ", "");
    check_long("\"added_tokens\":[{\"id\":8,\"content\":\" x\",\"single_word\":true,\"lstrip\":"
               "true}],",
               " ", "x");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_json),      cmocka_unit_test(test_wrong_model),
        cmocka_unit_test(test_wrong_added),     cmocka_unit_test(test_wrong_steps),
        cmocka_unit_test(test_wrong_ids),       cmocka_unit_test(test_drop_bos),
        cmocka_unit_test(test_limits),          cmocka_unit_test(test_added_limits),
        cmocka_unit_test(test_wrong_cuts),      cmocka_unit_test(test_wrong_ends),
        cmocka_unit_test(test_nested_steps),    cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_normalisers),     cmocka_unit_test(test_unknown_characters),
        cmocka_unit_test(test_patterns),        cmocka_unit_test(test_added),
        cmocka_unit_test(test_pairs_and_lines), cmocka_unit_test(test_decoders),
        cmocka_unit_test(test_inside),          cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
