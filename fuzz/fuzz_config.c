/* Any bytes as config.json: they are refused, or every key answers every question with a value or a
 * reason. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "load/json.h"
#include "load/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(weft_status s, const weft_error *err) {
    if (s != WEFT_OK && (s != WEFT_ERR_FILE || err->text[0] == '\0')) {
        abort(); /* a refusal without a reason */
    }
}

static void ask(const load_model *m, const char *key) {
    weft_error err = {.text = ""};
    int32_t i = 0;
    double r;
    bool flag;
    load_string text;
    weft_status s = load_get_int(m, key, true, -5, 5, &i, &err);
    check(s, &err);
    if (i < -5 || i > 5 || !load_has(m, key)) {
        abort();
    }
    check(load_get_real(m, key, true, 0, 1, &r, &err), &err);
    check(load_get_flag(m, key, true, &flag, &err), &err);
    check(load_get_text(m, key, true, &text, &err), &err);
    for (int32_t k = -1; k <= load_array_length(m, key); k++) {
        check(load_array_int(m, key, k, 0, 5, &i, &err), &err);
        check(load_array_text(m, key, k, &text, &err), &err);
    }
    check(load_refuse(m, key, "nothing", &err), &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    load_model *m = calloc(1, sizeof *m);
    json_t *root = NULL;
    weft_error err = {.text = ""};
    if (m == NULL) {
        return 0;
    }
    weft_status s = json_read(data, n, "it", 0, &root, &err);
    m->meta = &meta_json;
    s = s == WEFT_OK ? load_read_paths(m, root, &err) : s;
    check(s, &err);
    for (int32_t i = 0; s == WEFT_OK && i < load_key_count(m); i++) {
        char text[40];
        double r;
        ask(m, load_key_at(m, i));
        load_value_text(m, i, text, 4 + (size_t)i % 36);
        load_value_number(m, i, &r);
        if (!load_key_is_read(m, i)) {
            abort();
        }
    }
    load_close(m);
    return 0;
}
