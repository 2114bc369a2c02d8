/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/deal.h - the documents of an update as rank 0 sends them to the others: one after
 * another,
 *
 *     int32  count, bin        tokens of the document, and the micro-batch it belongs to
 *     int32  weighted          1: it has weights
 *     int32  token[count]
 *     float  weight[count]     if it has
 *     uint8  learn[count], padded to a multiple of four bytes
 *
 * in the byte order of the machine, which all ranks share.
 *
 * Thread: any.
 */
#ifndef HZP_TRAIN_TABLE_DEAL_H
#define HZP_TRAIN_TABLE_DEAL_H

#include "train/table/sample_log.h"

/* One document, in the payload it was found in. */
struct hzp_deal_doc {
    int32_t count, bin;
    const int32_t *token;
    const float *weight; /* NULL: each 1 */
    const uint8_t *learn;
};

/* Bytes of a document of so many tokens. */
size_t hzp_deal_bytes(int32_t count, bool weighted);

/* Writes the sample, `at` being aligned to four bytes; returns what is behind it. */
char *hzp_deal_put(char *at, const struct hzp_sample *sample, int32_t bin);

/* Reads the document at `at` of a payload that ends at `end`; returns what is behind it.  NULL: no
 * document of at least two tokens with a micro-batch in 0 .. bins - 1 lies there. */
const char *hzp_deal_get(const char *at, const char *end, int32_t bins, struct hzp_deal_doc *ret);

#endif
