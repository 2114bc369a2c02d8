/* SPDX-License-Identifier: Apache-2.0 */
/* text/jinja/ast.h - a compiled template: a tree of nodes, and the table of its names.
 *
 * Invariant: nothing changes after compilation; all of it lies in one arena.
 * Thread: any.
 */
#pragma once

#include "text/jinja/value.h"

enum jkind {
    /* expressions */
    N_CONST,  /* value */
    N_NAME,   /* name */
    N_ATTR,   /* a . value */
    N_ITEM,   /* a [ b ] */
    N_SLICE,  /* a [ b : c : d ], each of b, c, d may be NULL */
    N_CALL,   /* a ( list, kw, *b, **c ) */
    N_FILTER, /* a | builtin ( list, kw ); a NULL: the body of a filter block */
    N_TEST,   /* a is builtin ( list, kw ) */
    N_NOT,    /* a */
    N_AND,    /* a, b */
    N_OR,
    N_NEGATE,
    N_POSITIVE,
    N_BINARY,  /* a op b */
    N_COMPARE, /* a, then the operands in list, each with its op */
    N_OPERAND, /* op a */
    N_CONCAT,  /* list */
    N_IF_ELSE, /* b if a else c; c may be NULL */
    N_LIST,    /* list */
    N_TUPLE,
    N_DICT,    /* list: key, value, key, value */
    N_NS_ATTR, /* target: name . value */
    /* statements */
    N_BODY,         /* list */
    N_TEXT,         /* value */
    N_PRINT,        /* a */
    N_IF,           /* list: test, body, test, body ...; b: else */
    N_FOR,          /* target a in b if c: d, else body: list[0] */
    N_SET,          /* target a = b */
    N_SET_BLOCK,    /* target a; filters c around body d */
    N_MACRO,        /* name; list: parameters (names); kw: their defaults; d: body */
    N_CALL_BLOCK,   /* call b with the macro a as caller */
    N_FILTER_BLOCK, /* filters c around body d */
    N_WITH,         /* list: target, value, ...; body d */
    N_BREAK,
    N_CONTINUE,
    N_GENERATION, /* body d */
};

enum jop {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOOR,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

struct jnode {
    uint8_t kind, op;
    bool flag;                        /* for loops: recursive */
    bool takes_varargs, takes_kwargs; /* for macros */
    int32_t line, name;               /* name: index into names */
    int32_t n, kws;                   /* items of the list; of kw */
    size_t room;                      /* items that the list has room for */
    struct jnode *a, *b, *c, *d;
    struct jnode **list;
    struct jkeyword *kw;
    struct jval value;
    const struct jbuiltin *builtin; /* NULL: a name that does not exist, an error when it runs */
};

struct jkeyword {
    struct jval key;
    int32_t name;
    struct jnode *value;
};

struct hzp_jinja {
    struct jmem mem;
    char *name;
    struct jnode *root;
    const char **names; /* NUL-terminated */
    int32_t names_count;
    size_t names_room;
    /* indices of names that the evaluator gives values */
    int32_t loop, caller, varargs, kwargs;
};

/* Parses the source into ret, whose mem and name are set. Errors are reported in ret->mem. */
void hzp_j_parse(struct hzp_jinja *ret, const char *source, size_t bytes);
