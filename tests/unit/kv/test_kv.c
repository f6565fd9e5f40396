/* Page pools: ownership, all or nothing, exact capacity, nothing lost and nothing twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv.h"

static uint64_t rng_state = 0x9E3779B97F4A7C15u;

static int32_t below(int32_t n) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (int32_t)((rng_state >> 11) % (uint64_t)n);
}

static int32_t shard_of(int32_t v, int32_t page) {
    int32_t shard = 0;
    for (int32_t bit = 1, top = v / 2; bit < v; bit *= 2, top /= 2)
        shard += page & bit ? top : 0;
    return shard;
}

static int32_t owner_of(int32_t v, const int32_t *cut, int32_t page) {
    int32_t r = 0;
    while (shard_of(v, page % v) >= cut[r + 1])
        r++;
    return r;
}

static void even_cut(int32_t v, int32_t dcp, int32_t *cut) {
    for (int32_t r = 0; r <= dcp; r++)
        cut[r] = r * v / dcp;
}

/* One group without a window. */
static weft_status open_with(int32_t dcp, const int32_t *cut, int32_t v, int32_t page_tokens,
                             int32_t n_page, kv_pools **out, weft_error *err) {
    const kv_group all = {.n_page = n_page};
    const kv_sizes sizes = {dcp, cut, v, page_tokens, 8, 1, &all, false};
    return kv_open(&sizes, out, err);
}

static kv_pools *open_pools(int32_t v, int32_t dcp, int32_t page_tokens, int32_t n_page) {
    int32_t cut[65];
    kv_pools *p = NULL;
    even_cut(v, dcp, cut);
    assert_int_equal(open_with(dcp, cut, v, page_tokens, n_page, &p, NULL), WEFT_OK);
    return p;
}

/* The design's worked numbers: page 16, V 16, dcp 2, 100 tokens: pages 0, 2, 4, 6 and 1, 3, 5. */
static void worked_example(void **state) {
    (void)state;
    kv_pools *p = open_pools(16, 2, 16, 10);
    int32_t page[8];
    kv_table t = {.page = {page}, .cap = 8};
    assert_true(kv_extend(p, &t, 100, 0));
    assert_int_equal(t.n_page[0], 7);
    assert_int_equal(kv_free(p, 0, 0), 10 - 4);
    assert_int_equal(kv_free(p, 0, 1), 10 - 3);
    assert_int_equal(kv_used_total(p, 0), 7);
    for (int32_t i = 0; i < 7; i++)
        for (int32_t j = i % 2; j < i; j += 2)
            assert_int_not_equal(page[i], page[j]);
    assert_true(kv_extend(p, &t, 112, 0)); /* the page is there already */
    assert_int_equal(kv_used_total(p, 0), 7);
    assert_true(kv_extend(p, &t, 1, 0)); /* never shrinks */
    assert_int_equal(t.n_page[0], 7);
    assert_true(kv_extend(p, &t, 113, 0));
    assert_int_equal(kv_free(p, 0, 1), 10 - 4);
    kv_release(p, &t);
    assert_int_equal(t.n_page[0], 0);
    assert_int_equal(kv_used_total(p, 0), 0);
    kv_close(p);
}

static void last_given_back_is_first_taken(void **state) {
    (void)state;
    kv_pools *p = open_pools(16, 1, 4, 8);
    int32_t a_page[4], b_page[4], c_page[4];
    kv_table a = {.page = {a_page}, .cap = 4}, b = {.page = {b_page}, .cap = 4},
             c = {.page = {c_page}, .cap = 4};
    assert_true(kv_extend(p, &a, 8, 0));
    assert_true(kv_extend(p, &b, 12, 0));
    int32_t first = a_page[0], second = a_page[1];
    kv_release(p, &a);
    assert_true(kv_extend(p, &c, 8, 0));
    assert_int_equal(c_page[0], first);
    assert_int_equal(c_page[1], second);
    kv_close(p);
}

/* One pool short is enough to refuse, and then nothing has moved in any pool. */
static void all_or_nothing(void **state) {
    (void)state;
    kv_pools *p = open_pools(16, 2, 16, 3);
    int32_t a_page[8], b_page[8];
    kv_table a = {.page = {a_page}, .cap = 8}, b = {.page = {b_page}, .cap = 8};
    assert_true(kv_extend(p, &a, 33, 0)); /* pages 0, 2 of pool 0 and 1 of pool 1 */
    assert_int_equal(kv_free(p, 0, 0), 1);
    assert_int_equal(kv_free(p, 0, 1), 2);
    assert_false(kv_extend(p, &b, 48, 0)); /* page 2 is pool 0's second */
    assert_false(kv_may_extend(p, 0, 48));
    assert_true(kv_may_extend(p, 0, 32) && kv_may_extend(p, 1, 48)); /* lacking: pages 1 and 2 */
    assert_true(kv_may_extend(p, 2, 32) && kv_may_extend(p, 8, 48)); /* nothing is */
    assert_int_equal(b.n_page[0], 0);
    assert_int_equal(kv_free(p, 0, 0), 1);
    assert_int_equal(kv_free(p, 0, 1), 2);
    assert_true(kv_extend(p, &b, 32, 0));
    assert_false(kv_extend(p, &b, 33, 0));
    assert_int_equal(b.n_page[0], 2);
    kv_release(p, &a);
    assert_true(kv_extend(p, &b, 33, 0));
    kv_close(p);
}

/* T30: a request longer than one rank's pool but within all of them. */
static void longer_than_one_pool(void **state) {
    (void)state;
    for (int32_t dcp = 1; dcp <= 4; dcp *= 2) {
        kv_pools *p = open_pools(16, dcp, 16, 4);
        assert_int_equal(kv_capacity_tokens(p), 64 * dcp);
        kv_close(p);
    }
}

static void capacity_is_exact(void **state) {
    (void)state;
    for (int32_t turn = 0; turn < 2000; turn++) {
        int32_t v = 1 << below(7), dcp = 1 + below(v), n_page = 1 + below(40), cut[65];
        int32_t page_tokens = 1 + below(20);
        even_cut(v, dcp, cut);
        if (turn % 2) { /* any cut with a shard for each */
            for (int32_t r = 1; r < dcp; r++)
                cut[r] = cut[r - 1] + 1 + below(v - (dcp - r) - cut[r - 1]);
        }
        kv_pools *p = NULL;
        assert_int_equal(open_with(dcp, cut, v, page_tokens, n_page, &p, NULL), WEFT_OK);
        int32_t need[64] = {0}, pages = 0;
        for (;; pages++)
            if (++need[owner_of(v, cut, pages)] > n_page)
                break;
        int32_t capacity = kv_capacity_tokens(p);
        assert_int_equal(capacity, pages * page_tokens);
        int32_t *page = calloc((size_t)pages + 1, sizeof *page);
        kv_table t = {.page = {page}, .cap = pages + 1};
        assert_false(kv_extend(p, &t, capacity + 1, 0));
        assert_int_equal(kv_used_total(p, 0), 0);
        assert_true(kv_extend(p, &t, capacity, 0));
        assert_int_equal(kv_used_total(p, 0), pages);
        free(page);
        kv_close(p);
    }
}

static void capacity_of_huge_pools_stays_in_range(void **state) {
    (void)state;
    kv_pools *p = open_pools(16, 4, 1 << 20, 4096);
    int32_t capacity = kv_capacity_tokens(p);
    assert_int_equal(capacity, INT32_MAX / (1 << 20) * (1 << 20));
    kv_close(p);
}

enum { N_TABLE = 12, TABLE_CAP = 40 };

/* Random tables that grow, fail and go: every physical page has one holder at most, and the counts
 * of each pool agree with a count by hand. */
static void random_life(void **state) {
    (void)state;
    for (int32_t turn = 0; turn < 60; turn++) {
        int32_t v = 1 << below(6), dcp = 1 + below(v), n_page = 1 + below(30), cut[65];
        even_cut(v, dcp, cut);
        kv_pools *p = open_pools(v, dcp, 3, n_page);
        int32_t page[N_TABLE][TABLE_CAP];
        kv_table t[N_TABLE];
        for (int32_t i = 0; i < N_TABLE; i++)
            t[i] = (kv_table){.page = {page[i]}, /* cppcheck-suppress legacyUninitvar */
                              .cap = TABLE_CAP};
        uint8_t *held = malloc((size_t)dcp * (size_t)n_page);
        for (int32_t act = 0; act < 300; act++) {
            kv_table *one = &t[below(N_TABLE)], was = *one;
            if (below(3) == 0)
                kv_release(p, one);
            else if (!kv_extend(p, one, below(TABLE_CAP * 3 + 1), 0))
                assert_int_equal(one->n_page[0], was.n_page[0]);
            memset(held, 0, (size_t)dcp * (size_t)n_page);
            int32_t used[64] = {0};
            for (int32_t i = 0; i < N_TABLE; i++)
                for (int32_t j = 0; j < t[i].n_page[0]; j++) {
                    int32_t r = owner_of(v, cut, j), physical = t[i].page[0][j];
                    assert_in_range(physical, 0, n_page - 1);
                    assert_int_equal(held[r * n_page + physical]++, 0);
                    used[r]++;
                }
            int64_t total = 0;
            for (int32_t r = 0; r < dcp; r++) {
                assert_int_equal(kv_free(p, 0, r), n_page - used[r]);
                total += used[r];
            }
            assert_int_equal(kv_used_total(p, 0), total);
        }
        free(held);
        kv_close(p);
    }
}

/* ---- groups ---- */

/* Page 16, window 40, chunks of 8: of a long context the positions p - 39 .. p + 7 touch 4
 * pages. */
static void window_gives_back(void **state) {
    (void)state;
    const int32_t cut[2] = {0, 16};
    const kv_group group[2] = {{0, 100}, {40, 4}};
    const kv_sizes sizes = {1, cut, 16, 16, 8, 2, group, false};
    int32_t page[2][100];
    kv_table t = {.page = {page[0], page[1]}, .cap = 100};
    kv_pools *p = NULL;
    assert_int_equal(kv_window_pages(&sizes, 40, 0), 4);
    assert_int_equal(kv_open(&sizes, &p, NULL), WEFT_OK);
    assert_int_equal(kv_group_count(p), 2);
    assert_int_equal(kv_capacity_tokens(p), 1600); /* the window holds any length */
    for (int32_t pos = 0; pos < 1600; pos += 8) {
        kv_trim(p, &t, pos);
        assert_true(kv_extend(p, &t, pos + 8, pos));
        int32_t first = pos > 39 ? (pos - 39) / 16 : 0, end = (pos + 8 + 15) / 16;
        assert_int_equal(t.first[1], first);
        assert_int_equal(t.n_page[1], end);
        assert_int_equal(kv_used_total(p, 1), end - first);
        assert_int_equal(t.first[0], 0);
        assert_int_equal(kv_used_total(p, 0), end);
        for (int32_t i = 0; i < end; i++)
            assert_true(i < first ? page[1][i] == -1 : page[1][i] >= 0);
    }
    kv_release(p, &t);
    assert_int_equal(kv_used_total(p, 0) + kv_used_total(p, 1), 0);
    assert_int_equal(t.first[1], 0);
    kv_close(p);
}

/* A long prompt takes as much at its start as it will hold later. */
static void window_of_a_prompt_does_not_grow(void **state) {
    (void)state;
    const int32_t cut[2] = {0, 16};
    const kv_group group = {40, 6};
    const kv_sizes sizes = {1, cut, 16, 16, 32, 1, &group, false};
    int32_t page[100];
    kv_table t = {.page = {page}, .cap = 100};
    kv_pools *p = NULL;
    assert_int_equal(kv_open(&sizes, &p, NULL), WEFT_OK);
    for (int32_t pos = 0; pos + 32 <= 1600; pos += 32) {
        kv_trim(p, &t, pos);
        assert_true(kv_extend(p, &t, 1600, pos));
        assert_in_range(kv_used_total(p, 0), pos + 80 < 1600 ? 5 : 1, 6);
    }
    kv_release(p, &t);
    assert_int_equal(kv_used_total(p, 0), 0);
    kv_close(p);
}

/* What is full in the last group leaves nothing taken in the ones before it. */
static void all_or_nothing_over_groups(void **state) {
    (void)state;
    const int32_t cut[3] = {0, 8, 16};
    const kv_group group[3] = {{0, 9}, {64, 9}, {8, 2}};
    const kv_sizes sizes = {2, cut, 16, 16, 100, 3, group, false};
    int32_t page[6][16];
    kv_table a = {.page = {page[0], page[1], page[2]}, .cap = 16},
             b = {.page = {page[3], page[4], page[5]}, .cap = 16};
    kv_pools *p = NULL;
    assert_int_equal(kv_open(&sizes, &p, NULL), WEFT_OK);
    assert_true(kv_extend(p, &a, 33, 0)); /* pool 0 of group 2: both pages */
    assert_false(kv_extend(p, &b, 1, 0));
    for (int32_t g = 0; g < 3; g++) {
        assert_int_equal(b.n_page[g], 0);
        assert_int_equal(kv_used_total(p, g), 3);
    }
    kv_trim(p, &a, 32); /* 25 and behind are seen: pages 0 is given back */
    assert_int_equal(kv_used_total(p, 2), 2);
    assert_int_equal(kv_used_total(p, 1), 3);
    assert_true(kv_extend(p, &b, 1, 0));
    kv_release(p, &a);
    kv_release(p, &b);
    for (int32_t g = 0; g < 3; g++)
        for (int32_t r = 0; r < 2; r++)
            assert_int_equal(kv_free(p, g, r), group[g].n_page);
    kv_close(p);
}

/* The bound is what some start of the range needs, and no start needs more. */
static void window_bound_is_exact(void **state) {
    (void)state;
    for (int32_t turn = 0; turn < 300; turn++) {
        int32_t v = 1 << below(6), dcp = 1 + below(v), cut[65], window = 1 + below(70);
        int32_t page_tokens = 1 + below(9), n = 1 + below(30);
        even_cut(v, dcp, cut);
        const kv_sizes sizes = {dcp, cut, v, page_tokens, n, 1, NULL, false};
        for (int32_t r = 0; r < dcp; r++) {
            int32_t most = 0;
            for (int32_t from = 0; from < v * page_tokens; from++) {
                int32_t count = 0, end = (from + window - 1 + n - 1) / page_tokens;
                for (int32_t page = from / page_tokens; page <= end; page++)
                    count += owner_of(v, cut, page) == r;
                most = count > most ? count : most;
            }
            assert_int_equal(kv_window_pages(&sizes, window, r), most);
        }
    }
}

static void bad_sizes_are_named(void **state) {
    (void)state;
    const struct {
        int32_t dcp, v, page_tokens, n_page, cut[4];
        const char *word;
    } bad[] = {
        {1, 12, 16, 4, {0, 12}, "12"},      {1, 0, 16, 4, {0, 0}, "shards"},
        {3, 2, 16, 4, {0, 1, 2, 2}, "dcp"}, {0, 2, 16, 4, {0}, "dcp"},
        {1, 2, 0, 4, {0, 2}, "page size"},  {1, 2, 16, 0, {0, 2}, "pages per rank"},
        {2, 4, 16, 4, {0, 4, 4}, "rank 1"}, {2, 4, 16, 4, {0, 2, 3}, "[0, 3)"},
        {2, 4, 16, 4, {1, 2, 4}, "[1, 4)"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kv_pools *p = (kv_pools *)&rng_state;
        weft_error err = {0};
        assert_int_equal(open_with(bad[i].dcp, bad[i].cut, bad[i].v, bad[i].page_tokens,
                                   bad[i].n_page, &p, &err),
                         WEFT_ERR_SETUP);
        assert_int_equal(err.status, WEFT_ERR_SETUP);
        assert_non_null(strstr(err.text, bad[i].word));
        assert_ptr_equal(p, &rng_state);
    }
    kv_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_example),
        cmocka_unit_test(last_given_back_is_first_taken),
        cmocka_unit_test(all_or_nothing),
        cmocka_unit_test(longer_than_one_pool),
        cmocka_unit_test(capacity_is_exact),
        cmocka_unit_test(capacity_of_huge_pools_stays_in_range),
        cmocka_unit_test(random_life),
        cmocka_unit_test(window_gives_back),
        cmocka_unit_test(window_of_a_prompt_does_not_grow),
        cmocka_unit_test(all_or_nothing_over_groups),
        cmocka_unit_test(window_bound_is_exact),
        cmocka_unit_test(bad_sizes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
