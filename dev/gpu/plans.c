/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/plans.c - times steps run by the sequential plan, by nano-batches alone, by a
 * hand-made overlap, and by the plan that the product's search finds, in turns.
 *
 *     plans BACKEND MODEL [--seconds N] [--repeat N] DECODE,DEPTH,PREFILL,TRAIN...
 *
 * Each step: DECODE sequences at position DEPTH, PREFILL rows of one prompt, and of a
 * micro-batch of TRAIN rows as many items as one layer has (0: none).  The search uses what
 * hzp_measure finds on a few layers: only the parts near these steps' sizes, each once, for
 * about N seconds (20; 0: no search); `hzpserve search` takes all parts, three times, and drops
 * plans that lose when they are run.
 *
 * One JSON object a line.  Times are medians, host clock, from issue to the end of all;
 * "over_sequential" is the median of the ratios run by run; "graphs" are the device's graphs that
 * one step launches (0: it is issued op by op).
 */
#include "base/log.h"
#include "base/thread.h"
#include "dev/gpu/open.h"
#include "nanobatch/run/exec.h"
#include "nanobatch/search/measure.h"
#include "nanobatch/search/search.h"

#include <string.h>

enum { LAYERS = 6, STEPS_MAX = 4, SHAPES = 4, REPEAT_MAX = 64, TRIES = 20 };

struct step {
    int32_t decode, depth, prefill, train;
};

static const char *const shape_name[SHAPES] = {"sequential", "nano-batches alone",
                                               "overlapped, by hand", "searched"};

struct plans {
    struct gpu_config base; /* without rows */
    struct step step[STEPS_MAX];
    int steps, repeat;
    double seconds;
    struct hzp_tables tables;
};

/* ---- measuring for the search ---- */

/* The largest number of a list that is no more than `most`. */
static int32_t largest(const int32_t *list, int n, int32_t most)
{
    int32_t best = 0;
    for (int i = 0; i < n; i++)
        if (list[i] <= most)
            best = HZP_MAX(best, list[i]);
    return best;
}

/* Whether this part is relevant for the step; the parts are listed in
 * nanobatch/search/measure.h. */
static bool wanted(const char *what, const struct step *s)
{
    static const int32_t decode_sizes[] = {1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 64, 96, 128, 256};
    static const int32_t prefill_sizes[] = {16, 32, 48, 64, 96, 128, 160, 192, 256, 512};
    int32_t decode = 0, prefill = 0;
    if (sscanf(what, "training %d rows", &decode) == 1)
        return decode == s->train;
    if (sscanf(what, "%d decode, %d prompt rows", &decode, &prefill) == 2) {
        int32_t d = largest(decode_sizes, HZP_COUNT(decode_sizes), s->decode);
        int32_t p = largest(prefill_sizes, HZP_COUNT(prefill_sizes), s->prefill);
        int32_t half = largest(decode_sizes, HZP_COUNT(decode_sizes), d / 2);
        int32_t less = largest(prefill_sizes, HZP_COUNT(prefill_sizes), p / 2);
        return decode ? decode == d || decode == half : prefill == p || prefill == less;
    }
    if (strstr(what, " beside "))
        return strstr(what, hzp_class_text(HZP_CLASS_WIDE)) != NULL ||
               (s->train && strstr(what, hzp_class_text(HZP_CLASS_DECODE)) != NULL);
    return strstr(what, "between") != NULL;
}

/* Measures the parts that are near to any of the steps, each once, while there is time. */
static void measure(struct plans *p, const struct hzp_assembly_rig *size)
{
    char what[64], seen[512][64];
    int seen_count = 0, left_out = 0;
    struct hzp_measure *m;
    struct hzp_err_text text = {0};
    uint64_t begin = hzp_now_ns();
    struct gpu_config config = p->base;
    struct hzp_assembly bench;
    config.rows = *size;
    config.layers_max = LAYERS;
    gpu_open(&config, &bench);
    if (hzp_measure_create(bench.rig, &p->tables, &m, &text) < 0) {
        printf("skip: %s\n", text.text);
        exit(77);
    }
    while (p->tables.parts_done < p->tables.parts) {
        bool fresh = true;
        hzp_measure_what(m, what);
        /* In the first pass the same name covers several depths; later passes repeat the names. */
        for (int i = 0; i < seen_count && p->tables.parts_done > p->tables.parts / 3; i++)
            fresh &= strcmp(seen[i], what) != 0;
        bool want = false;
        for (int i = 0; i < p->steps; i++)
            want |= fresh && wanted(what, &p->step[i]);
        bool late = (double)(hzp_now_ns() - begin) * 1e-9 > p->seconds;
        left_out += want && late;
        if (!want || late) {
            p->tables.parts_done++;
            continue;
        }
        if (seen_count < HZP_COUNT(seen))
            memcpy(seen[seen_count++], what, sizeof(what));
        MUST(hzp_measure_next(m));
    }
    printf("{\"t\":\"measured\",\"parts\":%d,\"left_out\":%d,\"seconds\":%.1f}\n", seen_count,
           left_out, (double)(hzp_now_ns() - begin) * 1e-9);
    fflush(stdout);
    hzp_measure_destroy(m);
    hzp_assembly_close(&bench);
}

/* Finds the search's plan for the step; returns false if there is none. */
static bool find(struct plans *p, const struct hzp_assembly_rig *size, const struct step *s,
                 struct hzp_plan_entry *ret)
{
    struct gpu_config on_paper = p->base;
    struct hzp_assembly paper;
    struct hzp_search *search;
    on_paper.device.name = "sim";
    on_paper.rows = *size;
    struct hzp_assembly_config parts = {
        .device = &on_paper.device, .model = &on_paper.model, .rig = &on_paper.rows};
    struct hzp_err_text text = {0};
    if (hzp_assembly_rig(&parts, true, &paper, &text) < 0) {
        fprintf(stderr, "plans: %s\n", text.text);
        exit(3);
    }
    struct hzp_search_config config = {
        .rig = paper.rig, .tables = &p->tables, .train_share = 0.5, .tries = TRIES, .seed = 1};
    MUST(hzp_search_create(&config, &search));
    int r = hzp_search_step(search, s->decode, s->depth, s->prefill, s->train, ret);
    hzp_search_destroy(search);
    hzp_assembly_close(&paper);
    if (r < 0 && r != HZP_EINVAL)
        MUST(r);
    return r == HZP_OK;
}

/* ---- running ---- */

static void shapes_by_hand(const struct step *s, int threads, struct hzp_plan_shape shape[SHAPES])
{
    for (int i = 0; i < SHAPES; i++)
        shape[i] = hzp_plan_sequential;
    for (int i = 1; i < 3; i++) {
        shape[i].nanos = 2;
        shape[i].weight[0] = shape[i].weight[1] = 1;
        shape[i].order = HZP_ORDER_LAYERS;
    }
    shape[2].order = HZP_ORDER_SKEWED;
    for (int i = 0; i < 2; i++)
        shape[2].lane[i][HZP_KIND_DECODE] = shape[2].lane[i][HZP_KIND_PREFILL] = HZP_LANE_MEMORY;
    int few = HZP_MAX(threads / 4 / 8 * 8, 1); /* green contexts come in multiples of eight */
    shape[2].share[HZP_LANE_MEMORY] = (int16_t)few;
    shape[2].share[HZP_LANE_COMPUTE] = (int16_t)HZP_MAX(threads - few, 1);
    if (s->train) { /* products run beside training, not beside each other */
        shape[2] = hzp_plan_sequential;
        memset(shape[2].train_lane, HZP_LANE_TRAIN, sizeof(shape[2].train_lane));
        int half = HZP_MAX(threads / 2 / 8 * 8, 1);
        shape[2].share[HZP_LANE_TRAIN] = (int16_t)half;
        shape[2].share[HZP_LANE_COMPUTE] = (int16_t)HZP_MAX(threads - half, 1);
    }
}

/* Prints the result of one plan of a step; ms NULL: there is no such plan. */
static void tell(const struct step *s, int which, const struct hzp_plan_shape *shape, double *ms,
                 double over, uint64_t graphs, int runs)
{
    char text[HZP_SHAPE_TEXT];
    printf("{\"t\":\"plan\",\"decode\":%d,\"depth\":%d,\"prefill\":%d,\"train\":%d,\"plan\":\"%s\"",
           s->decode, s->depth, s->prefill, s->train, shape_name[which]);
    if (ms)
        printf(",\"ms\":%.3f,\"over_sequential\":%.3f,\"graphs\":%llu,\"shape\":\"%s\","
               "\"repeats\":%d,\"spread\":%.4f}\n",
               gpu_median(ms, runs), over, (unsigned long long)graphs,
               hzp_plan_shape_text(shape, text), runs, gpu_spread(ms, runs));
    else
        printf(",\"shape\":\"none found\"}\n");
    fflush(stdout);
}

/* Runs `count` shapes in turns; the first is the sequential one. */
static void run_all(struct plans *p, struct hzp_assembly *bench, const struct step *s,
                    const struct hzp_plan_shape *shape, int count)
{
    double ms[SHAPES][REPEAT_MAX], ratio[REPEAT_MAX], over[SHAPES];
    uint64_t graphs[SHAPES] = {0}; /* of each shape's last step */
    struct hzp_exec *exec;
    struct hzp_exec_times times;
    struct hzp_plan plan;
    int32_t items = bench->rig->chain.items, from = items / 2;
    int32_t to = s->train ? HZP_MIN(from + items / bench->config.layers, items) : from;
    hzp_plan_init(&plan);
    MUST(hzp_exec_create(bench->dev, &exec));
    for (int i = 0; i < count; i++)
        hzp_exec_prepare(bench->dev, &shape[i]);
    for (int turn = -2; turn < p->repeat; turn++)
        for (int i = 0; i < count; i++) {
            hzp_rig_build(bench->rig, &shape[i], from, to, &plan);
            uint64_t before = hzp_exec_graphs(exec).pieces, begin = hzp_now_ns();
            MUST(hzp_exec_run(exec, &plan, NULL, &times));
            if (turn >= 0)
                ms[i][turn] = (double)(hzp_now_ns() - begin) * 1e-6;
            graphs[i] = hzp_exec_graphs(exec).pieces - before;
        }
    for (int i = 0; i < count; i++) { /* within a turn, so before anything is sorted */
        for (int k = 0; k < p->repeat; k++)
            ratio[k] = ms[0][k] / ms[i][k];
        over[i] = gpu_median(ratio, p->repeat);
    }
    for (int i = 0; i < SHAPES; i++)
        tell(s, i, &shape[i], i < count ? ms[i] : NULL, i < count ? over[i] : 0, graphs[i],
             p->repeat);
    hzp_exec_destroy(exec);
    hzp_plan_fini(&plan);
}

/* Pages for just these rows: with many sequences there may be no room for all to be longer. */
static struct hzp_assembly_rig size_of(const struct plans *p, const struct step *s)
{
    struct hzp_assembly_rig size = p->base.rows;
    size.decode = s->decode;
    size.depth = s->decode ? s->depth : 0;
    size.prefill = s->prefill;
    size.train = s->train;
    size.kv_tokens =
        (int64_t)s->decode * HZP_ROUND_UP(size.depth + 1, 16) + HZP_ROUND_UP(s->prefill, 16);
    return size;
}

static void one_step(struct plans *p, const struct step *s)
{
    struct hzp_plan_shape shape[SHAPES];
    struct hzp_plan_entry found;
    struct gpu_config config = p->base;
    struct hzp_assembly bench;
    config.rows = size_of(p, s);
    bool any = p->seconds > 0 && find(p, &config.rows, s, &found);
    gpu_open(&config, &bench);
    gpu_fill_pages(&bench);
    MUST(hzp_rig_serve(bench.rig, s->decode, config.rows.depth, s->prefill, 0));
    MUST(hzp_rig_train(bench.rig, s->train));
    shapes_by_hand(s, bench.dev->threads, shape);
    if (any)
        shape[SHAPES - 1] = found.shape;
    run_all(p, &bench, s, shape, any ? SHAPES : SHAPES - 1);
    hzp_assembly_close(&bench);
}

static int usage(void)
{
    fprintf(
        stderr,
        "usage: plans BACKEND MODEL [--seconds N] [--repeat N] DECODE,DEPTH,PREFILL,TRAIN...\n");
    return 2;
}

static bool read_step(const char *text, struct step *ret)
{
    char behind;
    return sscanf(text, "%d,%d,%d,%d%c", &ret->decode, &ret->depth, &ret->prefill, &ret->train,
                  &behind) == 4 &&
           ret->decode >= 0 && ret->depth >= 0 && ret->prefill >= 0 && ret->train >= 0 &&
           ret->decode + ret->prefill > 0;
}

int main(int argc, char **argv)
{
    struct plans p = {.repeat = 9, .seconds = 20};
    hzp_log_init();
    if (argc < 4)
        return usage();
    for (int i = 3; i < argc; i++) {
        if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
            p.seconds = gpu_number(argv[++i]);
        else if (!strcmp(argv[i], "--repeat") && i + 1 < argc)
            p.repeat = gpu_number(argv[++i]);
        else if (p.steps == STEPS_MAX || !read_step(argv[i], &p.step[p.steps++]))
            return usage();
    }
    if (!p.steps || p.repeat < 1 || p.repeat > REPEAT_MAX)
        return usage();
    gpu_configure(argv[1], argv[2], &p.base);
    hzp_tables_init(&p.tables);
    struct hzp_assembly_rig most = size_of(&p, &p.step[0]);
    for (int i = 1; i < p.steps; i++) {
        struct hzp_assembly_rig size = size_of(&p, &p.step[i]);
        most.decode = HZP_MAX(most.decode, size.decode);
        most.depth = HZP_MAX(most.depth, size.depth);
        most.prefill = HZP_MAX(most.prefill, size.prefill);
        most.train = HZP_MAX(most.train, size.train);
        most.kv_tokens = HZP_MAX(most.kv_tokens, size.kv_tokens);
    }
    if (p.seconds > 0)
        measure(&p, &most);
    for (int i = 0; i < p.steps; i++)
        one_step(&p, &p.step[i]);
    hzp_tables_fini(&p.tables);
    return 0;
}
