/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cudafake/nvml.c - a libnvidia-ml.so.1 of one device, the recorder's, whose free memory is
 * what HZP_FAKE_NVML says, in bytes.
 */
#include <stdlib.h>
#include <string.h>

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **ret);
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long ret[3]);

static int ready;

int nvmlInit_v2(void)
{
    ready++;
    return 0;
}

int nvmlShutdown(void)
{
    ready--;
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **ret)
{
    *ret = &ready;
    return ready && strcmp(bus, "0000:00:00.0") == 0 ? 0 : 1;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long ret[3])
{
    const char *text = getenv("HZP_FAKE_NVML");
    if (device != &ready || !text)
        return 1;
    ret[0] = ret[1] = strtoull(text, NULL, 10);
    ret[2] = 0;
    return 0;
}
