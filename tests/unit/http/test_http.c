/* Requests and replies over loopback: forms, limits, connections, threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "unit/http/loopback.h"

#define HOST " HTTP/1.1\r\nHost: x\r\n"

static loopback l;

static int set_up(void **state) {
    (void)state;
    return loopback_set_up(&l);
}

static int tear_down(void **state) {
    (void)state;
    return loopback_tear_down(&l);
}

/* ---- replies ---- */

static void test_plain(void **state) {
    (void)state;
    int fd = client_connect(&l);
    client_say(fd, "GET /hello" HOST "\r\n");
    reply r = client_read(fd, false);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "hello");
    free(r.body);
    assert_string_equal(reply_field(&r, "Content-Type"), "text/plain");
    assert_string_equal(reply_field(&r, "Content-Length"), "5");
    assert_string_equal(reply_field(&r, "Connection"), "");
    assert_int_equal(strlen(reply_field(&r, "Date")), strlen("Mon, 30 Nov 2026 12:30:00 GMT"));
    assert_string_equal(reply_field(&r, "Access-Control-Allow-Origin"), "");
    client_say(fd, "DELETE /seen%20?q" HOST "x-A: b\r\n\r\n");
    expect(fd, 404, "none");
    client_say(fd, "PUT /seen?q" HOST "x-A: b\r\n\r\n");
    expect(fd, 200, "PUT|/seen|b|127.0.0.1");
    client_say(fd, "OPTIONS /seen" HOST "Origin: o\r\nAccess-Control-Request-Method: GET\r\n\r\n");
    expect(fd, 200, "OPTIONS|/seen||127.0.0.1");
    close(fd);
}

static void test_head(void **state) {
    (void)state;
    int fd = client_connect(&l);
    client_say(fd, "HEAD /hello" HOST "\r\nHEAD /stream" HOST "\r\nGET /hello" HOST "\r\n");
    reply r = client_read(fd, true);
    assert_int_equal(r.status, 200);
    assert_string_equal(reply_field(&r, "Content-Length"), "5");
    free(r.body);
    r = client_read(fd, true);
    assert_string_equal(reply_field(&r, "Content-Type"), "text/event-stream");
    free(r.body);
    expect(fd, 200, "hello");
    close(fd);
}

static void test_bodies(void **state) {
    (void)state;
    int fd = client_connect(&l);
    client_say(fd, "POST /echo" HOST "Content-Length: 0\r\n\r\n");
    expect(fd, 200, "");
    client_say(fd, "POST /echo" HOST "\r\n");
    expect(fd, 200, "");
    client_say(fd, "POST /echo" HOST "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n");
    client_say(fd, "0\r\n\r\n");
    expect(fd, 200, "abc");
    size_t n = l.params.max_body_bytes;
    char *body = malloc(n + 1);
    assert_non_null(body);
    for (size_t i = 0; i < n; i++) {
        body[i] = (char)('a' + i % 23);
    }
    body[n] = '\0';
    client_say(fd, "POST /echo" HOST "Content-Length: 1000000\r\n\r\n");
    client_send(fd, body, n);
    expect(fd, 200, body);
    free(body);
    close(fd);
}

static void test_stream(void **state) {
    (void)state;
    int fd = client_connect(&l);
    for (int i = 0; i < 2; i++) {
        client_say(fd, "GET /stream" HOST "\r\n");
        reply r = client_read(fd, false);
        assert_int_equal(r.status, 200);
        assert_string_equal(r.body, "data: 1\n\ndata: 2\n\ndata: 3\n\n");
        assert_string_equal(reply_field(&r, "Transfer-Encoding"), "chunked");
        assert_string_equal(reply_field(&r, "Content-Length"), "");
        assert_string_equal(reply_field(&r, "X-One"), "1");
        free(r.body);
    }
    /* what is sent in one turn of the loop leaves in one piece */
    char all[2000];
    client_say(fd, "GET /stream" HOST "\r\n");
    ssize_t got = recv(fd, all, sizeof all, 0);
    assert_true(got > 5 && memcmp(all + got - 5, "0\r\n\r\n", 5) == 0);
    close(fd);
}

static void test_old_version(void **state) {
    (void)state;
    int fd = client_connect(&l);
    client_say(fd, "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    reply r = client_read(fd, false);
    assert_string_equal(r.body, "hello");
    assert_string_equal(reply_field(&r, "Connection"), "keep-alive");
    free(r.body);
    client_say(fd, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    r = client_read(fd, false);
    assert_string_equal(r.body, "data: 1\n\ndata: 2\n\ndata: 3\n\n");
    assert_string_equal(reply_field(&r, "Connection"), "close");
    assert_string_equal(reply_field(&r, "Transfer-Encoding"), "");
    free(r.body);
    close(fd);
    fd = client_connect(&l);
    client_say(fd, "GET /hello HTTP/1.0\r\n\r\n");
    expect(fd, 200, "hello");
    assert_true(client_is_closed(fd));
    close(fd);
    fd = client_connect(&l);
    client_say(fd, "GET /hello" HOST "Connection: close\r\n\r\n");
    expect(fd, 200, "hello");
    assert_true(client_is_closed(fd));
    close(fd);
}

/* Many requests in one write, and requests in pieces. */
static void test_pipeline(void **state) {
    (void)state;
    enum { N = 3000 };
    static const char one[] = "POST /echo" HOST "Content-Length: 3\r\n\r\n123";
    size_t n = sizeof one - 1;
    char *all = malloc(N * n);
    assert_non_null(all);
    for (size_t i = 0; i < N; i++) {
        memcpy(all + i * n, one, n);
        char number[8];
        snprintf(number, sizeof number, "%03zu", i % 1000);
        memcpy(all + i * n + n - 3, number, 3);
    }
    int fd = client_connect(&l);
    client_send(fd, all, N * n);
    for (int i = 0; i < N; i++) {
        char number[16];
        snprintf(number, sizeof number, "%03d", i % 1000);
        expect(fd, 200, number);
    }
    for (size_t i = 0; i < 3 * n; i++) {
        client_send(fd, all + i, 1);
    }
    expect(fd, 200, "000");
    expect(fd, 200, "001");
    expect(fd, 200, "002");
    close(fd);
    free(all);
}

static void test_continue(void **state) {
    (void)state;
    int fd = client_connect(&l);
    client_say(fd, "POST /echo" HOST "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    char text[64] = "";
    assert_int_equal(recv(fd, text, sizeof text - 1, 0), 25);
    assert_string_equal(text, "HTTP/1.1 100 Continue\r\n\r\n");
    client_say(fd, "abc");
    expect(fd, 200, "abc");
    client_say(fd, "POST /echo" HOST "Content-Length: 3\r\nExpect: 100-continue\r\n\r\nabc");
    reply r = client_read(fd, false);
    assert_int_equal(r.interim, 0); /* it did not wait */
    assert_string_equal(r.body, "abc");
    free(r.body);
    client_say(fd, "POST /echo" HOST "Content-Length: 3000000\r\nExpect: 100-continue\r\n\r\n");
    r = client_read(fd, false);
    assert_int_equal(r.interim, 0);
    assert_int_equal(r.status, 413);
    free(r.body);
    close(fd);
}

/* A body that nobody wants is answered from its head; what comes of it is dropped. */
static void test_unwanted_body(void **state) {
    (void)state;
    static const char *const rest[] = {"Content-Length: 900000\r\n\r\n",
                                       "Content-Length: 900000\r\n\r\nabc",
                                       "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n",
                                       "Transfer-Encoding: chunked\r\n\r\n3\r\nab"};
    int before = atomic_load(&l.calls);
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) {
        int fd = client_connect(&l);
        client_say(fd, "POST /unwanted" HOST);
        client_say(fd, rest[i]);
        reply r = client_read(fd, false);
        assert_int_equal(r.status, 401);
        assert_int_equal(r.interim, 0);
        assert_string_equal(r.body, "no");
        assert_string_equal(reply_field(&r, "Connection"), "close");
        free(r.body);
        shutdown(fd, SHUT_WR);
        assert_true(client_is_closed(fd));
        close(fd);
    }
    assert_int_equal(atomic_load(&l.calls), before);
    exchange(&l, "POST /echo" HOST "Content-Length: 3\r\n\r\nabc", 200, "abc");
}

/* Large bodies that stall leave room for small ones. */
static void test_bodies_in_flight(void **state) {
    (void)state;
    l.params.max_bodies_bytes = 200000;
    loopback_restart(&l);
    char *part = malloc(150001);
    assert_non_null(part);
    memset(part, 'x', 150000);
    part[150000] = '\0';
    int stalled = client_connect(&l);
    client_say(stalled, "POST /echo" HOST "Content-Length: 150001\r\n\r\n");
    client_say(stalled, part);
    exchange(&l, "POST /echo" HOST "Content-Length: 3\r\n\r\nabc", 200, "abc");
    int late = client_connect(&l);
    client_say(late, "POST /echo" HOST "Content-Length: 150001\r\n\r\n");
    client_say(late, part);
    reply r = client_read(late, false);
    assert_int_equal(r.status, 503);
    free(r.body);
    exchange(&l, "POST /echo" HOST "Content-Length: 3\r\n\r\nabc", 200, "abc");
    client_say(stalled, "x");
    r = client_read(stalled, false);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.n, 150001);
    free(r.body);
    free(part);
    close(stalled), close(late);
}

static void test_header_bytes(void **state) {
    (void)state;
    int fd = client_connect(&l);
    client_say(fd, "GET /clean" HOST "\r\n");
    reply r = client_read(fd, false);
    assert_string_equal(reply_field(&r, "X-Clean"), "aX-Evil: bc\xC3\xA9");
    assert_string_equal(reply_field(&r, "X-Evil"), "");
    free(r.body);
    close(fd);
}

/* ---- refusals ---- */

static void refuse(const char *bytes, size_t n, int status) {
    int fd = client_connect(&l);
    client_send(fd, bytes, n);
    reply r = client_read(fd, false);
    assert_int_equal(r.status, status);
    assert_non_null(r.body);
    static const char begin[] = "{\"error\":{\"message\":\"",
                      end[] = "\",\"param\":null,\"code\":null}}";
    assert_memory_equal(r.body, begin, sizeof begin - 1);
    assert_string_equal(r.body + r.n - strlen(end), end);
    for (const char *c = r.body; *c != '\0'; c++) {
        assert_true(*c >= 0x20 && *c < 0x7F);
    }
    assert_string_equal(reply_field(&r, "Content-Type"), "application/json");
    assert_string_equal(reply_field(&r, "Connection"), "close");
    free(r.body);
    shutdown(fd, SHUT_WR);
    assert_true(client_is_closed(fd));
    close(fd);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int status;
    } due[] = {{"GET /hello\r\n\r\n", 400},
               {"BREW /hello" HOST "\r\n", 501},
               {"\x16\x03\x01", 400},
               {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
               {"POST /echo" HOST "Content-Length: -1\r\n\r\n", 400},
               {"POST /echo" HOST "Content-Length: 1000001\r\n\r\nabc", 413},
               {"POST /echo" HOST "Content-Length: 3000000000\r\n\r\nabc", 413},
               {"POST /echo" HOST "Content-Length: 99999999999999999999\r\n\r\nabc", 413},
               {"POST /echo" HOST "Transfer-Encoding: chunked\r\n\r\nfffffff\r\nabc", 413},
               {"POST /echo" HOST "Content-Length: 1\r\nExpect: x\r\n\r\n", 417}};
    for (size_t i = 0; i < sizeof due / sizeof due[0]; i++) {
        refuse(due[i].text, strlen(due[i].text), due[i].status);
    }
    refuse("GET /hello" HOST "A: \0\r\n\r\n", strlen("GET /hello" HOST) + 8, 400);
    static char large[5000];
    memset(large, 'x', sizeof large);
    memcpy(large, "GET /hello" HOST "A: ", strlen("GET /hello" HOST "A: "));
    refuse(large, sizeof large, 431);
    exchange(&l, "GET /hello" HOST "A: \xFF\xFE\xC0\x80\r\n\r\n", 200, "hello");
    exchange(&l, "GET /\xFF" HOST "\r\n", 404, NULL);
    assert_int_equal(atomic_load(&l.calls), 2);
}

/* The refusal is there to be read though the client has sent more than the kernel holds, and it
 * comes before the body does. */
static void test_too_large(void **state) {
    (void)state;
    static char piece[1 << 20];
    int fd = client_connect(&l);
    client_say(fd, "POST /echo" HOST "Content-Length: 17179869184\r\n\r\n");
    for (int i = 0; i < 20; i++) {
        client_send(fd, piece, sizeof piece);
    }
    expect(fd, 413, NULL);
    close(fd);
    fd = client_connect(&l);
    client_say(fd, "POST /echo" HOST "Content-Length: 2147483648\r\n\r\n");
    expect(fd, 413, NULL);
    assert_true(client_is_closed(fd)); /* it is not waited for the rest */
    close(fd);
}

/* ---- browsers ---- */

static void test_cors(void **state) {
    (void)state;
    l.params.cors_origin = "https://app.test";
    loopback_restart(&l);
    int fd = client_connect(&l);
    client_say(fd, "OPTIONS /echo" HOST "Origin: https://app.test\r\n"
                   "Access-Control-Request-Method: POST\r\n"
                   "Access-Control-Request-Headers: x-stainless-os\r\n\r\n");
    reply r = client_read(fd, false);
    assert_int_equal(r.status, 204);
    assert_string_equal(reply_field(&r, "Access-Control-Allow-Origin"), "https://app.test");
    assert_string_equal(reply_field(&r, "Vary"), "Origin");
    assert_string_equal(reply_field(&r, "Access-Control-Allow-Methods"), "GET, POST, OPTIONS");
    assert_string_equal(reply_field(&r, "Access-Control-Max-Age"), "3600");
    assert_string_equal(reply_field(&r, "Content-Length"), "");
    assert_non_null(strstr(r.head, "Allow-Headers: x-stainless-os\r\n"));
    assert_non_null(strstr(r.head, "Allow-Headers: Authorization, Content-Type, X-Request-Id\r\n"));
    free(r.body);
    assert_int_equal(atomic_load(&l.calls), 0);
    static const char *const others[] = {"OPTIONS /hello" HOST "\r\n", "GET /stream" HOST "\r\n",
                                         "GET /none" HOST "\r\n", "GET /x\r\n\r\n"};
    for (int i = 0; i < 4; i++) {
        client_say(fd, others[i]);
        r = client_read(fd, false);
        assert_string_equal(reply_field(&r, "Access-Control-Allow-Origin"), "https://app.test");
        assert_string_equal(reply_field(&r, "Vary"), "Origin");
        free(r.body);
    }
    close(fd);
    l.params.cors_origin = "*";
    loopback_restart(&l);
    fd = client_connect(&l);
    client_say(fd, "GET /hello" HOST "\r\n");
    r = client_read(fd, false);
    assert_string_equal(reply_field(&r, "Access-Control-Allow-Origin"), "*");
    assert_string_equal(reply_field(&r, "Vary"), "");
    free(r.body);
    close(fd);
}

/* ---- connections ---- */

static int count_fds(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

static void test_no_leak(void **state) {
    (void)state;
    int before = count_fds(), fds[200];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 200; i++) {
            fds[i] = client_connect(&l);
            if (i % 4 == 1) {
                client_say(fds[i], "GET /hel");
            } else if (i % 4 == 2) {
                client_say(fds[i], "GET /hold" HOST "\r\n");
            } else if (i % 4 == 3) {
                client_say(fds[i], "GET /hello" HOST "\r\n");
                expect(fds[i], 200, "hello");
            }
        }
        wait_for(&l.holding, 50 * (round + 1));
        assert_int_equal(loopback_connections(&l), 200);
        for (int i = 0; i < 200; i++) {
            close(fds[i]);
        }
        wait_for(&l.gone, 50 * (round + 1));
        wait_for_connections(&l, 0);
        assert_int_equal(count_fds(), before);
    }
}

static void test_max_connections(void **state) {
    (void)state;
    l.params.max_connections = 3;
    loopback_restart(&l);
    int fds[6];
    for (int i = 0; i < 6; i++) {
        fds[i] = client_connect(&l);
        client_say(fds[i], "GET /hello" HOST "\r\n");
    }
    for (int i = 0; i < 3; i++) {
        expect(fds[i], 200, "hello");
    }
    struct pollfd p = {.fd = fds[3], .events = POLLIN};
    assert_int_equal(poll(&p, 1, 100), 0);
    assert_int_equal(loopback_connections(&l), 3);
    for (int i = 0; i < 3; i++) {
        close(fds[i]);
        expect(fds[i + 3], 200, "hello");
    }
    for (int i = 3; i < 6; i++) {
        close(fds[i]);
    }
    wait_for_connections(&l, 0);
    exchange(&l, "GET /hello" HOST "\r\n", 200, "hello");
}

/* Without descriptors the listener rests, and comes back by itself. */
static void test_no_descriptors(void **state) {
    (void)state;
    struct rlimit before, none;
    int fd = client_socket();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = (rlim_t)fd + 1; /* all below are in use, or this would not be the newest */
    log_set_level(LOG_QUIET);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    client_join(&l, fd);
    client_say(fd, "GET /hello" HOST "\r\n");
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int answered = poll(&p, 1, 100);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(answered, 0);
    expect(fd, 200, "hello");
    close(fd);
    log_set_level(LOG_WARN);
}

static int last; /* a request on it comes when the loop cannot have seen it yet */

static void drain(loopback *server) {
    client_say(last, "GET /hello" HOST "\r\n");
    http_drain(server->s);
}

static void test_drain(void **state) {
    (void)state;
    int idle = client_connect(&l), half = client_connect(&l), held = client_connect(&l);
    int used = client_connect(&l);
    client_say(used, "GET /hello" HOST "\r\n");
    expect(used, 200, "hello");
    client_say(half, "GET /hello" HOST);
    client_say(held, "GET /hold" HOST "\r\n");
    wait_for(&l.holding, 1);
    wait_for_connections(&l, 4);
    last = client_connect(&l);
    wait_for_connections(&l, 5);
    loopback_run(&l, drain);
    expect(last, 200, "hello");
    assert_true(client_is_closed(idle));
    assert_true(client_is_closed(used));
    assert_true(client_is_closed(last));
    wait_for_connections(&l, 2);
    client_say(half, "\r\n");
    reply r = client_read(half, false);
    assert_string_equal(r.body, "hello");
    assert_string_equal(reply_field(&r, "Connection"), "close");
    free(r.body);
    loopback_release(&l);
    r = client_read(held, false);
    assert_string_equal(r.body, "late");
    assert_string_equal(reply_field(&r, "Connection"), "close");
    free(r.body);
    wait_for_connections(&l, 0);
    close(idle), close(half), close(held), close(used), close(last);
}

/* http_close with calls in every state. */
static void test_close_open(void **state) {
    (void)state;
    static const char *const asked[] = {"GET /hold" HOST "\r\n", "GET /events" HOST "\r\n",
                                        "GET /flood" HOST "\r\n", "GET /hold-silent" HOST "\r\n"};
    int fds[6];
    for (int i = 0; i < 6; i++) {
        fds[i] = client_connect(&l);
        client_say(fds[i], i < 4 ? asked[i] : i == 4 ? "GET" : "");
    }
    wait_for(&l.holding, 4);
    wait_for_connections(&l, 6);
    int gone = client_connect(&l); /* its call has nobody left, not even the connection */
    client_say(gone, "GET /hold-silent" HOST "\r\n");
    wait_for(&l.holding, 5);
    close(gone);
    wait_for_connections(&l, 6);
    loopback_stop(&l);
    assert_int_equal(atomic_load(&l.gone), 0);
    l.n_held = 0;
    for (int i = 0; i < 6; i++) {
        assert_true(client_is_closed(fds[i]));
        close(fds[i]);
    }
    loopback_start(&l);
}

/* ---- into the loop ---- */

enum { POSTERS = 4, POSTS = 5000 };
static int seen[POSTERS];
static atomic_int posted;

static void take_post(void *arg) {
    int value = (int)(intptr_t)arg, poster = value / POSTS;
    assert_int_equal(seen[poster]++, value % POSTS);
    atomic_fetch_add(&posted, 1);
}

static void *post_many(void *arg) {
    for (intptr_t i = 0; i < POSTS; i++) {
        assert_int_equal(http_post(l.s, take_post, (void *)((intptr_t)arg * POSTS + i)), WEFT_OK);
    }
    return NULL;
}

static void test_post(void **state) {
    (void)state;
    pthread_t threads[POSTERS];
    memset(seen, 0, sizeof seen);
    atomic_store(&posted, 0);
    for (intptr_t i = 0; i < POSTERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, post_many, (void *)i), 0);
    }
    for (int i = 0; i < POSTERS; i++) {
        pthread_join(threads[i], NULL);
    }
    wait_for(&posted, POSTERS * POSTS);
}

static atomic_int fired;

static void fire(void *arg) {
    atomic_fetch_add(&fired, (int)(intptr_t)arg);
}

static void start_timers(loopback *server) {
    assert_non_null(http_timer_start(server->s, 0.02, fire, (void *)1));
    assert_non_null(http_timer_start(server->s, -1, fire, (void *)10));
    assert_non_null(http_timer_start(server->s, 1e300, fire, (void *)1000)); /* freed by close */
    http_timer_stop(http_timer_start(server->s, 0, fire, (void *)100));
    http_timer_stop(NULL);
}

static void test_timers(void **state) {
    (void)state;
    atomic_store(&fired, 0);
    loopback_run(&l, start_timers);
    wait_for(&fired, 11);
    poll(NULL, 0, 50);
    assert_int_equal(atomic_load(&fired), 11);
}

static void watch_signal(loopback *server) {
    assert_int_equal(http_on_signal(server->s, SIGUSR1, fire, (void *)7, NULL), WEFT_OK);
}

static void test_signal(void **state) {
    (void)state;
    weft_error err = {.text = ""};
    atomic_store(&fired, 0);
    loopback_run(&l, watch_signal);
    kill(getpid(), SIGUSR1);
    wait_for(&fired, 7);
    assert_int_equal(http_on_signal(l.s, 12345, fire, NULL, &err), WEFT_ERR_SETUP);
    assert_non_null(strstr(err.text, "12345"));
}

/* 0, or why nobody can be reached. */
static int try_connect(int32_t port) {
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = client_socket();
    int reason = connect(fd, (struct sockaddr *)&to, sizeof to) == 0 ? 0 : errno;
    close(fd);
    return reason;
}

static void test_open(void **state) {
    (void)state;
    http_server *s = NULL;
    weft_error err = {.text = ""};
    char text[16];
    int32_t port = http_port(l.s);
    http_sockets sockets = {0};
    snprintf(text, sizeof text, "%d", port);
    assert_int_equal(http_bind("127.0.0.1", port, &sockets, &err), WEFT_ERR_SETUP);
    assert_true(strstr(err.text, "127.0.0.1") && strstr(err.text, text) &&
                strstr(err.text, "in use"));
    assert_int_equal(http_bind("no such host", port, &sockets, &err), WEFT_ERR_SETUP);
    assert_non_null(strstr(err.text, "no such host"));
    assert_int_equal(http_bind("192.0.2.1", port, &sockets, &err), WEFT_ERR_SETUP); /* nobody's */
    assert_int_equal(sockets.n, 0);
    assert_int_equal(http_bind("localhost", 0, &sockets, &err), WEFT_OK);
    assert_true(sockets.n > 0);
    port = sockets.port;
    assert_int_equal(try_connect(port), ECONNREFUSED); /* bound, not yet listened on */
    http_params p = l.params;
    p.sockets = &sockets;
    assert_int_equal(http_open(&p, &s, &err), WEFT_OK);
    assert_int_equal(sockets.n, 0);
    assert_int_equal(http_port(s), port);
    assert_int_equal(try_connect(port), 0);
    http_close(s);
    http_close(NULL);
}

int main(void) {
#define WITH_SERVER(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {WITH_SERVER(test_plain),
                                       WITH_SERVER(test_head),
                                       WITH_SERVER(test_bodies),
                                       WITH_SERVER(test_stream),
                                       WITH_SERVER(test_old_version),
                                       WITH_SERVER(test_pipeline),
                                       WITH_SERVER(test_continue),
                                       WITH_SERVER(test_unwanted_body),
                                       WITH_SERVER(test_bodies_in_flight),
                                       WITH_SERVER(test_header_bytes),
                                       WITH_SERVER(test_refusals),
                                       WITH_SERVER(test_too_large),
                                       WITH_SERVER(test_cors),
                                       WITH_SERVER(test_no_leak),
                                       WITH_SERVER(test_max_connections),
                                       WITH_SERVER(test_no_descriptors),
                                       WITH_SERVER(test_drain),
                                       WITH_SERVER(test_close_open),
                                       WITH_SERVER(test_post),
                                       WITH_SERVER(test_timers),
                                       WITH_SERVER(test_signal),
                                       WITH_SERVER(test_open)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
