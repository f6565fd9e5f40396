/* Thread ranks: contents of random collectives, mismatches, aborts, deadlines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/wait.h"
#include "comm/comm.h"
#include "comm/threads/hub.h"

enum { MAX_WORLD = 8, PART_CAP = 200, BUF_CAP = MAX_WORLD * PART_CAP };

static uint64_t mix(uint64_t x) {
    x ^= x >> 31;
    x *= 0x9E3779B97F4A7C15u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    return x ^ x >> 32;
}

static uint64_t next(uint64_t *seed) {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* ---- a world of rank threads ---- */

typedef struct world world;

typedef struct rank {
    world *w;
    comm *c;
    int32_t i;
    int32_t n_wrong;    /* cmocka's asserts are for the main thread only */
    weft_status status; /* of the first failed call */
    int64_t n_done;
    uint8_t send[BUF_CAP], recv[BUF_CAP];
} rank;

struct world {
    comm_hub *hub;
    int32_t n;
    uint64_t seed;
    int32_t size[COMM_N_GROUP]; /* every group kind cuts `order` into lists of this size */
    int32_t order[COMM_N_GROUP][MAX_WORLD];
    void (*body)(rank *r);
    int32_t n_round;
    rank ranks[MAX_WORLD];
};

static void *rank_main(void *arg) {
    rank *r = arg;
    r->w->body(r);
    return NULL;
}

static comm_members members_of(const world *w, int32_t i) {
    comm_members m;
    for (int32_t g = 0; g < COMM_N_GROUP; g++) {
        int32_t at = 0;
        while (w->order[g][at] != i) {
            at++;
        }
        m.size[g] = w->size[g];
        m.index[g] = at % w->size[g];
        m.list[g] = &w->order[g][at - m.index[g]];
    }
    return m;
}

/* World group in rank order; the others random permutations cut by a random divisor. */
static void world_open(world *w, int32_t n, uint64_t seed, int64_t deadline_ms) {
    memset(w, 0, sizeof *w);
    w->n = n;
    w->seed = seed;
    for (int32_t g = 0; g < COMM_N_GROUP; g++) {
        for (int32_t i = 0; i < n; i++) {
            w->order[g][i] = i;
        }
        w->size[g] = n;
        for (int32_t i = n - 1; g != COMM_WORLD && i > 0; i--) {
            int32_t j = (int32_t)(next(&seed) % (uint64_t)(i + 1)), keep = w->order[g][i];
            w->order[g][i] = w->order[g][j];
            w->order[g][j] = keep;
        }
        while (g != COMM_WORLD && n % (w->size[g] = 1 + (int32_t)(next(&seed) % 8)) != 0) {
        }
    }
    assert_int_equal(comm_threads_hub_open(n, deadline_ms, &w->hub, NULL), WEFT_OK);
    for (int32_t i = n - 1; i >= 0; i--) {
        comm_members m = members_of(w, i);
        w->ranks[i].w = w;
        w->ranks[i].i = i;
        assert_int_equal(comm_threads_open(w->hub, i, &m, &w->ranks[i].c, NULL), WEFT_OK);
        assert_int_equal(w->ranks[i].c->world, n);
        assert_int_equal(w->ranks[i].c->rank, i);
    }
}

static void world_run(world *w, void (*body)(rank *r)) {
    pthread_t threads[MAX_WORLD];
    w->body = body;
    for (int32_t i = 0; i < w->n; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, rank_main, &w->ranks[i]), 0);
    }
    for (int32_t i = 0; i < w->n; i++) {
        pthread_join(threads[i], NULL);
    }
}

static void world_close(world *w) {
    for (int32_t i = 0; i < w->n; i++) {
        w->ranks[i].c->v->close(w->ranks[i].c);
    }
    comm_threads_hub_close(w->hub);
}

static void assert_all(const world *w, weft_status s, const char *part) {
    weft_error err = {0};
    assert_int_equal(comm_threads_state(w->hub, &err), s);
    for (int32_t i = 0; i < w->n; i++) {
        assert_int_equal(w->ranks[i].n_wrong, 0);
        assert_int_equal(w->ranks[i].status, s);
    }
    if (part != NULL && strstr(err.text, part) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", part, err.text);
    }
}

static kern_mem mem(void *p) {
    return (kern_mem){(uintptr_t)p};
}

/* ---- random collectives ---- */

/* Bytes that rank `from` sends to rank `to` in round `round`: the same on all ranks; often 0. */
static size_t part_bytes(const world *w, int32_t round, int32_t from, int32_t to) {
    uint64_t x = mix(w->seed + (uint64_t)(round * 64 + from * 8 + to) * 977);
    return x % 3 == 0 ? 0 : x >> 8 & 1 ? x % PART_CAP : 1 + x % 16;
}

static uint8_t part_byte(int32_t round, int32_t from, int32_t to, size_t i) {
    return (uint8_t)mix((uint64_t)round << 32 | (uint64_t)(from * 8 + to) << 16 | i);
}

static void write_part(uint8_t *at, size_t n, int32_t round, int32_t from, int32_t to) {
    for (size_t i = 0; i < n; i++) {
        at[i] = part_byte(round, from, to, i);
    }
}

static int32_t wrong_part(const uint8_t *at, size_t n, int32_t round, int32_t from, int32_t to) {
    int32_t n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        n_wrong += at[i] != part_byte(round, from, to, i);
    }
    return n_wrong;
}

static weft_status random_bcast(rank *r, comm_group g, const int32_t *list, int32_t round) {
    int32_t root = (int32_t)(mix((uint64_t)round) % (uint64_t)r->c->size[g]);
    size_t n = part_bytes(r->w, round, list[0], 0); /* list[0]: the same in all of the group */
    if (r->c->index[g] == root) {
        write_part(r->recv, n, round, list[root], 0);
    }
    weft_status s = r->c->v->bcast(r->c, g, root, n == 0 ? NULL : r->recv, n);
    r->n_wrong += wrong_part(r->recv, n, round, list[root], 0);
    return s;
}

/* Parts lie in descending order with a gap byte between them, which nobody may touch. */
static weft_status random_all_gather(rank *r, comm_group g, const int32_t *list, int32_t round) {
    size_t bytes[MAX_WORLD], at[MAX_WORLD], end = 0;
    int32_t n = r->c->size[g], own = r->c->index[g];
    memset(r->recv, 0xEE, sizeof r->recv);
    for (int32_t m = n - 1; m >= 0; m--) {
        bytes[m] = part_bytes(r->w, round, list[m], 0);
        at[m] = end;
        end += bytes[m] + 1;
    }
    write_part(r->recv + at[own], bytes[own], round, list[own], 0);
    weft_status s = r->c->v->all_gather_v(r->c, g, mem(r->recv), bytes, at);
    for (int32_t m = 0; m < n; m++) {
        r->n_wrong += wrong_part(r->recv + at[m], bytes[m], round, list[m], 0);
        r->n_wrong += r->recv[at[m] + bytes[m]] != 0xEE;
    }
    return s;
}

static weft_status random_all_to_all(rank *r, comm_group g, const int32_t *list, int32_t round) {
    size_t send_bytes[MAX_WORLD], send_at[MAX_WORLD], recv_bytes[MAX_WORLD], recv_at[MAX_WORLD];
    size_t send_end = 0, recv_end = 0;
    int32_t n = r->c->size[g];
    memset(r->recv, 0xEE, sizeof r->recv);
    for (int32_t m = n - 1; m >= 0; m--) {
        send_bytes[m] = part_bytes(r->w, round, r->i, list[m]);
        send_at[m] = send_end;
        send_end += send_bytes[m];
        write_part(r->send + send_at[m], send_bytes[m], round, r->i, list[m]);
        recv_bytes[m] = part_bytes(r->w, round, list[m], r->i);
        recv_at[m] = recv_end;
        recv_end += recv_bytes[m] + (recv_end + recv_bytes[m] < BUF_CAP);
    }
    weft_status s = r->c->v->all_to_all_v(r->c, g, mem(r->send), send_bytes, send_at, mem(r->recv),
                                          recv_bytes, recv_at);
    memset(r->send, 0, send_end); /* senders may use their memory again at once */
    for (int32_t m = 0; m < n; m++) {
        r->n_wrong += wrong_part(r->recv + recv_at[m], recv_bytes[m], round, list[m], r->i);
    }
    return s;
}

/* Numbers that say who sent them to whom, two for each member. */
static weft_status random_counts(rank *r, comm_group g, const int32_t *list, int32_t round) {
    int32_t send[2 * MAX_WORLD], recv[2 * MAX_WORLD], n = r->c->size[g];
    for (int32_t m = 0; m < n; m++) {
        send[2 * m] = round;
        send[2 * m + 1] = r->i * MAX_WORLD + list[m];
    }
    weft_status s = r->c->v->all_to_all_counts(r->c, g, 2, send, recv);
    memset(send, 0xEE, sizeof send);
    for (int32_t m = 0; m < n && s == WEFT_OK; m++) {
        r->n_wrong += recv[2 * m] != round || recv[2 * m + 1] != list[m] * MAX_WORLD + r->i;
    }
    return s;
}

/* One collective of every kind and group kind in an order drawn from the seed. */
static void random_body(rank *r) {
    comm_members m = members_of(r->w, r->i);
    for (int32_t round = 0; round < r->w->n_round && r->status == WEFT_OK; round++) {
        uint64_t x = mix(r->w->seed * 31 + (uint64_t)round);
        comm_group g = (comm_group)(x % COMM_N_GROUP);
        switch ((x >> 8) % 5) {
        case 0:
            r->status = r->c->v->barrier(r->c, g);
            break;
        case 1:
            r->status = random_bcast(r, g, m.list[g], round);
            break;
        case 2:
            r->status = random_all_gather(r, g, m.list[g], round);
            break;
        case 3:
            r->status = random_counts(r, g, m.list[g], round);
            break;
        default:
            r->status = random_all_to_all(r, g, m.list[g], round);
        }
        r->n_done++;
    }
}

static world shared_world; /* too large for a thread's stack under the sanitisers */

static void test_random(void **state) {
    (void)state;
    world *w = &shared_world;
    for (int32_t n = 1; n <= MAX_WORLD; n++) {
        for (uint64_t seed = 1; seed <= 3; seed++) {
            world_open(w, n, seed * 1000003 + (uint64_t)n, 30000);
            w->n_round = 500;
            world_run(w, random_body);
            assert_all(w, WEFT_OK, NULL);
            for (int32_t i = 0; i < n; i++) {
                assert_int_equal(w->ranks[i].n_done, 500);
            }
            world_close(w);
        }
    }
}

/* A barrier lets nobody through before the last has come: the plain counter sees every rank's add
 * of the round before. */
static _Atomic int32_t n_come;

static void barrier_body(rank *r) {
    for (int32_t round = 1; round <= r->w->n_round && r->status == WEFT_OK; round++) {
        atomic_fetch_add(&n_come, 1);
        r->status = r->c->v->barrier(r->c, COMM_WORLD);
        int32_t come = atomic_load(&n_come);
        r->n_wrong += come < round * r->w->n || come > (round + 1) * r->w->n;
    }
}

/* 8 ranks on whatever cores there are: spinning without cores would take minutes. */
static void test_crowd(void **state) {
    (void)state;
    world *w = &shared_world;
    world_open(w, 8, 7, 30000);
    w->n_round = 1500;
    wait_threads_add(8);
    atomic_store(&n_come, 0);
    int64_t start = wait_now_ns();
    world_run(w, barrier_body);
    assert_true(wait_now_ns() - start < 20000000000);
    wait_threads_add(-8);
    assert_all(w, WEFT_OK, NULL);
    world_close(w);
}

/* ---- mismatches: one case per way in which calls can differ ---- */

enum { ODD_RANK = 2, N_GOOD = 40 };

static weft_status gather_of(rank *r, size_t bytes1, size_t at1) {
    size_t bytes[MAX_WORLD], at[MAX_WORLD];
    for (int32_t m = 0; m < r->w->n; m++) {
        bytes[m] = 8;
        at[m] = (size_t)m * 16;
    }
    bytes[1] = bytes1;
    at[1] = at1;
    return r->c->v->all_gather_v(r->c, COMM_WORLD, mem(r->recv), bytes, at);
}

static weft_status exchange_of(rank *r, size_t to0, size_t from0) {
    size_t send[MAX_WORLD], recv[MAX_WORLD], at[MAX_WORLD];
    for (int32_t m = 0; m < r->w->n; m++) {
        send[m] = recv[m] = 8;
        at[m] = (size_t)m * 16;
    }
    send[0] = to0;
    recv[0] = from0;
    return r->c->v->all_to_all_v(r->c, COMM_WORLD, mem(r->send), send, at, mem(r->recv), recv, at);
}

typedef struct mismatch {
    const char *reason; /* a part of it */
    weft_status (*odd)(rank *r);
    weft_status (*even)(rank *r);
} mismatch;

static weft_status do_barrier(rank *r) {
    return r->c->v->barrier(r->c, COMM_WORLD);
}
static weft_status do_bcast(rank *r) {
    return r->c->v->bcast(r->c, COMM_WORLD, 1, r->recv, 64);
}
static weft_status do_bcast_less(rank *r) {
    return r->c->v->bcast(r->c, COMM_WORLD, 1, r->recv, 63);
}
static weft_status do_bcast_root(rank *r) {
    return r->c->v->bcast(r->c, COMM_WORLD, 3, r->recv, 64);
}
static weft_status do_bcast_outside(rank *r) {
    return r->c->v->bcast(r->c, COMM_WORLD, -1, r->recv, 64);
}
static weft_status do_gather(rank *r) {
    return gather_of(r, 8, 16);
}
static weft_status do_gather_more(rank *r) {
    return gather_of(r, 12, 16);
}
static weft_status do_gather_at(rank *r) {
    return gather_of(r, 8, 200);
}
static weft_status do_exchange(rank *r) {
    return exchange_of(r, 8, 8);
}
static weft_status do_exchange_sends(rank *r) {
    return exchange_of(r, 9, 8);
}
static weft_status do_exchange_expects(rank *r) {
    return exchange_of(r, 8, 0);
}

static const mismatch mismatches[] = {
    {"#41 of group world", do_gather, do_barrier},
    {"rank 2 in all_gather_v #41 of group world", do_gather, do_barrier},
    {"rank 2 in barrier #41 of group world", do_barrier, do_exchange},
    {"all_to_all_v #41 of group world", do_exchange, do_bcast},
    {"bcast #41 of group world", do_bcast, do_barrier},
    {"rank 2 has 63", do_bcast_less, do_bcast},
    {"member 3", do_bcast_root, do_bcast},
    {"member -1", do_bcast_outside, do_bcast},
    {"member -1", do_bcast_outside, do_bcast_outside},
    {"all_gather_v #41 of group world: rank 1 gives 8 bytes at 16, rank 2 expects 12 at 16",
     do_gather_more, do_gather},
    {"rank 1 gives 8 bytes at 16, rank 2 expects 8 at 200", do_gather_at, do_gather},
    {"all_to_all_v #41 of group world: rank 2 sends 9 bytes to rank 0, which expects 8",
     do_exchange_sends, do_exchange},
    {"rank 0 sends 8 bytes to rank 2, which expects 0", do_exchange_expects, do_exchange},
};

static const mismatch *mismatch_now;

static void mismatch_body(rank *r) {
    for (int32_t i = 0; i < N_GOOD && r->status == WEFT_OK; i++) {
        r->status = i % 2 == 0 ? do_barrier(r) : do_exchange(r);
        r->n_wrong += r->status != WEFT_OK;
    }
    r->status = r->i == ODD_RANK ? mismatch_now->odd(r) : mismatch_now->even(r);
    if (r->status == WEFT_OK) {
        r->status = do_barrier(r); /* those that noticed nothing learn it here */
    }
    for (int32_t i = 0; i < 5; i++) { /* it stays so, for every kind and group */
        r->n_wrong += r->c->v->barrier(r->c, (comm_group)(i % COMM_N_GROUP)) != r->status;
        r->n_wrong += do_bcast(r) != r->status;
        r->n_wrong += do_gather(r) != r->status;
        r->n_wrong += do_exchange(r) != r->status;
    }
}

/* Two names for the odd rank are possible: the reason is that of whoever looked first. */
static bool names_odd_kind(const char *text, const char *part) {
    char other[200];
    if (strncmp(part, "rank 2 in ", 10) != 0) {
        return strstr(text, part) != NULL;
    }
    snprintf(other, sizeof other, "rank 2 is in %s", part + 10);
    return strstr(text, part) != NULL || strstr(text, other) != NULL;
}

static void test_mismatch(void **state) {
    (void)state;
    world *w = &shared_world;
    for (size_t k = 0; k < sizeof mismatches / sizeof mismatches[0]; k++) {
        for (int32_t again = 0; again < 5; again++) {
            mismatch_now = &mismatches[k];
            world_open(w, 4, 11, 30000);
            world_run(w, mismatch_body);
            assert_all(w, WEFT_ERR_RANK, NULL);
            weft_error err;
            comm_threads_state(w->hub, &err);
            if (!names_odd_kind(err.text, mismatches[k].reason)) {
                fail_msg("case %zu: \"%s\" is not in \"%s\"", k, mismatches[k].reason, err.text);
            }
            world_close(w);
        }
    }
}

/* ---- abort ---- */

/* Rank 1 aborts after some rounds, the others wait for it in a barrier, a copy or elsewhere. Their
 * buffers are freed the moment the failed call returns: the address sanitiser watches. */
static void abort_body(rank *r) {
    enum { BYTES = 1 << 16 };
    int32_t n = r->w->n, last = (int32_t)(r->w->seed % 20);
    for (int32_t round = 0; r->status == WEFT_OK; round++) {
        if (r->i == 1 && round == last) {
            r->c->v->abort(r->c, WEFT_ERR_NUMERIC, "rank 1 has had enough");
            r->c->v->abort(r->c, WEFT_ERR_MEMORY, "a second reason");
        }
        uint8_t *own = malloc((size_t)n * BYTES);
        size_t *bytes = malloc((size_t)n * sizeof *bytes), *at = malloc((size_t)n * sizeof *at);
        for (int32_t m = 0; m < n; m++) {
            bytes[m] = BYTES;
            at[m] = (size_t)m * BYTES;
        }
        memset(own + at[r->i], r->i + round, BYTES);
        r->status = r->c->v->all_gather_v(r->c, COMM_WORLD, mem(own), bytes, at);
        for (int32_t m = 0; m < n && r->status == WEFT_OK; m++) {
            r->n_wrong += own[at[m]] != (uint8_t)(m + round);
            r->n_wrong += own[at[m] + BYTES - 1] != (uint8_t)(m + round);
        }
        memset(own, 0, (size_t)n * BYTES);
        free(at);
        free(bytes);
        free(own);
    }
}

static void test_abort(void **state) {
    (void)state;
    world *w = &shared_world;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        world_open(w, 2 + (int32_t)(seed % 7), seed, 30000);
        world_run(w, abort_body);
        assert_all(w, WEFT_ERR_NUMERIC, "rank 1 has had enough");
        world_close(w);
    }
}

/* An abort from a thread of no rank, at a random moment of busy traffic. */
static void *outside_abort(void *arg) {
    world *w = arg;
    usleep((useconds_t)(w->seed * 37 % 3000));
    w->ranks[0].c->v->abort(w->ranks[0].c, WEFT_ERR_INTERRUPTED, NULL);
    return NULL;
}

static void endless_body(rank *r) {
    while (r->status == WEFT_OK) {
        size_t size[MAX_WORLD], at[MAX_WORLD];
        for (int32_t m = 0; m < r->w->n; m++) {
            size[m] = PART_CAP;
            at[m] = (size_t)m * PART_CAP;
        }
        r->status =
            r->c->v->all_to_all_v(r->c, COMM_WORLD, mem(r->send), size, at, mem(r->recv), size, at);
        memset(r->send, r->i, sizeof r->send); /* a late reader would be a race */
    }
}

static void test_abort_outside(void **state) {
    (void)state;
    world *w = &shared_world;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        world_open(w, 5, seed, 30000);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, outside_abort, w), 0);
        world_run(w, endless_body);
        pthread_join(thread, NULL);
        assert_all(w, WEFT_ERR_INTERRUPTED, "no reason given");
        world_close(w);
    }
}

static void test_abort_alone(void **state) {
    (void)state;
    world *w = &shared_world;
    world_open(w, 1, 1, 1000);
    rank *r = &w->ranks[0];
    assert_int_equal(do_barrier(r), WEFT_OK);
    r->c->v->abort(r->c, WEFT_OK, "OK is no reason"); /* still an abort */
    assert_int_equal(do_barrier(r), WEFT_ERR_RANK);
    size_t bytes = 8, at = 0;
    assert_int_equal(r->c->v->all_gather_v(r->c, COMM_DCP, mem(r->recv), &bytes, &at),
                     WEFT_ERR_RANK);
    assert_int_equal(r->c->v->bcast(r->c, COMM_TP, 0, r->recv, 8), WEFT_ERR_RANK);
    assert_int_equal(
        r->c->v->all_to_all_v(r->c, COMM_PCP, mem(r->send), &bytes, &at, mem(r->recv), &bytes, &at),
        WEFT_ERR_RANK);
    world_close(w);

    world_open(w, 1, 1, 1000);
    size_t other = 9;
    r = &w->ranks[0];
    assert_int_equal(
        r->c->v->all_to_all_v(r->c, COMM_PCP, mem(r->send), &bytes, &at, mem(r->recv), &other, &at),
        WEFT_ERR_RANK);
    world_close(w);
    world_open(w, 1, 1, 1000);
    assert_int_equal(w->ranks[0].c->v->bcast(w->ranks[0].c, COMM_TP, 1, NULL, 0), WEFT_ERR_RANK);
    world_close(w);
}

/* The order that keeps memory alive, step by step: rank 0 is copying when rank 1 aborts. Rank 1 may
 * not leave before rank 0 has copied, and nobody begins to copy after the abort. */
static _Atomic int32_t n_left;

static void begin_body(rank *r) {
    r->status = hub_begin((hub_end *)r->c, COMM_WORLD, HUB_ALL_TO_ALL, &(hub_slot){0});
}

static void *leave(void *arg) {
    hub_finish(arg, COMM_WORLD, WEFT_ERR_RANK);
    atomic_fetch_add(&n_left, 1);
    return NULL;
}

static void test_copy_phase(void **state) {
    (void)state;
    world *w = &shared_world;
    world_open(w, 3, 1, 30000);
    world_run(w, begin_body);
    assert_all(w, WEFT_OK, NULL);
    hub_end *e0 = (hub_end *)w->ranks[0].c, *e1 = (hub_end *)w->ranks[1].c;
    assert_int_equal(hub_copy_enter(e0, COMM_WORLD), WEFT_OK);
    e1->base.v->abort(&e1->base, WEFT_ERR_NUMERIC, "stop");
    assert_int_equal(hub_copy_enter(e1, COMM_WORLD), WEFT_ERR_NUMERIC);
    assert_int_equal(hub_copy_enter((hub_end *)w->ranks[2].c, COMM_WORLD), WEFT_ERR_NUMERIC);
    int64_t start = wait_now_ns(); /* a meet after the abort must not sit out its deadline */
    assert_int_equal(hub_meet(e1, COMM_WORLD), WEFT_ERR_NUMERIC);
    assert_true(wait_now_ns() - start < 10000000000);
    pthread_t thread;
    atomic_store(&n_left, 0);
    assert_int_equal(pthread_create(&thread, NULL, leave, e1), 0);
    usleep(30000);
    assert_int_equal(atomic_load(&n_left), 0);
    hub_copy_exit(e0, COMM_WORLD);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&n_left), 1);
    leave(w->ranks[2].c); /* nobody copies: at once */
    world_close(w);
}

/* ---- deadline ---- */

static void absent_body(rank *r) {
    do_barrier(r);
    if (r->i == 1) {
        return; /* never comes again */
    }
    r->status = do_exchange(r);
}

static void crossed_body(rank *r) {
    r->status = r->c->v->barrier(r->c, r->i < 2 ? COMM_WORLD : COMM_TP);
}

static void late_body(rank *r) {
    if (r->i == 3) {
        usleep(400000);
    }
    r->status = do_exchange(r);
}

static void test_deadline(void **state) {
    (void)state;
    world *w = &shared_world;
    int64_t start = wait_now_ns();
    world_open(w, 4, 3, 200);
    world_run(w, absent_body);
    w->ranks[1].status = do_barrier(&w->ranks[1]);
    assert_all(w, WEFT_ERR_RANK,
               "waited 200 ms in all_to_all_v #2 of group world for rank 1 (in no collective)");
    world_close(w);

    world_open(w, 4, 3, 200);
    w->ranks[1].c->v->close(w->ranks[1].c);
    w->n = 1; /* rank 0 only */
    world_run(w, crossed_body);
    weft_error err;
    comm_threads_state(w->hub, &err);
    assert_non_null(strstr(err.text, "rank 1 (has closed its end), rank 2 (in no collective), "
                                     "rank 3 (in no collective)"));
    for (int32_t i = 2; i < 4; i++) {
        w->ranks[i].c->v->close(w->ranks[i].c);
    }
    world_close(w);

    world_open(w, 4, 3, 200); /* the late one gets the status at once and without a wait */
    world_run(w, late_body);
    assert_all(w, WEFT_ERR_RANK, "for rank 3 (in no collective)");
    world_close(w);
    assert_true(wait_now_ns() - start < 10000000000);
}

/* Comes when it has been awake for 0.6 s, however long that takes. */
static void awake_body(rank *r) {
    for (int32_t i = 0; r->i == 1 && i < 60; i++) {
        usleep(10000);
    }
    r->status = do_exchange(r);
}

/* Time in which the whole process stands still is nobody's delay. */
static void test_deadline_pause(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__ /* makes no threads behind a fork */
    skip();
#endif
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        world *w = &shared_world;
        world_open(w, 2, 3, 1500);
        world_run(w, awake_body);
        _exit(w->ranks[0].status == WEFT_OK && w->ranks[1].status == WEFT_OK ? 0 : 1);
    }
    int code = -1;
    usleep(300000);
    assert_int_equal(kill(child, SIGSTOP), 0);
    usleep(4000000);
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
}

/* Ranks that wait for each other in different groups: nothing is posted wrongly. A short deadline
 * says where the others are; long before a long one it is seen that nobody is awake. */
static void test_deadline_crossed(void **state) {
    (void)state;
    world *w = &shared_world;
    uint64_t seed = 1;
    for (;; seed++) { /* a seed with TP as one group, in another order */
        world_open(w, 4, seed, 200);
        if (w->size[COMM_TP] == 4 && w->order[COMM_TP][0] != 0) {
            break;
        }
        world_close(w);
    }
    world_run(w, crossed_body);
    assert_all(w, WEFT_ERR_RANK, NULL);
    weft_error err;
    comm_threads_state(w->hub, &err);
    assert_true(strstr(err.text, "of group world for rank 2 (in barrier #1 of group tp), rank 3 "
                                 "(in barrier #1 of group tp)") != NULL ||
                strstr(err.text, "of group tp for rank ") != NULL);
    world_close(w);

    world_open(w, 4, seed, 60000);
    int64_t start = wait_now_ns();
    world_run(w, crossed_body);
    assert_true(wait_now_ns() - start < 20000000000);
    assert_all(w, WEFT_ERR_RANK,
               "all ranks wait for each other: rank 0 (in barrier #1 of group world), rank 1 (in "
               "barrier #1 of group world), rank 2 (in barrier #1 of group tp)");
    world_close(w);
}

/* ---- opening ---- */

static void test_open_refuses(void **state) {
    (void)state;
    comm_hub *hub = NULL;
    weft_error err;
    assert_int_equal(comm_threads_hub_open(0, 1000, &hub, &err), WEFT_ERR_SETUP);
    assert_int_equal(comm_threads_hub_open(1 << 20, 1000, &hub, &err), WEFT_ERR_SETUP);
    assert_int_equal(comm_threads_hub_open(2, 0, &hub, &err), WEFT_ERR_SETUP);
    assert_null(hub);
    assert_int_equal(comm_threads_hub_open(4, INT64_MAX, &hub, &err), WEFT_OK);

    static const int32_t all[] = {0, 1, 2, 3};
    static const struct {
        int32_t list[4], size, index;
        const char *part;
    } bad[] = {
        {{0, 1, 2, 3}, 0, 0, "0 members"},
        {{0, 1, 2, 3}, 5, 1, "5 members"},
        {{0, 1, 2, 4}, 4, 1, "lists rank 4"},
        {{-1, 1, 2, 3}, 4, 1, "lists rank -1"},
        {{1, 1, 2, 3}, 4, 0, "lists rank 1 twice"},
        {{0, 1, 2, 3}, 4, 2, "place 2"},
        {{0, 1, 2, 3}, 1, 1, "place 1"},
        {{0, 1, 2, 3}, 2, -1, "place -1"},
    };
    comm *c = NULL;
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        comm_members m = {{4, 4, 4, 4}, {1, 1, 1, 1}, {all, all, all, all}};
        m.list[COMM_PCP] = bad[k].list;
        m.size[COMM_PCP] = bad[k].size;
        m.index[COMM_PCP] = bad[k].index;
        assert_int_equal(comm_threads_open(hub, 1, &m, &c, &err), WEFT_ERR_SETUP);
        assert_non_null(strstr(err.text, bad[k].part));
        assert_non_null(strstr(err.text, "pcp"));
    }
    comm_members part = {{2, 4, 4, 4}, {1, 1, 1, 1}, {all, all, all, all}};
    assert_int_equal(comm_threads_open(hub, 1, &part, &c, &err), WEFT_ERR_SETUP);
    comm_members good = {{4, 4, 4, 4}, {1, 1, 1, 1}, {all, all, all, all}};
    assert_int_equal(comm_threads_open(hub, 4, &good, &c, &err), WEFT_ERR_SETUP);
    assert_int_equal(comm_threads_open(hub, -1, &good, &c, &err), WEFT_ERR_SETUP);
    assert_null(c);
    assert_int_equal(comm_threads_open(hub, 1, &good, &c, &err), WEFT_OK);
    comm *second = NULL;
    assert_int_equal(comm_threads_open(hub, 1, &good, &second, &err), WEFT_ERR_SETUP);
    assert_non_null(strstr(err.text, "second time"));
    assert_null(second);
    assert_int_equal(comm_threads_state(hub, &err), WEFT_OK);
    c->v->close(c);
    comm_threads_hub_close(hub);
    comm_threads_hub_close(NULL);
}

/* Group kinds that list the same ranks are one group: their collectives pair across the names. */
static void one_group_body(rank *r) {
    for (int32_t round = 0; round < 200 && r->status == WEFT_OK; round++) {
        r->status = r->c->v->barrier(r->c, (r->i + round) % 2 == 0 ? COMM_WORLD : COMM_DCP);
    }
}

static void test_one_group(void **state) {
    (void)state;
    world *w = &shared_world;
    for (uint64_t seed = 1;; seed++) {
        world_open(w, 2, seed, 5000);
        if (w->size[COMM_DCP] == 2 && w->order[COMM_DCP][0] == 0) {
            break;
        }
        world_close(w);
    }
    world_run(w, one_group_body);
    assert_all(w, WEFT_OK, NULL);
    world_close(w);
}

int main(void) {
    alarm(240); /* a hang is a failure */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),         cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_mismatch),       cmocka_unit_test(test_abort),
        cmocka_unit_test(test_abort_outside),  cmocka_unit_test(test_abort_alone),
        cmocka_unit_test(test_copy_phase),     cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_deadline_pause), cmocka_unit_test(test_deadline_crossed),
        cmocka_unit_test(test_open_refuses),   cmocka_unit_test(test_one_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
