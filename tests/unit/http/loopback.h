/* A server with a few paths, its loop in a thread, and a client that says byte for byte what it
 * wants. All waits end after WAIT_S. */
#ifndef TESTS_HTTP_LOOPBACK_H
#define TESTS_HTTP_LOOPBACK_H

#include <pthread.h>
#include <stdatomic.h>

#include "http/http.h"

enum { WAIT_S = 20, HELD = 300 };

/* Paths: /hello; /echo: the body; /seen: method, path, X-A and peer; /stream: three pieces in one
 * turn; /hold: kept in held, its hang-up counted in gone; /hold-silent: the same without on_gone;
 * /events, /bytes: a stream of text/event-stream, of anything, begun and held; /flood: 8 MiB sent
 * into a stream at once; /clean: a header with bytes that a header cannot hold. Others: 404. */
typedef struct loopback {
    http_params params;
    http_server *s;
    pthread_t thread;
    bool running;
    http_call *held[HELD]; /* the loop's */
    int n_held;
    atomic_int holding, gone, calls, order;
    atomic_size_t backlog;
} loopback;

void loopback_params(loopback *l); /* calm limits; then change some */
void loopback_start(loopback *l);
/* Ends the thread and frees the server. */
void loopback_stop(loopback *l);
/* Before and after each test; 0. */
int loopback_set_up(loopback *l);
int loopback_tear_down(loopback *l);
/* A server of the limits that l->params has now. */
void loopback_restart(loopback *l);
/* Has fn run in the loop, and returns when it has. */
void loopback_run(loopback *l, void (*fn)(loopback *l));
/* Replies "late" to all that is held; ends the held streams. */
void loopback_release(loopback *l);
/* Waits until *value is `due`; fails the test otherwise. */
void wait_for(atomic_int *value, int due);
int loopback_connections(loopback *l);
/* Waits until that many connections are open. */
void wait_for_connections(loopback *l, int due);

typedef struct reply {
    int status, interim; /* interim: of status 100 before it */
    char head[4096];
    char *body; /* malloc, NUL-terminated; NULL: no whole reply came */
    size_t n;
} reply;

int client_connect(const loopback *l);
/* The two halves of it. */
int client_socket(void);
void client_join(const loopback *l, int fd);
void client_send(int fd, const char *bytes, size_t n);
void client_say(int fd, const char *text);
/* A whole reply by its length, chunks, or the connection's end. */
reply client_read(int fd, bool head_only);
/* The value of a field of r->head (a static buffer), or "". */
const char *reply_field(const reply *r, const char *name);
/* Whether the other side closes within WAIT_S; what it still says is dropped. */
bool client_is_closed(int fd);
/* One exchange on a connection of its own; checks status and body (NULL: not looked at). */
void exchange(const loopback *l, const char *request, int status, const char *body);
void expect(int fd, int status, const char *body);
double seconds_now(void);

#endif
