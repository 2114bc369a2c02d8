/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/about.c - reports the toolkit this was built with, and the GPUs of this machine.
 * Creates no context on any of them. */
#include "device/cuda/cudnn.h"

#include <cublas_api.h>
#include <dlfcn.h>

#include "device/about.h"

/* The version of the cuBLASLt that would be loaded; 0: none was found. */
static size_t library_version(void)
{
    void *library = hzp_cuda_library_open();
    size_t (*version)(void);
    if (!library)
        return 0;
    *(void **)&version = dlsym(library, "cublasLtGetVersion");
    size_t ret = version ? version() : 0;
    dlclose(library);
    return ret;
}

/* Without it attention is computed by our own kernels. */
static void add_cudnn(struct hzp_about *ret)
{
    char why[120] = "";
    size_t found = hzp_cudnn_version(why, sizeof(why));
    if (found)
        hzp_fact_add(ret->machine, &ret->machines, "cuDNN", "%zu.%zu.%zu", found / 10000,
                     found / 100 % 100, found % 100);
    else
        hzp_fact_add(ret->machine, &ret->machines, "cuDNN", "%s", why);
}

static void add_device(struct hzp_about *ret, int ordinal)
{
    struct cudaDeviceProp prop;
    if (cudaGetDeviceProperties(&prop, ordinal) != cudaSuccess) {
        cudaGetLastError();
        return;
    }
    struct hzp_about_device *d = &ret->device[ret->devices++];
    d->ordinal = ordinal;
    snprintf(d->name, sizeof(d->name), "%.90s", prop.name);
    hzp_device_id_text(&prop.uuid, d->id);
    d->memory = prop.totalGlobalMem;
    d->cores = prop.multiProcessorCount;
    hzp_fact_add(d->fact, &d->facts, "compute capability", "%d.%d%s", prop.major, prop.minor,
                 prop.major < 8 ? ", too old: 8.0 is the least" : "");
}

void hzp_cuda_about(struct hzp_about *ret)
{
    int count = 0, driver = 0;
    hzp_cuda_load_whole();
    size_t found = library_version();
    hzp_fact_add(ret->build, &ret->builds, "CUDA", "%d.%d", CUDART_VERSION / 1000,
                 CUDART_VERSION % 1000 / 10);
    hzp_fact_add(ret->build, &ret->builds, "kernels for", "%s", HZP_CUDA_GPUS);
    hzp_fact_add(ret->build, &ret->builds, "cuBLASLt", "%d.%d.%d", CUBLAS_VER_MAJOR,
                 CUBLAS_VER_MINOR, CUBLAS_VER_PATCH);
    if (found)
        hzp_fact_add(ret->machine, &ret->machines, "cuBLASLt", "%zu.%zu.%zu", found / 10000,
                     found / 100 % 100, found % 100);
    else
        hzp_fact_add(ret->machine, &ret->machines, "cuBLASLt",
                     "not found: say where it is in HZP_CUBLASLT");
    add_cudnn(ret);
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver)
        hzp_fact_add(ret->machine, &ret->machines, "driver", "for CUDA %d.%d", driver / 1000,
                     driver % 1000 / 10);
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        cudaGetLastError();
        snprintf(ret->none, sizeof(ret->none), "%.190s",
                 error != cudaSuccess ? cudaGetErrorString(error) : "no device");
    }
    for (int i = 0; i < count && ret->devices < HZP_ABOUT_DEVICES_MAX; i++)
        add_device(ret, i);
}
