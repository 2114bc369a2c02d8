/* SPDX-License-Identifier: Apache-2.0 */
/* train/history/trainer_rejoin.h - the trainer of a server whose other ranks were lost, and have
 * met again.
 *
 *     part -> [the link is closed, the ranks meet] -> link_closed -> suspend -> join
 *          -> [the serving version or an older one, and its state, are loaded and sent] -> resume
 *
 * From part to resume it learns nothing, and serving goes on.  When the link is closed,
 * what the loss has interrupted is given up: micro-batches, an update and its tail, finished
 * updates that were not published.  Suspension (trainer_suspend.h) is possible only then.  The
 * lost rank's shards of moments and residuals are gone, so the caller loads those of a
 * checkpoint, of the serving version or of an older one that it makes serve again.
 *
 * Thread: part and link_closed are functions of border calls (nanobatch/border.h): engine; join:
 * any but the engine's, that of checkpoints, because while ranks are missing nothing can be saved;
 * set_rejoins, rejoins, parting: any.
 */
#pragma once

#include "train/conductor/trainer.h"

/* Done when the trainer uses the link, which has failed, no more.  Only then may it be closed. */
int hzp_trainer_part(void *trainer, const struct hzp_border *border);
/* Once the link is closed, and nothing is being saved. */
int hzp_trainer_link_closed(void *trainer, const struct hzp_border *border);
/* While suspended: works with the ranks at the other ends of this new link from then on.  They have
 * neither version nor state: hzp_trainer_load_suspended or hzp_trainer_clear_suspended, and
 * hzp_trainer_restore_ranks, send both.  It waits for the loop.  HZP_EIO: the link failed;
 * HZP_ECANCELED: the loop has ended; other errors name the rank. */
int hzp_trainer_join(struct hzp_trainer *t, struct hzp_link *link, struct hzp_err_text *reterr);
