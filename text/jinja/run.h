/* SPDX-License-Identifier: Apache-2.0 */
/* text/jinja/run.h - the evaluator: scopes, loops, calls.
 *
 * Scopes are Jinja's: a loop's turn, a macro's call, `with` and blocks that are captured have names
 * of their own, an `if` has not. A macro sees the scope in which it was defined.
 *
 * Thread: one per rendering.
 */
#pragma once

#include "text/jinja/parser.h"

struct jargs; /* builtins.h */

struct jbinding {
    int32_t name;
    struct jval value;
};

struct jscope {
    struct jscope *up; /* NULL: the template's own, whose names are in jrun.root */
    struct jbinding *binding;
    int32_t n;
    size_t room;
};

struct jmacro {
    const struct jnode *node;
    struct jscope *scope;
};

/* A for loop that runs: the variable `loop`. */
struct jloop {
    struct jiter it;
    const struct jnode *node;
    struct jscope *scope;           /* the turn's */
    struct jlist *rest;             /* what `loop.length` has read ahead */
    struct jval now, before, ahead; /* J_UNSET: none */
    struct jval changed;            /* what loop.changed saw last */
    int64_t index0, length;         /* length -1: not known */
    size_t rest_taken;
    int depth;
};

struct jrun {
    struct jmem m;
    const struct hzp_jinja *jinja;
    struct jval *vars; /* [names]: variables and functions given from outside */
    struct jval *root; /* [names]: set by the template */
    struct jscope top, *scope;
    struct jbuf *out;
    struct jbuf main_out;
    size_t output_most;
    struct hzp_jinja_output *ret;
    int64_t now;
};

enum jflow { J_ON, J_BREAK, J_CONTINUE };

/* The value of an expression; runs a statement or body. */
struct jval hzp_j_eval(struct jrun *r, const struct jnode *node);
enum jflow hzp_j_exec(struct jrun *r, const struct jnode *node);

/* A name's value in the scopes around; undefined: it has none.  bind and assign set it, assign also
 * the names of a tuple and the members of a namespace. */
struct jval hzp_j_lookup(struct jrun *r, int32_t name);
void hzp_j_bind(struct jrun *r, struct jscope *scope, int32_t name, struct jval value);
void hzp_j_assign(struct jrun *r, const struct jnode *target, struct jval value);
/* A new scope inside `up`. */
struct jscope *hzp_j_scope(struct jrun *r, struct jscope *up);
/* A body in a scope of its own (NULL: a new one), its output as a string. */
struct jval hzp_j_capture(struct jrun *r, const struct jnode *body, struct jscope *scope);

/* v[key], with Jinja's rule that it falls back to v.key. */
struct jval hzp_j_item(struct jrun *r, struct jval v, struct jval key);
struct jval hzp_j_run_for(struct jrun *r, const struct jnode *node, struct jval items, int depth,
                          enum jflow *ret_flow);
struct jval hzp_j_loop_attr(struct jrun *r, struct jloop *loop, const char *name);
bool hzp_j_compares(struct jrun *r, enum jop op, struct jval a, struct jval b);

/* ops.c */
struct jval hzp_j_binary(struct jrun *r, enum jop op, struct jval a, struct jval b);
struct jval hzp_j_slice(struct jrun *r, struct jval v, struct jval from, struct jval to,
                        struct jval step);
