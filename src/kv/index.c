/* A name's home is its low bits; a taken slot sends it to the next one. Removing closes the gap, so
 * that no search meets a hole between a name and its home:
 *
 *   home  3 3 4 .      remove the first: the second moves to 3; the third (home 4) is at 5, and 4 is
 *   slot  3 4 5 6      free now, so it moves too
 */
#include "kv/index.h"

#include <assert.h>
#include <stdlib.h>

bool kv_index_open(kv_index *x, int64_t n_page) {
    uint64_t n = 4;
    while (n < 2 * (uint64_t)n_page)
        n *= 2;
    *x = (kv_index){.slot = malloc(n * sizeof *x->slot), .mask = n - 1};
    for (uint64_t i = 0; x->slot && i < n; i++)
        x->slot[i].page = -1;
    return x->slot != NULL;
}

void kv_index_close(kv_index *x) {
    free(x->slot);
    *x = (kv_index){0};
}

static bool same(kv_name a, kv_name b) {
    return a.lo == b.lo && a.hi == b.hi;
}

/* Where the name is, or would be put. */
static uint64_t place(const kv_index *x, kv_name name) {
    uint64_t i = name.lo & x->mask;
    while (x->slot[i].page >= 0 && !same(x->slot[i].name, name))
        i = (i + 1) & x->mask;
    return i;
}

int32_t kv_index_find(const kv_index *x, kv_name name) {
    return x->slot[place(x, name)].page;
}

void kv_index_add(kv_index *x, kv_name name, int32_t page) {
    uint64_t i = place(x, name);
    assert(x->slot[i].page < 0 && page >= 0);
    x->slot[i] = (kv_index_slot){name, page};
}

void kv_index_remove(kv_index *x, kv_name name) {
    uint64_t hole = place(x, name);
    assert(x->slot[hole].page >= 0);
    for (uint64_t i = (hole + 1) & x->mask; x->slot[i].page >= 0; i = (i + 1) & x->mask) {
        uint64_t home = x->slot[i].name.lo & x->mask;
        if (((i - home) & x->mask) < ((i - hole) & x->mask))
            continue; /* its home lies behind the hole */
        x->slot[hole] = x->slot[i];
        hole = i;
    }
    x->slot[hole].page = -1;
}
