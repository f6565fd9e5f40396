/* The broken golden files against the whole way from bytes to a description: each is refused, or
 * warned of, by the name of what is wrong in it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "model/desc.h"

static bool holds_one(const char *text, const json_t *names) {
    for (size_t i = 0; i < json_array_size(names); i++) {
        if (strcasestr(text, json_string_value(json_array_get(names, i))) != NULL) {
            return true;
        }
    }
    return false;
}

/* Opens the file and its description; what is logged goes to `log`. */
static weft_status open_file(const char *file, char *log, size_t n_log, weft_error *err) {
    char path[512];
    snprintf(path, sizeof path, "%s/gguf/bad/%s", WEFT_GOLDEN, file);
    FILE *capture = tmpfile();
    assert_non_null(capture);
    int saved = dup(2);
    dup2(fileno(capture), 2);
    model_desc *d = NULL;
    weft_status s = model_desc_load(path, &d, err);
    dup2(saved, 2);
    close(saved);
    rewind(capture);
    log[fread(log, 1, n_log - 1, capture)] = '\0';
    fclose(capture);
    model_desc_close(d);
    return s;
}

static void check(const json_t *expect) {
    const char *file = json_string_value(json_object_get(expect, "file"));
    const char *must = json_string_value(json_object_get(expect, "must"));
    const json_t *names = json_object_get(expect, "names");
    char log[8192];
    weft_error err = {.status = WEFT_OK, .text = ""};
    weft_status s = open_file(file, log, sizeof log, &err);
    bool right;
    if (strcmp(must, "load") == 0) {
        right = s == WEFT_OK && log[0] == '\0';
    } else if (s == WEFT_OK) {
        right = strcmp(must, "reject or warn") == 0 && holds_one(log, names);
    } else {
        right = s == WEFT_ERR_FILE && err.status == s && holds_one(err.text, names) &&
                strchr(err.text, '\n') == NULL && log[0] == '\0';
    }
    if (!right) {
        fail_msg("%s must %s: status %d, %s (%s)", file, must, (int)s, err.text, log);
    }
}

static void test_bad_files(void **state) {
    (void)state;
    json_t *expect = json_load_file(WEFT_GOLDEN "/gguf/bad/expect.json", 0, NULL);
    assert_int_equal(json_array_size(expect), 95);
    for (size_t i = 0; i < json_array_size(expect); i++) {
        const json_t *entry = json_array_get(expect, i);
        /* which pre-tokenisers are known is said by tok, and tested there */
        if (strncmp(json_string_value(json_object_get(entry, "file")), "pre_", 4) != 0) {
            check(entry);
        }
    }
    json_decref(expect);
}

int main(void) {
    if (access(WEFT_GOLDEN "/gguf/bad/expect.json", R_OK) != 0) {
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bad_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
