/* SPDX-License-Identifier: Apache-2.0 */
/* device/fallback.h - counts what a device did in a slower way than it is built for: each case is
 * counted, and logged once for each shape.
 *
 * Reported by the metrics (hzpserve_device_fallbacks_total), by `hzpserve bench` and by
 * dev/gpu/run, which fails if there are any.  `hzpserve devices` shows those of the last run: a
 * thread writes them to a small file beside the kept algorithms (cuda/algos.h), at most once a
 * second, and again when the device is closed.
 *
 * Invariant: counts never decrease; a case is counted whenever it happens, logged or not; counting
 * never waits for a disk.  Ops inside a graph are counted when it is captured, not each time that
 * it is launched.
 * Thread: engine adds; any thread reads.
 */
#pragma once

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, what the device does instead) */
#define HZP_FALLBACKS(X)                                                                           \
    X(product, "Matrix products by our own kernels because the library has no algorithm for them") \
    X(attention, "Attention by plain arithmetic because of its type, width or alignment")          \
    X(cudnn, "Attention by our own kernels because cuDNN is missing, refused or failed")           \
    X(staging, "Host arrays that kernels read through the bus because staging had no room")        \
    X(share, "Shares of the SMs that are enforced by the sizes of grids, or not as asked")         \
    X(graph, "Decode steps without a graph, because it could not be captured or has no room")

enum hzp_fallback {
#define X(name, help) HZP_FALLBACK_##name,
    HZP_FALLBACKS(X)
#undef X
        HZP_FALLBACK_COUNT
};

const char *hzp_fallback_name(enum hzp_fallback kind);

/* Counts one case.  m, n, k: its shape, 0 where it has none; the first case of each kind and shape
 * is logged with the reason, a clause such as "the library has no algorithm".  At most
 * HZP_FALLBACK_SHAPES_MAX shapes are logged, and kept. */
void hzp_device_fallback(struct hzp_device *dev, enum hzp_fallback kind, int32_t m, int32_t n,
                         int32_t k, const char *reason);

/* The number of cases since the device was opened. */
uint64_t hzp_device_fallbacks(const struct hzp_device *dev, enum hzp_fallback kind);

/* Cases of one kind and shape. */
enum { HZP_FALLBACK_SHAPES_MAX = 64, HZP_FALLBACK_REASON = 120 };
struct hzp_fallback_shape {
    enum hzp_fallback kind;
    int32_t m, n, k;
    uint64_t count;
    int64_t last; /* when it last happened: seconds since 1970 */
    char reason[HZP_FALLBACK_REASON];
};

/* Reads the fallbacks of the last run on this device from its file; returns how many.  id:
 * the device's; "": it is known by its ordinal only, which CUDA_VISIBLE_DEVICES changes.  A line
 * that is not as written is left out.  Thread: any. */
int hzp_fallbacks_last(const char *backend, int ordinal, const char *id,
                       struct hzp_fallback_shape ret[HZP_FALLBACK_SHAPES_MAX]);

#ifdef __cplusplus
}
#endif
