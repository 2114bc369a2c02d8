/* SPDX-License-Identifier: Apache-2.0 */
/* serve/grammar/schema.c - walks a JSON Schema: a rule for each part that is referred to. */
#include "base/arena.h"
#include "serve/grammar/schema_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const annotations[] = {
    "$schema",          "$id",        "id",       "$comment",    "title",
    "description",      "default",    "examples", "example",     "readOnly",
    "writeOnly",        "deprecated", "$defs",    "definitions", "contentEncoding",
    "contentMediaType", NULL};

/* Keywords of single types, and what combines schemas. */
static const char *const plain[] = {"type",
                                    "properties",
                                    "required",
                                    "additionalProperties",
                                    "items",
                                    "prefixItems",
                                    "minItems",
                                    "maxItems",
                                    "additionalItems",
                                    "minLength",
                                    "maxLength",
                                    "pattern",
                                    "format",
                                    "minimum",
                                    "maximum",
                                    "exclusiveMinimum",
                                    "exclusiveMaximum",
                                    NULL};
static const char *const combining[] = {"$ref", "anyOf", "oneOf", "allOf", "enum", "const", NULL};

enum { ONE_OF_MAX = 256, LOOKS_MAX = 1 << 18 };

static bool is_one_of(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(name, *list))
            return true;
    return false;
}

int hzp_schema_refuse(const struct hzp_schema *s, const struct hzp_schema_item *at,
                      const char *keyword, const char *why)
{
    return hzp_fail(s->reterr, HZP_EINVAL, "schema: %.64s at %s %s", keyword, at->path, why);
}

int32_t hzp_schema_rule(struct hzp_schema *s, const struct hzp_schema_item *at, const char *keyword,
                        const char *name, const json_t *schema)
{
    char path[HZP_SCHEMA_PATH + 256];
    if (s->rules->full) /* refused in any case: not searched for each of very many parts */
        return 0;
    for (int32_t i = 0; i < s->items; i++)
        if (s->item[i].schema == schema)
            return s->item[i].rule;
    snprintf(path, sizeof(path), "%s%s%.64s%s%.64s", at ? at->path : "$", *keyword ? "/" : "",
             keyword, *name ? "/" : "", name);
    if (s->items == s->items_room) {
        s->items_room = HZP_MAX(2 * s->items_room, 16);
        s->item = hzp_xrealloc(s->item, (size_t)s->items_room * sizeof(*s->item));
    }
    struct hzp_schema_item *item = &s->item[s->items++];
    memset(item, 0, sizeof(*item));
    item->schema = schema;
    memcpy(item->path, path, HZP_MIN(strlen(path), sizeof(item->path) - 1));
    item->rule = hzp_rules_add(s->rules, item->path, strlen(item->path));
    return item->rule;
}

int hzp_schema_count(const struct hzp_schema *s, const struct hzp_schema_item *at,
                     const char *keyword, int32_t *ret)
{
    const json_t *value = json_object_get(at->schema, keyword);
    if (!value)
        return HZP_OK;
    double count = json_is_number(value) ? json_number_value(value) : -1;
    if (count < 0 || count != (double)(int64_t)HZP_MIN(count, 1e15))
        return hzp_schema_refuse(s, at, keyword, "must be a whole number that is not negative");
    if (count > HZP_REPEAT_MAX)
        return hzp_fail(s->reterr, HZP_EINVAL, "schema: %s at %s is above %d", keyword, at->path,
                        HZP_REPEAT_MAX);
    *ret = (int32_t)count;
    return HZP_OK;
}

/* ---- references ---- */

/* A step of a JSON pointer: the member or item of `from` that is named, up to the next "/". */
static const json_t *pointer_step(const json_t *from, const char *step, size_t bytes)
{
    char name[256];
    size_t n = 0;
    for (size_t i = 0; i < bytes && n + 1 < sizeof(name); i++) {
        char c = step[i];
        if (c == '~' && i + 1 < bytes && (step[i + 1] == '0' || step[i + 1] == '1'))
            c = step[++i] == '0' ? '~' : '/';
        else if (c == '%' && i + 2 < bytes && hzp_code_hex(step, bytes, i + 1, 2) < 256) {
            c = (char)hzp_code_hex(step, bytes, i + 1, 2);
            i += 2;
        }
        name[n++] = c;
    }
    name[n] = '\0';
    if (json_is_array(from)) {
        char *end;
        unsigned long index = strtoul(name, &end, 10);
        return *name && !*end ? json_array_get(from, index) : NULL;
    }
    return json_object_get(from, name);
}

const json_t *hzp_schema_resolve(const struct hzp_schema *s, const char *reference)
{
    const json_t *at = s->document;
    if (!reference || *reference != '#')
        return NULL;
    reference++;
    while (at && *reference == '/') {
        size_t bytes = strcspn(++reference, "/");
        at = pointer_step(at, reference, bytes);
        reference += bytes;
    }
    return *reference ? NULL : at;
}

/* ---- parts ---- */

/* Whether the part has no keyword of the list, the given one left out; else an error. */
static int none_of(const struct hzp_schema *s, const struct hzp_schema_item *at,
                   const char *const *list, const char *but, const char *or_but)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)at->schema, key, value)
    {
        if (!strcmp(key, but) || !strcmp(key, or_but) || !is_one_of(key, list))
            continue;
        char why[96];
        snprintf(why, sizeof(why), "is not supported beside %s", but);
        return hzp_schema_refuse(s, at, key, why);
    }
    return HZP_OK;
}

static int alone(const struct hzp_schema *s, const struct hzp_schema_item *at, const char *keyword,
                 const char *or_but)
{
    HZP_TRY(none_of(s, at, plain, keyword, or_but));
    return none_of(s, at, combining, keyword, or_but);
}

static int check_keywords(const struct hzp_schema *s, const struct hzp_schema_item *at)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)at->schema, key, value)
    {
        if (is_one_of(key, annotations) || is_one_of(key, plain) || is_one_of(key, combining))
            continue;
        return hzp_schema_refuse(s, at, key, "is not supported");
    }
    return HZP_OK;
}

/* Alternatives: an edge to the rule of each. */
static int add_each(struct hzp_schema *s, const struct hzp_schema_item *at, const char *keyword,
                    const json_t *list, int32_t from, int32_t to)
{
    size_t i;
    const json_t *each;
    char index[24];
    if (!json_array_size(list))
        return hzp_schema_refuse(s, at, keyword, "must be a list that is not empty");
    json_array_foreach(list, i, each)
    {
        snprintf(index, sizeof(index), "%zu", i);
        hzp_rules_call(s->rules, from, hzp_schema_rule(s, at, keyword, index, each), to);
    }
    return HZP_OK;
}

static int add_one_of(struct hzp_schema *s, const struct hzp_schema_item *at, const json_t *list,
                      int32_t from, int32_t to)
{
    size_t n = json_array_size(list);
    if (n > ONE_OF_MAX)
        return hzp_schema_refuse(s, at, "oneOf", "has too many alternatives: use anyOf");
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++)
            if (!hzp_schema_disjoint(s, json_array_get(list, i), json_array_get(list, k)))
                return hzp_schema_refuse(s, at, "oneOf",
                                         "has alternatives that a value might satisfy both: use "
                                         "anyOf");
    return add_each(s, at, "oneOf", list, from, to);
}

/* enum and const, as far as `type` admits their values. */
static int add_values(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                      int32_t to)
{
    const json_t *list = json_object_get(at->schema, "enum"), *type, *each,
                 *only = json_object_get(at->schema, "const");
    size_t i;
    int types = HZP_TYPE_ALL;
    HZP_TRY(none_of(s, at, combining, list ? "enum" : "const", list ? "const" : "enum"));
    HZP_TRY(none_of(s, at, plain, list ? "enum" : "const", "type"));
    type = json_object_get(at->schema, "type");
    if (type && !(types = hzp_type_mask(type)))
        return hzp_schema_refuse(s, at, "type", "is no type");
    if (list && !json_is_array(list))
        return hzp_schema_refuse(s, at, "enum", "must be a list");
    if (!list) {
        if (hzp_type_of(only) & types)
            hzp_rules_empty(s->rules, hzp_json_literal(s, from, only), to);
        return HZP_OK;
    }
    json_array_foreach(list, i, each)
    {
        if ((only && !json_equal(only, each)) || !(hzp_type_of(each) & types))
            continue;
        hzp_rules_empty(s->rules, hzp_json_literal(s, from, each), to);
    }
    return HZP_OK;
}

/* What values of one type are taken. */
static int add_type(struct hzp_schema *s, const struct hzp_schema_item *at, int type, int32_t from,
                    int32_t *ret)
{
    switch (type) {
    case HZP_TYPE_NULL:
        *ret = hzp_rules_text(s->rules, from, "null", 4);
        return HZP_OK;
    case HZP_TYPE_BOOLEAN:
        *ret = hzp_rules_text(s->rules, from, "true", 4);
        hzp_rules_empty(s->rules, hzp_rules_text(s->rules, from, "false", 5), *ret);
        return HZP_OK;
    case HZP_TYPE_INTEGER:
    case HZP_TYPE_NUMBER:
        return hzp_schema_number(s, at, type == HZP_TYPE_INTEGER, from, ret);
    case HZP_TYPE_STRING:
        return hzp_schema_string(s, at, from, ret);
    case HZP_TYPE_ARRAY:
        return hzp_schema_array(s, at, from, ret);
    default:
        return hzp_schema_object(s, at, from, ret);
    }
}

static int add_types(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                     int32_t to)
{
    const json_t *type = json_object_get(at->schema, "type");
    int types = type ? hzp_type_mask(type) : HZP_TYPE_ALL;
    if (!types)
        return hzp_schema_refuse(s, at, "type", "is no type");
    if (types & HZP_TYPE_NUMBER) /* of which integers are some */
        types &= ~HZP_TYPE_INTEGER;
    for (int t = 1; t <= HZP_TYPE_OBJECT; t *= 2) {
        int32_t end;
        if (!(types & t))
            continue;
        HZP_TRY(add_type(s, at, t, from, &end));
        hzp_rules_empty(s->rules, end, to);
    }
    return HZP_OK;
}

static int add_reference(struct hzp_schema *s, const struct hzp_schema_item *at,
                         const json_t *reference, int32_t from, int32_t to)
{
    const char *text = json_string_value(reference);
    const json_t *target = text ? hzp_schema_resolve(s, text) : NULL;
    char why[128];
    HZP_TRY(alone(s, at, "$ref", ""));
    if (!target) {
        snprintf(why, sizeof(why), "refers to \"%.64s\", which is not in the schema",
                 text ? text : "");
        return hzp_schema_refuse(s, at, "$ref", why);
    }
    hzp_rules_call(s->rules, from, hzp_schema_rule(s, NULL, text, "", target), to);
    return HZP_OK;
}

static int make_part(struct hzp_schema *s, const struct hzp_schema_item *at)
{
    const json_t *schema = at->schema, *found;
    int32_t from = s->rules->rule[at->rule].first, to = s->rules->rule[at->rule].last;
    if (json_is_false(schema))
        return HZP_OK;
    if (json_is_true(schema) || (json_is_object(schema) && !json_object_size(schema))) {
        hzp_rules_call(s->rules, from, hzp_json_value(s), to);
        return HZP_OK;
    }
    if (!json_is_object(schema))
        return hzp_fail(s->reterr, HZP_EINVAL, "schema: %s is neither an object nor a boolean",
                        at->path);
    HZP_TRY(check_keywords(s, at));
    if ((found = json_object_get(schema, "$ref")))
        return add_reference(s, at, found, from, to);
    if ((found = json_object_get(schema, "anyOf"))) {
        HZP_TRY(alone(s, at, "anyOf", ""));
        return add_each(s, at, "anyOf", found, from, to);
    }
    if ((found = json_object_get(schema, "oneOf"))) {
        HZP_TRY(alone(s, at, "oneOf", ""));
        return add_one_of(s, at, found, from, to);
    }
    if ((found = json_object_get(schema, "allOf"))) {
        HZP_TRY(alone(s, at, "allOf", ""));
        if (json_array_size(found) != 1)
            return hzp_schema_refuse(s, at, "allOf", "of other than one schema is not supported");
        return add_each(s, at, "allOf", found, from, to);
    }
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return add_values(s, at, from, to);
    return add_types(s, at, from, to);
}

int hzp_schema_rules(struct hzp_rules *rules, const json_t *schema, int32_t *ret,
                     struct hzp_err_text *reterr)
{
    struct hzp_schema s = {.rules = rules, .document = schema, .reterr = reterr};
    int r = HZP_OK;
    s.looks = LOOKS_MAX;
    hzp_json_begin(&s);
    *ret = hzp_schema_rule(&s, NULL, "", "", schema);
    for (int32_t i = 0; i < s.items && r == HZP_OK; i++) {
        struct hzp_schema_item at = s.item[i]; /* the list may move */
        r = make_part(&s, &at);
        if (r == HZP_OK && (rules->full || s.items > HZP_SCHEMA_NODES_MAX))
            r = hzp_fail(reterr, HZP_EINVAL,
                         "schema: too large: more than %d parts, or %d nodes of its rules",
                         HZP_SCHEMA_NODES_MAX, HZP_RULES_NODES_MAX);
    }
    free(s.item);
    return r;
}
