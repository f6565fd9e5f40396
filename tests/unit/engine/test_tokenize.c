/* C08: one BOS, where the model asks for one, and none where it does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "unit/load/gguf_edit.h"
#include "weft.h"

static const char path_of_base[] = WEFT_GOLDEN "/gguf/bad/ok_base.gguf";

static edit own_key(const char *key, uint32_t type, const void *value, size_t bytes) {
    return (edit){
        .drop_key = key, .key = key, .key_type = type, .value = value, .value_bytes = bytes};
}

/* The sound file with another BOS rule. */
static weft_model *model_with(int32_t bos, uint8_t add_bos) {
    size_t n = 0;
    uint8_t *base = file_read(path_of_base, &n);
    edit e = own_key("tokenizer.ggml.add_bos_token", 7, &add_bos, 1);
    uint8_t *one = gguf_edit(base, &e, &n);
    e = own_key("tokenizer.ggml.bos_token_id", 4, &bos, 4);
    uint8_t *two = gguf_edit(one, &e, &n);
    char path[] = "/tmp/weft-bos-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, two, n), (ssize_t)n);
    close(fd);
    free(base);
    free(one);
    free(two);
    weft_model *m = NULL;
    weft_error err = {0};
    weft_status s = weft_model_open(path, &m, &err);
    unlink(path);
    if (s != WEFT_OK)
        fail_msg("%s", err.text);
    return m;
}

enum { MAX_ID = 16 };

static size_t ids_of(const weft_model *m, const char *text, size_t bytes, weft_text_kind kind,
                     int32_t *ids) {
    size_t n = 0, n_again = 99;
    weft_error err = {0};
    assert_int_equal(weft_tokenize(m, text, bytes, kind, ids, MAX_ID, &n, &err), WEFT_OK);
    assert_in_range(n, 0, MAX_ID);
    int32_t none[1] = {-7};
    assert_int_equal(weft_tokenize(m, text, bytes, kind, none, 0, &n_again, &err), WEFT_OK);
    assert_int_equal(n_again, n); /* the number due, whatever the room */
    assert_int_equal(none[0], -7);
    return n;
}

static void one_bos(void **state) {
    (void)state;
    weft_model *m = model_with(0, 1);
    /* A token that one byte of text makes serves as BOS: "!" of the byte alphabet. */
    int32_t plain[MAX_ID], ids[MAX_ID];
    assert_int_equal(ids_of(m, "!", 1, WEFT_TEXT_PLAIN, plain), 1);
    int32_t bos = plain[0], other;
    weft_model_close(m);
    for (uint8_t add = 0; add <= 1; add++) {
        m = model_with(bos, add);
        assert_int_equal(ids_of(m, "?", 1, WEFT_TEXT_PLAIN, &other), 1);
        assert_true(other != bos);
        assert_int_equal(ids_of(m, "?", 1, WEFT_TEXT_PROMPT, ids), 1 + add); /* completions */
        assert_int_equal(ids[0], add ? bos : other);
        assert_int_equal(ids[add], other);
        /* The text begins with it already: a template wrote it, or the user did. */
        assert_int_equal(ids_of(m, "!?", 2, WEFT_TEXT_PROMPT, ids), 2);
        assert_int_equal(ids[0], bos);
        assert_int_equal(ids[1], other);
        assert_int_equal(ids_of(m, "!!", 2, WEFT_TEXT_PROMPT, ids),
                         2); /* nothing that was typed is lost */
        assert_int_equal(ids_of(m, "", 0, WEFT_TEXT_PROMPT, ids), add);
        assert_int_equal(ids_of(m, "?", 1, WEFT_TEXT_PLAIN, ids), 1); /* not asked for */
        assert_int_equal(ids_of(m, "?", 1, WEFT_TEXT_SPECIAL, ids), 1);
        weft_model_close(m);
    }
}

int main(void) {
    if (access(path_of_base, R_OK) != 0)
        return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_bos)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
