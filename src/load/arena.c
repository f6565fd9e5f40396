#include "load/arena.h"

#include <stdint.h>
#include <stdlib.h>

typedef struct load_arena_block {
    struct load_arena_block *before;
    size_t used, cap; /* of the bytes that follow the header */
} load_arena_block;

enum { ARENA_ALIGN = 16, ARENA_HEADER = 32 };
_Static_assert(sizeof(load_arena_block) <= ARENA_HEADER,
               "the header is a multiple of the alignment");

/* Under AddressSanitizer every piece gets a block of its own, so that it has red zones. */
#if defined(__SANITIZE_ADDRESS__)
enum { ARENA_BLOCK = 0 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
enum { ARENA_BLOCK = 0 };
#else
enum { ARENA_BLOCK = 16384 };
#endif
#else
enum { ARENA_BLOCK = 16384 };
#endif

void *load_arena_take(load_arena *a, size_t n, size_t item_bytes) {
    size_t bytes;
    if (__builtin_mul_overflow(n, item_bytes, &bytes) || bytes > PTRDIFF_MAX - 2 * ARENA_HEADER) {
        return NULL;
    }
    bytes = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    load_arena_block *b = a->last;
    if (b == NULL || bytes > b->cap - b->used) {
        size_t cap = bytes > ARENA_BLOCK ? bytes : ARENA_BLOCK;
        b = calloc(1, ARENA_HEADER + cap);
        if (b == NULL) {
            return NULL;
        }
        *b = (load_arena_block){.before = a->last, .cap = cap};
        a->last = b;
    }
    void *piece = (char *)b + ARENA_HEADER + b->used;
    b->used += bytes;
    return piece;
}

void load_arena_free(load_arena *a) {
    while (a->last != NULL) {
        load_arena_block *before = a->last->before;
        free(a->last);
        a->last = before;
    }
}
