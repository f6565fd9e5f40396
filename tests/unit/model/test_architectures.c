/* What the descriptions of the golden models say, against values worked out here: RoPE's tables,
 * scales of scores, windows, shared caches, and where matrices lie in a folder and in its GGUF twin. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>

#include "unit/model/golden_edit.h"

typedef struct opened {
    load_model *file;
    model_desc *d;
    uint8_t *bytes;
} opened;

static opened open_folder(const char *model, const char *from, const char *to) {
    opened o = {0};
    weft_error err = {.text = ""};
    folder_change c = {.config_from = from, .config_to = to};
    if (golden_open(model, &c, &o.file, &o.d, &err) != WEFT_OK)
        fail_msg("%s: %s", model, err.text);
    return o;
}

static opened open_twin(const char *model, const edit *e) {
    opened o = {0};
    weft_error err = {.text = ""};
    if (twin_open(model, e, &o.file, &o.d, &o.bytes, &err) != WEFT_OK)
        fail_msg("%s.gguf: %s", model, err.text);
    return o;
}

static void end(opened *o) {
    model_desc_close(o->d);
    load_close(o->file);
    free(o->bytes);
}

static const char *const models[] = {
    "deepseek_v2_lite", "deepseek_v3", "gemma3",      "gemma4_kvshare", "gemma4_moe", "gpt_oss",
    "llama3_rope",      "llama_gqa3",  "mistral_swa", "mixtral",        "qwen2",      "qwen3",
    "qwen3_moe",        "qwen3_tp8",
};
enum { N_MODEL = sizeof models / sizeof *models };

/* ---- folder and twin ---- */

static void same_matrix(const char *what, const model_matrix *a, const model_matrix *b) {
    assert_int_equal(a->t == NULL, b->t == NULL);
    if (a->t == NULL)
        return;
    if (a->n_out != b->n_out || a->n_in != b->n_in || a->n_stack != b->n_stack)
        fail_msg("%s: %d x %d (%d), %d x %d (%d)", what, a->n_out, a->n_in, a->n_stack, b->n_out,
                 b->n_in, b->n_stack);
    size_t n = (size_t)a->n_out * (size_t)a->n_in;
    float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    assert_non_null(x);
    assert_non_null(y);
    for (int32_t e = 0; e < a->n_stack; e++) {
        model_matrix_read(a, e, 0, a->n_out, x);
        model_matrix_read(b, e, 0, b->n_out, y);
        for (size_t i = 0; i < n; i++)
            if (x[i] != y[i])
                fail_msg("%s, %d: value %zu is %g and %g", what, e, i, (double)x[i], (double)y[i]);
    }
    free(x);
    free(y);
}

static void same_layer(const char *model, int32_t i, const model_layer *a, const model_layer *b) {
    char what[80];
    assert_int_equal(a->latent, b->latent);
    assert_int_equal(a->n_head, b->n_head);
    assert_int_equal(a->n_kv_head, b->n_kv_head);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->value_dim, b->value_dim);
    assert_int_equal(a->rope, b->rope);
    assert_int_equal(a->rope_dim, b->rope_dim);
    assert_int_equal(a->window, b->window);
    assert_int_equal(a->kv_from, b->kv_from);
    assert_int_equal(a->ffn, b->ffn);
    assert_int_equal(a->v_norm, b->v_norm);
    assert_int_equal(a->v_is_k, b->v_is_k);
    assert_true(fabsf(a->scale - b->scale) <= a->scale * 1e-6f);
    assert_true(a->x_scale == b->x_scale);
    for (int32_t m = 0; m < MODEL_N_ROLE; m++) {
        snprintf(what, sizeof what, "%s, layer %d, matrix %d", model, i, m);
        same_matrix(what, &a->m[m], &b->m[m]);
    }
}

static void same_ropes(const model_config *a, const model_config *b) {
    assert_int_equal(a->n_rope, b->n_rope);
    for (int32_t k = 0; k < a->n_rope; k++) {
        assert_int_equal(a->rope[k].n_pair, b->rope[k].n_pair);
        assert_true(fabs(a->rope[k].scale - b->rope[k].scale) < 1e-6);
        for (int32_t i = 0; i < a->rope[k].n_pair; i++) /* divisors have 24 bits */
            assert_true(fabs(a->rope[k].freq[i] - b->rope[k].freq[i]) <= 1e-7 * a->rope[k].freq[i]);
    }
}

static void same_models(const char *model, const model_desc *a, const model_desc *b) {
    const model_config *ca = &a->config, *cb = &b->config;
    assert_int_equal(ca->n_layer, cb->n_layer);
    assert_int_equal(ca->n_vocab, cb->n_vocab);
    assert_int_equal(ca->context_length, cb->context_length);
    assert_true(ca->rms_eps == cb->rms_eps);
    assert_true(ca->embed_scale == cb->embed_scale);
    assert_int_equal(ca->tied_output, cb->tied_output);
    assert_memory_equal(&ca->moe, &cb->moe, sizeof ca->moe);
    assert_memory_equal(&ca->mla, &cb->mla, sizeof ca->mla);
    assert_int_equal(ca->ple, cb->ple);
    same_ropes(ca, cb);
    for (int32_t i = 0; i < ca->n_layer; i++)
        same_layer(model, i, &a->layer[i], &b->layer[i]);
    same_matrix("embedding", &a->embed, &b->embed);
    same_matrix("head", &a->head, &b->head);
    same_matrix("last norm", &a->output_norm, &b->output_norm);
    same_matrix("layer inputs", &a->ple_embed, &b->ple_embed);
}

static void twins_say_the_same(void **state) {
    (void)state;
    for (int32_t m = 0; m < N_MODEL; m++) {
        opened a = open_folder(models[m], NULL, NULL), b = open_twin(models[m], &(edit){0});
        same_models(models[m], a.d, b.d);
        end(&a);
        end(&b);
    }
}

/* Of the forms that tests/tools/make-folders makes. */
static opened open_made(const char *name) {
    char path[400];
    opened o = {0};
    weft_error err = {.text = ""};
    snprintf(path, sizeof path, WEFT_TWINS "/%s", name);
    if (load_open(path, &o.file, &err) != WEFT_OK || model_desc_open(o.file, &o.d, &err) != WEFT_OK)
        fail_msg("%s: %s", path, err.text);
    return o;
}

/* A language model beside one for pictures is what it is alone. */
static void wrapped_folders(void **state) {
    (void)state;
    static const char *const names[] = {"gemma3", "gemma4_kvshare", "gemma4_moe"};
    for (int32_t k = 0; k < 3; k++) {
        char made[80];
        snprintf(made, sizeof made, "%s_wrapped", names[k]);
        opened a = open_folder(names[k], NULL, NULL), b = open_made(made);
        same_models(names[k], a.d, b.d);
        assert_int_equal(load_get_vocab(b.file)->bos, 1);
        end(&a);
        end(&b);
    }
}

/* Tables by width have a bound: six widths of MLPs and two of heads are too many. KV heads are cut over
 * ranks in one way. */
static void sizes_that_do_not_fit(void **state) {
    (void)state;
    static const struct {
        const char *name, *due;
    } cases[] = {
        {"gemma4_kvshare_widths.gguf", "at most 4 different widths"},
        {"gemma4_moe_heads", "layer 1 has 2 KV heads and others have 1"},
        {"gemma4_moe_uneven", "layer 1 has 2 KV heads and others have 3"},
        {"gemma4_moe_no_mlp", "layer 0 has no MLP: intermediate_size is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[400];
        load_model *file;
        model_desc *d;
        weft_error err = {.text = ""};
        snprintf(path, sizeof path, WEFT_TWINS "/refused/%s", cases[i].name);
        assert_int_equal(load_open(path, &file, &err), WEFT_OK);
        assert_int_equal(model_desc_open(file, &d, &err), WEFT_ERR_FILE);
        if (strstr(err.text, cases[i].due) == NULL)
            fail_msg("%s", err.text);
        load_close(file);
    }
}

/* Published Gemma 3 files leave out what their class has. */
static void members_left_out(void **state) {
    (void)state;
    opened o = open_folder("gemma3", "\"query_pre_attn_scalar\": 32,", "");
    assert_true(o.d->layer[0].scale == 1.0f / 16);
    end(&o);
    o = open_folder("gemma3", "\"rms_norm_eps\": 1e-06,", "");
    assert_true(o.d->config.rms_eps == 1e-6f);
    end(&o);
}

/* A folder with MXFP4 experts holds what its floats, worked out by tests/tools/make-folders, and
 * its twin's blocks hold. */
static void mxfp4_of_folders(void **state) {
    (void)state;
    opened o[] = {open_made("gpt_oss_mxfp4"), open_made("gpt_oss_mxfp4_float"),
                  open_made("gpt_oss_mxfp4.gguf")};
    const model_matrix *m = o[0].d->layer[1].m;
    assert_int_equal(model_matrix_type(&m[MODEL_EXPERT_UP]), DTYPE_MXFP4);
    assert_int_equal(model_matrix_type(&m[MODEL_EXPERT_DOWN]), DTYPE_MXFP4);
    assert_string_equal(model_desc_use(o[0].d, m[MODEL_EXPERT_UP].exponents), "packed as MXFP4");
    assert_int_equal(model_matrix_type(&o[1].d->layer[1].m[MODEL_EXPERT_UP]), DTYPE_BF16);
    for (int32_t i = 0; i < o[0].d->config.n_layer; i++) {
        same_layer("coded and float", i, &o[0].d->layer[i], &o[1].d->layer[i]);
        same_layer("coded and twin", i, &o[0].d->layer[i], &o[2].d->layer[i]);
    }
    for (int32_t k = 0; k < 3; k++)
        end(&o[k]);
}

/* ---- RoPE ---- */

static void close_to(double got, double due, double within) {
    if (!(fabs(got - due) <= within * fabs(due)))
        fail_msg("%.17g, expected %.17g", got, due);
}

/* D13: what transformers' formula gives, with libm. */
static void tables_of_llama3(void **state) {
    (void)state;
    opened o = open_folder("llama3_rope", NULL, NULL);
    const model_rope *rope = &o.d->config.rope[0];
    int32_t slowed = 0, kept = 0;
    assert_int_equal(rope->n_pair, 8);
    for (int32_t i = 0; i < 8; i++) {
        double freq = pow(500000, -2.0 * i / 16), wave = 2 * acos(-1) / freq, due;
        double smooth = (64 / wave - 1) / (4 - 1);
        if (wave < 64.0 / 4)
            due = freq, kept++;
        else if (wave > 64.0 / 1)
            due = freq / 8, slowed++;
        else
            due = (1 - smooth) * freq / 8 + smooth * freq;
        close_to(rope->freq[i], due, 1e-12);
    }
    assert_true(slowed > 0 && kept > 0);
    end(&o);
}

static void tables_of_linear(void **state) {
    (void)state;
    static const char *const forms[] = {"\"rope_type\": \"linear\", \"factor\": 4.0",
                                        "\"type\": \"linear\", \"factor\": 4.0"};
    for (int32_t k = 0; k < 2; k++) {
        opened o = open_folder("llama_gqa3", "\"rope_type\": \"default\"", forms[k]);
        for (int32_t i = 0; i < 8; i++)
            close_to(o.d->config.rope[0].freq[i], pow(10000, -2.0 * i / 16) / 4, 1e-12);
        end(&o);
    }
}

static double yarn_pair(double turns, double dim, double base, double length) {
    return dim * log(length / (turns * 2 * acos(-1))) / (2 * log(base));
}

static void check_yarn(const model_rope *rope, double dim, double base, double factor,
                       double length, bool truncate) {
    double low = yarn_pair(32, dim, base, length), high = yarn_pair(1, dim, base, length);
    low = fmax(truncate ? floor(low) : low, 0);
    high = fmin(truncate ? ceil(high) : high, dim - 1);
    for (int32_t i = 0; i < rope->n_pair; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1), freq = pow(base, -2.0 * i / dim);
        close_to(rope->freq[i], ramp * freq / factor + (1 - ramp) * freq, 1e-12);
    }
}

static void tables_of_yarn(void **state) {
    (void)state;
    opened o = open_folder("gpt_oss", NULL, NULL);
    check_yarn(&o.d->config.rope[0], 16, 150000, 8, 128, false);
    close_to(o.d->config.rope[0].scale, 0.1 * log(8) + 1, 1e-12);
    end(&o);
    o = open_folder("gpt_oss", "\"truncate\": false", "\"truncate\": true");
    check_yarn(&o.d->config.rope[0], 16, 150000, 8, 128, true);
    end(&o);
    o = open_folder("deepseek_v2_lite", NULL, NULL);
    check_yarn(&o.d->config.rope[0], 16, 10000, 4, 256, true);
    end(&o);
}

/* H01, H02: mscale_all_dim squared on the scores' scale, mscale / mscale_all_dim on cos and sin. */
static void yarn_scales(void **state) {
    (void)state;
    double all = 0.1 * 0.707 * log(40) + 1;
    opened o = open_folder("deepseek_v2_lite", "\"factor\": 4.0", "\"factor\": 40.0");
    close_to((double)o.d->layer[0].scale, all * all / sqrt(48), 1e-6);
    close_to(o.d->config.rope[0].scale, 1, 1e-15);
    end(&o);
    o = open_folder("deepseek_v2_lite", "\"mscale\": 0.707", "\"mscale\": 1.0");
    close_to(o.d->config.rope[0].scale, (0.1 * log(4) + 1) / (0.1 * 0.707 * log(4) + 1), 1e-12);
    end(&o);
    o = open_folder("deepseek_v2_lite", "\"mscale_all_dim\": 0.707,", "");
    close_to(o.d->config.rope[0].scale, 0.1 * log(4) + 1, 1e-12);
    close_to((double)o.d->layer[0].scale, 1 / sqrt(48), 1e-6);
    end(&o);
    o = open_folder("deepseek_v2_lite", "\"mscale\": 0.707", "\"attention_factor\": 1.5");
    close_to(o.d->config.rope[0].scale, 1.5, 1e-12);
    end(&o);
}

/* ---- windows and shared caches ---- */

static void windows_of(const model_desc *d, const char *due) {
    for (int32_t i = 0; i < d->config.n_layer; i++)
        assert_int_equal(d->layer[i].window, due[i] == 'w' ? 24 : 0);
}

static void layers_with_windows(void **state) {
    (void)state;
    opened o = open_folder("gemma3", NULL, NULL);
    windows_of(o.d, "wfwf");
    for (int32_t i = 0; i < 4; i++)
        close_to(o.d->config.rope[o.d->layer[i].rope].freq[1],
                 pow(i % 2 == 0 ? 1e4 : 1e6, -2.0 / 32), 1e-12);
    end(&o);
    o = open_folder("gpt_oss", NULL, NULL);
    windows_of(o.d, "wfwf");
    end(&o);
    o = open_folder("mistral_swa", NULL, NULL);
    windows_of(o.d, "www");
    end(&o);
    o = open_folder("qwen3", "\"sliding_window\": null", "\"sliding_window\": 24");
    windows_of(o.d, "fff"); /* use_sliding_window is false */
    end(&o);
}

/* A GGUF file may give the period of layers without a window, or nothing: then it is Gemma's six. */
static void windows_of_gguf(void **state) {
    (void)state;
    static const char key[] = "gemma3.attention.sliding_window_pattern";
    uint32_t period = 3;
    edit e = {.drop_key = key, .key = key, .key_type = 4, .value = &period, .value_bytes = 4};
    opened o = open_twin("gemma3", &e);
    windows_of(o.d, "wwfw");
    end(&o);
    o = open_twin("gemma3", &(edit){.drop_key = key});
    windows_of(o.d, "wwww");
    end(&o);
}

/* T6, T6b: a layer that shares a cache reads the last one of its kind that is computed, and has no
 * K or V of its own, so none can be attended or written. */
static void shared_caches(void **state) {
    (void)state;
    static const int32_t from[] = {0, 1, 2, 3, 2, 3};
    opened o = open_folder("gemma4_kvshare", NULL, NULL);
    windows_of(o.d, "wfwfwf");
    for (int32_t i = 0; i < 6; i++) {
        const model_layer *l = &o.d->layer[i];
        assert_int_equal(l->kv_from, from[i]);
        assert_int_equal(l->head_dim, i % 2 == 0 ? 32 : 64);
        assert_int_equal(l->m[MODEL_K].t == NULL, i >= 4);
        assert_int_equal(l->m[MODEL_V].t == NULL, i >= 4);
        assert_int_equal(l->m[MODEL_K_NORM].t == NULL, i >= 4);
        assert_true(l->scale == 1.0f);
    }
    const model_rope *full = &o.d->config.rope[o.d->layer[1].rope];
    for (int32_t i = 0; i < 32; i++) { /* the first quarter of the pairs turns */
        double due = i < 8 ? pow(1e6, -2.0 * i / 64) : 0;
        assert_true(fabs(full->freq[i] - due) <= due * 1e-12);
    }
    end(&o);
}

/* Full layers with fewer KV heads, whose values are the keys' matrix without RoPE's order of rows; the
 * groups of a rank follow from the layers with most. */
static void fewer_heads(void **state) {
    (void)state;
    opened o = open_folder("gemma4_moe", NULL, NULL);
    windows_of(o.d, "fwf");
    float k[96], v[96];
    for (int32_t i = 0; i < 3; i++) {
        const model_layer *l = &o.d->layer[i];
        assert_int_equal(l->n_kv_head, i == 1 ? 2 : 1);
        assert_int_equal(l->v_is_k, i != 1);
        assert_int_equal(l->m[MODEL_K].t == l->m[MODEL_V].t, i != 1);
        if (i == 1)
            continue;
        for (int32_t row = 0; row < 64; row++) { /* pairs stand half a head apart */
            model_matrix_read(&l->m[MODEL_K], 0, row, 1, k);
            model_matrix_read(&l->m[MODEL_V], 0, row % 2 * 32 + row / 2, 1, v);
            assert_memory_equal(k, v, sizeof k);
        }
    }
    assert_ptr_equal(model_most_heads(o.d), &o.d->layer[1]);
    end(&o);
}

/* Experts beside the MLP: what the router reads is normed by a vector of its own and made smaller by
 * the root of the width; a stack has each expert's gate before its up. */
static void experts_beside(void **state) {
    (void)state;
    opened o = open_folder("gemma4_moe", NULL, NULL);
    const model_config *c = &o.d->config;
    assert_int_equal(c->moe.n_expert, 6);
    assert_int_equal(c->moe.n_used, 3);
    assert_int_equal(c->moe.ffn, 128);
    assert_int_equal(c->moe.route, KERN_ROUTE_SOFTMAX);
    assert_true(c->moe.renorm && c->moe.scale == 1);
    assert_true(c->moe.logit_scale == (float)pow(96, -0.5));
    assert_true(c->final_cap == 30);
    const model_layer *l = &o.d->layer[2];
    assert_int_equal(l->ffn, 384);
    static const struct {
        model_role role;
        const char *name;
    } vectors[] = {{MODEL_FFN_NORM, "router.scale"},
                   {MODEL_EXPERT_SCALE, "router.per_expert_scale"},
                   {MODEL_EXPERT_NORM, "pre_feedforward_layernorm_2.weight"},
                   {MODEL_EXPERT_POST, "post_feedforward_layernorm_2.weight"},
                   {MODEL_MLP_NORM, "pre_feedforward_layernorm.weight"},
                   {MODEL_MLP_POST, "post_feedforward_layernorm_1.weight"},
                   {MODEL_FFN_POST, "post_feedforward_layernorm.weight"}};
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.2.%s", vectors[i].name);
        assert_string_equal(l->m[vectors[i].role].t->name, name);
    }
    assert_int_equal(model_matrix_row(&l->m[MODEL_EXPERT_GATE], 4, 5), 4 * 256 + 5);
    assert_int_equal(model_matrix_row(&l->m[MODEL_EXPERT_UP], 4, 5), 4 * 256 + 128 + 5);
    assert_int_equal(model_matrix_row(&l->m[MODEL_EXPERT_DOWN], 4, 5), 4 * 96 + 5);
    end(&o);
}

/* The cache of MLA: one row per token, for all heads. */
static void latent_sizes(void **state) {
    (void)state;
    opened o = open_twin("deepseek_v3", &(edit){0});
    const model_layer *l = &o.d->layer[0];
    assert_true(l->latent);
    assert_int_equal(l->n_kv_head, 1);
    assert_int_equal(l->head_dim, 32 + 16);
    assert_int_equal(l->value_dim, 32);
    assert_int_equal(o.d->layer[0].ffn, 192);
    assert_int_equal(o.d->layer[1].ffn, 0);
    assert_int_equal(o.d->config.moe.route, KERN_ROUTE_SIGMOID);
    assert_int_equal(o.d->config.moe.n_group, 4);
    end(&o);
    o = open_folder("deepseek_v2_lite", NULL, NULL);
    assert_int_equal(o.d->config.moe.route, KERN_ROUTE_SOFTMAX);
    assert_int_equal(o.d->config.moe.n_group, 1);
    assert_int_equal(o.d->config.moe.shared_ffn, 128);
    end(&o);
}

int main(void) {
    size_t n;
    uint8_t *twin = twin_read("qwen3", &n);
    if (twin == NULL)
        return 77;
    free(twin);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twins_say_the_same), cmocka_unit_test(mxfp4_of_folders),
        cmocka_unit_test(wrapped_folders),    cmocka_unit_test(sizes_that_do_not_fit),
        cmocka_unit_test(members_left_out),   cmocka_unit_test(tables_of_llama3),
        cmocka_unit_test(tables_of_linear),   cmocka_unit_test(tables_of_yarn),
        cmocka_unit_test(yarn_scales),        cmocka_unit_test(layers_with_windows),
        cmocka_unit_test(windows_of_gguf),    cmocka_unit_test(shared_caches),
        cmocka_unit_test(fewer_heads),        cmocka_unit_test(experts_beside),
        cmocka_unit_test(latent_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
