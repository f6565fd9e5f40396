/* The three outputs of `weft plan`. Each writes all of a plan. */
#ifndef WEFT_CLI_PLAN_H
#define WEFT_CLI_PLAN_H

#include <jansson.h>
#include <stdio.h>

#include "engine/explain.h"

/* The digit of a rank in bars and page lines: 0-9, a-z, A-Z, @, #. */
char plan_digit(int32_t rank);
/* "prompt 100" or "decode 64" */
void plan_request_name(const explain_request *r, char *out, size_t cap);

void plan_print_text(FILE *f, const explain *e, const char *model, int32_t width, bool color);
json_t *plan_make_json(const explain *e, const char *model); /* NULL without memory */
void plan_print_svg(FILE *f, const explain *e, const char *model);

#endif
