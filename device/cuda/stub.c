/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/stub.c - replaces the CUDA backend if it is not compiled in. */
#include "device/about.h"
#include "device/backend.h"

static int stub_open(const struct hzp_device_config *config, struct hzp_device **ret,
                     struct hzp_err_text *reterr)
{
    return hzp_fail(reterr, HZP_EUNSUP, "device cuda: built without CUDA");
}

static void stub_about(struct hzp_about *ret)
{
    snprintf(ret->none, sizeof(ret->none), "built without CUDA");
}

const struct hzp_backend hzp_backend_cuda = {
    .name = "cuda", .open = stub_open, .about = stub_about};
