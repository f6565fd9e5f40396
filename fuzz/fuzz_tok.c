/* Input: one selector byte (bits 0..1: pre-tokeniser, bit 2: special tokens, bits 3..4: bytes a
 * token has when the text is streamed, bit 5: the text is a chat template instead), then text.
 *
 * Every byte has a token here, so decode(encode(text)) must give the text back (qwen2: composed).
 * Whatever the bytes, the stream gives valid UTF-8, the same however they are cut. */
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

/* ---- the vocabulary ---- */

static const char *const merges[] = {
    "a a",
    "aa aa",
    "t h",
    "th e",
    "\xC4\xA0 the",
    "\xC4\xA0 \xC4\xA0",
    "1 2",
    "12 3",
    "\xC3\x83 \xC2\xA9", /* the two bytes of U+00E9 */
    "\xC4\x8D \xC4\x8A", /* CR LF */
    "' s",
    "< |",
    "e 1",
    ". \xC4\x8A",
};
enum { N_MERGE = sizeof merges / sizeof merges[0], N_PLAIN = 256 + N_MERGE, N_TOKEN = N_PLAIN + 4 };

static char byte_text[256][2], merged_text[N_MERGE][16];
static load_string token[N_TOKEN], merge[N_MERGE];
static uint8_t type[N_TOKEN];
static tok *toks[4];

static load_string string_of(const char *text) {
    return (load_string){text, strlen(text)};
}

static void fill_plain(void) {
    uint32_t other = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        uint32_t point = itself ? b : other++;
        utf8proc_ssize_t bytes =
            utf8proc_encode_char((int32_t)point, (utf8proc_uint8_t *)byte_text[b]);
        token[b] = (load_string){byte_text[b], (size_t)bytes};
        type[b] = LOAD_TOKEN_NORMAL;
    }
    for (int i = 0; i < N_MERGE; i++) {
        const char *blank = strchr(merges[i], ' ');
        snprintf(merged_text[i], sizeof merged_text[i], "%.*s%s", (int)(blank - merges[i]),
                 merges[i], blank + 1);
        token[256 + i] = string_of(merged_text[i]);
        type[256 + i] = LOAD_TOKEN_NORMAL;
        merge[i] = string_of(merges[i]);
    }
}

static tok *open_tok(int pre, load_string chat_template) {
    static const char *const names[4] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    load_vocab vocab = {.model = "gpt2",
                        .pre = names[pre],
                        .n_token = N_TOKEN,
                        .n_merge = N_MERGE,
                        .token = token,
                        .type = type,
                        .merge = merge,
                        .unk = -1,
                        .bos = -1,
                        .eos_ids = {N_PLAIN},
                        .n_eos = 1,
                        .chat_template = chat_template};
    tok *t = NULL;
    CHECK(tok_create(&vocab, &t, NULL) == WEFT_OK);
    return t;
}

static void open_toks(void) {
    static const char *const added[4] = {"<|c|>", "<t>", "<t></t>", "<\xC3\xA9>"};
    fill_plain();
    for (int i = 0; i < 4; i++) {
        token[N_PLAIN + i] = string_of(added[i]);
        type[N_PLAIN + i] = i == 0 ? LOAD_TOKEN_CONTROL : LOAD_TOKEN_USER;
    }
    for (int i = 0; i < 4; i++) {
        toks[i] = open_tok(i, (load_string){NULL, 0});
    }
}

/* ---- checks ---- */

/* Length of the valid beginning, by another program's rules. */
static size_t valid_bytes(const char *text, size_t n) {
    size_t at = 0;
    while (at < n) {
        int32_t point;
        utf8proc_ssize_t bytes =
            utf8proc_iterate((const uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &point);
        if (bytes <= 0) {
            break;
        }
        at += (size_t)bytes;
    }
    return at;
}

static char *compose(const char *text, size_t n, size_t *n_out) {
    uint8_t *out = NULL;
    utf8proc_ssize_t bytes = utf8proc_map((const uint8_t *)text, (utf8proc_ssize_t)n, &out,
                                          UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    CHECK(bytes >= 0);
    *n_out = (size_t)bytes;
    return (char *)out;
}

static void check_same(const char *a, size_t n_a, const char *b, size_t n_b) {
    CHECK(n_a == n_b && memcmp(a, b, n_a) == 0);
}

static void check_round_trip(const tok *t, const char *text, size_t n, bool special,
                             bool composes) {
    int32_t *ids = NULL;
    size_t n_id = 0, n_back = 0;
    bool any_added = false;
    CHECK(tok_encode(t, text, n, special, &ids, &n_id, NULL) == WEFT_OK);
    char *back = malloc(4 * n + 64); /* NFC grows text by 3 at most */
    tok_stream *stream = NULL;
    const char *given;
    size_t n_given;
    CHECK(tok_stream_open(t, false, &stream, NULL) == WEFT_OK);
    for (size_t i = 0; i < n_id; i++) {
        size_t bytes;
        const char *part = tok_bytes(t, ids[i], &bytes);
        CHECK(part != NULL && bytes > 0);
        CHECK(special || !tok_is_special(t, ids[i]));
        any_added = any_added || ids[i] >= N_PLAIN;
        CHECK(tok_stream_push(stream, ids[i], &given, &n_given, NULL) == WEFT_OK);
        CHECK(valid_bytes(given, n_given) == n_given);
        memcpy(back + n_back, given, n_given);
        n_back += n_given;
    }
    CHECK(tok_stream_end(stream, &given, &n_given, NULL) == WEFT_OK && n_given == 0);
    tok_stream_close(stream);
    if (!composes) {
        check_same(back, n_back, text, n);
    } else {
        size_t n_want, n_again;
        char *want = compose(text, n, &n_want), *again = compose(back, n_back, &n_again);
        check_same(want, n_want, again, n_again);
        if (!any_added) {
            check_same(want, n_want, back, n_back);
        }
        free(want);
        free(again);
    }
    free(back);
    free(ids);
}

static void check_stream(const char *bytes, size_t n, size_t step) {
    char *whole = malloc(3 * n + 16), *cut = malloc(3 * n + 16);
    tok_utf8 stream = {.n_held = 0};
    size_t n_whole = tok_utf8_push(&stream, bytes, n, whole), n_cut = 0;
    CHECK(valid_bytes(whole, n_whole) == n_whole);
    n_whole += tok_utf8_end(&stream, whole + n_whole);
    for (size_t at = 0; at < n; at += step) {
        size_t take = step < n - at ? step : n - at;
        size_t got = tok_utf8_push(&stream, bytes + at, take, cut + n_cut);
        CHECK(valid_bytes(cut + n_cut, got) == got);
        CHECK(stream.n_held >= 0 && stream.n_held <= 3);
        n_cut += got;
    }
    n_cut += tok_utf8_end(&stream, cut + n_cut);
    check_same(whole, n_whole, cut, n_cut);
    free(whole);
    free(cut);
}

static void check_template(const char *text, size_t n) {
    const char *roles[] = {"user", "assistant"}, *texts[] = {" hi\n", "<|im_end|>"};
    tok *t = open_tok(0, (load_string){text, n});
    char *out = NULL;
    weft_error err = {.text = ""};
    weft_status status = tok_chat_render(t, roles, texts, 2, true, &out, &err);
    CHECK(status == WEFT_OK ? strstr(out, "<|im_start|>user\n") != NULL
                            : status == WEFT_ERR_SETUP && out == NULL && err.text[0] != 0);
    free(out);
    tok_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (toks[0] == NULL) {
        open_toks();
    }
    if (size == 0) {
        return 0;
    }
    int pre = data[0] & 3;
    bool special = (data[0] & 4) != 0;
    size_t n = size - 1;
    char *text = malloc(n > 0 ? n : 1); /* its own block, so that reading past the end is seen */
    memcpy(text, data + 1, n);
    size_t valid = valid_bytes(text, n);
    if ((data[0] & 32) != 0) {
        check_template(text, n);
    } else if (valid == n) {
        check_round_trip(toks[pre], text, n, special, pre == 3);
    } else {
        int32_t *ids = NULL;
        size_t n_id;
        weft_error err;
        CHECK(tok_encode(toks[pre], text, n, special, &ids, &n_id, &err) == WEFT_ERR_USAGE);
        CHECK(ids == NULL && err.offset == (int64_t)valid);
    }
    check_stream(text, n, 1 + (size_t)(data[0] >> 3 & 3));
    free(text);
    return 0;
}
