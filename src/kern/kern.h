/* The kernel table: everything that touches tensor memory. One table per device; src/kern/cpu is
 * the first.
 *
 * Numerics (docs/numerics.md) fixes the order of every sum; a table only chooses who computes it.
 * All shapes are given in the parameter structs; rows are token rows of this rank, "stride" is in
 * elements unless it says bytes. Operations run in order on one queue per kern_dev; the host reads
 * only what download delivered after drain. None allocates, none fails after reserve: shapes are
 * validated when the engine is planned. */
#ifndef WEFT_KERN_KERN_H
#define WEFT_KERN_KERN_H

#include "base/status.h"
#include "kern/noise.h"
#include "tensor/dtype.h"
#include "tensor/mem.h"
#include "tensor/tree.h"

/* What the table's numerics profile fixes; never derived from a launch topology. */
typedef struct kern_profile {
    const char *name;      /* "exact" */
    int32_t page_tokens;   /* P */
    int32_t kv_shards;     /* V, a power of two */
    int32_t max_leaves;    /* cap on L */
    int32_t leaf_multiple; /* K / L must be a multiple of this */
    int32_t panel;         /* outputs per packed panel: a TP cut of outputs must be a multiple */
} kern_profile;

/* ---- packed weights: a type of their own, so that nothing reads packed bytes as plain ---- */
typedef struct kern_weight {
    dtype type;
    int32_t n_out, n_in; /* y[n_out] = W[n_out, n_in] x[n_in] */
    kern_mem data;       /* docs/packed-layouts.md */
} kern_weight;

/* ---- activations: the input of linear layers ----
 * f32 form: [row][k] floats. q8 form, for quantised weights, one record per row of
 * kern_act_q8_bytes(k) bytes:
 *   int8 q[k] | f32 dx[k/32] | f32 xs[k/32] | i16 sum[k/32][2][2]      (k multiple of 32; record
 *   padded to 64 bytes)
 * Per block of 32: q = round-half-even(x * (127 / amax)), dx = sum(x q) / sum(q q), xs = dx *
 * (float)(sum of q). sum[h][l]: exact integer sum of those q[i] of the block's half h = i / 16 with
 * i / 2 % 2 = l, which are what the int16 lanes of a dot product add.
 * sum(x q) in 16 lanes: fma(x[i + 16], q[i + 16], x[i] * q[i]), then the fold; sum(q q) is exact.
 * amax 0: all zero.
 * A producer writes the forms whose memory is not 0. */
typedef struct kern_act {
    int32_t k;
    kern_mem f32, q8;
} kern_act;
static inline size_t kern_act_q8_bytes(int32_t k) {
    return ((size_t)k + (size_t)(k / 32) * 16 + 63) / 64 * 64;
}

/* y_part[row][o] = sum_k W[out0 + o][in0 + k] x[row][k], o in [0, n_out), k in [0, n_in); one pass
 * over x for all parts. Column-parallel layers: tree has one operand and leaf_in = n_in.
 * Row-parallel layers: leaves of leaf_in columns each, walked by `tree` (a tree_cover program);
 * node e of row r goes to y + e * node_bytes + r * y_stride * 4. Bias (f32 [n_out], when not 0) is
 * only for column-parallel layers and is added once after the sum. Several parts must be
 * column-parallel. */
enum { KERN_MAX_PART = 3 };
typedef struct kern_linear_part {
    const kern_weight *w;
    int32_t out0, n_out; /* out0: multiple of the panel */
    kern_mem bias, y;    /* y: f32 [row][y_stride] */
    int32_t y_stride;
} kern_linear_part;
typedef struct kern_linear {
    kern_act x; /* x.k == n_in */
    int32_t n_row;
    int32_t in0, n_in;
    int32_t n_part;
    kern_linear_part part[KERN_MAX_PART];
    const tree_prog *tree;
    int32_t leaf_in;
    size_t node_bytes;
    /* 0: every output reads all n_in columns. Else outputs stand in groups (heads) of group_out, and
     * output o (counted as in y, from out0) reads the columns [g n_in, (g + 1) n_in) of x, g = o /
     * group_out: x has the groups of this part alone, x.k = n_out / group_out * n_in. w->n_in =
     * n_in; column-parallel, one part, in0 = 0; n_out is a multiple of group_out, group_out of the
     * panel. */
    int32_t group_out;
} kern_linear;

/* How a gate g and a value u become one number. sigmoid is exact_sigmoid; every product and sum is
 * rounded by itself unless fma is written.
 *   SILU     g * sigmoid(g) * u
 *   GELU     g * sigmoid(z) * u, z = 1.5957691f * (g * fma(g * g, 0.044715f, 1)); this is the tanh form
 *   CLAMPED  g' = min(g, limit), u' = clamp(u, -limit, limit): g' * sigmoid(alpha * g') * (u' + 1)
 * Products run left to right. The min and max of a NaN are that NaN; any NaN becomes the one NaN
 * (0xFFC00000). */
typedef enum kern_glu_kind { KERN_GLU_SILU, KERN_GLU_GELU, KERN_GLU_CLAMPED } kern_glu_kind;
typedef struct kern_glu_rule {
    kern_glu_kind kind;
    float alpha, limit; /* of CLAMPED */
} kern_glu_rule;

/* out[row][o] = rule(g, u) with g = gate . x, u = up . x (each one leaf). */
typedef struct kern_swiglu {
    kern_act x;
    int32_t n_row;
    const kern_weight *gate, *up; /* same shape */
    int32_t out0, n_out;
    kern_glu_rule rule;
    kern_act out; /* k = n_out */
} kern_swiglu;

/* out[r][j] = rule(g[r][j], u[r][j]) for j in [0, out.k), of numbers that are there already.
 * out.f32 may be g where the strides agree. */
typedef struct kern_glu {
    int32_t n_row;
    kern_mem g, u; /* f32, strides in elements */
    int32_t g_stride, u_stride;
    kern_glu_rule rule;
    kern_act out;
} kern_glu;

/* Rows of floats as an activation: the forms that `to` has. from == to.f32 is allowed: then only the q8
 * form is made. */
typedef struct kern_act_make {
    int32_t n_row;
    kern_mem from; /* f32 [n_row][to.k] */
    kern_act to;
} kern_act_make;

/* x = cap * tanh(x / cap), tanh(y) = t for y >= 0, -t below, t = (1 - e) / (1 + e), e =
 * exact_exp_neg(-2 |y|): off by cap * 1.5e-7 at most, so that values near 0 lose digits. Any NaN
 * becomes the one NaN. */
typedef struct kern_softcap {
    int64_t n;
    float cap;
    kern_mem x; /* f32 [n] */
} kern_softcap;

/* x[row][:] = row ids[row] of the plain (unpacked) embedding matrix, dequantised, times scale. */
typedef struct kern_embed {
    const void *table; /* plain GGUF rows, host memory borrowed from the model file */
    dtype type;
    int32_t n_row, hidden, n_vocab;
    float scale;  /* 1: as it is */
    kern_mem ids; /* i32 [n_row] */
    kern_mem x;   /* f32 [n_row][hidden] */
} kern_embed;

/* Finish the leaf tree over gathered nodes, add the residual, normalise.
 *   norm(v, w)[j] = (v[j] * (1 / sqrt(ss / hidden + eps))) * w[j],  ss = sum v^2 over 16 lanes, fold
 *   t = tree over nodes (node k of row r at nodes + node_off[k] + r * hidden * 4), + bias;
 *   t = norm(t, post);  x[r] = x[r] + t;  x[r] = x[r] * x_scale;  out[r] = norm(x[r], weight)
 * What is absent (bias, post: 0, x_scale: 1) does nothing; x is read and written. Without a tree x
 * stays as it is, x_scale or not, and only the last line is done. */
typedef struct kern_reduce_norm {
    int32_t n_row, hidden;
    const tree_prog *tree; /* NULL: no nodes */
    kern_mem nodes;
    const size_t *node_off; /* [tree->n_push] bytes */
    kern_mem bias, post;    /* f32 [hidden] or 0 */
    float x_scale;
    kern_mem x;      /* f32 [n_row][hidden] */
    kern_mem weight; /* f32 [hidden] */
    float eps;
    kern_act out;
} kern_reduce_norm;

/* ---- mixture of experts ----
 * A token goes to n_used of n_expert experts; a (token, chosen expert) pair is a slot. The slots of
 * a token stand in ascending order of expert id, and its outputs are summed in that order (N8). */

enum { KERN_MAX_EXPERT = 1024 }; /* n_expert of a router at most */

/* Router logits -> slots, l = a logit * logit_scale. All f32, one rounding at a time; exp is
 * exact_exp_neg, sums ascend over expert ids from +0, ties go to the lower id.
 *   SOFTMAX   s = exp(l - max) / sum over all experts; chosen by s; renorm: s / sum of the chosen
 *   CHOSEN    chosen by l; s = softmax over the chosen alone (renorm changes nothing)
 *   SIGMOID   s = exact_sigmoid(l); chosen by s; renorm: s / (sum of the chosen + 1e-20)
 * Chosen are the n_used largest, by s (l) + correction where there is one, which changes the choice
 * and not the weight. With n_group > 1 groups of n_expert / n_group neighbours the n_group_used
 * best groups are chosen first, by their largest number, with SIGMOID by the sum of their two
 * largest; then n_used <= n_group_used * n_expert / n_group. Then s * scale, and with expert_scale s *
 * that of the expert. A NaN is chosen after every number; a weight that is one is the one NaN. */
typedef enum kern_route_kind {
    KERN_ROUTE_SOFTMAX,
    KERN_ROUTE_CHOSEN,
    KERN_ROUTE_SIGMOID
} kern_route_kind;
typedef struct kern_route {
    kern_route_kind kind;
    bool renorm;
    float logit_scale, scale;
    int32_t n_row, n_expert, n_used, n_group, n_group_used;
    kern_mem logits;       /* f32 [n_row][n_expert] */
    kern_mem correction;   /* f32 [n_expert] or 0 */
    kern_mem expert_scale; /* f32 [n_expert] or 0 */
    kern_mem expert;       /* out: i32 [n_row][n_used], ascending in a row */
    kern_mem weight;       /* out: f32 [n_row][n_used] */
} kern_route;

/* The slots through their experts: inner = rule(gate . x, up . x) (biases added first), then the
 * leaves of down over columns [in0, in0 + n_in) walked by `tree`: node e of slot i goes to
 * nodes + e * node_bytes + i * hidden * 4. An expert without tokens costs nothing; no expert stands
 * twice in a row's slots. A row's bits depend on that row alone.
 * Each weight has the shape of one expert and the data of expert 0; the others follow, each packed
 * by itself (panels are not shared): expert e lies at data + e * packed_bytes(type, n_out, n_in).
 * gate and up may differ in type from down, and from each other when x has both forms. */
typedef struct kern_experts {
    kern_act x; /* [n_row] rows, or those that x_row names; k = hidden */
    int32_t n_row, n_expert, n_used;
    kern_mem expert; /* i32 [n_row][n_used], as kern_route gave them */
    kern_mem x_row;  /* i32 [n_row]: the row of x that row i of the slots reads; 0: row i */
    /* [ffn][hidden] twice, [hidden][ffn]; ffn of the whole model */
    const kern_weight *gate, *up, *down;
    kern_mem gate_bias, up_bias; /* f32 [n_expert][ffn] or 0 */
    kern_glu_rule rule;
    /* This rank's columns of ffn; in0 is a multiple of the panel. n_in 0: nothing is done. */
    int32_t in0, n_in;
    const tree_prog *tree;
    int32_t leaf_in;
    /* Scratch, [n_row * n_used] rows by expert: of x, k = hidden, in the forms that gate and up
     * read; of inner, k = n_in, in the form that down reads. */
    kern_act sorted, inner;
    kern_mem order; /* scratch: i32 [n_row * n_used + n_expert] */
    kern_mem nodes;
    size_t node_bytes;
} kern_experts;

/* Slots of rows whose experts belong to ranks, rank m having [cut[m], cut[m + 1]): what goes where.
 * A row goes once to each rank that has one of its experts, the slots that it has there with it; rank
 * after rank, rows ascending, slots of a row ascending. */
typedef struct kern_dispatch {
    int32_t n_row, n_used, n_rank;
    const int32_t *cut; /* [n_rank + 1], ascending from 0 to n_expert */
    kern_mem expert;    /* i32 [n_row][n_used], as kern_route gave them */
    kern_mem row;       /* out: i32 [n_row * min(n_used, n_rank)] the rows that go, in order */
    /* out: i32 [n_row * n_used] each. The slots that go, in order: 2 * (expert - cut[m]), + 1 at the
     * first of a row; and where slot i of the rows (row * n_used + its number) stands among them. */
    kern_mem slot, place;
    int32_t *count; /* out: [n_rank][2] rows and slots for each rank; host memory, after drain */
} kern_dispatch;

/* Slots as kern_dispatch wrote them, of several senders one behind the other, whose rows lie in the
 * same order: the expert, counted from the rank's first, and the row. */
typedef struct kern_arrive {
    int32_t n_slot;
    kern_mem slot;        /* i32 [n_slot] */
    kern_mem expert, row; /* out: i32 [n_slot] */
} kern_arrive;

/* y[r] = chain over the slots of the row, ascending, of fma(weight, t, y) from +0, t = the tree
 * over the slot's nodes (node k of slot i at nodes + node_off[k] + i * hidden * 4) +
 * down_bias[expert]; then, with shared experts, y[r] + the tree over shared nodes (at shared_nodes
 * + shared_off[k] + r * hidden * 4). With `place` slot i's nodes stand at place[i] instead of i. */
typedef struct kern_moe_sum {
    int32_t n_row, n_used, hidden;
    const tree_prog *tree;
    kern_mem nodes;
    const size_t *node_off;       /* [tree->n_push] */
    kern_mem place;               /* i32 [n_row * n_used], as kern_dispatch gave it, or 0 */
    kern_mem expert, weight;      /* as kern_route gave them */
    kern_mem down_bias;           /* f32 [n_expert][hidden] or 0 */
    const tree_prog *shared_tree; /* NULL: none */
    kern_mem shared_nodes;
    const size_t *shared_off;
    kern_mem y; /* f32 [n_row][hidden] */
} kern_moe_sum;

/* Copies rows idx[i] of `from` to rows i of `to` (both forms that `to` has). */
typedef struct kern_pick {
    kern_act from, to;
    int32_t n;
    kern_mem idx; /* i32 [n] */
} kern_pick;

/* ---- KV cache ----
 * A page of one layer holds all local KV heads; per head K then V (page_tokens = 16, D = head_dim,
 * E = value_dim, both multiples of 2):
 *   f32, f16:  K [d][16 keys], V [16 keys][e]      bf16:  K [d/2][16 keys][2], V [key/2][e][2]
 * so a page is n_kv_head * 16 * (D + E) * element bytes, contiguous. A slot is page * 16 + offset. A
 * wire row is one token's new K and V in the cache's type: K [n_kv_head][D] then V [n_kv_head][E].
 * With value_in_key the value of a key is its first E elements (E <= D): pages and wire rows have no
 * V, and are n_kv_head * 16 * D and n_kv_head * D elements. */
typedef enum kern_kv_type { KERN_KV_F16, KERN_KV_F32, KERN_KV_BF16 } kern_kv_type;
static inline size_t kern_kv_elem(kern_kv_type t) {
    return t == KERN_KV_F32 ? 4 : 2;
}
/* Bytes that the cache and a wire row have of one token and KV head. */
static inline size_t kern_kv_token_bytes(kern_kv_type t, int32_t head_dim, int32_t value_dim,
                                         bool value_in_key) {
    return (size_t)(value_in_key ? head_dim : head_dim + value_dim) * kern_kv_elem(t);
}
typedef struct kern_kv {
    kern_kv_type type;
    int32_t n_kv_head, head_dim, value_dim;
    bool value_in_key;
    size_t page_stride; /* bytes from page to page, at least kern_kv_page_bytes */
    kern_mem pages;     /* of one layer: [page][n_kv_head] {K, V} */
} kern_kv;
/* Bytes of one KV head in a page. */
static inline size_t kern_kv_head_bytes(const kern_kv *kv) {
    return 16 * kern_kv_token_bytes(kv->type, kv->head_dim, kv->value_dim, kv->value_in_key);
}
static inline size_t kern_kv_page_bytes(const kern_kv *kv) {
    return (size_t)kv->n_kv_head * kern_kv_head_bytes(kv);
}

/* Norm per head, RoPE on q and k, rounding of k and v to the cache's type. Pairs are adjacent
 * elements (2i, 2i+1), as GGUF's llama stores them: y[2i] = fma(x[2i], c, -(x[2i+1] * s)),
 * y[2i+1] = fma(x[2i], s, x[2i+1] * c)   for i < rope_dim / 2; the rest is copied. The table is f32
 * [max_len][rope_dim / 2][2] (cos, sin). Token i's query goes to row q_at[i] of q, its wire row to
 * kv_at[i]. Before it, where a weight is given, each head of q (k) becomes norm(head, weight) as in
 * kern_reduce_norm with hidden = head_dim; with v_norm each head of v is normed by ones.
 * n_kv_head 0: the layer reads another layer's cache; there are no k and v, nothing is written to
 * wire. */
typedef struct kern_qk_rope {
    int32_t n_tok, n_head, n_kv_head, head_dim, rope_dim;
    kern_mem q_norm, k_norm; /* f32 [head_dim] or 0 */
    bool v_norm;
    float eps;
    kern_mem
        qkv; /* f32 [n_tok][(n_head + 2 n_kv_head) * head_dim]: q, k, v of a row side by side */
    kern_mem rope;        /* table */
    kern_mem pos;         /* i32 [n_tok] */
    kern_mem q_at, kv_at; /* i32 [n_tok] */
    kern_mem q;           /* f32 [rows][n_head][head_dim] */
    kern_kv_type kv_type;
    kern_mem wire; /* [n_tok] wire rows */
} kern_qk_rope;

/* Latent attention (MLA), absorbed form: one KV head whose key is (latent, rope part) and whose value
 * is the latent, C = latent_dim, R = rope_dim:
 *   q row   = (q_latent[head], rope(q_rope[head]))                    per head, C + R
 *   wire    = K (norm(kv[0..C), kv_norm), rope(kv[C..C+R))); head_dim = C + R, value_dim = C,
 *             value_in_key
 * norm as in kern_reduce_norm with hidden = C. */
typedef struct kern_mla_rope {
    int32_t n_tok, n_head, latent_dim, rope_dim;
    kern_mem q_latent; /* f32 [n_tok][n_head][C] */
    kern_mem q_rope;   /* f32 [n_tok][n_head][R] */
    kern_mem kv;       /* f32 [n_tok][C + R] */
    kern_mem kv_norm;  /* f32 [C] */
    float eps;
    kern_mem rope, pos, q_at, kv_at; /* as in kern_qk_rope */
    kern_mem q;                      /* f32 [rows][n_head][C + R] */
    kern_kv_type kv_type;
    kern_mem wire; /* [n_tok] wire rows */
} kern_mla_rope;

/* Wire row i goes to slot slots[i]; slots < 0 are skipped. */
typedef struct kern_kv_store {
    kern_kv kv;
    int32_t n;
    kern_mem wire;
    kern_mem slots; /* i32 [n] */
} kern_kv_store;

/* Copies n whole pages of one layer, pages[i] of `from` to out + i * kern_kv_page_bytes. */
typedef struct kern_kv_pack {
    kern_kv from;
    int32_t n;
    kern_mem pages; /* i32 [n] */
    kern_mem out;
} kern_kv_pack;

/* A run of query tokens of one request: tokens q0 .. q0 + len - 1 of the q buffer stand at
 * positions pos .. pos + len - 1 and see keys [first_key, own position]; the request's logical page
 * i is pages[table + i]. 6 x i32 in the packed step block. */
typedef struct kern_span {
    int32_t q0, len, pos, first_key, table, n_page;
} kern_span;

/* Folds the keys of shards shard0 + operand (operands of `tree`) for every span, all heads, and
 * hands out the tree's nodes: node e of token t, head h at state + (((t - state_q0) * n_head + h) *
 * n_emit + e) * (value_dim + 2) floats: o[value_dim], m, l (o unnormalised). Shard s holds the
 * request's logical pages i with bitrev(i mod V) = s, folded in ascending order (N3); pages without
 * a visible key are skipped. A query at position p sees the keys max(first_key, p - window + 1) .. p,
 * without a window (0) first_key .. p. */
typedef struct kern_attn_fold {
    kern_kv kv;
    int32_t n_head; /* local query heads; head h reads KV head h / (n_head / n_kv_head) */
    float scale;
    int32_t window; /* 0: none */
    kern_mem q;     /* f32 [token][n_head][head_dim] */
    int32_t n_span;
    kern_mem spans;  /* kern_span [n_span] */
    kern_mem tables; /* i32: page tables */
    int32_t kv_shards, shard0;
    const tree_prog *tree;
    int32_t state_q0;
    kern_mem state;
} kern_attn_fold;

/* Finishes tokens [0, n_tok): node k of token t, head h at node[k] + (t * n_head + h) *
 * node_stride[k] bytes; merges them by `tree` (one emit), divides by l once, writes out[t][h *
 * value_dim + d]. A sink is a score without a value: at the root, before the division, the state is
 * merged as in N3 with (o = 0, m = sink[h], l = 1). */
typedef struct kern_attn_finish {
    int32_t n_tok, n_head, value_dim;
    kern_mem sinks; /* f32 [n_head] or 0 */
    const tree_prog *tree;
    const kern_mem *node;      /* [tree->n_push] */
    const size_t *node_stride; /* [tree->n_push] bytes */
    int32_t row0;              /* first row of out */
    kern_act out;              /* k = n_head * value_dim */
} kern_attn_finish;

/* ---- the table ---- */
typedef struct kern_dev kern_dev; /* one per rank: its queue, threads and scratch */

typedef struct kern_limits {
    int32_t max_rows;     /* token rows */
    int32_t max_in;       /* widest k */
    int32_t max_head_dim; /* larger of head_dim and value_dim */
    int32_t max_group;    /* query heads per KV head */
} kern_limits;

typedef struct kern_table {
    const char *device; /* "cpu" */
    const char *isa;    /* "scalar", "avx2", "avx512", "avx512vnni" */
    kern_profile profile;

    /* n_thread threads (the caller's included) serve this rank; scratch is reserved here. */
    weft_status (*open)(int32_t n_thread, const kern_limits *limits, kern_dev **out,
                        weft_error *err);
    void (*close)(kern_dev *dev);
    size_t (*scratch_bytes)(int32_t n_thread, const kern_limits *limits);

    /* Memory: 64-byte aligned (2 MiB and huge pages when large). Contents are NaN in debug builds,
     * zero otherwise. */
    weft_status (*reserve)(size_t bytes, kern_mem *out, weft_error *err);
    void (*release)(kern_mem mem, size_t bytes);
    void (*upload)(kern_dev *dev, kern_mem dst, const void *src, size_t bytes);
    void (*download)(kern_dev *dev, void *dst, kern_mem src, size_t bytes);
    void (*fill)(kern_dev *dev, kern_mem dst, uint8_t byte, size_t bytes);
    void (*drain)(kern_dev *dev);

    /* Work of the host: f(arg, thread, n_thread) on every thread that serves the rank; returns when
     * all have. */
    void (*host_run)(kern_dev *dev, void (*f)(void *arg, int32_t thread, int32_t n_thread),
                     void *arg);
    /* The sampler's loops, on host memory: out[i] = exact_exp(x[i] - most), no x[i] above `most`, which
     * is finite; noise_bits(row, first + i). */
    void (*exp_below)(const double *x, double most, int32_t n, double *out);
    void (*noise)(noise_row row, int32_t first, int32_t n, uint64_t *out);

    /* Bytes of a packed weight; packs rows [row0, row0 + n_row) (multiples of the panel but at the
     * end) of plain `src` into w->data. */
    size_t (*packed_bytes)(dtype type, int32_t n_out, int32_t n_in);
    void (*pack)(const void *src, int32_t row0, int32_t n_row, kern_weight *w);

    void (*embed)(kern_dev *dev, const kern_embed *p);
    void (*linear)(kern_dev *dev, const kern_linear *p);
    void (*swiglu)(kern_dev *dev, const kern_swiglu *p);
    void (*glu)(kern_dev *dev, const kern_glu *p);
    void (*act_make)(kern_dev *dev, const kern_act_make *p);
    void (*reduce_norm)(kern_dev *dev, const kern_reduce_norm *p);
    void (*softcap)(kern_dev *dev, const kern_softcap *p);
    void (*route)(kern_dev *dev, const kern_route *p);
    void (*experts)(kern_dev *dev, const kern_experts *p);
    void (*dispatch)(kern_dev *dev, const kern_dispatch *p);
    void (*arrive)(kern_dev *dev, const kern_arrive *p);
    void (*moe_sum)(kern_dev *dev, const kern_moe_sum *p);
    void (*pick)(kern_dev *dev, const kern_pick *p);
    void (*qk_rope)(kern_dev *dev, const kern_qk_rope *p);
    void (*mla_rope)(kern_dev *dev, const kern_mla_rope *p);
    void (*kv_store)(kern_dev *dev, const kern_kv_store *p);
    void (*kv_pack)(kern_dev *dev, const kern_kv_pack *p);
    void (*attn_fold)(kern_dev *dev, const kern_attn_fold *p);
    void (*attn_finish)(kern_dev *dev, const kern_attn_finish *p);
} kern_table;

/* The CPU table for an ISA level: "auto" = the best of this machine; "scalar", "avx2", "avx512",
 * "avx512vnni" force one; NULL = what the environment variable WEFT_ISA says, "auto" when it is
 * unset or empty. WEFT_ERR_SETUP names a level that is unknown or that this machine lacks. *out is
 * static. */
weft_status kern_cpu_table(const char *isa, const kern_table **out, weft_error *err);

/* RoPE table, exact profile: scale * cos and scale * sin of pos * freq[i], in double, rounded to f32
 * once. No libm. freq: [n_pair]; out: f32 [n_pos][n_pair][2]. Writes positions [pos0, pos0 + n_pos). */
void kern_rope_table(const double *freq, int32_t n_pair, double scale, int32_t pos0, int32_t n_pos,
                     float *out);

#endif
