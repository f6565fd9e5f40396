/* The plan for a terminal. */
#include <string.h>

#include "cli/plan.h"

enum { NAME_BYTES = 32, HELD_BYTES = 64, BYTES_TEXT = 24, PAGE_LINES = 4, NO_RANK = 255 };

typedef struct printer {
    FILE *f;
    const explain *e;
    int32_t width;
    bool color;
} printer;

/* ---- pieces ---- */

/* "812 B", "30.0 KiB", "1.5 GiB" */
static const char *bytes_text(int64_t n, char out[BYTES_TEXT]) {
    static const char *const unit[] = {"KiB", "MiB", "GiB", "TiB"};
    if (n < 1024) {
        snprintf(out, BYTES_TEXT, "%lld B", (long long)n);
        return out;
    }
    double v = (double)n / 1024;
    size_t u = 0;
    for (; v >= 1024 && u + 1 < sizeof unit / sizeof *unit; u++)
        v /= 1024;
    snprintf(out, BYTES_TEXT, "%.1f %s", v, unit[u]);
    return out;
}

static void title(const printer *p, const char *text) {
    fprintf(p->f, "\n%s%s%s\n", p->color ? "\033[1m" : "", text, p->color ? "\033[0m" : "");
}

/* Name and size, the sizes under each other. */
static void size_line(const printer *p, const char *name, int64_t bytes, const char *note) {
    char t[BYTES_TEXT];
    fprintf(p->f, "  %-34s %12s%s%s\n", name, bytes_text(bytes, t), *note ? "  " : "", note);
}

/* Items side by side, broken at the width; continued lines start at `indent`. */
static void wrap_item(const printer *p, int32_t *column, int32_t indent, const char *text) {
    int32_t n = (int32_t)strlen(text);
    if (*column > indent && *column + n + 2 > p->width) {
        fprintf(p->f, "\n%*s", indent, "");
        *column = indent;
    } else if (*column > indent) {
        fputs("  ", p->f);
        *column += 2;
    }
    fputs(text, p->f);
    *column += n;
}

/* n cells, the digit of each cell's rank, a dot for NO_RANK. */
static void cells(const printer *p, const uint8_t *rank, int32_t n) {
    static const int32_t code[] = {36, 33, 35, 32, 34, 31, 96, 93};
    for (int32_t i = 0; i < n; i++) {
        if (p->color && (i == 0 || rank[i] != rank[i - 1]))
            fprintf(p->f, "\033[%dm", code[rank[i] % 8]);
        fputc(rank[i] == NO_RANK ? '.' : plan_digit(rank[i]), p->f);
    }
    if (p->color && n > 0)
        fputs("\033[0m", p->f);
}

/* Column where the bars begin: behind the longest "  12 decode 500  ". */
static int32_t bar_column(const explain *e) {
    int32_t most = 0;
    for (int32_t i = 0; i < e->n_request; i++) {
        char name[NAME_BYTES];
        plan_request_name(&e->request[i], name, sizeof name);
        most = (int32_t)strlen(name) > most ? (int32_t)strlen(name) : most;
    }
    return most + 8;
}

static void bar_name(const printer *p, int32_t i, int32_t column) {
    char name[NAME_BYTES];
    plan_request_name(&p->e->request[i], name, sizeof name);
    fprintf(p->f, "  %3d %-*s", i, column - 6, name);
}

/* ---- set-up ---- */

static void print_head(const printer *p, const char *model) {
    const engine_setup *s = &p->e->setup;
    for (const char *c = model; *c; c++)
        fputc((unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c, p->f);
    fprintf(p->f, "\n%s on %s\n", s->identity, s->k->isa);
    fprintf(p->f, "tp %d x pcp %d = %d rank%s, dcp %d, %d thread%s\n", s->sizes.tp, s->sizes.pcp,
            s->world, s->world == 1 ? "" : "s", s->sizes.dcp, s->p.n_thread,
            s->p.n_thread == 1 ? "" : "s");
}

static void print_experts(const printer *p, const explain_rank *r) {
    char text[NAME_BYTES] = "none";
    if (r->n_expert > 0)
        snprintf(text, sizeof text, "%d-%d", r->expert0, r->expert0 + r->n_expert - 1);
    fprintf(p->f, "%8s ", text);
}

/* "4-7", or "4-7/1-1": of layers with most, of layers with fewer. */
static void kv_heads_text(const printer *p, const topo *t, char *out, size_t cap) {
    int32_t tp = t->sizes.tp, fewer = topo_fewer_kv_heads(&p->e->setup.model);
    int n = snprintf(out, cap, "%d-%d", t->kv_head0, t->kv_head0 + t->n_kv_head - 1);
    int32_t first = topo_kv_head0(fewer, tp, t->t);
    if (fewer > 0)
        snprintf(out + n, cap - (size_t)n, "/%d-%d", first, first + topo_kv_heads(fewer, tp) - 1);
}

/* Groups are numbered by their first ranks. */
static int32_t group_number(const explain *e, const topo *t) {
    int32_t n = 0;
    for (int32_t i = 0; i < t->group_list[COMM_DCP][0]; i++)
        n += e->rank[i].topo.dcp_rank == 0;
    return n;
}

static void print_dcp_groups(const printer *p) {
    for (int32_t i = 0; i < p->e->setup.world && p->e->setup.sizes.dcp > 1; i++) {
        const topo *t = &p->e->rank[i].topo;
        if (t->dcp_rank != 0)
            continue;
        int32_t column = fprintf(p->f, "  DCP group %d: ranks ", group_number(p->e, t));
        for (int32_t m = 0, indent = column; m < t->sizes.dcp; m++) {
            char rank[NAME_BYTES];
            snprintf(rank, sizeof rank, "%d", t->group_list[COMM_DCP][m]);
            wrap_item(p, &column, indent, rank);
        }
        fputc('\n', p->f);
    }
}

static void print_ranks(const printer *p) {
    title(p, "Ranks");
    bool whole = p->e->setup.p.expert_parallel;
    fprintf(p->f, "  rank  PCP   TP  threads    heads  KV heads  %s shards  DCP rank  group\n",
            whole ? " experts " : "");
    for (int32_t i = 0; i < p->e->setup.world; i++) {
        const explain_rank *r = &p->e->rank[i];
        const topo *t = &r->topo;
        char heads[NAME_BYTES], kv[NAME_BYTES], shards[NAME_BYTES];
        snprintf(heads, sizeof heads, "%d-%d", t->head0, t->head0 + t->n_head - 1);
        kv_heads_text(p, t, kv, sizeof kv);
        snprintf(shards, sizeof shards, "%d-%d", t->shard_cut[t->dcp_rank],
                 t->shard_cut[t->dcp_rank + 1] - 1);
        fprintf(p->f, "  %4d %4d %4d %8d %8s %9s ", i, t->c, t->t, r->n_thread, heads, kv);
        if (whole)
            print_experts(p, r);
        fprintf(p->f, "%8s %9d %6d\n", shards, t->dcp_rank, group_number(p->e, t));
    }
    print_dcp_groups(p);
}

static void print_memory(const printer *p) {
    const explain *e = p->e;
    const explain_rank *zero = &e->rank[0];
    int64_t ranks = 0, scratch = 0, host = 0, kv = (int64_t)e->setup.p.kv_bytes;
    for (int32_t i = 0; i < e->setup.world; i++) {
        ranks += (int64_t)e->rank[i].memory.bytes;
        scratch += (int64_t)e->rank[i].scratch_bytes;
        host += (int64_t)e->rank[i].host_bytes;
    }
    title(p, "Memory of rank 0");
    for (int32_t i = 0; i < zero->memory.n; i++)
        if (zero->memory.item[i].bytes > 0)
            size_line(p, zero->memory.item[i].name, (int64_t)zero->memory.item[i].bytes, "");
    size_line(p, "total", (int64_t)zero->memory.bytes, "");
    title(p, "Memory of the process");
    char note[64];
    snprintf(note, sizeof note, "%d rank%s", e->setup.world, e->setup.world == 1 ? "" : "s");
    size_line(p, "weights, packed", (int64_t)e->weight_bytes, "once, all ranks read them");
    size_line(p, "KV cache", kv, note);
    size_line(p, "buffers", ranks - kv, note);
    size_line(p, "scratch of the kernels' threads", scratch, note);
    size_line(p, "plans, results, logits on the host", host, note);
    size_line(p, "total", (int64_t)e->weight_bytes + ranks + scratch + host, "");
}

/* "ranks 0-2 80.4 MiB ranks 3-5 80.0 MiB": ranks that follow each other and read the same stand
 * together. */
static void print_by_rank(const printer *p, const char *what, int64_t (*of)(const explain_rank *)) {
    int32_t column = fprintf(p->f, "  %s: ", what), indent = column;
    for (int32_t i = 0, end; i < p->e->setup.world; i = end) {
        char size[BYTES_TEXT], other[BYTES_TEXT], item[64];
        bytes_text(of(&p->e->rank[i]), size);
        for (end = i + 1; end < p->e->setup.world; end++)
            if (strcmp(bytes_text(of(&p->e->rank[end]), other), size) != 0)
                break;
        if (end - i == 1)
            snprintf(item, sizeof item, "rank %d %s", i, size);
        else
            snprintf(item, sizeof item, "ranks %d-%d %s", i, end - 1, size);
        wrap_item(p, &column, indent, item);
        indent = 4;
    }
    fputc('\n', p->f);
}

static int64_t memory_of(const explain_rank *r) {
    return (int64_t)r->memory.bytes;
}

/* Pages are given back, or layers differ in them. */
static bool is_windowed(const explain *e) {
    return e->setup.caps.n_group > 1 || e->setup.caps.window[0] > 0;
}

static void window_text(int32_t window, char out[NAME_BYTES]) {
    if (window > 0)
        snprintf(out, NAME_BYTES, "%d", window);
    else
        snprintf(out, NAME_BYTES, "all");
}

/* One line per group of layers. The pages of the longest request are those of the fullest rank. */
static void print_groups(const printer *p) {
    const engine_setup *s = &p->e->setup;
    fprintf(p->f, "  %8s %8s %14s %12s %20s\n", "window", "layers", "bytes a token", "pages a rank",
            "of the longest");
    for (int32_t g = 0; g < s->caps.n_group; g++) {
        char window[NAME_BYTES];
        window_text(s->caps.window[g], window);
        fprintf(p->f, "  %8s %8d %14lld %12d %20d\n", window, model_group_layers(p->e->desc, g),
                (long long)(s->page_bytes[g] / (size_t)s->caps.page_tokens), s->kv_pages[g],
                s->longest[g]);
    }
}

/* "12+5": pages that a request holds, group by group. */
static void held_text(const explain *e, const explain_request *r, char *out, size_t cap) {
    int n = 0;
    for (int32_t g = 0; g < e->setup.caps.n_group; g++)
        n += snprintf(out + n, cap - (size_t)n, "%s%d", g ? "+" : "", r->held[g]);
}

static void print_cache(const printer *p) {
    const explain *e = p->e;
    int32_t dcp = e->setup.sizes.dcp;
    title(p, "Cache");
    fprintf(p->f, "  %d pages of %d tokens per rank; a DCP group of %d rank%s holds %lld tokens\n",
            e->setup.p.kv_pages, e->setup.caps.page_tokens, dcp, dcp == 1 ? "" : "s",
            (long long)e->cache_tokens);
    fprintf(p->f, "  longest request: %d tokens, prompt and answer\n", e->longest);
    if (is_windowed(e))
        print_groups(p);
}

/* ---- the step ---- */

static void print_requests(const printer *p) {
    const explain *e = p->e;
    bool spread = e->setup.sizes.dcp > 1;
    title(p, "One step");
    fprintf(p->f, "  %d of %d request%s, %d of at most %d tokens\n", e->n_run, e->n_request,
            e->n_request == 1 ? "" : "s", e->n_tok, e->setup.p.max_num_batched_tokens);
    int32_t column = bar_column(e);
    fprintf(p->f, "    # %-*s %-14s %5s", column - 6, "request", "positions", "pages");
    fputs(spread ? "  exchange   pass-Q*  pass-KV*\n" : "\n", p->f);
    for (int32_t i = 0; i < e->n_request; i++) {
        const explain_request *r = &e->request[i];
        char where[NAME_BYTES], held[HELD_BYTES], q[BYTES_TEXT], kv[BYTES_TEXT];
        bar_name(p, i, column);
        if (r->n_new == 0) {
            fprintf(p->f, " waits: %s\n", r->limit);
            continue;
        }
        snprintf(where, sizeof where, "[%d,%d)", r->start, r->start + r->n_new);
        fprintf(p->f, " %-14s %5d", where, r->n_page);
        if (spread)
            fprintf(p->f, "  %-8s %9s %9s", r->pass_kv ? "pass-KV" : "pass-Q",
                    bytes_text(r->q_bytes, q), bytes_text(r->kv_bytes, kv));
        fputc('\n', p->f);
        if (is_windowed(e)) {
            held_text(e, r, held, sizeof held);
            fprintf(p->f, "      holds %s pages, group by group\n", held);
        }
        if (r->limit)
            fprintf(p->f, "      %d of its %d tokens: cut by %s\n", r->n_new, r->size, r->limit);
    }
    static const char *const rule[] = {"the smaller is taken", "pass-Q is forced",
                                       "pass-KV is forced"};
    if (spread)
        fprintf(p->f, "  * bytes per layer and rank that the rule compares; %s\n",
                rule[e->setup.p.exchange]);
}

/* New tokens in at most `n` cells, each with the owner of its middle token. */
static int32_t scale_owners(const explain_request *r, uint8_t *out, int32_t n) {
    n = r->n_new < n ? r->n_new : n;
    for (int32_t i = 0; i < n; i++)
        out[i] = r->owner[(2 * (int64_t)i + 1) * r->n_new / (2 * (int64_t)n)];
    return n;
}

static void print_bars(const printer *p) {
    const explain *e = p->e;
    uint8_t cell[128];
    int32_t column = bar_column(e), room = p->width - column;
    bool scaled = false;
    room = room < (int32_t)sizeof cell ? room : (int32_t)sizeof cell;
    for (int32_t i = 0; i < e->n_run; i++)
        scaled |= e->request[i].n_new > room;
    title(p, "Rows: which PCP rank owns the new tokens");
    for (int32_t i = 0; i < e->n_run; i++) {
        bar_name(p, i, column);
        cells(p, cell, scale_owners(&e->request[i], cell, room));
        fputc('\n', p->f);
    }
    if (scaled)
        fprintf(p->f, "  (bars of %d cells are scaled; the lists below are exact)\n", room);
    for (int32_t i = 0; i < e->setup.world; i++) {
        const explain_rank *r = &e->rank[i];
        if (r->topo.t != 0)
            continue;
        char item[64];
        int32_t at = fprintf(p->f, "  PCP rank %d: %d token%s: ", r->topo.c, r->n_tok,
                             r->n_tok == 1 ? "" : "s");
        for (int32_t k = 0, indent = at; k < r->n_row; k++, indent = 4) {
            const batch_row *row = &r->row[k];
            snprintf(item, sizeof item, "#%d [%d,%d)", row->req, row->start, row->start + row->len);
            wrap_item(p, &at, indent, item);
        }
        fputs(r->n_row ? "\n" : "none\n", p->f);
    }
}

/* The owners repeat with period V, so a few lines say all. Of the group that keeps most; what it
 * has given back is left out, up to the period that holds its first page. */
static void print_pages(const printer *p) {
    const explain *e = p->e;
    const topo *t = &e->rank[0].topo;
    int32_t column = bar_column(e);
    int32_t room = (p->width - column) / t->kv_shards * t->kv_shards;
    uint8_t cell[128];
    char text[96];
    snprintf(text, sizeof text, "Pages: which DCP rank holds each %d tokens",
             e->setup.caps.page_tokens);
    title(p, text);
    for (int32_t i = 0; i < e->n_run; i++) {
        int32_t n = e->request[i].n_page, first = e->request[i].first_page[0];
        int32_t at = first / t->kv_shards * t->kv_shards;
        for (int32_t line = 0; at < n && line < PAGE_LINES; line++) {
            int32_t k = 0;
            for (; k < room && at < n; k++, at++)
                cell[k] = at < first ? NO_RANK : (uint8_t)topo_page_owner(t, at);
            if (line == 0)
                bar_name(p, i, column);
            else
                fprintf(p->f, "%*s", column, "");
            cells(p, cell, k);
            fputc('\n', p->f);
        }
        if (at < n)
            fprintf(p->f, "%*s... and %d more, repeating every %d pages\n", column, "", n - at,
                    t->kv_shards);
    }
}

/* ---- bytes ---- */

/* Of moves [lo, hi): the rank that sends most, and all ranks; divided by `parts`. */
static void move_line(const printer *p, const char *name, int32_t lo, int32_t hi, int64_t parts) {
    int64_t most = 0, all = 0;
    for (int32_t i = 0; i < p->e->setup.world; i++) {
        int64_t n = 0;
        for (int32_t k = lo; k < hi; k++)
            n += p->e->rank[i].sent[k];
        most = n > most ? n : most;
        all += n;
    }
    char a[BYTES_TEXT], b[BYTES_TEXT];
    if (all > 0)
        fprintf(p->f, "  %-34s %12s %12s\n", name, bytes_text(most / parts, a),
                bytes_text(all / parts, b));
}

static void print_moves(const printer *p) {
    int32_t layers = p->e->desc->config.n_layer;
    title(p, "Bytes sent to other ranks");
    if (p->e->setup.world == 1) {
        fputs("  none: there is one rank\n", p->f);
        return;
    }
    fprintf(p->f, "  %-34s %12s %12s\n", "per layer", "busiest rank", "all ranks");
    for (int32_t i = 0; i < EXPLAIN_N_LAYER_MOVE; i++)
        move_line(p, explain_move_text[i], i, i + 1, layers);
    char text[48];
    snprintf(text, sizeof text, "all %d layers", layers);
    move_line(p, text, 0, EXPLAIN_N_LAYER_MOVE, 1);
    for (int32_t i = EXPLAIN_N_LAYER_MOVE; i < EXPLAIN_N_MOVE; i++)
        move_line(p, explain_move_text[i], i, i + 1, 1);
    move_line(p, "the step", 0, EXPLAIN_N_MOVE, 1);
    print_by_rank(p, "the step by rank", explain_sent);
    if (p->e->setup.p.expert_parallel)
        fputs("  to experts: as if the rows of each rank chose all experts in turn\n", p->f);
}

/* ---- work ---- */

static void ops_line(const printer *p, const char *name, int64_t n) {
    char text[BYTES_TEXT];
    snprintf(text, sizeof text, "%.3f GOP", 1e-9 * (double)n);
    if (n > 0)
        fprintf(p->f, "  %-34s %12s\n", name, text);
}

static void print_work(const printer *p) {
    const explain_work *w = &p->e->work;
    title(p, "Work of the step, all ranks");
    ops_line(p, "linear layers, 4-bit dots", w->linear_ops[KERN_PEAK_DOT4]);
    ops_line(p, "linear layers, 8-bit dots", w->linear_ops[KERN_PEAK_DOT8]);
    ops_line(p, "linear layers, fp32", w->linear_ops[KERN_PEAK_FMA]);
    ops_line(p, "attention, fp32", w->attn_ops);
    size_line(p, "weights read", w->weight_bytes, "");
    size_line(p, "cache pages read", w->kv_bytes, "");
}

void plan_print_text(FILE *f, const explain *e, const char *model, int32_t width, bool color) {
    const printer p = {f, e, width, color};
    print_head(&p, model);
    print_ranks(&p);
    print_memory(&p);
    if (e->setup.world > 1)
        print_by_rank(&p, "caches and buffers", memory_of);
    print_cache(&p);
    print_requests(&p);
    print_bars(&p);
    print_pages(&p);
    print_work(&p);
    print_moves(&p);
}
