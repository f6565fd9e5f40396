/* Gemma 3, text: windows on most layers, with a RoPE of their own; norms before and after each half,
 * stored less one; q and k normed per head; GELU; embeddings scaled by sqrt(width). */
#include <math.h>

#include "model/arch.h"
#include "model/program.h"

enum { ROPE_FULL, ROPE_WINDOW };

static weft_status layer(model_rank *r, const model_step *s, int32_t i) {
    weft_status st = program_gqa(r, s, i);
    return st == WEFT_OK ? program_mlp(r, s, i) : st;
}

/* Five layers of six have a window where the source does not list them. */
static void read_layers(model_reader *r) {
    model_config *c = r->c;
    bool *windowed = read_take(r, (size_t)c->n_layer, sizeof *windowed);
    int32_t period = read_int(r, "_sliding_window_pattern", NULL, 1, 1024, 6);
    period = read_int(r, "sliding_window_pattern", NULL, 1, 1024, period); /* older files */
    int32_t window =
        read_int(r, "sliding_window", "attention.sliding_window", 1, INT32_MAX, READ_MUST);
    for (int32_t i = 0; windowed && i < c->n_layer; i++)
        windowed[i] = (i + 1) % period != 0;
    if (windowed)
        read_windows(r, windowed);
    double scalar = read_real(r, "query_pre_attn_scalar", NULL, 1e-3, 1e9,
                              r->status == WEFT_OK ? r->d->layer[0].head_dim : 1);
    if (r->status == WEFT_OK && !r->folder &&
        c->n_layer == 62) /* the 27B: the converter does not write it down */
        scalar = (double)c->hidden / r->d->layer[0].n_head;
    for (int32_t i = 0; r->status == WEFT_OK && i < c->n_layer; i++) {
        model_layer *l = &r->d->layer[i];
        l->window = windowed[i] ? window : 0;
        l->rope = windowed[i] ? ROPE_WINDOW : ROPE_FULL;
        l->scale = 1.0f / sqrtf((float)scalar);
    }
}

static void read_ropes(model_reader *r) {
    if (r->status != WEFT_OK)
        return;
    int32_t dim = r->d->layer[0].rope_dim;
    r->c->rope[ROPE_FULL].truncate = r->c->rope[ROPE_WINDOW].truncate = true;
    read_rope(r, ROPE_FULL, dim, "full_attention");
    if (r->folder && load_has(r->file, "rope_parameters"))
        read_rope(r, ROPE_WINDOW, dim, "sliding_attention");
    else
        read_rope_base(r, ROPE_WINDOW, dim,
                       read_real(r, "rope_local_base_freq", "rope.freq_base_swa", 1, 1e30, 10000));
}

static void describe(model_reader *r) {
    read_sizes(r);
    read_only_text(r, "hidden_activation", NULL, "gelu_pytorch_tanh");
    read_only_flag(r, "attention_bias", NULL, false);
    read_only_flag(r, "use_bidirectional_attention", NULL, false);
    if (r->folder && load_has(r->file, "attn_logit_softcapping"))
        r->status = load_refuse(r->file, "attn_logit_softcapping", "null", r->err);
    r->c->final_cap =
        (float)read_real(r, "final_logit_softcapping", "final_logit_softcapping", 0, 1e6, 0);
    r->c->glu.kind = KERN_GLU_GELU;
    r->c->embed_scale = sqrtf((float)r->c->hidden);
    read_layers(r);
    read_ropes(r);
    read_ends(r, true);
    read_gqa(r, (read_gqa_form){.halves = true, .head_norms = true, .plus_one = true});
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++) {
        read_norm(r, i, MODEL_ATTN_POST, "post_attention_layernorm.weight",
                  "post_attention_norm.weight", r->c->hidden, true);
        read_norm(r, i, MODEL_FFN_POST, "post_feedforward_layernorm.weight", "post_ffw_norm.weight",
                  r->c->hidden, true);
    }
    read_mlp(r, "pre_feedforward_layernorm.weight", "ffn_norm.weight", true);
}

/* Published files of 4B and more say only what differs from these. */
static const model_default defaults[] = {
    {"num_attention_heads", 8}, {"num_key_value_heads", 4},          {"head_dim", 256},
    {"vocab_size", 262208},     {"max_position_embeddings", 131072}, {"rms_norm_eps", 1e-6},
    {"rope_theta", 1e6},        {"query_pre_attn_scalar", 256},      {NULL, 0}};

const model_arch model_gemma3 = {.name = "gemma3",
                                 .model_type = "gemma3_text",
                                 .defaults = defaults,
                                 .describe = describe,
                                 .layer = layer};
