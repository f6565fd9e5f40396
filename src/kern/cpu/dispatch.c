/* Which rows and slots go to which rank, and what arrives there. A few integers per slot: one thread does
 * it sooner than a second is awake. */
#include "kern/cpu/cpu.h"

/* The rank that has slot i of a row, looked for from *m on, and the end of the row's slots there:
 * experts ascend in a row. */
static int32_t run_end(const kern_dispatch *p, const int32_t *expert, int32_t i, int32_t *m) {
    while (expert[i] >= p->cut[*m + 1])
        ++*m;
    while (i < p->n_used && expert[i] < p->cut[*m + 1])
        i++;
    return i;
}

static void count_parts(const kern_dispatch *p) {
    const int32_t *expert = cpu_ptr(p->expert);
    memset(p->count, 0, (size_t)p->n_rank * 2 * sizeof *p->count);
    for (int32_t r = 0; r < p->n_row; r++, expert += p->n_used)
        for (int32_t i = 0, m = 0, end; i < p->n_used; i = end) {
            end = run_end(p, expert, i, &m);
            p->count[2 * m]++;
            p->count[2 * m + 1] += end - i;
        }
}

/* next: [n_rank][2], the free places of each rank. */
static void place_parts(const kern_dispatch *p, int32_t *next) {
    const int32_t *expert = cpu_ptr(p->expert);
    int32_t *row = cpu_ptr(p->row), *slot = cpu_ptr(p->slot), *place = cpu_ptr(p->place);
    for (int32_t r = 0; r < p->n_row; r++, expert += p->n_used, place += p->n_used)
        for (int32_t i = 0, m = 0, end; i < p->n_used; i = end) {
            end = run_end(p, expert, i, &m);
            row[next[2 * m]++] = r;
            for (int32_t k = i; k < end; k++) {
                place[k] = next[2 * m + 1]++;
                slot[place[k]] = 2 * (expert[k] - p->cut[m]) + (k == i);
            }
        }
}

void cpu_dispatch(kern_dev *dev, const kern_dispatch *p) {
    (void)dev;
    int32_t *count = p->count, first[2] = {0};
    count_parts(p);
    for (int32_t i = 0; i < 2 * p->n_rank; i++) {
        int32_t n = count[i];
        count[i] = first[i % 2]; /* moves to the end while the parts take their places */
        first[i % 2] += n;
    }
    place_parts(p, count);
    for (int32_t i = 2 * p->n_rank - 1; i >= 2; i--)
        count[i] -= count[i - 2];
}

void cpu_arrive(kern_dev *dev, const kern_arrive *p) {
    (void)dev;
    const int32_t *slot = cpu_ptr(p->slot);
    int32_t *expert = cpu_ptr(p->expert), *row = cpu_ptr(p->row);
    for (int32_t i = 0, at = -1; i < p->n_slot; i++) {
        at += slot[i] % 2;
        expert[i] = slot[i] / 2;
        row[i] = at;
    }
}
