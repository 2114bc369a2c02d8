/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/lessons.h - what was taught together, body by body, what became of it, and teaching it
 * once more after it was taken back.  Taking back is a job (versions.h).
 *
 * Thread: any, once the state is open.
 */
#pragma once

#include "api/learn/state.h"

enum hzp_lesson_state {
    HZP_LESSON_WAITING, /* or it is being learned */
    HZP_LESSON_LEARNED, /* the serving version is done with all of it */
    HZP_LESSON_UNDONE,  /* taken back, or skipped when an older version was activated */
    HZP_LESSON_FORGOTTEN,
    HZP_LESSON_REJECTED, /* the gate refused it, or its trial ended badly */
    HZP_LESSON_FAILED    /* given up in all passes, because updates were not finite */
};
const char *hzp_lesson_state_name(enum hzp_lesson_state state);

/* What became of a lesson; where its examples fared differently, of those that are not learned. */
enum hzp_lesson_state hzp_lesson_state(struct hzp_state *s, const struct hzp_logged_lesson *lesson,
                                       int64_t learned_through);

/* Whether any example of the lesson is learned or will be, so that it can be taken back. */
bool hzp_lesson_counts(struct hzp_state *s, const struct hzp_logged_lesson *lesson);

/* The newest `max` lessons with ids below `below`, newest first; returns their number. */
int32_t hzp_state_lessons(struct hzp_state *s, int64_t below, int32_t max,
                          struct hzp_logged_lesson *ret, struct hzp_err_text *reterr);
/* id 0: the newest that counts.  HZP_ENOENT. */
int hzp_state_lesson(struct hzp_state *s, int64_t id, struct hzp_logged_lesson *ret,
                     struct hzp_err_text *reterr);

/* The lesson that begins with this example.  HZP_ENOENT. */
int hzp_state_lesson_of(struct hzp_state *s, int64_t first, struct hzp_logged_lesson *ret,
                        struct hzp_err_text *reterr);

/* Whether a body with this key asked before to take a lesson back: 1, *ret_lesson is the lesson's
 * id; 0: no, or it has no key.  HZP_EINVAL: the key came with another body. */
int hzp_state_undone_by(struct hzp_state *s, const struct hzp_body_key *key, int64_t *ret_lesson,
                        struct hzp_err_text *reterr);
/* From here on it did. */
int hzp_state_note_undo(struct hzp_state *s, const struct hzp_body_key *key, int64_t lesson,
                        struct hzp_err_text *reterr);

/* Teaches the lesson's examples once more, as new ones, which are *ret_first .. *ret_last; if a
 * body with this key did before, those.  HZP_ENOENT: their texts were forgotten; HZP_EBUSY: the
 * queue is full. */
int hzp_state_teach_again(struct hzp_state *s, const struct hzp_logged_lesson *lesson,
                          const struct hzp_body_key *key, int64_t *ret_first, int64_t *ret_last,
                          struct hzp_err_text *reterr);

/* The texts that are left of examples first .. last; at most max.  The caller owns them.  Returns
 * their number; 0 also if they cannot be read. */
int32_t hzp_state_samples(struct hzp_state *s, int64_t first, int64_t last, int32_t max,
                          struct hzp_sample **ret);

/* The last answer that the sample teaches, of a pair its chosen one: tokens *ret_begin up to
 * before *ret_end.  *ret_begin at most 1: the text is learned from its beginning on. */
void hzp_lesson_answer(const struct hzp_sample *sample, int32_t *ret_begin, int32_t *ret_end);

/* What a lesson has changed, kept with it under the number of its first example:
 *
 *     {"from_version", "to_version", "draft", "loss_before", "loss_after", "asked", "answered_so",
 *      "questions", "paraphrased", "paraphrased_so", "paraphrases", "others", "changed", "samples",
 *      "others_loss_before", "others_loss_after"}
 *
 * The members named by text [texts] hold texts of examples, this lesson's and others': they are
 * erased when any example is forgotten.  A failure to write it is logged. */
void hzp_state_put_effect(struct hzp_state *s, int64_t first, const json_t *effect,
                          const char *const *text, int texts);
/* A new reference; NULL: nothing is known. */
json_t *hzp_state_effect(struct hzp_state *s, int64_t first);

/* Why examples of the lesson first .. last were rejected: a new reference, null: they were not, or
 * by an earlier build. */
json_t *hzp_state_reason(struct hzp_state *s, int64_t first, int64_t last);
/* What is kept of jobs of rollouts (api/rollout): as hzp_sample_log_set_note and
 * hzp_sample_log_whole_note. */
int hzp_state_put_note(struct hzp_state *s, const char *name, const char *value,
                       struct hzp_err_text *reterr);
char *hzp_state_note(struct hzp_state *s, const char *name);
