/* What is generated from the options tables: --help, bash completion, man page. */
#include "base/options.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMN = 30, TEXT_MAX = 512 };

/* ---- shared pieces ---- */

/* Writes a byte count as the parser takes it: 4G, 512M, 8k, or plain digits. */
static void format_size(uint64_t v, const char *suffixes, char *out, size_t cap) {
    const char *p = NULL;
    for (const char *s = suffixes; v > 0 && *s && v % 1024 == 0; s++) {
        v /= 1024;
        p = s;
    }
    snprintf(out, cap, "%llu%.1s", (unsigned long long)v, p ? p : "");
}

static void format_choice(const option *o, int32_t index, char *out, size_t cap) {
    const char *p = o->choices;
    for (int32_t i = 0; i < index && p; i++) {
        p = strchr(p, ' ');
        p = p ? p + 1 : NULL;
    }
    snprintf(out, cap, "%.*s", p ? (int)strcspn(p, " ") : 0, p ? p : "");
}

/* The default of an option as text; empty when there is none to show. */
static void format_default(const option *o, const void *field, char *out, size_t cap) {
    out[0] = '\0';
    int32_t i = 0;
    uint64_t u = 0;
    float f = 0;
    const char *s = NULL;
    switch (o->type) {
    case OPTION_FLAG:
    case OPTION_LIST:
        return;
    case OPTION_INT:
    case OPTION_COUNT:
        memcpy(&i, field, sizeof i);
        snprintf(out, cap, "%d", i);
        u = i != 0;
        break;
    case OPTION_SIZE:
    case OPTION_U64:
        memcpy(&u, field, sizeof u);
        format_size(u, o->type == OPTION_SIZE ? "kMGT" : "", out, cap);
        break;
    case OPTION_FLOAT:
        memcpy(&f, field, sizeof f);
        snprintf(out, cap, "%g", (double)f);
        u = f > 0 || f < 0;
        break;
    case OPTION_STRING:
        memcpy(&s, field, sizeof s);
        snprintf(out, cap, "%s", s ? s : "");
        u = s != NULL;
        break;
    case OPTION_CHOICE:
        memcpy(&i, field, sizeof i);
        format_choice(o, i, out, cap);
        u = 1;
        break;
    }
    if (u == 0 && o->zero) {
        snprintf(out, cap, "%s", o->zero);
    }
}

/* "-m, --model MODEL" */
static void format_names(const option *o, char *out, size_t cap) {
    size_t n = 0;
    for (const char *p = o->names; *p && n + 3 < cap; p++) {
        if (*p == ' ') {
            out[n++] = ',';
        }
        out[n++] = *p;
    }
    out[n] = '\0';
    const char *meta = o->metavar;
    if (o->type == OPTION_CHOICE) {
        snprintf(out + n, cap - n, " ");
        n = strlen(out);
        for (const char *p = o->choices; *p && n + 1 < cap; p++) {
            out[n++] = *p == ' ' ? '|' : *p;
        }
        out[n] = '\0';
    } else if (meta) {
        snprintf(out + n, cap - n, " %s", meta);
    }
}

/* "what it does [default: 1]" */
static void format_text(const option *o, const void *field, char *out, size_t cap) {
    char value[128];
    format_default(o, field, value, sizeof value);
    const char *more = o->type == OPTION_LIST ? "; may be repeated" : "";
    if (o->required) {
        snprintf(out, cap, "%s (required)", o->help);
    } else if (value[0]) {
        snprintf(out, cap, "%s%s [default: %s]", o->help, more, value);
    } else {
        snprintf(out, cap, "%s%s", o->help, more);
    }
}

static void print_usage(FILE *out, const option_program *p, const option_command *c) {
    fprintf(out, "%s %s", p->name, c->name);
    for (const option_section *s = c->sections; s && s->title; s++) {
        for (const option *o = s->options; o->names; o++) {
            if (o->required) {
                fprintf(out, " %.*s %s", (int)strcspn(o->names, " "), o->names,
                        o->metavar ? o->metavar : "");
            }
        }
    }
    if (c->sections && c->sections->title) {
        fputs(" [options]", out);
    }
    if (c->args) {
        fprintf(out, " %s", c->args);
    }
}

/* Defaults of a command in a block of their own; NULL without memory. */
static void *default_values(const option_command *c) {
    void *values = calloc(1, c->values_bytes ? c->values_bytes : 1);
    if (values && c->defaults) {
        c->defaults(values);
    }
    return values;
}

/* ---- --help ---- */

/* Prints text from column `column` on, broken at spaces so that no line passes `width`. */
static void print_wrapped(FILE *out, const char *text, int32_t column, int32_t width) {
    int32_t at = column;
    for (const char *p = text; *p;) {
        int32_t n = (int32_t)strcspn(p, " \n");
        if (at > column && at + 1 + n > width) {
            fprintf(out, "\n%*s", column, "");
            at = column;
        } else if (at > column) {
            fputc(' ', out);
            at++;
        }
        fprintf(out, "%.*s", n, p);
        at += n;
        p += n;
        p += *p != '\0';
    }
    fputc('\n', out);
}

/* Line by line; one that begins with spaces keeps them, also where it is broken. */
static void print_notes(FILE *out, const char *notes, int32_t width) {
    fputc('\n', out);
    for (const char *p = notes; *p;) {
        char line[TEXT_MAX];
        int32_t n = (int32_t)strcspn(p, "\n"), indent = (int32_t)strspn(p, " ");
        snprintf(line, sizeof line, "%.*s", n - indent, p + indent);
        fprintf(out, "%*s", indent, "");
        print_wrapped(out, line, indent, width);
        p += n + (p[n] != '\0');
    }
}

static void print_entry(FILE *out, const char *left, const char *text, int32_t column,
                        int32_t width) {
    int32_t n = fprintf(out, "  %s", left);
    if (n + 2 > column) {
        fprintf(out, "\n%*s", column, "");
    } else {
        fprintf(out, "%*s", column - n, "");
    }
    print_wrapped(out, text, column, width);
}

static void print_option(FILE *out, const option *o, const void *field, int32_t width) {
    char left[160], text[TEXT_MAX];
    format_names(o, left, sizeof left);
    format_text(o, field, text, sizeof text);
    print_entry(out, left, text, HELP_COLUMN, width);
}

void options_print_help(FILE *out, const option_program *p, const option_command *c,
                        int32_t width) {
    fputs("Usage: ", out);
    print_usage(out, p, c);
    fputs("\n\n", out);
    char brief[TEXT_MAX];
    snprintf(brief, sizeof brief, "%s %s %s.", p->name, c->name, c->brief);
    print_wrapped(out, brief, 0, width);
    char *values = default_values(c);
    if (values) {
        for (const option_section *s = c->sections; s && s->title; s++) {
            fprintf(out, "\n%s\n", s->title);
            for (const option *o = s->options; o->names; o++) {
                print_option(out, o, values + s->at + o->at, width);
            }
        }
    }
    fputs("\nOther\n", out);
    print_entry(out, "-h, --help", "shows this text", HELP_COLUMN, width);
    if (c->notes) {
        print_notes(out, c->notes, width);
    }
    free(values);
}

void options_print_program_help(FILE *out, const option_program *p, int32_t width) {
    int32_t column = 0;
    for (int32_t i = 0; i < p->n_command; i++) {
        int32_t n = (int32_t)strlen(p->commands[i]->name) + 4;
        column = n > column ? n : column;
    }
    fprintf(out, "%s %s: %s\n\nUsage: %s COMMAND [options]\n\nCommands\n", p->name, p->version,
            p->brief, p->name);
    for (int32_t i = 0; i < p->n_command; i++) {
        print_entry(out, p->commands[i]->name, p->commands[i]->brief, column, width);
    }
    if (p->notes) {
        print_notes(out, p->notes, width);
    }
}

/* ---- bash completion ---- */

static void print_bash_names(FILE *out, const option_command *c) {
    for (const option_section *s = c->sections; s && s->title; s++) {
        for (const option *o = s->options; o->names; o++) {
            fprintf(out, "%s ", o->names);
        }
    }
}

/* Command and names of an option as a case pattern: run:-m|run:--model */
static void print_bash_pattern(FILE *out, const option_command *c, const option *o) {
    fprintf(out, "%s:", c->name);
    for (const char *p = o->names; *p; p++) {
        if (*p == ' ') {
            fprintf(out, "|%s:", c->name);
        } else {
            fputc(*p, out);
        }
    }
}

static bool is_path(const option *o) {
    return o->metavar && (strcmp(o->metavar, "FILE") == 0 || strcmp(o->metavar, "MODEL") == 0);
}

static void print_bash_values(FILE *out, const char *name, const option_command *c) {
    for (const option_section *s = c->sections; s && s->title; s++) {
        for (const option *o = s->options; o->names; o++) {
            if (o->type == OPTION_FLAG) {
                continue;
            }
            fputs("        ", out);
            print_bash_pattern(out, c, o);
            fputs(") ", out);
            if (o->choices) {
                fprintf(out, "_%s_offer -W '%s'", name, o->choices);
            } else if (is_path(o)) {
                fprintf(out, "compopt -o filenames 2>/dev/null; _%s_offer -f", name);
            } else {
                fputs(":", out);
            }
            fputs("; return ;;\n", out);
        }
    }
}

/* What stands behind a command where no option's value is due: the words of its first argument, then
 * its options. */
static void print_bash_command(FILE *out, const option_command *c) {
    fprintf(out, "        %s) words='", c->name);
    if (c->arg_words) {
        fprintf(out, "%s'; ((COMP_CWORD == 2)) && [[ $cur != -* ]] || words='", c->arg_words);
    }
    print_bash_names(out, c);
    fputs("--help' ;;\n", out);
}

static void print_bash_commands(FILE *out, const option_program *p) {
    for (int32_t i = 0; i < p->n_command; i++) {
        fprintf(out, "%s ", p->commands[i]->name);
    }
}

/* --name=value comes as three words, because '=' parts words; names of files may hold spaces, so
 * that compgen's lines are not split at them. */
void options_print_bash(FILE *out, const option_program *p) {
    const char *name = p->name;
    fprintf(out,
            "# bash completion for %s, made by `%s completion bash`\n"
            "_%s_offer() { mapfile -t COMPREPLY < <(compgen \"$@\" -- \"$cur\"); }\n_%s() {\n",
            name, name, name, name);
    fputs("    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    local command=${COMP_WORDS[1]} words=\n"
          "    COMPREPLY=()\n"
          "    if [[ $cur == = ]]; then\n"
          "        cur=\n"
          "    elif [[ $prev == = ]]; then\n"
          "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
          "    fi\n",
          out);
    fprintf(out, "    if ((COMP_CWORD == 1)); then\n        _%s_offer -W '", name);
    print_bash_commands(out, p);
    fputs("help --help --version'\n        return\n    fi\n    case $command:$prev in\n", out);
    for (int32_t i = 0; i < p->n_command; i++) {
        print_bash_values(out, name, p->commands[i]);
    }
    fputs("    esac\n    case $command in\n        help) words='", out);
    print_bash_commands(out, p);
    fputs("' ;;\n", out);
    for (int32_t i = 0; i < p->n_command; i++) {
        print_bash_command(out, p->commands[i]);
    }
    fprintf(out, "    esac\n    _%s_offer -W \"$words\"\n}\ncomplete -o default -F _%s %s\n", name,
            name, name);
}

/* ---- man page ---- */

/* Troff text: '-' and '\' are escaped, and a line may not begin with a control character. */
static void print_troff(FILE *out, const char *text) {
    bool start = true;
    for (const char *p = text; *p; p++) {
        if (start && (*p == '.' || *p == '\'')) {
            fputs("\\&", out);
        }
        if (*p == '\\') {
            fputs("\\e", out);
        } else if (*p == '-') {
            fputs("\\-", out);
        } else {
            fputc(*p, out);
        }
        start = *p == '\n';
    }
}

static void print_man_option(FILE *out, const option *o, const void *field) {
    char left[160], text[TEXT_MAX];
    format_names(o, left, sizeof left);
    format_text(o, field, text, sizeof text);
    fputs(".TP\n.B ", out);
    print_troff(out, left);
    fputc('\n', out);
    print_troff(out, text);
    fputc('\n', out);
}

/* Filled, but every line begins a new one. */
static void print_man_notes(FILE *out, const char *notes) {
    fputs(".PP\n", out);
    for (const char *p = notes; *p;) {
        char line[TEXT_MAX];
        size_t n = strcspn(p, "\n");
        snprintf(line, sizeof line, "%.*s\n", (int)n, p);
        print_troff(out, line);
        fputs(".br\n", out);
        p += n + (p[n] != '\0');
    }
}

static void print_man_command(FILE *out, const option_program *p, const option_command *c) {
    fprintf(out, ".SS %s %s\n.nf\n", p->name, c->name);
    print_usage(out, p, c);
    fputs("\n.fi\n.PP\n", out);
    print_troff(out, c->brief);
    fputs(".\n", out);
    char *values = default_values(c);
    if (values) {
        for (const option_section *s = c->sections; s && s->title; s++) {
            fprintf(out, ".PP\n.I %s\n", s->title);
            for (const option *o = s->options; o->names; o++) {
                print_man_option(out, o, values + s->at + o->at);
            }
        }
    }
    if (c->notes) {
        print_man_notes(out, c->notes);
    }
    free(values);
}

void options_print_man(FILE *out, const option_program *p) {
    fputs(".TH ", out);
    for (const char *c = p->name; *c; c++) {
        fputc(toupper((unsigned char)*c), out);
    }
    fprintf(out, " 1 \"\" \"%s %s\" \"User Commands\"\n.SH NAME\n%s \\- ", p->name, p->version,
            p->name);
    print_troff(out, p->brief);
    fprintf(out, "\n.SH SYNOPSIS\n.B %s\n.I COMMAND\n[options]\n.SH COMMANDS\n", p->name);
    for (int32_t i = 0; i < p->n_command; i++) {
        print_man_command(out, p, p->commands[i]);
    }
    if (p->manual) {
        fputs(p->manual, out);
    }
}
