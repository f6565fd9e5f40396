/* Llama 1 to 3.x, Mistral, Mixtral: GQA and a gated MLP, RMSNorm before each half.
 *
 *   x += W_o attention(norm(x)) ; x += W_down (silu(W_gate a) * W_up a), a = norm(x)
 *
 * Mistral has a window on every layer; Mixtral has experts in place of the MLP. In GGUF all three are
 * "llama", with RoPE's pairs side by side already. */
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
    m->n_used = read_int(r, "num_experts_per_tok", "expert_used_count", 1, m->n_expert, READ_MUST);
    m->ffn = read_int(r, NULL, "expert_feed_forward_length", 1, 1 << 20, r->c->ffn);
    m->route = KERN_ROUTE_SOFTMAX;
    m->renorm = true;
    m->logit_scale = m->scale = 1.0f;
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++) {
        r->d->layer[i].ffn = 0;
        read_matrix(r, i, MODEL_ROUTER, "block_sparse_moe.gate.weight", "ffn_gate_inp.weight",
                    m->n_expert, r->c->hidden);
        read_experts(r, i, "block_sparse_moe.experts.%d.w1.weight",
                     "block_sparse_moe.experts.%d.w3.weight",
                     "block_sparse_moe.experts.%d.w2.weight");
    }
}

static void read_common(model_reader *r) {
    read_sizes(r);
    read_only_text(r, "hidden_act", NULL, "silu");
    read_only_flag(r, "mlp_bias", NULL, false);
    read_only_flag(r, "attention_bias", NULL, false);
    bool plain = r->d->arch == &model_llama; /* a plain llama folder has no window */
    int32_t window =
        read_int(r, plain ? NULL : "sliding_window", "attention.sliding_window", 0, INT32_MAX, 0);
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++)
        r->d->layer[i].window = window;
    if (r->status == WEFT_OK)
        read_rope(r, 0, r->d->layer[0].rope_dim, NULL);
    read_ends(r, false);
    read_gqa(r, (read_gqa_form){.halves = r->folder});
}

static void describe(model_reader *r) {
    r->c->rope[0].truncate = true;
    read_common(r);
    r->c->moe.n_expert = read_int(r, "num_local_experts", "expert_count", 0, 4096, 0);
    if (r->c->moe.n_expert > 0)
        read_router(r);
    read_mlp(r, "post_attention_layernorm.weight", "ffn_norm.weight", false);
}

/* Llama 1 and 2 say only what differs from these. */
static const model_default defaults[] = {
    {"rope_theta", 10000}, {"rms_norm_eps", 1e-6}, {"max_position_embeddings", 2048}, {NULL, 0}};

const model_arch model_llama = {.name = "llama",
                                .model_type = "llama",
                                .defaults = defaults,
                                .describe = describe,
                                .layer = layer};
const model_arch model_mistral = {
    .name = "mistral", .model_type = "mistral", .describe = describe, .layer = layer};
const model_arch model_mixtral = {
    .name = "mixtral", .model_type = "mixtral", .describe = describe, .layer = layer};
