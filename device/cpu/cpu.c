/* SPDX-License-Identifier: Apache-2.0 */
/* device/cpu/cpu.c - the host as a device, with the reference's kernels. */
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "device/ref/host.h"

static int cpu_open(const struct hzp_device_config *config, struct hzp_device **ret,
                    struct hzp_err_text *reterr)
{
    struct hzp_device *dev = hzp_xcalloc(1, sizeof(*dev));
    dev->backend = &hzp_backend_cpu;
    hzp_ref_fill(dev->op);
    dev->mem_total = hzp_host_mem_total();
    dev->threads = 1;
    snprintf(dev->label, sizeof(dev->label), "CPU, 1 thread");
    *ret = dev;
    return HZP_OK;
}

static void cpu_close(struct hzp_device *dev)
{
    free(dev);
}

const struct hzp_backend hzp_backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .mem_alloc = hzp_host_mem_alloc,
    .mem_free = hzp_host_mem_free,
    .lane_open = hzp_host_lane_open,
    .lane_close = hzp_host_lane_close,
};
