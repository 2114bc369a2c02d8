/* SPDX-License-Identifier: Apache-2.0 */
/* api/http/wire/request_log.h - ids of requests, and one line of the log for each that has ended.
 *
 * A request's id is what its client sends in x-request-id, if that is 1 to 64 letters, digits or
 * -_.:~+/=, else 32 random hexadecimal digits.  It is in the header x-request-id of every answer,
 * in the body of every error, in the id of a completion, and in the log.
 *
 *     info  http: request id=7f.. key=api method=POST route=/v1/completions status=200 ms=93.1
 *           prompt_tokens=12 tokens=64 ttft_ms=4.2 versions=6-7 finish=length
 *
 * Lines of answered GETs (health, metrics, lists) are logged at level debug, because they are
 * polled; all others, and errors, at info.
 *
 * Thread: any.
 */
#pragma once

#include "base/thread.h"

enum { HZP_REQUEST_ID_MAX = 64 };

/* What is known of a request before its answer. */
struct hzp_request_info {
    char id[HZP_REQUEST_ID_MAX + 1];
    const char *key;            /* the name of the key it came with; "none" */
    const char *method, *route; /* in the table of routes, or "none" */
    uint64_t begin_ns;
};

/* Writes the id to use for a request; given NULL: its client sent none. */
void hzp_request_id(const char *given, char ret[HZP_REQUEST_ID_MAX + 1]);

/* Logs the end of a request that made no completion.  status 0: it was not answered, because its
 * client disconnected. */
void hzp_request_log(const struct hzp_request_info *info, int status);

/* The same with more at the end of the line: text that begins with a space, or "". */
void hzp_request_log_more(const struct hzp_request_info *info, int status, const char *more);

/* ---- unknown.c: counts the fields of requests that this server does not have and ignores
 * (field_table.h says which are refused), and logs each once.
 *
 * Bounds: the names that are logged; further ones are only counted. */

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
