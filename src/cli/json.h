/* JSON that commands write to stdout. */
#ifndef WEFT_CLI_JSON_H
#define WEFT_CLI_JSON_H

#include <jansson.h>
#include <stddef.h>

/* A JSON string of any bytes: what is not UTF-8 becomes U+FFFD. NULL without memory. */
json_t *cli_json_text(const char *bytes, size_t n);
/* Prints the value on one line and gives it up. NULL (no memory while it was built) is an error;
 * returns an exit code. */
int cli_json_print(json_t *value);

#endif
