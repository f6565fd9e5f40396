/* weft tokenize: text to ids and back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/common.h"
#include "cli/json.h"
#include "load/load.h"
#include "tok/tok.h"

typedef struct values {
    cli_model_values model;
    const char *text, *file;
    bool decode, special, json;
} values;

static const option own_options[] = {
    {.names = "-p --prompt",
     .type = OPTION_STRING,
     .at = offsetof(values, text),
     .metavar = "TEXT",
     .help = "the text, as it is"},
    {.names = "-f --file",
     .type = OPTION_STRING,
     .at = offsetof(values, file),
     .metavar = "FILE",
     .help = "reads the text, or the ids, from a file",
     .zero = "standard input"},
    {.names = "--special",
     .type = OPTION_FLAG,
     .at = offsetof(values, special),
     .help = "special tokens written in the text become their ids, and the model's BOS comes "
             "first where it asks for one",
     .excludes = "--decode"},
    {.names = "--decode",
     .type = OPTION_FLAG,
     .at = offsetof(values, decode),
     .help = "the input is ids, the output their text"},
    {.names = "--json",
     .type = OPTION_FLAG,
     .at = offsetof(values, json),
     .help = "prints one JSON object"},
    {.names = NULL},
};

static const option_section sections[] = {
    {"Model", cli_model_options, offsetof(values, model)},
    {"Tokenize", own_options, 0},
    {NULL, NULL, 0},
};

typedef struct opened {
    load_model *file;
    tok *tok;
} opened;

static weft_status open_tok(const char *path, opened *out, weft_error *err) {
    load_model *file = NULL;
    tok *t = NULL;
    weft_status st = load_open_vocab(path, &file, err);
    if (st != WEFT_OK) {
        return st;
    }
    st = tok_create(load_get_vocab(file), &t, err);
    if (st == WEFT_OK && !tok_has_text(t)) {
        st = cli_no_text("tokenize", path, err);
    }
    if (st != WEFT_OK) {
        tok_destroy(t);
        load_close(file);
        return st;
    }
    *out = (opened){file, t};
    return WEFT_OK;
}

/* ---- text to ids ---- */

static int print_ids(const values *v, const tok *t, const int32_t *ids, size_t n) {
    if (!v->json) {
        for (size_t i = 0; i < n; i++) {
            printf("%d\n", ids[i]);
        }
        return 0;
    }
    json_t *list = json_array(), *texts = json_array();
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        const char *text = tok_bytes(t, ids[i], &bytes);
        json_array_append_new(list, json_integer(ids[i]));
        json_array_append_new(texts, cli_json_text(text, bytes));
    }
    return cli_json_print(
        json_pack("{s:I, s:o, s:o}", "count", (json_int_t)n, "ids", list, "texts", texts));
}

static int encode(const values *v, const opened *o) {
    char *text = NULL;
    size_t bytes = 0, n = 0;
    int32_t *ids = NULL;
    weft_error err;
    if (cli_read_prompt(v->text, v->file, &text, &bytes, &err) != WEFT_OK) {
        return cli_fail(&err);
    }
    weft_status st = v->special
                         ? tok_encode_prompt(o->tok, text, bytes, &ids, &n, &err) /* as run does */
                         : tok_encode(o->tok, text, bytes, false, &ids, &n, &err);
    free(text);
    if (st != WEFT_OK) {
        return cli_fail(&err);
    }
    int rc = print_ids(v, o->tok, ids, n);
    free(ids);
    return rc;
}

/* ---- ids to text ---- */

/* The ids of the arguments, or of a text with anything of space, comma and brackets between. */
typedef struct id_reader {
    const option_list *args; /* NULL: from text */
    int32_t next;
    const char *text;
} id_reader;

static bool next_id(id_reader *r, const char **word, size_t *n) {
    static const char between[] = " \t\r\n,[]";
    if (r->args) {
        bool more = r->next < r->args->n;
        *word = more ? r->args->item[r->next++] : "";
        *n = strlen(*word);
        return more;
    }
    *word = r->text + strspn(r->text, between);
    *n = strcspn(*word, between);
    r->text = *word + *n;
    return *n > 0;
}

static weft_status read_id(const char *word, size_t n, int32_t n_vocab, int32_t *out,
                           weft_error *err) {
    int64_t id = 0;
    size_t i = 0;
    for (; i < n && word[i] >= '0' && word[i] <= '9' && id < n_vocab; i++) {
        id = id * 10 + (word[i] - '0');
    }
    if (n == 0 || i < n || id >= n_vocab) {
        return error_set(err, WEFT_ERR_USAGE, "'%.*s' is no token id; expected 0 to %d",
                         (int)(n < 60 ? n : 60), word, n_vocab - 1);
    }
    *out = (int32_t)id;
    return WEFT_OK;
}

/* Appends the text of every id to `out`; a character may be spread over several tokens. */
static weft_status decode_ids(id_reader *r, const tok *t, FILE *out, weft_error *err) {
    tok_stream *s = NULL;
    const char *word, *text;
    size_t bytes;
    weft_status st = tok_stream_open(t, false, &s, err);
    for (size_t n; st == WEFT_OK && next_id(r, &word, &n);) {
        int32_t id = 0;
        st = read_id(word, n, tok_vocab_size(t), &id, err);
        if (st == WEFT_OK)
            st = tok_stream_push(s, id, &text, &bytes, err);
        if (st == WEFT_OK)
            fwrite(text, 1, bytes, out);
    }
    if (st == WEFT_OK)
        st = tok_stream_end(s, &text, &bytes, err);
    if (st == WEFT_OK)
        fwrite(text, 1, bytes, out);
    tok_stream_close(s);
    return st;
}

static int decode(const values *v, const opened *o, const option_list *args) {
    char *input = NULL, *text = NULL;
    size_t bytes = 0, n = 0;
    weft_error err;
    id_reader r = {.args = args->n > 0 ? args : NULL};
    if (args->n > 0 && (v->text || v->file)) {
        return cli_fail_text(WEFT_ERR_USAGE,
                             "ids stand as arguments, in -p or in -f; give one of them");
    }
    if (!r.args && cli_read_prompt(v->text, v->file, &input, &bytes, &err) != WEFT_OK) {
        return cli_fail(&err);
    }
    if (input && strlen(input) < bytes) {
        free(input);
        return cli_fail_text(WEFT_ERR_USAGE, "the ids hold a NUL byte");
    }
    r.text = input;
    FILE *out = open_memstream(&text, &n);
    weft_status st = out ? decode_ids(&r, o->tok, out, &err)
                         : error_set(&err, WEFT_ERR_MEMORY, "no memory for the text");
    if (out && fclose(out) != 0 && st == WEFT_OK) {
        st = error_set(&err, WEFT_ERR_MEMORY, "no memory for the text");
    }
    int rc = 0;
    if (st != WEFT_OK) {
        rc = cli_fail(&err);
    } else if (v->json) {
        rc = cli_json_print(json_pack("{s:o}", "text", cli_json_text(text, n)));
    } else {
        fwrite(text, 1, n, stdout);
    }
    free(text);
    free(input);
    return rc;
}

static int run(const void *values_, const option_list *args) {
    const values *v = values_;
    if (!v->decode && args->n > 0) {
        return cli_fail_text(WEFT_ERR_USAGE,
                             "tokenize: unexpected argument %.100s; a text is given with -p, and "
                             "ids need --decode",
                             args->item[0]);
    }
    opened o;
    weft_error err;
    if (open_tok(v->model.path, &o, &err) != WEFT_OK) {
        return cli_fail(&err);
    }
    int rc = v->decode ? decode(v, &o, args) : encode(v, &o);
    tok_destroy(o.tok);
    load_close(o.file);
    return rc;
}

const cli_command cli_tokenize = {
    .options = {.name = "tokenize",
                .brief = "turns text into token ids, one a line, or ids into text",
                .args = "[ID...]",
                .max_args = INT32_MAX,
                .sections = sections,
                .values_bytes = sizeof(values)},
    .run = run,
};
