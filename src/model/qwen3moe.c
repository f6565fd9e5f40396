/* Qwen3-MoE: Qwen3's attention; experts in place of the MLP, chosen by a softmax over all of them. */
#include "model/arch.h"
#include "model/program.h"

static weft_status layer(model_rank *r, const model_step *s, int32_t i) {
    weft_status st = program_gqa(r, s, i);
    if (st != WEFT_OK)
        return st;
    return r->w->desc->layer[i].ffn > 0 ? program_mlp(r, s, i) : program_moe(r, s, i);
}

static void read_router(model_reader *r) {
    model_moe *m = &r->c->moe;
    m->n_expert = read_int(
        r, r->folder && load_has(r->file, "num_experts") ? "num_experts" : "num_local_experts",
        "expert_count", 1, 4096, READ_MUST);
    m->n_used = read_int(r, "num_experts_per_tok", "expert_used_count", 1, m->n_expert, READ_MUST);
    m->ffn =
        read_int(r, "moe_intermediate_size", "expert_feed_forward_length", 1, 1 << 20, READ_MUST);
    m->renorm = read_flag(r, "norm_topk_prob", NULL, !r->folder); /* GGUF: the architecture's own */
    m->route = KERN_ROUTE_SOFTMAX;
    m->logit_scale = m->scale = 1.0f;
    read_only_int(r, "decoder_sparse_step", NULL, 1);
    if (r->folder && load_array_length(r->file, "mlp_only_layers") > 0)
        r->status = load_refuse(r->file, "mlp_only_layers", "an empty list", r->err);
}

static void describe(model_reader *r) {
    read_sizes(r);
    read_only_text(r, "hidden_act", NULL, "silu");
    read_only_flag(r, "attention_bias", NULL, false);
    read_only_flag(r, "use_qk_norm", NULL, true);
    read_unused_window(r);
    read_router(r);
    if (r->status != WEFT_OK)
        return;
    r->c->rope[0].truncate = true;
    read_rope(r, 0, r->d->layer[0].rope_dim, NULL);
    read_ends(r, false);
    read_gqa(r, (read_gqa_form){.halves = true, .head_norms = true});
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++) {
        r->d->layer[i].ffn = 0;
        read_matrix(r, i, MODEL_ROUTER, "mlp.gate.weight", "ffn_gate_inp.weight",
                    r->c->moe.n_expert, r->c->hidden);
        read_experts(r, i, "mlp.experts.%d.gate_proj.weight", "mlp.experts.%d.up_proj.weight",
                     "mlp.experts.%d.down_proj.weight");
    }
    read_mlp(r, "post_attention_layernorm.weight", "ffn_norm.weight", false);
}

const model_arch model_qwen3moe = {
    .name = "qwen3moe", .model_type = "qwen3_moe", .describe = describe, .layer = layer};
