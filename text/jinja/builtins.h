/* SPDX-License-Identifier: Apache-2.0 */
/* text/jinja/builtins.h - filters, tests, global functions and methods, each a row of a table.
 *
 * A row names its parameters, so that one function binds positional and keyword arguments for all
 * of them and reports what does not fit.
 *
 * Thread: one per rendering; the tables are constant.
 */
#pragma once

#include "text/jinja/value.h"

struct jrun;

enum { J_PARAMS_MAX = 5 };

enum jbuiltin_group {
    J_FILTER,
    J_TEST,
    J_GLOBAL,
    J_STR_METHOD,
    J_LIST_METHOD,
    J_DICT_METHOD,
    J_LOOP_METHOD,
    J_BUILTIN_GROUPS
};

/* The arguments of a call, evaluated. */
struct jargs {
    struct jval *pos;
    size_t n;
    struct jval *key, *value; /* keyword arguments; keys are strings */
    size_t kws;
};

/* in: the filtered value, the method's object, undefined for a global.  arg: the parameters in
 * order, J_UNSET where not given.  how: the row's. */
typedef struct jval (*jbuiltin_fn)(struct jrun *r, struct jval in, const struct jval *arg,
                                   const struct jargs *all, int how);

struct jbuiltin {
    const char *name;
    const char *params; /* names separated by blanks; "*": takes any, and reads all itself */
    jbuiltin_fn run;
    int how; /* tells rows apart that share a function */
};

struct jmethod {
    const struct jbuiltin *builtin;
    struct jval self;
};

/* NULL: there is none of that name. */
const struct jbuiltin *hzp_j_builtin_find(enum jbuiltin_group group, const char *name,
                                          size_t bytes);
/* A filter of Jinja that is not supported here (it makes HTML, or is random). */
bool hzp_j_builtin_refused(const char *name, size_t bytes);
/* A method of Python's str that is not supported here. */
bool hzp_j_unknown_method(const char *name, size_t bytes);

/* Binds the arguments and calls. */
struct jval hzp_j_builtin_call(struct jrun *r, const struct jbuiltin *builtin, struct jval in,
                               const struct jargs *all);

/* The tables, each ended by a row without a name. */
extern const struct jbuiltin hzp_j_filters[], hzp_j_list_filters[], hzp_j_tests[], hzp_j_globals[],
    hzp_j_str_methods[], hzp_j_list_methods[], hzp_j_dict_methods[], hzp_j_loop_methods[];

/* ---- shared by the tables ---- */

/* Begins a function that rows name. */
#define J_BUILTIN(name)                                                                            \
    struct jval name(struct jrun *r, struct jval v, const struct jval *arg,                        \
                     const struct jargs *all, int how)
J_BUILTIN(hzp_j_do_case);  /* how: an enum jcase */
J_BUILTIN(hzp_j_do_strip); /* Python's str.strip; how: sides: 1: left, 2: right, 3: both */
J_BUILTIN(hzp_j_has_case); /* how: J_LOWER or J_UPPER: Python's str.islower or isupper */

/* An integer argument; dflt if it was not given.  Fails if it is none. */
int64_t hzp_j_arg_int(struct jrun *r, struct jval arg, const char *name, int64_t dflt);
/* A string argument; dflt (NUL-terminated) if it was not given or is None. */
struct jval hzp_j_arg_string(struct jrun *r, struct jval arg, const char *name, const char *dflt);

struct jval hzp_j_replace(struct jrun *r, struct jval s, struct jval old, struct jval new,
                          int64_t count);
enum jcase { J_LOWER, J_UPPER, J_CAPITAL, J_TITLE, J_SWAP };
struct jval hzp_j_case(struct jrun *r, struct jval s, enum jcase how);
bool hzp_j_is_space(uint32_t code); /* Python's str.isspace */
bool hzp_j_is_letter(uint32_t code);
/* s % values, Python's. */
struct jval hzp_j_percent(struct jrun *r, struct jval s, struct jval values);
/* HTML escapes; the result is markup. */
struct jval hzp_j_escape(struct jrun *r, struct jval v);
