/* UTF-8: the worked examples of the header, and every code point against its encoding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/utf8.h"

static int step_of(const char *bytes, size_t n) {
    return utf8_step((const uint8_t *)bytes, n);
}

static void worked_examples(void **state) {
    (void)state;
    assert_int_equal(step_of("\xE4\xBD\x20", 3), -2);
    assert_int_equal(step_of("\xE4\xBD", 2), 0);
    assert_int_equal(step_of("\xF0\x80", 2), -1);
    assert_int_equal(step_of("\xFF", 1), -1);
    assert_int_equal(utf8_valid_bytes("", 0), 0);
    assert_int_equal(utf8_valid_bytes("a\xC3\xA9z", 4), 4);
    assert_int_equal(utf8_valid_bytes("a\xC3\xA9\xC3", 4), 3);
    assert_int_equal(utf8_valid_bytes("ab\x80z", 4), 2);
}

/* A point in n bytes, whether it needs them or not. */
static void encode(uint32_t point, int n, uint8_t *out) {
    static const uint8_t lead[] = {0, 0x00, 0xC0, 0xE0, 0xF0};
    for (int i = n - 1; i > 0; i--, point >>= 6)
        out[i] = (uint8_t)(0x80 | (point & 0x3F));
    out[0] = (uint8_t)(lead[n] | point);
}

/* Every number in every form that can hold it: only the shortest is a character, and of those no
 * surrogate and nothing past U+10FFFF; one byte less is the beginning of it. */
static void every_point(void **state) {
    (void)state;
    static const uint32_t holds[] = {0, 0x80, 0x800, 0x10000, 0x200000};
    for (int n = 1; n <= 4; n++)
        for (uint32_t point = 0; point < holds[n]; point++) {
            uint8_t bytes[4];
            encode(point, n, bytes);
            bool is_one = (n == 1 || point >= holds[n - 1]) && point <= 0x10FFFF &&
                          !(point >= 0xD800 && point <= 0xDFFF);
            int step = utf8_step(bytes, (size_t)n);
            if (is_one ? step != n : step >= 0)
                fail_msg("U+%04X in %d bytes: %d", point, n, step);
            if (is_one && n > 1 && utf8_step(bytes, (size_t)n - 1) != 0)
                fail_msg("U+%04X cut to %d bytes", point, n - 1);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worked_examples),
        cmocka_unit_test(every_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
