/* SPDX-License-Identifier: Apache-2.0 */
/* serve/consistency.h - what a request asks of the weights that answer it, and what follows:
 * whether it may begin, in which steps it may have rows, and what happens to it at a swap.
 *
 *     mode       at a swap, once a token was drawn       rows of its sequence
 *     continue   goes on with the new version            of several versions
 *     abort      ends with the tokens drawn so far       of one version
 *     recompute  all rows are computed again first       of the version that draws
 *     pinned     none: it keeps the version it began with; steps alternate between versions
 *
 * Before its first token is drawn every request but a pinned one begins again under the new version
 * (scheduler.h), whatever its mode.
 *
 * Requests that wait for weights stand beside the queue, so they hold up no other; once a version
 * meets what they ask for they go to the end of the queue.  While a request with max_staleness is
 * in the queue or runs, that bound applies to the trainer like the operator's
 * (hzp_weights_ask_staleness).
 *
 * A pinned request holds its version's slot.  Requests pin only the current version, so pins never
 * take the slot that the trainer needs next: a version that is no longer current gets no new pins,
 * and each of its pins ends at most pin_ns after the swap.  So the trainer waits for a slot for at
 * most that long, and training is not starved.  The operator's staleness bound is about the current
 * version; it does not end a pin.  The request's own max_staleness does.
 *
 * Invariants:
 * - A request's tokens are drawn by versions that meet its min_version, min_sequence and through.
 * - A pinned request's rows and tokens are all of one version.
 * - All rows of a request go through the same layers.
 *
 * Thread: engine, except hzp_demands_check: any.
 */
#pragma once

#include "weights/versions.h"

enum hzp_consistency { HZP_CONTINUE, HZP_ABORT, HZP_RECOMPUTE, HZP_PINNED };
/* "continue", ..; the mode of a name, or -1. */
const char *hzp_consistency_name(enum hzp_consistency mode);
int hzp_consistency_find(const char *name);

/* What a request asks of the weights; all zero but max_staleness: nothing. */
struct hzp_demands {
    enum hzp_consistency mode;
    uint64_t min_version;  /* id of a version, or a newer one; 0: any */
    int64_t min_sequence;  /* an example that the version must have learned; 0: none */
    int64_t through;       /* every example up to it has been learned or has failed; 0: none */
    int32_t max_staleness; /* in optimizer steps; -1: the operator's bound alone */
    bool fresh;            /* it takes over no rows of older versions, whatever else it asks for */
    uint64_t wait_ns;      /* how long it may wait for such weights */
    uint64_t draw_key;     /* those with the same are on one side of trials: weights/trials.h */
    int32_t depth;         /* which layers compute it, below HZP_DEPTH_PARTS (model/path.h) */
    bool owed;             /* the server asks for `through`: it was served before a restart */
    bool shed;             /* the server has chosen the depth, because it had too much to do */
};

/* How a request that asked for certain weights ended without them. */
enum hzp_unmet {
    HZP_UNMET_NOT,
    HZP_UNMET_TIME,      /* none came in time */
    HZP_UNMET_LOST,      /* weights of an earlier state were put back before its first token */
    HZP_UNMET_FULL,      /* as many others wait for weights as may */
    HZP_UNMET_UNLEARNED, /* the example min_sequence was given up: no version will have it */
};
/* Why a request ended at the weights it had begun with. */
enum hzp_changed {
    HZP_CHANGED_NOT,
    HZP_CHANGED_SWAP, /* abort; or the new version does not meet what it asks for */
    HZP_CHANGED_PIN,  /* its version was pinned for as long as this server allows */
};

/* HZP_EINVAL: this server can never do what is asked for.  w NULL: there is no store. */
int hzp_demands_check(const struct hzp_demands *d, const struct hzp_weights *w, uint64_t pin_ns,
                      struct hzp_err_text *reterr);

/* True: it asks for something that may be worth waiting for. */
static inline bool hzp_demands_wait(const struct hzp_demands *d)
{
    return d->min_version || d->min_sequence || d->through || d->max_staleness >= 0;
}

/* True: it takes over no rows that an older version than the current one has computed. */
static inline bool hzp_demands_fresh(const struct hzp_demands *d)
{
    return d->fresh || d->mode != HZP_CONTINUE || d->min_sequence || d->through ||
           d->max_staleness >= 0;
}

enum hzp_met { HZP_MET, HZP_MET_NOT_YET, HZP_MET_NEVER };

/* Whether a request may begin under version v, the current one; NULL: none serves yet. */
enum hzp_met hzp_demands_met(const struct hzp_demands *d, struct hzp_weights *w,
                             const struct hzp_version *v);

/* True: a request that could have begun cannot begin under v, the new current version, because
 * weights of an earlier state were put back. */
bool hzp_demands_lost(const struct hzp_demands *d, struct hzp_weights *w,
                      const struct hzp_version *v);

/* The oldest version that may have computed rows which the request takes over from others, if the
 * operator allows older ones than `current`: only `continue` without a demand of newer weights. */
uint64_t hzp_demands_oldest(const struct hzp_demands *d, uint64_t current);

enum hzp_at_swap { HZP_SWAP_GO_ON, HZP_SWAP_RECOMPUTE, HZP_SWAP_END };

/* What happens to a request whose prompt an older version has computed when v becomes current;
 * drawn: how many tokens it has shown. */
enum hzp_at_swap hzp_demands_at_swap(const struct hzp_demands *d, struct hzp_weights *w,
                                     const struct hzp_version *v, int32_t drawn);
