/* Gemma 4, text: Gemma 3's form with plain norms, scores that are not scaled, v normed too, wider heads
 * on full layers with a RoPE that turns only their first part; in some models fewer KV heads there, whose
 * keys' matrix makes the values; last layers that read the cache of the last layer of their kind before
 * them; an input of its own for every layer; experts beside the MLP. */
#include <math.h>
#include <stdio.h>

#include "model/arch.h"
#include "model/program.h"

enum { ROPE_FULL, ROPE_WINDOW };

static weft_status layer(model_rank *r, const model_step *s, int32_t i) {
    bool experts = r->w->desc->config.moe.n_expert > 0;
    weft_status st = program_gqa(r, s, i);
    if (st == WEFT_OK)
        st = experts ? program_moe_and_mlp(r, s, i) : program_mlp(r, s, i);
    return st == WEFT_OK && r->w->desc->config.ple > 0 ? program_ple(r, s, i) : st;
}

/* A folder: per_layer_config names what differs; without it full layers have members of their own. */
static void folder_heads(model_reader *r, model_layer *l, int32_t i, bool windowed, bool k_eq_v) {
    bool own = !windowed && !load_has(r->file, "per_layer_config");
    int32_t dim = read_int(r, "global_head_dim", NULL, 2, 1 << 20, 512),
            kv = read_kv_heads(r, i, "num_global_key_value_heads", l->n_head, l->n_kv_head);
    char key[64];
    snprintf(key, sizeof key, "per_layer_config.%d.head_dim", i);
    l->head_dim = read_int(r, key, NULL, 2, 1 << 20, own ? dim : l->head_dim);
    snprintf(key, sizeof key, "per_layer_config.%d.num_key_value_heads", i);
    l->n_kv_head = read_kv_heads(r, i, key, l->n_head, own && k_eq_v ? kv : l->n_kv_head);
}

/* The layer before `own` of the same kind; own layers come first. */
static int32_t source_of(const bool *windowed, int32_t i, int32_t n_own) {
    if (i < n_own)
        return i;
    int32_t from = n_own - 1;
    while (from > 0 && windowed[from] != windowed[i])
        from--;
    return from;
}

/* GGUF: values are as wide as keys, and RoPE's tables as heads (part of a head is said by rope_freqs). */
static void check_gguf_widths(model_reader *r) {
    int32_t full = r->status == WEFT_OK ? r->d->layer[0].head_dim : 0;
    int32_t windowed = read_int(r, NULL, "attention.key_length_swa", 2, 1 << 20, full);
    read_only_int(r, NULL, "attention.value_length_swa", windowed);
    read_only_int(r, NULL, "rope.dimension_count_swa", windowed);
    read_only_int(r, NULL, "rope.dimension_count", full);
}

/* The cache that layer i reads has heads as it has. */
static void check_shared(model_reader *r, int32_t i) {
    const model_layer *l = &r->d->layer[i], *from = &r->d->layer[l->kv_from];
    if (from->head_dim != l->head_dim)
        read_fail(r, "layer %d shares the cache of layer %d, whose heads are %d wide, not %d", i,
                  l->kv_from, from->head_dim, l->head_dim);
    else if (from->n_kv_head != l->n_kv_head)
        read_fail(r, "layer %d shares the cache of layer %d, which has %d KV heads, not %d", i,
                  l->kv_from, from->n_kv_head, l->n_kv_head);
}

static void read_layers(model_reader *r) {
    model_config *c = r->c;
    bool *windowed = read_take(r, (size_t)c->n_layer, sizeof *windowed);
    if (windowed != NULL && !read_windows(r, windowed))
        read_fail(r, "%s is missing: which layers have a window",
                  r->folder ? "layer_types" : "gemma4.attention.sliding_window_pattern");
    int32_t window =
        read_int(r, "sliding_window", "attention.sliding_window", 1, INT32_MAX, READ_MUST);
    int32_t shared = read_int(r, "num_kv_shared_layers", "attention.shared_kv_layers", 0,
                              r->status == WEFT_OK ? c->n_layer - 1 : 0, 0);
    bool k_eq_v = read_flag(r, "attention_k_eq_v", NULL, false);
    for (int32_t i = 0; r->status == WEFT_OK && i < c->n_layer; i++) {
        model_layer *l = &r->d->layer[i];
        if (r->folder)
            folder_heads(r, l, i, windowed[i], k_eq_v);
        else if (windowed[i]) /* the list of KV heads is read already */
            l->head_dim = read_int(r, NULL, "attention.key_length_swa", 2, 1 << 20, l->head_dim);
        l->value_dim = l->rope_dim = l->head_dim;
        read_product(r, "heads x their width", l->n_head, l->head_dim);
        l->window = windowed[i] ? window : 0;
        l->rope = windowed[i] ? ROPE_WINDOW : ROPE_FULL;
        l->scale = 1.0f;
        l->v_norm = true;
        l->kv_from = source_of(windowed, i, c->n_layer - shared);
        l->v_is_k = !windowed[i] && l->kv_from == i &&
                    (r->folder ? k_eq_v : !read_has(r, i, NULL, "attn_v.weight"));
        if (windowed[l->kv_from] != windowed[i])
            read_fail(r, "layer %d shares a cache, but no layer of its kind has one", i);
        else
            check_shared(r, i);
    }
}

/* Layers that share a cache may have an MLP twice as wide; GGUF lists the widths. */
static void read_mlp_widths(model_reader *r) {
    if (!read_flag(r, "use_double_wide_mlp", NULL, false))
        return;
    for (int32_t i = 0; r->status == WEFT_OK && i < r->c->n_layer; i++)
        if (r->d->layer[i].kv_from != i)
            r->d->layer[i].ffn = 2 * r->c->ffn;
}

/* GGUF says in a tensor which pairs turn, and has no other word about it. */
static void read_full_rope(model_reader *r, int32_t dim) {
    if (!read_has(r, -1, NULL, "rope_freqs.weight"))
        read_fail(r, "tensor rope_freqs.weight is missing: which pairs of full layers turn");
    read_rope(r, ROPE_FULL, dim, NULL);
}

/* The tables are as wide as the heads of their kind. */
static void read_ropes(model_reader *r) {
    int32_t dim[2] = {0, 0};
    r->c->rope[ROPE_FULL].truncate = r->c->rope[ROPE_WINDOW].truncate = true;
    for (int32_t i = 0; r->status == WEFT_OK && i < r->c->n_layer; i++) {
        const model_layer *l = &r->d->layer[i];
        if (dim[l->rope] != 0 && dim[l->rope] != l->rope_dim)
            read_fail(r, "layer %d has heads of %d, others of its kind of %d", i, l->rope_dim,
                      dim[l->rope]);
        dim[l->rope] = l->rope_dim;
    }
    for (int32_t k = 0; k < 2 && r->status == WEFT_OK; k++)
        if (dim[k] != 0 && r->folder)
            read_rope(r, k, dim[k], k == ROPE_FULL ? "full_attention" : "sliding_attention");
        else if (dim[k] != 0 && k == ROPE_FULL)
            read_full_rope(r, dim[k]);
        else if (dim[k] != 0)
            read_rope_base(r, k, dim[k], read_real(r, NULL, "rope.freq_base_swa", 1, 1e30, 10000));
}

/* Beside the dense MLP; a folder's switch is a member of its own. */
static void read_moe(model_reader *r) {
    model_moe *m = &r->c->moe;
    bool on = r->folder ? read_flag(r, "enable_moe_block", NULL, false)
                        : read_int(r, NULL, "expert_count", 0, 4096, 0) > 0;
    if (!on)
        return;
    m->n_expert = read_int(r, "num_experts", "expert_count", 1, 4096, READ_MUST);
    m->n_used = read_int(r, "top_k_experts", "expert_used_count", 1, m->n_expert, READ_MUST);
    m->ffn =
        read_int(r, "moe_intermediate_size", "expert_feed_forward_length", 1, 1 << 20, READ_MUST);
    read_product(r, "experts x their width", m->n_expert, 2 * (int64_t)m->ffn);
    read_product(r, "experts x width", m->n_expert, r->c->hidden);
    m->route = KERN_ROUTE_SOFTMAX;
    m->renorm = true;
    m->logit_scale = (float)(1 / sqrt(r->c->hidden));
    m->scale = 1.0f;
}

/* Both sources have stacks: [expert][2 ffn][hidden], the gate's rows first, and [expert][hidden][ffn]. */
static void read_expert_stacks(model_reader *r, int32_t i) {
    const model_moe *e = &r->c->moe;
    model_matrix *m = r->d->layer[i].m;
    int32_t hidden = r->c->hidden;
    char name[96];
    const load_tensor *both = read_tensor(
        r, read_name(r, i, "experts.gate_up_proj", "ffn_gate_up_exps.weight", name, sizeof name),
        hidden, (int64_t)e->n_expert * 2 * e->ffn, false);
    const load_tensor *down = read_tensor(
        r, read_name(r, i, "experts.down_proj", "ffn_down_exps.weight", name, sizeof name), e->ffn,
        (int64_t)e->n_expert * hidden, false);
    if (r->status != WEFT_OK)
        return;
    model_matrix gate = matrix_whole(both, e->ffn, hidden);
    gate.n_stack = e->n_expert, gate.stack_rows = 2 * e->ffn;
    m[MODEL_EXPERT_GATE] = m[MODEL_EXPERT_UP] = gate;
    m[MODEL_EXPERT_UP].row0 = e->ffn;
    m[MODEL_EXPERT_DOWN] = matrix_whole(down, hidden, e->ffn);
    m[MODEL_EXPERT_DOWN].n_stack = e->n_expert;
    m[MODEL_EXPERT_DOWN].stack_rows = hidden;
}

static void read_experts_of(model_reader *r, int32_t i) {
    int32_t n = r->c->moe.n_expert, hidden = r->c->hidden;
    read_matrix(r, i, MODEL_ROUTER, "router.proj.weight", "ffn_gate_inp.weight", n, hidden);
    read_expert_stacks(r, i);
    r->d->layer[i].m[MODEL_MLP_NORM] = r->d->layer[i].m[MODEL_FFN_NORM];
    read_norm(r, i, MODEL_FFN_NORM, "router.scale", "ffn_gate_inp.scale", hidden, false);
    read_vector(r, i, MODEL_EXPERT_SCALE, "router.per_expert_scale", "ffn_down_exps.scale", n);
    read_norm(r, i, MODEL_EXPERT_NORM, "pre_feedforward_layernorm_2.weight",
              "pre_ffw_norm_2.weight", hidden, false);
    read_norm(r, i, MODEL_EXPERT_POST, "post_feedforward_layernorm_2.weight",
              "post_ffw_norm_2.weight", hidden, false);
    read_norm(r, i, MODEL_MLP_POST, "post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight",
              hidden, false);
}

/* Tables and matrices of the layers' own inputs. */
static void read_ple(model_reader *r) {
    model_config *c = r->c;
    c->ple = read_int(r, "hidden_size_per_layer_input", "embedding_length_per_layer_input", 0,
                      1 << 16, 0);
    read_product(r, "layers x the width of their inputs", c->n_layer, c->ple);
    if (c->ple == 0 || r->status != WEFT_OK)
        return;
    int32_t all = c->n_layer * c->ple, vocab = c->n_vocab, hidden = c->hidden;
    r->d->ple_embed = matrix_whole(read_tensor(r,
                                               r->folder ? "model.embed_tokens_per_layer.weight"
                                                         : "per_layer_token_embd.weight",
                                               all, vocab, false),
                                   vocab, all);
    r->d->ple_project =
        matrix_whole(read_tensor(r,
                                 r->folder ? "model.per_layer_model_projection.weight"
                                           : "per_layer_model_proj.weight",
                                 hidden, all, false),
                     all, hidden);
    r->d->ple_norm = matrix_whole(read_tensor(r,
                                              r->folder ? "model.per_layer_projection_norm.weight"
                                                        : "per_layer_proj_norm.weight",
                                              c->ple, 1, true),
                                  c->ple, 1);
    for (int32_t i = 0; i < c->n_layer && r->status == WEFT_OK; i++) {
        read_matrix(r, i, MODEL_PLE_GATE, "per_layer_input_gate.weight", "inp_gate.weight", c->ple,
                    hidden);
        read_matrix(r, i, MODEL_PLE_OUT, "per_layer_projection.weight", "proj.weight", hidden,
                    c->ple);
        read_norm(r, i, MODEL_PLE_POST, "post_per_layer_input_norm.weight", "post_norm.weight",
                  hidden, false);
    }
}

/* Layers that share a cache may come with matrices for one of their own. */
static void leave_own_caches(model_reader *r) {
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++) {
        if (r->d->layer[i].kv_from == i)
            continue;
        read_leave(r, i, "self_attn.k_proj.weight", "attn_k.weight");
        read_leave(r, i, "self_attn.v_proj.weight", "attn_v.weight");
        read_leave(r, i, "self_attn.k_norm.weight", "attn_k_norm.weight");
    }
}

static void refuse_relatives(model_reader *r) {
    read_only_text(r, "hidden_activation", NULL, "gelu_pytorch_tanh");
    read_only_flag(r, "attention_bias", NULL, false);
    read_only_text(r, "use_bidirectional_attention", NULL, "vision"); /* text stays causal */
}

static void describe(model_reader *r) {
    read_sizes(r);
    refuse_relatives(r);
    check_gguf_widths(r);
    r->c->final_cap =
        (float)read_real(r, "final_logit_softcapping", "final_logit_softcapping", 0, 1e6, 0);
    r->c->glu.kind = KERN_GLU_GELU;
    r->c->embed_scale = sqrtf((float)r->c->hidden);
    read_layers(r);
    read_mlp_widths(r);
    read_ropes(r);
    read_ends(r, false);
    read_gqa(r, (read_gqa_form){.halves = true, .head_norms = true});
    leave_own_caches(r);
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++) {
        if (r->d->layer[i].ffn == 0) /* beside experts too */
            read_fail(r, "layer %d has no MLP: %s is missing", i,
                      r->folder ? "intermediate_size" : "gemma4.feed_forward_length");
        read_norm(r, i, MODEL_ATTN_POST, "post_attention_layernorm.weight",
                  "post_attention_norm.weight", r->c->hidden, false);
        read_norm(r, i, MODEL_FFN_POST, "post_feedforward_layernorm.weight", "post_ffw_norm.weight",
                  r->c->hidden, false);
        if (read_has(r, i, "layer_scalar", "layer_output_scale.weight"))
            r->d->layer[i].x_scale = read_scalar(r, i, "layer_scalar", "layer_output_scale.weight");
    }
    read_mlp(r, "pre_feedforward_layernorm.weight", "ffn_norm.weight", false);
    read_moe(r);
    for (int32_t i = 0; r->c->moe.n_expert > 0 && i < r->c->n_layer && r->status == WEFT_OK; i++)
        read_experts_of(r, i);
    read_ple(r);
}

const model_arch model_gemma4 = {
    .name = "gemma4", .model_type = "gemma4_text", .describe = describe, .layer = layer};
