/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/peers/selftest.h"

#include "base/log.h"
#include "base/thread.h"

enum { SIDE = 384, COPY_BYTES = 8 << 20, PIECE_BYTES = 256 << 10, RUNS = 5 };
static const double WARN_TIMES = 3;

static const char *const names[] = {"product", "copy", "link"};

struct test {
    struct hzp_device *dev;
    struct hzp_link *link;
    enum hzp_dtype type;
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    void *from, *to; /* COPY_BYTES of device memory each */
    void *pieces;    /* PIECE_BYTES a rank, of device memory */
};

static int product(struct test *t, struct hzp_err_text *reterr)
{
    size_t matrix = (size_t)SIDE * SIDE * sizeof(float);
    struct hzp_matmul_args args = {.a = {t->from, SIDE, SIDE, SIDE, t->type},
                                   .b = {(char *)t->from + matrix, SIDE, SIDE, SIDE, t->type},
                                   .c = {t->to, SIDE, SIDE, SIDE, HZP_F32}};
    HZP_TRY(hzp_op_matmul(t->lane, &args));
    HZP_TRY(hzp_fence_record(t->fence, t->lane));
    return hzp_fence_wait(t->fence);
}

static int copy(struct test *t, struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_lane_copy(t->lane, t->to, t->from, COPY_BYTES));
    HZP_TRY(hzp_fence_record(t->fence, t->lane));
    return hzp_fence_wait(t->fence);
}

static int gather(struct test *t, struct hzp_err_text *reterr)
{
    const char *mine = (char *)t->pieces + (size_t)hzp_link_rank(t->link) * PIECE_BYTES;
    struct hzp_transfer what = {.op = HZP_ALL_GATHER,
                                .count = PIECE_BYTES,
                                .send = mine,
                                .recv = t->pieces,
                                .tag = UINT64_MAX};
    return hzp_link_move(t->link, &what, reterr);
}

/* The shortest of several runs, without the first. */
static int measure(struct test *t, int (*run)(struct test *, struct hzp_err_text *), double *ret,
                   struct hzp_err_text *reterr)
{
    *ret = 1e9;
    for (int i = 0; i <= RUNS; i++) {
        uint64_t begin = hzp_now_ns();
        HZP_TRY(run(t, reterr));
        double took = (double)(hzp_now_ns() - begin) * 1e-9;
        if (i > 0)
            *ret = HZP_MIN(*ret, took);
    }
    return HZP_OK;
}

static int measure_all(struct test *t, struct hzp_selftest *ret, struct hzp_err_text *reterr)
{
    HZP_TRY(hzp_lane_open(t->dev, HZP_BOUND_COMPUTE, &t->lane));
    HZP_TRY(hzp_fence_open(t->dev, &t->fence));
    HZP_TRY(hzp_device_alloc(t->dev, HZP_MEM_DEVICE, COPY_BYTES, &t->from));
    HZP_TRY(hzp_device_alloc(t->dev, HZP_MEM_DEVICE, COPY_BYTES, &t->to));
    size_t pieces = (size_t)hzp_link_ranks(t->link) * PIECE_BYTES;
    HZP_TRY(hzp_device_alloc(t->dev, HZP_MEM_DEVICE, pieces, &t->pieces));
    HZP_TRY(hzp_device_zero(t->dev, t->pieces, pieces));
    HZP_TRY(hzp_device_zero(t->dev, t->from, COPY_BYTES));
    HZP_TRY(hzp_device_zero(t->dev, t->to, COPY_BYTES));
    HZP_TRY(measure(t, product, &ret->seconds[HZP_SELFTEST_PRODUCT], reterr));
    return measure(t, copy, &ret->seconds[HZP_SELFTEST_COPY], reterr);
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int hzp_selftest_slowest(const struct hzp_selftest *all, int ranks, int *ret_which,
                         double *ret_times)
{
    int slowest = 0;
    HZP_FREED double *sorted = hzp_xcalloc((size_t)ranks, sizeof(*sorted));
    *ret_which = 0;
    *ret_times = 0;
    for (int w = 0; w < HZP_SELFTEST_COUNT; w++) {
        for (int r = 0; r < ranks; r++)
            sorted[r] = all[r].seconds[w];
        qsort(sorted, (size_t)ranks, sizeof(*sorted), compare_seconds);
        double usual = HZP_MAX(sorted[(ranks - 1) / 2], 1e-9);
        for (int r = 0; r < ranks; r++)
            if (all[r].seconds[w] / usual > *ret_times) {
                *ret_times = all[r].seconds[w] / usual;
                *ret_which = w;
                slowest = r;
            }
    }
    return slowest;
}

static int judge(const struct hzp_selftest *all, const struct test *t, double most,
                 struct hzp_err_text *reterr)
{
    int which;
    double times;
    int rank = hzp_selftest_slowest(all, hzp_link_ranks(t->link), &which, &times);
    if (hzp_link_rank(t->link) == 0)
        hzp_log(times > WARN_TIMES ? HZP_LOG_WARN : HZP_LOG_INFO, "ranks",
                "selftest slowest_rank=%d in=%s times=%.2f ms=%.3f", rank, names[which], times,
                all[rank].seconds[which] * 1e3);
    if (!(most > 0) || times <= most)
        return HZP_OK;
    return hzp_fail_param(reterr, HZP_EIO, "--rank-slowness",
                          "rank %d is %.1f times slower than the others (self-test: %s), more than "
                          "--rank-slowness %g",
                          rank, times, names[which], most);
}

void hzp_selftest_speeds(const struct hzp_selftest *all, int count, uint8_t *ret)
{
    double least = INFINITY;
    for (int i = 0; i < count; i++)
        least = HZP_MIN(least, all[i].seconds[HZP_SELFTEST_PRODUCT]);
    for (int i = 0; i < count; i++) {
        long tenths = lround(10 * least / all[i].seconds[HZP_SELFTEST_PRODUCT]);
        ret[i] = (uint8_t)(10 * HZP_MAX(tenths, 1));
    }
}

int hzp_selftest_run(struct hzp_device *dev, struct hzp_link *link, enum hzp_dtype type,
                     double most, struct hzp_selftest *ret_all, struct hzp_err_text *reterr)
{
    size_t ranks = (size_t)hzp_link_ranks(link);
    struct test t = {.dev = dev, .link = link, .type = type};
    struct hzp_selftest mine = {.seconds = {0}}, *all = hzp_xcalloc(ranks, sizeof(*all));
    int r = measure_all(&t, &mine, reterr);
    hzp_fence_close(t.fence);
    hzp_lane_close(t.lane);
    hzp_device_free(dev, HZP_MEM_DEVICE, t.from);
    hzp_device_free(dev, HZP_MEM_DEVICE, t.to);
    if (r == HZP_OK)
        r = measure(&t, gather, &mine.seconds[HZP_SELFTEST_LINK], reterr);
    if (r == HZP_OK)
        r = hzp_link_gather(link, &mine, sizeof(mine), all, UINT64_MAX, reterr);
    if (r == HZP_OK)
        r = judge(all, &t, most, reterr);
    if (r == HZP_OK && ret_all)
        memcpy(ret_all, all, ranks * sizeof(*all));
    hzp_device_free(dev, HZP_MEM_DEVICE, t.pieces);
    free(all);
    return r;
}
