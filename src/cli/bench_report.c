/* weft bench: medians, the table, JSON lines, what machine this is. */
#include <stdlib.h>
#include <string.h>

#include "base/wait.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/json.h"

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts; the mean of the middle two when n is even. */
static double median(double *x, int32_t n) {
    qsort(x, (size_t)n, sizeof *x, compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

bench_summary bench_summarise(const bench_case *c, int32_t n_repeat) {
    double figure[BENCH_MAX_REPEAT], seconds[BENCH_MAX_REPEAT], limit[BENCH_MAX_REPEAT];
    for (int32_t i = 0; i < n_repeat; i++) {
        figure[i] = c->sample[i].figure;
        seconds[i] = c->sample[i].seconds;
        limit[i] = c->sample[i].limit;
    }
    bench_summary s = {.median = median(figure, n_repeat),
                       .seconds = median(seconds, n_repeat),
                       .limit = median(limit, n_repeat)};
    s.min = figure[0]; /* sorted now */
    s.max = figure[n_repeat - 1];
    s.min_seconds = seconds[0];
    s.max_seconds = seconds[n_repeat - 1];
    return s;
}

/* "model name" of the first processor that /proc/cpuinfo lists. */
static void cpu_name(char *out, size_t cap) {
    snprintf(out, cap, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(out, cap, "%s", colon);
        break;
    }
    if (f)
        fclose(f);
}

static const char *duration(double seconds, char *out, size_t cap) {
    if (seconds >= 1)
        snprintf(out, cap, "%.2f s", seconds);
    else if (seconds >= 1e-3)
        snprintf(out, cap, "%.2f ms", 1e3 * seconds);
    else
        snprintf(out, cap, "%.1f us", 1e6 * seconds);
    return out;
}

void bench_print_table(const bench *b) {
    char cpu[128], text[64];
    cpu_name(cpu, sizeof cpu);
    const weft_engine_params *p = &b->v->engine;
    bool limits = false, steps = false;
    int width = 20;
    for (int32_t i = 0; i < b->n_case; i++) {
        int n = (int)strlen(b->cases[i].name);
        width = n > width ? n : width;
        limits |= b->cases[i].limit != NULL;
        steps |= b->cases[i].sample[0].n_step > 0;
    }
    printf("%s, %d cores allowed, %s", cpu, wait_core_count(), b->isa);
    if (b->n_thread)
        printf(", %d thread%s", b->n_thread, b->n_thread == 1 ? "" : "s");
    if (p->tp * p->pcp > 1)
        printf(", tp%d pcp%d dcp%d", p->tp, p->pcp, p->dcp);
    printf("; median of %d\n", b->v->repeat);
    printf("%-*s %9s %19s %-7s %9s", width, "case", "median", "min .. max", "unit", "time");
    printf("%s%s\n", limits ? "     limit  share" : "", steps ? "   steps" : "");
    for (int32_t i = 0; i < b->n_case; i++) {
        const bench_case *c = &b->cases[i];
        bench_summary s = bench_summarise(c, b->v->repeat);
        printf("%-*s %9.2f %8.2f .. %7.2f %-7s %9s", width, c->name, s.median, s.min, s.max,
               c->unit, duration(s.seconds, text, sizeof text));
        if (c->limit)
            printf(" %9.1f %4.0f %%", s.limit, 100 * s.median / s.limit);
        if (c->sample[0].n_step)
            printf(" %7lld", (long long)c->sample[0].n_step);
        putchar('\n');
    }
}

static json_t *case_json(const bench *b, const bench_case *c, const char *cpu) {
    const weft_engine_params *p = &b->v->engine;
    bench_summary s = bench_summarise(c, b->v->repeat);
    json_t *o = json_pack(
        "{s:s, s:s, s:s, s:i, s:f, s:f, s:f, s:s, s:f, s:i, s:i, s:i, s:i, s:i, s:s, s:o, s:i}",
        "bench", b->kind->name, "case", c->name, "series", c->series, "size", c->size, "median",
        s.median, "min", s.min, "max", s.max, "unit", c->unit, "seconds", s.seconds, "repeat",
        b->v->repeat, "tp", p->tp, "pcp", p->pcp, "dcp", p->dcp, "threads",
        c->world ? c->world : b->n_thread, "isa", b->isa, "cpu", cli_json_text(cpu, strlen(cpu)),
        "cores", wait_core_count());
    if (strcmp(c->unit, "tok/s") == 0)
        json_object_set_new(o, "tok_per_s", json_real(s.median));
    if (b->v->temperature > 0)
        json_object_set_new(o, "temperature", json_real((double)b->v->temperature));
    if (c->sample[0].n_step)
        json_object_set_new(o, "steps", json_integer(c->sample[0].n_step));
    if (c->world)
        json_object_set_new(o, "world", json_integer(c->world));
    if (c->limit) {
        json_object_set_new(o, "limit", json_real(s.limit));
        json_object_set_new(o, "limit_name", json_string(c->limit));
        json_object_set_new(o, "share", json_real(s.median / s.limit));
    }
    return o;
}

int bench_print_json(const bench *b) {
    char cpu[128];
    cpu_name(cpu, sizeof cpu);
    int rc = 0;
    for (int32_t i = 0; i < b->n_case && rc == 0; i++)
        rc = cli_json_print(case_json(b, &b->cases[i], cpu));
    return rc;
}
