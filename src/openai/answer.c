/* Events to answers. A choice's text and tokens are written as JSON when they come, and wait: in a
 * stream for the chunk that the same event makes, else for the reply. So both say the same. */
#include <stdlib.h>
#include <string.h>

#include "openai/field.h"
#include "openai/text.h"
#include "openai/tokens.h"

typedef struct choice {
    openai_text text; /* that waits, as the inside of a JSON string */
    openai_tokens tokens;
    int64_t n_char;    /* of the text so far: where the next token begins */
    int32_t n_due;     /* bytes that the last character of the tokens so far still lacks */
    int32_t n_listed;  /* tokens of the prompt that were listed */
    size_t n_aligned;  /* bytes of the prompt's text that they make */
    bool begun, ended; /* what comes before the first token was written; END has come */
    weft_finish finish;
    int32_t n_output, n_cached;
    size_t n_bytes; /* that wait, as the answer's sum knows them */
} choice;

struct openai_answer {
    const openai_server *server;
    const openai_request *q;
    openai_text head; /* of a chunk, or of the reply: up to the choices */
    size_t n_bytes;   /* that wait in all choices */
    int32_t n_choice;
    choice choice[];
};

static bool is_chat(const openai_answer *a) {
    return a->q->kind == OPENAI_CHAT;
}

static const openai_prompt *prompt_of(const openai_answer *a, int32_t i) {
    return &a->q->prompt[i / a->q->n];
}

openai_answer *openai_answer_open(const openai_server *s, const openai_request *q, const char *id,
                                  int64_t created) {
    size_t n = (size_t)q->n_prompt * (size_t)q->n;
    openai_answer *a = calloc(1, sizeof *a + n * sizeof(choice));
    if (a == NULL) {
        return NULL;
    }
    a->server = s;
    a->q = q;
    a->n_choice = (int32_t)n;
    openai_text *head = &a->head;
    openai_puts(head, "{\"id\":");
    openai_put_string(head, id, strlen(id));
    openai_puts(head, ",\"object\":\"");
    openai_puts(head, !is_chat(a) ? "text_completion"
                      : q->stream ? "chat.completion.chunk"
                                  : "chat.completion");
    openai_puts(head, "\",\"created\":");
    openai_put_integer(head, created);
    openai_puts(head, ",\"model\":");
    openai_put_string(head, s->name, strlen(s->name));
    openai_puts(head, ",\"system_fingerprint\":");
    openai_put_string(head, s->fingerprint, strlen(s->fingerprint));
    openai_puts(head, ",\"choices\":[");
    if (head->failed) {
        openai_answer_close(a);
        return NULL;
    }
    return a;
}

void openai_answer_close(openai_answer *a) {
    if (a == NULL) {
        return;
    }
    for (int32_t i = 0; i < a->n_choice; i++) {
        openai_text_free(&a->choice[i].text);
        openai_tokens_free(&a->choice[i].tokens);
    }
    openai_text_free(&a->head);
    free(a);
}

/* ---- choices ---- */

static const char *finish_word(const openai_answer *a, const choice *c) {
    /* no token was asked for, so whatever the one that was made brought about does not count */
    bool length = c->finish == WEFT_FINISH_LENGTH || a->q->max_tokens == 0;
    return !c->ended ? "null" : length ? "\"length\"" : "\"stop\"";
}

/* The members after the text, with what waits in c->tokens. */
static void put_choice_end(openai_text *out, const openai_answer *a, const choice *c,
                           const char *finish) {
    openai_puts(out, ",\"logprobs\":");
    if (c->tokens.n > 0 || (a->q->logprobs >= 0 && !a->q->stream)) {
        openai_put_tokens(out, &c->tokens, is_chat(a));
    } else {
        openai_puts(out, "null");
    }
    openai_puts(out, ",\"finish_reason\":");
    openai_puts(out, finish);
    openai_puts(out, "}");
    out->failed = out->failed || c->text.failed || openai_tokens_failed(&c->tokens);
}

static void put_choice_begin(openai_text *out, int32_t i) {
    openai_puts(out, "{\"index\":");
    openai_put_integer(out, i);
}

static void put_completion_choice(openai_text *out, const openai_answer *a, int32_t i,
                                  const char *finish) {
    const choice *c = &a->choice[i];
    put_choice_begin(out, i);
    openai_puts(out, ",\"text\":\"");
    openai_put(out, c->text.data, c->text.n);
    openai_puts(out, "\"");
    put_choice_end(out, a, c, finish);
}

static void put_chat_choice(openai_text *out, const openai_answer *a, int32_t i) {
    const choice *c = &a->choice[i];
    put_choice_begin(out, i);
    openai_puts(out, ",\"message\":{\"role\":\"assistant\",\"content\":\"");
    openai_put(out, c->text.data, c->text.n);
    openai_puts(out, "\",\"refusal\":null}");
    put_choice_end(out, a, c, finish_word(a, c));
}

/* ---- chunks ---- */

static void put_chunk_begin(openai_text *out, const openai_answer *a) {
    openai_puts(out, "data: ");
    openai_put(out, a->head.data, a->head.n);
}

static void put_chunk_end(openai_text *out, const openai_answer *a) {
    openai_puts(out, a->q->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

static void put_delta(openai_text *out, const openai_answer *a, int32_t i, const char *delta,
                      const char *finish) {
    const choice *c = &a->choice[i];
    put_chunk_begin(out, a);
    put_choice_begin(out, i);
    openai_puts(out, ",\"delta\":{");
    openai_puts(out, delta);
    if (c->text.n > 0 || c->tokens.n > 0) {
        openai_puts(out, "\"content\":\"");
        openai_put(out, c->text.data, c->text.n);
        openai_puts(out, "\"");
    }
    openai_puts(out, "}");
    put_choice_end(out, a, c, finish);
    put_chunk_end(out, a);
}

/* Sends what waits, and for completions the end with it. */
static void send_waiting(openai_answer *a, int32_t i, const char *finish, openai_text *out) {
    choice *c = &a->choice[i];
    if (is_chat(a)) {
        put_delta(out, a, i, "", "null");
    } else {
        put_chunk_begin(out, a);
        put_completion_choice(out, a, i, finish);
        put_chunk_end(out, a);
    }
    c->text.n = 0;
    openai_tokens_clear(&c->tokens);
}

static void send_due(openai_answer *a, int32_t i, openai_text *out) {
    choice *c = &a->choice[i];
    if (c->text.n > 0 || c->tokens.n > 0 || c->text.failed || (c->ended && !is_chat(a))) {
        send_waiting(a, i, finish_word(a, c), out);
    }
    if (c->ended && is_chat(a)) {
        put_delta(out, a, i, "", finish_word(a, c));
    }
}

/* ---- characters ---- */

static int64_t count_characters(const char *text, size_t n) {
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return count;
}

/* Characters that end in the bytes; one that cannot be finished counts as one, and ends where the next
 * begins. */
static int64_t count_ends(int32_t *n_due, const char *bytes, size_t n) {
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char b = (unsigned char)bytes[i];
        if (*n_due > 0 && (b & 0xC0) == 0x80) {
            count += --*n_due == 0;
            continue;
        }
        count += *n_due > 0;
        *n_due = b >= 0xF0 ? 3 : b >= 0xE0 ? 2 : b >= 0xC0 ? 1 : 0;
        count += *n_due == 0;
    }
    return count;
}

/* Bytes of the prompt's text that its token makes. What the text does not go on with was put in
 * front of it (BOS) or, further on, stands for text that was brought into another form. */
static size_t aligned_bytes(const openai_prompt *p, size_t at, const char *bytes, size_t n) {
    size_t left = p->bytes - at;
    if (n == 0) {
        return 0;
    }
    if (n <= left && memcmp(p->text + at, bytes, n) == 0) {
        return n;
    }
    if (at > 0) {
        return n < left ? n : left;
    }
    bool blank =
        n > 1 && bytes[0] == ' ' && n - 1 <= left && memcmp(p->text, bytes + 1, n - 1) == 0;
    return blank ? n - 1 : 0;
}

/* ---- events ---- */

static void list_prompt_token(openai_answer *a, int32_t i, const weft_event *ev) {
    choice *c = &a->choice[i];
    const openai_prompt *p = prompt_of(a, i);
    int32_t id = p->id[c->n_listed++];
    size_t n, at = c->n_aligned;
    const char *bytes = a->server->token_bytes(a->server->model, id, &n);
    bool inside = at < p->bytes && ((unsigned char)p->text[at] & 0xC0) == 0x80;
    openai_tokens_add(&c->tokens, a->server, id, ev, c->n_char - inside);
    c->n_aligned += aligned_bytes(p, at, bytes, n);
    c->n_char += count_characters(p->text + at, c->n_aligned - at);
}

/* Rows that do not come leave their tokens without a number. */
static void take_row(openai_answer *a, int32_t i, const weft_event *ev) {
    choice *c = &a->choice[i];
    int64_t at = ev->position + 1;
    if (!a->q->echo || a->q->logprobs < 0 || c->begun || at < 1 || at >= prompt_of(a, i)->n_id) {
        return;
    }
    while (c->n_listed < at) {
        list_prompt_token(a, i, NULL);
    }
    if (c->n_listed == at) {
        list_prompt_token(a, i, ev);
    }
}

static void begin(openai_answer *a, int32_t i, openai_text *out) {
    choice *c = &a->choice[i];
    const openai_prompt *p = prompt_of(a, i);
    c->begun = true;
    if (is_chat(a) && a->q->stream) {
        put_delta(out, a, i, "\"role\":\"assistant\",\"content\":\"\"", "null");
    }
    if (!a->q->echo || is_chat(a)) {
        return;
    }
    while (a->q->logprobs >= 0 && c->n_listed < p->n_id) {
        list_prompt_token(a, i, NULL);
    }
    openai_put_escaped(&c->text, p->text, p->bytes);
    c->n_char = count_characters(p->text, p->bytes);
    if (a->q->stream) {
        send_waiting(a, i, "null", out);
    }
}

/* Text may be held back (an unfinished character, a run of byte tokens, the beginning of a stop
 * string), so the tokens themselves say where the next one begins. */
static void take_token(openai_answer *a, int32_t i, const weft_event *ev) {
    choice *c = &a->choice[i];
    size_t n = 0;
    const char *bytes = "";
    if (!a->server->token_is_special(a->server->model, ev->token)) {
        bytes = a->server->token_bytes(a->server->model, ev->token, &n);
    }
    if (c->n_due > 0 && n > 0 && ((unsigned char)bytes[0] & 0xC0) != 0x80) {
        c->n_due = 0; /* the character before stays unfinished, and is shown as one */
        c->n_char++;
    }
    if (a->q->logprobs >= 0 && is_chat(a)) {
        openai_tokens_add_chat(&c->tokens, a->server, ev);
    } else if (a->q->logprobs >= 0) {
        openai_tokens_add(&c->tokens, a->server, ev->token, ev, c->n_char);
    }
    openai_put_escaped(&c->text, ev->text, ev->text_bytes);
    c->n_char += count_ends(&c->n_due, bytes, n);
}

static void take_end(openai_answer *a, int32_t i, const weft_event *ev) {
    choice *c = &a->choice[i];
    c->ended = true;
    c->finish = ev->finish;
    c->n_cached = ev->n_cached_token;
    if (a->q->max_tokens != 0) {
        c->n_output = ev->n_output_token;
        openai_put_escaped(&c->text, ev->text, ev->text_bytes);
    }
}

size_t openai_answer_bytes(const openai_answer *a) {
    return a->n_bytes;
}

static void count_bytes(openai_answer *a, choice *c) {
    size_t now = c->text.n + openai_tokens_bytes(&c->tokens);
    a->n_bytes += now - c->n_bytes;
    c->n_bytes = now;
}

static void take_event(openai_answer *a, int32_t i, const weft_event *ev, openai_text *out) {
    choice *c = &a->choice[i];
    bool failed = ev->kind == WEFT_EVENT_END && ev->finish == WEFT_FINISH_ERROR;
    if (c->ended || failed) {
        c->ended = true;
        return;
    }
    if (ev->kind == WEFT_EVENT_PROMPT_ROW) {
        take_row(a, i, ev);
        return;
    }
    if (!c->begun) {
        begin(a, i, out);
    }
    if (ev->kind == WEFT_EVENT_END) {
        take_end(a, i, ev);
    } else if (a->q->max_tokens != 0) {
        take_token(a, i, ev);
    }
    if (a->q->stream) {
        send_due(a, i, out);
    }
}

void openai_answer_event(openai_answer *a, int32_t i, const weft_event *ev, openai_text *out) {
    take_event(a, i, ev, out);
    count_bytes(a, &a->choice[i]);
}

/* ---- ends ---- */

/* A prompt counts once, whatever the number of its choices; as cached counts what none of them
 * computed. */
static void put_usage(openai_text *out, const openai_answer *a) {
    int64_t n_prompt = 0, n_output = 0, n_cached = 0;
    for (int32_t p = 0; p < a->q->n_prompt; p++) {
        const choice *c = &a->choice[p * a->q->n];
        int32_t least = c->n_cached;
        for (int32_t k = 0; k < a->q->n; k++) {
            least = c[k].n_cached < least ? c[k].n_cached : least;
            n_output += c[k].n_output;
        }
        n_prompt += a->q->prompt[p].n_id;
        n_cached += least;
    }
    openai_puts(out, "{\"prompt_tokens\":");
    openai_put_integer(out, n_prompt);
    openai_puts(out, ",\"completion_tokens\":");
    openai_put_integer(out, n_output);
    openai_puts(out, ",\"total_tokens\":");
    openai_put_integer(out, n_prompt + n_output);
    openai_puts(out, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    openai_put_integer(out, n_cached);
    openai_puts(out, "}}");
}

static void put_reply(openai_text *out, const openai_answer *a) {
    openai_put(out, a->head.data, a->head.n);
    for (int32_t i = 0; i < a->n_choice; i++) {
        openai_puts(out, i > 0 ? "," : "");
        if (is_chat(a)) {
            put_chat_choice(out, a, i);
        } else {
            put_completion_choice(out, a, i, finish_word(a, &a->choice[i]));
        }
    }
    openai_puts(out, "],\"usage\":");
    put_usage(out, a);
    openai_puts(out, "}");
}

void openai_answer_end(openai_answer *a, openai_text *out) {
    if (!a->q->stream) {
        put_reply(out, a);
        return;
    }
    if (a->q->include_usage) {
        put_chunk_begin(out, a);
        openai_puts(out, "],\"usage\":");
        put_usage(out, a);
        openai_puts(out, "}\n\n");
    }
    openai_puts(out, "data: [DONE]\n\n");
}

void openai_answer_fail(openai_answer *a, const openai_error *e, openai_text *out) {
    (void)a;
    openai_puts(out, "data: ");
    openai_put_error(out, e);
    openai_puts(out, "\n\ndata: [DONE]\n\n");
}
