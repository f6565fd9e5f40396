/* Calls: what the application sees of a request, and the bytes of its reply. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "http/impl.h"

http_call *call_open(conn *c) {
    http_call *call = calloc(1, sizeof *call);
    if (call == NULL) {
        return NULL;
    }
    http_server *s = c->s;
    call->s = s;
    call->c = c;
    memcpy(call->peer, c->peer, sizeof call->peer);
    parse_begin(&call->request, s->p.max_header_bytes, s->p.max_body_bytes);
    call->next = s->calls;
    if (call->next != NULL) {
        call->next->prev = call;
    }
    s->calls = call;
    return call;
}

size_t call_counted(size_t n_body) {
    return n_body > HTTP_SMALL_BODY ? n_body : 0;
}

void call_free(http_call *call) {
    *(call->prev == NULL ? &call->s->calls : &call->prev->next) = call->next;
    if (call->next != NULL) {
        call->next->prev = call->prev;
    }
    call->s->bodies_bytes -= call_counted(call->request.n_body);
    parse_free(&call->request);
    if (call->fields != NULL) {
        evbuffer_free(call->fields);
    }
    free(call);
}

/* ---- the request ---- */

const char *http_method(const http_call *c) {
    return c->request.head + c->request.method;
}

const char *http_path(const http_call *c) {
    return c->request.path;
}

const char *http_header(const http_call *c, const char *name) {
    return parse_find(&c->request, name);
}

const char *http_peer(const http_call *c) {
    return c->peer;
}

char *http_take_body(http_call *c, size_t *n) {
    char *body = c->request.body;
    *n = c->request.n_body;
    c->s->bodies_bytes -= call_counted(*n);
    c->request.body = NULL;
    c->request.n_body = 0;
    return body != NULL ? body : calloc(1, 1);
}

void http_on_gone(http_call *c, void (*fn)(void *arg), void *arg) {
    c->on_gone = fn;
    c->gone_arg = arg;
}

/* ---- the head of a reply ---- */

static const char *reason_of(int status) {
    static const struct {
        int status;
        const char *text;
    } known[] = {{200, "OK"},
                 {201, "Created"},
                 {202, "Accepted"},
                 {204, "No Content"},
                 {304, "Not Modified"},
                 {400, "Bad Request"},
                 {401, "Unauthorized"},
                 {403, "Forbidden"},
                 {404, "Not Found"},
                 {405, "Method Not Allowed"},
                 {408, "Request Timeout"},
                 {409, "Conflict"},
                 {413, "Content Too Large"},
                 {415, "Unsupported Media Type"},
                 {417, "Expectation Failed"},
                 {422, "Unprocessable Content"},
                 {429, "Too Many Requests"},
                 {431, "Request Header Fields Too Large"},
                 {500, "Internal Server Error"},
                 {501, "Not Implemented"},
                 {503, "Service Unavailable"},
                 {504, "Gateway Timeout"},
                 {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].status == status) {
            return known[i].text;
        }
    }
    return "Other";
}

static void put(conn *c, const void *data, size_t n) {
    c->broken = c->broken || evbuffer_add(c->out, data, n) != 0;
}

static void put_text(conn *c, const char *text) {
    put(c, text, strlen(text));
}

static bool is_get_head(const http_call *call) {
    return call->request.target > 0 && strcmp(http_method(call), "HEAD") == 0;
}

static void put_cors(http_call *call) {
    const char *origin = call->s->cors_origin;
    if (origin != NULL) {
        put_text(call->c, "Access-Control-Allow-Origin: ");
        put_text(call->c, origin);
        put_text(call->c, strcmp(origin, "*") == 0 ? "\r\n" : "\r\nVary: Origin\r\n");
    }
}

/* Everything up to the empty line but what says where the body ends. */
static void put_head(http_call *call, int status, const char *content_type) {
    conn *c = call->c;
    char date[64];
    call->begun = true;
    call->bare = is_get_head(call) || status == 204 || status == 304;
    evutil_date_rfc1123(date, sizeof date, NULL);
    c->broken = c->broken || evbuffer_add_printf(c->out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status,
                                                 reason_of(status), date) < 0;
    if (content_type != NULL) {
        put_text(c, "Content-Type: ");
        put_text(c, content_type);
        put_text(c, "\r\n");
    }
    if (c->close) {
        put_text(c, "Connection: close\r\n");
    } else if (call->request.minor == 0) {
        put_text(c, "Connection: keep-alive\r\n");
    }
    put_cors(call);
    if (call->fields != NULL) {
        c->broken = c->broken || evbuffer_add_buffer(c->out, call->fields) != 0;
    }
}

void http_add_header(http_call *c, const char *name, const char *value) {
    if (c->fields == NULL) {
        c->fields = evbuffer_new();
    }
    if (c->fields == NULL) {
        return;
    }
    evbuffer_add(c->fields, name, strlen(name));
    evbuffer_add(c->fields, ": ", 2);
    while (*value != '\0') {
        size_t n = 0;
        while ((unsigned char)value[n] >= 0x20 && value[n] != 0x7F) {
            n++;
        }
        evbuffer_add(c->fields, value, n);
        value += n + (value[n] != '\0');
    }
    evbuffer_add(c->fields, "\r\n", 2);
}

/* ---- replies ---- */

/* Whether the connection ends behind the reply: also when the request's body was not wanted. */
static bool closes(const http_call *c) {
    return !c->request.keep_alive || c->s->draining || c->request.state != PARSE_DONE;
}

static void put_reply(http_call *call, int status, const char *content_type, const char *body,
                      size_t n) {
    conn *c = call->c;
    put_head(call, status, content_type);
    char length[48] = "\r\n";
    if (status != 204 && status != 304) {
        snprintf(length, sizeof length, "Content-Length: %zu\r\n\r\n", n);
    }
    put_text(c, length);
    if (!call->bare) {
        put(c, body, n);
    }
}

void http_reply(http_call *c, int status, const char *content_type, const char *body, size_t n) {
    if (c->c == NULL) {
        call_free(c);
        return;
    }
    c->c->close = closes(c);
    put_reply(c, status, content_type, body, n);
    conn_finish(c->c);
}

void call_refuse(conn *c, int status, const char *reason) {
    char body[512];
    int n =
        snprintf(body, sizeof body,
                 "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":null}}",
                 reason, status == 503 ? "server_error" : "invalid_request_error");
    c->close = true;
    put_reply(c->call, status, "application/json", body, (size_t)n);
    if (c->s->p.on_refuse != NULL) {
        c->s->p.on_refuse(c->s->p.user, c->peer, status, reason);
    }
    conn_finish(c);
}

bool call_preflight(http_call *call) {
    const char *asked = http_header(call, "Access-Control-Request-Headers");
    if (call->s->cors_origin == NULL || strcmp(http_method(call), "OPTIONS") != 0 ||
        http_header(call, "Origin") == NULL ||
        http_header(call, "Access-Control-Request-Method") == NULL) {
        return false;
    }
    /* clients add headers of their own, which name their version */
    static const char allow[] = "Access-Control-Allow-Headers";
    if (asked != NULL) {
        http_add_header(call, allow, asked);
    }
    http_add_header(call, allow, "Authorization, Content-Type, X-Request-Id");
    http_add_header(call, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    http_add_header(call, "Access-Control-Max-Age", "3600");
    http_reply(call, 204, NULL, "", 0);
    return true;
}

/* ---- streams ---- */

void http_stream_begin(http_call *c, int status, const char *content_type) {
    if (c->c == NULL) {
        return;
    }
    c->chunked = c->request.minor == 1;
    c->events = strncmp(content_type, "text/event-stream", 17) == 0;
    c->c->close = closes(c) || !c->chunked;
    put_head(c, status, content_type);
    put_text(c->c, c->chunked && !c->bare ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    conn_wake(c->c);
}

void http_stream_send(http_call *c, const char *data, size_t n) {
    if (c->c == NULL || c->bare || n == 0) {
        return; /* an empty chunk would end the stream */
    }
    if (c->chunked) {
        char size[24];
        snprintf(size, sizeof size, "%zx\r\n", n);
        put_text(c->c, size);
    }
    put(c->c, data, n);
    if (c->chunked) {
        put_text(c->c, "\r\n");
    }
    conn_wake(c->c);
}

size_t http_stream_backlog(const http_call *c) {
    return c->c == NULL ? 0 : evbuffer_get_length(c->c->out);
}

void http_stream_end(http_call *c) {
    if (c->c == NULL) {
        call_free(c);
        return;
    }
    if (c->chunked && !c->bare) {
        put_text(c->c, "0\r\n\r\n");
    }
    conn_finish(c->c);
}

/* 100 is the one interim status that every client skips, asked for or not. */
bool call_probe(http_call *call) {
    if (!call->begun && call->request.minor == 0) {
        return false;
    }
    if (!call->begun) {
        put_text(call->c, "HTTP/1.1 100 Continue\r\n\r\n");
        conn_wake(call->c);
    } else if (call->events && http_stream_backlog(call) == 0) {
        http_stream_send(call, ":\n\n", 3);
    }
    return true;
}
