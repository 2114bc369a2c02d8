/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema_kinds.c - which types a schema's values can have, and whether two schemas
 * exclude each other. */
#include "base/words.h"
#include "text/grammar/schema_parts.h"

enum { DEPTH_MAX = 16, VALUES_MAX = 1 << 20 /* pairs */ };

static int named(const char *name)
{
    int at = hzp_word_at("null boolean integer number string array object", name, strlen(name));
    int type = at < 0 ? 0 : 1 << at;
    return type == HZP_TYPE_NUMBER ? HZP_TYPE_INTEGER | HZP_TYPE_NUMBER : type;
}

int hzp_type_mask(const json_t *type)
{
    size_t i;
    const json_t *each;
    int types = 0;
    if (json_is_string(type))
        return named(json_string_value(type));
    json_array_foreach(type, i, each)
    {
        int one = json_is_string(each) ? named(json_string_value(each)) : 0;
        if (!one)
            return 0;
        types |= one;
    }
    return types;
}

int hzp_schema_named_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    int null = json_is_true(json_object_get(schema, "nullable")) ? HZP_TYPE_NULL : 0;
    return type ? hzp_type_mask(type) | null : HZP_TYPE_ALL;
}

int hzp_type_of(const json_t *value)
{
    struct hzp_numeral number;
    if (hzp_json_is_number(value)) {
        hzp_numeral_read(value, &number);
        bool whole = number.point >= number.n;
        hzp_numeral_fini(&number);
        return whole ? HZP_TYPE_INTEGER : HZP_TYPE_NUMBER;
    }
    switch (json_typeof(value)) {
    case JSON_NULL:
        return HZP_TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return HZP_TYPE_BOOLEAN;
    case JSON_STRING:
        return HZP_TYPE_STRING;
    case JSON_ARRAY:
        return HZP_TYPE_ARRAY;
    default:
        return HZP_TYPE_OBJECT;
    }
}

/* Types that values of the schema can have, at most. */
static int types_of(struct hzp_schema *s, const json_t *schema, int depth)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    const json_t *found, *each;
    size_t i;
    int types = HZP_TYPE_ALL, some;
    if (json_is_false(schema))
        return 0;
    if (!json_is_object(schema) || depth > DEPTH_MAX || s->looks-- <= 0)
        return HZP_TYPE_ALL;
    found = json_object_get(schema, "$ref");
    if (found) {
        const json_t *target = hzp_schema_resolve(s, json_string_value(found));
        return target ? types_of(s, target, depth + 1) : HZP_TYPE_ALL;
    }
    if (hzp_schema_named_types(schema))
        types &= hzp_schema_named_types(schema);
    found = json_object_get(schema, "const");
    if (found)
        types &= hzp_type_of(found);
    found = json_object_get(schema, "enum");
    some = 0;
    json_array_foreach(found, i, each) some |= hzp_type_of(each);
    if (json_is_array(found))
        types &= some;
    for (int u = 0; u < HZP_COUNT(unions); u++) {
        found = json_object_get(schema, unions[u]);
        some = 0;
        json_array_foreach(found, i, each) some |= types_of(s, each, depth + 1);
        if (json_is_array(found))
            types &= some;
    }
    return types;
}

const json_t *hzp_schema_followed(const struct hzp_schema *s, const json_t *schema)
{
    for (int i = 0; i < DEPTH_MAX && json_object_get(schema, "$ref"); i++) {
        const char *text = json_string_value(json_object_get(schema, "$ref"));
        const json_t *target = text ? hzp_schema_resolve(s, text) : NULL;
        if (!target)
            break;
        schema = target;
    }
    return schema;
}

/* Whether both are finite sets of values that share none; false for sets too large to compare. */
static bool values_disjoint(struct hzp_schema *s, const json_t *a, const json_t *b)
{
    const json_t *list[2] = {json_object_get(a, "enum"), json_object_get(b, "enum")};
    const json_t *only[2] = {json_object_get(a, "const"), json_object_get(b, "const")};
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        if (!only[i] && !json_is_array(list[i]))
            return false;
        n[i] = only[i] ? 1 : json_array_size(list[i]);
    }
    if (n[1] && n[0] > VALUES_MAX / n[1])
        return false;
    s->compares -= (int64_t)(n[0] * n[1]);
    if (s->compares < 0)
        return false;
    for (size_t i = 0; i < n[0]; i++)
        for (size_t k = 0; k < n[1]; k++)
            if (hzp_schema_same_value(only[0] ? only[0] : json_array_get(list[0], i),
                                      only[1] ? only[1] : json_array_get(list[1], k)))
                return false;
    return true;
}

static bool requires(const json_t *schema, const char *name)
{
    size_t i;
    const json_t *each;
    json_array_foreach(json_object_get(schema, "required"), i, each)
    {
        if (json_is_string(each) && !strcmp(json_string_value(each), name))
            return true;
    }
    return false;
}

static bool disjoint(struct hzp_schema *s, const json_t *a, const json_t *b, const char *has,
                     int depth);

/* Whether no alternative of a shares a value with b. */
static bool alternatives_disjoint(struct hzp_schema *s, const json_t *a, const json_t *b,
                                  const char *has, int depth)
{
    static const char *const unions[] = {"anyOf", "oneOf"};
    const json_t *each;
    size_t i;
    for (int u = 0; u < HZP_COUNT(unions); u++) {
        const json_t *list = json_object_get(a, unions[u]);
        bool all = json_array_size(list) > 0;
        json_array_foreach(list, i, each) all = all && disjoint(s, each, b, has, depth + 1);
        if (all)
            return true;
    }
    return false;
}

static bool disjoint(struct hzp_schema *s, const json_t *a, const json_t *b, const char *has,
                     int depth)
{
    a = hzp_schema_followed(s, a);
    b = hzp_schema_followed(s, b);
    int both = types_of(s, a, 0) & types_of(s, b, 0);
    if (!both || values_disjoint(s, a, b))
        return true;
    if (depth > DEPTH_MAX || s->looks-- <= 0)
        return false;
    const char *name;
    json_t *mine;
    json_object_foreach(both == HZP_TYPE_OBJECT ? json_object_get(a, "properties") : NULL, name,
                        mine)
    {
        const json_t *theirs = json_object_get(json_object_get(b, "properties"), name);
        bool there = (has && !strcmp(has, name)) || (requires(a, name) && requires(b, name));
        if (theirs && there &&
            values_disjoint(s, hzp_schema_followed(s, mine), hzp_schema_followed(s, theirs)))
            return true;
    }
    return alternatives_disjoint(s, a, b, has, depth) || alternatives_disjoint(s, b, a, has, depth);
}

bool hzp_schema_disjoint(struct hzp_schema *s, const json_t *a, const json_t *b, const char *has)
{
    return disjoint(s, a, b, has, 0);
}
