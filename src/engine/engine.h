/* Inside of the engine: the ranks and their step loop, and the front that requests come in by and
 * events go out by.
 *
 *   client thread            rank 0's thread                          ranks 1..
 *   submit, cancel  -------> front_collect -> sched_plan -> bcast --> apply, build, forward, sample
 *   next  <- ring of events <- front_deliver <- gather of results <---/
 *
 * The step loop knows ids only; text (detokenising, stop strings) is made on the client's thread in
 * weft_engine_next. */
#ifndef WEFT_ENGINE_ENGINE_H
#define WEFT_ENGINE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/trace.h"
#include "engine/fault.h"
#include "engine/setup.h"
#include "kv/kv.h"
#include "model/model.h"
#include "sample/sample.h"
#include "sched/sched.h"
#include "tok/tok.h"

struct weft_model {
    model_desc *desc;
    tok *tok;            /* NULL: a folder without a tokeniser; prompts are ids */
    char *chat_template; /* NULL: none */
    weft_model_info info;
};

/* What the owner of a logits row reports; moved as bytes to rank 0. */
typedef struct engine_result {
    uint64_t hash;
    int32_t run, position; /* index in the step's batch, position of the fed token */
    int32_t status;        /* weft_status of sampling */
    int32_t pad;
    sample_result pick;
} engine_result;

typedef struct engine_rank {
    struct weft_engine *e;
    int32_t rank;
    pthread_t thread;
    bool started;
    topo topo;
    comm *comm;
    kern_dev *dev;
    batch_builder *builder;
    batch_slots slots;
    batch_global global;
    batch_local local;
    double t_mark; /* rank 0: when the phase that runs began */
    model_rank *model;
    kern_memory memory;
    kern_mem block, results; /* device side of the step block and of the gathered results */
    uint8_t *plan;
    engine_result *result; /* [max_step_tokens] host: own results, on rank 0 all */
    float *logits;         /* [MODEL_LOGIT_CHUNK][n_vocab] host, NULL on ranks that do not sample */
    sampler **sampler;     /* [n_sampler] of the threads that sample, NULL on ranks that do not */
    int32_t n_sampler;
} engine_rank;

/* ---- front ---- */

typedef struct front_request {
    uint64_t id;
    sched_request *r;
    weft_request params; /* prompt and stop point to own copies */
    char **stop;
    tok_stream *stream;
    char *held; /* text that may still become a stop string */
    size_t n_held, held_cap;
    int32_t n_prompt, n_output, n_cached;
    weft_bias *bias;
    double t_submit, t_start; /* seconds; t_start 0: in no step yet */
    bool closed;              /* its END is out; what still comes is dropped */
    atomic_bool cancel;
    struct front_request *next, *prev;
} front_request;

typedef struct front_event {
    weft_event_kind kind;
    front_request *fr;
    int64_t position;
    int32_t token;
    weft_finish finish;
    weft_status status;
    uint64_t hash;
    sample_result pick;
} front_event;

typedef struct front {
    const tok *tok;
    sched *sched;
    const kv_pools *kv;
    int32_t n_group, n_pool;
    pthread_mutex_t lock;
    pthread_cond_t work, ready; /* for rank 0; for the client */
    bool stop, failed, any_cancel;
    weft_error why;                          /* when failed */
    front_request *live;                     /* list of all, newest first */
    sched_request *incoming, *incoming_last; /* submitted, not yet seen by rank 0 */
    /* [ring_cap]: room for the END of every live request and for row_cap events of rows. A step
     * that could cause more than there is room for waits until the client has taken some. */
    front_event *ring;
    size_t ring_cap, ring_at, ring_n, row_cap, n_row, n_live;
    size_t max_step_rows;
    uint64_t next_id;
    engine_result *row; /* [max_step_tokens] one step's results in run and position order */
    int32_t *row0;      /* [max_num_seqs] where those of a run begin */
    weft_event owed;    /* handed out by the next call, when owes */
    bool owes;
    char *text; /* of the event handed out last */
    size_t text_cap;
    double t_step; /* when rank 0 last looked for work */
    weft_engine_stats
        stats; /* its counts of now; what does not change is filled in by the reader */
} front;

struct weft_engine {
    weft_model *model;
    engine_setup setup;
    model_weights *weights;
    comm_hub *hub;
    kv_pools *kv;
    trace *trace;      /* NULL: none */
    engine_rank *rank; /* [world] */
    engine_fault fault;
    uint64_t planned_bytes; /* of weights and ranks so far, reserved or about to be */
    int32_t n_active;       /* threads told to wait_threads_add */
    front front;
};

/* front.c; calls marked (rank 0) come from its thread */
/* All of a request but its length. */
weft_status front_check(int32_t n_vocab, const weft_request *q, weft_error *err);
weft_status front_open(front *f, const tok *t, sched *s, const kv_pools *kv,
                       const engine_setup *setup, weft_error *err);
void front_close(front *f);
/* (rank 0) Moves new requests and cancellations to the scheduler; waits up to a second when there
 * is nothing to do, or when the client has to take events before the next step. Returns the kind of
 * plan that is to be sent: PLAN_STEP leaves it to the scheduler. */
int32_t front_collect(front *f);
/* (rank 0) Adds to a phase's time. */
void front_add_time(front *f, weft_phase phase, double seconds);
/* (rank 0) Counts of scheduler and pools for the statistics. */
void front_count(front *f);
/* (rank 0) The step's rows, any order, [n]. */
void front_deliver(front *f, const engine_result *rows, int32_t n);
/* (rank 0) Ends every live request with an error. */
void front_fail(front *f, weft_status status, const char *text);

/* Adds to what the engine is going to use. WEFT_ERR_MEMORY when the machine cannot have it: memory
 * is reserved without being touched, so without this the kernel would end the process later. */
weft_status engine_memory_plan(weft_engine *e, size_t bytes, weft_error *err);

/* rank.c */
/* What a rank takes beside the kernels' memory: host buffers (plan, results, logits, samplers), and scratch of
 * its kernel threads. */
size_t engine_rank_host_bytes(const engine_setup *s, const topo *t);
size_t engine_rank_scratch_bytes(const model_desc *d, const engine_setup *s, int32_t rank,
                                 const batch_builder *b);
/* Every rank is planned before the first takes its memory, so that a set-up which does not fit
 * takes none. */
weft_status engine_rank_plan(weft_engine *e, int32_t rank, weft_error *err);
weft_status engine_rank_open(engine_rank *r, weft_error *err);
void engine_rank_close(engine_rank *r);
void *engine_rank_main(void *rank);

#endif
