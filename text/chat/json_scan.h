/* SPDX-License-Identifier: Apache-2.0 */
/* text/chat/json_scan.h - JSON byte by byte: whether a text is JSON so far, and where in it one is.
 * Nothing is converted, so that numbers and escapes may be what no library holds.
 *
 * Invariant: the state depends on the bytes taken so far and on nothing else.
 * Thread: one per scan.
 */
#pragma once

#include "base/chars.h"

enum { HZP_SCAN_DEPTH_MAX = 1024 };

enum hzp_scan_state {
    HZP_SCAN_VALUE, /* a zeroed scan's state */
    HZP_SCAN_ITEM,  /* a value, or the end of an array */
    HZP_SCAN_FIRST, /* a name, or the end of an object */
    HZP_SCAN_NAME,
    HZP_SCAN_COLON,
    HZP_SCAN_BEHIND, /* a value within an array or object */
    HZP_SCAN_STRING,
    HZP_SCAN_ESCAPE,
    HZP_SCAN_HEX,
    HZP_SCAN_MINUS,
    HZP_SCAN_ZERO,
    HZP_SCAN_WHOLE,
    HZP_SCAN_DOT,
    HZP_SCAN_FRACTION,
    HZP_SCAN_E,
    HZP_SCAN_SIGN,
    HZP_SCAN_EXPONENT,
    HZP_SCAN_WORD, /* true, false, null */
    HZP_SCAN_DONE
};

struct hzp_json_scan {
    enum hzp_scan_state state;
    bool name;     /* the string is a name */
    bool controls; /* control characters in strings are taken, as models write them */
    int32_t depth, hex;
    const char *word; /* what must still come of it */
    uint64_t object[HZP_SCAN_DEPTH_MAX / 64];
};

/* Takes one byte; false: the text is not JSON, and the scan of no use. */
bool hzp_json_scan(struct hzp_json_scan *scan, char c);

/* Whether the text is one JSON value, perhaps between blanks; object: an object. */
bool hzp_json_is(const char *text, size_t bytes, bool controls, bool object);
