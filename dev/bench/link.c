/* SPDX-License-Identifier: Apache-2.0 */
/* bench link: how fast the ranks of a run exchange data.
 *
 * Every rank runs all transfers, rank 0 reports.  A figure is the median of several runs: the time
 * from posting to done, and the bytes that each rank sends by that time. */
#include "dev/bench/link.h"

#include "dev/bench/bench.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

enum { RUNS = 9, RUNS_QUICK = 3 };

struct measured {
    const char *name;
    enum hzp_transfer_op op;
    enum hzp_wire type;
};

static const struct measured all[] = {{"all-gather", HZP_ALL_GATHER, HZP_WIRE_BYTE},
                                      {"reduce-scatter", HZP_REDUCE_SCATTER, HZP_WIRE_F32},
                                      {"all-reduce", HZP_ALL_REDUCE, HZP_WIRE_F32},
                                      {"broadcast", HZP_BROADCAST, HZP_WIRE_BYTE}};

static int run(struct hzp_link *link, const struct hzp_transfer *transfer, double *seconds,
               struct hzp_err_text *reterr)
{
    hzp_ticket ticket;
    uint64_t began = hzp_now_ns();
    HZP_TRY(hzp_link_post(link, transfer, &ticket, reterr));
    HZP_TRY(hzp_link_wait(link, ticket, reterr));
    *seconds = (double)(hzp_now_ns() - began) * 1e-9;
    return HZP_OK;
}

/* Ranks begin together: a sum of nothing much first. */
static int align(struct hzp_link *link, struct hzp_err_text *reterr)
{
    uint64_t one = 1;
    double seconds;
    struct hzp_transfer t = {.op = HZP_ALL_REDUCE,
                             .type = HZP_WIRE_U64,
                             .count = 1,
                             .send = &one,
                             .recv = &one,
                             .host = true};
    return run(link, &t, &seconds, reterr);
}

/* One operation on `bytes` bytes in all; buffers hold that many. */
static int measure(struct hzp_bench *b, struct hzp_link *link, const struct measured *m,
                   size_t bytes, char *send, char *recv, struct hzp_err_text *reterr)
{
    int ranks = hzp_link_ranks(link), runs = b->quick ? RUNS_QUICK : RUNS;
    double seconds[RUNS];
    size_t size = hzp_wire_size(m->type);
    bool pieces = m->op == HZP_ALL_GATHER || m->op == HZP_REDUCE_SCATTER;
    struct hzp_transfer t = {.op = m->op,
                             .type = m->type,
                             .count = bytes / size / (size_t)(pieces ? ranks : 1),
                             .send = send,
                             .recv = recv};
    for (int i = 0; i < runs; i++) {
        HZP_TRY(align(link, reterr));
        HZP_TRY(run(link, &t, &seconds[i], reterr));
    }
    if (hzp_link_rank(link))
        return HZP_OK;
    char name[64];
    double median = hzp_bench_quantile(seconds, runs, 0.5);
    double wire = (double)hzp_transfer_bytes(t.op, t.type, ranks, t.count);
    snprintf(name, sizeof(name), "%s, %zu KiB", m->name, bytes / 1024);
    hzp_bench_plain(b, name, median * 1e3, "ms");
    snprintf(name, sizeof(name), "%s, %zu KiB, sent by a rank", m->name, bytes / 1024);
    hzp_bench_plain(b, name, wire / median * 1e-9, "GB/s");
    return HZP_OK;
}

static void *open_buffer(struct hzp_device *dev, size_t bytes)
{
    void *buffer = NULL;
    if (!dev)
        return calloc(1, bytes);
    if (hzp_device_alloc(dev, HZP_MEM_DEVICE, bytes, &buffer) == HZP_OK)
        hzp_device_zero(dev, buffer, bytes);
    return buffer;
}

static void close_buffer(struct hzp_device *dev, void *buffer)
{
    if (dev)
        hzp_device_free(dev, HZP_MEM_DEVICE, buffer);
    else
        free(buffer);
}

int hzp_bench_link(struct hzp_link *link, struct hzp_device *dev,
                   const struct hzp_bench_settings *settings, struct hzp_err_text *reterr)
{
    static const size_t sizes[] = {4096, 1u << 20, 32u << 20};
    struct hzp_bench b = {.settings = settings, .quick = settings->quick, .figures = json_array()};
    size_t most = sizes[HZP_COUNT(sizes) - 1] + 4096;
    char *send = open_buffer(dev, most), *recv = open_buffer(dev, most);
    int r = send && recv ? HZP_OK : hzp_fail(reterr, HZP_ENOMEM, "bench link: no memory");
    for (int i = 0; r == HZP_OK && i < HZP_COUNT(sizes); i++)
        for (int k = 0; r == HZP_OK && k < HZP_COUNT(all); k++)
            r = measure(&b, link, &all[k], sizes[i], send, recv, reterr);
    if (r == HZP_OK && hzp_link_rank(link) == 0) {
        if (!settings->json)
            printf("%d ranks, link %s\n", hzp_link_ranks(link), hzp_link_backend(link));
        hzp_bench_print(&b);
        char *text = settings->json ? json_dumps(b.figures, JSON_INDENT(2)) : NULL;
        if (text)
            printf("%s\n", text);
        free(text);
    }
    close_buffer(dev, send);
    close_buffer(dev, recv);
    json_decref(b.figures);
    return r;
}
