/* ChatML templates. The Jinja text of the model is not run; it is brought into a canonical form, in
 * which the pieces that weft knows are looked for. What it cannot recognise it refuses: a template
 * rendered nearly right gives worse answers without a word.
 *
 * Canonical form: white space as Jinja leaves it (trim_blocks, lstrip_blocks, "-" marks), an
 * expression split at its "+" signs, literals unescaped:
 *     {{ '<|im_start|>' + m['role'] + '\n' }}  ->  <|im_start|> [m.role] \n
 *     {% if loop.first %}                      ->  (ifloop.first)
 * where [ ] ( ) stand for the bytes 1 to 4 and \n for a newline. */
#include "tok/tok_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPR_OPEN "\1"
#define EXPR_CLOSE "\2"
#define BLOCK_OPEN "\3"
#define BLOCK_CLOSE "\4"
#define START "<|im_start|>"
#define END "<|im_end|>\n"

/* ---- canonical form ---- */

typedef struct reader {
    const char *p, *end;
    char *out;
    bool line_start; /* the text at p begins a line */
} reader;

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

static bool is_space(char c) {
    return is_blank(c) || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}

static void put(reader *r, char c) {
    *r->out++ = c;
}

/* The next tag ("{{", "{%", "{#") at or after p; end when there is none. */
static const char *find_tag(const char *p, const char *end) {
    for (; p + 1 < end; p++) {
        if (p[0] == '{' && (p[1] == '{' || p[1] == '%' || p[1] == '#')) {
            return p;
        }
    }
    return end;
}

/* The plain text up to the tag, less what the tag strips from its end. */
static void put_plain(reader *r, const char *tag) {
    const char *stop = tag;
    if (tag + 2 < r->end && tag[2] == '-') {
        while (stop > r->p && is_space(stop[-1])) {
            stop--;
        }
    } else if (tag < r->end && tag[1] != '{' && !(tag + 2 < r->end && tag[2] == '+')) {
        const char *line = stop;
        while (line > r->p && is_blank(line[-1])) {
            line--;
        }
        if (line > r->p ? line[-1] == '\n' : r->line_start) {
            stop = line;
        }
    }
    while (r->p < stop) {
        put(r, *r->p++);
    }
    r->p = tag;
}

/* Steps over the end of a tag ("}}" or "-%}" ...) and the white space that it strips. */
static void pass_close(reader *r, bool minus, bool block) {
    r->p += 2;
    r->line_start = false;
    if (minus) {
        while (r->p < r->end && is_space(*r->p)) {
            r->line_start = *r->p++ == '\n';
        }
    } else if (block) {
        if (r->p + 1 < r->end && r->p[0] == '\r' && r->p[1] == '\n') {
            r->p++;
        }
        if (r->p < r->end && *r->p == '\n') {
            r->p++;
            r->line_start = true;
        }
    }
}

/* The closing mark of the tag whose inside begins at p, outside of quotes; NULL when it is open. */
static const char *find_close(const char *p, const char *end, char mark) {
    char quote = 0;
    for (; p + 1 < end; p++) {
        if (quote != 0) {
            if (*p == '\\') {
                p++;
            } else if (*p == quote) {
                quote = 0;
            }
        } else if (mark != '#' && (*p == '\'' || *p == '"')) {
            quote = *p;
        } else if (p[0] == mark && p[1] == '}') {
            return p;
        }
    }
    return NULL;
}

/* A literal that begins at the quote *p; returns the byte after its end. */
static const char *put_literal(reader *r, const char *p, const char *stop) {
    char quote = *p++;
    while (p < stop && *p != quote) {
        if (*p == '\\' && p + 1 < stop) {
            p++;
            put(r, *p == 'n' ? '\n' : *p == 't' ? '\t' : *p);
        } else {
            put(r, *p);
        }
        p++;
    }
    return p < stop ? p + 1 : p;
}

/* A name without blanks; x['role'] becomes x.role. Quotes of other kinds become '. */
static const char *put_name(reader *r, const char *p, const char *stop, bool expression) {
    while (p < stop && !(expression && *p == '+')) {
        bool key = *p == '[' && p + 1 < stop && (p[1] == '\'' || p[1] == '"');
        const char *close = key ? memchr(p, ']', (size_t)(stop - p)) : NULL;
        if (close != NULL && close - p >= 4 && close[-1] == p[1]) {
            put(r, '.');
            for (p += 2; p < close - 1; p++) {
                put(r, *p);
            }
            p = close + 1;
            continue;
        }
        if (!is_space(*p)) {
            put(r, *p == '"' ? '\'' : *p);
        }
        p++;
    }
    return p;
}

static void put_expression(reader *r, const char *p, const char *stop) {
    while (p < stop) {
        if (is_space(*p) || *p == '+') {
            p++;
        } else if (*p == '\'' || *p == '"') {
            p = put_literal(r, p, stop);
        } else {
            put(r, EXPR_OPEN[0]);
            p = put_name(r, p, stop, true);
            put(r, EXPR_CLOSE[0]);
        }
    }
}

static bool put_tag(reader *r) {
    char kind = r->p[1], mark = kind == '{' ? '}' : kind;
    const char *p = r->p + 2;
    const char *close = find_close(p, r->end, mark);
    if (close == NULL) {
        return false;
    }
    const char *stop = close;
    bool minus = stop > p && stop[-1] == '-';
    stop -= minus || (stop > p && kind == '%' && stop[-1] == '+');
    p += p < stop && (*p == '-' || *p == '+');
    if (kind == '{') {
        put_expression(r, p, stop);
    } else if (kind == '%') {
        put(r, BLOCK_OPEN[0]);
        put_name(r, p, stop, false);
        put(r, BLOCK_CLOSE[0]);
    }
    r->p = close;
    pass_close(r, minus, kind != '{');
    return true;
}

/* Fills `out` (2 * bytes + 1: a "+" between two names becomes two marks); false: a tag is open. */
static bool make_canonical(load_string text, char *out) {
    reader r = {.p = text.data, .end = text.data + text.bytes, .out = out, .line_start = true};
    if (r.end > r.p && r.end[-1] == '\n') {
        r.end--; /* Jinja drops one newline at the end */
    }
    while (r.p < r.end) {
        const char *tag = find_tag(r.p, r.end);
        put_plain(&r, tag);
        if (tag < r.end && !put_tag(&r)) {
            return false;
        }
    }
    put(&r, '\0');
    return true;
}

/* ---- what is looked for ---- */

static const char *skip(const char *p, const char *word) {
    size_t n = strlen(word);
    return p != NULL && strncmp(p, word, n) == 0 ? p + n : NULL;
}

/* Steps over [name.field] or [name.field|trim]. */
static const char *skip_field(const char *p, const char *field, bool *trim) {
    p = skip(p, EXPR_OPEN);
    const char *close = p != NULL ? strpbrk(p, EXPR_CLOSE) : NULL;
    while (p != NULL && p < close && *p != '.') {
        p++;
    }
    p = skip(p, field);
    const char *trimmed = skip(p, "|trim");
    *trim = trimmed != NULL;
    return skip(trimmed != NULL ? trimmed : p, EXPR_CLOSE);
}

/* <|im_start|>[m.role]\n[m.content]<|im_end|>\n between two blocks. */
static bool find_message(const char *canonical, bool *trim) {
    for (const char *p = canonical; (p = strstr(p, BLOCK_CLOSE START)) != NULL; p++) {
        bool unused;
        const char *q = skip_field(p + strlen(BLOCK_CLOSE START), ".role", &unused);
        q = skip_field(skip(q, "\n"), ".content", trim);
        if (skip(skip(q, END), BLOCK_OPEN) != NULL) {
            return true;
        }
    }
    return false;
}

/* What follows <|im_start|>system\n: the default text, or the first message's text, or the end of
 * the literal where a list of tools begins (weft has none to give). Anything else is refused.
 * *text is the default text, up to <|im_end|>. */
static bool find_system(const char *canonical, const char **text, size_t *bytes) {
    static const char head[] = START "system\n";
    for (const char *p = canonical; (p = strstr(p, head)) != NULL;) {
        p += strlen(head);
        size_t literal = strcspn(p, EXPR_OPEN BLOCK_OPEN);
        const char *end = memmem(p, literal, END, strlen(END));
        if (end != NULL) {
            bool guarded = strstr(canonical, "messages[0].role!='system'") != NULL ||
                           strstr(canonical, "messages[0].role=='system'") != NULL;
            if (!guarded || *text != NULL) {
                return false;
            }
            *text = p;
            *bytes = (size_t)(end - p);
        } else if (skip(p, EXPR_OPEN "messages[0].content" EXPR_CLOSE END) == NULL &&
                   skip(p, BLOCK_OPEN) == NULL) {
            return false;
        }
    }
    return true;
}

static const char *recognise(const char *canonical, chat_form *f, const char **system,
                             size_t *system_bytes) {
    if (strstr(canonical, START) == NULL) {
        return "it is not ChatML (no <|im_start|>)";
    }
    if (strstr(canonical, "think>") != NULL) {
        return "it treats <think> in a way of its own";
    }
    if (!find_message(canonical, &f->trim)) {
        return "its message is not <|im_start|>role, newline, content, <|im_end|>, newline";
    }
    if (strstr(canonical, BLOCK_OPEN "ifadd_generation_prompt" BLOCK_CLOSE START
                                     "assistant\n" BLOCK_OPEN) == NULL) {
        return "its generation prompt is not <|im_start|>assistant, newline";
    }
    if (!find_system(canonical, system, system_bytes)) {
        return "its system message is made in a way that weft does not know";
    }
    f->writes_bos = strstr(canonical, EXPR_OPEN "bos_token" EXPR_CLOSE) != NULL;
    return NULL;
}

weft_status chat_form_open(load_string text, chat_form *out, weft_error *err) {
    chat_form f = {.unknown = "the model has none"};
    if (text.data == NULL) {
        *out = f;
        return WEFT_OK;
    }
    char *canonical = malloc(2 * text.bytes + 1);
    if (canonical == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for a template of %zu bytes", text.bytes);
    }
    f.unknown = "it holds control characters";
    bool clean = true;
    for (size_t i = 0; i < text.bytes; i++) {
        clean = clean && (uint8_t)text.data[i] > 4;
    }
    const char *system = NULL;
    size_t system_bytes = 0;
    if (clean) {
        f.unknown = make_canonical(text, canonical)
                        ? recognise(canonical, &f, &system, &system_bytes)
                        : "a tag of it is not closed";
    }
    if (f.unknown == NULL && system != NULL) {
        f.system = strndup(system, system_bytes);
    }
    free(canonical);
    if (f.unknown == NULL && system != NULL && f.system == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the system text");
    }
    *out = f;
    return WEFT_OK;
}

void chat_form_close(chat_form *f) {
    free(f->system);
    *f = (chat_form){0};
}

/* ---- rendering ---- */

/* Python's str.strip: White_Space and 1C..1F. */
static bool is_strip(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

static load_string trim_text(load_string text) {
    const uint8_t *p = (const uint8_t *)text.data;
    size_t begin = 0, end = 0;
    bool seen = false;
    for (size_t at = 0; at < text.bytes;) {
        int step = utf8_step(p + at, text.bytes - at);
        size_t bytes = step > 0 ? (size_t)step : 1; /* bad bytes stay; encoding reports them */
        if (step <= 0 || !is_strip(utf8_point(p + at, step))) {
            begin = seen ? begin : at;
            seen = true;
            end = at + bytes;
        }
        at += bytes;
    }
    return (load_string){text.data + begin, end - begin};
}

static void print_message(FILE *out, const char *role, load_string text) {
    fprintf(out, START "%s\n", role);
    fwrite(text.data, 1, text.bytes, out);
    fputs(END, out);
}

weft_status tok_chat_render(const tok *t, const char *const *roles, const char *const *texts,
                            size_t n, bool add_generation_prompt, char **out, weft_error *err) {
    const chat_form *f = &t->chat;
    if (f->unknown != NULL) {
        return error_set(err, WEFT_ERR_SETUP, "tokenizer.chat_template cannot be used: %s",
                         f->unknown);
    }
    char *text = NULL;
    size_t text_bytes = 0;
    FILE *stream = open_memstream(&text, &text_bytes);
    if (stream == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory to render a conversation");
    }
    if (f->writes_bos && t->bos >= 0) {
        load_string bos = t->text[t->bos];
        fwrite(bos.data, 1, bos.bytes, stream);
    }
    if (f->system != NULL && n > 0 && strcmp(roles[0], "system") != 0) {
        print_message(stream, "system", (load_string){f->system, strlen(f->system)});
    }
    for (size_t i = 0; i < n; i++) {
        load_string message = {texts[i], strlen(texts[i])};
        print_message(stream, roles[i], f->trim ? trim_text(message) : message);
    }
    if (add_generation_prompt) {
        fputs(START "assistant\n", stream);
    }
    bool failed = ferror(stream) != 0;
    if (fclose(stream) != 0 || failed) {
        free(text);
        return error_set(err, WEFT_ERR_MEMORY, "no memory to render a conversation");
    }
    *out = text;
    return WEFT_OK;
}
