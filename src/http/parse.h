/* The bytes of one HTTP/1.x request, fed as they come. Strict where two readers of one connection
 * could disagree about where a request ends: no folded lines, no blank before a colon, one
 * Content-Length of digits or one Transfer-Encoding "chunked", never both. Nothing here knows of
 * sockets. */
#ifndef WEFT_HTTP_PARSE_H
#define WEFT_HTTP_PARSE_H

#include "base/status.h"

typedef enum parse_state {
    PARSE_HEAD,
    PARSE_BODY, /* of a known length */
    PARSE_CHUNK_SIZE,
    PARSE_CHUNK_EXTENSION,
    PARSE_CHUNK_SIZE_LF,
    PARSE_CHUNK_DATA,
    PARSE_CHUNK_DATA_CR,
    PARSE_CHUNK_DATA_LF,
    PARSE_TRAILER_BEGIN,
    PARSE_TRAILER,
    PARSE_TRAILER_LF,
    PARSE_DONE,
    PARSE_FAILED
} parse_state;

typedef struct parse_field {
    size_t name, value; /* places in head */
} parse_field;

typedef struct http_parse {
    size_t max_head, max_body; /* bytes */
    parse_state state;
    int status;      /* FAILED: of the reply, */
    char reason[96]; /* and its text, without a byte of the request */

    char *head; /* [n_head] lines, each NUL-terminated, free of control characters */
    size_t n_head, cap_head, line; /* line: where the line at work begins */
    size_t method, target;         /* places in head */
    int32_t minor;                 /* HTTP/1.minor, 0 or 1 */
    parse_field *fields;
    size_t n_field, cap_field;
    char *path; /* decoded; "" when it cannot be */

    bool keep_alive, chunked, expects; /* expects: 100-continue, not answered yet */
    char *body;                        /* [n_body], NUL behind it; NULL while empty */
    size_t n_body, cap_body;
    size_t due;     /* bytes of the body or of this chunk still to come */
    size_t n_digit; /* of this chunk's size */
    size_t n_extra; /* bytes of extensions and trailers so far: bounded like the head */
} http_parse;

void parse_begin(http_parse *p, size_t max_head, size_t max_body);
void parse_free(http_parse *p);
/* Takes bytes up to the end of the request, and returns how many; all of them unless the state is
 * then DONE or FAILED. */
size_t parse_feed(http_parse *p, const char *data, size_t n);
/* The first field of this name, case ignored; NULL: none. Once the state has passed HEAD. */
const char *parse_find(const http_parse *p, const char *name);

#endif
