/* Connections: reading, writing, deadlines, and seeing that a client has gone. */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/impl.h"

enum {
    READS_PER_TURN = 4, /* of HTTP_READ_BYTES; then others have their turn */
    DROPS_PER_TURN = 16,
    WRITES_PER_TURN = 64,
    UNSENT_BYTES = 131072, /* that the kernel may hold; more waits where it can be counted */
    WRITE_PIECES = 32
};

static const struct timeval now_tv = {0, 0}, probe_tv = {1, 0};

/* ---- beginning and end ---- */

static void set_options(int fd) {
    int one = 1, idle_s = 30, every_s = 10, times = 3, unsent = UNSENT_BYTES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    /* a machine that has lost its power sends no FIN */
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof times);
}

void conn_free(conn *c) {
    http_server *s = c->s;
    if (c->call != NULL && c->state == CONN_READING) {
        call_free(c->call);
    } else if (c->call != NULL) {
        c->call->c = NULL;
    }
    event_del(&c->io);
    event_del(&c->again);
    event_del(&c->timer);
    event_del(&c->probe);
    s->unread_bytes -= c->unread;
    evbuffer_free(c->ahead);
    evbuffer_free(c->out);
    close(c->fd);
    *(c->prev == NULL ? &s->conns : &c->prev->next) = c->next;
    if (c->next != NULL) {
        c->next->prev = c->prev;
    }
    free(c);
    s->n_conn--;
    listen_resume(s);
}

/* The client is not there any more. */
static void end_gone(conn *c) {
    http_call *call = c->state == CONN_CALL ? c->call : NULL;
    conn_free(c);
    if (call != NULL && call->on_gone != NULL) {
        call->on_gone(call->gone_arg);
        call_free(call);
    }
}

void conn_wake(conn *c) {
    event_active(&c->again, EV_TIMEOUT, 0);
}

static void wake_next_turn(conn *c) {
    event_add(&c->again, &now_tv);
}

void conn_finish(conn *c) {
    call_free(c->call);
    c->call = NULL;
    c->state = CONN_FLUSH;
    event_del(&c->probe);
    conn_wake(c);
}

void conn_drain(conn *c) {
    if (c->state == CONN_IDLE) {
        c->readable = true; /* a request that has come by now is still answered */
        conn_wake(c);
    }
}

/* ---- writing ---- */

/* Bytes that the kernel has taken; -1 with errno. */
static ssize_t write_some(conn *c) {
    struct evbuffer_iovec pieces[WRITE_PIECES];
    int n = evbuffer_peek(c->out, -1, NULL, pieces, WRITE_PIECES);
    struct msghdr message = {.msg_iov = pieces,
                             .msg_iovlen = (size_t)(n < WRITE_PIECES ? n : WRITE_PIECES)};
    ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL);
    if (sent > 0) {
        evbuffer_drain(c->out, (size_t)sent);
    }
    return sent;
}

/* The kernel asks for more only when it has sent half of UNSENT_BYTES: a slow client's progress is
 * seen in what it has not acknowledged. */
static int unacknowledged(const conn *c) {
    int n = 0;
    return ioctl(c->fd, SIOCOUTQ, &n) == 0 ? n : 0;
}

static void await_progress(conn *c) {
    c->unacknowledged = unacknowledged(c);
    event_add(&c->timer, c->s->write_tv);
}

/* Keeps the sum of what waits, and has the connection cut that holds the most when it is too much. */
static void count_unread(conn *c) {
    http_server *s = c->s;
    size_t now = evbuffer_get_length(c->out);
    s->unread_bytes += now - c->unread;
    c->unread = now;
    if (s->unread_bytes <= s->p.max_unread_bytes) {
        return;
    }
    conn *most = c;
    for (conn *o = s->conns; o != NULL; o = o->next) {
        most = o->unread > most->unread ? o : most;
    }
    most->cut = true;
    conn_wake(most);
}

/* Writes what the client takes, and watches that it takes something. False: it takes nothing ever
 * again. */
static bool flush(conn *c) {
    bool progress = false;
    for (int i = 0; evbuffer_get_length(c->out) > 0; i++) {
        if (i == WRITES_PER_TURN) {
            wake_next_turn(c);
            break;
        }
        ssize_t sent = write_some(c);
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            break;
        }
        if (sent < 0 && errno != EINTR) {
            return false;
        }
        progress = progress || sent > 0;
    }
    count_unread(c);
    if (c->state != CONN_CALL && c->state != CONN_FLUSH) {
        return true; /* the deadline is another one's */
    }
    if (evbuffer_get_length(c->out) == 0) {
        event_del(&c->timer);
    } else if (progress || !event_pending(&c->timer, EV_TIMEOUT, NULL)) {
        await_progress(c);
    }
    return true;
}

/* ---- a client that goes ---- */

static void probe(conn *c) {
    if (!call_probe(c->call)) {
        end_gone(c);
        return;
    }
    event_add(&c->probe, &probe_tv);
}

static void on_probe(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    probe(arg);
}

/* A FIN says that the client sends no more; only what comes back when something is sent to it tells
 * whether it still reads. */
static void look_for_hang_up(conn *c) {
    struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
    c->look = false;
    poll(&p, 1, 0);
    if ((p.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
        end_gone(c);
        return;
    }
    if ((p.revents & POLLRDHUP) != 0 && !event_pending(&c->probe, EV_TIMEOUT, NULL)) {
        probe(c);
    }
}

/* ---- reading ---- */

static void begin_call(conn *c) {
    event_del(&c->timer);
    c->state = CONN_CALL;
    c->look = c->fin;
    if (!call_preflight(c->call)) {
        c->s->p.on_call(c->s->p.user, c->call);
    }
    conn_wake(c);
}

static void follow_parse(conn *c) {
    http_parse *request = &c->call->request;
    bool body_comes = request->state > PARSE_HEAD && request->state < PARSE_DONE;
    if (body_comes && !c->call->head_seen && c->s->p.on_head != NULL) {
        c->call->head_seen = true;
        if (!c->s->p.on_head(c->s->p.user, c->call)) {
            c->readable = true;
            return;
        }
    }
    if (request->state == PARSE_FAILED) {
        c->readable = true; /* the rest of it is to be dropped */
        call_refuse(c, request->status, request->reason);
    } else if (request->state == PARSE_DONE) {
        begin_call(c);
    } else if (request->expects) {
        static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
        request->expects = false;
        if (request->n_body == 0 && evbuffer_add(c->out, text, sizeof text - 1) == 0) {
            conn_wake(c);
        }
    }
}

/* Into scratch; 0 at the client's end, -1 with errno. */
static ssize_t receive(conn *c) {
    ssize_t n;
    do {
        n = recv(c->fd, c->s->scratch, HTTP_READ_BYTES, 0);
    } while (n < 0 && errno == EINTR);
    return n;
}

/* The next bytes of the client: those kept, else from the kernel into scratch. 0: none yet; -1: it
 * has ended. */
static ssize_t next_bytes(conn *c, const char **data) {
    if (evbuffer_get_length(c->ahead) > 0) {
        struct evbuffer_iovec piece;
        evbuffer_peek(c->ahead, -1, NULL, &piece, 1);
        *data = piece.iov_base;
        return (ssize_t)piece.iov_len;
    }
    if (!c->readable) {
        return 0;
    }
    ssize_t n = receive(c);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        c->readable = false;
        return 0;
    }
    if (n <= 0) {
        return -1;
    }
    c->readable = n == HTTP_READ_BYTES || c->fin;
    *data = c->s->scratch;
    return n;
}

/* Feeds the request, and keeps what belongs to the next one. */
static void take_bytes(conn *c, const char *data, size_t n) {
    if (c->state == CONN_IDLE) {
        c->call = call_open(c);
        if (c->call == NULL) {
            c->broken = true;
            return;
        }
        c->state = CONN_READING;
        event_add(&c->timer, c->s->read_tv);
    }
    size_t before = call_counted(c->call->request.n_body);
    size_t used = parse_feed(&c->call->request, data, n);
    size_t after = call_counted(c->call->request.n_body);
    c->s->bodies_bytes += after - before;
    if (after > 0 && c->s->bodies_bytes > c->s->p.max_bodies_bytes) {
        c->readable = true;
        call_refuse(c, 503, "the server has no memory for this request now; try again");
        return;
    }
    if (data != c->s->scratch) {
        evbuffer_drain(c->ahead, used);
    } else if (used < n && evbuffer_add(c->ahead, data + used, n - used) != 0) {
        c->broken = true;
        return;
    }
    follow_parse(c);
}

static void read_request(conn *c) {
    for (int i = 0; i < READS_PER_TURN; i++) {
        const char *data = NULL;
        ssize_t n = next_bytes(c, &data);
        if (n < 0 || (n == 0 && c->state == CONN_IDLE && c->s->draining)) {
            conn_free(c);
            return;
        }
        if (n == 0) {
            return;
        }
        take_bytes(c, data, (size_t)n);
        if (c->broken) {
            end_gone(c);
            return;
        }
        if (c->state != CONN_READING) {
            return;
        }
    }
    if (c->readable || evbuffer_get_length(c->ahead) > 0) {
        wake_next_turn(c);
    }
}

static void drop_bytes(conn *c) {
    for (int i = 0; i < DROPS_PER_TURN && c->readable; i++) {
        ssize_t n = receive(c);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) {
            conn_free(c);
            return;
        }
        c->readable = n > 0;
    }
    if (c->readable) {
        wake_next_turn(c);
    }
}

/* ---- turns ---- */

/* The client has its reply. */
static void end_reply(conn *c) {
    bool more = c->readable || evbuffer_get_length(c->ahead) > 0;
    if (c->close && !more) {
        conn_free(c);
    } else if (c->close) {
        c->state = CONN_LINGER;
        c->readable = true;
        shutdown(c->fd, SHUT_WR);
        event_add(&c->timer, c->s->linger_tv);
        drop_bytes(c);
    } else {
        c->state = CONN_IDLE;
        event_add(&c->timer, c->s->idle_tv);
        if (more || c->s->draining) {
            wake_next_turn(c);
        }
    }
}

/* What the kernel holds is not worth keeping either. */
static void reset(conn *c) {
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    end_gone(c);
}

static void turn(conn *c) {
    if (c->cut) {
        reset(c);
        return;
    }
    if (c->broken || !flush(c)) {
        end_gone(c);
        return;
    }
    switch (c->state) {
    case CONN_IDLE:
    case CONN_READING:
        read_request(c);
        break;
    case CONN_CALL:
        if (c->look) {
            look_for_hang_up(c);
        }
        break;
    case CONN_FLUSH:
        if (evbuffer_get_length(c->out) == 0) {
            end_reply(c);
        }
        break;
    case CONN_LINGER:
        drop_bytes(c);
        break;
    }
}

static void on_again(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    turn(arg);
}

/* An error of the socket is reported as EV_READ | EV_WRITE. */
static void on_io(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    conn *c = arg;
    c->fin = c->fin || (what & EV_CLOSED) != 0;
    c->look = c->look || (what & (EV_READ | EV_CLOSED)) != 0;
    c->readable = c->readable || (what & (EV_READ | EV_CLOSED)) != 0;
    turn(c);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    conn *c = arg;
    if (c->state == CONN_READING && c->call->request.n_head == 0) {
        conn_free(c); /* empty lines behind the last request */
    } else if (c->state == CONN_READING) {
        c->readable = true;
        call_refuse(c, 408, "the request did not come to its end in time");
    } else if (c->state != CONN_CALL && c->state != CONN_FLUSH) {
        conn_free(c);
    } else if (unacknowledged(c) < c->unacknowledged) {
        await_progress(c);
    } else {
        reset(c);
    }
}

conn *conn_open(http_server *s, int fd, const char *peer) {
    conn *c = calloc(1, sizeof *c);
    if (c == NULL || (c->ahead = evbuffer_new()) == NULL || (c->out = evbuffer_new()) == NULL) {
        if (c != NULL && c->ahead != NULL) {
            evbuffer_free(c->ahead);
        }
        free(c);
        close(fd);
        return NULL;
    }
    set_options(fd);
    c->s = s;
    c->fd = fd;
    memcpy(c->peer, peer, strnlen(peer, sizeof c->peer - 1));
    event_assign(&c->io, s->base, fd, EV_READ | EV_WRITE | EV_CLOSED | EV_ET | EV_PERSIST, on_io,
                 c);
    evtimer_assign(&c->again, s->base, on_again, c);
    evtimer_assign(&c->timer, s->base, on_deadline, c);
    evtimer_assign(&c->probe, s->base, on_probe, c);
    c->next = s->conns;
    if (c->next != NULL) {
        c->next->prev = c;
    }
    s->conns = c;
    s->n_conn++;
    if (event_add(&c->io, NULL) != 0) {
        conn_free(c);
        return NULL;
    }
    event_add(&c->timer, s->idle_tv);
    return c;
}
