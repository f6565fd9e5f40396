/* Log-probabilities of a choice's tokens. */
#include "openai/tokens.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "openai/text.h"

void openai_tokens_free(openai_tokens *t) {
    openai_text_free(&t->token);
    openai_text_free(&t->logprob);
    openai_text_free(&t->top);
    openai_text_free(&t->offset);
    t->n = 0;
}

void openai_tokens_clear(openai_tokens *t) {
    t->n = 0;
    t->token.n = t->logprob.n = t->top.n = t->offset.n = 0;
}

size_t openai_tokens_bytes(const openai_tokens *t) {
    return t->token.n + t->logprob.n + t->top.n + t->offset.n;
}

bool openai_tokens_failed(const openai_tokens *t) {
    return t->token.failed || t->logprob.failed || t->top.failed || t->offset.failed;
}

void openai_put_token(openai_text *out, const openai_server *s, int32_t id) {
    size_t n;
    const char *bytes = s->token_bytes(s->model, id, &n);
    if (utf8_valid_bytes(bytes, n) == n) {
        openai_put_string(out, bytes, n);
        return;
    }
    openai_puts(out, "\"bytes:");
    for (size_t i = 0; i < n; i++) {
        unsigned char b = (unsigned char)bytes[i];
        if (b >= 0x20 && b < 0x7F && b != '\\') {
            openai_put_escaped(out, bytes + i, 1);
        } else {
            char code[8];
            snprintf(code, sizeof code, "\\\\x%02x", b);
            openai_puts(out, code);
        }
    }
    openai_puts(out, "\"");
}

/* ---- completions ---- */

static bool same_text(const openai_server *s, int32_t a, int32_t b) {
    size_t n_a, n_b;
    const char *text_a = s->token_bytes(s->model, a, &n_a);
    const char *text_b = s->token_bytes(s->model, b, &n_b);
    return a == b || (n_a == n_b && n_a > 0 && memcmp(text_a, text_b, n_a) == 0);
}

/* Text -> log-probability, the likeliest first, and the token itself wherever it stands: clients
 * look for it. No text stands twice: the likelier of two tokens with one text counts. */
static void put_likeliest(openai_text *out, const openai_server *s, const weft_event *ev) {
    int32_t id[WEFT_MAX_TOP + 1], n = ev->n_top;
    memcpy(id, ev->top_id, (size_t)n * sizeof *id);
    id[n] = ev->token;
    openai_puts(out, "{");
    for (int32_t i = 0; i <= n; i++) {
        bool known = false;
        for (int32_t k = 0; k < i && !known; k++) {
            known = same_text(s, id[k], id[i]);
        }
        if (!known) {
            openai_puts(out, i > 0 ? "," : "");
            openai_put_token(out, s, id[i]);
            openai_puts(out, ":");
            openai_put_float(out, i < n ? ev->top_logprob[i] : ev->logprob);
        }
    }
    openai_puts(out, "}");
}

void openai_tokens_add(openai_tokens *t, const openai_server *s, int32_t id, const weft_event *ev,
                       int64_t offset) {
    if (t->n++ > 0) {
        openai_puts(&t->token, ",");
        openai_puts(&t->logprob, ",");
        openai_puts(&t->top, ",");
        openai_puts(&t->offset, ",");
    }
    openai_put_token(&t->token, s, id);
    openai_put_integer(&t->offset, offset);
    if (ev == NULL) {
        openai_puts(&t->logprob, "null");
        openai_puts(&t->top, "null");
        return;
    }
    openai_put_float(&t->logprob, ev->logprob);
    put_likeliest(&t->top, s, ev);
}

/* ---- chats ---- */

/* Without the closing brace. */
static void put_chat_token(openai_text *out, const openai_server *s, int32_t id, float logprob) {
    size_t n;
    const char *bytes = s->token_bytes(s->model, id, &n);
    openai_puts(out, "{\"token\":");
    openai_put_token(out, s, id);
    openai_puts(out, ",\"logprob\":");
    openai_put_float(out, logprob);
    openai_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) {
        openai_puts(out, i > 0 ? "," : "");
        openai_put_integer(out, (unsigned char)bytes[i]);
    }
    openai_puts(out, "]");
}

void openai_tokens_add_chat(openai_tokens *t, const openai_server *s, const weft_event *ev) {
    openai_text *out = &t->token;
    openai_puts(out, t->n++ > 0 ? "," : "");
    put_chat_token(out, s, ev->token, ev->logprob);
    openai_puts(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < ev->n_top; i++) {
        openai_puts(out, i > 0 ? "," : "");
        put_chat_token(out, s, ev->top_id[i], ev->top_logprob[i]);
        openai_puts(out, "}");
    }
    openai_puts(out, "]}");
}

void openai_put_tokens(openai_text *out, const openai_tokens *t, bool chat) {
    if (chat) {
        openai_puts(out, "{\"content\":[");
        openai_put(out, t->token.data, t->token.n);
        openai_puts(out, "],\"refusal\":null}");
        return;
    }
    openai_puts(out, "{\"tokens\":[");
    openai_put(out, t->token.data, t->token.n);
    openai_puts(out, "],\"token_logprobs\":[");
    openai_put(out, t->logprob.data, t->logprob.n);
    openai_puts(out, "],\"top_logprobs\":[");
    openai_put(out, t->top.data, t->top.n);
    openai_puts(out, "],\"text_offset\":[");
    openai_put(out, t->offset.data, t->offset.n);
    openai_puts(out, "]}");
}
