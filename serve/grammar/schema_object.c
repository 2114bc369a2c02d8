/* SPDX-License-Identifier: Apache-2.0 */
/* serve/grammar/schema_object.c - objects and arrays of a schema. */
#include "base/arena.h"
#include "serve/grammar/schema_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names that are not declared ---- */

/* A node for each beginning of a declared name: a tree by code points. */
struct name_node {
    uint32_t code;
    int32_t child, sibling; /* -1: none */
    int32_t node;           /* of the rule */
    bool whole;             /* a declared name */
};

struct names {
    struct name_node *node;
    int32_t nodes, room;
};

static int32_t new_name_node(struct names *n, uint32_t code, int32_t sibling)
{
    if (n->nodes == n->room) {
        n->room = HZP_MAX(2 * n->room, 32);
        n->node = hzp_xrealloc(n->node, (size_t)n->room * sizeof(*n->node));
    }
    n->node[n->nodes] = (struct name_node){.code = code, .child = -1, .sibling = sibling};
    return n->nodes++;
}

static void add_name(struct names *n, const char *name)
{
    size_t bytes = strlen(name);
    int32_t at = 0;
    for (size_t i = 0; i < bytes;) {
        uint32_t code = hzp_code_read(name, bytes, &i);
        int32_t child = n->node[at].child;
        if (code == UINT32_MAX)
            return;
        while (child >= 0 && n->node[child].code != code)
            child = n->node[child].sibling;
        if (child < 0) {
            child = new_name_node(n, code, n->node[at].child);
            n->node[at].child = child;
        }
        at = child;
    }
    n->node[at].whole = true;
}

/* A rule of all names but those of the tree, with quotes. */
static int32_t other_name(struct hzp_schema *s, struct names *n)
{
    int32_t rule = hzp_rules_add(s->rules, "other name", 10);
    int32_t last = s->rules->rule[rule].last, free_node = hzp_rules_node(s->rules);
    struct hzp_codes any = {0};
    hzp_codes_add(&any, 0, HZP_CODE_LAST);
    hzp_codes_edges(s->rules, free_node, &any, HZP_SPELL_JSON, free_node);
    hzp_rules_bytes(s->rules, free_node, '"', '"', last);
    for (int32_t i = 0; i < n->nodes; i++)
        n->node[i].node = hzp_rules_node(s->rules);
    hzp_rules_bytes(s->rules, s->rules->rule[rule].first, '"', '"', n->node[0].node);
    for (int32_t i = 0; i < n->nodes; i++) {
        const struct name_node *at = &n->node[i];
        struct hzp_codes others = {0};
        for (int32_t c = at->child; c >= 0; c = n->node[c].sibling) {
            struct hzp_codes one = {0};
            hzp_codes_add(&one, n->node[c].code, n->node[c].code);
            hzp_codes_edges(s->rules, at->node, &one, HZP_SPELL_JSON, n->node[c].node);
            hzp_codes_add(&others, n->node[c].code, n->node[c].code);
        }
        hzp_codes_invert(&others);
        hzp_codes_edges(s->rules, at->node, &others, HZP_SPELL_JSON, free_node);
        if (!at->whole)
            hzp_rules_bytes(s->rules, at->node, '"', '"', last);
    }
    return rule;
}

/* ---- objects ---- */

struct object {
    struct hzp_schema *s;
    const struct hzp_schema_item *at;
    const json_t *properties, *required, *more; /* more: schema of other properties; NULL: any */
    struct names names;
    /* behind the properties so far: where none is written, where some are */
    int32_t none, some;
};

static bool is_required(const struct object *o, const char *name)
{
    size_t i;
    const json_t *each;
    json_array_foreach(o->required, i, each)
    {
        if (!strcmp(json_string_value(each), name))
            return true;
    }
    return false;
}

/* A value behind a name that ends at `from`. */
static int32_t add_value(struct object *o, int32_t from, int32_t rule)
{
    from = hzp_json_blanks(o->s, hzp_rules_text(o->s->rules, from, ":", 1));
    return hzp_rules_then(o->s->rules, from, rule);
}

/* Where a member may begin: behind the brace, or behind another one and a comma. */
static int32_t begin_member(struct object *o)
{
    int32_t begin = hzp_rules_node(o->s->rules);
    hzp_rules_empty(o->s->rules, o->none, begin);
    int32_t comma = hzp_rules_text(o->s->rules, o->some, ",", 1);
    hzp_rules_empty(o->s->rules, hzp_json_blanks(o->s, comma), begin);
    return begin;
}

static void add_property(struct object *o, const char *name, int32_t rule, bool required)
{
    struct hzp_rules *rules = o->s->rules;
    int32_t none = hzp_rules_node(rules), some = hzp_rules_node(rules);
    int32_t at = hzp_json_text(o->s, begin_member(o), name, strlen(name));
    hzp_rules_empty(rules, add_value(o, at, rule), some);
    if (!required) {
        hzp_rules_empty(rules, o->none, none);
        hzp_rules_empty(rules, o->some, some);
    }
    o->none = none;
    o->some = some;
    add_name(&o->names, name);
}

static void add_others(struct object *o)
{
    struct hzp_rules *rules = o->s->rules;
    if (json_is_false(o->more))
        return;
    int32_t value = o->more ? hzp_schema_rule(o->s, o->at, "additionalProperties", "", o->more)
                            : hzp_json_value(o->s);
    int32_t begin = begin_member(o);
    int32_t at = hzp_rules_then(rules, begin, other_name(o->s, &o->names));
    hzp_rules_empty(rules, add_value(o, at, value), o->some);
}

static int check_object(struct object *o)
{
    const struct hzp_schema_item *at = o->at;
    size_t i;
    const json_t *each;
    o->properties = json_object_get(at->schema, "properties");
    o->required = json_object_get(at->schema, "required");
    o->more = json_object_get(at->schema, "additionalProperties");
    if (o->properties && !json_is_object(o->properties))
        return hzp_schema_refuse(o->s, at, "properties", "must be an object");
    if (o->required && !json_is_array(o->required))
        return hzp_schema_refuse(o->s, at, "required", "must be a list");
    json_array_foreach(o->required, i, each)
    {
        if (!json_is_string(each))
            return hzp_schema_refuse(o->s, at, "required", "must be a list of strings");
    }
    return HZP_OK;
}

int hzp_schema_object(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                      int32_t *ret)
{
    struct object o = {.s = s, .at = at};
    struct hzp_rules *rules = s->rules;
    const char *name;
    json_t *schema;
    size_t i;
    const json_t *each;
    HZP_TRY(check_object(&o));
    if (!o.properties && !o.required && (!o.more || json_is_true(o.more))) {
        *ret = hzp_rules_then(rules, from, hzp_json_object(s));
        return HZP_OK;
    }
    new_name_node(&o.names, 0, -1);
    o.none = hzp_json_blanks(s, hzp_rules_text(rules, from, "{", 1));
    o.some = hzp_rules_node(rules);
    json_object_foreach((json_t *)o.properties, name, schema) add_property(
        &o, name, hzp_schema_rule(s, at, "properties", name, schema), is_required(&o, name));
    json_array_foreach(o.required, i, each)
    {
        name = json_string_value(each);
        bool known = json_object_get(o.properties, name) != NULL;
        for (size_t k = 0; k < i; k++)
            known |= !strcmp(name, json_string_value(json_array_get(o.required, k)));
        int32_t rule = known    ? 0
                       : o.more ? hzp_schema_rule(s, at, "additionalProperties", "", o.more)
                                : hzp_json_value(s);
        if (!known)
            add_property(&o, name, rule, true);
    }
    add_others(&o);
    *ret = hzp_rules_text(rules, o.none, "}", 1);
    int32_t end = hzp_json_blanks(s, o.some);
    hzp_rules_bytes(rules, end, '}', '}', *ret);
    free(o.names.node);
    return HZP_OK;
}

/* ---- arrays ---- */

/* The schema of the i-th item; NULL: any. */
struct items {
    const json_t *first; /* a list: those of the first items */
    const json_t *rest;
    const char *first_name, *rest_name;
};

static struct items items_of(const struct hzp_schema_item *at)
{
    const json_t *items = json_object_get(at->schema, "items");
    const json_t *prefix = json_object_get(at->schema, "prefixItems");
    if (!json_is_array(items)) /* 2020-12 */
        return (struct items){prefix, items, "prefixItems", "items"};
    return (struct items){items, json_object_get(at->schema, "additionalItems"), "items",
                          "additionalItems"};
}

static int32_t item_rule(struct hzp_schema *s, const struct hzp_schema_item *at,
                         const struct items *items, int32_t i)
{
    char index[24];
    const json_t *own = json_array_get(items->first, (size_t)i);
    snprintf(index, sizeof(index), "%d", i);
    if (own)
        return hzp_schema_rule(s, at, items->first_name, index, own);
    return items->rest ? hzp_schema_rule(s, at, items->rest_name, "", items->rest)
                       : hzp_json_value(s);
}

int hzp_schema_array(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                     int32_t *ret)
{
    struct hzp_rules *rules = s->rules;
    struct items items = items_of(at);
    int32_t least = 0, most = -1;
    HZP_TRY(hzp_schema_count(s, at, "minItems", &least));
    HZP_TRY(hzp_schema_count(s, at, "maxItems", &most));
    if (items.first && !json_is_array(items.first))
        return hzp_schema_refuse(s, at, items.first_name, "must be a list");
    int32_t known = (int32_t)HZP_MIN(json_array_size(items.first), (size_t)HZP_REPEAT_MAX);
    int32_t steps = HZP_MAX(HZP_MAX(known, least), most); /* items that have nodes of their own */
    if (most >= 0)
        steps = most;
    int32_t open = hzp_json_blanks(s, hzp_rules_text(rules, from, "[", 1));
    int32_t at_item = open; /* where the next item may begin, or the list may end */
    *ret = hzp_rules_node(rules);
    for (int32_t i = 0; i < steps + (most < 0); i++) {
        bool loops = i == steps;
        if (i >= least)
            hzp_rules_bytes(rules, i ? hzp_json_blanks(s, at_item) : open, ']', ']', *ret);
        int32_t begin = at_item;
        if (i)
            begin = hzp_json_blanks(s, hzp_rules_text(rules, at_item, ",", 1));
        int32_t end = hzp_rules_then(rules, begin, item_rule(s, at, &items, i));
        if (loops && i) {
            hzp_rules_empty(rules, end, at_item);
        } else if (loops) { /* from the second item on there is a comma */
            int32_t next = hzp_json_blanks(s, hzp_rules_text(rules, end, ",", 1));
            hzp_rules_call(rules, next, item_rule(s, at, &items, i), end);
            hzp_rules_bytes(rules, hzp_json_blanks(s, end), ']', ']', *ret);
        }
        at_item = end;
    }
    if (most >= 0 && most >= least)
        hzp_rules_bytes(rules, steps ? hzp_json_blanks(s, at_item) : open, ']', ']', *ret);
    return HZP_OK;
}
