/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat/structure_parts.h"
#include "text/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

static const char tool_call[] = "<tool_call>", tool_call_end[] = "</tool_call>";
static const char python_tag[] = "<|python_tag|>", calls_mark[] = "[TOOL_CALLS]", args[] = "[ARGS]";
static const char channel[] = "<|channel|>", message[] = "<|message|>";
static const char key_mark[] = "<arg_key>", key_end[] = "</arg_key>";
static const char value_mark[] = "<arg_value>", value_end[] = "</arg_value>";

/* ---- one call ---- */

/* The name as it stands in JSON. */
static int32_t add_name(const struct hzp_making *m, int32_t from, const char *name)
{
    json_t *json = json_string(name);
    char *text = json_dumps(json, JSON_ENCODE_ANY);
    if (text)
        from = hzp_structure_text(m, from, text);
    free(text);
    json_decref(json);
    return from;
}

/* The parameters that a call must fit; NULL: any object. */
static const json_t *parameters_of(const struct hzp_making *m, const json_t *function)
{
    const json_t *parameters = json_object_get(function, "parameters");
    if (m->what->free && !json_is_true(json_object_get(function, "strict")))
        return NULL;
    return json_is_object(parameters) && json_object_size(parameters) ? parameters : NULL;
}

/* The arguments of one tool as JSON. */
static int add_arguments(const struct hzp_making *m, const json_t *function, int32_t from,
                         int32_t *ret)
{
    const json_t *parameters = parameters_of(m, function);
    int32_t rule;
    if (!parameters)
        rule = hzp_json_object_rules(m->rules);
    else
        HZP_TRY(hzp_schema_rules(m->rules, parameters, &rule, m->reterr));
    *ret = hzp_rules_then(m->rules, from, rule);
    return HZP_OK;
}

/* A value of GLM's form, with its end: text where the parameter is a string, else JSON. */
static int add_glm_value(const struct hzp_making *m, const json_t *parameters, const json_t *schema,
                         int32_t from, int32_t *ret)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    int32_t rule;
    if (!type || strcmp(type, "string")) {
        HZP_TRY(hzp_schema_rules_in(m->rules, parameters, schema, &rule, m->reterr));
        *ret = hzp_structure_mark(m, hzp_rules_then(m->rules, from, rule), value_end);
        return HZP_OK;
    }
    struct hzp_rules *scratch = hzp_rules_create();
    int32_t before = hzp_rules_node(scratch);
    hzp_rules_bytes(scratch, before, 0, 0xFE, before);
    int32_t behind = hzp_rules_text(scratch, before, value_end, strlen(value_end));
    hzp_rules_bytes(scratch, behind, 0, 0xFE, behind);
    struct hzp_regular *with_end = hzp_regular_create(scratch, before, behind);
    int r = with_end ? hzp_schema_raw(m->rules, parameters, schema, with_end, from, ret, m->reterr)
                     : hzp_fail(m->reterr, HZP_EINVAL, "schema: its strings are too large");
    hzp_regular_destroy(with_end);
    hzp_rules_destroy(scratch);
    if (r == 0)
        *ret = hzp_structure_until(m, from, value_end);
    else if (r > 0)
        *ret = hzp_structure_mark(m, *ret, value_end);
    return r < 0 ? r : HZP_OK;
}

static int32_t behind_pair(const struct hzp_making *m, int32_t from)
{
    return hzp_structure_text(m, from, "\n");
}

static int add_glm_pair(const struct hzp_making *m, const json_t *parameters, const char *name,
                        const json_t *schema, int32_t from, int32_t *ret)
{
    int32_t at = hzp_structure_text(m, hzp_structure_mark(m, from, key_mark), name);
    at = hzp_structure_text(m, hzp_structure_mark(m, at, key_end), "\n");
    HZP_TRY(add_glm_value(m, parameters, schema, hzp_structure_mark(m, at, value_mark), &at));
    *ret = behind_pair(m, at);
    return HZP_OK;
}

/* The names that are required, as keys; owned by the caller. */
static json_t *required_of(const json_t *parameters)
{
    const json_t *each;
    json_t *names = json_object();
    size_t i;
    json_array_foreach(json_object_get(parameters, "required"), i, each)
    {
        if (json_is_string(each))
            json_object_set_new(names, json_string_value(each), json_true());
    }
    return names;
}

/* Pairs of the declared parameters in their order; without parameters, any pairs. */
static int add_glm_arguments(const struct hzp_making *m, const json_t *function, int32_t from,
                             int32_t *ret)
{
    static const char *const known[] = {"type",  "required",    "additionalProperties",
                                        "title", "description", "$schema",
                                        "$defs", "definitions"};
    const json_t *parameters = parameters_of(m, function);
    const char *name;
    json_t *schema;
    json_object_foreach((json_t *)parameters, name, schema)
    {
        bool fits = !strcmp(name, "properties");
        for (int i = 0; i < HZP_COUNT(known); i++)
            fits |= !strcmp(name, known[i]);
        if (!fits)
            return hzp_fail(m->reterr, HZP_EINVAL,
                            "schema: %.64s is not supported in GLM's form, where parameters have "
                            "properties only",
                            name);
    }
    if (!parameters) {
        int32_t at = hzp_structure_until(m, hzp_structure_mark(m, from, key_mark), key_end);
        at = hzp_structure_mark(m, hzp_structure_text(m, at, "\n"), value_mark);
        hzp_rules_empty(m->rules, behind_pair(m, hzp_structure_until(m, at, value_end)), from);
    }
    json_t *required = required_of(parameters);
    int r = HZP_OK;
    json_object_foreach(json_object_get(parameters, "properties"), name, schema)
    {
        int32_t end = from;
        if (r == HZP_OK)
            r = add_glm_pair(m, parameters, name, schema, from, &end);
        if (!json_object_get(required, name)) {
            int32_t both = hzp_rules_node(m->rules);
            hzp_rules_empty(m->rules, from, both);
            hzp_rules_empty(m->rules, end, both);
            end = both;
        }
        from = end;
    }
    json_decref(required);
    *ret = from;
    return r;
}

static bool names_arguments(const struct hzp_making *m)
{
    return m->what->calls == HZP_CALLS_MISTRAL && hzp_tokenizer_find(m->tok, args, 6) >= 0;
}

/* The call of one tool, without the marks around it. */
static int add_call(const struct hzp_making *m, const json_t *function, int32_t from, int32_t *ret)
{
    const char *name = json_string_value(json_object_get(function, "name"));
    int32_t at = from;
    if (m->what->calls == HZP_CALLS_GLM)
        return add_glm_arguments(m, function,
                                 hzp_structure_text(m, hzp_structure_text(m, at, name), "\n"), ret);
    if (m->what->calls == HZP_CALLS_CHANNELS) {
        at = hzp_structure_text(m, at, name);
        if (m->what->free) { /* the recipient may stand before the channel */
            int32_t named = at;
            at = hzp_structure_text(m, hzp_structure_mark(m, at, channel), "commentary");
            hzp_rules_empty(m->rules, named, at);
        }
        int32_t typed = hzp_structure_text(m, at, " ");
        hzp_rules_empty(m->rules, at, typed);
        int32_t json = hzp_structure_mark(m, typed, "<|constrain|>");
        json = hzp_structure_text(m, json, "json");
        hzp_rules_empty(m->rules, typed, json);
        return add_arguments(m, function, hzp_structure_mark(m, json, message), ret);
    }
    if (names_arguments(m))
        return add_arguments(m, function,
                             hzp_structure_mark(m, hzp_structure_text(m, at, name), args), ret);
    at = add_name(m, hzp_structure_text(m, at, "{\"name\": "), name);
    at = hzp_structure_text(
        m, at, m->what->calls == HZP_CALLS_LLAMA ? ", \"parameters\": " : ", \"arguments\": ");
    HZP_TRY(add_arguments(m, function, at, &at));
    *ret = hzp_structure_text(m, at, "}");
    return HZP_OK;
}

/* One call of any tool that may be called, in a rule of its own. */
static int call_rule(const struct hzp_making *m, int32_t *ret)
{
    const json_t *tool;
    size_t i;
    bool any = false;
    *ret = hzp_rules_add(m->rules, "call", 4);
    int32_t first = m->rules->rule[*ret].first, last = m->rules->rule[*ret].last, end;
    json_array_foreach(m->what->tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!name || (m->what->tool && strcmp(name, m->what->tool)))
            continue;
        any = true;
        HZP_TRY(add_call(m, function, first, &end));
        hzp_rules_empty(m->rules, end, last);
    }
    return any ? HZP_OK
               : hzp_fail(m->reterr, HZP_EINVAL, "no tool is named \"%.64s\"",
                          m->what->tool ? m->what->tool : "");
}

/* ---- an answer that is calls ---- */

static bool is_marked(const struct hzp_making *m)
{
    return m->what->calls == HZP_CALLS_HERMES || m->what->calls == HZP_CALLS_GLM;
}

/* A call between <tool_call> and </tool_call>. */
static int32_t marked_call(const struct hzp_making *m, int32_t from, int32_t rule)
{
    bool hermes = m->what->calls == HZP_CALLS_HERMES;
    int32_t at = hzp_structure_mark(m, from, tool_call);
    at = hzp_rules_then(m->rules, hermes ? hzp_structure_text(m, at, "\n") : at, rule);
    return hzp_structure_mark(m, hermes ? hzp_structure_text(m, at, "\n") : at, tool_call_end);
}

static int32_t channel_call(const struct hzp_making *m, int32_t from, int32_t rule)
{
    int32_t at = hzp_structure_mark(m, from, channel);
    return hzp_rules_then(m->rules, hzp_structure_text(m, at, "commentary to=functions."), rule);
}

/* Calls with what stands before the first, between two, and behind the last. */
static void add_row(const struct hzp_making *m, int32_t from, int32_t rule, int32_t to)
{
    bool named = names_arguments(m), list = m->what->calls == HZP_CALLS_MISTRAL && !named;
    bool one = m->what->one_call || m->what->calls == HZP_CALLS_CHANNELS;
    if (list)
        from = hzp_structure_text(m, hzp_structure_mark(m, from, calls_mark), "[");
    for (int i = 0; i < (one ? 1 : HZP_STRUCTURE_CALLS_MAX); i++) {
        if (is_marked(m)) {
            from = marked_call(m, i ? hzp_structure_text(m, from, "\n") : from, rule);
        } else if (m->what->calls == HZP_CALLS_CHANNELS) {
            from = channel_call(m, from, rule);
        } else {
            if (named)
                from = hzp_structure_mark(m, from, calls_mark);
            else if (i)
                from = hzp_structure_text(m, from, list ? ", " : "; ");
            from = hzp_rules_then(m->rules, from, rule);
        }
        hzp_rules_empty(m->rules, list ? hzp_structure_text(m, from, "]") : from, to);
    }
}

/* ---- text in which calls may begin ---- */

/* gpt-oss: a recipient in a header makes a call, which ends the answer. */
static void add_free_channels(const struct hzp_making *m, int32_t from, int32_t rule, int32_t to)
{
    static const char *const in_header[] = {"to=functions.", "<|message|>", "<|channel|>"};
    static const char *const in_body[] = {"<|channel|>", "<|start|>"};
    int32_t body = hzp_rules_node(m->rules), begun = hzp_rules_node(m->rules);
    hzp_rules_empty(m->rules, from, body);
    int32_t end = hzp_structure_without(m, body, in_body, HZP_COUNT(in_body), false);
    hzp_rules_empty(m->rules, end, to);
    hzp_rules_empty(m->rules, hzp_structure_mark(m, end, channel), begun);
    hzp_rules_empty(m->rules, hzp_structure_mark(m, end, "<|start|>"), begun);
    int32_t header = hzp_structure_without(m, begun, in_header, HZP_COUNT(in_header), false);
    hzp_rules_empty(m->rules, header, to);
    hzp_rules_empty(m->rules, hzp_structure_mark(m, header, message), body);
    hzp_rules_empty(m->rules, hzp_structure_mark(m, header, channel), begun);
    int32_t call = hzp_structure_text(m, header, "to=functions.");
    hzp_rules_empty(m->rules, hzp_rules_then(m->rules, call, rule), to);
}

/* Blanks, then the beginning of a call of a known tool: {"name": "f" */
static int32_t add_trigger(const struct hzp_making *m, struct hzp_rules *rules, int32_t from,
                           const char *name)
{
    const struct hzp_making in = {.tok = m->tok, .what = m->what, .rules = rules};
    static const char *const parts[] = {"{", "\"name\"", ":"};
    for (int i = 0; i <= HZP_COUNT(parts); i++) {
        int32_t blank = hzp_rules_node(rules);
        hzp_rules_empty(rules, from, blank);
        hzp_rules_bytes(rules, blank, '\t', '\n', blank);
        hzp_rules_bytes(rules, blank, '\r', '\r', blank);
        hzp_rules_bytes(rules, blank, ' ', ' ', blank);
        from = i < HZP_COUNT(parts) ? hzp_structure_text(&in, blank, parts[i]) : blank;
    }
    return add_name(&in, from, name);
}

/* Texts without <|python_tag|> that do not begin as a call of a tool does. */
static int32_t add_no_trigger(const struct hzp_making *m, int32_t from)
{
    struct hzp_rules *rules = hzp_rules_create();
    const struct hzp_making in = {.tok = m->tok, .what = m->what, .rules = rules};
    int32_t all = hzp_rules_node(rules), begin = hzp_rules_node(rules);
    int32_t before = hzp_rules_node(rules), behind = hzp_rules_node(rules);
    const json_t *tool;
    size_t i;
    hzp_structure_any(rules, all, false);
    hzp_structure_any(rules, before, false);
    hzp_structure_any(rules, behind, false);
    hzp_rules_empty(rules, begin, before);
    hzp_rules_empty(rules, hzp_structure_mark(&in, before, python_tag), behind);
    json_array_foreach(m->what->tools, i, tool)
    {
        const char *name =
            json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
        if (name)
            hzp_rules_empty(rules, add_trigger(m, rules, begin, name), behind);
    }
    return hzp_structure_other(m, from, rules, all, begin, behind);
}

/* Llama: the answer is a call from its beginning, or text with calls behind <|python_tag|>. */
static int add_free_llama(const struct hzp_making *m, int32_t from, int32_t rule, int32_t to)
{
    const json_t *tool;
    size_t i;
    int32_t text = add_no_trigger(m, from), called = hzp_rules_node(m->rules);
    hzp_rules_empty(m->rules, text, to);
    int32_t first = hzp_structure_mark(m, text, python_tag);
    hzp_rules_empty(m->rules, hzp_rules_then(m->rules, first, rule), called);
    json_array_foreach(m->what->tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!name)
            continue;
        int32_t at = add_trigger(m, m->rules, from, name);
        at = hzp_structure_text(m, at, ", \"parameters\": ");
        HZP_TRY(add_arguments(m, function, at, &at));
        hzp_rules_empty(m->rules, hzp_structure_text(m, at, "}"), called);
    }
    hzp_rules_empty(m->rules, called, to);
    if (m->what->one_call)
        return HZP_OK;
    int32_t next = hzp_structure_text(m, called, "; ");
    hzp_rules_empty(m->rules, hzp_rules_then(m->rules, next, rule), called);
    return HZP_OK;
}

/* The other forms: a mark begins a call. */
static void add_free_marked(const struct hzp_making *m, int32_t from, int32_t rule, int32_t to)
{
    const char *mark = is_marked(m) ? tool_call : calls_mark;
    int32_t loop = hzp_rules_node(m->rules);
    hzp_rules_empty(m->rules, from, loop);
    int32_t text = hzp_structure_without(m, loop, &mark, 1, false);
    hzp_rules_empty(m->rules, text, to);
    if (!is_marked(m)) {
        add_row(m, text, rule, to);
        return;
    }
    hzp_rules_empty(m->rules, marked_call(m, text, rule), m->what->one_call ? to : loop);
}

int hzp_structure_add_calls(const struct hzp_making *m, int32_t from, int32_t to)
{
    int32_t rule;
    if (!hzp_structure_calls(m->what->calls))
        return hzp_fail(m->reterr, HZP_EINVAL,
                        "calls cannot be asked for in the form in which this model writes them");
    HZP_TRY(call_rule(m, &rule));
    if (!m->what->free)
        add_row(m, from, rule, to);
    else if (m->what->calls == HZP_CALLS_CHANNELS)
        add_free_channels(m, from, rule, to);
    else if (m->what->calls == HZP_CALLS_LLAMA)
        return add_free_llama(m, from, rule, to);
    else
        add_free_marked(m, from, rule, to);
    return HZP_OK;
}
