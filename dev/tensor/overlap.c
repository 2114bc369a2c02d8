/* SPDX-License-Identifier: Apache-2.0 */
/* Decode steps of ranks that compute each product together, over a link by MPI that is throttled:
 * how much of the exchange hides behind compute, by the shape of the plan.
 *
 *     mpirun -n 2 overlap [MB/s [us [ROWS [ROUNDS]]]]
 *
 * Each rank computes with one core.  A network lane is a second thread, which waits for the link
 * most of the time.  All shapes take turns within a round; the median over the rounds
 * is printed.  Weights are random: only time is measured.
 */
#include "base/log.h"
#include "base/thread.h"
#include "mesh/link.h"
#include "nanobatch/model/forward.h"
#include "nanobatch/run/exec.h"
#include "weights/model_dir.h"
#include "weights/tensor_slice.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_ROWS = 16, DEPTH = 64, ROUNDS_MAX = 99 };

static struct hzp_err_text text;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ < 0) {                                                                           \
            fprintf(stderr, "%s: %s %s\n", #call, hzp_err_name(must_), text.text);                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* A model of 105 million parameters. */
static const struct hzp_model_config config = {.family = "llama",
                                               .layers = 8,
                                               .width = 1024,
                                               .inner = 2816,
                                               .vocab = 4096,
                                               .heads = {16, 8, 64},
                                               .positions = 256,
                                               .norm_eps = 1e-5f,
                                               .rope_theta = 10000,
                                               .disk_type = HZP_BF16,
                                               .tied = true};

struct rank {
    struct hzp_device *dev;
    struct hzp_layout layout;
    struct hzp_weights *weights;
    struct hzp_model *model;
    struct hzp_batch *batch;
    struct hzp_serve_space *space;
    struct hzp_exec *exec;
    struct hzp_kv *kv;
    struct hzp_plan plan;
};

static void open_rank(struct rank *r, struct hzp_link *link, int32_t rows)
{
    struct hzp_tensor_slice slice = {hzp_link_rank(link), hzp_link_ranks(link)};
    struct hzp_device_config device = {.name = "cpu", .threads = 1};
    struct hzp_weights_config store = {
        .type = HZP_BF16, .slots = 1, .max_staleness = 1, .first_id = 1};
    struct hzp_version *draft;
    MUST(hzp_device_open(&device, &r->dev, &text));
    MUST(hzp_tensor_slice_check(&config, slice.ranks, &text));
    hzp_layout_make_slice(&config, slice, &r->layout);
    MUST(hzp_weights_create(r->dev, &r->layout, &store, &r->weights));
    MUST(hzp_weights_begin(r->weights, &draft));
    MUST(hzp_model_init(r->dev, hzp_version_units(r->weights, draft), 1, 0.02f));
    hzp_weights_publish(r->weights, draft, 0);
    MUST(hzp_model_create(r->dev, r->weights, config.positions, &r->model));
    hzp_model_set_tensor(r->model, link, link);
    int32_t pages = HZP_DIV_UP(DEPTH, PAGE_ROWS);
    struct hzp_batch_config max = {.rows_max = rows,
                                   .segs_max = rows,
                                   .page_stride = pages,
                                   .logits_max = rows,
                                   .edits_max = 1};
    MUST(hzp_batch_create(r->dev, &max, &r->batch));
    MUST(hzp_serve_space_create(r->model, rows, rows, &r->space));
    MUST(hzp_exec_create(r->dev, &r->exec));
    r->kv = hzp_xcalloc((size_t)config.layers, sizeof(*r->kv));
    struct hzp_heads h = r->layout.config.heads;
    size_t page = (size_t)h.kv_heads * PAGE_ROWS * (size_t)h.dim * sizeof(uint16_t);
    for (int32_t l = 0; l < config.layers; l++) {
        struct hzp_kv *kv = &r->kv[l];
        *kv = (struct hzp_kv){NULL, NULL, rows * pages, PAGE_ROWS, HZP_BF16, NULL, NULL};
        MUST(hzp_device_alloc(r->dev, HZP_MEM_DEVICE, (size_t)kv->pages * page, &kv->k));
        MUST(hzp_device_alloc(r->dev, HZP_MEM_DEVICE, (size_t)kv->pages * page, &kv->v));
        memset(kv->k, 0, (size_t)kv->pages * page);
        memset(kv->v, 0, (size_t)kv->pages * page);
    }
    for (int32_t i = 0; i < rows; i++) {
        int32_t *seg = hzp_batch_add_segment(r->batch, DEPTH - 1, true);
        for (int32_t p = 0; p < pages; p++)
            seg[p] = i * pages + p;
        int32_t row = hzp_batch_add_row(r->batch, (i * 37 + 5) % config.vocab,
                                        seg[pages - 1] * PAGE_ROWS + PAGE_ROWS - 1);
        hzp_batch_add_logits(r->batch, row);
        r->batch->sample[i] = (struct hzp_sample_row){.top_p = 1, .repetition = 1, .given = -1};
    }
    hzp_plan_init(&r->plan);
}

/* Milliseconds of a step: all of it, and how long ops computed and collectives took. */
struct took {
    double all, compute, network;
};

static struct took run_step(struct rank *r, const struct hzp_plan_shape *shape,
                            struct hzp_link *link)
{
    struct took ret = {0};
    struct hzp_exec_times times;
    hzp_ticket ticket;
    uint64_t meet = 0;
    struct hzp_transfer t = {
        .op = HZP_ALL_REDUCE, .type = HZP_WIRE_U64, .count = 1, .send = &meet, .recv = &meet};
    hzp_plan_clear(&r->plan);
    hzp_forward_build(&r->plan, r->model, hzp_weights_current(r->weights), r->batch, r->kv,
                      r->space, shape);
    MUST(hzp_plan_check(&r->plan, &text));
    MUST(hzp_link_post(link, &t, &ticket, &text));
    MUST(hzp_link_wait(link, ticket, &text));
    uint64_t begin = hzp_now_ns();
    MUST(hzp_exec_run(r->exec, &r->plan, NULL, &times));
    ret.all = (double)(hzp_now_ns() - begin) * 1e-6;
    const struct hzp_span *span = hzp_exec_spans(r->exec);
    for (int32_t i = 0; i < r->plan.items; i++) {
        double ms = (double)(span[i].end_ns - span[i].begin_ns) * 1e-6;
        *(r->plan.item[i].op == HZP_OP_collective ? &ret.network : &ret.compute) += ms;
    }
    return ret;
}

/* Under chrt: compute gets a lower priority than the threads of the network, which need a core only
 * now and then, and at once. */
static void step_back(void)
{
    struct sched_param p;
    int policy;
    if (pthread_getschedparam(pthread_self(), &policy, &p) == 0 && policy == SCHED_RR &&
        p.sched_priority > 1) {
        p.sched_priority--;
        pthread_setschedparam(pthread_self(), policy, &p);
    }
}

static int by_number(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static const struct {
    const char *name;
    struct hzp_plan_shape shape;
} tried[] = {
    {"sequential, all-reduce", {.nanos = 1, .weight = {1}}},
    {"sequential, rows divided", {.nanos = 1, .weight = {1}, .reduce = {HZP_REDUCE_SCATTERED}}},
    {"2 nano-batches without overlap", {.nanos = 2, .weight = {1, 1}, .order = HZP_ORDER_LAYERS}},
    {"2 nano-batches overlapped",
     {.nanos = 2, .weight = {1, 1}, .order = HZP_ORDER_LAYERS, .network_lane = HZP_LANE_NETWORK}},
    {"2 overlapped, rows divided",
     {.nanos = 2,
      .weight = {1, 1},
      .order = HZP_ORDER_LAYERS,
      .network_lane = HZP_LANE_NETWORK,
      .reduce = {HZP_REDUCE_SCATTERED, HZP_REDUCE_SCATTERED}}},
    {"4 overlapped, rows divided",
     {.nanos = 4,
      .weight = {1, 1, 1, 1},
      .order = HZP_ORDER_LAYERS,
      .network_lane = HZP_LANE_NETWORK,
      .reduce = {HZP_REDUCE_SCATTERED, HZP_REDUCE_SCATTERED, HZP_REDUCE_SCATTERED,
                 HZP_REDUCE_SCATTERED}}},
    {"2 overlapped, attention whole",
     {.nanos = 2,
      .weight = {1, 1},
      .order = HZP_ORDER_LAYERS,
      .joined = {[HZP_STAGE_ATTEND] = 1},
      .network_lane = HZP_LANE_NETWORK}},
    {"q/k/v, attention 4, the rest 2",
     {.nanos = 4,
      .weight = {1, 1, 1, 1},
      .order = HZP_ORDER_LAYERS,
      .joined = {[HZP_STAGE_REST] = 5, [HZP_STAGE_EXCHANGE] = 5},
      .network_lane = HZP_LANE_NETWORK}},
    {"products 2, exchanges 4",
     {.nanos = 4,
      .weight = {1, 1, 1, 1},
      .order = HZP_ORDER_LAYERS,
      .joined = {[HZP_STAGE_QKV] = 5, [HZP_STAGE_ATTEND] = 5, [HZP_STAGE_REST] = 5},
      .network_lane = HZP_LANE_NETWORK}},
};

int main(int argc, char **argv)
{
    double rate = argc > 1 ? atof(argv[1]) * 1e6 : 0, us = argc > 2 ? atof(argv[2]) : 0;
    int32_t rows = argc > 3 ? atoi(argv[3]) : 64;
    int rounds = argc > 4 ? atoi(argv[4]) : 15;
    struct hzp_link_mpi mpi = {.rate = rate, .latency_ns = (uint64_t)(us * 1e3)};
    struct hzp_link *link;
    struct rank rank;
    static double ms[HZP_COUNT(tried)][ROUNDS_MAX], compute[HZP_COUNT(tried)][ROUNDS_MAX],
        network[HZP_COUNT(tried)][ROUNDS_MAX];
    hzp_log_init();
    HZP_ASSERT(rows > 0 && rounds > 0 && rounds <= ROUNDS_MAX);
    MUST(hzp_link_open_mpi(&mpi, &link, &text));
    memset(&rank, 0, sizeof(rank));
    open_rank(&rank, link, rows);
    for (int round = -1; round < rounds; round++) {
        if (round == 0)
            step_back(); /* all threads have been started */
        for (int i = 0; i < HZP_COUNT(tried); i++) {
            struct took took = run_step(&rank, &tried[i].shape, link);
            if (round >= 0) {
                ms[i][round] = took.all;
                compute[i][round] = took.compute;
                network[i][round] = took.network;
            }
        }
    }
    if (hzp_link_rank(link) == 0) {
        printf("%d ranks, %d rows, link of %.0f MB/s and %.0f us, %d rounds: median (least)\n",
               hzp_link_ranks(link), rows, rate * 1e-6, us, rounds);
        for (int i = 0; i < HZP_COUNT(tried); i++) {
            double *of[] = {ms[i], compute[i], network[i]};
            for (int k = 0; k < HZP_COUNT(of); k++)
                qsort(of[k], (size_t)rounds, sizeof(double), by_number);
            double median = ms[i][rounds / 2];
            printf("%-32s %8.1f ms (%.1f)  %8.0f tokens/s  compute %.1f, collectives %.1f\n",
                   tried[i].name, median, ms[i][0], rows / median * 1e3, compute[i][rounds / 2],
                   network[i][rounds / 2]);
        }
    }
    hzp_link_close(link);
    return 0;
}
