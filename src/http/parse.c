/* From bytes to a request; see parse.h. */
#include "http/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- small things ---- */

static void fail(http_parse *p, int status, const char *reason) {
    p->state = PARSE_FAILED;
    p->status = status;
    snprintf(p->reason, sizeof p->reason, "%s", reason);
}

static void fail_memory(http_parse *p) {
    fail(p, 503, "no memory for this request");
}

static void fail_size(http_parse *p) {
    char reason[sizeof p->reason];
    snprintf(reason, sizeof reason,
             "the request's body is longer than the %zu bytes that this server takes", p->max_body);
    fail(p, 413, reason);
}

static bool is_token(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool is_line_end(char c) {
    return c == '\r' || c == '\n';
}

/* Room for `more` bytes and a NUL behind the n there; never more than max is asked for at once. */
static bool reserve(char **data, size_t n, size_t *cap, size_t more, size_t max) {
    size_t due = n + more + 1; /* both are bounded by the limits and what one read gives */
    if (due <= *cap) {
        return true;
    }
    size_t grown = *cap < 512 ? 1024 : *cap <= max / 2 ? 2 * *cap : max + 1;
    grown = grown < due ? due : grown;
    char *moved = realloc(*data, grown);
    if (moved == NULL) {
        return false;
    }
    *data = moved;
    *cap = grown;
    return true;
}

const char *parse_find(const http_parse *p, const char *name) {
    for (size_t i = 0; i < p->n_field; i++) {
        if (strcasecmp(p->head + p->fields[i].name, name) == 0) {
            return p->head + p->fields[i].value;
        }
    }
    return NULL;
}

static size_t count_fields(const http_parse *p, const char *name) {
    size_t n = 0;
    for (size_t i = 0; i < p->n_field; i++) {
        n += strcasecmp(p->head + p->fields[i].name, name) == 0;
    }
    return n;
}

/* Whether `word` is in a comma-separated list, in any field of that name. */
static bool list_has(const http_parse *p, const char *name, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0; i < p->n_field; i++) {
        if (strcasecmp(p->head + p->fields[i].name, name) != 0) {
            continue;
        }
        const char *at = p->head + p->fields[i].value;
        while (*at != '\0') {
            at += strspn(at, " \t,");
            size_t length = strcspn(at, " \t,");
            if (length == n && strncasecmp(at, word, n) == 0) {
                return true;
            }
            at += length;
        }
    }
    return false;
}

/* ---- the head's lines ---- */

static void read_version(http_parse *p, const char *text) {
    if (strncmp(text, "HTTP/", 5) != 0 || text[5] < '0' || text[5] > '9' || text[6] != '.' ||
        text[7] < '0' || text[7] > '9' || text[8] != '\0') {
        fail(p, 400, "the request line does not end with HTTP/1.0 or HTTP/1.1");
    } else if (text[5] != '1') {
        fail(p, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    } else {
        p->minor = text[7] == '0' ? 0 : 1;
    }
}

/* METHOD SP target SP HTTP/1.x */
static void read_request_line(http_parse *p, char *line) {
    static const char *const known[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"};
    char *target = strchr(line, ' '), *version = target == NULL ? NULL : strchr(target + 1, ' ');
    if (version == NULL || target == line || version == target + 1) {
        fail(p, 400, "the request line is not of the form METHOD PATH HTTP/1.1");
        return;
    }
    *target++ = '\0';
    *version++ = '\0';
    for (const char *c = line; *c != '\0'; c++) {
        if (!is_token(*c)) {
            fail(p, 400, "the request's method holds a character that no method has");
            return;
        }
    }
    read_version(p, version);
    if (p->state == PARSE_FAILED) {
        return;
    }
    if (*target != '/' && strcmp(target, "*") != 0 && strncasecmp(target, "http://", 7) != 0 &&
        strncasecmp(target, "https://", 8) != 0) {
        fail(p, 400, "the request's path does not begin with /");
        return;
    }
    bool found = false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        found = found || strcmp(line, known[i]) == 0;
    }
    if (!found) {
        fail(p, 501, "methods are GET, HEAD, POST, PUT, DELETE and OPTIONS");
        return;
    }
    p->method = (size_t)(line - p->head);
    p->target = (size_t)(target - p->head);
}

enum { MOST_FIELDS = 1024 };

static void read_field(http_parse *p, char *line) {
    char *colon = strchr(line, ':');
    bool good = colon != NULL && colon > line;
    for (const char *c = line; good && c < colon; c++) {
        good = is_token(*c);
    }
    if (!good) {
        fail(p, 400, "a header line is not of the form NAME: VALUE");
        return;
    }
    if (p->n_field == MOST_FIELDS) {
        fail(p, 431, "the request has more than 1024 header lines");
        return;
    }
    if (p->n_field == p->cap_field) {
        size_t cap = p->cap_field == 0 ? 16 : 2 * p->cap_field;
        parse_field *moved = realloc(p->fields, cap * sizeof *moved);
        if (moved == NULL) {
            fail_memory(p);
            return;
        }
        p->fields = moved;
        p->cap_field = cap;
    }
    *colon = '\0';
    char *value = colon + 1 + strspn(colon + 1, " \t");
    for (size_t n = strlen(value); n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t'); n--) {
        value[n - 1] = '\0';
    }
    p->fields[p->n_field++] = (parse_field){(size_t)(line - p->head), (size_t)(value - p->head)};
}

/* Percent escapes of the target up to its query. Paths served here are printable ASCII: any other
 * byte makes it "", which no path matches. */
static bool decode_path(http_parse *p) {
    const char *from = p->head + p->target;
    if (*from != '/' && *from != '*') { /* http://host/path */
        from = strchr(from, ':') + 3;
        from += strcspn(from, "/?");
    }
    size_t n = strcspn(from, "?"), n_out = 0;
    p->path = malloc(n + 2);
    if (p->path == NULL) {
        return false;
    }
    if (n == 0) {
        p->path[n_out++] = '/';
    }
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)from[i];
        if (c == '%') {
            int high = n - i > 2 ? hex_digit(from[i + 1]) : -1;
            int low = n - i > 2 ? hex_digit(from[i + 2]) : -1;
            c = high < 0 || low < 0 ? 0 : 16 * high + low;
            i += 2;
        }
        if (c < 0x20 || c > 0x7E) {
            n_out = 0;
            break;
        }
        p->path[n_out++] = (char)c;
    }
    p->path[n_out] = '\0';
    return true;
}

/* ---- where the request ends ---- */

/* Digits only; SIZE_MAX where the number is larger than a size. False: not a number. */
static bool read_length(const char *text, size_t *length) {
    *length = 0;
    for (const char *c = text; *c != '\0'; c++) {
        if (*c < '0' || *c > '9') {
            return false;
        }
        size_t digit = (size_t)(*c - '0');
        *length = *length > (SIZE_MAX - digit) / 10 ? SIZE_MAX : 10 * *length + digit;
    }
    return *text != '\0';
}

static void choose_body(http_parse *p) {
    const char *length = parse_find(p, "Content-Length");
    const char *coding = parse_find(p, "Transfer-Encoding");
    const char *content = parse_find(p, "Content-Encoding");
    p->state = PARSE_DONE;
    if (count_fields(p, "Content-Length") + count_fields(p, "Transfer-Encoding") > 1) {
        fail(p, 400, "more than one header says how long the body is");
    } else if (content != NULL && strcasecmp(content, "identity") != 0) {
        fail(p, 415, "a body is sent as it is, without a Content-Encoding");
    } else if (coding != NULL && p->minor == 0) {
        fail(p, 400, "HTTP/1.0 has no Transfer-Encoding");
    } else if (coding != NULL && strcasecmp(coding, "chunked") != 0) {
        fail(p, 501, "the only Transfer-Encoding is chunked");
    } else if (coding != NULL) {
        p->chunked = true;
        p->state = PARSE_CHUNK_SIZE;
    } else if (length != NULL && !read_length(length, &p->due)) {
        fail(p, 400, "Content-Length is not a number of bytes");
    } else if (p->due > p->max_body) {
        fail_size(p);
    } else if (p->due > 0) {
        p->state = PARSE_BODY;
    }
}

static void end_head(http_parse *p) {
    size_t hosts = count_fields(p, "Host");
    const char *expect = parse_find(p, "Expect");
    if (hosts > 1 || (hosts == 0 && p->minor == 1)) {
        fail(p, 400, "a request of HTTP/1.1 has one Host header");
        return;
    }
    if (!decode_path(p)) {
        fail_memory(p);
        return;
    }
    p->keep_alive = p->minor == 1 ? !list_has(p, "Connection", "close")
                                  : list_has(p, "Connection", "keep-alive");
    choose_body(p);
    if (expect == NULL || p->minor == 0 || p->state == PARSE_DONE || p->state == PARSE_FAILED) {
        return;
    }
    if (strcasecmp(expect, "100-continue") != 0) {
        fail(p, 417, "the only expectation is 100-continue");
        return;
    }
    p->expects = true;
}

/* ---- bytes ---- */

static bool is_clean(const char *line, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)line[i];
        if ((c < 0x20 && c != '\t') || c == 0x7F) {
            return false;
        }
    }
    return true;
}

/* The line [line, n_head) is complete, LF included. */
static void end_line(http_parse *p) {
    char *line = p->head + p->line;
    size_t n = p->n_head - p->line - 1;
    n -= n > 0 && line[n - 1] == '\r';
    if (!is_clean(line, n)) {
        fail(p, 400, "the request's head holds control characters");
        return;
    }
    line[n] = '\0';
    if (n == 0 && p->line == 0) { /* an empty line before the request */
        p->n_extra += p->n_head;
        p->n_head = 0;
        if (p->n_extra > 64) {
            fail(p, 400, "empty lines and no request");
        }
        return;
    }
    if (n == 0) {
        end_head(p);
    } else if (p->line == 0) {
        read_request_line(p, line);
    } else {
        read_field(p, line);
    }
    p->line = p->n_head;
}

/* Bytes up to the end of a line. */
static size_t feed_head(http_parse *p, const char *data, size_t n) {
    if (p->n_head == 0 && !is_line_end(data[0]) && !is_token(data[0])) {
        fail(p, 400, "this is not HTTP");
        return 0;
    }
    const char *end = memchr(data, '\n', n);
    size_t take = end == NULL ? n : (size_t)(end - data) + 1;
    if (take > p->max_head - p->n_head) {
        fail(p, 431, "the request's headers are longer than this server takes");
        return take;
    }
    if (!reserve(&p->head, p->n_head, &p->cap_head, take, p->max_head)) {
        fail_memory(p);
        return take;
    }
    memcpy(p->head + p->n_head, data, take);
    p->n_head += take;
    if (end != NULL) {
        end_line(p);
    }
    return take;
}

static size_t feed_body(http_parse *p, const char *data, size_t n, parse_state next) {
    size_t take = n < p->due ? n : p->due;
    if (!reserve(&p->body, p->n_body, &p->cap_body, take, p->max_body)) {
        fail_memory(p);
        return take;
    }
    memcpy(p->body + p->n_body, data, take);
    p->n_body += take;
    p->body[p->n_body] = '\0';
    p->due -= take;
    if (p->due == 0) {
        p->state = next;
    }
    return take;
}

static void feed_chunk_size(http_parse *p, char c) {
    int digit = hex_digit(c);
    if (digit >= 0) {
        p->n_digit++;
        if (p->due > SIZE_MAX >> 4 || p->due * 16 + (size_t)digit > p->max_body - p->n_body) {
            fail_size(p);
            return;
        }
        p->due = p->due * 16 + (size_t)digit;
        p->n_extra += p->due == 0; /* leading zeros without end */
    } else if (p->n_digit > 0 && (c == ';' || c == ' ' || c == '\t')) {
        p->state = PARSE_CHUNK_EXTENSION;
    } else if (p->n_digit > 0 && c == '\r') {
        p->state = PARSE_CHUNK_SIZE_LF;
    } else {
        fail(p, 400, "a chunk of the body does not begin with its size");
    }
}

/* The byte between pieces of a chunked body. */
static void feed_chunk_frame(http_parse *p, char c) {
    static const char *const broken = "a chunk of the body does not end as its size says";
    switch (p->state) {
    case PARSE_CHUNK_SIZE:
        feed_chunk_size(p, c);
        break;
    case PARSE_CHUNK_EXTENSION:
        p->n_extra++;
        if (c == '\r') {
            p->state = PARSE_CHUNK_SIZE_LF;
        } else if (!is_clean(&c, 1)) {
            fail(p, 400, "a chunk's extension holds control characters");
        }
        break;
    case PARSE_CHUNK_SIZE_LF:
        p->n_digit = 0;
        p->state = p->due > 0 ? PARSE_CHUNK_DATA : PARSE_TRAILER_BEGIN;
        if (c != '\n') {
            fail(p, 400, broken);
        }
        break;
    case PARSE_CHUNK_DATA_CR:
        p->state = PARSE_CHUNK_DATA_LF;
        if (c != '\r') {
            fail(p, 400, broken);
        }
        break;
    case PARSE_CHUNK_DATA_LF:
        p->state = PARSE_CHUNK_SIZE;
        if (c != '\n') {
            fail(p, 400, broken);
        }
        break;
    default: /* trailers are read and dropped */
        p->n_extra++;
        if (p->state == PARSE_TRAILER_LF) {
            p->state = PARSE_DONE;
            if (c != '\n') {
                fail(p, 400, broken);
            }
        } else if (c == '\n') {
            p->state = PARSE_TRAILER_BEGIN;
        } else {
            p->state =
                p->state == PARSE_TRAILER_BEGIN && c == '\r' ? PARSE_TRAILER_LF : PARSE_TRAILER;
        }
        break;
    }
    if (p->n_extra > p->max_head && p->state != PARSE_FAILED) {
        fail(p, 431, "chunk extensions and trailers are longer than this server takes");
    }
}

size_t parse_feed(http_parse *p, const char *data, size_t n) {
    size_t at = 0;
    while (at < n && p->state != PARSE_DONE && p->state != PARSE_FAILED) {
        if (p->state == PARSE_HEAD) {
            at += feed_head(p, data + at, n - at);
        } else if (p->state == PARSE_BODY) {
            at += feed_body(p, data + at, n - at, PARSE_DONE);
        } else if (p->state == PARSE_CHUNK_DATA) {
            at += feed_body(p, data + at, n - at, PARSE_CHUNK_DATA_CR);
        } else {
            feed_chunk_frame(p, data[at++]);
        }
    }
    return at;
}

void parse_begin(http_parse *p, size_t max_head, size_t max_body) {
    *p = (http_parse){.max_head = max_head, .max_body = max_body};
}

void parse_free(http_parse *p) {
    free(p->head);
    free(p->fields);
    free(p->path);
    free(p->body);
    *p = (http_parse){.state = PARSE_FAILED};
}
