/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/host.c - memory and lanes of the host. */
#include "device/account.h"
#include "device/ref/host.h"

enum { PAGE = 4096 };

int hzp_host_mem_alloc(struct hzp_device *dev, enum hzp_mem where, size_t size, void **ret)
{
    if (size > SIZE_MAX - PAGE)
        return HZP_ENOMEM;
    void *ptr = aligned_alloc(PAGE, HZP_ROUND_UP(HZP_MAX(size, (size_t)1), (size_t)PAGE));
    if (!ptr)
        return HZP_ENOMEM;
    *ret = ptr;
    return HZP_OK;
}

void hzp_host_mem_free(struct hzp_device *dev, enum hzp_mem where, void *ptr)
{
    free(ptr);
}

int hzp_host_lane_open(struct hzp_device *dev, enum hzp_bound use, struct hzp_lane **ret)
{
    struct hzp_lane *lane = hzp_xcalloc(1, sizeof(*lane));
    lane->dev = dev;
    lane->use = use;
    *ret = lane;
    return HZP_OK;
}

void hzp_host_lane_close(struct hzp_lane *lane)
{
    free(lane);
}

size_t hzp_host_mem_total(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_size = sysconf(_SC_PAGESIZE);
    size_t total = pages > 0 && page_size > 0 ? (size_t)pages * (size_t)page_size : 0;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
    if (file) {
        unsigned long long limit; /* "max" means no limit: then no number is parsed */
        if (fscanf(file, "%llu", &limit) == 1 && limit < total)
            total = (size_t)limit;
        fclose(file);
    }
    return total;
}
