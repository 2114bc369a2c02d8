/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/journal.h - what lets a stream go on in another process than the one that began
 * it.
 *
 * The launcher of several ranks may hold the clients' connections in a relay, a process of its own,
 * and have it pass their requests on to rank 0 through a Unix socket.  Rank 0 is then *relayed*.
 * When it dies, the relay sends a request again to the next rank 0.  For that a relayed rank 0
 * writes a journal into each stream, as comments of the event stream, which the relay takes out:
 *
 *     : hzp t CHOICE TOKEN RANK VERSION PROMPT_VERSION LOGPROB    a token of a choice
 *     : hzp c CHOICE                                              the choice has ended
 *     : hzp g                                                     the end of a group
 *     : hzp d                                                     instead of it: of the last group
 *
 * The events of a group belong to its tokens: its lines follow its events.  The relay passes on the
 * events of whole groups only, and keeps their lines t and c.
 *
 * A request that is sent again has these headers:
 *
 *     x-request-id            as the first time: the answer's ids follow from it
 *     x-hzpserve-created      unix seconds: the time in the answer
 *     x-hzpserve-resume       so many bytes of the body are lines t and c, all so far; the body as
 *                             the client sent it follows
 *
 * Its choices begin with these tokens, as those of a request whose replica was lost.  Their events
 * are made once more and thrown away, so that all that follows from the text (stop strings, calls,
 * blocks, numbers of events) is as it was.  What the client gets is then the rest of the same
 * stream, but for what is told of this process: how many tokens of the prompt its prefix cache had,
 * the largest staleness since, and swaps after which all was computed again.
 *
 * Where rank 0 is not relayed, no lines are written and these headers have no effect.
 *
 * Thread: as answer.h.
 */
#pragma once

#include "api/http/routes/answer.h"

/* Pool: the completion is made and not submitted yet, the exchange's body is there.  Takes over
 * time and tokens that a relayed request comes with.  HZP_EINVAL: they are malformed. */
int hzp_journal_begin(struct hzp_answer *a, struct hzp_err_text *reterr);

/* Appends the lines of what a->out has new events of, or (events false) none.  HZP_ENOMEM. */
int hzp_journal_write(struct hzp_answer *a, bool events);
