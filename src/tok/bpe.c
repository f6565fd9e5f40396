/* BPE over the characters of a piece: neighbours merge by the rank of their pair, or, where the file
 * gives scores, by the score of the token that they are together. Tokens and pieces are spelled as in
 * the file: with the byte alphabet, a character is a byte. */
#include "tok/tok_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct merge_slot {
    int32_t left, right; /* left < 0: empty */
    int32_t rank, into;
} merge_slot;

enum { N_DIRECT = 0x180 }; /* ASCII and the byte alphabet */

struct bpe {
    bpe_config config;
    int32_t direct[N_DIRECT]; /* token of one character, -1: none */
    int32_t byte_id[256];     /* <0xNN>, -1: none */
    int32_t *slot;            /* [slot_mask + 1] id or -1, by hash of the text */
    size_t slot_mask;
    merge_slot *merge; /* [merge_mask + 1], NULL: by score */
    size_t merge_mask;
    int32_t *score_rank; /* [n_token] 0 for the highest score; equal for equal ones */
    size_t longest;      /* bytes of a token */
};

/* One part of a piece; parts form a list in the order of the text. */
typedef struct bpe_symbol {
    int32_t id;           /* -1: no token, only by score */
    int32_t prev, next;   /* -1: end of the list */
    int32_t rank, into;   /* of the merge with the next part; rank -1: none */
    int32_t start, bytes; /* in the piece */
} bpe_symbol;

/* ---- text -> token ---- */

static size_t hash_bytes(const char *bytes, size_t n) {
    uint64_t h = 0xCBF29CE484222325u; /* FNV-1a */
    for (size_t i = 0; i < n; i++) {
        h = (h ^ (uint8_t)bytes[i]) * 0x100000001B3u;
    }
    return (size_t)(h ^ h >> 32);
}

/* The slot of this text: the one that holds it, or the empty one where it belongs. */
static int32_t *find_slot(const bpe *b, const char *bytes, size_t n) {
    size_t i = hash_bytes(bytes, n) & b->slot_mask;
    while (b->slot[i] >= 0) {
        load_string text = b->config.text[b->slot[i]];
        if (text.bytes == n && memcmp(text.data, bytes, n) == 0) {
            break;
        }
        i = (i + 1) & b->slot_mask;
    }
    return &b->slot[i];
}

int32_t bpe_find(const bpe *b, load_string text) {
    return *find_slot(b, text.data, text.bytes);
}

static bool is_in_reach(const bpe *b, const bpe_scratch *s, int32_t id) {
    return id >= 0 && b->config.reach[id] >= s->least_reach;
}

static int32_t find_in_reach(const bpe *b, const bpe_scratch *s, const char *bytes, size_t n) {
    int32_t id = n <= b->longest ? *find_slot(b, bytes, n) : -1;
    return is_in_reach(b, s, id) ? id : -1;
}

static size_t power_of_two(size_t least) {
    size_t n = 16;
    while (n < least) {
        n *= 2;
    }
    return n;
}

/* Of equal texts the one that more texts may become counts. */
static void fill_slots(bpe *b) {
    const bpe_config *c = &b->config;
    for (size_t i = 0; i <= b->slot_mask; i++) {
        b->slot[i] = -1;
    }
    for (int reach = BPE_REACH_ALWAYS; reach >= BPE_REACH_NEVER; reach--) {
        for (int32_t id = 0; id < c->n_token; id++) {
            if (c->text[id].data == NULL || c->reach[id] != reach) {
                continue;
            }
            int32_t *slot = find_slot(b, c->text[id].data, c->text[id].bytes);
            if (*slot < 0) {
                *slot = id;
            }
            b->longest = c->text[id].bytes > b->longest ? c->text[id].bytes : b->longest;
        }
    }
    for (uint32_t point = 0; point < N_DIRECT; point++) {
        char text[4];
        size_t n = utf8_put(point, text);
        b->direct[point] = bpe_find(b, (load_string){text, n});
    }
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        b->byte_id[byte] = bpe_find(b, (load_string){text, 6});
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

/* `joined` takes both texts side by side: the merged token. */
static weft_status add_merge(bpe *b, int32_t rank, char *joined, weft_error *err) {
    bpe_merge m = b->config.merge[rank];
    char left_shown[64], right_shown[64];
    memcpy(joined, m.left.data, m.left.bytes);
    memcpy(joined + m.left.bytes, m.right.data, m.right.bytes);
    int32_t left = bpe_find(b, m.left), right = bpe_find(b, m.right);
    int32_t into = bpe_find(b, (load_string){joined, m.left.bytes + m.right.bytes});
    if (left < 0 || right < 0 || into < 0) {
        return error_set(err, WEFT_ERR_FILE, "%s[%d] = \"%s %s\": %s is not in %s",
                         b->config.merge_name, rank, string_show(m.left, left_shown),
                         string_show(m.right, right_shown),
                         left < 0    ? "the left part"
                         : right < 0 ? "the right part"
                                     : "the merged token",
                         b->config.token_name);
    }
    merge_slot *slot = find_merge(b, left, right);
    if (slot->left < 0 || b->config.last_counts) {
        *slot = (merge_slot){left, right, rank, into};
    }
    return WEFT_OK;
}

static weft_status fill_merges(bpe *b, weft_error *err) {
    size_t most = 1;
    for (int32_t i = 0; i < b->config.n_merge; i++) {
        size_t n = b->config.merge[i].left.bytes + b->config.merge[i].right.bytes;
        most = n > most ? n : most;
    }
    b->merge_mask = power_of_two(2 * (size_t)b->config.n_merge) - 1;
    b->merge = malloc((b->merge_mask + 1) * sizeof *b->merge);
    char *joined = malloc(most);
    if (joined == NULL || b->merge == NULL) {
        free(joined);
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d merges", b->config.n_merge);
    }
    for (size_t i = 0; i <= b->merge_mask; i++) {
        b->merge[i].left = -1;
    }
    weft_status status = WEFT_OK;
    for (int32_t i = 0; i < b->config.n_merge && status == WEFT_OK; i++) {
        status = add_merge(b, i, joined, err);
    }
    free(joined);
    return status;
}

/* ---- scores ---- */

typedef struct scored {
    float score;
    int32_t id;
} scored;

static int compare_scores(const void *a, const void *b) {
    const scored *x = a, *y = b;
    return x->score != y->score ? (x->score > y->score ? -1 : 1)
                                : (x->id > y->id) - (x->id < y->id);
}

static weft_status rank_scores(bpe *b, weft_error *err) {
    int32_t n = b->config.n_token;
    scored *list = malloc(((size_t)n + 1) * sizeof *list);
    b->score_rank = malloc(((size_t)n + 1) * sizeof *b->score_rank);
    if (list == NULL || b->score_rank == NULL) {
        free(list);
        return error_set(err, WEFT_ERR_MEMORY, "no memory for %d scores", n);
    }
    for (int32_t id = 0; id < n; id++) {
        list[id] = (scored){b->config.score[id], id};
    }
    qsort(list, (size_t)n, sizeof *list, compare_scores);
    for (int32_t i = 0, rank = 0; i < n; i++) {
        rank += i > 0 && list[i].score != list[i - 1].score;
        b->score_rank[list[i].id] = rank;
    }
    free(list);
    return WEFT_OK;
}

weft_status bpe_open(const bpe_config *config, bpe **out, weft_error *err) {
    size_t n_token = (size_t)config->n_token;
    bpe *b = calloc(1, sizeof *b);
    if (b == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the vocabulary");
    }
    b->config = *config;
    b->slot_mask = power_of_two(2 * n_token) - 1;
    b->slot = malloc((b->slot_mask + 1) * sizeof *b->slot);
    weft_status status;
    if (b->slot == NULL) {
        status =
            error_set(err, WEFT_ERR_MEMORY, "no memory for a vocabulary of %zu tokens", n_token);
    } else {
        fill_slots(b);
        status = config->score != NULL ? rank_scores(b, err) : fill_merges(b, err);
    }
    b->config.merge = NULL; /* the caller's list may go away */
    if (status != WEFT_OK) {
        bpe_close(b);
        return status;
    }
    *out = b;
    return WEFT_OK;
}

void bpe_close(bpe *b) {
    if (b != NULL) {
        free(b->slot);
        free(b->merge);
        free(b->score_rank);
        free(b);
    }
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
static void queue_merge(const bpe *b, const char *piece, bpe_scratch *s, int32_t i) {
    bpe_symbol *symbol = &s->symbol[i];
    symbol->rank = -1;
    if (symbol->next < 0) {
        return;
    }
    const bpe_symbol *next = &s->symbol[symbol->next];
    if (b->merge == NULL) {
        int32_t id =
            find_in_reach(b, s, piece + symbol->start, (size_t)(symbol->bytes + next->bytes));
        if (id < 0) {
            return;
        }
        symbol->rank = b->score_rank[id];
        symbol->into = id;
    } else {
        const merge_slot *slot = find_merge(b, symbol->id, next->id);
        if (slot->left < 0 || !is_in_reach(b, s, slot->into)) {
            return;
        }
        symbol->rank = slot->rank;
        symbol->into = slot->into;
    }
    heap_push(s, (uint64_t)symbol->rank << 32 | (uint32_t)i);
}

/* Many tokens may share a score, so an entry can agree in rank with a part that has changed since:
 * it then stands for the merge that the part has now, which is queued with the same key. */
static void merge_all(const bpe *b, const char *piece, bpe_scratch *s) {
    while (s->n_heap > 0) {
        uint64_t key = heap_pop(s);
        int32_t i = (int32_t)(key & UINT32_MAX);
        bpe_symbol *symbol = &s->symbol[i];
        if (symbol->rank != (int32_t)(key >> 32)) {
            continue;
        }
        bpe_symbol *taken = &s->symbol[symbol->next];
        symbol->id = symbol->into;
        symbol->bytes += taken->bytes;
        symbol->next = taken->next;
        taken->rank = -1;
        if (symbol->next >= 0) {
            s->symbol[symbol->next].prev = i;
        }
        queue_merge(b, piece, s, i);
        if (symbol->prev >= 0) {
            queue_merge(b, piece, s, symbol->prev);
        }
    }
}

/* The parts of a piece before merging. An unknown character becomes its bytes' tokens, or the unk
 * token, or is dropped here, so that its neighbours can merge (as in the library that the models
 * were trained with). */
typedef struct maker {
    const bpe *b;
    bpe_scratch *s;
    int32_t n;
    bool unk; /* an unk token waits until the next known character */
} maker;

static void add_symbol(maker *m, int32_t id, size_t start, size_t bytes) {
    m->s->symbol[m->n] = (bpe_symbol){.id = id,
                                      .prev = m->n - 1,
                                      .next = m->n + 1,
                                      .rank = -1,
                                      .start = (int32_t)start,
                                      .bytes = (int32_t)bytes};
    m->n++;
}

static bool add_bytes(maker *m, const char *piece, size_t start, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (m->b->byte_id[(uint8_t)piece[start + i]] < 0) {
            return false;
        }
    }
    for (size_t i = 0; i < bytes; i++) {
        add_symbol(m, m->b->byte_id[(uint8_t)piece[start + i]], start + i, 1);
    }
    return true;
}

static void add_unknown(maker *m, const char *piece, size_t start, size_t bytes) {
    const bpe_config *c = &m->b->config;
    if (c->score != NULL) {
        add_symbol(m, -1, start, bytes); /* it may be part of a token; bytes come after merging */
    } else if (c->byte_fallback && add_bytes(m, piece, start, bytes)) {
        return;
    } else if (c->unk < 0) {
        m->s->n_dropped++;
    } else {
        if (m->unk && !c->fuse_unk) {
            add_symbol(m, c->unk, start, 0);
        }
        m->unk = true;
    }
}

static int32_t make_symbols(const bpe *b, const char *piece, size_t bytes, bpe_scratch *s) {
    maker m = {.b = b, .s = s};
    size_t k;
    for (size_t at = 0; at < bytes; at += k) {
        k = utf8_first_bytes(piece + at, bytes - at);
        uint32_t point = utf8_point((const uint8_t *)piece + at, (int)k);
        int32_t id = point < N_DIRECT ? b->direct[point] : find_in_reach(b, s, piece + at, k);
        if (!is_in_reach(b, s, id)) {
            add_unknown(&m, piece, at, k);
            continue;
        }
        if (m.unk) {
            add_symbol(&m, b->config.unk, at, 0);
            m.unk = false;
        }
        add_symbol(&m, id, at, k);
    }
    if (m.unk) {
        add_symbol(&m, b->config.unk, bytes, 0);
    }
    if (m.n > 0) {
        s->symbol[m.n - 1].next = -1;
    }
    return m.n;
}

/* Ids of the parts that are left; with scores, those of unknown characters too. */
static bool push_symbols(const bpe *b, const char *piece, bpe_scratch *s, int32_t n, id_list *out) {
    bool ok = true, unk = false;
    for (int32_t i = n > 0 ? 0 : -1; i >= 0 && ok; i = s->symbol[i].next) {
        const bpe_symbol *symbol = &s->symbol[i];
        if (symbol->id >= 0) {
            ok = id_list_push(out, symbol->id);
            unk = false;
            continue;
        }
        bool known = b->config.byte_fallback;
        for (int32_t k = 0; k < symbol->bytes && known; k++) {
            known = b->byte_id[(uint8_t)piece[symbol->start + k]] >= 0;
        }
        for (int32_t k = 0; k < symbol->bytes && known && ok; k++) {
            ok = id_list_push(out, b->byte_id[(uint8_t)piece[symbol->start + k]]);
        }
        if (!known && b->config.unk < 0) {
            s->n_dropped++;
        } else if (!known && !(unk && b->config.fuse_unk)) {
            ok = id_list_push(out, b->config.unk);
        }
        unk = !known;
    }
    return ok;
}

static bool is_taken_whole(const bpe *b, const char *piece, size_t bytes) {
    if (b->config.whole == BPE_WHOLE_NEWLINES) {
        for (size_t i = 0; i < bytes; i++) {
            if (piece[i] != '\n') {
                return false;
            }
        }
    }
    return b->config.whole != BPE_WHOLE_NEVER;
}

weft_status bpe_encode(const bpe *b, const char *piece, size_t bytes, bpe_scratch *scratch,
                       id_list *out, weft_error *err) {
    int32_t whole = is_taken_whole(b, piece, bytes) ? find_in_reach(b, scratch, piece, bytes) : -1;
    if (whole >= 0) {
        return id_list_push(out, whole) ? WEFT_OK
                                        : error_set(err, WEFT_ERR_MEMORY, "no memory for the ids");
    }
    if (bytes > INT32_MAX || !scratch_reserve(scratch, bytes + 1)) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory to merge a piece of %zu bytes", bytes);
    }
    int32_t n = make_symbols(b, piece, bytes, scratch);
    scratch->n_heap = 0;
    for (int32_t i = 0; i + 1 < n; i++) {
        queue_merge(b, piece, scratch, i);
    }
    merge_all(b, piece, scratch);
    if (!push_symbols(b, piece, scratch, n, out)) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the ids");
    }
    return WEFT_OK;
}
