/* How tokens are drawn and where an answer ends. Ranges are those of the engine or narrower, so that
 * it refuses nothing that has passed here. */
#include "openai/field.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STOP_BYTES = 1024 };

static bool read_numbers(openai_reader *r) {
    weft_sampling *s = &r->q->sampling;
    const struct {
        const char *name;
        float *out;
        double low, high;
        bool open; /* low itself is out */
        const char *range;
    } rule[] = {
        {"temperature", &s->temperature, 0, 2, false, "from 0 to 2"},
        {"top_p", &s->top_p, 0, 1, true, "greater than 0 and at most 1"},
        {"min_p", &s->min_p, 0, 1, false, "from 0 to 1"},
        {"repetition_penalty", &s->repetition_penalty, 0, FLT_MAX, true,
         "greater than 0 and at most 3.4e38"},
        {"presence_penalty", &s->presence_penalty, -2, 2, false, "from -2 to 2"},
        {"frequency_penalty", &s->frequency_penalty, -2, 2, false, "from -2 to 2"},
    };
    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++) {
        const json_t *v = openai_field(r, rule[i].name);
        if (v == NULL) {
            continue;
        }
        if (!json_is_number(v)) {
            return openai_refuse_kind(r, rule[i].name, v, "a number");
        }
        double x = json_number_value(v);
        bool fits = x >= rule[i].low && x <= rule[i].high;
        float given = fits ? (float)x : 0; /* what is only just above 0 becomes 0 */
        if (!fits || (rule[i].open && (double)given == rule[i].low)) {
            return openai_refuse(r, rule[i].name, "%s is %g, expected a number %s", rule[i].name, x,
                                 rule[i].range);
        }
        *rule[i].out = given;
    }
    return true;
}

static bool read_choices(openai_reader *r) {
    int64_t n = 1, best_of = 0;
    if (!openai_field_integer(r, "n", 1, r->limits->max_n, &n) ||
        !openai_field_integer(r, "best_of", INT32_MIN, INT32_MAX, &best_of)) {
        return false;
    }
    if (openai_field(r, "best_of") != NULL && best_of != n) {
        return openai_refuse(r, "best_of", "best_of is %d, expected the value of n, %d",
                             (int)best_of, (int)n);
    }
    r->q->n = (int32_t)n;
    return true;
}

static bool read_integers(openai_reader *r) {
    int64_t top_k = 0, seed = 0;
    if (!read_choices(r) || !openai_field_integer(r, "top_k", -1, INT32_MAX, &top_k) ||
        !openai_field_integer(r, "seed", INT64_MIN, INT64_MAX, &seed)) {
        return false;
    }
    r->q->sampling.top_k = (int32_t)top_k;
    r->q->sampling.seed = (uint64_t)seed;
    r->q->has_seed = openai_field(r, "seed") != NULL;
    return true;
}

static bool read_one_stop(openai_reader *r, const char *param, const json_t *v) {
    openai_request *q = r->q;
    if (!openai_read_text(r, param, v, &q->stop[q->n_stop])) {
        return false;
    }
    size_t n = strlen(q->stop[q->n_stop++]);
    if (n == 0) {
        return openai_refuse(r, param, "%s is empty", param);
    }
    return n <= MAX_STOP_BYTES || openai_refuse(r, param, "%s has %zu bytes, expected at most %d",
                                                param, n, MAX_STOP_BYTES);
}

static bool read_stop(openai_reader *r) {
    const json_t *v = openai_field(r, "stop");
    size_t n = json_is_array(v) ? json_array_size(v) : v != NULL ? 1 : 0;
    if (n > WEFT_MAX_STOP) {
        return openai_refuse(r, "stop", "stop holds %zu strings, expected at most %d", n,
                             WEFT_MAX_STOP);
    }
    r->q->stop = calloc(n + 1, sizeof *r->q->stop);
    if (r->q->stop == NULL) {
        return openai_refuse_memory(r);
    }
    if (v != NULL && !json_is_array(v)) {
        return json_is_string(v) ? read_one_stop(r, "stop", v)
                                 : openai_refuse_kind(r, "stop", v, "a string or a list of them");
    }
    for (size_t i = 0; i < n; i++) {
        char at[32];
        snprintf(at, sizeof at, "stop[%zu]", i);
        if (!read_one_stop(r, at, json_array_get(v, i))) {
            return false;
        }
    }
    return true;
}

/* A token id as JSON prints it: no sign, no blank, no leading zero, so that none stands twice. */
static bool id_of_key(const char *key, int32_t n_vocab, int32_t *out) {
    int64_t id = 0;
    for (const char *p = key; *p != '\0'; p++) {
        if (*p < '0' || *p > '9' || (*key == '0' && p > key)) {
            return false;
        }
        id = 10 * id + (*p - '0');
        if (id >= n_vocab) {
            return false;
        }
    }
    *out = (int32_t)id;
    return *key != '\0';
}

static bool read_bias(openai_reader *r) {
    openai_request *q = r->q;
    const json_t *v = openai_field(r, "logit_bias");
    if (v == NULL) {
        return true;
    }
    if (!json_is_object(v)) {
        return openai_refuse_kind(r, "logit_bias", v, "an object of token ids and numbers");
    }
    size_t n = json_object_size(v);
    if (n > WEFT_MAX_BIAS) {
        return openai_refuse(r, "logit_bias", "logit_bias holds %zu tokens, expected at most %d", n,
                             WEFT_MAX_BIAS);
    }
    q->bias = calloc(n + 1, sizeof *q->bias);
    if (q->bias == NULL) {
        return openai_refuse_memory(r);
    }
    for (void *at = json_object_iter((json_t *)v); at != NULL;
         at = json_object_iter_next((json_t *)v, at)) {
        weft_bias *b = &q->bias[q->n_bias++];
        const json_t *value = json_object_iter_value(at);
        if (!id_of_key(json_object_iter_key(at), r->limits->n_vocab, &b->token)) {
            return openai_refuse(r, "logit_bias",
                                 "logit_bias: name %d is not a token id from 0 to %d",
                                 (int)q->n_bias, (int)r->limits->n_vocab - 1);
        }
        double x = json_number_value(value);
        if (!json_is_number(value) || !(x >= -100 && x <= 100)) {
            return openai_refuse(r, "logit_bias",
                                 "logit_bias of token %d is not a number from -100 to 100",
                                 (int)b->token);
        }
        b->value = (float)x;
    }
    return true;
}

/* A number in completions; in chats a switch, and the number under another name. */
static bool read_logprobs(openai_reader *r) {
    bool chat = r->q->kind == OPENAI_CHAT, on = false;
    const char *number = chat ? "top_logprobs" : "logprobs";
    int64_t n = chat ? 0 : -1;
    if ((chat && !openai_field_bool(r, "logprobs", &on)) ||
        !openai_field_integer(r, number, 0, WEFT_MAX_TOP, &n)) {
        return false;
    }
    if (chat && !on && n > 0) {
        return openai_refuse(r, number, "top_logprobs needs logprobs to be true");
    }
    r->q->logprobs = chat && !on ? -1 : (int32_t)n;
    r->q->sampling.logprob = r->q->logprobs >= 0;
    r->q->sampling.n_top = r->q->logprobs > 0 ? r->q->logprobs : 0;
    return true;
}

bool openai_read_sampling(openai_reader *r) {
    return read_numbers(r) && read_integers(r) && read_stop(r) && read_bias(r) && read_logprobs(r);
}
