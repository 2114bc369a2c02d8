/* SPDX-License-Identifier: Apache-2.0 */
/* Values as text: Python's str(), repr() and json.dumps(). */
#include "text/jinja/value.h"

#include "base/utf8.h"

#include <utf8proc.h>

/* Python's repr of a float, at most 32 bytes. */
static void float_text(double d, char *ret, size_t size)
{
    char digits[40];
    if (isnan(d) || isinf(d)) {
        snprintf(ret, size, "%s", isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    for (int precision = 0; precision < 17; precision++) {
        snprintf(digits, sizeof(digits), "%.*e", precision, d);
        if (strtod(digits, NULL) == d)
            break;
    }
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    bool negative = digits[0] == '-';
    char mantissa[24];
    int n = 0;
    for (const char *p = digits; p < e; p++)
        if (*p >= '0' && *p <= '9')
            mantissa[n++] = *p;
    if (exponent < -4 || exponent >= 16) {
        snprintf(ret, size, "%s%c%s%.*se%c%02d", negative ? "-" : "", mantissa[0], n > 1 ? "." : "",
                 n - 1, mantissa + 1, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    char plain[48];
    int at = 0;
    if (exponent < 0) {
        at += snprintf(plain, sizeof(plain), "0.%.*s", -exponent - 1, "000000");
        at += snprintf(plain + at, sizeof(plain) - (size_t)at, "%.*s", n, mantissa);
    } else {
        for (int i = 0; i <= exponent || i < n; i++) {
            if (i == exponent + 1)
                plain[at++] = '.';
            plain[at++] = i < n ? mantissa[i] : '0';
        }
        if (n <= exponent + 1)
            plain[at++] = '.', plain[at++] = '0';
        plain[at] = 0;
    }
    snprintf(ret, size, "%s%s", negative ? "-" : "", plain);
}

/* Python's str.isprintable for one code point above ASCII: neither a separator nor other. */
static bool printable(uint32_t code)
{
    utf8proc_category_t category = utf8proc_category((int32_t)code);
    return category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS;
}

static void repr_string(struct jmem *m, struct jbuf *buf, const struct jstr *s)
{
    bool single = memchr(s->text, '\'', s->bytes) && !memchr(s->text, '"', s->bytes);
    char quote = single ? '"' : '\'', escaped[16];
    hzp_j_add(m, buf, &quote, 1);
    int step;
    for (size_t at = 0; at < s->bytes && !m->failed; at += (size_t)step) {
        uint32_t code = hzp_utf8_get(s->text + at, &step);
        const char *plain = code == '\n'   ? "\\n"
                            : code == '\r' ? "\\r"
                            : code == '\t' ? "\\t"
                                           : NULL;
        if (plain)
            hzp_j_add(m, buf, plain, 2);
        else if (code == (uint32_t)quote || code == '\\')
            hzp_j_add(m, buf, escaped,
                      (size_t)snprintf(escaped, sizeof(escaped), "\\%c", (int)code));
        else if (code < 0x20 || (code >= 0x7F && !printable(code)))
            hzp_j_add(m, buf, escaped,
                      (size_t)snprintf(escaped, sizeof(escaped),
                                       code < 0x100     ? "\\x%02x"
                                       : code < 0x10000 ? "\\u%04x"
                                                        : "\\U%08x",
                                       code));
        else
            hzp_j_add(m, buf, s->text + at, (size_t)step);
    }
    hzp_j_add(m, buf, &quote, 1);
}

static int range_text(const struct jlist *list, char *ret, size_t size)
{
    long long from = list->from, to = list->to, step = list->step;
    return step == 1 ? snprintf(ret, size, "range(%lld, %lld)", from, to)
                     : snprintf(ret, size, "range(%lld, %lld, %lld)", from, to, step);
}

static void repr_list(struct jmem *m, struct jbuf *buf, const struct jlist *list)
{
    char text[96];
    if (list->kind == J_IS_ITERATOR) {
        hzp_j_add_text(m, buf, "<generator object>");
        return;
    }
    if (list->kind == J_IS_RANGE) {
        hzp_j_add(m, buf, text, (size_t)range_text(list, text, sizeof(text)));
        return;
    }
    const char *open = list->kind == J_IS_TUPLE ? "(" : list->kind == J_IS_VIEW ? list->view : "[";
    const char *close = list->kind == J_IS_TUPLE  ? list->n == 1 ? ",)" : ")"
                        : list->kind == J_IS_VIEW ? "])"
                                                  : "]";
    hzp_j_add_text(m, buf, open);
    for (size_t i = 0; i < list->n && !m->failed; i++) {
        if (i)
            hzp_j_add(m, buf, ", ", 2);
        hzp_j_print(m, buf, list->item[i], true);
    }
    hzp_j_add_text(m, buf, close);
}

static void repr_dict(struct jmem *m, struct jbuf *buf, struct jval v)
{
    hzp_j_add_text(m, buf, v.type == J_NAMESPACE ? "<Namespace {" : "{");
    for (size_t i = 0; i < v.o->n && !m->failed; i++) {
        if (i)
            hzp_j_add(m, buf, ", ", 2);
        hzp_j_print(m, buf, v.o->key[i], true);
        hzp_j_add(m, buf, ": ", 2);
        hzp_j_print(m, buf, v.o->value[i], true);
    }
    hzp_j_add_text(m, buf, v.type == J_NAMESPACE ? "}>" : "}");
}

static void number_out(struct jmem *m, struct jbuf *buf, struct jval v)
{
    char text[64];
    if (v.type == J_INT)
        snprintf(text, sizeof(text), "%lld", (long long)v.i);
    else if (!v.spelled)
        float_text(v.d, text, sizeof(text));
    hzp_j_add_text(m, buf, v.type == J_FLOAT && v.spelled ? v.n->text : text);
}

/* Goes on to what is inside a value. */
static bool enter(struct jmem *m)
{
    if (m->depth >= m->depth_max)
        hzp_j_fail(m, "a value is nested too deeply to print");
    else
        m->depth++;
    return !m->failed;
}

void hzp_j_print(struct jmem *m, struct jbuf *buf, struct jval v, bool repr)
{
    if (!hzp_j_step(m, 1))
        return;
    switch (v.type) {
    case J_UNSET:
    case J_UNDEFINED:
        hzp_j_add_text(m, buf, repr ? "Undefined" : "");
        return;
    case J_NONE:
        hzp_j_add_text(m, buf, "None");
        return;
    case J_BOOL:
        hzp_j_add_text(m, buf, v.b ? "True" : "False");
        return;
    case J_INT:
    case J_FLOAT:
        number_out(m, buf, v);
        return;
    case J_STRING:
        if (repr && v.markup)
            hzp_j_add_text(m, buf, "Markup(");
        if (repr)
            repr_string(m, buf, v.s);
        else
            hzp_j_add(m, buf, v.s->text, v.s->bytes);
        if (repr && v.markup)
            hzp_j_add_text(m, buf, ")");
        return;
    case J_LIST:
    case J_DICT:
    case J_NAMESPACE:
        if (!enter(m))
            return;
        if (v.type == J_LIST)
            repr_list(m, buf, v.l);
        else
            repr_dict(m, buf, v);
        m->depth--;
        return;
    default:
        hzp_j_fail(m, "a %s cannot be printed", hzp_j_type_name(v));
    }
}

struct jval hzp_j_str(struct jmem *m, struct jval v)
{
    struct jbuf buf = {0};
    if (v.type == J_STRING)
        return v;
    hzp_j_print(m, &buf, v, false);
    return hzp_j_take(m, &buf);
}

/* ---- json.dumps ---- */

static void json_string_out(struct jmem *m, struct jbuf *buf, bool ascii, const struct jstr *s)
{
    char text[16];
    hzp_j_add(m, buf, "\"", 1);
    size_t from = 0, at = 0;
    int step;
    for (; at < s->bytes && !m->failed; at += (size_t)step) {
        uint32_t code = hzp_utf8_get(s->text + at, &step);
        if (code >= 0x20 && code != '"' && code != '\\' && (code < 0x7F || !ascii))
            continue;
        if (code == 0x7F && !ascii)
            continue;
        hzp_j_add(m, buf, s->text + from, at - from);
        from = at + (size_t)step;
        const char *names = "\"\\\n\r\t\f\b", *letters = "\"\\nrtfb";
        const char *found = code < 0x80 && code ? strchr(names, (int)code) : NULL;
        int n;
        if (found)
            n = snprintf(text, sizeof(text), "\\%c", letters[found - names]);
        else if (code >= 0x10000)
            n = snprintf(text, sizeof(text), "\\u%04x\\u%04x", 0xD800 + ((code - 0x10000) >> 10),
                         0xDC00 + ((code - 0x10000) & 0x3FF));
        else
            n = snprintf(text, sizeof(text), "\\u%04x", code);
        hzp_j_add(m, buf, text, (size_t)n);
    }
    hzp_j_add(m, buf, s->text + from, s->bytes - from);
    hzp_j_add(m, buf, "\"", 1);
}

/* None, a bool or a number. */
static void json_number_out(struct jmem *m, struct jbuf *buf, struct jval v)
{
    if (v.type == J_NONE || v.type == J_BOOL)
        hzp_j_add_text(m, buf, v.type == J_NONE ? "null" : v.b ? "true" : "false");
    else if (v.type == J_FLOAT && !v.spelled && !isfinite(v.d))
        hzp_j_add_text(m, buf, isnan(v.d) ? "NaN" : v.d < 0 ? "-Infinity" : "Infinity");
    else
        number_out(m, buf, v);
}

static void dumps(struct jmem *m, struct jbuf *buf, const struct jjson *how, struct jval v,
                  int level);

static void json_break(struct jmem *m, struct jbuf *buf, const struct jjson *how, int level)
{
    if (!how->indent)
        return;
    hzp_j_add(m, buf, "\n", 1);
    for (int i = 0; i < level; i++)
        hzp_j_add(m, buf, how->indent, how->indent_bytes);
}

static void json_key(struct jmem *m, struct jbuf *buf, const struct jjson *how, struct jval key)
{
    if (key.type == J_STRING) {
        json_string_out(m, buf, how->ascii, key.s);
    } else if (key.type == J_NONE || hzp_j_is_number(key)) {
        hzp_j_add(m, buf, "\"", 1);
        json_number_out(m, buf, key);
        hzp_j_add(m, buf, "\"", 1);
    } else {
        hzp_j_fail(m, "keys must be str, int, float, bool or None, not %s", hzp_j_type_name(key));
    }
}

static void sort_keys(struct jmem *m, const struct jdict *dict, uint32_t *order)
{
    for (uint32_t i = 0; i < dict->n; i++) {
        uint32_t at = i;
        while (at && hzp_j_compare(m, dict->key[i], dict->key[order[at - 1]], "<") < 0 &&
               hzp_j_step(m, 1)) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
}

/* The items of a list (dict NULL), or the members of a dict. */
static void json_items(struct jmem *m, struct jbuf *buf, const struct jjson *how,
                       const struct jlist *list, const struct jdict *dict, int level)
{
    size_t n = dict ? dict->n : list->n;
    uint32_t *order = NULL;
    if (dict && how->sort && n) {
        order = hzp_j_alloc(m, n * sizeof(*order));
        if (!order)
            return;
        sort_keys(m, dict, order);
    }
    hzp_j_add(m, buf, dict ? "{" : "[", 1);
    for (size_t i = 0; i < n && !m->failed; i++) {
        size_t at = order ? order[i] : i;
        if (i)
            hzp_j_add(m, buf, how->item, how->item_bytes);
        json_break(m, buf, how, level + 1);
        if (dict) {
            json_key(m, buf, how, dict->key[at]);
            hzp_j_add(m, buf, how->colon, how->colon_bytes);
        }
        dumps(m, buf, how, dict ? dict->value[at] : list->item[at], level + 1);
    }
    if (n)
        json_break(m, buf, how, level);
    hzp_j_add(m, buf, dict ? "}" : "]", 1);
}

static void dumps(struct jmem *m, struct jbuf *buf, const struct jjson *how, struct jval v,
                  int level)
{
    if (!hzp_j_step(m, 1))
        return;
    if (v.type == J_STRING) {
        json_string_out(m, buf, how->ascii, v.s);
        return;
    }
    if (v.type == J_NONE || hzp_j_is_number(v)) {
        json_number_out(m, buf, v);
        return;
    }
    bool list = v.type == J_LIST && v.l->kind <= J_IS_TUPLE;
    if (!list && v.type != J_DICT) {
        hzp_j_fail(m, "Object of type %s is not JSON serializable", hzp_j_type_name(v));
        return;
    }
    if (!enter(m))
        return;
    json_items(m, buf, how, list ? v.l : NULL, list ? NULL : v.o, level);
    m->depth--;
}

void hzp_j_dumps(struct jmem *m, struct jbuf *buf, const struct jjson *how, struct jval v)
{
    dumps(m, buf, how, v, 0);
}
