/* Steps of nothing but decode rows. */
#include "unit/batch/play.h"

/* T7, T8: nothing is gathered that could be left where it is: by bytes moved, auto takes pass-Q for
 * every context beyond half a page; each row is on one rank, and its K/V goes to one owner in each
 * replica. */
static void test_pure_decode(void **state) {
    (void)state;
    const topo_sizes sizes[] = {{1, 2, 2}, {1, 2, 1}, {1, 4, 4}, {1, 4, 2}, {2, 3, 6}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        topo_sizes s = sizes[i];
        open_world(model_of(4, s.tp > 1 ? 1 : 4), s, caps_of(MAX_REQ, 64));
        begin_step();
        for (int32_t r = 0; r < MAX_REQ; r++) {
            add(8 + 37 * r, 1, true);
        }
        check_step();
        int32_t n_tok = 0;
        int32_t n_recv = 0;
        for (int32_t r = 0; r < w.n; r++) {
            assert_int_equal(w.l[r].n_round, 0);
            assert_int_equal(w.l[r].n_tok, MAX_REQ / s.pcp);
            assert_int_equal(w.l[r].n_row, MAX_REQ / s.pcp);
            n_tok += w.l[r].n_tok;
            n_recv += w.l[r].n_recv;
        }
        assert_int_equal(n_tok, MAX_REQ * s.tp); /* each TP rank has its heads of each row */
        assert_int_equal(n_recv, MAX_REQ * w.n / s.dcp);
        close_world();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pure_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
