/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies against the table of fields. */
#include "api/http/routes/field_table.h"
#include "api/http/wire/fields.h"

#include <string.h>

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
    json_t *preset = field->preset ? json_loads(field->preset, JSON_DECODE_ANY, NULL) : NULL;
    bool same = json_is_number(preset) && json_is_number(value)
                    ? json_number_value(preset) == json_number_value(value)
                    : preset && json_equal(preset, value);
    json_decref(preset);
    return same;
}

/* Whether a refused field's value is the one that a server without the field has anyway. */
static bool asks_for_nothing(const struct hzp_field *field, const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value)) || is_preset(field, value);
}

/* Type and range of a plain value; compound ones are checked by the route. */
static int check_value(const struct hzp_field *field, const json_t *body,
                       struct hzp_err_text *reterr)
{
    bool truth;
    int64_t whole;
    float number;
    const char *text;
    switch (field->kind) {
    case HZP_FIELD_BOOL:
        return hzp_field_bool(body, field->name, &truth, reterr);
    case HZP_FIELD_INT:
        return hzp_field_int(body, field->name, hzp_field_bound(field->low),
                             hzp_field_bound(field->high), &whole, reterr);
    case HZP_FIELD_NUMBER:
        return hzp_field_number(body, field->name, field->low, field->high, &number, reterr);
    case HZP_FIELD_STRING:
        return hzp_field_string(body, field->name, &text, reterr);
    default:
        return HZP_OK;
    }
}

static void ignore(json_t **ignored, const char *name)
{
    if (!*ignored)
        *ignored = json_array();
    if (json_array_size(*ignored) < HZP_FIELDS_IGNORED_MAX)
        json_array_append_new(*ignored, json_string(name));
}

int hzp_fields_check(const struct hzp_field_set *set, const json_t *body, json_t **ignored,
                     struct hzp_err_text *reterr)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)body, name, value)
    {
        const struct hzp_field *field = hzp_field_find(set, name);
        if (!field && !set->open)
            return hzp_fail_param(reterr, HZP_EINVAL, name, "there is no field %.64s", name);
        if (field && field->use == HZP_FIELD_REFUSED && !asks_for_nothing(field, value))
            return hzp_fail_param(reterr, HZP_EINVAL, name, "%s is not supported: %s", name,
                                  field->note);
        if ((!field || field->use == HZP_FIELD_IGNORED) && !json_is_null(value))
            ignore(ignored, name);
        if (field && field->use <= HZP_FIELD_NEEDED)
            HZP_TRY(check_value(field, body, reterr));
    }
    return HZP_OK;
}
