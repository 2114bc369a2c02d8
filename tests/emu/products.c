/* SPDX-License-Identifier: Apache-2.0 */
/* tests/emu/products.c - what the backend needs besides CUDA's runtime.  Our own kernels compute
 * matrix products, or the reference where the emulator would take too long; there is no cuDNN, no
 * driver to make green contexts, and timing products would be meaningless.
 */
#include "device/cuda/cudnn.h"

/* Products with more multiplications than this are left to the reference. */
static const int64_t MANY = 1 << 20;

static hzp_op_fn *reference;

int hzp_cuda_products_open(struct hzp_cuda_device *dev, struct hzp_cuda_products **ret,
                           struct hzp_err_text *reterr)
{
    hzp_op_fn *ops[HZP_OP_COUNT];
    hzp_ref_fill(ops);
    reference = ops[HZP_OP_matmul];
    *ret = NULL;
    return HZP_OK;
}

void hzp_cuda_products_close(struct hzp_cuda_products *products)
{
}

void hzp_cuda_products_steady(struct hzp_cuda_products *products)
{
}

struct hzp_cuda_algos *hzp_cuda_products_algos(struct hzp_cuda_products *products)
{
    return NULL;
}

int hzp_cudnn_open(struct hzp_cuda_algos *algos, struct hzp_cudnn **ret,
                   struct hzp_err_text *reterr)
{
    *ret = NULL;
    return HZP_OK;
}

void hzp_cudnn_close(struct hzp_cudnn *dnn)
{
}

void hzp_cudnn_steady(struct hzp_cudnn *dnn)
{
}

void hzp_cudnn_prepare(struct hzp_device *dev, const struct hzp_attention_use *use)
{
}

int hzp_cudnn_attention(struct hzp_lane *lane, enum hzp_op op, const void *args, hzp_op_fn *own)
{
    return own(lane, args);
}

void hzp_cuda_about(struct hzp_about *ret)
{
}

int hzp_cuda_green_split(struct hzp_cuda_device *dev, const int *want, const bool *urgent,
                         int parts, cudaStream_t *ret_stream, int *ret_sms)
{
    return HZP_EUNSUP;
}

const char *hzp_cuda_loading(void)
{
    return "unknown";
}

void hzp_cuda_green_close(struct hzp_cuda_device *dev)
{
}

int hzp_cuda_matmul(struct hzp_lane *lane, const void *args)
{
    const struct hzp_matmul_args *a = args;
    int64_t depth = a->trans_a ? a->a.rows : a->a.cols;
    if (a->c.rows == 0 || a->c.cols == 0)
        return HZP_OK;
    if (hzp_cuda_few_fits(a))
        return hzp_cuda_matmul_few(lane, a);
    if (a->a.type == HZP_E4M3 && hzp_cuda_e4m3_fits(a))
        return hzp_cuda_matmul_e4m3(lane, a);
    if ((int64_t)a->c.rows * a->c.cols * depth <= MANY)
        return hzp_cuda_matmul_plain(lane, a);
    return reference(lane, args);
}
