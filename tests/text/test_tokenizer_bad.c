/* SPDX-License-Identifier: Apache-2.0 */
/* Broken and hostile tokenizer.json files: each gives one line that names the error, nothing
   else. */
#include "tests/text/tokenizer_makes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define MODEL(vocab, merges)                                                                       \
    "{\"model\": {\"type\": \"BPE\", \"vocab\": " vocab ", \"merges\": " merges "}}"
#define WITH(field)                                                                                \
    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}, " field "}"

/* Opens the tokenizer in the directory: returns the code, and checks that an error is one line
   that names the file. */
static int try_open(struct hzp_err_text *err)
{
    struct hzp_tokenizer *tok = NULL;
    *err = (struct hzp_err_text){.text = ""};
    int r = hzp_tokenizer_open(scratch_dir, &tok, err);
    assert_int_equal(r < 0, tok == NULL);
    assert_int_equal(r < 0, err->text[0] != 0);
    assert_null(strchr(err->text, '\n'));
    if (r < 0)
        assert_non_null(strstr(err->text, "tokenizer"));
    hzp_tokenizer_close(tok);
    return r;
}

static const struct {
    const char *json;
    int code;
    const char *says;
} cases[] = {
    {"", HZP_EFORMAT, "line 1"},
    {"[]", HZP_EFORMAT, "not a JSON object"},
    {"{}", HZP_EFORMAT, "model: must be an object"},
    {"{\"model\": 3}", HZP_EFORMAT, "model: must be an object"},
    {"{\"model\": {\"type\": \"WordPiece\", \"vocab\": {}}}", HZP_EUNSUP, "WordPiece"},
    {"{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}", HZP_EUNSUP, "Unigram"},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": []}}", HZP_EUNSUP, "vocab must be an object"},
    {MODEL("{}", "[]"), HZP_EFORMAT, "vocab is empty"},
    {MODEL("{\"a\": -1}", "[]"), HZP_EFORMAT, "id of token \"a\""},
    {MODEL("{\"a\": 2000000000}", "[]"), HZP_EFORMAT, "id of token \"a\""},
    {MODEL("{\"a\": 9223372036854775807}", "[]"), HZP_EFORMAT, "id of token \"a\""},
    {MODEL("{\"a\": 99999999999999999999}", "[]"), HZP_EFORMAT, "must be a number from 0"},
    {MODEL("{\"a\": 1.5}", "[]"), HZP_EFORMAT, "id of token \"a\""},
    {MODEL("{\"a\": \"0\"}", "[]"), HZP_EFORMAT, "id of token \"a\""},
    {MODEL("{\"a\": 0, \"b\": 0}", "[]"), HZP_EFORMAT, "have id 0"},
    {MODEL("{\"a\": 0}", "{}"), HZP_EFORMAT, "merges must be a list"},
    {MODEL("{\"a\": 0}", "[\"a z\"]"), HZP_EFORMAT, "merge 0 has \"z\""},
    {MODEL("{\"a\": 0}", "[\"a a\"]"), HZP_EFORMAT, "merge 0 makes \"a\" + \"a\""},
    {MODEL("{\"a\": 0}", "[\"a\"]"), HZP_EFORMAT, "merge 0 must be two tokens"},
    {MODEL("{\"a\": 0}", "[\"a a a\"]"), HZP_EFORMAT, "merge 0 must be two tokens"},
    {MODEL("{\"a\": 0}", "[[\"a\"]]"), HZP_EFORMAT, "merge 0 must be two tokens"},
    {MODEL("{\"a\": 0}", "[[\"a\", 1]]"), HZP_EFORMAT, "merge 0 must be two tokens"},
    {MODEL("{\"a\": 0}", "[null]"), HZP_EFORMAT, "merge 0 must be two tokens"},
    {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [], \"unk_token\": \"u\"}}", HZP_EFORMAT,
     "unk_token \"u\" is not in vocab"},
    {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [], \"unk_token\": 1}}", HZP_EFORMAT,
     "unk_token must be a string"},
    {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [], \"dropout\": 0.1}}", HZP_EUNSUP,
     "dropout"},
    {"{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [], \"byte_fallback\": 1}}", HZP_EFORMAT,
     "byte_fallback must be true or false"},
    {WITH("\"normalizer\": {\"type\": \"Nmt\"}"), HZP_EUNSUP, "normalizer: type \"Nmt\""},
    {WITH("\"normalizer\": {}"), HZP_EFORMAT, "normalizer: must be an object with a \"type\""},
    {WITH("\"normalizer\": {\"type\": \"Sequence\"}"), HZP_EFORMAT, "normalizer: a Sequence"},
    {WITH("\"normalizer\": {\"type\": \"Prepend\"}"), HZP_EFORMAT, "prepend must be a string"},
    {WITH("\"normalizer\": {\"type\": \"Replace\", \"content\": \"\", \"pattern\": {\"Regex\": "
          "\"(\"}}"),
     HZP_EFORMAT, "regular expression \"(\""},
    {WITH("\"normalizer\": {\"type\": \"Replace\", \"content\": \"\", \"pattern\": {\"String\": "
          "\"\"}}"),
     HZP_EFORMAT, "pattern must be"},
    {WITH("\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}"), HZP_EUNSUP, "UnicodeScripts"},
    {WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Sideways\", \"pattern\": "
          "{\"String\": \"a\"}}"),
     HZP_EFORMAT, "behavior"},
    {WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}}"),
     HZP_EUNSUP, "'&&'"},
    {WITH("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"ab\"}"), HZP_EFORMAT,
     "replacement must be one character"},
    {WITH("\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
          "\"ByteLevel\"}, {\"type\": \"Whitespace\"}]}"),
     HZP_EUNSUP, "ByteLevel must be"},
    {WITH("\"decoder\": {\"type\": \"CTC\"}"), HZP_EUNSUP, "decoder: type \"CTC\""},
    {WITH("\"decoder\": {\"type\": \"Strip\", \"content\": \"a\", \"start\": -1, \"stop\": 0}"),
     HZP_EFORMAT, "start must be a number"},
    {WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": "
          "{}}, {\"SpecialToken\": {\"id\": \"q\"}}]}"),
     HZP_EFORMAT, "post_processor"},
    {WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": "
          "{}}, {\"SpecialToken\": {\"id\": \"q\"}}], \"special_tokens\": {\"q\": {\"ids\": "
          "[77]}}}"),
     HZP_EFORMAT, "no token has id 77"},
    {WITH("\"added_tokens\": {}"), HZP_EFORMAT, "added_tokens: must be a list"},
    {WITH("\"added_tokens\": [7]"), HZP_EFORMAT, "added_tokens: the id"},
    {WITH("\"added_tokens\": [{\"id\": 5}]"), HZP_EFORMAT, "content must be a string"},
    {WITH("\"added_tokens\": [{\"id\": -5, \"content\": \"x\"}]"), HZP_EFORMAT, "\"x\" must be"},
    {WITH("\"added_tokens\": [{\"id\": 1, \"content\": \"x\"}]"), HZP_EFORMAT,
     "token \"x\" has id 1, which is \"b\""},
    {WITH("\"added_tokens\": [{\"id\": 5, \"content\": \"x\"}, {\"id\": 5, \"content\": \"y\"}]"),
     HZP_EFORMAT, "\"x\" and \"y\" have id 5"},
    {WITH("\"added_tokens\": [{\"id\": 5, \"content\": \"x\\ny\", \"special\": 3}]"), HZP_EFORMAT,
     "special must be true or false"},
};

static void one_line_each(void **state)
{
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct hzp_err_text err;
        scratch_write_text(scratch_path("tokenizer.json"), cases[i].json);
        int r = try_open(&err);
        if (r != cases[i].code || strstr(err.text, cases[i].says) == NULL)
            fail_msg("%s\ngave %d \"%s\", not \"%s\"", cases[i].json, r, err.text, cases[i].says);
        assert_non_null(strstr(err.text, "tokenizer.json"));
    }
}

static void absent(void **state)
{
    struct hzp_err_text err;
    (void)remove(scratch_path("tokenizer.json"));
    assert_int_equal(try_open(&err), HZP_ENOENT);
    assert_non_null(strstr(err.text, "tokenizer.json"));
    assert_int_equal(mkdir(scratch_path("tokenizer.json"), 0700), 0);
    assert_int_equal(try_open(&err), HZP_EIO);
    assert_int_equal(rmdir(scratch_path("tokenizer.json")), 0);
}

static void nested_deeply(void **state)
{
    size_t n = 1000000;
    char *text = malloc(2 * n);
    struct hzp_err_text err;
    static const char sequences[] = "{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [";
    static const char *const units[] = {"[", "{\"a\":", sequences};
    for (int u = 0; u < HZP_COUNT(units); u++) {
        size_t m = strlen(units[u]), at = 0;
        for (; at + m < 2 * n; at += m)
            memcpy(text + at, units[u], m);
        scratch_write(scratch_path("tokenizer.json"), text, at);
        assert_int_equal(try_open(&err), HZP_EFORMAT);
    }
    free(text);
}

static void cut_off(void **state)
{
    /* every proper prefix of a good file is an error */
    struct hzp_err_text err;
    for (int make = 0; make < 2; make++) {
        if (make == 0)
            make_byte_level(MAKE_GPT);
        else
            make_sentencepiece();
        for (size_t n = 0; n < make_bytes; n += 1 + make_random(40)) {
            scratch_write(scratch_path("tokenizer.json"), make_text, n);
            assert_int_equal(try_open(&err), HZP_EFORMAT);
        }
        scratch_write(scratch_path("tokenizer.json"), make_text, make_bytes);
        assert_int_equal(try_open(&err), 0);
        /* the files beside tokenizer.json */
        scratch_write_text(scratch_path("tokenizer_config.json"), "{\"bos_token\"");
        assert_int_equal(try_open(&err), HZP_EFORMAT);
        assert_non_null(strstr(err.text, "tokenizer_config.json"));
        scratch_write_text(scratch_path("tokenizer_config.json"),
                           "{\"bos_token\": 3, "
                           "\"added_tokens_decoder\": {\"x\": {}}}");
        assert_int_equal(try_open(&err), HZP_EFORMAT);
        assert_int_equal(remove(scratch_path("tokenizer_config.json")), 0);
    }
}

/* A pattern that needs exponential work is stopped early. */
static void hostile_pattern(void **state)
{
    make_byte_level(", \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
                    "\"Split\", \"pattern\": {\"Regex\": \"(a|aa|a.)*(a|b)*[cd]\"}}, {\"type\": "
                    "\"ByteLevel\", \"use_regex\": false}]}");
    struct hzp_tokenizer *tok = make_open();
    struct hzp_tokens ids = {0};
    struct hzp_err_text err = {.text = ""};
    char text[2000];
    memset(text, 'a', sizeof(text));
    int r = hzp_tokenizer_encode(tok, text, sizeof(text), 0, 99999, &ids, &err);
    assert_int_equal(r, HZP_EUNSUP);
    assert_non_null(strstr(err.text, "too much work"));
    hzp_tokens_fini(&ids);
    hzp_tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_line_each),   cmocka_unit_test(absent),
        cmocka_unit_test(nested_deeply),   cmocka_unit_test(cut_off),
        cmocka_unit_test(hostile_pattern),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
