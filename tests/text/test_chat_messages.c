/* SPDX-License-Identifier: Apache-2.0 */
/* What chat templates make of messages: everything that is said is in the text, or the request is
 * refused by name.  dev/check_templates.py --messages tries the same with published templates. */
#include "text/chat/chat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

/* Roles that are not its own it leaves out. */
#define OWN                                                                                        \
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant', 'tool'] %}"            \
    "<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} "        \
    "{{ c.function.arguments | tojson }}]{% endfor %}{% endif %}{% endfor %}"                      \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
/* Any role. */
#define ANY "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
/* One system message, at the beginning. */
#define FIRST                                                                                      \
    "{% if messages[0].role == 'system' %}({{ messages[0].content }}){% endif %}"                  \
    "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}"   \
    "{% endfor %}"
#define DEVELOPER                                                                                  \
    "{% for m in messages %}{% if m.role == 'developer' or m.role == 'user' %}"                    \
    "<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
/* Looks into the content of answers, and leaves earlier reasoning out. */
#define THINKS                                                                                     \
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% if loop.last and "      \
    "m.thinking %}({{ m.thinking }}){% endif %}{{ m.content.split('</think>')[-1] | trim }}"       \
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
/* A call only where there is no text, as DeepSeek's have it. */
#define NULLS                                                                                      \
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"                  \
    "{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments }}]{% endfor %}"    \
    "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
#define LIST                                                                                       \
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}"        \
    "{% endfor %}"
/* The first part of a list only. */
#define ONE_PART                                                                                   \
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"   \
    "{{ m.content[0].text }}{% endif %}{% endfor %}"
#define NAMES                                                                                      \
    "{% for m in messages %}<{{ m.role }}{% if m.role == 'tool' %} {{ m.name.upper() }}"           \
    "{% endif %}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} "          \
    "{{ c.function.arguments | tojson }}]{% endfor %}{% endfor %}"
#define TRIMS                                                                                      \
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>{% endfor %}"                 \
    "{% if add_generation_prompt %}<assistant>{% endif %}"
#define ESCAPES "{% for m in messages %}{{ m | tojson }}{% endfor %}"

#define U "{\"role\": \"user\", \"content\": \"Hi\"}"
#define CALL                                                                                       \
    "\"tool_calls\": [{\"id\": \"c1\", \"type\": \"function\", \"function\": {\"name\": \"f\", "   \
    "\"arguments\": \"{\\\"a\\\": \\\"x\\\"}\"}}]"
#define RESULT "{\"role\": \"tool\", \"tool_call_id\": \"c1\", \"content\": \"42\"}"

static char directory[] = "/tmp/hzp-chat-XXXXXX";

static struct hzp_chat *open_chat(const char *source)
{
    char path[64];
    struct hzp_chat *chat = NULL;
    struct hzp_err_text err = {.text = ""};
    snprintf(path, sizeof(path), "%s/chat_template.jinja", directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(source, 1, strlen(source), file), strlen(source));
    fclose(file);
    if (hzp_chat_open(directory, NULL, &chat, &err) < 0)
        fail_msg("%s", err.text);
    unlink(path);
    return chat;
}

static int render(const char *source, const char *messages, bool continues,
                  struct hzp_jinja_output *out, struct hzp_err_text *err)
{
    struct hzp_chat *chat = open_chat(source);
    json_t *given = json_loads(messages, JSON_ALLOW_NUL, NULL), *copy = NULL;
    assert_non_null(given);
    int r = hzp_chat_messages(chat, given, &copy, NULL, err);
    const struct hzp_chat_request request = {.messages = copy, .continues = continues, .now = 1};
    if (r == HZP_OK)
        r = hzp_chat_render(chat, &request, out, err);
    if (r == HZP_OK)
        r = hzp_chat_check(chat, &request, given, &out->text, err);
    json_decref(copy);
    json_decref(given);
    hzp_chat_close(chat);
    return r;
}

static void expect_bytes(const char *source, const char *messages, bool continues, const char *want,
                         size_t bytes)
{
    struct hzp_jinja_output out = {0};
    struct hzp_err_text err = {.text = ""};
    if (render(source, messages, continues, &out, &err) < 0)
        fail_msg("%s: %s", messages, err.text);
    if (out.text.bytes != bytes || memcmp(out.text.data, want, bytes) != 0)
        fail_msg("%s: \"%.*s\", not \"%s\"", messages, (int)out.text.bytes, out.text.data, want);
    hzp_jinja_output_fini(&out);
}

static void expect(const char *source, const char *messages, const char *want)
{
    expect_bytes(source, messages, false, want, strlen(want));
}

static void continued(const char *source, const char *messages, const char *want)
{
    expect_bytes(source, messages, true, want, strlen(want));
}

static void refuse(const char *source, const char *messages, bool continues, const char *param,
                   const char *word)
{
    struct hzp_jinja_output out = {0};
    struct hzp_err_text err = {.text = ""};
    if (render(source, messages, continues, &out, &err) != HZP_EINVAL)
        fail_msg("%s is not refused", messages);
    if (strcmp(err.param, param) || !strstr(err.text, word))
        fail_msg("%s: %s (%s) is not %s with %s", messages, err.text, err.param, param, word);
    hzp_jinja_output_fini(&out);
}

static void roles(void **state)
{
    expect(OWN, "[{\"role\": \"developer\", \"content\": \"Rhyme.\"}, " U "]",
           "<system>Rhyme.<user>Hi");
    expect(ANY, "[{\"role\": \"developer\", \"content\": \"Rhyme.\"}, " U "]",
           "<developer>Rhyme.<user>Hi");
    expect(DEVELOPER, "[{\"role\": \"developer\", \"content\": \"Rhyme.\"}, " U "]",
           "<developer>Rhyme.<user>Hi");
    refuse(DEVELOPER, "[{\"role\": \"system\", \"content\": \"Rhyme.\"}, " U "]", false,
           "messages[0].content", "system");
    refuse(OWN, "[" U ", {\"role\": \"critic\", \"content\": \"Bad.\"}]", false, "messages[1].role",
           "critic");
    expect(ANY, "[" U ", {\"role\": \"critic\", \"content\": \"Bad.\"}]", "<user>Hi<critic>Bad.");
    refuse(DEVELOPER, "[" U ", {\"role\": \"assistant\", \"content\": \"Ho\"}]", false,
           "messages[1].content", "assistant");
}

static void system_messages(void **state)
{
    static const char two[] = "[{\"role\": \"system\", \"content\": \"One.\"}, {\"role\": "
                              "\"developer\", \"content\": \"Two.\"}, " U "]",
                      between[] =
                          "[{\"role\": \"system\", \"content\": \"One.\"}, " U ", {\"role\": "
                          "\"assistant\", \"content\": \"Ho\"}, {\"role\": \"system\", "
                          "\"content\": \"Two.\"}, " U "]",
                      late[] = "[" U ", {\"role\": \"system\", \"content\": \"Two.\"}, " U "]";
    expect(OWN, two, "<system>One.<system>Two.<user>Hi");
    expect(FIRST, two, "(One.\n\nTwo.)<user>Hi");
    expect(OWN, between, "<system>One.<user>Hi<assistant>Ho<system>Two.<user>Hi");
    expect(FIRST, between, "(One.\n\nTwo.)<user>Hi<assistant>Ho<user>Hi");
    expect(FIRST, late, "(Two.)<user>Hi<user>Hi");
    expect(LIST, two, "<system>One.<developer>Two.<user>Hi");
}

static void contents(void **state)
{
    static const char parts[] =
        "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
        "\"One\"}, {\"type\": \"text\", \"text\": \"Two\"}]}]";
    expect(ANY, parts, "<user>One\nTwo");
    expect(LIST, parts, "<user>OneTwo");
    expect(ONE_PART, parts, "<user>One\nTwo");
    static const char *const nothing[] = {"[{\"role\": \"user\", \"content\": null}, " U "]",
                                          "[{\"role\": \"user\"}, " U "]",
                                          "[{\"role\": \"user\", \"content\": []}, " U "]",
                                          "[{\"role\": \"user\", \"content\": \"\"}, " U "]"};
    for (int i = 0; i < HZP_COUNT(nothing); i++) {
        expect(ANY, nothing[i], "<user><user>Hi");
        expect(LIST, nothing[i], "<user><user>Hi");
    }
    expect(TRIMS, "[{\"role\": \"user\", \"content\": \" \\n\"}]", "<user><end>");
    expect(TRIMS, "[{\"role\": \"user\", \"content\": \"\\u00a0 a  b\\n\"}]", "<user>a  b<end>");
    expect(ANY, "[{\"role\": \"user\", \"content\": null, \"name\": null, \"x\": null}]", "<user>");
    expect(ESCAPES, "[{\"role\": \"user\", \"content\": \"a\\n\\\"b\\\"\", \"name\": null}]",
           "{\"role\": \"user\", \"content\": \"a\\n\\\"b\\\"\"}");
    expect(ANY, "[{\"role\": \"assistant\", \"content\": null, \"refusal\": \"No.\"}]",
           "<assistant>No.");
    static const char zero[] = "<user>a\0b";
    expect_bytes(ANY, "[{\"role\": \"user\", \"content\": \"a\\u0000b\"}]", false, zero,
                 sizeof(zero) - 1);
    static const char begun[] = "<user>Hi<assistant>a\0b";
    expect_bytes(ANY, "[" U ", {\"role\": \"assistant\", \"content\": \"a\\u0000b\"}]", true, begun,
                 sizeof(begun) - 1);
}

static void calls(void **state)
{
    static const char *const silent[] = {"\"content\": null, ", "", "\"content\": \"\", ",
                                         "\"content\": [], "};
    for (int i = 0; i < HZP_COUNT(silent); i++) {
        char talk[400];
        snprintf(talk, sizeof(talk), "[" U ", {\"role\": \"assistant\", %s" CALL "}, " RESULT "]",
                 silent[i]);
        expect(OWN, talk, "<user>Hi<assistant>[f {\"a\": \"x\"}]<tool>42");
        expect(NULLS, talk, "<user>Hi[f {'a': 'x'}]<tool>42");
        refuse(ANY, talk, false, "messages[1].tool_calls[0]", "leaves it out");
        refuse(THINKS, talk, false, "messages[1].tool_calls[0]", "leaves it out");
    }
    static const char both[] =
        "[" U ", {\"role\": \"assistant\", \"content\": \"Let me see.\", " CALL "}, " RESULT "]";
    expect(OWN, both, "<user>Hi<assistant>Let me see.[f {\"a\": \"x\"}]<tool>42");
    expect(NULLS, both, "<user>Hi<assistant>Let me see.[f {'a': 'x'}]<tool>42");
    expect(NAMES, both, "<user>Hi<assistant>Let me see.[f {\"a\": \"x\"}]<tool F>42");
    static const char earlier[] = "[" U ", {\"role\": \"assistant\", \"content\": null, "
                                  "\"function_call\": {\"name\": \"f\", \"arguments\": "
                                  "\"{\\\"a\\\": \\\"x\\\"}\"}}, {\"role\": \"function\", "
                                  "\"name\": \"f\", \"content\": \"42\"}]";
    expect(OWN, earlier, "<user>Hi<assistant>[f {\"a\": \"x\"}]<tool>42");
    expect(NAMES, earlier, "<user>Hi<assistant>[f {\"a\": \"x\"}]<tool F>42");
    refuse(DEVELOPER, "[" U ", " RESULT "]", false, "messages[1].content", "tool");
}

static void reasoning(void **state)
{
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    for (int i = 0; i < HZP_COUNT(names); i++) {
        char talk[300];
        snprintf(talk, sizeof(talk),
                 "[" U ", {\"role\": \"assistant\", \"content\": \"Ho\", \"%s\": \"Hm.\"}]",
                 names[i]);
        expect(THINKS, talk, "<user>Hi<assistant>(Hm.)Ho");
        expect(ANY, talk, "<user>Hi<assistant>Ho");
    }
    expect(THINKS,
           "[" U ", {\"role\": \"assistant\", \"content\": \"<think>Hm.</think>Ho\"}, " U "]",
           "<user>Hi<assistant>Ho<user>Hi");
    refuse(FIRST, "[" U ", {\"role\": \"system\", \"content\": \"a\", \"content\": 5}]", false,
           "messages[1].content", "string");
}

/* What is lost in the middle is found although the words come again. */
static void what_is_lost(void **state)
{
    refuse("{% for m in messages %}<{{ m.role }}>{{ m.content[:8] }}{% endfor %}",
           "[{\"role\": \"user\", \"content\": \"A long question\"}]", false, "messages[0].content",
           "leaves it out");
    refuse(
        "{% for m in messages %}<{{ m.role }}>{{ m.content.split('#')[0] }}{% endfor %}",
        "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"One\"}, {\"type\": "
        "\"text\", \"text\": \"#two\"}]}]",
        false, "messages[0].content[1]", "leaves it out");
    refuse("{% for m in messages[-2:] %}<{{ m.role }}>{{ m.content }}{% endfor %}",
           "[{\"role\": \"user\", \"content\": \"First\"}, {\"role\": \"assistant\", \"content\": "
           "\"Ho\"}, " U "]",
           false, "messages[0].content", "leaves it out");
}

/* Short texts that other words have in them, and a text that comes twice. */
static void what_seems_to_be_there(void **state)
{
    static const char user[] = "[INST 42]{% for m in messages %}{% if m.role in ['user', "
                               "'assistant'] %}<{{ m.content }}>{% endif %}{% endfor %}";
    refuse(user, "[" U ", " RESULT ", " U "]", false, "messages[1].content", "tool");
    refuse(user,
           "[{\"role\": \"system\", \"content\": \"i\"}, {\"role\": \"user\", \"content\": "
           "\"Hi there\"}]",
           false, "messages[0].content", "system");
    refuse(user,
           "[{\"role\": \"user\", \"content\": \"What is in the box?\"}, {\"role\": \"tool\", "
           "\"content\": \"What is in the box?\"}]",
           false, "messages[1].content", "tool");
    refuse("{% for m in messages[-2:] %}<{{ m.content }}>{% endfor %}",
           "[" U ", {\"role\": \"assistant\", \"content\": \"Hi\"}, " U "]", false,
           "messages[0].content", "user");
    expect(user, "[" U ", {\"role\": \"assistant\", \"content\": \"Hi\"}, " U "]",
           "[INST 42]<Hi><Hi><Hi>");
}

/* A call without words of its own, where the tool's name stands in the template's words above
 * it. */
static void calls_without_words(void **state)
{
    static const char says[] = "f{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    static const char *const arguments[] = {"\"{\\\"n\\\": 7}\"", "\"{}\"", "\"\"", "{\"f\": 1}",
                                            "null"};
    char text[512];
    for (int i = 0; i < HZP_COUNT(arguments); i++) {
        snprintf(text, sizeof(text),
                 "[" U
                 ", {\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"c1\", \"function\": "
                 "{\"name\": \"f\", \"arguments\": %s}}]}, " RESULT "]",
                 arguments[i]);
        refuse(says, text, false, "messages[1].tool_calls[0]", "leaves it out");
    }
    refuse(says,
           "[" U ", {\"role\": \"assistant\", \"function_call\": {\"name\": \"f\", \"arguments\": "
           "\"{}\"}}, {\"role\": \"function\", \"name\": \"f\", \"content\": \"42\"}]",
           false, "messages[1].function_call", "leaves it out");
    expect(
        OWN,
        "[{\"role\": \"user\", \"content\": \"f\"}, {\"role\": \"assistant\", \"content\": \"\", "
        "\"function_call\": {\"name\": \"f\", \"arguments\": \"{}\"}}, {\"role\": \"function\", "
        "\"name\": \"f\", \"content\": \"42\"}]",
        "<user>f<assistant>[f {}]<tool>42");
}

/* A refusal is a text like another: in place of the content, or beside it. */
static void refusals(void **state)
{
#define REFUSAL(content)                                                                           \
    "[" U ", {\"role\": \"assistant\", \"refusal\": \"No thanks.\"" content "}]"
    static const char *const empty[] = {REFUSAL(""), REFUSAL(", \"content\": null"),
                                        REFUSAL(", \"content\": \"\"")};
    for (int i = 0; i < HZP_COUNT(empty); i++)
        expect(OWN, empty[i], "<user>Hi<assistant>No thanks.");
    refuse(OWN, REFUSAL(", \"content\": \"Sure.\""), false, "messages[1].refusal", "leaves it out");
    expect(OWN "{{ messages[1].refusal }}", REFUSAL(", \"content\": \"Sure.\""),
           "<user>Hi<assistant>Sure.No thanks.");
}

/* What a template says goes to clients: its file is named, the folder is not. */
static void what_it_refuses(void **state)
{
    struct hzp_jinja_output out = {0};
    struct hzp_err_text err = {.text = ""};
    assert_int_equal(render("{% if messages[0].content == 'Hi' %}\n{{ raise_exception('No.') }}"
                            "{% endif %}{{ messages[0].content }}",
                            "[" U "]", false, &out, &err),
                     HZP_EINVAL);
    assert_string_equal(err.text, "chat_template.jinja, line 2: No.");
    hzp_jinja_output_fini(&out);
}

static void continues(void **state)
{
    continued(OWN, "[" U ", {\"role\": \"assistant\", \"content\": \"1, 2,\"}]",
              "<user>Hi<assistant>1, 2,");
    /* the same words behind the content, and none */
    continued(TRIMS, "[" U ", {\"role\": \"assistant\", \"content\": \"e\"}]",
              "<user>Hi<end><assistant>e");
    continued(TRIMS, "[" U ", {\"role\": \"assistant\", \"content\": \"\"}]",
              "<user>Hi<end><assistant>");
    continued(TRIMS, "[" U ", {\"role\": \"assistant\", \"content\": \" a b \\n\"}]",
              "<user>Hi<end><assistant>a b");
    continued(OWN, "[" U ", {\"role\": \"assistant\", \"content\": \" a b \\n\"}]",
              "<user>Hi<assistant> a b \n");
    continued(LIST,
              "[" U
              ", {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
              "{\"type\": \"text\", \"text\": \"b\"}]}]",
              "<user>Hi<assistant>ab");
    refuse(THINKS, "[" U ", {\"role\": \"assistant\", \"content\": \"<think>a</think>b\"}]", true,
           "continue_final_message", "as it is");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(roles),
        cmocka_unit_test(system_messages),
        cmocka_unit_test(contents),
        cmocka_unit_test(calls),
        cmocka_unit_test(reasoning),
        cmocka_unit_test(what_is_lost),
        cmocka_unit_test(what_seems_to_be_there),
        cmocka_unit_test(calls_without_words),
        cmocka_unit_test(refusals),
        cmocka_unit_test(what_it_refuses),
        cmocka_unit_test(continues),
    };
    if (!mkdtemp(directory))
        return 1;
    int r = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(directory);
    return r;
}
