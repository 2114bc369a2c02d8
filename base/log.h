/* SPDX-License-Identifier: Apache-2.0 */
/* base/log.h - one event, one line, `key=value`, to standard error.
 *
 * Only api/ and nanobatch/loop.c log errors; everyone else returns them. A tolerated failure ends
 * in ", ignoring". The level is set once at start (HZP_LOG=error|warn|info|debug; default info).
 *
 * Thread: any; a line is one write, so lines of two threads never mix.
 */
#ifndef HZP_BASE_LOG_H
#define HZP_BASE_LOG_H

#include "base/base.h"

enum hzp_log_level { HZP_LOG_ERROR, HZP_LOG_WARN, HZP_LOG_INFO, HZP_LOG_DEBUG };

void hzp_log_set_level(enum hzp_log_level level);

/* Reads HZP_LOG from the environment; an unknown word is reported once and ignored.  For programs
 * without options: hzpserve's --log-level has that variable for a default, and refuses such a
 * word. */
void hzp_log_init(void);

/* subsystem: "serve", "train", "weights", ...; format: "event key=%d". */
void hzp_log(enum hzp_log_level level, const char *subsystem, const char *format, ...)
    HZP_PRINTF(3, 4);

#endif
