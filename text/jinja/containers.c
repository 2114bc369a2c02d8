/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of lists, dicts and `loop`. */
#include "text/jinja/builtins.h"
#include "text/jinja/run.h"

#include <string.h>

#define METHOD(name)                                                                               \
    static struct jval name(struct jrun *r, struct jval v, const struct jval *arg,                 \
                            const struct jargs *all)

METHOD(l_index)
{
    for (size_t i = 0; i < v.l->n; i++)
        if (hzp_j_equal(&r->m, v.l->item[i], arg[0]))
            return hzp_j_int((int64_t)i);
    return hzp_j_fail(&r->m, "the value is not in the list");
}

METHOD(l_count)
{
    int64_t n = 0;
    for (size_t i = 0; i < v.l->n; i++)
        n += hzp_j_equal(&r->m, v.l->item[i], arg[0]);
    return hzp_j_int(n);
}

METHOD(copy)
{
    return v;
}

METHOD(d_get)
{
    struct jval *found = hzp_j_dict_get(&r->m, v.o, arg[0]);
    return found ? *found : arg[1].type == J_UNSET ? hzp_j_none() : arg[1];
}

METHOD(d_items)
{
    struct jval list = hzp_j_list(&r->m, J_IS_VIEW);
    list.l->view = "dict_items([";
    for (size_t i = 0; i < v.o->n && hzp_j_step(&r->m, 1); i++)
        hzp_j_push(&r->m, list.l, hzp_j_pair(&r->m, v.o->key[i], v.o->value[i]));
    return list;
}

METHOD(d_keys)
{
    struct jval list = hzp_j_list(&r->m, J_IS_VIEW);
    list.l->view = "dict_keys([";
    for (size_t i = 0; i < v.o->n && hzp_j_step(&r->m, 1); i++)
        hzp_j_push(&r->m, list.l, v.o->key[i]);
    return list;
}

METHOD(d_values)
{
    struct jval list = hzp_j_list(&r->m, J_IS_VIEW);
    list.l->view = "dict_values([";
    for (size_t i = 0; i < v.o->n && hzp_j_step(&r->m, 1); i++)
        hzp_j_push(&r->m, list.l, v.o->value[i]);
    return list;
}

METHOD(loop_cycle)
{
    if (!all->n)
        return hzp_j_fail(&r->m, "no items for cycling given");
    return all->pos[(size_t)v.loop->index0 % all->n];
}

METHOD(loop_changed)
{
    struct jval now = hzp_j_list(&r->m, J_IS_TUPLE);
    for (size_t i = 0; i < all->n; i++)
        hzp_j_push(&r->m, now.l, all->pos[i]);
    bool same = v.loop->changed.type != J_UNSET && hzp_j_equal(&r->m, v.loop->changed, now);
    v.loop->changed = now;
    return hzp_j_bool(!same);
}

const struct jbuiltin hzp_j_list_methods[] = {
    {"index", "value", l_index},
    {"count", "value", l_count},
    {"copy", "", copy},
    {NULL, NULL, NULL},
};

const struct jbuiltin hzp_j_dict_methods[] = {
    {"get", "key default", d_get}, {"items", "", d_items}, {"keys", "", d_keys},
    {"values", "", d_values},      {"copy", "", copy},     {NULL, NULL, NULL},
};

const struct jbuiltin hzp_j_loop_methods[] = {
    {"cycle", "*", loop_cycle},
    {"changed", "*", loop_changed},
    {NULL, NULL, NULL},
};
