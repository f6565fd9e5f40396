/* Input: a tokenizer.json, then perhaps a NUL and a text (else a fixed one). Any bytes are refused with
 * a reason, or make a tokeniser that encodes the text and gives valid UTF-8 for any ids. */
#include "base/log.h"
#include "tok/tok.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static void check_utf8(const char *text, size_t n) {
    for (size_t at = 0; at < n;) {
        int32_t point;
        utf8proc_ssize_t bytes =
            utf8proc_iterate((const uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &point);
        CHECK(bytes > 0);
        at += (size_t)bytes;
    }
}

static void push(tok_stream *s, int32_t id) {
    const char *text;
    size_t n;
    CHECK(tok_stream_push(s, id, &text, &n, NULL) == WEFT_OK);
    check_utf8(text, n);
}

static void check_tok(const tok *t, const char *text, size_t n, bool special) {
    int32_t *ids = NULL;
    size_t n_id = 0;
    weft_error err = {.text = ""};
    /* a pattern that looks too often at each character is an error of its own */
    if (tok_encode(t, text, n, special, &ids, &n_id, &err) != WEFT_OK) {
        CHECK(err.text[0] != '\0');
        return;
    }
    tok_stream *s = NULL;
    CHECK(tok_stream_open(t, special, &s, NULL) == WEFT_OK);
    for (size_t i = 0; i < n_id; i++) {
        CHECK(ids[i] >= 0 && ids[i] < tok_vocab_size(t));
        CHECK(special || !tok_is_special(t, ids[i]));
        push(s, ids[i]);
    }
    for (int32_t id = -1; id <= tok_vocab_size(t) && id < 600; id++) {
        push(s, id);
    }
    const char *rest;
    size_t n_rest;
    CHECK(tok_stream_end(s, &rest, &n_rest, NULL) == WEFT_OK);
    check_utf8(rest, n_rest);
    tok_stream_close(s);
    free(ids);
    if (special) {
        CHECK(tok_encode_prompt(t, text, n, &ids, &n_id, NULL) == WEFT_OK);
        free(ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char fixed[] = "The 'quick' brown fox\r\n  jumps 12345 times: \xC3\xA9 e\xCC\x81 "
                                "\xE6\xBC\xA2\xE5\xAD\x97 \xF0\x9F\x99\x82 <s> </think> \x1C";
    log_set_level(LOG_QUIET);
    const uint8_t *end = memchr(data, 0, size);
    size_t n = end != NULL ? (size_t)(end - data) : size;
    char *json = malloc(n + (n == 0)); /* its own block, so that reading past the end is seen */
    memcpy(json, data, n);
    load_vocab vocab = {.tokenizer_json = {json, n}, .bos = -1};
    tok *t = NULL;
    weft_error err = {.text = ""};
    weft_status status = tok_create(&vocab, &t, &err);
    free(json);
    if (status != WEFT_OK) {
        CHECK(err.status == status && err.text[0] != '\0' && t == NULL);
        return 0;
    }
    size_t n_text = size - n > 0 ? size - n - 1 : 0;
    utf8proc_ssize_t valid = 0;
    int32_t point;
    for (size_t at = 0; at < n_text && valid >= 0; at += (size_t)(valid > 0 ? valid : 1)) {
        valid = utf8proc_iterate(data + n + 1 + at, (utf8proc_ssize_t)(n_text - at), &point);
    }
    bool own = n_text > 0 && valid > 0;
    for (int special = 0; special < 2; special++) {
        check_tok(t, own ? (const char *)data + n + 1 : fixed, own ? n_text : sizeof fixed - 1,
                  special == 1);
    }
    tok_destroy(t);
    return 0;
}
