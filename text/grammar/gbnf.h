/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/gbnf.h - grammars in GBNF, llama.cpp's notation, as rules.
 *
 *     name ::= alternative | alternative      # a comment
 *
 * An alternative is a sequence of "literals", [classes], [^classes], . (any code point), names, and
 * (groups), each perhaps followed by * + ? {m} {m,} {m,n}.  Escapes in literals and classes: \n \r
 * \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH.  A rule goes over several lines inside of a group or
 * behind a |.  The text is what rule "root" takes.
 *
 * Thread: any.
 */
#pragma once

#include "text/grammar/codes.h"

enum { HZP_GBNF_BYTES_MAX = 1 << 18, HZP_GBNF_DEPTH_MAX = 200 };

/* Adds the grammar's rules; *ret: that of "root".  HZP_EINVAL: reterr names line or rule. */
int hzp_gbnf_rules(struct hzp_rules *rules, const char *text, size_t bytes, int32_t *ret,
                   struct hzp_err_text *reterr);
