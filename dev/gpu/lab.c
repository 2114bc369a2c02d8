/* SPDX-License-Identifier: Apache-2.0 */
#include "lab.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct lab lab;
static FILE *records;

void lab_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    if (records)
        fflush(records);
    exit(3);
}

void lab_check_cuda(cudaError_t e, const char *what, const char *file, int line)
{
    if (e != cudaSuccess)
        lab_die("%s:%d: %s: %s", file, line, what, cudaGetErrorString(e));
}

void lab_check_cu(CUresult e, const char *what, const char *file, int line)
{
    const char *text = "unknown";
    if (e == CUDA_SUCCESS)
        return;
    cuGetErrorString(e, &text);
    lab_die("%s:%d: %s: %s", file, line, what, text);
}

void lab_check_lt(cublasStatus_t e, const char *what, const char *file, int line)
{
    if (e != CUBLAS_STATUS_SUCCESS)
        lab_die("%s:%d: %s: %s", file, line, what, cublasLtGetStatusString(e));
}

void lab_record(const char *table, const char *format, ...)
{
    va_list args;
    fprintf(records, "{\"t\":\"%s\"", table);
    if (*format)
        fputc(',', records);
    va_start(args, format);
    vfprintf(records, format, args);
    va_end(args);
    fputs("}\n", records);
    fflush(records);
}

static void plain_lane(struct lab_lane *lane, int priority, void *space)
{
    memset(lane, 0, sizeof *lane);
    LAB_CUDA(cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking, priority));
    lane->sms = lab.sms;
    lane->space = space;
}

void lab_open(const char *path)
{
    int low, high, driver, runtime;
    struct cudaDeviceProp prop;

    records = fopen(path, "a");
    if (!records)
        lab_die("%s: cannot be opened", path);
    LAB_CUDA(cudaSetDevice(0));
    LAB_CUDA(cudaFree(NULL));
    LAB_CUDA(cudaGetDeviceProperties(&prop, 0));
    LAB_CUDA(cudaDriverGetVersion(&driver));
    LAB_CUDA(cudaRuntimeGetVersion(&runtime));
    lab.sms = prop.multiProcessorCount;
    LAB_LT(cublasLtCreate(&lab.lt));
    LAB_CUDA(cudaDeviceGetStreamPriorityRange(&low, &high));
    for (int i = 0; i < 2; i++)
        lab.spaces[i] = lab_memory(LAB_SPACE, 0);
    plain_lane(&lab.main, 0, lab.spaces[0]);
    plain_lane(&lab.low, low, lab.spaces[1]);
    plain_lane(&lab.high, high, lab.spaces[0]);
    LAB_CUDA(cudaStreamCreateWithPriority(&lab.gate, cudaStreamNonBlocking, high));
    LAB_CUDA(cudaHostAlloc((void **)&lab.flag, 4096, cudaHostAllocMapped));
    lab_record("device",
               "\"name\":\"%s\",\"sms\":%d,\"l2_mb\":%.1f,\"memory_gib\":%.1f,\"cuda_driver\":%d,"
               "\"cuda_runtime\":%d,\"cublaslt\":%zu,\"priorities\":[%d,%d]",
               prop.name, prop.multiProcessorCount, prop.l2CacheSize / 1048576.0,
               (double)prop.totalGlobalMem / (1 << 30), driver, runtime, cublasLtGetVersion(), low,
               high);
}

void lab_close(void)
{
    LAB_CUDA(cudaDeviceSynchronize());
    fclose(records);
    records = NULL;
}

void *lab_memory(size_t bytes, float scale)
{
    static uint32_t seed = 1;
    void *p;
    LAB_CUDA(cudaMalloc(&p, bytes));
    if (scale != 0)
        LAB_CUDA(lab_fill(p, bytes / 2, scale, seed++, NULL));
    else
        LAB_CUDA(cudaMemset(p, 0xff, bytes));
    LAB_CUDA(cudaStreamSynchronize(NULL));
    return p;
}

/* ---- green contexts ---------------------------------------------------------------------- */

static bool green_lane(struct lab_lane *lane, CUdevResource *res, void *space)
{
    CUdevResourceDesc desc;
    CUstream stream;
    memset(lane, 0, sizeof *lane);
    if (cuDevResourceGenerateDesc(&desc, res, 1) != CUDA_SUCCESS ||
        cuGreenCtxCreate(&lane->green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS)
        return false;
    if (cuGreenCtxStreamCreate(&stream, lane->green, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS)
        return false;
    lane->stream = stream;
    lane->sms = (int)res->sm.smCount;
    lane->target = lane->sms;
    lane->space = space;
    return true;
}

bool lab_green_open(int k, struct lab_lane *few, struct lab_lane *rest)
{
    CUdevResource all, part, left;
    unsigned groups = 1;
    CUresult e;
    double from;

    memset(few, 0, sizeof *few);
    memset(rest, 0, sizeof *rest);
    LAB_CU(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    e = cuDevSmResourceSplitByCount(&part, &groups, &all, &left, 0, (unsigned)k);
    if (e != CUDA_SUCCESS || groups != 1) {
        lab_record("green_refused", "\"sms\":%d,\"error\":%d,\"groups\":%u", k, (int)e, groups);
        return false;
    }
    from = lab_now();
    if (!green_lane(few, &part, lab.spaces[0]) ||
        (left.sm.smCount > 0 && !green_lane(rest, &left, lab.spaces[1]))) {
        lab_record("green_refused", "\"sms\":%d,\"error\":-1,\"groups\":%u", k, groups);
        lab_green_close(few, rest);
        return false;
    }
    lab_record("green_open", "\"asked\":%d,\"few\":%d,\"rest\":%d,\"ms\":%.2f", k, few->sms,
               rest->sms, (lab_now() - from) * 1e3);
    return true;
}

void lab_green_close(struct lab_lane *few, struct lab_lane *rest)
{
    struct lab_lane *both[2] = {few, rest};
    for (int i = 0; i < 2; i++) {
        if (both[i]->stream) {
            LAB_CUDA(cudaStreamSynchronize(both[i]->stream));
            LAB_CUDA(cudaStreamDestroy(both[i]->stream));
        }
        if (both[i]->green)
            LAB_CU(cuGreenCtxDestroy(both[i]->green));
        memset(both[i], 0, sizeof *both[i]);
    }
}

/* ---- attention's memory ------------------------------------------------------------------ */

void lab_cache_open(struct lab_cache *c, int64_t tokens, int page_tokens)
{
    c->pages = (int)((tokens + page_tokens - 1) / page_tokens);
    c->page_tokens = page_tokens;
    c->pool = lab_memory((size_t)c->pages * (size_t)page_tokens * 2 * LAB_KV * LAB_DIM * 2, 1.0f);
}

static uint32_t draw(void)
{
    static uint64_t s = 88172645463325252ULL;
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return (uint32_t)(s >> 16);
}

static void *to_device(const void *host, size_t bytes)
{
    void *p;
    LAB_CUDA(cudaMalloc(&p, bytes));
    LAB_CUDA(cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice));
    return p;
}

void lab_attn_open(struct lab_attn *a, const struct lab_cache *c, int batch, int context, int first)
{
    int pages = (context + c->page_tokens - 1) / c->page_tokens;
    int need = batch * pages;
    int32_t *order, *tiles, *len;

    if (first + need > c->pages)
        lab_die("attention: %d pages wanted, the pool has %d", first + need, c->pages);
    order = malloc(sizeof *order * (size_t)need);
    tiles = malloc(sizeof *tiles * ((size_t)batch + 1));
    len = malloc(sizeof *len * (size_t)batch);
    if (!order || !tiles || !len)
        lab_die("attention: out of memory");
    for (int i = 0; i < need; i++)
        order[i] = first + i;
    for (int i = need - 1; i > 0; i--) {
        int j = (int)(draw() % (uint32_t)(i + 1));
        int32_t t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    for (int i = 0; i < batch; i++) {
        tiles[i] = i * ((context + LAB_TILE - 1) / LAB_TILE);
        len[i] = context;
    }
    tiles[batch] = batch * ((context + LAB_TILE - 1) / LAB_TILE);
    memset(a, 0, sizeof *a);
    a->pool = c->pool;
    a->pages = to_device(order, sizeof *order * (size_t)need);
    a->tiles = to_device(tiles, sizeof *tiles * ((size_t)batch + 1));
    a->len = to_device(len, sizeof *len * (size_t)batch);
    a->q_stride = LAB_HEADS * LAB_DIM;
    a->q = lab_memory((size_t)batch * 4096 * 2, 1.0f);
    a->out = lab_memory((size_t)batch * 4096 * 2, 0);
    a->part = lab_memory((size_t)lab.sms * 16 * 2 * LAB_GROUP * (LAB_DIM + 2) * 4, 0);
    a->batch = batch;
    a->max_pages = pages;
    a->page_shift = 0;
    while ((1 << a->page_shift) < c->page_tokens)
        a->page_shift++;
    LAB_CU(lab_attn_map(a, c->pages));
    free(order);
    free(tiles);
    free(len);
}

void lab_attn_close(struct lab_attn *a)
{
    LAB_CUDA(cudaFree((void *)a->pages));
    LAB_CUDA(cudaFree((void *)a->tiles));
    LAB_CUDA(cudaFree((void *)a->len));
    LAB_CUDA(cudaFree((void *)a->q));
    LAB_CUDA(cudaFree(a->out));
    LAB_CUDA(cudaFree(a->part));
}

double lab_attn_bytes(int batch, int context)
{
    return (double)batch * context * 2 * LAB_KV * LAB_DIM * 2;
}

int lab_attn_blocks(int v, int sms)
{
    struct lab_attn_variant t;
    LAB_CUDA(lab_attn_prepare(v, &t));
    if (t.per_sm < 1)
        lab_die("attention variant %d does not fit an SM", v);
    return sms * t.per_sm;
}
