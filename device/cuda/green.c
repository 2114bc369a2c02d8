/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/green.c - divides the SMs into green contexts.
 *
 * The driver's functions are looked up by name, because the program must start without a driver.
 * What a split gives, its remainder too, may not be split again: so the SMs are split once, into
 * groups of equal size, of which a part has several.  That takes the driver a few milliseconds, so
 * splits are made at the start, kept for the device's life and looked up by the wanted numbers of
 * SMs.  Each costs a context and two streams per part: there are at most SPLITS.  Those that fail
 * are remembered, too, and tried three times each.
 */
#include "device/cuda/cuda.h"

#include <cuda.h>

#include "base/log.h"
#include "device/fallback.h"

#define DRIVER(X)                                                                                  \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetDevResource)                                                                      \
    X(cuDevSmResourceSplitByCount)                                                                 \
    X(cuDevResourceGenerateDesc)                                                                   \
    X(cuGreenCtxCreate)                                                                            \
    X(cuGreenCtxDestroy)                                                                           \
    X(cuGreenCtxStreamCreate)

enum { SPLITS = 24, TRIES_MAX = 3, GROUPS_MAX = 128 };

struct part {
    CUgreenCtx context;
    cudaStream_t stream, urgent; /* urgent: of the highest priority */
    int sms;
};

struct split {
    int want[HZP_CUDA_PARTS_MAX], parts;
    struct part part[HZP_CUDA_PARTS_MAX];
};

/* A split that could not be made. */
struct refusal {
    int want[HZP_CUDA_PARTS_MAX], parts, times;
    int code; /* HZP_ENOMEM, or HZP_EUNSUP */
};

struct hzp_cuda_green {
    CUdevice device;
    struct split split[SPLITS];
    int splits;
    struct refusal refusal[SPLITS];
    int refusals;
#define X(name) __typeof__(&name) name;
    DRIVER(X)
#undef X
};

static int refused(const char *what, CUresult error)
{
    hzp_log(HZP_LOG_WARN, "cuda", "no green context: %s (%d)", what, (int)error);
    return error == CUDA_ERROR_OUT_OF_MEMORY ? HZP_ENOMEM : HZP_EUNSUP;
}

/* Looks up a function in the version of the header this was compiled with: structs have that
 * layout. */
static int find(const char *name, void **ret)
{
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, ret, CUDA_VERSION, cudaEnableDefault, &result);
    if (error == cudaSuccess && result == cudaDriverEntryPointSuccess && *ret)
        return HZP_OK;
    cudaGetLastError();
    return refused(name, (CUresult)0);
}

const char *hzp_cuda_loading(void)
{
    CUresult (*mode_of)(CUmoduleLoadingMode *) = NULL;
    CUmoduleLoadingMode mode = CU_MODULE_LAZY_LOADING;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error = cudaGetDriverEntryPointByVersion(
        "cuModuleGetLoadingMode", (void **)&mode_of, CUDA_VERSION, cudaEnableDefault, &result);
    if (error != cudaSuccess)
        cudaGetLastError();
    if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || !mode_of ||
        mode_of(&mode) != CUDA_SUCCESS)
        return "unknown";
    return mode == CU_MODULE_EAGER_LOADING ? "at-once" : "when-launched";
}

static int green_open(struct hzp_cuda_device *dev)
{
    struct hzp_cuda_green *g = calloc(1, sizeof(*g));
    int r = HZP_OK;
    if (!g)
        return HZP_ENOMEM;
#define X(name)                                                                                    \
    if (r == HZP_OK)                                                                               \
        r = find(#name, (void **)&g->name);
    DRIVER(X)
#undef X
    if (r == HZP_OK) {
        CUresult error = g->cuDeviceGet(&g->device, dev->ordinal);
        r = error == CUDA_SUCCESS ? HZP_OK : refused("cuDeviceGet", error);
    }
    if (r < 0) {
        free(g);
        return HZP_ENOENT;
    }
    dev->green = g;
    return HZP_OK;
}

static void split_close(struct hzp_cuda_green *g, struct split *split)
{
    for (int i = 0; i < split->parts; i++) {
        if (split->part[i].stream)
            cudaStreamDestroy(split->part[i].stream);
        if (split->part[i].urgent)
            cudaStreamDestroy(split->part[i].urgent);
        if (split->part[i].context)
            g->cuGreenCtxDestroy(split->part[i].context);
    }
    memset(split, 0, sizeof(*split));
}

/* Makes a part of these groups, which one split gave. */
static int part_open(struct hzp_cuda_green *g, CUdevResource *group, int groups, struct part *ret)
{
    CUdevResourceDesc desc;
    CUresult error = g->cuDevResourceGenerateDesc(&desc, group, (unsigned)groups);
    if (error == CUDA_SUCCESS)
        error = g->cuGreenCtxCreate(&ret->context, desc, g->device, CU_GREEN_CTX_DEFAULT_STREAM);
    if (error == CUDA_SUCCESS)
        error = g->cuGreenCtxStreamCreate(&ret->stream, ret->context, CU_STREAM_NON_BLOCKING,
                                          hzp_cuda_priority(HZP_BOUND_COMPUTE));
    if (error == CUDA_SUCCESS)
        error = g->cuGreenCtxStreamCreate(&ret->urgent, ret->context, CU_STREAM_NON_BLOCKING,
                                          hzp_cuda_priority(HZP_BOUND_NETWORK));
    if (error != CUDA_SUCCESS)
        return refused("the driver makes none", error);
    for (int i = 0; i < groups; i++)
        ret->sms += (int)group[i].sm.smCount;
    return HZP_OK;
}

/* The parts that have groups: if there are several, the last one has what is left. */
static int grouped(const struct split *split)
{
    return HZP_MAX(split->parts - 1, 1);
}

/* The largest size of a group of which each of these parts has a whole number: SMs of one group are
 * the closest to each other. */
static int group_size(const struct split *split)
{
    int size = 0;
    for (int i = 0; i < grouped(split); i++) {
        int rest = HZP_ROUND_UP(split->want[i], (int)HZP_CUDA_PART_STEP);
        while (rest) {
            int next = size % rest;
            size = rest;
            rest = next;
        }
    }
    return size;
}

/* Splits the device's SMs into the groups of all parts but the last, and what is left. */
static CUresult groups_make(struct hzp_cuda_green *g, const struct split *split, int size,
                            CUdevResource group[GROUPS_MAX], CUdevResource *left)
{
    CUdevResource all;
    unsigned wanted = 0;
    CUresult error = g->cuDeviceGetDevResource(g->device, &all, CU_DEV_RESOURCE_TYPE_SM);
    for (int i = 0; i < grouped(split); i++)
        wanted += (unsigned)HZP_DIV_UP(split->want[i], size);
    unsigned made = HZP_MIN(wanted, (unsigned)GROUPS_MAX);
    if (error == CUDA_SUCCESS)
        error = g->cuDevSmResourceSplitByCount(group, &made, &all, left, 0, (unsigned)size);
    bool few = error == CUDA_SUCCESS && made != wanted;
    return few ? CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION : error;
}

/* The driver may make fewer groups of a size than there are SMs for: then of the smallest. */
static int split_open(struct hzp_cuda_green *g, struct split *split)
{
    CUdevResource left, group[GROUPS_MAX];
    int size = group_size(split), at = 0;
    CUresult error = groups_make(g, split, size, group, &left);
    if (error != CUDA_SUCCESS && size > HZP_CUDA_PART_STEP)
        error = groups_make(g, split, size = HZP_CUDA_PART_STEP, group, &left);
    if (error != CUDA_SUCCESS)
        return refused("cuDevSmResourceSplitByCount", error);
    for (int i = 0; i < split->parts; i++) {
        bool last = i == grouped(split);
        int count = last ? 1 : HZP_DIV_UP(split->want[i], size);
        HZP_TRY(part_open(g, last ? &left : group + at, count, &split->part[i]));
        at += count;
    }
    return HZP_OK;
}

/* The split with the same number of parts and the smallest sum of differences; NULL: there is
 * none. */
static struct split *nearest(struct hzp_cuda_green *g, const int *want, int parts)
{
    struct split *best = NULL;
    int best_off = INT_MAX;
    for (int i = 0; i < g->splits; i++) {
        int off = 0;
        for (int k = 0; k < parts && k < g->split[i].parts; k++)
            off += abs(g->split[i].want[k] - want[k]);
        if (g->split[i].parts == parts && off < best_off) {
            best = &g->split[i];
            best_off = off;
        }
    }
    return best;
}

static int split_add(struct hzp_cuda_green *g, const int *want, int parts, struct split **ret)
{
    struct split *split = &g->split[g->splits];
    split->parts = parts;
    memcpy(split->want, want, (size_t)parts * sizeof(*want));
    int r = split_open(g, split);
    if (r < 0) {
        split_close(g, split);
        return r;
    }
    g->splits++;
    *ret = split;
    return HZP_OK;
}

/* The refusal of this split, which is new if it has not failed before; it then replaces the oldest
 * if there are SPLITS. */
static struct refusal *refusal_of(struct hzp_cuda_green *g, const int *want, int parts)
{
    int i = 0;
    while (i < g->refusals &&
           (g->refusal[i].parts != parts ||
            memcmp(g->refusal[i].want, want, (size_t)parts * sizeof(*want)) != 0))
        i++;
    if (i == SPLITS) {
        memmove(g->refusal, g->refusal + 1, (SPLITS - 1) * sizeof(g->refusal[0]));
        i = --g->refusals;
    }
    if (i == g->refusals) {
        g->refusals++;
        g->refusal[i] = (struct refusal){.parts = parts};
        memcpy(g->refusal[i].want, want, (size_t)parts * sizeof(*want));
    }
    return &g->refusal[i];
}

/* Makes a split, unless that has failed too often.  HZP_ENOMEM: the driver has no memory for it;
 * HZP_EUNSUP: it cannot be made. */
static int split_try(struct hzp_cuda_green *g, const int *want, int parts, struct split **ret)
{
    struct refusal *refusal = refusal_of(g, want, parts);
    if (refusal->times == TRIES_MAX)
        return refusal->code;
    int r = split_add(g, want, parts, ret);
    if (r == HZP_OK) {
        size_t later = (size_t)(&g->refusal[g->refusals--] - refusal) - 1;
        memmove(refusal, refusal + 1, later * sizeof(*refusal));
        return r;
    }
    refusal->times++;
    refusal->code = r;
    return r;
}

int hzp_cuda_green_split(struct hzp_cuda_device *dev, const int *want, const bool *urgent,
                         int parts, cudaStream_t *ret_stream, int *ret_sms)
{
    if (!dev->green)
        HZP_TRY(green_open(dev));
    struct hzp_cuda_green *g = dev->green;
    struct split *split = nearest(g, want, parts);
    if (!split || memcmp(split->want, want, (size_t)parts * sizeof(*want)) != 0) {
        bool full = g->splits == SPLITS;
        int r = full ? HZP_ENOMEM : split_try(g, want, parts, &split);
        if (r < 0 && (r != HZP_ENOMEM || !split))
            return HZP_EUNSUP;
        if (r < 0)
            hzp_device_fallback(&dev->base, HZP_FALLBACK_share, parts, want[0], 0,
                                full ? "all splits of the SMs are taken: the nearest is used"
                                     : "no memory for a split of the SMs: the nearest is used");
    }
    for (int i = 0; i < parts; i++) {
        ret_stream[i] = urgent[i] ? split->part[i].urgent : split->part[i].stream;
        ret_sms[i] = split->part[i].sms;
    }
    return HZP_OK;
}

void hzp_cuda_green_close(struct hzp_cuda_device *dev)
{
    if (!dev->green)
        return;
    for (int i = 0; i < dev->green->splits; i++)
        split_close(dev->green, &dev->green->split[i]);
    free(dev->green);
    dev->green = NULL;
}
