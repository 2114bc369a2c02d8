/* SPDX-License-Identifier: Apache-2.0 */
/* text/jinja/lex.h - a template's source to tokens.
 *
 * The whole source is cut at once, as Jinja 3.1's lexer does it with trim_blocks and lstrip_blocks:
 * the newline after a block or comment is dropped, and blanks before one that begins a line; a
 * minus sign strips all white space on its side, a plus sign turns lstrip_blocks off.  One newline
 * at the end of the source is dropped, \r\n and \r are \n.
 *
 * Thread: any.
 */
#pragma once

#include "text/jinja/value.h"

enum jtoken_kind {
    T_END,
    T_TEXT,
    T_OPEN, /* {% */
    T_CLOSE,
    T_PRINT, /* {{ */
    T_PRINT_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP, /* text is the operator */
};

struct jtoken {
    uint8_t kind;
    int32_t line;
    struct jval value; /* set for T_TEXT, T_STRING, T_INT, T_FLOAT */
    const char *text;  /* a name or operator, and for messages */
    int32_t bytes;
};

struct jtokens {
    struct jtoken *token;
    size_t n, room;
};

/* Fails in m on a syntax error. The last token is T_END. */
void hzp_j_lex(struct jmem *m, const char *source, size_t bytes, struct jtokens *ret);
