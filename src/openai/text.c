/* Growing bytes, and JSON values written into them. */
#include "openai/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

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
    const uint8_t *p = (const uint8_t *)data;
    for (size_t at = 0; at < n;) {
        size_t begin = at;
        int step = 1;
        while (at < n &&
               (is_plain(p[at]) || (p[at] >= 0x80 && (step = utf8_step(p + at, n - at)) > 0))) {
            at += p[at] >= 0x80 ? (size_t)step : 1;
        }
        openai_put(t, data + begin, at - begin);
        if (at == n) {
            return;
        }
        if (p[at] >= 0x80) {
            openai_puts(t, "\xEF\xBF\xBD");
        } else {
            put_special(t, p[at]);
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
