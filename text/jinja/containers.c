/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of lists, dicts and `loop`. */
#include "text/jinja/builtins.h"
#include "text/jinja/run.h"

static J_BUILTIN(l_index)
{
    for (size_t i = 0; i < v.l->n; i++)
        if (hzp_j_equal(&r->m, v.l->item[i], arg[0]))
            return hzp_j_int((int64_t)i);
    return hzp_j_fail(&r->m, "the value is not in the list");
}

static J_BUILTIN(l_count)
{
    int64_t n = 0;
    for (size_t i = 0; i < v.l->n; i++)
        n += hzp_j_equal(&r->m, v.l->item[i], arg[0]);
    return hzp_j_int(n);
}

static J_BUILTIN(copy)
{
    return v;
}

static J_BUILTIN(d_get)
{
    struct jval *found = hzp_j_dict_get(&r->m, v.o, arg[0]);
    return found ? *found : arg[1].type == J_UNSET ? hzp_j_none() : arg[1];
}

enum { KEYS, VALUES, ITEMS };

static J_BUILTIN(d_view)
{
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    struct jval list = hzp_j_list(&r->m, J_IS_VIEW);
    list.l->view = names[how];
    for (size_t i = 0; i < v.o->n && hzp_j_step(&r->m, 1); i++)
        hzp_j_push(&r->m, list.l,
                   how == KEYS     ? v.o->key[i]
                   : how == VALUES ? v.o->value[i]
                                   : hzp_j_pair(&r->m, v.o->key[i], v.o->value[i]));
    return list;
}

static J_BUILTIN(loop_cycle)
{
    if (!all->n)
        return hzp_j_fail(&r->m, "no items for cycling given");
    return all->pos[(size_t)v.loop->index0 % all->n];
}

static J_BUILTIN(loop_changed)
{
    struct jval now = hzp_j_list(&r->m, J_IS_TUPLE);
    for (size_t i = 0; i < all->n; i++)
        hzp_j_push(&r->m, now.l, all->pos[i]);
    bool same = v.loop->changed.type != J_UNSET && hzp_j_equal(&r->m, v.loop->changed, now);
    v.loop->changed = now;
    return hzp_j_bool(!same);
}

const struct jbuiltin hzp_j_list_methods[] = {
    {"index", "value", l_index, 0},
    {"count", "value", l_count, 0},
    {"copy", "", copy, 0},
    {NULL, NULL, NULL, 0},
};

const struct jbuiltin hzp_j_dict_methods[] = {
    {"get", "key default", d_get, 0}, {"items", "", d_view, ITEMS}, {"keys", "", d_view, KEYS},
    {"values", "", d_view, VALUES},   {"copy", "", copy, 0},        {NULL, NULL, NULL, 0},
};

const struct jbuiltin hzp_j_loop_methods[] = {
    {"cycle", "*", loop_cycle, 0},
    {"changed", "*", loop_changed, 0},
    {NULL, NULL, NULL, 0},
};
