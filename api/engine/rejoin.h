/* SPDX-License-Identifier: Apache-2.0 */
/* api/engine/rejoin.h - a server's rank 0 goes on serving when another rank is lost, and learns
 * again when a new process has taken its place.
 *
 *     watch -> a rank is lost -> the trainer lets go of the link -> all ranks meet again
 *           -> they get groups, version and state -> learning goes on -> watch
 *
 * A loss during any of these begins again with the meeting.  The engine's thread never waits here.
 *
 * Thread: one of its own ("hzp-rejoin"); start and stop: the thread that started the engine.
 */
#pragma once

#include "api/engine/engine.h"

struct hzp_rejoin;

/* Watches the engine's ranks, whose link is zmq; it bears settings->restarts losses.  record: see
 * hzp_control_meet, copied.  *ret NULL: ranks on GPUs do not come back.  HZP_ENOMEM. */
int hzp_rejoin_start(struct hzp_engine *engine, const struct hzp_ranks_settings *settings,
                     const char *record, struct hzp_rejoin **ret, struct hzp_err_text *reterr);

/* Before the engine stops; ends soon, wherever it is.  NULL: no effect. */
void hzp_rejoin_stop(struct hzp_rejoin *r);
