/* What a llama file may hold beside the plain model: features that weft does not compute are
 * refused by name, harmless things load, doubtful ones warn. Every case is a sound file with one
 * change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>
#include <unistd.h>

#include "base/log.h"
#include "model/desc.h"
#include "unit/load/gguf_edit.h"

/* The whole way from bytes to a description. */
static weft_status open_model(const uint8_t *data, size_t n, weft_error *err) {
    load_model *m = NULL;
    model_desc *d = NULL;
    weft_status s = load_open_memory(data, n, "it", &m, err);
    if (s == WEFT_OK) {
        s = model_desc_open(m, &d, err);
        model_desc_close(d);
        load_close(m);
    }
    return s;
}

static uint8_t *base;
static size_t base_bytes;

/* Opens the edited base; the log's text goes to `log`. */
static weft_status open_edited(const edit *e, char *log, size_t log_bytes, weft_error *err) {
    size_t n = base_bytes;
    uint8_t *data = gguf_edit(base, e, &n);
    FILE *capture = tmpfile();
    assert_non_null(capture);
    int saved = dup(2);
    dup2(fileno(capture), 2);
    weft_status s = open_model(data, n, err);
    dup2(saved, 2);
    close(saved);
    rewind(capture);
    log[fread(log, 1, log_bytes - 1, capture)] = '\0';
    fclose(capture);
    free(data);
    return s;
}

static void must_refuse(const edit *e, const char *name) {
    char log[4096];
    weft_error err = {.text = ""};
    weft_status s = open_edited(e, log, sizeof log, &err);
    if (s != WEFT_ERR_FILE || strstr(err.text, name) == NULL) {
        fail_msg("%s: status %d, %s", name, (int)s, err.text);
    }
}

/* warning: NULL = nothing may be logged. */
static void must_load(const edit *e, const char *warning) {
    char log[4096];
    weft_error err = {.text = ""};
    weft_status s = open_edited(e, log, sizeof log, &err);
    if (s != WEFT_OK || (warning == NULL && log[0] != '\0') ||
        (warning != NULL && strstr(log, warning) == NULL)) {
        fail_msg("%s: %s / %s", e->key != NULL ? e->key : e->tensor, err.text, log);
    }
}

static edit u32_key(const char *key, const uint32_t *value) {
    return (edit){.drop_key = key, .key = key, .key_type = 4, .value = value, .value_bytes = 4};
}

static edit f32_key(const char *key, const float *value) {
    return (edit){.drop_key = key, .key = key, .key_type = 6, .value = value, .value_bytes = 4};
}

static edit string_key(const char *key, buffer *b, const char *text) {
    b->n = 0;
    buffer_string(b, text);
    return (edit){.drop_key = key, .key = key, .key_type = 8, .value = b->at, .value_bytes = b->n};
}

static edit bool_key(const char *key, const uint8_t *value) {
    return (edit){.drop_key = key, .key = key, .key_type = 7, .value = value, .value_bytes = 1};
}

static void test_unchanged(void **state) {
    (void)state;
    must_load(&(edit){0}, NULL);
}

static void test_features(void **state) {
    (void)state;
    static const char *const counts[] = {
        "llama.expert_used_count",
        "llama.attention.q_lora_rank",
        "llama.leading_dense_block_count",
    };
    uint32_t zero = 0, one = 1, many = 4096;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        edit e = u32_key(counts[i], &zero);
        must_load(&e, NULL);
        e = u32_key(counts[i], &many);
        must_refuse(&e, counts[i]);
    }
    static const char *const factors[] = {
        "llama.rope.scaling.attn_factor", "llama.rope.scale_linear", "llama.logit_scale",
        "llama.embedding_scale",          "llama.residual_scale",
    };
    float off = 1, on = 4, nan = __builtin_nanf("");
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        edit e = f32_key(factors[i], &off);
        must_load(&e, NULL);
        e = f32_key(factors[i], &on);
        must_refuse(&e, factors[i]);
        e = f32_key(factors[i], &nan);
        must_refuse(&e, factors[i]);
    }
    /* a feature that is not in any list, in a group where every key is part of the computation */
    static const char *const unknown[] = {"llama.attention.scale", "llama.rope.scaling.yarn_beta",
                                          "llama.attention.key_length_mla",
                                          "llama.expert_weights_scale"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        edit e = f32_key(unknown[i], &off);
        must_refuse(&e, unknown[i]);
    }
    edit e = u32_key("llama.something_new", &one);
    must_load(&e, "llama.something_new");
    e = u32_key("llama.vocab_size", &one);
    must_load(&e, "llama.vocab_size");
    e = u32_key("other.rope.scaling.type", &one);
    must_load(&e, NULL);
}

static void test_rope_scaling_type(void **state) {
    (void)state;
    static const char *const types[] = {"longrope", "nonsense", ""};
    buffer b = {0};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        edit e = string_key("llama.rope.scaling.type", &b, types[i]);
        must_refuse(&e, "llama.rope.scaling.type");
    }
    edit e = string_key("llama.rope.scaling.type", &b, "none");
    must_load(&e, NULL);
    free(b.at);
}

static void test_kind_of_file(void **state) {
    (void)state;
    buffer b = {0};
    edit e = string_key("general.type", &b, "model");
    must_load(&e, NULL);
    e = string_key("general.type", &b, "adapter");
    must_refuse(&e, "general.type");
    e = string_key("general.architecture", &b, "nonsense");
    must_refuse(&e, "general.architecture is nonsense");
    /* a text that would break a one-line message */
    e = string_key("general.architecture", &b, "lla\nma\x1b[2J");
    must_refuse(&e, "lla\\x0Ama\\x1B[2J");
    uint32_t version = 2;
    e = u32_key("general.quantization_version", &version);
    must_load(&e, NULL);
    version = 1;
    e = u32_key("general.quantization_version", &version);
    must_refuse(&e, "general.quantization_version is 1, expected 2");
    uint16_t parts = 3;
    e = (edit){.key = "split.count", .key_type = 2, .value = &parts, .value_bytes = 2};
    must_refuse(&e, "split.count is 3");
    parts = 1;
    must_load(&e, NULL);
    free(b.at);
}

/* head_dim: the explicit value wins, absent means derived. */
static void test_head_size(void **state) {
    (void)state;
    uint32_t four = 4, six = 6, three = 3, zero = 0, big = 1u << 31;
    edit e = u32_key("llama.attention.key_length", &four);
    must_load(&e, NULL);
    e = u32_key("llama.attention.key_length", &six); /* value_length is derived: 4 */
    must_refuse(&e, "tensor blk.0.attn_q.weight has dimensions [8, 8], expected [8, 12]");
    e = u32_key("llama.attention.value_length", &six);
    must_refuse(&e, "llama.attention.value_length 6");
    e = u32_key("llama.attention.key_length", &three);
    must_refuse(&e, "llama.attention.key_length is 3");
    e = u32_key("llama.attention.key_length", &zero);
    must_refuse(&e, "llama.attention.key_length is 0");
    e = u32_key("llama.attention.key_length", &big);
    must_refuse(&e, "llama.attention.key_length is 2147483648");
    e = u32_key("llama.embedding_length", &big);
    must_refuse(&e, "llama.embedding_length is 2147483648");
    e = (edit){.drop_key = "llama.attention.head_count_kv"}; /* then one for each query head */
    must_refuse(&e, "tensor blk.0.attn_k.weight has dimensions [8, 4], expected [8, 8]");
    uint32_t layers[] = {4, 2, 0, 1, 1}; /* u32 array of one value for each of two layers */
    e = (edit){.drop_key = "llama.attention.head_count_kv",
               .key = "llama.attention.head_count_kv",
               .key_type = 9,
               .value = layers,
               .value_bytes = sizeof layers};
    must_refuse(&e, "llama.attention.head_count_kv");
}

/* Both lengths given and wider than hidden / heads: 2 heads of 8 in a hidden size of 8. */
static void test_wide_heads(void **state) {
    (void)state;
    uint32_t eight = 8;
    edit e = u32_key("llama.attention.key_length", &eight);
    size_t n = base_bytes;
    uint8_t *once = gguf_edit(base, &e, &n);
    e = u32_key("llama.attention.value_length", &eight);
    uint8_t *twice = gguf_edit(once, &e, &n);
    weft_error err;
    assert_int_equal(open_model(twice, n, &err), WEFT_ERR_FILE);
    assert_non_null(
        strstr(err.text, "tensor blk.0.attn_q.weight has dimensions [8, 8], expected [8, 16]"));
    free(once);
    free(twice);
}

static void test_rope_values(void **state) {
    (void)state;
    uint32_t two = 2, zero = 0, three = 3, six = 6;
    float infinite = __builtin_inff(), half = 0.5f, base_ok = 500000;
    edit e = u32_key("llama.rope.dimension_count", &two);
    must_load(&e, NULL);
    uint32_t *const wrong[] = {&zero, &three, &six};
    for (size_t i = 0; i < 3; i++) {
        e = u32_key("llama.rope.dimension_count", wrong[i]);
        must_refuse(&e, "llama.rope.dimension_count");
    }
    e = f32_key("llama.rope.freq_base", &base_ok);
    must_load(&e, NULL);
    e = f32_key("llama.rope.freq_base", &infinite);
    must_refuse(&e, "llama.rope.freq_base");
    e = f32_key("llama.rope.freq_base", &half);
    must_refuse(&e, "llama.rope.freq_base");
    e = (edit){.drop_key = "llama.rope.freq_base"};
    must_load(&e, NULL);
}

static edit f32_tensor(const char *name, uint64_t n) {
    return (edit){.tensor = name, .tensor_type = 0, .tensor_n = n, .tensor_bytes = (size_t)n * 4};
}

static void test_tensors(void **state) {
    (void)state;
    static const char *const refused[] = {
        "rope_freqs.weight",          "blk.0.attn_q.bias",
        "blk.0.attn_k.bias",          "blk.0.attn_v.bias",
        "blk.0.attn_output.bias",     "blk.0.ffn_gate.bias",
        "blk.0.ffn_down.bias",        "output.bias",
        "output_norm.bias",           "blk.0.attn_q_norm.weight",
        "blk.0.attn_k_norm.weight",   "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_gate_exps.weight", "blk.0.attn_qkv.weight",
        "blk.0.attn_sinks.weight",    "blk.0.attn_q.scale",
        "blk.0.post_ffw_norm.weight",
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        edit e = f32_tensor(refused[i], 4);
        must_refuse(&e, refused[i]);
    }
    edit e = f32_tensor("something.weight", 4);
    must_load(&e, "something.weight");
    e = f32_tensor("blk.0.rotary_emb.inv_freq", 4); /* a table that old converters left in */
    must_load(&e, "blk.0.rotary_emb.inv_freq");
    e = f32_tensor("blk.1.attn_norm.weight", 8); /* a layer that block_count does not count */
    must_refuse(&e, "llama.block_count is 1");
    e = f32_tensor("output.weight", 8);
    must_refuse(&e, "tensor output.weight has dimensions [8], expected [8, 264]");
    /* an extra tensor of a type that weft cannot compute with */
    e = (edit){.tensor = "extra", .tensor_type = 12, .tensor_n = 256, .tensor_bytes = 144};
    must_load(&e, "extra");
    static const char *const needed[] = {
        "token_embd.weight",     "output_norm.weight",    "blk.0.attn_norm.weight",
        "blk.0.attn_v.weight",   "blk.0.ffn_norm.weight", "blk.0.attn_output.weight",
        "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight",   "blk.0.ffn_down.weight",
    };
    char missing[100];
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        e = (edit){.drop_tensor = needed[i]};
        snprintf(missing, sizeof missing, "tensor %s is missing", needed[i]);
        must_refuse(&e, missing);
    }
    e = (edit){.retype = "blk.0.attn_norm.weight", .retype_to = 1};
    must_refuse(&e, "tensor blk.0.attn_norm.weight has type F16, expected F32");
    e = (edit){.retype = "blk.0.attn_q.weight", .retype_to = 25};
    must_refuse(&e, "tensor blk.0.attn_q.weight has type I16");
    e = (edit){.retype = "blk.0.attn_q.weight", .retype_to = 30};
    must_load(&e, NULL);
}

/* Gaps are allowed by the format, and told. */
static void test_gap(void **state) {
    (void)state;
    edit e = {.drop_tensor = "blk.0.attn_q.weight", .tensor = "blk.0.attn_q.weight"};
    size_t n = base_bytes;
    e.tensor_n = 64;
    e.tensor_bytes = 128;
    e.tensor_type = 1;
    char log[4096];
    weft_error err;
    uint8_t *data = gguf_edit(base, &e, &n);
    free(data);
    assert_int_equal(open_edited(&e, log, sizeof log, &err), WEFT_ERR_FILE); /* [64], not [8, 8] */
    assert_non_null(strstr(log, "128 bytes between tensors blk.0.attn_norm.weight and "
                                "blk.0.attn_k.weight belong to no tensor"));
}

static void test_vocab(void **state) {
    (void)state;
    buffer b = {0};
    uint8_t yes = 1, no = 0;
    uint32_t id = 7, far = 264;
    edit e = bool_key("tokenizer.ggml.add_bos_token", &yes);
    must_load(&e, NULL);
    e = bool_key("tokenizer.ggml.add_eos_token", &no);
    must_load(&e, NULL);
    e = bool_key("tokenizer.ggml.add_eos_token", &yes);
    must_refuse(&e, "tokenizer.ggml.add_eos_token");
    e = u32_key("tokenizer.ggml.eot_token_id", &id);
    must_load(&e, NULL);
    static const char *const ids[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                      "tokenizer.ggml.eot_token_id"};
    for (size_t i = 0; i < 3; i++) {
        e = u32_key(ids[i], &far);
        must_refuse(&e, ids[i]);
    }
    e = (edit){.drop_key = "tokenizer.ggml.eos_token_id"};
    must_load(&e, "tokenizer.ggml.eos_token_id");
    e = (edit){.drop_key = "tokenizer.ggml.token_type"};
    must_refuse(&e, "tokenizer.ggml.token_type is missing");
    e = string_key("tokenizer.chat_template", &b, "{{ x }}");
    must_load(&e, NULL);
    e = string_key("tokenizer.chat_template", &b, "\xFF");
    must_refuse(&e, "tokenizer.chat_template");
    static const char *const pres[] = {"smollm", "llama-bpe", "qwen2", "gpt-2"};
    for (size_t i = 0; i < 4; i++) {
        e = string_key("tokenizer.ggml.pre", &b, pres[i]);
        must_load(&e, NULL);
    }
    free(b.at);
}

static void merges_are(buffer *b, const char *const *merge, uint64_t n) {
    b->n = 0;
    buffer_u32(b, 8);
    buffer_u64(b, n);
    for (uint64_t i = 0; i < n; i++) {
        buffer_string(b, merge[i]);
    }
}

static void test_merges(void **state) {
    (void)state;
    static const struct {
        const char *merge[2];
        const char *text; /* NULL: loads */
    } cases[] = {
        {{"h e", "i n"}, NULL},
        {{"#version: 0.2", "h e"}, NULL}, /* the head line of merges.txt */
        {{"h e", "#version: 0.2"}, "entry 1 is #version: 0.2"},
        {{"h e", ""}, "entry 1 is , expected two tokens"},
        {{"h e", " "}, "entry 1 is  , expected two tokens"},
        {{"h e", "h "}, "entry 1 is h , expected two tokens"},
        {{"h e", " e"}, "entry 1 is  e, expected two tokens"},
        {{"h e", "h  e"}, "entry 1 is h  e, expected two tokens"},
        {{"h e", "i n "}, "entry 1 is i n , expected two tokens"},
        {{"h e", "h q"}, "entry 1 is h q, whose result is no token"},
        {{"h e", "abcdefghijklmnopqrstuvwxyz abcdefghijklmnopqrstuvwxyz"}, "no token"},
        {{"\xC4\xA0t he", "\xC4\xA0th e"}, "entry 1 is \xC4\xA0th e, of which one half is no"},
    };
    buffer b = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        merges_are(&b, cases[i].merge, 2);
        edit e = {.drop_key = "tokenizer.ggml.merges",
                  .key = "tokenizer.ggml.merges",
                  .key_type = 9,
                  .value = b.at,
                  .value_bytes = b.n};
        if (cases[i].text == NULL) {
            must_load(&e, NULL);
        } else {
            must_refuse(&e, cases[i].text);
        }
    }
    merges_are(&b, NULL, 0);
    edit e = {.drop_key = "tokenizer.ggml.merges",
              .key = "tokenizer.ggml.merges",
              .key_type = 9,
              .value = b.at,
              .value_bytes = b.n};
    must_load(&e, NULL);
    free(b.at);
}

int main(void) {
    base = file_read(WEFT_GOLDEN "/gguf/bad/ok_base.gguf", &base_bytes);
    if (base == NULL) {
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unchanged),
        cmocka_unit_test(test_features),
        cmocka_unit_test(test_rope_scaling_type),
        cmocka_unit_test(test_kind_of_file),
        cmocka_unit_test(test_head_size),
        cmocka_unit_test(test_wide_heads),
        cmocka_unit_test(test_rope_values),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_gap),
        cmocka_unit_test(test_vocab),
        cmocka_unit_test(test_merges),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(base);
    return failed;
}
