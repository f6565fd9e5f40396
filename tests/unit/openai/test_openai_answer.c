/* Replies and streams made from events. Field reports C01, C04, E02, E04, E05, E07, E14. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>
#include <math.h>

#include "openai/openai.h"

/* ---- a vocabulary ---- */

enum { BOS, HE, LLO, NI_1, NI_2, WOR, END_TOKEN, QUOTED, BLANK_E2, HE_TWICE, BLANK_HE, N_VOCAB };

static const char *const vocabulary[N_VOCAB] = {
    "<s>", "He", "llo", "\xE4", "\xBD\xA0", " wor", "<end>", "\"\\\n", " \\\xE2", "He", " He"};

static const char *token_bytes(const weft_model *model, int32_t id, size_t *n) {
    (void)model;
    *n = id >= 0 && id < N_VOCAB ? strlen(vocabulary[id]) : 0;
    return *n > 0 ? vocabulary[id] : NULL;
}

static bool token_is_special(const weft_model *model, int32_t id) {
    (void)model;
    return id == BOS || id == END_TOKEN;
}

static const openai_server server = {.token_bytes = token_bytes,
                                     .token_is_special = token_is_special,
                                     .name = "demo \"m\"",
                                     .fingerprint = "exact/P16"};

/* ---- events ---- */

static weft_event row(int64_t position, int32_t token, float logprob) {
    return (weft_event){.kind = WEFT_EVENT_PROMPT_ROW,
                        .position = position,
                        .token = token,
                        .logprob = logprob,
                        .text = ""};
}

static weft_event token(int32_t id, float logprob, const char *text) {
    return (weft_event){.kind = WEFT_EVENT_TOKEN,
                        .token = id,
                        .logprob = logprob,
                        .text = text,
                        .text_bytes = strlen(text)};
}

static weft_event end(weft_finish finish, int32_t n_output, int32_t n_cached, const char *text) {
    return (weft_event){.kind = WEFT_EVENT_END,
                        .finish = finish,
                        .n_output_token = n_output,
                        .n_cached_token = n_cached,
                        .text = text,
                        .text_bytes = strlen(text)};
}

static weft_event top(weft_event ev, int32_t id, float logprob) {
    ev.top_id[ev.n_top] = id;
    ev.top_logprob[ev.n_top++] = logprob;
    return ev;
}

/* ---- answers ---- */

static int32_t ids[] = {HE, LLO, WOR};
static char prompt_text[] = "Hello wor";

/* One prompt, "Hello wor". */
static openai_request request(openai_kind kind, openai_prompt *p) {
    *p = (openai_prompt){.text = prompt_text, .bytes = strlen(prompt_text), .id = ids, .n_id = 3};
    return (openai_request){
        .kind = kind, .prompt = p, .n_prompt = 1, .n = 1, .max_tokens = -1, .logprobs = -1};
}

static uint32_t random_state;

static uint32_t below(uint32_t n) {
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % n;
}

typedef struct step {
    int32_t choice;
    weft_event ev;
} step;

/* All that the answer writes, NUL-terminated. */
static char *answer(const openai_request *q, const step *steps, size_t n) {
    openai_text out = {0};
    openai_answer *a = openai_answer_open(&server, q, "cmpl-1", 1700000000);
    assert_non_null(a);
    for (size_t i = 0; i < n; i++) {
        size_t before = out.n;
        /* what an event points to is gone after the call */
        char *text = strdup(steps[i].ev.text);
        weft_event ev = steps[i].ev;
        ev.text = text;
        openai_answer_event(a, steps[i].choice, &ev, &out);
        free(text);
        assert_true(q->stream || out.n == before);
    }
    openai_answer_end(a, &out);
    openai_answer_close(a);
    assert_false(out.failed);
    char *all = malloc(out.n + 1);
    memcpy(all, out.data, out.n);
    all[out.n] = '\0';
    openai_text_free(&out);
    return all;
}

static json_t *load(const char *text, size_t n) {
    json_error_t why;
    json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (v == NULL) {
        fail_msg("%s: %.*s", why.text, (int)n, text);
    }
    return v;
}

/* The list of a stream's chunks; [DONE] is its end. */
static json_t *chunks_of(const char *text) {
    static const char done[] = "data: [DONE]\n\n";
    json_t *list = json_array();
    while (strcmp(text, done) != 0) {
        const char *stop = strstr(text, "\n\n");
        assert_non_null(stop);
        assert_memory_equal(text, "data: ", 6);
        assert_null(memchr(text, '\n', (size_t)(stop - text)));
        json_array_append_new(list, load(text + 6, (size_t)(stop - text) - 6));
        text = stop + 2;
    }
    return list;
}

static void check_equal(const json_t *got, const char *want) {
    json_t *v = load(want, strlen(want));
    if (!json_equal(got, v)) {
        char *text = json_dumps(got, JSON_ENCODE_ANY);
        fail_msg("got  %s\nwant %s", text, want);
    }
    json_decref(v);
}

/* Takes the members that all replies share off *v. */
static void check_head(json_t *v, const char *object) {
    assert_string_equal(json_string_value(json_object_get(v, "id")), "cmpl-1");
    assert_string_equal(json_string_value(json_object_get(v, "object")), object);
    assert_int_equal(json_integer_value(json_object_get(v, "created")), 1700000000);
    assert_string_equal(json_string_value(json_object_get(v, "model")), "demo \"m\"");
    assert_string_equal(json_string_value(json_object_get(v, "system_fingerprint")), "exact/P16");
    static const char *const name[] = {"id", "object", "created", "model", "system_fingerprint"};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(json_object_del(v, name[i]), 0);
    }
}

/* Runs the steps; the reply, or the list of chunks, without the members that all share, is `want`. */
static void check(const openai_request *q, const step *steps, size_t n, const char *want) {
    bool chat = q->kind == OPENAI_CHAT;
    char *text = answer(q, steps, n);
    json_t *got = q->stream ? chunks_of(text) : load(text, strlen(text));
    if (q->stream) {
        for (size_t i = 0; i < json_array_size(got); i++) {
            check_head(json_array_get(got, i), chat ? "chat.completion.chunk" : "text_completion");
        }
    } else {
        check_head(got, chat ? "chat.completion" : "text_completion");
    }
    check_equal(got, want);
    json_decref(got);
    free(text);
}
#define CHECK(q, steps, want) check(q, steps, sizeof steps / sizeof *steps, want)

#define USAGE(prompt, output, total, cached)                                                       \
    "\"usage\":{\"prompt_tokens\":" #prompt ",\"completion_tokens\":" #output                      \
    ",\"total_tokens\":" #total ",\"prompt_tokens_details\":{\"cached_tokens\":" #cached "}}"

/* ---- replies ---- */

/* Two prompts of three and one tokens, two choices each, which end in any order. */
static void completion_reply(void **state) {
    (void)state;
    openai_prompt p[2];
    openai_request q = request(OPENAI_COMPLETION, &p[0]);
    p[1] = (openai_prompt){.text = prompt_text, .bytes = 2, .id = ids, .n_id = 1};
    q.prompt = p;
    q.n_prompt = 2;
    q.n = 2;
    const step steps[] = {
        {3, token(HE, 0, "3")},
        {0, token(HE, 0, "\"\\\n\r\t\b\f\x01/\x7F\xC3\xA9")},
        {3, end(WEFT_FINISH_LENGTH, 1, 0, "")},
        {1, token(HE, 0, "")},
        {1, token(HE, 0, "b")},
        {0, end(WEFT_FINISH_STOP, 1, 0, "tail")},
        {2, end(WEFT_FINISH_STOP, 1, 0, "")},
        {1, end(WEFT_FINISH_LENGTH, 2, 2, "")},
    };
    CHECK(&q, steps,
          "{\"choices\":["
          "{\"index\":0,\"text\":\"\\\"\\\\\\n\\r\\t\\b\\f\\u0001/\x7F\xC3\xA9tail\","
          "\"logprobs\":null,\"finish_reason\":\"stop\"},"
          "{\"index\":1,\"text\":\"b\",\"logprobs\":null,\"finish_reason\":\"length\"},"
          "{\"index\":2,\"text\":\"\",\"logprobs\":null,\"finish_reason\":\"stop\"},"
          "{\"index\":3,\"text\":\"3\",\"logprobs\":null,\"finish_reason\":\"length\"}]," //
          USAGE(4, 5, 9, 0) "}");
}

static void chat_reply(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_CHAT, &p);
    q.n = 2;
    const step steps[] = {{0, token(HE, 0, "He")},
                          {1, token(HE, 0, "x")},
                          {0, token(LLO, 0, "llo")},
                          {1, end(WEFT_FINISH_STOP, 1, 1, "")},
                          {0, end(WEFT_FINISH_LENGTH, 2, 2, "!")}};
    CHECK(&q, steps,
          "{\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello!\","
          "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"length\"},"
          "{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":\"x\","
          "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"}]," //
          USAGE(3, 3, 6, 1) "}");
}

/* ---- log-probabilities ---- */

/* The token is among the likeliest; it is not; its text is that of a likelier one; parts of a
 * character; none asked for but the token's own. */
static void completion_logprobs(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_COMPLETION, &p);
    q.logprobs = 2;
    const step steps[] = {
        {0, top(top(token(HE, -0.5f, "He"), HE, -0.5f), LLO, -1)},
        {0, top(top(token(WOR, -3, " wor"), LLO, -1), HE, -1.5f)},
        {0, top(top(token(HE_TWICE, -3, "He"), HE, -1), LLO, -2)},
        {0, top(top(token(NI_1, -1, ""), NI_1, -1), QUOTED, -2)},
        {0, token(NI_2, -1, "\xE4\xBD\xA0")},
        {0, token(BLANK_E2, -1, "")},
        {0, token(END_TOKEN, -1, "")},
        {0, end(WEFT_FINISH_STOP, 7, 0, " \\\xEF\xBF\xBD")},
    };
    CHECK(&q, steps,
          "{\"choices\":[{\"index\":0,\"text\":\"He worHe\xE4\xBD\xA0 \\\\\xEF\xBF\xBD\","
          "\"logprobs\":{\"tokens\":[\"He\",\" wor\",\"He\",\"bytes:\\\\xe4\","
          "\"bytes:\\\\xbd\\\\xa0\",\"bytes: \\\\x5c\\\\xe2\",\"<end>\"],"
          "\"token_logprobs\":[-0.5,-3,-3,-1,-1,-1,-1],"
          "\"top_logprobs\":[{\"He\":-0.5,\"llo\":-1},{\"llo\":-1,\"He\":-1.5,\" wor\":-3},"
          "{\"He\":-1,\"llo\":-2},{\"bytes:\\\\xe4\":-1,\"\\\"\\\\\\n\":-2},"
          "{\"bytes:\\\\xbd\\\\xa0\":-1},{\"bytes: \\\\x5c\\\\xe2\":-1},{\"<end>\":-1}],"
          "\"text_offset\":[0,2,6,8,8,9,11]},\"finish_reason\":\"stop\"}]," //
          USAGE(3, 7, 10, 0) "}");
}

/* Text that is held back for a stop string: the tokens say where they begin. */
static void offsets_with_stops(void **state) {
    (void)state;
    static char stop_text[] = "llo\xE4\xBD\xA0!";
    char *stop[] = {stop_text};
    openai_prompt p;
    openai_request q = request(OPENAI_COMPLETION, &p);
    q.logprobs = 0;
    q.stop = stop;
    q.n_stop = 1;
    const step steps[] = {{0, token(HE, -1, "He")},
                          {0, token(LLO, -1, "")},
                          {0, token(NI_1, -1, "")},
                          {0, token(NI_2, -1, "")},
                          {0, token(HE, -1, "llo\xE4\xBD\xA0He")},
                          {0, token(NI_1, -1, "")},
                          {0, token(HE, -1, "\xEF\xBF\xBDHe")},
                          {0, token(LLO, -1, "")},
                          {0, end(WEFT_FINISH_LENGTH, 8, 0, "llo")}};
    CHECK(&q, steps,
          "{\"choices\":[{\"index\":0,\"text\":\"Hello\xE4\xBD\xA0He\xEF\xBF\xBDHello\","
          "\"logprobs\":{\"tokens\":[\"He\",\"llo\",\"bytes:\\\\xe4\","
          "\"bytes:\\\\xbd\\\\xa0\",\"He\",\"bytes:\\\\xe4\",\"He\",\"llo\"],"
          "\"token_logprobs\":[-1,-1,-1,-1,-1,-1,-1,-1],"
          "\"top_logprobs\":[{\"He\":-1},{\"llo\":-1},{\"bytes:\\\\xe4\":-1},"
          "{\"bytes:\\\\xbd\\\\xa0\":-1},{\"He\":-1},{\"bytes:\\\\xe4\":-1},{\"He\":-1},{\"llo\":-"
          "1}],"
          "\"text_offset\":[0,2,5,5,6,8,9,11]},\"finish_reason\":\"length\"}]," //
          USAGE(3, 8, 11, 0) "}");
}

/* Byte tokens are held back until another one comes, and control tokens are no text: both leave the
 * offsets where the tokens' own text has them. */
static void offsets_of_held_text(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_COMPLETION, &p);
    q.logprobs = 0;
    const step steps[] = {{0, token(HE, -1, "He")},
                          {0, token(WOR, -1, "")},
                          {0, token(END_TOKEN, -1, "")},
                          {0, token(LLO, -1, " worllo")},
                          {0, end(WEFT_FINISH_LENGTH, 4, 0, "")}};
    CHECK(&q, steps,
          "{\"choices\":[{\"index\":0,\"text\":\"He worllo\",\"logprobs\":{\"tokens\":[\"He\","
          "\" wor\",\"<end>\",\"llo\"],\"token_logprobs\":[-1,-1,-1,-1],\"top_logprobs\":["
          "{\"He\":-1},{\" wor\":-1},{\"<end>\":-1},{\"llo\":-1}],"
          "\"text_offset\":[0,2,6,6]},\"finish_reason\":\"length\"}]," //
          USAGE(3, 4, 7, 0) "}");
}

/* What waits is counted, and no more when it was sent. */
static void waiting_bytes(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_COMPLETION, &p);
    q.logprobs = 0;
    for (int32_t stream = 0; stream < 2; stream++) {
        q.stream = stream == 1;
        openai_text out = {0};
        openai_answer *a = openai_answer_open(&server, &q, "cmpl-1", 7);
        assert_non_null(a);
        assert_int_equal(openai_answer_bytes(a), 0);
        const weft_event ev = token(HE, -1, "He");
        openai_answer_event(a, 0, &ev, &out);
        size_t one = openai_answer_bytes(a);
        assert_true(stream ? one == 0 : one > 10);
        openai_answer_event(a, 0, &ev, &out);
        assert_true(stream ? openai_answer_bytes(a) == 0 : openai_answer_bytes(a) > one + 10);
        openai_answer_close(a);
        openai_text_free(&out);
    }
}

static void chat_logprobs(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_CHAT, &p);
    q.logprobs = 1;
    const step steps[] = {{0, top(token(HE, -0.5f, "He"), LLO, -0.25f)},
                          {0, top(token(NI_1, -1, ""), NI_1, -1)},
                          {0, end(WEFT_FINISH_LENGTH, 2, 0, "\xEF\xBF\xBD")}};
    CHECK(&q, steps,
          "{\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
          "\"content\":\"He\xEF\xBF\xBD\",\"refusal\":null},\"logprobs\":{\"content\":["
          "{\"token\":\"He\",\"logprob\":-0.5,\"bytes\":[72,101],\"top_logprobs\":["
          "{\"token\":\"llo\",\"logprob\":-0.25,\"bytes\":[108,108,111]}]},"
          "{\"token\":\"bytes:\\\\xe4\",\"logprob\":-1,\"bytes\":[228],\"top_logprobs\":["
          "{\"token\":\"bytes:\\\\xe4\",\"logprob\":-1,\"bytes\":[228]}]}],\"refusal\":null},"
          "\"finish_reason\":\"length\"}]," //
          USAGE(3, 2, 5, 0) "}");
}

static void numbers_of_all_kinds(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_COMPLETION, &p);
    q.logprobs = 1;
    const step odd[] = {{0, top(token(HE, -INFINITY, "a"), LLO, NAN)},
                        {0, top(token(HE, NAN, "b"), LLO, INFINITY)},
                        {0, end(WEFT_FINISH_LENGTH, 2, 0, "")}};
    CHECK(&q, odd,
          "{\"choices\":[{\"index\":0,\"text\":\"ab\",\"logprobs\":{\"tokens\":[\"He\",\"He\"],"
          "\"token_logprobs\":[null,null],\"top_logprobs\":[{\"llo\":null,\"He\":null},"
          "{\"llo\":null,\"He\":null}],\"text_offset\":[0,2]},\"finish_reason\":\"length\"}]," //
          USAGE(3, 2, 5, 0) "}");
    random_state = 1;
    for (int i = 0; i < 1000; i++) {
        float exact = -ldexpf((float)below(1 << 24), (int)below(60) - 40);
        const step steps[] = {{0, token(HE, exact, "a")}};
        char *text = answer(&q, steps, 1);
        const char *number = strstr(text, "\"token_logprobs\":[") + strlen("\"token_logprobs\":[");
        assert_true(strtof(number, NULL) == exact);
        free(text);
    }
}

/* ---- echo ---- */

static const char echo_3[] =
    "\"tokens\":[\"He\",\"llo\",\" wor\"],\"token_logprobs\":[null,-1,-2],"
    "\"top_logprobs\":[null,{\"llo\":-1},{\"He\":-0.5,\" wor\":-2}],\"text_offset\":[0,2,5]";

/* A prompt that is only scored: the engine makes one token, of which nothing is told. */
static void echo_without_tokens(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_COMPLETION, &p);
    q.logprobs = 1;
    q.echo = true;
    q.max_tokens = 0;
    const step steps[] = {{0, top(row(0, LLO, -1), LLO, -1)},
                          {0, top(row(1, WOR, -2), HE, -0.5f)},
                          {0, token(HE, -1, "He")},
                          {0, end(WEFT_FINISH_STOP, 1, 2, "x")}};
    char want[1024];
    snprintf(want, sizeof want,
             "{\"choices\":[{\"index\":0,\"text\":\"Hello wor\",\"logprobs\":{%s},"
             "\"finish_reason\":\"length\"}]," USAGE(3, 0, 3, 2) "}",
             echo_3);
    CHECK(&q, steps, want);
    q.stream = q.include_usage = true;
    snprintf(want, sizeof want,
             "[{\"choices\":[{\"index\":0,\"text\":\"Hello wor\",\"logprobs\":{%s},"
             "\"finish_reason\":null}],\"usage\":null},{\"choices\":[{\"index\":0,\"text\":\"\","
             "\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":null},"
             "{\"choices\":[]," USAGE(3, 0, 3, 2) "}]",
             echo_3);
    CHECK(&q, steps, want);
    q.stream = q.include_usage = q.echo = false;
    CHECK(&q, steps,
          "{\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":{\"tokens\":[],"
          "\"token_logprobs\":[],\"top_logprobs\":[],\"text_offset\":[]},"
          "\"finish_reason\":\"length\"}]," //
          USAGE(3, 0, 3, 2) "}");
}

/* Offsets go on behind the prompt; rows that are told again (after a preemption) count once. */
static void echo_and_tokens(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_COMPLETION, &p);
    q.logprobs = 1;
    q.echo = true;
    const step steps[] = {{0, top(row(0, LLO, -1), LLO, -1)},
                          {0, top(row(0, LLO, -1), LLO, -1)},
                          {0, top(row(1, WOR, -2), HE, -0.5f)},
                          {0, top(token(HE, -0.5f, "He"), HE, -0.5f)},
                          {0, end(WEFT_FINISH_LENGTH, 1, 0, "")}};
    CHECK(&q, steps,
          "{\"choices\":[{\"index\":0,\"text\":\"Hello worHe\",\"logprobs\":{"
          "\"tokens\":[\"He\",\"llo\",\" wor\",\"He\"],\"token_logprobs\":[null,-1,-2,-0.5],"
          "\"top_logprobs\":[null,{\"llo\":-1},{\"He\":-0.5,\" wor\":-2},{\"He\":-0.5}],"
          "\"text_offset\":[0,2,5,9]},\"finish_reason\":\"length\"}]," //
          USAGE(3, 1, 4, 0) "}");
    const step bare[] = {{0, token(HE, -0.5f, "He")}, {0, end(WEFT_FINISH_LENGTH, 1, 0, "")}};
    q.logprobs = -1;
    CHECK(&q, bare,
          "{\"choices\":[{\"index\":0,\"text\":\"Hello worHe\",\"logprobs\":null,"
          "\"finish_reason\":\"length\"}]," //
          USAGE(3, 1, 4, 0) "}");
}

/* Rows that did not come: the lists keep their lengths. */
static void echo_with_gaps(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_COMPLETION, &p);
    q.logprobs = 0;
    q.echo = true;
    q.max_tokens = 0;
    for (int with_row = 0; with_row < 2; with_row++) {
        const step steps[] = {{0, with_row ? row(1, WOR, -2) : row(7, WOR, -2)},
                              {0, row(-1, HE, -1)},
                              {0, end(WEFT_FINISH_LENGTH, 1, 0, "")}};
        char want[512];
        snprintf(want, sizeof want,
                 "{\"choices\":[{\"index\":0,\"text\":\"Hello wor\",\"logprobs\":{"
                 "\"tokens\":[\"He\",\"llo\",\" wor\"],\"token_logprobs\":[null,null,%s],"
                 "\"top_logprobs\":[null,null,%s],\"text_offset\":[0,2,5]},"
                 "\"finish_reason\":\"length\"}]," USAGE(3, 0, 3, 0) "}",
                 with_row ? "-2" : "null", with_row ? "{\" wor\":-2}" : "null");
        CHECK(&q, steps, want);
    }
}

/* The tokens of a prompt are not always its text: a BOS or a blank in front of it, characters in
 * parts, another form of a character. */
static void echo_offsets(void **state) {
    (void)state;
    static const struct {
        char *text;
        int32_t id[6], n;
        const char *offsets;
    } item[] = {
        {"Hello", {BOS, HE, LLO}, 3, "0,0,2"},
        {"Hello wor", {BLANK_HE, LLO, WOR}, 3, "0,2,5"},
        {"Hello", {BOS, BLANK_HE, LLO}, 3, "0,0,2"},
        {"<s>He", {BOS, HE}, 2, "0,3"},
        {"\xE4\xBD\xA0\xE4\xBD\xA0He", {NI_1, NI_2, NI_1, NI_2, HE}, 5, "0,0,1,1,2"},
        {"He!!! wor", {HE, LLO, WOR}, 3, "0,2,5"},
        {"He", {HE, LLO, N_VOCAB, WOR}, 4, "0,2,2,2"},
        {"", {BOS, HE}, 2, "0,0"},
    };
    for (size_t i = 0; i < sizeof item / sizeof *item; i++) {
        openai_prompt p;
        openai_request q = request(OPENAI_COMPLETION, &p);
        int32_t id[6];
        memcpy(id, item[i].id, sizeof id);
        p = (openai_prompt){
            .text = item[i].text, .bytes = strlen(item[i].text), .id = id, .n_id = item[i].n};
        q.logprobs = 0;
        q.echo = true;
        q.max_tokens = 0;
        const step steps[] = {{0, end(WEFT_FINISH_LENGTH, 1, 0, "")}};
        char *text = answer(&q, steps, 1), want[64];
        snprintf(want, sizeof want, "\"text_offset\":[%s]", item[i].offsets);
        if (strstr(text, want) == NULL) {
            fail_msg("%zu: %s: no %s", i, text, want);
        }
        free(text);
    }
}

/* ---- streams ---- */

static void completion_stream(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_COMPLETION, &p);
    q.n = 2;
    q.stream = true;
    const step steps[] = {{1, token(HE, 0, "He")},
                          {0, token(NI_1, 0, "")},
                          {0, token(NI_2, 0, "\xE4\xBD\xA0")},
                          {1, end(WEFT_FINISH_STOP, 1, 0, "")},
                          {0, token(LLO, 0, "")},
                          {0, end(WEFT_FINISH_LENGTH, 3, 0, "llo")}};
    CHECK(&q, steps,
          "[{\"choices\":[{\"index\":1,\"text\":\"He\",\"logprobs\":null,\"finish_reason\":null}]},"
          "{\"choices\":[{\"index\":0,\"text\":\"\xE4\xBD\xA0\",\"logprobs\":null,"
          "\"finish_reason\":null}]},"
          "{\"choices\":[{\"index\":1,\"text\":\"\",\"logprobs\":null,"
          "\"finish_reason\":\"stop\"}]},"
          "{\"choices\":[{\"index\":0,\"text\":\"llo\",\"logprobs\":null,"
          "\"finish_reason\":\"length\"}]}]");
    q.echo = true;
    q.n = 1;
    const step echoed[] = {{0, token(NI_1, 0, "")}, {0, end(WEFT_FINISH_STOP, 1, 0, "")}};
    CHECK(&q, echoed,
          "[{\"choices\":[{\"index\":0,\"text\":\"Hello wor\",\"logprobs\":null,"
          "\"finish_reason\":null}]},"
          "{\"choices\":[{\"index\":0,\"text\":\"\",\"logprobs\":null,"
          "\"finish_reason\":\"stop\"}]}]");
}

static void chat_stream(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_CHAT, &p);
    q.n = 2;
    q.stream = q.include_usage = true;
    const step steps[] = {{0, token(HE, 0, "He")},
                          {1, token(NI_1, 0, "")},
                          {1, end(WEFT_FINISH_LENGTH, 1, 2, "\xEF\xBF\xBD")},
                          {0, end(WEFT_FINISH_STOP, 1, 0, "")}};
    CHECK(&q, steps,
          "[{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
          "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null},"
          "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"He\"},"
          "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null},"
          "{\"choices\":[{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
          "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null},"
          "{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"\xEF\xBF\xBD\"},"
          "\"logprobs\":null,\"finish_reason\":null}],\"usage\":null},"
          "{\"choices\":[{\"index\":1,\"delta\":{},"
          "\"logprobs\":null,\"finish_reason\":\"length\"}],\"usage\":null},"
          "{\"choices\":[{\"index\":0,\"delta\":{},"
          "\"logprobs\":null,\"finish_reason\":\"stop\"}],\"usage\":null},"
          "{\"choices\":[]," USAGE(3, 2, 5, 0) "}]");
}

/* A token without text has a chunk when its log-probability is due. */
static void stream_of_logprobs(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_CHAT, &p);
    q.stream = true;
    q.logprobs = 0;
    const step steps[] = {{0, token(NI_1, -1, "")}, {0, end(WEFT_FINISH_STOP, 1, 0, "")}};
    CHECK(&q, steps,
          "[{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
          "\"logprobs\":null,\"finish_reason\":null}]},"
          "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"logprobs\":{\"content\":["
          "{\"token\":\"bytes:\\\\xe4\",\"logprob\":-1,\"bytes\":[228],\"top_logprobs\":[]}],"
          "\"refusal\":null},\"finish_reason\":null}]},"
          "{\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,"
          "\"finish_reason\":\"stop\"}]}]");
}

/* ---- a stream says what the reply says ---- */

static size_t random_steps(const openai_request *q, step *steps) {
    static const char *const text[] = {"", "", "a", "\"", "\xE4\xBD\xA0", "\n\n", "He said: "};
    size_t n = 0;
    int32_t n_choice = q->n_prompt * q->n, left = n_choice;
    bool ended[16] = {false};
    for (int32_t i = 0; i < n_choice && q->echo && q->logprobs >= 0; i++) {
        steps[n++] = (step){i, top(row(0, LLO, -0.1f * (float)below(99)), HE, -1)};
        steps[n++] = (step){i, top(row(1, WOR, -0.1f * (float)below(99)), HE, -1)};
    }
    while (left > 0) {
        int32_t i = (int32_t)below((uint32_t)n_choice);
        const char *piece = text[below(7)];
        if (ended[i]) {
            continue;
        }
        ended[i] = n > 200 || below(8) == 0;
        left -= ended[i];
        weft_event ev = token((int32_t)below(N_VOCAB), -0.1f * (float)below(99), piece);
        ev = top(top(ev, (int32_t)below(N_VOCAB), -0.3f), (int32_t)below(N_VOCAB), -0.7f);
        steps[n++] = (step){i, ended[i] ? end(below(2) != 0 ? WEFT_FINISH_STOP : WEFT_FINISH_LENGTH,
                                              (int32_t)below(9), (int32_t)below(3), piece)
                                        : ev};
    }
    return n;
}

/* Adds to list `name` of `to` what that of `from` has. */
static void extend(json_t *to, const json_t *from, const char *name) {
    json_t *more = json_object_get(from, name);
    if (json_is_array(more)) {
        if (json_object_get(to, name) == NULL) {
            json_object_set_new(to, name, json_array());
        }
        json_array_extend(json_object_get(to, name), more);
    }
}

/* The text, the lists of log-probabilities and the end of each choice: [choice]. */
static json_t *joined(const json_t *chunks, bool chat) {
    static const char *const list[] = {"content", "tokens", "token_logprobs", "top_logprobs",
                                       "text_offset"};
    json_t *all = json_object();
    for (size_t i = 0; i < json_array_size(chunks); i++) {
        const json_t *chunk = json_array_get(chunks, i);
        const json_t *c = json_array_get(json_object_get(chunk, "choices"), 0);
        if (c == NULL) {
            json_object_set(all, "usage", json_object_get(chunk, "usage"));
            continue;
        }
        char key[16];
        snprintf(key, sizeof key, "%d", (int)json_integer_value(json_object_get(c, "index")));
        json_t *mine = json_object_get(all, key);
        if (mine == NULL) {
            mine = json_pack("{s:s,s:n}", "text", "", "finish");
            json_object_set_new(all, key, mine);
        }
        /* nothing comes after the end */
        assert_true(json_is_null(json_object_get(mine, "finish")));
        json_object_set(mine, "finish", json_object_get(c, "finish_reason"));
        const json_t *delta = json_object_get(c, "delta");
        const json_t *text = chat ? json_object_get(delta, "content") : json_object_get(c, "text");
        json_object_set_new(mine, "text",
                            json_sprintf("%s%s", json_string_value(json_object_get(mine, "text")),
                                         text != NULL ? json_string_value(text) : ""));
        for (size_t k = 0; k < sizeof list / sizeof *list; k++) {
            extend(mine, json_object_get(c, "logprobs"), list[k]);
        }
    }
    return all;
}

static json_t *as_joined(const json_t *reply, bool chat) {
    json_t *all = json_object();
    json_object_set(all, "usage", json_object_get(reply, "usage"));
    const json_t *choices = json_object_get(reply, "choices");
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *c = json_array_get(choices, i);
        assert_int_equal(json_integer_value(json_object_get(c, "index")), i);
        json_t *mine = json_object(), *lists = json_object_get(c, "logprobs");
        json_object_set(mine, "text",
                        chat ? json_object_get(json_object_get(c, "message"), "content")
                             : json_object_get(c, "text"));
        json_object_set(mine, "finish", json_object_get(c, "finish_reason"));
        const char *name;
        json_t *list;
        json_object_foreach(lists, name, list) {
            if (json_array_size(list) > 0) {
                json_object_set(mine, name, list);
            }
        }
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        json_object_set_new(all, key, mine);
    }
    return all;
}

static void streams_equal_replies(void **state) {
    (void)state;
    static step steps[1024];
    for (uint32_t seed = 0; seed < 300; seed++) {
        random_state = seed;
        openai_prompt p[2];
        openai_request q = request(seed % 2 == 0 ? OPENAI_COMPLETION : OPENAI_CHAT, &p[0]);
        bool chat = q.kind == OPENAI_CHAT;
        p[1] = p[0];
        q.prompt = p;
        q.n_prompt = chat ? 1 : 1 + (int32_t)below(2);
        q.n = 1 + (int32_t)below(3);
        q.logprobs = (int32_t)below(4) - 1;
        q.echo = !chat && below(2) == 0;
        q.n_stop = (int32_t)below(2);
        q.max_tokens = !chat && below(6) == 0 ? 0 : 99;
        size_t n = random_steps(&q, steps);
        char *text = answer(&q, steps, n);
        json_t *reply = load(text, strlen(text));
        free(text);
        q.stream = q.include_usage = true;
        text = answer(&q, steps, n);
        json_t *chunks = chunks_of(text);
        json_t *a = joined(chunks, chat), *b = as_joined(reply, chat);
        if (!json_equal(a, b)) {
            fail_msg("seed %u\nstream %s\nreply  %s", seed, json_dumps(a, 0), json_dumps(b, 0));
        }
        json_decref(a);
        json_decref(b);
        json_decref(chunks);
        json_decref(reply);
        free(text);
    }
}

/* ---- failures ---- */

static void broken_stream(void **state) {
    (void)state;
    openai_prompt p;
    openai_request q = request(OPENAI_CHAT, &p);
    q.stream = true;
    openai_text out = {0};
    openai_answer *a = openai_answer_open(&server, &q, "cmpl-1", 1);
    weft_event ev = token(HE, 0, "He");
    openai_answer_event(a, 0, &ev, &out);
    size_t begun = out.n;
    ev = end(WEFT_FINISH_ERROR, 1, 0, "");
    openai_answer_event(a, 0, &ev, &out);
    assert_int_equal(out.n, begun);
    openai_error e;
    assert_false(openai_error_set(&e, 503, "server_error", "", "rank %d is \"gone\"", 1));
    openai_answer_fail(a, &e, &out);
    static const char want[] = "data: {\"error\":{\"message\":\"rank 1 is \\\"gone\\\"\","
                               "\"type\":\"server_error\",\"param\":null,\"code\":null}}\n\n"
                               "data: [DONE]\n\n";
    assert_int_equal(out.n - begun, sizeof want - 1);
    assert_memory_equal(out.data + begun, want, sizeof want - 1);
    openai_text_free(&out);
    openai_answer_close(a);
    openai_answer_close(NULL);
}

static void error_bodies(void **state) {
    (void)state;
    openai_error e;
    char long_text[700];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    openai_error_set(&e, 429, "rate_limit_error", "p\"", "%s", long_text);
    char *body = openai_error_body(&e);
    json_t *v = load(body, strlen(body));
    const json_t *error = json_object_get(v, "error");
    assert_int_equal(json_string_length(json_object_get(error, "message")), 511);
    assert_string_equal(json_string_value(json_object_get(error, "param")), "p\"");
    assert_string_equal(json_string_value(json_object_get(error, "code")), "rate_limit_exceeded");
    json_decref(v);
    free(body);
    /* overlong forms, a surrogate, past the last character */
    static const char *const bad[] = {"\xC0\x80", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                                      "\xED\xA0\x80", "\xF4\x90\x80\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        body = openai_detokenize_body(bad[i], strlen(bad[i]));
        assert_int_equal(strlen(body), strlen("{\"prompt\":\"\"}") + 3 * strlen(bad[i]));
        json_decref(load(body, strlen(body)));
        free(body);
    }
    openai_error_set(&e, 500, "server_error", "", "bad \xFF\xC3 bytes \xE4\xBD");
    body = openai_error_body(&e);
    assert_string_equal(body, "{\"error\":{\"message\":\"bad \xEF\xBF\xBD\xEF\xBF\xBD bytes "
                              "\xEF\xBF\xBD\xEF\xBF\xBD\",\"type\":\"server_error\","
                              "\"param\":null,\"code\":null}}");
    free(body);
}

/* ---- replies without an engine ---- */

static void other_bodies(void **state) {
    (void)state;
    int32_t id[] = {BOS, NI_1, QUOTED};
    openai_prompt p = {.id = id, .n_id = 3};
    openai_request q = {.kind = OPENAI_TOKENIZE, .prompt = &p, .n_prompt = 1};
    char *body = openai_tokenize_body(&server, &q, 64);
    assert_string_equal(
        body, "{\"count\":3,\"max_model_len\":64,\"tokens\":[0,3,7],\"token_strs\":null}");
    free(body);
    q.token_strs = true;
    body = openai_tokenize_body(&server, &q, 64);
    assert_string_equal(body, "{\"count\":3,\"max_model_len\":64,\"tokens\":[0,3,7],\"token_strs\":"
                              "[\"<s>\",\"bytes:\\\\xe4\",\"\\\"\\\\\\n\"]}");
    free(body);
    p.n_id = 0;
    body = openai_tokenize_body(&server, &q, 64);
    assert_string_equal(body, "{\"count\":0,\"max_model_len\":64,\"tokens\":[],\"token_strs\":[]}");
    free(body);
    body = openai_detokenize_body("a\0\"\xC3\xA9", 5);
    assert_string_equal(body, "{\"prompt\":\"a\\u0000\\\"\xC3\xA9\"}");
    free(body);
    static const char *const names[] = {"a", "b\""};
    body = openai_models_body(names, 2, 7, 64);
    json_t *v = load(body, strlen(body));
    check_equal(v,
                "{\"object\":\"list\",\"data\":[{\"id\":\"a\",\"object\":\"model\",\"created\":7,"
                "\"owned_by\":\"weft\",\"root\":\"a\",\"parent\":null,\"max_model_len\":64},"
                "{\"id\":\"b\\\"\",\"object\":\"model\",\"created\":7,\"owned_by\":\"weft\","
                "\"root\":\"b\\\"\",\"parent\":null,\"max_model_len\":64}]}");
    json_decref(v);
    free(body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completion_reply),     cmocka_unit_test(chat_reply),
        cmocka_unit_test(completion_logprobs),  cmocka_unit_test(offsets_with_stops),
        cmocka_unit_test(offsets_of_held_text), cmocka_unit_test(waiting_bytes),
        cmocka_unit_test(chat_logprobs),        cmocka_unit_test(numbers_of_all_kinds),
        cmocka_unit_test(echo_without_tokens),  cmocka_unit_test(echo_and_tokens),
        cmocka_unit_test(echo_with_gaps),       cmocka_unit_test(echo_offsets),
        cmocka_unit_test(completion_stream),    cmocka_unit_test(chat_stream),
        cmocka_unit_test(stream_of_logprobs),   cmocka_unit_test(streams_equal_replies),
        cmocka_unit_test(broken_stream),        cmocka_unit_test(error_bodies),
        cmocka_unit_test(other_bodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
