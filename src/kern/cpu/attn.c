/* Attention over the paged cache: work items, the walk over tree and pages, the finish, and the
 * copies into and out of pages. Which keys meet which rows in which order is decided here, once for
 * every instruction-set level (attn_isa.h). */
#include "kern/cpu/attn_isa.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>

/* ---- work items: (span, query block, KV head, heads of its group) ---- */

/* Few items with a long context, one long request that decodes for instance, would leave threads
 * idle: then a large group of heads is cut further, or an item is one piece of the tree, and who
 * finishes an item's last piece does the rest. A piece's node, [row][value_dim + 2], waits in the
 * scratch of some thread. */
enum {
    SPLIT_HEADS = 16,    /* of an item: more may be cut */
    MOST_SPLIT = 64,     /* items that are cut */
    SPLIT_PAGES = 16,    /* of the longest item, at least */
    PIECES_A_THREAD = 4, /* wanted */
    PIECES_MOST = 12,    /* of a thread */
    PIECE_ROWS = 8       /* most rows of a block that is cut */
};

typedef struct fold_cut {
    tree_split split;
    _Atomic int32_t n_done[MOST_SPLIT]; /* pieces of an item */
} fold_cut;

typedef struct fold_job {
    kern_dev *dev;
    const kern_attn_fold *p;
    int32_t group, block_tokens;
    int32_t n_block, top_class;
    int32_t most_tokens, most_pages; /* of a block */
    int32_t n_part;                  /* of a group of heads */
    int32_t n_item;                  /* n_block * KV heads * n_part */
    int32_t n_piece;                 /* of an item; 1: the items are whole */
    fold_cut *cut;                   /* holds something when they are not */
} fold_job;

/* Tokens [tok, tok + n_tok) of a span. Blocks are cut at multiples of block_tokens of the position,
 * so that a block has one diagonal page:
 *   block_tokens 16, pos 40, len 30: blocks of the positions 40..47, 48..63, 64..69
 * An item takes heads [head0, head0 + n_head) of a KV head's group. */
typedef struct query_block {
    const kern_span *span;
    int32_t tok, n_tok;
    int32_t kv_head, head0, n_head;
} query_block;

static const kern_span *span_at(const fold_job *j, int32_t i) {
    return (const kern_span *)cpu_ptr(j->p->spans) + i;
}

static int32_t block_count(const fold_job *j, const kern_span *s) {
    if (s->len <= 0)
        return 0;
    return (s->pos + s->len - 1) / j->block_tokens - s->pos / j->block_tokens + 1;
}

static query_block block_at(const fold_job *j, const kern_span *s, int32_t i) {
    int32_t edge = (s->pos / j->block_tokens + i) * j->block_tokens;
    int32_t from = edge > s->pos ? edge : s->pos;
    int32_t to = edge + j->block_tokens;
    if (to > s->pos + s->len)
        to = s->pos + s->len;
    return (query_block){.span = s, .tok = from - s->pos, .n_tok = to - from};
}

/* First key that the query at `pos` sees. */
static int32_t seen_from(const fold_job *j, const kern_span *s, int32_t pos) {
    int32_t from = j->p->window > 0 ? pos - j->p->window + 1 : 0;
    return from > s->first_key ? from : s->first_key;
}

/* Pages between the first key that a row of the block sees and the last; 0 when there are none. */
static int32_t block_pages(const fold_job *j, const query_block *q) {
    int32_t pos = q->span->pos + q->tok, last = pos + q->n_tok - 1;
    int32_t first = seen_from(j, q->span, pos);
    return last < first ? 0 : last / CPU_PAGE - first / CPU_PAGE + 1;
}

/* Items are claimed longest first; lengths are compared by their powers of two, which needs no
 * sorting: class c holds the items of 2^c .. 2^(c+1) - 1 row-pages. */
static int32_t block_class(const fold_job *j, const query_block *q) {
    int64_t cost = ((int64_t)block_pages(j, q) + 1) * q->n_tok;
    return 63 - __builtin_clzll((unsigned long long)cost);
}

/* A thread's place in the order class (descending), span, block. Claims of one thread only ascend,
 * so it walks the order once. */
typedef struct item_walk {
    int32_t class, span, block;
    int32_t item; /* number of the first item of the block at this place */
} item_walk;

/* Item i of a block. */
static query_block block_item(const fold_job *j, query_block q, int32_t i) {
    int32_t part = i % j->n_part;
    q.kv_head = i / j->n_part;
    q.head0 = cpu_share(j->group, part, j->n_part);
    q.n_head = cpu_share(j->group, part + 1, j->n_part) - q.head0;
    return q;
}

/* Item `want`, which lies at the block at w or behind. */
static query_block walk_to(const fold_job *j, item_walk *w, int32_t want) {
    int32_t n_item = j->p->kv.n_kv_head * j->n_part; /* of a block */
    for (; w->class >= 0; w->class --, w->span = 0)
        for (; w->span < j->p->n_span; w->span++, w->block = 0) {
            const kern_span *s = span_at(j, w->span);
            for (int32_t n = block_count(j, s); w->block < n; w->block++) {
                query_block q = block_at(j, s, w->block);
                if (block_class(j, &q) != w->class)
                    continue;
                if (want < w->item + n_item)
                    return block_item(j, q, want - w->item);
                w->item += n_item;
            }
        }
    assert(false && "item number out of range");
    return (query_block){0};
}

static void count_blocks(fold_job *j) {
    for (int32_t i = 0; i < j->p->n_span; i++) {
        const kern_span *s = span_at(j, i);
        int32_t n = block_count(j, s);
        j->n_block += n;
        for (int32_t b = 0; b < n; b++) {
            query_block q = block_at(j, s, b);
            int32_t class = block_class(j, &q), pages = block_pages(j, &q);
            j->top_class = class > j->top_class ? class : j->top_class;
            j->most_tokens = j->most_tokens > q.n_tok ? j->most_tokens : q.n_tok;
            j->most_pages = j->most_pages > pages ? j->most_pages : pages;
        }
    }
}

/* Cuts groups that are larger than a block may be, and large groups when there are few items. */
static void cut_heads(fold_job *j) {
    int32_t whole = j->n_block * j->p->kv.n_kv_head;
    j->n_part = (j->group + CPU_BLOCK_ROWS - 1) / CPU_BLOCK_ROWS;
    while (whole * j->n_part < j->dev->n_thread && j->group / j->n_part > SPLIT_HEADS)
        j->n_part *= 2;
    j->n_item = whole * j->n_part;
}

/* A power of two, so that blocks and pages have common edges. */
static int32_t block_tokens(int32_t group) {
    int32_t n = CPU_BLOCK_TOKENS;
    while (n > 1 && n * group > CPU_BLOCK_ROWS)
        n /= 2;
    return n;
}

/* ---- the pages of an item, in the order in which they are folded ---- */

/* Operand by operand: shard s = shard0 + operand holds the logical pages bitrev(s) + n V. Pages are
 * scored in batches that reach over the ends of shards, since scores depend on no state: a short
 * context has one page or two in each shard, too few to keep the fma units busy. */
typedef struct page_walk {
    const tree_prog *tree;
    int32_t kv_shards, shard0; /* operand 0 is shard0 */
    const cpu_fold *fold;
    const cpu_block *block;
    const int32_t *table;
    const uint8_t *pages; /* of the item's KV head */
    size_t page_stride;
    int32_t first, end;    /* logical pages that hold a key which some row sees */
    int32_t operand, next; /* next logical page to look at; -1: the shard's first */
    int32_t n, at;         /* the batch and the place in it */
    cpu_page page[CPU_BATCH];
    int32_t page_operand[CPU_BATCH];
} page_walk;

static int32_t reverse_bits(int32_t x, int32_t n_values) {
    int32_t y = 0;
    for (int32_t bit = 1; bit < n_values; bit *= 2, x /= 2)
        y = y * 2 + x % 2;
    return y;
}

/* First logical page >= first of the shard. */
static int32_t shard_start(const page_walk *w) {
    int32_t v = w->kv_shards;
    int32_t i = reverse_bits(w->shard0 + w->operand, v);
    return i >= w->first ? i : i + (w->first - i + v - 1) / v * v;
}

static void score_batch(page_walk *w) {
    w->n = w->at = 0;
    while (w->n < w->block->page_batch && w->operand < w->tree->n_push) {
        if (w->next < 0)
            w->next = shard_start(w);
        if (w->next >= w->end) {
            w->operand++;
            w->next = -1;
            continue;
        }
        w->page[w->n] = (cpu_page){.k = w->pages + (size_t)w->table[w->next] * w->page_stride,
                                   .key0 = w->next * CPU_PAGE};
        w->page_operand[w->n++] = w->operand;
        w->next += w->kv_shards;
    }
    if (w->n > 0)
        w->fold->score(w->block, w->page, w->n);
}

static void fold_shard(page_walk *w, int32_t operand, cpu_states *s) {
    for (;;) {
        if (w->at == w->n)
            score_batch(w);
        if (w->n == 0 || w->page_operand[w->at] != operand)
            return;
        w->fold->update(w->block, &w->page[w->at], w->at, s);
        w->at++;
    }
}

static page_walk walk_pages(const fold_job *j, const query_block *q, const cpu_fold *fold,
                            const cpu_block *b) {
    const kern_kv *kv = &j->p->kv;
    const kern_span *s = q->span;
    int32_t pos = s->pos + q->tok, end = (pos + q->n_tok - 1) / CPU_PAGE + 1;
    return (page_walk){.kv_shards = j->p->kv_shards,
                       .fold = fold,
                       .block = b,
                       .table = (const int32_t *)cpu_ptr(j->p->tables) + s->table,
                       .pages = (const uint8_t *)cpu_ptr(kv->pages) +
                                (size_t)q->kv_head * kern_kv_head_bytes(kv),
                       .page_stride = kv->page_stride,
                       .first = seen_from(j, s, pos) / CPU_PAGE,
                       .end = end < s->n_page ? end : s->n_page,
                       .next = -1};
}

/* ---- one item ---- */

/* Scratch of a thread: row begins | row ends | TREE_MAX_DEPTH states | the level's work memory. Each
 * part is a multiple of 16 floats long, so that vectors stay inside cache lines. */
static size_t row_edge_floats(int32_t rows) {
    return (size_t)cpu_round_up(rows, 16);
}

static size_t states_floats(int32_t rows, int32_t stride) {
    return (size_t)rows * (size_t)stride + (size_t)cpu_round_up(2 * rows, 16);
}

static cpu_states states_at(float *at, int32_t rows, int32_t stride) {
    float *m = at + (size_t)rows * (size_t)stride;
    return (cpu_states){.o = at, .m = m, .l = m + rows, .empty = true};
}

void cpu_states_identity(const cpu_block *b, cpu_states *s) {
    size_t rows = (size_t)cpu_round_up(b->n_row, 4);
    memset(s->o, 0, rows * (size_t)b->o_stride * sizeof *s->o);
    for (size_t r = 0; r < rows; r++) {
        s->m[r] = -INFINITY;
        s->l[r] = 0.0f;
    }
    s->empty = false;
}

void cpu_states_emit(const cpu_block *b, const cpu_states *s, const cpu_nodes *to) {
    size_t d = (size_t)b->value_dim;
    for (int32_t r = 0; r < b->n_row; r++) {
        float *node = cpu_node(b, to, r);
        memcpy(node, s->o + (size_t)r * (size_t)b->o_stride, d * sizeof *node);
        node[d] = s->m[r];
        node[d + 1] = s->l[r];
    }
}

/* An empty side leaves the other as it is. */
static void states_merge(const cpu_fold *fold, const cpu_block *b, cpu_states *to,
                         cpu_states *from) {
    if (from->empty)
        return;
    if (!to->empty) {
        fold->merge(b, to, from);
        return;
    }
    cpu_states other = *to;
    *to = *from;
    *from = other;
}

static void states_emit(const cpu_fold *fold, const cpu_block *b, cpu_states *s,
                        const cpu_nodes *to) {
    if (s->empty) {
        cpu_states_identity(b, s);
        cpu_states_emit(b, s, to);
    } else {
        fold->emit(b, s, to);
    }
}

/* First keys that the rows see and first ones behind them; 0, 0: none. */
static void set_row_edges(const fold_job *j, const query_block *q, int32_t rows, int32_t *begin,
                          int32_t *end) {
    for (int32_t r = 0; r < rows; r++) {
        int32_t tok = r / q->n_head, pos = q->span->pos + q->tok + tok;
        int32_t from = seen_from(j, q->span, pos);
        bool sees = tok < q->n_tok && from <= pos;
        begin[r] = sees ? from : 0;
        end[r] = sees ? pos + 1 : 0;
    }
}

static cpu_block block_of(const fold_job *j, const query_block *q) {
    const kern_attn_fold *p = j->p;
    size_t d = (size_t)p->kv.head_dim, q_row = (size_t)p->n_head * d;
    size_t head = (size_t)q->kv_head * (size_t)j->group + (size_t)q->head0;
    return (cpu_block){.n_row = q->n_tok * q->n_head,
                       .group = q->n_head,
                       .head_dim = p->kv.head_dim,
                       .value_dim = p->kv.value_dim,
                       .value_in_key = p->kv.value_in_key,
                       .o_stride = cpu_round_up(p->kv.value_dim, 16),
                       .scale = p->scale,
                       .type = p->kv.type,
                       .q = (const float *)cpu_ptr(p->q) + (size_t)(q->span->q0 + q->tok) * q_row +
                            head * d,
                       .q_stride = q_row};
}

/* Where node 0 of the block goes. */
static cpu_nodes nodes_of(const fold_job *j, const query_block *q) {
    const kern_attn_fold *p = j->p;
    size_t node = (size_t)p->kv.value_dim + 2, head = (size_t)p->tree->n_emit * node;
    size_t token = (size_t)(q->span->q0 + q->tok - p->state_q0);
    size_t first = (size_t)q->kv_head * (size_t)j->group + (size_t)q->head0;
    float *at = cpu_ptr(p->state);
    return (cpu_nodes){.at = at + (token * (size_t)p->n_head + first) * head,
                       .token_stride = (size_t)p->n_head * head,
                       .head_stride = head};
}

/* Folds what `tree` says, operand 0 being the shard shard0; its nodes go to `to`, one behind the
 * other. */
static void fold_block(const fold_job *j, const query_block *q, const tree_prog *tree,
                       int32_t shard0, cpu_nodes to, float *scratch) {
    cpu_block b = block_of(j, q);
    int32_t rows = cpu_round_up(b.n_row, 16);
    int32_t *row_begin = (int32_t *)(void *)scratch, *row_end = row_begin + rows;
    set_row_edges(j, q, rows, row_begin, row_end);
    b.row_begin = row_begin;
    b.row_end = row_end;
    float *stack = scratch + 2 * row_edge_floats(rows);
    size_t one = states_floats(rows, b.o_stride);
    b.work = stack + TREE_MAX_DEPTH * one;
    const cpu_attn_isa *isa = j->dev->isa->attn;
    bool few = b.n_row <= isa->few_rows && !b.value_in_key;
    const cpu_fold *fold = few ? isa->few : isa->many;
    fold->begin(&b);
    page_walk w = walk_pages(j, q, fold, &b);
    w.tree = tree;
    w.shard0 = shard0;

    cpu_states s[TREE_MAX_DEPTH];
    for (int32_t i = 0; i < TREE_MAX_DEPTH; i++)
        s[i] = states_at(stack + (size_t)i * one, rows, b.o_stride);
    int32_t depth = 0;
    for (int32_t i = 0; i < tree->n_op; i++) {
        int32_t op = tree->op[i];
        if (op >= 0) {
            s[depth].empty = true;
            fold_shard(&w, op, &s[depth++]);
        } else if (op == TREE_ADD) {
            depth--;
            states_merge(fold, &b, &s[depth - 1], &s[depth]);
        } else {
            states_emit(fold, &b, &s[--depth], &to);
            to.at += b.value_dim + 2;
        }
    }
}

/* ---- pieces of an item ---- */

static size_t piece_floats(int32_t value_dim) {
    return PIECE_ROWS * (size_t)(value_dim + 2);
}

/* The node of piece number i (of all items' pieces). */
static float *piece_node(const fold_job *j, int32_t i) {
    int32_t n = j->dev->n_thread;
    float *at = (float *)(void *)(cpu_scratch(j->dev, i % n) + j->dev->scratch_bytes);
    return at - (size_t)(PIECES_MOST - i / n) * piece_floats(j->p->kv.value_dim);
}

/* Runs a program over nodes {o[d], m, l}; what it hands out stays at the bottom of the stack, node
 * after node (nothing lies below a node that is handed out). stack: TREE_MAX_DEPTH nodes, and one
 * for each that is handed out before the last. */
static void merge_nodes(const cpu_attn_isa *isa, const tree_prog *tree, const float *const *operand,
                        int32_t d, float *stack) {
    size_t node = (size_t)d + 2;
    float *top = stack; /* first float above the stack's top */
    for (int32_t i = 0; i < tree->n_op; i++) {
        int32_t op = tree->op[i];
        if (op >= 0) {
            memcpy(top, operand[op], node * sizeof *top);
            top += node;
        } else if (op == TREE_ADD) {
            top -= node;
            isa->merge_row(top - node, top - 2, top - 1, top, top[d], top[d + 1], d);
        }
    }
}

/* The rest of the tree over an item's pieces, row by row. */
static void join_pieces(const fold_job *j, const query_block *q, int32_t item, float *stack) {
    const tree_prog *rest = &j->cut->split.rest;
    int32_t d = j->p->kv.value_dim;
    size_t node = (size_t)d + 2;
    cpu_nodes to = nodes_of(j, q);
    for (int32_t r = 0; r < q->n_tok * q->n_head; r++) {
        const float *operand[TREE_MAX_LEAF];
        for (int32_t i = 0; i < rest->n_push; i++)
            operand[i] = piece_node(j, item * j->n_piece + i) + (size_t)r * node;
        merge_nodes(j->dev->isa->attn, rest, operand, d, stack);
        float *out = to.at + (size_t)(r / q->n_head) * to.token_stride +
                     (size_t)(r % q->n_head) * to.head_stride;
        memcpy(out, stack, (size_t)rest->n_emit * node * sizeof *out);
    }
}

static void fold_piece(fold_job *j, const query_block *q, int32_t item, int32_t piece,
                       float *scratch) {
    size_t node = (size_t)j->p->kv.value_dim + 2;
    cpu_nodes to = {.at = piece_node(j, item * j->n_piece + piece),
                    .token_stride = (size_t)q->n_head * node,
                    .head_stride = node};
    fold_block(j, q, &j->cut->split.piece[piece], j->p->shard0 + j->cut->split.first[piece], to,
               scratch);
    if (atomic_fetch_add_explicit(&j->cut->n_done[item], 1, memory_order_acq_rel) + 1 == j->n_piece)
        join_pieces(j, q, item, scratch);
}

/* Decides whether the items are cut, and cuts the tree. */
static void cut_items(fold_job *j) {
    const tree_prog *tree = j->p->tree;
    int32_t n_thread = j->dev->n_thread, wanted = PIECES_A_THREAD * n_thread;
    int32_t most_rows = j->most_tokens * ((j->group + j->n_part - 1) / j->n_part);
    j->n_piece = 1;
    if (n_thread == 1 || j->n_item >= wanted || j->n_item > MOST_SPLIT || most_rows > PIECE_ROWS ||
        j->most_pages < SPLIT_PAGES)
        return;
    int32_t max_push = tree->n_push;
    while (max_push > 1 && tree->n_push / max_push * j->n_item < wanted)
        max_push /= 2;
    tree_split_make(tree, max_push, &j->cut->split);
    if (j->n_item * j->cut->split.n_piece > PIECES_MOST * n_thread)
        return;
    j->n_piece = j->cut->split.n_piece;
    for (int32_t i = 0; i < j->n_item; i++)
        atomic_init(&j->cut->n_done[i], 0);
}

static void fold_thread(void *arg, int32_t thread, int32_t n_thread) {
    (void)n_thread;
    fold_job *j = arg;
    item_walk w = {.class = j->top_class};
    float *scratch = (float *)(void *)cpu_scratch(j->dev, thread);
    for (int32_t i; (i = team_claim(j->dev->team, j->n_item * j->n_piece)) >= 0;) {
        int32_t item = i / j->n_piece;
        query_block q = walk_to(j, &w, item);
        if (j->n_piece == 1)
            fold_block(j, &q, j->p->tree, j->p->shard0, nodes_of(j, &q), scratch);
        else
            fold_piece(j, &q, item, i % j->n_piece, scratch);
    }
}

void cpu_attn_fold(kern_dev *dev, const kern_attn_fold *p) {
    int32_t group = p->n_head / p->kv.n_kv_head;
    fold_cut cut;
    fold_job j = {
        .dev = dev, .p = p, .group = group, .block_tokens = block_tokens(group), .cut = &cut};
    assert(group <= dev->limits.max_group && p->kv.head_dim <= dev->limits.max_head_dim &&
           p->kv.value_dim <= dev->limits.max_head_dim);
    assert(!p->kv.value_in_key || p->kv.value_dim <= p->kv.head_dim);
    count_blocks(&j);
    cut_heads(&j);
    cut_items(&j);
    if (j.n_item > 0)
        team_run(dev->team, fold_thread, &j);
}

/* ---- finish ---- */

typedef struct finish_job {
    kern_dev *dev;
    const kern_attn_finish *p;
} finish_job;

/* Scratch of a thread: the row | a sink's value, zeros | TREE_MAX_DEPTH nodes of value_dim + 2. */
static void finish_head(const finish_job *j, int32_t t, int32_t h, const float *zeros, float *stack,
                        float *out) {
    const kern_attn_finish *p = j->p;
    const cpu_attn_isa *isa = j->dev->isa->attn;
    size_t index = (size_t)t * (size_t)p->n_head + (size_t)h;
    const float *operand[TREE_MAX_LEAF], *sinks = cpu_ptr(p->sinks);
    for (int32_t i = 0; i < p->tree->n_push; i++)
        operand[i] = cpu_ptr(kern_at(p->node[i], index * p->node_stride[i]));
    merge_nodes(isa, p->tree, operand, p->value_dim, stack);
    float *m = stack + p->value_dim, *l = m + 1;
    if (sinks)
        isa->merge_row(stack, m, l, zeros, sinks[h], 1.0f, p->value_dim);
    isa->divide(stack, *l, p->value_dim, out);
}

static void finish_thread(void *arg, int32_t thread, int32_t n_thread) {
    const finish_job *j = arg;
    const kern_attn_finish *p = j->p;
    float *row = (float *)(void *)cpu_scratch(j->dev, thread);
    float *zeros = row + cpu_round_up(p->n_head * p->value_dim, 16);
    float *stack = zeros + cpu_round_up(p->value_dim, 16);
    memset(zeros, 0, (size_t)p->value_dim * sizeof *zeros);
    int32_t from = cpu_share(p->n_tok, thread, n_thread);
    int32_t to = cpu_share(p->n_tok, thread + 1, n_thread);
    for (int32_t t = from; t < to; t++) {
        for (int32_t h = 0; h < p->n_head; h++)
            finish_head(j, t, h, zeros, stack, row + h * p->value_dim);
        cpu_act_write_row(j->dev->isa->linear, &p->out, p->row0 + t, row);
    }
}

void cpu_attn_finish(kern_dev *dev, const kern_attn_finish *p) {
    assert(p->n_head * p->value_dim <= dev->limits.max_in &&
           p->value_dim <= dev->limits.max_head_dim);
    finish_job j = {.dev = dev, .p = p};
    int64_t floats = (int64_t)p->n_tok * p->n_head * p->value_dim * p->tree->n_push;
    if (floats < CPU_SMALL)
        finish_thread(&j, 0, 1);
    else
        team_run(dev->team, finish_thread, &j);
}

size_t cpu_attn_scratch_bytes(const kern_limits *l) {
    int32_t rows = CPU_BLOCK_ROWS, stride = cpu_round_up(l->max_head_dim, 16);
    size_t fold = 2 * row_edge_floats(rows) + TREE_MAX_DEPTH * states_floats(rows, stride) +
                  cpu_attn_work_floats(rows, l->max_head_dim) +
                  PIECES_MOST * piece_floats(l->max_head_dim);
    size_t finish = (size_t)cpu_round_up(l->max_in, 16) + (size_t)stride +
                    TREE_MAX_DEPTH * (size_t)(l->max_head_dim + 2);
    size_t floats = fold > finish ? fold : finish;
    return (floats * sizeof(float) + 63) / 64 * 64;
}

/* ---- cache ---- */

/* One head of one token into its column of K and its row of V; layouts: kern.h. */
static void store_key(kern_kv_type type, int32_t n_d, int32_t key, const uint8_t *k,
                      uint8_t *page) {
    size_t n = (size_t)n_d;
    uint8_t *to = page + (size_t)key * (type == KERN_KV_F16 ? 2 : 4);
    if (type == KERN_KV_F32)
        for (size_t d = 0; d < n; d++)
            memcpy(to + d * CPU_PAGE * 4, k + d * 4, 4);
    else if (type == KERN_KV_F16)
        for (size_t d = 0; d < n; d++)
            memcpy(to + d * CPU_PAGE * 2, k + d * 2, 2);
    else
        for (size_t d = 0; d < n; d += 2)
            memcpy(to + d * CPU_PAGE * 2, k + d * 2, 4);
}

static void store_value(kern_kv_type type, int32_t n_d, int32_t key, const uint8_t *v,
                        uint8_t *values) {
    size_t n = (size_t)n_d, elem = kern_kv_elem(type);
    if (type != KERN_KV_BF16) {
        memcpy(values + (size_t)key * n * elem, v, n * elem);
        return;
    }
    uint8_t *to = values + (size_t)(key / 2) * n * 4 + (size_t)(key % 2) * 2;
    for (size_t d = 0; d < n; d++)
        memcpy(to + d * 4, v + d * 2, 2);
}

static void store_thread(void *arg, int32_t thread, int32_t n_thread) {
    const kern_kv_store *p = arg;
    const kern_kv *kv = &p->kv;
    size_t n_head = (size_t)kv->n_kv_head, elem = kern_kv_elem(kv->type);
    size_t k_bytes = (size_t)kv->head_dim * elem, v_bytes = (size_t)kv->value_dim * elem;
    size_t head_bytes = kern_kv_head_bytes(kv);
    const int32_t *slots = cpu_ptr(p->slots);
    int32_t to = cpu_share(p->n, thread + 1, n_thread);
    for (int32_t i = cpu_share(p->n, thread, n_thread); i < to; i++) {
        if (slots[i] < 0)
            continue;
        const uint8_t *k =
            (const uint8_t *)cpu_ptr(p->wire) + (size_t)i * n_head * head_bytes / CPU_PAGE;
        const uint8_t *v = k + n_head * k_bytes;
        int32_t key = slots[i] % CPU_PAGE;
        uint8_t *at =
            (uint8_t *)cpu_ptr(kv->pages) + (size_t)(slots[i] / CPU_PAGE) * kv->page_stride;
        for (size_t h = 0; h < n_head; h++, at += head_bytes) {
            store_key(kv->type, kv->head_dim, key, k + h * k_bytes, at);
            if (!kv->value_in_key)
                store_value(kv->type, kv->value_dim, key, v + h * v_bytes, at + CPU_PAGE * k_bytes);
        }
    }
}

void cpu_kv_store(kern_dev *dev, const kern_kv_store *p) {
    if ((int64_t)p->n * p->kv.n_kv_head * (p->kv.head_dim + p->kv.value_dim) < CPU_SMALL)
        store_thread((void *)p, 0, 1);
    else
        team_run(dev->team, store_thread, (void *)p);
}

typedef struct pack_job {
    const kern_kv_pack *p;
    size_t page_bytes;
} pack_job;

static void pack_thread(void *arg, int32_t thread, int32_t n_thread) {
    const pack_job *j = arg;
    const uint8_t *from = cpu_ptr(j->p->from.pages);
    const int32_t *pages = cpu_ptr(j->p->pages);
    int32_t to = cpu_share(j->p->n, thread + 1, n_thread);
    for (int32_t i = cpu_share(j->p->n, thread, n_thread); i < to; i++)
        memcpy((uint8_t *)cpu_ptr(j->p->out) + (size_t)i * j->page_bytes,
               from + (size_t)pages[i] * j->p->from.page_stride, j->page_bytes);
}

void cpu_kv_pack(kern_dev *dev, const kern_kv_pack *p) {
    pack_job j = {.p = p, .page_bytes = kern_kv_page_bytes(&p->from)};
    if ((int64_t)j.page_bytes * p->n < CPU_SMALL)
        pack_thread(&j, 0, 1);
    else
        team_run(dev->team, pack_thread, &j);
}
