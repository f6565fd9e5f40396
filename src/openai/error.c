/* Errors as a client is told of them. */
#include <stdio.h>
#include <string.h>

#include "openai/field.h"
#include "openai/text.h"

bool openai_error_vset(openai_error *e, int http, const char *type, const char *param,
                       const char *text, va_list args) {
    *e = (openai_error){.http = http, .type = type};
    snprintf(e->param, sizeof e->param, "%s", param);
    vsnprintf(e->message, sizeof e->message, text, args);
    return false;
}

bool openai_error_set(openai_error *e, int http, const char *type, const char *param,
                      const char *text, ...) {
    va_list args;
    va_start(args, text);
    openai_error_vset(e, http, type, param, text, args);
    va_end(args);
    return false;
}

/* What a program can tell errors of one type apart by; NULL: nothing. */
static const char *error_code(const openai_error *e) {
    if (e->code != NULL) {
        return e->code;
    }
    if (e->http == 404 && strcmp(e->param, "model") == 0) {
        return "model_not_found";
    }
    return e->http == 401 ? "invalid_api_key" : e->http == 429 ? "rate_limit_exceeded" : NULL;
}

void openai_put_error(openai_text *t, const openai_error *e) {
    const char *code = error_code(e);
    openai_puts(t, "{\"error\":{\"message\":");
    openai_put_string(t, e->message, strlen(e->message));
    openai_puts(t, ",\"type\":");
    openai_put_string(t, e->type, strlen(e->type));
    openai_puts(t, ",\"param\":");
    if (e->param[0] != '\0') {
        openai_put_string(t, e->param, strlen(e->param));
    } else {
        openai_puts(t, "null");
    }
    openai_puts(t, ",\"code\":");
    if (code != NULL) {
        openai_put_string(t, code, strlen(code));
    } else {
        openai_puts(t, "null");
    }
    openai_puts(t, "}}");
}

char *openai_error_body(const openai_error *e) {
    openai_text t = {0};
    openai_put_error(&t, e);
    return openai_text_take(&t);
}
