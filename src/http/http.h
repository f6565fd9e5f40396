/* HTTP/1.1 on libevent's loop and buffers; no file outside of src/http includes its headers.
 *
 * A request that is not HTTP, too long or too slow is answered here, with an error of OpenAI's shape
 * and status 400, 408, 413, 415, 417, 431, 501 or 505; the application sees whole requests only.
 *
 * One thread runs the loop (http_run) and calls every callback. Calls marked (any thread) may come
 * from others; all else belongs to the loop's thread, or to any before http_run.
 *
 * An http_call is one request and its reply. Its life ends with http_reply or http_stream_end, or
 * after on_gone has returned: the client has hung up, and there is nobody to reply to. No function
 * below calls on_gone or on_call itself; they are called from the loop. A write to a client that has
 * gone raises no SIGPIPE. */
#ifndef WEFT_HTTP_HTTP_H
#define WEFT_HTTP_HTTP_H

#include "base/status.h"

typedef struct http_server http_server;
typedef struct http_call http_call;

enum { HTTP_SMALL_BODY = 65536 };

/* Sockets on every address of a host's name. Bound, so that nobody else can have the port; who
 * connects before http_open is refused. */
enum { HTTP_SOCKETS = 8 };
typedef struct http_sockets {
    int fd[HTTP_SOCKETS];
    int32_t n, port;
} http_sockets;
/* host: name or address; port 0: a free one. WEFT_ERR_SETUP names host and port and the system's
 * reason. */
weft_status http_bind(const char *host, int32_t port, http_sockets *out, weft_error *err);
void http_unbind(http_sockets *s); /* leaves none */

typedef struct http_params {
    http_sockets *sockets; /* http_open leaves none in it, also on failure */
    size_t max_header_bytes, max_body_bytes;
    /* Of all requests that are being received, those of at most HTTP_SMALL_BODY excepted; beyond it:
     * 503 for the one that grows. */
    size_t max_bodies_bytes;
    /* Of all replies that wait for their clients; beyond it the largest is cut off. */
    size_t max_unread_bytes;
    int32_t max_connections; /* beyond it they wait in the kernel's queue */
    int32_t read_s;          /* from the first byte of a request to its last */
    int32_t idle_s;          /* of a connection without a request */
    int32_t write_s;         /* without progress of a client that has not read its reply */
    const char *cors_origin; /* NULL: none; "*", or the origin that browsers may call from */
    /* The head of a request with a body has come. False: the callback has replied; the body is not
     * read. NULL: all bodies are welcome. */
    bool (*on_head)(void *user, http_call *c);
    /* A request has come, with method, path, headers and body; also for unknown paths, but not for
     * the preflight requests of browsers when there is a cors_origin. */
    void (*on_call)(void *user, http_call *c);
    /* A request was answered here with an error. NULL: nobody wants to know. */
    void (*on_refuse)(void *user, const char *peer, int status, const char *reason);
    void *user;
} http_params;

/* Listens. The texts of *p are copied. */
weft_status http_open(const http_params *p, http_server **out, weft_error *err);
/* After http_run. Open calls end without on_gone, timers without their call. NULL is allowed. */
void http_close(http_server *s);
int32_t http_port(const http_server *s);
int32_t http_connections(const http_server *s); /* open ones, idle or not */

/* Serves until http_stop. */
void http_run(http_server *s);
void http_stop(http_server *s);
/* No new connections; open calls go on, idle connections are closed, replies say
 * "Connection: close". All is sent when http_connections is 0. */
void http_drain(http_server *s);

/* (any thread) Has the loop's thread call fn(arg); calls of one thread keep their order. arg is lost
 * when the loop has ended. WEFT_ERR_MEMORY. */
weft_status http_post(http_server *s, void (*fn)(void *arg), void *arg);
/* Calls fn(arg) when the process gets the signal, from the loop. */
weft_status http_on_signal(http_server *s, int signal, void (*fn)(void *arg), void *arg,
                           weft_error *err);
/* Calls fn(arg) once after `seconds`. The timer ends with its call or http_timer_stop. NULL: no
 * memory. */
typedef struct http_timer http_timer;
http_timer *http_timer_start(http_server *s, double seconds, void (*fn)(void *arg), void *arg);
void http_timer_stop(http_timer *t); /* NULL is allowed */

/* ---- a request; texts borrowed until the call ends ---- */
const char *http_method(const http_call *c); /* "GET", "POST", "OPTIONS", ... */
/* Without query, decoded; printable ASCII, "" when it is not. */
const char *http_path(const http_call *c);
const char *http_header(const http_call *c, const char *name); /* NULL: not sent */
const char *http_peer(const http_call *c);                     /* address */
/* The body, now the caller's (free), NUL-terminated behind its *n bytes. NULL: no memory. */
char *http_take_body(http_call *c, size_t *n);

/* Called once when the client hangs up, or has not read for write_s, before the reply is complete.
 * A client that has only shut its sending side down gets its reply: a FIN says no more than that, so
 * from then on the client is sent an interim status 100 each second (a comment line in a stream of
 * text/event-stream), which one that has closed answers with a reset. A request of HTTP/1.0, which
 * has neither, ends with the FIN unless its reply has begun. Without on_gone the call lives until
 * its reply, which goes nowhere. */
void http_on_gone(http_call *c, void (*fn)(void *arg), void *arg);

/* ---- a reply ---- */
/* A header of the reply, before it begins. Bytes that a header cannot hold are left out. */
void http_add_header(http_call *c, const char *name, const char *value);
/* Replies with `body` [n], copied, and ends the call. */
void http_reply(http_call *c, int status, const char *content_type, const char *body, size_t n);
/* A reply of unknown length in pieces: begin, any number of send (copied), end. What the client does
 * not read waits in memory. */
void http_stream_begin(http_call *c, int status, const char *content_type);
void http_stream_send(http_call *c, const char *data, size_t n);
size_t http_stream_backlog(const http_call *c); /* bytes that wait for the client */
void http_stream_end(http_call *c);
#endif
