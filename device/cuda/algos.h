/* SPDX-License-Identifier: Apache-2.0 */
/* device/cuda/algos.h - remembers which algorithm of the matrix library was chosen for each
 * product, in a file that is kept from one start to the next.
 *
 * One file per device, driver and library version, in $XDG_CACHE_HOME/hzpserve or
 * ~/.cache/hzpserve. It is read once, and rewritten as a whole, by rename, within a second after an
 * entry was added. A thread of its own writes it, so that adding an entry never waits for a disk,
 * and it writes soon, because the process may be killed.  A file whose checksum or identity does
 * not match is ignored with one line logged; entries read from a valid file must still pass the
 * library's own check.
 *
 * Invariant: at most HZP_CUDA_ALGOS_MAX entries, one per key; only the engine's thread changes
 * them.
 * Thread: engine.
 */
#pragma once

#include "base/err.h"

enum { HZP_CUDA_ALGOS_MAX = 8192, HZP_CUDA_ALGO_KEY = 56 };

struct hzp_cuda_algos;

struct hzp_cuda_algo {
    unsigned char key[HZP_CUDA_ALGO_KEY]; /* the product's key, padded with zeros */
    uint64_t tuned;                       /* 1: measured; 0: as the library advised */
    uint64_t algo[8];
};

/* identity: names device, driver and library; each identity has its own file.  Never fails: if
 * there is no place for the file, nothing is kept. */
struct hzp_cuda_algos *hzp_cuda_algos_open(const char *identity);

/* The entry of a key, valid until the next add; NULL: there is none. */
const struct hzp_cuda_algo *hzp_cuda_algos_find(const struct hzp_cuda_algos *algos, const void *key,
                                                size_t size);

/* The measured entry whose key differs from this one in nothing but the 4-byte number at byte `at`,
 * where it has the nearest number, at most twice as large or half; NULL: there is none.  Looks at
 * all entries. */
const struct hzp_cuda_algo *hzp_cuda_algos_near(const struct hzp_cuda_algos *algos, const void *key,
                                                size_t size, size_t at);

/* Adds or replaces an entry; if the table is full, the oldest entry is evicted.  Never waits for a
 * disk. */
void hzp_cuda_algos_add(struct hzp_cuda_algos *algos, const void *key, size_t size,
                        const uint64_t algo[8], bool tuned);

/* Writes what is not yet written and frees everything.  NULL: no effect. */
void hzp_cuda_algos_close(struct hzp_cuda_algos *algos);
