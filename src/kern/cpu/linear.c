/* Linear layers: cuts the outputs and rows into tiles (tiles.h), gives tiles to threads, folds
 * leaves.
 *
 *   outputs of all parts, in panels:   q q q q q q k k v v
 *   few tiles of rows: thread t of n takes the contiguous panels [P t / n, P (t+1) / n), the
 *     same at every step, so that its part of the weights stays near it. Reading weights takes as
 *     long as the arithmetic here: the row tiles of two panels fetch the next two, each its share
 *   more rows: items of (4 panels, up to 16 tiles of rows) are claimed; within an item the panels'
 *     weights stay in a near cache while the rows pass by, unpacked where the level does that; row
 *     blocks of the same panels are neighbours in the order of claiming, so the weights are read
 *     from memory once */
#include <assert.h>

#include "kern/cpu/tiles.h"

enum { STATIC_TILES = 3 }; /* up to 18 rows */

/* Outputs and rows of one operation. */
typedef struct cut {
    cpu_tiler rows;
    int32_t n_part;
    int32_t n_panel[KERN_MAX_PART];
    int32_t unit; /* a tile starts at a multiple of this many panels */

    int32_t group;   /* panels of an item */
    int32_t n_block; /* row blocks */
    int32_t n_item;
} cut;

void cpu_tiler_run(const cpu_tiler *c, int32_t thread, int32_t part, int32_t panel, int32_t end,
                   int32_t tile0, int32_t tile1) {
    uint8_t *scratch = cpu_scratch(c->dev, thread);
    bool unpacked = c->dev->isa->linear->unpack && tile1 - tile0 >= CPU_UNPACK_TILES;
    for (int32_t width; panel < end; panel += width) {
        int32_t left = end - panel;
        if (c->fence)
            left = min32(left, c->fence - panel % c->fence);
        width = unpacked ? CPU_UNPACKED_PANELS : c->tile_panels;
        while (width > left)
            width /= 2;
        cpu_tile t = {.part = part,
                      .panel = panel,
                      .n_panel = width,
                      .fetch_step = tile1 - tile0,
                      .last = panel + width == end,
                      .unpacked = unpacked};
        if (unpacked)
            c->unpack(c, scratch, &t);
        for (int32_t i = tile0; i < tile1; i++) {
            t.row = even(c->n_row, c->n_tile, i);
            t.n_row = even(c->n_row, c->n_tile, i + 1) - t.row;
            t.fetch_first = i - tile0;
            c->tile(c, scratch, &t);
        }
    }
}

/* Thread's contiguous share of all parts' units, for all rows. */
static void run_static(void *arg, int32_t thread, int32_t n_thread) {
    const cut *c = arg;
    int32_t n_unit = 0;
    for (int32_t i = 0; i < c->n_part; i++)
        n_unit += ceil_div(c->n_panel[i], c->unit);
    int32_t from = even(n_unit, n_thread, thread), to = even(n_unit, n_thread, thread + 1);
    for (int32_t i = 0; i < c->n_part; i++) {
        int32_t n = ceil_div(c->n_panel[i], c->unit);
        int32_t lo = from > 0 ? from : 0, hi = min32(to, n);
        if (lo < hi)
            cpu_tiler_run(&c->rows, thread, i, lo * c->unit, min32(hi * c->unit, c->n_panel[i]), 0,
                          c->rows.n_tile);
        from -= n;
        to -= n;
    }
}

static void run_claimed(void *arg, int32_t thread, int32_t n_thread) {
    (void)n_thread;
    const cut *c = arg;
    for (int32_t item; (item = team_claim(c->rows.dev->team, c->n_item)) >= 0;) {
        int32_t block = item % c->n_block, group = item / c->n_block, part = 0;
        for (int32_t n; group >= (n = ceil_div(c->n_panel[part], c->group)); part++)
            group -= n;
        int32_t panel = group * c->group, n_tile = c->rows.n_tile;
        cpu_tiler_run(&c->rows, thread, part, panel, min32(panel + c->group, c->n_panel[part]),
                      even(n_tile, c->n_block, block), even(n_tile, c->n_block, block + 1));
    }
}

static int32_t group_count(const cut *c) {
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_part; i++)
        n += ceil_div(c->n_panel[i], c->group);
    return n;
}

static void cut_run(cut *c) {
    kern_dev *dev = c->rows.dev;
    cpu_tiler_cut_rows(&c->rows);
    if (c->rows.n_tile <= STATIC_TILES) {
        team_run(dev->team, run_static, c);
        return;
    }
    int32_t wanted = CPU_ITEMS_PER_THREAD * dev->n_thread;
    c->group = CPU_GROUP_PANELS;
    c->n_block = ceil_div(c->rows.n_tile, CPU_BLOCK_TILES);
    if (group_count(c) * c->n_block < wanted)
        c->group = 2;
    int32_t n_group = group_count(c);
    if (n_group > 0 && n_group * c->n_block < wanted)
        c->n_block = min32(c->rows.n_tile, ceil_div(wanted, n_group));
    c->n_item = n_group * c->n_block;
    team_run(dev->team, run_claimed, c);
}

/* Everything of a leaf that the weight, the panel and the input row decide. A tile fetches its
 * share of the panels after its own. `out0`: where the part starts in the weight; `next`:
 * cpu_tiler's. */
static cpu_leaf leaf_start(const kern_weight *w, const kern_act *x, int32_t out0, const cpu_tile *t,
                           kern_mem next) {
    cpu_leaf l = {
        .type = w->type,
        .panel_bytes = packed_panel_bytes(w->type, w->n_in),
        .scale_at = packed_scale_at(w->type, w->n_in),
        .x_k = x->k,
    };
    bool q8 = packed_is_quantised(w->type);
    l.w = (const uint8_t *)cpu_ptr(w->data) + (size_t)(out0 / CPU_PANEL + t->panel) * l.panel_bytes;
    l.x_stride = q8 ? kern_act_q8_bytes(x->k) : (size_t)x->k * sizeof(float);
    l.x = (const uint8_t *)cpu_ptr(q8 ? x->q8 : x->f32) + (size_t)t->row * l.x_stride;
    l.prefetch = (size_t)t->n_panel * l.panel_bytes;
    if (t->last && next.at)
        l.prefetch = (size_t)(next.at - (uintptr_t)l.w); /* may wrap: next may lie before */
    l.fetch_first = t->fetch_first;
    l.fetch_step = t->fetch_step;
    return l;
}

/* Unpacked panels of a tile's weight `side`, behind the partial tiles. */
static uint8_t *unpacked_at(const cpu_tiler *c, uint8_t *scratch, int32_t side) {
    size_t n_block = (size_t)(c->dev->limits.max_in / CPU_BLOCK);
    return scratch + (size_t)TREE_MAX_DEPTH * CPU_TILE_FLOATS * sizeof(float) +
           (size_t)side * CPU_UNPACKED_PANELS * n_block * CPU_UNPACKED_MOST;
}

/* Columns [in0, in0 + n_in) of the panels of l. */
static void unpack(const cpu_tiler *c, uint8_t *scratch, int32_t side, cpu_leaf l, int32_t in0,
                   int32_t n_in, int32_t n_panel) {
    assert(n_in <= c->dev->limits.max_in && n_panel <= CPU_UNPACKED_PANELS);
    if (!packed_is_quantised(l.type))
        return;
    l.k0 = in0;
    l.n_k = n_in;
    c->dev->isa->linear->unpack(&l, n_panel, unpacked_at(c, scratch, side));
}

/* A leaf of columns [k, k + l->n_k) of the n_in that `unpack` was given. */
static void leaf_run(const cpu_tiler *c, uint8_t *scratch, int32_t side, const cpu_tile *t,
                     cpu_leaf l, int32_t in0, int32_t n_in, int32_t k) {
    const cpu_linear_isa *isa = c->dev->isa->linear;
    if (!t->unpacked || !packed_is_quantised(l.type)) {
        l.k0 = in0 + k;
        isa->leaf(&l, t->n_row, t->n_panel);
        return;
    }
    l.k0 = k;
    l.w = unpacked_at(c, scratch, side);
    l.panel_bytes = (size_t)(n_in / CPU_BLOCK) * cpu_unpacked_bytes(l.type);
    isa->leaf_unpacked(&l, t->n_row, t->n_panel);
}

/* The sums of a tile to columns [o, o + n_valid) of its rows in y. */
static void store_tile(const cpu_linear_isa *isa, const cpu_linear_work *work, const cpu_tile *t,
                       const float *tile, int32_t o, int32_t n_valid, float *y) {
    const kern_linear_part *q = &work->p->part[t->part];
    const float *bias = q->bias.at ? (const float *)cpu_ptr(q->bias) + o : NULL;
    size_t stride = (size_t)q->y_stride;
    int32_t width = t->n_panel * CPU_PANEL;
    if (!work->y_row) {
        isa->store(tile, t->n_row, width, n_valid, bias, y + (size_t)t->row * stride + o, stride);
        return;
    }
    for (int32_t r = 0; r < t->n_row; r++) {
        size_t to = (size_t)work->y_row[t->row + r];
        isa->store(tile + r * width, 1, width, n_valid, bias, y + to * stride + o, stride);
    }
}

/* Walks the leaf program with a stack of partial tiles in scratch; node e goes to y's plane e. */
void cpu_linear_tile(const cpu_tiler *c, uint8_t *scratch, const cpu_tile *t) {
    const cpu_linear_work *work = c->op;
    const kern_linear *p = work->p;
    const kern_linear_part *q = &p->part[t->part];
    const cpu_linear_isa *isa = c->dev->isa->linear;
    int32_t width = t->n_panel * CPU_PANEL, o = t->panel * CPU_PANEL;
    int32_t x_k0 = c->fence ? t->panel / c->fence * p->n_in : 0;
    float *top = (float *)scratch;
    kern_mem y = q->y;
    cpu_leaf l = leaf_start(q->w, &p->x, q->out0, t, c->next[0]);
    l.n_k = p->leaf_in;
    for (int32_t i = 0; i < p->tree->n_op; i++) {
        int32_t op = p->tree->op[i];
        if (op >= 0) {
            l.x_k0 = x_k0 + op * p->leaf_in;
            l.out = top;
            leaf_run(c, scratch, 0, t, l, p->in0, p->n_in, op * p->leaf_in);
            top += CPU_TILE_FLOATS;
        } else if (op == TREE_ADD) {
            top -= CPU_TILE_FLOATS;
            isa->add(top - CPU_TILE_FLOATS, top - CPU_TILE_FLOATS, top, t->n_row * width);
        } else {
            top -= CPU_TILE_FLOATS;
            store_tile(isa, work, t, top, o, min32(width, q->n_out - o), cpu_ptr(y));
            y = kern_at(y, p->node_bytes);
        }
    }
}

void cpu_linear_unpack(const cpu_tiler *c, uint8_t *scratch, const cpu_tile *t) {
    const kern_linear *p = ((const cpu_linear_work *)c->op)->p;
    const kern_linear_part *q = &p->part[t->part];
    cpu_leaf l = leaf_start(q->w, &p->x, q->out0, t, c->next[0]);
    unpack(c, scratch, 0, l, p->in0, p->n_in, t->n_panel);
}

void cpu_linear(kern_dev *dev, const kern_linear *p) {
    if (p->n_row == 0)
        return;
    cpu_linear_work work = {.p = p};
    cut c = {.rows = {.dev = dev,
                      .op = &work,
                      .tile = cpu_linear_tile,
                      .unpack = cpu_linear_unpack,
                      .n_row = p->n_row,
                      .fence = p->group_out / CPU_PANEL},
             .unit = 1};
    c.n_part = p->n_part;
    for (int32_t i = 0; i < p->n_part; i++)
        c.n_panel[i] = ceil_div(p->part[i].n_out, CPU_PANEL);
    cut_run(&c);
}

/* Gate and up of the same outputs by the same thread. */
void cpu_swiglu_tile(const cpu_tiler *c, uint8_t *scratch, const cpu_tile *t) {
    const cpu_swiglu_work *work = c->op;
    const kern_swiglu *p = work->p;
    const cpu_linear_isa *isa = c->dev->isa->linear;
    int32_t width = t->n_panel * CPU_PANEL, o = t->panel * CPU_PANEL;
    int32_t n_valid = min32(width, p->n_out - o);
    float *side[2] = {(float *)scratch, (float *)scratch + CPU_TILE_FLOATS};
    const kern_weight *w[2] = {p->gate, p->up};
    for (int32_t i = 0; i < 2; i++) {
        cpu_leaf l = leaf_start(w[i], &p->x, p->out0, t, c->next[i]);
        l.n_k = p->x.k;
        l.out = side[i];
        leaf_run(c, scratch, i, t, l, 0, p->x.k, 0);
        for (int32_t r = 0; work->bias[i] && r < t->n_row; r++)
            isa->add(side[i] + r * width, side[i] + r * width, work->bias[i] + o, n_valid);
    }
    isa->glu(&p->rule, side[0], side[0], side[1], t->n_row * width);
    for (int32_t r = 0; r < t->n_row; r++)
        cpu_act_write(isa, &p->out, t->row + r, o, n_valid, side[0] + r * width);
}

void cpu_swiglu_unpack(const cpu_tiler *c, uint8_t *scratch, const cpu_tile *t) {
    const kern_swiglu *p = ((const cpu_swiglu_work *)c->op)->p;
    const kern_weight *w[2] = {p->gate, p->up};
    for (int32_t i = 0; i < 2; i++)
        unpack(c, scratch, i, leaf_start(w[i], &p->x, p->out0, t, c->next[i]), 0, p->x.k,
               t->n_panel);
}

void cpu_swiglu(kern_dev *dev, const kern_swiglu *p) {
    if (p->n_row == 0)
        return;
    cpu_swiglu_work work = {.p = p};
    cut c = {.rows = {.dev = dev,
                      .op = &work,
                      .tile = cpu_swiglu_tile,
                      .unpack = cpu_swiglu_unpack,
                      .n_row = p->n_row},
             .n_part = 1,
             .unit = 2};
    c.n_panel[0] = ceil_div(p->n_out, CPU_PANEL);
    cut_run(&c);
}
