#define PCRE2_CODE_UNIT_WIDTH 8
#include "tok/tok_impl.h"

#include "base/log.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PATTERN_BYTES = 64 << 10 };

/* No pattern needs to look at a character more than a few times, so a match that does is cut. */
enum { LEAST_MATCH_LIMIT = 1000000, LIMIT_PER_BYTE = 16, HEAP_LIMIT_KIB = 64 << 10 };

struct regex {
    pcre2_code *code; /* NULL: literal */
    char *literal;
    size_t bytes;
};

struct regex_run {
    pcre2_match_data *match;
    pcre2_match_context *context;
};

static weft_status no_memory(weft_error *err) {
    return error_set(err, WEFT_ERR_MEMORY, "no memory for a pattern");
}

/* Without JIT (no support, or memory that may not be executable) the same code is interpreted. */
static weft_status compile(const char *pattern, load_string shown, const char *at, regex *r,
                           weft_error *err) {
    int code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context == NULL) {
        return no_memory(err);
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (r->code == NULL) {
        char text[160], part[64];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        return error_set(err, WEFT_ERR_FILE, "%s: the pattern \"%s\" cannot be used: %s", at,
                         string_show(shown, part), text);
    }
    if (pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE) != 0) {
        log_debug("no JIT for the patterns of the tokeniser; they are interpreted");
    }
    return WEFT_OK;
}

weft_status regex_open(load_string pattern, const char *at, regex **out, weft_error *err) {
    regex *r = calloc(1, sizeof *r);
    text_buf text = {0};
    const char *wrong = NULL;
    weft_status status = WEFT_OK;
    char part[64];
    if (r == NULL) {
        return no_memory(err);
    }
    if (pattern.bytes > MOST_PATTERN_BYTES) {
        status = error_set(err, WEFT_ERR_FILE, "%s: a pattern of %zu bytes, expected at most %d",
                           at, pattern.bytes, MOST_PATTERN_BYTES);
    } else if (memchr(pattern.data, '\0', pattern.bytes) != NULL) {
        status = error_set(err, WEFT_ERR_FILE, "%s: the pattern \"%s\" holds a NUL", at,
                           string_show(pattern, part));
    } else if (!onig_translate(pattern, &text, &wrong)) {
        status = wrong == NULL
                     ? no_memory(err)
                     : error_set(err, WEFT_ERR_FILE, "%s: the pattern \"%s\" has %s: not supported",
                                 at, string_show(pattern, part), wrong);
    } else {
        status = compile(text.data, pattern, at, r, err);
    }
    text_buf_free(&text);
    if (status != WEFT_OK) {
        regex_close(r);
        return status;
    }
    *out = r;
    return WEFT_OK;
}

weft_status regex_open_literal(load_string text, regex **out, weft_error *err) {
    regex *r = calloc(1, sizeof *r);
    if (r != NULL) {
        r->literal = malloc(text.bytes + 1);
    }
    if (r == NULL || r->literal == NULL) {
        free(r);
        return no_memory(err);
    }
    memcpy(r->literal, text.data, text.bytes);
    r->bytes = text.bytes;
    *out = r;
    return WEFT_OK;
}

void regex_close(regex *r) {
    if (r != NULL) {
        pcre2_code_free(r->code);
        free(r->literal);
        free(r);
    }
}

weft_status regex_run_open(regex_run **out, weft_error *err) {
    regex_run *run = calloc(1, sizeof *run);
    if (run == NULL) {
        return no_memory(err);
    }
    run->match = pcre2_match_data_create(1, NULL);
    run->context = pcre2_match_context_create(NULL);
    if (run->match == NULL || run->context == NULL) {
        regex_run_close(run);
        return no_memory(err);
    }
    pcre2_set_heap_limit(run->context, HEAP_LIMIT_KIB);
    *out = run;
    return WEFT_OK;
}

void regex_run_close(regex_run *run) {
    if (run != NULL) {
        pcre2_match_data_free(run->match);
        pcre2_match_context_free(run->context);
        free(run);
    }
}

/* 1 and the range of the next match at or after s->from, 0 when there is none, negative on error.
 * The JIT's stack is small; where it does not do, the interpreter takes over. */
static int find(const regex_scan *s, size_t *start, size_t *end) {
    const regex *r = s->regex;
    if (r->code == NULL) {
        const char *at = s->from < s->bytes
                             ? memmem(s->text + s->from, s->bytes - s->from, r->literal, r->bytes)
                             : NULL;
        if (at != NULL) {
            *start = (size_t)(at - s->text);
            *end = *start + r->bytes;
        }
        return at != NULL;
    }
    uint64_t limit = LEAST_MATCH_LIMIT + (uint64_t)s->bytes * LIMIT_PER_BYTE;
    pcre2_set_match_limit(s->run->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    int rc = pcre2_match(r->code, (PCRE2_SPTR)s->text, s->bytes, s->from, PCRE2_NO_UTF_CHECK,
                         s->run->match, s->run->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(r->code, (PCRE2_SPTR)s->text, s->bytes, s->from,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->run->match, s->run->context);
    }
    if (rc < 0) {
        return rc == PCRE2_ERROR_NOMATCH ? 0 : rc;
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(s->run->match);
    *start = range[0];
    *end = range[1];
    return 1;
}

weft_status regex_next(regex_scan *s, bool *found, size_t *start, size_t *end, weft_error *err) {
    *found = false;
    while (s->from <= s->bytes) {
        int rc = find(s, start, end);
        if (rc < 0) {
            char text[160];
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)text, sizeof text);
            return error_set_at(err, WEFT_ERR_MEMORY, (int64_t)s->from,
                                "cutting the text failed: %s", text);
        }
        if (rc == 0) {
            break;
        }
        if (*start != *end || !s->any || s->last_end != *end) {
            s->from = s->last_end = *end;
            s->any = true;
            *found = true;
            return WEFT_OK;
        }
        s->from += s->from < s->bytes ? utf8_first_bytes(s->text + s->from, s->bytes - s->from) : 1;
    }
    return WEFT_OK;
}

weft_status regex_replace(const regex *r, regex_run *run, load_string text, load_string content,
                          size_t most, text_buf *out, weft_error *err) {
    regex_scan scan = {.regex = r, .run = run, .text = text.data, .bytes = text.bytes};
    size_t at = 0, start, end;
    bool found, ok = true;
    weft_status status;
    while ((status = regex_next(&scan, &found, &start, &end, err)) == WEFT_OK && found && ok) {
        ok = text_buf_add(out, text.data + at, start - at) &&
             text_buf_add(out, content.data, content.bytes);
        at = end;
        if (out->n > most) {
            break;
        }
    }
    if (status != WEFT_OK) {
        return status;
    }
    if (out->n > most || text.bytes - at > most - out->n) {
        return error_set(err, WEFT_ERR_TOO_LONG,
                         "a replacement of the tokeniser makes more than %zu bytes", most);
    }
    return ok && text_buf_add(out, text.data + at, text.bytes - at) ? WEFT_OK : no_memory(err);
}
