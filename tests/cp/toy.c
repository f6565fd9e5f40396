/* The GGUF writer. The file is made in memory, infos first, then the tensors in the same order. */
#include "cp/toy.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

#include "cp/runner.h"
#include "tensor/dtype.h"

const toy_shape toy_gqa = {.name = "8/2 heads Q4_0",
                           .n_layer = 2,
                           .n_head = 8,
                           .n_kv_head = 2,
                           .head_dim = 32,
                           .hidden = 256,
                           .ffn = 512,
                           .n_vocab = 384,
                           .context = 512,
                           .type = TOY_Q4_0,
                           .tied = false,
                           .seed = 11};
static const toy_shape toy_nine = {.name = "9/3 heads F32",
                                   .n_layer = 2,
                                   .n_head = 9,
                                   .n_kv_head = 3,
                                   .head_dim = 32,
                                   .hidden = 288,
                                   .ffn = 384,
                                   .n_vocab = 263,
                                   .context = 512,
                                   .type = TOY_F32,
                                   .tied = false,
                                   .seed = 12};
static const toy_shape toy_mha = {.name = "4/4 heads of 64, BF16, tied",
                                  .n_layer = 1,
                                  .n_head = 4,
                                  .n_kv_head = 4,
                                  .head_dim = 64,
                                  .hidden = 256,
                                  .ffn = 256,
                                  .n_vocab = 271,
                                  .context = 512,
                                  .type = TOY_BF16,
                                  .tied = true,
                                  .seed = 13};
static const toy_shape toy_mqa = {.name = "6/1 heads Q8_0, 3 layers",
                                  .n_layer = 3,
                                  .n_head = 6,
                                  .n_kv_head = 1,
                                  .head_dim = 32,
                                  .hidden = 192,
                                  .ffn = 384,
                                  .n_vocab = 301,
                                  .context = 512,
                                  .type = TOY_Q8_0,
                                  .tied = false,
                                  .seed = 14};
static const toy_shape toy_half = {.name = "8/4 heads F16",
                                   .n_layer = 2,
                                   .n_head = 8,
                                   .n_kv_head = 4,
                                   .head_dim = 32,
                                   .hidden = 256,
                                   .ffn = 512,
                                   .n_vocab = 277,
                                   .context = 512,
                                   .type = TOY_F16,
                                   .tied = false,
                                   .seed = 15};
const toy_shape *const toy_shapes[] = {&toy_gqa, &toy_nine, &toy_mha, &toy_mqa, &toy_half};
const int32_t toy_n_shape = sizeof toy_shapes / sizeof *toy_shapes;

enum { N_MERGE = 6, ALIGN = 32, BLOCK = 32 };
static const char *const merge_left[N_MERGE] = {"t", "h", "th", "i", "a", "o"};
static const char *const merge_right[N_MERGE] = {"h", "e", "e", "n", "n", "n"};

int32_t toy_end_token(const toy_shape *s) {
    return s->n_vocab - 1;
}

/* ---- bytes ---- */

typedef struct bytes {
    uint8_t *at;
    size_t n, cap;
} bytes;

static void put(bytes *b, const void *src, size_t n) {
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n);
        b->at = realloc(b->at, b->cap);
        assert_non_null(b->at);
    }
    memcpy(b->at + b->n, src, n);
    b->n += n;
}

static void put_u32(bytes *b, uint32_t v) {
    put(b, &v, sizeof v);
}

static void put_u64(bytes *b, uint64_t v) {
    put(b, &v, sizeof v);
}

static void put_text(bytes *b, const char *text) {
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

static void pad(bytes *b) {
    static const uint8_t zero[ALIGN];
    put(b, zero, (ALIGN - b->n % ALIGN) % ALIGN);
}

/* ---- metadata ---- */

enum { KIND_U32 = 4, KIND_I32 = 5, KIND_F32 = 6, KIND_STRING = 8, KIND_ARRAY = 9 };

static void key_u32(bytes *b, const char *key, int32_t v) {
    put_text(b, key);
    put_u32(b, KIND_U32);
    put_u32(b, (uint32_t)v);
}

static void key_f32(bytes *b, const char *key, float v) {
    put_text(b, key);
    put_u32(b, KIND_F32);
    put(b, &v, sizeof v);
}

static void key_text(bytes *b, const char *key, const char *v) {
    put_text(b, key);
    put_u32(b, KIND_STRING);
    put_text(b, v);
}

static void key_array(bytes *b, const char *key, uint32_t kind, int32_t n) {
    put_text(b, key);
    put_u32(b, KIND_ARRAY);
    put_u32(b, kind);
    put_u64(b, (uint64_t)n);
}

/* GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100 and up. */
static void byte_name(int32_t byte, char out[3]) {
    int32_t code = byte, n_other = 0;
    for (int32_t i = 0; i <= byte; i++) {
        bool plain = (i >= 33 && i <= 126) || (i >= 161 && i <= 172) || i >= 174;
        code = plain ? i : 256 + n_other;
        n_other += !plain;
    }
    if (code < 128) {
        out[0] = (char)code, out[1] = '\0';
        return;
    }
    out[0] = (char)(0xC0 | code >> 6), out[1] = (char)(0x80 | (code & 63)), out[2] = '\0';
}

static void put_vocab(bytes *b, const toy_shape *s) {
    key_text(b, "tokenizer.ggml.model", "gpt2");
    key_text(b, "tokenizer.ggml.pre", "gpt-2");
    key_array(b, "tokenizer.ggml.tokens", KIND_STRING, s->n_vocab);
    for (int32_t i = 0; i < s->n_vocab; i++) {
        char name[16];
        if (i < 256)
            byte_name(i, name);
        else if (i < 256 + N_MERGE)
            snprintf(name, sizeof name, "%s%s", merge_left[i - 256], merge_right[i - 256]);
        else
            snprintf(name, sizeof name, i == s->n_vocab - 1 ? "<|end|>" : "w%d", i);
        put_text(b, name);
    }
    key_array(b, "tokenizer.ggml.token_type", KIND_I32, s->n_vocab);
    for (int32_t i = 0; i < s->n_vocab; i++)
        put_u32(b, i == s->n_vocab - 1 ? 3 : 1);
    key_array(b, "tokenizer.ggml.merges", KIND_STRING, N_MERGE);
    for (int32_t i = 0; i < N_MERGE; i++) {
        char merge[8];
        snprintf(merge, sizeof merge, "%s %s", merge_left[i], merge_right[i]);
        put_text(b, merge);
    }
    key_u32(b, "tokenizer.ggml.eos_token_id", toy_end_token(s));
}

enum { N_KEY = 18, N_EXPERT_KEY = 2 };

static void put_keys(bytes *b, const toy_shape *s) {
    key_text(b, "general.architecture", "llama");
    key_text(b, "general.name", s->name);
    key_u32(b, "llama.block_count", s->n_layer);
    key_u32(b, "llama.context_length", s->context);
    key_u32(b, "llama.embedding_length", s->hidden);
    key_u32(b, "llama.feed_forward_length", s->ffn);
    key_u32(b, "llama.attention.head_count", s->n_head);
    key_u32(b, "llama.attention.head_count_kv", s->n_kv_head);
    key_u32(b, "llama.attention.key_length", s->head_dim);
    key_u32(b, "llama.attention.value_length", s->head_dim);
    key_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    key_f32(b, "llama.rope.freq_base", 10000.0f);
    if (s->n_expert > 0) {
        key_u32(b, "llama.expert_count", s->n_expert);
        key_u32(b, "llama.expert_used_count", s->n_used);
    }
    put_vocab(b, s); /* six keys */
}

/* ---- tensors ---- */

typedef struct tensor {
    char name[40];
    int32_t n_in, n_out; /* n_out 0: a vector */
    int32_t n_stack;     /* > 0: of so many matrices */
    uint32_t type;
    float size; /* standard deviation; of a vector around 1 */
} tensor;

static size_t tensor_bytes(const tensor *t) {
    size_t n =
        (size_t)t->n_in * (size_t)(t->n_out ? t->n_out : 1) * (size_t)(t->n_stack ? t->n_stack : 1);
    switch (t->type) {
    case TOY_F32:
        return 4 * n;
    case TOY_Q8_0:
        return n / BLOCK * (2 + BLOCK);
    case TOY_Q4_0:
        return n / BLOCK * (2 + BLOCK / 2);
    default:
        return 2 * n;
    }
}

/* Even over (-1, 1) times sqrt(3): variance 1. */
static float noise(uint64_t *rng) {
    return ((float)(run_draw(rng) >> 40) / 8388608.0f - 1.0f) * 1.7320508f;
}

/* One block of 32 random codes; the scale makes their standard deviation `size`. */
static void put_block(bytes *b, uint32_t type, float size, uint64_t *rng) {
    uint8_t code[BLOCK];
    int32_t n = type == TOY_Q8_0 ? BLOCK : BLOCK / 2;
    uint16_t d =
        f32_to_f16(size * (0.7f + 0.6f * fabsf(noise(rng))) / (type == TOY_Q8_0 ? 73.3f : 4.6f));
    for (int32_t i = 0; i < n; i++)
        code[i] = (uint8_t)(run_draw(rng) >> 33);
    put(b, &d, sizeof d);
    put(b, code, (size_t)n);
}

static void put_value(bytes *b, uint32_t type, float v) {
    uint16_t h = f32_to_f16(v);
    if (type == TOY_BF16) {
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        h = (uint16_t)(bits >> 16);
    }
    if (type == TOY_F32)
        put(b, &v, sizeof v);
    else
        put(b, &h, sizeof h);
}

static void put_data(bytes *b, const tensor *t, uint64_t *rng) {
    int64_t n = (int64_t)t->n_in * (t->n_out ? t->n_out : 1) * (t->n_stack ? t->n_stack : 1);
    bool blocks = t->type == TOY_Q4_0 || t->type == TOY_Q8_0;
    for (int64_t i = 0; blocks && i < n / BLOCK; i++)
        put_block(b, t->type, t->size, rng);
    for (int64_t i = 0; !blocks && i < n; i++)
        put_value(b, t->type, (t->n_out ? 0.0f : 1.0f) + t->size * noise(rng));
}

static int32_t list_experts(const toy_shape *s, int32_t l, float of_hidden, float of_ffn,
                            tensor out[4]) {
    int32_t e = s->n_expert;
    static const char *const names[] = {"gate_inp", "gate_exps", "up_exps", "down_exps"};
    out[0] = (tensor){"", s->hidden, e, 0, TOY_F32, 2 * of_hidden};
    out[1] = (tensor){"", s->hidden, s->ffn, e, s->type, of_hidden};
    out[2] = (tensor){"", s->hidden, s->ffn, e, s->up_half ? TOY_F16 : s->type, of_hidden};
    out[3] = (tensor){"", s->ffn, s->hidden, e, s->type, of_ffn};
    for (int32_t i = 0; i < 4; i++)
        snprintf(out[i].name, sizeof out[i].name, "blk.%d.ffn_%s.weight", l, names[i]);
    return 4;
}

static int32_t list_tensors(const toy_shape *s, tensor *out) {
    int32_t n = 0, q = s->n_head * s->head_dim, kv = s->n_kv_head * s->head_dim;
    float quiet = s->chain ? 0.01f : 1.0f;
    float of_hidden = quiet * 1.5f / sqrtf((float)s->hidden), of_q = quiet / sqrtf((float)q);
    float of_ffn = s->down > 0 ? s->down : quiet / sqrtf((float)s->ffn);
    const struct {
        const char *name;
        int32_t n_in, n_out;
        float size;
    } per_layer[] = {
        {"attn_norm", s->hidden, 0, 0.2f},          {"attn_q", s->hidden, q, 2 * of_hidden},
        {"attn_k", s->hidden, kv, 2 * of_hidden},   {"attn_v", s->hidden, kv, of_hidden},
        {"attn_output", q, s->hidden, of_q},        {"ffn_norm", s->hidden, 0, 0.2f},
        {"ffn_gate", s->hidden, s->ffn, of_hidden}, {"ffn_up", s->hidden, s->ffn, of_hidden},
        {"ffn_down", s->ffn, s->hidden, of_ffn}};
    size_t n_per_layer = sizeof per_layer / sizeof *per_layer - (s->n_expert > 0 ? 3 : 0);
    out[n++] = (tensor){"token_embd.weight", s->hidden, s->n_vocab, 0, s->type, 1.0f};
    out[n++] = (tensor){"output_norm.weight", s->hidden, 0, 0, TOY_F32, s->chain ? 0.0f : 0.2f};
    if (!s->tied)
        out[n++] = (tensor){"output.weight", s->hidden, s->n_vocab, 0, s->type, 0.15f};
    for (int32_t l = 0; l < s->n_layer; l++) {
        for (size_t i = 0; i < n_per_layer; i++) {
            out[n] = (tensor){"",
                              per_layer[i].n_in,
                              per_layer[i].n_out,
                              0,
                              per_layer[i].n_out ? s->type : TOY_F32,
                              per_layer[i].size};
            snprintf(out[n].name, sizeof out[n].name, "blk.%d.%s.weight", l, per_layer[i].name);
            n++;
        }
        if (s->n_expert > 0)
            n += list_experts(s, l, of_hidden, of_ffn, out + n);
    }
    return n;
}

/* Head row of each chain token: the embedding of the one before it, so the two agree most. */
static void link_chain(const toy_shape *s, const float *embd, float *head) {
    size_t row = (size_t)s->hidden;
    for (int32_t i = 0; i < s->n_chain; i++) {
        const float *from = embd + (size_t)s->chain[i] * row;
        memcpy(head + (size_t)s->chain[(i + 1) % s->n_chain] * row, from, row * sizeof *from);
    }
}

/* The first value of every token's row is large, and the router's rows of the liked experts look at it. */
static void like_embedding(const toy_shape *s, float *embd) {
    for (int32_t i = 0; i < s->n_vocab; i++)
        embd[(size_t)i * (size_t)s->hidden] = 12.0f;
}

static void like_router(const toy_shape *s, float *router) {
    for (int32_t k = 0; k < s->n_used; k++)
        router[(size_t)(s->liked + k) * (size_t)s->hidden] = 60.0f - (float)k;
}

static void put_header(bytes *b, const toy_shape *s, const tensor *list, int32_t n) {
    uint64_t offset = 0;
    put(b, "GGUF", 4);
    put_u32(b, 3);
    put_u64(b, (uint64_t)n);
    put_u64(b, N_KEY + (s->n_expert > 0 ? N_EXPERT_KEY : 0));
    put_keys(b, s);
    for (int32_t i = 0; i < n; i++) {
        put_text(b, list[i].name);
        put_u32(b, list[i].n_stack ? 3 : list[i].n_out ? 2 : 1);
        put_u64(b, (uint64_t)list[i].n_in);
        if (list[i].n_out)
            put_u64(b, (uint64_t)list[i].n_out);
        if (list[i].n_stack)
            put_u64(b, (uint64_t)list[i].n_stack);
        put_u32(b, list[i].type);
        put_u64(b, offset);
        offset += (tensor_bytes(&list[i]) + ALIGN - 1) / ALIGN * ALIGN;
    }
    pad(b);
}

static void put_file(bytes *b, const toy_shape *s) {
    uint64_t rng = s->seed;
    tensor *list = calloc((size_t)s->n_layer * 10 + 3, sizeof *list);
    assert_non_null(list);
    int32_t n = list_tensors(s, list);
    put_header(b, s, list, n);
    size_t embd = 0, head = 0;
    for (int32_t i = 0; i < n; i++) {
        if (strcmp(list[i].name, "token_embd.weight") == 0)
            embd = b->n;
        if (strcmp(list[i].name, "output.weight") == 0)
            head = b->n;
        size_t at = b->n;
        put_data(b, &list[i], &rng);
        pad(b);
        if (s->like_one && strstr(list[i].name, "ffn_gate_inp"))
            like_router(s, (float *)(void *)(b->at + at));
    }
    if (s->like_one)
        like_embedding(s, (float *)(void *)(b->at + embd));
    if (s->chain)
        link_chain(s, (const float *)(const void *)(b->at + embd), (float *)(void *)(b->at + head));
    for (int32_t i = 0; s->poison > 0 && i < s->hidden; i++)
        ((float *)(void *)(b->at + embd))[(size_t)s->poison * (size_t)s->hidden + (size_t)i] =
            INFINITY;
    free(list);
}

weft_model *toy_open(const toy_shape *s) {
    char path[] = "/tmp/weft-toy-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    bytes b = {0};
    put_file(&b, s);
    ssize_t wrote = write(fd, b.at, b.n);
    assert_int_equal(wrote, (ssize_t)b.n);
    close(fd);
    free(b.at);
    weft_model *m = NULL;
    weft_error err = {0};
    weft_status st = weft_model_open(path, &m, &err); /* mapped: the name is no longer needed */
    unlink(path);
    if (st != WEFT_OK)
        fail_msg("toy model %s: %s", s->name, err.text);
    return m;
}
