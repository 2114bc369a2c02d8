/* SPDX-License-Identifier: Apache-2.0 */
/* train/checks/gate.h - computes the loss of a draft on held-out samples before it is published,
 * and says whether it has risen too much.
 *
 * The evaluation uses the memory of a micro-batch, which the update has left free: forward and loss
 * of one micro-batch after the other, each with samples of one tag.  Before the first draft the
 * serving version is evaluated in the same way.
 *
 * Thread: engine.
 */
#pragma once

#include "train/learner/learner.h"

/* What a draft is checked with before it is published.  It fails if its mean loss exceeds the
 * lowest that a version has had since the trainer began (or since an older version was activated)
 * by more than max_rise, or its loss on the samples of a tag their lowest by more than the
 * tag's. */
struct hzp_gate {
    struct hzp_sample *const *sample; /* [count], those of a tag one behind the other */
    const int32_t *tag;               /* [count] index of the tag */
    int32_t count, tags;
    const char *const *name; /* [tags] "": samples without a tag */
    const double *tag_rise;  /* [tags] in nats; infinite: no bound of its own */
    double max_rise;
};

/* What the newest evaluation of a draft has found. */
struct hzp_gate_finding {
    double before, after; /* mean losses, of the serving version and of the draft */
    const char *tag;      /* refused: the tag whose loss has risen too much; NULL: that of all */
    double was, is;       /* refused: the lowest loss so far, and the draft's */
};

struct hzp_gate_check;

/* Both borrowed.  It cannot fail. */
struct hzp_gate_check *hzp_gate_create(const struct hzp_gate *config, struct hzp_learner *learner);
void hzp_gate_destroy(struct hzp_gate_check *gate); /* NULL: no effect */

/* An update has ended well: begins the first chain of the evaluation. */
void hzp_gate_begin(struct hzp_gate_check *gate);
/* Whether the end of the chain in progress decides about the draft. */
bool hzp_gate_decides(const struct hzp_gate_check *gate);
/* A chain of the evaluation has ended: begins the next, or decides. */
enum hzp_gate_result { HZP_GATE_GOES_ON, HZP_GATE_PASSED, HZP_GATE_REFUSED };
enum hzp_gate_result hzp_gate_next(struct hzp_gate_check *gate, struct hzp_gate_finding *ret);
/* The draft that passed is published: its losses are those of the serving version from here on. */
void hzp_gate_accept(struct hzp_gate_check *gate);
/* Another version serves than the one whose losses are known. */
void hzp_gate_forget(struct hzp_gate_check *gate);
