/* SPDX-License-Identifier: Apache-2.0 */
/* Finding a row and binding its arguments; the global functions. */
#include "text/jinja/builtins.h"

#include "base/words.h"
#include "text/jinja/run.h"

static const struct jbuiltin *find(const struct jbuiltin *table, const char *name, size_t bytes)
{
    for (; table->name; table++)
        if (strlen(table->name) == bytes && !memcmp(table->name, name, bytes))
            return table;
    return NULL;
}

const struct jbuiltin *hzp_j_builtin_find(enum jbuiltin_group group, const char *name, size_t bytes)
{
    static const struct jbuiltin *const tables[J_BUILTIN_GROUPS] = {
        [J_FILTER] = hzp_j_filters,           [J_TEST] = hzp_j_tests,
        [J_GLOBAL] = hzp_j_globals,           [J_STR_METHOD] = hzp_j_str_methods,
        [J_LIST_METHOD] = hzp_j_list_methods, [J_DICT_METHOD] = hzp_j_dict_methods,
        [J_LOOP_METHOD] = hzp_j_loop_methods};
    const struct jbuiltin *found = find(tables[group], name, bytes);
    return found || group != J_FILTER ? found : find(hzp_j_list_filters, name, bytes);
}

bool hzp_j_builtin_refused(const char *name, size_t bytes)
{
    static const char names[] = "filesizeformat pprint random striptags urlencode urlize xmlattr "
                                "wordwrap wordcount truncate";
    return hzp_word_at(names, name, bytes) >= 0;
}

bool hzp_j_unknown_method(const char *name, size_t bytes)
{
    static const char names[] = "encode expandtabs format_map maketrans translate istitle "
                                "isidentifier isprintable fromkeys";
    return hzp_word_at(names, name, bytes) >= 0;
}

static int count_params(const char *params)
{
    int n = *params != 0;
    for (; *params; params++)
        n += *params == ' ';
    return n;
}

struct jval hzp_j_builtin_call(struct jrun *r, const struct jbuiltin *builtin, struct jval in,
                               const struct jargs *all)
{
    struct jval arg[J_PARAMS_MAX] = {{0}};
    if (r->m.failed)
        return hzp_j_undefined(NULL);
    if (builtin->params[0] == '*')
        return builtin->run(r, in, arg, all, builtin->how);
    int most = count_params(builtin->params);
    if (all->n > (size_t)most)
        return hzp_j_fail(&r->m, "%s takes at most %d arguments, not %zu", builtin->name, most,
                          all->n);
    for (size_t i = 0; i < all->n; i++)
        arg[i] = all->pos[i];
    for (size_t i = 0; i < all->kws; i++) {
        int at = hzp_word_at(builtin->params, all->key[i].s->text, all->key[i].s->bytes);
        if (at < 0 || arg[at].type != J_UNSET)
            return hzp_j_fail(&r->m, "%s: unexpected keyword argument '%.*s'", builtin->name,
                              (int)HZP_MIN(all->key[i].s->bytes, 64), all->key[i].s->text);
        arg[at] = all->value[i];
    }
    return builtin->run(r, in, arg, all, builtin->how);
}

int64_t hzp_j_arg_int(struct jrun *r, struct jval arg, const char *name, int64_t dflt)
{
    if (arg.type == J_UNSET)
        return dflt;
    if (arg.type == J_BOOL)
        return arg.b;
    if (arg.type != J_INT)
        hzp_j_fail(&r->m, "%s must be an integer, not %s", name, hzp_j_type_name(arg));
    return arg.type == J_INT ? arg.i : dflt;
}

struct jval hzp_j_arg_string(struct jrun *r, struct jval arg, const char *name, const char *dflt)
{
    if (arg.type == J_STRING)
        return arg;
    if (arg.type != J_UNSET && arg.type != J_NONE)
        hzp_j_fail(&r->m, "%s must be a string, not %s", name, hzp_j_type_name(arg));
    return hzp_j_borrow(&r->m, dflt, strlen(dflt));
}

/* ---- global functions ---- */

static J_BUILTIN(g_range)
{
    int64_t from = 0, to, step = 1;
    if (all->n < 1)
        return hzp_j_fail(&r->m, "range expected at least 1 argument, got 0");
    to = hzp_j_arg_int(r, arg[0], "range", 0);
    if (all->n > 1) {
        from = to;
        to = hzp_j_arg_int(r, arg[1], "range", 0);
    }
    if (all->n > 2)
        step = hzp_j_arg_int(r, arg[2], "range", 1);
    if (!step)
        return hzp_j_fail(&r->m, "range() arg 3 must not be zero");
    struct jval list = hzp_j_list(&r->m, J_IS_RANGE);
    list.l->from = from;
    list.l->to = to;
    list.l->step = step;
    for (int64_t i = from; step > 0 ? i < to : i > to;) {
        if (list.l->n == 100000) /* the sandbox's bound */
            return hzp_j_fail(&r->m, "Range too big. The sandbox blocks ranges larger than "
                                     "MAX_RANGE (100000).");
        hzp_j_push(&r->m, list.l, hzp_j_int(i));
        if (r->m.failed || __builtin_add_overflow(i, step, &i))
            break;
    }
    return list;
}

/* dict() and namespace(): a mapping or pairs, and keyword arguments. */
static J_BUILTIN(g_dict)
{
    struct jval dict = hzp_j_dict(&r->m, (enum jtype)how);
    if (all->n > 1)
        return hzp_j_fail(&r->m, "dict expected at most 1 argument, got %zu", all->n);
    if (all->n && (all->pos[0].type == J_DICT || all->pos[0].type == J_NAMESPACE)) {
        const struct jdict *from = all->pos[0].o;
        for (size_t i = 0; i < from->n; i++)
            hzp_j_dict_set(&r->m, dict.o, from->key[i], from->value[i]);
    } else if (all->n) {
        struct jiter it = hzp_j_iter(&r->m, all->pos[0]);
        struct jval pair;
        while (hzp_j_next(&r->m, &it, &pair)) {
            if (pair.type != J_LIST || pair.l->n != 2)
                return hzp_j_fail(&r->m, "cannot convert dictionary update sequence");
            hzp_j_dict_set(&r->m, dict.o, pair.l->item[0], pair.l->item[1]);
        }
    }
    for (size_t i = 0; i < all->kws; i++)
        hzp_j_dict_set(&r->m, dict.o, all->key[i], all->value[i]);
    return dict;
}

static J_BUILTIN(g_raise)
{
    struct jval text = hzp_j_str(&r->m, arg[0]);
    return hzp_j_fail(&r->m, "%.*s", (int)HZP_MIN(text.s->bytes, 380), text.s->text);
}

static J_BUILTIN(g_strftime)
{
    char format[128], text[512];
    struct jval given = hzp_j_arg_string(r, arg[0], "strftime_now", "");
    time_t now = r->now ? (time_t)r->now : time(NULL);
    struct tm tm;
    if (given.s->bytes >= sizeof(format) - 1 || memchr(given.s->text, 0, given.s->bytes))
        return hzp_j_fail(&r->m, "strftime_now: the format is too long or has a NUL");
    memcpy(format, given.s->text, given.s->bytes);
    format[given.s->bytes] = 0;
    if (!format[0])
        return hzp_j_borrow(&r->m, "", 0);
    localtime_r(&now, &tm);
    size_t n = strftime(text, sizeof(text), format, &tm);
    return hzp_j_string(&r->m, text, n);
}

const struct jbuiltin hzp_j_globals[] = {
    {"range", "start stop step", g_range, 0},  {"dict", "*", g_dict, J_DICT},
    {"namespace", "*", g_dict, J_NAMESPACE},   {"raise_exception", "message", g_raise, 0},
    {"strftime_now", "format", g_strftime, 0}, {NULL, NULL, NULL, 0},
};
