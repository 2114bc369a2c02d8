/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema_valid.c - whether a given value satisfies a schema: for the values of enum
 * and const, and for names of properties. */
#include "base/utf8.h"
#include "text/grammar/regular.h"
#include "text/grammar/schema_parts.h"

enum { DEPTH_MAX = 32, PATTERN_STATES_MAX = 1 << 17 };

bool hzp_schema_same_value(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    size_t i;
    if (hzp_json_is_number(a) && hzp_json_is_number(b))
        return hzp_numeral_same(a, b);
    if (hzp_json_is_number(a) || hzp_json_is_number(b))
        return false;
    if (json_typeof(a) != json_typeof(b))
        return false;
    if (json_is_array(a)) {
        bool same = json_array_size(a) == json_array_size(b);
        for (i = 0; same && i < json_array_size(a); i++)
            same = hzp_schema_same_value(json_array_get(a, i), json_array_get(b, i));
        return same;
    }
    if (!json_is_object(a))
        return json_equal(a, b);
    if (json_object_size(a) != json_object_size(b))
        return false;
    json_object_foreach((json_t *)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!other || !hzp_schema_same_value(value, other))
            return false;
    }
    return true;
}

/* ---- patterns ---- */

int hzp_schema_matches(struct hzp_schema *s, const char *pattern, size_t bytes, const char *text,
                       size_t text_bytes)
{
    const json_t *found = json_object_getn(s->pattern_of, pattern, bytes);
    if (!found) {
        struct hzp_regular *made;
        hzp_regex_regular(pattern, bytes, HZP_SPELL_PLAIN, true, &made, NULL);
        s->pattern = hzp_xgrow(s->pattern, &s->patterns_room, s->patterns + 1, sizeof(*s->pattern));
        s->pattern_states += made ? hzp_regular_states(made) : 0;
        if (s->pattern_states > PATTERN_STATES_MAX) { /* they are all kept */
            hzp_regular_destroy(made);
            made = NULL;
        }
        s->pattern[s->patterns] = made;
        json_object_setn_new(s->pattern_of, pattern, bytes, json_integer(s->patterns++));
        found = json_object_getn(s->pattern_of, pattern, bytes);
    }
    const struct hzp_regular *regular = found ? s->pattern[json_integer_value(found)] : NULL;
    return regular ? hzp_regular_takes(regular, text, text_bytes) : -1;
}

/* ---- types ---- */

static int count_of(const json_t *schema, const char *keyword, double otherwise, double *ret)
{
    const json_t *value = json_object_get(schema, keyword);
    *ret = value ? hzp_json_real(value) : otherwise;
    return !value || hzp_json_is_number(value);
}

static int within(const json_t *schema, const char *least, const char *most, double n)
{
    double lo, hi;
    if (!count_of(schema, least, -INFINITY, &lo) || !count_of(schema, most, INFINITY, &hi))
        return -1;
    return n >= lo && n <= hi;
}

/* Whether the value is on the right side of the schema's bound; -1: that is no number. */
static int beside(const json_t *value, const json_t *schema, const struct hzp_schema_bound *kind)
{
    const json_t *bound = json_object_get(schema, kind->keyword);
    if (!bound)
        return 1;
    if (!hzp_json_is_number(bound))
        return -1;
    int order = hzp_numeral_compare(value, bound);
    return order ? (order > 0) == kind->lower : !kind->open;
}

static int number_valid(const json_t *value, const json_t *schema)
{
    const json_t *multiple = json_object_get(schema, "multipleOf");
    double v = hzp_json_real(value), of = hzp_json_real(multiple);
    int valid = 1;
    for (int i = 0; i < HZP_SCHEMA_BOUNDS; i++) {
        int fits = beside(value, schema, &hzp_schema_bound[i]);
        valid = fits < 0 || valid < 0 ? -1 : valid && fits;
    }
    if (!multiple || valid <= 0)
        return valid;
    /* below 2^53 a double holds every integer, but not every fraction */
    if (!hzp_json_is_number(multiple) || of != floor(of) ||
        (!json_is_real(value) && !(fabs(v) < 0x1p53)))
        return -1;
    return of == 0 || fmod(v, of) == 0;
}

static int string_valid(struct hzp_schema *s, const json_t *value, const json_t *schema)
{
    const char *text = json_string_value(value);
    size_t bytes = json_string_length(value);
    const json_t *pattern = json_object_get(schema, "pattern"),
                 *format = json_object_get(schema, "format");
    int valid = within(schema, "minLength", "maxLength", (double)hzp_utf8_count(text, bytes));
    if (valid > 0 && pattern)
        valid = json_is_string(pattern)
                    ? hzp_schema_matches(s, json_string_value(pattern), json_string_length(pattern),
                                         text, bytes)
                    : -1;
    const char *regex = hzp_schema_format(json_string_value(format));
    if (valid > 0 && regex)
        valid = hzp_schema_matches(s, regex, strlen(regex), text, bytes);
    return valid;
}

static int array_valid(struct hzp_schema *s, const json_t *value, const json_t *schema, int depth)
{
    const json_t *first = json_object_get(schema, "prefixItems"),
                 *rest = json_object_get(schema, "items"), *each;
    size_t i, k;
    int valid = within(schema, "minItems", "maxItems", (double)json_array_size(value));
    if (json_is_array(rest)) {
        first = rest;
        rest = json_object_get(schema, "additionalItems");
    }
    bool unique = json_is_true(json_object_get(schema, "uniqueItems"));
    json_array_foreach(value, i, each)
    {
        const json_t *own = i < json_array_size(first) ? json_array_get(first, i) : rest;
        if (valid > 0 && own)
            valid = hzp_schema_valid(s, each, own, depth + 1);
        s->compares -= unique && valid > 0 ? (int64_t)i : 0;
        if (s->compares < 0)
            return -1;
        for (k = 0; unique && valid > 0 && k < i; k++)
            valid = !hzp_schema_same_value(each, json_array_get(value, k));
    }
    return valid;
}

/* The schemas of one member: of its own name, of patterns, of others. */
static int member_valid(struct hzp_schema *s, const char *name, const json_t *value,
                        const json_t *schema, int depth)
{
    const json_t *own = json_object_get(json_object_get(schema, "properties"), name),
                 *names = json_object_get(schema, "propertyNames"),
                 *more = json_object_get(schema, "additionalProperties");
    const char *pattern;
    json_t *each;
    bool any = own != NULL;
    int valid = own ? hzp_schema_valid(s, value, own, depth + 1) : 1;
    json_object_foreach(json_object_get(schema, "patternProperties"), pattern, each)
    {
        int found = hzp_schema_matches(s, pattern, strlen(pattern), name, strlen(name));
        any |= found > 0;
        if (found < 0)
            return -1;
        if (found && valid > 0)
            valid = hzp_schema_valid(s, value, each, depth + 1);
    }
    if (!any && more && valid > 0)
        valid = hzp_schema_valid(s, value, more, depth + 1);
    if (names && valid > 0) {
        json_auto_t *text = json_string(name);
        valid = hzp_schema_valid(s, text, names, depth + 1);
    }
    return valid;
}

static int object_valid(struct hzp_schema *s, const json_t *value, const json_t *schema, int depth)
{
    const char *name;
    json_t *member;
    const json_t *each;
    size_t i;
    int valid = within(schema, "minProperties", "maxProperties", (double)json_object_size(value));
    json_array_foreach(json_object_get(schema, "required"), i, each)
    {
        if (valid > 0)
            valid = json_is_string(each) ? json_object_getn(value, json_string_value(each),
                                                            json_string_length(each)) != NULL
                                         : -1;
    }
    json_object_foreach((json_t *)value, name, member)
    {
        if (valid > 0)
            valid = member_valid(s, name, member, schema, depth);
    }
    return valid;
}

/* ---- combinations ---- */

/* How many of the list are satisfied; -1: that cannot be told. */
static int count_valid(struct hzp_schema *s, const json_t *value, const json_t *list, int depth)
{
    const json_t *each;
    size_t i;
    int count = 0;
    json_array_foreach(list, i, each)
    {
        int valid = hzp_schema_valid(s, value, each, depth + 1);
        if (valid < 0)
            return -1;
        count += valid;
    }
    return count;
}

static int combined_valid(struct hzp_schema *s, const json_t *value, const json_t *schema,
                          int depth)
{
    const json_t *all = json_object_get(schema, "allOf"), *any = json_object_get(schema, "anyOf"),
                 *one = json_object_get(schema, "oneOf"),
                 *excluded = json_object_get(schema, "not"), *test = json_object_get(schema, "if"),
                 *ref = json_object_get(schema, "$ref");
    int valid = 1, n;
    if (ref) {
        const json_t *target = hzp_schema_resolve(s, json_string_value(ref));
        valid = target ? hzp_schema_valid(s, value, target, depth + 1) : -1;
    }
    if (valid > 0 && all)
        valid = (n = count_valid(s, value, all, depth)) < 0 ? n : (size_t)n == json_array_size(all);
    if (valid > 0 && any)
        valid = (n = count_valid(s, value, any, depth)) < 0 ? n : n > 0;
    if (valid > 0 && one)
        valid = (n = count_valid(s, value, one, depth)) < 0 ? n : n == 1;
    if (valid > 0 && excluded)
        valid = (n = hzp_schema_valid(s, value, excluded, depth + 1)) < 0 ? n : !n;
    if (valid > 0 && test && (n = hzp_schema_valid(s, value, test, depth + 1)) >= 0) {
        const json_t *then = json_object_get(schema, n ? "then" : "else");
        valid = then ? hzp_schema_valid(s, value, then, depth + 1) : 1;
    } else if (valid > 0 && test) {
        valid = -1;
    }
    return valid;
}

static int values_valid(struct hzp_schema *s, const json_t *value, const json_t *schema)
{
    const json_t *only = json_object_get(schema, "const"), *list = json_object_get(schema, "enum"),
                 *each;
    size_t i;
    bool any = !list;
    if (only && !hzp_schema_same_value(value, only))
        return 0;
    json_array_foreach(list, i, each)
    {
        if (any)
            break;
        if (s->compares-- <= 0)
            return -1;
        any = hzp_schema_same_value(value, each);
    }
    return any;
}

int hzp_schema_valid(struct hzp_schema *s, const json_t *value, const json_t *schema, int depth)
{
    static const char *const unknown[] = {"dependentRequired",     "dependentSchemas",
                                          "dependencies",          "contains",
                                          "unevaluatedProperties", "unevaluatedItems"};
    if (json_is_boolean(schema))
        return json_is_true(schema);
    if (!json_is_object(schema) || depth > DEPTH_MAX || s->looks-- <= 0)
        return -1;
    const json_t *ref = s->ref_alone ? json_object_get(schema, "$ref") : NULL;
    if (ref) {
        const json_t *target = hzp_schema_resolve(s, json_string_value(ref));
        return target ? hzp_schema_valid(s, value, target, depth + 1) : -1;
    }
    for (int i = 0; i < HZP_COUNT(unknown); i++)
        if (json_object_get(schema, unknown[i]))
            return -1;
    if (!(hzp_schema_named_types(schema) & hzp_type_of(value)))
        return 0;
    int valid = values_valid(s, value, schema);
    if (valid > 0 && hzp_json_is_number(value))
        valid = number_valid(value, schema);
    if (valid > 0 && json_is_string(value))
        valid = string_valid(s, value, schema);
    if (valid > 0 && json_is_array(value))
        valid = array_valid(s, value, schema, depth);
    if (valid > 0 && json_is_object(value))
        valid = object_valid(s, value, schema, depth);
    return valid > 0 ? combined_valid(s, value, schema, depth) : valid;
}
