/* Byte-level BPE. All tables hold decoded bytes, never the byte alphabet: token -> bytes, bytes ->
 * token, (left id, right id) -> (rank, merged id). */
#include "tok/tok_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct merge_slot {
    int32_t left, right; /* left < 0: empty */
    int32_t rank, into;
} merge_slot;

struct bpe {
    int32_t n_token;
    int32_t byte_id[256]; /* -1: no token for this byte */
    load_string *text;    /* [n_token] */
    char *arena;          /* decoded bytes of normal tokens */
    int32_t *slot;        /* [slot_mask + 1] id or -1, by hash of the bytes */
    size_t slot_mask;
    merge_slot *merge; /* [merge_mask + 1] */
    size_t merge_mask;
};

/* One part of a piece; parts form a list in the order of the text. */
typedef struct bpe_symbol {
    int32_t id, prev, next; /* -1: end of the list */
    int32_t rank, into;     /* of the merge with the next part; rank -1: none */
} bpe_symbol;

/* ---- the byte alphabet of GPT-2 ---- */

/* 33..126, 161..172, 174..255 stand for themselves; the other 68 bytes, in order, are 256..323.
 * Worked: blank (32) is the 33rd of them: U+0120. Returns -1 outside the alphabet. */
static int alphabet_byte(uint32_t point) {
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

/* Decodes to out (at most text.bytes); returns the length or -1. */
static int64_t alphabet_decode(const char *text, size_t bytes, char *out) {
    const uint8_t *p = (const uint8_t *)text;
    int64_t n = 0;
    for (size_t at = 0; at < bytes;) {
        int step = utf8_step(p + at, bytes - at);
        int byte = step > 0 ? alphabet_byte(utf8_point(p + at, step)) : -1;
        if (byte < 0) {
            return -1;
        }
        out[n++] = (char)byte;
        at += (size_t)step;
    }
    return n;
}

/* Printable ASCII of a string from the file, for error texts. */
static const char *show(load_string text, char out[64]) {
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

/* ---- bytes -> token ---- */

static size_t hash_bytes(const char *bytes, size_t n) {
    uint64_t h = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (uint8_t)bytes[i]) * 0x100000001B3u;
    }
    return (size_t)(h ^ h >> 32);
}

/* The slot of these bytes: the one that holds them, or the empty one where they belong. */
static int32_t *find_slot(const bpe *b, const char *bytes, size_t n) {
    size_t i = hash_bytes(bytes, n) & b->slot_mask;
    while (b->slot[i] >= 0) {
        load_string text = b->text[b->slot[i]];
        if (text.bytes == n && memcmp(text.data, bytes, n) == 0) {
            break;
        }
        i = (i + 1) & b->slot_mask;
    }
    return &b->slot[i];
}

static bool is_plain(uint8_t type) {
    return type != LOAD_TOKEN_CONTROL && type != LOAD_TOKEN_USER && type != LOAD_TOKEN_UNKNOWN;
}

static size_t power_of_two(size_t least) {
    size_t n = 16;
    while (n < least) {
        n *= 2;
    }
    return n;
}

static weft_status decode_tokens(bpe *b, const load_vocab *vocab, weft_error *err) {
    char *to = b->arena;
    for (int32_t id = 0; id < vocab->n_token; id++) {
        load_string text = vocab->token[id];
        b->text[id] = text;
        if (!is_plain(vocab->type[id])) {
            continue;
        }
        int64_t n = alphabet_decode(text.data, text.bytes, to);
        if (n >= 0) {
            b->text[id] = (load_string){to, (size_t)n};
            to += n;
        } else if (vocab->type[id] != LOAD_TOKEN_UNUSED) { /* "[PAD7 ]" and the like stay as text */
            char shown[64];
            return error_set(err, WEFT_ERR_FILE,
                             "tokenizer.ggml.tokens[%d] = \"%s\" has a character outside the byte "
                             "alphabet of GPT-2, and its type %d is not that of an added token",
                             id, show(text, shown), vocab->type[id]);
        }
    }
    return WEFT_OK;
}

/* Plain tokens first: an added token with the same bytes must not hide one. Control tokens are left
 * out, so that no text can turn into one by merging. */
static void fill_slots(bpe *b, const load_vocab *vocab) {
    for (size_t i = 0; i <= b->slot_mask; i++) {
        b->slot[i] = -1;
    }
    for (int user = 0; user <= 1; user++) {
        for (int32_t id = 0; id < vocab->n_token; id++) {
            uint8_t type = vocab->type[id];
            if (user ? type != LOAD_TOKEN_USER : !is_plain(type)) {
                continue;
            }
            int32_t *slot = find_slot(b, b->text[id].data, b->text[id].bytes);
            if (*slot < 0) {
                *slot = id;
            }
        }
    }
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        b->byte_id[byte] = *find_slot(b, &c, 1);
    }
}

/* ---- merges ---- */

static merge_slot *find_merge(const bpe *b, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t i = (size_t)((key * 0x9E3779B97F4A7C15u) >> 32) & b->merge_mask;
    while (b->merge[i].left >= 0 && (b->merge[i].left != left || b->merge[i].right != right)) {
        i = (i + 1) & b->merge_mask;
    }
    return &b->merge[i];
}

/* "left right" -> ids. `buffer` takes the decoded bytes of both, side by side: the merged token. */
static weft_status add_merge(bpe *b, load_string merge, int32_t rank, char *buffer,
                             weft_error *err) {
    char shown[64];
    const char *blank = memchr(merge.data, ' ', merge.bytes);
    size_t left_bytes = blank != NULL ? (size_t)(blank - merge.data) : 0;
    size_t right_bytes = blank != NULL ? merge.bytes - left_bytes - 1 : 0;
    if (left_bytes == 0 || right_bytes == 0) {
        return error_set(
            err, WEFT_ERR_FILE,
            "tokenizer.ggml.merges[%d] = \"%s\" is not two tokens with a blank between", rank,
            show(merge, shown));
    }
    int64_t left = alphabet_decode(merge.data, left_bytes, buffer);
    int64_t right = left < 0 ? -1 : alphabet_decode(blank + 1, right_bytes, buffer + left);
    if (right < 0) {
        return error_set(err, WEFT_ERR_FILE,
                         "tokenizer.ggml.merges[%d] = \"%s\" has a character outside the byte "
                         "alphabet of GPT-2",
                         rank, show(merge, shown));
    }
    int32_t left_id = *find_slot(b, buffer, (size_t)left);
    int32_t right_id = *find_slot(b, buffer + left, (size_t)right);
    int32_t into = *find_slot(b, buffer, (size_t)(left + right));
    if (left_id < 0 || right_id < 0 || into < 0) {
        return error_set(err, WEFT_ERR_FILE,
                         "tokenizer.ggml.merges[%d] = \"%s\": %s is not in tokenizer.ggml.tokens",
                         rank, show(merge, shown),
                         left_id < 0    ? "the left part"
                         : right_id < 0 ? "the right part"
                                        : "the merged token");
    }
    merge_slot *slot = find_merge(b, left_id, right_id);
    if (slot->left < 0) { /* a pair listed twice keeps its first rank */
        *slot = (merge_slot){left_id, right_id, rank, into};
    }
    return WEFT_OK;
}

static weft_status fill_merges(bpe *b, const load_vocab *vocab, weft_error *err) {
    size_t most = 1;
    for (int32_t i = 0; i < vocab->n_merge; i++) {
        most = vocab->merge[i].bytes > most ? vocab->merge[i].bytes : most;
    }
    char *buffer = malloc(most);
    if (buffer == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a merge of %zu bytes", most);
    }
    for (size_t i = 0; i <= b->merge_mask; i++) {
        b->merge[i].left = -1;
    }
    weft_status status = WEFT_OK;
    for (int32_t i = 0; i < vocab->n_merge && status == WEFT_OK; i++) {
        load_string merge = vocab->merge[i];
        if (i == 0 && merge.bytes >= 8 && memcmp(merge.data, "#version", 8) == 0) {
            continue; /* head line of a merges.txt */
        }
        status = add_merge(b, merge, i, buffer, err);
    }
    free(buffer);
    return status;
}

weft_status bpe_open(const load_vocab *vocab, bpe **out, weft_error *err) {
    if (vocab->n_merge <= 0) {
        return error_set(err, WEFT_ERR_FILE, "tokenizer.ggml.merges is missing or empty");
    }
    size_t n_token = (size_t)vocab->n_token, arena_bytes = 1;
    for (size_t i = 0; i < n_token; i++) {
        arena_bytes += vocab->token[i].bytes;
    }
    weft_status status = WEFT_ERR_MEMORY;
    bpe *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return error_set(err, status, "no memory for the vocabulary");
    }
    b->n_token = vocab->n_token;
    b->slot_mask = power_of_two(2 * n_token) - 1;
    b->merge_mask = power_of_two(2 * (size_t)vocab->n_merge) - 1;
    b->text = malloc((n_token + 1) * sizeof *b->text);
    b->arena = malloc(arena_bytes);
    b->slot = malloc((b->slot_mask + 1) * sizeof *b->slot);
    b->merge = malloc((b->merge_mask + 1) * sizeof *b->merge);
    if (b->text == NULL || b->arena == NULL || b->slot == NULL || b->merge == NULL) {
        error_set(err, status, "no memory for a vocabulary of %zu tokens", n_token);
        goto undo_bpe;
    }
    status = decode_tokens(b, vocab, err);
    if (status == WEFT_OK) {
        fill_slots(b, vocab);
        status = fill_merges(b, vocab, err);
    }
    if (status != WEFT_OK) {
        goto undo_bpe;
    }
    *out = b;
    return WEFT_OK;
undo_bpe:
    bpe_close(b);
    return status;
}

void bpe_close(bpe *b) {
    if (b != NULL) {
        free(b->text);
        free(b->arena);
        free(b->slot);
        free(b->merge);
        free(b);
    }
}

const load_string *bpe_text(const bpe *b) {
    return b->text;
}

/* ---- encoding ---- */

bool id_list_push(id_list *l, int32_t id) {
    if (l->n == l->cap) {
        size_t cap = l->cap > 0 ? 2 * l->cap : 256;
        int32_t *grown = realloc(l->id, cap * sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        l->id = grown;
        l->cap = cap;
    }
    l->id[l->n++] = id;
    return true;
}

/* A min-heap of rank << 32 | index of the left part: lowest rank first, then leftmost. Entries are
 * never taken out when a part changes; they no longer agree with its rank and are skipped. There
 * are n - 1 at first and each merge pops one and adds at most two: fewer than 2 n at any time. */
static void heap_push(bpe_scratch *s, uint64_t key) {
    size_t i = s->n_heap++;
    while (i > 0 && s->heap[(i - 1) / 2] > key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = key;
}

static uint64_t heap_pop(bpe_scratch *s) {
    uint64_t top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < s->n_heap) {
        if (child + 1 < s->n_heap && s->heap[child + 1] < s->heap[child]) {
            child++;
        }
        if (s->heap[child] >= last) {
            break;
        }
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static bool scratch_reserve(bpe_scratch *s, size_t n) {
    if (n <= s->symbol_cap) {
        return true;
    }
    size_t cap = power_of_two(n);
    bpe_symbol *symbol = realloc(s->symbol, cap * sizeof *symbol);
    if (symbol == NULL) {
        return false;
    }
    s->symbol = symbol;
    uint64_t *heap = realloc(s->heap, 2 * cap * sizeof *heap);
    if (heap == NULL) {
        return false;
    }
    s->heap = heap;
    s->symbol_cap = cap;
    return true;
}

void bpe_scratch_free(bpe_scratch *scratch) {
    free(scratch->symbol);
    free(scratch->heap);
    *scratch = (bpe_scratch){0};
}

/* Looks up the merge of part i with the one after it and queues it. */
static void queue_merge(const bpe *b, bpe_scratch *s, int32_t i) {
    bpe_symbol *symbol = &s->symbol[i];
    symbol->rank = -1;
    if (symbol->next < 0) {
        return;
    }
    const merge_slot *slot = find_merge(b, symbol->id, s->symbol[symbol->next].id);
    if (slot->left >= 0) {
        symbol->rank = slot->rank;
        symbol->into = slot->into;
        heap_push(s, (uint64_t)slot->rank << 32 | (uint32_t)i);
    }
}

static void merge_all(const bpe *b, bpe_scratch *s) {
    while (s->n_heap > 0) {
        uint64_t key = heap_pop(s);
        int32_t i = (int32_t)(key & UINT32_MAX);
        bpe_symbol *symbol = &s->symbol[i];
        if (symbol->rank != (int32_t)(key >> 32)) {
            continue;
        }
        bpe_symbol *taken = &s->symbol[symbol->next];
        symbol->id = symbol->into;
        symbol->next = taken->next;
        taken->rank = -1;
        if (symbol->next >= 0) {
            s->symbol[symbol->next].prev = i;
        }
        queue_merge(b, s, i);
        if (symbol->prev >= 0) {
            queue_merge(b, s, symbol->prev);
        }
    }
}

/* The piece's bytes as parts; bytes without a token are dropped here, so that their neighbours can
 * merge (as in the library that the models were trained with). */
static int32_t make_symbols(const bpe *b, const char *piece, size_t bytes, bpe_scratch *s) {
    int32_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = b->byte_id[(uint8_t)piece[i]];
        if (id < 0) {
            s->n_dropped++;
            continue;
        }
        s->symbol[n] = (bpe_symbol){.id = id, .prev = n - 1, .next = n + 1, .rank = -1};
        n++;
    }
    if (n > 0) {
        s->symbol[n - 1].next = -1;
    }
    return n;
}

weft_status bpe_encode(const bpe *b, const char *piece, size_t bytes, bool whole_piece,
                       bpe_scratch *scratch, id_list *out, weft_error *err) {
    int32_t whole = whole_piece ? *find_slot(b, piece, bytes) : -1;
    if (whole >= 0) {
        return id_list_push(out, whole) ? WEFT_OK
                                        : error_set(err, WEFT_ERR_MEMORY, "no memory for the ids");
    }
    if (!scratch_reserve(scratch, bytes)) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory to merge a piece of %zu bytes", bytes);
    }
    int32_t n = make_symbols(b, piece, bytes, scratch);
    scratch->n_heap = 0;
    for (int32_t i = 0; i + 1 < n; i++) {
        queue_merge(b, scratch, i);
    }
    merge_all(b, scratch);
    for (int32_t i = 0; i < n && i >= 0; i = scratch->symbol[i].next) {
        if (!id_list_push(out, scratch->symbol[i].id)) {
            return error_set(err, WEFT_ERR_MEMORY, "no memory for the ids");
        }
    }
    return WEFT_OK;
}
