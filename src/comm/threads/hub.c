/* Opening and closing of hubs and ends; the table of groups. */
#include "comm/threads/hub.h"

#include <stdlib.h>
#include <string.h>

weft_status comm_threads_hub_open(int32_t world, int64_t deadline_ms, comm_hub **out,
                                  weft_error *err) {
    if (world < 1 || world > HUB_MAX_WORLD) {
        return error_set(err, WEFT_ERR_SETUP, "%d ranks as threads; 1 to %d are possible", world,
                         HUB_MAX_WORLD);
    }
    if (deadline_ms < 1) {
        return error_set(err, WEFT_ERR_SETUP, "a deadline of %lld ms; at least 1 is needed",
                         (long long)deadline_ms);
    }
    comm_hub *hub = calloc(1, sizeof *hub);
    if (hub == NULL) {
        goto undo_nothing;
    }
    hub->world = world;
    hub->deadline_ns = deadline_ms > INT64_MAX / 1000000 ? INT64_MAX : deadline_ms * 1000000;
    hub->groups = calloc((size_t)world * COMM_N_GROUP, sizeof(hub_group *));
    if (hub->groups == NULL) {
        goto undo_hub;
    }
    size_t places_bytes = (size_t)world * sizeof(hub_place);
    hub->places = aligned_alloc(HUB_LINE_BYTES, places_bytes);
    if (hub->places == NULL) {
        goto undo_groups;
    }
    memset(hub->places, 0, places_bytes);
    if (pthread_mutex_init(&hub->lock, NULL) != 0) {
        goto undo_places;
    }
    *out = hub;
    return WEFT_OK;

undo_places:
    free(hub->places);
undo_groups:
    free(hub->groups);
undo_hub:
    free(hub);
undo_nothing:
    return error_set(err, WEFT_ERR_MEMORY, "no memory for a hub of %d ranks", world);
}

void comm_threads_hub_close(comm_hub *hub) {
    if (hub == NULL) {
        return;
    }
    for (int32_t i = 0; i < hub->n_group; i++) {
        free(hub->groups[i]);
    }
    pthread_mutex_destroy(&hub->lock);
    free(hub->places);
    free(hub->groups);
    free(hub);
}

weft_status comm_threads_state(const comm_hub *hub, weft_error *err) {
    weft_status s = hub_state(hub);
    return s == WEFT_OK ? s : error_set(err, s, "%s", hub->reason.text);
}

static weft_status check_group(const comm_hub *hub, int32_t rank, const comm_members *m,
                               comm_group g, weft_error *err) {
    const char *name = hub_group_name(g);
    int32_t size = m->size[g], index = m->index[g];
    const int32_t *list = m->list[g];
    if (size < 1 || size > hub->world || (g == COMM_WORLD && size != hub->world)) {
        return error_set(err, WEFT_ERR_SETUP, "group %s of rank %d has %d members in a world of %d",
                         name, rank, size, hub->world);
    }
    for (int32_t i = 0; i < size; i++) {
        if (list[i] < 0 || list[i] >= hub->world) {
            return error_set(err, WEFT_ERR_SETUP,
                             "group %s of rank %d lists rank %d; the world has 0 to %d", name, rank,
                             list[i], hub->world - 1);
        }
        for (int32_t j = 0; j < i; j++) {
            if (list[i] == list[j]) {
                return error_set(err, WEFT_ERR_SETUP, "group %s of rank %d lists rank %d twice",
                                 name, rank, list[i]);
            }
        }
    }
    if (index < 0 || index >= size || list[index] != rank) {
        return error_set(err, WEFT_ERR_SETUP,
                         "group %s of rank %d: place %d of %d members does not hold that rank",
                         name, rank, index, size);
    }
    return WEFT_OK;
}

static bool lists(const hub_group *group, const int32_t *list, int32_t size) {
    if (group->size != size) {
        return false;
    }
    for (int32_t i = 0; i < size; i++) {
        if (group->members[i].rank != list[i]) {
            return false;
        }
    }
    return true;
}

/* The group of this list, made when no end has asked for it yet; NULL: no memory. Under the lock.
 * Groups live as long as the hub: when the open that made one fails, the next try finds it. */
static hub_group *group_take(comm_hub *hub, const int32_t *list, int32_t size) {
    for (int32_t i = 0; i < hub->n_group; i++) {
        if (lists(hub->groups[i], list, size)) {
            return hub->groups[i];
        }
    }
    size_t bytes = sizeof(hub_group) + (size_t)size * sizeof(hub_member);
    hub_group *group = aligned_alloc(HUB_LINE_BYTES, bytes);
    if (group == NULL) {
        return NULL;
    }
    memset(group, 0, bytes);
    group->size = size;
    for (int32_t i = 0; i < size; i++) {
        group->members[i].rank = list[i];
    }
    group->index = hub->n_group;
    hub->groups[hub->n_group++] = group;
    return group;
}

/* Under the lock. A rank opens once, so COMM_N_GROUP groups a rank are room enough. */
static weft_status groups_take(hub_end *e, const comm_members *m, weft_error *err) {
    for (int32_t g = 0; g < COMM_N_GROUP; g++) {
        e->groups[g] = group_take(e->hub, m->list[g], m->size[g]);
        if (e->groups[g] == NULL) {
            return error_set(err, WEFT_ERR_MEMORY, "no memory for group %s of rank %d",
                             hub_group_name((comm_group)g), e->base.rank);
        }
        e->base.size[g] = m->size[g];
        e->base.index[g] = m->index[g];
    }
    return WEFT_OK;
}

weft_status comm_threads_open(comm_hub *hub, int32_t rank, const comm_members *groups, comm **out,
                              weft_error *err) {
    if (rank < 0 || rank >= hub->world) {
        return error_set(err, WEFT_ERR_SETUP, "rank %d in a world of %d", rank, hub->world);
    }
    for (int32_t g = 0; g < COMM_N_GROUP; g++) {
        weft_status s = check_group(hub, rank, groups, (comm_group)g, err);
        if (s != WEFT_OK) {
            return s;
        }
    }
    hub_end *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the end of rank %d", rank);
    }
    e->base.v = &hub_vtable;
    e->base.world = hub->world;
    e->base.rank = rank;
    e->hub = hub;
    weft_status s = WEFT_OK;
    pthread_mutex_lock(&hub->lock);
    if (hub->places[rank].opened) {
        s = error_set(err, WEFT_ERR_SETUP, "rank %d opens its end a second time", rank);
    } else {
        s = groups_take(e, groups, err);
        hub->places[rank].opened = s == WEFT_OK;
    }
    pthread_mutex_unlock(&hub->lock);
    if (s != WEFT_OK) {
        free(e);
        return s;
    }
    *out = &e->base;
    return WEFT_OK;
}
