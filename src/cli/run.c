/* weft run: completes a prompt, streaming to stdout. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/wait.h"
#include "cli/cli.h"
#include "cli/common.h"
#include "cli/json.h"

typedef struct values {
    cli_model_values model;
    cli_generation generation;
    weft_engine_params engine;
    const char *prompt, *file, *system;
    bool chat, json, stats;
    int32_t top;
} values;

static const option own_options[] = {
    {.names = "-p --prompt",
     .type = OPTION_STRING,
     .at = offsetof(values, prompt),
     .metavar = "TEXT",
     .help = "the prompt, as it is"},
    {.names = "-f --file",
     .type = OPTION_STRING,
     .at = offsetof(values, file),
     .metavar = "FILE",
     .help = "reads the prompt from a file",
     .zero = "standard input"},
    {.names = "--chat",
     .type = OPTION_FLAG,
     .at = offsetof(values, chat),
     .help = "the prompt is a user's message: renders it with the model's template"},
    {.names = "--system",
     .type = OPTION_STRING,
     .at = offsetof(values, system),
     .metavar = "TEXT",
     .help = "with --chat: the system message",
     .zero = "the template's",
     .needs = "--chat"},
    {.names = "--json",
     .type = OPTION_FLAG,
     .at = offsetof(values, json),
     .help = "prints one JSON object per token (id, text, logprob), and at the end one with "
             "finish_reason, the text that was held back, prompt_tokens, completion_tokens"},
    {.names = "--top-logprobs",
     .type = OPTION_INT,
     .at = offsetof(values, top),
     .metavar = "N",
     .help = "with --json: the N most likely tokens of each step too",
     .min = 0,
     .max = WEFT_MAX_TOP,
     .needs = "--json"},
    {.names = "--stats",
     .type = OPTION_FLAG,
     .at = offsetof(values, stats),
     .help = "prints set-up, tokens and times to stderr at the end"},
    {.names = NULL},
};

static const option_section sections[] = {
    {"Model", cli_model_options, offsetof(values, model)},
    {"Prompt and output", own_options, 0},
    {"Generation", cli_generation_options, offsetof(values, generation)},
    {"Topology", cli_topology_options, offsetof(values, engine)},
    {"Engine", cli_engine_options, offsetof(values, engine)},
    {"Trace", cli_trace_options, offsetof(values, engine)},
    {NULL, NULL, 0},
};

static void defaults(void *v_) {
    values *v = v_;
    cli_generation_default(&v->generation);
    weft_engine_params_default(&v->engine);
    v->engine.max_num_seqs = 1;
}

typedef struct session {
    const values *v;
    weft_model *model;
    weft_engine *engine;
    int32_t *ids;
    size_t n_id;
    weft_request request;
    double t_open, t_first, t_end; /* seconds since the request was handed in; t_open: before it */
    int32_t n_token;
} session;

/* Whether the model takes text, and a message; and what the command line says of both. */
static weft_status text_check(const session *s, weft_error *err) {
    const values *v = s->v;
    weft_model_info info;
    weft_model_get_info(s->model, &info);
    if (v->engine.max_num_seqs != 1)
        return error_set(err, WEFT_ERR_USAGE,
                         "--max-num-seqs %d: run has one request; leave it out",
                         v->engine.max_num_seqs);
    if (!info.has_text)
        return cli_no_text("run", v->model.path, err);
    if (v->chat && !info.chat_template)
        return error_set(err, WEFT_ERR_SETUP, "%s has no chat template; leave --chat out",
                         v->model.path);
    for (int32_t i = 0; i < v->generation.stop.n; i++)
        if (v->generation.stop.item[i][0] == '\0')
            return error_set(err, WEFT_ERR_USAGE, "--stop '': expected a text of at least a byte");
    return v->system ? cli_check_text("the text of --system", v->system, strlen(v->system), err)
                     : WEFT_OK;
}

/* The prompt's ids: text as it is, or a user's message in the model's template. */
static weft_status prompt_make(session *s, weft_error *err) {
    char *text = NULL, *chat = NULL;
    size_t bytes = 0;
    weft_status st = cli_read_prompt(s->v->prompt, s->v->file, &text, &bytes, err);
    if (st != WEFT_OK)
        return st;
    if (s->v->chat && strlen(text) < bytes) {
        st = error_set(err, WEFT_ERR_USAGE,
                       "the message holds a NUL byte at byte %zu; --chat takes text", strlen(text));
        free(text);
        return st;
    }
    if (s->v->chat) {
        const char *roles[] = {"system", "user"}, *texts[] = {s->v->system, text};
        size_t skip = s->v->system ? 0 : 1;
        st = weft_chat_render(s->model, roles + skip, texts + skip, 2 - skip, true, &chat, err);
        bytes = chat ? strlen(chat) : 0;
    }
    const char *use = chat ? chat : text;
    if (st == WEFT_OK)
        st = weft_tokenize(s->model, use, bytes, WEFT_TEXT_PROMPT, NULL, 0, &s->n_id, err);
    if (st == WEFT_OK && !(s->ids = malloc((s->n_id + 1) * sizeof *s->ids)))
        st = error_set(err, WEFT_ERR_MEMORY, "no memory for %zu tokens", s->n_id);
    if (st == WEFT_OK)
        st = weft_tokenize(s->model, use, bytes, WEFT_TEXT_PROMPT, s->ids, s->n_id, &s->n_id, err);
    if (st == WEFT_OK && s->n_id > INT32_MAX)
        st = error_set(err, WEFT_ERR_TOO_LONG, "the prompt has %zu tokens", s->n_id);
    free(chat);
    free(text);
    return st;
}

/* s->request, which points into the session. */
static void request_fill(session *s) {
    weft_request *q = &s->request;
    cli_generation_fill(&s->v->generation, q);
    q->prompt = s->ids;
    q->n_prompt = (int32_t)s->n_id;
    q->sampling.logprob = s->v->json;
    q->sampling.n_top = s->v->top;
}

/* All that can be wrong is told before the weights are packed, which may take minutes. */
static weft_status open_all(session *s, weft_error *err) {
    double t0 = wait_now_s();
    cli_progress bar;
    weft_status st = weft_model_open(s->v->model.path, &s->model, err);
    if (st == WEFT_OK)
        st = text_check(s, err);
    if (st == WEFT_OK)
        st = prompt_make(s, err);
    request_fill(s);
    if (st == WEFT_OK)
        st = weft_request_check(s->model, &s->v->engine, &s->request, err);
    if (st != WEFT_OK)
        return st;
    weft_engine_params p = s->v->engine;
    cli_load_begin(&bar);
    p.on_load = cli_on_load;
    p.on_load_user = &bar;
    st = weft_engine_open(s->model, &p, &s->engine, err);
    cli_progress_end(&bar);
    s->t_open = wait_now_s() - t0;
    return st;
}

static json_t *top_json(const session *s, const weft_event *ev) {
    json_t *list = json_array();
    for (int32_t i = 0; i < ev->n_top; i++) {
        size_t n;
        const char *text = weft_token_bytes(s->model, ev->top_id[i], &n);
        json_array_append_new(list, json_pack("{s:i, s:o, s:f}", "id", ev->top_id[i], "text",
                                              cli_json_text(text, n), "logprob",
                                              (double)ev->top_logprob[i]));
    }
    return list;
}

/* One event to stdout. Returns an exit code. */
static int event_print(const session *s, const weft_event *ev) {
    if (!s->v->json) {
        fwrite(ev->text, 1, ev->text_bytes, stdout);
        return fflush(stdout) == 0
                   ? 0
                   : cli_fail_text(WEFT_ERR_IO, "standard output: %s", strerror(errno));
    }
    json_t *o = NULL;
    if (ev->kind == WEFT_EVENT_TOKEN) {
        o = json_pack("{s:i, s:o, s:f}", "id", ev->token, "text",
                      cli_json_text(ev->text, ev->text_bytes), "logprob", (double)ev->logprob);
        if (s->v->top)
            json_object_set_new(o, "top_logprobs", top_json(s, ev));
    } else {
        static const char *const finish[] = {"", "stop", "length", "error"};
        o = json_pack("{s:s, s:o, s:i, s:i}", "finish_reason", finish[ev->finish], "text",
                      cli_json_text(ev->text, ev->text_bytes), "prompt_tokens", ev->n_prompt_token,
                      "completion_tokens", ev->n_output_token);
    }
    return cli_json_print(o);
}

/* How much of the prompt is computed; the bar goes away before the first text. */
static void prefill_show(const session *s, cli_progress *bar, bool over) {
    weft_engine_stats st;
    if (!bar->on)
        return;
    weft_engine_get_stats(s->engine, &st);
    cli_progress_set(bar, st.n_row);
    if (over)
        cli_progress_end(bar);
}

static int stream(session *s) {
    enum { POLL_MS = 100 };
    weft_error err = {0};
    uint64_t id;
    double t0 = wait_now_s();
    if (weft_engine_submit(s->engine, &s->request, 1, &id, &err) != WEFT_OK)
        return cli_fail(&err);
    cli_progress bar;
    cli_progress_begin(&bar, "prefill", s->request.n_prompt);
    for (bool asked = false;;) {
        weft_event ev;
        bool got = false;
        weft_status st = weft_engine_next(s->engine, POLL_MS, &ev, &got, &err);
        prefill_show(s, &bar, got || st != WEFT_OK);
        if (st != WEFT_OK)
            return cli_fail(&err);
        if (cli_interrupt_noticed() && !asked) {
            weft_engine_cancel(s->engine, id);
            asked = true;
        }
        if (!got)
            continue;
        if (ev.kind == WEFT_EVENT_TOKEN && s->n_token++ == 0)
            s->t_first = wait_now_s() - t0;
        int rc = event_print(s, &ev);
        if (rc != 0 || ev.kind == WEFT_EVENT_END) {
            s->t_end = wait_now_s() - t0;
            if (!s->v->json)
                putchar('\n');
            fflush(stdout); /* before what the engine logs when it is closed */
            if (rc != 0 || ev.finish != WEFT_FINISH_ERROR)
                return rc;
            return cli_fail_text(asked ? WEFT_ERR_INTERRUPTED : ev.status, "%s",
                                 asked ? "interrupted" : weft_status_text(ev.status));
        }
    }
}

static void stats_print(const session *s) {
    weft_engine_stats st;
    weft_engine_get_stats(s->engine, &st);
    double decode = s->t_end - s->t_first;
    fflush(stdout); /* the answer comes before what is said about it */
    fprintf(stderr, "%s, %d rank%s, %d thread%s, %s; ready in %.2f s (%.2f GB/s of weights)\n",
            weft_engine_identity(s->engine), st.world, st.world == 1 ? "" : "s", st.n_thread,
            st.n_thread == 1 ? "" : "s", st.isa, s->t_open,
            (double)st.weight_bytes / s->t_open / 1e9);
    fprintf(stderr, "prompt %zu tokens in %.3f s (%.1f tok/s), answer %d tokens", s->n_id,
            s->t_first, (double)s->n_id / s->t_first, s->n_token);
    if (s->n_token > 1)
        fprintf(stderr, ", %.1f tok/s", (s->n_token - 1) / decode);
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    double mib = 1048576, peak = (double)use.ru_maxrss * 1024, planned = (double)st.planned_bytes;
    fprintf(stderr,
            "\n%.1f MiB weights, %.1f MiB cache, %.1f MiB buffers; planned %.1f MiB in all, most "
            "resident %.1f MiB (%.2f of it)\n",
            (double)st.weight_bytes / mib, (double)st.kv_bytes / mib,
            (double)st.scratch_bytes / mib, planned / mib, peak / mib, peak / planned);
}

static int run(const void *v_, const option_list *args) {
    (void)args;
    session s = {.v = v_};
    weft_error err = {0};
    int rc = open_all(&s, &err) == WEFT_OK ? stream(&s) : cli_fail(&err);
    if (s.v->stats && s.n_token > 0)
        stats_print(&s);
    weft_status closed = weft_engine_close(s.engine);
    rc = rc == 0 ? status_exit_code(closed) : rc;
    weft_model_close(s.model);
    free(s.ids);
    return rc;
}

const cli_command cli_run = {
    .options = {.name = "run",
                .brief = "completes a prompt and streams the answer",
                .sections = sections,
                .values_bytes = sizeof(values),
                .defaults = defaults},
    .run = run,
};
