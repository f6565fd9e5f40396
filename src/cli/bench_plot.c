/* weft bench --plot: a script for gnuplot, which runs as a program of its own.
 *
 * latency: two pictures side by side, seconds of a prefill against its length and milliseconds per
 * decoded token against the context, each beside the cost model. The other kinds: a bar per case, with the spread.
 *
 * The script is a file on gnuplot's standard input and the picture is its standard output, so no
 * name has to be quoted and a gnuplot that ends early breaks no pipe. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "cli/bench.h"

/* Runs gnuplot; in, out: files to be its standard input and output. Returns its exit code, or -1
 * when it could not be started. */
static int gnuplot_run(const char *argument, int in, int out) {
    char *argv[] = {"gnuplot", (char *)argument, NULL};
    posix_spawn_file_actions_t act;
    pid_t pid;
    int state;
    posix_spawn_file_actions_init(&act);
    posix_spawn_file_actions_adddup2(&act, in, 0);
    posix_spawn_file_actions_adddup2(&act, out, 1);
    int failed = posix_spawnp(&pid, "gnuplot", &act, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&act);
    if (failed)
        return -1;
    while (waitpid(pid, &state, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(state) ? WEXITSTATUS(state) : 128;
}

weft_status bench_plot_open(bench_plot *p, const char *path, weft_error *err) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int rc = gnuplot_run("--version", null, null);
    close(null);
    if (rc != 0)
        return error_set(err, WEFT_ERR_USAGE,
                         "--plot needs the program gnuplot, which %s; install it or leave --plot "
                         "out",
                         rc == -1 || rc == 127 ? "is not in PATH" : "does not run");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool made = fd >= 0;
    if (!made && errno == EEXIST)
        fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set(err, WEFT_ERR_USAGE, "--plot %s: %s", path, strerror(errno));
    *p = (bench_plot){.path = path, .fd = fd, .made = made};
    return WEFT_OK;
}

void bench_plot_close(bench_plot *p) {
    if (p->fd < 0)
        return;
    close(p->fd);
    if (p->made && !p->drawn)
        unlink(p->path);
}

/* Lines of "size value low high limit" of one series; `value` makes a time of tokens per second, so the
 * largest figure is the lowest value. */
static int32_t series_write(FILE *f, const bench *b, const char *series,
                            double (*value)(double, int32_t)) {
    int32_t n = 0;
    fprintf(f, "$%s << EOD\n", series);
    for (int32_t i = 0; i < b->n_case; i++) {
        const bench_case *c = &b->cases[i];
        if (strcmp(c->series, series) != 0)
            continue;
        bench_summary s = bench_summarise(c, b->v->repeat);
        fprintf(f, "%d %.9g %.9g %.9g %.9g\n", c->size, value(s.median, c->size),
                value(s.max, c->size), value(s.min, c->size), value(s.limit, c->size));
        n++;
    }
    fputs("EOD\n", f);
    return n;
}

static double prefill_seconds(double tok_per_s, int32_t size) {
    return size / tok_per_s;
}

static double token_ms(double tok_per_s, int32_t size) {
    (void)size;
    return 1e3 / tok_per_s;
}

static void latency_write(FILE *f, const bench *b) {
    int32_t prefill = series_write(f, b, "prefill", prefill_seconds);
    int32_t decode = series_write(f, b, "decode", token_ms);
    fprintf(f, "set terminal svg size %d,400 background '#ffffff'\n",
            prefill && decode ? 960 : 480);
    fprintf(f, "set multiplot layout 1,%d\nset key below\nset grid\nset yrange [0:*]\n",
            prefill && decode ? 2 : 1);
    static const char draw[] =
        "plot $%s using 1:2:3:4 with yerrorlines linecolor '#2060a0' pointtype 7 title 'measured', "
        "$%s using 1:5 with linespoints linecolor '#c04020' dashtype 2 pointtype 1 "
        "title 'limit of this machine'\n";
    if (prefill) {
        fputs("set xrange [0:*]\nset title 'prefill'\nset xlabel 'tokens of the prompt'\n"
              "set ylabel 'seconds'\n",
              f);
        fprintf(f, draw, "prefill", "prefill");
    }
    if (decode) {
        fputs("set xrange [0:*]\nset title 'decode'\nset xlabel 'tokens in the cache'\n"
              "set ylabel 'milliseconds per token'\n",
              f);
        fprintf(f, draw, "decode", "decode");
    }
    fputs("unset multiplot\n", f);
}

/* One axis for all bars: shares of the limits (which are left out themselves) where there are some,
 * the time of a collective for comm, else the figure. */
static void bars_write(FILE *f, const bench *b) {
    bool share = b->kind == &bench_kernels, time = b->kind == &bench_comm;
    fputs("$bars << EOD\n", f);
    for (int32_t i = 0; i < b->n_case; i++) {
        const bench_case *c = &b->cases[i];
        if (share && !c->limit)
            continue;
        bench_summary s = bench_summarise(c, b->v->repeat);
        double by = share ? 100 / s.limit : time ? 1e6 : 1;
        fprintf(f, "\"%s\" %.9g %.9g %.9g\n", c->name, by * (time ? s.seconds : s.median),
                by * (time ? s.min_seconds : s.min), by * (time ? s.max_seconds : s.max));
    }
    fputs("EOD\n", f);
    fprintf(f, "set terminal svg size %d,560 noenhanced background '#ffffff'\n",
            240 + 32 * b->n_case);
    fprintf(f,
            "set title 'weft bench %s'\nset ylabel '%s'\n%s\nset key off\n"
            "set grid y\nset xtics rotate by 90 right\nset style fill solid 0.8\n"
            "set errorbars front linecolor '#202020'\n"
            "plot $bars using 0:2:3:4:(0.7):xtic(1) with boxerrorbars linecolor '#2060a0'\n",
            b->kind->name,
            share  ? "percent of the limit"
            : time ? "microseconds of one"
                   : b->cases[0].unit,
            time ? "set logscale y" : "set yrange [0:*]");
}

weft_status bench_plot_draw(bench_plot *p, const bench *b, weft_error *err) {
    FILE *script = tmpfile();
    if (!script)
        return error_set(err, WEFT_ERR_IO, "--plot: no temporary file: %s", strerror(errno));
    if (b->kind == &bench_latency)
        latency_write(script, b);
    else
        bars_write(script, b);
    bool failed = fflush(script) != 0 || ferror(script);
    struct stat st;
    bool regular = fstat(p->fd, &st) == 0 && S_ISREG(st.st_mode);
    int rc = -1;
    if (!failed && lseek(fileno(script), 0, SEEK_SET) == 0 &&
        (!regular || ftruncate(p->fd, 0) == 0))
        rc = gnuplot_run("-", fileno(script), p->fd);
    fclose(script);
    if (rc != 0)
        return error_set(err, WEFT_ERR_IO, "--plot %s: gnuplot ended with code %d", p->path, rc);
    p->drawn = true;
    return WEFT_OK;
}
