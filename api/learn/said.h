/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/said.h - notices examples that answer a prompt otherwise than an earlier one does.
 *
 * A table of the newest prompts that were taught, each by its hash, with the hash of its answer and
 * the number of its example.  It is filled from the log, at first with the newest examples there.
 * Examples that were taken back, forgotten or given up count for nothing.
 *
 * Thread: any (one lock inside) but the engine's, because it reads the log.
 */
#ifndef HZP_API_LEARN_SAID_H
#define HZP_API_LEARN_SAID_H

#include "api/learn/state.h"

#include <jansson.h>

enum { HZP_SAID_PLACES = 16384, HZP_SAID_TOLD = 10 };

struct hzp_said;

struct hzp_said *hzp_said_create(void);
void hzp_said_destroy(struct hzp_said *said); /* NULL: no effect */

/* Examples first .. last are in the log: a list of {"example", "earlier", "message"} for each of
 * them whose prompt has another answer in an earlier example; HZP_SAID_TOLD at most. */
json_t *hzp_state_contradictions(struct hzp_state *s, int64_t first, int64_t last);

#endif
