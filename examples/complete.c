/* Completes a prompt with nothing but weft.h.
 *
 *   cc complete.c -o complete $(pkg-config --cflags --libs weft)
 *   ./complete model.gguf "The capital of France is"             one rank
 *   ./complete model.gguf "The capital of France is" 1 2 2       tp 1, pcp 2, dcp 2: the same text */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

/* Ids of the text; the caller frees them. NULL on failure. */
static int32_t *prompt_ids(const weft_model *model, const char *text, size_t *n, weft_error *err) {
    if (weft_tokenize(model, text, strlen(text), WEFT_TEXT_PROMPT, NULL, 0, n, err) != WEFT_OK) {
        return NULL;
    }
    int32_t *ids = calloc(*n + 1, sizeof *ids);
    if (ids &&
        weft_tokenize(model, text, strlen(text), WEFT_TEXT_PROMPT, ids, *n, n, err) != WEFT_OK) {
        free(ids);
        return NULL;
    }
    return ids;
}

/* Prints the text as it comes, until the request's end. */
static weft_status print_answer(weft_engine *engine, weft_error *err) {
    for (;;) {
        weft_event event;
        bool got = false;
        weft_status st = weft_engine_next(engine, -1, &event, &got, err);
        if (st != WEFT_OK) {
            return st;
        }
        if (!got) {
            continue;
        }
        fwrite(event.text, 1, event.text_bytes, stdout);
        fflush(stdout);
        if (event.kind == WEFT_EVENT_END) {
            putchar('\n');
            return event.status;
        }
    }
}

static weft_status complete(weft_model *model, const char *text, const weft_engine_params *params,
                            weft_error *err) {
    weft_engine *engine = NULL;
    size_t n = 0;
    int32_t *ids = prompt_ids(model, text, &n, err);
    if (!ids) {
        return err->status;
    }
    weft_status st = weft_engine_open(model, params, &engine, err);
    if (st == WEFT_OK) {
        weft_request request;
        weft_request_default(&request);
        request.prompt = ids;
        request.n_prompt = (int32_t)n;
        request.max_tokens = 32;
        uint64_t id;
        st = weft_engine_submit(engine, &request, 1, &id, err);
    }
    if (st == WEFT_OK) {
        st = print_answer(engine, err);
    }
    weft_engine_close(engine);
    free(ids);
    return st;
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 6) {
        fprintf(stderr, "usage: %s MODEL PROMPT [TP PCP DCP]\n", argv[0]);
        return 2;
    }
    weft_engine_params params;
    weft_engine_params_default(&params);
    if (argc == 6) {
        params.tp = atoi(argv[3]);
        params.pcp = atoi(argv[4]);
        params.dcp = atoi(argv[5]);
    }
    weft_model *model = NULL;
    weft_error err = {.status = WEFT_ERR_MEMORY, .text = "no memory"};
    weft_status st = weft_model_open(argv[1], &model, &err);
    if (st == WEFT_OK) {
        st = complete(model, argv[2], &params, &err);
    }
    if (st != WEFT_OK) {
        fprintf(stderr, "%s\n", err.text);
    }
    weft_model_close(model);
    return st == WEFT_OK ? 0 : 1;
}
