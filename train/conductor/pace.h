/* SPDX-License-Identifier: Apache-2.0 */
/* train/conductor/pace.h - how fast the trainer works through its rows while it has any, for
 * estimates.
 *
 * Rows and the time they took are sums whose weights halve about every 20 seconds of such time, so
 * the pace follows what serving leaves within a minute.  Time without progress counts: a trainer
 * that gets nothing has a pace that falls towards 0.
 *
 *     d = exp(-t / TAU)      t: since the last progress
 *     pace = rows d / (time d + t)
 *
 * Thread: engine; a value.
 */
#pragma once

#include "base/base.h"

struct hzp_pace {
    double rows, ns;
    uint64_t since_ns; /* the last progress, or when work came */
    bool works;        /* there is work */
};

/* now_ns: the device's clock.  works: there is something to learn, or an update is in progress. */
void hzp_pace_note(struct hzp_pace *pace, uint64_t now_ns, bool works);

/* A micro-batch of so many rows has ended. */
void hzp_pace_done(struct hzp_pace *pace, uint64_t now_ns, int32_t rows);

/* Rows per second; 0: not known, because none has ended yet. */
double hzp_pace_rate(const struct hzp_pace *pace, uint64_t now_ns);

/* How long there has been work without progress; 0: there is none. */
uint64_t hzp_pace_stalled(const struct hzp_pace *pace, uint64_t now_ns);
