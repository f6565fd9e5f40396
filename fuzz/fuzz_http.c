/* Input: one byte (bits 0..2: bytes a write has, 7: all of them; bit 3: the client shuts its sending
 * side down before it closes; bit 4: it does not read; bit 5: there is a CORS origin), then what a
 * client sends.
 *
 * The parser takes the same request whatever the writes. Through a connection, the client gets
 * replies that begin as replies do, and nothing is left when it has closed. */
#include "http/impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_HEAD = 600, MAX_BODY = 300, TURNS = 4 };

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* ---- the parser ---- */

static http_parse parse(const uint8_t *data, size_t n, size_t step, size_t *used) {
    http_parse p;
    parse_begin(&p, MAX_HEAD, MAX_BODY);
    for (*used = 0; *used < n && p.state != PARSE_DONE && p.state != PARSE_FAILED;) {
        size_t piece = step < n - *used ? step : n - *used;
        char *copy = malloc(piece); /* its own block, so that reading past the end is seen */
        memcpy(copy, data + *used, piece);
        size_t took = parse_feed(&p, copy, piece);
        free(copy);
        CHECK(took == piece || p.state == PARSE_DONE || p.state == PARSE_FAILED);
        *used += took;
    }
    return p;
}

static void check_request(const http_parse *p) {
    CHECK(p->n_body <= MAX_BODY && p->n_head <= MAX_HEAD);
    CHECK(strlen(p->head + p->method) >= 3 && strlen(p->head + p->target) >= 1);
    for (const char *c = p->path; *c != '\0'; c++) {
        CHECK(*c >= 0x20 && *c <= 0x7E);
    }
    for (size_t i = 0; i < p->n_field; i++) {
        const char *value = parse_find(p, p->head + p->fields[i].name);
        CHECK(value != NULL && strpbrk(value, "\r\n") == NULL);
    }
}

static void check_cuts(const uint8_t *data, size_t n, size_t step) {
    size_t used_whole, used_cut;
    http_parse whole = parse(data, n, n, &used_whole), cut = parse(data, n, step, &used_cut);
    CHECK(whole.state == cut.state && whole.status == cut.status);
    if (whole.state == PARSE_DONE) {
        CHECK(used_whole == used_cut);
        CHECK(whole.n_head == cut.n_head && memcmp(whole.head, cut.head, cut.n_head) == 0);
        CHECK(whole.n_body == cut.n_body && strcmp(whole.path, cut.path) == 0);
        CHECK(cut.n_body == 0 || memcmp(whole.body, cut.body, cut.n_body) == 0);
        check_request(&whole);
    }
    parse_free(&whole);
    parse_free(&cut);
}

/* ---- a connection ---- */

static int n_held;

static void on_gone(void *arg) {
    (void)arg;
    n_held--;
}

/* What happens to a request is in its path. */
static void on_call(void *user, http_call *c) {
    (void)user;
    char kind = http_path(c)[0] == '\0' ? '\0' : http_path(c)[1];
    size_t n;
    char *body = http_take_body(c, &n);
    CHECK(body != NULL && n <= MAX_BODY && body[n] == '\0');
    const char *a = http_header(c, "A");
    http_add_header(c, "B", a == NULL ? http_peer(c) : a);
    if (kind == 'h') {
        http_on_gone(c, on_gone, NULL);
        n_held++;
    } else if (kind == 's' || kind == 'e') {
        http_stream_begin(c, 200, kind == 'e' ? "text/event-stream" : "text/plain");
        http_stream_send(c, body, n);
        if (n % 2 == 0) {
            http_stream_end(c);
        } else {
            http_on_gone(c, on_gone, NULL);
            n_held++;
        }
    } else {
        http_reply(c, kind == '\0' ? 404 : 200, "text/plain", body, n);
    }
    free(body);
}

static http_server *open_server(const char *origin) {
    http_server *s = NULL;
    http_sockets sockets;
    CHECK(http_bind("127.0.0.1", 0, &sockets, NULL) == WEFT_OK);
    CHECK(http_open(&(http_params){.sockets = &sockets,
                                   .max_header_bytes = MAX_HEAD,
                                   .max_body_bytes = MAX_BODY,
                                   .max_bodies_bytes = 64 * MAX_BODY,
                                   .max_unread_bytes = 1 << 20,
                                   .max_connections = 4,
                                   .read_s = 60,
                                   .idle_s = 60,
                                   .write_s = 60,
                                   .cors_origin = origin,
                                   .on_call = on_call},
                    &s, NULL) == WEFT_OK);
    return s;
}

static void turn(http_server *s) {
    for (int i = 0; i < TURNS; i++) {
        event_base_loop(s->base, EVLOOP_NONBLOCK);
    }
}

/* Drops what has come, and adds its length to *total. */
static void read_all(int fd, size_t *total) {
    static const char begin[] = "HTTP/1.1 ";
    char text[4096];
    ssize_t n;
    while ((n = recv(fd, text, sizeof text, MSG_DONTWAIT)) > 0) {
        CHECK(*total > 0 || n < 9 || memcmp(text, begin, 9) == 0);
        *total += (size_t)n;
    }
}

static void check_connection(http_server *s, const uint8_t *data, size_t n, size_t step,
                             bool half_closes, bool reads) {
    int fds[2];
    size_t total = 0;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    CHECK(conn_open(s, fds[0], "somebody") != NULL);
    for (size_t at = 0; at < n; at += step) {
        size_t piece = step < n - at ? step : n - at;
        if (send(fds[1], data + at, piece, MSG_NOSIGNAL) != (ssize_t)piece) {
            break; /* the server does not read more for now, or has closed */
        }
        turn(s);
        if (reads) {
            read_all(fds[1], &total);
        }
    }
    if (half_closes) {
        shutdown(fds[1], SHUT_WR);
        turn(s);
        read_all(fds[1], &total);
    }
    close(fds[1]);
    for (int i = 0; s->n_conn > 0 && i < 1000; i++) {
        turn(s);
    }
    CHECK(s->n_conn == 0 && s->calls == NULL && n_held == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static http_server *servers[2];
    if (servers[0] == NULL) {
        servers[0] = open_server(NULL);
        servers[1] = open_server("https://app.test");
    }
    if (size < 2) {
        return 0;
    }
    size_t n = size - 1, step = (data[0] & 7) == 7 ? n : (size_t)1 << (data[0] & 7);
    check_cuts(data + 1, n, step);
    check_connection(servers[data[0] >> 5 & 1], data + 1, n, step, (data[0] & 8) != 0,
                     (data[0] & 16) == 0);
    return 0;
}
