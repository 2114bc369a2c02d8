/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/kernels.c - the functions that the compiler's host code calls to register and
   launch kernels. */
#include "tests/cudafake/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS = 1024, SHARED_FREE = 48 << 10, SHARED_MOST = 232448, DEPTH = 16 };

static struct kernel {
    const void *entry;
    const char *name;
    int shared;
} kernel_of[KERNELS];
static int kernels;

static __thread struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} pushed[DEPTH];
static __thread int depth;

static __thread cudaError_t launch_error;

void **__cudaRegisterFatBinary(void *fat);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *size);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *ret, const void *entry);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *fat)
{
    static void *handle;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
}

void __cudaUnregisterFatBinary(void **handle)
{
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name,
                            int limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *size)
{
    if (kernels == KERNELS)
        abort();
    kernel_of[kernels++] = (struct kernel){host, name, SHARED_FREE};
}

static struct kernel *kernel_find(const void *entry)
{
    for (int i = 0; i < kernels; i++)
        if (kernel_of[i].entry == entry)
            return &kernel_of[i];
    return NULL;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    if (depth == DEPTH)
        return 1;
    pushed[depth].grid = grid;
    pushed[depth].block = block;
    pushed[depth].shared = shared;
    pushed[depth++].stream = stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (depth == 0)
        return cudaErrorMissingConfiguration;
    depth--;
    *grid = pushed[depth].grid;
    *block = pushed[depth].block;
    *shared = pushed[depth].shared;
    *(cudaStream_t *)stream = pushed[depth].stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *ret, const void *entry)
{
    *ret = (cudaKernel_t)kernel_find(entry);
    return *ret ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

/* Extracts the source's name from a mangled name. */
static void name_of(const struct kernel *kernel, char *ret, size_t size)
{
    const char *at = kernel->name;
    long length = 0;
    while (*at && !length) { /* _ZN, then lengths and names: the last name is the kernel's */
        while (*at && (*at < '0' || *at > '9'))
            at++;
        char *end;
        long n = strtol(at, &end, 10);
        if (strncmp(end, "_GLOBAL__N", 10) == 0 || strncmp(end, "_INTERNAL", 9) == 0) {
            at = end + n;
            continue;
        }
        at = end;
        length = n;
    }
    snprintf(ret, size, "%.*s", (int)length, at);
}

const char *fake_kernel_name(int i)
{
    static char name[80];
    if (i >= kernels)
        return NULL;
    name_of(&kernel_of[i], name, sizeof(name));
    return name;
}

static bool fits(dim3 d, unsigned x, unsigned y, unsigned z)
{
    return d.x > 0 && d.y > 0 && d.z > 0 && d.x <= x && d.y <= y && d.z <= z;
}

static cudaError_t launch(const struct kernel *kernel, dim3 grid, dim3 block, size_t shared,
                          cudaStream_t handle, bool early)
{
    int error = 0;
    if (fake_fails("launch", &error))
        return (cudaError_t)error;
    struct fake_stream *stream = fake_stream_find(handle, "launch");
    if (!stream)
        return cudaErrorInvalidResourceHandle;
    char name[80];
    name_of(kernel, name, sizeof(name));
    bool right = fits(grid, 2147483647u, 65535, 65535) && fits(block, 1024, 1024, 64) &&
                 block.x * block.y * block.z <= 1024;
    if (!right)
        fake_mistake("%s: a grid of %u x %u x %u blocks of %u x %u x %u threads", name, grid.x,
                     grid.y, grid.z, block.x, block.y, block.z);
    if (shared > (size_t)kernel->shared) {
        fake_mistake("%s: %zu bytes of shared memory, allowed are %d", name, shared,
                     kernel->shared);
        right = false;
    }
    if (!right)
        return cudaErrorInvalidConfiguration;
    struct fake_task *task = fake_put(stream, FAKE_KERNEL);
    memcpy(task->call.name, name, sizeof(name));
    task->call.grid = grid;
    task->call.block = block;
    task->call.shared = shared;
    task->call.early = early;
    fake_put_done(task);
    return cudaSuccess;
}

static cudaError_t enter_launch(const struct kernel *kernel, dim3 grid, dim3 block, size_t shared,
                                cudaStream_t stream, bool early)
{
    fake_enter();
    launch_error = kernel ? launch(kernel, grid, block, shared, stream, early)
                          : cudaErrorInvalidDeviceFunction;
    if (launch_error != cudaSuccess)
        fake_set_last(launch_error);
    fake_leave();
    return launch_error;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream)
{
    return enter_launch((const struct kernel *)kernel, grid, block, shared, stream, false);
}

/* The one attribute that is known: the kernel may begin early. */
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *entry, void **args)
{
    bool early = false;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute *a = &config->attrs[i];
        if (a->id != cudaLaunchAttributeProgrammaticStreamSerialization)
            return cudaErrorInvalidValue;
        early = a->val.programmaticStreamSerializationAllowed;
    }
    return enter_launch(kernel_find(entry), config->gridDim, config->blockDim,
                        config->dynamicSmemBytes, config->stream, early);
}

cudaError_t cudaLaunchKernel(const void *entry, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    return __cudaLaunchKernel((cudaKernel_t)kernel_find(entry), grid, block, args, shared, stream);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *ret, const void *entry)
{
    struct kernel *kernel = kernel_find(entry);
    memset(ret, 0, sizeof(*ret));
    ret->sharedSizeBytes = 1024;
    ret->maxThreadsPerBlock = 1024;
    return kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

cudaError_t cudaFuncSetAttribute(const void *entry, enum cudaFuncAttribute attribute, int value)
{
    struct kernel *kernel = kernel_find(entry);
    if (!kernel)
        return cudaErrorInvalidDeviceFunction;
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value > SHARED_MOST)
            return cudaErrorInvalidValue;
        kernel->shared = value;
    }
    return cudaSuccess;
}
