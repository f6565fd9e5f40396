/* Parsing by an options table, and the search for the name that a mistyped one was meant to be. */
#include "base/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NEAR_MAX = 48, WORD_MAX = 64 };

typedef struct parse {
    const option_command *command;
    int argc;
    char *const *argv;
    int i; /* next argument */
    void *values;
    option_list *args;
    const option **seen; /* [n_seen] options met so far */
    int32_t n_seen;
    weft_error *err;
} parse;

/* Next word of a space-separated list, or 0 at its end; *p is moved behind it. */
static size_t next_word(const char **p, const char **word) {
    *p += strspn(*p, " ");
    *word = *p;
    size_t n = strcspn(*p, " ");
    *p += n;
    return n;
}

static bool has_name(const option *o, const char *name, size_t n) {
    const char *p = o->names, *word;
    for (size_t len; (len = next_word(&p, &word)) > 0;) {
        if (len == n && memcmp(word, name, n) == 0) {
            return true;
        }
    }
    return false;
}

static const option *find_option(const option_command *c, const char *name, size_t n,
                                 const option_section **section) {
    for (const option_section *s = c->sections; s && s->title; s++) {
        for (const option *o = s->options; o->names; o++) {
            if (has_name(o, name, n)) {
                *section = s;
                return o;
            }
        }
    }
    return NULL;
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Edits (insert, delete, replace, swap of neighbours) that turn a into b; both shorter than
 * NEAR_MAX. */
static int32_t edit_distance(const char *a, size_t n_a, const char *b, size_t n_b) {
    int32_t row[3][NEAR_MAX + 1];
    int32_t *before = row[0], *last = row[1], *now = row[2];
    for (size_t j = 0; j <= n_b; j++) {
        last[j] = (int32_t)j;
    }
    for (size_t i = 1; i <= n_a; i++) {
        now[0] = (int32_t)i;
        for (size_t j = 1; j <= n_b; j++) {
            int32_t replace = last[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = least(replace, least(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                now[j] = least(now[j], before[j - 2] + 1);
            }
        }
        int32_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[n_b];
}

/* Like vLLM's parser, '_' in an option name stands for '-' when looking for what was meant. */
static size_t normal_form(const char *word, size_t n, char *out) {
    size_t skip = strspn(word, "-");
    size_t len = 0;
    for (size_t i = skip < n ? skip : n; i < n && len < NEAR_MAX; i++) {
        out[len++] = word[i] == '_' ? '-' : word[i];
    }
    return len;
}

/* Distance of a word from what was typed; INT32_MAX when it is too far to be meant. */
static int32_t nearness(const char *typed, size_t n_typed, const char *word, size_t n_word) {
    char a[NEAR_MAX], b[NEAR_MAX];
    size_t n_a = normal_form(typed, n_typed, a);
    size_t n_b = normal_form(word, n_word, b);
    if (n_a == 0 || n_b == 0) {
        return INT32_MAX;
    }
    if (n_a >= 3 && n_a < n_b && memcmp(a, b, n_a) == 0) {
        return 1;
    }
    int32_t d = edit_distance(a, n_a, b, n_b);
    int32_t longer = (int32_t)(n_a > n_b ? n_a : n_b);
    return d <= (longer + 1) / 3 ? d : INT32_MAX;
}

const char *options_nearest(const char *typed, const char *const *words, int32_t n) {
    const char *best = NULL;
    int32_t best_d = INT32_MAX;
    for (int32_t i = 0; i < n; i++) {
        int32_t d = nearness(typed, strlen(typed), words[i], strlen(words[i]));
        if (d < best_d) {
            best = words[i];
            best_d = d;
        }
    }
    return best;
}

static void nearest_option(const option_command *c, const char *typed, size_t n_typed,
                           const char **name, size_t *n_name) {
    int32_t best = INT32_MAX;
    *n_name = 0;
    for (const option_section *s = c->sections; s && s->title; s++) {
        for (const option *o = s->options; o->names; o++) {
            const char *p = o->names, *word;
            for (size_t len; (len = next_word(&p, &word)) > 0;) {
                int32_t d = nearness(typed, n_typed, word, len);
                if (d < best) {
                    best = d;
                    *name = word;
                    *n_name = len;
                }
            }
        }
    }
}

static weft_status unknown_option(const parse *p, const char *typed, size_t n) {
    const char *name = NULL;
    size_t n_name;
    nearest_option(p->command, typed, n, &name, &n_name);
    int shown = (int)(n < WORD_MAX ? n : WORD_MAX);
    if (n_name > 0) {
        return error_set(p->err, WEFT_ERR_USAGE, "%s has no option %.*s; did you mean %.*s?",
                         p->command->name, shown, typed, (int)n_name, name);
    }
    return error_set(p->err, WEFT_ERR_USAGE, "%s has no option %.*s; its --help lists all",
                     p->command->name, shown, typed);
}

/* ---- values ---- */

bool options_read_whole(const char *text, size_t n, const char *suffixes, uint64_t *out) {
    uint64_t v = 0;
    const char *p = text, *end = text + n;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (v > (UINT64_MAX - digit) / 10) {
            return false;
        }
        v = v * 10 + digit;
    }
    if (p == text) {
        return false;
    }
    if (p < end) {
        char c = (char)(*p >= 'a' ? *p - 'a' + 'A' : *p);
        const char *at = strchr(suffixes, c);
        if (p + 1 != end || !at) {
            return false;
        }
        unsigned shift = 10 * (unsigned)(at - suffixes + 1);
        if (v > UINT64_MAX >> shift) {
            return false;
        }
        v <<= shift;
    }
    *out = v;
    return true;
}

static bool read_int(const option *o, const char *text, int32_t *out) {
    bool negative = text[0] == '-';
    uint64_t v;
    const char *digits = text + negative;
    if (!options_read_whole(digits, strlen(digits), o->type == OPTION_COUNT ? "KMG" : "", &v) ||
        v > INT32_MAX) {
        return false;
    }
    int32_t value = negative ? -(int32_t)v : (int32_t)v;
    if (value < o->min || value > o->max) {
        return false;
    }
    *out = value;
    return true;
}

static bool read_float(const option *o, const char *text, float *out) {
    if (text[strspn(text, "0123456789+-.eE")] != '\0') {
        return false; /* strtof would take spaces, hexadecimal, nan and inf too */
    }
    char *end;
    float v = strtof(text, &end);
    bool inside = v <= o->max && (o->above_min ? v > o->min : v >= o->min);
    if (end == text || *end != '\0' || !isfinite(v) || !inside) {
        return false;
    }
    *out = v;
    return true;
}

static bool read_choice(const option *o, const char *text, int32_t *out) {
    const char *p = o->choices, *word;
    int32_t i = 0;
    for (size_t len; (len = next_word(&p, &word)) > 0; i++) {
        if (strlen(text) == len && memcmp(text, word, len) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

/* "a whole number from 1 to 64": what would have been right. */
static void describe_value(const option *o, char *out, size_t cap) {
    switch (o->type) {
    case OPTION_INT:
    case OPTION_COUNT: {
        const char *k = o->type == OPTION_COUNT ? " (k, M, G allowed)" : "";
        snprintf(out, cap, "a whole number from %.0f to %.0f%s", o->min, o->max, k);
        break;
    }
    case OPTION_SIZE:
        snprintf(out, cap, "a size in bytes such as 4096, 512M or 4G");
        break;
    case OPTION_U64:
        snprintf(out, cap, "a whole number from 0 to %llu", (unsigned long long)UINT64_MAX);
        break;
    case OPTION_FLOAT:
        snprintf(out, cap,
                 o->above_min ? "a number above %g and up to %g" : "a number from %g to %g", o->min,
                 o->max);
        break;
    case OPTION_CHOICE:
        snprintf(out, cap, "one of: %s", o->choices);
        break;
    case OPTION_FLAG:
    case OPTION_STRING:
    case OPTION_LIST:
        snprintf(out, cap, "a text");
        break;
    }
}

static weft_status list_add(option_list *list, const char *text, weft_error *err) {
    const char **item = realloc(list->item, ((size_t)list->n + 1) * sizeof *item);
    if (!item) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the command line");
    }
    item[list->n] = text;
    list->item = item;
    list->n++;
    return WEFT_OK;
}

static bool read_value(const option *o, const char *text, void *field) {
    switch (o->type) {
    case OPTION_INT:
    case OPTION_COUNT:
        return read_int(o, text, field);
    case OPTION_SIZE:
        return options_read_whole(text, strlen(text), "KMGT", field);
    case OPTION_U64:
        return options_read_whole(text, strlen(text), "", field);
    case OPTION_FLOAT:
        return read_float(o, text, field);
    case OPTION_CHOICE:
        return read_choice(o, text, field);
    case OPTION_STRING:
        memcpy(field, &text, sizeof text);
        return true;
    case OPTION_FLAG:
    case OPTION_LIST:
        break;
    }
    return false;
}

/* ---- the walk over argv ---- */

/* The value of option `name`: behind its '=', or the next argument. An argument that is itself an
 * option of this command is taken for a forgotten value. NULL: there is none, the error is set. */
static const char *take_value(parse *p, const char *name, size_t n) {
    if (name[n] == '=') {
        return name + n + 1;
    }
    if (p->i >= p->argc) {
        error_set(p->err, WEFT_ERR_USAGE, "%.*s needs a value", (int)n, name);
        return NULL;
    }
    const char *next = p->argv[p->i];
    const option_section *s;
    if (find_option(p->command, next, strcspn(next, "="), &s)) {
        error_set(p->err, WEFT_ERR_USAGE,
                  "%.*s needs a value, but the option %s follows; to give that text as the "
                  "value write %.*s=%s",
                  (int)n, name, next, (int)n, name, next);
        return NULL;
    }
    p->i++;
    return next;
}

static weft_status take_option(parse *p, const char *arg) {
    size_t n = strcspn(arg, "=");
    const option_section *s = NULL;
    const option *o = find_option(p->command, arg, n, &s);
    if (!o) {
        return unknown_option(p, arg, n);
    }
    for (int32_t i = 0; o->type != OPTION_LIST && i < p->n_seen; i++) {
        if (p->seen[i] == o) {
            return error_set(p->err, WEFT_ERR_USAGE, "%.*s is given twice; once is right", (int)n,
                             arg);
        }
    }
    p->seen[p->n_seen++] = o;
    void *field = (char *)p->values + s->at + o->at;
    if (o->type == OPTION_FLAG) {
        if (arg[n] == '=') {
            return error_set(p->err, WEFT_ERR_USAGE, "%.*s takes no value, but %s was given",
                             (int)n, arg, arg + n + 1);
        }
        *(bool *)field = true;
        return WEFT_OK;
    }
    const char *text = take_value(p, arg, n);
    if (!text) {
        return WEFT_ERR_USAGE;
    }
    if (o->type == OPTION_LIST) {
        return list_add(field, text, p->err);
    }
    if (!read_value(o, text, field)) {
        char right[160];
        describe_value(o, right, sizeof right);
        return error_set(p->err, WEFT_ERR_USAGE, "%.*s %.100s is wrong; expected %s", (int)n, arg,
                         text[0] ? text : "''", right);
    }
    return WEFT_OK;
}

static bool was_seen(const parse *p, const char *name) {
    const option_section *s;
    const option *o = find_option(p->command, name, strlen(name), &s);
    for (int32_t i = 0; i < p->n_seen; i++) {
        if (p->seen[i] == o) {
            return true;
        }
    }
    return false;
}

/* An option that would do nothing is an error: no option is taken and ignored. */
static weft_status check_effects(const parse *p) {
    for (int32_t i = 0; i < p->n_seen; i++) {
        const option *o = p->seen[i];
        const char *name = strstr(o->names, "--");
        int n = (int)strcspn(name, " ");
        if (o->needs && !was_seen(p, o->needs)) {
            return error_set(p->err, WEFT_ERR_USAGE, "%.*s has an effect only together with %s", n,
                             name, o->needs);
        }
        if (o->excludes && was_seen(p, o->excludes)) {
            return error_set(p->err, WEFT_ERR_USAGE, "%.*s has no effect together with %s", n, name,
                             o->excludes);
        }
    }
    return WEFT_OK;
}

static weft_status check_complete(const parse *p) {
    const option_command *c = p->command;
    for (const option_section *s = c->sections; s && s->title; s++) {
        for (const option *o = s->options; o->names; o++) {
            bool met = !o->required;
            for (int32_t i = 0; !met && i < p->n_seen; i++) {
                met = p->seen[i] == o;
            }
            if (!met) {
                return error_set(p->err, WEFT_ERR_USAGE, "%s needs %.*s %s", c->name,
                                 (int)strcspn(o->names, " "), o->names,
                                 o->metavar ? o->metavar : "");
            }
        }
    }
    if (p->args->n < c->min_args) {
        return error_set(p->err, WEFT_ERR_USAGE, "%s needs %s", c->name, c->args);
    }
    if (p->args->n > c->max_args) {
        return error_set(p->err, WEFT_ERR_USAGE, "%s: unexpected argument %.100s%s%s", c->name,
                         p->args->item[c->max_args], c->args ? "; it takes " : "",
                         c->args ? c->args : "");
    }
    return check_effects(p);
}

static weft_status walk(parse *p, bool *help) {
    bool ended = false;
    while (p->i < p->argc) {
        const char *arg = p->argv[p->i++];
        weft_status st = WEFT_OK;
        if (ended || arg[0] != '-' || arg[1] == '\0') {
            st = list_add(p->args, arg, p->err);
        } else if (strcmp(arg, "--") == 0) {
            ended = true;
        } else if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            *help = true;
            return WEFT_OK;
        } else {
            st = take_option(p, arg);
        }
        if (st != WEFT_OK) {
            return st;
        }
    }
    return check_complete(p);
}

weft_status options_parse(const option_command *c, int argc, char *const *argv, void *values,
                          option_list *args, bool *help, weft_error *err) {
    parse p = {.command = c, .argc = argc, .argv = argv, .values = values, .args = args};
    p.err = err;
    *args = (option_list){0};
    *help = false;
    if (c->defaults) {
        c->defaults(values);
    }
    p.seen = calloc((size_t)argc + 1, sizeof *p.seen);
    if (!p.seen) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the command line");
    }
    weft_status st = walk(&p, help);
    free(p.seen);
    return st;
}

void options_free(const option_command *c, void *values, option_list *args) {
    for (const option_section *s = c->sections; s && s->title; s++) {
        for (const option *o = s->options; o->names; o++) {
            if (o->type == OPTION_LIST) {
                option_list *list = (void *)((char *)values + s->at + o->at);
                free(list->item);
                *list = (option_list){0};
            }
        }
    }
    free(args->item);
    *args = (option_list){0};
}
