/* weft eval: the values of its options, and its kinds. */
#ifndef WEFT_CLI_EVAL_H
#define WEFT_CLI_EVAL_H

#include "cli/cli.h"
#include "cli/common.h"

typedef struct eval_values {
    cli_model_values model;
    weft_engine_params engine;
    const char *reference;
    float tolerance;
    int32_t window;
    bool json;
} eval_values;

/* Each returns an exit code. */
int eval_golden(const eval_values *v, weft_model *model);
int eval_ppl_reference(const eval_values *v, weft_model *model);
int eval_ppl_file(const eval_values *v, weft_model *model, const char *path);

#endif
