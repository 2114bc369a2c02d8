/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/metrics_text.h - writes metrics in Prometheus' text format, version 0.0.4.
 *
 * Thread: the pool's, one per page.
 */
#pragma once

#include "api/http/routes/metrics_state.h"

#include <stdio.h>

struct hzp_page {
    FILE *out;
    char labels[192]; /* model_name="...",engine="0" */
    const char *name; /* the metric that is being written */
};

/* The lines in front of a metric's values. */
void hzp_page_head(struct hzp_page *p, const char *name, const char *type, const char *help);

/* A value of the metric whose head was written last, with one more label. */
void hzp_page_labelled(struct hzp_page *p, const char *label, const char *text, double value);

/* A metric with one value, which has the page's labels; plain: without labels. */
void hzp_page_gauge(struct hzp_page *p, const char *name, double value, const char *help);
void hzp_page_counter(struct hzp_page *p, const char *name, double value, const char *help);
void hzp_page_plain(struct hzp_page *p, const char *name, const char *type, double value,
                    const char *help);

void hzp_page_histogram(struct hzp_page *p, const char *name, const struct hzp_histogram *h,
                        const char *help);
/* Its values alone, with these labels. */
void hzp_page_buckets(struct hzp_page *p, const char *name, const char *labels,
                      const struct hzp_histogram *h);
/* A label's value: quotes and backslashes are escaped, a newline is a blank; cut to size. */
void hzp_page_label_text(const char *text, char *out, size_t size);
