/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/algos.h - which algorithm of the matrix library was chosen for which product, kept on
 * disk from one start to the next.
 *
 * One file a device, driver and library version, in $XDG_CACHE_HOME/hzpserve or ~/.cache/hzpserve.
 * It is read once, and written whole, by rename, within a second after something is new: by a
 * thread of its own, because nobody who adds may wait for a disk, and soon, because a process may
 * be killed.  A file that is not exactly what was written is ignored with one line logged; what is
 * read from a good one must still be offered to the library's own check.
 *
 * Invariant: at most HZP_CUDA_ALGOS_MAX entries, one a key; only the engine's thread changes them.
 * Thread: engine.
 */
#ifndef HZP_DEVICE_CUDA_ALGOS_H
#define HZP_DEVICE_CUDA_ALGOS_H

#include "base/err.h"

enum { HZP_CUDA_ALGOS_MAX = 8192, HZP_CUDA_ALGO_KEY = 56 };

struct hzp_cuda_algos;

struct hzp_cuda_algo {
    unsigned char key[HZP_CUDA_ALGO_KEY]; /* the product's, filled up with zeros */
    uint64_t tuned;                       /* 1: measured; 0: as the library advised */
    uint64_t algo[8];
};

/* identity: device, driver, library; what differs in it has a file of its own.  Never fails:
 * without a place to keep them nothing is kept. */
struct hzp_cuda_algos *hzp_cuda_algos_open(const char *identity);

/* NULL: none yet.  Valid until the next add. */
const struct hzp_cuda_algo *hzp_cuda_algos_find(const struct hzp_cuda_algos *algos, const void *key,
                                                size_t size);

/* Adds or replaces; dropped where there are too many.  Waits for no disk. */
void hzp_cuda_algos_add(struct hzp_cuda_algos *algos, const void *key, size_t size,
                        const uint64_t algo[8], bool tuned);

/* Writes what is still new.  NULL: no effect. */
void hzp_cuda_algos_close(struct hzp_cuda_algos *algos);

#endif
