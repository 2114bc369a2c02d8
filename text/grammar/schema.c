/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema.c - keeps the items of a JSON Schema, and makes the rules of plain ones. */
#include "base/words.h"
#include "text/grammar/schema_parts.h"

static const char annotations[] =
    "$schema $id id $comment title description default examples example readOnly writeOnly "
    "deprecated $defs definitions contentEncoding contentMediaType contentSchema "
    "discriminator externalDocs xml";

static const char known[] =
    "type nullable enum const $ref anyOf oneOf allOf not if then else dependentRequired "
    "dependentSchemas dependencies properties patternProperties propertyNames required "
    "additionalProperties minProperties maxProperties items prefixItems additionalItems "
    "minItems maxItems uniqueItems minLength maxLength pattern format minimum maximum "
    "exclusiveMinimum exclusiveMaximum multipleOf";

enum {
    LOOKS_MAX = 1 << 20,
    COMPARES_MAX = 1 << 30,
    MADE_BYTES_MAX = 1 << 24,
    LIST_MAX = 1 << 10,   /* schemas that one value has to satisfy */
    LISTED_MAX = 1 << 20, /* entries of all lists */
};

bool hzp_schema_is_annotation(const char *keyword)
{
    return hzp_among(annotations, keyword) || !strncmp(keyword, "x-", 2);
}

int hzp_schema_refuse(const struct hzp_schema *s, const struct hzp_schema_item *at,
                      const char *keyword, const char *why)
{
    return hzp_fail(s->reterr, HZP_EINVAL, "schema: %.64s at %s %s", keyword, at->path, why);
}

/* ---- items ---- */

/* Appends a schema to a list of n unless it is there or admits everything. */
static int32_t append(const json_t **list, int32_t n, const json_t *schema)
{
    if (json_is_true(schema) || (json_is_object(schema) && !json_object_size(schema)))
        return n;
    for (int32_t i = 0; i < n; i++)
        if (list[i] == schema)
            return n;
    list[n] = schema;
    return n + 1;
}

static int32_t find_item(const struct hzp_schema *s, const json_t *const *list, int32_t n)
{
    for (int32_t i = 0; i < s->items; i++)
        if (s->item[i].schemas == n &&
            (!n || !memcmp(s->item[i].schema, list, (size_t)n * sizeof(*list))))
            return i;
    return -1;
}

int32_t hzp_schema_rule_of(struct hzp_schema *s, const struct hzp_schema_item *at,
                           const char *keyword, const char *name, const json_t *const *given,
                           int32_t given_n)
{
    char path[HZP_SCHEMA_PATH + 256];
    s->listed += given_n;
    s->rules->full |= given_n > LIST_MAX || s->listed > LISTED_MAX;
    if (s->rules->full) /* refused in any case: not searched for each of very many parts */
        return 0;
    const json_t **list = hzp_xcalloc((size_t)given_n + 1, sizeof(*list));
    int32_t n = 0;
    for (int32_t i = 0; i < given_n; i++)
        n = append(list, n, given[i]);
    int32_t found = find_item(s, list, n);
    if (found >= 0) {
        free(list);
        return s->item[found].rule;
    }
    snprintf(path, sizeof(path), "%s%s%.64s%s%.64s", at ? at->path : "$", *keyword ? "/" : "",
             keyword, *name ? "/" : "", name);
    s->item = hzp_xgrow(s->item, &s->items_room, s->items + 1, sizeof(*s->item));
    struct hzp_schema_item *item = &s->item[s->items++];
    memset(item, 0, sizeof(*item));
    item->schema = list;
    item->schemas = n;
    size_t length = strlen(path);
    memcpy(item->path, path, HZP_MIN(length, sizeof(item->path) - 1));
    item->rule = hzp_rules_add(s->rules, item->path, strlen(item->path));
    return item->rule;
}

const json_t *hzp_schema_made(struct hzp_schema *s, json_t *schema)
{
    if (s->rules->full) { /* refused in any case */
        json_decref(schema);
        return json_true();
    }
    HZP_FREED char *text = hzp_json_dumps(schema, JSON_COMPACT);
    json_t *known_one = text ? json_object_get(s->made, text) : NULL;
    s->made_bytes += text ? strlen(text) : 0;
    if (!text || s->made_bytes > MADE_BYTES_MAX) {
        s->rules->full = true;
        known_one = json_true();
    } else if (!known_one) {
        json_object_set(s->made, text, schema);
        known_one = schema;
    }
    json_decref(schema); /* if it is new, `made` has it */
    return known_one;
}

int hzp_schema_count(const struct hzp_schema *s, const struct hzp_schema_item *at,
                     const char *keyword, bool largest, int32_t *ret)
{
    bool any = false;
    int32_t most = strcmp(keyword, "maxLength") ? HZP_REPEAT_MAX : HZP_LENGTH_MAX;
    for (int32_t i = 0; i < at->schemas; i++) {
        const json_t *value = json_object_get(at->schema[i], keyword);
        if (!value)
            continue;
        double count = hzp_json_is_number(value) ? hzp_json_real(value) : -1;
        if (count < 0 || count != (double)(int64_t)HZP_MIN(count, 1e15))
            return hzp_schema_refuse(s, at, keyword, "must be a whole number that is not negative");
        if (count >= INT32_MAX && !largest) /* "none", as some programs write it */
            continue;
        if (count > most)
            return hzp_fail(s->reterr, HZP_EINVAL, "schema: %s at %s is above %d", keyword,
                            at->path, most);
        if (!any || (largest ? count > *ret : count < *ret))
            *ret = (int32_t)count;
        any = true;
    }
    return HZP_OK;
}

/* ---- references ---- */

/* A step of a JSON pointer: the member or item of `from` that is named, up to the next "/".  NULL:
 * there is none, or its name has more than 255 bytes or a NUL. */
static const json_t *pointer_step(const json_t *from, const char *step, size_t bytes)
{
    char name[256];
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        char c = step[i];
        if (c == '~' && i + 1 < bytes && (step[i + 1] == '0' || step[i + 1] == '1'))
            c = step[++i] == '0' ? '~' : '/';
        else if (c == '%' && i + 2 < bytes && hzp_code_hex(step, bytes, i + 1, 2) < 256) {
            c = (char)hzp_code_hex(step, bytes, i + 1, 2);
            i += 2;
        }
        if (!c || n + 1 == sizeof(name))
            return NULL;
        name[n++] = c;
    }
    name[n] = '\0';
    if (json_is_array(from)) {
        char *end;
        unsigned long index = strtoul(name, &end, 10);
        return name[0] >= '0' && name[0] <= '9' && !*end ? json_array_get(from, index) : NULL;
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

/* ---- plain items ---- */

static int check_keywords(const struct hzp_schema *s, const struct hzp_schema_item *at,
                          const json_t *schema)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value)
    {
        if (!hzp_schema_is_annotation(key) && !hzp_among(known, key))
            return hzp_schema_refuse(s, at, key, "is not supported");
    }
    const json_t *type = json_object_get(schema, "type");
    if (type && !hzp_type_mask(type))
        return hzp_schema_refuse(s, at, "type", "is no type");
    return HZP_OK;
}

/* Adds the value if it satisfies all schemas of the item. */
static int add_value(struct hzp_schema *s, const struct hzp_schema_item *at, const json_t *value,
                     int32_t from, int32_t to)
{
    for (int32_t i = 0; i < at->schemas; i++) {
        int valid = hzp_schema_valid(s, value, at->schema[i], 0);
        if (valid < 0)
            return hzp_schema_refuse(s, at, "enum or const",
                                     "stands beside what cannot be checked");
        if (!valid)
            return HZP_OK;
    }
    hzp_rules_empty(s->rules, hzp_json_literal(s, from, value), to);
    return HZP_OK;
}

/* Values of the first enum or const that satisfy everything else.  1: done; 0: there is none. */
static int add_values(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                      int32_t to)
{
    const json_t *list = NULL, *only = NULL, *each;
    size_t i;
    for (int32_t k = 0; k < at->schemas && !list && !only; k++) {
        only = json_object_get(at->schema[k], "const");
        list = only ? NULL : json_object_get(at->schema[k], "enum");
    }
    if (only)
        HZP_TRY(add_value(s, at, only, from, to));
    if (list && !json_is_array(list))
        return hzp_schema_refuse(s, at, "enum", "must be a list");
    json_array_foreach(list, i, each) HZP_TRY(add_value(s, at, each, from, to));
    return list || only;
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
    int types = HZP_TYPE_ALL;
    for (int32_t i = 0; i < at->schemas; i++)
        types &= hzp_schema_named_types(at->schema[i]);
    if (types & HZP_TYPE_NUMBER) /* integers are numbers */
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

static int make_item(struct hzp_schema *s, const struct hzp_schema_item *at)
{
    int32_t from = s->rules->rule[at->rule].first, to = s->rules->rule[at->rule].last;
    if (!at->schemas) {
        hzp_rules_call(s->rules, from, hzp_json_value(s), to);
        return HZP_OK;
    }
    for (int32_t i = 0; i < at->schemas; i++) {
        if (json_is_false(at->schema[i]))
            return HZP_OK;
        if (!json_is_object(at->schema[i]))
            return hzp_fail(s->reterr, HZP_EINVAL, "schema: %s is neither an object nor a boolean",
                            at->path);
    }
    for (int32_t i = 0; i < at->schemas; i++)
        HZP_TRY(check_keywords(s, at, at->schema[i]));
    int done = hzp_schema_combine(s, at);
    if (!done)
        done = add_values(s, at, from, to);
    return done ? HZP_MIN(done, HZP_OK) : add_types(s, at, from, to);
}

/* ---- the document ---- */

static void begin(struct hzp_schema *s, struct hzp_rules *rules, const json_t *document,
                  struct hzp_err_text *reterr)
{
    static const char *const earlier[] = {"draft-03", "draft-04", "draft-06", "draft-07"};
    const char *draft = json_string_value(json_object_get(document, "$schema"));
    memset(s, 0, sizeof(*s));
    s->rules = rules;
    s->document = document;
    s->reterr = reterr;
    s->looks = LOOKS_MAX;
    s->compares = COMPARES_MAX;
    s->made = json_object();
    s->pattern_of = json_object();
    for (int i = 0; draft && i < HZP_COUNT(earlier); i++)
        s->ref_alone |= strstr(draft, earlier[i]) != NULL;
    hzp_json_begin(s);
}

static void end(struct hzp_schema *s)
{
    for (int32_t i = 0; i < s->items; i++)
        free(s->item[i].schema);
    for (int32_t i = 0; i < s->patterns; i++)
        hzp_regular_destroy(s->pattern[i]);
    hzp_regular_destroy(s->any_string);
    json_decref(s->made);
    json_decref(s->pattern_of);
    free(s->pattern);
    free(s->item);
}

int hzp_schema_rules_in(struct hzp_rules *rules, const json_t *document, const json_t *schema,
                        int32_t *ret, struct hzp_err_text *reterr)
{
    struct hzp_schema s;
    int r = HZP_OK;
    if (!hzp_json_names_are_text(document))
        return hzp_fail(reterr, HZP_EINVAL, "schema: a name in it has \\u0000");
    begin(&s, rules, document, reterr);
    *ret = hzp_schema_rule_of(&s, NULL, "", "", &schema, 1);
    for (int32_t i = 0; i < s.items && r == HZP_OK; i++) {
        struct hzp_schema_item at = s.item[i]; /* the list may move */
        r = make_item(&s, &at);
        if (r == HZP_OK && (rules->full || s.items > HZP_SCHEMA_NODES_MAX))
            r = hzp_fail(reterr, HZP_EINVAL,
                         "schema: too large: more than %d parts, %d nodes of its rules, or %d "
                         "schemas that one value has to satisfy",
                         HZP_SCHEMA_NODES_MAX, HZP_RULES_NODES_MAX, LIST_MAX);
    }
    end(&s);
    return r;
}

int hzp_schema_rules(struct hzp_rules *rules, const json_t *schema, int32_t *ret,
                     struct hzp_err_text *reterr)
{
    return hzp_schema_rules_in(rules, schema, schema, ret, reterr);
}

int hzp_schema_raw(struct hzp_rules *rules, const json_t *document, const json_t *schema,
                   const struct hzp_regular *but, int32_t from, int32_t *ret,
                   struct hzp_err_text *reterr)
{
    struct hzp_schema s;
    struct hzp_regular *all = NULL;
    begin(&s, rules, document, reterr);
    const struct hzp_schema_item at = {.schema = &schema, .schemas = 1, .path = "$"};
    if (!hzp_schema_is_text(schema)) {
        end(&s);
        return hzp_fail(reterr, HZP_EINVAL,
                        "schema: a string is supported with pattern, format, enum, const and "
                        "lengths here");
    }
    int r = hzp_schema_contents(&s, &at, HZP_SPELL_PLAIN, &all);
    struct hzp_regular *made = r == HZP_OK && all ? hzp_regular_without(all, but) : NULL;
    if (made)
        *ret = hzp_regular_add(rules, from, made);
    else if (r == HZP_OK && all)
        r = hzp_fail(reterr, HZP_EINVAL, "schema: its strings are too large");
    if (r == HZP_OK)
        r = all != NULL;
    hzp_regular_destroy(all);
    hzp_regular_destroy(made);
    end(&s);
    return r;
}
