/* SPDX-License-Identifier: Apache-2.0 */
/* What filters, methods and operators do to strings alike. */
#include "text/jinja/builtins.h"

#include "base/utf8.h"
#include "text/jinja/run.h"

#include <utf8proc.h>

bool hzp_j_is_space(uint32_t code)
{
    return hzp_utf8_is_space(code) || (code >= 0x1C && code <= 0x1F);
}

static bool in_set(uint32_t code, struct jval chars)
{
    int step;
    if (chars.type != J_STRING)
        return hzp_j_is_space(code);
    for (size_t at = 0; at < chars.s->bytes; at += (size_t)step)
        if (hzp_utf8_get(chars.s->text + at, &step) == code)
            return true;
    return false;
}

J_BUILTIN(hzp_j_do_strip)
{
    struct jval s = hzp_j_str(&r->m, v), chars = arg[0];
    const char *text = s.s->text;
    size_t from = 0, to = s.s->bytes;
    int step;
    if (chars.type != J_UNSET && chars.type != J_NONE && chars.type != J_STRING)
        return hzp_j_fail(&r->m, "strip arg must be None or str");
    while ((how & 1) && from < to && in_set(hzp_utf8_get(text + from, &step), chars) &&
           hzp_j_step(&r->m, 1))
        from += (size_t)step;
    while ((how & 2) && to > from && hzp_j_step(&r->m, 1)) {
        size_t at = hzp_utf8_before(text, to);
        if (!in_set(hzp_utf8_get(text + at, &step), chars))
            break;
        to = at;
    }
    struct jval got = hzp_j_borrow(&r->m, text + from, to - from);
    got.markup = s.markup;
    return got;
}

struct jval hzp_j_replace(struct jrun *r, struct jval s, struct jval old, struct jval new,
                          int64_t count)
{
    struct jbuf buf = {0};
    const char *at = s.s->text, *end = at + s.s->bytes;
    if (count < 0)
        count = INT64_MAX;
    if (!old.s->bytes) { /* between all characters */
        for (; count > 0 && !r->m.failed; count--) {
            hzp_j_add(&r->m, &buf, new.s->text, new.s->bytes);
            if (at == end)
                break;
            int n = hzp_utf8_step((uint8_t)*at);
            hzp_j_add(&r->m, &buf, at, (size_t)n);
            at += n;
        }
        hzp_j_add(&r->m, &buf, at, (size_t)(end - at));
        return hzp_j_take(&r->m, &buf);
    }
    for (; count > 0 && hzp_j_step(&r->m, 1); count--) {
        const char *found = memmem(at, (size_t)(end - at), old.s->text, old.s->bytes);
        if (!found)
            break;
        hzp_j_add(&r->m, &buf, at, (size_t)(found - at));
        hzp_j_add(&r->m, &buf, new.s->text, new.s->bytes);
        at = found + old.s->bytes;
    }
    if (at == s.s->text)
        return hzp_j_borrow(&r->m, s.s->text, s.s->bytes);
    hzp_j_add(&r->m, &buf, at, (size_t)(end - at));
    return hzp_j_take(&r->m, &buf);
}

struct jval hzp_j_escape(struct jrun *r, struct jval v)
{
    struct jbuf buf = {0};
    struct jval s = hzp_j_str(&r->m, v);
    if (s.markup)
        return s;
    for (size_t i = 0; i < s.s->bytes && !r->m.failed; i++) {
        char c = s.s->text[i];
        const char *as = c == '&'    ? "&amp;"
                         : c == '<'  ? "&lt;"
                         : c == '>'  ? "&gt;"
                         : c == '"'  ? "&#34;"
                         : c == '\'' ? "&#39;"
                                     : NULL;
        if (as)
            hzp_j_add_text(&r->m, &buf, as);
        else
            hzp_j_add(&r->m, &buf, &c, 1);
    }
    return hzp_j_take_as(&r->m, &buf, true);
}

/* ---- upper and lower case ---- */

static uint32_t upper_of(uint32_t code)
{
    return (uint32_t)utf8proc_toupper((int32_t)code);
}

static uint32_t lower_of(uint32_t code)
{
    return (uint32_t)utf8proc_tolower((int32_t)code);
}

bool hzp_j_is_letter(uint32_t code)
{
    utf8proc_category_t category = utf8proc_category((int32_t)code);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static bool cased(uint32_t code)
{
    return upper_of(code) != code || lower_of(code) != code || code == 0xDF;
}

static void put(struct jrun *r, struct jbuf *buf, uint32_t code)
{
    char text[4];
    hzp_j_add(&r->m, buf, text, (size_t)hzp_utf8_put(text, code));
}

/* Upper case of one character, which is several for the sharp s and for ligatures. */
static void put_upper(struct jrun *r, struct jbuf *buf, uint32_t code, bool title)
{
    static const struct {
        uint32_t code;
        const char *upper, *title;
    } several[] = {{0xDF, "SS", "Ss"},
                   {0x149, "\xCA\xBCN", "\xCA\xBCN"},
                   {0x1F0, "J\xCC\x8C", "J\xCC\x8C"},
                   {0xFB00, "FF", "Ff"},
                   {0xFB01, "FI", "Fi"},
                   {0xFB02, "FL", "Fl"},
                   {0xFB03, "FFI", "Ffi"},
                   {0xFB04, "FFL", "Ffl"},
                   {0xFB05, "ST", "St"},
                   {0xFB06, "ST", "St"}};
    for (int i = 0; code >= 0x80 && i < HZP_COUNT(several); i++)
        if (several[i].code == code) {
            hzp_j_add_text(&r->m, buf, title ? several[i].title : several[i].upper);
            return;
        }
    put(r, buf, title ? (uint32_t)utf8proc_totitle((int32_t)code) : upper_of(code));
}

/* Capital sigma at the end of a word becomes a final one, as in Python. */
static uint32_t sigma(const struct jstr *s, size_t at)
{
    int step;
    bool before = false, after = false;
    for (size_t i = at; i > 0 && !before;) {
        i = hzp_utf8_before(s->text, i);
        uint32_t code = hzp_utf8_get(s->text + i, &step);
        if (!cased(code) && code != '\'' && code != 0xAD)
            break;
        before = cased(code);
    }
    for (size_t i = at + 2; i < s->bytes && !after; i += (size_t)step) {
        uint32_t code = hzp_utf8_get(s->text + i, &step);
        if (!cased(code) && code != '\'' && code != 0xAD)
            break;
        after = cased(code);
    }
    return before && !after ? 0x3C2 : 0x3C3;
}

struct jval hzp_j_case(struct jrun *r, struct jval s, enum jcase how)
{
    struct jbuf buf = {0};
    bool in_word = false;
    int step;
    for (size_t at = 0; at < s.s->bytes && hzp_j_step(&r->m, 1); at += (size_t)step) {
        uint32_t code = hzp_utf8_get(s.s->text + at, &step);
        bool up = how == J_UPPER || (how == J_CAPITAL && !at) || (how == J_TITLE && !in_word) ||
                  (how == J_SWAP && lower_of(code) != code ? false : how == J_SWAP);
        in_word = cased(code);
        if (up)
            put_upper(r, &buf, code, how == J_CAPITAL || how == J_TITLE);
        else if (code == 0x130)
            hzp_j_add(&r->m, &buf, "i\xCC\x87", 3);
        else if (code == 0x3A3)
            put(r, &buf, sigma(s.s, at));
        else
            put(r, &buf, lower_of(code));
    }
    return hzp_j_take_as(&r->m, &buf, s.markup);
}

/* ---- s % values ---- */

struct format {
    struct jrun *r;
    struct jbuf buf;
    struct jval values;
    size_t used;
    bool markup;
};

struct spec {
    bool minus, plus, space, zero, alt;
    int64_t width, precision; /* precision -1: none */
    char type;
};

static struct jval next_value(struct format *f)
{
    bool many = f->values.type == J_LIST && f->values.l->kind == J_IS_TUPLE;
    if (f->used >= (many ? f->values.l->n : 1))
        return hzp_j_fail(&f->r->m, "not enough arguments for format string");
    return many ? f->values.l->item[f->used++] : (f->used++, f->values);
}

static void pad(struct format *f, const char *text, size_t bytes, const struct spec *spec)
{
    struct jmem *m = &f->r->m;
    int64_t more = spec->width - (int64_t)hzp_utf8_count(text, bytes);
    bool sign = bytes && (text[0] == '-' || text[0] == '+');
    bool zero = spec->zero && !spec->minus && strchr("dixXofFeEgG", spec->type);
    if (zero && sign)
        hzp_j_add(m, &f->buf, text, 1);
    hzp_j_repeat(m, &f->buf, zero ? "0" : " ", 1, spec->minus ? 0 : more);
    hzp_j_add(m, &f->buf, text + (zero && sign), bytes - (zero && sign));
    hzp_j_repeat(m, &f->buf, " ", 1, spec->minus ? more : 0);
}

static void format_number(struct format *f, struct jval v, const struct spec *spec)
{
    char text[512], how[16];
    bool real = strchr("fFeEgG", spec->type) != NULL;
    if (!hzp_j_is_number(v)) {
        hzp_j_fail(&f->r->m, "%%%c format: a number is required, not %s", spec->type,
                   hzp_j_type_name(v));
        return;
    }
    if (spec->precision > 100) {
        hzp_j_fail(&f->r->m, "a format's precision is too large");
        return;
    }
    snprintf(how, sizeof(how), "%%%s%s%s.*%s%c", spec->plus ? "+" : "", spec->space ? " " : "",
             spec->alt ? "#" : "", real ? "" : "ll",
             spec->type == 'i' || spec->type == 'u' ? 'd' : spec->type);
    int precision = (int)(spec->precision >= 0 ? spec->precision : real ? 6 : 1);
    int n;
    double d = hzp_j_number(v);
    if (!real && v.type == J_FLOAT && (!isfinite(d) || fabs(d) > 9e18)) {
        hzp_j_fail(&f->r->m, "a number is too large to format");
        return;
    }
    if (real)
        n = snprintf(text, sizeof(text), how, precision, d);
    else
        n = snprintf(text, sizeof(text), how, precision,
                     v.type == J_FLOAT ? (long long)d
                     : v.type == J_INT ? (long long)v.i
                                       : (long long)v.b);
    pad(f, text, (size_t)HZP_MIN(n, (int)sizeof(text) - 1), spec);
}

static void format_one(struct format *f, struct jval v, const struct spec *spec)
{
    struct jbuf buf = {0};
    struct jmem *m = &f->r->m;
    switch (spec->type) {
    case 's':
    case 'r':
    case 'a': {
        hzp_j_print(m, &buf, v, spec->type != 's');
        struct jval text = hzp_j_take(m, &buf);
        text.markup = v.type == J_STRING && v.markup;
        if (f->markup)
            text = hzp_j_escape(f->r, text);
        size_t bytes = text.s->bytes;
        if (spec->precision >= 0 && spec->precision < hzp_j_codes(text))
            bytes = hzp_j_offset(text, spec->precision);
        pad(f, text.s->text, bytes, spec);
        return;
    }
    case 'c':
        if (v.type == J_INT && v.i >= 0 && v.i < 0x110000 && !(v.i >= 0xD800 && v.i < 0xE000)) {
            char text[4];
            pad(f, text, (size_t)hzp_utf8_put(text, (uint32_t)v.i), spec);
        } else if (v.type == J_STRING && hzp_j_codes(v) == 1) {
            pad(f, v.s->text, v.s->bytes, spec);
        } else {
            hzp_j_fail(m, "%%c requires int or char");
        }
        return;
    default:
        if (!spec->type || !strchr("diuxXofFeEgG", spec->type))
            hzp_j_fail(m, "unsupported format character '%c'", spec->type);
        else
            format_number(f, v, spec);
    }
}

static int64_t read_width(struct format *f, const char **at, const char *end)
{
    int64_t n = 0;
    if (*at < end && **at == '*') {
        (*at)++;
        return hzp_j_arg_int(f->r, next_value(f), "a width", 0);
    }
    for (; *at < end && **at >= '0' && **at <= '9' && n < 1000000000; (*at)++)
        n = n * 10 + (**at - '0');
    return n;
}

/* One conversion; at points behind the percent sign. */
static const char *format_spec(struct format *f, const char *at, const char *end)
{
    struct spec spec = {.precision = -1};
    struct jval v = {0};
    if (at < end && *at == '(') {
        const char *close = memchr(at, ')', (size_t)(end - at));
        struct jval *found = NULL;
        if (close && f->values.type == J_DICT)
            found = hzp_j_dict_get(&f->r->m, f->values.o,
                                   hzp_j_borrow(&f->r->m, at + 1, (size_t)(close - at - 1)));
        if (!found) {
            hzp_j_fail(&f->r->m, "a format names a key that its mapping lacks");
            return end;
        }
        v = *found;
        f->used = 1;
        at = close + 1;
    }
    for (; at < end && strchr("-+ 0#", *at) && *at; at++) {
        spec.minus |= *at == '-';
        spec.plus |= *at == '+';
        spec.space |= *at == ' ';
        spec.zero |= *at == '0';
        spec.alt |= *at == '#';
    }
    spec.width = read_width(f, &at, end);
    if (at < end && *at == '.') {
        at++;
        spec.precision = read_width(f, &at, end);
    }
    while (at < end && strchr("hlL", *at) && *at)
        at++;
    if (at >= end) {
        hzp_j_fail(&f->r->m, "incomplete format");
        return end;
    }
    spec.type = *at++;
    if (spec.type == '%') {
        hzp_j_add(&f->r->m, &f->buf, "%", 1);
        return at;
    }
    if (v.type == J_UNSET)
        v = next_value(f);
    if (!f->r->m.failed)
        format_one(f, v, &spec);
    return at;
}

struct jval hzp_j_percent(struct jrun *r, struct jval s, struct jval values)
{
    struct format f = {.r = r, .values = values, .markup = s.markup};
    const char *at = s.s->text, *end = at + s.s->bytes;
    while (at < end && !r->m.failed) {
        const char *sign = memchr(at, '%', (size_t)(end - at));
        hzp_j_add(&r->m, &f.buf, at, (size_t)((sign ? sign : end) - at));
        at = sign ? format_spec(&f, sign + 1, end) : end;
    }
    bool many = values.type == J_LIST && values.l->kind == J_IS_TUPLE;
    if (!r->m.failed && f.used < (many ? values.l->n : 1) && values.type != J_DICT &&
        (many || values.type != J_LIST))
        return hzp_j_fail(&r->m, "not all arguments converted during string formatting");
    return hzp_j_take_as(&r->m, &f.buf, s.markup);
}

J_BUILTIN(hzp_j_do_case)
{
    return hzp_j_case(r, hzp_j_str(&r->m, v), (enum jcase)how);
}

J_BUILTIN(hzp_j_has_case)
{
    struct jval text = hzp_j_str(&r->m, v);
    struct jval low = hzp_j_case(r, text, J_LOWER), up = hzp_j_case(r, text, J_UPPER);
    return hzp_j_bool(hzp_j_equal(&r->m, text, how == J_LOWER ? low : up) &&
                      !hzp_j_equal(&r->m, low, up));
}
