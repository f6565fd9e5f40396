/* weft serve: the OpenAI-compatible server over an open engine. */
#ifndef WEFT_SERVE_SERVE_H
#define WEFT_SERVE_SERVE_H

#include <signal.h>

#include "http/http.h"

typedef struct serve_params {
    const char *host;
    int32_t port;               /* 0: a free one */
    const char *const *api_key; /* [n_api_key]; none: open to all */
    int32_t n_api_key;
    const char *const *name; /* [n_name] that the model is served under; the first is in replies */
    int32_t n_name;
    const char *cors_origin; /* NULL: none */
    int32_t max_queue;       /* requests beyond max_num_seqs; more are told to come back (429) */
    int32_t max_connections;
    int32_t max_choices;     /* n of a request */
    uint64_t max_body_bytes; /* 0: 4 MiB and 64 bytes for each token of the model's length */
    uint64_t
        max_unread_bytes; /* of a stream that waits for its client, or of an answer that waits for its
                                  end; 16 times as much of all */
    int32_t read_s, idle_s, write_s; /* see http_params */
    int32_t drain_s;                 /* that open requests get after SIGTERM */
    int32_t health_s; /* without a step, with work to do: the server is not healthy */
    bool log_prompts;
    /* Not 0: SIGINT came before serve_run, which then does not serve. NULL: nobody watched. */
    const volatile sig_atomic_t *interrupted;
} serve_params;

void serve_params_default(serve_params *out);

/* Serves until SIGINT or SIGTERM: the first lets open requests end (drain_s), a second ends serving
 * at once. The owner of the process ignores SIGPIPE.
 * WEFT_ERR_SETUP when the port cannot be listened on, WEFT_ERR_RANK when the engine failed.
 * `sockets` are of p's host and port; none is left in it. `engine_params` are those that the engine
 * was opened with. */
weft_status serve_run(const serve_params *p, http_sockets *sockets, weft_model *model,
                      weft_engine *engine, const weft_engine_params *engine_params,
                      weft_error *err);

#endif
