/* SPDX-License-Identifier: Apache-2.0 */
/* Paraphrases of examples: read with them, and kept apart. */
#include "tests/train/accept.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/text/tokenizer_makes.h"

static struct hzp_model_config config = {.vocab = 300, .eos = {264}, .eos_count = 1};
static struct hzp_tokenizer *tok;
static struct hzp_examples ex;

static int open_bytes(void **state)
{
    scratch_setup(state);
    make_byte_level(MAKE_GPT);
    tok = make_open();
    hzp_examples_init(&ex, tok, &config, 33, 8);
    return 0;
}

static int close_all(void **state)
{
    hzp_examples_fini(&ex);
    hzp_tokenizer_close(tok);
    return scratch_teardown(state);
}

/* The paraphrases of a posted body; -1: it is refused.  The caller frees *ret. */
static int32_t asks(const char *body, struct hzp_sample ***ret, struct hzp_err_text *err)
{
    struct hzp_example_reader *reader = hzp_example_reader_create(&ex, NULL);
    int32_t count = -1;
    *ret = NULL;
    if (hzp_example_reader_feed(reader, body, strlen(body), true, err) >= 0)
        *ret = hzp_example_reader_take_asks(reader, &count);
    hzp_example_reader_destroy(reader);
    return count;
}

#define ASKS(list) "{\"prompt\": \"ab\", \"completion\": \"cd\", \"paraphrases\": " list "}\n"
#define TALK(user, more)                                                                           \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"" user "\"},"                             \
    " {\"role\": \"assistant\", \"content\": \"c\"}]" more "}"

/* Each has the tokens of an example with it in the place of the prompt. */
static void test_paraphrases(void **state)
{
    static const char *const same[][3] = {
        {ASKS("[\"x\", \"yz\"]"), "{\"prompt\": \"x\", \"completion\": \"cd\"}",
         "{\"prompt\": \"yz\", \"completion\": \"cd\"}"},
        {TALK("ab", ", \"paraphrases\": [\"x\", \"y\"]"), TALK("x", ""), TALK("y", "")}};
    static const char *const wrong[][3] = {
        {ASKS("\"x\""), "lines[1].paraphrases", "at most 8"},
        {ASKS("[1,2,3,4,5,6,7,8,9]"), "lines[1].paraphrases", "at most 8"},
        {ASKS("[\"x\", 2]"), "lines[1].paraphrases[1]", "must be a text"},
        {ASKS("[\"x\", \"\"]"), "lines[1].paraphrases[1]", "must be a text"},
        {ASKS("[\"x\", \"0123456789012345678901234567890123456789\"]"), "lines[1].paraphrases[1]",
         "tokens"},
        {"{\"text\": \"ab\", \"paraphrases\": [\"x\"]}", "lines[1].paraphrases[0]",
         "of an example with a prompt"}};
    struct hzp_err_text err = {{0}, {0}};
    struct hzp_sample **asked, **want;
    int32_t one;
    for (int i = 0; i < HZP_COUNT(same); i++) {
        int32_t count = asks(same[i][0], &asked, &err);
        assert_int_equal(count, 2);
        for (int32_t k = 0; k < count; k++) {
            const char *body = same[i][1 + k];
            assert_int_equal(hzp_examples_parse(&ex, body, strlen(body), NULL, &want, &one, &err),
                             HZP_OK);
            assert_int_equal(asked[k]->count, want[0]->count);
            assert_memory_equal(asked[k]->token, want[0]->token,
                                (size_t)want[0]->count * sizeof(*want[0]->token));
            assert_int_equal(asked[k]->sequence_number, 1);
            hzp_examples_free(want, one);
        }
        hzp_examples_free(asked, count);
    }
    for (int i = 0; i < HZP_COUNT(wrong); i++) {
        assert_int_equal(asks(wrong[i][0], &asked, &err), -1);
        assert_string_equal(err.param, wrong[i][1]);
        assert_non_null(strstr(err.text, wrong[i][2]));
    }
    char body[4096] = "";
    for (int i = 0; i < 8; i++) /* as many examples as a body may have */
        strcat(body, ASKS("[\"x\"]"));
    assert_int_equal(asks(body, &asked, &err), 8);
    assert_int_equal(asked[7]->sequence_number, 8);
    hzp_examples_free(asked, 8);
    ex.samples_max = 0;
    strcat(body, ASKS("[\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\"]"));
    for (int i = 0; i < 7; i++)
        strcat(body, ASKS("[\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\"]"));
    assert_int_equal(asks(body, &asked, &err), HZP_ASKS); /* the first of 72 */
    hzp_examples_free(asked, HZP_ASKS);
    /* Held-out samples are not asked; other files may have such a column. */
    assert_int_equal(hzp_examples_parse(&ex, body, strlen(body), NULL, &want, &one, &err),
                     HZP_EINVAL);
    ex.split = true;
    assert_int_equal(hzp_examples_parse(&ex, body, strlen(body), NULL, &want, &one, &err), HZP_OK);
    assert_int_equal(one, 16);
    hzp_examples_free(want, one);
    ex.split = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_paraphrases, open_bytes, close_all),
    };
    return cmocka_run_group_tests_name("paraphrases", tests, NULL, NULL);
}
