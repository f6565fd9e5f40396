/* Qwen2 and 2.5: llama with biases on q, k and v. */
#include "model/arch.h"
#include "model/program.h"

static weft_status layer(model_rank *r, const model_step *s, int32_t i) {
    weft_status st = program_gqa(r, s, i);
    return st == WEFT_OK ? program_mlp(r, s, i) : st;
}

static void describe(model_reader *r) {
    read_sizes(r);
    read_only_text(r, "hidden_act", NULL, "silu");
    read_unused_window(r);
    if (r->status != WEFT_OK)
        return;
    r->c->rope[0].truncate = true;
    read_rope(r, 0, r->d->layer[0].rope_dim, NULL);
    read_ends(r, false);
    read_gqa(r, (read_gqa_form){.halves = true, .qkv_bias = true});
    read_mlp(r, "post_attention_layernorm.weight", "ffn_norm.weight", false);
}

const model_arch model_qwen2 = {
    .name = "qwen2", .model_type = "qwen2", .describe = describe, .layer = layer};
