/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/retention.h - which checkpoints stay on disk: the policy of --keep.
 *
 *     last=N      the N newest, at least 1
 *     hourly=N    the newest of each of the last N hours (of the clock, UTC) that has one
 *     every=N     the oldest of each N version ids: 1 .. N, N + 1 .. 2 N, and so on
 *     bytes=SIZE  bounds what hourly and every keep: the newest, as far as SIZE holds them together
 *                 with all that are newer
 *     best        of train: that of the lowest evaluation loss, which the caller names
 *     tagged      those with a name or a file named keep, which stay in any case
 *
 * A checkpoint stays if one of them keeps it.
 *
 * Thread: any; pure functions.
 */
#pragma once

#include "base/err.h"

struct hzp_retention {
    int64_t last, hourly, every; /* 0: keeps none */
    int64_t bytes;               /* 0: unlimited */
    bool best;
};

/* Reads "last=5,every=100,tagged".  What is not named keeps none, but for last, which is at least
 * 1.  HZP_EINVAL names the part that is wrong. */
int hzp_retention_parse(const char *text, struct hzp_retention *ret, struct hzp_err_text *reterr);

struct hzp_kept_one {
    uint64_t number; /* the checkpoint's: a version's id */
    int64_t hour;    /* since 1970, in which it was written */
    int64_t bytes;   /* its files have together */
    bool tagged;
    bool keep; /* the result */
};

/* Decides for all of them; they are sorted, newest first.  now: the present hour. */
void hzp_retention_decide(const struct hzp_retention *policy, int64_t now, struct hzp_kept_one *one,
                          int64_t count);
