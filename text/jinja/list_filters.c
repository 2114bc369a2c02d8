/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of sequences and mappings. */
#include "text/jinja/builtins.h"
#include "text/jinja/run.h"

/* All items of v as a list of its own. */
static struct jval collect(struct jrun *r, struct jval v, enum jlist_kind kind)
{
    struct jval list = hzp_j_list(&r->m, kind), each;
    struct jiter it = hzp_j_iter(&r->m, v);
    while (hzp_j_next(&r->m, &it, &each))
        hzp_j_push(&r->m, list.l, each);
    return list;
}

static J_BUILTIN(f_list)
{
    return collect(r, v, J_IS_LIST);
}

static J_BUILTIN(f_length)
{
    switch (v.type) {
    case J_UNDEFINED:
        return hzp_j_int(0);
    case J_STRING:
        return hzp_j_int(hzp_j_codes(v));
    case J_DICT:
        return hzp_j_int((int64_t)v.o->n);
    case J_LIST:
        if (v.l->kind != J_IS_ITERATOR)
            return hzp_j_int((int64_t)v.l->n);
        break;
    default:
        break;
    }
    return hzp_j_fail(&r->m, "object of type '%s' has no len()", hzp_j_type_name(v));
}

static J_BUILTIN(f_first)
{
    struct jiter it = hzp_j_iter(&r->m, v);
    struct jval each;
    return hzp_j_next(&r->m, &it, &each) ? each
                                         : hzp_j_undefined("the first item of an empty sequence");
}

static J_BUILTIN(f_last)
{
    struct jval list = collect(r, v, J_IS_LIST);
    return list.l->n ? list.l->item[list.l->n - 1]
                     : hzp_j_undefined("the last item of an empty sequence");
}

static J_BUILTIN(f_reverse)
{
    struct jval list = collect(r, v, J_IS_ITERATOR);
    hzp_j_reverse(list.l);
    if (v.type != J_STRING)
        return list;
    struct jbuf buf = {0};
    for (size_t i = 0; i < list.l->n; i++)
        hzp_j_add(&r->m, &buf, list.l->item[i].s->text, list.l->item[i].s->bytes);
    return hzp_j_take(&r->m, &buf);
}

/* The value of an attribute path: "a.b.0" or an integer.  dflt, if given, replaces what a part of
 * the path does not find. */
static struct jval dig_or(struct jrun *r, struct jval v, struct jval path, struct jval dflt)
{
    if (path.type == J_UNSET || path.type == J_NONE)
        return v;
    if (path.type != J_STRING)
        return hzp_j_item(r, v, path);
    bool has_dflt = dflt.type != J_UNSET && dflt.type != J_NONE;
    const char *p = path.s->text, *end = p + path.s->bytes;
    for (bool more = true; more && !r->m.failed;) {
        const char *dot = memchr(p, '.', (size_t)(end - p)), *to = dot ? dot : end;
        struct jval key = hzp_j_borrow(&r->m, p, (size_t)(to - p));
        bool number = to > p && to - p < 10;
        int64_t n = 0;
        for (const char *c = p; c < to; c++) {
            number = number && *c >= '0' && *c <= '9';
            n = n * 10 + (number ? *c - '0' : 0);
        }
        v = hzp_j_item(r, v, number ? hzp_j_int(n) : key);
        if (v.type == J_UNDEFINED && has_dflt)
            v = dflt;
        more = dot != NULL;
        p = to + 1;
    }
    return v;
}

static struct jval dig(struct jrun *r, struct jval v, struct jval path)
{
    return dig_or(r, v, path, (struct jval){0});
}

static J_BUILTIN(f_join)
{
    struct jval by = arg[0].type == J_UNSET ? hzp_j_borrow(&r->m, "", 0) : hzp_j_str(&r->m, arg[0]);
    struct jiter it = hzp_j_iter(&r->m, v);
    struct jbuf buf = {0};
    struct jval each;
    for (bool first = true; hzp_j_next(&r->m, &it, &each); first = false) {
        if (!first)
            hzp_j_add(&r->m, &buf, by.s->text, by.s->bytes);
        hzp_j_print(&r->m, &buf, dig(r, each, arg[1]), false);
    }
    return hzp_j_take(&r->m, &buf);
}

static J_BUILTIN(f_attr)
{
    struct jval name = hzp_j_str(&r->m, arg[0]);
    struct jval got = hzp_j_undefined("an attribute");
    if (v.type == J_LOOP || v.type == J_NAMESPACE)
        got = hzp_j_item(r, v, name);
    return got;
}

static J_BUILTIN(f_items)
{
    if (v.type == J_UNDEFINED)
        return hzp_j_list(&r->m, J_IS_ITERATOR);
    if (v.type != J_DICT)
        return hzp_j_fail(&r->m, "Can only get item pairs from a mapping.");
    struct jval list = hzp_j_list(&r->m, J_IS_ITERATOR);
    for (size_t i = 0; i < v.o->n; i++)
        hzp_j_push(&r->m, list.l, hzp_j_pair(&r->m, v.o->key[i], v.o->value[i]));
    return list;
}

/* ---- order ---- */

/* What an item is sorted by; strings without case unless asked for. */
static struct jval sort_key(struct jrun *r, struct jval v, struct jval path, bool with_case)
{
    if (path.type == J_STRING && memchr(path.s->text, ',', path.s->bytes)) {
        hzp_j_fail(&r->m, "sorting by several attributes is not supported");
        return v;
    }
    v = dig(r, v, path);
    return v.type == J_STRING && !with_case ? hzp_j_case(r, v, J_LOWER) : v;
}

/* A stable merge sort of order[from, to) by key. */
static void merge_sort(struct jrun *r, const struct jval *key, uint32_t *order, uint32_t *spare,
                       size_t from, size_t to, bool down)
{
    if (to - from < 2 || !hzp_j_step(&r->m, 1))
        return;
    size_t mid = from + (to - from) / 2, a = from, b = mid, n = from;
    merge_sort(r, key, order, spare, from, mid, down);
    merge_sort(r, key, order, spare, mid, to, down);
    while (a < mid || b < to) {
        bool second = a == mid;
        if (a < mid && b < to) {
            int c = down ? hzp_j_compare(&r->m, key[order[a]], key[order[b]], "<")
                         : hzp_j_compare(&r->m, key[order[b]], key[order[a]], "<");
            second = c < 0;
        }
        spare[n++] = second ? order[b++] : order[a++];
    }
    memcpy(order + from, spare + from, (to - from) * sizeof(*order));
}

static struct jval sorted(struct jrun *r, struct jval list, const struct jval *key, bool down)
{
    size_t n = list.l->n;
    uint32_t *order = hzp_j_alloc(&r->m, (n + 1) * sizeof(*order));
    uint32_t *spare = hzp_j_alloc(&r->m, (n + 1) * sizeof(*spare));
    struct jval got = hzp_j_list(&r->m, J_IS_LIST);
    if (!order || !spare)
        return got;
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    merge_sort(r, key, order, spare, 0, n, down);
    for (size_t i = 0; i < n && !r->m.failed; i++)
        hzp_j_push(&r->m, got.l, list.l->item[order[i]]);
    return got;
}

static J_BUILTIN(f_sort)
{
    struct jval list = collect(r, v, J_IS_LIST), keys = hzp_j_list(&r->m, J_IS_LIST);
    for (size_t i = 0; i < list.l->n && !r->m.failed; i++)
        hzp_j_push(&r->m, keys.l, sort_key(r, list.l->item[i], arg[2], hzp_j_truth(arg[1])));
    return r->m.failed ? list : sorted(r, list, keys.l->item, hzp_j_truth(arg[0]));
}

static J_BUILTIN(f_dictsort)
{
    bool by_value =
        arg[1].type == J_STRING && arg[1].s->bytes == 5 && !memcmp(arg[1].s->text, "value", 5);
    if (v.type != J_DICT)
        return hzp_j_fail(&r->m, "'%s' object has no attribute 'items'", hzp_j_type_name(v));
    struct jval pairs = hzp_j_list(&r->m, J_IS_LIST), keys = hzp_j_list(&r->m, J_IS_LIST);
    for (size_t i = 0; i < v.o->n && !r->m.failed; i++) {
        struct jval by = by_value ? v.o->value[i] : v.o->key[i];
        hzp_j_push(&r->m, pairs.l, hzp_j_pair(&r->m, v.o->key[i], v.o->value[i]));
        hzp_j_push(&r->m, keys.l, sort_key(r, by, (struct jval){0}, hzp_j_truth(arg[0])));
    }
    return r->m.failed ? pairs : sorted(r, pairs, keys.l->item, hzp_j_truth(arg[2]));
}

/* how: 1: the greatest, -1: the least. */
static J_BUILTIN(f_extreme)
{
    struct jiter it = hzp_j_iter(&r->m, v);
    struct jval each, best = hzp_j_undefined("an item of an empty sequence"), best_key = {0};
    while (hzp_j_next(&r->m, &it, &each)) {
        struct jval key = sort_key(r, each, arg[1], hzp_j_truth(arg[0]));
        if (best_key.type == J_UNSET || how * hzp_j_compare(&r->m, key, best_key, "<") > 0) {
            best = each;
            best_key = key;
        }
    }
    return best;
}

static J_BUILTIN(f_sum)
{
    struct jiter it = hzp_j_iter(&r->m, v);
    struct jval each, total = arg[1].type == J_UNSET ? hzp_j_int(0) : arg[1];
    if (total.type == J_STRING)
        return hzp_j_fail(&r->m, "sum() can't sum strings [use ''.join(seq) instead]");
    while (hzp_j_next(&r->m, &it, &each))
        total = hzp_j_binary(r, OP_ADD, total, dig(r, each, arg[0]));
    return total;
}

static J_BUILTIN(f_unique)
{
    struct jiter it = hzp_j_iter(&r->m, v);
    struct jval each, list = hzp_j_list(&r->m, J_IS_ITERATOR), seen = hzp_j_dict(&r->m, J_DICT);
    while (hzp_j_next(&r->m, &it, &each)) {
        struct jval key = sort_key(r, each, arg[1], hzp_j_truth(arg[0]));
        if (hzp_j_dict_get(&r->m, seen.o, key))
            continue;
        hzp_j_dict_set(&r->m, seen.o, key, hzp_j_none());
        hzp_j_push(&r->m, list.l, each);
    }
    return list;
}

static J_BUILTIN(f_groupby)
{
    struct jval list = f_sort(r, v, (struct jval[]){{0}, arg[2], arg[0]}, all, 0);
    struct jval groups = hzp_j_list(&r->m, J_IS_LIST), group = {0}, last = {0};
    for (size_t i = 0; i < list.l->n && !r->m.failed; i++) {
        struct jval each = list.l->item[i], key = sort_key(r, each, arg[0], hzp_j_truth(arg[2]));
        if (key.type == J_UNDEFINED && arg[1].type != J_UNSET)
            key = arg[1];
        if (last.type == J_UNSET || !hzp_j_equal(&r->m, last, key)) {
            group = hzp_j_list(&r->m, J_IS_LIST);
            hzp_j_push(&r->m, groups.l, hzp_j_pair(&r->m, dig(r, each, arg[0]), group));
        }
        hzp_j_push(&r->m, group.l, each);
        last = key;
    }
    return groups;
}

/* ---- pieces ---- */

static J_BUILTIN(f_batch)
{
    struct jval list = hzp_j_list(&r->m, J_IS_ITERATOR), piece = {0}, each;
    int64_t size = hzp_j_arg_int(r, arg[0], "linecount", 1);
    struct jiter it = hzp_j_iter(&r->m, v);
    while (hzp_j_next(&r->m, &it, &each)) {
        if (piece.type == J_UNSET || (int64_t)piece.l->n == size) {
            piece = hzp_j_list(&r->m, J_IS_LIST);
            hzp_j_push(&r->m, list.l, piece);
        }
        hzp_j_push(&r->m, piece.l, each);
    }
    bool fill = arg[1].type != J_UNSET && arg[1].type != J_NONE && piece.type != J_UNSET;
    while (fill && (int64_t)piece.l->n < size && hzp_j_step(&r->m, 1))
        hzp_j_push(&r->m, piece.l, arg[1]);
    return list;
}

static J_BUILTIN(f_slice)
{
    struct jval all_items = collect(r, v, J_IS_LIST), list = hzp_j_list(&r->m, J_IS_ITERATOR);
    int64_t pieces = hzp_j_arg_int(r, arg[0], "slices", 1), n = (int64_t)all_items.l->n, at = 0;
    if (pieces < 1)
        return hzp_j_fail(&r->m, "slices must be 1 or more");
    for (int64_t i = 0; i < pieces && hzp_j_step(&r->m, 1); i++) {
        struct jval piece = hzp_j_list(&r->m, J_IS_LIST);
        int64_t to = at + n / pieces + (i < n % pieces);
        for (; at < to; at++)
            hzp_j_push(&r->m, piece.l, all_items.l->item[at]);
        if (arg[1].type != J_UNSET && arg[1].type != J_NONE && i >= n % pieces)
            hzp_j_push(&r->m, piece.l, arg[1]);
        hzp_j_push(&r->m, list.l, piece);
    }
    return list;
}

/* ---- map and select ---- */

/* The test or filter that argument `at` names; the arguments behind it are its own. */
static const struct jbuiltin *named(struct jrun *r, enum jbuiltin_group group,
                                    const struct jargs *all, size_t at, struct jargs *ret_args)
{
    const struct jbuiltin *found = NULL;
    struct jval name = all->pos[at];
    if (name.type == J_STRING)
        found = hzp_j_builtin_find(group, name.s->text, name.s->bytes);
    if (!found)
        hzp_j_fail(&r->m, "no %s named '%.*s'", group == J_TEST ? "test" : "filter",
                   name.type == J_STRING ? (int)HZP_MIN(name.s->bytes, 64) : 1,
                   name.type == J_STRING ? name.s->text : "?");
    *ret_args = *all;
    ret_args->pos = all->pos + at + 1;
    ret_args->n = all->n - at - 1;
    return found;
}

static struct jval keyword(const struct jargs *all, const char *name)
{
    for (size_t i = 0; i < all->kws; i++)
        if (all->key[i].s->bytes == strlen(name) &&
            !memcmp(all->key[i].s->text, name, strlen(name)))
            return all->value[i];
    return (struct jval){0};
}

static J_BUILTIN(f_map)
{
    struct jval list = hzp_j_list(&r->m, J_IS_ITERATOR), each;
    struct jval path = keyword(all, "attribute"), dflt = keyword(all, "default");
    const struct jbuiltin *filter = NULL;
    struct jargs args = {0};
    if (!all->n && path.type == J_UNSET)
        return hzp_j_fail(&r->m, "map requires a filter argument");
    if (all->n)
        filter = named(r, J_FILTER, all, 0, &args);
    if (!hzp_j_truth(v)) /* as in Jinja: None is an empty sequence here */
        return list;
    struct jiter it = hzp_j_iter(&r->m, v);
    while (hzp_j_next(&r->m, &it, &each)) {
        hzp_j_push(&r->m, list.l,
                   filter ? hzp_j_builtin_call(r, filter, each, &args)
                          : dig_or(r, each, path, dflt));
    }
    return list;
}

enum { BY_ATTR = 1, REJECT = 2 };

static J_BUILTIN(f_choose)
{
    bool by_attr = how & BY_ATTR, want = !(how & REJECT);
    struct jval list = hzp_j_list(&r->m, J_IS_ITERATOR), each, path = {0};
    const struct jbuiltin *test = NULL;
    struct jargs args = {0};
    size_t at = by_attr;
    if (by_attr && !all->n)
        return hzp_j_fail(&r->m, "missing parameter for attribute name");
    if (by_attr)
        path = all->pos[0];
    if (all->n > at)
        test = named(r, J_TEST, all, at, &args);
    if (!hzp_j_truth(v))
        return list;
    struct jiter it = hzp_j_iter(&r->m, v);
    while (hzp_j_next(&r->m, &it, &each)) {
        struct jval value = by_attr ? dig(r, each, path) : each;
        if (test)
            value = hzp_j_builtin_call(r, test, value, &args);
        if (hzp_j_truth(value) == want)
            hzp_j_push(&r->m, list.l, each);
    }
    return list;
}

const struct jbuiltin hzp_j_list_filters[] = {
    {"attr", "name", f_attr, 0},
    {"batch", "linecount fill_with", f_batch, 0},
    {"count", "", f_length, 0},
    {"dictsort", "case_sensitive by reverse", f_dictsort, 0},
    {"first", "", f_first, 0},
    {"groupby", "attribute default case_sensitive", f_groupby, 0},
    {"items", "", f_items, 0},
    {"join", "d attribute", f_join, 0},
    {"last", "", f_last, 0},
    {"length", "", f_length, 0},
    {"list", "", f_list, 0},
    {"map", "*", f_map, 0},
    {"max", "case_sensitive attribute", f_extreme, 1},
    {"min", "case_sensitive attribute", f_extreme, -1},
    {"reject", "*", f_choose, REJECT},
    {"rejectattr", "*", f_choose, BY_ATTR | REJECT},
    {"reverse", "", f_reverse, 0},
    {"select", "*", f_choose, 0},
    {"selectattr", "*", f_choose, BY_ATTR},
    {"slice", "slices fill_with", f_slice, 0},
    {"sort", "reverse case_sensitive attribute", f_sort, 0},
    {"sum", "attribute start", f_sum, 0},
    {"unique", "case_sensitive attribute", f_unique, 0},
    {NULL, NULL, NULL, 0},
};
