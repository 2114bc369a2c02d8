/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/routes/route.h - what handlers of routes share: the checks that come before them, the
 * arguments of their paths, audit lines, answers that wait.
 *
 * Thread: as the handler's, where nothing else is said.
 */
#pragma once

#include "api/http/wire/http.h"

/* The key that makes a repeated body recognisable; *ret NULL: it has none.  HZP_EINVAL. */
int hzp_read_key(struct hzp_exchange *x, const char **ret, struct hzp_err_text *reterr);

/* Checks what the exchange's route needs (hzp_route.needs), its arguments against hzp_route.query
 * and its body against hzp_route.body, and calls its handler. */
enum MHD_Result hzp_route_answer(struct hzp_exchange *x);

/* The value of an argument of the route, which hzp_route_answer() has checked; absent: the default
 * that the table of fields has, or the highest value if it has none. */
int64_t hzp_query_int(const struct hzp_exchange *x, const char *name);
double hzp_query_number(const struct hzp_exchange *x, const char *name);

/* The whole number that a text is, up to `end`, which follows it; -1: it is none. */
int64_t hzp_path_number(const char *text, char end);

/* 404: the path's tail leads nowhere. */
enum MHD_Result hzp_reply_no_route(struct hzp_exchange *x);

/* Writes an audit line, if there is a state directory; takes over what. */
void hzp_route_audit(struct hzp_exchange *x, const char *action, json_t *what);

/* hzp_exchange.resume of an exchange that is woken when its answer is there. */
bool hzp_keep_waiting(struct hzp_exchange *x);

/* ---- answers that wait ----
 *
 * The exchange is parked; the notifying thread looks again and again whether there is an answer. */

struct hzp_waiting {
    struct hzp_exchange *x;
    struct hzp_note note;
    uint64_t end_ns;
    _Atomic bool left; /* the client disconnected */
    /* Notifying thread.  over: nothing more is to be waited for, because the time has passed, the
     * client has left or the engine has ended.  False, unless over: it looks again later.  True: it
     * has answered, and *ret is the answer's result; if the client has left it must not answer. */
    bool (*look)(struct hzp_waiting *w, bool left, bool over, enum MHD_Result *ret);
};

/* Begins to wait, for so many seconds at most; returns what the handler has to return.  w is the
 * first member of an allocated object, zeroed but for its owner's fields; it is freed at the end.
 */
enum MHD_Result hzp_wait(struct hzp_exchange *x, double seconds, struct hzp_waiting *w,
                         bool (*look)(struct hzp_waiting *, bool, bool, enum MHD_Result *));
