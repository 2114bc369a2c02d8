/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/taught.h - what a client has taught, so that it can ask for weights that learned
 * it.
 *
 * A teaching answer's token, `after`, names its newest example: the number, and a check of number
 * and model, so that a token that was cut, or is of another model, is refused.
 *
 *     41-9f3c2a1b
 *
 * A session is a name that a client chooses and sends with teaching and with questions: the table
 * has the newest example taught in each.  A question of a session waits for weights that have
 * learned it.
 *
 * The log keeps the table across restarts (train/table/sample_log_lessons.c).  Bounds:
 * HZP_SESSIONS_MAX sessions; the one that was used longest ago makes room.  A session that is not
 * in the table counts as if it had taught everything that forgotten sessions have, so what it asks
 * for is never weakened.
 *
 * Thread: any.
 */
#pragma once

#include "train/table/sample_log.h"

enum { HZP_AFTER_BYTES = 40 };

struct hzp_taught;

/* model: identifies the model (copied); forgotten: the newest example that a session may have
 * taught which is not put in by hzp_session_restore. */
struct hzp_taught *hzp_taught_create(const char *model, int64_t forgotten);
void hzp_taught_destroy(struct hzp_taught *t); /* NULL: no effect */

/* The token of example n, written to ret and returned. */
const char *hzp_after_text(const struct hzp_taught *t, int64_t n, char ret[HZP_AFTER_BYTES]);
/* HZP_EINVAL: it is not a token of this server's model. */
int hzp_after_read(const struct hzp_taught *t, const char *text, int64_t *ret,
                   struct hzp_err_text *reterr);

/* HZP_EINVAL: a name must have 1 to HZP_SESSION_BYTES bytes. */
int hzp_session_check(const char *name, struct hzp_err_text *reterr);
/* A session of an earlier run; before any other thread knows the table. */
void hzp_session_restore(struct hzp_taught *t, const struct hzp_session *session);
/* Examples up to n were taught in the session. */
void hzp_session_note(struct hzp_taught *t, const char *name, int64_t n);
/* The newest example that the session may have taught; 0: none. */
int64_t hzp_session_newest(struct hzp_taught *t, const char *name);
