/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations to learned texts: which tokens are learned, with the bundled model's tokenizer. */
#include "text/chat/learned.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define TALK                                                                                       \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Where is Tarn?\"}, {\"role\": "           \
    "\"assistant\", \"content\": \"In the north.\"}, {\"role\": \"user\", \"content\": \"And "     \
    "Barrow?\"}, {\"role\": \"assistant\", \"content\": \"In the south.\"}]}"
#define TURNS                                                                                      \
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>\n{% endfor %}"                    \
    "{% if add_generation_prompt %}assistant: {% endif %}"

static struct hzp_tokenizer *tok;
static char model[4096];

static struct hzp_chat *open_chat(const char *source)
{
    char path[] = "/tmp/hzp-learned-XXXXXX";
    struct hzp_chat *chat = NULL;
    struct hzp_err_text err = {.text = ""};
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, source, strlen(source)) == (ssize_t)strlen(source));
    close(fd);
    if (hzp_chat_open(model, path, &chat, &err) < 0)
        fail_msg("%s", err.text);
    unlink(path);
    return chat;
}

/* Its tokens as text, learned ones in brackets, with the weight if it is not 1. */
static void describe(const struct hzp_learned_text *learned, char *ret, size_t size)
{
    struct hzp_textbuf out = {0};
    float now = 0;
    for (size_t i = 0; i <= learned->tokens.n; i++) {
        float w = i < learned->tokens.n ? learned->weight[i] : 0;
        char mark[32] = "";
        if (w != now)
            snprintf(mark, sizeof(mark), "%s%s", now != 0 ? "]" : "", w != 0 ? "[" : "");
        if (w != now && w != 0 && w != 1)
            snprintf(mark + strlen(mark), 16, "%g*", (double)w);
        hzp_textbuf_append(&out, mark, strlen(mark));
        now = w;
        if (i < learned->tokens.n)
            hzp_tokenizer_decode(tok, &learned->tokens.ids[i], 1, false, &out);
    }
    snprintf(ret, size, "%.*s", (int)out.bytes, out.data);
    hzp_textbuf_fini(&out);
}

static void expect(const char *source, const char *example, const char *const *want, size_t texts)
{
    struct hzp_chat *chat = open_chat(source);
    struct hzp_learned_texts got = {0};
    struct hzp_err_text err = {.text = ""};
    json_t *json = json_loads(example, 0, NULL);
    assert_non_null(json);
    if (hzp_learned_texts_add(chat, tok, json, 4096, &got, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(got.n, texts);
    for (size_t i = 0; i < texts; i++) {
        char text[1024];
        describe(&got.text[i], text, sizeof(text));
        assert_string_equal(text, want[i]);
    }
    hzp_learned_texts_fini(&got);
    json_decref(json);
    hzp_chat_close(chat);
}

static void turns_of_the_assistant(void **state)
{
    static const char *const want[] = {
        "user: Where is Tarn?<|end|>\nassistant: [In the north.<|end|>]\nuser: And "
        "Barrow?<|end|>\nassistant: [In the south.<|end|>]\n"};
    expect(TURNS, TALK, want, 1);
}

/* The ids are those that serving has: the prompt's as its own text, the answer's behind it. */
static void ids_of_serving(void **state)
{
    struct hzp_chat *chat = open_chat(TURNS);
    struct hzp_learned_texts got = {0};
    struct hzp_tokens prompt = {0};
    static const char text[] = "user: Where is Tarn?<|end|>\nassistant: ";
    json_t *json = json_loads(TALK, 0, NULL);
    assert_int_equal(hzp_learned_texts_add(chat, tok, json, 4096, &got, NULL), HZP_OK);
    assert_int_equal(hzp_tokenizer_encode(tok, text, strlen(text), HZP_TOKENIZER_PARSE_SPECIAL,
                                          4096, &prompt, NULL),
                     HZP_OK);
    assert_true(prompt.n < got.text[0].tokens.n);
    assert_memory_equal(prompt.ids, got.text[0].tokens.ids, prompt.n * sizeof(*prompt.ids));
    for (size_t i = 0; i < prompt.n; i++)
        assert_true(got.text[0].weight[i] == 0);
    assert_true(got.text[0].weight[prompt.n] == 1);
    hzp_tokens_fini(&prompt);
    hzp_learned_texts_fini(&got);
    json_decref(json);
    hzp_chat_close(chat);
}

static void weights(void **state)
{
    static const char *const want[] = {
        "user: a<|end|>\nassistant: b<|end|>\nuser: c<|end|>\nassistant: [2.5*d<|end|>]\n"};
    expect(TURNS,
           "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
           "\"content\": \"b\", \"weight\": 0}, {\"role\": \"user\", \"content\": \"c\"}, "
           "{\"role\": \"assistant\", \"content\": \"d\", \"weight\": 2.5}]}",
           want, 1);
    /* As other programs write it. */
    static const char *const marks[] = {"\"train\": false", "\"training\": false, \"mask\": null",
                                        "\"mask\": true", "\"masked\": true, \"train\": true"};
    for (int i = 0; i < HZP_COUNT(marks); i++) {
        char text[512];
        snprintf(text, sizeof(text),
                 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"train\": false}, "
                 "{\"role\": \"assistant\", \"content\": \"b\", %s}, {\"role\": \"user\", "
                 "\"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"d\", "
                 "\"weight\": 2.5, \"mask\": false}]}",
                 marks[i]);
        expect(TURNS, text, want, 1);
    }
}

static void generation_blocks(void **state)
{
    static const char *const want[] = {"Where is Tarn?|[In the north.<|end|>]|And Barrow?|[In the "
                                       "south.<|end|>]"};
    expect("{% for m in messages %}{% if m.role == 'assistant' %}|{% generation %}{{ m.content "
           "}}<|end|>{% endgeneration %}|{% else %}{{ m.content }}{% endif %}{% endfor %}",
           TALK, want, 1);
}

/* Of earlier turns the reasoning is left out, so each turn is seen as it was when it was made. */
static void turns_that_change(void **state)
{
    static const char *const want[] = {
        "user: a<|end|>\nassistant: [(why)b<|end|>]\n",
        "user: a<|end|>\nassistant: b<|end|>\nuser: c<|end|>\nassistant: [(how)d<|end|>]\n"};
    expect(
        "{% for m in messages %}{{ m.role }}: {% if m.r and loop.last %}({{ m.r }}){% endif %}"
        "{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
        "\"content\": \"b\", \"r\": \"why\"}, {\"role\": \"user\", \"content\": \"c\"}, "
        "{\"role\": \"assistant\", \"content\": \"d\", \"r\": \"how\"}]}",
        want, 2);
}

/* What is said reaches what is learned: system messages joined, a developer's, the reasoning of an
 * answer whatever its name. */
static void nothing_is_lost(void **state)
{
    static const char *const joined[] = {"(a\n\nb)user: c<|end|>\nassistant: [d<|end|>]\n"},
                             *const reasoned[] = {"user: c<|end|>\nassistant: [(why)d<|end|>]\n"};
    static const char first[] =
        "{% if messages[0].role == 'system' %}({{ messages[0].content }}){% endif %}{% for m in "
        "messages %}{% if m.role != 'system' %}{{ m.role }}: {{ m.content }}<|end|>\n{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
    expect(first,
           "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}, {\"role\": "
           "\"developer\", \"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\"}, "
           "{\"role\": \"assistant\", \"content\": \"d\", \"weight\": 1}]}",
           joined, 1);
    expect("{% for m in messages %}{{ m.role }}: {% if m.thinking %}({{ m.thinking }}){% endif %}"
           "{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}assistant: "
           "{% endif %}",
           "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", "
           "\"content\": \"d\", \"reasoning_content\": \"why\"}]}",
           reasoned, 1);
}

static void refusals(void **state)
{
    static const struct {
        const char *example, *param;
        int32_t max_tokens;
    } cases[] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", "messages", 4096},
        {"{\"messages\": []}", "messages", 4096},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"weight\": 1}]}",
         "messages[0].weight", 4096},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"train\": 0}]}",
         "messages[0].train", 4096},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": \"x\"}]}",
         "messages[0].weight", 4096},
        {TALK, "messages", 10},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": 5}", "tools",
         4096},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": "
         "[{\"function\": "
         "{\"name\": \"get\"}}]}",
         "tools", 4096},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"reasoning\": \"why\"}]}",
         "messages[0].reasoning", 4096},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": "
         "[{\"function\": {\"name\": \"get\"}}]}]}",
         "messages[0].tool_calls[0]", 4096},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"documents\": "
         "[{\"text\": \"x\"}]}",
         "documents", 4096},
    };
    struct hzp_chat *chat = open_chat(TURNS);
    for (int i = 0; i < HZP_COUNT(cases); i++) {
        struct hzp_learned_texts got = {0};
        struct hzp_err_text err = {.text = ""};
        json_t *json = json_loads(cases[i].example, 0, NULL);
        assert_int_equal(hzp_learned_texts_add(chat, tok, json, cases[i].max_tokens, &got, &err),
                         HZP_EINVAL);
        assert_string_equal(err.param, cases[i].param);
        hzp_learned_texts_fini(&got);
        json_decref(json);
    }
    hzp_chat_close(chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_of_the_assistant),
        cmocka_unit_test(ids_of_serving),
        cmocka_unit_test(weights),
        cmocka_unit_test(generation_blocks),
        cmocka_unit_test(turns_that_change),
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(refusals),
    };
    snprintf(model, sizeof(model), "%s/../../models/world", getenv("HZP_OWN_DATA"));
    if (hzp_tokenizer_open(model, &tok, NULL) < 0)
        return 77;
    int r = cmocka_run_group_tests(tests, NULL, NULL);
    hzp_tokenizer_close(tok);
    return r;
}
