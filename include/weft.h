/* weft: one prompt, many ranks, the same bytes.
 *
 * The public C API. Opaque handles; every call returns a weft_status and leaves its outputs
 * untouched on failure. Threads: any number may use a model or an engine, once open. Life: model >
 * engine > request; an engine borrows its model until weft_engine_close. */
#ifndef WEFT_H
#define WEFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_VERSION "0.1.0"

/* X(name, value, short text, HTTP status) */
#define WEFT_STATUS_TABLE(X)                                                                       \
    X(WEFT_OK, 0, "ok", 200)                                                                       \
    X(WEFT_ERR_USAGE, 1, "wrong use", 400)                                                         \
    X(WEFT_ERR_SETUP, 2, "illegal set-up", 400)                                                    \
    X(WEFT_ERR_FILE, 3, "unusable model file", 500)                                                \
    X(WEFT_ERR_MEMORY, 4, "not enough memory", 503)                                                \
    X(WEFT_ERR_RANK, 5, "a rank or the transport failed", 503)                                     \
    X(WEFT_ERR_TOO_LONG, 6, "request does not fit", 400)                                           \
    X(WEFT_ERR_CANCELLED, 7, "cancelled", 499)                                                     \
    X(WEFT_ERR_NUMERIC, 8, "the model gave no finite logit", 500)                                  \
    X(WEFT_ERR_IO, 9, "input or output failed", 500)                                               \
    X(WEFT_ERR_INTERRUPTED, 10, "interrupted", 499)

typedef enum weft_status {
#define WEFT_STATUS_ENUM(name, value, text, http) name = value,
    WEFT_STATUS_TABLE(WEFT_STATUS_ENUM)
#undef WEFT_STATUS_ENUM
} weft_status;

/* The short text of a status; "unknown status" for a value outside the table. Never NULL. */
const char *weft_status_text(weft_status status);

/* Filled by calls that take one (NULL is allowed everywhere). */
typedef struct weft_error {
    weft_status status;
    int64_t offset;  /* byte offset into the file or text at fault; -1: none */
    char text[1008]; /* names the thing, its value and what would be right; UTF-8, one line */
} weft_error;

/* ---- model ---- */

typedef struct weft_model weft_model;

typedef struct weft_model_info {
    const char *architecture; /* borrowed until weft_model_close */
    const char *name;         /* general.name, or the file name */
    int32_t n_layer, n_vocab, n_head, n_kv_head, head_dim, hidden, ffn, context_length;
    int64_t n_parameter; /* elements of all tensors */
    int64_t file_bytes;
    int32_t bos, eos;          /* tokens; -1: none */
    const char *chat_template; /* as the model brings it; NULL: none */
    bool has_text; /* false: a folder without a tokeniser; prompts and answers are ids */
} weft_model_info;

/* Maps the file at `path` (.gguf, or a folder in Hugging Face layout), validates all of it, and builds the tokeniser. WEFT_ERR_FILE
 * with text and offset for anything wrong in it. *out is owned by the caller. */
weft_status weft_model_open(const char *path, weft_model **out, weft_error *err);
void weft_model_close(weft_model *model); /* NULL is allowed */
void weft_model_get_info(const weft_model *model, weft_model_info *out);

typedef enum weft_text_kind {
    WEFT_TEXT_PLAIN,   /* special tokens written in the text are text like any other */
    WEFT_TEXT_SPECIAL, /* they become their ids */
    WEFT_TEXT_PROMPT   /* and the model's BOS is put in front where the model asks for it */
} weft_text_kind;
/* Text to ids. Writes at most `cap` ids, sets *n to the number due (call again when *n > cap). */
weft_status weft_tokenize(const weft_model *model, const char *text, size_t text_bytes,
                          weft_text_kind kind, int32_t *ids, size_t cap, size_t *n,
                          weft_error *err);
/* Bytes of one token (not always whole UTF-8 characters); NULL and 0 for an id outside the
 * vocabulary. Borrowed. */
const char *weft_token_bytes(const weft_model *model, int32_t id, size_t *n_bytes);
/* Control tokens, which are no part of an answer's text. False for an id outside the vocabulary. */
bool weft_token_is_special(const weft_model *model, int32_t id);
/* The text of ids as a whole: valid UTF-8, bytes that are no text become U+FFFD, special tokens are
 * left out unless `special`. *out is malloc'ed and NUL-terminated (it may hold NUL bytes of its own:
 * *n counts), the caller frees it. WEFT_ERR_USAGE names an id outside the vocabulary. */
weft_status weft_detokenize(const weft_model *model, const int32_t *ids, size_t n_id, bool special,
                            char **out, size_t *n, weft_error *err);
/* Renders a conversation with the model's template. roles and texts: [n], NUL-terminated UTF-8.
 * *out is malloc'ed, the caller frees it. WEFT_ERR_SETUP when the model's template is not one that
 * weft knows. */
weft_status weft_chat_render(const weft_model *model, const char *const *roles,
                             const char *const *texts, size_t n, bool add_generation_prompt,
                             char **out, weft_error *err);

/* ---- engine ---- */

typedef struct weft_engine weft_engine;

typedef enum weft_kv_dtype { WEFT_KV_F16, WEFT_KV_F32, WEFT_KV_BF16 } weft_kv_dtype;
typedef enum weft_exchange { WEFT_EXCHANGE_AUTO, WEFT_EXCHANGE_Q, WEFT_EXCHANGE_KV } weft_exchange;

typedef struct weft_logits_row {
    uint64_t request;
    int64_t position;    /* of the token that was fed: the row predicts position + 1 */
    const float *logits; /* [n_vocab], borrowed during the call */
    int32_t n_vocab;
} weft_logits_row;

typedef struct weft_engine_params {
    int32_t tp, pcp, dcp;           /* world = tp * pcp; dcp shards the cache inside it */
    int32_t n_thread;               /* all ranks together; 0: the cores this process may use */
    int32_t max_num_seqs;           /* requests in one step */
    int32_t max_num_batched_tokens; /* token rows in one step */
    int32_t max_model_len; /* prompt + answer of one request; 0: the model's, at most 8192 */
    /* Pages per rank of the layers that see the whole context, or that have the largest window
     * where none does; layers with a smaller window have fewer. 0: enough for max_num_seqs full
     * requests within kv_bytes. */
    int32_t kv_pages;
    uint64_t kv_bytes; /* cache of all ranks together; 0: a quarter of the free memory at most */
    weft_kv_dtype kv_dtype;
    weft_exchange exchange;
    int32_t cp_min_split; /* prompts shorter than this stay on one rank */
    /* Whole experts on the ranks of the world, tokens are sent to them; else each expert is split over
     * tp. The same bytes. Only for models with experts. */
    bool expert_parallel;
    /* Every context is computed from its start. Else the pages of contexts that were computed before
     * are kept while there is room, and used again by requests that begin alike. */
    bool no_prefix_cache;
    /* Level of the kernels; "auto": the best of this machine; NULL: what the environment variable
     * WEFT_ISA says, else "auto". */
    const char *isa;
    /* NULL: none; else weft_engine_close writes to this file, in Chrome's trace format, what each
     * thread of each rank did and waited for. A thread keeps its first trace_spans spans, 40 bytes
     * each. */
    const char *trace_path;
    int32_t trace_spans;
    const char
        *fault; /* NULL: none; a name of weft_fault_name: plants a fault, for tests of the checks */
    bool hash_logits; /* events carry the hash of their logits row */
    /* Called for each logits row by the rank that owns it, from that rank's thread; several may run
     * at once. */
    void (*on_logits)(void *user, const weft_logits_row *row);
    void *on_logits_user;
    /* Called by weft_engine_open, from its thread, while it packs the weights, with the share done
     * (0..1); the last call has 1. False ends the opening with WEFT_ERR_INTERRUPTED. */
    bool (*on_load)(void *user, double done);
    void *on_load_user;
} weft_engine_params;

void weft_engine_params_default(weft_engine_params *out);
/* The i-th fault's name, NULL past the last. */
const char *weft_fault_name(int32_t i);

/* Checks the set-up, plans memory, packs the weights and starts the ranks. `model` is borrowed
 * until weft_engine_close. */
weft_status weft_engine_open(weft_model *model, const weft_engine_params *params, weft_engine **out,
                             weft_error *err);
/* Cancels what runs, stops the ranks, frees everything. NULL is allowed. WEFT_ERR_IO, also logged,
 * when the trace could not be written, else WEFT_OK. */
weft_status weft_engine_close(weft_engine *engine);

/* The numerics identity, for instance "exact/P16/V16/L6-12/kv-f16". Borrowed. */
const char *weft_engine_identity(const weft_engine *engine);

/* Layers with the same window: they share pages that keep as much of a context. */
typedef struct weft_kv_group {
    int32_t window; /* tokens that a position sees; 0: all before it */
    int32_t n_layer;
    uint64_t token_bytes;        /* of a token on one rank */
    int64_t n_page, n_page_used; /* over the ranks of one cache replica */
    int64_t n_page_most;         /* used at any time so far */
    int64_t n_page_idle;         /* in no request's use, kept for the prefix cache */
} weft_kv_group;
#define WEFT_MAX_KV_GROUP 4

/* What rank 0 does in a step; the rest of a run's time it waits for requests. */
typedef enum weft_phase {
    WEFT_PHASE_PLAN, /* schedule, tell the ranks, build the batch */
    WEFT_PHASE_FORWARD,
    WEFT_PHASE_SAMPLE,
    WEFT_PHASE_DELIVER,
    WEFT_N_PHASE
} weft_phase;
#define WEFT_MAX_RANK 64

typedef struct weft_engine_stats {
    int64_t n_step, n_prompt_token, n_output_token, n_preemption;
    int64_t n_waiting, n_running;           /* requests, now */
    int64_t n_prefix_token, n_cached_token; /* of admitted contexts: all, and those found cached */
    double phase_s[WEFT_N_PHASE];
    double silent_s; /* since rank 0 began its last step, or looked for one */
    int32_t n_pool;  /* DCP ranks; each has pages of its own */
    int64_t pool_page, pool_used[WEFT_MAX_RANK]; /* all groups; cached pages are not in use */
    int64_t n_row;               /* token rows computed so far, recomputed ones too */
    int64_t n_page, n_page_used; /* over the ranks of one cache replica, all groups */
    uint64_t weight_bytes, kv_bytes, scratch_bytes; /* of the process */
    uint64_t planned_bytes; /* these, kernel threads' scratch, host buffers: weft plan's total */
    int32_t max_model_len, world, n_thread, kv_pages;
    const char *isa;
    int32_t n_group;
    weft_kv_group group[WEFT_MAX_KV_GROUP];
} weft_engine_stats;
void weft_engine_get_stats(const weft_engine *engine, weft_engine_stats *out);

/* ---- requests and events ---- */

typedef struct weft_sampling {
    float temperature;                                             /* 0: greedy */
    int32_t top_k;                                                 /* <= 0: off */
    float top_p;                                                   /* 1: off */
    float min_p;                                                   /* 0: off */
    float repetition_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    uint64_t seed; /* noise is keyed by it, the output's index and the token */
    bool logprob;  /* events carry log-probabilities */
    int32_t n_top; /* most likely tokens reported per event, at most WEFT_MAX_TOP; 0: none */
} weft_sampling;
#define WEFT_MAX_TOP 20
#define WEFT_MAX_STOP 64
#define WEFT_MAX_BIAS 1024

/* Added to the token's logit before everything else of the sampling; log-probabilities are without
 * it. */
typedef struct weft_bias {
    int32_t token;
    float value; /* -100 to 100 */
} weft_bias;

typedef struct weft_request {
    const int32_t *prompt; /* [n_prompt], copied */
    int32_t n_prompt;
    int32_t max_tokens;
    weft_sampling sampling;
    const char *const
        *stop;      /* [n_stop] strings, copied; the answer ends before the first that appears */
    int32_t n_stop; /* at most WEFT_MAX_STOP */
    const weft_bias *bias; /* [n_bias], copied; at most WEFT_MAX_BIAS, of one token they add up */
    int32_t n_bias;
    /* Cached pages are shared by requests of equal salts only; NULL is a salt of its own. Copied. */
    const char *cache_salt;
    void *user; /* comes back with each event */
    bool ignore_eos;
    bool prompt_logits;   /* events for the rows of the prompt too */
    int64_t arrival_step; /* not looked at by the scheduler before this step; 0: at once */
} weft_request;

void weft_request_default(weft_request *out);
/* Queues n requests as one act; ids: [n] out. All or none. WEFT_ERR_TOO_LONG names the limit that a
 * request breaks. */
weft_status weft_engine_submit(weft_engine *engine, const weft_request *requests, int32_t n,
                               uint64_t *ids, weft_error *err);
/* What weft_engine_open with these params and then weft_engine_submit would say of them, without the
 * memory and the time that packing the weights takes. */
weft_status weft_request_check(weft_model *model, const weft_engine_params *params,
                               const weft_request *request, weft_error *err);
void weft_engine_cancel(weft_engine *engine, uint64_t id);

typedef enum weft_event_kind {
    WEFT_EVENT_PROMPT_ROW,
    WEFT_EVENT_TOKEN,
    WEFT_EVENT_END
} weft_event_kind;
typedef enum weft_finish {
    WEFT_FINISH_NONE,
    WEFT_FINISH_STOP,
    WEFT_FINISH_LENGTH,
    WEFT_FINISH_ERROR
} weft_finish;

typedef struct weft_event {
    weft_event_kind kind;
    uint64_t request;
    void *user;
    int64_t position; /* of the fed token (PROMPT_ROW), of the new token (TOKEN) */
    int32_t token;    /* PROMPT_ROW: the prompt's next token; TOKEN: the new one */
    float logprob; /* of `token`, from the raw logits (before temperature and penalties); 0 unless
                      asked for */
    uint64_t logits_hash; /* 0 unless hash_logits */
    int32_t n_top;
    int32_t top_id[WEFT_MAX_TOP];
    float top_logprob[WEFT_MAX_TOP];
    const char *text; /* TOKEN, END: text now certain (whole characters, no part of a stop string);
                         until the next call */
    size_t text_bytes;
    weft_finish finish;                     /* END */
    weft_status status;                     /* END with FINISH_ERROR: why */
    int32_t n_prompt_token, n_output_token; /* END */
    int32_t n_cached_token; /* END: leading tokens of the prompt that were not computed */
    double queued_s;        /* END: from submit to the first step; 0 when there was none */
} weft_event;

/* Takes the next event. Waits up to timeout_ms (-1: for ever; 0: not at all); *got says whether
 * there was one. One thread at a time. WEFT_ERR_RANK once the engine has failed and all its events
 * are taken; err says why. */
weft_status weft_engine_next(weft_engine *engine, int32_t timeout_ms, weft_event *out, bool *got,
                             weft_error *err);

#ifdef __cplusplus
}
#endif
#endif
