/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/unknown.h - what becomes of a request's fields that this server does not have.
 *
 * A field that would change the answer (response_format, bad_words, ...) is refused, because an
 * answer without its effect is wrong; unless its value asks for nothing (null, false, an empty
 * list).  Any other unknown field is ignored, counted, and logged once.
 *
 * Bounds: the names that are logged; further ones are only counted.
 *
 * Thread: any.
 */
#ifndef HZP_API_HTTP_UNKNOWN_H
#define HZP_API_HTTP_UNKNOWN_H

#include "base/err.h"
#include "base/thread.h"

#include <jansson.h>
#include <stdatomic.h>

enum { HZP_UNKNOWN_NAMES = 64, HZP_UNKNOWN_BYTES = 48 };

struct hzp_unknown {
    _Atomic uint64_t fields; /* ignored so far */
    struct hzp_lock lock;
    /* under lock */
    char name[HZP_UNKNOWN_NAMES][HZP_UNKNOWN_BYTES];
    int names;
};

void hzp_unknown_init(struct hzp_unknown *u);
void hzp_unknown_fini(struct hzp_unknown *u);

/* known: the names of the request's own fields, ended by NULL.  HZP_EINVAL: a field that would
 * change the answer; text and param name it. */
int hzp_unknown_check(struct hzp_unknown *u, const json_t *body, const char *const known[],
                      struct hzp_err_text *reterr);

#endif
