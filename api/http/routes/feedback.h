/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/feedback.h - scores that clients give to answers, for the comparison of versions
 * (weights/trials.h).  Nothing is learned from them.
 *
 * The table has the newest HZP_FEEDBACK_ANSWERS answers that had a token: the id, and which version
 * answered.  An answer has one score; another one replaces it.
 *
 * Thread: any (one lock inside).
 */
#pragma once

#include "api/http/routes/completion.h"

enum { HZP_FEEDBACK_ANSWERS = 4096 };

struct hzp_feedback;

/* trials: borrowed; NULL: versions are not compared. */
struct hzp_feedback *hzp_feedback_create(struct hzp_trials *trials);
void hzp_feedback_destroy(struct hzp_feedback *f); /* NULL: no effect */

/* Before the client can have the answer: c has ended, or its client has left. */
void hzp_feedback_note(struct hzp_feedback *f, const char *id, const struct hzp_completion *c);

/* Gives the answer a score.  False: there is none with this id. */
bool hzp_feedback_score(struct hzp_feedback *f, const char *id, double score, uint64_t *ret_version,
                        bool *ret_trial);

struct hzp_feedback_stats {
    uint64_t scores; /* also those that replaced another one */
    double sum;
};
void hzp_feedback_read(struct hzp_feedback *f, struct hzp_feedback_stats *ret);
