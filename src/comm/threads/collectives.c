/* The operations of comm.h on thread ranks. Receivers copy; counts are compared before. */
#include <stdlib.h>
#include <string.h>

#include "comm/threads/hub.h"

typedef unsigned long long ull; /* for %llu */

/* Thread ranks exchange host memory. An empty part may come with no memory at all. */
static void copy(kern_mem to, kern_mem from, size_t bytes) {
    if (bytes != 0) {
        memcpy((void *)to.at, (const void *)from.at, bytes);
    }
}

static int32_t rank_of(const hub_end *e, comm_group g, int32_t member) {
    return e->groups[g]->members[member].rank;
}

static ull number_of(const hub_end *e, comm_group g) {
    return e->groups[g]->members[e->base.index[g]].number;
}

/* ---- barrier ---- */

static weft_status barrier(comm *c, comm_group g) {
    hub_end *e = (hub_end *)c;
    if (c->size[g] == 1) {
        return hub_state(e->hub);
    }
    return hub_finish(e, g, hub_begin(e, g, HUB_BARRIER, &(hub_slot){0}));
}

/* ---- bcast ---- */

static weft_status bcast_check(hub_end *e, comm_group g, int32_t root, size_t bytes) {
    for (int32_t m = 0; m < e->base.size[g]; m++) {
        const hub_slot *peer = hub_peer(e, g, m);
        if (peer->root != root || root < 0 || root >= e->base.size[g]) {
            return hub_abort(
                e->hub, WEFT_ERR_RANK,
                "bcast #%llu of group %s: rank %d names member %d as the root, rank %d "
                "member %d, of %d",
                number_of(e, g), hub_group_name(g), e->base.rank, root, rank_of(e, g, m),
                peer->root, e->base.size[g]);
        }
        if (peer->n_byte != bytes) {
            return hub_abort(e->hub, WEFT_ERR_RANK,
                             "bcast #%llu of group %s: rank %d has %zu bytes, rank %d has %zu",
                             number_of(e, g), hub_group_name(g), e->base.rank, bytes,
                             rank_of(e, g, m), peer->n_byte);
        }
    }
    return WEFT_OK;
}

static weft_status bcast_copy(hub_end *e, comm_group g, int32_t root, void *buf, size_t bytes) {
    weft_status s = bcast_check(e, g, root, bytes);
    if (s != WEFT_OK || e->base.index[g] == root) {
        return s;
    }
    s = hub_copy_enter(e, g);
    if (s == WEFT_OK) {
        copy((kern_mem){(uintptr_t)buf}, hub_peer(e, g, root)->mem, bytes);
        hub_copy_exit(e, g);
    }
    return s;
}

static weft_status bcast(comm *c, comm_group g, int32_t root, void *buf, size_t bytes) {
    hub_end *e = (hub_end *)c;
    if (c->size[g] == 1 && root == 0) {
        return hub_state(e->hub);
    }
    weft_status s = hub_begin(e, g, HUB_BCAST,
                              &(hub_slot){.root = root, .mem = {(uintptr_t)buf}, .n_byte = bytes});
    if (s == WEFT_OK) {
        s = bcast_copy(e, g, root, buf, bytes);
    }
    if (s == WEFT_OK) {
        s = hub_meet(e, g);
    }
    return hub_finish(e, g, s);
}

/* ---- all_gather_v ---- */

/* Member m's own view of its part against this member's, in the copy phase. */
static weft_status gather_part(hub_end *e, comm_group g, kern_mem recv, const size_t *bytes,
                               const size_t *at, int32_t m) {
    const hub_slot *peer = hub_peer(e, g, m);
    if (peer->bytes[m] != bytes[m] || peer->at[m] != at[m]) {
        return hub_abort(e->hub, WEFT_ERR_RANK,
                         "all_gather_v #%llu of group %s: rank %d gives %zu bytes at %zu, rank %d "
                         "expects %zu at %zu",
                         number_of(e, g), hub_group_name(g), rank_of(e, g, m), peer->bytes[m],
                         peer->at[m], e->base.rank, bytes[m], at[m]);
    }
    copy(kern_at(recv, at[m]), kern_at(peer->mem, at[m]), bytes[m]);
    return WEFT_OK;
}

/* Starts with the next member: not all read from member 0 at once. */
static weft_status gather_copy(hub_end *e, comm_group g, kern_mem recv, const size_t *bytes,
                               const size_t *at) {
    weft_status s = hub_copy_enter(e, g);
    if (s != WEFT_OK) {
        return s;
    }
    int32_t n = e->base.size[g];
    for (int32_t i = 1; i < n && s == WEFT_OK; i++) {
        s = gather_part(e, g, recv, bytes, at, (e->base.index[g] + i) % n);
    }
    hub_copy_exit(e, g);
    return s;
}

static weft_status all_gather_v(comm *c, comm_group g, kern_mem recv, const size_t *bytes,
                                const size_t *at) {
    hub_end *e = (hub_end *)c;
    if (c->size[g] == 1) {
        return hub_state(e->hub);
    }
    weft_status s =
        hub_begin(e, g, HUB_ALL_GATHER, &(hub_slot){.mem = recv, .bytes = bytes, .at = at});
    if (s == WEFT_OK) {
        s = gather_copy(e, g, recv, bytes, at);
    }
    if (s == WEFT_OK) {
        s = hub_meet(e, g);
    }
    return hub_finish(e, g, s);
}

/* ---- all_to_all_v ---- */

typedef struct parts {
    kern_mem mem;
    const size_t *bytes, *at; /* [group size] */
} parts;

static weft_status exchange_part(hub_end *e, comm_group g, const hub_slot *sender, int32_t m,
                                 const parts *recv) {
    int32_t own = e->base.index[g];
    if (sender->bytes[own] != recv->bytes[m]) {
        return hub_abort(e->hub, WEFT_ERR_RANK,
                         "all_to_all_v #%llu of group %s: rank %d sends %zu bytes to rank %d, "
                         "which expects %zu",
                         number_of(e, g), hub_group_name(g), rank_of(e, g, m), sender->bytes[own],
                         e->base.rank, recv->bytes[m]);
    }
    copy(kern_at(recv->mem, recv->at[m]), kern_at(sender->mem, sender->at[own]), recv->bytes[m]);
    return WEFT_OK;
}

static weft_status exchange_copy(hub_end *e, comm_group g, const parts *recv) {
    weft_status s = hub_copy_enter(e, g);
    if (s != WEFT_OK) {
        return s;
    }
    int32_t n = e->base.size[g];
    for (int32_t i = 0; i < n && s == WEFT_OK; i++) {
        int32_t m = (e->base.index[g] + i) % n;
        s = exchange_part(e, g, hub_peer(e, g, m), m, recv);
    }
    hub_copy_exit(e, g);
    return s;
}

static weft_status all_to_all_v(comm *c, comm_group g, kern_mem send, const size_t *send_bytes,
                                const size_t *send_at, kern_mem recv, const size_t *recv_bytes,
                                const size_t *recv_at) {
    hub_end *e = (hub_end *)c;
    hub_slot call = {.mem = send, .bytes = send_bytes, .at = send_at};
    parts to = {recv, recv_bytes, recv_at};
    if (c->size[g] == 1) {
        weft_status alone = hub_state(e->hub);
        return alone == WEFT_OK ? exchange_part(e, g, &call, 0, &to) : alone;
    }
    weft_status s = hub_begin(e, g, HUB_ALL_TO_ALL, &call);
    if (s == WEFT_OK) {
        s = exchange_copy(e, g, &to);
    }
    if (s == WEFT_OK) {
        s = hub_meet(e, g);
    }
    return hub_finish(e, g, s);
}

static weft_status all_to_all_counts(comm *c, comm_group g, int32_t n, const int32_t *send,
                                     int32_t *recv) {
    size_t bytes[HUB_MAX_WORLD], at[HUB_MAX_WORLD];
    for (int32_t m = 0; m < c->size[g]; m++) {
        bytes[m] = (size_t)n * sizeof *send;
        at[m] = (size_t)m * bytes[m];
    }
    return all_to_all_v(c, g, (kern_mem){(uintptr_t)send}, bytes, at, (kern_mem){(uintptr_t)recv},
                        bytes, at);
}

/* ---- the rest ---- */

static void abort_all(comm *c, weft_status why, const char *reason) {
    hub_abort(((hub_end *)c)->hub, why, "%s", reason == NULL ? "no reason given" : reason);
}

static void close_end(comm *c) {
    hub_end *e = (hub_end *)c;
    hub_mark_closed(e);
    free(e);
}

const comm_vtable hub_vtable = {
    .barrier = barrier,
    .bcast = bcast,
    .all_gather_v = all_gather_v,
    .all_to_all_v = all_to_all_v,
    .all_to_all_counts = all_to_all_counts,
    .abort = abort_all,
    .close = close_end,
};
