/* The prefix cache of page ids: what is found is what was published, the oldest idle page goes
 * first, groups with windows need what a query sees. Against a list of all that was ever published. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/index.h"
#include "kv/kv.h"

enum { P = 4, CAP = 24 };

static uint64_t rng_state;

static int32_t below(int32_t n) {
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (int32_t)((rng_state >> 11) % (uint64_t)n);
}

/* A context in the making: its tokens, the names of its pages, and its table. */
typedef struct context {
    int32_t token[CAP * P];
    kv_name name[CAP + 1];
    int32_t page[KV_MAX_GROUP][CAP];
    kv_table t;
} context;

static void context_begin(context *c, const char *salt, int32_t n_group) {
    c->t = (kv_table){.cap = CAP};
    for (int32_t g = 0; g < n_group; g++)
        c->t.page[g] = c->page[g];
    c->name[0] = kv_name_root(salt);
    for (int32_t i = 0; i < CAP; i++)
        c->name[i + 1] = kv_name_next(c->name[i], c->token + i * P, P);
}

static void publish(kv_pools *p, context *c, int32_t from, int32_t to) {
    for (int32_t i = from; i < to; i++)
        kv_publish(p, &c->t, i, c->name, c->token + i * P);
}

static kv_pools *open_pools(int32_t dcp, int32_t n_group, const kv_group *group) {
    int32_t cut[17];
    kv_pools *p = NULL;
    for (int32_t r = 0; r <= dcp; r++)
        cut[r] = r * 16 / dcp;
    const kv_sizes sizes = {dcp, cut, 16, P, 8, n_group, group, true};
    assert_int_equal(kv_open(&sizes, &p, NULL), WEFT_OK);
    return p;
}

static const kv_group all_of_10 = {.n_page = 10};

static void published_pages_are_shared(void **state) {
    (void)state;
    static context a, b;
    kv_pools *p = open_pools(1, 1, &all_of_10);
    rng_state = 1;
    for (int32_t i = 0; i < CAP * P; i++)
        a.token[i] = below(100);
    memcpy(b.token, a.token, sizeof b.token);
    b.token[3 * P] ^= 1; /* the fourth page differs */
    context_begin(&a, NULL, 1);
    context_begin(&b, NULL, 1);
    assert_int_equal(kv_find(p, &a.t, a.name, a.token, 6), 0);
    assert_true(kv_extend(p, &a.t, 6 * P, 0));
    assert_int_equal(kv_find(p, &b.t, b.name, b.token, 6), 0); /* not before they are published */
    publish(p, &a, 0, 5);
    assert_int_equal(kv_find(p, &b.t, b.name, b.token, 2), 2); /* no more than asked for */
    kv_release(p, &b.t);
    assert_int_equal(kv_find(p, &b.t, b.name, b.token, 6), 3);
    assert_memory_equal(b.page[0], a.page[0], 3 * sizeof(int32_t));
    assert_int_equal(kv_used_total(p, 0), 6);
    kv_release(p, &a.t);
    assert_int_equal(kv_used_total(p, 0), 3);
    assert_int_equal(kv_idle_total(p, 0), 2); /* the sixth was never published */
    assert_int_equal(kv_free(p, 0, 0), 7);
    kv_release(p, &b.t);
    assert_int_equal(kv_idle_total(p, 0), 5);
    assert_int_equal(kv_used_total(p, 0), 0);
    context_begin(&b, "salt", 1);
    assert_int_equal(kv_find(p, &b.t, b.name, b.token, 6), 0);
    kv_close(p);
}

/* Of one table the last page goes before the first; of two tables the one given back first. */
static void oldest_goes_first(void **state) {
    (void)state;
    static context a, b, c;
    kv_pools *p = open_pools(1, 1, &all_of_10);
    rng_state = 2;
    context *each[] = {&a, &b, &c};
    for (int32_t k = 0; k < 3; k++) {
        for (int32_t i = 0; i < CAP * P; i++)
            each[k]->token[i] = below(100);
        context_begin(each[k], NULL, 1);
    }
    assert_true(kv_extend(p, &a.t, 4 * P, 0) && kv_extend(p, &b.t, 4 * P, 0));
    publish(p, &a, 0, 4);
    publish(p, &b, 0, 4);
    kv_release(p, &b.t);
    kv_release(p, &a.t);
    assert_true(kv_extend(p, &c.t, 5 * P, 0)); /* two free ones and three of b */
    assert_int_equal(kv_find(p, &b.t, b.name, b.token, 4), 1);
    assert_int_equal(kv_find(p, &a.t, a.name, a.token, 4), 4);
    kv_release(p, &a.t);
    kv_release(p, &b.t); /* b's page was used last now */
    assert_true(kv_extend(p, &c.t, 9 * P, 0));
    assert_int_equal(kv_find(p, &a.t, a.name, a.token, 4), 0);
    assert_int_equal(kv_find(p, &b.t, b.name, b.token, 4), 1);
    kv_close(p);
}

/* A context that was computed again beside its published pages: the pages in use are the ones that
 * stay, and those that nobody held are free. */
static void computed_again(void **state) {
    (void)state;
    static context a, b;
    kv_pools *p = open_pools(1, 1, &all_of_10);
    rng_state = 4;
    for (int32_t i = 0; i < CAP * P; i++)
        a.token[i] = below(100);
    memcpy(b.token, a.token, sizeof b.token);
    context_begin(&a, NULL, 1);
    context_begin(&b, NULL, 1);
    assert_true(kv_extend(p, &a.t, 4 * P, 0));
    publish(p, &a, 0, 4);
    assert_true(kv_extend(p, &b.t, 4 * P, 0));
    publish(p, &b, 0, 1); /* a holds the other one: it stays */
    kv_release(p, &a.t);
    assert_int_equal(kv_idle_total(p, 0), 4);
    publish(p, &b, 0, 4);
    assert_int_equal(kv_idle_total(p, 0), 0);
    assert_int_equal(kv_free(p, 0, 0), 6);
    assert_int_equal(kv_find(p, &a.t, a.name, a.token, 4), 4);
    assert_memory_equal(a.page[0], b.page[0], 4 * sizeof(int32_t));
    kv_release(p, &a.t);
    kv_release(p, &b.t);
    assert_int_equal(kv_idle_total(p, 0), 4);
    kv_close(p);
}

/* What an extension cannot have leaves everything as it was, idle pages too. */
static void refusal_evicts_nothing(void **state) {
    (void)state;
    static context a, b;
    kv_pools *p = open_pools(2, 1, &(kv_group){.n_page = 4});
    rng_state = 3;
    for (int32_t i = 0; i < CAP * P; i++)
        a.token[i] = below(100);
    context_begin(&a, NULL, 1);
    context_begin(&b, NULL, 1);
    assert_true(kv_extend(p, &a.t, 6 * P, 0));
    publish(p, &a, 0, 6);
    kv_release(p, &a.t);
    assert_false(kv_extend(p, &b.t, 9 * P, 0));
    assert_int_equal(kv_find(p, &a.t, a.name, a.token, 6), 6);
    kv_close(p);
}

/* Random lives of contexts that begin alike: a page that is found holds what was published under its
 * name, whoever used it in between. `content` plays the memory: a hash of tokens and of all before. */
static void what_is_found_is_right(void **state) {
    (void)state;
    enum { N = 12, GROUPS = 2 };
    int64_t found = 0, missed = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        static context c[N];
        rng_state = seed * 0x9E3779B97F4A7C15u;
        int32_t dcp = 1 + below(4);
        const kv_group group[GROUPS] = {{0, 6 + below(20)}, {1 + below(30), 6 + below(20)}};
        uint64_t *content[GROUPS];
        kv_pools *p = open_pools(dcp, GROUPS, group);
        for (int32_t g = 0; g < GROUPS; g++)
            content[g] = calloc((size_t)dcp * (size_t)group[g].n_page, sizeof **content);
        for (int32_t k = 0; k < N; k++) {
            for (int32_t i = 0; i < CAP * P; i++)
                c[k].token[i] = below(2);
            if (k > 0)
                memcpy(c[k].token, c[below(k)].token, (size_t)below(CAP * P) * sizeof(int32_t));
            context_begin(&c[k], NULL, GROUPS);
        }
        for (int32_t turn = 0; turn < 200; turn++) {
            context *x = &c[below(N)];
            if (x->t.n_page[0] > 0) {
                kv_release(p, &x->t);
                assert_int_equal(x->t.n_page[1], 0);
                continue;
            }
            int32_t want = 1 + below(CAP), n = kv_find(p, &x->t, x->name, x->token, want - 1);
            found += n;
            missed += n == 0;
            if (!kv_extend(p, &x->t, want * P, n * P)) {
                kv_release(p, &x->t);
                continue;
            }
            for (int32_t g = 0; g < GROUPS; g++)
                for (int32_t i = x->t.first[g]; i < x->t.n_page[g]; i++) {
                    int32_t shard = 0, r = 0;
                    for (int32_t bit = 1, top = 8; bit < 16; bit *= 2, top /= 2)
                        shard += (i & bit) ? top : 0;
                    while (shard >= (r + 1) * 16 / dcp)
                        r++;
                    uint64_t *cell = &content[g][r * group[g].n_page + x->page[g][i]];
                    if (i < n)
                        assert_true(*cell == x->name[i + 1].lo);
                    *cell = x->name[i + 1].lo;
                }
            int32_t held = x->t.n_page[1] < want ? x->t.n_page[1] : want;
            for (int32_t i = n; i < held; i++)
                if (i >= x->t.first[1])
                    publish(p, x, i, i + 1);
        }
        for (int32_t k = 0; k < N; k++)
            kv_release(p, &c[k].t);
        for (int32_t g = 0; g < GROUPS; g++) {
            assert_int_equal(kv_used_total(p, g), 0);
            for (int32_t r = 0; r < dcp; r++)
                assert_int_equal(kv_free(p, g, r), group[g].n_page);
            free(content[g]);
        }
        kv_close(p);
    }
    assert_true(found > 1000 && missed > 1000);
}

/* Names that all want the same slots, added and removed at random. */
static void index_closes_gaps(void **state) {
    (void)state;
    enum { N = 24 };
    kv_index x;
    bool in[N] = {false};
    rng_state = 5;
    assert_true(kv_index_open(&x, N));
    for (int32_t turn = 0; turn < 20000; turn++) {
        int32_t i = below(N);
        kv_name name = {(uint64_t)(i % 5) * 13, (uint64_t)i};
        if (in[i])
            kv_index_remove(&x, name);
        else
            kv_index_add(&x, name, i);
        in[i] = !in[i];
        for (int32_t k = 0; k < N; k++)
            assert_int_equal(kv_index_find(&x, (kv_name){(uint64_t)(k % 5) * 13, (uint64_t)k}),
                             in[k] ? k : -1);
    }
    kv_index_close(&x);
}

static void names_say_all(void **state) {
    (void)state;
    int32_t a[P] = {1, 2, 3, 4}, b[P] = {1, 2, 3, 5};
    kv_name none = kv_name_root(NULL), empty = kv_name_root(""), salt = kv_name_root("s");
    assert_memory_not_equal(&none, &empty, sizeof none);
    assert_memory_not_equal(&none, &salt, sizeof none);
    kv_name na = kv_name_next(none, a, P), nb = kv_name_next(none, b, P),
            sa = kv_name_next(salt, a, P), again = kv_name_next(none, a, P);
    assert_memory_equal(&na, &again, sizeof na);
    assert_memory_not_equal(&na, &nb, sizeof na);
    assert_memory_not_equal(&na, &sa, sizeof na);
    kv_name aa = kv_name_next(na, a, P), ba = kv_name_next(nb, a, P);
    assert_memory_not_equal(&aa, &ba, sizeof aa);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_pages_are_shared),
        cmocka_unit_test(oldest_goes_first),
        cmocka_unit_test(computed_again),
        cmocka_unit_test(refusal_evicts_nothing),
        cmocka_unit_test(what_is_found_is_right),
        cmocka_unit_test(index_closes_gaps),
        cmocka_unit_test(names_say_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
