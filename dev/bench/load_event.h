/* SPDX-License-Identifier: Apache-2.0 */
/* dev/bench/load_event.h - what one event of a streamed completion says to the load generator.
 *
 * A client on the same machine takes CPU time from the server, and nearly all events say only that
 * there is more text.  Those are recognised by one pass over their bytes, without memory; any other
 * event is read by the JSON library.
 *
 * The pass checks how objects, arrays and strings are nested, not how numbers and literals are
 * spelled.
 *
 * Thread: any.
 */
#pragma once

#include "base/err.h"

struct hzp_load_event {
    bool choice;           /* it has a choice */
    bool text;             /* its first choice has text that is not empty */
    bool finished;         /* its first choice has a finish_reason */
    bool usage;            /* it counts tokens */
    int32_t input, output; /* with usage */
    char error[141];       /* "": none */
};

/* data: n bytes.  HZP_EFORMAT: not a JSON object. */
int hzp_load_event_read(const char *data, size_t n, struct hzp_load_event *ret);
