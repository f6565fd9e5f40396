/* Bodies of requests: what each field may hold, and what a client is told when it holds something
 * else. Field reports C05, E04, E10-E14, E16, E17, F02, F04. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>

#include "openai/openai.h"

static const char *const served[] = {"demo", "other"};
static const openai_limits limits = {.model = served,
                                     .n_model = 2,
                                     .n_vocab = 100,
                                     .max_model_len = 64,
                                     .max_n = 4,
                                     .max_prompt = 3};

static openai_request *parse_bytes(openai_kind kind, const char *body, size_t n, openai_error *e) {
    openai_request *q = NULL;
    char *own = malloc(n + (n == 0)); /* its own block, so that reading past the end is seen */
    memcpy(own, body, n);
    *e = (openai_error){0};
    bool ok = openai_parse(kind, own, n, &limits, &q, e);
    free(own);
    assert_int_equal(ok, q != NULL);
    assert_int_equal(ok, e->http == 0);
    return q;
}

static openai_request *parse(openai_kind kind, const char *body) {
    openai_error e;
    openai_request *q = parse_bytes(kind, body, strlen(body), &e);
    if (q == NULL) {
        fail_msg("%s: refused: %s", body, e.message);
    }
    return q;
}

/* A sound request with `fields` added to it. */
static char *with(openai_kind kind, const char *fields) {
    static const char *const head[] = {"{\"prompt\":\"a\"",
                                       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]",
                                       "{\"prompt\":\"a\"", "{\"tokens\":[1]"};
    size_t n = strlen(head[kind]) + strlen(fields) + 8;
    char *body = malloc(n);
    snprintf(body, n, "%s%s%s}", head[kind], fields[0] != '\0' ? "," : "", fields);
    return body;
}

static openai_request *parse_with(openai_kind kind, const char *fields) {
    char *body = with(kind, fields);
    openai_request *q = parse(kind, body);
    free(body);
    return q;
}

static void check_error(const char *body, const openai_error *e, int http, const char *param) {
    if (e->http != http || strcmp(e->param, param) != 0) {
        fail_msg("%.200s: %d \"%s\" (%s), expected %d \"%s\"", body, e->http, e->param, e->message,
                 http, param);
    }
    assert_string_equal(e->type, http == 404 ? "not_found_error" : "invalid_request_error");
    for (const char *p = e->message; *p != '\0'; p++) {
        assert_in_range(*p, 0x20, 0x7E);
    }
    char *text = openai_error_body(e);
    json_error_t why;
    json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    assert_non_null(v);
    const json_t *error = json_object_get(v, "error");
    assert_string_equal(json_string_value(json_object_get(error, "message")), e->message);
    assert_string_equal(json_string_value(json_object_get(error, "type")), e->type);
    const json_t *code = json_object_get(error, "code"), *at = json_object_get(error, "param");
    assert_true(http == 404 ? strcmp(json_string_value(code), "model_not_found") == 0
                            : json_is_null(code));
    assert_true(param[0] == '\0' ? json_is_null(at) : strcmp(json_string_value(at), param) == 0);
    assert_true(strlen(text) < 1024);
    json_decref(v);
    free(text);
}

static void refused_bytes(openai_kind kind, const char *body, size_t n, const char *param) {
    openai_error e;
    openai_request *q = parse_bytes(kind, body, n, &e);
    if (q != NULL) {
        fail_msg("%.200s: accepted, expected 400 \"%s\"", body, param);
    }
    check_error(body, &e, 400, param);
}

static void refused(openai_kind kind, const char *body, const char *param) {
    refused_bytes(kind, body, strlen(body), param);
}

static void refused_with(openai_kind kind, const char *fields, const char *param) {
    char *body = with(kind, fields);
    refused(kind, body, param);
    free(body);
}

/* ---- JSON ---- */

static char *repeated(const char *head, const char *part, size_t n, const char *tail) {
    size_t k = strlen(part), at = strlen(head);
    char *body = malloc(at + n * k + strlen(tail) + 1);
    memcpy(body, head, at);
    for (size_t i = 0; i < n; i++, at += k) {
        memcpy(body + at, part, k);
    }
    memcpy(body + at, tail, strlen(tail) + 1);
    return body;
}

static void bodies_that_are_no_json(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "null",
        "[]",
        "\"prompt\"",
        "1",
        "{",
        "{\"prompt\":\"a\"",
        "{\"prompt\":\"a\"}x",
        "{\"prompt\":\"a\"}{\"prompt\":\"a\"}",
        "{'prompt':'a'}",
        "{\"prompt\":\"a\",}",
        "\xEF\xBB\xBF{\"prompt\":\"a\"}",
        "{\"prompt\":\"a\",\"prompt\":\"a\"}",
        "{\"prompt\":\"a\",\"x\":{\"b\":1,\"b\":2}}",
        "{\"prompt\":\"a\",\"n\":1e999}",
        "{\"prompt\":\"a\",\"x\":-1e999}",
        "{\"prompt\":\"a\",\"temperature\":NaN}",
        "{\"prompt\":\"a\",\"temperature\":Infinity}",
        "{\"prompt\":\"a\",\"x\\u0000y\":1}",
        "{\"prompt\":\"a\nb\"}",
        /* raw bytes that are no UTF-8: a Chinese text in GB 18030, overlong, a surrogate, too large */
        "{\"prompt\":\"\xC4\xE3\xBA\xC3\"}",
        "{\"prompt\":\"\xC0\x80\"}",
        "{\"prompt\":\"\xED\xA0\xBD\"}",
        "{\"prompt\":\"\xF4\x90\x80\x80\"}",
        "{\"prompt\":\"\xE4\xBD\"}",
        "{\"prompt\":\"a\",\"\xFF\":1}",
        "{\"prompt\":\"a\",\"model\":\"\xFF\"}",
        /* half a pair, the wrong half, both in the wrong order */
        "{\"prompt\":\"x \\ud83d\"}",
        "{\"prompt\":\"\\ude00 y\"}",
        "{\"prompt\":\"\\ude00\\ud83d\"}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        refused(OPENAI_COMPLETION, bad[i], "");
        refused(OPENAI_CHAT, bad[i], "");
    }
    refused_bytes(OPENAI_COMPLETION, "{\"prompt\":\"a\0b\"}", 16, "");
    refused_bytes(OPENAI_COMPLETION, "{\"prompt\":\"a\"}\0", 15, "");
    char *deep = repeated("{\"prompt\":\"a\",\"x\":", "[", 100000, "");
    refused(OPENAI_COMPLETION, deep, "");
    free(deep);
    deep = repeated("{\"prompt\":\"a\",\"x\":", "{\"a\":", 100000, "");
    refused(OPENAI_COMPLETION, deep, "");
    free(deep);
}

static void errors_stay_small(void **state) {
    (void)state;
    char *body = repeated("{\"messages\":[7", ",{\"role\":\"\xC3\xA9\",\"content\":7}", 9999, "]}");
    refused(OPENAI_CHAT, body, "messages[0]");
    free(body);
    body = repeated("{\"prompt\":\"a\",\"", "x", 1 << 20, "\":1}");
    openai_request_free(parse(OPENAI_COMPLETION, body));
    free(body);
    body = repeated("{\"prompt\":\"a\",\"stop\":[\"a\"", ",\"a\"", 9999, "]}");
    refused(OPENAI_COMPLETION, body, "stop");
    free(body);
    body = repeated("{\"prompt\":[\"a\"", ",\"a\"", 9999, "]}");
    refused(OPENAI_COMPLETION, body, "prompt");
    free(body);
    body = repeated("{\"prompt\":[1", ",1", 9999, "]}");
    refused(OPENAI_COMPLETION, body, "prompt");
    free(body);
    body = repeated("{\"prompt\":\"a\",\"cache_salt\":\"", "x", 257, "\"}");
    refused(OPENAI_COMPLETION, body, "cache_salt");
    free(body);
    body = repeated("{\"prompt\":\"a\",\"stop\":\"", "x", 1025, "\"}");
    refused(OPENAI_COMPLETION, body, "stop");
    free(body);
}

/* The client's words never come back. */
static void errors_do_not_echo(void **state) {
    (void)state;
    static const struct {
        openai_kind kind;
        const char *fields;
    } item[] = {{OPENAI_COMPLETION, "\"model\":\"zebra\""},
                {OPENAI_COMPLETION, "\"temperature\":\"zebra\""},
                {OPENAI_COMPLETION, "\"logit_bias\":{\"zebra\":1}"},
                {OPENAI_COMPLETION, "\"zebra\":1,\"zebra\":2"},
                {OPENAI_COMPLETION, "\"n\":zebra"},
                {OPENAI_CHAT, "\"tool_choice\":\"zebra\""},
                {OPENAI_CHAT, "\"response_format\":{\"type\":\"zebra\"}"},
                {OPENAI_CHAT, "\"stop\":[\"zebra\",{\"zebra\":1}]"}};
    for (size_t i = 0; i < sizeof item / sizeof *item; i++) {
        openai_error e;
        char *body = with(item[i].kind, item[i].fields);
        assert_null(parse_bytes(item[i].kind, body, strlen(body), &e));
        char *text = openai_error_body(&e);
        assert_null(strstr(text, "zebra"));
        free(text);
        free(body);
    }
}

/* ---- fields that are refused ---- */

/* kinds: c completions, h chats, b both */
static const struct {
    char kind;
    const char *fields, *param;
} wrong_value[] = {
    {'b', "\"model\":1", "model"},
    {'b', "\"max_tokens\":-1", "max_tokens"},
    {'h', "\"max_tokens\":0", "max_tokens"},
    {'h', "\"max_completion_tokens\":0", "max_completion_tokens"},
    {'b', "\"max_tokens\":65", "max_tokens"},
    {'b', "\"max_tokens\":2147483648", "max_tokens"},
    {'b', "\"max_tokens\":1000000000000", "max_tokens"},
    {'b', "\"max_tokens\":9223372036854775808", "max_tokens"},
    {'b', "\"max_tokens\":-9223372036854775809", "max_tokens"},
    {'b', "\"max_tokens\":1e300", "max_tokens"},
    {'b', "\"max_tokens\":1.5", "max_tokens"},
    {'b', "\"max_tokens\":\"5\"", "max_tokens"},
    {'b', "\"max_tokens\":true", "max_tokens"},
    {'b', "\"max_tokens\":5,\"max_completion_tokens\":6", "max_tokens"},
    {'b', "\"n\":0", "n"},
    {'b', "\"n\":-1", "n"},
    {'b', "\"n\":5", "n"},
    {'b', "\"n\":1000000", "n"},
    {'b', "\"n\":[1]", "n"},
    {'b', "\"best_of\":2", "best_of"},
    {'b', "\"n\":2,\"best_of\":3", "best_of"},
    {'b', "\"n\":2,\"best_of\":99999999999", "best_of"},
    {'b', "\"temperature\":-0.1", "temperature"},
    {'b', "\"temperature\":2.01", "temperature"},
    {'b', "\"temperature\":1e300", "temperature"},
    {'b', "\"temperature\":\"hot\"", "temperature"},
    {'b', "\"top_p\":0", "top_p"},
    {'b', "\"top_p\":1e-60", "top_p"}, /* 0 as a float */
    {'b', "\"top_p\":1.01", "top_p"},
    {'b', "\"top_p\":-1", "top_p"},
    {'b', "\"top_k\":-2", "top_k"},
    {'b', "\"top_k\":2147483648", "top_k"},
    {'b', "\"min_p\":-0.01", "min_p"},
    {'b', "\"min_p\":1.01", "min_p"},
    {'b', "\"repetition_penalty\":0", "repetition_penalty"},
    {'b', "\"repetition_penalty\":1e-60", "repetition_penalty"},
    {'b', "\"repetition_penalty\":1e39", "repetition_penalty"},
    {'b', "\"presence_penalty\":2.1", "presence_penalty"},
    {'b', "\"frequency_penalty\":-2.1", "frequency_penalty"},
    {'b', "\"frequency_penalty\":{}", "frequency_penalty"},
    {'b', "\"seed\":1.5", "seed"},
    {'b', "\"seed\":9223372036854775808", "seed"},
    {'b', "\"seed\":\"1\"", "seed"},
    {'b', "\"stop\":\"\"", "stop"},
    {'b', "\"stop\":[\"a\",\"\"]", "stop[1]"},
    {'b', "\"stop\":[\"a\",null]", "stop[1]"},
    {'b', "\"stop\":[[\"a\"]]", "stop[0]"},
    {'b', "\"stop\":5", "stop"},
    {'b', "\"stop\":{\"a\":1}", "stop"},
    {'b', "\"stop\":\"a\\u0000\"", "stop"},
    {'b', "\"logit_bias\":[1]", "logit_bias"},
    {'b', "\"logit_bias\":{\"100\":1}", "logit_bias"},
    {'b', "\"logit_bias\":{\"-1\":1}", "logit_bias"},
    {'b', "\"logit_bias\":{\"\":1}", "logit_bias"},
    {'b', "\"logit_bias\":{\"05\":1}", "logit_bias"},
    {'b', "\"logit_bias\":{\"00\":1}", "logit_bias"},
    {'b', "\"logit_bias\":{\"+5\":1}", "logit_bias"},
    {'b', "\"logit_bias\":{\"5.0\":1}", "logit_bias"},
    {'b', "\"logit_bias\":{\" 5\":1}", "logit_bias"},
    {'b', "\"logit_bias\":{\"99999999999999999999\":1}", "logit_bias"},
    {'b', "\"logit_bias\":{\"5\":100.1}", "logit_bias"},
    {'b', "\"logit_bias\":{\"5\":-101}", "logit_bias"},
    {'b', "\"logit_bias\":{\"5\":null}", "logit_bias"},
    {'b', "\"logit_bias\":{\"5\":\"1\"}", "logit_bias"},
    {'c', "\"logprobs\":21", "logprobs"},
    {'c', "\"logprobs\":-1", "logprobs"},
    {'c', "\"logprobs\":true", "logprobs"},
    {'h', "\"logprobs\":5", "logprobs"},
    {'h', "\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
    {'h', "\"logprobs\":true,\"top_logprobs\":1000000000", "top_logprobs"},
    {'h', "\"logprobs\":true,\"top_logprobs\":true", "top_logprobs"},
    {'h', "\"logprobs\":false,\"top_logprobs\":2", "top_logprobs"},
    {'h', "\"top_logprobs\":2", "top_logprobs"},
    {'c', "\"echo\":1", "echo"},
    {'c', "\"add_special_tokens\":\"no\"", "add_special_tokens"},
    {'h', "\"add_generation_prompt\":1", "add_generation_prompt"},
    {'b', "\"stream\":\"true\"", "stream"},
    {'b', "\"stream\":1", "stream"},
    {'b', "\"stream_options\":{}", "stream_options"},
    {'b', "\"stream\":false,\"stream_options\":{\"include_usage\":true}", "stream_options"},
    {'b', "\"stream\":true,\"stream_options\":true", "stream_options"},
    {'b', "\"stream\":true,\"stream_options\":{\"include_usage\":1}",
     "stream_options.include_usage"},
    {'b', "\"ignore_eos\":0", "ignore_eos"},
    {'b', "\"timeout\":0", "timeout"},
    {'b', "\"timeout\":-1", "timeout"},
    {'b', "\"timeout\":86401", "timeout"},
    {'b', "\"timeout\":\"1s\"", "timeout"},
    {'b', "\"cache_salt\":\"\"", "cache_salt"},
    {'b', "\"cache_salt\":1", "cache_salt"},
    {'b', "\"cache_salt\":\"a\\u0000b\"", "cache_salt"},
    {'b', "\"suffix\":\"x\"", "suffix"},
    {'b', "\"tools\":[{\"type\":\"function\"}]", "tools"},
    {'b', "\"tools\":5", "tools"},
    {'b', "\"functions\":[{}]", "functions"},
    {'b', "\"tool_choice\":\"required\"", "tool_choice"},
    {'b', "\"tool_choice\":{\"type\":\"function\"}", "tool_choice"},
    {'b', "\"function_call\":{\"name\":\"f\"}", "function_call"},
    {'b', "\"response_format\":{\"type\":\"json_object\"}", "response_format"},
    {'b', "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}", "response_format"},
    {'b', "\"response_format\":\"text\"", "response_format"},
    {'b', "\"response_format\":{}", "response_format"},
    {'b', "\"guided_regex\":\"(a+)+$\"", "guided_regex"},
    {'b', "\"min_tokens\":5", "min_tokens"},
    {'b', "\"stop_token_ids\":[5]", "stop_token_ids"},
    {'b', "\"use_beam_search\":true", "use_beam_search"},
};

static void wrong_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof wrong_value / sizeof *wrong_value; i++) {
        if (wrong_value[i].kind != 'h') {
            refused_with(OPENAI_COMPLETION, wrong_value[i].fields, wrong_value[i].param);
        }
        if (wrong_value[i].kind != 'c') {
            refused_with(OPENAI_CHAT, wrong_value[i].fields, wrong_value[i].param);
        }
    }
}

static void wrong_prompts(void **state) {
    (void)state;
    static const struct {
        const char *body, *param;
    } item[] = {
        {"{}", "prompt"},
        {"{\"prompt\":null}", "prompt"},
        {"{\"prompt\":\"\"}", "prompt"},
        {"{\"prompt\":[]}", "prompt"},
        {"{\"prompt\":5}", "prompt"},
        {"{\"prompt\":true}", "prompt"},
        {"{\"prompt\":{\"a\":1}}", "prompt"},
        {"{\"prompt\":[\"\"]}", "prompt[0]"},
        {"{\"prompt\":[\"a\",\"\"]}", "prompt[1]"},
        {"{\"prompt\":[[]]}", "prompt[0]"},
        {"{\"prompt\":[[1],[]]}", "prompt[1]"},
        {"{\"prompt\":[\"a\",1]}", "prompt[1]"},
        {"{\"prompt\":[\"a\",[1]]}", "prompt[1]"},
        {"{\"prompt\":[1,\"a\"]}", "prompt[1]"},
        {"{\"prompt\":[[1],\"a\"]}", "prompt[1]"},
        {"{\"prompt\":[[1],[[2]]]}", "prompt[1][0]"},
        {"{\"prompt\":[null]}", "prompt[0]"},
        {"{\"prompt\":[true]}", "prompt[0]"},
        {"{\"prompt\":[{}]}", "prompt[0]"},
        {"{\"prompt\":[1,-1]}", "prompt[1]"},
        {"{\"prompt\":[100]}", "prompt[0]"},
        {"{\"prompt\":[1.5]}", "prompt[0]"},
        {"{\"prompt\":[18446744073709551616]}", "prompt[0]"},
        {"{\"prompt\":[4294967297]}", "prompt[0]"},
        {"{\"prompt\":[[1],[2,100]]}", "prompt[1][1]"},
        {"{\"prompt\":[\"a\",\"a\",\"a\",\"a\"]}", "prompt"},
        {"{\"prompt\":[[1],[1],[1],[1]]}", "prompt"},
    };
    for (size_t i = 0; i < sizeof item / sizeof *item; i++) {
        refused(OPENAI_COMPLETION, item[i].body, item[i].param);
    }
}

#define USER "{\"role\":\"user\",\"content\":\"a\"}"

static void wrong_messages(void **state) {
    (void)state;
    static const struct {
        const char *messages, *param;
    } item[] = {
        {"null", "messages"},
        {"[]", "messages"},
        {"\"a\"", "messages"},
        {"{\"role\":\"user\"}", "messages"},
        {"[\"a\"]", "messages[0]"},
        {"[" USER ",null]", "messages[1]"},
        {"[" USER ",{}]", "messages[1].role"},
        {"[{\"role\":null,\"content\":\"a\"}]", "messages[0].role"},
        {"[{\"role\":5,\"content\":\"a\"}]", "messages[0].role"},
        {"[{\"role\":\"\",\"content\":\"a\"}]", "messages[0].role"},
        {"[{\"role\":\"User\",\"content\":\"a\"}]", "messages[0].role"},
        {"[{\"role\":\"user\\u0000\",\"content\":\"a\"}]", "messages[0].role"},
        {"[{\"role\":\"tool\",\"content\":\"a\"}]", "messages[0].role"},
        {"[" USER "," USER "," USER ",{\"role\":\"user\",\"content\":5}]", "messages[3].content"},
        {"[{\"role\":\"user\"}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content"},
        {"[{\"role\":\"system\",\"content\":null}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":{}}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":[]}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":[\"a\"]}]", "messages[0].content[0]"},
        {"[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]", "messages[0].content[0].type"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
         "{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}]",
         "messages[0].content[1].type"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content[0].text"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":null}]}]",
         "messages[0].content[0].text"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\\u0000\"}]}]",
         "messages[0].content[0].text"},
        {"[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"x\"}]}]",
         "messages[0].tool_calls"},
        {"[{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":\"x\"}}]",
         "messages[0].function_call"},
    };
    for (size_t i = 0; i < sizeof item / sizeof *item; i++) {
        char body[512];
        snprintf(body, sizeof body, "{\"messages\":%s}", item[i].messages);
        refused(OPENAI_CHAT, body, item[i].param);
        if (i > 0) { /* without messages it is one of a prompt */
            refused(OPENAI_TOKENIZE, body, item[i].param);
        }
    }
}

static void model_names(void **state) {
    (void)state;
    static const char *const unknown[] = {"\"model\":\"gpt-4\"", "\"model\":\"\"",
                                          "\"model\":\"demo\\u0000\"", "\"model\":\"demo \""};
    openai_error e;
    for (int kind = OPENAI_COMPLETION; kind <= OPENAI_DETOKENIZE; kind++) {
        openai_request_free(parse_with((openai_kind)kind, "\"model\":\"other\""));
        openai_request_free(parse_with((openai_kind)kind, "\"model\":null"));
        for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
            char *body = with((openai_kind)kind, unknown[i]);
            assert_null(parse_bytes((openai_kind)kind, body, strlen(body), &e));
            check_error(body, &e, 404, "model");
            free(body);
        }
    }
}

/* ---- fields that are taken ---- */

static void defaults_and_nulls(void **state) {
    (void)state;
    static const char nulls[] =
        "\"max_tokens\":null,\"max_completion_tokens\":null,\"stop\":null,\"temperature\":null,"
        "\"top_p\":null,\"top_k\":null,\"n\":null,\"best_of\":null,\"seed\":null,\"stream\":null,"
        "\"stream_options\":null,\"logit_bias\":null,\"tools\":null,\"tool_choice\":null,"
        "\"response_format\":null,\"user\":null,\"logprobs\":null,\"top_logprobs\":null,"
        "\"echo\":null,\"suffix\":null,\"ignore_eos\":null,\"timeout\":null,\"cache_salt\":null,"
        "\"add_special_tokens\":null,\"add_generation_prompt\":null,\"min_p\":null,"
        "\"presence_penalty\":null,\"frequency_penalty\":null,\"repetition_penalty\":null,"
        "\"model\":null,\"functions\":null,\"function_call\":null,\"min_tokens\":null";
    static const char others[] =
        "\"user\":\"u\",\"metadata\":{\"a\":[1,2]},\"store\":true,\"parallel_tool_calls\":false,"
        "\"reasoning_effort\":\"low\",\"x\":98765432109876543210,\"tools\":[],\"stop\":[],"
        "\"tool_choice\":\"none\",\"response_format\":{\"type\":\"text\"},\"logit_bias\":{},"
        "\"function_call\":\"auto\",\"min_tokens\":0,\"suffix\":\"\",\"use_beam_search\":false";
    static const char *const fields[] = {"", nulls, others};
    for (int i = 0; i < 6; i++) {
        bool chat = i % 2 == 1;
        openai_request *q = parse_with(chat ? OPENAI_CHAT : OPENAI_COMPLETION, fields[i / 2]);
        assert_int_equal(q->kind, chat ? OPENAI_CHAT : OPENAI_COMPLETION);
        assert_int_equal(q->n_prompt, 1);
        assert_int_equal(q->n_message, chat);
        assert_int_equal(q->n, 1);
        assert_int_equal(q->max_tokens, chat ? -1 : 16);
        const weft_sampling *s = &q->sampling;
        assert_true(s->temperature == 1 && s->top_p == 1 && s->min_p == 0 && s->top_k == 0);
        assert_true(s->repetition_penalty == 1 && s->presence_penalty == 0);
        assert_true(s->frequency_penalty == 0 && s->seed == 0 && !q->has_seed);
        assert_true(!s->logprob && s->n_top == 0 && q->logprobs == -1);
        assert_true(q->n_stop == 0 && q->n_bias == 0 && q->cache_salt == NULL);
        assert_true(!q->echo && !q->stream && !q->include_usage && !q->ignore_eos);
        assert_true(q->timeout_s == 0);
        assert_true(q->add_special_tokens && q->add_generation_prompt && !q->token_strs);
        openai_request_free(q);
    }
}

static void all_fields(void **state) {
    (void)state;
    static const char fields[] =
        "\"model\":\"demo\",\"max_tokens\":7,\"max_completion_tokens\":7.0,\"n\":3,\"best_of\":3,"
        "\"temperature\":2,\"top_p\":0.5,\"top_k\":9999999,\"min_p\":0.25,"
        "\"repetition_penalty\":1.5,\"presence_penalty\":-2,\"frequency_penalty\":2,"
        "\"stop\":[\"\\n\",\"\xE5\xA5\xBD\",\" \"],\"logit_bias\":{\"0\":-100,\"99\":0.5},"
        "\"stream\":true,\"stream_options\":{\"include_usage\":true,\"x\":1},"
        "\"ignore_eos\":true,\"timeout\":0.5,\"cache_salt\":\"s\"";
    for (int chat = 0; chat < 2; chat++) {
        openai_request *q = parse_with(chat ? OPENAI_CHAT : OPENAI_COMPLETION, fields);
        const weft_sampling *s = &q->sampling;
        assert_int_equal(q->max_tokens, 7);
        assert_int_equal(q->n, 3);
        assert_true(s->temperature == 2 && s->top_p == 0.5f && s->min_p == 0.25f);
        assert_int_equal(s->top_k, 9999999);
        assert_true(s->repetition_penalty == 1.5f);
        assert_true(s->presence_penalty == -2 && s->frequency_penalty == 2);
        assert_int_equal(q->n_stop, 3);
        assert_string_equal(q->stop[0], "\n");
        assert_string_equal(q->stop[1], "\xE5\xA5\xBD");
        assert_string_equal(q->stop[2], " ");
        assert_int_equal(q->n_bias, 2);
        assert_true(q->bias[0].token == 0 && q->bias[0].value == -100);
        assert_true(q->bias[1].token == 99 && q->bias[1].value == 0.5f);
        assert_true(q->stream && q->include_usage && q->ignore_eos);
        assert_true(q->timeout_s == 0.5);
        assert_string_equal(q->cache_salt, "s");
        openai_request_free(q);
    }
}

static void limits_themselves(void **state) {
    (void)state;
    static const char *const both[] = {"\"n\":4",
                                       "\"max_tokens\":64",
                                       "\"max_tokens\":1",
                                       "\"temperature\":0",
                                       "\"top_p\":1",
                                       "\"top_p\":0.001",
                                       "\"top_k\":-1",
                                       "\"top_k\":2147483647",
                                       "\"min_p\":1",
                                       "\"best_of\":1",
                                       "\"timeout\":86400",
                                       "\"logit_bias\":{\"5\":100}",
                                       "\"stop\":\"END\"",
                                       "\"stream\":true",
                                       "\"stream\":true,\"stream_options\":{}",
                                       "\"max_completion_tokens\":1"};
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        openai_request_free(parse_with(OPENAI_COMPLETION, both[i]));
        openai_request_free(parse_with(OPENAI_CHAT, both[i]));
    }
    char *body = repeated("{\"prompt\":\"a\",\"stop\":[\"a\"", ",\"a\"", WEFT_MAX_STOP - 1, "]}");
    openai_request *q = parse(OPENAI_COMPLETION, body);
    assert_int_equal(q->n_stop, WEFT_MAX_STOP);
    openai_request_free(q);
    free(body);
    body = repeated("{\"prompt\":\"a\",\"cache_salt\":\"", "x", 256, "\"}");
    openai_request_free(parse(OPENAI_COMPLETION, body));
    free(body);
    body = repeated("{\"prompt\":[1", ",1", 63, "]}");
    q = parse(OPENAI_COMPLETION, body);
    assert_int_equal(q->prompt[0].n_id, 64);
    openai_request_free(q);
    free(body);
}

/* More biases than any vocabulary of the other tests. */
static void many_biases(void **state) {
    (void)state;
    openai_limits wide = limits;
    wide.n_vocab = 100000;
    for (int n = WEFT_MAX_BIAS; n <= WEFT_MAX_BIAS + 1; n++) {
        char *body = malloc(64 + 16 * (size_t)n), *p = body;
        p += sprintf(p, "{\"prompt\":\"a\",\"logit_bias\":{\"0\":1");
        for (int i = 1; i < n; i++) {
            p += sprintf(p, ",\"%d\":-1", i);
        }
        p += sprintf(p, "}}");
        openai_request *q = NULL;
        openai_error e = {0};
        assert_int_equal(openai_parse(OPENAI_COMPLETION, body, (size_t)(p - body), &wide, &q, &e),
                         n == WEFT_MAX_BIAS);
        if (n == WEFT_MAX_BIAS) {
            assert_int_equal(q->n_bias, n);
        } else {
            check_error(body, &e, 400, "logit_bias");
        }
        openai_request_free(q);
        free(body);
    }
}

static void seeds_as_given(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t seed;
    } item[] = {{"0", 0},
                {"-1", UINT64_MAX},
                {"-2", UINT64_MAX - 1},
                {"2147483648", UINT64_C(1) << 31},
                {"9007199254740993", 9007199254740993u},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", UINT64_C(1) << 63}};
    for (size_t i = 0; i < sizeof item / sizeof *item; i++) {
        char fields[64];
        snprintf(fields, sizeof fields, "\"seed\":%s", item[i].text);
        openai_request *q = parse_with(OPENAI_CHAT, fields);
        assert_true(q->has_seed && q->sampling.seed == item[i].seed);
        openai_request_free(q);
    }
}

static void logprobs(void **state) {
    (void)state;
    static const struct {
        openai_kind kind;
        const char *fields;
        int32_t logprobs, n_top;
    } item[] = {
        {OPENAI_COMPLETION, "\"logprobs\":0", 0, 0},
        {OPENAI_COMPLETION, "\"logprobs\":5,\"echo\":true,\"max_tokens\":0", 5, 5},
        {OPENAI_COMPLETION, "\"logprobs\":20", 20, 20},
        {OPENAI_CHAT, "\"logprobs\":true", 0, 0},
        {OPENAI_CHAT, "\"logprobs\":true,\"top_logprobs\":20", 20, 20},
        {OPENAI_CHAT, "\"logprobs\":false,\"top_logprobs\":0", -1, 0},
    };
    for (size_t i = 0; i < sizeof item / sizeof *item; i++) {
        openai_request *q = parse_with(item[i].kind, item[i].fields);
        assert_int_equal(q->logprobs, item[i].logprobs);
        assert_int_equal(q->sampling.logprob, item[i].logprobs >= 0);
        assert_int_equal(q->sampling.n_top, item[i].n_top);
        assert_int_equal(q->max_tokens, i == 1 ? 0 : item[i].kind == OPENAI_CHAT ? -1 : 16);
        openai_request_free(q);
    }
}

static void check_text(const openai_prompt *p, const char *text, size_t n) {
    assert_null(p->id);
    assert_int_equal(p->bytes, n);
    assert_memory_equal(p->text, text, n);
}

static void prompts_as_given(void **state) {
    (void)state;
    openai_request *q = parse(OPENAI_COMPLETION, "{\"prompt\":\"\\ud83d\\ude00 \\u0000b\"}");
    check_text(&q->prompt[0], "\xF0\x9F\x98\x80 \0b", 7);
    openai_request_free(q);
    q = parse(OPENAI_COMPLETION, "{\"prompt\":[\"a\",\"bc\",\"\xC3\xA9\"]}");
    assert_int_equal(q->n_prompt, 3);
    check_text(&q->prompt[0], "a", 1);
    check_text(&q->prompt[1], "bc", 2);
    check_text(&q->prompt[2], "\xC3\xA9", 2);
    openai_request_free(q);
    q = parse(OPENAI_COMPLETION, "{\"prompt\":[0,99,3.0]}");
    assert_int_equal(q->n_prompt, 1);
    assert_null(q->prompt[0].text);
    assert_int_equal(q->prompt[0].n_id, 3);
    assert_memory_equal(q->prompt[0].id, ((int32_t[]){0, 99, 3}), 12);
    openai_request_free(q);
    q = parse(OPENAI_COMPLETION, "{\"prompt\":[[1],[2,3]],\"n\":4}");
    assert_int_equal(q->n_prompt, 2);
    assert_int_equal(q->prompt[0].n_id, 1);
    assert_int_equal(q->prompt[1].n_id, 2);
    assert_int_equal(q->prompt[1].id[1], 3);
    openai_request_free(q);
}

static void messages_as_given(void **state) {
    (void)state;
    static const char *const want[][2] = {
        {"system", "s"},   {"system", "d"},    {"user", "\xF0\x9F\x98\x80"},
        {"assistant", ""}, {"user", "a\nb"},   {"assistant", ""},
        {"assistant", ""}, {"assistant", "x"}, {"user", ""}};
    static const char body[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"s\",\"name\":\"n\"},"
        "{\"role\":\"developer\",\"content\":\"d\"},"
        "{\"role\":\"user\",\"content\":\"\\ud83d\\ude00\"},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":null,\"refusal\":null},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"b\"}]},"
        "{\"role\":\"assistant\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[]},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]},"
        "{\"role\":\"user\",\"content\":\"\"}],\"add_generation_prompt\":false}";
    for (int i = 0; i < 2; i++) {
        openai_request *q = parse(i == 0 ? OPENAI_CHAT : OPENAI_TOKENIZE, body);
        assert_int_equal(q->n_message, sizeof want / sizeof *want);
        for (int32_t k = 0; k < q->n_message; k++) {
            assert_string_equal(q->role[k], want[k][0]);
            assert_string_equal(q->content[k], want[k][1]);
        }
        assert_int_equal(q->n_prompt, 1);
        assert_true(q->prompt[0].text == NULL && q->prompt[0].id == NULL);
        assert_false(q->add_generation_prompt);
        openai_request_free(q);
    }
}

static void tokenizing(void **state) {
    (void)state;
    openai_request *q =
        parse(OPENAI_TOKENIZE, "{\"model\":\"demo\",\"prompt\":\"a\",\"add_special_tokens\":false,"
                               "\"return_token_strs\":true,\"max_tokens\":\"no field here\"}");
    check_text(&q->prompt[0], "a", 1);
    assert_true(!q->add_special_tokens && q->token_strs && q->n_message == 0);
    openai_request_free(q);
    q = parse(OPENAI_TOKENIZE, "{\"prompt\":\"\"}");
    check_text(&q->prompt[0], "", 0);
    openai_request_free(q);
    q = parse(OPENAI_DETOKENIZE, "{\"tokens\":[1,2]}");
    assert_int_equal(q->prompt[0].n_id, 2);
    assert_null(q->prompt[0].text);
    openai_request_free(q);
    q = parse(OPENAI_DETOKENIZE, "{\"tokens\":[]}");
    assert_true(q->prompt[0].n_id == 0 && q->prompt[0].id != NULL);
    openai_request_free(q);
    refused(OPENAI_TOKENIZE, "{}", "prompt");
    refused(OPENAI_TOKENIZE, "{\"prompt\":[\"a\"]}", "prompt");
    refused(OPENAI_TOKENIZE, "{\"prompt\":\"a\",\"messages\":[" USER "]}", "messages");
    refused(OPENAI_TOKENIZE, "{\"prompt\":\"a\",\"add_special_tokens\":0}", "add_special_tokens");
    refused(OPENAI_TOKENIZE, "{\"prompt\":\"a\",\"return_token_strs\":0}", "return_token_strs");
    refused(OPENAI_DETOKENIZE, "{}", "tokens");
    refused(OPENAI_DETOKENIZE, "{\"tokens\":\"a\"}", "tokens");
    refused(OPENAI_DETOKENIZE, "{\"tokens\":[1,100]}", "tokens[1]");
    refused(OPENAI_DETOKENIZE, "{\"tokens\":[[1]]}", "tokens[0]");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_that_are_no_json),
        cmocka_unit_test(errors_stay_small),
        cmocka_unit_test(errors_do_not_echo),
        cmocka_unit_test(wrong_values),
        cmocka_unit_test(wrong_prompts),
        cmocka_unit_test(wrong_messages),
        cmocka_unit_test(model_names),
        cmocka_unit_test(defaults_and_nulls),
        cmocka_unit_test(all_fields),
        cmocka_unit_test(limits_themselves),
        cmocka_unit_test(many_biases),
        cmocka_unit_test(seeds_as_given),
        cmocka_unit_test(logprobs),
        cmocka_unit_test(prompts_as_given),
        cmocka_unit_test(messages_as_given),
        cmocka_unit_test(tokenizing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
