/* Inside of src/http: connections and calls.
 *
 * A connection goes IDLE -> READING -> CALL -> FLUSH -> IDLE, one request at a time. What a client
 * sends ahead waits, in `ahead` and in the kernel; so nobody fills memory while a reply is made.
 * Its socket is watched once, edge-triggered: `readable` and `fin` remember what was seen.
 *
 * A connection is freed only from its own events and from http_close; never inside a function that
 * the application calls. */
#ifndef WEFT_HTTP_IMPL_H
#define WEFT_HTTP_IMPL_H

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <netinet/in.h>
#include <pthread.h>

#include "http/http.h"
#include "http/parse.h"

enum { HTTP_READ_BYTES = 65536 };

typedef enum conn_state {
    CONN_IDLE,    /* no byte of a request yet */
    CONN_READING, /* call is being filled */
    CONN_CALL,    /* call is the application's */
    CONN_FLUSH,   /* the reply is complete, the client has not taken all of it */
    CONN_LINGER   /* nothing more to say; what the client still sends is dropped, so that the
                     kernel does not reset the connection before the client has read the reply */
} conn_state;

typedef struct conn {
    http_server *s;
    struct conn *prev, *next;
    int fd;
    conn_state state;
    bool readable;      /* the kernel may hold bytes or the end */
    bool fin;           /* the client has shut down its sending side, or closed */
    bool close;         /* after this reply */
    bool broken;        /* no memory for a part of the reply: it cannot be completed */
    bool look;          /* something happened to the socket during a call */
    bool cut;           /* others need the memory of what it does not read */
    size_t unread;      /* bytes in `out` that the server's sum knows of */
    int unacknowledged; /* bytes, when the deadline for writing was set */
    struct event io, again, timer, probe;
    struct evbuffer *ahead, *out;
    http_call *call; /* READING and CALL */
    char peer[INET6_ADDRSTRLEN];
} conn;

struct http_call {
    http_server *s;
    http_call *prev, *next;
    conn *c; /* NULL: the client has gone */
    char peer[INET6_ADDRSTRLEN];
    http_parse request;
    void (*on_gone)(void *arg);
    void *gone_arg;
    struct evbuffer *fields; /* of the reply, each with its line end; NULL: none */
    bool head_seen;          /* by on_head */
    bool begun;              /* the reply */
    bool bare;               /* a reply without body: HEAD, 204, 304 */
    bool chunked, events;    /* events: a stream of text/event-stream */
};

typedef struct post {
    struct post *next;
    void (*fn)(void *arg);
    void *arg;
} post;

typedef struct signal_watch {
    struct signal_watch *next;
    struct event *event;
    void (*fn)(void *arg);
    void *arg;
} signal_watch;

struct http_server {
    http_params p;
    char *cors_origin; /* own copy */
    struct event_base *base;
    const struct timeval *read_tv, *idle_tv, *write_tv, *linger_tv;
    struct event *listeners[HTTP_SOCKETS], *resume, *posted;
    int32_t n_listener, port;
    bool accepting, draining, stopped;
    conn *conns;
    http_call *calls;
    http_timer *timers;
    int32_t n_conn;
    size_t bodies_bytes;  /* in all calls, of large bodies */
    size_t unread_bytes;  /* in all connections */
    pthread_mutex_t lock; /* of posts */
    post *posts, **last_post;
    int wake_fd;
    signal_watch *signals;
    char scratch[HTTP_READ_BYTES];
};

/* Takes the sockets over one by one; on failure those left are the caller's. */
weft_status listen_open(http_server *s, http_sockets *sockets, weft_error *err);
void listen_close(http_server *s);
/* Accepts again where there is room. */
void listen_resume(http_server *s);

/* Takes the socket over. NULL: no memory; the socket is closed. */
conn *conn_open(http_server *s, int fd, const char *peer);
/* Ends the connection; a call that the application holds outlives it, without one. */
void conn_free(conn *c);
/* Closes it at its next turn if it has nothing to do, whatever the client has sent by then. */
void conn_drain(conn *c);
/* Has the output written, and what follows from it done, when this turn's callbacks are over. */
void conn_wake(conn *c);
/* The call's whole reply is in `out`: frees the call. */
void conn_finish(conn *c);

/* What a body counts in bodies_bytes. */
size_t call_counted(size_t n_body);
http_call *call_open(conn *c);
void call_free(http_call *call);
/* A sign of life to a client that has shut its sending side down: if it has closed altogether, its
 * kernel answers with a reset. False: there is nothing harmless to send. */
bool call_probe(http_call *call);
/* Answers a preflight request of a browser; false: it is none, or no origin may call. */
bool call_preflight(http_call *call);
/* Puts a whole reply into c->out: a JSON error with this text. The connection closes after it. */
void call_refuse(conn *c, int status, const char *reason);

#endif
