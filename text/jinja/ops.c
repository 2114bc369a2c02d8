/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic and slices, Python's. */
#include "text/jinja/builtins.h"
#include "text/jinja/run.h"

#include "base/utf8.h"

static const char *const signs[] = {
    [OP_ADD] = "+",    [OP_SUB] = "-", [OP_MUL] = "*",          [OP_DIV] = "/",
    [OP_FLOOR] = "//", [OP_MOD] = "%", [OP_POW] = "** or pow()"};

static struct jval too_large(struct jrun *r)
{
    return hzp_j_fail(&r->m, "an integer is too large");
}

static struct jval power(struct jrun *r, int64_t a, int64_t b)
{
    int64_t value = 1;
    if (b < 0)
        return a ? hzp_j_float(pow((double)a, (double)b))
                 : hzp_j_fail(&r->m, "0.0 cannot be raised to a negative power");
    if (b > 64 && a != 0 && a != 1 && a != -1)
        return too_large(r);
    for (int64_t i = 0; i < (b > 64 ? 64 + (b & 1) : b); i++)
        if (__builtin_mul_overflow(value, a, &value))
            return too_large(r);
    return hzp_j_int(value);
}

static struct jval integers(struct jrun *r, enum jop op, int64_t a, int64_t b)
{
    int64_t value = 0;
    if ((op == OP_DIV || op == OP_FLOOR || op == OP_MOD) && !b)
        return hzp_j_fail(&r->m, "division by zero");
    if ((op == OP_FLOOR || op == OP_MOD) && a == INT64_MIN && b == -1)
        return op == OP_MOD ? hzp_j_int(0) : too_large(r);
    switch (op) {
    case OP_ADD:
        return __builtin_add_overflow(a, b, &value) ? too_large(r) : hzp_j_int(value);
    case OP_SUB:
        return __builtin_sub_overflow(a, b, &value) ? too_large(r) : hzp_j_int(value);
    case OP_MUL:
        return __builtin_mul_overflow(a, b, &value) ? too_large(r) : hzp_j_int(value);
    case OP_DIV:
        return hzp_j_float((double)a / (double)b);
    case OP_FLOOR:
        return hzp_j_int(a / b - (a % b != 0 && (a < 0) != (b < 0)));
    case OP_MOD:
        value = a % b;
        return hzp_j_int(value && (value < 0) != (b < 0) ? value + b : value);
    default:
        return power(r, a, b);
    }
}

static struct jval reals(struct jrun *r, enum jop op, double a, double b)
{
    if ((op == OP_DIV || op == OP_FLOOR || op == OP_MOD) && b == 0)
        return hzp_j_fail(&r->m, "division by zero");
    double left = op == OP_MOD ? fmod(a, b) : 0;
    return hzp_j_float(op == OP_ADD     ? a + b
                       : op == OP_SUB   ? a - b
                       : op == OP_MUL   ? a * b
                       : op == OP_DIV   ? a / b
                       : op == OP_FLOOR ? floor(a / b)
                       : op == OP_POW   ? pow(a, b)
                                        : left + (left != 0 && (left < 0) != (b < 0) ? b : 0));
}

static struct jval repeat(struct jrun *r, struct jval v, int64_t times)
{
    if (v.type == J_STRING) {
        struct jbuf buf = {0};
        hzp_j_repeat(&r->m, &buf, v.s->text, v.s->bytes, v.s->bytes ? times : 0);
        return hzp_j_take_as(&r->m, &buf, v.markup);
    }
    struct jval list = hzp_j_list(&r->m, v.l->kind);
    for (int64_t i = 0; i < times && v.l->n && !r->m.failed; i++)
        for (size_t k = 0; k < v.l->n && hzp_j_step(&r->m, 1); k++)
            hzp_j_push(&r->m, list.l, v.l->item[k]);
    return list;
}

static struct jval join_strings(struct jrun *r, struct jval a, struct jval b)
{
    struct jbuf buf = {0};
    bool markup = a.markup || b.markup;
    if (markup && !a.markup)
        a = hzp_j_escape(r, a);
    if (markup && !b.markup)
        b = hzp_j_escape(r, b);
    hzp_j_add(&r->m, &buf, a.s->text, a.s->bytes);
    hzp_j_add(&r->m, &buf, b.s->text, b.s->bytes);
    return hzp_j_take_as(&r->m, &buf, markup);
}

static struct jval join_lists(struct jrun *r, const struct jlist *a, const struct jlist *b)
{
    struct jval list = hzp_j_list(&r->m, a->kind);
    for (size_t i = 0; i < a->n + b->n && hzp_j_step(&r->m, 1); i++)
        hzp_j_push(&r->m, list.l, i < a->n ? a->item[i] : b->item[i - a->n]);
    return list;
}

static bool repeats(struct jval v)
{
    return v.type == J_STRING || (v.type == J_LIST && v.l->kind <= J_IS_TUPLE);
}

static bool whole(struct jval v)
{
    return v.type == J_INT || v.type == J_BOOL;
}

static int64_t whole_of(struct jval v)
{
    return v.type == J_BOOL ? v.b : v.i;
}

struct jval hzp_j_binary(struct jrun *r, enum jop op, struct jval a, struct jval b)
{
    if (r->m.failed)
        return hzp_j_undefined(NULL);
    if (a.type == J_UNDEFINED || b.type == J_UNDEFINED) {
        const char *name = a.type == J_UNDEFINED ? a.name : b.name;
        if (!(op == OP_MOD && a.type == J_STRING))
            return hzp_j_fail(&r->m, "'%s' is undefined", name ? name : "value");
    }
    if (op == OP_MOD && a.type == J_STRING)
        return hzp_j_percent(r, a, b);
    if (whole(a) && whole(b))
        return integers(r, op, whole_of(a), whole_of(b));
    if (hzp_j_is_number(a) && hzp_j_is_number(b))
        return reals(r, op, hzp_j_number(a), hzp_j_number(b));
    if (op == OP_ADD && a.type == J_STRING && b.type == J_STRING)
        return join_strings(r, a, b);
    if (op == OP_ADD && a.type == J_LIST && b.type == J_LIST && a.l->kind == b.l->kind &&
        a.l->kind <= J_IS_TUPLE)
        return join_lists(r, a.l, b.l);
    if (op == OP_MUL && repeats(a) && whole(b))
        return repeat(r, a, whole_of(b));
    if (op == OP_MUL && repeats(b) && whole(a))
        return repeat(r, b, whole_of(a));
    return hzp_j_fail(&r->m, "unsupported operand type(s) for %s: '%s' and '%s'", signs[op],
                      hzp_j_type_name(a), hzp_j_type_name(b));
}

/* ---- slices ---- */

/* A bound of a slice of n items, clamped as Python does. */
static int64_t clamp(int64_t at, int64_t n, bool backwards)
{
    if (at < 0)
        at = at < -n ? -1 : at + n;
    if (at < 0)
        return backwards ? -1 : 0;
    if (at >= n)
        return backwards ? n - 1 : n;
    return at;
}

static bool slice_bound(struct jrun *r, struct jval v, int64_t dflt, int64_t *ret)
{
    *ret = dflt;
    if (v.type == J_UNSET || v.type == J_NONE)
        return false;
    if (whole(v))
        *ret = whole_of(v);
    else
        hzp_j_fail(&r->m, "slice indices must be integers or None");
    return true;
}

struct jval hzp_j_slice(struct jrun *r, struct jval v, struct jval from, struct jval to,
                        struct jval step)
{
    int64_t by, begin, end;
    bool sequence = v.type == J_STRING || (v.type == J_LIST && v.l->kind < J_IS_VIEW);
    slice_bound(r, step, 1, &by);
    if (!by)
        return hzp_j_fail(&r->m, "slice step cannot be zero");
    if (!sequence || r->m.failed)
        return hzp_j_undefined("a slice");
    int64_t n = v.type == J_STRING ? hzp_j_codes(v) : (int64_t)v.l->n;
    bool back = by < 0;
    if (slice_bound(r, from, back ? n - 1 : 0, &begin))
        begin = clamp(begin, n, back);
    if (slice_bound(r, to, back ? -1 : n, &end))
        end = clamp(end, n, back);
    if (v.type == J_STRING && by == 1) {
        if (begin >= end)
            return hzp_j_borrow(&r->m, "", 0);
        hzp_j_step(&r->m, (int64_t)(v.s->bytes / 32));
        size_t a = hzp_j_offset(v, begin), b = hzp_j_offset(v, end);
        struct jval text = hzp_j_borrow(&r->m, v.s->text + a, b - a);
        text.markup = v.markup;
        return text;
    }
    struct jbuf buf = {0};
    struct jval list = v;
    if (v.type == J_LIST)
        list = hzp_j_list(&r->m, v.l->kind);
    for (int64_t i = begin; (back ? i > end : i < end) && hzp_j_step(&r->m, 1);) {
        if (v.type == J_LIST) {
            hzp_j_push(&r->m, list.l, v.l->item[i]);
        } else {
            const char *p = v.s->text + hzp_j_offset(v, i);
            if (hzp_j_codes(v) != (int64_t)v.s->bytes)
                hzp_j_step(&r->m, 1 + (int64_t)(v.s->bytes / 32));
            hzp_j_add(&r->m, &buf, p, (size_t)hzp_utf8_step((uint8_t)*p));
        }
        if (__builtin_add_overflow(i, by, &i))
            break;
    }
    return v.type == J_LIST ? list : hzp_j_take(&r->m, &buf);
}
