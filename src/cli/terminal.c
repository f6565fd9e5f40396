/* The terminal: errors, colours, the progress bar, Ctrl-C. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/wait.h"
#include "cli/cli.h"

volatile sig_atomic_t cli_interrupted;

static const char wipe[] = "\r\033[K";
static volatile sig_atomic_t bar_shown;

static void on_interrupt(int signal_number) {
    (void)signal_number;
    if (cli_interrupted) {
        ssize_t n = bar_shown ? write(STDERR_FILENO, wipe, sizeof wipe - 1) : 0;
        (void)n;
        _exit(130);
    }
    cli_interrupted = 1;
}

void cli_interrupt_install(void) {
    struct sigaction now;
    if (sigaction(SIGINT, NULL, &now) == 0 && now.sa_handler == SIG_IGN) {
        return; /* started in the background by a shell that keeps Ctrl-C from it */
    }
    struct sigaction act = {.sa_handler = on_interrupt};
    sigemptyset(&act.sa_mask);
    sigaction(SIGINT, &act, NULL); /* no SA_RESTART: a read that waits must come back */
}

static bool is_terminal(FILE *f) {
    const char *term = getenv("TERM");
    return isatty(fileno(f)) == 1 && (!term || strcmp(term, "dumb") != 0);
}

bool cli_interrupt_noticed(void) {
    static bool told;
    if (cli_interrupted && !told) {
        told = true;
        fflush(stdout);
        const char *apart = bar_shown ? wipe : is_terminal(stderr) ? "\n" : "";
        fprintf(stderr,
                "%sweft: interrupted; the step that runs ends first, a second Ctrl-C does "
                "not wait\n",
                apart);
    }
    return cli_interrupted;
}

bool cli_color(FILE *f) {
    const char *no = getenv("NO_COLOR");
    return !(no && no[0]) && is_terminal(f);
}

int32_t cli_width(FILE *f) {
    struct winsize size;
    if (!isatty(fileno(f)) || ioctl(fileno(f), TIOCGWINSZ, &size) != 0) {
        return 80;
    }
    return size.ws_col < 80 ? 80 : size.ws_col > 100 ? 100 : size.ws_col;
}

int cli_fail(const weft_error *err) {
    fflush(stdout); /* what was answered so far comes before the reason why no more comes */
    const char *name = cli_color(stderr) ? "\033[31mweft:\033[0m" : "weft:";
    const char *text = err->text[0] ? err->text : weft_status_text(err->status);
    if (err->offset >= 0) {
        fprintf(stderr, "%s %s (byte %lld)\n", name, text, (long long)err->offset);
    } else {
        fprintf(stderr, "%s %s\n", name, text);
    }
    return status_exit_code(err->status);
}

int cli_fail_text(weft_status s, const char *text, ...) {
    char made[sizeof((weft_error *)0)->text];
    va_list args;
    va_start(args, text);
    vsnprintf(made, sizeof made, text, args);
    va_end(args);
    weft_error err;
    error_set(&err, s, "%s", made);
    return cli_fail(&err);
}

void cli_progress_begin(cli_progress *p, const char *label, int64_t total) {
    *p = (cli_progress){.label = label, .total = total, .on = is_terminal(stderr)};
}

void cli_progress_set(cli_progress *p, int64_t done) {
    enum { CELLS = 30 };
    if (!p->on || p->total <= 0 || wait_now_ns() < p->next_ns) {
        return;
    }
    p->next_ns = wait_now_ns() + 100000000;
    int filled = (int)(done >= p->total ? CELLS : done * CELLS / p->total);
    char bar[CELLS + 1];
    memset(bar, '.', CELLS);
    memset(bar, '#', (size_t)filled);
    bar[CELLS] = '\0';
    bar_shown = 1;
    fprintf(stderr, "\r%s [%s] %lld/%lld\033[K", p->label, bar, (long long)done,
            (long long)p->total);
    fflush(stderr);
}

void cli_progress_end(cli_progress *p) {
    if (p->on) {
        fputs(wipe, stderr);
        fflush(stderr);
        bar_shown = 0;
    }
    p->on = false;
}

enum { LOAD_STEPS = 1000 };

void cli_load_begin(cli_progress *p) {
    cli_progress_begin(p, "load", LOAD_STEPS);
    cli_progress_set(p, 0);
}

bool cli_on_load(void *bar, double done) {
    if (bar && done < 1) {
        cli_progress_set(bar, (int64_t)(LOAD_STEPS * done));
    } else if (bar) {
        cli_progress_end(bar);
    }
    return !cli_interrupted;
}
