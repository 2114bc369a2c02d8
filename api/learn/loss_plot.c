/* SPDX-License-Identifier: Apache-2.0 */
#include "api/learn/loss_plot.h"

#include "base/arena.h"
#include "base/json.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEFT = 70, TOP = 50, WIDTH = 620, HEIGHT = 280, DRAWN_MAX = 1000 };

/* --- Reading ---------------------------------------------------------------------------------- */

static void add(struct hzp_loss_point **point, int *count, double step, const json_t *loss)
{
    if (!json_is_number(loss) || *count == INT32_MAX / 2)
        return;
    if ((*count & (*count - 1)) == 0)
        *point = hzp_xrealloc(*point, (size_t)HZP_MAX(2 * *count, 1) * sizeof(**point));
    (*point)[(*count)++] = (struct hzp_loss_point){step, json_number_value(loss)};
}

int hzp_loss_curve_read(const char *path, struct hzp_loss_curve *ret, struct hzp_err_text *reterr)
{
    char *line = NULL;
    size_t room = 0;
    *ret = (struct hzp_loss_curve){.trains = 0};
    FILE *file = fopen(path, "r");
    if (!file)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(errno));
    while (getline(&line, &room, file) > 0) {
        json_t *object = hzp_json_load(line, strlen(line), HZP_JSON_PYTHON, NULL, NULL),
               *step = json_object_get(object, "step");
        if (json_is_number(step)) {
            double at = json_number_value(step);
            add(&ret->train, &ret->trains, at, json_object_get(object, "loss"));
            add(&ret->eval, &ret->evals, at, json_object_get(object, "eval_loss"));
        }
        json_decref(object);
    }
    bool failed = ferror(file);
    fclose(file);
    free(line);
    if (!failed)
        return HZP_OK;
    hzp_loss_curve_free(ret);
    return hzp_fail(reterr, HZP_EIO, "%s: cannot be read", path);
}

void hzp_loss_curve_free(struct hzp_loss_curve *curve)
{
    free(curve->train);
    free(curve->eval);
    *curve = (struct hzp_loss_curve){.trains = 0};
}

/* --- Ranges ----------------------------------------------------------------------------------- */

struct range {
    double step0, step1, loss0, loss1;
};

static void cover(struct range *r, const struct hzp_loss_point *point, int count, bool *first)
{
    for (int i = 0; i < count; i++) {
        const struct hzp_loss_point *p = &point[i];
        if (*first)
            *r = (struct range){p->step, p->step, p->loss, p->loss};
        *first = false;
        r->step0 = HZP_MIN(r->step0, p->step);
        r->step1 = HZP_MAX(r->step1, p->step);
        r->loss0 = HZP_MIN(r->loss0, p->loss);
        r->loss1 = HZP_MAX(r->loss1, p->loss);
    }
}

/* What the curve covers; no range is empty. */
static struct range range_of(const struct hzp_loss_curve *curve)
{
    struct range r = {0, 1, 0, 1};
    bool first = true;
    cover(&r, curve->train, curve->trains, &first);
    cover(&r, curve->eval, curve->evals, &first);
    if (!(r.step1 > r.step0))
        r.step1 = r.step0 + 1;
    double tenth = fabs(r.loss0) * 0.1;
    if (!(r.loss1 > r.loss0))
        r.loss1 = r.loss0 + HZP_MAX(tenth, 1e-6);
    return r;
}

/* 1, 2 or 5 times a power of ten: the step that divides `range` into about `parts` parts. */
static double round_step(double range, int parts)
{
    double raw = range / parts, power = pow(10, floor(log10(raw))), f = raw / power;
    return power * (f <= 1 ? 1 : f <= 2 ? 2 : f <= 5 ? 5 : 10);
}

/* The mean of points [i * count / groups, (i + 1) * count / groups). */
static struct hzp_loss_point mean_of(const struct hzp_loss_point *point, int count, int i,
                                     int groups)
{
    int from = (int)((int64_t)i * count / groups), to = (int)((int64_t)(i + 1) * count / groups);
    struct hzp_loss_point sum = {0, 0};
    for (int k = from; k < to; k++) {
        sum.step += point[k].step;
        sum.loss += point[k].loss;
    }
    return (struct hzp_loss_point){sum.step / (to - from), sum.loss / (to - from)};
}

/* --- SVG -------------------------------------------------------------------------------------- */

static double place_x(const struct range *r, double step)
{
    return LEFT + WIDTH * (step - r->step0) / (r->step1 - r->step0);
}

static double place_y(const struct range *r, double loss)
{
    return TOP + HEIGHT * (r->loss1 - loss) / (r->loss1 - r->loss0);
}

static void draw_axes(FILE *out, const struct range *r)
{
    double step = round_step(r->loss1 - r->loss0, 6);
    for (double v = step * ceil(r->loss0 / step); v <= r->loss1; v += step)
        fprintf(out,
                "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>\n",
                LEFT, LEFT + WIDTH, place_y(r, v), place_y(r, v), LEFT - 8, place_y(r, v) + 4,
                fabs(v) < step / 2 ? 0 : v);
    step = round_step(r->step1 - r->step0, 8);
    step = HZP_MAX(step, 1.0);
    for (double v = step * ceil(r->step0 / step); v <= r->step1; v += step)
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.10g</text>\n",
                place_x(r, v), TOP + HEIGHT + 20, v);
    fprintf(out,
            "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>"
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">update</text>\n",
            LEFT, TOP, TOP + HEIGHT, LEFT + WIDTH, LEFT + WIDTH / 2, TOP + HEIGHT + 42);
}

/* A line through the means of at most `groups` groups of points. */
static void draw_line(FILE *out, const struct range *r, const struct hzp_loss_point *point,
                      int count, int groups, const char *class)
{
    groups = HZP_MIN(groups, count);
    if (groups < 1)
        return;
    fprintf(out, "<polyline class=\"%s\" points=\"", class);
    for (int i = 0; i < groups; i++) {
        struct hzp_loss_point p = mean_of(point, count, i, groups);
        fprintf(out, "%.1f,%.1f ", place_x(r, p.step), place_y(r, p.loss));
    }
    fprintf(out, "\"/>\n");
}

static void write_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<' || *text == '&' || *text == '>')
            fprintf(out, "&#%d;", *text);
        else
            putc(*text, out);
    }
}

int hzp_loss_plot_svg(const struct hzp_loss_curve *curve, const char *title, const char *path,
                      struct hzp_err_text *reterr)
{
    struct range r = range_of(curve);
    FILE *out = fopen(path, "w");
    if (!out)
        return hzp_fail(reterr, HZP_EIO, "%s: %s", path, strerror(errno));
    fprintf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\">\n<style>text{font:12px "
        "sans-serif;fill:#444}.title{font-size:15px}.grid{stroke:#e4e4e4}.axis{stroke:#888;"
        "fill:none}.each{stroke:#bcd;fill:none}.mean{stroke:#27c;stroke-width:2;fill:none}"
        ".eval{stroke:#c33;fill:none}circle{fill:#c33}</style>\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
        "<text class=\"title\" x=\"%d\" y=\"28\">",
        LEFT + WIDTH + 20, TOP + HEIGHT + 60, LEFT);
    write_text(out, title);
    fprintf(out, "</text>\n");
    draw_axes(out, &r);
    draw_line(out, &r, curve->train, curve->trains, DRAWN_MAX, "each");
    draw_line(out, &r, curve->train, curve->trains, 40, "mean");
    draw_line(out, &r, curve->eval, curve->evals, DRAWN_MAX, "eval");
    for (int i = 0; i < HZP_MIN(curve->evals, DRAWN_MAX); i++)
        fprintf(out, "<circle r=\"3\" cx=\"%.1f\" cy=\"%.1f\"/>\n",
                place_x(&r, curve->eval[i].step), place_y(&r, curve->eval[i].loss));
    fprintf(out, "</svg>\n");
    bool failed = ferror(out);
    failed |= fclose(out) != 0;
    return failed ? hzp_fail(reterr, HZP_EIO, "%s: cannot be written", path) : HZP_OK;
}

/* --- Characters ------------------------------------------------------------------------------- */

static void put(char *cell, const struct range *r, int columns, int rows, struct hzp_loss_point p,
                char mark)
{
    int x = (int)lround((columns - 1) * (p.step - r->step0) / (r->step1 - r->step0));
    int y = (int)lround((rows - 1) * (r->loss1 - p.loss) / (r->loss1 - r->loss0));
    cell[y * columns + x] = mark;
}

void hzp_loss_plot_text(const struct hzp_loss_curve *curve, int columns, int rows, FILE *out)
{
    if (curve->trains + curve->evals == 0 || columns < 2 || rows < 2)
        return;
    struct range r = range_of(curve);
    char *cell = hzp_xmalloc((size_t)columns * (size_t)rows);
    memset(cell, ' ', (size_t)columns * (size_t)rows);
    int groups = HZP_MIN(columns, curve->trains);
    for (int i = 0; i < groups; i++)
        put(cell, &r, columns, rows, mean_of(curve->train, curve->trains, i, groups), '*');
    for (int i = 0; i < curve->evals; i++)
        put(cell, &r, columns, rows, curve->eval[i], 'o');
    for (int y = 0; y < rows; y++) {
        double loss = r.loss1 + (r.loss0 - r.loss1) * y / (rows - 1);
        int end = columns;
        while (end > 0 && cell[y * columns + end - 1] == ' ')
            end--;
        fprintf(out, "%9.4g |%.*s\n", loss, end, cell + y * columns);
    }
    fprintf(out, "          +");
    for (int x = 0; x < columns; x++)
        putc('-', out);
    fprintf(out, "\n           %-*.10g%*.10g\n           loss (*%s) by update\n", columns / 2,
            r.step0, columns - columns / 2, r.step1, curve->evals ? ", evaluations o" : "");
    free(cell);
}
