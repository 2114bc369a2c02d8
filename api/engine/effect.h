/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/effect.h - what a lesson has changed, measured with the versions that serve.
 *
 *     note     the loss on its examples, under the version that served when it was accepted
 *     learned  their loss, and the answers to their prompts, under the version that serves then;
 *              the answers to other prompts, which are compared with those of the version before
 *
 * With trials that judge, the others are asked before the lesson is published, too, of the version
 * on trial, which may be promoted only if at most max_effect of their answers have changed.
 *
 * With trials that only observe (weights/trials.h), all that is found is found of the draft that
 * ends the lesson, before it is published: where the others' answers are known when the lesson is
 * accepted, for at most a third of the time that the lesson has taken, and the trials' time.  What
 * is not known by then is asked of the same version when it serves.
 *
 * Other prompts are those of --gate, of earlier lessons and of --replay.  Their answers are kept
 * from lesson to lesson and asked anew where another version serves than the one that gave them.
 * All are greedy, of a few tokens, and ordinary requests of the least priority, four at a time,
 * which this process's scheduler computes.  An answer that a swap interrupts is asked again.
 *
 * Bounds: EFFECT_WAITING lessons wait to be measured, others are not, and without trials measuring
 * takes at most a quarter of the time.
 *
 * Thread: any; the measuring is a thread's of its own ("hzp-effect").
 */
#pragma once

#include "api/learn/state.h"
#include "serve/scheduler.h"

struct hzp_effects;

enum { HZP_EFFECT_OTHERS_MAX = 256 };

struct hzp_effects_config {    /* all borrowed */
    int32_t others;            /* prompts that are asked beside the lesson's; 1 .. the maximum */
    struct hzp_trials *trials; /* those that judge by max_effect, or observe; NULL: none do */
    double max_effect;         /* share of the others' answers that may change then */
    struct hzp_state *state;
    struct hzp_scheduler *scheduler;
    struct hzp_loop *loop;
    struct hzp_weights *weights;
    const struct hzp_tokenizer *tok;
    int32_t context; /* tokens that a request may have */
};

/* NULL: no thread is left. */
struct hzp_effects *hzp_effects_start(const struct hzp_effects_config *config);
/* Ends the thread, when the loop has ended or still runs, and the scheduler exists.  NULL: no
 * effect. */
void hzp_effects_stop(struct hzp_effects *e);

/* A lesson is about to be accepted: waits for half a second at most until the answers of the
 * version that serves are known, unless another lesson is being learned, or another thread waits.
 * NULL: no effect. */
void hzp_effects_prepare(struct hzp_effects *e);
/* Examples first .. last were accepted together.  asks [count], array and samples, are taken over:
 * what they teach was taught by the example with their number, to other prompts, which are asked
 * when it is learned.  e NULL: no effect but that. */
void hzp_effects_note(struct hzp_effects *e, int64_t first, int64_t last, struct hzp_sample **asks,
                      int32_t count);
/* Whether the lesson that begins with `first` is still to be measured.  NULL: false. */
bool hzp_effects_pending(struct hzp_effects *e, int64_t first);
/* What clients are told of it, as in api/learn/lessons.h: what the state keeps, null while it is
 * not known, or of a lesson that is learned {"skipped": why it was not measured}.  e NULL: what the
 * state keeps. */
json_t *hzp_effects_tell(struct hzp_effects *e, struct hzp_state *state, int64_t first,
                         bool learned);
