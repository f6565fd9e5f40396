#include "base/utf8.h"

/* Bytes of a character by its first byte and the range of its second; later bytes are 80..BF. The
 * narrow ranges keep out overlong forms (E0, F0), surrogates (ED) and points past 10FFFF (F4). */
static int char_bytes(uint8_t lead, uint8_t *low, uint8_t *high) {
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80) {
        return 1;
    }
    if (lead < 0xC2 || lead > 0xF4) {
        return 0;
    }
    if (lead < 0xE0) {
        return 2;
    }
    if (lead < 0xF0) {
        *low = lead == 0xE0 ? 0xA0 : 0x80;
        *high = lead == 0xED ? 0x9F : 0xBF;
        return 3;
    }
    *low = lead == 0xF0 ? 0x90 : 0x80;
    *high = lead == 0xF4 ? 0x8F : 0xBF;
    return 4;
}

int utf8_step(const uint8_t *p, size_t n) {
    uint8_t low, high;
    int want = char_bytes(p[0], &low, &high);
    if (want == 0) {
        return -1;
    }
    for (int i = 1; i < want; i++) {
        if ((size_t)i == n) {
            return 0;
        }
        if (p[i] < low || p[i] > high) {
            return -i;
        }
        low = 0x80;
        high = 0xBF;
    }
    return want;
}

size_t utf8_valid_bytes(const char *text, size_t bytes) {
    const uint8_t *p = (const uint8_t *)text;
    size_t at = 0;
    while (at < bytes) {
        int step = utf8_step(p + at, bytes - at);
        if (step <= 0) {
            return at;
        }
        at += (size_t)step;
    }
    return at;
}
