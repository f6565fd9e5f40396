#include "tok/tok_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

uint32_t utf8_point(const uint8_t *p, int k) {
    static const uint8_t lead_mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t point = p[0] & lead_mask[k];
    for (int i = 1; i < k; i++) {
        point = point << 6 | (p[i] & 0x3Fu);
    }
    return point;
}

size_t utf8_put(uint32_t point, char *out) {
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (char)(0xC0 | point >> 6);
        out[1] = (char)(0x80 | (point & 0x3F));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (char)(0xE0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 0x3F));
        out[2] = (char)(0x80 | (point & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 0x3F));
    out[2] = (char)(0x80 | (point >> 6 & 0x3F));
    out[3] = (char)(0x80 | (point & 0x3F));
    return 4;
}

size_t utf8_first_bytes(const char *text, size_t n) {
    size_t k = 1;
    while (k < n && ((uint8_t)text[k] & 0xC0) == 0x80) {
        k++;
    }
    return k;
}

size_t utf8_last_bytes(const char *text, size_t n) {
    size_t k = 1;
    while (k < n && ((uint8_t)text[n - k] & 0xC0) == 0x80) {
        k++;
    }
    return k;
}

/* ---- classes ---- */

bool utf8_is_space(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

bool utf8_is_word(uint32_t c) {
    switch (utf8proc_category((int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* joiners, and the circled and squared letters, which are symbols by category */
        return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
               (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
               (c >= 0x1F170 && c <= 0x1F189);
    }
}

/* 33..126, 161..172, 174..255 stand for themselves; the other 68 bytes, in order, are 256..323.
 * Worked: blank (32) is the 33rd of them: U+0120. */
int alphabet_byte(uint32_t point) {
    if ((point >= 33 && point <= 126) || (point >= 161 && point <= 255 && point != 173)) {
        return (int)point;
    }
    if (point < 256 || point > 323) {
        return -1;
    }
    uint32_t k = point - 256;
    if (k <= 32) {
        return (int)k; /* 0..32 */
    }
    return k <= 66 ? (int)(k - 33 + 127) : 173; /* 127..160, 173 */
}

uint32_t alphabet_point(uint8_t byte) {
    if (byte <= 32) {
        return 256u + byte;
    }
    if (byte >= 127 && byte <= 160) {
        return 256u + 33 + (byte - 127u);
    }
    return byte == 173 ? 323 : byte;
}

bool alphabet_decode(load_string text, char *out, size_t *n) {
    const uint8_t *p = (const uint8_t *)text.data;
    *n = 0;
    for (size_t at = 0; at < text.bytes;) {
        int step = utf8_step(p + at, text.bytes - at);
        int byte = step > 0 ? alphabet_byte(utf8_point(p + at, step)) : -1;
        if (byte < 0) {
            return false;
        }
        out[(*n)++] = (char)byte;
        at += (size_t)step;
    }
    return true;
}

/* ---- buffers ---- */

bool text_buf_reserve(text_buf *b, size_t more) {
    if (more <= b->cap - b->n) {
        return true;
    }
    size_t cap = b->n + more + b->cap / 2 + 64;
    char *grown = realloc(b->data, cap);
    if (grown == NULL) {
        return false;
    }
    b->data = grown;
    b->cap = cap;
    return true;
}

bool text_buf_add(text_buf *b, const char *data, size_t n) {
    if (!text_buf_reserve(b, n)) {
        return false;
    }
    if (n > 0) {
        memcpy(b->data + b->n, data, n);
    }
    b->n += n;
    return true;
}

void text_buf_free(text_buf *b) {
    free(b->data);
    *b = (text_buf){0};
}

bool string_is(load_string a, const char *b) {
    return a.bytes == strlen(b) && memcmp(a.data, b, a.bytes) == 0;
}

const char *string_show(load_string text, char out[64]) {
    size_t n = 0;
    for (size_t i = 0; i < text.bytes && n < 56; i++) {
        uint8_t byte = (uint8_t)text.data[i];
        if (byte >= 32 && byte < 127) {
            out[n++] = (char)byte;
        } else {
            n += (size_t)snprintf(out + n, 64 - n, "\\x%02X", byte);
        }
    }
    out[n] = '\0';
    return out;
}

load_string string_copy(load_arena *arena, load_string text) {
    char *data = load_arena_take(arena, text.bytes + 1, 1);
    if (data != NULL && text.bytes > 0) {
        memcpy(data, text.data, text.bytes);
    }
    return (load_string){data, text.bytes};
}

int tok_byte_token(load_string text) {
    if (text.bytes != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>') {
        return -1;
    }
    int byte = 0;
    for (int i = 3; i < 5; i++) {
        char c = text.data[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0) {
            return -1;
        }
        byte = byte * 16 + digit;
    }
    return byte;
}
