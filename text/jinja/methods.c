/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of strings, lists, dicts and of `loop`. Those that change a list or dict are refused by
 * the sandbox, so a template sees them as undefined. */
#include "text/jinja/builtins.h"
#include "text/jinja/run.h"

#include "base/utf8.h"

/* How methods differ that share a function. */
enum { AT_END = 1, NEEDED = 2, IN_THE_MIDDLE = 4 };

static bool need_string(struct jrun *r, struct jval v, const char *name)
{
    if (v.type != J_STRING)
        hzp_j_fail(&r->m, "%s must be str, not %s", name, hzp_j_type_name(v));
    return v.type == J_STRING;
}

static J_BUILTIN(s_replace)
{
    struct jval old = arg[0], new = arg[1];
    if (!need_string(r, old, "replace() argument 1") ||
        !need_string(r, new, "replace() argument 2"))
        return v;
    if (v.markup) {
        old = hzp_j_escape(r, old);
        new = hzp_j_escape(r, new);
    }
    struct jval got = hzp_j_replace(r, v, old, new, hzp_j_arg_int(r, arg[2], "count", -1));
    got.markup = v.markup;
    return got;
}

/* ---- searching ---- */

/* The part of v from code point arg[0] to arg[1], as Python clamps them; *ret_from: its first. */
static struct jval part(struct jrun *r, struct jval v, const struct jval *arg, int64_t *ret_from)
{
    int64_t n = hzp_j_codes(v);
    struct jval from = arg[0], to = arg[1];
    int64_t begin = from.type == J_NONE ? 0 : hzp_j_arg_int(r, from, "start", 0);
    int64_t end = to.type == J_NONE ? n : hzp_j_arg_int(r, to, "end", n);
    begin = begin < 0 ? HZP_MAX(begin + n, 0) : begin;
    end = end < 0 ? HZP_MAX(end + n, 0) : HZP_MIN(end, n);
    *ret_from = begin;
    if (begin > end)
        return (struct jval){0};
    size_t a = hzp_j_offset(v, begin), b = hzp_j_offset(v, end);
    return hzp_j_borrow(&r->m, v.s->text + a, b - a);
}

static bool has_at(struct jval v, struct jval affix, bool end)
{
    size_t n = affix.s->bytes;
    return v.s->bytes >= n && !memcmp(v.s->text + (end ? v.s->bytes - n : 0), affix.s->text, n);
}

/* how: AT_END or 0. */
static J_BUILTIN(s_affix)
{
    bool end = how & AT_END;
    int64_t from;
    struct jval in = part(r, v, arg + 1, &from);
    if (arg[0].type == J_LIST && arg[0].l->kind == J_IS_TUPLE) {
        for (size_t i = 0; i < arg[0].l->n && in.type == J_STRING; i++)
            if (need_string(r, arg[0].l->item[i], "an affix") && has_at(in, arg[0].l->item[i], end))
                return hzp_j_bool(true);
        return hzp_j_bool(false);
    }
    if (!need_string(r, arg[0], "startswith or endswith first arg"))
        return hzp_j_bool(false);
    return hzp_j_bool(in.type == J_STRING && has_at(in, arg[0], end));
}

static struct jval not_found(struct jrun *r, int how)
{
    return how & NEEDED ? hzp_j_fail(&r->m, "substring not found") : hzp_j_int(-1);
}

/* The code point at which arg[0] begins in v, -1: nowhere.  how: AT_END: the last one; NEEDED. */
static J_BUILTIN(s_find)
{
    int64_t from;
    bool last = how & AT_END;
    if (!need_string(r, arg[0], "a substring"))
        return v;
    struct jval in = part(r, v, arg + 1, &from);
    if (in.type != J_STRING)
        return not_found(r, how);
    const struct jstr *what = arg[0].s;
    const char *text = in.s->text, *found = NULL;
    hzp_j_step(&r->m, (int64_t)(in.s->bytes / 32));
    if (!last)
        found = what->bytes ? memmem(text, in.s->bytes, what->text, what->bytes) : text;
    for (size_t at = in.s->bytes + 1; last && !found && at-- > 0;)
        if (at + what->bytes <= in.s->bytes && !memcmp(text + at, what->text, what->bytes))
            found = text + at;
    if (!found)
        return not_found(r, how);
    return hzp_j_int(from + hzp_j_codes(hzp_j_borrow(&r->m, text, (size_t)(found - text))));
}

static J_BUILTIN(s_count)
{
    int64_t from, n = 0;
    if (!need_string(r, arg[0], "a substring"))
        return hzp_j_int(0);
    struct jval in = part(r, v, arg + 1, &from);
    if (in.type != J_STRING)
        return hzp_j_int(0);
    if (!arg[0].s->bytes)
        return hzp_j_int(hzp_j_codes(in) + 1);
    const char *at = in.s->text, *end = at + in.s->bytes;
    while (hzp_j_step(&r->m, 1) &&
           (at = memmem(at, (size_t)(end - at), arg[0].s->text, arg[0].s->bytes))) {
        at += arg[0].s->bytes;
        n++;
    }
    return hzp_j_int(n);
}

/* ---- splitting and joining ---- */

static void push_part(struct jrun *r, struct jval list, struct jval v, const char *from,
                      const char *to)
{
    struct jval text = hzp_j_borrow(&r->m, from, (size_t)(to - from));
    text.markup = v.markup;
    hzp_j_push(&r->m, list.l, text);
}

static bool space_at(const char *p)
{
    int step;
    return hzp_j_is_space(hzp_utf8_get(p, &step));
}

/* Words between white space. */
static void split_words(struct jrun *r, struct jval v, int64_t most, struct jval list)
{
    const char *p = v.s->text, *end = p + v.s->bytes;
    while (hzp_j_step(&r->m, 1)) {
        while (p < end && space_at(p))
            p += hzp_utf8_step((uint8_t)*p);
        if (p >= end)
            return;
        const char *from = p;
        if (most-- == 0) {
            push_part(r, list, v, from, end);
            return;
        }
        while (p < end && !space_at(p))
            p += hzp_utf8_step((uint8_t)*p);
        push_part(r, list, v, from, p);
    }
}

/* What is left of the last `most` words becomes one part again, which begins as the text does. */
static void keep_last(struct jval v, int64_t most, struct jlist *words)
{
    if (most < 0 || (int64_t)words->n <= most)
        return;
    size_t first = words->n - 1 - (size_t)most;
    struct jstr *s = words->item[first].s;
    s->bytes += (size_t)(s->text - v.s->text);
    s->text = v.s->text;
    words->n -= first;
    memmove(words->item, words->item + first, words->n * sizeof(*words->item));
}

static void split_by(struct jrun *r, struct jval v, const struct jstr *by, int64_t most,
                     struct jval list)
{
    const char *p = v.s->text, *end = p + v.s->bytes;
    for (; most != 0 && hzp_j_step(&r->m, 1); most--) {
        const char *found = memmem(p, (size_t)(end - p), by->text, by->bytes);
        if (!found)
            break;
        push_part(r, list, v, p, found);
        p = found + by->bytes;
    }
    push_part(r, list, v, p, end);
}

static void split_by_right(struct jrun *r, struct jval v, const struct jstr *by, int64_t most,
                           struct jval list)
{
    const char *text = v.s->text, *end = text + v.s->bytes, *p = end;
    for (; most != 0; most--) {
        while (p - text >= (ptrdiff_t)by->bytes && memcmp(p - by->bytes, by->text, by->bytes) &&
               hzp_j_step(&r->m, 1))
            p--;
        if (p - text < (ptrdiff_t)by->bytes || r->m.failed)
            break;
        push_part(r, list, v, p, end);
        end = p = p - by->bytes;
    }
    push_part(r, list, v, text, end);
    hzp_j_reverse(list.l);
}

static J_BUILTIN(s_split)
{
    bool right = how & AT_END;
    struct jval list = hzp_j_list(&r->m, J_IS_LIST);
    int64_t most = hzp_j_arg_int(r, arg[1], "maxsplit", -1);
    if (arg[0].type == J_UNSET || arg[0].type == J_NONE) {
        split_words(r, v, right ? -1 : most, list);
        if (right)
            keep_last(v, most, list.l);
    } else if (need_string(r, arg[0], "the separator")) {
        if (!arg[0].s->bytes)
            return hzp_j_fail(&r->m, "empty separator");
        if (right)
            split_by_right(r, v, arg[0].s, most, list);
        else
            split_by(r, v, arg[0].s, most, list);
    }
    return list;
}

static J_BUILTIN(s_splitlines)
{
    struct jval list = hzp_j_list(&r->m, J_IS_LIST);
    bool keep = hzp_j_truth(arg[0]);
    const char *p = v.s->text, *end = p + v.s->bytes, *from = p;
    while (p < end && hzp_j_step(&r->m, 1)) {
        int step;
        uint32_t code = hzp_utf8_get(p, &step);
        if (!(code >= 10 && code <= 13) && !(code >= 0x1C && code <= 0x1E) && code != 0x85 &&
            code != 0x2028 && code != 0x2029) {
            p += step;
            continue;
        }
        const char *to = p;
        p += step;
        if (code == '\r' && p < end && *p == '\n')
            p++;
        push_part(r, list, v, from, keep ? p : to);
        from = p;
    }
    if (from < end)
        push_part(r, list, v, from, end);
    return list;
}

static J_BUILTIN(s_partition)
{
    bool right = how & AT_END;
    struct jval list = hzp_j_list(&r->m, J_IS_TUPLE), two = hzp_j_list(&r->m, J_IS_LIST);
    if (!need_string(r, arg[0], "the separator"))
        return list;
    if (!arg[0].s->bytes)
        return hzp_j_fail(&r->m, "empty separator");
    if (right)
        split_by_right(r, v, arg[0].s, 1, two);
    else
        split_by(r, v, arg[0].s, 1, two);
    struct jval none = hzp_j_borrow(&r->m, "", 0);
    bool found = two.l->n == 2;
    if (r->m.failed)
        return list;
    hzp_j_push(&r->m, list.l, found || !right ? two.l->item[0] : none);
    hzp_j_push(&r->m, list.l, found ? arg[0] : none);
    hzp_j_push(&r->m, list.l, found ? two.l->item[1] : right ? v : none);
    return list;
}

static J_BUILTIN(s_remove_affix)
{
    bool end = how & AT_END;
    if (!need_string(r, arg[0], end ? "removesuffix() argument" : "removeprefix() argument") ||
        !has_at(v, arg[0], end))
        return v;
    size_t n = arg[0].s->bytes;
    return hzp_j_borrow(&r->m, v.s->text + (end ? 0 : n), v.s->bytes - n);
}

static J_BUILTIN(s_join)
{
    struct jbuf buf = {0};
    struct jiter it = hzp_j_iter(&r->m, arg[0]);
    struct jval each;
    for (bool first = true; hzp_j_next(&r->m, &it, &each); first = false) {
        if (!need_string(r, each, "a sequence item"))
            return v;
        if (!first)
            hzp_j_add(&r->m, &buf, v.s->text, v.s->bytes);
        if (v.markup)
            each = hzp_j_escape(r, each);
        hzp_j_add(&r->m, &buf, each.s->text, each.s->bytes);
    }
    return hzp_j_take_as(&r->m, &buf, v.markup);
}

/* ---- padding ---- */

/* how: where the padding goes: 0: behind, AT_END: in front of the text, IN_THE_MIDDLE: both. */
static J_BUILTIN(s_justify)
{
    struct jbuf buf = {0};
    struct jval fill = hzp_j_arg_string(r, arg[1], "the fill character", " ");
    int64_t more = hzp_j_arg_int(r, arg[0], "width", 0) - hzp_j_codes(v);
    if (hzp_j_codes(fill) != 1)
        return hzp_j_fail(&r->m, "The fill character must be exactly one character long");
    if (more <= 0)
        return v;
    int64_t width = more + hzp_j_codes(v);
    int64_t left = how == IN_THE_MIDDLE ? more / 2 + (more & width & 1) : how == AT_END ? more : 0;
    hzp_j_repeat(&r->m, &buf, fill.s->text, fill.s->bytes, left);
    hzp_j_add(&r->m, &buf, v.s->text, v.s->bytes);
    hzp_j_repeat(&r->m, &buf, fill.s->text, fill.s->bytes, more - left);
    return hzp_j_take_as(&r->m, &buf, v.markup);
}

static J_BUILTIN(s_zfill)
{
    struct jbuf buf = {0};
    int64_t more = hzp_j_arg_int(r, arg[0], "width", 0) - hzp_j_codes(v);
    bool sign = v.s->bytes && (v.s->text[0] == '-' || v.s->text[0] == '+');
    if (more <= 0)
        return v;
    hzp_j_add(&r->m, &buf, v.s->text, sign);
    hzp_j_repeat(&r->m, &buf, "0", 1, more);
    hzp_j_add(&r->m, &buf, v.s->text + sign, v.s->bytes - sign);
    return hzp_j_take(&r->m, &buf);
}

/* ---- asking ---- */

enum { IS_ALPHA = 1, IS_DIGIT = 2, IS_SPACE = 4, IS_ASCII = 8 };

/* how: the classes of which each code point must be one. */
static J_BUILTIN(s_all_are)
{
    int step;
    for (size_t at = 0; at < v.s->bytes && hzp_j_step(&r->m, 1); at += (size_t)step) {
        uint32_t code = hzp_utf8_get(v.s->text + at, &step);
        bool digit = code >= '0' && code <= '9';
        bool letter = hzp_j_is_letter(code);
        bool fits = ((how & IS_ALPHA) && letter) || ((how & IS_DIGIT) && digit) ||
                    ((how & IS_SPACE) && hzp_j_is_space(code)) || ((how & IS_ASCII) && code < 0x80);
        if (!fits)
            return hzp_j_bool(false);
    }
    return hzp_j_bool(v.s->bytes > 0 || (how & IS_ASCII));
}

/* "{} and {name}".format(...), without format specifications. */
static J_BUILTIN(s_format)
{
    struct jbuf buf = {0};
    size_t next = 0;
    bool by_number = false;
    const char *p = v.s->text, *end = p + v.s->bytes;
    while (p < end && hzp_j_step(&r->m, 1)) {
        if ((*p == '{' || *p == '}') && p + 1 < end && p[1] == *p) {
            hzp_j_add(&r->m, &buf, p, 1);
            p += 2;
            continue;
        }
        if (*p != '{') {
            hzp_j_add(&r->m, &buf, p++, 1);
            continue;
        }
        const char *close = memchr(p, '}', (size_t)(end - p));
        struct jval got = {0};
        struct jstr name = {p + 1, close ? (size_t)(close - p - 1) : 0, -1};
        bool number = name.bytes == 1 && p[1] >= '0' && p[1] <= '9';
        by_number |= number;
        size_t at = number ? (size_t)(p[1] - '0') : name.bytes ? SIZE_MAX : next++;
        if (by_number && next)
            return hzp_j_fail(&r->m, "format: fields with and without a number");
        if (close && at < all->n)
            got = all->pos[at];
        for (size_t i = 0; i < all->kws && close && got.type == J_UNSET; i++)
            if (all->key[i].s->bytes == name.bytes &&
                !memcmp(all->key[i].s->text, name.text, name.bytes))
                got = all->value[i];
        if (got.type == J_UNSET)
            return hzp_j_fail(&r->m, "format: a field without a value, or with a specification");
        hzp_j_print(&r->m, &buf, got, false);
        p = close + 1;
    }
    return hzp_j_take(&r->m, &buf);
}

const struct jbuiltin hzp_j_str_methods[] = {
    {"capitalize", "", hzp_j_do_case, J_CAPITAL},
    {"casefold", "", hzp_j_do_case, J_LOWER},
    {"center", "width fillchar", s_justify, IN_THE_MIDDLE},
    {"count", "sub start end", s_count, 0},
    {"endswith", "suffix start end", s_affix, AT_END},
    {"find", "sub start end", s_find, 0},
    {"format", "*", s_format, 0},
    {"index", "sub start end", s_find, NEEDED},
    {"isalnum", "", s_all_are, IS_ALPHA | IS_DIGIT},
    {"isalpha", "", s_all_are, IS_ALPHA},
    {"isascii", "", s_all_are, IS_ASCII},
    {"isdecimal", "", s_all_are, IS_DIGIT},
    {"isdigit", "", s_all_are, IS_DIGIT},
    {"islower", "", hzp_j_has_case, J_LOWER},
    {"isnumeric", "", s_all_are, IS_DIGIT},
    {"isspace", "", s_all_are, IS_SPACE},
    {"isupper", "", hzp_j_has_case, J_UPPER},
    {"join", "iterable", s_join, 0},
    {"ljust", "width fillchar", s_justify, 0},
    {"lower", "", hzp_j_do_case, J_LOWER},
    {"lstrip", "chars", hzp_j_do_strip, 1},
    {"partition", "sep", s_partition, 0},
    {"removeprefix", "prefix", s_remove_affix, 0},
    {"removesuffix", "suffix", s_remove_affix, AT_END},
    {"replace", "old new count", s_replace, 0},
    {"rfind", "sub start end", s_find, AT_END},
    {"rindex", "sub start end", s_find, AT_END | NEEDED},
    {"rjust", "width fillchar", s_justify, AT_END},
    {"rpartition", "sep", s_partition, AT_END},
    {"rsplit", "sep maxsplit", s_split, AT_END},
    {"rstrip", "chars", hzp_j_do_strip, 2},
    {"split", "sep maxsplit", s_split, 0},
    {"splitlines", "keepends", s_splitlines, 0},
    {"startswith", "prefix start end", s_affix, 0},
    {"strip", "chars", hzp_j_do_strip, 3},
    {"swapcase", "", hzp_j_do_case, J_SWAP},
    {"title", "", hzp_j_do_case, J_TITLE},
    {"upper", "", hzp_j_do_case, J_UPPER},
    {"zfill", "width", s_zfill, 0},
    {NULL, NULL, NULL, 0},
};
