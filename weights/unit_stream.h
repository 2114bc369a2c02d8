/* SPDX-License-Identifier: Apache-2.0 */
/* weights/unit_stream.h - how a version travels: whole units, one at a time and in order, from a
 * source to whatever takes them.
 *
 * Sources: the memory of a device, a copy in host memory, ranks that have a part of each unit.
 * Takers: files, copies, other ranks.  A taker does not know where the units are; in it they are
 * those of one rank.  Their checksum is that of hzp_units_checksum.
 *
 * Thread: any, one at a time for each source.
 */
#pragma once

#include "weights/units.h"

/* The parts of what a checkpoint has, in its units.  Scales are there with 8-bit moments only; a
 * model in F32 has no residuals. */
enum hzp_state_part {
    HZP_STATE_M,
    HZP_STATE_V,
    HZP_STATE_M_SCALE,
    HZP_STATE_V_SCALE,
    HZP_STATE_RESIDUAL,
    HZP_STATE_WEIGHTS
};
enum { HZP_STATE_PARTS = HZP_STATE_WEIGHTS + 1 };

struct hzp_unit_source {
    const struct hzp_units *part[HZP_STATE_PARTS]; /* types, layout; NULL: there is no such part */
    /* Unit u of it, whole, in host memory: valid until the next call, or until *ret_owned is freed,
     * which is NULL or the caller's. */
    int (*read)(void *ctx, enum hzp_state_part part, int32_t u, struct hzp_unit_view *ret,
                void **ret_owned, struct hzp_err_text *reterr);
    void *ctx;
};

/* A whole unit in host memory, valid during the call. */
typedef int hzp_unit_take_fn(void *ctx, enum hzp_state_part part, int32_t u,
                             const struct hzp_unit_view *whole, struct hzp_err_text *reterr);

/* Calls take with each unit of a part (NULL: the units are only read).  *ret_checksum: their sum;
 * NULL: not wanted.  Stops at the first error, of the source or of take. */
int hzp_unit_stream(const struct hzp_unit_source *source, enum hzp_state_part part,
                    hzp_unit_take_fn *take, void *ctx, uint64_t *ret_checksum,
                    struct hzp_err_text *reterr);

/* Weights that are in a device's memory as a whole. */
struct hzp_weights_source {
    struct hzp_unit_source source;
    struct hzp_device *dev; /* NULL: they are in host memory */
};
/* Fills *ret, which lives as long as its source. */
const struct hzp_unit_source *hzp_weights_source(struct hzp_device *dev,
                                                 const struct hzp_units *units,
                                                 struct hzp_weights_source *ret);
