/* SPDX-License-Identifier: Apache-2.0 */
/* text/jinja/parser.h - what parse.c (statements) and parse_expr.c (expressions) share.
 *
 * Thread: one per parser.
 */
#pragma once

#include "text/jinja/value.h"

/* ---- ast.c: a compiled template: a tree of nodes, and the table of its names.
 *
 * Invariant: nothing changes after compilation; all of it lies in one arena. Thread: any. */

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

/* ---- lex.c: a template's source to tokens.
 *
 * The whole source is cut at once, as Jinja 3.1's lexer does it with trim_blocks and lstrip_blocks:
 * the newline after a block or comment is dropped, and blanks before one that begins a line; a
 * minus sign strips all white space on its side, a plus sign turns lstrip_blocks off.  One newline
 * at the end of the source is dropped, \r\n and \r are \n.
 *
 * Thread: any. */

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

/* ---- the parser ---- */

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
