#include "load/text.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "base/utf8.h"

/* ---- characters ---- */

/* U+0000..U+001F, U+007F..U+009F; `n` bytes of a valid character. */
static bool is_control(const uint8_t *p, int n) {
    return p[0] < 0x20 || p[0] == 0x7F || (n == 2 && p[0] == 0xC2 && p[1] < 0xA0);
}

bool text_is_plain(load_string s) {
    const uint8_t *p = (const uint8_t *)s.data;
    for (size_t at = 0; at < s.bytes;) {
        int n = utf8_step(p + at, s.bytes - at);
        if (n <= 0 || is_control(p + at, n)) {
            return false;
        }
        at += (size_t)n;
    }
    return true;
}

void text_show(load_string s, char *out, size_t out_bytes) {
    const uint8_t *p = (const uint8_t *)s.data;
    size_t to = 0;
    size_t mark = 0; /* where "..." goes if the text does not fit */
    for (size_t at = 0; at < s.bytes;) {
        char piece[8];
        int step = utf8_step(p + at, s.bytes - at);
        size_t from = 1, n;
        if (step <= 0 || is_control(p + at, step)) {
            n = (size_t)snprintf(piece, sizeof piece, "\\x%02X", p[at]);
        } else {
            from = n = (size_t)step;
            memcpy(piece, p + at, n);
        }
        if (to + n + 1 > out_bytes) {
            memcpy(out + mark, "...", 4);
            return;
        }
        memcpy(out + to, piece, n);
        to += n;
        at += from;
        if (to + 4 <= out_bytes) {
            mark = to;
        }
    }
    out[to] = '\0';
}

load_string text_of(const char *s) {
    return (load_string){s, strlen(s)};
}

bool text_sink_init(text_sink *s, char *out, size_t out_bytes) {
    if (out_bytes > 0) {
        out[0] = '\0';
    }
    *s = (text_sink){.out = out, .cap = out_bytes};
    return out_bytes >= 4;
}

void text_put(text_sink *s, const char *text) {
    size_t n = strlen(text);
    if (s->full) {
        return;
    }
    if (s->n + n + 4 > s->cap) {
        memcpy(s->out + s->n, "...", 4);
        s->full = true;
        return;
    }
    memcpy(s->out + s->n, text, n + 1);
    s->n += n;
}

void text_put_string(text_sink *s, load_string text) {
    char shown[256];
    size_t room = s->cap - s->n - 3; /* of s->cap - s->n >= 4 */
    text_show(text, shown, room < 8 ? 8 : room < sizeof shown ? room : sizeof shown);
    text_put(s, shown);
}

/* ---- table: open addressing, linear probing, at most two thirds full ---- */

typedef struct text_slot {
    uint32_t tag;  /* upper half of the hash: most misses need no look at the string */
    int32_t index; /* plus 1; 0: free */
} text_slot;

bool text_table_init(text_table *t, load_arena *arena, const load_string *item, size_t n) {
    size_t n_slot = 8;
    while (n_slot < n + n / 2) {
        n_slot *= 2;
    }
    text_slot *slot = load_arena_take(arena, n_slot, sizeof *slot);
    if (slot == NULL) {
        return false;
    }
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed) {
        seed = 0; /* early in a boot: the table works, only without protection against made files */
    }
    *t = (text_table){.item = item, .slot = slot, .mask = n_slot - 1, .seed = seed};
    return true;
}

/* The slot that holds s, or the free one where it would go. */
static text_slot *slot_of(const text_table *t, load_string s, uint32_t *tag) {
    uint64_t hash = XXH3_64bits_withSeed(s.data, s.bytes, t->seed);
    *tag = (uint32_t)(hash >> 32);
    for (size_t i = (size_t)hash & t->mask;; i = (i + 1) & t->mask) {
        text_slot *slot = &t->slot[i];
        if (slot->index == 0) {
            return slot;
        }
        const load_string *have = &t->item[slot->index - 1];
        if (slot->tag == *tag && have->bytes == s.bytes &&
            memcmp(have->data, s.data, s.bytes) == 0) {
            return slot;
        }
    }
}

int32_t text_table_add(text_table *t, int32_t i) {
    uint32_t tag;
    text_slot *slot = slot_of(t, t->item[i], &tag);
    if (slot->index != 0) {
        return slot->index - 1;
    }
    *slot = (text_slot){.tag = tag, .index = i + 1};
    return -1;
}

int32_t text_table_find(const text_table *t, load_string s) {
    uint32_t tag;
    return slot_of(t, s, &tag)->index - 1;
}
