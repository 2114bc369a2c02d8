/* SPDX-License-Identifier: Apache-2.0 */
/* tests/text/grammar/grammars.h - grammars and vocabularies for tests.
 *
 * Thread: main.
 */
#pragma once

#include "base/json.h"
#include "text/grammar/rules.h"
#include "text/grammar/grammar.h"
#include "text/grammar/regular.h"
#include "text/grammar/schema.h"

#include <string.h>

/* kind: 'r' a regex, 'g' GBNF, 's' a JSON schema, 'o' any JSON object (text unused). */
static inline int test_rules(char kind, const char *text, size_t bytes, struct hzp_rules *rules,
                             int32_t *root, struct hzp_err_text *err)
{
    int32_t to;
    json_t *json;
    int r;
    switch (kind) {
    case 'r':
        *root = hzp_rules_add(rules, "root", 4);
        r = hzp_regex_rules(rules, rules->rule[*root].first, text, bytes, HZP_SPELL_PLAIN, false,
                            &to, err);
        if (r == HZP_OK)
            hzp_rules_empty(rules, to, rules->rule[*root].last);
        return r;
    case 'g':
        return hzp_gbnf_rules(rules, text, bytes, root, err);
    case 's':
        json = hzp_json_load(text, bytes, HZP_JSON_ANY, NULL, NULL);
        r = json ? hzp_schema_rules(rules, json, root, err) : hzp_fail(err, HZP_EINVAL, "no JSON");
        json_decref(json);
        return r;
    default:
        *root = hzp_json_object_rules(rules);
        return HZP_OK;
    }
}

static inline int test_grammar(char kind, const char *text, size_t bytes,
                               const struct hzp_lexicon *lexicon, struct hzp_grammar **ret,
                               struct hzp_err_text *err)
{
    struct hzp_rules *rules = hzp_rules_create();
    int32_t root = 0;
    int r = test_rules(kind, text, bytes, rules, &root, err);
    if (r == HZP_OK)
        r = hzp_grammar_create(rules, root, lexicon, ret, err);
    hzp_rules_destroy(rules);
    return r;
}

static inline bool test_bit(const uint32_t *mask, int32_t token)
{
    return mask[token / 32] >> token % 32 & 1;
}
