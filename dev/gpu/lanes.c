/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/lanes.c - the throughput of decode attention and training's products on a share of the
 * device, alone and side by side: the table R -> P of the product's own kernels and lanes.
 *
 *     lanes BACKEND MODEL [DECODE DEPTH TRAIN [CORES...]]
 *
 * Defaults: 256 sequences at position 1024, 2048 training rows; cores for attention from 8 to
 * 112 of 132.
 *
 * The items are those of real plans: attention of every layer, and all products of one
 * micro-batch's layers, forward and backward.  Both sides are limited (HZP_CUDA_LANES says how:
 * green or grid): CORES cores for attention, all others for the products.  A rate is the work
 * done in the window in which both run, divided by the work done in the same time alone on the
 * whole device; with time-slicing the two rates add up to 1.
 *
 * One JSON object a line.  R is attention's share of the cores, P the rate it reaches.
 */
#include "base/log.h"
#include "dev/gpu/open.h"

#include <string.h>

enum { LAYERS = 4, ITEMS_MAX = 256, ISSUED_MAX = 2048, ROUNDS = 3 };

static const double window_ns = 30e6;

struct side {
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    const struct hzp_item *item[ITEMS_MAX];
    double alone[ITEMS_MAX]; /* nanoseconds of each on the whole device */
    int items;
    double all_ns; /* of all of them */
    struct hzp_span span[ISSUED_MAX];
    int issued;
};

struct pair {
    struct hzp_device *dev;
    struct side side[2]; /* attention, products */
};

static void set_shares(struct pair *p, int first, int second)
{
    MUST(hzp_lane_set_share(p->side[0].lane, first));
    MUST(hzp_lane_set_share(p->side[1].lane, second));
}

static void issue(struct side *s, int i)
{
    const struct hzp_item *item = s->item[i % s->items];
    MUST(hzp_lane_time(s->lane, &s->span[i]));
    MUST(hzp_lane_issue(s->lane, item->op, item->args));
    s->issued = i + 1;
}

/* Issues `first` and `second` items of the two sides, interleaved (0: none), and waits for their
   end. */
static void run(struct pair *p, int first, int second)
{
    const int want[2] = {first, second};
    int done[2] = {0, 0};
    p->side[0].issued = p->side[1].issued = 0;
    while (done[0] < want[0] || done[1] < want[1]) {
        int which = (double)done[1] * want[0] < (double)done[0] * want[1] && done[1] < want[1];
        if (done[which] >= want[which])
            which = !which;
        issue(&p->side[which], done[which]);
        done[which]++;
    }
    for (int i = 0; i < 2; i++)
        if (want[i]) {
            MUST(hzp_fence_record(p->side[i].fence, p->side[i].lane));
            MUST(hzp_fence_wait(p->side[i].fence));
        }
}

/* Times each item alone on the whole device, the fastest of three. */
static void time_alone(struct pair *p, int which)
{
    struct side *s = &p->side[which];
    set_shares(p, 0, 0);
    for (int round = 0; round < ROUNDS + 1; round++) {
        run(p, which ? 0 : s->items, which ? s->items : 0);
        for (int i = 0; round && i < s->items; i++) { /* the first one makes primitives */
            double ns = (double)(s->span[i].end_ns - s->span[i].begin_ns);
            if (round == 1 || ns < s->alone[i])
                s->alone[i] = HZP_MAX(ns, 1);
        }
    }
    s->all_ns = 0;
    for (int i = 0; i < s->items; i++)
        s->all_ns += s->alone[i];
}

/* Work of the side in [from, to), in nanoseconds alone; an item cut by the window counts
 * proportionally. */
static double work(const struct side *s, uint64_t from, uint64_t to)
{
    double sum = 0;
    for (int i = 0; i < s->issued; i++) {
        uint64_t begin = HZP_MAX(s->span[i].begin_ns, from), end = HZP_MIN(s->span[i].end_ns, to);
        double length = (double)(s->span[i].end_ns - s->span[i].begin_ns);
        if (end > begin && length > 0)
            sum += s->alone[i % s->items] * (double)(end - begin) / length;
    }
    return sum;
}

/* Rates of one run; a side without issued items has 0. */
static void rates(const struct pair *p, double ret[2])
{
    uint64_t from = 0, to = UINT64_MAX;
    for (int i = 0; i < 2; i++)
        if (p->side[i].issued) {
            from = HZP_MAX(from, p->side[i].span[0].begin_ns);
            to = HZP_MIN(to, p->side[i].span[p->side[i].issued - 1].end_ns);
        }
    for (int i = 0; i < 2; i++)
        ret[i] = to > from ? work(&p->side[i], from, to) / (double)(to - from) : 0;
}

/* How many items of the side take about as long as the window at this rate. */
static int enough(const struct side *s, double rate)
{
    double items = window_ns * HZP_MAX(rate, 0.02) / (s->all_ns / s->items);
    return (int)HZP_MIN(HZP_MAX(items, 4.0), (double)ISSUED_MAX);
}

/* Medians of three. */
static void measure(struct pair *p, int first, int second, double ret[2])
{
    double rate[2][ROUNDS], one[2];
    run(p, HZP_MIN(first, 4),
        HZP_MIN(second, 4)); /* lanes take up their shares, algorithms are chosen */
    for (int round = 0; round < ROUNDS; round++) {
        run(p, first, second);
        rates(p, one);
        rate[0][round] = one[0];
        rate[1][round] = one[1];
    }
    ret[0] = gpu_median(rate[0], ROUNDS);
    ret[1] = gpu_median(rate[1], ROUNDS);
}

static void one_share(struct pair *p, int cores)
{
    int all = p->dev->threads;
    double share = (double)cores / all, first[2], second[2], both[2];
    struct side *a = &p->side[0], *b = &p->side[1];
    const char *lanes = getenv("HZP_CUDA_LANES");
    set_shares(p, cores, all - cores);
    measure(p, enough(a, 1.5 * share), 0, first);
    measure(p, 0, enough(b, 1 - share), second);
    measure(p, enough(a, first[0]), enough(b, second[1]), both);
    printf("{\"t\":\"share\",\"lanes\":\"%s\",\"cores\":%d,\"of\":%d,\"R\":%.3f,\"P\":%.3f,"
           "\"products\":%.3f,\"sum\":%.3f,\"attention_alone\":%.3f,\"products_alone\":%.3f}\n",
           lanes ? lanes : "green", cores, all, share, both[0], both[1], both[0] + both[1],
           first[0], second[1]);
    fflush(stdout);
}

static void usual_shares(struct pair *p)
{
    static const int of_132[] = {8, 16, 24, 32, 40, 48, 64, 80, 96, 112};
    int all = p->dev->threads, last = 0;
    for (int i = 0; i < HZP_COUNT(of_132); i++) {
        int cores = all >= 32 ? of_132[i] * all / 132 : i + 1;
        if (cores > last && cores < all)
            one_share(p, cores);
        last = HZP_MAX(last, cores);
    }
}

/* Both on lanes without a limit, each with the whole device. */
static void unlimited(struct pair *p)
{
    double both[2];
    set_shares(p, 0, 0);
    measure(p, enough(&p->side[0], 0.5), enough(&p->side[1], 0.5), both);
    printf("{\"t\":\"share\",\"lanes\":\"no "
           "limit\",\"cores\":%d,\"of\":%d,\"P\":%.3f,\"products\":%.3f,"
           "\"sum\":%.3f}\n",
           p->dev->threads, p->dev->threads, both[0], both[1], both[0] + both[1]);
}

static void collect(struct pair *p, const struct hzp_plan *plan)
{
    for (int32_t i = 0; i < plan->items; i++) {
        const struct hzp_item *item = &plan->item[i];
        bool attention = hzp_item_of(item, HZP_TENANT_SERVE) && item->op == HZP_OP_attn_decode;
        bool product =
            hzp_item_of(item, HZP_TENANT_TRAIN) && item->op == HZP_OP_matmul && item->layer >= 0;
        struct side *s = &p->side[product];
        if ((attention || product) && s->items < ITEMS_MAX)
            s->item[s->items++] = item;
    }
    if (!p->side[0].items || !p->side[1].items) {
        fprintf(stderr, "lanes: the plan has no such items\n");
        exit(3);
    }
}

static void open_side(struct side *s, struct hzp_device *dev, enum hzp_bound use)
{
    MUST(hzp_lane_open(dev, use, &s->lane));
    MUST(hzp_fence_open(dev, &s->fence));
}

int main(int argc, char **argv)
{
    hzp_log_init();
    if (argc != 3 && argc < 6) {
        fprintf(stderr, "usage: lanes BACKEND MODEL [DECODE DEPTH TRAIN [CORES...]]\n");
        return 2;
    }
    struct gpu_config config;
    gpu_configure(argv[1], argv[2], &config);
    config.layers_max = LAYERS;
    config.rows.decode = 256;
    config.rows.depth = 1024;
    config.rows.train = 2048;
    if (argc >= 6) {
        config.rows.decode = gpu_number(argv[3]);
        config.rows.depth = gpu_number(argv[4]);
        config.rows.train = gpu_number(argv[5]);
    }
    struct hzp_assembly bench;
    gpu_open(&config, &bench);
    struct pair *p = hzp_xcalloc(1, sizeof(*p));
    struct hzp_plan plan;
    p->dev = bench.dev;
    gpu_fill_pages(&bench);
    MUST(hzp_rig_serve(bench.rig, config.rows.decode, config.rows.depth, 0, 0));
    MUST(hzp_rig_train(bench.rig, config.rows.train));
    hzp_plan_init(&plan);
    hzp_rig_build(bench.rig, &hzp_plan_sequential, 0, bench.rig->chain.items, &plan);
    collect(p, &plan);
    open_side(&p->side[0], p->dev, HZP_BOUND_MEMORY);
    open_side(&p->side[1], p->dev, HZP_BOUND_COMPUTE);
    time_alone(p, 0);
    time_alone(p, 1);
    printf("{\"t\":\"alone\",\"label\":\"%s\",\"attention_us\":%.1f,\"attentions\":%d,\"products_"
           "us\":%.1f,"
           "\"products\":%d}\n",
           p->dev->label, p->side[0].all_ns * 1e-3, p->side[0].items, p->side[1].all_ns * 1e-3,
           p->side[1].items);
    for (int i = 6; i < argc; i++) {
        int32_t cores = gpu_number(argv[i]);
        if (cores > 0 && cores < p->dev->threads)
            one_share(p, cores);
    }
    if (argc <= 6 && hzp_device_has_shares(p->dev))
        usual_shares(p);
    unlimited(p);
    for (int i = 0; i < 2; i++) {
        hzp_fence_close(p->side[i].fence);
        hzp_lane_close(p->side[i].lane);
    }
    hzp_plan_fini(&plan);
    free(p);
    hzp_assembly_close(&bench);
    return 0;
}
