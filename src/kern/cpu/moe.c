/* Mixtures of experts: router, the slots through their experts, the sum of a token's slots.
 *
 * Slots are sorted by expert first, so that an expert's rows are neighbours: `sorted` holds the
 * copies of x in that order, `inner` what gate and up make of them. An expert is then a small
 * swiglu and a small linear layer over a range of rows, of the same tiles as dense ones (tiles.h);
 * only the stores of the last look up whose slot a row is.
 *
 *   places    expert 0       expert 2    expert 3 ..       (nobody chose 1: no items)
 *   item      4 panels of one expert, up to 16 tiles of its rows; row blocks of the same panels are
 *             neighbours in the order of claiming, so an expert's weights are read from memory once
 *
 * The order of the places decides who computes what and when, never a bit. */
#include <assert.h>

#include "kern/cpu/tiles.h"

enum { COPY_ALONE = 16 }; /* so few rows are copied sooner than a second thread is awake */

static void route_row(kern_dev *dev, int32_t thread, const void *op, int32_t r) {
    (void)dev, (void)thread;
    const kern_route *p = op;
    size_t used = (size_t)r * (size_t)p->n_used;
    cpu_route_row(p, (const float *)cpu_ptr(p->logits) + (size_t)r * (size_t)p->n_expert,
                  (int32_t *)cpu_ptr(p->expert) + used, (float *)cpu_ptr(p->weight) + used);
}

void cpu_route(kern_dev *dev, const kern_route *p) {
    cpu_rows_run((cpu_rows){dev, p, route_row, p->n_row});
}

/* ---- experts ---- */

/* Slots by expert: expert e has the places [end[e - 1], end[e]) of slot, expert 0 from 0. */
typedef struct places {
    int32_t n;
    int32_t *end;  /* [n_expert] */
    int32_t *slot; /* [n] */
} places;

/* One layer of all experts: how its work is cut, and what does an item. */
typedef struct pass pass;
typedef struct item {
    int32_t expert;
    int32_t row, n_row; /* places of the expert */
    int32_t panel, n_panel;
    int32_t block, n_block; /* of row tiles */
} item;
struct pass {
    kern_dev *dev;
    const kern_experts *p;
    places at;
    void (*run)(const pass *a, int32_t thread, const item *i, const item *next);
    int32_t n_panel; /* of an expert */
    int32_t group;   /* panels of an item */
    int32_t n_item;
};

static places sort_slots(const kern_experts *p) {
    const int32_t *expert = cpu_ptr(p->expert);
    places at = {.n = p->n_row * p->n_used, .end = cpu_ptr(p->order)};
    at.slot = at.end + p->n_expert;
    memset(at.end, 0, (size_t)p->n_expert * sizeof *at.end);
    for (int32_t i = 0; i < at.n; i++)
        at.end[expert[i]]++;
    for (int32_t e = 0, first = 0; e < p->n_expert; e++) {
        int32_t n = at.end[e];
        at.end[e] = first; /* moves to the end while the slots take their places */
        first += n;
    }
    for (int32_t i = 0; i < at.n; i++)
        at.slot[at.end[expert[i]]++] = i;
    return at;
}

static void copy_row(kern_dev *dev, int32_t thread, const void *op, int32_t r) {
    (void)dev, (void)thread;
    const pass *a = op;
    const int32_t *x_row = cpu_ptr(a->p->x_row);
    int32_t from = a->at.slot[r] / a->p->n_used;
    cpu_act_copy_row(&a->p->x, (size_t)(x_row ? x_row[from] : from), &a->p->sorted, (size_t)r);
}

static void copy_rows(const pass *a) {
    if (a->at.n > COPY_ALONE) {
        cpu_rows_run((cpu_rows){a->dev, a, copy_row, a->at.n});
        return;
    }
    for (int32_t r = 0; r < a->at.n; r++)
        copy_row(a->dev, 0, a, r);
}

static int32_t first_place(const places *at, int32_t e) {
    return e == 0 ? 0 : at->end[e - 1];
}

static int32_t block_count(const places *at, int32_t e) {
    int32_t n_tile = ceil_div(at->end[e] - first_place(at, e), CPU_TILE_ROWS);
    return ceil_div(n_tile, CPU_BLOCK_TILES);
}

/* Claims an item and says what it is; false: none is left. A thread's items ascend: it looks for
 * the expert from its last one on (`i` as it was), whose first item is *first. */
static bool claim_item(const pass *a, item *i, int32_t *first) {
    int32_t n = team_claim(a->dev->team, a->n_item), n_group = ceil_div(a->n_panel, a->group);
    if (n < 0)
        return false;
    while (n - *first >= (i->n_block = block_count(&a->at, i->expert)) * n_group) {
        *first += i->n_block * n_group;
        i->expert++;
    }
    i->row = first_place(&a->at, i->expert);
    i->n_row = a->at.end[i->expert] - i->row;
    i->panel = (n - *first) / i->n_block * a->group;
    i->n_panel = min32(a->group, a->n_panel - i->panel);
    i->block = (n - *first) % i->n_block;
    return true;
}

/* The next item is claimed before the last one is done, which fetches the next one's weights: they
 * lie anywhere. */
static void run_items(void *arg, int32_t thread, int32_t n_thread) {
    (void)n_thread;
    const pass *a = arg;
    int32_t first = 0;
    item now, next = {0};
    bool more = claim_item(a, &next, &first);
    while (more) {
        now = next;
        more = claim_item(a, &next, &first);
        a->run(a, thread, &now, more ? &next : &now);
    }
}

static int32_t item_count(const pass *a) {
    int32_t n_block = 0;
    for (int32_t e = 0; e < a->p->n_expert; e++)
        n_block += block_count(&a->at, e);
    return n_block * ceil_div(a->n_panel, a->group);
}

static void pass_run(pass *a) {
    a->group = CPU_GROUP_PANELS;
    if (item_count(a) < CPU_ITEMS_PER_THREAD * a->dev->n_thread)
        a->group = 2;
    a->n_item = item_count(a);
    team_run(a->dev->team, run_items, a);
}

static void item_run(int32_t thread, const item *i, cpu_tiler *c) {
    c->n_row = i->n_row;
    cpu_tiler_cut_rows(c);
    cpu_tiler_run(c, thread, 0, i->panel, i->panel + i->n_panel,
                  even(c->n_tile, i->n_block, i->block), even(c->n_tile, i->n_block, i->block + 1));
}

static kern_weight weight_of(const kern_weight *stacked, int32_t expert) {
    kern_weight w = *stacked;
    w.data = kern_at(w.data, (size_t)expert * cpu_packed_bytes(w.type, w.n_out, w.n_in));
    return w;
}

static kern_mem panel_of(const kern_weight *stacked, int32_t expert, int32_t panel) {
    size_t panel_bytes = packed_panel_bytes(stacked->type, stacked->n_in);
    return kern_at(weight_of(stacked, expert).data, (size_t)panel * panel_bytes);
}

static kern_act act_from(const kern_act *act, int32_t row) {
    kern_act a = *act;
    if (a.f32.at)
        a.f32 = kern_at(a.f32, (size_t)row * (size_t)a.k * sizeof(float));
    if (a.q8.at)
        a.q8 = kern_at(a.q8, (size_t)row * kern_act_q8_bytes(a.k));
    return a;
}

static const float *bias_of(kern_mem bias, const kern_experts *p, int32_t expert) {
    if (!bias.at)
        return NULL;
    return (const float *)cpu_ptr(bias) + (size_t)expert * (size_t)p->gate->n_out + p->in0;
}

static void gate_item(const pass *a, int32_t thread, const item *i, const item *next) {
    const kern_experts *p = a->p;
    kern_weight gate = weight_of(p->gate, i->expert), up = weight_of(p->up, i->expert);
    kern_swiglu op = {.x = act_from(&p->sorted, i->row),
                      .n_row = i->n_row,
                      .gate = &gate,
                      .up = &up,
                      .out0 = p->in0,
                      .n_out = p->n_in,
                      .rule = p->rule,
                      .out = act_from(&p->inner, i->row)};
    cpu_swiglu_work work = {
        &op, {bias_of(p->gate_bias, p, i->expert), bias_of(p->up_bias, p, i->expert)}};
    int32_t panel = p->in0 / CPU_PANEL + next->panel;
    cpu_tiler c = {
        .dev = a->dev,
        .op = &work,
        .tile = cpu_swiglu_tile,
        .unpack = cpu_swiglu_unpack,
        .next = {panel_of(p->gate, next->expert, panel), panel_of(p->up, next->expert, panel)}};
    item_run(thread, i, &c);
}

static void down_item(const pass *a, int32_t thread, const item *i, const item *next) {
    const kern_experts *p = a->p;
    kern_weight down = weight_of(p->down, i->expert);
    kern_linear op = {
        .x = act_from(&p->inner, i->row),
        .n_row = i->n_row,
        .in0 = p->in0,
        .n_in = p->n_in,
        .n_part = 1,
        .part = {{.w = &down, .n_out = down.n_out, .y = p->nodes, .y_stride = down.n_out}},
        .tree = p->tree,
        .leaf_in = p->leaf_in,
        .node_bytes = p->node_bytes};
    cpu_linear_work work = {&op, a->at.slot + i->row};
    cpu_tiler c = {.dev = a->dev,
                   .op = &work,
                   .tile = cpu_linear_tile,
                   .unpack = cpu_linear_unpack,
                   .next = {panel_of(p->down, next->expert, next->panel)}};
    item_run(thread, i, &c);
}

void cpu_experts(kern_dev *dev, const kern_experts *p) {
    if (p->n_row == 0 || p->n_in == 0)
        return;
    assert(p->in0 % CPU_PANEL == 0);
    pass gate = {.dev = dev, .p = p, .at = sort_slots(p), .run = gate_item};
    gate.n_panel = ceil_div(p->n_in, CPU_PANEL);
    pass down = gate;
    down.run = down_item;
    down.n_panel = ceil_div(p->down->n_out, CPU_PANEL);
    copy_rows(&gate);
    pass_run(&gate);
    pass_run(&down);
}

/* ---- the sum of a token's slots ---- */

static void sum_segment(const cpu_linear_isa *isa, const kern_moe_sum *p, int32_t r, int32_t j,
                        int32_t n, float *sums, float *y) {
    size_t hidden = (size_t)p->hidden, slot = (size_t)r * (size_t)p->n_used;
    const int32_t *expert = cpu_ptr(p->expert), *place = cpu_ptr(p->place);
    const float *weight = cpu_ptr(p->weight), *bias = cpu_ptr(p->down_bias);
    memset(y, 0, (size_t)n * sizeof *y);
    for (int32_t i = 0; i < p->n_used; i++, slot++) {
        size_t at = (place ? (size_t)place[slot] : slot) * hidden + (size_t)j;
        const float *t = cpu_tree_root(isa, p->tree, p->nodes, p->node_off, at, n, sums);
        if (bias) {
            isa->add(sums, t, bias + (size_t)expert[slot] * hidden + j, n);
            t = sums;
        }
        isa->add_scaled(y, weight[slot], t, n);
    }
    if (p->shared_tree) {
        size_t at = (size_t)r * hidden + (size_t)j;
        isa->add(y, y,
                 cpu_tree_root(isa, p->shared_tree, p->shared_nodes, p->shared_off, at, n, sums),
                 n);
    }
}

static void sum_row(kern_dev *dev, int32_t thread, const void *op, int32_t r) {
    const kern_moe_sum *p = op;
    float *sums = (float *)cpu_scratch(dev, thread);
    float *y = (float *)cpu_ptr(p->y) + (size_t)r * (size_t)p->hidden;
    for (int32_t j = 0; j < p->hidden; j += CPU_NORM_SEGMENT)
        sum_segment(dev->isa->linear, p, r, j, min32(CPU_NORM_SEGMENT, p->hidden - j), sums, y + j);
}

void cpu_moe_sum(kern_dev *dev, const kern_moe_sum *p) {
    cpu_rows_run((cpu_rows){dev, p, sum_row, p->n_row});
}
