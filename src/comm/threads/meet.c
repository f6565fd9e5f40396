/* Posting, meeting, aborting: how members of a group wait for each other without hanging. */
#include "comm/threads/hub.h"

#include <stdio.h>
#include <string.h>

#include "base/trace.h"
#include "base/wait.h"

enum { LOOK_NS = 1000000000 };

/* As spans of a trace are called; behind "wait: " it is the kind's name. */
static const char *wait_name(hub_kind kind) {
    static const char *const names[] = {"wait: no collective", "wait: barrier",
                                        "wait: bcast",         "wait: all_gather_v",
                                        "wait: all_to_all_v",  "wait: no collective (closed)"};
    return names[kind];
}

const char *hub_kind_name(hub_kind kind) {
    return wait_name(kind) + strlen("wait: ");
}

const char *hub_group_name(comm_group g) {
    static const char *const names[COMM_N_GROUP] = {"world", "tp", "pcp", "dcp"};
    return names[g];
}

/* ---- abort ---- */

/* The order of this load and of the store in hub_abort against the `copying` flags is what keeps a
 * late copy away from memory that its owner has freed; hence seq_cst. */
weft_status hub_state(const comm_hub *hub) {
    return (weft_status)atomic_load_explicit(&hub->aborted, memory_order_seq_cst);
}

static weft_status abort_with(comm_hub *hub, weft_status why, const char *text, va_list args) {
    pthread_mutex_lock(&hub->lock);
    weft_status first = hub_state(hub);
    if (first == WEFT_OK) {
        first = why == WEFT_OK ? WEFT_ERR_RANK : why;
        char
            made[sizeof hub->reason.text + 8]; /* longer: the cut is error_set's, not vsnprintf's */
        vsnprintf(made, sizeof made, text, args);
        error_set(&hub->reason, first, "%s", made);
        atomic_store_explicit(&hub->aborted, (int32_t)first, memory_order_seq_cst);
        /* After the store: a member that reads the new generation also reads `aborted`. */
        for (int32_t i = 0; i < hub->n_group; i++) {
            atomic_fetch_add_explicit(&hub->groups[i]->generation, 1, memory_order_release);
            wait_wake_all(&hub->groups[i]->generation);
        }
    }
    pthread_mutex_unlock(&hub->lock);
    return first;
}

weft_status hub_abort(comm_hub *hub, weft_status why, const char *text, ...) {
    va_list args;
    va_start(args, text);
    weft_status s = abort_with(hub, why, text, args);
    va_end(args);
    return s;
}

/* ---- meet ---- */

static void place_set(hub_end *e, comm_group g, hub_kind kind, uint64_t number) {
    uint64_t word = number << 8 | (uint64_t)g << 4 | (uint64_t)kind;
    atomic_store_explicit(&e->hub->places[e->base.rank].word, word, memory_order_relaxed);
}

/* Appends "rank 3 (in barrier #41 of group dcp)" or the like. Returns the new length. */
static size_t name_missing(const comm_hub *hub, int32_t rank, char *text, size_t n, size_t cap) {
    uint64_t word = atomic_load_explicit(&hub->places[rank].word, memory_order_relaxed);
    hub_kind kind = (hub_kind)(word & 15);
    const char *comma = n == 0 ? "" : ", ";
    int put;
    if (kind == HUB_CLOSED) {
        put = snprintf(text + n, cap - n, "%srank %d (has closed its end)", comma, rank);
    } else if (kind == HUB_OUTSIDE) {
        put = snprintf(text + n, cap - n, "%srank %d (in no collective)", comma, rank);
    } else {
        put = snprintf(text + n, cap - n, "%srank %d (in %s #%llu of group %s)", comma, rank,
                       hub_kind_name(kind), (unsigned long long)(word >> 8),
                       hub_group_name((comm_group)(word >> 4 & 15)));
    }
    return put < 0 || (size_t)put >= cap - n ? cap - 1 : n + (size_t)put;
}

/* Aborts with the names of those who are not there. WEFT_OK when all are: the last one is just
 * about to let the others go. */
static weft_status deadline_abort(hub_end *e, comm_group g, uint64_t n_meet) {
    hub_group *group = e->groups[g];
    const hub_member *own = &group->members[e->base.index[g]];
    const hub_slot *call = &own->slots[own->number & 1];
    char missing[800] = "";
    size_t n = 0;
    for (int32_t m = 0; m < group->size; m++) {
        if (atomic_load_explicit(&group->members[m].n_meet, memory_order_relaxed) < n_meet) {
            n = name_missing(e->hub, group->members[m].rank, missing, n, sizeof missing);
        }
    }
    if (n == 0) {
        return WEFT_OK;
    }
    return hub_abort(e->hub, WEFT_ERR_RANK, "rank %d waited %lld ms in %s #%llu of group %s for %s",
                     e->base.rank, (long long)(e->hub->deadline_ns / 1000000),
                     hub_kind_name(call->kind), (unsigned long long)own->number, hub_group_name(g),
                     missing);
}

/* ---- ranks that wait for each other ---- */

/* True when the rank sleeps in a meet that is not over; *word names the meet. */
static bool is_blocked(const comm_hub *hub, int32_t rank, uint64_t *word) {
    *word = atomic_load_explicit(&hub->places[rank].blocked, memory_order_acquire);
    if (*word == 0) {
        return false;
    }
    const hub_group *group = hub->groups[(*word >> 32) - 1];
    return atomic_load_explicit(&group->generation, memory_order_acquire) == (uint32_t)*word;
}

/* Ranks that left the common order in different groups, so that no group ever meets and no kinds
 * are compared: A sleeps in dcp until B comes, B in pcp until A comes. A sleeper is woken by
 * another rank only and generations never return, so a rank that sleeps in the same meet in both
 * passes has slept all the time between, and when all have, nobody is left to wake anybody. */
static bool all_blocked(const comm_hub *hub) {
    uint64_t first[HUB_MAX_WORLD], again;
    for (int32_t r = 0; r < hub->world; r++) {
        if (!is_blocked(hub, r, &first[r])) {
            return false;
        }
    }
    for (int32_t r = 0; r < hub->world; r++) {
        if (!is_blocked(hub, r, &again) || again != first[r]) {
            return false;
        }
    }
    return true;
}

static weft_status blocked_abort(hub_end *e) {
    char all[800] = "";
    size_t n = 0;
    for (int32_t r = 0; r < e->hub->world; r++) {
        n = name_missing(e->hub, r, all, n, sizeof all);
    }
    return hub_abort(e->hub, WEFT_ERR_RANK, "all ranks wait for each other: %s", all);
}

static int64_t deadline_from_now(const comm_hub *hub) {
    int64_t now = wait_now_ns();
    return hub->deadline_ns > INT64_MAX - now ? INT64_MAX : now + hub->deadline_ns;
}

/* Sleeps until the generation changes. Now and then it looks whether anybody is awake. A look that
 * comes late means that the process stood still (a signal, a frozen container): time in which
 * nobody could come does not count. */
static weft_status sleep_until_met(hub_end *e, comm_group g, uint32_t seen, uint64_t n_meet) {
    hub_group *group = e->groups[g];
    _Atomic uint64_t *blocked = &e->hub->places[e->base.rank].blocked;
    int64_t end = deadline_from_now(e->hub), look = wait_now_ns() + LOOK_NS;
    weft_status s = WEFT_OK;
    atomic_store_explicit(blocked, ((uint64_t)group->index + 1) << 32 | seen, memory_order_release);
    while (s == WEFT_OK && !wait_while_equal(&group->generation, seen, look < end ? look : end)) {
        int64_t now = wait_now_ns(), late = now - (look < end ? look : end);
        if (late > LOOK_NS) { /* whoever is late for the same reason has another second */
            end = late > INT64_MAX - LOOK_NS - end ? INT64_MAX : end + late + LOOK_NS;
        }
        if (now >= end) {
            s = deadline_abort(e, g, n_meet);
            end = deadline_from_now(e->hub);
        } else if (all_blocked(e->hub)) {
            s = blocked_abort(e);
        }
        look = now + LOOK_NS;
    }
    atomic_store_explicit(blocked, 0, memory_order_release);
    return s;
}

/* Order: the generation is read before `aborted`. If it was read before an abort's change of it,
 * the wait ends; if after, the abort is seen here. */
weft_status hub_meet(hub_end *e, comm_group g) {
    hub_group *group = e->groups[g];
    hub_member *own = &group->members[e->base.index[g]];
    uint32_t seen = atomic_load_explicit(&group->generation, memory_order_acquire);
    weft_status s = hub_state(e->hub);
    if (s != WEFT_OK) {
        return s;
    }
    uint64_t n_meet = atomic_fetch_add_explicit(&own->n_meet, 1, memory_order_relaxed) + 1;
    uint32_t size = (uint32_t)group->size;
    if (atomic_fetch_add_explicit(&group->n_arrived, 1, memory_order_acq_rel) + 1 == size) {
        atomic_store_explicit(&group->n_arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&group->generation, 1, memory_order_release);
        wait_wake_all(&group->generation);
        return hub_state(e->hub);
    }
    trace_span wait = trace_begin_wait(wait_name(own->slots[own->number & 1].kind));
    s = sleep_until_met(e, g, seen, n_meet);
    trace_end(&wait);
    return s == WEFT_OK ? hub_state(e->hub) : s;
}

const hub_slot *hub_peer(const hub_end *e, comm_group g, int32_t member) {
    const hub_member *own = &e->groups[g]->members[e->base.index[g]];
    return &e->groups[g]->members[member].slots[own->number & 1];
}

static weft_status check_kinds(hub_end *e, comm_group g, const hub_slot *own) {
    const hub_group *group = e->groups[g];
    for (int32_t m = 0; m < group->size; m++) {
        const hub_slot *peer = hub_peer(e, g, m);
        if (peer->kind != own->kind || peer->number != own->number) {
            return hub_abort(e->hub, WEFT_ERR_RANK,
                             "rank %d is in %s #%llu of group %s, rank %d in %s #%llu of group %s",
                             e->base.rank, hub_kind_name(own->kind),
                             (unsigned long long)own->number, hub_group_name(g),
                             group->members[m].rank, hub_kind_name(peer->kind),
                             (unsigned long long)peer->number, hub_group_name(peer->name));
        }
    }
    return WEFT_OK;
}

weft_status hub_begin(hub_end *e, comm_group g, hub_kind kind, const hub_slot *call) {
    weft_status s = hub_state(e->hub);
    if (s != WEFT_OK) {
        return s; /* nothing is posted, so slots that a peer still checks stay as they are */
    }
    hub_member *own = &e->groups[g]->members[e->base.index[g]];
    own->number++;
    hub_slot *slot = &own->slots[own->number & 1];
    *slot = *call;
    slot->kind = kind;
    slot->name = g;
    slot->number = own->number;
    place_set(e, g, kind, own->number);
    s = hub_meet(e, g);
    return s == WEFT_OK ? check_kinds(e, g, slot) : s;
}

/* ---- copy phase ---- */

/* Flag first, then look: either this member sees the abort and reads nothing, or the member that
 * leaves because of it sees the flag and waits. */
weft_status hub_copy_enter(hub_end *e, comm_group g) {
    hub_member *own = &e->groups[g]->members[e->base.index[g]];
    atomic_store_explicit(&own->copying, 1, memory_order_seq_cst);
    weft_status s = hub_state(e->hub);
    if (s != WEFT_OK) {
        hub_copy_exit(e, g);
    }
    return s;
}

void hub_copy_exit(hub_end *e, comm_group g) {
    hub_member *own = &e->groups[g]->members[e->base.index[g]];
    atomic_store_explicit(&own->copying, 0, memory_order_seq_cst);
    if (hub_state(e->hub) != WEFT_OK) {
        wait_wake_all(&own->copying);
    }
}

weft_status hub_finish(hub_end *e, comm_group g, weft_status s) {
    hub_group *group = e->groups[g];
    if (s != WEFT_OK) {
        for (int32_t m = 0; m < group->size; m++) {
            _Atomic uint32_t *copying = &group->members[m].copying;
            if (atomic_load_explicit(copying, memory_order_seq_cst) != 0) {
                wait_while_equal(copying, 1, INT64_MAX);
            }
        }
    }
    place_set(e, g, HUB_OUTSIDE, 0);
    return s;
}

void hub_mark_closed(hub_end *e) {
    place_set(e, COMM_WORLD, HUB_CLOSED, 0);
}
