/* Texts that commands read. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/utf8.h"
#include "cli/cli.h"
#include "engine/setup.h"

weft_status cli_check_text(const char *name, const char *text, size_t bytes, weft_error *err) {
    size_t valid = utf8_valid_bytes(text, bytes);
    return valid == bytes
               ? WEFT_OK
               : error_set_at(err, WEFT_ERR_USAGE, (int64_t)valid, "%s is not valid UTF-8", name);
}

weft_status cli_next_size(const char *name, const char *list, const char **at, int32_t *out,
                          weft_error *err) {
    const char *p = *at + strspn(*at, " ");
    size_t n = strcspn(p, ", ");
    const char *end = p + n + strspn(p + n, " ");
    uint64_t v = 0;
    bool more = *end == ',';
    if (!options_read_whole(p, n, "KMG", &v) || v < 1 || v > ENGINE_MAX_MODEL_LEN ||
        (*end && !more) || (more && !end[1])) {
        return error_set(err, WEFT_ERR_USAGE,
                         "%s \"%.60s\": expected numbers from 1 to %d (k, M allowed) with commas "
                         "between, as 100,2k,9",
                         name, list, ENGINE_MAX_MODEL_LEN);
    }
    *out = (int32_t)v;
    *at = end + more;
    return WEFT_OK;
}

static weft_status read_all(FILE *f, const char *name, char **text, size_t *bytes,
                            weft_error *err) {
    char *buf = NULL;
    size_t n = 0, cap = 0;
    do {
        if (cap - n < 2) {
            cap = cap ? 2 * cap : 1 << 16;
            char *more = realloc(buf, cap);
            if (!more) {
                free(buf);
                return error_set(err, WEFT_ERR_MEMORY, "no memory for the %zu bytes of %s", cap,
                                 name);
            }
            buf = more;
        }
        n += fread(buf + n, 1, cap - n - 1, f);
    } while (!feof(f) && !ferror(f) && !cli_interrupted);
    if (cli_interrupted) {
        free(buf);
        return error_set(err, WEFT_ERR_INTERRUPTED, "interrupted");
    }
    if (ferror(f)) {
        free(buf);
        return error_set(err, WEFT_ERR_IO, "cannot read %s: %s", name, strerror(errno));
    }
    weft_status st = cli_check_text(name, buf, n, err);
    if (st != WEFT_OK) {
        free(buf);
        return st;
    }
    buf[n] = '\0';
    *text = buf;
    *bytes = n;
    return WEFT_OK;
}

weft_status cli_read_text(const char *path, char **text, size_t *bytes, weft_error *err) {
    if (!path || strcmp(path, "-") == 0) {
        if (isatty(STDIN_FILENO)) {
            fputs("weft: reading from the terminal; Ctrl-D on an empty line ends the text\n",
                  stderr);
        }
        return read_all(stdin, "standard input", text, bytes, err);
    }
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (f && fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode)) {
        fclose(f);
        return error_set(err, WEFT_ERR_USAGE, "%s is a folder, expected a text file", path);
    }
    if (!f) {
        return error_set(err, WEFT_ERR_USAGE, "cannot open %s: %s", path, strerror(errno));
    }
    weft_status st_read = read_all(f, path, text, bytes, err);
    fclose(f);
    return st_read;
}

weft_status cli_read_prompt(const char *text_option, const char *file_option, char **text,
                            size_t *bytes, weft_error *err) {
    if (!text_option) {
        return cli_read_text(file_option, text, bytes, err);
    }
    if (file_option) {
        return error_set(err, WEFT_ERR_USAGE, "-p and -f exclude each other; give one of them");
    }
    weft_status st = cli_check_text("the text of -p", text_option, strlen(text_option), err);
    if (st != WEFT_OK) {
        return st;
    }
    char *copy = strdup(text_option);
    if (!copy) {
        return error_set(err, WEFT_ERR_MEMORY, "no memory for the text of -p");
    }
    *text = copy;
    *bytes = strlen(copy);
    return WEFT_OK;
}

weft_status cli_no_text(const char *command, const char *path, weft_error *err) {
    return error_set(err, WEFT_ERR_FILE,
                     "%s has no tokenizer.json; %s needs one, unlike plan, check, bench and eval "
                     "golden",
                     path, command);
}
