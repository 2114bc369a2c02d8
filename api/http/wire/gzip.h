/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/gzip.h - reads a request's body that comes as gzip (RFC 1952), as it arrives.
 *
 * Bounds: it has no memory beside the library's window; the caller says when there is enough.
 * Thread: one per body.
 */
#pragma once

#include "base/base.h"

struct hzp_gzip;

/* Whether this value of Content-Encoding is one that is read here. */
bool hzp_gzip_named(const char *coding);

int hzp_gzip_create(struct hzp_gzip **ret);   /* HZP_ENOMEM */
void hzp_gzip_destroy(struct hzp_gzip *gzip); /* NULL: no effect */

/* Takes the next bytes; more() gets what they are, in pieces, and returns false to end this.
 * HZP_EFORMAT: they are no gzip; HZP_ECANCELED: more() has ended it. */
int hzp_gzip_feed(struct hzp_gzip *gzip, const char *data, size_t bytes,
                  bool (*more)(void *ctx, const char *text, size_t bytes), void *ctx);

/* Whether the bytes so far are none, or one or several whole members. */
bool hzp_gzip_whole(const struct hzp_gzip *gzip);
