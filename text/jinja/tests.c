/* SPDX-License-Identifier: Apache-2.0 */
/* Tests: what follows `is`. */
#include "text/jinja/builtins.h"
#include "text/jinja/run.h"

#include <string.h>

#define TEST(name)                                                                                 \
    static struct jval t_##name(struct jrun *r, struct jval v, const struct jval *arg,             \
                                const struct jargs *all)

TEST(boolean)
{
    return hzp_j_bool(v.type == J_BOOL);
}

TEST(callable)
{
    return hzp_j_bool(v.type == J_MACRO || v.type == J_FUNCTION || v.type == J_METHOD ||
                      v.type == J_LOOP || v.type == J_UNDEFINED);
}

TEST(defined)
{
    return hzp_j_bool(v.type != J_UNDEFINED);
}

TEST(undefined)
{
    return hzp_j_bool(v.type == J_UNDEFINED);
}

static struct jval modulo(struct jrun *r, struct jval v, int64_t by, int64_t want)
{
    struct jval left = hzp_j_binary(r, OP_MOD, v, hzp_j_int(by));
    return hzp_j_bool(hzp_j_equal(&r->m, left, hzp_j_int(want)));
}

TEST(even)
{
    return modulo(r, v, 2, 0);
}

TEST(odd)
{
    return modulo(r, v, 2, 1);
}

TEST(divisibleby)
{
    return modulo(r, v, hzp_j_arg_int(r, arg[0], "divisibleby", 1), 0);
}

TEST(eq)
{
    return hzp_j_bool(hzp_j_equal(&r->m, v, arg[0]));
}

TEST(ne)
{
    return hzp_j_bool(!hzp_j_equal(&r->m, v, arg[0]));
}

TEST(lt)
{
    return hzp_j_bool(hzp_j_compare(&r->m, v, arg[0], "<") < 0);
}

TEST(le)
{
    return hzp_j_bool(hzp_j_compare(&r->m, v, arg[0], "<=") <= 0);
}

TEST(gt)
{
    return hzp_j_bool(hzp_j_compare(&r->m, v, arg[0], ">") > 0);
}

TEST(ge)
{
    return hzp_j_bool(hzp_j_compare(&r->m, v, arg[0], ">=") >= 0);
}

TEST(in)
{
    return hzp_j_bool(hzp_j_contains(&r->m, v, arg[0]));
}

TEST(escaped)
{
    return hzp_j_bool(v.type == J_STRING && v.markup);
}

TEST(true)
{
    return hzp_j_bool(v.type == J_BOOL && v.b);
}

TEST(false)
{
    return hzp_j_bool(v.type == J_BOOL && !v.b);
}

TEST(none)
{
    return hzp_j_bool(v.type == J_NONE);
}

TEST(number)
{
    return hzp_j_bool(hzp_j_is_number(v));
}

TEST(integer)
{
    return hzp_j_bool(v.type == J_INT || hzp_j_spelled_whole(v));
}

TEST(float)
{
    return hzp_j_bool(v.type == J_FLOAT && !hzp_j_spelled_whole(v));
}

TEST(string)
{
    return hzp_j_bool(v.type == J_STRING);
}

TEST(mapping)
{
    return hzp_j_bool(v.type == J_DICT);
}

TEST(iterable)
{
    return hzp_j_bool(v.type == J_STRING || v.type == J_LIST || v.type == J_DICT ||
                      v.type == J_UNDEFINED || v.type == J_LOOP);
}

TEST(sequence)
{
    return hzp_j_bool(v.type == J_STRING || v.type == J_DICT || v.type == J_UNDEFINED ||
                      (v.type == J_LIST && v.l->kind < J_IS_VIEW));
}

TEST(lower)
{
    struct jval text = hzp_j_str(&r->m, v);
    struct jval low = hzp_j_case(r, text, J_LOWER), up = hzp_j_case(r, text, J_UPPER);
    return hzp_j_bool(hzp_j_equal(&r->m, text, low) && !hzp_j_equal(&r->m, low, up));
}

TEST(upper)
{
    struct jval text = hzp_j_str(&r->m, v);
    struct jval low = hzp_j_case(r, text, J_LOWER), up = hzp_j_case(r, text, J_UPPER);
    return hzp_j_bool(hzp_j_equal(&r->m, text, up) && !hzp_j_equal(&r->m, low, up));
}

TEST(sameas)
{
    bool same = v.type == arg[0].type && hzp_j_equal(&r->m, v, arg[0]);
    if (same && (v.type == J_LIST || v.type == J_DICT))
        same = v.o == arg[0].o;
    return hzp_j_bool(same);
}

TEST(filter)
{
    return hzp_j_bool(v.type == J_STRING && hzp_j_builtin_find(J_FILTER, v.s->text, v.s->bytes));
}

TEST(test)
{
    return hzp_j_bool(v.type == J_STRING && hzp_j_builtin_find(J_TEST, v.s->text, v.s->bytes));
}

const struct jbuiltin hzp_j_tests[] = {
    {"boolean", "", t_boolean},     {"callable", "", t_callable},
    {"defined", "", t_defined},     {"divisibleby", "num", t_divisibleby},
    {"eq", "other", t_eq},          {"equalto", "other", t_eq},
    {"==", "other", t_eq},          {"escaped", "", t_escaped},
    {"even", "", t_even},           {"false", "", t_false},
    {"filter", "", t_filter},       {"float", "", t_float},
    {"ge", "other", t_ge},          {">=", "other", t_ge},
    {"greaterthan", "other", t_gt}, {"gt", "other", t_gt},
    {">", "other", t_gt},           {"in", "seq", t_in},
    {"integer", "", t_integer},     {"iterable", "", t_iterable},
    {"le", "other", t_le},          {"<=", "other", t_le},
    {"lessthan", "other", t_lt},    {"lower", "", t_lower},
    {"lt", "other", t_lt},          {"<", "other", t_lt},
    {"mapping", "", t_mapping},     {"ne", "other", t_ne},
    {"!=", "other", t_ne},          {"none", "", t_none},
    {"number", "", t_number},       {"odd", "", t_odd},
    {"sameas", "other", t_sameas},  {"sequence", "", t_sequence},
    {"string", "", t_string},       {"test", "", t_test},
    {"true", "", t_true},           {"undefined", "", t_undefined},
    {"upper", "", t_upper},         {NULL, NULL, NULL},
};
