/* SPDX-License-Identifier: Apache-2.0 */
/* train/sample_queue.h - samples waiting to be learned, and the draw of an update's samples.
 *
 * Bounded by samples and by tokens.  Space is reserved before a body is committed to the log, so
 * a commit is never followed by "full".  Each sample is learned `passes` times, in rounds: in a
 * round each is drawn once, oldest first.  An update never holds a sample twice, and mixes in
 * replay samples at the given ratio.  Drawing is a pure function of the seed and of the sequence of
 * pushes and draws.
 *
 * Thread: reserve, unreserve, push, restore, ready, stats any; the rest engine.
 */
#ifndef HZP_TRAIN_SAMPLE_QUEUE_H
#define HZP_TRAIN_SAMPLE_QUEUE_H

#include "train/sample_log.h"

struct hzp_sample_queue;

struct hzp_sample_queue_config {
    int32_t samples_max;
    int64_t tokens_max;
    int32_t passes;      /* how often each sample is learned, >= 1 */
    double replay_ratio; /* replay tokens per token of new samples; 0: none */
    bool shuffle;        /* offline epochs: a new random order every pass, no update spans two */
    uint64_t seed;
    int64_t learned_through; /* what a resumed checkpoint covers already; <= 0: nothing */
};

int hzp_sample_queue_create(const struct hzp_sample_queue_config *config,
                            struct hzp_sample_queue **ret);
void hzp_sample_queue_destroy(struct hzp_sample_queue *q); /* with what it holds; NULL: no effect */

/* Thread: any.  HZP_EBUSY: no room now.  HZP_EINVAL: more than the queue's bounds. */
int hzp_sample_queue_reserve(struct hzp_sample_queue *q, int32_t samples, int64_t tokens);
void hzp_sample_queue_unreserve(struct hzp_sample_queue *q, int32_t samples, int64_t tokens);
/* Hands over samples whose space was reserved.  Those of the log come in the order of their
 * numbers: the caller holds one lock around commit and push. */
void hzp_sample_queue_push(struct hzp_sample_queue *q, struct hzp_sample **sample, int32_t count);

/* Hands over samples read back from the log, beyond the bounds if necessary: an accepted sample is
 * never refused.  Before any push. */
void hzp_sample_queue_restore(struct hzp_sample_queue *q, struct hzp_sample **sample,
                              int32_t count);

/* The replay set; takes the samples.  Before the engine starts. */
void hzp_sample_queue_set_replay(struct hzp_sample_queue *q, struct hzp_sample **sample,
                                 int32_t count);

/* True: there is something to learn. */
bool hzp_sample_queue_ready(struct hzp_sample_queue *q);

/* Draws the samples of one update: new ones up to tokens_max tokens (at least one if any is
 * ready), then replay on top.  Borrowed until the next draw.  Returns how many. */
int32_t hzp_sample_queue_draw(struct hzp_sample_queue *q, int64_t tokens_max,
                              const struct hzp_sample **ret, int32_t max);

/* The update with what was drawn is done: passes are counted down, finished samples leave.
 * Every sample numbered up to the result has had all its passes (-1: none yet). */
int64_t hzp_sample_queue_done(struct hzp_sample_queue *q);
/* The update did not happen (not finite, device busy): the same samples will be drawn again. */
void hzp_sample_queue_undo(struct hzp_sample_queue *q);

struct hzp_sample_queue_stats {
    int32_t samples, samples_max;
    int64_t tokens, tokens_max, learned_through;
};
void hzp_sample_queue_read_stats(struct hzp_sample_queue *q, struct hzp_sample_queue_stats *ret);

/* How many updates a queue filled with samples of these token counts will give until all passes
 * are done: the number of steps of a learning-rate schedule.  Thread: any. */
int64_t hzp_sample_queue_count_draws(const struct hzp_sample_queue_config *config,
                                     const int32_t *tokens, int32_t samples, int64_t tokens_max,
                                     int32_t max);

#endif
