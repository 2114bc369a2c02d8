/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/state_tool.h - what `hzpserve state` does with a state directory that no server uses.
 *
 *     list      what the log and the checkpoints hold
 *     check     reads everything: rows of samples, weights, moments, residuals
 *     repair    renames damaged checkpoints to NAME.damaged, marks damaged examples as failed, and
 *               begins a log where it is lost: from the newest whole checkpoint, whose examples are
 *               learned; others have to be posted again.  Nothing is deleted.
 *
 * Thread: any, once.  HZP_EBUSY: a server uses the directory.
 */
#pragma once

#include "base/err.h"

enum hzp_state_action { HZP_STATE_LIST, HZP_STATE_CHECK, HZP_STATE_REPAIR };

/* Writes a report to out.  *ret_damaged: checkpoints and examples that are damaged, and were not
 * repaired. */
int hzp_state_tool(const char *dir, enum hzp_state_action action, FILE *out, int64_t *ret_damaged,
                   struct hzp_err_text *reterr);
