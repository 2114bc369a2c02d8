/* SPDX-License-Identifier: Apache-2.0 */
#include "api/bench/load_plot.h"

#include "base/arena.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 960, HEIGHT = 720, LEFT = 64, RIGHT = 24, BARS = 48, POINTS = 240 };

static const char TTFT_COLOUR[] = "#2563a8", ITL_COLOUR[] = "#b4571b", RATE_COLOUR[] = "#1f7a5c",
                  RUNNING_COLOUR[] = "#6b4fa0";

struct panel {
    FILE *out;
    double x, y, width, height; /* of the area inside the axes */
};

static void put_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<' || *text == '>' || *text == '&')
            fputs(*text == '<' ? "&lt;" : *text == '>' ? "&gt;" : "&amp;", out);
        else if ((unsigned char)*text >= 32)
            putc(*text, out);
    }
}

static void label(const struct panel *p, double x, double y, const char *class, const char *anchor,
                  const char *text)
{
    fprintf(p->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x, y, class,
            anchor);
    put_text(p->out, text);
    fputs("</text>\n", p->out);
}

static void line(const struct panel *p, double x1, double y1, double x2, double y2,
                 const char *class)
{
    fprintf(p->out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1,
            y1, x2, y2, class);
}

/* A duration with its unit: 850 us, 12 ms, 3.2 s. */
static const char *duration(double s, char text[32])
{
    if (s < 1e-3)
        snprintf(text, 32, "%.3g \302\265s", s * 1e6);
    else if (s < 1)
        snprintf(text, 32, "%.3g ms", s * 1e3);
    else
        snprintf(text, 32, "%.3g s", s);
    return text;
}

/* 1, 2 or 5 times a power of ten: the step that divides `range` into about `parts` parts. */
static double round_step(double range, int parts)
{
    double raw = range / parts, power = pow(10, floor(log10(raw))), f = raw / power;
    return power * (f <= 1 ? 1 : f <= 2 ? 2 : f <= 5 ? 5 : 10);
}

/* Draws the left axis from 0 with its grid; returns the value at its top. */
static double left_axis(const struct panel *p, double most, int parts)
{
    double step = round_step(most > 0 ? most : 1, parts), top = step * ceil(most / step);
    char text[32];
    if (top <= 0)
        top = step;
    for (double v = 0; v <= top * 1.0001; v += step) {
        double y = p->y + p->height * (1 - v / top);
        line(p, p->x, y, p->x + p->width, y, v > 0 ? "grid" : "axis");
        snprintf(text, sizeof(text), "%.6g", v);
        label(p, p->x - 8, y + 4, "tick", "end", text);
    }
    return top;
}

/* ---- histograms ---- */

/* Position of a duration between low and high on the logarithmic axis, from 0 to 1. */
static double log_place(double s, double low, double high)
{
    return (log(s) - log(low)) / (log(high) - log(low));
}

static void time_axis(const struct panel *p, double low, double high)
{
    static const double of[] = {1, 2, 5};
    char text[32];
    bool wide = high / low > 300;
    for (double power = 1e-7; power <= high; power *= 10)
        for (int i = 0; i < HZP_COUNT(of); i++) {
            double at = power * of[i];
            if (at < low * 0.999 || at > high * 1.001)
                continue;
            double x = p->x + p->width * log_place(at, low, high);
            line(p, x, p->y + p->height, x, p->y + p->height + (i ? 4 : 7), "axis");
            if (i == 0 || !wide)
                label(p, x, p->y + p->height + 20, "tick", "middle", duration(at, text));
        }
}

static void mark(const struct panel *p, double value, double low, double high, double y,
                 const char *name, const char *class)
{
    char text[64], amount[32];
    if (!(value > 0))
        return;
    double place = log_place(value, low, high);
    place = HZP_MIN(1.0, HZP_MAX(0.0, place));
    double x = p->x + p->width * place;
    snprintf(text, sizeof(text), "%s %s", name, duration(value, amount));
    line(p, x, p->y, x, p->y + p->height, class);
    label(p, place > 0.6 ? x - 5 : x + 5, p->y + y, class, place > 0.6 ? "end" : "start", text);
}

/* n > 0 sorted durations. */
static void histogram(const struct panel *p, const char *title, const float *value, int64_t n,
                      const struct hzp_load_spread *spread, double goal, const char *colour)
{
    int64_t count[BARS] = {0};
    double most = 0;
    label(p, p->x, p->y - 14, "name", "start", title);
    if (n == 0) {
        label(p, p->x + p->width / 2, p->y + p->height / 2, "tick", "middle", "no data");
        return;
    }
    double low = HZP_MAX(1e-6, (double)value[0]) / 1.1, high = HZP_MAX((double)value[n - 1], 1e-6);
    high = HZP_MAX(HZP_MAX(high, goal) * 1.1, low * 4);
    for (int64_t i = 0; i < n; i++) {
        int bar = (int)(BARS * log_place(HZP_MAX(1e-6, (double)value[i]), low, high));
        count[HZP_MIN(BARS - 1, HZP_MAX(0, bar))]++;
    }
    for (int i = 0; i < BARS; i++)
        most = HZP_MAX(most, 100.0 * (double)count[i] / (double)n);
    double top = left_axis(p, most * 1.3, 4), width = p->width / BARS;
    for (int i = 0; i < BARS; i++) {
        double height = p->height * 100.0 * (double)count[i] / (double)n / top;
        if (count[i])
            fprintf(p->out,
                    "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"/>\n",
                    p->x + width * i + 0.5, p->y + p->height - height, width - 1, height, colour);
    }
    time_axis(p, low, high);
    mark(p, spread->median, low, high, 12, "median", "mark");
    mark(p, spread->p99, low, high, 28, "p99", "mark");
    mark(p, goal, low, high, 44, "goal", "goal");
    label(p, p->x - 44, p->y - 14, "tick", "start", "%");
}

/* ---- over time ---- */

struct series {
    double rate[POINTS], running[POINTS];
    int points;
    double step_s;
};

/* Merges the slices into at most POINTS; each piece counts as the average number of tokens per
 * piece. */
static void merge(const struct hzp_load_record *record, const struct hzp_load_summary *summary,
                  struct series *ret)
{
    double weight =
        record->pieces > 0 ? (double)summary->output_tokens / (double)record->pieces : 1;
    /* At least a second per point if the load is long enough: finer points show single steps. */
    double least_s = (double)record->slices * HZP_LOAD_SLICE_S > 40 ? 1 : 0.25;
    int64_t least = (int64_t)(least_s / HZP_LOAD_SLICE_S + 0.5);
    int64_t each = HZP_MAX(least, HZP_DIV_UP(record->slices, (int64_t)POINTS));
    memset(ret, 0, sizeof(*ret));
    ret->step_s = (double)each * HZP_LOAD_SLICE_S;
    for (int64_t i = 0; i < record->slices; i++) {
        int64_t k = i / each;
        ret->rate[k] += weight * record->slice[i].pieces;
        ret->running[k] = HZP_MAX(ret->running[k], (double)record->slice[i].running);
        ret->points = (int)k + 1;
    }
    for (int k = 0; k < ret->points; k++) {
        int64_t in_it = HZP_MIN(each, record->slices - k * each); /* the last may be shorter */
        ret->rate[k] /= (double)in_it * HZP_LOAD_SLICE_S;
    }
}

/* Draws a step curve, because each value is an average over an interval. */
static void curve(const struct panel *p, const double *value, int points, double top,
                  const char *colour)
{
    for (int filled = 1; filled >= 0; filled--) {
        fprintf(p->out, "<path d=\"M%.1f,%.1f", p->x, p->y + p->height);
        for (int i = 0; i < points; i++)
            fprintf(p->out, "V%.1fH%.1f", p->y + p->height * (1 - value[i] / top),
                    p->x + p->width * (i + 1) / points);
        if (filled)
            fprintf(p->out, "V%.1fZ\" fill=\"%s\" fill-opacity=\"0.15\"/>\n", p->y + p->height,
                    colour);
        else
            fprintf(p->out, "V%.1f\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"/>\n",
                    p->y + p->height, colour);
    }
}

static void over_time(const struct panel *p, const char *title, const double *value,
                      const struct series *s, int parts, const char *colour, bool axis)
{
    char text[48];
    double most = 0, end_s = s->points * s->step_s, step = round_step(HZP_MAX(end_s, 1e-3), 10);
    for (int i = 0; i < s->points; i++)
        most = HZP_MAX(most, value[i]);
    label(p, p->x, p->y - 10, "name", "start", title);
    double top = left_axis(p, most, parts);
    curve(p, value, HZP_MAX(s->points, 1), top, colour);
    for (double v = 0; axis && v <= end_s * 1.0001; v += step) {
        double x = p->x + p->width * (end_s > 0 ? v / end_s : 0);
        line(p, x, p->y + p->height, x, p->y + p->height + 6, "axis");
        snprintf(text, sizeof(text), "%.6g s", v);
        label(p, x, p->y + p->height + 20, "tick", "middle", text);
    }
}

/* ---- the file ---- */

static void head(FILE *out, const char *title, const struct hzp_load_summary *s)
{
    struct panel page = {.out = out};
    char text[256];
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" font-family=\"system-ui, DejaVu Sans, sans-serif\">\n<style>\n"
            "text{fill:#1d2733}.title{font-size:18px;font-weight:600}\n"
            ".said{font-size:13px;fill:#44505c}\n"
            ".name{font-size:14px;font-weight:600}.tick{font-size:11px;fill:#5b6772}\n"
            "line.grid{stroke:#e3e7eb}line.axis{stroke:#8a949e}\n"
            "line.mark{stroke:#1d2733;stroke-dasharray:4 3}text.mark,text.goal{font-size:11px;"
            "paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}\n"
            "line.goal{stroke:#c02626}text.goal{fill:#c02626}\n</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    label(&page, LEFT - 44, 32, "title", "start", title);
    snprintf(text, sizeof(text),
             "%lld requests answered%s%.0lld%s in %.1f s  \302\267  %.4g requests/s  \302\267  "
             "%.5g output tokens/s  \302\267  %.5g tokens/s in all",
             (long long)s->completed, s->failed ? ", " : "", (long long)s->failed,
             s->failed ? " failed," : "", s->duration_s, s->request_rate, s->output_rate,
             s->total_rate);
    label(&page, LEFT - 44, 54, "said", "start", text);
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

int hzp_load_plot(const char *path, const char *title, const struct hzp_load_record *record,
                  const struct hzp_load_summary *summary, struct hzp_err_text *reterr)
{
    FILE *out = fopen(path, "we");
    float *first = malloc((size_t)HZP_MAX(record->answers, (int64_t)1) * sizeof(*first));
    struct series *series = hzp_xcalloc(1, sizeof(*series));
    if (!out || !first) {
        int r = hzp_fail(reterr, out ? HZP_ENOMEM : HZP_EIO, "%s: %s", path, strerror(errno));
        if (out)
            fclose(out);
        free(first);
        free(series);
        return r;
    }
    for (int64_t i = 0; i < record->answers; i++)
        first[i] = (float)record->answer[i].ttft_s;
    qsort(first, (size_t)record->answers, sizeof(*first), ascending);
    merge(record, summary, series);

    double half = (WIDTH - 2 * LEFT - 2 * RIGHT) / 2.0, whole = WIDTH - LEFT - RIGHT;
    head(out, title, summary);
    histogram(&(struct panel){out, LEFT, 104, half, 190}, "Time to first token", first,
              record->answers, &summary->ttft, record->goals.ttft, TTFT_COLOUR);
    histogram(&(struct panel){out, LEFT + half + RIGHT + LEFT, 104, half, 190},
              "Inter-token latency", record->itl, record->itls, &summary->itl, record->goals.itl,
              ITL_COLOUR);
    over_time(&(struct panel){out, LEFT, 368, whole, 170}, "Output tokens each second",
              series->rate, series, 4, RATE_COLOUR, false);
    over_time(&(struct panel){out, LEFT, 580, whole, 90}, "Requests in flight", series->running,
              series, 3, RUNNING_COLOUR, true);
    fputs("</svg>\n", out);
    free(first);
    free(series);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed)
        return hzp_fail(reterr, HZP_EIO, "%s: cannot be written", path);
    return HZP_OK;
}
