/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema_array.c - arrays of a schema. */
#include "text/grammar/schema_parts.h"

/* What one schema says of the items. */
struct items {
    const json_t *first; /* a list: those of the first items */
    const json_t *rest;  /* NULL: any */
};

static struct items items_of(const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items");
    if (!json_is_array(items)) /* 2020-12 */
        return (struct items){json_object_get(schema, "prefixItems"), items};
    return (struct items){items, json_object_get(schema, "additionalItems")};
}

static int32_t item_rule(struct hzp_schema *s, const struct hzp_schema_item *at,
                         const json_t **list, int32_t i)
{
    char index[24];
    int32_t n = 0;
    for (int32_t k = 0; k < at->schemas; k++) {
        struct items items = items_of(at->schema[k]);
        const json_t *own = json_array_get(items.first, (size_t)i);
        if (own || items.rest)
            list[n++] = own ? own : items.rest;
    }
    snprintf(index, sizeof(index), "%d", i);
    return hzp_schema_rule_of(s, at, "items", index, list, n);
}

static int read_array(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t *ret_least,
                      int32_t *ret_most, int32_t *ret_known)
{
    *ret_least = *ret_known = 0;
    *ret_most = -1;
    HZP_TRY(hzp_schema_count(s, at, "minItems", true, ret_least));
    HZP_TRY(hzp_schema_count(s, at, "maxItems", false, ret_most));
    for (int32_t i = 0; i < at->schemas; i++) {
        const json_t *first = items_of(at->schema[i]).first;
        if (first && !json_is_array(first))
            return hzp_schema_refuse(s, at, "prefixItems", "must be a list");
        if (json_array_size(first) > (size_t)HZP_REPEAT_MAX)
            return hzp_schema_refuse(s, at, "prefixItems", "has more than 4096 entries");
        int32_t known = (int32_t)json_array_size(first);
        *ret_known = HZP_MAX(*ret_known, known);
    }
    return HZP_OK;
}

int hzp_schema_array(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                     int32_t *ret)
{
    struct hzp_rules *rules = s->rules;
    int32_t least, most, known;
    HZP_TRY(read_array(s, at, &least, &most, &known));
    HZP_FREED const json_t **list = hzp_xcalloc((size_t)at->schemas, sizeof(*list));
    /* items that have nodes of their own */
    int32_t steps = most >= 0 ? most : HZP_MAX(known, least);
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
        int32_t end = hzp_rules_then(rules, begin, item_rule(s, at, list, i));
        if (loops && i) {
            hzp_rules_empty(rules, end, at_item);
        } else if (loops) { /* from the second item on there is a comma */
            int32_t next = hzp_json_blanks(s, hzp_rules_text(rules, end, ",", 1));
            hzp_rules_call(rules, next, item_rule(s, at, list, i), end);
            hzp_rules_bytes(rules, hzp_json_blanks(s, end), ']', ']', *ret);
        }
        at_item = end;
    }
    if (most >= 0 && most >= least)
        hzp_rules_bytes(rules, steps ? hzp_json_blanks(s, at_item) : open, ']', ']', *ret);
    return HZP_OK;
}
