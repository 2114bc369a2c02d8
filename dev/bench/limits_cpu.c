/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/limits_cpu.c - measures the machine's limits: memory reads, and oneDNN's matrix
 * product.
 *
 * The product is measured under the best conditions for the library: its own choice of layout for
 * every matrix, converted outside the timed part, one product per thread at the same time, in
 * cache-friendly sizes. Our own ops have none of these advantages, so their ratio to this limit is
 * conservative.
 */
#include "dev/bench/limits.h"

#include "base/thread.h"
#include "device/cpu/cpu.h"
#include "device/cpu/matmul.h"

#include <dnnl.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 7, RUNS_NOW = 2, READ_TASKS = 256, SIDE = 1024, PRODUCTS = 2, LINE_WORDS = 64 / 8 };
enum { WORDS = 8 * LINE_WORDS }; /* a task reads a multiple: a line of each of eight streams */

struct reading {
    const uint64_t *words;
    size_t words_each;
    int streams;   /* that one task reads */
    uint64_t *sum; /* [threads]: keeps the reads from being optimized away */
};

/* A line of memory from each of several places in turn, each place in the order of memory: some
 * CPUs fetch several streams a core faster than one. */
static void read_task(void *ctx, int task, int thread)
{
    const struct reading *r = ctx;
    const size_t stream = r->words_each / (size_t)r->streams;
    const uint64_t *p = r->words + (size_t)task * r->words_each;
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (size_t i = 0; i + LINE_WORDS <= stream; i += LINE_WORDS)
        for (int s = 0; s < r->streams; s++) {
            const uint64_t *line = p + (size_t)s * stream + i;
            for (size_t k = 0; k < LINE_WORDS; k += 4) {
                s0 += line[k];
                s1 += line[k + 1];
                s2 += line[k + 2];
                s3 += line[k + 3];
            }
        }
    r->sum[thread] += s0 + s1 + s2 + s3;
}

/* Bytes per second of reading the memory, `runs` times in each of several ways.  ret_mean: of the
 * fastest way, over its runs; ret_best: of the fastest run. */
static int measure_reads(struct hzp_lane *lane, const void *memory, size_t bytes, int runs,
                         double *ret_mean, double *ret_best)
{
    static const int streams[] = {1, 2, 4, 8};
    struct hzp_team *team = hzp_cpu_team(lane);
    const size_t words = bytes / READ_TASKS / sizeof(uint64_t), each = words / WORDS * WORDS;
    double rate, all[HZP_COUNT(streams)] = {0};
    uint64_t *sum = calloc((size_t)hzp_team_threads(team), sizeof(*sum));
    if (!sum)
        return HZP_ENOMEM;
    *ret_mean = *ret_best = 0;
    for (int run = 0; run < runs * HZP_COUNT(streams); run++) {
        int way = run % HZP_COUNT(streams);
        struct reading reading = {memory, each, streams[way], sum};
        uint64_t begin = hzp_now_ns();
        hzp_team_run(team, READ_TASKS, read_task, &reading);
        double seconds = (double)(hzp_now_ns() - begin) * 1e-9;
        rate = (double)(each * sizeof(uint64_t) * READ_TASKS) / seconds;
        *ret_best = HZP_MAX(*ret_best, rate);
        all[way] += seconds;
    }
    for (int way = 0; way < HZP_COUNT(streams); way++) {
        rate = (double)(each * sizeof(uint64_t) * READ_TASKS) * runs / all[way];
        *ret_mean = HZP_MAX(*ret_mean, rate);
    }
    free(sum);
    return HZP_OK;
}

/* The same of memory of its own, far larger than the caches. */
static int measure_own_reads(struct hzp_lane *lane, double *ret)
{
    const size_t bytes = (size_t)512 << 20;
    double mean;
    void *memory;
    HZP_TRY(hzp_device_alloc(lane->dev, HZP_MEM_DEVICE, bytes, &memory));
    memset(memory, 1, bytes);
    int r = measure_reads(lane, memory, bytes, RUNS, &mean, ret);
    hzp_device_free(lane->dev, HZP_MEM_DEVICE, memory);
    return r;
}

/* The library keeps to the device's level: called before its first product, or it has no effect.
 * Below avx512_bf16 no op of the device calls the library, so nothing else is measured by it. */
static void keep_to_level(const struct hzp_cpu_device *dev)
{
    static const dnnl_cpu_isa_t isa[] = {[HZP_CPU_BASE] = dnnl_cpu_isa_sse41,
                                         [HZP_CPU_AVX2] = dnnl_cpu_isa_avx2,
                                         [HZP_CPU_AVX512] = dnnl_cpu_isa_avx512_core};
    if (dev->isa < HZP_CPU_AVX512_BF16)
        dnnl_set_max_cpu_isa(isa[dev->isa]);
}

/* One product with the library's own layouts. */
struct product {
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[3];
};

struct products {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct product *product; /* [threads] */
};

static bool product_make(struct products *all, struct product *p, dnnl_data_type_t type)
{
    static const dnnl_query_t query[] = {dnnl_query_src_md, dnnl_query_weights_md,
                                         dnnl_query_dst_md};
    dnnl_memory_desc_t any[3];
    dnnl_dims_t dims = {SIDE, SIDE};
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t made = NULL;
    for (int i = 0; i < 3; i++)
        if (dnnl_memory_desc_init_by_tag(&any[i], 2, dims, i == 2 ? dnnl_f32 : type,
                                         dnnl_format_tag_any) != dnnl_success)
            return false;
    bool ok = dnnl_matmul_desc_init(&desc, &any[0], &any[1], NULL, &any[2]) == dnnl_success &&
              dnnl_primitive_desc_create(&made, &desc, NULL, all->engine, NULL) == dnnl_success;
    for (int i = 0; ok && i < 3; i++) {
        const dnnl_memory_desc_t *md = dnnl_primitive_desc_query_md(made, query[i], 0);
        ok = dnnl_memory_create(&p->memory[i], md, all->engine, DNNL_MEMORY_ALLOCATE) ==
             dnnl_success;
        void *data = NULL;
        ok = ok && dnnl_memory_get_data_handle(p->memory[i], &data) == dnnl_success;
        /* Small normal numbers in either type: 0x3c3c is 0.0115 in bf16 and f32. */
        if (ok)
            memset(data, 0x3c, dnnl_memory_desc_get_size(md));
    }
    ok = ok && dnnl_primitive_create(&p->primitive, made) == dnnl_success;
    if (made)
        dnnl_primitive_desc_destroy(made);
    return ok;
}

/* Runs a thread's own product repeatedly. */
static void product_task(void *ctx, int task, int thread)
{
    struct products *all = ctx;
    struct product *p = &all->product[task];
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->memory[0]},
                              {DNNL_ARG_WEIGHTS, p->memory[1]},
                              {DNNL_ARG_DST, p->memory[2]}};
    hzp_cpu_library_alone();
    for (int i = 0; i < PRODUCTS; i++)
        dnnl_primitive_execute(p->primitive, all->stream, HZP_COUNT(args), args);
    dnnl_stream_wait(all->stream);
}

static double products_rate(struct hzp_team *team, struct products *all)
{
    int threads = hzp_team_threads(team);
    double flops = 2.0 * SIDE * SIDE * SIDE * PRODUCTS * threads, best = 0;
    for (int run = 0; run < RUNS; run++) {
        uint64_t begin = hzp_now_ns();
        hzp_team_run(team, threads, product_task, all);
        double rate = flops / ((double)(hzp_now_ns() - begin) * 1e-9);
        best = HZP_MAX(best, rate);
    }
    return best;
}

/* Operations per second; 0: the library has no product of this type here. */
static double measure_products(struct hzp_lane *lane, dnnl_data_type_t type)
{
    struct hzp_team *team = hzp_cpu_team(lane);
    int threads = hzp_team_threads(team);
    struct products all = {.product = calloc((size_t)threads, sizeof(*all.product))};
    double rate = 0;
    hzp_cpu_library_alone();
    bool ok =
        all.product && dnnl_engine_create(&all.engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&all.stream, all.engine, dnnl_stream_default_flags) == dnnl_success;
    for (int t = 0; ok && t < threads; t++)
        ok = product_make(&all, &all.product[t], type);
    if (ok)
        rate = products_rate(team, &all);
    for (int t = 0; all.product && t < threads; t++) {
        for (int i = 0; i < 3; i++)
            if (all.product[t].memory[i])
                dnnl_memory_destroy(all.product[t].memory[i]);
        if (all.product[t].primitive)
            dnnl_primitive_destroy(all.product[t].primitive);
    }
    if (all.stream)
        dnnl_stream_destroy(all.stream);
    if (all.engine)
        dnnl_engine_destroy(all.engine);
    free(all.product);
    return rate;
}

int hzp_cpu_limits(struct hzp_device *dev, struct hzp_limits *ret)
{
    struct hzp_lane *lane;
    memset(ret, 0, sizeof(*ret));
    HZP_TRY(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane));
    int r = measure_own_reads(lane, &ret->read_bytes_per_s);
    ret->reads_vary = true;
    keep_to_level((const struct hzp_cpu_device *)dev);
    ret->gemm_f32 = measure_products(lane, dnnl_f32);
    ret->gemm_bf16 = measure_products(lane, dnnl_bf16);
    hzp_lane_close(lane);
    return r;
}

int hzp_cpu_read_rate(struct hzp_device *dev, const void *memory, size_t bytes, double *ret)
{
    struct hzp_lane *lane;
    double best;
    HZP_TRY(hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane));
    int r = measure_reads(lane, memory, bytes, RUNS_NOW, ret, &best);
    hzp_lane_close(lane);
    return r;
}
