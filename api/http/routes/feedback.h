/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/feedback.h - what clients say of answers: scores, for the comparison of versions
 * (weights/trials.h), and what is learned from.
 *
 * The table has the newest HZP_FEEDBACK_ANSWERS answers that had a token: the id, and which version
 * answered.  An answer has one score; another one replaces it.  Its choices behind the first have
 * ids of their own, ID/1, ID/2.
 *
 * Receipts: of the newest of them, as far as the bytes suffice, the prompt's and the answer's
 * tokens, and the log-probabilities of these when they were drawn.  They are in memory only.
 *
 * Thread: any (one lock inside).
 */
#pragma once

#include "api/http/routes/completion.h"

enum { HZP_FEEDBACK_ANSWERS = 4096 };

struct hzp_feedback;

/* engine: borrowed. */
struct hzp_feedback *hzp_feedback_create(const struct hzp_engine *engine);
void hzp_feedback_destroy(struct hzp_feedback *f); /* NULL: no effect */

/* Before the client can have the answer: c has ended, or its client has left.  Training may compare
 * it with what it computes itself (hzp_trainer_compare). */
void hzp_feedback_note(struct hzp_feedback *f, const char *id, const struct hzp_completion *c);

/* The example is forgotten, and with it the receipts that have taught it. */
void hzp_feedback_forget(struct hzp_feedback *f, int64_t number);

struct hzp_feedback_stats {
    uint64_t scores; /* also those that replaced another one */
    double sum;
};
void hzp_feedback_read(struct hzp_feedback *f, struct hzp_feedback_stats *ret);
