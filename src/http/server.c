/* The server as a whole: its loop, and what reaches the loop from outside. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "http/impl.h"

enum { LINGER_S = 5 }; /* for a client that is still sending when it has its reply */

/* ---- posts ---- */

weft_status http_post(http_server *s, void (*fn)(void *arg), void *arg) {
    post *new = malloc(sizeof *new);
    if (new == NULL) {
        return WEFT_ERR_MEMORY;
    }
    *new = (post){NULL, fn, arg};
    pthread_mutex_lock(&s->lock);
    bool first = s->posts == NULL;
    *s->last_post = new;
    s->last_post = &new->next;
    pthread_mutex_unlock(&s->lock);
    if (first) { /* who posts next finds the loop woken */
        eventfd_write(s->wake_fd, 1);
    }
    return WEFT_OK;
}

static post *take_posts(http_server *s) {
    pthread_mutex_lock(&s->lock);
    post *list = s->posts;
    s->posts = NULL;
    s->last_post = &s->posts;
    pthread_mutex_unlock(&s->lock);
    return list;
}

static void on_posted(evutil_socket_t fd, short what, void *arg) {
    (void)what;
    eventfd_t count;
    eventfd_read(fd, &count); /* before the list is taken, so that no post is left unannounced */
    for (post *next, *p = take_posts(arg); p != NULL; p = next) {
        next = p->next;
        p->fn(p->arg);
        free(p);
    }
}

/* ---- signals and timers ---- */

static void on_signal(evutil_socket_t fd, short what, void *arg) {
    (void)fd, (void)what;
    signal_watch *w = arg;
    w->fn(w->arg);
}

weft_status http_on_signal(http_server *s, int signal, void (*fn)(void *arg), void *arg,
                           weft_error *err) {
    signal_watch *w = calloc(1, sizeof *w);
    struct event *e = w == NULL ? NULL : evsignal_new(s->base, signal, on_signal, w);
    if (e == NULL || event_add(e, NULL) != 0) {
        if (e != NULL) {
            event_free(e);
        }
        free(w);
        return error_set(err, WEFT_ERR_SETUP, "signal %d cannot be watched", signal);
    }
    *w = (signal_watch){s->signals, e, fn, arg};
    s->signals = w;
    return WEFT_OK;
}

struct http_timer {
    http_server *s;
    http_timer *prev, *next;
    struct event event;
    void (*fn)(void *arg);
    void *arg;
};

static void on_timer(evutil_socket_t fd, short what, void *timer) {
    (void)fd, (void)what;
    http_timer *t = timer;
    void (*fn)(void *arg) = t->fn;
    void *arg = t->arg;
    http_timer_stop(t); /* before the call, which may start another */
    fn(arg);
}

http_timer *http_timer_start(http_server *s, double seconds, void (*fn)(void *arg), void *arg) {
    http_timer *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return NULL;
    }
    *t = (http_timer){.s = s, .next = s->timers, .fn = fn, .arg = arg};
    seconds = seconds > 1e9 ? 1e9 : seconds > 0 ? seconds : 0; /* NaN is 0 too */
    struct timeval tv = {.tv_sec = (time_t)seconds};
    tv.tv_usec = (suseconds_t)((seconds - (double)tv.tv_sec) * 1e6);
    evtimer_assign(&t->event, s->base, on_timer, t);
    if (evtimer_add(&t->event, &tv) != 0) {
        free(t);
        return NULL;
    }
    if (t->next != NULL) {
        t->next->prev = t;
    }
    s->timers = t;
    return t;
}

void http_timer_stop(http_timer *t) {
    if (t == NULL) {
        return;
    }
    evtimer_del(&t->event);
    *(t->prev == NULL ? &t->s->timers : &t->prev->next) = t->next;
    if (t->next != NULL) {
        t->next->prev = t->prev;
    }
    free(t);
}

/* ---- the server ---- */

static const struct timeval *common_timeout(http_server *s, int32_t seconds) {
    return event_base_init_common_timeout(s->base, &(struct timeval){seconds, 0});
}

static weft_status fill(http_server *s, const http_params *p, weft_error *err) {
    s->p = *p;
    s->cors_origin = p->cors_origin == NULL ? NULL : strdup(p->cors_origin);
    s->last_post = &s->posts;
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct event_config *config = event_config_new();
    if (config != NULL) {
        event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK); /* only posts cross threads */
        event_config_require_features(config, EV_FEATURE_ET | EV_FEATURE_EARLY_CLOSE);
        s->base = event_base_new_with_config(config);
        event_config_free(config);
    }
    if (s->base == NULL || s->wake_fd < 0 || (p->cors_origin != NULL && s->cors_origin == NULL)) {
        return error_set(err, WEFT_ERR_SETUP, "HTTP: %s", strerror(errno));
    }
    s->read_tv = common_timeout(s, p->read_s);
    s->idle_tv = common_timeout(s, p->idle_s);
    s->write_tv = common_timeout(s, p->write_s);
    s->linger_tv = common_timeout(s, LINGER_S);
    s->posted = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST, on_posted, s);
    if (s->read_tv == NULL || s->idle_tv == NULL || s->write_tv == NULL || s->linger_tv == NULL ||
        s->posted == NULL || event_add(s->posted, NULL) != 0) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for HTTP");
    }
    return WEFT_OK;
}

weft_status http_open(const http_params *p, http_server **out, weft_error *err) {
    http_server *s = calloc(1, sizeof *s);
    if (s == NULL) {
        http_unbind(p->sockets);
        return error_set(err, WEFT_ERR_MEMORY, "no memory for HTTP");
    }
    pthread_mutex_init(&s->lock, NULL);
    weft_status status = fill(s, p, err);
    status = status == WEFT_OK ? listen_open(s, p->sockets, err) : status;
    if (status != WEFT_OK) {
        http_unbind(p->sockets);
        http_close(s);
        return status;
    }
    listen_resume(s);
    *out = s;
    return WEFT_OK;
}

int32_t http_port(const http_server *s) {
    return s->port;
}

int32_t http_connections(const http_server *s) {
    return s->n_conn;
}

void http_run(http_server *s) {
    while (!s->stopped && event_base_loop(s->base, EVLOOP_NO_EXIT_ON_EMPTY) == 0) {
    }
}

void http_stop(http_server *s) {
    s->stopped = true;
    event_base_loopbreak(s->base);
}

void http_drain(http_server *s) {
    s->draining = true;
    s->accepting = false;
    listen_close(s);
    for (conn *c = s->conns; c != NULL; c = c->next) {
        conn_drain(c);
    }
}

void http_close(http_server *s) {
    if (s == NULL) {
        return;
    }
    s->draining = true; /* conn_free is not to accept again */
    while (s->conns != NULL) {
        conn_free(s->conns);
    }
    while (s->calls != NULL) {
        call_free(s->calls);
    }
    while (s->timers != NULL) {
        http_timer_stop(s->timers);
    }
    listen_close(s);
    for (signal_watch *w = s->signals; w != NULL; w = s->signals) {
        s->signals = w->next;
        event_free(w->event);
        free(w);
    }
    for (post *next, *p = take_posts(s); p != NULL; p = next) {
        next = p->next;
        free(p);
    }
    if (s->posted != NULL) {
        event_free(s->posted);
    }
    if (s->base != NULL) {
        event_base_free(s->base);
    }
    if (s->wake_fd >= 0) {
        close(s->wake_fd);
    }
    pthread_mutex_destroy(&s->lock);
    free(s->cors_origin);
    free(s);
}
