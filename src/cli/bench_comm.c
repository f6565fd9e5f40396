/* weft bench comm: collectives between thread ranks.
 *
 * A message is 1, 64 or 512 rows of the model (hidden floats each), spread evenly over the ranks as
 * the tokens of a step are. With W ranks and parts of B bytes:
 *   all_gather_v   everyone gets all parts:                        W (W - 1) B bytes cross
 *   all_to_all_v   everyone sends B / W to each of the others:     (W - 1) B bytes cross
 *   barrier        nothing; the figure is its time
 * GB/s counts bytes that cross from one rank to another, of all ranks together. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "comm/comm.h"
#include "kern/kern.h"
#include "load/load.h"

enum { MAX_WORLD = 8, DEADLINE_MS = 60000, LINE = 64 };
typedef enum collective { BARRIER, ALL_GATHER, ALL_TO_ALL } collective;

typedef struct comm_case {
    collective what;
    size_t part; /* all_gather_v: bytes of a member; all_to_all_v: from a member to a member */
} comm_case;

typedef struct transport {
    int64_t row_bytes;
    comm_case cases[BENCH_MAX_CASE];
} transport;

/* A world of ranks during one measurement. */
typedef struct world world;
typedef struct rank {
    world *w;
    comm *c;
    uint8_t *send, *recv;
    weft_status status;
} rank;
struct world {
    comm_case what;
    int32_t n, n_round;
    comm_hub *hub;
    int32_t list[MAX_WORLD];
    size_t bytes[MAX_WORLD], at[MAX_WORLD];
    double seconds; /* of n_round collectives, between two barriers */
    rank ranks[MAX_WORLD];
};

static weft_status one_round(rank *r) {
    const world *w = r->w;
    comm *c = r->c;
    kern_mem send = {(uintptr_t)r->send}, recv = {(uintptr_t)r->recv};
    switch (w->what.what) {
    case BARRIER:
        return c->v->barrier(c, COMM_WORLD);
    case ALL_GATHER:
        return c->v->all_gather_v(c, COMM_WORLD, recv, w->bytes, w->at);
    default:
        return c->v->all_to_all_v(c, COMM_WORLD, send, w->bytes, w->at, recv, w->bytes, w->at);
    }
}

static void *rank_main(void *arg) {
    rank *r = arg;
    comm *c = r->c;
    weft_status s = c->v->barrier(c, COMM_WORLD);
    double t0 = wait_now_s();
    for (int32_t i = 0; i < r->w->n_round && s == WEFT_OK; i++)
        s = one_round(r);
    if (s == WEFT_OK)
        s = c->v->barrier(c, COMM_WORLD);
    if (c->rank == 0)
        r->w->seconds = wait_now_s() - t0;
    r->status = s;
    return NULL;
}

/* All ranks do n_round collectives, each on a thread of its own. */
static weft_status world_run(world *w, int32_t n_round, weft_error *err) {
    pthread_t thread[MAX_WORLD];
    int32_t n = 0;
    w->n_round = n_round;
    while (n < w->n && pthread_create(&thread[n], NULL, rank_main, &w->ranks[n]) == 0)
        n++;
    if (n < w->n) { /* those that started wait for the others */
        comm *c = w->ranks[n].c;
        c->v->abort(c, WEFT_ERR_MEMORY, "no thread for a rank");
    }
    for (int32_t i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    return comm_threads_state(w->hub, err);
}

static void world_close(world *w) {
    for (int32_t i = 0; i < w->n; i++) {
        rank *r = &w->ranks[i];
        if (r->c)
            r->c->v->close(r->c);
        free(r->send);
        free(r->recv);
    }
    comm_threads_hub_close(w->hub);
    wait_threads_add(-w->n);
}

/* To be closed after a failure too. */
static weft_status world_open(world *w, int32_t n, comm_case what, weft_error *err) {
    *w = (world){.n = n, .what = what};
    wait_threads_add(n);
    comm_members members = {{0}, {0}, {0}};
    for (int32_t i = 0; i < n; i++) {
        w->list[i] = i;
        w->bytes[i] = what.part;
        w->at[i] = (size_t)i * what.part;
    }
    for (int32_t g = 0; g < COMM_N_GROUP; g++) {
        members.size[g] = n;
        members.list[g] = w->list;
    }
    size_t all = (size_t)n * what.part + LINE;
    weft_status s = comm_threads_hub_open(n, DEADLINE_MS, &w->hub, err);
    for (int32_t i = 0; i < n && s == WEFT_OK; i++) {
        rank *r = &w->ranks[i];
        for (int32_t g = 0; g < COMM_N_GROUP; g++)
            members.index[g] = i;
        r->w = w;
        s = comm_threads_open(w->hub, i, &members, &r->c, err);
        r->send = aligned_alloc(LINE, all);
        r->recv = aligned_alloc(LINE, all);
        if (s == WEFT_OK && (!r->send || !r->recv))
            s = error_set(err, WEFT_ERR_MEMORY, "no memory for messages of %zu bytes", all);
        if (s == WEFT_OK) {
            memset(r->send, i, all);
            memset(r->recv, i, all);
        }
    }
    return s;
}

/* ---- the bench ---- */

static weft_status case_add(bench *b, transport *t, collective what, int32_t n_rank, int32_t n_row,
                            weft_error *err) {
    static const char *const names[] = {"barrier", "all_gather_v", "all_to_all_v"};
    bench_case *c;
    weft_status s = bench_case_add(b, names[what], n_row, what == BARRIER ? "us" : "GB/s", &c, err);
    if (s != WEFT_OK)
        return s;
    c->world = n_rank;
    if (what == BARRIER)
        snprintf(c->name, sizeof c->name, "%s, %d ranks", names[what], n_rank);
    else
        snprintf(c->name, sizeof c->name, "%s, %d ranks, %d row%s", names[what], n_rank, n_row,
                 n_row == 1 ? "" : "s");
    size_t part = (size_t)((int64_t)n_row * t->row_bytes) / (size_t)n_rank;
    part /= what == ALL_TO_ALL ? (size_t)n_rank : 1;
    t->cases[b->n_case - 1] = (comm_case){what, (part + LINE - 1) / LINE * LINE};
    return WEFT_OK;
}

static weft_status comm_open(bench *b, weft_error *err) {
    static const int32_t worlds[] = {2, 4, 8}, rows[] = {1, 64, 512};
    transport *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a bench");
    b->body = t;
    const kern_table *k;
    model_desc *desc;
    weft_status s = kern_cpu_table(NULL, &k, err);
    if (s == WEFT_OK)
        s = model_desc_load(b->v->model.path, &desc, err);
    if (s != WEFT_OK)
        return s;
    b->isa = k->isa;
    t->row_bytes = (int64_t)desc->config.hidden * (int64_t)sizeof(float);
    model_desc_close(desc);
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds && s == WEFT_OK; i++) {
        s = case_add(b, t, BARRIER, worlds[i], 0, err);
        for (int32_t what = ALL_GATHER; what <= ALL_TO_ALL; what++)
            for (size_t j = 0; j < sizeof rows / sizeof *rows && s == WEFT_OK; j++)
                s = case_add(b, t, (collective)what, worlds[i], rows[j], err);
    }
    return s;
}

static weft_status comm_measure(bench *b, int32_t i, int32_t repeat, bench_sample *out,
                                weft_error *err) {
    static const double enough = 0.02;
    (void)repeat;
    const transport *t = b->body;
    int32_t n = b->cases[i].world;
    world w;
    weft_status s = world_open(&w, n, t->cases[i], err);
    for (int32_t n_round = 4; s == WEFT_OK && w.seconds < enough && n_round < 1 << 24;) {
        s = cli_interrupted ? WEFT_ERR_INTERRUPTED : world_run(&w, n_round, err);
        if (w.seconds < enough)
            n_round *= 4;
    }
    if (s == WEFT_OK) {
        double each = w.seconds / w.n_round;
        double crossing = (double)(n - 1) * n * (double)t->cases[i].part;
        *out = (bench_sample){.figure =
                                  t->cases[i].what == BARRIER ? 1e6 * each : crossing * 1e-9 / each,
                              .seconds = each};
    }
    world_close(&w);
    return s;
}

static void comm_close(bench *b) {
    free(b->body);
}

const bench_kind bench_comm = {"comm", comm_open, comm_measure, comm_close};
