/* GPT-OSS: biases everywhere, a sink for every head, windows on every other layer, experts with a
 * clamped gate that are chosen by the softmax of the best alone. */
#include "model/arch.h"
#include "model/program.h"

static weft_status layer(model_rank *r, const model_step *s, int32_t i) {
    weft_status st = program_gqa(r, s, i);
    return st == WEFT_OK ? program_moe(r, s, i) : st;
}

static void read_layers(model_reader *r) {
    model_config *c = r->c;
    bool *windowed = read_take(r, (size_t)c->n_layer, sizeof *windowed);
    for (int32_t i = 0; windowed && i < c->n_layer; i++)
        windowed[i] = i % 2 == 0; /* where the source does not say */
    if (windowed)
        read_windows(r, windowed);
    int32_t window =
        read_int(r, "sliding_window", "attention.sliding_window", 1, INT32_MAX, READ_MUST);
    for (int32_t i = 0; r->status == WEFT_OK && i < c->n_layer; i++) {
        r->d->layer[i].window = windowed[i] ? window : 0;
        r->d->layer[i].ffn = 0;
        read_vector(r, i, MODEL_SINKS, "self_attn.sinks", "attn_sinks.weight",
                    r->d->layer[i].n_head);
    }
}

static void read_moe(model_reader *r) {
    model_config *c = r->c;
    c->moe = (model_moe){.route = KERN_ROUTE_CHOSEN, .logit_scale = 1.0f, .scale = 1.0f};
    c->moe.n_expert = read_int(r, "num_local_experts", "expert_count", 1, 4096, READ_MUST);
    c->moe.n_used =
        read_int(r, "num_experts_per_tok", "expert_used_count", 1, c->moe.n_expert, READ_MUST);
    read_only_int(r, "experts_per_token", NULL, c->moe.n_used); /* the same under another name */
    c->moe.ffn = read_int(r, NULL, "expert_feed_forward_length", 1, 1 << 20, c->ffn);
    read_product(r, "experts x their width", c->moe.n_expert, 2 * (int64_t)c->moe.ffn);
    read_product(r, "experts x width", c->moe.n_expert, c->hidden);
    c->glu = (kern_glu_rule){.kind = KERN_GLU_CLAMPED,
                             .alpha = (float)read_real(r, "swiglu_alpha", NULL, 0, 100, 1.702),
                             .limit = (float)read_real(r, "swiglu_limit", NULL, 0, 1e6, 7)};
}

static const char gate_up_name[] = "mlp.experts.gate_up_proj",
                  down_name[] = "mlp.experts.down_proj";

/* Where the rows of gate, up and down lie in m[].t: of every expert, and those of gate and up in
 * turn. */
static void place_experts(model_reader *r, model_matrix both, model_matrix down, model_matrix *m) {
    const model_moe *e = &r->c->moe;
    both.n_out = both.group = e->ffn;
    both.n_in = r->c->hidden;
    both.step = 2;
    both.n_stack = e->n_expert;
    m[MODEL_EXPERT_GATE] = m[MODEL_EXPERT_UP] = both;
    m[MODEL_EXPERT_UP].at = 1;
    down.n_out = down.group = r->c->hidden;
    down.n_in = e->ffn;
    down.step = 1;
    down.n_stack = e->n_expert;
    m[MODEL_EXPERT_DOWN] = down;
}

/* Floats lie column by column: [expert][hidden][2 ffn], row o of the gate is column 2 o; and
 * [expert][ffn][hidden]. */
static void float_experts(model_reader *r, int32_t i) {
    const model_moe *e = &r->c->moe;
    int32_t hidden = r->c->hidden;
    char name[96];
    model_matrix both = {.transposed = true, .stack_rows = hidden};
    model_matrix down = {.transposed = true, .stack_rows = e->ffn};
    both.t = read_tensor(r, read_name(r, i, gate_up_name, NULL, name, sizeof name), 2 * e->ffn,
                         (int64_t)e->n_expert * hidden, false);
    down.t = read_tensor(r, read_name(r, i, down_name, NULL, name, sizeof name), hidden,
                         (int64_t)e->n_expert * e->ffn, false);
    if (r->status == WEFT_OK)
        place_experts(r, both, down, r->d->layer[i].m);
}

/* MXFP4 lies row by row: [expert][2 ffn][hidden], row o of the gate is row 2 o; and
 * [expert][hidden][ffn]. */
static void coded_experts(model_reader *r, int32_t i) {
    const model_moe *e = &r->c->moe;
    int32_t hidden = r->c->hidden;
    char name[96];
    model_matrix both = read_mxfp4(r, read_name(r, i, gate_up_name, NULL, name, sizeof name),
                                   hidden, (int64_t)e->n_expert * 2 * e->ffn);
    model_matrix down = read_mxfp4(r, read_name(r, i, down_name, NULL, name, sizeof name), e->ffn,
                                   (int64_t)e->n_expert * hidden);
    both.stack_rows = 2 * e->ffn;
    down.stack_rows = hidden;
    if (r->status == WEFT_OK)
        place_experts(r, both, down, r->d->layer[i].m);
}

/* Biases of gate and up in turn. */
static void read_folder_biases(model_reader *r, int32_t i) {
    const model_moe *e = &r->c->moe;
    int32_t ffn = e->ffn;
    char name[96];
    const load_tensor *both_bias =
        read_tensor(r, read_name(r, i, "mlp.experts.gate_up_proj_bias", NULL, name, sizeof name),
                    2 * ffn, e->n_expert, true);
    if (r->status != WEFT_OK)
        return;
    model_matrix *m = r->d->layer[i].m;
    model_matrix bias = {.t = both_bias,
                         .n_out = e->n_expert * ffn,
                         .n_in = 1,
                         .group = ffn,
                         .group_stride = 2 * ffn,
                         .step = 2,
                         .n_stack = 1};
    m[MODEL_EXPERT_GATE_BIAS] = m[MODEL_EXPERT_UP_BIAS] = bias;
    m[MODEL_EXPERT_UP_BIAS].at = 1;
}

static void read_bias_table(model_reader *r, int32_t i, model_role role, const char *folder,
                            const char *gguf, int32_t n) {
    char name[96];
    int32_t n_expert = r->c->moe.n_expert;
    const load_tensor *t =
        read_tensor(r, read_name(r, i, folder, gguf, name, sizeof name), n, n_expert, true);
    if (r->status == WEFT_OK)
        r->d->layer[i].m[role] = matrix_whole(t, n_expert * n, 1);
}

static void read_experts_of(model_reader *r, int32_t i) {
    const model_moe *e = &r->c->moe;
    read_matrix(r, i, MODEL_ROUTER, "mlp.router.weight", "ffn_gate_inp.weight", e->n_expert,
                r->c->hidden);
    read_vector(r, i, MODEL_ROUTER_BIAS, "mlp.router.bias", "ffn_gate_inp.bias", e->n_expert);
    if (r->folder) {
        if (r->coded)
            coded_experts(r, i);
        else
            float_experts(r, i);
        read_folder_biases(r, i);
    } else {
        read_experts(r, i, NULL, NULL, NULL);
        read_bias_table(r, i, MODEL_EXPERT_GATE_BIAS, NULL, "ffn_gate_exps.bias", e->ffn);
        read_bias_table(r, i, MODEL_EXPERT_UP_BIAS, NULL, "ffn_up_exps.bias", e->ffn);
    }
    read_bias_table(r, i, MODEL_EXPERT_DOWN_BIAS, "mlp.experts.down_proj_bias",
                    "ffn_down_exps.bias", r->c->hidden);
}

static void describe(model_reader *r) {
    read_sizes(r);
    read_only_text(r, "hidden_act", NULL, "silu");
    read_only_flag(r, "attention_bias", NULL, true);
    read_moe(r);
    read_layers(r);
    if (r->status != WEFT_OK)
        return;
    r->c->rope[0].truncate = r->folder; /* GGUF cannot say it, the model was made without */
    read_rope(r, 0, r->d->layer[0].rope_dim, NULL);
    read_ends(r, false);
    read_gqa(r, (read_gqa_form){.halves = true, .qkv_bias = true, .o_bias = true});
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++)
        read_experts_of(r, i);
    read_mlp(r, "post_attention_layernorm.weight", "post_attention_norm.weight", false);
}

const model_arch model_gpt_oss = {.name = "gpt-oss",
                                  .model_type = "gpt_oss",
                                  .quant_method = "mxfp4",
                                  .describe = describe,
                                  .layer = layer};
