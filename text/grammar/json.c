/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/json.c - rules of any JSON, and of literal values. */
#include "text/grammar/regular.h"
#include "text/grammar/schema_parts.h"

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

/* The rule *kept, which is made of a regular expression when it is first asked for. */
static int32_t regex_rule(struct hzp_schema *s, int32_t *kept, const char *name, const char *format,
                          ...) HZP_PRINTF(4, 5);

static int32_t regex_rule(struct hzp_schema *s, int32_t *kept, const char *name, const char *format,
                          ...)
{
    char regex[400];
    if (*kept >= 0)
        return *kept;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(regex, sizeof(regex), format, args), r;
    va_end(args);
    HZP_ASSERT(n < (int)sizeof(regex));
    *kept = new_rule(s, name);
    int32_t from = first_of(s, *kept), to = from;
    r = hzp_regex_rules(s->rules, from, regex, (size_t)n, HZP_SPELL_PLAIN, false, &to, NULL);
    HZP_ASSERT(r == HZP_OK || s->rules->full);
    end_rule(s, to, *kept);
    return *kept;
}

int32_t hzp_json_blanks(struct hzp_schema *s, int32_t from)
{
    int32_t to = hzp_rules_then(s->rules, from,
                                regex_rule(s, &s->blank, "blanks", " |\n(?: {0,%d}|\t{1,%d})",
                                           HZP_JSON_INDENT_MAX, HZP_JSON_INDENT_MAX));
    hzp_rules_empty(s->rules, from, to);
    return to;
}

#define HEX "[0-9a-fA-F]"

int32_t hzp_json_string(struct hzp_schema *s)
{
    /* \uXXXX is a code point, or a pair of surrogates. */
    return regex_rule(s, &s->string, "string", "%s",
                      "\"(?:[^\"\\\\\\x00-\\x1F]|\\\\(?:[\"\\\\/bfnrt]|u(?:[0-9a-ce-fA-CE-F]" HEX
                      "{3}|[dD][0-7]" HEX "{2}|[dD][89abAB]" HEX "{2}\\\\u[dD][c-fC-F]" HEX
                      "{2})))*\"");
}

int32_t hzp_json_number(struct hzp_schema *s)
{
    enum { N = HZP_JSON_DIGITS_MAX };
    return regex_rule(s, &s->number, "number",
                      "-?(?:0|[1-9]\\d{0,%d})(?:\\.\\d{1,%d})?(?:[eE][+-]?\\d{1,%d})?", N - 1, N,
                      N);
}

int32_t hzp_json_zeros(struct hzp_schema *s, bool point)
{
    return point ? regex_rule(s, &s->point_zeros, "point and zeros", "\\.0{1,%d}",
                              HZP_JSON_DIGITS_MAX)
                 : regex_rule(s, &s->zeros, "zeros", "0{1,%d}", HZP_JSON_DIGITS_MAX);
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

static int32_t any_array(struct hzp_schema *s)
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
    end_rule(s, hzp_rules_then(s->rules, from, any_array(s)), s->value);
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
    json_object_foreach((json_t *)value, key, each)
    {
        if (!first)
            from = hzp_json_blanks(s, add_char(s, from, ','));
        from = add_char(s, hzp_json_text(s, from, key, strlen(key)), ':');
        from = hzp_json_literal(s, hzp_json_blanks(s, from), each);
        first = false;
    }
    json_array_foreach(value, i, each)
    {
        if (!first)
            from = hzp_json_blanks(s, add_char(s, from, ','));
        from = hzp_json_literal(s, from, each);
        first = false;
    }
    return add_char(s, first ? from : hzp_json_blanks(s, from), object ? '}' : ']');
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
