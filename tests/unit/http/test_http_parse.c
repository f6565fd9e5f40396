/* The request parser: what is a request, what is refused with which status, and that neither
 * depends on how the bytes are cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/parse.h"

enum { MAX_HEAD = 400, MAX_BODY = 40 };

/* A parse of all bytes, `step` at a time. Bytes that it did not take are counted in *left. */
static http_parse parse_in_steps(const char *data, size_t n, size_t step, size_t *left) {
    http_parse p;
    parse_begin(&p, MAX_HEAD, MAX_BODY);
    size_t at = 0;
    while (at < n && p.state != PARSE_DONE && p.state != PARSE_FAILED) {
        size_t piece = step < n - at ? step : n - at;
        char *copy = malloc(piece); /* its own block, so that reading past the end is seen */
        assert_non_null(copy);
        memcpy(copy, data + at, piece);
        size_t used = parse_feed(&p, copy, piece);
        free(copy);
        assert_true(used <= piece);
        assert_true(used == piece || p.state == PARSE_DONE || p.state == PARSE_FAILED);
        at += used;
    }
    *left = n - at;
    return p;
}

static void check_status_bytes(const char *data, size_t n, int status) {
    for (size_t step = 1; step <= n; step = step < 8 ? step + 1 : 2 * step) {
        size_t left;
        http_parse p = parse_in_steps(data, n, step, &left);
        if (p.state != (status == 0 ? PARSE_DONE : PARSE_FAILED) || p.status != status) {
            fail_msg("'%s' in steps of %zu: state %d, status %d instead of %d", data, step, p.state,
                     p.status, status);
        }
        assert_true(status == 0 || p.reason[0] != '\0');
        parse_free(&p);
    }
}

static void check_status(const char *text, int status) {
    check_status_bytes(text, strlen(text), status);
}

#define GET "GET / HTTP/1.1\r\nHost: a\r\n"
#define POST "POST / HTTP/1.1\r\nHost: a\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

static void test_fields(void **state) {
    (void)state;
    static const char text[] = "\r\nPOST /v1/a%20b?x=%00 HTTP/1.1\r\nhost: here:80\r\n"
                               "X-Empty:\r\nX-Raw: \t caf\xE9 \t\r\nx-raw: second\r\n"
                               "Content-Length: 5\r\n\r\nhel\0oGET /next";
    for (size_t step = 1; step < sizeof text; step++) {
        size_t left;
        http_parse p = parse_in_steps(text, sizeof text - 1, step, &left);
        assert_int_equal(p.state, PARSE_DONE);
        assert_string_equal(p.head + p.method, "POST");
        assert_string_equal(p.path, "/v1/a b");
        assert_string_equal(parse_find(&p, "HOST"), "here:80");
        assert_string_equal(parse_find(&p, "x-empty"), "");
        assert_string_equal(parse_find(&p, "X-RAW"), "caf\xE9");
        assert_null(parse_find(&p, "X-Ra"));
        assert_int_equal(p.n_body, 5);
        assert_memory_equal(p.body, "hel\0o", 6);
        assert_true(p.keep_alive);
        assert_int_equal(left, strlen("GET /next"));
        parse_free(&p);
    }
}

static void check_path(const char *target, const char *path) {
    char text[200];
    size_t left;
    snprintf(text, sizeof text, "OPTIONS %s HTTP/1.1\r\nHost: a\r\n\r\n", target);
    http_parse p = parse_in_steps(text, strlen(text), 7, &left);
    assert_int_equal(p.state, PARSE_DONE);
    assert_string_equal(p.path, path);
    parse_free(&p);
}

static void test_paths(void **state) {
    (void)state;
    check_path("/", "/");
    check_path("*", "*");
    check_path("/a?b/c", "/a");
    check_path("/%41%7e", "/A~");
    check_path("/%2", "");
    check_path("/%4", "");
    check_path("/%4x", "");
    check_path("/%00", "");
    check_path("/caf%C3%A9", "");
    check_path("/caf\xC3\xA9", "");
    check_path("http://host:8000/v1?x", "/v1");
    check_path("HTTPS://host", "/");
    check_path("http://host?x=/", "/");
}

static void check_keep_alive(const char *text, bool due) {
    size_t left;
    http_parse p = parse_in_steps(text, strlen(text), 1000, &left);
    assert_int_equal(p.state, PARSE_DONE);
    assert_int_equal(p.keep_alive, due);
    parse_free(&p);
}

static void test_keep_alive(void **state) {
    (void)state;
    check_keep_alive(GET "\r\n", true);
    check_keep_alive(GET "Connection: Close\r\n\r\n", false);
    check_keep_alive(GET "Connection: TE,close\r\n\r\n", false);
    check_keep_alive(GET "Connection: TE\r\nConnection: x, close\r\n\r\n", false);
    check_keep_alive(GET "Connection: closed\r\n\r\n", true);
    check_keep_alive("GET / HTTP/1.0\r\n\r\n", false);
    check_keep_alive("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true);
}

static void test_request_lines(void **state) {
    (void)state;
    check_status(GET "\r\n", 0);
    check_status("GET / HTTP/1.1\nHost: a\n\n", 0); /* bare line feeds, as typed by hand */
    check_status("GET / HTTP/1.7\r\nHost: a\r\n\r\n", 0);
    check_status("GET /\r\n\r\n", 400); /* HTTP/0.9 */
    check_status("GET  / HTTP/1.1\r\n", 400);
    check_status("GET / x HTTP/1.1\r\n", 400);
    check_status("GET / HTTP/1.1 \r\n", 400);
    check_status("GET / HTTP/1.-1\r\n", 400);
    check_status("GET / HTTP/11\r\n", 400);
    check_status("GET / http/1.1\r\n", 400);
    check_status("GET x HTTP/1.1\r\n", 400);
    check_status("GE(T / HTTP/1.1\r\n", 400);
    check_status("\x16\x03\x01\x02", 400); /* TLS */
    check_status(" GET / HTTP/1.1\r\n", 400);
    check_status("PRI * HTTP/2.0\r\n", 505);
    check_status("BREW / HTTP/1.1\r\n", 501);
    check_status("get / HTTP/1.1\r\n", 501);
    check_status("CONNECT / HTTP/1.1\r\n", 501);
    check_status_bytes("GET /\0 HTTP/1.1\r\n", 17, 400);
    check_status("\r\n\n\r\n" GET "\r\n", 0);
    char blank[100];
    memset(blank, '\n', sizeof blank);
    check_status_bytes(blank, sizeof blank, 400);
}

static void test_header_lines(void **state) {
    (void)state;
    check_status("GET / HTTP/1.1\r\n\r\n", 400); /* no Host */
    check_status("GET / HTTP/1.0\r\n\r\n", 0);
    check_status(GET "Host: b\r\n\r\n", 400);
    check_status(GET "Content-Length : 5\r\n", 400);
    check_status(GET "Na me: x\r\n", 400);
    check_status(GET ": x\r\n", 400);
    check_status(GET "no colon\r\n", 400);
    check_status(GET "A: b\r\n folded\r\n", 400);
    check_status(GET "A: b\rc\r\n", 400);
    check_status(GET "A: b\x7F\r\n", 400);
    check_status(GET "A\xFF: b\r\n", 400);
    check_status(GET "A: \xFF\xC0\x80\r\n\r\n", 0);
    check_status_bytes(GET "A: b\0c\r\n", strlen(GET) + 8, 400);
    check_status(GET "Expect: 200-ok\r\n\r\n", 0); /* nothing is waited for */
    check_status(POST "Content-Length: 1\r\nExpect: 200-ok\r\n\r\n", 417);
}

static void test_head_limit(void **state) {
    (void)state;
    char text[MAX_HEAD + 100];
    for (size_t n = MAX_HEAD - 2; n <= MAX_HEAD + 2; n++) {
        size_t begin = strlen(GET "A: ");
        memset(text, 'x', sizeof text);
        memcpy(text, GET "A: ", begin);
        memcpy(text + n - 4, "\r\n\r\n", 4);
        check_status_bytes(text, n, n <= MAX_HEAD ? 0 : 431);
    }
    memset(text, 'G', sizeof text);
    check_status_bytes(text, sizeof text, 431);
}

static void test_lengths(void **state) {
    (void)state;
    check_status(POST "Content-Length: 0\r\n\r\n", 0);
    check_status(POST "Content-Length: 00005\r\n\r\nhello", 0);
    check_status(POST "Content-Length: 40\r\n\r\n0123456789012345678901234567890123456789", 0);
    check_status(POST "Content-Length: 41\r\n\r\n", 413);
    static const char huge[] = POST "Content-Length: 41\r\n\r\n";
    size_t left;
    http_parse p = parse_in_steps(huge, sizeof huge - 1, 7, &left);
    assert_non_null(strstr(p.reason, "40 bytes")); /* the limit */
    parse_free(&p);
    check_status(POST "Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", 415);
    check_status(POST "Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", 415);
    check_status(POST "Content-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello", 0);
    check_status(POST "Content-Length: 2147483648\r\n\r\n", 413);
    check_status(POST "Content-Length: 4294967297\r\n\r\n", 413);
    check_status(POST "Content-Length: 18446744073709551617\r\n\r\n", 413);
    check_status(POST "Content-Length: 99999999999999999999999999999\r\n\r\n", 413);
    check_status(POST "Content-Length: -1\r\n\r\n", 400);
    check_status(POST "Content-Length: +1\r\n\r\n", 400);
    check_status(POST "Content-Length: 1 1\r\n\r\n", 400);
    check_status(POST "Content-Length: 0x10\r\n\r\n", 400);
    check_status(POST "Content-Length:\r\n\r\n", 400);
    check_status(POST "Content-Length: 5, 5\r\n\r\n", 400);
    check_status(POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400);
    check_status(POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
    check_status(POST "Transfer-Encoding: gzip, chunked\r\n\r\n", 501);
    check_status(POST "Transfer-Encoding: identity\r\n\r\n", 501);
    check_status("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400);
}

static void test_chunks(void **state) {
    (void)state;
    static const char text[] =
        CHUNKED "3\r\nabc\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nnext";
    for (size_t step = 1; step < sizeof text; step++) {
        size_t left;
        http_parse p = parse_in_steps(text, sizeof text - 1, step, &left);
        assert_int_equal(p.state, PARSE_DONE);
        assert_int_equal(p.n_body, 13);
        assert_string_equal(p.body, "abc0123456789");
        assert_int_equal(left, strlen("next"));
        parse_free(&p);
    }
    check_status(CHUNKED "0\r\n\r\n", 0);
    check_status(CHUNKED "28\r\n0123456789012345678901234567890123456789\r\n0\r\n\r\n", 0);
    check_status(CHUNKED "29\r\n", 413);
    check_status(CHUNKED "1\r\na\r\n28\r\n", 413);
    check_status(CHUNKED "ffffffffffffffff\r\n", 413);
    check_status(CHUNKED "10000000000000001\r\n", 413);
    check_status(CHUNKED "\r\n", 400);
    check_status(CHUNKED "x\r\n", 400);
    check_status(CHUNKED "-1\r\n", 400);
    check_status(CHUNKED ";x\r\n", 400);
    check_status(CHUNKED "1\na", 400);
    check_status(CHUNKED "1\r\nab", 400);
    check_status(CHUNKED "1\r\na\rb", 400);
    check_status(CHUNKED "1\r\na\n", 400);
    check_status(CHUNKED "1;\x01\r\n", 400);
    check_status(CHUNKED "0\r\n\rx", 400);
}

/* What surrounds a body has a bound of its own. */
static void test_chunk_overhead(void **state) {
    (void)state;
    static const char *const begins[] = {CHUNKED "1;", CHUNKED "0", CHUNKED "0\r\nA: "};
    for (int i = 0; i < 3; i++) {
        char text[1000];
        size_t n = strlen(begins[i]);
        memset(text, i == 1 ? '0' : 'x', sizeof text);
        memcpy(text, begins[i], n);
        check_status_bytes(text, sizeof text, 431);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_keep_alive),    cmocka_unit_test(test_request_lines),
        cmocka_unit_test(test_header_lines),  cmocka_unit_test(test_head_limit),
        cmocka_unit_test(test_lengths),       cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_chunk_overhead)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
