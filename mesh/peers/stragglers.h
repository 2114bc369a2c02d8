/* SPDX-License-Identifier: Apache-2.0 */
/* mesh/peers/stragglers.h - which rank computes or sends more slowly than the others.
 *
 * Every rank reports, twice a second, how long each op of training and each byte on the wire took
 * (device/meter.h).  The rate of a rank is the median of its newest HZP_STRAGGLER_WINDOW reports,
 * so one that was disturbed for a moment changes nothing.  It is compared with the lower median of
 * all ranks' rates: of two ranks with the faster one.
 *
 *     slower than SLOW times that, TURNS times in a row    the rank is a straggler; named once
 *     faster than FINE times that                          it is none any more
 *
 * Thread: one at a time.
 */
#pragma once

#include "device/meter.h"

enum {
    HZP_STRAGGLER_WINDOW = 5,
    HZP_STRAGGLER_LEAST = 3, /* reports before a rank is judged */
    HZP_STRAGGLER_TURNS = 2,
};
#define HZP_STRAGGLER_SLOW 3.0
#define HZP_STRAGGLER_FINE 2.0

struct hzp_straggler {
    int meter;    /* in which it is slowest, compared with the others; -1: nothing is known */
    double times; /* as slow as the others: 1 is as fast; 0: nothing is known */
    bool named, changed; /* changed: named has, and hzp_stragglers_next has not told yet */
    int turns;           /* in a row in which it was slower than SLOW */
};

struct hzp_stragglers {
    int ranks;
    struct hzp_straggler *slow; /* [ranks] */
    struct hzp_stragglers_seen *seen;
};

/* Nothing is known of any rank. */
void hzp_stragglers_init(struct hzp_stragglers *s, int ranks);
void hzp_stragglers_fini(struct hzp_stragglers *s);

/* A rank's report: the time that its work took, divided by the work (device/meter.h); 0: it did
 * none. */
void hzp_stragglers_note(struct hzp_stragglers *s, int rank, const float rate[HZP_METER_COUNT]);

/* Compares all ranks and updates slow[]: once for each round of reports. */
void hzp_stragglers_judge(struct hzp_stragglers *s);

/* A rank that has become a straggler or is none any more (slow[].named says which), each once; -1:
 * there is none. */
int hzp_stragglers_next(struct hzp_stragglers *s);

/* What to report of two readings of this process's meters: the rates in between.  What took less
 * than a twentieth of the time says little and is left out. */
void hzp_stragglers_report(const struct hzp_meter before[HZP_METER_COUNT],
                           const struct hzp_meter now[HZP_METER_COUNT], float ret[HZP_METER_COUNT]);
