/* Growing bytes, and JSON values written into them. */
#include "openai/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void openai_text_free(openai_text *t) {
    free(t->data);
    *t = (openai_text){0};
}

static bool reserve(openai_text *t, size_t more) {
    if (t->failed || more > SIZE_MAX / 4 - t->n) {
        t->failed = true;
        return false;
    }
    if (t->n + more <= t->cap) {
        return true;
    }
    size_t cap = 2 * (t->n + more);
    cap = cap < 64 ? 64 : cap;
    char *grown = realloc(t->data, cap);
    if (grown == NULL) {
        t->failed = true;
        return false;
    }
    t->data = grown;
    t->cap = cap;
    return true;
}

void openai_put(openai_text *t, const char *data, size_t n) {
    if (n > 0 && reserve(t, n)) {
        memcpy(t->data + t->n, data, n);
        t->n += n;
    }
}

void openai_puts(openai_text *t, const char *text) {
    openai_put(t, text, strlen(text));
}

void openai_put_integer(openai_text *t, int64_t v) {
    char digits[24], *p = digits + sizeof digits;
    uint64_t rest = v < 0 ? -(uint64_t)v : (uint64_t)v;
    do {
        *--p = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (v < 0) {
        *--p = '-';
    }
    openai_put(t, p, (size_t)(digits + sizeof digits - p));
}

void openai_put_float(openai_text *t, float v) {
    char digits[32];
    if (!isfinite(v)) {
        openai_puts(t, "null");
        return;
    }
    int n = snprintf(digits, sizeof digits, "%.9g", (double)v);
    openai_put(t, digits, (size_t)n);
}

size_t openai_utf8_length(const char *p, size_t n) {
    const unsigned char *b = (const unsigned char *)p;
    if (b[0] < 0x80) {
        return 1;
    }
    size_t due = b[0] >= 0xF0 ? 4 : b[0] >= 0xE0 ? 3 : 2;
    if (b[0] < 0xC2 || b[0] > 0xF4 || n < due) {
        return 0;
    }
    /* the second byte keeps out overlong forms, surrogates, and what is past U+10FFFF */
    unsigned char low = b[0] == 0xE0 ? 0xA0 : b[0] == 0xF0 ? 0x90 : 0x80;
    unsigned char high = b[0] == 0xED ? 0x9F : b[0] == 0xF4 ? 0x8F : 0xBF;
    if (b[1] < low || b[1] > high) {
        return 0;
    }
    for (size_t i = 2; i < due; i++) {
        if ((b[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    return due;
}

bool openai_utf8_whole(const char *p, size_t n) {
    for (size_t at = 0; at < n;) {
        size_t step = openai_utf8_length(p + at, n - at);
        if (step == 0) {
            return false;
        }
        at += step;
    }
    return true;
}

static bool is_plain(unsigned char c) {
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

static void put_special(openai_text *t, unsigned char c) {
    static const char name[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (const char *p = name; *p != '\0'; p += 2) {
        if ((unsigned char)*p == c) {
            char pair[2] = {'\\', p[1]};
            openai_put(t, pair, 2);
            return;
        }
    }
    char code[8];
    snprintf(code, sizeof code, "\\u%04x", c);
    openai_put(t, code, 6);
}

void openai_put_escaped(openai_text *t, const char *data, size_t n) {
    for (size_t at = 0; at < n;) {
        size_t begin = at, step = 0;
        while (at < n && (is_plain((unsigned char)data[at]) ||
                          ((unsigned char)data[at] >= 0x80 &&
                           (step = openai_utf8_length(data + at, n - at)) > 0))) {
            at += (unsigned char)data[at] >= 0x80 ? step : 1;
        }
        openai_put(t, data + begin, at - begin);
        if (at == n) {
            return;
        }
        if ((unsigned char)data[at] >= 0x80) {
            openai_puts(t, "\xEF\xBF\xBD");
        } else {
            put_special(t, (unsigned char)data[at]);
        }
        at++;
    }
}

void openai_put_string(openai_text *t, const char *data, size_t n) {
    openai_puts(t, "\"");
    openai_put_escaped(t, data, n);
    openai_puts(t, "\"");
}

char *openai_text_take(openai_text *t) {
    openai_put(t, "", 1);
    char *data = t->data;
    if (t->failed) {
        free(data);
        data = NULL;
    }
    *t = (openai_text){0};
    return data;
}
