/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema_not.c - what negates a schema: schemas of which a value satisfies one if and
 * only if it violates one of the schema's keywords. */
#include "text/grammar/schema_parts.h"

enum { DEPTH_MAX = 16, NUMBERS_MAX = 256 };

/* Types as words, with numbers as a whole. */
static json_t *types_json(int types)
{
    static const char *const names[] = {"null",   "boolean", "number", NULL,
                                        "string", "array",   "object"};
    json_t *list = json_array();
    for (int i = 0; i < HZP_COUNT(names); i++)
        if (names[i] && types >> i & 1)
            json_array_append_new(list, json_string(names[i]));
    return list;
}

/* One of the alternatives; it takes the schema over. */
static void emit(struct hzp_schema *s, json_t *ret, json_t *schema)
{
    json_array_append(ret, (json_t *)hzp_schema_made(s, schema));
}

static void emit_types(struct hzp_schema *s, json_t *ret, int types)
{
    if (types)
        emit(s, ret, json_pack("{s:o}", "type", types_json(types)));
}

/* ---- values ---- */

bool hzp_schema_is_leaf(const json_t *schema)
{
    const json_t *excluded = json_object_get(schema, "not"), *each;
    const char *type = json_string_value(json_object_get(schema, "type"));
    size_t i;
    if (!type || json_object_size(excluded) != 1)
        return false;
    if (!strcmp(type, "number"))
        return hzp_json_is_number(json_object_get(excluded, "multipleOf")) ||
               hzp_type_mask(json_object_get(excluded, "type")) == HZP_TYPE_INTEGER;
    if (strcmp(type, "string"))
        return false;
    if (json_is_string(json_object_get(excluded, "pattern")) ||
        hzp_schema_format(json_string_value(json_object_get(excluded, "format"))) ||
        json_is_string(json_object_get(excluded, "const")))
        return true;
    json_array_foreach(json_object_get(excluded, "enum"), i, each)
    {
        if (!json_is_string(each))
            return false;
    }
    return json_is_array(json_object_get(excluded, "enum"));
}

static int by_value(const void *pa, const void *pb)
{
    double a = hzp_json_real(*(json_t *const *)pa), b = hzp_json_real(*(json_t *const *)pb);
    return (a > b) - (a < b);
}

/* Numbers between those that are left out. */
static void emit_numbers(struct hzp_schema *s, json_t *ret, json_t *const *number, int n)
{
    for (int i = 0; i <= n; i++) {
        json_t *range = json_pack("{s:s}", "type", "number");
        if (i)
            json_object_set(range, "exclusiveMinimum", number[i - 1]);
        if (i < n)
            json_object_set(range, "exclusiveMaximum", number[i]);
        emit(s, ret, range);
    }
}

/* All values but those of the list. */
static int negate_values(struct hzp_schema *s, const json_t *list, json_t *ret)
{
    const json_t *each;
    json_t *number[NUMBERS_MAX];
    json_auto_t *strings = json_array();
    size_t i;
    int types = 0, n = 0, booleans = 0;
    json_array_foreach(list, i, each)
    {
        int type = hzp_type_of(each);
        if (type & (HZP_TYPE_ARRAY | HZP_TYPE_OBJECT) ||
            (hzp_json_is_number(each) && n == NUMBERS_MAX))
            return HZP_EINVAL;
        types |= hzp_json_is_number(each) ? HZP_TYPE_INTEGER | HZP_TYPE_NUMBER : type;
        if (hzp_json_is_number(each))
            number[n++] = (json_t *)each;
        if (json_is_string(each))
            json_array_append(strings, (json_t *)each);
        if (json_is_boolean(each))
            booleans |= json_is_true(each) ? 1 : 2;
    }
    emit_types(s, ret, HZP_TYPE_ALL & ~types);
    if (booleans == 1 || booleans == 2)
        emit(s, ret, json_pack("{s:b}", "const", booleans == 2));
    qsort(number, (size_t)n, sizeof(*number), by_value);
    if (n)
        emit_numbers(s, ret, number, n);
    if (json_array_size(strings))
        emit(s, ret, json_pack("{s:s, s:{s:O}}", "type", "string", "not", "enum", strings));
    return HZP_OK;
}

/* ---- keywords ---- */

/* A bound becomes another one, at the same value or beside it. */
static bool negate_bound(struct hzp_schema *s, const char *key, const json_t *value, json_t *ret)
{
    static const struct {
        const char *key, *type, *other;
        int shift; /* what is added to a count */
    } bounds[] = {
        {"minimum", "number", "exclusiveMaximum", 0},
        {"exclusiveMinimum", "number", "maximum", 0},
        {"maximum", "number", "exclusiveMinimum", 0},
        {"exclusiveMaximum", "number", "minimum", 0},
        {"minLength", "string", "maxLength", -1},
        {"maxLength", "string", "minLength", 1},
        {"minItems", "array", "maxItems", -1},
        {"maxItems", "array", "minItems", 1},
        {"minProperties", "object", "maxProperties", -1},
        {"maxProperties", "object", "minProperties", 1},
    };
    for (int i = 0; i < HZP_COUNT(bounds); i++) {
        if (strcmp(bounds[i].key, key) || !hzp_json_is_number(value))
            continue;
        double count = hzp_json_real(value) + bounds[i].shift;
        if (bounds[i].shift && (count != floor(count) || fabs(count) > 1e15))
            return false;
        json_t *bound =
            bounds[i].shift ? json_integer((json_int_t)count) : json_incref((json_t *)value);
        if (bounds[i].shift && count < 0)
            json_decref(bound);
        else
            emit(s, ret, json_pack("{s:s, s:o}", "type", bounds[i].type, bounds[i].other, bound));
        return true;
    }
    return false;
}

static bool negate_type(struct hzp_schema *s, const json_t *value, json_t *ret)
{
    int types = hzp_type_mask(value);
    emit_types(s, ret, HZP_TYPE_ALL & ~HZP_TYPE_NUMBER & ~types);
    if (types & HZP_TYPE_INTEGER && !(types & HZP_TYPE_NUMBER))
        emit(s, ret, json_pack("{s:s, s:{s:s}}", "type", "number", "not", "type", "integer"));
    return types;
}

static bool negate_members(struct hzp_schema *s, const char *key, const json_t *value, json_t *ret)
{
    const json_t *item;
    const char *name;
    json_t *each;
    size_t i;
    if (!strcmp(key, "required")) {
        json_array_foreach(value, i, item)
        {
            if (!json_is_string(item) ||
                strlen(json_string_value(item)) != json_string_length(item))
                return false;
            emit(s, ret,
                 json_pack("{s:s, s:{s:b}}", "type", "object", "properties",
                           json_string_value(item), 0));
        }
        return json_is_array(value);
    }
    json_object_foreach((json_t *)value, name, each)
        emit(s, ret,
             json_pack("{s:s, s:[s], s:{s:{s:O}}}", "type", "object", "required", name,
                       "properties", name, "not", each));
    return json_is_object(value);
}

static bool negate_combining(struct hzp_schema *s, const char *key, const json_t *value,
                             json_t *ret)
{
    const json_t *each;
    size_t i;
    if (!strcmp(key, "not")) {
        json_array_append(ret, (json_t *)value);
        return true;
    }
    bool all = !strcmp(key, "allOf");
    json_auto_t *nots = json_array();
    json_array_foreach(value, i, each)
    {
        json_t *one = json_pack("{s:O}", "not", each);
        if (all)
            emit(s, ret, one);
        else
            json_array_append_new(nots, one);
    }
    if (!all && json_array_size(nots))
        emit(s, ret, json_pack("{s:O}", "allOf", nots));
    return json_is_array(value);
}

/* False: the keyword cannot be negated. */
static bool negate_keyword(struct hzp_schema *s, const json_t *schema, const char *key,
                           const json_t *value, json_t *ret)
{
    if (!strcmp(key, "type"))
        return negate_type(s, value, ret);
    if (!strcmp(key, "enum"))
        return negate_values(s, value, ret) == HZP_OK;
    if (!strcmp(key, "const")) {
        json_auto_t *list = json_pack("[O]", value);
        int r = negate_values(s, list, ret);
        return r == HZP_OK;
    }
    if (!strcmp(key, "pattern") || !strcmp(key, "format")) {
        if (*key == 'f' && !hzp_schema_format(json_string_value(value)))
            return false; /* it says nothing that could be negated */
        emit(s, ret, json_pack("{s:s, s:{s:O}}", "type", "string", "not", key, value));
        return json_is_string(value);
    }
    if (!strcmp(key, "multipleOf")) {
        emit(s, ret, json_pack("{s:s, s:{s:O}}", "type", "number", "not", key, value));
        return hzp_json_is_number(value);
    }
    if (!strcmp(key, "required") || !strcmp(key, "properties"))
        return negate_members(s, key, value, ret);
    if (!strcmp(key, "allOf") || !strcmp(key, "anyOf") || !strcmp(key, "not"))
        return negate_combining(s, key, value, ret);
    if (!strcmp(key, "$ref")) {
        const json_t *target = hzp_schema_resolve(s, json_string_value(value));
        if (target)
            emit(s, ret, json_pack("{s:O}", "not", target));
        return target != NULL;
    }
    return negate_bound(s, key, value, ret);
}

/* Whether the schema's keyword says which values are valid. */
static bool has_effect(const struct hzp_schema *s, const json_t *schema, const char *key)
{
    bool alone = s->ref_alone && json_object_get(schema, "$ref");
    return alone ? !strcmp(key, "$ref") : !hzp_schema_is_annotation(key);
}

int hzp_schema_negate(struct hzp_schema *s, const struct hzp_schema_item *at, const json_t *schema,
                      json_t *ret)
{
    const char *key;
    json_t *value;
    if (json_is_false(schema))
        json_array_append_new(ret, json_true());
    if (json_is_boolean(schema))
        return HZP_OK;
    if (!json_is_object(schema))
        return hzp_schema_refuse(s, at, "not", "is neither an object nor a boolean");
    json_object_foreach((json_t *)schema, key, value)
    {
        if (has_effect(s, schema, key) && !negate_keyword(s, schema, key, value, ret))
            return hzp_fail(s->reterr, HZP_EINVAL,
                            "schema: not (or if) at %s is not supported with %.64s", at->path, key);
    }
    return HZP_OK;
}

/* Whether what an alternative negates in turn can be. */
static bool can_negate_within(struct hzp_schema *s, const json_t *alternative, int depth)
{
    const json_t *inner = json_object_get(alternative, "not"), *each;
    json_t *property;
    const char *name;
    size_t i;
    bool can = !inner || hzp_schema_is_leaf(alternative) || hzp_schema_can_negate(s, inner, depth);
    json_object_foreach(json_object_get(alternative, "properties"), name, property)
    {
        inner = json_object_get(property, "not");
        can = can && (!inner || hzp_schema_can_negate(s, inner, depth));
    }
    json_array_foreach(json_object_get(alternative, "allOf"), i, each)
    {
        inner = json_object_get(each, "not");
        can = can && (!inner || hzp_schema_can_negate(s, inner, depth));
    }
    return can;
}

bool hzp_schema_can_negate(struct hzp_schema *s, const json_t *schema, int depth)
{
    const char *key;
    json_t *value, *list = json_array(), *each;
    size_t i;
    bool can =
        depth < DEPTH_MAX && s->looks-- > 0 && (json_is_object(schema) || json_is_boolean(schema));
    json_object_foreach((json_t *)schema, key, value)
    {
        json_array_clear(list);
        if (!can || !has_effect(s, schema, key))
            continue;
        can = negate_keyword(s, schema, key, value, list);
        json_array_foreach(list, i, each) can = can && can_negate_within(s, each, depth + 1);
    }
    json_decref(list);
    return can;
}
