/* Clients that hang up, stall, drip, or shut down one side only. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

static void nap_ms(int ms) {
    poll(NULL, 0, ms);
}

/* A connection with this request held. */
static int hold(const char *request) {
    int fd = client_connect(&l), before = atomic_load(&l.holding);
    client_say(fd, request);
    wait_for(&l.holding, before + 1);
    return fd;
}

static void hang_up(int fd, bool hard) {
    if (hard) {
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    }
    close(fd);
}

/* One line of the connection's text must be this; lines end with LF. */
static void expect_text(int fd, const char *text) {
    char got[256] = "";
    size_t n = strlen(text);
    assert_true(n < sizeof got);
    assert_int_equal(recv(fd, got, n, MSG_WAITALL), n);
    assert_string_equal(got, text);
}

/* ---- gone ---- */

static void test_hang_up(void **state) {
    (void)state;
    static const char *const requests[] = {
        "GET /hold" HOST "\r\n", "GET /events" HOST "\r\n", "GET /hold HTTP/1.0\r\n\r\n",
        "GET /events HTTP/1.0\r\n\r\n", "POST /hold" HOST "Content-Length: 3\r\n\r\nabcGET /"};
    int n = 0;
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        for (int hard = 0; hard < 2; hard++) {
            int fd = hold(requests[i]);
            nap_ms(20);
            assert_int_equal(atomic_load(&l.gone), n);
            hang_up(fd, hard);
            wait_for(&l.gone, ++n);
            wait_for_connections(&l, 0);
        }
    }
    hang_up(hold("GET /bytes" HOST "\r\n"), true); /* nothing is sent to it */
    wait_for(&l.gone, ++n);
    loopback_release(&l);
    nap_ms(50);
    assert_int_equal(atomic_load(&l.gone), n);
}

/* The client is gone before the request has been read. */
static void test_hang_up_at_once(void **state) {
    (void)state;
    for (int i = 0; i < 50; i++) {
        int fd = client_connect(&l);
        client_say(fd, "GET /hold" HOST "\r\n");
        close(fd);
    }
    wait_for(&l.holding, 50);
    wait_for(&l.gone, 50);
    wait_for_connections(&l, 0);
}

static void send_more(loopback *server) {
    for (int i = 0; i < server->n_held; i++) {
        if (server->held[i] != NULL) {
            http_stream_send(server->held[i], "more", 4);
        }
    }
}

/* Nothing may be put into a stream of another kind: what is sent next finds out. */
static void test_hang_up_bytes(void **state) {
    (void)state;
    close(hold("GET /bytes" HOST "\r\n"));
    double end = seconds_now() + WAIT_S;
    while (atomic_load(&l.gone) == 0 && seconds_now() < end) {
        loopback_run(&l, send_more);
        nap_ms(5);
    }
    assert_int_equal(atomic_load(&l.gone), 1);
}

static void test_hang_up_silent(void **state) {
    (void)state;
    int fd = hold("GET /hold-silent" HOST "\r\n");
    close(fd);
    wait_for_connections(&l, 0);
    loopback_release(&l); /* a reply to nobody */
    exchange(&l, "GET /hello" HOST "\r\n", 200, "hello");
    assert_int_equal(atomic_load(&l.gone), 0);
}

static void test_normal_ends(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        exchange(&l, "GET /hello" HOST "\r\n", 200, "hello");
        exchange(&l, "GET /stream" HOST "\r\n", 200, NULL);
        int held = hold("GET /hold" HOST "\r\n"), stream = hold("GET /events" HOST "\r\n");
        loopback_release(&l);
        close(stream); /* complete on the server's side */
        expect(held, 200, "late");
        close(held);
    }
    wait_for_connections(&l, 0);
    assert_int_equal(atomic_load(&l.gone), 0);
}

/* ---- half-closed ---- */

static void test_half_close(void **state) {
    (void)state;
    int fd = hold("GET /hold" HOST "\r\n");
    shutdown(fd, SHUT_WR);
    expect_text(fd, "HTTP/1.1 100 Continue\r\n\r\n");
    expect_text(fd, "HTTP/1.1 100 Continue\r\n\r\n"); /* a second later */
    assert_int_equal(atomic_load(&l.gone), 0);
    loopback_release(&l);
    expect(fd, 200, "late");
    assert_true(client_is_closed(fd));
    close(fd);
    fd = client_connect(&l); /* complete with the FIN in one go, two requests */
    client_say(fd, "GET /hello" HOST "\r\nPOST /echo" HOST "Content-Length: 2\r\n\r\nok");
    shutdown(fd, SHUT_WR);
    expect(fd, 200, "hello");
    expect(fd, 200, "ok");
    assert_true(client_is_closed(fd));
    close(fd);
    fd = hold("GET /hold" HOST "\r\nGET /hold" HOST "\r\n");
    shutdown(fd, SHUT_WR);
    expect_text(fd, "HTTP/1.1 100 Continue\r\n\r\n");
    loopback_release(&l);
    expect(fd, 200, "late");
    wait_for(&l.holding, 3);
    expect_text(fd, "HTTP/1.1 100 Continue\r\n\r\n"); /* the second is looked after too */
    loopback_release(&l);
    expect(fd, 200, "late");
    close(fd);
    wait_for_connections(&l, 0);
    assert_int_equal(atomic_load(&l.gone), 0);
}

static void test_half_close_stream(void **state) {
    (void)state;
    int fd = hold("GET /events" HOST "\r\n");
    shutdown(fd, SHUT_WR);
    nap_ms(50);
    loopback_release(&l);
    reply r = client_read(fd, false);
    assert_string_equal(r.body, "begin:\n\nend");
    free(r.body);
    close(fd);
    fd = hold("GET /bytes" HOST "\r\n");
    shutdown(fd, SHUT_WR);
    nap_ms(50);
    loopback_release(&l);
    expect(fd, 200, "beginend");
    close(fd);
    assert_int_equal(atomic_load(&l.gone), 0);
}

static void test_half_close_then_close(void **state) {
    (void)state;
    int fd = hold("GET /hold" HOST "\r\n");
    shutdown(fd, SHUT_WR);
    expect_text(fd, "HTTP/1.1 100 Continue\r\n\r\n");
    nap_ms(20);
    assert_int_equal(atomic_load(&l.gone), 0);
    close(fd);
    wait_for(&l.gone, 1);
    fd = hold("GET /hold HTTP/1.0\r\n\r\n"); /* has no interim status */
    shutdown(fd, SHUT_WR);
    wait_for(&l.gone, 2);
    assert_true(client_is_closed(fd));
    close(fd);
    fd = client_connect(&l); /* half a request is none */
    client_say(fd, "POST /echo" HOST "Content-Length: 5\r\n\r\nabc");
    shutdown(fd, SHUT_WR);
    assert_true(client_is_closed(fd));
    close(fd);
}

/* ---- deadlines ---- */

/* Sends one byte each 50 ms until the server has had enough. */
static void drip(const char *begin) {
    int fd = client_connect(&l);
    double at = seconds_now();
    client_say(fd, begin);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, 50) == 0 && seconds_now() < at + WAIT_S) {
        assert_true(send(fd, "x", 1, MSG_NOSIGNAL) == 1);
    }
    assert_true(seconds_now() - at > 0.9);
    expect(fd, 408, NULL);
    shutdown(fd, SHUT_WR);
    assert_true(client_is_closed(fd));
    close(fd);
}

static void test_drip(void **state) {
    (void)state;
    l.params.read_s = 1;
    loopback_restart(&l);
    drip("GET /");
    drip("GET /hello" HOST "A: ");
    drip("POST /echo" HOST "Content-Length: 100000\r\n\r\n");
    drip("POST /echo" HOST "Transfer-Encoding: chunked\r\n\r\n1;");
    wait_for_connections(&l, 0);
    assert_int_equal(atomic_load(&l.calls), 0);
    int fd = hold("GET /hold" HOST "\r\n"); /* the deadline is for the request alone */
    nap_ms(1300);
    loopback_release(&l);
    expect(fd, 200, "late");
    close(fd);
}

static void test_idle(void **state) {
    (void)state;
    l.params.idle_s = 1;
    loopback_restart(&l);
    int fresh = client_connect(&l), used = client_connect(&l), held;
    held = hold("GET /hold" HOST "\r\n");
    client_say(used, "GET /hello" HOST "\r\n");
    expect(used, 200, "hello");
    assert_int_equal(loopback_connections(&l), 3);
    char byte;
    assert_int_equal(recv(fresh, &byte, 1, 0), 0);
    assert_int_equal(recv(used, &byte, 1, 0), 0);
    wait_for_connections(&l, 1);
    nap_ms(300);
    loopback_release(&l);
    expect(held, 200, "late");
    close(fresh), close(used), close(held);
}

/* Empty lines behind a request are no request that could be late. */
static void test_empty_lines(void **state) {
    (void)state;
    l.params.read_s = 1;
    loopback_restart(&l);
    int fd = client_connect(&l);
    client_say(fd, "GET /hello" HOST "\r\n\r\n\r\n");
    expect(fd, 200, "hello");
    char byte;
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

/* ---- clients that do not read ---- */

static int connect_small(int bytes) {
    int fd = client_connect(&l);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    return fd;
}

static void test_slow_reader(void **state) {
    (void)state;
    l.params.write_s = 2;
    loopback_restart(&l);
    int stuck = connect_small(4096), slow = connect_small(131072);
    client_say(stuck, "GET /flood" HOST "\r\n");
    wait_for(&l.holding, 1);
    assert_true(atomic_load(&l.backlog) >= 7 << 20);
    client_say(slow, "GET /flood" HOST "\r\n");
    wait_for(&l.holding, 2);
    static char some[65536];
    double end = seconds_now() + WAIT_S;
    while (atomic_load(&l.gone) == 0 && seconds_now() < end) {
        nap_ms(100);
        assert_true(recv(slow, some, sizeof some, 0) > 0);
        exchange(&l, "GET /hello" HOST "\r\n", 200, "hello"); /* others do not wait */
    }
    wait_for(&l.gone, 1);
    wait_for_connections(&l, 1);
    loopback_release(&l); /* the slow one is whole */
    reply r = {.n = 0};
    char tail[5] = "";
    ssize_t n;
    while (memcmp(tail, "0\r\n\r\n", 5) != 0 && (n = recv(slow, some, sizeof some, 0)) > 0) {
        for (ssize_t i = n > 5 ? n - 5 : 0; i < n; i++) {
            memmove(tail, tail + 1, 4);
            tail[4] = some[i];
        }
        r.n += (size_t)n;
    }
    assert_true(r.n > 2 << 20);
    assert_memory_equal(tail, "0\r\n\r\n", 5);
    assert_int_equal(atomic_load(&l.gone), 1);
    close(stuck), close(slow);
}

/* What all of them do not read has a limit; the others go on. */
static void test_unread_limit(void **state) {
    (void)state;
    l.params.max_unread_bytes = 12 << 20;
    loopback_restart(&l);
    int first = connect_small(4096), second = connect_small(4096);
    client_say(first, "GET /flood" HOST "\r\n");
    wait_for(&l.holding, 1);
    exchange(&l, "GET /hello" HOST "\r\n", 200, "hello");
    assert_int_equal(atomic_load(&l.gone), 0);
    client_say(second, "GET /flood" HOST "\r\n");
    wait_for(&l.gone, 1);
    wait_for_connections(&l, 1);
    exchange(&l, "GET /hello" HOST "\r\n", 200, "hello");
    assert_int_equal(atomic_load(&l.gone), 1);
    close(first), close(second);
}

/* The same after the reply: the call is over, on_gone has no say. */
static void test_stuck_flush(void **state) {
    (void)state;
    l.params.write_s = 1;
    loopback_restart(&l);
    int stuck = connect_small(4096);
    client_say(stuck, "GET /flood" HOST "\r\n");
    wait_for(&l.holding, 1);
    loopback_release(&l);
    assert_int_equal(loopback_connections(&l), 1);
    wait_for_connections(&l, 0);
    assert_int_equal(atomic_load(&l.gone), 0);
    close(stuck);
}

/* What a client sends during a call waits in the kernel. */
static void test_send_ahead(void **state) {
    (void)state;
    static char piece[1 << 20];
    int fd = hold("GET /hold" HOST "\r\n");
    size_t sent = 0;
    for (int i = 0; i < 200 && sent < 64u << 20; i++) {
        ssize_t n = send(fd, piece, sizeof piece, MSG_DONTWAIT | MSG_NOSIGNAL);
        sent += n > 0 ? (size_t)n : 0;
        if (n < 0) {
            assert_int_equal(errno, EAGAIN);
            nap_ms(1);
        }
    }
    assert_true(sent < 32u << 20);
    loopback_release(&l);
    expect(fd, 200, "late");
    expect(fd, 400, NULL);
    close(fd);
}

int main(void) {
#define WITH_SERVER(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {WITH_SERVER(test_hang_up),
                                       WITH_SERVER(test_hang_up_at_once),
                                       WITH_SERVER(test_hang_up_bytes),
                                       WITH_SERVER(test_hang_up_silent),
                                       WITH_SERVER(test_normal_ends),
                                       WITH_SERVER(test_half_close),
                                       WITH_SERVER(test_half_close_stream),
                                       WITH_SERVER(test_half_close_then_close),
                                       WITH_SERVER(test_drip),
                                       WITH_SERVER(test_idle),
                                       WITH_SERVER(test_slow_reader),
                                       WITH_SERVER(test_stuck_flush),
                                       WITH_SERVER(test_empty_lines),
                                       WITH_SERVER(test_unread_limit),
                                       WITH_SERVER(test_send_ahead)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
