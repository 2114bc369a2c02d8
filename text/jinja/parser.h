/* SPDX-License-Identifier: Apache-2.0 */
/* text/jinja/parser.h - what parse.c (statements) and parse_expr.c (expressions) share.
 *
 * Thread: one per parser.
 */
#pragma once

#include "text/jinja/ast.h"
#include "text/jinja/lex.h"

struct jparser {
    struct jmem *m;
    struct hzp_jinja *jinja;
    struct jtokens tokens;
    size_t at;
    int conditional; /* > 0: inside an if: an unknown filter is an error only when it runs */
    int loops;       /* for loops around, within the macro */
};

/* Appends to the node's list. */
void hzp_j_nodes_add(struct jparser *p, struct jnode *node, struct jnode *item);

/* The token that is parsed next. */
const struct jtoken *hzp_j_now(const struct jparser *p);
const struct jtoken *hzp_j_peek(const struct jparser *p); /* the one behind it */
/* Whether the token now is this operator or name. */
bool hzp_j_is(const struct jparser *p, enum jtoken_kind kind, const char *text);
bool hzp_j_skip_if(struct jparser *p, enum jtoken_kind kind, const char *text);
void hzp_j_expect(struct jparser *p, enum jtoken_kind kind, const char *text);
/* Syntax error at the token now; code HZP_EFORMAT or HZP_EUNSUP. */
void hzp_j_refuse(struct jparser *p, int code, const char *format, ...) HZP_PRINTF(3, 4);
struct jnode *hzp_j_node(struct jparser *p, enum jkind kind);
int32_t hzp_j_intern(struct jparser *p, const char *text, size_t bytes);
struct jval hzp_j_token_text(struct jparser *p, const struct jtoken *token);

/* All expressions, with `a if b else c` or without. */
struct jnode *hzp_j_parse_expr(struct jparser *p, bool with_condition);
/* An expression or a tuple without brackets; end: a name that ends it, NULL: none. */
struct jnode *hzp_j_parse_tuple(struct jparser *p, bool with_condition, const char *end);
/* A target of an assignment; end: a name that ends it; with_attr: `ns.x` is allowed. */
struct jnode *hzp_j_parse_target(struct jparser *p, const char *end, bool with_attr);
/* Filters after a value; a NULL: a chain that begins with a filter's name. */
struct jnode *hzp_j_parse_filters(struct jparser *p, struct jnode *a, bool first);
