/* SPDX-License-Identifier: Apache-2.0 */
/* base/log.h - one event, one line, to standard error: as text, or as a JSON object.
 *
 *     2026-01-31T12:00:00.000Z info  4711/r0 state: checkpoint version=7 seconds=0.25
 *     {"time":"2026-01-31T12:00:00.000Z","level":"info","subsystem":"state","pid":4711,
 *      "process":"r0","event":"checkpoint","version":7,"seconds":0.25}
 *
 * The JSON form is made from the text: where everything behind the first words has the form
 * `key=value`, the words are the event and the pairs its fields; else the whole text is the event.
 * A value that contains spaces is written between double quotes.
 *
 * No line waits for its reader: where standard error is a pipe or terminal that is full, lines are
 * dropped, and the next one that can be written follows a line that says how many.
 *
 * Functions return errors; only api/, nanobatch/loop.c and device/ log them. The message of a
 * failure that is tolerated ends in ", ignoring". Levels are set once at start: one for all
 * subsystems, and others for those that are named.
 *
 * Thread: any; a line is one write, so lines of two threads never mix.
 */
#pragma once

#include "base/err.h"

enum hzp_log_level { HZP_LOG_ERROR, HZP_LOG_WARN, HZP_LOG_INFO, HZP_LOG_DEBUG };

/* The subsystems: what hzp_log may be called with. "trace": failures passed on by HZP_TRY. */
/* clang-format off */
#define HZP_LOG_SUBSYSTEMS(X)                                                                      \
    X(cuda) X(device) X(engine) X(exec) X(http) X(log) X(loop) X(mesh) X(ranks) X(serve) X(state)  \
    X(trace) X(train)
/* clang-format on */

/* Sets the level of every subsystem. */
void hzp_log_set_level(enum hzp_log_level level);

/* Sets levels from a text: parts separated by commas, each a level (error, warn, info, debug) for
 * all subsystems, or SUBSYSTEM=LEVEL; later parts win: "info,serve=debug,http=error".
 * HZP_EINVAL: the text names the part that is wrong, and no level has changed. */
int hzp_log_set(const char *text, struct hzp_err_text *reterr);

/* hzp_log_set with HZP_LOG from the environment; a wrong value is reported once and ignored.  For
 * programs without options: hzpserve's --log-level has that variable for a default, and refuses
 * such a value. */
void hzp_log_init(void);

/* What this process is in a run of several: "r0" is rank 0.  Borrowed; before other threads log. */
void hzp_log_set_part(const char *name);

enum hzp_log_format { HZP_LOG_TEXT, HZP_LOG_JSON };

/* The form of all lines from now on, and the present one. */
void hzp_log_set_format(enum hzp_log_format format);
enum hzp_log_format hzp_log_get_format(void);

/* Whether a line of that level and subsystem would be written. */
bool hzp_log_enabled(enum hzp_log_level level, const char *subsystem);

/* subsystem: one of HZP_LOG_SUBSYSTEMS; format: "event key=%d". */
void hzp_log(enum hzp_log_level level, const char *subsystem, const char *format, ...)
    HZP_PRINTF(3, 4);
