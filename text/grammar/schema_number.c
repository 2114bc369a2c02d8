/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema_number.c - numbers of a schema, with their bounds: an automaton for each
 * bound, over the digits as they are written, and what these have in common. */
#include "text/grammar/schema_parts.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    EXACT_DIGITS = 15, /* two numbers of so many digits are never the same double */
    MULTIPLE_MAX = 4096,
    DECIMAL = 64,
};

/* The size of a number: whole.fraction, without zeros that say nothing ("0" is whole "0"). */
struct decimal {
    char whole[DECIMAL], fraction[DECIMAL];
    bool negative, cut; /* cut: it is larger by less than one of the last digit */
};

struct bound {
    struct decimal at;
    bool lower, open; /* open: the bound itself is not a value */
};

/* ---- bounds as decimals ---- */

/* Beyond 18 digits before the point: 10^18. */
static void decimal_of(const json_t *value, struct decimal *ret)
{
    struct hzp_numeral number;
    memset(ret, 0, sizeof(*ret));
    hzp_numeral_read(value, &number);
    ret->negative = number.negative;
    int w = 0, f = 0;
    if (number.n && number.point > HZP_JSON_DIGITS_MAX) {
        ret->whole[0] = '1';
        memset(ret->whole + 1, '0', HZP_JSON_DIGITS_MAX);
        hzp_numeral_fini(&number);
        return;
    }
    for (int64_t i = 0; i < number.point; i++)
        ret->whole[w++] = (char)(i < number.n ? number.digits[i] : '0');
    if (!w)
        ret->whole[w++] = '0';
    for (int64_t i = HZP_MAX(number.point, -HZP_JSON_DIGITS_MAX); i < number.n; i++) {
        if (f == HZP_JSON_DIGITS_MAX) {
            ret->cut = true; /* the last digit is not 0 */
            break;
        }
        ret->fraction[f++] = (char)(i < 0 ? '0' : number.digits[i]);
    }
    while (f && ret->fraction[f - 1] == '0')
        f--;
    ret->fraction[f] = '\0';
    hzp_numeral_fini(&number);
}

/* ---- automata of digits ---- */

static void add_digits(struct hzp_rules *rules, int32_t from, int lo, int hi, int32_t to)
{
    if (lo <= hi)
        hzp_rules_bytes(rules, from, (uint8_t)lo, (uint8_t)hi, to);
}

/* A node from which n more digits of any kind lead to `to`. */
static int32_t free_digits(struct hzp_rules *rules, size_t n, int32_t to)
{
    for (size_t i = 0; i < n; i++) {
        int32_t node = hzp_rules_node(rules);
        add_digits(rules, node, '0', '9', to);
        to = node;
    }
    return to;
}

/* Sizes of at most so many digits on each side of the point, or `total` in all (0: no bound). */
static struct hzp_regular *all_sizes(bool integer, int total)
{
    enum { N = HZP_JSON_DIGITS_MAX };
    struct hzp_rules *rules = hzp_rules_create();
    int32_t from = hzp_rules_node(rules), to = hzp_rules_node(rules);
    int most = total ? total : N, behind = total ? total : N;
    int32_t zero = hzp_rules_node(rules), whole = hzp_rules_node(rules);
    add_digits(rules, from, '0', '0', zero);
    add_digits(rules, from, '1', '9', whole);
    for (int n = 1; n <= most; n++) {
        for (int z = 0; z < (n == 1 ? 2 : 1); z++) {
            int32_t at = z ? zero : whole, digit;
            hzp_rules_empty(rules, at, to);
            digit = integer ? -1 : hzp_rules_text(rules, at, ".", 1);
            for (int f = 0; digit >= 0 && f < (total ? behind - n : behind); f++) {
                int32_t next = hzp_rules_node(rules);
                add_digits(rules, digit, '0', '9', next);
                hzp_rules_empty(rules, next, to);
                digit = next;
            }
        }
        int32_t next = hzp_rules_node(rules);
        add_digits(rules, whole, '0', '9', next);
        whole = next;
    }
    struct hzp_regular *made = hzp_regular_create(rules, from, to);
    hzp_rules_destroy(rules);
    return made;
}

/* What is added to the rules of one bound on sizes. */
struct sizes {
    struct hzp_rules *rules;
    int32_t to;
    int32_t fraction; /* behind the whole part: any fraction, or none */
    int32_t any;      /* within a fraction: anything more */
    bool above, open;
};

/* Zeros, if any, and (rest) then another digit and anything. */
static void add_zeros(struct sizes *s, int32_t from, bool rest)
{
    int32_t zeros = hzp_rules_node(s->rules);
    hzp_rules_empty(s->rules, from, zeros);
    add_digits(s->rules, zeros, '0', '0', zeros);
    if (rest)
        add_digits(s->rules, zeros, '1', '9', s->any);
    else
        hzp_rules_empty(s->rules, zeros, s->to);
}

/* The whole part is the bound's. */
static void add_fraction(struct sizes *s, int32_t from, const char *fraction)
{
    int32_t at = hzp_rules_text(s->rules, from, ".", 1);
    size_t n = strlen(fraction);
    if (n ? !s->above : !s->open)
        hzp_rules_empty(s->rules, from, s->to);
    if (!n && s->above && !s->open) {
        hzp_rules_empty(s->rules, from, s->fraction);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        int32_t next = hzp_rules_node(s->rules);
        if (s->above)
            add_digits(s->rules, at, fraction[i] + 1, '9', s->any);
        else
            add_digits(s->rules, at, '0', fraction[i] - 1, s->any);
        add_digits(s->rules, at, fraction[i], fraction[i], next);
        if (!s->above && i + 1 < n)
            hzp_rules_empty(s->rules, next, s->to);
        at = next;
    }
    if (s->above && !s->open)
        hzp_rules_empty(s->rules, at, s->any);
    else if (s->above)
        add_zeros(s, at, true);
    else if (!s->open)
        add_zeros(s, at, false);
}

/* Sizes above, or below, the bound's; open: without it.  Digits without number are taken. */
static struct hzp_regular *sizes_beside(const struct decimal *c, bool above, bool open)
{
    struct sizes s = {.rules = hzp_rules_create(), .above = above, .open = open};
    struct hzp_rules *rules = s.rules;
    int32_t from = hzp_rules_node(rules), at = from;
    size_t n = strlen(c->whole);
    s.to = hzp_rules_node(rules);
    s.fraction = hzp_rules_node(rules);
    s.any = hzp_rules_node(rules);
    hzp_rules_empty(rules, s.fraction, s.to);
    hzp_rules_empty(rules, hzp_rules_text(rules, s.fraction, ".", 1), s.any);
    add_digits(rules, s.any, '0', '9', s.any);
    hzp_rules_empty(rules, s.any, s.to);
    for (size_t i = 0; i < n; i++) {
        int32_t next = hzp_rules_node(rules);
        if (above)
            add_digits(rules, at, c->whole[i] + 1, '9', free_digits(rules, n - i - 1, s.fraction));
        else
            add_digits(rules, at, i || n == 1 ? '0' : '1', c->whole[i] - 1,
                       free_digits(rules, n - i - 1, s.fraction));
        add_digits(rules, at, c->whole[i], c->whole[i], next);
        at = next;
    }
    add_fraction(&s, at, c->fraction);
    if (above) { /* more digits */
        int32_t more = free_digits(rules, n, s.fraction);
        add_digits(rules, from, '1', '9', more);
        add_digits(rules, more, '0', '9', more);
    }
    for (size_t few = 1; !above && few < n; few++) {
        int32_t rest = free_digits(rules, few - 1, s.fraction);
        add_digits(rules, from, few == 1 ? '0' : '1', '9', rest);
    }
    struct hzp_regular *made = hzp_regular_create(rules, from, s.to);
    hzp_rules_destroy(rules);
    return made;
}

/* Sizes with a fraction other than zeros. */
static struct hzp_regular *broken_sizes(void)
{
    struct hzp_rules *rules = hzp_rules_create();
    int32_t whole = hzp_rules_node(rules), behind = hzp_rules_node(rules);
    add_digits(rules, whole, '0', '9', whole);
    int32_t zeros = hzp_rules_text(rules, whole, ".", 1);
    add_digits(rules, zeros, '0', '0', zeros);
    add_digits(rules, zeros, '1', '9', behind);
    add_digits(rules, behind, '0', '9', behind);
    struct hzp_regular *made = hzp_regular_create(rules, whole, behind);
    hzp_rules_destroy(rules);
    return made;
}

/* Digits that are a multiple of m 10^-places: a node for each remainder by m so far, before the
 * point, behind it, and behind each place; then there are zeros.  Also what is no number. */
static struct hzp_regular *multiples(int m, int places)
{
    struct hzp_rules *rules = hzp_rules_create();
    int32_t from = rules->nodes;
    for (int i = 0; i < m * (places + 2); i++)
        hzp_rules_node(rules);
    int32_t to = hzp_rules_node(rules);
    for (int r = 0; r < m; r++) {
        int32_t left = r, at = from + (places + 1) * m + r;
        hzp_rules_bytes(rules, from + r, '.', '.', from + m + r);
        add_digits(rules, at, '0', '0', at);
        for (int row = 0; row <= places; row++)
            for (int d = 0; d <= 9; d++)
                add_digits(rules, from + row * m + r, '0' + d, '0' + d,
                           from + (row ? row + 1 : 0) * m + (10 * r + d) % m);
        for (int row = places + 1; row >= 0; row--) {
            if (left % m == 0)
                hzp_rules_empty(rules, from + row * m + r, to);
            left = row > 1 ? left * 10 % m : left; /* a place that has no digit */
        }
    }
    struct hzp_regular *made = hzp_regular_create(rules, from, to);
    hzp_rules_destroy(rules);
    return made;
}

/* ---- the item ---- */

struct number {
    struct hzp_schema *s;
    const struct hzp_schema_item *at;
    bool integer, limited;
    bool broken;                 /* not whole */
    struct hzp_regular *side[2]; /* sizes of those that are not negative, and of those that are */
};

static int too_large(const struct number *n)
{
    return hzp_schema_refuse(n->s, n->at, "number", "has conditions that are too large together");
}

/* Leaves of one side what `with` takes too, or (without) does not take; takes `with` over. */
static int keep_by(struct number *n, int side, struct hzp_regular *with, bool without)
{
    struct hzp_regular *left = !with     ? NULL
                               : without ? hzp_regular_without(n->side[side], with)
                                         : hzp_regular_both(n->side[side], with);
    hzp_regular_destroy(with);
    hzp_regular_destroy(n->side[side]);
    n->side[side] = left;
    return left ? HZP_OK : too_large(n);
}

static int keep(struct number *n, int side, struct hzp_regular *with)
{
    return keep_by(n, side, with, false);
}

static int keep_none(struct number *n, int side)
{
    struct hzp_regular *none = hzp_regular_without(n->side[side], n->side[side]);
    hzp_regular_destroy(n->side[side]);
    n->side[side] = none;
    return none ? HZP_OK : too_large(n);
}

/* On the side of the bound's own sign sizes are compared; the other side is all or nothing. */
static int add_bound(struct number *n, const struct bound *b)
{
    int own = b->at.negative;
    bool above = b->lower != b->at.negative;
    /* a size that was cut lies between two that can be written */
    bool open = b->at.cut ? above : b->open;
    HZP_TRY(keep(n, own, sizes_beside(&b->at, above, open)));
    return b->lower != b->at.negative ? b->lower ? keep_none(n, 1) : keep_none(n, 0) : HZP_OK;
}

/* Multiples of a number, or (without) all others; NULL: any. */
static int add_multiple(struct number *n, const json_t *multiple, bool without)
{
    struct hzp_numeral of = {0};
    int64_t m = 0;
    if (hzp_json_is_number(multiple))
        hzp_numeral_read(multiple, &of);
    int64_t places = HZP_MAX(of.n - of.point, 0);
    for (int64_t i = 0; !of.negative && i < HZP_MAX(of.n, of.point) && m <= MULTIPLE_MAX; i++)
        m = 10 * m + (i < of.n ? of.digits[i] - '0' : 0);
    hzp_numeral_fini(&of);
    if (multiple && (m < 1 || m > MULTIPLE_MAX || places > EXACT_DIGITS))
        return hzp_schema_refuse(n->s, n->at, "multipleOf",
                                 "is supported with numbers whose digits are from 1 to 4096");
    for (int side = 0; multiple && side < 2; side++)
        HZP_TRY(keep_by(n, side, multiples((int)m, (int)places), without));
    return HZP_OK;
}

static int add_bounds(struct number *n, const json_t *schema)
{
    static const struct {
        const char *keyword;
        bool lower, open;
    } bounds[] = {{"minimum", true, false},
                  {"exclusiveMinimum", true, true},
                  {"maximum", false, false},
                  {"exclusiveMaximum", false, true}};
    for (int i = 0; i < HZP_COUNT(bounds); i++) {
        const json_t *value = json_object_get(schema, bounds[i].keyword);
        struct bound b = {.lower = bounds[i].lower, .open = bounds[i].open};
        if (!value)
            continue;
        if (!hzp_json_is_number(value))
            return hzp_schema_refuse(n->s, n->at, bounds[i].keyword, "must be a number");
        decimal_of(value, &b.at);
        HZP_TRY(add_bound(n, &b));
    }
    HZP_TRY(add_multiple(n, json_object_get(schema, "multipleOf"), false));
    if (!hzp_schema_is_leaf(schema))
        return HZP_OK;
    const json_t *excluded = json_object_get(schema, "not");
    HZP_TRY(add_multiple(n, json_object_get(excluded, "multipleOf"), true));
    for (int side = 0; json_object_get(excluded, "type") && side < 2; side++)
        HZP_TRY(keep(n, side, broken_sizes()));
    return HZP_OK;
}

/* Whether there are conditions, and such as a rounded number might miss. */
static void look(struct number *n, bool *ret_open)
{
    static const char *const keywords[] = {"minimum", "maximum", "exclusiveMinimum",
                                           "exclusiveMaximum", "multipleOf"};
    for (int32_t i = 0; i < n->at->schemas; i++)
        for (int k = 0; k < HZP_COUNT(keywords); k++)
            if (json_object_get(n->at->schema[i], keywords[k])) {
                n->limited = true;
                *ret_open |= k >= 2;
            }
    for (int32_t i = 0; i < n->at->schemas; i++)
        if (hzp_schema_is_leaf(n->at->schema[i]))
            n->limited = *ret_open = true;
}

static int make_sides(struct number *n, bool open)
{
    static const struct decimal zero = {.whole = "0"};
    for (int side = 0; side < 2; side++) {
        n->side[side] = all_sizes(n->integer, open && !n->integer ? EXACT_DIGITS : 0);
        if (!n->side[side])
            return too_large(n);
    }
    HZP_TRY(keep(n, 1, sizes_beside(&zero, true, true))); /* no "-0" */
    for (int32_t i = 0; i < n->at->schemas; i++)
        HZP_TRY(add_bounds(n, n->at->schema[i]));
    return HZP_OK;
}

int hzp_schema_number(struct hzp_schema *s, const struct hzp_schema_item *at, bool integer,
                      int32_t from, int32_t *ret)
{
    struct number n = {.s = s, .at = at, .integer = integer};
    bool open = false;
    look(&n, &open);
    if (!integer && !n.limited) {
        *ret = hzp_rules_then(s->rules, from, hzp_json_number(s));
        return HZP_OK;
    }
    int r = make_sides(&n, open);
    if (r == HZP_OK) {
        *ret = hzp_regular_add(s->rules, from, n.side[0]);
        int32_t minus = hzp_rules_text(s->rules, from, "-", 1);
        hzp_rules_empty(s->rules, hzp_regular_add(s->rules, minus, n.side[1]), *ret);
    }
    hzp_regular_destroy(n.side[0]);
    hzp_regular_destroy(n.side[1]);
    return r;
}
