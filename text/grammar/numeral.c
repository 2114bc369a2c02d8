/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/numeral.c - numbers as decimal digits, and the ways in which JSON writes one. */
#include "text/grammar/schema_parts.h"

enum {
    EXPONENT_MAX = 1 << 30,
    PLAIN_DIGITS_MAX =
        40, /* beyond so many digits a number is written with an exponent, or as it came */
};

/* The number as JSON text; owned by the caller. */
static char *text_of(const json_t *value)
{
    const char *spelled = hzp_json_spelling(value);
    char text[48];
    if (spelled)
        return hzp_xstrdup(spelled);
    if (json_is_integer(value))
        snprintf(text, sizeof(text), "%lld", (long long)json_integer_value(value));
    for (int precision = 1; json_is_real(value) && precision <= 17; precision++) {
        snprintf(text, sizeof(text), "%.*e", precision - 1, json_real_value(value));
        if (strtod(text, NULL) == json_real_value(value))
            break;
    }
    return hzp_xstrdup(text);
}

void hzp_numeral_read(const json_t *value, struct hzp_numeral *ret)
{
    char *text = text_of(value), *from = text + (*text == '-'), *at = from, *to = from;
    int64_t point = -1, exponent = 0;
    for (; *at && *at != 'e' && *at != 'E'; at++) {
        if (*at == '.')
            point = to - from;
        else
            *to++ = *at;
    }
    point = point < 0 ? to - from : point;
    if (*at)
        exponent = strtoll(at + 1, NULL, 10);
    exponent = HZP_MAX(-EXPONENT_MAX, HZP_MIN(exponent, EXPONENT_MAX));
    while (from < to && *from == '0') {
        from++;
        point--;
    }
    while (to > from && to[-1] == '0')
        to--;
    ret->negative = *text == '-' && to > from;
    ret->n = (int32_t)(to - from);
    ret->point = ret->n ? point + exponent : 0;
    memmove(text, from, (size_t)ret->n);
    text[ret->n] = '\0';
    ret->digits = text;
}

void hzp_numeral_fini(struct hzp_numeral *numeral)
{
    free(numeral->digits);
}

bool hzp_numeral_same(const json_t *a, const json_t *b)
{
    HZP_ENDED(hzp_numeral_fini) struct hzp_numeral x = {0}, y = {0};
    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    if (json_is_real(a) && json_is_real(b))
        return json_real_value(a) == json_real_value(b);
    hzp_numeral_read(a, &x);
    hzp_numeral_read(b, &y);
    return x.negative == y.negative && x.point == y.point && !strcmp(x.digits, y.digits);
}

int hzp_numeral_compare(const json_t *a, const json_t *b)
{
    HZP_ENDED(hzp_numeral_fini) struct hzp_numeral x, y;
    hzp_numeral_read(a, &x);
    hzp_numeral_read(b, &y);
    int sign_x = !x.n ? 0 : x.negative ? -1 : 1, sign_y = !y.n ? 0 : y.negative ? -1 : 1;
    int size = (x.point > y.point) - (x.point < y.point);
    if (!size)
        size = strcmp(x.digits, y.digits); /* behind the same point digits compare as text */
    return sign_x != sign_y ? sign_x - sign_y : sign_x * size;
}

/* ---- the ways to write it ---- */

struct numeral {
    struct hzp_schema *s;
    const struct hzp_numeral *of;
    int32_t from, to;
};

static int32_t add_text(struct hzp_schema *s, int32_t from, const char *text, size_t bytes)
{
    return hzp_rules_text(s->rules, from, text, bytes);
}

static int32_t add_zeros(struct hzp_schema *s, int32_t from, int64_t n)
{
    for (; n > 0; n--)
        from = add_text(s, from, "0", 1);
    return from;
}

/* e or E, and an exponent, which is `e`: with + or without; 0 also as -0. */
static void add_exponent(struct numeral *w, int32_t from, int64_t e)
{
    char digits[24];
    int32_t mark = hzp_rules_node(w->s->rules), sign = hzp_rules_node(w->s->rules);
    hzp_rules_bytes(w->s->rules, from, 'e', 'e', mark);
    hzp_rules_bytes(w->s->rules, from, 'E', 'E', mark);
    if (e >= 0) {
        hzp_rules_empty(w->s->rules, mark, sign);
        hzp_rules_bytes(w->s->rules, mark, '+', '+', sign);
    }
    if (e <= 0)
        hzp_rules_bytes(w->s->rules, mark, '-', '-', sign);
    int32_t lead = hzp_rules_node(w->s->rules);
    hzp_rules_empty(w->s->rules, sign, lead);
    hzp_rules_bytes(w->s->rules, sign, '0', '0', lead);
    snprintf(digits, sizeof(digits), "%lld", (long long)(e < 0 ? -e : e));
    hzp_rules_empty(w->s->rules, add_text(w->s, lead, digits, strlen(digits)), w->to);
}

/* Zeros behind a fraction; bare: behind a whole part, so a point comes before them. */
static int32_t then_zeros(struct numeral *w, int32_t from, bool bare)
{
    int32_t rule = hzp_json_zeros(w->s, bare);
    int32_t to = hzp_rules_node(w->s->rules);
    hzp_rules_empty(w->s->rules, from, to);
    hzp_rules_call(w->s->rules, from, rule, to);
    return to;
}

/* The digits with the point behind `whole` of them, and the exponent that this takes. */
static void add_scaled(struct numeral *w, int32_t whole)
{
    const struct hzp_numeral *of = w->of;
    int32_t at = add_text(w->s, w->from, of->digits, (size_t)whole);
    bool bare = whole == of->n;
    if (!bare) {
        at = add_text(w->s, at, ".", 1);
        at = add_text(w->s, at, of->digits + whole, (size_t)(of->n - whole));
    }
    add_exponent(w, then_zeros(w, at, bare), of->point - whole);
}

/* Without an exponent, or with 0. */
static void add_plain(struct numeral *w)
{
    const struct hzp_numeral *of = w->of;
    int64_t whole = HZP_MAX(0, HZP_MIN(of->point, of->n));
    int32_t at = whole ? add_text(w->s, w->from, of->digits, (size_t)whole)
                       : add_text(w->s, w->from, "0", 1);
    at = add_zeros(w->s, at, of->point - of->n);
    bool bare = of->n == whole;
    if (!bare) {
        at = add_zeros(w->s, add_text(w->s, at, ".", 1), -of->point);
        at = add_text(w->s, at, of->digits + whole, (size_t)(of->n - whole));
    }
    at = then_zeros(w, at, bare);
    hzp_rules_empty(w->s->rules, at, w->to);
    add_exponent(w, at, 0);
}

int32_t hzp_json_numeral(struct hzp_schema *s, int32_t from, const json_t *value)
{
    HZP_ENDED(hzp_numeral_fini) struct hzp_numeral of;
    const char *spelled = hzp_json_spelling(value);
    hzp_numeral_read(value, &of);
    int32_t to = hzp_rules_node(s->rules);
    struct numeral w = {.s = s, .of = &of, .from = from, .to = to};
    if (spelled)
        hzp_rules_empty(s->rules, add_text(s, from, spelled, strlen(spelled)), to);
    if (of.negative || !of.n) {
        w.from = add_text(s, from, "-", 1);
        if (!of.n) /* -0 is 0 */
            hzp_rules_empty(s->rules, from, w.from);
    }
    if (of.point <= PLAIN_DIGITS_MAX && of.point >= -PLAIN_DIGITS_MAX)
        add_plain(&w);
    if (of.n)
        add_scaled(&w, 1);
    if (of.n > 1)
        add_scaled(&w, of.n);
    return to;
}
