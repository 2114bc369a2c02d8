/* SPDX-License-Identifier: Apache-2.0 */
/* train/trainer_rejoin.h - the trainer of a server whose other ranks were lost, and have met again.
 *
 *     part -> parted -> [the link is closed] -> closed -> [the ranks meet] -> suspend
 *          -> [state is loaded] -> give -> joined -> resume
 *
 * Between part and joined it learns nothing, and serving goes on.  When the link is closed, what
 * the loss has interrupted is given up: micro-batches, an update and its tail, finished updates
 * that were not published.  Suspension (trainer_suspend.h) is granted only then.  The lost rank's
 * shards of moments and residuals are gone, so the caller loads those of a checkpoint, of the
 * serving version or of an older one that it makes serve again.
 *
 * Thread: any but the engine's, one at a time: that of checkpoints, because while ranks are missing
 * nothing can be saved; set_rejoins, rejoins, part and parted: any.
 */
#ifndef HZP_TRAIN_TRAINER_REJOIN_H
#define HZP_TRAIN_TRAINER_REJOIN_H

#include "train/trainer.h"

/* Whether other ranks that are lost come back.  If not, the trainer is broken by a loss. */
void hzp_trainer_set_rejoins(struct hzp_trainer *t, bool on);
/* A rank was lost, and the ranks will meet again: the trainer is asked to let go of the link, or
 * soon will be.  Any thread, the engine's too. */
bool hzp_trainer_rejoins(struct hzp_trainer *t);

/* Asks the engine thread to let go of the link, which has failed; poke the loop, and look until
 * parted.  Only then may the link be closed. */
void hzp_trainer_part(struct hzp_trainer *t);
bool hzp_trainer_parted(struct hzp_trainer *t);
/* Once the link is closed, and nothing is being saved. */
void hzp_trainer_link_closed(struct hzp_trainer *t);
/* Between part and joined: nothing is saved.  Any thread. */
bool hzp_trainer_parting(const struct hzp_trainer *t);

/* While suspended: gives the ranks at the other ends of this new link the serving version, and
 * moments and residuals of the checkpoint in dir (NULL: zeros), which this rank has loaded
 * (start_state.h).  It waits for them.  HZP_EIO: the link failed; other errors name the rank. */
int hzp_trainer_give(struct hzp_trainer *t, struct hzp_link *link, const char *dir,
                     struct hzp_err_text *reterr);
/* After give, in the loop's next turns: the trainer works with these ranks, and may be resumed. */
bool hzp_trainer_joined(struct hzp_trainer *t);

#endif
