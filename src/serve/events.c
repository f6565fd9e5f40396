/* The thread that takes the engine's events and hands them to the loop in batches: what has come
 * since the last one, so that the loop is woken once a step and not once a token. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serve/impl.h"

enum { WAIT_MS = 100, RETRY_MS = 10 };

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){0, ms * 1000000}, NULL);
}

/* Waits for memory: an event that is lost would leave a client waiting for ever. */
static serve_batch *batch_new(void) {
    serve_batch *b;
    while (!(b = malloc(sizeof *b)))
        pause_ms(RETRY_MS);
    b->next = NULL;
    b->n = 0;
    b->text_n = 0;
    b->text = NULL;
    return b;
}

static void batch_add(serve_batch *b, const weft_event *ev) {
    char *text;
    while (!(text = realloc(b->text, b->text_n + ev->text_bytes + 1)))
        pause_ms(RETRY_MS);
    b->text = text;
    memcpy(b->text + b->text_n, ev->text, ev->text_bytes);
    b->event[b->n++] = *ev;
    b->text_n += ev->text_bytes;
}

static void batch_send(serve *s, serve_batch *b) {
    size_t at = 0;
    for (int32_t i = 0; i < b->n; i++) {
        b->event[i].text = b->text + at;
        at += b->event[i].text_bytes;
    }
    pthread_mutex_lock(&s->lock);
    *(s->batch_last ? &s->batch_last->next : &s->batch) = b;
    s->batch_last = b;
    pthread_mutex_unlock(&s->lock);
    while (http_post(s->http, call_take_batch, s) != WEFT_OK)
        pause_ms(RETRY_MS);
}

serve_batch *batch_take(serve *s) {
    pthread_mutex_lock(&s->lock);
    serve_batch *b = s->batch;
    if (b) {
        s->batch = b->next;
        if (!s->batch)
            s->batch_last = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    return b;
}

void batch_free(serve_batch *b) {
    free(b->text);
    free(b);
}

void *events_main(void *server) {
    serve *s = server;
    serve_batch *b = batch_new();
    while (!atomic_load(&s->stop)) {
        weft_event ev;
        bool got = false;
        weft_error err = {0};
        weft_status st = weft_engine_next(s->engine, b->n > 0 ? 0 : WAIT_MS, &ev, &got, &err);
        if (st == WEFT_OK && got)
            batch_add(b, &ev);
        bool full = b->n == (int32_t)(sizeof b->event / sizeof *b->event);
        if (b->n > 0 && (!got || full)) {
            batch_send(s, b);
            b = batch_new();
        }
        if (st != WEFT_OK) {
            s->why = err;
            while (http_post(s->http, serve_engine_failed, s) != WEFT_OK)
                pause_ms(RETRY_MS);
            break;
        }
    }
    batch_free(b);
    return NULL;
}
