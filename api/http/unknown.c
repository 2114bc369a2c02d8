/* SPDX-License-Identifier: Apache-2.0 */
#include "api/http/unknown.h"

#include "base/log.h"

#include <string.h>

/* Fields of other servers that change which tokens are generated, or what of them is returned. */
static const char *const refused[] = {
    "allowed_token_ids",
    "bad_words",
    "cfg_scale",
    "dynatemp_range",
    "early_stopping",
    "grammar",
    "guided_choice",
    "guided_decoding",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "images",
    "json_schema",
    "kv_transfer_params",
    "length_penalty",
    "logits_processors",
    "lora",
    "lora_request",
    "max_completion_tokens",
    "mirostat",
    "negative_prompt",
    "prompt_embeds",
    "prompt_logprobs",
    "response_format",
    "return_tokens_as_token_ids",
    "spaces_between_special_tokens",
    "structured_outputs",
    "thinking_token_budget",
    "tool_choice",
    "tools",
    "typical_p",
    "use_beam_search",
};

void hzp_unknown_init(struct hzp_unknown *u)
{
    hzp_lock_init(&u->lock, HZP_LOCK_UNKNOWN);
}

void hzp_unknown_fini(struct hzp_unknown *u)
{
    hzp_lock_fini(&u->lock);
}

static bool is_one_of(const char *name, const char *const list[])
{
    for (int i = 0; list[i]; i++)
        if (!strcmp(name, list[i]))
            return true;
    return false;
}

/* Whether the value is the one that a server without the field has anyway. */
static bool asks_for_nothing(const char *name, const json_t *value)
{
    if (json_is_null(value) || json_is_false(value))
        return true;
    if (json_is_array(value) || json_is_object(value))
        if (!json_array_size(value) && !json_object_size(value))
            return true;
    if (!strcmp(name, "response_format")) {
        const char *type = json_string_value(json_object_get(value, "type"));
        return type && !strcmp(type, "text");
    }
    if (!strcmp(name, "spaces_between_special_tokens"))
        return json_is_true(value);
    if (!strcmp(name, "tool_choice"))
        return json_is_string(value) && !strcmp(json_string_value(value), "none");
    bool one =
        !strcmp(name, "length_penalty") || !strcmp(name, "typical_p") || !strcmp(name, "cfg_scale");
    return json_is_number(value) && json_number_value(value) == (one ? 1 : 0);
}

/* Counts a field, and logs it when it is seen for the first time. */
static void count(struct hzp_unknown *u, const char *name)
{
    char text[HZP_UNKNOWN_BYTES];
    bool fresh = true;
    snprintf(text, sizeof(text), "%s", name);
    atomic_fetch_add(&u->fields, 1);
    hzp_lock_take(&u->lock);
    for (int i = 0; i < u->names && fresh; i++)
        fresh = strcmp(u->name[i], text) != 0;
    fresh = fresh && u->names < HZP_UNKNOWN_NAMES;
    if (fresh)
        memcpy(u->name[u->names++], text, sizeof(text));
    hzp_lock_release(&u->lock);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == '"' || *c == 0x7f)
            *c = '?';
    if (fresh)
        hzp_log(HZP_LOG_WARN, "http", "requests have the unknown field \"%s\", ignoring", text);
}

int hzp_unknown_check(struct hzp_unknown *u, const json_t *body, const char *const known[],
                      struct hzp_err_text *reterr)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)body, name, value)
    {
        if (is_one_of(name, known))
            continue;
        bool changes = false;
        for (int i = 0; i < HZP_COUNT(refused) && !changes; i++)
            changes = !strcmp(name, refused[i]);
        if (changes && !asks_for_nothing(name, value))
            return hzp_fail_param(reterr, HZP_EINVAL, name,
                                  "%s is not supported, and the answer would be wrong without it",
                                  name);
        if (!changes)
            count(u, name);
    }
    return HZP_OK;
}
