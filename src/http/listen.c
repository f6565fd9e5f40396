/* Sockets: bound to all addresses of a name, then listened on; they rest while there are enough
 * connections. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "http/impl.h"

enum { BACKLOG = 1024, ACCEPTS_PER_TURN = 64 };

static void rest(http_server *s) {
    s->accepting = false;
    for (int32_t i = 0; i < s->n_listener; i++) {
        event_del(s->listeners[i]);
    }
}

void listen_resume(http_server *s) {
    if (s->accepting || s->draining || s->n_conn >= s->p.max_connections) {
        return;
    }
    s->accepting = true;
    for (int32_t i = 0; i < s->n_listener; i++) {
        event_add(s->listeners[i], NULL);
    }
}

static void on_resume(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    listen_resume(arg);
}

/* Descriptors or memory are short: a listener that stays on would only spin. */
static void rest_a_while(http_server *s, int reason) {
    log_warn("http: accept: %s; trying again in a second", strerror(reason));
    rest(s);
    event_add(s->resume, &(struct timeval){1, 0});
}

static void name_peer(const struct sockaddr *address, socklen_t n, char *peer, size_t size) {
    peer[0] = '\0';
    getnameinfo(address, n, peer, (socklen_t)size, NULL, 0, NI_NUMERICHOST);
    static const char mapped[] = "::ffff:"; /* IPv4 on a socket of both kinds */
    if (strncmp(peer, mapped, sizeof mapped - 1) == 0 && strchr(peer, '.') != NULL) {
        memmove(peer, peer + sizeof mapped - 1, strlen(peer) - (sizeof mapped - 1) + 1);
    }
}

static void on_connection(evutil_socket_t listener, short what, void *arg) {
    (void)what;
    http_server *s = arg;
    for (int i = 0; i < ACCEPTS_PER_TURN && s->accepting; i++) {
        struct sockaddr_storage address;
        socklen_t n = sizeof address;
        int fd = accept4(listener, (struct sockaddr *)&address, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        }
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
            rest_a_while(s, errno);
            return;
        }
        if (fd < 0) {
            continue; /* this connection is gone already */
        }
        char peer[INET6_ADDRSTRLEN];
        name_peer((struct sockaddr *)&address, n, peer, sizeof peer);
        conn_open(s, fd, peer);
        if (s->n_conn >= s->p.max_connections) {
            rest(s);
        }
    }
}

/* ---- binding ---- */

static int32_t port_of(int fd) {
    struct sockaddr_storage address;
    socklen_t n = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &n) != 0) {
        return 0;
    }
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

/* A socket, or -1 with errno. */
static int bind_address(const struct addrinfo *a) {
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    int one = 1;
    if (fd < 0) {
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0) {
        int reason = errno;
        close(fd);
        errno = reason;
        return -1;
    }
    return fd;
}

/* With a free port asked for, all sockets get the one that the first was given. */
static void set_port(struct addrinfo *a, int32_t port) {
    in_port_t number = htons((uint16_t)port);
    if (a->ai_family == AF_INET6) {
        ((struct sockaddr_in6 *)(void *)a->ai_addr)->sin6_port = number;
    } else {
        ((struct sockaddr_in *)(void *)a->ai_addr)->sin_port = number;
    }
}

static weft_status bind_all(const char *host, struct addrinfo *list, http_sockets *out,
                            weft_error *err) {
    int skipped = 0;
    for (struct addrinfo *a = list; a != NULL && out->n < HTTP_SOCKETS; a = a->ai_next) {
        set_port(a, out->port);
        int fd = bind_address(a);
        if (fd < 0 && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT)) {
            skipped = errno; /* a name may have an address of a kind that this machine lacks */
            continue;
        }
        if (fd < 0) {
            return error_set(err, WEFT_ERR_SETUP, "listening on %s port %d: %s", host, out->port,
                             strerror(errno));
        }
        out->fd[out->n++] = fd;
        out->port = port_of(fd);
    }
    if (out->n == 0) {
        return error_set(err, WEFT_ERR_SETUP, "listening on %s port %d: %s", host, out->port,
                         strerror(skipped));
    }
    return WEFT_OK;
}

weft_status http_bind(const char *host, int32_t port, http_sockets *out, weft_error *err) {
    struct addrinfo hints = {
        .ai_flags = AI_PASSIVE, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    http_sockets made = {.port = port};
    int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc != 0) {
        return error_set(err, WEFT_ERR_SETUP, "listening on %s port %d: %s", host, port,
                         rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    }
    weft_status status = bind_all(host, list, &made, err);
    freeaddrinfo(list);
    if (status != WEFT_OK) {
        http_unbind(&made);
        return status;
    }
    *out = made;
    return WEFT_OK;
}

void http_unbind(http_sockets *s) {
    while (s->n > 0) {
        close(s->fd[--s->n]);
    }
}

/* ---- listening ---- */

static weft_status add_listener(http_server *s, int fd, weft_error *err) {
    if (listen(fd, BACKLOG) != 0) {
        return error_set(err, WEFT_ERR_SETUP, "listening on port %d: %s", s->port, strerror(errno));
    }
    struct event *e = event_new(s->base, fd, EV_READ | EV_PERSIST, on_connection, s);
    if (e == NULL) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for HTTP");
    }
    s->listeners[s->n_listener++] = e;
    return WEFT_OK;
}

weft_status listen_open(http_server *s, http_sockets *sockets, weft_error *err) {
    s->port = sockets->port;
    s->resume = evtimer_new(s->base, on_resume, s);
    weft_status status =
        s->resume == NULL ? error_set(err, WEFT_ERR_MEMORY, "no memory for HTTP") : WEFT_OK;
    for (; sockets->n > 0 && status == WEFT_OK; sockets->n -= status == WEFT_OK) {
        status = add_listener(s, sockets->fd[sockets->n - 1], err);
    }
    return status;
}

void listen_close(http_server *s) {
    for (int32_t i = 0; i < s->n_listener; i++) {
        evutil_socket_t fd = event_get_fd(s->listeners[i]);
        event_free(s->listeners[i]);
        close(fd);
    }
    s->n_listener = 0;
    if (s->resume != NULL) {
        event_free(s->resume);
        s->resume = NULL;
    }
}
