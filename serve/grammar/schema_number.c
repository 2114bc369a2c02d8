/* SPDX-License-Identifier: Apache-2.0 */
/* serve/grammar/schema_number.c - numbers of a schema, with their ranges. */
#include "serve/grammar/schema_parts.h"

#include <math.h>

/* 10^18 - 1: the largest of HZP_JSON_DIGITS_MAX digits. */
#define LARGEST INT64_C(999999999999999999)

/* Both ends included; no_lo, no_hi: the end itself is not a value, but those next to it are. */
struct range {
    int64_t lo, hi;
    bool no_lo, no_hi;
};

/* Numbers of n digits, leading zeros among them, from lo to hi. */
static void add_digits(struct hzp_rules *rules, int32_t from, int64_t lo, int64_t hi, int n,
                       int32_t to)
{
    int64_t unit = 1;
    for (int i = 1; i < n; i++)
        unit *= 10;
    int64_t first = lo / unit, last = hi / unit;
    if (n == 1) {
        hzp_rules_bytes(rules, from, (uint8_t)('0' + lo), (uint8_t)('0' + hi), to);
        return;
    }
    if (first == last || lo % unit) {
        int32_t node = hzp_rules_node(rules);
        hzp_rules_bytes(rules, from, (uint8_t)('0' + first), (uint8_t)('0' + first), node);
        add_digits(rules, node, lo % unit, first == last ? hi % unit : unit - 1, n - 1, to);
        if (first++ == last)
            return;
    }
    if (hi % unit != unit - 1) {
        int32_t node = hzp_rules_node(rules);
        hzp_rules_bytes(rules, from, (uint8_t)('0' + last), (uint8_t)('0' + last), node);
        add_digits(rules, node, 0, hi % unit, n - 1, to);
        last--;
    }
    if (first <= last) {
        int32_t node = hzp_rules_node(rules);
        hzp_rules_bytes(rules, from, (uint8_t)('0' + first), (uint8_t)('0' + last), node);
        add_digits(rules, node, 0, unit - 1, n - 1, to);
    }
}

/* Whole numbers from lo to hi, 0 <= lo; nothing if hi < lo. */
static void add_whole(struct hzp_rules *rules, int32_t from, int64_t lo, int64_t hi, int32_t to)
{
    int64_t first = 0, last = 9;
    for (int n = 1; n <= HZP_JSON_DIGITS_MAX; n++) {
        int64_t least = HZP_MAX(lo, first), most = HZP_MIN(hi, last);
        if (least <= most)
            add_digits(rules, from, least, most, n, to);
        first = last + 1;
        last = n < HZP_JSON_DIGITS_MAX ? last * 10 + 9 : last;
    }
}

enum fraction { ANY, ZERO, NOT_ZERO };

/* A fraction, or nothing where the number may be without. */
static void add_fraction(struct hzp_rules *rules, int32_t from, enum fraction which, int32_t to)
{
    int32_t at = hzp_rules_text(rules, from, ".", 1), zeros = at;
    if (which != NOT_ZERO)
        hzp_rules_empty(rules, from, to);
    for (int i = 0; i < HZP_JSON_DIGITS_MAX; i++) {
        /* zeros: no other digit so far; at: anything may come */
        int32_t next_zeros = hzp_rules_node(rules), next = hzp_rules_node(rules);
        hzp_rules_bytes(rules, zeros, '0', '0', next_zeros);
        if (which != ZERO) {
            hzp_rules_bytes(rules, zeros, '1', '9', next);
            if (at != zeros)
                hzp_rules_bytes(rules, at, '0', '9', next);
            hzp_rules_empty(rules, next, to);
        }
        if (which != NOT_ZERO)
            hzp_rules_empty(rules, next_zeros, to);
        zeros = next_zeros;
        at = next;
    }
}

/* Numbers of the range that are not negative, 0 <= r.lo. */
static void add_positive(struct hzp_rules *rules, int32_t from, struct range r, bool integer,
                         int32_t to)
{
    if (r.hi < r.lo)
        return;
    if (integer) {
        add_whole(rules, from, r.lo + r.no_lo, r.hi - r.no_hi, to);
        return;
    }
    int32_t inner = hzp_rules_node(rules), low = hzp_rules_node(rules),
            high = hzp_rules_node(rules);
    if (r.lo == r.hi) {
        add_whole(rules, from, r.lo, r.lo, low);
        if (!r.no_lo && !r.no_hi)
            add_fraction(rules, low, ZERO, to);
        return;
    }
    add_whole(rules, from, r.lo, r.lo, low);
    add_whole(rules, from, r.lo + 1, r.hi - 1, inner);
    add_whole(rules, from, r.hi, r.hi, high);
    add_fraction(rules, low, r.no_lo ? NOT_ZERO : ANY, to);
    add_fraction(rules, inner, ANY, to);
    if (!r.no_hi)
        add_fraction(rules, high, ZERO, to);
}

/* One bound of the two keywords; *ret and *ret_open stay where the keyword is absent or says less.
 */
static int read_bound(const struct hzp_schema *s, const struct hzp_schema_item *at,
                      const char *keyword, bool lower, bool open, bool integer, int64_t *ret,
                      bool *ret_open)
{
    const json_t *value = json_object_get(at->schema, keyword);
    if (!value)
        return HZP_OK;
    if (!json_is_number(value))
        return hzp_schema_refuse(s, at, keyword, "must be a number");
    double bound = json_number_value(value);
    if (bound != floor(bound)) {
        if (!integer)
            return hzp_schema_refuse(s, at, keyword, "is supported with whole numbers only");
        bound = lower ? ceil(bound) : floor(bound);
        open = false;
    }
    int64_t whole = bound > 1e18             ? LARGEST + 1
                    : bound < -1e18          ? -LARGEST - 1
                    : json_is_integer(value) ? json_integer_value(value)
                                             : (int64_t)bound;
    whole = HZP_MAX(HZP_MIN(whole, LARGEST + 1), -LARGEST - 1);
    if (lower ? whole > *ret || (whole == *ret && open) : whole < *ret || (whole == *ret && open)) {
        *ret = whole;
        *ret_open = open;
    }
    return HZP_OK;
}

int hzp_schema_number(struct hzp_schema *s, const struct hzp_schema_item *at, bool integer,
                      int32_t from, int32_t *ret)
{
    struct range r = {.lo = -LARGEST - 1, .hi = LARGEST + 1, .no_lo = true, .no_hi = true};
    struct hzp_rules *rules = s->rules;
    HZP_TRY(read_bound(s, at, "minimum", true, false, integer, &r.lo, &r.no_lo));
    HZP_TRY(read_bound(s, at, "exclusiveMinimum", true, true, integer, &r.lo, &r.no_lo));
    HZP_TRY(read_bound(s, at, "maximum", false, false, integer, &r.hi, &r.no_hi));
    HZP_TRY(read_bound(s, at, "exclusiveMaximum", false, true, integer, &r.hi, &r.no_hi));
    if (!integer && r.lo < -LARGEST && r.hi > LARGEST) {
        *ret = hzp_rules_then(rules, from, hzp_json_number(s));
        return HZP_OK;
    }
    *ret = hzp_rules_node(rules);
    struct range up = r, down = {.lo = -r.hi, .hi = -r.lo, .no_lo = r.no_hi, .no_hi = r.no_lo};
    if (up.lo < 0) {
        up.lo = 0;
        up.no_lo = false;
    }
    if (down.lo <= 0) { /* no "-0" */
        down.no_lo = true;
        down.lo = 0;
    }
    if (up.hi >= 0)
        add_positive(rules, from, up, integer, *ret);
    if (down.hi > 0)
        add_positive(rules, hzp_rules_text(rules, from, "-", 1), down, integer, *ret);
    return HZP_OK;
}
