/* Transport between ranks: moves bytes, never adds.
 *
 * Every rank of a group must issue the same collectives in the same order; counts come from the
 * step's plan, or have been told by all_to_all_counts, never from a rank's own state. A backend checks kind, order and counts where it can
 * and fails with WEFT_ERR_RANK (all ranks, one reason) instead of hanging; every wait has a
 * deadline. */
#ifndef WEFT_COMM_COMM_H
#define WEFT_COMM_COMM_H

#include "base/status.h"
#include "tensor/mem.h"

typedef enum comm_group { COMM_WORLD, COMM_TP, COMM_PCP, COMM_DCP, COMM_N_GROUP } comm_group;

typedef struct comm comm; /* one rank's end */

typedef struct comm_vtable {
    weft_status (*barrier)(comm *c, comm_group g);
    /* root: index in the group. Host memory. */
    weft_status (*bcast)(comm *c, comm_group g, int32_t root, void *buf, size_t bytes);
    /* Member m's `bytes[m]` bytes end at recv + at[m] on every member. In place: a member has
     * written its own part there already. bytes, at: [group size], the same on every member. */
    weft_status (*all_gather_v)(comm *c, comm_group g, kern_mem recv, const size_t *bytes,
                                const size_t *at);
    /* Sends send + send_at[m], send_bytes[m] to member m, which gets it at its recv +
     * recv_at[sender]. The own part is moved too. Send ranges may overlap. Arrays: [group size].
     * send and recv do not overlap. */
    weft_status (*all_to_all_v)(comm *c, comm_group g, kern_mem send, const size_t *send_bytes,
                                const size_t *send_at, kern_mem recv, const size_t *recv_bytes,
                                const size_t *recv_at);
    /* n numbers from every member to every member: send[m * n ..] goes to member m, recv[m * n ..]
     * comes from it. For counts of what follows. Host memory, [group size * n] each. */
    weft_status (*all_to_all_counts)(comm *c, comm_group g, int32_t n, const int32_t *send,
                                     int32_t *recv);
    /* Ends every wait on every rank, now and later, with WEFT_ERR_RANK and this reason; the first
     * reason stays. */
    void (*abort)(comm *c, weft_status why, const char *reason);
    void (*close)(comm *c);
} comm_vtable;

struct comm {
    const comm_vtable *v;
    int32_t world, rank;
    int32_t size[COMM_N_GROUP],
        index[COMM_N_GROUP]; /* of this rank's groups, and this rank's place in each */
};

/* Members of a group: world ranks in the group's order; list: [size]. */
typedef struct comm_members {
    int32_t size[COMM_N_GROUP], index[COMM_N_GROUP];
    const int32_t *list[COMM_N_GROUP];
} comm_members;

/* ---- thread ranks ---- */
typedef struct comm_hub comm_hub; /* shared by the ranks of one process */
weft_status comm_threads_hub_open(int32_t world, int64_t deadline_ms, comm_hub **out,
                                  weft_error *err);
void comm_threads_hub_close(comm_hub *hub); /* after every comm on it is closed */
/* The end of `rank`; every rank opens its own, in any order. Groups that list the same ranks
 * (in the same order) are one group. A rank opens once in a hub's life. When a collective returns,
 * failed or not, no peer reads this rank's buffers any more: they may be freed. */
weft_status comm_threads_open(comm_hub *hub, int32_t rank, const comm_members *groups, comm **out,
                              weft_error *err);
/* WEFT_OK while nobody has aborted; else the first abort's status, its text into err. */
weft_status comm_threads_state(const comm_hub *hub, weft_error *err);

#endif
