/* Slots to the ranks that own their experts and back: against a walk over ranks, rows and slots, for
 * the sizes at which other engines' kernels ended early (H07) and for uneven owners (H11). */
#include "kern_case.h"

enum { MAX_RANK = 64 };

typedef struct sent {
    int32_t n_row, n_used, n_rank;
    int32_t cut[MAX_RANK + 1], count[MAX_RANK][2];
    buf expert, row, slot, place;
} sent;

static const int32_t *ints(buf b) {
    return buf_at(b);
}

/* Row r's experts: n_used different ones, ascending. skew: nearly all rows want the last ones. */
static void draw_experts(sent *s, int32_t n_expert, bool skew) {
    int32_t *out = buf_at(s->expert);
    for (int32_t r = 0; r < s->n_row; r++) {
        bool taken[1024] = {false};
        for (int32_t n = 0; n < s->n_used;) {
            int32_t e = skew && rng_below(20) ? n_expert - 1 - n : rng_below(n_expert);
            n += !taken[e];
            taken[e] = true;
        }
        for (int32_t e = 0; e < n_expert; e++)
            if (taken[e])
                *out++ = e;
    }
}

static sent dispatch_on(int32_t isa, int32_t n_row, int32_t n_used, int32_t n_rank,
                        int32_t n_expert, bool skew) {
    sent s = {.n_row = n_row, .n_used = n_used, .n_rank = n_rank};
    int32_t parts = n_used < n_rank ? n_used : n_rank;
    for (int32_t m = 0; m <= n_rank; m++)
        s.cut[m] = m * n_expert / n_rank;
    s.expert = buf_take((size_t)(n_row * n_used) * 4);
    s.row = buf_take((size_t)(n_row * parts) * 4);
    s.slot = buf_take((size_t)(n_row * n_used) * 4);
    s.place = buf_take((size_t)(n_row * n_used) * 4);
    draw_experts(&s, n_expert, skew);
    const kern_table *t = table_of(isa);
    kern_dev *dev = dev_open(t, 2);
    t->dispatch(dev, &(kern_dispatch){.n_row = n_row,
                                      .n_used = n_used,
                                      .n_rank = n_rank,
                                      .cut = s.cut,
                                      .expert = s.expert.mem,
                                      .row = s.row.mem,
                                      .slot = s.slot.mem,
                                      .place = s.place.mem,
                                      .count = &s.count[0][0]});
    t->close(dev);
    return s;
}

static void sent_free(sent s) {
    buf_free(s.expert);
    buf_free(s.row);
    buf_free(s.slot);
    buf_free(s.place);
}

/* All rows and slots of rank after rank; *row and *slot: those of the ranks before. */
static void check_rank(const sent *s, int32_t m, int32_t *row, int32_t *slot) {
    int32_t row0 = *row, slot0 = *slot;
    for (int32_t r = 0; r < s->n_row; r++) {
        bool first = true;
        for (int32_t k = 0; k < s->n_used; k++) {
            int32_t i = r * s->n_used + k, e = ints(s->expert)[i];
            if (e < s->cut[m] || e >= s->cut[m + 1])
                continue;
            if (first)
                assert_int_equal(ints(s->row)[(*row)++], r);
            assert_int_equal(ints(s->place)[i], *slot);
            assert_int_equal(ints(s->slot)[(*slot)++], 2 * (e - s->cut[m]) + first);
            first = false;
        }
    }
    assert_int_equal(s->count[m][0], *row - row0);
    assert_int_equal(s->count[m][1], *slot - slot0);
}

static void check_dispatch(int32_t n_row, int32_t n_used, int32_t n_rank, int32_t n_expert,
                           bool skew) {
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        sent s = dispatch_on(isa, n_row, n_used, n_rank, n_expert, skew);
        int32_t row = 0, slot = 0;
        for (int32_t m = 0; m < n_rank; m++)
            check_rank(&s, m, &row, &slot);
        assert_int_equal(slot, n_row * n_used);
        sent_free(s);
    }
}

static void h07_all_sizes(void **state) {
    (void)state;
    static const int32_t rows[] = {0, 1, 15, 16, 17, 63, 64, 65, 4097};
    static const int32_t experts[] = {8, 60, 64, 65, 160, 257, 512}, used[] = {1, 6, 8};
    static const int32_t ranks[] = {1, 2, 3, 4, 6, 8, 64};
    for (int32_t i = 0; i < 9; i++)
        for (int32_t k = 0; k < 7; k++)
            check_dispatch(rows[i], used[(i + k) % 3], ranks[(i + 2 * k) % 7], experts[k], i % 2);
}

/* 10 experts on 4 ranks, 64 on 3, 128 on 6, 4 on 8: some ranks have more than others, or none. */
static void h11_uneven(void **state) {
    (void)state;
    static const int32_t experts[] = {10, 64, 128, 4, 1}, ranks[] = {4, 3, 6, 8, 5};
    for (int32_t i = 0; i < 5; i++)
        for (int32_t n_used = 1; n_used <= experts[i] && n_used <= 10; n_used++)
            check_dispatch(37, n_used, ranks[i], experts[i], n_used % 2);
}

/* What two senders and one without rows send to one rank. */
static void arrival(void **state) {
    (void)state;
    static const int32_t slot[] = {2 * 3 + 1, 2 * 4, 2 * 0 + 1, 2 * 0 + 1, 2 * 1, 2 * 2, 2 * 4 + 1};
    static const int32_t expert[] = {3, 4, 0, 0, 1, 2, 4}, row[] = {0, 0, 1, 2, 2, 2, 3};
    for (int32_t isa = 0; isa < isa_count(); isa++) {
        const kern_table *t = table_of(isa);
        kern_dev *dev = dev_open(t, 1);
        buf in = buf_take(sizeof slot), e = buf_take(sizeof slot), r = buf_take(sizeof slot);
        memcpy(buf_at(in), slot, sizeof slot);
        kern_arrive p = {.n_slot = 7, .slot = in.mem, .expert = e.mem, .row = r.mem};
        t->arrive(dev, &p);
        assert_memory_equal(buf_at(e), expert, sizeof expert);
        assert_memory_equal(buf_at(r), row, sizeof row);
        t->arrive(dev, &(kern_arrive){0});
        t->close(dev);
        buf_free(in);
        buf_free(e);
        buf_free(r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(h07_all_sizes),
        cmocka_unit_test(h11_uneven),
        cmocka_unit_test(arrival),
    };
    isa_print_absent();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
