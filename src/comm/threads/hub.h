/* Thread ranks: what the ends of one hub share. Inside comm/threads only.
 *
 * A collective of a group of n members:
 *
 *   post    each member writes its slot: kind, number, where its bytes are
 *   meet    all n have posted
 *   check   each compares the peers' slots with its own call
 *   copy    each receiver copies straight from the senders' buffers
 *   meet    all n have copied: senders may use their buffers again
 *
 * A barrier ends after the check. Slots are therefore kept twice, by the number's parity: member A
 * may post #42 while B still checks #41; nobody posts #43 before B has met in #42.
 *
 *   hub -> groups[0..n_group)   one per list of ranks, whatever the ranks call it
 *            group -> members[0..size) -> slots[2]
 *
 * Who may free what, and when:
 *   - The caller's buffers and count arrays: as soon as its collective has returned, with success
 *     or without. After an abort a member leaves only when no peer is in its copy phase, and no
 *     peer enters it any more (hub_copy_enter, hub_finish).
 *   - An end (comm): its rank, when it is in no call and no other thread calls abort on it.
 *   - Slots, groups and the reason: with the hub, after every end is closed. */
#ifndef WEFT_COMM_THREADS_HUB_H
#define WEFT_COMM_THREADS_HUB_H

#include <pthread.h>
#include <stdalign.h>
#include <stdatomic.h>

#include "comm/comm.h"

enum { HUB_LINE_BYTES = 64, HUB_MAX_WORLD = 1024 };

typedef enum hub_kind {
    HUB_OUTSIDE,
    HUB_BARRIER,
    HUB_BCAST,
    HUB_ALL_GATHER,
    HUB_ALL_TO_ALL,
    HUB_CLOSED
} hub_kind;

/* One member's call. `bytes` and `at` are what it sends (all_gather_v: of every member). */
typedef struct hub_slot {
    alignas(HUB_LINE_BYTES) hub_kind kind;
    comm_group name;
    int32_t root;    /* bcast */
    uint64_t number; /* of this collective in its group, from 1 */
    kern_mem mem;    /* bcast: the buffer; all_gather_v: recv; all_to_all_v: send */
    size_t n_byte;   /* bcast */
    const size_t *bytes, *at;
} hub_slot;

typedef struct hub_member {
    alignas(HUB_LINE_BYTES) uint64_t number; /* of the last collective; the member's own */
    _Atomic uint64_t n_meet;                 /* meets it has come to; to name who is missing */
    alignas(HUB_LINE_BYTES) _Atomic uint32_t copying;
    hub_slot slots[2];
    int32_t rank; /* world rank */
} hub_member;

typedef struct hub_group {
    alignas(HUB_LINE_BYTES) _Atomic uint32_t
        generation; /* changes when all have met, and at abort */
    alignas(HUB_LINE_BYTES) _Atomic uint32_t n_arrived;
    alignas(HUB_LINE_BYTES) int32_t size;
    int32_t index;        /* in the hub's table */
    hub_member members[]; /* [size] */
} hub_group;

/* Where a rank is. word, for the text of a deadline: number << 8 | group << 4 | kind. blocked,
 * while
 * it sleeps in a meet: (index of the group + 1) << 32 | the generation that it waits to see change;
 * else 0. */
typedef struct hub_place {
    alignas(HUB_LINE_BYTES) _Atomic uint64_t word;
    _Atomic uint64_t blocked;
    bool opened; /* under the lock; stays: a rank opens one end in a hub's life */
} hub_place;

struct comm_hub {
    _Atomic int32_t aborted; /* weft_status of the first abort; WEFT_OK: none */
    weft_error reason;       /* const once `aborted` is set */
    int64_t deadline_ns;
    int32_t world, n_group;
    pthread_mutex_t lock; /* open, close and abort */
    hub_group **groups;   /* [world * COMM_N_GROUP], the first n_group are set */
    hub_place *places;    /* [world] */
};

typedef struct hub_end {
    comm base; /* first: a comm * of this backend is a hub_end * */
    comm_hub *hub;
    hub_group *groups[COMM_N_GROUP];
} hub_end;

extern const comm_vtable hub_vtable;

/* ---- meet.c ---- */
const char *hub_kind_name(hub_kind kind);
const char *hub_group_name(comm_group g);
/* WEFT_OK, or the first abort's status. */
weft_status hub_state(const comm_hub *hub);
/* The first reason stays; every waiting member wakes. Returns the first abort's status. */
weft_status hub_abort(comm_hub *hub, weft_status why, const char *text, ...)
    __attribute__((format(printf, 3, 4)));

/* Posts *call (kind, name and number are filled here), meets and compares kinds. With WEFT_OK the
 * peers' slots may be read with hub_peer until the call's end. Every call ends with hub_finish. */
weft_status hub_begin(hub_end *e, comm_group g, hub_kind kind, const hub_slot *call);
const hub_slot *hub_peer(const hub_end *e, comm_group g, int32_t member);
/* Every read of a peer's buffer or count array stands between these two. hub_copy_enter fails when
 * somebody has aborted: nothing may be read then and hub_copy_exit is not due. */
weft_status hub_copy_enter(hub_end *e, comm_group g);
void hub_copy_exit(hub_end *e, comm_group g);
/* The second meet: everybody has copied. */
weft_status hub_meet(hub_end *e, comm_group g);
/* Ends a call with `s`. After a failure it waits until no peer reads this member's memory, which
 * takes a copy at most. Returns s. */
weft_status hub_finish(hub_end *e, comm_group g, weft_status s);
void hub_mark_closed(hub_end *e);

#endif
