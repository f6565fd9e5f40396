/* Qwen3, dense: llama with a norm on every head of q and k. The worked example of docs/models.md. */
#include "model/arch.h"
#include "model/program.h"

static weft_status layer(model_rank *r, const model_step *s, int32_t i) {
    weft_status st = program_gqa(r, s, i);
    return st == WEFT_OK ? program_mlp(r, s, i) : st;
}

static void describe(model_reader *r) {
    read_sizes(r);
    read_only_text(r, "hidden_act", NULL, "silu");
    read_only_flag(r, "attention_bias", NULL, false);
    read_only_flag(r, "use_qk_norm", NULL, true);
    read_unused_window(r);
    if (r->status != WEFT_OK)
        return;
    r->c->rope[0].truncate = true;
    read_rope(r, 0, r->d->layer[0].rope_dim, NULL);
    read_ends(r, false);
    read_gqa(r, (read_gqa_form){.halves = true, .head_norms = true});
    read_mlp(r, "post_attention_layernorm.weight", "ffn_norm.weight", false);
}

const model_arch model_qwen3 = {
    .name = "qwen3", .model_type = "qwen3", .describe = describe, .layer = layer};
