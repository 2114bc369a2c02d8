/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/structure_wait.h - a request that waits for its grammar.
 *
 * A grammar may take seconds (text/chat/structure.h).  It is made by the server's lanes, one for
 * each size, so the request holds no thread of the pool meanwhile, and small grammars do not wait
 * for large ones.  Of a client that leaves, the request ends at once: it is taken out of its lane,
 * or its grammar is given up.
 *
 * Bounds: a request is in one lane at a time, so their queues are bounded by the connections; while
 * they are made, grammars take HZP_STRUCTURE_SMALL bytes for each thread of the first two lanes and
 * HZP_STRUCTURE_LARGE for the one of the last.
 *
 * Thread: pool; `then` runs on a lane's.
 */
#pragma once

#include "api/http/routes/completion.h"
#include "api/http/wire/http.h"

/* Goes on with the request, whose grammar is made.  params: the caller's. */
typedef void hzp_structure_then(struct hzp_exchange *x, struct hzp_completion_params *params);

/* Takes params over (zeroed) and returns: the exchange, which has its `resume`, goes on by `then`,
 * or is answered or closed. */
void hzp_structure_wait(struct hzp_exchange *x, struct hzp_completion_params *params,
                        hzp_structure_then *then);
