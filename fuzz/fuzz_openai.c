/* Input: a digit 0 to 3 for the kind of request, and its body. Any bytes are refused with an error that is
 * JSON of a few hundred plain characters, or make a request that the engine takes, whose answer is JSON. */
#include "openai/openai.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

enum { N_VOCAB = 300, MAX_LEN = 64, MAX_N = 4, MAX_PROMPT = 8 };

static const char *token_bytes(const weft_model *model, int32_t id, size_t *n) {
    static const char *const text[] = {"a", " b", "\xE4", "\xBD\xA0", "\"", "<s>"};
    (void)model;
    const char *bytes = text[id % 6];
    *n = strlen(bytes);
    return bytes;
}

static bool token_is_special(const weft_model *model, int32_t id) {
    (void)model;
    return id % 6 == 5;
}

static void check_json(const char *text, size_t n) {
    json_t *v = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    CHECK(v != NULL);
    json_decref(v);
}

static void check_error(const openai_error *e) {
    CHECK(e->http == 400 || e->http == 404);
    CHECK(e->message[0] != '\0');
    for (const char *p = e->message; *p != '\0'; p++) {
        CHECK(*p >= 0x20 && *p < 0x7F);
    }
    char *body = openai_error_body(e);
    CHECK(strlen(body) < 1024);
    check_json(body, strlen(body));
    free(body);
}

/* As sample_check asks for. */
static void check_sampling(const openai_request *q) {
    const weft_sampling *s = &q->sampling;
    CHECK(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1);
    CHECK(s->min_p >= 0 && s->min_p <= 1 && s->top_k >= -1);
    CHECK(isfinite(s->repetition_penalty) && s->repetition_penalty > 0);
    CHECK(fabsf(s->presence_penalty) <= 2 && fabsf(s->frequency_penalty) <= 2);
    CHECK(s->n_top >= 0 && s->n_top <= WEFT_MAX_TOP && s->n_top <= q->logprobs + 1);
}

/* As the engine's submit asks for. */
static void check_ends(const openai_request *q) {
    CHECK(q->max_tokens >= -1 && q->max_tokens <= MAX_LEN);
    CHECK(q->n_stop <= WEFT_MAX_STOP && q->n_bias <= WEFT_MAX_BIAS);
    for (int32_t i = 0; i < q->n_stop; i++) {
        CHECK(q->stop[i][0] != '\0');
    }
    for (int32_t i = 0; i < q->n_bias; i++) {
        CHECK(q->bias[i].token >= 0 && q->bias[i].token < N_VOCAB);
        CHECK(fabsf(q->bias[i].value) <= 100);
        for (int32_t k = 0; k < i; k++) {
            CHECK(q->bias[k].token != q->bias[i].token);
        }
    }
    CHECK(q->timeout_s >= 0 && q->timeout_s <= 86400);
    CHECK(q->cache_salt == NULL || q->cache_salt[0] != '\0');
}

static void check_prompts(const openai_request *q) {
    CHECK(q->n >= 1 && q->n <= MAX_N && q->n_prompt >= 1 && q->n_prompt <= MAX_PROMPT);
    for (int32_t i = 0; i < q->n_message; i++) {
        CHECK(q->role[i][0] != '\0' && q->content[i] != NULL);
    }
    for (int32_t p = 0; p < q->n_prompt; p++) {
        CHECK((q->prompt[p].text != NULL) + (q->prompt[p].id != NULL) == (q->n_message == 0));
        for (int32_t i = 0; i < q->prompt[p].n_id; i++) {
            CHECK(q->prompt[p].id[i] >= 0 && q->prompt[p].id[i] < N_VOCAB);
        }
    }
}

/* As who submits the request does: every prompt has text and ids. */
static void complete_prompts(openai_request *q) {
    for (int32_t p = 0; p < q->n_prompt; p++) {
        openai_prompt *prompt = &q->prompt[p];
        if (prompt->text == NULL) {
            prompt->text = strdup("a b\xE4\xBD\xA0");
            prompt->bytes = 6;
        }
        if (prompt->id == NULL) {
            prompt->n_id = 5;
            prompt->id = malloc(5 * sizeof *prompt->id);
            for (int32_t i = 0; i < 5; i++) {
                prompt->id[i] = i;
            }
        }
    }
}

static void check_text(const openai_request *q, const openai_text *out) {
    CHECK(!out->failed);
    if (!q->stream) {
        check_json(out->data, out->n);
        return;
    }
    static const char done[] = "data: [DONE]\n\n";
    const char *p = out->data, *last = out->data + out->n - strlen(done);
    CHECK(memcmp(last, done, strlen(done)) == 0);
    while (p < last) {
        const char *stop = memmem(p, (size_t)(last - p), "\n\n", 2);
        CHECK(stop != NULL && memcmp(p, "data: ", 6) == 0);
        check_json(p + 6, (size_t)(stop - p) - 6);
        p = stop + 2;
    }
}

static void check_answer(openai_request *q) {
    const openai_server server = {.token_bytes = token_bytes,
                                  .token_is_special = token_is_special,
                                  .name = "m",
                                  .fingerprint = "f"};
    openai_text out = {0};
    complete_prompts(q);
    openai_answer *a = openai_answer_open(&server, q, "id", 1);
    CHECK(a != NULL);
    for (int32_t i = 0; i < q->n_prompt * q->n; i++) {
        for (int32_t k = 0; k < 6; k++) {
            const weft_event ev = {.kind = k < 2   ? WEFT_EVENT_PROMPT_ROW
                                           : k < 5 ? WEFT_EVENT_TOKEN
                                                   : WEFT_EVENT_END,
                                   .position = k,
                                   .token = k,
                                   .logprob = -INFINITY,
                                   .n_top = q->sampling.n_top,
                                   .text = k % 2 != 0 ? "\xC3\xA9\"" : "",
                                   .text_bytes = k % 2 != 0 ? 3 : 0,
                                   .finish = k == 5 ? WEFT_FINISH_LENGTH : WEFT_FINISH_NONE};
            openai_answer_event(a, i, &ev, &out);
        }
    }
    openai_answer_end(a, &out);
    openai_answer_close(a);
    check_text(q, &out);
    openai_text_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"m"};
    const openai_limits limits = {.model = names,
                                  .n_model = 1,
                                  .n_vocab = N_VOCAB,
                                  .max_model_len = MAX_LEN,
                                  .max_n = MAX_N,
                                  .max_prompt = MAX_PROMPT};
    if (size == 0) {
        return 0;
    }
    openai_kind kind = (openai_kind)(data[0] & 3);
    char *body =
        malloc(size > 1 ? size - 1 : 1); /* its own block, so that reading past the end is seen */
    memcpy(body, data + 1, size - 1);
    openai_request *q = NULL;
    openai_error e = {0};
    bool ok = openai_parse(kind, body, size - 1, &limits, &q, &e);
    free(body);
    if (!ok) {
        CHECK(q == NULL);
        check_error(&e);
        return 0;
    }
    check_sampling(q);
    check_ends(q);
    check_prompts(q);
    if (kind == OPENAI_COMPLETION || kind == OPENAI_CHAT) {
        check_answer(q);
    }
    openai_request_free(q);
    return 0;
}
