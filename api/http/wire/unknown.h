/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/unknown.h - counts the fields of requests that this server does not have and
 * ignores (field_table.h says which are refused), and logs each once.
 *
 * Bounds: the names that are logged; further ones are only counted.
 *
 * Thread: any.
 */
#pragma once

#include "base/thread.h"

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

/* A request had the field: counts it, and logs its name if it is the first with it. */
void hzp_unknown_count(struct hzp_unknown *u, const char *name);
