/* SPDX-License-Identifier: Apache-2.0 */
#include "api/text/structure.h"

#include "base/arena.h"
#include "base/thread.h"
#include "serve/grammar/gbnf.h"
#include "serve/grammar/regex.h"
#include "serve/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

struct kept {
    char *key;
    struct hzp_grammar *grammar;
    int64_t bytes;
    uint64_t used; /* the turn in which it was last asked for */
};

struct hzp_structures {
    struct hzp_tokenizer *tok;
    int32_t vocab;
    int64_t in_use_max;
    struct hzp_lock lock;
    struct hzp_lexicon *lexicon; /* NULL: not made yet */
    struct kept kept[HZP_STRUCTURES_MAX];
    int32_t count;
    int64_t bytes;
    uint64_t turn;
};

void hzp_structures_open(struct hzp_tokenizer *tok, int32_t vocab, int64_t in_use_max,
                         struct hzp_structures **ret)
{
    struct hzp_structures *s = hzp_xcalloc(1, sizeof(*s));
    s->tok = tok;
    s->vocab = vocab;
    s->in_use_max = in_use_max;
    hzp_lock_init(&s->lock, HZP_LOCK_GRAMMARS);
    *ret = s;
}

static void drop(struct hzp_structures *s, int32_t i)
{
    s->bytes -= s->kept[i].bytes;
    hzp_grammar_unref(s->kept[i].grammar);
    free(s->kept[i].key);
    s->kept[i] = s->kept[--s->count];
}

void hzp_structures_close(struct hzp_structures *s)
{
    if (!s)
        return;
    while (s->count)
        drop(s, s->count - 1);
    hzp_lexicon_destroy(s->lexicon);
    hzp_lock_fini(&s->lock);
    free(s);
}

/* Under the lock: the first request makes it, others wait for it. */
static const struct hzp_lexicon *lexicon(struct hzp_structures *s)
{
    if (s->lexicon)
        return s->lexicon;
    int32_t count = HZP_MIN(hzp_tokenizer_vocab(s->tok), s->vocab);
    struct hzp_token_text *text = hzp_xcalloc((size_t)count + 1, sizeof(*text));
    for (int32_t i = 0; i < count; i++) {
        size_t size = 0;
        text[i].bytes = hzp_tokenizer_token(s->tok, i, &size);
        text[i].size = (int32_t)size;
        text[i].special = hzp_tokenizer_is_special(s->tok, i);
    }
    hzp_lexicon_create(text, count, &s->lexicon);
    free(text);
    return s->lexicon;
}

/* ---- rules ---- */

struct making {
    struct hzp_structures *s;
    const struct hzp_structure *what;
    struct hzp_rules *rules;
    struct hzp_err_text *reterr;
};

/* A mark of the model's own form: a special token, or text. */
static int32_t add_mark(const struct making *m, int32_t from, const char *mark)
{
    int32_t id = hzp_tokenizer_find(m->s->tok, mark, strlen(mark));
    if (id < 0 || !hzp_tokenizer_is_special(m->s->tok, id))
        return hzp_rules_text(m->rules, from, mark, strlen(mark));
    int32_t to = hzp_rules_node(m->rules);
    hzp_rules_special(m->rules, from, id, to);
    return to;
}

/* Any text up to a mark. */
static int32_t add_until(const struct making *m, int32_t from, const char *mark)
{
    int32_t id = hzp_tokenizer_find(m->s->tok, mark, strlen(mark));
    if (id < 0 || !hzp_tokenizer_is_special(m->s->tok, id))
        return hzp_rules_until(m->rules, from, mark, strlen(mark));
    int32_t any = hzp_rules_node(m->rules);
    hzp_rules_empty(m->rules, from, any);
    hzp_rules_codes(m->rules, any, 0, HZP_CODE_LAST, any);
    return add_mark(m, any, mark);
}

static int32_t add_text(const struct making *m, int32_t from, const char *text)
{
    return hzp_rules_text(m->rules, from, text, strlen(text));
}

static int32_t add_reasoning(const struct making *m, int32_t from)
{
    if (!m->what->reasoning)
        return from;
    int32_t begun = m->what->inside ? from : add_mark(m, from, "<think>");
    int32_t end = add_until(m, begun, "</think>");
    for (int i = 0; i < 2; i++) {
        int32_t line = add_text(m, end, "\n");
        hzp_rules_empty(m->rules, end, line);
        end = line;
    }
    if (!m->what->inside)
        hzp_rules_empty(m->rules, from, end);
    return end;
}

static int add_choice(const struct making *m, int32_t from, int32_t to)
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

/* The text itself, from one node to another. */
static int add_content(const struct making *m, int32_t from, int32_t to)
{
    const struct hzp_structure *what = m->what;
    int32_t rule, end;
    if (what->object) {
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

/* ---- calls ---- */

/* The arguments of one tool behind `from`; *ret: the node behind them. */
static int add_arguments(const struct making *m, const json_t *function, int32_t from, int32_t *ret)
{
    const json_t *parameters = json_object_get(function, "parameters");
    int32_t rule;
    if (!json_is_object(parameters) || !json_object_size(parameters))
        rule = hzp_json_object_rules(m->rules);
    else
        HZP_TRY(hzp_schema_rules(m->rules, parameters, &rule, m->reterr));
    *ret = hzp_rules_then(m->rules, from, rule);
    return HZP_OK;
}

/* The name as it stands in JSON. */
static int32_t add_name(const struct making *m, int32_t from, const char *name)
{
    json_t *json = json_string(name);
    char *text = json_dumps(json, JSON_ENCODE_ANY);
    if (text)
        from = hzp_rules_text(m->rules, from, text, strlen(text));
    free(text);
    json_decref(json);
    return from;
}

static bool names_arguments(const struct making *m)
{
    return m->what->calls == HZP_CALLS_MISTRAL && hzp_tokenizer_find(m->s->tok, "[ARGS]", 6) >= 0;
}

/* One call of any tool that may be called, in a rule of its own. */
static int call_rule(const struct making *m, int32_t *ret)
{
    const json_t *tool;
    size_t i;
    bool any = false, llama = m->what->calls == HZP_CALLS_LLAMA;
    *ret = hzp_rules_add(m->rules, "call", 4);
    int32_t first = m->rules->rule[*ret].first, last = m->rules->rule[*ret].last;
    json_array_foreach(m->what->tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        int32_t at = first;
        if (!name || (m->what->tool && strcmp(name, m->what->tool)))
            continue;
        any = true;
        if (names_arguments(m)) {
            at = add_mark(m, add_text(m, at, name), "[ARGS]");
            HZP_TRY(add_arguments(m, function, at, &at));
        } else {
            at = add_name(m, add_text(m, at, "{\"name\": "), name);
            at = add_text(m, at, llama ? ", \"parameters\": " : ", \"arguments\": ");
            HZP_TRY(add_arguments(m, function, at, &at));
            at = add_text(m, at, "}");
        }
        hzp_rules_empty(m->rules, at, last);
    }
    return any ? HZP_OK
               : hzp_fail(m->reterr, HZP_EINVAL, "no tool is named \"%.64s\"",
                          m->what->tool ? m->what->tool : "");
}

/* What stands before the first call, between two, and behind the last. */
static int add_calls(const struct making *m, int32_t from, int32_t to)
{
    int32_t rule;
    if (!hzp_structure_calls(m->what->calls))
        return hzp_fail(m->reterr, HZP_EINVAL,
                        "calls cannot be asked for in the form in which this model writes them");
    HZP_TRY(call_rule(m, &rule));
    bool hermes = m->what->calls == HZP_CALLS_HERMES, named = names_arguments(m);
    bool list = m->what->calls == HZP_CALLS_MISTRAL && !named;
    if (list)
        from = add_text(m, add_mark(m, from, "[TOOL_CALLS]"), "[");
    for (int i = 0; i < (m->what->one_call ? 1 : HZP_STRUCTURE_CALLS_MAX); i++) {
        if (hermes)
            from =
                add_text(m, add_mark(m, i ? add_text(m, from, "\n") : from, "<tool_call>"), "\n");
        else if (named)
            from = add_mark(m, from, "[TOOL_CALLS]");
        else if (i)
            from = add_text(m, from, list ? ", " : "; ");
        from = hzp_rules_then(m->rules, from, rule);
        if (hermes)
            from = add_mark(m, add_text(m, from, "\n"), "</tool_call>");
        hzp_rules_empty(m->rules, list ? add_text(m, from, "]") : from, to);
    }
    return HZP_OK;
}

static int make(struct hzp_structures *s, const struct hzp_lexicon *words,
                const struct hzp_structure *what, struct hzp_grammar **ret,
                struct hzp_err_text *reterr)
{
    struct making m = {.s = s, .what = what, .rules = hzp_rules_create(), .reterr = reterr};
    int32_t root = hzp_rules_add(m.rules, "answer", 6);
    int32_t to = m.rules->rule[root].last;
    int32_t from = add_reasoning(&m, m.rules->rule[root].first);
    int r;
    if (what->channels)
        HZP_TRY_GOTO(
            hzp_fail(reterr, HZP_EINVAL, "not supported where the model's answers have channels"));
    HZP_TRY_GOTO(add_content(&m, from, to));
    if (what->tools)
        HZP_TRY_GOTO(add_calls(&m, from, to));
    HZP_TRY_GOTO(hzp_grammar_create(m.rules, root, words, ret, reterr));
out:
    hzp_rules_destroy(m.rules);
    return r;
}

/* ---- what is kept ---- */

/* What is asked as text; owned by the caller; NULL: no memory. */
static char *key_of(const struct hzp_structure *what)
{
    json_t *json =
        json_pack("{s:b, s:O?, s:O?, s:s?, s:s?, s:O?, s:s?, s:i, s:b, s:b, s:b, s:b}", "object",
                  what->object, "schema", what->schema, "choice", what->choice, "regex",
                  what->regex, "gbnf", what->gbnf, "tools", what->tools, "tool", what->tool,
                  "calls", (int)what->calls, "one", what->one_call, "reasoning", what->reasoning,
                  "inside", what->inside, "channels", what->channels);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}

/* Under the lock.  NULL: it is not kept. */
static struct hzp_grammar *find(struct hzp_structures *s, const char *key)
{
    for (int32_t i = 0; i < s->count; i++)
        if (!strcmp(s->kept[i].key, key)) {
            s->kept[i].used = ++s->turn;
            return hzp_grammar_ref(s->kept[i].grammar);
        }
    return NULL;
}

/* Under the lock; one at least is kept. */
static void drop_oldest(struct hzp_structures *s)
{
    int32_t oldest = 0;
    for (int32_t i = 1; i < s->count; i++)
        if (s->kept[i].used < s->kept[oldest].used)
            oldest = i;
    drop(s, oldest);
}

/* Under the lock.  Whether the grammars in use leave room for another, once none is merely kept. */
static bool has_room(struct hzp_structures *s)
{
    while (s->count && hzp_lexicon_in_use(s->lexicon) > s->in_use_max)
        drop_oldest(s);
    return hzp_lexicon_in_use(s->lexicon) <= s->in_use_max;
}

/* Under the lock; takes key over. */
static void keep(struct hzp_structures *s, char *key, struct hzp_grammar *grammar)
{
    int64_t bytes = hzp_grammar_size(grammar).bytes;
    while (s->count && (s->count == HZP_STRUCTURES_MAX || s->bytes + bytes > HZP_STRUCTURES_BYTES))
        drop_oldest(s);
    s->kept[s->count++] = (struct kept){key, hzp_grammar_ref(grammar), bytes, ++s->turn};
    s->bytes += bytes;
}

int hzp_structures_get(struct hzp_structures *s, const struct hzp_structure *what,
                       struct hzp_grammar **ret, struct hzp_err_text *reterr)
{
    char *key = key_of(what);
    if (!key)
        return hzp_fail(reterr, HZP_EINVAL, "it cannot be written as JSON");
    if (strlen(key) > HZP_STRUCTURE_SOURCE_MAX) {
        free(key);
        return hzp_fail(reterr, HZP_EINVAL, "longer than %d bytes", HZP_STRUCTURE_SOURCE_MAX);
    }
    hzp_lock_take(&s->lock);
    *ret = find(s, key);
    const struct hzp_lexicon *words = lexicon(s);
    int r = HZP_OK;
    if (!*ret && !has_room(s))
        r = hzp_fail(reterr, HZP_EBUSY,
                     "the grammars of requests in progress take more than %lld bytes; try again",
                     (long long)s->in_use_max);
    hzp_lock_release(&s->lock);
    if (!*ret && r == HZP_OK)
        r = make(s, words, what, ret, reterr);
    if (r < 0) {
        free(key);
        return r;
    }
    hzp_lock_take(&s->lock);
    struct hzp_grammar *other = find(s, key); /* another thread may have made it meanwhile */
    if (!other) {
        keep(s, key, *ret);
        key = NULL;
    }
    hzp_lock_release(&s->lock);
    hzp_grammar_unref(other);
    free(key);
    return HZP_OK;
}
