/* The plan as a standalone SVG: for each request its new tokens by PCP rank, and its pages by DCP
 * rank.
 *
 *   0  decode 64    0 |            |#         pages   01010
 *                   1 |            |
 *   1  prompt 100   0 |####    ####|
 *                   1 |    ####    |          pages   0101010
 */
#include <string.h>

#include "cli/plan.h"

enum {
    MARGIN = 24,
    NAME_W = 150, /* request names and lane digits */
    BAR_W = 520,
    GAP = 24,
    CELL = 11,
    PAGE_COLUMNS = 32,   /* two periods of 16 shards */
    LEGEND_COLUMNS = 10, /* ranks in a line of the legend */
    TOP = 80,
    LEGEND_H = 16,
    LEAST_H = 44, /* of a request */
    N_COLOR = 8
};

/* Colours that stay apart for colour-blind eyes, on white and on near black. */
static const char *const color[N_COLOR] = {"#3b82c4", "#e0892b", "#2fa37c", "#c95f9b",
                                           "#8a6fd1", "#b59a1f", "#4fb3d9", "#d65f4a"};

static void text(FILE *f, const char *class, int32_t x, int32_t y, const char *s) {
    fprintf(f, "<text class=\"%s\" x=\"%d\" y=\"%d\">", class, x, y);
    for (; *s; s++) {
        switch (*s) {
        case '&':
            fputs("&amp;", f);
            break;
        case '<':
            fputs("&lt;", f);
            break;
        default:
            fputc((unsigned char)*s < 0x20 || *s == 0x7f ? '?' : *s, f);
        }
    }
    fputs("</text>\n", f);
}

static void box(FILE *f, int32_t rank, double x, double y, double w, double h, const char *tip) {
    fprintf(f,
            "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"><title>%s"
            "</title></rect>\n",
            x, y, w, h, color[rank % N_COLOR], tip);
}

/* Height of a lane: thinner when there are many. */
static int32_t lane_height(const explain *e) {
    int32_t pcp = e->setup.sizes.pcp;
    return pcp <= 8 ? 14 : pcp <= 16 ? 11 : 5;
}

static int32_t page_lines(const explain_request *r) {
    return (r->n_page + PAGE_COLUMNS - 1) / PAGE_COLUMNS;
}

static int32_t block_height(const explain *e, const explain_request *r) {
    int32_t lanes = e->setup.sizes.pcp * lane_height(e), pages = page_lines(r) * (CELL + 1);
    int32_t h = r->n_new > 0 ? (lanes > pages ? lanes : pages) + 18 : 0;
    return h > LEAST_H ? h : LEAST_H;
}

static int32_t legend_lines(int32_t n) {
    return (n + LEGEND_COLUMNS - 1) / LEGEND_COLUMNS;
}

static void print_legend(FILE *f, const char *name, int32_t n, int32_t x, int32_t y) {
    text(f, "dim", x, y, name);
    for (int32_t i = 0; i < n; i++) {
        char label[2] = {plan_digit(i), '\0'};
        int32_t at = x + 62 + i % LEGEND_COLUMNS * 30, line = y + i / LEGEND_COLUMNS * LEGEND_H;
        box(f, i, at, line - CELL + 1, CELL, CELL, "");
        text(f, "dim", at + CELL + 4, line, label);
    }
}

/* Lanes of a request; all requests share the scale, a row is never thinner than 2. */
static void print_rows(FILE *f, const explain *e, int32_t i, int32_t y, double scale) {
    const explain_request *r = &e->request[i];
    int32_t h = lane_height(e), x0 = MARGIN + NAME_W;
    for (int32_t c = 0; c < e->setup.sizes.pcp; c++) {
        char digit[2] = {plan_digit(c), '\0'};
        fprintf(f, "<rect class=\"lane\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n", x0,
                y + c * h, BAR_W, h - 1);
        if (h > 10)
            text(f, "dim lane-name", x0 - 12, y + c * h + h - 3, digit);
        const explain_rank *k = &e->rank[c * e->setup.sizes.tp];
        for (int32_t j = 0; j < k->n_row; j++) {
            const batch_row *row = &k->row[j];
            if (row->req != i)
                continue;
            char tip[96];
            snprintf(tip, sizeof tip, "PCP rank %d: [%d,%d), %d tokens", c, row->start,
                     row->start + row->len, row->len);
            double w = row->len * scale;
            box(f, c, x0 + (row->start - r->start) * scale, y + c * h, w > 2 ? w : 2, h - 1, tip);
        }
    }
}

static void print_pages(FILE *f, const explain *e, int32_t i, int32_t y) {
    const explain_request *r = &e->request[i];
    int32_t x0 = MARGIN + NAME_W + BAR_W + GAP, tokens = e->setup.caps.page_tokens;
    for (int32_t p = 0; p < r->n_page; p++) {
        int32_t owner = topo_page_owner(&e->rank[0].topo, p);
        char tip[96];
        snprintf(tip, sizeof tip, "page %d, positions [%d,%d): DCP rank %d", p, p * tokens,
                 (p + 1) * tokens, owner);
        int32_t column = p % PAGE_COLUMNS, row = p / PAGE_COLUMNS;
        if (p < r->first_page[0]) {
            fprintf(f, "<rect class=\"lane\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
                    x0 + column * (CELL + 1), y + row * (CELL + 1), CELL, CELL);
            continue;
        }
        box(f, owner, x0 + column * (CELL + 1), y + row * (CELL + 1), CELL, CELL, tip);
        if (e->setup.sizes.dcp > N_COLOR) { /* colours repeat */
            char digit[2] = {plan_digit(owner), '\0'};
            text(f, "cell", x0 + column * (CELL + 1) + 3, y + row * (CELL + 1) + 9, digit);
        }
    }
}

static void print_request(FILE *f, const explain *e, int32_t i, int32_t y, double scale) {
    const explain_request *r = &e->request[i];
    char base[32], name[48], what[64];
    plan_request_name(r, base, sizeof base);
    snprintf(name, sizeof name, "%d  %s", i, base);
    text(f, "name", MARGIN, y + 11, name);
    if (r->n_new == 0) {
        snprintf(what, sizeof what, "waits: %s", r->limit);
        text(f, "dim", MARGIN + NAME_W, y + 11, what);
        return;
    }
    const char *exchange = r->pass_kv ? ", pass-KV" : ", pass-Q";
    snprintf(what, sizeof what, "%d new%s", r->n_new, e->setup.sizes.dcp > 1 ? exchange : "");
    text(f, "dim", MARGIN, y + 26, what);
    print_rows(f, e, i, y, scale);
    print_pages(f, e, i, y);
}

static const char style[] =
    "<style>"
    ".bg{fill:#ffffff}.lane{fill:#eef0f3}"
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#1c2128}"
    ".title{font-size:16px;font-weight:600}.name{font-weight:600}.lane-name{font-size:10px}.cell{"
    "font-size:9px;fill:#fff}.dim{"
    "fill:#5a6472}"
    "@media(prefers-color-scheme:dark){"
    ".bg{fill:#14171c}.lane{fill:#242a33}text{fill:#e8ebef}.cell{fill:#fff}.dim{fill:#9aa5b3}}"
    "</style>\n";

void plan_print_svg(FILE *f, const explain *e, const char *model) {
    const engine_setup *s = &e->setup;
    int32_t width = 2 * MARGIN + NAME_W + BAR_W + GAP + PAGE_COLUMNS * (CELL + 1);
    int32_t lines = legend_lines(s->sizes.pcp);
    int32_t dcp_lines = legend_lines(s->sizes.dcp), most = 1;
    int32_t top = TOP + (lines > dcp_lines ? lines : dcp_lines) * LEGEND_H;
    int32_t height = top + MARGIN;
    for (int32_t i = 0; i < e->n_request; i++) {
        height += block_height(e, &e->request[i]);
        most = e->request[i].n_new > most ? e->request[i].n_new : most;
    }
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 "
            "%d %d\">\n%s<rect class=\"bg\" width=\"100%%\" height=\"100%%\"/>\n",
            width, height, width, height, style);
    char line[256];
    snprintf(line, sizeof line, "%.100s: tp %d, pcp %d, dcp %d", model, s->sizes.tp, s->sizes.pcp,
             s->sizes.dcp);
    text(f, "title", MARGIN, 34, line);
    snprintf(line, sizeof line, "new tokens of one step (%d)", e->n_tok);
    text(f, "dim", MARGIN + NAME_W, 62, line);
    snprintf(line, sizeof line, "pages of %d tokens", s->caps.page_tokens);
    text(f, "dim", MARGIN + NAME_W + BAR_W + GAP, 62, line);
    print_legend(f, "PCP rank", s->sizes.pcp, MARGIN + NAME_W, TOP + 2);
    print_legend(f, "DCP rank", s->sizes.dcp, MARGIN + NAME_W + BAR_W + GAP, TOP + 2);
    for (int32_t i = 0, y = top; i < e->n_request; i++) {
        print_request(f, e, i, y, (double)BAR_W / most);
        y += block_height(e, &e->request[i]);
    }
    fputs("</svg>\n", f);
}
