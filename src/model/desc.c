/* Opening a description: which architecture, its own reading, and the refusal of everything in the
 * files that would change the result and that nobody has read. */
#include "model/desc.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "load/text.h"
#include "model/arch.h"

static const model_arch *const arch_table[] = {
    &model_llama,   &model_mistral,   &model_mixtral,   &model_qwen2,
    &model_qwen3,   &model_qwen3moe,  &model_gemma3,    &model_gemma4,
    &model_gpt_oss, &model_deepseek2, &model_deepseek3,
};
enum { N_ARCH = sizeof arch_table / sizeof *arch_table };

/* Folders of these types hold a language model beside what reads pictures or sound, which weft does
 * not: config.json describes it in text_config. */
static const struct {
    const char *model_type, *text;
} wrappers[] = {{"gemma3", "gemma3_text"}, {"gemma4", "gemma4_text"}, {"mistral3", "mistral"}};

/* ---- which architecture ---- */

static bool is(load_string s, const char *text) {
    return text != NULL && s.bytes == strlen(text) && memcmp(s.data, text, s.bytes) == 0;
}

static void refuse_arch(model_reader *r, const char *key) {
    char known[256] = "";
    size_t n = 0;
    for (int32_t i = 0; i < N_ARCH && n < sizeof known; i++) {
        const char *name = r->folder ? arch_table[i]->model_type : arch_table[i]->name;
        if (name != NULL)
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n > 0 ? ", " : "", name);
    }
    r->status = load_refuse(r->file, key, known, r->err);
}

/* The names that the language model's tensors have: of older files, or of newer ones. */
static void enter_wrapper(model_reader *r, const char *text) {
    static const char older[] = "language_model.model.", newer[] = "model.language_model.";
    bool is_older = load_find_tensor(r->file, "language_model.model.norm.weight") != NULL;
    r->wrapped = is_older ? older : newer;
    load_enter(r->file, "text_config", r->wrapped, is_older ? "language_model." : "");
    read_only_text(r, "model_type", NULL, text);
}

static const model_arch *find_arch(model_reader *r) {
    const char *key = r->folder ? "model_type" : "general.architecture";
    load_string text = {0};
    r->status = load_get_text(r->file, key, true, &text, r->err);
    for (size_t i = 0; r->folder && i < sizeof wrappers / sizeof *wrappers; i++)
        if (is(text, wrappers[i].model_type)) {
            text = (load_string){wrappers[i].text, strlen(wrappers[i].text)};
            r->inner_type = wrappers[i].text;
        }
    for (int32_t i = 0; r->status == WEFT_OK && i < N_ARCH; i++)
        if (is(text, r->folder ? arch_table[i]->model_type : arch_table[i]->name))
            return arch_table[i];
    if (r->status == WEFT_OK)
        refuse_arch(r, key);
    return NULL;
}

static void check_gguf_kind(model_reader *r) {
    load_string type = {0};
    r->status = load_get_text(r->file, "general.type", false, &type, r->err);
    if (r->status == WEFT_OK && type.data != NULL && !is(type, "model"))
        r->status = load_refuse(r->file, "general.type", "model", r->err);
    int32_t version = 2;
    if (r->status == WEFT_OK)
        r->status =
            load_get_int(r->file, "general.quantization_version", false, 2, 2, &version, r->err);
}

/* general.name, or the file's name. */
static void read_model_name(model_reader *r) {
    enum { NAME_BYTES = 256 };
    load_string text = {0};
    r->c->name = load_name(r->file);
    if (r->folder || load_get_text(r->file, "general.name", false, &text, r->err) != WEFT_OK ||
        text.bytes == 0)
        return;
    char *copy = read_take(r, NAME_BYTES, 1);
    if (copy != NULL) {
        text_show(text, copy, NAME_BYTES);
        r->c->name = copy;
    }
}

/* ---- keys that nobody has read ---- */

/* Members of config.json without influence on what weft computes. */
static const char *const harmless_members[] = {
    "architectures",
    "model_type",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "initializer_range",
    "attention_dropout",
    "embd_pdrop",
    "resid_pdrop",
    "hidden_dropout",
    "output_router_logits",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "aux_loss_alpha",
    "seq_aux",
    "pretraining_tp",
    "ep_size",
    "max_window_layers",
    "cache_implementation",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "initial_context_length",
    "qk_head_dim",
    "head_dim",
    "vocab_size_per_layer_input",
    "unsloth_version",
    "unsloth_fixed",
    "is_llama_config",
    "transformers", /* .js_config */
    "use_flash_attn",
    "_name_or_path",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "auto_map",
    "tokenizer_class",
    "swiglu_alpha",
    "max_sequence_length",
    /* of generating, and of what older versions wrote into every file */
    "max_length",
    "min_length",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "length_penalty",
    "repetition_penalty",
    "chunk_size_feed_forward",
    "id2label",
    "label2id",
    "task_specific_params",
    "problem_type",
    "finetuning_task",
};

/* Keys of GGUF that describe a feature, with the value that switches it off. */
static const struct {
    const char *key;
    double off;
} features[] = {
    {"rope.scaling.factor", 1},
    {"rope.scaling.attn_factor", 1},
    {"rope.scale_linear", 1},
    {"expert_count", 0},
    {"expert_used_count", 0},
    {"expert_shared_count", 0},
    {"expert_shared_feed_forward_length", 0},
    {"expert_group_count", 0},
    {"expert_group_used_count", 0},
    {"leading_dense_block_count", 0},
    {"attention.sliding_window", 0},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.causal", 1},
    {"attention.q_lora_rank", 0},
    {"attention.kv_lora_rank", 0},
    {"attention.shared_kv_layers", 0},
    {"attn_logit_softcapping", 0},
    {"router_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"logit_scale", 1},
    {"embedding_scale", 1},
    {"residual_scale", 1},
    {"use_parallel_residual", 0},
    {"swin_norm", 0},
    {"nextn_predict_layers", 0},
    {"pooling_type", 0},
};

/* Behind the architecture's name: of no influence, or only looked at by what is refused anyway. */
static const char *const harmless_keys[] = {
    "tensor_data_layout",     "rope.scaling.original_context_length",
    "rope.scaling.finetuned", "rope.dimension_count",
    "rope.freq_base",         "rope.freq_base_swa",
    "attention.value_length", "attention.key_length",
    "feed_forward_length",
};

/* Where an unknown key of GGUF is certainly part of the computation. */
static const char *const strict_groups[] = {"attention.", "rope.", "expert_", "ssm.", "wkv."};

static bool in_list(const char *key, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, list[i]) == 0)
            return true;
    return false;
}
#define IN(key, list) in_list(key, list, sizeof list / sizeof *list)

/* Which layers have a window, of a model that has none or one on all. */
static void check_layer_types(model_reader *r) {
    static const char key[] = "layer_types";
    int32_t n = load_array_length(r->file, key);
    for (int32_t i = 0; i < n && r->status == WEFT_OK; i++) {
        load_string s = {0};
        r->status = load_array_text(r->file, key, i, &s, r->err);
        if (r->status == WEFT_OK && !is(s, "full_attention"))
            read_fail(r,
                      "layer_types[%d] is %.*s: weft does not compute this, expected "
                      "full_attention in a %s model",
                      i, (int)(s.bytes < 60 ? s.bytes : 60), s.data, r->c->architecture);
    }
}

static void check_member(model_reader *r, int32_t i) {
    static const char inner[] = "text_config.";
    const char *key = load_key_at(r->file, i);
    if (r->wrapped != NULL && strncmp(key, inner, sizeof inner - 1) != 0)
        return; /* of the other models in the folder, or of tokens that stand for pictures */
    key += r->wrapped != NULL ? sizeof inner - 1 : 0;
    if (strcmp(key, "layer_types") == 0) {
        check_layer_types(r);
        return;
    }
    size_t n = strcspn(key, ".");
    char top[100];
    snprintf(top, sizeof top, "%.*s", (int)(n < 99 ? n : 99), key);
    double value;
    bool off = load_value_number(r->file, i, &value) && value == 0; /* false is off as well */
    if (off && (strcmp(top, "is_causal") == 0 || strcmp(top, "use_causal_mask") == 0))
        r->status = load_refuse(r->file, key, "true, or no such key", r->err);
    if (IN(top, harmless_members) || off || load_array_length(r->file, key) == 0)
        return;
    r->status = load_refuse(r->file, key, "no such key", r->err);
}

static void check_key(model_reader *r, int32_t i) {
    const char *key = load_key_at(r->file, i);
    size_t n = strlen(r->c->architecture);
    if (strncmp(key, r->c->architecture, n) != 0 || key[n] != '.')
        return;
    const char *rest = key + n + 1;
    if (IN(rest, harmless_keys))
        return;
    for (size_t k = 0; k < sizeof features / sizeof *features; k++) {
        double value;
        if (strcmp(rest, features[k].key) != 0)
            continue;
        char expected[64];
        snprintf(expected, sizeof expected, "%g, or no such key", features[k].off);
        if (!load_value_number(r->file, i, &value) || value != features[k].off)
            r->status = load_refuse(r->file, key, expected, r->err);
        return;
    }
    for (size_t k = 0; k < sizeof strict_groups / sizeof *strict_groups; k++)
        if (strncmp(rest, strict_groups[k], strlen(strict_groups[k])) == 0) {
            r->status = load_refuse(r->file, key, "no such key", r->err);
            return;
        }
    log_warn("%s: %.100s is not known to weft and not used", load_shown_name(r->file), key);
}

static void check_keys(model_reader *r) {
    for (int32_t i = 0; i < load_key_count(r->file) && r->status == WEFT_OK; i++) {
        if (load_key_is_read(r->file, i))
            continue;
        if (r->folder)
            check_member(r, i);
        else
            check_key(r, i);
    }
}

/* ---- tensors that nobody has taken ---- */

/* A folder is strict: what is left over would be ignored, and the text be wrong. Exceptions: tables
 * that older versions wrote down, and the layers behind the last (of multi-token prediction). */
static bool may_stay(const model_reader *r, const char *name) {
    static const char layers[] = "model.layers.";
    size_t n = strlen(name);
    if (r->wrapped != NULL && strncmp(name, r->wrapped, strlen(r->wrapped)) != 0 &&
        strstr(name, "lm_head") == NULL)
        return true; /* of another model in the folder */
    static const char inv_freq[] = "rotary_emb.inv_freq";
    if (n >= sizeof inv_freq - 1 && strcmp(name + n - (sizeof inv_freq - 1), inv_freq) == 0)
        return true;
    long layer =
        strncmp(name, layers, sizeof layers - 1) == 0 ? atol(name + sizeof layers - 1) : -1;
    return layer >= r->c->n_layer && layer < (long)r->c->n_layer + r->n_nextn;
}

/* GGUF: endings and stems of tensors that take part in the computation of some model. Ignoring one
 * would give fluent wrong text. A stem is what stands after "blk.N.", or the whole name. */
static const char *const refused_ends[] = {".bias", ".scale", ".input_scale"};
static const char *const refused_stems[] = {
    "rope_freqs.",     "rope_factors_",   "attn_q_norm.",  "attn_k_norm.",  "attn_qkv.",
    "attn_post_norm.", "attn_sub_norm",   "attn_sinks.",   "attn_norm_2.",  "attn_gate.",
    "ffn_sub_norm",    "ffn_gate_",       "ffn_up_",       "ffn_down_",     "ffn_post_norm",
    "ffn_norm_exps",   "post_attention_", "post_ffw_norm", "layer_output_", "token_embd_norm.",
    "position_embd.",  "token_types.",    "exp_probs_b",   "per_layer_",    "nextn.",
    "inp_gate.",       "proj.",           "post_norm.",    "attn_kv_",      "attn_k_b.",
    "attn_v_b.",       "attn_q_a",        "attn_q_b.",
};

static const char *stem_of(const char *name) {
    const char *dot = strncmp(name, "blk.", 4) == 0 ? strchr(name + 4, '.') : NULL;
    return dot != NULL ? dot + 1 : name;
}

static bool is_refused(const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof refused_ends / sizeof *refused_ends; i++) {
        size_t end = strlen(refused_ends[i]);
        if (n >= end && strcmp(name + n - end, refused_ends[i]) == 0)
            return true;
    }
    const char *stem = stem_of(name);
    for (size_t i = 0; i < sizeof refused_stems / sizeof *refused_stems; i++)
        if (strncmp(stem, refused_stems[i], strlen(refused_stems[i])) == 0)
            return true;
    return false;
}

static void check_layer_beyond(model_reader *r) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_norm.weight", r->c->n_layer);
    const load_tensor *more = r->folder ? NULL : load_find_tensor(r->file, name);
    if (more != NULL && r->status == WEFT_OK)
        r->status = error_set_at(r->err, WEFT_ERR_FILE, more->offset,
                                 "%s.block_count is %d, but the file has a layer more: %s",
                                 r->c->architecture, r->c->n_layer, more->name);
}

/* One warning for all: a foreign file may hold thousands. */
static void check_tensors(model_reader *r) {
    const char *first = NULL;
    int32_t n_extra = 0, n_beside = 0;
    check_layer_beyond(r);
    for (int32_t i = 0; i < load_tensor_count(r->file) && r->status == WEFT_OK; i++) {
        const load_tensor *t = load_tensor_at(r->file, i);
        if (r->used[i])
            continue;
        if (r->folder && may_stay(r, t->name))
            n_beside += r->wrapped != NULL;
        else if (r->folder || is_refused(t->name))
            r->status =
                error_set_at(r->err, WEFT_ERR_FILE, t->offset,
                             "tensor %s: weft does not compute with it, expected a %s model "
                             "without it",
                             t->name, r->c->architecture);
        else if (n_extra++ == 0)
            first = t->name;
    }
    if (n_extra > 0 && r->status == WEFT_OK)
        log_warn("%s: %d tensors are not part of a %s model and not used, the first is %s",
                 load_shown_name(r->file), n_extra, r->c->architecture, first);
    if (n_beside > 0 && r->status == WEFT_OK)
        log_warn("%s: weft reads text only; %d tensors beside the language model are not used",
                 load_shown_name(r->file), n_beside);
}

/* ---- sizes that fit each other ---- */

static void check_moe(model_reader *r) {
    const model_moe *m = &r->c->moe;
    if (m->n_expert > KERN_MAX_EXPERT)
        read_fail(r, "%d experts: expected at most %d", m->n_expert, KERN_MAX_EXPERT);
    if (m->n_group > 1 && m->n_used > m->n_group_used * (m->n_expert / m->n_group))
        read_fail(r,
                  "%d experts for a token, but the %d groups that it may use hold %d: expected no "
                  "more",
                  m->n_used, m->n_group_used, m->n_group_used * (m->n_expert / m->n_group));
}

const model_layer *model_most_heads(const model_desc *d) {
    const model_layer *most = &d->layer[0];
    for (int32_t i = 1; i < d->config.n_layer; i++)
        most = d->layer[i].n_kv_head > most->n_kv_head ? &d->layer[i] : most;
    return most;
}

/* The cache is shared over ranks by KV heads: ranks that share those of the layers with most share
 * those of the others too. */
static void check_heads(model_reader *r) {
    int32_t most = model_most_heads(r->d)->n_kv_head, fewer = most;
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++) {
        int32_t n = r->d->layer[i].n_kv_head;
        if (most % n != 0 || (n != most && fewer != most && n != fewer))
            read_fail(
                r,
                "layer %d has %d KV heads and others have %d: expected as many in all, or two "
                "numbers in a model of which one divides the other",
                i, n, n != most && fewer != most ? fewer : most);
        fewer = n != most ? n : fewer;
    }
}

/* Every layer has what its program runs, in widths that pairs fit. */
static void check_layer(model_reader *r, int32_t i) {
    const model_layer *l = &r->d->layer[i];
    bool experts = r->c->moe.n_expert > 0 && l->m[MODEL_EXPERT_DOWN].t != NULL;
    if (l->ffn > 0 ? l->m[MODEL_DOWN].t == NULL : !experts)
        read_fail(r, "layer %d has no MLP: expected %s, or experts", i,
                  r->folder ? "intermediate_size" : "feed_forward_length");
    if (l->head_dim % 2 != 0 || l->value_dim % 2 != 0 || l->rope_dim % 2 != 0 ||
        l->rope_dim > l->head_dim)
        read_fail(r,
                  "layer %d: heads of %d, values of %d, RoPE over %d: expected even numbers, and "
                  "RoPE no wider than a head",
                  i, l->head_dim, l->value_dim, l->rope_dim);
}

/* Leaves are planned per width of a row-parallel matrix, for a few of them. */
static void check_row_widths(model_reader *r) {
    static const model_role rows[] = {MODEL_O, MODEL_DOWN, MODEL_EXPERT_DOWN, MODEL_SHARED_DOWN};
    int32_t width[MODEL_MAX_LEAVES], n = 0;
    for (int32_t i = 0; i < r->c->n_layer; i++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
            int32_t n_in = r->d->layer[i].m[rows[k]].n_in, at = 0;
            while (at < n && width[at] != n_in)
                at++;
            if (n_in == 0 || at < n)
                continue;
            if (n == MODEL_MAX_LEAVES) {
                read_fail(r,
                          "layer %d has a matrix of %d inputs: expected at most %d different "
                          "widths of heads and MLPs in a model",
                          i, n_in, MODEL_MAX_LEAVES);
                return;
            }
            width[n++] = n_in;
        }
}

/* ---- opening ---- */

static void for_show(model_desc *d) {
    const model_layer *l = &d->layer[0];
    model_config *c = &d->config;
    c->n_head = l->n_head, c->n_kv_head = l->n_kv_head, c->head_dim = l->head_dim;
    c->ffn = l->ffn != 0 ? l->ffn : c->moe.ffn;
}

/* Told before a tensor under another name is missed. modules_to_not_convert needs no look: which
 * tensors are coded is seen in the tensors. */
static void read_quantisation(model_reader *r, const model_arch *arch) {
    r->coded = r->folder && load_has(r->file, "quantization_config");
    if (!r->coded)
        return;
    load_string method = {0}, first;
    r->status = load_get_text(r->file, "quantization_config.quant_method", false, &method, r->err);
    static const char plain[] = "quantization_config.modules_to_not_convert";
    if (r->status == WEFT_OK && load_array_length(r->file, plain) > 0)
        r->status = load_array_text(r->file, plain, 0, &first, r->err);
    if (r->status == WEFT_OK && (arch->quant_method == NULL || !is(method, arch->quant_method)))
        read_fail(r,
                  "config.json has a quantization_config (quant_method %.*s): weft does not "
                  "compute with these tensors of a folder, expected float weights%s%s, or a GGUF "
                  "file",
                  (int)(method.bytes < 40 ? method.bytes : 40), method.data ? method.data : "",
                  arch->quant_method != NULL ? " or " : "",
                  arch->quant_method != NULL ? arch->quant_method : "");
}

static void read_all(model_reader *r) {
    const model_arch *arch = find_arch(r);
    if (arch == NULL)
        return;
    read_quantisation(r, arch);
    r->d->arch = arch;
    r->c->architecture = arch->name;
    if (r->inner_type != NULL)
        enter_wrapper(r, r->inner_type);
    if (!r->folder)
        check_gguf_kind(r);
    read_model_name(r);
    if (r->status == WEFT_OK)
        arch->describe(r);
    check_keys(r);
    check_tensors(r);
    if (r->status != WEFT_OK)
        return;
    check_moe(r);
    check_heads(r);
    for (int32_t i = 0; i < r->c->n_layer && r->status == WEFT_OK; i++)
        check_layer(r, i);
    check_row_widths(r);
    if (r->status != WEFT_OK)
        return;
    for_show(r->d);
}

/* ---- groups ---- */

/* Tokens that the cache of layer i keeps: the largest window of the layers that read it; 0: all. */
static int32_t window_kept(const model_desc *d, int32_t i) {
    int32_t most = 0;
    for (int32_t k = 0; k < d->config.n_layer; k++) {
        const model_layer *l = &d->layer[k];
        if (l->kv_from == i && l->window == 0)
            return 0;
        if (l->kv_from == i && l->window > most)
            most = l->window;
    }
    return most;
}

static bool keeps_less(int32_t a, int32_t b) {
    return b == 0 ? a != 0 : a != 0 && a < b;
}

/* Keeps the list in order. When it is full a window is served by the next larger one in it. */
static void group_add(model_desc *d, int32_t window) {
    int32_t at = 0;
    while (at < d->n_group && keeps_less(window, d->window[at]))
        at++;
    if (at < d->n_group && d->window[at] == window)
        return;
    if (d->n_group == KV_MAX_GROUP) {
        if (at == 0)
            d->window[0] = window;
        return;
    }
    memmove(d->window + at + 1, d->window + at, (size_t)(d->n_group - at) * sizeof d->window[0]);
    d->window[at] = window;
    d->n_group++;
}

static void groups_make(model_desc *d) {
    for (int32_t i = 0; i < d->config.n_layer; i++)
        if (d->layer[i].kv_from == i)
            group_add(d, window_kept(d, i));
    for (int32_t i = 0; i < d->config.n_layer; i++) {
        int32_t window = window_kept(d, d->layer[i].kv_from), g = d->n_group - 1;
        while (keeps_less(d->window[g], window))
            g--;
        d->layer[i].group = g;
    }
}

weft_status model_desc_open(load_model *file, model_desc **out, weft_error *err) {
    model_desc *d = calloc(1, sizeof *d);
    load_arena *memory = calloc(1, sizeof *memory);
    bool *used = calloc((size_t)load_tensor_count(file) + 1, sizeof *used);
    weft_error what;
    model_reader r = {.file = file, .d = d, .used = used, .err = &what};
    if (!d || !memory || !used) {
        free(d);
        free(memory);
        free(used);
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a model's description");
    }
    d->file = file;
    d->memory = memory;
    r.c = &d->config;
    r.folder = load_get_kind(file) == LOAD_FOLDER;
    read_all(&r);
    free(used);
    if (r.status != WEFT_OK) {
        model_desc_close(d);
        return error_set_at(err, r.status, what.offset, "%s: %s", load_shown_name(file), what.text);
    }
    groups_make(d);
    *out = d;
    return WEFT_OK;
}

weft_status model_desc_load(const char *path, model_desc **out, weft_error *err) {
    load_model *file;
    weft_status s = load_open(path, &file, err);
    if (s != WEFT_OK)
        return s;
    s = model_desc_open(file, out, err);
    if (s != WEFT_OK)
        load_close(file);
    else
        (*out)->owned = file;
    return s;
}

void model_desc_close(model_desc *d) {
    if (d == NULL)
        return;
    load_close(d->owned);
    load_arena_free(d->memory);
    free(d->memory);
    free(d);
}

/* ---- matrices ---- */

const load_tensor *model_matrix_tensor(const model_matrix *m, int32_t e) {
    return m->stack != NULL ? m->stack[e] : m->t;
}

static int32_t turn(const model_matrix *m, int32_t r) {
    return r < m->pair_dim ? r % 2 * (m->pair_dim / 2) + r / 2 : r;
}

/* base, and j of row i (desc.h). */
static int64_t place(const model_matrix *m, int32_t e, int32_t i, int64_t *j) {
    *j = m->at + (int64_t)m->step * turn(m, i % m->group);
    return m->row0 + e * m->stack_rows + (int64_t)(i / m->group) * m->group_stride;
}

int64_t model_matrix_row(const model_matrix *m, int32_t e, int32_t i) {
    int64_t j, base = place(m, e, i, &j);
    return base + j;
}

int64_t model_matrix_at(const model_matrix *m, int32_t e, int32_t i, int32_t k) {
    int64_t j, base = place(m, e, i, &j);
    return (base + k) * model_matrix_tensor(m, e)->dim[0] + j;
}

static float value_at(const load_tensor *t, int64_t i) {
    float x;
    size_t elem = t->ggml_type == DTYPE_F32 ? 4 : 2;
    dtype_to_f32((dtype)t->ggml_type, (const uint8_t *)t->data + (size_t)i * elem, 1, &x);
    return x;
}

dtype model_matrix_type(const model_matrix *m) {
    return m->exponents != NULL ? DTYPE_MXFP4 : (dtype)m->t->ggml_type;
}

enum { MXFP4_BLOCK = MODEL_MXFP4_BLOCK, MXFP4_CODE_BYTES = MODEL_MXFP4_BLOCK / 2 };

void model_matrix_blocks(const model_matrix *m, int64_t row, uint8_t *out) {
    size_t n_block = (size_t)m->n_in / MXFP4_BLOCK, first = (size_t)row * n_block;
    const uint8_t *exponent = (const uint8_t *)m->exponents->data + first;
    const uint8_t *code = (const uint8_t *)m->t->data + first * MXFP4_CODE_BYTES;
    for (size_t b = 0; b < n_block; b++, code += MXFP4_CODE_BYTES) {
        *out++ = exponent[b];
        for (int32_t k = 0; k < MXFP4_CODE_BYTES; k++) {
            int32_t shift = k % 2 * 4, low = code[k / 2] >> shift, high = code[8 + k / 2] >> shift;
            *out++ = (uint8_t)((low & 15) | (high & 15) << 4);
        }
    }
}

/* Row i of matrix e, which is not transposed and has no exponents of its own. */
static const uint8_t *row_data(const model_matrix *m, int32_t e, int32_t i) {
    const load_tensor *t = model_matrix_tensor(m, e);
    size_t row_bytes = dtype_bytes(dtype_find(t->ggml_type), m->n_in);
    return (const uint8_t *)t->data + (size_t)model_matrix_row(m, e, i) * row_bytes;
}

/* Block by block, as there is no room for a row. */
static void read_blocks(const model_matrix *m, int32_t e, int32_t i, float *out) {
    model_matrix one = *m;
    one.n_in = MXFP4_BLOCK;
    int32_t n_block = m->n_in / MXFP4_BLOCK;
    for (int32_t b = 0; b < n_block; b++, out += MXFP4_BLOCK) {
        uint8_t block[1 + MXFP4_CODE_BYTES];
        model_matrix_blocks(&one, model_matrix_row(m, e, i) * n_block + b, block);
        dtype_to_f32(DTYPE_MXFP4, block, MXFP4_BLOCK, out);
    }
}

void model_matrix_read(const model_matrix *m, int32_t e, int32_t row, int32_t n, float *out) {
    const load_tensor *t = model_matrix_tensor(m, e);
    for (int32_t i = row; i < row + n; i++, out += m->n_in) {
        if (m->transposed)
            for (int32_t k = 0; k < m->n_in; k++)
                out[k] = value_at(t, model_matrix_at(m, e, i, k));
        else if (m->exponents != NULL)
            read_blocks(m, e, i, out);
        else
            dtype_to_f32((dtype)t->ggml_type, row_data(m, e, i), m->n_in, out);
        for (int32_t k = 0; m->plus_one && k < m->n_in; k++)
            out[k] += 1.0f;
    }
}

/* ---- for people ---- */

static bool holds(const model_matrix *m, const load_tensor *t) {
    for (int32_t e = 0; m->stack != NULL && e < m->n_stack; e++)
        if (m->stack[e] == t)
            return true;
    return m->t == t || (m->exponents != NULL && m->exponents == t);
}

const char *model_desc_use(const model_desc *d, const load_tensor *t) {
    bool rows = d->embed.t == t || d->ple_embed.t == t, head = d->head.t == t;
    if (rows)
        return head ? "rows + packed" : "rows";
    if (head || d->ple_project.t == t)
        return "packed";
    if (d->output_norm.t == t || d->ple_norm.t == t)
        return "vector";
    for (int32_t i = 0; i < d->config.n_layer; i++)
        for (int32_t role = 0; role < MODEL_N_ROLE; role++) {
            const model_matrix *m = &d->layer[i].m[role];
            if (holds(m, t))
                return m->exponents != NULL    ? "packed as MXFP4"
                       : role < MODEL_N_MATRIX ? "packed"
                                               : "vector";
        }
    return "not used";
}
