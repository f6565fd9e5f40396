/* Replies that need no engine. */
#include <string.h>

#include "openai/text.h"
#include "openai/tokens.h"

char *openai_tokenize_body(const openai_server *s, const openai_request *q, int32_t max_model_len) {
    openai_text t = {0};
    const openai_prompt *p = &q->prompt[0];
    openai_puts(&t, "{\"count\":");
    openai_put_integer(&t, p->n_id);
    openai_puts(&t, ",\"max_model_len\":");
    openai_put_integer(&t, max_model_len);
    openai_puts(&t, ",\"tokens\":[");
    for (int32_t i = 0; i < p->n_id; i++) {
        openai_puts(&t, i > 0 ? "," : "");
        openai_put_integer(&t, p->id[i]);
    }
    openai_puts(&t, q->token_strs ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    for (int32_t i = 0; q->token_strs && i < p->n_id; i++) {
        openai_puts(&t, i > 0 ? "," : "");
        openai_put_token(&t, s, p->id[i]);
    }
    openai_puts(&t, q->token_strs ? "]}" : "");
    return openai_text_take(&t);
}

char *openai_detokenize_body(const char *text, size_t n) {
    openai_text t = {0};
    openai_puts(&t, "{\"prompt\":");
    openai_put_string(&t, text, n);
    openai_puts(&t, "}");
    return openai_text_take(&t);
}

static void put_model(openai_text *t, const char *name, int64_t created, int32_t max_model_len) {
    openai_puts(t, "{\"id\":");
    openai_put_string(t, name, strlen(name));
    openai_puts(t, ",\"object\":\"model\",\"created\":");
    openai_put_integer(t, created);
    openai_puts(t, ",\"owned_by\":\"weft\",\"root\":");
    openai_put_string(t, name, strlen(name));
    openai_puts(t, ",\"parent\":null,\"max_model_len\":");
    openai_put_integer(t, max_model_len);
    openai_puts(t, "}");
}

char *openai_model_body(const char *name, int64_t created, int32_t max_model_len) {
    openai_text t = {0};
    put_model(&t, name, created, max_model_len);
    return openai_text_take(&t);
}

char *openai_models_body(const char *const *names, int32_t n, int64_t created,
                         int32_t max_model_len) {
    openai_text t = {0};
    openai_puts(&t, "{\"object\":\"list\",\"data\":[");
    for (int32_t i = 0; i < n; i++) {
        openai_puts(&t, i > 0 ? "," : "");
        put_model(&t, names[i], created, max_model_len);
    }
    openai_puts(&t, "]}");
    return openai_text_take(&t);
}

char *openai_version_body(const char *version, const char *identity) {
    openai_text t = {0};
    openai_puts(&t, "{\"version\":");
    openai_put_string(&t, version, strlen(version));
    openai_puts(&t, ",\"identity\":");
    openai_put_string(&t, identity, strlen(identity));
    openai_puts(&t, "}");
    return openai_text_take(&t);
}

static void put_special(openai_text *t, const openai_server *s, const char *name, int32_t id) {
    openai_puts(t, name);
    if (id >= 0)
        openai_put_token(t, s, id);
    else
        openai_puts(t, "null");
}

char *openai_tokenizer_info_body(const openai_server *s, const weft_model_info *info) {
    openai_text t = {0};
    openai_puts(&t, "{\"tokenizer_class\":\"weft\",\"vocab_size\":");
    openai_put_integer(&t, info->n_vocab);
    put_special(&t, s, ",\"bos_token\":", info->bos);
    put_special(&t, s, ",\"eos_token\":", info->eos);
    put_special(&t, s, ",\"pad_token\":", info->eos);
    openai_puts(&t, ",\"chat_template\":");
    if (info->chat_template)
        openai_put_string(&t, info->chat_template, strlen(info->chat_template));
    else
        openai_puts(&t, "null");
    openai_puts(&t, "}");
    return openai_text_take(&t);
}
