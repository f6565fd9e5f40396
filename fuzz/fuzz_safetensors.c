/* Any bytes as a safetensors file: st_read refuses them, or the tensors cover the data exactly and
 * can be read. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "load/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Touches bytes so that a sanitizer sees them. */
static volatile uint8_t seen;

static void touch(const void *data, size_t n) {
    for (size_t i = 0; i < n; i++) {
        seen = (uint8_t)(seen ^ ((const uint8_t *)data)[i]);
    }
}

static void read_tensors(const uint8_t *bytes, size_t n_bytes, const st_tensor *tensor, int32_t n) {
    uint64_t header, at = 0;
    memcpy(&header, bytes, sizeof header);
    for (int32_t i = 0; i < n; i++) {
        const st_tensor *t = &tensor[i];
        touch(t->name.data, t->name.bytes + 1);
        touch(t->dtype, strlen(t->dtype));
        touch(bytes + t->offset, (size_t)(t->end - t->begin));
        if (t->begin != at || t->offset != (int64_t)(sizeof header + header + at)) {
            abort();
        }
        at = t->end;
    }
    if (sizeof header + header + at != n_bytes) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    void *copy = NULL; /* aligned as a mapping is, and exactly n bytes */
    if (posix_memalign(&copy, 8, n + (n == 0)) != 0) {
        return 0;
    }
    memcpy(copy, data, n);
    load_arena arena = {0};
    st_tensor *tensor;
    int32_t n_tensor;
    weft_error err = {.text = ""};
    weft_status s = st_read(copy, n, &arena, &tensor, &n_tensor, &err);
    if (s == WEFT_OK) {
        read_tensors(copy, n, tensor, n_tensor);
    } else if (err.status != s || err.text[0] == '\0' || err.offset > (int64_t)n) {
        abort(); /* a refusal without a reason */
    }
    load_arena_free(&arena);
    free(copy);
    return 0;
}
