/* SPDX-License-Identifier: Apache-2.0 */
/* tests/text/grammar/grammar_walk.c - JSON schemas as grammars, for another program.
 *
 * Reads lines {"schema": ..., "walks": n, "texts": [...]} and answers each by a line {"refused":
 * why} or {"made": [n texts made by random walks], "taken": [for each text whether it is taken]}.
 * The tokens are bytes and pieces of JSON; what a mask allows and what a run takes is compared at
 * each step. */
#include "tests/text/grammar/grammars.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const piece[] = {
    "{\"",    "\": ", "\":",   ", \"", ",\"",  "\"}",      "\"]",    "}}",  "[{\"", "\"a",  "\"b\"",
    "\": \"", "true", "false", "null", "12",   "0.",       "-1",     "abc", "é",    "日本", "\\n",
    "\\\"",   " ",    "\n  ",  "]}",   "name", "\xe6\x97", "\xa5\"", "[[",  "],",   "e1"};
enum { TOKENS = 256 + HZP_COUNT(piece), STEPS_MAX = 4000, SOFT = 120 };

static uint64_t state = 1;

static uint32_t below(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

/* One token that the mask allows; late in a text rather one that closes something. */
static int32_t choose(const uint32_t *mask, bool late)
{
    static const char closing[] = "}]\",:0123456789";
    int32_t found = -1;
    if (late && below(8))
        for (const char *c = closing; *c; c++)
            if (test_bit(mask, *c) && (found < 0 || !below(4)))
                found = *c;
    if (found >= 0)
        return found;
    found = (int32_t)below(TOKENS);
    while (!test_bit(mask, found))
        found = (found + 1) % TOKENS;
    return found;
}

/* A text by random tokens; NULL: it did not end in time. */
static json_t *make(struct hzp_grammar *g, const struct hzp_token_text *token)
{
    struct hzp_constraint_run *run = hzp_grammar_run_create(g);
    uint32_t mask[(TOKENS + 31) / 32];
    char *text = hzp_xmalloc(STEPS_MAX * 16);
    size_t bytes = 0;
    bool ended = false;
    for (int i = 0; i < STEPS_MAX && !ended; i++) {
        bool may_end = hzp_grammar_run_may_end(run), any = hzp_grammar_run_mask(run, mask);
        HZP_ASSERT(any || may_end);
        ended = !any || (may_end && !below(i > SOFT ? 1 : 4));
        if (ended)
            break;
        int32_t t = choose(mask, i > SOFT);
        HZP_ASSERT(hzp_grammar_run_token(run, t));
        memcpy(text + bytes, token[t].bytes, (size_t)token[t].size);
        bytes += (size_t)token[t].size;
    }
    hzp_grammar_run_destroy(run);
    json_t *json = ended ? json_stringn(text, bytes) : json_null();
    HZP_ASSERT(json); /* what is taken is UTF-8 */
    free(text);
    return json;
}

static bool takes(struct hzp_grammar *g, const char *text, size_t bytes)
{
    struct hzp_constraint_run *run = hzp_grammar_run_create(g);
    uint32_t mask[(TOKENS + 31) / 32];
    bool good = true;
    for (size_t i = 0; i < bytes && good; i++) {
        int32_t token = (uint8_t)text[i];
        hzp_grammar_run_mask(run, mask);
        bool allowed = test_bit(mask, token);
        good = hzp_grammar_run_token(run, token);
        HZP_ASSERT(good == allowed);
    }
    good = good && hzp_grammar_run_may_end(run);
    hzp_grammar_run_destroy(run);
    return good;
}

static json_t *answer(const json_t *ask, const struct hzp_lexicon *lexicon,
                      const struct hzp_token_text *token)
{
    struct hzp_rules *rules = hzp_rules_create();
    struct hzp_grammar *g = NULL;
    struct hzp_err_text err = {0};
    int32_t root;
    int r = hzp_schema_rules(rules, json_object_get(ask, "schema"), &root, &err);
    if (r == HZP_OK)
        r = hzp_grammar_create(rules, root, lexicon, &g, &err);
    hzp_rules_destroy(rules);
    if (r < 0)
        return json_pack("{s:s}", "refused", err.text);
    json_t *made = json_array(), *taken = json_array(), *each;
    size_t i;
    for (json_int_t n = json_integer_value(json_object_get(ask, "walks")); n > 0; n--)
        json_array_append_new(made, make(g, token));
    json_array_foreach(json_object_get(ask, "texts"), i, each) json_array_append_new(
        taken, json_boolean(takes(g, json_string_value(each), json_string_length(each))));
    hzp_grammar_unref(g);
    return json_pack("{s:o, s:o}", "made", made, "taken", taken);
}

int main(void)
{
    static char byte[256];
    struct hzp_token_text token[TOKENS];
    struct hzp_lexicon *lexicon;
    char *line = NULL;
    size_t room = 0;
    for (int i = 0; i < 256; i++) {
        byte[i] = (char)i;
        token[i] = (struct hzp_token_text){&byte[i], 1, false};
    }
    for (int i = 0; i < HZP_COUNT(piece); i++)
        token[256 + i] = (struct hzp_token_text){piece[i], (int32_t)strlen(piece[i]), false};
    hzp_lexicon_create(token, TOKENS, &lexicon);
    while (getline(&line, &room, stdin) > 0) {
        json_t *ask = hzp_json_load(line, strlen(line), 0, NULL, NULL),
               *told = ask ? answer(ask, lexicon, token) : NULL;
        HZP_ASSERT(told);
        char *text = json_dumps(told, JSON_COMPACT);
        puts(text);
        fflush(stdout);
        free(text);
        json_decref(ask);
        json_decref(told);
    }
    free(line);
    hzp_lexicon_destroy(lexicon);
    return 0;
}
