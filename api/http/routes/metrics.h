/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/metrics.h - counters of the HTTP side, and the metrics page, which shows the
 * counters of all modules as Prometheus text: vLLM's names beside our own.
 *
 * Thread: any; one short lock.
 */
#pragma once

#include "api/http/wire/request_log.h"
#include "train/conductor/trainer.h"

struct hzp_completion;
struct hzp_metrics;

struct hzp_metrics *hzp_metrics_create(void);
void hzp_metrics_destroy(struct hzp_metrics *m); /* NULL: no effect */

/* A completion has ended. */
void hzp_metrics_completed(struct hzp_metrics *m, const struct hzp_completion *c);
/* A completion was accepted: its n and max_tokens. */
void hzp_metrics_params(struct hzp_metrics *m, int32_t n, int32_t max_tokens);
/* A request was answered, or its client disconnected (status 0). */
void hzp_metrics_http(struct hzp_metrics *m, const struct hzp_request_info *info, int status);
/* An update has ended (engine thread). */
void hzp_metrics_update(struct hzp_metrics *m, const struct hzp_update_report *report);

/* ---- metrics_text.c: counters, and metrics in Prometheus' text format, version 0.0.4.
 *
 * Thread: the pool's, one per page. */

/* ---- the counters of the HTTP side: under the lock, the fields below it ---- */

enum { HZP_BOUNDS_MAX = 24 };

struct hzp_histogram {
    const double
        *bound; /* [bounds] ascending upper bounds; values beyond the last have one more bucket */
    int bounds;
    uint64_t seen[HZP_BOUNDS_MAX + 1], count;
    double sum;
};

struct hzp_http_count {
    const char *handler, *method; /* in the table of routes */
    int status;                   /* 0: not answered, because the client disconnected */
    uint64_t count;
};

/* How long requests of one route took, from their head to the end of their answer. */
struct hzp_http_time {
    const char *handler, *method;
    struct hzp_histogram seconds;
};

struct hzp_reason_count {
    const char *name;
    uint64_t count;
};

struct hzp_metrics {
    struct hzp_lock lock;
    struct hzp_histogram ttft, itl, e2e, queue, inference, prefill, decode, prompt_tokens,
        generated, longest, n, max_tokens, per_token;
    struct hzp_reason_count reason[7];
    struct hzp_http_count http[128];
    int https;
    struct hzp_http_time time[32];
    int times;
    struct hzp_update_report update; /* the newest */
    double update_seconds;
};

/* ---- the page ---- */

struct hzp_page {
    FILE *out;
    char labels[192]; /* model_name="...",engine="0" */
    const char *name; /* the metric that is being written */
};

/* All metrics by their names in order: metrics.json, of which the build makes metric_rows.c.  A row
 * there has a third part if its value is a field of one of the sources below:
 *     "loop.steps"                     as it is; a field whose name ends with _ns in seconds
 *     "trainer.loss?"                  left out while it is not finite
 *     "a.lost - a.won", "a.sum / a.n"  of two fields; a quotient is left out while n is 0
 *     "sum scheduler.guessed[MAX]"     the sum of an array
 *     {"of": {"model": "trainer.x"}}   one value for each value of the label `of`
 *     {"by": {"each": "split.x", ..}}  one for each element of an array (make_metrics.py) */
struct hzp_metric_row {
    const char *name, *type, *help;
};
extern const struct hzp_metric_row hzp_metric_rows[];
extern const int hzp_metric_count;

/* The lines in front of a metric's values.  The name is a row's, here and below. */
void hzp_page_head(struct hzp_page *p, const char *name);

/* Where values come from; NULL: metrics of that source are left out. */
struct hzp_metric_sources {
    const struct hzp_scheduler_stats *scheduler;
    const struct hzp_loop_stats *loop;
    const struct hzp_split_report *split;
    const struct hzp_weights_stats *weights;
    const struct hzp_feedback_stats *feedback;
    const struct hzp_trainer_stats *trainer, *gate; /* gate: if there is one */
    const struct hzp_trials_stats *trials;
    const struct hzp_server *server;
    const struct hzp_sample_queue_stats *queue;
    const struct hzp_state_stats *state;
    const struct hzp_outlook *outlook;
    const struct hzp_rollouts_stats *rollouts;
    const struct hzp_rounds_stats *mesh;
    const struct hzp_ranks_standing *ranks;
    const struct hzp_door_stats *door;
    const struct hzp_structures_stats *structures;
    const struct hzp_metrics *requests;
};
/* Writes all metrics that metrics.json takes from these. */
void hzp_page_sources(struct hzp_page *p, const struct hzp_metric_sources *from);

/* A value of the metric whose head was written last, with one more label. */
void hzp_page_labelled(struct hzp_page *p, const char *label, const char *text, double value);

/* A metric with one value, which has the page's labels; plain: without labels. */
void hzp_page_put(struct hzp_page *p, const char *name, double value);
void hzp_page_plain(struct hzp_page *p, const char *name, double value);

void hzp_page_histogram(struct hzp_page *p, const char *name, const struct hzp_histogram *h);
/* Its values alone, with these labels. */
void hzp_page_buckets(struct hzp_page *p, const char *name, const char *labels,
                      const struct hzp_histogram *h);
/* A label's value: quotes and backslashes are escaped, a newline is a blank; cut to size. */
void hzp_page_label_text(const char *text, char *out, size_t size);
