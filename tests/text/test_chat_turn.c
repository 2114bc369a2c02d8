/* SPDX-License-Identifier: Apache-2.0 */
/* What templates write between two answers: from behind the token that ended the first one on, in
 * the forms of the families, also where a template writes an answer differently once something
 * follows it, or writes no end. */
#include "text/chat/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define CALLS                                                                                      \
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor "  \
    "%}"
#define ASSISTANT "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
/* Hermes, Qwen 2.5. */
#define HERMES                                                                                     \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}" CALLS "<|im_end|>\n"  \
    "{% endfor %}" ASSISTANT
/* Qwen 3: an answer that is the last has an empty block of reasoning, an earlier one has none. */
#define THINKS                                                                                     \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last "  \
    "%}<think>\n\n</think>\n\n{% endif %}{{ m.content or '' }}" CALLS                              \
    "<|im_end|>\n{% endfor %}" ASSISTANT
/* GLM: what follows begins with the token that ended the answer. */
#define OBSERVES                                                                                   \
    "{% for m in messages %}<|{{ 'observation' if m.role == 'tool' else m.role }}|>\n"             \
    "{{ m.content or '' }}" CALLS "{% endfor %}"                                                   \
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
/* The bundled model's: nothing between messages but a blank, and an end only at the end. */
#define PLAIN                                                                                      \
    "{% for m in messages %}{{ ' ' if not loop.first }}{{ m.content or '' }}" CALLS "{% endfor %}" \
    "{% if not add_generation_prompt %}<|end|>{% endif %}"
/* It leaves answers out. */
#define FORGETS                                                                                    \
    "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}{% endif %}{% endfor %}"

static char directory[] = "/tmp/hzpserve-test-XXXXXX";

/* With no calls, or with this many. */
static int turn(const char *template, int calls, const char *next, const char *ends,
                struct hzp_textbuf *ret, struct hzp_err_text *err)
{
    char path[64];
    struct hzp_chat *chat = NULL;
    snprintf(path, sizeof(path), "%s/chat_template.jinja", directory);
    FILE *file = fopen(path, "w");
    fputs(template, file);
    fclose(file);
    assert_int_equal(hzp_chat_open(directory, NULL, &chat, err), HZP_OK);
    unlink(path);
    json_auto_t *before = json_pack("[{s:s, s:s}]", "role", "user", "content", "Go <|im_end|>!");
    json_auto_t *follows = json_loads(next, 0, NULL), *end = json_loads(ends, 0, NULL);
    json_auto_t *made = json_array();
    for (int i = 0; i < calls; i++)
        json_array_append_new(made, json_pack("{s:s, s:s, s:{s:s, s:s}}", "id", i ? "c2" : "c1",
                                              "type", "function", "function", "name", "look",
                                              "arguments", "no JSON"));
    const struct hzp_chat_request request = {.messages = before};
    int r = hzp_chat_turn(chat, &request, made, follows, end, ret, err);
    hzp_chat_close(chat);
    return r;
}

#define TOOL "{\"role\": \"tool\", \"tool_call_id\": \"c1\", \"content\": \"42 <|im_end|>\"}"
#define USER "{\"role\": \"user\", \"content\": \"And now?\"}"

static void families(void **state)
{
    static const struct {
        const char *template;
        int calls;
        const char *next, *ends, *text;
    } made[] = {
        {HERMES, 1, TOOL, "\"<|im_end|>\", \"<|endoftext|>\"",
         "\n<|im_start|>tool\n42 <|im_end|><|im_end|>\n<|im_start|>assistant\n"},
        {HERMES, 2, TOOL ", " TOOL, "\"<|endoftext|>\", \"<|im_end|>\"",
         "\n<|im_start|>tool\n42 <|im_end|><|im_end|>\n<|im_start|>tool\n42 <|im_end|><|im_end|>\n"
         "<|im_start|>assistant\n"},
        {HERMES, 0, USER, "\"<|im_end|>\"",
         "\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"},
        {THINKS, 1, TOOL, "\"<|im_end|>\"",
         "\n<|im_start|>tool\n42 <|im_end|><|im_end|>\n<|im_start|>assistant\n"},
        {OBSERVES, 1, TOOL, "\"<|endoftext|>\", \"<|user|>\", \"<|observation|>\"",
         "\n42 <|im_end|><|assistant|>"},
        {OBSERVES, 0, USER, "\"<|endoftext|>\", \"<|user|>\", \"<|observation|>\"",
         "\nAnd now?<|assistant|>"},
        {PLAIN, 0, USER, "\"<|end|>\"", " And now?"},
        {PLAIN, 1, USER, "\"<|end|>\"", " And now?"},
    };
    for (int i = 0; i < HZP_COUNT(made); i++) {
        HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {0};
        struct hzp_err_text err = {.text = ""};
        char next[256], ends[128];
        snprintf(next, sizeof(next), "[%s]", made[i].next);
        snprintf(ends, sizeof(ends), "[%s]", made[i].ends);
        if (turn(made[i].template, made[i].calls, next, ends, &text, &err) < 0)
            fail_msg("%d: %s: %s", i, err.param, err.text);
        if (text.bytes != strlen(made[i].text) || memcmp(text.data, made[i].text, text.bytes) != 0)
            fail_msg("%d: %.*s", i, (int)text.bytes, text.data);
    }
}

static void refusals(void **state)
{
    static const struct {
        const char *template, *next, *says;
    } made[] = {
        {HERMES, "[5]", "messages[0]"},
        {HERMES, "[{\"role\": \"user\", \"content\": \"a\"}, {\"content\": \"b\"}]",
         "messages[1].role"},
        {FORGETS, "[" USER "]", "shows no answer"},
        {"{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.content or '' "
         "}}" CALLS "{% endif %}"
         "<|im_end|>{% endfor %}",
         "[" TOOL "]", "messages[0].content"},
        {"{% for m in messages %}{{ raise_exception('No tools.') if m.role not in ['user', "
         "'assistant'] }}" CALLS "{{ m.content or '' }}<|im_end|>{% endfor %}",
         "[" TOOL "]", "No tools."},
    };
    for (int i = 0; i < HZP_COUNT(made); i++) {
        HZP_ENDED(hzp_textbuf_fini) struct hzp_textbuf text = {0};
        struct hzp_err_text err = {.text = ""};
        int r = turn(made[i].template, 1, made[i].next, "[\"<|im_end|>\"]", &text, &err);
        if (r != HZP_EINVAL || !strstr(err.text, made[i].says))
            fail_msg("%d: %d %s: %s", i, r, err.param, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),
        cmocka_unit_test(refusals),
    };
    if (!mkdtemp(directory))
        return 1;
    int r = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(directory);
    return r;
}
