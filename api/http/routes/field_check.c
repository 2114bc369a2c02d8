/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies against the table of fields. */
#include "api/http/routes/field_table.h"
#include "api/http/wire/fields.h"
#include "base/words.h"

const struct hzp_field *hzp_field_find(const struct hzp_field_set *set, const char *name)
{
    for (int g = 0; g < HZP_FIELD_GROUPS_MAX && set->group[g]; g++)
        for (const struct hzp_field *field = set->group[g]; field->name; field++)
            if (!strcmp(field->name, name))
                return field;
    return NULL;
}

/* Whether the value is the field's default. */
static bool is_preset(const struct hzp_field *field, const json_t *value)
{
    json_auto_t *preset = field->preset ? json_loads(field->preset, JSON_DECODE_ANY, NULL) : NULL;
    return json_is_number(preset) && json_is_number(value)
               ? json_number_value(preset) == json_number_value(value)
               : preset && json_equal(preset, value);
}

/* Whether a refused field's value is the one that a server without the field has anyway. */
static bool asks_for_nothing(const struct hzp_field *field, const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value)) || is_preset(field, value);
}

/* Whether a member is data that is passed on as it is, or a schema. */
static bool is_data(const char *name)
{
    return hzp_among("arguments parameters input_schema schema json metadata documents guided_json "
                     "json_schema chat_template_kwargs tools",
                     name);
}

/* What a program reads in compound values: words and names have no \u0000, where they would be cut,
 * and numbers are in range.  Data that is passed on is not looked at.  name: of the member that the
 * value is, or is listed in. */
static int check_words(const json_t *value, const char *name, const char *path,
                       struct hzp_err_text *reterr)
{
    static const char words[] = "type role name id call_id effort tool_call_id tool_use_id "
                                "tool_choice modalities reasoning_effort";
    char below[112], text[40];
    const char *member;
    json_t *each;
    size_t i;
    if (hzp_json_spelling(value))
        return hzp_wrong(reterr, path, ": %s is out of range",
                         hzp_json_number_text(value, text, sizeof(text)));
    if (json_is_string(value) && !hzp_json_is_text(value) && hzp_among(words, name))
        return hzp_wrong(reterr, path, "must not have \\u0000 in it");
    json_array_foreach(value, i, each)
    {
        snprintf(below, sizeof(below), "%.80s[%zu]", path, i);
        HZP_TRY(check_words(each, name, below, reterr));
    }
    json_object_foreach((json_t *)(uintptr_t)value, member, each)
    {
        bool input = !strcmp(member, "input") && json_is_object(each); /* a tool_use has it */
        snprintf(below, sizeof(below), "%.56s.%.32s", path, member);
        if (!input && !is_data(member))
            HZP_TRY(check_words(each, member, below, reterr));
    }
    return HZP_OK;
}

int hzp_field_word(const struct hzp_field *field, const char *text, struct hzp_err_text *reterr)
{
    char quoted[64];
    snprintf(quoted, sizeof(quoted), "\"%.60s\"", text);
    if (!field->words || (!strpbrk(text, "\", ") && strstr(field->words, quoted)))
        return HZP_OK;
    return hzp_wrong(reterr, field->name, "must be %s, not \"%.40s\"", field->words, text);
}

/* Type and range of a plain value; compound ones are checked by the route. */
static int check_value(const struct hzp_field *field, const json_t *body,
                       struct hzp_err_text *reterr)
{
    static const char *const kinds[] = {
        [HZP_FIELD_LIST] = "an array", [HZP_FIELD_OBJECT] = "an object"};
    bool truth;
    int64_t whole;
    float number;
    const char *text = NULL;
    const json_t *value = json_object_get(body, field->name);
    switch (field->kind) {
    case HZP_FIELD_BOOL:
        return hzp_field_bool(body, field->name, &truth, reterr);
    case HZP_FIELD_INT:
        return hzp_field_int(body, field->name, hzp_field_bound(field->low),
                             hzp_field_bound(field->high), &whole, reterr);
    case HZP_FIELD_NUMBER:
        return hzp_field_number(body, field->name, field->low, field->high, &number, reterr);
    case HZP_FIELD_STRING:
        HZP_TRY(hzp_field_string(body, field->name, &text, reterr));
        return text ? hzp_field_word(field, text, reterr) : HZP_OK;
    case HZP_FIELD_TEXT:
        return json_is_string(value) || json_is_null(value)
                   ? HZP_OK
                   : hzp_wrong(reterr, field->name, "must be a string, not %s",
                               hzp_json_kind(value));
    case HZP_FIELD_LIST:
    case HZP_FIELD_OBJECT:
        if (!json_is_null(value) && strcmp(hzp_json_kind(value), kinds[field->kind]))
            return hzp_wrong(reterr, field->name, "must be %s, not %s", kinds[field->kind],
                             hzp_json_kind(value));
        /* fall through */
    default:
        return is_data(field->name) && !hzp_json_spelling(value)
                   ? HZP_OK
                   : check_words(value, field->name, field->name, reterr);
    }
}

static void ignore(json_t **ignored, const char *name)
{
    if (!*ignored)
        *ignored = json_array();
    if (json_array_size(*ignored) < HZP_FIELDS_IGNORED_MAX)
        json_array_append_new(*ignored, json_string(name));
}

/* ---- members of objects within a field ---- */

bool hzp_members_find(const char *names, const char *name, bool *ret_ignored)
{
    size_t n = strlen(name);
    for (const char *at = names; *at; at += strspn(at, " ")) {
        size_t bytes = strcspn(at, " ");
        *ret_ignored = *at == '-';
        if (bytes == n + *ret_ignored && !memcmp(at + *ret_ignored, name, n))
            return true;
        at += bytes;
    }
    return false;
}

static int check_object(const struct hzp_members *members, const json_t *value, const char *path,
                        json_t **ignored, struct hzp_err_text *reterr)
{
    char param[128];
    const char *name;
    json_t *each;
    size_t bytes;
    json_object_keylen_foreach((json_t *)(uintptr_t)value, name, bytes, each)
    {
        bool without = false, known = hzp_members_find(members->names, name, &without);
        if (json_is_null(each) || (known && !without && strlen(name) == bytes))
            continue;
        snprintf(param, sizeof(param), "%.64s.%.60s", path, name);
        if (!known && !members->open)
            return hzp_fail_param(reterr, HZP_EINVAL, param, "there is no field %s", param);
        ignore(ignored, param);
    }
    return HZP_OK;
}

/* The objects that the rest of the row's path leads to from this value, which is at `path`. */
static int check_members(const struct hzp_members *members, const char *rest, const json_t *value,
                         const char *path, json_t **ignored, struct hzp_err_text *reterr)
{
    char below[112], name[40];
    const json_t *each;
    size_t i;
    if (!*rest)
        return check_object(members, value, path, ignored, reterr);
    if (*rest == '[') {
        json_array_foreach(value, i, each)
        {
            snprintf(below, sizeof(below), "%.80s[%zu]", path, i);
            HZP_TRY(check_members(members, rest + 2, each, below, ignored, reterr));
        }
        return HZP_OK;
    }
    rest += *rest == '.';
    size_t n = strcspn(rest, ".[");
    snprintf(name, sizeof(name), "%.*s", (int)n, rest);
    snprintf(below, sizeof(below), "%.64s%s%s", path, *path ? "." : "", name);
    each = json_object_get(value, name);
    return each ? check_members(members, rest + n, each, below, ignored, reterr) : HZP_OK;
}

int hzp_fields_check(const struct hzp_field_set *set, const json_t *body, json_t **ignored,
                     struct hzp_err_text *reterr)
{
    const char *name;
    json_t *value;
    size_t bytes;
    json_object_keylen_foreach((json_t *)body, name, bytes, value)
    {
        const struct hzp_field *field = hzp_field_find(set, name);
        if (strlen(name) != bytes)
            return hzp_fail_param(reterr, HZP_EINVAL, name, "there is no field %.64s\\u0000", name);
        if (!field && !set->open)
            return hzp_fail_param(reterr, HZP_EINVAL, name, "there is no field %.64s", name);
        if (field && field->use == HZP_FIELD_REFUSED && !asks_for_nothing(field, value))
            return hzp_wrong(reterr, name, "is not supported: %s", field->note);
        if ((!field || field->use == HZP_FIELD_IGNORED) && !json_is_null(value))
            ignore(ignored, name);
        if (field && field->use <= HZP_FIELD_NEEDED)
            HZP_TRY(check_value(field, body, reterr));
    }
    for (const struct hzp_members *row = set->members; row && row->path; row++)
        HZP_TRY(check_members(row, row->path, body, "", ignored, reterr));
    return HZP_OK;
}
