/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema_object.c - objects of a schema. */
#include "text/grammar/schema_parts.h"

enum { PATTERNS_MAX = 16, CLASSES_MAX = 64 };

struct object {
    struct hzp_schema *s;
    const struct hzp_schema_item *at;
    json_t *names;        /* an object: declared and required names, in order; true: required */
    const char **pattern; /* [patterns] of patternProperties */
    int32_t patterns;
    const json_t **list; /* [lists] schemas of one member */
    int32_t lists, room;
    bool forbidden; /* no value satisfies the list */
    /* Behind the properties so far, by their number; the last: so many or more. */
    int32_t *node;
    int32_t last, least, most; /* most -1: any number */
    int32_t required;
};

/* ---- what a member must satisfy ---- */

static void add(struct object *o, const json_t *schema)
{
    o->list = hzp_xgrow(o->list, &o->room, o->lists + 1, sizeof(*o->list));
    o->list[o->lists++] = schema;
    o->forbidden |= json_is_false(schema);
}

/* Which patterns a name satisfies, as bits; false: that cannot be told. */
static bool patterns_of(struct object *o, const char *name, uint32_t *ret)
{
    *ret = 0;
    for (int32_t i = 0; i < o->patterns; i++) {
        const char *p = o->pattern[i];
        int found = hzp_schema_matches(o->s, p, strlen(p), name, strlen(name));
        if (found < 0)
            return false;
        *ret |= (uint32_t)found << i;
    }
    return true;
}

/* The schemas of a member; name NULL: of one that is not declared and satisfies these patterns. */
static void collect(struct object *o, const char *name, uint32_t patterns)
{
    o->lists = 0;
    o->forbidden = false;
    for (int32_t k = 0; k < o->at->schemas; k++) {
        const json_t *schema = o->at->schema[k],
                     *own =
                         name ? json_object_get(json_object_get(schema, "properties"), name) : NULL,
                     *by = json_object_get(schema, "patternProperties"),
                     *more = json_object_get(schema, "additionalProperties");
        bool any = own != NULL;
        if (own)
            add(o, own);
        for (int32_t i = 0; i < o->patterns; i++) {
            const json_t *each = patterns >> i & 1 ? json_object_get(by, o->pattern[i]) : NULL;
            any |= each != NULL;
            if (each)
                add(o, each);
        }
        if (!any && more)
            add(o, more);
    }
}

/* Whether propertyNames admit the name; -1: that cannot be told. */
static int name_valid(struct object *o, const char *name)
{
    int valid = 1;
    json_auto_t *text = json_string(name);
    for (int32_t k = 0; k < o->at->schemas && valid > 0; k++) {
        const json_t *names = json_object_get(o->at->schema[k], "propertyNames");
        if (names)
            valid = hzp_schema_valid(o->s, text, names, 0);
    }
    return valid;
}

/* ---- declared members ---- */

static int32_t add_value(struct object *o, int32_t from, int32_t rule)
{
    from = hzp_json_blanks(o->s, hzp_rules_text(o->s->rules, from, ":", 1));
    return hzp_rules_then(o->s->rules, from, rule);
}

/* Whether the number of members matters, beyond none and some. */
static bool counts(const struct object *o)
{
    return o->last > 1 || o->most >= 0;
}

/* Where a further one begins behind c members: behind the brace, or a comma.  -1: nowhere. */
static int32_t begin_member(struct object *o, int32_t c)
{
    struct hzp_rules *rules = o->s->rules;
    bool both = !counts(o); /* none and some go on alike */
    int32_t some = c ? o->node[c] : both ? o->node[1] : -1;
    if ((both && c) || (c == o->last && o->most >= 0 && !both) || o->most == 0)
        return -1;
    int32_t begin = hzp_rules_node(rules);
    if (!c)
        hzp_rules_empty(rules, o->node[0], begin);
    if (some >= 0)
        hzp_rules_empty(rules, hzp_json_blanks(o->s, hzp_rules_text(rules, some, ",", 1)), begin);
    return begin;
}

/* A member with a name: from each number of members to the next. */
static void add_property(struct object *o, const char *name, int32_t rule, bool required)
{
    struct hzp_rules *rules = o->s->rules;
    int32_t *to = hzp_xcalloc((size_t)o->last + 1, sizeof(*to));
    for (int32_t c = 0; c <= o->last; c++)
        to[c] = hzp_rules_node(rules);
    for (int32_t c = 0; c <= o->last; c++) {
        int32_t begin = begin_member(o, c);
        if (begin < 0)
            continue;
        int32_t end = add_value(o, hzp_json_text(o->s, begin, name, strlen(name)), rule);
        hzp_rules_empty(rules, end, to[HZP_MIN(c + 1, o->last)]);
    }
    for (int32_t c = 0; c <= o->last && !required; c++)
        hzp_rules_empty(rules, o->node[c], to[c]);
    free(o->node);
    o->node = to;
}

static int add_declared(struct object *o)
{
    const char *name;
    json_t *required;
    uint32_t patterns;
    json_object_foreach(o->names, name, required)
    {
        if (o->s->rules->full) /* refused in any case */
            return HZP_OK;
        int valid = name_valid(o, name);
        if (valid < 0 || !patterns_of(o, name, &patterns))
            return hzp_schema_refuse(o->s, o->at, valid < 0 ? "propertyNames" : "patternProperties",
                                     "is not supported with this");
        collect(o, name, patterns);
        bool must = json_is_true(required);
        o->required += must;
        if ((o->forbidden || !valid) && !must)
            continue;
        /* one that must be there and must not: its rule takes nothing */
        const json_t *none = json_false();
        int32_t rule = valid
                           ? hzp_schema_rule_of(o->s, o->at, "properties", name, o->list, o->lists)
                           : hzp_schema_rule_of(o->s, o->at, "propertyNames", name, &none, 1);
        add_property(o, name, rule, must);
    }
    return HZP_OK;
}

/* ---- other members ---- */

/* Names that are not declared, and which patterns they satisfy. */
struct class_of_names {
    struct hzp_regular *names;
    uint32_t patterns;
};

/* Contents of names that satisfy a schema; NULL in *ret: all do. */
static int names_of(struct object *o, const json_t *schema, struct hzp_regular **ret)
{
    if (json_object_size(schema) == 1) /* else what stands beside a reference counts */
        schema = hzp_schema_followed(o->s, schema);
    const struct hzp_schema_item at = {
        .schema = &schema, .schemas = 1, .rule = o->at->rule, .path = "$/propertyNames"};
    *ret = NULL;
    if (json_is_true(schema))
        return HZP_OK;
    if (!hzp_schema_is_text(schema))
        return hzp_schema_refuse(
            o->s, o->at, "propertyNames",
            "is supported with pattern, format, enum, const, lengths, or a $ref");
    return hzp_schema_contents(o->s, &at, HZP_SPELL_JSON, ret);
}

static int too_large(const struct object *o)
{
    return hzp_schema_refuse(o->s, o->at, "properties", "has names that are too large together");
}

/* Replaces *names, which may be NULL, by what is left. */
static int leave(struct object *o, struct hzp_regular **names, struct hzp_regular *left)
{
    hzp_regular_destroy(*names);
    *names = left;
    return left ? HZP_OK : too_large(o);
}

/* All names but the declared ones, as propertyNames admit them. */
static int other_names(struct object *o, struct hzp_regular **ret)
{
    struct hzp_rules *rules = hzp_rules_create();
    struct hzp_schema scratch = {.rules = rules};
    const struct hzp_regular *any = hzp_json_contents(o->s);
    int32_t from = hzp_rules_node(rules), to = hzp_rules_node(rules);
    const char *name;
    json_t *value;
    json_object_foreach(o->names, name, value)
        hzp_rules_empty(rules, hzp_json_inner(&scratch, from, name, strlen(name)), to);
    struct hzp_regular *declared = hzp_regular_create(rules, from, to);
    hzp_rules_destroy(rules);
    *ret = any && declared ? hzp_regular_without(any, declared) : NULL;
    hzp_regular_destroy(declared);
    if (!*ret)
        return too_large(o);
    for (int32_t k = 0; k < o->at->schemas; k++) {
        const json_t *names = json_object_get(o->at->schema[k], "propertyNames");
        struct hzp_regular *admitted = NULL;
        if (names && json_is_false(names))
            HZP_TRY(leave(o, ret, hzp_regular_without(any, any)));
        else if (names)
            HZP_TRY(names_of(o, names, &admitted));
        if (admitted && !hzp_regular_limit(ret, admitted, false))
            return too_large(o);
    }
    return HZP_OK;
}

/* Divides each class by whether its names satisfy pattern i. */
static int divide(struct object *o, int32_t i, struct class_of_names *class, int32_t *count)
{
    const json_t *schema =
        hzp_schema_made(o->s, json_pack("{s:s, s:s}", "type", "string", "pattern", o->pattern[i]));
    const struct hzp_schema_item at = {
        .schema = &schema, .schemas = 1, .rule = o->at->rule, .path = "$/patternProperties"};
    struct hzp_regular *found = NULL;
    HZP_TRY(hzp_schema_contents(o->s, &at, HZP_SPELL_JSON, &found));
    if (!found) /* too much was made already, and the pattern's schema was not */
        return too_large(o);
    int32_t n = *count;
    int r = HZP_OK;
    for (int32_t c = 0; c < n && r == HZP_OK; c++) {
        struct hzp_regular *with = hzp_regular_both(class[c].names, found);
        r = leave(o, &class[c].names, hzp_regular_without(class[c].names, found));
        if (!with || *count == CLASSES_MAX) {
            hzp_regular_destroy(with);
            r = too_large(o);
        } else if (hzp_regular_empty(with)) {
            hzp_regular_destroy(with);
        } else {
            class[*count].names = with;
            class[(*count)++].patterns = class[c].patterns | 1u << i;
        }
    }
    hzp_regular_destroy(found);
    return r;
}

/* Members of one class, any number of them, behind the declared ones. */
static int add_class(struct object *o, const struct class_of_names *class)
{
    struct hzp_rules *rules = o->s->rules;
    collect(o, NULL, class->patterns);
    if (o->forbidden || hzp_regular_empty(class->names))
        return HZP_OK;
    if (o->least > 1 && o->least > o->required + 1)
        return hzp_schema_refuse(o->s, o->at, "minProperties",
                                 "is supported above 1 only where additionalProperties is false");
    int32_t value = hzp_schema_rule_of(o->s, o->at, "additionalProperties", "", o->list, o->lists);
    int32_t rule = hzp_rules_add(rules, "other name", 10);
    int32_t quote = hzp_rules_text(rules, rules->rule[rule].first, "\"", 1);
    hzp_rules_bytes(rules, hzp_regular_add(rules, quote, class->names), '"', '"',
                    rules->rule[rule].last);
    for (int32_t c = 0; c <= o->last; c++) {
        int32_t begin = c + 1 < o->least ? -1 : begin_member(o, c);
        if (begin < 0)
            continue;
        int32_t end = add_value(o, hzp_rules_then(rules, begin, rule), value);
        hzp_rules_empty(rules, end, o->node[HZP_MIN(c + 1, o->last)]);
    }
    return HZP_OK;
}

static int add_others(struct object *o)
{
    struct class_of_names class[CLASSES_MAX] = {{0}};
    int32_t count = 1;
    bool closed = false;
    for (int32_t k = 0; k < o->at->schemas; k++)
        closed |= json_is_false(json_object_get(o->at->schema[k], "additionalProperties"));
    if (closed && !o->patterns) /* there are none */
        return HZP_OK;
    int r = other_names(o, &class[0].names);
    for (int32_t i = 0; i < o->patterns && r == HZP_OK; i++)
        r = divide(o, i, class, &count);
    for (int32_t c = 0; c < count && r == HZP_OK; c++)
        r = add_class(o, &class[c]);
    for (int32_t c = 0; c < count; c++)
        hzp_regular_destroy(class[c].names);
    return r;
}

/* ---- the object ---- */

static int read_names(struct object *o)
{
    const char *name;
    json_t *each;
    size_t i;
    for (int32_t k = 0; k < o->at->schemas; k++) {
        const json_t *properties = json_object_get(o->at->schema[k], "properties");
        if (properties && !json_is_object(properties))
            return hzp_schema_refuse(o->s, o->at, "properties", "must be an object");
        json_object_foreach((json_t *)properties, name, each) if (!json_object_get(o->names, name))
            json_object_set_new(o->names, name, json_false());
    }
    for (int32_t k = 0; k < o->at->schemas; k++) {
        const json_t *required = json_object_get(o->at->schema[k], "required");
        if (required && !json_is_array(required))
            return hzp_schema_refuse(o->s, o->at, "required", "must be a list");
        json_array_foreach(required, i, each)
        {
            if (!json_is_string(each) ||
                strlen(json_string_value(each)) != json_string_length(each))
                return hzp_schema_refuse(o->s, o->at, "required",
                                         "must be a list of strings without \\u0000");
            json_object_set_new(o->names, json_string_value(each), json_true());
        }
    }
    return HZP_OK;
}

static int read_patterns(struct object *o)
{
    const char *pattern;
    json_t *each;
    for (int32_t k = 0; k < o->at->schemas; k++) {
        const json_t *by = json_object_get(o->at->schema[k], "patternProperties");
        if (by && !json_is_object(by))
            return hzp_schema_refuse(o->s, o->at, "patternProperties", "must be an object");
        json_object_foreach((json_t *)by, pattern, each)
        {
            bool known = false;
            for (int32_t i = 0; i < o->patterns; i++)
                known |= !strcmp(o->pattern[i], pattern);
            if (o->patterns == PATTERNS_MAX && !known)
                return hzp_schema_refuse(o->s, o->at, "patternProperties",
                                         "has more than 16 patterns");
            if (!known)
                o->pattern[o->patterns++] = pattern;
        }
    }
    return HZP_OK;
}

/* Whether any object will do. */
static bool is_free(const struct object *o)
{
    bool free_names = !json_object_size(o->names) && !o->patterns && !o->least && o->most < 0;
    for (int32_t k = 0; k < o->at->schemas && free_names; k++) {
        const json_t *more = json_object_get(o->at->schema[k], "additionalProperties");
        free_names =
            (!more || json_is_true(more)) && !json_object_get(o->at->schema[k], "propertyNames");
    }
    return free_names;
}

static int make_object(struct object *o, int32_t from, int32_t *ret)
{
    struct hzp_rules *rules = o->s->rules;
    HZP_TRY(hzp_schema_count(o->s, o->at, "minProperties", true, &o->least));
    HZP_TRY(hzp_schema_count(o->s, o->at, "maxProperties", false, &o->most));
    HZP_TRY(read_names(o));
    HZP_TRY(read_patterns(o));
    if (is_free(o)) {
        *ret = hzp_rules_then(rules, from, hzp_json_object(o->s));
        return HZP_OK;
    }
    o->last = HZP_MAX(o->most >= 0 ? o->most : o->least, 1);
    o->node = hzp_xcalloc((size_t)o->last + 1, sizeof(*o->node));
    o->node[0] = hzp_json_blanks(o->s, hzp_rules_text(rules, from, "{", 1));
    for (int32_t c = 1; c <= o->last; c++)
        o->node[c] = hzp_rules_node(rules);
    HZP_TRY(add_declared(o));
    HZP_TRY(add_others(o));
    *ret = hzp_rules_node(rules);
    for (int32_t c = o->least; c <= o->last; c++)
        hzp_rules_bytes(rules, c ? hzp_json_blanks(o->s, o->node[c]) : o->node[0], '}', '}', *ret);
    return HZP_OK;
}

int hzp_schema_object(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                      int32_t *ret)
{
    const char *pattern[PATTERNS_MAX];
    struct object o = {.s = s, .at = at, .names = json_object(), .pattern = pattern, .most = -1};
    int r = make_object(&o, from, ret);
    json_decref(o.names);
    free(o.list);
    free(o.node);
    return r;
}
