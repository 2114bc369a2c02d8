/* SPDX-License-Identifier: Apache-2.0 */
/* api/learn/csv.h - tables of text, as spreadsheets and pandas write them (RFC 4180): a line of
 * names, then lines of values.  A value that has the delimiter, a quote or an end of line in it
 * stands between quotes, a quote in it is doubled.
 *
 * Thread: any; values.
 */
#pragma once

#include "base/err.h"

#include "base/json.h"

/* Calls found for each line of values, with an object of strings by name, which is borrowed, and
 * the line on which it begins, from 1; empty lines are passed over.  < 0 from found ends the
 * reading.  HZP_EINVAL: two names are the same, a line has more or fewer values than there are
 * names, a quote does not end, or a text is not UTF-8: the error begins with the line.
 * HZP_ENOMEM. */
int hzp_csv_read(const char *text, size_t bytes, char delimiter,
                 int (*found)(void *ctx, int64_t line, json_t *object), void *ctx,
                 struct hzp_err_text *reterr);
