/* SPDX-License-Identifier: Apache-2.0 */
#include "text/chat/structure_parts.h"

#include "text/grammar/rules.h"
#include "text/grammar/regular.h"
#include "text/grammar/schema.h"

/* ---- marks ---- */

int32_t hzp_structure_text(const struct hzp_making *m, int32_t from, const char *text)
{
    return hzp_rules_text(m->rules, from, text, strlen(text));
}

/* The mark's id, if it is a special token; else -1. */
static int32_t special(const struct hzp_making *m, const char *mark)
{
    int32_t id = hzp_tokenizer_find(m->tok, mark, strlen(mark));
    return id >= 0 && hzp_tokenizer_is_special(m->tok, id) ? id : -1;
}

void hzp_structure_spelled(const struct hzp_making *m, int32_t from, const char *mark, int32_t to)
{
    int32_t id = special(m, mark);
    if (id >= 0)
        hzp_rules_special(m->rules, from, id, to);
    hzp_rules_empty(m->rules, hzp_structure_text(m, from, mark), to);
}

int32_t hzp_structure_mark(const struct hzp_making *m, int32_t from, const char *mark)
{
    int32_t id = special(m, mark), to;
    if (id < 0)
        return hzp_structure_text(m, from, mark);
    to = hzp_rules_node(m->rules);
    hzp_rules_special(m->rules, from, id, to);
    return to;
}

void hzp_structure_any(struct hzp_rules *rules, int32_t node, bool text)
{
    hzp_rules_bytes(rules, node, 0, 0xFE, node);
    if (text)
        return;
    int32_t key = hzp_rules_node(rules);
    hzp_rules_bytes(rules, node, 0xFF, 0xFF, key);
    for (int i = 1; i < HZP_SPECIAL_KEY_BYTES; i++) {
        int32_t next = i + 1 < HZP_SPECIAL_KEY_BYTES ? hzp_rules_node(rules) : node;
        hzp_rules_bytes(rules, key, 0, 0xFF, next);
        key = next;
    }
}

int32_t hzp_structure_other(const struct hzp_making *m, int32_t from, struct hzp_rules *rules,
                            int32_t all, int32_t begin, int32_t end)
{
    struct hzp_regular *any = hzp_regular_create(rules, all, all),
                       *with = hzp_regular_create(rules, begin, end),
                       *left = any && with ? hzp_regular_without(any, with) : NULL;
    m->rules->full |= !left;
    int32_t to = left ? hzp_regular_add(m->rules, from, left) : from;
    hzp_regular_destroy(any);
    hzp_regular_destroy(with);
    hzp_regular_destroy(left);
    hzp_rules_destroy(rules);
    return to;
}

int32_t hzp_structure_without(const struct hzp_making *m, int32_t from, const char *const *mark,
                              int marks, bool text)
{
    struct hzp_rules *rules = hzp_rules_create();
    const struct hzp_making in = {.tok = m->tok, .what = m->what, .rules = rules};
    int32_t all = hzp_rules_node(rules), before = hzp_rules_node(rules);
    int32_t behind = hzp_rules_node(rules);
    hzp_structure_any(rules, all, text);
    hzp_structure_any(rules, before, text);
    hzp_structure_any(rules, behind, text);
    for (int i = 0; i < marks; i++)
        hzp_structure_spelled(&in, before, mark[i], behind);
    return hzp_structure_other(m, from, rules, all, before, behind);
}

int32_t hzp_structure_until(const struct hzp_making *m, int32_t from, const char *mark)
{
    return hzp_structure_mark(m, hzp_structure_without(m, from, &mark, 1, true), mark);
}

/* ---- reasoning ---- */

/* Blocks of analysis, if any, each with the beginning of the message behind it. */
static int32_t add_analysis(const struct hzp_making *m, int32_t from)
{
    static const char *const ends[] = {hzp_mark_end, hzp_mark_call, hzp_mark_return, hzp_mark_start,
                                       hzp_mark_channel};
    int32_t loop = hzp_rules_node(m->rules);
    hzp_rules_empty(m->rules, from, loop);
    int32_t at = hzp_structure_mark(m, loop, hzp_mark_channel);
    at = hzp_structure_mark(m, hzp_structure_text(m, at, "analysis"), hzp_mark_message);
    at = hzp_structure_mark(m, hzp_structure_without(m, at, ends, HZP_COUNT(ends), true), ends[0]);
    at = hzp_structure_text(m, hzp_structure_mark(m, at, hzp_mark_start), "assistant");
    hzp_rules_empty(m->rules, at, loop);
    return loop;
}

static int32_t add_reasoning(const struct hzp_making *m, int32_t from)
{
    if (!m->what->reasoning)
        return from;
    int32_t begun = m->what->inside ? from : hzp_structure_mark(m, from, hzp_mark_think);
    int32_t end = hzp_structure_until(m, begun, hzp_mark_think_end);
    for (int i = 0; i < 2; i++) {
        int32_t line = hzp_structure_text(m, end, "\n");
        hzp_rules_empty(m->rules, end, line);
        end = line;
    }
    if (!m->what->inside)
        hzp_rules_empty(m->rules, from, end);
    return end;
}

/* ---- content ---- */

static int add_choice(const struct hzp_making *m, int32_t from, int32_t to)
{
    size_t i;
    const json_t *each, *list = m->what->choice;
    if (!json_is_array(list) || !json_array_size(list) ||
        json_array_size(list) > HZP_STRUCTURE_CHOICES_MAX)
        return hzp_fail(m->reterr, HZP_EINVAL, "choice must be a list of 1 to %d strings",
                        HZP_STRUCTURE_CHOICES_MAX);
    json_array_foreach(list, i, each)
    {
        if (!json_is_string(each) || !json_string_length(each))
            return hzp_fail(m->reterr, HZP_EINVAL,
                            "choice must be a list of strings that are not empty");
        hzp_rules_empty(
            m->rules,
            hzp_rules_text(m->rules, from, json_string_value(each), json_string_length(each)), to);
    }
    return HZP_OK;
}

int hzp_structure_object(const struct hzp_making *m, const json_t *schema, int32_t *ret)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    if (type && !strcmp(type, "object"))
        return hzp_schema_rules(m->rules, schema, ret, m->reterr);
    json_auto_t *object = json_pack("{s:[O, {s:s}]}", "allOf", schema, "type", "object");
    return hzp_schema_rules_in(m->rules, schema, object, ret, m->reterr);
}

/* The text itself, from one node to another. */
static int add_content(const struct hzp_making *m, int32_t from, int32_t to)
{
    const struct hzp_structure *what = m->what;
    int32_t rule, end;
    if (what->object && what->schema) {
        HZP_TRY(hzp_structure_object(m, what->schema, &rule));
        hzp_rules_call(m->rules, from, rule, to);
    } else if (what->object) {
        hzp_rules_call(m->rules, from, hzp_json_object_rules(m->rules), to);
    } else if (what->schema) {
        HZP_TRY(hzp_schema_rules(m->rules, what->schema, &rule, m->reterr));
        hzp_rules_call(m->rules, from, rule, to);
    } else if (what->regex) {
        HZP_TRY(hzp_regex_rules(m->rules, from, what->regex, strlen(what->regex), HZP_SPELL_PLAIN,
                                false, &end, m->reterr));
        hzp_rules_empty(m->rules, end, to);
    } else if (what->gbnf) {
        HZP_TRY(hzp_gbnf_rules(m->rules, what->gbnf, strlen(what->gbnf), &rule, m->reterr));
        hzp_rules_call(m->rules, from, rule, to);
    } else if (what->choice) {
        return add_choice(m, from, to);
    }
    return HZP_OK;
}

static bool has_content(const struct hzp_structure *what)
{
    return what->object || what->schema || what->regex || what->gbnf || what->choice;
}

/* The header of a channel's final answer. */
static int32_t add_final(const struct hzp_making *m, int32_t from)
{
    int32_t at = hzp_structure_text(m, hzp_structure_mark(m, from, hzp_mark_channel), "final");
    int32_t typed = hzp_structure_text(m, at, " ");
    typed = hzp_structure_text(m, hzp_structure_mark(m, typed, hzp_mark_constrain), "json");
    hzp_rules_empty(m->rules, at, typed);
    return hzp_structure_mark(m, typed, hzp_mark_message);
}

int hzp_structure_rules(struct hzp_tokenizer *tok, const struct hzp_structure *what,
                        struct hzp_rules *rules, int32_t root, struct hzp_err_text *reterr)
{
    const struct hzp_making m = {.tok = tok, .what = what, .rules = rules, .reterr = reterr};
    int32_t from = rules->rule[root].first, to = rules->rule[root].last;
    if (what->channels && !what->free)
        from = add_analysis(&m, from);
    else if (!what->channels)
        from = add_reasoning(&m, from);
    if (has_content(what))
        HZP_TRY(add_content(&m, what->channels ? add_final(&m, from) : from, to));
    return what->tools ? hzp_structure_add_calls(&m, from, to) : HZP_OK;
}
