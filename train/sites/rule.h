/* SPDX-License-Identifier: Apache-2.0 */
/* train/sites/rule.h - what sites do with each other's weights: arithmetic alone, no messages.
 *
 * Sites are servers that learn from their own traffic.  In a *round* they exchange one *part* of
 * their weights: the blocks of 64 elements of all units, in an order that a seed shuffles, are cut
 * into `parts` parts of equal size, so that each block is exchanged once in as many rounds.
 *
 *     x = w - agreed + error        what a site sends, a block: 64 codes q and a scale s
 *     y = agreed + s q              what every site, the sender too, takes it for
 *     a = sum(n y) / sum(n)         over the sites in the round, in their order; n: samples
 *     error = x - s q, agreed = a   for the next time
 *     draft += a - w                "delta": w is what the site had when it sent
 *     e = m e + (1 - m) (draft - w), draft = a + e         "ema" (AsyncMesh, arXiv 2601.22442)
 *
 * Invariant: y and a have the same bits on every machine.  The scale has 8 significant bits, so
 * s q is exact, and n y is exact in double: no result depends on whether a compiler fuses products
 * and sums.  Where the draft is what was sent, it becomes a exactly.
 *
 * Thread: any; pure.
 */
#pragma once

#include "base/base.h"

enum {
    HZP_SITES_MAX = 16,
    HZP_SITE_BLOCK = 64,        /* elements; units are multiples of it (HZP_UNIT_ALIGN) */
    HZP_SITE_WEIGHT = 1 << 24,  /* samples that a site counts at most */
    HZP_SITE_RAMP = 20,         /* rounds in which a late site's weight rises */
    HZP_SITE_EMA_ROUNDS = 1000, /* in which m rises from 0.5 to 0.99 */
};

enum hzp_site_coding { HZP_SITE_F32, HZP_SITE_INT8 };

/* --- Parts ------------------------------------------------------------------------------------ */

struct hzp_site_parts {
    int64_t blocks; /* of all units, numbered in the units' order */
    int32_t parts;
    uint32_t *order; /* [blocks], ascending within each part */
};

/* Cuts so many blocks, of at most 2^32, into ceil(1 / share) parts, but no more than there are
 * blocks.  Ends with hzp_site_parts_free. */
void hzp_site_parts_make(int64_t blocks, double share, uint64_t seed, struct hzp_site_parts *ret);
void hzp_site_parts_free(struct hzp_site_parts *parts);
/* The blocks of part k: *ret_count of them. */
const uint32_t *hzp_site_part(const struct hzp_site_parts *parts, int32_t k, int64_t *ret_count);

/* --- Messages' values ------------------------------------------------------------------------- */

/* Bytes of a block in a message. */
size_t hzp_site_block_bytes(enum hzp_site_coding coding);

/* A block as bytes, to `data`.  All [64]; error is only read. */
void hzp_site_encode(enum hzp_site_coding coding, const float *w, const float *agreed,
                     const float *error, void *data);
/* y [64]: what a block of a message is taken for, on every site.  False: a value is not finite, or
 * the scale has more bits than a message can have. */
bool hzp_site_decode(enum hzp_site_coding coding, const void *data, const float *agreed, float *y);

/* --- The average ------------------------------------------------------------------------------ */

/* ret[i] = sum over sites of n y[i] / sum of n, of `count` elements; n: 0 to 2^24 HZP_SITE_RAMP,
 * y[site] is not read where n is 0; their sum is above 0. */
void hzp_site_average(const float *const y[], const int64_t n[], int sites, size_t count,
                      float *ret);
/* What the next message makes good: error = w - agreed + error - (y - agreed). */
void hzp_site_keep_error(const float *w, const float *agreed, const float *y, size_t count,
                         float *error);

/* The weight of a site's samples: of one that has `left` rounds to go until it counts in full, of
 * which the last HZP_SITE_RAMP raise it. */
int64_t hzp_site_weight(int64_t samples, int32_t left);

/* --- Its application -------------------------------------------------------------------------- */

/* w becomes the draft's new master, [64], where it was; sent: what this site had when it sent.
 * ema: the correction's memory, NULL: the delta rule.  m: hzp_site_ema.  False: a result is not
 * finite, and w is as before. */
bool hzp_site_apply(float *w, const float *average, const float *sent, float *ema, float m);
/* m after so many rounds: a cosine from 0.5 to 0.99. */
float hzp_site_ema(int64_t rounds);

/* The masters of a block of weights, BF16 with their residuals or F32 (residual NULL), and back. */
void hzp_site_load(const void *weights, const int16_t *residual, float *ret);
void hzp_site_store(const float *w, void *weights, int16_t *residual);
