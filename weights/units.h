/* SPDX-License-Identifier: Apache-2.0 */
/* weights/units.h - memory that holds units: a version's parameters, or buffers with one element
 * per parameter (gradients, moments, residuals).
 *
 * struct hzp_units has the address of each unit of a layout, and is the only place that has it:
 * code that needs parameters takes the view of a unit and stays within it.  Units need not be
 * adjacent in memory, and a unit need not be resident, or only a part of it (its shard on this
 * rank, weights/groups.h).
 *
 * Ownership: a struct hzp_units owns its table of addresses, not the memory of the units.
 * Thread: any; a table never changes once made.
 */
#pragma once

#include "device/device.h"
#include "weights/groups.h"

struct hzp_units {
    const struct hzp_layout *layout;
    enum hzp_dtype type;
    void **base; /* [layout->units] of the resident part; NULL: not resident */
    /* [layout->units] the resident part of each, padding behind its elements excluded; NULL: every
     * unit is resident as a whole */
    struct hzp_extent *part;
};

/* One unit. */
struct hzp_unit_view {
    void *base; /* the resident part; NULL: not resident */
    enum hzp_dtype type;
    size_t elements;        /* in the unit, padding included */
    size_t decayed;         /* the first `decayed` elements: weight decay applies to them */
    struct hzp_extent part; /* resident; all elements where the unit is resident as a whole */
};

/* Bytes of all units of the layout. */
size_t hzp_units_bytes(const struct hzp_layout *layout, enum hzp_dtype type);

/* Places all units in order, one behind the other, from `memory` on, which is borrowed and has
 * hzp_units_bytes().  NULL: no unit is resident. */
void hzp_units_init(struct hzp_units *units, const struct hzp_layout *layout, enum hzp_dtype type,
                    void *memory);

/* The same for one rank's shards of a level: shard behind shard; nothing of the units of other
 * stages.  The layout is padded (hzp_layout_pad) to the groups' granule. */
size_t hzp_units_shard_bytes(const struct hzp_layout *layout, enum hzp_dtype type,
                             const struct hzp_shards *shards, enum hzp_level level);
void hzp_units_init_shards(struct hzp_units *units, const struct hzp_layout *layout,
                           enum hzp_dtype type, void *memory, const struct hzp_shards *shards,
                           enum hzp_level level);
/* Unit u is at `memory`, borrowed, from now on: for units that were made without memory. */
void hzp_units_place(struct hzp_units *units, int32_t u, void *memory);
void hzp_units_free(struct hzp_units *units);

/* Whether every unit that is resident is so as a whole; false: in part, as this rank's shards. */
bool hzp_units_whole(const struct hzp_units *units);

/* Where unit u is and which of its elements are resident; base NULL: none of them. */
struct hzp_unit_view hzp_unit_view(const struct hzp_units *units, int32_t u);
size_t hzp_unit_bytes(const struct hzp_unit_view *view); /* the resident part's */

/* Elements [at, at + n) of the unit, all resident, as a matrix of one row; n <= INT32_MAX. */
struct hzp_mat hzp_unit_piece(const struct hzp_unit_view *view, size_t at, size_t n);

/* The matrix of a role, within its unit; ptr NULL if the model has none.  layer -1 for roles that
 * have no layer.  The unit must be resident as a whole. */
struct hzp_mat hzp_units_mat(const struct hzp_units *units, enum hzp_role role, int32_t layer);

/* --- From the host, unit by unit --------------------------------------------------------------
 * dev: whose memory the units are in; NULL: host memory. */

/* *ret, which may be *view: the resident part in host memory: the part itself, or a copy in
 * *ret_owned, which the caller frees (else *ret_owned is NULL).  HZP_ENOMEM: no memory for the
 * copy; HZP_EDEVICE: the copy failed; there is nothing to free then. */
int hzp_unit_read(struct hzp_device *dev, const struct hzp_unit_view *view,
                  struct hzp_unit_view *ret, void **ret_owned);

/* Calls fill for each unit in order, with a view of all of it in host memory: the unit itself, or a
 * buffer whose resident part is copied to the unit afterwards.  Stops at the first error of fill;
 * HZP_ENOMEM, HZP_EDEVICE. */
typedef int hzp_unit_fill_fn(void *ctx, int32_t u, const struct hzp_unit_view *host);
int hzp_units_fill(struct hzp_device *dev, const struct hzp_units *units, hzp_unit_fill_fn *fill,
                   void *ctx);
/* The same by so many threads at a time, each unit by one of them and in no order, where the units
 * are whole and in host memory; elsewhere by this thread alone. */
int hzp_units_fill_by(struct hzp_device *dev, const struct hzp_units *units, hzp_unit_fill_fn *fill,
                      void *ctx, int threads);

/* The sum of the audit op over all units, padding between tensors included: device/ops.h has the
 * formula.  Of units that are resident in part, the sum over those parts: over all shards it adds
 * up to that of the whole units.
 * HZP_ENOMEM, HZP_EDEVICE. */
int hzp_units_checksum(struct hzp_device *dev, const struct hzp_units *units, uint64_t *ret);
/* The checksum of the resident part of one unit in host memory; the sum of all units' checksums
 * modulo 2^64 is hzp_units_checksum. */
uint64_t hzp_unit_checksum(const struct hzp_unit_view *host);
/* Elements of the resident part, F32 or BF16 in host memory, that are NaN or infinite. */
int64_t hzp_unit_nonfinite(const struct hzp_unit_view *host);
