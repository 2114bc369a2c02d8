/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/json.c - rules of any JSON, and of literal values. */
#include "base/json.h"
#include "text/grammar/schema_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t new_rule(struct hzp_schema *s, const char *name)
{
    return hzp_rules_add(s->rules, name, strlen(name));
}

static int32_t first_of(const struct hzp_schema *s, int32_t rule)
{
    return s->rules->rule[rule].first;
}

static void end_rule(struct hzp_schema *s, int32_t from, int32_t rule)
{
    hzp_rules_empty(s->rules, from, s->rules->rule[rule].last);
}

static int32_t add_char(struct hzp_schema *s, int32_t from, char c)
{
    return hzp_rules_text(s->rules, from, &c, 1);
}

void hzp_json_begin(struct hzp_schema *s)
{
    s->blank = s->string = s->number = s->value = s->object = s->array = -1;
    s->zeros = s->point_zeros = -1;
}

/* One blank, or a line break and blanks. */
static int32_t blank_rule(struct hzp_schema *s)
{
    static const char indent[] = {' ', '\t'};
    if (s->blank >= 0)
        return s->blank;
    s->blank = new_rule(s, "blanks");
    end_rule(s, add_char(s, first_of(s, s->blank), ' '), s->blank);
    int32_t line = add_char(s, first_of(s, s->blank), '\n');
    end_rule(s, line, s->blank);
    for (int k = 0; k < HZP_COUNT(indent); k++) {
        int32_t at = line;
        for (int i = 0; i < HZP_JSON_INDENT_MAX; i++) {
            at = add_char(s, at, indent[k]);
            end_rule(s, at, s->blank);
        }
    }
    return s->blank;
}

int32_t hzp_json_blanks(struct hzp_schema *s, int32_t from)
{
    int32_t to = hzp_rules_then(s->rules, from, blank_rule(s));
    hzp_rules_empty(s->rules, from, to);
    return to;
}

static void add_hex(struct hzp_schema *s, int32_t from, const char *digits, int32_t to)
{
    for (; *digits; digits++)
        hzp_rules_bytes(s->rules, from, (uint8_t)*digits, (uint8_t)*digits, to);
}

static int32_t then_hex(struct hzp_schema *s, int32_t from, const char *digits)
{
    int32_t to = hzp_rules_node(s->rules);
    add_hex(s, from, digits, to);
    return to;
}

/* \uXXXX behind the u: a code point, or a pair of surrogates. */
static void add_unicode(struct hzp_schema *s, int32_t from, int32_t to)
{
    static const char all[] = "0123456789abcdefABCDEF";
    int32_t low3 = then_hex(s, from, "0123456789abcefABCEF"), d = then_hex(s, from, "dD");
    int32_t low2 = then_hex(s, low3, all), high2;
    add_hex(s, d, "01234567", low2);
    add_hex(s, then_hex(s, low2, all), all, to);
    high2 = then_hex(s, d, "89abAB");
    int32_t at = then_hex(s, then_hex(s, high2, all), all);
    at = hzp_rules_text(s->rules, at, "\\u", 2);
    at = then_hex(s, then_hex(s, at, "dD"), "cdefCDEF");
    add_hex(s, then_hex(s, at, all), all, to);
}

int32_t hzp_json_string(struct hzp_schema *s)
{
    if (s->string >= 0)
        return s->string;
    s->string = new_rule(s, "string");
    int32_t in = add_char(s, first_of(s, s->string), '"');
    hzp_rules_codes(s->rules, in, 0x20, 0x21, in);
    hzp_rules_codes(s->rules, in, 0x23, 0x5B, in);
    hzp_rules_codes(s->rules, in, 0x5D, HZP_CODE_LAST, in);
    int32_t escape = add_char(s, in, '\\');
    add_hex(s, escape, "\"\\/bfnrt", in);
    add_unicode(s, add_char(s, escape, 'u'), in);
    end_rule(s, add_char(s, in, '"'), s->string);
    return s->string;
}

static int32_t digits(struct hzp_schema *s, int32_t from, int32_t least, int32_t most)
{
    int32_t to = hzp_rules_node(s->rules);
    for (int32_t i = 0; i < most; i++) {
        if (i >= least)
            hzp_rules_empty(s->rules, from, to);
        int32_t node = hzp_rules_node(s->rules);
        hzp_rules_bytes(s->rules, from, '0', '9', node);
        from = node;
    }
    hzp_rules_empty(s->rules, from, to);
    return to;
}

int32_t hzp_json_number(struct hzp_schema *s)
{
    if (s->number >= 0)
        return s->number;
    s->number = new_rule(s, "number");
    int32_t from = first_of(s, s->number), begin = add_char(s, from, '-');
    hzp_rules_empty(s->rules, from, begin);
    int32_t whole = hzp_rules_node(s->rules), lead = hzp_rules_node(s->rules);
    hzp_rules_bytes(s->rules, begin, '0', '0', whole);
    hzp_rules_bytes(s->rules, begin, '1', '9', lead);
    hzp_rules_empty(s->rules, digits(s, lead, 0, HZP_JSON_DIGITS_MAX - 1), whole);
    end_rule(s, whole, s->number);
    int32_t fraction = digits(s, add_char(s, whole, '.'), 1, HZP_JSON_DIGITS_MAX);
    end_rule(s, fraction, s->number);
    int32_t e = hzp_rules_node(s->rules), sign = hzp_rules_node(s->rules);
    add_hex(s, whole, "eE", e);
    add_hex(s, fraction, "eE", e);
    add_hex(s, e, "+-", sign);
    hzp_rules_empty(s->rules, e, sign);
    end_rule(s, digits(s, sign, 1, HZP_JSON_DIGITS_MAX), s->number);
    return s->number;
}

int32_t hzp_json_zeros(struct hzp_schema *s)
{
    if (s->zeros >= 0)
        return s->zeros;
    s->zeros = new_rule(s, "zeros");
    int32_t at = first_of(s, s->zeros);
    for (int i = 0; i < HZP_JSON_DIGITS_MAX; i++) {
        at = add_char(s, at, '0');
        end_rule(s, at, s->zeros);
    }
    return s->zeros;
}

int32_t hzp_json_point_zeros(struct hzp_schema *s)
{
    if (s->point_zeros < 0) {
        s->point_zeros = new_rule(s, "point and zeros");
        int32_t at = add_char(s, first_of(s, s->point_zeros), '.');
        end_rule(s, hzp_rules_then(s->rules, at, hzp_json_zeros(s)), s->point_zeros);
    }
    return s->point_zeros;
}

/* Members or items of any kind between brackets. */
static void add_list(struct hzp_schema *s, int32_t rule, char open, char close, bool names)
{
    int32_t in = hzp_json_blanks(s, add_char(s, first_of(s, rule), open)), at = in;
    int32_t begin = hzp_rules_node(s->rules);
    hzp_rules_empty(s->rules, in, begin);
    at = begin;
    if (names) {
        at = add_char(s, hzp_rules_then(s->rules, at, hzp_json_string(s)), ':');
        at = hzp_json_blanks(s, at);
    }
    at = hzp_rules_then(s->rules, at, hzp_json_value(s));
    hzp_rules_empty(s->rules, hzp_json_blanks(s, add_char(s, at, ',')), begin);
    end_rule(s, add_char(s, hzp_json_blanks(s, at), close), rule);
    end_rule(s, add_char(s, in, close), rule);
}

int32_t hzp_json_object(struct hzp_schema *s)
{
    if (s->object < 0) {
        s->object = new_rule(s, "object");
        add_list(s, s->object, '{', '}', true);
    }
    return s->object;
}

int32_t hzp_json_array(struct hzp_schema *s)
{
    if (s->array < 0) {
        s->array = new_rule(s, "array");
        add_list(s, s->array, '[', ']', false);
    }
    return s->array;
}

int32_t hzp_json_value(struct hzp_schema *s)
{
    static const char *const words[] = {"true", "false", "null"};
    if (s->value >= 0)
        return s->value;
    s->value = new_rule(s, "value");
    int32_t from = first_of(s, s->value);
    for (int i = 0; i < HZP_COUNT(words); i++)
        end_rule(s, hzp_rules_text(s->rules, from, words[i], strlen(words[i])), s->value);
    end_rule(s, hzp_rules_then(s->rules, from, hzp_json_string(s)), s->value);
    end_rule(s, hzp_rules_then(s->rules, from, hzp_json_number(s)), s->value);
    end_rule(s, hzp_rules_then(s->rules, from, hzp_json_object(s)), s->value);
    end_rule(s, hzp_rules_then(s->rules, from, hzp_json_array(s)), s->value);
    return s->value;
}

/* ---- literals ---- */

int32_t hzp_json_inner(struct hzp_schema *s, int32_t from, const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        uint32_t code = hzp_code_read(text, bytes, &at);
        struct hzp_codes set = {0};
        if (code == UINT32_MAX)
            break; /* jansson's strings are UTF-8 */
        hzp_codes_add(&set, code, code);
        int32_t to = hzp_rules_node(s->rules);
        hzp_codes_edges(s->rules, from, &set, HZP_SPELL_JSON, to);
        from = to;
    }
    return from;
}

int32_t hzp_json_text(struct hzp_schema *s, int32_t from, const char *text, size_t bytes)
{
    return add_char(s, hzp_json_inner(s, add_char(s, from, '"'), text, bytes), '"');
}

static int32_t add_members(struct hzp_schema *s, int32_t from, const json_t *value)
{
    bool object = json_is_object(value), first = true;
    size_t i;
    const char *key;
    json_t *each;
    from = hzp_json_blanks(s, add_char(s, from, object ? '{' : '['));
    if (object) {
        json_object_foreach((json_t *)value, key, each)
        {
            if (!first)
                from = hzp_json_blanks(s, add_char(s, from, ','));
            from = add_char(s, hzp_json_text(s, from, key, strlen(key)), ':');
            from = hzp_json_literal(s, hzp_json_blanks(s, from), each);
            first = false;
        }
    } else {
        json_array_foreach(value, i, each)
        {
            if (i)
                from = hzp_json_blanks(s, add_char(s, from, ','));
            from = hzp_json_literal(s, from, each);
        }
    }
    bool empty = object ? !json_object_size(value) : !json_array_size(value);
    return add_char(s, empty ? from : hzp_json_blanks(s, from), object ? '}' : ']');
}

int32_t hzp_json_literal(struct hzp_schema *s, int32_t from, const json_t *value)
{
    if (hzp_json_is_number(value))
        return hzp_json_numeral(s, from, value);
    switch (json_typeof(value)) {
    case JSON_STRING:
        return hzp_json_text(s, from, json_string_value(value), json_string_length(value));
    case JSON_TRUE:
        return hzp_rules_text(s->rules, from, "true", 4);
    case JSON_FALSE:
        return hzp_rules_text(s->rules, from, "false", 5);
    case JSON_NULL:
        return hzp_rules_text(s->rules, from, "null", 4);
    default:
        return add_members(s, from, value); /* as deep as HZP_JSON_DEPTH_MAX */
    }
}

int32_t hzp_json_object_rules(struct hzp_rules *rules)
{
    struct hzp_schema s = {.rules = rules};
    hzp_json_begin(&s);
    return hzp_json_object(&s);
}
