/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/cudnn_attention.c - attention of training and of prompts: our kernels beside cuDNN, as
 * the backend uses either (device/cuda/cudnn.h).
 *
 *     cudnn_attention [--quick]       on a device: times, and how far the results are apart; quick:
 *                                     training of two shapes, lengths of 1024 and 4096
 *     cudnn_attention --dry DRIVER    without one: cuDNN makes the plans for an H200.  DRIVER is a
 *                                     library that stands in for the driver (no_driver.c)
 *
 * Without cuDNN (HZP_CUDNN says where it is) it says so and ends with 77.
 *
 * On a device two devices of the backend are opened, one that is told to use our kernels
 * (HZP_CUDA_ATTENTION=own), one that is told to use cuDNN.  Documents, or pieces of prompts, have
 * one length.  One JSON object a line: milliseconds of either, operations a second counting the
 * half that the mask leaves.
 */
#include "base/thread.h"
#include "device/bf16.h"
#include "device/cuda/cudnn_graph.h"
#include "device/device.h"
#include "device/fallback.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cuDNN's description of a device, for making plans without that device. */
static const char h200[] =
    "{\"cudaDeviceId\":0,\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"driverVer\":13000,"
    "\"multiProcessorCount\":132,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"maxSharedMemoryPerBlock\":49152,\"reservedSharedMemoryPerBlock\":1024,"
    "\"totalGlobalMem\":150000000000,\"l2CacheSize\":62914560,\"maxThreadsPerSM\":2048,"
    "\"maxCtasPerSM\":32,\"maxRegistersPerSM\":65536,\"maxGridSize\":[2147483647,65535,65535],"
    "\"maxBlockSize\":[1024,1024,64],\"maxThreadsPerBlock\":1024,\"regsPerBlock\":65536,"
    "\"warpSize\":32,\"smClockRateKHz\":1980000,\"memClockRateKHz\":3201000,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"pciDeviceId\":0}";

static const struct hzp_heads shapes[] = {{32, 8, 64}, {24, 8, 128}, {32, 8, 128}, {32, 32, 128}};
static const int lengths[] = {512, 1024, 2048, 4096, 8192};
static const char *const passes[HZP_CUDNN_KINDS] = {"forward", "backward", "prefill"};

enum { ROWS = 8192, PAGE_ROWS = 16, PAGES = ROWS / PAGE_ROWS };

/* ---- without a device ---- */

static struct hzp_cudnn_class class_of(int kind, const struct hzp_heads *h, int32_t rows)
{
    int32_t narrow = h->heads * h->dim, wide = narrow + 2 * h->kv_heads * h->dim;
    bool back = kind == HZP_CUDNN_PACKED_BWD, pages = kind == HZP_CUDNN_PAGED;
    return (struct hzp_cudnn_class){.kind = kind,
                                    .heads = h->heads,
                                    .kv_heads = h->kv_heads,
                                    .dim = h->dim,
                                    .segs = back ? HZP_MIN(4 * ROWS / rows, 32) : 32,
                                    .rows = rows,
                                    .qkv_stride = wide,
                                    .out_stride = narrow,
                                    .dqkv_stride = back ? wide : 0,
                                    .dout_stride = back ? narrow : 0,
                                    .pages = pages ? 20000 : 0,
                                    .page_rows = pages ? PAGE_ROWS : 0,
                                    .page_stride = pages ? PAGES : 0};
}

static bool dry_one(struct hzp_cudnn_library *lib, void *device, const struct hzp_cudnn_class *c)
{
    struct hzp_cudnn_plan plan;
    char why[300] = "";
    uint64_t begun = hzp_now_ns();
    int r = hzp_cudnn_plan_make(lib, NULL, device, c, &plan, why, sizeof(why));
    printf("{\"t\":\"dry\",\"pass\":\"%s\",\"heads\":%d,\"kv_heads\":%d,\"dim\":%d,"
           "\"class\":%d,\"segments\":%d,\"plan\":%s,\"workspace\":%zu,\"ms\":%.0f}\n",
           passes[c->kind], c->heads, c->kv_heads, c->dim, c->rows, c->segs,
           r == 0 ? "true" : "false", plan.space, (double)(hzp_now_ns() - begun) * 1e-6);
    fflush(stdout);
    if (r < 0)
        fprintf(stderr, "%s\n", why);
    else
        hzp_cudnn_plan_free(lib, &plan);
    return r == 0;
}

static int dry(const char *driver)
{
    static const int32_t classes[] = {256, 4096};
    struct hzp_cudnn_library lib;
    char why[200] = "";
    int made = 0, all = 0;
    if (!dlopen(driver, RTLD_NOW | RTLD_GLOBAL)) { /* not closed: it stays for the process's life */
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (!hzp_cudnn_library_open(&lib, why, sizeof(why))) {
        printf("cuDNN: %s\n", why);
        return 77;
    }
    void *device = hzp_cudnn_device_make(&lib, h200);
    for (int kind = 0; device && kind < HZP_CUDNN_KINDS; kind++)
        for (int i = 0; i < HZP_COUNT(shapes); i++)
            for (int k = 0; k < HZP_COUNT(classes); k++) {
                struct hzp_cudnn_class c = class_of(kind, &shapes[i], classes[k]);
                made += dry_one(&lib, device, &c);
                all++;
            }
    printf("%d of %d plans made by cuDNN %zu\n", made, all, lib.version);
    return made == all && all > 0 ? 0 : 1;
}

/* ---- on a device ---- */

enum { RUNS = 7, REPEATS = 4 };

struct side { /* [0]: ours, [1]: cuDNN's */
    struct hzp_device *dev;
    struct hzp_lane *lane;
    struct hzp_fence *fence;
    char *out, *dqkv;
    float *lse;
    int32_t *row0, *pos0, *page;
};

static struct {
    struct side side[2];
    char *qkv, *dout, *keys, *values;
} rig;

#define MUST(call)                                                                                 \
    do {                                                                                           \
        int must_ = (call);                                                                        \
        if (must_ != 0) {                                                                          \
            fprintf(stderr, "cudnn_attention: %s: %d\n", #call, must_);                            \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

static void *take(struct hzp_device *dev, enum hzp_mem where, size_t bytes)
{
    void *p = NULL;
    MUST(hzp_device_alloc(dev, where, bytes, &p));
    return p;
}

static void fill(char *to, size_t elements, uint64_t state)
{
    uint16_t *host = hzp_xmalloc(elements * 2);
    for (size_t i = 0; i < elements; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        host[i] = hzp_bf16_from_f32((float)(int32_t)(state >> 32) * 4.6e-10f);
    }
    MUST(hzp_device_copy(rig.side[0].dev, to, host, elements * 2));
    free(host);
}

static int side_open(struct side *s, const char *who, size_t wide, size_t narrow)
{
    struct hzp_err_text why = {.text = ""};
    setenv("HZP_CUDA_ATTENTION", who, 1);
    if (hzp_device_open(&(struct hzp_device_config){.name = "cuda"}, &s->dev, &why) < 0) {
        printf("%s\n", why.text);
        return 77;
    }
    hzp_device_prepare_attention(
        s->dev, &(struct hzp_attention_use){.heads = {32, 32, 128}, .rows = ROWS, .scale = 0.1f});
    hzp_device_prepare_attention(
        s->dev, &(struct hzp_attention_use){.heads = {32, 8, 128}, .rows = ROWS, .scale = 0.1f});
    MUST(hzp_lane_open(s->dev, HZP_BOUND_COMPUTE, &s->lane));
    MUST(hzp_fence_open(s->dev, &s->fence));
    s->out = take(s->dev, HZP_MEM_DEVICE, narrow);
    s->dqkv = take(s->dev, HZP_MEM_DEVICE, wide);
    s->lse = take(s->dev, HZP_MEM_DEVICE, (size_t)ROWS * 32 * 4);
    s->row0 = take(s->dev, HZP_MEM_HOST, (ROWS / 512 + 1) * sizeof(int32_t));
    s->pos0 = take(s->dev, HZP_MEM_HOST, (ROWS / 512 + 1) * sizeof(int32_t));
    s->page = take(s->dev, HZP_MEM_HOST, (size_t)PAGES * (ROWS / 512) * sizeof(int32_t));
    return 0;
}

static int rig_open(void)
{
    size_t wide = (size_t)ROWS * 96 * 128 * 2, narrow = (size_t)ROWS * 32 * 128 * 2;
    static const char *const who[] = {"own", "cudnn"};
    for (int i = 0; i < 2; i++) {
        int r = side_open(&rig.side[i], who[i], wide, narrow);
        if (r != 0)
            return r;
    }
    struct hzp_device *dev = rig.side[0].dev;
    rig.qkv = take(dev, HZP_MEM_DEVICE, wide);
    rig.dout = take(dev, HZP_MEM_DEVICE, narrow);
    rig.keys = take(dev, HZP_MEM_DEVICE, narrow);
    rig.values = take(dev, HZP_MEM_DEVICE, narrow);
    fill(rig.qkv, wide / 2, 1);
    fill(rig.dout, narrow / 2, 2);
    fill(rig.keys, narrow / 2, 3);
    fill(rig.values, narrow / 2, 4);
    return 0;
}

/* Segments of one length; those of prompts in pages that are far from one another. */
static void divide(struct side *s, int length)
{
    int count = ROWS / length, per = length / PAGE_ROWS;
    for (int i = 0; i <= count; i++) {
        s->row0[i] = i * length;
        s->pos0[i] = 0;
    }
    for (int i = 0; i < count; i++)
        for (int p = 0; p < PAGES; p++)
            s->page[i * PAGES + p] = (i * per + p) * 37 % PAGES;
}

static void issue(struct side *s, int kind, struct hzp_heads h, int length)
{
    int32_t narrow = h.heads * h.dim, wide = narrow + 2 * h.kv_heads * h.dim;
    struct hzp_mat qkv = {rig.qkv, ROWS, wide, wide, HZP_BF16}, dqkv = qkv;
    struct hzp_mat out = {s->out, ROWS, narrow, narrow, HZP_BF16}, dout = out;
    struct hzp_segs segs = {s->row0, s->pos0, ROWS / length, length, length};
    float scale = 1 / sqrtf((float)h.dim);
    dqkv.ptr = s->dqkv;
    dout.ptr = rig.dout;
    struct hzp_attn_packed_args to = {qkv, out, {0}, s->lse, segs, h, scale, 0, 0};
    struct hzp_attn_packed_bwd_args from = {qkv,    out,  dout, dqkv,  {0}, {0},
                                            s->lse, segs, h,    scale, 0,   0};
    struct hzp_attn_prefill_args pages = {.qkv = qkv,
                                          .out = out,
                                          .kv = {.k = rig.keys,
                                                 .v = rig.values,
                                                 .pages = PAGES,
                                                 .page_rows = PAGE_ROWS,
                                                 .type = HZP_BF16},
                                          .segs = segs,
                                          .page = s->page,
                                          .page_stride = PAGES,
                                          .heads = h,
                                          .scale = scale};
    MUST(kind == HZP_CUDNN_PACKED       ? hzp_op_attn_packed(s->lane, &to)
         : kind == HZP_CUDNN_PACKED_BWD ? hzp_op_attn_packed_bwd(s->lane, &from)
                                        : hzp_op_attn_prefill(s->lane, &pages));
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The largest difference relative to the largest value. */
static double apart(const char *a, const char *b, size_t elements)
{
    uint16_t *host[2];
    double most = 0, off = 0;
    for (int i = 0; i < 2; i++) {
        host[i] = hzp_xmalloc(elements * 2);
        MUST(hzp_device_copy(rig.side[0].dev, host[i], i ? b : a, elements * 2));
    }
    for (size_t i = 0; i < elements; i++) {
        double x = (double)hzp_bf16_to_f32(host[0][i]), y = (double)hzp_bf16_to_f32(host[1][i]);
        most = fmax(most, fabs(x));
        off = isnan(y) ? INFINITY : fmax(off, fabs(x - y));
    }
    free(host[0]);
    free(host[1]);
    return most > 0 ? off / most : off;
}

static double median_of(double *ms)
{
    qsort(ms, RUNS, sizeof(*ms), by_time);
    return ms[RUNS / 2];
}

/* Forward must run before backward, which reads its results.  false: refused, or different. */
static bool measure(int kind, struct hzp_heads h, int length)
{
    double ms[2][RUNS];
    size_t columns = (size_t)(kind == HZP_CUDNN_PACKED_BWD ? h.heads + 2 * h.kv_heads : h.heads);
    uint64_t before = hzp_device_fallbacks(rig.side[1].dev, HZP_FALLBACK_cudnn);
    for (int run = -1; run < RUNS; run++) /* in turns; the first is not counted */
        for (int who = 0; who < 2; who++) {
            struct side *s = &rig.side[who];
            divide(s, length);
            uint64_t begun = hzp_now_ns();
            for (int i = 0; i < REPEATS; i++)
                issue(s, kind, h, length);
            MUST(hzp_fence_record(s->fence, s->lane));
            MUST(hzp_fence_wait(s->fence));
            if (run >= 0)
                ms[who][run] = (double)(hzp_now_ns() - begun) * 1e-6 / REPEATS;
        }
    bool refused = hzp_device_fallbacks(rig.side[1].dev, HZP_FALLBACK_cudnn) > before;
    double ours = median_of(ms[0]), theirs = median_of(ms[1]);
    double spread = 0; /* the distance of the quartiles over the median, the larger one's */
    for (int who = 0; who < 2; who++)
        spread =
            fmax(spread, (ms[who][RUNS - 1 - RUNS / 4] - ms[who][RUNS / 4]) / ms[who][RUNS / 2]);
    double flops =
        (kind == HZP_CUDNN_PACKED_BWD ? 10.0 : 4.0) * ROWS * length / 2 * h.heads * h.dim;
    bool back = kind == HZP_CUDNN_PACKED_BWD;
    double off = apart(back ? rig.side[0].dqkv : rig.side[0].out,
                       back ? rig.side[1].dqkv : rig.side[1].out, ROWS * columns * (size_t)h.dim);
    printf("{\"t\":\"cudnn\",\"pass\":\"%s\",\"heads\":%d,\"kv_heads\":%d,\"dim\":%d,\"length\":%d,"
           "\"ours_ms\":%.4f,\"ours_tflops\":%.1f,\"repeats\":%d,\"spread\":%.4f",
           passes[kind], h.heads, h.kv_heads, h.dim, length, ours, flops / ours * 1e-9, RUNS,
           spread);
    if (!refused)
        printf(",\"cudnn_ms\":%.4f,\"cudnn_tflops\":%.1f,\"ours_over_cudnn\":%.3f,\"apart\":%.4f",
               theirs, flops / theirs * 1e-9, theirs / ours, off);
    printf("}\n");
    fflush(stdout);
    return !refused && off < 0.05;
}

static bool is_quick(int kind, const struct hzp_heads *h, int length)
{
    return kind != HZP_CUDNN_PAGED && h->kv_heads == 8 && h->dim == 128 &&
           (length == 1024 || length == 4096);
}

static int run(bool quick)
{
    struct hzp_cudnn_library lib;
    char why[200];
    int wrong = 0;
    if (!hzp_cudnn_library_open(&lib, why, sizeof(why))) {
        printf("cuDNN: %s\n", why);
        return 77;
    }
    hzp_cudnn_library_close(&lib);
    int r = rig_open();
    if (r != 0)
        return r;
    for (int i = 0; i < HZP_COUNT(shapes); i++)
        for (int k = 0; k < HZP_COUNT(lengths); k++)
            for (int kind = 0; kind < HZP_CUDNN_KINDS; kind++)
                if (!quick || is_quick(kind, &shapes[i], lengths[k]))
                    wrong += !measure(kind, shapes[i], lengths[k]);
    if (wrong)
        printf("FAIL: %d cases refused or different\n", wrong);
    return wrong > 0;
}

int main(int argc, char **argv)
{
    return argc > 2 && strcmp(argv[1], "--dry") == 0
               ? dry(argv[2])
               : run(argc > 1 && strcmp(argv[1], "--quick") == 0);
}
