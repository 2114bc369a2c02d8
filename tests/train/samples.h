/* SPDX-License-Identifier: Apache-2.0 */
/* tests/train/samples.h - samples with fewer arguments.
 *
 * Thread: any.
 */
#pragma once

#include "train/table/sample_log.h"

static inline struct hzp_sample *hzp_sample_create_weighted(const int32_t *token,
                                                            const uint8_t *learn,
                                                            const float *weight, int32_t count)
{
    return hzp_sample_create_losses(token, learn, weight, NULL, count);
}

static inline struct hzp_sample *hzp_sample_create(const int32_t *token, const uint8_t *learn,
                                                   int32_t count)
{
    return hzp_sample_create_losses(token, learn, NULL, NULL, count);
}

static inline int hzp_sample_log_append(struct hzp_sample_log *log, struct hzp_sample **sample,
                                        int32_t count, int64_t *ret_first,
                                        struct hzp_err_text *reterr)
{
    return hzp_sample_log_append_once(log, sample, count, NULL, ret_first, reterr);
}
