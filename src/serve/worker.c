/* The threads that turn bodies into requests of the engine: parsing and tokenising a long prompt
 * must not hold up the streams of others. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#include "base/wait.h"
#include "serve/impl.h"

size_t worker_max_bytes(const serve *s) {
    enum { LARGEST = 4 };
    return LARGEST * (size_t)s->max_body_bytes + (64u << 20);
}

bool worker_push(serve *s, serve_call *c) {
    serve_worker *w = &s->worker[c->n_body > LONG_BODY_BYTES ? WORKER_LONG : WORKER_SHORT];
    pthread_mutex_lock(&s->lock);
    bool room = s->n_queue < s->p->max_queue + s->engine_params->max_num_seqs &&
                s->queue_bytes + c->n_body <= worker_max_bytes(s);
    if (room) {
        s->queue_bytes += c->n_body;
        c->queued = NULL;
        if (w->queue_last)
            w->queue_last->queued = c;
        else
            w->queue = c;
        w->queue_last = c;
        s->n_queue++;
        pthread_cond_signal(&w->work);
    }
    pthread_mutex_unlock(&s->lock);
    return room;
}

/* NULL: stop. */
static serve_call *worker_pop(serve_worker *w) {
    serve *s = w->s;
    pthread_mutex_lock(&s->lock);
    while (!w->queue && !s->stop)
        pthread_cond_wait(&w->work, &s->lock);
    serve_call *c = s->stop ? NULL : w->queue;
    if (c) {
        w->queue = c->queued;
        if (!w->queue)
            w->queue_last = NULL;
        s->n_queue--;
        s->queue_bytes -= c->n_body;
    }
    pthread_mutex_unlock(&s->lock);
    return c;
}

static bool no_memory(openai_error *e) {
    return openai_error_set(e, 503, "server_error", "",
                            "the server has no memory for this request");
}

static bool refused(openai_error *e, const char *param, const weft_error *err) {
    int http = err->status == WEFT_ERR_TOO_LONG || err->status == WEFT_ERR_USAGE ? 400
               : err->status == WEFT_ERR_SETUP                                   ? 400
               : err->status == WEFT_ERR_MEMORY || err->status == WEFT_ERR_RANK  ? 503
                                                                                 : 500;
    return openai_error_set(e, http, http == 400 ? "invalid_request_error" : "server_error", param,
                            "%s", err->text);
}

/* ---- prompts ---- */

/* A token has two bytes or more in most texts: one pass is usually enough. */
static bool prompt_tokenize(serve *s, openai_prompt *p, weft_text_kind kind, const char *param,
                            openai_error *e) {
    for (size_t cap = p->bytes / 2 + 16, n = 0;; cap = n) {
        weft_error err = {0};
        free(p->id);
        p->id = NULL;
        if (cap > INT32_MAX || !(p->id = malloc(cap * sizeof *p->id)))
            return no_memory(e);
        if (weft_tokenize(s->model, p->text, p->bytes, kind, p->id, cap, &n, &err) != WEFT_OK)
            return refused(e, param, &err);
        p->n_id = (int32_t)n;
        if (n <= cap)
            return true;
    }
}

static bool prompt_detokenize(serve *s, openai_prompt *p, const char *param, openai_error *e) {
    weft_error err = {0};
    if (weft_detokenize(s->model, p->id, (size_t)p->n_id, true, &p->text, &p->bytes, &err) !=
        WEFT_OK)
        return refused(e, param, &err);
    return true;
}

/* The conversation as the text that the model reads. */
static bool render(serve *s, openai_request *q, openai_error *e) {
    weft_error err = {0};
    openai_prompt *p = &q->prompt[0];
    if (weft_chat_render(s->model, (const char *const *)q->role, (const char *const *)q->content,
                         (size_t)q->n_message, q->add_generation_prompt, &p->text, &err) != WEFT_OK)
        return refused(e, "messages", &err);
    p->bytes = strlen(p->text);
    return true;
}

/* The field that the prompts came in. */
static const char *prompt_field(const openai_request *q) {
    return q->n_message > 0 ? "messages" : q->kind == OPENAI_DETOKENIZE ? "tokens" : "prompt";
}

/* A text that is far too long is not tokenised to learn by how much. */
static bool may_fit(const serve *s, const openai_request *q, const openai_prompt *p,
                    const char *param, openai_error *e) {
    if (q->kind == OPENAI_TOKENIZE || p->bytes <= s->max_prompt_bytes)
        return true;
    openai_error_set(e, 400, "invalid_request_error", param,
                     "the prompt of %zu bytes does not fit the model length of %d tokens: no text "
                     "of more than %zu bytes does",
                     p->bytes, s->limits.max_model_len, s->max_prompt_bytes);
    e->code = "context_length_exceeded";
    return false;
}

/* Each prompt gets both: text and ids. */
static bool prompts_prepare(serve *s, openai_request *q, openai_error *e) {
    const char *param = prompt_field(q);
    if (q->n_message > 0 && !render(s, q, e))
        return false;
    bool whole = q->n_message > 0 || q->add_special_tokens;
    weft_text_kind kind = whole ? WEFT_TEXT_PROMPT : WEFT_TEXT_SPECIAL;
    for (int32_t i = 0; i < q->n_prompt; i++) {
        openai_prompt *p = &q->prompt[i];
        if (!(p->text ? may_fit(s, q, p, param, e) && prompt_tokenize(s, p, kind, param, e)
                      : prompt_detokenize(s, p, param, e)))
            return false;
    }
    return true;
}

/* ---- requests ---- */

static uint64_t random_seed(void) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = (uint64_t)(wait_now_s() * 1e9);
    return seed;
}

/* Choice 0 has the seed itself; others one that is theirs alone (F08, E14). */
static uint64_t choice_seed(const openai_request *q, int32_t choice) {
    if (!q->has_seed)
        return random_seed();
    uint64_t seed = q->sampling.seed;
    return choice == 0 ? seed : XXH64(&seed, sizeof seed, (uint64_t)choice);
}

static weft_request request_of(const openai_request *q, int32_t prompt, int32_t choice) {
    weft_request r;
    weft_request_default(&r);
    r.prompt = q->prompt[prompt].id;
    r.n_prompt = q->prompt[prompt].n_id;
    r.max_tokens = q->max_tokens > 0 ? q->max_tokens : q->max_tokens == 0 ? 1 : INT32_MAX;
    r.sampling = q->sampling;
    r.sampling.seed = choice_seed(q, choice);
    r.stop = (const char *const *)q->stop;
    r.n_stop = q->n_stop;
    r.bias = q->bias;
    r.n_bias = q->n_bias;
    r.cache_salt = q->cache_salt;
    r.ignore_eos = q->ignore_eos;
    r.prompt_logits = q->echo && q->logprobs >= 0;
    return r;
}

/* Room for n more, or a 429. */
static bool room_take(serve *s, int64_t n, openai_error *e) {
    int32_t most = s->engine_params->max_num_seqs + s->p->max_queue;
    if (n > most)
        return openai_error_set(e, 400, "invalid_request_error", "n",
                                "%lld choices of all prompts are more than this server takes at a "
                                "time (%d)",
                                (long long)n, most);
    if (atomic_fetch_add(&s->n_live, (int32_t)n) + n <= most)
        return true;
    atomic_fetch_sub(&s->n_live, (int32_t)n);
    return openai_error_set(e, 429, "rate_limit_error", "",
                            "the server's queue is full; try again in a moment");
}

/* Hands all choices to the engine. n_choice is set before the engine has them: events may come
 * before this thread goes on. */
static bool choices_submit(serve_call *c, weft_request *r, uint64_t *id, openai_error *e) {
    const openai_request *q = c->q;
    weft_error err = {0};
    int32_t n = q->n_prompt * q->n;
    for (int32_t i = 0; i < n; i++) {
        c->choice[i] = (serve_choice){.call = c, .index = i};
        r[i] = request_of(q, i / q->n, i % q->n);
        r[i].user = &c->choice[i];
    }
    c->n_choice = n;
    if (weft_engine_submit(c->s->engine, r, n, id, &err) == WEFT_OK) {
        for (int32_t i = 0; i < n; i++)
            c->choice[i].id = id[i];
        return true;
    }
    c->n_choice = 0;
    bool too_long = err.status == WEFT_ERR_TOO_LONG;
    refused(e, too_long ? prompt_field(q) : "", &err);
    e->code = too_long ? "context_length_exceeded" : NULL;
    return false;
}

static bool submit(serve_call *c, openai_error *e) {
    serve *s = c->s;
    if (!room_take(s, (int64_t)c->q->n_prompt * c->q->n, e))
        return false;
    int32_t n = c->q->n_prompt * c->q->n;
    weft_request *r = calloc((size_t)n, sizeof *r);
    uint64_t *id = calloc((size_t)n, sizeof *id);
    c->choice = calloc((size_t)n, sizeof *c->choice);
    c->answer = openai_answer_open(&s->openai, c->q, c->id, c->created);
    bool ok = r && id && c->choice && c->answer ? choices_submit(c, r, id, e) : no_memory(e);
    if (!ok)
        atomic_fetch_sub(&s->n_live, n);
    free(r);
    free(id);
    return ok;
}

static void handle(serve_call *c) {
    serve *s = c->s;
    openai_error *e = &c->refusal;
    if (atomic_load(&c->over))
        return;
    if (!openai_parse(c->kind, c->body, c->n_body, &s->limits, &c->q, e) ||
        !prompts_prepare(s, c->q, e))
        return;
    const openai_prompt *p = &c->q->prompt[0];
    if (c->kind == OPENAI_TOKENIZE)
        c->reply = openai_tokenize_body(&s->openai, c->q, s->limits.max_model_len);
    else if (c->kind == OPENAI_DETOKENIZE)
        c->reply = openai_detokenize_body(p->text, p->bytes);
    else {
        submit(c, e);
        return;
    }
    if (!c->reply)
        no_memory(e);
}

static void *worker_main(void *worker) {
    serve_worker *w = worker;
    for (serve_call *c; (c = worker_pop(w)) != NULL;) {
        handle(c);
        free(c->body);
        c->body = NULL;
        while (http_post(w->s->http, call_worker_done, c) != WEFT_OK)
            nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return NULL;
}

bool workers_open(serve *s) {
    bool ok = true;
    for (int32_t i = 0; ok && i < N_WORKER; i++) {
        serve_worker *w = &s->worker[i];
        w->s = s;
        pthread_cond_init(&w->work, NULL);
        ok = w->started = pthread_create(&w->thread, NULL, worker_main, w) == 0;
        if (!ok)
            pthread_cond_destroy(&w->work);
    }
    return ok;
}

void workers_close(serve *s) {
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    for (int32_t i = 0; i < N_WORKER; i++)
        if (s->worker[i].started)
            pthread_cond_signal(&s->worker[i].work);
    pthread_mutex_unlock(&s->lock);
    for (int32_t i = 0; i < N_WORKER; i++)
        if (s->worker[i].started) {
            pthread_join(s->worker[i].thread, NULL);
            pthread_cond_destroy(&s->worker[i].work);
        }
}
