/* SPDX-License-Identifier: Apache-2.0 */
#include "base/words.h"
#include "text/chat/structure_parts.h"
#include "text/grammar/schema.h"

static const struct hzp_call_form *form_of(const struct hzp_making *m)
{
    return &hzp_call_form[m->what->calls];
}

/* Appends a text of the form; NULL: it has none. */
static int32_t add_words(const struct hzp_making *m, int32_t from, const char *words)
{
    return words ? hzp_structure_text(m, from, words) : from;
}

/* ---- one call ---- */

/* The name as it stands in JSON. */
static int32_t add_name(const struct hzp_making *m, int32_t from, const char *name)
{
    json_auto_t *json = json_string(name);
    HZP_FREED char *text = json_dumps(json, JSON_ENCODE_ANY);
    if (text)
        from = hzp_structure_text(m, from, text);
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

/* Arguments that fit the parameters (NULL: any object). */
typedef int add_fitting(const struct hzp_making *m, const json_t *parameters, int32_t from,
                        int32_t *ret);

/* The arguments of one tool.  Where its parameters cannot be honoured, any object, unless the tool
 * is strict: then that is an error that names it. */
static int add_parameters(const struct hzp_making *m, const json_t *function, add_fitting *add,
                          int32_t from, int32_t *ret)
{
    struct hzp_err_text why = {0};
    struct hzp_making own = *m;
    struct hzp_rules_point before = hzp_rules_here(m->rules);
    own.reterr = &why;
    int r = add(&own, parameters_of(m, function), from, ret);
    if (r == HZP_OK && !m->rules->full)
        return HZP_OK;
    if (json_is_true(json_object_get(function, "strict")))
        return hzp_fail(m->reterr, HZP_EINVAL, "the parameters of \"%.64s\": %.300s",
                        json_string_value(json_object_get(function, "name")),
                        r < 0 ? why.text : "schema: too large");
    hzp_rules_return(m->rules, before);
    return add(m, NULL, from, ret);
}

static int add_object(const struct hzp_making *m, const json_t *parameters, int32_t from,
                      int32_t *ret)
{
    int32_t rule;
    if (!parameters)
        rule = hzp_json_object_rules(m->rules);
    else
        HZP_TRY(hzp_structure_object(m, parameters, &rule));
    *ret = hzp_rules_then(m->rules, from, rule);
    return HZP_OK;
}

/* The arguments of one tool as JSON. */
static int add_arguments(const struct hzp_making *m, const json_t *function, int32_t from,
                         int32_t *ret)
{
    return add_parameters(m, function, add_object, from, ret);
}

/* A value of GLM's form, with its end: text where the parameter is a string, else JSON. */
static int add_glm_value(const struct hzp_making *m, const json_t *parameters, const json_t *schema,
                         int32_t from, int32_t *ret)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    int32_t rule;
    if (!type || strcmp(type, "string")) {
        HZP_TRY(hzp_schema_rules_in(m->rules, parameters, schema, &rule, m->reterr));
        *ret = hzp_structure_mark(m, hzp_rules_then(m->rules, from, rule), hzp_mark_glm_value_end);
        return HZP_OK;
    }
    struct hzp_rules *scratch = hzp_rules_create();
    int32_t before = hzp_rules_node(scratch);
    hzp_rules_bytes(scratch, before, 0, 0xFE, before);
    int32_t behind =
        hzp_rules_text(scratch, before, hzp_mark_glm_value_end, strlen(hzp_mark_glm_value_end));
    hzp_rules_bytes(scratch, behind, 0, 0xFE, behind);
    struct hzp_regular *with_end = hzp_regular_create(scratch, before, behind);
    int r = with_end ? hzp_schema_raw(m->rules, parameters, schema, with_end, from, ret, m->reterr)
                     : hzp_fail(m->reterr, HZP_EINVAL, "schema: its strings are too large");
    hzp_regular_destroy(with_end);
    hzp_rules_destroy(scratch);
    if (r == 0)
        *ret = hzp_structure_until(m, from, hzp_mark_glm_value_end);
    else if (r > 0)
        *ret = hzp_structure_mark(m, *ret, hzp_mark_glm_value_end);
    return r < 0 ? r : HZP_OK;
}

static int32_t behind_pair(const struct hzp_making *m, int32_t from)
{
    return hzp_structure_text(m, from, "\n");
}

static int add_glm_pair(const struct hzp_making *m, const json_t *parameters, const char *name,
                        const json_t *schema, int32_t from, int32_t *ret)
{
    int32_t at = hzp_structure_text(m, hzp_structure_mark(m, from, hzp_mark_glm_key), name);
    if (strstr(name, hzp_mark_glm_key_end))
        return hzp_fail(m->reterr, HZP_EINVAL, "schema: a property is named %.64s", name);
    at = hzp_structure_text(m, hzp_structure_mark(m, at, hzp_mark_glm_key_end), "\n");
    HZP_TRY(
        add_glm_value(m, parameters, schema, hzp_structure_mark(m, at, hzp_mark_glm_value), &at));
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
static int add_glm_arguments(const struct hzp_making *m, const json_t *parameters, int32_t from,
                             int32_t *ret)
{
    static const char known[] = "type properties required additionalProperties title description "
                                "$schema $defs definitions";
    const char *name;
    json_t *schema;
    json_object_foreach((json_t *)parameters, name, schema)
    {
        if (!hzp_among(known, name))
            return hzp_fail(m->reterr, HZP_EINVAL,
                            "schema: %.64s is not supported in GLM's form, where parameters have "
                            "properties only",
                            name);
    }
    if (!parameters) {
        int32_t at = hzp_structure_until(m, hzp_structure_mark(m, from, hzp_mark_glm_key),
                                         hzp_mark_glm_key_end);
        at = hzp_structure_mark(m, hzp_structure_text(m, at, "\n"), hzp_mark_glm_value);
        hzp_rules_empty(m->rules,
                        behind_pair(m, hzp_structure_until(m, at, hzp_mark_glm_value_end)), from);
    }
    json_auto_t *required = required_of(parameters);
    json_object_foreach(json_object_get(parameters, "properties"), name, schema)
    {
        int32_t end = from;
        HZP_TRY(add_glm_pair(m, parameters, name, schema, from, &end));
        if (!json_object_get(required, name)) {
            int32_t both = hzp_rules_node(m->rules);
            hzp_rules_empty(m->rules, from, both);
            hzp_rules_empty(m->rules, end, both);
            end = both;
        }
        from = end;
    }
    *ret = from;
    return HZP_OK;
}

/* What says that JSON follows: nothing, " json" or <|constrain|>json. */
static int32_t add_typed(const struct hzp_making *m, int32_t from)
{
    int32_t to = hzp_rules_node(m->rules), blank = hzp_structure_text(m, from, " ");
    int32_t constrain = hzp_structure_mark(m, blank, hzp_mark_constrain);
    hzp_rules_empty(m->rules, hzp_structure_mark(m, from, hzp_mark_constrain), constrain);
    hzp_rules_empty(m->rules, hzp_structure_text(m, constrain, "json"), to);
    hzp_rules_empty(m->rules, hzp_structure_text(m, blank, "json"), to);
    hzp_rules_empty(m->rules, blank, to);
    hzp_rules_empty(m->rules, from, to);
    return to;
}

/* The nine letters or digits that Mistral's templates want. */
static int32_t add_id(const struct hzp_making *m, int32_t from)
{
    for (int i = 0; i < HZP_CALL_ID_BYTES; i++) {
        int32_t next = hzp_rules_node(m->rules);
        hzp_rules_bytes(m->rules, from, '0', '9', next);
        hzp_rules_bytes(m->rules, from, 'A', 'Z', next);
        hzp_rules_bytes(m->rules, from, 'a', 'z', next);
        from = next;
    }
    return from;
}

/* The call of one tool, without the marks around it. */
static int add_call(const struct hzp_making *m, const json_t *function, int32_t from, int32_t *ret)
{
    const struct hzp_call_form *form = form_of(m);
    const char *name = json_string_value(json_object_get(function, "name"));
    int32_t at = from;
    switch (form->body) {
    case HZP_CALL_PAIRS:
        at = hzp_structure_text(m, hzp_structure_text(m, at, name), "\n");
        return add_parameters(m, function, add_glm_arguments, at, ret);
    case HZP_CALL_HEADER: /* the channel, if it did not stand before the recipient */
        at = hzp_structure_text(m, at, name);
        int32_t named = at;
        at = hzp_structure_text(m, hzp_structure_mark(m, at, hzp_mark_channel), "commentary");
        hzp_rules_empty(m->rules, named, at);
        at = hzp_structure_mark(m, add_typed(m, at), hzp_mark_message);
        return add_arguments(m, function, at, ret);
    case HZP_CALL_NAMED:
        at = hzp_structure_text(m, at, name);
        if (form->id)
            at = add_id(m, hzp_structure_mark(m, at, form->id));
        return add_arguments(m, function, hzp_structure_mark(m, at, form->args), ret);
    default:
        at = add_name(m, hzp_structure_text(m, at, "{\"name\": "), name);
        at = hzp_structure_text(m, hzp_structure_text(m, at, ", \""), form->key);
        HZP_TRY(add_arguments(m, function, hzp_structure_text(m, at, "\": "), &at));
        *ret = hzp_structure_text(m, at, "}");
        return HZP_OK;
    }
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
        if (!hzp_call_form_has_name(m->what->calls, name))
            return hzp_fail(m->reterr, HZP_EINVAL,
                            "the name \"%.64s\" cannot stand in a call in this model's form", name);
        HZP_TRY(add_call(m, function, first, &end));
        hzp_rules_empty(m->rules, end, last);
    }
    return any ? HZP_OK
               : hzp_fail(m->reterr, HZP_EINVAL, "no tool is named \"%.64s\"",
                          m->what->tool ? m->what->tool : "");
}

/* ---- an answer that is calls ---- */

/* A call between its marks. */
static int32_t marked_call(const struct hzp_making *m, int32_t from, int32_t rule)
{
    const struct hzp_call_form *form = form_of(m);
    int32_t at = add_words(m, hzp_structure_mark(m, from, form->open), form->in);
    at = add_words(m, hzp_rules_then(m->rules, at, rule), form->out);
    return form->close ? hzp_structure_mark(m, at, form->close) : at;
}

/* The recipient stands before or behind the channel. */
static void add_channel_call(const struct hzp_making *m, int32_t from, int32_t rule, int32_t to)
{
    int32_t at = hzp_structure_text(m, hzp_structure_mark(m, from, hzp_mark_channel), "commentary");
    hzp_rules_empty(m->rules, from, at);
    at = hzp_structure_text(m, hzp_structure_text(m, at, " "), hzp_mark_recipient);
    hzp_rules_empty(m->rules, hzp_rules_then(m->rules, at, rule), to);
}

/* Calls with what stands before the first, between two, and behind the last. */
static void add_row(const struct hzp_making *m, int32_t from, int32_t rule, int32_t to)
{
    const struct hzp_call_form *form = form_of(m);
    if (form->row && !form->bare)
        from = add_words(m, hzp_structure_mark(m, from, form->open), form->in);
    for (int i = 0; i < (m->what->one_call ? 1 : HZP_STRUCTURE_CALLS_MAX); i++) {
        from = i ? add_words(m, from, form->between) : from;
        from = form->row ? hzp_rules_then(m->rules, from, rule) : marked_call(m, from, rule);
        hzp_rules_empty(m->rules, form->row ? add_words(m, from, form->out) : from, to);
    }
}

/* ---- text in which calls may begin ---- */

/* gpt-oss: a recipient in a header makes a call, which ends the answer. */
static void add_free_channels(const struct hzp_making *m, int32_t from, int32_t rule, int32_t to)
{
    static const char *const in_header[] = {hzp_mark_recipient, hzp_mark_message, hzp_mark_channel};
    static const char *const in_body[] = {hzp_mark_channel, hzp_mark_start};
    int32_t body = hzp_rules_node(m->rules), begun = hzp_rules_node(m->rules);
    hzp_rules_empty(m->rules, from, begun); /* the prompt ends within a header */
    int32_t end = hzp_structure_without(m, body, in_body, HZP_COUNT(in_body), false);
    hzp_rules_empty(m->rules, end, to);
    hzp_rules_empty(m->rules, hzp_structure_mark(m, end, hzp_mark_channel), begun);
    hzp_rules_empty(m->rules, hzp_structure_mark(m, end, hzp_mark_start), begun);
    int32_t header = hzp_structure_without(m, begun, in_header, HZP_COUNT(in_header), false);
    hzp_rules_empty(m->rules, header, to);
    hzp_rules_empty(m->rules, hzp_structure_mark(m, header, hzp_mark_message), body);
    hzp_rules_empty(m->rules, hzp_structure_mark(m, header, hzp_mark_channel), begun);
    int32_t call = hzp_structure_text(m, header, hzp_mark_recipient);
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

/* Texts without the mark of a call that do not begin as a call of a tool does. */
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
    hzp_structure_spelled(&in, before, form_of(m)->open, behind);
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
    int32_t first = hzp_structure_mark(m, text, form_of(m)->open);
    hzp_rules_empty(m->rules, hzp_rules_then(m->rules, first, rule), called);
    json_array_foreach(m->what->tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!name)
            continue;
        int32_t at = add_trigger(m, m->rules, from, name);
        at = hzp_structure_text(m, hzp_structure_text(m, at, ", \""), form_of(m)->key);
        HZP_TRY(add_arguments(m, function, hzp_structure_text(m, at, "\": "), &at));
        hzp_rules_empty(m->rules, hzp_structure_text(m, at, "}"), called);
    }
    hzp_rules_empty(m->rules, called, to);
    if (m->what->one_call)
        return HZP_OK;
    int32_t next = hzp_structure_text(m, called, form_of(m)->between);
    hzp_rules_empty(m->rules, hzp_rules_then(m->rules, next, rule), called);
    return HZP_OK;
}

/* The other forms: a mark begins a call, or a row of them, which ends the answer. */
static void add_free_marked(const struct hzp_making *m, int32_t from, int32_t rule, int32_t to)
{
    const struct hzp_call_form *form = form_of(m);
    int32_t loop = hzp_rules_node(m->rules);
    hzp_rules_empty(m->rules, from, loop);
    int32_t text = hzp_structure_without(m, loop, &form->open, 1, false);
    hzp_rules_empty(m->rules, text, to);
    if (form->row)
        add_row(m, text, rule, to);
    else
        hzp_rules_empty(m->rules, marked_call(m, text, rule), m->what->one_call ? to : loop);
}

int hzp_structure_add_calls(const struct hzp_making *m, int32_t from, int32_t to)
{
    int32_t rule;
    if (!hzp_structure_calls(m->what->calls))
        return hzp_fail(m->reterr, HZP_EINVAL,
                        "calls cannot be asked for in the form in which this model writes them");
    const struct hzp_call_form *form = form_of(m);
    bool header = form->body == HZP_CALL_HEADER;
    HZP_TRY(call_rule(m, &rule));
    if (!m->what->free && header)
        add_channel_call(m, from, rule, to);
    else if (!m->what->free)
        add_row(m, from, rule, to);
    else if (header)
        add_free_channels(m, from, rule, to);
    else if (form->bare)
        return add_free_llama(m, from, rule, to);
    else
        add_free_marked(m, from, rule, to);
    return HZP_OK;
}
