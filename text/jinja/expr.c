/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions: names, attributes, items, calls. */
#include "text/jinja/builtins.h"
#include "text/jinja/run.h"

#include "base/utf8.h"

static struct jval undefined_used(struct jrun *r, struct jval v)
{
    return hzp_j_fail(&r->m, "'%s' is undefined", v.name ? v.name : "value");
}

/* ---- attributes and items ---- */

static struct jval method(struct jrun *r, enum jbuiltin_group group, struct jval v,
                          const struct jstr *name)
{
    const struct jbuiltin *builtin = hzp_j_builtin_find(group, name->text, name->bytes);
    if (!builtin)
        return (struct jval){0};
    struct jmethod *bound = hzp_j_alloc(&r->m, sizeof(*bound));
    *bound = (struct jmethod){builtin, v};
    return (struct jval){.type = J_METHOD, .bound = bound};
}

/* A method or attribute of v, J_UNSET if it has none of that name. */
static struct jval own_attr(struct jrun *r, struct jval v, struct jval name)
{
    struct jval got = {0};
    switch (v.type) {
    case J_STRING:
        return method(r, J_STR_METHOD, v, name.s);
    case J_LIST:
        return v.l->kind <= J_IS_TUPLE ? method(r, J_LIST_METHOD, v, name.s) : got;
    case J_DICT:
        return method(r, J_DICT_METHOD, v, name.s);
    case J_NAMESPACE: {
        struct jval *found = hzp_j_dict_get(&r->m, v.o, name);
        return found ? *found : got;
    }
    case J_LOOP:
        got = method(r, J_LOOP_METHOD, v, name.s);
        return got.type != J_UNSET ? got : hzp_j_loop_attr(r, v.loop, name.s->text);
    default:
        return got;
    }
}

/* An item of v, J_UNSET if it has none. */
static struct jval own_item(struct jrun *r, struct jval v, struct jval key)
{
    struct jval none = {0};
    if (v.type == J_DICT) {
        struct jval *found = hzp_j_dict_get(&r->m, v.o, key);
        return found ? *found : none;
    }
    bool sequence = v.type == J_STRING || (v.type == J_LIST && v.l->kind < J_IS_VIEW);
    if (!sequence || (key.type != J_INT && key.type != J_BOOL))
        return none;
    int64_t at = key.type == J_BOOL ? key.b : key.i;
    int64_t n = v.type == J_STRING ? hzp_j_codes(v) : (int64_t)v.l->n;
    if (at < 0)
        at += n;
    if (at < 0 || at >= n)
        return none;
    if (v.type == J_LIST)
        return v.l->item[at];
    hzp_j_step(&r->m, (int64_t)(v.s->bytes / 32));
    const char *p = v.s->text + hzp_j_offset(v, at);
    struct jval code = hzp_j_borrow(&r->m, p, (size_t)hzp_utf8_step((uint8_t)*p));
    code.markup = v.markup;
    return code;
}

/* Falls back to v[name], as Jinja does. */
static struct jval attribute(struct jrun *r, struct jval v, struct jval name)
{
    if (v.type == J_UNDEFINED)
        return undefined_used(r, v);
    struct jval got = own_attr(r, v, name);
    if (got.type == J_UNSET)
        got = own_item(r, v, name);
    return got.type == J_UNSET ? hzp_j_undefined(name.s->text) : got;
}

struct jval hzp_j_item(struct jrun *r, struct jval v, struct jval key)
{
    if (v.type == J_UNDEFINED)
        return undefined_used(r, v);
    struct jval got = own_item(r, v, key);
    if (got.type == J_UNSET && key.type == J_STRING) {
        char *name = hzp_j_alloc(&r->m, key.s->bytes + 1);
        if (!name)
            return hzp_j_undefined(NULL);
        memcpy(name, key.s->text, key.s->bytes);
        struct jval text = hzp_j_borrow(&r->m, name, key.s->bytes);
        got = own_attr(r, v, text);
        if (got.type == J_UNSET)
            return hzp_j_undefined(name);
    }
    return got.type == J_UNSET ? hzp_j_undefined("an item") : got;
}

/* ---- calls ---- */

static bool take_keyword(struct jargs *args, const struct jstr *name, struct jval *ret)
{
    for (size_t i = 0; i < args->kws; i++) {
        const struct jstr *key = args->key[i].s;
        if (args->value[i].type != J_UNSET && key->bytes == name->bytes &&
            !memcmp(key->text, name->text, key->bytes)) {
            *ret = args->value[i];
            args->value[i].type = J_UNSET; /* taken */
            return true;
        }
    }
    return false;
}

/* What a macro's parameters did not take. */
static void bind_rest(struct jrun *r, const struct jnode *node, struct jscope *scope,
                      const struct jargs *args)
{
    struct jval rest = hzp_j_list(&r->m, J_IS_TUPLE), named = hzp_j_dict(&r->m, J_DICT);
    for (size_t i = (size_t)node->n; i < args->n; i++)
        hzp_j_push(&r->m, rest.l, args->pos[i]);
    for (size_t i = 0; i < args->kws; i++)
        if (args->value[i].type != J_UNSET)
            hzp_j_dict_set(&r->m, named.o, args->key[i], args->value[i]);
    if (node->takes_varargs)
        hzp_j_bind(r, scope, r->jinja->varargs, rest);
    else if (rest.l->n)
        hzp_j_fail(&r->m, "macro '%s' takes not more than %d argument(s)", node->value.s->text,
                   node->n);
    if (node->takes_kwargs)
        hzp_j_bind(r, scope, r->jinja->kwargs, named);
    else if (named.o->n)
        hzp_j_fail(&r->m, "macro '%s' takes no keyword argument '%.*s'", node->value.s->text,
                   (int)HZP_MIN(named.o->key[0].s->bytes, 64), named.o->key[0].s->text);
}

static struct jval call_macro(struct jrun *r, const struct jmacro *macro, const struct jargs *given)
{
    static const struct jstr caller = {"caller", 6, 6};
    const struct jnode *node = macro->node;
    struct jscope *scope = hzp_j_scope(r, macro->scope), *before = r->scope;
    struct jargs args = *given;
    struct jval value;
    args.value = hzp_j_alloc(&r->m, (args.kws + 1) * sizeof(*args.value));
    if (!args.value)
        return hzp_j_undefined(NULL);
    if (args.kws)
        memcpy(args.value, given->value, args.kws * sizeof(*args.value));
    hzp_j_bind(r, scope, r->jinja->caller,
               take_keyword(&args, &caller, &value) ? value : hzp_j_undefined("caller"));
    r->scope = scope;
    for (int32_t i = 0; i < node->n && !r->m.failed; i++) {
        const struct jnode *param = node->list[i];
        bool named = take_keyword(&args, param->value.s, &value);
        if ((size_t)i < args.n && named)
            hzp_j_fail(&r->m, "got multiple values for argument '%s'", param->value.s->text);
        else if ((size_t)i < args.n)
            value = args.pos[i];
        else if (!named && param->a)
            value = hzp_j_eval(r, param->a);
        else if (!named)
            value = hzp_j_undefined(param->value.s->text);
        hzp_j_bind(r, scope, param->name, value);
    }
    bind_rest(r, node, scope, &args);
    struct jval text = hzp_j_capture(r, node->d, scope);
    r->scope = before;
    return text;
}

static struct jval call(struct jrun *r, struct jval fn, const struct jargs *args)
{
    enum jflow flow;
    switch (fn.type) {
    case J_MACRO:
        return call_macro(r, fn.macro, args);
    case J_FUNCTION:
        return hzp_j_builtin_call(r, fn.fn, hzp_j_undefined(NULL), args);
    case J_METHOD:
        return hzp_j_builtin_call(r, fn.bound->builtin, fn.bound->self, args);
    case J_UNDEFINED:
        return undefined_used(r, fn);
    case J_LOOP:
        if (fn.loop->node->flag && args->n == 1) {
            struct jbuf text = {0}, *out = r->out;
            struct jscope *before = r->scope;
            r->out = &text;
            r->scope = fn.loop->scope->up;
            hzp_j_run_for(r, fn.loop->node, args->pos[0], fn.loop->depth + 1, &flow);
            r->scope = before;
            r->out = out;
            return hzp_j_take(&r->m, &text);
        }
        return hzp_j_fail(&r->m, "the loop is not recursive");
    default:
        return hzp_j_fail(&r->m, "'%s' object is not callable", hzp_j_type_name(fn));
    }
}

static void spread_kwargs(struct jrun *r, struct jval named, struct jargs *args, size_t room)
{
    if (named.type != J_DICT) {
        hzp_j_fail(&r->m, "argument after ** must be a mapping, not %s", hzp_j_type_name(named));
        return;
    }
    for (size_t i = 0; i < named.o->n && args->kws < room; i++) {
        if (named.o->key[i].type != J_STRING) {
            hzp_j_fail(&r->m, "keywords must be strings");
            return;
        }
        args->key[args->kws] = named.o->key[i];
        args->value[args->kws++] = named.o->value[i];
    }
}

static struct jargs eval_args(struct jrun *r, const struct jnode *node)
{
    struct jargs args = {0};
    struct jval more = hzp_j_undefined(NULL), named = hzp_j_undefined(NULL), list = {0};
    if (!node->n && !node->kws && !node->b && !node->c)
        return args;
    list = hzp_j_list(&r->m, J_IS_LIST);
    for (int32_t i = 0; i < node->n; i++)
        hzp_j_push(&r->m, list.l, hzp_j_eval(r, node->list[i]));
    if (node->b) {
        more = hzp_j_eval(r, node->b);
        struct jiter it = hzp_j_iter(&r->m, more);
        struct jval each;
        while (hzp_j_next(&r->m, &it, &each))
            hzp_j_push(&r->m, list.l, each);
    }
    args.pos = list.l->item;
    args.n = list.l->n;
    if (node->c)
        named = hzp_j_eval(r, node->c);
    size_t room = (size_t)node->kws + (named.type == J_DICT ? named.o->n : 0);
    if (!room && !node->c)
        return args;
    args.key = hzp_j_alloc(&r->m, (room + 1) * sizeof(*args.key));
    args.value = hzp_j_alloc(&r->m, (room + 1) * sizeof(*args.value));
    if (!args.key || !args.value)
        return (struct jargs){0};
    for (int32_t i = 0; i < node->kws; i++) {
        args.key[args.kws] = node->kw[i].key;
        args.value[args.kws++] = hzp_j_eval(r, node->kw[i].value);
    }
    if (node->c)
        spread_kwargs(r, named, &args, room);
    return args;
}

static struct jval eval_call(struct jrun *r, const struct jnode *node)
{
    struct jval fn = hzp_j_eval(r, node->a);
    struct jargs args = eval_args(r, node);
    if (r->m.failed)
        return hzp_j_undefined(NULL);
    r->m.line = node->line;
    return call(r, fn, &args);
}

static struct jval eval_builtin(struct jrun *r, const struct jnode *node)
{
    struct jval in = hzp_j_eval(r, node->a);
    if (!node->builtin)
        return hzp_j_fail(&r->m, "no filter or test named '%s'", node->value.s->text);
    struct jargs args = eval_args(r, node);
    if (r->m.failed)
        return hzp_j_undefined(NULL);
    r->m.line = node->line;
    return hzp_j_builtin_call(r, node->builtin, in, &args);
}

/* ---- operators and literals ---- */

bool hzp_j_compares(struct jrun *r, enum jop op, struct jval a, struct jval b)
{
    static const char *const names[] = {
        [OP_LT] = "<", [OP_LE] = "<=", [OP_GT] = ">", [OP_GE] = ">="};
    switch (op) {
    case OP_EQ:
        return hzp_j_equal(&r->m, a, b);
    case OP_NE:
        return !hzp_j_equal(&r->m, a, b);
    case OP_IN:
        return hzp_j_contains(&r->m, a, b);
    case OP_NOT_IN:
        return !hzp_j_contains(&r->m, a, b);
    default:
        break;
    }
    int c = hzp_j_compare(&r->m, a, b, names[op]);
    return op == OP_LT ? c < 0 : op == OP_LE ? c <= 0 : op == OP_GT ? c > 0 : c >= 0;
}

static struct jval eval_compare(struct jrun *r, const struct jnode *node)
{
    struct jval left = hzp_j_eval(r, node->a);
    for (int32_t i = 0; i < node->n; i++) {
        struct jval right = hzp_j_eval(r, node->list[i]->a);
        if (!hzp_j_compares(r, node->list[i]->op, left, right) || r->m.failed)
            return hzp_j_bool(false);
        left = right;
    }
    return hzp_j_bool(true);
}

static struct jval eval_concat(struct jrun *r, const struct jnode *node)
{
    struct jbuf buf = {0};
    for (int32_t i = 0; i < node->n; i++)
        hzp_j_print(&r->m, &buf, hzp_j_eval(r, node->list[i]), false);
    return hzp_j_take(&r->m, &buf);
}

static struct jval eval_items(struct jrun *r, const struct jnode *node)
{
    struct jval list = hzp_j_list(&r->m, node->kind == N_TUPLE ? J_IS_TUPLE : J_IS_LIST);
    for (int32_t i = 0; i < node->n; i++)
        hzp_j_push(&r->m, list.l, hzp_j_eval(r, node->list[i]));
    return list;
}

static struct jval eval_dict(struct jrun *r, const struct jnode *node)
{
    struct jval dict = hzp_j_dict(&r->m, J_DICT);
    for (int32_t i = 0; i + 1 < node->n; i += 2) {
        struct jval key = hzp_j_eval(r, node->list[i]);
        hzp_j_dict_set(&r->m, dict.o, key, hzp_j_eval(r, node->list[i + 1]));
    }
    return dict;
}

static struct jval eval_sign(struct jrun *r, const struct jnode *node)
{
    struct jval v = hzp_j_eval(r, node->a);
    if (v.type == J_UNDEFINED)
        return undefined_used(r, v);
    if (!hzp_j_is_number(v))
        return hzp_j_fail(&r->m, "bad operand type for unary %c: '%s'",
                          node->kind == N_NEGATE ? '-' : '+', hzp_j_type_name(v));
    if (v.type == J_FLOAT)
        return node->kind != N_NEGATE ? v : hzp_j_float(-hzp_j_number(v));
    int64_t i = v.type == J_BOOL ? v.b : v.i;
    if (i == INT64_MIN)
        return hzp_j_fail(&r->m, "a number is too large");
    return hzp_j_int(node->kind == N_NEGATE ? -i : i);
}

static struct jval eval_slice(struct jrun *r, const struct jnode *node)
{
    struct jval v = hzp_j_eval(r, node->a), part[3] = {{0}, {0}, {0}};
    const struct jnode *of[3] = {node->b, node->c, node->d};
    for (int i = 0; i < 3; i++)
        if (of[i])
            part[i] = hzp_j_eval(r, of[i]);
    if (v.type == J_UNDEFINED)
        return undefined_used(r, v);
    return hzp_j_slice(r, v, part[0], part[1], part[2]);
}

static struct jval eval_node(struct jrun *r, const struct jnode *node)
{
    struct jval v;
    switch (node->kind) {
    case N_ATTR:
        return attribute(r, hzp_j_eval(r, node->a), node->value);
    case N_ITEM:
        v = hzp_j_eval(r, node->a);
        return hzp_j_item(r, v, hzp_j_eval(r, node->b));
    case N_SLICE:
        return eval_slice(r, node);
    case N_CALL:
        return eval_call(r, node);
    case N_FILTER:
    case N_TEST:
        return eval_builtin(r, node);
    case N_NOT:
        return hzp_j_bool(!hzp_j_truth(hzp_j_eval(r, node->a)));
    case N_AND:
        v = hzp_j_eval(r, node->a);
        return hzp_j_truth(v) ? hzp_j_eval(r, node->b) : v;
    case N_OR:
        v = hzp_j_eval(r, node->a);
        return hzp_j_truth(v) ? v : hzp_j_eval(r, node->b);
    case N_NEGATE:
    case N_POSITIVE:
        return eval_sign(r, node);
    case N_BINARY:
        v = hzp_j_eval(r, node->a);
        return hzp_j_binary(r, node->op, v, hzp_j_eval(r, node->b));
    case N_COMPARE:
        return eval_compare(r, node);
    case N_CONCAT:
        return eval_concat(r, node);
    case N_IF_ELSE:
        if (hzp_j_truth(hzp_j_eval(r, node->a)))
            return hzp_j_eval(r, node->b);
        return node->c ? hzp_j_eval(r, node->c) : hzp_j_undefined("the other side of an if");
    case N_LIST:
    case N_TUPLE:
        return eval_items(r, node);
    default:
        return eval_dict(r, node);
    }
}

struct jval hzp_j_eval(struct jrun *r, const struct jnode *node)
{
    if (node->kind == N_CONST)
        return node->value;
    if (node->kind == N_NAME)
        return hzp_j_lookup(r, node->name);
    if (!hzp_j_step(&r->m, 1))
        return hzp_j_undefined(NULL);
    if (r->m.depth >= r->m.depth_max)
        return hzp_j_fail(&r->m, "the template is nested too deeply");
    r->m.depth++;
    struct jval v = eval_node(r, node);
    r->m.depth--;
    return v;
}
