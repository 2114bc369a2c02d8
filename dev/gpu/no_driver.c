/* SPDX-License-Identifier: Apache-2.0 */
/* dev/gpu/no_driver.c - stands in for CUDA's driver where there is none, so that cuDNN makes plans
 * for a device that it is told about: it compiles their kernels, and this library pretends to load
 * them.  Every other call fails.  (The toolkit's own stub refuses to load them.)
 */
enum { SUCCESS = 0, NO_DRIVER = 34 };

static int something;

#define LOADS(name)                                                                                \
    int name(void **ret);                                                                          \
    int name(void **ret)                                                                           \
    {                                                                                              \
        *ret = &something;                                                                         \
        return SUCCESS;                                                                            \
    }
LOADS(cuLibraryLoadData)
LOADS(cuLibraryGetKernel)

int cuLibraryUnload(void *library);
int cuLibraryUnload(void *library)
{
    return SUCCESS;
}

/* cuDNN looks for all of these before it offers an engine. */
#define FAILS(name)                                                                                \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return NO_DRIVER;                                                                          \
    }
FAILS(cuInit)
FAILS(cuDeviceGetCount)
FAILS(cuCtxGetCurrent)
FAILS(cuCtxGetLimit)
FAILS(cuCtxPopCurrent)
FAILS(cuCtxPushCurrent)
FAILS(cuDeviceGet)
FAILS(cuDriverGetVersion)
FAILS(cuGetErrorName)
FAILS(cuGetErrorString)
FAILS(cuKernelGetAttribute)
FAILS(cuKernelSetAttribute)
FAILS(cuLaunchCooperativeKernel)
FAILS(cuLaunchKernel)
FAILS(cuLaunchKernelEx)
FAILS(cuLibraryLoadFromFile)
FAILS(cuLinkAddData)
FAILS(cuLinkComplete)
FAILS(cuLinkCreate)
FAILS(cuLinkDestroy)
FAILS(cuOccupancyMaxPotentialClusterSize)
FAILS(cuStreamGetCtx)
