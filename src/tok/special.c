#include "tok/tok_impl.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    const special_entry *x = a, *y = b;
    size_t n = x->text.bytes < y->text.bytes ? x->text.bytes : y->text.bytes;
    int order = memcmp(x->text.data, y->text.data, n);
    if (order != 0) {
        return order;
    }
    if (x->text.bytes != y->text.bytes) {
        return x->text.bytes < y->text.bytes ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
}

static bool is_member(uint8_t type, bool control) {
    return type == LOAD_TOKEN_USER ||
           (control && (type == LOAD_TOKEN_CONTROL || type == LOAD_TOKEN_UNKNOWN));
}

static void index_first_bytes(special_set *s) {
    int32_t at = 0;
    for (int b = 0; b <= 256; b++) {
        while (at < s->n && (uint8_t)s->entry[at].text.data[0] < b) {
            at++;
        }
        s->first[b] = at;
    }
}

weft_status special_set_open(const load_vocab *vocab, bool control, special_set *out,
                             weft_error *err) {
    special_set s = {0};
    int32_t n = 0;
    for (int32_t id = 0; id < vocab->n_token; id++) {
        n += is_member(vocab->type[id], control);
    }
    s.entry = malloc((size_t)(n + 1) * sizeof *s.entry);
    if (s.entry == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d added tokens", n);
    }
    for (int32_t id = 0; id < vocab->n_token; id++) {
        load_string text = vocab->token[id];
        if (!is_member(vocab->type[id], control) || text.bytes == 0) {
            continue;
        }
        /* A bad token could cut the text inside a character. */
        if (utf8_valid_bytes(text.data, text.bytes) != text.bytes) {
            free(s.entry);
            return error_set(err, WEFT_ERR_FILE,
                             "tokenizer.ggml.tokens[%d]: an added token must be valid UTF-8", id);
        }
        s.entry[s.n++] = (special_entry){text, id};
    }
    qsort(s.entry, (size_t)s.n, sizeof *s.entry, compare);
    index_first_bytes(&s);
    *out = s;
    return WEFT_OK;
}

void special_set_close(special_set *s) {
    free(s->entry);
    *s = (special_set){0};
}

/* The first entry of [low, high) whose byte at `depth` is at least `byte`; all share the first
 * `depth` bytes, and those that end there come first. */
static int32_t lower_bound(const special_set *s, int32_t low, int32_t high, size_t depth,
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
static const special_entry *longest_at(const special_set *s, const uint8_t *p, size_t left) {
    int32_t low = s->first[p[0]], high = s->first[p[0] + 1];
    const special_entry *best = NULL;
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

bool special_find(const special_set *s, const char *text, size_t bytes, size_t from, size_t *at,
                  const special_entry **found) {
    const uint8_t *p = (const uint8_t *)text;
    for (size_t i = from; i < bytes && s->n > 0; i++) {
        const special_entry *entry = longest_at(s, p + i, bytes - i);
        if (entry != NULL) {
            *at = i;
            *found = entry;
            return true;
        }
    }
    return false;
}
