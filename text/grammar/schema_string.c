/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar/schema_string.c - strings of a schema: lengths, patterns, formats. */
#include "base/words.h"
#include "text/grammar/regular.h"
#include "text/grammar/schema_parts.h"

struct format {
    const char *name, *regex;
};

#define MONTH_DAY                                                                                  \
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"           \
    "|02-(?:0[1-9]|1\\d|2[0-8]))"
/* Years from 1000; the 29th of February in leap years only. */
#define DATE                                                                                       \
    "(?:[1-9]\\d{3}-" MONTH_DAY                                                                    \
    "|(?:[1-9]\\d(?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)"
#define TIME                                                                                       \
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"

static const struct format formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"uuid", "^[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"},
    {"ipv4", "^(?:" OCTET "\\.){3}" OCTET "$"},
};

const char *hzp_schema_format(const char *name)
{
    for (int i = 0; name && i < HZP_COUNT(formats); i++)
        if (!strcmp(formats[i].name, name))
            return formats[i].regex;
    return NULL;
}

/* Characters of one byte, which stand for themselves. */
static void add_plain(struct hzp_rules *rules, int32_t from, int32_t to)
{
    hzp_rules_codes(rules, from, 0x20, 0x21, to);
    hzp_rules_codes(rules, from, 0x23, 0x5B, to);
    hzp_rules_codes(rules, from, 0x5D, 0x7F, to);
}

/* The others: of several bytes, or escaped. */
static void add_wide(struct hzp_rules *rules, int32_t from, int32_t to)
{
    static const char shorts[] = "\"\\bfnrt";
    int32_t escape = hzp_rules_text(rules, from, "\\", 1);
    int32_t zeros = hzp_rules_text(rules, escape, "u00", 3);
    int32_t zero = hzp_rules_text(rules, zeros, "0", 1), one = hzp_rules_text(rules, zeros, "1", 1);
    hzp_rules_codes(rules, from, 0x80, HZP_CODE_LAST, to);
    for (const char *c = shorts; *c; c++)
        hzp_rules_bytes(rules, escape, (uint8_t)*c, (uint8_t)*c, to);
    /* control characters that have no short form */
    hzp_rules_bytes(rules, zero, '0', '7', to);
    hzp_rules_bytes(rules, zero, 'b', 'b', to);
    hzp_rules_bytes(rules, zero, 'e', 'f', to);
    hzp_rules_bytes(rules, one, '0', '9', to);
    hzp_rules_bytes(rules, one, 'a', 'f', to);
}

/* Between `least` and `most` (-1: any number) code points. */
static int32_t add_chars(struct hzp_rules *rules, int32_t from, enum hzp_spelling spelling,
                         int32_t least, int32_t most)
{
    struct hzp_part_of part = {.from = hzp_rules_node(rules)};
    part.to = hzp_rules_node(rules);
    if (spelling == HZP_SPELL_JSON) {
        add_plain(rules, part.from, part.to);
        add_wide(rules, part.from, part.to);
    } else {
        hzp_rules_codes(rules, part.from, 0, HZP_CODE_LAST, part.to);
    }
    return hzp_rules_repeat(rules, from, part, least, most);
}

static struct hzp_regular *chars(enum hzp_spelling spelling, int32_t least, int32_t most)
{
    struct hzp_rules *rules = hzp_rules_create();
    int32_t from = hzp_rules_node(rules);
    int32_t to = add_chars(rules, from, spelling, least, most);
    struct hzp_regular *made = hzp_regular_create(rules, from, to);
    hzp_rules_destroy(rules);
    return made;
}

const struct hzp_regular *hzp_json_contents(struct hzp_schema *s)
{
    if (!s->any_string)
        s->any_string = chars(HZP_SPELL_JSON, 0, -1);
    return s->any_string;
}

/* ---- conditions ---- */

static int bad_pattern(const struct hzp_schema *s, const struct hzp_schema_item *at,
                       const char *keyword, const struct hzp_err_text *err)
{
    char why[300];
    snprintf(why, sizeof(why), "is not supported: %.250s", err->text);
    return hzp_schema_refuse(s, at, keyword, why);
}

static int too_large(const struct hzp_schema *s, const struct hzp_schema_item *at)
{
    return hzp_schema_refuse(s, at, "string", "has conditions that are too large together");
}

/* What is left of *of (NULL: everything) with, or without, what `with` takes, which it takes over;
 * NULL: it was too large. */
static int restrict_to(struct hzp_schema *s, const struct hzp_schema_item *at,
                       enum hzp_spelling spelling, struct hzp_regular **of,
                       struct hzp_regular *with, bool without)
{
    if (with && !*of && !without) {
        *of = with;
        return HZP_OK;
    }
    if (with && !*of)
        *of = chars(spelling, 0, -1);
    return hzp_regular_limit(of, with, without) ? HZP_OK : too_large(s, at);
}

static int regex_contents(struct hzp_schema *s, const struct hzp_schema_item *at,
                          enum hzp_spelling spelling, const char *keyword, const char *regex,
                          size_t bytes, struct hzp_regular **ret)
{
    struct hzp_err_text err = {0};
    if (hzp_regex_regular(regex, bytes, spelling, true, ret, &err) < 0)
        return bad_pattern(s, at, keyword, &err);
    return *ret ? HZP_OK : too_large(s, at);
}

/* The regular expression of a schema's pattern or format; NULL in *ret: it has none. */
static int regex_of(struct hzp_schema *s, const struct hzp_schema_item *at, const json_t *schema,
                    const char *keyword, const char **ret, size_t *ret_bytes)
{
    const json_t *value = json_object_get(schema, keyword);
    *ret = NULL;
    if (!value)
        return HZP_OK;
    if (!json_is_string(value))
        return hzp_schema_refuse(s, at, keyword, "must be a string");
    *ret = json_string_value(value);
    *ret_bytes = json_string_length(value);
    if (strcmp(keyword, "format"))
        return HZP_OK;
    *ret = hzp_schema_format(*ret); /* NULL: one that says nothing of the text */
    *ret_bytes = *ret ? strlen(*ret) : 0;
    return HZP_OK;
}

/* The strings of an enum or const. */
static struct hzp_regular *listed(const json_t *list, const json_t *only,
                                  enum hzp_spelling spelling)
{
    struct hzp_rules *rules = hzp_rules_create();
    struct hzp_schema none = {.rules = rules};
    int32_t from = hzp_rules_node(rules), to = hzp_rules_node(rules);
    for (size_t i = 0; i < (only ? 1 : json_array_size(list)); i++) {
        const json_t *each = only ? only : json_array_get(list, i);
        const char *text = json_string_value(each);
        size_t bytes = json_string_length(each);
        if (!text)
            continue;
        int32_t end = spelling == HZP_SPELL_PLAIN ? hzp_rules_text(rules, from, text, bytes)
                                                  : hzp_json_inner(&none, from, text, bytes);
        hzp_rules_empty(rules, end, to);
    }
    struct hzp_regular *made = hzp_regular_create(rules, from, to);
    hzp_rules_destroy(rules);
    return made;
}

/* One schema's conditions; without: those under its "not". */
static int add_conditions(struct hzp_schema *s, const struct hzp_schema_item *at,
                          const json_t *schema, enum hzp_spelling spelling, bool without,
                          struct hzp_regular **of)
{
    static const char *const keywords[] = {"pattern", "format"};
    for (int k = 0; k < HZP_COUNT(keywords); k++) {
        const char *regex;
        size_t bytes;
        struct hzp_regular *some, *both;
        int r = HZP_OK;
        HZP_TRY(regex_of(s, at, schema, keywords[k], &regex, &bytes));
        if (!regex)
            continue;
        HZP_TRY(regex_contents(s, at, spelling, keywords[k], regex, bytes, &some));
        both = k && *of && json_object_get(schema, "pattern") ? hzp_regular_both(*of, some) : NULL;
        if (both && !without && hzp_regular_empty(both)) /* the pattern says what is meant */
            hzp_regular_destroy(some);
        else
            r = restrict_to(s, at, spelling, of, some, without);
        hzp_regular_destroy(both);
        HZP_TRY(r);
    }
    const json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const");
    if (list || only)
        HZP_TRY(restrict_to(s, at, spelling, of, listed(list, only, spelling), without));
    return HZP_OK;
}

static int read_lengths(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t *ret_least,
                        int32_t *ret_most)
{
    *ret_least = 0;
    *ret_most = -1;
    HZP_TRY(hzp_schema_count(s, at, "minLength", true, ret_least));
    return hzp_schema_count(s, at, "maxLength", false, ret_most);
}

int hzp_schema_contents(struct hzp_schema *s, const struct hzp_schema_item *at,
                        enum hzp_spelling spelling, struct hzp_regular **ret)
{
    int32_t least, most;
    int r = read_lengths(s, at, &least, &most);
    *ret = NULL;
    for (int32_t i = 0; i < at->schemas && r == HZP_OK; i++) {
        const json_t *excluded =
            hzp_schema_is_leaf(at->schema[i]) ? json_object_get(at->schema[i], "not") : NULL;
        r = add_conditions(s, at, at->schema[i], spelling, false, ret);
        if (r == HZP_OK && excluded)
            r = add_conditions(s, at, excluded, spelling, true, ret);
    }
    if (r == HZP_OK && (least > 0 || most >= 0)) {
        if (most > HZP_REPEAT_MAX)
            r = hzp_schema_refuse(s, at, "maxLength", "is above 4096 beside other conditions");
        else if (most >= 0 && most < least) /* none is so long and so short: none is left */
            r = restrict_to(s, at, spelling, ret, chars(spelling, 0, -1), true);
        else
            r = restrict_to(s, at, spelling, ret, chars(spelling, least, most), false);
    }
    if (r < 0) {
        hzp_regular_destroy(*ret);
        *ret = NULL;
    }
    return r;
}

bool hzp_schema_is_text(const json_t *schema)
{
    static const char keywords[] = "type pattern format enum const minLength maxLength not";
    const char *key;
    json_t *value;
    const json_t *type = json_object_get(schema, "type");
    bool text = json_is_object(schema) && (!type || hzp_type_mask(type) & HZP_TYPE_STRING) &&
                (!json_object_get(schema, "not") || hzp_schema_is_leaf(schema));
    json_object_foreach((json_t *)schema, key, value)
    {
        text &= hzp_schema_is_annotation(key) || hzp_among(keywords, key);
    }
    return text;
}

/* ---- the rule ---- */

/* A rule that is made once.  *ret_new: it was made now. */
static int32_t shared_rule(struct hzp_rules *rules, const char *key, bool *ret_new)
{
    int32_t rule = hzp_rules_shared(rules, key);
    *ret_new = rule < 0;
    if (rule < 0) {
        rule = hzp_rules_add(rules, key, strlen(key));
        hzp_rules_share(rules, key, rule);
    }
    return rule;
}

/* Between `least` and `most` characters behind `from`, with what a character has beside one byte in
 * a rule of its own, because each character has states of its own. */
static int32_t add_counted(struct hzp_rules *rules, int32_t from, int32_t least, int32_t most)
{
    bool made;
    int32_t wide = shared_rule(rules, "character of several bytes", &made);
    if (made)
        add_wide(rules, rules->rule[wide].first, rules->rule[wide].last);
    struct hzp_part_of part = {.from = hzp_rules_node(rules)};
    part.to = hzp_rules_node(rules);
    add_plain(rules, part.from, part.to);
    hzp_rules_call(rules, part.from, wide, part.to);
    return hzp_rules_repeat(rules, from, part, least, most);
}

/* At most `most` characters, which are more than one rule counts: some rules of HZP_REPEAT_MAX, and
 * behind any number of these a rest. */
static int32_t add_many(struct hzp_rules *rules, int32_t from, int32_t most)
{
    bool made;
    int32_t whole = shared_rule(rules, "4096 characters", &made), rest = hzp_rules_node(rules);
    if (made)
        hzp_rules_empty(
            rules, add_counted(rules, rules->rule[whole].first, HZP_REPEAT_MAX, HZP_REPEAT_MAX),
            rules->rule[whole].last);
    for (; most > HZP_REPEAT_MAX; most -= HZP_REPEAT_MAX) {
        hzp_rules_empty(rules, from, rest);
        from = hzp_rules_then(rules, from, whole);
    }
    int32_t to = add_counted(rules, rest, 0, HZP_REPEAT_MAX);
    hzp_rules_empty(rules, add_counted(rules, from, 0, most), to);
    return to;
}

/* Strings of a length, with their quotes: the same rule wherever they are asked for. */
static int32_t counted_rule(struct hzp_rules *rules, int32_t least, int32_t most)
{
    char key[48];
    bool made;
    snprintf(key, sizeof(key), "string of %d to %d", least, most);
    int32_t rule = shared_rule(rules, key, &made);
    if (!made)
        return rule;
    int32_t at = hzp_rules_text(rules, rules->rule[rule].first, "\"", 1);
    at = most > HZP_REPEAT_MAX ? add_many(rules, add_counted(rules, at, least, least), most - least)
                               : add_counted(rules, at, least, most);
    hzp_rules_empty(rules, hzp_rules_text(rules, at, "\"", 1), rules->rule[rule].last);
    return rule;
}

/* How many conditions there are beside lengths; the last pattern or format, and whose it is. */
static int count_conditions(const struct hzp_schema_item *at, const char **ret_keyword,
                            const json_t **ret_schema)
{
    static const char *const keywords[] = {"pattern", "format"};
    int n = 0;
    for (int32_t i = 0; i < at->schemas; i++) {
        for (int k = 0; k < HZP_COUNT(keywords); k++) {
            const json_t *value = json_object_get(at->schema[i], keywords[k]);
            if (value &&
                (!k || !json_is_string(value) || hzp_schema_format(json_string_value(value)))) {
                n++;
                *ret_keyword = keywords[k];
                *ret_schema = at->schema[i];
            }
        }
        n += hzp_schema_is_leaf(at->schema[i]) ? 2 : 0;
    }
    return n;
}

/* What the strings have to satisfy, as a key of their rule; owned by the caller. */
static char *key_of(const struct hzp_schema_item *at)
{
    static const char *const keywords[] = {"pattern", "format", "minLength", "maxLength", "not"};
    json_auto_t *list = json_array();
    for (int32_t i = 0; i < at->schemas; i++) {
        json_t *some = json_object();
        for (int k = 0; k < HZP_COUNT(keywords); k++) {
            json_t *value = json_object_get(at->schema[i], keywords[k]);
            if (value)
                json_object_set(some, keywords[k], value);
        }
        json_array_append_new(list, some);
    }
    return json_dumps(list, JSON_COMPACT);
}

/* Fills the rule of strings with conditions beside lengths. */
static int add_restricted(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t rule,
                          bool counted)
{
    const char *keyword = NULL, *regex;
    const json_t *schema = NULL;
    size_t bytes;
    struct hzp_err_text err = {0};
    struct hzp_regular *left;
    int32_t from = hzp_rules_text(s->rules, s->rules->rule[rule].first, "\"", 1);
    if (count_conditions(at, &keyword, &schema) == 1 && !counted) {
        HZP_TRY(regex_of(s, at, schema, keyword, &regex, &bytes));
        if (hzp_regex_rules(s->rules, from, regex, bytes, HZP_SPELL_JSON, true, &from, &err) < 0)
            return bad_pattern(s, at, keyword, &err);
    } else {
        HZP_TRY(hzp_schema_contents(s, at, HZP_SPELL_JSON, &left));
        from = hzp_regular_add(s->rules, from, left);
        hzp_regular_destroy(left);
    }
    hzp_rules_empty(s->rules, hzp_rules_text(s->rules, from, "\"", 1), s->rules->rule[rule].last);
    return HZP_OK;
}

int hzp_schema_string(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                      int32_t *ret)
{
    const char *keyword = NULL;
    const json_t *schema = NULL;
    int32_t least, most, rule;
    bool made;
    HZP_TRY(read_lengths(s, at, &least, &most));
    bool conditions = count_conditions(at, &keyword, &schema) > 0;
    bool counted = least > 0 || most >= 0;
    if (!conditions && !counted) {
        rule = hzp_json_string(s);
    } else if (!conditions && (most < 0 || most >= least)) {
        rule = counted_rule(s->rules, least, most);
    } else {
        char *key = key_of(at);
        rule = shared_rule(s->rules, key ? key : "", &made);
        free(key);
        if (made)
            HZP_TRY(add_restricted(s, at, rule, counted));
    }
    *ret = hzp_rules_then(s->rules, from, rule);
    return HZP_OK;
}
