/* SPDX-License-Identifier: Apache-2.0 */
#include "text/jinja/parser.h"

#include "base/utf8.h"

struct lexer {
    struct jmem *m;
    const char *text;
    size_t n, at;
    int line;
    bool line_starting; /* what came last ended with a newline */
    struct jtokens *out;
};

static struct jtoken *add(struct lexer *x, enum jtoken_kind kind, const char *text, size_t bytes)
{
    struct jtokens *out = x->out;
    hzp_j_grow(x->m, &out->token, out->n, &out->room, sizeof(*out->token));
    struct jtoken *token = &out->token[out->n++];
    *token = (struct jtoken){
        .kind = (uint8_t)kind, .line = x->line, .text = text, .bytes = (int32_t)bytes};
    return token;
}

static void fail(struct lexer *x, const char *what)
{
    x->m->line = x->line;
    x->m->code = HZP_EFORMAT;
    hzp_j_fail(x->m, "%s", what);
}

/* Python's str.isspace, one character; 0: no space, else its bytes. */
static int space_at(const char *text, size_t n)
{
    int step;
    if (!n)
        return 0;
    uint32_t code = hzp_utf8_get(text, &step);
    return hzp_utf8_is_space(code) || (code >= 0x1C && code <= 0x1F) ? step : 0;
}

static size_t skip_space(const struct lexer *x, size_t at)
{
    int step;
    while ((step = space_at(x->text + at, x->n - at)) > 0)
        at += (size_t)step;
    return at;
}

static size_t strip_end(const char *text, size_t n)
{
    while (n) {
        size_t at = hzp_utf8_before(text, n);
        if (!space_at(text + at, n - at))
            break;
        n = at;
    }
    return n;
}

static void count_lines(struct lexer *x, size_t to)
{
    for (; x->at < to; x->at++)
        x->line += x->text[x->at] == '\n';
}

static bool looking_at(const struct lexer *x, size_t at, const char *what)
{
    size_t n = strlen(what);
    return x->n - at >= n && !memcmp(x->text + at, what, n);
}

/* The end of a tag at `at`: its length with what it swallows, 0: no end there. */
static size_t tag_end(const struct lexer *x, size_t at, char last, bool trims)
{
    bool minus = x->text[at] == '-', plus = x->text[at] == '+' && trims;
    size_t to = at + (minus || plus);
    if (x->n - to < 2 || x->text[to] != last || x->text[to + 1] != '}')
        return 0;
    to += 2;
    if (minus)
        to = skip_space(x, to);
    else if (trims && !plus && to < x->n && x->text[to] == '\n')
        to++;
    return to - at;
}

/* Adds the text before a tag at `tag`, with what the tag's sign and lstrip_blocks take from it. */
static void add_text(struct lexer *x, size_t tag, char sign, bool variable)
{
    size_t n = tag - x->at;
    const char *text = x->text + x->at;
    if (sign == '-') {
        n = strip_end(text, n);
    } else if (sign != '+' && !variable) {
        size_t begin = n;
        while (begin && text[begin - 1] != '\n')
            begin--;
        if ((begin || x->line_starting) && strip_end(text + begin, n - begin) == 0)
            n = begin;
    }
    if (n)
        add(x, T_TEXT, text, n)->value = hzp_j_string(x->m, text, n);
    count_lines(x, tag);
}

/* ---- inside tags ---- */

static void put_code(struct lexer *x, struct jbuf *buf, uint32_t code)
{
    char text[4];
    if ((code >= 0xD800 && code < 0xE000) || code > 0x10FFFF) {
        fail(x, "an escape in a string is no character");
        return;
    }
    hzp_j_add(x->m, buf, text, (size_t)hzp_utf8_put(text, code));
}

static uint32_t read_digits(const char *p, const char *end, int most, int base, int *ret_n)
{
    uint32_t value = 0;
    int n = 0;
    for (; n < most && p + n < end; n++) {
        int c = tolower((unsigned char)p[n]);
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 99;
        if (digit >= base)
            break;
        value = value * (uint32_t)base + (uint32_t)digit;
    }
    *ret_n = n;
    return value;
}

/* One escape sequence at p, which points behind the backslash; returns how much of it was read. */
static int unescape(struct lexer *x, struct jbuf *buf, const char *p, const char *end)
{
    static const char letters[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
    int n, want = *p == 'x' ? 2 : *p == 'u' ? 4 : *p == 'U' ? 8 : 0;
    const char *found = *p ? strchr(letters, *p) : NULL;
    if (found) {
        hzp_j_add(x->m, buf, &values[found - letters], 1);
        return 1;
    }
    if (*p == '\n')
        return 1;
    if (*p >= '0' && *p <= '7') {
        put_code(x, buf, read_digits(p, end, 3, 8, &n));
        return n;
    }
    if (want) {
        uint32_t code = read_digits(p + 1, end, want, 16, &n);
        if (n != want)
            fail(x, "a truncated escape in a string");
        else
            put_code(x, buf, code);
        return 1 + n;
    }
    if (*p == 'N')
        fail(x, "\\N{...} in a string is not supported");
    hzp_j_add(x->m, buf, "\\", 1);
    return 0;
}

static void lex_string(struct lexer *x)
{
    char quote = x->text[x->at];
    const char *p = x->text + x->at + 1, *end = x->text + x->n;
    struct jbuf buf = {0};
    while (p < end && *p != quote && !x->m->failed) {
        const char *from = p;
        while (p < end && *p != quote && *p != '\\')
            p++;
        hzp_j_add(x->m, &buf, from, (size_t)(p - from));
        if (p + 1 < end && *p == '\\') {
            p++;
            p += unescape(x, &buf, p, end);
        } else if (p < end && *p == '\\') {
            p++;
        }
    }
    if (p >= end) {
        fail(x, "a string is not closed");
        return;
    }
    struct jtoken *token = add(x, T_STRING, x->text + x->at, (size_t)(p + 1 - x->text) - x->at);
    token->value = hzp_j_take(x->m, &buf);
    count_lines(x, (size_t)(p + 1 - x->text));
}

static size_t digits_to(const struct lexer *x, size_t at)
{
    while (at < x->n &&
           (isdigit((unsigned char)x->text[at]) ||
            (x->text[at] == '_' && at + 1 < x->n && isdigit((unsigned char)x->text[at + 1]))))
        at++;
    return at;
}

/* The end of the exponent at `at`, or `at`. */
static size_t exponent_to(const struct lexer *x, size_t at)
{
    if (at >= x->n || (x->text[at] | 32) != 'e')
        return at;
    size_t to = at + 1;
    if (to < x->n && (x->text[to] == '+' || x->text[to] == '-'))
        to++;
    return to < x->n && isdigit((unsigned char)x->text[to]) ? digits_to(x, to) : at;
}

static void lex_number(struct lexer *x)
{
    char text[64];
    size_t from = x->at, to = digits_to(x, from);
    bool real = false;
    int base = 10;
    if (x->text[from] == '0' && from + 1 < x->n && strchr("xXoObB", x->text[from + 1])) {
        base = (x->text[from + 1] | 32) == 'x' ? 16 : (x->text[from + 1] | 32) == 'o' ? 8 : 2;
        for (to = from + 2;
             to < x->n && (isxdigit((unsigned char)x->text[to]) || x->text[to] == '_');)
            to++;
    } else if (!(from && x->text[from - 1] == '.')) {
        if (to + 1 < x->n && x->text[to] == '.' && isdigit((unsigned char)x->text[to + 1])) {
            to = digits_to(x, to + 1);
            real = true;
        }
        size_t end = exponent_to(x, to);
        real |= end != to;
        to = end;
    }
    size_t n = 0;
    for (size_t i = from + (base == 10 ? 0 : 2); i < to && n < sizeof(text) - 1; i++)
        if (x->text[i] != '_')
            text[n++] = x->text[i];
    text[n] = 0;
    char *end;
    errno = 0;
    struct jval value =
        real ? hzp_j_float(strtod(text, NULL)) : hzp_j_int(strtoll(text, &end, base));
    if (!n || n == sizeof(text) - 1 || (!real && (errno || *end))) {
        fail(x, "a number is not a number or too large");
        return;
    }
    add(x, real ? T_FLOAT : T_INT, x->text + from, to - from)->value = value;
    x->at = to;
}

static bool name_begins(const char *p)
{
    return isalpha((unsigned char)*p) || *p == '_' || (uint8_t)*p >= 0x80;
}

/* One token of an expression. False: none can begin here. */
static void lex_one(struct lexer *x, char *nested, int *depth)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    const char *p = x->text + x->at;
    if (*p == '"' || *p == '\'') {
        lex_string(x);
        return;
    }
    if (isdigit((unsigned char)*p)) {
        lex_number(x);
        return;
    }
    size_t n = 0;
    if (name_begins(p)) {
        while (x->at + n < x->n && (name_begins(p + n) || isdigit((unsigned char)p[n])))
            n++;
        add(x, T_NAME, p, n);
        x->at += n;
        return;
    }
    for (int i = 0; i < HZP_COUNT(two) && !n; i++)
        n = looking_at(x, x->at, two[i]) ? 2 : 0;
    if (!n && *p && strchr("+-/*%~[](){}><=.:|,;", *p))
        n = 1;
    if (!n) {
        fail(x, "an unexpected character");
        return;
    }
    if (n == 1 && strchr("([{", *p)) {
        if (*depth == 200)
            fail(x, "brackets are nested too deeply");
        else
            nested[(*depth)++] = *p == '(' ? ')' : *p == '[' ? ']' : '}';
    } else if (n == 1 && strchr(")]}", *p) && (*depth == 0 || nested[--*depth] != *p)) {
        fail(x, "a closing bracket that fits no opening one");
    }
    add(x, T_OP, p, n);
    x->at += n;
}

/* From behind {% or {{ to behind its end. */
static void lex_tag(struct lexer *x, bool variable)
{
    char nested[200];
    int depth = 0;
    while (!x->m->failed) {
        count_lines(x, skip_space(x, x->at));
        if (x->at >= x->n) {
            fail(x, "the template ends inside a tag");
            return;
        }
        size_t end = depth ? 0 : tag_end(x, x->at, variable ? '}' : '%', !variable);
        if (end) {
            add(x, variable ? T_PRINT_END : T_CLOSE, variable ? "}}" : "%}", 2);
            count_lines(x, x->at + end);
            return;
        }
        lex_one(x, nested, &depth);
    }
}

/* {% raw %} at `at`: the offset behind it, 0: it is another tag. */
static size_t raw_begins(const struct lexer *x, size_t at, const char *word)
{
    size_t to = at + 2;
    if (to < x->n && (x->text[to] == '-' || x->text[to] == '+'))
        to++;
    to = skip_space(x, to);
    if (!looking_at(x, to, word))
        return 0;
    to = skip_space(x, to + strlen(word));
    if (to >= x->n)
        return 0;
    bool minus = x->text[to] == '-';
    if (!looking_at(x, to + minus, "%}"))
        return 0;
    to += 2 + (size_t)minus;
    return minus ? skip_space(x, to) : to;
}

static void lex_raw(struct lexer *x)
{
    for (size_t tag = x->at; tag + 2 <= x->n; tag++) {
        size_t to = looking_at(x, tag, "{%") ? raw_begins(x, tag, "endraw") : 0;
        if (!to)
            continue;
        char sign = x->text[tag + 2];
        add_text(x, tag, sign, false);
        if (x->text[to - 1] == '}' && to < x->n && x->text[to] == '\n')
            to++;
        count_lines(x, to);
        return;
    }
    fail(x, "{% raw %} is not closed");
}

static void lex_comment(struct lexer *x)
{
    size_t from = x->at + 2;
    if (from < x->n && (x->text[from] == '-' || x->text[from] == '+'))
        from++;
    for (size_t at = from; at + 2 <= x->n; at++) {
        size_t end = tag_end(x, at, '#', true);
        if (end) {
            count_lines(x, at + end);
            return;
        }
    }
    fail(x, "a comment is not closed");
}

static void lex_source(struct lexer *x)
{
    while (x->at < x->n && !x->m->failed) {
        size_t tag = x->at;
        while (tag < x->n && !(x->text[tag] == '{' && tag + 1 < x->n &&
                               strchr("%{#", x->text[tag + 1]) && x->text[tag + 1]))
            tag++;
        if (tag == x->n) {
            add_text(x, tag, '+', true);
            break;
        }
        char kind = x->text[tag + 1], sign = tag + 2 < x->n ? x->text[tag + 2] : 0;
        size_t raw = kind == '%' ? raw_begins(x, tag, "raw") : 0;
        add_text(x, tag, sign, kind == '{');
        if (kind == '#') {
            lex_comment(x);
        } else if (raw) {
            count_lines(x, raw);
            x->line_starting = raw && x->text[raw - 1] == '\n';
            lex_raw(x);
        } else {
            add(x, kind == '%' ? T_OPEN : T_PRINT, x->text + tag, 2);
            x->at += 2;
            if (sign == '-' || sign == '+')
                x->at++;
            lex_tag(x, kind == '{');
        }
        x->line_starting = x->at && x->text[x->at - 1] == '\n';
    }
    add(x, T_END, "the end of the template", 23);
}

void hzp_j_lex(struct jmem *m, const char *source, size_t bytes, struct jtokens *ret)
{
    char *text = hzp_j_alloc(m, bytes + 4); /* zeros behind it end every look ahead */
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (source[i] == '\r' && i + 1 < bytes && source[i + 1] == '\n')
            continue;
        text[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n && text[n - 1] == '\n')
        text[--n] = 0;
    struct lexer x = {.m = m, .text = text, .n = n, .line = 1, .line_starting = true, .out = ret};
    lex_source(&x);
}
