/* SPDX-License-Identifier: Apache-2.0 */
/* Filters of single values: text, numbers, JSON. */
#include "text/jinja/builtins.h"
#include "text/jinja/run.h"

#include "base/utf8.h"

/* Unlike str.title: a word begins after white space, a dash or an opening bracket. */
static J_BUILTIN(f_title)
{
    struct jval s = hzp_j_str(&r->m, v);
    struct jbuf buf = {0};
    size_t from = 0;
    for (size_t at = 0; at <= s.s->bytes && hzp_j_step(&r->m, 1);) {
        int step = 1;
        uint32_t code = at < s.s->bytes ? hzp_utf8_get(s.s->text + at, &step) : ' ';
        if (hzp_j_is_space(code) || (code < 0x80 && strchr("-({[<", (int)code) && code)) {
            struct jval word = hzp_j_borrow(&r->m, s.s->text + from, at - from);
            struct jval up = hzp_j_case(r, word, J_CAPITAL);
            hzp_j_add(&r->m, &buf, up.s->text, up.s->bytes);
            if (at < s.s->bytes)
                hzp_j_add(&r->m, &buf, s.s->text + at, (size_t)step);
            from = at + (size_t)step;
        }
        at += (size_t)step;
    }
    return hzp_j_take(&r->m, &buf);
}

static J_BUILTIN(f_string)
{
    return hzp_j_str(&r->m, v);
}

static J_BUILTIN(f_replace)
{
    struct jval old = hzp_j_str(&r->m, arg[0]), new = hzp_j_str(&r->m, arg[1]);
    int64_t count = arg[2].type == J_NONE ? -1 : hzp_j_arg_int(r, arg[2], "count", -1);
    return hzp_j_replace(r, hzp_j_str(&r->m, v), old, new, count);
}

static J_BUILTIN(f_default)
{
    struct jval other = arg[0].type == J_UNSET ? hzp_j_borrow(&r->m, "", 0) : arg[0];
    bool absent = v.type == J_UNDEFINED || (hzp_j_truth(arg[1]) && !hzp_j_truth(v));
    return absent ? other : v;
}

static J_BUILTIN(f_safe)
{
    struct jval s = hzp_j_str(&r->m, v);
    s.markup = true;
    return s;
}

static J_BUILTIN(f_escape)
{
    return hzp_j_escape(r, v);
}

static J_BUILTIN(f_forceescape)
{
    v = hzp_j_str(&r->m, v);
    v.markup = false;
    return hzp_j_escape(r, v);
}

static J_BUILTIN(f_format)
{
    struct jval values = hzp_j_list(&r->m, J_IS_TUPLE);
    if (all->kws) {
        values = hzp_j_dict(&r->m, J_DICT);
        for (size_t i = 0; i < all->kws; i++)
            hzp_j_dict_set(&r->m, values.o, all->key[i], all->value[i]);
    } else {
        for (size_t i = 0; i < all->n; i++)
            hzp_j_push(&r->m, values.l, all->pos[i]);
    }
    return hzp_j_percent(r, hzp_j_str(&r->m, v), values);
}

/* Every line but the first is indented, empty ones only if asked for. */
static J_BUILTIN(f_indent)
{
    struct jval s = v, pad = arg[0];
    if (v.type != J_STRING)
        return hzp_j_fail(&r->m, "indent: a string is required, not %s", hzp_j_type_name(v));
    struct jbuf spaces = {0}, buf = {0};
    bool first = hzp_j_truth(arg[1]), blank = hzp_j_truth(arg[2]);
    if (pad.type != J_STRING) {
        int64_t width = hzp_j_arg_int(r, pad, "width", 4);
        hzp_j_repeat(&r->m, &spaces, " ", 1, width);
        pad = hzp_j_take(&r->m, &spaces);
    }
    if (s.markup)
        pad = hzp_j_escape(r, pad);
    const char *p = s.s->text, *end = p + s.s->bytes;
    for (bool begin = true; (p < end || begin) && hzp_j_step(&r->m, 1); begin = false) {
        const char *line = memchr(p, '\n', (size_t)(end - p)), *to = line ? line : end;
        bool empty = to == p || (to == p + 1 && *p == '\r');
        if (begin ? first : (!empty || blank))
            hzp_j_add(&r->m, &buf, pad.s->text, pad.s->bytes);
        hzp_j_add(&r->m, &buf, p, (size_t)(to - p));
        if (line)
            hzp_j_add(&r->m, &buf, "\n", 1);
        if (line && line + 1 == end && blank)
            hzp_j_add(&r->m, &buf, pad.s->text, pad.s->bytes);
        p = line ? line + 1 : end;
    }
    return hzp_j_take_as(&r->m, &buf, s.markup);
}

static J_BUILTIN(f_center)
{
    struct jval width = arg[0].type == J_UNSET ? hzp_j_int(80) : arg[0];
    const struct jargs args = {.pos = &width, .n = 1};
    struct jval s = hzp_j_str(&r->m, v);
    return hzp_j_builtin_call(r, hzp_j_builtin_find(J_STR_METHOD, "center", 6), s, &args);
}

/* ---- numbers ---- */

static J_BUILTIN(f_abs)
{
    if (v.type == J_FLOAT)
        return hzp_j_number(v) >= 0 ? v : hzp_j_float(fabs(hzp_j_number(v)));
    if (!hzp_j_is_number(v))
        return hzp_j_fail(&r->m, "bad operand type for abs(): '%s'", hzp_j_type_name(v));
    int64_t i = v.type == J_BOOL ? v.b : v.i;
    return i == INT64_MIN ? hzp_j_fail(&r->m, "an integer is too large")
                          : hzp_j_int(i < 0 ? -i : i);
}

/* A string as Python's int() or float() reads it, without underscores; false: it is no number. */
static bool read_number(struct jval v, int base, bool real, double *ret_real, int64_t *ret_whole)
{
    char text[80], *end;
    const char *p = v.s->text, *to = p + v.s->bytes;
    while (p < to && (*p == ' ' || (*p >= 9 && *p <= 13)))
        p++;
    while (to > p && (to[-1] == ' ' || (to[-1] >= 9 && to[-1] <= 13)))
        to--;
    if (p == to || to - p >= (ptrdiff_t)sizeof(text) || memchr(p, 0, (size_t)(to - p)))
        return false;
    memcpy(text, p, (size_t)(to - p));
    text[to - p] = 0;
    if (real && (strchr(text, 'x') || strchr(text, 'X')))
        return false;
    errno = 0;
    if (real)
        *ret_real = strtod(text, &end);
    else
        *ret_whole = strtoll(text, &end, base);
    return !*end && (real || !errno);
}

static struct jval truncated(struct jrun *r, double d, struct jval dflt)
{
    if (!isfinite(d))
        return dflt;
    if (fabs(d) >= 9.2e18)
        return hzp_j_fail(&r->m, "an integer is too large");
    return hzp_j_int((int64_t)d);
}

static J_BUILTIN(f_int)
{
    struct jval dflt = arg[0].type == J_UNSET ? hzp_j_int(0) : arg[0];
    int64_t base = hzp_j_arg_int(r, arg[1], "base", 10), whole;
    double real;
    if (v.type == J_BOOL || v.type == J_INT)
        return hzp_j_int(v.type == J_BOOL ? v.b : v.i);
    if (hzp_j_spelled_whole(v))
        return v;
    if (v.type == J_FLOAT)
        return truncated(r, hzp_j_number(v), dflt);
    if (v.type != J_STRING || base < 2 || base > 36)
        return dflt;
    if (read_number(v, (int)base, false, &real, &whole))
        return hzp_j_int(whole);
    return read_number(v, 10, true, &real, &whole) ? truncated(r, real, dflt) : dflt;
}

static J_BUILTIN(f_float)
{
    struct jval dflt = arg[0].type == J_UNSET ? hzp_j_float(0) : arg[0];
    double real;
    int64_t whole;
    if (hzp_j_is_number(v))
        return hzp_j_float(hzp_j_number(v));
    if (v.type == J_STRING && read_number(v, 10, true, &real, &whole))
        return hzp_j_float(real);
    return dflt;
}

static J_BUILTIN(f_round)
{
    char text[400];
    int64_t precision = hzp_j_arg_int(r, arg[0], "precision", 0);
    struct jval method = hzp_j_arg_string(r, arg[1], "method", "common");
    if (!hzp_j_is_number(v))
        return hzp_j_fail(&r->m, "round: a number is required, not %s", hzp_j_type_name(v));
    if (precision < -18 || precision > 18)
        return hzp_j_fail(&r->m, "round: the precision must be from -18 to 18");
    double d = hzp_j_number(v), scale = pow(10, (double)precision);
    bool common = method.s->bytes == 6 && !memcmp(method.s->text, "common", 6);
    if (!common) {
        bool up = method.s->bytes == 4 && !memcmp(method.s->text, "ceil", 4);
        if (!up && !(method.s->bytes == 5 && !memcmp(method.s->text, "floor", 5)))
            return hzp_j_fail(&r->m, "method must be common, ceil or floor");
        return hzp_j_float((up ? ceil(d * scale) : floor(d * scale)) / scale);
    }
    if (precision < 0)
        d = rint(d * scale) / scale;
    else if (isfinite(d)) {
        snprintf(text, sizeof(text), "%.*f", (int)precision, d);
        d = strtod(text, NULL);
    }
    return v.type == J_FLOAT ? hzp_j_float(d) : hzp_j_int((int64_t)d);
}

/* ---- JSON, as transformers writes it ---- */

static J_BUILTIN(f_tojson)
{
    struct jjson form = {.ascii = hzp_j_truth(arg[0]), .sort = hzp_j_truth(arg[3])};
    struct jbuf buf = {0}, spaces = {0};
    struct jval indent = arg[1], item = {0}, colon = {0};
    if (indent.type == J_INT || indent.type == J_BOOL) {
        int64_t width = indent.type == J_INT ? indent.i : indent.b;
        hzp_j_repeat(&r->m, &spaces, " ", 1, width);
        indent = hzp_j_take(&r->m, &spaces);
    }
    if (indent.type == J_STRING) {
        form.indent = indent.s->text;
        form.indent_bytes = indent.s->bytes;
    } else if (indent.type != J_UNSET && indent.type != J_NONE) {
        return hzp_j_fail(&r->m, "tojson: indent must be an integer or a string");
    }
    form.item = form.indent ? "," : ", ";
    form.item_bytes = form.indent ? 1 : 2;
    form.colon = ": ";
    form.colon_bytes = 2;
    if (arg[2].type == J_LIST && arg[2].l->n == 2) {
        item = arg[2].l->item[0];
        colon = arg[2].l->item[1];
    }
    if (item.type == J_STRING && colon.type == J_STRING) {
        form.item = item.s->text;
        form.item_bytes = item.s->bytes;
        form.colon = colon.s->text;
        form.colon_bytes = colon.s->bytes;
    } else if (arg[2].type != J_UNSET && arg[2].type != J_NONE) {
        return hzp_j_fail(&r->m, "tojson: separators must be two strings");
    }
    hzp_j_dumps(&r->m, &buf, &form, v);
    return hzp_j_take(&r->m, &buf);
}

const struct jbuiltin hzp_j_filters[] = {
    {"abs", "", f_abs, 0},
    {"capitalize", "", hzp_j_do_case, J_CAPITAL},
    {"center", "width", f_center, 0},
    {"d", "default_value boolean", f_default, 0},
    {"default", "default_value boolean", f_default, 0},
    {"e", "", f_escape, 0},
    {"escape", "", f_escape, 0},
    {"float", "default", f_float, 0},
    {"forceescape", "", f_forceescape, 0},
    {"format", "*", f_format, 0},
    {"indent", "width first blank", f_indent, 0},
    {"int", "default base", f_int, 0},
    {"lower", "", hzp_j_do_case, J_LOWER},
    {"replace", "old new count", f_replace, 0},
    {"round", "precision method", f_round, 0},
    {"safe", "", f_safe, 0},
    {"string", "", f_string, 0},
    {"title", "", f_title, 0},
    {"tojson", "ensure_ascii indent separators sort_keys", f_tojson, 0},
    {"trim", "chars", hzp_j_do_strip, 3},
    {"upper", "", hzp_j_do_case, J_UPPER},
    {NULL, NULL, NULL, 0},
};
