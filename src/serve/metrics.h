/* Counters and histograms of the server, and the text that Prometheus reads. The loop's thread owns
 * them. */
#ifndef WEFT_SERVE_METRICS_H
#define WEFT_SERVE_METRICS_H

#include "base/status.h"
#include "openai/openai.h"

enum { METRICS_BUCKETS = 18 };

typedef struct metrics_histogram {
    int64_t bucket[METRICS_BUCKETS + 1]; /* not cumulative; the last: above all bounds */
    double sum;
} metrics_histogram;

typedef enum metrics_end {
    METRICS_END_STOP,
    METRICS_END_LENGTH,
    METRICS_END_CANCELLED,
    METRICS_END_ERROR,
    METRICS_N_END
} metrics_end;

enum { METRICS_N_KIND = 4, METRICS_N_STATUS = 6 };

typedef struct serve_metrics {
    metrics_histogram first_token, inter_token, queue, whole; /* seconds */
    int64_t end[METRICS_N_END];                               /* requests of the engine */
    int64_t reply[METRICS_N_KIND + 1][METRICS_N_STATUS]; /* by route and hundred; last: others */
    int64_t n_gone; /* clients that hung up before their reply was complete */
} serve_metrics;

void metrics_observe(metrics_histogram *h, double seconds);
/* kind -1: other routes. status 0: the client has gone. */
void metrics_reply(serve_metrics *m, int32_t kind, int32_t status);

/* What the text says beside the counters. */
typedef struct metrics_state {
    const weft_engine_stats *stats;
    const weft_engine_params *params;
    const char *model, *identity;
    int32_t n_call, n_connection; /* open now */
    double uptime_s;
} metrics_state;

/* Text exposition format 0.0.4. malloc'ed, NULL without memory. */
char *metrics_text(const serve_metrics *m, const metrics_state *now, size_t *n);
#endif
