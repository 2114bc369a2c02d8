/* SPDX-License-Identifier: Apache-2.0 */
/* The form that a template reads, found by rendering made-up messages. */
#include "text/chat/chat_form.h"

const char *const hzp_chat_reasoning[] = {"reasoning_content", "reasoning", "thinking", NULL};

/* The words that the conversations below are made of; each is looked for in the text. */
#define SYSTEM "probed_system"
#define OTHER  "probed_other"
#define USER   "probed_user"
#define ANSWER "probed_answer"
#define NAME   "probed_name"
#define VALUE  "probed_value"
#define RESULT "probed_result"
#define REASON "probed_reason"

static json_t *message(const char *role, const char *content)
{
    return json_pack("{s:s, s:s}", "role", role, "content", content);
}

static json_t *part(const char *text)
{
    return json_pack("{s:s, s:s}", "type", "text", "text", text);
}

/* Contents that are strings become lists. */
static void set_parts(const json_t *messages)
{
    json_t *each;
    size_t i;
    json_array_foreach(messages, i, each)
    {
        const json_t *content = json_object_get(each, "content");
        if (json_string_length(content))
            json_object_set_new(each, "content",
                                json_pack("[o]", part(json_string_value(content))));
    }
}

/* Renders messages and takes them over.  True: the text has all the words (up to NULL), and no
 * printed list. */
static bool shows(const struct hzp_chat *chat, const struct hzp_chat_form *form, json_t *messages,
                  const json_t *tools, const char *const *words)
{
    if (!form->strings && form->parts[HZP_CHAT_USER])
        set_parts(messages);
    HZP_ENDED(hzp_jinja_output_fini) struct hzp_jinja_output out = {0};
    const struct hzp_chat_request request = {
        .messages = messages, .tools = tools, .generation_prompt = true, .now = 1};
    struct hzp_err_text err;
    bool has = messages && hzp_chat_render(chat, &request, &out, &err) == HZP_OK && out.text.bytes;
    static const char *const wrong[] = {"{'type'", "{\"type\": \"text\"", NULL};
    for (int i = 0; has && words[i]; i++)
        has = memmem(out.text.data, out.text.bytes, words[i], strlen(words[i])) != NULL;
    for (int i = 0; has && wrong[i]; i++)
        has = memmem(out.text.data, out.text.bytes, wrong[i], strlen(wrong[i])) == NULL;
    json_decref(messages);
    return has;
}

/* ---- contents ---- */

/* Two parts of one message of this role. */
static bool shows_parts(const struct hzp_chat *chat, const struct hzp_chat_form *form,
                        enum hzp_chat_role role)
{
    static const char *const words[] = {"probed_one", "probed_two", NULL};
    json_auto_t *parts = json_pack("[o, o]", part("probed_one"), part("probed_two"));
    json_t *talk = json_array();
    if (role == HZP_CHAT_SYSTEM)
        json_array_append_new(talk, json_pack("{s:s, s:O}", "role", "system", "content", parts));
    json_array_append_new(talk, message("user", USER));
    if (role == HZP_CHAT_USER)
        json_object_set(json_array_get(talk, 0), "content", parts);
    if (role == HZP_CHAT_ASSISTANT) {
        json_array_append_new(talk, json_pack("{s:s, s:O}", "role", "assistant", "content", parts));
        json_array_append_new(talk, message("user", USER));
    }
    return shows(chat, form, talk, NULL, words);
}

/* ---- roles ---- */

static void probe_roles(const struct hzp_chat *chat, struct hzp_chat_form *ret)
{
    static const char *const role[] = {"probed_role", OTHER, NULL},
                             *const both[] = {SYSTEM, OTHER, USER, NULL},
                             *const one[] = {SYSTEM, USER, NULL};
    ret->any_role =
        shows(chat, ret,
              json_pack("[o, o, o, o]", message("user", USER), message("assistant", ANSWER),
                        message("probed_role", OTHER), message("user", USER)),
              NULL, role);
    ret->developer =
        (ret->any_role || hzp_chat_mentions(chat, "developer")) &&
        shows(chat, ret, json_pack("[o, o]", message("developer", SYSTEM), message("user", USER)),
              NULL, one);
    ret->systems = shows(chat, ret,
                         json_pack("[o, o, o]", message("system", SYSTEM), message("system", OTHER),
                                   message("user", USER)),
                         NULL, both);
    if (ret->developer)
        ret->systems &= shows(chat, ret,
                              json_pack("[o, o, o]", message("system", SYSTEM),
                                        message("developer", OTHER), message("user", USER)),
                              NULL, both);
    ret->systems_later =
        ret->systems && shows(chat, ret,
                              json_pack("[o, o, o, o, o]", message("system", SYSTEM),
                                        message("user", USER), message("assistant", ANSWER),
                                        message("system", OTHER), message("user", "probed_end")),
                              NULL, both);
}

/* ---- calls ---- */

/* A conversation with a call; content NULL: absent. */
static json_t *with_call(json_t *content, json_t *arguments, json_t *result)
{
    json_t *call = json_pack("{s:s, s:s, s:[{s:s, s:s, s:{s:s, s:o}}]}", "role", "assistant",
                             "content", "", "tool_calls", "id", "abcdefghi", "type", "function",
                             "function", "name", NAME, "arguments", arguments);
    json_object_del(call, "content");
    if (content)
        json_object_set_new(call, "content", content);
    return json_pack("[o, o, o]", message("user", USER), call, result);
}

static json_t *result_of(const char *role, const char *name)
{
    json_t *result = message(role, RESULT);
    json_object_set_new(result, "tool_call_id", json_string("abcdefghi"));
    if (name)
        json_object_set_new(result, "name", json_string(name));
    return result;
}

static json_t *arguments_of(bool string)
{
    return string ? json_string("{\"probed_key\": \"" VALUE "\"}")
                  : json_pack("{s:s}", "probed_key", VALUE);
}

static json_t *silence(enum hzp_chat_silence how)
{
    return how == HZP_CHAT_EMPTY ? json_string("") : how == HZP_CHAT_NULL ? json_null() : NULL;
}

/* Whether it prints null as a word. */
static bool prints_none(const struct hzp_chat *chat, const struct hzp_chat_form *form,
                        enum hzp_chat_silence how, bool string, const json_t *tools)
{
    static const char *const none[] = {"None", NULL};
    return shows(chat, form, with_call(silence(how), arguments_of(string), result_of("tool", NAME)),
                 tools, none);
}

/* Whether calls are shown with their arguments in one of the forms, which are tried in turn. */
static bool probe_calls(const struct hzp_chat *chat, const json_t *tools, struct hzp_chat_form *ret)
{
    static const char *const words[] = {NAME, VALUE, NULL};
    for (int string = 0; string < 2; string++)
        for (int how = HZP_CHAT_EMPTY; how <= HZP_CHAT_ABSENT; how++)
            if (shows(chat, ret,
                      with_call(silence((enum hzp_chat_silence)how), arguments_of(string),
                                result_of("tool", NAME)),
                      tools, words) &&
                (how == HZP_CHAT_EMPTY ||
                 !prints_none(chat, ret, (enum hzp_chat_silence)how, string, tools))) {
                ret->arguments_string = string;
                ret->silence = (enum hzp_chat_silence)how;
                return true;
            }
    return false;
}

/* Whether text and calls of an answer are shown only as two messages, also before further turns. */
static bool probe_divided(const struct hzp_chat *chat, const json_t *tools,
                          const struct hzp_chat_form *form)
{
    static const char *const words[] = {ANSWER, NAME, VALUE, RESULT, OTHER, NULL};
    json_t *one = with_call(json_string(ANSWER), arguments_of(form->arguments_string),
                            result_of("tool", NAME));
    json_t *two = with_call(silence(form->silence), arguments_of(form->arguments_string),
                            result_of("tool", NAME));
    json_array_insert_new(two, 1, message("assistant", ANSWER));
    json_t *both[] = {one, two};
    for (int i = 0; i < HZP_COUNT(both); i++) {
        json_array_append_new(both[i], message("assistant", OTHER));
        json_array_append_new(both[i], message("user", USER));
    }
    bool together = shows(chat, form, one, tools, words);
    return shows(chat, form, two, tools, words) && !together;
}

static void probe_results(const struct hzp_chat *chat, const json_t *tools,
                          struct hzp_chat_form *ret)
{
    static const char *const words[] = {NAME, RESULT, NULL}, *const parts[] = {"probed_one",
                                                                               "probed_two", NULL};
    const struct {
        const char *role, *name;
    } * each, as[] = {{"tool", NULL}, {"tool", NAME}, {"function", NAME}};
    ret->tool_role = true;
    for (each = as; each < as + HZP_COUNT(as); each++)
        if (shows(chat, ret,
                  with_call(silence(ret->silence), arguments_of(ret->arguments_string),
                            result_of(each->role, each->name)),
                  tools, words)) {
            ret->tool_role = each->role[0] == 't';
            ret->tool_name = each->name != NULL;
            break;
        }
    json_t *result = result_of("tool", NAME);
    json_object_set_new(result, "content",
                        json_pack("[o, o]", part("probed_one"), part("probed_two")));
    ret->parts[HZP_CHAT_TOOL] = shows(
        chat, ret, with_call(silence(ret->silence), arguments_of(ret->arguments_string), result),
        tools, parts);
}

/* ---- reasoning ---- */

/* In an answer, and beside a call: some templates show it in one place only. */
static bool shows_reasoning(const struct hzp_chat *chat, const char *name, const json_t *tools,
                            const struct hzp_chat_form *form)
{
    static const char *const words[] = {REASON, NULL};
    json_t *answer = message("assistant", ANSWER);
    json_object_set_new(answer, name, json_string(REASON));
    if (shows(chat, form, json_pack("[o, o]", message("user", USER), answer), NULL, words))
        return true;
    json_t *talk = with_call(silence(form->silence), arguments_of(form->arguments_string),
                             result_of("tool", NAME));
    json_object_set_new(json_array_get(talk, 1), name, json_string(REASON));
    return shows(chat, form, talk, tools, words);
}

void hzp_chat_probe(const struct hzp_chat *chat, struct hzp_chat_form *ret)
{
    static const char *const user[] = {USER, NULL};
    json_auto_t *tools = json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]",
                                   "type", "function", "function", "name", NAME, "description", "d",
                                   "parameters", "type", "object", "properties", "probed_key",
                                   "type", "string", "description", "d", "required", "probed_key");
    memset(ret, 0, sizeof(*ret));
    ret->strings = shows(chat, ret, json_pack("[o]", message("user", USER)), NULL, user);
    static const enum hzp_chat_role order[] = {HZP_CHAT_USER, HZP_CHAT_SYSTEM, HZP_CHAT_ASSISTANT};
    for (int i = 0; i < HZP_COUNT(order); i++)
        ret->parts[order[i]] = shows_parts(chat, ret, order[i]);
    probe_roles(chat, ret);
    ret->tools = probe_calls(chat, tools, ret);
    ret->divides = ret->tools && probe_divided(chat, tools, ret);
    probe_results(chat, tools, ret);
    ret->reasoning = hzp_chat_reasoning[0];
    for (int i = 0; hzp_chat_reasoning[i]; i++)
        if (shows_reasoning(chat, hzp_chat_reasoning[i], tools, ret)) {
            ret->reasoning = hzp_chat_reasoning[i];
            break;
        }
}
