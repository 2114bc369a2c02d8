/* SPDX-License-Identifier: Apache-2.0 */
/* base/chrome.h - writes traces in Chrome's format (chrome://tracing, Perfetto): a JSON array of
 * events, in which a rank is a process and a lane is a thread.
 *
 * Invariant: what is written so far needs only a "]" to be valid JSON, and trace viewers do without
 * it; so a file is readable after a crash.
 *
 * Thread: any; one at a time per trace.
 */
#pragma once

#include "base/base.h"

struct hzp_chrome {
    FILE *out; /* borrowed; its error flag says whether all was written */
    bool any;  /* an event was written */
};

/* Opens the array.  Without it (a zeroed struct with out set) events are written that another trace
 * takes by hzp_chrome_add. */
void hzp_chrome_begin(struct hzp_chrome *c, FILE *out);
void hzp_chrome_end(struct hzp_chrome *c); /* closes the array, not the file */

/* Names; they are plain words, without characters that JSON escapes. */
void hzp_chrome_process(struct hzp_chrome *c, int pid, const char *name);
void hzp_chrome_thread(struct hzp_chrome *c, int pid, int tid, const char *name);

struct hzp_chrome_span {
    const char *name, *category; /* category NULL: none */
    int pid, tid;
    double begin_us, length_us;
    const char *args; /* the members of a JSON object, "\"rows\":3"; NULL: none */
    /* Spans of the thread may overlap: the two ends are written as events of their own, which this
     * number connects. */
    bool overlaps;
    uint64_t id;
};
void hzp_chrome_span(struct hzp_chrome *c, const struct hzp_chrome_span *span);

/* Appends events that another trace has written without an array; size 0: none. */
void hzp_chrome_add(struct hzp_chrome *c, const char *events, size_t size);
