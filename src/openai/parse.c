/* Bodies to requests. */
#include <stdlib.h>
#include <string.h>

#include "openai/field.h"

enum { MAX_SALT_BYTES = 256, MAX_TIMEOUT_S = 86400, DEFAULT_MAX_TOKENS = 16 };

/* ---- JSON ---- */

static bool refuse_json(openai_error *err, const json_error_t *why) {
    static const struct {
        enum json_error_code code;
        const char *text;
    } known[] = {
        {json_error_stack_overflow, "is nested too deeply"},
        {json_error_invalid_utf8, "is not UTF-8"},
        {json_error_null_character, "has a NUL in a name"},
        {json_error_null_byte_in_key, "has a NUL in a name"},
        {json_error_numeric_overflow, "has a number that is too large"},
        {json_error_duplicate_key, "has a name twice in one object"},
        {json_error_premature_end_of_input, "ends too early"},
        {json_error_end_of_input_expected, "goes on after its JSON value"},
    };
    enum json_error_code code = json_error_code(why);
    /* jansson says nothing at all where most of its allocations fail */
    if (code == json_error_out_of_memory || why->line < 0) {
        return openai_error_set(err, 503, "server_error", "", "no memory for the request");
    }
    const char *text = "is not JSON";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        text = known[i].code == code ? known[i].text : text;
    }
    return openai_error_set(err, 400, "invalid_request_error", "", "the body %s (line %d, byte %d)",
                            text, why->line, why->position);
}

/* An integer of more than 64 bits is no reason to refuse a field that nobody reads, and where it is
 * read its name is to be told: then all numbers are read as doubles. */
static json_t *read_json(const char *body, size_t n, openai_error *err) {
    size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    json_error_t why;
    json_t *v = json_loadb(n > 0 ? body : "", n, flags, &why);
    if (v == NULL && json_error_code(&why) == json_error_numeric_overflow) {
        v = json_loadb(body, n, flags | JSON_DECODE_INT_AS_REAL, &why);
    }
    if (v == NULL) {
        refuse_json(err, &why);
    } else if (!json_is_object(v)) {
        openai_error_set(err, 400, "invalid_request_error", "", "the body is no JSON object");
        json_decref(v);
        v = NULL;
    }
    return v;
}

/* ---- fields ---- */

static bool read_model(openai_reader *r) {
    const json_t *v = openai_field(r, "model");
    if (v == NULL) {
        return true;
    }
    if (!json_is_string(v)) {
        return openai_refuse_kind(r, "model", v, "a string");
    }
    for (int32_t i = 0; i < r->limits->n_model; i++) {
        if (openai_is_word(v, r->limits->model[i])) {
            return true;
        }
    }
    return openai_error_set(r->err, 404, "not_found_error", "model",
                            "the model is not served here; /v1/models lists what is");
}

static bool is_nothing(const json_t *v) {
    return v == NULL || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
           (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

/* Fields that would change the answer if they were heeded: whoever sends one is told. */
static bool refuse_unsupported(openai_reader *r) {
    static const char *const name[] = {
        "tools",          "functions",      "suffix",          "min_tokens",
        "stop_token_ids", "guided_json",    "guided_regex",    "guided_choice",
        "guided_grammar", "grammar",        "json_schema",     "structured_outputs",
        "bad_words",      "prompt_embeds",  "use_beam_search", "continue_final_message",
        "audio",          "prompt_logprobs"};
    static const char *const choice[] = {"tool_choice", "function_call"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        if (!is_nothing(openai_field(r, name[i]))) {
            return openai_refuse(r, name[i], "%s is not supported by this server", name[i]);
        }
    }
    for (size_t i = 0; i < sizeof choice / sizeof *choice; i++) {
        const json_t *v = openai_field(r, choice[i]);
        if (v != NULL && !openai_is_word(v, "none") && !openai_is_word(v, "auto")) {
            return openai_refuse(r, choice[i],
                                 "%s is not \"none\" or \"auto\": tools are not supported by this "
                                 "server",
                                 choice[i]);
        }
    }
    const json_t *format = openai_field(r, "response_format");
    if (format != NULL && !openai_is_word(json_object_get(format, "type"), "text")) {
        return openai_refuse(r, "response_format",
                             "response_format is not {\"type\": \"text\"}: other formats are not "
                             "supported by this server");
    }
    return true;
}

static bool read_max_tokens(openai_reader *r) {
    bool chat = r->q->kind == OPENAI_CHAT;
    int64_t least = chat ? 1 : 0, most = r->limits->max_model_len;
    int64_t old = chat ? -1 : DEFAULT_MAX_TOKENS, new = old;
    if (!openai_field_integer(r, "max_tokens", least, most, &old) ||
        !openai_field_integer(r, "max_completion_tokens", least, most, &new)) {
        return false;
    }
    bool both = openai_field(r, "max_tokens") != NULL;
    bool is_new = openai_field(r, "max_completion_tokens") != NULL;
    if (both && is_new && old != new) {
        return openai_refuse(r, "max_tokens",
                             "max_tokens is %d and max_completion_tokens %d: send one of them",
                             (int)old, (int)new);
    }
    r->q->max_tokens = (int32_t)(is_new ? new : old);
    return true;
}

static bool read_stream(openai_reader *r) {
    if (!openai_field_bool(r, "stream", &r->q->stream)) {
        return false;
    }
    const json_t *v = openai_field(r, "stream_options");
    if (v == NULL) {
        return true;
    }
    if (!json_is_object(v)) {
        return openai_refuse_kind(r, "stream_options", v, "an object");
    }
    if (!r->q->stream) {
        return openai_refuse(r, "stream_options", "stream_options needs stream to be true");
    }
    const json_t *usage = json_object_get(v, "include_usage");
    if (usage != NULL && !json_is_null(usage) && !json_is_boolean(usage)) {
        return openai_refuse_kind(r, "stream_options.include_usage", usage, "true or false");
    }
    r->q->include_usage = json_is_true(usage);
    return true;
}

static bool read_timeout(openai_reader *r) {
    const json_t *v = openai_field(r, "timeout");
    if (v == NULL) {
        return true;
    }
    if (!json_is_number(v)) {
        return openai_refuse_kind(r, "timeout", v, "a number");
    }
    double s = json_number_value(v);
    if (!(s > 0 && s <= MAX_TIMEOUT_S)) {
        return openai_refuse(r, "timeout",
                             "timeout is %g, expected seconds greater than 0 and at most %d", s,
                             MAX_TIMEOUT_S);
    }
    r->q->timeout_s = s;
    return true;
}

static bool read_salt(openai_reader *r) {
    const json_t *v = openai_field(r, "cache_salt");
    if (v == NULL) {
        return true;
    }
    if (!openai_read_text(r, "cache_salt", v, &r->q->cache_salt)) {
        return false;
    }
    size_t n = strlen(r->q->cache_salt);
    return (n > 0 && n <= MAX_SALT_BYTES) ||
           openai_refuse(r, "cache_salt", "cache_salt has %zu bytes, expected 1 to %d", n,
                         MAX_SALT_BYTES);
}

/* What COMPLETION and CHAT have in common. */
static bool read_generation(openai_reader *r) {
    return refuse_unsupported(r) && read_max_tokens(r) && openai_read_sampling(r) &&
           read_stream(r) && read_timeout(r) && read_salt(r) &&
           openai_field_bool(r, "ignore_eos", &r->q->ignore_eos);
}

static bool read_completion(openai_reader *r) {
    return openai_read_prompt(r) && read_generation(r) &&
           openai_field_bool(r, "echo", &r->q->echo) &&
           openai_field_bool(r, "add_special_tokens", &r->q->add_special_tokens);
}

static bool read_chat(openai_reader *r) {
    return openai_read_messages(r) && read_generation(r) &&
           openai_field_bool(r, "add_generation_prompt", &r->q->add_generation_prompt);
}

static bool read_tokenize(openai_reader *r) {
    bool chat = openai_field(r, "messages") != NULL;
    if (chat && openai_field(r, "prompt") != NULL) {
        return openai_refuse(r, "messages", "messages and prompt: send one of them");
    }
    return (chat ? openai_read_messages(r) : openai_read_prompt(r)) &&
           openai_field_bool(r, "add_special_tokens", &r->q->add_special_tokens) &&
           openai_field_bool(r, "add_generation_prompt", &r->q->add_generation_prompt) &&
           openai_field_bool(r, "return_token_strs", &r->q->token_strs);
}

/* ---- requests ---- */

static openai_request *request_new(openai_kind kind) {
    openai_request *q = malloc(sizeof *q);
    if (q != NULL) {
        *q = (openai_request){
            .kind = kind,
            .add_generation_prompt = true,
            .add_special_tokens = true,
            .n = 1,
            .max_tokens = -1,
            .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1},
            .logprobs = -1,
        };
    }
    return q;
}

void openai_request_free(openai_request *q) {
    if (q == NULL) {
        return;
    }
    for (int32_t i = 0; i < q->n_prompt; i++) {
        free(q->prompt[i].text);
        free(q->prompt[i].id);
    }
    for (int32_t i = 0; i < q->n_message; i++) {
        free(q->role[i]);
        free(q->content[i]);
    }
    for (int32_t i = 0; i < q->n_stop; i++) {
        free(q->stop[i]);
    }
    free(q->prompt);
    free(q->role);
    free(q->content);
    free(q->stop);
    free(q->bias);
    free(q->cache_salt);
    free(q);
}

bool openai_parse(openai_kind kind, const char *body, size_t n, const openai_limits *l,
                  openai_request **out, openai_error *err) {
    static bool (*const read[])(openai_reader *) = {[OPENAI_COMPLETION] = read_completion,
                                                    [OPENAI_CHAT] = read_chat,
                                                    [OPENAI_TOKENIZE] = read_tokenize,
                                                    [OPENAI_DETOKENIZE] = openai_read_ids};
    json_t *root = read_json(body, n, err);
    if (root == NULL) {
        return false;
    }
    openai_reader r = {.root = root, .limits = l, .q = request_new(kind), .err = err};
    bool ok = r.q != NULL ? read_model(&r) && read[kind](&r) : openai_refuse_memory(&r);
    json_decref(root);
    if (ok) {
        *out = r.q;
    } else {
        openai_request_free(r.q);
    }
    return ok;
}
