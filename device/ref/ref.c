/* SPDX-License-Identifier: Apache-2.0 */
/* device/ref/ref.c - the reference backend: one thread, every op as specified in device/ops.h. */
#include "device/about.h"
#include "device/account.h"
#include "device/backend.h"
#include "device/ref/host.h"
#include "device/ref/ref.h"

void hzp_ref_fill(hzp_op_fn *op[HZP_OP_COUNT])
{
    hzp_ref_fill_dense(op);
    hzp_ref_fill_attn(op);
    hzp_ref_fill_sample(op);
    hzp_ref_fill_grad(op);
    hzp_ref_fill_update(op);
    hzp_ref_fill_collective(op);
}

static void ref_about(struct hzp_about *ret)
{
    struct hzp_about_device *d = &ret->device[ret->devices++];
    snprintf(d->name, sizeof(d->name), "reference in plain C");
    d->memory = hzp_host_mem_total();
    d->cores = 1;
}

static int ref_open(const struct hzp_device_config *config, struct hzp_device **ret,
                    struct hzp_err_text *reterr)
{
    struct hzp_device *dev = hzp_xcalloc(1, sizeof(*dev));
    dev->backend = &hzp_backend_ref;
    hzp_ref_fill(dev->op);
    dev->mem_total = hzp_host_mem_total();
    dev->threads = 1;
    dev->same_rows = config->same_rows;
    snprintf(dev->label, sizeof(dev->label), "reference, 1 thread");
    *ret = dev;
    return HZP_OK;
}

static void ref_close(struct hzp_device *dev)
{
    free(dev);
}

const struct hzp_backend hzp_backend_ref = {
    .name = "ref",
    .host_memory = true,
    .open = ref_open,
    .close = ref_close,
    .mem_alloc = hzp_host_mem_alloc,
    .mem_free = hzp_host_mem_free,
    .lane_open = hzp_host_lane_open,
    .lane_close = hzp_host_lane_close,
    .about = ref_about,
};
