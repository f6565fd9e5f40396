/* Memory that lives as long as an opened file: taken piece by piece, given back as one. */
#ifndef WEFT_LOAD_ARENA_H
#define WEFT_LOAD_ARENA_H

#include <stddef.h>

typedef struct load_arena {
    struct load_arena_block *last;
} load_arena;

/* Zeroed memory for n items of item_bytes, aligned for any type. NULL when there is none, or when
 * the product overflows. */
void *load_arena_take(load_arena *a, size_t n, size_t item_bytes);
void load_arena_free(load_arena *a);

#endif
