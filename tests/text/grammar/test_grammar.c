/* SPDX-License-Identifier: Apache-2.0 */
/* tests/text/grammar/test_grammar.c - which texts each front end takes, and masks beside brute
 * force. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/text/grammar/grammars.h"

#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 1;

static uint32_t below(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

/* ---- vocabularies ---- */

enum { TOKENS = 700, WORDS = (TOKENS + 31) / 32, SPECIALS = 4 };

struct words {
    struct hzp_token_text text[TOKENS];
    char bytes[TOKENS][16];
    struct hzp_lexicon *lexicon;
};

static void add_word(struct words *w, int32_t i, const char *bytes, int32_t size)
{
    memcpy(w->bytes[i], bytes, (size_t)size);
    w->text[i] = (struct hzp_token_text){w->bytes[i], size, false};
}

/* Pieces of texts as tokens have them: they cross quotes, brackets and characters. */
static int32_t random_piece(char *ret)
{
    static const char *const part[] = {
        "{",        "}",        "[",        "]",    "\"",   "\":",   "\", \"", ",",  ", ",
        ": ",       "\n",       "  ",       "a",    "b",    "ab",    "abc",    "1",  "12",
        "0",        "-",        ".",        "e5",   "\\n",  "\\u00", "é",      "日", "\xe6",
        "\xa5\xe6", "\xf0\x9f", "\x98\x80", "true", "null", "name",  "x",      "(",  ")"};
    int32_t size = 0;
    for (uint32_t n = 1 + below(3); n > 0; n--) {
        const char *text = part[below(HZP_COUNT(part))];
        int32_t bytes = (int32_t)strlen(text);
        if (size + bytes > 15)
            break;
        memcpy(ret + size, text, (size_t)bytes);
        size += bytes;
    }
    return size;
}

/* Byte-level: every byte is a token.  Else as SentencePiece with byte fallback: bytes have tokens,
 * and printable characters a second one. */
static void words_make(struct words *w, bool byte_level)
{
    int32_t i = 0;
    for (; i < 256; i++) {
        char byte = (char)i;
        add_word(w, i, &byte, 1);
    }
    for (int c = ' '; c < 127 && !byte_level; c++) {
        char byte = (char)c;
        add_word(w, i++, &byte, 1);
    }
    for (; i < TOKENS - SPECIALS; i++) {
        char piece[16];
        add_word(w, i, piece, random_piece(piece));
    }
    w->text[i++] = (struct hzp_token_text){"<s>", 3, true};
    w->text[i++] = (struct hzp_token_text){"", 0, false}; /* no bytes */
    w->text[i++] = (struct hzp_token_text){NULL, 0, false};
    w->text[i++] = (struct hzp_token_text){"<x>", 3, true};
    hzp_lexicon_create(w->text, TOKENS, &w->lexicon);
}

struct vocabularies {
    struct words words[2];
};

static int setup(void **state_of_test)
{
    struct vocabularies *v = calloc(1, sizeof(*v));
    for (int i = 0; i < 2; i++)
        words_make(&v->words[i], i == 0);
    *state_of_test = v;
    return 0;
}

static int teardown(void **state_of_test)
{
    struct vocabularies *v = *state_of_test;
    for (int i = 0; i < 2; i++)
        hzp_lexicon_destroy(v->words[i].lexicon);
    free(v);
    return 0;
}

static struct hzp_grammar *made(struct vocabularies *v, char kind, const char *text)
{
    struct hzp_grammar *g = NULL;
    struct hzp_err_text err = {0};
    if (test_grammar(kind, text, strlen(text), v->words[0].lexicon, &g, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return g;
}

static bool takes(struct hzp_grammar *g, const char *text, size_t bytes)
{
    struct hzp_constraint_run *run = hzp_grammar_run_create(g);
    bool whole = hzp_grammar_run_bytes(run, text, bytes) && hzp_grammar_run_may_end(run);
    hzp_grammar_run_destroy(run);
    return whole;
}

/* ---- texts ---- */

struct text_case {
    char kind;
    const char *grammar;
    const char *taken[16], *not_taken[16];
};

static const struct text_case texts[] = {
    {'r', "ab(c{1,2})?", {"ab", "abc", "abcc"}, {"", "a", "abccc", "xab", "abx"}},
    {'r', "^(?:yes|no)$|maybe", {"yes", "no", "maybe"}, {"yesno", "^yes", "mayb"}},
    {'r', "[^a-c\\d]+", {"xyz", "é日"}, {"", "xa", "x1"}},
    {'r', "\\w+@\\w+\\.(com|org)", {"a_1@b.com"}, {"a@b.net", "@b.com", "a@.org"}},
    {'r', "(?P<a>x{0})y*?", {"", "y", "yyy"}, {"x", "xy"}},
    {'r', "(?:ab){2,}c{3}", {"ababccc", "abababccc"}, {"abccc", "ababcc", "ababcccc"}},
    {'r', "[\\u65e5\\x41-\\x43\\]-]\\u{1F600}?", {"日", "A", "]", "-", "B\xf0\x9f\x98\x80"}, {"D"}},
    {'r', ".", {"a", "é", "\xf0\x9f\x98\x80"}, {"", "\n", "ab", "\xc3", "\xed\xa0\x80"}},
    {'r', "\\s\\S\\D\\W", {" xx.", "\txx "}, {"xxx.", "  x."}},
    {'g',
     "root ::= \"a\" b* # note\nb ::= [0-9] | \"(\" root \")\"",
     {"a", "a1", "a(a2)3", "a(a(a))"},
     {"", "b", "a(", "a)"}},
    {'g',
     "root ::= (\"x\" | \"y\"){2,3} [^\\n]? \"\\u00e9\\\"\"",
     {"xyé\"", "yyyzé\""},
     {"xé\"", "xy\né\""}},
    {'g', "root ::= a\na ::= b |\n  \"c\" a\nb ::= \"d\"{0,1}", {"", "d", "ccd"}, {"dd", "dc"}},
    {'g',
     "root ::= list\nlist ::= item (\",\" list)?\nitem ::= .",
     {"a", "a,b,c", ",,,"},
     {"", "ab"}},
    {'g',
     "root ::= e e\ne ::= \"a\" | \"a\" e \"b\" | \"\"",
     {"", "a", "aab", "aabab"},
     {"b", "ba"}},
    {'o',
     "",
     {"{}", "{ }", "{\"a\":[1,{\"b\":null}]}", "{\"\":\"\\u00e9\\ud83d\\ude00\"}",
      "{\n  \"a\": -1.5e-3\n}"},
     {"", "[]", "{\"a\":01}", "{\"a\":\"\\ud800\"}", "{,}", "{\"a\":1,}", "{\"a\":\"\n\"}", "{} "}},
    {'s',
     "{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":105}",
     {"0", "-12", "-9", "104", "99", "100"},
     {"-13", "105", "-0", "01", "1.0", "-", ""}},
    {'s',
     "{\"type\":\"number\",\"exclusiveMinimum\":-1,\"maximum\":2}",
     {"0", "0.0", "2", "2.00", "1.99", "-0.5", "-0.99"},
     {"-1", "-1.0", "2.01", "3", "-0.0", "-0"}},
    {'s',
     "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"日é\"", "\"\\n\\\"\"", "\"a\xf0\x9f\x98\x80z\""},
     {"\"a\"", "\"abcd\"", "ab"}},
    {'s',
     "{\"type\":\"string\",\"pattern\":\"b+$\"}",
     {"\"ab\"", "\"b\"", "\"\\nbb\""},
     {"\"a\"", "\"ba\""}},
    {'s',
     "{\"enum\":[1,\"a\\n\",[true,{\"x\":null}],0.5]}",
     {"1", "\"a\\n\"", "[true,{\"x\":null}]", "[true, {\"x\": null}]", "0.5", "1.0", "5e-1"},
     {"2", "[true]", "1.1", "0.05", "5e1"}},
    {'s',
     "{\"enum\":[20]}",
     {"20", "20.0", "20.000", "2e1", "2E1", "2E+1", "2.0e1", "2.0e01", "20e0", "20.0E-0"},
     {"2", "200", "20.", "20.01", "2e2", "2e-1", "-20", "20e1", "020", "2e", "20.0e1"}},
    {'s',
     "{\"type\":\"integer\",\"const\":-1.5e3}",
     {"-1500", "-1500.0", "-1.5e3", "-15e2", "-1.50E+3", "-15.0e2"},
     {"1500", "-1.5", "-15e3", "-1.5e2"}},
    {'s',
     "{\"enum\":[0, 18446744073709551616, 1e400, 0.00125]}",
     {"0", "0.0", "-0", "0e0", "18446744073709551616", "18446744073709551616.0",
      "1.8446744073709551616e19", "1e400", "1.0E+400", "0.00125", "1.25e-3", "125e-5", "0.001250"},
     {"18446744073709551615", "1e40", "1e4000", "0.0125", "1.25e3"}},
    {'s',
     "{\"enum\":[9007199254740993,18446744073709551615,18446744073709551616,1e400,-1e400,0.5],"
     "\"exclusiveMinimum\":9007199254740992,\"maximum\":18446744073709551615}",
     {"9007199254740993", "18446744073709551615"},
     {"18446744073709551616", "1e400", "-1e400", "0.5"}},
    {'s',
     "{\"const\":{\"a\":[2e1]}}",
     {"{\"a\":[20]}", "{\"a\": [2e1]}", "{\"a\":[20.0]}"},
     {"{\"a\":[2]}"}},
    {'s',
     "{\"type\":\"number\"}",
     {"1e400", "-2.5E-1000", "1e+12345", "0", "-0.0"},
     {"1e", "1e+", ".5", "01", "+1"}},
    {'s',
     "{\"type\":\"integer\",\"minimum\":-1e400,\"maximum\":18446744073709551615}",
     {"0", "-5", "999999999999999999"},
     {"1.5"}},
    {'s', "{\"type\":[\"string\",\"null\"],\"enum\":[null,\"b\",3]}", {"null", "\"b\""}, {"3"}},
    {'s',
     "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"type\":\"boolean\"},"
     "\"minItems\":1,\"maxItems\":3}",
     {"[null]", "[null,true]", "[null, true, false]"},
     {"[]", "[true]", "[null,true,true,true]"}},
    {'s',
     "{\"items\":{\"type\":\"integer\"},\"type\":\"array\",\"minItems\":2}",
     {"[1,2]", "[1,2,3]"},
     {"[]", "[1]", "[1,]"}},
    {'s',
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{}},\"required\":"
     "[\"b\",\"c\"],\"additionalProperties\":{\"type\":\"boolean\"}}",
     {"{\"a\":1,\"b\":2,\"c\":true}", "{\"b\":[],\"c\":false,\"ab\":true,\"\":false}",
      "{\"b\":\"x\",\"c\":true}"},
     {"{\"a\":1}", "{\"b\":1,\"c\":1}", "{\"b\":1,\"c\":true,\"a\":1}",
      "{\"b\":1,\"c\":true,\"d\":1}", "{\"b\":1,\"c\":true,\"\\u0061\":true}"}},
    {'s',
     "{\"$ref\":\"#/$defs/"
     "t\",\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"v\":{\"const\""
     ":1},\"n\":{\"anyOf\":[{\"$ref\":\"#/$defs/t\"},{\"type\":\"null\"}]}},\"required\":[\"v\"],"
     "\"additionalProperties\":false}}}",
     {"{\"v\":1}", "{\"v\":1,\"n\":null}", "{\"v\":1,\"n\":{\"v\":1}}"},
     {"{}", "{\"v\":2}", "{\"n\":null}"}},
    {'s',
     "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"}},\"required\":["
     "\"k\"],"
     "\"additionalProperties\":false},{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"b\"]}"
     "},"
     "\"required\":[\"k\"]}]}",
     {"{\"k\":\"a\"}", "{\"k\":\"b\",\"x\":1}"},
     {"{\"k\":\"a\",\"x\":1}", "{\"k\":\"c\"}"}},
    {'s',
     "{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"1999-12-31\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\""}},
    {'s',
     "{\"type\":\"string\",\"format\":\"ipv4\"}",
     {"\"255.0.10.199\""},
     {"\"256.0.0.1\"", "\"1.2.3\""}},
    /* a format without an expression, and uniqueItems, say nothing */
    {'s', "{\"type\":\"string\",\"format\":\"email\"}", {"\"a@b\"", "\"\""}, {"1"}},
    {'s',
     "{\"type\":\"string\",\"format\":\"uri\",\"maxLength\":2,\"pattern\":\"^a\"}",
     {"\"a\"", "\"ab\""},
     {"\"b\"", "\"abc\""}},
    {'s', "{\"format\":\"hostname\",\"enum\":[\"a\",1]}", {"\"a\"", "1"}, {"\"b\""}},
    {'s', "{\"type\":\"array\",\"uniqueItems\":true}", {"[]", "[1]", "[1,1]"}, {"{}"}},
    {'s', "{\"const\":[1,1],\"x-note\":{}}", {"[1,1]"}, {"[1]"}},
    /* the alternatives of a discriminator have its member, required or not */
    {'s',
     "{\"$defs\":{\"C\":{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"c\"},\"n\":{"
     "\"type\":"
     "\"integer\"}}},\"D\":{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"d\"}}}},"
     "\"oneOf\":[{\"$ref\":\"#/$defs/C\"},{\"$ref\":\"#/$defs/D\"}],\"discriminator\":{"
     "\"propertyName\":\"t\"}}",
     {"{\"t\":\"c\",\"n\":1}", "{\"t\":\"d\",\"n\":\"x\"}"},
     {"{}", "{\"t\":\"c\",\"n\":\"x\"}", "{\"t\":\"e\"}"}},
    /* and an alternative may have alternatives itself, with a discriminator of their own */
    {'s',
     "{\"$defs\":{\"B\":{\"properties\":{\"t\":{\"const\":\"c\"},\"u\":{\"const\":1}},\"required\":"
     "["
     "\"t\",\"u\"],\"type\":\"object\"},\"W\":{\"properties\":{\"t\":{\"const\":\"c\"},\"u\":{"
     "\"const\":2}},\"required\":[\"t\",\"u\"],\"type\":\"object\"},\"D\":{\"properties\":{\"t\":{"
     "\"const\":\"d\"}},\"required\":[\"t\"],\"type\":\"object\"}},\"oneOf\":[{\"oneOf\":[{\"$"
     "ref\":"
     "\"#/$defs/B\"},{\"$ref\":\"#/$defs/"
     "W\"}],\"discriminator\":{\"propertyName\":\"u\"}},{\"$ref\":"
     "\"#/$defs/D\"}],\"discriminator\":{\"propertyName\":\"t\"}}",
     {"{\"t\":\"c\",\"u\":1}", "{\"t\":\"c\",\"u\":2}", "{\"t\":\"d\"}"},
     {"{}", "{\"t\":\"c\"}", "{\"t\":\"c\",\"u\":3}"}},
    /* characters of several bytes, and escapes, count once */
    {'s',
     "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\n\\\"\\u0001\""},
     {"\"a\"", "\"abcd\"", "\"\xc3\xa9\"", "\"\\n\\n\\n\\n\""}},
    /* a format beside a pattern that excludes it says nothing, as zod's local times */
    {'s',
     "{\"type\":\"string\",\"format\":\"time\",\"pattern\":\"^\\\\d\\\\d:\\\\d\\\\d$\"}",
     {"\"23:59\""},
     {"\"23:59:00Z\""}},
    /* OpenAPI's, and the largest numbers that some programs write for "none" */
    {'s', "{\"type\":\"string\",\"nullable\":true,\"maxLength\":1}", {"null", "\"a\""}, {"1"}},
    {'s', "{\"type\":\"string\",\"nullable\":false}", {"\"a\""}, {"null"}},
    {'s', "{\"type\":\"array\",\"maxItems\":2147483647,\"minItems\":1}", {"[1,2]"}, {"[]"}},
    {'s', "{\"type\":\"string\",\"minLength\":1,\"maxLength\":2147483647}", {"\"a\""}, {"\"\""}},
    {'s',
     "{\"type\":\"number\",\"multipleOf\":0.25}",
     {"0", "0.25", "-1.5", "3", "100.750", "2.00"},
     {"0.2", "0.125", "1.1", "0.251", "5."}},
    {'s', "{\"type\":\"integer\",\"multipleOf\":2.5}", {"5", "-10", "0"}, {"2", "2.5", "3"}},
    {'s', "{\"multipleOf\":1e2,\"type\":\"integer\"}", {"100", "-300"}, {"10", "50"}},
    {'r', "(?=.*b)(?!.*aa)[ab]{2,3}", {"ab", "bab", "bb"}, {"aa", "b", "aab", "abab"}},
    {'s', "true", {"1", "\"x\"", "[]", "null"}, {"x", ""}},
    {'s', "{\"properties\":{\"a\":false},\"type\":\"object\"}", {"{}", "{\"b\":1}"}, {"{\"a\":1}"}},
};

static void test_texts(void **v)
{
    for (int i = 0; i < HZP_COUNT(texts); i++) {
        const struct text_case *c = &texts[i];
        struct hzp_grammar *g = made(*v, c->kind, c->grammar);
        for (int k = 0; k < HZP_COUNT(c->taken) && c->taken[k]; k++)
            if (!takes(g, c->taken[k], strlen(c->taken[k])))
                fail_msg("%s does not take %s", c->grammar, c->taken[k]);
        for (int k = 0; k < HZP_COUNT(c->not_taken) && c->not_taken[k]; k++)
            if (takes(g, c->not_taken[k], strlen(c->not_taken[k])))
                fail_msg("%s takes %s", c->grammar, c->not_taken[k]);
        hzp_grammar_unref(g);
    }
}

/* Bounded strings of one length share a rule, so that a schema of many is no larger than of one. */
static void test_many_strings(void **v)
{
    static const struct {
        int fields, length;
    } row[] = {{1, 255}, {60, 255}, {3, 2000}, {1, 4096}};
    int32_t one = 0;
    for (int i = 0; i < HZP_COUNT(row); i++) {
        json_t *properties = json_object(), *schema;
        for (int k = 0; k < row[i].fields; k++) {
            char name[24];
            snprintf(name, sizeof(name), "field_%d", k);
            json_object_set_new(properties, name,
                                json_pack("{s:s, s:i, s:s}", "type", "string", "maxLength",
                                          row[i].length, "description", name));
        }
        schema = json_pack("{s:s, s:o, s:b}", "type", "object", "properties", properties,
                           "additionalProperties", 0);
        char *text = json_dumps(schema, 0);
        struct hzp_grammar *g = made(*v, 's', text);
        assert_true(takes(g, "{\"field_0\":\"abc\"}", 17));
        int32_t states = hzp_grammar_size(g).states;
        one = i ? one : states;
        assert_true(states < one - 255 + row[i].length + 40 * row[i].fields);
        hzp_grammar_unref(g);
        free(text);
        json_decref(schema);
    }
}

/* Strings of more characters than one rule counts. */
static void test_long_strings(void **v)
{
    static const struct {
        int least, most;
    } row[] = {{0, 4097}, {1, 8192}, {4096, 8191}, {3, 12289}, {0, 65535}};
    char *text = hzp_xmalloc(70000);
    for (int i = 0; i < HZP_COUNT(row); i++) {
        const int lengths[] = {
            0,    row[i].least - 1, row[i].least, 4095,           4096, 4097, 8191,
            8193, row[i].most - 1,  row[i].most,  row[i].most + 1};
        char schema[96];
        snprintf(schema, sizeof(schema), "{\"type\":\"string\",\"minLength\":%d,\"maxLength\":%d}",
                 row[i].least, row[i].most);
        struct hzp_grammar *g = made(*v, 's', schema);
        for (int k = 0; k < HZP_COUNT(lengths); k++) {
            int n = lengths[k];
            if (n < 0)
                continue;
            memset(text, 'a', (size_t)n + 2);
            text[0] = text[n + 1] = '"';
            bool is = n >= row[i].least && n <= row[i].most;
            if (takes(g, text, (size_t)n + 2) != is)
                fail_msg("%s: %d characters", schema, n);
        }
        hzp_grammar_unref(g);
    }
    free(text);
}

/* What is refused, and a word that the message has. */
static const struct {
    char kind;
    const char *grammar, *word;
} refused[] = {
    {'s', "{\"oneOf\":[{\"$ref\":5},{\"type\":\"null\"}]}", "oneOf"},
    {'r', "(a", "not closed"},
    {'r', "a)", ") without ("},
    {'r', "a**", "nothing to repeat"},
    {'r', "(?=a)", "no text"},
    {'r', "(?<=a)b", "look-behind"},
    {'r', "(?:a(?!b))*", "repeated"},
    {'r', "a(?=b", "not closed"},
    {'r', "(?<n>a(?=b))", "cannot have look-ahead"},
    {'r', "(?=[ab]*a[ab]{20}$).*", "too large"},
    {'r', "\\1", "back references"},
    {'r', "a\\b", "escape"},
    {'r', "a{9999}", "4096"},
    {'r', "a^b", "beginning"},
    {'r', "[b-a]", "before its beginning"},
    {'r', "a++", "possessive"},
    {'r', "(?:[ab]*a[ab]{30})", "too large"},
    {'r', "((((a{999}){999}){999}){999})", "too large"},
    {'r', "[]", "empty class"},
    {'g', "root ::= root \"a\" | \"b\"", "left recursion"},
    {'g', "root ::= a\na ::= \"\" b\nb ::= a \"x\" | \"y\"", "left recursion"},
    {'g', "root ::= x", "\"x\" is not defined"},
    {'g', "a ::= \"b\"", "\"root\""},
    {'g', "root ::= \"a", "inside of quotes"},
    {'g', "root = \"a\"", "::="},
    {'g', "root ::= \"a\"\nroot ::= \"b\"", "twice"},
    {'g', "root ::= \"a\" root", "no text"},
    {'s', "{\"contains\":{}}", "contains"},
    {'s', "{\"properties\":{\"a\":{\"not\":{\"items\":{}}}}}", "not (or if) at $/properties/a"},
    {'s', "{\"type\":\"object\",\"minProperties\":3}", "minProperties"},
    {'s', "{\"type\":\"object\",\"propertyNames\":{\"anyOf\":[]}}", "propertyNames"},
    {'s',
     "{\"$defs\":{\"n\":{\"pattern\":\"a\"}},\"type\":\"object\",\"propertyNames\":{\"$ref\":"
     "\"#/$defs/n\",\"maxLength\":2}}",
     "propertyNames"},
    {'s', "{\"type\":\"object\",\"patternProperties\":{\"(?<!a)\":{}}}", "pattern"},
    {'s', "{\"type\":\"strin\"}", "type"},
    {'s', "{\"$ref\":\"#/$defs/x\"}", "$defs/x"},
    {'s', "{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "left recursion"},
    {'s', "{\"$ref\":\"http://a/b\"}", "not in the schema"},
    {'s', "{\"oneOf\":[{\"items\":{}},{\"type\":\"array\"}]}", "oneOf"},
    {'s', "{\"type\":\"string\",\"not\":{\"format\":\"uri\"}}", "format"},
    {'s', "{\"type\":\"string\",\"maxLength\":16777217}", "16777216"},
    {'s', "{\"type\":\"string\",\"minLength\":4097,\"maxLength\":5000}", "minLength"},
    {'s', "{\"type\":\"string\",\"maxLength\":5000,\"pattern\":\"a\"}", "above 4096 beside"},
    {'s', "{\"type\":\"array\",\"maxItems\":5000}", "maxItems"},
    {'s', "{\"type\":\"string\",\"pattern\":\"(?<!a)b\"}", "pattern"},
    {'s', "{\"type\":\"number\",\"multipleOf\":0.4097}", "multipleOf"},
    {'s', "{\"type\":\"number\",\"multipleOf\":-0.5}", "multipleOf"},
    {'s', "{\"type\":\"number\",\"multipleOf\":0}", "multipleOf"},
    {'s', "{\"type\":\"number\",\"multipleOf\":\"1\"}", "multipleOf"},
    {'s', "{\"type\":\"number\",\"multipleOf\":1e-16}", "multipleOf"},
    {'s', "{\"enum\":[0.3],\"multipleOf\":0.1}", "enum or const"},
    {'s', "{\"not\":{\"type\":\"string\",\"nullable\":true}}", "not"},
    {'s', "{\"allOf\":[]}", "allOf"},
    {'s', "{\"enum\":[1],\"minimum\":2}", "no text"},
    {'s', "{\"enum\":[18446744073709551616],\"type\":\"string\"}", "no text"},
    {'s', "{\"minLength\":1e400}", "minLength"},
    {'s', "{\"properties\":1e400}", "properties"},
    {'s', "{\"type\":\"string\",\"pattern\":\"[ab]*a[ab]{20}$\",\"maxLength\":900}", "too large"},
    {'s', "false", "no text"},
    {'s', "{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", "no text"},
    {'s', "[]", "neither an object nor a boolean"},
    {'s', "{\"not\":{\"minLength\":1e300}}", "minLength"},
    {'s', "{\"enum\":[9007199254740993],\"maximum\":9007199254740992}", "no text"},
    {'s', "{\"enum\":[9007199254740993],\"multipleOf\":3}", "enum or const"},
    {'s', "{\"prefixItems\":[true],\"$ref\":\"#/prefixItems/-0\"}", "not in the schema"},
    {'s', "{\"$defs\":{\"a\":true},\"$ref\":\"#/$defs/a%00\"}", "not in the schema"},
};

static void test_refused(void **v)
{
    struct vocabularies *all = *v;
    for (int i = 0; i < HZP_COUNT(refused); i++) {
        struct hzp_grammar *g = NULL;
        struct hzp_err_text err = {0};
        const char *text = refused[i].grammar;
        int r = test_grammar(refused[i].kind, text, strlen(text), all->words[0].lexicon, &g, &err);
        if (r != HZP_EINVAL || !strstr(err.text, refused[i].word))
            fail_msg("%s: %d %s", text, r, err.text);
    }
}

/* `before`, n times `part`, `behind`. */
static char *repeated(const char *before, const char *part, size_t n, const char *behind)
{
    size_t head = strlen(before), size = strlen(part), bytes = head + n * size;
    char *text = hzp_xmalloc(bytes + strlen(behind) + 1);
    memcpy(text, before, head);
    for (size_t i = 0; i < n; i++)
        memcpy(text + head + i * size, part, size);
    memcpy(text + bytes, behind, strlen(behind) + 1);
    return text;
}

/* Lists and names beyond their bounds are refused; they are not cut. */
static void test_refused_sizes(void **v)
{
    struct vocabularies *all = *v;
    char *items = repeated("{\"prefixItems\":[true", ",true", 4096, "]}");
    char *name = repeated("{\"$defs\":{\"", "n", 255, "\":true},\"$ref\":\"#/$defs/");
    char *beyond = repeated(name, "n", 256, "\"}");
    const struct {
        const char *schema, *word;
    } row[] = {{items, "4096 entries"}, {beyond, "not in the schema"}};
    for (int i = 0; i < HZP_COUNT(row); i++) {
        struct hzp_grammar *g = NULL;
        struct hzp_err_text err = {0};
        int r = test_grammar('s', row[i].schema, strlen(row[i].schema), all->words[0].lexicon, &g,
                             &err);
        if (r != HZP_EINVAL || !strstr(err.text, row[i].word))
            fail_msg("%.40s: %d %s", row[i].schema, r, err.text);
    }
    free(items);
    free(name);
    free(beyond);
}

/* Copies of a part for which there are no nodes. */
static void test_full(void **v)
{
    enum { LETTERS = 100000 };
    struct vocabularies *all = *v;
    static const char begin[] = "root ::= \"", end[] = "\"{3}";
    size_t bytes = sizeof(begin) - 1 + LETTERS + sizeof(end) - 1;
    char *text = malloc(bytes);
    struct hzp_grammar *g = NULL;
    struct hzp_err_text err = {0};
    assert_non_null(text);
    memset(text, 'a', bytes);
    memcpy(text, begin, sizeof(begin) - 1);
    memcpy(text + bytes - (sizeof(end) - 1), end, sizeof(end) - 1);
    int r = test_grammar('g', text, bytes, all->words[0].lexicon, &g, &err);
    assert_int_equal(r, HZP_EINVAL);
    assert_non_null(strstr(err.text, "too large"));
    free(text);
}

/* More schemas than one value may have to satisfy. */
static void test_long_list(void **v)
{
    enum { SCHEMAS = 1100 };
    struct vocabularies *all = *v;
    static const char begin[] = "{\"allOf\":[", each[] = "{\"allOf\":[{}]},", end[] = "{}]}";
    char *text = malloc(sizeof(begin) + SCHEMAS * sizeof(each) + sizeof(end));
    struct hzp_grammar *g = NULL;
    struct hzp_err_text err = {0};
    assert_non_null(text);
    size_t bytes = sizeof(begin) - 1;
    memcpy(text, begin, bytes);
    for (int i = 0; i < SCHEMAS; i++, bytes += sizeof(each) - 1)
        memcpy(text + bytes, each, sizeof(each) - 1);
    memcpy(text + bytes, end, sizeof(end)); /* with its end mark */
    bytes += sizeof(end) - 1;
    int r = test_grammar('s', text, bytes, all->words[0].lexicon, &g, &err);
    assert_int_equal(r, HZP_EINVAL);
    assert_non_null(strstr(err.text, "too large"));
    free(text);
}

/* ---- masks ---- */

static const struct {
    char kind;
    const char *grammar;
} masked[] = {
    {'o', ""},
    {'r', "(ab|é|日)*[^a]{2,5}"},
    {'g', "root ::= \"[\" (root (\",\" root)*)? \"]\" | \"a\"* | [^a-z{}]"},
    {'g', "root ::= e e\ne ::= \"a\" | \"(\" e \"b\" | \"(\" e \")\" | \"\""},
    {'s',
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":40},\"a\":"
     "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":120}},\"ab\":{"
     "\"enum\":[\"a\",\"ab\",null]}},\"required\":[\"name\"]}"},
};

/* Each token's bit beside what the token's bytes do; returns an allowed token, -1: there is none.
 */
static int32_t check_mask(const struct words *w, struct hzp_grammar *g, const char *before,
                          size_t bytes, const uint32_t *mask)
{
    int32_t allowed[TOKENS], count = 0;
    for (int32_t t = 0; t < TOKENS; t++) {
        bool may = false;
        if (!w->text[t].special && w->text[t].bytes && w->text[t].size) {
            struct hzp_constraint_run *run = hzp_grammar_run_create(g);
            assert_true(hzp_grammar_run_bytes(run, before, bytes));
            may = hzp_grammar_run_bytes(run, w->text[t].bytes, (size_t)w->text[t].size);
            hzp_grammar_run_destroy(run);
        }
        if (may != test_bit(mask, t))
            fail_msg("behind \"%.*s\" token %d \"%.*s\" is %s", (int)bytes, before, t,
                     w->text[t].size, w->text[t].bytes, may ? "not allowed" : "allowed");
        if (may)
            allowed[count++] = t;
    }
    return count ? allowed[below((uint32_t)count)] : -1;
}

static void walk(const struct words *w, struct hzp_grammar *g, int steps)
{
    struct hzp_constraint_run *run = hzp_grammar_run_create(g);
    char text[4096];
    size_t bytes = 0;
    uint32_t mask[WORDS];
    for (int i = 0; i < steps; i++) {
        bool any = hzp_grammar_run_mask(run, mask);
        int32_t token = check_mask(w, g, text, bytes, mask);
        assert_int_equal(any, token >= 0);
        assert_true(token >= 0 || hzp_grammar_run_may_end(run));
        if (token < 0)
            break;
        memcpy(text + bytes, w->text[token].bytes, (size_t)w->text[token].size);
        bytes += (size_t)w->text[token].size;
        assert_true(hzp_grammar_run_token(run, token));
        assert_true(hzp_grammar_run_may_go_on(run) || hzp_grammar_run_may_end(run));
    }
    hzp_grammar_run_destroy(run);
}

static void test_masks(void **v)
{
    struct vocabularies *all = *v;
    for (int i = 0; i < 2; i++)
        for (int m = 0; m < HZP_COUNT(masked); m++) {
            struct hzp_grammar *g = NULL;
            const char *text = masked[m].grammar;
            assert_int_equal(
                test_grammar(masked[m].kind, text, strlen(text), all->words[i].lexicon, &g, NULL),
                HZP_OK);
            for (int n = 0; n < 4; n++)
                walk(&all->words[i], g, 12);
            hzp_grammar_unref(g);
        }
}

/* Appends text in which `mark` first occurs at its end; returns the node behind it. */
static int32_t until(struct hzp_rules *rules, int32_t from, const char *mark, size_t bytes)
{
    HZP_ASSERT(bytes > 0 && bytes < 256);
    int32_t node[257], fail[257];
    node[0] = hzp_rules_node(rules);
    hzp_rules_empty(rules, from, node[0]);
    for (size_t i = 1; i <= bytes; i++)
        node[i] = hzp_rules_node(rules);
    /* Knuth, Morris and Pratt: fail[i] is the longest proper border of the first i bytes. */
    fail[0] = fail[1] = 0;
    for (size_t i = 1; i < bytes; i++) {
        int32_t k = fail[i];
        while (k && mark[k] != mark[i])
            k = fail[k];
        fail[i + 1] = mark[k] == mark[i] ? k + 1 : 0;
    }
    for (size_t i = 0; i < bytes; i++)
        for (int c = 0; c < 0xFF; c++) {
            int32_t k = (int32_t)i;
            while (k && (uint8_t)mark[k] != c)
                k = fail[k];
            int32_t next = (uint8_t)mark[k] == c ? k + 1 : 0;
            hzp_rules_bytes(rules, node[i], (uint8_t)c, (uint8_t)c, node[next]);
        }
    return node[bytes];
}

/* Rules that ask for special tokens, beside text that spells them. */
static void test_specials(void **v)
{
    struct vocabularies *all = *v;
    const struct hzp_lexicon *lexicon = all->words[0].lexicon;
    struct hzp_rules *rules = hzp_rules_create();
    struct hzp_grammar *g = NULL;
    int32_t special = TOKENS - 1, root = hzp_rules_add(rules, "root", 4);
    int32_t at = hzp_rules_node(rules), end = rules->rule[root].last;
    hzp_rules_special(rules, rules->rule[root].first, special, at);
    at = until(rules, at, "aab", 3);
    hzp_rules_special(rules, at, special, end);
    assert_int_equal(hzp_grammar_create(rules, root, lexicon, &g, NULL), HZP_OK);
    hzp_rules_destroy(rules);
    struct hzp_constraint_run *run = hzp_grammar_run_create(g);
    uint32_t mask[WORDS];
    assert_true(hzp_grammar_run_mask(run, mask));
    for (int32_t t = 0; t < TOKENS; t++)
        assert_int_equal(test_bit(mask, t), t == special);
    assert_false(hzp_grammar_run_token(run, TOKENS - SPECIALS));
    assert_true(hzp_grammar_run_token(run, special));
    assert_true(hzp_grammar_run_mask(run, mask));
    assert_true(test_bit(mask, 'a') && test_bit(mask, '<') && !test_bit(mask, special));
    assert_true(hzp_grammar_run_bytes(run, "xaaa<x>aab", 10));
    assert_true(hzp_grammar_run_mask(run, mask));
    assert_true(test_bit(mask, special) && !test_bit(mask, 'a'));
    assert_true(hzp_grammar_run_token(run, special));
    assert_true(hzp_grammar_run_may_end(run) && !hzp_grammar_run_may_go_on(run));
    assert_false(hzp_grammar_run_mask(run, mask));
    hzp_grammar_run_destroy(run);
    hzp_grammar_unref(g);
}

/* Nesting beyond the bound is not offered, and what was begun can be ended. */
static void test_depth(void **v)
{
    struct hzp_grammar *g = made(*v, 'g', "root ::= \"[\" root \"]\" | \"x\"");
    struct hzp_constraint_run *run = hzp_grammar_run_create(g);
    uint32_t mask[WORDS];
    int depth = 0;
    while (hzp_grammar_run_mask(run, mask) && test_bit(mask, '[') && depth <= 2 * HZP_STACK_MAX) {
        if (!hzp_grammar_run_bytes(run, "[", 1))
            break;
        depth++;
    }
    assert_int_equal(depth, HZP_STACK_MAX);
    hzp_grammar_run_destroy(run);
    /* a list of many items needs no stack, and its frames are removed */
    struct hzp_grammar *flat = made(*v, 'o', "");
    run = hzp_grammar_run_create(flat);
    assert_true(hzp_grammar_run_bytes(run, "{\"a\":[1", 7));
    for (int i = 0; i < 20000; i++)
        assert_true(hzp_grammar_run_bytes(run, ",[{}]", 5));
    assert_true(hzp_grammar_run_bytes(run, "]}", 2) && hzp_grammar_run_may_end(run));
    hzp_grammar_run_destroy(run);
    hzp_grammar_unref(flat);
    hzp_grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),         cmocka_unit_test(test_refused),
        cmocka_unit_test(test_many_strings),  cmocka_unit_test(test_long_strings),
        cmocka_unit_test(test_refused_sizes), cmocka_unit_test(test_masks),
        cmocka_unit_test(test_specials),      cmocka_unit_test(test_depth),
        cmocka_unit_test(test_full),          cmocka_unit_test(test_long_list),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
