#include "cli/common.h"

#include <float.h>

#include "base/trace.h"
#include "engine/setup.h"
#include "topo/topo.h"

const option cli_model_options[] = {
    {.names = "-m --model",
     .type = OPTION_STRING,
     .at = offsetof(cli_model_values, path),
     .metavar = "MODEL",
     .help = CLI_MODEL_HELP,
     .required = true},
    {.names = NULL},
};

#define AT(field) .at = offsetof(weft_engine_params, field)

const option cli_topology_options[] = {
    {.names = "--tp -tp --tensor-parallel-size",
     .type = OPTION_INT,
     AT(tp),
     .metavar = "N",
     .help = "ranks that split the heads and the width of the layers",
     .min = 1,
     .max = TOPO_MAX_WORLD},
    {.names = "--pcp -pcp --prefill-context-parallel-size",
     .type = OPTION_INT,
     AT(pcp),
     .metavar = "N",
     .help = "ranks that split the tokens of a step; there are tp x pcp ranks",
     .min = 1,
     .max = TOPO_MAX_WORLD},
    {.names = "--dcp -dcp --decode-context-parallel-size",
     .type = OPTION_INT,
     AT(dcp),
     .metavar = "N",
     .help = "ranks over which each cache is spread; adds no ranks",
     .min = 1,
     .max = TOPO_MAX_WORLD},
    {.names = NULL},
};

const option cli_engine_options[] = {
    {.names = "--threads",
     .type = OPTION_INT,
     AT(n_thread),
     .metavar = "N",
     .help = "threads of all ranks together, each rank has at least one",
     .min = 0,
     .max = ENGINE_MAX_THREADS,
     .zero = "the cores this process may use"},
    {.names = "--isa",
     .type = OPTION_STRING,
     AT(isa),
     .metavar = "NAME",
     .help = "instruction set of the kernels: auto, scalar, avx2, avx512, avx512vnni; all give the "
             "same bytes",
     .choices = "auto scalar avx2 avx512 avx512vnni",
     .zero = "WEFT_ISA, else auto"},
    {.names = "--max-num-seqs",
     .type = OPTION_COUNT,
     AT(max_num_seqs),
     .metavar = "N",
     .help = "requests in one step at most",
     .min = 1,
     .max = ENGINE_MAX_SEQS},
    {.names = "--max-num-batched-tokens",
     .type = OPTION_COUNT,
     AT(max_num_batched_tokens),
     .metavar = "N",
     .help = "tokens in one step at most; longer prompts are computed in pieces",
     .min = 1,
     .max = ENGINE_MAX_STEP_TOKENS},
    {.names = "--max-model-len",
     .type = OPTION_COUNT,
     AT(max_model_len),
     .metavar = "N",
     .help = "prompt and answer of one request at most, in tokens",
     .min = 0,
     .max = ENGINE_MAX_MODEL_LEN,
     .zero = "the model's, at most 8192"},
    {.names = "--kv-cache-dtype",
     .type = OPTION_CHOICE,
     AT(kv_dtype),
     .help = "type of the cached keys and values",
     .choices = "f16 f32 bf16"},
    {.names = "--kv-cache-memory",
     .type = OPTION_SIZE,
     AT(kv_bytes),
     .metavar = "SIZE",
     .help = "memory for the caches of all ranks together",
     .zero = "at most a quarter of the free memory"},
    {.names = "--kv-pages",
     .type = OPTION_COUNT,
     AT(kv_pages),
     .metavar = "N",
     .help =
         "cache pages of 16 tokens on each rank, of the layers that see the whole context (or most "
         "of it); layers with a smaller window have fewer",
     .min = 0,
     .max = ENGINE_MAX_KV_PAGES,
     .zero = "what --max-num-seqs full requests need, within the memory"},
    {.names = "--cp-exchange",
     .type = OPTION_CHOICE,
     AT(exchange),
     .help = "what travels between ranks for attention: queries, keys and values, or per request "
             "what is less",
     .choices = "auto q kv"},
    {.names = "--cp-min-split",
     .type = OPTION_COUNT,
     AT(cp_min_split),
     .metavar = "N",
     .help = "prompts with fewer new tokens stay on one rank",
     .min = 1,
     .max = ENGINE_MAX_STEP_TOKENS},
    {.names = "--expert-parallel",
     .type = OPTION_FLAG,
     AT(expert_parallel),
     .help = "whole experts on the tp x pcp ranks, tokens are sent to them; else each expert is "
             "split over tp; the same bytes"},
    {.names = "--no-prefix-cache",
     .type = OPTION_FLAG,
     AT(no_prefix_cache),
     .help = "computes every context from its start, also where one began alike before"},
    {.names = NULL},
};

const option cli_trace_options[] = {
    {.names = "--trace",
     .type = OPTION_STRING,
     AT(trace_path),
     .metavar = "FILE",
     .help = "writes what each thread of each rank did and waited for, by step, layer and phase; "
             "ui.perfetto.dev opens it",
     .zero = "none"},
    {.names = "--trace-spans",
     .type = OPTION_COUNT,
     AT(trace_spans),
     .metavar = "N",
     .help = "spans that a thread keeps, 40 bytes each; what comes after them is counted and lost",
     .min = 1,
     .max = TRACE_SPANS_MAX,
     .needs = "--trace"},
    {.names = NULL},
};
#undef AT

#define AT(field) .at = offsetof(cli_generation, field)

const option cli_generation_options[] = {
    {.names = "-n --max-tokens",
     .type = OPTION_COUNT,
     AT(max_tokens),
     .metavar = "N",
     .help = "tokens of the answer at most",
     .min = 1,
     .max = INT32_MAX},
    {.names = "--temperature",
     .type = OPTION_FLOAT,
     AT(sampling.temperature),
     .metavar = "T",
     .help = "divides the logits before sampling; 0 takes the most likely token",
     .min = 0,
     .max = 100},
    {.names = "--top-k",
     .type = OPTION_INT,
     AT(sampling.top_k),
     .metavar = "N",
     .help = "samples among the N most likely tokens",
     .min = -1,
     .max = INT32_MAX,
     .zero = "off",
     .needs = "--temperature"},
    {.names = "--top-p",
     .type = OPTION_FLOAT,
     AT(sampling.top_p),
     .metavar = "P",
     .help = "samples among the most likely tokens that have P of the probability together",
     .above_min = true,
     .max = 1,
     .needs = "--temperature"},
    {.names = "--min-p",
     .type = OPTION_FLOAT,
     AT(sampling.min_p),
     .metavar = "P",
     .help = "leaves out tokens with less than P times the probability of the most likely one",
     .min = 0,
     .max = 1,
     .zero = "off",
     .needs = "--temperature"},
    {.names = "--repetition-penalty",
     .type = OPTION_FLOAT,
     AT(sampling.repetition_penalty),
     .metavar = "X",
     .help = "makes tokens of prompt and answer less likely; 1 is off",
     .above_min = true,
     .max = FLT_MAX},
    {.names = "--presence-penalty",
     .type = OPTION_FLOAT,
     AT(sampling.presence_penalty),
     .metavar = "X",
     .help = "taken off the logits of tokens that stand in the answer",
     .min = -2,
     .max = 2,
     .zero = "off"},
    {.names = "--frequency-penalty",
     .type = OPTION_FLOAT,
     AT(sampling.frequency_penalty),
     .metavar = "X",
     .help = "the same, times how often they stand there",
     .min = -2,
     .max = 2,
     .zero = "off"},
    {.names = "--seed",
     .type = OPTION_U64,
     AT(sampling.seed),
     .metavar = "N",
     .help = "of the sampling noise; the same seed gives the same answer on every topology",
     .needs = "--temperature"},
    {.names = "--stop",
     .type = OPTION_LIST,
     AT(stop),
     .metavar = "TEXT",
     .help = "the answer ends before this text"},
    {.names = "--ignore-eos",
     .type = OPTION_FLAG,
     AT(ignore_eos),
     .help = "goes on after the model's end token"},
    {.names = NULL},
};
#undef AT

void cli_generation_default(cli_generation *g) {
    weft_request r;
    weft_request_default(&r);
    *g = (cli_generation){.sampling = r.sampling, .max_tokens = r.max_tokens};
    g->ignore_eos = r.ignore_eos;
}

void cli_generation_fill(const cli_generation *g, weft_request *out) {
    weft_request_default(out);
    out->sampling = g->sampling;
    out->max_tokens = g->max_tokens;
    out->ignore_eos = g->ignore_eos;
    out->stop = g->stop.item;
    out->n_stop = g->stop.n;
}
