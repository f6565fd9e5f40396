/* A place in memory that only kern/ and comm/ dereference: host memory for the CPU table, device
 * memory for a GPU one. Layers above pass it on and move inside it with kern_at; they never read or
 * write through it. */
#ifndef WEFT_TENSOR_MEM_H
#define WEFT_TENSOR_MEM_H

#include <stddef.h>
#include <stdint.h>

typedef struct kern_mem {
    uintptr_t at; /* 0: none */
} kern_mem;

static inline kern_mem kern_at(kern_mem m, size_t bytes) {
    return (kern_mem){m.at + bytes};
}

#endif
