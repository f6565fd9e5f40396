#include "cli/json.h"

#include <stdlib.h>

#include "cli/cli.h"
#include "tok/tok.h"

json_t *cli_json_text(const char *bytes, size_t n) {
    char *text = malloc(3 * (n + 3) + 5);
    if (!text) {
        return NULL;
    }
    tok_utf8 s = {{0}, 0};
    size_t made = tok_utf8_push(&s, bytes, n, text);
    made += tok_utf8_end(&s, text + made);
    json_t *out = json_stringn(text, made);
    free(text);
    return out;
}

int cli_json_print(json_t *value) {
    if (!value) {
        return cli_fail_text(WEFT_ERR_MEMORY, "no memory for the JSON text");
    }
    int rc = json_dumpf(value, stdout, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(value);
    if (rc != 0 || putchar('\n') == EOF) {
        return cli_fail_text(WEFT_ERR_IO, "cannot write to standard output");
    }
    return 0;
}
