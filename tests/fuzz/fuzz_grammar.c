/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a regular expression, a GBNF grammar or a JSON schema (the first byte says which):
 * refused with a text, or an automaton whose masks allow only tokens that it takes, and from whose
 * states some token leads on or the text may end. */
#include "tests/fuzz/smoke.h"
#include "tests/text/grammar/grammars.h"

enum { TOKENS = 256 + 8 };

static void check(bool condition)
{
    if (!condition)
        abort();
}

static struct hzp_lexicon *lexicon(void)
{
    static const char *const more[8] = {"\": \"", "\"}", "ab", "é", "]]", ", ", "true", "\\u00"};
    static char byte[256];
    static struct hzp_lexicon *made;
    struct hzp_token_text text[TOKENS];
    for (int i = 0; i < 256; i++) {
        byte[i] = (char)i;
        text[i] = (struct hzp_token_text){&byte[i], 1, false};
    }
    for (int i = 0; i < 8; i++)
        text[256 + i] = (struct hzp_token_text){more[i], (int32_t)strlen(more[i]), false};
    if (!made)
        hzp_lexicon_create(text, TOKENS, &made);
    return made;
}

static void walk(struct hzp_grammar *g)
{
    struct hzp_constraint_run *run = hzp_grammar_run_create(g);
    uint32_t mask[(TOKENS + 31) / 32];
    for (int i = 0; i < 40; i++) {
        if (!hzp_grammar_run_mask(run, mask)) {
            check(hzp_grammar_run_may_end(run));
            break;
        }
        int32_t token = (int32_t)fuzz_random(TOKENS);
        while (!test_bit(mask, token))
            token = (token + 1) % TOKENS;
        check(hzp_grammar_run_token(run, token));
    }
    hzp_grammar_run_destroy(run);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char kinds[] = "rgs";
    struct hzp_grammar *g = NULL;
    struct hzp_err_text err = {.text = ""};
    if (!size)
        return 0;
    int r = test_grammar(kinds[data[0] % 3], (const char *)data + 1, size - 1, lexicon(), &g, &err);
    check((r == HZP_OK) == (err.text[0] == 0) && (r == HZP_OK) == (g != NULL));
    check(r == HZP_OK || r == HZP_EINVAL);
    if (g)
        walk(g);
    hzp_grammar_unref(g);
    return 0;
}

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT("r^(?:[a-z_]\\w*|\\d{1,3}(?:\\.\\d{1,3}){3}|[^\"\\\\]*\\x41\\u00e9?)$"),
    FUZZ_TEXT("r(?P<y>(19|20)\\d\\d)-(?<m>0[1-9]|1[012])+?\\s\\S|\\.\\*[\\]-]{2,}"),
    FUZZ_TEXT("groot ::= object # c\nobject ::= \"{\" ws (pair (\",\" ws pair)*)? \"}\"\npair ::= "
              "\"\\\"\" [^\"\\\\\\x00-\\x1F]* \"\\\":\" value\nvalue ::= object | [0-9]{1,5} | "
              "\"true\"\nws ::= [ \\t\\n]{0,3}\n"),
    FUZZ_TEXT(
        "groot ::= (\"a\" | \"b\" root \"c\"){2} | .? \"\\u00e9\"+ |\n  last*\nlast ::= \"z\" "
        "last | \"\"\n"),
    FUZZ_TEXT(
        "s{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\", \"minimum\": "
        "-5, \"maximum\": 100}, \"b\": {\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, "
        "\"maxItems\": 3}}, \"required\": [\"a\"], \"additionalProperties\": false}"),
    FUZZ_TEXT(
        "s{\"anyOf\": [{\"type\": \"string\", \"minLength\": 1, \"maxLength\": 9}, {\"enum\": [1, "
        "\"x\", null, {\"k\": [0.5]}]}, {\"type\": \"number\", \"exclusiveMinimum\": 0}, "
        "{\"$ref\": \"#/$defs/d\"}], \"$defs\": {\"d\": {\"type\": \"string\", \"pattern\": "
        "\"^a+b\", \"title\": \"t\"}}}"),
    FUZZ_TEXT(
        "s{\"oneOf\": [{\"type\": \"object\", \"properties\": {\"k\": {\"const\": 1}}, "
        "\"required\": "
        "[\"k\"]}, {\"prefixItems\": [{\"format\": \"date\", \"type\": \"string\"}], \"type\": "
        "\"array\", \"minItems\": 1}]}"),
};

FUZZ_MAIN(seeds)
