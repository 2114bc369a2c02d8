/* SPDX-License-Identifier: Apache-2.0 */
/* dev/kernels/matmul_lab.c - finds the fastest multiplication for each shape.
 *
 * Prints, for the products of a model's forward pass (NT), input gradient (NN) and weight gradient
 * (TN): oneDNN with its own threads, then in turns oneDNN's single-threaded primitives on our team
 * and the op's own choice, with the ratio to the library; each result is checked against the first.
 * Where the library has no product of the type, the op stands alone, unchecked.  Figures and the
 * decision: matmul_lab.md.
 *
 *     matmul_lab [f32|bf16] [nt|nn|tn] [M ...]
 */
#include "base/thread.h"
#include "device/bf16.h"
#include "device/cpu/matmul.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNS = 9 };

static struct hzp_lane *lane;
static dnnl_engine_t engine;
static dnnl_stream_t stream;
static void (*omp_threads)(int);

static int by_time(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static struct hzp_mat mat_make(int rows, int cols, enum hzp_dtype type, unsigned seed)
{
    struct hzp_mat mat = {NULL, rows, cols, cols, type};
    size_t count = (size_t)rows * (size_t)cols;

    if (hzp_device_alloc(lane->dev, HZP_MEM_DEVICE, count * hzp_dtype_size(type), &mat.ptr) < 0)
        exit(1);
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        float x = (float)(int)(seed >> 8 & 0xffff) / 65536.f - 0.5f;
        if (type == HZP_BF16)
            ((uint16_t *)mat.ptr)[i] = hzp_bf16_from_f32(x);
        else
            ((float *)mat.ptr)[i] = x;
    }
    return mat;
}

static void mat_drop(struct hzp_mat *mat)
{
    hzp_device_free(lane->dev, HZP_MEM_DEVICE, mat->ptr);
}

/* Runs oneDNN with as many OpenMP threads as the device has. */
static double library_own_threads(const struct hzp_matmul_args *a, int threads)
{
    bool bf16 = a->a.type == HZP_BF16;
    dnnl_data_type_t type = bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_dim_t k = a->trans_a ? a->a.rows : a->a.cols;
    dnnl_dims_t da = {a->c.rows, k}, db = {k, a->c.cols}, dc = {a->c.rows, a->c.cols};
    dnnl_dims_t sa = {a->trans_a ? 1 : a->a.stride, a->trans_a ? a->a.stride : 1};
    dnnl_dims_t sb = {a->trans_b ? 1 : a->b.stride, a->trans_b ? a->b.stride : 1};
    dnnl_dims_t sc = {a->c.stride, 1};
    dnnl_memory_desc_t ma, mb, mc;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t made;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t arg[3] = {{DNNL_ARG_SRC, 0}, {DNNL_ARG_WEIGHTS, 0}, {DNNL_ARG_DST, 0}};
    double time[RUNS];

    omp_threads(threads);
    dnnl_memory_desc_init_by_strides(&ma, 2, da, type, sa);
    dnnl_memory_desc_init_by_strides(&mb, 2, db, type, sb);
    dnnl_memory_desc_init_by_strides(&mc, 2, dc, a->c.type == HZP_BF16 ? dnnl_bf16 : dnnl_f32, sc);
    dnnl_matmul_desc_init(&desc, &ma, &mb, NULL, &mc);
    if (dnnl_primitive_desc_create(&made, &desc, NULL, engine, NULL) != dnnl_success)
        return NAN;
    dnnl_primitive_create(&primitive, made);
    dnnl_memory_create(&arg[0].memory, &ma, engine, a->a.ptr);
    dnnl_memory_create(&arg[1].memory, &mb, engine, a->b.ptr);
    dnnl_memory_create(&arg[2].memory, &mc, engine, a->c.ptr);
    for (int i = 0; i < RUNS; i++) {
        uint64_t t0 = hzp_now_ns();
        dnnl_primitive_execute(primitive, stream, 3, arg);
        dnnl_stream_wait(stream);
        time[i] = (double)(hzp_now_ns() - t0);
    }
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(arg[i].memory);
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(made);
    omp_threads(1);
    qsort(time, RUNS, sizeof(*time), by_time);
    return time[RUNS / 2];
}

typedef int way_fn(struct hzp_lane *on, const struct hzp_matmul_args *args);

static int way_auto(struct hzp_lane *on, const struct hzp_matmul_args *args)
{
    return hzp_op_matmul(on, args);
}

struct way {
    const char *name;
    way_fn *way;
    double time[RUNS];
};

/* Times all ways in turns, because the machine's speed may vary over time. */
static void ways_time(struct way *ways, int count, const struct hzp_matmul_args *a)
{
    for (int i = 0; i < RUNS; i++)
        for (int w = 0; w < count; w++) {
            struct way *way = &ways[(w + i) % count];
            uint64_t t0 = hzp_now_ns();
            if (way->way(lane, a) < 0)
                exit(1);
            way->time[i] = (double)(hzp_now_ns() - t0);
        }
    for (int w = 0; w < count; w++)
        qsort(ways[w].time, RUNS, sizeof(*ways[w].time), by_time);
}

/* The largest difference relative to the largest value. */
static double mat_miss(const struct hzp_mat *x, const struct hzp_mat *y)
{
    double top = 1e-30, miss = 0;
    for (size_t i = 0; i < (size_t)x->rows * (size_t)x->cols; i++) {
        double p =
            x->type == HZP_BF16 ? hzp_bf16_to_f32(((uint16_t *)x->ptr)[i]) : ((float *)x->ptr)[i];
        double q =
            y->type == HZP_BF16 ? hzp_bf16_to_f32(((uint16_t *)y->ptr)[i]) : ((float *)y->ptr)[i];
        top = fmax(top, fabs(p));
        miss = isfinite(q) ? fmax(miss, fabs(p - q)) : INFINITY;
    }
    return miss / top;
}

static void case_run(enum hzp_dtype type, const char *form, int m, int n, int k)
{
    struct hzp_matmul_args a = {.trans_a = form[0] == 't', .trans_b = form[1] == 't'};
    enum hzp_dtype c_type = form[0] == 't' ? HZP_F32 : type;
    double flops = 2.0 * m * n * k, weight = (double)n * k * (double)hzp_dtype_size(type);
    struct hzp_mat c, ref;
    struct way ways[] = {{"library", hzp_cpu_matmul_library, {0}}, {"auto", way_auto, {0}}};
    int count = HZP_COUNT(ways);

    a.a = a.trans_a ? mat_make(k, m, type, 1) : mat_make(m, k, type, 1);
    a.b = a.trans_b ? mat_make(n, k, type, 2) : mat_make(k, n, type, 2);
    c = mat_make(m, n, c_type, 3);
    ref = mat_make(m, n, c_type, 4);
    a.c = ref;
    double t = library_own_threads(&a, lane->dev->threads);
    usleep(20000); /* its threads keep polling for work for a while */
    printf("%-4s %s %5d x %6d x %5d | own threads %9.1f us %6.1f GF/s", type ? "bf16" : "f32", form,
           m, n, k, t / 1e3, flops / t);
    a.c = c;
    struct way *from = hzp_cpu_matmul_library(lane, &a) < 0 ? ways + 1 : ways;
    count -= (int)(from - ways);
    ways_time(from, count, &a);
    for (int i = 0; i < count; i++) {
        t = from[i].time[RUNS / 2];
        memset(c.ptr, 0, 64);
        if (from[i].way(lane, &a) < 0)
            exit(1);
        printf(" | %s %9.1f us %6.1f GF/s %5.1f GB/s %.3f x", from[i].name, t / 1e3, flops / t,
               weight / t, from[0].time[RUNS / 2] / t);
        if (from == ways)
            printf(", miss %.0e", mat_miss(&ref, &c));
    }
    printf("\n");
    fflush(stdout);
    mat_drop(&a.a);
    mat_drop(&a.b);
    mat_drop(&c);
    mat_drop(&ref);
}

int main(int argc, char **argv)
{
    static const int shape[][2] = {{960, 576},   {3072, 576},   {576, 1536}, {12288, 576},
                                   {3072, 2048}, {16384, 2048}, {2048, 8192}};
    struct hzp_device_config config = {.name = "cpu"};
    struct hzp_device *dev;
    struct hzp_err_text err;
    enum hzp_dtype type = argc > 1 && strcmp(argv[1], "f32") == 0 ? HZP_F32 : HZP_BF16;
    const char *form = argc > 2 ? argv[2] : "nt";

    if (hzp_device_open(&config, &dev, &err) < 0 ||
        hzp_lane_open(dev, HZP_BOUND_COMPUTE, &lane) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("%s\n", dev->label);
    *(void **)&omp_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    dnnl_engine_create(&engine, dnnl_cpu, 0);
    dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    for (int i = 3; i < argc; i++)
        for (int s = 0; s < HZP_COUNT(shape); s++) {
            int m = atoi(argv[i]), out = shape[s][0], in = shape[s][1];
            if (strcmp(form, "nt") == 0)
                case_run(type, form, m, out, in);
            else if (strcmp(form, "nn") == 0)
                case_run(type, form, m, in, out);
            else
                case_run(type, form, out, in, m);
        }
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    hzp_lane_close(lane);
    hzp_device_close(dev);
    return 0;
}
