/* SPDX-License-Identifier: Apache-2.0 */
#include "nanobatch/search/validate.h"

#include "base/arena.h"
#include "device/philox.h"
#include "nanobatch/model/train_space_state.h"
#include "nanobatch/plan/plan_table.h"
#include "nanobatch/run/exec.h"
#include "nanobatch/search/simulate.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS_MIN = 3, RUNS_MAX = 13, PASSES = 2 };

static const double plan_ns = 180e6; /* target for the duration of one plan's runs in one pass */

struct step {
    int32_t decode, depth, prefill, train, from, to;
    struct hzp_plan_shape shape;
    double predicted_ns, ns; /* ns: the shortest over the passes */
};

struct validation {
    struct hzp_rig *rig;
    struct hzp_device *dev;
    const struct hzp_tables *tables;
    struct hzp_exec *exec;
    struct hzp_simulator *sim;
    struct hzp_plan plan;
    uint64_t seed, drawn;
    struct step *step; /* [steps] */
    double *error;     /* [errors] */
    int64_t steps, errors;
};

static int32_t draw(struct validation *v, int32_t n)
{
    uint64_t word = hzp_mix64(v->seed * 0x9e3779b97f4a7c15u + ++v->drawn);
    return (int32_t)(word % (uint64_t)HZP_MAX(n, 1));
}

/* Draws a number of rows; small ones are about as likely as large ones. */
static int32_t draw_rows(struct validation *v, int32_t most)
{
    int32_t bits = 0;
    while (most >> (bits + 1))
        bits++;
    int32_t rows = 1 + draw(v, 2 << draw(v, bits + 1));
    return HZP_MIN(rows, most);
}

static void draw_lanes(struct validation *v, struct hzp_plan_shape *s, bool trains)
{
    int32_t threads = v->tables->threads, style = draw(v, 5);
    if (threads < 2 && v->tables->led)
        return;
    int32_t first = 1 + draw(v, threads - 1);
    for (int32_t i = 0; i < s->nanos && style > 1; i++)
        for (int k = 0; k < HZP_KIND_COUNT; k++) {
            bool memory = style == 2   ? k == HZP_KIND_DECODE || k == HZP_KIND_PREFILL
                          : style == 3 ? i % 2 == 1
                                       : draw(v, 2) == 1;
            s->lane[i][k] = memory ? HZP_LANE_MEMORY : HZP_LANE_COMPUTE;
        }
    bool memory = style > 1;
    if (trains && style == 1) {
        memset(s->train_lane, HZP_LANE_TRAIN, sizeof(s->train_lane));
        s->share[HZP_LANE_TRAIN] = (int16_t)HZP_MAX(threads - first, 1);
    } else if (trains && memory && draw(v, 2)) {
        memset(s->train_lane, HZP_LANE_MEMORY, sizeof(s->train_lane));
    }
    s->share[HZP_LANE_COMPUTE] = (int16_t)first;
    s->share[HZP_LANE_MEMORY] = (int16_t)HZP_MAX(threads - first, 1);
    if (!hzp_device_has_shares(v->dev))
        memset(s->share, 0, sizeof(s->share));
}

/* In one of three steps that can have it, lets training's rows ride in serving's products. True:
 * they ride. */
static bool draw_ride(struct validation *v, struct step *s)
{
    const struct hzp_rig *rig = v->rig;
    int32_t ride = 16 << draw(v, 4);
    if (!s->train || draw(v, 3) || ride > s->train || s->decode + s->prefill < 1 ||
        s->decode + s->prefill > rig->train->config.ride_rows)
        return false;
    s->shape.ride = ride;
    return true;
}

static void draw_step(struct validation *v, struct step *s)
{
    const struct hzp_rig_config *c = &v->rig->config;
    int32_t kind = draw(v, 4); /* decode; prompt; both; decode, training and perhaps a prompt */
    memset(s, 0, sizeof(*s));
    s->shape = hzp_plan_sequential;
    s->decode = kind != 1 ? draw_rows(v, c->decode_max) : 0;
    bool prompts = kind == 1 || kind == 2 || (kind == 3 && draw(v, 2));
    s->prefill = prompts ? draw_rows(v, c->prefill_max) : 0;
    s->depth = s->decode ? draw(v, c->depth_max + 1) : 0;
    if (kind == 3 && v->rig->train)
        s->train = v->rig->micro->rows_max >> draw(v, 3);
    if (draw_ride(v, s))
        return;
    s->shape.nanos = 1 + draw(v, 4);
    s->shape.nanos = HZP_MIN(s->shape.nanos, s->decode + s->prefill);
    s->shape.order = (uint8_t)draw(v, HZP_ORDER_COUNT);
    for (int32_t i = 0; i < s->shape.nanos; i++)
        s->shape.weight[i] = 1 + draw(v, 4);
    draw_lanes(v, &s->shape, s->train > 0);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Measures the plan's duration as the median of several runs; shorter plans are run more often. */
static int measure(struct validation *v, double *ret)
{
    double took[RUNS_MAX];
    int runs = RUNS_MIN;
    for (int i = -1; i < runs; i++) { /* run -1 creates primitives and is not counted */
        struct hzp_exec_times times;
        uint64_t begin = hzp_device_now_ns(v->dev);
        HZP_TRY(hzp_exec_run(v->exec, &v->plan, NULL, &times));
        double ns = (double)(hzp_device_now_ns(v->dev) - begin);
        if (i == 0)
            runs = (int)HZP_MIN(HZP_MAX(plan_ns / HZP_MAX(ns, 1), RUNS_MIN), RUNS_MAX);
        if (i >= 0)
            took[i] = ns;
    }
    qsort(took, (size_t)runs, sizeof(*took), by_value);
    *ret = took[runs / 2];
    return HZP_OK;
}

/* Draws a step that fits into the rig. */
static int draw_one(struct validation *v, struct step *s)
{
    struct hzp_rig *rig = v->rig;
    int r;
    do {
        draw_step(v, s);
        r = hzp_rig_serve(rig, s->decode, s->depth, s->prefill, 0);
    } while (r == HZP_EINVAL); /* it needs more pages than the rig has */
    HZP_TRY(r);
    hzp_rig_chunks(rig, s->shape.ride);
    HZP_TRY(hzp_rig_train(rig, s->train));
    if (s->train) { /* items that ride begin in the forward pass */
        s->from = draw(v, s->shape.ride ? rig->train->forward_end : rig->chain.items);
        s->to = s->from + 1 + draw(v, 80);
        s->to = HZP_MIN(s->to, rig->chain.items);
    }
    return HZP_OK;
}

static int run_one(struct validation *v, struct step *s, struct hzp_err_text *reterr)
{
    struct hzp_rig *rig = v->rig;
    struct hzp_simulated predicted;
    double ns;
    HZP_TRY(hzp_rig_serve(rig, s->decode, s->depth, s->prefill, 0));
    hzp_rig_chunks(rig, s->shape.ride);
    HZP_TRY(hzp_rig_train(rig, s->train));
    hzp_rig_build(rig, &s->shape, s->from, s->to, &v->plan);
    HZP_TRY(hzp_plan_check(&v->plan, reterr));
    hzp_simulate(v->sim, &v->plan, &predicted);
    HZP_TRY(measure(v, &ns));
    s->predicted_ns = predicted.ns;
    s->ns = s->ns > 0 ? HZP_MIN(s->ns, ns) : ns;
    return HZP_OK;
}

static void tell(struct validation *v, const struct step *s)
{
    char text[HZP_SHAPE_TEXT];
    double error = s->predicted_ns / s->ns - 1;
    v->error[v->errors++] = fabs(error);
    printf("%4" PRId64 " %6d %6d %6d %6d %5d %9.3f %9.3f %+7.1f%%  %s\n", v->errors, s->decode,
           s->depth, s->prefill, s->train, s->to - s->from, s->predicted_ns * 1e-6, s->ns * 1e-6,
           100 * error, hzp_plan_shape_text(&s->shape, text));
}

/* Runs all plans once, then all again: a disturbance that lasts for seconds does not affect both
 * passes. */
static int run_all(struct validation *v, int64_t plans, const volatile int *stop,
                   struct hzp_err_text *reterr)
{
    for (; v->steps < plans && !*stop; v->steps++) {
        HZP_TRY(draw_one(v, &v->step[v->steps]));
        HZP_TRY(run_one(v, &v->step[v->steps], reterr));
    }
    printf("\n%4s %6s %6s %6s %6s %5s %9s %9s %8s  shape\n", "plan", "decode", "depth", "prompt",
           "train", "items", "predicted", "measured", "error");
    for (int64_t i = 0; i < v->steps; i++) {
        for (int pass = 1; pass < PASSES && !*stop; pass++)
            HZP_TRY(run_one(v, &v->step[i], reterr));
        tell(v, &v->step[i]);
    }
    return HZP_OK;
}

static void summary(struct validation *v)
{
    int64_t n = v->errors;
    qsort(v->error, (size_t)n, sizeof(double), by_value);
    if (n)
        printf("error over %" PRId64
               " plans: median %.1f %%, 95th percentile %.1f %%, largest %.1f %%\n",
               n, 100 * v->error[n / 2], 100 * v->error[(n - 1) * 95 / 100], 100 * v->error[n - 1]);
}

int hzp_search_validate(struct hzp_rig *rig, const struct hzp_tables *tables, int64_t plans,
                        uint64_t seed, const volatile int *stop, struct hzp_err_text *reterr)
{
    struct validation v = {
        .rig = rig, .dev = rig->config.model->dev, .tables = tables, .seed = seed};
    int r;
    hzp_plan_init(&v.plan);
    v.error = hzp_xcalloc((size_t)HZP_MAX(plans, 1), sizeof(*v.error));
    v.step = hzp_xcalloc((size_t)HZP_MAX(plans, 1), sizeof(*v.step));
    HZP_TRY_GOTO(hzp_simulator_create(tables, &v.sim));
    HZP_TRY_GOTO(hzp_exec_create(v.dev, &v.exec));
    r = run_all(&v, plans, stop, reterr);
    summary(&v);
out:
    hzp_exec_destroy(v.exec);
    hzp_simulator_destroy(v.sim);
    hzp_plan_fini(&v.plan);
    free(v.error);
    free(v.step);
    return r;
}
