/* SPDX-License-Identifier: Apache-2.0 */
/* Tests: what follows `is`. */
#include "text/jinja/builtins.h"
#include "text/jinja/run.h"

/* how: the types, a bit each. */
#define BIT(type) (1 << (type))
static J_BUILTIN(t_type)
{
    return hzp_j_bool(how >> v.type & 1);
}

/* how: the remainder; arg: the divisor, 2 if it was not given. */
static J_BUILTIN(t_modulo)
{
    struct jval by = hzp_j_int(hzp_j_arg_int(r, arg[0], "divisibleby", 2));
    struct jval left = hzp_j_binary(r, OP_MOD, v, by);
    return hzp_j_bool(hzp_j_equal(&r->m, left, hzp_j_int(how)));
}

static J_BUILTIN(t_bool)
{
    return hzp_j_bool(v.type == J_BOOL && v.b == how);
}

/* how: an enum jop. */
static J_BUILTIN(t_compare)
{
    return hzp_j_bool(hzp_j_compares(r, (enum jop)how, v, arg[0]));
}

static J_BUILTIN(t_escaped)
{
    return hzp_j_bool(v.type == J_STRING && v.markup);
}

static J_BUILTIN(t_number)
{
    return hzp_j_bool(hzp_j_is_number(v));
}

static J_BUILTIN(t_integer)
{
    return hzp_j_bool(v.type == J_INT || hzp_j_spelled_whole(v));
}

static J_BUILTIN(t_float)
{
    return hzp_j_bool(v.type == J_FLOAT && !hzp_j_spelled_whole(v));
}

static J_BUILTIN(t_sequence)
{
    return hzp_j_bool(v.type == J_STRING || v.type == J_DICT || v.type == J_UNDEFINED ||
                      (v.type == J_LIST && v.l->kind < J_IS_VIEW));
}

static J_BUILTIN(t_sameas)
{
    bool same = v.type == arg[0].type && hzp_j_equal(&r->m, v, arg[0]);
    if (same && (v.type == J_LIST || v.type == J_DICT))
        same = v.o == arg[0].o;
    return hzp_j_bool(same);
}

/* how: an enum jbuiltin_group. */
static J_BUILTIN(t_builtin)
{
    return hzp_j_bool(v.type == J_STRING &&
                      hzp_j_builtin_find((enum jbuiltin_group)how, v.s->text, v.s->bytes));
}

const struct jbuiltin hzp_j_tests[] = {
    {"boolean", "", t_type, BIT(J_BOOL)},
    {"callable", "", t_type,
     BIT(J_MACRO) | BIT(J_FUNCTION) | BIT(J_METHOD) | BIT(J_LOOP) | BIT(J_UNDEFINED)},
    {"defined", "", t_type, ~BIT(J_UNDEFINED)},
    {"divisibleby", "num", t_modulo, 0},
    {"eq", "other", t_compare, OP_EQ},
    {"equalto", "other", t_compare, OP_EQ},
    {"==", "other", t_compare, OP_EQ},
    {"escaped", "", t_escaped, 0},
    {"even", "", t_modulo, 0},
    {"false", "", t_bool, false},
    {"filter", "", t_builtin, J_FILTER},
    {"float", "", t_float, 0},
    {"ge", "other", t_compare, OP_GE},
    {">=", "other", t_compare, OP_GE},
    {"greaterthan", "other", t_compare, OP_GT},
    {"gt", "other", t_compare, OP_GT},
    {">", "other", t_compare, OP_GT},
    {"in", "seq", t_compare, OP_IN},
    {"integer", "", t_integer, 0},
    {"iterable", "", t_type,
     BIT(J_STRING) | BIT(J_LIST) | BIT(J_DICT) | BIT(J_UNDEFINED) | BIT(J_LOOP)},
    {"le", "other", t_compare, OP_LE},
    {"<=", "other", t_compare, OP_LE},
    {"lessthan", "other", t_compare, OP_LT},
    {"lower", "", hzp_j_has_case, J_LOWER},
    {"lt", "other", t_compare, OP_LT},
    {"<", "other", t_compare, OP_LT},
    {"mapping", "", t_type, BIT(J_DICT)},
    {"ne", "other", t_compare, OP_NE},
    {"!=", "other", t_compare, OP_NE},
    {"none", "", t_type, BIT(J_NONE)},
    {"number", "", t_number, 0},
    {"odd", "", t_modulo, 1},
    {"sameas", "other", t_sameas, 0},
    {"sequence", "", t_sequence, 0},
    {"string", "", t_type, BIT(J_STRING)},
    {"test", "", t_builtin, J_TEST},
    {"true", "", t_bool, true},
    {"undefined", "", t_type, BIT(J_UNDEFINED)},
    {"upper", "", hzp_j_has_case, J_UPPER},
    {NULL, NULL, NULL, 0},
};
