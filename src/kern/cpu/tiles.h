/* Tiles of linear layers, for the operations that are made of them: linear, swiglu, experts.
 *
 * A tile is up to 6 rows by 1, 2 or 4 panels; 4 are of up to 3 rows, or of unpacked panels. Every sum
 * of a tile is made by one thread in the order of numerics N2, so neither its shape nor who computes it
 * changes a bit. */
#ifndef WEFT_KERN_CPU_TILES_H
#define WEFT_KERN_CPU_TILES_H

#include "kern/cpu/linear_isa.h"

/* Work that threads claim. */
enum {
    CPU_GROUP_PANELS = 4,     /* panels of an item */
    CPU_BLOCK_TILES = 16,     /* most row tiles of an item */
    CPU_ITEMS_PER_THREAD = 4, /* fewer would leave threads idle at the end */
    CPU_UNPACK_TILES = 4,     /* least row tiles for which a panel is unpacked */
};

typedef struct cpu_tile {
    int32_t part, panel, n_panel; /* panels are counted from the start of the part */
    int32_t row, n_row;
    int32_t fetch_first, fetch_step; /* cpu_leaf's */
    bool last;                       /* no panels of the same item follow */
    bool unpacked;                   /* its quantised panels lie unpacked in scratch */
} cpu_tile;

/* The rows of an operation, what does a tile of it and what unpacks the panels of one. */
typedef struct cpu_tiler cpu_tiler;
struct cpu_tiler {
    kern_dev *dev;
    const void *op;
    void (*tile)(const cpu_tiler *c, uint8_t *scratch, const cpu_tile *t);
    void (*unpack)(const cpu_tiler *c, uint8_t *scratch, const cpu_tile *t);
    int32_t n_row;
    int32_t fence; /* no tile reaches over a multiple of this many panels; 0: none */
    /* Panels that will be wanted after the last ones, of each weight that a tile reads; 0: those
     * that follow in memory. */
    kern_mem next[2];

    int32_t n_tile;      /* tiles of rows */
    int32_t tile_panels; /* of the widest tile, where panels are not unpacked */
};

static inline int32_t ceil_div(int32_t a, int32_t b) {
    return (a + b - 1) / b;
}

/* Start of piece i when n is cut into n_piece even pieces. */
static inline int32_t even(int32_t n, int32_t n_piece, int32_t i) {
    return (int32_t)((int64_t)n * i / n_piece);
}

static inline int32_t min32(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Cuts n_row > 0 rows evenly: 7 rows are 4 + 3 and not 6 + 1, so a tail costs no whole tile. */
static inline void cpu_tiler_cut_rows(cpu_tiler *c) {
    c->n_tile = ceil_div(c->n_row, CPU_TILE_ROWS);
    c->tile_panels = ceil_div(c->n_row, c->n_tile) <= 3 ? 4 : 2;
}

/* Panels [panel, end) of a part for row tiles [tile0, tile1): panels outside, so that their weights
 * stay in the cache. */
void cpu_tiler_run(const cpu_tiler *c, int32_t thread, int32_t part, int32_t panel, int32_t end,
                   int32_t tile0, int32_t tile1);

/* A tile of a linear layer: op is a cpu_linear_work. */
typedef struct cpu_linear_work {
    const kern_linear *p;
    const int32_t *y_row; /* row r of x goes to row y_row[r] of y; NULL: to r */
} cpu_linear_work;
void cpu_linear_tile(const cpu_tiler *c, uint8_t *scratch, const cpu_tile *t);
void cpu_linear_unpack(const cpu_tiler *c, uint8_t *scratch, const cpu_tile *t);

/* A tile of gated units: op is a cpu_swiglu_work. A tile of 2 panels is one block of 32 of the q8
 * form, so `panel` has to be even. */
typedef struct cpu_swiglu_work {
    const kern_swiglu *p;
    const float *bias[2]; /* of gate and up, [n_out]; NULL: none */
} cpu_swiglu_work;
void cpu_swiglu_tile(const cpu_tiler *c, uint8_t *scratch, const cpu_tile *t);
void cpu_swiglu_unpack(const cpu_tiler *c, uint8_t *scratch, const cpu_tile *t);

#endif
