#include "tok/tok_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- the set ---- */

static int compare(const void *a, const void *b) {
    const added_entry *x = a, *y = b;
    size_t n = x->text.bytes < y->text.bytes ? x->text.bytes : y->text.bytes;
    int order = n > 0 ? memcmp(x->text.data, y->text.data, n) : 0;
    if (order != 0) {
        return order;
    }
    if (x->text.bytes != y->text.bytes) {
        return x->text.bytes < y->text.bytes ? -1 : 1;
    }
    return (x->id > y->id) - (x->id < y->id);
}

static bool same_text(load_string a, load_string b) {
    return a.bytes == b.bytes && memcmp(a.data, b.data, a.bytes) == 0;
}

void added_set_init(added_set *s, added_entry *entry, int32_t n) {
    int32_t kept = 0;
    *s = (added_set){.entry = entry};
    qsort(entry, (size_t)n, sizeof *entry, compare);
    for (int32_t i = 0; i < n; i++) {
        if (entry[i].text.bytes == 0) {
            continue;
        }
        if (kept == 0 || !same_text(entry[kept - 1].text, entry[i].text)) {
            entry[kept++] = entry[i];
        }
    }
    s->n = kept;
    for (int32_t b = 0, at = 0; b <= 256; b++) {
        while (at < s->n && (uint8_t)s->entry[at].text.data[0] < b) {
            at++;
        }
        s->first[b] = at;
    }
}

void added_set_close(added_set *s) {
    free(s->entry);
    *s = (added_set){0};
}

/* ---- finding ---- */

/* The first entry of [low, high) whose byte at `depth` is at least `byte`; all share the first
 * `depth` bytes, and those that end there come first. */
static int32_t lower_bound(const added_set *s, int32_t low, int32_t high, size_t depth,
                           unsigned byte) {
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        load_string text = s->entry[middle].text;
        if (text.bytes <= depth || (uint8_t)text.data[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The longest entry that begins here. [low, high) are the entries that agree with the text so far;
 * one that is used up stands first, as "<tool>" before "<tool></tool>". */
static const added_entry *longest_at(const added_set *s, const uint8_t *p, size_t left) {
    int32_t low = s->first[p[0]], high = s->first[p[0] + 1];
    const added_entry *best = NULL;
    for (size_t depth = 1; low < high; depth++) {
        if (s->entry[low].text.bytes == depth) {
            best = &s->entry[low];
        }
        if (depth == left) {
            break;
        }
        low = lower_bound(s, low, high, depth, p[depth]);
        high = lower_bound(s, low, high, depth, p[depth] + 1u);
    }
    return best;
}

static bool is_word_at(const char *text, size_t n) {
    return utf8_is_word(utf8_point((const uint8_t *)text, (int)n));
}

static bool stands_alone(load_string text, size_t start, size_t end) {
    if (start > 0) {
        size_t k = utf8_last_bytes(text.data, start);
        if (is_word_at(text.data + start - k, k)) {
            return false;
        }
    }
    return end == text.bytes ||
           !is_word_at(text.data + end, utf8_first_bytes(text.data + end, text.bytes - end));
}

/* How far White_Space reaches from `at`: to the left, at least to `least`, or to the right. */
static size_t spaces_left(load_string text, size_t at, size_t least) {
    at = at > least ? at : least;
    while (at > least) {
        size_t k = utf8_last_bytes(text.data, at);
        if (!utf8_is_space(utf8_point((const uint8_t *)text.data + at - k, (int)k))) {
            break;
        }
        at -= k;
    }
    return at;
}

static size_t spaces_right(load_string text, size_t at) {
    while (at < text.bytes) {
        size_t k = utf8_first_bytes(text.data + at, text.bytes - at);
        if (!utf8_is_space(utf8_point((const uint8_t *)text.data + at, (int)k))) {
            break;
        }
        at += k;
    }
    return at;
}

/* The next token that counts, from s->from on: its range with the blanks that it takes. */
static const added_entry *find(added_scan *s, size_t *start, size_t *end) {
    const uint8_t *p = (const uint8_t *)s->text.data;
    size_t i = s->from;
    while (i < s->text.bytes && s->set->n > 0) {
        const added_entry *entry = longest_at(s->set, p + i, s->text.bytes - i);
        if (entry == NULL) {
            i++;
            continue;
        }
        size_t begin = i;
        i += entry->text.bytes;
        s->from = i; /* also behind a token that does not count, and before blanks that it takes */
        if (entry->single_word && !stands_alone(s->text, begin, i)) {
            continue;
        }
        *start = entry->lstrip ? spaces_left(s->text, begin, s->given) : begin;
        *end = entry->rstrip ? spaces_right(s->text, i) : i;
        if (*start >= *end) { /* the token before has taken all of it */
            continue;
        }
        return entry;
    }
    return NULL;
}

/* When a stretch stands before a token, the token waits in s->next for the call after. `given` is
 * then already behind it. */
bool added_next(added_scan *s, int32_t *token, load_string *part) {
    if (s->next != NULL) {
        *token = s->next->id;
        s->next = NULL;
        return true;
    }
    size_t start = 0, end = 0, before = s->given;
    const added_entry *entry = find(s, &start, &end);
    if (entry == NULL) {
        *token = -1;
        *part = (load_string){s->text.data + before, s->text.bytes - before};
        s->given = s->from = s->text.bytes;
        return part->bytes > 0;
    }
    s->given = end;
    if (start <= before) {
        *token = entry->id;
        return true;
    }
    *token = -1;
    *part = (load_string){s->text.data + before, start - before};
    s->next = entry;
    return true;
}
