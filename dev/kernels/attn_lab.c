/* SPDX-License-Identifier: Apache-2.0 */
/* dev/kernels/attn_lab.c - speed of attention on the CPU relative to the machine's limits.
 *
 * attn_decode over pages at random places, with all layers' pages in turn so that they come from
 * memory, as a share of the read bandwidth measured in between; attn_prefill and attn_packed as
 * a share of oneDNN's product, measured at the start.  bf16, medians.  Figures:
 * docs/measurements.
 *
 *     attn_lab decode|prefill [TURNS [THREADS]]
 */
#include "base/thread.h"
#include "device/bf16.h"
#include "device/cpu/cpu.h"
#include "dev/bench/limits.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_ROWS = 16, TURNS_MAX = 99, READ_TASKS = 256 };
static const size_t POOL = (size_t)512 << 20;

static struct hzp_lane *lane;
static char *pool;
static uint64_t sum[HZP_CPU_THREADS_MAX];
static int turns = 7;

static void read_task(void *ctx, int task, int thread)
{
    const size_t words = POOL / READ_TASKS / 8;
    const uint64_t *p = (const uint64_t *)pool + (size_t)task * words;
    uint64_t s[4] = {0};

    (void)ctx;
    for (size_t i = 0; i < words; i += 4)
        for (int k = 0; k < 4; k++)
            s[k] += p[i + (size_t)k];
    sum[thread] += s[0] + s[1] + s[2] + s[3];
}

static int by_size(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *x)
{
    qsort(x, (size_t)turns, sizeof(*x), by_size);
    return x[turns / 2];
}

static void *array(size_t size)
{
    void *ptr;
    if (hzp_device_alloc(lane->dev, HZP_MEM_DEVICE, size, &ptr) < 0)
        exit(1);
    return ptr;
}

static void noise(void *ptr, size_t count)
{
    uint32_t seed = 1;
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((uint16_t *)ptr)[i] = hzp_bf16_from_f32((float)(int)(seed >> 16) / 16384.f - 2.f);
    }
}

/* Page numbers in random order. */
static int32_t *pages_make(int pages)
{
    int32_t *page = array((size_t)pages * sizeof(*page));
    for (int i = 0; i < pages; i++)
        page[i] = i;
    for (int i = pages - 1; i > 0; i--) {
        int j = rand() % (i + 1);
        int32_t was = page[i];
        page[i] = page[j];
        page[j] = was;
    }
    return page;
}

struct shape {
    int seqs, rows, before; /* of each sequence: rows of this step, positions before them */
    struct hzp_heads heads;
};

static struct hzp_attn_paged_args args_make(const struct shape *s)
{
    int context = s->before + s->rows, per = HZP_DIV_UP(context, PAGE_ROWS);
    int rows = s->seqs * s->rows, dim = s->heads.dim;
    int width = (s->heads.heads + 2 * s->heads.kv_heads) * dim, out = s->heads.heads * dim;
    int32_t *row0 = array((size_t)(s->seqs + 1) * 4), *pos0 = array((size_t)s->seqs * 4);

    for (int i = 0; i <= s->seqs; i++)
        row0[i] = i * s->rows;
    for (int i = 0; i < s->seqs; i++)
        pos0[i] = s->before;
    struct hzp_attn_paged_args a = {
        .qkv = {array((size_t)rows * (size_t)width * 2), rows, width, width, HZP_BF16},
        .out = {array((size_t)rows * (size_t)out * 2), rows, out, out, HZP_BF16},
        .kv = {.pages = s->seqs * per, .page_rows = PAGE_ROWS, .type = HZP_BF16},
        .segs = {row0, pos0, s->seqs, s->rows, context},
        .page = pages_make(s->seqs * per),
        .page_stride = per,
        .heads = s->heads,
        .scale = 1 / sqrtf((float)dim)};
    noise(a.qkv.ptr, (size_t)rows * (size_t)width);
    return a;
}

static void args_drop(struct hzp_attn_paged_args *a)
{
    void *ptr[] = {a->qkv.ptr, a->out.ptr, (void *)a->segs.row0, (void *)a->segs.pos0,
                   (void *)a->page};
    for (int i = 0; i < HZP_COUNT(ptr); i++)
        hzp_device_free(lane->dev, HZP_MEM_DEVICE, ptr[i]);
}

static void decode_run(const struct shape *s)
{
    struct hzp_attn_paged_args a = args_make(s);
    size_t side = (size_t)a.kv.pages * (size_t)(s->heads.kv_heads * PAGE_ROWS * s->heads.dim) * 2;
    int layers = (int)HZP_MIN(HZP_MAX(POOL / 2 / side, 1), 64);
    double bytes = 4.0 * (s->before + 1) * s->seqs * s->heads.kv_heads * s->heads.dim * layers;
    double rate[TURNS_MAX], reads[TURNS_MAX];

    for (int t = -1; t < turns; t++) {
        uint64_t begin = hzp_now_ns();
        for (int l = 0; l < layers; l++) {
            a.kv.k = pool + (size_t)l * 2 * side;
            a.kv.v = pool + (size_t)l * 2 * side + side;
            if (hzp_op_attn_decode(lane, &a) < 0)
                exit(1);
        }
        uint64_t middle = hzp_now_ns();
        hzp_team_run(hzp_cpu_team(lane), READ_TASKS, read_task, NULL);
        if (t >= 0) {
            rate[t] = bytes / (double)(middle - begin);
            reads[t] = (double)POOL / (double)(hzp_now_ns() - middle);
        }
    }
    double rate_mid = median(rate), reads_mid = median(reads);
    printf("decode %2d x %4d %2d/%dx%-3d | %5.1f GB/s, %.0f %% of %.1f\n", s->seqs, s->before + 1,
           s->heads.heads, s->heads.kv_heads, s->heads.dim, rate_mid, 100 * rate_mid / reads_mid,
           reads_mid);
    fflush(stdout);
    args_drop(&a);
}

static void prefill_run(const struct shape *s, double peak)
{
    struct hzp_attn_paged_args a = args_make(s);
    struct hzp_attn_packed_args b = {
        .qkv = a.qkv, .out = a.out, .segs = a.segs, .heads = a.heads, .scale = a.scale};
    double rate[2][TURNS_MAX];

    a.kv.k = pool;
    a.kv.v = pool + POOL / 2;
    for (int t = -1; t < turns; t++)
        for (int packed = 0; packed < 2; packed++) {
            enum hzp_op op = packed ? HZP_OP_attn_packed : HZP_OP_attn_prefill;
            const void *args = packed ? (const void *)&b : (const void *)&a;
            double flops = (double)hzp_op_cost(op, args).flops;
            int reps = (int)(1e9 / flops) + 1;
            if (packed && s->before > 0)
                continue;
            uint64_t begin = hzp_now_ns();
            for (int i = 0; i < reps; i++)
                if (hzp_lane_issue(lane, op, args) < 0)
                    exit(1);
            if (t >= 0)
                rate[packed][t] = flops * reps / (double)(hzp_now_ns() - begin);
        }
    for (int packed = 0; packed < 2 - (s->before > 0); packed++) {
        double mid = median(rate[packed]);
        printf("%s %d x %4d after %3d %2d/%dx%-3d | %4.0f GFLOP/s, %.0f %%\n",
               packed ? "packed " : "prefill", s->seqs, s->rows, s->before, s->heads.heads,
               s->heads.kv_heads, s->heads.dim, mid, 100 * mid / peak);
    }
    fflush(stdout);
    args_drop(&a);
}

static void all_prefill(void)
{
    static const struct shape shape[] = {
        {1, 512, 0, {9, 3, 64}},   {1, 1024, 0, {9, 3, 64}},  {1, 256, 768, {9, 3, 64}},
        {8, 64, 0, {9, 3, 64}},    {4, 512, 0, {9, 3, 64}},   {1, 512, 0, {32, 8, 64}},
        {1, 1024, 0, {32, 8, 64}}, {1, 512, 0, {32, 8, 128}}, {1, 512, 0, {14, 2, 64}},
    };
    struct hzp_limits limits = {0}, after = {0};

    if (hzp_device_limits(lane->dev, &limits) < 0)
        exit(1);
    printf("bf16 product %.0f GFLOP/s\n", limits.gemm_bf16 * 1e-9);
    for (int i = 0; i < HZP_COUNT(shape); i++)
        prefill_run(&shape[i], limits.gemm_bf16 * 1e-9);
    if (hzp_device_limits(lane->dev, &after) < 0)
        exit(1);
    printf("bf16 product after %.0f GFLOP/s\n", after.gemm_bf16 * 1e-9);
}

static void all_decode(void)
{
    static const struct shape shape[] = {
        {16, 1, 255, {9, 3, 64}},  {32, 1, 255, {9, 3, 64}},   {16, 1, 1023, {9, 3, 64}},
        {32, 1, 2047, {9, 3, 64}}, {16, 1, 511, {32, 8, 64}},  {16, 1, 2047, {32, 8, 64}},
        {16, 1, 511, {14, 2, 64}}, {16, 1, 511, {32, 8, 128}}, {4, 1, 1023, {9, 3, 64}},
        {1, 1, 2047, {9, 3, 64}},
    };
    for (int i = 0; i < HZP_COUNT(shape); i++)
        decode_run(&shape[i]);
}

int main(int argc, char **argv)
{
    struct hzp_device_config config = {.name = "cpu", .threads = argc > 3 ? atoi(argv[3]) : 0};
    struct hzp_device *dev;
    struct hzp_err_text err;

    if (argc > 2)
        turns = atoi(argv[2]);
    turns = HZP_MAX(1, HZP_MIN(turns, TURNS_MAX));
    if (hzp_device_open(&config, &dev, &err) < 0 ||
        hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("%s\n", dev->label);
    pool = array(POOL);
    noise(pool, POOL / 2);
    if (argc > 1 && strcmp(argv[1], "prefill") == 0)
        all_prefill();
    else
        all_decode();
    hzp_device_free(dev, HZP_MEM_DEVICE, pool);
    hzp_lane_close(lane);
    hzp_device_close(dev);
    return 0;
}
