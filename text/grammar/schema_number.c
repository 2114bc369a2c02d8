/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema_number.c - numbers of a schema, with their bounds: an automaton for each
 * bound, over the digits as they are written, and what these have in common. */
#include "text/grammar/regular.h"
#include "text/grammar/schema_parts.h"

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

const struct hzp_schema_bound hzp_schema_bound[HZP_SCHEMA_BOUNDS] = {
    {"minimum", true, false},
    {"exclusiveMinimum", true, true},
    {"maximum", false, false},
    {"exclusiveMaximum", false, true}};

/* ---- bounds as decimals ---- */

/* Beyond 18 digits before the point: 10^18. */
static void decimal_of(const json_t *value, struct decimal *ret)
{
    HZP_ENDED(hzp_numeral_fini) struct hzp_numeral number;
    memset(ret, 0, sizeof(*ret));
    hzp_numeral_read(value, &number);
    ret->negative = number.negative;
    int w = 0, f = 0;
    if (number.n && number.point > HZP_JSON_DIGITS_MAX) {
        ret->whole[0] = '1';
        memset(ret->whole + 1, '0', HZP_JSON_DIGITS_MAX);
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
}

/* ---- automata of digits ---- */

static void add_digits(struct hzp_rules *rules, int32_t from, int lo, int hi, int32_t to)
{
    if (lo <= hi)
        hzp_rules_bytes(rules, from, (uint8_t)lo, (uint8_t)hi, to);
}

/* What a regular expression takes that is written in between. */
struct regex {
    FILE *out;
    char *text;
    size_t bytes;
};

static void begin(struct regex *r)
{
    r->out = open_memstream(&r->text, &r->bytes);
    HZP_ASSERT(r->out);
}

static struct hzp_regular *end(struct regex *r)
{
    struct hzp_regular *made;
    fclose(r->out);
    hzp_regex_regular(r->text, r->bytes, HZP_SPELL_PLAIN, false, &made, NULL);
    free(r->text);
    return made;
}

/* Sizes of at most so many digits on each side of the point, or `total` in all (0: no bound). */
static struct hzp_regular *all_sizes(bool integer, int total)
{
    struct regex r;
    int most = total ? total : HZP_JSON_DIGITS_MAX;
    begin(&r);
    for (int n = 1; n <= most; n++) {
        int behind = integer ? 0 : total ? total - n : most;
        fprintf(r.out, n == 1 ? "(?:0|[1-9])" : "|[1-9]\\d{%d}", n - 1);
        if (behind)
            fprintf(r.out, "(?:\\.\\d{1,%d})?", behind);
    }
    return end(&r);
}

#define NOTHING  "[^\\x00-\\u{10FFFF}]"
#define FRACTION "(?:\\.\\d*)?" /* any, or none */

/* `before`, the first n digits, one that is above the next or, from `least` on, below it; `rest`.
 */
static void add_beside(const struct regex *r, const char *before, const char *digits, int n,
                       int least, bool above, const char *rest)
{
    int lo = above ? digits[n] + 1 : least, hi = above ? '9' : digits[n] - 1;
    if (lo <= hi)
        fprintf(r->out, "|%s%.*s[%c-%c]%s", before, n, digits, lo, hi, rest);
}

/* Sizes above, or below, the bound's; open: without it.  Digits without number are taken. */
static struct hzp_regular *sizes_beside(const struct decimal *c, bool above, bool open)
{
    struct regex r;
    char rest[48], point[DECIMAL + 4];
    int n = (int)strlen(c->whole), m = (int)strlen(c->fraction);
    begin(&r);
    fputs(NOTHING, r.out);
    for (int i = 0; i < n; i++) {
        snprintf(rest, sizeof(rest), "\\d{%d}" FRACTION, n - i - 1);
        add_beside(&r, "", c->whole, i, i || n == 1 ? '0' : '1', above, rest);
    }
    snprintf(point, sizeof(point), "%s\\.", c->whole);
    for (int i = 0; i < m; i++) {
        add_beside(&r, point, c->fraction, i, '0', above, "\\d*");
        if (!above && i) /* what the bound begins with is below it */
            fprintf(r.out, "|%s%.*s", point, i, c->fraction);
    }
    if (above && !m && !open)
        fprintf(r.out, "|%s" FRACTION, c->whole);
    else if (above)
        fprintf(r.out, "|%s%s%s", point, c->fraction, open ? "0*[1-9]\\d*" : "\\d*");
    else if (!open)
        fprintf(r.out, "|%s%s0*", point, c->fraction);
    if (!above && (m || !open))
        fprintf(r.out, "|%s", c->whole);
    if (above)
        fprintf(r.out, "|[1-9]\\d{%d,}" FRACTION, n);
    for (int few = 1; !above && few < n; few++)
        fprintf(r.out, "|%s\\d{%d}" FRACTION, few > 1 ? "[1-9]" : "", HZP_MAX(few - 1, 1));
    return end(&r);
}

/* Sizes with a fraction other than zeros. */
static struct hzp_regular *broken_sizes(void)
{
    struct regex r;
    begin(&r);
    fputs("\\d*\\.0*[1-9]\\d*", r.out);
    return end(&r);
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
    return hzp_regular_limit(&n->side[side], with, without) ? HZP_OK : too_large(n);
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
    for (int i = 0; i < HZP_SCHEMA_BOUNDS; i++) {
        const struct hzp_schema_bound *kind = &hzp_schema_bound[i];
        const json_t *value = json_object_get(schema, kind->keyword);
        struct bound b = {.lower = kind->lower, .open = kind->open};
        if (!value)
            continue;
        if (!hzp_json_is_number(value))
            return hzp_schema_refuse(n->s, n->at, kind->keyword, "must be a number");
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
    for (int32_t i = 0; i < n->at->schemas; i++) {
        const json_t *schema = n->at->schema[i];
        for (int k = 0; k < HZP_SCHEMA_BOUNDS; k++)
            if (json_object_get(schema, hzp_schema_bound[k].keyword)) {
                n->limited = true;
                *ret_open |= hzp_schema_bound[k].open;
            }
        if (json_object_get(schema, "multipleOf") || hzp_schema_is_leaf(schema))
            n->limited = *ret_open = true;
    }
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
