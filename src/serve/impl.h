/* Inside of the server: four threads and what passes between them.
 *
 *   loop        HTTP, timers, replies; owns all calls                        serve.c, call.c, routes.c
 *   workers     a call's body -> request -> tokens -> weft_engine_submit     worker.c
 *   events      weft_engine_next -> batches of events                        events.c
 *
 *   loop --worker_push--> worker --http_post(call_worker_done)--> loop
 *                            \--submit--> engine --events--> http_post(call_take_batch) --> loop
 *
 * The engine never waits for a client: events go into a call's answer and its connection's buffer.
 * A call is freed by the loop when its client has its reply or has gone, the worker is done with it,
 * and all its requests have ended in the engine. */
#ifndef WEFT_SERVE_IMPL_H
#define WEFT_SERVE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "http/http.h"
#include "openai/openai.h"
#include "serve/metrics.h"
#include "serve/serve.h"

typedef struct serve_call serve_call;
typedef struct serve_batch serve_batch;

enum { SERVE_ID_BYTES = 80 };

/* One request in the engine: choice `index` of the call. */
typedef struct serve_choice {
    serve_call *call;
    int32_t index;
    uint64_t id; /* of the engine's request */
    bool ended;
    double t_last; /* of its last token; 0: none yet */
} serve_choice;

struct serve_call {
    struct serve *s;
    http_call *http; /* NULL: the client has its reply, or has gone */
    openai_kind kind;
    char id[SERVE_ID_BYTES]; /* of the reply; also its X-Request-Id unless the client sent one */
    char request_id[SERVE_ID_BYTES];
    char peer[64];
    double t_arrived;
    int64_t created;
    atomic_bool over; /* the loop's word to the worker: nobody waits for it any more */
    char *body;       /* the worker's until it is done */
    size_t n_body;
    /* the worker's, then the loop's */
    openai_request *q;
    openai_answer *answer;
    serve_choice *choice; /* [n_choice] */
    int32_t n_choice;
    openai_error refusal; /* http 0: none */
    char *reply;          /* of calls that need no engine */
    /* the loop's */
    bool worker_done, streaming;
    bool cancelled; /* its requests in the engine were told to end */
    int32_t n_ended, status;
    openai_error error; /* that the client was told; http 0: none */
    int32_t n_prompt_token, n_output_token, n_cached_token;
    double t_first, queued_s;
    size_t answer_bytes; /* that wait in `answer` */
    http_timer *timer;
    struct serve_call *next, *prev; /* in the server's list */
    struct serve_call *queued;      /* in its worker's queue */
};

/* Long bodies have a thread of their own: megabytes to tokenise hold up no short request. */
enum { WORKER_SHORT, WORKER_LONG, N_WORKER, LONG_BODY_BYTES = 65536 };
typedef struct serve_worker {
    struct serve *s;
    pthread_t thread;
    bool started;
    pthread_cond_t work;
    serve_call *queue, *queue_last;
} serve_worker;

typedef struct serve {
    const serve_params *p;
    weft_model *model;
    weft_engine *engine;
    const weft_engine_params *engine_params;
    http_server *http;
    openai_server openai;
    openai_limits limits;
    serve_metrics metrics;
    /* the loop's */
    serve_call *calls;
    int32_t n_call;
    int64_t created;
    uint64_t n_id, id_base;
    uint64_t max_body_bytes;
    bool draining, failed, was_silent;
    double t_open;
    weft_error why;          /* failed */
    size_t max_prompt_bytes; /* of a text that may fit max_model_len */
    size_t answer_bytes;     /* of all calls */
    pthread_t events;
    bool events_started;
    pthread_mutex_t lock;            /* of the workers' queues and the batches */
    serve_batch *batch, *batch_last; /* that the loop has not taken yet */
    serve_worker worker[N_WORKER];
    int32_t n_queue;    /* of all workers */
    size_t queue_bytes; /* of bodies */
    atomic_bool stop;   /* of workers and events; set under the lock */
    /* Requests in the engine or about to be; the loop takes away, the workers add. */
    _Atomic int32_t n_live;
} serve;

/* routes.c: on_head, on_call and on_refuse of http_params, user: the server */
bool serve_on_head(void *server, http_call *c);
void serve_on_call(void *server, http_call *c);
void serve_on_refuse(void *server, const char *peer, int status, const char *reason);

/* call.c, on the loop */
/* A POST with a body for the worker. */
void call_begin(serve *s, http_call *c, openai_kind kind);
/* Gives the reply an X-Request-Id: the client's own if it may be one, else a new one. */
void serve_add_id(serve *s, http_call *h, char id[SERVE_ID_BYTES]);
/* Replies with an error that has such an id, and logs it. kind -1: other routes. */
void serve_refuse(serve *s, http_call *c, int32_t kind, const openai_error *e);
/* All that the client may still wait for ends with this error; the engine is told to stop. */
void call_fail(serve_call *c, const openai_error *e);
/* http_post targets */
void call_worker_done(void *call);
void call_take_batch(void *server); /* the one that has waited longest */
/* The drain's end: calls that are left. */
void serve_fail_calls(serve *s, const openai_error *e);
/* After the loop and the threads have ended. */
void serve_free_calls(serve *s);

/* worker.c */
/* Bodies that the queues hold at most: a few of the largest. */
size_t worker_max_bytes(const serve *s);
bool workers_open(serve *s);
/* Stops the workers, and tells the events' thread to; what waits in the queues is left there. */
void workers_close(serve *s);
/* False: the queues are full. */
bool worker_push(serve *s, serve_call *c);

/* events.c */
struct serve_batch {
    struct serve_batch *next;
    int32_t n;
    size_t text_n;
    weft_event event[256]; /* texts point into text */
    char *text;            /* malloc'ed */
};
void *events_main(void *server);
serve_batch *batch_take(serve *s); /* NULL: none is left */
void batch_free(serve_batch *b);

/* serve.c */
/* Bytes of all answers that are being made, and of all replies that wait for their clients: each. */
size_t serve_most_unread(const serve *s);
void serve_engine_failed(void *server); /* http_post target; s->why is filled */

#endif
