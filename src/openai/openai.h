/* OpenAI's JSON <-> requests and events of the engine. No sockets, no threads, no engine: bytes in,
 * structs out, and back.
 *
 *   body -> openai_parse -> openai_request -> (tokenise, submit) -> weft_event ... -> openai_answer
 *                                                                -> chunks, or one reply
 */
#ifndef WEFT_OPENAI_OPENAI_H
#define WEFT_OPENAI_OPENAI_H

#include "base/status.h"

/* What a client is told. The reply's body is made by openai_error_body. */
typedef struct openai_error {
    int http;         /* status */
    const char *type; /* "invalid_request_error", "not_found_error", ...; static */
    const char *code; /* for programs, static; NULL: what the status and param imply, if anything */
    char param[64];   /* the field at fault, "" for none; never the client's own bytes */
    char message[512]; /* likewise */
} openai_error;
/* Fills *e and returns false. */
bool openai_error_set(openai_error *e, int http, const char *type, const char *param,
                      const char *text, ...) __attribute__((format(printf, 5, 6)));
/* {"error": {"message", "type", "param", "code"}}; malloc'ed, NULL without memory. */
char *openai_error_body(const openai_error *e);

typedef enum openai_kind {
    OPENAI_COMPLETION,
    OPENAI_CHAT,
    OPENAI_TOKENIZE,
    OPENAI_DETOKENIZE
} openai_kind;

typedef struct openai_limits {
    const char *const *model; /* names that are served; [n_model] */
    int32_t n_model;
    int32_t n_vocab, max_model_len;
    int32_t max_n;      /* choices of one prompt */
    int32_t max_prompt; /* prompts of one request */
} openai_limits;

/* openai_parse gives one of both; who submits the request makes the other (tokenised, detokenised),
 * so that an answer has both. */
typedef struct openai_prompt {
    char *text; /* [bytes], malloc'ed; NULL: ids were sent */
    size_t bytes;
    int32_t *id; /* [n_id], malloc'ed; NULL: text was sent */
    int32_t n_id;
} openai_prompt;

typedef struct openai_request {
    openai_kind kind;
    openai_prompt *prompt; /* [n_prompt]; CHAT, and TOKENIZE of messages: one, still empty */
    int32_t n_prompt;
    char **role, **content; /* [n_message]; CHAT, and TOKENIZE of messages */
    int32_t n_message;
    bool add_generation_prompt; /* default true */
    bool add_special_tokens;    /* default true; not for CHAT */
    bool token_strs;            /* TOKENIZE */
    int32_t n;                  /* choices of each prompt, at least 1 */
    int32_t max_tokens;         /* -1: as many as fit; 0: none (the prompt is only scored) */
    weft_sampling sampling;     /* logprob and n_top set where asked for; seed 0 unless has_seed */
    bool has_seed;
    char **stop; /* [n_stop] */
    int32_t n_stop;
    weft_bias *bias; /* [n_bias] */
    int32_t n_bias;
    int32_t logprobs; /* -1: none; else the most likely tokens to list */
    bool echo, stream, include_usage, ignore_eos;
    double timeout_s; /* 0: none */
    char *cache_salt; /* NULL: none */
} openai_request;

/* Strict UTF-8 JSON. A field that is not known is ignored, null is as good as absent, a known one
 * with a wrong value is refused by name (400), a model that is not served is a 404. *out is owned by
 * the caller (openai_request_free). false: *err says why. */
bool openai_parse(openai_kind kind, const char *body, size_t n, const openai_limits *l,
                  openai_request **out, openai_error *err);
void openai_request_free(openai_request *q); /* NULL is allowed */

/* ---- answers ---- */

/* Growing bytes. */
typedef struct openai_text {
    char *data; /* [n], malloc'ed */
    size_t n, cap;
    bool failed; /* no memory: what was to be added is lost */
} openai_text;
void openai_text_free(openai_text *t);

typedef struct openai_answer openai_answer;

/* What all answers of a server share. */
typedef struct openai_server {
    const weft_model *model;
    /* weft_token_bytes */
    const char *(*token_bytes)(const weft_model *model, int32_t id, size_t *n_bytes);
    /* weft_token_is_special */
    bool (*token_is_special)(const weft_model *model, int32_t id);
    const char *name;        /* of the model, as the replies give it */
    const char *fingerprint; /* numerics identity */
} openai_server;

/* One answer of q->n_prompt * q->n choices: number p * n + c is choice c of prompt p. The prompts
 * have ids and text. id and created are those of the reply ("cmpl-..."). Borrows everything until
 * openai_answer_close. NULL: no memory. */
openai_answer *openai_answer_open(const openai_server *s, const openai_request *q, const char *id,
                                  int64_t created);
void openai_answer_close(openai_answer *a);
/* Takes an event of a choice. For streams, the server-sent events that are due are added to *out. A
 * choice whose END has FINISH_ERROR makes the call fail: the caller ends it by openai_answer_fail,
 * or with a reply of its own. */
void openai_answer_event(openai_answer *a, int32_t choice, const weft_event *ev, openai_text *out);
/* Text and log-probabilities that wait in it. */
size_t openai_answer_bytes(const openai_answer *a);
/* All choices have ended: adds the whole reply, or for streams usage (where asked for) and [DONE]. */
void openai_answer_end(openai_answer *a, openai_text *out);
/* A stream that has begun breaks off: adds an event with the error and [DONE]. */
void openai_answer_fail(openai_answer *a, const openai_error *e, openai_text *out);

/* Replies that need no engine. Bodies are malloc'ed, NULL without memory. */
char *openai_tokenize_body(const openai_server *s, const openai_request *q, int32_t max_model_len);
char *openai_detokenize_body(const char *text, size_t n);
char *openai_model_body(const char *name, int64_t created, int32_t max_model_len);
char *openai_models_body(const char *const *names, int32_t n, int64_t created,
                         int32_t max_model_len);
char *openai_version_body(const char *version, const char *identity);
/* Special tokens (null where the model has none; the end token also pads) and the chat template. */
char *openai_tokenizer_info_body(const openai_server *s, const weft_model_info *info);
#endif
