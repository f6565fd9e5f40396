/* Any bytes as a model file: load_open_memory refuses them, or everything that the model then offers
 * can be read. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "load/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Touches bytes so that a sanitizer sees them. */
static volatile uint8_t seen;

static void touch(const void *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        seen = (uint8_t)(seen ^ ((const uint8_t *)data)[i]);
    }
}

static void read_model(const load_model *m) {
    const load_vocab *v = load_get_vocab(m);
    for (int32_t i = 0; i < load_tensor_count(m); i++) {
        const load_tensor *t = load_tensor_at(m, i);
        touch(t->name, strlen(t->name));
        touch(t->type_name, strlen(t->type_name));
        touch(t->data, t->bytes);
        if (load_find_tensor(m, t->name) != t) {
            abort();
        }
    }
    for (int32_t i = 0; i < load_key_count(m); i++) {
        char text[40];
        int32_t n;
        touch(load_key_at(m, i), strlen(load_key_at(m, i)));
        load_value_text(m, i, text, sizeof text);
        touch(text, strlen(text));
        load_get_int(m, load_key_at(m, i), true, 0, 9, &n, NULL);
        load_array_int(m, load_key_at(m, i), load_array_length(m, load_key_at(m, i)) - 1, 0, 9, &n,
                       NULL);
    }
    for (int32_t i = 0; i < v->n_token; i++) {
        touch(v->token[i].data, v->token[i].bytes);
        touch(&v->type[i], 1);
    }
    for (int32_t i = 0; i < v->n_merge; i++) {
        touch(v->merge[i].data, v->merge[i].bytes);
    }
    touch(v->chat_template.data, v->chat_template.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    log_set_level(LOG_QUIET);
    void *copy = NULL; /* aligned as load_open_memory asks for, and exactly n bytes */
    if (posix_memalign(&copy, 8, n + (n == 0)) != 0) {
        return 0;
    }
    memcpy(copy, data, n);
    load_model *m = NULL;
    weft_error err = {.text = ""};
    weft_status s = load_open_memory(copy, n, "fuzz", &m, &err);
    if (s == WEFT_OK) {
        read_model(m);
        load_close(m);
    } else if (err.status != s || err.text[0] == '\0' || err.offset > (int64_t)n) {
        abort(); /* a refusal without a reason */
    }
    free(copy);
    return 0;
}
