/* SPDX-License-Identifier: Apache-2.0 */
/* text/jinja/jinja.h - chat templates: the part of Jinja that `transformers` runs.
 *
 * A template is compiled once into a tree and rendered any number of times.  The language is that
 * of Jinja 3.1 in the environment of transformers' apply_chat_template: trim_blocks, lstrip_blocks,
 * loop controls, the tag `generation`, raise_exception, strftime_now, their tojson, no automatic
 * escaping, and the rules of the immutable sandbox (lists and dicts cannot be changed).  What is
 * not supported (inheritance, imports, a few filters that make HTML) is refused when the template
 * is compiled, with its name and line.
 *
 * Bounds.  A rendering ends with an error when it exceeds its steps, depth, memory or output; the
 * depth of expressions and blocks is bounded when the template is compiled.
 *
 * Invariant: a compiled template never changes.
 * Thread: compile and free the owner's; render any, at the same time.
 */
#pragma once

#include "base/err.h"
#include "text/chars/textbuf.h"
#include "text/jinja/limits.h"

struct hzp_jinja;

/* Bytes [from, to) of the output that stem from a {% generation %} block. */
struct hzp_jinja_span {
    size_t from, to;
};

struct hzp_jinja_output {
    struct hzp_textbuf text;
    struct hzp_jinja_span *span;
    size_t spans, room;
};

/* Compiles source (bytes of UTF-8, copied).  name is used in messages.  HZP_EFORMAT: a syntax
 * error; HZP_EUNSUP: something that is not supported; both texts are "name, line 3: ...". */
int hzp_jinja_compile(const char *name, const char *source, size_t bytes, struct hzp_jinja **ret,
                      struct hzp_err_text *reterr);
void hzp_jinja_free(struct hzp_jinja *jinja); /* NULL: no effect */

/* Whether the template mentions the variable. */
bool hzp_jinja_uses(const struct hzp_jinja *jinja, const char *variable);

/* Renders with the members of the object vars (borrowed) as variables.  now: what strftime_now
 * formats, in seconds since 1970, 0: the current time.  ret: zeroed before the first use; its text
 * and spans are replaced; the caller ends it with hzp_jinja_output_fini, also after an error.
 * HZP_EINVAL: the template refused the variables (raise_exception, an undefined variable, a wrong
 * type) or a bound was reached, the text names the line; HZP_ENOMEM. */
int hzp_jinja_render(const struct hzp_jinja *jinja, const json_t *vars,
                     const struct hzp_jinja_limits *limits, int64_t now,
                     struct hzp_jinja_output *ret, struct hzp_err_text *reterr);
void hzp_jinja_output_fini(struct hzp_jinja_output *output);
