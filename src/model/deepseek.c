/* DeepSeek V2 and V3: latent attention (MLA) and experts with some that every token goes to.
 *
 * The cache holds a latent and a rope part, which all heads share. The matrix that would make keys of
 * the latent is applied to the query instead, the one for values to the output: one formula for
 * prompts and for decoding (numerics N9).
 *
 *   q_h = (W_uk,h^T q_nope,h , rope(q_rope,h));  key = (latent, rope part);  value = latent
 *   head_h = W_uv,h (attention over latents) */
#include <math.h>

#include "base/log.h"
#include "model/arch.h"
#include "model/program.h"

static weft_status layer(model_rank *r, const model_step *s, int32_t i) {
    weft_status st = program_mla(r, s, i);
    if (st != WEFT_OK)
        return st;
    return r->w->desc->layer[i].ffn > 0 ? program_mlp(r, s, i) : program_moe(r, s, i);
}

/* Heads are cut into whole panels of any table. */
enum { HEAD_UNIT = 16 };

static void read_mla_sizes(model_reader *r) {
    model_config *c = r->c;
    model_mla *m = &c->mla;
    m->latent = read_int(r, "kv_lora_rank", "attention.kv_lora_rank", 1, 1 << 16, READ_MUST);
    m->q_latent = read_int(r, "q_lora_rank", "attention.q_lora_rank", 0, 1 << 16, 0);
    m->rope = read_int(r, "qk_rope_head_dim", "rope.dimension_count", 2, 1 << 16, READ_MUST);
    m->value = read_int(r, "v_head_dim", "attention.value_length_mla", 2, 1 << 16, READ_MUST);
    int32_t key = read_int(r, NULL, "attention.key_length_mla", 2, 1 << 16, 0);
    m->nope =
        r->folder ? read_int(r, "qk_nope_head_dim", NULL, 1, 1 << 16, READ_MUST) : key - m->rope;
    if (r->status == WEFT_OK && m->nope < 1)
        read_fail(r,
                  "attention.key_length_mla is %d, expected more than rope.dimension_count %d "
                  "(files without it are of an older converter)",
                  key, m->rope);
    if (m->latent % HEAD_UNIT != 0 || m->value % HEAD_UNIT != 0)
        read_fail(r, "latents of %d and values of %d: expected multiples of %d", m->latent,
                  m->value, HEAD_UNIT);
    int64_t n_head = r->status == WEFT_OK ? r->d->layer[0].n_head : 0;
    read_product(r, "heads x their widths", n_head, (int64_t)m->nope + m->rope);
    read_product(r, "heads x their widths", n_head, (int64_t)m->nope + m->value);
    read_product(r, "heads x latent", n_head, (int64_t)m->latent + m->rope);
    read_only_int(r, NULL, "attention.key_length", m->latent + m->rope);
    read_only_int(r, NULL, "attention.value_length", m->latent);
    for (int32_t i = 0; i < c->n_layer && r->status == WEFT_OK; i++) {
        model_layer *l = &r->d->layer[i];
        l->latent = true;
        l->n_kv_head = 1;
        l->head_dim = m->latent + m->rope;
        l->value_dim = m->latent;
        l->rope_dim = m->rope;
        l->scale = (float)(1.0 / sqrt((double)(m->nope + m->rope)) * c->rope[0].score);
    }
}

/* The rows of q apart: each head has nope rows, then rope rows. */
static void read_queries(model_reader *r, int32_t i) {
    const model_mla *m = &r->c->mla;
    int32_t n_head = r->d->layer[i].n_head, head = m->nope + m->rope, hidden = r->c->hidden;
    int32_t n_in = m->q_latent != 0 ? m->q_latent : hidden;
    if (m->q_latent != 0) {
        read_matrix(r, i, MODEL_Q_A, "self_attn.q_a_proj.weight", "attn_q_a.weight", m->q_latent,
                    hidden);
        read_vector(r, i, MODEL_Q_A_NORM, "self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight",
                    m->q_latent);
    }
    model_matrix *q = m->q_latent != 0
                          ? read_matrix(r, i, MODEL_Q_NOPE, "self_attn.q_b_proj.weight",
                                        "attn_q_b.weight", n_head * head, n_in)
                          : read_matrix(r, i, MODEL_Q_NOPE, "self_attn.q_proj.weight",
                                        "attn_q.weight", n_head * head, n_in);
    if (q == NULL)
        return;
    model_matrix rope = *q;
    q->n_out = n_head * m->nope, q->group = m->nope, q->group_stride = head;
    rope.n_out = n_head * m->rope, rope.group = m->rope, rope.group_stride = head,
    rope.at = m->nope;
    r->d->layer[i].m[MODEL_Q_ROPE] = rope;
}

/* A folder has one matrix [head][nope + value][latent]; GGUF has k_b [head][latent][nope], turned
 * already, and v_b [head][value][latent]. */
static void read_up(model_reader *r, int32_t i) {
    const model_mla *m = &r->c->mla;
    int32_t n = r->d->layer[i].n_head, latent = m->latent;
    char name[96];
    if (!r->folder) {
        const load_tensor *k =
            read_tensor(r, read_name(r, i, NULL, "attn_k_b.weight", name, sizeof name), m->nope,
                        (int64_t)n * latent, false);
        const load_tensor *v =
            read_tensor(r, read_name(r, i, NULL, "attn_v_b.weight", name, sizeof name), latent,
                        (int64_t)n * m->value, false);
        r->d->layer[i].m[MODEL_K_UP] = matrix_whole(k, n * latent, m->nope);
        r->d->layer[i].m[MODEL_V_UP] = matrix_whole(v, n * m->value, latent);
        return;
    }
    const load_tensor *t =
        read_tensor(r, read_name(r, i, "self_attn.kv_b_proj.weight", NULL, name, sizeof name),
                    latent, (int64_t)n * (m->nope + m->value), false);
    model_matrix v = matrix_whole(t, n * m->value, latent);
    v.group = m->value, v.group_stride = m->nope + m->value, v.at = m->nope;
    model_matrix k = matrix_whole(t, n * latent, m->nope);
    k.group = latent, k.group_stride = m->nope + m->value, k.transposed = true;
    r->d->layer[i].m[MODEL_K_UP] = k;
    r->d->layer[i].m[MODEL_V_UP] = v;
}

static void read_attention(model_reader *r, int32_t i) {
    const model_mla *m = &r->c->mla;
    int32_t hidden = r->c->hidden, n_head = r->d->layer[i].n_head;
    read_vector(r, i, MODEL_ATTN_NORM, "input_layernorm.weight", "attn_norm.weight", hidden);
    read_queries(r, i);
    read_matrix(r, i, MODEL_KV_A, "self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight",
                m->latent + m->rope, hidden);
    read_vector(r, i, MODEL_KV_A_NORM, "self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight",
                m->latent);
    read_up(r, i);
    read_matrix(r, i, MODEL_O, "self_attn.o_proj.weight", "attn_output.weight", hidden,
                n_head * m->value);
}

static void read_moe_sizes(model_reader *r, bool v3) {
    model_moe *m = &r->c->moe;
    m->n_expert = read_int(r, "n_routed_experts", "expert_count", 1, 4096, READ_MUST);
    m->n_used = read_int(r, "num_experts_per_tok", "expert_used_count", 1, m->n_expert, READ_MUST);
    m->ffn =
        read_int(r, "moe_intermediate_size", "expert_feed_forward_length", 1, 1 << 20, READ_MUST);
    m->shared_ffn = m->ffn * read_int(r, "n_shared_experts", "expert_shared_count", 0, 64, 0);
    static const char *const decided[] = {"routed_scaling_factor", "n_group", "topk_group",
                                          "norm_topk_prob"};
    for (size_t i = 0; v3 && i < sizeof decided / sizeof *decided; i++)
        read_member_must(r, decided[i]);
    m->logit_scale = 1.0f;
    m->scale = (float)read_real(r, "routed_scaling_factor", "expert_weights_scale", 1e-6, 1e6, 1);
    m->n_group = read_int(r, "n_group", "expert_group_count", 1, m->n_expert, 1);
    if (m->n_expert == 256 && m->n_group == 1 && !r->folder && r->status == WEFT_OK)
        log_warn(
            "%s: no expert_group_count: a token chooses among all experts, where the published "
            "models of 256 have it choose among the best groups",
            load_shown_name(r->file));
    m->n_group_used =
        read_int(r, "topk_group", "expert_group_used_count", 1, m->n_group, m->n_group);
    m->renorm = read_flag(r, "norm_topk_prob", "expert_weights_norm", false);
    enum { GATE_SOFTMAX = 1, GATE_SIGMOID = 2 };
    int32_t gate = read_int(r, NULL, "expert_gating_func", GATE_SOFTMAX, GATE_SIGMOID,
                            v3 ? GATE_SIGMOID : GATE_SOFTMAX);
    m->route = gate == GATE_SIGMOID ? KERN_ROUTE_SIGMOID : KERN_ROUTE_SOFTMAX;
    if (m->n_expert % m->n_group != 0)
        read_fail(r, "n_group %d does not divide the %d experts", m->n_group, m->n_expert);
    read_only_text(r, "scoring_func", NULL, v3 ? "sigmoid" : "softmax");
    /* greedy does not look at groups */
    if (v3)
        read_only_text(r, "topk_method", NULL, "noaux_tc");
    else if (read_text_is(r, "topk_method", NULL, "greedy"))
        m->n_group = m->n_group_used = 1;
    else
        read_only_text(r, "topk_method", NULL, "group_limited_greedy");
}

static void read_moe(model_reader *r, int32_t i, bool correction) {
    const model_moe *m = &r->c->moe;
    int32_t hidden = r->c->hidden;
    read_matrix(r, i, MODEL_ROUTER, "mlp.gate.weight", "ffn_gate_inp.weight", m->n_expert, hidden);
    if (correction)
        read_vector(r, i, MODEL_ROUTER_CORRECTION, "mlp.gate.e_score_correction_bias",
                    "exp_probs_b.bias", m->n_expert);
    read_experts(r, i, "mlp.experts.%d.gate_proj.weight", "mlp.experts.%d.up_proj.weight",
                 "mlp.experts.%d.down_proj.weight");
    if (m->shared_ffn == 0)
        return;
    read_matrix(r, i, MODEL_SHARED_GATE, "mlp.shared_experts.gate_proj.weight",
                "ffn_gate_shexp.weight", m->shared_ffn, hidden);
    read_matrix(r, i, MODEL_SHARED_UP, "mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight",
                m->shared_ffn, hidden);
    read_matrix(r, i, MODEL_SHARED_DOWN, "mlp.shared_experts.down_proj.weight",
                "ffn_down_shexp.weight", hidden, m->shared_ffn);
}

static void describe(model_reader *r, bool v3) {
    read_sizes_latent(r);
    read_only_text(r, "hidden_act", NULL, "silu");
    read_only_flag(r, "attention_bias", NULL, false);
    read_only_flag(r, "mlp_bias", NULL, false);
    read_only_flag(r, "rope_interleave", NULL, true);
    read_only_int(r, "moe_layer_freq", NULL, 1);
    read_moe_sizes(r, v3);
    r->n_nextn = read_int(r, "num_nextn_predict_layers", NULL, 0, 64, 0);
    r->c->rope[0].truncate = true;
    int32_t rope = read_int(r, "qk_rope_head_dim", "rope.dimension_count", 2, 1 << 16, READ_MUST);
    if (r->status == WEFT_OK)
        read_rope(r, 0, rope, NULL);
    read_mla_sizes(r);
    int32_t dense =
        read_int(r, "first_k_dense_replace", "leading_dense_block_count", 0, 1 << 20, 0);
    read_ends(r, false);
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++) {
        read_attention(r, i);
        if (i < dense)
            continue;
        r->d->layer[i].ffn = 0;
        read_moe(r, i, r->c->moe.route == KERN_ROUTE_SIGMOID);
    }
    read_mlp(r, "post_attention_layernorm.weight", "ffn_norm.weight", false);
}

/* GGUF has both under one name; its gating function tells them apart. */
static void describe_v2(model_reader *r) {
    describe(r, false);
}

static void describe_v3(model_reader *r) {
    describe(r, true);
}

const model_arch model_deepseek2 = {
    .name = "deepseek2", .model_type = "deepseek_v2", .describe = describe_v2, .layer = layer};
const model_arch model_deepseek3 = {
    .name = "deepseek3", .model_type = "deepseek_v3", .describe = describe_v3, .layer = layer};
