/* Whatever in a model's files would change the result and is not computed is refused by name: keys of
 * config.json and of GGUF, tensors that are missing, too many or misshapen. Every case is a golden
 * model with one change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "unit/model/golden_edit.h"

typedef struct folder_case {
    const char *model, *from, *to, *due; /* of config.json; due NULL: it opens */
} folder_case;

static void try_folder(const char *model, const folder_change *c, const char *due) {
    load_model *file = NULL;
    model_desc *d = NULL;
    weft_error err = {.text = ""};
    weft_status s = golden_open(model, c, &file, &d, &err);
    if (s == WEFT_OK) {
        model_desc_close(d);
        load_close(file);
    }
    bool named = due != NULL && s == WEFT_ERR_FILE && strstr(err.text, due) != NULL &&
                 strchr(err.text, '\n') == NULL;
    if (due == NULL ? s != WEFT_OK : !named)
        fail_msg("%s, %s: status %d, %s", model, due != NULL ? due : "opens", (int)s, err.text);
}

static void try_config(const folder_case *c, size_t n) {
    for (size_t i = 0; i < n; i++)
        try_folder(c[i].model, &(folder_change){.config_from = c[i].from, .config_to = c[i].to},
                   c[i].due);
}
#define TRY_CONFIG(cases) try_config(cases, sizeof cases / sizeof *cases)

/* A member more, in front of all others. */
#define MORE(model, member, due)                                                                   \
    { model, "{\n", "{\n" member ",\n", due }
#define DEFAULT_ROPE "\"rope_type\": \"default\""

static void test_rope(void **state) {
    (void)state;
    static const folder_case cases[] = {
        {"llama_gqa3", DEFAULT_ROPE, "\"rope_type\": \"dynamic\", \"factor\": 2.0",
         "rope_parameters.rope_type is dynamic"},
        {"llama_gqa3", DEFAULT_ROPE, "\"rope_type\": \"longrope\"", "rope_type is longrope"},
        {"llama_gqa3", DEFAULT_ROPE, "\"rope_type\": \"nonsense\"", "rope_type is nonsense"},
        {"llama_gqa3", DEFAULT_ROPE, "\"rope_type\": 3", "rope_parameters.rope_type is 3"},
        {"llama_gqa3", DEFAULT_ROPE, "\"type\": \"su\"", "rope_parameters.type is su"},
        {"llama_gqa3", DEFAULT_ROPE, DEFAULT_ROPE ", \"partial_rotary_factor\": 0.5",
         "rope_parameters.partial_rotary_factor is 0.5"},
        {"llama_gqa3", DEFAULT_ROPE, DEFAULT_ROPE ", \"mrope_section\": [8, 4, 4]",
         "rope_parameters.mrope_section"},
        {"llama_gqa3", DEFAULT_ROPE, "\"rope_type\": \"linear\", \"factor\": 4.0", NULL},
        {"llama_gqa3", DEFAULT_ROPE, "\"type\": \"linear\", \"factor\": 4.0", NULL},
        {"llama_gqa3", DEFAULT_ROPE, "\"rope_type\": \"linear\", \"factor\": 0", "factor is 0"},
        {"llama3_rope", "\"high_freq_factor\": 4.0", "\"high_freq_factor\": 1.0",
         "high_freq_factor 1"},
        {"gpt_oss", "\"rope_type\": \"yarn\"", "\"rope_type\": \"dynamic\"", "is dynamic"},
        MORE("llama_gqa3", "\"partial_rotary_factor\": 0.5", "partial_rotary_factor is 0.5"),
        {"gpt_oss", "\"rope_type\": \"yarn\"",
         "\"rope_type\": \"yarn\", \"partial_rotary_factor\": 0.5", "partial_rotary_factor is 0.5"},
        {"gpt_oss", "\"rope_type\": \"yarn\"", "\"rope_type\": \"yarn\", \"type\": \"yarn\"", NULL},
        {"llama3_rope", "\"rope_type\": \"llama3\"",
         "\"rope_type\": \"llama3\", \"type\": \"llama3\", "
         "\"partial_rotary_factor\": 1.0",
         NULL},
        MORE("llama_gqa3", "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}",
             "rope_scaling."),
        MORE("llama_gqa3", "\"rope_scaling\": null", NULL),
        MORE("qwen3", "\"rope_theta\": 1000000.0", "rope_theta is 1"),
    };
    TRY_CONFIG(cases);
}

/* Members that published models have and that change nothing. */
static void test_harmless(void **state) {
    (void)state;
    static const folder_case cases[] = {
        MORE("llama_gqa3", "\"is_llama_config\": true, \"rope_interleaved\": false", NULL),
        MORE("llama_gqa3", "\"transformers.js_config\": {\"kv_cache_dtype\": {\"q4\": \"f\"}}",
             NULL),
        MORE("llama_gqa3", "\"_attn_implementation_autoset\": true, \"torch_dtype\": \"float32\"",
             NULL),
        MORE("qwen2", "\"use_mrope\": false", NULL),
        MORE("deepseek_v2_lite", "\"aux_loss_alpha\": 0.001, \"seq_aux\": true, \"ep_size\": 1",
             NULL),
        MORE("deepseek_v2_lite",
             "\"auto_map\": {\"AutoModel\": \"a.B\"}, \"scoring_func\": \"softmax\"", NULL),
        MORE("gpt_oss", "\"experts_per_token\": 2, \"initial_context_length\": 128", NULL),
        MORE("gpt_oss", "\"experts_per_token\": 3", "experts_per_token is 3"),
        MORE("gemma3", "\"cache_implementation\": \"hybrid\"", NULL),
        MORE("gemma3", "\"sliding_window_pattern\": 6", NULL),
        MORE("mixtral", "\"router_jitter\": 0.0", NULL),
    };
    TRY_CONFIG(cases);
}

static void test_features(void **state) {
    (void)state;
    static const folder_case cases[] = {
        {"llama_gqa3", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"",
         "hidden_act is gelu"},
        {"gemma3", "\"gelu_pytorch_tanh\"", "\"gelu\"", "hidden_activation is gelu"},
        {"gpt_oss", "\"hidden_act\": \"silu\"", "\"hidden_act\": \"relu\"", "hidden_act is relu"},
        {"llama_gqa3", "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias"},
        {"llama_gqa3", "\"mlp_bias\": false", "\"mlp_bias\": true", "mlp_bias is true"},
        {"qwen3", "\"attention_bias\": false", "\"attention_bias\": true", "attention_bias"},
        {"gpt_oss", "\"attention_bias\": true", "\"attention_bias\": false", "attention_bias"},
        {"gemma3", "\"attn_logit_softcapping\": null", "\"attn_logit_softcapping\": 50.0",
         "attn_logit_softcapping is 50"},
        {"gemma3", "\"final_logit_softcapping\": null", "\"final_logit_softcapping\": 30.0", NULL},
        {"gemma3", "\"use_bidirectional_attention\": false",
         "\"use_bidirectional_attention\": true", "use_bidirectional_attention is true"},
        {"gemma4_kvshare", "\"use_bidirectional_attention\": null",
         "\"use_bidirectional_attention\": \"all\"", "use_bidirectional_attention is all"},
        {"gemma4_kvshare", "\"use_bidirectional_attention\": null",
         "\"use_bidirectional_attention\": \"vision\"", NULL},
        {"gemma4_kvshare", "\"attention_k_eq_v\": false", "\"attention_k_eq_v\": true",
         "layers.1.self_attn.v_proj.weight: weft does not compute with it"},
        {"gemma4_moe", "\"attention_k_eq_v\": true", "\"attention_k_eq_v\": false",
         "layers.0.self_attn.v_proj.weight is missing"},
        {"gemma4_kvshare", "\"enable_moe_block\": false", "\"enable_moe_block\": true",
         "num_experts is missing"},
        {"gemma4_moe", "\"enable_moe_block\": true", "\"enable_moe_block\": false",
         "moe_intermediate_size is 128"},
        {"gemma4_kvshare", "\"use_double_wide_mlp\": false", "\"use_double_wide_mlp\": true",
         "layers.4.mlp.gate_proj.weight has dimensions [96, 192], expected [96, 384]"},
        /* per_layer_config goes before what full layers have without it */
        MORE("gemma4_kvshare", "\"num_global_key_value_heads\": 1, \"global_head_dim\": 16", NULL),
        {"gemma4_kvshare",
         "\"per_layer_config\": {\n    \"1\": {\n      \"head_dim\": 64\n    },\n    \"3\": {\n    "
         "  "
         "\"head_dim\": 64\n    },\n    \"5\": {\n      \"head_dim\": 64\n    }\n  }",
         "\"global_head_dim\": 64, \"num_global_key_value_heads\": 1",
         NULL}, /* no attention_k_eq_v */
        MORE("gemma4_kvshare", "\"num_global_key_value_heads\": 3",
             "num_global_key_value_heads 3 does not divide num_attention_heads 4"),
        {"gemma4_kvshare", "\"head_dim\": 64", "\"head_dim\": 64, \"num_key_value_heads\": 1",
         "layers.1.self_attn.k_proj.weight has dimensions [96, 128], expected [96, 64]"},
        {"gemma4_kvshare", "\"head_dim\": 64", "\"head_dim\": 64, \"sliding_window\": 8",
         "per_layer_config.1.sliding_window"},
        {"gemma4_moe",
         "\"per_layer_config\": {\"0\": {\"head_dim\": 64, \"num_key_value_heads\": 1}, \"2\": "
         "{\"head_dim\": 64, \"num_key_value_heads\": 1}}, ",
         "", "layers.0.self_attn.q_proj.weight has dimensions [96, 256], expected [96, 2048]"},
        MORE("llama_gqa3", "\"attn_logit_softcapping\": 50.0", "attn_logit_softcapping is 50"),
        MORE("llama_gqa3", "\"final_logit_softcapping\": 30.0", "final_logit_softcapping is 30"),
        MORE("llama_gqa3", "\"logits_scaling\": 8.0", "logits_scaling is 8"),
        MORE("llama_gqa3", "\"embedding_multiplier\": 12.0", "embedding_multiplier is 12"),
        MORE("llama_gqa3", "\"use_qk_norm\": true", "use_qk_norm is true"),
        MORE("qwen3_moe", "\"use_qk_norm\": true", NULL),
        MORE("qwen3_moe", "\"use_qk_norm\": false", "use_qk_norm is false"),
        MORE("llama_gqa3",
             "\"max_length\": 4096, \"temperature\": 0.6, \"id2label\": {\"0\": \"A\"}", NULL),
        MORE("llama_gqa3", "\"use_qk_norm\": false", NULL),
        MORE("llama_gqa3", "\"alibi\": true", "alibi is true"),
        MORE("qwen3", "\"quantization_config\": {\"quant_method\": \"fp8\"}",
             "has a quantization_config"),
        MORE("gpt_oss", "\"quantization_config\": {\"quant_method\": \"fp8\"}",
             "(quant_method fp8)"),
        MORE("gpt_oss", "\"quantization_config\": {}", "expected float weights or mxfp4"),
        MORE("qwen3", "\"quantization_config\": {\"quant_method\": \"mxfp4\"}",
             "expected float weights, or a GGUF file"),
        MORE("gpt_oss", "\"quantization_config\": {\"quant_method\": \"mxfp4\"}",
             "gate_up_proj_blocks is missing"),
        {"qwen3", "\"qwen3\"", "\"qwen3_next\"", "model_type is qwen3_next"},
    };
    TRY_CONFIG(cases);
}

/* Sizes that a kernel cannot cut, members that have no default, features told by a flag's absence. */
static void test_what_decides(void **state) {
    (void)state;
    static const folder_case cases[] = {
        {"deepseek_v3", "\"v_head_dim\": 32", "\"v_head_dim\": 8",
         "latents of 32 and values of 8: expected multiples of 16"},
        {"deepseek_v2_lite", "\"kv_lora_rank\": 32", "\"kv_lora_rank\": 24",
         "latents of 24 and values of 32"},
        {"deepseek_v3", "\"routed_scaling_factor\": 2.5", "\"unused\": 0",
         "routed_scaling_factor is missing"},
        {"deepseek_v3", "\"norm_topk_prob\": true", "\"unused\": 0", "norm_topk_prob is missing"},
        {"mixtral", "\"rope_theta\": 1000000.0", "\"partial_rotary_factor\": 0",
         "rope_theta is missing"},
        {"llama_gqa3", "\"rope_type\": \"default\"", "\"factor\": 8.0",
         "RoPE is scaled by 8, but nothing says how"},
        {"llama_gqa3", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4097",
         "num_hidden_layers is 4097"},
        MORE("qwen3", "\"is_causal\": false", "is_causal is false"),
        MORE("qwen3", "\"is_causal\": true", "is_causal is true"),
        MORE("llama_gqa3", "\"sliding_window\": 16", "sliding_window is 16"),
        MORE("llama_gqa3", "\"num_nextn_predict_layers\": 1", "num_nextn_predict_layers is 1"),
        MORE("llama_gqa3", "\"unknown\": \"null\"", "unknown is null"),
    };
    TRY_CONFIG(cases);
}

static void test_windows(void **state) {
    (void)state;
    static const folder_case cases[] = {
        {"qwen2", "\"use_sliding_window\": false", "\"use_sliding_window\": true",
         "use_sliding_window is true"},
        {"qwen3", "\"sliding_window\": null", "\"sliding_window\": 4096", NULL},
        {"qwen3", "\"full_attention\"", "\"sliding_attention\"",
         "layer_types[0] is sliding_attention"},
        {"qwen3", "\"full_attention\"", "\"linear_attention\"",
         "layer_types[0] is linear_attention"},
        {"gemma3", "\"full_attention\"", "\"chunked_attention\"",
         "layer_types[1] is chunked_attention"},
        {"gemma3", "\"sliding_attention\",", "", "layer_types has 3 entries"},
        {"gemma3", "\"sliding_window\": 24", "\"sliding_window\": 0", "sliding_window is 0"},
        {"gemma3", "\"sliding_window\": 24", "\"sliding_window\": null", "sliding_window"},
        {"mistral_swa", "\"sliding_window\": 24", "\"sliding_window\": -1", "sliding_window is -1"},
        {"mistral_swa", "\"sliding_window\": 24", "\"sliding_window\": null", NULL},
        {"gemma4_kvshare", "\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\": 6",
         "num_kv_shared_layers is 6"},
        {"gemma4_kvshare", "\"num_kv_shared_layers\": 2", "\"num_kv_shared_layers\": 5",
         "layer 1 shares a cache"},
        {"gemma4_kvshare", "\"5\": {", "\"5\": { \"num_key_value_heads\": 1,",
         "layer 5 shares the cache of layer 3, which has 2 KV heads, not 1"},
        {"gemma4_kvshare", "\"head_dim\": 64", "\"head_dim\": 32", "layer 3 has heads of 64"},
        /* a layer that per_layer_config leaves out is as config.json says */
        {"gemma4_kvshare", "\"1\": {\n      \"head_dim\": 64\n    },", "",
         "layer 3 has heads of 64, others of its kind of 32"},
    };
    TRY_CONFIG(cases);
}

static void test_experts(void **state) {
    (void)state;
    static const folder_case cases[] = {
        {"qwen3_moe", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0]", "mlp_only_layers"},
        {"qwen3_moe", "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2",
         "decoder_sparse_step is 2"},
        {"qwen3_moe", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 9",
         "num_experts_per_tok is 9"},
        {"qwen3_moe", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 0",
         "num_experts_per_tok is 0"},
        {"qwen3_moe", "\"num_local_experts\": 8", "\"num_local_experts\": 7",
         "mlp.gate.weight has dimensions [96, 8]"},
        {"qwen3_moe", "\"moe_intermediate_size\": 64", "\"moe_intermediate_size\": 32",
         "gate_proj.weight has dimensions [96, 64], expected [96, 32]"},
        MORE("qwen3_moe", "\"shared_expert_intermediate_size\": 64",
             "shared_expert_intermediate_size is 64"),
        {"deepseek_v2_lite", "\"topk_method\": \"greedy\"", "\"topk_method\": \"noaux_tc\"",
         "topk_method is noaux_tc"},
        MORE("deepseek_v2_lite", "\"scoring_func\": \"sigmoid\"", "scoring_func is sigmoid"),
        MORE("deepseek_v3", "\"scoring_func\": \"sigmoid\"", NULL),
        MORE("deepseek_v3", "\"scoring_func\": \"softmax\"", "scoring_func is softmax"),
        MORE("deepseek_v3", "\"topk_method\": \"greedy\"", "topk_method is greedy"),
        MORE("deepseek_v2_lite", "\"moe_layer_freq\": 2", "moe_layer_freq is 2"),
        MORE("deepseek_v2_lite", "\"moe_layer_freq\": 1", NULL),
        {"deepseek_v3", "\"n_group\": 4", "\"n_group\": 3", "n_group 3 does not divide"},
        {"deepseek_v3", "\"topk_group\": 2", "\"topk_group\": 5", "topk_group is 5"},
        {"deepseek_v2_lite", "\"q_lora_rank\": null", "\"q_lora_rank\": 0", NULL},
        {"deepseek_v2_lite", "  \"q_lora_rank\": null,\n", "", NULL},
        {"deepseek_v2_lite", "\"q_lora_rank\": null", "\"q_lora_rank\": 48",
         "self_attn.q_a_proj.weight is missing"},
        {"deepseek_v2_lite", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 0",
         "layers.0.mlp.gate.weight is missing"},
        {"deepseek_v2_lite", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 3",
         "layers.1.mlp.gate_proj.weight is missing"},
        {"deepseek_v3", "\"rope_interleave\": true", "\"rope_interleave\": false",
         "rope_interleave is false"},
        {"gemma4_moe", "\"top_k_experts\": 3", "\"top_k_experts\": 7", "top_k_experts is 7"},
        {"gemma4_moe", "\"num_experts\": 6", "\"num_experts\": 5",
         "router.proj.weight has dimensions [96, 6], expected [96, 5]"},
        {"gemma4_moe", "\"moe_intermediate_size\": 128", "\"moe_intermediate_size\": 64",
         "experts.gate_up_proj has dimensions [96, 256, 6], expected [96, 768]"},
        {"gemma4_moe", "\"moe_intermediate_size\": 128, ", "", "moe_intermediate_size is missing"},
        {"gpt_oss", "\"swiglu_limit\": 7.0", "\"swiglu_limit\": -7.0", "swiglu_limit is -7"},
    };
    TRY_CONFIG(cases);
}

static void test_sizes(void **state) {
    (void)state;
    static const folder_case cases[] = {
        {"qwen3", "\"vocab_size\": 320", "\"vocab_size\": 321",
         "embed_tokens.weight has dimensions [96, 320], expected [96, 321]"},
        {"qwen3", "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3",
         "num_key_value_heads 3 does not divide num_attention_heads 4"},
        {"qwen3", "\"head_dim\": 32", "\"head_dim\": 31", "head_dim is 31, expected an even"},
        {"qwen3", "\"head_dim\": 32", "\"head_dim\": 16", "q_proj.weight has dimensions"},
        {"qwen3", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 1000", "num_hidden_layers"},
        {"llama_gqa3", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4",
         "model.layers.3.input_layernorm.weight is missing"},
        {"llama_gqa3", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2",
         "tensor model.layers.2."},
        /* layers behind the last are those of multi-token prediction, when config.json counts them */
        {"deepseek_v3", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2", NULL},
        {"deepseek_v2_lite", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2",
         "tensor model.layers.2."},
        {"qwen3", "\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0", "rms_norm_eps is 0"},
        {"qwen3", "\"hidden_size\": 96", "\"hidden_size\": null", "hidden_size is missing"},
        {"mixtral", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", NULL},
        {"qwen3", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false",
         "lm_head.weight is missing"},
    };
    TRY_CONFIG(cases);
}

static void test_folder_tensors(void **state) {
    (void)state;
    static const struct {
        const char *model, *from, *to, *due;
    } cases[] = {
        {"qwen3", "layers.1.self_attn.q_norm.weight", "layers.1.self_attn.q_narm.weight",
         "tensor model.layers.1.self_attn.q_norm.weight is missing"},
        {"gemma4_kvshare", "layers.5.layer_scalar", "layers.5.layer_scolar",
         "tensor model.layers.5.layer_scolar"},
        {"gpt_oss", "layers.2.self_attn.sinks", "layers.2.self_attn.sonks",
         "tensor model.layers.2.self_attn.sinks is missing"},
        {"deepseek_v3", "layers.1.mlp.gate.e_score_correction_bias",
         "layers.1.mlp.gate.e_score_correction_bios",
         "tensor model.layers.1.mlp.gate.e_score_correction_bias is missing"},
        {"mixtral", "layers.2.block_sparse_moe.experts.3.w2.weight",
         "layers.2.block_sparse_moe.experts.4.w2.weight",
         "tensor model.layers.2.block_sparse_moe.experts.3.w2.weight is missing"},
        {"llama_gqa3", "k_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[48,144]",
         "k_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[144,48]",
         "self_attn.k_proj.weight has dimensions [48, 144], expected [144, 48]"},
        {"llama_gqa3", "k_proj.weight\":{\"dtype\":\"BF16\"", "k_proj.weight\":{\"dtype\":\"I16\" ",
         "self_attn.k_proj.weight has type I16"},
        {"llama_gqa3", "k_proj.weight\":{\"dtype\":\"BF16\"", "k_proj.weight\":{\"dtype\":\"F16\" ",
         NULL},
        {"mixtral", "experts.2.w1.weight\":{\"dtype\":\"BF16\"",
         "experts.2.w1.weight\":{\"dtype\":\"F16\" ", "has type F16, expected BF16 as expert 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        try_folder(cases[i].model,
                   &(folder_change){.header_from = cases[i].from, .header_to = cases[i].to},
                   cases[i].due);
}

/* ---- GGUF ---- */

static void try_twin(const char *model, const edit *e, const char *due) {
    load_model *file = NULL;
    model_desc *d = NULL;
    uint8_t *bytes = NULL;
    weft_error err = {.text = ""};
    weft_status s = twin_open(model, e, &file, &d, &bytes, &err);
    if (s == WEFT_OK) {
        model_desc_close(d);
        load_close(file);
        free(bytes);
    }
    if (due == NULL ? s != WEFT_OK : s != WEFT_ERR_FILE || strstr(err.text, due) == NULL)
        fail_msg("%s.gguf, %s: status %d, %s", model, due != NULL ? due : "opens", (int)s,
                 err.text);
}

static void test_gguf_numbers(void **state) {
    (void)state;
    enum { U32 = 4, F32 = 6, BOOL = 7 };
    static const struct {
        const char *model, *key;
        uint32_t type;
        double value;
        const char *due;
    } cases[] = {
        {"qwen3", "qwen3.attn_logit_softcapping", F32, 50, "attn_logit_softcapping is 50"},
        {"qwen3", "qwen3.attention.sliding_window", U32, 32, "sliding_window is 32"},
        {"qwen3", "qwen3.attention.max_alibi_bias", F32, 8, "max_alibi_bias is 8"},
        {"qwen3", "qwen3.attention.causal", BOOL, 0, "attention.causal is false"},
        {"qwen3", "qwen3.expert_count", U32, 8, "expert_count is 8"},
        {"gemma3", "gemma3.attn_logit_softcapping", F32, 50, "attn_logit_softcapping is 50"},
        {"gemma3", "gemma3.final_logit_softcapping", F32, 30, NULL},
        {"gemma3", "gemma3.attention.sliding_window_pattern", U32, 0, "pattern is 0"},
        {"gemma4_kvshare", "gemma4.attention.value_length_swa", U32, 64, "value_length_swa is 64"},
        {"gemma4_kvshare", "gemma4.rope.dimension_count", U32, 16, "dimension_count is 16"},
        {"gemma4_kvshare", "gemma4.rope.dimension_count_swa", U32, 8, "dimension_count_swa is 8"},
        {"gemma4_kvshare", "gemma4.expert_count", U32, 4, "expert_used_count is missing"},
        {"gemma4_moe", "gemma4.expert_count", U32, 0, "expert_used_count is 3"},
        {"gemma4_moe", "gemma4.expert_gating_func", U32, 2, "expert_gating_func is 2"},
        {"gemma4_moe", "gemma4.attention.head_count_kv", U32, 2,
         "attn_k.weight has dimensions [96, 64], expected [96, 128]"},
        {"gpt_oss", "gpt-oss.rope.scaling.yarn_attn_factor", F32, 2, "yarn_attn_factor is 2"},
        {"gpt_oss", "gpt-oss.expert_gating_func", U32, 2, "expert_gating_func is 2"},
        {"mixtral", "llama.expert_used_count", U32, 5, "expert_used_count is 5"},
        {"mixtral", "llama.expert_used_count", U32, 0, "expert_used_count is 0"},
        {"mixtral", "llama.expert_count", U32, 3, "ffn_gate_inp.weight has dimensions [96, 4]"},
        {"mixtral", "llama.expert_shared_count", U32, 1, "expert_shared_count is 1"},
        {"deepseek_v3", "deepseek2.attention.key_length", U32, 192, "key_length is 192"},
        {"deepseek_v3", "deepseek2.attention.value_length", U32, 128, "value_length is 128"},
        {"deepseek_v3", "deepseek2.attention.key_length_mla", U32, 16, "key_length_mla is 16"},
        {"deepseek_v3", "deepseek2.expert_gating_func", U32, 4, "expert_gating_func is 4"},
        {"deepseek_v3", "deepseek2.nextn_predict_layers", U32, 1, "nextn_predict_layers is 1"},
        {"deepseek_v3", "deepseek2.attention.temperature_length", U32, 1, "temperature_length"},
        {"deepseek_v2_lite", "deepseek2.expert_gating_func", U32, 2, "exp_probs_b.bias is missing"},
        {"deepseek_v2_lite", "deepseek2.expert_shared_count", U32, 1,
         "ffn_gate_shexp.weight has dimensions [96, 128], expected [96, 64]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t whole = (uint32_t)cases[i].value;
        float real = (float)cases[i].value;
        uint8_t flag = cases[i].value != 0;
        edit e = {.drop_key = cases[i].key, .key = cases[i].key, .key_type = cases[i].type};
        e.value = cases[i].type == U32   ? (const void *)&whole
                  : cases[i].type == F32 ? (const void *)&real
                                         : &flag;
        e.value_bytes = cases[i].type == BOOL ? 1 : 4;
        try_twin(cases[i].model, &e, cases[i].due);
    }
}

static void test_gguf_texts(void **state) {
    (void)state;
    static const char *const types[] = {"longrope", "dynamic", "su", ""};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        buffer b = {0};
        buffer_string(&b, types[i]);
        edit e = {.drop_key = "gpt-oss.rope.scaling.type",
                  .key = "gpt-oss.rope.scaling.type",
                  .key_type = 8,
                  .value = b.at,
                  .value_bytes = b.n};
        try_twin("gpt_oss", &e, "gpt-oss.rope.scaling.type is ");
        free(b.at);
    }
}

/* One number for each layer, or one for all. */
static void test_gguf_lists(void **state) {
    (void)state;
    static const struct {
        int32_t n, kv[4];
        const char *due;
    } cases[] = {{3, {1, 2, 1}, NULL},
                 {2, {1, 2}, "head_count_kv has 2 entries, expected block_count 3"},
                 {4, {1, 2, 1, 1}, "head_count_kv has 4 entries, expected block_count 3"},
                 {3, {1, 3, 1}, "head_count_kv 3 does not divide gemma4.attention.head_count 4"},
                 {3, {1, 0, 1}, "head_count_kv"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t list[3 + 4] = {5, (uint32_t)cases[i].n, 0};
        memcpy(list + 3, cases[i].kv, sizeof cases[i].kv);
        edit e = {.drop_key = "gemma4.attention.head_count_kv",
                  .key = "gemma4.attention.head_count_kv",
                  .key_type = 9,
                  .value = list,
                  .value_bytes = 12 + 4 * (size_t)cases[i].n};
        try_twin("gemma4_moe", &e, cases[i].due);
    }
}

static void test_gguf_missing(void **state) {
    (void)state;
    static const struct {
        const char *model, *key, *tensor, *due;
    } cases[] = {
        {"deepseek_v3", "deepseek2.attention.key_length_mla", NULL, "of an older converter"},
        {"deepseek_v3", "deepseek2.attention.kv_lora_rank", NULL, "kv_lora_rank is missing"},
        {"gemma4_kvshare", "gemma4.attention.sliding_window_pattern", NULL,
         "sliding_window_pattern"},
        {"qwen3_moe", "qwen3moe.expert_feed_forward_length", NULL, "expert_feed_forward_length"},
        {"gemma4_kvshare", NULL, "rope_freqs.weight", "rope_freqs.weight is missing"},
        {"qwen3", NULL, "blk.1.attn_q_norm.weight", "blk.1.attn_q_norm.weight is missing"},
        {"qwen2", NULL, "blk.1.attn_k.bias", "blk.1.attn_k.bias is missing"},
        {"gpt_oss", NULL, "blk.1.attn_sinks.weight", "blk.1.attn_sinks.weight is missing"},
        {"gpt_oss", NULL, "blk.1.ffn_gate_exps.bias", "blk.1.ffn_gate_exps.bias is missing"},
        {"mixtral", NULL, "blk.1.ffn_up_exps.weight", "blk.1.ffn_up_exps.weight is missing"},
        {"deepseek_v3", NULL, "blk.1.attn_k_b.weight", "blk.1.attn_k_b.weight is missing"},
        {"deepseek_v3", NULL, "blk.1.exp_probs_b.bias", "blk.1.exp_probs_b.bias is missing"},
        {"gemma3", NULL, "blk.1.post_ffw_norm.weight", "blk.1.post_ffw_norm.weight is missing"},
        {"gemma4_kvshare", NULL, "blk.1.inp_gate.weight", "blk.1.inp_gate.weight is missing"},
        {"gemma4_kvshare", NULL, "blk.3.attn_k.weight", "blk.3.attn_k.weight is missing"},
        /* only full layers make values of the keys' matrix */
        {"gemma4_moe", NULL, "blk.1.attn_v.weight", "blk.1.attn_v.weight is missing"},
        {"gemma4_moe", NULL, "blk.1.ffn_gate_inp.scale", "blk.1.ffn_gate_inp.scale is missing"},
        {"gemma4_moe", NULL, "blk.1.ffn_down_exps.scale", "blk.1.ffn_down_exps.scale is missing"},
        {"gemma4_moe", NULL, "blk.1.pre_ffw_norm_2.weight", "pre_ffw_norm_2.weight is missing"},
        {"gemma4_moe", NULL, "blk.1.post_ffw_norm_1.weight", "post_ffw_norm_1.weight is missing"},
        {"gemma4_moe", NULL, "blk.1.post_ffw_norm_2.weight", "post_ffw_norm_2.weight is missing"},
        {"gemma4_moe", NULL, "blk.1.ffn_gate_up_exps.weight", "gate_up_exps.weight is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        try_twin(cases[i].model, &(edit){.drop_key = cases[i].key, .drop_tensor = cases[i].tensor},
                 cases[i].due);
}

static void test_gguf_surplus(void **state) {
    (void)state;
    static const struct {
        const char *model, *tensor, *due;
    } cases[] = {
        {"qwen3", "blk.1.attn_q.bias", "blk.1.attn_q.bias"},
        {"qwen3", "blk.1.attn_sinks.weight", "blk.1.attn_sinks.weight"},
        {"qwen3", "blk.1.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight"},
        {"qwen3", "blk.1.layer_output_scale.weight", "blk.1.layer_output_scale.weight"},
        {"qwen3", "rope_factors_long.weight", "rope_factors_long.weight"},
        {"llama3_rope", "blk.1.attn_q_norm.weight", "blk.1.attn_q_norm.weight"},
        {"gpt_oss", "blk.1.attn_q_norm.weight", "blk.1.attn_q_norm.weight"},
        {"deepseek_v2_lite", "blk.1.exp_probs_b.bias", "blk.1.exp_probs_b.bias"},
        {"deepseek_v3", "blk.1.attn_kv_b.weight", "blk.1.attn_kv_b.weight"},
        {"deepseek_v3", "blk.2.nextn.eh_proj.weight", "blk.2.nextn.eh_proj.weight"},
        {"deepseek_v3", "blk.3.attn_norm.weight", "block_count is 3"},
        {"gemma3", "blk.1.attn_q.scale", "blk.1.attn_q.scale"},
        /* a layer that shares a cache may bring matrices for one of its own */
        {"gemma4_kvshare", "blk.4.attn_k.weight", NULL},
        {"gemma4_kvshare", "blk.5.attn_k_norm.weight", NULL},
        {"gemma4_moe", "blk.0.attn_v.weight", "blk.0.attn_v.weight has dimensions [16]"},
        {"gemma4_moe", "blk.0.ffn_gate_up_exps.scale", "blk.0.ffn_gate_up_exps.scale"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        try_twin(cases[i].model,
                 &(edit){.tensor = cases[i].tensor, .tensor_n = 16, .tensor_bytes = 64},
                 cases[i].due);
}

static void test_gguf_types(void **state) {
    (void)state;
    enum { F16 = 1, Q4_K = 12, IQ2_XS = 17 };
    static const struct {
        const char *model, *tensor;
        uint32_t type;
        const char *due;
    } cases[] = {
        {"qwen3", "blk.0.attn_q.weight", F16, NULL},
        {"qwen3", "blk.0.attn_q.weight", Q4_K, "blk.0.attn_q.weight"}, /* rows of 96, not 256 n */
        {"qwen3_tp8", "blk.0.attn_q.weight", IQ2_XS, "has type IQ2_XS: IQ2_XS is not supported"},
        {"gpt_oss", "blk.0.attn_q.bias", F16, "blk.0.attn_q.bias has type F16, expected F32"},
        {"deepseek_v3", "blk.0.attn_kv_a_norm.weight", F16, "attn_kv_a_norm.weight has type F16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        try_twin(cases[i].model, &(edit){.retype = cases[i].tensor, .retype_to = cases[i].type},
                 cases[i].due);
}

int main(void) {
    size_t n;
    uint8_t *twin = twin_read("qwen3", &n);
    if (twin == NULL)
        return 77;
    free(twin);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rope),         cmocka_unit_test(test_harmless),
        cmocka_unit_test(test_features),     cmocka_unit_test(test_what_decides),
        cmocka_unit_test(test_windows),      cmocka_unit_test(test_experts),
        cmocka_unit_test(test_sizes),        cmocka_unit_test(test_folder_tensors),
        cmocka_unit_test(test_gguf_numbers), cmocka_unit_test(test_gguf_texts),
        cmocka_unit_test(test_gguf_lists),   cmocka_unit_test(test_gguf_missing),
        cmocka_unit_test(test_gguf_surplus), cmocka_unit_test(test_gguf_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
