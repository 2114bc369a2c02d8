/* SPDX-License-Identifier: Apache-2.0 */
/* serve/grammar/schema_string.c - strings of a schema: lengths, patterns, formats. */
#include "serve/grammar/regex.h"
#include "serve/grammar/schema_parts.h"

#include <stdio.h>
#include <string.h>

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
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"uuid", "[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"},
    {"ipv4", "(?:" OCTET "\\.){3}" OCTET},
};

/* Between `least` and `most` (-1: any number) code points. */
static int32_t add_chars(struct hzp_schema *s, int32_t from, int32_t least, int32_t most)
{
    struct hzp_codes any = {0};
    hzp_codes_add(&any, 0, HZP_CODE_LAST);
    struct hzp_part_of part = {.from = hzp_rules_node(s->rules)};
    part.to = hzp_rules_node(s->rules);
    hzp_codes_edges(s->rules, part.from, &any, HZP_SPELL_JSON, part.to);
    return hzp_rules_repeat(s->rules, from, part, least, most);
}

static int add_pattern(struct hzp_schema *s, const struct hzp_schema_item *at, const char *keyword,
                       const char *regex, bool search, int32_t from, int32_t *ret)
{
    struct hzp_err_text err = {0};
    int r =
        hzp_regex_rules(s->rules, from, regex, strlen(regex), HZP_SPELL_JSON, search, ret, &err);
    if (r < 0) {
        char why[300];
        snprintf(why, sizeof(why), "is not supported: %.250s", err.text);
        return hzp_schema_refuse(s, at, keyword, why);
    }
    return HZP_OK;
}

int hzp_schema_string(struct hzp_schema *s, const struct hzp_schema_item *at, int32_t from,
                      int32_t *ret)
{
    const json_t *pattern = json_object_get(at->schema, "pattern"),
                 *format = json_object_get(at->schema, "format");
    int32_t least = 0, most = -1;
    HZP_TRY(hzp_schema_count(s, at, "minLength", &least));
    HZP_TRY(hzp_schema_count(s, at, "maxLength", &most));
    bool counted = least > 0 || most >= 0;
    if ((pattern && !json_is_string(pattern)) || (format && !json_is_string(format)))
        return hzp_schema_refuse(s, at, pattern ? "pattern" : "format", "must be a string");
    if (pattern && (format || counted))
        return hzp_schema_refuse(s, at, "pattern", "is not supported beside format or lengths");
    if (format && counted)
        return hzp_schema_refuse(s, at, "format", "is not supported beside lengths");
    if (!pattern && !format && !counted) {
        *ret = hzp_rules_then(s->rules, from, hzp_json_string(s));
        return HZP_OK;
    }
    from = hzp_rules_text(s->rules, from, "\"", 1);
    if (pattern) {
        HZP_TRY(add_pattern(s, at, "pattern", json_string_value(pattern), true, from, &from));
    } else if (format) {
        const struct format *found = NULL;
        for (int i = 0; i < HZP_COUNT(formats); i++)
            if (!strcmp(formats[i].name, json_string_value(format)))
                found = &formats[i];
        if (!found)
            return hzp_schema_refuse(s, at, "format",
                                     "is none of date, time, date-time, uuid, ipv4");
        HZP_TRY(add_pattern(s, at, "format", found->regex, false, from, &from));
    } else if (most < 0 || most >= least) {
        from = add_chars(s, from, least, most);
    } else {
        from = hzp_rules_node(s->rules); /* no string is so long and so short */
    }
    *ret = hzp_rules_text(s->rules, from, "\"", 1);
    return HZP_OK;
}
