/* weft serve: the OpenAI-compatible server. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/common.h"
#include "serve/serve.h"

enum {
    END_S = 60,       /* from the end of serving to the end of the program */
    LEAST_BODY = 1024 /* below it hardly a request could be sent */
};

typedef struct values {
    cli_model_values model;
    weft_engine_params engine;
    serve_params serve;
    option_list api_key, name;
    int32_t log_format; /* 0 text, 1 json */
    bool quiet;
} values;

#define AT(field) .at = offsetof(values, field)

static const option http_options[] = {
    {.names = "--host",
     .type = OPTION_STRING,
     AT(serve.host),
     .metavar = "NAME",
     .help = "listens on this address; 0.0.0.0 or :: for all"},
    {.names = "--port",
     .type = OPTION_INT,
     AT(serve.port),
     .metavar = "N",
     .help = "listens on this port; 0 takes a free one",
     .min = 0,
     .max = 65535},
    {.names = "--api-key",
     .type = OPTION_LIST,
     AT(api_key),
     .metavar = "KEY",
     .help = "a key that clients must send, all paths but /health; also from WEFT_API_KEY"},
    {.names = "--served-model-name",
     .type = OPTION_LIST,
     AT(name),
     .metavar = "NAME",
     .help = "a name of the model for clients, instead of its own; the first is in replies"},
    {.names = "--cors-origin",
     .type = OPTION_STRING,
     AT(serve.cors_origin),
     .metavar = "ORIGIN",
     .help = "lets web pages of this origin call the server; * for any",
     .zero = "none"},
    {.names = NULL},
};

static const option limit_options[] = {
    {.names = "--max-queue",
     .type = OPTION_COUNT,
     AT(serve.max_queue),
     .metavar = "N",
     .help = "requests that may wait beside --max-num-seqs running ones; more get status 429",
     .min = 1,
     .max = 1 << 20},
    {.names = "--max-choices",
     .type = OPTION_INT,
     AT(serve.max_choices),
     .metavar = "N",
     .help = "choices (n) of one request at most",
     .min = 1,
     .max = 1024},
    {.names = "--max-connections",
     .type = OPTION_COUNT,
     AT(serve.max_connections),
     .metavar = "N",
     .help = "open connections at most; more wait to be accepted",
     .min = 1,
     .max = 1 << 20},
    {.names = "--max-body",
     .type = OPTION_SIZE,
     AT(serve.max_body_bytes),
     .metavar = "BYTES",
     .help = "size of a request's body at most",
     .zero = "4M and 64 for each token of the model's length"},
    {.names = "--max-unread",
     .type = OPTION_SIZE,
     AT(serve.max_unread_bytes),
     .metavar = "BYTES",
     .help = "of a stream that wait for a slow client, or of an answer that waits for its "
             "end; more, and it is broken off"},
    {.names = "--read-timeout",
     .type = OPTION_INT,
     AT(serve.read_s),
     .metavar = "S",
     .help = "seconds in which all of a request must have come",
     .min = 1,
     .max = 86400},
    {.names = "--idle-timeout",
     .type = OPTION_INT,
     AT(serve.idle_s),
     .metavar = "S",
     .help = "seconds that a connection may stay open without a request",
     .min = 1,
     .max = 86400},
    {.names = "--write-timeout",
     .type = OPTION_INT,
     AT(serve.write_s),
     .metavar = "S",
     .help = "seconds without progress until a client that does not read is cut off",
     .min = 1,
     .max = 86400},
    {.names = "--drain-timeout",
     .type = OPTION_INT,
     AT(serve.drain_s),
     .metavar = "S",
     .help = "seconds that open requests get to end after SIGTERM or Ctrl-C",
     .min = 0,
     .max = 86400},
    {.names = "--health-timeout",
     .type = OPTION_INT,
     AT(serve.health_s),
     .metavar = "S",
     .help = "seconds of one step after which /health says 503",
     .min = 1,
     .max = 86400},
    {.names = NULL},
};

static const option log_options[] = {
    {.names = "--log-format",
     .type = OPTION_CHOICE,
     AT(log_format),
     .help = "of the lines on stderr, one per event",
     .choices = "text json"},
    {.names = "--log-prompts",
     .type = OPTION_FLAG,
     AT(serve.log_prompts),
     .help = "logs the text of prompts, which is left out otherwise",
     .excludes = "--quiet"},
    {.names = "--quiet", .type = OPTION_FLAG, AT(quiet), .help = "logs warnings and errors only"},
    {.names = NULL},
};

static const option test_options[] = {
    {.names = "--fault",
     .type = OPTION_STRING,
     AT(engine.fault),
     .metavar = "NAME",
     .help =
         "plants a fault in the engine, to see what clients are told; `weft check --fault list` "
         "names them",
     .zero = "none"},
    {.names = NULL},
};

static const option_section sections[] = {
    {"Model", cli_model_options, offsetof(values, model)},
    {"HTTP", http_options, 0},
    {"Limits", limit_options, 0},
    {"Log", log_options, 0},
    {"Topology", cli_topology_options, offsetof(values, engine)},
    {"Engine", cli_engine_options, offsetof(values, engine)},
    {"Trace", cli_trace_options, offsetof(values, engine)},
    {"Test", test_options, 0},
    {NULL, NULL, 0},
};

static void defaults(void *v_) {
    values *v = v_;
    weft_engine_params_default(&v->engine);
    serve_params_default(&v->serve);
}

typedef struct session {
    weft_model *model;
    weft_engine *engine;
    http_sockets sockets;
    const char **key, *own_name;
} session;

/* The file's or folder's name, without what stands before it. */
static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* SCHEME://HOST[:PORT], as browsers send it; "*" for any, NULL for none. */
static bool is_origin(const char *text) {
    const char *host = text ? strstr(text, "://") : NULL;
    return !text || strcmp(text, "*") == 0 ||
           (host && host > text && host[3] && !strpbrk(host + 3, "/ "));
}

/* Keys of the command line and of the environment, names given or the model's own. */
static weft_status fill_params(const values *v, session *s, serve_params *out, weft_error *err) {
    const char *env = getenv("WEFT_API_KEY");
    s->key = calloc((size_t)v->api_key.n + 1, sizeof *s->key);
    if (!s->key)
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the keys");
    *out = v->serve;
    out->interrupted = &cli_interrupted;
    for (int32_t i = 0; i < v->api_key.n; i++)
        s->key[out->n_api_key++] = v->api_key.item[i];
    if (env && *env)
        s->key[out->n_api_key++] = env;
    for (int32_t i = 0; i < out->n_api_key; i++)
        if (s->key[i][0] == '\0')
            return error_set(err, WEFT_ERR_USAGE, "--api-key: an empty key guards nothing");
    out->api_key = s->key;
    for (int32_t i = 0; i < v->name.n; i++)
        if (v->name.item[i][0] == '\0')
            return error_set(err, WEFT_ERR_USAGE, "--served-model-name '': expected a name");
    if (v->serve.max_body_bytes > 0 && v->serve.max_body_bytes < LEAST_BODY)
        return error_set(err, WEFT_ERR_USAGE, "--max-body %llu: expected at least %d",
                         (unsigned long long)v->serve.max_body_bytes, LEAST_BODY);
    if (!is_origin(v->serve.cors_origin))
        return error_set(err, WEFT_ERR_USAGE,
                         "--cors-origin %.200s: expected * or an origin such as "
                         "https://chat.example:8443",
                         v->serve.cors_origin);
    s->own_name = base_name(v->model.path);
    out->name = v->name.n > 0 ? v->name.item : &s->own_name;
    out->n_name = v->name.n > 0 ? v->name.n : 1;
    return WEFT_OK;
}

static weft_status open_engine(const values *v, session *s, weft_error *err) {
    cli_progress bar;
    weft_engine_params p = v->engine;
    weft_model_info info;
    weft_status st = weft_model_open(v->model.path, &s->model, err);
    if (st != WEFT_OK)
        return st;
    weft_model_get_info(s->model, &info);
    if (!info.has_text)
        return cli_no_text("serve", v->model.path, err);
    cli_load_begin(&bar);
    p.on_load = cli_on_load;
    p.on_load_user = &bar;
    st = weft_engine_open(s->model, &p, &s->engine, err);
    cli_progress_end(&bar);
    return st;
}

static void stuck(int signal_number) {
    static const char text[] = "weft: error: a rank does not end; given up\n";
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    (void)n, (void)signal_number;
    _exit(5); /* status_exit_code(WEFT_ERR_RANK): no calls from a signal handler */
}

/* The step in flight is waited for, but not for ever: a supervisor wants to start the next one. */
static void end_within(unsigned seconds) {
    signal(SIGALRM, stuck);
    alarm(seconds);
}

static int run(const void *v_, const option_list *args) {
    (void)args;
    const values *v = v_;
    session s = {0};
    serve_params params;
    weft_error err = {0};
    log_set_default_level(v->quiet ? LOG_WARN : LOG_INFO);
    log_set_json(v->log_format == 1);
    log_set_lossy(true);
    signal(SIGPIPE, SIG_IGN); /* of a closed stderr */
    weft_status st = fill_params(v, &s, &params, &err);
    if (st == WEFT_OK) /* a port that another has is told before the model is loaded */
        st = http_bind(params.host, params.port, &s.sockets, &err);
    if (st == WEFT_OK)
        st = open_engine(v, &s, &err);
    if (st == WEFT_OK)
        st = serve_run(&params, &s.sockets, s.model, s.engine, &v->engine, &err);
    int rc = st == WEFT_OK ? 0 : cli_fail(&err);
    end_within(END_S);
    weft_status closed = weft_engine_close(s.engine);
    rc = rc == 0 ? status_exit_code(closed) : rc;
    weft_model_close(s.model);
    http_unbind(&s.sockets);
    free(s.key);
    return rc;
}

const cli_command cli_serve = {
    .options = {.name = "serve",
                .brief = "serves the model over HTTP, as OpenAI's API",
                .sections = sections,
                .values_bytes = sizeof(values),
                .defaults = defaults,
                .notes = "Served: POST /v1/completions, /v1/chat/completions, /tokenize, "
                         "/detokenize; GET /v1/models, /tokenizer_info, /health, /metrics, "
                         "/version. SIGTERM and Ctrl-C let open requests end; a second one ends "
                         "at once.\n"},
    .run = run,
};
