#define PCRE2_CODE_UNIT_WIDTH 8
#include "tok/tok_impl.h"

#include "base/log.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* White_Space, spelled out: PCRE2's \s under UCP also takes U+180E. */
#define WS                                                                                         \
    "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"  \
    "\\x{205F}\\x{3000}"
#define BLANKS "[" WS "]+(?![^" WS "])|[" WS "]+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" BLANKS
/* Llama 3 and Qwen2 differ only in how many digits make a piece. (?i:) also takes U+017F for s. */
#define CL100K(numbers)                                                                            \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" numbers " ?[^" WS                \
    "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" BLANKS

static const pretok_rule rules[] = {
    {.name = "gpt-2", .regex = GPT2},
    {.name = "smollm", .regex = GPT2, .digits = true},
    {.name = "llama-bpe", .regex = CL100K("\\p{N}{1,3}|"), .whole_piece = true},
    {.name = "qwen2", .regex = CL100K("\\p{N}|"), .nfc = true},
};
enum { N_RULE = sizeof rules / sizeof rules[0] };

/* No pattern needs to look at a character more than a few times, so a match that does is cut. */
enum { LEAST_MATCH_LIMIT = 1000000, LIMIT_PER_BYTE = 16, HEAP_LIMIT_KIB = 64 << 10 };

struct pretok {
    const pretok_rule *rule;
    pcre2_code *regex;
    pcre2_code *digit; /* NULL unless rule->digits */
};

static void free_codes(pretok *p) {
    pcre2_code_free(p->regex);
    pcre2_code_free(p->digit);
}

/* Without JIT (no support, or memory that may not be executable) the same code is interpreted. */
static pcre2_code *compile(const char *regex, weft_error *err) {
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *out = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                    &code, &at, NULL);
    if (out == NULL) {
        char text[160];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        error_set(err, WEFT_ERR_MEMORY, "regex did not compile at %zu: %s", at, text);
        return NULL;
    }
    if (pcre2_jit_compile(out, PCRE2_JIT_COMPLETE) != 0) {
        log_debug("no JIT for the pre-tokeniser; it is interpreted");
    }
    return out;
}

static const pretok_rule *find_rule(const char *name) {
    for (int i = 0; i < N_RULE; i++) {
        if (name != NULL && strcmp(name, rules[i].name) == 0) {
            return &rules[i];
        }
    }
    return NULL;
}

static weft_status refuse_name(const char *name, weft_error *err) {
    char known[128] = "";
    int n = 0;
    for (int i = 0; i < N_RULE; i++) {
        n +=
            snprintf(known + n, sizeof known - (size_t)n, "%s%s", i > 0 ? ", " : "", rules[i].name);
    }
    if (name == NULL) {
        return error_set(err, WEFT_ERR_FILE, "tokenizer.ggml.pre is missing; known: %s", known);
    }
    return error_set(err, WEFT_ERR_FILE, "tokenizer.ggml.pre is \"%.80s\"; known: %s", name, known);
}

weft_status pretok_open(const char *name, pretok **out, weft_error *err) {
    pretok p = {.rule = find_rule(name)};
    if (p.rule == NULL) {
        return refuse_name(name, err);
    }
    p.regex = compile(p.rule->regex, err);
    if (p.regex == NULL) {
        return WEFT_ERR_MEMORY;
    }
    if (p.rule->digits) {
        p.digit = compile("\\p{N}", err);
        if (p.digit == NULL) {
            free_codes(&p);
            return WEFT_ERR_MEMORY;
        }
    }
    *out = malloc(sizeof **out);
    if (*out == NULL) {
        free_codes(&p);
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the pre-tokeniser");
    }
    **out = p;
    return WEFT_OK;
}

void pretok_close(pretok *p) {
    if (p != NULL) {
        free_codes(p);
        free(p);
    }
}

const pretok_rule *pretok_get_rule(const pretok *p) {
    return p->rule;
}

typedef struct cut_run {
    const pretok *pretok;
    pcre2_match_data *match;
    pcre2_match_context *context;
    pretok_fn fn;
    void *arg;
    weft_error *err;
} cut_run;

/* The next match in text[from..bytes): 1 and its range, 0 when there is none, negative on error.
 * The JIT's stack is small; where it does not do, the interpreter takes over. */
static int next_match(const cut_run *run, const pcre2_code *code, const char *text, size_t bytes,
                      size_t from, size_t *start, size_t *end) {
    int rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK, run->match,
                         run->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         run->match, run->context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
        return 0;
    }
    if (rc < 0) {
        return rc;
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(run->match);
    *start = range[0];
    *end = range[1];
    return 1;
}

static weft_status match_failed(const cut_run *run, int rc, size_t at) {
    char text[160];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)text, sizeof text);
    return error_set_at(run->err, WEFT_ERR_MEMORY, (int64_t)at, "cutting the text failed: %s",
                        text);
}

/* Every match of `code` is a piece; so is what lies between two matches. `between` takes the latter
 * (for digits: the regex), `on_match` the former. */
static weft_status cut_with(const cut_run *run, const pcre2_code *code, const char *text,
                            size_t bytes,
                            weft_status (*between)(const cut_run *, const char *, size_t)) {
    size_t at = 0;
    while (at < bytes) {
        size_t start = bytes, end = bytes;
        int rc = next_match(run, code, text, bytes, at, &start, &end);
        if (rc < 0) {
            return match_failed(run, rc, at);
        }
        weft_status status = WEFT_OK;
        if (start > at) {
            status = between(run, text + at, start - at);
        }
        if (status == WEFT_OK && end > start) {
            status = run->fn(run->arg, text + start, end - start, run->err);
        }
        if (status != WEFT_OK) {
            return status;
        }
        at = end;
    }
    return WEFT_OK;
}

static weft_status give(const cut_run *run, const char *text, size_t bytes) {
    return run->fn(run->arg, text, bytes, run->err);
}

static weft_status cut_by_regex(const cut_run *run, const char *text, size_t bytes) {
    return cut_with(run, run->pretok->regex, text, bytes, give);
}

weft_status pretok_cut(const pretok *p, const char *text, size_t bytes, pretok_fn fn, void *arg,
                       weft_error *err) {
    cut_run run = {.pretok = p, .fn = fn, .arg = arg, .err = err};
    weft_status status = WEFT_ERR_MEMORY;
    run.match = pcre2_match_data_create(1, NULL);
    run.context = pcre2_match_context_create(NULL);
    if (run.match == NULL || run.context == NULL) {
        error_set(err, status, "no memory to cut the text");
        goto undo_match;
    }
    uint64_t limit = LEAST_MATCH_LIMIT + (uint64_t)bytes * LIMIT_PER_BYTE;
    pcre2_set_match_limit(run.context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    pcre2_set_heap_limit(run.context, HEAP_LIMIT_KIB);
    if (p->digit != NULL) {
        status = cut_with(&run, p->digit, text, bytes, cut_by_regex);
    } else {
        status = cut_by_regex(&run, text, bytes);
    }
undo_match:
    pcre2_match_data_free(run.match);
    pcre2_match_context_free(run.context);
    return status;
}
