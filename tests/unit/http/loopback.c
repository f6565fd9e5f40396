#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "unit/http/loopback.h"

double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap(void) {
    nanosleep(&(struct timespec){0, 2000000}, NULL);
}

void wait_for(atomic_int *value, int due) {
    double end = seconds_now() + WAIT_S;
    while (atomic_load(value) != due && seconds_now() < end) {
        nap();
    }
    assert_int_equal(atomic_load(value), due);
}

/* ---- the application ---- */

typedef struct held_place {
    loopback *l;
    int at;
} held_place;

static void on_gone(void *arg) {
    held_place *place = arg;
    place->l->held[place->at] = NULL;
    atomic_fetch_add(&place->l->gone, 1);
}

static void hold(loopback *l, http_call *c, bool silent) {
    static held_place places[HELD];
    int at = l->n_held++;
    assert_true(at < HELD);
    places[at] = (held_place){l, at};
    if (!silent) {
        http_on_gone(c, on_gone, &places[at]);
    }
    l->held[at] = c;
    atomic_fetch_add(&l->holding, 1);
}

static void flood(loopback *l, http_call *c) {
    static char piece[65536];
    memset(piece, 'f', sizeof piece);
    http_stream_begin(c, 200, "application/octet-stream");
    for (int i = 0; i < 128; i++) {
        http_stream_send(c, piece, sizeof piece);
    }
    atomic_store(&l->backlog, http_stream_backlog(c));
    hold(l, c, false);
}

static void reply_seen(http_call *c) {
    char text[300];
    const char *a = http_header(c, "x-a");
    snprintf(text, sizeof text, "%s|%s|%s|%s", http_method(c), http_path(c), a == NULL ? "" : a,
             http_peer(c));
    http_reply(c, 200, "text/plain", text, strlen(text));
}

static void reply_stream(http_call *c) {
    http_add_header(c, "X-One", "1");
    http_stream_begin(c, 200, "text/event-stream");
    http_stream_send(c, "data: 1\n\n", 9);
    http_stream_send(c, "", 0);
    http_stream_send(c, "data: 2\n\n", 9);
    http_stream_send(c, "data: 3\n\n", 9);
    http_stream_end(c);
}

static void reply_echo(http_call *c) {
    size_t n, again;
    char *body = http_take_body(c, &n), *none = http_take_body(c, &again);
    assert_true(body != NULL && none != NULL && body[n] == '\0' && again == 0);
    http_reply(c, 200, "text/plain", body, n);
    free(body);
    free(none);
}

/* Bodies for /unwanted are not read. */
static bool on_head(void *user, http_call *c) {
    (void)user;
    if (strcmp(http_path(c), "/unwanted") != 0) {
        return true;
    }
    http_reply(c, 401, "text/plain", "no", 2);
    return false;
}

static void on_call(void *user, http_call *c) {
    loopback *l = user;
    const char *path = http_path(c);
    atomic_fetch_add(&l->calls, 1);
    if (strcmp(path, "/hello") == 0) {
        http_reply(c, 200, "text/plain", "hello", 5);
    } else if (strcmp(path, "/echo") == 0) {
        reply_echo(c);
    } else if (strcmp(path, "/seen") == 0) {
        reply_seen(c);
    } else if (strcmp(path, "/stream") == 0) {
        reply_stream(c);
    } else if (strcmp(path, "/hold") == 0 || strcmp(path, "/hold-silent") == 0) {
        hold(l, c, path[5] != '\0');
    } else if (strcmp(path, "/events") == 0 || strcmp(path, "/bytes") == 0) {
        http_stream_begin(c, 200, path[1] == 'e' ? "text/event-stream" : "text/plain");
        http_stream_send(c, "begin", 5);
        hold(l, c, false);
    } else if (strcmp(path, "/flood") == 0) {
        flood(l, c);
    } else if (strcmp(path, "/clean") == 0) {
        http_add_header(c, "X-Clean", "a\r\nX-Evil: b\x7F\tc\xC3\xA9");
        http_reply(c, 200, "text/plain", "", 0);
    } else {
        http_reply(c, 404, "text/plain", "none", 4);
    }
}

/* ---- the loop's thread ---- */

void loopback_params(loopback *l) {
    *l = (loopback){.params = {.max_header_bytes = 4000,
                               .max_body_bytes = 1000000,
                               .max_bodies_bytes = 100000000,
                               .max_unread_bytes = 1000000000,
                               .max_connections = 1000,
                               .read_s = WAIT_S,
                               .idle_s = WAIT_S,
                               .write_s = WAIT_S,
                               .on_head = on_head,
                               .on_call = on_call}};
    l->params.user = l;
}

static void *run(void *arg) {
    loopback *l = arg;
    http_run(l->s);
    return NULL;
}

void loopback_start(loopback *l) {
    weft_error err = {.text = ""};
    http_sockets sockets;
    weft_status status = http_bind("127.0.0.1", 0, &sockets, &err);
    l->params.sockets = &sockets;
    status = status == WEFT_OK ? http_open(&l->params, &l->s, &err) : status;
    if (status != WEFT_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(pthread_create(&l->thread, NULL, run, l), 0);
    l->running = true;
}

typedef struct order {
    loopback *l;
    void (*fn)(loopback *l);
    atomic_int done;
} order;

static void do_order(void *arg) {
    order *o = arg;
    o->fn(o->l);
    atomic_store(&o->done, 1);
}

void loopback_run(loopback *l, void (*fn)(loopback *l)) {
    static order o; /* not on a stack that a failed wait leaves */
    o.l = l;
    o.fn = fn;
    atomic_store(&o.done, 0);
    assert_int_equal(http_post(l->s, do_order, &o), WEFT_OK);
    wait_for(&o.done, 1);
}

static void stop(loopback *l) {
    http_stop(l->s);
}

void loopback_stop(loopback *l) {
    loopback_run(l, stop);
    assert_int_equal(pthread_join(l->thread, NULL), 0);
    http_close(l->s);
    l->s = NULL;
}

static void release(loopback *l) {
    for (int i = 0; i < l->n_held; i++) {
        http_call *c = l->held[i];
        if (c == NULL) {
            continue;
        }
        if (strncmp(http_path(c), "/hold", 5) == 0) {
            http_reply(c, 200, "text/plain", "late", 4);
        } else {
            http_stream_send(c, "end", 3);
            http_stream_end(c);
        }
        l->held[i] = NULL;
    }
}

void loopback_release(loopback *l) {
    loopback_run(l, release);
}

int loopback_set_up(loopback *l) {
    loopback_params(l);
    loopback_start(l);
    return 0;
}

int loopback_tear_down(loopback *l) {
    loopback_release(l);
    loopback_stop(l);
    return 0;
}

void loopback_restart(loopback *l) {
    loopback_stop(l);
    loopback_start(l);
}

static atomic_int connections;

static void count(loopback *l) {
    atomic_store(&connections, http_connections(l->s));
}

int loopback_connections(loopback *l) {
    loopback_run(l, count);
    return atomic_load(&connections);
}

void wait_for_connections(loopback *l, int due) {
    double end = seconds_now() + WAIT_S;
    while (loopback_connections(l) != due && seconds_now() < end) {
        nap();
    }
    assert_int_equal(loopback_connections(l), due);
}

/* ---- the client ---- */

int client_socket(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct timeval tv = {WAIT_S, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    return fd;
}

void client_join(const loopback *l, int fd) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)http_port(l->s)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
}

int client_connect(const loopback *l) {
    int fd = client_socket();
    client_join(l, fd);
    return fd;
}

void client_send(int fd, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        assert_true(sent > 0);
        bytes += sent;
        n -= (size_t)sent;
    }
}

void client_say(int fd, const char *text) {
    client_send(fd, text, strlen(text));
}

/* One line, LF included, NUL-terminated; false: the connection ended. */
static bool read_line(int fd, char *line, size_t size) {
    size_t n = 0;
    while (n + 1 < size && recv(fd, line + n, 1, 0) == 1) {
        if (line[n++] == '\n') {
            line[n] = '\0';
            return true;
        }
    }
    line[n] = '\0';
    return false;
}

static bool read_head(int fd, reply *r) {
    size_t n = 0;
    char line[1024];
    r->head[0] = '\0';
    while (read_line(fd, line, sizeof line)) {
        if (strcmp(line, "\r\n") == 0) {
            return sscanf(r->head, "HTTP/1.1 %d ", &r->status) == 1;
        }
        assert_true(n + strlen(line) < sizeof r->head);
        memcpy(r->head + n, line, strlen(line) + 1);
        n += strlen(line);
    }
    return false;
}

const char *reply_field(const reply *r, const char *name) {
    static char value[1024];
    size_t n = strlen(name);
    for (const char *line = r->head; *line != '\0'; line = strchr(line, '\n') + 1) {
        if (strncasecmp(line, name, n) == 0 && strncmp(line + n, ": ", 2) == 0) {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(line + n + 2, "\r"), line + n + 2);
            return value;
        }
    }
    return "";
}

/* `n` more bytes of the body, or all to the end for SIZE_MAX. */
static bool read_body(int fd, reply *r, size_t n) {
    for (size_t got = 0; got < n;) {
        size_t piece = n - got < 65536 ? n - got : 65536;
        r->body = realloc(r->body, r->n + piece + 1);
        assert_non_null(r->body);
        ssize_t some = recv(fd, r->body + r->n, piece, 0);
        if (some <= 0) {
            r->body[r->n] = '\0';
            return n == SIZE_MAX && some == 0;
        }
        r->n += (size_t)some;
        got += (size_t)some;
        r->body[r->n] = '\0';
    }
    return true;
}

static bool read_chunks(int fd, reply *r) {
    char line[64];
    while (read_line(fd, line, sizeof line)) {
        size_t n = strtoul(line, NULL, 16);
        if (n > 0 && !read_body(fd, r, n)) {
            return false;
        }
        if (!read_line(fd, line, sizeof line) || strcmp(line, "\r\n") != 0) {
            return false;
        }
        if (n == 0) {
            return true;
        }
    }
    return false;
}

reply client_read(int fd, bool head_only) {
    reply r = {.status = 0};
    while (read_head(fd, &r) && r.status == 100) {
        r.interim++;
        r.status = 0;
    }
    if (r.status == 0) {
        return r;
    }
    r.body = calloc(1, 1);
    const char *length = reply_field(&r, "Content-Length");
    bool whole = true;
    if (head_only || r.status == 204 || r.status == 304) {
        whole = true;
    } else if (*length != '\0') {
        whole = read_body(fd, &r, strtoul(length, NULL, 10));
    } else if (strcmp(reply_field(&r, "Transfer-Encoding"), "chunked") == 0) {
        whole = read_chunks(fd, &r);
    } else {
        whole = read_body(fd, &r, SIZE_MAX);
    }
    if (!whole) {
        free(r.body);
        r.body = NULL;
    }
    return r;
}

bool client_is_closed(int fd) {
    char drop[4096];
    ssize_t n;
    while ((n = recv(fd, drop, sizeof drop, 0)) > 0) {
    }
    return n == 0 || errno == ECONNRESET;
}

void expect(int fd, int status, const char *body) {
    reply r = client_read(fd, false);
    assert_int_equal(r.status, status);
    assert_non_null(r.body);
    if (body != NULL) {
        assert_string_equal(r.body, body);
    }
    free(r.body);
}

void exchange(const loopback *l, const char *request, int status, const char *body) {
    int fd = client_connect(l);
    client_say(fd, request);
    expect(fd, status, body);
    close(fd);
}
