/* SPDX-License-Identifier: Apache-2.0 */
/* tests/rollout/test_verify.c - what each rule says of texts, and which rules are refused. */
#include "api/rollout/verify.h"
#include "base/base.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static double of(const char *rule, const char *text, const char *reference)
{
    struct hzp_verifier *v;
    struct hzp_err_text err = {.text = ""};
    json_t *json = json_loads(rule, 0, NULL);
    int r = hzp_verifier_create(json, &v, &err);
    if (r < 0)
        print_error("%s\n", err.text);
    assert_int_equal(r, HZP_OK);
    double ret = hzp_verify(v, text, strlen(text), (int32_t)strlen(text), reference);
    hzp_verifier_destroy(v);
    json_decref(json);
    return ret;
}

#define EXACT   "{\"type\": \"exact\"}"
#define NUMBER  "{\"type\": \"number\"}"
#define BOXED   "{\"type\": \"boxed\"}"
#define IS_JSON "{\"type\": \"json\"}"

static void rules(void **state)
{
    static const struct {
        const char *rule, *text, *reference;
        double reward;
    } row[] = {
        {EXACT, " blue\n", "blue", 1},
        {EXACT, "blue.", "blue", 0},
        {EXACT, "", "", 1},
        {NUMBER, "12 + 7 is 19.", "19", 1},
        {NUMBER, "it is 1,234.50 now", "1234.5", 1},
        {NUMBER, "-3", "-3", 1},
        {NUMBER, "19 or 20", "19", 0},
        {NUMBER, "none", "0", 0},
        {NUMBER, "1,2", "2", 1},
        {NUMBER, "#### 7", "the answer is #### 7", 1},
        {BOXED, "so \\boxed{x^{2}}", "x^{2}", 1},
        {BOXED, "\\boxed{1} then \\boxed{ 42.0 }", "42", 1},
        {BOXED, "\\boxed{42", "42", 0},
        {BOXED, "42", "42", 0},
        {BOXED, "\\boxed{a 42}", "42", 0},
        {"{\"type\": \"regex\", \"pattern\": \"^(yes|no)$\"}", "no", NULL, 1},
        {"{\"type\": \"regex\", \"pattern\": \"^(yes|no)$\"}", "no.", NULL, 0},
        {"{\"type\": \"regex\", \"pattern\": \"^(yes|no)$\"}", "well:\nyes\n", NULL, 1},
        {"{\"type\": \"regex\", \"pattern\": \"^.$\"}", "\u00fc", NULL, 1},
        {"{\"type\": \"regex\", \"pattern\": \"^(a+)+$\"}",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", NULL, 0},
        {"{\"type\": \"regex\", \"pattern\": \"^(.*)(.*)(.*)(.*)(.*)(.*)(.*)\\\\1\\\\2x$\"}",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", NULL, 0},
        {IS_JSON, "{\"a\": [1, 2]}", NULL, 1},
        {IS_JSON, "{\"a\": [1, 2]", NULL, 0},
        {IS_JSON, " {\"b\": 1, \"a\": 2} ", "{\"a\": 2, \"b\": 1}", 1},
        {IS_JSON, "[1]", "[2]", 0},
        {"{\"type\": \"length\", \"tokens\": 4}", "abcd", NULL, 1},
        {"{\"type\": \"length\", \"tokens\": 4}", "abc", NULL, 0.75},
        {"{\"type\": \"length\", \"tokens\": 4}", "abcdefghi", NULL, 0},
    };
    for (int i = 0; i < HZP_COUNT(row); i++) {
        double got = of(row[i].rule, row[i].text, row[i].reference);
        if (fabs(got - row[i].reward) > 1e-12)
            fail_msg("%s of \"%s\" is %g", row[i].rule, row[i].text, got);
    }
}

static void refused(void **state)
{
    static const char *const row[][2] = {
        {"{}", "reward.type"},
        {"{\"type\": \"magic\"}", "reward.type"},
        {"{\"type\": \"command\", \"command\": \"true\"}", "reward"},
        {"{\"type\": \"command\", \"timeout\": 0}", "reward.timeout"},
        {"{\"type\": \"regex\"}", "reward.pattern"},
        {"{\"type\": \"regex\", \"pattern\": \"(\"}", "reward.pattern"},
        {"{\"type\": \"regex\", \"pattern\": \"((a{1,255}){1,255}){1,255}\"}", "reward.pattern"},
        {"{\"type\": \"exact\", \"pattern\": \"a\"}", "reward"},
        {"{\"type\": \"length\"}", "reward.tokens"},
        {"{\"type\": \"length\", \"tokens\": 0}", "reward.tokens"},
        {"{\"type\": \"client\", \"timeout\": \"1\"}", "reward.timeout"},
        {"{\"type\": \"model\", \"words\": [\"a\", \"b\"]}", "reward.template"},
        {"{\"type\": \"model\", \"template\": \"{prompt}\", \"words\": [\"a\", \"b\"]}",
         "reward.template"},
        {"{\"type\": \"model\", \"template\": \"{text}\"}", "reward.words"},
        {"{\"type\": \"model\", \"template\": \"{text}\", \"words\": [\"ab\", \"a\"]}",
         "reward.words"},
        {"{\"type\": \"model\", \"template\": \"{text}\", \"pattern\": \"a\"}", "reward"},
    };
    for (int i = 0; i < HZP_COUNT(row); i++) {
        struct hzp_verifier *v;
        struct hzp_err_text err = {.text = ""};
        json_t *json = json_loads(row[i][0], 0, NULL);
        assert_int_equal(hzp_verifier_create(json, &v, &err), HZP_EINVAL);
        assert_string_equal(err.param, row[i][1]);
        json_decref(json);
    }
}

/* Names stand for what is said, once, and nothing that is said stands for anything. */
static void questions(void **state)
{
    json_auto_t *rule = json_loads("{\"type\": \"model\", \"words\": [\" yes\", \" no\"], "
                                   "\"template\": \"{{text} {b} {prompt}{\"}",
                                   0, NULL);
    json_auto_t *said = json_loads("{\"text\": \"{prompt}\", \"prompt\": \"{text}\"}", 0, NULL);
    struct hzp_verifier *v;
    assert_int_equal(hzp_verifier_create(rule, &v, NULL), HZP_OK);
    assert_true(hzp_verifier_is_model(v) && !hzp_verifier_is_pinned(v));
    assert_false(hzp_verifier_needs_reference(v));
    for (int w = 0; w < 2; w++) {
        struct hzp_textbuf text = {NULL, 0, 0};
        static const char *const want[] = {"{{prompt} {b} {text}{ yes", "{{prompt} {b} {text}{ no"};
        assert_int_equal(hzp_verifier_question(v, said, w, &text), HZP_OK);
        assert_int_equal(text.bytes, strlen(want[w]));
        assert_memory_equal(text.data, want[w], text.bytes);
        hzp_textbuf_fini(&text);
    }
    hzp_verifier_destroy(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rules), cmocka_unit_test(refused),
                                       cmocka_unit_test(questions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
