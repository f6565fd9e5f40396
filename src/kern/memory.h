/* Memory of one owner (a rank, or the process's weights), planned first and taken as one
 * reservation. */
#ifndef WEFT_KERN_MEMORY_H
#define WEFT_KERN_MEMORY_H

#include "kern/kern.h"

typedef struct kern_memory_item {
    const char *name; /* static text, for the table that `weft plan` prints */
    size_t bytes;
    kern_mem *where; /* filled by commit */
} kern_memory_item;

typedef struct kern_memory {
    int32_t n, cap;
    size_t bytes; /* sum of the items, each rounded up to 64 */
    kern_memory_item *item;
    bool failed;   /* an item could not be listed; commit says so */
    kern_mem base; /* 0 before commit */
} kern_memory;

/* Adds an item; 0 bytes are allowed and give a valid address. `where` must live until commit. */
void kern_memory_add(kern_memory *m, const char *name, size_t bytes, kern_mem *where);
/* One reservation, every *where set. On failure nothing is set. */
weft_status kern_memory_commit(kern_memory *m, const kern_table *k, weft_error *err);
/* Gives the reservation and the list back; *m is empty again. */
void kern_memory_release(kern_memory *m, const kern_table *k);

#endif
