/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/driver.c - the driver's functions that the backend looks up by name: green
 * contexts; and what it takes of the device's memory.
 *
 * The bytes that the header reserves for the driver have the position of a resource, and the split
 * that it comes from.
 */
#include "tests/cudafake/core.h"

#include <stdlib.h>
#include <string.h>

enum { STEP = 8 };

/* ---- memory ---- */

static size_t loads, most_used;
size_t fake_loaded;

void fake_set_loaded(size_t bytes)
{
    loads = bytes;
    fake_loaded = 0;
}

void fake_load(void)
{
    fake_loaded = loads;
}

size_t fake_most_used(void)
{
    return most_used;
}

bool fake_exceeds(void)
{
    size_t used = fake_used();
    if (used > fake_memory)
        return true;
    most_used = most_used > used ? most_used : used;
    return false;
}

static CUresult loading_mode(CUmoduleLoadingMode *ret)
{
    bool eager = strcmp(fake_loading(), "EAGER") == 0;
    *ret = eager ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

/* ---- green contexts ---- */

static CUresult get(CUdevice *ret, int ordinal)
{
    *ret = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

struct origin {
    int from, split; /* split 0: the device's */
};

static void place(CUdevResource *resource, int from, int to, int split)
{
    struct origin origin = {from, split};
    memset(resource, 0, sizeof(*resource));
    resource->type = CU_DEV_RESOURCE_TYPE_SM;
    resource->sm.smCount = (unsigned)(to - from);
    memcpy(resource->_internal_padding, &origin, sizeof(origin));
}

static struct origin origin_of(const CUdevResource *resource)
{
    struct origin origin;
    memcpy(&origin, resource->_internal_padding, sizeof(origin));
    return origin;
}

static CUresult resource_of(CUdevice device, CUdevResource *ret, CUdevResourceType type)
{
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    place(ret, 0, fake_sms, 0);
    return CUDA_SUCCESS;
}

static CUresult mistaken(const char *what)
{
    fake_enter();
    fake_mistake("%s", what);
    fake_leave();
    return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

/* As the header's text has it: what a split gives, its remainder too, may not be split again. */
static CUresult split(CUdevResource *ret, unsigned *groups, const CUdevResource *input,
                      CUdevResource *remaining, unsigned flags, unsigned least)
{
    static int splits;
    int have = (int)input->sm.smCount, size = ((int)least + STEP - 1) / STEP * STEP, error = 0;
    fake_enter();
    bool fails = fake_fails("cuDevSmResourceSplitByCount", &error);
    fake_leave();
    if (fails)
        return (CUresult)error;
    if (origin_of(input).split)
        return mistaken("a split of what a split gave");
    if (least < 1 || size > have || *groups < 1)
        return mistaken("a split of more SMs than there are");
    if (*groups > (unsigned)(have / size))
        *groups = (unsigned)(have / size);
    splits++;
    for (unsigned i = 0; i < *groups; i++)
        place(&ret[i], (int)i * size, (int)(i + 1) * size, splits);
    if (remaining)
        place(remaining, (int)*groups * size, have, splits);
    return CUDA_SUCCESS;
}

/* Several resources are to come from one split; here they lie one behind the other, too. */
static CUresult describe(CUdevResourceDesc *ret, CUdevResource *resources, unsigned count)
{
    static CUdevResource kept;
    struct origin first = origin_of(resources);
    int to = first.from + (int)resources->sm.smCount;
    for (unsigned i = 1; i < count; i++) {
        if (!first.split || origin_of(&resources[i]).split != first.split)
            return mistaken("a descriptor of several splits");
        if (origin_of(&resources[i]).from != to)
            return mistaken("a descriptor of parts that the recorder does not join");
        to += (int)resources[i].sm.smCount;
    }
    place(&kept, first.from, to, first.split);
    *ret = (CUdevResourceDesc)&kept;
    return count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult context_new(CUgreenCtx *ret, CUdevResourceDesc desc, CUdevice device,
                            unsigned flags)
{
    int error = 0;
    const CUdevResource *resource = (const CUdevResource *)desc;
    fake_enter();
    if (fake_fails("cuGreenCtxCreate", &error)) {
        fake_leave();
        return (CUresult)error;
    }
    if (flags != CU_GREEN_CTX_DEFAULT_STREAM)
        fake_mistake("cuGreenCtxCreate: the flag is required");
    fake_make("cuGreenCtxCreate");
    struct fake_context *context = fake_object_new(FAKE_CONTEXT, sizeof(*context));
    context->from = origin_of(resource).from;
    context->to = context->from + (int)resource->sm.smCount;
    if (fake_exceeds()) {
        fake_object_free(context);
        fake_leave();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ret = (CUgreenCtx)context;
    fake_leave();
    return CUDA_SUCCESS;
}

static CUresult context_free(CUgreenCtx handle)
{
    fake_enter();
    struct fake_context *context = fake_object_find(handle, FAKE_CONTEXT, "cuGreenCtxDestroy");
    if (context && context->streams > 0)
        fake_mistake("cuGreenCtxDestroy: %d of its streams live", context->streams);
    if (context)
        fake_object_free(context);
    fake_leave();
    return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult stream_new(CUstream *ret, CUgreenCtx handle, unsigned flags, int priority)
{
    fake_enter();
    struct fake_context *context = fake_object_find(handle, FAKE_CONTEXT, "cuGreenCtxStreamCreate");
    if (flags != CU_STREAM_NON_BLOCKING)
        fake_mistake("cuGreenCtxStreamCreate: only streams that do not block");
    if (context) {
        struct fake_stream *stream = fake_object_new(FAKE_STREAM, sizeof(*stream));
        stream->priority = priority;
        stream->index = fake_index_take();
        stream->context = context;
        context->streams++;
        *ret = (CUstream)stream;
    }
    fake_leave();
    return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* The rules of the driver's manual that row_map_make (device/cuda/machine.cuh) could break. */
static CUresult map_encode(CUtensorMap *ret, CUtensorMapDataType type, cuuint32_t rank, void *base,
                           const cuuint64_t *size, const cuuint64_t *apart, const cuuint32_t *box,
                           const cuuint32_t *step, CUtensorMapInterleave interleave,
                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                           CUtensorMapFloatOOBfill fill)
{
    cuuint32_t most = swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 128 : 64;
    bool right = rank == 3 && type == CU_TENSOR_MAP_DATA_TYPE_UINT8 && (uintptr_t)ret % 64 == 0 &&
                 (uintptr_t)base % 16 == 0 && box[0] % 16 == 0 && box[0] <= most &&
                 interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
                 fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE &&
                 promotion <= CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    for (cuuint32_t i = 0; i < rank && right; i++)
        right = size[i] >= 1 && size[i] <= (cuuint64_t)1 << 32 && box[i] >= 1 && box[i] <= 256 &&
                step[i] == 1 && (i + 1 == rank || (apart[i] % 16 == 0 && apart[i] >> 40 == 0));
    if (!right) {
        fake_enter();
        fake_mistake("cuTensorMapEncodeTiled: a map that the driver refuses");
        fake_leave();
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset(ret, 0, sizeof(*ret));
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **ret, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result)
{
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
        {"cuDeviceGet", (void *)get},
        {"cuDeviceGetDevResource", (void *)resource_of},
        {"cuDevSmResourceSplitByCount", (void *)split},
        {"cuDevResourceGenerateDesc", (void *)describe},
        {"cuGreenCtxCreate", (void *)context_new},
        {"cuGreenCtxDestroy", (void *)context_free},
        {"cuGreenCtxStreamCreate", (void *)stream_new},
        {"cuTensorMapEncodeTiled", (void *)map_encode},
        {"cuModuleGetLoadingMode", (void *)loading_mode},
    };
    int error = 0;
    fake_enter();
    bool fails = fake_fails("cudaGetDriverEntryPointByVersion", &error);
    fake_leave();
    *ret = NULL;
    *result = cudaDriverEntryPointSymbolNotFound;
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]) && !fails; i++)
        if (strcmp(functions[i].name, name) == 0) {
            *ret = functions[i].function;
            *result = cudaDriverEntryPointSuccess;
        }
    return fails ? (cudaError_t)error : cudaSuccess;
}
