/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/cuda.h - what the files of the CUDA backend share.
 *
 * A lane is a stream with memory of its own: scratch for kernels that need room between two
 * launches, a workspace for matrix products, and room for staged copies of what kernels would
 * otherwise read from the host again and again.  Nothing is allocated after a lane is open.
 *
 * The CUDA runtime is linked in; the driver is looked for when a device is opened, and
 * cuBLASLt is loaded then: a program built with CUDA starts on machines that have neither.
 *
 * Thread: engine.  C17 and CUDA C++17.
 */
#ifndef HZP_DEVICE_CUDA_CUDA_H
#define HZP_DEVICE_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hzp_cuda_products; /* matmul.c */

enum { HZP_CUDA_PINNED_MAX = 256, HZP_CUDA_STAGED_MAX = 32, HZP_CUDA_COUNTERS = 1 << 16 };

struct hzp_cuda_device {
    struct hzp_device base;
    int ordinal, sms, shared_max; /* shared_max: bytes of shared memory a block may have */
    bool failed;                  /* said once, then silent */
    uint64_t epoch;               /* counts the moments at which the host may have written */
    struct {
        char *ptr;
        size_t size;
    } pinned[HZP_CUDA_PINNED_MAX]; /* host memory handed out */
    int pinneds;
    struct hzp_cuda_products *products;
};

struct hzp_cuda_lane {
    struct hzp_lane base;
    cudaStream_t stream;
    void *space; /* of the matrix products */
    size_t space_size;
    char *scratch;
    size_t scratch_size;
    int32_t *counter; /* [HZP_CUDA_COUNTERS], all 0 between launches */
    char *stage;
    size_t stage_size, stage_used;
    uint64_t stage_epoch;
    struct {
        const void *ptr;
        size_t size;
        void *copy;
    } staged[HZP_CUDA_STAGED_MAX];
    int stageds;
};

static inline struct hzp_cuda_lane *hzp_cuda_lane(struct hzp_lane *lane)
{
    return (struct hzp_cuda_lane *)lane;
}

static inline struct hzp_cuda_device *hzp_cuda_device(struct hzp_lane *lane)
{
    return (struct hzp_cuda_device *)lane->dev;
}

/* HZP_OK, or HZP_EDEVICE with the text of the error logged once. */
int hzp_cuda_check(struct hzp_cuda_device *dev, cudaError_t error, const char *what);

/* After the launches of an op: HZP_OK or HZP_EDEVICE. */
int hzp_cuda_launched(struct hzp_lane *lane, const char *op);

/* What stands at ptr, for kernels that read it more than once: ptr itself if the device's, else a
 * copy on the device, made when the lane's turn comes and kept until the host has waited for a
 * fence (only then may it write there again).  Falls back to ptr, which works, slowly. */
const void *hzp_cuda_staged(struct hzp_lane *lane, const void *ptr, size_t size);

/* matmul.c.  HZP_EUNSUP: there is no cuBLASLt. */
int hzp_cuda_products_open(struct hzp_cuda_device *dev, struct hzp_cuda_products **ret,
                           struct hzp_err_text *reterr);
void hzp_cuda_products_close(struct hzp_cuda_products *products);

/* limits.c */
int hzp_cuda_limits(struct hzp_device *dev, struct hzp_limits *ret);

/* The product by plain arithmetic: shapes and alignments the library refuses. */
int hzp_cuda_matmul_plain(struct hzp_lane *lane, const struct hzp_matmul_args *a);

/* The product of at most four rows with bf16 weights, where memory is all that counts. */
bool hzp_cuda_few_fits(const struct hzp_matmul_args *a);
int hzp_cuda_matmul_few(struct hzp_lane *lane, const struct hzp_matmul_args *a);

/* Attention by plain arithmetic: any type, width, stride. */
int hzp_cuda_attn_paged_plain(struct hzp_lane *lane, const struct hzp_attn_paged_args *a);
int hzp_cuda_attn_packed_plain(struct hzp_lane *lane, const struct hzp_attn_packed_args *a);
int hzp_cuda_attn_packed_bwd_plain(struct hzp_lane *lane, const struct hzp_attn_packed_bwd_args *a);

#define X(name, bound) int hzp_cuda_##name(struct hzp_lane *lane, const void *args);
HZP_OPS(X)
#undef X

#ifdef __cplusplus
}
#endif
#endif
