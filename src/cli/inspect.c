/* weft inspect: what a model file holds, and what weft would do with each tensor. Opening it
 * validates everything that running it needs. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/common.h"
#include "cli/json.h"
#include "kern/kern.h"
#include "model/desc.h"
#include "tok/tok.h"

enum { VALUE_BYTES = 512, USE_BYTES = 96 };

typedef struct values {
    cli_model_values model;
    bool json;
} values;

static const option own_options[] = {
    {.names = "--json",
     .type = OPTION_FLAG,
     .at = offsetof(values, json),
     .help = "prints one JSON object"},
    {.names = NULL},
};

static const option_section sections[] = {
    {"Model", cli_model_options, offsetof(values, model)},
    {"Inspect", own_options, 0},
    {NULL, NULL, 0},
};

/* What becomes of a tensor when the model is run. */
static void describe_use(const model_desc *d, const kern_table *k, const load_tensor *t, bool brief,
                         char *out) {
    const char *use = model_desc_use(d, t);
    const char *type = dtype_find(t->ggml_type) ? dtype_find(t->ggml_type)->name : "?";
    char packed[USE_BYTES / 2];
    snprintf(packed, sizeof packed, "packed %s, %d-output panels", type, k->profile.panel);
    if (brief)
        snprintf(out, USE_BYTES, "%s", use);
    else if (strcmp(use, "packed") == 0)
        snprintf(out, USE_BYTES, "%s", packed);
    else if (strcmp(use, "vector") == 0)
        snprintf(out, USE_BYTES, "%s weights of a norm, or a bias", type);
    else if (strncmp(use, "rows", 4) == 0)
        snprintf(out, USE_BYTES, "rows read from the file%s%s", use[4] ? "; output: " : "",
                 use[4] ? packed : "");
    else
        snprintf(out, USE_BYTES, "%s", use);
}

/* ---- text ---- */

/* Metadata is somebody else's text: control characters would reach the terminal. */
static void print_plain(const char *text) {
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '\n') {
            fputs("\\n", stdout);
        } else if (c < 0x20 || c == 0x7f) {
            printf("\\x%02x", c);
        } else {
            putchar(c);
        }
    }
}

static bool same_heads(const model_layer *a, const model_layer *b) {
    return a->n_kv_head == b->n_kv_head && a->head_dim == b->head_dim && a->v_is_k == b->v_is_k;
}

/* A line for each kind of heads, in the order of layers. */
static void print_heads(const model_desc *d) {
    int32_t n_layer = d->config.n_layer;
    for (int32_t i = 0; i < n_layer; i++) {
        const model_layer *l = &d->layer[i];
        int32_t first = 0, n = 0;
        while (!same_heads(&d->layer[first], l))
            first++;
        for (int32_t k = 0; k < n_layer; k++)
            n += same_heads(&d->layer[k], l);
        if (first < i)
            continue;
        printf("%-13s %d query, %d KV, of %d", i == 0 ? "heads" : "", l->n_head, l->n_kv_head,
               l->head_dim);
        if (n < n_layer)
            printf(", in %d layer%s", n, n == 1 ? "" : "s");
        puts(l->v_is_k ? ", V from K's matrix" : "");
    }
}

static void print_experts(const model_moe *m) {
    if (m->n_expert > 0)
        printf("experts       %d, %d for a token, ffn %d\n", m->n_expert, m->n_used, m->ffn);
}

/* Columns to keep to; files and pipes get whole texts. */
static int columns_to_keep(void) {
    return isatty(STDOUT_FILENO) == 1 ? cli_width(stdout) : INT_MAX;
}

/* Cuts a text that takes more than `room` columns; three bytes behind its end are there to write
 * to. */
static void cut(char *text, int room) {
    char *end = text; /* the last place where "..." fits */
    int n = 0;
    for (char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if ((c & 0xC0) == 0x80)
            continue; /* of the character before */
        end = n <= room - 3 ? p : end;
        n += c < 0x20 || c == 0x7f ? 4 : 1;
        if (n > room) {
            memcpy(end, "...", 4);
            return;
        }
    }
}

static void print_summary(const char *path, const model_desc *d) {
    const model_config *c = &d->config;
    printf("file          %s, %" PRId64 " bytes\n", path, load_file_bytes(d->file));
    printf("model         ");
    print_plain(c->name);
    printf(", %s\n", c->architecture);
    printf("layers        %d of width %d, ffn %d\n", c->n_layer, c->hidden, c->ffn);
    print_experts(&c->moe);
    print_heads(d);
    printf("vocabulary    %d tokens%s\n", c->n_vocab, c->tied_output ? ", output tied" : "");
    printf("context       %d\n", c->context_length);
}

static void print_metadata(const load_model *m) {
    int width = 0, keep = columns_to_keep();
    for (int32_t i = 0; i < load_key_count(m); i++) {
        int n = (int)strlen(load_key_at(m, i));
        width = n > width && n <= 48 ? n : width;
    }
    puts("\nmetadata");
    for (int32_t i = 0; i < load_key_count(m); i++) {
        char value[VALUE_BYTES + 3];
        int n = (int)strlen(load_key_at(m, i)), column = 2 + (n > width ? n : width) + 2;
        load_value_text(m, i, value, VALUE_BYTES);
        cut(value, keep - column);
        fputs("  ", stdout);
        print_plain(load_key_at(m, i));
        printf("%*s", column - 2 - n, "");
        print_plain(value);
        putchar('\n');
    }
}

static void shape_text(const load_tensor *t, char *out, size_t cap) {
    size_t n = 0;
    for (int32_t i = 0; i < t->n_dim && n < cap; i++) {
        n += (size_t)snprintf(out + n, cap - n, "%s%" PRId64, i ? " x " : "", t->dim[i]);
    }
}

/* Digits of the largest, or the width of the head. */
static int number_width(int64_t largest, const char *head) {
    int n = snprintf(NULL, 0, "%" PRId64, largest), least = (int)strlen(head);
    return n > least ? n : least;
}

typedef struct columns {
    int name, shape, bytes, offset;
    /* A terminal that is too narrow for the whole text of the last column; names longer than theirs
     * stand on a line of their own then. */
    bool brief;
} columns;

static columns columns_of(const model_desc *d, const kern_table *k) {
    const load_model *m = d->file;
    static const int type = 5, between = 5 * 2, brief_use = 15;
    int64_t bytes = 0, offset = 0;
    int use_width = 0;
    columns c = {.name = 6, .shape = 5};
    for (int32_t i = 0; i < load_tensor_count(m); i++) {
        const load_tensor *t = load_tensor_at(m, i);
        char shape[96] = "", use[USE_BYTES];
        shape_text(t, shape, sizeof shape);
        describe_use(d, k, t, false, use);
        int n = (int)strlen(t->name), shape_n = (int)strlen(shape), use_n = (int)strlen(use);
        c.name = n > c.name && n <= 40 ? n : c.name;
        c.shape = shape_n > c.shape ? shape_n : c.shape;
        use_width = use_n > use_width ? use_n : use_width;
        bytes = (int64_t)t->bytes > bytes ? (int64_t)t->bytes : bytes;
        offset = t->offset > offset ? t->offset : offset;
    }
    c.bytes = number_width(bytes, "bytes");
    c.offset = number_width(offset, "offset");
    int left = columns_to_keep() - (type + c.shape + c.bytes + c.offset + between);
    c.brief = c.name + use_width > left;
    if (c.brief && c.name + brief_use > left)
        c.name = left - brief_use > 6 ? left - brief_use : 6;
    return c;
}

static void print_tensors(const model_desc *d, const kern_table *k) {
    const load_model *m = d->file;
    columns c = columns_of(d, k);
    printf("\n%-*s  %-5s  %-*s  %*s  %*s  %s\n", c.name, "tensor", "type", c.shape, "shape",
           c.bytes, "bytes", c.offset, "offset", c.brief ? "use" : "what weft does with it");
    for (int32_t i = 0; i < load_tensor_count(m); i++) {
        const load_tensor *t = load_tensor_at(m, i);
        int n = (int)strlen(t->name);
        char shape[96] = "", use[USE_BYTES];
        shape_text(t, shape, sizeof shape);
        describe_use(d, k, t, c.brief, use);
        print_plain(t->name);
        bool apart = c.brief && n > c.name;
        printf("%s%*s  %-5s  %-*s  %*zu  %*" PRId64 "  %s\n", apart ? "\n" : "",
               apart        ? c.name
               : c.name > n ? c.name - n
                            : 0,
               "", t->type_name, c.shape, shape, c.bytes, t->bytes, c.offset, t->offset, use);
    }
}

/* ---- JSON ---- */

static json_t *metadata_json(const load_model *m) {
    json_t *out = json_object();
    for (int32_t i = 0; i < load_key_count(m); i++) {
        char value[VALUE_BYTES];
        load_value_text(m, i, value, sizeof value);
        json_object_set_new(out, load_key_at(m, i), cli_json_text(value, strlen(value)));
    }
    return out;
}

static json_t *tensors_json(const model_desc *d, const kern_table *k) {
    const load_model *m = d->file;
    json_t *out = json_array();
    for (int32_t i = 0; i < load_tensor_count(m); i++) {
        const load_tensor *t = load_tensor_at(m, i);
        char use[USE_BYTES];
        describe_use(d, k, t, false, use);
        json_t *shape = json_array();
        for (int32_t axis = 0; axis < t->n_dim; axis++) {
            json_array_append_new(shape, json_integer(t->dim[axis]));
        }
        json_array_append_new(out,
                              json_pack("{s:o, s:s, s:o, s:I, s:I, s:s}", "name",
                                        cli_json_text(t->name, strlen(t->name)), "type",
                                        t->type_name, "shape", shape, "bytes", (json_int_t)t->bytes,
                                        "offset", (json_int_t)t->offset, "use", use));
    }
    return out;
}

static json_t *layers_json(const model_desc *d) {
    json_t *out = json_array();
    for (int32_t i = 0; i < d->config.n_layer; i++) {
        const model_layer *l = &d->layer[i];
        json_array_append_new(out, json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:b, s:i}",
                                             "attention", l->latent ? "mla" : "gqa", "kv_heads",
                                             l->n_kv_head, "head_dim", l->head_dim, "value_dim",
                                             l->value_dim, "window", l->window, "kv_from",
                                             l->kv_from, "v_is_k", l->v_is_k, "ffn", l->ffn));
    }
    return out;
}

static json_t *config_json(const model_desc *d) {
    const model_config *c = &d->config;
    return json_pack(
        "{s:s, s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:b, s:i, s:i, s:o}",
        "architecture", c->architecture, "name", cli_json_text(c->name, strlen(c->name)), "layers",
        c->n_layer, "hidden", c->hidden, "ffn", c->ffn, "heads", c->n_head, "kv_heads",
        c->n_kv_head, "head_dim", c->head_dim, "vocabulary", c->n_vocab, "context_length",
        c->context_length, "rms_eps", (double)c->rms_eps, "tied_output", c->tied_output, "experts",
        c->moe.n_expert, "experts_used", c->moe.n_used, "layer", layers_json(d));
}

static int run(const void *values_, const option_list *args) {
    (void)args;
    const values *v = values_;
    model_desc *d = NULL;
    tok *t = NULL;
    const kern_table *k = NULL;
    weft_error err;
    int rc = 0;
    if (model_desc_load(v->model.path, &d, &err) != WEFT_OK ||
        tok_create(load_get_vocab(d->file), &t, &err) != WEFT_OK ||
        kern_cpu_table(NULL, &k, &err) != WEFT_OK) {
        rc = cli_fail(&err);
    } else if (v->json) {
        rc = cli_json_print(json_pack("{s:o, s:I, s:o, s:o, s:o}", "file",
                                      cli_json_text(v->model.path, strlen(v->model.path)), "bytes",
                                      (json_int_t)load_file_bytes(d->file), "config",
                                      config_json(d), "metadata", metadata_json(d->file), "tensors",
                                      tensors_json(d, k)));
    } else {
        print_summary(v->model.path, d);
        print_metadata(d->file);
        print_tensors(d, k);
    }
    tok_destroy(t);
    model_desc_close(d);
    return rc;
}

const cli_command cli_inspect = {
    .options = {.name = "inspect",
                .brief = "checks a model file and lists its metadata and tensors",
                .sections = sections,
                .values_bytes = sizeof(values)},
    .run = run,
};
