/* SPDX-License-Identifier: Apache-2.0 */
/* api/cli/plan_gpus.h - `hzpserve plan --gpus N`: a step on several GPUs, on paper.
 *
 * Thread: main.
 */
#ifndef HZP_API_CLI_PLAN_GPUS_H
#define HZP_API_CLI_PLAN_GPUS_H

#include "api/cli/options.h"

/* Prints what the model's step would take with one operation at a time, with nano-batches that do
 * not overlap, and by the pipeline that is found, which is explained.  Of the model only
 * config.json is read.  HZP_EINVAL: no rows, or a model that so many GPUs cannot divide. */
int hzp_plan_gpus(const struct hzp_options *options, struct hzp_err_text *reterr);

#endif
