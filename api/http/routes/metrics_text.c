/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/routes/metrics.h"

static int by_name(const void *name, const void *row)
{
    return strcmp(name, ((const struct hzp_metric_row *)row)->name);
}

static const struct hzp_metric_row *find(const char *name)
{
    const struct hzp_metric_row *row =
        bsearch(name, hzp_metric_rows, (size_t)hzp_metric_count, sizeof(*hzp_metric_rows), by_name);
    HZP_ASSERT(row);
    return row;
}

void hzp_page_head(struct hzp_page *p, const char *name)
{
    const struct hzp_metric_row *row = find(name);
    p->name = name;
    fprintf(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, row->help, name, row->type);
}

void hzp_page_labelled(struct hzp_page *p, const char *label, const char *text, double value)
{
    fprintf(p->out, "%s{%s,%s=\"%s\"} %.15g\n", p->name, p->labels, label, text, value);
}

void hzp_page_put(struct hzp_page *p, const char *name, double value)
{
    int digits = strcmp(find(name)->type, "counter") ? 10 : 15;
    hzp_page_head(p, name);
    fprintf(p->out, "%s{%s} %.*g\n", name, p->labels, digits, value);
}

void hzp_page_plain(struct hzp_page *p, const char *name, double value)
{
    hzp_page_head(p, name);
    fprintf(p->out, "%s %.15g\n", name, value);
}

/* A bound as Python's client writes it, because boards select buckets by that text: with a decimal
 * point ("1.0"), from a million on with an exponent ("1e+06").  ret [32]. */
static const char *bound_text(double bound, char *ret)
{
    snprintf(ret, 32, "%.10g", bound);
    if (bound < 1e6 && !strchr(ret, '.'))
        strcat(ret, ".0");
    else if (bound >= 1e6)
        snprintf(ret, 32, "%.6g", bound);
    return ret;
}

void hzp_page_buckets(struct hzp_page *p, const char *name, const char *labels,
                      const struct hzp_histogram *h)
{
    uint64_t below = 0;
    char bound[32];
    for (int i = 0; i < h->bounds; i++) {
        below += h->seen[i];
        fprintf(p->out, "%s_bucket{%s,le=\"%s\"} %llu\n", name, labels,
                bound_text(h->bound[i], bound), (unsigned long long)below);
    }
    fprintf(p->out, "%s_bucket{%s,le=\"+Inf\"} %llu\n", name, labels, (unsigned long long)h->count);
    fprintf(p->out, "%s_sum{%s} %.15g\n%s_count{%s} %llu\n", name, labels, h->sum, name, labels,
            (unsigned long long)h->count);
}

void hzp_page_histogram(struct hzp_page *p, const char *name, const struct hzp_histogram *h)
{
    hzp_page_head(p, name);
    hzp_page_buckets(p, name, p->labels, h);
}

void hzp_page_label_text(const char *text, char *out, size_t size)
{
    size_t n = 0;
    for (; *text && n + 3 < size; text++) {
        if (*text == '"' || *text == '\\')
            out[n++] = '\\';
        out[n++] = *text == '\n' ? ' ' : *text;
    }
    out[n] = 0;
}
