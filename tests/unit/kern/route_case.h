/* Shared by the tests of mixtures of experts: the router's slots of some rows. */
#ifndef ROUTE_CASE_H
#define ROUTE_CASE_H

#include "kern_case.h"

typedef struct routed {
    buf expert, weight;
} routed;

static inline const int32_t *experts_of(routed r) {
    return buf_at(r.expert);
}

static inline void routed_free(routed r) {
    buf_free(r.expert);
    buf_free(r.weight);
}

/* p without its memory; logits: [n_row][n_expert]. */
static inline routed route_on(int32_t isa, kern_route p, int32_t n_thread, const float *logits,
                              const float *correction) {
    size_t n = (size_t)(p.n_row * p.n_used) * 4;
    routed r = {buf_take(n), buf_take(n)};
    const kern_table *t = table_of(isa);
    kern_dev *dev = dev_open(t, n_thread);
    p.logits = (kern_mem){(uintptr_t)logits};
    p.correction = (kern_mem){(uintptr_t)correction};
    p.expert = r.expert.mem;
    p.weight = r.weight.mem;
    t->route(dev, &p);
    t->close(dev);
    return r;
}

#endif
