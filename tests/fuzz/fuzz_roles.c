/* SPDX-License-Identifier: Apache-2.0 */
/* Any messages to chat templates of several kinds: roles, contents and calls of pieces, two bytes
 * for each message.  Either what each message says is in the text that the template made, each
 * word of its own, or the messages are refused by the name of one; other words in the same places
 * make no difference to that. */
#include "base/json.h"
#include "tests/fuzz/smoke.h"
#include "text/chat/chat.h"

#include <unistd.h>

static void check(bool condition)
{
    if (!condition)
        abort();
}

/* ---- templates ---- */

#define CALLS                                                                                      \
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]" \
    "{% endfor %}"

static const char *const sources[] = {
    /* its own roles only */
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant', 'tool'] %}<{{ m.role "
    "}}>"
    "{{ m.content }}" CALLS "{% endif %}{% endfor %}",
    /* any role */
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.reasoning_content }}" CALLS
    "{% endfor %}",
    /* one system message, at the beginning */
    "{% if messages[0].role == 'system' %}({{ messages[0].content }}){% endif %}{% for m in "
    "messages "
    "%}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content | trim }}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if m.role == 'developer' or m.role == 'user' %}<{{ m.role }}>"
    "{{ m.content }}{% endif %}{% endfor %}",
    /* calls where there is no text */
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}" CALLS
    "{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}",
    /* parts only, and the first of them */
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}"
    "{% endfor %}",
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{{ m.content[0].text }}{% endif %}{% endfor %}",
    /* the last two only, and JSON */
    "{% for m in messages[-2:] %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "{{ messages | tojson }}",
};

static struct hzp_chat *chat[HZP_COUNT(sources)];

static void close_all(void)
{
    for (int i = 0; i < HZP_COUNT(chat); i++)
        hzp_chat_close(chat[i]);
}

static void open_all(void)
{
    char dir[] = "/tmp/hzp-fuzz-XXXXXX", path[64];
    struct hzp_err_text err;
    check(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/chat_template.jinja", dir);
    for (int i = 0; i < HZP_COUNT(sources); i++) {
        FILE *file = fopen(path, "w");
        check(file && fputs(sources[i], file) >= 0 && fclose(file) == 0);
        check(hzp_chat_open(dir, NULL, &chat[i], &err) == HZP_OK && chat[i]);
        remove(path);
    }
    rmdir(dir);
    check(atexit(close_all) == 0);
}

/* ---- messages ---- */

enum { MESSAGES_MAX = 8, WORDS_MAX = 6 * MESSAGES_MAX };

struct words {
    char word[WORDS_MAX][16];
    int n;
    uint32_t key;
};

/* A word that is said once. */
static const char *say(struct words *w)
{
    check(w->n < WORDS_MAX);
    snprintf(w->word[w->n], sizeof(w->word[0]), "w%dq%u", w->n, w->key);
    return w->word[w->n++];
}

static json_t *content_of(struct words *w, int kind)
{
    switch (kind) {
    case 0:
        return json_null();
    case 1:
        return json_string("");
    case 2:
        return json_array();
    case 3:
        return json_pack("[{s:s, s:s}, {s:s, s:s}]", "type", "text", "text", say(w), "type",
                         "input_text", "text", say(w));
    case 4:
        return json_pack("[{s:s, s:s}]", "type", "refusal", "refusal", say(w));
    case 5:
        return json_pack("s++", " ", say(w), "\n ");
    default:
        return json_string(say(w));
    }
}

static json_t *message_of(struct words *w, uint8_t a, uint8_t b)
{
    static const char *const roles[] = {"system", "user",     "assistant", "developer", "tool",
                                        "user",   "function", "critic",    "assistant", "User"};
    json_t *message = json_pack("{s:s}", "role", roles[a % HZP_COUNT(roles)]);
    if (a & 64)
        json_object_set_new(message, "name", json_string("Zoe"));
    if (b % 9 != 8)
        json_object_set_new(message, "content", content_of(w, b % 9));
    if (a & 128)
        json_object_set_new(message, b & 1 ? "refusal" : "tags", json_string(b & 1 ? say(w) : "x"));
    if (b & 64)
        json_object_set_new(
            message, "tool_calls",
            json_pack("[{s:s, s:s, s:{s:s, s:o}}]", "id", "c1", "type", "function", "function",
                      "name", say(w), "arguments",
                      b & 32 ? json_pack("{s:s, s:n, s:f}", "key", say(w), "none", "number", 1e300)
                             : json_sprintf("{\"key\": \"%s\", \"n\": 1e400}", say(w))));
    else if (b & 32)
        json_object_set_new(message, "function_call",
                            json_pack("{s:s, s:s}", "name", say(w), "arguments", "{}"));
    return message;
}

/* ---- the check ---- */

/* Whether the messages are taken; then every word is in the text. */
static bool taken(const struct hzp_chat *of, const json_t *given, const struct words *w)
{
    struct hzp_jinja_output out = {0};
    struct hzp_err_text err = {.text = ""};
    json_t *copy = NULL;
    int r = hzp_chat_messages(of, given, &copy, NULL, &err);
    const struct hzp_chat_request request = {.messages = copy, .now = 1};
    if (r == HZP_OK)
        r = hzp_chat_render(of, &request, &out, &err);
    if (r == HZP_OK)
        r = hzp_chat_check(of, &request, given, &out.text, &err);
    for (int i = 0; i < w->n && r == HZP_OK; i++)
        check(out.text.bytes &&
              memmem(out.text.data, out.text.bytes, w->word[i], strlen(w->word[i])));
    check((r == HZP_OK) == (err.text[0] == 0) && (r == HZP_OK || r == HZP_EINVAL));
    hzp_jinja_output_fini(&out);
    json_decref(copy);
    return r == HZP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!chat[0])
        open_all();
    if (size < 3)
        return 0;
    bool first = false;
    for (uint32_t key = 1; key < 3; key++) {
        struct words w = {.key = key};
        json_t *messages = json_array();
        for (size_t i = 1; i + 1 < size && i < 2 * MESSAGES_MAX; i += 2)
            json_array_append_new(messages, message_of(&w, data[i], data[i + 1]));
        bool is = taken(chat[data[0] % HZP_COUNT(chat)], messages, &w);
        check(key == 1 || is == first);
        first = is;
        json_decref(messages);
    }
    return 0;
}

static const struct fuzz_seed seeds[] = {
    FUZZ_TEXT("\0\1\6\2\6\1\6"),
    FUZZ_TEXT("\1\0\6\3\6\1\3\2\0\4\6"),
    FUZZ_TEXT("\2\0\6\0\6\1\6\3\5"),
    FUZZ_TEXT("\3\3\6\1\4\2\x26"),
    FUZZ_TEXT("\4\1\6\2\x47\4\6\6\6"),
    FUZZ_TEXT("\5\1\3\2\2\1\1"),
    FUZZ_TEXT("\6\1\3\2\6\7\6\x82\7"),
    FUZZ_TEXT("\7\0\6\1\6\2\6\1\6"),
    FUZZ_TEXT("\10\1\3\2\x66\4\6\x42\x81\5\5"),
};

FUZZ_MAIN(seeds)
