/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/outlook.h - when the examples that wait will have been learned, and what holds them
 * back: for the answer to POST /v1/fine_tuning/examples, metrics and the log.
 *
 * The estimate is the rows that all waiting examples still need, with all their passes and their
 * replay, over the pace of about the last half minute (train/conductor/pace.h).  It covers every
 * example accepted so far: a later one is learned beside them.
 *
 * Thread: any; a value.
 */
#pragma once

#include "train/conductor/trainer.h"

struct hzp_outlook {
    double rows;            /* to be computed until everything accepted has been learned */
    double rows_per_second; /* 0: not known */
    double seconds;         /* until then; INFINITY: not known */
    double oldest_seconds;  /* age of the oldest example that waits; 0: none does */
    double stalled_seconds; /* how long there has been work without progress */
    const char *held_by; /* one of hzp_outlook_reason, which holds training back now; NULL: none */
};

/* The reasons, by number from 0: failed, paused, version_slot and staleness (the trainer waits),
 * and the limits of the split (hzp_split_limit_name).  NULL: past the last. */
const char *hzp_outlook_reason(int i);

/* False, and an outlook that knows nothing: out of memory. */
bool hzp_outlook_read(struct hzp_trainer *trainer, struct hzp_sample_queue *queue,
                      struct hzp_loop *loop, struct hzp_outlook *ret);
