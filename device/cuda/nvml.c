/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda/nvml.h"

#include <dlfcn.h>

/* As in nvml.h, which a build does not need. */
struct memory {
    unsigned long long total, free, used;
};

size_t hzp_cuda_nvml_free(const char *bus)
{
    int (*init)(void), (*shutdown)(void);
    int (*by_bus)(const char *, void **), (*memory_info)(void *, struct memory *);
    struct memory memory = {0};
    void *device, *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return 0;
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&shutdown = dlsym(library, "nvmlShutdown");
    *(void **)&by_bus = dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&memory_info = dlsym(library, "nvmlDeviceGetMemoryInfo");
    bool known = false;
    if (init && shutdown && by_bus && memory_info && init() == 0) {
        known = by_bus(bus, &device) == 0 && memory_info(device, &memory) == 0;
        shutdown();
    }
    dlclose(library);
    return known ? (size_t)memory.free : 0;
}
