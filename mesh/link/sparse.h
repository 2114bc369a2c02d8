/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/link/sparse.h - F32 data that are mostly zeros, as links between processes send them: a
 * bitmap with a bit for each block of HZP_LINK_BLOCK bytes (the last may be shorter), then the
 * blocks that hold something else than zeros.
 *
 * Invariant: adding what was packed to a sum gives what adding the data themselves does, but that a
 * sum of -0 may stay -0.
 *
 * Thread: any.
 */
#pragma once

#include "mesh/link.h"

/* Bytes of so many bytes of data, packed, at most; a multiple of 4. */
size_t hzp_sparse_room(size_t bytes);

/* How many of them can be packed into `room` bytes whatever they hold: whole blocks. */
size_t hzp_sparse_fits(size_t room);

/* What hzp_sparse_pack returns of the same data. */
size_t hzp_sparse_size(const void *from, size_t bytes);

/* Packs `bytes` (a multiple of 4) of data; to: 4-byte aligned, hzp_sparse_room(bytes).  Returns how
 * many bytes it has written. */
size_t hzp_sparse_pack(const void *from, size_t bytes, void *to);

/* sum[0 .. bytes / 4) += what was packed of as many bytes; packed: 4-byte aligned.  False: `size`
 * bytes are not that, and sum may have changed. */
bool hzp_sparse_add(float *sum, size_t bytes, const void *packed, size_t size);
