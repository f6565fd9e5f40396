/* What an instruction-set level gives to attention, RoPE and the cache. The scalar version of each
 * function is its specification (numerics rules N3, N4, N6); every other level must give the same
 * bits.
 *
 * A block is what one thread does at a time: `group` query heads that share a KV head (all of its
 * group, or a part of a large one) for a run of tokens of one span. Its rows are numbered token by
 * token:
 *
 *   group 3, pos 32:   row 0 1 2 = token at 32, heads 0 1 2;   row 3 4 5 = token at 33; ...
 *
 * The operation (attn.c) walks the tree and the pages; a level scores a batch of pages, then folds
 * them into a state one after the other. A level has two ways to fold: one for the few rows of a
 * decoding token, one for the many rows of a prompt. */
#ifndef WEFT_KERN_CPU_ATTN_ISA_H
#define WEFT_KERN_CPU_ATTN_ISA_H

#include "kern/cpu/cpu.h"

enum {
    CPU_PAGE = 16,       /* keys of a page */
    CPU_BATCH = 4,       /* most pages that are scored in one call */
    CPU_BLOCK_ROWS = 64, /* most rows of a block; whole vectors of every level */
    CPU_BLOCK_TOKENS = 16,
    CPU_SMALL = 8192 /* elements up to which a copying operation is not worth waking the team */
};

typedef struct cpu_page {
    const uint8_t *k; /* K of one KV head; V, where there is one, follows (kern.h) */
    int32_t key0;     /* position of its first key */
} cpu_page;

typedef struct cpu_block {
    int32_t n_row, group, head_dim, value_dim;
    bool value_in_key; /* pages have no V (kern_kv) */
    int32_t o_stride;  /* value_dim rounded up to 16 */
    /* [n_row rounded up to 16]: a row sees the keys [begin, end); 0, 0: none, as in the rows that only
     * fill up. From one of the n_row rows to the next neither falls. */
    const int32_t *row_begin, *row_end;
    float scale;
    kern_kv_type type;
    const float *q; /* of row 0: cpu_block_query */
    size_t q_stride;
    float *work;        /* cpu_attn_work_floats */
    int32_t page_batch; /* set by begin: pages per call of score, at most CPU_BATCH */
} cpu_block;

/* Unnormalised softmax states of a block's rows. Where a row's values stand is the affair of the
 * cpu_fold that made them; cpu_states_identity and cpu_states_emit have o as [row][o_stride]. */
typedef struct cpu_states {
    float *o;     /* [n_row rounded up to 16][o_stride] floats */
    float *m, *l; /* [n_row rounded up to 16] */
    bool empty;   /* nothing is folded yet: every row is the identity, o, m and l hold nothing */
} cpu_states;

/* Where emit puts the rows' nodes: that of row r, o[value_dim] m l, stands at
 * at + (r / group) * token_stride + (r % group) * head_stride floats. */
typedef struct cpu_nodes {
    float *at;
    size_t token_stride, head_stride;
} cpu_nodes;

/* One way to fold a block; its functions share b->work and the layout of states. */
typedef struct cpu_fold {
    /* Prepares b->work for the block's queries and sets b->page_batch. */
    void (*begin)(cpu_block *b);

    /* s[page][row][key] = (fma chain over d ascending from +0 of q[row][d] * k[key][d]) * scale,
     * for n pages (1..page_batch), kept in b->work until the next call. Scores of keys that a row
     * does not see may be anything. */
    void (*score)(const cpu_block *b, const cpu_page *pages, int32_t n);

    /* One page is one update of each row that sees a key of it; `at` is its index in the batch that
     * was scored last. With s = -inf at keys that the row does not see:
     *   m' = max(m, max s) + 0;  a = exp(m - m');  p[key] = exp(s[key] - m'), +0 where not seen
     *   l = fma(l, a, fold p);   o[d] = fma chain over seen keys ascending from o[d] * a
     * max(x, y) is x > y ? x : y, over the page in the order of the fold. Rows that see no key stay
     * as they are. From the identity a is 0 and 0 * 0 = +0: an empty state's chains start at +0. */
    void (*update)(const cpu_block *b, const cpu_page *page, int32_t at, cpu_states *s);

    /* to = to (+) from, neither empty: in every row the side with l == 0 leaves the other
     * untouched, else
     *   m = max(m_a, m_b) + 0;  o = o_a * exp(m_a - m) + o_b * exp(m_b - m);  l likewise
     * (two rounded products, then the sum). */
    void (*merge)(const cpu_block *b, cpu_states *to, const cpu_states *from);

    /* States that are not empty, to their nodes. */
    void (*emit)(const cpu_block *b, const cpu_states *s, const cpu_nodes *to);
} cpu_fold;

struct cpu_attn_isa {
    /* few: for blocks of up to few_rows rows whose pages have V; many: for all others. */
    const cpu_fold *few, *many;
    int32_t few_rows;

    /* merge of one row whose o is contiguous, n floats. */
    void (*merge_row)(float *oa, float *ma, float *la, const float *ob, float mb, float lb,
                      int32_t n);

    /* out[d] = o[d] / l, zeros when l == 0. */
    void (*divide)(const float *o, float l, int32_t n, float *out);

    /* y = rotated x, pairs (2i, 2i + 1), cs: (cos, sin) of each pair (formula in kern.h). */
    void (*rope)(const float *x, const float *cs, int32_t n_pair, float *y);

    /* out = x rounded to the cache's type, to nearest even. */
    void (*round)(kern_kv_type type, const float *x, int32_t n, void *out);
};

extern const cpu_attn_isa cpu_attn_scalar, cpu_attn_avx2, cpu_attn_avx512;

static inline int32_t cpu_round_up(int32_t n, int32_t to) {
    return (n + to - 1) / to * to;
}

/* First of n things that thread i of n_thread takes; its share ends where that of i + 1 starts. */
static inline int32_t cpu_share(int32_t n, int32_t i, int32_t n_thread) {
    return (int32_t)((int64_t)n * i / n_thread);
}

/* Work memory, for every level:
 *   queries [rows][d] | a widened K page [d][16] | a widened V page [16][e] | scores of one page of
 *   all rows, or of CPU_BATCH pages of few rows [16][rows] | factors [rows] | p of four rows
 * max_dim: the larger of head_dim and value_dim. */
static inline size_t cpu_attn_work_floats(int32_t rows, int32_t max_dim) {
    size_t d = (size_t)cpu_round_up(max_dim, 16), n = (size_t)rows;
    return n * d + 2 * CPU_PAGE * d + n * CPU_PAGE + n + 4 * CPU_PAGE;
}

/* The query of row r: [head_dim]. */
static inline const float *cpu_block_query(const cpu_block *b, int32_t r) {
    return b->q + (size_t)(r / b->group) * b->q_stride +
           (size_t)(r % b->group) * (size_t)b->head_dim;
}

static inline float *cpu_node(const cpu_block *b, const cpu_nodes *to, int32_t r) {
    return to->at + (size_t)(r / b->group) * to->token_stride +
           (size_t)(r % b->group) * to->head_stride;
}

/* For folds with o as [row][o_stride]; identity also writes the rows that fill up the last four. */
void cpu_states_identity(const cpu_block *b, cpu_states *s);
void cpu_states_emit(const cpu_block *b, const cpu_states *s, const cpu_nodes *to);

/* Keys [lo, hi) of the page that a row sees; hi <= lo: none. */
static inline int32_t cpu_seen_from(const cpu_block *b, const cpu_page *p, int32_t row) {
    return b->row_begin[row] > p->key0 ? b->row_begin[row] - p->key0 : 0;
}
static inline int32_t cpu_seen_to(const cpu_block *b, const cpu_page *p, int32_t row) {
    int32_t n = b->row_end[row] - p->key0;
    return n < CPU_PAGE ? n : CPU_PAGE;
}

static inline const uint8_t *cpu_page_values(const cpu_block *b, const cpu_page *p) {
    return p->k + (size_t)CPU_PAGE * (size_t)b->head_dim * kern_kv_elem(b->type);
}

#endif
