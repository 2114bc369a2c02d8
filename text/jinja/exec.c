/* SPDX-License-Identifier: Apache-2.0 */
/* Statements: scopes, loops, macros, captured blocks. */
#include "text/jinja/jinja.h"
#include "text/jinja/run.h"

/* ---- scopes ---- */

struct jscope *hzp_j_scope(struct jrun *r, struct jscope *up)
{
    struct jscope *scope = hzp_j_alloc(&r->m, sizeof(*scope));
    scope->up = up;
    return scope;
}

void hzp_j_bind(struct jrun *r, struct jscope *scope, int32_t name, struct jval value)
{
    if (!scope->up) {
        r->root[name] = value;
        return;
    }
    for (int32_t i = 0; i < scope->n; i++)
        if (scope->binding[i].name == name) {
            scope->binding[i].value = value;
            return;
        }
    if (hzp_j_grow(&r->m, &scope->binding, (size_t)scope->n, &scope->room, sizeof(struct jbinding)))
        scope->binding[scope->n++] = (struct jbinding){name, value};
}

struct jval hzp_j_lookup(struct jrun *r, int32_t name)
{
    for (struct jscope *scope = r->scope; scope->up; scope = scope->up)
        for (int32_t i = 0; i < scope->n; i++)
            if (scope->binding[i].name == name)
                return scope->binding[i].value;
    if (r->root[name].type != J_UNSET)
        return r->root[name];
    if (r->vars[name].type != J_UNSET)
        return r->vars[name];
    return hzp_j_undefined(r->jinja->names[name]);
}

static void assign_each(struct jrun *r, const struct jnode *target, struct jval value)
{
    struct jiter it = hzp_j_iter(&r->m, value);
    struct jval each;
    int32_t i = 0;
    for (; hzp_j_next(&r->m, &it, &each); i++) {
        if (i == target->n) {
            hzp_j_fail(&r->m, "too many values to unpack (expected %d)", target->n);
            return;
        }
        hzp_j_assign(r, target->list[i], each);
    }
    if (i < target->n)
        hzp_j_fail(&r->m, "not enough values to unpack (expected %d, got %d)", target->n, i);
}

void hzp_j_assign(struct jrun *r, const struct jnode *target, struct jval value)
{
    if (r->m.failed)
        return;
    if (target->kind == N_TUPLE) {
        assign_each(r, target, value);
    } else if (target->kind == N_NS_ATTR) {
        struct jval ns = hzp_j_lookup(r, target->name);
        if (ns.type != J_NAMESPACE)
            hzp_j_fail(&r->m, "cannot assign attribute on non-namespace object");
        else
            hzp_j_dict_set(&r->m, ns.o, target->value, value);
    } else {
        hzp_j_bind(r, r->scope, target->name, value);
    }
}

struct jval hzp_j_capture(struct jrun *r, const struct jnode *body, struct jscope *scope)
{
    struct jbuf text = {0}, *out = r->out;
    struct jscope *before = r->scope;
    r->out = &text;
    r->scope = scope ? scope : hzp_j_scope(r, before);
    hzp_j_exec(r, body);
    r->scope = before;
    r->out = out;
    return hzp_j_take(&r->m, &text);
}

/* ---- loops ---- */

/* The next item that passes the loop's condition, which sees the target but not `loop`. */
static bool pull(struct jrun *r, struct jloop *loop, struct jval *ret)
{
    if (loop->rest && loop->rest_taken < loop->rest->n) {
        *ret = loop->rest->item[loop->rest_taken++];
        return true;
    }
    while (hzp_j_next(&r->m, &loop->it, ret)) {
        if (!loop->node->c)
            return true;
        struct jscope *before = r->scope;
        r->scope = hzp_j_scope(r, loop->scope->up);
        hzp_j_assign(r, loop->node->a, *ret);
        bool passes = hzp_j_truth(hzp_j_eval(r, loop->node->c));
        r->scope = before;
        if (passes && !r->m.failed)
            return true;
    }
    return false;
}

static void look_ahead(struct jrun *r, struct jloop *loop)
{
    if (loop->ahead.type == J_UNSET)
        pull(r, loop, &loop->ahead);
}

static int64_t loop_length(struct jrun *r, struct jloop *loop)
{
    struct jval v;
    if (loop->length >= 0)
        return loop->length;
    struct jlist *rest = hzp_j_list(&r->m, J_IS_LIST).l;
    while (pull(r, loop, &v))
        hzp_j_push(&r->m, rest, v);
    loop->rest = rest;
    loop->rest_taken = 0;
    loop->length = loop->index0 + 1 + (loop->ahead.type != J_UNSET) + (int64_t)rest->n;
    return loop->length;
}

struct jval hzp_j_loop_attr(struct jrun *r, struct jloop *loop, const char *name)
{
    if (!strcmp(name, "index"))
        return hzp_j_int(loop->index0 + 1);
    if (!strcmp(name, "index0"))
        return hzp_j_int(loop->index0);
    if (!strcmp(name, "first"))
        return hzp_j_bool(loop->index0 == 0);
    if (!strcmp(name, "last") || !strcmp(name, "nextitem")) {
        look_ahead(r, loop);
        bool none = loop->ahead.type == J_UNSET;
        return name[0] == 'l' ? hzp_j_bool(none) : none ? hzp_j_undefined("nextitem") : loop->ahead;
    }
    if (!strcmp(name, "previtem"))
        return loop->before.type == J_UNSET ? hzp_j_undefined("previtem") : loop->before;
    if (!strcmp(name, "length"))
        return hzp_j_int(loop_length(r, loop));
    if (!strcmp(name, "revindex"))
        return hzp_j_int(loop_length(r, loop) - loop->index0);
    if (!strcmp(name, "revindex0"))
        return hzp_j_int(loop_length(r, loop) - loop->index0 - 1);
    if (!strcmp(name, "depth"))
        return hzp_j_int(loop->depth + 1);
    if (!strcmp(name, "depth0"))
        return hzp_j_int(loop->depth);
    return hzp_j_undefined(name);
}

static enum jflow run_loop(struct jrun *r, struct jloop *loop, struct jscope *scope)
{
    const struct jnode *node = loop->node;
    struct jval item;
    bool any = false;
    for (;;) {
        if (loop->ahead.type != J_UNSET) {
            item = loop->ahead;
            loop->ahead = (struct jval){0};
        } else if (!pull(r, loop, &item)) {
            break;
        }
        loop->index0 += any;
        any = true;
        loop->before = loop->now;
        loop->now = item;
        scope->n = 0;
        r->scope = scope;
        hzp_j_bind(r, scope, r->jinja->loop, (struct jval){.type = J_LOOP, .loop = loop});
        hzp_j_assign(r, node->a, item);
        if (hzp_j_exec(r, node->d) == J_BREAK || r->m.failed)
            break;
    }
    scope->n = 0;
    r->scope = scope;
    if (!any && node->n && !r->m.failed)
        return hzp_j_exec(r, node->list[0]);
    return J_ON;
}

struct jval hzp_j_run_for(struct jrun *r, const struct jnode *node, struct jval items, int depth,
                          enum jflow *ret_flow)
{
    struct jscope *before = r->scope;
    struct jloop *loop = hzp_j_alloc(&r->m, sizeof(*loop));
    loop->it = hzp_j_iter(&r->m, items);
    loop->node = node;
    loop->scope = hzp_j_scope(r, before);
    loop->depth = depth;
    loop->length = -1;
    *ret_flow = r->m.failed ? J_ON : run_loop(r, loop, loop->scope);
    r->scope = before;
    return hzp_j_none();
}

/* ---- statements ---- */

static void print(struct jrun *r, struct jval v)
{
    hzp_j_print(&r->m, r->out, v, false);
    if (r->main_out.n > r->output_most)
        hzp_j_fail(&r->m, "the template makes more than %zu bytes of text", r->output_most);
}

/* In a call block, the caller is a macro that sees the block's scope. */
static struct jval call_with_block(struct jrun *r, const struct jnode *node)
{
    const struct jnode *call = node->b;
    struct jmacro *macro = hzp_j_alloc(&r->m, sizeof(*macro));
    *macro = (struct jmacro){node->a, r->scope};
    struct jnode with = *call;
    struct jkeyword *kw = hzp_j_alloc(&r->m, (size_t)(call->kws + 1) * sizeof(*kw));
    struct jnode *value = hzp_j_alloc(&r->m, sizeof(*value));
    if (call->kws)
        memcpy(kw, call->kw, (size_t)call->kws * sizeof(*kw));
    value->kind = N_CONST;
    value->line = node->line;
    value->value = (struct jval){.type = J_MACRO, .macro = macro};
    kw[call->kws] = (struct jkeyword){hzp_j_borrow(&r->m, "caller", 6), r->jinja->caller, value};
    with.kw = kw;
    with.kws = call->kws + 1;
    return hzp_j_eval(r, &with);
}

/* Filters around a captured body: the innermost filter of the chain has no input of its own. */
static struct jval filter_text(struct jrun *r, const struct jnode *filter, struct jval text)
{
    struct jnode own = *filter, input = {.kind = N_CONST, .line = filter->line, .value = text};
    if (filter->a)
        input.value = filter_text(r, filter->a, text);
    own.a = &input;
    return hzp_j_eval(r, &own);
}

static void generation(struct jrun *r, const struct jnode *node)
{
    bool outer = r->out == &r->main_out;
    size_t from = r->main_out.n;
    print(r, hzp_j_capture(r, node->d, NULL));
    struct hzp_jinja_output *ret = r->ret;
    if (!outer || r->m.failed)
        return;
    if (hzp_text_grow(&ret->span, &ret->room, ret->spans + 1, sizeof(*ret->span)) < 0)
        hzp_j_fail(&r->m, "out of memory");
    else
        ret->span[ret->spans++] = (struct hzp_jinja_span){from, r->main_out.n};
}

static enum jflow exec_if(struct jrun *r, const struct jnode *node)
{
    for (int32_t i = 0; i + 1 < node->n; i += 2)
        if (hzp_j_truth(hzp_j_eval(r, node->list[i])))
            return hzp_j_exec(r, node->list[i + 1]);
    return node->b && !r->m.failed ? hzp_j_exec(r, node->b) : J_ON;
}

static enum jflow exec_with(struct jrun *r, const struct jnode *node)
{
    struct jscope *before = r->scope, *inner = hzp_j_scope(r, before);
    for (int32_t i = 0; i + 1 < node->n; i += 2) {
        struct jval value = hzp_j_eval(r, node->list[i + 1]); /* in the scope around */
        r->scope = inner;
        hzp_j_assign(r, node->list[i], value);
        r->scope = before;
    }
    r->scope = inner;
    enum jflow flow = hzp_j_exec(r, node->d);
    r->scope = before;
    return flow;
}

static void exec_set_block(struct jrun *r, const struct jnode *node)
{
    struct jval text = hzp_j_capture(r, node->d, NULL);
    if (node->c)
        text = filter_text(r, node->c, text);
    hzp_j_assign(r, node->a, text);
}

static enum jflow exec_body(struct jrun *r, const struct jnode *node)
{
    enum jflow flow = J_ON;
    if (r->m.depth >= r->m.depth_max) {
        hzp_j_fail(&r->m, "the template is nested too deeply");
        return J_ON;
    }
    r->m.depth++;
    for (int32_t i = 0; i < node->n && flow == J_ON && !r->m.failed; i++)
        flow = hzp_j_exec(r, node->list[i]);
    r->m.depth--;
    return flow;
}

static void define_macro(struct jrun *r, const struct jnode *node)
{
    struct jmacro *macro = hzp_j_alloc(&r->m, sizeof(*macro));
    *macro = (struct jmacro){node, r->scope};
    hzp_j_bind(r, r->scope, node->name, (struct jval){.type = J_MACRO, .macro = macro});
}

enum jflow hzp_j_exec(struct jrun *r, const struct jnode *node)
{
    enum jflow flow = J_ON;
    r->m.line = node->line;
    if (!hzp_j_step(&r->m, 1))
        return J_ON;
    switch (node->kind) {
    case N_BODY:
        return exec_body(r, node);
    case N_TEXT:
        print(r, node->value);
        return J_ON;
    case N_PRINT:
        print(r, hzp_j_eval(r, node->a));
        return J_ON;
    case N_IF:
        return exec_if(r, node);
    case N_FOR:
        hzp_j_run_for(r, node, hzp_j_eval(r, node->b), 0, &flow);
        return flow;
    case N_SET:
        hzp_j_assign(r, node->a, hzp_j_eval(r, node->b));
        return J_ON;
    case N_SET_BLOCK:
        exec_set_block(r, node);
        return J_ON;
    case N_MACRO:
        define_macro(r, node);
        return J_ON;
    case N_CALL_BLOCK:
        print(r, call_with_block(r, node));
        return J_ON;
    case N_FILTER_BLOCK:
        print(r, filter_text(r, node->c, hzp_j_capture(r, node->d, NULL)));
        return J_ON;
    case N_WITH:
        return exec_with(r, node);
    case N_GENERATION:
        generation(r, node);
        return J_ON;
    case N_BREAK:
        return J_BREAK;
    default:
        return J_CONTINUE;
    }
}
