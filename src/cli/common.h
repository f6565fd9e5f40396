/* Option tables that several commands share, each over one struct. */
#ifndef WEFT_CLI_COMMON_H
#define WEFT_CLI_COMMON_H

#include "base/options.h"

/* Over cli_model_values. */
typedef struct cli_model_values {
    const char *path;
} cli_model_values;
extern const option cli_model_options[];
#define CLI_MODEL_HELP "the model: a .gguf file, or a folder in Hugging Face layout"

/* Over weft_engine_params; defaults: weft_engine_params_default. Topology is apart because commands
 * that take a list of topologies leave it out. */
extern const option cli_topology_options[], cli_engine_options[];
/* Of the commands that run one engine. */
extern const option cli_trace_options[];

/* Over cli_generation. */
typedef struct cli_generation {
    weft_sampling sampling;
    int32_t max_tokens;
    bool ignore_eos;
    option_list stop;
} cli_generation;
extern const option cli_generation_options[];
void cli_generation_default(cli_generation *g); /* from weft_request_default */
/* Everything of a request but its prompt; borrows from *g. */
void cli_generation_fill(const cli_generation *g, weft_request *out);

#endif
