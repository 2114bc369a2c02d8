/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema_combine.c - rewrites items whose schemas refer or combine: each alternative
 * becomes a list of schemas, which is an item of its own. */
#include "text/grammar/schema_parts.h"

enum { ONE_OF_MAX = 256, OVERLAPS_MAX = 16 };

/* One schema's keyword, and all else that the item asks for. */
struct combining {
    struct hzp_schema *s;
    const struct hzp_schema_item *at;
    const char *keyword;
    const json_t *value;
    const json_t **list; /* [room] what stays, then what an alternative adds */
    int32_t stays, n, room;
};

static void add(struct combining *c, const json_t *schema)
{
    c->list = hzp_xgrow(c->list, &c->room, c->n + 1, sizeof(*c->list));
    c->list[c->n++] = schema;
}

/* What stays and what was added since is an alternative. */
static void alternative(struct combining *c, const char *name)
{
    struct hzp_rules *rules = c->s->rules;
    const struct hzp_rule *own = &rules->rule[c->at->rule];
    int32_t from = own->first, to = own->last;
    int32_t rule = hzp_schema_rule_of(c->s, c->at, c->keyword, name, c->list, c->n);
    hzp_rules_call(rules, from, rule, to);
    c->n = c->stays;
}

static const json_t *made_not(struct hzp_schema *s, const json_t *schema)
{
    return hzp_schema_made(s, json_pack("{s:O}", "not", schema));
}

/* ---- keywords ---- */

static int expand_reference(struct combining *c, const json_t *schema)
{
    const char *text = json_string_value(c->value);
    const json_t *target = text ? hzp_schema_resolve(c->s, text) : NULL;
    char why[128];
    if (!target) {
        snprintf(why, sizeof(why), "refers to \"%.64s\", which is not in the schema",
                 text ? text : "");
        return hzp_schema_refuse(c->s, c->at, "$ref", why);
    }
    const struct hzp_schema_item root = {.rule = c->at->rule, .path = "$"};
    const struct hzp_schema_item *at = c->at;
    add(c, target);
    c->keyword = text;
    c->at = &root;
    alternative(c, "");
    c->at = at;
    return HZP_OK;
}

/* allOf, anyOf */
static int expand_list(struct combining *c, const json_t *schema)
{
    char index[24];
    size_t i;
    const json_t *each;
    bool all = c->keyword[1] == 'l';
    if (!json_array_size(c->value))
        return hzp_schema_refuse(c->s, c->at, c->keyword, "must be a list that is not empty");
    json_array_foreach(c->value, i, each)
    {
        snprintf(index, sizeof(index), "%zu", i);
        add(c, each);
        if (!all)
            alternative(c, index);
    }
    if (all)
        alternative(c, "");
    return HZP_OK;
}

/* Each alternative, without those others that a value might satisfy too.  The alternatives of a
 * discriminator all have its member, as OpenAPI asks, whether they require it or not. */
static int expand_one_of(struct combining *c, const json_t *schema)
{
    const char *member = json_string_value(
        json_object_get(json_object_get(schema, "discriminator"), "propertyName"));
    size_t n = json_array_size(c->value);
    char index[24];
    int overlaps = 0;
    if (n > ONE_OF_MAX)
        return hzp_schema_refuse(c->s, c->at, "oneOf", "has too many alternatives: use anyOf");
    if (!n)
        return hzp_schema_refuse(c->s, c->at, "oneOf", "must be a list that is not empty");
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(c->value, i);
        add(c, one);
        if (member)
            add(c, hzp_schema_made(c->s, json_pack("{s:[s]}", "required", member)));
        for (size_t k = 0; k < n; k++) {
            const json_t *other = json_array_get(c->value, k);
            if (k == i || hzp_schema_disjoint(c->s, one, other, member))
                continue;
            if (++overlaps > OVERLAPS_MAX || !hzp_schema_can_negate(c->s, other, 0))
                return hzp_schema_refuse(c->s, c->at, "oneOf",
                                         "has alternatives that a value might satisfy both: use "
                                         "anyOf");
            add(c, made_not(c->s, other));
        }
        snprintf(index, sizeof(index), "%zu", i);
        alternative(c, index);
    }
    return HZP_OK;
}

/* An alternative for each schema that negates the value; with: also given, or NULL. */
static int add_negations(struct combining *c, const json_t *with)
{
    json_auto_t *list = json_array();
    size_t i;
    const json_t *each;
    int r = hzp_schema_negate(c->s, c->at, c->value, list);
    json_array_foreach(list, i, each)
    {
        if (r < 0)
            break;
        add(c, each);
        if (with)
            add(c, with);
        alternative(c, "");
    }
    return r;
}

static int expand_not(struct combining *c, const json_t *schema)
{
    return add_negations(c, NULL);
}

static int expand_if(struct combining *c, const json_t *schema)
{
    const json_t *then = json_object_get(schema, "then"),
                 *otherwise = json_object_get(schema, "else");
    if (!then && !otherwise) {
        alternative(c, "");
        return HZP_OK;
    }
    add(c, c->value);
    if (then)
        add(c, then);
    alternative(c, "");
    return add_negations(c, otherwise);
}

/* {"a": ["b"]}: no a, or a and b; {"a": schema}: no a, or a and what the schema says. */
static int expand_dependent(struct combining *c, const json_t *schema)
{
    const char *name;
    json_t *each, *with;
    if (!json_is_object(c->value))
        return hzp_schema_refuse(c->s, c->at, c->keyword, "must be an object");
    json_object_foreach((json_t *)c->value, name, each)
    {
        bool names = json_is_array(each);
        if (names ? !strcmp(c->keyword, "dependentSchemas")
                  : !strcmp(c->keyword, "dependentRequired"))
            return hzp_schema_refuse(c->s, c->at, c->keyword, "has a value of another kind");
        with = names ? json_pack("{s:O}", "required", each) : json_incref(each);
        add(c, hzp_schema_made(c->s,
                               json_pack("{s:[{s:{s:b}}, {s:[{s:[s]}, o]}]}", "anyOf", "properties",
                                         name, false, "allOf", "required", name, with)));
    }
    alternative(c, "");
    return HZP_OK;
}

/* The schema without the keyword, if it says anything then. */
static void keep_rest(struct combining *c, const json_t *schema)
{
    json_t *copy = json_object(), *value;
    const char *key;
    bool conditional = !strcmp(c->keyword, "if");
    json_object_foreach((json_t *)schema, key, value)
    {
        bool own = !strcmp(key, c->keyword) ||
                   (conditional && (!strcmp(key, "then") || !strcmp(key, "else")));
        if (!own && !hzp_schema_is_annotation(key))
            json_object_set(copy, key, value);
    }
    if (json_object_size(copy))
        add(c, hzp_schema_made(c->s, copy));
    else
        json_decref(copy);
}

int hzp_schema_combine(struct hzp_schema *s, const struct hzp_schema_item *at)
{
    static const struct {
        const char *keyword;
        int (*expand)(struct combining *c, const json_t *schema);
    } rows[] = {{"$ref", expand_reference},
                {"allOf", expand_list},
                {"anyOf", expand_list},
                {"oneOf", expand_one_of},
                {"if", expand_if},
                {"not", expand_not},
                {"dependentRequired", expand_dependent},
                {"dependentSchemas", expand_dependent},
                {"dependencies", expand_dependent}};
    struct combining c = {.s = s, .at = at};
    const json_t *schema = NULL;
    int row = 0;
    for (int32_t i = 0; i < at->schemas && !schema; i++)
        for (int k = 0; k < HZP_COUNT(rows) && !schema; k++) {
            c.keyword = rows[row = k].keyword;
            c.value = json_object_get(at->schema[i], c.keyword);
            if (c.value && !(!strcmp(c.keyword, "not") && hzp_schema_is_leaf(at->schema[i])))
                schema = at->schema[i];
        }
    if (!schema)
        return 0;
    for (int32_t i = 0; i < at->schemas; i++)
        if (at->schema[i] != schema)
            add(&c, at->schema[i]);
        else if (!(s->ref_alone && !strcmp(c.keyword, "$ref")))
            keep_rest(&c, schema);
    c.stays = c.n;
    int r = rows[row].expand(&c, schema);
    free(c.list);
    return r < 0 ? r : 1;
}
