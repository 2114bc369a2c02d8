/* SPDX-License-Identifier: Apache-2.0 */
/* train/table/sample_queue.h - queues samples for training and draws the samples of each update.
 *
 * Bounded in samples and in tokens.  Space is reserved before a body is committed to the log, so a
 * committed body always fits.  Each sample is learned `passes` times, in rounds: in a round each is
 * drawn once, oldest first.  An update never contains a sample twice, and mixes in replay samples
 * and samples learned earlier at the given ratios.  Drawing is a pure function of the seed and of
 * the sequence of pushes and draws.
 *
 * Thread: reserve, unreserve, push, restore, ready and stats: any; the rest: engine, or as the
 * function says.
 */
#pragma once

#include "train/table/sample_log.h"

struct hzp_sample_queue;

struct hzp_sample_queue_config {
    int32_t samples_max;
    int64_t tokens_max;
    int32_t passes;        /* number of times each sample is learned, >= 1 */
    double replay_ratio;   /* replay tokens per token of new samples; 0: none */
    double rehearse_ratio; /* the same of samples learned earlier (below); 0: none */
    bool shuffle;          /* offline epochs: a new random order in every pass; no update spans two
                          * passes */
    bool by_lesson;        /* samples of the log are drawn in groups of lessons: see below */
    uint64_t seed;
    int64_t learned_through; /* already covered by the resumed checkpoint; <= 0: nothing */
};

/* Empty; the configuration is copied.  HZP_EINVAL: a bound below 1, or a replay ratio below 0 or
 * above 1000. */
int hzp_sample_queue_create(const struct hzp_sample_queue_config *config,
                            struct hzp_sample_queue **ret);
void hzp_sample_queue_destroy(struct hzp_sample_queue *q); /* with its samples; NULL: no effect */

/* Thread: any.  HZP_EBUSY: no room now.  HZP_EINVAL: exceeds the queue's bounds even when empty. */
int hzp_sample_queue_reserve(struct hzp_sample_queue *q, int32_t samples, int64_t tokens);
void hzp_sample_queue_unreserve(struct hzp_sample_queue *q, int32_t samples, int64_t tokens);
/* Hands over samples whose space was reserved.  Samples of the log must come in the order of their
 * numbers, so the caller holds one lock around commit and push. */
void hzp_sample_queue_push(struct hzp_sample_queue *q, struct hzp_sample **sample, int32_t count);

/* Hands over samples read back from the log, for the passes that they have not had; may exceed the
 * bounds, because an accepted sample is never refused.  Call before any push.  Returns how many
 * have any left; it frees the others. */
int32_t hzp_sample_queue_restore(struct hzp_sample_queue *q, struct hzp_sample **sample,
                                 int32_t count);

/* Thread: any.  The passes that samples of the log after learned_through have had, in the order of
 * their numbers; the caller frees *ret.  Returns the number of ranges.  What is drawn is not
 * counted, so they are those of the weights while no update is in progress. */
int32_t hzp_sample_queue_passes(struct hzp_sample_queue *q, struct hzp_passes **ret);

/* Sets the replay samples and takes ownership of them.  Call before the engine starts. */
void hzp_sample_queue_set_replay(struct hzp_sample_queue *q, struct hzp_sample **sample,
                                 int32_t count);
/* One of the replay samples, which stays as it is; NULL: there are fewer.  Any thread. */
struct hzp_sample *hzp_sample_queue_replay(const struct hzp_sample_queue *q, int32_t index);

/* How long the oldest sample that is not finished has been here at now_ns (any clock, the same in
 * every call); 0: there is none.  A sample's time begins with the first call after its push. */
uint64_t hzp_sample_queue_age(struct hzp_sample_queue *q, uint64_t now_ns);

/* True: there are samples to learn. */
bool hzp_sample_queue_ready(struct hzp_sample_queue *q);

/* Draws the samples of one update: new ones up to tokens_max tokens (at least one if any is ready),
 * then additional replay samples.  Borrowed until the next draw.  Returns their number. */
int32_t hzp_sample_queue_draw(struct hzp_sample_queue *q, int64_t tokens_max,
                              const struct hzp_sample **ret, int32_t max);

/* While samples are drawn: draws those of the update after theirs, too, or returns again what undo
 * has given back.  They are the drawn ones as soon as the drawn ones' update is done, given up or
 * rejected.  Draws exactly what a draw would then; returns 0 where that is not known yet, because
 * too few tokens wait in this round. */
int32_t hzp_sample_queue_draw_ahead(struct hzp_sample_queue *q, int64_t tokens_max,
                                    const struct hzp_sample **ret, int32_t max);

/* To be called when the update with the drawn samples is done: counts down their passes and
 * removes finished samples.  Every sample numbered up to the result has had all its passes, or has
 * failed (-1: none yet). */
int64_t hzp_sample_queue_done(struct hzp_sample_queue *q);
/* What done would return now. */
int64_t hzp_sample_queue_foresee(struct hzp_sample_queue *q);
/* The same if the update was given up: the samples' pass is skipped.  A sample that leaves without
 * having been learned in any pass has failed.  What was drawn ahead is undone before. */
int64_t hzp_sample_queue_give_up(struct hzp_sample_queue *q);
/* A drawn sample of the log cannot be learned (it is too long, or has nothing to learn): it has
 * failed. */
void hzp_sample_queue_fail(struct hzp_sample_queue *q, int64_t number);
/* Thread: any.  The numbers of samples of the log that have failed, in order of their failure, from
 * the one with index `from` on; returns how many were written. */
int32_t hzp_sample_queue_failed(struct hzp_sample_queue *q, int32_t from, int64_t *ret,
                                int32_t max);
/* To be called if the update did not happen (not finite, device busy): the next draw returns the
 * same samples again, and the next draw ahead those that were drawn ahead. */
void hzp_sample_queue_undo(struct hzp_sample_queue *q);

/* The next draw ahead, or the next draw, returns what was drawn ahead; no effect if nothing was. */
void hzp_sample_queue_undo_ahead(struct hzp_sample_queue *q);

/* The same if the gate refused the draft: the drawn samples of the log leave, whatever passes they
 * had left, and are rejected. */
int64_t hzp_sample_queue_reject(struct hzp_sample_queue *q);
/* Thread: any.  As hzp_sample_queue_failed, of the rejected ones. */
int32_t hzp_sample_queue_rejected(struct hzp_sample_queue *q, int32_t from, int64_t *ret,
                                  int32_t max);

/* --- Earlier lessons (config.rehearse_ratio): sample_queue_earlier.c ----------------------------
 * The newest 256 samples of the log that have been learned are kept and drawn again with new ones,
 * so that a lesson does not replace those before it.  Not kept: pairs, samples with losses or
 * negative weights of their own, whose meaning depends on the version they were made for, and
 * samples of more than 4096 tokens.  Of
 * samples with the same prompt only the newest is kept, and none is drawn together with a new one
 * of its prompt: what was taught last holds.  What is drawn depends on the kept samples and on the
 * new samples of the update, not on earlier draws. */

/* Keeps a sample of the log, too, if it is one of those; takes ownership.  The caller makes sure
 * that nothing is drawn.  Any thread. */
void hzp_sample_queue_add_earlier(struct hzp_sample_queue *q, struct hzp_sample *sample);
/* The number of samples that are kept.  Any thread. */
int32_t hzp_sample_queue_earlier(struct hzp_sample_queue *q);

/* --- Groups (config.by_lesson): sample_queue_group.c --------------------------------------------
 * A group is the oldest lesson that waits (hzp_sample.lesson), and those behind it as long as all
 * of it fits into one update.  A draw that finds no group begins one; until a verdict about it only
 * its samples are drawn, and none of them leaves.  In this mode nothing is drawn ahead, and every
 * sample is one of the log. */

/* Thread: any. */
bool hzp_sample_queue_by_lesson(const struct hzp_sample_queue *q);
struct hzp_sample_group {
    int32_t samples;
    int64_t first, last; /* their smallest and largest number; 0: there is none */
    bool ended;          /* all of them have had all their passes: a verdict is due */
};
struct hzp_sample_group hzp_sample_queue_group(struct hzp_sample_queue *q);
/* Accepted: the group has ended, and its samples leave.  Rejected: they leave, whatever passes they
 * had left.  Withdrawn: it has never begun, and is the first again.  Returns what done does. */
enum hzp_group_verdict { HZP_GROUP_ACCEPTED, HZP_GROUP_REJECTED, HZP_GROUP_WITHDRAWN };
int64_t hzp_sample_queue_judge(struct hzp_sample_queue *q, enum hzp_group_verdict verdict);

/* --- While nothing is drawn, and nothing will be (hzp_trainer_suspended): any thread ---------- */

/* Forgets all samples of the log, as if they had never been pushed, and takes over these, which may
 * exceed the bounds.  pushed_through: those pushed from now on have larger numbers; none is pushed
 * meanwhile. */
void hzp_sample_queue_replace(struct hzp_sample_queue *q, struct hzp_sample **sample, int32_t count,
                              int64_t learned_through, int64_t pushed_through);
/* Removes one sample; false: it is not there. */
bool hzp_sample_queue_remove(struct hzp_sample_queue *q, int64_t number);

struct hzp_sample_queue_stats {
    int32_t samples, samples_max;
    int64_t tokens, tokens_max, learned_through;
    int64_t touched_through; /* the largest number that an update was made with; 0: none */
    double rows; /* tokens to be computed until all have had all their passes, with replay */
};
void hzp_sample_queue_read_stats(struct hzp_sample_queue *q, struct hzp_sample_queue_stats *ret);

/* Number of updates that a queue filled with samples of these token counts will give until all
 * passes are done: the number of steps of a learning-rate schedule.  Thread: any. */
int64_t hzp_sample_queue_count_draws(const struct hzp_sample_queue_config *config,
                                     const int32_t *tokens, int32_t samples, int64_t tokens_max,
                                     int32_t max);
